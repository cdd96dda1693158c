//! Edwards25519 in eight lanes: independent signature verifications side by side, none of which sees the others.

// Limbs and lanes of several arrays go together.
#![allow(clippy::needless_range_loop)]

mod field;
mod point;
mod sha512;
mod table;
mod vector;

use std::array::from_fn;
use std::sync::LazyLock;

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;

use crate::hash::sha512_parts;
use field::Fe;
use point::{Addable, Projective, decompress};
use table::{Digits, LaneTable, NielsEntry, lookup, multiples};

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;
/// Groups of eight that share one field inversion. More gains little.
const GROUPS: usize = 8;
/// Window of the base point's multiples in verification: twice that of the key's.
const BASE_BITS: u32 = 10;
const KEY_BITS: u32 = 5;
/// Longest messages hashed in lanes; of longer ones the lanes would wait for the longest.
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

/// Whether the encoding of s·G − k·A is R.
#[derive(Clone, Copy)]
pub(crate) struct Equation<'a> {
    /// Encoding of a point, canonical and not of small order (whether it is of a point at all is found here).
    pub(crate) a: &'a [u8; 32],
    /// Any 32 bytes.
    pub(crate) r: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) s: &'a [u8; 32],
    /// Below the group order, little endian.
    pub(crate) k: &'a [u8; 32],
}

/// The little endian words of up to eight 32-byte strings, by word and lane; lanes left over repeat the first.
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

/// Checks every equation; the processor must have what [`super::ifma`] finds.
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

/// SHA-512 of the concatenations of three parts each; the processor must have what [`super::ifma`] finds.
pub(crate) fn sha512_each(messages: &[[&[u8]; 3]]) -> Vec<[u8; 64]> {
    assert!(super::ifma());
    let mut hashes = Vec::with_capacity(messages.len());
    let mut buffers: [Vec<u8>; LANES] = Default::default();
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
        let hashed = unsafe { sha512::sha512_padded(&padded) };
        hashes.extend(
            chunk.iter().zip(hashed).map(
                |(parts, hash)| {
                    if is_long(parts) { *sha512_parts(parts).as_bytes() } else { hash }
                },
            ),
        );
    }
    hashes
}

fn is_long(parts: &[&[u8]]) -> bool {
    parts.iter().map(|part| part.len()).sum::<usize>() > MAX_LANE_MESSAGE_BYTES
}

/// Of up to eight groups of eight.
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
    let mut results = [Projective { x: one, y: one, z: one }; GROUPS];
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let (x, y, exists) = keys[group];
        // Where there is no key any other point does: nobody looks at the result, but its Z must not be zero.
        let x = Fe::splat(&field::ZERO).select(exists, &x);
        let y = one.select(exists, &y);
        let integers =
            |of: fn(&Equation<'_>) -> [u8; 32]| from_fn(|lane| equations.get(lane).map_or([0; 32], of));
        let s = integers(|equation| *equation.s);
        let k = integers(|equation| *equation.k);
        results[group] = multiply(&x, &y, &s, &k);
    }
    let inverses = invert_each(&results.map(|result| result.z), groups);
    for (group, equations) in equations.chunks(LANES).enumerate() {
        let x = results[group].x.mul(&inverses[group]).canonical();
        let y = results[group].y.mul(&inverses[group]).canonical();
        let expected = words_of(equations.iter().map(|equation| equation.r));
        let equal = point::equals_encoding(&x, &y, &expected) & keys[group].2;
        for (lane, verdict) in verdicts[group * LANES..].iter_mut().take(equations.len()).enumerate() {
            *verdict = equal >> lane & 1 == 1;
        }
    }
}

/// The inverses of the first `count` elements, none of which may be zero, by one inversion.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn invert_each(elements: &[Fe; GROUPS], count: usize) -> [Fe; GROUPS] {
    let mut products = *elements;
    for i in 1..count {
        products[i] = products[i - 1].mul(&elements[i]);
    }
    let mut rest = field::invert(&products[count - 1]);
    let mut inverses = *elements;
    for i in (1..count).rev() {
        inverses[i] = rest.mul(&products[i - 1]);
        rest = rest.mul(&elements[i]);
    }
    inverses[0] = rest;
    inverses
}

/// s·G − k·A for A = (x, y), in time that depends on all of them.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn multiply(x: &Fe, y: &Fe, s: &[[u8; 32]; 8], k: &[[u8; 32]; 8]) -> Projective {
    let negated = Fe::splat(&field::ZERO).widen().sub(&x.widen()).carry();
    let table = LaneTable::new(&negated, y);
    let base = [BASE_TABLE.as_slice(); 8];
    let s = Digits::<BASE_BITS>::new(s);
    let k = Digits::<KEY_BITS>::new(k);
    let top = Digits::<BASE_BITS>::WINDOWS - 1;
    let mut sum = Addable::identity().add(&table.get(k.get(2 * top))).to_addable();
    let mut result = sum.add_niels(&lookup(&base, s.get(top))).to_projective();
    for window in (0..top).rev() {
        for half in [1, 0] {
            for _ in 0..4 {
                result = result.double().to_projective();
            }
            sum = result.double().to_addable();
            let added = sum.add(&table.get(k.get(2 * window + half)));
            if half == 1 {
                result = added.to_projective();
            } else {
                sum = added.to_addable();
            }
        }
        result = sum.add_niels(&lookup(&base, s.get(window))).to_projective();
    }
    result
}

#[cfg(test)]
mod tests {
    use curve25519_dalek::{EdwardsPoint, Scalar};

    use super::*;
    use crate::hash::sha512;

