//! From the header of a request to its response: limits, body, handler, compression.

use crate::codec::{InflateError, deflate, inflate_with};
use crate::{
    browsers::{self, OwnNames, Reach},
    codes::FrameError,
    conn::{ConnState, Deadlines, Phase},
    crowd::{Connections, Polls},
    drain::{Drain, Early},
    pace::Pace,
    proxies::TrustedProxies,
    request::{Head, Peer, PollContext, Request},
    request_log::{Entry, shape},
    response::Response,
    server::LINGER_CLOSES_MAX,
    shares::{Client, ClientKey, Hold, Resource, Shares},
    stats::{Stats, add},
};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

/// A body may inflate to this many times its size, and to [`INFLATED_BYTES_FREE`] more. Our JSON inflates by
/// a factor of three to ten.
const INFLATION_RATIO_MAX: usize = 100;
/// See [`INFLATION_RATIO_MAX`].
const INFLATED_BYTES_FREE: usize = 64 << 10;

/// A service, which decides how to answer requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. A panic is logged and becomes a 500; the server keeps running. If the client
    /// disconnects, the future is dropped at its next await point, so work that must complete belongs in its
    /// own task.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;

    /// Checks a request before its body is read, usually with the [`Routes`](crate::Routes) table, so that no
    /// client uploads a body to an endpoint that does not exist.
    ///
    /// # Errors
    /// The response to send at once, without reading the body.
    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        let _ = head;
        Ok(Admission::default())
    }

    /// Returns whether pages of every site may read errors that belong to no endpoint.
    fn serves_everyone(&self) -> bool {
        false
    }

    /// Returns whether the correlation id that the client sent with a request may be logged. Not for requests
    /// that must not be linked with others of the same client; they get an id of their own.
    fn logs_given_correlation_id(&self, head: &Head) -> bool {
        let _ = head;
        true
    }
}

/// The decision of [`Handler::admit`] about a request that it accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    /// A limit on the body (as sent, and inflated) below the server's, in bytes.
    pub max_body_bytes: Option<usize>,
    /// The pages in browsers that may send the request.
    pub reach: Reach,
}

impl Admission {
    /// With a limit on the body, in bytes.
    #[must_use]
    pub const fn limited(max_body_bytes: usize, reach: Reach) -> Self {
        Self { max_body_bytes: Some(max_body_bytes), reach }
    }
}

