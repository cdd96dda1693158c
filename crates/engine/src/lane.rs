//! A lane: one thread that runs batch after batch against one store.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use batzen_store::{CommitOutcome, Store, StoreError};
use tokio::sync::oneshot;

use crate::{Clock, Evidence, LaneMetrics, Plan, Rules, WorkingSet};

/// How often a batch is run again because other nodes inserted its rows first, or a command because its evidence was
/// overtaken, before the store is declared unusable.
const ATTEMPTS_MAX: u32 = 100;

/// Limits of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// Commands that may wait; one more is answered [`EngineError::Overloaded`].
    pub queue_commands_max: usize,
    /// Commands in one batch.
    pub batch_commands_max: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self { queue_commands_max: 16_384, batch_commands_max: 2_048 }
    }
}

/// Why a command was not decided. (A refusal by a rule is a decision, not an error.)
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The queue is full. Nothing was done; try again later.
    #[error("too many commands are waiting: try again later")]
    Overloaded,
    /// The lane has ended. Whether the command took effect is unknown only if it had been accepted before.
    #[error("the store is shutting down")]
    Stopped,
    /// The store could not be read or written. Nothing of the batch was done.
    #[error("store: {0}")]
    Store(Arc<StoreError>),
}

/// Runs batches one at a time in the caller's thread: the whole pipeline without queue and thread, for tests,
/// simulators and set-up steps.
pub struct Batcher<R: Rules> {
    rules: Arc<R>,
    store: Store,
    metrics: Arc<LaneMetrics>,
}

/// What became of one command.
type Verdict<R> = Result<<R as Rules>::Outcome, <R as Rules>::Refusal>;

impl<R: Rules> Batcher<R> {
    /// A pipeline of these rules over this store.
    pub fn new(rules: Arc<R>, store: Store) -> Self {
        Self { rules, store, metrics: Arc::default() }
    }

    /// Executes the commands as one batch (and those whose refusal was overtaken in further ones), durably.
    pub fn run(&self, commands: &[R::Command], clock: &dyn Clock) -> Result<Vec<Verdict<R>>, StoreError> {
        let mut verdicts: Vec<Option<Verdict<R>>> = commands.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..commands.len()).collect();
        let mut attempts = 0;
        while !open.is_empty() {
            attempts += 1;
            assert!(attempts <= ATTEMPTS_MAX, "a command was overtaken {ATTEMPTS_MAX} times in one batch");
            let batch: Vec<&R::Command> = open.iter().map(|index| &commands[*index]).collect();
            let results = self.batch(&batch, clock)?;
            let mut again = Vec::new();
            for (index, mut result) in open.drain(..).zip(results) {
                if let Err(refusal) = &mut result
                    && self.rules.evidence(&commands[index], refusal, &self.store)? == Evidence::Rerun
                {
                    self.metrics.rerun();
                    again.push(index);
                } else {
                    verdicts[index] = Some(result);
                }
            }
            open = again;
        }
        Ok(verdicts.into_iter().map(|verdict| verdict.expect("every command has a verdict")).collect())
    }

    /// Prefetch, execute, commit. Repeats when another node changed one of the rows in between, and halves a batch that is
    /// larger than the store takes in one commit.
    fn batch(&self, commands: &[&R::Command], clock: &dyn Clock) -> Result<Vec<Verdict<R>>, StoreError> {
        let mut overtaken = None;
        for _ in 0..ATTEMPTS_MAX {
            let start = Instant::now();
            let mut plan = Plan::default();
            for command in commands {
                self.rules.plan(command, &mut plan);
            }
            let mut rows = WorkingSet::load(plan, &self.store)?;
            let loaded = Instant::now();
            let now = clock.now();
            let mut refusals = 0;
            let verdicts: Vec<_> = commands
                .iter()
                .map(|command| {
                    rows.begin();
                    let verdict = self.rules.execute(&mut rows, command, now);
                    if verdict.is_err() {
                        rows.rollback();
                        refusals += 1;
                    }
                    verdict
                })
                .collect();
            let changes = rows.changes();
            let executed = Instant::now();
            match self.store.commit(&changes) {
                Ok(CommitOutcome::Committed) => self.rules.committed(&changes),
                Ok(CommitOutcome::Conflict(rows)) => {
                    let (table, key) = rows.into_iter().next().expect("a conflict names the rows");
                    overtaken = Some(StoreError::Stale { table: table.name, key });
                    self.metrics.conflict();
                    continue;
                }
                Err(error @ StoreError::Stale { .. }) => {
                    overtaken = Some(error);
                    self.metrics.conflict();
                    continue;
                }
                Err(StoreError::TooLarge { .. }) if commands.len() > 1 => {
                    let (first, second) = commands.split_at(commands.len() / 2);
                    let mut verdicts = self.batch(first, clock)?;
                    verdicts.extend(self.batch(second, clock)?);
                    return Ok(verdicts);
                }
                Err(error) => return Err(error),
            }
            self.metrics.batch(
                commands.len() as u64,
                refusals,
                [loaded - start, executed - loaded, executed.elapsed()],
            );
            return Ok(verdicts);
        }
        Err(overtaken.expect("a batch is only repeated when it was overtaken"))
    }
}

