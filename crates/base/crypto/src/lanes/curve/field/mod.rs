//! Arithmetic modulo p = 2^255 − 19, eight elements side by side, one in each 64-bit lane.
//!
//! An element is five limbs of radix 2^51. The multiply-add instructions of AVX-512 IFMA take the low 52 bits
//! of their factors, so a limb has one bit to spare and sums need care. Two types carry the bounds:
//!
//! | type | limbs | made by |
//! |---|---|---|
//! | [`Fe`], tight | below 2^51 + 2^17 | [`Wide::carry`], decoding, constants |
//! | [`Fe`], any | below 2^52: what a multiplication takes | [`Fe::negate`] |
//! | [`Wide`], product | below 2^60.2 | [`Fe::mul`], [`Fe::square`] |
//! | [`Wide`], any | below 2^63: what [`Wide::carry`] takes | sums of up to four products; [`Wide::sub`] adds 2^61 |
//!
//! So sums and differences are taken of products before their carry, which costs nothing extra. In builds
//! with debug assertions every operation checks the bounds of what it takes and gives; the arithmetic of the
//! bounds themselves is checked by the compiler, below.
//!
//! The bound of a product: a column k < 5 of the result collects Σ lo(a_i·b_j) + 2·hi(a_i·b_j) with weight 1
//! for i + j = k (k − 1 for hi) and 19 for five columns higher. Limbs below 2^52 make lo and hi smaller than
//! 2^52; the worst column is 0 with one lo of weight 1, four of weight 19, and five hi of weight 2·19:
//! 267·2^52 < 2^60.1.
//!
//! The largest sum anywhere is F of a doubling ([`super::point`]), 2·Z² + X² − Y²: three products and 2^61,
//! below 2^62.5.

#[cfg(test)]
mod tests;

use std::arch::x86_64::{
    __m512i, __mmask8, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask, _mm512_madd52hi_epu64,
    _mm512_madd52lo_epu64, _mm512_mask_blend_epi64, _mm512_mask_sub_epi64, _mm512_mullo_epi64,
    _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_sub_epi64, _mm512_test_epi64_mask,
};

use super::vector::{load, store};

/// Bits of a limb.
const RADIX_BITS: u32 = 51;
const LIMB_MASK: i64 = (1 << RADIX_BITS) - 1;
/// The bound of tight limbs: a carry out of 63 bits has 12 bits, times 19 less than 17.
const TIGHT: u64 = (1 << 51) + (1 << 17);
/// The bound of the limbs of factors.
const FACTOR: u64 = 1 << 52;
/// The bound of the limbs of a product: a little more than 2^60.1.
const PRODUCT: u64 = 0x12 << 56;
/// The bound of limbs before a carry.
const WIDE: u64 = 1 << 63;
/// p in limbs: the lowest, and each of the others.
const P: [i64; 2] = [LIMB_MASK - 18, LIMB_MASK];
/// 2^10·p in limbs, which a subtraction adds to stay positive.
const BIAS: [i64; 2] = [P[0] << 10, P[1] << 10];
/// The bound of limbs that may be subtracted.
const SUBTRAHEND: u64 = BIAS[0].cast_unsigned();

const _: () = {
    // Column 0 of a product, as explained above, with the largest halves.
    assert!(267 * (FACTOR - 1) < PRODUCT);
    // The largest sum: three products and the bias of a subtraction.
    assert!(3 * (PRODUCT - 1) + BIAS[1].cast_unsigned() < WIDE);
    // A product may be subtracted, even if a doubled tight element or a small multiple was added.
    assert!(PRODUCT + (1 << 53) < SUBTRAHEND);
    // A carry is tight.
    assert!(LIMB_MASK.cast_unsigned() + 19 * ((WIDE - 1) >> RADIX_BITS) < TIGHT);
    // A tight limb is never above that of 2p: elements are below 2p, and negating does not wrap. The result
    // is valid as a factor.
    assert!(TIGHT <= 2 * P[0].cast_unsigned() && 2 * P[1].cast_unsigned() < FACTOR && TIGHT < FACTOR);
};

