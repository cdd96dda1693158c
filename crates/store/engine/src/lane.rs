//! A lane: one thread that runs batch after batch against one store.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_store::{CommitOutcome, Store, StoreError};

use crate::evidence::EvidenceReader;
use crate::fair_queue::{CloseOnDrop, FairQueue, Length};
use crate::inbox::{Inbox, Waiting};
use crate::inline::InlineQueue;
use crate::queue::{BatchLimits, QueueLimits, SubmissionQueue};
use crate::slot::{NoResults, Responder, ResultSlot, Ticket, lock, waiting};
use crate::turn_end::{Deferred, TurnEndTask};
use crate::{Clock, Evidence, LaneMetrics, Plan, Rules, SubmitError, WorkingSet};

/// Number of executions of a command, because others changed its rows first or its evidence was overtaken,
/// before it is answered with an error.
const ATTEMPTS_MAX: u32 = 100;

/// Number of races for its rows that a batch of several commands loses before it is halved, so that small
/// batches do not overtake a large one for ever.
const LOSSES_MAX: u32 = 3;

/// The backoff of a single command that has lost that often: this for each loss, up to this many losses.
const LOSS_BACKOFF: Duration = Duration::from_micros(100);
const LOSS_BACKOFFS_MAX: u32 = 50;

/// Number of reads of a refused command's history while the lane runs other batches. After that, the lane
/// reads it itself between two batches, when nothing changes.
const READS_BESIDE_MAX: u32 = 3;

/// The pause after a failed batch with internal commands, and after failed work of the rules' own. Without it
/// they would just fail again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Limits of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// Number of commands that may wait, and how many refused ones may wait for their evidence. Further ones of
    /// either kind are answered with [`SubmitError::Overloaded`].
    pub queue_commands_max: usize,
    /// The queue accepts no further command while more events than this wait.
    pub queue_events_max: usize,
    /// Commands in one batch. Internal ones are all taken, but leave half of it to clients.
    pub batch_commands_max: usize,
    /// A batch accepts no further command once it has this many events.
    pub batch_events_max: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            queue_commands_max: 16_384,
            queue_events_max: usize::MAX,
            batch_commands_max: 2_048,
            batch_events_max: usize::MAX,
        }
    }
}

/// Runs batches one at a time in the caller's thread: the whole pipeline without a queue and a thread, for
/// tests, simulators and set-up steps.
pub struct Batcher<R: Rules> {
    rules: Arc<R>,
    store: Store,
    metrics: Arc<LaneMetrics>,
}

/// The decision on one command.
pub(crate) type Verdict<R> = Result<<R as Rules>::Answer, <R as Rules>::Refusal>;

impl<R: Rules> Batcher<R> {
    /// A pipeline of these rules over this store.
    pub fn new(rules: Arc<R>, store: Store) -> Self {
        Self::with_metrics(rules, store, Arc::default())
    }

    /// The same, with the metrics of a lane.
    pub fn with_metrics(rules: Arc<R>, store: Store, metrics: Arc<LaneMetrics>) -> Self {
        Self { rules, store, metrics }
    }

