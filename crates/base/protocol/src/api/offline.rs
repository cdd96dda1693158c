//! Documents of the offline signing tool: arrays of operations, passed along from one step to the next.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, Wtid};
use serde::{Deserialize, Serialize};

use super::exchange::{DenominationSignature, ExtensionsRequest, FutureKeys, KeysResponse, SignKeySignature};
use crate::{Amount, Duration, Timestamp};

/// One step of the offline workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "operation", content = "arguments")]
pub enum OfflineOperation {
    /// Keys to be signed: the answer of `GET /management/keys`.
    #[serde(rename = "exchange-input-keys-0")]
    InputKeys(Box<FutureKeys>),
    /// Signatures for keys.
    #[serde(rename = "exchange-upload-sigs-0")]
    UploadSigs(UploadSigs),
    /// Revocation of a denomination.
    #[serde(rename = "exchange-revoke-denomination-0")]
    RevokeDenomination(RevokeDenomination),
    /// Revocation of a signing key.
    #[serde(rename = "exchange-revoke-signkey-0")]
    RevokeSignKey(RevokeSignKey),
    /// A new auditor.
    #[serde(rename = "exchange-enable-auditor-0")]
    EnableAuditor(EnableAuditor),
    /// Removal of an auditor.
    #[serde(rename = "exchange-disable-auditor-0")]
    DisableAuditor(DisableAuditor),
    /// A new bank account.
    #[serde(rename = "exchange-enable-wire-0")]
    EnableWire(EnableWire),
    /// Removal of a bank account.
    #[serde(rename = "exchange-disable-wire-0")]
    DisableWire(DisableWire),
    /// Fees of a wire method.
    #[serde(rename = "exchange-set-wire-fee-0")]
    SetWireFee(SetWireFee),
    /// Global fees.
    #[serde(rename = "exchange-set-global-fee-0")]
    SetGlobalFee(SetGlobalFee),
    /// Pay out profit.
    #[serde(rename = "exchange-drain-profits-0")]
    DrainProfits(DrainProfits),
    /// Extension manifests.
    #[serde(rename = "exchange-extensions-0")]
    Extensions(ExtensionsRequest),
    /// A master key was created.
    #[serde(rename = "exchange-setup-0")]
    Setup(Setup),
}

/// Signatures for keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UploadSigs {
    /// For denominations.
    pub denom_sigs: Vec<DenominationSignature>,
    /// For signing keys.
    pub signkey_sigs: Vec<SignKeySignature>,
}

/// Revocation of a denomination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevokeDenomination {
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// `MASTER_DENOMINATION_KEY_REVOKED`.
    pub master_sig: EddsaSignature,
}

/// Revocation of a signing key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevokeSignKey {
    /// The signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `MASTER_SIGNING_KEY_REVOKED`.
    pub master_sig: EddsaSignature,
}

/// A new auditor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnableAuditor {
    /// Its base URL.
    pub auditor_url: String,
    /// Its name.
    pub auditor_name: String,
    /// Its key.
    pub auditor_pub: EddsaPublicKey,
    /// Start of the validity.
    pub validity_start: Timestamp,
    /// `MASTER_ADD_AUDITOR`.
    pub master_sig: EddsaSignature,
}

/// Removal of an auditor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DisableAuditor {
    /// Its key.
    pub auditor_pub: EddsaPublicKey,
    /// End of the validity.
    pub validity_end: Timestamp,
    /// `MASTER_DEL_AUDITOR`.
    pub master_sig: EddsaSignature,
}

/// A new bank account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnableWire {
    /// The account.
    pub payto_uri: String,
    /// Start of the validity.
    pub validity_start: Timestamp,
    /// `MASTER_ADD_WIRE`.
    pub master_sig_add: EddsaSignature,
    /// `MASTER_WIRE_DETAILS`.
    pub master_sig_wire: EddsaSignature,
}

/// Removal of a bank account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DisableWire {
    /// The account.
    pub payto_uri: String,
    /// End of the validity.
    pub validity_end: Timestamp,
    /// `MASTER_DEL_WIRE`.
    pub master_sig: EddsaSignature,
}

/// Fees of a wire method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetWireFee {
    /// The wire method.
    pub wire_method: String,
    /// Start of the period.
    pub start_time: Timestamp,
    /// End of the period.
    pub end_time: Timestamp,
    /// Fee for a transfer to a merchant.
    pub wire_fee: Amount,
    /// Fee for closing a reserve.
    pub closing_fee: Amount,
    /// `MASTER_WIRE_FEES`.
    pub master_sig: EddsaSignature,
}

/// Global fees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetGlobalFee {
    /// Start of the period.
    pub start_time: Timestamp,
    /// End of the period.
    pub end_time: Timestamp,
    /// Fee for a complete reserve history.
    pub history_fee: Amount,
    /// Yearly fee for keeping a reserve open.
    pub account_fee: Amount,
    /// Fee for creating a purse.
    pub purse_fee: Amount,
    /// Time that an expired purse stays readable.
    pub purse_timeout: Duration,
    /// Length of the histories.
    pub history_expiration: Duration,
    /// Number of purses that an open reserve may have.
    pub purse_account_limit: u32,
    /// `MASTER_GLOBAL_FEES`.
    pub master_sig: EddsaSignature,
}

/// Pay out profit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainProfits {
    /// Identifier of the transfer.
    pub wtid: Wtid,
    /// Configuration section of the account to debit.
    pub account_section: String,
    /// The account to credit.
    pub payto_uri: String,
    /// The amount.
    pub amount: Amount,
    /// When to pay.
    pub date: Timestamp,
    /// `MASTER_DRAIN_PROFIT`.
    pub master_sig: EddsaSignature,
}

/// A master key was created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Its public half.
    pub exchange_offline_pub: EddsaPublicKey,
}

/// One step of an auditor's offline workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "operation", content = "arguments")]
pub enum AuditorOperation {
    /// The auditor's key was created.
    #[serde(rename = "auditor-setup-0")]
    Setup(AuditorSetup),
    /// Keys to be approved: the answer of the exchange's `GET /keys`.
    #[serde(rename = "auditor-keys-0")]
    Keys(Box<KeysResponse>),
    /// The approval of a denomination.
    #[serde(rename = "auditor-sign-denomination-0")]
    SignDenomination(SignDenomination),
}

/// An auditor's key was created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorSetup {
    /// Its public half.
    pub auditor_pub: EddsaPublicKey,
}

/// The approval of a denomination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignDenomination {
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// `AUDITOR_EXCHANGE_KEYS`.
    pub auditor_sig: EddsaSignature,
}
