//! The switch's rules: the effect of a command on transfers, windows, settlements and participants. They are
//! pure: no I/O, no clock, no randomness.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | the states of a transfer and the moves between them |
//! | [`transfers`] | prepare, fulfil, error, expiry, and the ledger's answers |
//! | [`bulks`] | bulk transfers: many transfers that are announced and answered together |
//! | [`admin`] | participants, accounts, limits |
//! | [`approvals`] | changes that one operator proposes and another approves |
//! | [`windows`] | settlement windows and the amounts sent and received in them |
//! | [`settlements`] | net settlement |
//! | [`parties`] | the parties that participants register as customers |
//! | [`movements`] | deposits and withdrawals of liquidity, grants and revocations of headroom |
//!
//! Money moves only in the ledger. A command that moves money records an *intent* in the same commit as the
//! reason. The event is sent afterwards, repeatedly under the same id until it is answered;
//! [`Command::Answers`] records the answer.

pub mod admin;
pub mod approvals;
pub mod bulks;
pub mod movements;
pub mod parties;
pub mod settlements;
pub mod state;
pub mod transfers;
pub mod windows;

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    HUB, Outbox, OutboxKey, OutboxRow, SwitchStateKey, SwitchStateRow, SwitchStates, WindowKey, Windows,
};

use crate::errors::ApiError;

pub use admin::{Change, Refusal};
pub use approvals::{ApprovalCommand, ApprovalState};
pub use bulks::{BulkError, BulkFulfil, BulkPrepare, ItemResult};
pub use movements::MovementCommand;
pub use parties::PartyCommand;
pub use settlements::SettlementCommand;
pub use transfers::{Answer, AnswerStatus, ErrorMessage, Fulfil, Intent, IntentKind, Prepare};

/// A command to the switch. The format of its texts has been checked before.
#[derive(Clone, Debug)]
pub enum Command {
    /// Writes the state of a new switch; always the first command.
    Open,
    /// A payer's transfer.
    Prepare(Box<Prepare>),
    /// A payee's fulfilment.
    Fulfil(Box<Fulfil>),
    /// A payee's refusal.
    Error(Box<ErrorMessage>),
    /// A participant asks for the state of a transfer.
    Get {
        /// The transfer.
        id: u128,
        /// The participant that asks.
        source: u32,
    },
    /// A payer's bulk transfer.
    BulkPrepare(Box<BulkPrepare>),
    /// A payee's answer to a bulk transfer.
    BulkFulfil(Box<BulkFulfil>),
    /// A payee rejects a bulk transfer.
    BulkError(Box<BulkError>),
    /// A participant asks for the state of a bulk transfer.
    BulkGet {
        /// The bulk transfer.
        id: u128,
        /// The participant that asks.
        source: u32,
    },
    /// These transfers are due, unless they have already been decided.
    Expire(Vec<u128>),
    /// The ledger has answered these intents.
    Answers(Vec<Answer>),
    /// These messages have been delivered or given up.
    Sent(Vec<OutboxKey>),
    /// A change of participants, accounts or limits takes effect.
    Change(Box<Change>),
    /// Proposals and decisions on them.
    Approval(Box<ApprovalCommand>),
    /// Account lookups.
    Party(Box<PartyCommand>),
    /// Closes the open window and opens the next.
    CloseWindow {
        /// The window that the caller believes to be open.
        id: u64,
        /// The reason.
        reason: String,
    },
    /// Settlements.
    Settlement(Box<SettlementCommand>),
    /// Liquidity and headroom.
    Movement(Box<MovementCommand>),
}

/// A command with its numbers in the outbox.
#[derive(Clone, Debug)]
pub struct Numbered {
    /// The number of its first message; it uses up [`Command::numbers`].
    pub number: u64,
    /// The time of the decision, in microseconds since 1970: the engine's time counts whole seconds, but
    /// transfers expire to the millisecond.
    pub micros: u64,
    /// The command.
    pub command: Command,
}

impl From<Command> for Numbered {
    /// A command that the lane has not numbered yet.
    fn from(command: Command) -> Self {
        Self { number: 0, micros: 0, command }
    }
}

impl Command {
    /// The most outbox numbers that it may need.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        match self {
            Self::Answers(answers) => answers.len() as u64,
            _ => 1,
        }
    }
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

/// The rules with their options.
#[derive(Clone, Debug, Default)]
pub struct SwitchRules {
    /// Whether a participant may pay itself.
    pub allow_on_us: bool,
}

/// Kinds of messages in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
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

impl MessageKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Prepare,
            2 => Self::Fulfil,
            3 => Self::Error,
            4 => Self::SwitchError,
            5 => Self::TransferStage,
            6 => Self::Patch,
            7 => Self::BulkPrepare,
            8 => Self::BulkState,
            9 => Self::BulkSwitchError,
            10 => Self::Notice,
            _ => return None,
        })
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

fn plan_message(plan: &mut Plan, participant: u32, number: u64) {
    if participant != HUB {
        plan.row::<Outbox>(OutboxKey { participant, number });
    }
}

fn open(rows: &mut WorkingSet, now: Timestamp) {
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
}

