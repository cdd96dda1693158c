//! The client's side of concurrent requests ([`batzen_http::codec::concurrent`]): a few connections to one
//! server, shared by all requests.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::concurrent::{
    BODY_BYTES_MAX, HEAD_BYTES_MAX, LENGTH_BYTES_MAX, PROTOCOL, ResponseMessage, TakenResponse,
    put_upgrade_request, take_response,
};
use crate::codec::{EMPTY_FIELD, FIELDS_MAX, FramingError, parse_response_head};
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

mod connection;

#[cfg(feature = "testing")]
pub(crate) use connection::SKIPPED_BYTES_MAX;
pub(crate) use connection::{Connection, Submission};

/// The maximum number of connections to one server.
const CONNECTIONS_MAX: usize = 4;
/// Another connection is opened when each of the others has this many requests under way.
const LOAD_MAX: usize = 64;
/// How many requests may wait for a connection. Further requests wait for room in the queue.
const QUEUE_MAX: usize = 1_024;
/// How long a server that does not know the protocol gets ordinary requests before it is asked again.
const UNSUPPORTED_FOR: Duration = Duration::from_secs(600);
/// The same for a server that may know it: it is starting or ending, is overloaded, or did not answer.
const UNCERTAIN_FOR: Duration = Duration::from_secs(10);
/// How soon another connection is tried after a failure, if there are others.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// How many connections may break under a request before it fails.
const ATTEMPTS_MAX: usize = 3;
/// The largest response to the request for this protocol, in bytes.
const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long connecting may take, and changing the protocol.
    pub connect_timeout: Duration,
    /// How long a response may take. With repetitions, it may take about twice as long.
    pub timeout: Duration,
    /// The largest body of a response, in bytes.
    pub reply_bytes_max: usize,
}

/// Why there is no response.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server does not know the protocol, or the request is too large for it: send an ordinary request.
    Unsupported,
    /// There is no connection, so the server did not see the request.
    Connect(String),
    /// The connection broke. The request may or may not have taken effect.
    Broken(String),
    /// Time ran out. The request may or may not have taken effect.
    Timeout,
    /// The response exceeds the limit.
    TooLarge,
}

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub(crate) struct ConcurrentClient(Arc<Shared>);

struct Shared {
    /// Host and port.
    authority: Arc<str>,
    /// `Authorization` of the request for the protocol, if any.
    authorization: Option<HeaderValue>,
    limits: Limits,
    state: Mutex<ClientState>,
    /// Held while a connection is opened.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ClientState {
    connections: Vec<Handle>,
    unsupported_until: Option<Instant>,
    /// When opening a connection last failed, and why.
    failed: Option<(Instant, Failure)>,
}

/// A handle to a connection.
#[derive(Clone)]
struct Handle {
    queue: mpsc::Sender<Submission>,
    /// Requests under way.
    load: Arc<AtomicUsize>,
}

/// A request: a head that is the same for all requests to a URL, and a body. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Message {
    /// The request line and all header fields except the last, the length of the body.
    pub head: Bytes,
    /// The body.
    pub body: Bytes,
}

impl fmt::Debug for ConcurrentClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrentClient").field("authority", &self.0.authority).finish_non_exhaustive()
    }
}

