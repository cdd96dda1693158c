//! Blinded R values of Clause Schnorr signatures in eight lanes: R + α·G + β·X for secret α and β.

use curve25519_dalek::EdwardsPoint;

use super::field::{self, Fe};
use super::point::{self, Addable, Projective, decompress};
use super::table::{Comb, Digits};
use super::{COMB, GROUPS, LANES, affine_each, words_of, write_words};
use crate::lanes::{ifma, wipe};

/// The multiples of a public key for secret scalars: 98 kB.
pub(crate) struct KeyComb(Comb);

impl KeyComb {
    /// The multiples of a point. The processor must have the instructions that [`ifma`] checks for.
    pub(crate) fn new(point: &EdwardsPoint) -> Self {
        assert!(ifma(), "callers ask first");
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        Self(unsafe { Comb::new(point) })
    }
}

/// The blinding of R.
#[derive(Clone, Copy)]
pub(crate) struct Shift<'a> {
    /// The canonical encoding of a point. (Whether it encodes a point at all is determined here.)
    pub(crate) r: &'a [u8; 32],
    /// Little endian, below 2^253.
    pub(crate) alpha: &'a [u8; 32],
    /// Little endian, below 2^253.
    pub(crate) beta: &'a [u8; 32],
    /// Multiples of X.
    pub(crate) key: &'a KeyComb,
}

/// The encodings of R + α·G + β·X, and `None` where R is not a point. The processor must have the
/// instructions that [`ifma`] checks for. Constant time except for the points R and which key belongs to
/// which item. Neighbours with the same key are faster than others.
pub(crate) fn shifted_each(items: &[Shift<'_>]) -> Vec<Option<[u8; 32]>> {
    assert!(ifma(), "callers ask first");
    let mut encodings = vec![None; items.len()];
    for (items, encodings) in items.chunks(GROUPS * LANES).zip(encodings.chunks_mut(GROUPS * LANES)) {
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            shifted_chunk(items, encodings);
        }
    }
    encodings
}

/// Handles up to eight groups of eight.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn shifted_chunk(items: &[Shift<'_>], encodings: &mut [Option<[u8; 32]>]) {
    let mut results = [Projective::identity(); GROUPS];
    let mut exist = [0; GROUPS];
    let pairs = items.chunks(2 * LANES).zip(results.as_chunks_mut::<2>().0).zip(exist.as_chunks_mut::<2>().0);
    for ((items, results), exist) in pairs {
        if items.len() > LANES {
            let (first, second) = items.split_at(LANES);
            shifted_groups([first, second], results, exist);
        } else {
            let (results, exist) = (results.first_chunk_mut::<1>(), exist.first_chunk_mut::<1>());
            shifted_groups([items], results.expect("one of two"), exist.expect("one of two"));
        }
    }
    let points = affine_each(&results, items.len().div_ceil(LANES));
    for ((encodings, (x, y)), exist) in encodings.chunks_mut(LANES).zip(&points).zip(exist) {
        let mut bytes = [[0; 32]; LANES];
        write_words(&point::encode(x, y), &mut bytes);
        for (lane, encoding) in encodings.iter_mut().enumerate() {
            *encoding = (exist >> lane & 1 == 1).then_some(bytes[lane]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn shifted_groups<const N: usize>(
    groups: [&[Shift<'_>]; N],
    results: &mut [Projective; N],
    exist: &mut [u8; N],
) {
    let encodings = groups.map(|items| words_of(items.iter().map(|item| item.r)));
    let mut sums = [Addable::identity(); N];
    for ((sum, exist), (x, y, is_point)) in sums.iter_mut().zip(exist).zip(decompress(&encodings)) {
        // If there is no point, use any other: the result is unused, but its Z must not be zero.
        let x = Fe::splat(&field::ZERO).select(is_point, &x);
        let y = Fe::splat(&field::ONE).select(is_point, &y);
        *sum = Addable::from_affine(&x, &y);
        *exist = is_point;
    }
    let mut alphas = groups.map(|items| digits(items, |item| *item.alpha));
    let mut betas = groups.map(|items| digits(items, |item| *item.beta));
    let base = [(&*COMB, u8::MAX)];
    let bases: [&[(&Comb, u8)]; N] = [&base; N];
    Comb::add_multiples(&bases, &alphas, &mut sums);
    let keys = groups.map(keys_of);
    let keys: [&[(&Comb, u8)]; N] = std::array::from_fn(|group| keys[group].as_slice());
    Comb::add_multiples(&keys, &betas, &mut sums);
    for (result, sum) in results.iter_mut().zip(&sums) {
        *result = sum.to_projective();
    }
    for digits in alphas.iter_mut().chain(&mut betas) {
        wipe(digits.words_mut());
    }
}

/// The keys of up to eight items, each with a bit mask of its lanes; unused lanes have none.
fn keys_of<'a>(items: &[Shift<'a>]) -> Vec<(&'a Comb, u8)> {
    let mut keys: Vec<(&Comb, u8)> = Vec::new();
    for (lane, item) in items.iter().enumerate() {
        match keys.iter_mut().find(|(key, _)| std::ptr::eq(*key, &item.key.0)) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => keys.push((&item.key.0, 1 << lane)),
        }
    }
    keys
}

fn digits(items: &[Shift<'_>], scalar: impl Fn(&Shift<'_>) -> [u8; 32]) -> Digits<5> {
    let mut integers = [[0; 32]; LANES];
    for (integer, item) in integers.iter_mut().zip(items) {
        *integer = scalar(item);
    }
    let digits = Digits::new(&integers);
    wipe(integers.as_flattened_mut());
    digits
}
