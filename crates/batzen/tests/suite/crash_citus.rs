//! The proof of `crash_exchange.rs` with the rows of the exchange on a Citus cluster, whose nodes are killed.
//!
//! First, the services keep running; then the exchange is killed as well. Most of the load is deposits: of single coins, which one worker commits, and of several
//! coins in different shards, which are committed in two phases. It is proven that
//!
//! 1. everything acknowledged is there exactly once, and the books add up, as in `crash_exchange.rs`;
//! 2. each time a node is back, the exchange finds the last acknowledged deposits again;
//! 3. no answer of the exchange has another status of 500 or more than 503, which asks to come back.
//!
//! `BATZEN_CITUS_KILLS` sets the number of kills: `50,20` are 50 of workers and 20 of the coordinator, without planted
//! errors. Without the extension, one line says that the test did not run.

use crate::common::PATIENCE;
use crate::crash::customers::{Effect, Load};
use crate::crash::deployment::Deployment;
use crate::crash::log::{Entry, Kind};
use crate::crash::run::{self, Proof, end_and_prove, watch, watch_every_kind};
use crate::crash_postgres::ALONE;

use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_crypto::HashCode;
use batzen_testkit::postgres::{CITUS_MISSING, CitusCluster, ClusterOptions};
use tokio::task::JoinSet;

/// Number of workers and coordinators that are killed, unless `BATZEN_CITUS_KILLS` says otherwise.
const KILLS: [usize; 2] = [4, 2];
/// Number of kills of the exchange after that.
const EXCHANGE_KILLS: usize = 4;
const WORKERS: usize = 2;
const SHARDS: u16 = 4;
/// Customers who do everything, and customers who only withdraw and pay.
const CUSTOMERS: usize = 4;
const PAYERS: usize = 12;
/// Deposits that are looked for after a kill: the last ones. All others are looked for at the end.
const LOOKED_FOR: usize = 64;
/// A prepared part of a commit is recovered about a second after the node is back. This is for a busy machine.
const FOUND_WITHIN: Duration = Duration::from_secs(60);

