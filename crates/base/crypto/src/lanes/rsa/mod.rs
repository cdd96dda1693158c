//! RSA in eight lanes, each with its own key; keys of one size are processed side by side.
//!
//! The private operation uses the Chinese remainder theorem, windows of the exponents with scans of the whole
//! table, and a random blinding factor. Before it releases a result, it verifies it by raising it to the
//! power of e.

mod blind;
mod block;
mod modular;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use super::hkdf::{self, Salt};
use zeroize::{Zeroize, Zeroizing};

use crate::rsa::RsaPublicKey;
use crate::{CryptoError, HashCode, lc};
use block::{BLOCK_LIMBS, Block, LIMB_BITS, LIMB_MASK, Word};
use modular::{
    Exponentiation, Modulus, Number, Scratch, WINDOW_BITS, assign_in, differing, divide_by_r, multiply,
    multiply_by, multiply_plus, public_power, reduce_once, secret_powers, square, subtract, zero,
};

pub(crate) use super::LANES;

/// The sizes of moduli that the lanes support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Bits1024,
    Bits2048,
    Bits3072,
}

impl Size {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Bits1024, Self::Bits2048, Self::Bits3072];

    /// The size of a modulus with exactly this many bits.
    pub(crate) fn of(bits: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bits() == bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Bits1024 => 1024,
            Self::Bits2048 => 2048,
            Self::Bits3072 => 3072,
        }
    }

    const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    const fn prime_bits(self) -> usize {
        self.bits() as usize / 2
    }

    /// Limbs of numbers below the modulus, including the spare bits of their highest limb and some more:
    /// eight for each 512 bits.
    const fn limbs(self) -> usize {
        self.bits() as usize / 512 * BLOCK_LIMBS
    }
}

// R is at least eight bits longer than modulus and primes, as `modular` requires.
const _: () = assert!(BLOCK_LIMBS * LIMB_BITS >= 512 + 8);

/// An odd number prepared for Montgomery arithmetic, in 52-bit limbs, least significant first.
struct Odd {
    n: Zeroizing<Vec<u64>>,
    /// −1/n modulo 2^52.
    minus_inverse: u64,
    /// R² modulo n, R being 2^52 to the power of the number of limbs.
    r_squared: Zeroizing<Vec<u64>>,
}

impl Odd {
    fn new(n: Zeroizing<Vec<u64>>, r_squared: Zeroizing<Vec<u64>>) -> Self {
        // Newton's iteration; an odd number is its own inverse modulo 8, and each round doubles the bits.
        let mut inverse = n[0];
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(n[0].wrapping_mul(inverse)));
        }
        Self { n, minus_inverse: inverse.wrapping_neg() & LIMB_MASK, r_squared }
    }

    /// Prepares the modulus of a public key; `None` if out of memory.
    fn public(key: &RsaPublicKey, limbs: usize) -> Option<Self> {
        let mut r_squared = vec![0; key.modulus().len()];
        key.power_of_two(2 * limbs * LIMB_BITS, &mut r_squared).ok()?;
        Some(Self::new(to_limbs(key.modulus(), limbs), to_limbs(&r_squared, limbs)))
    }

    /// Prepares an odd number of exactly `bits` bits, in time that depends only on its size.
    fn secret(n: &[u8], bits: usize, limbs: usize) -> Self {
        let n = to_limbs(n, limbs);
        // The largest power of two below n, doubled modulo n until it is R².
        let mut power = Zeroizing::new(vec![0; limbs]);
        power[(bits - 1) / LIMB_BITS] = 1 << ((bits - 1) % LIMB_BITS);
        let mut difference = Zeroizing::new(vec![0; limbs]);
        for _ in bits - 1..2 * limbs * LIMB_BITS {
            let (mut carry, mut borrow) = (0, 0);
            for ((limb, n), difference) in power.iter_mut().zip(n.iter()).zip(difference.iter_mut()) {
                let double = (*limb << 1) | carry;
                carry = double >> LIMB_BITS;
                *limb = double & LIMB_MASK;
                let value = limb.wrapping_sub(*n).wrapping_sub(borrow);
                borrow = value >> 63;
                *difference = value & LIMB_MASK;
            }
            // All ones if the power is below n.
            let below = std::hint::black_box(borrow).wrapping_neg();
            for (limb, difference) in power.iter_mut().zip(difference.iter()) {
                *limb = (*limb & below) | (*difference & !below);
            }
        }
        Self::new(n, power)
    }
}

