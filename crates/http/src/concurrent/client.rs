//! The client's side: a few connections to one server, and who waits on them.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::wire::{BODY_BYTES_MAX, HEAD_BYTES_MAX, Taken, WholeAnswer, put_length, take_answer};
use super::{IN_FLIGHT_MAX, PROTOCOL};

/// Connections to one server.
const LINKS_MAX: usize = 4;
/// From so many requests under way on each of the others another connection is opened.
const LOAD_MAX: usize = 64;
/// Requests that wait for a connection; who comes then waits, too, until there is room.
const QUEUE_MAX: usize = 1_024;
/// How long a server that does not know the protocol is not asked for it again.
const UNKNOWN_FOR: Duration = Duration::from_secs(600);
/// The same for one that has not said so: it ends or begins just now, has too much to do, or does not answer such questions.
const UNSURE_FOR: Duration = Duration::from_secs(10);
/// While there are connections: how soon another one is tried after a failure.
const TRY_AFTER: Duration = Duration::from_secs(1);
/// How often the end of a connection is borne before the request fails.
const ATTEMPTS_MAX: usize = 3;
/// How often a connection looks whether an answer is late.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The largest answer to the wish for this protocol, in bytes.
const GREETING_BYTES_MAX: usize = 4 << 10;
/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;
/// While so much waits to be sent no further request is taken from the queue.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// The length of the body takes so many bytes of a head at most.
const LENGTH_BYTES_MAX: usize = 64;
/// The largest body of an answer that is passed over, in bytes; a larger one ends the connection.
pub(super) const SKIPPED_BYTES_MAX: usize = 4 << 20;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long connecting and agreeing on the protocol may take.
    pub connect_timeout: Duration,
    /// How long an answer may take. With repetitions it may be about twice as long.
    pub timeout: Duration,
    /// The largest answer accepted, in bytes.
    pub reply_bytes_max: usize,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server does not know the protocol, or the request is too large for it: ask it in the ordinary way.
    Unknown,
    /// There is no connection; the request was surely not seen.
    Connect(String),
    /// The request may or may not have had its effect.
    Broken(String),
    /// The same, after a long time.
    Timeout,
    /// The answer is larger than accepted.
    TooLarge,
}

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Concurrent(Arc<Shared>);

struct Shared {
    /// Host and port.
    authority: Arc<str>,
    /// What `Authorization` says when the protocol is asked for, if anything.
    authorization: Option<HeaderValue>,
    limits: Limits,
    state: Mutex<ClientState>,
    /// Held by whoever opens a connection.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ClientState {
    links: Vec<Link>,
    unknown_until: Option<Instant>,
    /// When a connection could last not be opened, and why.
    failed: Option<(Instant, Failure)>,
}

/// The way to a connection.
#[derive(Clone)]
struct Link {
    queue: mpsc::Sender<Ask>,
    /// Requests under way.
    load: Arc<AtomicUsize>,
}

pub(super) struct Ask {
    pub message: Message,
    pub since: Instant,
    pub answer: oneshot::Sender<Result<WholeAnswer, Failure>>,
}

/// A request: the fields that all have, and a body. Cheap to copy.
#[derive(Clone)]
pub(crate) struct Message {
    /// Request line and header fields without the last one, the length of the body.
    pub head: Bytes,
    /// The body.
    pub body: Bytes,
}

impl fmt::Debug for Concurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrent").field("authority", &self.0.authority).finish_non_exhaustive()
    }
}

