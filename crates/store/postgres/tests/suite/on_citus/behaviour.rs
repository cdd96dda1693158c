//! The promises of the store where Citus behaves in another way than one server.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::maintain::{MaintainOptions, maintain};
use batzen_postgres::schema::{self, DbinitOptions, HISTORY, Sql};
use batzen_postgres::{Connection, PgOptions};
use batzen_store::conformance::{ItemKey, Items, MarkKey, Marks, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, Found, Store, StoreError, Table};
use batzen_tables::exchange;

use super::{distribute, schema, url};
use crate::common::{connect, open};

fn insert(store: &Store, keys: impl IntoIterator<Item = u32>) -> Result<CommitOutcome, StoreError> {
    let mut changes = ChangeSet::new();
    keys.into_iter().for_each(|n| changes.insert::<Items>(&key(n, n), &row("x", Some(n.into()))));
    store.commit(&changes)
}

/// Ends the load of a test, also when the test fails.
pub(super) struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn count(sql: &mut Connection, text: &str) -> i64 {
    sql.row(text).unwrap().unwrap().number(0)
}

/// Rows of many shards, one of which exists: nothing of the batch may stay. Citus alone keeps what precedes the
/// failed statement of a pipeline.
#[test]
fn a_batch_that_fails_leaves_nothing_on_any_node() {
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    assert_eq!(insert(&store, [500]).unwrap(), CommitOutcome::Committed);
    for round in 0..5_u32 {
        let mut changes = ChangeSet::new();
        // A table that comes later fails, for a row that is stale; and one that comes first.
        (0..100).for_each(|n| changes.insert::<Items>(&key(n, n), &row("x", None)));
        if round % 2 == 0 {
            changes.insert::<Items>(&key(500, 500), &row("y", None));
        } else {
            changes.update::<Items>(&key(500, 500), &row("another", None), &row("y", None));
        }
        changes.insert::<Marks>(&MarkKey { name: round.to_string() }, &());
        match store.commit(&changes) {
            Ok(CommitOutcome::Conflict(_)) | Err(StoreError::Stale { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(
            (store.count::<Items>().unwrap(), store.count::<Marks>().unwrap()),
            (1, 0),
            "round {round}"
        );
    }
}

/// A commit whose last step on a worker is held back: the coordinator has committed, and the rows are not
/// visible yet. No later row of that shard becomes visible before them.
#[test]
fn a_queue_does_not_pass_a_row_that_is_still_prepared_on_a_worker() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    assert_eq!(insert(&store, 0..40).unwrap(), CommitOutcome::Committed);
    let seen = || {
        let found = store.range_bytes::<Items>(Items::QUEUE, Bound::Unbounded, Bound::Unbounded, 1000, false);
        found.unwrap().len()
    };
    assert_eq!(seen(), 40);
    // By hand, so that it can be held: as every commit, it has moved the clock of its shard.
    let clock = format!("{}.shard_clocks", options.schema);
    let mut sql = connect(url);
    let shard = sql
        .row(&format!(
            "SELECT n.nodeport, s.shardid FROM pg_dist_shard s JOIN pg_dist_placement p USING (shardid)
             JOIN pg_dist_node n USING (groupid) WHERE s.logicalrelid = '{clock}'::regclass ORDER BY 2 LIMIT 1"
        ))
        .unwrap()
        .unwrap();
    let (port, id) = (shard.number(0), shard.number(1));
    let mut node = connect(&crate::common::through(url, |_| u16::try_from(port).unwrap()));
    node.script(&format!("BEGIN; UPDATE {clock}_{id} SET number = number + 1; PREPARE TRANSACTION 'held'"))
        .unwrap();
    std::thread::scope(|scope| {
        let later = scope.spawn(|| insert(&store, 1_000..1_100));
        std::thread::sleep(Duration::from_millis(500));
        let while_held = (later.is_finished(), seen());
        node.script("COMMIT PREPARED 'held'").unwrap();
        assert_eq!(while_held, (false, 40));
        assert_eq!(later.join().unwrap().unwrap(), CommitOutcome::Committed);
    });
    assert_eq!(seen(), 140);
}

/// Transfers between two rows of different nodes, and snapshots meanwhile: the sum is always the same.
#[test]
fn frozen_rows_of_all_nodes_are_of_one_moment() {
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let sum = 1_000_000;
    let at = |n: u32| key(n, n);
    let mut changes = ChangeSet::new();
    (0..16).for_each(|n| changes.insert::<Items>(&at(n), &row("x", Some(if n == 0 { sum } else { 0 }))));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut moved = 0_u32;
            while !done.load(Ordering::SeqCst) {
                let (from, to) = (at(moved % 16), at((moved + 1) % 16));
                let read = store.get_many::<Items>(&[from.clone(), to.clone()]).unwrap();
                let [Some(a), Some(b)] = read.as_slice() else { panic!("rows are missing") };
                let mut changes = ChangeSet::new();
                changes.update::<Items>(&from, &a.row, &row("x", Some(0)));
                changes.update::<Items>(
                    &to,
                    &b.row,
                    &row("x", Some(b.row.due.unwrap() + a.row.due.unwrap())),
                );
                assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
                moved += 1;
            }
            moved
        });
        let ends = Ends(&done);
        let mut seen = BTreeMap::new();
        for _ in 0..25 {
            let frozen = store.freeze(&[Items::DEF]).unwrap();
            let total = |seen: &mut BTreeMap<ItemKey, u64>| {
                let mut total = 0;
                frozen
                    .scan(Items::DEF, &mut |raw| {
                        let found = Found::<Items>::decode(raw).unwrap();
                        let due = found.row.due.unwrap();
                        total += due;
                        seen.insert(found.key, due);
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                total
            };
            assert_eq!(total(&mut seen), sum);
            let before = seen.clone();
            assert_eq!(total(&mut seen), sum, "and stays so");
            assert_eq!(before, seen);
        }
        drop(ends);
        assert!(moving.join().unwrap() > 10);
    });
}

