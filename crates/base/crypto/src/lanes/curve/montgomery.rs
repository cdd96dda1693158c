//! X25519 (RFC 7748) in eight lanes: the Montgomery ladder, whose instructions and addresses do not depend on
//! the scalars.
//!
//! Every string of 32 bytes is a u-coordinate: its highest bit is ignored, it need not be below p, and it may
//! be of the twist or of small order, for which the result is zero.

use std::arch::x86_64::{_mm512_set1_epi64, _mm512_test_epi64_mask};

use curve25519_dalek::Scalar;
use curve25519_dalek::scalar::clamp_integer;

use super::field::{self, Fe};
use super::point::decompress;
use super::vector::load;
use super::{GROUPS, LANES, base_points, invert_each, words_of, write_words};
use crate::lanes::{Wiped, ifma, wipe};

/// (486662 − 2)/4 of the curve's equation.
const A24: u32 = 121_665;

/// X25519 of scalars, which are clamped here, and u-coordinates. Here and below, the processor must have the
/// instructions that [`ifma`] checks for.
pub(crate) fn x25519_each(scalars: &[&[u8; 32]], us: &[&[u8; 32]]) -> Wiped<32> {
    assert!(ifma(), "callers ask first");
    assert_eq!(scalars.len(), us.len());
    let mut out = Wiped(vec![[0; 32]; scalars.len()]);
    for (index, out) in out.0.chunks_mut(GROUPS * LANES).enumerate() {
        let range = index * GROUPS * LANES..index * GROUPS * LANES + out.len();
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            with_coordinates(&scalars[range.clone()], &us[range], out);
        }
    }
    out
}

/// X25519 of scalars, which are clamped here, and the base point.
pub(crate) fn x25519_public_each(scalars: &[&[u8; 32]]) -> Vec<[u8; 32]> {
    assert!(ifma(), "callers ask first");
    let mut out = vec![[0; 32]; scalars.len()];
    for (scalars, out) in scalars.chunks(GROUPS * LANES).zip(out.chunks_mut(GROUPS * LANES)) {
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            with_base(scalars, out);
        }
    }
    out
}

