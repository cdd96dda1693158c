//! The thread of the service that follows the exchange: it checks what comes, compares with bank and merchants every
//! few minutes or when there is something new, and keeps the last report at hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use batzen_crypto::ShortHash;
use batzen_http::Drain;
use batzen_metrics::Page;
use batzen_protocol::Timestamp;
use batzen_service::storage::StoreConfig;
use batzen_store::{Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::checks::{self, Report, Timeline};
use crate::liabilities::{self, LiabilitiesError, RowSource, Rows};
use crate::live::{
    self, BREATH, FollowConfig, Following, FollowingError, NoteError, Outside, SourceError, Status,
};

/// Time that one wait for changes lasts; jobs and the end are noticed after it.
const WAIT: Duration = Duration::from_millis(200);
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after what another attempt will hardly mend.
const REST: Duration = Duration::from_secs(5);
/// Jobs that may wait.
const JOBS_MAX: usize = 8;

/// A job for the thread between two batches.
pub(crate) enum Job {
    /// Compare now; `is_whole`: after a check of all rows.
    Compare { is_whole: bool, answer: oneshot::Sender<Result<Arc<LastReport>, String>> },
    /// Suppress a finding, or reopen it.
    Note { id: ShortHash, suppresses: bool, reason: String, answer: oneshot::Sender<Result<(), String>> },
}

#[derive(Debug)]
pub(crate) struct LastReport {
    pub(crate) report: Report,
    /// Its forms, made when they are first asked for, so that many readers cost little. The page has [`LIVE`] where the
    /// state of the stream goes.
    forms: OnceLock<(String, serde_json::Value, String)>,
    /// Why the bank could not be asked, if so.
    pub(crate) without_bank: Option<String>,
}

/// Where the state of the stream goes in a page.
const LIVE: &str = "<!--live-->";

impl LastReport {
    fn forms(&self) -> &(String, serde_json::Value, String) {
        self.forms.get_or_init(|| (self.report.html(Some(LIVE)), self.report.json(), self.report.csv()))
    }

    /// The page, with this markup after the verdict.
    pub(crate) fn page(&self, live: &str) -> String {
        self.forms().0.replacen(LIVE, live, 1)
    }

    /// The report for programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        self.forms().1.clone()
    }

    /// The table.
    pub(crate) fn csv(&self) -> &str {
        &self.forms().2
    }
}

/// The service's handle of the thread.
#[derive(Clone)]
pub(crate) struct Running {
    jobs: SyncSender<Job>,
    state: Arc<State>,
    place: StoreConfig,
}

#[derive(Default)]
struct State {
    /// The copy, while it is open.
    copy: Mutex<Option<Store>>,
    status: Mutex<Option<Arc<Status>>>,
    last_report: Mutex<Option<Arc<LastReport>>>,
    failure: Mutex<Option<String>>,
    comparisons: AtomicU64,
    failed_comparisons: AtomicU64,
}

fn set<T>(slot: &Mutex<T>, value: T) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

fn get<T: Clone>(slot: &Mutex<T>) -> T {
    slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Reads what merchants have shown after the confirmation with this number. It blocks.
pub(crate) type ReadConfirmations =
    Box<dyn Fn(u64) -> Result<Vec<crate::audit::Confirmation>, StoreError> + Send>;

impl Running {
    /// Starts the thread. It ends when the service does; until then, whatever fails is tried again.
    pub(crate) fn start(
        config: FollowConfig,
        clock: Arc<dyn batzen_engine::Clock>,
        confirmations: ReadConfirmations,
        drain: Drain,
    ) -> (Self, std::thread::JoinHandle<()>) {
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let place = config.store.clone();
        let state = Arc::new(State::default());
        let worker = Worker {
            config,
            clock: Arc::new(move || clock.now()),
            confirmations,
            drain,
            queue,
            state: Arc::clone(&state),
            handle: Handle::current(),
        };
        let thread = std::thread::Builder::new().name("follow".to_owned()).spawn(move || worker.run());
        (Self { jobs, state, place }, thread.expect("a thread can be started"))
    }

    /// Asks the thread to do something. Refused if it is too busy.
    pub(crate) fn send(&self, job: Job) -> Result<(), String> {
        self.jobs.try_send(job).map_err(|_| "the auditor is busy: try again".to_owned())
    }

    /// Where the copy is.
    pub(crate) fn place(&self) -> StoreConfig {
        self.place.clone()
    }

    /// The copy while it is open, and the last time at which it was complete. It goes on while it is read.
    pub(crate) fn copy(&self) -> Option<(Store, Timestamp)> {
        let complete = get(&self.state.status).map_or(Timestamp::ZERO, |status| status.complete());
        Some((get(&self.state.copy)?, complete))
    }

    pub(crate) fn last_report(&self) -> Option<Arc<LastReport>> {
        get(&self.state.last_report)
    }

    /// Why it does not go on, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        get(&self.state.failure)
    }

    /// Returns the position in the stream.
    pub(crate) fn progress(&self) -> Option<batzen_feed::metrics::Progress> {
        get(&self.state.status).map(|status| status.feed.get())
    }

    /// Number of rows that a check of all rows has read, if one is going on.
    pub(crate) fn checking_all(&self) -> Option<u64> {
        let status = get(&self.state.status)?;
        let is_checking = status.is_checking_all.load(Ordering::Relaxed);
        is_checking.then(|| status.checks.rows.load(Ordering::Relaxed))
    }

    /// Writes the metrics.
    pub(crate) fn write(&self, page: &mut Page) {
        let last_report = self.last_report();
        FollowMetrics {
            progress: self.progress(),
            has_failed: self.failure().is_some(),
            is_checking_all: self.checking_all().is_some(),
            comparisons: self.state.comparisons.load(Ordering::Relaxed),
            failed_comparisons: self.state.failed_comparisons.load(Ordering::Relaxed),
            report: last_report.as_ref().map(|last_report| &last_report.report),
        }
        .write(page);
    }
}

