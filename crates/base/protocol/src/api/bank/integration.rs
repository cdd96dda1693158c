//! Bank integration: wallets' part in withdrawals.

use batzen_crypto::EddsaPublicKey;
use serde::{Deserialize, Serialize};

use crate::Amount;

/// Answer to `GET config` of the three bank interfaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BankConfig {
    /// Protocol version, libtool style.
    pub version: String,
    /// The currency.
    pub currency: String,
    /// The name of the interface.
    pub name: String,
}

/// Answer to `GET withdrawal-operation/$WOPID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawalOperation {
    /// The user has aborted it.
    pub aborted: bool,
    /// A wallet has selected exchange and reserve.
    pub selection_done: bool,
    /// The user has confirmed; the transfer is under way.
    pub transfer_done: bool,
    /// The amount.
    pub amount: Amount,
    /// Base URL of the exchange that the bank suggests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggested_exchange: Option<String>,
    /// Account of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_wire: Option<String>,
    /// The page where the user confirms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_transfer_url: Option<String>,
    /// Wire methods of the bank.
    pub wire_types: Vec<String>,
}

/// `POST withdrawal-operation/$WOPID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawalSelection {
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// Account of the exchange.
    pub selected_exchange: String,
}

/// Answer to a selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawalSelected {
    /// The transfer is under way already.
    pub transfer_done: bool,
    /// The page where the user confirms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_transfer_url: Option<String>,
}
