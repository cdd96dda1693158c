//! Points of Edwards25519, eight side by side: −x² + y² = 1 + d·x²·y².
//!
//! The formulas are those of Hisil, Wong, Carter and Dawson (2008) for a = −1 in extended coordinates; they
//! are complete, so no input needs special treatment. As in most implementations, each formula is split in
//! two: a point operation gives a [`Completed`] point, and three or four multiplications convert it to the
//! input of the next operation.

use std::arch::x86_64::{
    __m512i, __mmask8, _mm512_cmpeq_epi64_mask, _mm512_mask_or_epi64, _mm512_set1_epi64,
};

use std::hint::black_box;

use super::field::{self, Fe};
use super::vector::load;

/// (X : Y : Z), x = X/Z, y = Y/Z: the input of doubling.
#[derive(Clone, Copy)]
pub(super) struct Projective {
    pub(super) x: Fe,
    pub(super) y: Fe,
    pub(super) z: Fe,
}

/// Y + X, Y − X, Z and T = X·Y/Z: the left input of addition.
#[derive(Clone, Copy)]
pub(super) struct Addable {
    y_plus_x: Fe,
    y_minus_x: Fe,
    z: Fe,
    t: Fe,
}

/// Y + X, Y − X, 2·Z and 2·d·T: the right input of addition.
#[derive(Clone, Copy)]
pub(super) struct Cached {
    pub(super) y_plus_x: Fe,
    pub(super) y_minus_x: Fe,
    pub(super) z2: Fe,
    pub(super) t2d: Fe,
}

/// y + x, y − x and 2·d·x·y of a point with Z = 1: the right input of the cheaper addition.
#[derive(Clone, Copy)]
pub(super) struct Niels {
    pub(super) y_plus_x: Fe,
    pub(super) y_minus_x: Fe,
    pub(super) xy2d: Fe,
}

/// ((E : G), (H : F)): x = E/G, y = H/F.
pub(super) struct Completed {
    e: Fe,
    f: Fe,
    g: Fe,
    h: Fe,
}

/// Hides the memory behind a reference from the optimiser.
///
/// Otherwise it keeps the limbs of one multiplication in registers for the next, runs out of registers, and
/// spills values that it could simply load again.
#[inline]
fn reload<T>(reference: &T) -> &T {
    black_box(reference)
}

impl Completed {
    /// Converts it for a doubling, or as the final result.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn write_projective(&self, point: &mut Projective) {
        let this = reload(self);
        point.x = this.e.mul(&this.f);
        let this = reload(self);
        point.y = this.g.mul(&this.h);
        let this = reload(self);
        point.z = this.f.mul(&this.g);
    }

    /// Converts it for an addition.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn to_addable(&self) -> Addable {
        let mut point = Addable::identity();
        self.write_addable(&mut point);
        point
    }

    /// As [`Self::to_addable`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn write_addable(&self, point: &mut Addable) {
        let this = reload(self);
        let x = this.e.mul_wide(&this.f);
        let y = this.g.mul_wide(&this.h);
        point.y_plus_x = y.add(&x).carry();
        point.y_minus_x = y.sub(&x).carry();
        let this = reload(self);
        point.z = this.f.mul(&this.g);
        let this = reload(self);
        point.t = this.e.mul(&this.h);
    }
}

impl Projective {
    /// The neutral element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn identity() -> Self {
        let one = Fe::splat(&field::ONE);
        Self { x: Fe::splat(&field::ZERO), y: one, z: one }
    }

    /// Twice the point.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn double(&self) -> Completed {
        // With E = 2·X·Y instead of (X + Y)² − X² − Y², the sum needs no carry.
        let xy = self.x.mul_wide(&self.y);
        let xx = self.x.square_wide();
        let yy = self.y.square_wide();
        let zz = self.z.square_wide();
        Completed {
            e: xy.double().carry(),
            f: zz.double().add(&xx).sub(&yy).carry(),
            g: yy.sub(&xx).carry(),
            h: yy.add(&xx).carry(),
        }
    }
}

impl Addable {
    /// The neutral element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn identity() -> Self {
        let one = Fe::splat(&field::ONE);
        Self { y_plus_x: one, y_minus_x: one, z: one, t: Fe::splat(&field::ZERO) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn from_affine(x: &Fe, y: &Fe) -> Self {
        Self {
            y_plus_x: y.widen().add(&x.widen()).carry(),
            y_minus_x: y.widen().sub(&x.widen()).carry(),
            z: Fe::splat(&field::ONE),
            t: x.mul(y),
        }
    }

    /// Converts it to the final result.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn to_projective(self) -> Projective {
        // Twice each coordinate.
        Projective {
            x: self.y_plus_x.widen().sub(&self.y_minus_x.widen()).carry(),
            y: self.y_plus_x.widen().add(&self.y_minus_x.widen()).carry(),
            z: self.z.widen().double().carry(),
        }
    }

