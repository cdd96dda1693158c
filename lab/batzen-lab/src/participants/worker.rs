//! A thread of simulators: its sockets, and the loop over them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::participants::book::Flight;
use crate::participants::fsps::{Command, FspsState};
use crate::participants::message::Scratch;
use crate::participants::order::{Load, Order, Schedule};
use crate::participants::outcome::{Report, Second, histogram};
use crate::participants::text::TransferId;

/// Event numbers of the two wakers; sockets use their slots.
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// The longest sleep of the loop.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Connections that the switch may open to one participant.
const INBOUND_MAX: usize = 1024;
/// Time that the switch may take to answer, and how often that is checked.
const ANSWER_NS: u64 = 30_000_000_000;
const LOOK_FOR_HUNG_NS: u64 = 1_000_000_000;
/// Transfers that begin before callbacks are checked again.
const BURST: usize = 64;

/// A participant on this thread.
pub(crate) struct Port {
    /// Its number in the process.
    pub(crate) number: u16,
    /// The payee's answers, and queries. They go first, because they end transfers.
    pub(crate) urgent: VecDeque<Outgoing>,
    /// Prepares that wait for a connection.
    pub(crate) prepares: VecDeque<Outgoing>,
    /// Connections without a request.
    pub(crate) free: Vec<usize>,
    /// Connections from the switch.
    pub(crate) inbound: usize,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outgoing {
    pub(crate) id: TransferId,
    pub(crate) what: What,
    /// Failed attempts so far.
    pub(crate) tries: u32,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Prepare,
    /// The same prepare again.
    PrepareAgain,
    /// A different amount under the same id.
    PrepareChanged,
    Fulfil([u8; 32]),
    /// The same fulfilment again.
    FulfilAgain([u8; 32]),
    Reject,
    Get,
}

/// An action scheduled for a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Later {
    /// Send on this port.
    Send(usize, Outgoing),
    /// Connect again.
    Reopen(usize),
}

pub(crate) enum Socket {
    Vacant,
    Listener { listener: TcpListener, port: usize },
    Inbound(Inbound),
    Outbound(Outbound),
}

/// A connection from the switch.
pub(crate) struct Inbound {
    pub(crate) port: usize,
    pub(crate) pipe: Pipe,
}

/// A connection to the switch.
pub(crate) struct Outbound {
    pub(crate) port: usize,
    /// `None`: broken, to be reopened.
    pub(crate) pipe: Option<Pipe>,
    /// The request under way, and its start.
    pub(crate) request: Option<(Outgoing, u64)>,
    /// The bytes of the request.
    pub(crate) bytes: Vec<u8>,
}

/// A stream, and the bytes not yet read or written.
pub(crate) struct Pipe {
    pub(crate) stream: TcpStream,
    pub(crate) received: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
    waits_to_send: bool,
}

