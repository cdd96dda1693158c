//! The rules on PostgreSQL: the same outcomes as the model and the same rows as in memory, and several nodes
//! on one database.

use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, PgOptions, PostgresStore, Target};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_tables::exchange as tables;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rules::compare::{check, dump, with_coins};
use crate::rules::generate::ops;
use crate::rules::nodes;
use crate::rules::world::{World, config, denoms};

/// A new database with the exchange's tables.
fn database(partitions: u16) -> PostgresStore {
    let url = batzen_testkit::postgres::fresh_database();
    let mut connection = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
    dbinit(&mut connection, "exchange", tables::ALL, &options, &HISTORY).unwrap();
    batzen_postgres::open(&PgOptions::new(&url, "exchange", tables::ALL)).unwrap()
}

/// The same on a Citus cluster; `None` if the extension is not installed.
fn on_citus() -> Option<PostgresStore> {
    let url = batzen_testkit::postgres::shared_citus()?.fresh_database().unwrap();
    let mut connection = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(&mut connection, "exchange", tables::ALL, &options, &HISTORY).unwrap();
    Some(batzen_postgres::open(&PgOptions::new(&url, "exchange", tables::ALL)).unwrap())
}

#[test]
fn citus_holds_the_same_rows_as_memory() {
    let Some(store) = on_citus() else { return };
    let mut runner = TestRunner::deterministic();
    let steps = with_coins(ops(200..201).new_tree(&mut runner).unwrap().current());
    let memory = World::new();
    let (expected, _) = check(&memory, &steps, &[20]).unwrap();
    let world = World::on(Store::new(store), &denoms(), config(), |rules| rules);
    let (verdicts, _) = check(&world, &steps, &[20]).unwrap();
    assert_eq!(verdicts, expected);
    assert_eq!(dump(&world.store), dump(&memory.store));
}

#[test]
fn nodes_on_citus_keep_one_set_of_books() {
    let Some(store) = on_citus() else { return };
    let mut runner = TestRunner::deterministic();
    let steps = with_coins(ops(120..121).new_tree(&mut runner).unwrap().current());
    let choices = [1, 0, 2, 1, 3];
    let memory = nodes::run(Arc::new(MemoryBackend::new()), steps.clone(), &[4, 2, 7], &choices, false);
    assert_eq!(nodes::run(Arc::new(store), steps, &[4, 2, 7], &choices, false), memory);
}

#[test]
fn postgresql_holds_the_same_rows_as_memory() {
    let mut runner = TestRunner::deterministic();
    for partitions in [0, 4] {
        let steps = with_coins(ops(200..201).new_tree(&mut runner).unwrap().current());
        let memory = World::new();
        let (expected, _) = check(&memory, &steps, &[20]).unwrap();
        let world = World::on(Store::new(database(partitions)), &denoms(), config(), |rules| rules);
        let (verdicts, _) = check(&world, &steps, &[20]).unwrap();
        assert_eq!(verdicts, expected);
        let rows: BTreeMap<_, _> = dump(&world.store);
        assert_eq!(rows, dump(&memory.store));
    }
}

#[test]
fn nodes_on_postgresql_keep_one_set_of_books() {
    let mut runner = TestRunner::deterministic();
    let mut lost = 0;
    for partitions in [0, 4] {
        let steps = with_coins(ops(120..121).new_tree(&mut runner).unwrap().current());
        let choices = [1, 0, 2, 1, 3];
        // The same steps in memory lose the same number of races.
        let memory = nodes::run(Arc::new(MemoryBackend::new()), steps.clone(), &[4, 2, 7], &choices, false);
        let there = nodes::run(Arc::new(database(partitions)), steps, &[4, 2, 7], &choices, false);
        assert_eq!(there, memory);
        lost += there.unwrap();
    }
    assert!(lost > 0, "no race was lost");
}
