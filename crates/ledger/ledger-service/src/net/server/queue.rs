//! Gathers create requests into batches for the ledger.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use batzen_http::{PeerLimit, PeerShare};
use batzen_ledger::{Account, BATCH_EVENTS_MAX, CreateResult, Ledger, LedgerError, Transfer};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ServerState;
use super::conn::Conn;
use crate::net::body::{Record, push_all, read_into, runs_alone};
use crate::net::frame::Kind;

/// Connections that sent something within this time are active.
const WINDOW: Duration = Duration::from_millis(8);

/// One request of a batch: the next `count` events belong to it.
pub(super) struct Part {
    pub(crate) conn: Arc<Conn>,
    pub number: u64,
    pub count: usize,
    /// The client's share of the events that wait, while this does.
    pub share: PeerShare,
}

enum Events {
    Accounts(Vec<Account>),
    Transfers(Vec<Transfer>),
}

impl Events {
    fn len(&self) -> usize {
        match self {
            Self::Accounts(events) => events.len(),
            Self::Transfers(events) => events.len(),
        }
    }
}

struct Batch {
    events: Events,
    parts: Vec<Part>,
    /// Nothing more fits in.
    is_full: bool,
    started: Instant,
}

struct Waiting {
    batches: VecDeque<Batch>,
    events: usize,
    active: Active,
}

/// Number of active connections, which may still join a batch.
struct Active {
    window: u64,
    started: Instant,
    now: usize,
    before: usize,
}

impl Active {
    fn see(&mut self, conn: &Conn, now: Instant) {
        let passed = now.duration_since(self.started);
        if passed >= WINDOW {
            self.before = if passed < 2 * WINDOW { self.now } else { 0 };
            self.now = 0;
            self.started = now;
            self.window += 1;
        }
        if conn.window.swap(self.window, Ordering::Relaxed) != self.window {
            self.now += 1;
        }
    }

    fn count(&self) -> usize {
        self.now.max(self.before)
    }
}

/// Result of [`Queue::pop`].
enum Next {
    Batch(Batch),
    /// Check again at this time, or when more has arrived.
    NotBefore(Instant),
    Nothing,
}

/// Batches that wait for the ledger, in order of arrival.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    is_closed: AtomicBool,
    events_max: usize,
    shares: PeerLimit,
}

impl Queue {
    pub(super) fn new(events_max: usize) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                batches: VecDeque::new(),
                events: 0,
                active: Active { window: 1, started: Instant::now(), now: 0, before: 0 },
            }),
            arrived: Notify::new(),
            is_closed: AtomicBool::new(false),
            events_max,
            // A client that has nothing waiting may fill a batch.
            shares: PeerLimit::new(events_max.max(BATCH_EVENTS_MAX)),
        }
    }

    /// A share of the events that wait, for the client at this address, with nothing in it.
    pub(super) fn share(&self, peer: Option<IpAddr>) -> PeerShare {
        self.shares.share(peer)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the queue: [`dispatch`] ends when everything is answered.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(super) fn push_accounts(&self, body: &[u8], part: Part) -> Result<(), LedgerError> {
        self.push(
            Kind::CreateAccounts,
            body,
            part,
            || Events::Accounts(Vec::new()),
            |events| match events {
                Events::Accounts(events) => Some(events),
                Events::Transfers(_) => None,
            },
        )
    }

    pub(super) fn push_transfers(&self, body: &[u8], part: Part) -> Result<(), LedgerError> {
        self.push(
            Kind::CreateTransfers,
            body,
            part,
            || Events::Transfers(Vec::new()),
            |events| match events {
                Events::Transfers(events) => Some(events),
                Events::Accounts(_) => None,
            },
        )
    }

    /// Decodes a body into the last batch if its events fit, otherwise into a new one.
    fn push<R: Record>(
        &self,
        kind: Kind,
        body: &[u8],
        mut part: Part,
        new: impl FnOnce() -> Events,
        of_kind: impl Fn(&mut Events) -> Option<&mut Vec<R>>,
    ) -> Result<(), LedgerError> {
        let count = part.count;
        let runs_alone = runs_alone(kind, body);
        let now = Instant::now();
        let mut waiting = self.waiting();
        waiting.active.see(&part.conn, now);
        let is_over = waiting.events > 0 && waiting.events + count > self.events_max;
        if is_over || !part.share.grow(count) {
            return Err(LedgerError::Busy("too many events are waiting".to_owned()));
        }
        let fits = |batch: &mut Batch| {
            !batch.is_full
                && of_kind(&mut batch.events).is_some_and(|events| events.len() + count <= BATCH_EVENTS_MAX)
        };
        if runs_alone || !waiting.batches.back_mut().is_some_and(fits) {
            if let Some(last) = waiting.batches.back_mut() {
                last.is_full = true;
            }
            waiting.batches.push_back(Batch {
                events: new(),
                parts: Vec::new(),
                is_full: runs_alone,
                started: now,
            });
        }
        let batch = waiting.batches.back_mut().expect("one was pushed if there was none");
        let events = of_kind(&mut batch.events).expect("checked above, or new");
        let decoded = read_into(body, events);
        if decoded.is_some() {
            batch.parts.push(part);
            batch.is_full |= batch.events.len() == BATCH_EVENTS_MAX;
            waiting.events += count;
            drop(waiting);
            self.arrived.notify_one();
            return Ok(());
        }
        if batch.parts.is_empty() {
            waiting.batches.pop_back();
        }
        Err(LedgerError::Refused(format!("the body of {} is ill-formed", kind.name())))
    }

    /// The next batch, if the ledger may work on another one besides `in_flight`.
    ///
    /// A batch from few of the active connections waits briefly for the others. Every batch costs a commit
    /// and wakes threads on both sides, so many small batches would slow everybody down. Half of the
    /// connections are enough, so that few connections do not wait for each other.
    fn pop(&self, in_flight: usize, shared: &ServerState) -> Next {
        let mut waiting = self.waiting();
        let options = &shared.options;
        let Some(front) = waiting.batches.front() else { return Next::Nothing };
        let limit = match front.is_full {
            true => options.full_batches_in_flight.max(options.batches_in_flight),
            false => options.batches_in_flight,
        };
        if in_flight >= limit.max(1) {
            return Next::Nothing;
        }
        let not_before = front.started + options.gather;
        if !front.is_full && front.parts.len() * 2 < waiting.active.count() && Instant::now() < not_before {
            return Next::NotBefore(not_before);
        }
        let Some(mut batch) = waiting.batches.pop_front() else { return Next::Nothing };
        waiting.events -= batch.events.len();
        batch.parts.iter_mut().for_each(|part| part.share.release());
        Next::Batch(batch)
    }
}

