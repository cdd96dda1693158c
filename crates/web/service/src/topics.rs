//! Events that long polls and workers wait for, in this process and in the others on the same database.
//!
//! A notice is a hint to read the store. A waiter that receives none reads the store after a bounded time.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Drain, Request, Response, Waiter, Waiters, Woken};
use batzen_store::{Notice, Store};
use tokio::sync::{Notify, futures::Notified};
use tokio::time::Instant;

/// Interval at which waiters read a store that other processes share, without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Number of keys that one notice names: it must fit into the 8,000 bytes that PostgreSQL allows.
const KEYS_MAX: usize = 400;

/// The first bytes of a hash or key. Several rows may share one; a woken waiter reads its row.
pub type Tag = [u8; 8];

/// The tag of a hash or key.
#[must_use]
pub fn tag(bytes: &[u8; 32]) -> Tag {
    *bytes.first_chunk().expect("32 bytes hold 8")
}

/// A key of a topic: something that clients wait for.
pub trait TopicKey: Eq + Hash + Clone + Send + Sync + 'static {
    /// The key in a notice, without blanks and commas.
    fn write(&self) -> String;

    /// The key of a notice.
    fn read(text: &str) -> Option<Self>;
}

impl TopicKey for Tag {
    fn write(&self) -> String {
        format!("{:x}", u64::from_be_bytes(*self))
    }

    fn read(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(u64::to_be_bytes)
    }
}

impl TopicKey for String {
    fn write(&self) -> String {
        self.clone()
    }

    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// A kind of event: long polls wait for those of a key, and one worker for any.
pub struct Topic<K = Tag> {
    name: &'static str,
    /// The store, if other processes share it.
    shared: Option<Store>,
    waiters: Arc<Waiters<K>>,
    any: Notify,
}

impl<K: TopicKey> Topic<K> {
    /// Starts to listen. At most `waiters_max` long polls wait at once.
    #[must_use]
    pub fn new(store: &Store, name: &'static str, waiters_max: usize) -> Arc<Self> {
        let shared = store.backend().is_remote().then(|| store.clone());
        let waiters = Arc::new(Waiters::new(waiters_max));
        let topic = Arc::new(Self { name, shared, waiters, any: Notify::new() });
        if topic.shared.is_some() {
            // The store holds the subscriber, which therefore must not hold the store.
            let listener = Arc::downgrade(&topic);
            store.backend().subscribe(Box::new(move |notice| {
                if let Some(topic) = listener.upgrade() {
                    topic.receive(&notice);
                }
            }));
        }
        topic
    }

    fn receive(&self, notice: &Notice<'_>) {
        let keys = match notice {
            Notice::Topic(text) => match text.strip_prefix(self.name) {
                Some("") => "",
                Some(rest) if rest.starts_with(' ') => &rest[1..],
                _ => return,
            },
            Notice::Missed => {
                self.waiters.wake_all();
                ""
            }
        };
        self.any.notify_one();
        keys.split(',').filter_map(K::read).for_each(|key| self.waiters.wake(&key));
    }

    /// Tells the waiters for these keys, and the worker, in every process. Without keys, only the worker.
    pub fn announce(&self, keys: &[K]) {
        self.announce_here(keys);
        let Some(store) = self.shared.clone() else { return };
        let named = |keys: &[K]| {
            let keys: Vec<String> = keys.iter().map(K::write).collect();
            format!("{} {}", self.name, keys.join(","))
        };
        let notices = match keys {
            [] => vec![self.name.to_owned()],
            keys => keys.chunks(KEYS_MAX).map(named).collect(),
        };
        tokio::task::spawn_blocking(move || store.backend().notify(&notices));
    }

    /// The same in this process only.
    pub fn announce_here(&self, keys: &[K]) {
        self.any.notify_one();
        keys.iter().for_each(|key| self.waiters.wake(key));
    }

    /// Waits for any event since the last wait. Only one task may wait.
    pub fn announced(&self) -> Notified<'_> {
        self.any.notified()
    }

    /// Registers a long poll. None if there are too many: the request is answered at once.
    #[must_use]
    pub fn poll(&self, key: K) -> Option<Poll<K>> {
        let waiter = self.waiters.register(key).ok()?;
        Some(Poll { waiter, is_shared: self.shared.is_some() })
    }

    /// Number of long polls that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// A long poll that is registered, so that no event is missed from now on.
pub struct Poll<K: Eq + Hash + Clone = Tag> {
    waiter: Waiter<K>,
    is_shared: bool,
}

impl<K: Eq + Hash + Clone> Poll<K> {
    /// A long poll for events of this process.
    #[must_use]
    pub fn of(waiter: Waiter<K>) -> Self {
        Self { waiter, is_shared: false }
    }

    /// Waits for an event, or for the time at which a shared store is read again. Returns whether to read and then
    /// wait again: not after the deadline, or when the service ends.
    pub async fn wait(&mut self, deadline: Instant, drain: &Drain) -> bool {
        let until = match self.is_shared {
            true => deadline.min(Instant::now() + POLL_INTERVAL),
            false => deadline,
        };
        match self.waiter.wait_until(Some(until), drain).await {
            Woken::Event => true,
            Woken::Timeout => until < deadline,
            Woken::Drain => false,
        }
    }

    /// Waits for an event, however long. Returns whether there was one: not when the service ends.
    pub async fn event(&mut self, drain: &Drain) -> bool {
        matches!(self.waiter.wait_until(None, drain).await, Woken::Event)
    }

    /// Reads after each event until a value `is_final`, and returns the last one. `found` was read after the
    /// registration.
    ///
    /// # Errors
    /// The error of `read`.
    pub async fn until<T, F: Future<Output = Result<T, Response>>>(
        mut self,
        request: &mut Request,
        deadline: Instant,
        mut found: T,
        is_final: impl Fn(&T) -> bool,
        mut read: impl FnMut() -> F,
    ) -> Result<T, Response> {
        if is_final(&found) {
            return Ok(found);
        }
        request.leave_slot();
        loop {
            let is_worth_more = self.wait(deadline, &request.drain).await;
            found = read().await?;
            // The event may have been for another key with the same tag, and notices may be lost.
            if is_final(&found) || !is_worth_more {
                return Ok(found);
            }
        }
    }
}

/// The end of a long poll, if the client asked for one.
#[must_use]
pub fn poll_deadline(timeout_ms: Option<u64>, longest: Duration) -> Option<Instant> {
    let poll = Duration::from_millis(timeout_ms.filter(|ms| *ms > 0)?).min(longest);
    Some(Instant::now() + poll)
}
