//! Crockford's base32 as the Taler exchange API uses it for every binary value in JSON, URLs and headers.
//!
//! The bytes are one bit string, most significant bit first, cut into groups of five bits; the last group is
//! filled up with zero bits. There is no padding. Encoders write upper case only; decoders also accept lower
//! case, `O` as 0, `I` and `L` as 1, and `U` as `V`, and ignore the surplus bits of the last character.

use thiserror::Error;

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Marks a byte outside the alphabet; any value with a bit above the low five would do.
const INVALID: u8 = 0xff;

const DECODE: [u8; 256] = {
    let mut table = [INVALID; 256];
    let mut value = 0;
    while value < 32 {
        let upper = ALPHABET[value];
        table[upper as usize] = value as u8;
        table[upper.to_ascii_lowercase() as usize] = value as u8;
        value += 1;
    }
    table[b'O' as usize] = 0;
    table[b'o' as usize] = 0;
    table[b'I' as usize] = 1;
    table[b'i' as usize] = 1;
    table[b'L' as usize] = 1;
    table[b'l' as usize] = 1;
    table[b'U' as usize] = 27;
    table[b'u' as usize] = 27;
    table
};

/// Why a text is not the base32 form of the expected value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Base32Error {
    /// A byte that is not in the alphabet.
    #[error("invalid base32 character at offset {offset}")]
    InvalidCharacter {
        /// Offset of the first such byte.
        offset: usize,
    },
    /// No value, or no value of the expected size, has this number of characters.
    #[error("base32 text of {actual} characters cannot hold the value")]
    InvalidLength {
        /// Number of characters (bytes) of the text.
        actual: usize,
    },
}

/// Number of characters that encode `bytes` bytes.
#[must_use]
pub const fn encoded_len(bytes: usize) -> usize {
    (bytes * 8).div_ceil(5)
}

/// Writes the text of `data` into `out`.
///
/// # Panics
///
/// Unless `out` has exactly [`encoded_len`] bytes.
fn encode_into(data: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), encoded_len(data.len()));
    let full = data.len() / 5;
    let (blocks, rest) = data.split_at(full * 5);
    let (out_blocks, out_rest) = out.split_at_mut(full * 8);
    for (block, chars) in blocks.chunks_exact(5).zip(out_blocks.chunks_exact_mut(8)) {
        let bits = (u64::from(block[0]) << 32)
            | (u64::from(block[1]) << 24)
            | (u64::from(block[2]) << 16)
            | (u64::from(block[3]) << 8)
            | u64::from(block[4]);
        for (position, char) in chars.iter_mut().enumerate() {
            *char = ALPHABET[((bits >> (35 - 5 * position)) & 31) as usize];
        }
    }
    let mut bits = 0u64;
    for &byte in rest {
        bits = (bits << 8) | u64::from(byte);
    }
    bits <<= 40 - 8 * rest.len();
    for (position, char) in out_rest.iter_mut().enumerate() {
        *char = ALPHABET[((bits >> (35 - 5 * position)) & 31) as usize];
    }
}

/// The text of `data`, in upper case.
#[must_use]
pub fn encode(data: &[u8]) -> String {
    let mut text = vec![0; encoded_len(data.len())];
    encode_into(data, &mut text);
    String::from_utf8(text).expect("the alphabet is ASCII")
}

/// Calls `with` with the text of `data`, without an allocation for values of up to 64 bytes.
pub fn with_encoded<T>(data: &[u8], with: impl FnOnce(&str) -> T) -> T {
    let mut buffer = [0; encoded_len(64)];
    match buffer.get_mut(..encoded_len(data.len())) {
        Some(text) => {
            encode_into(data, text);
            with(std::str::from_utf8(text).expect("the alphabet is ASCII"))
        }
        None => with(&encode(data)),
    }
}

fn decode_into(text: &[u8], out: &mut [u8]) -> Result<(), Base32Error> {
    if text.len() != encoded_len(out.len()) {
        return Err(Base32Error::InvalidLength { actual: text.len() });
    }
    let full = out.len() / 5;
    let (blocks, rest) = text.split_at(full * 8);
    let (out_blocks, out_rest) = out.split_at_mut(full * 5);
    // Invalid characters are collected and checked once at the end, which keeps branches out of the loop.
    let mut seen = 0;
    for (chars, block) in blocks.chunks_exact(8).zip(out_blocks.chunks_exact_mut(5)) {
        let mut bits = 0u64;
        for &char in chars {
            let value = DECODE[usize::from(char)];
            seen |= value;
            bits = (bits << 5) | u64::from(value & 31);
        }
        block.copy_from_slice(&bits.to_be_bytes()[3..]);
    }
    let mut bits = 0u64;
    for &char in rest {
        let value = DECODE[usize::from(char)];
        seen |= value;
        bits = (bits << 5) | u64::from(value & 31);
    }
    bits <<= 40 - 5 * rest.len();
    let tail = out_rest.len();
    out_rest.copy_from_slice(&bits.to_be_bytes()[3..3 + tail]);
    if seen & !31 != 0 {
        let offset = text.iter().position(|&char| DECODE[usize::from(char)] == INVALID);
        return Err(Base32Error::InvalidCharacter { offset: offset.expect("an invalid character was seen") });
    }
    Ok(())
}

/// The bytes of a text of any length.
///
/// # Errors
///
/// If the text has a character outside the alphabet, or a length that no value has.
pub fn decode(text: &str) -> Result<Vec<u8>, Base32Error> {
    // Divide before multiplying, so that no length overflows.
    let len = text.len() / 8 * 5 + text.len() % 8 * 5 / 8;
    let mut out = vec![0; len];
    decode_into(text.as_bytes(), &mut out)?;
    Ok(out)
}

/// The `N` bytes of a text.
///
/// # Errors
///
/// If the text has a character outside the alphabet, or not exactly the length of `N` bytes.
pub fn decode_array<const N: usize>(text: &str) -> Result<[u8; N], Base32Error> {
    let mut out = [0; N];
    decode_into(text.as_bytes(), &mut out)?;
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lenient_characters_and_surplus_bits() {
        assert_eq!(decode_array::<1>("oO").unwrap(), [0]);
        assert_eq!(decode_array::<1>("iL").unwrap(), [0b0000_1000]);
        assert_eq!(decode("u8"), decode("V8"));
        assert_eq!(decode_array::<1>("ZZ").unwrap(), [0xff], "surplus bits are ignored");
        assert_eq!(decode("").unwrap(), b"");
        for bad in ["0", "000", "000000"] {
            assert_eq!(decode(bad), Err(Base32Error::InvalidLength { actual: bad.len() }));
        }
        assert_eq!(decode("0-"), Err(Base32Error::InvalidCharacter { offset: 1 }));
        assert_eq!(decode("00000000=0"), Err(Base32Error::InvalidCharacter { offset: 8 }));
        assert!(decode_array::<2>("00").is_err());
        assert!(decode("Ü").is_err());
    }

    proptest! {
        #[test]
        fn round_trip(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = encode(&data);
            prop_assert_eq!(&decode(&text).unwrap(), &data);
            prop_assert_eq!(&decode(&text.to_lowercase()).unwrap(), &data);
            with_encoded(&data, |same| assert_eq!(same, text));
        }

        #[test]
        fn decoding_never_panics(text in ".{0,40}") {
            let _ = decode(&text);
            let _ = decode_array::<16>(&text);
        }
    }
}
