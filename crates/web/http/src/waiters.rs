//! Long polling: clients wait for something to happen to a key, and are woken when it does.

use crate::drain::Drain;
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const SHARDS: usize = 16;

/// The waiters of each key. A waiter registers *before* it looks the value up. The code that changes the
/// value calls [`Waiters::wake`] *after* the change is visible. So no change is missed between look-up and
/// wait.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use batzen_http::{Drain, Waiters, Woken};
/// use std::{sync::Arc, time::Duration};
/// let waiters = Arc::new(Waiters::new(1000));
/// let mut waiter = waiters.register("reserve").unwrap();
/// // … look the reserve up, find nothing …
/// waiters.wake(&"reserve");
/// assert_eq!(waiter.wait(Duration::from_secs(30), &Drain::new()).await, Woken::Event);
/// # });
/// ```
#[derive(Debug)]
pub struct Waiters<K> {
    shards: [Mutex<HashMap<K, Arc<Spot>>>; SHARDS],
    hasher: RandomState,
    waiting: AtomicUsize,
    max_waiters: usize,
}

/// State that the waiters for one key share.
#[derive(Debug, Default)]
struct Spot {
    /// Number of times that the key was woken.
    events: AtomicU64,
    notify: Notify,
    /// The number of waiters; changed only under the shard's lock.
    waiters: AtomicUsize,
}

/// The maximum number of waiters is reached: answer at once instead of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many clients are waiting already")]
pub struct TooManyWaiters;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The key was woken since the registration or the last wait: look the value up again.
    Event,
    /// The timeout has passed.
    Timeout,
    /// The service is shutting down: answer now with the current value.
    Drain,
}

impl<K: Eq + Hash + Clone> Waiters<K> {
    /// A hub for at most `max_waiters` waiters at once.
    #[must_use]
    pub fn new(max_waiters: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            hasher: RandomState::new(),
            waiting: AtomicUsize::new(0),
            max_waiters,
        }
    }

    /// Registers interest in a key. Do this before the look-up whose result decides whether to wait.
    ///
    /// # Errors
    /// `TooManyWaiters` if the maximum is reached.
    pub fn register(self: &Arc<Self>, key: K) -> Result<Waiter<K>, TooManyWaiters> {
        self.waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n < self.max_waiters).then_some(n + 1))
            .map_err(|_| TooManyWaiters)?;
        let spot = {
            let mut shard = self.shard(&key);
            let spot = Arc::clone(shard.entry(key.clone()).or_default());
            spot.waiters.fetch_add(1, Ordering::Relaxed);
            spot
        };
        // Pairs with the fence in `wake`: either the look-up that follows sees the change, or `wake` sees
        // this waiter.
        fence(Ordering::SeqCst);
        let seen = spot.events.load(Ordering::SeqCst);
        Ok(Waiter { hub: Arc::clone(self), key, spot, seen })
    }

    /// Wakes all waiters of `key`. Nearly free if there are no waiters at all.
    pub fn wake(&self, key: &K) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let spot = self.shard(key).get(key).map(Arc::clone);
        if let Some(spot) = spot {
            spot.events.fetch_add(1, Ordering::SeqCst);
            spot.notify.notify_waiters();
        }
    }

    /// Wakes all waiters of all keys.
    pub fn wake_all(&self) {
        for shard in &self.shards {
            let spots: Vec<_> =
                shard.lock().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect();
            for spot in spots {
                spot.events.fetch_add(1, Ordering::SeqCst);
                spot.notify.notify_waiters();
            }
        }
    }

    /// The number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, Arc<Spot>>> {
        let index = (self.hasher.hash_one(key) % SHARDS as u64) as usize;
        // The map is never left half changed, so a panic elsewhere while it was locked does no harm.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration; removed when dropped.
#[derive(Debug)]
pub struct Waiter<K: Eq + Hash + Clone> {
    hub: Arc<Waiters<K>>,
    key: K,
    spot: Arc<Spot>,
    seen: u64,
}

impl<K: Eq + Hash + Clone> Waiter<K> {
    /// Waits until the key is woken, `timeout` has passed, or the service ends. An event since the
    /// registration, or since the last return from here, ends the wait at once.
    pub async fn wait(&mut self, timeout: Duration, drain: &Drain) -> Woken {
        let deadline = Instant::now().checked_add(timeout);
        self.wait_until(deadline, drain).await
    }

    /// Like [`Waiter::wait`], until an instant; `None` waits for ever.
    pub async fn wait_until(&mut self, deadline: Option<Instant>, drain: &Drain) -> Woken {
        let spot = Arc::clone(&self.spot);
        let notified = spot.notify.notified();
        tokio::pin!(notified);
        // No wake-up is missed from now on, so the counter is read afterwards.
        notified.as_mut().enable();
        let events = spot.events.load(Ordering::SeqCst);
        if events != self.seen {
            self.seen = events;
            return Woken::Event;
        }
        let time_is_up = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let woken = tokio::select! {
            biased;
            () = notified => Woken::Event,
            () = drain.draining() => Woken::Drain,
            () = time_is_up => Woken::Timeout,
        };
        self.seen = spot.events.load(Ordering::SeqCst);
        woken
    }
}

impl<K: Eq + Hash + Clone> Drop for Waiter<K> {
    fn drop(&mut self) {
        let mut shard = self.hub.shard(&self.key);
        if self.spot.waiters.fetch_sub(1, Ordering::Relaxed) == 1 {
            shard.remove(&self.key);
        }
        drop(shard);
        self.hub.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn event_between_registration_and_wait_is_not_lost() {
        let waiters = Arc::new(Waiters::new(2));
        let drain = Drain::new();
        let mut a = waiters.register(1).unwrap();
        let mut b = waiters.register(2).unwrap();
        assert_eq!(waiters.register(3).unwrap_err(), TooManyWaiters);
        waiters.wake(&1);
        assert_eq!(a.wait(LONG, &drain).await, Woken::Event);
        assert_eq!(a.wait(Duration::from_millis(1), &drain).await, Woken::Timeout);
        assert_eq!(b.wait(Duration::ZERO, &drain).await, Woken::Timeout);
        drain.trigger();
        assert_eq!(b.wait(LONG, &drain).await, Woken::Drain);
        drop((a, b));
        assert!(waiters.is_empty());
        assert!(waiters.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
        assert!(waiters.register(3).is_ok());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost_in_a_race() {
        let waiters = Arc::new(Waiters::new(1000));
        let drain = Drain::new();
        for round in 0..500_u64 {
            let value = Arc::new(AtomicU64::new(0));
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (waiters, drain, value) = (Arc::clone(&waiters), drain.clone(), Arc::clone(&value));
                    tokio::spawn(async move {
                        let mut waiter = waiters.register(round).unwrap();
                        while value.load(Ordering::Relaxed) == 0 {
                            assert_eq!(waiter.wait(LONG, &drain).await, Woken::Event);
                        }
                    })
                })
                .collect();
            value.store(1, Ordering::Relaxed);
            waiters.wake(&round);
            for task in tasks {
                task.await.unwrap();
            }
        }
        assert!(waiters.is_empty());
    }
}