/// A public key prepared for the lanes.
pub(crate) struct PublicKey {
    size: Size,
    odd: Odd,
    exponent: u32,
    /// The salt of the full-domain hash: the encoded key.
    salt: Salt,
}

impl PublicKey {
    /// The key, if the lanes support its size.
    pub(crate) fn new(key: &RsaPublicKey) -> Option<Self> {
        let size = Size::of(key.bits())?;
        let exponent = key.exponent().iter().fold(0, |value, &byte| value << 8 | u32::from(byte));
        Some(Self { size, odd: Odd::public(key, size.limbs())?, exponent, salt: Salt::new(key.encode()) })
    }
}

/// One of the two primes of a private key.
struct Prime {
    odd: Odd,
    /// Digits of d modulo (prime − 1) to the base of the window, the most significant first.
    digits: Zeroizing<Vec<u8>>,
}

impl Prime {
    fn new(prime: &[u8], exponent: &[u8], size: Size) -> Option<Self> {
        let bits = size.prime_bits();
        // Both primes have exactly half the bits. Then neither is twice as large as the other, which the code
        // relies on.
        if prime.len() != bits / 8 || prime[0] >> 7 != 1 || prime[bits / 8 - 1] & 1 == 0 {
            return None;
        }
        if exponent.len() > bits / 8 {
            return None;
        }
        let digits = (0..bits.div_ceil(WINDOW_BITS)).rev().map(|digit| {
            let bit = |position: usize| {
                let byte = exponent.len().checked_sub(1 + position / 8).map_or(0, |index| exponent[index]);
                byte >> (position % 8) & 1
            };
            (0..WINDOW_BITS).rev().fold(0, |value, low| value << 1 | bit(digit * WINDOW_BITS + low))
        });
        let digits = Zeroizing::new(digits.collect::<Vec<u8>>());
        Some(Self { odd: Odd::secret(prime, bits, size.limbs() / 2), digits })
    }
}

/// A private key prepared for the lanes. Wiped when dropped.
pub(crate) struct PrivateKey {
    public: PublicKey,
    p: Prime,
    q: Prime,
    /// 1/q modulo p.
    q_inverse: Zeroizing<Vec<u64>>,
    /// Unused blinding factors.
    blindings: Mutex<Vec<Blinding>>,
}

impl PrivateKey {
    /// The key with these parts, if the lanes support its size and each prime has half that size.
    pub(crate) fn new(public: &RsaPublicKey, parts: &lc::CrtParts) -> Option<Self> {
        let public = PublicKey::new(public)?;
        let size = public.size;
        if parts.q_inverse.len() > size.bytes() / 2 {
            return None;
        }
        Some(Self {
            p: Prime::new(&parts.p, &parts.d_p, size)?,
            q: Prime::new(&parts.q, &parts.d_q, size)?,
            q_inverse: to_limbs(&parts.q_inverse, size.limbs() / 2),
            blindings: Mutex::new(Vec::new()),
            public,
        })
    }

    /// The size class; only keys of the same class are processed side by side.
    pub(crate) fn size(&self) -> Size {
        self.public.size
    }

    /// Damages one of the [`Self::DAMAGES`] numbers of a computation, as a hardware fault could.
    #[cfg(test)]
    pub(crate) fn damage(&mut self, which: usize) {
        let last_digit = self.q.digits.len() - 1;
        match which {
            0 => self.q_inverse[0] ^= 1,
            1 => self.p.odd.n[3] ^= 1 << 17,
            2 => self.q.odd.minus_inverse ^= 1 << 51,
            3 => self.p.odd.r_squared[1] ^= 1 << 5,
            4 => self.q.digits[last_digit] ^= 1,
            5 => self.p.digits[2] ^= 8,
            6 => self.public.odd.r_squared[0] ^= 2,
            7 => {
                let kept = self.blindings.get_mut().expect("nobody panics while holding it");
                kept.last_mut().expect("the key was used before").backward[0] ^= 4;
            }
            _ => unreachable!("no such damage"),
        }
    }

