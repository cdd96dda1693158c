//! Balances and history for the user: amounts and plain words.

mod effect;
mod left;
mod part;
mod wait;

use std::collections::BTreeMap;

use batzen_protocol::{Amount, Currency, Money, Timestamp};
use serde::Serialize;

use super::CoreError;
use super::exchange::Exchange;
use super::operation::View;
use super::row::units;
use super::state::{Draft, WalletOperation, WalletState};
use crate::core::error::Result;
use effect::{losses, signed, summary_row};
use part::{Part, part_of};

pub use super::row::{Status, Transaction, describe_fees};
pub use left::{Left, left};
pub(crate) use wait::wait;

/// The money at one exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExchangeBalance {
    /// Base URL.
    pub exchange: String,
    /// Can be spent now.
    pub available: Amount,
    /// Incoming: withdrawals, change, refunds.
    pub(crate) pending_incoming: Amount,
    /// Spent, but not confirmed by the exchange yet, or sent to somebody who has not accepted it yet.
    pub pending_outgoing: Amount,
    /// Left on used coins, and too little to become a coin.
    pub(crate) dust: Amount,
    /// Held by operations about which the exchange gave a false answer. Not written off.
    pub(crate) disputed: Amount,
}

/// All money of one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Balance {
    pub(crate) currency: Currency,
    /// Everything that the wallet holds or expects: the sum of all amounts below except `pending_outgoing`,
    /// which is spent already. The effects of the history sum to it.
    pub total: Amount,
    /// Sum of the exchanges.
    pub available: Amount,
    /// Sum of the exchanges.
    pub pending_incoming: Amount,
    /// Sum of the exchanges.
    pub pending_outgoing: Amount,
    /// Sum of the exchanges.
    pub dust: Amount,
    /// Sum of the exchanges.
    pub disputed: Amount,
    /// By exchange.
    pub exchanges: Vec<ExchangeBalance>,
}

/// The balances, by currency.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn balances(state: &WalletState, now: Timestamp) -> Result<Vec<Balance>> {
    let mut by_currency: BTreeMap<String, Balance> = BTreeMap::new();
    for exchange in state.exchanges.values() {
        let part = exchange_balance(state, exchange, now)?;
        let zero = exchange.amount(Money::ZERO);
        let total =
            by_currency.entry(exchange.currency.as_str().to_ascii_uppercase()).or_insert_with(|| Balance {
                currency: exchange.currency,
                total: zero,
                available: zero,
                pending_incoming: zero,
                pending_outgoing: zero,
                dust: zero,
                disputed: zero,
                exchanges: Vec::new(),
            });
        for amount in [&part.available, &part.pending_incoming, &part.dust, &part.disputed] {
            total.total = total.total.checked_add(amount)?;
        }
        total.available = total.available.checked_add(&part.available)?;
        total.pending_incoming = total.pending_incoming.checked_add(&part.pending_incoming)?;
        total.pending_outgoing = total.pending_outgoing.checked_add(&part.pending_outgoing)?;
        total.dust = total.dust.checked_add(&part.dust)?;
        total.disputed = total.disputed.checked_add(&part.disputed)?;
        total.exchanges.push(part);
    }
    Ok(by_currency.into_values().collect())
}

fn exchange_balance(state: &WalletState, exchange: &Exchange, now: Timestamp) -> Result<ExchangeBalance> {
    let (mut available, mut incoming, mut outgoing, mut dust, mut disputed) =
        (Money::ZERO, Money::ZERO, Money::ZERO, Money::ZERO, Money::ZERO);
    let draft = Draft::new(state);
    for coin in
        state.coins.values().filter(|coin| coin.exchange == exchange.base_url && !coin.remaining.is_zero())
    {
        let denom = exchange.denom(&coin.h_denom_pub)?;
        let sum = match part_of(&draft, coin, denom, now) {
            Part::Available => &mut available,
            Part::Incoming => &mut incoming,
            Part::Dust => &mut dust,
            Part::Lost => continue,
        };
        *sum = sum.checked_add(coin.remaining)?;
    }
    for operation in state.open_operations() {
        let record = operation.kind.operation();
        if operation.exchange != exchange.base_url && !record.spans_exchanges() {
            continue;
        }
        let sum = match (operation.dispute, record.is_outgoing()) {
            (Some(_), _) => &mut disputed,
            (None, false) => &mut incoming,
            (None, true) => &mut outgoing,
        };
        *sum = sum.checked_add(record.held(View { state, exchange, operation })?)?;
    }
    Ok(ExchangeBalance {
        exchange: exchange.base_url.clone(),
        available: exchange.amount(available),
        pending_incoming: exchange.amount(incoming),
        pending_outgoing: exchange.amount(outgoing),
        dust: exchange.amount(dust),
        disputed: exchange.amount(disputed),
    })
}

