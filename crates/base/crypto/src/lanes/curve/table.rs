//! Tables of multiples of points, and how lanes select entries from them.

use std::arch::x86_64::{
    __m512i, __mmask8, _mm512_abs_epi64, _mm512_and_si512, _mm512_maskz_permutex2var_epi64,
    _mm512_movepi64_mask, _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_sllv_epi64,
    _mm512_srlv_epi64, _mm512_sub_epi64, _mm512_test_epi64_mask,
};

use curve25519_dalek::EdwardsPoint;
use curve25519_dalek::edwards::CompressedEdwardsY;

use super::field::{self, Fe};
use super::point::{Addable, Cached, Niels, Projective, decompress};
use super::vector::{load, store, transpose};

/// An entry of a table of points with Z = 1: y + x, y − x and 2·d·x·y in five words each, and one word of
/// padding to a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct NielsEntry([u64; 16]);

/// An entry of a lane's own table: Y + X, Y − X, 2·Z and 2·d·T in five words each, and four words of padding.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CachedEntry([u64; 24]);

/// Digits of up to 255 bits in windows of `BITS` bits, from −2^(BITS − 1) to 2^(BITS − 1) − 1; the highest of
/// them has fewer bits and no sign.
///
/// Half a window is added to every window but the highest, which turns signed digits into plain bits.
pub(super) struct Digits<const BITS: u32>([[u64; 8]; 5]);

impl<const BITS: u32> Digits<BITS> {
    /// Windows of an integer of 255 bits.
    pub(super) const WINDOWS: u32 = 255u32.div_ceil(BITS);

    /// Half of all windows but the highest, as words.
    const BIAS: [u64; 4] = {
        let mut bias = [0; 4];
        let mut window = 0;
        while window + 1 < Self::WINDOWS {
            let bit = window * BITS + BITS - 1;
            bias[(bit / 64) as usize] |= 1 << (bit % 64);
            window += 1;
        }
        bias
    };

    /// The digits of little endian integers below 2^253.
    ///
    /// The sum of the halves is less than the highest window's unit 2^t, so nothing is carried out of four
    /// words, and the highest digit is at most 2^(253 − t).
    pub(super) fn new(integers: &[[u8; 32]; 8]) -> Self {
        const {
            let unit = BITS * (Self::WINDOWS - 1);
            assert!(1u64 << (253 - unit) <= 1 << (BITS - 1), "tables end at half a window");
        }
        let mut words = [[0; 8]; 5];
        for (lane, integer) in integers.iter().enumerate() {
            assert!(integer[31] < 1 << 5, "integers below 2^253");
            let mut carry = false;
            for (i, bytes) in integer.as_chunks::<8>().0.iter().enumerate() {
                let (sum, over) = u64::from_le_bytes(*bytes).overflowing_add(Self::BIAS[i]);
                let (sum, again) = sum.overflowing_add(u64::from(carry));
                words[i][lane] = sum;
                carry = over | again;
            }
        }
        Self(words)
    }

    /// The words, to be wiped.
    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        self.0.as_flattened_mut()
    }

    /// The digits at a window.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn get(&self, window: u32) -> __m512i {
        let bit = window * BITS;
        let (word, shift) = ((bit / 64) as usize, i64::from(bit % 64));
        // A shift by 64 gives zero.
        let low = _mm512_srlv_epi64(load(&self.0[word]), _mm512_set1_epi64(shift));
        let high = _mm512_sllv_epi64(load(&self.0[word + 1]), _mm512_set1_epi64(64 - shift));
        let plain = _mm512_and_si512(_mm512_or_si512(low, high), _mm512_set1_epi64((1 << BITS) - 1));
        let half = if window + 1 < Self::WINDOWS { 1 << (BITS - 1) } else { 0 };
        _mm512_sub_epi64(plain, _mm512_set1_epi64(half))
    }
}

/// The multiples 0 to 16 of a point per lane, for digits of five bits. Not constant time.
pub(super) struct LaneTable([[CachedEntry; 17]; 8]);

