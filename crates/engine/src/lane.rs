//! A lane: one thread that runs batch after batch against one store.

use std::future::poll_fn;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_store::{CommitOutcome, Store, StoreError};

use crate::docket::{Docket, Length, OpenDocket};
use crate::inbox::Inbox;
use crate::prover::Prover;
use crate::slot::{NoResults, Responder, ResultSlot, lock, waiting};
use crate::turn_end::{Deferred, TurnEndTask};
use crate::{Clock, Evidence, LaneMetrics, Plan, Rules, WorkingSet};

/// How often a command is executed again because others changed its rows first, or because its evidence was overtaken, before
/// it is answered with an error.
const ATTEMPTS_MAX: u32 = 100;

/// How often a batch of several commands loses the race for its rows before it is halved, so that a large one is not overtaken
/// for ever by small ones.
const LOSSES_MAX: u32 = 3;

/// How long a single command that lost so often waits before the next attempt, for each loss, and for how many at most.
const LOSS_PAUSE: Duration = Duration::from_micros(100);
const LOSS_PAUSES_MAX: u32 = 50;

/// How often the history of a refused command is read while the lane goes on. After that the lane reads it itself,
/// between two batches, where nothing changes.
const READS_BESIDE_MAX: u32 = 3;

/// Limits of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// Commands that may wait, and refused ones that may wait for their evidence; one more of either is answered
    /// [`EngineError::Overloaded`].
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
    /// The store could not be read or written. Nothing of the command was done, unless the store is
    /// [unavailable](StoreError::Unavailable): then nobody knows, and a repeat finds out.
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
pub(crate) type Verdict<R> = Result<<R as Rules>::Outcome, <R as Rules>::Refusal>;

impl<R: Rules> Batcher<R> {
    /// A pipeline of these rules over this store.
    pub fn new(rules: Arc<R>, store: Store) -> Self {
        Self::counting(rules, store, Arc::default())
    }

    fn counting(rules: Arc<R>, store: Store, metrics: Arc<LaneMetrics>) -> Self {
        Self { rules, store, metrics }
    }

