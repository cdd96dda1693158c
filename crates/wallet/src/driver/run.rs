//! Runs operations: sends requests, processes answers, stores records, and repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::{Inner, RunReport, RunUntil, Wallet, WalletError, lock};
use crate::core::evidence::Disputed;
use crate::core::http::{HttpRequest, HttpResponse};
use crate::core::state::WalletOperation;
use crate::core::{CoreError, Next, OpId};
use crate::network_error::NetworkError;

/// Longest long poll, in milliseconds.
const LONG_POLL_MS: u64 = 30_000;
/// Most operations processed at the same time.
const PARALLEL: usize = 8;
/// If more operations than this are open, none of them holds a place for a long poll.
const FEW: usize = PARALLEL / 2;
/// Pause of an operation that waits, while many are open.
const CROWDED_PAUSE: Duration = Duration::from_secs(10);
/// Longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Result of one attempt to advance an operation.
enum Progress {
    Done,
    Waiting,
    Stuck(WalletError),
}

/// Releases an operation when its worker ends, even by a panic.
struct Claim {
    inner: Arc<Inner>,
    id: OpId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.inner.running).remove(&self.id);
        self.inner.freed.notify_waiters();
    }
}

impl Wallet {
    /// Drives one operation until it is finished.
    ///
    /// # Errors
    /// [`WalletError::Pending`] if it waits for somebody else, or the reason why it makes no progress.
    pub async fn finish(&self, id: OpId) -> Result<(), WalletError> {
        match self.drive(id, 0).await {
            Progress::Done => Ok(()),
            Progress::Waiting => {
                let message = self.with_state(|state| {
                    state.operation(id).ok().and_then(|operation| operation.last_error.clone())
                });
                Err(WalletError::Pending {
                    operation: id,
                    message: message.unwrap_or_else(|| "not finished".to_owned()),
                })
            }
            Progress::Stuck(error) => Err(error),
        }
    }

