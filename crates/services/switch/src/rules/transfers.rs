//! Prepare, fulfil, error, expiry, and the ledger's answers.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    Bodies, BodyKey, BodyKind, BodyRow, ParticipantKey, Participants, SwitchAccounts, TransferKey,
    TransferRow, Transfers,
};

use super::state::{self, TransferStage, advance, received_millis};
use super::{
    Consequences, Context, Decided, Message, MessageKind, SwitchRules, bulks, change_state, hub_settlement,
    plan_message, plan_state, position, windows,
};
use crate::errors::ApiError;
use crate::fulfilment;
use crate::messages::TransferState;

/// A message as received.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The header lines to pass on.
    pub headers: String,
    /// The body, byte for byte.
    pub body: Vec<u8>,
    /// SHA-256 of the canonical body.
    pub hash: [u8; 32],
}

/// A participant as named in a message.
#[derive(Clone, Debug)]
pub struct Party {
    /// Its name as given.
    pub name: String,
    /// Its number; 0 if there is none. Numbers never change.
    pub number: u32,
}

batzen_protocol::enumeration! {
    /// The ledger operation needed for a transfer.
    pub enum IntentKind {
        /// Create the pending transfer.
        Reserve = 1,
        /// Post it.
        Post = 2,
        /// Void it.
        Void = 3,
        /// Post it, and settle it in the same chain.
        PostGross = 4,
    }
}

/// An event to be sent to the ledger until it is answered. Built from the transfer's row alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The operation.
    pub kind: IntentKind,
    /// The transfer.
    pub id: u128,
    /// The payer.
    pub payer: u32,
    /// The payee.
    pub payee: u32,
    /// The currency.
    pub currency: u32,
    /// In ten-thousandths.
    pub amount: u128,
    /// The window of a post, 0 otherwise.
    pub window: u64,
    /// When it expires, in milliseconds since 1970.
    pub expiration: u64,
    /// Time that the ledger holds it, in whole seconds. Only a backstop: the switch decides earlier.
    pub timeout_s: u32,
    /// The bulk transfer that it is part of.
    pub bulk: Option<u128>,
}

impl Intent {
    /// The intent of a stored transfer, if it has one.
    #[must_use]
    pub fn of(id: u128, row: &TransferRow) -> Option<Self> {
        let kind = IntentKind::from_number(row.intent)?;
        let left_ms = row.expiration.saturating_sub(received_millis(row));
        Some(Self {
            kind,
            id,
            payer: row.payer,
            payee: row.payee,
            currency: row.currency,
            amount: row.amount,
            window: row.window,
            expiration: row.expiration,
            timeout_s: u32::try_from(left_ms.div_ceil(1000) + 1).unwrap_or(u32::MAX),
            bulk: row.bulk,
        })
    }
}

/// The ledger's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// It is done, either now or earlier.
    Done,
    /// It is posted, but the chain that settles it failed, so it will be settled in net.
    DoneUnsettled,
    /// The reservation was refused.
    Refused(ApiError),
    /// The reservation was never sent, because it was already due.
    TooLate,
    /// The reservation had expired (post) or was already released (void).
    Expired,
    /// The ledger contradicts the switch's books.
    Broken(u32),
}

/// The ledger's answer to an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The intent.
    pub intent: Intent,
    /// The answer.
    pub status: AnswerStatus,
}

pub(super) fn plan_transfer(id: u128, plan: &mut Plan) {
    plan.row::<Transfers>(TransferKey { id });
}

pub(super) fn plan_parties(payer: &Party, payee: &Party, currency: u32, plan: &mut Plan) {
    for party in [payer, payee] {
        plan.row::<Participants>(ParticipantKey::new(&party.name));
        plan.row::<SwitchAccounts>(position(party.number, currency));
    }
    plan.row::<SwitchAccounts>(hub_settlement(currency));
}

/// Why a prepare fails validation.
pub(super) type Fault = (ApiError, &'static str);

/// `POST /transfers`.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// The transfer.
    pub id: u128,
    /// The participant that sent the message.
    pub source: u32,
    /// The payer.
    pub payer: Party,
    /// The payee.
    pub payee: Party,
    /// The currency.
    pub currency: u32,
    /// In ten-thousandths.
    pub amount: u128,
    /// `None`: malformed.
    pub condition: Option<[u8; 32]>,
    /// In milliseconds since 1970.
    pub expiration: u64,
    /// The message.
    pub message: Received,
    /// The bulk transfer that it is part of.
    pub bulk: Option<u128>,
}

