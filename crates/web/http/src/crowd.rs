//! The open connections and the long polls of a server, so that the least useful ones can be ended when a
//! resource runs out.

use crate::{
    conn::{ConnState, Eviction},
    drain::Early,
    shares::{Client, Hold, Resource},
    stats::Stats,
};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Entries in the order of their arrival.
#[derive(Debug)]
struct Queue<T> {
    next: u64,
    entries: BTreeMap<u64, T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { next: 0, entries: BTreeMap::new() }
    }
}

fn lock<T>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    // The map is never left half changed.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join<T>(queue: &Mutex<Queue<T>>, entry: T) -> u64 {
    let mut queue = lock(queue);
    let id = queue.next;
    queue.next += 1;
    queue.entries.insert(id, entry);
    id
}

/// The open connections.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Queue<Arc<ConnState>>>);

/// A connection's entry; removed when dropped.
pub(crate) struct Present<'a> {
    connections: &'a Connections,
    id: u64,
}

impl Connections {
    pub(crate) fn join(&self, state: Arc<ConnState>) -> Present<'_> {
        Present { connections: self, id: join(&self.0, state) }
    }

    /// Evicts the connections that have waited longest for a request: at most `count`, and none that has
    /// waited for less than `unused`.
    pub(crate) fn close_unused(&self, count: usize, unused: Duration) {
        let queue = lock(&self.0);
        let mut unused: Vec<_> = queue
            .entries
            .values()
            .filter_map(|state| Some((state.unused_since()?, state)))
            .filter(|(since, _)| since.elapsed() >= unused)
            .collect();
        unused.sort_unstable_by_key(|(since, _)| *since);
        for (_, state) in unused.into_iter().take(count) {
            state.evict(Eviction::Unused);
        }
    }

    /// Evicts connections whose clients have read nothing for `stalled`, the longest stall first, until
    /// `bytes` of responses are released.
    pub(crate) fn cut_readers(&self, stalled: Duration, bytes: usize) {
        let queue = lock(&self.0);
        let mut unread: Vec<_> = queue
            .entries
            .values()
            .filter_map(|state| state.unread().map(|(bytes, time)| (time, bytes, state)))
            .filter(|(time, ..)| *time >= stalled)
            .collect();
        unread.sort_unstable_by_key(|(time, bytes, _)| Reverse((*time, *bytes)));
        let mut freed = 0;
        for (_, held, state) in unread {
            if freed >= bytes {
                break;
            }
            freed += held;
            state.evict(Eviction::Unread);
        }
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        lock(&self.connections.0).entries.remove(&self.id);
    }
}

/// The requests that wait for an event.
#[derive(Debug)]
pub(crate) struct Polls {
    queue: Mutex<Queue<Arc<Early>>>,
    stats: Arc<Stats>,
}

/// The entry of a waiting request; removed when dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    polls: Arc<Polls>,
    id: u64,
    _hold: Hold,
}

impl Polls {
    pub(crate) fn new(stats: Arc<Stats>) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::default(), stats })
    }

    /// Lets a request of this client wait. If the client has used up its share, the wait ends at once.
    pub(crate) fn join(self: &Arc<Self>, client: &Arc<Client>, early: &Arc<Early>) -> Option<Waiting> {
        let Some(hold) = client.take(Resource::Polls, 1) else {
            self.stats.refuse(Resource::Polls);
            early.end();
            return None;
        };
        Some(Waiting { polls: Arc::clone(self), id: join(&self.queue, Arc::clone(early)), _hold: hold })
    }

    /// Ends the wait of the oldest requests, at most `count`. Returns how many.
    pub(crate) fn end_oldest(&self, count: usize) -> u64 {
        let mut queue = lock(&self.queue);
        let mut ended = 0;
        while ended < count as u64
            && let Some((_, early)) = queue.entries.pop_first()
        {
            early.end();
            ended += 1;
        }
        ended
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.polls.queue).entries.remove(&self.id);
    }
}
