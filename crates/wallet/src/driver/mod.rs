//! The driver: makes the core's changes durable, sends its requests, and passes it the answers.

mod actions;
mod liabilities;
mod people;
mod purchases;
mod run;
mod tips;

pub use liabilities::{CheckOptions, Source};
pub use people::PeerRequest;
pub use purchases::PurchaseOffer;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Amount, Timestamp};
use serde::Serialize;

use crate::core::coin::Coin;
use crate::core::evidence::{self, Evidence, EvidenceId};
use crate::core::views::{self, Balance, History, Transaction};
use crate::core::{Change, CoreError, Entropy, OpId, OsEntropy, WalletState, bad_input};
use crate::network_error::NetworkError;
use crate::store::{Store, StoreError};
use crate::transport::{HttpTransport, Transport, TransportError};

/// Errors of a wallet.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// The core refused the operation.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The wallet file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The HTTP client cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Several attempts got no answer. Operations that began continue with the next run.
    #[error(transparent)]
    NoAnswer(#[from] NetworkError),
    /// The server stayed overloaded or broken for several attempts. Operations that began continue with the
    /// next run.
    #[error("{url} is overloaded or out of order (HTTP {status})")]
    Unavailable {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// An operation cannot make progress now; it stays pending.
    #[error("operation {operation} is pending: {message}")]
    Pending {
        /// Its number.
        operation: OpId,
        /// Reason, in plain words.
        message: String,
    },
    /// The exchange's answer about an operation was false. Nothing is written off; the request is sent again
    /// later.
    #[error(
        "operation {operation} is disputed: {message}. Nothing is written off, and the request is sent again later. For an auditor: `batzen wallet evidence {evidence} --out FILE`"
    )]
    Disputed {
        /// Number of the operation.
        operation: OpId,
        /// Number of the evidence.
        evidence: EvidenceId,
        /// The false answer, and the reason.
        message: String,
    },
    /// An operation failed for good.
    #[error("operation {operation} failed: {message}")]
    Failed {
        /// Its number.
        operation: OpId,
        /// Reason, in plain words.
        message: String,
    },
}

/// A source of the current time.
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_system_time(SystemTime::now())
    }
}

/// The wallet's connections to the outside world.
pub struct WalletOptions {
    /// Sends requests.
    pub transport: Arc<dyn Transport>,
    /// Returns the time.
    pub clock: Arc<dyn Clock>,
    /// Generates secrets.
    pub entropy: Box<dyn Entropy>,
    /// Attempts for one request before its operation pauses.
    pub attempts: u32,
    /// Pause after the first failed attempt. It doubles with each further attempt and varies randomly by
    /// half.
    pub first_backoff: Duration,
}

impl WalletOptions {
    /// The network, the system's clock and its random number generator.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn system() -> Result<Self, WalletError> {
        Ok(Self {
            transport: Arc::new(HttpTransport::new()?),
            clock: Arc::new(SystemClock),
            entropy: Box::new(OsEntropy),
            attempts: 5,
            first_backoff: Duration::from_millis(200),
        })
    }
}

impl std::fmt::Debug for WalletOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalletOptions").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

/// When [`Wallet::run`] stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunUntil {
    /// When only waiting for others is left.
    Idle,
    /// When nothing is pending, or after this much time.
    Finished(Option<Duration>),
}

/// An operation that is not finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingOperation {
    /// Its number.
    pub id: OpId,
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Base URL of the exchange.
    pub(crate) exchange: String,
    /// The latest answer or error about it, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its next step, in plain words.
    pub waits_for: &'static str,
    /// The next deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The event at the deadline, such as "reserve expires".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_event: Option<&'static str>,
    /// Number of the evidence, if the exchange's latest answer was false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceId>,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunReport {
    /// Operations that finished.
    pub finished: Vec<OpId>,
    /// Operations that are still open.
    pub pending: Vec<PendingOperation>,
}

/// A manual withdrawal: the user makes the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManualWithdrawal {
    /// Number of the operation.
    pub operation: OpId,
    /// Subject of the transfer.
    pub reserve_pub: EddsaPublicKey,
    /// Amount to transfer.
    pub amount: Amount,
    /// Accounts of the exchange, each with amount and subject: transfer to any one of them.
    pub payto_uris: Vec<String>,
}

struct Core {
    state: WalletState,
    store: Option<Store>,
    entropy: Box<dyn Entropy>,
}

struct Inner {
    core: Mutex<Core>,
    /// Operations that a worker currently processes.
    running: Mutex<BTreeSet<OpId>>,
    freed: tokio::sync::Notify,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    attempts: u32,
    first_backoff: Duration,
}

/// A wallet. A clone is another handle to the same wallet.
#[derive(Clone)]
pub struct Wallet {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Wallet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wallet")
    }
}