impl Concurrent {
    /// For the server at this host and port. It is asked for the protocol with this authorization: the requests themselves
    /// bring their own.
    pub fn new(authority: Arc<str>, authorization: Option<HeaderValue>, limits: Limits) -> Self {
        let (state, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { authority, authorization, limits, state, opening }))
    }

    /// Sends a request that may be repeated, and waits for its answer.
    pub async fn ask(&self, message: Message) -> Result<WholeAnswer, Failure> {
        // The server would end the connection, and with it everybody else's requests.
        if message.head.len() + LENGTH_BYTES_MAX > HEAD_BYTES_MAX || message.body.len() > BODY_BYTES_MAX {
            return Err(Failure::Unknown);
        }
        let since = Instant::now();
        let mut last = Failure::Timeout;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 && since.elapsed() >= self.0.limits.timeout {
                return Err(Failure::Timeout);
            }
            let link = self.link().await?;
            let _load = Load::raise(&link.load);
            let (answer, waiting) = oneshot::channel();
            let ask = Ask { message: message.clone(), since, answer };
            // What was not sent gets no answer, either.
            let _ = link.queue.send(ask).await;
            match waiting.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure @ (Failure::Timeout | Failure::TooLarge))) => return Err(failure),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Broken("the connection ended".to_owned()),
            }
        }
        Err(last)
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that has room, or a new one.
    async fn link(&self) -> Result<Link, Failure> {
        if let Some(link) = self.state().usable()? {
            return Ok(link);
        }
        let since = Instant::now();
        let _opening = match self.0.opening.try_lock() {
            Ok(opening) => opening,
            Err(_) => {
                // Somebody is at it. Who can do without does not wait.
                if let Some(link) = self.state().least().cloned() {
                    return Ok(link);
                }
                self.0.opening.lock().await
            }
        };
        // Somebody else may have opened one, or failed to, while this waited.
        {
            let mut state = self.state();
            if let Some(link) = state.usable()? {
                return Ok(link);
            }
            if let Some((time, failure)) = &state.failed
                && *time >= since
            {
                return state.least().cloned().ok_or_else(|| failure.clone());
            }
        }
        let limits = self.0.limits;
        let opened = open(&self.0.authority, self.0.authorization.as_ref(), limits.connect_timeout).await;
        let mut state = self.state();
        match opened {
            Ok((stream, input)) => {
                let (queue, asks) = mpsc::channel(QUEUE_MAX);
                let link = Link { queue, load: Arc::default() };
                state.links.push(link.clone());
                tokio::spawn(Connection::new(stream, input, asks, limits).run());
                Ok(link)
            }
            Err(refused) => {
                let now = Instant::now();
                let failure = match refused {
                    Refused::Failed(reason) => {
                        let failure = Failure::Connect(reason);
                        state.failed = Some((now, failure.clone()));
                        failure
                    }
                    Refused::Unknown => {
                        state.unknown_until = Some(now + UNKNOWN_FOR);
                        Failure::Unknown
                    }
                    Refused::Unsure(reason) => {
                        tracing::debug!(authority = %self.0.authority, reason, "asked in the ordinary way for now");
                        state.unknown_until = Some(now + UNSURE_FOR);
                        Failure::Unknown
                    }
                };
                // Others serve as well.
                state.least().cloned().ok_or(failure)
            }
        }
    }
}

/// Why a connection was not opened.
enum Refused {
    /// Nobody is there.
    Failed(String),
    /// The server answers, and knows no such protocol.
    Unknown,
    /// Somebody is there, who has not said whether.
    Unsure(String),
}

impl ClientState {
    /// The connection that has least to do. None: another one is to be opened.
    fn usable(&mut self) -> Result<Option<Link>, Failure> {
        self.links.retain(|link| !link.queue.is_closed());
        let Some(least) = self.least() else {
            return if self.is_unknown(Instant::now()) { Err(Failure::Unknown) } else { Ok(None) };
        };
        let is_enough = self.links.len() == LINKS_MAX
            || least.load.load(Ordering::Relaxed) < LOAD_MAX
            || self.has_failed(Instant::now());
        Ok(is_enough.then(|| least.clone()))
    }

    fn least(&self) -> Option<&Link> {
        self.links.iter().min_by_key(|link| link.load.load(Ordering::Relaxed))
    }

    fn is_unknown(&self, now: Instant) -> bool {
        self.unknown_until.is_some_and(|until| now < until)
    }

    /// Whether another connection cannot be had now.
    fn has_failed(&self, now: Instant) -> bool {
        let lately = |(time, _): &(Instant, Failure)| now.saturating_duration_since(*time) < TRY_AFTER;
        self.is_unknown(now) || self.failed.as_ref().is_some_and(lately)
    }
}

/// Counts a request for as long as it is under way.
struct Load<'a>(&'a AtomicUsize);

