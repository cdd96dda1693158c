//! An auditor follows an exchange under load while both are killed with `kill -9`. In the end both have the same
//! audited rows, and an exchange that is restored from an older backup is caught.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5), `BATZEN_SOAK_SEED` repeats the choices of an earlier run.

use std::collections::BTreeSet;
use std::path::Path;

use batzen_service::storage::StoreConfig;
use batzen_store::{Feed, FeedCursor, Store};
use batzen_tables::exchange::AUDITED;
use serde_json::Value;

use crate::crash::audit::{RowKey, configure, increments_equal_the_whole, json, rows, start, stream};
use crate::crash::deployment::{Deployment, EXCHANGE_STORE};
use crate::crash::run::{self, cycles, watch, watch_payments};

const CUSTOMERS: usize = 4;

/// The rows that an exchange has changed from a position on.
fn changed_since(store: &Store, next: u64) -> BTreeSet<RowKey> {
    let mut cursor = FeedCursor::before(next);
    let mut changed = BTreeSet::new();
    let feed = store.feed().unwrap();
    while cursor.next() < feed.end() {
        let Feed::Frames(frames) = feed.read(&mut cursor, AUDITED, 1 << 20).unwrap() else {
            panic!("the exchange holds what the auditor does not have")
        };
        let changes = frames.into_iter().flat_map(|frame| frame.changes);
        changed.extend(changes.map(|change| (change.table.id, change.key)));
    }
    changed
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_follows_through_kills_and_notices_a_restored_backup() {
    let mut dice = run::dice();
    let mut deployment = Deployment::new(run::client());
    let [exchange, source] = stream(&deployment);
    deployment.configure(&exchange);
    let dir = deployment.path("");
    let dir = Path::new(&dir);
    let (exchange_dir, backup) = (dir.join(EXCHANGE_STORE), dir.join("backup"));
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let store = deployment.path("auditor");
    let more = format!("[auditor-feed]\n{source}[auditordb-embedded]\nDIR = {store}\n");
    let config = configure(&deployment, &more).await;
    let mut following = start(&deployment, &config, "sync");
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, &mut dice).await;
    // By then the auditor has checked the first changes, also on a busy machine.
    for _ in 0..3 {
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    watch(&mut deployment, &mut customers, 2_000).await;
    let first_kill =
        batzen_protocol::Timestamp::from_system_time(std::time::SystemTime::now()).as_secs().unwrap() + 1;
    for cycle in 1..=cycles() {
        watch(&mut deployment, &mut customers, dice.below(1_000)).await;
        let (kills_exchange, kills_auditor) =
            [(true, false), (false, true), (true, true)][usize::try_from(dice.below(3)).unwrap()];
        if kills_auditor {
            following.kill_9();
        }
        if kills_exchange || cycle == 1 {
            deployment.kill_exchange();
            if cycle == 1 {
                copy(&exchange_dir, &backup);
            }
            deployment.start_exchange().await;
        }
        if kills_auditor {
            following = start(&deployment, &config, "sync");
        }
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    run::end(&load, customers).await;
    following.assert_runs();
    assert!(following.terminate().0.success());
    let compare = ["sync", "--once", "--compare"];
    let report = json(&config, 0, &compare);
    assert_eq!(report["compared"]["equal"], true, "{report:#}");
    assert_eq!((&report["whole"], &report["snapshots"]), (&Value::Bool(true), &Value::from(0)), "{report:#}");

    // Every change was checked once, through all kills, and that gives what a check of all rows gives.
    assert!(report["checked"]["rows"].as_u64().unwrap() > 100, "{report:#}");
    assert_eq!(report["checked"]["open_findings"], 0, "{report:#}");
    increments_equal_the_whole(&config);
    let whole_at = |report: &Value| report["checked"]["whole"]["t_s"].as_u64().unwrap();
    assert!(whole_at(&report) <= first_kill, "all rows were checked again after a kill: {report:#}");

    deployment.stop();
    let (exchange, copied) = (
        deployment.exchange_store(),
        StoreConfig::embedded(store.into()).open(&batzen_service::storage::AUDITOR_COPY, 1).unwrap(),
    );
    let changed = changed_since(&exchange, report["next"].as_u64().unwrap());
    let [mut theirs, mut ours] = [&exchange, &copied].map(rows);
    for rows in [&mut theirs, &mut ours] {
        rows.retain(|place, _| !changed.contains(place));
    }
    assert!(theirs.len() > 100, "{} rows", theirs.len());
    assert!(theirs == ours, "the copy has {} rows, the exchange {}", ours.len(), theirs.len());
    // Their locks end with them.
    drop((exchange, copied));

    // A chain that matches was needed for each of the connections above. Now it does not.
    std::fs::remove_dir_all(&exchange_dir).unwrap();
    copy(&backup, &exchange_dir);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let report = json(&config, 1, &compare);
    let finding = report["finding"].as_str().unwrap();
    assert!(["lost", "rewritten"].contains(&finding), "{report:#}");
    deployment.stop();
}
