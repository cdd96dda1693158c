//! Age-restricted coins: which ages a coin's owner can prove.
//!
//! A coin of an age-restricted denomination commits to one key for each age group. Its owner has the private
//! keys only up to the group of the coin's age limit. The keys are random and the others are destroyed at
//! once, so nothing in the wallet's file can prove more than the limit.

use batzen_crypto::age::UNRESTRICTED;
use batzen_crypto::{
    AgeCommitment, AgeCommitmentProof, AgeMask, AgePrivateKey, AgePublicKey, AgeSignature, ShortHash,
    TransferSecret,
};
use serde::{Deserialize, Serialize};

use super::Entropy;
use crate::core::error::Result;

/// The age restriction of the coins of a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeLimit {
    /// The age groups of the denominations.
    pub(crate) mask: u32,
    /// The highest age that the coins can prove; 32 for any.
    pub(crate) limit: u8,
}

impl AgeLimit {
    /// A limit for coins of denominations with these age groups; `None` for no limit.
    #[must_use]
    pub(crate) fn new(mask: u32, limit: Option<u8>) -> Self {
        Self { mask, limit: limit.unwrap_or(UNRESTRICTED).min(UNRESTRICTED) }
    }
}

/// The age commitment of a coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoinAge {
    /// The age groups of its denomination.
    pub(crate) mask: u32,
    /// The highest age that it can prove; 32 for any.
    pub limit: u8,
    /// The public keys, one for each group above the lowest.
    pub(crate) keys: Vec<AgePublicKey>,
    /// The private keys of the groups whose ages it can prove.
    pub(crate) privs: Vec<AgePrivateKey>,
}

impl CoinAge {
    /// A new commitment.
    pub(crate) fn draw(age: AgeLimit, entropy: &mut dyn Entropy) -> Result<Self> {
        let proof = AgeCommitmentProof::with_keys(AgeMask::new(age.mask)?, age.limit, |_| {
            AgePrivateKey::from_seed(&entropy.array::<32>())
        });
        Ok(Self::of(&proof, age.limit))
    }

    fn of(proof: &AgeCommitmentProof, limit: u8) -> Self {
        let commitment = proof.commitment();
        Self {
            mask: commitment.mask().bits(),
            limit,
            keys: commitment.keys().to_vec(),
            privs: proof.private_keys().to_vec(),
        }
    }

    /// The public part.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub(crate) fn commitment(&self) -> Result<AgeCommitment> {
        Ok(AgeCommitment::new(AgeMask::new(self.mask)?, self.keys.clone())?)
    }

    /// Its hash, which the coin's denomination signature and its own signatures cover.
    ///
    /// # Errors
    /// As [`CoinAge::commitment`].
    pub(crate) fn hash(&self) -> Result<ShortHash> {
        Ok(self.commitment()?.hash())
    }

    fn proof(&self) -> Result<AgeCommitmentProof> {
        Ok(AgeCommitmentProof::new(self.commitment()?, self.privs.clone())?)
    }

    /// The commitment of the coin's change, with the same limit.
    pub(crate) fn derive(&self, secret: &TransferSecret) -> Result<Self> {
        Ok(Self::of(&self.proof()?.derive(secret.as_bytes())?, self.limit))
    }

    /// Returns whether it can prove an age.
    #[must_use]
    pub fn can_attest(&self, age: u32) -> bool {
        AgeMask::new(self.mask).is_ok_and(|mask| mask.group(years(age)) <= self.privs.len())
    }

    /// Proves an age of at least `age`.
    ///
    /// # Errors
    /// If the coin's limit is lower.
    pub(crate) fn attest(&self, age: u32) -> Result<AgeSignature> {
        Ok(self.proof()?.attest(years(age))?)
    }
}

/// No age group begins above 31, so every higher age counts as the highest.
fn years(age: u32) -> u8 {
    u8::try_from(age).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SeededEntropy;

    const GROUPS: &str = "8:10:12:14:16:18:21";

    #[test]
    fn a_limit_is_kept_by_change_and_cannot_be_exceeded() {
        let mask: AgeMask = GROUPS.parse().unwrap();
        let mut entropy = SeededEntropy::new(1);
        let age = CoinAge::draw(AgeLimit::new(mask.bits(), Some(14)), &mut entropy).unwrap();
        let change = age.derive(&TransferSecret::from_bytes([3; 64])).unwrap();
        assert_ne!(age.hash().unwrap(), change.hash().unwrap());
        for coin in [&age, &change] {
            assert_eq!((coin.keys.len(), coin.privs.len(), coin.limit), (7, 4, 14));
            assert!(coin.can_attest(0) && coin.can_attest(15) && !coin.can_attest(16));
            let proof = coin.attest(14).unwrap();
            assert!(coin.commitment().unwrap().verify(14, &proof));
            assert!(!coin.commitment().unwrap().verify(16, &proof));
            assert!(coin.attest(16).is_err() && coin.attest(99).is_err());
        }
        let free = CoinAge::draw(AgeLimit::new(mask.bits(), None), &mut entropy).unwrap();
        assert!(free.can_attest(21) && free.can_attest(u32::MAX) && free.attest(99).is_ok());
    }
}