/// X25519 of scalars, which are clamped here, and the u-coordinates of points on Edwards25519; and which of
/// them are points. The caller has checked that their encodings are canonical and not of small order.
pub(crate) fn x25519_with_points(scalars: &[&[u8; 32]], points: &[&[u8; 32]]) -> (Wiped<32>, Vec<bool>) {
    assert!(ifma(), "callers ask first");
    assert_eq!(scalars.len(), points.len());
    let mut out = Wiped(vec![[0; 32]; scalars.len()]);
    let mut exist = vec![false; scalars.len()];
    for (index, out) in out.0.chunks_mut(GROUPS * LANES).enumerate() {
        let range = index * GROUPS * LANES..index * GROUPS * LANES + out.len();
        // SAFETY: the processor has the instructions, see the assertion.
        #[allow(unsafe_code)]
        unsafe {
            with_points(&scalars[range.clone()], &points[range.clone()], out, &mut exist[range]);
        }
    }
    (out, exist)
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn with_coordinates(scalars: &[&[u8; 32]], us: &[&[u8; 32]], out: &mut [[u8; 32]]) {
    let mut coordinates = [Fe::splat(&field::ONE); GROUPS];
    for (coordinate, us) in coordinates.iter_mut().zip(us.chunks(LANES)) {
        *coordinate = Fe::from_words(&words_of(us.iter().copied()));
    }
    exchange(scalars, &coordinates, out);
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn with_base(scalars: &[&[u8; 32]], out: &mut [[u8; 32]]) {
    let count = scalars.len().div_ceil(LANES);
    let mut integers = Wiped(Vec::with_capacity(count * LANES));
    // Unused lanes repeat the first item: no element may be zero, see below.
    for lane in 0..count * LANES {
        let scalar = scalars.get(lane).unwrap_or(&scalars[0]);
        let mut integer = [clamp_integer(**scalar)];
        // A multiple of the base point, whose order is L, so the remainder gives the same point.
        integers.0.push(Scalar::from_bytes_mod_order(integer[0]).to_bytes());
        wipe(integer.as_flattened_mut());
    }
    let points = base_points(&integers.0);
    // u = (1 + y)/(1 − y). No clamped integer is a multiple of L, so y is not one.
    let mut inverses = [Fe::splat(&field::ONE); GROUPS];
    for (inverse, point) in inverses[..count].iter_mut().zip(&points) {
        *inverse = point.z.widen().sub(&point.y.widen()).carry();
    }
    invert_each(&mut inverses[..count]);
    for ((out, point), inverse) in out.chunks_mut(LANES).zip(&points).zip(&inverses) {
        let u = point.z.widen().add(&point.y.widen()).carry().mul(inverse);
        write_words(&u.canonical().canonical_words(), out);
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn with_points(scalars: &[&[u8; 32]], points: &[&[u8; 32]], out: &mut [[u8; 32]], exist: &mut [bool]) {
    let one = Fe::splat(&field::ONE);
    let (mut inverses, mut coordinates) = ([one; GROUPS], [one; GROUPS]);
    for (group, (points, exist)) in points.chunks(LANES).zip(exist.chunks_mut(LANES)).enumerate() {
        let [(_, y, lanes)] = decompress(&[words_of(points.iter().copied())]);
        super::set_verdicts(exist, lanes);
        // u = (1 + y)/(1 − y); y is one only for the neutral element, which has small order.
        coordinates[group] = one.widen().add(&y.widen()).carry();
        inverses[group] = one.widen().sub(&y.widen()).carry();
    }
    let count = points.len().div_ceil(LANES);
    invert_each(&mut inverses[..count]);
    for (coordinate, inverse) in coordinates.iter_mut().zip(&inverses) {
        *coordinate = coordinate.mul(inverse);
    }
    exchange(scalars, &coordinates, out);
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn exchange(scalars: &[&[u8; 32]], coordinates: &[Fe; GROUPS], out: &mut [[u8; 32]]) {
    let one = Fe::splat(&field::ONE);
    let zero = Fe::splat(&field::ZERO);
    let (mut numerators, mut inverses) = ([one; GROUPS], [one; GROUPS]);
    for (group, scalars) in scalars.chunks(LANES).enumerate() {
        let mut words = words_of(scalars.iter().copied());
        for lane in 0..LANES {
            words[0][lane] &= !7;
            words[3][lane] = words[3][lane] & (u64::MAX >> 1) | 1 << 62;
        }
        let [sum, difference] = ladder(&words, &coordinates[group]);
        wipe(words.as_flattened_mut());
        // X : Z = 2·X : 2·Z, and zero if Z is.
        let numerator = sum.widen().add(&difference.widen()).carry();
        let denominator = sum.widen().sub(&difference.widen()).carry();
        let infinite = denominator.equals(&zero);
        numerators[group] = numerator.select(infinite, &zero);
        inverses[group] = denominator.select(infinite, &one);
    }
    invert_each(&mut inverses[..scalars.len().div_ceil(LANES)]);
    for ((out, numerator), inverse) in out.chunks_mut(LANES).zip(&numerators).zip(&inverses) {
        write_words(&numerator.mul(inverse).canonical().canonical_words(), out);
    }
}

/// X + Z and X − Z of the multiples of points by clamped integers, given as words. Tight.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn ladder(integers: &[[u64; 8]; 4], u: &Fe) -> [Fe; 2] {
    let one = Fe::splat(&field::ONE);
    // Sums and differences of X and Z: of the multiple, at first 1 and 0; and of the next one, at first u and
    // 1.
    let mut point = [one, one];
    let mut next = [u.widen().add(&one.widen()).carry(), u.widen().sub(&one.widen()).carry()];
    let mut swapped = 0;
    for bit in (0..255usize).rev() {
        let bits = _mm512_test_epi64_mask(load(&integers[bit / 64]), _mm512_set1_epi64(1 << (bit % 64)));
        let swap = bits ^ swapped;
        swapped = bits;
        let [sum, difference] = [point[0].select(swap, &next[0]), point[1].select(swap, &next[1])];
        let [next_sum, next_difference] = [next[0].select(swap, &point[0]), next[1].select(swap, &point[1])];
        let da = next_difference.mul_wide(&sum);
        let cb = next_sum.mul_wide(&difference);
        let next_x = da.add(&cb).carry().square_wide();
        let next_z = da.sub(&cb).carry().square().mul_wide(u);
        next = [next_x.add(&next_z).carry(), next_x.sub(&next_z).carry()];
        let aa = sum.square_wide();
        let bb = difference.square_wide();
        let e = aa.sub(&bb).carry();
        let x = aa.carry().mul_wide(&bb.carry());
        let z = e.mul_wide(&e.mul_small(A24).add(&aa).carry());
        point = [x.add(&z).carry(), x.sub(&z).carry()];
    }
    // The last three bits of a clamped integer are zeros, so nothing is left swapped.
    debug_assert_eq!(swapped, 0);
    point
}
