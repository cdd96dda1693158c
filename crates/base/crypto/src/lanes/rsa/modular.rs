//! Modular arithmetic in eight lanes, each with its own modulus: almost-Montgomery multiplication.
//!
//! Numbers of M blocks are below 2n, where n is odd and at least eight bits shorter than R = 2^(520·M). A
//! Montgomery product a·b/R of such numbers is below 2n again, (4n² + R·n)/R < 2n, so no subtraction is
//! needed in between. More generally, the multiples of n that a reduction adds are below R·n: c/R becomes
//! less than c/R + n, and so less than 2n for c < R·n.
//!
//! Limbs of numbers are always below 2^52, and 52·10·M bits are enough for the numbers, so the carry out of
//! the highest limb is zero. Builds with debug assertions check both.
//!
//! Time depends only on the sizes and the public exponents.

use std::arch::x86_64::{
    _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask, _mm512_cmpneq_epi64_mask,
    _mm512_mask_mov_epi64, _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srai_epi64,
    _mm512_srli_epi64, _mm512_sub_epi64, _mm512_xor_si512,
};

use zeroize::Zeroize;

use crate::lanes::wipe;

use super::block::{
    BLOCK_LIMBS, Block, LIMB_MASK, Vector, Word, ZERO_BLOCK, double_and_square, load, multiply_add,
    multiply_add_carry, reduce_lowest, store,
};

/// Eight numbers of `M` blocks.
pub(super) type Number<const M: usize> = [Block; M];

pub(super) const fn zero<const M: usize>() -> Number<M> {
    [ZERO_BLOCK; M]
}

/// The number of blocks of the largest numbers: 3,120 bits.
pub(super) const MAX_BLOCKS: usize = 6;

// A column of a product collects a low and a high half for each limb of a factor, as many again from the
// reduction, one limb that is added, and a carry, which is much less than a limb.
const _: () = assert!((4 * (MAX_BLOCKS * BLOCK_LIMBS) as u64 + 2) * LIMB_MASK < 1 << 60);

/// Asserts that limbs have 52 bits, in builds with debug assertions.
fn check_limbs(number: &[Block]) {
    debug_assert!(number.iter().flatten().flat_map(|word| word.0).all(|limb| limb <= LIMB_MASK));
}

/// Asserts that nothing is carried out of a number, in builds with debug assertions.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn check_last_carry(carry: Vector) {
    debug_assert_eq!(_mm512_cmpneq_epi64_mask(carry, _mm512_setzero_si512()), 0, "the number has more limbs");
}

/// The memory in which products are accumulated. It contains secrets after use: zeroize it.
pub(super) struct Scratch {
    columns: [Block; 2 * MAX_BLOCKS],
    multipliers: Block,
}

impl Scratch {
    pub(super) const fn new() -> Self {
        Self { columns: [ZERO_BLOCK; 2 * MAX_BLOCKS], multipliers: ZERO_BLOCK }
    }
}

impl Zeroize for Scratch {
    fn zeroize(&mut self) {
        wipe(self.columns.as_flattened_mut());
        wipe(&mut self.multipliers);
    }
}

/// Eight moduli.
pub(super) struct Modulus<const M: usize> {
    pub(super) n: Number<M>,
    /// −1/n modulo 2^52.
    pub(super) minus_inverse: Word,
    /// R² modulo n.
    pub(super) r_squared: Number<M>,
}

impl<const M: usize> Modulus<M> {
    pub(super) const fn new() -> Self {
        Self { n: zero(), minus_inverse: Word::ZERO, r_squared: zero() }
    }
}

impl<const M: usize> Zeroize for Modulus<M> {
    fn zeroize(&mut self) {
        self.n.zeroize();
        self.minus_inverse.zeroize();
        self.r_squared.zeroize();
    }
}

/// The two column blocks from `index` on.
fn pair(columns: &mut [Block], index: usize) -> (&mut Block, &mut Block) {
    let [lo, hi] = &mut columns[index..index + 2] else { unreachable!("a slice of two") };
    (lo, hi)
}

/// columns := a · b, not carried.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn product<const M: usize>(columns: &mut [Block], a: &Number<M>, b: &Number<M>) {
    check_limbs(a);
    check_limbs(b);
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            let (lo, hi) = pair(columns, i + j);
            // Row 0 is the first to write any block but its lowest; after that, only the top block is new.
            match (i == 0 && j == 0, i > 0 && j + 1 < M) {
                (true, _) => multiply_add::<false, false>(lo, hi, a, b),
                (false, false) => multiply_add::<true, false>(lo, hi, a, b),
                (false, true) => multiply_add::<true, true>(lo, hi, a, b),
            }
        }
    }
}

