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

use super::super::coin::Coin;
use super::super::exchange::Exchange;
use super::super::row::{Status, Transaction, units};
use super::super::state::{Draft, WalletState};
use super::part::{Part, part_of};
use crate::core::error::Result;

/// A signed amount, such as `-EUR:1.5`.
pub(super) fn signed(exchange: &Exchange, units: i128) -> Result<String> {
    let sign = if units < 0 { '-' } else { '+' };
    Ok(format!("{sign}{}", exchange.amount(Money::from_units(units.unsigned_abs())?)))
}

/// The remaining value that a coin has according to the operations with it, and the latest of their times.
struct Expected {
    units: i128,
    latest: Timestamp,
}

fn expected(state: &WalletState, exchange: &Exchange) -> Result<BTreeMap<EddsaPublicKey, Expected>> {
    let mut coins = BTreeMap::new();
    for coin in coins_of(state, exchange) {
        let value = exchange.denom(&coin.h_denom_pub)?.value;
        coins.insert(coin.coin_pub, Expected { units: units(value), latest: coin.created });
    }
    // Purchases and their refunds have coins of several exchanges.
    for operation in state.operations.values() {
        operation.kind.operation().coin_changes(state, &mut |coin_pub, units| {
            if let Some(coin) = coins.get_mut(coin_pub) {
                coin.units += units;
                coin.latest = coin.latest.max(operation.finished.unwrap_or(operation.created));
            }
        })?;
    }
    Ok(coins)
}

fn coins_of<'a>(state: &'a WalletState, exchange: &'a Exchange) -> impl Iterator<Item = &'a Coin> {
    state.coins.values().filter(|coin| coin.exchange == exchange.base_url)
}

/// Rows for value that left the wallet without an operation: coins that expired, and coins that were spent
/// elsewhere.
pub(super) fn losses(state: &WalletState, exchange: &Exchange, now: Timestamp) -> Result<Vec<Transaction>> {
    let draft = Draft::new(state);
    let expected = expected(state, exchange)?;
    let (mut expired, mut elsewhere) = (Loss::default(), Loss::default());
    for coin in coins_of(state, exchange) {
        let denom = exchange.denom(&coin.h_denom_pub)?;
        let Some(Expected { units: value, latest }) = expected.get(&coin.coin_pub) else { continue };
        elsewhere.add(value - units(coin.remaining), *latest);
        if part_of(&draft, coin, denom, now) == Part::Lost {
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

    fn row(&self, exchange: &Exchange, kind: &'static str, description: &str) -> Result<Option<Transaction>> {
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
) -> Result<Transaction> {
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