impl LaneTable {
    /// The table for the points (x, y).
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn new(x: &Fe, y: &Fe) -> Self {
        let mut table = Self([[CachedEntry([0; 24]); 17]; 8]);
        let one = Addable::from_affine(x, y);
        let one_cached = one.to_cached();
        table.set(0, &Addable::identity().to_cached());
        table.set(1, &one_cached);
        let two = one.add(&one_cached).to_addable();
        let two_cached = two.to_cached();
        table.set(2, &two_cached);
        // Odd and even multiples do not depend on each other.
        let (mut odd, mut even) = (one, two);
        for i in (3..=16).step_by(2) {
            odd = odd.add(&two_cached).to_addable();
            table.set(i, &odd.to_cached());
            even = even.add(&two_cached).to_addable();
            table.set(i + 1, &even.to_cached());
        }
        table
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    fn set(&mut self, index: usize, point: &Cached) {
        let mut limbs = [_mm512_setzero_si512(); 24];
        limbs[..5].copy_from_slice(&point.y_plus_x.0);
        limbs[5..10].copy_from_slice(&point.y_minus_x.0);
        limbs[10..15].copy_from_slice(&point.z2.0);
        limbs[15..20].copy_from_slice(&point.t2d.0);
        for (part, rows) in limbs.as_chunks::<8>().0.iter().enumerate() {
            for (lane, words) in transpose(rows).iter().enumerate() {
                self.0[lane][index].0.as_chunks_mut::<8>().0[part] = store(*words);
            }
        }
    }

    /// Each lane's multiple by its digit.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn get(&self, digits: __m512i) -> Cached {
        let indices = store(_mm512_abs_epi64(digits));
        let mut parts = [[_mm512_setzero_si512(); 8]; 3];
        for lane in 0..8 {
            let (words, _) = self.0[lane][indices[lane] as usize].0.as_chunks::<8>();
            parts[0][lane] = load(&words[0]);
            parts[1][lane] = load(&words[1]);
            parts[2][lane] = load(&words[2]);
        }
        let [a, b, c] = [transpose(&parts[0]), transpose(&parts[1]), transpose(&parts[2])];
        Cached {
            y_plus_x: Fe([a[0], a[1], a[2], a[3], a[4]]),
            y_minus_x: Fe([a[5], a[6], a[7], b[0], b[1]]),
            z2: Fe([b[2], b[3], b[4], b[5], b[6]]),
            t2d: Fe([b[7], c[0], c[1], c[2], c[3]]),
        }
        .negate(_mm512_movepi64_mask(digits))
    }
}

/// Multiples of points as table entries.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn niels_entries(points: &[EdwardsPoint]) -> Vec<NielsEntry> {
    let encodings = EdwardsPoint::compress_batch_alloc(points);
    let mut entries = Vec::with_capacity(points.len());
    for chunk in encodings.chunks(8) {
        let [(x, y, _)] = decompress(&[super::words_of(chunk.iter().map(CompressedEdwardsY::as_bytes))]);
        let niels = Niels::from_affine(&x, &y);
        let mut limbs = [_mm512_setzero_si512(); 16];
        limbs[..5].copy_from_slice(&niels.y_plus_x.canonical().0);
        limbs[5..10].copy_from_slice(&niels.y_minus_x.canonical().0);
        limbs[10..15].copy_from_slice(&niels.xy2d.canonical().0);
        let (parts, _) = limbs.as_chunks::<8>();
        let (low, high) = (transpose(&parts[0]), transpose(&parts[1]));
        for lane in 0..chunk.len() {
            let mut entry = NielsEntry([0; 16]);
            entry.0[..8].copy_from_slice(&store(low[lane]));
            entry.0[8..].copy_from_slice(&store(high[lane]));
            entries.push(entry);
        }
    }
    entries
}

/// The multiples 0 to `count − 1` of `point` as table entries.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn multiples(point: &EdwardsPoint, count: usize) -> Vec<NielsEntry> {
    let mut multiple = EdwardsPoint::default();
    let mut points = Vec::with_capacity(count);
    for _ in 0..count {
        points.push(multiple);
        multiple += point;
    }
    niels_entries(&points)
}

/// 2^`exponent` times a point that is public.
pub(super) fn times_power_of_2(point: &EdwardsPoint, exponent: u32) -> EdwardsPoint {
    (0..exponent).fold(*point, |power, _| power + power)
}

/// Each lane's entry of its table by its digit. Not constant time.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn lookup(tables: &[&[NielsEntry]; 8], digits: __m512i) -> Niels {
    let indices = store(_mm512_abs_epi64(digits));
    let mut parts = [[_mm512_setzero_si512(); 8]; 2];
    for lane in 0..8 {
        let entry = tables[lane][indices[lane] as usize].0.as_chunks::<8>().0;
        parts[0][lane] = load(&entry[0]);
        parts[1][lane] = load(&entry[1]);
    }
    let [a, b] = [transpose(&parts[0]), transpose(&parts[1])];
    Niels {
        y_plus_x: Fe([a[0], a[1], a[2], a[3], a[4]]),
        y_minus_x: Fe([a[5], a[6], a[7], b[0], b[1]]),
        xy2d: Fe([b[2], b[3], b[4], b[5], b[6]]),
    }
    .negate(_mm512_movepi64_mask(digits))
}

