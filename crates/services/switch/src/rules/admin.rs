//! The changes that operators make, as they are proposed and stored.

use serde::{Deserialize, Serialize};

/// Why an operator's command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not exist.
    #[error("no such {0}")]
    Unknown(&'static str),
    /// It does not fit the current state.
    #[error("{0}")]
    Conflict(String),
    /// Another change came first: read again and repeat.
    #[error("conflict with a concurrent change")]
    Overtaken,
    /// This operator may not do it.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The approval is valid, but the change that it approves cannot be made.
    #[error("{0}")]
    NotDone(Box<Refusal>),
}

/// A change that an operator makes, or that one operator proposes and another approves. Participants' numbers
/// are looked up when the change is made, not when it is proposed. Its JSON is stored, so variants and fields
/// may be added but never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Change {
    /// A new participant, an additional currency for an existing one, or (without a name) a new currency for
    /// the hub.
    Accounts {
        /// The participant; `None`: the hub.
        name: Option<String>,
        /// The currency.
        currency: u32,
    },
    /// Enables or disables a participant.
    Activate {
        /// The participant.
        name: String,
        /// Enabled or disabled.
        active: bool,
    },
    /// Enables or disables an account.
    ActivateAccount {
        /// The participant; `None`: the hub.
        name: Option<String>,
        /// The currency.
        currency: u32,
        /// An [`AccountKind`].
        kind: u8,
        /// Enabled or disabled.
        active: bool,
    },
    /// Sets the net debit cap.
    Limit {
        /// The participant.
        name: String,
        /// The currency.
        currency: u32,
        /// The cap, in ten-thousandths. (A text in JSON, because tagged enums do not support 128-bit
        /// numbers.)
        #[serde(with = "cap_text")]
        ndc: u128,
        /// The percentage of the limit that triggers an alarm; `None`: unchanged.
        alarm_percentage: Option<u8>,
        /// Whether it is the first limit, which activates the participant.
        initial: bool,
    },
    /// Sets a callback address.
    Endpoint {
        /// The participant.
        name: String,
        /// The type of messages sent there.
        endpoint: String,
        /// The URL.
        url: String,
    },
    /// Sets a settlement model.
    Model {
        /// Its name.
        name: String,
        /// The currency; 0: every currency without its own model.
        currency: u32,
        /// Whether each transfer is settled by itself, at once.
        gross: bool,
        /// Whether recipients' positions are checked.
        require_liquidity_check: bool,
        /// Whether settlement changes positions.
        auto_position_reset: bool,
        /// Whether it is in use.
        active: bool,
    },
    /// Records incoming liquidity.
    FundsIn(FundsOrder),
    /// Reserves liquidity for withdrawal.
    FundsOut(FundsOrder),
    /// Posts or voids reserved liquidity.
    EndFundsOut {
        /// The participant.
        name: String,
        /// The currency.
        currency: u32,
        /// The movement.
        #[serde(with = "uuid_text")]
        id: u128,
        /// The reserved amount.
        #[serde(with = "cap_text")]
        amount: u128,
        /// Whether to post; otherwise it is voided.
        commit: bool,
        /// The reason.
        reason: String,
    },
    /// Closes the open window and opens the next.
    CloseWindow {
        /// The window to close.
        id: u64,
        /// The reason.
        reason: String,
    },
    /// Creates a settlement of windows.
    Settle {
        /// The model.
        model: String,
        /// The reason.
        reason: String,
        /// The windows.
        windows: Vec<u64>,
    },
    /// Advances accounts of a settlement to their next step.
    StepSettlement {
        /// The settlement.
        settlement: u64,
        /// The accounts.
        steps: Vec<AccountStep>,
    },
    /// Abandons a settlement.
    AbortSettlement {
        /// The settlement.
        settlement: u64,
        /// The reason.
        reason: String,
    },
}

/// A deposit or withdrawal of liquidity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FundsOrder {
    /// The participant.
    pub name: String,
    /// The currency.
    pub currency: u32,
    /// Chosen by the operator; repeating it refers to the same movement.
    #[serde(with = "uuid_text")]
    pub id: u128,
    /// The amount.
    #[serde(with = "cap_text")]
    pub amount: u128,
    /// The reason.
    pub reason: String,
    /// The settlement bank's reference.
    pub reference: String,
}

/// The step of one account of a settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountStep {
    /// The participant's number.
    pub participant: u32,
    /// Its name.
    pub name: String,
    /// The currency.
    pub currency: u32,
    /// The account's number at the interface.
    pub account: u32,
    /// The state to reach.
    pub state: String,
    /// The reason.
    pub reason: String,
    /// The settlement bank's reference.
    pub reference: String,
}

impl Change {
    /// The subject of the change. There is at most one open proposal per subject.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::FundsIn(FundsOrder { id, .. }) | Self::FundsOut(FundsOrder { id, .. }) => {
                format!("funds {id}")
            }
            Self::EndFundsOut { id, .. } => format!("end of funds {id}"),
            Self::CloseWindow { id, .. } => format!("window {id}"),
            Self::AbortSettlement { settlement, .. } => format!("end of settlement {settlement}"),
            Self::Limit { name, currency, .. } => {
                format!("limit {currency} {}", name.to_ascii_lowercase())
            }
            other => serde_json::to_string(other).expect("changes are JSON"),
        }
    }

    /// Returns whether only the books change; if so, the change takes effect in the same commit as its
    /// approval.
    #[must_use]
    pub const fn is_of_books(&self) -> bool {
        !matches!(
            self,
            Self::FundsIn(_)
                | Self::FundsOut(_)
                | Self::EndFundsOut { .. }
                | Self::StepSettlement { .. }
                | Self::AbortSettlement { .. }
        )
    }
}

mod uuid_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::values::{format_uuid, parse_uuid};

    pub(super) fn serialize<S: Serializer>(id: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_uuid(*id))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_uuid(&text).ok_or_else(|| D::Error::custom("a UUID"))
    }
}

mod cap_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::values::{format_amount, parse_amount};

    pub(super) fn serialize<S: Serializer>(ndc: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_amount(*ndc))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_amount(&text).ok_or_else(|| D::Error::custom("an amount"))
    }
}
