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

/// A page of an incoming history, in both forms in use: the older one names both accounts in each row, and all its rows
/// credit reserves. The newer one names the exchange's account once, beside the rows, and each row has a type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct IncomingPage<R> {
    /// Its rows.
    pub incoming_transactions: Vec<R>,
    /// Account of the exchange, in the newer form.
    #[serde(default)]
    pub credit_account: Option<String>,
}

/// A row that credits a reserve, in both forms.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ReserveCredit {
    /// The type, in the newer form.
    #[serde(default, rename = "type")]
    _type: Option<ReserveType>,
    row_id: u64,
    date: Timestamp,
    amount: Amount,
    #[serde(default)]
    credit_account: Option<String>,
    debit_account: String,
    reserve_pub: EddsaPublicKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
enum ReserveType {
    #[serde(rename = "RESERVE")]
    Reserve,
}

impl ReserveCredit {
    /// The credit with the account that its page names beside the rows.
    #[must_use]
    pub fn into_transaction(self, account: Option<&str>) -> IncomingTransaction {
        let Self { row_id, date, amount, credit_account, debit_account, reserve_pub, .. } = self;
        let credit_account = credit_account.or_else(|| account.map(str::to_owned)).unwrap_or_default();
        IncomingTransaction { row_id, date, amount, credit_account, debit_account, reserve_pub }
    }
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
    /// Account of the exchange. Newer banks name it once, beside the list.
    #[serde(default)]
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
