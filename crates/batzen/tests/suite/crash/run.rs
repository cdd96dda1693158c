//! The whole proof: load, kills, and the checks afterwards.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_crypto::EddsaPublicKey;
use batzen_http::client::{Client, ClientOptions};
use batzen_store::Store;
use tokio::task::JoinSet;

use crate::common::PATIENCE;
use crate::crash::coins::Coin;
use crate::crash::customers::{Dice, Effect, Load};
use crate::crash::deployment::{BankBooks, Deployment};
use crate::crash::facts::{self, Claims, Findings};
use crate::crash::false_claims::{self, FalseClaims};
use crate::crash::log::{Entry, Kind};
use crate::crash::proof;

/// The number of concurrent customers.
const CUSTOMERS: usize = 8;

/// The process to kill under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// `kill -9` of the exchange, and its restart.
    Exchange,
    /// The bank first, so that the exchange is briefly without it; then both.
    ExchangeAndBank,
    /// `kill -9` of every PostgreSQL process, and a restart. The services keep running.
    Database,
    /// The same without a restart: the standby is promoted. The services keep running.
    FailOver,
}

/// The number of kills.
pub(crate) fn cycles() -> u64 {
    number("BATZEN_SOAK_CYCLES").unwrap_or(5)
}

/// The random choices of a run. `BATZEN_SOAK_SEED` repeats those of an earlier run.
pub(crate) fn dice() -> Dice {
    Dice::new(seed("BATZEN_SOAK_SEED"))
}

/// The number from which dice are made: that of a variable, or a random one, which is printed so that it can be repeated.
pub(crate) fn seed(variable: &str) -> u64 {
    let seed = number(variable).unwrap_or_else(|| {
        let mut bytes = [0; 8];
        batzen_crypto::fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    });
    println!("{variable}={seed}");
    seed
}

/// A client that waits longer than any restart takes.
pub(crate) fn client() -> Client {
    Client::new(&ClientOptions { timeout: Duration::from_secs(10), ..ClientOptions::default() }).unwrap()
}

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Fails the test at once if a customer has failed.
pub(crate) fn assert_well(customers: &mut JoinSet<()>) {
    if let Some(ended) = customers.try_join_next() {
        ended.unwrap();
    }
}

/// The load of a running deployment, without customers.
pub(crate) async fn load(deployment: &Deployment) -> Load {
    Load::new(client(), &deployment.exchange_url(), &deployment.bank_url()).await
}

/// Customers who put a running deployment under load.
pub(crate) async fn crowd(
    deployment: &Deployment,
    count: usize,
    dice: &mut Dice,
) -> (Arc<Load>, JoinSet<()>) {
    let load = Arc::new(load(deployment).await);
    let customers = spawn(&load, count, dice);
    (load, customers)
}

/// Starts the customers of a load.
pub(crate) fn spawn(load: &Arc<Load>, count: usize, dice: &mut Dice) -> JoinSet<()> {
    (0..count).map(|_| Arc::clone(load).customer(dice.child())).collect()
}

/// Lets the customers finish, and asks again whatever was not answered. Returns how many requests that were.
pub(crate) async fn end(load: &Load, customers: JoinSet<()>) -> usize {
    load.end();
    customers.join_all().await;
    load.settle().await
}

/// Lets the load run for a while.
pub(crate) async fn watch(deployment: &mut Deployment, customers: &mut JoinSet<()>, for_ms: u64) {
    let end = Instant::now() + Duration::from_millis(for_ms);
    loop {
        assert_well(customers);
        deployment.assert_runs();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_millis(20))).await;
    }
}

/// Lets the load run until some payments more are acknowledged.
pub(crate) async fn watch_payments(deployment: &mut Deployment, load: &Load, customers: &mut JoinSet<()>) {
    let (before, deadline) = (load.log.acknowledged(), Instant::now() + PATIENCE);
    while load.log.acknowledged() < before + 20 {
        assert!(Instant::now() < deadline, "the exchange does nothing");
        watch(deployment, customers, 50).await;
    }
}

/// Lets the load run until there is an acknowledged operation for each false claim ([`false_claims`]).
pub(crate) async fn watch_every_kind(load: &Load, deployment: &mut Deployment, customers: &mut JoinSet<()>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counts = load.log.counts();
        let is_done = |kind: &Kind| counts.get(kind).is_some_and(|count| count.acknowledged > 0);
        let acknowledged = load.log.acknowledged_in(0..load.log.acknowledged());
        let spends = |entry: &Entry<Effect>| {
            entry.request.kind == Kind::Deposit
                && false_claims::spends_whole_coin(&entry.effect, &load.coins.lock().unwrap())
        };
        if Kind::ALL.iter().all(is_done) && acknowledged.iter().any(spends) {
            return;
        }
        assert!(Instant::now() < deadline, "the exchange does not do everything: {counts:?}");
        watch(deployment, customers, 50).await;
    }
}

