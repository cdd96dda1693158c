//! The reserve of a withdrawal: waits for money, plans coins, and demands proof when money is missing.
//!
//! The exchange does not sign the balance that it states. The wallet believes a balance at least as large as
//! expected, because coins follow from it. It does not believe a smaller one: it asks for the coins anyway,
//! and an honest exchange answers with the complete history of the reserve.

use batzen_protocol::ErrorCode;
use std::collections::BTreeSet;

use batzen_protocol::Money;
use batzen_protocol::api::exchange::ReserveBalance;

use super::super::CoreError;
use super::super::age::CoinAge;
use super::super::exchange::Exchange;
use super::super::http::HttpResponse;
use super::super::operation::Step;
use super::super::proof::reserve as reserve_proof;
use super::super::state::OpKind;
use super::{MAX_COINS, Origin, PlanchetRecord, PlanchetState, WithdrawStage, Withdrawal};
use crate::core::error::Result;

/// Most planchets in one withdrawal, including those that yield no coin.
const MAX_PLANCHETS: u32 = 10 * MAX_COINS as u32;

/// Processes the balance of the reserve.
pub(super) fn after_balance(
    step: &mut Step<'_, '_>,
    mut record: Withdrawal,
    response: &HttpResponse,
) -> Result<()> {
    match (response.status, response.code()) {
        (404, ErrorCode::EXCHANGE_RESERVES_STATUS_UNKNOWN | ErrorCode::NONE) => {
            let reason = match &record.origin {
                Origin::Manual { .. } => "waiting for your bank transfer to reach the exchange",
                Origin::Bank(_) | Origin::Recoup | Origin::Purse => {
                    "waiting for the transfer to reach the exchange"
                }
            };
            step.wait(record, reason);
            return Ok(());
        }
        (200, _) => {}
        _ => return Err(response.refusal("reading the reserve")),
    }
    let answer: ReserveBalance = response.json("reading the reserve")?;
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let balance = answer.balance.money_in(exchange.currency)?;
    let owed = record.owed(&exchange)?;
    if let Ok(more) = balance.checked_sub(owed) {
        // More than expected, or some of the missing money.
        record.missing = record.missing.checked_sub(more).unwrap_or(Money::ZERO);
        record.awaited = record.awaited.checked_sub(more).unwrap_or(Money::ZERO);
    }
    plan(step, record, &exchange, balance.max(owed))?;
    // The answer to a recoup is not signed. If the claimed amount is less than a coin, the wallet never asks
    // for it.
    if let OpKind::Withdrawal(record) = &mut step.operation.kind {
        record.unproved = owed.checked_sub(balance).unwrap_or(Money::ZERO).min(record.leftover);
    }
    Ok(())
}

/// Splits a sum into coins and continues with them.
fn plan(step: &mut Step<'_, '_>, mut record: Withdrawal, exchange: &Exchange, sum: Money) -> Result<()> {
    let in_work = record.planchets.iter().any(|planchet| planchet.state != PlanchetState::Dropped);
    let age_mask = record.age.map_or(0, |age| age.mask);
    let offers = exchange.offers_of(record.cipher, age_mask, step.now);
    if offers.is_empty() && !sum.is_zero() && !in_work {
        record.stage = WithdrawStage::AwaitReserve;
        step.wait(record, "the exchange offers no coins now");
        return Ok(());
    }
    let plan = exchange.discretion.split(&offers, sum, MAX_COINS)?;
    record.leftover = plan.leftover;
    record.unplanned = Money::ZERO;
    for h_denom_pub in plan.denoms {
        let age = record.age.map(|age| CoinAge::draw(age, step.entropy)).transpose()?;
        record.planchets.push(PlanchetRecord {
            index: record.next_index,
            h_denom_pub,
            cs: None,
            age,
            state: PlanchetState::Open,
        });
        record.next_index = record
            .next_index
            .checked_add(1)
            .ok_or_else(|| CoreError::Inconsistent("a withdrawal ran out of coin numbers".to_owned()))?;
    }
    settle(step, record);
    Ok(())
}