/// Eight field elements; see the module for the bounds of limbs.
#[derive(Clone, Copy)]
pub(super) struct Fe(pub(super) [__m512i; 5]);

/// Eight field elements with limbs that need a carry before they can be multiplied.
#[derive(Clone, Copy)]
pub(super) struct Wide([__m512i; 5]);

/// An element as limbs of radix 2^51 of one lane.
pub(super) type Limbs = [u64; 5];

pub(super) const ZERO: Limbs = [0; 5];
pub(super) const ONE: Limbs = [1, 0, 0, 0, 0];
/// d = −121665/121666 of the curve equation.
pub(super) const D: Limbs =
    [0x34dca135978a3, 0x1a8283b156ebd, 0x5e7a26001c029, 0x739c663a03cbb, 0x52036cee2b6ff];
/// 2·d.
pub(super) const D2: Limbs =
    [0x69b9426b2f159, 0x35050762add7a, 0x3cf44c0038052, 0x6738cc7407977, 0x2406d9dc56dff];
/// The even square root of −1.
pub(super) const SQRT_MINUS_ONE: Limbs =
    [0x61b274a0ea0b0, 0x0d5a5fc8f189d, 0x7ef5e9cbd0c60, 0x78595a6804c9e, 0x2b8324804fc1d];

/// Asserts that all limbs are below `bound`, in builds with debug assertions.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn check(limbs: &[__m512i; 5], bound: u64) {
    if cfg!(debug_assertions) {
        for limb in limbs {
            assert!(store(*limb).iter().all(|&limb| limb < bound), "a limb is out of bounds");
        }
    }
}

