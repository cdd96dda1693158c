//! The client: JSON over HTTP with a connection pool, and replies that keep their status.

use super::destinations::{Destinations, NotPublic, Resolver};
use crate::codec::{InflateError, deflate, inflate};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use batzen_protocol::ErrorCode;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client as HyperClient, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use serde::{Serialize, de::DeserializeOwned};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::{fmt, time::Duration};

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Time that a TCP connection may take to open.
    pub connect_timeout: Duration,
    /// Time that request and response may take together, unless a call has its own timeout.
    pub timeout: Duration,
    /// Time that an idle connection is kept.
    pub pool_idle_timeout: Duration,
    /// Number of idle connections that are kept per server.
    pub pool_max_idle: usize,
    /// The largest body of a response, in bytes, before and after inflation.
    pub max_reply_bytes: usize,
    /// Request bodies of at least this size are sent deflated, if that makes them smaller. `None`: never.
    pub deflate_from_bytes: Option<usize>,
    /// Whether to ask for deflated responses.
    pub accept_deflate: bool,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// The addresses that it connects to.
    pub destinations: Destinations,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            pool_idle_timeout: Duration::from_secs(20),
            pool_max_idle: 64,
            max_reply_bytes: 64 << 20,
            deflate_from_bytes: None,
            accept_deflate: true,
            user_agent: concat!("batzen/", env!("CARGO_PKG_VERSION")).to_owned(),
            destinations: Destinations::All,
        }
    }
}

/// Why there is no usable response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client could not be set up: TLS, or the `User-Agent`.
    #[error("cannot set up the HTTP client: {0}")]
    Setup(String),
    /// The URL or a header is not valid.
    #[error("{url}: not a valid request: {reason}")]
    Invalid {
        /// The URL as given.
        url: String,
        /// The fault.
        reason: String,
    },
    /// There is no connection, so the server did not see the request.
    #[error("{url}: cannot connect: {reason}")]
    Connect {
        /// The URL of the request.
        url: String,
        /// The problem.
        reason: String,
    },
    /// The server has an address that the client must not connect to ([`Destinations`]), so no connection was opened.
    #[error("{url}: {NotPublic}")]
    NotPublic {
        /// The URL of the request.
        url: String,
    },
    /// Time ran out. The request may or may not have taken effect: send it again.
    #[error("{url}: no answer in time")]
    Timeout {
        /// The URL of the request.
        url: String,
    },
    /// The connection broke. The request may or may not have taken effect: send it again.
    #[error("{url}: connection failed: {reason}")]
    Broken {
        /// The URL of the request.
        url: String,
        /// The problem.
        reason: String,
    },
    /// The response is larger than the limit or not well-formed.
    #[error("{url}: HTTP {status}: unusable response: {reason}")]
    BadReply {
        /// The URL of the request.
        url: String,
        /// The status of the response.
        status: u16,
        /// The problem.
        reason: String,
    },
    /// The response has a status that the caller does not want.
    #[error("{url}: HTTP {status}{}", describe(*code, hint, detail))]
    Status {
        /// The URL of the request.
        url: String,
        /// The status of the response.
        status: u16,
        /// The error code in its body, if there is one.
        code: Option<ErrorCode>,
        /// The hint in its body, or empty.
        hint: String,
        /// The detail in its body, or empty.
        detail: String,
        /// The whole body.
        body: Bytes,
    },
}

fn describe(code: Option<ErrorCode>, hint: &str, detail: &str) -> String {
    let mut text = String::new();
    if let Some(code) = code {
        text = format!(", {code}");
    }
    for part in [hint, detail] {
        if !part.is_empty() {
            text.push_str(": ");
            text.push_str(part);
        }
    }
    text
}

impl ClientError {
    /// The HTTP status, if there was a response.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::BadReply { status, .. } | Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The error code of the response, if it has one.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Status { code, .. } => *code,
            _ => None,
        }
    }

    /// Returns whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken { .. } => true,
            Self::Status { status, .. } => matches!(*status, 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}

/// A response with any status: status, header fields and body.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The URL of the request.
    pub url: String,
    /// The HTTP status.
    pub status: u16,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, inflated.
    pub body: Bytes,
}