/// The limits and deadlines of a server.
///
/// Connections, requests in flight, long polls, bytes of bodies and bytes of responses are shared fairly: a
/// client may take more of them only while it holds at most as much as is still free. So one address (for
/// IPv6, one /64) gets at most half of each limit, and later clients find room. Clients on a local socket are
/// bounded only by the limits themselves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Time that the header of a request may take, from its first byte (or from the start of the connection).
    pub header_timeout: Duration,
    /// Time that a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// The window over which the rate of a body is measured against `min_rate_bytes_per_s`.
    pub body_grace: Duration,
    /// Time that a body of any size may take.
    pub body_timeout: Duration,
    /// The window over which the rate at which the client reads responses is measured.
    pub write_timeout: Duration,
    /// The minimum rate of bodies and responses in each window, in bytes per second.
    pub min_rate_bytes_per_s: u64,
    /// The maximum number of open connections. Further ones get a 503 and are closed. When connections run
    /// out, those without a request are closed and long polls are answered early, the oldest first.
    pub max_connections: usize,
    /// The maximum number of requests in handlers (waiting long polls do not count). Further ones get a 503.
    pub max_in_flight: usize,
    /// The maximum number of waiting long polls. Further ones are answered without waiting. At most half of
    /// `max_connections`.
    pub max_long_polls: usize,
    /// `Retry-After` of a 503, in seconds.
    pub retry_after_s: u32,
    /// The largest header in total, in bytes (431 for more).
    pub max_header_bytes: usize,
    /// The longest request target, in bytes (414 for more).
    pub max_target_bytes: usize,
    /// The largest body, as sent and inflated, in bytes (413 for more).
    pub max_body_bytes: usize,
    /// Request bodies in memory over all connections, in bytes (503 for more). A quarter is reserved for
    /// bodies up to 64 KiB.
    pub max_buffered_bytes: usize,
    /// Responses that clients have not read yet, over all connections, in bytes (503 for more). A quarter is
    /// reserved for responses up to 64 KiB. Near the limit, connections whose clients have read nothing for
    /// `stall_timeout` are closed.
    pub max_answer_bytes: usize,
    /// Time that a client may stop reading a response while memory for responses is running out.
    pub stall_timeout: Duration,
    /// The proxies whose `X-Forwarded-For` names the client. All clients of another proxy count as one
    /// client. The connections of these proxies are bounded only by `max_connections`.
    pub trusted_proxies: TrustedProxies,
    /// The names under which clients reach the server.
    pub hostnames: OwnNames,
    /// Time that requests in flight may take to finish once the drain has fired.
    pub drain_timeout: Duration,
    /// Time that connections without a request stay open once the drain has fired, so that a client that is
    /// just sending its next request gets a response. For services that hand over to another process. At most
    /// `drain_timeout`.
    pub idle_grace: Duration,
    /// Whether to close each connection after its first request.
    pub close_each: bool,
    /// Whether to compress responses.
    pub compress: bool,
    /// Rewrites the errors that the frame itself answers, for an interface with its own error format.
    pub error_form: fn(Response) -> Response,
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
            max_in_flight: 2048,
            max_long_polls: usize::MAX,
            retry_after_s: 1,
            max_header_bytes: 32 << 10,
            max_target_bytes: 8 << 10,
            max_body_bytes: 16 << 20,
            max_buffered_bytes: 256 << 20,
            max_answer_bytes: 128 << 20,
            stall_timeout: Duration::from_secs(5),
            trusted_proxies: TrustedProxies::default(),
            hostnames: OwnNames::default(),
            drain_timeout: Duration::from_secs(1),
            idle_grace: Duration::ZERO,
            close_each: false,
            compress: true,
            error_form: std::convert::identity,
        }
    }
}

/// Bodies below this size are not compressed, since compression does not make them smaller.
const MIN_COMPRESSED_BYTES: usize = 96;
/// Bodies of at least this size are compressed and inflated off the threads that serve connections.
const BLOCKING_FROM_BYTES: usize = 64 << 10;
/// One in `RESERVED_PART` of each budget is reserved for bodies and responses up to this size.
const SMALL_BYTES: usize = 64 << 10;
const RESERVED_PART: usize = 4;
/// Responses up to this size do not count towards the budget: they fit into the buffer that each connection
/// has anyway.
const FREE_ANSWER_BYTES: usize = 4 << 10;

/// The connection must be closed without a response.
#[derive(Debug, thiserror::Error)]
#[error("connection closed without a response: {0}")]
pub(crate) struct CutOff(&'static str);

/// State that all requests of a server share.
pub(crate) struct Frame<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) options: ServerOptions,
    pub(crate) drain: Drain,
    pub(crate) stats: Arc<Stats>,
    pub(crate) connections: Connections,
    pub(crate) shares: Arc<Shares>,
    polls: Arc<Polls>,
}

/// A connection as its requests see it.
pub(crate) struct Link {
    pub(crate) state: Arc<ConnState>,
    pub(crate) peer: Peer,
    pub(crate) client: Arc<Client>,
    /// Whether the peer is a trusted proxy, which forwards requests of other clients.
    pub(crate) is_proxy: bool,
}

/// The pages of other sites that may use a response (the CORS protocol).
#[derive(Clone, Copy)]
struct Cors {
    /// They may read it.
    reads: bool,
    /// The request asked whether they may send another one.
    asks: bool,
}

impl Cors {
    const HEADERS: [HeaderName; 4] = [
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
    ];

    /// The headers that allow it.
    fn headers(self) -> impl Iterator<Item = HeaderName> {
        let count = if self.asks { 4 } else { 2 };
        Self::HEADERS.into_iter().take(if self.reads { count } else { 0 })
    }
}

