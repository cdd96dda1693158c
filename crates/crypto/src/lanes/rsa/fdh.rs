//! The full-domain hash of sixteen messages side by side: HKDF that expands with HMAC-SHA-256 (FIPS 180-4), sixteen
//! 32-bit lanes in a register. For public values.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_load_si512, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_srli_epi32, _mm512_store_si512, _mm512_ternarylogic_epi32,
};

use crate::lanes::curve::sha512_each;

/// Hashes side by side.
pub(crate) const HASHES: usize = 16;

/// Bytes of a block of the output.
const OUTPUT_BYTES: usize = 32;
/// What tells this use of the key derivation from others.
const CONTEXT: &[u8; 14] = b"RSA-FDA FTpsW!";

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

/// The salt of an extraction with HMAC-SHA-512 as the two blocks that the inner and the outer hash begin with.
pub(super) struct Salt {
    inner: [u8; 128],
    outer: [u8; 128],
}

impl Salt {
    pub(super) fn new(salt: &[u8]) -> Self {
        let mut key = [0; 128];
        if salt.len() > key.len() {
            key[..64].copy_from_slice(crate::hash::sha512(salt).as_bytes());
        } else {
            key[..salt.len()].copy_from_slice(salt);
        }
        Self { inner: key.map(|byte| byte ^ 0x36), outer: key.map(|byte| byte ^ 0x5c) }
    }
}

/// What one hash is of.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) salt: &'a Salt,
    pub(super) message: &'a [u8; 64],
    /// The modulus, big endian: a multiple of 32 bytes, the highest bit is one.
    pub(super) n: &'a [u8],
}

/// One word of sixteen hashes, as it lies in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Words([u32; HASHES]);

type State = [__m512i; 8];

