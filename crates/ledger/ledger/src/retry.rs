//! Requests to a ledger that are repeated until they are answered.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_metrics::{Counter, Histogram};

use crate::{
    Account, BATCH_EVENTS_MAX, CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError,
    Transfer,
};

/// The pauses between attempts, doubling.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The pause from which on failures are logged: shorter ones are usual while a ledger starts or is busy.
const PAUSE_LOGGED: Duration = Duration::from_millis(80);

/// Repeats a request until the ledger answers it. The ids of its events make that safe: without an answer,
/// the effect of a request is unknown.
pub async fn answered<T, F: Future<Output = Result<T, LedgerError>>>(request: impl FnMut() -> F) -> T {
    repeated(request, &Counter::default()).await
}

async fn repeated<T, F: Future<Output = Result<T, LedgerError>>>(
    mut request: impl FnMut() -> F,
    failures: &Counter,
) -> T {
    let mut pause = PAUSE_MIN;
    loop {
        let error = match request().await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        failures.inc();
        if pause >= PAUSE_LOGGED {
            tracing::warn!(%error, "the ledger does not answer, trying again");
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Counters of requests that create transfers.
#[derive(Debug)]
pub struct RequestCounters {
    /// Duration of a request, with its repetitions.
    pub time: Histogram,
    /// Events per request.
    pub events: Histogram,
    /// Requests of any kind that had to be repeated.
    pub repeated: Counter,
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self { time: Histogram::of_times(), events: Histogram::of_counts(), repeated: Counter::default() }
    }
}

/// A ledger whose requests are repeated until they are answered. Clones share the counters.
#[derive(Clone)]
pub struct RetryingLedger {
    ledger: Arc<dyn Ledger>,
    counters: Arc<RequestCounters>,
}

impl RetryingLedger {
    /// Wraps a ledger.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, counters: Arc::default() }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &RequestCounters {
        &self.counters
    }

    /// Checks that the ledger answers a request now, without a repetition.
    ///
    /// # Errors
    /// The ledger's failure.
    pub async fn check(&self) -> Result<(), LedgerError> {
        self.ledger.lookup_accounts(vec![1]).await.map(|_| ())
    }

    async fn ask<T, F: Future<Output = Result<T, LedgerError>>>(&self, request: impl FnMut() -> F) -> T {
        repeated(request, &self.counters.repeated).await
    }

    /// Creates transfers: one result per event.
    ///
    /// # Panics
    /// When there are more than [`BATCH_EVENTS_MAX`].
    pub async fn create_transfers(&self, events: Vec<Transfer>) -> Vec<CreateResult<CreateTransferStatus>> {
        assert!(events.len() <= BATCH_EVENTS_MAX, "requests are cut to the ledger's size");
        let begun = Instant::now();
        let results = self.ask(|| self.ledger.create_transfers(events.clone())).await;
        assert_eq!(results.len(), events.len(), "a ledger answers every event");
        self.counters.time.time(begun.elapsed());
        self.counters.events.count(events.len() as u64);
        results
    }

    /// Creates accounts: one result per event.
    pub async fn create_accounts(&self, events: Vec<Account>) -> Vec<CreateResult<CreateAccountStatus>> {
        self.ask(|| self.ledger.create_accounts(events.clone())).await
    }

    /// Returns whether any of these transfers exists.
    pub async fn exists_any(&self, ids: &[u128]) -> bool {
        !self.ask(|| self.ledger.lookup_transfers(ids.to_vec())).await.is_empty()
    }

    /// The accounts with these ids; a missing one is all zeros.
    pub async fn lookup(&self, ids: &[u128]) -> Vec<Account> {
        let mut found: Vec<Account> = Vec::with_capacity(ids.len());
        for part in ids.chunks(BATCH_EVENTS_MAX) {
            found.extend(self.ask(|| self.ledger.lookup_accounts(part.to_vec())).await);
        }
        let mut found = found.into_iter().peekable();
        ids.iter().map(|id| found.next_if(|account| account.id == *id).unwrap_or_default()).collect()
    }
}
