//! Bulk transfers (specification, chapter 2.9): many transfers from one payer to one payee. They are
//! announced, forwarded and answered together, but each is validated, reserved and decided on its own by the
//! rules of single transfers ([`transfers`]). The bulk's row counts the open items, so that no answer has to
//! look at all of them.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    Bodies, BodyKey, BodyKind, BodyRow, BulkKey, BulkRow, Bulks, TransferKey, TransferRow, Transfers,
};

use super::state::TransferStage;
use super::transfers::{self, IntentKind, Party, Prepare, Received};
use super::{Consequences, Context, Decided, Message, MessageKind, SwitchRules, plan_state};
use crate::errors::ApiError;
use crate::messages::{BulkState, TransferState};

/// The most items in one bulk transfer.
pub const ITEMS_MAX: usize = 1000;

/// The state of a stored bulk transfer.
///
/// # Panics
/// When the row contains none; only the rules write rows.
#[must_use]
pub fn state_of(row: &BulkRow) -> BulkState {
    BulkState::from_number(row.state).expect("rows are written by the rules")
}

/// The ids of the items, in order.
pub fn items(row: &BulkRow) -> impl Iterator<Item = u128> {
    row.items.chunks_exact(16).map(|id| u128::from_be_bytes(id.try_into().expect("sixteen bytes")))
}

/// Places and codes of the items that were not recorded, in order.
pub fn failed(row: &BulkRow) -> impl Iterator<Item = (usize, u16)> {
    let number = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    row.failed.chunks_exact(4).map(move |part| (usize::from(number(part)), number(&part[2..])))
}

pub(super) fn plan_bulk(id: u128, plan: &mut Plan) {
    plan.row::<Bulks>(BulkKey { id });
}

fn refuse(rows: &mut WorkingSet, to: u32, id: u128, (error, text): (ApiError, &str), cx: &mut Context) {
    let kind = MessageKind::BulkSwitchError;
    cx.tell(rows, Message { kind, ..Message::error(to, id, error, text) });
}

fn is_open(rows: &WorkingSet, id: u128) -> bool {
    let row = rows.get::<Transfers>(&TransferKey { id }).expect("the item was recorded");
    !TransferStage::of(row).is_final()
}

/// `POST /bulkTransfers`.
#[derive(Clone, Debug)]
pub struct BulkPrepare {
    /// The bulk transfer.
    pub id: u128,
    /// The participant that sent the message.
    pub source: u32,
    /// The payer.
    pub payer: Party,
    /// The payee.
    pub payee: Party,
    /// When the items expire, in milliseconds since 1970.
    pub expiration: u64,
    /// The items. They contain only hashes of their messages; the bulk's message is stored whole.
    pub items: Vec<Prepare>,
    /// The message.
    pub message: Received,
}

impl Command<SwitchRules> for BulkPrepare {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_bulk(self.id, plan);
        plan.row::<Bodies>(BodyKey::new(self.id, BodyKind::BulkPrepare));
        rules.plan_message(self.source, plan);
        let mut currency = None;
        for item in &self.items {
            transfers::plan_transfer(item.id, plan);
            if currency.replace(item.currency) != Some(item.currency) {
                transfers::plan_parties(&self.payer, &self.payee, item.currency, plan);
            }
        }
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            let Self { id, source, .. } = *self;
            let key = BulkKey { id };
            if let Some(known) = rows.get::<Bulks>(&key) {
                if known.prepare_hash != self.message.hash || known.payer != source {
                    refuse(rows, source, id, (ApiError::ModifiedRequest, ""), cx);
                } else if state_of(known) != BulkState::Pending {
                    cx.tell(rows, Message::new(source, MessageKind::BulkState, id));
                }
                // Otherwise its callback is on its way.
                return;
            }
            let (mut items, mut failed, mut open) = (Vec::new(), Vec::new(), 0);
            for (place, item) in (0_u16..).zip(&self.items) {
                items.extend_from_slice(&item.id.to_be_bytes());
                if rows.get::<Transfers>(&TransferKey { id: item.id }).is_some() {
                    failed.extend_from_slice(&place.to_be_bytes());
                    failed.extend_from_slice(&ApiError::ModifiedRequest.code().to_be_bytes());
                    continue;
                }
                item.record(rules, rows, cx);
                open += u32::from(is_open(rows, item.id));
            }
            let mut row = BulkRow {
                state: BulkState::Pending as u8,
                payer: self.payer.number,
                payee: self.payee.number,
                prepare_hash: self.message.hash,
                fulfil_hash: None,
                error_hash: None,
                expiration: self.expiration,
                unanswered_items: open,
                open_items: open,
                tells_payee: false,
                items,
                failed,
                completed: 0,
            };
            if open == 0 {
                (row.state, row.completed) = (BulkState::Completed as u8, cx.millis());
                cx.tell(rows, Message::new(source, MessageKind::BulkState, id));
            } else {
                let Received { headers, body, .. } = self.message.clone();
                rows.insert::<Bodies>(&BodyKey::new(id, BodyKind::BulkPrepare), BodyRow { headers, body });
            }
            rows.insert::<Bulks>(&key, row);
        })
    }
}