#[target_feature(enable = "avx512f")]
#[inline]
fn load(words: &Words) -> __m512i {
    // SAFETY: there are the 64 bytes that are read, aligned so.
    unsafe { _mm512_load_si512((&raw const words.0).cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(words: &mut Words, vector: __m512i) {
    // SAFETY: there are the 64 bytes that are written, aligned so.
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

/// Sixteen HMAC-SHA-256 keys of 64 bytes: the states after the first block of the inner and the outer hash.
struct Hmac {
    inner: State,
    outer: State,
}

impl Hmac {
    #[target_feature(enable = "avx512f")]
    fn new(keys: &[[u8; 64]; HASHES]) -> Self {
        let padded = |pad: u32| {
            let mut block = [_mm512_setzero_si512(); 16];
            for (index, word) in block.iter_mut().enumerate() {
                let words = keys
                    .each_ref()
                    .map(|key| u32::from_be_bytes(*key[4 * index..].first_chunk().expect("16 words")) ^ pad);
                *word = load(&Words(words));
            }
            let mut initial = [_mm512_setzero_si512(); 8];
            for (word, constant) in initial.iter_mut().zip(INITIAL_STATE) {
                *word = same(constant);
            }
            compress(&initial, &block)
        };
        Self { inner: padded(0x3636_3636), outer: padded(0x5c5c_5c5c) }
    }

    /// The authenticators of messages of less than 56 bytes: `front`, if there is one, then [`suffix`], with zeros
    /// behind.
    #[target_feature(enable = "avx512f")]
    fn authenticate(&self, front: Option<&State>, suffix: &[__m512i; 5]) -> State {
        let mut block = [_mm512_setzero_si512(); 16];
        let mut bytes = 64 + SUFFIX_BYTES;
        let mut at = 0;
        if let Some(front) = front {
            block[..8].copy_from_slice(front);
            bytes += OUTPUT_BYTES;
            at = 8;
        }
        block[at..at + 5].copy_from_slice(suffix);
        block[15] = same(8 * bytes as u32);
        let digest = compress(&self.inner, &block);
        let mut block = [_mm512_setzero_si512(); 16];
        block[..8].copy_from_slice(&digest);
        block[8] = same(0x8000_0000);
        block[15] = same(8 * (64 + OUTPUT_BYTES) as u32);
        compress(&self.outer, &block)
    }
}

/// Context, number of the try (16 bits) and number of the block of the output.
const SUFFIX_BYTES: usize = CONTEXT.len() + 3;

/// The end of a message, with the bit that begins the padding.
#[target_feature(enable = "avx512f")]
fn suffix(tries: &[u16; HASHES], block: u8) -> [__m512i; 5] {
    let context = |at: usize| u32::from_be_bytes(*CONTEXT[at..].first_chunk().expect("four bytes are left"));
    let last = u32::from(u16::from_be_bytes([CONTEXT[12], CONTEXT[13]])) << 16;
    [
        same(context(0)),
        same(context(4)),
        same(context(8)),
        load(&Words(tries.map(|number| last | u32::from(number)))),
        same(u32::from(block) << 24 | 0x0080_0000),
    ]
}

/// The words of each hash.
#[target_feature(enable = "avx512f")]
fn words(state: &State) -> [Words; 8] {
    let mut words = [Words([0; HASHES]); 8];
    for (words, vector) in words.iter_mut().zip(state) {
        store(words, *vector);
    }
    words
}

/// The full-domain hashes of one to sixteen jobs, in the size of the moduli, which is the same for all. Nothing where
/// the first 256 bits are those of the modulus, which never happens by chance: the caller decides those alone.
#[target_feature(enable = "avx512f")]
pub(super) fn full_domain_hashes(jobs: &[Job<'_>]) -> Vec<Option<Vec<u8>>> {
    assert!((1..=HASHES).contains(&jobs.len()), "one to sixteen jobs");
    let size = jobs[0].n.len();
    assert!(size.is_multiple_of(OUTPUT_BYTES) && jobs.iter().all(|job| job.n.len() == size), "one size");
    let inner: Vec<_> = jobs.iter().map(|job| [&job.salt.inner[..], job.message, &[]]).collect();
    let inner = sha512_each(&inner, false);
    let outer: Vec<_> =
        jobs.iter().zip(&inner).map(|(job, hash)| [&job.salt.outer[..], &hash[..], &[]]).collect();
    let keys = sha512_each(&outer, false);
    let hmac = Hmac::new(&std::array::from_fn(|lane| *keys.get(lane).unwrap_or(&keys[0])));

    // The first blocks, again for those that come out too large, until there is one for each job.
    let mut tries = [0u16; HASHES];
    let mut undecided = vec![false; jobs.len()];
    let first = loop {
        let first = hmac.authenticate(None, &suffix(&tries, 1));
        let values = words(&first);
        let mut again = false;
        for (lane, job) in jobs.iter().enumerate() {
            let value = values.iter().map(|words| words.0[lane]);
            let front = job.n.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).take(8);
            match value.cmp(front) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => undecided[lane] = true,
                std::cmp::Ordering::Greater if tries[lane] == u16::MAX => undecided[lane] = true,
                std::cmp::Ordering::Greater => {
                    tries[lane] += 1;
                    again = true;
                }
            }
        }
        if !again {
            break first;
        }
    };

    let mut hashes = vec![Some(vec![0; size]); jobs.len()];
    let mut block = first;
    for index in 0..size / OUTPUT_BYTES {
        if index > 0 {
            let number = u8::try_from(index + 1).expect("at most 96 blocks");
            block = hmac.authenticate(Some(&block), &suffix(&tries, number));
        }
        let values = words(&block);
        for (lane, hash) in hashes.iter_mut().flatten().enumerate() {
            let out = hash[index * OUTPUT_BYTES..].first_chunk_mut::<OUTPUT_BYTES>().expect("whole blocks");
            for (bytes, words) in out.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
                *bytes = words.0[lane].to_be_bytes();
            }
        }
    }
    for (hash, undecided) in hashes.iter_mut().zip(undecided) {
        if undecided {
            *hash = None;
        }
    }
    hashes
}
