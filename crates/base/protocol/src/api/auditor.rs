//! The auditor's HTTP interface.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use serde::{Deserialize, Serialize};

use crate::signatures::{ExchangeConfirmDeposit, MasterSigningKeyValidity};
use crate::{Amount, Timestamp};

/// The version of the auditor's protocol, as `current:revision:age`.
pub const AUDITOR_PROTOCOL_VERSION: &str = "0:0:0";
/// The status of a stored confirmation.
pub const DEPOSIT_CONFIRMATION_OK: &str = "DEPOSIT_CONFIRMATION_OK";

/// Answer to `GET /version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditorVersion {
    /// [`AUDITOR_PROTOCOL_VERSION`].
    pub version: String,
    /// The currency of all amounts.
    pub currency: String,
    /// The auditor's key.
    pub auditor_public_key: EddsaPublicKey,
}

/// Answer to `GET /exchanges`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedExchanges {
    /// The exchanges that the auditor audits.
    pub exchanges: Vec<AuditedExchange>,
}

/// An exchange that an auditor audits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedExchange {
    /// Its master key.
    pub master_pub: EddsaPublicKey,
    /// Its base URL.
    pub exchange_url: String,
}

/// `PUT /deposit-confirmation`: what an exchange has confirmed to a merchant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepositConfirmationRequest {
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The deposit's policy; zero without one.
    pub h_policy: HashCode,
    /// The merchant's account with its salt.
    pub h_wire: HashCode,
    /// When the exchange accepted the deposit.
    pub exchange_timestamp: Timestamp,
    /// The time until which the merchant may refund it.
    pub refund_deadline: Timestamp,
    /// The time until which the exchange must pay it.
    pub wire_deadline: Timestamp,
    /// The exchange's debt for it.
    pub amount_without_fee: Amount,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// `EXCHANGE_CONFIRM_DEPOSIT`.
    pub exchange_sig: EddsaSignature,
    /// The exchange's signing key.
    pub exchange_pub: EddsaPublicKey,
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    /// Start of the period in which the signing key signs.
    pub ep_start: Timestamp,
    /// The time until which it signs.
    pub ep_expire: Timestamp,
    /// The time until which its signatures are legally valid.
    pub ep_end: Timestamp,
    /// `MASTER_SIGNING_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

impl DepositConfirmationRequest {
    /// The message that the exchange has signed.
    #[must_use]
    pub const fn confirmation(&self) -> ExchangeConfirmDeposit {
        ExchangeConfirmDeposit {
            h_contract_terms: self.h_contract_terms,
            h_wire: self.h_wire,
            h_policy: self.h_policy,
            exchange_timestamp: self.exchange_timestamp,
            wire_deadline: self.wire_deadline,
            refund_deadline: self.refund_deadline,
            amount_without_fee: self.amount_without_fee,
            coin_pub: self.coin_pub,
            merchant_pub: self.merchant_pub,
        }
    }

    /// The message that the exchange's master key has signed.
    #[must_use]
    pub const fn validity(&self) -> MasterSigningKeyValidity {
        MasterSigningKeyValidity {
            start: self.ep_start,
            expire: self.ep_expire,
            end: self.ep_end,
            signkey_pub: self.exchange_pub,
        }
    }
}

/// Answer to `PUT /deposit-confirmation`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepositConfirmationAnswer {
    /// [`DEPOSIT_CONFIRMATION_OK`].
    pub status: String,
}
