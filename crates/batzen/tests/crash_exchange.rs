//! `kill -9` on the exchange under load, again and again, and the proof that money survives it.
//!
//! Bank and exchange are real processes of the real program. This process is their customers: it withdraws, deposits, melts,
//! reveals and asks for refunds over HTTP, all at the same time, and writes down every answer it got. The exchange (and now
//! and then the bank) is killed at random moments and started again. Then it is proven that
//!
//! 1. every acknowledged operation is in the exchange's store, and the same request gets the same answer again: none is lost;
//! 2. no coin was accepted beyond its value: every spent coin is refused by another shop, with a history whose signatures
//!    verify and whose sums explain the refusal; of two shops that were offered the same coin at once, one got it;
//! 3. every request whose answer never came is settled by asking again;
//! 4. the books of exchange and bank add up to the last unit, also with what the customers wrote down;
//! 5. deposits were aggregated and paid, each transfer reached the bank once, and the merchants have what is theirs;
//! 6. the proof can fail: an operation that never happened, a coin accepted twice, a store without its last commit, and an
//!    answer that changed are all found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5; `make soak` does 50), `BATZEN_SOAK_SEED` repeats the choices of
//! an earlier run (not its timing).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

#[path = "crash/coins.rs"]
mod coins;
#[path = "crash/customers.rs"]
mod customers;
#[path = "crash/facts.rs"]
mod facts;
#[path = "crash/log.rs"]
mod log;
#[path = "crash/plant.rs"]
mod plant;
#[path = "crash/proof.rs"]
mod proof;
#[path = "crash/town.rs"]
mod town;

use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_http::{Client, ClientOptions};
use batzen_store::Store;
use common::PATIENCE;
use customers::{Dice, Load};
use facts::{Claims, Findings};
use log::Kind;
use plant::FalseClaims;
use tokio::task::JoinSet;
use town::{BankBooks, Town};

/// Customers at the same time.
const CUSTOMERS: usize = 8;
/// One in so many cycles takes the bank, too.
const BANK_CYCLES: u64 = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A customer that fails ends the test at once.
fn assert_well(customers: &mut JoinSet<()>) {
    if let Some(ended) = customers.try_join_next() {
        ended.unwrap();
    }
}

/// Lets the load run for a while.
async fn watch(town: &mut Town, customers: &mut JoinSet<()>, for_ms: u64) {
    let end = Instant::now() + Duration::from_millis(for_ms);
    loop {
        assert_well(customers);
        town.assert_runs();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_millis(20))).await;
    }
}

/// Lets the load run until each kind of operation has been acknowledged at least once.
async fn watch_every_kind(load: &Load, town: &mut Town, customers: &mut JoinSet<()>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counts = load.log.counts();
        let is_done = |kind: &Kind| counts.get(kind).is_some_and(|count| count.acknowledged > 0);
        if Kind::ALL.iter().all(is_done) {
            return;
        }
        assert!(Instant::now() < deadline, "the exchange does not do everything: {counts:?}");
        watch(town, customers, 50).await;
    }
}

