//! Edwards25519 and X25519 in eight lanes: independent operations side by side.

// Limbs and lanes of several arrays go together.
#![allow(clippy::needless_range_loop)]

mod blind;
mod field;
mod montgomery;
mod point;
mod sha512;
mod table;
#[cfg(test)]
mod tests;
mod vector;

use std::arch::x86_64::__m512i;
use std::array::from_fn;
use std::sync::LazyLock;

use curve25519_dalek::EdwardsPoint;
use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;

use super::wipe;
use crate::hash::sha512_secret;
use field::Fe;
use point::{Addable, Projective, decompress};
use table::{Comb, Digits, LaneTable, NielsEntry, lookup, multiples, times_power_of_2};

pub(crate) use blind::{KeyComb, Shift, shifted_each};
pub(crate) use montgomery::{x25519_each, x25519_public_each, x25519_with_points};

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;
/// Groups of eight that share one field inversion. More would gain little.
const GROUPS: usize = 8;
/// Window of the base point's multiples in verification: twice that of the key's.
const BASE_BITS: u32 = 10;
const KEY_BITS: u32 = 5;
/// Window of tables of quarters.
const QUARTER_BITS: u32 = 8;
/// The longest messages hashed in lanes; with longer ones, the lanes would wait for the longest.
const MAX_LANE_MESSAGE_BYTES: usize = 1024;

/// Multiples of the base point for windows of [`BASE_BITS`].
static BASE_TABLE: LazyLock<Vec<NielsEntry>> = LazyLock::new(|| {
    assert!(super::ifma());
    // SAFETY: the processor has the instructions, see the assertion.
    #[allow(unsafe_code)]
    unsafe {
        multiples(&ED25519_BASEPOINT_POINT, (1 << (BASE_BITS - 1)) + 1)
    }
});

/// Quarters of the base point.
static BASE_QUARTERS: LazyLock<KeyTables> = LazyLock::new(|| KeyTables::new(&ED25519_BASEPOINT_POINT));

/// The base point's multiples for secret scalars.
static COMB: LazyLock<Comb> = LazyLock::new(|| {
    assert!(super::ifma());
    // SAFETY: the processor has the instructions, see the assertion.
    #[allow(unsafe_code)]
    unsafe {
        Comb::new(&ED25519_BASEPOINT_POINT)
    }
});

/// The equation that the encoding of s·G − k·A is R.
#[derive(Clone, Copy)]
pub(crate) struct Equation<'a> {
    /// The canonical encoding of a point not of small order. (Whether it encodes a point at all is determined
    /// here.)
    pub(crate) a: &'a [u8; 32],
    /// Any 32 bytes.
    pub(crate) r: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) s: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) k: &'a [u8; 32],
}

/// The little endian words of up to eight 32-byte strings, by word and lane; unused lanes repeat the first
/// string.
fn words_of<'a>(strings: impl Iterator<Item = &'a [u8; 32]>) -> [[u64; 8]; 4] {
    let mut words = [[0; 8]; 4];
    let mut used = 0;
    for (lane, string) in strings.enumerate() {
        for (word, bytes) in words.iter_mut().zip(string.as_chunks::<8>().0) {
            word[lane] = u64::from_le_bytes(*bytes);
        }
        used = lane + 1;
    }
    for word in &mut words {
        let first = word[0];
        word[used..].fill(first);
    }
    words
}

/// Checks every equation. The processor must have the instructions that [`super::ifma`] checks for.
pub(crate) fn check_equations(equations: &[Equation<'_>], verdicts: &mut [bool]) {
    assert!(super::ifma());
    assert_eq!(equations.len(), verdicts.len());
    for (equations, verdicts) in equations.chunks(GROUPS * LANES).zip(verdicts.chunks_mut(GROUPS * LANES)) {
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            check_chunk(equations, verdicts);
        }
    }
}

/// Multiples of a public key that verifies many signatures: 2^(64·j)·A for j below 4, times 0 to 128.
pub(crate) struct KeyTables([Vec<NielsEntry>; 4]);

