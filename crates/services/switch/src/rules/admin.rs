//! Participants, accounts, limits, callback addresses, settlement models, and the operators' changes to them.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    AccountKind, EndpointKey, EndpointRow, Endpoints, HUB, ModelKey, ModelRow, Models, ParticipantKey,
    ParticipantRow, Participants, SwitchAccountKey, SwitchAccountRow, SwitchAccounts,
};
use serde::{Deserialize, Serialize};

use super::{change_state, plan_state, state_row};

/// The most participants.
pub const PARTICIPANTS_MAX: u32 = 4096;

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
/// are filled in when the change is made, not when it is proposed. Its JSON is stored, so variants and fields
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
        /// The participant's number; for a new one, the next.
        #[serde(default, skip)]
        number: u32,
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
        /// The participant's number.
        #[serde(default, skip)]
        number: u32,
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
        /// The participant's number.
        #[serde(default, skip)]
        number: u32,
    },
    /// Sets a callback address.
    Endpoint {
        /// The participant.
        name: String,
        /// The type of messages sent there.
        endpoint: String,
        /// The URL.
        url: String,
        /// The participant's number.
        #[serde(default, skip)]
        number: u32,
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

    pub fn serialize<S: Serializer>(id: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_uuid(*id))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_uuid(&text).ok_or_else(|| D::Error::custom("a UUID"))
    }
}

mod cap_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::values::{format_amount, parse_amount};

    pub fn serialize<S: Serializer>(ndc: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_amount(*ndc))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_amount(&text).ok_or_else(|| D::Error::custom("an amount"))
    }
}

const ALARM_PERCENTAGE: u8 = 80;

const PARTICIPANT_ACCOUNTS: [AccountKind; 3] =
    [AccountKind::Position, AccountKind::Settlement, AccountKind::Grant];
const HUB_ACCOUNTS: [AccountKind; 2] =
    [AccountKind::HubReconciliation, AccountKind::HubMultilateralSettlement];

/// The accounts of a participant (or the hub) in a currency.
#[must_use]
pub fn account_kinds(participant: u32) -> &'static [AccountKind] {
    if participant == HUB { &HUB_ACCOUNTS } else { &PARTICIPANT_ACCOUNTS }
}

fn position(number: u32, currency: u32) -> SwitchAccountKey {
    SwitchAccountKey::new(number, currency, AccountKind::Position)
}

fn hub_settlement(currency: u32) -> SwitchAccountKey {
    SwitchAccountKey::new(HUB, currency, AccountKind::HubMultilateralSettlement)
}

pub(super) fn plan_change(change: &Change, plan: &mut Plan) {
    match change {
        Change::Accounts { name, currency, number } => {
            plan_state(plan);
            if let Some(name) = name {
                plan.row::<Participants>(ParticipantKey::new(name));
            }
            for kind in account_kinds(*number) {
                plan.row::<SwitchAccounts>(SwitchAccountKey::new(*number, *currency, *kind));
            }
            plan.row::<SwitchAccounts>(hub_settlement(*currency));
        }
        Change::Activate { name, .. } => plan.row::<Participants>(ParticipantKey::new(name)),
        Change::ActivateAccount { currency, kind, number, .. } => {
            plan.row::<SwitchAccounts>(SwitchAccountKey {
                participant: *number,
                currency: *currency,
                kind: *kind,
            });
        }
        Change::Limit { name, currency, number, .. } => {
            plan.row::<Participants>(ParticipantKey::new(name));
            plan.row::<SwitchAccounts>(position(*number, *currency));
        }
        Change::Endpoint { name, endpoint, number, .. } => {
            plan.row::<Participants>(ParticipantKey::new(name));
            plan.row::<Endpoints>(EndpointKey { participant: *number, endpoint: endpoint.clone() });
        }
        Change::Model { name, currency, .. } => {
            plan.row::<Models>(ModelKey { name: name.clone() });
            plan.row::<SwitchAccounts>(hub_settlement(*currency));
        }
        // These have commands of their own.
        Change::FundsIn(_)
        | Change::FundsOut(_)
        | Change::EndFundsOut { .. }
        | Change::CloseWindow { .. }
        | Change::Settle { .. }
        | Change::StepSettlement { .. }
        | Change::AbortSettlement { .. } => {}
    }
}

fn participant(rows: &WorkingSet, name: &str, number: u32) -> Result<ParticipantRow, Refusal> {
    let row = rows.get::<Participants>(&ParticipantKey::new(name)).ok_or(Refusal::Unknown("participant"))?;
    if row.number == number { Ok(row.clone()) } else { Err(Refusal::Overtaken) }
}