/// columns := a², not carried.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn square_product<const M: usize>(columns: &mut [Block], a: &Number<M>) {
    check_limbs(a);
    for i in 0..M {
        for j in i + 1..M {
            let (lo, hi) = pair(columns, i + j);
            match (i == 0 && j == 1, i > 0 && j + 1 < M) {
                (true, _) => multiply_add::<false, false>(lo, hi, &a[i], &a[j]),
                (false, false) => multiply_add::<true, false>(lo, hi, &a[i], &a[j]),
                (false, true) => multiply_add::<true, true>(lo, hi, &a[i], &a[j]),
            }
        }
    }
    // The products above do not include the lowest and the highest block of the square.
    for (i, block) in a.iter().enumerate() {
        let (lo, hi) = pair(columns, 2 * i);
        match (i == 0, i + 1 == M) {
            (true, true) => double_and_square::<false, false>(lo, hi, block),
            (true, false) => double_and_square::<false, true>(lo, hi, block),
            (false, true) => double_and_square::<true, false>(lo, hi, block),
            (false, false) => double_and_square::<true, true>(lo, hi, block),
        }
    }
}

/// out := columns, carried. Everything above the highest limb must be zero.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn carry(out: &mut [Block], columns: &[Block]) {
    let mask = _mm512_set1_epi64(LIMB_MASK as i64);
    let mut carry = _mm512_setzero_si512();
    for (out, columns) in out.iter_mut().zip(columns) {
        for (limb, column) in out.iter_mut().zip(columns) {
            let sum = _mm512_add_epi64(load(column), carry);
            store(limb, _mm512_and_si512(sum, mask));
            carry = _mm512_srli_epi64::<52>(sum);
        }
    }
    check_last_carry(carry);
}

/// out := columns / R modulo n, below 2n if columns < R·n.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn reduce<const M: usize>(out: &mut Number<M>, scratch: &mut Scratch, modulus: &Modulus<M>) {
    let Scratch { columns, multipliers } = scratch;
    for i in 0..M {
        let (lo, hi) = pair(columns, i);
        reduce_lowest(lo, hi, &modulus.n[0], &modulus.minus_inverse, multipliers);
        for j in 1..M {
            let (lo, hi) = pair(columns, i + j);
            if i + 1 < M {
                multiply_add::<true, true>(lo, hi, multipliers, &modulus.n[j]);
            } else {
                multiply_add_carry(&mut out[j - 1], lo, hi, multipliers, &modulus.n[j]);
            }
        }
    }
    carry(&mut out[M - 1..], &columns[2 * M - 1..]);
}

/// out := a · b / R modulo n, below 2n if a · b < R·n, as it is for factors below 2n.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn multiply<const M: usize>(
    out: &mut Number<M>,
    a: &Number<M>,
    b: &Number<M>,
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    product(&mut scratch.columns, a, b);
    reduce(out, scratch, modulus);
}

/// a := a² / R modulo n.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn square<const M: usize>(a: &mut Number<M>, modulus: &Modulus<M>, scratch: &mut Scratch) {
    square_product(&mut scratch.columns, a);
    reduce(a, scratch, modulus);
}

/// a := a · b / R modulo n.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn multiply_by<const M: usize>(
    a: &mut Number<M>,
    b: &Number<M>,
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    product(&mut scratch.columns, a, b);
    reduce(a, scratch, modulus);
}

/// out := a / R modulo n for a number below R·n with twice (or as many) blocks: below 2n, and at most n if it
/// is below R.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn divide_by_r<const M: usize, const A: usize>(
    out: &mut Number<M>,
    a: &Number<A>,
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    check_limbs(a);
    scratch.columns[..A].copy_from_slice(a);
    scratch.columns[A..2 * M].fill(ZERO_BLOCK);
    reduce(out, scratch, modulus);
}

/// out := low + a · b, which must be below 2^(520·D), D = 2·M.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn multiply_plus<const M: usize, const D: usize>(
    out: &mut Number<D>,
    low: &Number<M>,
    a: &Number<M>,
    b: &Number<M>,
    scratch: &mut Scratch,
) {
    product(&mut scratch.columns, a, b);
    for (column, limb) in scratch.columns.iter_mut().flatten().zip(low.iter().flatten()) {
        store(column, _mm512_add_epi64(load(column), load(limb)));
    }
    carry(out, &scratch.columns);
}