/// A poisoned lock means that a worker panicked between two steps. Records change only as a whole, so they
/// are intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wallet {
    /// Opens or creates a wallet file.
    ///
    /// # Errors
    /// If the file cannot be used, for example because another process uses it.
    pub fn open(path: &Path) -> Result<Self, WalletError> {
        Self::open_with(path, WalletOptions::system()?)
    }

    /// Opens or creates a wallet file, with these options.
    ///
    /// # Errors
    /// As [`Wallet::open`].
    pub fn open_with(path: &Path, options: WalletOptions) -> Result<Self, WalletError> {
        let store = Store::open(path)?;
        let state = store.load()?;
        Ok(Self::build(state, Some(store), options))
    }

    /// Opens an existing wallet file for reading, even while another process writes to it.
    ///
    /// # Errors
    /// As [`Wallet::open`]. Every change then fails with [`StoreError::ReadOnly`].
    pub fn open_read_only(path: &Path) -> Result<Self, WalletError> {
        let store = Store::open_read_only(path)?;
        let state = store.load()?;
        Ok(Self::build(state, Some(store), WalletOptions::system()?))
    }

    /// A wallet in memory. Dropping it loses everything, its money included.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn in_memory() -> Result<Self, WalletError> {
        Ok(Self::in_memory_with(WalletOptions::system()?))
    }

    /// A wallet in memory, with these options.
    #[must_use]
    pub fn in_memory_with(options: WalletOptions) -> Self {
        Self::build(WalletState::default(), None, options)
    }

    fn build(state: WalletState, store: Option<Store>, options: WalletOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                core: Mutex::new(Core { state, store, entropy: options.entropy }),
                running: Mutex::new(BTreeSet::new()),
                freed: tokio::sync::Notify::new(),
                transport: options.transport,
                clock: options.clock,
                attempts: options.attempts.max(1),
                first_backoff: options.first_backoff,
            }),
        }
    }

    /// Reads the state.
    pub fn with_state<R>(&self, look: impl FnOnce(&WalletState) -> R) -> R {
        look(&lock(&self.inner.core).state)
    }

    /// The time by the wallet's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Runs a step. Its changes are durable and applied when this returns.
    pub(crate) fn step<R>(
        &self,
        decide: impl FnOnce(&WalletState, Timestamp, &mut dyn Entropy) -> Result<(R, Vec<Change>), CoreError>,
    ) -> Result<R, WalletError> {
        let now = self.now();
        let mut guard = lock(&self.inner.core);
        let core = &mut *guard;
        let (result, changes) = decide(&core.state, now, core.entropy.as_mut())?;
        if !changes.is_empty() {
            if let Some(store) = &mut core.store {
                store.commit(&changes)?;
            }
            for change in changes {
                core.state.apply(change);
            }
        }
        Ok(result)
    }

    /// The balances, by currency.
    ///
    /// # Errors
    /// If records contradict each other.
    pub fn balance(&self) -> Result<Vec<Balance>, WalletError> {
        let now = self.now();
        Ok(self.with_state(|state| views::balances(state, now))?)
    }

    /// The history, newest first. Refreshes are left out unless requested.
    ///
    /// # Errors
    /// If records contradict each other.
    pub fn transactions(&self, with_refreshes: bool) -> Result<Vec<Transaction>, WalletError> {
        Ok(self.with_state(|state| views::transactions(state, with_refreshes))?)
    }

    /// The complete history, whose effects sum to the balance.
    ///
    /// # Errors
    /// If records contradict each other.
    pub fn history(&self, with_refreshes: bool) -> Result<History, WalletError> {
        let now = self.now();
        Ok(self.with_state(|state| views::history(state, with_refreshes, now))?)
    }

    /// One row of the history.
    ///
    /// # Errors
    /// If there is no such operation.
    pub fn transaction(&self, id: OpId) -> Result<Transaction, WalletError> {
        Ok(self.with_state(|state| views::transaction(state, state.operation(id)?))?)
    }

    /// All coins, with their secrets.
    #[must_use]
    pub fn coins(&self) -> Vec<Coin> {
        self.with_state(|state| state.coins.values().cloned().collect())
    }

    /// The open operations.
    #[must_use]
    pub fn pending(&self) -> Vec<PendingOperation> {
        self.with_state(|state| {
            state
                .open_operations()
                .map(|operation| {
                    let wait = views::wait(state, operation).ok();
                    let until = wait.as_ref().and_then(|wait| wait.until);
                    PendingOperation {
                        id: operation.id,
                        kind: operation.kind.name(),
                        exchange: operation.exchange.clone(),
                        message: operation.last_error.clone(),
                        waits_for: wait.map_or("not finished", |wait| wait.reason),
                        until: until.map(|(time, _)| time),
                        until_event: until.map(|(_, event)| event),
                        evidence: operation.dispute.map(|dispute| dispute.evidence),
                    }
                })
                .collect()
        })
    }

    /// False answers of exchanges, oldest first.
    #[must_use]
    pub fn evidence(&self) -> Vec<Evidence> {
        self.with_state(|state| state.evidence.values().cloned().collect())
    }

    /// Makes every disputed operation send its request again with the next run.
    ///
    /// # Errors
    /// If the wallet file fails.
    pub fn retry_disputed(&self) -> Result<(), WalletError> {
        self.step(|state, now, _| Ok(((), evidence::retry_disputed(state, now))))
    }

    /// Accepts, for the operations disputed because of this evidence, that operations took place which the
    /// exchange had refused. All other faults of a proof still count.
    ///
    /// # Errors
    /// If no operation is disputed because of it.
    pub fn accept_refused(&self, id: EvidenceId) -> Result<(), WalletError> {
        self.step(|state, now, _| Ok(((), evidence::accept_refused(state, id, now)?)))
    }

    /// All records, for a backup.
    #[must_use]
    pub fn export(&self) -> Vec<Change> {
        self.with_state(WalletState::to_changes)
    }

    /// Restores the records of a backup into an empty wallet.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if the wallet is not empty: two wallets cannot be merged.
    pub fn import(&self, changes: Vec<Change>) -> Result<(), WalletError> {
        self.step(|state, _, _| {
            if *state == WalletState::default() {
                Ok(((), changes))
            } else {
                let reason = "a backup can only be restored into a new wallet; choose another --wallet file";
                Err(bad_input("wallet", reason))
            }
        })
    }
}
