//! transfer: has the bank execute prepared transfers.
//!
//! What is asked of the bank for a transfer never changes, and the bank knows it by its request uid: so it may be asked again
//! after any failure, and never pays twice. The open transfers are looked through from the front every time, without a
//! cursor, so none can be skipped for good; each is recorded by a commit of its own after its answer, while others are still
//! in flight.
//!
//! | the bank says | then |
//! |---|---|
//! | 200 | done |
//! | 404 (unknown account), 400, 409 with code 5112 (the uid names another transfer) | failed; an operator has to look |
//! | 409 with code 5102 (too little money) | again, after some time |
//! | anything else, or nothing | again, ever more slowly, for ever |

use std::collections::{HashMap, HashSet};

use batzen_crypto::Wtid;
use batzen_engine::Lane;
use batzen_http::ClientError;
use batzen_http::gateway::{TransactionResponse, TransferRequest, WireGatewayClient};
use batzen_protocol::ErrorCode;
use batzen_store::{Found, StoreError};
use batzen_tables::exchange::{AccountId, Prepared, WireTargetKey, WireTargets};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::{
    Aside, Bells, Mode, Progress, WorkerError, check_drain, client, debit_accounts, gateway, growing,
    idle_interval, pause, queues, read,
};
use crate::rules::{Command, ExchangeRules, TransferDone, TransferFailed};
use crate::service::Exchange;

/// Transfers asked for at the same time.
const IN_FLIGHT_MAX: usize = 128;
/// Open transfers read at once.
const PAGE: usize = 1_024;
/// An account whose bank has failed so often in a row is left alone for some time.
const FAILURES_IN_A_ROW: u32 = 8;

/// Has all open transfers executed.
///
/// # Errors
/// [`WorkerError::Bank`] when the bank fails again and again on one of them. The others are still tried.
pub async fn run_until_idle(app: &Exchange) -> Result<Progress, WorkerError> {
    let mut transfers = Transfers::new(app, Mode::UntilIdle)?;
    let result = transfers.until_idle().await;
    transfers.tasks.shutdown().await;
    result?;
    match transfers.gave_up {
        Some(error) => Err(error),
        None => Ok(transfers.progress),
    }
}

/// Has transfers executed until the service ends.
pub(super) async fn run(app: &Exchange, bells: &Bells) -> Result<(), WorkerError> {
    let mut transfers = Transfers::new(app, Mode::Service)?;
    let result = transfers.serve(bells).await;
    // Nobody may use the lane when the service has ended. The bank will be asked again.
    transfers.tasks.shutdown().await;
    result
}

/// What became of one attempt.
enum Verdict {
    /// Executed, and recorded.
    Done,
    /// Impossible, and recorded.
    Failed(String),
    /// The account holds too little at present.
    NoMoney(ClientError),
    /// The bank did not answer, or not usefully.
    Again(ClientError),
    /// The bank answered, but that could not be recorded.
    NotRecorded(String),
}

struct Ended {
    wtid: Wtid,
    account: AccountId,
    verdict: Verdict,
}

/// A transfer that is to be tried again.
struct Later {
    account: AccountId,
    attempts: u32,
    /// None: not by this worker.
    not_before: Option<Instant>,
}

/// How the bank of an account has been doing.
#[derive(Default)]
struct Health {
    failures: u32,
    resting_until: Option<Instant>,
}

/// A transfer and the payto URI of its receiver.
struct Open {
    found: Found<Prepared>,
    payto_uri: String,
}

struct Transfers<'a> {
    app: &'a Exchange,
    mode: Mode,
    gateways: HashMap<AccountId, (String, WireGatewayClient)>,
    tasks: JoinSet<Ended>,
    in_flight: HashSet<Wtid>,
    /// Those that ended since the present look began: a page read before may still list them.
    just_ended: HashSet<Wtid>,
    later: HashMap<Wtid, Later>,
    health: HashMap<AccountId, Health>,
    aside: Aside<Wtid>,
    progress: Progress,
    failed: u64,
    gave_up: Option<WorkerError>,
}

