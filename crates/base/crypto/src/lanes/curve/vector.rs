//! Loads, stores and transpositions of eight 64-bit lanes.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_shuffle_i64x2, _mm512_storeu_si512, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi64,
};

/// The eight words as lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn load(words: &[u64; 8]) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the array, and needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// 64 bytes as lanes of little endian words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn load_bytes(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the array, and needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The lanes as words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn store(lanes: __m512i) -> [u64; 8] {
    let mut words = [0; 8];
    // SAFETY: writes 64 bytes, the size of the array, and needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), lanes) };
    words
}

/// Transposes eight by eight words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn transpose(rows: &[__m512i; 8]) -> [__m512i; 8] {
    // Pairs of words, then pairs of pairs, then halves.
    let [r0, r1, r2, r3, r4, r5, r6, r7] = *rows;
    let a0 = _mm512_unpacklo_epi64(r0, r1);
    let a1 = _mm512_unpackhi_epi64(r0, r1);
    let a2 = _mm512_unpacklo_epi64(r2, r3);
    let a3 = _mm512_unpackhi_epi64(r2, r3);
    let a4 = _mm512_unpacklo_epi64(r4, r5);
    let a5 = _mm512_unpackhi_epi64(r4, r5);
    let a6 = _mm512_unpacklo_epi64(r6, r7);
    let a7 = _mm512_unpackhi_epi64(r6, r7);
    // Quarters 0 and 2 of both, or 1 and 3 of both.
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let b0 = _mm512_shuffle_i64x2::<EVEN>(a0, a2);
    let b1 = _mm512_shuffle_i64x2::<EVEN>(a1, a3);
    let b2 = _mm512_shuffle_i64x2::<ODD>(a0, a2);
    let b3 = _mm512_shuffle_i64x2::<ODD>(a1, a3);
    let b4 = _mm512_shuffle_i64x2::<EVEN>(a4, a6);
    let b5 = _mm512_shuffle_i64x2::<EVEN>(a5, a7);
    let b6 = _mm512_shuffle_i64x2::<ODD>(a4, a6);
    let b7 = _mm512_shuffle_i64x2::<ODD>(a5, a7);
    [
        _mm512_shuffle_i64x2::<EVEN>(b0, b4),
        _mm512_shuffle_i64x2::<EVEN>(b1, b5),
        _mm512_shuffle_i64x2::<EVEN>(b2, b6),
        _mm512_shuffle_i64x2::<EVEN>(b3, b7),
        _mm512_shuffle_i64x2::<ODD>(b0, b4),
        _mm512_shuffle_i64x2::<ODD>(b1, b5),
        _mm512_shuffle_i64x2::<ODD>(b2, b6),
        _mm512_shuffle_i64x2::<ODD>(b3, b7),
    ]
}
