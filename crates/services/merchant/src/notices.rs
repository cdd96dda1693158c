//! Events that requests wait for: at this process, and at the others on the same database.
//!
//! A notice is a hint to read the store. If it is lost, whoever waits reads the store after a bounded time.
//!
//! | topic | event | listener |
//! |---|---|---|
//! | `order TAG` | the order was claimed, paid, refunded, wired or deleted | long polls on it |
//! | `list INSTANCE` | the instance has a new order | long polls on its list |
//! | `webhook` | there is a web hook to send | whoever sends them |

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Drain, TooManyWaiters, Waiter, Waiters, Woken};
use batzen_store::{Notice, Store};
use batzen_tables::merchant::OrderRef;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The maximum number of long polls of each kind. Further ones are answered at once.
const WAITERS_MAX: usize = 65_536;
/// How often waiters read a store that other processes share, without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
const ORDER: &str = "order ";
const LIST: &str = "list ";
const WEBHOOK: &str = "webhook";

/// The tag of an order in notices. Several may share one; a woken waiter reads its row.
type Tag = [u8; 8];

fn tag(order: &OrderRef) -> Tag {
    *order.as_bytes().first_chunk().expect("32 bytes hold 8")
}

/// The events of a process.
pub struct Notices {
    store: Store,
    /// Long polls on orders.
    orders: Arc<Waiters<Tag>>,
    /// Long polls for new orders of an instance.
    lists: Arc<Waiters<String>>,
    /// There is a web hook to send.
    pub webhooks: Notify,
}

impl Notices {
    /// Starts to listen.
    pub fn new(store: &Store) -> Arc<Self> {
        let notices = Arc::new(Self {
            store: store.clone(),
            orders: Arc::new(Waiters::new(WAITERS_MAX)),
            lists: Arc::new(Waiters::new(WAITERS_MAX)),
            webhooks: Notify::new(),
        });
        // The store holds the subscriber, which therefore must not hold the store.
        let listener = Arc::downgrade(&notices);
        store.backend().subscribe(Box::new(move |notice| {
            if let Some(notices) = listener.upgrade() {
                notices.receive(notice);
            }
        }));
        notices
    }

    fn receive(&self, notice: Notice<'_>) {
        match notice {
            Notice::Topic(WEBHOOK) => self.webhooks.notify_one(),
            Notice::Topic(topic) => {
                if let Some(id) = topic.strip_prefix(LIST) {
                    self.lists.wake(&id.to_owned());
                }
                let tag = topic.strip_prefix(ORDER).and_then(|text| u64::from_str_radix(text, 16).ok());
                if let Some(tag) = tag {
                    self.orders.wake(&tag.to_be_bytes());
                }
            }
            Notice::Missed => {
                self.webhooks.notify_one();
                self.orders.wake_all();
                self.lists.wake_all();
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.store.backend().is_remote()
    }

    fn notify(&self, topic: String) {
        if self.is_shared() {
            self.store.backend().notify(&[topic]);
        }
    }

    /// Wakes the waiters for an order.
    pub fn order_changed(&self, order: &OrderRef) {
        self.orders.wake(&tag(order));
        self.notify(format!("{ORDER}{:016x}", u64::from_be_bytes(tag(order))));
    }

    /// Wakes the waiters for new orders of an instance.
    pub fn order_created(&self, instance: &str) {
        self.lists.wake(&instance.to_owned());
        self.notify(format!("{LIST}{instance}"));
    }

    /// Lets web hooks be sent, here: another process finds them if this one ends.
    pub fn webhook_pending(&self) {
        self.webhooks.notify_one();
    }

    /// Registers a long poll on an order.
    ///
    /// # Errors
    /// When there are too many.
    pub fn poll_order(&self, order: &OrderRef) -> Result<Waiter<Tag>, TooManyWaiters> {
        self.orders.register(tag(order))
    }

    /// Registers a long poll for new orders of an instance.
    ///
    /// # Errors
    /// When there are too many.
    pub fn poll_list(&self, instance: &str) -> Result<Waiter<String>, TooManyWaiters> {
        self.lists.register(instance.to_owned())
    }

    /// Waits for an event, or for the time at which a shared store is read again. Whether it is worth reading the
    /// store again: not when the deadline has passed, or the service ends.
    pub async fn wait<K: Eq + Hash + Clone>(
        &self,
        waiter: &mut Waiter<K>,
        deadline: Instant,
        drain: &Drain,
    ) -> bool {
        let until = match self.is_shared() {
            true => deadline.min(Instant::now() + POLL_INTERVAL),
            false => deadline,
        };
        match waiter.wait_until(Some(until), drain).await {
            Woken::Event => true,
            Woken::Timeout => until < deadline,
            Woken::Drain => false,
        }
    }
}
