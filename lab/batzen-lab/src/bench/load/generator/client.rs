//! One thread of the load generator: its connections, and the loop over them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::{Counts, DRAIN_TIME, LATENCY_MAX_US, Next, Outgoing, Plan, Schedule, Script, Watch, nanos};
use crate::bench::BenchError;
use crate::bench::load::moments::{self, Moment};
use crate::bench::load::wire::{self, Framed};

/// The timer's event number; connections use their own numbers.
const TIMER: u64 = u64::MAX;
/// The longest sleep of the loop, since other threads may have ended the run.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// A job that begins this late although a client was free is skipped. Only the generator is to blame, usually
/// because a hypervisor took its core away. Catching up would cause a burst that real clients would not make.
const HELD_UP_NS: u64 = 5_000_000;
/// Series of intervals keep two significant digits: enough for a plot.
const SECOND_DIGITS: u8 = 2;

/// A connection and its request under way.
struct Connection {
    stream: TcpStream,
    /// The request under way; `None`: the client is free.
    request: Option<Request>,
    /// The part of the answer received so far.
    received: Vec<u8>,
    /// Whether to wait for the kernel to accept more bytes.
    waits_to_send: bool,
}

struct Request {
    outgoing: Outgoing,
    sent: usize,
    /// When it was sent, or should have been; nanoseconds from the start.
    since_ns: u64,
}

/// A thread before its start.
pub(super) struct Thread<S> {
    plan: Plan,
    index: usize,
    threads: usize,
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Connection>,
    script: S,
}

/// The results that a thread returns at the end.
pub(super) struct Finished<S> {
    pub(crate) script: S,
    pub(crate) kinds: Vec<Counts>,
    pub(crate) seconds: Vec<Counts>,
    pub(crate) moments: Vec<Moment>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) late: Histogram<u64>,
    pub(crate) waited_for_client: u64,
    pub(crate) missed: u64,
    pub(crate) clients_used: usize,
    /// When the last answer came, nanoseconds from the start.
    pub(crate) last_ns: u64,
}

impl<S: Script> Thread<S> {
    pub(super) fn connect(
        plan: &Plan,
        index: usize,
        threads: usize,
        count: usize,
        script: S,
    ) -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| BenchError::set_up("load generator", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|error| failed(error.into()))?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)
            .map_err(|error| failed(error.into()))?;
        let mut thread =
            Self { plan: plan.clone(), index, threads, epoll, timer, connections: Vec::new(), script };
        for slot in 0..count {
            let stream = thread.open(slot).map_err(failed)?;
            thread.connections.push(Connection {
                stream,
                request: None,
                received: Vec::new(),
                waits_to_send: false,
            });
        }
        Ok(thread)
    }

    fn open(&self, slot: usize) -> std::io::Result<TcpStream> {
        let servers = &self.plan.servers;
        let server = &servers[(slot * self.threads + self.index) % servers.len()];
        let stream = TcpStream::connect_timeout(server, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&self.epoll, &stream, EventData::new_u64(slot as u64), EventFlags::IN)?;
        Ok(stream)
    }

    pub(super) fn run(self, watch: &Watch) -> Finished<S> {
        let clients = self.connections.len();
        let mut work = Work {
            watch,
            free: (0..clients).rev().collect(),
            schedule: Times::new(self.plan.schedule, self.index, self.threads),
            warmup_ns: nanos(self.plan.warmup),
            kinds: vec![Counts::default(); self.plan.kinds.len()],
            seconds: Vec::new(),
            moments: Vec::new(),
            errors: BTreeMap::new(),
            late: Counts::default().latency,
            free_since_ns: 0,
            waited_for_client: 0,
            missed: 0,
            free_min: clients,
            last_ns: 0,
            has_jobs: true,
            armed_ns: 0,
            thread: self,
        };
        work.run();
        Finished {
            script: work.thread.script,
            kinds: work.kinds,
            seconds: work.seconds,
            moments: work.moments,
            errors: work.errors,
            late: work.late,
            waited_for_client: work.waited_for_client,
            missed: work.missed,
            clients_used: clients - work.free_min,
            last_ns: work.last_ns,
        }
    }
}

/// The planned times of a thread's jobs.
pub(super) struct Times {
    /// Nanoseconds between two jobs; `None`: a job begins when a client is free.
    interval_ns: Option<f64>,
    first_ns: f64,
    begun: u64,
}

impl Times {
    pub(super) fn new(schedule: Schedule, thread: usize, threads: usize) -> Self {
        let (thread, threads) = (thread as f64, threads as f64);
        match schedule {
            Schedule::Closed => Self { interval_ns: None, first_ns: 0.0, begun: 0 },
            Schedule::Open { jobs_per_s } => {
                // The threads take turns.
                let interval = 1e9 / jobs_per_s;
                Self { interval_ns: Some(interval * threads), first_ns: interval * thread, begun: 0 }
            }
        }
    }

    /// The planned time of the next job, in nanoseconds from the start; `None`: as soon as possible.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.interval_ns.map(|interval| (self.first_ns + interval * self.begun as f64) as u64)
    }

    /// Records that the next job has begun.
    pub(super) fn begun(&mut self) {
        self.begun += 1;
    }
}

