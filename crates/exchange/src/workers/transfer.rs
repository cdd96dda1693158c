//! transfer: has the bank execute prepared transfers.
//!
//! What is asked of the bank for a transfer never changes, and the bank knows it by its request uid: so it may be asked again
//! after any failure, and never pays twice. The open transfers are looked through from the front again and again, without a
//! stored cursor, so none can be skipped for good; in between, when new ones are announced, only those behind the last one
//! seen. Several workers, in whatever processes, have a share of the queue each
//! ([`super::leases`]). What the bank has answered is recorded a page in a command, while other requests
//! are in flight: no request waits for a commit, and what a kill keeps from being recorded is asked for again.
//!
//! | the bank says | then |
//! |---|---|
//! | 200 | done |
//! | 404 (unknown account), 400, 409 with code 5112 (the uid names another transfer) | failed; an operator has to look |
//! | 409 with code 5102 (too little money) | again, after some time |
//! | anything else, or nothing | again, ever more slowly, for ever |

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::time::Duration;

use batzen_crypto::Wtid;
use batzen_engine::Lanes;
use batzen_http::ClientError;
use batzen_http::gateway::{TransactionResponse, TransferRequest, WireGatewayClient};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_store::{Found, StoreError};
use batzen_tables::exchange::{AccountId, LeaseJob, Prepared, WireTargetKey, WireTargets};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::leases::{self, Share};
use super::looks::{self, Look, NextLook};
use super::{
    Aside, Mode, Progress, WorkerError, WorkerOptions, check_drain, client, debit_accounts, gateway, growing,
    idle_interval, pause, queues, read,
};
use crate::core::Core;
use crate::rules::leases::Slots;
use crate::rules::{Command, ExchangeRules, TransferFailed, TransfersDone};

/// Transfers asked for at the same time: twice what a bank's commit takes in, so that it never waits for more.
const IN_FLIGHT_MAX: usize = 512;
/// Connections to a bank that answers one request of a connection after the other.
const CONNECTIONS_MAX: usize = 256;
/// Open transfers read, and claimed, at once, unless the worker is told otherwise; beside clients, who wait for the processor
/// meanwhile; ...
const PAGE: usize = 1_024;
const PAGE_BESIDE_CLIENTS: usize = 128;
/// ... and at most.
const PAGE_MAX: usize = 65_536;
/// Answers recorded by one command, so that payments behind it in the lane do not wait long.
const RECORD_MAX: usize = 512;
/// So many answers are recorded at once, fewer when they have waited for [`RECORD_AFTER`] or nothing else is in flight.
const RECORD_SOON: usize = 128;
/// How long an answer may wait for others to be recorded with.
const RECORD_AFTER: Duration = Duration::from_millis(5);
/// Unrecorded answers; nothing more is asked for until some of them are recorded.
const UNRECORDED_MAX: usize = 1_024;
/// An account whose bank has failed so often in a row is left alone for some time.
const FAILURES_IN_A_ROW: u32 = 8;

/// Has all open transfers executed.
///
/// # Errors
/// [`WorkerError::Bank`] when the bank fails again and again on one of them. The others are still tried.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    share_until_idle(app, WorkerOptions::default()).await
}

/// The same as one of several workers.
///
/// # Errors
/// As [`run_until_idle`].
pub async fn share_until_idle(app: &Core, options: WorkerOptions) -> Result<Progress, WorkerError> {
    let mut transfers = Transfers::new(app, Mode::UntilIdle, options)?;
    transfers.until_idle().await?;
    transfers.share.leave().await;
    match transfers.gave_up {
        Some(error) => Err(error),
        None => Ok(transfers.progress),
    }
}

/// Has transfers executed until the service ends, as one of several workers; looks for new ones at the configured interval.
///
/// # Errors
/// When the store fails.
pub async fn serve(app: &Core, options: WorkerOptions) -> Result<(), WorkerError> {
    Transfers::new(app, Mode::Service, options)?.run().await
}

/// Has transfers executed until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    // What is in flight at the end is dropped; the bank will be asked again.
    Transfers::new(app, Mode::Service, WorkerOptions::default())?.run().await
}

/// What the bank said to one attempt.
enum Verdict {
    /// Executed.
    Done,
    /// Impossible.
    Failed(String),
    /// The account holds too little at present.
    NoMoney(ClientError),
    /// The bank did not answer, or not usefully.
    Again(ClientError),
}

