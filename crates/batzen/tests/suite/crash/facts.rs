//! Compares the customers' knowledge with the stores of exchange and bank, row by row and sum by sum.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use batzen_bank::books;
use batzen_crypto::{BlindedDenomSignature, EddsaPublicKey, HashCode, Wtid};
use batzen_exchange::reads::totals::{self, Totals};
use batzen_exchange::rules::DenomTable;
use batzen_protocol::api::exchange::{BlindSignature, BlindSignatures};
use batzen_protocol::payto::AccountHash;
use batzen_protocol::{Money, MoneySum, PaytoUri, Timestamp};
use batzen_store::{Store, Table};
use batzen_tables::bank::BankTransactions;
use batzen_tables::exchange::{
    Aggregates, CoinKey, Coins, DepositKey, Deposits, KycOperation, KycUsages, MeltKey, Melts, Prepared,
    PurseDepositKey, PurseDeposits, PurseKey, PurseMerges, Purses, RefundKey, Refunds, ReserveKey, Reserves,
    ReservesIn, Reveals, TransferKind, WireOut, WireTargetKey, WireTargets, WithdrawalKey, Withdrawals,
};
use serde::Deserialize;
use serde_json::Value;

use crate::crash::coins::{Coin, Denom, Shop, plus};
use crate::crash::customers::{Effect, spent};
use crate::crash::deployment::BankBooks;
use crate::crash::log::{Answer, Entry, Kind};

/// The customers' knowledge.
#[derive(Clone)]
pub(crate) struct Claims<'a> {
    pub entries: Vec<Entry<Effect>>,
    pub credits: Vec<(EddsaPublicKey, Money)>,
    pub coins: &'a HashMap<EddsaPublicKey, Arc<Coin>>,
    pub denoms: &'a [Arc<Denom>],
    pub shops: &'a [Shop],
    pub base_url: &'a str,
}

/// The result of the comparison.
#[derive(Default)]
pub(crate) struct Findings {
    /// The contradictions found; empty if everything is proven.
    pub problems: Vec<String>,
    /// The exchange's balance sheet, if there is one.
    pub totals: Option<Totals>,
    /// Transfers to merchants.
    pub transfers: usize,
    /// A due payment has not been made yet.
    pub is_unpaid: bool,
}

fn sum(items: impl IntoIterator<Item = Money>) -> Money {
    Money::checked_sum(items).unwrap()
}

impl Findings {
    fn unless(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }
}

impl Claims<'_> {
    fn acknowledged(&self) -> impl Iterator<Item = (&Entry<Effect>, &Answer)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry, entry.answer.as_ref().filter(|answer| answer.status == 200)?)))
    }

    fn effects(&self) -> impl Iterator<Item = Effect> + '_ {
        self.acknowledged().map(|(entry, _)| entry.effect.clone())
    }

    fn denom(&self, hash: &HashCode) -> &Denom {
        self.denoms.iter().find(|denom| denom.hash == *hash).expect("denominations of requests were offered")
    }
}

/// Checks the stores against the claims.
pub(crate) async fn check(claims: &Claims<'_>, exchange: &Store, bank: &BankBooks) -> Findings {
    let mut findings = Findings::default();
    for entry in &claims.entries {
        findings.unless(!entry.is_open(), || format!("{:?} is not settled", entry.request.kind));
    }
    rows(claims, exchange, &mut findings);
    reserves(claims, exchange, &mut findings);
    coins(claims, exchange, &mut findings);
    limits(claims, exchange, &mut findings);
    contests(claims, &mut findings);
    balance(claims, exchange, bank, &mut findings).await;
    transfers(claims, exchange, bank, &mut findings).await;
    findings
}

/// The blind signatures in an answer to a withdrawal or reveal.
fn ev_sigs(kind: Kind, answer: &Value) -> Vec<BlindedDenomSignature> {
    let list = if kind == Kind::Withdraw {
        vec![BlindSignature::deserialize(answer).unwrap()]
    } else {
        BlindSignatures::deserialize(answer).unwrap().ev_sigs
    };
    list.into_iter().map(|item| item.ev_sig).collect()
}

