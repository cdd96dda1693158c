//! The lane of the switch: one thread that takes a batch of commands, decides them, makes the decisions
//! durable, and passes on their consequences.
//!
//! Requests and the ledger's answers share batches, so that each round needs only one commit:
//!
//! ```text
//!  requests ─▶ ┌──────┐ intents ─▶ clearing ─▶ ledger
//!              │ lane │                          │
//!   answers ─▶ └──────┘ ◀────────────────────────┘
//!                 │ told, deadlines
//!                 ▼
//!           senders, expiry
//! ```
//!
//! The queue of requests is limited. Internal commands (answers of the ledger, deliveries) are always
//! accepted: the number of admitted requests bounds theirs.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_engine::{
    BatchLimits, Batcher, LaneMetrics, QueueLimits, SubmissionQueue, Submissions, SubmitError, Taken, Wait,
};
use batzen_metrics::Gauge;
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::switch::Outbox;
use tokio::sync::{mpsc, oneshot};

use crate::config::SwitchClock;
use crate::rules::{Command, Intent, Numbered, Outcome, Refusal, SwitchRules};

/// The most commands in one batch.
const BATCH_COMMANDS_MAX: usize = 2048;
/// The pause after a failed commit.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The decision on a command, or the reason why there is none.
pub type Verdict = Result<Result<Outcome, Refusal>, SubmitError>;

struct Job {
    command: Command,
    /// The receiver of the verdict. An internal command has none; it is repeated until it is durable.
    reply: Option<oneshot::Sender<Verdict>>,
}

/// Receives the consequences of decided commands. Called by the lane's thread, so it must not block.
pub trait Follow: Send + 'static {
    /// These participants have new messages.
    fn told(&self, participants: &[u32]);
    /// A deadline at this time, in milliseconds since 1970.
    fn deadline(&self, millis: u64);
}

struct Shared {
    queue: SubmissionQueue<Job>,
    intents_max: u64,
    metrics: Arc<LaneMetrics>,
    open_intents: Arc<Gauge>,
}

/// A handle on the lane. Clones share it.
#[derive(Clone)]
pub struct Lane {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// Limits of the lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// The most requests that may wait.
    pub requests_max: usize,
    /// The most transfers that may wait for the ledger; beyond that, requests are refused.
    pub intents_max: u64,
}