fn kills() -> [usize; 2] {
    let Ok(text) = std::env::var("BATZEN_CITUS_KILLS") else { return KILLS };
    let numbers: Vec<usize> = text.split(',').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The nodes to kill, in order: coordinators are spread over the workers.
fn nodes([workers, coordinators]: [usize; 2]) -> Vec<Option<usize>> {
    let all = workers + coordinators;
    let coordinators_before = |round: usize| round * coordinators / all;
    let is_worker = |round: usize| coordinators_before(round) == coordinators_before(round + 1);
    (0..all).map(|round| is_worker(round).then_some((round - coordinators_before(round)) % WORKERS)).collect()
}

#[test]
fn coordinators_are_spread_over_the_workers() {
    let (first, second, coordinator) = (Some(0), Some(1), None);
    assert_eq!(nodes([4, 2]), [first, second, coordinator, first, second, coordinator]);
    for [workers, coordinators] in [[50, 20], [1, 0], [0, 3]] {
        let nodes = nodes([workers, coordinators]);
        let killed = nodes.iter().filter(|node| node.is_none()).count();
        assert_eq!((nodes.len() - killed, killed), (workers, coordinators));
    }
}

/// The findings after kills.
#[derive(Default)]
struct Found {
    deposits: usize,
    /// Deposits that were not found at once, because the rest of their commit was still to be recovered or the node
    /// was not reachable yet.
    late: usize,
    longest: Duration,
}

impl Found {
    /// Asks for each deposit until the exchange finds it.
    async fn look_for(&mut self, load: &Arc<Load>, deposits: Vec<Entry<Effect>>) {
        let back = Instant::now();
        let mut questions = JoinSet::new();
        for entry in deposits {
            let load = Arc::clone(load);
            questions.spawn(async move {
                let Effect::Deposit { shop, contract, coins, .. } = &entry.effect else {
                    panic!("these are deposits")
                };
                let mut is_late = false;
                while !load.knows_deposit(*shop, *contract, coins).await {
                    assert!(back.elapsed() < FOUND_WITHIN, "an acknowledged deposit is lost: {entry:?}");
                    is_late = true;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                is_late
            });
        }
        for is_late in questions.join_all().await {
            self.deposits += 1;
            self.late += usize::from(is_late);
        }
        self.longest = self.longest.max(back.elapsed());
    }
}

fn last_deposits(load: &Load) -> Vec<Entry<Effect>> {
    let count = load.log.acknowledged();
    // At least a quarter of the load is deposits.
    let mut entries = load.log.acknowledged_in(count.saturating_sub(4 * LOOKED_FOR as u64)..count);
    entries.retain(|entry| matches!(entry.effect, Effect::Deposit { .. }));
    entries.split_off(entries.len().saturating_sub(LOOKED_FOR))
}

/// Lets the load run until a single coin and several coins together were paid with since.
async fn watch_deposits(load: &Load, deployment: &mut Deployment, customers: &mut JoinSet<()>) {
    let counts = || {
        let counts = load.log.counts();
        [Kind::Deposit, Kind::BatchDeposit]
            .map(|kind| counts.get(&kind).map_or(0, |count| count.acknowledged))
    };
    let (before, deadline) = (counts(), Instant::now() + PATIENCE);
    while counts().iter().zip(before).any(|(now, before)| *now == before) {
        assert!(Instant::now() < deadline, "the exchange takes no payments: {before:?}, {:?}", counts());
        watch(deployment, customers, 20).await;
    }
}

/// The number of payments whose coins are in several shards.
fn payments_over_shards(deployment: &Deployment) -> u64 {
    let count = deployment.sql(
        "WITH places AS MATERIALIZED (SELECT DISTINCT h_contract_terms, vshard FROM exchange.deposits) SELECT count(*) FROM (SELECT \
         FROM places GROUP BY h_contract_terms HAVING \
         count(DISTINCT get_shard_id_for_distribution_column('exchange.deposits', vshard)) > 1) AS payments",
    );
    count.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_citus_nodes_loses_nothing() {
    if !CitusCluster::is_installed() {
        eprintln!("{CITUS_MISSING}");
        return;
    }
    let _alone = ALONE.lock().await;
    let kills = kills();
    let mut dice = run::dice();
    // The servers are killed, not the machine, so the kernel's buffers are safe.
    let options = ClusterOptions::unsynced();
    let mut deployment = tokio::task::block_in_place(|| {
        let cluster = CitusCluster::start(WORKERS, &options).unwrap_or_else(|error| panic!("{error}"));
        Deployment::on_citus(run::client(), cluster, SHARDS)
    });
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, &mut dice).await;
    for _ in 0..PAYERS {
        customers.spawn(Arc::clone(&load).payer(dice.child()));
    }
    let (mut found, mut met) = (Found::default(), 0);
    for (cycle, node) in (1..).zip(nodes(kills)) {
        watch_deposits(&load, &mut deployment, &mut customers).await;
        watch(&mut deployment, &mut customers, dice.below(1_000)).await;
        match node {
            Some(worker) => deployment.kill_worker(worker),
            None => deployment.kill_database(),
        }
        met += load.log.open_count();
        let last = last_deposits(&load);
        let before = load.log.acknowledged();
        // Sometimes it takes longer than the exchange waits for its database.
        let for_ms_max = if dice.one_in(8) { 20_000 } else { 500 };
        let for_ms = dice.below(for_ms_max);
        watch(&mut deployment, &mut customers, for_ms).await;
        let meanwhile = load.log.acknowledged() - before;
        match node {
            Some(worker) => deployment.start_worker(worker),
            None => deployment.start_database(),
        }
        found.look_for(&load, last).await;
        let name = node.map_or("coordinator".to_owned(), |worker| format!("worker {worker}"));
        println!("cycle {cycle}: {name} after {before} answers, {meanwhile} without it");
    }
    // The exchange itself, which leaves commits over several shards prepared.
    for _ in 0..EXCHANGE_KILLS {
        watch(&mut deployment, &mut customers, 300 + dice.below(700)).await;
        deployment.kill_exchange();
        let last = last_deposits(&load);
        deployment.start_exchange().await;
        found.look_for(&load, last).await;
    }
    watch_every_kind(&load, &mut deployment, &mut customers).await;
    let Some(Effect::Deposit { shop, coins, .. }) = last_deposits(&load).pop().map(|entry| entry.effect)
    else {
        panic!("there are deposits")
    };
    let is_known = load.knows_deposit(shop, HashCode::random(), &coins).await;
    assert!(!is_known, "a deposit that never happened is known");
    // Each planted error takes a look at every row, so the long form plants none.
    let with_plants = kills == KILLS;
    let proof = end_and_prove(&mut deployment, &load, customers, with_plants).await;
    let over_shards = payments_over_shards(&deployment);
    assert!(over_shards > 0, "no payment was over several shards");

    let Proof { settled, offered, transfers, waits } = proof;
    let counts = load.log.counts();
    let acknowledged: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{kind:?} {}", count.acknowledged)).collect();
    let ambiguous: u64 = counts.values().map(|count| count.ambiguous).sum();
    assert!(met > 0, "no kill met a request");
    let halves = deployment.database_log().matches("failed to commit transaction on").count();
    println!(
        "{} workers and {} coordinators killed; acknowledged: {}; {over_shards} payments over several shards; kills met {met} \
         requests, {ambiguous} of them ambiguous and {settled} settled at the end; {} repeated, lost 0; {waits} answers 503, no \
         other failure; {halves} parts of commits to be recovered by Citus; \
         {} deposits looked for when a node was back, {} not found at once, the last after {} ms; {offered} spent coins offered \
         again, overspent 0; {transfers} transfers made once; the books add up",
        kills[0],
        kills[1],
        acknowledged.join(", "),
        load.log.acknowledged(),
        found.deposits,
        found.late,
        found.longest.as_millis(),
    );
}
