//! The load generator: few threads, many connections, requests prepared in advance.
//!
//! A *script* defines the requests. A client (a connection) takes a job from its thread's script, sends its
//! first request, passes the answer to the script, and sends what the script returns next, until the job is
//! done. In a *closed* loop the client then takes the next job. In an *open* loop jobs begin at planned
//! times, whatever the server does, and the latency of a job's first request counts from its planned time, so
//! a server that stalls cannot hide the requests that would have been sent meanwhile (coordinated omission).
//! Jobs are skipped, and counted, only when the generator itself was held up for milliseconds, since their
//! latency would say nothing about the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;
use crate::bench::load::moments::Moment;

mod client;

/// The largest latency recorded, in microseconds; longer ones count as this.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Time to wait for answers after the load ends.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// Its kind: an index into [`Plan::kinds`].
    pub(crate) kind: usize,
}

/// The next step after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The job goes on with this request.
    Send(Outgoing),
    /// The job is done.
    Done,
    /// The job has failed, for this reason.
    Failed(String),
}

/// Decides what one thread of the generator sends.
pub(crate) trait Script: Send {
    /// Begins the next job on connection `slot` of the thread. `None`: no jobs are left.
    fn begin(&mut self, slot: usize) -> Option<Outgoing>;

    /// Handles the answer to the last request of `slot`. Returns how many items of its kind it completes, and
    /// what to do next.
    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next);
}

/// When jobs begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Schedule {
    /// Whenever a client is free.
    Closed,
    /// At this rate.
    Open {
        /// Jobs per second, of all threads together.
        jobs_per_s: f64,
    },
}

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Whether these requests complete the operations of the run.
    pub(crate) is_counted: bool,
}

impl Kind {
    /// A kind whose requests complete operations.
    pub(crate) const fn counted(name: &'static str) -> Self {
        Self { name, is_counted: true }
    }

    /// A kind whose requests only lead up to an operation.
    pub(crate) const fn uncounted(name: &'static str) -> Self {
        Self { name, is_counted: false }
    }
}

/// Options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Addresses of the servers; connections are spread over them. Not empty.
    pub servers: Vec<SocketAddr>,
    /// Connections in all threads together.
    pub clients: usize,
    /// When jobs begin.
    pub schedule: Schedule,
    /// Length of the warm-up.
    pub warmup: Duration,
    /// Length of the measured part; `None`: until the scripts have nothing left.
    pub duration: Option<Duration>,
    /// The kinds of requests.
    pub kinds: Vec<Kind>,
    /// Cores of the generator's threads.
    pub cores: Vec<usize>,
}

/// The counts of the measured part, or of an interval of it.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    /// Operations completed; for one kind of request, items of that kind.
    pub ops: u64,
    /// Correct answers.
    pub requests: u64,
    pub latency: Histogram<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self::new(3)
    }
}

impl Counts {
    /// Empty counts whose latencies keep this many significant digits.
    ///
    /// # Panics
    /// Unless there are 0 to 5 digits.
    fn new(digits: u8) -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_US, digits).expect("constant bounds");
        Self { ops: 0, requests: 0, latency }
    }

    fn count(&mut self, ops: u64, latency_us: u64) {
        self.ops += ops;
        self.requests += 1;
        self.latency.saturating_record(latency_us);
    }

    fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.requests += other.requests;
        self.latency += &other.latency;
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadOutcome {
    /// Length of the measured part.
    pub(crate) measured: Duration,
    /// The measured part.
    pub(crate) all: Counts,
    /// The measured part by kind of request, in the order of [`Plan::kinds`].
    pub(crate) kinds: Vec<Counts>,
    /// The measured part by second.
    pub(crate) seconds: Vec<Counts>,
    /// The measured part by [moment](crate::bench::load::moments); of long runs only the beginning.
    pub(crate) moments: Vec<Moment>,
    /// Jobs that failed at any time, by reason.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Whether the scripts ran out of jobs before the time was up.
    pub(crate) is_exhausted: bool,
    /// Operations completed at any time, warm-up and drain included.
    pub(crate) ops_in_all: u64,
    /// The 99th percentile, in µs, of how late jobs of an open loop began because the generator itself was
    /// busy. Time without a free client does not count.
    pub(crate) late_p99_us: u64,
    /// The longest such delay.
    pub(crate) late_max_us: u64,
    /// Jobs of an open loop that began late because no client was free.
    pub(crate) waited_for_client: u64,
    /// Jobs of an open loop that were skipped because the generator itself was held up past their time.
    pub(crate) missed: u64,
    /// The largest number of clients in use at the same time.
    pub(crate) clients_used: usize,
}

