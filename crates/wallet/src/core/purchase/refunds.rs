//! Refunds of purchases: the shop approves them, and the wallet picks them up there.
//!
//! The wallet asks the shop what it has approved, and then for the refunds themselves: one entry for each coin
//! and approval, with the exchange's confirmation. Entries that were approved at the same time are one refund.
//! An entry that the exchange has not answered yet stays open, and its refund asks again. Every entry is
//! recorded once, so a repeated or lost answer changes nothing.

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_protocol::api::merchant::{OrderPaid, PickUpRefundRequest, RefundEntry, RefundResult};
use batzen_protocol::signatures::{ExchangeConfirmRefund, SignedMessage};
use batzen_protocol::{Amount, Money, TalerUri, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::coin::CoinStatus;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::machine::Step;
use super::super::refund::{Refund, RefundItem, RefundState};
use super::super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::super::url::normalise_base_url;
use super::super::{Change, CoreError};
use super::contract::ContractTerms;
use super::{OrderKey, Purchase, bad};

/// Most entries in one answer of a shop.
const MAX_ENTRIES: usize = 4096;

const ASK: &str = "asking the shop about refunds";
const TAKE: &str = "taking refunds of the shop";

/// Stage of a pick-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PickUpStage {
    /// Asks what the shop has approved.
    Ask,
    /// Asks for the refunds.
    Take,
    /// Finished.
    Done,
    /// Refused, or given up by the user.
    Failed,
}

/// Picks up what a shop refunds of a purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PickUp {
    /// The purchase.
    pub purchase: OpId,
    /// The end of the period in which the shop has promised to refund by itself. `None`: the user asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Its stage.
    pub stage: PickUpStage,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The order of a `taler://refund` URI.
///
/// # Errors
/// [`CoreError::BadInput`] if it is not one.
pub fn parse_uri(uri: &str) -> Result<OrderKey, CoreError> {
    let malformed = |reason: String| bad("taler URI", reason);
    match TalerUri::parse(uri.trim()).map_err(|error| malformed(error.to_string()))? {
        TalerUri::Refund { merchant_url, order_id } => Ok((normalise_base_url(&merchant_url)?, order_id)),
        _ => Err(malformed("it is not about a refund".to_owned())),
    }
}

/// The paid purchase of an order.
///
/// # Errors
/// [`CoreError::BadInput`] if this wallet has not paid the order.
pub fn paid_purchase(state: &WalletState, key: &OrderKey) -> Result<OpId, CoreError> {
    let is_it = |operation: &&WalletOperation| match &operation.kind {
        OpKind::Purchase(record) => {
            let terms = record.terms();
            record.receipt.is_some() && terms.merchant_base_url == key.0 && terms.order_id == key.1
        }
        _ => false,
    };
    let found = state.operations.values().rev().find(is_it).map(|operation| operation.id);
    found.ok_or_else(|| bad("refund", "this wallet has not paid that order"))
}

