//! Queues by deadline, which are stored in separate tables.

use crate::common;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use batzen_postgres::PgOptions;
use batzen_protocol::Timestamp;
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    ChangeSet, Column, CommitOutcome, IndexDef, IndexEntries, IndexKind, Store, StoreError, Table, TableDef,
    record,
};
use common::{connect, database, open};

record! {
    /// The key of a job.
    pub key struct JobKey {
        pub owner: [u8; 4],
        /// Its number.
        pub id: u64,
    }
}
record! {
    pub struct JobRow {
        /// When it is due.
        pub due: Timestamp,
        pub worker: u32,
        /// Number of changes.
        pub changes: u32,
        /// Whether it still has to be done.
        pub open: bool,
    }
}

pub(crate) struct Jobs;
impl Table for Jobs {
    const DEF: &'static TableDef = &TableDef::of::<Self>(960, "jobs")
        .shard(4)
        .indexed(&[
            IndexDef::new(1, "by_due", IndexKind::Serial),
            IndexDef::new(2, "by_worker", IndexKind::Ordered),
            IndexDef::new(3, "by_changes", IndexKind::Hash),
        ])
        .queue(&[1, 2]);
    type Key = JobKey;
    type Row = JobRow;
    fn index_entries(_: &JobKey, row: &JobRow, out: &mut IndexEntries) {
        if row.open {
            out.add_with(1, |bytes| {
                row.due.encode(bytes);
                row.worker.encode(bytes);
            });
            out.add(2, &row.worker);
        }
        out.add(3, &row.changes);
    }
}

const TABLES: &[&TableDef] = &[Jobs::DEF];

fn moment(us: u64) -> Timestamp {
    Column::decode(&mut us.to_be_bytes().as_slice()).unwrap()
}

/// The content of both queues, without the serials' values.
fn seen(store: &Store) -> Vec<Vec<(JobKey, JobRow)>> {
    let mut all = Vec::new();
    for index in [1, 2] {
        for (limit, descending) in [(1000, false), (1000, true), (5, false), (5, true)] {
            let (from, to) = (Bound::Unbounded, Bound::Unbounded);
            let found = store.range_bytes::<Jobs>(index, from, to, limit, descending).unwrap();
            all.push(found.into_iter().map(|found| (found.key, found.row)).collect());
        }
        let from = if index == 1 { moment(1_000_000).to_bytes() } else { 2_u32.to_bytes() };
        let found =
            store.range_bytes::<Jobs>(index, Bound::Excluded(from), Bound::Unbounded, 9, false).unwrap();
        all.push(found.into_iter().map(|found| (found.key, found.row)).collect());
    }
    all
}