impl Command<SwitchRules> for Prepare {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_transfer(self.id, plan);
        plan.row::<Bodies>(BodyKey::new(self.id, BodyKind::Prepare));
        plan_parties(&self.payer, &self.payee, self.currency, plan);
        rules.plan_message(self.source, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| self.record(rules, rows, cx))
    }
}

impl Prepare {
    /// Records the transfer, refused or with its intent.
    pub(super) fn record(&self, rules: &SwitchRules, rows: &mut WorkingSet, cx: &mut Context) {
        let key = TransferKey { id: self.id };
        if let Some(known) = rows.get::<Transfers>(&key) {
            // A sender that only knows the text of another's message learns nothing about its transfer. (An
            // invalid message may name anybody.)
            let is_foreign = known.payer != self.source && TransferStage::of(known) != TransferStage::Invalid;
            if known.prepare_hash != self.message.hash || known.bulk != self.bulk || is_foreign {
                let error = ApiError::ModifiedRequest;
                cx.tell(rows, Message::error(self.source, self.id, error, ""));
            } else if TransferStage::of(known) != TransferStage::ReceivedPrepare {
                cx.tell(rows, Message::new(self.source, MessageKind::TransferStage, self.id));
            }
            // Otherwise its callback is on its way.
            return;
        }
        let fault = self.validate(rules, rows, cx.millis());
        let refusal = fault.or_else(|| over_limit(rows, self));
        let (begin, reason) = match fault {
            Some((error, _)) => (TransferStage::Invalid, error.code()),
            None => (TransferStage::ReceivedPrepare, 0),
        };
        let hub = rows.get::<SwitchAccounts>(&hub_settlement(self.currency));
        let mut row = TransferRow {
            state: begin as u8,
            intent: 0,
            payer: self.payer.number,
            payee: self.payee.number,
            currency: self.currency,
            amount: self.amount,
            condition: self.condition.unwrap_or_default(),
            expiration: self.expiration,
            prepare_hash: self.message.hash,
            fulfil_hash: None,
            error_hash: None,
            fulfilment: None,
            completed: 0,
            window: 0,
            gross: hub.is_some_and(|hub| hub.gross),
            wants_patch: false,
            error_code: 0,
            error_text: String::new(),
            bulk: self.bulk,
            history: state::begin(begin, reason, cx.micros),
        };
        if let Some((error, text)) = refusal {
            if fault.is_none() {
                advance(&mut row, TransferStage::AbortedRejected, error.code(), cx.micros);
            }
            fail(&mut row, error, text, cx.millis());
            if self.bulk.is_none() {
                cx.tell(rows, Message::error(self.source, self.id, error, text));
            }
        } else {
            row.intent = IntentKind::Reserve as u8;
            cx.outcome.intents.extend(Intent::of(self.id, &row));
            if self.bulk.is_none() {
                let Received { headers, body, .. } = self.message.clone();
                rows.insert::<Bodies>(&BodyKey::new(self.id, BodyKind::Prepare), BodyRow { headers, body });
            }
        }
        rows.insert::<Transfers>(&key, row);
    }