impl Rules for SwitchRules {
    type Command = Numbered;
    type Answer = Consequences;
    type Refusal = Refusal;

    fn plan(&self, Numbered { number, micros, command }: &Numbered, plan: &mut Plan) {
        let number = *number;
        match command {
            Command::Open => {
                plan_state(plan);
                plan.row::<Windows>(WindowKey { id: 1 });
            }
            Command::Prepare(prepare) => transfers::plan_prepare(prepare, number, plan),
            Command::Fulfil(fulfil) => transfers::plan_fulfil(fulfil, number, plan),
            Command::Error(error) => transfers::plan_error(error, number, plan),
            Command::Get { id, source } => {
                transfers::plan_transfer(*id, plan);
                plan_message(plan, *source, number);
            }
            Command::BulkPrepare(prepare) => bulks::plan_prepare(prepare, number, plan),
            Command::BulkFulfil(fulfil) => bulks::plan_fulfil(fulfil, number, plan),
            Command::BulkError(error) => bulks::plan_error(error, number, plan),
            Command::BulkGet { id, source } => {
                bulks::plan_bulk(*id, plan);
                plan_message(plan, *source, number);
            }
            Command::Expire(ids) => ids.iter().for_each(|id| transfers::plan_transfer(*id, plan)),
            Command::Answers(answers) => {
                for (answer, number) in answers.iter().zip(number..) {
                    transfers::plan_answer(answer, number, plan);
                }
            }
            Command::Sent(keys) => keys.iter().for_each(|key| plan.row::<Outbox>(key.clone())),
            Command::Change(change) => admin::plan_change(change, plan),
            Command::Approval(command) => {
                approvals::plan(command, plan);
                if let ApprovalCommand::Decide { effect: Some(effect), .. } = &**command {
                    self.plan(&Numbered { number, micros: *micros, command: (**effect).clone() }, plan);
                }
            }
            Command::Party(command) => parties::plan(command, plan),
            Command::CloseWindow { id, .. } => windows::plan_close(*id, plan),
            Command::Settlement(command) => settlements::plan(command, plan),
            Command::Movement(command) => movements::plan(command, number, plan),
        }
    }

    fn execute(
        &self,
        rows: &mut WorkingSet,
        Numbered { number, micros, command }: &Numbered,
        _: Timestamp,
    ) -> Result<Consequences, Refusal> {
        let mut context = Context {
            now: Timestamp::from_micros(*micros),
            micros: *micros,
            number: *number,
            outcome: Consequences::default(),
        };
        self.run(rows, command, &mut context)?;
        Ok(context.outcome)
    }
}

impl SwitchRules {
    fn run(&self, rows: &mut WorkingSet, command: &Command, cx: &mut Context) -> Result<(), Refusal> {
        let now = cx.now;
        match command {
            Command::Open => open(rows, now),
            Command::Prepare(prepare) => self.prepare(rows, prepare, cx),
            Command::Fulfil(fulfil) => transfers::fulfil(rows, fulfil, cx),
            Command::Error(error) => transfers::error(rows, error, cx),
            Command::Get { id, source } => transfers::get(rows, *id, *source, cx),
            Command::BulkPrepare(prepare) => self.bulk_prepare(rows, prepare, cx),
            Command::BulkFulfil(fulfil) => bulks::fulfil(rows, fulfil, cx),
            Command::BulkError(error) => bulks::error(rows, error, cx),
            Command::BulkGet { id, source } => bulks::get(rows, *id, *source, cx),
            Command::Expire(ids) => transfers::expire(rows, ids, cx),
            Command::Answers(answers) => transfers::answers(rows, answers, cx),
            Command::Sent(keys) => {
                for key in keys {
                    if rows.get::<Outbox>(key).is_some() {
                        rows.delete::<Outbox>(key);
                    }
                }
            }
            Command::Change(change) => cx.outcome.number = admin::change(rows, change, now)?,
            Command::Approval(command) => self.approval(rows, command, cx)?,
            Command::Party(command) => parties::execute(rows, command, cx),
            Command::CloseWindow { id, reason } => {
                cx.outcome.number = windows::close(rows, *id, reason, now)?;
            }
            Command::Settlement(command) => cx.outcome.number = settlements::execute(rows, command, now)?,
            Command::Movement(command) => movements::execute(rows, command, cx)?,
        }
        Ok(())
    }

    fn approval(
        &self,
        rows: &mut WorkingSet,
        command: &ApprovalCommand,
        cx: &mut Context,
    ) -> Result<(), Refusal> {
        match command {
            ApprovalCommand::Propose { .. } => {
                cx.outcome.number = approvals::propose(rows, command, cx.now)?;
            }
            ApprovalCommand::Decide { decision, effect } => {
                approvals::decide(rows, decision, cx.now)?;
                if let Some(effect) = effect {
                    self.run(rows, effect, cx).map_err(|refusal| Refusal::NotDone(Box::new(refusal)))?;
                }
            }
            ApprovalCommand::Expire { id, subject } => approvals::expire(rows, *id, *subject, cx.now),
        }
        Ok(())
    }
}