    /// Converts it to a table entry.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn to_cached(self) -> Cached {
        Cached {
            y_plus_x: self.y_plus_x,
            y_minus_x: self.y_minus_x,
            z2: self.z.widen().double().carry(),
            t2d: self.t.mul(&Fe::splat(&field::D2)),
        }
    }

    /// The sum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn add(&self, other: &Cached) -> Completed {
        let (this, other) = (reload(self), reload(other));
        let plus = this.y_plus_x.mul_wide(&other.y_plus_x);
        let minus = this.y_minus_x.mul_wide(&other.y_minus_x);
        let (e, h) = (plus.sub(&minus).carry(), plus.add(&minus).carry());
        let (this, other) = (reload(self), reload(other));
        let t = this.t.mul_wide(&other.t2d);
        let z = this.z.mul_wide(&other.z2);
        Completed { e, f: z.sub(&t).carry(), g: z.add(&t).carry(), h }
    }

    /// The sum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn add_niels(&self, other: &Niels) -> Completed {
        let (this, other) = (reload(self), reload(other));
        let plus = this.y_plus_x.mul_wide(&other.y_plus_x);
        let minus = this.y_minus_x.mul_wide(&other.y_minus_x);
        let (e, h) = (plus.sub(&minus).carry(), plus.add(&minus).carry());
        let (this, other) = (reload(self), reload(other));
        let t = this.t.mul_wide(&other.xy2d);
        let z = this.z.widen().double();
        Completed { e, f: z.sub(&t).carry(), g: z.add(&t).carry(), h }
    }
}

impl Cached {
    /// The negative in the lanes of `mask`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn negate(&self, mask: __mmask8) -> Self {
        Self {
            y_plus_x: self.y_plus_x.select(mask, &self.y_minus_x),
            y_minus_x: self.y_minus_x.select(mask, &self.y_plus_x),
            z2: self.z2,
            t2d: self.t2d.negate(mask),
        }
    }
}

impl Niels {
    /// The entry for the point (x, y).
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn from_affine(x: &Fe, y: &Fe) -> Self {
        Self {
            y_plus_x: y.widen().add(&x.widen()).carry(),
            y_minus_x: y.widen().sub(&x.widen()).carry(),
            xy2d: x.mul(y).mul(&Fe::splat(&field::D2)),
        }
    }

    /// The negative in the lanes of `mask`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    pub(super) fn negate(&self, mask: __mmask8) -> Self {
        Self {
            y_plus_x: self.y_plus_x.select(mask, &self.y_minus_x),
            y_minus_x: self.y_minus_x.select(mask, &self.y_plus_x),
            xy2d: self.xy2d.negate(mask),
        }
    }
}

/// The points (x, y) of encodings, given as words, and the lanes whose encoding is that of a point on the
/// curve. The caller must check whether an encoding is canonical. Tight.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn decompress<const N: usize>(encodings: &[[[u64; 8]; 4]; N]) -> [(Fe, Fe, __mmask8); N] {
    let one = Fe::splat(&field::ONE);
    let d = Fe::splat(&field::D);
    let (mut ys, mut us, mut vs) = ([one; N], [one; N], [one; N]);
    for i in 0..N {
        ys[i] = Fe::from_words(&encodings[i]);
        let yy = ys[i].square();
        us[i] = yy.widen().sub(&one.widen()).carry();
        vs[i] = yy.mul_wide(&d).add(&one.widen()).carry();
    }
    let (xs, exist) = field::sqrt_ratios(&us, &vs);
    let mut points = [(one, one, 0); N];
    for i in 0..N {
        let mut sign = 0;
        for (lane, word) in encodings[i][3].iter().enumerate() {
            sign |= u8::from(word >> 63 == 1) << lane;
        }
        let x = xs[i].canonical();
        let wrong = x.canonical_is_odd() ^ sign;
        let negative = Fe::splat(&field::ZERO).widen().sub(&x.widen()).carry();
        points[i] = (x.select(wrong, &negative), ys[i], exist[i]);
    }
    points
}

/// The lanes in which the encoding of a canonical (x, y) is that of the words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn equals_encoding(x: &Fe, y: &Fe, encoding: &[[u64; 8]; 4]) -> __mmask8 {
    let mut equal = 0xff;
    for (own, other) in encode(x, y).iter().zip(encoding) {
        equal &= _mm512_cmpeq_epi64_mask(*own, load(other));
    }
    equal
}

/// The encodings of canonical (x, y) as words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn encode(x: &Fe, y: &Fe) -> [__m512i; 4] {
    let mut words = y.canonical_words();
    let sign = _mm512_set1_epi64(i64::MIN);
    words[3] = _mm512_mask_or_epi64(words[3], x.canonical_is_odd(), words[3], sign);
    words
}
