//! Bodies of the operators' interface.

use serde::Deserialize;

use crate::treasury::OperatorError;
use crate::values::{currency_number, parse_amount};

#[derive(Deserialize)]
pub(super) struct Amount {
    pub currency: String,
    pub amount: String,
}

#[derive(Deserialize)]
pub(super) struct NewParticipant {
    pub name: String,
    pub currency: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Active {
    pub is_active: bool,
}

#[derive(Deserialize)]
pub(super) struct NewEndpoint {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Limit {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: AmountText,
    pub alarm_percentage: Option<u8>,
}

/// An amount as text, or as a whole number.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum AmountText {
    Text(String),
    Number(u64),
}

impl AmountText {
    pub(super) fn parse(&self) -> Result<u128, OperatorError> {
        match self {
            Self::Text(text) => amount(text),
            Self::Number(number) => amount(&number.to_string()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InitialLimits {
    pub currency: String,
    pub limit: Limit,
    pub initial_position: Option<AmountText>,
}

#[derive(Deserialize)]
pub(super) struct LimitChange {
    pub currency: String,
    pub limit: Limit,
}

#[derive(Deserialize)]
pub(super) struct NewAccount {
    pub currency: String,
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Funds {
    pub transfer_id: String,
    #[serde(default)]
    pub external_reference: String,
    pub action: String,
    #[serde(default)]
    pub reason: String,
    pub amount: Amount,
}

#[derive(Deserialize)]
pub(super) struct FundsFinish {
    pub action: String,
    #[serde(default)]
    pub reason: String,
}

#[derive(Deserialize)]
pub(super) struct Decision {
    pub decision: String,
    #[serde(default)]
    pub reason: String,
}

#[derive(Deserialize)]
pub(super) struct WindowClose {
    pub state: String,
    #[serde(default)]
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Model {
    pub name: Option<String>,
    #[serde(default = "net")]
    pub settlement_granularity: String,
    pub settlement_interchange: Option<String>,
    pub settlement_delay: Option<String>,
    pub currency: Option<String>,
    #[serde(default)]
    pub require_liquidity_check: bool,
    pub ledger_account_type: Option<String>,
    pub settlement_account_type: Option<String>,
    #[serde(default)]
    pub auto_position_reset: bool,
    pub is_active: Option<bool>,
}

fn net() -> String {
    "NET".to_owned()
}

pub(super) fn amount(text: &str) -> Result<u128, OperatorError> {
    parse_amount(text).ok_or_else(|| OperatorError::Malformed(format!("{text:?} is not an amount")))
}

pub(super) fn currency(text: &str) -> Result<u32, OperatorError> {
    currency_number(text).ok_or_else(|| OperatorError::Malformed(format!("{text:?} is not a currency")))
}

/// Checks a text that operators give for the records.
pub(super) fn remark(text: &str) -> Result<String, OperatorError> {
    const CHARACTERS_MAX: usize = 512;
    if text.chars().count() > CHARACTERS_MAX {
        return Err(OperatorError::Malformed(format!("texts have at most {CHARACTERS_MAX} characters")));
    }
    Ok(text.to_owned())
}
