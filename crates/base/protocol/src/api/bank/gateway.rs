//! Wire gateway: exchanges' access to their accounts.

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use serde::{Deserialize, Serialize};

use crate::{Amount, Timestamp};

/// Answer to `GET history/incoming`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncomingHistory {
    /// Credits.
    pub incoming_transactions: Vec<IncomingTransaction>,
}

/// A credit that carries a reserve key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncomingTransaction {
    /// Row at the bank.
    pub row_id: u64,
    /// The time.
    pub date: Timestamp,
    /// The amount.
    pub amount: Amount,
    /// Account of the exchange.
    pub credit_account: String,
    /// Account of the payer.
    pub debit_account: String,
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
}

/// Answer to `GET history/outgoing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutgoingHistory {
    /// Debits.
    pub outgoing_transactions: Vec<OutgoingTransaction>,
}

/// A transfer made by the exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutgoingTransaction {
    /// Row at the bank.
    pub row_id: u64,
    /// The time.
    pub date: Timestamp,
    /// The amount.
    pub amount: Amount,
    /// Account of the receiver.
    pub credit_account: String,
    /// Account of the exchange.
    pub(crate) debit_account: String,
    /// Identifier of the transfer.
    pub wtid: Wtid,
    /// The exchange.
    pub exchange_base_url: String,
}

/// `POST transfer`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferRequest {
    /// Chosen at random when the transfer is prepared; a repetition uses the same.
    pub request_uid: HashCode,
    /// The amount.
    pub amount: Amount,
    /// The exchange.
    pub exchange_base_url: String,
    /// Identifier of the transfer.
    pub wtid: Wtid,
    /// Account of the receiver.
    pub credit_account: String,
}

/// `POST admin/add-incoming`, for tests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AddIncomingRequest {
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// The amount.
    pub amount: Amount,
    /// Account of the payer.
    pub debit_account: String,
}

/// Answer to `POST transfer` and `POST admin/add-incoming`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransactionResponse {
    /// Row at the bank.
    pub row_id: u64,
    /// The time.
    pub timestamp: Timestamp,
}