    /// The checks of chapter 2.5, step 3, in order.
    fn validate(&self, rules: &SwitchRules, rows: &WorkingSet, now: u64) -> Option<Fault> {
        let Self { payer, payee, currency, .. } = self;
        if payer.number == 0 {
            return Some((ApiError::PayerFspIdNotFound, ""));
        }
        if self.source != payer.number {
            return Some((ApiError::ValidationError, "the sender is not the payer"));
        }
        let active = |party: &Party| {
            rows.get::<Participants>(&ParticipantKey::new(&party.name))
                .filter(|row| row.number == party.number)
                .map(|row| row.active)
        };
        match active(payer) {
            None => return Some((ApiError::PayerFspIdNotFound, "")),
            Some(false) => return Some((ApiError::PayerPermissionError, "the payer is not active")),
            Some(true) => {}
        }
        match active(payee) {
            None => return Some((ApiError::PayeeFspIdNotFound, "")),
            Some(false) => return Some((ApiError::PayeePermissionError, "the payee is not active")),
            Some(true) => {}
        }
        if self.condition.is_none() {
            return Some((ApiError::ValidationError, "the condition is not 32 bytes"));
        }
        if self.expiration <= now {
            return Some((ApiError::TransferExpired, ""));
        }
        if payer.number == payee.number && !rules.allow_on_us {
            return Some((ApiError::ValidationError, "payer and payee are the same"));
        }
        let account = |party: &Party| {
            rows.get::<SwitchAccounts>(&position(party.number, *currency))
                .is_some_and(|row| row.active && row.ndc.is_some())
        };
        if !account(payer) {
            return Some((
                ApiError::PayerPermissionError,
                "the payer has no active account of this currency",
            ));
        }
        if !account(payee) {
            let text = "the payee has no active account of this currency";
            return Some((ApiError::PayeeCurrencyUnsupported, text));
        }
        None
    }
}

/// New prepares of a participant over its limit are refused before they reach the ledger.
fn over_limit(rows: &WorkingSet, prepare: &Prepare) -> Option<Fault> {
    let key = position(prepare.payer.number, prepare.currency);
    let code = rows.get::<SwitchAccounts>(&key)?.over_limit;
    let error = ApiError::from_code(code)?;
    Some((error, "the payer is over its limit"))
}

fn fail(row: &mut TransferRow, error: ApiError, text: &str, now: u64) {
    row.error_code = error.code();
    row.error_text = if text.is_empty() { error.text().to_owned() } else { text.to_owned() };
    row.completed = now;
}

/// The checks of chapter 2.6, steps 1 and 2. Payer and payee are those of the transfer, not of the message.
fn known<'a>(
    rows: &'a mut WorkingSet,
    id: u128,
    (source, destination): (u32, u32),
    cx: &mut Context,
) -> Option<&'a TransferRow> {
    let key = TransferKey { id };
    let fault = match rows.get::<Transfers>(&key) {
        None => Some((ApiError::TransferIdNotFound, "")),
        Some(row) if row.payee != source || row.payer != destination => {
            Some((ApiError::ValidationError, "sender or receiver is not the transfer's"))
        }
        Some(row) if row.bulk.is_some() => {
            Some((ApiError::ValidationError, "the transfer is answered with its bulk transfer"))
        }
        Some(_) => None,
    };
    if let Some((error, text)) = fault {
        cx.tell(rows, Message::error(source, id, error, text));
        return None;
    }
    rows.get::<Transfers>(&key)
}

/// The answer to a payee whose message can no longer change the transfer.
fn too_late(
    rows: &mut WorkingSet,
    id: u128,
    source: u32,
    row: &TransferRow,
    wants_patch: bool,
    cx: &mut Context,
) {
    let state = TransferStage::of(row);
    let message = if wants_patch && state.is_final() {
        Message::new(source, MessageKind::Patch, id)
    } else if matches!(
        state,
        TransferStage::ReservedTimeout | TransferStage::ExpiredReserved | TransferStage::ExpiredPrepared
    ) {
        Message::error(source, id, ApiError::TransferExpired, "")
    } else {
        Message::error(source, id, ApiError::ValidationError, "the transfer is not reserved")
    };
    cx.tell(rows, message);
}

/// `PUT /transfers/{id}`.
#[derive(Clone, Debug)]
pub struct Fulfil {
    /// The transfer.
    pub id: u128,
    /// The participant that sent the message.
    pub source: u32,
    /// The participant it is for.
    pub destination: u32,
    /// `None`: missing or malformed, so that no condition is satisfied.
    pub fulfilment: Option<[u8; 32]>,
    /// Whether the payee wants to be notified when it is committed.
    pub reserved: bool,
    /// The message.
    pub message: Received,
}

