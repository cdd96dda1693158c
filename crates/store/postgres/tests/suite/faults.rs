//! Connections that are cut at any moment, servers that are down, and other processes on the same store.

use crate::common;
use batzen_store::conformance::random as model;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use batzen_metrics::Page;
use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::meta::EPOCH_COUNT;
use batzen_postgres::schema::{DbinitOptions, HISTORY, SchemaError};
use batzen_postgres::{PgOptions, Sharing};
use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, Notice, Store, StoreError, Table};
use batzen_testkit::postgres::{Moment, Proxy, Rest};
use common::{SCHEMA, connect, database, open};
use model::{Random, Rows, random_changes, read_rows};

/// A store behind a proxy, and the options for a direct one.
fn behind_proxy() -> (Proxy, PgOptions, PgOptions) {
    let straight = database(TABLES, 4);
    let mut proxy = None;
    let url = common::through(&straight.url, |port| {
        let started = proxy.insert(Proxy::start(port).unwrap());
        started.port()
    });
    // The proxy is before the coordinator of Citus, which commits straight at a shard would pass by.
    let through = PgOptions { url, at_shards: false, ..straight.clone() };
    (proxy.unwrap(), through, straight)
}

fn metric(store: &Store, name: &str) -> u64 {
    let mut page = Page::new();
    store.write_metrics(&mut page, &[]);
    let text = page.finish();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The round trip is the way to the server.
#[test]
fn the_round_trip_grows_with_the_way_to_the_server() {
    let (proxy, through, _) = behind_proxy();
    let store = open(&through);
    let near = store.backend().round_trip().unwrap();
    assert!(near > Duration::ZERO);
    let delay = Duration::from_millis(30);
    proxy.delay(delay);
    let far = store.backend().round_trip().unwrap();
    assert!(far >= delay, "{far:?} with a delay of {delay:?}");
}

/// Wherever the connection is cut, every commit takes effect exactly once, and the program learns the
/// outcome.
#[test]
fn commits_take_effect_once_wherever_the_connection_is_cut() {
    let (proxy, options, straight) = behind_proxy();
    let store = open(&options);
    let mut rows = Rows::new();
    let mut random = Random(7);
    for round in 0..60_u64 {
        let few = usize::try_from(random.below(12)).unwrap();
        let moment = match round % 6 {
            0 => Moment::CommitSeen,
            1 => Moment::BytesToServer(few * 40),
            2 => Moment::BytesFromServer(few * 3),
            3 => Moment::MessagesToServer(few),
            4 => Moment::MessagesFromServer(few),
            _ => Moment::CommitSeen,
        };
        proxy.cut(moment, Rest::Lost);
        let changes = random_changes(&mut random, &mut rows);
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed, "round {round}: {moment:?}");
        proxy.cancel_cut();
        if round % 10 == 0 {
            assert_eq!(read_rows(&store).unwrap(), rows, "round {round}: {moment:?}");
        }
    }
    assert_eq!(read_rows(&open(&straight)).unwrap(), rows);
    assert!(proxy.cuts() > 10, "{} cuts", proxy.cuts());
    let committed = metric(&store, "batzen_postgres_ambiguous_commits_total{outcome=\"committed\"}");
    let repeated = metric(&store, "batzen_postgres_ambiguous_commits_total{outcome=\"repeated\"}");
    let unknown = metric(&store, "batzen_postgres_ambiguous_commits_total{outcome=\"unknown\"}");
    assert!(committed > 0 && repeated > 0 && unknown == 0, "{committed} {repeated} {unknown}");
}

/// A delayed copy of a commit that was sent again has no effect.
#[test]
fn a_late_copy_of_a_commit_is_fenced() {
    let (proxy, options, straight) = behind_proxy();
    let store = open(&options);
    let commit = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", Some(n.into())));
        store.commit(&changes).unwrap()
    };
    assert_eq!(commit(0), CommitOutcome::Committed);
    for n in 1..6 {
        proxy.cut(Moment::MessagesToServer(usize::try_from(n).unwrap()), Rest::Late);
        assert_eq!(commit(n), CommitOutcome::Committed);
        proxy.cancel_cut();
        // Delete the row, so that the late copy does not fail because of its own row.
        let mut changes = ChangeSet::new();
        changes.delete::<Items>(&key(n, n), &row("x", Some(n.into())));
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        proxy.release();
    }
    std::thread::sleep(Duration::from_millis(200));
    let left: Vec<u32> = open(&straight).all::<Items>().unwrap().iter().map(|found| found.key.item).collect();
    assert_eq!(left, [0]);
}

