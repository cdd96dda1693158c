//! Notices between the processes on one store, so that a request at one node need not poll for an event at
//! another.
//!
//! A notice is a hint to read the store. A waiter that receives none reads the store after a bounded time. In
//! a process that does not share its store, the same calls wake the waiters of that process.
//!
//! | topic | event | listener |
//! |---|---|---|
//! | `keys` | the key set, accounts or fees have changed | the key state of every service |
//! | `transfers` | transfers were prepared | workers that execute them |
//! | `reserves TAGS` | these reserves were credited | long polls on them |
//! | `purses TAGS` | these purses were paid into, merged, deleted or refunded | long polls on them |
//! | `kyc TAGS` | the owners of these accounts were identified | long polls on them, the aggregator |

use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::EddsaPublicKey;
use batzen_http::Waiters;
use batzen_store::{Notice, Store};
use batzen_tables::exchange::{PaytoHash, PursePub, ReservePub};
use tokio::sync::Notify;

/// How many clients may wait for a reserve to be filled. Each holds a connection.
const RESERVE_WAITERS_MAX: usize = 65_536;
/// How many clients may wait for a purse to be paid or merged.
const PURSE_WAITERS_MAX: usize = 65_536;
/// How many clients may wait until an account's owner is identified.
const KYC_WAITERS_MAX: usize = 65_536;
/// How often waiters at a node that shares its store read it without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How many reserves one notice names: it must fit into the 8,000 bytes that PostgreSQL allows.
const TAGS_MAX: usize = 400;
const KEYS: &str = "keys";
const TRANSFERS: &str = "transfers";
const RESERVES: &str = "reserves ";
const PURSES: &str = "purses ";
const KYC: &str = "kyc ";

/// The tag of a reserve, purse or account in notices. Several may share one; a woken waiter reads its row.
type Tag = [u8; 8];

fn tag(key: &EddsaPublicKey) -> Tag {
    *key.as_bytes().first_chunk().expect("32 bytes hold 8")
}

fn account_tag(h_payto: PaytoHash) -> Tag {
    *h_payto.as_bytes().first_chunk().expect("32 bytes hold 8")
}

/// The notices of a process.
pub struct Notices {
    store: Store,
    is_shared: bool,
    /// Long polls on reserves.
    reserves: Arc<Waiters<Tag>>,
    /// Long polls on purses.
    purses: Arc<Waiters<Tag>>,
    /// Long polls on identifications.
    kyc: Arc<Waiters<Tag>>,
    /// The key set has changed at another node.
    pub keys: Notify,
    /// There are transfers to execute.
    pub transfers: Notify,
    /// Somebody was identified, so that held payouts may be due.
    pub kyc_alerts: Notify,
}

impl Notices {
    /// Starts to listen. `is_shared`: whether other processes have the store open.
    pub fn new(store: &Store, is_shared: bool) -> Arc<Self> {
        let notices = Arc::new(Self {
            store: store.clone(),
            is_shared,
            reserves: Arc::new(Waiters::new(RESERVE_WAITERS_MAX)),
            purses: Arc::new(Waiters::new(PURSE_WAITERS_MAX)),
            kyc: Arc::new(Waiters::new(KYC_WAITERS_MAX)),
            keys: Notify::new(),
            transfers: Notify::new(),
            kyc_alerts: Notify::new(),
        });
        if is_shared {
            // The store holds the subscriber, which therefore must not hold the store.
            let listener = Arc::downgrade(&notices);
            store.backend().subscribe(Box::new(move |notice| {
                if let Some(notices) = listener.upgrade() {
                    notices.receive(notice);
                }
            }));
        }
        notices
    }

