//! The stored record of a refresh.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, RefreshMasterSecret};
use batzen_protocol::Money;
use serde::{Deserialize, Serialize};

use super::super::CoreError;
use super::super::coin::CsSession;
use super::super::encoding::text;

/// Why a coin is refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefreshReason {
    /// The coin is used: change of a payment, or a refund.
    Change,
    /// The coin's denomination expires soon.
    Expiry,
}

/// Stage of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefreshStage {
    /// Fetch the exchange's first messages for Clause-Schnorr coins.
    Prepare,
    /// Commit to the fresh coins and debit the old one.
    Melt,
    /// Open two candidates and fetch the coins of the third.
    Reveal,
    /// The fresh coins are in the wallet.
    Done,
    /// Refused before anything was debited.
    Failed,
    /// Debited, but the fresh coins can no longer be fetched.
    Lost,
}

/// A fresh coin to be issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreshRecord {
    pub(crate) h_denom_pub: HashCode,
    /// The exchange's first message, for Clause-Schnorr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cs: Option<CsSession>,
}

/// A refresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refresh {
    /// Reason.
    pub reason: RefreshReason,
    /// The old coin, which is melted.
    pub old_coin_pub: EddsaPublicKey,
    /// Secret from which (with the old coin's key) all transfer keys and nonces derive.
    pub secret: RefreshMasterSecret,
    /// Amount taken from the old coin, melt fee included.
    #[serde(with = "text")]
    pub amount: Money,
    /// The melt fee in it.
    #[serde(with = "text")]
    pub fee_melt: Money,
    /// Sum of the withdraw fees in it.
    #[serde(with = "text")]
    pub fees_withdraw: Money,
    /// Coins to be issued.
    pub fresh: Vec<FreshRecord>,
    /// The commitment, fixed before the melt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rc: Option<HashCode>,
    /// The candidate that the exchange picked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noreveal_index: Option<u32>,
    /// The signing key of the exchange, and its confirmation of the melt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<(EddsaPublicKey, EddsaSignature)>,
    /// Its stage.
    pub stage: RefreshStage,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Refresh {
    /// Total value of the fresh coins.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub(crate) fn value(&self) -> Result<Money, CoreError> {
        Ok(self.amount.checked_sub(self.fee_melt)?.checked_sub(self.fees_withdraw)?)
    }
}
