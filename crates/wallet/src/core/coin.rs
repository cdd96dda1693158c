//! Coins and their records in the wallet.

use batzen_crypto::{
    BlindingSecret, CryptoError, CsNonce, CsRPub, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    ExchangeWithdrawValues, HashCode, ShortHash,
};
use batzen_protocol::liabilities::Receipt;
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::age::CoinAge;
use super::encoding::text;
use super::id::OpId;
use crate::core::error::Result;

/// The status of a coin, which determines its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoinStatus {
    /// Unused: its key was never revealed. It may be spent.
    Fresh,
    /// Its key was revealed in a payment or refresh. The rest of its value is refreshed, never spent
    /// directly: two payments with one coin could be linked. (Earlier versions also froze coins that an
    /// exchange refused without proof.)
    #[serde(alias = "frozen")]
    Used,
    /// Worth nothing: past its deadlines by the terms that the master key signed, or proven to be spent
    /// elsewhere (by a copy of this wallet).
    Lost,
}

/// Origin of a coin, which a recoup needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoinSource {
    /// Withdrawn from a reserve.
    Withdrawal {
        /// The withdrawal operation.
        operation: OpId,
        /// The reserve's public key.
        reserve_pub: EddsaPublicKey,
    },
    /// Change of another coin.
    Refresh {
        /// The refresh operation.
        operation: OpId,
        /// The coin that was melted.
        old_coin_pub: EddsaPublicKey,
    },
    /// Withdrawn by a merchant from its own reserve.
    Tip {
        /// The tip operation.
        operation: OpId,
    },
}

impl CoinSource {
    /// The operation that created the coin.
    pub(crate) const fn operation(&self) -> OpId {
        match self {
            Self::Withdrawal { operation, .. }
            | Self::Refresh { operation, .. }
            | Self::Tip { operation } => *operation,
        }
    }
}

/// The exchange's first message of a Clause-Schnorr issue, with the nonce that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsSession {
    /// The wallet's nonce.
    pub(crate) nonce: CsNonce,
    /// R of index 0.
    pub(crate) r_0: CsRPub,
    /// R of index 1.
    pub(crate) r_1: CsRPub,
}

impl CsSession {
    /// Builds the session from the exchange's answer.
    ///
    /// # Errors
    /// [`CryptoError::CipherMismatch`] if the answer is for another cipher.
    pub(crate) fn new(nonce: CsNonce, values: &ExchangeWithdrawValues) -> Result<Self, CryptoError> {
        match *values {
            ExchangeWithdrawValues::Cs { r0, r1 } => Ok(Self { nonce, r_0: r0, r_1: r1 }),
            ExchangeWithdrawValues::Rsa => Err(CryptoError::CipherMismatch),
        }
    }
}

/// A coin: a key pair with the exchange's blind signature over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coin {
    /// Public key; identifies the coin.
    pub coin_pub: EddsaPublicKey,
    /// Private key. With the signature it is enough to spend the coin.
    pub coin_priv: EddsaPrivateKey,
    /// Blinding secret: proves the origin in a recoup.
    pub blinding: BlindingSecret,
    /// Clause-Schnorr coins only: the session, needed for recoup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cs: Option<CsSession>,
    /// Coins of age-restricted denominations only: the age commitment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<CoinAge>,
    /// Base URL of the exchange that issued it.
    pub exchange: String,
    /// Its denomination.
    pub h_denom_pub: HashCode,
    /// The exchange's signature, unblinded.
    pub denom_sig: DenomSignature,
    /// Its origin.
    pub source: CoinSource,
    /// Its status.
    pub status: CoinStatus,
    /// Remaining value, after deducting every operation that began, finished or not.
    #[serde(with = "text")]
    pub remaining: Money,
    /// When it was issued.
    pub created: Timestamp,
    /// Used coins only: its change waits until then for its refresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_at: Option<Timestamp>,
    /// The exchange's receipt for its signature, if it gives some and the wallet has asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Box<Receipt>>,
}

impl Coin {
    /// The hash of its age commitment, if it has one.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub fn h_age(&self) -> Result<Option<ShortHash>> {
        self.age.as_ref().map(CoinAge::hash).transpose()
    }

    /// The same in the form that signatures cover: all zero without commitment.
    pub(crate) fn signed_h_age(&self) -> Result<ShortHash> {
        Ok(self.h_age()?.unwrap_or(ShortHash::ZERO))
    }

    /// Returns whether it can pay where the payer must be at least `min_age` years old. A coin without
    /// commitment counts as an adult's.
    pub(crate) fn can_attest(&self, min_age: u32) -> bool {
        min_age == 0 || self.age.as_ref().is_none_or(|age| age.can_attest(min_age))
    }
}
