//! The durable ledger as services use it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use batzen_engine::{Lane, LaneOptions, Stage, SubmitError};
use batzen_ledger::machine::read::{
    SearchError, account_balances, account_transfers, change_events, query_transfers, read_transfers,
};
use batzen_ledger::{
    Account, AccountBalance, AccountFilter, Answer, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter,
    CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError, QueryFilter, SEARCH_MAX,
    Transfer,
};
use batzen_metrics::Page;
use batzen_protocol::Timestamp;
use batzen_service::storage::StoreConfig;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, StoreError, StoreStats};
use batzen_tables::ledger::ALL;
use tokio::sync::Semaphore;

use crate::store::joint::{Joint, LedgerRules};
use crate::store::log::{Log, LogReader, SnapshotInspection};
use crate::store::machine::{
    CreateAccounts, CreateTransfers, DurableMachine, FindCursor, LedgerSummary, LocateTransfers,
    LookupAccounts, QueryAccounts, TypedRequest, ledger_error,
};
use crate::store::metrics::{Kind, LedgerMetrics};
use crate::store::recovery::{self, VerifyReport};
use crate::store::snapshot::{SnapshotOptions, SnapshotThread};
use crate::store::walk::RecoveryError;

/// Limits of a durable ledger.
#[derive(Clone, Copy, Debug)]
pub struct DurableOptions {
    /// Limits of the lane.
    pub lane: LaneOptions,
    /// Concurrent reads of the log; each takes a thread.
    pub readers_max: usize,
    /// Reads of the log that may wait.
    pub readers_waiting_max: usize,
    /// Options for snapshots.
    pub snapshots: SnapshotOptions,
}

impl Default for DurableOptions {
    fn default() -> Self {
        Self {
            lane: LaneOptions {
                queue_commands_max: 8_192,
                queue_events_max: 64 * BATCH_EVENTS_MAX,
                batch_commands_max: usize::MAX,
                batch_events_max: 4 * BATCH_EVENTS_MAX,
            },
            readers_max: 4,
            readers_waiting_max: 256,
            snapshots: SnapshotOptions::default(),
        }
    }
}

/// The state of a ledger and the size of its log.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The state of the ledger.
    pub state: LedgerSummary,
    /// Rows of the log.
    pub log_blocks: u64,
    /// Memory that the index of the log takes.
    pub log_memory_bytes: u64,
    /// The snapshot.
    pub snapshot: SnapshotInspection,
    /// The store that has the log.
    pub store: StoreStats,
}

/// A durable ledger in this process.
///
/// Must be used within a Tokio runtime: reads of the log run on its threads for blocking work.
pub struct DurableLedger {
    lane: Lane<LedgerRules>,
    snapshots: SnapshotThread,
    machine: Arc<tokio::sync::Mutex<DurableMachine>>,
    log: Arc<Log>,
    state: Arc<Mutex<LedgerSummary>>,
    readers: Arc<Semaphore>,
    readers_waiting: Semaphore,
    metrics: Arc<LedgerMetrics>,
}

impl DurableLedger {
    /// Opens the ledger in a place, or creates one, with the clock of this machine.
    ///
    /// # Errors
    /// When the store does not open, or the log is inconsistent.
    pub fn open(place: &StoreConfig, options: DurableOptions) -> Result<Self, RecoveryError> {
        Self::start(place.open(&batzen_service::storage::LEDGER, 1)?, system_clock, options)
    }

    /// Starts a ledger on a store that has the tables of [`batzen_tables::ledger::ALL`]. `clock` returns the
    /// time in nanoseconds since the epoch.
    ///
    /// # Errors
    /// When the log cannot be read or is inconsistent.
    pub fn start(
        store: Store,
        clock: impl Fn() -> u64 + Send + 'static,
        options: DurableOptions,
    ) -> Result<Self, RecoveryError> {
        let mut machine = DurableMachine::open_with(store, options.snapshots)?;
        let snapshots = machine.take_snapshots().expect("a new machine has its snapshots");
        let (log, state) = (Arc::clone(machine.log()), machine.published_state());
        let machine = Arc::new(tokio::sync::Mutex::new(machine));
        let metrics = Arc::<LedgerMetrics>::default();
        let rules = LedgerRules::new(Arc::clone(&machine), Arc::clone(&metrics), clock);
        // The rules have a finer clock of their own.
        let clock = Arc::new(|| Timestamp::ZERO);
        Ok(Self {
            lane: Lane::start(Arc::new(rules), log.store().clone(), clock, options.lane),
            snapshots: SnapshotThread::start(snapshots, Arc::clone(&log)),
            machine,
            log,
            state,
            readers: Arc::new(Semaphore::new(options.readers_max)),
            readers_waiting: Semaphore::new(options.readers_max + options.readers_waiting_max),
            metrics,
        })
    }