/// State shared by the threads of a run and its observer.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    /// End of the measured part, in nanoseconds from the start.
    end_ns: AtomicU64,
    stops: AtomicBool,
    exhausted: AtomicBool,
    ops: AtomicU64,
    interrupted: Arc<AtomicBool>,
}

impl Watch {
    /// Operations completed so far.
    pub(crate) fn ops(&self) -> u64 {
        self.ops.load(Relaxed)
    }

    fn ends_now(&self) {
        self.end_ns.fetch_min(nanos(self.start.elapsed()), Relaxed);
        self.stops.store(true, Relaxed);
    }
}

/// Called while a run is under way.
pub(crate) trait Observer {
    /// The measured part begins.
    fn begins(&mut self) {}
    /// A second of the measured part has passed; `elapsed` counts from its beginning.
    fn second(&mut self, _elapsed: Duration, _watch: &Watch) {}
    /// Some time has passed, warm-up included.
    fn ticks(&mut self, _watch: &Watch) {}
    /// The measured part is over.
    fn ends(&mut self) {}
}

/// Observes nothing.
impl Observer for () {}

/// Interval between calls of the observer.
const TICK: Duration = Duration::from_millis(100);

/// Counts a thread as finished when dropped, so that a thread that panics counts too.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Releases the threads when dropped, even if the observer panics.
struct ReleaseOnDrop<'a>(&'a OnceLock<()>);

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        // This is the only place that releases them.
        let _ = self.0.set(());
    }
}

/// Puts load on a server, with one thread per script. Returns the scripts with the data they have kept.
///
/// The threads stay alive until the observer has seen the end, so that it can still read their CPU time from
/// the operating system.
///
/// # Errors
/// When the server cannot be reached, or `interrupted` becomes true. Requests that fail are counted instead.
pub(crate) fn run<S: Script>(
    plan: &Plan,
    scripts: Vec<S>,
    observer: &mut dyn Observer,
    interrupted: &Arc<AtomicBool>,
) -> Result<(LoadOutcome, Vec<S>)> {
    let threads = scripts.len();
    let barrier = Barrier::new(threads + 1);
    let mut clients = Vec::with_capacity(threads);
    for (index, script) in scripts.into_iter().enumerate() {
        let count = plan.clients / threads + usize::from(index < plan.clients % threads);
        clients.push(client::Thread::connect(plan, index, threads, count, script)?);
    }
    let window = plan.duration.map(|duration| plan.warmup + duration);
    let watch = Watch {
        start: Instant::now(),
        end_ns: AtomicU64::new(window.map_or(u64::MAX, nanos)),
        stops: AtomicBool::new(false),
        exhausted: AtomicBool::new(false),
        ops: AtomicU64::new(0),
        interrupted: Arc::clone(interrupted),
    };
    let (done, may_go) = (AtomicUsize::new(0), OnceLock::new());
    let finished = std::thread::scope(|scope| -> Result<Vec<client::Finished<S>>> {
        let (watch, barrier, done, may_go) = (&watch, &barrier, &done, &may_go);
        let handles = affinity::on_cores(&plan.cores, || {
            clients
                .into_iter()
                .enumerate()
                .map(|(index, thread)| {
                    let work = move || {
                        barrier.wait();
                        let finished = {
                            let _done = Done(done);
                            thread.run(watch)
                        };
                        may_go.wait();
                        finished
                    };
                    // The run cannot go on without these threads.
                    std::thread::Builder::new()
                        .name(format!("load-{index}"))
                        .spawn_scoped(scope, work)
                        .expect("the operating system starts the threads of the load generator")
                })
                .collect::<Vec<_>>()
        })?;
        barrier.wait();
        let release = ReleaseOnDrop(may_go);
        observe(plan, watch, observer, || done.load(Relaxed) == threads);
        drop(release);
        Ok(handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect())
    })?;
    if interrupted.load(Relaxed) {
        return Err(BenchError::Interrupted);
    }
    Ok(merge(plan, &watch, finished))
}

