//! The state machine with its log: requests in, durable batches out. Deterministic: it is told the time.

use std::sync::{Arc, Mutex};

use batzen_engine::LaneMachine;
use batzen_ledger::machine::read::AccountCursor;
use batzen_ledger::machine::{Counts, Digest, Machine, Mark, MemoryBytes};
use batzen_ledger::{
    Account, AccountFilter, BATCH_EVENTS_MAX, CreateAccountStatus, CreateResult, CreateTransferStatus,
    LedgerError, QueryFilter, Transfer,
};
use batzen_store::{CommitOutcome, Store, StoreError};

use crate::log::{Batch, Log, LogReader};
use crate::recovery::{self, RecoveryError};

/// What the machine is asked.
#[derive(Clone, Debug)]
pub enum Request {
    /// Create accounts.
    CreateAccounts(Vec<Account>),
    /// Create transfers.
    CreateTransfers(Vec<Transfer>),
    /// Accounts by id.
    LookupAccounts(Vec<u128>),
    /// Where transfers may be, by id.
    LocateTransfers(Vec<u128>),
    /// Where an account's movements are.
    AccountCursor(AccountFilter),
    /// Accounts by their fields.
    QueryAccounts(QueryFilter),
    /// What the ledger holds.
    Inspect,
}

/// What the machine answers.
#[derive(Clone, Debug)]
pub enum Response {
    /// One result per account.
    Accounts(Vec<CreateResult<CreateAccountStatus>>),
    /// One result per transfer.
    Transfers(Vec<CreateResult<CreateTransferStatus>>),
    /// Accounts found.
    Found(Vec<Account>),
    /// Candidates of transfers found.
    Located(Vec<(u128, Vec<u64>)>),
    /// Where to read, if there is anything.
    Cursor(Option<AccountCursor>),
    /// What the ledger holds.
    State(State),
}

/// What the ledger holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// How many of what.
    pub counts: Counts,
    /// The digest of the log.
    pub digest: Digest,
    /// The last timestamp given, in nanoseconds since the epoch.
    pub clock: u64,
    /// Memory taken by the machine.
    pub memory: MemoryBytes,
}

/// The machine with its log.
pub struct DurableMachine {
    machine: Machine,
    log: Arc<Log>,
    /// The durable state.
    durable: Mark,
    /// The same for others to see.
    shown: Arc<Mutex<State>>,
}

impl DurableMachine {
    /// Opens the ledger in a store that has the tables of [`batzen_tables::ledger::ALL`].
    ///
    /// # Errors
    /// When the log cannot be read or does not add up.
    pub fn open(store: Store) -> Result<Self, RecoveryError> {
        let (machine, log) = recovery::open(store)?;
        let durable = machine.mark();
        let shown = Arc::new(Mutex::new(state_of(&machine)));
        Ok(Self { machine, log: Arc::new(log), durable, shown })
    }

    /// What the ledger holds after each commit, for metrics.
    pub(crate) fn shown(&self) -> Arc<Mutex<State>> {
        Arc::clone(&self.shown)
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

    /// The records since the last commit as rows; none if there are none.
    pub(crate) fn prepare(&mut self) -> Option<Batch> {
        let records = self.machine.take_records();
        let (clock, digest) = (self.machine.clock(), self.machine.digest());
        (!records.is_empty()).then(|| self.log.encode(&records, clock, digest))
    }

    /// Takes note that the rows are durable.
    pub(crate) fn committed(&mut self, batch: Batch) {
        self.log.publish(batch);
        self.durable = self.machine.mark();
        self.machine.settle(&self.durable);
        *self.shown.lock().expect("nobody panics with the lock held") = state_of(&self.machine);
    }

    pub(crate) fn run(&mut self, request: Request, now: u64) -> Result<Response, StoreError> {
        let history = LogReader::new(&self.log);
        let machine = &mut self.machine;
        Ok(match request {
            Request::CreateAccounts(events) => {
                let timestamp = machine.operation_timestamp(now, events.len());
                Response::Accounts(machine.create_accounts(&history, &events, timestamp)?)
            }
            Request::CreateTransfers(events) => {
                let timestamp = machine.operation_timestamp(now, events.len());
                Response::Transfers(machine.create_transfers(&history, &events, timestamp)?)
            }
            Request::LookupAccounts(ids) => Response::Found(machine.lookup_accounts(&ids)),
            Request::LocateTransfers(ids) => Response::Located(machine.locate_transfers(&ids)),
            Request::AccountCursor(filter) => Response::Cursor(machine.account_cursor(&filter)),
            Request::QueryAccounts(filter) => Response::Found(machine.query_accounts(&filter)),
            Request::Inspect => Response::State(state_of(machine)),
        })
    }
}

fn state_of(machine: &Machine) -> State {
    State {
        counts: machine.counts(),
        digest: machine.digest(),
        clock: machine.clock(),
        memory: machine.memory(),
    }
}

/// What a failed store means to a client.
pub(crate) fn ledger_error(error: &StoreError) -> LedgerError {
    match error {
        StoreError::Full(_) => LedgerError::Busy("the disk is full".to_owned()),
        error => LedgerError::Unknown(error.to_string()),
    }
}

impl LaneMachine for DurableMachine {
    type Request = Request;
    type Answer = Response;
    type Error = LedgerError;

    fn events(request: &Request) -> usize {
        let events = match request {
            Request::CreateAccounts(events) => events.len(),
            Request::CreateTransfers(events) => events.len(),
            Request::LookupAccounts(ids) | Request::LocateTransfers(ids) => ids.len(),
            _ => 0,
        };
        events.max(1)
    }

    fn due_at(&self) -> Option<u64> {
        self.machine.next_expiry()
    }

    fn pulse(&mut self, now: u64) -> Result<(), LedgerError> {
        let timestamp = self.machine.operation_timestamp(now, BATCH_EVENTS_MAX);
        self.machine.pulse(timestamp);
        Ok(())
    }

    fn execute(&mut self, request: Request, now: u64) -> Result<Response, LedgerError> {
        self.run(request, now).map_err(|error| {
            tracing::error!(%error, "batch undone: the log could not be read");
            ledger_error(&error)
        })
    }

    fn commit(&mut self) -> Result<(), LedgerError> {
        let Some(mut batch) = self.prepare() else { return Ok(()) };
        let changes = std::mem::take(&mut batch.changes);
        match self.log.store().commit(&changes) {
            Ok(CommitOutcome::Committed) => {}
            Ok(CommitOutcome::Conflict(_)) => panic!("somebody else writes the ledger's log"),
            Err(error) => {
                tracing::error!(%error, "batch undone: the log could not be written");
                return Err(ledger_error(&error));
            }
        }
        self.committed(batch);
        Ok(())
    }

    fn undo(&mut self) {
        self.machine.rollback(&self.durable);
    }
}
