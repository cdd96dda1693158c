//! Messages that are passed on without a record: lookups, quotes and others that precede a transfer.
//!
//! They carry no money: if one is lost, its sender repeats it. So they wait in memory, separately from
//! transfers and their callbacks. Each destination has a queue that is bounded in messages and in bytes; a
//! full queue refuses messages (503). The switch tries an unreachable destination a few times and then sends
//! the sender an error callback.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_http::{Bytes, Drain, http_date};
use batzen_metrics::Counter;
use batzen_protocol::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::clock::SwitchClock;
use crate::directory::Directory;
use crate::errors::ApiError;
use crate::messages::{ErrorBody, SWITCH_NAME};
use crate::outbox::render::{assemble, error_information, special_or_general};
use crate::outbox::wire::{Link, split_url};

/// Limits and retries of messages that are not recorded.
#[derive(Clone, Copy, Debug)]
pub struct Forwarding {
    /// The most messages that may wait for one destination; more are refused with 503.
    pub queue: usize,
    /// The most bytes of headers and bodies that may wait for one destination or be under way to it; more are
    /// refused with 503. Larger than any single message.
    pub queue_bytes: usize,
    /// The most messages under way to one destination, each on its own connection.
    pub connections: usize,
    /// The most attempts per message.
    pub attempts: u32,
    /// Time limit for connecting, and for the answer.
    pub timeout: Duration,
    /// The pause after a failure; it doubles.
    pub pause: Duration,
    /// The age at which a message is given up.
    pub give_up: Duration,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            queue: 1024,
            queue_bytes: 16 << 20,
            connections: 8,
            attempts: 3,
            timeout: Duration::from_secs(5),
            pause: Duration::from_millis(100),
            give_up: Duration::from_secs(30),
        }
    }
}

/// Counters of messages that are passed on.
#[derive(Debug, Default)]
pub struct ForwardingCounters {
    /// Messages acknowledged by their destination.
    pub forwarded: Counter,
    /// Attempts that failed.
    pub failed: Counter,
    /// Messages that were given up.
    pub given_up: Counter,
    /// Messages refused because the queue was full.
    pub rejected: Counter,
    /// Messages that wait or are under way.
    pub waiting: AtomicU64,
}

/// The receiver of the error callback if a message cannot be delivered, and its path.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// The participant.
    pub number: u32,
    /// The path of the error callback.
    pub path: String,
    /// The resource of its media type.
    pub resource: &'static str,
    /// The special kind of callback address.
    pub special: &'static str,
}

/// A message to pass on.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub method: &'static str,
    /// Path and query.
    pub target: String,
    /// Header lines, each ended by CR LF.
    pub headers: String,
    pub body: Bytes,
    /// The special kind of callback address.
    pub special: &'static str,
    /// The receiver of the error callback if it cannot be delivered; `None`: nobody.
    pub sender: Option<Sender>,
}

/// A destination's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// Why a message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undelivered {
    /// The destination has no callback address.
    NoAddress,
    /// It answered with a client error (4xx).
    Refused(u16),
    /// It could not be reached, or answered that it is temporarily unavailable.
    Unreachable,
}

impl Undelivered {
    fn text(self, name: &str) -> String {
        match self {
            Self::NoAddress => format!("{name} has no callback address"),
            Self::Refused(status) => format!("{name} answered with HTTP {status}"),
            Self::Unreachable => format!("{name} could not be reached"),
        }
    }
}

struct Queued {
    note: Note,
    since: Instant,
    /// The message's share of its destination's bytes, until it is delivered or given up.
    _room: OwnedSemaphorePermit,
}

/// The queue of one destination.
#[derive(Clone)]
struct Queue {
    sender: mpsc::Sender<Queued>,
    /// One permit per byte that may still be queued.
    room: Arc<Semaphore>,
}

impl Queue {
    fn new(options: &Forwarding) -> (Self, mpsc::Receiver<Queued>) {
        let (sender, waiting) = mpsc::channel(options.queue.max(1));
        (Self { sender, room: Arc::new(Semaphore::new(options.queue_bytes)) }, waiting)
    }

    fn push(&self, note: Note) -> Result<(), QueueFull> {
        let bytes = note.target.len() + note.headers.len() + note.body.len();
        let bytes = u32::try_from(bytes).map_err(|_| QueueFull)?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(bytes).map_err(|_| QueueFull)?;
        let queued = Queued { note, since: Instant::now(), _room: room };
        self.sender.try_send(queued).map_err(|_| QueueFull)
    }
}

/// Passes messages on.
pub(crate) struct Forwarder {
    directory: Arc<Directory>,
    clock: SwitchClock,
    options: Forwarding,
    drain: Drain,
    queues: Mutex<HashMap<u32, Queue>>,
    counters: ForwardingCounters,
}

impl Forwarder {
    pub(crate) fn new(
        directory: Arc<Directory>,
        clock: SwitchClock,
        options: Forwarding,
        drain: Drain,
    ) -> Arc<Self> {
        let (queues, counters) = (Mutex::default(), ForwardingCounters::default());
        Arc::new(Self { directory, clock, options, drain, queues, counters })
    }

    pub(crate) fn counters(&self) -> &ForwardingCounters {
        &self.counters
    }

    /// Queues a message for a participant.
    pub(crate) fn send(self: &Arc<Self>, to: u32, note: Note) -> Result<(), QueueFull> {
        let queue = self.queue(to);
        // Counted first, because a worker may finish the message before the next line.
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
        queue.push(note).inspect_err(|_| {
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counters.rejected.inc();
        })
    }

