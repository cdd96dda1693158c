//! What workers are at, so that several of them share the work instead of doing it twice.
//!
//! Every worker runs in the process that has the store open, so claims are held in its memory, each by the task that works on
//! the item: they end with the task, however it ends, and none outlives the process. Correctness never rests on them: whatever
//! two workers do to one item, the rules decide once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_crypto::Wtid;
use batzen_tables::exchange::DepositTarget;
use tokio::sync::Notify;

use super::shards::AccountShards;

/// The claims of all workers of a process.
#[derive(Debug, Default)]
pub struct Claims {
    /// Targets that are being aggregated.
    pub(super) targets: Claimed<DepositTarget>,
    /// Transfers that the bank is being asked for.
    pub(super) transfers: Claimed<Wtid>,
    /// Ranges of bank rows that are being imported.
    pub(super) shards: AccountShards,
}

/// Items that are being worked on. Clones share them.
#[derive(Debug)]
pub(super) struct Claimed<K> {
    taken: Arc<Mutex<Taken<K>>>,
    freed: Arc<Notify>,
}

#[derive(Debug)]
struct Taken<K> {
    items: HashSet<K>,
    /// Workers that take items now.
    workers: usize,
    /// How many there have been.
    workers_ever: u64,
}

impl<K> Default for Claimed<K> {
    fn default() -> Self {
        let taken = Taken { items: HashSet::new(), workers: 0, workers_ever: 0 };
        Self { taken: Arc::new(Mutex::new(taken)), freed: Arc::default() }
    }
}

impl<K> Clone for Claimed<K> {
    fn clone(&self) -> Self {
        Self { taken: Arc::clone(&self.taken), freed: Arc::clone(&self.freed) }
    }
}

/// An item that is this holder's until it is dropped.
#[derive(Debug)]
pub(super) struct Claim<K: Eq + Hash> {
    item: K,
    claimed: Claimed<K>,
}

/// A worker among those that take items, until it is dropped.
#[derive(Debug)]
pub(super) struct Member<K>(Claimed<K>);

impl<K> Claimed<K> {
    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a worker in.
    pub fn join(&self) -> Member<K> {
        let mut taken = self.lock();
        taken.workers += 1;
        taken.workers_ever += 1;
        Member(self.clone())
    }
}

impl<K> Member<K> {
    /// Something that changes when another worker comes. None while there is another one.
    pub fn alone(&self) -> Option<u64> {
        let taken = self.0.lock();
        (taken.workers == 1).then_some(taken.workers_ever)
    }
}

impl<K> Drop for Member<K> {
    fn drop(&mut self) {
        self.0.lock().workers -= 1;
    }
}

impl<K: Eq + Hash + Copy> Claimed<K> {
    /// Takes an item; none if somebody else is at it.
    pub fn take(&self, item: K) -> Option<Claim<K>> {
        let is_free = self.lock().items.insert(item);
        is_free.then(|| Claim { item, claimed: self.clone() })
    }

    /// Ends when one of these items is free (or was, a moment ago).
    pub async fn freed(&self, items: &[K]) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the look, so that nothing falls between the two.
            freed.as_mut().enable();
            let is_free = {
                let taken = self.lock();
                items.iter().any(|item| !taken.items.contains(item))
            };
            if is_free {
                return;
            }
            freed.await;
        }
    }
}

impl<K: Eq + Hash> Drop for Claim<K> {
    fn drop(&mut self) {
        self.claimed.lock().items.remove(&self.item);
        self.claimed.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_item_is_one_workers_until_it_lets_go_or_dies() {
        let claims = Arc::new(Claimed::<u64>::default());
        let first = claims.take(1).unwrap();
        assert!(claims.take(1).is_none() && claims.take(2).is_some());
        let waiter = {
            let claims = Arc::clone(&claims);
            tokio::spawn(async move { claims.freed(&[1]).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        let worker = tokio::spawn(async move {
            let _claim = first;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        worker.abort();
        waiter.await.unwrap();
        assert!(claims.take(1).is_some());
    }

    #[test]
    fn a_worker_knows_whether_it_is_alone() {
        let claims = Claimed::<u64>::default();
        let first = claims.join();
        let before = first.alone();
        assert!(before.is_some() && before == first.alone());
        let second = claims.join();
        assert!(first.alone().is_none() && second.alone().is_none());
        drop(second);
        assert!(first.alone().is_some() && first.alone() != before, "somebody has been there meanwhile");
    }
}