impl Reply {
    /// The body as a typed JSON value, whatever the status.
    ///
    /// # Errors
    /// [`ClientError::BadReply`], with the status.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::BadReply {
            url: self.url.clone(),
            status: self.status,
            reason: error.to_string(),
        })
    }

    /// The body as a typed JSON value if the status is 200.
    ///
    /// # Errors
    /// [`ClientError::Status`] for another status, [`ClientError::BadReply`] for another body.
    pub fn ok<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        self.expect(&[200])?.json()
    }

    /// This reply if its status is among `statuses`.
    ///
    /// # Errors
    /// [`ClientError::Status`] otherwise.
    pub fn expect(&self, statuses: &[u16]) -> Result<&Self, ClientError> {
        if statuses.contains(&self.status) { Ok(self) } else { Err(self.status_error()) }
    }

    /// This reply as an error, with the error code of its body.
    #[must_use]
    pub fn status_error(&self) -> ClientError {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |name: &str| body.get(name).and_then(|v| v.as_str()).unwrap_or("").to_owned();
        ClientError::Status {
            url: self.url.clone(),
            status: self.status,
            code: self.code(),
            hint: text("hint"),
            detail: text("detail"),
            body: self.body.clone(),
        }
    }

    /// The error code in the body, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        #[derive(serde::Deserialize)]
        struct Code {
            code: ErrorCode,
        }
        serde_json::from_slice::<Code>(&self.body).ok().map(|body| body.code)
    }

    /// The text of a header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Time that the server asks to wait (`Retry-After` in seconds).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.header("retry-after")?.trim().parse().ok().map(Duration::from_secs)
    }
}

/// An HTTP client with its connection pool. Cheap to clone; clones share the pool. Use one client for each
/// identity that must not be linked with others.
#[derive(Clone)]
pub struct Client {
    carrier: Carrier,
    timeout: Duration,
    max_reply_bytes: usize,
    deflate_from_bytes: Option<usize>,
    accept_deflate: bool,
    user_agent: HeaderValue,
    destinations: Destinations,
}

/// Carries requests in place of connections: to a service in the same process, or over a simulated network. It decides
/// itself how long an answer may take.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and receives its response. The error is the reason why there is none.
    fn carry(
        &self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, String>> + Send>>;
}

type Connections = HyperClient<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

#[derive(Clone)]
enum Carrier {
    Connections(Connections),
    Transport(Arc<dyn Transport>),
}

/// The certificates that the machine trusts. Reading them takes milliseconds, so all clients share them.
static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    // Such a machine can still speak plain HTTP; HTTPS fails in its handshake.
    if roots.is_empty() {
        tracing::warn!(errors = ?found.errors, "no usable root certificates: HTTPS will not work");
    }
    Arc::new(roots)
});

/// TLS with a session cache of its own: a server can link connections that resume a session.
fn tls_config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(&ROOTS))
        .with_no_client_auth())
}

impl Client {
    /// A client. It uses no proxy, follows no redirects, and repeats no request that a server may have seen.
    ///
    /// # Errors
    /// [`ClientError::Setup`] if TLS cannot be set up, or the `User-Agent` is not a header value.
    pub fn new(options: &ClientOptions) -> Result<Self, ClientError> {
        let setup = |error: &dyn std::error::Error| ClientError::Setup(error.to_string());
        let mut tcp = HttpConnector::new_with_resolver(Resolver(options.destinations.clone()));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(options.connect_timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config().map_err(|error| setup(&error))?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let connections = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.pool_idle_timeout)
            .pool_max_idle_per_host(options.pool_max_idle)
            .build(connector);
        Self::with(Carrier::Connections(connections), options)
    }

    /// A client whose requests this transport carries.
    ///
    /// # Errors
    /// [`ClientError::Setup`] if the `User-Agent` is not a header value.
    pub fn over(transport: Arc<dyn Transport>, options: &ClientOptions) -> Result<Self, ClientError> {
        Self::with(Carrier::Transport(transport), options)
    }

    fn with(carrier: Carrier, options: &ClientOptions) -> Result<Self, ClientError> {
        let setup = |error: &dyn std::error::Error| ClientError::Setup(error.to_string());
        Ok(Self {
            carrier,
            timeout: options.timeout,
            max_reply_bytes: options.max_reply_bytes,
            deflate_from_bytes: options.deflate_from_bytes,
            accept_deflate: options.accept_deflate,
            user_agent: HeaderValue::from_str(&options.user_agent).map_err(|error| setup(&error))?,
            destinations: options.destinations.clone(),
        })
    }