impl KeyTables {
    /// The tables of a point. The processor must have the instructions that [`super::ifma`] checks for.
    pub(crate) fn new(point: &EdwardsPoint) -> Self {
        assert!(super::ifma());
        let mut power = *point;
        Self(from_fn(|j| {
            if j > 0 {
                power = times_power_of_2(&power, 64);
            }
            // SAFETY: the processor has the instructions, see the assertion.
            #[allow(unsafe_code)]
            unsafe {
                multiples(&power, (1 << (QUARTER_BITS - 1)) + 1)
            }
        }))
    }
}

/// The equation that the encoding of s·G + c·A is R, for a point A with tables.
#[derive(Clone, Copy)]
pub(crate) struct TableEquation<'a> {
    /// Multiples of A.
    pub(crate) a: &'a KeyTables,
    /// Any 32 bytes.
    pub(crate) r: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) s: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) c: &'a [u8; 32],
}

/// Checks every equation. The processor must have the instructions that [`super::ifma`] checks for.
pub(crate) fn check_table_equations(equations: &[TableEquation<'_>], verdicts: &mut [bool]) {
    assert!(super::ifma());
    assert_eq!(equations.len(), verdicts.len());
    for (equations, verdicts) in equations.chunks(GROUPS * LANES).zip(verdicts.chunks_mut(GROUPS * LANES)) {
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            check_table_chunk(equations, verdicts);
        }
    }
}

/// The encodings of the multiples of the base point by little endian integers below 2^253, which may be
/// secret. The processor must have the instructions that [`super::ifma`] checks for.
pub(crate) fn base_multiples(scalars: &[[u8; 32]]) -> Vec<[u8; 32]> {
    assert!(super::ifma());
    let mut encodings = Vec::with_capacity(scalars.len());
    for scalars in scalars.chunks(GROUPS * LANES) {
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            base_chunk(scalars, &mut encodings);
        }
    }
    encodings
}

/// SHA-512 of the concatenations of three parts each. The processor must have the instructions that
/// [`super::ifma`] checks for.
///
/// For secret messages the working memory is wiped; wiping the result is up to the caller.
pub(crate) fn sha512_each(messages: &[[&[u8]; 3]], is_secret: bool) -> Vec<[u8; 64]> {
    assert!(super::ifma());
    let mut hashes = Vec::with_capacity(messages.len());
    // Allocated with the final size, so that no secret stays behind in memory that was too small.
    let longest = messages.iter().filter(|parts| !is_long(*parts)).map(|parts| bytes(parts)).max();
    let capacity = sha512::padded_bytes(longest.unwrap_or(0));
    let mut buffers: [_; LANES] = from_fn(|_| Vec::with_capacity(capacity));
    for chunk in messages.chunks(LANES) {
        for buffer in &mut buffers {
            buffer.clear();
        }
        for (buffer, parts) in buffers.iter_mut().zip(chunk) {
            if !is_long(parts) {
                sha512::pad(buffer, parts);
            }
        }
        let padded = from_fn(|lane| buffers[lane].as_slice());
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        let mut hashed = unsafe { sha512::sha512_padded(&padded) };
        for (parts, hash) in chunk.iter().zip(&hashed) {
            hashes.push(if is_long(parts) { *sha512_secret(parts) } else { *hash });
        }
        if is_secret {
            wipe(hashed.as_flattened_mut());
        }
    }
    if is_secret {
        for buffer in &mut buffers {
            buffer.resize(buffer.capacity(), 0);
            wipe(buffer);
        }
    }
    hashes
}