    /// The metrics.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.metrics
    }

    /// Executes the commands as one batch, durably. Commands whose refusal was overtaken run in further
    /// batches.
    ///
    /// # Errors
    /// When the store fails, or others overtake a command repeatedly. Some of the commands may have been
    /// decided by then; a repetition finds out.
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
                // If only this lane commits, nothing changes between two batches. Otherwise all of a history
                // is read at one moment. In both cases torn evidence would be torn again, so it is answered.
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

    /// Prefetch, execute, commit. Repeats the batch if another writer changed one of the rows in between.
    /// Halves a batch that has lost this race several times (a small one is quicker and touches fewer rows)
    /// or that is larger than the store accepts in one commit. Returns one result for each command, since the
    /// halves of a batch may end differently.
    fn batch(&self, commands: &[&R::Command], clock: &dyn Clock) -> Vec<Decided<R>> {
        let mut losses = 0;
        loop {
            match self.attempt(commands, clock) {
                Ok(verdicts) => return verdicts.into_iter().map(Ok).collect(),
                Err(Failure::Overtaken(error)) => {
                    self.metrics.conflict();
                    self.rules.overtaken();
                    losses += 1;
                    if losses >= LOSSES_MAX && commands.len() > 1 {
                        return self.halves(commands, clock);
                    }
                    if losses >= ATTEMPTS_MAX {
                        return all::<R>(commands, error);
                    }
                    if losses >= LOSSES_MAX {
                        // The winner makes progress; the loser backs off a little more each time.
                        std::thread::sleep(LOSS_BACKOFF * losses.min(LOSS_BACKOFFS_MAX));
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
            let events: usize = commands.iter().map(|command| self.rules.events(command)).sum();
            self.metrics.batch(
                commands.len() as u64,
                events as u64,
                refusals,
                [loaded - start, executed - loaded, executed.elapsed()],
            );
            return Ok(verdicts);
        }
    }
}

/// The decision on one command of a batch, or the error of the whole batch.
type Decided<R> = Result<Verdict<R>, Arc<StoreError>>;

/// Why an attempt at a batch failed.
enum Failure {
    /// Another writer changed one of its rows.
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

/// The error itself, or an equivalent one if others hold it too.
fn unshared(error: Arc<StoreError>) -> StoreError {
    Arc::try_unwrap(error).unwrap_or_else(|error| error.duplicate())
}

/// The answer of the lane: the verdict, or the command itself if its evidence was overtaken and it must run
/// again.
pub(crate) enum Answer<R: Rules> {
    Decided(Verdict<R>),
    Again(R::Command),
}

pub(crate) type Answered<R> = Result<Answer<R>, SubmitError>;

pub(crate) struct Job<R: Rules> {
    pub(crate) command: R::Command,
    pub(crate) answer: Responder<Answered<R>>,
    /// Number of times that its evidence was overtaken.
    reads: u32,
    /// Whether the service itself submitted it. It is then repeated until it is durable.
    is_internal: bool,
    is_background: bool,
    events: usize,
}

impl<R: Rules> Waiting for Job<R> {
    fn is_background(&self) -> bool {
        self.is_background
    }

    fn events(&self) -> usize {
        self.events
    }
}

/// A refusal whose history has not been read yet.
pub(crate) struct Refused<R: Rules> {
    pub(crate) command: R::Command,
    pub(crate) refusal: R::Refusal,
    pub(crate) answer: Responder<Answered<R>>,
}

/// A queue of commands and the thread that executes them batch by batch. Clones share both.
///
/// Two more threads read the histories that prove refusals. One reads the short ones, the other those of
/// owners that are known to have long ones, so that a long history delays only other long ones. A history may
/// change while it is read; [`Rules::evidence`] notices that, and the command is executed again.
pub struct Lane<R: Rules> {
    door: Arc<Door<R>>,
    turn_end: Arc<TurnEndTask>,
    store: Store,
    threads: Arc<Threads>,
}

/// The entry to the lane.
struct Door<R: Rules> {
    rules: Arc<R>,
    queue: SubmissionQueue<Job<R>>,
    /// Commands that tasks have submitted in the current turn of their runtime. They are queued at the end of
    /// it.
    gathered: Mutex<Vec<Job<R>>>,
    gathered_max: usize,
    metrics: Arc<LaneMetrics>,
}

/// The lane's threads, until one handle waits for their end.
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
    /// Starts the threads. They end when the last handle is dropped, after everything accepted has been
    /// executed.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(rules: Arc<R>, store: Store, clock: Arc<dyn Clock>, options: LaneOptions) -> Self {
        let metrics = Arc::<LaneMetrics>::default();
        metrics.limits(1, options.queue_commands_max, options.batch_commands_max);
        Self::start_one(rules, store, clock, options, metrics, 0)
    }

    /// Starts lane number `number` of several that share their metrics.
    pub(crate) fn start_one(
        rules: Arc<R>,
        store: Store,
        clock: Arc<dyn Clock>,
        options: LaneOptions,
        metrics: Arc<LaneMetrics>,
        number: usize,
    ) -> Self {
        let LaneOptions { queue_commands_max, queue_events_max, batch_commands_max, batch_events_max } =
            options;
        assert!(batch_commands_max > 0 && batch_events_max > 0, "limits are positive");
        let limits = QueueLimits { commands_max: queue_commands_max, events_max: queue_events_max };
        let (queue, submissions) = SubmissionQueue::new(limits, Arc::clone(&metrics));
        // The place of a client that gives up stays taken until the thread reaches it, so this queue needs
        // its own limit.
        let refused = Arc::new(FairQueue::new(queue_commands_max));
        let batcher = Batcher::with_metrics(Arc::clone(&rules), store.clone(), Arc::clone(&metrics));
        let reader = |length| {
            let (rules, metrics) = (Arc::clone(&batcher.rules), Arc::clone(&metrics));
            let reader =
                EvidenceReader { rules, store: store.clone(), metrics, refused: Arc::clone(&refused) };
            Box::new(move || reader.run(length))
        };
        let (short, long) = (reader(Length::Short), reader(Length::Long));
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(work).expect("the operating system starts the lane's threads")
        };
        let mut inbox = Inbox::new(submissions, queue_commands_max);
        let limits = BatchLimits { commands_max: batch_commands_max, events_max: batch_events_max };
        let turn_end = Arc::<TurnEndTask>::default();
        let wakes = Arc::clone(&turn_end);
        let lane = move || {
            let refused = CloseOnDrop(refused);
            run(&batcher, &mut inbox, &refused.0, &wakes, clock.as_ref(), limits, number);
        };
        let threads = vec![
            spawn(&format!("lane-{number}"), Box::new(lane)),
            spawn("evidence", short),
            spawn("evidence-long", long),
        ];
        let (gathered, gathered_max) = (Mutex::default(), queue_commands_max);
        let door = Arc::new(Door { rules, queue, gathered, gathered_max, metrics });
        Self { door, turn_end, store, threads: Arc::new(Threads(Mutex::new(threads))) }
    }

    /// A lane without threads, and its queue, which a simulator empties.
    pub fn inline(rules: Arc<R>, store: Store, options: LaneOptions) -> (Self, InlineQueue<R>) {
        let metrics = Arc::<LaneMetrics>::default();
        let LaneOptions { queue_commands_max, queue_events_max, batch_commands_max, .. } = options;
        metrics.limits(1, queue_commands_max, batch_commands_max);
        let limits = QueueLimits { commands_max: queue_commands_max, events_max: queue_events_max };
        let (queue, submissions) = SubmissionQueue::new(limits, Arc::clone(&metrics));
        let (gathered, gathered_max) = (Mutex::default(), queue_commands_max);
        let door = Arc::new(Door { rules, queue, gathered, gathered_max, metrics: Arc::clone(&metrics) });
        let threads = Arc::new(Threads(Mutex::default()));
        (Self { door, turn_end: Arc::default(), store, threads }, InlineQueue::new(submissions, metrics))
    }

    /// Executes one command. Returns after its batch is durable: `Ok(Ok(_))` if it took effect, `Ok(Err(_))`
    /// if a rule refused it, `Err(_)` if no decision was made.
    pub async fn submit(&self, command: R::Command) -> Result<Verdict<R>, SubmitError> {
        let mut command = command;
        let mut reads = 0;
        loop {
            let (job, ticket) = self.door.job(command, reads, false);
            self.gather(job)?;
            match answered::<R>(poll_fn(|context| ticket.poll_results(context)).await)? {
                Answer::Decided(verdict) => return Ok(verdict),
                Answer::Again(same) => command = same,
            }
            reads += 1;
        }
    }

    /// Submits a command of the service itself, such as the ledger's answers. It is always accepted, goes
    /// before those of clients, and is repeated until it is durable. The future has the verdict, or
    /// [`SubmitError::Stopped`] if the lane ends first; dropping it has no effect on the command.
    pub fn submit_internal(
        &self,
        command: R::Command,
    ) -> impl Future<Output = Result<Verdict<R>, SubmitError>> + Send + use<R> {
        let (job, ticket) = self.door.job(command, 0, true);
        self.door.queue.push_internal(job);
        async move {
            match answered::<R>(poll_fn(|context| ticket.poll_results(context)).await)? {
                Answer::Decided(verdict) => Ok(verdict),
                Answer::Again(_) => unreachable!("no evidence is read for internal commands"),
            }
        }
    }

    /// Queues a job together with those that other tasks submit in this turn of the runtime.
    fn gather(&self, job: Job<R>) -> Result<(), SubmitError> {
        if self.door.gather(job)? {
            self.turn_end.at_end_of_turn(Arc::clone(&self.door) as Arc<dyn Deferred>);
        }
        Ok(())
    }

    /// The store behind the lane, for reads that need no batch (committed rows only).
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The lane's metrics.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.door.metrics
    }

    /// Drops this handle. If it is the last one, waits until everything accepted is durable and answered.
    pub fn close(self) {
        let Self { door, threads, .. } = self;
        drop(door);
        if let Some(threads) = Arc::into_inner(threads) {
            threads.join();
        }
    }

    /// Accepts no more commands, and waits until everything accepted is durable and answered. Not for async
    /// threads. Returns whether this call stopped the lane.
    pub fn stop(&self) -> bool {
        self.door.run();
        self.door.queue.close();
        self.threads.join()
    }
}