impl Command<SwitchRules> for Fulfil {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan_transfer(self.id, plan);
        plan.row::<Bodies>(BodyKey::new(self.id, BodyKind::Fulfil));
        rules.plan_message(self.source, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            let Self { id, source, .. } = *self;
            let Some(row) = known(rows, id, (source, self.destination), cx) else { return };
            if let Some(hash) = row.fulfil_hash {
                if hash != self.message.hash {
                    cx.tell(rows, Message::error(source, id, ApiError::ModifiedRequest, ""));
                } else if TransferStage::of(row).is_final() {
                    let row = row.clone();
                    resend(rows, id, &row, cx);
                }
                return;
            }
            if TransferStage::of(row) != TransferStage::Reserved {
                let row = row.clone();
                return too_late(rows, id, source, &row, self.reserved, cx);
            }
            let mut row = row.clone();
            row.fulfil_hash = Some(self.message.hash);
            row.wants_patch = self.reserved;
            accept_fulfilment(rows, id, &mut row, self.fulfilment, cx);
            if row.fulfilment.is_some() {
                let Received { headers, body, .. } = self.message.clone();
                rows.insert::<Bodies>(&BodyKey::new(id, BodyKind::Fulfil), BodyRow { headers, body });
            }
            rows.update::<Transfers>(&TransferKey { id }, row);
        })
    }
}

/// `PUT /transfers/{id}/error`.
#[derive(Clone, Debug)]
pub struct ErrorMessage {
    /// The transfer.
    pub id: u128,
    /// The participant that sent the message.
    pub source: u32,
    /// The participant it is for.
    pub destination: u32,
    /// The code.
    pub code: u16,
    /// The description.
    pub text: String,
    /// The message.
    pub message: Received,
}

impl Command<SwitchRules> for ErrorMessage {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_transfer(self.id, plan);
        plan.row::<Bodies>(BodyKey::new(self.id, BodyKind::Error));
        rules.plan_message(self.source, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            let Self { id, source, .. } = *self;
            let Some(row) = known(rows, id, (source, self.destination), cx) else { return };
            if let Some(hash) = row.error_hash {
                if hash != self.message.hash {
                    cx.tell(rows, Message::error(source, id, ApiError::ModifiedRequest, ""));
                }
                // A repetition: a payee gets no answer to its self.
                return;
            }
            if TransferStage::of(row) != TransferStage::Reserved {
                let row = row.clone();
                return too_late(rows, id, source, &row, false, cx);
            }
            let mut row = row.clone();
            accept_error(id, &mut row, self.message.hash, (self.code, &self.text), cx);
            let Received { headers, body, .. } = self.message.clone();
            rows.insert::<Bodies>(&BodyKey::new(id, BodyKind::Error), BodyRow { headers, body });
            rows.update::<Transfers>(&TransferKey { id }, row);
        })
    }
}

/// Steps 5 to 7 for a reserved transfer: it will be posted or voided.
pub(super) fn accept_fulfilment(
    rows: &mut WorkingSet,
    id: u128,
    row: &mut TransferRow,
    fulfilment: Option<[u8; 32]>,
    cx: &mut Context,
) {
    let satisfies = fulfilment.is_some_and(|fulfilment| fulfilment::satisfies(&fulfilment, &row.condition));
    if !satisfies {
        advance(row, TransferStage::ReceivedError, ApiError::ValidationError.code(), cx.micros);
        fail(row, ApiError::ValidationError, "the fulfilment does not satisfy the condition", cx.millis());
        intend(row, id, IntentKind::Void, cx);
    } else if row.expiration <= cx.millis() {
        time_out(row, id, cx);
    } else {
        advance(row, TransferStage::ReceivedFulfil, 0, cx.micros);
        row.fulfilment = fulfilment;
        row.window = change_state(rows, |state| {
            state.open_in_flight += 1;
            state.open_window
        });
        let kind = if row.gross { IntentKind::PostGross } else { IntentKind::Post };
        intend(row, id, kind, cx);
    }
}

fn intend(row: &mut TransferRow, id: u128, kind: IntentKind, cx: &mut Context) {
    assert_eq!(row.intent, 0, "a transfer has one intent at a time");
    row.intent = kind as u8;
    cx.outcome.intents.extend(Intent::of(id, row));
}

fn time_out(row: &mut TransferRow, id: u128, cx: &mut Context) {
    advance(row, TransferStage::ReservedTimeout, ApiError::TransferExpired.code(), cx.micros);
    fail(row, ApiError::TransferExpired, "", cx.millis());
    intend(row, id, IntentKind::Void, cx);
}

