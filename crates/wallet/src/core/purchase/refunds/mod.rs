//! Refunds of purchases: the shop approves them, and the wallet picks them up there.
//!
//! The wallet asks the shop what it has approved, and then for the refunds themselves: one entry for each coin
//! and approval, with the exchange's confirmation. Entries that were approved at the same time are one refund.
//! An entry that the exchange has not answered yet stays open, and its refund asks again. Every entry is
//! recorded once, so a repeated or lost answer changes nothing.

mod entries;
mod record;

use batzen_protocol::api::merchant::{OrderPaid, PickUpRefundRequest};
use batzen_protocol::{Money, TalerUri, Timestamp};

use super::super::Change;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::operation::{Operation, Step, View};
use super::super::refund::{Refund, RefundState};
use super::super::row::{Transaction, Wait, about};
use super::super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::super::url::normalise_base_url;
use super::{ContractTerms, OrderKey, Purchase};
use crate::core::error::{Result, bad_input};

pub use record::*;

pub(super) use entries::{Confirmed, credit, is_final, new_refund};

const ASK: &str = "asking the shop about refunds";
const TAKE: &str = "taking refunds of the shop";

/// The order of a `taler://refund` URI.
///
/// # Errors
/// [`CoreError::BadInput`] if it is not one.
pub fn parse_uri(uri: &str) -> Result<OrderKey> {
    let malformed = |reason: String| bad_input("taler URI", reason);
    match TalerUri::parse(uri.trim()).map_err(|error| malformed(error.to_string()))? {
        TalerUri::Refund { merchant_url, order_id } => Ok((normalise_base_url(&merchant_url)?, order_id)),
        _ => Err(malformed("it is not about a refund".to_owned())),
    }
}

/// The paid purchase of an order.
///
/// # Errors
/// [`CoreError::BadInput`] if this wallet has not paid the order.
pub(crate) fn paid_purchase(state: &WalletState, key: &OrderKey) -> Result<OpId> {
    let is_it = |operation: &&WalletOperation| match &operation.kind {
        OpKind::Purchase(record) => {
            let terms = record.terms();
            record.receipt.is_some() && terms.merchant_base_url == key.0 && terms.order_id == key.1
        }
        _ => false,
    };
    let found = state.operations.values().rev().find(is_it).map(|operation| operation.id);
    found.ok_or_else(|| bad_input("refund", "this wallet has not paid that order"))
}

/// Records that the user asks for the refunds of a paid purchase. An open pick-up continues.
///
/// # Errors
/// [`CoreError::BadInput`] if the operation is no purchase, or not paid.
pub fn start(state: &WalletState, purchase: OpId, now: Timestamp) -> Result<(OpId, Vec<Change>)> {
    let mut draft = Draft::new(state);
    if purchase_of(&draft, purchase)?.receipt.is_none() {
        return Err(bad_input("refund", format!("purchase {purchase} is not paid")));
    }
    let is_open = |operation: &&WalletOperation| match &operation.kind {
        OpKind::PickUp(other) => other.purchase == purchase && other.until.is_none(),
        _ => false,
    };
    if let Some(operation) = state.open_operations().find(is_open) {
        return Ok((operation.id, Vec::new()));
    }
    let id = put(&mut draft, purchase, None, now)?;
    Ok((id, draft.into_changes()))
}

fn put(draft: &mut Draft<'_>, purchase: OpId, until: Option<Timestamp>, now: Timestamp) -> Result<OpId> {
    // A purchase that is being processed is put into the draft later, under a smaller number.
    let exchange = draft.operation(purchase)?.exchange.clone();
    let record = PickUp { purchase, until, stage: PickUpStage::Ask, reason: None };
    Ok(draft.begin(now, &exchange, record))
}

/// Begins to ask the shop of a purchase that was just paid, if its contract promises refunds by itself.
pub(crate) fn start_automatic(step: &mut Step<'_, '_>, terms: &ContractTerms) -> Result<()> {
    let Some(period) = terms.auto_refund() else { return Ok(()) };
    // Nothing is approved after the refund period.
    let until = step.now.saturating_add(period).min(terms.refund_deadline);
    if until > step.now {
        put(&mut step.draft, step.operation.id, Some(until), step.now)?;
    }
    Ok(())
}