impl Threads {
    fn join(&self) -> bool {
        let threads = std::mem::take(&mut *lock(&self.0));
        let found = !threads.is_empty();
        for thread in threads {
            let ended = thread.join().is_ok();
            assert!(ended || std::thread::panicking(), "the lane ended with a broken assertion");
        }
        found
    }
}

impl<R: Rules> Door<R> {
    fn job(&self, command: R::Command, reads: u32, is_internal: bool) -> (Job<R>, Ticket<Answered<R>>) {
        let (answer, ticket) = Responder::new();
        let is_background = self.rules.is_background(&command);
        let events = self.rules.events(&command);
        (Job { command, answer, reads, is_internal, is_background, events }, ticket)
    }

    fn push(&self, job: Job<R>) -> Result<(), (SubmitError, Job<R>)> {
        let events = job.events;
        self.queue.push(job, events)
    }

    /// Adds a job to those of this turn. Returns whether it is the first.
    fn gather(&self, job: Job<R>) -> Result<bool, SubmitError> {
        let mut gathered = lock(&self.gathered);
        if gathered.len() >= self.gathered_max {
            self.metrics.rejected();
            return Err(SubmitError::Overloaded);
        }
        self.metrics.enqueued(job.events as u64);
        gathered.push(job);
        Ok(gathered.len() == 1)
    }
}