    /// Takes part in a commit of another service to the same store, as of `now` in nanoseconds since the
    /// epoch. Until that commit is done the ledger does nothing else. Not for async threads: it waits for a
    /// commit.
    ///
    /// # Errors
    /// When the work that is due now cannot be made durable.
    pub fn join(&self, now: u64) -> Result<Joint, StoreError> {
        Joint::begin(Arc::clone(&self.machine), Arc::clone(&self.metrics), now)
    }

    /// The store that has the log.
    pub fn store(&self) -> &Store {
        self.log.store()
    }

    /// Accepts no more requests, and returns when everything accepted is durable and answered and the store
    /// is closed. Later requests get [`LedgerError::Unknown`]. Not for async threads: it waits for a batch or
    /// two.
    ///
    /// # Errors
    /// When the store could not write its last checkpoint; nothing is lost.
    pub fn stop(&self) -> Result<(), StoreError> {
        if !self.lane.stop() {
            return Ok(());
        }
        self.snapshots.stop();
        self.log.store().close()
    }

    /// The state of the ledger, as of the last commit.
    ///
    /// # Panics
    /// Never: no code panics with the lock held.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        let state = *self.state.lock().expect("no code panics with the lock held");
        Inspection {
            snapshot: self.log.inspect_snapshot(),
            state,
            log_blocks: self.log.blocks(),
            log_memory_bytes: self.log.memory_bytes(),
            store: self.log.store().stats(),
        }
    }

    /// Executes the durable log again with all rules, while the ledger runs: see [`recovery::verify`]. Not
    /// for async threads: it takes seconds per million transfers.
    ///
    /// # Errors
    /// The first problem found.
    pub fn verify(&self) -> Result<VerifyReport, RecoveryError> {
        recovery::verify(self.log.store())
    }

    /// Copies the ledger, as it is durable now, into a new directory while it runs, and verifies the copy.
    /// The copy can be opened as a ledger. Not for async threads.
    ///
    /// # Errors
    /// When the directory holds a ledger, or a disk fails.
    pub fn backup(&self, directory: &Path) -> Result<VerifyReport, RecoveryError> {
        let store = Store::new(EmbeddedStore::open(directory, ALL, Options::default())?);
        recovery::copy(&self.log, &store)?;
        let report = recovery::verify(&store)?;
        store.close()?;
        Ok(report)
    }

    /// Writes `batzen_ledger_*` and the store's metrics.
    pub fn write_metrics(&self, page: &mut Page) {
        self.metrics.write(page);
        let lane = self.lane.metrics();
        page.gauge("batzen_ledger_queue_events", "Events waiting", lane.waiting());
        page.count("batzen_ledger_batches_failed_total", "Batches undone", lane.failed_batches());
        page.histogram("batzen_ledger_batch_events", "Events per batch", lane.batch_events());
        let [execute, commit] = [Stage::Execute, Stage::Commit].map(|stage| lane.stage_times(stage));
        page.histogram("batzen_ledger_execute_seconds", "Time to execute a batch", execute);
        page.histogram("batzen_ledger_commit_seconds", "Time to make a batch durable", commit);
        let Inspection { state, log_blocks, log_memory_bytes, snapshot, .. } = self.inspect();
        page.gauge("batzen_ledger_accounts", "Accounts", state.counts.accounts);
        page.gauge("batzen_ledger_transfers", "Transfers", state.counts.transfers);
        page.gauge("batzen_ledger_pendings", "Unresolved pending transfers", state.counts.pendings);
        page.gauge("batzen_ledger_burnt_ids", "Transfer ids refused permanently", state.counts.burnt);
        page.gauge("batzen_ledger_log_rows", "Rows of the log", log_blocks);
        page.gauge("batzen_ledger_snapshot_records", "Records that the snapshot has", snapshot.records);
        page.gauge("batzen_ledger_id_runs", "Runs of transfer ids on disk", snapshot.id_runs);
        page.gauge("batzen_ledger_id_disk_bytes", "Size of these runs", snapshot.id_disk_bytes);
        let memory = [
            ("accounts", state.memory.accounts),
            ("ids", state.memory.ids),
            ("pendings", state.memory.pendings),
            ("log", log_memory_bytes),
            ("id_filters", snapshot.filter_bytes),
        ];
        page.gauges("batzen_ledger_memory_bytes", "Memory used by the state", "part", memory);
        self.log.store().write_metrics(page, ALL);
    }

    async fn ask<R: TypedRequest>(
        &self,
        kind: Kind,
        events: usize,
        request: R,
    ) -> Result<R::Answer, LedgerError> {
        if events > BATCH_EVENTS_MAX {
            return Err(LedgerError::TooMuchData);
        }
        self.metrics.asked(kind);
        match self.lane.submit(request.into()).await {
            Ok(Ok(response)) => Ok(R::answer(response)),
            Ok(Err(error)) => Err(ledger_error(&error)),
            Err(SubmitError::Overloaded) => {
                self.metrics.busy.inc();
                Err(LedgerError::Busy("too many requests are waiting".to_owned()))
            }
            Err(SubmitError::Stopped) => Err(LedgerError::Unknown("the ledger stops".to_owned())),
            Err(SubmitError::Store(error)) => Err(ledger_error(&error)),
        }
    }

    /// Reads the log as it is durable now, on a thread for blocking work.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LogReader<'_>, &Log) -> Result<T, SearchError<StoreError>> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let Ok(_place) = self.readers_waiting.try_acquire() else {
            self.metrics.busy.inc();
            return Err(LedgerError::Busy("too many reads are waiting".to_owned()));
        };
        let turn = Arc::clone(&self.readers).acquire_owned().await.expect("it is never closed");
        let log = Arc::clone(&self.log);
        let read = tokio::task::spawn_blocking(move || {
            // Held until the thread is free, even if the caller has given up.
            let _turn = turn;
            work(&LogReader::new(&log), &log)
        });
        match read.await {
            Ok(result) => result.map_err(|error| match error {
                SearchError::History(error) => ledger_error(&error),
                SearchError::Unfinished(unfinished) => unfinished.into(),
            }),
            Err(error) => Err(LedgerError::Unknown(error.to_string())),
        }
    }
}

