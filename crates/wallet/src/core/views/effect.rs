//! Effects of operations on the balance. Every row of the history has one, and they sum to
//! [`Balance::total`].
//!
//! The effects follow from the records of operations, the balance from coins and open operations. Tests
//! compare the two in every state.
//!
//! [`Balance::total`]: super::Balance::total

use std::collections::BTreeMap;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Amount, Money, Timestamp};

use super::super::coin::{Coin, CoinSource};
use super::super::exchange::Exchange;
use super::super::purse::{PartState, PursePart};
use super::super::recoup::RecoupStage;
use super::super::refresh::RefreshStage;
use super::super::refund::RefundState;
use super::super::state::{Draft, OpKind, WalletOperation, WalletState};
use super::super::tip::TipStage;
use super::super::withdraw::PlanchetState;
use super::super::{CoreError, payment};
use super::{Place, Status, Transaction, place_of};

/// Signed units of 10⁻⁸.
pub(super) fn units(money: Money) -> i128 {
    money.units() as i128
}

/// A signed amount, such as `-EUR:1.5`.
pub(super) fn signed(exchange: &Exchange, units: i128) -> Result<String, CoreError> {
    let sign = if units < 0 { '-' } else { '+' };
    Ok(format!("{sign}{}", exchange.amount(Money::from_units(units.unsigned_abs())?)))
}

/// The signed change of the wallet's balance by an operation, fees included. Open operations have the effect
/// that they are expected to have. While a payment or refresh is disputed, it has none.
pub(super) fn effect(
    state: &WalletState,
    exchange: &Exchange,
    operation: &WalletOperation,
) -> Result<i128, CoreError> {
    let is_open = operation.finished.is_none();
    let is_disputed = is_open && operation.dispute.is_some();
    Ok(match &operation.kind {
        // The income counts what came through purses, so the withdrawal only counts what it costs.
        OpKind::Withdrawal(record) if is_open && record.planchets.is_empty() => {
            units(record.amount.checked_add(record.recouped)?) - units(record.from_purses)
        }
        OpKind::Withdrawal(record) => {
            let states = [PlanchetState::Done, PlanchetState::Open];
            let states = if is_open { &states[..] } else { &states[..1] };
            let later = if is_open { record.unplanned } else { Money::ZERO };
            units(record.totals(exchange, states)?.0.checked_add(later)?) - units(record.from_purses)
        }
        OpKind::Payment(_) | OpKind::Refresh(_) | OpKind::PursePayment(_) if is_disputed => 0,
        // What the merchant has given back has a row of its own.
        OpKind::Purchase(record) if is_disputed => {
            let refunded = record.spent().filter(|part| part.is_refunded).map(|part| part.amount);
            -units(Money::checked_sum(refunded)?)
        }
        OpKind::Purchase(record) => -units(record.totals()?.0),
        OpKind::PursePayment(record) => -units(record.totals()?.0),
        OpKind::PurseIncome(record) => units(record.expected()),
        OpKind::Payment(record) => -units(record.totals()?.0),
        OpKind::Refresh(record) => match record.stage {
            RefreshStage::Failed => 0,
            RefreshStage::Lost => -units(record.amount),
            _ => -units(record.fee_melt.checked_add(record.fees_withdraw)?),
        },
        OpKind::Recoup(record) if record.stage == RecoupStage::Done => {
            match state.coin(&record.coin_pub)?.source {
                // A withdrawal from the reserve brings the money back.
                CoinSource::Withdrawal { .. } => -units(record.amount.checked_add(record.missing)?),
                CoinSource::Refresh { .. } | CoinSource::Tip { .. } => -units(record.missing),
            }
        }
        OpKind::Recoup(_) | OpKind::PickUp(_) => 0,
        OpKind::Tip(record) if record.stage == TipStage::Failed => 0,
        OpKind::Tip(record) => units(record.value()?),
        OpKind::Refund(record) => {
            let kept = record.items.iter().filter(|item| !matches!(item.progress, RefundState::Failed(_)));
            let mut sum = 0;
            for item in kept {
                sum += units(item.amount.checked_sub(item.fee_refund)?);
            }
            sum
        }
    })
}

/// The remaining value that a coin has according to the operations with it, and the latest of their times.
struct Expected {
    units: i128,
    latest: Timestamp,
}