impl Fe {
    /// The same element in every lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn splat(limbs: &Limbs) -> Self {
        let [a, b, c, d, e] = limbs.map(u64::cast_signed);
        Self([
            _mm512_set1_epi64(a),
            _mm512_set1_epi64(b),
            _mm512_set1_epi64(c),
            _mm512_set1_epi64(d),
            _mm512_set1_epi64(e),
        ])
    }

    /// Decodes the low 255 bits of four little endian words per lane, which need not be below p. Tight.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn from_words(words: &[[u64; 8]; 4]) -> Self {
        let mask = _mm512_set1_epi64(LIMB_MASK);
        let [w0, w1, w2, w3] = [load(&words[0]), load(&words[1]), load(&words[2]), load(&words[3])];
        let limb1 = _mm512_or_si512(_mm512_srli_epi64::<51>(w0), _mm512_slli_epi64::<13>(w1));
        let limb2 = _mm512_or_si512(_mm512_srli_epi64::<38>(w1), _mm512_slli_epi64::<26>(w2));
        let limb3 = _mm512_or_si512(_mm512_srli_epi64::<25>(w2), _mm512_slli_epi64::<39>(w3));
        let limb4 = _mm512_srli_epi64::<12>(w3);
        Self([
            _mm512_and_si512(w0, mask),
            _mm512_and_si512(limb1, mask),
            _mm512_and_si512(limb2, mask),
            _mm512_and_si512(limb3, mask),
            _mm512_and_si512(limb4, mask),
        ])
    }

    /// The canonical representatives below p, of elements below 2p. Every tight element is below 2p.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn canonical(&self) -> Self {
        let mask = _mm512_set1_epi64(LIMB_MASK);
        let mut limbs = self.0;
        check(&limbs, TIGHT);
        // The quotient by p is that of (value + 19) by 2^255, 0 or 1: value + 19 reaches 2^255 exactly from p
        // on, and is below 2^256 since tight elements are below 2p. So the carry out of the highest limb
        // below is the quotient, and dropping it subtracts p together with the 19.
        let mut quotient = _mm512_set1_epi64(19);
        for limb in &limbs {
            quotient = _mm512_srli_epi64::<RADIX_BITS>(_mm512_add_epi64(*limb, quotient));
        }
        let mut carry = _mm512_mullo_epi64(quotient, _mm512_set1_epi64(19));
        for limb in &mut limbs {
            let sum = _mm512_add_epi64(*limb, carry);
            *limb = _mm512_and_si512(sum, mask);
            carry = _mm512_srli_epi64::<RADIX_BITS>(sum);
        }
        Self(limbs)
    }

    /// The four little endian words of a canonical element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn canonical_words(&self) -> [__m512i; 4] {
        let [a, b, c, d, e] = self.0;
        check(&self.0, 1 << 51);
        [
            _mm512_or_si512(a, _mm512_slli_epi64::<51>(b)),
            _mm512_or_si512(_mm512_srli_epi64::<13>(b), _mm512_slli_epi64::<38>(c)),
            _mm512_or_si512(_mm512_srli_epi64::<26>(c), _mm512_slli_epi64::<25>(d)),
            _mm512_or_si512(_mm512_srli_epi64::<39>(d), _mm512_slli_epi64::<12>(e)),
        ]
    }

    /// The lanes in which a canonical element is odd ("negative").
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn canonical_is_odd(&self) -> __mmask8 {
        _mm512_test_epi64_mask(self.0[0], _mm512_set1_epi64(1))
    }

    /// The lanes in which two tight elements are equal modulo p.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn equals(&self, other: &Self) -> __mmask8 {
        let (a, b) = (self.canonical(), other.canonical());
        let mut equal = 0xff;
        for i in 0..5 {
            equal &= _mm512_cmpeq_epi64_mask(a.0[i], b.0[i]);
        }
        equal
    }

    /// Takes the lanes of `other` that are set in `mask`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn select(&self, mask: __mmask8, other: &Self) -> Self {
        let mut limbs = self.0;
        for i in 0..5 {
            limbs[i] = _mm512_mask_blend_epi64(mask, self.0[i], other.0[i]);
        }
        Self(limbs)
    }

    /// Negates a tight element in the lanes of `mask`. The result has limbs below 2^52.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn negate(&self, mask: __mmask8) -> Self {
        check(&self.0, TIGHT);
        // 2p, so that no limb can go below zero.
        let (low, high) = (_mm512_set1_epi64(2 * P[0]), _mm512_set1_epi64(2 * P[1]));
        let mut limbs = self.0;
        limbs[0] = _mm512_mask_sub_epi64(limbs[0], mask, low, limbs[0]);
        for limb in &mut limbs[1..] {
            *limb = _mm512_mask_sub_epi64(*limb, mask, high, *limb);
        }
        Self(limbs)
    }

    /// The element as limbs that may take part in sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn widen(&self) -> Wide {
        Wide(self.0)
    }

    /// The product of elements with limbs below 2^52.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn mul_wide(&self, other: &Self) -> Wide {
        let (a, b) = (&self.0, &other.0);
        check(a, FACTOR);
        check(b, FACTOR);
        // The low half of the product a_i·b_j goes to column i + j, the high half to the next one, twice: its
        // weight is 2^52, and columns are 2^51 apart.
        let mut columns = [_mm512_setzero_si512(); 10];
        for i in 0..5 {
            for j in 0..5 {
                columns[i + j + 1] = _mm512_madd52hi_epu64(columns[i + j + 1], a[i], b[j]);
            }
        }
        for column in &mut columns[1..] {
            *column = _mm512_add_epi64(*column, *column);
        }
        for i in 0..5 {
            for j in 0..5 {
                columns[i + j] = _mm512_madd52lo_epu64(columns[i + j], a[i], b[j]);
            }
        }
        Wide::fold(&columns)
    }

    /// The square of an element with limbs below 2^52.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn square_wide(&self) -> Wide {
        let a = &self.0;
        check(a, FACTOR);
        let zero = _mm512_setzero_si512();
        // A doubled limb would have 53 bits, so that columns are doubled instead: once for high halves, once
        // for products of two different limbs.
        let (mut lo, mut hi) = ([zero; 9], [zero; 9]);
        for i in 0..5 {
            for j in i + 1..5 {
                lo[i + j] = _mm512_madd52lo_epu64(lo[i + j], a[i], a[j]);
                hi[i + j] = _mm512_madd52hi_epu64(hi[i + j], a[i], a[j]);
            }
        }
        let mut columns = [zero; 10];
        for k in 0..10 {
            // 2·(lo + 2·hi of different limbs + hi of a square) + lo of a square.
            let mut column = zero;
            if (2..=8).contains(&k) {
                column = _mm512_add_epi64(hi[k - 1], hi[k - 1]);
            }
            if (1..=7).contains(&k) {
                column = _mm512_add_epi64(column, lo[k]);
            }
            if k % 2 == 1 {
                column = _mm512_madd52hi_epu64(column, a[k / 2], a[k / 2]);
            }
            column = _mm512_add_epi64(column, column);
            if k % 2 == 0 && k < 9 {
                column = _mm512_madd52lo_epu64(column, a[k / 2], a[k / 2]);
            }
            columns[k] = column;
        }
        Wide::fold(&columns)
    }

    /// The product of an element with limbs below 2^52 and a small number.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn mul_small(&self, factor: u32) -> Wide {
        check(&self.0, FACTOR);
        let factor = _mm512_set1_epi64(i64::from(factor));
        let zero = _mm512_setzero_si512();
        let (mut limbs, mut high) = ([zero; 5], [zero; 5]);
        for i in 0..5 {
            limbs[i] = _mm512_madd52lo_epu64(zero, self.0[i], factor);
            high[i] = _mm512_madd52hi_epu64(zero, self.0[i], factor);
            // Its weight is 2^52, and limbs are 2^51 apart.
            high[i] = _mm512_add_epi64(high[i], high[i]);
        }
        // A high half has as many bits as the factor, 32, and times 2·19 no more than 38.
        limbs[0] = _mm512_madd52lo_epu64(limbs[0], high[4], _mm512_set1_epi64(19));
        for i in 1..5 {
            limbs[i] = _mm512_add_epi64(limbs[i], high[i - 1]);
        }
        check(&limbs, 1 << 53);
        Wide(limbs)
    }

    /// The product, tight.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn mul(&self, other: &Self) -> Self {
        self.mul_wide(other).carry()
    }

    /// The square, tight.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn square(&self) -> Self {
        self.square_wide().carry()
    }
}

