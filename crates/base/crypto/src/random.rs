/// Fills `out` from the random generator of the operating system.
///
/// # Panics
///
/// If the operating system provides no randomness, because no keys may be generated then.
pub fn fill_random(out: &mut [u8]) {
    getrandom::fill(out).expect("the operating system provides randomness");
}

/// `N` bytes from the random generator of the operating system; panics as [`fill_random`] does.
pub(crate) fn random_array<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    fill_random(&mut out);
    out
}
