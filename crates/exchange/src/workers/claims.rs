//! What workers are at, so that several of them share the work instead of doing it twice.
//!
//! Every worker runs in the process that has the store open, so claims are held in its memory, each by the task that works on
//! the item: they end with the task, however it ends, and none outlives the process. Correctness never rests on them: whatever
//! two workers do to one item, the rules decide once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use batzen_tables::exchange::DepositTarget;
use tokio::sync::Notify;

/// The claims of all workers of a process.
#[derive(Debug, Default)]
pub struct Claims {
    /// Targets that are being aggregated.
    pub(super) targets: Claimed<DepositTarget>,
}

/// Items that are being worked on.
#[derive(Debug)]
pub(super) struct Claimed<K> {
    items: Arc<Mutex<HashSet<K>>>,
    freed: Arc<Notify>,
}

impl<K> Default for Claimed<K> {
    fn default() -> Self {
        Self { items: Arc::default(), freed: Arc::default() }
    }
}

/// An item that is this holder's until it is dropped.
#[derive(Debug)]
pub(super) struct Claim<K: Eq + Hash> {
    item: K,
    items: Arc<Mutex<HashSet<K>>>,
    freed: Arc<Notify>,
}

impl<K: Eq + Hash + Copy> Claimed<K> {
    /// Takes an item; none if somebody else is at it.
    pub fn take(&self, item: K) -> Option<Claim<K>> {
        let is_free = self.items.lock().unwrap_or_else(PoisonError::into_inner).insert(item);
        is_free.then(|| Claim { item, items: Arc::clone(&self.items), freed: Arc::clone(&self.freed) })
    }

    /// Ends when one of these items is free (or was, a moment ago).
    pub async fn freed(&self, items: &[K]) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the look, so that nothing falls between the two.
            freed.as_mut().enable();
            let is_free = {
                let taken = self.items.lock().unwrap_or_else(PoisonError::into_inner);
                items.iter().any(|item| !taken.contains(item))
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
        self.items.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.item);
        self.freed.notify_waiters();
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
}
