//! From a request's header to its answer: limits, body, handler, compression.

use crate::{
    body::{Budget, InflateError, Share, deflate, inflate},
    codes::FrameError,
    concurrent,
    conn::{ConnState, Deadlines, Phase},
    drain::Drain,
    request::{Head, Peer, Request},
    response::Response,
    stats::{Gauge, Stats, add},
};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

/// What a service does with its requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. A panic in here is answered with 500 and logged; the server lives on. If the client goes away,
    /// the future is dropped at its next await point, so what must be completed belongs into a task of its own.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;

    /// Looks at a request before its body is read; usually asks the [`Routes`](crate::Routes) table, so that nobody has to
    /// upload a body to an endpoint that does not exist.
    ///
    /// # Errors
    /// The answer to give at once, without reading the body.
    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        let _ = head;
        Ok(Admission::default())
    }
}

/// What [`Handler::admit`] may say about a request that it lets in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    /// A limit for the body (as sent, and inflated) below the server's, in bytes.
    pub max_body_bytes: Option<usize>,
}

impl Admission {
    /// With a limit for the body, in bytes.
    #[must_use]
    pub const fn limited(max_body_bytes: usize) -> Self {
        Self { max_body_bytes: Some(max_body_bytes) }
    }
}

/// The limits and deadlines of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long a request's header may take, from its first byte (or from the connection's beginning).
    pub header_timeout: Duration,
    /// How long a connection may stay unused between requests. Does not apply while a request is served.
    pub idle_timeout: Duration,
    /// How long a body may take before `min_rate_bytes_per_s` counts.
    pub body_grace: Duration,
    /// How long a body may take at most, however large.
    pub body_timeout: Duration,
    /// How long the client may take to read an answer before `min_rate_bytes_per_s` counts.
    pub write_timeout: Duration,
    /// The rate that bodies and answers must keep up beyond their grace, in bytes per second.
    pub min_rate_bytes_per_s: u64,
    /// Connections at once; more are answered with 503 and closed.
    pub max_connections: usize,
    /// Requests at once that are being handled (long polls give their place back); more are answered with 503.
    pub max_in_flight: usize,
    /// What `Retry-After` says on a 503, in seconds.
    pub retry_after_s: u32,
    /// The largest header in all, in bytes (431 beyond).
    pub max_header_bytes: usize,
    /// The longest request target, in bytes (414 beyond).
    pub max_target_bytes: usize,
    /// The largest body, as sent and inflated, in bytes (413 beyond).
    pub max_body_bytes: usize,
    /// Request bodies in memory over all connections, in bytes (503 beyond).
    pub max_buffered_bytes: usize,
    /// How long requests in flight may take to finish once the drain has fired.
    pub drain_timeout: Duration,
    /// How long connections without a request stay open once the drain has fired, so that a client that is just sending its
    /// next one is answered instead of cut off. For services that hand over to another process; at most `drain_timeout`
    /// counts.
    pub idle_grace: Duration,
    /// Whether to close each connection after its first request.
    pub close_each: bool,
    /// Whether to compress answers.
    pub compress: bool,
    /// Whether a client may have many `POST`s under way at once on a connection if it asks for that (`concurrent`). For
    /// services whose answers to them are small: up to 128 of a connection may be in memory.
    pub concurrent: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            body_grace: Duration::from_secs(10),
            body_timeout: Duration::from_secs(180),
            write_timeout: Duration::from_secs(30),
            min_rate_bytes_per_s: 8 << 10,
            max_connections: 8192,
            max_in_flight: 1024,
            retry_after_s: 1,
            max_header_bytes: 32 << 10,
            max_target_bytes: 8 << 10,
            max_body_bytes: 16 << 20,
            max_buffered_bytes: 256 << 20,
            drain_timeout: Duration::from_secs(1),
            idle_grace: Duration::ZERO,
            close_each: false,
            compress: true,
            concurrent: false,
        }
    }
}