impl<'a> Load<'a> {
    fn raise(load: &'a AtomicUsize) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connects, and agrees on the protocol, in time each. Gives what was read beyond that, too.
async fn open(
    authority: &str,
    authorization: Option<&HeaderValue>,
    in_time: Duration,
) -> Result<(TcpStream, BytesMut), Refused> {
    let connect = timeout(in_time, TcpStream::connect(authority)).await;
    let mut stream = match connect {
        Ok(connected) => connected.map_err(|error| Refused::Failed(error.to_string()))?,
        Err(_) => return Err(Refused::Failed("no answer in time".to_owned())),
    };
    // Whatever becomes of the question, it is not for this to say whether the server can be asked for what it is there for.
    match timeout(in_time, agree(&mut stream, authority, authorization)).await {
        Ok(agreed) => agreed.map(|input| (stream, input)),
        Err(_) => Err(Refused::Unsure("no answer in time".to_owned())),
    }
}

/// Asks for the protocol.
async fn agree(
    stream: &mut TcpStream,
    authority: &str,
    authorization: Option<&HeaderValue>,
) -> Result<BytesMut, Refused> {
    let unsure = |error: std::io::Error| Refused::Unsure(error.to_string());
    stream.set_nodelay(true).map_err(unsure)?;
    let mut wish =
        format!("OPTIONS * HTTP/1.1\r\nhost: {authority}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n")
            .into_bytes();
    if let Some(authorization) = authorization {
        wish.extend_from_slice(b"authorization: ");
        wish.extend_from_slice(authorization.as_bytes());
        wish.extend_from_slice(b"\r\n");
    }
    wish.extend_from_slice(b"\r\n");
    stream.write_all(&wish).await.map_err(unsure)?;
    let mut input = BytesMut::new();
    let ends = |input: &BytesMut| input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    let head_bytes = loop {
        if let Some(end) = ends(&input) {
            break end;
        }
        if input.len() > GREETING_BYTES_MAX {
            return Err(Refused::Unknown);
        }
        if stream.read_buf(&mut input).await.map_err(unsure)? == 0 {
            return Err(Refused::Unsure("the server closed the connection".to_owned()));
        }
    };
    let head = input.split_to(head_bytes);
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let (line, fields) = text.split_once("\r\n").unwrap_or((&text, ""));
    let has = |name: &str, value: &str| {
        let of_name =
            |field: &str| field.strip_prefix(name)?.strip_prefix(':').map(|text| text.trim() == value);
        fields.split("\r\n").any(|field| of_name(field) == Some(true))
    };
    if !(line.starts_with("http/1.1 101") && has("upgrade", PROTOCOL)) {
        // Who is about to end, or has too much to do, may know it anyway.
        let status = line.split(' ').nth(1).unwrap_or("");
        let is_final = status.starts_with(['2', '3', '4']) && status != "429";
        let is_unsure = !is_final || has("connection", "close");
        return Err(if is_unsure { Refused::Unsure(line.to_owned()) } else { Refused::Unknown });
    }
    // The answer to the question itself comes first.
    loop {
        match take_answer(&mut input, GREETING_BYTES_MAX) {
            Ok(Some(Taken::Whole(_))) => return Ok(input),
            Ok(None) if stream.read_buf(&mut input).await.map_err(unsure)? > 0 => {}
            _ => return Err(Refused::Unsure("the server does not keep to the protocol".to_owned())),
        }
    }
}

/// A request that was sent, or is about to be.
struct Waiting {
    since: Instant,
    /// How many bytes were to be sent up to its end.
    end: u64,
    answer: oneshot::Sender<Result<WholeAnswer, Failure>>,
}

pub(super) struct Connection<S> {
    stream: S,
    input: BytesMut,
    output: BytesMut,
    /// How many bytes were sent.
    sent: u64,
    /// How many bytes are still to come of an answer that is too large.
    skips: usize,
    asks: mpsc::Receiver<Ask>,
    /// In the order in which they will be answered.
    waiting: VecDeque<Waiting>,
    limits: Limits,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(stream: S, input: BytesMut, asks: mpsc::Receiver<Ask>, limits: Limits) -> Self {
        let (output, waiting) = (BytesMut::new(), VecDeque::new());
        Self { stream, input, output, sent: 0, skips: 0, asks, waiting, limits }
    }

    /// Works until nobody has anything to ask any more, or the connection ends.
    async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK_AFTER);
        let failure = loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| self.poll(context)) => match ended {
                    Some(failure) => break failure,
                    None => return,
                },
                _ = look.tick() => {
                    let is_late = |waiting: &Waiting| waiting.since.elapsed() >= self.limits.timeout;
                    // They are answered in order: who waits for the first waits for all.
                    if self.waiting.front().is_some_and(is_late) {
                        break Failure::Timeout;
                    }
                }
            }
        };
        self.asks.close();
        for Waiting { since, answer, .. } in self.waiting {
            let is_late = since.elapsed() >= self.limits.timeout;
            let failure = match &failure {
                Failure::Timeout if !is_late => Failure::Broken("another answer took too long".to_owned()),
                failure => failure.clone(),
            };
            // Who does not wait any more does not mind.
            let _ = answer.send(Err(failure));
        }
    }

    /// Does all that can be done now. Ends with nothing, or with what went wrong.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Failure>> {
        loop {
            // What was read before a request is sent cannot be its answer.
            let read = match self.read(context).and_then(|read| self.answer().map(|()| read)) {
                Ok(read) => read,
                Err(reason) => return Poll::Ready(Some(Failure::Broken(reason))),
            };
            let asked = self.take(context);
            let wrote = match self.write(context) {
                Ok(wrote) => wrote,
                Err(reason) => return Poll::Ready(Some(Failure::Broken(reason))),
            };
            match asked {
                Poll::Ready(false) if self.waiting.is_empty() => return Poll::Ready(None),
                Poll::Ready(true) => {}
                _ if read || wrote => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Takes what is asked. `Ready(false)`: nobody will ask any more.
    fn take(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let mut taken = false;
        while self.waiting.len() < IN_FLIGHT_MAX && self.output.len() < OUTPUT_BYTES_MAX {
            match self.asks.poll_recv(context) {
                Poll::Ready(Some(Ask { message: Message { head, body }, since, answer })) => {
                    taken = true;
                    // Who has gone away needs no answer.
                    if answer.is_closed() {
                        continue;
                    }
                    let now = Instant::now();
                    if now.saturating_duration_since(since) >= self.limits.timeout {
                        let _ = answer.send(Err(Failure::Timeout));
                        continue;
                    }
                    self.output.reserve(head.len() + body.len() + LENGTH_BYTES_MAX);
                    self.output.extend_from_slice(&head);
                    put_length(&mut self.output, body.len());
                    self.output.extend_from_slice(&body);
                    let end = self.sent + self.output.len() as u64;
                    self.waiting.push_back(Waiting { since: now, end, answer });
                }
                Poll::Ready(None) => return Poll::Ready(taken),
                Poll::Pending => break,
            }
        }
        if taken { Poll::Ready(true) } else { Poll::Pending }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        if self.output.is_empty() {
            return Ok(false);
        }
        match Pin::new(&mut self.stream).poll_write(context, &self.output) {
            Poll::Ready(Ok(0)) => Err("the connection takes nothing".to_owned()),
            Poll::Ready(Ok(bytes)) => {
                self.output.advance(bytes);
                self.sent += bytes as u64;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        self.input.reserve(READ_BYTES / 4);
        match pin!(self.stream.read_buf(&mut self.input)).poll(context) {
            Poll::Ready(Ok(0)) => Err("the server has closed the connection".to_owned()),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    /// Passes on the answers that are whole.
    fn answer(&mut self) -> Result<(), String> {
        while !self.input.is_empty() {
            if self.skips > 0 {
                let bytes = self.skips.min(self.input.len());
                self.input.advance(bytes);
                self.skips -= bytes;
                continue;
            }
            let taken = match take_answer(&mut self.input, self.limits.reply_bytes_max) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(error) => return Err(format!("not an answer: {error:?}")),
            };
            if self.waiting.front().is_none_or(|first| first.end > self.sent) {
                return Err("an answer that nobody has asked for".to_owned());
            }
            let Waiting { answer, .. } = self.waiting.pop_front().expect("there is a first one");
            let result = match taken {
                Taken::Whole(whole) => Ok(whole),
                Taken::TooLarge(bytes) => {
                    self.skips = bytes;
                    Err(Failure::TooLarge)
                }
            };
            // Who does not wait any more has gone away.
            let _ = answer.send(result);
            if self.skips > SKIPPED_BYTES_MAX {
                return Err("an answer was far too large".to_owned());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
