//! The durable ledger meets the requirements on every backend, and has the same state after it was reopened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_ledger::conformance;
use batzen_ledger_service::store::{DurableLedger, DurableOptions, verify_directory};
use batzen_store::Store;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_tables::ledger::ALL;

use crate::store::world::tiny_snapshots;

#[tokio::test]
async fn the_durable_ledger_conforms() {
    conforms(DurableOptions::default(), false).await;
}

/// Snapshots of a few records are taken and merged meanwhile.
#[tokio::test]
async fn the_durable_ledger_conforms_with_many_snapshots() {
    conforms(DurableOptions { snapshots: tiny_snapshots(4_000), ..DurableOptions::default() }, true).await;
}

async fn conforms(options: DurableOptions, takes_snapshots: bool) {
    let directory = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_700_000_000_000_000_000));
    let open = || {
        let clock = Arc::clone(&now);
        let store = EmbeddedStore::open(directory.path(), ALL, Options::default()).unwrap();
        let clock = move || clock.load(Ordering::Relaxed);
        DurableLedger::start(Store::new(store), clock, options).unwrap()
    };
    let wait = async |time: std::time::Duration| {
        now.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let ledger = open();
    conformance::check(&ledger, 1 << 32, wait).await;
    let before = ledger.inspect().state;
    let verified = ledger.verify().unwrap();
    assert_eq!((verified.counts, verified.digest), (before.counts, before.digest));
    ledger.stop().unwrap();
    drop(ledger);

    // The clock has gone back meanwhile. (Nothing expires until it has caught up.)
    now.fetch_sub(1_000_000_000, Ordering::Relaxed);
    let ledger = open();
    let after = ledger.inspect().state;
    assert_eq!((after.counts, after.digest), (before.counts, before.digest));
    conformance::check(&ledger, 1 << 33, wait).await;

    // The thread of snapshots catches up.
    let runs = || ledger.inspect().snapshot;
    for _ in 0..500 {
        if !takes_snapshots || runs().records * 2 > after.counts.records {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let snapshot = runs();
    assert_eq!(snapshot.id_entries > 0, takes_snapshots, "{snapshot:?}");
    assert!(!takes_snapshots || snapshot.records * 2 > after.counts.records, "{snapshot:?}");

    let mut page = batzen_metrics::Page::new();
    ledger.write_metrics(&mut page);
    let page = page.finish();
    let transfers = ledger.inspect().state.counts.transfers;
    assert!(page.contains(&format!("batzen_ledger_transfers {transfers}\n")), "{page}");
    assert!(page.contains("batzen_ledger_events_total{kind=\"transfer\",outcome=\"burnt\"} "), "{page}");
    assert!(page.contains("batzen_ledger_pendings 0\n"), "{page}");
    assert!(page.contains("batzen_ledger_memory_bytes{part=\"id_filters\"} "), "{page}");
    assert!(page.contains("batzen_ledger_snapshot_records "), "{page}");

    let copies = tempfile::tempdir().unwrap();
    let copy = ledger.backup(copies.path()).unwrap();
    assert_eq!(copy.digest, ledger.inspect().state.digest);
    ledger.stop().unwrap();
    drop(ledger);
    assert_eq!(verify_directory(directory.path()).unwrap().digest, copy.digest);
}
