//! A store that may have committed although it says that it is unreachable, as a database whose connection was lost.

use std::sync::atomic::{AtomicUsize, Ordering};

use batzen_feed::client::{self, Batch, Follower, Next};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitFeed as _, CommitOutcome, Result, Store, StoreError};

use crate::world::{STEP, Traffic, World, open_exchange, rows};

/// Every second commit fails; every second of these has taken place.
struct Unsure {
    inner: MemoryBackend,
    commits: AtomicUsize,
}

impl Backend for Unsure {
    batzen_store::delegate_reads!(self, self.inner);

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let away = || Err(StoreError::Unavailable("connection refused".to_owned()));
        match self.commits.fetch_add(1, Ordering::Relaxed) % 4 {
            1 => away(),
            3 => {
                assert_eq!(self.inner.commit(changes)?, CommitOutcome::Committed);
                away()
            }
            _ => self.inner.commit(changes),
        }
    }
    fn checkpoint(&self) -> Result<()> {
        self.inner.checkpoint()
    }
    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

/// The next batch; `None` while there is nothing, or the exchange still has the connection from before.
fn next_batch(follower: &mut Follower) -> Option<Batch> {
    match follower.next(STEP) {
        Ok(Next::Batch(batch)) => Some(batch),
        Ok(_) => None,
        Err(error) => {
            assert!(!error.is_final(), "{error}");
            None
        }
    }
}

#[test]
fn a_follower_goes_on_from_what_its_store_has() {
    let world = World::new();
    let exchange = open_exchange(&world.path("exchange"));
    let mut traffic = Traffic::new(7);
    let served = world.serve(&exchange);
    let unsure = Unsure { inner: MemoryBackend::new(), commits: AtomicUsize::new(0) };
    let store = Store::new(unsure);
    let mut follower = world.follower(&served, &store);
    let mut failed = 0;
    for round in 1.. {
        traffic.commits(&exchange, 5);
        let Some(batch) = next_batch(&mut follower) else { continue };
        if let Err(error) = follower.commit(batch, ChangeSet::new()) {
            assert!(!error.is_final(), "{error}");
            failed += 1;
        }
        if round >= 40 && failed >= 10 {
            break;
        }
    }
    let end = exchange.end();
    while client::position(&store).unwrap().is_none_or(|row| row.next < end) {
        if let Some(batch) = next_batch(&mut follower) {
            // If it is not stored, it comes again.
            let _ = follower.commit(batch, ChangeSet::new());
        }
    }
    assert_eq!(rows(&*exchange), rows(&**store.backend()));
    let position = client::position(&store).unwrap().unwrap();
    assert_eq!(position.snapshots, 0);
    drop(follower);
    world.stop(served);
}
