//! The CPU pool and its collectors. Cryptography runs off the async threads, and the items of many requests
//! form one batch, because eight signatures side by side cost little more than one.
//!
//! * **No added delay.** An idle thread takes whatever is waiting at once. Whatever arrives while the threads
//!   are busy forms the next batch: under light load a batch is one item, under heavy load it grows by
//!   itself. A thread of the async runtime calls the pool when it has nothing else to do, so that everything
//!   that it has read makes one batch.
//! * **Turns.** Each kind of work (a [`Collector`], or the single jobs of [`CpuPool::run`]) has its own
//!   queue. Kinds with waiting items take turns of at most [`TURN_NS`], so that a check of a signature never
//!   waits behind a long queue of blind signatures.
//! * **Shares.** Within a turn, every waiting request contributes as many items as fill the lanes of the
//!   processor, then the next request does, and so on in rounds: a request with 256 items does not hold up
//!   the others.
//! * **Bounds.** Each queue has a limit on its items; more are refused at once ([`PoolBusy`]). Items whose
//!   request was given up are dropped without execution.
//! * **Panics are not answers.** If a batch panics, its requests are executed again one by one, and only the
//!   one that panics again passes the panic on to its caller.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use batzen_metrics::{Counter, Histogram, Page};

use crate::slot::{ResultSlot, Ticket, lock, waiting};
use crate::turn_end::{Deferred, TurnEndTask};

/// The longest time that a turn of one kind of work should take, in nanoseconds. A turn always executes at
/// least one row of lanes, however long that takes.
pub(crate) const TURN_NS: u64 = 2_000_000;

/// The queue is full. Answer 503 and let the client try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all processors are busy: try again later")]
pub struct PoolBusy;

/// Limits of one kind of work.
#[derive(Clone, Copy, Debug)]
pub struct CollectorOptions {
    /// Items that may wait. A request that would exceed the limit is refused.
    pub queue_items_max: usize,
    /// The maximum number of items in one batch.
    pub batch_items_max: usize,
    /// Items that together cost hardly more than one, because they are computed side by side. Batches are cut
    /// at multiples of this number.
    pub lanes: usize,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self { queue_items_max: 16_384, batch_items_max: 64, lanes: 8 }
    }
}

/// A reading of the counters of one kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkSnapshot {
    /// The name of the kind.
    pub kind: &'static str,
    /// Items executed.
    pub items: u64,
    /// Batches executed.
    pub batches: u64,
    /// The largest batch so far, in items.
    pub batch_items_max: u64,
    /// Items waiting at the moment of the reading.
    pub queued: u64,
    /// Items refused because the queue was full.
    pub rejected: u64,
    /// Items dropped because their request was given up.
    pub abandoned: u64,
    /// Batches that panicked.
    pub panics: u64,
    /// Time spent executing, summed over threads, in nanoseconds.
    pub busy_ns: u64,
    /// Number of times that a request contributed items to a batch.
    pub shares: u64,
    /// The time from submission to execution, summed over these, in nanoseconds.
    pub wait_ns: u64,
}

/// A bounded pool of threads for cryptography. Clones share it. The threads end when the last clone and the
/// last collector are dropped, after everything accepted has been executed.
#[derive(Clone)]
pub struct CpuPool {
    owner: Arc<Owner>,
    jobs: Collector<Mutex<Option<Job>>, ()>,
}

type Job = Box<dyn FnOnce() + Send>;

