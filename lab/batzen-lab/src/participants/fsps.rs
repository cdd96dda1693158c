//! The participants, as their owner controls them.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use crate::participants::book::Book;
use crate::participants::ilp::Secret;
use crate::participants::message::Words;
use crate::participants::order::{Load, Order};
use crate::participants::outcome::{Notice, Report, TransferOutcome};
use crate::participants::text::TransferId;
use crate::participants::worker::Worker;

/// The most participants of a process; their numbers have 16 bits.
const PARTICIPANTS_MAX: usize = 4096;
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// The configuration of the participants.
#[derive(Clone, Debug)]
pub struct FspsConfig {
    /// Their names at the switch; letters, digits and `-` only.
    pub names: Vec<String>,
    /// The address of the switch for transfers.
    pub(crate) switch: SocketAddr,
    /// The currency of all transfers.
    pub(crate) currency: String,
    /// Connections of each participant to the switch, with one request under way on each.
    pub connections: usize,
    /// Threads, at most one per participant.
    pub(crate) threads: usize,
    /// Bytes of data in a packet, which a quote would have put there.
    pub(crate) packet_data: usize,
    /// Time after the expiration at which a payer queries its transfer.
    pub grace: Duration,
    /// Whether to keep the outcome of every transfer, which costs memory.
    pub keeps_outcomes: bool,
    /// The seed of participants, amounts and behaviours, but never of ids. `None`: random.
    pub(crate) seed: Option<u64>,
    /// Ports of the participants' callbacks, one each; empty: any free ports.
    pub ports: Vec<u16>,
    /// The address at which they listen for callbacks. `None`: the one from which this machine reaches the switch.
    pub callback_bind: Option<IpAddr>,
    /// The host at which the switch calls them back, a name or an address. `None`: the address at which they listen.
    pub callback_host: Option<String>,
}

impl FspsConfig {
    /// `count` participants `fsp1`, `fsp2`, … with the default options.
    #[must_use]
    pub fn new(count: usize, switch: SocketAddr, currency: &str) -> Self {
        Self {
            names: (1..=count).map(|number| format!("fsp{number}")).collect(),
            switch,
            currency: currency.to_owned(),
            connections: 128_usize.div_ceil(count.max(1)),
            threads: 1,
            packet_data: 100,
            grace: Duration::from_secs(5),
            keeps_outcomes: false,
            seed: None,
            ports: Vec::new(),
            callback_bind: None,
            callback_host: None,
        }
    }
}

/// The address from which this machine reaches another one, by its routes. Nothing is sent.
fn address_towards(switch: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if switch.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(switch)?;
    Ok(socket.local_addr()?.ip())
}

/// The host of the participants' callback URLs, with brackets if it is an IPv6 address.
fn callback_host(config: &FspsConfig, bound: IpAddr) -> io::Result<String> {
    let address = match &config.callback_host {
        Some(host) => match host.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => return Ok(host.clone()),
        },
        None if bound.is_unspecified() => address_towards(config.switch)?,
        None => bound,
    };
    Ok(if address.is_ipv6() { format!("[{address}]") } else { address.to_string() })
}

/// A command to a thread.
pub(crate) enum Command {
    /// Send one transfer.
    Order(TransferId, Order),
    /// Start a load at this moment of the clock.
    Load(Load, u64),
    /// Hand over the report of the load.
    Report(mpsc::Sender<Report>),
}

/// Pending commands of a thread.
#[derive(Default)]
pub(crate) struct Commands(Mutex<VecDeque<Command>>);

impl Commands {
    pub(crate) fn pop(&self) -> Option<Command> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn push(&self, command: Command) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
    }
}

/// State shared by all threads.
pub(crate) struct FspsState {
    pub(crate) switch: SocketAddr,
    pub(crate) words: Words,
    pub(crate) book: Book,
    pub(crate) commands: Vec<Commands>,
    pub(crate) connections: usize,
    pub(crate) grace_ns: u64,
    pub(crate) seed: u64,
    /// No more transfers of the load begin.
    pub(crate) ends: AtomicBool,
    /// The threads end.
    pub(crate) stops: AtomicBool,
    committed: AtomicU64,
    /// Transfers of the current load that have begun.
    begun: AtomicU64,
    start: Instant,
    start_ms: u64,
}

impl FspsState {
    /// Nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since 1970, by the same clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.start_ms + self.now_ns() / 1_000_000
    }

    pub(crate) fn count_begun(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_committed(&self) {
        self.committed.fetch_add(1, Relaxed);
    }
}