/// Each acknowledged operation has its rows, which match the answer; and there are no other rows.
fn rows(claims: &Claims<'_>, store: &Store, findings: &mut Findings) {
    let mut counts = [0_u64; 7];
    for (entry, answer) in claims.acknowledged() {
        let kind = entry.request.kind;
        let mut lost =
            |what: &str| findings.problems.push(format!("{kind:?} lost: {what} ({:?})", entry.effect));
        match &entry.effect {
            Effect::Nothing => {}
            Effect::Withdraw { reserve, coins } => {
                for ((h_coin_ev, _), ev_sig) in coins.iter().zip(ev_sigs(kind, &answer.body)) {
                    counts[0] += 1;
                    let key = WithdrawalKey { reserve_pub: *reserve, h_coin_ev: *h_coin_ev };
                    match store.get::<Withdrawals>(&key).unwrap() {
                        None => lost("no row"),
                        Some(found) if found.row.ev_sig != ev_sig => lost("another signature"),
                        Some(_) => {}
                    }
                }
            }
            Effect::Deposit { shop, contract, coins, .. } => {
                let time = Timestamp::deserialize(&answer.body["exchange_timestamp"]).unwrap();
                for (coin_pub, amount) in coins {
                    counts[1] += 1;
                    let merchant_pub = claims.shops[*shop].key_pub;
                    let key = DepositKey { coin_pub: *coin_pub, merchant_pub, h_contract_terms: *contract };
                    let Some(found) = store.get::<Deposits>(&key).unwrap() else {
                        lost("no row");
                        continue;
                    };
                    if found.row.amount != *amount {
                        lost("another amount");
                    }
                    if found.row.exchange_time.as_micros() / 1_000_000 != time.as_micros() / 1_000_000 {
                        lost("another time");
                    }
                }
            }
            Effect::Melt { coin, rc, amount } => {
                counts[2] += 1;
                match store.get::<Melts>(&MeltKey { coin_pub: *coin, rc: *rc }).unwrap() {
                    None => lost("no row"),
                    Some(found) => {
                        if found.row.amount != *amount {
                            lost("another amount");
                        }
                        if answer.body["noreveal_index"] != u32::from(found.row.noreveal_index) {
                            lost("another index");
                        }
                    }
                }
            }
            Effect::Reveal { coin, rc, coins } => {
                counts[3] += 1;
                match store.get::<Reveals>(&MeltKey { coin_pub: *coin, rc: *rc }).unwrap() {
                    None => lost("no row"),
                    Some(found) => {
                        let fresh = found.row.fresh.0;
                        let signed: Vec<_> = fresh.iter().map(|coin| coin.ev_sig.clone()).collect();
                        if signed != ev_sigs(kind, &answer.body) {
                            lost("other signatures");
                        }
                        if !fresh.iter().map(|coin| coin.h_coin_ev).eq(coins.iter().map(|coin| coin.0)) {
                            lost("other coins");
                        }
                    }
                }
            }
            Effect::PurseCreate { purse, coins, target } => {
                counts[5] += 1;
                match store.get::<Purses>(&PurseKey { purse_pub: *purse }).unwrap() {
                    None => lost("no row"),
                    Some(found) if found.row.target != *target => lost("another amount"),
                    Some(_) => {}
                }
                for (coin_pub, amount) in coins {
                    let key = PurseDepositKey { purse_pub: *purse, coin_pub: *coin_pub };
                    let deposit = store.get::<PurseDeposits>(&key).unwrap();
                    if deposit.is_none_or(|found| found.row.amount != *amount || found.row.refunded) {
                        lost("a coin");
                    }
                }
            }
            Effect::PurseMerge { purse, reserve, .. } => {
                counts[6] += 1;
                match store.get::<PurseMerges>(&PurseKey { purse_pub: *purse }).unwrap() {
                    None => lost("no row"),
                    Some(found) if found.row.reserve_pub != *reserve => lost("another reserve"),
                    Some(_) => {}
                }
            }
            Effect::Refund { coin, shop, contract, number, amount } => {
                counts[4] += 1;
                let merchant_pub = claims.shops[*shop].key_pub;
                let key = RefundKey {
                    coin_pub: *coin,
                    merchant_pub,
                    h_contract_terms: *contract,
                    rtransaction_id: *number,
                };
                match store.get::<Refunds>(&key).unwrap() {
                    None => lost("no row"),
                    Some(found) if found.row.amount != *amount => lost("another amount"),
                    Some(_) => {}
                }
            }
        }
    }
    let stored = [
        count::<Withdrawals>(store),
        count::<Deposits>(store),
        count::<Melts>(store),
        count::<Reveals>(store),
        count::<Refunds>(store),
        count::<Purses>(store),
        count::<PurseMerges>(store),
    ];
    findings.unless(stored == counts, || {
        format!(
            "withdrawals, deposits, melts, reveals, refunds, purses, merges: {stored:?} rows for {counts:?} answers"
        )
    });
}

