//! The ledger in a lane: the rules of its own, and its part in a batch of another service whose store has its
//! log. Its decisions become durable in the commit of the batch.
//!
//! The machine has one owner at a time, a [`Joint`]: from the first decision for a batch to the commit.

use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use batzen_engine::{Joined, Plan, Rules, WorkingSet};
use batzen_ledger::{Account, CreateAccountStatus, CreateResult, CreateTransferStatus, Transfer};
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, StoreError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::store::log::Batch;
use crate::store::machine::{DurableMachine, Request, Response};
use crate::store::metrics::{LedgerMetrics, Tally};

/// Time that the lane sleeps without requests before it looks for due work again, which a [`Joint`] may have
/// brought.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The rules of the ledger's own lane. They decide in memory, without rows.
pub(crate) struct LedgerRules {
    machine: Arc<Mutex<DurableMachine>>,
    metrics: Arc<LedgerMetrics>,
    state: SyncMutex<LaneState>,
}

/// The state of the lane's thread.
struct LaneState {
    /// In nanoseconds since the epoch.
    clock: Box<dyn Fn() -> u64 + Send>,
    /// The batch under way, or why it failed.
    batch: Option<Result<Joint, StoreError>>,
}

impl LedgerRules {
    pub(crate) fn new(
        machine: Arc<Mutex<DurableMachine>>,
        metrics: Arc<LedgerMetrics>,
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        let state = SyncMutex::new(LaneState { clock: Box::new(clock), batch: None });
        Self { machine, metrics, state }
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, now: u64) -> Result<Joint, StoreError> {
        Joint::begin(Arc::clone(&self.machine), Arc::clone(&self.metrics), now)
    }
}

impl Rules for LedgerRules {
    type Command = Request;
    type Answer = Response;
    /// The failure of the batch.
    type Refusal = StoreError;

    fn plan(&self, _: &Request, _: &mut Plan) {}

    fn execute(&self, _: &mut WorkingSet, request: &Request, _: Timestamp) -> Result<Response, StoreError> {
        let LaneState { clock, batch } = &mut *self.state();
        let joint = match batch.get_or_insert_with(|| self.begin(clock())) {
            Ok(joint) => joint,
            Err(error) => return Err(error.duplicate()),
        };
        let response = joint.execute(request);
        if let Err(error) = &response {
            *batch = Some(Err(error.duplicate()));
        }
        response
    }

    fn join<'a>(
        &'a self,
        _: &mut WorkingSet,
        _: &mut [Result<Response, StoreError>],
        _: Timestamp,
    ) -> Result<Option<Box<dyn Joined + 'a>>, StoreError> {
        let batch = self.state().batch.take().transpose()?;
        Ok(batch.map(|joint| Box::new(joint) as Box<dyn Joined>))
    }

    fn overtaken(&self) {
        panic!("another process writes the ledger's log");
    }

    fn events(&self, request: &Request) -> usize {
        request.events()
    }

    fn due_in(&self) -> Option<Duration> {
        let due = self.machine.blocking_lock().due_at();
        let left = due.map(|due| Duration::from_nanos(due.saturating_sub((self.state().clock)())));
        Some(left.map_or(IDLE_MAX, |left| left.min(IDLE_MAX)))
    }

    fn run_due(&self) -> Result<(), StoreError> {
        let now = (self.state().clock)();
        self.begin(now).map(drop)
    }
}

/// The ledger's part in a batch. Dropped without [`Joined::committed`], it has no effect.
pub struct Joint {
    machine: OwnedMutexGuard<DurableMachine>,
    metrics: Arc<LedgerMetrics>,
    now: u64,
    tally: Tally,
    batch: Option<Batch>,
    is_committed: bool,
}

impl Joint {
    /// Waits until no other batch has the machine, and does the work that is due.
    pub(crate) fn begin(
        machine: Arc<Mutex<DurableMachine>>,
        metrics: Arc<LedgerMetrics>,
        now: u64,
    ) -> Result<Self, StoreError> {
        let mut machine = machine.blocking_lock_owned();
        while machine.due_at().is_some_and(|due| due <= now) {
            machine.run_due(now);
            if let Err(error) = machine.commit() {
                machine.undo();
                return Err(error);
            }
        }
        Ok(Self { machine, metrics, now, tally: Tally::default(), batch: None, is_committed: false })
    }

    fn execute(&mut self, request: &Request) -> Result<Response, StoreError> {
        let response = self.machine.execute(request, self.now)?;
        self.tally.count(&response);
        Ok(response)
    }

    /// As [`Ledger::create_accounts`](batzen_ledger::Ledger::create_accounts), but not durable yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_accounts(
        &mut self,
        events: &[Account],
    ) -> Result<Vec<CreateResult<CreateAccountStatus>>, StoreError> {
        let results = self.machine.create_accounts(events, self.now)?;
        self.tally.count_accounts(&results);
        Ok(results)
    }

    /// As [`Ledger::create_transfers`](batzen_ledger::Ledger::create_transfers), but not durable yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_transfers(
        &mut self,
        events: &[Transfer],
    ) -> Result<Vec<CreateResult<CreateTransferStatus>>, StoreError> {
        let results = self.machine.create_transfers(events, self.now)?;
        self.tally.count_transfers(&results);
        Ok(results)
    }
}

impl Joined for Joint {
    fn changes(&mut self) -> ChangeSet {
        assert!(self.batch.is_none(), "changes() is called once");
        self.batch = self.machine.prepare();
        self.batch.as_mut().map(|batch| std::mem::take(&mut batch.changes)).unwrap_or_default()
    }

    fn committed(mut self: Box<Self>) {
        if let Some(batch) = self.batch.take() {
            self.machine.committed(batch);
        }
        self.is_committed = true;
        self.metrics.add(&self.tally);
    }
}

impl Drop for Joint {
    fn drop(&mut self) {
        if !self.is_committed {
            self.machine.undo();
        }
    }
}