    fn receive(&self, notice: Notice<'_>) {
        match notice {
            Notice::Topic(KEYS) => self.keys.notify_one(),
            Notice::Topic(TRANSFERS) => self.transfers.notify_one(),
            Notice::Topic(topic) => {
                if topic.starts_with(KYC) {
                    self.kyc_alerts.notify_one();
                }
                for (prefix, waiters) in
                    [(RESERVES, &self.reserves), (PURSES, &self.purses), (KYC, &self.kyc)]
                {
                    let tags = topic.strip_prefix(prefix).into_iter().flat_map(|tags| tags.split(','));
                    for tag in tags.filter_map(|text| u64::from_str_radix(text, 16).ok()) {
                        waiters.wake(&tag.to_be_bytes());
                    }
                }
            }
            Notice::Missed => {
                self.keys.notify_one();
                self.transfers.notify_one();
                self.reserves.wake_all();
                self.purses.wake_all();
                self.kyc_alerts.notify_one();
                self.kyc.wake_all();
            }
        }
    }

    fn notify(&self, topics: Vec<String>) {
        if self.is_shared && !topics.is_empty() {
            let store = self.store.clone();
            tokio::task::spawn_blocking(move || store.backend().notify(&topics));
        }
    }

    /// Notifies the other nodes that the key set has changed.
    pub fn keys_changed(&self) {
        self.notify(vec![KEYS.to_owned()]);
    }

    /// Wakes a worker that executes transfers, here and in other processes.
    pub fn transfers_prepared(&self) {
        self.transfers.notify_one();
        self.notify(vec![TRANSFERS.to_owned()]);
    }

    /// Wakes the waiters for these reserves, at every node.
    pub fn reserves_credited(&self, reserves: &[ReservePub]) {
        for reserve_pub in reserves {
            self.reserves.wake(&tag(reserve_pub));
        }
        if !self.is_shared {
            return;
        }
        let topic = |part: &[ReservePub]| {
            let tags: Vec<_> =
                part.iter().map(|reserve| format!("{:x}", u64::from_be_bytes(tag(reserve)))).collect();
            format!("{RESERVES}{}", tags.join(","))
        };
        self.notify(reserves.chunks(TAGS_MAX).map(topic).collect());
    }

    /// Wakes the waiters for a purse, at every node.
    pub fn purse_changed(&self, purse_pub: &PursePub) {
        self.purses.wake(&tag(purse_pub));
        self.notify(vec![format!("{PURSES}{:x}", u64::from_be_bytes(tag(purse_pub)))]);
    }

    /// Wakes the waiters for an account whose owner was identified, and the aggregator, at every node.
    pub fn identified(&self, h_payto: PaytoHash) {
        self.kyc_alerts.notify_one();
        self.kyc.wake(&account_tag(h_payto));
        self.notify(vec![format!("{KYC}{:x}", u64::from_be_bytes(account_tag(h_payto)))]);
    }

    /// Registers interest in the identification of an account's owner; none if too many wait already.
    pub fn wait_for_kyc(&self, h_payto: PaytoHash) -> Option<batzen_http::Waiter<[u8; 8]>> {
        self.kyc.register(account_tag(h_payto)).ok()
    }

    /// Registers interest in a purse; none if too many wait already.
    pub fn wait_for_purse(&self, purse_pub: &PursePub) -> Option<batzen_http::Waiter<[u8; 8]>> {
        self.purses.register(tag(purse_pub)).ok()
    }

    /// Registers interest in a reserve; none if too many wait already.
    pub fn wait_for(&self, reserve_pub: &ReservePub) -> Option<batzen_http::Waiter<[u8; 8]>> {
        self.reserves.register(tag(reserve_pub)).ok()
    }

    /// The number of waiters for reserves, purses and identifications.
    pub fn waiter_count(&self) -> usize {
        self.reserves.len() + self.purses.len() + self.kyc.len()
    }

    /// How long to wait for a notice before the store is read without one.
    pub fn poll_interval(&self) -> Option<Duration> {
        self.is_shared.then_some(POLL_INTERVAL)
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notices").field("is_shared", &self.is_shared).finish_non_exhaustive()
    }
}
