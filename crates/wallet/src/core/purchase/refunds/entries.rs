//! The entries in which a shop lists its refunds: each is verified, and recorded once.

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_protocol::api::merchant::{RefundEntry, RefundResult};
use batzen_protocol::signatures::{ExchangeConfirmRefund, SignedMessage};
use batzen_protocol::{Amount, Money, Timestamp};
use serde::Deserialize;

use super::super::super::CoreError;
use super::super::super::coin::CoinStatus;
use super::super::super::http::HttpResponse;
use super::super::super::operation::Step;
use super::super::super::refund::{Refund, RefundItem, RefundState};
use super::super::super::state::{Draft, OpId, OpKind, WalletOperation};
use super::super::{ContractTerms, Purchase};
use super::{TAKE, purchase_of};
use crate::core::error::{Result, false_proof};

/// Most entries in one answer of a shop.
const MAX_ENTRIES: usize = 4096;

/// An exchange's status that settles a refund for good. The others may go away.
pub(in super::super) const fn is_final(exchange_status: u16) -> bool {
    matches!(exchange_status, 400..=499) && !matches!(exchange_status, 408 | 425 | 429)
}

/// Why an exchange did not refund, as the shop says.
fn refusal(exchange_status: u16, exchange_code: Option<u32>) -> String {
    let code = exchange_code.map_or_else(String::new, |code| format!(", code {code}"));
    match exchange_status {
        410 => "too late: the shop has been paid; ask the shop for the money".to_owned(),
        _ => format!("the shop says that the exchange refused (HTTP {exchange_status}{code})"),
    }
}

/// Identifies a refund of a coin, for its signature.
pub(in super::super) struct Confirmed<'a> {
    pub(crate) terms: &'a ContractTerms,
    pub(crate) coin_pub: EddsaPublicKey,
    pub(crate) rtransaction_id: u64,
    pub(crate) amount: Amount,
}

impl Confirmed<'_> {
    /// Verifies the exchange's confirmation that the coin has its value back.
    pub(in super::super) fn check(
        &self,
        step: &Step<'_, '_>,
        (exchange_pub, exchange_sig): (&EddsaPublicKey, &EddsaSignature),
    ) -> Result<()> {
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
pub(in super::super) fn credit(
    draft: &mut Draft<'_>,
    coin_pub: &EddsaPublicKey,
    amount: Money,
) -> Result<()> {
    draft.credit_coin(coin_pub, amount)?;
    let coin = draft.coin_mut(coin_pub)?;
    if coin.status == CoinStatus::Lost {
        coin.status = CoinStatus::Used;
    }
    Ok(())
}

fn false_list(reason: impl Into<String>) -> CoreError {
    false_proof("the shop's list of refunds", reason)
}

/// Records what an answer of the shop says about each refund.
pub(super) fn enter(step: &mut Step<'_, '_>, purchase: OpId, response: &HttpResponse) -> Result<()> {
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

/// The entry in the form of the wallet's records. Its confirmation is not verified yet.
fn read(draft: &Draft<'_>, entry: &RefundEntry) -> Result<RefundItem> {
    let coin = draft.coin(&entry.coin_pub)?;
    let exchange = draft.exchange(&coin.exchange)?;
    let amount = entry.refund_amount.money_in(exchange.currency);
    let amount = amount.map_err(|error| false_list(error.to_string()))?;
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
    Ok(RefundItem {
        coin_pub: entry.coin_pub,
        rtransaction_id: entry.rtransaction_id,
        amount,
        fee_refund,
        merchant_sig: None,
        confirmation,
        progress,
    })
}

/// The wallet's knowledge of the refund of an entry, and of the other refunds of its coin.
struct Known {
    /// The operation that has the entry already, its place there, and the item.
    item: Option<(OpId, usize, RefundItem)>,
    /// The operation of what was approved at the same time.
    same_time: Option<OpId>,
    /// The sum of the coin's other refunds.
    others: Money,
}

impl Known {
    fn of(draft: &Draft<'_>, purchase: OpId, entry: &RefundEntry) -> Result<Self> {
        let mut known = Self { item: None, same_time: None, others: Money::ZERO };
        for operation in draft.operations() {
            let OpKind::Refund(refund) = &operation.kind else { continue };
            if refund.payment != purchase {
                continue;
            }
            if refund.approved == Some(entry.execution_time) {
                known.same_time = Some(operation.id);
            }
            let of_coin = refund.items.iter().enumerate();
            for (place, item) in of_coin.filter(|(_, item)| item.coin_pub == entry.coin_pub) {
                if item.rtransaction_id == entry.rtransaction_id {
                    known.item = Some((operation.id, place, item.clone()));
                } else if !matches!(item.progress, RefundState::Failed(_)) {
                    known.others = known.others.checked_add(item.amount)?;
                }
            }
        }
        Ok(known)
    }
}

fn enter_one(step: &mut Step<'_, '_>, purchase: OpId, record: &Purchase, entry: &RefundEntry) -> Result<()> {
    let paid = record.spent().find(|part| part.coin_pub == entry.coin_pub);
    let paid = paid.ok_or_else(|| false_list("a coin in it has not paid"))?;
    let new = read(&step.draft, entry)?;
    let known = Known::of(&step.draft, purchase, entry)?;
    if let Some((_, _, old)) = &known.item {
        if old.amount != new.amount {
            return Err(false_list("it has another amount for a refund than before"));
        }
        // What the exchange has signed stays. If it had refused before, its signature counts.
        if old.progress == RefundState::Done || old.progress == new.progress {
            return Ok(());
        }
    }
    let is_refused = matches!(new.progress, RefundState::Failed(_));
    if !is_refused && known.others.checked_add(new.amount)? > paid.amount {
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
        credit(&mut step.draft, &new.coin_pub, new.amount.checked_sub(new.fee_refund)?)?;
    }
    let place = known.item.map(|(id, place, _)| (id, place));
    let mut operation = match place.map(|(id, _)| id).or(known.same_time) {
        Some(id) => step.draft.operation(id)?.clone(),
        None => new_refund(&step.draft, purchase, record, Some(entry.execution_time), step.now)?,
    };
    if let OpKind::Refund(refund) = &mut operation.kind {
        match place {
            Some((_, place)) => refund.items[place] = new,
            None => refund.items.push(new),
        }
        let is_open = refund.items.iter().any(|item| item.progress == RefundState::Open);
        operation.finished = if is_open { None } else { operation.finished.or(Some(step.now)) };
    }
    step.draft.put_operation(operation);
    Ok(())
}

/// A refund of a purchase without entries yet.
pub(in super::super) fn new_refund(
    draft: &Draft<'_>,
    purchase: OpId,
    record: &Purchase,
    approved: Option<Timestamp>,
    now: Timestamp,
) -> Result<WalletOperation> {
    let refund = Refund {
        payment: purchase,
        h_contract_terms: record.terms().h_contract_terms,
        merchant_pub: record.terms().merchant_pub,
        approved,
        items: Vec::new(),
    };
    let exchange = &draft.operation(purchase)?.exchange;
    Ok(WalletOperation::new(draft.next_id(), now, exchange, refund))
}