impl CpuPool {
    /// A pool of `threads` threads (0: one per core). At most `jobs_max` jobs may wait; collectors have their
    /// own limits.
    ///
    /// # Panics
    /// When the operating system refuses to start threads.
    pub fn new(threads: usize, jobs_max: usize) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let pool = Self::without_threads(threads, jobs_max);
        for index in 0..threads {
            let shared = Arc::clone(&pool.owner.shared);
            std::thread::Builder::new()
                .name(format!("cpu-{index}"))
                .spawn(move || shared.work())
                .expect("the operating system starts the threads of the CPU pool");
        }
        pool
    }

    /// A pool without threads: submitted items are executed at once, on the submitter's thread. For simulators,
    /// which run everything on one thread.
    pub fn inline(jobs_max: usize) -> Self {
        Self::without_threads(0, jobs_max)
    }

    fn without_threads(threads: usize, jobs_max: usize) -> Self {
        let shared = Arc::new(TurnQueue {
            threads,
            turns: Mutex::default(),
            work_waits: Condvar::new(),
            kinds: Mutex::default(),
        });
        let owner = Arc::new(Owner { shared, turn_end: Arc::default() });
        let limits = CollectorOptions { queue_items_max: jobs_max, batch_items_max: 1, lanes: 1 };
        let jobs = collector(&owner, "job", limits, |jobs: &[Mutex<Option<Job>>]| {
            jobs.iter()
                .map(|job| {
                    // Taken by the first execution: a job that panicked is not run again.
                    if let Some(job) = lock(job).take() {
                        job();
                    }
                })
                .collect()
        });
        Self { owner, jobs }
    }

    /// A queue for one kind of work. `execute` executes its items in batches and returns one result per item,
    /// in order.
    ///
    /// `execute` must not have side effects: a batch that panicked is executed again in parts.
    ///
    /// # Panics
    /// When a limit is zero or the queue is smaller than a batch.
    pub fn collector<I: Send + Sync + 'static, O: Send + 'static>(
        &self,
        kind: &'static str,
        options: CollectorOptions,
        execute: impl Fn(&[I]) -> Vec<O> + Send + Sync + 'static,
    ) -> Collector<I, O> {
        collector(&self.owner, kind, options, execute)
    }

    /// Runs a single job that is not batched, and waits for its result without blocking the caller's thread.
    ///
    /// Jobs should be short (a few milliseconds): each occupies a thread until it is done.
    ///
    /// When the job itself panicked, because a failed assertion must not pass for an answer.
    /// When the job itself panicked: a broken assertion must not pass for an answer.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolBusy> {
        let place = Arc::new(Mutex::new(None));
        let result = Arc::clone(&place);
        let job: Job = Box::new(move || {
            let value = catch_unwind(AssertUnwindSafe(job));
            *lock(&result) = Some(value);
        });
        self.jobs.run_one(Mutex::new(Some(job))).await?;
        let result = lock(&place).take().expect("the pool executes every job");
        match result {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Waiting items of all kinds.
    pub fn queued(&self) -> u64 {
        self.snapshot().iter().map(|kind| kind.queued).sum()
    }

    pub(crate) fn threads(&self) -> usize {
        self.owner.shared.threads
    }

    /// Reads the counters of every kind of work, in the order in which the kinds were created.
    pub fn snapshot(&self) -> Vec<WorkSnapshot> {
        lock(&self.owner.shared.kinds).iter().map(|kind| kind.snapshot()).collect()
    }
}

