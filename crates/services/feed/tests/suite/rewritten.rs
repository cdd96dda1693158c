//! An exchange that has changed or lost what it shipped is caught.

use std::path::Path;
use std::sync::Arc;

use batzen_feed::client::{self, FeedError, FindingKind, Next};
use batzen_store::embedded::EmbeddedStore;
use batzen_store::{ChangeSet, CommitFeed as _, Store};
use batzen_tables::exchange::{CursorRow, Cursors};

use crate::world::{STEP, World, account, commit, follow_to, next_batch, open_auditor, open_exchange, rows};

fn insert(store: &EmbeddedStore, number: u64, bank_row: u64) {
    let mut changes = ChangeSet::new();
    changes.insert::<Cursors>(&account(number), &CursorRow { bank_row });
    commit(store, &changes);
}

fn insert_all(store: &EmbeddedStore, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| insert(store, number, number));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn copy_holds(from: &Path, to: &Path) {
    std::fs::copy(from.join("holds"), to.join("holds")).unwrap();
}

/// A world with a backup of the exchange after 20 commits, and an auditor that has seen 40.
fn with_backup() -> (World, Store) {
    let world = World::new();
    let store = open_auditor(&world.path("auditor"));
    let dir = world.path("exchange");
    for (numbers, is_first) in [(0..20, true), (20..40, false)] {
        let exchange = open_exchange(&dir);
        insert_all(&exchange, numbers);
        let served = world.serve(&exchange);
        follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
        world.stop(served);
        drop(exchange);
        if is_first {
            copy(&dir, &world.path("backup"));
        }
    }
    (world, store)
}

/// The error of an auditor that meets this store.
fn meet(world: &World, exchange: &Arc<EmbeddedStore>, store: &Store) -> FeedError {
    let before = rows(&**store.backend());
    let served = world.serve(exchange);
    let mut follower = world.follower(&served, store);
    let error = next_batch(&mut follower).unwrap_err();
    assert!(error.is_final());
    let again = next_batch(&mut follower).unwrap_err();
    assert_eq!(error.to_string(), again.to_string(), "it stays refused");
    world.stop(served);
    assert_eq!(before, rows(&**store.backend()), "the auditor keeps what it has seen");
    error
}

fn kinds(store: &Store) -> Vec<u8> {
    client::findings(store).unwrap().iter().map(|(key, _)| key.kind).collect()
}

#[test]
fn the_exchange_itself_is_accepted_again() {
    let (world, store) = with_backup();
    let exchange = open_exchange(&world.path("exchange"));
    insert_all(&exchange, 40..50);
    let served = world.serve(&exchange);
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    assert_eq!(kinds(&store), [0_u8; 0]);
    world.stop(served);
}

#[test]
fn a_restored_backup_is_caught_before_and_after_it_has_gone_on() {
    let (world, store) = with_backup();
    let exchange = open_exchange(&world.path("backup"));
    let error = meet(&world, &exchange, &store);
    assert!(matches!(error, FeedError::Finding { kind: FindingKind::Lost, .. }), "{error}");
    assert!(error.to_string().contains("lost what it shipped: commit 40 was seen"), "{error}");
    insert_all(&exchange, 100..140);
    let error = meet(&world, &exchange, &store);
    assert!(matches!(error, FeedError::Finding { kind: FindingKind::Rewritten, .. }), "{error}");
    assert!(error.to_string().contains("rewritten what it shipped: commit 40"), "{error}");
    assert_eq!(kinds(&store), [FindingKind::Rewritten as u8, FindingKind::Lost as u8]);
    let findings = client::findings(&store).unwrap();
    let position = client::position(&store).unwrap().unwrap();
    assert!(findings.iter().all(|(key, row)| key.next == position.next && row.head == position.head));
    assert!(findings[0].1.exchange_head.is_some_and(|head| head != position.head));
}

/// The exchange has the same commits as before, but one record of them is another.
#[test]
fn one_changed_record_is_caught() {
    let (world, store) = with_backup();
    let exchange = open_exchange(&world.path("backup"));
    for number in 20..40 {
        insert(&exchange, number, if number == 31 { 1_000 } else { number });
    }
    assert_eq!(exchange.end(), client::position(&store).unwrap().unwrap().next);
    let error = meet(&world, &exchange, &store);
    assert!(matches!(error, FeedError::Finding { kind: FindingKind::Rewritten, .. }), "{error}");
}

/// Changes before the held position are not in the part of the journal that is compared, but in the rows.
#[test]
fn an_old_changed_record_is_caught_by_comparing_all_rows() {
    let (world, store) = with_backup();
    let dir = world.path("forged");
    let exchange = open_exchange(&dir);
    for number in 0..40 {
        insert(&exchange, number, if number == 3 { 1_000 } else { number });
    }
    drop(exchange);
    copy_holds(&world.path("exchange"), &dir);
    let exchange = open_exchange(&dir);
    let served = world.serve(&exchange);
    let mut follower = world.follower(&served, &store);
    follower.ask_comparison();
    let compared = loop {
        match follower.next(STEP) {
            Ok(Next::Compared(compared)) => break compared,
            Ok(Next::Batch(batch)) => follower.commit(batch, ChangeSet::new()).unwrap(),
            Ok(Next::Idle) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(!compared.is_equal);
    assert_eq!(kinds(&store), [FindingKind::Differs as u8]);
    world.stop(served);
}

#[test]
fn a_new_store_is_noticed() {
    let (world, store) = with_backup();
    let other = EmbeddedStore::open(
        world.path("new"),
        batzen_tables::exchange::ALL,
        batzen_store::embedded::Options::default(),
    );
    let exchange = Arc::new(other.unwrap());
    insert_all(&exchange, 0..60);
    let error = meet(&world, &exchange, &store);
    assert!(matches!(error, FeedError::Finding { kind: FindingKind::OtherStore, .. }), "{error}");
}

/// An auditor whose own store is restored from a backup continues from there.
#[test]
fn an_auditor_may_restore_its_own_backup() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    insert_all(&exchange, 0..20);
    let served = world.serve(&exchange);
    let store = open_auditor(&world.path("auditor"));
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    drop(store);
    copy(&world.path("auditor"), &world.path("auditor-backup"));
    let store = open_auditor(&world.path("auditor"));
    insert_all(&exchange, 20..40);
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    // It reconnects, so that the hold moves.
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    let store = open_auditor(&world.path("auditor-backup"));
    insert_all(&exchange, 40..50);
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    assert_eq!(kinds(&store), [0_u8; 0]);
    world.stop(served);
}
