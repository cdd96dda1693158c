//! The lane of the switch: one thread that takes what has queued up, decides it, makes it durable, and hands on what follows
//! from it.
//!
//! Requests and the ledger's answers share batches, so that each turn costs one commit:
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
//! The queue of requests is limited; what the switch asks of itself (answers, expiries, deliveries) always finds a place: its
//! amount follows from what was admitted.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_engine::Batcher;
use batzen_metrics::{Counter, Gauge, Histogram};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::switch::Outbox;
use tokio::sync::{mpsc, oneshot};

use crate::config::SwitchClock;
use crate::rules::{Command, Intent, Numbered, Outcome, Refusal, SwitchRules};

/// Commands in one batch.
const BATCH_COMMANDS_MAX: usize = 2048;
/// How long the lane waits after the store has failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a command was not decided.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LaneError {
    /// Too many wait: nothing was done, try later.
    #[error("the switch is busy")]
    Busy,
    /// The switch ends.
    #[error("the switch ends")]
    Stopped,
    /// The store cannot be written: nothing was done.
    #[error("store: {0}")]
    Store(Arc<StoreError>),
}

/// What became of a command.
pub type Verdict = Result<Result<Outcome, Refusal>, LaneError>;

struct Job {
    command: Command,
    /// Who waits; none: the switch itself, and the command is repeated until it is done.
    reply: Option<oneshot::Sender<Verdict>>,
}

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Job>,
    own: VecDeque<Command>,
    ending: bool,
}

/// Told what follows from decided commands. Called by the lane's thread: must not block.
pub trait Follow: Send + 'static {
    /// These participants have new messages.
    fn told(&self, participants: &[u32]);
    /// Something expires at this time, in milliseconds since 1970.
    fn deadline(&self, millis: u64);
}

/// Counters of the lane.
#[derive(Debug)]
pub struct LaneCounters {
    /// Commands in a batch.
    pub batch_commands: Histogram,
    /// Time of a batch, from taking the commands to the end of the commit.
    pub batch_time: Histogram,
    /// Requests that found the queue full.
    pub rejected: Counter,
    /// Batches that could not be committed.
    pub failed: Counter,
    /// Requests that wait.
    pub waiting: Gauge,
    /// Intents handed to the ledger and not answered yet.
    pub intents: Gauge,
}

impl Default for LaneCounters {
    fn default() -> Self {
        Self {
            batch_commands: Histogram::of_counts(),
            batch_time: Histogram::of_times(),
            rejected: Counter::default(),
            failed: Counter::default(),
            waiting: Gauge::default(),
            intents: Gauge::default(),
        }
    }
}

struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    requests_max: usize,
    intents_max: u64,
    counters: LaneCounters,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    /// Requests that may wait.
    pub requests_max: usize,
    /// Transfers that may wait for the ledger: beyond, requests are refused.
    pub intents_max: u64,
}

