//! The bank's answers: their meaning, their recording, and retries.

use std::pin::Pin;

use batzen_crypto::Wtid;
use batzen_engine::{Lanes, SubmitError};
use batzen_http::client::ClientError;
use batzen_protocol::ErrorCode;
use batzen_service::wire_gateway::TransactionResponse;
use batzen_tables::exchange::AccountId;
use tokio::time::Instant;

use super::Transfers;
use crate::rules::{Command, ExchangeRules, Refusal, TransferFailed, TransfersDone};
use crate::workers::{Mode, WorkerError, growing};

/// An account pauses after this many failures in a row.
const FAILURES_IN_A_ROW: u32 = 8;

/// Part of a refusal that is recorded, in characters.
const REASON_CHARS_MAX: usize = 1_000;

/// The bank's answer to one attempt.
pub(super) enum Verdict {
    /// Executed.
    Done,
    /// Impossible.
    Failed(String),
    /// The account holds too little now.
    NoMoney(ClientError),
    /// No answer, or an answer that requires a retry.
    Retry(ClientError),
}

/// An attempt that has ended.
pub(super) struct Answered {
    pub(super) wtid: Wtid,
    pub(super) account: AccountId,
    pub(super) verdict: Verdict,
}

/// The results of recording answers.
pub(super) type Recorded = Vec<(Answered, Result<(), RecordError>)>;

/// The reason why an answer was not recorded.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// A rule refused the command.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The command was not decided.
    #[error("{0}")]
    Submit(SubmitError),
}

impl From<RecordError> for WorkerError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Refused(refusal) => Self::Refused(refusal),
            RecordError::Submit(error) => Self::Submit(error),
        }
    }
}

pub(super) type Asking = Pin<Box<dyn Future<Output = Answered> + Send>>;
pub(super) type Recording = Pin<Box<dyn Future<Output = Recorded> + Send>>;

/// A transfer that will be retried.
pub(super) struct Retry {
    pub(super) account: AccountId,
    pub(super) attempts: u32,
    /// None: this worker does not retry it.
    pub(super) not_before: Option<Instant>,
}

/// Recent failures of an account's bank.
#[derive(Default)]
pub(super) struct Health {
    failures: u32,
    pub(super) paused_until: Option<Instant>,
}

impl Transfers<'_> {
    /// Handles an answer. Final answers wait to be recorded.
    pub(super) fn handle_answer(&mut self, answered: Answered) {
        let Answered { wtid, account, verdict } = &answered;
        let (wtid, account) = (*wtid, *account);
        if !matches!(verdict, Verdict::Retry(_)) {
            self.health.remove(&account);
        }
        let metrics = &self.app.metrics.workers;
        let attempts = self.retries.get(&wtid).map_or(0, |retry| retry.attempts) + 1;
        match answered.verdict {
            Verdict::Done | Verdict::Failed(_) => {
                if self.answered.is_empty() {
                    self.answered_since = self.app.timers.now();
                }
                self.answered.push(answered);
            }
            Verdict::NoMoney(error) => {
                self.end(wtid);
                tracing::error!(%wtid, %error, "the account holds too little for a transfer");
                metrics.transfer_failures.inc();
                let not_before = match self.mode {
                    Mode::UntilIdle => {
                        self.progress.deferred += 1;
                        None
                    }
                    Mode::Service => {
                        Some(self.app.timers.now() + growing(self.app, 2_000, 300_000, attempts))
                    }
                };
                self.retries.insert(wtid, Retry { account, attempts, not_before });
            }
            Verdict::Retry(error) => {
                self.end(wtid);
                tracing::warn!(%wtid, %error, attempts, "a transfer will be asked for again");
                self.pause_account(account);
                let section =
                    self.gateways.get(&account).map_or_else(String::new, |(section, _)| section.clone());
                self.retry_later(
                    wtid,
                    account,
                    attempts,
                    WorkerError::Bank { section, source: error.into() },
                );
            }
        }
    }

    /// Handles the results of recording.
    pub(super) fn handle_recorded(&mut self, recorded: Recorded) {
        let metrics = &self.app.metrics.workers;
        for (Answered { wtid, account, verdict }, result) in recorded {
            self.end(wtid);
            match (result, verdict) {
                (Err(error), _) => {
                    let attempts = self.retries.get(&wtid).map_or(0, |retry| retry.attempts) + 1;
                    tracing::warn!(%wtid, %error, attempts, "the bank's answer was not recorded");
                    self.retry_later(wtid, account, attempts, error.into());
                }
                (Ok(()), Verdict::Failed(reason)) => {
                    metrics.transfers_failed.inc();
                    self.retries.remove(&wtid);
                    self.failed += 1;
                    tracing::error!(%wtid, reason, "the bank refuses a transfer for good: an operator must act");
                }
                (Ok(()), _) => {
                    metrics.transfers.inc();
                    self.retries.remove(&wtid);
                    self.progress.done += 1;
                }
            }
        }
    }

    fn end(&mut self, wtid: Wtid) {
        self.in_flight.remove(&wtid);
        self.just_ended.insert(wtid);
    }

    fn retry_later(&mut self, wtid: Wtid, account: AccountId, attempts: u32, error: WorkerError) {
        self.app.metrics.workers.transfer_failures.inc();
        let not_before = if self.mode.gives_up_after(attempts) {
            self.progress.deferred += 1;
            self.gave_up.get_or_insert(error);
            None
        } else {
            let pause = match self.mode {
                Mode::UntilIdle => self.mode.pause(self.app, attempts),
                Mode::Service => growing(self.app, 200, 300_000, attempts),
            };
            Some(self.app.timers.now() + pause)
        };
        self.retries.insert(wtid, Retry { account, attempts, not_before });
    }

    /// Counts a failure of an account's bank. After repeated failures the account pauses, so that not every
    /// open transfer is tried.
    fn pause_account(&mut self, account: AccountId) {
        let health = self.health.entry(account).or_default();
        let now = self.app.timers.now();
        if self.mode == Mode::UntilIdle || health.paused_until.is_some_and(|time| now < time) {
            return;
        }
        health.failures = health.failures.saturating_add(1);
        if let Some(rests @ 1..) = health.failures.checked_sub(FAILURES_IN_A_ROW - 1) {
            health.paused_until = Some(now + self.mode.pause(self.app, rests));
        }
    }

    /// The time of the next retry.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        let now = self.app.timers.now();
        let rest = |account: &AccountId| self.health.get(account)?.paused_until.filter(|time| now < *time);
        let waiting = self.retries.iter().filter(|(wtid, _)| !self.in_flight.contains(wtid));
        let attempts = waiting.filter_map(|(_, retry)| {
            let not_before = retry.not_before?;
            Some(rest(&retry.account).map_or(not_before, |rest| rest.max(not_before)))
        });
        attempts.chain(self.health.keys().filter_map(rest)).min()
    }
}