/// Continues with the open planchets, or ends if there are none and nothing more is expected.
pub(super) fn settle(step: &mut Step<'_, '_>, mut record: Withdrawal) {
    let has = |state| record.planchets.iter().any(|planchet| planchet.state == state);
    if has(PlanchetState::Open) {
        record.stage = WithdrawStage::Withdraw;
        step.proceed(record);
        return;
    }
    if !record.unplanned.is_zero() {
        record.stage = WithdrawStage::AwaitReserve;
        step.proceed(record);
        return;
    }
    if !record.awaited.is_zero() {
        record.stage = WithdrawStage::AwaitReserve;
        let reason = format!(
            "{} of your transfer have not reached the exchange; if you sent less, end this with `batzen wallet cancel {}`",
            amount(step, record.awaited),
            step.operation.id
        );
        step.wait(record, reason);
        return;
    }
    if !has(PlanchetState::Done) {
        record.reason = Some("the reserve holds too little for a coin".to_owned());
    } else if !record.missing.is_zero() {
        record.reason = Some(format!(
            "{} were taken from the reserve by others who have its key, or paid back, as the exchange has proven",
            amount(step, record.missing)
        ));
    }
    record.stage = WithdrawStage::Done;
    step.finish(record);
}

/// Processes the proof that the reserve holds less than the coins `asked` cost, and plans again with its
/// balance.
pub(super) fn after_shortage(
    step: &mut Step<'_, '_>,
    mut record: Withdrawal,
    asked: &[usize],
    response: &HttpResponse,
) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let (mut envelopes, mut amount) = (BTreeSet::new(), Money::ZERO);
    for &position in asked {
        let item = &record.planchets[position];
        let denom = exchange.denom(&item.h_denom_pub)?;
        envelopes.insert(envelope(&exchange, &record, item)?);
        amount = amount.checked_add(denom.value)?.checked_add(denom.fee_withdraw)?;
    }
    let about = reserve_proof::Asked { envelopes, amount };
    let proof = reserve_proof::verify(&step.draft, &exchange, &record, &about, response, step.now)?;
    if record.next_index > MAX_PLANCHETS {
        return Err(response.refusal("withdrawing coins, after several attempts,"));
    }
    // Coins that were paid for can be fetched by asking again, whatever the exchange answered the first time.
    for position in 0..record.planchets.len() {
        let item = &record.planchets[position];
        if item.state == PlanchetState::Done {
            continue;
        }
        let needs_cs = item.cs.is_none() && exchange.denom(&item.h_denom_pub)?.is_cs();
        let paid = !needs_cs && proof.withdrawn.contains(&envelope(&exchange, &record, item)?);
        if paid {
            // One by one: the exchange refuses a batch that contains coins already paid for.
            record.batch = false;
        }
        record.planchets[position].state = if paid { PlanchetState::Open } else { PlanchetState::Dropped };
    }
    let (value, fees) = record.totals(&exchange, &[PlanchetState::Done, PlanchetState::Open])?;
    let expected = record.amount.checked_add(record.recouped)?;
    let found = value.checked_add(fees)?.checked_add(proof.balance)?;
    record.missing = expected.checked_sub(found).unwrap_or(Money::ZERO);
    if matches!(record.origin, Origin::Manual { .. }) {
        let recoups = reserve_proof::confirmed_recoups(&step.draft, &record.reserve_pub)?;
        let due = Money::checked_sum(recoups.into_values())?.checked_add(record.amount)?;
        record.awaited = due.checked_sub(proof.received).unwrap_or(Money::ZERO);
    }
    plan(step, record, &exchange, proof.balance)
}

/// Formats a sum for people.
fn amount(step: &Step<'_, '_>, money: Money) -> String {
    let exchange = step.draft.exchange(&step.operation.exchange);
    exchange.map_or_else(|_| money.to_string(), |exchange| exchange.amount(money).to_string())
}

fn envelope(
    exchange: &Exchange,
    record: &Withdrawal,
    item: &PlanchetRecord,
) -> Result<batzen_crypto::HashCode> {
    let denom = exchange.denom(&item.h_denom_pub)?;
    Ok(super::made(record, item, denom)?.h_coin_ev)
}
