//! A ledger whose log shares a store with the rows of another service. Its decisions for that service become
//! durable in the service's own commit.
//!
//! The machine has one owner at a time: its own lane, from the first request of a batch to the commit, or a
//! [`Joint`].

use std::sync::Arc;

use batzen_engine::LaneMachine;
use batzen_ledger::{
    Account, CreateAccountStatus, CreateResult, CreateTransferStatus, LedgerError, Transfer,
};
use batzen_store::{ChangeSet, StoreError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::store::durable::DurableLedger;
use crate::store::log::Batch;
use crate::store::machine::{DurableMachine, Request, Response};

/// The machine for its own lane, which holds it for as long as a batch takes.
pub(crate) struct SharedMachine {
    machine: Arc<Mutex<DurableMachine>>,
    held: Option<OwnedMutexGuard<DurableMachine>>,
}

impl SharedMachine {
    pub(crate) fn new(machine: Arc<Mutex<DurableMachine>>) -> Self {
        Self { machine, held: None }
    }

    fn hold(&mut self) -> &mut DurableMachine {
        self.held.get_or_insert_with(|| Arc::clone(&self.machine).blocking_lock_owned())
    }
}

impl LaneMachine for SharedMachine {
    type Request = Request;
    type Answer = Response;
    type Error = LedgerError;

    fn events(request: &Request) -> usize {
        DurableMachine::events(request)
    }

    fn due_at(&self) -> Option<u64> {
        match &self.held {
            Some(machine) => machine.due_at(),
            None => self.machine.blocking_lock().due_at(),
        }
    }

    fn run_due(&mut self, now: u64) -> Result<(), LedgerError> {
        self.hold().run_due(now)
    }

    fn execute(&mut self, request: Request, now: u64) -> Result<Response, LedgerError> {
        self.hold().execute(request, now)
    }

    fn commit(&mut self) -> Result<(), LedgerError> {
        let committed = self.held.as_mut().map_or(Ok(()), |machine| machine.commit());
        if committed.is_ok() {
            self.held = None;
        }
        committed
    }

    fn undo(&mut self) {
        if let Some(mut machine) = self.held.take() {
            machine.undo();
        }
    }
}

/// The ledger's part in a batch of another service. Dropped without [`Joint::committed`], it has no effect.
pub struct Joint<'a> {
    ledger: &'a DurableLedger,
    machine: OwnedMutexGuard<DurableMachine>,
    now: u64,
    accounts: Vec<CreateResult<CreateAccountStatus>>,
    transfers: Vec<CreateResult<CreateTransferStatus>>,
    batch: Option<Batch>,
    is_committed: bool,
}

impl<'a> Joint<'a> {
    /// Waits until the ledger's own batch is durable, and does the work that is due.
    pub(crate) fn begin(
        ledger: &'a DurableLedger,
        machine: Arc<Mutex<DurableMachine>>,
        now: u64,
    ) -> Result<Self, LedgerError> {
        let mut machine = machine.blocking_lock_owned();
        while machine.due_at().is_some_and(|due| due <= now) {
            if let Err(error) = machine.run_due(now).and_then(|()| machine.commit()) {
                machine.undo();
                return Err(error);
            }
        }
        let (accounts, transfers) = (Vec::new(), Vec::new());
        Ok(Self { ledger, machine, now, accounts, transfers, batch: None, is_committed: false })
    }

    /// As [`Ledger::create_accounts`](batzen_ledger::Ledger::create_accounts), but not durable yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_accounts(
        &mut self,
        events: Vec<Account>,
    ) -> Result<Vec<CreateResult<CreateAccountStatus>>, StoreError> {
        let results = self.machine.create_accounts(&events, self.now)?;
        self.accounts.extend_from_slice(&results);
        Ok(results)
    }

    /// As [`Ledger::create_transfers`](batzen_ledger::Ledger::create_transfers), but not durable yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn create_transfers(
        &mut self,
        events: Vec<Transfer>,
    ) -> Result<Vec<CreateResult<CreateTransferStatus>>, StoreError> {
        let results = self.machine.create_transfers(&events, self.now)?;
        self.transfers.extend_from_slice(&results);
        Ok(results)
    }

    /// The rows to commit together with those of the service. Nothing may be created after this call.
    pub fn changes(&mut self) -> ChangeSet {
        assert!(self.batch.is_none(), "changes() is called once");
        self.batch = self.machine.prepare();
        self.batch.as_mut().map(|batch| std::mem::take(&mut batch.changes)).unwrap_or_default()
    }

    /// Records that the rows are durable.
    pub fn committed(mut self) {
        if let Some(batch) = self.batch.take() {
            self.machine.committed(batch);
        }
        self.is_committed = true;
        self.ledger.count(&self.accounts, &self.transfers);
    }
}

impl Drop for Joint<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.machine.undo();
        }
    }
}
