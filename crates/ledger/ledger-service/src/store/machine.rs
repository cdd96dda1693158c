//! The state machine with its log: requests in, durable batches out. Deterministic: the time is an argument.

use std::sync::{Arc, Mutex};

use batzen_ledger::machine::read::{AccountCursor, Located};
use batzen_ledger::machine::{Counts, Digest, Machine, Mark, MemoryBytes};
use batzen_ledger::{
    Account, AccountFilter, BATCH_EVENTS_MAX, CreateAccountStatus, CreateResult, CreateTransferStatus,
    LedgerError, QueryFilter, SEARCH_MAX, Transfer, Unfinished,
};
use batzen_store::{CommitOutcome, Store, StoreError};

use crate::store::log::{Batch, Log, LogReader};
use crate::store::recovery::{self, Opened};
use crate::store::snapshot::{SnapshotOptions, Snapshots};
use crate::store::walk::RecoveryError;

/// A request to the machine.
#[derive(Clone, Debug)]
pub enum Request {
    /// Creates accounts.
    CreateAccounts(CreateAccounts),
    /// Creates transfers.
    CreateTransfers(CreateTransfers),
    /// Finds accounts by id.
    LookupAccounts(LookupAccounts),
    /// Finds by id where transfers may be in the log.
    LocateTransfers(LocateTransfers),
    /// Finds where the transfers of an account are in the log.
    FindCursor(FindCursor),
    /// Finds accounts by their fields.
    QueryAccounts(QueryAccounts),
}

impl Request {
    /// Its size in events, of which queue and batches of a ledger have a limited number.
    pub(crate) fn events(&self) -> usize {
        let events = match self {
            Self::CreateAccounts(CreateAccounts(events)) => events.len(),
            Self::CreateTransfers(CreateTransfers(events)) => events.len(),
            Self::LookupAccounts(LookupAccounts(ids)) | Self::LocateTransfers(LocateTransfers(ids)) => {
                ids.len()
            }
            Self::FindCursor(_) | Self::QueryAccounts(_) => 0,
        };
        events.max(1)
    }
}

/// The answer of the machine to a [`Request`].
#[derive(Clone, Debug)]
pub enum Response {
    /// One result per account.
    CreateAccounts(Vec<CreateResult<CreateAccountStatus>>),
    /// One result per transfer.
    CreateTransfers(Vec<CreateResult<CreateTransferStatus>>),
    /// The accounts found.
    LookupAccounts(Vec<Account>),
    /// Each id that may be known, with the places in the log to look at.
    LocateTransfers(Vec<Located>),
    /// Where to read, if there is anything.
    FindCursor(Option<AccountCursor>),
    /// The accounts found, or where the search has reached its limit.
    QueryAccounts(Result<Vec<Account>, Unfinished>),
}

/// A request together with the type of its answer, so that a caller gets exactly that answer.
pub trait TypedRequest: Into<Request> {
    /// The answer of the machine.
    type Answer;

    /// Extracts the answer from the machine's response.
    ///
    /// # Panics
    /// If it is the response to another request, which is a bug in the machine.
    fn answer(response: Response) -> Self::Answer;
}