/// Stops both services, compares their stores with the customers' knowledge, and starts them again. Repeats
/// this until all due deposits are paid, which the kills may have delayed.
async fn check_at_rest(deployment: &mut Deployment, claims: &Claims<'_>) -> Findings {
    let deadline = Instant::now() + PATIENCE;
    loop {
        deployment.stop();
        let (exchange, bank) = (deployment.exchange_store(), deployment.bank_books());
        let findings = facts::check(claims, &exchange, &bank).await;
        close(exchange, bank);
        if !findings.is_unpaid || Instant::now() > deadline {
            return findings;
        }
        deployment.start_bank().await;
        deployment.start_exchange().await;
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

/// The proof must find planted errors: false claims, and a store that lost the last acknowledged commit.
async fn assert_plants_are_found(deployment: &Deployment, claims: &Claims<'_>) {
    let is_named =
        |findings: &Findings, text: &str| findings.problems.iter().any(|problem| problem.contains(text));
    let (exchange, bank) = (deployment.exchange_store(), deployment.bank_books());
    for FalseClaims { what, finding, claims } in false_claims::false_claims(claims) {
        let findings = facts::check(&claims, &exchange, &bank).await;
        assert!(is_named(&findings, finding), "{what} was not found: {:?}", findings.problems);
    }
    close(exchange, bank);
    let (lost, cut_off) = deployment.cut_off();
    let bank = deployment.bank_books();
    let findings = facts::check(claims, &cut_off, &bank).await;
    let problems = &findings.problems;
    assert!(is_named(&findings, " lost: "), "the loss of {lost} was not found: {problems:?}");
    close(cut_off, bank);
    deployment.put_back();
}

/// Kills services, and restarts those that are down.
async fn kill_and_restart(
    kill: Kill,
    deployment: &mut Deployment,
    customers: &mut JoinSet<()>,
    dice: &mut Dice,
) {
    match kill {
        Kill::Exchange => {
            deployment.kill_exchange();
            deployment.start_exchange().await;
        }
        Kill::ExchangeAndBank => {
            deployment.kill_bank();
            watch(deployment, customers, dice.below(200)).await;
            deployment.kill_exchange();
            deployment.start_bank().await;
            deployment.start_exchange().await;
        }
        Kill::Database => {
            deployment.kill_database();
            watch(deployment, customers, dice.below(500)).await;
            deployment.start_database();
        }
        Kill::FailOver => {
            deployment.kill_database();
            watch(deployment, customers, dice.below(500)).await;
            deployment.promote();
        }
    }
}

/// The extent of the proof.
pub(crate) struct Proof {
    /// Requests that were open at the end and have an answer now.
    pub settled: usize,
    /// Spent coins that were offered again.
    pub offered: usize,
    /// Transfers to merchants, each made once.
    pub transfers: usize,
    /// Answers that only asked to come back later. There were no other failures.
    pub waits: u64,
}

/// The customers' knowledge.
pub(crate) fn claims<'a>(load: &'a Load, coins: &'a HashMap<EddsaPublicKey, Arc<Coin>>) -> Claims<'a> {
    Claims {
        entries: load.log.entries(),
        credits: load.credits.lock().unwrap().clone(),
        coins,
        denoms: &load.denoms,
        shops: &load.shops,
        base_url: &load.base_url,
    }
}

/// Lets the customers finish, and proves that nothing was lost. Also proves that planted losses are found,
/// which requires operations of each kind.
pub(crate) async fn end_and_prove(
    deployment: &mut Deployment,
    load: &Arc<Load>,
    customers: JoinSet<()>,
    with_plants: bool,
) -> Proof {
    let settled = end(load, customers).await;
    let coins = load.coins.lock().unwrap().clone();
    let claims = claims(load, &coins);
    // Before any repetition, which could make good a loss.
    let first = check_at_rest(deployment, &claims).await;
    assert_none("after the kills", &first.problems);
    if with_plants {
        assert_plants_are_found(deployment, &claims).await;
    }

    deployment.start_bank().await;
    deployment.start_exchange().await;
    assert_none("repeated", &proof::repeat(load, claims.entries.clone()).await);
    if with_plants {
        let changed = false_claims::changed_answer(&claims);
        assert_eq!(proof::repeat(load, vec![changed]).await.len(), 1, "a changed answer was not found");
    }
    let (offered, accepted) = proof::overspend(load, &claims.entries).await;
    assert_none("offered again", &accepted);
    let last = check_at_rest(deployment, &claims).await;
    assert_none("after the repetitions", &last.problems);
    assert_eq!(first.totals, last.totals, "repetitions changed the books");
    Proof { settled, offered, transfers: last.transfers, waits: load.failures.waits() }
}

/// Runs the customers against the deployment, kills services repeatedly, and proves that nothing was
/// lost.
pub(crate) async fn play(mut deployment: Deployment, kills: Vec<Kill>) {
    let mut dice = dice();
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let (load, mut customers) = crowd(&deployment, CUSTOMERS, &mut dice).await;

    for (cycle, kill) in (1..).zip(&kills) {
        let before = load.log.acknowledged();
        // Every other kill meets a service at work, also on a busy machine; the others may meet it while it starts.
        let deadline = Instant::now() + PATIENCE;
        while cycle % 2 == 1 && load.log.acknowledged() == before {
            assert!(Instant::now() < deadline, "the exchange acknowledges nothing");
            watch(&mut deployment, &mut customers, 20).await;
        }
        let for_ms = 10 + dice.below(1491);
        watch(&mut deployment, &mut customers, for_ms).await;
        let acknowledged = load.log.acknowledged() - before;
        println!("cycle {cycle}: {kill:?} after {for_ms} ms and {acknowledged} answers");
        kill_and_restart(*kill, &mut deployment, &mut customers, &mut dice).await;
    }
    watch_every_kind(&load, &mut deployment, &mut customers).await;
    let Proof { settled, offered, transfers, waits } =
        end_and_prove(&mut deployment, &load, customers, true).await;

    let counts = load.log.counts();
    let acknowledged: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{kind:?} {}", count.acknowledged)).collect();
    let ambiguous: u64 = counts.values().map(|count| count.ambiguous).sum();
    assert!(ambiguous > 0, "no kill met a request");
    println!(
        "{} kills; acknowledged: {}; {ambiguous} ambiguous, of which \
         {settled} settled at the end; {} repeated, lost 0; {offered} spent coins offered again, overspent 0; {transfers} \
         transfers made once; {waits} answers asked to wait, failures 0; the books add up",
        kills.len(),
        acknowledged.join(", "),
        load.log.acknowledged(),
    );
}