impl ConcurrentClient {
    /// A client of the server at this host and port. `authorization` goes with the request for the protocol;
    /// other requests have it in their own heads.
    pub fn new(authority: Arc<str>, authorization: Option<HeaderValue>, limits: Limits) -> Self {
        let (state, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { authority, authorization, limits, state, opening }))
    }

    /// Sends an idempotent request and waits for its response.
    pub async fn send(&self, message: Message) -> Result<ResponseMessage, Failure> {
        // The server would close the connection, and all other requests would fail with it.
        if message.head.len() + LENGTH_BYTES_MAX > HEAD_BYTES_MAX || message.body.len() > BODY_BYTES_MAX {
            return Err(Failure::Unsupported);
        }
        let since = Instant::now();
        let mut last = Failure::Timeout;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 && since.elapsed() >= self.0.limits.timeout {
                return Err(Failure::Timeout);
            }
            let connection = self.connection().await?;
            let _load = LoadGuard::raise(&connection.load);
            let (outcome, waiting) = oneshot::channel();
            let submission = Submission { message: message.clone(), since, outcome };
            // If the connection has ended, `waiting` fails too.
            let _ = connection.queue.send(submission).await;
            match waiting.await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(failure @ (Failure::Timeout | Failure::TooLarge))) => return Err(failure),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Broken("the connection was closed".to_owned()),
            }
        }
        Err(last)
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that has room, or a new one.
    async fn connection(&self) -> Result<Handle, Failure> {
        if let Some(connection) = self.state().usable()? {
            return Ok(connection);
        }
        let since = Instant::now();
        let _opening = match self.0.opening.try_lock() {
            Ok(opening) => opening,
            Err(_) => {
                // Another task is opening a connection. Wait for it only if there is no other one to use
                // meanwhile.
                if let Some(connection) = self.state().least_loaded().cloned() {
                    return Ok(connection);
                }
                self.0.opening.lock().await
            }
        };
        // Another task may have opened one, or failed to, while this one waited.
        {
            let mut state = self.state();
            if let Some(connection) = state.usable()? {
                return Ok(connection);
            }
            if let Some((time, failure)) = &state.failed
                && *time >= since
            {
                return state.least_loaded().cloned().ok_or_else(|| failure.clone());
            }
        }
        let limits = self.0.limits;
        let opened = open(&self.0.authority, self.0.authorization.as_ref(), limits.connect_timeout).await;
        let mut state = self.state();
        match opened {
            Ok((stream, input)) => {
                let (queue, submissions) = mpsc::channel(QUEUE_MAX);
                let handle = Handle { queue, load: Arc::default() };
                state.connections.push(handle.clone());
                tokio::spawn(Connection::new(stream, input, submissions, limits).run());
                Ok(handle)
            }
            Err(error) => {
                let failure = state.open_failed(error, &self.0.authority);
                // The existing connections will do.
                state.least_loaded().cloned().ok_or(failure)
            }
        }
    }
}

/// Why a connection was not opened.
enum OpenError {
    /// The server cannot be reached.
    Connect(String),
    /// The server answers, but does not know the protocol.
    Unsupported,
    /// The server can be reached, but did not say whether it knows the protocol.
    Uncertain(String),
}

impl ClientState {
    /// The connection with the fewest requests under way. `None`: open another one.
    fn usable(&mut self) -> Result<Option<Handle>, Failure> {
        self.connections.retain(|connection| !connection.queue.is_closed());
        let now = Instant::now();
        let Some(least) = self.least_loaded() else {
            return if self.is_unsupported(now) { Err(Failure::Unsupported) } else { Ok(None) };
        };
        let is_enough = self.connections.len() == CONNECTIONS_MAX
            || least.load.load(Ordering::Relaxed) < LOAD_MAX
            || self.has_failed_lately(now);
        Ok(is_enough.then(|| least.clone()))
    }

    fn least_loaded(&self) -> Option<&Handle> {
        self.connections.iter().min_by_key(|connection| connection.load.load(Ordering::Relaxed))
    }

    fn is_unsupported(&self, now: Instant) -> bool {
        self.unsupported_until.is_some_and(|until| now < until)
    }

    /// Whether it is too early to try another connection.
    fn has_failed_lately(&self, now: Instant) -> bool {
        let is_recent =
            |(time, _): &(Instant, Failure)| now.saturating_duration_since(*time) < RECONNECT_AFTER;
        self.is_unsupported(now) || self.failed.as_ref().is_some_and(is_recent)
    }