/// Runs the observer until the load is over.
fn observe(plan: &Plan, watch: &Watch, observer: &mut dyn Observer, is_finished: impl Fn() -> bool) {
    let mut begun = None;
    let mut seconds = 0;
    loop {
        let elapsed = watch.start.elapsed();
        let end = Duration::from_nanos(watch.end_ns.load(Relaxed));
        let is_over = elapsed >= end || is_finished() || watch.interrupted.load(Relaxed);
        if begun.is_none() && (elapsed >= plan.warmup || is_over) {
            begun = Some(elapsed);
            observer.begins();
        }
        if is_over {
            observer.ends();
            watch.stops.store(true, Relaxed);
            return;
        }
        if let Some(begun) = begun {
            let measured = elapsed - begun;
            if measured.as_secs() > seconds {
                seconds = measured.as_secs();
                observer.second(measured, watch);
            }
        }
        observer.ticks(watch);
        let pause = TICK.min(end.saturating_sub(elapsed));
        let pause = if begun.is_none() { pause.min(plan.warmup.saturating_sub(elapsed)) } else { pause };
        std::thread::sleep(pause.max(Duration::from_micros(100)));
    }
}

fn merge<S>(plan: &Plan, watch: &Watch, finished: Vec<client::Finished<S>>) -> (LoadOutcome, Vec<S>) {
    let last_ns = finished.iter().map(|thread| thread.last_ns).max().unwrap_or(0);
    let end_ns = match watch.end_ns.load(Relaxed) {
        u64::MAX => last_ns,
        end => end,
    };
    let mut outcome = LoadOutcome {
        measured: Duration::from_nanos(end_ns).saturating_sub(plan.warmup),
        kinds: vec![Counts::default(); plan.kinds.len()],
        is_exhausted: watch.exhausted.load(Relaxed),
        ops_in_all: watch.ops(),
        ..LoadOutcome::default()
    };
    let mut late = Counts::default();
    let mut scripts = Vec::with_capacity(finished.len());
    for thread in finished {
        for ((kind, sum), counts) in plan.kinds.iter().zip(&mut outcome.kinds).zip(&thread.kinds) {
            sum.add(counts);
            outcome.all.add(counts);
            if !kind.is_counted {
                outcome.all.ops -= counts.ops;
            }
        }
        for (index, counts) in thread.seconds.into_iter().enumerate() {
            match outcome.seconds.get_mut(index) {
                Some(second) => second.add(&counts),
                None => outcome.seconds.push(counts),
            }
        }
        for (index, moment) in thread.moments.into_iter().enumerate() {
            match outcome.moments.get_mut(index) {
                Some(all) => all.add(&moment),
                None => outcome.moments.push(moment),
            }
        }
        for (reason, count) in thread.errors {
            *outcome.errors.entry(reason).or_default() += count;
        }
        late.latency += &thread.late;
        outcome.waited_for_client += thread.waited_for_client;
        outcome.missed += thread.missed;
        outcome.clients_used += thread.clients_used;
        scripts.push(thread.script);
    }
    outcome.late_p99_us = late.latency.value_at_quantile(0.99);
    outcome.late_max_us = late.latency.max();
    (outcome, scripts)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
