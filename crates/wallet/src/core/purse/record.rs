//! The stored records of payments between people.

use batzen_crypto::{EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Base32Data, Money, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::CoreError;
use super::super::encoding::text;
use super::super::kyc::KycWanted;
use super::super::select::Contribution;

/// The direction of a payment between people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The payer sends money.
    Push,
    /// The receiver requests it.
    Pull,
}

/// The terms of a payment between people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurseTerms {
    /// The amount for the receiver.
    #[serde(with = "text")]
    pub amount: Money,
    /// The payer's or receiver's description.
    pub summary: String,
    /// When the purse expires.
    pub expiration: Timestamp,
    /// Minimum age of the payer; 0 if there is none.
    pub min_age: u32,
    pub(crate) h_contract_terms: HashCode,
    /// The contract as it was encrypted.
    pub(crate) contract: Value,
}

/// A confirmation that the exchange signed: that a purse exists, or that it was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurseProof {
    /// The amount in it: paid into the purse so far, or paid to the reserve.
    #[serde(with = "text")]
    pub total: Money,
    /// Time of the exchange.
    pub(crate) exchange_timestamp: Timestamp,
    /// The signing key.
    pub(crate) exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_CONFIRM_PURSE_CREATION` or `EXCHANGE_CONFIRM_PURSE_MERGED`.
    pub(crate) exchange_sig: EddsaSignature,
}

/// A statement about a purse that the exchange signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedStatus {
    /// The amount in the purse.
    #[serde(with = "text")]
    pub(crate) balance: Money,
    /// When it was merged; `never` if it was not.
    pub(crate) merge_timestamp: Timestamp,
    /// Zero while it is not full.
    pub(crate) deposit_timestamp: Timestamp,
    pub(crate) exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_PURSE_STATUS`.
    pub(crate) exchange_sig: EddsaSignature,
}

impl SignedStatus {
    /// Returns whether the purse was merged into a reserve.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        !self.merge_timestamp.is_never() && self.merge_timestamp != Timestamp::ZERO
    }
}

/// Where the contribution of a coin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartState {
    /// In the purse, or with the receiver.
    Spent,
    /// Back on the coin.
    Returned,
    /// Back on the coin by this wallet's books. The exchange has not said whether it agrees; if not, it proves
    /// that when the coin is used again.
    Doubtful,
}

/// One coin of a payment into a purse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PursePart {
    /// The coin's public key.
    pub coin_pub: EddsaPublicKey,
    /// Its contribution, deposit fee included.
    #[serde(with = "text")]
    pub amount: Money,
    #[serde(with = "text")]
    pub(crate) fee_deposit: Money,
    /// Where the contribution is.
    pub state: PartState,
}

/// Stage of a payment into a purse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PayStage {
    /// Not confirmed: not sent yet, or sent without an answer.
    Send,
    /// Push: in the purse, and nobody has accepted it yet.
    Open,
    /// Push: the purse is to be deleted, because the payer wants the money back or it expired.
    Delete,
    /// Push: the exchange did not delete it. Its state tells why.
    Decided,
    /// The receiver has the money.
    Done,
    /// The money is back.
    Returned,
    /// Refused, or declined by the user.
    Failed,
}

/// A payment into a purse: money sent, or a request paid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PursePayment {
    pub(crate) direction: Direction,
    /// Push: the purse's private key, which creates and deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) purse_priv: Option<EddsaPrivateKey>,
    /// The purse's public key.
    pub purse_pub: EddsaPublicKey,
    /// Push: the merge key, for the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merge_priv: Option<EddsaPrivateKey>,
    /// The private contract key, which is in the URI.
    pub contract_priv: EcdhePrivateKey,
    /// Push: the encrypted contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) econtract: Option<Base32Data>,
    pub(crate) terms: PurseTerms,
    /// The coins, in the random order in which they are sent.
    pub coins: Vec<PursePart>,
    /// Refused contributions. If the exchange lists one of them later, one of its answers was false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<PursePart>,
    /// The progress of the payment.
    pub stage: PayStage,
    /// The exchange's confirmation of what was paid in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirmation: Option<PurseProof>,
    /// The exchange's last statement about the purse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<SignedStatus>,
    /// Why the money came back, or why the payment failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl PursePayment {
    /// Adds coins that were taken for it.
    pub(crate) fn take(&mut self, contributions: Vec<Contribution>) {
        self.coins.extend(contributions.into_iter().map(|part| PursePart {
            coin_pub: part.coin_pub,
            amount: part.amount,
            fee_deposit: part.fee_deposit,
            state: PartState::Spent,
        }));
    }

    /// Sum of the contributions that are not back, and of the deposit fees in them.
    ///
    /// # Errors
    /// On overflow, which cannot happen in this wallet's records.
    pub(crate) fn totals(&self) -> Result<(Money, Money), CoreError> {
        let spent = || self.coins.iter().filter(|part| part.state == PartState::Spent);
        let total = Money::checked_sum(spent().map(|part| part.amount))?;
        let fees = Money::checked_sum(spent().map(|part| part.fee_deposit))?;
        Ok((total, fees))
    }
}

/// Stage of an income through a purse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IncomeStage {
    /// Push: the purse is to be merged into the reserve.
    Merge,
    /// Pull: the purse is to be created.
    Create,
    /// Pull: nobody has paid yet.
    Await,
    /// Pull: the purse is to be deleted, because the user has withdrawn the request.
    Delete,
    /// Pull: the exchange did not delete it. Its state tells why.
    Decided,
    /// It expired or was refused. The reserve's history tells whether it was paid before.
    Check {
        /// Timestamp of the history request. The exchange accepts only its current time.
        time: Timestamp,
    },
    /// The reserve has the money.
    Done,
    /// Refused, expired, or declined by the user.
    Failed,
}

/// An income through a purse: money received, or requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurseIncome {
    pub(crate) direction: Direction,
    /// Pull: the purse's private key, which creates and deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) purse_priv: Option<EddsaPrivateKey>,
    /// The purse's public key.
    pub purse_pub: EddsaPublicKey,
    pub(crate) merge_priv: EddsaPrivateKey,
    /// The private contract key, which is in the URI.
    pub contract_priv: EcdhePrivateKey,
    /// Pull: the encrypted contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) econtract: Option<Base32Data>,
    pub(crate) terms: PurseTerms,
    /// The reserve that gets the money: the same for all purses of an exchange.
    pub(crate) reserve_priv: EddsaPrivateKey,
    /// Time of the merge by this wallet.
    pub(crate) merge_timestamp: Timestamp,
    /// The progress of the receipt.
    pub stage: IncomeStage,
    /// Set while the exchange requires an identity check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kyc: Option<KycWanted>,
    /// Pull: the exchange's confirmation of the purse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirmation: Option<PurseProof>,
    /// Push: the exchange's confirmation of the merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merge: Option<PurseProof>,
    /// The exchange's last statement about the purse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<SignedStatus>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl PurseIncome {
    /// The amount that counts as coming in or received. A request counts once it is paid.
    pub(crate) fn expected(&self) -> Money {
        match self.stage {
            IncomeStage::Merge | IncomeStage::Done => self.terms.amount,
            _ => Money::ZERO,
        }
    }
}