    /// The counters.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.metrics
    }

    /// Executes the commands as one batch (and those whose refusal was overtaken in further ones), durably.
    ///
    /// # Errors
    /// When the store fails, or others overtake a command again and again. Some of the commands may have been decided then; a
    /// repeat finds out.
    pub fn run(&self, commands: &[R::Command], clock: &dyn Clock) -> Result<Vec<Verdict<R>>, StoreError> {
        let mut verdicts: Vec<Option<Verdict<R>>> = commands.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..commands.len()).collect();
        let mut attempts = 0;
        while !open.is_empty() {
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                return Err(too_many_conflicts());
            }
            let batch: Vec<&R::Command> = open.iter().map(|index| &commands[*index]).collect();
            let mut again = Vec::new();
            for (index, result) in open.drain(..).zip(self.batch(&batch, clock)) {
                let mut result = result.map_err(unshared)?;
                // Where commits come through this lane alone nothing changes between two batches; else a history is of one
                // moment. So one that does not fit here never will: it is answered.
                if let Err(refusal) = &mut result
                    && self.rules.needs_evidence(refusal)
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

    /// Prefetch, execute, commit. Repeats when somebody else changed one of the rows in between, and halves a batch that lost
    /// this race several times (a small one is quicker and touches fewer rows) or is larger than the store takes in one commit.
    /// One result for each command, since the halves of a batch may end differently.
    fn batch(&self, commands: &[&R::Command], clock: &dyn Clock) -> Vec<Decided<R>> {
        let mut losses = 0;
        loop {
            match self.attempt(commands, clock) {
                Ok(verdicts) => return verdicts.into_iter().map(Ok).collect(),
                Err(Failure::Overtaken(error)) => {
                    self.metrics.conflict();
                    losses += 1;
                    if losses >= LOSSES_MAX && commands.len() > 1 {
                        return self.halves(commands, clock);
                    }
                    if losses >= ATTEMPTS_MAX {
                        return all::<R>(commands, error);
                    }
                    if losses >= LOSSES_MAX {
                        // Whoever wins makes progress; this one steps back a little more each time.
                        std::thread::sleep(LOSS_PAUSE * losses.min(LOSS_PAUSES_MAX));
                    }
                }
                Err(Failure::Store(StoreError::TooLarge { .. })) if commands.len() > 1 => {
                    return self.halves(commands, clock);
                }
                Err(Failure::Store(error)) => return all::<R>(commands, error),
            }
        }
    }

    fn halves(&self, commands: &[&R::Command], clock: &dyn Clock) -> Vec<Decided<R>> {
        let (first, second) = commands.split_at(commands.len() / 2);
        let mut results = self.batch(first, clock);
        results.extend(self.batch(second, clock));
        results
    }

    fn attempt(&self, commands: &[&R::Command], clock: &dyn Clock) -> Result<Vec<Verdict<R>>, Failure> {
        let mut is_up_to_date = false;
        loop {
            let start = Instant::now();
            let mut plan = Plan::default();
            for command in commands {
                self.rules.plan(command, &mut plan);
            }
            let mut rows = WorkingSet::load(plan, &self.store)?;
            let loaded = Instant::now();
            let now = clock.now();
            let mut refusals = 0;
            let mut verdicts: Vec<_> = commands
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
            if refusals > 0 && !is_up_to_date {
                is_up_to_date = true;
                let mut learned = false;
                for refusal in verdicts.iter().filter_map(|verdict| verdict.as_ref().err()) {
                    learned |= self.rules.learn(refusal, &self.store)?;
                }
                if learned {
                    continue;
                }
            }
            rows.begin();
            let mut joined = self.rules.join(&mut rows, &mut verdicts, now)?;
            let mut changes = rows.changes();
            if let Some(joined) = &mut joined {
                changes.append(joined.changes());
            }
            let executed = Instant::now();
            match self.store.commit(&changes) {
                Ok(CommitOutcome::Committed) => {
                    self.rules.committed(&changes);
                    if let Some(joined) = joined {
                        joined.committed();
                    }
                }
                Ok(CommitOutcome::Conflict(rows)) => {
                    let (table, key) = rows.into_iter().next().expect("a conflict names the rows");
                    return Err(Failure::Overtaken(StoreError::Stale { table: table.name, key }));
                }
                Err(error @ StoreError::Stale { .. }) => return Err(Failure::Overtaken(error)),
                Err(error) => return Err(Failure::Store(error)),
            }
            self.metrics.batch(
                commands.len() as u64,
                refusals,
                [loaded - start, executed - loaded, executed.elapsed()],
            );
            return Ok(verdicts);
        }
    }
}

/// What became of one command of a batch.
type Decided<R> = Result<Verdict<R>, Arc<StoreError>>;