    /// Records that a connection could not be opened.
    fn open_failed(&mut self, error: OpenError, authority: &str) -> Failure {
        let now = Instant::now();
        match error {
            OpenError::Connect(reason) => {
                let failure = Failure::Connect(reason);
                self.failed = Some((now, failure.clone()));
                failure
            }
            OpenError::Unsupported => {
                self.unsupported_until = Some(now + UNSUPPORTED_FOR);
                Failure::Unsupported
            }
            OpenError::Uncertain(reason) => {
                tracing::debug!(%authority, reason, "concurrent requests unavailable, using ordinary requests");
                self.unsupported_until = Some(now + UNCERTAIN_FOR);
                Failure::Unsupported
            }
        }
    }
}

/// Counts a request while it is under way.
struct LoadGuard<'a>(&'a AtomicUsize);

impl<'a> LoadGuard<'a> {
    fn raise(load: &'a AtomicUsize) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connects and changes the protocol, each within `step_timeout`. Also returns the bytes that were read
/// beyond that.
async fn open(
    authority: &str,
    authorization: Option<&HeaderValue>,
    step_timeout: Duration,
) -> Result<(TcpStream, BytesMut), OpenError> {
    let connect = timeout(step_timeout, TcpStream::connect(authority)).await;
    let mut stream = match connect {
        Ok(connected) => connected.map_err(|error| OpenError::Connect(error.to_string()))?,
        Err(_) => return Err(OpenError::Connect("no answer in time".to_owned())),
    };
    // A server that fails here may still serve ordinary requests.
    match timeout(step_timeout, upgrade(&mut stream, authority, authorization)).await {
        Ok(upgraded) => upgraded.map(|input| (stream, input)),
        Err(_) => Err(OpenError::Uncertain("no answer in time".to_owned())),
    }
}

/// Changes the protocol of a connection.
async fn upgrade(
    stream: &mut TcpStream,
    authority: &str,
    authorization: Option<&HeaderValue>,
) -> Result<BytesMut, OpenError> {
    let uncertain = |error: std::io::Error| OpenError::Uncertain(error.to_string());
    let closed = || OpenError::Uncertain("the server closed the connection".to_owned());
    stream.set_nodelay(true).map_err(uncertain)?;
    let mut request = BytesMut::new();
    put_upgrade_request(&mut request, authority, authorization);
    stream.write_all(&request).await.map_err(uncertain)?;
    let mut input = BytesMut::new();
    let head_bytes = loop {
        if let Some(head_bytes) = check_upgrade_response(&input)? {
            break head_bytes;
        }
        if stream.read_buf(&mut input).await.map_err(uncertain)? == 0 {
            return Err(closed());
        }
    };
    input.advance(head_bytes);
    // The response to the `OPTIONS` request itself comes first.
    loop {
        match take_response(&mut input, HANDSHAKE_BYTES_MAX) {
            Ok(Some(TakenResponse::Complete(_))) => return Ok(input),
            Ok(None) if stream.read_buf(&mut input).await.map_err(uncertain)? > 0 => {}
            _ => return Err(OpenError::Uncertain("the server breaks the protocol".to_owned())),
        }
    }
}

/// The length of the head if the server agrees to change the protocol. `None` if the head is incomplete.
fn check_upgrade_response(input: &[u8]) -> Result<Option<usize>, OpenError> {
    let mut fields = [EMPTY_FIELD; FIELDS_MAX];
    let head = match parse_response_head(input, &mut fields, HANDSHAKE_BYTES_MAX) {
        Ok(Some(head)) => head,
        Ok(None) => return Ok(None),
        // Our servers send a small head.
        Err(FramingError::HeadTooLarge) => return Err(OpenError::Unsupported),
        Err(error) => return Err(OpenError::Uncertain(error.to_string())),
    };
    if head.status == 101 && head.has_field("upgrade", PROTOCOL) {
        return Ok(Some(head.framing.head_bytes));
    }
    // A server that is about to end, or is overloaded, may still know the protocol.
    let is_busy = head.status == 429 || head.has_field("connection", "close");
    let is_final = (200..500).contains(&head.status) && !is_busy;
    Err(if is_final { OpenError::Unsupported } else { OpenError::Uncertain(format!("HTTP {}", head.status)) })
}

#[cfg(test)]
mod tests;
