//! A workload with a known state after each commit, and the checker that compares a store with it.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batzen_store::conformance::TABLES;
pub(crate) use batzen_store::conformance::random::{
    Random, Rows, random_changes, random_row, read_rows, soak_factor,
};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, Result, Store};

pub(crate) const DIR: &str = "/store";

thread_local! {
    /// The memory for index entries of the stores that tests on this thread open.
    static INDEX_HOT_BYTES: Cell<u64> = const { Cell::new(1 << 30) };
}

/// The memory for index entries of stores that this test opens.
pub(crate) fn index_hot_bytes() -> u64 {
    INDEX_HOT_BYTES.get()
}

/// Runs a test with stores that keep no index entries in memory beyond the next round of maintenance: so most
/// entries are in runs.
pub(crate) fn without_index_memory(test: fn()) {
    INDEX_HOT_BYTES.set(0);
    test();
    INDEX_HOT_BYTES.set(1 << 30);
}

/// Repeats tests of a module without memory for index entries.
#[macro_export]
macro_rules! repeat_without_index_memory {
    ($($test:ident),+ $(,)?) => {
        mod without_index_memory {
            $(
                #[test]
                fn $test() {
                    $crate::common::without_index_memory(super::$test);
                }
            )+
        }
    };
}

/// Options for a simulated disk: small segments, no thread, and no abort of the process.
pub(crate) fn sim_options(disk: &SimDisk) -> Options {
    Options {
        disk: Arc::new(disk.clone()),
        segment_bytes_first: 1024,
        segment_bytes_max: 4096,
        compaction_step_bytes: 512,
        migration_batch_bytes: 256,
        checkpoint_bytes: 16 << 10,
        index_hot_bytes: index_hot_bytes(),
        scan_rows_at_once: 16,
        full_pause: Duration::ZERO,
        background: false,
        on_fatal: Arc::new(|_| {}),
        identity: Some([42; 32]),
        ..Options::default()
    }
}

pub(crate) fn open(disk: &SimDisk) -> Result<EmbeddedStore> {
    EmbeddedStore::open(Path::new(DIR), TABLES, sim_options(disk))
}

/// The history of a store: its rows after each attempted commit, and how many commits were acknowledged.
pub(crate) struct History {
    pub states: Vec<Rows>,
    pub acknowledged: usize,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { states: vec![Rows::new()], acknowledged: 0 }
    }

    /// The crash checker: the store must have the state after some commit, and no acknowledged commit may be
    /// missing. Returns which commit.
    pub(crate) fn check(&self, store: &Store) -> std::result::Result<usize, String> {
        let rows = read_rows(store)?;
        // Several commits may lead to the same rows: take the latest.
        let Some(at) = self.states.iter().rposition(|state| *state == rows) else {
            return Err("the rows are those of no commit".into());
        };
        if at < self.acknowledged {
            return Err(format!(
                "commit {} was acknowledged, but the store is as after {at}",
                self.acknowledged
            ));
        }
        Ok(at)
    }
}

/// Runs random commits on a simulated disk until one fails or `count` are done, with occasional maintenance.
pub(crate) fn run(
    store: &EmbeddedStore,
    random: &mut Random,
    history: &mut History,
    count: usize,
) -> Result<()> {
    for _ in 0..count {
        let mut rows = history.states.last().expect("never empty").clone();
        let changes = random_changes(random, &mut rows);
        history.states.push(rows);
        assert_eq!(store.commit(&changes)?, batzen_store::CommitOutcome::Committed);
        history.acknowledged = history.states.len() - 1;
        match random.below(12) {
            0 => store.checkpoint()?,
            1..=3 => store.maintain()?,
            _ => {}
        }
    }
    Ok(())
}