/// Classifies the bank's answer.
pub(super) fn classify(answer: Result<TransactionResponse, ClientError>) -> Verdict {
    let Err(error) = answer else { return Verdict::Done };
    match (error.status(), error.code()) {
        // The gateway's URL is wrong; the account was not looked up.
        (Some(404), Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN)) => Verdict::Retry(error),
        (Some(400 | 404 | 413 | 414 | 422), _)
        | (
            Some(409),
            Some(ErrorCode::BANK_TRANSFER_REQUEST_UID_REUSED | ErrorCode::BANK_ACCOUNT_IS_EXCHANGE),
        ) => {
            // The bank's text may be long and contain the request.
            Verdict::Failed(error.to_string().chars().take(REASON_CHARS_MAX).collect())
        }
        (Some(409), Some(ErrorCode::BANK_UNALLOWED_DEBIT)) => Verdict::NoMoney(error),
        _ => Verdict::Retry(error),
    }
}

/// Records final answers. If that fails, the transfer is requested again, and the bank gives the same answer.
pub(super) async fn record(lane: Lanes<ExchangeRules>, page: Vec<Answered>) -> Recorded {
    let submit = async |command| match lane.submit(command).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(refusal)) => Err(RecordError::Refused(Box::new(refusal))),
        Err(error) => Err(RecordError::Submit(error)),
    };
    let is_done = |answered: &&Answered| matches!(answered.verdict, Verdict::Done);
    let wtids: Vec<_> = page.iter().filter(is_done).map(|answered| answered.wtid).collect();
    // If one of them cannot be recorded, the others still are.
    let all =
        if wtids.is_empty() { Ok(()) } else { submit(Command::TransfersDone(TransfersDone { wtids })).await };
    let mut recorded = Vec::with_capacity(page.len());
    for answered in page {
        let wtid = answered.wtid;
        let result = match &answered.verdict {
            Verdict::Failed(reason) => {
                let reason = reason.clone();
                submit(Command::TransferFailed(TransferFailed { wtid, reason })).await
            }
            _ if all.is_ok() => Ok(()),
            _ => submit(Command::TransfersDone(TransfersDone { wtids: vec![wtid] })).await,
        };
        recorded.push((answered, result));
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, code: Option<ErrorCode>) -> Result<TransactionResponse, ClientError> {
        let (url, hint, detail) = (String::new(), String::new(), String::new());
        Err(ClientError::Status { url, status, code, hint, detail, body: Default::default() })
    }

    #[test]
    fn answers_are_classified_as_final_or_transient() {
        let failed = |answer| matches!(classify(answer), Verdict::Failed(_));
        let again = |answer| matches!(classify(answer), Verdict::Retry(_));
        assert!(failed(status(404, Some(ErrorCode::BANK_UNKNOWN_ACCOUNT))));
        assert!(failed(status(404, None)));
        assert!(failed(status(400, Some(ErrorCode::GENERIC_PAYTO_URI_MALFORMED))));
        assert!(failed(status(409, Some(ErrorCode::BANK_TRANSFER_REQUEST_UID_REUSED))));
        assert!(failed(status(409, Some(ErrorCode::BANK_ACCOUNT_IS_EXCHANGE))));
        for definite in [400, 413, 414, 422] {
            assert!(failed(status(definite, None)), "{definite}");
        }
        assert!(matches!(classify(status(409, Some(ErrorCode::BANK_UNALLOWED_DEBIT))), Verdict::NoMoney(_)));
        assert!(again(status(404, Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN))));
        assert!(again(status(409, None)));
        for transient in [401, 403, 405, 408, 415, 429, 500, 502, 503, 504] {
            assert!(again(status(transient, None)), "{transient}");
        }
        assert!(again(Err(ClientError::Broken { url: String::new(), reason: String::new() })));
        assert!(again(Err(ClientError::Timeout { url: String::new() })));
        let odd = ClientError::BadReply { url: String::new(), status: 200, reason: String::new() };
        assert!(again(Err(odd)), "an unreadable success is requested again");
    }
}
