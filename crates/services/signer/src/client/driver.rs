//! The task behind a client: finds a signer, sends queued requests, delivers answers, and requeues unanswered
//! requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Inner, Pending, Unavailable};
use crate::address::Address;
use crate::channel::Channel;
use crate::frame::{Header, Kind, Status, open_blob};
use crate::link::{LinkError, greet, read_frame};
use crate::listing::{self, Listing, NO_VERSION};
use crate::server_limits::{LISTING_WAIT, REQUESTS_MAX};
use crate::state::lock;

/// Interval of the search for overdue requests.
const TICK: Duration = Duration::from_millis(100);
const READ_BUFFER_BYTES: usize = 64 << 10;

/// The receiver of an answer on this connection.
enum Waiter {
    Request(Pending, Instant),
    Listing(Instant),
}

/// State that the reader and the writer of a connection share.
struct InFlight {
    inner: Arc<Inner>,
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// The listing must be requested.
    ask: tokio::sync::Notify,
    /// Items under way.
    items: AtomicUsize,
}

pub(super) async fn run(inner: Arc<Inner>) {
    let count = inner.addresses.len();
    let mut pause = inner.options.pause;
    // The signer to try next, and the number of consecutive failures.
    let (mut next, mut missed) = (0, 0);
    loop {
        let address = &inner.addresses[next % count];
        let error = match connect(&inner, address).await {
            Ok((channel, items_max)) => {
                tracing::info!(peer = inner.peer, %address, "connected");
                inner.metrics.connects.inc();
                inner.connected.store(true, Relaxed);
                *lock(&inner.last_error) = None;
                (pause, missed) = (inner.options.pause, 0);
                let error = use_connection(&inner, channel, items_max).await;
                inner.connected.store(false, Relaxed);
                error
            }
            Err(error) => {
                missed += 1;
                error.to_string()
            }
        };
        inner.metrics.failures.inc();
        let text = format!("{address}: {error}");
        if lock(&inner.last_error).replace(text.clone()).as_ref() != Some(&text) {
            let is_first = inner.listing.borrow().is_none();
            log_failure(&inner, address, &error, is_first);
        }
        inner.tried.send_replace(true);
        next = (next + 1) % count;
        if missed >= count {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(inner.options.pause_max);
            missed = 0;
        }
        drop_abandoned(&inner);
    }
}

/// Services start in any order. So a key helper that was never there is reported once, by the service that
/// waits for it.
fn log_failure(inner: &Inner, address: &Address, error: &str, is_first: bool) {
    if inner.connect.presents_key() {
        tracing::warn!(signer = %address, %error, "signer lost or not reached; trying the next");
    } else if is_first {
        tracing::info!(socket = %address, %error, "{} is not there yet", inner.peer);
    } else {
        tracing::warn!(socket = %address, %error, "{} was lost; connecting again", inner.peer);
    }
}

async fn connect(inner: &Inner, address: &Address) -> Result<(Channel, usize), LinkError> {
    let mut channel = inner.connect.connect(address, inner.options.connect).await?;
    let hello = greet(&inner.connect, &mut channel, inner.options.connect).await?;
    if hello.keys_version == NO_VERSION {
        return Err(LinkError::Refused(Status::NotReady));
    }
    Ok((channel, hello.items_max as usize))
}

/// Drops requests whose callers have gone: they need not be sent.
fn drop_abandoned(inner: &Inner) {
    lock(&inner.queue).retain(|pending| !pending.reply.is_closed());
}

/// Uses a connection until it breaks, and returns the reason. Unanswered requests are back at the front of
/// the queue.
async fn use_connection(inner: &Arc<Inner>, channel: Channel, items_max: usize) -> String {
    let (reader, mut writer) = tokio::io::split(channel);
    let in_flight = Arc::new(InFlight {
        inner: Arc::clone(inner),
        waiting: Mutex::default(),
        ask: tokio::sync::Notify::new(),
        items: AtomicUsize::new(0),
    });
    in_flight.ask.notify_one();
    let mut reading = tokio::spawn(read(Arc::clone(&in_flight), reader));
    let written = tokio::select! {
        error = write(&in_flight, &mut writer, items_max) => error,
        ended = &mut reading => {
            let error = ended.map_or_else(|error| error.to_string(), |error| error.to_string());
            return requeue(&in_flight, error);
        }
    };
    reading.abort();
    // The old connection must not answer requests that are about to be sent elsewhere.
    let _ = reading.await;
    requeue(&in_flight, written)
}

/// Puts unanswered requests back at the front of the queue, oldest first.
fn requeue(in_flight: &InFlight, error: String) -> String {
    let mut left: Vec<_> = std::mem::take(&mut *lock(&in_flight.waiting)).into_iter().collect();
    left.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    let mut queue = lock(&in_flight.inner.queue);
    for (_, waiter) in left {
        if let Waiter::Request(pending, _) = waiter
            && !pending.reply.is_closed()
        {
            queue.push_front(pending);
        }
    }
    error
}