    /// Returns whether this client would connect to the server of a URL, as far as the URL says: a name is looked up when
    /// it connects.
    #[must_use]
    pub fn may_reach(&self, url: &str) -> bool {
        parse_url(url).is_ok_and(|uri| self.destinations.check(&uri).is_ok())
    }

    /// Starts a call.
    #[must_use]
    pub fn call(&self, method: Method, url: impl Into<String>) -> Call<'_> {
        Call {
            client: self,
            method,
            url: url.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: None,
            max_reply_bytes: self.max_reply_bytes,
            invalid: None,
        }
    }

    /// Starts a `GET`.
    #[must_use]
    pub fn get(&self, url: impl Into<String>) -> Call<'_> {
        self.call(Method::GET, url)
    }

    /// Starts a `POST`.
    #[must_use]
    pub fn post(&self, url: impl Into<String>) -> Call<'_> {
        self.call(Method::POST, url)
    }

    /// Gets a document.
    ///
    /// # Errors
    /// [`ClientError`] if there is no response; any status is a response.
    pub async fn get_json(&self, url: impl Into<String>) -> Result<Reply, ClientError> {
        self.get(url).send().await
    }

    /// Posts a JSON body.
    ///
    /// # Errors
    /// [`ClientError`] if there is no response; any status is a response.
    pub async fn post_json(
        &self,
        url: impl Into<String>,
        body: &impl Serialize,
    ) -> Result<Reply, ClientError> {
        self.post(url).json(body).send().await
    }
}

/// A call being prepared.
#[derive(Clone)]
pub struct Call<'a> {
    client: &'a Client,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
    timeout: Option<Duration>,
    max_reply_bytes: usize,
    invalid: Option<String>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and body may carry credentials and secrets.
        f.debug_struct("Call").field("method", &self.method).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// Adds a query parameter.
    #[must_use]
    pub fn query(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.url.push(if self.url.contains('?') { '&' } else { '?' });
        self.url.push_str(&url_encoded(name));
        self.url.push('=');
        self.url.push_str(&url_encoded(&value.to_string()));
        self
    }

    /// The URL with its query.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets a header field.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => {
                self.headers.insert(name, value);
            }
            _ => self.invalid = Some(format!("header {name}")),
        }
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(mut self, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = body.into(),
            Err(error) => self.invalid = Some(error.to_string()),
        }
        self.header("content-type", "application/json")
    }

    /// Sets a body.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// Sets a body of form fields (`application/x-www-form-urlencoded`).
    #[must_use]
    pub fn form(self, fields: &[(&str, &str)]) -> Self {
        let pairs =
            fields.iter().map(|(name, value)| format!("{}={}", url_encoded(name), url_encoded(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        self.body("application/x-www-form-urlencoded", body)
    }

    /// Sets user name and password of HTTP basic authentication (RFC 7617).
    #[must_use]
    pub fn basic_auth(mut self, user: &str, password: &str) -> Self {
        self.headers.insert(header::AUTHORIZATION, basic_auth(user, password));
        self
    }

    /// Sets how long request and response may take together. For a long poll, this is the time of the poll
    /// and a margin.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the largest body of the response, in bytes, instead of the client's limit.
    #[must_use]
    pub const fn max_reply_bytes(mut self, bytes: usize) -> Self {
        self.max_reply_bytes = bytes;
        self
    }

    /// Sends the request and reads the whole response.
    ///
    /// # Errors
    /// [`ClientError`] if there is no response; any status is a response.
    pub async fn send(self) -> Result<Reply, ClientError> {
        let timeout = self.timeout.unwrap_or(self.client.timeout);
        let url = self.url.clone();
        // Boxed, so that the machinery of a request is compiled once, here, and not in each of its callers.
        let has_transport = matches!(self.client.carrier, Carrier::Transport(_));
        let exchange: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(self.exchange());
        if has_transport {
            return exchange.await;
        }
        match tokio::time::timeout(timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { url }),
        }
    }

    async fn exchange(self) -> Result<Reply, ClientError> {
        let Self { client, method, url, mut headers, mut body, timeout: _, max_reply_bytes, invalid } = self;
        let uri = match invalid.map_or_else(|| parse_url(&url), Err) {
            Ok(uri) => uri,
            Err(reason) => return Err(ClientError::Invalid { url, reason }),
        };
        if client.destinations.check(&uri).is_err() {
            return Err(ClientError::NotPublic { url });
        }
        if client.deflate_from_bytes.is_some_and(|from| body.len() >= from && !body.is_empty()) {
            let packed = deflate(&body);
            if packed.len() < body.len() {
                body = packed.into();
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("deflate"));
            }
        }
        if client.accept_deflate {
            headers.entry(header::ACCEPT_ENCODING).or_insert(HeaderValue::from_static("deflate"));
        }
        headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        headers.entry(header::USER_AGENT).or_insert_with(|| client.user_agent.clone());
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let response = match &client.carrier {
            Carrier::Connections(connections) => {
                read_whole(connections, max_reply_bytes, &url, request).await?
            }
            Carrier::Transport(transport) => {
                let sent = transport.carry(request).await;
                sent.map_err(|reason| ClientError::Broken { url: url.clone(), reason })?
            }
        };
        let status = response.status().as_u16();
        let (parts, mut body) = response.into_parts();
        let headers = parts.headers;
        let deflated = headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"deflate"));
        if deflated && !body.is_empty() {
            let bad = |error: InflateError| bad_reply(&url, status, error.to_string());
            body = inflate(&body, max_reply_bytes).map_err(bad)?.into();
        }
        Ok(Reply { url, status, headers, body })
    }
}

