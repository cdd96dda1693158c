//! Gives up a purchase that cannot be paid: the merchant gives back what it has deposited.
//!
//! The merchant answers for each coin. A coin that the exchange has refunded gets its contribution back less
//! the refund fee, as the exchange confirms. The others are taken back as a whole and refreshed: if the
//! merchant has deposited one after all, the exchange proves that then. A coin about which the exchange did not
//! answer stays in the purchase, and is asked for again.

use batzen_protocol::Money;
use batzen_protocol::api::merchant::{AbortCoin, AbortRequest, AbortResponse, RefundResult};

use super::super::Change;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::operation::Step;
use super::super::refund::{RefundItem, RefundState};
use super::super::state::{OpId, OpKind, WalletOperation, WalletState};
use super::failure::{fail, give_back};
use super::refunds::{self, Confirmed};
use super::{COIN_MS, Purchase, PurchaseCoin, PurchaseStage};
use crate::core::error::{Result, bad_input};

/// Merchant: the order is paid.
const PAID: u32 = 2254;
/// The number of the refund of a payment that was given up.
const RTRANSACTION_ID: u64 = 0;

const WHAT: &str = "giving up the payment at the shop";

/// The changes that give up a purchase: one that is not paid yet, or one that failed although the merchant had
/// deposited coins of it.
///
/// # Errors
/// [`CoreError::BadInput`] if it is none of these.
pub(crate) fn start(state: &WalletState, id: OpId) -> Result<Vec<Change>> {
    let mut operation = state.operation(id)?.clone();
    let OpKind::Purchase(record) = &mut operation.kind else {
        return Err(bad_input("operation", format!("{id} is no purchase")));
    };
    match record.stage {
        PurchaseStage::Abort => return Ok(Vec::new()),
        PurchaseStage::Done => return Err(bad_input("operation", "it is paid; ask the shop for a refund")),
        PurchaseStage::Failed if record.unsettled().next().is_none() => {
            return Err(bad_input("operation", "it has failed, and no coin of it is at the shop"));
        }
        PurchaseStage::Pay | PurchaseStage::Failed => {}
    }
    record.stage = PurchaseStage::Abort;
    record.reason.get_or_insert_with(|| "given up by you".to_owned());
    operation.finished = None;
    operation.go_on();
    Ok(vec![Change::Operation(Box::new(operation))])
}

/// Begins to give up a purchase whose payment the merchant has refused for good.
pub(super) fn begin(step: &mut Step<'_, '_>, mut record: Purchase, reason: String) -> Result<()> {
    if record.unsettled().next().is_none() {
        return fail(step, record, reason);
    }
    record.stage = PurchaseStage::Abort;
    record.reason = Some(reason);
    step.proceed(record);
    Ok(())
}

pub(super) fn next(state: &WalletState, record: &Purchase) -> Result<HttpRequest> {
    let terms = record.terms();
    let mut coins = Vec::new();
    for part in record.unsettled() {
        let exchange = state.exchange(&state.coin(&part.coin_pub)?.exchange)?;
        coins.push(AbortCoin {
            coin_pub: part.coin_pub,
            contribution: exchange.amount(part.amount),
            exchange_url: exchange.own_url().to_owned(),
        });
    }
    let wait_ms = COIN_MS * coins.len() as u64;
    let body = AbortRequest { h_contract: terms.h_contract_terms, coins };
    let url = format!("{}orders/{}/abort", terms.merchant_base_url, terms.order_id);
    Ok(HttpRequest::post(Context::Merchant, url, &body).polling(wait_ms))
}

pub(super) fn receive(step: &mut Step<'_, '_>, mut record: Purchase, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code().to_u32()) {
        (200, _) => answered(step, record, response),
        // Then the same request for payment gets the receipt.
        (412, PAID) => {
            record.stage = PurchaseStage::Pay;
            record.reason = None;
            step.proceed(record);
            Ok(())
        }
        (400..=499, code) if code != 0 => {
            let reason = record.reason.take().unwrap_or_else(|| response.refusal(WHAT).to_string());
            fail(step, record, reason)
        }
        _ => Err(response.refusal(WHAT)),
    }
}

fn answered(step: &mut Step<'_, '_>, mut record: Purchase, response: &HttpResponse) -> Result<()> {
    let answer: AbortResponse = response.json(WHAT)?;
    let asked: Vec<PurchaseCoin> = record.unsettled().copied().collect();
    if asked.len() != answer.refunds.len() {
        let reason = format!("{} answers for {} coins", answer.refunds.len(), asked.len());
        return Err(response.malformed(WHAT, reason));
    }
    let mut refunded = Vec::new();
    for (part, result) in asked.iter().zip(&answer.refunds) {
        match result {
            RefundResult::Success { exchange_sig, exchange_pub, .. } => {
                let item = confirmed(step, &record, part, (*exchange_pub, *exchange_sig))?;
                refunds::credit(&mut step.draft, &item.coin_pub, item.amount.checked_sub(item.fee_refund)?)?;
                record.part_mut(part).is_refunded = true;
                refunded.push(item);
            }
            RefundResult::Failure { exchange_status, .. } if refunds::is_final(*exchange_status) => {
                give_back(&mut step.draft, record.part_mut(part))?;
            }
            RefundResult::Failure { .. } => {}
        }
    }
    if !refunded.is_empty() {
        let mut operation = refund_of(step, &record)?;
        if let OpKind::Refund(refund) = &mut operation.kind {
            refund.items.extend(refunded);
        }
        step.draft.put_operation(operation);
    }
    if record.unsettled().next().is_some() {
        step.wait(record, "the exchange has not answered the shop yet");
    } else {
        record.stage = PurchaseStage::Failed;
        step.finish(record);
    }
    Ok(())
}

/// The refund of a coin, after the exchange's confirmation was verified.
fn confirmed(
    step: &Step<'_, '_>,
    record: &Purchase,
    part: &PurchaseCoin,
    confirmation: (batzen_crypto::EddsaPublicKey, batzen_crypto::EddsaSignature),
) -> Result<RefundItem> {
    let coin = step.draft.coin(&part.coin_pub)?;
    let exchange = step.draft.exchange(&coin.exchange)?;
    let refund = Confirmed {
        terms: record.terms(),
        coin_pub: part.coin_pub,
        rtransaction_id: RTRANSACTION_ID,
        amount: exchange.amount(part.amount),
    };
    refund.check(step, (&confirmation.0, &confirmation.1))?;
    let fee_refund: Money = exchange.denom(&coin.h_denom_pub)?.fee_refund;
    Ok(RefundItem {
        coin_pub: part.coin_pub,
        rtransaction_id: RTRANSACTION_ID,
        amount: part.amount,
        // No more than there is.
        fee_refund: fee_refund.min(part.amount),
        merchant_sig: None,
        confirmation: Some(confirmation),
        progress: RefundState::Done,
    })
}

/// The operation that lists what the merchant gave back: a new one, unless an earlier answer began it.
fn refund_of(step: &Step<'_, '_>, record: &Purchase) -> Result<WalletOperation> {
    let id = step.operation.id;
    let is_it = |operation: &&WalletOperation| match &operation.kind {
        OpKind::Refund(refund) => {
            refund.payment == id && refund.items.iter().all(|item| item.rtransaction_id == RTRANSACTION_ID)
        }
        _ => false,
    };
    if let Some(operation) = step.draft.operations().find(is_it) {
        return Ok(operation.clone());
    }
    let operation = refunds::new_refund(&step.draft, id, record, None, step.now)?;
    Ok(WalletOperation { finished: Some(step.now), ..operation })
}