impl Drop for DurableLedger {
    /// Waits, so that the end of the process does not interrupt a commit.
    fn drop(&mut self) {
        self.lane.stop();
    }
}

/// The time of this machine in nanoseconds since the epoch. If it goes back, the ledger's time does not.
#[must_use]
pub fn system_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_nanos()).expect("before the year 2500"))
}

impl Ledger for DurableLedger {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        Box::pin(self.ask(Kind::CreateAccounts, events.len(), CreateAccounts(events)))
    }

    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(self.ask(Kind::CreateTransfers, events.len(), CreateTransfers(events)))
    }

    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>> {
        Box::pin(self.ask(Kind::LookupAccounts, ids.len(), LookupAccounts(ids)))
    }

    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move {
            let located = self.ask(Kind::LookupTransfers, ids.len(), LocateTransfers(ids)).await?;
            self.read(move |reader, _| Ok(read_transfers(reader, &located)?)).await
        })
    }

    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move {
            let Some(cursor) = self.ask(Kind::GetAccountTransfers, 0, FindCursor(filter)).await? else {
                return Ok(Vec::new());
            };
            self.read(move |reader, _| account_transfers(reader, &cursor, &filter, SEARCH_MAX)).await
        })
    }

    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>> {
        Box::pin(async move {
            let Some(cursor) = self.ask(Kind::GetAccountBalances, 0, FindCursor(filter)).await? else {
                return Ok(Vec::new());
            };
            self.read(move |reader, _| account_balances(reader, &cursor, &filter, SEARCH_MAX)).await
        })
    }

    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>> {
        Box::pin(async move { Ok(self.ask(Kind::QueryAccounts, 0, QueryAccounts(filter)).await??) })
    }

    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>> {
        // Everything acknowledged is in the log, so this request need not queue.
        self.metrics.asked(Kind::QueryTransfers);
        Box::pin(self.read(move |reader, _| query_transfers(reader, &filter, SEARCH_MAX)))
    }

    fn get_change_events(&self, filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>> {
        self.metrics.asked(Kind::GetChangeEvents);
        Box::pin(self.read(move |reader, log| Ok(change_events(reader, log, &filter)?)))
    }
}