    /// Reports an error to a participant. If its queue is full, too, the report is dropped.
    pub(crate) fn tell(self: &Arc<Self>, sender: Sender, error: ApiError, text: &str) {
        let to = sender.number;
        let error_information =
            error_information(error.code(), if text.is_empty() { error.text() } else { text });
        let body = serde_json::to_vec(&ErrorBody { error_information }).expect("errors are JSON");
        let note = self.own_note(&sender, body);
        if self.send(to, note).is_err() {
            self.counters.given_up.inc();
            tracing::warn!(to, "an error callback finds no place in the queue");
        }
    }

    /// A callback that the switch writes itself, to the sender's path.
    pub(crate) fn own_note(&self, sender: &Sender, body: Vec<u8>) -> Note {
        let date = http_date(Timestamp::from_secs((self.clock)() / 1_000_000));
        let directory = self.directory.now();
        let headers = format!(
            "content-type: {}\r\ndate: {date}\r\nfspiop-source: {SWITCH_NAME}\r\nfspiop-destination: {}\r\n",
            media_type(sender.resource),
            directory.name(sender.number),
        );
        Note {
            method: "PUT",
            target: sender.path.clone(),
            headers,
            body: body.into(),
            special: sender.special,
            sender: None,
        }
    }

    fn queue(self: &Arc<Self>, to: u32) -> Queue {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(to).or_insert_with(|| {
            let (queue, waiting) = Queue::new(&self.options);
            let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
            for _ in 0..self.options.connections.max(1) {
                tokio::spawn(Arc::clone(self).work(to, Arc::clone(&waiting)));
            }
            queue
        });
        queue.clone()
    }

    /// Delivers one message after another over one connection, until the drain fires.
    async fn work(self: Arc<Self>, to: u32, waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<Queued>>>) {
        let mut kept: Option<(String, Link)> = None;
        loop {
            let next = async { waiting.lock().await.recv().await };
            let queued = tokio::select! {
                queued = next => queued,
                () = self.drain.draining() => return,
            };
            let Some(Queued { note, since, _room }) = queued else { return };
            let delivered = self.deliver(to, &note, since, &mut kept).await;
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            match delivered {
                Ok(()) => self.counters.forwarded.inc(),
                Err(why) => {
                    self.counters.given_up.inc();
                    let directory = self.directory.now();
                    let text = why.text(directory.name(to));
                    tracing::info!(to, ?why, "a message is not passed on");
                    if let Some(sender) = note.sender {
                        self.tell(sender, ApiError::DestinationCommunicationError, &text);
                    }
                }
            }
        }
    }

    async fn deliver(
        &self,
        to: u32,
        note: &Note,
        since: Instant,
        kept: &mut Option<(String, Link)>,
    ) -> Result<(), Undelivered> {
        let mut pause = self.options.pause;
        let mut attempts = 0;
        loop {
            if since.elapsed() >= self.options.give_up {
                return Err(Undelivered::Unreachable);
            }
            attempts += 1;
            let address = self.directory.now().by_number(to).and_then(|entry| {
                let special = format!("FSPIOP_CALLBACK_URL_{}", note.special);
                split_url(special_or_general(entry, &special)?)
            });
            let Some((authority, base)) = address else { return Err(Undelivered::NoAddress) };
            match self.exchange(&authority, &base, note, kept).await {
                Some(200..300) => return Ok(()),
                Some(408 | 425 | 429) | None => {}
                Some(status @ 400..500) => return Err(Undelivered::Refused(status)),
                Some(_) => {}
            }
            self.counters.failed.inc();
            if attempts >= self.options.attempts {
                return Err(Undelivered::Unreachable);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.drain.draining() => return Err(Undelivered::Unreachable),
            }
            pause *= 2;
        }
    }

    /// One attempt: returns the status, if there is one. If a kept connection turns out to be closed, it is
    /// replaced once.
    async fn exchange(
        &self,
        authority: &str,
        base: &str,
        note: &Note,
        kept: &mut Option<(String, Link)>,
    ) -> Option<u16> {
        let path = format!("{base}{}", note.target);
        let request = assemble(note.method, authority.to_owned(), &path, &note.headers, &note.body).request;
        let patience = self.options.timeout;
        let mut link = kept.take().filter(|(known, _)| known == authority).map(|(_, link)| link);
        let mut is_kept = link.is_some();
        loop {
            let mut open = match link.take() {
                Some(open) => open,
                None => Link::connect(authority, patience).await.ok()?,
            };
            let (replies, error) = open.exchange(&request, 1, patience).await;
            if replies.is_empty() && is_kept {
                is_kept = false;
                continue;
            }
            if error.is_none() {
                *kept = Some((authority.to_owned(), open));
            }
            return replies.first().map(|reply| reply.status);
        }
    }
}

/// The media type of a resource, with the version that the switch speaks.
pub(crate) fn media_type(resource: &str) -> String {
    format!("application/vnd.interoperability.{resource}+json;version=1.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bounded_in_bytes_too() {
        let options = Forwarding { queue: 10, queue_bytes: 1_000, ..Forwarding::default() };
        let (queue, mut waiting) = Queue::new(&options);
        let note = || Note {
            method: "POST",
            target: String::new(),
            headers: String::new(),
            body: vec![0; 400].into(),
            special: "QUOTES",
            sender: None,
        };
        assert_eq!([queue.push(note()), queue.push(note())], [Ok(()), Ok(())]);
        assert_eq!(queue.push(note()), Err(QueueFull));
        // A message under way keeps its share.
        let delivered = waiting.try_recv().unwrap();
        assert_eq!(queue.push(note()), Err(QueueFull));
        drop(delivered);
        assert_eq!(queue.push(note()), Ok(()));
    }
}