fn positions(store: &Store, index: u8) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    store
        .positions::<Jobs>(index, Bound::Unbounded, Bound::Unbounded, |position| {
            all.push(position.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

#[test]
fn queues_match_the_memory_backend() {
    for partitions in [0, 4] {
        let options = database(TABLES, partitions);
        let stores = [open(&options), Store::new(MemoryBackend::new())];
        let mut rows: BTreeMap<JobKey, JobRow> = BTreeMap::new();
        let mut state = 1_u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for round in 0..60 {
            let mut changes = ChangeSet::new();
            for _ in 0..1 + random(6) {
                let id = random(30);
                let key = JobKey { owner: u32::try_from(id % 5).unwrap().to_be_bytes(), id };
                // Days apart, long ago, or never.
                let due = [0, 1_000_000, 86_400_000_000 * random(40), u64::MAX]
                    [usize::try_from(random(4)).unwrap()];
                let fresh = JobRow {
                    due: moment(due),
                    worker: u32::try_from(random(4)).unwrap(),
                    changes: 0,
                    open: true,
                };
                match rows.get(&key).cloned() {
                    None => {
                        changes.insert::<Jobs>(&key, &fresh);
                        rows.insert(key, fresh);
                    }
                    Some(old) => {
                        let changed = JobRow { changes: old.changes + 1, ..old.clone() };
                        let next = match random(5) {
                            0 => Some(JobRow { open: !old.open, ..changed }),
                            1 => Some(JobRow { due: fresh.due, ..changed }),
                            2 | 3 => Some(changed),
                            _ => None,
                        };
                        match next {
                            Some(next) => {
                                changes.update::<Jobs>(&key, &old, &next);
                                rows.insert(key, next);
                            }
                            None => {
                                changes.delete::<Jobs>(&key, &old);
                                rows.remove(&key);
                            }
                        }
                    }
                }
            }
            for store in &stores {
                assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed, "round {round}");
            }
            if round % 5 == 4 {
                assert_eq!(seen(&stores[0]), seen(&stores[1]), "round {round}");
                assert_eq!(positions(&stores[0], 2), positions(&stores[1], 2));
                assert_eq!(positions(&stores[0], 1).len(), rows.values().filter(|row| row.open).count());
                assert!(positions(&stores[0], 1).is_sorted());
            }
        }
        let open = rows.values().filter(|row| row.open).count();
        let counted = connect(&options.url).query_text("SELECT count(*) FROM exchange.jobs_open").unwrap();
        assert_eq!(
            counted[0][0].as_deref(),
            Some(open.to_string().as_str()),
            "a row in the queue for each open job"
        );
    }
}

/// A queue entry that was deleted by hand is reported, not ignored.
#[test]
fn inconsistent_queue_is_an_error() {
    let options = database(TABLES, 0);
    let store = open(&options);
    let key = JobKey { owner: [1; 4], id: 1 };
    let row = JobRow { due: moment(5), worker: 1, changes: 0, open: true };
    let mut changes = ChangeSet::new();
    changes.insert::<Jobs>(&key, &row);
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    connect(&options.url).script("DELETE FROM exchange.jobs_open").unwrap();
    let mut changes = ChangeSet::new();
    changes.update::<Jobs>(&key, &row, &JobRow { open: false, ..row.clone() });
    assert!(matches!(store.commit(&changes), Err(StoreError::Backend(_))));
    assert_eq!(store.get::<Jobs>(&key).unwrap().unwrap().row, row);
}

/// A row is being inserted into the default partition when its day gets its own partition.
#[test]
fn creating_a_day_fails_no_commit() {
    // On Citus, a commit straight at a shard does not see the locks of this test; maintenance tries again.
    let options = PgOptions { at_shards: false, ..database(TABLES, 0) };
    let store = open(&options);
    let mut maintenance = connect(&options.url);
    let mut run = |statements: &[&str]| {
        for statement in statements {
            maintenance.script(statement).unwrap();
        }
    };
    run(&["BEGIN", "CREATE TABLE exchange.day (LIKE exchange.jobs_open)"]);
    if common::runs_on_citus() {
        run(&[
            "SELECT create_distributed_table('exchange.day', 'vshard', colocate_with => 'exchange.jobs_open')",
        ]);
    }
    run(&["LOCK TABLE exchange.jobs_open_default IN ACCESS EXCLUSIVE MODE"]);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| {
            let key = JobKey { owner: [1; 4], id: 1 };
            let mut changes = ChangeSet::new();
            changes.insert::<Jobs>(&key, &JobRow { due: moment(5), worker: 1, changes: 0, open: true });
            store.commit(&changes)
        });
        let mut watch = connect(&options.url);
        let waiting =
            "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'exchange.jobs_open_default'::regclass";
        // On Citus, the commit may wait on a node instead, for the part of the partition there.
        let waiting = if common::runs_on_citus() {
            format!(
                "{waiting} UNION ALL SELECT 1 FROM run_command_on_workers($$SELECT count(*) FROM pg_locks WHERE NOT granted
                 AND locktype = 'relation'$$) WHERE result <> '0'"
            )
        } else {
            waiting.to_owned()
        };
        while watch.query_text(&waiting).unwrap().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        run(&[
            "ALTER TABLE exchange.jobs_open ATTACH PARTITION exchange.day FOR VALUES FROM (0) TO (10)",
            "COMMIT",
        ]);
        assert_eq!(commit.join().unwrap().unwrap(), CommitOutcome::Committed);
    });
    assert_eq!(positions(&store, 1).len(), 1);
    assert_eq!(maintenance.query_text("SELECT 1 FROM exchange.day").unwrap().len(), 1);
}
