//! Random histories against a model: commits, conflicts, stale changes, compaction, checkpoints, reopening
//! and power cuts in any order; and checkpoints that are taken while other threads commit.

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitOutcome, Store, StoreError};
use common::{DIR, Random, Rows, open, random_changes, random_row, read_rows, sim_options};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Commit(u64),
    Conflict(u64),
    Stale(u64),
    Maintain,
    Checkpoint,
    Reopen,
    PowerCut,
    Close,
    LoseCheckpoint,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any::<u64>().prop_map(Step::Commit),
        1 => any::<u64>().prop_map(Step::Conflict),
        1 => any::<u64>().prop_map(Step::Stale),
        2 => Just(Step::Maintain),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        1 => Just(Step::PowerCut),
        1 => Just(Step::Close),
        1 => Just(Step::LoseCheckpoint),
    ]
}

/// A set that must be refused: with `conflict` it inserts an existing row, otherwise it changes a stale row.
fn refused_changes(random: &mut Random, rows: &Rows, conflict: bool) -> Option<ChangeSet> {
    let (slot, old) =
        rows.iter().nth(usize::try_from(random.below(rows.len().max(1) as u64)).expect("small"))?;
    let mut changes = random_changes(random, &mut Rows::new());
    let mut other = random_row(random);
    other.body.push(1);
    // The random part may touch the same row: keep only what is sure to be refused.
    if conflict
        || changes
            .changes()
            .iter()
            .any(|change| rows.keys().any(|k| batzen_store::Record::to_bytes(k) == change.key()))
    {
        changes = ChangeSet::new();
    }
    if conflict {
        changes.insert::<Items>(slot, &other);
    } else if other != *old {
        changes.update::<Items>(slot, &other, old);
    } else {
        return None;
    }
    Some(changes)
}

fn config() -> ProptestConfig {
    let cases = 200 * u32::try_from(common::soak_factor()).expect("a small factor");
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_histories_match_the_model(steps in prop::collection::vec(step(), 1..120), seed in any::<u64>()) {
        let disk = SimDisk::new(seed);
        let mut store = Store::new(open(&disk).expect("it opens"));
        let mut rows = Rows::new();
        let checkpoint = Path::new(DIR).join("checkpoint.idx");
        for step in steps {
            match step {
                Step::Commit(seed) => {
                    let changes = random_changes(&mut Random(seed), &mut rows);
                    prop_assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                }
                Step::Conflict(seed) => {
                    if let Some(changes) = refused_changes(&mut Random(seed), &rows, true) {
                        let outcome = store.commit(&changes).expect("it works");
                        prop_assert!(matches!(outcome, CommitOutcome::Conflict(_)));
                    }
                }
                Step::Stale(seed) => {
                    if let Some(changes) = refused_changes(&mut Random(seed), &rows, false) {
                        let is_stale = matches!(store.commit(&changes), Err(StoreError::Stale { .. }));
                        prop_assert!(is_stale);
                    }
                }
                // Checkpoint and reopen in one step, since there is no handle to the embedded type any more.
                Step::Maintain | Step::Checkpoint => {
                    drop(store);
                    let embedded = open(&disk).expect("it opens");
                    if matches!(step, Step::Maintain) { embedded.maintain() } else { embedded.checkpoint() }.expect("it works");
                    store = Store::new(embedded);
                }
                Step::Close => {
                    store.close().expect("it works");
                    drop(store);
                    store = Store::new(open(&disk).expect("it opens"));
                }
                Step::Reopen => {
                    drop(store);
                    store = Store::new(open(&disk).expect("it opens"));
                    prop_assert_eq!(&read_rows(&store).expect("consistent"), &rows);
                }
                Step::PowerCut => {
                    disk.restart();
                    drop(store);
                    store = Store::new(open(&disk).expect("it opens"));
                    prop_assert_eq!(&read_rows(&store).expect("consistent"), &rows);
                }
                Step::LoseCheckpoint => {
                    drop(store);
                    if disk.files().contains(&checkpoint) {
                        disk.tamper(&checkpoint, Vec::clear);
                    }
                    store = Store::new(open(&disk).expect("it opens"));
                }
            }
        }
        prop_assert_eq!(&read_rows(&store).expect("consistent"), &rows);
        drop(store);
        store = Store::new(open(&disk).expect("it opens"));
        prop_assert_eq!(&read_rows(&store).expect("consistent"), &rows);
    }

    /// The same change sets have the same result on both backends of this crate, including serials.
    #[test]
    fn backends_agree(seeds in prop::collection::vec(any::<u64>(), 1..40)) {
        let disk = SimDisk::new(1);
        let stores = [Store::new(MemoryBackend::new()), Store::new(open(&disk).expect("it opens"))];
        let mut rows = Rows::new();
        for seed in seeds {
            let changes = random_changes(&mut Random(seed), &mut rows);
            for store in &stores {
                prop_assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
            }
        }
        let [memory, embedded] = stores.map(|store| store.all::<Items>().expect("it works"));
        prop_assert_eq!(memory, embedded);
    }
}