fn bytes(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

fn is_long(parts: &[&[u8]]) -> bool {
    bytes(parts) > MAX_LANE_MESSAGE_BYTES
}

/// Checks up to eight groups of eight.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn check_chunk(equations: &[Equation<'_>], verdicts: &mut [bool]) {
    let one = Fe::splat(&field::ONE);
    let groups = equations.len().div_ceil(LANES);
    let mut keys = [(one, one, 0); GROUPS];
    let mut encodings = [[[0; 8]; 4]; GROUPS];
    for (group, encodings) in equations.chunks(LANES).zip(&mut encodings) {
        *encodings = words_of(group.iter().map(|equation| equation.a));
    }
    let mut group = 0;
    while group < groups {
        if groups - group > 1 {
            let both = [encodings[group], encodings[group + 1]];
            keys[group..group + 2].copy_from_slice(&decompress(&both));
            group += 2;
        } else {
            keys[group] = decompress(&[encodings[group]])[0];
            group += 1;
        }
    }
    let mut results = [Projective::identity(); GROUPS];
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let (x, y, exists) = keys[group];
        // If there is no key, use any other point: the result is unused, but its Z must not be zero.
        let x = Fe::splat(&field::ZERO).select(exists, &x);
        let y = one.select(exists, &y);
        let (mut s, mut k) = ([[0; 32]; LANES], [[0; 32]; LANES]);
        for (lane, equation) in equations.iter().enumerate() {
            (s[lane], k[lane]) = (*equation.s, *equation.k);
        }
        multiply(&x, &y, &s, &k, &mut results[group]);
    }
    let points = affine_each(&results, groups);
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let (x, y) = &points[group];
        let expected = words_of(equations.iter().map(|equation| equation.r));
        let equal = point::equals_encoding(x, y, &expected) & keys[group].2;
        set_verdicts(&mut verdicts[group * LANES..][..equations.len()], equal);
    }
}

/// Stores one verdict from each lane.
fn set_verdicts(verdicts: &mut [bool], lanes: u8) {
    for (lane, verdict) in verdicts.iter_mut().enumerate() {
        *verdict = lanes >> lane & 1 == 1;
    }
}

/// Canonical x and y of the first `count` points.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn affine_each(points: &[Projective; GROUPS], count: usize) -> [(Fe, Fe); GROUPS] {
    let one = Fe::splat(&field::ONE);
    let mut affine = [(one, one); GROUPS];
    let mut inverses = [one; GROUPS];
    for (inverse, point) in inverses.iter_mut().zip(points) {
        *inverse = point.z;
    }
    invert_each(&mut inverses[..count]);
    for i in 0..count {
        affine[i].0 = points[i].x.mul(&inverses[i]).canonical();
        affine[i].1 = points[i].y.mul(&inverses[i]).canonical();
    }
    affine
}

/// Inverts up to [`GROUPS`] elements, none of which is zero, with a single inversion (Montgomery).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn invert_each(elements: &mut [Fe]) {
    // First the products of all elements before each one.
    let mut products = [Fe::splat(&field::ONE); GROUPS];
    let mut product = elements[0];
    for i in 1..elements.len() {
        products[i] = product;
        product = product.mul(&elements[i]);
    }
    let mut rest = field::invert(&product);
    for i in (0..elements.len()).rev() {
        let inverse = rest.mul(&products[i]);
        rest = rest.mul(&elements[i]);
        elements[i] = inverse;
    }
}