/// A running set of participants. They end when this is dropped.
pub struct Fsps {
    shared: Arc<FspsState>,
    callback_host: String,
    callback_ports: Vec<u16>,
    wakers: Vec<Arc<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
}

impl Fsps {
    /// Binds an address for each participant and starts the threads. The switch need not be running yet.
    ///
    /// # Errors
    /// When there is no route to the switch, a port cannot be bound, the operating system refuses threads or
    /// descriptors, or there are fewer than two participants.
    pub fn start(config: FspsConfig) -> io::Result<Self> {
        let count = config.names.len();
        let is_name = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !(2..=PARTICIPANTS_MAX).contains(&count) || !config.names.iter().all(is_name) {
            let reason = "expected 2 to 4096 participants with names of letters, digits and -";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let threads = config.threads.clamp(1, count);
        let bind = config.callback_bind.map_or_else(|| address_towards(config.switch), Ok)?;
        let callback_host = callback_host(&config, bind)?;
        let mut callback_ports = Vec::with_capacity(count);
        let mut listeners: Vec<Vec<(u16, TcpListener)>> = (0..threads).map(|_| Vec::new()).collect();
        for number in 0..count {
            let port = config.ports.get(number).copied().unwrap_or(0);
            let listener = TcpListener::bind((bind, port))?;
            callback_ports.push(listener.local_addr()?.port());
            let number_16 = u16::try_from(number).expect("there are at most 4096");
            listeners[number % threads].push((number_16, listener));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let seed = config.seed.unwrap_or(u64::from_le_bytes(random));
        let secrets = (0..count as u64).map(|number| {
            let mut secret = [7; 32];
            secret[..8].copy_from_slice(&number.to_le_bytes());
            Secret::new(&secret)
        });
        let start_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
        let shared = Arc::new(FspsState {
            words: Words {
                secrets: secrets.collect(),
                names: config.names,
                currency: config.currency,
                host: config.switch.to_string(),
                packet_data: config.packet_data,
            },
            switch: config.switch,
            book: Book::new(config.keeps_outcomes),
            commands: (0..threads).map(|_| Commands::default()).collect(),
            connections: config.connections.max(1),
            grace_ns: u64::try_from(config.grace.as_nanos()).unwrap_or(u64::MAX),
            seed,
            ends: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            start: Instant::now(),
            start_ms: u64::try_from(start_ms.as_millis()).unwrap_or(u64::MAX),
        });
        let mut fsps =
            Self { shared, callback_host, callback_ports, wakers: Vec::new(), threads: Vec::new() };
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (worker, waker) = Worker::new(&fsps.shared, index, listeners)?;
            let thread =
                std::thread::Builder::new().name(format!("fsps-{index}")).spawn(move || worker.run())?;
            fsps.wakers.push(waker);
            fsps.threads.push(thread);
        }
        Ok(fsps)
    }

    /// Names of the participants.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.shared.words.names
    }

    /// The base URL of a participant's callbacks, without a final slash.
    ///
    /// # Panics
    /// When there is no such participant.
    #[must_use]
    pub fn callback_url(&self, participant: usize) -> String {
        format!("http://{}:{}", self.callback_host, self.callback_ports[participant])
    }

    fn wake(&self, thread: usize) {
        // If the counter is full, the thread is already awake.
        let _ = rustix::io::write(&self.wakers[thread], &1_u64.to_ne_bytes());
    }

    /// Sends one transfer.
    ///
    /// # Panics
    /// When there are no such participants.
    pub(crate) fn send(&self, order: Order) -> TransferId {
        let id = Self::new_id();
        self.send_as(id, order);
        id
    }

    /// Sends one transfer, and waits for the notice to its payer.
    ///
    /// # Panics
    /// When there are no such participants.
    pub(crate) fn transfer(&self, order: Order) -> oneshot::Receiver<Notice> {
        let id = Self::new_id();
        let notice = self.shared.book.watch(id);
        self.send_as(id, order);
        notice
    }

    fn new_id() -> TransferId {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the operating system has random bytes");
        TransferId::from_random(u128::from_le_bytes(random))
    }

    fn send_as(&self, id: TransferId, order: Order) {
        let count = self.names().len();
        assert!(order.payer < count && order.payee < count, "there are {count} participants");
        let thread = order.payer % self.threads.len();
        self.shared.commands[thread].push(Command::Order(id, order));
        self.wake(thread);
    }