impl<'a> Transfers<'a> {
    fn new(app: &'a Exchange, mode: Mode) -> Result<Self, WorkerError> {
        let mut gateways = HashMap::new();
        for account in debit_accounts(app) {
            if let Some(config) = &account.config.gateway {
                let section = account.config.section.clone();
                let client = client(&section, IN_FLIGHT_MAX)?;
                let gateway = || gateway(&client, config).with_transfer_connections(IN_FLIGHT_MAX);
                gateways.entry(account.id).or_insert_with(|| (section, gateway()));
            }
        }
        Ok(Self {
            app,
            mode,
            gateways,
            tasks: JoinSet::new(),
            in_flight: HashSet::new(),
            just_ended: HashSet::new(),
            later: HashMap::new(),
            health: HashMap::new(),
            aside: Aside::new(),
            progress: Progress::default(),
            failed: 0,
            gave_up: None,
        })
    }

    async fn until_idle(&mut self) -> Result<(), WorkerError> {
        loop {
            let launched = self.look().await?;
            while let Some(ended) = self.tasks.join_next().await {
                self.ended(ended);
            }
            match self.next_attempt() {
                Some(next) => pause(self.app, next.saturating_duration_since(Instant::now())).await?,
                None if launched == 0 => return Ok(()),
                None => {}
            }
        }
    }

    async fn serve(&mut self, bells: &Bells) -> Result<(), WorkerError> {
        let idle = idle_interval(self.app.config.workers.transfer_idle_sleep);
        let mut next_look = Instant::now();
        loop {
            if next_look <= Instant::now() {
                self.look().await?;
                next_look = Instant::now() + idle;
            }
            let due = self.next_attempt().map_or(next_look, |next| next.min(next_look));
            tokio::select! {
                biased;
                () = self.app.drain.draining() => return Ok(()),
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                () = bells.transfer.notified() => next_look = Instant::now(),
                () = tokio::time::sleep_until(due) => next_look = Instant::now(),
            }
        }
    }

    /// Looks through all open transfers and asks for those that are due; says how many.
    async fn look(&mut self) -> Result<usize, WorkerError> {
        self.just_ended.clear();
        let (mut position, mut launched) = (None, 0);
        let mut oldest = None;
        let mut still_open = HashSet::new();
        loop {
            let from = position.take();
            let page = read(self.app, move |store| {
                let found = queues::open_transfers(store, from, PAGE)?;
                let targets: Vec<_> =
                    found.iter().map(|found| WireTargetKey { h_payto: found.row.h_payto }).collect();
                let targets = store.get_many::<WireTargets>(&targets)?;
                let open = found.into_iter().zip(targets).map(|(found, target)| {
                    let payto_uri = target.expect("accounts in rows are kept").row.payto_uri;
                    Open { found, payto_uri }
                });
                Ok::<Vec<Open>, StoreError>(open.collect())
            })
            .await?;
            let next = page.last().filter(|_| page.len() == PAGE);
            position = next.map(|last| queues::serial_position(last.found.serial));
            for open in page {
                oldest.get_or_insert(open.found.row.time);
                let wtid = open.found.key.wtid;
                if self.later.contains_key(&wtid) {
                    still_open.insert(wtid);
                }
                while self.tasks.len() >= IN_FLIGHT_MAX {
                    check_drain(self.app)?;
                    if let Some(ended) = self.tasks.join_next().await {
                        self.ended(ended);
                    }
                }
                check_drain(self.app)?;
                launched += usize::from(self.launch(open));
            }
            if position.is_none() {
                break;
            }
        }
        // What others have settled meanwhile.
        let (in_flight, just_ended) = (&self.in_flight, &self.just_ended);
        self.later.retain(|wtid, _| {
            still_open.contains(wtid) || in_flight.contains(wtid) || just_ended.contains(wtid)
        });
        let metrics = &self.app.metrics.workers;
        let lag = oldest.map_or(0, |time| self.app.now().saturating_since(time).as_micros() / 1_000_000);
        metrics.transfer_lag_s.set(lag);
        let set_aside = self.aside.end_round();
        metrics.transfers_set_aside.set(set_aside);
        self.progress.set_aside = self.failed + set_aside;
        Ok(launched)
    }