/// Executes a change. The number is the participant's.
pub(super) fn change(rows: &mut WorkingSet, change: &Change, now: Timestamp) -> Result<u64, Refusal> {
    match change {
        Change::Accounts { name, currency, number } => {
            accounts(rows, name.as_deref(), *currency, *number, now)?;
            Ok((*number).into())
        }
        Change::Activate { name, active } => {
            let key = ParticipantKey::new(name);
            let mut row = rows.get::<Participants>(&key).cloned().ok_or(Refusal::Unknown("participant"))?;
            row.active = *active;
            let number = row.number.into();
            rows.update::<Participants>(&key, row);
            Ok(number)
        }
        Change::ActivateAccount { currency, kind, active, number, .. } => {
            let key = SwitchAccountKey { participant: *number, currency: *currency, kind: *kind };
            let mut row = rows.get::<SwitchAccounts>(&key).cloned().ok_or(Refusal::Unknown("account"))?;
            row.active = *active;
            rows.update::<SwitchAccounts>(&key, row);
            Ok((*number).into())
        }
        Change::Limit { name, currency, ndc, alarm_percentage, initial, number } => {
            let mut owner = participant(rows, name, *number)?;
            let key = position(*number, *currency);
            let mut row = rows.get::<SwitchAccounts>(&key).cloned().ok_or(Refusal::Unknown("account"))?;
            if row.ndc.is_some() == *initial {
                let text =
                    if *initial { "the limit has been set before" } else { "the limit has not been set" };
                return Err(Refusal::Conflict(text.to_owned()));
            }
            row.ndc = Some(*ndc);
            row.alarm_percentage = alarm_percentage.unwrap_or(row.alarm_percentage);
            rows.update::<SwitchAccounts>(&key, row);
            if *initial {
                owner.active = true;
                rows.update::<Participants>(&ParticipantKey::new(name), owner);
            }
            Ok((*number).into())
        }
        Change::Endpoint { name, endpoint, url, number } => {
            participant(rows, name, *number)?;
            let key = EndpointKey { participant: *number, endpoint: endpoint.clone() };
            rows.put::<Endpoints>(&key, EndpointRow { url: url.clone() });
            Ok((*number).into())
        }
        Change::Model { name, currency, gross, require_liquidity_check, auto_position_reset, active } => {
            let key = hub_settlement(*currency);
            match rows.get::<SwitchAccounts>(&key).cloned() {
                Some(mut row) => {
                    row.gross = *gross && *active;
                    rows.update::<SwitchAccounts>(&key, row);
                }
                None if *currency != 0 => return Err(Refusal::Unknown("hub account of the currency")),
                None if *gross => {
                    return Err(Refusal::Conflict("a gross model has a currency".to_owned()));
                }
                None => {}
            }
            let row = ModelRow {
                currency: *currency,
                gross: *gross,
                require_liquidity_check: *require_liquidity_check,
                auto_position_reset: *auto_position_reset,
                active: *active,
            };
            rows.put::<Models>(&ModelKey { name: name.clone() }, row);
            Ok(0)
        }
        Change::FundsIn(_)
        | Change::FundsOut(_)
        | Change::EndFundsOut { .. }
        | Change::CloseWindow { .. }
        | Change::Settle { .. }
        | Change::StepSettlement { .. }
        | Change::AbortSettlement { .. } => {
            Err(Refusal::Conflict("funds, windows and settlements have commands of their own".to_owned()))
        }
    }
}

fn accounts(
    rows: &mut WorkingSet,
    name: Option<&str>,
    currency: u32,
    number: u32,
    now: Timestamp,
) -> Result<(), Refusal> {
    if let Some(name) = name {
        if rows.get::<SwitchAccounts>(&hub_settlement(currency)).is_none() {
            return Err(Refusal::Conflict("the hub has no accounts of this currency".to_owned()));
        }
        let key = ParticipantKey::new(name);
        match rows.get::<Participants>(&key) {
            Some(row) if row.number == number => {}
            None if state_row(rows).next_participant == number => {
                if number > PARTICIPANTS_MAX {
                    return Err(Refusal::Conflict("there are too many participants".to_owned()));
                }
                change_state(rows, |state| state.next_participant += 1);
                let row = ParticipantRow { number, name: name.to_owned(), active: false, created: now };
                rows.insert::<Participants>(&key, row);
            }
            _ => return Err(Refusal::Overtaken),
        }
    }
    for kind in account_kinds(number) {
        let key = SwitchAccountKey::new(number, currency, *kind);
        if rows.get::<SwitchAccounts>(&key).is_some() {
            return Err(Refusal::Conflict("these accounts exist".to_owned()));
        }
        let id = change_state(rows, |state| {
            let id = state.next_account;
            state.next_account = id.checked_add(1).expect("fewer than 2^32 accounts");
            id
        });
        let row = SwitchAccountRow {
            id,
            active: true,
            ndc: None,
            alarm_percentage: ALARM_PERCENTAGE,
            over_limit: 0,
            gross: false,
        };
        rows.insert::<SwitchAccounts>(&key, row);
    }
    Ok(())
}