impl CpuPool {
    /// Writes `batzen_pool_*`.
    pub fn write(&self, page: &mut Page) {
        let kinds = lock(&self.owner.shared.kinds).clone();
        let kinds: Vec<_> = kinds.iter().map(|kind| kind.counters()).collect();
        let count = |value: fn(&Counters) -> u64| {
            kinds.iter().map(move |(kind, _, counters)| (*kind, value(counters))).collect::<Vec<_>>()
        };
        let spread = |value: fn(&Counters) -> &Histogram| {
            kinds.iter().map(move |(kind, _, counters)| (*kind, value(counters))).collect::<Vec<_>>()
        };
        page.gauge("batzen_pool_threads", "Threads of the CPU pool", self.threads());
        let queued = count(|counters| counters.queued.load(Relaxed));
        page.gauges("batzen_pool_queued", "Items waiting for the CPU pool", "kind", queued);
        let limits = kinds.iter().map(|(kind, options, _)| (*kind, options.queue_items_max as u64));
        page.gauges("batzen_pool_queue_limit", "Items that may wait", "kind", limits);
        let counter = |page: &mut Page, name, help, value| page.counters(name, help, "kind", count(value));
        counter(page, "batzen_pool_items_total", "Items executed", |counters| counters.items.get());
        counter(
            page,
            "batzen_pool_rejected_total",
            "Items not accepted because the queue was full",
            |counters| counters.rejected.get(),
        );
        counter(
            page,
            "batzen_pool_abandoned_total",
            "Items dropped because their request was given up",
            |counters| counters.abandoned.get(),
        );
        counter(page, "batzen_pool_panics_total", "Batches that panicked", |counters| counters.panics.get());
        let batches = spread(|counters| &counters.batch_items);
        page.histograms("batzen_pool_batch_items", "Items in a batch", "kind", batches);
        let busy = spread(|counters| &counters.busy);
        page.histograms("batzen_pool_batch_seconds", "Time to execute a batch", "kind", busy);
        let wait = spread(|counters| &counters.wait);
        page.histograms("batzen_pool_wait_seconds", "Time from submission to execution", "kind", wait);
    }
}

/// Runs a long job (such as generating a key) on its own thread, so that the pool stays free for clients. The
/// operating system schedules the thread.
///
/// # Panics
/// When the job panicked, or the operating system refuses to start a thread.
pub async fn run_long<T: Send + 'static>(name: &str, job: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // The caller may have given up.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(job)));
        })
        .expect("the operating system starts a thread");
    match receiver.await.expect("the thread answers") {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs work that blocks, on a thread of the runtime for such work. Outside of a runtime, as in a simulator, the work
/// runs at once on the caller's thread. None: the runtime is shutting down.
///
/// # Panics
/// When the work panicked.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Some(work()) };
    match runtime.spawn_blocking(work).await {
        Ok(value) => Some(value),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}

fn collector<I: Send + Sync + 'static, O: Send + 'static>(
    owner: &Arc<Owner>,
    kind: &'static str,
    options: CollectorOptions,
    execute: impl Fn(&[I]) -> Vec<O> + Send + Sync + 'static,
) -> Collector<I, O> {
    let CollectorOptions { queue_items_max, batch_items_max, lanes } = options;
    assert!(lanes > 0 && batch_items_max >= lanes && queue_items_max >= batch_items_max, "limits of {kind}");
    let queue = Arc::new(Queue {
        kind,
        options,
        turn_end: Arc::clone(&owner.turn_end),
        execute: Box::new(execute),
        waiting: Mutex::new(Waiting { requests: VecDeque::new(), items: 0, has_turn: false }),
        counters: Counters::new(),
    });
    lock(&owner.shared.kinds).push(Arc::clone(&queue) as Arc<dyn Kind>);
    Collector { owner: Arc::clone(owner), queue }
}

/// Collects items of one kind from many requests and executes them in batches. Clones share the queue.
pub struct Collector<I, O> {
    owner: Arc<Owner>,
    queue: Arc<Queue<I, O>>,
}

impl<I, O> Clone for Collector<I, O> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner), queue: Arc::clone(&self.queue) }
    }
}

impl<I: Send + Sync + 'static, O: Send + 'static> Collector<I, O> {
    /// Submits items. They are executed together with those that other tasks of this runtime submit before it
    /// becomes idle. Await the ticket for the results, in the order of the items. Dropping the ticket gives
    /// up the items that are not in progress yet.
    ///
    /// # Errors
    /// When the queue has no room for all of them: nothing was accepted.
    ///
    /// # Panics
    /// The future panics when the execution of its items panicked.
    pub fn submit(&self, items: Vec<I>) -> Result<Ticket<O>, PoolBusy> {
        let count = items.len();
        let (slot, ticket) = ResultSlot::new(count);
        let request = Request { slot, items, done: 0, since: Instant::now() };
        if count > 0 && self.queue.push(request)? {
            let turn =
                Turn { owner: Arc::clone(&self.owner), kind: Arc::clone(&self.queue) as Arc<dyn Kind> };
            self.owner.turn_end.at_end_of_turn(Arc::new(turn));
        }
        Ok(ticket)
    }