impl Wide {
    /// Ten columns modulo p: 2^255 is 19.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    fn fold(columns: &[__m512i; 10]) -> Self {
        let nineteen = _mm512_set1_epi64(19);
        let mut limbs = [columns[0]; 5];
        for k in 0..5 {
            limbs[k] = _mm512_add_epi64(columns[k], _mm512_mullo_epi64(columns[k + 5], nineteen));
        }
        check(&limbs, PRODUCT);
        Self(limbs)
    }

    /// The sum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn add(&self, other: &Self) -> Self {
        let mut limbs = self.0;
        for i in 0..5 {
            limbs[i] = _mm512_add_epi64(limbs[i], other.0[i]);
        }
        check(&limbs, WIDE);
        Self(limbs)
    }

    /// The difference; the limbs of `other` must be below 2^60.9: one product and a little.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn sub(&self, other: &Self) -> Self {
        let (low, high) = (_mm512_set1_epi64(BIAS[0]), _mm512_set1_epi64(BIAS[1]));
        check(&other.0, SUBTRAHEND);
        let mut limbs = self.0;
        for i in 0..5 {
            let bias = if i == 0 { low } else { high };
            limbs[i] = _mm512_sub_epi64(_mm512_add_epi64(limbs[i], bias), other.0[i]);
        }
        check(&limbs, WIDE);
        Self(limbs)
    }

    /// Twice the value.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn double(&self) -> Self {
        self.add(self)
    }

    /// Brings limbs below 2^63 to a tight element: the part above a limb's 51 bits, less than 2^12, moves up
    /// one limb, and from the highest, times 19, to the lowest.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn carry(&self) -> Fe {
        check(&self.0, WIDE);
        let mask = _mm512_set1_epi64(LIMB_MASK);
        let mut limbs = self.0;
        let mut carries = self.0;
        for i in 0..5 {
            carries[i] = _mm512_srli_epi64::<RADIX_BITS>(limbs[i]);
            limbs[i] = _mm512_and_si512(limbs[i], mask);
        }
        limbs[0] = _mm512_madd52lo_epu64(limbs[0], carries[4], _mm512_set1_epi64(19));
        for i in 1..5 {
            limbs[i] = _mm512_add_epi64(limbs[i], carries[i - 1]);
        }
        check(&limbs, TIGHT);
        Fe(limbs)
    }
}