/// Reduces numbers below 2n to below n.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn reduce_once<const M: usize>(a: &mut Number<M>, n: &Number<M>, scratch: &mut Scratch) {
    let mask = _mm512_set1_epi64(LIMB_MASK as i64);
    let mut borrow = _mm512_setzero_si512();
    for (difference, (limb, n)) in
        scratch.columns.iter_mut().flatten().zip(a.iter().flatten().zip(n.iter().flatten()))
    {
        // The carry is zero or minus one.
        let value = _mm512_add_epi64(_mm512_sub_epi64(load(limb), load(n)), borrow);
        store(difference, _mm512_and_si512(value, mask));
        borrow = _mm512_srai_epi64::<52>(value);
    }
    let not_below = _mm512_cmpeq_epi64_mask(borrow, _mm512_setzero_si512());
    for (limb, difference) in a.iter_mut().flatten().zip(scratch.columns.iter().flatten()) {
        store(limb, _mm512_mask_mov_epi64(load(limb), not_below, load(difference)));
    }
}

/// a := a + 2n − b for b < 2n, so that the result is congruent to a − b and not negative; below 4n for a <
/// 2n. All are below R.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn subtract<const M: usize>(a: &mut Number<M>, b: &Number<M>, n: &Number<M>) {
    let mask = _mm512_set1_epi64(LIMB_MASK as i64);
    let mut carry = _mm512_setzero_si512();
    for ((a, b), n) in a.iter_mut().flatten().zip(b.iter().flatten()).zip(n.iter().flatten()) {
        let n = load(n);
        let plus = _mm512_add_epi64(_mm512_add_epi64(load(a), carry), _mm512_add_epi64(n, n));
        let value = _mm512_sub_epi64(plus, load(b));
        store(a, _mm512_and_si512(value, mask));
        carry = _mm512_srai_epi64::<52>(value);
    }
    check_last_carry(carry);
}

/// The lanes in which two numbers differ, as bits.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn differing<const M: usize>(a: &Number<M>, b: &Number<M>) -> u8 {
    let mut difference = _mm512_setzero_si512();
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        difference = _mm512_or_si512(difference, _mm512_xor_si512(load(a), load(b)));
    }
    _mm512_cmpneq_epi64_mask(difference, _mm512_setzero_si512())
}

/// out := table[index] in each lane, reading the whole table whatever the indices.
#[target_feature(enable = "avx512f,avx512ifma")]
fn select<const M: usize>(out: &mut Number<M>, table: &[Number<M>], index: &Word) {
    let index = load(index);
    for (block, out) in out.iter_mut().enumerate() {
        let mut found = [_mm512_setzero_si512(); BLOCK_LIMBS];
        for (entry, number) in table.iter().enumerate() {
            let here = _mm512_cmpeq_epi64_mask(index, _mm512_set1_epi64(entry as i64));
            for (found, limb) in found.iter_mut().zip(&number[block]) {
                *found = _mm512_mask_mov_epi64(*found, here, load(limb));
            }
        }
        for (out, found) in out.iter_mut().zip(found) {
            store(out, found);
        }
    }
}

/// Number of bits of an exponent that are looked up at once. With 5 there are fewer multiplications, but
/// scans take longer, and the tables of large primes no longer fit into the first-level cache.
pub(super) const WINDOW_BITS: usize = 4;
/// Powers in a table.
pub(super) const TABLE_SIZE: usize = 1 << WINDOW_BITS;

/// The state of an exponentiation with secret exponents.
pub(super) struct Exponentiation<const M: usize> {
    pub(super) modulus: Modulus<M>,
    /// Base, then power, both in Montgomery form (· R).
    pub(super) power: Number<M>,
    /// Digits of the exponents to the base 2^[`WINDOW_BITS`], the most significant first.
    pub(super) digits: Vec<Word>,
    table: Vec<Number<M>>,
    factor: Number<M>,
    pub(super) scratch: Scratch,
}

impl<const M: usize> Zeroize for Exponentiation<M> {
    fn zeroize(&mut self) {
        self.modulus.zeroize();
        self.power.zeroize();
        self.digits.as_mut_slice().zeroize();
        self.table.as_flattened_mut().as_flattened_mut().zeroize();
        self.factor.zeroize();
        self.scratch.zeroize();
    }
}