/// Why an attempt at a batch came to nothing.
enum Failure {
    /// Somebody else changed one of its rows.
    Overtaken(StoreError),
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn all<R: Rules>(commands: &[&R::Command], error: StoreError) -> Vec<Decided<R>> {
    let error = Arc::new(error);
    commands.iter().map(|_| Err(Arc::clone(&error))).collect()
}

fn too_many_conflicts() -> StoreError {
    StoreError::Unavailable(format!("a command was overtaken {ATTEMPTS_MAX} times"))
}

/// The error itself, or one that says the same.
fn unshared(error: Arc<StoreError>) -> StoreError {
    Arc::try_unwrap(error).unwrap_or_else(|error| match &*error {
        StoreError::Unavailable(reason) => StoreError::Unavailable(reason.clone()),
        StoreError::Full(reason) => StoreError::Full(reason.clone()),
        StoreError::Stopped(reason) => StoreError::Stopped(reason.clone()),
        StoreError::Stale { table, key } => StoreError::Stale { table, key: key.clone() },
        other => StoreError::Backend(other.to_string()),
    })
}

/// What the lane answers: the verdict, or the command back whose evidence was overtaken.
pub(crate) enum Answer<R: Rules> {
    Decided(Verdict<R>),
    Again(R::Command),
}

pub(crate) type Answered<R> = Result<Answer<R>, EngineError>;

struct Job<R: Rules> {
    command: R::Command,
    answer: Responder<Answered<R>>,
    /// How often its evidence was overtaken.
    reads: u32,
}

/// A refusal whose history is still to be read.
pub(crate) struct Refused<R: Rules> {
    pub(crate) command: R::Command,
    pub(crate) refusal: R::Refusal,
    pub(crate) answer: Responder<Answered<R>>,
}

/// A queue of commands and the thread that executes them batch by batch. Clones share both.
///
/// Two more threads read the histories that prove refusals: one the short ones, one those of owners that are known to have long
/// ones, so that a long history delays only others of its kind. What they read may change meanwhile; [`Rules::evidence`] notices,
/// and the command is executed again.
pub struct Lane<R: Rules> {
    door: Arc<Door<R>>,
    turn_end: Arc<TurnEndTask>,
    store: Store,
    threads: Arc<Threads>,
}

/// Where jobs enter.
struct Door<R: Rules> {
    queue: SyncSender<Job<R>>,
    /// What tasks bring in the present turn of their runtime: sent at its end.
    gathered: Mutex<Vec<Job<R>>>,
    gathered_max: usize,
    metrics: Arc<LaneMetrics>,
}

/// Joins the lane's threads when the last handle is gone, so that no commit is cut short by the end of the process.
struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl<R: Rules> Clone for Lane<R> {
    fn clone(&self) -> Self {
        Self {
            door: Arc::clone(&self.door),
            turn_end: Arc::clone(&self.turn_end),
            store: self.store.clone(),
            threads: Arc::clone(&self.threads),
        }
    }
}

impl<R: Rules> Lane<R> {
    /// Starts the threads. They end when the last handle is dropped, after everything accepted has been executed.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(rules: Arc<R>, store: Store, clock: Arc<dyn Clock>, options: LaneOptions) -> Self {
        let metrics = Arc::<LaneMetrics>::default();
        metrics.limits(options.queue_commands_max, options.batch_commands_max);
        Self::start_one(rules, store, clock, options, metrics, 0)
    }

