//! Sends requests over HTTP: a separate connection pool for each context, no cookies, bounded bodies.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use batzen_http::client::correlation::CORRELATION_ID;
use batzen_http::client::{Client, ClientError, ClientOptions};

use crate::core::http::{Context, HttpRequest, HttpResponse, Method};

/// The largest answer that is read, in bytes, both before and after decompression.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for an answer, not counting the time for which the server may hold it back.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Request bodies of at least this size are compressed, if that makes them smaller.
const COMPRESS_FROM_BYTES: usize = 4096;

/// There is no answer, so the server may or may not have executed the request. Send the same request again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct TransportError {
    /// The URL of the request.
    pub url: String,
    /// The reason.
    pub reason: String,
}

/// A pending answer.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, TransportError>> + Send + 'a>>;

/// Sends requests: over the network, or in a test.
pub trait Transport: Send + Sync {
    /// Sends `request` once and waits for the answer, whatever its status.
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a>;
}

/// The network.
#[derive(Clone, Debug)]
pub struct HttpTransport {
    clients: HashMap<Context, Client>,
}

impl HttpTransport {
    /// A transport with its own connections. It uses no proxy and sends each request once.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, TransportError> {
        let options = ClientOptions {
            connect_timeout: CONNECT_TIMEOUT,
            max_reply_bytes: ANSWER_BYTES_MAX,
            deflate_from_bytes: Some(COMPRESS_FROM_BYTES),
            user_agent: "batzen-wallet".to_owned(),
            ..ClientOptions::default()
        };
        let mut clients = HashMap::new();
        for context in Context::ALL {
            let client = Client::new(&options).map_err(|error| failed("HTTP client", error))?;
            clients.insert(context, client);
        }
        Ok(Self { clients })
    }

    async fn send_once(&self, request: &HttpRequest) -> Result<HttpResponse, TransportError> {
        let client = &self.clients[&request.context];
        let mut call = match request.method {
            Method::Get => client.get(&request.url),
            Method::Post => client.post(&request.url),
            Method::Delete => client.call(batzen_http::client::Method::DELETE, &request.url),
        }
        .timeout(ANSWER_TIMEOUT + Duration::from_millis(request.poll_ms))
        .header("accept", request.accept);
        if let Some((user, password)) = &request.basic_auth {
            call = call.basic_auth(user, password);
        }
        if let Some(purse_sig) = &request.purse_sig {
            call = call.header("taler-purse-signature", &purse_sig.to_string());
        }
        if let Some(id) = &request.correlation_id {
            call = call.header(CORRELATION_ID, id);
        }
        if let Some(body) = &request.body {
            call = call.body("application/json", body.clone());
        }
        let reply = call.send().await.map_err(|error| failed(&request.url, error))?;
        let header = |name: &str| reply.header(name).map(str::to_owned);
        // The client decompresses bodies. Any other encoding would reach the core as garbage.
        if let Some(encoding) = header("content-encoding").map(|text| text.to_ascii_lowercase())
            && !matches!(encoding.as_str(), "identity" | "deflate")
        {
            let reason = format!("unknown content encoding {encoding}");
            return Err(TransportError { url: request.url.clone(), reason });
        }
        Ok(HttpResponse {
            status: reply.status,
            etag: header("etag"),
            content_type: header("content-type"),
            retry_after_s: reply.retry_after().map(|pause| pause.as_secs()),
            body: reply.body.into(),
        })
    }
}

impl Transport for HttpTransport {
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a> {
        Box::pin(self.send_once(request))
    }
}

fn failed(url: &str, error: ClientError) -> TransportError {
    let reason = match error {
        ClientError::Setup(reason) => reason,
        ClientError::Connect { reason, .. } => format!("cannot connect: {reason}"),
        ClientError::Timeout { .. } => "no answer in time".to_owned(),
        ClientError::Invalid { reason, .. } | ClientError::Broken { reason, .. } => {
            format!("the connection failed: {reason}")
        }
        ClientError::BadReply { reason, .. } => reason,
        ClientError::NotPublic { .. } => "its address is not public".to_owned(),
        // Calls accept any status.
        ClientError::Status { status, .. } => format!("HTTP {status}"),
    };
    TransportError { url: url.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Sends a request to a server that gives this response. Returns what the server received, and what the
    /// caller got.
    async fn exchange(
        response: &'static [u8],
        change: impl FnOnce(&mut HttpRequest),
    ) -> (Vec<u8>, Result<HttpResponse, TransportError>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/x", listener.local_addr().expect("bound"));
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut received = vec![0; 64 << 10];
            let mut length = 0;
            while !received[..length].windows(4).any(|four| four == b"\r\n\r\n") {
                length += stream.read(&mut received[length..]).expect("a request");
            }
            received.truncate(length);
            stream.write_all(response).expect("the client reads");
            received
        });
        let mut request = HttpRequest::get(Context::Info, url);
        change(&mut request);
        let answer = HttpTransport::new().expect("TLS").send(&request).await;
        (serving.join().expect("served"), answer)
    }

    #[tokio::test]
    async fn requests_and_answers_keep_what_the_core_needs() {
        let response =
            b"HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\nretry-after: 7\r\ncontent-type: text/plain\r\n\r\n";
        let (received, answer) =
            exchange(response, |request| request.basic_auth = Some(("a".into(), "b".into()))).await;
        let received = String::from_utf8_lossy(&received).to_ascii_lowercase();
        assert!(!received.contains("correlation"), "an id would link requests: {received}");
        for field in [
            "get /x http/1.1",
            "accept: application/json",
            "accept-encoding: deflate",
            "authorization: basic ytpi",
            "user-agent: batzen-wallet",
        ] {
            assert!(received.contains(&format!("{field}\r\n")), "{field}: {received}");
        }
        assert!(!received.contains("cookie"), "{received}");
        let answer = answer.expect("an answer");
        assert_eq!(
            (answer.status, answer.etag.as_deref(), answer.retry_after_s),
            (304, Some("\"1\""), Some(7))
        );
        assert_eq!(answer.content_type.as_deref(), Some("text/plain"));
    }

    #[tokio::test]
    async fn a_laboratory_may_give_requests_an_id() {
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (received, _) = exchange(response, |request| request.correlation_id = Some("a-1".into())).await;
        let received = String::from_utf8_lossy(&received).to_ascii_lowercase();
        assert!(received.contains("taler-correlation-id: a-1\r\n"), "{received}");
    }

    #[tokio::test]
    async fn large_bodies_are_compressed_and_small_ones_are_not() {
        for (bytes, is_compressed) in [(COMPRESS_FROM_BYTES - 1, false), (COMPRESS_FROM_BYTES, true)] {
            let (received, answer) = exchange(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", |request| {
                request.method = Method::Post;
                request.body = Some(vec![b'1'; bytes]);
            })
            .await;
            let received = String::from_utf8_lossy(&received).to_ascii_lowercase();
            assert!(received.contains("content-type: application/json\r\n"), "{received}");
            assert_eq!(received.contains("content-encoding: deflate\r\n"), is_compressed, "{bytes}");
            assert_eq!(answer.expect("an answer").status, 200);
        }
    }

    #[tokio::test]
    async fn unusable_answers_are_errors() {
        for (response, reason) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\n1"[..], "encoding br"),
            (b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: 3\r\n\r\nabc", "zlib"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1", "the connection failed"),
            (b"", "the connection failed"),
        ] {
            let (_, answer) = exchange(response, |_| {}).await;
            let error = answer.expect_err("unusable");
            assert!(error.reason.contains(reason), "{error}");
        }
    }
}