/// Squares `n` times, for each of `N` groups of eight. Several groups hide each other's latency.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn square_times<const N: usize>(z: &[Fe; N], n: u32) -> [Fe; N] {
    let mut z = *z;
    for _ in 0..n {
        for element in &mut z {
            *element = element.square();
        }
    }
    z
}

/// The products of two lists, element by element.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn mul_each<const N: usize>(a: &[Fe; N], b: &[Fe; N]) -> [Fe; N] {
    let mut out = *a;
    for i in 0..N {
        out[i] = a[i].mul(&b[i]);
    }
    out
}

/// z^(2^250 − 1) and z^11: the common part of the two powers below.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn power_chain<const N: usize>(z: &[Fe; N]) -> ([Fe; N], [Fe; N]) {
    let z2 = square_times(z, 1);
    let z9 = mul_each(&square_times(&z2, 2), z);
    let z11 = mul_each(&z9, &z2);
    let z_5_0 = mul_each(&square_times(&z11, 1), &z9);
    let z_10_0 = mul_each(&square_times(&z_5_0, 5), &z_5_0);
    let z_20_0 = mul_each(&square_times(&z_10_0, 10), &z_10_0);
    let z_40_0 = mul_each(&square_times(&z_20_0, 20), &z_20_0);
    let z_50_0 = mul_each(&square_times(&z_40_0, 10), &z_10_0);
    let z_100_0 = mul_each(&square_times(&z_50_0, 50), &z_50_0);
    let z_200_0 = mul_each(&square_times(&z_100_0, 100), &z_100_0);
    let z_250_0 = mul_each(&square_times(&z_200_0, 50), &z_50_0);
    (z_250_0, z11)
}

/// z^(p − 2): the inverse, and zero for zero.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn invert(z: &Fe) -> Fe {
    let (z_250_0, z11) = power_chain(&[*z]);
    square_times(&z_250_0, 5)[0].mul(&z11[0])
}

/// z^((p − 5)/8).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn power_p58<const N: usize>(z: &[Fe; N]) -> [Fe; N] {
    let (z_250_0, _) = power_chain(z);
    mul_each(&square_times(&z_250_0, 2), z)
}

/// A square root of u/v and the lanes in which there is one; v must not be zero. Tight in, tight out.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn sqrt_ratios<const N: usize>(u: &[Fe; N], v: &[Fe; N]) -> ([Fe; N], [__mmask8; N]) {
    // u·v³·(u·v⁷)^((p − 5)/8) is a root of u/v or of −u/v, if it has one.
    let v3 = mul_each(&square_times(v, 1), v);
    let v7 = mul_each(&square_times(&v3, 1), v);
    let mut roots = mul_each(&mul_each(u, &v3), &power_p58(&mul_each(u, &v7)));
    let mut exist = [0; N];
    let sqrt_minus_one = Fe::splat(&SQRT_MINUS_ONE);
    let zero = Fe::splat(&ZERO).widen();
    for i in 0..N {
        let check = v[i].mul(&roots[i].square());
        let direct = check.equals(&u[i]);
        let flipped = check.equals(&zero.sub(&u[i].widen()).carry());
        let other = roots[i].mul(&sqrt_minus_one);
        roots[i] = roots[i].select(flipped, &other);
        exist[i] = direct | flipped;
    }
    (roots, exist)
}
