//! The participants, their messages, and the context of events.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use batzen_ledger::{Account, CreateAccountStatus, CreateResult, CreateTransferStatus, Transfer};
use batzen_protocol::Timestamp;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};

use crate::marks::Marks;
use crate::random::Random;
use crate::swarm::{Bug, Swarm};

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessId {
    /// The exchange with its workers.
    Exchange,
    /// The bank.
    Bank,
    /// The bank's ledger.
    Ledger,
    /// The shop.
    Shop,
    /// The exchange's operator.
    Operator,
    /// An officer of the exchange, who decides on identifications.
    Officer,
    /// A customer's wallet and bank page.
    Customer(usize),
}

/// The bank's request to the ledger: accounts, then transfers, in one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerAsk {
    /// Accounts to create.
    pub accounts: Vec<Account>,
    /// Transfers to create after them.
    pub transfers: Vec<Transfer>,
}

/// The ledger's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerReply {
    /// One result per account.
    pub accounts: Vec<CreateResult<CreateAccountStatus>>,
    /// One result per transfer.
    pub transfers: Vec<CreateResult<CreateTransferStatus>>,
}

/// The content of a message.
#[derive(Clone, Debug)]
pub enum Body {
    /// An HTTP request.
    Ask(Rc<HttpRequest>),
    /// Its answer.
    Reply(Rc<HttpResponse>),
    /// A request to the ledger.
    LedgerAsk(Rc<LedgerAsk>),
    /// An answer of the ledger.
    LedgerReply(Rc<LedgerReply>),
}

/// A message in transit.
#[derive(Clone, Debug)]
pub struct Message {
    /// The sender.
    pub from: ProcessId,
    /// The receiver.
    pub to: ProcessId,
    /// The number of the request that it makes or answers, unique in a run.
    pub call: u64,
    /// Its content.
    pub body: Body,
}

impl Message {
    /// The answer to it.
    #[must_use]
    pub fn reply(&self, body: Body) -> Self {
        Self { from: self.to, to: self.from, call: self.call, body }
    }

    /// A number that distinguishes it from others, for the trace.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.from, self.to, self.call).hash(&mut hasher);
        match &self.body {
            Body::Ask(request) => (&request.url, &request.body).hash(&mut hasher),
            Body::Reply(response) => (response.status, &response.body).hash(&mut hasher),
            Body::LedgerAsk(ask) => format!("{ask:?}").hash(&mut hasher),
            Body::LedgerReply(reply) => format!("{reply:?}").hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} → {:?} #{} ", self.from, self.to, self.call)?;
        match &self.body {
            Body::Ask(request) => write!(f, "{} {}", request.method.name(), request.url),
            Body::Reply(response) => {
                let is_error = response.status >= 400;
                let text = String::from_utf8_lossy(&response.body);
                write!(f, "{} {}", response.status, if is_error { &text } else { "" })
            }
            Body::LedgerAsk(ask) => {
                write!(f, "create {} accounts, {} transfers", ask.accounts.len(), ask.transfers.len())
            }
            Body::LedgerReply(reply) => {
                let statuses: Vec<_> = reply.transfers.iter().map(|result| result.status).collect();
                write!(f, "{statuses:?}")
            }
        }
    }
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Handle received messages.
    Batch,
    /// A round of the wirewatch worker.
    Wirewatch,
    /// A round of the aggregator.
    Aggregate,
    /// A round of the closer.
    Close,
    /// A round of the transfer worker.
    Transfer,
    /// A round of the worker that refunds expired purses.
    Expire,
    /// A look for coins that the shop has to give back.
    Return,
    /// Repeat unanswered requests, and expire what is due.
    Repeat,
    /// Maintain the store.
    Maintain,
    /// A customer acts.
    Act,
    /// A wallet continues its operations, at intervals.
    Drive,
    /// The same, once.
    Rested,
    /// No answer came to this call.
    GiveUp(u64),
    /// A task's sleep ends.
    Slept(u64),
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrives.
    Arrival(Message),
    /// A timer fires, unless the process that set it has ended.
    Timer(ProcessId, u32, Timer),
    /// A process restarts.
    Restart(ProcessId),
    /// A service dies in one of its next calls to the disk, or at once.
    Crash(ProcessId),
    /// A service dies now, between two calls.
    SuddenCrash(ProcessId),
    /// A disk fails or is full for a while.
    DiskFault(ProcessId),
    /// A full disk has space again.
    DiskSpace(ProcessId),
    /// A clock steps.
    ClockStep(ProcessId),
    /// A customer asks the shop again about the refunds of all its purchases.
    RefundQuestion(usize),
}

