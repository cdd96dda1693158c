//! `/management/…` and `/auditors/…`: requests of auditors and of the owner of the offline master key.

use batzen_crypto::{DenomPublicKey, EddsaPublicKey, EddsaSignature, HashCode, Wtid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::denominations::DenominationTerms;
use crate::limits::{KEY_SIGNATURES_MAX, NAME_BYTES_MAX, PAYTO_BYTES_MAX, URL_BYTES_MAX, array, text};
use crate::signatures::MasterSigningKeyValidity;
use crate::{Amount, Duration, Timestamp};

/// Answer to `GET /management/keys`: the keys that still need master signatures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FutureKeys {
    /// Denomination keys.
    pub future_denoms: Vec<FutureDenomination>,
    /// Signing keys.
    pub future_signkeys: Vec<FutureSignKey>,
    /// The master key that the exchange is configured for.
    pub master_pub: EddsaPublicKey,
    /// Security module for RSA keys; all zero if it has never announced one.
    pub denom_secmod_public_key: EddsaPublicKey,
    /// Security module for CS keys; all zero if it has never announced one.
    pub denom_secmod_cs_public_key: EddsaPublicKey,
    /// Security module for signing keys.
    pub signkey_secmod_public_key: EddsaPublicKey,
}

/// A denomination key that the master key has not signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FutureDenomination {
    /// Configuration section of the coin.
    pub section_name: String,
    /// Value of a coin.
    pub value: Amount,
    /// Start of the period in which coins are issued.
    pub stamp_start: Timestamp,
    /// End of the period in which coins are issued.
    pub stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub stamp_expire_legal: Timestamp,
    /// The key.
    pub denom_pub: DenomPublicKey,
    /// Fee for withdrawing a coin.
    pub fee_withdraw: Amount,
    /// Fee for depositing a coin.
    pub fee_deposit: Amount,
    /// Fee for melting a coin.
    pub fee_refresh: Amount,
    /// Fee for refunding a coin.
    pub fee_refund: Amount,
    /// `SM_RSA_DENOMINATION_KEY` or `SM_CS_DENOMINATION_KEY`.
    pub denom_secmod_sig: EddsaSignature,
}

/// A signing key that the master key has not signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FutureSignKey {
    /// The key.
    pub key: EddsaPublicKey,
    /// Start of the period in which it signs.
    pub stamp_start: Timestamp,
    /// End of the period in which it signs.
    pub stamp_expire: Timestamp,
    /// The time until which its signatures are legally valid.
    pub stamp_end: Timestamp,
    /// `SM_SIGNING_KEY`.
    pub signkey_secmod_sig: EddsaSignature,
}

impl FutureDenomination {
    /// Value, fees and times.
    pub fn terms(&self) -> DenominationTerms {
        DenominationTerms {
            value: self.value,
            fee_withdraw: self.fee_withdraw,
            fee_deposit: self.fee_deposit,
            fee_refresh: self.fee_refresh,
            fee_refund: self.fee_refund,
            stamp_start: self.stamp_start,
            stamp_expire_withdraw: self.stamp_expire_withdraw,
            stamp_expire_deposit: self.stamp_expire_deposit,
            stamp_expire_legal: self.stamp_expire_legal,
        }
    }
}

impl FutureSignKey {
    /// The message that the master key signs.
    pub fn validity(&self) -> MasterSigningKeyValidity {
        MasterSigningKeyValidity {
            start: self.stamp_start,
            expire: self.stamp_expire,
            end: self.stamp_end,
            signkey_pub: self.key,
        }
    }
}

/// `POST /management/keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManagementKeysRequest {
    /// For denominations.
    #[serde(deserialize_with = "array::<_, _, KEY_SIGNATURES_MAX>")]
    pub denom_sigs: Vec<DenominationSignature>,
    /// For signing keys.
    #[serde(deserialize_with = "array::<_, _, KEY_SIGNATURES_MAX>")]
    pub signkey_sigs: Vec<SignKeySignature>,
}

/// A master signature over a denomination key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenominationSignature {
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// `MASTER_DENOMINATION_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