/// Records that the user asks for the refunds of a paid purchase. An open pick-up continues.
///
/// # Errors
/// [`CoreError::BadInput`] if the operation is no purchase, or not paid.
pub fn start(state: &WalletState, purchase: OpId, now: Timestamp) -> Result<(OpId, Vec<Change>), CoreError> {
    let mut draft = Draft::new(state);
    if purchase_of(&draft, purchase)?.receipt.is_none() {
        return Err(bad("refund", format!("purchase {purchase} is not paid")));
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

fn put(
    draft: &mut Draft<'_>,
    purchase: OpId,
    until: Option<Timestamp>,
    now: Timestamp,
) -> Result<OpId, CoreError> {
    // A purchase that is being processed is put into the draft later, under a smaller number.
    let id = draft.next_id();
    draft.put_operation(WalletOperation {
        id,
        created: now,
        finished: None,
        exchange: draft.operation(purchase)?.exchange.clone(),
        last_error: None,
        dispute: None,
        kind: OpKind::PickUp(Box::new(PickUp { purchase, until, stage: PickUpStage::Ask, reason: None })),
    });
    Ok(id)
}

/// Begins to ask the shop of a purchase that was just paid, if its contract promises refunds by itself.
pub(crate) fn start_automatic(step: &mut Step<'_, '_>, terms: &ContractTerms) -> Result<(), CoreError> {
    let Some(period) = terms.auto_refund() else { return Ok(()) };
    // Nothing is approved after the refund period.
    let until = step.now.saturating_add(period).min(terms.refund_deadline);
    if until > step.now {
        put(&mut step.draft, step.operation.id, Some(until), step.now)?;
    }
    Ok(())
}

/// A purchase's record.
fn purchase_of<'d>(draft: &'d Draft<'_>, id: OpId) -> Result<&'d Purchase, CoreError> {
    match &draft.operation(id)?.kind {
        OpKind::Purchase(record) => Ok(record),
        _ => Err(bad("operation", format!("{id} is no purchase"))),
    }
}

/// What the shop has approved, as far as the wallet knows, whatever became of it.
fn known(draft: &Draft<'_>, purchase: OpId) -> Result<Money, CoreError> {
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

pub(crate) fn next(
    state: &WalletState,
    operation: &WalletOperation,
    record: &PickUp,
    poll_ms: u64,
) -> Result<HttpRequest, CoreError> {
    let draft = Draft::new(state);
    let terms = purchase_of(&draft, record.purchase)?.terms();
    if record.stage == PickUpStage::Take {
        return take_request(state, record.purchase);
    }
    let mut url = format!("{}?h_contract={}", url(terms), terms.h_contract_terms);
    if record.until.is_none() || poll_ms == 0 {
        return Ok(HttpRequest::get(Context::Merchant, url));
    }
    let known = state.exchange(&operation.exchange)?.amount(known(&draft, record.purchase)?);
    url.push_str(&format!("&refund={known}&timeout_ms={poll_ms}"));
    Ok(HttpRequest::get(Context::Merchant, url).polling(poll_ms))
}

/// Asks for the refunds themselves.
pub(crate) fn take_request(state: &WalletState, purchase: OpId) -> Result<HttpRequest, CoreError> {
    let draft = Draft::new(state);
    let terms = purchase_of(&draft, purchase)?.terms();
    let body = PickUpRefundRequest { h_contract: terms.h_contract_terms };
    Ok(HttpRequest::post(Context::Merchant, format!("{}/refund", url(terms)), &body))
}

pub(crate) fn receive(
    step: &mut Step<'_, '_>,
    record: PickUp,
    response: &HttpResponse,
) -> Result<(), CoreError> {
    let what = if record.stage == PickUpStage::Take { TAKE } else { ASK };
    match (response.status, response.code().to_u32()) {
        (200, _) if record.stage == PickUpStage::Take => {
            enter(step, record.purchase, response)?;
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

fn asked(step: &mut Step<'_, '_>, mut record: PickUp, response: &HttpResponse) -> Result<(), CoreError> {
    let answer: OrderPaid = response.json(ASK)?;
    let currency = step.draft.exchange(&step.operation.exchange)?.currency;
    let approved = answer.refund_amount.money_in(currency)?;
    // What the shop counts as taken says nothing: its answer may have been lost.
    if answer.refunded && approved > known(&step.draft, record.purchase)? {
        record.stage = PickUpStage::Take;
        step.proceed(OpKind::PickUp(Box::new(record)));
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
        step.wait(OpKind::PickUp(Box::new(record)), "waits for a refund that the shop may make by itself");
    } else {
        record.stage = PickUpStage::Done;
        step.finish(OpKind::PickUp(Box::new(record)));
    }
}

fn fail(step: &mut Step<'_, '_>, mut record: PickUp, reason: String) {
    record.stage = PickUpStage::Failed;
    record.reason = Some(reason);
    step.finish(OpKind::PickUp(Box::new(record)));
}

/// Processes the shop's answer about a refund that has open entries.
pub(crate) fn receive_again(
    step: &mut Step<'_, '_>,
    record: Refund,
    response: &HttpResponse,
) -> Result<(), CoreError> {
    match (response.status, response.code().to_u32()) {
        (200, _) => {
            enter(step, record.payment, response)?;
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
            step.finish(OpKind::Refund(Box::new(record)));
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
pub fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<Change>, CoreError> {
    const REASON: &str = "cancelled by you";
    let mut operation = state.operation(id)?.clone();
    if operation.finished.is_some() {
        return Err(bad("operation", "it is finished"));
    }
    match &mut operation.kind {
        OpKind::PickUp(record) => {
            record.stage = PickUpStage::Failed;
            record.reason = Some(REASON.to_owned());
        }
        OpKind::Refund(record) if record.approved.is_some() => give_up(record, REASON),
        _ => return Err(bad("operation", "it is no refund of a purchase")),
    }
    operation.finished = Some(now);
    operation.dispute = None;
    operation.last_error = None;
    Ok(vec![Change::Operation(Box::new(operation))])
}

/// An exchange's status that settles a refund for good. The others may go away.
pub(super) const fn is_final(exchange_status: u16) -> bool {
    matches!(exchange_status, 400..=499) && !matches!(exchange_status, 408 | 425 | 429)
}

/// Why an exchange did not refund, as the shop says.
pub(super) fn refusal(exchange_status: u16, exchange_code: Option<u32>) -> String {
    let code = exchange_code.map_or_else(String::new, |code| format!(", code {code}"));
    match exchange_status {
        410 => "too late: the shop has been paid; ask the shop for the money".to_owned(),
        _ => format!("the shop says that the exchange refused (HTTP {exchange_status}{code})"),
    }
}

/// Identifies a refund of a coin, for its signature.
pub(super) struct Confirmed<'a> {
    pub terms: &'a ContractTerms,
    pub coin_pub: EddsaPublicKey,
    pub rtransaction_id: u64,
    pub amount: Amount,
}

impl Confirmed<'_> {
    /// Verifies the exchange's confirmation that the coin has its value back.
    pub(super) fn check(
        &self,
        step: &Step<'_, '_>,
        (exchange_pub, exchange_sig): (&EddsaPublicKey, &EddsaSignature),
    ) -> Result<(), CoreError> {
        let coin = step.draft.coin(&self.coin_pub)?;
        step.draft.exchange(&coin.exchange)?.require_signing_key(exchange_pub, step.now)?;
        let message = ExchangeConfirmRefund {
            h_contract_terms: self.terms.h_contract_terms,
            coin_pub: self.coin_pub,
            merchant_pub: self.terms.merchant_pub,
            rtransaction_id: self.rtransaction_id,
            refund_amount: self.amount,
        };
        if message.verify(exchange_pub, exchange_sig) {
            Ok(())
        } else {
            Err(CoreError::BadSignature { what: "the exchange's confirmation of a refund" })
        }
    }
}

/// Credits a coin. It was seen, so it is refreshed, even if it was worth nothing before.
pub(super) fn credit(
    draft: &mut Draft<'_>,
    coin_pub: &EddsaPublicKey,
    amount: Money,
) -> Result<(), CoreError> {
    draft.credit_coin(coin_pub, amount)?;
    let coin = draft.coin_mut(coin_pub)?;
    if coin.status == CoinStatus::Lost {
        coin.status = CoinStatus::Used;
    }
    Ok(())
}

fn false_list(reason: impl Into<String>) -> CoreError {
    CoreError::FalseProof { what: "the shop's list of refunds", reason: reason.into() }
}

/// Records what an answer of the shop says about each refund.
fn enter(step: &mut Step<'_, '_>, purchase: OpId, response: &HttpResponse) -> Result<(), CoreError> {
    #[derive(Deserialize)]
    struct Answer {
        refunds: Vec<RefundEntry>,
    }
    let answer: Answer = response.json(TAKE)?;
    if answer.refunds.len() > MAX_ENTRIES {
        return Err(false_list(format!("it has more than {MAX_ENTRIES} entries")));
    }
    let record = purchase_of(&step.draft, purchase)?.clone();
    for entry in &answer.refunds {
        enter_one(step, purchase, &record, entry)?;
    }
    Ok(())
}

fn enter_one(
    step: &mut Step<'_, '_>,
    purchase: OpId,
    record: &Purchase,
    entry: &RefundEntry,
) -> Result<(), CoreError> {
    let paid = record.spent().find(|part| part.coin_pub == entry.coin_pub);
    let paid = paid.ok_or_else(|| false_list("a coin in it has not paid"))?;
    let coin = step.draft.coin(&entry.coin_pub)?;
    let exchange = step.draft.exchange(&coin.exchange)?;
    let amount =
        entry.refund_amount.money_in(exchange.currency).map_err(|error| false_list(error.to_string()))?;
    let fee_refund = exchange.denom(&coin.h_denom_pub)?.fee_refund;
    if amount < fee_refund {
        return Err(false_list("a refund in it is smaller than the refund fee"));
    }
    let (confirmation, progress) = match &entry.result {
        RefundResult::Success { exchange_sig, exchange_pub, .. } => {
            (Some((*exchange_pub, *exchange_sig)), RefundState::Done)
        }
        RefundResult::Failure { exchange_status, exchange_code, .. } if is_final(*exchange_status) => {
            (None, RefundState::Failed(refusal(*exchange_status, *exchange_code)))
        }
        RefundResult::Failure { .. } => (None, RefundState::Open),
    };
    let new = RefundItem {
        coin_pub: entry.coin_pub,
        rtransaction_id: entry.rtransaction_id,
        amount,
        fee_refund,
        merchant_sig: None,
        confirmation,
        progress,
    };
    let (mut others, mut holder, mut position, mut step_of) = (amount, None, None, None);
    for operation in step.draft.operations() {
        let OpKind::Refund(refund) = &operation.kind else { continue };
        if refund.payment != purchase {
            continue;
        }
        if refund.approved == Some(entry.execution_time) {
            step_of = Some(operation.id);
        }
        for (place, item) in refund.items.iter().enumerate().filter(|(_, item)| item.coin_pub == new.coin_pub)
        {
            if item.rtransaction_id == new.rtransaction_id {
                (holder, position) = (Some(operation.id), Some(place));
                if item.amount != amount {
                    return Err(false_list("it has another amount for a refund than before"));
                }
                // Confirmed for good, or nothing new.
                if item.progress == RefundState::Done
                    || new.confirmation.is_none() && item.progress == new.progress
                {
                    return Ok(());
                }
            } else if !matches!(item.progress, RefundState::Failed(_)) {
                others = others.checked_add(item.amount)?;
            }
        }
    }
    if !matches!(new.progress, RefundState::Failed(_)) && others > paid.amount {
        return Err(false_list("the refunds of a coin exceed what it paid"));
    }
    if let Some((exchange_pub, exchange_sig)) = &new.confirmation {
        let confirmed = Confirmed {
            terms: record.terms(),
            coin_pub: new.coin_pub,
            rtransaction_id: new.rtransaction_id,
            amount: entry.refund_amount,
        };
        confirmed.check(step, (exchange_pub, exchange_sig))?;
        credit(&mut step.draft, &new.coin_pub, amount.checked_sub(fee_refund)?)?;
    }
    let mut operation = match holder.or(step_of) {
        Some(id) => step.draft.operation(id)?.clone(),
        None => new_refund(&step.draft, purchase, record, Some(entry.execution_time), step.now)?,
    };
    if let OpKind::Refund(refund) = &mut operation.kind {
        match position {
            Some(position) => refund.items[position] = new,
            None => refund.items.push(new),
        }
        let is_open = refund.items.iter().any(|item| item.progress == RefundState::Open);
        operation.finished = if is_open { None } else { operation.finished.or(Some(step.now)) };
    }
    step.draft.put_operation(operation);
    Ok(())
}

/// A refund of a purchase without entries yet.
pub(super) fn new_refund(
    draft: &Draft<'_>,
    purchase: OpId,
    record: &Purchase,
    approved: Option<Timestamp>,
    now: Timestamp,
) -> Result<WalletOperation, CoreError> {
    Ok(WalletOperation {
        id: draft.next_id(),
        created: now,
        finished: None,
        exchange: draft.operation(purchase)?.exchange.clone(),
        last_error: None,
        dispute: None,
        kind: OpKind::Refund(Box::new(Refund {
            payment: purchase,
            h_contract_terms: record.terms().h_contract_terms,
            merchant_pub: record.terms().merchant_pub,
            approved,
            items: Vec::new(),
        })),
    })
}

/// The refunds of a purchase, oldest first.
pub fn of_purchase(state: &WalletState, purchase: OpId) -> impl Iterator<Item = (OpId, &Refund)> {
    state.operations.values().filter_map(move |operation| match &operation.kind {
        OpKind::Refund(refund) if refund.payment == purchase => Some((operation.id, refund.as_ref())),
        _ => None,
    })
}