/// An attempt that has ended.
struct Answered {
    wtid: Wtid,
    account: AccountId,
    verdict: Verdict,
}

/// Answers that were to be recorded, each with the reason why it is not.
type Recorded = Vec<(Answered, Result<(), String>)>;

type Asking = Pin<Box<dyn Future<Output = Answered> + Send>>;
type Recording = Pin<Box<dyn Future<Output = Recorded> + Send>>;

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
    app: &'a Core,
    mode: Mode,
    options: WorkerOptions,
    share: Share<'a>,
    /// Its share of the queue when a page was read last.
    slots: Slots,
    gateways: HashMap<AccountId, (String, WireGatewayClient)>,
    /// Requests at the bank.
    asking: FuturesUnordered<Asking>,
    /// Final answers to be recorded, and when the first of them came.
    answered: Vec<Answered>,
    answered_since: Instant,
    recording: Option<Recording>,
    /// Those asked for or answered, until that is recorded.
    in_flight: HashSet<Wtid>,
    /// Those that ended since the present look began: a page read before may still list them.
    just_ended: HashSet<Wtid>,
    /// How many of those seen since the last look from the front began were others'.
    others: usize,
    /// Up to where the queue was looked through.
    seen: Option<queues::Position>,
    /// How long the transfer that was looked at last has been waiting for its turn, in seconds.
    waited_s: u64,
    later: HashMap<Wtid, Later>,
    health: HashMap<AccountId, Health>,
    aside: Aside<Wtid>,
    progress: Progress,
    failed: u64,
    gave_up: Option<WorkerError>,
}

