//! Requests to one URL over plain HTTP, at the lowest cost: many at a time over one connection if the server
//! supports it ([`crate::client::concurrent`]). Otherwise connections are kept, and the task that uses a connection
//! drives it, so that no request passes through another task or a channel.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::codec::concurrent::put_request_head;
use crate::codec::correlation::CORRELATION_ID;
use bytes::{Bytes, BytesMut};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::client::client::{ClientError, Reply};
use crate::client::concurrent::{ConcurrentClient, Failure as ConcurrentFailure, Limits, Message};

type Body = Full<Bytes>;

/// Posts idempotent requests to one URL. Clones share its connections.
#[derive(Clone)]
pub struct DirectClient {
    url: Arc<str>,
    authority: Arc<str>,
    headers: Arc<HeaderMap>,
    concurrent: ConcurrentClient,
    /// The request line and header fields of a concurrent request.
    head: Bytes,
    idle: Arc<Mutex<Vec<Connection>>>,
    /// Limits the connections in use.
    permits: Arc<Semaphore>,
    options: DirectOptions,
}

/// Limits of a [`DirectClient`].
#[derive(Clone, Copy, Debug)]
pub struct DirectOptions {
    /// The maximum number of connections to a server that takes the requests of a connection one after the
    /// other. They are kept open.
    pub connections_max: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long request and response may take together.
    pub timeout: Duration,
    /// The largest body of a response, in bytes.
    pub max_reply_bytes: usize,
}

/// A connection for one request at a time, and what drives it.
struct Connection {
    sender: SendRequest<Body>,
    driver: http1::Connection<TokioIo<TcpStream>, Body>,
}

/// Why a request failed.
enum Failure {
    /// The connection was closed before the first byte of a response.
    Closed(String),
    Broken(String),
    TooLarge,
}

impl fmt::Debug for DirectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectClient").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl DirectClient {
    /// A client for this URL with these header fields. `None`: the URL is not plain HTTP, or names a user.
    pub fn new(url: &str, headers: HeaderMap, options: DirectOptions) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let is_plain = |host: &&Authority| uri.scheme_str() == Some("http") && !host.as_str().contains('@');
        let host = uri.authority().filter(is_plain)?;
        let authority: Arc<str> =
            if host.port().is_some() { host.as_str().into() } else { format!("{}:80", host.as_str()).into() };
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            timeout: options.timeout,
            reply_bytes_max: options.max_reply_bytes,
        };
        Some(Self {
            url: url.into(),
            concurrent: ConcurrentClient::new(
                Arc::clone(&authority),
                headers.get(header::AUTHORIZATION).cloned(),
                limits,
            ),
            authority,
            head: request_head(url, &headers),
            headers: headers.into(),
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(options.connections_max)),
            options,
        })
    }

    /// Sends a body, with this correlation id if there is one, and reads the whole response. If the connection is closed, the request is sent again on
    /// another one, so it may arrive twice.
    ///
    /// # Errors
    /// [`ClientError`] if there is no response; any status is a response.
    ///
    /// # Panics
    /// Never: the semaphore is not closed.
    pub async fn post_idempotent(
        &self,
        body: Bytes,
        correlation_id: Option<HeaderValue>,
    ) -> Result<Reply, ClientError> {
        // Without an id, all requests share one head.
        let (head, headers) = match correlation_id {
            None => (self.head.clone(), Arc::clone(&self.headers)),
            Some(id) => {
                let mut headers = (*self.headers).clone();
                headers.insert(HeaderName::from_static(CORRELATION_ID), id);
                (request_head(&self.url, &headers), headers.into())
            }
        };
        let message = Message { head, body: body.clone() };
        let url = || (*self.url).to_owned();
        match self.concurrent.send(message).await {
            Ok(response) => {
                let (status, headers, body) = (response.status, response.headers, response.body);
                return Ok(Reply { url: url(), status, headers, body });
            }
            Err(ConcurrentFailure::Unsupported) => {}
            Err(ConcurrentFailure::Connect(reason)) => {
                return Err(ClientError::Connect { url: url(), reason });
            }
            Err(ConcurrentFailure::Broken(reason)) => return Err(ClientError::Broken { url: url(), reason }),
            Err(ConcurrentFailure::Timeout) => return Err(ClientError::Timeout { url: url() }),
            Err(ConcurrentFailure::TooLarge) => return Err(self.too_large()),
        }
        let _permit = self.permits.acquire().await.expect("it is never closed");
        match tokio::time::timeout(self.options.timeout, self.exchange(&headers, body)).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { url: url() }),
        }
    }

    async fn exchange(&self, headers: &HeaderMap, body: Bytes) -> Result<Reply, ClientError> {
        let url = &*self.url;
        let broken = |reason| ClientError::Broken { url: url.to_owned(), reason };
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let (is_kept, connection) = match kept {
                Some(connection) => (true, connection),
                None => (false, self.connect(url).await?),
            };
            let request = self.request(url, headers, body.clone())?;
            match connection.send(url, request, self.options.max_reply_bytes).await {
                Ok((reply, connection)) => {
                    if let Some(connection) = connection {
                        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                        idle.push(connection);
                    }
                    return Ok(reply);
                }
                // Each round uses up a kept connection, so the loop ends.
                Err(Failure::Closed(_)) if is_kept => {}
                Err(Failure::Closed(reason) | Failure::Broken(reason)) => return Err(broken(reason)),
                Err(Failure::TooLarge) => return Err(self.too_large()),
            }
        }
    }

    fn too_large(&self) -> ClientError {
        let reason = format!("the body is larger than {} bytes", self.options.max_reply_bytes);
        ClientError::BadReply { url: (*self.url).to_owned(), status: 0, reason }
    }

    fn request(&self, url: &str, headers: &HeaderMap, body: Bytes) -> Result<Request<Body>, ClientError> {
        let invalid = |reason: String| ClientError::Invalid { url: url.to_owned(), reason };
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| invalid(error.to_string()))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .body(Full::new(body))
            .map_err(|error| invalid(error.to_string()))?;
        *request.headers_mut() = headers.clone();
        let host = uri.authority().map_or(&*self.authority, |authority| authority.as_str());
        let host = host.parse().map_err(|_| invalid("host".to_owned()))?;
        request.headers_mut().insert(header::HOST, host);
        Ok(request)
    }

    async fn connect(&self, url: &str) -> Result<Connection, ClientError> {
        let failed = |reason: String| ClientError::Connect { url: url.to_owned(), reason };
        let connect = TcpStream::connect(&*self.authority);
        let stream = match tokio::time::timeout(self.options.connect_timeout, connect).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed("no answer in time".to_owned())),
        };
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        Ok(Connection { sender, driver })
    }
}

