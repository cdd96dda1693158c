//! The inner loops: blocks of ten limbs in straight-line code, so that all sums stay in registers.
//!
//! A limb has 52 bits, for eight numbers at once. Sums of products ("columns") are kept in 64 bits and
//! carried late: with the largest numbers here, 60 limbs, a column is the sum of at most 4 · 60 products
//! below 2^52 and a carry, so it is below 2^60.
//!
//! No function here branches or addresses memory by the values of its arguments.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_load_si512, _mm512_madd52hi_epu64,
    _mm512_madd52lo_epu64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srli_epi64, _mm512_store_si512,
};

use zeroize::DefaultIsZeroes;

pub(super) const LIMB_BITS: usize = 52;
/// The bits of a limb.
pub(super) const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;
pub(super) const BLOCK_LIMBS: usize = 10;

pub(super) type Vector = __m512i;

/// One value in each lane, in its memory layout.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Word(pub(super) [u64; 8]);

impl DefaultIsZeroes for Word {}

impl Word {
    pub(super) const ZERO: Self = Self([0; 8]);
}

/// Ten limbs of eight numbers, or ten columns.
pub(super) type Block = [Word; BLOCK_LIMBS];

pub(super) const ZERO_BLOCK: Block = [Word::ZERO; BLOCK_LIMBS];

#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
pub(super) fn load(word: &Word) -> Vector {
    // SAFETY: a word has the 64 bytes that are read, with the required alignment.
    unsafe { _mm512_load_si512((&raw const word.0).cast()) }
}

#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
pub(super) fn store(word: &mut Word, vector: Vector) {
    // SAFETY: a word has the 64 bytes that are written, with the required alignment.
    unsafe { _mm512_store_si512((&raw mut word.0).cast(), vector) }
}

/// Loads ten limbs into registers. (No loops and no array copies here: the compiler would keep those in
/// memory.)
macro_rules! load_block {
    ($block:expr) => {
        load_block!(@ $block, [0 1 2 3 4 5 6 7 8 9])
    };
    (@ $block:expr, [$($j:literal)*]) => {
        [$(load(&$block[$j])),*]
    };
}

/// Loads the columns `lo` ‖ `hi` into registers, or zeros where there is nothing to add to yet.
macro_rules! load_columns {
    ($lo:expr, $add_lo:expr, $hi:expr, $add_hi:expr) => {
        load_columns!(@ $lo, $add_lo, $hi, $add_hi, [0 1 2 3 4 5 6 7 8 9])
    };
    (@ $lo:expr, $add_lo:expr, $hi:expr, $add_hi:expr, [$($j:literal)*]) => {
        [
            $(if $add_lo { load(&$lo[$j]) } else { _mm512_setzero_si512() },)*
            $(if $add_hi { load(&$hi[$j]) } else { _mm512_setzero_si512() },)*
        ]
    };
}

/// Stores columns back to memory: a block of them from `first` on.
macro_rules! store_block {
    ($block:expr, $columns:expr, $first:expr) => {
        store_block!(@ $block, $columns, $first, [0 1 2 3 4 5 6 7 8 9])
    };
    (@ $block:expr, $columns:expr, $first:expr, [$($j:literal)*]) => {
        $(store(&mut $block[$j], $columns[$first + $j]);)*
    };
}

/// Adds the two halves of a[j] · x to columns[row + j] and columns[row + j + 1], for each given j.
macro_rules! row {
    ($columns:ident, $row:literal, $a:ident, $x:ident, [$($j:literal)*]) => {
        $($columns[$row + $j] = _mm512_madd52lo_epu64($columns[$row + $j], $a[$j], $x);)*
        $($columns[$row + $j + 1] = _mm512_madd52hi_epu64($columns[$row + $j + 1], $a[$j], $x);)*
    };
}

/// Applies `row!` once for each row, with x = b[row].
macro_rules! rows {
    ($columns:ident, $a:ident, $b:ident, [$($row:literal)*]) => {
        $(
            let x = load(&$b[$row]);
            row!($columns, $row, $a, x, [0 1 2 3 4 5 6 7 8 9]);
        )*
    };
}

/// lo ‖ hi += a · b, where `LO` and `HI` say whether there is something to add to.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline(never)]
pub(super) fn multiply_add<const LO: bool, const HI: bool>(
    lo: &mut Block,
    hi: &mut Block,
    a: &Block,
    b: &Block,
) {
    let mut columns = load_columns!(lo, LO, hi, HI);
    let a = load_block!(a);
    rows!(columns, a, b, [0 1 2 3 4 5 6 7 8 9]);
    store_block!(lo, columns, 0);
    store_block!(hi, columns, BLOCK_LIMBS);
}

