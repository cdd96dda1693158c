//! The exchange's signed word that it has signed a planchet, with the date.
//!
//! A blind signature proves nothing to others: whoever has a coin can blind it again and so make up a planchet that
//! the coin's signature fits. So a wallet asks for a receipt, which only the exchange can make, and which says when.

use crate::Timestamp;
use crate::signatures::{ExchangeConfirmIssued, SignedMessage};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use serde::{Deserialize, Serialize};

use crate::liabilities::statement::{Fault, SigningKey};

/// A receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// When the exchange signed the planchet.
    pub timestamp: Timestamp,
    /// Hash of the denomination key.
    pub h_denom_pub: HashCode,
    /// Hash of the blinded planchet.
    pub h_coin_ev: HashCode,
    /// The exchange's signature.
    pub exchange_sig: EddsaSignature,
    /// The key that made it.
    pub signing_key: SigningKey,
}

impl Receipt {
    /// The message that the exchange signs.
    #[must_use]
    pub fn message(&self) -> ExchangeConfirmIssued {
        ExchangeConfirmIssued {
            timestamp: self.timestamp,
            h_denom_pub: self.h_denom_pub,
            h_coin_ev: self.h_coin_ev,
        }
    }

    /// Checks the signatures.
    ///
    /// # Errors
    /// [`Fault::Signature`].
    pub fn check(&self, master_pub: &EddsaPublicKey) -> Result<(), Fault> {
        let is_right = self.signing_key.is_of(master_pub)
            && self.message().verify(&self.signing_key.key, &self.exchange_sig);
        if is_right { Ok(()) } else { Err(Fault::Signature) }
    }
}
