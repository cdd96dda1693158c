//! `kill -9` on the ledger under load, repeatedly, and a proof that it loses nothing.
//!
//! The ledger is a real process of the real program. This process plays its clients: each repeats a request
//! until it is answered, and records every answer. The ledger is killed at random moments and restarted. Then
//! it is proven that
//!
//! 1. every acknowledged transfer is in the event stream exactly once, and no refused transfer is there;
//! 2. timestamps only grow, no limit was ever broken, the balances equal those of the last events, and debits
//!    equal credits;
//! 3. `batzen ledger verify` re-executes the whole log without a difference, and `backup` and `restore`
//!    produce the same digest;
//! 4. the proof can fail: an invented transfer and a stream without its last event are found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5; `make soak` does 50).

use crate::common;
use crate::crash::transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::crash::run::{cycles, seed};
use batzen_ledger::{CreateTransferStatus, Ledger};
use common::{PATIENCE, free_port, must_json};
use transfers::{ACCOUNTS, Dice, Statuses, accounts, client, connect, problems, start, stream};

const CLIENTS: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_the_ledger_under_load_forgets_nothing() {
    let cycles = cycles();
    let seed = seed("BATZEN_SOAK_SEED");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("ledger");
    let data = data.to_str().unwrap();
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let mut service = start(dir.path(), data, port);
    let control = connect(&url).await;
    control.create_accounts(accounts()).await.unwrap();
    let (ends, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            tokio::spawn(client(url.clone(), number, seed, Arc::clone(&ends), Arc::clone(&answers)))
        })
        .collect();
    let mut dice = Dice(seed);
    for cycle in 1..=cycles {
        let before = answers.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        // A ledger that starts slowly is killed only once it works again.
        while answers.load(Ordering::Relaxed) == before {
            service.assert_runs();
            assert!(Instant::now() < deadline, "the ledger does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let for_ms = 10 + dice.below(800);
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
        service.assert_runs();
        service.kill_9();
        let answered = answers.load(Ordering::Relaxed) - before;
        println!("cycle {cycle}: killed after {for_ms} ms and {answered} answers");
        service = start(dir.path(), data, port);
    }
    ends.store(true, Ordering::SeqCst);
    let mut statuses = Statuses::new();
    for client in clients {
        statuses.extend(client.await.unwrap());
    }
    let events = stream(&control).await;
    let accounts = control.lookup_accounts((1..=ACCOUNTS).collect()).await.unwrap();
    let found = problems(&statuses, &events, &accounts);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), &found[..found.len().min(20)]);
    // The proof can fail.
    let mut claims = statuses.clone();
    claims.insert(77, CreateTransferStatus::Created);
    assert_eq!(problems(&claims, &events, &accounts).len(), 1);
    assert!(!problems(&statuses, &events[..events.len() - 1], &accounts).is_empty());

    let standing = statuses.values().filter(|status| status.stands()).count() as u64;
    service.kill_9();
    let verified = must_json(&["ledger", "verify", data, "--json"]);
    assert_eq!(verified["transfers"], standing);
    let (backup, restored) = (dir.path().join("backup"), dir.path().join("restored"));
    let (backup, restored) = (backup.to_str().unwrap(), restored.to_str().unwrap());
    let copied = must_json(&["ledger", "backup", data, backup, "--json"]);
    let again = must_json(&["ledger", "restore", backup, restored, "--json"]);
    let inspected = must_json(&["ledger", "inspect", restored, "--json"]);
    for other in [&copied, &again, &inspected] {
        assert_eq!(other["digest"], verified["digest"]);
        assert_eq!(other["transfers"], standing);
    }
    let repeated = statuses.values().filter(|status| **status == CreateTransferStatus::Exists).count();
    println!(
        "{cycles} kills; {} transfers answered, {standing} stand, {repeated} of them first answered after a repetition; \
         {} events; lost 0, twice 0; the log verifies",
        statuses.len(),
        events.len(),
    );
}