    /// Kinds of damage.
    #[cfg(test)]
    pub(crate) const DAMAGES: usize = 8;
}

/// Number of squarings of a blinding factor before a fresh one replaces it.
const BLINDING_USES: u32 = 32;
/// The most blinding factors kept for a key: enough for eight lanes in every thread that may use the key at
/// the same time.
const MAX_BLINDINGS: usize = 64;

/// A blinding factor r as r^e and 1/r, in limbs.
struct Blinding {
    forward: Zeroizing<Vec<u64>>,
    backward: Zeroizing<Vec<u64>>,
    uses: u32,
}

impl Blinding {
    /// A fresh factor, not in Montgomery form.
    fn generate(key: &RsaPublicKey, limbs: usize) -> Result<Self, CryptoError> {
        let [forward, backward] = crate::rsa::random_blinding(key)?;
        Ok(Self { forward: to_limbs(&forward, limbs), backward: to_limbs(&backward, limbs), uses: 0 })
    }
}

/// Big endian bytes as limbs, least significant first.
fn to_limbs(bytes: &[u8], limbs: usize) -> Zeroizing<Vec<u64>> {
    // A limb is read as eight bytes, of which the last may lie beyond the number.
    let mut little = Zeroizing::new(vec![0; limbs * LIMB_BITS / 8 + 8]);
    assert!(bytes.len() <= limbs * LIMB_BITS / 8, "the number has more limbs");
    for (to, from) in little.iter_mut().zip(bytes.iter().rev()) {
        *to = *from;
    }
    let limb = |index: usize| {
        let bit = index * LIMB_BITS;
        let chunk = little[bit / 8..].first_chunk().expect("eight bytes are left");
        u64::from_le_bytes(*chunk) >> (bit % 8) & LIMB_MASK
    };
    Zeroizing::new((0..limbs).map(limb).collect())
}

/// Writes big endian bytes into the limbs of one lane, which must be large enough.
fn scatter(number: &mut [Block], lane: usize, bytes: &[u8]) {
    let mut limbs = number.iter_mut().flatten();
    // Two limbs are thirteen bytes.
    let mut put = |pair: u128| {
        for limb in [pair as u64 & LIMB_MASK, (pair >> LIMB_BITS) as u64] {
            limbs.next().expect("enough limbs").0[lane] = limb;
        }
    };
    let chunks = bytes.rchunks_exact(13);
    let rest = chunks.remainder();
    for chunk in chunks {
        let mut pair = [0; 16];
        pair[3..].copy_from_slice(chunk);
        put(u128::from_be_bytes(pair));
    }
    if !rest.is_empty() {
        let mut pair = [0; 16];
        pair[16 - rest.len()..].copy_from_slice(rest);
        put(u128::from_be_bytes(pair));
    }
    for limb in limbs {
        limb.0[lane] = 0;
    }
}

/// Writes the limbs of one lane as big endian bytes, as many as `bytes` has room for.
fn gather(number: &[Block], lane: usize, bytes: &mut [u8]) {
    let mut limbs = number.iter().flatten().map(|word| u128::from(word.0[lane]));
    for chunk in bytes.rchunks_mut(13) {
        let low = limbs.next().expect("enough limbs");
        let pair = low | limbs.next().expect("enough limbs") << LIMB_BITS;
        chunk.copy_from_slice(&pair.to_be_bytes()[16 - chunk.len()..]);
    }
}

/// Interleaves the limbs of eight numbers.
fn interleave(number: &mut [Block], limbs: [&[u64]; LANES]) {
    if limbs.iter().all(|other| std::ptr::eq(*other, limbs[0])) {
        for (word, limb) in number.iter_mut().flatten().zip(limbs[0]) {
            word.0 = [*limb; LANES];
        }
        return;
    }
    for (lane, limbs) in limbs.iter().enumerate() {
        for (word, limb) in number.iter_mut().flatten().zip(*limbs) {
            word.0[lane] = *limb;
        }
    }
}