impl Connection {
    /// Sends one request. Also returns the connection if it can be used again.
    async fn send(
        mut self,
        url: &str,
        request: Request<Body>,
        max_reply_bytes: usize,
    ) -> Result<(Reply, Option<Self>), Failure> {
        let Self { sender, driver } = &mut self;
        let sent = drive(driver, sender.send_request(request)).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_canceled() || error.is_closed() || error.is_incomplete_message() => {
                return Err(Failure::Closed(error.to_string()));
            }
            Ok(Err(error)) => return Err(Failure::Broken(error.to_string())),
            Err(reason) => return Err(Failure::Closed(reason)),
        };
        let (head, mut body) = response.into_parts();
        let mut bytes = BytesMut::new();
        loop {
            let frame = match drive(driver, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Failure::Broken(error.to_string())),
                Err(reason) => return Err(Failure::Broken(reason)),
            };
            if let Ok(data) = frame.into_data() {
                if bytes.len().saturating_add(data.len()) > max_reply_bytes {
                    return Err(Failure::TooLarge);
                }
                bytes.extend_from_slice(&data);
            }
        }
        let reply = Reply {
            url: url.to_owned(),
            status: head.status.as_u16(),
            headers: head.headers,
            body: bytes.freeze(),
        };
        // The connection sees that the response is complete, and either accepts the next request or ends.
        let is_usable = matches!(drive(&mut self.driver, self.sender.ready()).await, Ok(Ok(())));
        Ok((reply, is_usable.then_some(self)))
    }
}

/// The request line and header fields of a concurrent request to a URL.
///
/// # Panics
/// If it is not a URL; it was checked when the client was made.
fn request_head(url: &str, headers: &HeaderMap) -> Bytes {
    let uri: Uri = url.parse().expect("the URL was checked");
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let mut head = BytesMut::new();
    put_request_head(&mut head, target, uri.authority().map_or("", Authority::as_str), headers);
    head.freeze()
}

