//! Ed25519 verification of a whole batch by one equation, as some libraries offer it. It serves only as a
//! rival to compare with; payments are never verified this way.
//!
//! Random multiples of the equations of all signatures are added up, and the sum is checked. That is faster
//! than checking one equation after another, but the verdicts differ from the protocol's: points of small
//! order can change the result, and a batch with one wrong signature does not show which one it is.

use std::hint::black_box;

use ed25519_dalek::{Signature, VerifyingKey};

use super::{BATCH, Material};
use crate::bench::load::meter::Rival;

impl Material {
    /// The code that verifies one batch of Ed25519 signatures by one equation. Keys are decoded from bytes
    /// each time, because every coin has its own key.
    pub(crate) fn one_equation(&self) -> Rival<'_> {
        let messages: Vec<&[u8]> = self.coins.iter().map(|coin| &coin.message[..]).collect();
        let signatures: Vec<_> =
            self.coins.iter().map(|coin| Signature::from_bytes(coin.coin_sig.as_bytes())).collect();
        let is_valid = move || {
            let keys: Result<Vec<_>, _> =
                self.coins.iter().map(|coin| VerifyingKey::from_bytes(coin.public.as_bytes())).collect();
            keys.is_ok_and(|keys| {
                ed25519_dalek::verify_batch(black_box(&messages), &signatures, &keys).is_ok()
            })
        };
        assert!(is_valid(), "made by ourselves");
        Rival::new(u32::try_from(BATCH).expect("a small number"), move || {
            black_box(is_valid());
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::bench::load::meter::{self, Effort};
    use crate::bench::scenarios::ceiling::{Cipher, Material};

    #[test]
    fn valid_signatures_verify_and_invalid_ones_do_not() {
        let mut material = Material::new(Cipher::Cs).unwrap();
        let tiny = Effort { rounds: 1, turn: std::time::Duration::from_micros(1) };
        let us = meter::best_us(tiny, &mut [material.one_equation()]);
        assert!(us[0] > 0.0 && us[0] < 1e6, "{us:?}");
        material.coins[17].message[0] ^= 1;
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(material.one_equation())));
        assert!(wrong.is_err(), "a message that was changed passes");
    }
}