impl<const M: usize> Modulus<M> {
    fn set(&mut self, odds: [&Odd; LANES]) {
        interleave(&mut self.n, odds.map(|odd| odd.n.as_slice()));
        interleave(&mut self.r_squared, odds.map(|odd| odd.r_squared.as_slice()));
        self.minus_inverse = Word(odds.map(|odd| odd.minus_inverse));
    }
}

/// The item for each lane; unused lanes repeat the first item.
fn lane_items<T>(items: &[T]) -> [&T; LANES] {
    assert!((1..=LANES).contains(&items.len()), "one to eight items");
    std::array::from_fn(|lane| items.get(lane).unwrap_or(&items[0]))
}

pub(crate) use blind::{BlindItem, blind_each};
pub(crate) use hkdf::HASHES;

/// The domain separator of the full-domain hash within the key derivation.
const HASH_CONTEXT: &[u8] = b"RSA-FDA FTpsW!";

/// The full-domain hashes of one to sixteen messages for keys of one size, in the size of the modulus. `None`
/// where the lanes cannot decide, which never happens by chance.
pub(crate) fn full_domain_hashes(items: &[(&PublicKey, &RsaPublicKey, &HashCode)]) -> Vec<Option<Vec<u8>>> {
    let size = items[0].0.size.bytes();
    let mut hashes = vec![0; items.len() * size];
    let undecided = full_domain_hashes_into(items.iter().copied(), &mut hashes);
    let hash = |(lane, hash): (usize, &[u8])| (undecided >> lane & 1 == 0).then(|| hash.to_vec());
    hashes.chunks_exact(size).enumerate().map(hash).collect()
}

/// The hashes one after another, and the undecided lanes as bits.
fn full_domain_hashes_into<'a>(
    items: impl Iterator<Item = (&'a PublicKey, &'a RsaPublicKey, &'a HashCode)> + Clone,
    hashes: &mut [u8],
) -> u16 {
    let secrets = items.clone().map(|(lanes, _, message)| (&lanes.salt, &message.as_bytes()[..]));
    let prks = hkdf::extract_each(secrets);
    let moduli: Vec<_> = items.map(|(_, key, _)| key.modulus()).collect();
    hkdf::expand_below_each(&prks.0, &moduli, HASH_CONTEXT, hashes)
}

/// An item of [`public_powers_are`]. Numbers are big endian; `base` is below the modulus, `expected` has its
/// size.
#[derive(Clone, Copy)]
pub(crate) struct PublicItem<'a> {
    pub(crate) key: &'a PublicKey,
    pub(crate) base: &'a [u8],
    pub(crate) expected: &'a [u8],
}