impl<R: Rules> Deferred for Door<R> {
    /// Queues the gathered jobs.
    fn run(&self) {
        let gathered = std::mem::take(&mut *lock(&self.gathered));
        // From now on, the queue counts them.
        self.metrics.dequeued(events_of(&gathered));
        for job in gathered {
            if let Err((error, Job { answer, .. })) = self.push(job) {
                answer.send(Err(error));
            }
        }
    }
}

/// The events of clients among these jobs.
fn events_of<R: Rules>(jobs: &[Job<R>]) -> u64 {
    jobs.iter().filter(|job| !job.is_internal).map(|job| job.events as u64).sum()
}

/// The answer to a command. A lane that has stopped gives none.
fn answered<R: Rules>(results: Result<Vec<Answered<R>>, NoResults>) -> Answered<R> {
    let mut results = results.map_err(|NoResults| SubmitError::Stopped)?;
    results.pop().expect("one answer a command")
}

/// Runs a part of the rules. After a failed assertion, the books of this process cannot be trusted, so it
/// ends rather than giving wrong answers.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            tracing::error!("invariant violated in a rule: aborting, nothing of the batch was committed");
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
    refused: &FairQueue<Refused<R>>,
    turn_end: &TurnEndTask,
    clock: &dyn Clock,
    limits: BatchLimits,
    number: usize,
) {
    let rules = &*batcher.rules;
    let mut jobs: Vec<Job<R>> = Vec::new();
    // Internal jobs of a failed batch, and when they and the rules' own work are tried again. When the lane
    // ends, these jobs are dropped: the next start of the service finds their cause in the store.
    let mut postponed: Vec<Job<R>> = Vec::new();
    let mut rests_until: Option<Instant> = None;
    loop {
        rests_until = rests_until.filter(|end| *end > Instant::now());
        if rests_until.is_none() && !postponed.is_empty() {
            inbox.put_back_internal(postponed.drain(..));
        }
        let end = rests_until.or_else(|| rules.due_in().map(|due| Instant::now() + due));
        let Some(taken) = inbox.take(&mut jobs, limits, end) else { return };
        if jobs.is_empty() {
            if rests_until.is_none()
                && let Err(error) = guarded(|| rules.run_due())
            {
                tracing::error!(%error, "work that is due was not committed");
                batcher.metrics.failed_batch();
                rests_until = Some(Instant::now() + RETRY_INTERVAL);
            }
            continue;
        }
        batcher.metrics.dequeued(events_of(&jobs));
        batcher.metrics.served_clients(number, taken.beside_clients);
        jobs.iter_mut().for_each(|job| rules.prepare(&mut job.command));
        let start = Instant::now();
        // A command whose evidence was overtaken too often is decided and proved without another batch in
        // between.
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
                        // One log line for a whole batch.
                        if failure.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &error)) {
                            tracing::error!(%error, "batch not committed");
                            batcher.metrics.failed_batch();
                        }
                        failure = Some(Arc::clone(&error));
                        if job.is_internal {
                            postponed.push(job);
                        } else {
                            fail(batcher, job.answer, error);
                        }
                    }
                }
            }
            turn_end.wake_all(waiting(&complete));
            if !postponed.is_empty() {
                rests_until = Some(Instant::now() + RETRY_INTERVAL);
            }
        }
        for Job { command, answer, .. } in at_once {
            match guarded(|| batcher.run(std::slice::from_ref(&command), clock)) {
                Ok(mut verdicts) => {
                    let verdict = verdicts.pop().expect("one verdict a command");
                    if let Ok(outcome) = &verdict {
                        rules.decided(&command, outcome);
                    }
                    answer.send(Ok(Answer::Decided(verdict)));
                }
                Err(error) => fail(batcher, answer, Arc::new(error)),
            }
        }
        batcher.metrics.batch_time(start.elapsed());
        inbox.done(&taken);
    }
}