    /// Asks for a transfer, if it is its time.
    fn launch(&mut self, open: Open) -> bool {
        let (wtid, row, now) = (open.found.key.wtid, open.found.row, Instant::now());
        if self.in_flight.contains(&wtid) || self.just_ended.contains(&wtid) {
            return false;
        }
        if self.later.get(&wtid).is_some_and(|later| later.not_before.is_none_or(|time| now < time)) {
            return false;
        }
        let account = row.account;
        let resting_until = self.health.get(&account).and_then(|health| health.resting_until);
        if resting_until.is_some_and(|time| now < time) {
            return false;
        }
        // Only the account that was chosen when the transfer was decided may pay: another one would pay once more.
        let Some((_, gateway)) = self.gateways.get(&account) else {
            if self.aside.put(wtid) {
                tracing::error!(%wtid, "a transfer's account is not configured (any more), set aside");
            }
            return false;
        };
        let request = TransferRequest {
            request_uid: row.request_uid,
            amount: row.amount.of(self.app.config.currency),
            exchange_base_url: row.exchange_base_url,
            wtid,
            credit_account: open.payto_uri,
        };
        let (gateway, lane) = (gateway.clone(), self.app.lane.clone());
        self.in_flight.insert(wtid);
        self.tasks.spawn(async move {
            let verdict = record(&lane, wtid, judge(gateway.transfer(&request).await)).await;
            Ended { wtid, account, verdict }
        });
        self.app.metrics.workers.transfers_in_flight.set(self.tasks.len() as u64);
        true
    }

    fn ended(&mut self, ended: Result<Ended, JoinError>) {
        let Ended { wtid, account, verdict } = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only the end of the runtime ends a task.
            Err(_) => return,
        };
        self.in_flight.remove(&wtid);
        self.just_ended.insert(wtid);
        let metrics = &self.app.metrics.workers;
        metrics.transfers_in_flight.set(self.tasks.len() as u64);
        if !matches!(verdict, Verdict::Again(_)) {
            self.health.remove(&account);
        }
        let attempts = self.later.get(&wtid).map_or(0, |later| later.attempts) + 1;
        match verdict {
            Verdict::Done => {
                metrics.transfers.inc();
                self.later.remove(&wtid);
                self.progress.done += 1;
            }
            Verdict::Failed(reason) => {
                metrics.transfers_failed.inc();
                self.later.remove(&wtid);
                self.failed += 1;
                tracing::error!(%wtid, reason, "the bank refuses a transfer for good: an operator has to look");
            }
            Verdict::NoMoney(error) => {
                tracing::error!(%wtid, %error, "the account holds too little for a transfer");
                metrics.transfer_failures.inc();
                let not_before = match self.mode {
                    Mode::UntilIdle => {
                        self.progress.deferred += 1;
                        None
                    }
                    Mode::Service => Some(Instant::now() + growing(2_000, 300_000).pause(attempts)),
                };
                self.later.insert(wtid, Later { account, attempts, not_before });
            }
            Verdict::Again(error) => {
                tracing::warn!(%wtid, %error, attempts, "a transfer will be asked for again");
                self.rest(account);
                let section =
                    self.gateways.get(&account).map_or_else(String::new, |(section, _)| section.clone());
                self.again(wtid, account, attempts, WorkerError::Bank { section, source: error.into() });
            }
            Verdict::NotRecorded(error) => {
                tracing::warn!(%wtid, error, attempts, "the bank's answer was not recorded");
                self.again(wtid, account, attempts, WorkerError::Refused(error));
            }
        }
    }

    fn again(&mut self, wtid: Wtid, account: AccountId, attempts: u32, error: WorkerError) {
        self.app.metrics.workers.transfer_failures.inc();
        let not_before = if self.mode.gives_up_after(attempts) {
            self.progress.deferred += 1;
            self.gave_up.get_or_insert(error);
            None
        } else {
            let pause = match self.mode {
                Mode::UntilIdle => self.mode.pause(attempts),
                Mode::Service => growing(200, 300_000).pause(attempts),
            };
            Some(Instant::now() + pause)
        };
        self.later.insert(wtid, Later { account, attempts, not_before });
    }

    /// Counts a failure of an account's bank. When it fails all the time, not every open transfer is tried on it.
    fn rest(&mut self, account: AccountId) {
        let health = self.health.entry(account).or_default();
        let now = Instant::now();
        if self.mode == Mode::UntilIdle || health.resting_until.is_some_and(|time| now < time) {
            return;
        }
        health.failures = health.failures.saturating_add(1);
        if let Some(rests @ 1..) = health.failures.checked_sub(FAILURES_IN_A_ROW - 1) {
            health.resting_until = Some(now + self.mode.pause(rests));
        }
    }

    /// When something is to be tried again.
    fn next_attempt(&self) -> Option<Instant> {
        let now = Instant::now();
        let rest = |account: &AccountId| self.health.get(account)?.resting_until.filter(|time| now < *time);
        let waiting = self.later.iter().filter(|(wtid, _)| !self.in_flight.contains(wtid));
        let attempts = waiting.filter_map(|(_, later)| {
            let not_before = later.not_before?;
            Some(rest(&later.account).map_or(not_before, |rest| rest.max(not_before)))
        });
        attempts.chain(self.health.keys().filter_map(rest)).min()
    }
}