/// Applies `row!` to all limbs. Nothing more is added to the row's column after that, so it becomes a limb,
/// and its carry goes to the next column.
macro_rules! last_rows {
    ($out:ident, $mask:ident, $columns:ident, $a:ident, $b:ident, [$($row:literal)*]) => {
        $(
            let x = load(&$b[$row]);
            row!($columns, $row, $a, x, [0 1 2 3 4 5 6 7 8 9]);
            store(&mut $out[$row], _mm512_and_si512($columns[$row], $mask));
            let carry = _mm512_srli_epi64::<52>($columns[$row]);
            $columns[$row + 1] = _mm512_add_epi64($columns[$row + 1], carry);
        )*
    };
}

/// lo ‖ hi += a · b, which completes `lo`: out := lo, with its carry added to `hi`. Between products, carries
/// cost nothing.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline(never)]
pub(super) fn multiply_add_carry(out: &mut Block, lo: &Block, hi: &mut Block, a: &Block, b: &Block) {
    let mask = _mm512_set1_epi64(LIMB_MASK as i64);
    let mut columns = load_columns!(lo, true, hi, true);
    let a = load_block!(a);
    last_rows!(out, mask, columns, a, b, [0 1 2 3 4 5 6 7 8 9]);
    store_block!(hi, columns, BLOCK_LIMBS);
}

/// lo ‖ hi := 2 · (lo ‖ hi) + a².
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline(never)]
pub(super) fn double_and_square<const LO: bool, const HI: bool>(lo: &mut Block, hi: &mut Block, a: &Block) {
    let mut columns = load_columns!(lo, LO, hi, HI);
    let a = load_block!(a);
    macro_rules! triangle {
        ($($row:literal: $factors:tt),*) => {
            $( let x = a[$row]; row!(columns, $row, a, x, $factors); )*
        };
    }
    triangle!(
        0: [1 2 3 4 5 6 7 8 9],
        1: [2 3 4 5 6 7 8 9],
        2: [3 4 5 6 7 8 9],
        3: [4 5 6 7 8 9],
        4: [5 6 7 8 9],
        5: [6 7 8 9],
        6: [7 8 9],
        7: [8 9],
        8: [9]
    );
    for column in &mut columns {
        *column = _mm512_add_epi64(*column, *column);
    }
    macro_rules! diagonal {
        ($($j:literal)*) => {
            $(
                columns[2 * $j] = _mm512_madd52lo_epu64(columns[2 * $j], a[$j], a[$j]);
                columns[2 * $j + 1] = _mm512_madd52hi_epu64(columns[2 * $j + 1], a[$j], a[$j]);
            )*
        };
    }
    diagonal!(0 1 2 3 4 5 6 7 8 9);
    store_block!(lo, columns, 0);
    store_block!(hi, columns, BLOCK_LIMBS);
}

/// Ten steps of a Montgomery reduction: makes `lo` zero modulo 2^520 by adding multiples of the modulus,
/// whose lowest block is `n`, and carries into `hi`. The multipliers are left in `multipliers`, for the other
/// blocks of the modulus; the content of `lo` is no longer meaningful.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline(never)]
pub(super) fn reduce_lowest(
    lo: &Block,
    hi: &mut Block,
    n: &Block,
    minus_inverse: &Word,
    multipliers: &mut Block,
) {
    let zero = _mm512_setzero_si512();
    let mask = _mm512_set1_epi64(LIMB_MASK as i64);
    let minus_inverse = load(minus_inverse);
    let mut columns = load_columns!(lo, true, hi, true);
    let n = load_block!(n);
    macro_rules! step {
        ($($row:literal)*) => {
            $(
                let x = _mm512_madd52lo_epu64(zero, columns[$row], minus_inverse);
                store(&mut multipliers[$row], x);
                // The low 52 bits and those of x · n[0] add up to zero or 2^52, and to zero only if both are
                // zero.
                let carry = _mm512_srli_epi64::<52>(_mm512_add_epi64(columns[$row], mask));
                columns[$row + 1] = _mm512_add_epi64(columns[$row + 1], carry);
                // The next step waits for this column, so its two products are computed side by side rather
                // than one after the other.
                let high = _mm512_madd52hi_epu64(zero, n[0], x);
                columns[$row + 1] = _mm512_madd52lo_epu64(columns[$row + 1], n[1], x);
                columns[$row + 1] = _mm512_add_epi64(columns[$row + 1], high);
                step!(@rest $row, x, [2 3 4 5 6 7 8 9], [1 2 3 4 5 6 7 8 9]);
            )*
        };
        (@rest $row:literal, $x:ident, [$($lo:literal)*], [$($hi:literal)*]) => {
            $( columns[$row + $lo] = _mm512_madd52lo_epu64(columns[$row + $lo], n[$lo], $x); )*
            $( columns[$row + $hi + 1] = _mm512_madd52hi_epu64(columns[$row + $hi + 1], n[$hi], $x); )*
        };
    }
    step!(0 1 2 3 4 5 6 7 8 9);
    store_block!(hi, columns, BLOCK_LIMBS);
}