/// Answers a job of a committed batch, or queues it until its evidence is read. The caller must still wake
/// the task that waits for the answer. If too many jobs wait for evidence already, the client must try again
/// later: a refused command has changed nothing.
fn answer<R: Rules>(
    batcher: &Batcher<R>,
    refused: &FairQueue<Refused<R>>,
    job: Job<R>,
    verdict: Verdict<R>,
) -> Option<Arc<ResultSlot<Answered<R>>>> {
    let Job { command, answer, is_internal, .. } = job;
    if let Ok(outcome) = &verdict {
        batcher.rules.decided(&command, outcome);
    }
    match verdict {
        Err(refusal) if !is_internal && batcher.rules.needs_evidence(&refusal) => {
            let owner = batcher.rules.owner(&command).map(Box::from);
            if let Err(turned) = refused.add(owner, Refused { command, refusal, answer }) {
                batcher.metrics.rejected();
                turned.answer.send(Err(SubmitError::Overloaded));
            }
            None
        }
        // A client that has disconnected will ask again.
        verdict => Some(answer.put(Ok(Answer::Decided(verdict)))),
    }
}

/// Answers a command on which no decision was made.
fn fail<R: Rules>(batcher: &Batcher<R>, answer: Responder<Answered<R>>, error: Arc<StoreError>) {
    batcher.metrics.failed_command();
    answer.send(Err(SubmitError::Store(error)));
}
