//! The switch's rules: the effect of a command on transfers, windows, settlements and participants. They are
//! pure: no I/O, no clock, no randomness.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | the states of a transfer and the moves between them |
//! | [`transfers`] | prepare, fulfil, error, expiry, and the ledger's answers |
//! | [`bulks`] | bulk transfers: many transfers that are announced and answered together |
//! | [`admin`] | the operators' changes, as they are proposed and stored |
//! | [`participants`] | participants, accounts, limits |
//! | [`approvals`] | changes that one operator proposes and another approves |
//! | [`windows`] | settlement windows and the amounts sent and received in them |
//! | [`settlements`] | net settlement |
//! | [`parties`] | the parties that participants register as customers |
//! | [`movements`] | deposits and withdrawals of liquidity, grants and revocations of headroom |
//!
//! Each command is in the module of its family, with the rows that it may touch and its rule.
//!
//! Money moves only in the ledger. A command that moves money records an *intent* in the same commit as the
//! reason. The event is sent afterwards, repeatedly under the same id until it is answered; [`Answers`]
//! records the answer.

pub mod admin;
pub mod approvals;
pub mod bulks;
pub mod movements;
pub mod participants;
pub mod parties;
pub mod settlements;
pub mod state;
pub mod transfers;
pub mod windows;

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    AccountKind, HUB, Outbox, OutboxKey, OutboxRow, SwitchAccountKey, SwitchStateKey, SwitchStateRow,
    SwitchStates, WindowKey, Windows,
};

use crate::errors::ApiError;

pub use admin::{Change, Refusal};
pub use approvals::{ApprovalState, Decide, ExpireProposal, Propose};
pub use bulks::{BulkError, BulkFulfil, BulkGet, BulkPrepare, ItemResult};
pub use movements::{AdvanceMovement, BeginMovement, NotifyParticipant, NumberMovement, SetOverLimit};
pub use participants::{ActivateAccount, ActivateParticipant, OpenAccounts, SetEndpoint, SetLimit, SetModel};
pub use parties::{RegisterParties, RemoveParty};
pub use settlements::{AbortSettlement, CreateSettlement, StepSettlement};
pub use transfers::{
    Answer, AnswerStatus, Answers, ErrorMessage, Expire, Fulfil, Get, Intent, IntentKind, Prepare,
};
pub use windows::CloseWindow;

batzen_engine::commands! {
    /// A command to the switch. The format of its texts has been checked before.
    #[derive(Clone, Debug)]
    SwitchRules => Consequences:
    Open,
    Prepare,
    Fulfil,
    ErrorMessage,
    Get,
    Expire,
    Answers,
    Sent,
    BulkPrepare,
    BulkFulfil,
    BulkError,
    BulkGet,
    OpenAccounts,
    ActivateParticipant,
    ActivateAccount,
    SetLimit,
    SetEndpoint,
    SetModel,
    Propose,
    Decide,
    ExpireProposal,
    RegisterParties,
    RemoveParty,
    CloseWindow,
    CreateSettlement,
    StepSettlement,
    AbortSettlement,
    NumberMovement,
    BeginMovement,
    AdvanceMovement,
    SetOverLimit,
    NotifyParticipant,
}

/// The consequences of a command that took effect.
#[derive(Clone, Debug, Default)]
pub struct Consequences {
    /// Intents for the ledger.
    pub intents: Vec<Intent>,
    /// Participants with new messages.
    pub told: Vec<u32>,
    /// The earliest new deadline, in milliseconds since 1970.
    pub deadline: Option<u64>,
    /// The number assigned by the command (participant, window, settlement, approval, account).
    pub number: u64,
    /// For a command about several parties, the places of those that were refused.
    pub refused: Vec<u16>,
}

impl Consequences {
    /// The consequences of a command that only assigns a number.
    fn of_number(number: impl Into<u64>) -> Self {
        Self { number: number.into(), ..Self::default() }
    }
}

/// The decision on a command.
pub type Decided = Result<Consequences, Refusal>;

/// The assignments of the lane to a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// The number of its first message in the outbox; it uses up one for each of its [events](Rules::events).
    pub number: u64,
    /// The time of the decision, in microseconds since 1970: the engine's time counts whole seconds, but
    /// transfers expire to the millisecond.
    pub micros: u64,
}

/// The rules with their options, for the command with this stamp.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchRules {
    /// Whether a participant may pay itself.
    pub allow_on_us: bool,
    /// The command's stamp.
    pub stamp: Stamp,
}

impl Rules for SwitchRules {
    type Refusal = Refusal;
    batzen_engine::dispatch_to_commands!(Command);
}

impl SwitchRules {
    /// Plans a message to a participant.
    fn plan_message(&self, participant: u32, plan: &mut Plan) {
        plan_message(participant, self.stamp.number, plan);
    }

    /// Collects the consequences of a decision.
    fn collect(&self, now: Timestamp, decide: impl FnOnce(&mut Context)) -> Decided {
        let Stamp { number, micros } = self.stamp;
        let mut context = Context { now, micros, number, outcome: Consequences::default() };
        decide(&mut context);
        Ok(context.outcome)
    }
}

