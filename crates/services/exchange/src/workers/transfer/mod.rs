//! transfer: submits prepared transfers to the bank.
//!
//! The request for a transfer never changes, and the bank identifies it by its request uid. So it may be
//! repeated after any failure, and the bank never pays twice. Passes through the open transfers start at the
//! front, without a stored cursor, so no transfer is skipped for good. In between, when new transfers are
//! announced, a pass reads only those after the last one. Several workers, in one or several processes, each
//! have a share of the queue (`leases`). Each page of answers is recorded by one command while other requests
//! are in flight, so no request waits for a commit. If a kill loses answers before they are recorded, those
//! transfers are requested again.
//! | the bank's answer | effect |
//! |---|---|
//! | 200 | done |
//! | 404 (unknown account), 400, 413, 414, 422, 409 with code 5112 (the uid names another transfer) | failed; an operator must act (`batzen exchange transfers`) |
//! | 409 with code 5102 (too little money) | retry after a pause |
//! | anything else, or nothing | retry with growing pauses, for ever |
//!
//! | module | contents |
//! |---|---|
//! | `schedule` | the schedule of passes through the open transfers, and the request rate |
//! | `finding` | finds the transfers that are due, and requests them |
//! | `pages` | reads them with the accounts that they pay |
//! | `answers` | the bank's answers: their meaning, their recording, and retries |

mod answers;
mod finding;
mod pages;
mod schedule;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use batzen_crypto::Wtid;
use batzen_service::wire_gateway::WireGatewayClient;
use batzen_tables::exchange::{AccountId, LeaseJob};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::leases::{self, Share};
use super::{
    Aside, Mode, Progress, WorkerError, WorkerOptions, client, debit_accounts, gateway, idle_interval, pause,
    queues,
};
use crate::core::Core;
use crate::rules::leases::Slots;
use answers::{Answered, Asking, Health, Recording, Retry, record};
use schedule::{NextPass, Pass};

/// Connections to a bank, which answers the requests of a connection one after the other.
const CONNECTIONS_MAX: usize = 256;
/// Number of answers that one command records, so that payments behind it in the lane do not wait long.
const RECORD_MAX: usize = 512;
/// Number of answers that are recorded at once; fewer when they have waited for [`RECORD_AFTER`] or nothing else is
/// in flight.
const RECORD_SOON: usize = 128;
/// Time that an answer may wait to be recorded together with others.
const RECORD_AFTER: Duration = Duration::from_millis(5);

/// Executes all open transfers.
///
/// # Errors
/// [`WorkerError::Bank`] when the bank fails repeatedly on one of them. The others are still tried.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    share_until_idle(app, WorkerOptions::default()).await
}

/// The same as one of several workers.
///
/// # Errors
/// As [`run_until_idle`].
pub async fn share_until_idle(app: &Core, options: WorkerOptions) -> Result<Progress, WorkerError> {
    let mut transfers = Transfers::new(app, Mode::UntilIdle, options)?;
    let ended = transfers.until_idle().await;
    transfers.share.leave().await;
    ended?;
    match transfers.gave_up {
        Some(error) => Err(error),
        None => Ok(transfers.progress),
    }
}

/// Executes transfers until the service ends, as one of several workers. Reads the queue at the configured
/// interval.
///
/// # Errors
/// When the store fails.
pub async fn serve(app: &Core, options: WorkerOptions) -> Result<(), WorkerError> {
    Transfers::new(app, Mode::Service, options)?.run().await
}

/// Executes transfers until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    // Requests in flight at the end are dropped; they will be repeated.
    Transfers::new(app, Mode::Service, WorkerOptions::default())?.run().await
}