macro_rules! typed_requests {
    ($($(#[$doc:meta])* $name:ident($content:ty) -> $answer:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub $content);

        impl From<$name> for Request {
            fn from(request: $name) -> Self {
                Self::$name(request)
            }
        }

        impl TypedRequest for $name {
            type Answer = $answer;

            fn answer(response: Response) -> $answer {
                match response {
                    Response::$name(answer) => answer,
                    other => panic!("the machine answered {} with {other:?}", stringify!($name)),
                }
            }
        }
    )*};
}

typed_requests! {
    /// Creates accounts.
    CreateAccounts(Vec<Account>) -> Vec<CreateResult<CreateAccountStatus>>;
    /// Creates transfers.
    CreateTransfers(Vec<Transfer>) -> Vec<CreateResult<CreateTransferStatus>>;
    /// Finds accounts by id.
    LookupAccounts(Vec<u128>) -> Vec<Account>;
    /// Finds by id where transfers may be in the log.
    LocateTransfers(Vec<u128>) -> Vec<Located>;
    /// Finds where the transfers of an account are in the log.
    FindCursor(AccountFilter) -> Option<AccountCursor>;
    /// Finds accounts by their fields.
    QueryAccounts(QueryFilter) -> Result<Vec<Account>, Unfinished>;
}

/// The state of a ledger, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerSummary {
    /// Numbers of accounts, transfers and records.
    pub counts: Counts,
    /// The digest of the log.
    pub digest: Digest,
    /// The latest timestamp assigned, in nanoseconds since the epoch.
    pub clock: u64,
    /// Memory taken by the machine.
    pub memory: MemoryBytes,
}

/// The machine with its log.
pub struct DurableMachine {
    machine: Machine,
    log: Arc<Log>,
    /// The durable state, to return to.
    durable: Mark,
    /// The durable state in numbers, for metrics.
    published: Arc<Mutex<LedgerSummary>>,
    options: SnapshotOptions,
    /// Takes snapshots, unless a thread has it.
    snapshots: Option<Snapshots>,
    /// The records whose ids are forgotten once a snapshot has them.
    frozen: Option<u64>,
}

/// The size of an account or pending transfer in a snapshot, in bytes, about.
const SNAPSHOT_BYTES_EACH: u64 = 64;

impl DurableMachine {
    /// Opens the ledger in a store that has the tables of [`batzen_tables::ledger::ALL`].
    ///
    /// # Errors
    /// When the log cannot be read or is inconsistent.
    pub fn open(store: Store) -> Result<Self, RecoveryError> {
        Self::open_with(store, SnapshotOptions::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    /// As [`DurableMachine::open`].
    pub fn open_with(store: Store, options: SnapshotOptions) -> Result<Self, RecoveryError> {
        let Opened { machine, log, snapshots, frozen } = recovery::open(&store, options)?;
        let durable = machine.mark();
        let published = Arc::new(Mutex::new(summary_of(&machine)));
        let mut opened =
            Self { machine, log, durable, published, options, snapshots: Some(snapshots), frozen };
        opened.turn_snapshots();
        Ok(opened)
    }

    /// Does some of the work of snapshots, which is due between batches. Returns whether there may be more. If
    /// it fails, it is done later: nobody depends on it.
    ///
    /// # Errors
    /// When the store fails.
    pub fn maintain(&mut self) -> Result<bool, StoreError> {
        self.snapshots.as_mut().map_or(Ok(false), Snapshots::step)
    }

    /// Hands the work of snapshots to a thread.
    pub(crate) fn take_snapshots(&mut self) -> Option<Snapshots> {
        self.snapshots.take()
    }

    /// Forgets the ids that the snapshot has. Requests the next snapshot if it is due.
    fn turn_snapshots(&mut self) {
        if self.frozen.is_some_and(|frozen| frozen <= self.log.snapshot_records()) {
            self.machine.forget_ids();
            self.frozen = None;
        }
        let counts = self.machine.counts();
        let state = (counts.accounts + counts.pendings) * SNAPSHOT_BYTES_EACH;
        if self.frozen.is_none() && self.log.weight_bytes() >= self.options.log_bytes(state) {
            self.machine.freeze_ids();
            self.log.request_snapshot(counts.records);
            self.frozen = Some(counts.records);
        }
    }

    /// The state as of the last commit. Updated with each commit.
    pub(crate) fn published_state(&self) -> Arc<Mutex<LedgerSummary>> {
        Arc::clone(&self.published)
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// The machine, for checks.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The records since the last commit as rows. None if there are no records.
    pub(crate) fn prepare(&mut self) -> Option<Batch> {
        let records = self.machine.take_records();
        let (clock, digest) = (self.machine.clock(), self.machine.digest());
        (!records.is_empty()).then(|| self.log.encode(&records, clock, digest))
    }

    /// Records that the rows are durable.
    pub(crate) fn committed(&mut self, batch: Batch) {
        self.log.publish(batch);
        self.durable = self.machine.mark();
        self.machine.settle(&self.durable);
        self.turn_snapshots();
        *self.published.lock().expect("no code panics with the lock held") = summary_of(&self.machine);
    }

    /// Creates accounts in memory, as of `now` in nanoseconds since the epoch.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_accounts(
        &mut self,
        events: &[Account],
        now: u64,
    ) -> Result<Vec<CreateResult<CreateAccountStatus>>, StoreError> {
        let timestamp = self.machine.operation_timestamp(now, events.len());
        self.machine.create_accounts(&LogReader::new(&self.log), events, timestamp)
    }

    /// Creates transfers in memory, as of `now` in nanoseconds since the epoch.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_transfers(
        &mut self,
        events: &[Transfer],
        now: u64,
    ) -> Result<Vec<CreateResult<CreateTransferStatus>>, StoreError> {
        let timestamp = self.machine.operation_timestamp(now, events.len());
        self.machine.create_transfers(&LogReader::new(&self.log), events, timestamp)
    }

    /// Executes a request in memory, as of `now` in nanoseconds since the epoch.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn execute(&mut self, request: &Request, now: u64) -> Result<Response, StoreError> {
        let machine = &self.machine;
        Ok(match request {
            Request::CreateAccounts(CreateAccounts(events)) => {
                Response::CreateAccounts(self.create_accounts(events, now)?)
            }
            Request::CreateTransfers(CreateTransfers(events)) => {
                Response::CreateTransfers(self.create_transfers(events, now)?)
            }
            Request::LookupAccounts(LookupAccounts(ids)) => {
                Response::LookupAccounts(machine.lookup_accounts(ids))
            }
            Request::LocateTransfers(LocateTransfers(ids)) => {
                Response::LocateTransfers(machine.locate_transfers(ids))
            }
            Request::FindCursor(FindCursor(filter)) => Response::FindCursor(machine.account_cursor(filter)),
            Request::QueryAccounts(QueryAccounts(filter)) => {
                Response::QueryAccounts(machine.query_accounts(filter, SEARCH_MAX))
            }
        })
    }