/// Answers smaller than this do not get smaller by compression.
const MIN_COMPRESSED_BYTES: usize = 96;
/// Bodies larger than this are packed and unpacked off the threads that serve connections.
const BLOCKING_FROM_BYTES: usize = 64 << 10;

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection closed without answer: {0}")]
pub(crate) struct CutOff(&'static str);

/// Everything that the requests of a server share.
pub(crate) struct Frame<H> {
    pub handler: Arc<H>,
    pub options: ServerOptions,
    pub drain: Drain,
    pub stats: Arc<Stats>,
    slots: Arc<Semaphore>,
    budget: Arc<Budget>,
}

impl<H: Handler> Frame<H> {
    pub(crate) fn new(handler: Arc<H>, options: ServerOptions, drain: Drain, stats: Arc<Stats>) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(options.max_in_flight.min(Semaphore::MAX_PERMITS)));
        let budget = Budget::new(options.max_buffered_bytes);
        Arc::new(Self { handler, options, drain, stats, slots, budget })
    }

    pub(crate) const fn deadlines(&self) -> Deadlines {
        Deadlines {
            header: self.options.header_timeout,
            idle: self.options.idle_timeout,
            write: self.options.write_timeout,
            min_rate_bytes_per_s: self.options.min_rate_bytes_per_s,
        }
    }

    /// Serves one request of a connection.
    pub(crate) async fn serve(
        self: Arc<Self>,
        conn: Arc<ConnState>,
        peer: Peer,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Full<Bytes>>, CutOff> {
        conn.enter(Phase::Serving);
        add(&self.stats.requests, 1);
        let _in_flight = Gauge::raise(&self.stats.requests_in_flight);
        let mut unanswered = Unanswered { stats: &self.stats, armed: true };
        let (parts, body) = request.into_parts();
        let header_bytes: usize =
            parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let target_bytes = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
        let head = Head::new(parts.method, &parts.uri, parts.headers, peer);
        if head.path == "*" && self.can_change() && concurrent::server::is_asked(&head) {
            unanswered.armed = false;
            self.stats.count_response(101);
            conn.change();
            return Ok(concurrent::server::agreement());
        }
        let (is_head, is_options) = (head.is_head, head.method == Method::OPTIONS);
        let deflates = self.options.compress && head.accepts_deflate();
        let response = if target_bytes > self.options.max_target_bytes {
            Ok(self.refuse(&conn, &body, Response::frame_error(FrameError::UriTooLong, "")))
        } else if header_bytes > self.options.max_header_bytes {
            Ok(self.refuse(&conn, &body, Response::frame_error(FrameError::HeaderTooLarge, "")))
        } else {
            self.answer(&conn, head, body).await
        };
        let response = self.finish(response?, deflates, is_options).await;
        unanswered.armed = false;
        self.stats.count_response(response.status().as_u16());
        if !is_head {
            add(&self.stats.body_bytes_sent, response.body().size_hint().exact().unwrap_or(0));
        }
        conn.enter(Phase::Writing);
        Ok(response)
    }

    async fn answer(&self, conn: &ConnState, head: Head, body: Incoming) -> Result<Response, CutOff> {
        if head.method == Method::OPTIONS && head.path == "*" {
            return Ok(Response::empty(204));
        }
        // Told early, before the body is uploaded; the place itself is taken when the body is there, so that slow uploads
        // do not keep out the others (connections and buffered bytes bound those).
        if self.slots.available_permits() == 0 {
            return Ok(self.overloaded(conn, &body));
        }
        let admission = match self.handler.admit(&head) {
            Ok(admission) => admission,
            Err(response) => return Ok(self.refuse(conn, &body, response)),
        };
        if head.method == Method::OPTIONS {
            return Ok(self.refuse(conn, &body, Response::empty(204)));
        }
        let max_bytes = admission.max_body_bytes.unwrap_or(usize::MAX).min(self.options.max_body_bytes);
        let (body, share) = match self.read_body(conn, &head.headers, body, max_bytes).await? {
            Ok(read) => read,
            Err(response) => return Ok(response),
        };
        Ok(self.handled(head, body, share).await)
    }

    /// Whether a connection may change to another protocol: only one that stays.
    fn can_change(&self) -> bool {
        self.options.concurrent && !self.options.close_each && !self.drain.is_draining()
    }

    /// Serves one of the many requests of a connection: [`concurrent`]. The answer is neither compressed nor has it headers for
    /// browsers.
    pub(crate) async fn serve_whole(&self, head: Head, body: Bytes) -> Response {
        add(&self.stats.requests, 1);
        let _in_flight = Gauge::raise(&self.stats.requests_in_flight);
        let mut unanswered = Unanswered { stats: &self.stats, armed: true };
        add(&self.stats.body_bytes_received, body.len() as u64);
        let mut share = self.budget.share();
        let response = match self.handler.admit(&head) {
            Err(response) => response,
            Ok(admission)
                if body.len()
                    > admission.max_body_bytes.unwrap_or(usize::MAX).min(self.options.max_body_bytes) =>
            {
                Response::frame_error(FrameError::UploadExceedsLimit, "")
            }
            Ok(_) if head.headers.contains_key(header::CONTENT_ENCODING) => {
                Response::frame_error(FrameError::EncodingUnsupported, "bodies are sent as they are here")
            }
            Ok(_) if !share.take(body.len()) => self.too_busy(),
            Ok(_) => self.handled(head, body, share).await,
        };
        unanswered.armed = false;
        self.stats.count_response(response.status);
        add(&self.stats.body_bytes_sent, response.body.len() as u64);
        response
    }

    /// Has a whole request handled.
    async fn handled(&self, head: Head, body: Bytes, share: Share) -> Response {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return self.too_busy();
        };
        let request =
            Request { head, body, drain: self.drain.clone(), slot: Some(slot), _share: Some(share) };
        let (method, path) = (request.method.clone(), request.path.clone());
        let handled = AssertUnwindSafe(async { self.handler.handle(request).await }).catch_unwind().await;
        handled.unwrap_or_else(|panic| {
            add(&self.stats.panics, 1);
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(%method, path, panic = text, "handler panicked");
            Response::frame_error(FrameError::InternalInvariant, "")
        })
    }

    /// An answer that leaves the body unread. A body that is still coming is not waited for: the connection closes.
    fn refuse(&self, conn: &ConnState, body: &Incoming, mut response: Response) -> Response {
        if !body.is_end_stream() {
            response.close = true;
            conn.ask_linger();
        }
        response
    }

    fn overloaded(&self, conn: &ConnState, body: &Incoming) -> Response {
        self.refuse(conn, body, self.too_busy())
    }

    fn too_busy(&self) -> Response {
        add(&self.stats.requests_overload, 1);
        Response::frame_error(FrameError::Overloaded, "")
            .with_header(header::RETRY_AFTER, &self.options.retry_after_s.to_string())
    }

    async fn read_body(
        &self,
        conn: &ConnState,
        headers: &HeaderMap,
        mut body: Incoming,
        max_bytes: usize,
    ) -> Result<Result<(Bytes, Share), Response>, CutOff> {
        let mut share = self.budget.share();
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
        let deflated = match encoding {
            None => false,
            Some(name) if name.is_empty() || name.eq_ignore_ascii_case(b"identity") => false,
            Some(name) if name.eq_ignore_ascii_case(b"deflate") => true,
            Some(_) => {
                let response =
                    Response::frame_error(FrameError::EncodingUnsupported, "only deflate is supported")
                        .with_header(header::ACCEPT_ENCODING, "deflate");
                return Ok(Err(self.refuse(conn, &body, response)));
            }
        };
        let announced = body.size_hint().exact();
        if announced.is_some_and(|bytes| bytes > max_bytes as u64) {
            let response = Response::frame_error(FrameError::UploadExceedsLimit, "");
            return Ok(Err(self.refuse(conn, &body, response)));
        }
        let mut received = Received::Nothing;
        let mut begin = None;
        while !body.is_end_stream() {
            // Mostly the body has come together with the header.
            let arrived = match body.frame().now_or_never() {
                Some(arrived) => Ok(arrived),
                None => {
                    let by_rate = Duration::from_millis(
                        (received.len() as u64).saturating_mul(1000)
                            / self.options.min_rate_bytes_per_s.max(1),
                    );
                    let allowed =
                        self.options.body_grace.saturating_add(by_rate).min(self.options.body_timeout);
                    timeout_at(*begin.get_or_insert_with(Instant::now) + allowed, body.frame()).await
                }
            };
            let frame = match arrived {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(CutOff("body broken off")),
                Err(_) => {
                    add(&self.stats.timeouts, 1);
                    let response = Response::frame_error(FrameError::Timeout, "the body takes too long");
                    return Ok(Err(self.refuse(conn, &body, response)));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            add(&self.stats.body_bytes_received, data.len() as u64);
            if received.len() + data.len() > max_bytes {
                return Err(CutOff("chunked body beyond its limit"));
            }
            if !share.take(data.len()) {
                return Ok(Err(self.overloaded(conn, &body)));
            }
            received.add(data, announced);
        }
        let received = received.whole();
        if !deflated || received.is_empty() {
            return Ok(Ok((received, share)));
        }
        let packed = received.clone();
        let inflated = if packed.len() >= BLOCKING_FROM_BYTES / 8 {
            tokio::task::spawn_blocking(move || inflate(&packed, max_bytes))
                .await
                .map_err(|_| CutOff("runtime ends"))?
        } else {
            inflate(&packed, max_bytes)
        };
        Ok(match inflated {
            Ok(bytes) if share.take(bytes.len()) => Ok((bytes.into(), share)),
            Ok(_) => Err(self.overloaded(conn, &body)),
            Err(InflateError::TooLarge { .. }) => {
                Err(Response::frame_error(FrameError::UploadExceedsLimit, ""))
            }
            Err(InflateError::Malformed) => {
                Err(Response::frame_error(FrameError::Malformed, "the body does not inflate"))
            }
        })
    }

    /// Adds what every answer has.
    async fn finish(
        &self,
        response: Response,
        deflates: bool,
        is_options: bool,
    ) -> hyper::Response<Full<Bytes>> {
        let Response { status, headers, mut body, deflated, close } = response;
        let status = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let mut map = HeaderMap::with_capacity(headers.len() + 6);
        for (name, value) in headers {
            map.append(name, value);
        }
        let any = HeaderValue::from_static("*");
        map.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any.clone());
        map.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, any.clone());
        if is_options {
            map.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, any.clone());
            map.insert(header::ACCESS_CONTROL_ALLOW_METHODS, any);
        }
        if !map.contains_key(header::CONTENT_ENCODING) && body.len() >= MIN_COMPRESSED_BYTES {
            let is_cacheable = map.contains_key(header::ETAG)
                || map.contains_key(header::CACHE_CONTROL)
                || map.contains_key(header::EXPIRES);
            let says_so = map
                .get_all(header::VARY)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .flat_map(|value| value.split(','))
                .any(|name| name.trim().eq_ignore_ascii_case("accept-encoding"));
            if is_cacheable && !says_so {
                map.append(header::VARY, HeaderValue::from_static("accept-encoding"));
            }
            if deflates {
                let packed = match deflated {
                    Some(packed) => packed,
                    None if body.len() >= BLOCKING_FROM_BYTES => {
                        let plain = body.clone();
                        let packed = tokio::task::spawn_blocking(move || deflate(&plain)).await;
                        // Without it (the runtime ends) the plain body is as good.
                        packed.map_or_else(|_| body.clone(), Bytes::from)
                    }
                    None => deflate(&body).into(),
                };
                if packed.len() < body.len() {
                    body = packed;
                    map.insert(header::CONTENT_ENCODING, HeaderValue::from_static("deflate"));
                }
            }
        }
        if close || self.options.close_each || self.drain.is_draining() {
            map.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut out = hyper::Response::new(Full::new(body));
        *out.status_mut() = status;
        *out.headers_mut() = map;
        out
    }
}

/// A body as it comes: usually in one piece, which then needs no copy.
enum Received {
    Nothing,
    One(Bytes),
    Several(BytesMut),
}

impl Received {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(piece) => piece.len(),
            Self::Several(pieces) => pieces.len(),
        }
    }

    /// Adds a piece of a body that was announced to have so many bytes.
    fn add(&mut self, piece: Bytes, announced: Option<u64>) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Self::One(piece),
            Self::One(first) => {
                let announced = usize::try_from(announced.unwrap_or(0)).unwrap_or(0).min(64 << 10);
                let mut pieces = BytesMut::with_capacity(announced.max(first.len() + piece.len()));
                pieces.extend_from_slice(&first);
                pieces.extend_from_slice(&piece);
                Self::Several(pieces)
            }
            Self::Several(mut pieces) => {
                pieces.extend_from_slice(&piece);
                Self::Several(pieces)
            }
        };
    }

    fn whole(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(piece) => piece,
            Self::Several(pieces) => pieces.freeze(),
        }
    }
}

/// Counts a request that ends without answer, however it ends.
struct Unanswered<'a> {
    stats: &'a Stats,
    armed: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.armed {
            add(&self.stats.cancelled, 1);
        }
    }
}