/// The checks of chapter 2.6, steps 1 to 4, for an answer to a bulk; the hash is that of the message.
fn known(
    rows: &mut WorkingSet,
    (id, hash, is_error): (u128, [u8; 32], bool),
    (source, destination): (u32, u32),
    cx: &mut Context,
) -> Option<BulkRow> {
    let row = rows.get::<Bulks>(&BulkKey { id }).cloned();
    let fault = match &row {
        None => (ApiError::BulkTransferIdNotFound, ""),
        Some(row) if row.payee != source || row.payer != destination => {
            (ApiError::ValidationError, "sender or receiver is not the bulk transfer's")
        }
        Some(row) => {
            let state = state_of(row);
            let is_final = matches!(state, BulkState::Completed | BulkState::Rejected);
            match if is_error { row.error_hash } else { row.fulfil_hash } {
                Some(seen) if seen != hash => (ApiError::ModifiedRequest, ""),
                Some(_) => {
                    // For a repetition: the outcome if it has ended; otherwise it is still in progress.
                    // Errors are not answered.
                    if is_final && !is_error {
                        cx.tell(rows, Message::new(source, MessageKind::BulkState, id));
                    }
                    return None;
                }
                None if row.fulfil_hash.is_some() || row.error_hash.is_some() => {
                    (ApiError::ValidationError, "the bulk transfer has been answered")
                }
                None if is_final && row.expiration <= cx.millis() => (ApiError::TransferExpired, ""),
                None if !matches!(state, BulkState::Accepted | BulkState::Processing) => {
                    (ApiError::ValidationError, "the bulk transfer is not accepted")
                }
                None => return Some(row.clone()),
            }
        }
    };
    refuse(rows, source, id, fault, cx);
    None
}

/// The item, if it can still be decided.
fn reserved(rows: &WorkingSet, id: u128) -> Option<TransferRow> {
    rows.get::<Transfers>(&TransferKey { id })
        .filter(|row| TransferStage::of(row) == TransferStage::Reserved)
        .cloned()
}

/// The payee's answer about one item.
#[derive(Clone, Debug)]
pub enum ItemResult {
    /// Fulfilled; `None`: malformed, so that no condition is satisfied.
    Fulfilled(Option<[u8; 32]>),
    /// Refused, with code and description.
    Refused(u16, String),
}

/// `PUT /bulkTransfers/{id}`.
#[derive(Clone, Debug)]
pub struct BulkFulfil {
    /// The bulk transfer.
    pub id: u128,
    /// The participant that sent the message.
    pub source: u32,
    /// The participant it is for.
    pub destination: u32,
    /// Item by item.
    pub results: Vec<(u128, ItemResult)>,
    /// The message.
    pub message: Received,
}

impl Command<SwitchRules> for BulkFulfil {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan_bulk(self.id, plan);
        rules.plan_message(self.source, plan);
        self.results.iter().for_each(|(id, _)| transfers::plan_transfer(*id, plan));
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            let Self { id, source, destination, .. } = *self;
            let hash = self.message.hash;
            let Some(mut bulk) = known(rows, (id, hash, false), (source, destination), cx) else { return };
            let is_part = |(item, _): &(u128, ItemResult)| {
                rows.get::<Transfers>(&TransferKey { id: *item }).is_some_and(|row| row.bulk == Some(id))
            };
            if !self.results.iter().all(is_part) {
                let fault = (ApiError::TransferIdNotFound, "a result is not of an item of the bulk transfer");
                return refuse(rows, source, id, fault, cx);
            }
            (bulk.fulfil_hash, bulk.state) = (Some(hash), BulkState::Processing as u8);
            rows.update::<Bulks>(&BulkKey { id }, bulk);
            for (item, result) in &self.results {
                // Items that are due or already decided stay as they are; the payee is notified at the end.
                let Some(mut row) = reserved(rows, *item) else { continue };
                match result {
                    ItemResult::Fulfilled(fulfilment) => {
                        row.fulfil_hash = Some(hash);
                        transfers::accept_fulfilment(rows, *item, &mut row, *fulfilment, cx);
                    }
                    ItemResult::Refused(code, text) => {
                        transfers::accept_error(*item, &mut row, hash, (*code, text), cx);
                    }
                }
                rows.update::<Transfers>(&TransferKey { id: *item }, row);
            }
        })
    }
}