fn bad_reply(url: &str, status: u16, reason: String) -> ClientError {
    ClientError::BadReply { url: url.to_owned(), status, reason }
}

/// Sends a request over a connection and reads the whole response.
async fn read_whole(
    connections: &Connections,
    max_reply_bytes: usize,
    url: &str,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, ClientError> {
    let broken = |reason: String| ClientError::Broken { url: url.to_owned(), reason };
    let response = match connections.request(request.map(Full::new)).await {
        Ok(response) => response,
        Err(error) if is_not_public(&error) => {
            return Err(ClientError::NotPublic { url: url.to_owned() });
        }
        Err(error) if error.is_connect() => {
            return Err(ClientError::Connect { url: url.to_owned(), reason: chain(&error) });
        }
        Err(error) => return Err(broken(chain(&error))),
    };
    let (parts, mut incoming) = response.into_parts();
    let mut body = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        let Ok(chunk) = frame.map_err(|error| broken(chain(&error)))?.into_data() else { continue };
        if body.len().saturating_add(chunk.len()) > max_reply_bytes {
            let reason = format!("the body is larger than {max_reply_bytes} bytes");
            return Err(bad_reply(url, parts.status.as_u16(), reason));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response::from_parts(parts, body.freeze()))
}

/// An absolute URL of HTTP (RFC 9110, 4.2), without its fragment. User names in URLs are refused: they would
/// end in logs.
fn parse_url(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err("it does not begin with http:// or https://".to_owned()),
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err("it has a user name; credentials belong in the configuration".to_owned())
        }
        Some(authority) if !authority.host().is_empty() => Ok(uri),
        _ => Err("it has no host".to_owned()),
    }
}

/// Returns whether a connection was not opened because of the server's address.
fn is_not_public(error: &(dyn std::error::Error + 'static)) -> bool {
    // An error of input or output has its cause inside, where it is no source.
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<NotPublic>)
        || error.source().is_some_and(is_not_public)
}

/// All causes of an error, since the innermost one says most; without the URL, which the error contains
/// anyway.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = error.source();
    while let Some(cause) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

/// Percent-encodes everything but the unreserved characters (RFC 3986).
#[must_use]
pub fn url_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The value of `Authorization` for HTTP basic authentication (RFC 7617).
///
/// # Panics
/// Never: base64 is a valid header value.
#[must_use]
pub(crate) fn basic_auth(user: &str, password: &str) -> HeaderValue {
    let token = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {token}")).expect("base64 is a valid header value");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_query_parameters_are_encoded() {
        let value = basic_auth("Aladdin", "open sesame");
        assert_eq!(value, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(value.is_sensitive());
        assert_eq!(url_encoded("a b/ü&=~"), "a%20b%2F%C3%BC%26%3D~");
    }
}
