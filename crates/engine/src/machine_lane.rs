//! A lane for a machine whose whole state is in memory and whose log is in a store: what waits is executed request by
//! request, made durable in one commit, and answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_metrics::Histogram;
use tokio::sync::oneshot;

/// What a lane drives. All is called from one thread.
pub trait LaneMachine: Send + 'static {
    /// What is asked for.
    type Request: Send + 'static;
    /// What is answered.
    type Answer: Send + 'static;
    /// Why a whole batch failed: all its requests get a copy.
    type Error: Clone + Send + 'static;

    /// How many events a request has: batches are limited by their sum.
    fn events(request: &Self::Request) -> usize;

    /// When the machine has work of its own, in nanoseconds since the epoch.
    fn due_at(&self) -> Option<u64>;

    /// Does a part of the work that is due. Called again while [`LaneMachine::due_at`] has come.
    ///
    /// # Errors
    /// When the batch must be undone.
    fn pulse(&mut self, now: u64) -> Result<(), Self::Error>;

    /// Executes a request in memory.
    ///
    /// # Errors
    /// When the batch must be undone.
    fn execute(&mut self, request: Self::Request, now: u64) -> Result<Self::Answer, Self::Error>;

    /// Makes everything since the last commit durable.
    ///
    /// # Errors
    /// When nothing of it is durable: the batch must be undone.
    fn commit(&mut self) -> Result<(), Self::Error>;

    /// Undoes everything since the last commit.
    fn undo(&mut self);
}

/// Limits of a machine's lane.
#[derive(Clone, Copy, Debug)]
pub struct MachineLaneOptions {
    /// Requests that may wait.
    pub queue_requests_max: usize,
    /// Events that may wait.
    pub queue_events_max: usize,
    /// A batch takes no further request once it has so many events.
    pub batch_events_max: usize,
}

impl Default for MachineLaneOptions {
    fn default() -> Self {
        Self { queue_requests_max: 8_192, queue_events_max: 64 * 8_189, batch_events_max: 4 * 8_189 }
    }
}

/// Why a lane gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneRefusal<E> {
    /// Too much is waiting. Nothing was done.
    Overloaded,
    /// The lane has ended. Whether the request took effect is unknown if it was accepted before.
    Stopped,
    /// The batch was undone.
    Failed(E),
}

/// What a lane counts.
pub struct MachineLaneMetrics {
    /// Events that wait.
    waiting: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    batch_events: Histogram,
    execute_times: Histogram,
    commit_times: Histogram,
}

impl MachineLaneMetrics {
    /// Events that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Requests refused because too much was waiting.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Batches that were undone.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Events a batch.
    #[must_use]
    pub const fn batch_events(&self) -> &Histogram {
        &self.batch_events
    }

    /// Time to execute a batch.
    #[must_use]
    pub const fn execute_times(&self) -> &Histogram {
        &self.execute_times
    }

    /// Time to make a batch durable.
    #[must_use]
    pub const fn commit_times(&self) -> &Histogram {
        &self.commit_times
    }
}

type Reply<M> = Result<<M as LaneMachine>::Answer, LaneRefusal<<M as LaneMachine>::Error>>;

struct Job<M: LaneMachine> {
    request: M::Request,
    answer: oneshot::Sender<Reply<M>>,
}

/// The lane: a queue and the thread that empties it.
pub struct MachineLane<M: LaneMachine> {
    queue: Mutex<Option<SyncSender<Job<M>>>>,
    metrics: Arc<MachineLaneMetrics>,
    options: MachineLaneOptions,
    thread: Mutex<Option<JoinHandle<M>>>,
}

impl<M: LaneMachine> MachineLane<M> {
    /// Starts the thread. `clock` says the time in nanoseconds since the epoch.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(machine: M, clock: impl Fn() -> u64 + Send + 'static, options: MachineLaneOptions) -> Self {
        assert!(options.queue_requests_max > 0 && options.batch_events_max > 0, "limits are positive");
        let (queue, jobs) = sync_channel(options.queue_requests_max);
        let metrics = Arc::new(MachineLaneMetrics {
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            batch_events: Histogram::of_counts(),
            execute_times: Histogram::of_times(),
            commit_times: Histogram::of_times(),
        });
        let shared = Arc::clone(&metrics);
        let thread = std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || run(machine, &jobs, &clock, options, &shared))
            .expect("the operating system starts the lane's thread");
        Self { queue: Mutex::new(Some(queue)), metrics, options, thread: Mutex::new(Some(thread)) }
    }

    /// Has a request executed. Returns after its batch is durable.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn submit(&self, request: M::Request) -> Reply<M> {
        self.enqueue(request)?.await.unwrap_or(Err(LaneRefusal::Stopped))
    }

    /// Queues a request; the answer comes through the channel.
    ///
    /// # Errors
    /// When it was not accepted.
    pub fn enqueue(&self, request: M::Request) -> Result<oneshot::Receiver<Reply<M>>, LaneRefusal<M::Error>> {
        let events = M::events(&request) as u64;
        let refuse = |refusal| {
            self.metrics.waiting.fetch_sub(events, Ordering::Relaxed);
            self.metrics.refused.fetch_add(1, Ordering::Relaxed);
            Err(refusal)
        };
        let waiting = self.metrics.waiting.fetch_add(events, Ordering::Relaxed);
        if waiting > self.options.queue_events_max as u64 {
            return refuse(LaneRefusal::Overloaded);
        }
        let queue = self.queue.lock().expect("nobody panics with the lock held").clone();
        let Some(queue) = queue else { return refuse(LaneRefusal::Stopped) };
        let (answer, receiver) = oneshot::channel();
        match queue.try_send(Job { request, answer }) {
            Ok(()) => Ok(receiver),
            Err(TrySendError::Full(_)) => refuse(LaneRefusal::Overloaded),
            Err(TrySendError::Disconnected(_)) => refuse(LaneRefusal::Stopped),
        }
    }

    /// The lane's counters.
    pub fn metrics(&self) -> &MachineLaneMetrics {
        &self.metrics
    }

    /// Accepts no more, waits until everything accepted is durable and answered, and gives the machine back; none if
    /// somebody else has it.
    ///
    /// # Panics
    /// When the lane's thread did.
    pub fn stop(&self) -> Option<M> {
        self.queue.lock().expect("nobody panics with the lock held").take();
        let thread = self.thread.lock().expect("nobody panics with the lock held").take();
        thread.map(|thread| thread.join().expect("the lane ends without a broken assertion"))
    }
}