    /// When pending transfers expire next, in nanoseconds since the epoch.
    #[must_use]
    pub fn due_at(&self) -> Option<u64> {
        self.machine.next_expiry()
    }

    /// Expires pending transfers in memory, as many as one batch may have.
    pub fn run_due(&mut self, now: u64) {
        let timestamp = self.machine.operation_timestamp(now, BATCH_EVENTS_MAX);
        self.machine.pulse(timestamp);
    }

    /// Makes everything since the last commit durable.
    ///
    /// # Errors
    /// When none of it is durable: the batch must be undone.
    ///
    /// # Panics
    /// When another process writes the log.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        let Some(mut batch) = self.prepare() else { return Ok(()) };
        let changes = std::mem::take(&mut batch.changes);
        match self.log.store().commit(&changes)? {
            CommitOutcome::Committed => self.committed(batch),
            CommitOutcome::Conflict(_) => panic!("another process writes the ledger's log"),
        }
        Ok(())
    }

    /// Undoes everything since the last commit.
    pub fn undo(&mut self) {
        self.machine.rollback(&self.durable);
    }
}

fn summary_of(machine: &Machine) -> LedgerSummary {
    LedgerSummary {
        counts: machine.counts(),
        digest: machine.digest(),
        clock: machine.clock(),
        memory: machine.memory(),
    }
}

/// The error that a client gets when the store fails.
pub(crate) fn ledger_error(error: &StoreError) -> LedgerError {
    match error {
        StoreError::Full(_) => LedgerError::Busy("the disk is full".to_owned()),
        error => LedgerError::Unknown(error.to_string()),
    }
}
