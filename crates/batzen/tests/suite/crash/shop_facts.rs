//! Compares what the customers of a shop know with the books of exchange and bank.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use batzen_bank::books;
use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_exchange::reads::totals::{Totals, totals};
use batzen_exchange::rules::DenomTable;
use batzen_protocol::{Money, MoneySum};
use batzen_store::Store;
use batzen_tables::exchange::{CoinKey, Coins, DepositKey, Deposits, RefundKey, Refunds};

use crate::crash::coins::{Coin, minus, plus};
use crate::crash::deployment::BankBooks;
use crate::crash::shoppers::Bought;

/// The contradictions, and the exchange's balance sheet.
pub(crate) struct Findings {
    pub problems: Vec<String>,
    pub totals: Totals,
}

/// Checks the books of the exchange and the bank, which must not run, against what customers know.
pub(crate) async fn check(
    bought: &[Bought],
    coins: &[Arc<Coin>],
    paid_in: Money,
    exchange: &Store,
    bank: &BankBooks,
) -> Findings {
    let mut problems = rows(bought, exchange);
    problems.extend(remaining(bought, coins, exchange));
    let totals = totals(exchange, &DenomTable::load(exchange).unwrap()).unwrap();
    let issued = Money::checked_sum(coins.iter().map(|coin| coin.denom.value)).unwrap();
    let flow = books::account_flow(&bank.store, bank.ledger.as_ref(), "exchange").await.unwrap();
    if let Err(error) = books::check(&bank.store, bank.ledger.as_ref()).await {
        problems.push(error.to_string());
    }
    let bank_in = flow.incoming_with_reserve_pub;
    let right = [flow.outgoing_transfers].into_iter().chain(totals.held());
    if !totals.conserved() || MoneySum::checked_sum(right) != Ok(bank_in) {
        problems.push(format!("the books do not add up: {bank_in} came in, {totals:?}"));
    }
    if (bank_in, totals.issued) != (MoneySum::from(paid_in), MoneySum::from(issued)) {
        problems.push(format!("customers paid in {paid_in} and got {issued}, but {totals:?}"));
    }
    // What coins paid, less what came back. The exchange takes the deposit fees when it pays.
    let owed = bought.iter().flat_map(|order| {
        let refunds = order.refunds();
        order.coins.iter().map(move |(coin, amount)| {
            let back = refunds.iter().filter(|(coin_pub, ..)| *coin_pub == coin.key_pub);
            minus(*amount, Money::checked_sum(back.map(|(.., amount)| *amount)).unwrap())
        })
    });
    let owed = MoneySum::from(Money::checked_sum(owed).unwrap());
    if totals.pending != owed {
        problems.push(format!("the shop is owed {owed}, but {} are pending", totals.pending));
    }
    Findings { problems, totals }
}

/// Each deposit and each refund that a customer knows is in the books once, and there are no others. No coin pays
/// for two orders.
fn rows(bought: &[Bought], exchange: &Store) -> Vec<String> {
    let mut problems = Vec::new();
    let mut deposits: BTreeMap<DepositKey, (Money, Money)> = BTreeMap::new();
    let mut refunds: BTreeMap<RefundKey, Money> = BTreeMap::new();
    for order in bought {
        let key = |coin_pub: EddsaPublicKey| DepositKey {
            coin_pub,
            merchant_pub: order.merchant_pub,
            h_contract_terms: order.contract,
        };
        for (coin, amount) in &order.coins {
            deposits.insert(key(coin.key_pub), (*amount, Money::ZERO));
        }
        for (coin_pub, rtransaction_id, amount) in order.refunds() {
            let DepositKey { coin_pub, merchant_pub, h_contract_terms } = key(*coin_pub);
            let refund =
                RefundKey { coin_pub, merchant_pub, h_contract_terms, rtransaction_id: *rtransaction_id };
            if refunds.insert(refund, *amount).is_some() {
                problems.push(format!("{}: a refund was made twice", order.id));
            }
            let deposit = deposits.entry(key(coin_pub)).or_default();
            deposit.1 = plus(deposit.1, *amount);
        }
    }
    let mut booked: BTreeMap<DepositKey, (Money, Money)> = BTreeMap::new();
    let mut contracts: BTreeMap<EddsaPublicKey, BTreeSet<HashCode>> = BTreeMap::new();
    let mut spent: BTreeMap<EddsaPublicKey, usize> = BTreeMap::new();
    exchange
        .scan::<Deposits>(|found| {
            contracts.entry(found.key.coin_pub).or_default().insert(found.key.h_contract_terms);
            *spent.entry(found.key.coin_pub).or_default() += usize::from(found.row.refunded.is_zero());
            booked.insert(found.key, (found.row.amount, found.row.refunded));
            ControlFlow::Continue(())
        })
        .unwrap();
    if let Some((coin_pub, _)) = spent.iter().find(|(_, orders)| **orders > 1) {
        problems.push(format!("coin {coin_pub} paid for {} orders", contracts[coin_pub].len()));
    }
    let mut given_back: BTreeMap<RefundKey, Money> = BTreeMap::new();
    exchange
        .scan::<Refunds>(|found| {
            given_back.insert(found.key, found.row.amount);
            ControlFlow::Continue(())
        })
        .unwrap();
    differences("deposit", &deposits, &booked, &mut problems);
    differences("refund", &refunds, &given_back, &mut problems);
    problems
}

fn differences<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    known: &BTreeMap<K, V>,
    booked: &BTreeMap<K, V>,
    problems: &mut Vec<String>,
) {
    for (key, value) in known.iter().filter(|(key, value)| booked.get(key) != Some(value)) {
        problems.push(format!("{what} lost: {key:?} {value:?}, booked {:?}", booked.get(key)));
    }
    for key in booked.keys().filter(|key| !known.contains_key(key)) {
        problems.push(format!("{what} unknown to the customers: {key:?}"));
    }
}

/// Checks that each coin has the value that its owner expects.
fn remaining(bought: &[Bought], coins: &[Arc<Coin>], exchange: &Store) -> Vec<String> {
    let mut sums: BTreeMap<EddsaPublicKey, (Money, Money)> = BTreeMap::new();
    for order in bought {
        for (coin, amount) in &order.coins {
            let (debits, _) = sums.entry(coin.key_pub).or_default();
            *debits = plus(*debits, *amount);
        }
        for (coin_pub, _, amount) in order.refunds() {
            let fee = order.coins.iter().find(|(coin, _)| coin.key_pub == *coin_pub);
            let fee = fee.map_or(Money::ZERO, |(coin, _)| coin.denom.fee_refund);
            let (_, credits) = sums.entry(*coin_pub).or_default();
            *credits = plus(*credits, minus(*amount, fee));
        }
    }
    let mut problems = Vec::new();
    for coin in coins {
        let Some((debits, credits)) = sums.get(&coin.key_pub) else { continue };
        let left = plus(coin.denom.value, *credits).checked_sub(*debits).ok();
        let found = exchange.get::<Coins>(&CoinKey { coin_pub: coin.key_pub }).unwrap();
        let booked = found.map(|found| found.row.remaining);
        if left.is_none() || booked != left {
            problems.push(format!("coin {} should have {left:?}, but has {booked:?}", coin.key_pub));
        }
    }
    problems
}