impl<'a> Transfers<'a> {
    fn new(app: &'a Core, mode: Mode, options: WorkerOptions) -> Result<Self, WorkerError> {
        let mut gateways = HashMap::new();
        for account in debit_accounts(app) {
            if let Some(config) = &account.config.gateway {
                let section = account.config.section.clone();
                let client = client(&section, CONNECTIONS_MAX)?;
                let gateway = || gateway(&client, config).with_transfer_connections(CONNECTIONS_MAX);
                gateways.entry(account.id).or_insert_with(|| (section, gateway()));
            }
        }
        let job = LeaseJob::Transfer;
        let share =
            if options.workers == Some(0) { Share::all(app, mode, job) } else { Share::new(app, mode, job) };
        Ok(Self {
            app,
            mode,
            options,
            share,
            slots: Slots::default(),
            gateways,
            asking: FuturesUnordered::new(),
            answered: Vec::new(),
            answered_since: Instant::now(),
            recording: None,
            in_flight: HashSet::new(),
            just_ended: HashSet::new(),
            others: 0,
            seen: None,
            waited_s: 0,
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
            let launched = self.look(Look::All).await?;
            while self.step().await {}
            match self.next_attempt() {
                Some(next) => pause(self.app, next.saturating_duration_since(Instant::now())).await?,
                None if launched > 0 => {}
                None if self.others == 0 => return Ok(()),
                // Whoever waits for our end expects that everything is executed, by whomever.
                None => self.share.wait_for_others(self.others).await?,
            }
        }
    }

    async fn run(&mut self) -> Result<(), WorkerError> {
        let ended = self.serve().await;
        self.share.leave().await;
        ended
    }

    async fn serve(&mut self) -> Result<(), WorkerError> {
        let app = self.app;
        let idle = idle_interval(app.config.workers.transfer_idle_sleep);
        let mut next = NextLook { all: Instant::now(), announced: None };
        let mut looked_at_all = Instant::now();
        loop {
            let began = Instant::now();
            if let Some(look) = next.due(began, looked_at_all) {
                next.announced = None;
                self.look(look).await?;
                if look == Look::All {
                    looked_at_all = began;
                    // Should others end without a word, their share is free then.
                    let pause = if self.others > 0 { idle.min(leases::lease(app)) } else { idle };
                    next.all = Instant::now() + pause;
                }
            }
            let now = Instant::now();
            let due = self.next_attempt().map_or(next.at(), |attempt| attempt.min(next.at()));
            tokio::select! {
                biased;
                () = app.drain.draining() => return Ok(()),
                true = self.step() => {}
                () = app.notices.transfers.notified() => {
                    next.announce(now, self.is_beside_clients());
                }
                () = tokio::time::sleep_until(due) => {
                    // What is to be tried again is anywhere in the queue.
                    if next.due(Instant::now(), looked_at_all).is_none() {
                        next.all = Instant::now();
                    }
                }
            }
        }
    }

    /// Waits until a request is answered or answers are recorded. False: nothing is under way.
    async fn step(&mut self) -> bool {
        if self.recording.is_none() && !self.answered.is_empty() {
            let waited = self.answered_since.elapsed() >= RECORD_AFTER;
            if waited || self.answered.len() >= RECORD_SOON || self.asking.is_empty() {
                let rest = self.answered.split_off(self.answered.len().min(RECORD_MAX));
                let page = std::mem::replace(&mut self.answered, rest);
                self.recording = Some(Box::pin(record(self.app.lane.clone(), page)));
            }
        }
        if self.asking.is_empty() && self.recording.is_none() {
            return false;
        }
        let waits = self.recording.is_none() && !self.answered.is_empty();
        let recording = async {
            match &mut self.recording {
                Some(recording) => recording.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            recorded = recording => {
                self.recording = None;
                self.recorded(recorded);
            }
            Some(answered) = self.asking.next() => self.answered(answered),
            () = tokio::time::sleep_until(self.answered_since + RECORD_AFTER), if waits => {}
        }
        let in_flight = self.asking.len() as u64;
        self.app.metrics.workers.transfers_in_flight.set(in_flight);
        true
    }

    /// Looks through the open transfers and asks for those that are due; says how many.
    async fn look(&mut self, which: Look) -> Result<usize, WorkerError> {
        self.just_ended.clear();
        let mut position = match which {
            Look::All => {
                self.others = 0;
                None
            }
            Look::New => self.seen.clone(),
        };
        let size = self.options.shard_size.map(|size| usize::try_from(size).unwrap_or(PAGE_MAX));
        let mut launched = 0;
        let mut oldest = None;
        let mut still_open = HashSet::new();
        loop {
            let from = position.take();
            let again = from.clone();
            let suits = if self.is_beside_clients() { PAGE_BESIDE_CLIENTS } else { PAGE };
            let limit = size.unwrap_or(suits).clamp(1, PAGE_MAX);
            let page = read(self.app, move |store| {
                let found = queues::open_transfers(store, from, limit)?;
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
            if let Some(first) = page.first() {
                oldest.get_or_insert(first.found.row.time);
            }
            for open in &page {
                if self.later.contains_key(&open.found.key.wtid) {
                    still_open.insert(open.found.key.wtid);
                }
            }
            let slots = if page.is_empty() { self.slots } else { self.slots().await? };
            if std::mem::replace(&mut self.slots, slots) != slots {
                // Whoever had these slots may have done what the page lists.
                position = again;
                continue;
            }
            if let Some(last) = page.last() {
                let last = queues::serial_position(last.found.serial);
                position = (page.len() == limit).then(|| last.clone());
                self.seen = Some(last);
            }
            for open in page {
                let wtid = open.found.key.wtid;
                if !slots.has(wtid.as_bytes()[0], wtid.as_bytes()[31]) {
                    self.others += 1;
                    continue;
                }
                if !self.is_due(wtid) {
                    continue;
                }
                self.waited_s = self.age_s(open.found.row.time);
                while self.asking.len() >= self.in_flight_max() || self.answered.len() >= UNRECORDED_MAX {
                    check_drain(self.app)?;
                    self.step().await;
                }
                check_drain(self.app)?;
                launched += usize::from(self.launch(open));
            }
            if position.is_none() {
                break;
            }
        }
        if which == Look::New {
            return Ok(launched);
        }
        // What others have settled meanwhile.
        let (in_flight, just_ended) = (&self.in_flight, &self.just_ended);
        self.later.retain(|wtid, _| {
            still_open.contains(wtid) || in_flight.contains(wtid) || just_ended.contains(wtid)
        });
        let metrics = &self.app.metrics.workers;
        metrics.transfer_lag_s.set(oldest.map_or(0, |time| self.age_s(time)));
        let set_aside = self.aside.end_round();
        metrics.transfers_set_aside.set(set_aside);
        self.progress.set_aside = self.failed + set_aside;
        Ok(launched)
    }

    /// Its share of the queue now. What is given up goes to others when nothing of it is under way any more, so that the bank is
    /// not asked twice.
    async fn slots(&mut self) -> Result<Slots, WorkerError> {
        let share = self.share.kept().await?;
        if !share.has_excess {
            return Ok(share.slots);
        }
        while self.step().await {
            check_drain(self.app)?;
        }
        self.share.give().await
    }

    fn age_s(&self, time: Timestamp) -> u64 {
        self.app.now().saturating_since(time).as_micros() / 1_000_000
    }

    fn is_beside_clients(&self) -> bool {
        self.mode == Mode::Service && self.app.lane.metrics().serves_clients()
    }

    fn in_flight_max(&self) -> usize {
        if self.is_beside_clients() {
            looks::in_flight_beside_clients(self.waited_s).min(IN_FLIGHT_MAX)
        } else {
            IN_FLIGHT_MAX
        }
    }

    fn is_due(&self, wtid: Wtid) -> bool {
        let waits = |later: &Later| later.not_before.is_none_or(|time| Instant::now() < time);
        !self.in_flight.contains(&wtid)
            && !self.just_ended.contains(&wtid)
            && !self.later.get(&wtid).is_some_and(waits)
    }

    /// Asks for a transfer, if its account can.
    fn launch(&mut self, open: Open) -> bool {
        let (wtid, row, now) = (open.found.key.wtid, open.found.row, Instant::now());
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
        let gateway = gateway.clone();
        self.in_flight.insert(wtid);
        self.asking.push(Box::pin(async move {
            let verdict = judge(gateway.transfer(&request).await);
            Answered { wtid, account, verdict }
        }));
        true
    }

    /// Takes note of an answer: what is final waits to be recorded.
    fn answered(&mut self, answered: Answered) {
        let Answered { wtid, account, verdict } = &answered;
        let (wtid, account) = (*wtid, *account);
        if !matches!(verdict, Verdict::Again(_)) {
            self.health.remove(&account);
        }
        let metrics = &self.app.metrics.workers;
        let attempts = self.later.get(&wtid).map_or(0, |later| later.attempts) + 1;
        match answered.verdict {
            Verdict::Done | Verdict::Failed(_) => {
                if self.answered.is_empty() {
                    self.answered_since = Instant::now();
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
                    Mode::Service => Some(Instant::now() + growing(2_000, 300_000).pause(attempts)),
                };
                self.later.insert(wtid, Later { account, attempts, not_before });
            }
            Verdict::Again(error) => {
                self.end(wtid);
                tracing::warn!(%wtid, %error, attempts, "a transfer will be asked for again");
                self.rest(account);
                let section =
                    self.gateways.get(&account).map_or_else(String::new, |(section, _)| section.clone());
                self.again(wtid, account, attempts, WorkerError::Bank { section, source: error.into() });
            }
        }
    }

    /// Takes note of what was recorded.
    fn recorded(&mut self, recorded: Recorded) {
        let metrics = &self.app.metrics.workers;
        for (Answered { wtid, account, verdict }, result) in recorded {
            self.end(wtid);
            match (result, verdict) {
                (Err(error), _) => {
                    let attempts = self.later.get(&wtid).map_or(0, |later| later.attempts) + 1;
                    tracing::warn!(%wtid, error, attempts, "the bank's answer was not recorded");
                    self.again(wtid, account, attempts, WorkerError::Refused(error));
                }
                (Ok(()), Verdict::Failed(reason)) => {
                    metrics.transfers_failed.inc();
                    self.later.remove(&wtid);
                    self.failed += 1;
                    tracing::error!(%wtid, reason, "the bank refuses a transfer for good: an operator has to look");
                }
                (Ok(()), _) => {
                    metrics.transfers.inc();
                    self.later.remove(&wtid);
                    self.progress.done += 1;
                }
            }
        }
    }

    fn end(&mut self, wtid: Wtid) {
        self.in_flight.remove(&wtid);
        self.just_ended.insert(wtid);
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
async fn record(lane: Lanes<ExchangeRules>, page: Vec<Answered>) -> Recorded {
    let submit = async |command| match lane.submit(command).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(refusal)) => Err(refusal.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let is_done = |answered: &&Answered| matches!(answered.verdict, Verdict::Done);
    let wtids: Vec<_> = page.iter().filter(is_done).map(|answered| answered.wtid).collect();
    // If one of them cannot be recorded, the others still shall be.
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
