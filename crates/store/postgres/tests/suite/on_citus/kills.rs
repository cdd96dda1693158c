//! Nodes of a cluster that are killed under load and started again.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_postgres::PgOptions;
use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError};
use batzen_testkit::postgres::{CitusCluster, ClusterOptions, shared_citus};

use super::behaviour::Ends;
use super::direct::groups_by_shard;
use super::distribute;
use crate::common::{connect, open};

/// Number of workers and coordinators that are killed, unless `BATZEN_CITUS_KILLS=50,20` says otherwise.
const KILLS: [usize; 2] = [4, 2];
/// A prepared part of a commit is recovered after about a second. This is for a busy machine.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

fn kills() -> [usize; 2] {
    let Ok(text) = std::env::var("BATZEN_CITUS_KILLS") else { return KILLS };
    let numbers: Vec<usize> = text.split(',').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Commits a client's changes as a wallet would: it repeats its request until it has an answer.
fn insist(store: &Store, changes: &ChangeSet, done: &AtomicBool) -> bool {
    loop {
        match store.commit(changes) {
            // An earlier attempt took effect, although its answer did not say so.
            Ok(CommitOutcome::Committed | CommitOutcome::Conflict(_)) => return true,
            Err(StoreError::Unavailable(_)) if done.load(Ordering::SeqCst) => return false,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("a lost node is no failure of the program: {error}"),
        }
    }
}

/// Every acknowledged row is there, once, soon after the node is back, and no commit fails otherwise than by an absent
/// node. Most commits go straight to a shard, and some over all nodes.
#[test]
fn killed_nodes_lose_no_acknowledged_commit() {
    if shared_citus().is_none() {
        return;
    }
    let [workers, coordinators] = kills();
    let mut cluster = CitusCluster::start(2, &ClusterOptions::unsynced()).unwrap();
    let url = cluster.create_database("killed").unwrap();
    distribute(&mut connect(&url), "exchange", TABLES);
    let store = open(&PgOptions::new(&url, "exchange", TABLES));
    let groups = groups_by_shard(&store);
    let all: Vec<u32> = groups.values().map(|groups| groups[3]).collect();
    let mut clients: Vec<Vec<u32>> = groups.values().map(|groups| groups[..3].to_vec()).collect();
    clients.push(all);
    let acknowledged = Mutex::new(BTreeMap::<usize, u32>::new());
    let done = AtomicBool::new(false);
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        for (client, groups) in clients.iter().enumerate() {
            let (store, done, acknowledged) = (&store, &done, &acknowledged);
            scope.spawn(move || {
                for item in 0.. {
                    let mut changes = ChangeSet::new();
                    groups
                        .iter()
                        .for_each(|group| changes.insert::<Items>(&key(*group, item), &row("x", None)));
                    if done.load(Ordering::SeqCst) || !insist(store, &changes, done) {
                        return;
                    }
                    acknowledged.lock().unwrap().insert(client, item + 1);
                }
            });
        }
        let _ends = Ends(&done);
        for round in 0..workers + coordinators {
            std::thread::sleep(Duration::from_millis(300));
            let known = acknowledged.lock().unwrap().clone();
            // Coordinators are spread over the rounds.
            let is_coordinator = (round + 1) * coordinators / (workers + coordinators)
                > round * coordinators / (workers + coordinators);
            let node = if is_coordinator {
                cluster.coordinator_mut()
            } else {
                &mut cluster.workers_mut()[round % 2]
            };
            node.kill9().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            node.start_again().unwrap();
            let back = Instant::now();
            for (client, items) in known {
                let keys: Vec<_> = clients[client].iter().map(|group| key(*group, items - 1)).collect();
                let is_there = || match store.get_many::<Items>(&keys) {
                    Ok(rows) => rows.iter().all(Option::is_some),
                    Err(StoreError::Unavailable(_)) => false,
                    Err(error) => panic!("{error}"),
                };
                while !is_there() {
                    assert!(
                        back.elapsed() < RECOVERED_WITHIN,
                        "client {client}, item {items} in round {round}"
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            longest = longest.max(back.elapsed());
        }
        std::thread::sleep(Duration::from_millis(300));
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    assert_eq!(acknowledged.len(), clients.len(), "every client got something done");
    let mut rows = 0;
    for (client, items) in &acknowledged {
        for item in 0..*items {
            let keys: Vec<_> = clients[*client].iter().map(|group| key(*group, item)).collect();
            let found = store.get_many::<Items>(&keys).unwrap();
            assert!(found.iter().all(Option::is_some), "client {client}, item {item} was acknowledged");
            rows += keys.len();
        }
    }
    println!(
        "{workers} workers and {coordinators} coordinators killed; {rows} rows acknowledged, lost 0; readable at most {} ms after \
         the node was back",
        longest.as_millis()
    );
}
