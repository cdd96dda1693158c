//! The state machine of a ledger: a pure function from a sequence of operations to state, results and a log
//! of records.
//!
//! The machine *decides* each event by the rules, which yields a record or a refusal, and *appends* the
//! record, which changes the state. The caller takes the records and stores them. Appending them to an empty
//! machine gives the same state ([`Machine::restore`]); deciding them again must give the same records
//! ([`Machine::replay`]).
//!
//! | file | content |
//! |---|---|
//! | `log` | records, and access to old ones |
//! | `chain` | batches and linked chains |
//! | `accounts`, `transfers`, `resolution`, `repetition` | the rules, in the order of precedence |
//! | `ids`, `pendings`, `digest` | parts of the state |
//! | `expiry` | release of expired transfers |
//! | `replay` | restoring and verifying from records |
//! | `read` | filters applied to accounts and records |
//! | `snapshot` | loading the state as of a record, and comparing it |

mod accounts;
mod chain;
mod digest;
mod expiry;
mod ids;
mod log;
mod pendings;
pub mod read;
mod repetition;
mod replay;
mod resolution;
mod snapshot;
mod transfers;

pub use accounts::{HeldAccount, MARK_EVERY};
pub use digest::Digest;
pub use ids::{IdHasher, IdStatus, RECORDS_MAX};
pub use log::{Balances, History, LogRecord, MemoryHistory, Movement, Side, kind_of};
pub use pendings::Pending;
pub use replay::Divergence;
pub(crate) use replay::Fault;
pub use snapshot::Summary;

use accounts::{AccountBefore, Accounts};
use ids::IdIndex;
use pendings::Pendings;

use crate::{
    Account, BATCH_EVENTS_MAX, ChangeKind, CreateAccountStatus, CreateResult, CreateTransferStatus, Transfer,
};

/// Upper bound of timestamps.
pub(crate) const TIMESTAMP_END: u64 = 1 << 63;

/// The time of a decision.
#[derive(Clone, Copy)]
struct EventTime {
    /// The event's own nanosecond.
    timestamp: u64,
    /// The timestamp of its operation.
    operation: u64,
    /// Whether the batch is imported.
    importing: bool,
}

/// The way to undo the last record.
#[allow(clippy::large_enum_variant, reason = "nearly all records are movements")]
enum Undo {
    Account,
    Burnt {
        hash: u64,
    },
    Movement {
        debit: AccountBefore,
        credit: AccountBefore,
        /// The hash of the transfer's id, unless it is an expiry.
        hash: Option<u64>,
        pending: PendingChange,
    },
}

/// The effect of a movement on the unresolved pending transfers.
enum PendingChange {
    None,
    Added(u128),
    Removed(Pending),
}

/// A state to return to.
#[derive(Clone, Debug)]
pub struct Mark {
    undo: u64,
    last_movement: u64,
    digest: Digest,
    counts: Counts,
}

/// Number of objects in a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accounts.
    pub accounts: u64,
    /// Transfers of all kinds.
    pub transfers: u64,
    /// Transfer ids refused for good.
    pub burnt: u64,
    /// Unresolved pending transfers.
    pub pendings: u64,
    /// Records of the log.
    pub records: u64,
}

/// Allocated memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBytes {
    /// Accounts, their index and their marks.
    pub accounts: u64,
    /// The index of transfer ids that are not forgotten.
    pub ids: u64,
    /// Unresolved pending transfers and their queue.
    pub pendings: u64,
}

/// The state machine. See the [module](self).
pub struct Machine {
    hasher: IdHasher,
    accounts: Accounts,
    ids: IdIndex,
    pendings: Pendings,
    /// The last timestamp given to anything.
    clock: u64,
    /// The timestamp of the last movement.
    last_movement: u64,
    counts: Counts,
    digest: Digest,
    /// Records that were not taken yet: the last ones of the log.
    fresh: Vec<LogRecord>,
    /// For every record since the last [`Machine::settle`].
    undo: Vec<Undo>,
    /// Number of records settled before those in `undo`.
    settled: u64,
}

impl Machine {
    /// An empty ledger. The key only protects the indexes against ids that are chosen to collide. Results do
    /// not depend on it.
    #[must_use]
    pub fn new(hash_key: &[u8; 16]) -> Self {
        Self {
            hasher: IdHasher::new(hash_key),
            accounts: Accounts::new(),
            ids: IdIndex::new(0),
            pendings: Pendings::new(),
            clock: 0,
            last_movement: 0,
            counts: Counts::default(),
            digest: Digest::default(),
            fresh: Vec::new(),
            undo: Vec::new(),
            settled: 0,
        }
    }