/// Waits for `wanted` while it drives the connection. An error if the connection ends first.
async fn drive<F: Future>(
    driver: &mut http1::Connection<TokioIo<TcpStream>, Body>,
    wanted: F,
) -> Result<F::Output, String> {
    // Tokio's cooperative budget can report ready things as pending. After the end of the connection, that
    // would look like a response that never comes.
    let mut wanted = std::pin::pin!(tokio::task::unconstrained(wanted));
    let mut ended = None;
    std::future::poll_fn(|context| {
        use std::task::Poll;
        if let Poll::Ready(output) = wanted.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if ended.is_none()
            && let Poll::Ready(end) = std::pin::Pin::new(&mut *driver).poll(context)
        {
            ended =
                Some(end.map_or_else(|error| error.to_string(), |()| "the connection was closed".to_owned()));
        }
        // The connection may just have made it ready.
        match wanted.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => match ended.take() {
                Some(reason) => Poll::Ready(Err(reason)),
                None => Poll::Pending,
            },
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const OPTIONS: DirectOptions = DirectOptions {
        connections_max: 4,
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(20),
        max_reply_bytes: 100,
    };

    /// A server whose connections answer with these texts, one per request, and then close. It does not
    /// support concurrent requests.
    async fn server(connections: Vec<Vec<String>>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/transfer", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut wish = Vec::new();
            while !wish.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut wish).await.unwrap(), 0, "requests are whole");
            }
            assert!(wish.starts_with(b"OPTIONS * HTTP/1.1\r\n"));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            let mut requests = Vec::new();
            for answers in connections {
                let (mut stream, _) = listener.accept().await.unwrap();
                for answer in answers {
                    let mut request = Vec::new();
                    while !request.ends_with(b"{}") {
                        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "requests are whole");
                    }
                    requests.push(String::from_utf8(request).unwrap());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
            requests
        });
        (url, serving)
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    fn direct(url: &str) -> Option<DirectClient> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        DirectClient::new(url, headers, OPTIONS)
    }

    async fn post(client: &DirectClient) -> Result<Reply, ClientError> {
        client.post_idempotent(Bytes::from_static(b"{}"), None).await
    }

    #[tokio::test]
    async fn connections_are_kept_and_replaced() {
        // The second connection takes over when the first one turns out to be closed.
        let (url, serving) = server(vec![vec![ok("1"), ok("2")], vec![ok("3")]]).await;
        let client = direct(&url).unwrap();
        for expected in ["1", "2", "3"] {
            let reply = post(&client).await.unwrap();
            assert_eq!((reply.status, &reply.body[..]), (200, expected.as_bytes()));
            if expected == "2" {
                // Waits until the end of the connection has arrived.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let requests = serving.await.unwrap();
        assert_eq!(requests.len(), 3);
        let host = url.split('/').nth(2).unwrap();
        for request in requests {
            assert!(request.starts_with("POST /base/transfer HTTP/1.1\r\n"), "{request}");
            assert!(request.contains(&format!("host: {host}\r\n")), "{request}");
            assert!(request.contains("content-length: 2\r\n"), "{request}");
        }
    }

    #[tokio::test]
    async fn unusable_responses_are_errors() {
        let answers = ["", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1", "nonsense\r\n\r\n"];
        for answer in answers {
            let (url, _serving) = server(vec![vec![answer.to_owned()]]).await;
            let client = direct(&url).unwrap();
            let error = post(&client).await.unwrap_err();
            assert!(
                matches!(error, ClientError::Broken { .. }) && error.is_transient(),
                "{answer:?}: {error}"
            );
        }
        let (url, _serving) = server(vec![vec![ok(&"x".repeat(101))]]).await;
        let error = post(&direct(&url).unwrap()).await.unwrap_err();
        assert!(matches!(error, ClientError::BadReply { .. }), "{error}");
        // A port without a listener.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let error = post(&direct(&url).unwrap()).await.unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    }

    #[tokio::test]
    async fn connections_that_end_are_not_kept() {
        let closing = "HTTP/1.1 409 Conflict\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".to_owned();
        let (url, serving) = server(vec![vec![closing.clone()], vec![closing]]).await;
        let client = direct(&url).unwrap();
        for _ in 0..2 {
            assert_eq!(post(&client).await.unwrap().status, 409);
            assert!(client.idle.lock().unwrap().is_empty(), "the connection is not kept");
        }
        assert_eq!(serving.await.unwrap().len(), 2);
        assert!(direct("https://bank.example/").is_none());
        assert!(direct("/relative").is_none());
        assert!(direct("http://user:secret@bank.example/x").is_none());
        assert_eq!(&*direct("http://bank.example/x").unwrap().authority, "bank.example:80");
    }
}
