//! A copy follows, whatever is interrupted.

use std::collections::BTreeMap;

use batzen_feed::chain::{Position, SignedHead, Signer};
use batzen_feed::client::{self, FeedError, Next};
use batzen_feed::message::Reason;
use batzen_store::conformance::random::Random;
use batzen_store::embedded::sim::SimDisk;
use batzen_store::{ChangeSet, CommitFeed as _, StoreError, Table};
use batzen_tables::auditor::copy::{FeedFindings, FeedHeads};
use batzen_tables::exchange::{AUDITED, CursorRow, Cursors, WorkerLeases};

use crate::world::{
    STEP, Traffic, UNAUDITED, World, account, follow_to, next_batch, open_auditor, open_auditor_on,
    open_exchange, rows,
};

#[test]
fn silent_connections_of_one_address_leave_room_for_an_auditor() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    Traffic::new(2).commits(&exchange, 10);
    let served = world.serve(&exchange);
    let silent = world.silent(&served, 200);
    let store = open_auditor(&world.path("auditor"));
    follow_to(&mut world.follower(&served, &store), exchange.end()).unwrap();
    drop(silent);
    world.stop(served);
}

#[test]
fn a_copy_follows_from_the_first_commit_and_both_sign_the_chain() {
    assert!(!AUDITED.contains(&UNAUDITED) && !AUDITED.contains(&WorkerLeases::DEF));
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    let mut traffic = Traffic::new(1);
    traffic.commits(&exchange, 100);
    let served = world.serve(&exchange);
    let store = open_auditor(&world.path("auditor"));
    let mut follower = world.follower(&served, &store);
    let got = follow_to(&mut follower, exchange.end()).unwrap();
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    // The rows before and after fit together.
    let mut replayed = BTreeMap::new();
    for change in &got.changes {
        let place = (change.table.id, change.key.clone());
        let before = match &change.new {
            Some(row) => replayed.insert(place, row.clone()),
            None => replayed.remove(&place),
        };
        assert_eq!(before, change.old);
    }
    assert_eq!(replayed, rows(&*exchange));
    for _ in 0..20 {
        traffic.commits(&exchange, 5);
        exchange.maintain().unwrap();
        follow_to(&mut follower, exchange.end()).unwrap();
        assert_eq!(rows(&*exchange), rows(&**store.backend()));
    }
    let row = client::position(&store).unwrap().unwrap();
    assert_eq!((row.next, row.snapshots, row.is_whole), (exchange.end(), 0, true));
    let position = Position { store: row.exchange_store, next: row.next, head: row.head };
    let signed = |signature| SignedHead { position, time: row.time, signature };
    assert!(signed(row.signature).is_by(Signer::Auditor, &world.auditor_key.public_key()));
    assert!(signed(row.exchange_signature).is_by(Signer::Exchange, &world.exchange_key.public_key()));
    assert!(store.count::<FeedHeads>().unwrap() >= 20);
    assert_eq!(store.count::<FeedFindings>().unwrap(), 0);
    follower.ask_comparison();
    let compared = loop {
        match follower.next(STEP).unwrap() {
            Next::Compared(compared) => break compared,
            Next::Batch(batch) => follower.commit(batch, ChangeSet::new()).unwrap(),
            Next::Idle => {}
        }
    };
    assert!(compared.is_equal && compared.rows == rows(&*exchange).len() as u64, "{compared:?}");
    world.stop(served);
}

/// Both sides stop at random moments, also between a batch and its commit.
#[test]
fn interruptions_lose_and_repeat_nothing() {
    let world = World::new();
    let mut exchange = open_exchange(&world.path("exchange"));
    let mut traffic = Traffic::new(2);
    let mut random = Random(3);
    let mut served = world.serve(&exchange);
    let mut store = open_auditor(&world.path("auditor"));
    let mut follower = world.follower(&served, &store);
    let mut sum = 0_u64;
    for round in 0..40 {
        traffic.commits(&exchange, 1 + random.below(30));
        for _ in 0..random.below(4) {
            if follower.progress().get().next >= exchange.end() {
                break;
            }
            let Ok(batch) = next_batch(&mut follower) else { break };
            if random.below(4) == 0 {
                // As if the process was killed before the commit.
                break;
            }
            sum += batch.changes.len() as u64;
            follower.commit(batch, ChangeSet::new()).unwrap();
            traffic.commits(&exchange, random.below(10));
        }
        exchange.maintain().unwrap();
        if round % 3 == 0 {
            drop(follower);
            drop(store);
            store = open_auditor(&world.path("auditor"));
            follower = world.follower(&served, &store);
        }
        if round % 4 == 0 {
            world.stop(served);
            drop(exchange);
            exchange = open_exchange(&world.path("exchange"));
            served = world.serve(&exchange);
            drop(follower);
            follower = world.follower(&served, &store);
        }
    }
    sum += follow_to(&mut follower, exchange.end()).unwrap().changes.len() as u64;
    assert!(sum > 100);
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    let position = client::position(&store).unwrap().unwrap();
    assert_eq!(position.snapshots, 0, "the journal was held for it");
    world.stop(served);
}