/// Repeats to a payee the answer to its message.
fn resend(rows: &mut WorkingSet, id: u128, row: &TransferRow, cx: &mut Context) {
    let message = match (row.wants_patch, ApiError::from_code(row.error_code)) {
        (true, _) => Message::new(row.payee, MessageKind::Patch, id),
        (false, Some(error)) => Message::error(row.payee, id, error, &row.error_text),
        // A committed transfer whose payee did not ask for confirmation. There was no answer to repeat, so
        // send the state.
        (false, None) => Message::new(row.payee, MessageKind::TransferStage, id),
    };
    cx.tell(rows, message);
}

/// The payee refuses a reserved transfer with the message of this hash: it will be voided.
pub(super) fn accept_error(
    id: u128,
    row: &mut TransferRow,
    hash: [u8; 32],
    (code, text): (u16, &str),
    cx: &mut Context,
) {
    row.error_hash = Some(hash);
    let next = match code {
        // A rejection without a specific reason.
        5104 | 5105 => TransferStage::ReceivedReject,
        _ => TransferStage::ReceivedError,
    };
    advance(row, next, code, cx.micros);
    (row.error_code, row.error_text, row.completed) = (code, text.to_owned(), cx.millis());
    intend(row, id, IntentKind::Void, cx);
}

/// A participant asks for the state of a transfer.
#[derive(Clone, Debug)]
pub struct Get {
    /// The transfer.
    pub id: u128,
    /// The participant that asks.
    pub source: u32,
}

impl Command<SwitchRules> for Get {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_transfer(self.id, plan);
        rules.plan_message(self.source, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { id, source } = *self;
        let message = match rows.get::<Transfers>(&TransferKey { id }) {
            Some(row) if row.payer == source || row.payee == source => {
                Message::new(source, MessageKind::TransferStage, id)
            }
            _ => Message::error(source, id, ApiError::TransferIdNotFound, ""),
        };
        rules.collect(now, |cx| cx.tell(rows, message))
    }
}

/// These transfers are due, unless they have already been decided.
#[derive(Clone, Debug)]
pub struct Expire(pub Vec<u128>);

impl Command<SwitchRules> for Expire {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        self.0.iter().for_each(|id| plan_transfer(*id, plan));
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            for &id in &self.0 {
                let key = TransferKey { id };
                let Some(row) = rows.get::<Transfers>(&key) else { continue };
                if TransferStage::of(row) == TransferStage::Reserved && row.expiration <= cx.millis() {
                    let mut row = row.clone();
                    time_out(&mut row, id, cx);
                    rows.update::<Transfers>(&key, row);
                }
            }
        })
    }
}

/// The ledger has answered these intents.
#[derive(Clone, Debug)]
pub struct Answers(pub Vec<Answer>);

impl Command<SwitchRules> for Answers {
    type Answer = Consequences;

    /// Each answer has its own number in the outbox.
    fn events(&self) -> usize {
        self.0.len()
    }

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        for (answer, number) in self.0.iter().zip(rules.stamp.number..) {
            let Intent { id, payer, payee, currency, window, .. } = answer.intent;
            plan_transfer(id, plan);
            plan_message(payer, number, plan);
            plan_message(payee, number, plan);
            if let Some(bulk) = answer.intent.bulk {
                bulks::plan_bulk(bulk, plan);
            }
            if window != 0 {
                plan_state(plan);
                windows::plan_committed(window, payer, payee, currency, plan);
            }
        }
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            for (answer, number) in self.0.iter().zip(rules.stamp.number..) {
                cx.number = number;
                let key = TransferKey { id: answer.intent.id };
                let row = rows.get::<Transfers>(&key).expect("an intent is a transfer's").clone();
                // An intent sent twice is answered twice; the first answer counts.
                if row.intent == answer.intent.kind as u8 {
                    answered(rows, &key, row, answer, cx);
                }
            }
        })
    }
}