#[test]
fn a_schema_that_is_distributed_later_says_so() {
    let Some(url) = url() else { return };
    let mut sql = connect(url);
    let name = format!("later_{}", std::process::id());
    let plain = DbinitOptions { partitions: Some(0), ..DbinitOptions::default() };
    dbinit(&mut sql, &name, TABLES, &plain, &HISTORY).unwrap();
    assert!(!schema::check(&mut sql, &name, TABLES).unwrap().citus);
    let store = open(&PgOptions::new(url, &name, TABLES));
    assert_eq!(insert(&store, 0..20).unwrap(), CommitOutcome::Committed);
    let citus = DbinitOptions { citus: true, shards: Some(6), ..DbinitOptions::default() };
    let error = dbinit(&mut sql, &name, TABLES, &citus, &HISTORY).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    drop(store);
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = dbinit(&mut sql, &name, TABLES, &citus, &HISTORY) {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(schema::check(&mut sql, &name, TABLES).unwrap().citus);
    assert_eq!(dbinit(&mut sql, &name, TABLES, &citus, &HISTORY).unwrap().actions, [""; 0]);
    let shards = format!(
        "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = '{name}.{}'::regclass",
        Items::DEF.name
    );
    assert_eq!(count(&mut sql, &shards), 6);
    let store = open(&PgOptions::new(url, &name, TABLES));
    assert_eq!(store.count::<Items>().unwrap(), 20, "its rows are still there");
    assert_eq!(insert(&store, 100..120).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.stats().rows, 40);
}

#[test]
fn partitions_are_refused() {
    let Some(url) = url() else { return };
    let options = DbinitOptions { citus: true, partitions: Some(4), ..DbinitOptions::default() };
    let error = dbinit(&mut connect(url), "parts", TABLES, &options, &HISTORY).unwrap_err();
    assert!(error.to_string().contains("-P 0"), "{error}");
}

/// The tables of the exchange, which has a queue.
#[test]
fn days_of_queues_are_created_filled_and_dropped() {
    const DAY: i64 = 86_400_000_000;
    let Some(url) = url() else { return };
    let mut sql = connect(url);
    let name = format!("days_{}", std::process::id());
    distribute(&mut sql, &name, exchange::ALL);
    let run = |sql: &mut Connection, day: i64| {
        let options =
            MaintainOptions { days_ahead: 2, now_us: Some(day * DAY + 5), ..MaintainOptions::default() };
        maintain(sql, &name, exchange::ALL, &options).unwrap()
    };
    let queue = format!("{name}.deposits_open");
    let put = |sql: &mut Connection, n: u8, due: i64| {
        let key = format!("'\\x{}'", format!("{n:02x}").repeat(32));
        let text = format!(
            "INSERT INTO {queue} (due, ix_by_ready, ix_by_target, vshard, coin_pub, merchant_pub, h_contract_terms, serial)
             VALUES ({due}, '\\x01', '\\x02', {n}, {key}, {key}, {key}, {n})"
        );
        sql.script(&text).unwrap();
    };
    // Before its day exists, an entry is in the default partition.
    put(&mut sql, 1, 10_001 * DAY + 7);
    assert_eq!(run(&mut sql, 10_000).created.len(), 3);
    let of = |sql: &mut Connection, part: &str| count(sql, &format!("SELECT count(*) FROM {name}.{part}"));
    assert_eq!(of(&mut sql, "deposits_open_default"), 0);
    assert_eq!(of(&mut sql, "deposits_open_d19970520"), 1);
    put(&mut sql, 2, 10_002 * DAY + 7);
    assert_eq!(of(&mut sql, "deposits_open"), 2);
    // Days that hold entries are kept.
    assert_eq!(run(&mut sql, 10_010).dropped, ["deposits_open_d19970519"]);
    sql.script(&format!("DELETE FROM {queue}")).unwrap();
    let report = run(&mut sql, 10_010);
    assert_eq!(report.dropped, ["deposits_open_d19970520", "deposits_open_d19970521"]);
    assert_eq!(report.postponed, [""; 0]);
}
