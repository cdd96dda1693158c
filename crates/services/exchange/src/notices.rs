//! Events that requests and workers of an exchange wait for, at every node.
//!
//! | topic | event | listener |
//! |---|---|---|
//! | `keys` | the key set, accounts or fees have changed | the key state of every service |
//! | `transfers` | transfers were prepared | workers that execute them |
//! | `reserves TAGS` | these reserves were credited | long polls on them |
//! | `purses TAGS` | these purses were paid into, merged, deleted or refunded | long polls on them |
//! | `kyc TAGS` | the owners of these accounts were identified | long polls on them, the aggregator |

use std::sync::Arc;

use batzen_crypto::EddsaPublicKey;
use batzen_service::{Tag, Topic};
use batzen_store::Store;
use batzen_tables::exchange::{PaytoHash, PursePub, ReservePub};

/// Number of clients that may wait for a reserve to be filled. Each holds a connection.
const RESERVE_WAITERS_MAX: usize = 65_536;
/// Number of clients that may wait for a purse to be paid or merged.
const PURSE_WAITERS_MAX: usize = 65_536;
/// Number of clients that may wait until an account's owner is identified.
const KYC_WAITERS_MAX: usize = 65_536;

/// The topics of an exchange.
pub struct Notices {
    /// The key set has changed.
    pub(crate) keys: Arc<Topic>,
    /// There are transfers to execute.
    pub(crate) transfers: Arc<Topic>,
    /// Credits of reserves.
    pub reserves: Arc<Topic>,
    /// Changes of purses.
    pub(crate) purses: Arc<Topic>,
    /// Identifications: held payouts may be due.
    pub(crate) kyc: Arc<Topic>,
}

/// The tag of a reserve or purse.
pub fn tag(key: &EddsaPublicKey) -> Tag {
    batzen_service::tag(key.as_bytes())
}

/// The tag of an account.
pub(crate) fn account_tag(h_payto: PaytoHash) -> Tag {
    batzen_service::tag(h_payto.as_bytes())
}

impl Notices {
    /// Starts to listen.
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            keys: Topic::new(store, "keys", 0),
            transfers: Topic::new(store, "transfers", 0),
            reserves: Topic::new(store, "reserves", RESERVE_WAITERS_MAX),
            purses: Topic::new(store, "purses", PURSE_WAITERS_MAX),
            kyc: Topic::new(store, "kyc", KYC_WAITERS_MAX),
        }
    }

    /// Wakes the waiters for these reserves.
    pub fn reserves_credited(&self, reserves: &[ReservePub]) {
        if !reserves.is_empty() {
            let tags: Vec<Tag> = reserves.iter().map(tag).collect();
            self.reserves.announce(&tags);
        }
    }

    /// Wakes the waiters for a purse.
    pub(crate) fn purse_changed(&self, purse_pub: &PursePub) {
        self.purses.announce(&[tag(purse_pub)]);
    }

    /// Wakes the waiters for an account whose owner was identified, and the aggregator.
    pub(crate) fn identified(&self, h_payto: PaytoHash) {
        self.kyc.announce(&[account_tag(h_payto)]);
    }

    /// The number of waiters for reserves, purses and identifications.
    pub fn waiter_count(&self) -> usize {
        self.reserves.waiting() + self.purses.waiting() + self.kyc.waiting()
    }
}