impl Lane {
    /// Starts the thread. Intents go into `intents`.
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
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            requests_max,
            intents_max,
            counters: LaneCounters::default(),
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            batcher: Batcher::new(Arc::new(rules), store),
            clock,
            intents,
            follow,
            next_number: first_number,
        };
        let thread = std::thread::Builder::new().name("lane".to_owned()).spawn(move || worker.run());
        let thread = thread.expect("the operating system starts the lane's thread");
        Ok(Self { shared, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Decides a command. Returns after it is durable.
    ///
    /// # Errors
    /// [`LaneError`]: it was not decided.
    pub async fn submit(&self, command: Command) -> Verdict {
        self.enqueue(command)?.await.unwrap_or(Err(LaneError::Stopped))
    }

    /// The same for threads outside the async runtime.
    ///
    /// # Errors
    /// [`LaneError`]: it was not decided.
    pub fn submit_blocking(&self, command: Command) -> Verdict {
        self.enqueue(command)?.blocking_recv().unwrap_or(Err(LaneError::Stopped))
    }

    fn enqueue(&self, command: Command) -> Result<oneshot::Receiver<Verdict>, LaneError> {
        let counters = &self.shared.counters;
        let (reply, verdict) = oneshot::channel();
        let mut inbox = self.shared.inbox();
        if inbox.ending {
            return Err(LaneError::Stopped);
        }
        if inbox.requests.len() >= self.shared.requests_max
            || counters.intents.get() >= self.shared.intents_max
        {
            counters.rejected.inc();
            return Err(LaneError::Busy);
        }
        inbox.requests.push_back(Job { command, reply: Some(reply) });
        counters.waiting.set(inbox.requests.len() as u64);
        drop(inbox);
        self.shared.arrived.notify_one();
        Ok(verdict)
    }

    /// Hands in what the switch asks of itself. It is repeated until the store takes it.
    pub fn submit_own(&self, command: Command) {
        self.shared.inbox().own.push_back(command);
        self.shared.arrived.notify_one();
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &LaneCounters {
        &self.shared.counters
    }

    /// Ends the lane: what was handed in is decided, later requests are refused.
    pub fn close(&self) {
        self.shared.inbox().ending = true;
        self.shared.arrived.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            assert!(thread.join().is_ok(), "the lane ended with a broken assertion");
        }
    }
}

struct Worker<F> {
    shared: Arc<Shared>,
    batcher: Batcher<SwitchRules>,
    clock: SwitchClock,
    intents: mpsc::UnboundedSender<Vec<Intent>>,
    follow: F,
    next_number: u64,
}

impl<F: Follow> Worker<F> {
    fn run(mut self) {
        while let Some(jobs) = self.take() {
            self.batch(jobs);
        }
    }

    /// Waits for something to do. None: the lane ends.
    fn take(&self) -> Option<Vec<Job>> {
        let mut inbox = self.shared.inbox();
        loop {
            if !inbox.own.is_empty() || !inbox.requests.is_empty() {
                break;
            }
            if inbox.ending {
                return None;
            }
            inbox = self.shared.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        // What has been begun is finished before more is begun.
        let own = std::mem::take(&mut inbox.own).into_iter().map(|command| Job { command, reply: None });
        let mut jobs: Vec<Job> = own.collect();
        let room = BATCH_COMMANDS_MAX.saturating_sub(jobs.len()).max(BATCH_COMMANDS_MAX / 2);
        let taken = room.min(inbox.requests.len());
        jobs.extend(inbox.requests.drain(..taken));
        self.shared.counters.waiting.set(inbox.requests.len() as u64);
        Some(jobs)
    }

    fn batch(&mut self, jobs: Vec<Job>) {
        let begun = Instant::now();
        let micros = (self.clock)();
        let counters = &self.shared.counters;
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
                // The books cannot be trusted to these rules any more: a stop is better than a wrong balance.
                tracing::error!(
                    "invariant broken in a rule: the process ends, nothing of the batch was committed"
                );
                if cfg!(test) {
                    std::panic::resume_unwind(panic);
                }
                std::process::abort();
            }
        };
        counters.batch_commands.count(commands.len() as u64);
        counters.batch_time.time(begun.elapsed());
        match verdicts {
            Ok(verdicts) => {
                for ((verdict, reply), Numbered { command, .. }) in
                    verdicts.into_iter().zip(replies).zip(commands)
                {
                    if let Command::Answers(answers) = &command {
                        let left = counters.intents.get().saturating_sub(answers.len() as u64);
                        counters.intents.set(left);
                    }
                    if let Ok(outcome) = &verdict {
                        self.hand_on(outcome);
                    } else if let (Err(refusal), None) = (&verdict, &reply) {
                        tracing::error!(%refusal, "the switch was refused what it asked of itself");
                    }
                    if let Some(reply) = reply {
                        // Who has gone away will ask again.
                        let _ = reply.send(Ok(verdict));
                    }
                }
            }
            Err(error) => {
                counters.failed.inc();
                tracing::error!(%error, commands = commands.len(), "batch not committed");
                let error = Arc::new(error);
                let mut own = VecDeque::new();
                for (reply, Numbered { command, .. }) in replies.into_iter().zip(commands) {
                    match reply {
                        Some(reply) => {
                            let _ = reply.send(Err(LaneError::Store(Arc::clone(&error))));
                        }
                        None => own.push_back(command),
                    }
                }
                let mut inbox = self.shared.inbox();
                own.append(&mut inbox.own);
                inbox.own = own;
                if inbox.ending {
                    // What is intended stays in the store, and is taken up by the next start.
                    inbox.own.clear();
                }
                drop(inbox);
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn hand_on(&self, outcome: &Outcome) {
        let counters = &self.shared.counters;
        if !outcome.intents.is_empty() {
            counters.intents.set(counters.intents.get() + outcome.intents.len() as u64);
            // Together, so that a bulk is not divided. At the end nobody takes them: the next start will.
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