/// What the bank's answer means.
fn judge(answer: Result<TransactionResponse, ClientError>) -> Verdict {
    let Err(error) = answer else { return Verdict::Done };
    match (error.status(), error.code()) {
        // The gateway's URL is wrong; no account was looked for.
        (Some(404), Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN)) => Verdict::Again(error),
        (Some(400 | 404), _) | (Some(409), Some(ErrorCode::BANK_TRANSFER_REQUEST_UID_REUSED)) => {
            Verdict::Failed(error.to_string())
        }
        (Some(409), Some(ErrorCode::BANK_UNALLOWED_DEBIT)) => Verdict::NoMoney(error),
        _ => Verdict::Again(error),
    }
}

/// Records what is final. Without record the bank is asked again, and answers the same.
async fn record(lane: &Lane<ExchangeRules>, wtid: Wtid, verdict: Verdict) -> Verdict {
    let command = match &verdict {
        Verdict::Done => Command::TransferDone(TransferDone { wtid }),
        Verdict::Failed(reason) => Command::TransferFailed(TransferFailed { wtid, reason: reason.clone() }),
        _ => return verdict,
    };
    match lane.submit(command).await {
        Ok(Ok(_)) => verdict,
        Ok(Err(refusal)) => Verdict::NotRecorded(refusal.to_string()),
        Err(error) => Verdict::NotRecorded(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, code: Option<ErrorCode>) -> Result<TransactionResponse, ClientError> {
        let (url, hint, detail) = (String::new(), String::new(), String::new());
        Err(ClientError::Status { url, status, code, hint, detail, body: Default::default() })
    }

    #[test]
    fn only_final_answers_are_final() {
        let failed = |answer| matches!(judge(answer), Verdict::Failed(_));
        let again = |answer| matches!(judge(answer), Verdict::Again(_));
        assert!(failed(status(404, Some(ErrorCode::BANK_UNKNOWN_ACCOUNT))));
        assert!(failed(status(404, None)));
        assert!(failed(status(400, Some(ErrorCode::GENERIC_PAYTO_URI_MALFORMED))));
        assert!(failed(status(409, Some(ErrorCode::BANK_TRANSFER_REQUEST_UID_REUSED))));
        assert!(matches!(judge(status(409, Some(ErrorCode::BANK_UNALLOWED_DEBIT))), Verdict::NoMoney(_)));
        assert!(again(status(404, Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN))));
        assert!(again(status(409, None)));
        for transient in [401, 403, 413, 429, 500, 502, 503, 504] {
            assert!(again(status(transient, None)), "{transient}");
        }
        assert!(again(Err(ClientError::Broken { url: String::new(), reason: String::new() })));
        assert!(again(Err(ClientError::Timeout { url: String::new() })));
        let odd = ClientError::BadReply { url: String::new(), status: 200, reason: String::new() };
        assert!(again(Err(odd)), "an unreadable success is asked for once more");
    }
}