/// The history, newest first. Refreshes are included if requested, disputed, or failed with a loss.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn transactions(state: &WalletState, with_refreshes: bool) -> Result<Vec<Transaction>> {
    let wanted = |operation: &&WalletOperation| with_refreshes || !is_hidden(operation);
    state.operations.values().rev().filter(wanted).map(|operation| transaction(state, operation)).collect()
}

/// The complete history, whose effects sum to the balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct History {
    /// The rows, newest first.
    pub transactions: Vec<Transaction>,
    /// The sum of the effects, by currency: [`Balance::total`].
    pub totals: Vec<HistoryTotal>,
}

/// The sum of a history's effects in one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryTotal {
    pub(crate) currency: Currency,
    /// Signed sum of the rows' effects.
    pub total: String,
}

/// The complete history, newest first. Besides the operations it has rows for coins that expired or were
/// spent elsewhere and, unless refreshes are requested, one row for the fees of all refreshes that are left
/// out.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn history(state: &WalletState, with_refreshes: bool, now: Timestamp) -> Result<History> {
    let mut rows = transactions(state, with_refreshes)?;
    let mut sums: BTreeMap<String, (&Exchange, i128)> = BTreeMap::new();
    for exchange in state.exchanges.values() {
        let mut more = losses(state, exchange, now)?;
        more.extend(hidden_refreshes(state, exchange, with_refreshes)?);
        for row in more {
            let place = rows.iter().position(|other| other.timestamp <= row.timestamp);
            rows.insert(place.unwrap_or(rows.len()), row);
        }
        sums.entry(exchange.currency.as_str().to_ascii_uppercase()).or_insert((exchange, 0));
    }
    for row in &rows {
        let exchange = state.exchange(&row.exchange)?;
        if let Some((_, sum)) = sums.get_mut(&exchange.currency.as_str().to_ascii_uppercase()) {
            *sum += effect_of_row(row)?;
        }
    }
    let totals = sums.into_values().map(|(exchange, sum)| {
        Ok::<_, CoreError>(HistoryTotal { currency: exchange.currency, total: signed(exchange, sum)? })
    });
    let totals = totals.collect::<Result<_>>()?;
    Ok(History { transactions: rows, totals })
}

/// The effect that a row shows, in signed units.
fn effect_of_row(row: &Transaction) -> Result<i128> {
    let amount = Amount::parse(row.effect.trim_start_matches(['+', '-']))?;
    let units = units(amount.money);
    Ok(if row.effect.starts_with('-') { -units } else { units })
}

fn is_hidden(operation: &WalletOperation) -> bool {
    operation.dispute.is_none() && operation.kind.operation().is_hidden()
}

/// One row for the fees of the refreshes that have no rows of their own.
fn hidden_refreshes(
    state: &WalletState,
    exchange: &Exchange,
    with_refreshes: bool,
) -> Result<Option<Transaction>> {
    let (mut sum, mut latest) = (0, Timestamp::ZERO);
    for operation in state.operations.values() {
        if !with_refreshes && is_hidden(operation) && operation.exchange == exchange.base_url {
            sum += operation.kind.operation().effect(View { state, exchange, operation })?;
            latest = latest.max(operation.created);
        }
    }
    if sum == 0 {
        return Ok(None);
    }
    let fees = exchange.amount(Money::from_units(sum.unsigned_abs())?);
    let mut row = summary_row(exchange, "refreshes", latest, sum, fees)?;
    row.fees = fees;
    row.description = "Fees for making change".to_owned();
    Ok(Some(row))
}

/// One row of the history.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn transaction(state: &WalletState, operation: &WalletOperation) -> Result<Transaction> {
    let exchange = state.exchange(&operation.exchange)?;
    let (record, view) = (operation.kind.operation(), View { state, exchange, operation });
    let zero = exchange.amount(Money::ZERO);
    let running = if operation.finished.is_some() { Status::Done } else { Status::Pending };
    let mut line = Transaction {
        id: Some(operation.id),
        kind: operation.kind.name(),
        timestamp: operation.created,
        status: running,
        exchange: operation.exchange.clone(),
        amount: zero,
        effect: signed(exchange, record.effect(view)?)?,
        fees: zero,
        coins: 0,
        description: String::new(),
        message: operation.last_error.clone(),
        evidence: operation.dispute.map(|dispute| dispute.evidence),
        payto: None,
        reserve_pub: None,
        merchant: None,
        refunded: None,
        h_contract_terms: None,
        uri: None,
    };
    record.describe(view, &mut line)?;
    Ok(line)
}
