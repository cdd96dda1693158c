//! Members of the exchange's error answers besides `hint`, `code` and `detail`.
//!
//! Use them with [`ErrorBody`](crate::ErrorBody), e.g. `ErrorBody::with(code, DenominationUnknown { … })`.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use serde::{Deserialize, Serialize};

use super::{CoinHistoryItem, ReserveHistoryItem};
use crate::{Amount, Timestamp};

/// Proof that the exchange does not know a denomination, or that its cipher does not fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenominationUnknown {
    /// The time.
    pub timestamp: Timestamp,
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_AFFIRM_DENOM_UNKNOWN`.
    pub exchange_sig: EddsaSignature,
}

/// Proof that a denomination cannot be used for an operation at this time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenominationUnusable {
    /// The operation.
    pub oper: String,
    /// The time.
    pub timestamp: Timestamp,
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_AFFIRM_DENOM_EXPIRED`.
    pub exchange_sig: EddsaSignature,
}

/// Proof that an operation conflicts with the coin's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinConflict {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The denomination under which the exchange knows it.
    pub h_denom_pub: HashCode,
    /// Its history.
    pub history: Vec<CoinHistoryItem>,
}

/// Proof that a reserve cannot pay the requested amount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsufficientReserve {
    /// The balance.
    pub balance: Amount,
    /// The requested amount.
    pub requested_amount: Amount,
    /// The complete history.
    pub history: Vec<ReserveHistoryItem>,
}

/// The owner of an account must first be identified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KycRequired {
    /// The account.
    pub h_payto: ShortHash,
    /// The requirement, for `/kyc-check`.
    pub requirement_row: u64,
}

/// A reveal did not fit its melt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitmentViolation {
    /// Commitment computed from the revealed values.
    pub rc_expected: HashCode,
}

/// The purse exists with other terms; these are the stored ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseCreateConflict {
    /// Target amount of the purse.
    pub amount: Amount,
    /// Minimum age.
    pub min_age: u32,
    /// When it expires.
    pub purse_expiration: Timestamp,
    /// `WALLET_PURSE_CREATE`.
    pub purse_sig: EddsaSignature,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// Merge key.
    pub merge_pub: EddsaPublicKey,
}

/// The purse was already merged, with these terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseMergeConflict {
    /// The time.
    pub merge_timestamp: Timestamp,
    /// `WALLET_PURSE_MERGE`.
    pub merge_sig: EddsaSignature,
    /// The exchange that has the reserve. A merge into a reserve at this exchange leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partner_url: Option<String>,
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
}

/// The coin was paid into the purse before with another signature; this is the stored deposit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseDepositConflict {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// `WALLET_PURSE_DEPOSIT`.
    pub coin_sig: EddsaSignature,
    /// Its denomination.
    pub h_denom_pub: HashCode,
    /// Hash of its age commitment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// The same under the name that the answer to creation has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_restrictions: Option<ShortHash>,
    /// The other exchange that has the purse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partner_url: Option<String>,
    /// Contribution.
    pub amount: Amount,
}

/// The purse has another contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncryptedContractConflict {
    /// SHA-512 of the stored encrypted contract.
    pub h_econtract: HashCode,
    /// `WALLET_PURSE_ECONTRACT`.
    pub econtract_sig: EddsaSignature,
    /// Its contract key.
    pub contract_pub: EddsaPublicKey,
}