    /// The timestamp of an operation with `events` events at the time `now`, in nanoseconds since the epoch.
    /// Event `i` gets `timestamp - events + i + 1`. Timestamps never go back, even if the clock does.
    #[must_use]
    pub fn operation_timestamp(&self, now: u64, events: usize) -> u64 {
        let timestamp = now.max(self.clock + 1) + events as u64;
        assert!(timestamp < TIMESTAMP_END, "time is up");
        timestamp
    }

    /// Creates accounts, as one operation of this timestamp (see [`Machine::operation_timestamp`]).
    ///
    /// # Errors
    /// If the history cannot be read. Part of the batch may have been executed: go back to a [`Mark`].
    ///
    /// # Panics
    /// If there are more than [`BATCH_EVENTS_MAX`] events, or an invariant is broken.
    pub fn create_accounts<H: History>(
        &mut self,
        history: &H,
        events: &[Account],
        timestamp: u64,
    ) -> Result<Vec<CreateResult<CreateAccountStatus>>, H::Error> {
        self.execute(history, events, timestamp)
    }

    /// Creates transfers, as one operation of this timestamp (see [`Machine::operation_timestamp`]).
    ///
    /// # Errors
    /// As [`Machine::create_accounts`].
    ///
    /// # Panics
    /// As [`Machine::create_accounts`].
    pub fn create_transfers<H: History>(
        &mut self,
        history: &H,
        events: &[Transfer],
        timestamp: u64,
    ) -> Result<Vec<CreateResult<CreateTransferStatus>>, H::Error> {
        self.execute(history, events, timestamp)
    }

    /// Begins an operation with this many events. Returns the timestamp of the first.
    fn begin(&mut self, operation: u64, events: usize) -> u64 {
        assert!(events <= BATCH_EVENTS_MAX, "a batch keeps to the limit");
        assert!(operation < TIMESTAMP_END, "time is up");
        let start = operation.checked_sub(events as u64).expect("an operation has room for its events") + 1;
        assert!(start > self.clock, "timestamps increase");
        self.clock = operation;
        start
    }

    /// Applies a fresh record.
    fn append(&mut self, record: LogRecord) {
        let undo = self.apply(&record);
        self.undo.push(undo);
        self.fresh.push(record);
    }

    /// Changes the state according to a record.
    fn apply(&mut self, record: &LogRecord) -> Undo {
        let number = self.counts.records;
        self.counts.records += 1;
        self.digest.add(record);
        match record {
            LogRecord::Account(account) => {
                assert!(self.accounts.last_timestamp() < account.timestamp, "timestamps increase");
                self.accounts.insert(*account, &self.hasher);
                self.counts.accounts += 1;
                Undo::Account
            }
            LogRecord::Movement(movement) => self.apply_movement(movement, number),
            LogRecord::Burnt { id, .. } => {
                let hash = self.hasher.hash(*id);
                self.ids.insert(hash, number, IdStatus::Burnt);
                self.counts.burnt += 1;
                Undo::Burnt { hash }
            }
        }
    }

    fn apply_movement(&mut self, movement: &Movement, number: u64) -> Undo {
        let transfer = &movement.transfer;
        assert!(self.last_movement < movement.timestamp, "timestamps increase");
        self.last_movement = movement.timestamp;
        let debit = self.accounts.apply(&movement.debit, movement.timestamp, number);
        let credit = self.accounts.apply(&movement.credit, movement.timestamp, number);
        self.accounts.assert_balanced(debit.number);
        assert!(
            movement.keeps_limits(),
            "transfer {} breaks the limit of an account, {} or {}",
            transfer.id,
            transfer.debit_account_id,
            transfer.credit_account_id
        );

        let (pending, status) = match movement.kind {
            ChangeKind::SinglePhase => (PendingChange::None, Some(IdStatus::Plain)),
            ChangeKind::TwoPhasePending => {
                let pending = Pending::new(transfer, debit.number, credit.number, number);
                self.pendings.insert(pending, &self.hasher);
                self.counts.pendings += 1;
                (PendingChange::Added(pending.id), Some(IdStatus::Pending))
            }
            ChangeKind::TwoPhasePosted => {
                (self.resolve(transfer.pending_id, IdStatus::Posted), Some(IdStatus::Plain))
            }
            ChangeKind::TwoPhaseVoided => {
                (self.resolve(transfer.pending_id, IdStatus::Voided), Some(IdStatus::Plain))
            }
            ChangeKind::TwoPhaseExpired => (self.resolve(transfer.id, IdStatus::Expired), None),
        };
        let hash = status.map(|status| {
            let hash = self.hasher.hash(transfer.id);
            self.ids.insert(hash, number, status);
            self.counts.transfers += 1;
            hash
        });
        Undo::Movement { debit, credit, hash, pending }
    }