/// The end of the time in which the shop of a purchase may refund by itself, while the wallet waits for that.
#[must_use]
pub fn promised(state: &WalletState, purchase: OpId) -> Option<Timestamp> {
    state.open_operations().find_map(|operation| match &operation.kind {
        OpKind::PickUp(record) if record.purchase == purchase => record.until,
        _ => None,
    })
}

/// A purchase's record.
fn purchase_of<'d>(draft: &'d Draft<'_>, id: OpId) -> Result<&'d Purchase> {
    match &draft.operation(id)?.kind {
        OpKind::Purchase(record) => Ok(record),
        _ => Err(bad_input("operation", format!("{id} is no purchase"))),
    }
}

/// Returns the sum that the shop has approved, as far as the wallet knows, whatever its state.
fn known(draft: &Draft<'_>, purchase: OpId) -> Result<Money> {
    let items = draft.operations().flat_map(|operation| match &operation.kind {
        OpKind::Refund(refund) if refund.payment == purchase && refund.approved.is_some() => {
            refund.items.as_slice()
        }
        _ => &[],
    });
    Ok(Money::checked_sum(items.map(|item| item.amount))?)
}

fn url(terms: &ContractTerms) -> String {
    format!("{}orders/{}", terms.merchant_base_url, terms.order_id)
}

/// Asks for the refunds themselves.
pub(crate) fn take_request(state: &WalletState, purchase: OpId) -> Result<HttpRequest> {
    let draft = Draft::new(state);
    let terms = purchase_of(&draft, purchase)?.terms();
    let body = PickUpRefundRequest { h_contract: terms.h_contract_terms };
    Ok(HttpRequest::post(Context::Merchant, format!("{}/refund", url(terms)), &body))
}

impl Operation for PickUp {
    fn name(&self) -> &'static str {
        "pick-up"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, poll_ms: u64) -> Result<HttpRequest> {
        let draft = Draft::new(state);
        let terms = purchase_of(&draft, self.purchase)?.terms();
        if self.stage == PickUpStage::Take {
            return take_request(state, self.purchase);
        }
        let mut url = format!("{}?h_contract={}", url(terms), terms.h_contract_terms);
        if self.until.is_none() || poll_ms == 0 {
            return Ok(HttpRequest::get(Context::Merchant, url));
        }
        let known = state.exchange(&operation.exchange)?.amount(known(&draft, self.purchase)?);
        url.push_str(&format!("&refund={known}&timeout_ms={poll_ms}"));
        Ok(HttpRequest::get(Context::Merchant, url).polling(poll_ms))
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let record = *self;
        let what = if record.stage == PickUpStage::Take { TAKE } else { ASK };
        match (response.status, response.code().to_u32()) {
            (200, _) if record.stage == PickUpStage::Take => {
                entries::enter(step, record.purchase, response)?;
                let until = record.until.filter(|until| *until > step.now);
                // An answer that lists less than the shop has announced must not be asked for without a pause.
                go_on(step, record, until);
                Ok(())
            }
            (200, _) => asked(step, record, response),
            (402, _) => {
                fail(step, record, "the shop says that the order is not paid".to_owned());
                Ok(())
            }
            (400..=499, code) if code != 0 => {
                fail(step, record, response.refusal(what).to_string());
                Ok(())
            }
            _ => Err(response.refusal(what)),
        }
    }

    fn held(&self, _: View<'_>) -> Result<Money> {
        Ok(Money::ZERO)
    }

    fn effect(&self, _: View<'_>) -> Result<i128> {
        Ok(0)
    }

    fn is_hidden(&self) -> bool {
        // The refunds that it found have rows of their own.
        true
    }

    fn describe(&self, View { state, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        row.description = match &state.operation(self.purchase)?.kind {
            OpKind::Purchase(purchase) => {
                let terms = purchase.terms();
                row.merchant = Some(terms.merchant_name.clone());
                row.h_contract_terms = Some(terms.h_contract_terms.to_string());
                format!("Refunds of {}{}", terms.merchant_name, about(&terms.summary))
            }
            _ => String::new(),
        };
        row.fail_if(self.stage == PickUpStage::Failed);
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        let until = self.until.map(|until| (until, "the shop's promise ends"));
        Ok(Wait { reason: "asks the shop for refunds", until })
    }
}