impl Pipe {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: Vec::new(), unsent: Vec::new(), waits_to_send: false })
    }

    /// Sends as many of `bytes` as the kernel accepts, and keeps the rest until it accepts more.
    pub(crate) fn send(&mut self, epoll: &OwnedFd, slot: usize, bytes: &[u8]) -> io::Result<()> {
        let is_late = !self.unsent.is_empty();
        if is_late {
            self.unsent.extend_from_slice(bytes);
        }
        let mut sent = 0;
        let all = if is_late { &self.unsent } else { bytes };
        while sent < all.len() {
            match self.stream.write(&all[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if is_late {
            self.unsent.drain(..sent);
        } else {
            self.unsent.extend_from_slice(&bytes[sent..]);
        }
        let waits = !self.unsent.is_empty();
        if waits != self.waits_to_send {
            self.waits_to_send = waits;
            let flags = if waits { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(epoll, &self.stream, EventData::new_u64(slot as u64), flags)?;
        }
        Ok(())
    }
}

/// The next number: SplitMix64 (Steele, Lea, Flood), with a different state on each thread.
fn draw(state: &mut u128) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let mut z = (*state >> 64) as u64 ^ (*state & u128::from(u64::MAX)) as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A load generated by this thread.
struct Generator {
    load: Load,
    start_ns: u64,
    end_ns: Option<u64>,
    /// Planned times: the first one, and the nanoseconds between two.
    first_ns: f64,
    interval_ns: Option<f64>,
    in_flight_max: u64,
    count_max: u64,
    late: Histogram<u64>,
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<FspsState>,
    index: usize,
    pub(crate) epoll: OwnedFd,
    timer: OwnedFd,
    /// Kept while it is in the poll set.
    _wake: Arc<OwnedFd>,
    pub(crate) ports: Vec<Port>,
    pub(crate) slots: Vec<Socket>,
    vacant: Vec<usize>,
    later: BinaryHeap<Reverse<(u64, Later)>>,
    /// When to send queries about transfers without news, in order of time as long as the expirations are
    /// equal.
    queries: VecDeque<(u64, TransferId)>,
    generator: Option<Generator>,
    random: u128,
    /// The generator of ids; two runs never use the same.
    ids: u128,
    begun: u64,
    /// Transfers of the load whose payer has no notice yet.
    pub(crate) in_flight: u64,
    pub(crate) report: Report,
    window_ns: (u64, u64),
    pub(crate) last_end_ns: u64,
    armed_ns: u64,
    /// When unanswered requests were last checked.
    looked_ns: u64,
    pub(crate) scratch: Scratch,
    pub(crate) part: Vec<u8>,
}

impl Worker {
    /// A thread for these listeners, each belonging to the participant with this number.
    pub(crate) fn new(
        shared: &Arc<FspsState>,
        index: usize,
        listeners: Vec<(u16, TcpListener)>,
    ) -> io::Result<(Self, Arc<OwnedFd>)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&shared.seed.to_le_bytes());
        seed[8..].copy_from_slice(&(index as u64 + 1).to_le_bytes());
        let mut ids = [0; 16];
        getrandom::fill(&mut ids).map_err(io::Error::other)?;
        let mut worker = Self {
            shared: Arc::clone(shared),
            index,
            epoll,
            timer,
            _wake: Arc::clone(&wake),
            ports: Vec::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            later: BinaryHeap::new(),
            queries: VecDeque::new(),
            generator: None,
            random: u128::from_le_bytes(seed),
            ids: u128::from_le_bytes(ids),
            begun: 0,
            in_flight: 0,
            report: Report::new(),
            window_ns: (0, u64::MAX),
            last_end_ns: 0,
            armed_ns: 0,
            looked_ns: 0,
            scratch: Scratch::default(),
            part: vec![0; READ_BYTES],
        };
        for (port, (number, listener)) in listeners.into_iter().enumerate() {
            worker.ports.push(Port {
                number,
                urgent: VecDeque::new(),
                prepares: VecDeque::new(),
                free: Vec::new(),
                inbound: 0,
            });
            listener.set_nonblocking(true)?;
            let slot = worker.take_slot();
            epoll::add(&worker.epoll, &listener, EventData::new_u64(slot as u64), EventFlags::IN)?;
            worker.slots[slot] = Socket::Listener { listener, port };
            for _ in 0..shared.connections {
                let slot = worker.take_slot();
                worker.slots[slot] =
                    Socket::Outbound(Outbound { port, pipe: None, request: None, bytes: Vec::new() });
                worker.after(0, Later::Reopen(slot));
            }
        }
        Ok((worker, wake))
    }

    fn take_slot(&mut self) -> usize {
        if let Some(slot) = self.vacant.pop() {
            return slot;
        }
        self.slots.push(Socket::Vacant);
        self.slots.len() - 1
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Schedules an action for `delay_ns` from now.
    pub(crate) fn after(&mut self, delay_ns: u64, what: Later) {
        let at_ns = self.now_ns().saturating_add(delay_ns);
        self.later.push(Reverse((at_ns, what)));
    }

    /// Returns whether a moment is in the measured part.
    pub(crate) fn is_measured(&self, at_ns: u64) -> bool {
        (self.window_ns.0..self.window_ns.1).contains(&at_ns)
    }

    /// The second of the measured part that a moment is in.
    pub(crate) fn second(&mut self, at_ns: u64) -> &mut Second {
        let index = usize::try_from((at_ns - self.window_ns.0) / 1_000_000_000).unwrap_or(usize::MAX);
        while self.report.seconds.len() <= index {
            self.report.seconds.push(Second { committed: 0, whole: histogram(2) });
        }
        &mut self.report.seconds[index]
    }

    fn draw(&mut self) -> u64 {
        draw(&mut self.random)
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        while !self.shared.stops.load(Relaxed) {
            self.obey();
            self.begin_transfers();
            self.do_what_is_due();
            self.arm();
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, space, Some(&LOOK_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("waiting for the switch: {error}"),
            }
            for event in events.drain(..) {
                // Copied because the kernel's event structure is packed.
                let (number, flags) = ({ event.data }.u64(), { event.flags });
                match number {
                    TIMER => {
                        // The timer has woken us; reading it clears it.
                        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    }
                    WAKE => {}
                    slot => self.handle(usize::try_from(slot).unwrap_or(usize::MAX), flags),
                }
            }
        }
    }

    fn handle(&mut self, slot: usize, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(slot);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        match &self.slots[slot] {
            Socket::Vacant => {}
            Socket::Listener { .. } => self.accept(slot),
            Socket::Inbound(_) => self.receive_callbacks(slot),
            Socket::Outbound(_) => self.receive_answer(slot),
        }
    }

    fn accept(&mut self, slot: usize) {
        loop {
            let Socket::Listener { listener, port } = &self.slots[slot] else { return };
            let (accepted, port) = (listener.accept(), *port);
            let Ok((stream, _)) = accepted else { return };
            if self.ports[port].inbound >= INBOUND_MAX {
                continue;
            }
            let Ok(pipe) = Pipe::new(stream) else { continue };
            let slot = self.take_slot();
            let data = EventData::new_u64(slot as u64);
            if epoll::add(&self.epoll, &pipe.stream, data, EventFlags::IN).is_err() {
                self.vacant.push(slot);
                continue;
            }
            self.ports[port].inbound += 1;
            self.slots[slot] = Socket::Inbound(Inbound { port, pipe });
        }
    }

    /// Closes a connection from the switch.
    pub(crate) fn close_inbound(&mut self, slot: usize) {
        if let Socket::Inbound(inbound) = std::mem::replace(&mut self.slots[slot], Socket::Vacant) {
            self.ports[inbound.port].inbound -= 1;
            self.vacant.push(slot);
        }
    }

    /// Connects to the switch. False if that fails.
    pub(crate) fn open_outbound(&mut self, slot: usize) -> bool {
        let switch = self.shared.switch;
        let Socket::Outbound(outbound) = &mut self.slots[slot] else { return true };
        let opened = TcpStream::connect_timeout(&switch, Duration::from_secs(2)).and_then(Pipe::new);
        let Ok(pipe) = opened else { return false };
        let data = EventData::new_u64(slot as u64);
        if epoll::add(&self.epoll, &pipe.stream, data, EventFlags::IN).is_err() {
            return false;
        }
        outbound.pipe = Some(pipe);
        let port = outbound.port;
        self.ports[port].free.push(slot);
        self.pump(port);
        true
    }

    /// Sends bytes that the kernel did not accept before.
    fn flush(&mut self, slot: usize) {
        let pipe = match &mut self.slots[slot] {
            Socket::Inbound(inbound) => &mut inbound.pipe,
            Socket::Outbound(Outbound { pipe: Some(pipe), .. }) => pipe,
            _ => return,
        };
        // A broken connection is detected on reading.
        let _ = pipe.send(&self.epoll, slot, &[]);
    }

    fn obey(&mut self) {
        while let Some(command) = self.shared.commands[self.index].pop() {
            match command {
                Command::Order(id, order) => self.begin_order(id, &order),
                Command::Load(load, start_ns) => self.begin_load(load, start_ns),
                Command::Report(sender) => {
                    let mut report = std::mem::replace(&mut self.report, Report::new());
                    if let Some(generator) = self.generator.take() {
                        report.late_p99_us = generator.late.value_at_quantile(0.99);
                        let end_ns = generator.end_ns.unwrap_or(self.last_end_ns);
                        report.measured = Duration::from_nanos(end_ns.saturating_sub(self.window_ns.0));
                    }
                    self.window_ns = (0, u64::MAX);
                    self.in_flight = 0;
                    // The receiver may have given up.
                    let _ = sender.send(report);
                }
            }
        }
    }

    fn begin_load(&mut self, load: Load, start_ns: u64) {
        let threads = self.shared.commands.len() as u64;
        let index = self.index as u64;
        let share = |whole: u64| whole / threads + u64::from(index < whole % threads);
        let (interval_ns, in_flight_max) = match load.schedule {
            Schedule::Closed { in_flight } => (None, in_flight),
            // The threads take turns.
            Schedule::Open { per_s, in_flight_max } => (Some(1e9 / per_s), in_flight_max),
        };
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let begin_ns = start_ns + nanos(load.warmup);
        let end_ns = load.duration.map(|duration| begin_ns + nanos(duration));
        self.window_ns = (begin_ns, end_ns.unwrap_or(u64::MAX));
        self.report = Report::new();
        (self.begun, self.in_flight, self.last_end_ns) = (0, 0, start_ns);
        let (first_ns, turns) = (start_ns as f64 + interval_ns.unwrap_or(0.0) * index as f64, threads as f64);
        self.generator = Some(Generator {
            load,
            start_ns,
            end_ns,
            first_ns,
            interval_ns: interval_ns.map(|interval| interval * turns),
            in_flight_max: share(in_flight_max as u64).max(1),
            count_max: load.count.map_or(u64::MAX, share),
            late: histogram(3),
        });
    }

    /// Begins every due transfer of the load, within the limit on transfers under way.
    fn begin_transfers(&mut self) {
        for _ in 0..BURST {
            let now_ns = self.now_ns();
            let Some(generator) = &mut self.generator else { return };
            let is_over = self.begun >= generator.count_max
                || generator.end_ns.is_some_and(|end_ns| now_ns >= end_ns)
                || self.shared.ends.load(Relaxed);
            if is_over || now_ns < generator.start_ns || self.in_flight >= generator.in_flight_max {
                return;
            }
            let planned = generator
                .interval_ns
                .map(|interval| (generator.first_ns + interval * self.begun as f64) as u64);
            if planned.is_some_and(|planned_ns| planned_ns > now_ns) {
                return;
            }
            if let Some(planned_ns) = planned {
                generator.late.saturating_record((now_ns - planned_ns) / 1000);
            }
            let load = generator.load;
            self.begun += 1;
            let participants = self.shared.words.names.len() as u64;
            let payer = self.draw() % self.ports.len() as u64;
            let payer_number = u64::from(self.ports[usize::try_from(payer).unwrap_or(0)].number);
            let payee = (payer_number + 1 + self.draw() % (participants - 1)) % participants;
            let order = Order {
                payer: usize::try_from(payer_number).unwrap_or(0),
                payee: usize::try_from(payee).unwrap_or(0),
                cents: 1 + self.draw() % load.cents_max.max(1),
                behaviour: load.mix.choose(self.draw()),
                expiration: load.expiration,
            };
            let bits = u128::from(draw(&mut self.ids)) << 64 | u128::from(draw(&mut self.ids));
            let id = TransferId::from_random(bits);
            self.in_flight += 1;
            self.report.begun += 1;
            self.begin(id, &order, planned.unwrap_or(now_ns), true);
            self.shared.count_begun();
        }
    }

    fn begin_order(&mut self, id: TransferId, order: &Order) {
        self.report.begun += 1;
        self.begin(id, order, self.now_ns(), false);
    }

    fn begin(&mut self, id: TransferId, order: &Order, planned_ns: u64, is_load: bool) {
        let number = |index: usize| u16::try_from(index).expect("there are fewer participants");
        let mut flight = Flight::new(number(order.payer), number(order.payee), order.cents, order.behaviour);
        flight.is_load = is_load;
        flight.planned_ns = planned_ns;
        let expiration_ms = u64::try_from(order.expiration.as_millis()).unwrap_or(u64::MAX);
        flight.expiration_ms = self.shared.now_ms().saturating_add(expiration_ms);
        let packet = self.scratch.packet(&self.shared.words, id, &flight);
        let fulfilment = self.shared.words.secrets[order.payee].fulfilment(packet);
        flight.condition = crate::participants::ilp::condition(&fulfilment);
        self.shared.book.begin(id, flight);
        let ask_ns = self.now_ns() + expiration_ms * 1_000_000 + self.shared.grace_ns;
        self.queries.push_back((ask_ns, id));
        // Participant n is number n / threads of thread n mod threads.
        let port = order.payer / self.shared.commands.len();
        self.ports[port].prepares.push_back(Outgoing { id, what: What::Prepare, tries: 0 });
        self.pump(port);
    }

    fn do_what_is_due(&mut self) {
        let now_ns = self.now_ns();
        if now_ns >= self.looked_ns + LOOK_FOR_HUNG_NS {
            self.looked_ns = now_ns;
            self.give_up_hung(now_ns.saturating_sub(ANSWER_NS));
        }
        while let Some(Reverse((at_ns, what))) = self.later.peek().copied() {
            if at_ns > now_ns {
                break;
            }
            self.later.pop();
            match what {
                Later::Send(port, outgoing) => {
                    self.ports[port].urgent.push_back(outgoing);
                    self.pump(port);
                }
                Later::Reopen(slot) => {
                    if !self.open_outbound(slot) {
                        self.after(100_000_000, Later::Reopen(slot));
                    }
                }
            }
        }
        while let Some((at_ns, id)) = self.queries.front().copied() {
            if at_ns > now_ns {
                break;
            }
            self.queries.pop_front();
            self.ask_again(id);
        }
    }

    /// There is no news of a transfer: the payer sends a query, and a payee that waits repeats its answer.
    fn ask_again(&mut self, id: TransferId) {
        let Some(flight) = self.shared.book.change(id, |_| ()) else { return };
        let threads = self.shared.commands.len();
        if flight.payer_notice.is_none() {
            let port = usize::from(flight.payer) / threads;
            self.ports[port].urgent.push_back(Outgoing { id, what: What::Get, tries: 0 });
            self.pump(port);
        } else if flight.awaits_patch() && usize::from(flight.payee) % threads == self.index {
            let packet = self.scratch.packet(&self.shared.words, id, &flight);
            let fulfilment = self.shared.words.secrets[usize::from(flight.payee)].fulfilment(packet);
            let port = usize::from(flight.payee) / threads;
            self.ports[port].urgent.push_back(Outgoing { id, what: What::FulfilAgain(fulfilment), tries: 0 });
            self.pump(port);
        }
        let next_ns = self.now_ns() + self.shared.grace_ns;
        self.queries.push_back((next_ns, id));
    }

    /// Sets the timer that wakes this thread.
    fn arm(&mut self) {
        let planned = self.generator.as_ref().and_then(|generator| {
            let interval = generator.interval_ns?;
            (self.in_flight < generator.in_flight_max)
                .then_some((generator.first_ns + interval * self.begun as f64) as u64)
        });
        let due = self.later.peek().map(|Reverse((at_ns, _))| *at_ns);
        let Some(at_ns) = [planned, due].into_iter().flatten().min() else { return };
        if self.armed_ns == at_ns {
            return;
        }
        self.armed_ns = at_ns;
        let left = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()).max(1));
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) },
        };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
        set.expect("the timer is ours and its time is valid");
    }
}