#[test]
fn store_recovers_after_the_server_was_down() {
    let (proxy, options, _) = behind_proxy();
    let store = open(&PgOptions { away_max: Duration::from_millis(300), ..options });
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row("x", None));
    proxy.refuse(true);
    proxy.cut_all();
    assert!(matches!(store.get::<Items>(&key(1, 1)), Err(StoreError::Unavailable(_))));
    assert!(matches!(store.commit(&changes), Err(StoreError::Unavailable(_))));
    proxy.refuse(false);
    // The store does not know the outcome. The commit had no effect, because nothing reached the server.
    assert!(store.get::<Items>(&key(1, 1)).unwrap().is_none());
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert!(store.get::<Items>(&key(1, 1)).unwrap().is_some());
}

/// Two processes spend the same coins at once: each coin is spent once.
#[test]
fn one_of_two_concurrent_changes_wins() {
    const COINS: u32 = 200;
    let options = database(TABLES, 4);
    let nodes = [open(&options), open(&options)];
    let mut changes = ChangeSet::new();
    (0..COINS).for_each(|n| changes.insert::<Items>(&key(n, n), &row("unspent", None)));
    assert_eq!(nodes[0].commit(&changes).unwrap(), CommitOutcome::Committed);
    let spent: Mutex<Vec<u32>> = Mutex::default();
    std::thread::scope(|scope| {
        for (node, store) in nodes.iter().enumerate() {
            let spent = &spent;
            scope.spawn(move || {
                // Five coins at a time, from opposite ends.
                let order: Vec<u32> =
                    if node == 0 { (0..COINS).collect() } else { (0..COINS).rev().collect() };
                for coins in order.chunks(5) {
                    loop {
                        let keys: Vec<_> = coins.iter().map(|n| key(*n, *n)).collect();
                        let found = store.get_many::<Items>(&keys).unwrap();
                        let mut changes = ChangeSet::new();
                        let mut mine = Vec::new();
                        for (coin, found) in coins.iter().zip(found) {
                            let found = found.unwrap();
                            if found.row.label == "unspent" {
                                let next = row(&format!("spent at {node}"), None);
                                changes.update_read::<Items>(
                                    &key(*coin, *coin),
                                    (&found.row, Some(found.version)),
                                    &next,
                                );
                                changes.insert::<Items>(&key(1000 + *coin, *coin), &next);
                                mine.push(*coin);
                            }
                        }
                        match store.commit(&changes) {
                            Ok(CommitOutcome::Committed) => {
                                spent.lock().unwrap().extend(mine);
                                break;
                            }
                            Ok(CommitOutcome::Conflict(_)) | Err(StoreError::Stale { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let mut spent = spent.into_inner().unwrap();
    spent.sort_unstable();
    assert_eq!(spent, (0..COINS).collect::<Vec<_>>());
    assert_eq!(nodes[1].count::<Items>().unwrap(), u64::from(COINS) * 2);
    let retries: u64 = nodes.iter().map(|node| metric(node, "batzen_postgres_retries_total")).sum();
    assert_eq!(retries, 0, "rows are locked in one order, so there are no deadlocks");
}

#[test]
fn an_exclusive_store_has_one_owner() {
    let (proxy, through, straight) = behind_proxy();
    let alone = |options: PgOptions| PgOptions {
        sharing: Sharing::Exclusive,
        away_max: Duration::from_millis(500),
        ..options
    };
    let first = open(&alone(through));
    let insert = |store: &Store, n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", None));
        store.commit(&changes)
    };
    assert_eq!(insert(&first, 1).unwrap(), CommitOutcome::Committed);
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let second = PgOptions { sharing, ..alone(straight.clone()) };
        assert!(matches!(batzen_postgres::open(&second), Err(StoreError::InUse(_))));
    }
    // The connection is lost, but no other process takes over: the store continues to work.
    proxy.cut_all();
    assert_eq!(insert(&first, 2).unwrap(), CommitOutcome::Committed);
    // The connection is lost and another process takes over: the first can no longer write.
    proxy.refuse(true);
    proxy.cut_all();
    let second = open(&PgOptions { away_max: Duration::from_secs(20), ..alone(straight.clone()) });
    proxy.refuse(false);
    assert!(matches!(insert(&first, 3), Err(StoreError::Stopped(_))));
    assert!(matches!(insert(&first, 3), Err(StoreError::Stopped(_))));
    assert_eq!(insert(&second, 4).unwrap(), CommitOutcome::Committed);
    assert_eq!(second.count::<Items>().unwrap(), 3);
    // It no longer answers reads, nor does it block the lock.
    assert!(matches!(first.get::<Items>(&key(1, 1)), Err(StoreError::Stopped(_))));
    drop(second);
    let third = open(&PgOptions { away_max: Duration::from_secs(20), ..alone(straight) });
    assert_eq!(insert(&third, 5).unwrap(), CommitOutcome::Committed);
}

/// The connection is lost during a commit, and again while a new one finds out whether the commit took
/// effect.
#[test]
fn owner_survives_two_lost_connections() {
    let (proxy, through, straight) = behind_proxy();
    let store = open(&PgOptions { sharing: Sharing::Exclusive, ..through });
    let commit = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", None));
        store.commit(&changes)
    };
    assert_eq!(commit(1).unwrap(), CommitOutcome::Committed);
    proxy.cut(Moment::CommitSeen, Rest::Lost);
    proxy.refuse(true);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| commit(2));
        proxy.wait_for_cuts(1);
        proxy.cut(Moment::CommitSeen, Rest::Lost);
        proxy.refuse(false);
        proxy.wait_for_cuts(2);
        assert_eq!(second.join().unwrap().unwrap(), CommitOutcome::Committed);
    });
    assert_eq!(commit(3).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.count::<Items>().unwrap(), 3);
    // The number that the doctor shows. The second cut may have hit the connection that holds the lock.
    let losses = format!("SELECT max(epoch & {EPOCH_COUNT}) FROM exchange.writers");
    let seen = connect(&straight.url).query_text(&losses).unwrap()[0][0].clone();
    assert!(matches!(seen.as_deref(), Some("1" | "2")), "{seen:?}");
}

/// Adds a trigger that runs `body` for each written row of `table` for which `when` holds.
fn on_write(options: &PgOptions, table: &str, when: &str, body: &str) {
    let mut sql = connect(&options.url);
    if common::runs_on_citus() {
        sql.script("SET citus.enable_unsafe_triggers = on").unwrap();
    }
    sql.script(&format!(
        "CREATE FUNCTION exchange.hurt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$"
    ))
    .unwrap();
    sql.script(&format!(
        "CREATE TRIGGER hurt BEFORE {when} ON exchange.{table} FOR EACH ROW EXECUTE FUNCTION exchange.hurt()"
    ))
    .unwrap();
}

/// If the outcome cannot be found out, the store must not report that nothing was done.
#[test]
fn commit_of_unknown_outcome_is_not_reported_as_refused() {
    let (proxy, options, straight) = behind_proxy();
    let store = open(&PgOptions { away_max: Duration::from_millis(300), ..options });
    let insert = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", None));
        changes
    };
    assert_eq!(store.commit(&insert(0)).unwrap(), CommitOutcome::Committed);
    on_write(&straight, "writers", "UPDATE OF epoch", "RAISE EXCEPTION 'no space' USING ERRCODE = '53100'");
    proxy.cut(Moment::CommitSeen, Rest::Lost);
    let told = store.commit(&insert(1));
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    assert!(open(&straight).get::<Items>(&key(1, 1)).unwrap().is_some(), "the commit had taken effect");
}

#[test]
fn commit_that_always_kills_its_connection_is_given_up() {
    let options = database(TABLES, 0);
    let store = open(&options);
    on_write(&options, Items::DEF.name, "INSERT", "PERFORM pg_terminate_backend(pg_backend_pid())");
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row("x", None));
    assert!(matches!(store.commit(&changes), Err(StoreError::Unavailable(_))));
    assert!(store.get::<Items>(&key(1, 1)).unwrap().is_none());
}

/// Settings of the role or the database that change the meaning of statements, or end them, do not matter.
#[test]
fn settings_of_the_database_are_overridden() {
    let options = database(TABLES, 4);
    let mut sql = connect(&options.url);
    let store = open(&options);
    let insert = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", None));
        store.commit(&changes)
    };
    assert_eq!(insert(1).unwrap(), CommitOutcome::Committed);
    let name = options.url.rsplit('/').next().unwrap();
    for setting in [
        "standard_conforming_strings = off",
        "default_transaction_deferrable = on",
        "array_nulls = off",
        "DateStyle = 'SQL, DMY'",
        "lock_timeout = '100ms'",
        "statement_timeout = '100ms'",
    ] {
        sql.script(&format!("ALTER DATABASE \"{name}\" SET {setting}")).unwrap();
    }
    sql.script(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .unwrap();
    assert_eq!(insert(2).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.count::<Items>().unwrap(), 2);
}

/// A service that was cut off does not write into a recreated schema.
#[test]
fn service_does_not_write_into_a_recreated_schema() {
    static LOST: AtomicUsize = AtomicUsize::new(0);
    let (proxy, through, straight) = behind_proxy();
    fn on_lost(_: &StoreError) {
        LOST.fetch_add(1, Ordering::SeqCst);
    }
    let store = open(&PgOptions { at_shards: true, on_lost: Some(on_lost), ..through });
    let insert = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(n, n), &row("x", None));
        store.commit(&changes)
    };
    assert_eq!(insert(1).unwrap(), CommitOutcome::Committed);
    proxy.refuse(true);
    proxy.cut_all();
    let mut sql = connect(&straight.url);
    let reset = DbinitOptions { reset: true, partitions: Some(4), ..DbinitOptions::default() };
    // The server notices a little later that the service's sessions have ended.
    while let Err(error) = dbinit(&mut sql, SCHEMA, TABLES, &reset, &HISTORY) {
        assert!(matches!(error, SchemaError::InUse { .. }), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Another service has a row in `writers`, possibly with the number of the first service's row.
    let other = open(&straight);
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(7, 7), &row("x", None));
    assert_eq!(other.commit(&changes).unwrap(), CommitOutcome::Committed);
    proxy.refuse(false);
    assert_eq!(LOST.load(Ordering::SeqCst), 0);
    for _ in 0..2 {
        let told = insert(2);
        assert!(matches!(told, Err(StoreError::Stopped(_))), "{told:?}");
    }
    assert_eq!(LOST.load(Ordering::SeqCst), 1, "its owner is told once");
    assert_eq!(other.count::<Items>().unwrap(), 1);
}

#[test]
fn topics_reach_other_processes() {
    let (proxy, through, straight) = behind_proxy();
    let (here, there) = (open(&through), open(&straight));
    let (sender, heard) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    here.backend().subscribe(Box::new(move |notice| {
        let text = match notice {
            Notice::Topic(topic) => topic.to_owned(),
            Notice::Missed => "missed".to_owned(),
        };
        sender.lock().unwrap().send(text).unwrap();
    }));
    let wait = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
    there.backend().notify(&["keys".to_owned(), "it's\n\u{e9}".to_owned()]);
    assert_eq!([wait(), wait()], ["keys", "it's\n\u{e9}"]);
    proxy.cut_all();
    assert_eq!(wait(), "missed");
    there.backend().notify(&["again".to_owned()]);
    assert_eq!(wait(), "again");
    // A topic that the server refuses does not block others, and even the last ones are sent.
    there.backend().notify(&["x".repeat(20_000), "behind".to_owned()]);
    assert_eq!(wait(), "behind");
    there.backend().notify(&["last".to_owned()]);
    drop(there);
    assert_eq!(wait(), "last");
}