batzen_protocol::enumeration! {
    /// Kinds of messages in the outbox.
    pub enum MessageKind {
        /// The payer's POST, byte for byte.
        Prepare = 1,
        /// The payee's PUT: byte for byte, or changed to COMMITTED if it was RESERVED.
        Fulfil = 2,
        /// The payee's PUT error, byte for byte.
        Error = 3,
        /// The switch's PUT error: code and text.
        SwitchError = 4,
        /// The state of the transfer.
        TransferStage = 5,
        /// The outcome of the payee's fulfilment.
        Patch = 6,
        /// The reserved items of a bulk transfer.
        BulkPrepare = 7,
        /// The state of the bulk transfer.
        BulkState = 8,
        /// The switch's PUT error about a bulk transfer.
        BulkSwitchError = 9,
        /// An operator has changed a position or limit, or its alarm was raised; the text is JSON.
        Notice = 10,
    }
}

/// A message for the outbox.
struct Message {
    to: u32,
    kind: MessageKind,
    id: u128,
    code: u16,
    text: String,
}

impl Message {
    fn new(to: u32, kind: MessageKind, id: u128) -> Self {
        Self { to, kind, id, code: 0, text: String::new() }
    }

    fn error(to: u32, id: u128, error: ApiError, text: &str) -> Self {
        let text = if text.is_empty() { error.text() } else { text };
        Self { to, kind: MessageKind::SwitchError, id, code: error.code(), text: text.to_owned() }
    }
}

fn plan_state(plan: &mut Plan) {
    plan.row::<SwitchStates>(SwitchStateKey::ONLY);
}

fn state_row(rows: &WorkingSet) -> &SwitchStateRow {
    rows.get::<SwitchStates>(&SwitchStateKey::ONLY).expect("the switch was opened")
}

fn change_state<T>(rows: &mut WorkingSet, change: impl FnOnce(&mut SwitchStateRow) -> T) -> T {
    let mut state = state_row(rows).clone();
    let result = change(&mut state);
    rows.update::<SwitchStates>(&SwitchStateKey::ONLY, state);
    result
}

/// The account against which a participant's transfers are reserved.
fn position(participant: u32, currency: u32) -> SwitchAccountKey {
    SwitchAccountKey::new(participant, currency, AccountKind::Position)
}

fn hub_settlement(currency: u32) -> SwitchAccountKey {
    SwitchAccountKey::new(HUB, currency, AccountKind::HubMultilateralSettlement)
}

fn conflict(text: impl Into<String>) -> Refusal {
    Refusal::Conflict(text.into())
}

/// Takes the next number of a sequence.
fn take_u64(number: &mut u64) -> u64 {
    let taken = *number;
    *number = taken.checked_add(1).expect("fewer than 2^64");
    taken
}

/// A rule's input besides rows.
struct Context {
    /// In whole seconds.
    now: Timestamp,
    /// Microseconds since 1970.
    micros: u64,
    /// The number of the next message in the outbox.
    number: u64,
    outcome: Consequences,
}

impl Context {
    /// Milliseconds since 1970.
    fn millis(&self) -> u64 {
        self.micros / 1000
    }

    /// Puts a message into the outbox. There is at most one per participant under each number, since the plan
    /// contains only these keys.
    fn tell(&mut self, rows: &mut WorkingSet, message: Message) {
        let Message { to, kind, id, code, text } = message;
        if to == HUB {
            return;
        }
        let row = OutboxRow { kind: kind as u8, id, code, text, created: self.millis() };
        rows.insert::<Outbox>(&OutboxKey { participant: to, number: self.number }, row);
        if !self.outcome.told.contains(&to) {
            self.outcome.told.push(to);
        }
    }
}

fn plan_message(participant: u32, number: u64, plan: &mut Plan) {
    if participant != HUB {
        plan.row::<Outbox>(OutboxKey { participant, number });
    }
}

/// Writes the state of a new switch; always the first command.
#[derive(Clone, Debug)]
pub struct Open;

impl batzen_engine::Command<SwitchRules> for Open {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan.row::<Windows>(WindowKey { id: 1 });
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        if rows.get::<SwitchStates>(&SwitchStateKey::ONLY).is_none() {
            let state = SwitchStateRow {
                next_participant: 1,
                next_account: 1,
                open_window: 1,
                open_in_flight: 0,
                open_transfers: 0,
                next_settlement: 1,
                next_approval: 1,
                next_movement: 1,
            };
            rows.insert::<SwitchStates>(&SwitchStateKey::ONLY, state);
            rows.insert::<Windows>(&WindowKey { id: 1 }, windows::new_window("first window", now));
        }
        Ok(Consequences::default())
    }
}

/// These messages have been delivered or given up.
#[derive(Clone, Debug)]
pub struct Sent(pub Vec<OutboxKey>);

impl batzen_engine::Command<SwitchRules> for Sent {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        self.0.iter().for_each(|key| plan.row::<Outbox>(key.clone()));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        for key in &self.0 {
            if rows.get::<Outbox>(key).is_some() {
                rows.delete::<Outbox>(key);
            }
        }
        Ok(Consequences::default())
    }
}
