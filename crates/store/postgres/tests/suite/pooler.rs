//! PgBouncer between the store and the server.

use batzen_postgres::{Connection, PgError, PgOptions, Target};
use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, StoreError};
use batzen_testkit::postgres::{PoolMode, Pooler, shared};

use crate::common::{database, open};

/// A pooler, and the options of a store whose schema exists, through the pooler and direct.
fn behind_pooler(mode: PoolMode) -> (Pooler, PgOptions, PgOptions) {
    let straight = database(TABLES, 4);
    let pooler = Pooler::start(shared(), mode).unwrap();
    let name = straight.url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
    let through = PgOptions { url: shared().url_at(pooler.port(), &name), ..straight.clone() };
    (pooler, through, straight)
}

#[test]
fn a_store_works_through_a_session_pooler() {
    let (_pooler, options, straight) = behind_pooler(PoolMode::Session);
    let store = open(&options);
    let insert = |n| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(1, n), &row("a", None));
        changes
    };
    assert_eq!(store.commit(&insert(1)).unwrap(), CommitOutcome::Committed);
    let mut direct = Connection::open_session(&Target::parse(&straight.url).unwrap()).unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(!direct.query_text(end).unwrap().is_empty(), "the store has sessions");
    assert_eq!(store.commit(&insert(2)).unwrap(), CommitOutcome::Committed);
    for n in [1, 2] {
        assert_eq!(store.get::<Items>(&key(1, n)).unwrap().unwrap().row, row("a", None));
    }
}

#[test]
fn a_transaction_pooler_is_refused_with_words() {
    let (_pooler, options, _) = behind_pooler(PoolMode::Transaction);
    let Err(PgError::Config(said)) = Connection::open_session(&Target::parse(&options.url).unwrap()) else {
        panic!("a pooler that gives each transaction another session is refused");
    };
    assert!(said.contains("pool_mode = session"), "{said}");
    let Err(StoreError::Backend(said)) = batzen_postgres::open(&options) else {
        panic!("the store is not opened");
    };
    assert!(said.contains("pool_mode = session"), "{said}");
}