    /// Drives one operation until it is finished. Waits for others up to `timeout`.
    ///
    /// # Errors
    /// As [`Wallet::finish`], after the timeout.
    pub async fn finish_within(&self, id: OpId, timeout: Duration) -> Result<(), WalletError> {
        let deadline = Instant::now() + timeout;
        let mut backoff = self.inner.first_backoff;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let poll_ms = LONG_POLL_MS.min(u64::try_from(left.as_millis()).unwrap_or(LONG_POLL_MS));
            let error = match self.drive(id, poll_ms).await {
                Progress::Done => return Ok(()),
                Progress::Waiting if left.is_zero() => return self.finish(id).await,
                Progress::Waiting => None,
                Progress::Stuck(error) => Some(error),
            };
            match error {
                Some(error) if left.is_zero() || !may_pass(&error) => return Err(error),
                _ => {}
            }
            tokio::time::sleep(backoff.min(left)).await;
            backoff = (backoff * 2).min(Duration::from_secs(2));
        }
    }

    /// Runs all operations as far as possible without waiting for others.
    ///
    /// # Errors
    /// If the wallet itself fails. Operations that make no progress are reported instead.
    pub async fn run_pending(&self) -> Result<RunReport, WalletError> {
        self.run(RunUntil::Idle).await
    }

    /// Runs all operations.
    ///
    /// # Errors
    /// If the wallet itself fails, in particular its file. Operations that make no progress are reported
    /// instead.
    pub fn run(&self, until: RunUntil) -> BoxFuture<'_, Result<RunReport, WalletError>> {
        Box::pin(self.run_until(until))
    }

    async fn run_until(&self, until: RunUntil) -> Result<RunReport, WalletError> {
        let deadline = match until {
            RunUntil::Finished(Some(timeout)) => Some(Instant::now() + timeout),
            _ => None,
        };
        let idle_mode = until == RunUntil::Idle;
        let mut report = RunReport::default();
        // Per operation: the time of the next attempt, and the pause after that one.
        let mut resting: BTreeMap<OpId, (Instant, Duration)> = BTreeMap::new();
        // Not spawned, so that dropping this future stops everything at once.
        let mut tasks = FuturesUnordered::new();
        let mut active: BTreeSet<OpId> = BTreeSet::new();
        let mut disputed: BTreeSet<OpId> = BTreeSet::new();
        loop {
            self.step(|state, now, entropy| Ok(((), crate::core::plan(state, now, entropy)?)))?;
            let time = self.now();
            let open: Vec<OpId> = self.with_state(|state| {
                let rests = |operation: &WalletOperation| {
                    operation.dispute.is_some_and(|dispute| dispute.retry_at > time)
                };
                let open = state.open_operations().filter(|operation| !rests(operation));
                open.map(|operation| operation.id).collect()
            });
            let now = Instant::now();
            let is_crowded = open.len() > FEW;
            let out_of_time = deadline.is_some_and(|deadline| deadline <= now);
            for id in open {
                let due = match resting.get(&id) {
                    _ if disputed.contains(&id) => false,
                    None => true,
                    Some((at, _)) => !idle_mode && *at <= now,
                };
                if due && !out_of_time && active.len() < PARALLEL && active.insert(id) {
                    let left = deadline.map_or(LONG_POLL_MS, |deadline| {
                        u64::try_from(deadline.saturating_duration_since(now).as_millis())
                            .unwrap_or(LONG_POLL_MS)
                    });
                    let poll_ms = if idle_mode || is_crowded { 0 } else { LONG_POLL_MS.min(left) };
                    tasks.push(async move { (id, self.drive(id, poll_ms).await) });
                }
            }
            if tasks.is_empty() {
                let next = resting.values().map(|(at, _)| *at).min();
                match next {
                    Some(at) if !idle_mode && !out_of_time => {
                        let at = deadline.map_or(at, |deadline| at.min(deadline));
                        tokio::time::sleep_until(at.into()).await;
                        continue;
                    }
                    _ => break,
                }
            }
            let Some((id, progress)) = tasks.next().await else { continue };
            active.remove(&id);
            match progress {
                Progress::Done => {
                    resting.remove(&id);
                    report.finished.push(id);
                }
                Progress::Stuck(error @ WalletError::Store(_)) => return Err(error),
                // It rests for longer than this run lasts.
                Progress::Stuck(WalletError::Disputed { .. }) => {
                    resting.remove(&id);
                    disputed.insert(id);
                }
                Progress::Waiting => {
                    let pause = if is_crowded { CROWDED_PAUSE } else { Duration::from_secs(1) };
                    resting.insert(id, (Instant::now() + pause, pause));
                }
                Progress::Stuck(error) => {
                    tracing::debug!(operation = id, %error, "no progress");
                    let pause = resting
                        .get(&id)
                        .map_or(Duration::from_secs(1), |(_, pause)| (*pause * 2).min(MAX_BACKOFF));
                    resting.insert(id, (Instant::now() + pause, pause));
                }
            }
        }
        report.pending = self.pending();
        Ok(report)
    }

    /// Advances one operation as far as possible.
    async fn drive(&self, id: OpId, poll_ms: u64) -> Progress {
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            // Registered before the check, so that no notification is missed.
            freed.as_mut().enable();
            if lock(&self.inner.running).insert(id) {
                break;
            }
            freed.await;
        }
        let _claim = Claim { inner: Arc::clone(&self.inner), id };
        let mut key_refreshed = false;
        loop {
            match self.advance(id, poll_ms, key_refreshed).await {
                Ok(Some(progress)) => return progress,
                Ok(None) => {}
                Err(WalletError::Core(CoreError::UnknownSigningKey { base_url, .. })) if !key_refreshed => {
                    key_refreshed = true;
                    if let Err(error) = self.add_exchange(&base_url).await {
                        return Progress::Stuck(error);
                    }
                }
                Err(error @ WalletError::Disputed { .. }) => return Progress::Stuck(error),
                Err(error) => {
                    let text = error.to_string();
                    let noted =
                        self.step(|state, _, _| Ok(((), crate::core::record_error(state, id, &text)?)));
                    return Progress::Stuck(noted.err().unwrap_or(error));
                }
            }
        }
    }

    /// Sends one request and processes its answer. `None` if there is more to do at once.
    async fn advance(
        &self,
        id: OpId,
        poll_ms: u64,
        key_refreshed: bool,
    ) -> Result<Option<Progress>, WalletError> {
        let next = self.with_state(|state| crate::core::next(state, id, poll_ms))?;
        let request = match next {
            Next::Done => return Ok(Some(Progress::Done)),
            Next::Request(request) => request,
        };
        let response = self.send(&request).await?;
        let (waiting, disputed) = self.step(|state, now, entropy| {
            match crate::core::receive(state, id, &request, &response, now, entropy) {
                Ok(outcome) => Ok(((outcome.waiting.is_some(), outcome.disputed), outcome.changes)),
                // The newest list of keys does not contain it either.
                Err(error @ CoreError::UnknownSigningKey { .. }) if key_refreshed => {
                    let (disputed, changes) =
                        crate::core::dispute(state, id, &request, &response, &error, now)?;
                    Ok(((false, Some(disputed)), changes))
                }
                Err(error) => Err(error),
            }
        })?;
        match disputed {
            Some(Disputed { evidence, reason }) => {
                tracing::info!(operation = id, evidence, %reason, "the exchange gave a false answer");
                Err(WalletError::Disputed { operation: id, evidence, message: reason })
            }
            None => Ok(waiting.then_some(Progress::Waiting)),
        }
    }

    /// Sends a request until a conclusive answer comes, a bounded number of times. The request is the same
    /// each time, so it does not matter which attempt arrived.
    pub(super) async fn send(&self, request: &HttpRequest) -> Result<HttpResponse, WalletError> {
        let mut backoff = self.inner.first_backoff;
        let mut attempt = 1;
        loop {
            let (error, retry_after) = match self.inner.transport.send(request).await {
                Ok(response) if !response.is_transient() => return Ok(response),
                Ok(response) => {
                    tracing::debug!(?request, status = response.status, attempt, "try again later");
                    let error =
                        WalletError::Unavailable { url: request.url.clone(), status: response.status };
                    (error, response.retry_after_s.map(Duration::from_secs))
                }
                Err(error) => {
                    tracing::debug!(?request, %error, attempt, "no answer");
                    (NetworkError::new(request, &error).into(), None)
                }
            };
            if attempt >= self.inner.attempts {
                return Err(error);
            }
            attempt += 1;
            // A random factor between 0.5 and 1.5, so that many wallets do not come back at the same moment.
            let jitter = 512 + lock(&self.inner.core).entropy.below(1024) as u32;
            let pause = (backoff * jitter / 1024).max(retry_after.unwrap_or_default()).min(MAX_BACKOFF);
            tokio::time::sleep(pause).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }
}

/// Returns whether a later attempt may succeed after this error.
fn may_pass(error: &WalletError) -> bool {
    matches!(error, WalletError::NoAnswer(_) | WalletError::Unavailable { .. } | WalletError::Pending { .. })
}