fn count<T: Table>(store: &Store) -> u64 {
    store.count::<T>().unwrap()
}

/// Each reserve holds the sum of its credits and of the purses it got, less its withdrawals.
fn reserves(claims: &Claims<'_>, store: &Store, findings: &mut Findings) {
    let mut withdrawn: HashMap<EddsaPublicKey, Vec<Money>> = HashMap::new();
    let mut got: HashMap<EddsaPublicKey, Money> = claims.credits.iter().copied().collect();
    for effect in claims.effects() {
        match effect {
            Effect::Withdraw { reserve, coins } => {
                let costs = coins.iter().map(|(_, denom)| claims.denom(denom).cost());
                withdrawn.entry(reserve).or_default().extend(costs);
            }
            Effect::PurseMerge { reserve, amount, .. } => {
                let credit = got.entry(reserve).or_default();
                *credit = sum([*credit, amount]);
            }
            _ => {}
        }
    }
    for (reserve_pub, credit) in &got {
        let taken = sum(withdrawn.remove(reserve_pub).unwrap_or_default());
        let balance = store
            .get::<Reserves>(&ReserveKey { reserve_pub: *reserve_pub })
            .unwrap()
            .map(|found| found.row.balance);
        findings.unless(balance.is_some() && balance == credit.checked_sub(taken).ok(), || {
            format!("reserve {reserve_pub} got {credit} and gave {taken}, but has {balance:?}")
        });
    }
    findings.unless(withdrawn.is_empty(), || "withdrawals from reserves that got nothing".to_owned());
    let (booked, credited) = (count::<ReservesIn>(store), claims.credits.len() as u64);
    findings.unless(booked == credited, || format!("{booked} credits booked, {credited} made"));
}

/// Checks that counters of limits equal the operations: they change in the same commit.
fn limits(claims: &Claims<'_>, store: &Store, findings: &mut Findings) {
    let mut moved: BTreeMap<(AccountHash, KycOperation), Money> = BTreeMap::new();
    let mut count = |account: AccountHash, operation: KycOperation, amount: Money| {
        let sum = moved.entry((account, operation)).or_default();
        *sum = plus(*sum, amount);
    };
    for effect in claims.effects() {
        match effect {
            Effect::Withdraw { reserve, coins } => {
                let found = store.get::<Reserves>(&ReserveKey { reserve_pub: reserve }).unwrap();
                let Some(origin) = found.and_then(|found| found.row.origin) else {
                    findings.problems.push(format!("reserve {reserve} has no origin"));
                    continue;
                };
                let account = store.get::<WireTargets>(&WireTargetKey { h_payto: origin }).unwrap();
                let account = AccountHash::of(&account.expect("accounts in rows are kept").row.payto_uri);
                for (_, denom) in coins {
                    count(account, KycOperation::Withdraw, claims.denom(&denom).cost());
                }
            }
            Effect::PurseMerge { reserve, amount, .. } => {
                let account = PaytoUri::reserve(claims.base_url, &reserve).unwrap();
                count(AccountHash::of(account.as_str()), KycOperation::Merge, amount);
            }
            _ => {}
        }
    }
    let counted: BTreeMap<(AccountHash, KycOperation), Money> = store
        .all::<KycUsages>()
        .unwrap()
        .into_iter()
        .map(|found| {
            let amounts = found.row.events.0.iter().map(|event| event.amount);
            ((found.key.account, found.key.operation), sum(amounts))
        })
        // Purses that were asked for and not paid.
        .filter(|(_, sum)| !sum.is_zero())
        .collect();
    findings.unless(moved == counted, || {
        format!("accounts moved {moved:?}, but {counted:?} counts against their limits")
    });
}

/// No coin was accepted beyond its value, and the rest of each coin matches the log.
fn coins(claims: &Claims<'_>, store: &Store, findings: &mut Findings) {
    let spent = spent(claims.effects(), claims.coins);
    for (coin_pub, (debits, credits)) in &spent {
        let Some(coin) = claims.coins.get(coin_pub) else {
            findings.problems.push(format!("coin {coin_pub} was never withdrawn"));
            continue;
        };
        let value = coin.denom.value;
        let left = value.checked_add(*credits).unwrap().checked_sub(*debits).ok();
        findings.unless(left.is_some(), || {
            format!("coin {coin_pub} of {value} was accepted for {debits}, with {credits} given back")
        });
        let remaining =
            store.get::<Coins>(&CoinKey { coin_pub: *coin_pub }).unwrap().map(|found| found.row.remaining);
        findings.unless(left.is_none() || remaining == left, || {
            format!("coin {coin_pub} should have {left:?} left, but has {remaining:?}")
        });
    }
    let (known, used) = (count::<Coins>(store), spent.len() as u64);
    findings.unless(known == used, || format!("{known} coins are known, {used} were used"));
}

