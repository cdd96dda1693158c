//! A coin as the wallet keeps it.

use batzen_crypto::{
    BlindingSecret, CryptoError, CsNonce, CsRPub, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    ExchangeWithdrawValues, HashCode,
};
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::encoding::text;
use super::state::OpId;

/// What may be done with a coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoinStatus {
    /// Never shown to anybody; may be spent.
    Fresh,
    /// Its key was shown in a payment or refresh. What is left on it is refreshed, never paid with: two payments with
    /// one coin could be linked. (Earlier versions froze coins that an exchange refused without proof.)
    #[serde(alias = "frozen")]
    Used,
    /// Past its deadlines by the terms that the master key signed, or proven to be spent elsewhere (a copy of this
    /// wallet). Worth nothing.
    Lost,
}

/// Where a coin came from; recoup needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoinSource {
    /// Withdrawn from a reserve.
    Withdrawal {
        /// The withdrawal.
        operation: OpId,
        /// The reserve.
        reserve_pub: EddsaPublicKey,
    },
    /// Change of another coin.
    Refresh {
        /// The refresh.
        operation: OpId,
        /// The coin that was melted.
        old_coin_pub: EddsaPublicKey,
    },
}

impl CoinSource {
    /// The operation that brought the coin.
    #[must_use]
    pub const fn operation(&self) -> OpId {
        match self {
            Self::Withdrawal { operation, .. } | Self::Refresh { operation, .. } => *operation,
        }
    }
}

/// The exchange's first message of a Clause-Schnorr issue, and the nonce it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsSession {
    /// Our nonce.
    pub nonce: CsNonce,
    /// R of index 0.
    pub r_0: CsRPub,
    /// R of index 1.
    pub r_1: CsRPub,
}

impl CsSession {
    /// From the exchange's answer.
    ///
    /// # Errors
    /// [`CryptoError::CipherMismatch`] if it answers for another cipher.
    pub fn new(nonce: CsNonce, values: &ExchangeWithdrawValues) -> Result<Self, CryptoError> {
        match *values {
            ExchangeWithdrawValues::Cs { r0, r1 } => Ok(Self { nonce, r_0: r0, r_1: r1 }),
            ExchangeWithdrawValues::Rsa => Err(CryptoError::CipherMismatch),
        }
    }
}

/// A coin: a key pair with the exchange's blind signature over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coin {
    /// Public key; its name.
    pub coin_pub: EddsaPublicKey,
    /// Private key: whoever has it and the signature owns the money.
    pub coin_priv: EddsaPrivateKey,
    /// What blinded it: the proof of origin in a recoup.
    pub blinding: BlindingSecret,
    /// Clause-Schnorr coins only: for recoup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cs: Option<CsSession>,
    /// Base URL of the exchange that issued it.
    pub exchange: String,
    /// Its denomination.
    pub h_denom_pub: HashCode,
    /// The exchange's signature, unblinded.
    pub denom_sig: DenomSignature,
    /// Where it came from.
    pub source: CoinSource,
    /// What may be done with it.
    pub status: CoinStatus,
    /// What is left on it after everything that was begun with it, finished or not.
    #[serde(with = "text")]
    pub remaining: Money,
    /// When it was issued.
    pub created: Timestamp,
}
