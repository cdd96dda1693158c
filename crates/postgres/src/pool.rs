//! A limited number of things that are used by one thread at a time: connections.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// At most so many of them. Who comes when all are in use waits.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    state: Mutex<State<T>>,
    freed: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct State<T> {
    idle: Vec<T>,
    used: usize,
}

/// A place in the pool, with the thing in it if there is one already.
#[derive(Debug)]
pub(crate) struct Place<'a, T> {
    pool: &'a Pool<T>,
    /// To be filled by whoever finds it empty, and emptied by whoever finds it broken.
    pub item: Option<T>,
}

impl<T> Pool<T> {
    pub fn new(limit: usize) -> Self {
        Self {
            state: Mutex::new(State { idle: Vec::new(), used: 0 }),
            freed: Condvar::new(),
            limit: limit.max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place; the one used last, whose caches are warm.
    pub fn take(&self) -> Place<'_, T> {
        let full = |state: &mut State<T>| state.used >= self.limit;
        let mut state = self.freed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.used += 1;
        Place { pool: self, item: state.idle.pop() }
    }

    /// Drops what is idle.
    pub fn clear(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// How many there are, idle and in use.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.used + state.idle.len()
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.used -= 1;
        state.idle.extend(self.item.take());
        self.pool.freed.notify_one();
    }
}