/// Stops both services, compares their stores with what the customers know, and starts them again. Not before the deposits
/// that are due are paid, which the kills may have delayed: as often as that takes.
async fn check_at_rest(town: &mut Town, claims: &Claims<'_>) -> Findings {
    let deadline = Instant::now() + PATIENCE;
    loop {
        town.stop();
        let (exchange, bank) = (town.exchange_store(), town.bank_books());
        let findings = facts::check(claims, &exchange, &bank).await;
        close(exchange, bank);
        if !findings.is_unpaid || Instant::now() > deadline {
            return findings;
        }
        town.start_bank().await;
        town.start_exchange().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn close(exchange: Store, bank: BankBooks) {
    exchange.close().unwrap();
    bank.close();
}

fn assert_none(what: &str, problems: &[String]) {
    let first: Vec<&String> = problems.iter().take(20).collect();
    assert!(problems.is_empty(), "{what}: {} problems, the first: {first:#?}", problems.len());
}

/// The proof must find what is planted: false claims, and a store that lost the last commit that a customer was told of.
async fn assert_plants_are_found(town: &Town, claims: &Claims<'_>) {
    let is_named =
        |findings: &Findings, text: &str| findings.problems.iter().any(|problem| problem.contains(text));
    let (exchange, bank) = (town.exchange_store(), town.bank_books());
    for FalseClaims { what, finding, claims } in plant::false_claims(claims) {
        let findings = facts::check(&claims, &exchange, &bank).await;
        assert!(is_named(&findings, finding), "{what} was not found: {:?}", findings.problems);
    }
    exchange.close().unwrap();
    let copy = town.scratch("cut-off");
    let commits = plant::cut_off(&town.exchange_store_dir(), &copy);
    let cut_off = town::open(&copy, batzen_tables::exchange::ALL);
    let findings = facts::check(claims, &cut_off, &bank).await;
    let problems = &findings.problems;
    assert!(
        is_named(&findings, " lost: "),
        "the loss of the last {commits} commits was not found: {problems:?}"
    );
    close(cut_off, bank);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_under_load_loses_nothing() {
    let cycles = number("BATZEN_SOAK_CYCLES").unwrap_or(5);
    let seed = number("BATZEN_SOAK_SEED").unwrap_or_else(|| {
        let mut bytes = [0; 8];
        batzen_crypto::fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    });
    println!("BATZEN_SOAK_SEED={seed}");
    let mut dice = Dice::new(seed);
    let client =
        Client::new(&ClientOptions { timeout: Duration::from_secs(10), ..ClientOptions::default() }).unwrap();
    let mut town = Town::new(client.clone());
    town.start_bank().await;
    town.start_exchange().await;
    let load = Arc::new(Load::new(client, &town.exchange_url(), &town.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }

    let mut bank_kills = 0;
    for cycle in 1..=cycles {
        let before = load.log.acknowledged();
        let for_ms = 10 + dice.below(1491);
        watch(&mut town, &mut customers, for_ms).await;
        let takes_bank = cycle % BANK_CYCLES == 0;
        if takes_bank {
            town.kill_bank();
            bank_kills += 1;
            // The exchange goes on without a bank for a moment.
            watch(&mut town, &mut customers, dice.below(200)).await;
        }
        town.kill_exchange();
        let acknowledged = load.log.acknowledged() - before;
        let bank = if takes_bank { ", and the bank" } else { "" };
        println!("cycle {cycle}: exchange killed after {for_ms} ms and {acknowledged} answers{bank}");
        if takes_bank {
            town.start_bank().await;
        }
        town.start_exchange().await;
    }
    watch_every_kind(&load, &mut town, &mut customers).await;
    load.end();
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    let settled = load.settle().await;

    let coins = load.coins.lock().unwrap().clone();
    let claims = Claims {
        entries: load.log.entries(),
        credits: load.credits.lock().unwrap().clone(),
        coins: &coins,
        denoms: &load.denoms,
        shops: &load.shops,
    };
    // Before anything is repeated, since a repetition could make good a loss.
    let first = check_at_rest(&mut town, &claims).await;
    assert_none("after the kills", &first.problems);
    assert_plants_are_found(&town, &claims).await;

    town.start_bank().await;
    town.start_exchange().await;
    assert_none("repeated", &proof::repeat(&load, claims.entries.clone()).await);
    let changed = plant::changed_answer(&claims);
    assert_eq!(proof::repeat(&load, vec![changed]).await.len(), 1, "a changed answer was not found");
    let (offered, accepted) = proof::overspend(&load, &claims.entries).await;
    assert_none("offered once more", &accepted);
    let last = check_at_rest(&mut town, &claims).await;
    assert_none("after the repetitions", &last.problems);
    assert_eq!(first.totals, last.totals, "repetitions changed the books");

    let counts = load.log.counts();
    let acknowledged: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{kind:?} {}", count.acknowledged)).collect();
    let ambiguous: u64 = counts.values().map(|count| count.ambiguous).sum();
    assert!(ambiguous > 0, "no kill met a request");
    println!(
        "{cycles} kills of the exchange, {bank_kills} of the bank; acknowledged: {}; {ambiguous} ambiguous, of which \
         {settled} settled at the end; {} repeated, lost 0; {offered} spent coins offered again, overspent 0; {} \
         transfers made once; the books add up",
        acknowledged.join(", "),
        load.log.acknowledged(),
        last.transfers,
    );
}