    /// Like [`Collector::submit`], but waits for the results.
    ///
    /// # Errors
    /// When the queue has no room for all of them: nothing was accepted.
    ///
    /// # Panics
    /// When the execution of the items panicked.
    pub async fn run(&self, items: Vec<I>) -> Result<Vec<O>, PoolBusy> {
        Ok(self.submit(items)?.await)
    }

    /// Like [`Collector::run`], for one item.
    ///
    /// # Errors
    /// When the queue has no room.
    ///
    /// # Panics
    /// When the execution panicked.
    pub async fn run_one(&self, item: I) -> Result<O, PoolBusy> {
        Ok(self.run(vec![item]).await?.pop().expect("one result an item"))
    }
}

/// A kind of work whose turn will come. Keeps the pool's threads alive until then.
struct Turn {
    owner: Arc<Owner>,
    kind: Arc<dyn Kind>,
}

impl Deferred for Turn {
    fn run(&self) {
        let shared = &self.owner.shared;
        shared.join_turns(Arc::clone(&self.kind));
        if shared.threads == 0 {
            shared.run_turns();
        }
    }
}

/// A request with the items that have not been executed yet.
struct Request<I, O> {
    slot: Arc<ResultSlot<O>>,
    items: Vec<I>,
    /// The number of items that earlier batches have taken. `items` starts there.
    done: usize,
    since: Instant,
}

/// Consecutive items of one request in a batch.
struct Part<O> {
    slot: Arc<ResultSlot<O>>,
    first: usize,
    count: usize,
}

struct Waiting<I, O> {
    requests: VecDeque<Request<I, O>>,
    items: usize,
    /// Whether the kind is in the queue of turns, or about to be put there.
    has_turn: bool,
}

struct Counters {
    items: Counter,
    batch_items: Histogram,
    batch_items_max: AtomicU64,
    queued: AtomicU64,
    rejected: Counter,
    abandoned: Counter,
    panics: Counter,
    /// Execution times of batches.
    busy: Histogram,
    /// Waiting times of requests, one for each time that a request contributes items to a batch.
    wait: Histogram,
    /// The cost of a row of lanes, in nanoseconds. It falls at once and rises slowly, so that one batch that
    /// the operating system interrupted does not make the next ones small.
    row_ns: AtomicU64,
}

impl Counters {
    fn new() -> Self {
        Self {
            items: Counter::default(),
            batch_items: Histogram::of_counts(),
            batch_items_max: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            rejected: Counter::default(),
            abandoned: Counter::default(),
            panics: Counter::default(),
            busy: Histogram::of_times(),
            wait: Histogram::of_times(),
            row_ns: AtomicU64::new(0),
        }
    }
}

/// Executes a batch: takes all items and returns one result per item in the same order.
type Execute<I, O> = Box<dyn Fn(&[I]) -> Vec<O> + Send + Sync>;

struct Queue<I, O> {
    kind: &'static str,
    options: CollectorOptions,
    /// Wakes the tasks whose results are complete.
    turn_end: Arc<TurnEndTask>,
    execute: Execute<I, O>,
    waiting: Mutex<Waiting<I, O>>,
    counters: Counters,
}