/// `PUT /bulkTransfers/{id}/error`.
#[derive(Clone, Debug)]
pub struct BulkError {
    /// The error, with the bulk's id.
    pub error: transfers::ErrorMessage,
    /// The items of the bulk, as read from the store; they never change.
    pub items: Vec<u128>,
}

impl Command<SwitchRules> for BulkError {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_bulk(self.error.id, plan);
        plan.row::<Bodies>(BodyKey::new(self.error.id, BodyKind::BulkError));
        rules.plan_message(self.error.source, plan);
        self.items.iter().for_each(|id| transfers::plan_transfer(*id, plan));
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        rules.collect(now, |cx| {
            let Self { error, items } = self;
            let (id, hash) = (error.id, error.message.hash);
            let Some(mut bulk) = known(rows, (id, hash, true), (error.source, error.destination), cx) else {
                return;
            };
            (bulk.error_hash, bulk.state) = (Some(hash), BulkState::Processing as u8);
            rows.update::<Bulks>(&BulkKey { id }, bulk);
            for item in items {
                let Some(mut row) = reserved(rows, *item).filter(|row| row.bulk == Some(id)) else {
                    continue;
                };
                transfers::accept_error(*item, &mut row, hash, (error.code, &error.text), cx);
                rows.update::<Transfers>(&TransferKey { id: *item }, row);
            }
            let Received { headers, body, .. } = error.message.clone();
            rows.insert::<Bodies>(&BodyKey::new(id, BodyKind::BulkError), BodyRow { headers, body });
        })
    }
}

/// A participant asks for the state of a bulk transfer.
#[derive(Clone, Debug)]
pub struct BulkGet {
    /// The bulk transfer.
    pub id: u128,
    /// The participant that asks.
    pub source: u32,
}

impl Command<SwitchRules> for BulkGet {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_bulk(self.id, plan);
        rules.plan_message(self.source, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { id, source } = *self;
        rules.collect(now, |cx| match rows.get::<Bulks>(&BulkKey { id }) {
            Some(row) if row.payer == source || row.payee == source => {
                cx.tell(rows, Message::new(source, MessageKind::BulkState, id));
            }
            _ => refuse(rows, source, id, (ApiError::BulkTransferIdNotFound, ""), cx),
        })
    }
}

/// The ledger has answered an intent of an item, which was in state `was`.
pub(super) fn item_answered(
    rows: &mut WorkingSet,
    id: u128,
    (kind, was): (IntentKind, TransferStage),
    item: &TransferRow,
    cx: &mut Context,
) {
    let key = BulkKey { id };
    let mut bulk = rows.get::<Bulks>(&key).expect("an item's bulk is recorded with it").clone();
    let is_forwarded = matches!(state_of(&bulk), BulkState::Accepted | BulkState::Processing);
    let one_less = |count: u32| count.checked_sub(1).expect("items are counted once");
    let state = TransferStage::of(item);
    if kind == IntentKind::Reserve {
        bulk.unanswered_items = one_less(bulk.unanswered_items);
    }
    if state.is_final() {
        bulk.open_items = one_less(bulk.open_items);
        // The payee is notified of outcomes that it did not decide itself.
        bulk.tells_payee |= was != TransferStage::ReceivedPrepare
            && item.error_hash.is_none()
            && state.external() == TransferState::Aborted;
    }
    if bulk.open_items == 0 {
        let rejected = bulk.error_hash.is_some();
        let state = if rejected { BulkState::Rejected } else { BulkState::Completed };
        (bulk.state, bulk.completed) = (state as u8, cx.millis());
        cx.tell(rows, Message::new(bulk.payer, MessageKind::BulkState, id));
        if is_forwarded && bulk.tells_payee && bulk.payee != bulk.payer {
            cx.tell(rows, Message::new(bulk.payee, MessageKind::BulkState, id));
        }
    } else if is_forwarded {
        bulk.state = BulkState::Processing as u8;
    } else if bulk.unanswered_items == 0 {
        bulk.state = BulkState::Accepted as u8;
        cx.tell(rows, Message::new(bulk.payee, MessageKind::BulkPrepare, id));
    }
    rows.update::<Bulks>(&key, bulk);
}