/// A response's part of the budget, released when dropped.
pub(crate) struct AnswerHold {
    _hold: Hold,
    state: Arc<ConnState>,
    bytes: usize,
}

impl Drop for AnswerHold {
    fn drop(&mut self) {
        self.state.released(self.bytes);
    }
}

/// The body of a response that counts towards the budget until it is written.
struct Charged {
    body: Bytes,
    _hold: AnswerHold,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl<H: Handler> Frame<H> {
    fn frame_error(&self, error: FrameError, detail: &str) -> Response {
        (self.options.error_form)(Response::frame_error(error, detail))
    }

    pub(crate) fn new(handler: Arc<H>, options: ServerOptions, drain: Drain, stats: Arc<Stats>) -> Arc<Self> {
        let polls_max = options.max_long_polls.min(options.max_connections / 2).max(1);
        let shares = Shares::new([
            options.max_connections,
            options.max_in_flight,
            polls_max,
            options.max_buffered_bytes,
            options.max_answer_bytes,
            LINGER_CLOSES_MAX,
        ]);
        let _ = stats.shares.set(Arc::clone(&shares));
        let (connections, polls) = (Connections::default(), Polls::new(Arc::clone(&stats)));
        Arc::new(Self { handler, options, drain, stats, connections, shares, polls })
    }

    /// The client of a new connection, and whether it is a trusted proxy.
    pub(crate) fn client_of(&self, peer: &Peer) -> (Arc<Client>, bool) {
        (self.shares.client(ClientKey::of(peer.address())), self.options.trusted_proxies.trusts(peer))
    }

    /// Takes a new connection's part of the limit.
    pub(crate) fn take_connection(&self, client: &Arc<Client>, is_proxy: bool) -> Option<Hold> {
        let taken = if is_proxy {
            // A proxy is not bounded by a share: the requests of its clients are.
            self.shares.client(ClientKey::Local).take(Resource::Connections, 1)
        } else {
            client.take(Resource::Connections, 1)
        };
        let (used, limit) =
            (self.shares.used(Resource::Connections), self.shares.limit(Resource::Connections));
        // A client that has used up its share does not evict others.
        if taken.is_some() || used >= limit {
            let count = (limit / 64).max(1);
            if used >= limit - limit / 4 {
                add(&self.stats.polls_ended_early, self.polls.end_oldest(count));
            }
            if used >= limit - limit / 8 {
                // A client that has just connected or has just received a response is about to send a
                // request.
                self.connections.close_unused(count, self.options.header_timeout / 10);
            }
        }
        if taken.is_none() {
            self.stats.refuse(Resource::Connections);
        }
        taken
    }

    /// The client of a request: the peer, or the client that a trusted proxy names.
    fn client(&self, link: &Link, headers: &HeaderMap) -> (Option<IpAddr>, Arc<Client>) {
        let named = if link.is_proxy { self.options.trusted_proxies.client(headers) } else { None };
        match named {
            Some(address) => (Some(address), self.shares.client(ClientKey::of(Some(address)))),
            None => (link.peer.address(), Arc::clone(&link.client)),
        }
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
        link: Arc<Link>,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Full<Bytes>>, CutOff> {
        let conn = &*link.state;
        conn.enter(Phase::Serving);
        let _in_flight = self.stats.begin_request();
        let mut unanswered = Unanswered { stats: &self.stats, armed: true };
        let (parts, body) = request.into_parts();
        let header_bytes: usize =
            parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let target_bytes = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
        let has_host = is_host_given(parts.version, &parts.headers);
        let (address, client) = self.client(&link, &parts.headers);
        let (uri, head) =
            (&parts.uri, Head::new(parts.method, &parts.uri, parts.headers, link.peer, address));
        let (is_head, is_options) = (head.is_head, head.method == Method::OPTIONS);
        let deflates = self.options.compress && head.accepts_deflate();
        let mut cors = Cors { reads: self.handler.serves_everyone(), asks: is_options };
        let mut entry = Entry::new(&head, || self.handler.logs_given_correlation_id(&head));
        let response = if target_bytes > self.options.max_target_bytes {
            self.refuse(conn, &body, self.frame_error(FrameError::UriTooLong, ""))
        } else if header_bytes > self.options.max_header_bytes {
            self.refuse(conn, &body, self.frame_error(FrameError::HeaderTooLarge, ""))
        } else if !has_host {
            let detail = "the request needs exactly one Host header";
            self.refuse(conn, &body, self.frame_error(FrameError::Malformed, detail))
        } else {
            self.answer(&link, &client, uri, head, body, &mut cors.reads).instrument(entry.span()).await?
        };
        let mut response = self.finish(&link, &client, response, deflates, cors).await;
        entry.echo(response.headers_mut());
        entry.finish(response.status().as_u16());
        unanswered.armed = false;
        self.stats.count_response(response.status().as_u16());
        if !is_head {
            add(&self.stats.here().body_bytes_sent, response.body().size_hint().exact().unwrap_or(0));
        }
        conn.enter(Phase::Writing);
        Ok(response)
    }

    async fn answer(
        &self,
        link: &Link,
        client: &Arc<Client>,
        uri: &Uri,
        mut head: Head,
        body: Incoming,
        is_for_everyone: &mut bool,
    ) -> Result<Response, CutOff> {
        let conn = &*link.state;
        if head.method == Method::OPTIONS && head.path == "*" {
            return Ok(self.refuse(conn, &body, Response::empty(204)));
        }
        // Refused early, before the upload. The slot itself is taken when the body is complete, so that slow
        // uploads do not block others (connections and buffered bytes bound uploads).
        if !client.may_take(Resource::Requests) {
            return Ok(self.overloaded(conn, &body, Resource::Requests));
        }
        let admission = match self.handler.admit(&head) {
            Ok(admission) => admission,
            Err(response) => return Ok(self.refuse(conn, &body, response)),
        };
        *is_for_everyone = admission.reach == Reach::Everyone;
        if head.method == Method::OPTIONS {
            return Ok(self.refuse(conn, &body, Response::empty(204)));
        }
        if admission.reach == Reach::Own {
            let hostnames = &self.options.hostnames;
            head.is_misdirected = browsers::is_misdirected(&head, hostnames, link.is_proxy);
            if let Err((error, detail)) = browsers::check(&head, !body.is_end_stream(), hostnames) {
                return Ok(self.refuse(conn, &body, self.frame_error(error, &detail)));
            }
        }
        let max_bytes = admission.max_body_bytes.unwrap_or(usize::MAX).min(self.options.max_body_bytes);
        let (body, hold) = match self.read_body(conn, client, &head.headers, body, max_bytes).await? {
            Ok(read) => read,
            Err(response) => return Ok(response),
        };
        Ok(self.handled(client, uri, head, body, hold).await)
    }

    /// Runs the handler. `uri` is that of the head.
    async fn handled(
        &self,
        client: &Arc<Client>,
        uri: &Uri,
        head: Head,
        body: Bytes,
        body_hold: Hold,
    ) -> Response {
        let Some(slot) = client.take(Resource::Requests, 1) else {
            return self.too_busy(Resource::Requests);
        };
        let early = Arc::new(Early::default());
        let request = Request {
            head,
            body,
            drain: self.drain.for_request(Arc::clone(&early)),
            pattern: None,
            slot: Some(slot),
            _body_hold: Some(body_hold),
            place: Some(PollContext {
                polls: Arc::clone(&self.polls),
                early: Arc::clone(&early),
                waiting: None,
            }),
        };
        let method = request.method.clone();
        let handled = AssertUnwindSafe(async { self.handler.handle(request).await }).catch_unwind().await;
        let mut response = handled.unwrap_or_else(|panic| self.panicked(&method, uri.path(), &*panic));
        // Other clients need its connection.
        response.close |= early.has_ended();
        response
    }

    fn panicked(&self, method: &Method, path: &str, panic: &(dyn std::any::Any + Send)) -> Response {
        add(&self.stats.panics, 1);
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        tracing::error!(%method, path = shape(path), panic = text, "handler panicked");
        self.frame_error(FrameError::InternalInvariant, "")
    }

    /// Responds without reading the body. If the body is incomplete, the connection closes.
    fn refuse(&self, conn: &ConnState, body: &Incoming, mut response: Response) -> Response {
        if !body.is_end_stream() {
            response.close = true;
            conn.ask_linger();
        }
        response
    }

    fn overloaded(&self, conn: &ConnState, body: &Incoming, resource: Resource) -> Response {
        self.refuse(conn, body, self.too_busy(resource))
    }

    fn too_busy(&self, resource: Resource) -> Response {
        add(&self.stats.requests_overload, 1);
        self.stats.refuse(resource);
        self.frame_error(FrameError::Overloaded, "")
            .with_header(header::RETRY_AFTER, &self.options.retry_after_s.to_string())
    }

    /// Takes a response's part of the budget; `None` if the response is small.
    ///
    /// # Errors
    /// The response to send instead.
    fn charge(
        &self,
        link: &Link,
        client: &Arc<Client>,
        bytes: usize,
    ) -> Result<Option<AnswerHold>, Response> {
        if bytes <= FREE_ANSWER_BYTES {
            return Ok(None);
        }
        let limit = self.shares.limit(Resource::Answers);
        let mut hold = client.hold(Resource::Answers);
        let taken = hold.grow(bytes, reserved(bytes, limit));
        if !taken || self.shares.used(Resource::Answers) > limit - limit / 4 {
            self.connections.cut_readers(self.options.stall_timeout, limit / 4);
        }
        if !taken {
            return Err(self.too_busy(Resource::Answers));
        }
        link.state.answered(bytes);
        Ok(Some(AnswerHold { _hold: hold, state: Arc::clone(&link.state), bytes }))
    }

    async fn read_body(
        &self,
        conn: &ConnState,
        client: &Arc<Client>,
        headers: &HeaderMap,
        mut body: Incoming,
        max_bytes: usize,
    ) -> Result<Result<(Bytes, Hold), Response>, CutOff> {
        let mut hold = client.hold(Resource::Bodies);
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
        let deflated = match encoding {
            None => false,
            Some(name) if name.is_empty() || name.eq_ignore_ascii_case(b"identity") => false,
            Some(name) if name.eq_ignore_ascii_case(b"deflate") => true,
            Some(_) => {
                let response = self
                    .frame_error(FrameError::EncodingUnsupported, "only deflate is supported")
                    .with_header(header::ACCEPT_ENCODING, "deflate");
                return Ok(Err(self.refuse(conn, &body, response)));
            }
        };
        let announced = body.size_hint().exact();
        if announced.is_some_and(|bytes| bytes > max_bytes as u64) {
            let response = self.frame_error(FrameError::UploadExceedsLimit, "");
            return Ok(Err(self.refuse(conn, &body, response)));
        }
        let limit = self.shares.limit(Resource::Bodies);
        let mut received = Received::Nothing;
        let mut waited: Option<(Instant, Pace)> = None;
        while !body.is_end_stream() {
            // Usually the body arrives together with the header.
            let arrived = match body.frame().now_or_never() {
                Some(arrived) => Ok(arrived),
                None => {
                    let (begin, pace) = waited.get_or_insert_with(|| {
                        let now = Instant::now();
                        let rate = self.options.min_rate_bytes_per_s;
                        (now, Pace::new(now, self.options.body_grace, rate))
                    });
                    let latest = *begin + self.options.body_timeout;
                    let deadline = pace.deadline().map_or(latest, |deadline| deadline.min(latest));
                    timeout_at(deadline, body.frame()).await
                }
            };
            let frame = match arrived {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(CutOff("the body ended early")),
                Err(_) => {
                    add(&self.stats.timeouts, 1);
                    let response = self.frame_error(FrameError::Timeout, "the body takes too long");
                    return Ok(Err(self.refuse(conn, &body, response)));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            add(&self.stats.here().body_bytes_received, data.len() as u64);
            if let Some((_, pace)) = &mut waited {
                pace.add(Instant::now(), data.len());
            }
            let length = received.len() + data.len();
            if length > max_bytes {
                return Err(CutOff("the chunked body exceeds its limit"));
            }
            // A body that is announced as large cannot use the part that is reserved for small ones.
            let expected = announced.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0).max(length);
            if !hold.grow(data.len(), reserved(expected, limit)) {
                return Ok(Err(self.overloaded(conn, &body, Resource::Bodies)));
            }
            received.add(data, announced);
        }
        let received = received.whole();
        if !deflated || received.is_empty() {
            return Ok(Ok((received, hold)));
        }
        let max_bytes = max_bytes.min(inflated_limit(received.len()));
        let is_large = received.len() >= BLOCKING_FROM_BYTES / 8;
        let inflating = move || {
            let mut total = received.len();
            let inflated = inflate_with(&received, max_bytes, |more| {
                total += more;
                hold.grow(more, reserved(total, limit))
            });
            (inflated, hold)
        };
        let (inflated, hold) = if is_large {
            tokio::task::spawn_blocking(inflating).await.map_err(|_| CutOff("the runtime shuts down"))?
        } else {
            inflating()
        };
        Ok(match inflated {
            Ok(Some(bytes)) => Ok((bytes.into(), hold)),
            Ok(None) => Err(self.overloaded(conn, &body, Resource::Bodies)),
            Err(InflateError::TooLarge { .. }) => Err(self.frame_error(FrameError::UploadExceedsLimit, "")),
            Err(InflateError::Malformed) => {
                Err(self.frame_error(FrameError::Malformed, "the body does not inflate"))
            }
        })
    }

    /// Adds everything that all responses have.
    async fn finish(
        &self,
        link: &Link,
        client: &Arc<Client>,
        response: Response,
        deflates: bool,
        cors: Cors,
    ) -> hyper::Response<Full<Bytes>> {
        // A body that many responses share is in memory only once.
        let is_shared = response.deflated.is_some();
        let (status, mut map, mut body, close) = Self::packed(response, deflates).await;
        let (status, close) = match self.charge(link, client, if is_shared { 0 } else { body.len() }) {
            Ok(Some(hold)) => {
                body = Bytes::from_owner(Charged { body, _hold: hold });
                (status, close)
            }
            Ok(None) => (status, close),
            Err(refusal) => {
                body = refusal.body;
                map = refusal.headers.into_iter().collect();
                (refusal.status, close || refusal.close)
            }
        };
        for name in cors.headers() {
            map.insert(name, HeaderValue::from_static("*"));
        }
        if close || self.options.close_each || self.drain.is_draining() {
            map.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut out = hyper::Response::new(Full::new(body));
        *out.status_mut() =
            http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        *out.headers_mut() = map;
        out
    }

    /// Status, header fields and body of a response, and whether it closes the connection. Compressed if the
    /// client accepts that and it makes the body smaller.
    async fn packed(response: Response, deflates: bool) -> (u16, HeaderMap, Bytes, bool) {
        let Response { status, headers, mut body, deflated, close } = response;
        let mut map = HeaderMap::with_capacity(headers.len() + 6);
        for (name, value) in headers {
            map.append(name, value);
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
                        // If the runtime is shutting down, the plain body will do.
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
        (status, map, body, close)
    }
}

/// The largest size that a received body of `packed_bytes` may inflate to.
fn inflated_limit(packed_bytes: usize) -> usize {
    INFLATED_BYTES_FREE.saturating_add(packed_bytes.saturating_mul(INFLATION_RATIO_MAX))
}

/// The part of a budget that a body or response of this size must leave free for small ones.
const fn reserved(bytes: usize, limit: usize) -> usize {
    if bytes <= SMALL_BYTES { 0 } else { limit / RESERVED_PART }
}

/// Returns whether a request has the `Host` fields that RFC 9112, 3.2 requires.
fn is_host_given(version: http::Version, headers: &HeaderMap) -> bool {
    match headers.get_all(header::HOST).iter().count() {
        0 => version < http::Version::HTTP_11,
        count => count == 1,
    }
}

/// A body as received: usually in one piece, which needs no copy.
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

    /// Adds a piece of a body with this announced length.
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

/// Counts a request that ends without a response.
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
