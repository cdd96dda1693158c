//! A lane for a machine that has its whole state in memory and its log in a store. The lane executes waiting
//! requests one after the other, makes them durable in one commit, and then answers them.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::queue::{BatchLimits, QueueLimits, SubmissionQueue, Submissions, Taken, Wait};
use crate::slot::lock;
use crate::{LaneMetrics, SubmitError};

/// A machine that a [`MachineLane`] drives, from one thread.
pub trait LaneMachine: Send + 'static {
    /// A request.
    type Request: Send + 'static;
    /// The answer to a request.
    type Answer: Send + 'static;
    /// Why a whole batch failed. Each of its requests is answered with a copy.
    type Error: Clone + Send + 'static;

    /// The number of events in a request. Queue and batches are limited by their sum.
    fn events(request: &Self::Request) -> usize;

    /// When the machine's own work is next due, in nanoseconds since the epoch.
    fn due_at(&self) -> Option<u64>;

    /// Does a part of the work that is due. The lane calls it again as long as [`LaneMachine::due_at`] is in
    /// the past.
    ///
    /// # Errors
    /// When the batch must be undone.
    fn run_due(&mut self, now: u64) -> Result<(), Self::Error>;

    /// Executes a request in memory.
    ///
    /// # Errors
    /// When the batch must be undone.
    fn execute(&mut self, request: Self::Request, now: u64) -> Result<Self::Answer, Self::Error>;

    /// Makes everything since the last commit durable.
    ///
    /// # Errors
    /// When none of it is durable: the batch must be undone.
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
    /// A batch accepts no further request once it has this many events.
    pub batch_events_max: usize,
}

impl Default for MachineLaneOptions {
    fn default() -> Self {
        Self { queue_requests_max: 8_192, queue_events_max: 64 * 8_189, batch_events_max: 4 * 8_189 }
    }
}

/// The answer to a request, or why there is none. A failed batch was undone.
type Reply<M> = Result<<M as LaneMachine>::Answer, SubmitError<<M as LaneMachine>::Error>>;

struct Job<M: LaneMachine> {
    request: M::Request,
    answer: oneshot::Sender<Reply<M>>,
}

/// The lane: a queue and the thread that empties it.
pub struct MachineLane<M: LaneMachine> {
    queue: SubmissionQueue<Job<M>>,
    metrics: Arc<LaneMetrics>,
    thread: Mutex<Option<JoinHandle<M>>>,
}

impl<M: LaneMachine> MachineLane<M> {
    /// Starts the thread. `clock` returns the time in nanoseconds since the epoch.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn start(machine: M, clock: impl Fn() -> u64 + Send + 'static, options: MachineLaneOptions) -> Self {
        let MachineLaneOptions { queue_requests_max, queue_events_max, batch_events_max } = options;
        assert!(batch_events_max > 0, "limits are positive");
        let metrics = Arc::<LaneMetrics>::default();
        let limits = QueueLimits { commands_max: queue_requests_max, events_max: queue_events_max };
        let (queue, submissions) = SubmissionQueue::new(limits, Arc::clone(&metrics));
        let worker = Worker { machine, submissions, clock, batch_events_max, metrics: Arc::clone(&metrics) };
        let thread = std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || worker.run())
            .expect("the operating system starts the lane's thread");
        Self { queue, metrics, thread: Mutex::new(Some(thread)) }
    }

    /// Executes a request. Returns after its batch is durable.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn submit(&self, request: M::Request) -> Reply<M> {
        self.enqueue(request)?.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// Queues a request. The answer arrives through the channel.
    ///
    /// # Errors
    /// When the request was not accepted.
    pub fn enqueue(&self, request: M::Request) -> Result<oneshot::Receiver<Reply<M>>, SubmitError<M::Error>> {
        let events = M::events(&request);
        let (answer, receiver) = oneshot::channel();
        self.queue.push(Job { request, answer }, events).map_err(|(error, _)| error)?;
        Ok(receiver)
    }

    /// The lane's metrics.
    pub fn metrics(&self) -> &LaneMetrics {
        &self.metrics
    }

    /// Accepts no more requests, waits until everything accepted is durable and answered, and returns the
    /// machine. None if an earlier call has returned it.
    ///
    /// # Panics
    /// When the lane's thread panicked.
    pub fn stop(&self) -> Option<M> {
        self.queue.close();
        let thread = lock(&self.thread).take();
        thread.map(|thread| thread.join().expect("the lane ends without a broken assertion"))
    }
}

