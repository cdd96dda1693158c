//! Packet, fulfilment and condition, as the payee makes them when it answers a quote.
//!
//! fulfilment = HMAC-SHA-256(the payee's secret, packet), condition = SHA-256(fulfilment). The packet travels
//! unchanged, so the payee can compute the fulfilment again without having stored anything.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Length of fulfilments and conditions in bytes.
pub(crate) const HASH_BYTES: usize = 32;
/// The alphabet of base64url.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A payee's secret, ready for use.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// A secret of 32 bytes.
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length"))
    }

    /// The proof that the payee agrees to this packet.
    pub(crate) fn fulfilment(&self, packet: &[u8]) -> [u8; HASH_BYTES] {
        let mut mac = self.0.clone();
        mac.update(packet);
        mac.finalize().into_bytes().into()
    }
}

/// The hash of a fulfilment.
pub(crate) fn condition(fulfilment: &[u8; HASH_BYTES]) -> [u8; HASH_BYTES] {
    Sha256::digest(fulfilment).into()
}

/// A payment packet: type, length, amount, destination, data, no extensions. The `data` bytes of data are
/// derived from the transfer's id.
pub(crate) fn packet(out: &mut Vec<u8>, amount: u64, payee: &str, id: u128, data: usize) {
    out.clear();
    let content = 8 + 1 + 2 + payee.len() + length_bytes(data) + data + 1;
    out.push(1);
    length(out, content);
    out.extend_from_slice(&amount.to_be_bytes());
    length(out, 2 + payee.len());
    out.extend_from_slice(b"g.");
    out.extend_from_slice(payee.as_bytes());
    length(out, data);
    let id = id.to_be_bytes();
    out.extend(id.iter().cycle().take(data));
    out.push(0);
}

/// A length in OER: one byte if below 128, otherwise the number of bytes and the bytes.
fn length(out: &mut Vec<u8>, length: usize) {
    let [.., high, low] = length.to_be_bytes();
    match length {
        0..128 => out.push(low),
        128..256 => out.extend([0x81, low]),
        _ => out.extend([0x82, high, low]),
    }
}

const fn length_bytes(length: usize) -> usize {
    match length {
        0..128 => 1,
        128..256 => 2,
        _ => 3,
    }
}

/// Appends base64url without padding.
pub(crate) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let letter = |bits: u32| ALPHABET[(bits & 63) as usize];
    let mut chunks = bytes.chunks_exact(3);
    for chunk in &mut chunks {
        let bits = u32::from_be_bytes([0, chunk[0], chunk[1], chunk[2]]);
        out.extend([letter(bits >> 18), letter(bits >> 12), letter(bits >> 6), letter(bits)]);
    }
    match *chunks.remainder() {
        [one] => {
            let bits = u32::from(one) << 16;
            out.extend([letter(bits >> 18), letter(bits >> 12)]);
        }
        [one, two] => {
            let bits = u32::from(one) << 16 | u32::from(two) << 8;
            out.extend([letter(bits >> 18), letter(bits >> 12), letter(bits >> 6)]);
        }
        _ => {}
    }
}

/// Values of the characters; 255: not in the alphabet.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut index = 0;
    while index < 64 {
        let value = index as u8;
        values[ALPHABET[index] as usize] = value;
        index += 1;
    }
    values
};

/// Decodes base64url without padding into `out`; false if the text is invalid or not the canonical spelling.
pub(crate) fn decode(out: &mut Vec<u8>, text: &[u8]) -> bool {
    out.clear();
    let (mut bits, mut count) = (0_u32, 0_u32);
    for letter in text {
        let value = VALUES[usize::from(*letter)];
        if value == 255 {
            return false;
        }
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    count < 6 && bits & ((1 << count) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        encode(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    /// The vectors of the specification.
    #[test]
    fn fulfilments_and_conditions_are_those_of_the_specification() {
        let counting: [u8; 32] = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let made = Secret::new(&[7; 32]).fulfilment(b"ledger-vector-packet");
        for (fulfilment, spelled, condition_spelled) in [
            (
                counting,
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
                "Yw3NKWbEM2aRElRIu7JbT_QSpJxzLbLIq8G4WBvXEN0",
            ),
            (
                [0xff; 32],
                "__________________________________________8",
                "r5YTdg9yY1-9tEpaCmPDnxKvMPlQpu5clxvhiOicQFE",
            ),
            (
                made,
                "IBF4wSBW2f2c4lDHe0BjgP09XjJfQfaz6aeTY-x4xGs",
                "5OfHjJnrbMRxkXJyLyTKym4e2o3KRwjDtFzsgPMjwHI",
            ),
        ] {
            assert_eq!(text(&fulfilment), spelled);
            assert_eq!(text(&condition(&fulfilment)), condition_spelled);
        }
    }

    #[test]
    fn base64url_has_one_spelling() {
        let mut out = Vec::new();
        for length in 0..70_u8 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            assert!(decode(&mut out, text(&bytes).as_bytes()));
            assert_eq!(out, bytes);
        }
        for wrong in ["A", "AB", "AAB", "AA=", "A+AA", "A A"] {
            assert!(!decode(&mut out, wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn packets_state_their_length() {
        let mut out = Vec::new();
        for (data, head) in [(0, 2), (100, 2), (130, 3), (300, 4)] {
            packet(&mut out, 5, "fsp1", 7, data);
            let length = match head {
                2 => usize::from(out[1]),
                3 => usize::from(out[2]),
                _ => usize::from(out[2]) << 8 | usize::from(out[3]),
            };
            assert_eq!(length + head, out.len(), "{data} bytes of data");
        }
    }
}