fn asked(step: &mut Step<'_, '_>, mut record: PickUp, response: &HttpResponse) -> Result<()> {
    let answer: OrderPaid = response.json(ASK)?;
    let currency = step.draft.exchange(&step.operation.exchange)?.currency;
    let approved = answer.refund_amount.money_in(currency)?;
    // What the shop counts as taken says nothing: its answer may have been lost.
    if answer.refunded && approved > known(&step.draft, record.purchase)? {
        record.stage = PickUpStage::Take;
        step.proceed(record);
        return Ok(());
    }
    let until = record.until.filter(|until| *until > step.now);
    go_on(step, record, until);
    Ok(())
}

/// Asks again until the end of the period, or finishes.
fn go_on(step: &mut Step<'_, '_>, mut record: PickUp, until: Option<Timestamp>) {
    if until.is_some() {
        record.stage = PickUpStage::Ask;
        step.wait(record, "waits for a refund that the shop may make by itself");
    } else {
        record.stage = PickUpStage::Done;
        step.finish(record);
    }
}

fn fail(step: &mut Step<'_, '_>, mut record: PickUp, reason: String) {
    record.stage = PickUpStage::Failed;
    record.reason = Some(reason);
    step.finish(record);
}

/// Processes the shop's answer about a refund that has open entries.
pub(crate) fn receive_again(step: &mut Step<'_, '_>, record: Refund, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code().to_u32()) {
        (200, _) => {
            entries::enter(step, record.payment, response)?;
            let WalletOperation { kind, finished, .. } = step.draft.operation(step.operation.id)?.clone();
            if finished.is_some() {
                step.finish(kind);
            } else {
                step.wait(kind, "the exchange has not confirmed the refund to the shop yet");
            }
            Ok(())
        }
        (400..=499, code) if code != 0 => {
            let mut record = record;
            give_up(&mut record, &response.refusal(TAKE).to_string());
            step.finish(record);
            Ok(())
        }
        _ => Err(response.refusal(TAKE)),
    }
}

fn give_up(record: &mut Refund, reason: &str) {
    for item in record.items.iter_mut().filter(|item| item.progress == RefundState::Open) {
        item.progress = RefundState::Failed(reason.to_owned());
    }
}

/// The changes that give up a pick-up, or a refund that the exchange has not confirmed.
///
/// # Errors
/// [`CoreError::BadInput`] if it is neither, or finished.
pub(crate) fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<Change>> {
    const REASON: &str = "cancelled by you";
    let mut operation = state.operation(id)?.clone();
    if operation.finished.is_some() {
        return Err(bad_input("operation", "it is finished"));
    }
    match &mut operation.kind {
        OpKind::PickUp(record) => {
            record.stage = PickUpStage::Failed;
            record.reason = Some(REASON.to_owned());
        }
        OpKind::Refund(record) if record.approved.is_some() => give_up(record, REASON),
        _ => return Err(bad_input("operation", "it is no refund of a purchase")),
    }
    operation.end(now);
    Ok(vec![Change::Operation(Box::new(operation))])
}

/// The refunds of a purchase, oldest first.
pub(crate) fn of_purchase(state: &WalletState, purchase: OpId) -> impl Iterator<Item = (OpId, &Refund)> {
    state.operations.values().filter_map(move |operation| match &operation.kind {
        OpKind::Refund(refund) if refund.payment == purchase => Some((operation.id, refund.as_ref())),
        _ => None,
    })
}