    /// Starts lane number `number` of several, which share their counters.
    pub(crate) fn start_one(
        rules: Arc<R>,
        store: Store,
        clock: Arc<dyn Clock>,
        options: LaneOptions,
        metrics: Arc<LaneMetrics>,
        number: usize,
    ) -> Self {
        assert!(options.queue_commands_max > 0 && options.batch_commands_max > 0, "limits are positive");
        let (queue, receiver) = sync_channel(options.queue_commands_max);
        // Who gives up waiting leaves a place taken until the thread comes by, so this queue needs a limit of its own.
        let refused = Arc::new(Docket::new(options.queue_commands_max));
        let batcher = Batcher::counting(rules, store.clone(), Arc::clone(&metrics));
        let prover = |length| {
            let (rules, metrics) = (Arc::clone(&batcher.rules), Arc::clone(&metrics));
            let prover = Prover { rules, store: store.clone(), metrics, refused: Arc::clone(&refused) };
            Box::new(move || prover.run(length))
        };
        let (short, long) = (prover(Length::Short), prover(Length::Long));
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(work).expect("the operating system starts the lane's threads")
        };
        let mut inbox = Inbox::new(receiver, options.queue_commands_max);
        let max = options.batch_commands_max;
        let turn_end = Arc::<TurnEndTask>::default();
        let wakes = Arc::clone(&turn_end);
        let lane = move || {
            let refused = OpenDocket(refused);
            run(&batcher, &mut inbox, &refused.0, &wakes, clock.as_ref(), max, number);
        };
        let threads = vec![
            spawn(&format!("lane-{number}"), Box::new(lane)),
            spawn("evidence", short),
            spawn("evidence-long", long),
        ];
        let gathered_max = options.queue_commands_max;
        let door = Arc::new(Door { queue, gathered: Mutex::default(), gathered_max, metrics });
        Self { door, turn_end, store, threads: Arc::new(Threads(Mutex::new(threads))) }
    }

    /// Executes one command. Returns after its batch is durable: `Ok(Ok(_))` it took effect, `Ok(Err(_))` a rule
    /// refused it, `Err(_)` it was not decided.
    pub async fn submit(&self, command: R::Command) -> Result<Verdict<R>, EngineError> {
        let mut command = command;
        let mut reads = 0;
        loop {
            let (answer, ticket) = Responder::new();
            self.gather(Job { command, answer, reads })?;
            match answered::<R>(poll_fn(|context| ticket.poll_results(context)).await)? {
                Answer::Decided(verdict) => return Ok(verdict),
                Answer::Again(same) => command = same,
            }
            reads += 1;
        }
    }

    /// [`Lane::submit`] for threads outside the async runtime.
    pub fn submit_blocking(&self, command: R::Command) -> Result<Verdict<R>, EngineError> {
        let mut command = command;
        let mut reads = 0;
        loop {
            let (answer, ticket) = Responder::new();
            self.door.metrics.enqueued();
            self.door.send(Job { command, answer, reads }).map_err(|(error, _)| error)?;
            match answered::<R>(ticket.wait())? {
                Answer::Decided(verdict) => return Ok(verdict),
                Answer::Again(same) => command = same,
            }
            reads += 1;
        }
    }

    /// Sends a job to the lane together with those that other tasks bring in this turn of the runtime.
    fn gather(&self, job: Job<R>) -> Result<(), EngineError> {
        if self.door.gather(job)? {
            self.turn_end.at_end_of_turn(Arc::clone(&self.door) as Arc<dyn Deferred>);
        }
        Ok(())
    }

    /// The store behind the lane, for reads that need no batch (committed rows only).
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The lane's counters.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.door.metrics
    }

    /// Drops this handle; if it is the last one, waits until everything accepted is durable and answered.
    pub fn close(self) {
        let Self { door, threads, .. } = self;
        drop(door);
        if let Some(threads) = Arc::into_inner(threads) {
            for thread in threads.0.into_inner().expect("nobody panics with the lock held") {
                assert!(thread.join().is_ok(), "the lane ended with a broken assertion");
            }
        }
    }
}

impl<R: Rules> Door<R> {
    /// Puts a job to those of this turn; whether it is the first.
    fn gather(&self, job: Job<R>) -> Result<bool, EngineError> {
        self.metrics.enqueued();
        let mut gathered = lock(&self.gathered);
        if gathered.len() >= self.gathered_max {
            self.metrics.dequeued(1);
            self.metrics.rejected();
            return Err(EngineError::Overloaded);
        }
        gathered.push(job);
        Ok(gathered.len() == 1)
    }

    /// Sends a job to the lane, or says why it cannot be.
    fn send(&self, job: Job<R>) -> Result<(), (EngineError, Job<R>)> {
        self.queue.try_send(job).map_err(|error| {
            self.metrics.dequeued(1);
            match error {
                TrySendError::Full(job) => {
                    self.metrics.rejected();
                    (EngineError::Overloaded, job)
                }
                TrySendError::Disconnected(job) => (EngineError::Stopped, job),
            }
        })
    }
}

impl<R: Rules> Deferred for Door<R> {
    /// Sends what was gathered.
    fn run(&self) {
        let gathered = std::mem::take(&mut *lock(&self.gathered));
        for job in gathered {
            if let Err((error, Job { answer, .. })) = self.send(job) {
                answer.send(Err(error));
            }
        }
    }
}