/// The number of a connection's first request. Numbers never wrap.
fn first_id() -> u64 {
    let mut bytes = [0; 8];
    batzen_crypto::fill_random(&mut bytes);
    (u64::from_le_bytes(bytes) >> 1).max(1)
}

async fn write(in_flight: &InFlight, writer: &mut WriteHalf<Channel>, items_max: usize) -> String {
    let inner = &in_flight.inner;
    // Random, so that the number of a request names it in the logs of both sides.
    let mut next_id = first_id();
    let mut out = Vec::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut asks = false;
        tokio::select! {
            () = inner.work.notified() => {}
            () = in_flight.ask.notified() => asks = true,
            _ = tick.tick() => {
                if in_flight.is_silent() {
                    return "no answer in time".into();
                }
            }
        }
        out.clear();
        if asks {
            let known = inner.listing_version.load(Relaxed);
            let header = Header::request(Kind::Listing, 0, 1, next_id);
            out.extend_from_slice(&header.to_bytes());
            out.extend_from_slice(&known.to_le_bytes());
            out.extend_from_slice(&[0; 8]);
            lock(&in_flight.waiting).insert(next_id, Waiter::Listing(Instant::now()));
            next_id += 1;
        }
        {
            let mut queue = lock(&inner.queue);
            let mut waiting = lock(&in_flight.waiting);
            while let Some(front) = queue.front()
                && in_flight.items.load(Relaxed) + front.count <= items_max
                // One slot is reserved for the listing.
                && waiting.len() + 1 < REQUESTS_MAX
            {
                let mut pending = queue.pop_front().expect("there is a front");
                if pending.reply.is_closed() {
                    continue;
                }
                if std::mem::replace(&mut pending.sent, true) {
                    inner.metrics.repeated.inc();
                }
                in_flight.items.fetch_add(pending.count, Relaxed);
                tracing::debug!(
                    parent: &pending.span,
                    number = next_id,
                    kind = pending.kind.name(),
                    items = pending.count,
                    "request to the signer"
                );
                let header = Header::request(pending.kind, pending.modulus, pending.count, next_id);
                out.extend_from_slice(&header.to_bytes());
                out.extend_from_slice(&pending.body);
                waiting.insert(next_id, Waiter::Request(pending, Instant::now()));
                next_id += 1;
            }
        }
        if out.is_empty() {
            continue;
        }
        let send = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        match timeout(inner.options.silence, send).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "the signer does not read requests".into(),
        }
    }
}

impl InFlight {
    /// Returns whether an answer is overdue.
    fn is_silent(&self) -> bool {
        let silence = self.inner.options.silence;
        let waiting = lock(&self.waiting);
        waiting.values().any(|waiter| match waiter {
            Waiter::Request(_, sent) => sent.elapsed() > silence,
            Waiter::Listing(sent) => sent.elapsed() > LISTING_WAIT + silence,
        })
    }
}

async fn read(in_flight: Arc<InFlight>, reader: ReadHalf<Channel>) -> LinkError {
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    loop {
        let (header, body) = match read_frame(&mut reader).await {
            Ok(frame) => frame,
            Err(error) => return error,
        };
        let waiter = lock(&in_flight.waiting).remove(&header.id);
        match waiter {
            Some(Waiter::Request(pending, _)) if pending.fits(&header) => {
                let answer = match header.status {
                    Status::Done => Ok(body.to_vec()),
                    Status::Busy => {
                        in_flight.inner.metrics.busy.inc();
                        Err(Unavailable::Busy)
                    }
                    _ => Err(Unavailable::NoSigner),
                };
                in_flight.items.fetch_sub(pending.count, Relaxed);
                // The caller may have gone.
                let _ = pending.reply.send(answer);
                // There is room for more requests now.
                in_flight.inner.work.notify_one();
            }
            Some(Waiter::Listing(_)) if header.kind == Kind::Listing => {
                if header.status == Status::Done {
                    let content = open_blob(&body).map_err(|_| LinkError::Malformed);
                    match content {
                        Ok([]) => {}
                        Ok(content) => match Listing::decode(content) {
                            Ok(listing) => {
                                let version = listing::version(content);
                                in_flight.inner.listing_version.store(version, Relaxed);
                                in_flight.inner.listing.send_replace(Some(Arc::new(listing)));
                                in_flight.inner.tried.send_replace(true);
                            }
                            Err(_) => return LinkError::Malformed,
                        },
                        Err(error) => return error,
                    }
                }
                in_flight.ask.notify_one();
            }
            _ => return LinkError::Malformed,
        }
    }
}

impl Pending {
    fn fits(&self, header: &Header) -> bool {
        let same = header.kind == self.kind && header.modulus == self.modulus;
        same && (header.status != Status::Done || header.count == self.count)
    }
}
