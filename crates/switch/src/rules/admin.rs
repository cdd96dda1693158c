//! Participants, accounts, limits, callback addresses, settlement models; and changes that need two operators.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    AccountKind, ApprovalKey, ApprovalRow, Approvals, EndpointKey, EndpointRow, Endpoints, HUB, ModelKey,
    ModelRow, Models, ParticipantKey, ParticipantRow, Participants, SwitchAccountKey, SwitchAccountRow,
    SwitchAccounts,
};
use serde::{Deserialize, Serialize};

use super::{change_state, plan_state, state_row, take_u64};

/// The most participants.
pub const PARTICIPANTS_MAX: u32 = 4096;

/// Why an operator's command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such thing.
    #[error("no such {0}")]
    Unknown(&'static str),
    /// It does not fit the present state.
    #[error("{0}")]
    Conflict(String),
    /// Something came in between: read again and repeat.
    #[error("something else was changed meanwhile")]
    Overtaken,
    /// It is not allowed to this operator.
    #[error("{0}")]
    Forbidden(&'static str),
}

/// A change that takes two operators. Numbers are filled in when it is done, not when it is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Change {
    /// A new participant, or a further currency for one; or (without a name) a new currency for the hub.
    Accounts {
        /// The participant; none: the hub.
        name: Option<String>,
        /// The currency.
        currency: u32,
        /// The participant's number; for a new one, the next.
        #[serde(default, skip)]
        number: u32,
    },
    /// Switches a participant on or off.
    Activate {
        /// The participant.
        name: String,
        /// On or off.
        active: bool,
    },
    /// Switches an account on or off.
    ActivateAccount {
        /// The participant; none: the hub.
        name: Option<String>,
        /// The currency.
        currency: u32,
        /// An [`AccountKind`].
        kind: u8,
        /// On or off.
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
        /// The cap, in ten-thousandths. (A text in JSON: tagged enumerations know no 128-bit numbers.)
        #[serde(with = "cap_text")]
        ndc: u128,
        /// At what part of the limit an alarm goes off, in per cent; none: as before.
        alarm_percentage: Option<u8>,
        /// Whether it is the first: it activates the participant.
        initial: bool,
        /// The participant's number.
        #[serde(default, skip)]
        number: u32,
    },
    /// Sets a callback address.
    Endpoint {
        /// The participant.
        name: String,
        /// For which messages.
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
        /// The currency, 0: every one without a model of its own.
        currency: u32,
        /// Each transfer by itself, at once.
        gross: bool,
        /// Whether recipients' positions are tested.
        require_liquidity_check: bool,
        /// Whether settlement moves positions.
        auto_position_reset: bool,
        /// Whether it is used.
        active: bool,
    },
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
    }
}

fn participant(rows: &WorkingSet, name: &str, number: u32) -> Result<ParticipantRow, Refusal> {
    let row = rows.get::<Participants>(&ParticipantKey::new(name)).ok_or(Refusal::Unknown("participant"))?;
    if row.number == number { Ok(row.clone()) } else { Err(Refusal::Overtaken) }
}

/// Does a change. The number is the participant's.
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

/// The state of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ApprovalState {
    /// Waits for a second operator.
    Open = 0,
    /// Approved, and done.
    Approved = 1,
    /// Rejected.
    Rejected = 2,
    /// Approved, but it could not be done.
    Failed = 3,
}

impl ApprovalState {
    /// Its name at the interface.
    #[must_use]
    pub const fn name(number: u8) -> &'static str {
        match number {
            0 => "OPEN",
            1 => "APPROVED",
            2 => "REJECTED",
            _ => "FAILED",
        }
    }
}

pub(super) fn plan_approval(id: u64, plan: &mut Plan) {
    plan_state(plan);
    plan.row::<Approvals>(ApprovalKey { id });
}

pub(super) fn propose(
    rows: &mut WorkingSet,
    id: u64,
    (change, operator): (&str, &str),
    now: Timestamp,
) -> Result<(), Refusal> {
    if state_row(rows).next_approval != id {
        return Err(Refusal::Overtaken);
    }
    change_state(rows, |state| take_u64(&mut state.next_approval));
    let row = ApprovalRow {
        change: change.to_owned(),
        proposed_by: operator.to_owned(),
        proposed: now,
        state: ApprovalState::Open as u8,
        decided_by: String::new(),
        decided: Timestamp::ZERO,
        result: String::new(),
    };
    rows.insert::<Approvals>(&ApprovalKey { id }, row);
    Ok(())
}

/// Decides, by another operator than the one who proposed.
pub(super) fn decide(
    rows: &mut WorkingSet,
    id: u64,
    operator: &str,
    (state, result): (ApprovalState, &str),
    now: Timestamp,
) -> Result<(), Refusal> {
    let key = ApprovalKey { id };
    let mut row = rows.get::<Approvals>(&key).cloned().ok_or(Refusal::Unknown("approval"))?;
    if row.proposed_by == operator {
        return Err(Refusal::Forbidden("who proposes a change cannot decide on it"));
    }
    let is_result =
        row.state == ApprovalState::Approved as u8 && row.decided_by == operator && row.result.is_empty();
    if row.state != ApprovalState::Open as u8 && !is_result {
        return Err(Refusal::Conflict("the change has been decided".to_owned()));
    }
    (row.state, row.decided_by, row.decided) = (state as u8, operator.to_owned(), now);
    row.result = result.to_owned();
    rows.update::<Approvals>(&key, row);
    Ok(())
}