/// On a full disk no batch is stored in part, and the copy goes on when there is space, without a snapshot.
#[test]
fn a_full_disk_of_the_auditor_loses_and_repeats_nothing() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    let mut traffic = Traffic::new(6);
    let served = world.serve(&exchange);
    let disk = SimDisk::new(1);
    let mut store = open_auditor_on(&disk);
    let mut follower = world.follower(&served, &store);
    let (mut refusals, mut sum) = (0, 0);
    for round in 0..10 {
        traffic.commits(&exchange, 100);
        disk.set_capacity(Some(disk.used() + 512 * round));
        match follow_to(&mut follower, exchange.end()) {
            Ok(got) => sum += got.changes.len(),
            Err(error) => {
                assert!(matches!(error, FeedError::Store(StoreError::Full(_))), "{error}");
                assert!(!error.is_final(), "it is tried again");
                refusals += 1;
            }
        }
        if round % 3 == 0 {
            drop(follower);
            drop(store);
            disk.set_capacity(None);
            store = open_auditor_on(&disk);
            follower = world.follower(&served, &store);
        }
    }
    assert!(refusals > 3, "{refusals}");
    disk.set_capacity(None);
    sum += follow_to(&mut follower, exchange.end()).unwrap().changes.len();
    assert!(sum > 100);
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    assert_eq!(client::position(&store).unwrap().unwrap().snapshots, 0, "the journal was held for it");
    world.stop(served);
}

/// The caller's changes are in the same commit as the batch.
#[test]
fn extra_changes_are_committed_with_the_batch_or_not_at_all() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    Traffic::new(4).commits(&exchange, 20);
    let served = world.serve(&exchange);
    let store = open_auditor(&world.path("auditor"));
    let mut follower = world.follower(&served, &store);
    let batch = next_batch(&mut follower).unwrap();
    let mut extra = ChangeSet::new();
    extra.update::<Cursors>(&account(1_000), &CursorRow { bank_row: 1 }, &CursorRow { bank_row: 2 });
    assert!(matches!(follower.commit(batch, extra), Err(FeedError::Store(_))), "there is no such row");
    assert_eq!(client::position(&store).unwrap(), None);
    assert!(rows(&**store.backend()).is_empty());
    let batch = next_batch(&mut follower).unwrap();
    let mut extra = ChangeSet::new();
    extra.insert::<Cursors>(&account(1_000), &CursorRow { bank_row: 1 });
    follower.commit(batch, extra).unwrap();
    assert_eq!(rows(&**store.backend()).len(), rows(&*exchange).len() + 1);
    world.stop(served);
}

/// A late auditor, and one that was away for too long, get a snapshot, also if loading it is interrupted.
#[test]
fn who_is_too_late_gets_a_snapshot() {
    let mut world = World::new();
    world.hold_bytes_max = 64 << 10;
    let exchange = open_exchange(&world.path("exchange"));
    let mut traffic = Traffic::new(5);
    let churn = |traffic: &mut Traffic| {
        for _ in 0..60 {
            traffic.commits(&exchange, 40);
            exchange.maintain().unwrap();
            exchange.checkpoint().unwrap();
        }
    };
    churn(&mut traffic);
    let served = world.serve(&exchange);
    let store = open_auditor(&world.path("auditor"));
    let mut follower = world.follower(&served, &store);
    let batch = next_batch(&mut follower).unwrap();
    assert!(batch.is_snapshot && batch.head.is_none());
    follower.commit(batch, ChangeSet::new()).unwrap();
    assert!(!client::position(&store).unwrap().unwrap().is_whole);
    drop(follower);
    traffic.commits(&exchange, 50);
    let mut follower = world.follower(&served, &store);
    follow_to(&mut follower, exchange.end()).unwrap();
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    assert_eq!(client::position(&store).unwrap().unwrap().snapshots, 1);
    drop(follower);

    churn(&mut traffic);
    assert_eq!(exchange.holds(), [], "it was away for too long");
    let mut follower = world.follower(&served, &store);
    let got = follow_to(&mut follower, exchange.end()).unwrap();
    assert!(got.changes.iter().any(|change| change.new.is_none()), "rows are gone meanwhile");
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    let position = client::position(&store).unwrap().unwrap();
    assert_eq!((position.snapshots, position.is_whole), (2, true));
    traffic.commits(&exchange, 10);
    follow_to(&mut follower, exchange.end()).unwrap();
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    world.stop(served);
}

#[test]
fn an_auditor_has_one_connection_and_strangers_have_none() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    Traffic::new(6).commits(&exchange, 5);
    let served = world.serve(&exchange);
    let stores = [open_auditor(&world.path("a")), open_auditor(&world.path("b"))];
    let mut first = world.follower(&served, &stores[0]);
    let batch = next_batch(&mut first).unwrap();
    let mut second = world.follower(&served, &stores[1]);
    let refused = next_batch(&mut second).unwrap_err();
    assert!(matches!(refused, FeedError::Refused { reason: Reason::Busy, .. }), "{refused}");
    assert!(!refused.is_final());
    first.commit(batch, ChangeSet::new()).unwrap();
    // Nobody's keys: neither side accepts the other.
    let stranger = World::new();
    let mut stranger = stranger.follower(&served, &stores[1]);
    assert!(matches!(next_batch(&mut stranger), Err(FeedError::Connection(_))));
    let mut page = batzen_metrics::Page::new();
    served.metrics.write(&mut page);
    let text = page.finish();
    assert!(text.contains("batzen_feed_lag_commits{auditor="), "{text}");
    world.stop(served);
}
