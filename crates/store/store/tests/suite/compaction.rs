//! Maintenance writes a bounded amount for rows of any size.

use crate::common;

use batzen_store::conformance::{ItemRow, Items, TABLES, key};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, ChangeSet, CommitOutcome, List, Record, Store};
use common::{DIR, sim_options};

const MIB: u64 = 1 << 20;
const ROWS: u32 = 5;

fn options(disk: &SimDisk) -> Options {
    Options {
        segment_bytes_first: 2 * MIB,
        segment_bytes_max: 4 * MIB,
        checkpoint_bytes: 16 * MIB,
        compaction_step_bytes: 256 << 10,
        ..sim_options(disk)
    }
}

fn open(disk: &SimDisk) -> EmbeddedStore {
    EmbeddedStore::open(DIR, TABLES, options(disk)).expect("it opens")
}

/// Every row is longer than index entries can express (512 KiB).
fn long_row(n: u32, version: u32) -> ItemRow {
    let byte = u8::try_from(n * 16 + version + 1).expect("few rows and versions");
    let bytes = 600_000 + 500_000 * usize::try_from(n).expect("few");
    ItemRow { label: format!("{version}"), due: None, tags: List(vec![]), body: vec![byte; bytes] }
}

fn commit(store: &EmbeddedStore, fill: impl FnOnce(&mut ChangeSet)) {
    let mut changes = ChangeSet::new();
    fill(&mut changes);
    assert_eq!(store.commit(&changes).expect("there is space"), CommitOutcome::Committed);
}

/// The final size of all rows.
fn rows_bytes(version: u32) -> u64 {
    (0..ROWS).map(|n| (long_row(n, version).to_bytes().len() + key(1, n).to_bytes().len()) as u64).sum()
}

/// Runs maintenance without work: it writes nothing once the last compaction is done.
fn assert_quiet(disk: &SimDisk, store: &EmbeddedStore) {
    for _ in 0..3 {
        store.maintain().expect("there is space");
    }
    let before = disk.written();
    for _ in 0..5 {
        store.maintain().expect("there is space");
    }
    assert_eq!(disk.written() - before, 0, "maintenance without changes writes");
}

#[test]
fn compaction_of_long_rows_ends() {
    const VERSIONS: u32 = 6;
    let disk = SimDisk::new(1);
    // An endless compaction would fill the disk.
    disk.set_capacity(Some(400 * MIB));
    let mut store = open(&disk);
    let mut committed = 0;
    for version in 0..VERSIONS {
        for n in 0..ROWS {
            let row = long_row(n, version);
            committed += row.to_bytes().len() as u64;
            commit(&store, |changes| match version.checked_sub(1) {
                None => changes.insert::<Items>(&key(1, n), &row),
                Some(old) => changes.update::<Items>(&key(1, n), &long_row(n, old), &row),
            });
            store.maintain().expect("there is space");
        }
        assert_quiet(&disk, &store);
        if version % 2 == 1 {
            // Commits, the journal and a checkpoint give the same number of live bytes.
            let live = Backend::stats(&store).live_bytes;
            if version == 3 {
                store.checkpoint().expect("there is space");
            }
            drop(store);
            store = open(&disk);
            assert_eq!(Backend::stats(&store).live_bytes, live);
        }
    }
    let expected = rows_bytes(VERSIONS - 1);
    let live = Backend::stats(&store).live_bytes;
    assert!((expected..expected + 1000).contains(&live), "{live} bytes are live, not about {expected}");
    assert_quiet(&disk, &store);
    // Segments are written twice, because they are first filled with zeros; compaction copies no more than
    // what is dead.
    let written = disk.written();
    assert!(written < 6 * committed, "{written} bytes were written for {committed} bytes of rows");
    let store = Store::new(store);
    for n in 0..ROWS {
        let found = store.get::<Items>(&key(1, n)).expect("it works").expect("it is there");
        assert!(found.row == long_row(n, VERSIONS - 1));
    }
    // Long rows can be removed as well.
    let mut changes = ChangeSet::new();
    (0..ROWS).for_each(|n| changes.delete::<Items>(&key(1, n), &long_row(n, VERSIONS - 1)));
    assert_eq!(store.commit(&changes).expect("there is space"), CommitOutcome::Committed);
    drop(store);
    assert_eq!(Backend::stats(&open(&disk)).live_bytes, 0);
}

/// A round ends however much there is to compact, and includes a checkpoint that is due.
#[test]
fn round_of_maintenance_is_bounded() {
    let disk = SimDisk::new(2);
    let options = Options { checkpoint_bytes: 4 * MIB, ..options(&disk) };
    let store = EmbeddedStore::open(DIR, TABLES, options).expect("it opens");
    let body = |n: u32| vec![u8::try_from(n % 251).expect("below 251"); 20_000];
    let row = |n: u32, label: &str| ItemRow {
        label: label.into(),
        due: None,
        tags: List(vec![]),
        body: if label == "short" { Vec::new() } else { body(n) },
    };
    // Thirty segments, each slightly more than half dead at the end.
    const COUNT: u32 = 5000;
    for n in 0..COUNT {
        commit(&store, |changes| changes.insert::<Items>(&key(1, n), &row(n, "long")));
    }
    for n in (0..COUNT).filter(|n| n % 8 < 5) {
        commit(&store, |changes| changes.update::<Items>(&key(1, n), &row(n, "long"), &row(n, "short")));
    }
    let stats = || Backend::stats(&store);
    let mut rounds = 0;
    loop {
        let before = stats();
        store.maintain().expect("there is space");
        let after = stats();
        let copied = after.written_bytes_total - before.written_bytes_total;
        assert!(copied <= 4 * MIB + 4 * MIB, "a round copied {copied} bytes");
        if copied >= 4 * MIB {
            assert!(after.checkpoints_total > before.checkpoints_total, "a checkpoint was due");
        }
        if after.compacted_total == before.compacted_total {
            break;
        }
        rounds += 1;
    }
    assert!(rounds > 4, "{rounds} rounds");
    assert!(stats().disk_bytes < stats().live_bytes * 2);
}

crate::repeat_without_index_memory!(compaction_of_long_rows_ends, round_of_maintenance_is_bounded,);