struct Job<R: Rules> {
    command: R::Command,
    answer: oneshot::Sender<Result<Verdict<R>, EngineError>>,
}

/// A queue of commands and the thread that executes them batch by batch. Clones share both.
pub struct Lane<R: Rules> {
    queue: SyncSender<Job<R>>,
    metrics: Arc<LaneMetrics>,
    store: Store,
    thread: Arc<Thread>,
}

/// Joins the lane's thread when the last handle is gone, so that no commit is cut short by the end of the process.
struct Thread(std::sync::Mutex<Option<JoinHandle<()>>>);

impl<R: Rules> Clone for Lane<R> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            metrics: Arc::clone(&self.metrics),
            store: self.store.clone(),
            thread: Arc::clone(&self.thread),
        }
    }
}

impl<R: Rules> Lane<R> {
    /// Starts the thread. It ends when the last handle is dropped, after everything accepted has been executed.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(rules: Arc<R>, store: Store, clock: Arc<dyn Clock>, options: LaneOptions) -> Self {
        assert!(options.queue_commands_max > 0 && options.batch_commands_max > 0, "limits are positive");
        let (queue, receiver) = sync_channel(options.queue_commands_max);
        let batcher = Batcher::new(rules, store.clone());
        let metrics = Arc::clone(&batcher.metrics);
        metrics.limits(options.queue_commands_max, options.batch_commands_max);
        let thread = std::thread::Builder::new()
            .name("lane".into())
            .spawn(move || run(&batcher, &receiver, clock.as_ref(), options.batch_commands_max))
            .expect("the operating system starts the lane's thread");
        Self { queue, metrics, store, thread: Arc::new(Thread(std::sync::Mutex::new(Some(thread)))) }
    }

    /// Executes one command. Returns after its batch is durable: `Ok(Ok(_))` it took effect, `Ok(Err(_))` a rule
    /// refused it, `Err(_)` it was not decided.
    pub async fn submit(&self, command: R::Command) -> Result<Verdict<R>, EngineError> {
        self.enqueue(command)?.await.unwrap_or(Err(EngineError::Stopped))
    }

    /// [`Lane::submit`] for threads outside the async runtime.
    pub fn submit_blocking(&self, command: R::Command) -> Result<Verdict<R>, EngineError> {
        self.enqueue(command)?.blocking_recv().unwrap_or(Err(EngineError::Stopped))
    }

    fn enqueue(
        &self,
        command: R::Command,
    ) -> Result<oneshot::Receiver<Result<Verdict<R>, EngineError>>, EngineError> {
        let (answer, receiver) = oneshot::channel();
        self.metrics.enqueued();
        self.queue.try_send(Job { command, answer }).map_err(|error| {
            self.metrics.dequeued(1);
            match error {
                TrySendError::Full(_) => {
                    self.metrics.rejected();
                    EngineError::Overloaded
                }
                TrySendError::Disconnected(_) => EngineError::Stopped,
            }
        })?;
        Ok(receiver)
    }

    /// The store behind the lane, for reads that need no batch (committed rows only).
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The lane's counters.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.metrics
    }

    /// Drops this handle; if it is the last one, waits until everything accepted is durable and answered.
    pub fn close(self) {
        let Self { queue, thread, .. } = self;
        drop(queue);
        if let Some(thread) = Arc::into_inner(thread)
            && let Some(handle) = thread.0.into_inner().expect("nobody panics with the lock held")
            && handle.join().is_err()
        {
            panic!("the lane ended with a broken assertion");
        }
    }
}

fn run<R: Rules>(
    batcher: &Batcher<R>,
    queue: &Receiver<Job<R>>,
    clock: &dyn Clock,
    batch_commands_max: usize,
) {
    while let Ok(first) = queue.recv() {
        let mut commands = vec![first.command];
        let mut answers = vec![first.answer];
        while commands.len() < batch_commands_max
            && let Ok(job) = queue.try_recv()
        {
            commands.push(job.command);
            answers.push(job.answer);
        }
        batcher.metrics.dequeued(commands.len() as u64);
        // A broken assertion in a rule means that the books cannot be trusted to it any more: end the process
        // rather than answer wrongly. Nothing of the batch has been made durable or answered.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| batcher.run(&commands, clock)));
        match result {
            Ok(Ok(verdicts)) => {
                for (answer, verdict) in answers.into_iter().zip(verdicts) {
                    // A client that has gone away will ask again.
                    let _ = answer.send(Ok(verdict));
                }
            }
            Ok(Err(error)) => {
                tracing::error!(%error, commands = commands.len(), "batch not committed");
                batcher.metrics.failed(commands.len() as u64);
                let error = EngineError::Store(Arc::new(error));
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
            Err(panic) => {
                tracing::error!(
                    "invariant broken in a rule: the process ends, nothing of the batch was committed"
                );
                drop(answers);
                if cfg!(test) {
                    std::panic::resume_unwind(panic);
                }
                std::process::abort();
            }
        }
    }
}