    /// Runs a test that needs the instructions, if this processor has them.
    pub(super) fn on_lanes(test: unsafe fn()) {
        if crate::lanes::ifma() {
            // SAFETY: the processor has the instructions.
            #[allow(unsafe_code)]
            unsafe {
                test();
            }
        }
    }

    /// Numbers that are the same in every run.
    pub(super) struct Rng(u64);

    impl Rng {
        pub(super) fn new(seed: u64) -> Self {
            Self(seed)
        }

        /// SplitMix64.
        pub(super) fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn bytes<const N: usize>(&mut self) -> [u8; N] {
            from_fn(|_| self.next().to_le_bytes()[0])
        }
    }

    #[test]
    fn hashes_are_those_of_the_library() {
        if !crate::lanes::ifma() {
            return;
        }
        let data: Vec<u8> = (0..2000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut messages = Vec::new();
        for length in 0..=MAX_LANE_MESSAGE_BYTES + 20 {
            let (a, rest) = data[..length].split_at(length / 3);
            let (b, c) = rest.split_at(length / 5);
            messages.push([a, b, c]);
        }
        // Short and long ones side by side, and a group that is not full.
        let mixed: Vec<_> = (0..=1044).map(|i| messages[i * 521 % 1045]).collect();
        messages.extend(mixed);
        for (hash, parts) in sha512_each(&messages).iter().zip(&messages) {
            assert_eq!(hash, sha512(&parts.concat()).as_bytes());
        }
        assert!(sha512_each(&[]).is_empty());
    }

    /// Scalars at the edges of digits, and random ones.
    fn scalars(rng: &mut Rng) -> Vec<Scalar> {
        let mut scalars = vec![Scalar::ZERO, Scalar::ONE, -Scalar::ONE, -Scalar::from(2u8)];
        for bits in [KEY_BITS, BASE_BITS] {
            for window in 0..253 / bits {
                let mut power = Scalar::ONE;
                for _ in 0..window * bits {
                    power += power;
                }
                for digit in
                    [1, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << bits) - 1]
                {
                    scalars.push(power * Scalar::from(digit as u64));
                    scalars.push(power * Scalar::from(digit as u64) - Scalar::ONE);
                }
            }
        }
        while scalars.len() % 8 != 0 || scalars.len() < 600 {
            scalars.push(Scalar::from_bytes_mod_order_wide(&rng.bytes()));
        }
        scalars
    }

    #[test]
    fn equations_with_edge_scalars_hold() {
        if !crate::lanes::ifma() {
            return;
        }
        let mut rng = Rng::new(4);
        let scalars = scalars(&mut rng);
        let mut others = scalars.clone();
        others.rotate_left(101);
        let a = EdwardsPoint::mul_base(&Scalar::from_bytes_mod_order_wide(&rng.bytes()));
        let torsion = curve25519_dalek::constants::EIGHT_TORSION;
        for shift in [0, 1] {
            let points: Vec<_> = (0..scalars.len()).map(|i| a + torsion[i * shift % 8]).collect();
            let keys: Vec<_> = points.iter().map(|point| point.compress().to_bytes()).collect();
            let results: Vec<_> = (0..scalars.len())
                .map(|i| EdwardsPoint::mul_base(&scalars[i]) - points[i] * others[i])
                .map(|point| point.compress().to_bytes())
                .collect();
            let mut wrong = results.clone();
            for (i, wrong) in wrong.iter_mut().enumerate() {
                wrong[i % 32] ^= 1 << (i % 8);
            }
            for (rs, expected) in [(&results, true), (&wrong, false)] {
                let equations: Vec<_> = (0..scalars.len())
                    .map(|i| Equation {
                        a: &keys[i],
                        r: &rs[i],
                        s: scalars[i].as_bytes(),
                        k: others[i].as_bytes(),
                    })
                    .collect();
                let mut verdicts = vec![!expected; equations.len()];
                check_equations(&equations, &mut verdicts);
                assert!(verdicts.iter().all(|&verdict| verdict == expected));
            }
        }
    }

    /// Lanes must not see each other: one that is no point at all, in any place, changes no other.
    #[test]
    fn strings_that_are_no_points_disturb_nobody() {
        if !crate::lanes::ifma() {
            return;
        }
        let mut rng = Rng::new(5);
        for size in 1..=GROUPS * LANES + 9 {
            let keys: Vec<[u8; 32]> = (0..size)
                .map(|_| {
                    if rng.next().is_multiple_of(2) {
                        rng.bytes()
                    } else {
                        EdwardsPoint::mul_base(&Scalar::from(rng.next())).compress().to_bytes()
                    }
                })
                .collect();
            let scalars: Vec<_> =
                (0..size).map(|_| Scalar::from_bytes_mod_order_wide(&rng.bytes())).collect();
            let expected: Vec<_> = keys
                .iter()
                .zip(&scalars)
                .map(|(key, scalar)| {
                    let point = curve25519_dalek::edwards::CompressedEdwardsY(*key).decompress()?;
                    Some((EdwardsPoint::mul_base(scalar) - point * scalar).compress().to_bytes())
                })
                .collect();
            let rs: Vec<_> = expected.iter().map(|r| r.unwrap_or([1; 32])).collect();
            let equations: Vec<_> = (0..size)
                .map(|i| Equation {
                    a: &keys[i],
                    r: &rs[i],
                    s: scalars[i].as_bytes(),
                    k: scalars[i].as_bytes(),
                })
                .collect();
            let mut verdicts = vec![false; size];
            check_equations(&equations, &mut verdicts);
            assert_eq!(verdicts, expected.iter().map(Option::is_some).collect::<Vec<_>>());
        }
    }
}