/// What came for a command; nothing comes from a lane that has ended.
fn answered<R: Rules>(results: Result<Vec<Answered<R>>, NoResults>) -> Answered<R> {
    let mut results = results.map_err(|NoResults| EngineError::Stopped)?;
    results.pop().expect("one answer a command")
}

/// Runs a piece of the rules. A broken assertion in them means that the books cannot be trusted to them any more: the
/// process ends rather than answers wrongly.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            tracing::error!(
                "invariant broken in a rule: the process ends, nothing of the batch was committed"
            );
            if cfg!(test) {
                std::panic::resume_unwind(panic);
            }
            std::process::abort();
        }
    }
}

fn run<R: Rules>(
    batcher: &Batcher<R>,
    inbox: &mut Inbox<Job<R>>,
    refused: &Docket<Refused<R>>,
    turn_end: &TurnEndTask,
    clock: &dyn Clock,
    batch_commands_max: usize,
    number: usize,
) {
    let mut jobs: Vec<Job<R>> = Vec::new();
    let is_background = |job: &Job<R>| batcher.rules.is_background(&job.command);
    while let Some(taken) = inbox.take(&mut jobs, batch_commands_max, is_background) {
        batcher.metrics.dequeued(jobs.len() as u64);
        batcher.metrics.served_clients(number, taken.beside_clients);
        // Those whose evidence was overtaken too often are decided and proved in one go.
        let at_once = jobs.extract_if(.., |job| job.reads >= READS_BESIDE_MAX).collect::<Vec<_>>();
        if !jobs.is_empty() {
            let commands: Vec<&R::Command> = jobs.iter().map(|job| &job.command).collect();
            let results = guarded(|| batcher.batch(&commands, clock));
            let mut failure: Option<Arc<StoreError>> = None;
            let mut complete = Vec::with_capacity(jobs.len());
            for (job, result) in jobs.drain(..).zip(results) {
                match result {
                    Ok(verdict) => complete.extend(answer(batcher, refused, job, verdict)),
                    Err(error) => {
                        // One line for a whole batch.
                        if failure.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &error)) {
                            tracing::error!(%error, "batch not committed");
                        }
                        failure = Some(Arc::clone(&error));
                        fail(batcher, job, error);
                    }
                }
            }
            turn_end.wake_all(waiting(&complete));
        }
        for Job { command, answer, reads } in at_once {
            match guarded(|| batcher.run(std::slice::from_ref(&command), clock)) {
                Ok(mut verdicts) => {
                    let verdict = verdicts.pop().expect("one verdict a command");
                    answer.send(Ok(Answer::Decided(verdict)));
                }
                Err(error) => fail(batcher, Job { command, answer, reads }, Arc::new(error)),
            }
        }
        inbox.done(&taken);
    }
}

/// Answers a job of a committed batch (who waits for it is still to be woken), or has its evidence read. Where too many wait for
/// that already, the client is sent away to come again: a refused command has changed nothing.
fn answer<R: Rules>(
    batcher: &Batcher<R>,
    refused: &Docket<Refused<R>>,
    job: Job<R>,
    verdict: Verdict<R>,
) -> Option<Arc<ResultSlot<Answered<R>>>> {
    let Job { command, answer, .. } = job;
    match verdict {
        Err(refusal) if batcher.rules.needs_evidence(&refusal) => {
            let owner = batcher.rules.shard_key(&command).map(Box::from);
            if let Err(turned) = refused.add(owner, Refused { command, refusal, answer }) {
                batcher.metrics.rejected();
                turned.answer.send(Err(EngineError::Overloaded));
            }
            None
        }
        // A client that has gone away will ask again.
        verdict => Some(answer.put(Ok(Answer::Decided(verdict)))),
    }
}

/// Answers a command that was not decided.
fn fail<R: Rules>(batcher: &Batcher<R>, job: Job<R>, error: Arc<StoreError>) {
    batcher.metrics.failed();
    job.answer.send(Err(EngineError::Store(error)));
}
