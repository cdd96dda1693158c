//! Tracking of deposits and wire transfers.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid};
use serde::{Deserialize, Serialize};

use crate::{Amount, Timestamp};

/// Answer to `GET /transfers/$WTID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferResponse {
    /// Sum of the deposits after fees, minus the wire fee.
    pub total: Amount,
    /// Fee for the transfer.
    pub wire_fee: Amount,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// Hash of the merchant's payto URI.
    pub h_payto: ShortHash,
    /// When the transfer was made.
    pub execution_time: Timestamp,
    /// The deposits that it pays.
    pub deposits: Vec<TransferDeposit>,
    /// `EXCHANGE_CONFIRM_WIRE_DEPOSIT`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// A deposit in a [`TransferResponse`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferDeposit {
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// Contribution of the coin, fee included.
    pub deposit_value: Amount,
    /// Deposit fee.
    pub deposit_fee: Amount,
}

/// Answer 200 to `GET /deposits/…`: the transfer was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepositTransfer {
    /// Its identifier.
    pub wtid: Wtid,
    /// When it was made.
    pub execution_time: Timestamp,
    /// Contribution of the coin after the deposit fee.
    pub coin_contribution: Amount,
    /// `EXCHANGE_CONFIRM_WIRE`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// Answer 202 to `GET /deposits/…`: not aggregated yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepositPending {
    /// The time until which the merchant is to be paid.
    pub execution_time: Timestamp,
    /// Whether the account is free of KYC requirements.
    pub kyc_ok: bool,
    /// The requirement that holds the transfer back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirement_row: Option<u64>,
}