impl<M: LaneMachine> Drop for MachineLane<M> {
    /// No commit is cut short by the end of the process.
    fn drop(&mut self) {
        self.queue.get_mut().expect("nobody panics with the lock held").take();
        if let Some(thread) = self.thread.get_mut().expect("nobody panics with the lock held").take() {
            let ended = thread.join().is_ok();
            assert!(ended || std::thread::panicking(), "the lane ended with a broken assertion");
        }
    }
}

/// How long a machine without work of its own waits for requests before it looks at the clock again.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// After a failed batch the machine's own work, which would fail again, waits so long unless a request comes.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

fn run<M: LaneMachine>(
    machine: M,
    jobs: &Receiver<Job<M>>,
    clock: &impl Fn() -> u64,
    options: MachineLaneOptions,
    metrics: &MachineLaneMetrics,
) -> M {
    let work = || work(machine, jobs, clock, options, metrics);
    // A broken invariant means that the books cannot be trusted to this process any more: it ends rather than answers wrongly.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(machine) => machine,
        Err(panic) => {
            tracing::error!(
                "invariant broken in the machine: the process ends, nothing of the batch was committed"
            );
            if cfg!(test) {
                std::panic::resume_unwind(panic);
            }
            std::process::abort();
        }
    }
}

fn work<M: LaneMachine>(
    mut machine: M,
    jobs: &Receiver<Job<M>>,
    clock: &impl Fn() -> u64,
    options: MachineLaneOptions,
    metrics: &MachineLaneMetrics,
) -> M {
    let mut batch: Vec<Job<M>> = Vec::new();
    let mut answers = Vec::new();
    let mut wait_min = Duration::ZERO;
    loop {
        let wait = machine.due_at().map_or(IDLE_MAX, |due| Duration::from_nanos(due.saturating_sub(clock())));
        let mut is_last = false;
        match jobs.recv_timeout(wait.clamp(wait_min, IDLE_MAX)) {
            Ok(job) => {
                batch.push(job);
                // Who was woken by the answers of the last batch asks again at once: let them, so that batches grow.
                std::thread::yield_now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => is_last = true,
        }
        let mut events: usize = batch.iter().map(|job| M::events(&job.request)).sum();
        while events < options.batch_events_max
            && !batch.is_empty()
            && let Ok(job) = jobs.try_recv()
        {
            events += M::events(&job.request);
            batch.push(job);
        }
        metrics.waiting.fetch_sub(events as u64, Ordering::Relaxed);
        let now = clock();
        if batch.is_empty() && machine.due_at().is_none_or(|due| due > now) {
            if is_last {
                return machine;
            }
            continue;
        }
        let start = Instant::now();
        let mut executed = Ok(());
        while executed.is_ok() && machine.due_at().is_some_and(|due| due <= now) {
            executed = machine.pulse(now).and_then(|()| machine.commit());
        }
        let mut waiting = Vec::with_capacity(batch.len());
        for Job { request, answer } in batch.drain(..) {
            // A request is executed even if its sender has gone away: it may have asked because it must happen.
            if executed.is_ok() {
                match machine.execute(request, now) {
                    Ok(result) => answers.push(result),
                    Err(error) => executed = Err(error),
                }
            }
            waiting.push(answer);
        }
        let middle = Instant::now();
        let done = executed.and_then(|()| machine.commit());
        metrics.batch_events.count(events as u64);
        metrics.execute_times.time(middle - start);
        metrics.commit_times.time(middle.elapsed());
        match done {
            Ok(()) => {
                wait_min = Duration::ZERO;
                for (answer, result) in waiting.into_iter().zip(answers.drain(..)) {
                    // A client that has gone away will ask again.
                    let _ = answer.send(Ok(result));
                }
            }
            Err(error) => {
                machine.undo();
                wait_min = FAILED_PAUSE;
                answers.clear();
                metrics.failed.fetch_add(1, Ordering::Relaxed);
                for answer in waiting {
                    let _ = answer.send(Err(LaneRefusal::Failed(error.clone())));
                }
            }
        }
    }
}