/// If two shops were offered the same coin, or two people the same purse, exactly one got it.
fn contests(claims: &Claims<'_>, findings: &mut Findings) {
    let mut winners: HashMap<EddsaPublicKey, u32> = HashMap::new();
    for entry in &claims.entries {
        let is_paid = entry.is_acknowledged();
        if let Effect::Deposit { is_contested: true, coins, .. } = &entry.effect {
            *winners.entry(coins[0].0).or_default() += u32::from(is_paid);
        } else if let Effect::PurseMerge { is_contested: true, purse, .. } = &entry.effect {
            *winners.entry(*purse).or_default() += u32::from(is_paid);
        } else {
            findings.unless(is_paid || entry.is_open(), || {
                format!("{:?} was refused: {:?}", entry.request.kind, entry.answer)
            });
        }
    }
    for (key, count) in winners {
        findings.unless(count == 1, || format!("{key} was offered to two, and {count} got it"));
    }
}

/// The books of exchange, bank and customers agree to the last unit.
async fn balance(claims: &Claims<'_>, exchange: &Store, bank: &BankBooks, findings: &mut Findings) {
    let denoms = DenomTable::load(exchange).unwrap();
    let totals = match totals::totals(exchange, &denoms) {
        Ok(totals) => totals,
        Err(error) => return findings.problems.push(format!("no balance sheet: {error}")),
    };
    let ledger = bank.ledger.as_ref();
    if let Err(error) = books::check(&bank.store, ledger).await {
        findings.problems.push(error.to_string());
    }
    let flow = books::account_flow(&bank.store, ledger, "exchange").await.unwrap();
    let (bank_in, bank_out) = (flow.incoming_with_reserve_pub, flow.outgoing_transfers);
    let right = [bank_out].into_iter().chain(totals.held());
    findings.unless(totals.conserved() && MoneySum::checked_sum(right) == Ok(bank_in), || {
        format!("the books do not add up: {bank_in} came in, {bank_out} went out, {totals:?}")
    });
    let (mut issued, mut melted, mut revealed) = (Vec::new(), HashMap::new(), HashSet::new());
    for effect in claims.effects() {
        match effect {
            Effect::Withdraw { coins, .. } => issued.extend(coins),
            Effect::Reveal { coins, rc, .. } => {
                issued.extend(coins);
                revealed.insert(rc);
            }
            Effect::Melt { rc, coin, amount } => {
                let fee = claims.coins.get(&coin).map_or(Money::ZERO, |coin| coin.denom.fee_refresh);
                melted.insert(rc, amount.checked_sub(fee).unwrap());
            }
            _ => {}
        }
    }
    let mut open: HashMap<EddsaPublicKey, Money> = HashMap::new();
    for effect in claims.effects() {
        if let Effect::PurseCreate { purse, coins, .. } = effect {
            open.insert(purse, sum(coins.into_iter().map(|(_, amount)| amount)));
        }
    }
    for effect in claims.effects() {
        if let Effect::PurseMerge { purse, .. } = effect {
            open.remove(&purse);
        }
    }
    let (debits, credits): (Vec<_>, Vec<_>) = spent(claims.effects(), claims.coins).into_values().unzip();
    let expected = [
        sum(claims.credits.iter().map(|(_, amount)| *amount)),
        sum(issued.iter().map(|(_, denom)| claims.denom(denom).value)),
        sum(debits).checked_sub(sum(credits)).unwrap_or(Money::ZERO),
        sum(melted.iter().filter(|(rc, _)| !revealed.contains(*rc)).map(|(_, amount)| *amount)),
        sum(open.into_values()),
    ];
    let expected = expected.map(MoneySum::from);
    let booked = [totals.wired_in, totals.issued, totals.redeemed, totals.unrevealed_melts, totals.purses];
    findings.unless(expected == booked && totals.wired_in == bank_in, || {
        format!(
            "paid in, issued, redeemed, unrevealed, in purses: {expected:?} by the customers, {booked:?} by the exchange"
        )
    });
    findings.totals = Some(totals);
}

