//! SHA-512 of eight messages side by side.

use std::arch::x86_64::{
    __m512i, _mm_set_epi64x, _mm512_add_epi64, _mm512_broadcast_i32x4, _mm512_mask_blend_epi64,
    _mm512_ror_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srli_epi64,
    _mm512_ternarylogic_epi64,
};

use super::vector::{load_bytes, store, transpose};

const BLOCK_BYTES: usize = 128;

const INITIAL_STATE: [u64; 8] = [
    0x6a09e667f3bcc908,
    0xbb67ae8584caa73b,
    0x3c6ef372fe94f82b,
    0xa54ff53a5f1d36f1,
    0x510e527fade682d1,
    0x9b05688c2b3e6c1f,
    0x1f83d9abfb41bd6b,
    0x5be0cd19137e2179,
];

const ROUND_CONSTANTS: [u64; 80] = [
    0x428a2f98d728ae22,
    0x7137449123ef65cd,
    0xb5c0fbcfec4d3b2f,
    0xe9b5dba58189dbbc,
    0x3956c25bf348b538,
    0x59f111f1b605d019,
    0x923f82a4af194f9b,
    0xab1c5ed5da6d8118,
    0xd807aa98a3030242,
    0x12835b0145706fbe,
    0x243185be4ee4b28c,
    0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f,
    0x80deb1fe3b1696b1,
    0x9bdc06a725c71235,
    0xc19bf174cf692694,
    0xe49b69c19ef14ad2,
    0xefbe4786384f25e3,
    0x0fc19dc68b8cd5b5,
    0x240ca1cc77ac9c65,
    0x2de92c6f592b0275,
    0x4a7484aa6ea6e483,
    0x5cb0a9dcbd41fbd4,
    0x76f988da831153b5,
    0x983e5152ee66dfab,
    0xa831c66d2db43210,
    0xb00327c898fb213f,
    0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2,
    0xd5a79147930aa725,
    0x06ca6351e003826f,
    0x142929670a0e6e70,
    0x27b70a8546d22ffc,
    0x2e1b21385c26c926,
    0x4d2c6dfc5ac42aed,
    0x53380d139d95b3df,
    0x650a73548baf63de,
    0x766a0abb3c77b2a8,
    0x81c2c92e47edaee6,
    0x92722c851482353b,
    0xa2bfe8a14cf10364,
    0xa81a664bbc423001,
    0xc24b8b70d0f89791,
    0xc76c51a30654be30,
    0xd192e819d6ef5218,
    0xd69906245565a910,
    0xf40e35855771202a,
    0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8,
    0x1e376c085141ab53,
    0x2748774cdf8eeb99,
    0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63,
    0x4ed8aa4ae3418acb,
    0x5b9cca4f7763e373,
    0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc,
    0x78a5636f43172f60,
    0x84c87814a1f0ab72,
    0x8cc702081a6439ec,
    0x90befffa23631e28,
    0xa4506cebde82bde9,
    0xbef9a3f7b2c67915,
    0xc67178f2e372532b,
    0xca273eceea26619c,
    0xd186b8c721c0c207,
    0xeada7dd6cde0eb1e,
    0xf57d4f7fee6ed178,
    0x06f067aa72176fba,
    0x0a637dc5a2c898a6,
    0x113f9804bef90dae,
    0x1b710b35131c471b,
    0x28db77f523047d84,
    0x32caab7b40c72493,
    0x3c9ebe0a15c9bebc,
    0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6,
    0x597f299cfc657e2a,
    0x5fcb6fab3ad6faec,
    0x6c44198c4a475817,
];

/// Size of a message of this length with its padding.
pub(super) fn padded_bytes(message_bytes: usize) -> usize {
    (message_bytes + 17).next_multiple_of(BLOCK_BYTES)
}

/// Appends the concatenation of `parts` with the padding of SHA-512 to the empty `buffer`.
pub(super) fn pad(buffer: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        buffer.extend_from_slice(part);
    }
    let bytes = buffer.len();
    buffer.push(0x80);
    buffer.resize(padded_bytes(bytes) - 16, 0);
    buffer.extend_from_slice(&(bytes as u128 * 8).to_be_bytes());
}

