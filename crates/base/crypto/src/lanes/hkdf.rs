//! Key derivation side by side: HKDF that extracts with HMAC-SHA-512, eight at once, and expands with
//! HMAC-SHA-256 (FIPS 180-4), with sixteen 32-bit lanes in a register. Instructions and addresses do not
//! depend on the derived values, except for how often a value is too large and whether its first 32 bits
//! equal those of the integer that it must be below. The library has the same exceptions.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_load_si512, _mm512_or_si512, _mm512_ror_epi32, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_srli_epi32, _mm512_store_si512, _mm512_ternarylogic_epi32, _mm512_xor_si512,
};

use super::curve::sha512_each;
use super::{Wiped, wipe};

/// Hashes side by side.
pub(crate) const HASHES: usize = 16;

/// Longest info of a derivation in bytes.
pub(crate) const INFO_BYTES: usize = 64;

/// Bytes of a block of the output.
const OUTPUT_BYTES: usize = 32;

const INITIAL_STATE: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

#[rustfmt::skip]
const ROUND_CONSTANTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The salt of an extraction with HMAC-SHA-512, as the two blocks with which the inner and the outer hash
/// begin.
pub(crate) struct Salt {
    inner: [u8; 128],
    outer: [u8; 128],
}

impl Salt {
    pub(crate) fn new(salt: &[u8]) -> Self {
        let mut key = [0; 128];
        if salt.len() > key.len() {
            key[..64].copy_from_slice(crate::hash::sha512(salt).as_bytes());
        } else {
            key[..salt.len()].copy_from_slice(salt);
        }
        Self { inner: key.map(|byte| byte ^ 0x36), outer: key.map(|byte| byte ^ 0x5c) }
    }
}

/// One word of sixteen hashes in its memory layout.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Words([u32; HASHES]);

type State = [__m512i; 8];