/// s·G − k·A for A = (x, y), in time that depends on all of them.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn multiply(x: &Fe, y: &Fe, s: &[[u8; 32]; 8], k: &[[u8; 32]; 8], result: &mut Projective) {
    let negated = Fe::splat(&field::ZERO).widen().sub(&x.widen()).carry();
    let table = LaneTable::new(&negated, y);
    let base = [BASE_TABLE.as_slice(); 8];
    let s = Digits::<BASE_BITS>::new(s);
    let k = Digits::<KEY_BITS>::new(k);
    let top = Digits::<BASE_BITS>::WINDOWS - 1;
    let mut sum = Addable::identity().add(&table.get(k.get(2 * top))).to_addable();
    sum.add_niels(&lookup(&base, s.get(top))).write_projective(result);
    for window in (0..top).rev() {
        for half in [1, 0] {
            for _ in 0..4 {
                result.double().write_projective(result);
            }
            result.double().write_addable(&mut sum);
            let added = sum.add(&table.get(k.get(2 * window + half)));
            if half == 1 {
                added.write_projective(result);
            } else {
                added.write_addable(&mut sum);
            }
        }
        sum.add_niels(&lookup(&base, s.get(window))).write_projective(result);
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn check_table_chunk(equations: &[TableEquation<'_>], verdicts: &mut [bool]) {
    let mut results = [Projective::identity(); GROUPS];
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let (mut s, mut c) = ([[0; 32]; LANES], [[0; 32]; LANES]);
        let mut keys = [[BASE_QUARTERS.0[0].as_slice(); LANES]; 4];
        for (lane, equation) in equations.iter().enumerate() {
            (s[lane], c[lane]) = (*equation.s, *equation.c);
            for quarter in 0..4 {
                keys[quarter][lane] = &equation.a.0[quarter];
            }
        }
        let s = Digits::<QUARTER_BITS>::new(&s);
        let c = Digits::<QUARTER_BITS>::new(&c);
        let mut sum = Addable::identity();
        let result = &mut results[group];
        // Four quarters of 64 bits share the doublings.
        for window in (0..64 / QUARTER_BITS).rev() {
            if window + 1 < 64 / QUARTER_BITS {
                for _ in 1..QUARTER_BITS {
                    result.double().write_projective(result);
                }
                result.double().write_addable(&mut sum);
            }
            for quarter in 0..4 {
                let digit = window + 64 / QUARTER_BITS * quarter as u32;
                let base = [BASE_QUARTERS.0[quarter].as_slice(); LANES];
                sum.add_niels(&lookup(&base, s.get(digit))).write_addable(&mut sum);
                let added = sum.add_niels(&lookup(&keys[quarter], c.get(digit)));
                if quarter < 3 {
                    added.write_addable(&mut sum);
                } else {
                    added.write_projective(result);
                }
            }
        }
    }
    let points = affine_each(&results, equations.len().div_ceil(LANES));
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let (x, y) = &points[group];
        let expected = words_of(equations.iter().map(|equation| equation.r));
        let equal = point::equals_encoding(x, y, &expected);
        set_verdicts(&mut verdicts[group * LANES..][..equations.len()], equal);
    }
}

/// Appends the encodings of multiples of the base point, in constant time.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn base_chunk(scalars: &[[u8; 32]], encodings: &mut Vec<[u8; 32]>) {
    let results = base_points(scalars);
    let points = affine_each(&results, scalars.len().div_ceil(LANES));
    let start = encodings.len();
    encodings.resize(start + scalars.len(), [0; 32]);
    for (encodings, (x, y)) in encodings[start..].chunks_mut(LANES).zip(&points) {
        write_words(&point::encode(x, y), encodings);
    }
}

/// The multiples of the base point by up to eight groups of integers below 2^253, in constant time.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn base_points(scalars: &[[u8; 32]]) -> [Projective; GROUPS] {
    let mut results = [Projective::identity(); GROUPS];
    for (scalars, results) in scalars.chunks(2 * LANES).zip(results.as_chunks_mut::<2>().0) {
        let mut integers = [[[0; 32]; LANES]; 2];
        integers.as_flattened_mut()[..scalars.len()].copy_from_slice(scalars);
        let mut digits = [Digits::new(&integers[0]), Digits::new(&integers[1])];
        if scalars.len() > LANES {
            COMB.multiply(&digits, results);
        } else {
            let (digits, results) = (digits.first_chunk::<1>(), results.first_chunk_mut::<1>());
            COMB.multiply(digits.expect("one of two"), results.expect("one of two"));
        }
        wipe(integers.as_flattened_mut().as_flattened_mut());
        for digits in &mut digits {
            wipe(digits.words_mut());
        }
    }
    results
}

/// Writes the four little endian words of each lane as bytes, for as many lanes as `out` has room for. They
/// may be secret.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn write_words(words: &[__m512i; 4], out: &mut [[u8; 32]]) {
    let mut words = words.map(|word| vector::store(word));
    for (lane, out) in out.iter_mut().enumerate() {
        for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(&words) {
            *bytes = word[lane].to_le_bytes();
        }
    }
    wipe(words.as_flattened_mut());
}