/// The metrics of an auditor who follows an exchange.
#[derive(Debug, Default)]
pub struct FollowMetrics<'a> {
    /// The stream, once it is begun.
    pub progress: Option<batzen_feed::metrics::Progress>,
    /// Whether it does not go on.
    pub has_failed: bool,
    /// Whether all rows are being checked.
    pub is_checking_all: bool,
    /// Number of comparisons with bank and merchants.
    pub comparisons: u64,
    /// Number of failed requests to the bank.
    pub failed_comparisons: u64,
    /// The last report.
    pub report: Option<&'a Report>,
}

impl FollowMetrics<'_> {
    /// Writes them.
    pub fn write(&self, page: &mut Page) {
        if let Some(progress) = &self.progress {
            progress.write(page);
        }
        page.gauge(
            "batzen_audit_failed",
            "Whether the exchange cannot be followed",
            u8::from(self.has_failed),
        );
        page.gauge(
            "batzen_audit_checking_all",
            "Whether all rows of the copy are being checked, as after a snapshot",
            u8::from(self.is_checking_all),
        );
        page.counter(
            "batzen_audit_comparisons_total",
            "Comparisons with bank and merchants",
            self.comparisons,
        );
        page.counter(
            "batzen_audit_failed_comparisons_total",
            "Comparisons for which the bank could not be asked",
            self.failed_comparisons,
        );
        if let Some(report) = self.report {
            report.write_metrics(page);
        }
    }
}

/// The copy of an auditor who follows the exchange, and goes on while it is read.
impl RowSource for Running {
    fn read_rows(&self, _: &liabilities::Request) -> Result<(Rows, Timestamp), LiabilitiesError> {
        let closed = || StoreError::Backend("the copy is not open yet: try again".to_owned());
        let (store, complete) = self.copy().ok_or_else(closed)?;
        let (rows, stored) = liabilities::rows_of_copy(&store)?;
        Ok((rows, complete.max(stored)))
    }
}

struct Worker {
    config: FollowConfig,
    clock: batzen_feed::Clock,
    confirmations: ReadConfirmations,
    drain: Drain,
    queue: Receiver<Job>,
    state: Arc<State>,
    handle: Handle,
}

/// Why the thread begins again.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the copy: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Following(#[from] FollowingError),
}

impl Worker {
    fn is_ending(&self) -> bool {
        self.drain.is_draining()
    }