#[target_feature(enable = "avx512f")]
#[inline]
fn load(words: &Words) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read, with the required alignment.
    unsafe { _mm512_load_si512((&raw const words.0).cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(words: &mut Words, vector: __m512i) {
    // SAFETY: the array has the 64 bytes that are written, with the required alignment.
    unsafe { _mm512_store_si512((&raw mut words.0).cast(), vector) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn same(word: u32) -> __m512i {
    _mm512_set1_epi32(word.cast_signed())
}

/// The compression function.
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn compress(state: &State, block: &[__m512i; 16]) -> State {
    let mut schedule = *block;
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (sixteen, constants) in ROUND_CONSTANTS.as_chunks::<16>().0.iter().enumerate() {
        for i in 0..16 {
            // Truth tables: 0x96 is the exclusive or of three, 0xca a choice, 0xe8 a majority.
            let sum1 = _mm512_ternarylogic_epi32::<0x96>(
                _mm512_ror_epi32::<6>(e),
                _mm512_ror_epi32::<11>(e),
                _mm512_ror_epi32::<25>(e),
            );
            let choice = _mm512_ternarylogic_epi32::<0xca>(e, f, g);
            let input = _mm512_add_epi32(_mm512_add_epi32(h, same(constants[i])), schedule[i]);
            let t1 = _mm512_add_epi32(_mm512_add_epi32(sum1, choice), input);
            let sum0 = _mm512_ternarylogic_epi32::<0x96>(
                _mm512_ror_epi32::<2>(a),
                _mm512_ror_epi32::<13>(a),
                _mm512_ror_epi32::<22>(a),
            );
            let majority = _mm512_ternarylogic_epi32::<0xe8>(a, b, c);
            (h, g, f, e) = (g, f, e, _mm512_add_epi32(d, t1));
            (d, c, b, a) = (c, b, a, _mm512_add_epi32(t1, _mm512_add_epi32(sum0, majority)));
            if sixteen < 3 {
                let (w1, w14) = (schedule[(i + 1) % 16], schedule[(i + 14) % 16]);
                let small0 = _mm512_ternarylogic_epi32::<0x96>(
                    _mm512_ror_epi32::<7>(w1),
                    _mm512_ror_epi32::<18>(w1),
                    _mm512_srli_epi32::<3>(w1),
                );
                let small1 = _mm512_ternarylogic_epi32::<0x96>(
                    _mm512_ror_epi32::<17>(w14),
                    _mm512_ror_epi32::<19>(w14),
                    _mm512_srli_epi32::<10>(w14),
                );
                let sum = _mm512_add_epi32(schedule[i], schedule[(i + 9) % 16]);
                schedule[i] = _mm512_add_epi32(sum, _mm512_add_epi32(small0, small1));
            }
        }
    }
    let mut next = [a, b, c, d, e, f, g, h];
    for (word, old) in next.iter_mut().zip(state) {
        *word = _mm512_add_epi32(*word, *old);
    }
    next
}

/// [`wipe`] for vectors, which have no default value.
#[target_feature(enable = "avx512f")]
#[inline]
fn wipe_vectors(vectors: &mut [__m512i]) {
    vectors.fill(_mm512_setzero_si512());
    zeroize::optimization_barrier(vectors);
}

/// Sixteen HMAC-SHA-256 keys of 64 bytes: the states after the first block of the inner and the outer hash.
/// They are as sensitive as the keys themselves: wipe them.
struct Hmac {
    inner: State,
    outer: State,
}

impl Hmac {
    #[target_feature(enable = "avx512f")]
    fn new(keys: &[&[u8; 64]; HASHES]) -> Self {
        let mut words = [Words::default(); 16];
        for (lane, key) in keys.iter().enumerate() {
            for (words, bytes) in words.iter_mut().zip(key.as_chunks::<4>().0) {
                words.0[lane] = u32::from_be_bytes(*bytes);
            }
        }
        let mut initial = [_mm512_setzero_si512(); 8];
        for (word, constant) in initial.iter_mut().zip(INITIAL_STATE) {
            *word = same(constant);
        }
        let mut states = [initial; 2];
        for (state, pad) in states.iter_mut().zip([0x3636_3636, 0x5c5c_5c5c]) {
            let mut block = [_mm512_setzero_si512(); 16];
            for (word, key) in block.iter_mut().zip(&words) {
                *word = _mm512_xor_si512(load(key), same(pad));
            }
            *state = compress(&initial, &block);
            wipe_vectors(&mut block);
        }
        wipe(&mut words);
        let [inner, outer] = states;
        wipe_vectors(states.as_flattened_mut());
        Self { inner, outer }
    }

    #[target_feature(enable = "avx512f")]
    fn wipe(&mut self) {
        wipe_vectors(&mut self.inner);
        wipe_vectors(&mut self.outer);
    }

    /// The authenticators of `front`, if there is one, then the tails.
    #[target_feature(enable = "avx512f")]
    fn authenticate(&self, front: Option<&State>, tails: &Tails, number: u8) -> State {
        let mut message = [[_mm512_setzero_si512(); 16]; 2];
        let words = message.as_flattened_mut();
        let mut start = 0;
        if let Some(front) = front {
            words[..8].copy_from_slice(front);
            start = 8;
        }
        for (word, tail) in words[start..].iter_mut().zip(&tails.words[..tails.word_count()]) {
            *word = load(tail);
        }
        let place = &mut words[start + tails.info_bytes / 4];
        *place = _mm512_or_si512(*place, same(u32::from(number) << (24 - 8 * (tails.info_bytes % 4))));
        let bytes = 4 * start + tails.info_bytes + 1;
        // After the bit that begins the padding, the length takes eight bytes.
        let blocks = (bytes + 9).div_ceil(64);
        words[16 * blocks - 1] = same(8 * (64 + bytes) as u32);
        let mut digest = compress(&self.inner, &message[0]);
        if blocks == 2 {
            digest = compress(&digest, &message[1]);
        }
        wipe_vectors(message.as_flattened_mut());
        let mut block = [_mm512_setzero_si512(); 16];
        block[..8].copy_from_slice(&digest);
        block[8] = same(0x8000_0000);
        block[15] = same(8 * (64 + OUTPUT_BYTES) as u32);
        let authenticators = compress(&self.outer, &block);
        wipe_vectors(&mut digest);
        wipe_vectors(&mut block);
        authenticators
    }
}

/// Bytes of the longest end of a message, in whole words.
const TAIL_BYTES: usize = (INFO_BYTES + 2).next_multiple_of(4);

/// The ends of sixteen messages with infos of one length: the info, a place for the block number, and the bit
/// that begins the padding.
struct Tails {
    words: [Words; TAIL_BYTES / 4],
    info_bytes: usize,
}

impl Tails {
    fn new(infos: &[&[u8]; HASHES]) -> Self {
        let info_bytes = infos[0].len();
        assert!(info_bytes <= INFO_BYTES && infos.iter().all(|info| info.len() == info_bytes), "one length");
        let mut tails = Self { words: [Words::default(); TAIL_BYTES / 4], info_bytes };
        let count = tails.word_count();
        let mut bytes = [0; TAIL_BYTES];
        for (lane, info) in infos.iter().enumerate() {
            bytes[..info_bytes].copy_from_slice(info);
            bytes[info_bytes + 1] = 0x80;
            for (words, bytes) in tails.words[..count].iter_mut().zip(bytes.as_chunks::<4>().0) {
                words.0[lane] = u32::from_be_bytes(*bytes);
            }
        }
        wipe(&mut bytes);
        tails
    }

    /// Words in use.
    fn word_count(&self) -> usize {
        (self.info_bytes + 2).div_ceil(4)
    }
}

/// The words of each hash.
#[target_feature(enable = "avx512f")]
fn words(state: &State) -> [Words; 8] {
    let mut words = [Words::default(); 8];
    for (words, vector) in words.iter_mut().zip(state) {
        store(words, *vector);
    }
    words
}

/// The item for each lane; unused lanes repeat the first item.
fn lanes_of<T: Copy>(items: &[T]) -> [T; HASHES] {
    assert!((1..=HASHES).contains(&items.len()), "one to sixteen items");
    std::array::from_fn(|lane| *items.get(lane).unwrap_or(&items[0]))
}

/// The pseudorandom keys of input key material that may be secret. The processor must have the instructions
/// that [`super::ifma`] checks for.
pub(crate) fn extract_each<'a>(items: impl Iterator<Item = (&'a Salt, &'a [u8])> + Clone) -> Wiped<64> {
    let inner: Vec<_> = items.clone().map(|(salt, ikm)| [&salt.inner[..], ikm, &[]]).collect();
    let inner = Wiped(sha512_each(&inner, true));
    let outer: Vec<_> =
        items.zip(&inner.0).map(|((salt, _), hash)| [&salt.outer[..], &hash[..], &[]]).collect();
    Wiped(sha512_each(&outer, true))
}

/// `N` bytes for each of one to sixteen pseudorandom keys, with infos of one length. The processor must have
/// the instructions that [`super::ifma`] checks for.
pub(crate) fn expand_each<const N: usize>(prks: &[[u8; 64]], infos: &[&[u8]]) -> Wiped<N> {
    assert!(super::ifma(), "callers ask first");
    assert_eq!(prks.len(), infos.len());
    let mut tails = Tails::new(&lanes_of(infos));
    let mut out = Wiped(vec![[0; N]; prks.len()]);
    // SAFETY: the processor has the instructions, see the assertion.
    unsafe {
        expand(prks, &tails, &mut out.0);
    }
    wipe(&mut tails.words);
    out
}

#[target_feature(enable = "avx512f")]
fn expand<const N: usize>(prks: &[[u8; 64]], tails: &Tails, out: &mut [[u8; N]]) {
    let mut hmac = Hmac::new(&lanes_of(&prks.iter().collect::<Vec<_>>()));
    let mut block: Option<State> = None;
    for index in 0..N.div_ceil(OUTPUT_BYTES) {
        let number = u8::try_from(index + 1).expect("at most 255 blocks");
        let next = hmac.authenticate(block.as_ref(), tails, number);
        let mut values = words(&next);
        for (lane, out) in out.iter_mut().enumerate() {
            let out = out[index * OUTPUT_BYTES..].chunks_mut(4);
            for (bytes, words) in out.zip(&values) {
                bytes.copy_from_slice(&words.0[lane].to_be_bytes()[..bytes.len()]);
            }
        }
        wipe(&mut values);
        block = Some(next);
    }
    if let Some(block) = &mut block {
        wipe_vectors(block);
    }
    hmac.wipe();
}

/// For each of one to sixteen pseudorandom keys, writes the first derived value below an integer, as
/// [`crate::kdf::Prk::expand_mod`] does: big endian, one after another into `out`. The integers are big
/// endian without leading zeros, and all have the same number of bytes, which is a multiple of 32.
///
/// Returns the undecided lanes as bits: those where the first 256 bits equal those of the integer, which
/// never happens by chance. The caller decides those alone. The processor must have the instructions that
/// [`super::ifma`] checks for.
pub(crate) fn expand_below_each(
    prks: &[[u8; 64]],
    integers: &[&[u8]],
    context: &[u8],
    out: &mut [u8],
) -> u16 {
    assert!(super::ifma(), "callers ask first");
    let size = integers[0].len();
    assert_eq!(prks.len(), integers.len());
    assert_eq!(out.len(), integers.len() * size);
    assert!(size.is_multiple_of(OUTPUT_BYTES) && integers.iter().all(|n| n.len() == size), "one size");
    // SAFETY: the processor has the instructions, see the first assertion.
    unsafe { expand_below(prks, integers, context, out) }
}

#[target_feature(enable = "avx512f")]
fn expand_below(prks: &[[u8; 64]], integers: &[&[u8]], context: &[u8], out: &mut [u8]) -> u16 {
    let size = integers[0].len();
    let masks: Vec<u32> = integers.iter().map(|n| u32::MAX >> n[0].leading_zeros()).collect();
    let mut hmac = Hmac::new(&lanes_of(&prks.iter().collect::<Vec<_>>()));

    // The first blocks, repeated for those that are too large, until each is small enough.
    let mut tries = [0u16; HASHES];
    let mut undecided = 0u16;
    let mut infos = [[0; INFO_BYTES]; HASHES];
    let info_bytes = context.len() + 2;
    let (first, tails) = loop {
        for (info, number) in infos.iter_mut().zip(tries) {
            info[..context.len()].copy_from_slice(context);
            info[context.len()..info_bytes].copy_from_slice(&number.to_be_bytes());
        }
        let tails = Tails::new(&infos.each_ref().map(|info| &info[..info_bytes]));
        let first = hmac.authenticate(None, &tails, 1);
        let mut values = words(&first);
        let mut again = false;
        for (lane, (n, mask)) in integers.iter().zip(&masks).enumerate() {
            values[0].0[lane] &= mask;
            let value = values.iter().map(|words| words.0[lane]);
            let front = n.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).take(8);
            match value.cmp(front) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Greater if tries[lane] < u16::MAX => {
                    tries[lane] += 1;
                    again = true;
                }
                _ => undecided |= 1 << lane,
            }
        }
        wipe(&mut values);
        if !again {
            break (first, tails);
        }
    };

    let mut block = first;
    for index in 0..size / OUTPUT_BYTES {
        if index > 0 {
            let number = u8::try_from(index + 1).expect("at most 255 blocks");
            block = hmac.authenticate(Some(&block), &tails, number);
        }
        let mut values = words(&block);
        for (lane, out) in out.chunks_exact_mut(size).enumerate() {
            let out = out[index * OUTPUT_BYTES..].first_chunk_mut::<OUTPUT_BYTES>().expect("whole blocks");
            for (bytes, words) in out.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
                *bytes = words.0[lane].to_be_bytes();
            }
        }
        wipe(&mut values);
    }
    wipe_vectors(&mut block);
    hmac.wipe();
    for (out, n) in out.chunks_exact_mut(size).zip(integers) {
        out[0] &= u8::MAX >> n[0].leading_zeros();
    }
    undecided
}