fn answered(
    rows: &mut WorkingSet,
    key: &TransferKey,
    mut row: TransferRow,
    answer: &Answer,
    cx: &mut Context,
) {
    let (id, now) = (key.id, cx.millis());
    row.intent = 0;
    let was = TransferStage::of(&row);
    match (answer.intent.kind, answer.status) {
        (IntentKind::Reserve, AnswerStatus::Done) => {
            advance(&mut row, TransferStage::Reserved, 0, cx.micros);
            if row.expiration <= now {
                time_out(&mut row, id, cx);
            } else {
                let deadline = cx.outcome.deadline.unwrap_or(u64::MAX);
                cx.outcome.deadline = Some(deadline.min(row.expiration));
                if row.bulk.is_none() {
                    cx.tell(rows, Message::new(row.payee, MessageKind::Prepare, id));
                }
            }
        }
        (IntentKind::Reserve, AnswerStatus::Refused(error)) => {
            advance(&mut row, TransferStage::AbortedRejected, error.code(), cx.micros);
            fail(&mut row, error, "", now);
        }
        (IntentKind::Reserve, AnswerStatus::TooLate) => {
            let error = ApiError::TransferExpired;
            advance(&mut row, TransferStage::ExpiredPrepared, error.code(), cx.micros);
            fail(&mut row, error, "", now);
        }
        (IntentKind::Post | IntentKind::PostGross, AnswerStatus::Done | AnswerStatus::DoneUnsettled) => {
            advance(&mut row, TransferStage::Committed, 0, cx.micros);
            row.completed = now;
            let settled = answer.intent.kind == IntentKind::PostGross && answer.status == AnswerStatus::Done;
            if settled {
                advance(&mut row, TransferStage::Settled, 0, cx.micros);
            }
            windows::committed(rows, &row, settled, cx.now);
        }
        (IntentKind::Post | IntentKind::PostGross, AnswerStatus::Expired) => {
            windows::released(rows, row.window, cx.now);
            (row.window, row.fulfilment) = (0, None);
            advance(&mut row, TransferStage::ReservedTimeout, ApiError::TransferExpired.code(), cx.micros);
            advance(&mut row, TransferStage::ExpiredReserved, ApiError::TransferExpired.code(), cx.micros);
            fail(&mut row, ApiError::TransferExpired, "", now);
        }
        (IntentKind::Void, AnswerStatus::Done | AnswerStatus::Expired) => {
            let next = match was {
                TransferStage::ReceivedError => TransferStage::AbortedError,
                TransferStage::ReceivedReject => TransferStage::AbortedRejected,
                TransferStage::ReservedTimeout => TransferStage::ExpiredReserved,
                other => unreachable!("a transfer in {} is not voided", other.name()),
            };
            let reason = row.error_code;
            advance(&mut row, next, reason, cx.micros);
        }
        (_, status) => {
            if row.window != 0 {
                windows::released(rows, row.window, cx.now);
                row.window = 0;
            }
            let error = ApiError::InternalServerError;
            advance(&mut row, TransferStage::Failed, error.code(), cx.micros);
            fail(&mut row, error, &format!("the ledger answers {status:?}"), now);
        }
    }
    let state = TransferStage::of(&row);
    match row.bulk {
        Some(bulk) => bulks::item_answered(rows, bulk, (answer.intent.kind, was), &row, cx),
        None if state.is_final() => tell_outcome(rows, id, was, &row, cx),
        None => {}
    }
    rows.update::<Transfers>(key, row);
}

/// Notifies payer and payee of the same outcome.
fn tell_outcome(rows: &mut WorkingSet, id: u128, was: TransferStage, row: &TransferRow, cx: &mut Context) {
    let committed = TransferStage::of(row).external() == TransferState::Committed;
    let error = ApiError::from_code(row.error_code);
    let payer = if committed {
        Message::new(row.payer, MessageKind::Fulfil, id)
    } else if row.error_hash.is_some() {
        Message::new(row.payer, MessageKind::Error, id)
    } else {
        Message::error(row.payer, id, error.unwrap_or(ApiError::ServerError), &row.error_text)
    };
    cx.tell(rows, payer);
    // A payee that was never asked, or that refused itself, needs no notice.
    if row.payer == row.payee || was == TransferStage::ReceivedPrepare || row.error_hash.is_some() {
        return;
    }
    if row.wants_patch {
        cx.tell(rows, Message::new(row.payee, MessageKind::Patch, id));
    } else if !committed {
        cx.tell(rows, Message::error(row.payee, id, error.unwrap_or(ApiError::ServerError), &row.error_text));
    }
}