/// Every due deposit is in a transfer, each transfer reached the bank once, and the merchants have their
/// money.
async fn transfers(claims: &Claims<'_>, exchange: &Store, bank: &BankBooks, findings: &mut Findings) {
    let mut decided = BTreeMap::<Wtid, Money>::new();
    let mut is_settled = true;
    let _ = exchange.scan::<Prepared>(|found| {
        is_settled &= found.row.finished.is_some() && found.row.failed.is_none();
        is_settled &= found.row.kind == TransferKind::Aggregate;
        decided.insert(found.key.wtid, found.row.amount);
        ControlFlow::Continue(())
    });
    findings.is_unpaid |= !is_settled;
    findings.unless(is_settled, || "a transfer is not finished".to_owned());
    let mut made = BTreeMap::<Wtid, Money>::new();
    for found in bank.store.all::<BankTransactions>().unwrap() {
        if let Some(wtid) = found.row.wtid {
            let is_new = made.insert(wtid, found.row.amount).is_none();
            findings.unless(is_new, || format!("transfer {wtid} was made twice"));
        }
    }
    findings.unless(decided == made, || {
        format!("{} transfers were decided, {} made, or of other amounts", decided.len(), made.len())
    });
    findings.transfers = made.len();

    // The wire fee and a hundredth, the bank's unit.
    let wire_fee = exchange.all::<WireOut>().unwrap().iter().map(|found| found.row.wire_fee).max();
    let smallest_transfer = sum([wire_fee.unwrap_or(Money::ZERO), Money::new(0, 1_000_000).unwrap()]);
    let accounts = books::totals(&bank.store, bank.ledger.as_ref()).await.unwrap().accounts;
    for (index, shop) in claims.shops.iter().enumerate() {
        let (mut wired, mut fees, mut count) = (Money::ZERO, Money::ZERO, 0_u64);
        for found in exchange.all::<WireOut>().unwrap() {
            if found.row.merchant_pub == shop.key_pub {
                findings.unless(found.row.h_payto == shop.h_payto(), || {
                    "a transfer to another account".to_owned()
                });
                wired = sum([wired, found.row.amount]);
                fees = sum([fees, found.row.wire_fee]);
                count += 1;
            }
        }
        // Amounts too small to be wired wait for more; anything larger that waits is only late.
        let mut waiting = BTreeMap::<Wtid, Money>::new();
        for found in exchange.all::<Aggregates>().unwrap() {
            if found.key.merchant_pub == shop.key_pub {
                findings.is_unpaid |= found.row.total >= smallest_transfer;
                waiting.insert(found.row.wtid, found.row.total);
            }
        }
        let balance = accounts.iter().find(|account| account.name == shop.account);
        let balance = balance.map_or((false, Money::ZERO), books::AccountTotals::balance);
        findings.unless(balance == (false, wired), || {
            format!("{} has {balance:?}, of transfers of {wired}", shop.account)
        });
        let mut earned = Money::ZERO;
        for effect in claims.effects() {
            let Effect::Deposit { shop, coins, contract, is_refundable: false, .. } = effect else {
                continue;
            };
            if shop != index {
                continue;
            }
            for (coin_pub, amount) in coins {
                let fee = claims.coins.get(&coin_pub).map_or(Money::ZERO, |coin| coin.denom.fee_deposit);
                earned = sum([earned, amount.checked_sub(fee).unwrap()]);
                let key = DepositKey {
                    coin_pub,
                    merchant_pub: claims.shops[index].key_pub,
                    h_contract_terms: contract,
                };
                let wtid = exchange.get::<Deposits>(&key).unwrap().and_then(|found| found.row.wtid);
                findings.is_unpaid |= wtid.is_none();
                let is_paid = wtid.is_some_and(|wtid| {
                    made.contains_key(&wtid)
                        || waiting.get(&wtid).is_some_and(|total| *total < smallest_transfer)
                });
                findings.unless(is_paid, || format!("a deposit of coin {coin_pub} was not paid"));
            }
        }
        // Each transfer is rounded down to a hundredth; the remainder is in the balance sheet.
        let paid = sum([wired, fees].into_iter().chain(waiting.into_values()));
        let rounding = earned.checked_sub(paid);
        let rounding_max = Money::new(0, 1_000_000).unwrap().checked_mul(count).unwrap();
        findings.unless(rounding.is_ok_and(|rounding| rounding <= rounding_max), || {
            format!("{} earned {earned}, but got {wired} after wire fees of {fees}", shop.account)
        });
    }
}