    fn resolve(&mut self, id: u128, status: IdStatus) -> PendingChange {
        let pending = self.pendings.remove(id, &self.hasher);
        let before = self.ids.set_status(self.hasher.hash(id), pending.record, status);
        assert!(
            before.is_none_or(|before| before == IdStatus::Pending),
            "a pending transfer is resolved once"
        );
        self.counts.pendings -= 1;
        PendingChange::Removed(pending)
    }

    /// Marks the current state for [`Machine::rollback`]. Valid until it is settled.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            undo: self.settled + self.undo.len() as u64,
            last_movement: self.last_movement,
            digest: self.digest,
            counts: self.counts,
        }
    }

    /// Undoes everything since the mark, except that timestamps stay used.
    ///
    /// # Panics
    /// If the mark was settled meanwhile.
    pub fn rollback(&mut self, mark: &Mark) {
        let keep = mark.undo.checked_sub(self.settled).expect("what is settled stays");
        while self.undo.len() as u64 > keep {
            let undo = self.undo.pop().expect("it is longer");
            self.counts.records -= 1;
            let number = self.counts.records;
            // Records that were already taken are dropped by the caller.
            self.fresh.pop();
            match undo {
                Undo::Account => self.accounts.remove_last(&self.hasher),
                Undo::Burnt { hash } => self.ids.remove(hash, number),
                Undo::Movement { debit, credit, hash, pending } => {
                    match pending {
                        PendingChange::None => {}
                        PendingChange::Added(id) => {
                            self.pendings.remove(id, &self.hasher);
                        }
                        PendingChange::Removed(pending) => {
                            let hash = self.hasher.hash(pending.id);
                            self.ids.set_status(hash, pending.record, IdStatus::Pending);
                            self.pendings.insert(pending, &self.hasher);
                        }
                    }
                    if let Some(hash) = hash {
                        self.ids.remove(hash, number);
                    }
                    self.accounts.undo(&credit);
                    self.accounts.undo(&debit);
                }
            }
        }
        self.last_movement = mark.last_movement;
        self.digest = mark.digest;
        self.counts = mark.counts;
    }

    /// Takes the records since the last call, to be stored. Until they are settled they can still be undone.
    pub fn take_records(&mut self) -> Vec<LogRecord> {
        std::mem::take(&mut self.fresh)
    }

    /// Declares everything before the mark durable: it can no longer be undone.
    pub fn settle(&mut self, mark: &Mark) {
        let settled = mark.undo.checked_sub(self.settled).expect("marks are settled in order");
        self.undo.drain(..usize::try_from(settled).expect("undo is in memory"));
        self.settled = mark.undo;
    }

    /// A record, fresh or stored.
    fn record<H: History>(&self, history: &H, number: u64) -> Result<LogRecord, H::Error> {
        let stored = self.counts.records - self.fresh.len() as u64;
        match number.checked_sub(stored) {
            None => history.record(number),
            Some(at) => Ok(self.fresh[usize::try_from(at).expect("fresh records are in memory")]),
        }
    }

    /// Returns whether a movement has this timestamp.
    fn has_movement_at<H: History>(&self, history: &H, timestamp: u64) -> Result<bool, H::Error> {
        if timestamp > self.last_movement {
            return Ok(false);
        }
        let is_it = |record: &LogRecord| matches!(record, LogRecord::Movement(m) if m.timestamp == timestamp);
        if self.fresh.iter().any(is_it) {
            return Ok(true);
        }
        let number = history.seek(timestamp)?;
        Ok(number < history.len() && is_it(&history.record(number)?))
    }

    /// Number of objects in the machine.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The last timestamp given to anything.
    #[must_use]
    pub const fn clock(&self) -> u64 {
        self.clock
    }

    /// Advances the clock to its value before a restart: clients have seen timestamps later than the last
    /// record.
    pub fn advance_clock(&mut self, timestamp: u64) {
        self.clock = self.clock.max(timestamp);
    }

    /// The digest of all records: machines with equal digests have the same history.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Allocated memory, approximately.
    #[must_use]
    pub fn memory(&self) -> MemoryBytes {
        MemoryBytes {
            accounts: self.accounts.bytes(),
            ids: self.ids.bytes(),
            pendings: self.pendings.bytes(),
        }
    }
}