impl<M: LaneMachine> Drop for MachineLane<M> {
    /// Waits, so that the end of the process does not interrupt a commit.
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = lock(&self.thread).take() {
            let ended = thread.join().is_ok();
            assert!(ended || std::thread::panicking(), "the lane ended with a broken assertion");
        }
    }
}

/// Time that a machine without work of its own waits for requests before it checks the clock again.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Time that the machine's own work waits after a failed batch unless a request comes. Without the wait it
/// would just fail again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The state of the lane's thread.
struct Worker<M: LaneMachine, C> {
    machine: M,
    submissions: Submissions<Job<M>>,
    clock: C,
    batch_events_max: usize,
    metrics: Arc<LaneMetrics>,
}

impl<M: LaneMachine, C: Fn() -> u64> Worker<M, C> {
    fn run(self) -> M {
        // After a broken invariant, the books of this process cannot be trusted, so it ends rather than
        // giving wrong answers.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work())) {
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

    fn work(mut self) -> M {
        let limits = BatchLimits { commands_max: usize::MAX, events_max: self.batch_events_max };
        let mut batch: Vec<Job<M>> = Vec::new();
        let mut wait_min = Duration::ZERO;
        loop {
            let wait = self
                .machine
                .due_at()
                .map_or(IDLE_MAX, |due| Duration::from_nanos(due.saturating_sub((self.clock)())));
            let end = Instant::now() + wait.clamp(wait_min, IDLE_MAX);
            let taken = self.submissions.take(&mut batch, limits, Wait::Until(end));
            let now = (self.clock)();
            if batch.is_empty() && !self.is_due(now) {
                if taken == Taken::Closed {
                    return self.machine;
                }
                continue;
            }
            wait_min = if self.batch(&mut batch, now) { Duration::ZERO } else { RETRY_INTERVAL };
            // Clients that received an answer may ask again at once. Let them, so that batches grow.
            std::thread::yield_now();
        }
    }

    fn is_due(&self, now: u64) -> bool {
        self.machine.due_at().is_some_and(|due| due <= now)
    }

    /// Executes a batch and answers it. Returns whether it is durable; otherwise it was undone.
    fn batch(&mut self, batch: &mut Vec<Job<M>>, now: u64) -> bool {
        let commands = batch.len() as u64;
        let events = batch.iter().map(|job| M::events(&job.request)).sum::<usize>() as u64;
        self.metrics.dequeued(events);
        let start = Instant::now();
        let mut executed = Ok(());
        while executed.is_ok() && self.is_due(now) {
            executed = self.machine.run_due(now).and_then(|()| self.machine.commit());
        }
        let mut results = Vec::with_capacity(batch.len());
        let mut waiting = Vec::with_capacity(batch.len());
        for Job { request, answer } in batch.drain(..) {
            // A request is executed even if its client has disconnected: its effect may still be needed.
            if executed.is_ok() {
                match self.machine.execute(request, now) {
                    Ok(result) => results.push(result),
                    Err(error) => executed = Err(error),
                }
            }
            waiting.push(answer);
        }
        let middle = Instant::now();
        let done = executed.and_then(|()| self.machine.commit());
        self.metrics.machine_batch(commands, events, middle - start, middle.elapsed());
        match done {
            Ok(()) => {
                for (answer, result) in waiting.into_iter().zip(results) {
                    // A client that has disconnected will ask again.
                    let _ = answer.send(Ok(result));
                }
                true
            }
            Err(error) => {
                self.machine.undo();
                self.metrics.failed_batch();
                for answer in waiting {
                    self.metrics.failed_command();
                    let _ = answer.send(Err(SubmitError::Store(error.clone())));
                }
                false
            }
        }
    }
}