/// Returns whether base^e mod n has the expected value, for one to eight keys of one size. For public values
/// only.
pub(crate) fn public_powers_are(items: &[PublicItem<'_>]) -> Vec<bool> {
    assert!(super::ifma(), "callers ask first");
    let size = items[0].key.size;
    assert!(items.iter().all(|item| item.key.size == size), "keys of one size");
    #[allow(unsafe_code)]
    // SAFETY: the processor has the instructions, see the first assertion.
    unsafe {
        match size {
            Size::Bits1024 => public_in_lanes::<2>(items),
            Size::Bits2048 => public_in_lanes::<4>(items),
            Size::Bits3072 => public_in_lanes::<6>(items),
        }
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn public_in_lanes<const F: usize>(items: &[PublicItem<'_>]) -> Vec<bool> {
    let lanes = lane_items(items);
    let mut modulus = Modulus::<F>::new();
    modulus.set(lanes.map(|item| &item.key.odd));
    let mut power = zero::<F>();
    let mut expected = zero::<F>();
    for (lane, item) in lanes.iter().enumerate() {
        scatter(&mut power, lane, item.base);
        scatter(&mut expected, lane, item.expected);
    }
    public_power(&mut power, &lanes.map(|item| item.key.exponent), &modulus, &mut Scratch::new());
    let wrong = differing(&power, &expected);
    (0..items.len()).map(|lane| wrong >> lane & 1 == 0).collect()
}

/// An item of [`private_powers`].
#[derive(Clone, Copy)]
pub(crate) struct PrivateItem<'a> {
    pub(crate) key: &'a PrivateKey,
    /// The public key of `key`.
    pub(crate) public: &'a RsaPublicKey,
    /// Big endian, in the size of the modulus and below it.
    pub(crate) value: &'a [u8],
}

/// value^d mod n for one to eight keys of one size, in constant time. The results have the size of the
/// modulus.
///
/// A result is returned only if raising it to the power of e gives the value again. Otherwise the item is
/// [`CryptoError::Fault`], which does not affect the others. Any other error concerns all items: nothing was
/// computed.
pub(crate) fn private_powers(items: &[PrivateItem<'_>]) -> Vec<Result<Vec<u8>, CryptoError>> {
    assert!(super::ifma(), "callers ask first");
    let size = items[0].key.size();
    assert!(items.iter().all(|item| item.key.size() == size), "keys of one size");
    #[allow(unsafe_code)]
    // SAFETY: the processor has the instructions, see the first assertion.
    unsafe {
        match size {
            Size::Bits1024 => private_in_lanes::<1, 2>(items),
            Size::Bits2048 => private_in_lanes::<2, 4>(items),
            Size::Bits3072 => private_in_lanes::<3, 6>(items),
        }
    }
}

/// The secrets of a batch, wiped at its end.
struct Work<const H: usize, const F: usize> {
    p: Exponentiation<H>,
    q: Exponentiation<H>,
    factor: Number<H>,
    forward: Number<F>,
    backward: Number<F>,
    /// The blinded value, then its signature, then the signature without blinding.
    value: Number<F>,
    check: Number<F>,
    scratch: Scratch,
}

impl<const H: usize, const F: usize> Zeroize for Work<H, F> {
    fn zeroize(&mut self) {
        self.p.zeroize();
        self.q.zeroize();
        self.factor.zeroize();
        for number in [&mut self.forward, &mut self.backward, &mut self.value, &mut self.check] {
            number.zeroize();
        }
        self.scratch.zeroize();
    }
}

impl<const H: usize, const F: usize> Work<H, F> {
    fn new(size: Size) -> Self {
        let digits = size.prime_bits().div_ceil(WINDOW_BITS);
        Self {
            p: Exponentiation::new(digits),
            q: Exponentiation::new(digits),
            factor: zero(),
            forward: zero(),
            backward: zero(),
            value: zero(),
            check: zero(),
            scratch: Scratch::new(),
        }
    }
}

impl<const H: usize> Exponentiation<H> {
    /// Sets modulus and exponent, and the base to `value`.
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn set<const F: usize>(&mut self, primes: [&Prime; LANES], value: &Number<F>, factor: &mut Number<H>) {
        self.modulus.set(primes.map(|prime| &prime.odd));
        for (index, word) in self.digits.iter_mut().enumerate() {
            word.0 = primes.map(|prime| u64::from(prime.digits[index]));
        }
        // value/R, times R³/R. The value is below 2·p·q, and 2·q is far below R, so value/R is below 2p.
        divide_by_r(&mut self.power, value, &self.modulus, &mut self.scratch);
        let r_squared = &self.modulus.r_squared;
        multiply(factor, r_squared, r_squared, &self.modulus, &mut self.scratch);
        multiply_by(&mut self.power, factor, &self.modulus, &mut self.scratch);
    }

    /// Converts the power out of Montgomery form and brings it below the modulus. The power is below R, so
    /// dividing it by R gives at most the modulus itself.
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn finish(&mut self, factor: &mut Number<H>) {
        *factor = self.power;
        divide_by_r(&mut self.power, factor, &self.modulus, &mut self.scratch);
        reduce_once(&mut self.power, &self.modulus.n, &mut self.scratch);
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn private_in_lanes<const H: usize, const F: usize>(
    items: &[PrivateItem<'_>],
) -> Vec<Result<Vec<u8>, CryptoError>> {
    let lanes = lane_items(items);
    let size = items[0].key.size();
    let mut modulus = Modulus::<F>::new();
    modulus.set(lanes.map(|item| &item.key.public.odd));
    let mut given = zero::<F>();
    for (lane, item) in lanes.iter().enumerate() {
        scatter(&mut given, lane, item.value);
    }
    let mut blindings = match take_blindings(items) {
        Ok(blindings) => blindings,
        Err(error) => return vec![Err(error); items.len()],
    };
    let mut work = Box::new(Zeroizing::new(Work::<H, F>::new(size)));
    let Work { p, q, factor, forward, backward, value, check, scratch } = &mut **work;

    // Blind: the value times r^e.
    let factors: [&Blinding; LANES] = lane_items(&blindings);
    interleave(forward, factors.map(|factor| factor.forward.as_slice()));
    interleave(backward, factors.map(|factor| factor.backward.as_slice()));
    let fresh = (0..LANES).filter(|&lane| factors[lane].uses == 0).map(|lane| 1u8 << lane).sum();
    if fresh != 0 {
        for number in [&mut *forward, &mut *backward] {
            multiply(check, number, &modulus.r_squared, &modulus, scratch);
            assign_in(fresh, number, check);
        }
    }
    multiply(value, &given, forward, &modulus, scratch);

    // The two halves.
    p.set(lanes.map(|item| &item.key.p), value, factor);
    q.set(lanes.map(|item| &item.key.q), value, factor);
    secret_powers(p, q);
    p.finish(factor);
    q.finish(factor);

    // Garner's recombination: q · ((at p − at q) / q modulo p) + at q. The power at q is below q, and so
    // below 2p; their difference is below 3p, and times R² below 3p² < R·p. In the end the quotient is at
    // most p − 1, and the sum is below p·q.
    subtract(&mut p.power, &q.power, &p.modulus.n);
    multiply_by(&mut p.power, &p.modulus.r_squared, &p.modulus, scratch);
    interleave(factor, lanes.map(|item| item.key.q_inverse.as_slice()));
    multiply_by(&mut p.power, factor, &p.modulus, scratch);
    reduce_once(&mut p.power, &p.modulus.n, scratch);
    multiply_plus(value, &q.power, &p.power, &q.modulus.n, scratch);

    // Unblind, and check the result before it is released.
    multiply_by(value, backward, &modulus, scratch);
    reduce_once(value, &modulus.n, scratch);
    *check = *value;
    public_power(check, &lanes.map(|item| item.key.public.exponent), &modulus, scratch);
    let wrong = differing(check, &given);

    // The next factors are the squares.
    square(forward, &modulus, scratch);
    square(backward, &modulus, scratch);
    for (lane, blinding) in blindings.iter_mut().enumerate() {
        blinding.uses += 1;
        for (limbs, number) in [(&mut blinding.forward, &*forward), (&mut blinding.backward, &*backward)] {
            for (limb, word) in limbs.iter_mut().zip(number.iter().flatten()) {
                *limb = word.0[lane];
            }
        }
    }
    let release = |lane: usize| {
        if wrong >> lane & 1 == 1 {
            return Err(CryptoError::Fault);
        }
        let mut bytes = vec![0; size.bytes()];
        gather(value, lane, &mut bytes);
        Ok(bytes)
    };
    let results = (0..items.len()).map(release).collect();
    give_blindings_back(items, blindings, wrong);
    results
}

/// A blinding factor for each item, either stored with its key or fresh.
fn take_blindings(items: &[PrivateItem<'_>]) -> Result<Vec<Blinding>, CryptoError> {
    let take = |item: &PrivateItem<'_>| {
        let kept = item.key.blindings.lock().expect("nobody panics while holding it").pop();
        kept.map_or_else(|| Blinding::generate(item.public, item.key.size().limbs()), Ok)
    };
    items.iter().map(take).collect()
}

/// Stores usable factors again, except those of lanes with wrong results.
fn give_blindings_back(items: &[PrivateItem<'_>], blindings: Vec<Blinding>, wrong: u8) {
    for (lane, (item, blinding)) in items.iter().zip(blindings).enumerate() {
        if blinding.uses < BLINDING_USES && wrong >> lane & 1 == 0 {
            let mut kept = item.key.blindings.lock().expect("nobody panics while holding it");
            if kept.len() < MAX_BLINDINGS {
                kept.push(blinding);
            }
        }
    }
}
