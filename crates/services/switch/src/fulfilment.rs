//! Conditions and fulfilments: the payee proves that it accepts a transfer with the preimage of a hash.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The condition that a fulfilment satisfies.
#[must_use]
pub fn condition_of(fulfilment: &[u8; 32]) -> [u8; 32] {
    Sha256::digest(fulfilment).into()
}

/// Returns whether a fulfilment satisfies a condition, compared in constant time.
#[must_use]
pub fn satisfies(fulfilment: &[u8; 32], condition: &[u8; 32]) -> bool {
    condition_of(fulfilment).ct_eq(condition).into()
}

/// Derives a payee's fulfilment from its secret and the packet of the quote, so that it need not be stored.
#[must_use]
pub fn fulfilment_of(secret: &[u8], packet: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any size");
    mac.update(packet);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{format_hash, parse_hash};

    #[test]
    fn vectors_of_the_specification() {
        let ascending: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let vectors = [
            (
                ascending,
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
                "Yw3NKWbEM2aRElRIu7JbT_QSpJxzLbLIq8G4WBvXEN0",
            ),
            (
                [0xff; 32],
                "__________________________________________8",
                "r5YTdg9yY1-9tEpaCmPDnxKvMPlQpu5clxvhiOicQFE",
            ),
            (
                fulfilment_of(&[7; 32], b"ledger-vector-packet"),
                "IBF4wSBW2f2c4lDHe0BjgP09XjJfQfaz6aeTY-x4xGs",
                "5OfHjJnrbMRxkXJyLyTKym4e2o3KRwjDtFzsgPMjwHI",
            ),
        ];
        for (fulfilment, text, condition) in vectors {
            assert_eq!(format_hash(&fulfilment), text);
            assert_eq!(parse_hash(text), Some(fulfilment));
            assert_eq!(format_hash(&condition_of(&fulfilment)), condition);
            assert!(satisfies(&fulfilment, &parse_hash(condition).unwrap()));
            assert!(!satisfies(&fulfilment, &[0; 32]));
        }
        // The same bytes with a spare bit set are rejected, since each value has only one spelling.
        assert_eq!(parse_hash("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9"), None);
    }
}