/// The context of events: everything but the processes.
pub struct Context {
    /// The true time, in microseconds since the epoch.
    pub now: u64,
    /// The random choices of all participants.
    pub random: Random,
    /// The run's parameters.
    pub swarm: Swarm,
    /// The planted bug, if any.
    pub bug: Option<Bug>,
    /// The reached marks.
    pub marks: Marks,
    /// Whether customers still act and faults still happen.
    pub is_active: bool,
    /// The URIs of payments that customers offer and request.
    pub board: Vec<String>,
    /// The denomination that the exchange has confirmed to be revoked, by its index in the keys.
    pub revoked: Option<usize>,
    /// Scheduled events, with their delays.
    pub caused: Vec<(u64, Event)>,
    next_call: u64,
    trace: DefaultHasher,
    is_verbose: bool,
    events: u64,
}

impl Context {
    /// The context of a new run.
    #[must_use]
    pub fn new(now: u64, random: Random, swarm: Swarm, bug: Option<Bug>, is_verbose: bool) -> Self {
        Self {
            now,
            random,
            swarm,
            bug,
            marks: Marks::default(),
            is_active: true,
            board: Vec::new(),
            revoked: None,
            caused: Vec::new(),
            next_call: 0,
            trace: DefaultHasher::new(),
            is_verbose,
            events: 0,
        }
    }

    /// Returns whether this bug is planted.
    #[must_use]
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The true time in the protocol's form.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// A number for a new request.
    pub fn call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    /// Sets a timer for a process.
    pub fn wake(&mut self, place: ProcessId, incarnation: u32, after: u64, timer: Timer) {
        self.caused.push((after, Event::Timer(place, incarnation, timer)));
    }

    /// Sends a message over the simulated network.
    pub fn send(&mut self, message: Message) {
        self.note(|| format!("sent     {message}"), message.digest());
        if self.is_active {
            if self.random.chance(self.swarm.lost) {
                self.marks.meet("message.lost");
                return;
            }
            if self.random.chance(self.swarm.duplicated) {
                self.marks.meet("message.duplicated");
                let delay = self.delay();
                self.caused.push((delay, Event::Arrival(message.clone())));
            }
        }
        let delay = self.delay();
        self.caused.push((delay, Event::Arrival(message)));
    }

    fn delay(&mut self) -> u64 {
        if self.is_active && self.random.chance(self.swarm.delayed) {
            self.marks.meet("message.delayed");
            self.random.between(1_000, 3600 * 1_000_000)
        } else {
            self.random.between(1_000, 200_000)
        }
    }

    /// Adds to the trace.
    pub fn note(&mut self, text: impl FnOnce() -> String, digest: u64) {
        self.events += 1;
        (self.now, digest).hash(&mut self.trace);
        if self.is_verbose {
            let seconds = self.now / 1_000_000 - crate::keys::START_S;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            println!("{hours:3}:{minutes:02}:{:02}.{:06} {}", seconds % 60, self.now % 1_000_000, text());
        }
    }

    /// Adds a text to the trace.
    pub fn say(&mut self, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        self.note(|| text.to_owned(), hasher.finish());
    }

    /// The hash of all events so far, and their number.
    #[must_use]
    pub fn trace(&self) -> (u64, u64) {
        (self.trace.finish(), self.events)
    }
}