impl Lane {
    /// Starts the thread. Intents are sent to `intents`.
    ///
    /// # Errors
    /// When the outbox cannot be read.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(
        rules: SwitchRules,
        store: Store,
        clock: SwitchClock,
        limits: LaneLimits,
        intents: mpsc::UnboundedSender<Vec<Intent>>,
        follow: impl Follow,
    ) -> Result<Self, StoreError> {
        let mut first_number = 1;
        store.scan::<Outbox>(|found| {
            first_number = first_number.max(found.key.number + 1);
            std::ops::ControlFlow::Continue(())
        })?;
        let LaneLimits { requests_max, intents_max } = limits;
        let metrics = Arc::<LaneMetrics>::default();
        let open_intents = Arc::<Gauge>::default();
        let (queue, submissions) =
            SubmissionQueue::new(QueueLimits::commands(requests_max), Arc::clone(&metrics));
        let worker = Worker {
            submissions,
            batcher: Batcher::with_metrics(Arc::new(rules), store, Arc::clone(&metrics)),
            clock,
            metrics: Arc::clone(&metrics),
            open_intents: Arc::clone(&open_intents),
            intents,
            follow,
            next_number: first_number,
        };
        let shared = Arc::new(Shared { queue, intents_max, metrics, open_intents });
        let thread = std::thread::Builder::new().name("lane".to_owned()).spawn(move || worker.run());
        let thread = thread.expect("the operating system starts the lane's thread");
        Ok(Self { shared, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Decides a command. Returns after it is durable.
    ///
    /// # Errors
    /// [`SubmitError`]: it was not decided.
    pub async fn submit(&self, command: Command) -> Verdict {
        self.enqueue(command)?.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// The same for threads outside the async runtime.
    ///
    /// # Errors
    /// [`SubmitError`]: it was not decided.
    pub fn submit_blocking(&self, command: Command) -> Verdict {
        self.enqueue(command)?.blocking_recv().unwrap_or(Err(SubmitError::Stopped))
    }

    fn enqueue(&self, command: Command) -> Result<oneshot::Receiver<Verdict>, SubmitError> {
        let Shared { queue, intents_max, metrics, open_intents } = &*self.shared;
        if open_intents.get() >= *intents_max && !queue.is_closed() {
            metrics.rejected();
            return Err(SubmitError::Overloaded);
        }
        let (reply, verdict) = oneshot::channel();
        queue.push(Job { command, reply: Some(reply) }, 1).map_err(|(error, _)| error)?;
        Ok(verdict)
    }

    /// Submits an internal command. It is repeated until the store accepts it.
    pub fn submit_internal(&self, command: Command) {
        self.shared.queue.push_internal(Job { command, reply: None });
    }

    /// The lane's metrics.
    #[must_use]
    pub fn metrics(&self) -> &LaneMetrics {
        &self.shared.metrics
    }

    /// Intents that were passed to the ledger but not yet answered.
    #[must_use]
    pub fn open_intents(&self) -> &Gauge {
        &self.shared.open_intents
    }

    /// Closes the lane: submitted commands are decided, later ones are refused.
    pub fn close(&self) {
        self.shared.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            assert!(thread.join().is_ok(), "the lane ended with a broken assertion");
        }
    }
}

struct Worker<F> {
    submissions: Submissions<Job>,
    batcher: Batcher<SwitchRules>,
    clock: SwitchClock,
    metrics: Arc<LaneMetrics>,
    open_intents: Arc<Gauge>,
    intents: mpsc::UnboundedSender<Vec<Intent>>,
    follow: F,
    next_number: u64,
}

impl<F: Follow> Worker<F> {
    fn run(mut self) {
        let limits = BatchLimits::commands(BATCH_COMMANDS_MAX);
        loop {
            let mut jobs = Vec::new();
            if self.submissions.take(&mut jobs, limits, Wait::Forever) == Taken::Closed {
                return;
            }
            self.metrics.dequeued(jobs.iter().filter(|job| job.reply.is_some()).count() as u64);
            self.batch(jobs);
        }
    }

    fn batch(&mut self, jobs: Vec<Job>) {
        let begun = Instant::now();
        let micros = (self.clock)();
        let (commands, replies): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .map(|Job { command, reply }| {
                let number = self.next_number;
                self.next_number += command.numbers();
                (Numbered { number, micros, command }, reply)
            })
            .unzip();
        let run = || self.batcher.run(&commands, &move || Timestamp::from_micros(micros));
        let verdicts = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
            Ok(verdicts) => verdicts,
            Err(panic) => {
                // The rules can no longer be trusted with the books: stopping is better than a wrong balance.
                tracing::error!(
                    "invariant broken in a rule: the process ends, nothing of the batch was committed"
                );
                if cfg!(test) {
                    std::panic::resume_unwind(panic);
                }
                std::process::abort();
            }
        };
        self.metrics.batch_time(begun.elapsed());
        match verdicts {
            Ok(verdicts) => {
                for ((verdict, reply), Numbered { command, .. }) in
                    verdicts.into_iter().zip(replies).zip(commands)
                {
                    if let Command::Answers(answers) = &command {
                        let left = self.open_intents.get().saturating_sub(answers.len() as u64);
                        self.open_intents.set(left);
                    }
                    if let Ok(outcome) = &verdict {
                        self.pass_on(outcome);
                    } else if let (Err(refusal), None) = (&verdict, &reply) {
                        tracing::error!(%refusal, "an internal command was refused");
                    }
                    if let Some(reply) = reply {
                        // A client that has disconnected will ask again.
                        let _ = reply.send(Ok(verdict));
                    }
                }
            }
            Err(error) => {
                self.metrics.failed_batch();
                tracing::error!(%error, commands = commands.len(), "batch not committed");
                let error = Arc::new(error);
                let mut internal = Vec::new();
                for (reply, Numbered { command, .. }) in replies.into_iter().zip(commands) {
                    match reply {
                        Some(reply) => {
                            let _ = reply.send(Err(SubmitError::Store(Arc::clone(&error))));
                        }
                        None => internal.push(Job { command, reply: None }),
                    }
                }
                // When the lane ends they are dropped. The intents stay in the store, and the next start
                // repeats them.
                self.submissions.put_back_internal(internal);
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }

    fn pass_on(&self, outcome: &Outcome) {
        if !outcome.intents.is_empty() {
            self.open_intents.set(self.open_intents.get() + outcome.intents.len() as u64);
            // Sent together, so that a bulk is not split. During shutdown nobody receives them: the next
            // start will.
            let _ = self.intents.send(outcome.intents.clone());
        }
        if !outcome.told.is_empty() {
            self.follow.told(&outcome.told);
        }
        if let Some(millis) = outcome.deadline {
            self.follow.deadline(millis);
        }
    }
}