impl<const M: usize> Exponentiation<M> {
    /// A state with room for this many digits.
    pub(super) fn new(digits: usize) -> Self {
        Self {
            modulus: Modulus::new(),
            power: zero(),
            digits: vec![Word::ZERO; digits],
            table: vec![zero(); TABLE_SIZE],
            factor: zero(),
            scratch: Scratch::new(),
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn fill_table(&mut self, index: usize) {
        let (front, back) = self.table.split_at_mut(index);
        match index {
            0 => divide_by_r(&mut back[0], &self.modulus.r_squared, &self.modulus, &mut self.scratch),
            1 => back[0] = self.power,
            even if even % 2 == 0 => {
                back[0] = front[even / 2];
                square(&mut back[0], &self.modulus, &mut self.scratch);
            }
            odd => multiply(&mut back[0], &front[odd - 1], &self.power, &self.modulus, &mut self.scratch),
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn square(&mut self) {
        square(&mut self.power, &self.modulus, &mut self.scratch);
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn multiply_by_digit(&mut self, digit: usize) {
        select(&mut self.factor, &self.table, &self.digits[digit]);
        multiply_by(&mut self.power, &self.factor, &self.modulus, &mut self.scratch);
    }
}

/// Runs exponentiations with equal numbers of digits in turns, so that the processor can work on one of them
/// while another waits for its carries.
///
/// Constant time: every window costs its squarings, a scan of the whole table and a multiplication.
#[target_feature(enable = "avx512f,avx512ifma")]
fn run_in_turns<const M: usize, const N: usize>(mut all: [&mut Exponentiation<M>; N]) {
    let digits = all[0].digits.len();
    assert!(all.iter().all(|one| one.digits.len() == digits), "as many digits each");
    for index in 0..TABLE_SIZE {
        for one in &mut all {
            one.fill_table(index);
        }
    }
    for one in &mut all {
        select(&mut one.power, &one.table, &one.digits[0]);
    }
    for digit in 1..digits {
        for _ in 0..WINDOW_BITS {
            for one in &mut all {
                one.square();
            }
        }
        for one in &mut all {
            one.multiply_by_digit(digit);
        }
    }
}

/// Runs two exponentiations with equal numbers of digits, in constant time.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn secret_powers<const M: usize>(a: &mut Exponentiation<M>, b: &mut Exponentiation<M>) {
    // The tables of two larger ones do not fit into the first-level cache together, and a single one has
    // enough independent products.
    if M == 1 {
        run_in_turns([a, b]);
    } else {
        run_in_turns([a]);
        run_in_turns([b]);
    }
}

/// base := base^exponent below n, for numbers outside Montgomery form. The exponents are odd and public.
///
/// The time depends on the exponents.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn public_power<const M: usize>(
    base: &mut Number<M>,
    exponents: &[u32; 8],
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    let mut power = zero();
    let mut montgomery = zero();
    power_before_last(&mut power, &mut montgomery, base, exponents, modulus, scratch);
    // The last bit is one in all lanes. Multiplying by a factor outside Montgomery form converts the product
    // out of it.
    multiply_by(base, &power, modulus, scratch);
    reduce_once(base, &modulus.n, scratch);
}

/// value := value · base^exponent below n, for numbers outside Montgomery form; the base may be secret and is
/// overwritten. The exponents are odd and public.
///
/// The time depends only on the exponents.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn blinded_power<const M: usize>(
    value: &mut Number<M>,
    base: &mut Number<M>,
    exponents: &[u32; 8],
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    let mut power = zero();
    let mut montgomery = zero();
    power_before_last(&mut power, &mut montgomery, base, exponents, modulus, scratch);
    multiply_by(&mut power, &montgomery, modulus, scratch);
    multiply_by(value, &power, modulus, scratch);
    reduce_once(value, &modulus.n, scratch);
    wipe(power.as_flattened_mut());
    wipe(montgomery.as_flattened_mut());
}

/// montgomery := base in Montgomery form, power := base^(exponent − 1) in Montgomery form.
#[target_feature(enable = "avx512f,avx512ifma")]
fn power_before_last<const M: usize>(
    power: &mut Number<M>,
    montgomery: &mut Number<M>,
    base: &Number<M>,
    exponents: &[u32; 8],
    modulus: &Modulus<M>,
    scratch: &mut Scratch,
) {
    let bits = exponents.iter().map(|exponent| u32::BITS - exponent.leading_zeros()).max().unwrap_or(0);
    multiply(montgomery, base, &modulus.r_squared, modulus, scratch);
    // Lanes with shorter exponents square a one until their first bit comes.
    let lanes_with = |bit: u32| -> u8 {
        (0..8).filter(|&lane| exponents[lane] >> bit & 1 == 1).map(|lane| 1u8 << lane).sum()
    };
    divide_by_r(power, &modulus.r_squared, modulus, scratch);
    assign_in(lanes_with(bits - 1), power, montgomery);
    let mut other = zero();
    for bit in (1..bits - 1).rev() {
        square(power, modulus, scratch);
        let lanes = lanes_with(bit);
        if lanes != 0 {
            multiply(&mut other, power, montgomery, modulus, scratch);
            assign_in(lanes, power, &other);
        }
    }
    square(power, modulus, scratch);
    wipe(other.as_flattened_mut());
}

/// a := b in the given lanes.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn assign_in<const M: usize>(lanes: u8, a: &mut Number<M>, b: &Number<M>) {
    for (a, b) in a.iter_mut().flatten().zip(b.iter().flatten()) {
        store(a, _mm512_mask_mov_epi64(load(a), lanes, load(b)));
    }
}
