//! A pool of connections, each used by one thread at a time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A limited number of items. Callers wait while all are in use.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    state: Mutex<PoolState<T>>,
    freed: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct PoolState<T> {
    idle: Vec<T>,
    used: usize,
}

/// A place in the pool, with its item if there is one.
#[derive(Debug)]
pub(crate) struct PoolSlot<'a, T> {
    pool: &'a Pool<T>,
    /// Callers fill an empty place, and empty a place whose item is broken.
    pub(crate) item: Option<T>,
}

impl<T> Pool<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            state: Mutex::new(PoolState { idle: Vec::new(), used: 0 }),
            freed: Condvar::new(),
            limit: limit.max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place that was used last, because its caches are warm. `None` if none becomes free before
    /// the deadline.
    pub(crate) fn take(&self, until: Instant) -> Option<PoolSlot<'_, T>> {
        let full = |state: &mut PoolState<T>| state.used >= self.limit;
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.freed.wait_timeout_while(self.lock(), left, full);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        state.used += 1;
        Some(PoolSlot { pool: self, item: state.idle.pop() })
    }

    /// Drops idle items.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// The number of items, idle or in use.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.used + state.idle.len()
    }
}

impl<T> Drop for PoolSlot<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.used -= 1;
        state.idle.extend(self.item.take());
        self.pool.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn caller_waits_for_a_free_place_until_its_deadline() {
        let pool = Pool::<u8>::new(1);
        let soon = || Instant::now() + Duration::from_millis(20);
        let mut first = pool.take(soon()).expect("it is free");
        first.item = Some(7);
        assert!(pool.take(soon()).is_none());
        drop(first);
        assert_eq!(pool.take(soon()).expect("it is free again").item, Some(7));
    }
}
