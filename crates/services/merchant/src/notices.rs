//! Events that requests and tasks wait for, here and at the other processes on the same database.

use std::sync::Arc;

use batzen_service::{Poll, Tag, Topic};
use batzen_store::Store;
use batzen_tables::merchant::OrderRef;

/// The maximum number of long polls of each kind. Further ones are answered at once.
const WAITERS_MAX: usize = 65_536;

/// The tag of an order in notices. Several may share one; a woken waiter reads its row.
fn tag(order: &OrderRef) -> Tag {
    *order.as_bytes().first_chunk().expect("32 bytes hold 8")
}

pub(crate) struct Notices {
    /// An order was claimed, paid, refunded, wired or deleted.
    orders: Arc<Topic<Tag>>,
    /// An instance has a new order.
    pub(crate) lists: Arc<Topic<String>>,
    /// A web hook is to be sent.
    pub(crate) webhooks: Arc<Topic>,
}

impl Notices {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            orders: Topic::new(store, "order", WAITERS_MAX),
            lists: Topic::new(store, "list", WAITERS_MAX),
            webhooks: Topic::new(store, "webhook", 0),
        }
    }

    /// Wakes the long polls on an order.
    pub(crate) fn order_changed(&self, order: &OrderRef) {
        self.orders.announce(&[tag(order)]);
    }

    /// Registers a long poll on an order. None if there are too many.
    pub(crate) fn poll_order(&self, order: &OrderRef) -> Option<Poll> {
        self.orders.poll(tag(order))
    }
}