struct Work<'a, S> {
    thread: Thread<S>,
    watch: &'a Watch,
    free: Vec<usize>,
    schedule: Times,
    warmup_ns: u64,
    kinds: Vec<Counts>,
    seconds: Vec<Counts>,
    moments: Vec<Moment>,
    errors: BTreeMap<String, u64>,
    late: Histogram<u64>,
    /// The time, in nanoseconds from the start, since which a client has been free and this thread has had
    /// time to use it.
    free_since_ns: u64,
    waited_for_client: u64,
    missed: u64,
    free_min: usize,
    last_ns: u64,
    has_jobs: bool,
    /// The time the timer is set to, in nanoseconds from the start.
    armed_ns: u64,
}

impl<S: Script> Work<'_, S> {
    fn now_ns(&self) -> u64 {
        nanos(self.watch.start.elapsed())
    }

    fn run(&mut self) {
        let clients = self.thread.connections.len();
        let mut events = Vec::with_capacity(clients + 1);
        let mut part = vec![0; READ_BYTES];
        let mut drained_by = None;
        loop {
            let is_stopping = self.watch.stops.load(Relaxed) || self.watch.interrupted.load(Relaxed);
            if is_stopping || !self.has_jobs {
                if self.free.len() == clients {
                    return;
                }
                let limit = *drained_by.get_or_insert_with(|| Instant::now() + DRAIN_TIME);
                // Without a limit on the time somebody else has it: the scripts' jobs are done when they are
                // done.
                if is_stopping && Instant::now() > limit {
                    let waiting = (clients - self.free.len()) as u64;
                    *self.errors.entry("no answer".into()).or_default() += waiting;
                    return;
                }
            } else {
                self.begin_jobs();
            }
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.thread.epoll, space, Some(&LOOK_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("waiting for answers: {error}"),
            }
            for event in events.drain(..) {
                // Copied because the kernel's event structure is packed.
                let (number, flags) = ({ event.data }.u64(), { event.flags });
                if number == TIMER {
                    // The timer has woken us; reading it clears it.
                    let _ = rustix::io::read(&self.thread.timer, &mut [0; 8]);
                    continue;
                }
                let slot = number as usize;
                if flags.contains(EventFlags::OUT) {
                    self.send(slot);
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.receive(slot, &mut part);
                }
            }
        }
    }

    /// Begins every job that is due, as long as clients are free.
    fn begin_jobs(&mut self) {
        while let Some(slot) = self.free.last().copied() {
            let now_ns = self.now_ns();
            let planned = self.schedule.next_ns();
            if let Some(planned_ns) = planned
                && planned_ns > now_ns
            {
                self.arm(planned_ns);
                return;
            }
            if let Some(planned_ns) = planned
                && planned_ns >= self.free_since_ns
                && now_ns - planned_ns > HELD_UP_NS
            {
                self.schedule.begun();
                self.missed += 1;
                self.count_late(now_ns, planned_ns);
                continue;
            }
            let Some(outgoing) = self.thread.script.begin(slot) else {
                self.has_jobs = false;
                if self.thread.plan.duration.is_some() && !self.watch.exhausted.swap(true, Relaxed) {
                    self.watch.ends_now();
                }
                return;
            };
            self.free.pop();
            self.free_min = self.free_min.min(self.free.len());
            self.schedule.begun();
            if let Some(planned_ns) = planned {
                self.waited_for_client += u64::from(planned_ns < self.free_since_ns);
                self.count_late(now_ns, planned_ns.max(self.free_since_ns));
            }
            self.start(slot, outgoing, planned.unwrap_or(now_ns));
        }
    }

    /// Records how late the generator itself is with a job that could have begun when it was due.
    fn count_late(&mut self, now_ns: u64, due_ns: u64) {
        let late_us = now_ns.saturating_sub(due_ns) / 1000;
        self.late.saturating_record(late_us);
        if let Some(measured_ns) = now_ns.checked_sub(self.warmup_ns) {
            moments::late(&mut self.moments, measured_ns, late_us);
        }
    }

    /// Sets the timer that wakes this thread.
    fn arm(&mut self, at_ns: u64) {
        if self.armed_ns == at_ns {
            return;
        }
        self.armed_ns = at_ns;
        let left = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()).max(1));
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) },
        };
        let set = timerfd_settime(&self.thread.timer, TimerfdTimerFlags::empty(), &value);
        set.expect("the timer is ours and its time is valid");
    }

    fn start(&mut self, slot: usize, outgoing: Outgoing, since_ns: u64) {
        self.thread.connections[slot].request = Some(Request { outgoing, sent: 0, since_ns });
        self.send(slot);
    }

    /// Sends as much as the kernel accepts.
    fn send(&mut self, slot: usize) {
        let connection = &mut self.thread.connections[slot];
        let Some(request) = &mut connection.request else { return };
        while request.sent < request.outgoing.bytes.len() {
            match connection.stream.write(&request.outgoing.bytes[request.sent..]) {
                Ok(count) => request.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !connection.waits_to_send {
                        connection.waits_to_send = true;
                        self.listen(slot, EventFlags::IN | EventFlags::OUT);
                    }
                    return;
                }
                Err(error) => return self.broken(slot, &error.kind().to_string()),
            }
        }
        if connection.waits_to_send {
            connection.waits_to_send = false;
            self.listen(slot, EventFlags::IN);
        }
    }

    fn listen(&self, slot: usize, flags: EventFlags) {
        let stream = &self.thread.connections[slot].stream;
        let changed = epoll::modify(&self.thread.epoll, stream, EventData::new_u64(slot as u64), flags);
        changed.expect("the connection was added");
    }

    /// Reads the available bytes, and handles the answer once it is complete.
    fn receive(&mut self, slot: usize, part: &mut [u8]) {
        loop {
            let connection = &mut self.thread.connections[slot];
            match connection.stream.read(part) {
                Ok(0) => return self.broken(slot, "closed by the server"),
                Ok(count) => {
                    // The whole answer nearly always arrives at once and needs no copy.
                    let is_first = connection.received.is_empty();
                    if !is_first {
                        connection.received.extend_from_slice(&part[..count]);
                    }
                    let seen = if is_first { &part[..count] } else { connection.received.as_slice() };
                    match wire::frame(seen) {
                        Err(error) => return self.broken(slot, &error.to_string()),
                        Ok(None) => {
                            if is_first {
                                connection.received.extend_from_slice(&part[..count]);
                            }
                        }
                        Ok(Some(framed)) => {
                            if is_first {
                                return self.answered(slot, &part[..count], framed);
                            }
                            let received = std::mem::take(&mut connection.received);
                            return self.answered(slot, &received, framed);
                        }
                    }
                    if count < part.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.broken(slot, &error.kind().to_string()),
            }
        }
    }

    fn answered(&mut self, slot: usize, received: &[u8], framed: Framed) {
        let Some(request) = self.thread.connections[slot].request.take() else {
            return self.broken(slot, "an answer without a request");
        };
        let now_ns = self.now_ns();
        self.last_ns = now_ns;
        let body = &received[framed.body.clone()];
        let (things, next) = self.thread.script.answer(slot, framed.status, body);
        let ops = if self.thread.plan.kinds[request.outgoing.kind].is_counted { things } else { 0 };
        self.watch.ops.fetch_add(ops, Relaxed);
        let end_ns = self.watch.end_ns.load(Relaxed);
        let is_failed = matches!(next, Next::Failed(_));
        if now_ns >= self.warmup_ns && now_ns < end_ns && !is_failed {
            let latency_us = (now_ns.saturating_sub(request.since_ns) / 1000).min(LATENCY_MAX_US);
            self.kinds[request.outgoing.kind].count(things, latency_us);
            let second = ((now_ns - self.warmup_ns) / 1_000_000_000) as usize;
            if self.seconds.len() <= second {
                self.seconds.resize_with(second + 1, || Counts::new(SECOND_DIGITS));
            }
            self.seconds[second].count(ops, latency_us);
            moments::count(&mut self.moments, now_ns - self.warmup_ns, latency_us);
        }
        if framed.closes
            && let Err(error) = self.reopen(slot)
        {
            // The job ends here; the client tries to connect again for the next one.
            return self.failed(slot, format!("cannot connect: {}", error.kind()));
        }
        match next {
            Next::Send(outgoing) => self.start(slot, outgoing, now_ns),
            Next::Done => self.release(slot, now_ns),
            Next::Failed(reason) => self.failed(slot, reason),
        }
    }

    fn failed(&mut self, slot: usize, reason: String) {
        *self.errors.entry(reason).or_default() += 1;
        let now_ns = self.now_ns();
        self.release(slot, now_ns);
    }

    /// Frees the client of a finished job.
    fn release(&mut self, slot: usize, now_ns: u64) {
        if self.free.is_empty() {
            self.free_since_ns = now_ns;
        }
        self.free.push(slot);
    }

    fn reopen(&mut self, slot: usize) -> std::io::Result<()> {
        let opened = self.thread.open(slot);
        // This thread waited for the server to accept or refuse the connection. That is not the generator's
        // fault.
        self.free_since_ns = self.now_ns();
        let stream = opened?;
        let connection = &mut self.thread.connections[slot];
        // Closing the old one takes it out of the poll set.
        connection.stream = stream;
        connection.received.clear();
        connection.waits_to_send = false;
        Ok(())
    }

    /// Handles a connection that can no longer be used: its job has failed, and a new connection replaces it.
    fn broken(&mut self, slot: usize, what: &str) {
        let had_request = self.thread.connections[slot].request.take().is_some();
        if let Err(error) = self.reopen(slot) {
            // The server no longer accepts connections; its supervisor reports why. The other threads find
            // out by themselves.
            *self.errors.entry(format!("cannot connect: {}", error.kind())).or_default() += 1;
            self.has_jobs = false;
            self.watch.ends_now();
        }
        if had_request {
            self.failed(slot, format!("connection: {what}"));
        }
    }
}