/// The hashes of eight messages prepared with [`pad`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
pub(super) fn sha512_padded(messages: &[&[u8]; 8]) -> [[u8; 64]; 8] {
    let blocks = messages.map(|message| message.as_chunks::<BLOCK_BYTES>().0);
    let longest = blocks.iter().map(|blocks| blocks.len()).max().expect("there are eight");
    let mut state = [_mm512_setzero_si512(); 8];
    for (word, initial) in state.iter_mut().zip(INITIAL_STATE) {
        *word = _mm512_set1_epi64(initial.cast_signed());
    }
    for index in 0..longest {
        // Lanes whose message has ended keep their state.
        let mut current = [&[0; BLOCK_BYTES]; 8];
        let mut active = 0u8;
        for lane in 0..8 {
            if let Some(block) = blocks[lane].get(index) {
                current[lane] = block;
                active |= 1 << lane;
            }
        }
        let next = compress(&state, &current);
        for (word, next) in state.iter_mut().zip(next) {
            *word = _mm512_mask_blend_epi64(active, *word, next);
        }
    }
    let mut hashes = [[0; 64]; 8];
    for (hash, words) in hashes.iter_mut().zip(transpose(&state)) {
        for (bytes, word) in hash.as_chunks_mut::<8>().0.iter_mut().zip(store(words)) {
            *bytes = word.to_be_bytes();
        }
    }
    hashes
}

/// The compression function.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn compress(state: &[__m512i; 8], blocks: &[&[u8; BLOCK_BYTES]; 8]) -> [__m512i; 8] {
    // Reverses the bytes of each word.
    let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607));
    let mut halves = [[_mm512_setzero_si512(); 8]; 2];
    for lane in 0..8 {
        let (chunks, _) = blocks[lane].as_chunks::<64>();
        for half in 0..2 {
            halves[half][lane] = _mm512_shuffle_epi8(load_bytes(&chunks[half]), swap);
        }
    }
    let mut schedule = [_mm512_setzero_si512(); 16];
    schedule[..8].copy_from_slice(&transpose(&halves[0]));
    schedule[8..].copy_from_slice(&transpose(&halves[1]));

    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (sixteen, constants) in ROUND_CONSTANTS.as_chunks::<16>().0.iter().enumerate() {
        for i in 0..16 {
            let constant = _mm512_set1_epi64(constants[i].cast_signed());
            // Truth tables: 0x96 is the exclusive or of three, 0xca a choice, 0xe8 a majority.
            let sum1 = _mm512_ternarylogic_epi64::<0x96>(
                _mm512_ror_epi64::<14>(e),
                _mm512_ror_epi64::<18>(e),
                _mm512_ror_epi64::<41>(e),
            );
            let choice = _mm512_ternarylogic_epi64::<0xca>(e, f, g);
            let input = _mm512_add_epi64(_mm512_add_epi64(h, constant), schedule[i]);
            let t1 = _mm512_add_epi64(_mm512_add_epi64(sum1, choice), input);
            let sum0 = _mm512_ternarylogic_epi64::<0x96>(
                _mm512_ror_epi64::<28>(a),
                _mm512_ror_epi64::<34>(a),
                _mm512_ror_epi64::<39>(a),
            );
            let majority = _mm512_ternarylogic_epi64::<0xe8>(a, b, c);
            (h, g, f, e) = (g, f, e, _mm512_add_epi64(d, t1));
            (d, c, b, a) = (c, b, a, _mm512_add_epi64(t1, _mm512_add_epi64(sum0, majority)));
            if sixteen < 4 {
                let (w1, w14) = (schedule[(i + 1) % 16], schedule[(i + 14) % 16]);
                let small0 = _mm512_ternarylogic_epi64::<0x96>(
                    _mm512_ror_epi64::<1>(w1),
                    _mm512_ror_epi64::<8>(w1),
                    _mm512_srli_epi64::<7>(w1),
                );
                let small1 = _mm512_ternarylogic_epi64::<0x96>(
                    _mm512_ror_epi64::<19>(w14),
                    _mm512_ror_epi64::<61>(w14),
                    _mm512_srli_epi64::<6>(w14),
                );
                let sum = _mm512_add_epi64(schedule[i], schedule[(i + 9) % 16]);
                schedule[i] = _mm512_add_epi64(sum, _mm512_add_epi64(small0, small1));
            }
        }
    }
    let mut next = [a, b, c, d, e, f, g, h];
    for (word, old) in next.iter_mut().zip(state) {
        *word = _mm512_add_epi64(*word, *old);
    }
    next
}