    fn run(self) {
        while !self.is_ending() {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.follow()));
            let failure = match ended {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                // Sums that do not fit are impossible in a sane store (auditor chapter 1.4).
                Err(_) => "the checks failed: see the log".to_owned(),
            };
            if get(&self.state.failure).as_ref() != Some(&failure) {
                tracing::error!(%failure, "the exchange is not followed");
            }
            set(&self.state.failure, Some(failure));
            let until = Instant::now() + REST;
            while Instant::now() < until && !self.is_ending() {
                if let Ok(job) = self.queue.recv_timeout(WAIT) {
                    self.refuse(job);
                }
            }
        }
    }

    /// Answers while there is nothing to work on.
    fn refuse(&self, job: Job) {
        let failure = get(&self.state.failure).unwrap_or_default();
        // Whoever asked may have gone.
        match job {
            Job::Compare { answer, .. } => drop(answer.send(Err(failure))),
            Job::Note { answer, .. } => drop(answer.send(Err(failure))),
        }
    }

    fn follow(&self) -> Result<(), WorkError> {
        let options = self.config.source.options(Arc::clone(&self.clock))?;
        let store = self.config.store.open(&batzen_service::storage::AUDITOR_COPY, 1)?;
        let threads = match self.config.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
            threads => threads,
        };
        let subject = Some(self.config.checks.subject.clone());
        let following = Following::new(options, store.clone(), subject, threads);
        set(&self.state.copy, Some(store.clone()));
        let worked = following.map_err(FollowingError::Feed).map_err(WorkError::Following).and_then(
            |mut following| {
                let (status, drain) = (following.status(), self.drain.clone());
                let stopper = self.handle.spawn(async move {
                    drain.draining().await;
                    status.checks.stop.store(true, Ordering::Relaxed);
                });
                let worked = self.work(&mut following, &store);
                stopper.abort();
                worked
            },
        );
        set(&self.state.copy, None);
        store.close()?;
        worked
    }

    fn work(&self, following: &mut Following, store: &Store) -> Result<(), WorkError> {
        set(&self.state.status, Some(following.status()));
        let mut compared: Option<Instant> = None;
        while !self.is_ending() {
            match following.step(WAIT) {
                Ok(_) => set(&self.state.failure, None),
                Err(error) if error.is_final() => {
                    set(&self.state.failure, Some(error.to_string()));
                    // What was found about the stream belongs into the report.
                    self.compare(following, store)?;
                    return Err(error.into());
                }
                Err(error) => {
                    let failure = error.to_string();
                    if get(&self.state.failure).as_ref() != Some(&failure) {
                        tracing::warn!(%failure, "the exchange is not followed; trying again");
                    }
                    set(&self.state.failure, Some(failure));
                    std::thread::sleep(PAUSE);
                }
            }
            if self.is_check_due(following)? {
                tracing::info!("checking all rows of the copy again");
                following.check_all()?;
                compared = None;
            }
            let since = compared.map(|compared| compared.elapsed());
            let is_due = since.is_none_or(|since| since >= self.config.compare_interval);
            let has_new_findings = following.live()?.is_some_and(|live| live.has_new_findings())
                && since.is_none_or(|since| since >= BREATH);
            // Before the first rows there is nothing to compare.
            let has_rows = following.live()?.is_some_and(|live| live.state().is_some());
            if has_rows && (is_due || has_new_findings) {
                self.compare(following, store)?;
                compared = Some(Instant::now());
            }
            while let Ok(job) = self.queue.try_recv() {
                match job {
                    Job::Compare { is_whole, answer } => {
                        if is_whole {
                            following.check_all()?;
                        }
                        let last_report = self.compare(following, store)?;
                        compared = Some(Instant::now());
                        let last_report = last_report.ok_or_else(|| "the copy is not whole yet".to_owned());
                        let _ = answer.send(last_report);
                    }
                    Job::Note { id, suppresses, reason, answer } => {
                        let now = (self.clock)();
                        let noted = live::note(store, id, suppresses, &reason, now);
                        if let Err(NoteError::Store(error)) = noted {
                            let _ = answer.send(Err(error.to_string()));
                            return Err(error.into());
                        }
                        let _ = answer.send(noted.map_err(|error| error.to_string()));
                        self.compare(following, store)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether all rows are to be checked again, since the last time was long ago.
    fn is_check_due(&self, following: &mut Following) -> Result<bool, FollowingError> {
        let Some(interval) = self.config.check_all_interval else { return Ok(false) };
        let whole = following.live()?.and_then(|live| live.state().map(|row| row.whole));
        Ok(whole.is_some_and(|whole| whole.saturating_add(interval) <= (self.clock)()))
    }

    fn compare(
        &self,
        following: &mut Following,
        store: &Store,
    ) -> Result<Option<Arc<LastReport>>, WorkError> {
        let checks_config = &self.config.checks;
        let started = Timestamp::from_system_time(std::time::SystemTime::now());
        let Some(since) = following.live()?.map(|live| live.since()).transpose()? else { return Ok(None) };
        let mut outside = Outside::default();
        let reading = checks::read_bank(checks_config, &since, false);
        let without_bank = match self.handle.block_on(reading) {
            Ok(bank) => {
                outside.asked.bank = !bank.is_empty();
                outside.bank = bank;
                None
            }
            Err(error) => {
                self.state.failed_comparisons.fetch_add(1, Ordering::Relaxed);
                Some(error.to_string())
            }
        };
        outside.confirmations = (self.confirmations)(since.confirmation)?;
        outside.asked.merchants = true;
        let Some(outcome) = following.compare(outside)? else { return Ok(None) };
        self.state.comparisons.fetch_add(1, Ordering::Relaxed);
        let ended = Timestamp::from_system_time(std::time::SystemTime::now());
        let context = checks::context(checks_config, (started, ended), true);
        let timeline = Some(Timeline::read(store, (self.clock)())?);
        let report =
            Report { outcome, context, exchange_url: checks_config.subject.base_url.clone(), timeline };
        let last_report = Arc::new(LastReport { report, without_bank, forms: OnceLock::new() });
        set(&self.state.last_report, Some(Arc::clone(&last_report)));
        Ok(Some(last_report))
    }
}