struct Transfers<'a> {
    app: &'a Core,
    mode: Mode,
    options: WorkerOptions,
    share: Share<'a>,
    /// Its share of the queue at the last read of a page.
    slots: Slots,
    gateways: HashMap<AccountId, (String, WireGatewayClient)>,
    /// Requests in flight.
    asking: FuturesUnordered<Asking>,
    /// Final answers that must be recorded, and when the first of them arrived.
    answered: Vec<Answered>,
    answered_since: Instant,
    recording: Option<Recording>,
    /// Transfers requested or answered, until the answer is recorded.
    in_flight: HashSet<Wtid>,
    /// Transfers that ended since the current pass started: a page read earlier may still list them.
    just_ended: HashSet<Wtid>,
    /// The number of transfers of other workers since the last pass from the front started.
    others: usize,
    /// The position up to which the queue was read.
    seen: Option<queues::Position>,
    /// The age of the transfer that was read last, in seconds.
    waited_s: u64,
    retries: HashMap<Wtid, Retry>,
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
                let client = client(app, &section, CONNECTIONS_MAX)?;
                let gateway = || match app.transport {
                    Some(_) => gateway(&client, config),
                    None => gateway(&client, config).with_transfer_connections(CONNECTIONS_MAX),
                };
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
            answered_since: app.timers.now(),
            recording: None,
            in_flight: HashSet::new(),
            just_ended: HashSet::new(),
            others: 0,
            seen: None,
            waited_s: 0,
            retries: HashMap::new(),
            health: HashMap::new(),
            aside: Aside::new(),
            progress: Progress::default(),
            failed: 0,
            gave_up: None,
        })
    }

    async fn until_idle(&mut self) -> Result<(), WorkerError> {
        loop {
            let launched = self.pass(Pass::All).await?;
            while self.step_or_end().await? {}
            match self.next_attempt() {
                Some(next) => pause(self.app, next.saturating_duration_since(self.app.timers.now())).await?,
                None if launched > 0 => {}
                None if self.others == 0 => return Ok(()),
                // The caller expects that all transfers are executed in the end, including those of other
                // workers.
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
        let mut next = NextPass { all: app.timers.now(), announced: None };
        let mut full_pass_at = app.timers.now();
        loop {
            let began = app.timers.now();
            if let Some(pass) = next.due(began, full_pass_at) {
                next.announced = None;
                self.pass(pass).await?;
                if pass == Pass::All {
                    full_pass_at = began;
                    // By then, the leases of killed workers have expired.
                    let pause = if self.others > 0 { idle.min(leases::lease(app)) } else { idle };
                    next.all = app.timers.now() + pause;
                }
            }
            let now = app.timers.now();
            let due = self.next_attempt().map_or(next.at(), |attempt| attempt.min(next.at()));
            tokio::select! {
                biased;
                () = app.drain.draining() => return Ok(()),
                true = self.step() => {}
                () = app.notices.transfers.announced() => {
                    next.announce(now, self.is_beside_clients());
                }
                () = app.timers.sleep_until(due) => {
                    // Retries can be anywhere in the queue.
                    if next.due(app.timers.now(), full_pass_at).is_none() {
                        next.all = app.timers.now();
                    }
                }
            }
        }
    }

    /// The same, unless the service ends, because the bank may take long to answer.
    async fn step_or_end(&mut self) -> Result<bool, WorkerError> {
        let app = self.app;
        tokio::select! {
            biased;
            () = app.drain.draining() => Err(WorkerError::Stopped),
            is_under_way = self.step() => Ok(is_under_way),
        }
    }

    /// Waits until a request is answered or answers are recorded. False: nothing is in flight.
    async fn step(&mut self) -> bool {
        if self.recording.is_none() && !self.answered.is_empty() {
            let waited = self.app.timers.now() - self.answered_since >= RECORD_AFTER;
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
                self.handle_recorded(recorded);
            }
            Some(answered) = self.asking.next() => self.handle_answer(answered),
            () = self.app.timers.sleep_until(self.answered_since + RECORD_AFTER), if waits => {}
        }
        let in_flight = self.asking.len() as u64;
        self.app.metrics.workers.transfers_in_flight.set(in_flight);
        true
    }
}