/// Checkpoints taken part by part during commits and compaction give, after replay, exactly the indexes that
/// the journal alone gives.
#[test]
fn checkpoints_under_load_are_exact() {
    for round in 0..6 {
        let disk = SimDisk::new(round);
        let options =
            || Options { segment_bytes_first: 32 << 10, segment_bytes_max: 32 << 10, ..sim_options(&disk) };
        let store = EmbeddedStore::open(DIR, TABLES, options()).expect("it opens");
        let done = AtomicBool::new(false);
        let mut rows = Rows::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    store.checkpoint().expect("it works");
                    store.maintain().expect("it works");
                }
            });
            let mut random = Random(round);
            while Backend::stats(&store).checkpoints_total < 20 {
                for _ in 0..50 {
                    let changes = random_changes(&mut random, &mut rows);
                    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(store);
        let without = disk.copy();
        without.tamper(&Path::new(DIR).join("checkpoint.idx"), Vec::clear);
        let bytes: Vec<u64> = [&disk, &without]
            .into_iter()
            .map(|disk| {
                let options = Options { disk: std::sync::Arc::new(disk.clone()), ..options() };
                let store = EmbeddedStore::open(DIR, TABLES, options).expect("it opens");
                let live = Backend::stats(&store).live_bytes;
                assert_eq!(read_rows(&Store::new(store)).expect("consistent"), rows);
                live
            })
            .collect();
        assert_eq!(bytes[0], bytes[1], "both count the same live bytes");
    }
}

#[test]
fn second_opener_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = EmbeddedStore::open(directory.path(), TABLES, Options::default()).expect("it opens");
    let second = EmbeddedStore::open(directory.path(), TABLES, Options::default());
    assert!(matches!(second, Err(StoreError::InUse(path)) if path == directory.path()));
    drop(first);
    // A process that another test starts holds the lock, too, until it has become another program.
    let is_free = || EmbeddedStore::open(directory.path(), TABLES, Options::default()).is_ok();
    let is_free_soon = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_free()
    });
    assert!(is_free_soon, "it is free again");
}

/// A program with fewer tables keeps the rows of unknown ones through compaction and checkpoints.
#[test]
fn unknown_tables_are_kept() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("it opens");
    for n in 0..100 {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(1, n), &row("x", Some(1)));
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        if n % 3 > 0 {
            let mut changes = ChangeSet::new();
            changes.delete::<Items>(&key(1, n), &row("x", Some(1)));
            assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        }
    }
    drop(store);
    let narrow = EmbeddedStore::open(DIR, &TABLES[1..], sim_options(&disk)).expect("it opens");
    narrow.maintain().expect("it works");
    narrow.checkpoint().expect("it works");
    assert!(Backend::stats(&narrow).compacted_total > 0);
    assert!(Backend::count(&narrow, TABLES[0]).is_err());
    drop(narrow);
    let store = Store::new(open(&disk).expect("it opens"));
    assert_eq!(store.count::<Items>().expect("it works"), 34);
    assert_eq!(store.range::<Items, u64>(Items::BY_DUE, .., 100).expect("it works").len(), 34);
}

#[test]
fn other_files_and_versions_are_refused() {
    let disk = SimDisk::new(1);
    drop(open(&disk).expect("it opens"));
    let manifest = Path::new(DIR).join("MANIFEST");
    disk.tamper(&manifest, |data| {
        let text = String::from_utf8(data.clone()).expect("text");
        *data = text.replace("batzen-store 4", "batzen-store 5").into_bytes();
    });
    let refused = open(&disk).map(|_| ()).expect_err("another version");
    assert!(refused.to_string().contains("format 5"), "{refused}");
    batzen_store::embedded::Disk::remove(&disk, &manifest).expect("it is there");
    let refused = open(&disk).map(|_| ()).expect_err("a journal without its manifest");
    assert!(matches!(refused, StoreError::Format { .. }), "{refused}");
}

crate::repeat_without_index_memory!(
    random_histories_match_the_model,
    backends_agree,
    checkpoints_under_load_are_exact,
    unknown_tables_are_kept,
);
