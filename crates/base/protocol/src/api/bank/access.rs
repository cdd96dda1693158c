//! Bank access: customers' accounts, as used by tests and wallets.

use batzen_crypto::EddsaPublicKey;
use serde::{Deserialize, Serialize};

use crate::Amount;

/// `POST testing/register`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegisterRequest {
    /// Name of the account.
    pub username: String,
    /// Its password.
    pub password: String,
}

/// Answer to `GET public-accounts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublicAccounts {
    /// Always empty.
    #[serde(rename = "publicAccounts")]
    pub public_accounts: Vec<serde_json::Value>,
}

/// Answer to `GET accounts/$ACC`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccountInfo {
    /// The account.
    #[serde(rename = "paytoUri")]
    pub payto_uri: String,
    /// Its balance.
    pub balance: AccountBalance,
}

/// A balance with its sign.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccountBalance {
    /// The sign.
    pub credit_debit_indicator: CreditDebit,
    /// The amount.
    pub amount: Amount,
}

/// The sign of a balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CreditDebit {
    /// The bank owes the customer, or the balance is zero.
    Credit,
    /// The customer owes the bank.
    Debit,
}

/// `POST accounts/$ACC/withdrawals`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateWithdrawalRequest {
    /// The amount.
    pub amount: Amount,
}

/// Answer to the creation of a withdrawal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateWithdrawalResponse {
    /// The URI for the wallet.
    pub taler_withdraw_uri: String,
    /// The identifier at the bank.
    pub withdrawal_id: String,
}

/// Answer to `GET accounts/$ACC/withdrawals/$WID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawalInfo {
    /// The user has aborted it.
    pub aborted: bool,
    /// A wallet has selected exchange and reserve.
    pub selection_done: bool,
    /// The user has confirmed.
    pub transfer_done: bool,
    /// The amount.
    pub amount: Amount,
    /// Account of the exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_exchange_account: Option<String>,
    /// The reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_reserve_pub: Option<EddsaPublicKey>,
}

/// `{}`: request and answer of confirm and abort.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Empty {}