fn expected(
    state: &WalletState,
    exchange: &Exchange,
) -> Result<BTreeMap<EddsaPublicKey, Expected>, CoreError> {
    let mut coins = BTreeMap::new();
    for coin in coins_of(state, exchange) {
        let value = exchange.denom(&coin.h_denom_pub)?.value;
        coins.insert(coin.coin_pub, Expected { units: units(value), latest: coin.created });
    }
    let mut change = |coin_pub: &EddsaPublicKey, units: i128, operation: &WalletOperation| {
        if let Some(coin) = coins.get_mut(coin_pub) {
            coin.units += units;
            coin.latest = coin.latest.max(operation.finished.unwrap_or(operation.created));
        }
    };
    // Purchases and their refunds have coins of several exchanges.
    for operation in state.operations.values() {
        match &operation.kind {
            OpKind::Withdrawal(_) | OpKind::PurseIncome(_) | OpKind::PickUp(_) | OpKind::Tip(_) => {}
            OpKind::PursePayment(record) => {
                for PursePart { coin_pub, amount, state, .. } in &record.coins {
                    let taken = if *state == PartState::Spent { *amount } else { Money::ZERO };
                    change(coin_pub, -units(taken), operation);
                }
            }
            OpKind::Purchase(record) => {
                for part in &record.coins {
                    let taken = if part.is_back { Money::ZERO } else { part.amount };
                    change(&part.coin_pub, -units(taken), operation);
                }
            }
            OpKind::Payment(record) => {
                for payment::PaymentCoin { coin_pub, amount, .. } in &record.coins {
                    change(coin_pub, -units(*amount), operation);
                }
            }
            OpKind::Refresh(record) => {
                let taken = if record.stage == RefreshStage::Failed { Money::ZERO } else { record.amount };
                change(&record.old_coin_pub, -units(taken), operation);
            }
            OpKind::Recoup(record) if record.stage == RecoupStage::Failed => {
                change(&record.coin_pub, 0, operation);
            }
            OpKind::Recoup(record) => {
                change(&record.coin_pub, -units(record.amount.checked_add(record.missing)?), operation);
                if let (RecoupStage::Done, CoinSource::Refresh { old_coin_pub, .. }) =
                    (record.stage, state.coin(&record.coin_pub)?.source)
                {
                    change(&old_coin_pub, units(record.amount), operation);
                }
            }
            OpKind::Refund(record) => {
                for item in record.items.iter().filter(|item| item.progress == RefundState::Done) {
                    change(&item.coin_pub, units(item.amount.checked_sub(item.fee_refund)?), operation);
                }
            }
        }
    }
    Ok(coins)
}

fn coins_of<'a>(state: &'a WalletState, exchange: &'a Exchange) -> impl Iterator<Item = &'a Coin> {
    state.coins.values().filter(|coin| coin.exchange == exchange.base_url)
}

/// Rows for value that left the wallet without an operation: coins that expired, and coins that were spent
/// elsewhere.
pub(super) fn losses(
    state: &WalletState,
    exchange: &Exchange,
    now: Timestamp,
) -> Result<Vec<Transaction>, CoreError> {
    let draft = Draft::new(state);
    let expected = expected(state, exchange)?;
    let (mut expired, mut elsewhere) = (Loss::default(), Loss::default());
    for coin in coins_of(state, exchange) {
        let denom = exchange.denom(&coin.h_denom_pub)?;
        let Some(Expected { units: value, latest }) = expected.get(&coin.coin_pub) else { continue };
        elsewhere.add(value - units(coin.remaining), *latest);
        if place_of(&draft, coin, denom, now) == Place::Lost {
            expired.add(units(coin.remaining), denom.stamp_expire_deposit);
        }
    }
    let rows = [
        expired.row(exchange, "expired", "Coins that expired"),
        elsewhere.row(
            exchange,
            "spent-elsewhere",
            "Coins that were spent elsewhere, perhaps by a copy of this wallet",
        ),
    ];
    rows.into_iter().filter_map(Result::transpose).collect()
}

/// Value that was lost in several coins.
struct Loss {
    units: i128,
    coins: usize,
    latest: Timestamp,
}

impl Default for Loss {
    fn default() -> Self {
        Self { units: 0, coins: 0, latest: Timestamp::ZERO }
    }
}

impl Loss {
    fn add(&mut self, units: i128, time: Timestamp) {
        if units != 0 {
            self.units += units;
            self.coins += 1;
            self.latest = self.latest.max(time);
        }
    }

    fn row(
        &self,
        exchange: &Exchange,
        kind: &'static str,
        description: &str,
    ) -> Result<Option<Transaction>, CoreError> {
        if self.units == 0 {
            return Ok(None);
        }
        let amount = exchange.amount(Money::from_units(self.units.unsigned_abs())?);
        let mut row = summary_row(exchange, kind, self.latest, -self.units, amount)?;
        row.coins = self.coins;
        row.description = description.to_owned();
        Ok(Some(row))
    }
}

/// A row that stands for no single operation.
pub(super) fn summary_row(
    exchange: &Exchange,
    kind: &'static str,
    timestamp: Timestamp,
    effect: i128,
    amount: Amount,
) -> Result<Transaction, CoreError> {
    Ok(Transaction {
        id: None,
        kind,
        timestamp,
        status: Status::Done,
        exchange: exchange.base_url.clone(),
        amount,
        effect: signed(exchange, effect)?,
        fees: exchange.amount(Money::ZERO),
        coins: 0,
        description: String::new(),
        message: None,
        evidence: None,
        payto: None,
        reserve_pub: None,
        merchant: None,
        refunded: None,
        h_contract_terms: None,
        uri: None,
    })
}