/// 1 to 16 times 32^i times a point, for every window of five bits. A multiplication takes 51 additions and
/// no doubling.
///
/// Neither the memory accesses nor the instructions depend on the scalars: every entry of a window is loaded,
/// and a permutation between registers selects those of the digits.
pub(super) struct Comb(Vec<[CombLimb; 15]>);

/// One limb of the sixteen multiples.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CombLimb([[u64; 8]; 2]);

impl Comb {
    const BITS: u32 = 5;

    /// The multiples of a point.
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn new(point: &EdwardsPoint) -> Self {
        let mut power = *point;
        let mut windows = Vec::new();
        for _ in 0..Digits::<{ Self::BITS }>::WINDOWS {
            let entries = multiples(&power, 17);
            let mut window = [CombLimb([[0; 8]; 2]); 15];
            for (i, entry) in entries[1..].iter().enumerate() {
                for (limb, word) in window.iter_mut().zip(entry.0) {
                    limb.0[i / 8][i % 8] = word;
                }
            }
            windows.push(window);
            power = times_power_of_2(&power, Self::BITS);
        }
        Self(windows)
    }

    /// The multiples by the integers of `N` groups, in constant time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn multiply<const N: usize>(&self, integers: &[Digits<5>; N], results: &mut [Projective; N]) {
        let mut sums = [Addable::identity(); N];
        for (index, window) in self.0.iter().enumerate() {
            for group in 0..N {
                let added = sums[group].add_niels(&select(window, integers[group].get(index as u32)));
                if index + 1 < self.0.len() {
                    added.write_addable(&mut sums[group]);
                } else {
                    added.write_projective(&mut results[group]);
                }
            }
        }
    }

    /// Adds the multiples by the integers of `N` groups to sums. Each lane uses the comb whose mask contains
    /// it. Constant time except for the masks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn add_multiples<const N: usize>(
        combs: &[&[(&Self, u8)]; N],
        integers: &[Digits<5>; N],
        sums: &mut [Addable; N],
    ) {
        for window in 0..Digits::<{ Self::BITS }>::WINDOWS {
            for group in 0..N {
                let entry = select_mixed(combs[group], window as usize, integers[group].get(window));
                let added = sums[group].add_niels(&entry);
                added.write_addable(&mut sums[group]);
            }
        }
    }
}

/// Each lane's multiple by its digit, in constant time.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn select(window: &[CombLimb; 15], digits: __m512i) -> Niels {
    let magnitudes = _mm512_abs_epi64(digits);
    let some = _mm512_test_epi64_mask(magnitudes, magnitudes);
    let indices = _mm512_sub_epi64(magnitudes, _mm512_set1_epi64(1));
    let mut limbs = [_mm512_setzero_si512(); 15];
    for (limb, CombLimb([low, high])) in limbs.iter_mut().zip(window) {
        *limb = _mm512_maskz_permutex2var_epi64(some, load(low), indices, load(high));
    }
    signed_entry(&limbs, some, digits)
}

/// As [`select`], but each lane uses the window of the comb whose mask contains it; a lane in no mask gets
/// the neutral element. Not constant time in the masks.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn select_mixed(combs: &[(&Comb, u8)], window: usize, digits: __m512i) -> Niels {
    let lanes = combs.iter().fold(0, |lanes, (_, mask)| lanes | mask);
    let magnitudes = _mm512_abs_epi64(digits);
    let some = _mm512_test_epi64_mask(magnitudes, magnitudes) & lanes;
    let indices = _mm512_sub_epi64(magnitudes, _mm512_set1_epi64(1));
    let mut limbs = [_mm512_setzero_si512(); 15];
    for (comb, mask) in combs {
        for (limb, CombLimb([low, high])) in limbs.iter_mut().zip(&comb.0[window]) {
            let entry = _mm512_maskz_permutex2var_epi64(some & mask, load(low), indices, load(high));
            *limb = _mm512_or_si512(*limb, entry);
        }
    }
    signed_entry(&limbs, some, digits)
}

/// The entries with these limbs in the lanes of `some`, negated where the digit is negative. The tables have
/// no entry for zero: in the other lanes the limbs are those of the neutral element, 1, 1 and 0.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn signed_entry(limbs: &[__m512i; 15], some: __mmask8, digits: __m512i) -> Niels {
    let [a0, a1, a2, a3, a4, b0, b1, b2, b3, b4, c0, c1, c2, c3, c4] = *limbs;
    let one = Fe::splat(&field::ONE);
    Niels {
        y_plus_x: one.select(some, &Fe([a0, a1, a2, a3, a4])),
        y_minus_x: one.select(some, &Fe([b0, b1, b2, b3, b4])),
        xy2d: Fe([c0, c1, c2, c3, c4]),
    }
    .negate(_mm512_movepi64_mask(digits))
}