    /// The outcome of a transfer once the payer has its notice, and the payee, if it waits for one. After
    /// `patience`, what is known so far. `None` if outcomes are not kept.
    pub(crate) fn outcome(&self, id: TransferId, patience: Duration) -> Option<TransferOutcome> {
        self.outcome_when(id, patience, |outcome| {
            let payee_waits = outcome.behaviour == crate::participants::Behaviour::Reserve
                && outcome.payer_notice.is_some_and(crate::participants::Notice::is_committed);
            outcome.payer_notice.is_some() && (!payee_waits || outcome.payee_notice.is_some())
        })
    }

    /// The outcome of a transfer once `is_enough` holds, or what is known after `patience`. `None` if
    /// outcomes are not kept.
    pub(crate) fn outcome_when(
        &self,
        id: TransferId,
        patience: Duration,
        is_enough: impl Fn(&TransferOutcome) -> bool,
    ) -> Option<TransferOutcome> {
        let deadline = Instant::now() + patience;
        loop {
            // The thread adds a transfer to the book when it begins it.
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = self.shared.book.outcome(id, left, &is_enough);
            if outcome.is_some() || left.is_zero() {
                return outcome;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The outcomes of all transfers, as far as known. Empty if outcomes are not kept.
    #[must_use]
    pub fn outcomes(&self) -> Vec<(TransferId, TransferOutcome)> {
        self.shared.book.outcomes()
    }

    /// Starts a load. It runs until it ends, or until [`Self::end_load`].
    pub fn load(&self, load: Load) {
        self.shared.ends.store(false, Relaxed);
        self.shared.begun.store(0, Relaxed);
        let start_ns = self.shared.now_ns();
        for (thread, commands) in self.shared.commands.iter().enumerate() {
            commands.push(Command::Load(load, start_ns));
            self.wake(thread);
        }
    }

    /// Transfers committed so far, at any time.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.shared.committed.load(Relaxed)
    }

    /// Transfers under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.book.under_way()
    }

    /// Returns whether `count` transfers of a load have begun and all of them have ended.
    #[must_use]
    pub fn is_idle(&self, count: u64) -> bool {
        self.shared.begun.load(Relaxed) >= count && self.under_way() == 0
    }

    /// Stops beginning transfers, waits up to `patience` for those under way, and reports on the load.
    ///
    /// # Panics
    /// When a thread of the simulators has panicked.
    #[must_use]
    pub fn end_load(&self, patience: Duration) -> Report {
        self.shared.ends.store(true, Relaxed);
        let deadline = Instant::now() + patience;
        while self.under_way() > 0 && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        let (sender, receiver) = mpsc::channel();
        for (thread, commands) in self.shared.commands.iter().enumerate() {
            commands.push(Command::Report(sender.clone()));
            self.wake(thread);
        }
        drop(sender);
        let mut report = Report::new();
        for _ in 0..self.threads.len() {
            let part = receiver.recv().expect("the threads live until they are stopped");
            report.add(&part);
        }
        report.unresolved = self.shared.book.untold();
        report
    }
}

impl Drop for Fsps {
    fn drop(&mut self) {
        self.shared.stops.store(true, Relaxed);
        for thread in 0..self.wakers.len() {
            self.wake(thread);
        }
        for thread in self.threads.drain(..) {
            // Its panic was already printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(switch: &str) -> FspsConfig {
        FspsConfig::new(2, switch.parse().unwrap(), "USD")
    }

    #[test]
    fn callbacks_go_where_the_switch_reaches_the_participants() {
        let host = |config: &FspsConfig, bound: &str| callback_host(config, bound.parse().unwrap()).unwrap();
        let mut config = config("127.0.0.1:8090");
        assert_eq!(address_towards(config.switch).unwrap(), Ipv4Addr::LOCALHOST);
        // Of a network for documents. A machine without a route there has no such participants.
        if let Ok(own) = address_towards("198.51.100.1:8090".parse().unwrap()) {
            assert!(!own.is_loopback() && !own.is_unspecified(), "{own}");
        }
        assert_eq!(host(&config, "10.0.0.7"), "10.0.0.7");
        assert_eq!(host(&config, "fe80::7"), "[fe80::7]");
        assert_eq!(host(&config, "0.0.0.0"), "127.0.0.1", "no address that the switch could call");
        for (named, expected) in
            [("fsps.example", "fsps.example"), ("10.0.0.8", "10.0.0.8"), ("::1", "[::1]")]
        {
            config.callback_host = Some(named.to_owned());
            assert_eq!(host(&config, "0.0.0.0"), expected);
        }
    }
}