/// A master signature over a signing key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignKeySignature {
    /// The signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `MASTER_SIGNING_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

/// `POST /management/denominations/$H_DENOM_PUB/revoke` and `…/signkeys/$EXCHANGE_PUB/revoke`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevokeRequest {
    /// `MASTER_DENOMINATION_KEY_REVOKED` or `MASTER_SIGNING_KEY_REVOKED`.
    pub master_sig: EddsaSignature,
}

/// `POST /management/auditors`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorAddRequest {
    /// Key of the auditor.
    pub auditor_pub: EddsaPublicKey,
    /// Its base URL.
    #[serde(deserialize_with = "text::<_, URL_BYTES_MAX>")]
    pub auditor_url: String,
    /// Its name; not signed.
    #[serde(deserialize_with = "text::<_, NAME_BYTES_MAX>")]
    pub auditor_name: String,
    /// Start of the validity.
    pub validity_start: Timestamp,
    /// `MASTER_ADD_AUDITOR`.
    pub master_sig: EddsaSignature,
}

/// `POST /management/auditors/$AUDITOR_PUB/disable`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorDisableRequest {
    /// End of the validity.
    pub validity_end: Timestamp,
    /// `MASTER_DEL_AUDITOR`.
    pub master_sig: EddsaSignature,
}

/// `POST /auditors/$AUDITOR_PUB/$H_DENOM_PUB`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorSignatureRequest {
    /// `AUDITOR_EXCHANGE_KEYS`.
    pub auditor_sig: EddsaSignature,
}

/// `POST /management/wire`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireAddRequest {
    /// The account. Not checked yet, because its errors have their own code.
    #[serde(deserialize_with = "text::<_, PAYTO_BYTES_MAX>")]
    pub payto_uri: String,
    /// Start of the validity.
    pub validity_start: Timestamp,
    /// `MASTER_WIRE_DETAILS`.
    pub master_sig_wire: EddsaSignature,
    /// `MASTER_ADD_WIRE`.
    pub master_sig_add: EddsaSignature,
}

/// `POST /management/wire/disable`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireDisableRequest {
    /// The account.
    #[serde(deserialize_with = "text::<_, PAYTO_BYTES_MAX>")]
    pub payto_uri: String,
    /// End of the validity.
    pub validity_end: Timestamp,
    /// `MASTER_DEL_WIRE`.
    pub master_sig_del: EddsaSignature,
}

/// `POST /management/wire-fee`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireFeeRequest {
    /// The wire method.
    #[serde(deserialize_with = "text::<_, NAME_BYTES_MAX>")]
    pub wire_method: String,
    /// Start of the period.
    pub fee_start: Timestamp,
    /// End of the period.
    pub fee_end: Timestamp,
    /// Fee for a transfer to a merchant.
    pub wire_fee: Amount,
    /// Fee for closing a reserve.
    pub closing_fee: Amount,
    /// `MASTER_WIRE_FEES`.
    pub master_sig: EddsaSignature,
}

/// `POST /management/global-fee`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GlobalFeeRequest {
    /// Start of the period.
    pub fee_start: Timestamp,
    /// End of the period.
    pub fee_end: Timestamp,
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

/// `POST /management/extensions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtensionsRequest {
    /// Manifests by name, as they are signed.
    pub extensions: Value,
    /// `MASTER_EXTENSION`.
    pub extensions_sig: EddsaSignature,
}

/// `POST /management/drain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// Configuration section of the account to debit.
    #[serde(deserialize_with = "text::<_, NAME_BYTES_MAX>")]
    pub debit_account_section: String,
    /// The account to credit.
    #[serde(deserialize_with = "text::<_, PAYTO_BYTES_MAX>")]
    pub credit_payto_uri: String,
    /// Identifier of the transfer.
    pub wtid: Wtid,
    /// When to pay.
    pub date: Timestamp,
    /// The amount.
    pub amount: Amount,
    /// `MASTER_DRAIN_PROFIT`.
    pub master_sig: EddsaSignature,
}