/// A kind of work as the threads see it.
trait Kind: Send + Sync {
    /// Takes a batch and executes it. If more items wait, the kind rejoins the queue of turns first.
    fn turn(self: Arc<Self>, shared: &TurnQueue);
    fn snapshot(&self) -> WorkSnapshot;
    fn counters(&self) -> (&'static str, &CollectorOptions, &Counters);
}

impl<I: Send + Sync + 'static, O: Send + 'static> Queue<I, O> {
    /// Puts a request into the queue. Returns whether the caller must put the kind into the queue of turns.
    fn push(&self, request: Request<I, O>) -> Result<bool, PoolBusy> {
        let count = request.items.len();
        let mut waiting = lock(&self.waiting);
        if count > self.options.queue_items_max - waiting.items {
            self.counters.rejected.add(count as u64);
            return Err(PoolBusy);
        }
        waiting.items += count;
        self.counters.queued.fetch_add(count as u64, Relaxed);
        waiting.requests.push_back(request);
        Ok(!std::mem::replace(&mut waiting.has_turn, true))
    }

    /// Returns the number of waiting items that one turn takes: a thread's share, but no more than fits into
    /// a turn, cut at a full row of lanes. (Further items may join the rest meanwhile.)
    fn turn_items(&self, waiting: usize, threads: usize) -> usize {
        let CollectorOptions { batch_items_max, lanes, .. } = self.options;
        let row_ns = self.counters.row_ns.load(Relaxed).max(1);
        let rows = usize::try_from(TURN_NS / row_ns).unwrap_or(usize::MAX).clamp(1, batch_items_max / lanes);
        let share = waiting.div_ceil(threads.max(1)).next_multiple_of(lanes);
        let take = share.min(rows * lanes).min(waiting);
        if take > lanes { take - take % lanes } else { take }
    }

    /// Takes a batch out of the queue. The flag says whether anything is left.
    fn take(&self, threads: usize) -> (Vec<I>, Vec<Part<O>>, bool) {
        let mut waiting = lock(&self.waiting);
        let wanted = self.turn_items(waiting.items, threads);
        let (mut items, mut parts) = (Vec::with_capacity(wanted), Vec::with_capacity(wanted));
        let now = Instant::now();
        while items.len() < wanted
            && let Some(mut request) = waiting.requests.pop_front()
        {
            if request.slot.is_abandoned() {
                waiting.items -= request.items.len();
                self.counters.abandoned.add(request.items.len() as u64);
                self.counters.queued.fetch_sub(request.items.len() as u64, Relaxed);
                continue;
            }
            let count = request.items.len().min(self.options.lanes).min(wanted - items.len());
            self.counters.wait.time(now.saturating_duration_since(request.since));
            parts.push(Part { slot: Arc::clone(&request.slot), first: request.done, count });
            if count == request.items.len() {
                items.append(&mut request.items);
            } else {
                items.extend(request.items.drain(..count));
                request.done += count;
                waiting.requests.push_back(request);
            }
        }
        waiting.items -= items.len();
        let more = waiting.items > 0;
        waiting.has_turn = more;
        drop(waiting);
        self.counters.queued.fetch_sub(items.len() as u64, Relaxed);
        (items, parts, more)
    }

    fn execute(&self, items: &[I]) -> Result<Vec<O>, Box<dyn Any + Send>> {
        let start = Instant::now();
        let results = catch_unwind(AssertUnwindSafe(|| {
            let results = (self.execute)(items);
            assert_eq!(results.len(), items.len(), "work of kind {} answers every item", self.kind);
            results
        }));
        let spent = start.elapsed();
        let counters = &self.counters;
        let count = items.len() as u64;
        counters.batch_items.count(count);
        counters.batch_items_max.fetch_max(count, Relaxed);
        counters.busy.time(spent);
        if results.is_ok() {
            counters.items.add(count);
            let row_ns = nanos(spent) / items.len().div_ceil(self.options.lanes) as u64;
            let known = counters.row_ns.load(Relaxed);
            let risen = known.saturating_add(known / 16 + 1);
            counters.row_ns.store(if known == 0 { row_ns } else { row_ns.min(risen) }, Relaxed);
        } else {
            counters.panics.inc();
        }
        results
    }

