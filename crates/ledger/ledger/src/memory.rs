//! A ledger in memory: the machine behind a lock. Nothing is durable. For tests and models of programs that
//! use a ledger.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::read::{
    SearchError, account_balances, account_transfers, change_events, query_transfers,
};
use crate::machine::{Counts, Digest, Divergence, Fault, Machine, MemoryHistory};
use crate::{
    Account, AccountBalance, AccountFilter, Answer, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter,
    CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError, QueryFilter, SEARCH_MAX,
    Transfer,
};

/// A ledger in memory.
///
/// ```
/// use batzen_ledger::{Account, Ledger, MemoryLedger};
///
/// let ledger = MemoryLedger::new(|| 1_000_000_000);
/// let account = Account { id: 1, ledger: 1, code: 1, ..Account::default() };
/// let results = ledger.create_accounts(vec![account]); // a future, ready at once
/// # drop(results);
/// ```
pub struct MemoryLedger {
    state: Mutex<LedgerState>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
}

struct LedgerState {
    machine: Machine,
    history: MemoryHistory,
}

impl MemoryLedger {
    /// An empty ledger. `clock` returns the time in nanoseconds since the epoch. The next request, of any
    /// kind, releases expired transfers.
    pub fn new(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let state = LedgerState { machine: Machine::new(&[0; 16]), history: MemoryHistory::default() };
        Self { state: Mutex::new(state), clock: Box::new(clock) }
    }

    /// A ledger with the clock of this machine.
    #[must_use]
    pub fn with_system_clock() -> Self {
        Self::new(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |time| u64::try_from(time.as_nanos()).expect("before the year 2500"))
        })
    }

    /// Number of objects in the ledger.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().machine.counts()
    }

    /// The digest of all records.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.lock().machine.digest()
    }

    /// Checks all invariants of the whole state, and that replaying the log yields it.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify(&self) -> Result<(), Divergence> {
        let state = self.lock();
        state.machine.check()?;
        let mut again = Machine::new(&[1; 16]);
        for record in state.history.records() {
            let Ok(result) = again.replay(&state.history, record);
            result?;
        }
        again.check()?;
        if again.digest() == state.machine.digest() {
            Ok(())
        } else {
            Err(Divergence { number: state.machine.counts().records, fault: Fault::Digest })
        }
    }

    /// A panic under the lock means a broken invariant: nobody may continue from there.
    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<T: Send + 'static>(
        &self,
        events: usize,
        work: impl FnOnce(&mut LedgerState, u64) -> T,
    ) -> Answer<'_, T> {
        if events > BATCH_EVENTS_MAX {
            return Box::pin(std::future::ready(Err(LedgerError::TooMuchData)));
        }
        let now = (self.clock)();
        let state = &mut *self.state.lock().expect("no invariant was broken");
        while state.machine.is_pulse_due(now) {
            let timestamp = state.machine.operation_timestamp(now, BATCH_EVENTS_MAX);
            state.machine.pulse(timestamp);
            state.keep();
        }
        let answer = work(state, now);
        state.keep();
        Box::pin(std::future::ready(Ok(answer)))
    }

    /// Runs a search, which may end before it has found enough.
    fn search<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LedgerState) -> Result<T, LedgerError>,
    ) -> Answer<'_, T> {
        let answer = self.run(0, |state, _| work(state));
        Box::pin(async move { answer.await? })
    }
}

impl From<SearchError<std::convert::Infallible>> for LedgerError {
    fn from(error: SearchError<std::convert::Infallible>) -> Self {
        let SearchError::Unfinished(unfinished) = error;
        unfinished.into()
    }
}

impl LedgerState {
    fn keep(&mut self) {
        self.history.extend(self.machine.take_records());
        let mark = self.machine.mark();
        self.machine.settle(&mark);
    }
}

impl Ledger for MemoryLedger {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        self.run(events.len(), |state, now| {
            let timestamp = state.machine.operation_timestamp(now, events.len());
            let Ok(results) = state.machine.create_accounts(&state.history, &events, timestamp);
            results
        })
    }

    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        self.run(events.len(), |state, now| {
            let timestamp = state.machine.operation_timestamp(now, events.len());
            let Ok(results) = state.machine.create_transfers(&state.history, &events, timestamp);
            results
        })
    }

    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>> {
        self.run(ids.len(), |state, _| state.machine.lookup_accounts(&ids))
    }

    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>> {
        self.run(ids.len(), |state, _| {
            let Ok(transfers) = state.machine.lookup_transfers(&state.history, &ids);
            transfers
        })
    }

    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>> {
        self.search(|state| {
            let Some(cursor) = state.machine.account_cursor(&filter) else { return Ok(Vec::new()) };
            Ok(account_transfers(&state.history, &cursor, &filter, SEARCH_MAX)?)
        })
    }

    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>> {
        self.search(|state| {
            let Some(cursor) = state.machine.account_cursor(&filter) else { return Ok(Vec::new()) };
            Ok(account_balances(&state.history, &cursor, &filter, SEARCH_MAX)?)
        })
    }

    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>> {
        self.search(|state| Ok(state.machine.query_accounts(&filter, SEARCH_MAX)?))
    }

    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>> {
        self.search(|state| Ok(query_transfers(&state.history, &filter, SEARCH_MAX)?))
    }

    fn get_change_events(&self, filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>> {
        self.run(0, |state, _| {
            let Ok(events) = change_events(&state.history, &state.machine, &filter);
            events
        })
    }
}