/// Passes batches to the ledger and their results to the connections, until the queue is closed and empty.
pub(super) async fn dispatch(shared: Arc<ServerState>) {
    let ledger = Arc::clone(&shared.ledger);
    let mut running = FuturesUnordered::new();
    loop {
        let not_before = loop {
            match shared.queue.pop(running.len(), &shared) {
                Next::Batch(batch) => {
                    shared.stats.batches.inc();
                    shared.stats.events.add(batch.events.len() as u64);
                    shared.stats.batch_events.count(batch.events.len() as u64);
                    running.push(run(ledger.as_ref(), batch));
                }
                Next::NotBefore(time) => break Some(time),
                Next::Nothing => break None,
            }
        };
        if running.is_empty() && not_before.is_none() && shared.queue.is_closed.load(Ordering::Acquire) {
            return;
        }
        let pause = async {
            match not_before {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.queue.arrived.notified() => {}
            Some(()) = running.next(), if !running.is_empty() => {}
            () = pause => {}
        }
    }
}

async fn run(ledger: &dyn Ledger, batch: Batch) {
    let Batch { events, parts, .. } = batch;
    match events {
        Events::Accounts(events) => {
            let count = events.len();
            answer(Kind::CreateAccounts, &parts, count, ledger.create_accounts(events).await);
        }
        Events::Transfers(events) => {
            let count = events.len();
            answer(Kind::CreateTransfers, &parts, count, ledger.create_transfers(events).await);
        }
    }
}

/// Distributes the results of a batch to its requests. First everything is encoded, then each connection is
/// written to.
fn answer<S>(kind: Kind, parts: &[Part], count: usize, results: Result<Vec<CreateResult<S>>, LedgerError>)
where
    CreateResult<S>: Record,
{
    let results = match results {
        Ok(results) if results.len() != count => {
            tracing::error!(events = count, results = results.len(), "the ledger did not answer every event");
            Err(LedgerError::Unknown("the ledger did not answer every event".to_owned()))
        }
        results => results,
    };
    match results {
        Ok(results) => {
            let mut rest = results.as_slice();
            let mut body = Vec::new();
            for part in parts {
                let (own, others) = rest.split_at(part.count);
                rest = others;
                body.clear();
                push_all(&mut body, own);
                part.conn.answer(kind, part.number, &body);
            }
        }
        Err(error) => {
            for part in parts {
                part.conn.answer_error(kind, part.number, &error);
            }
        }
    }
    for part in parts {
        part.conn.flush();
    }
}