    fn answer(&self, items: &[I], parts: &[Part<O>]) {
        match self.execute(items) {
            Ok(results) => {
                let mut results = results.into_iter();
                let mut complete = Vec::with_capacity(parts.len());
                for part in parts {
                    if part.slot.put(part.first, results.by_ref().take(part.count)) {
                        complete.push(Arc::clone(&part.slot));
                    }
                }
                self.turn_end.wake_all(waiting(&complete));
            }
            Err(_) if parts.len() == 1 => {
                tracing::error!(kind = self.kind, "execution on the CPU pool panicked");
                // The request's other results are no longer needed.
                parts[0].slot.abandon();
                parts[0].slot.fail();
            }
            Err(_) => {
                let mut rest = items;
                for part in parts {
                    let (items, others) = rest.split_at(part.count);
                    rest = others;
                    self.answer(items, std::slice::from_ref(part));
                }
            }
        }
    }
}

impl<I: Send + Sync + 'static, O: Send + 'static> Kind for Queue<I, O> {
    fn turn(self: Arc<Self>, shared: &TurnQueue) {
        let (items, parts, more) = self.take(shared.threads);
        if more {
            shared.join_turns(Arc::clone(&self) as Arc<dyn Kind>);
        }
        if !items.is_empty() {
            self.answer(&items, &parts);
        }
    }

    fn snapshot(&self) -> WorkSnapshot {
        let counters = &self.counters;
        let (batches, _) = counters.batch_items.reading();
        let (_, busy_ns) = counters.busy.reading();
        let (shares, wait_ns) = counters.wait.reading();
        WorkSnapshot {
            kind: self.kind,
            items: counters.items.get(),
            batches,
            batch_items_max: counters.batch_items_max.load(Relaxed),
            queued: counters.queued.load(Relaxed),
            rejected: counters.rejected.get(),
            abandoned: counters.abandoned.get(),
            panics: counters.panics.get(),
            busy_ns,
            shares,
            wait_ns,
        }
    }

    fn counters(&self) -> (&'static str, &CollectorOptions, &Counters) {
        (self.kind, &self.options, &self.counters)
    }
}

/// The queue of turns and the threads that serve it.
struct TurnQueue {
    threads: usize,
    turns: Mutex<Turns>,
    work_waits: Condvar,
    kinds: Mutex<Vec<Arc<dyn Kind>>>,
}

#[derive(Default)]
struct Turns {
    /// Kinds with waiting items, the next one first, each at most once.
    row: VecDeque<Arc<dyn Kind>>,
    /// Threads that are asleep and have not been told to wake up.
    sleeping: usize,
    closed: bool,
}

impl TurnQueue {
    fn join_turns(&self, kind: Arc<dyn Kind>) {
        let mut turns = lock(&self.turns);
        turns.row.push_back(kind);
        if turns.sleeping > 0 {
            turns.sleeping -= 1;
            drop(turns);
            self.work_waits.notify_one();
        }
    }

    /// Executes everything that waits, on the caller's thread.
    fn run_turns(&self) {
        loop {
            let Some(kind) = lock(&self.turns).row.pop_front() else { return };
            kind.turn(self);
        }
    }

    fn work(&self) {
        loop {
            let mut turns = lock(&self.turns);
            let kind = loop {
                if let Some(kind) = turns.row.pop_front() {
                    break kind;
                }
                if turns.closed {
                    return;
                }
                turns.sleeping += 1;
                // After a spurious wake-up the count may be one too high, which costs one needless
                // notification.
                drop(self.work_waits.wait(turns).unwrap_or_else(PoisonError::into_inner));
                // The thread that woke this one may be about to submit more on this very processor. Let it,
                // so that everything makes one batch. If no other thread wants the processor, this returns at
                // once.
                std::thread::yield_now();
                turns = lock(&self.turns);
            };
            drop(turns);
            kind.turn(self);
        }
    }
}

/// Ends the threads when the last user of the pool is dropped.
struct Owner {
    shared: Arc<TurnQueue>,
    turn_end: Arc<TurnEndTask>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&self.shared.turns).closed = true;
        self.shared.work_waits.notify_all();
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
