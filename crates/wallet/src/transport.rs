//! Sending requests over HTTP: one connection pool for each face the wallet shows, no cookies, bounded bodies.

use std::collections::HashMap;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::time::Duration;

use crate::core::http::{Context, HttpRequest, HttpResponse, Method};

/// Largest answer that is read, before and after inflation, in bytes.
const MAX_ANSWER_SIZE: u64 = 64 * 1024 * 1024;
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take, not counting what the server was told to hold it back.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Request bodies from this size on are compressed.
const COMPRESS_FROM: usize = 4096;

/// No answer came: unknown whether the server did what was asked. The same request must be sent again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct TransportError {
    /// Where the request went.
    pub url: String,
    /// What happened.
    pub reason: String,
}

/// A pending answer.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, TransportError>> + Send + 'a>>;

/// Something that sends requests: the network, or a test.
pub trait Transport: Send + Sync {
    /// Sends `request` once and waits for the answer, whatever its status.
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a>;
}

/// The network.
#[derive(Clone, Debug)]
pub struct HttpTransport {
    clients: HashMap<Context, reqwest::Client>,
}

impl HttpTransport {
    /// A transport with connections of its own.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, TransportError> {
        let failed = |error: reqwest::Error| TransportError {
            url: "HTTP client".to_owned(),
            reason: describe(&error),
        };
        let mut clients = HashMap::new();
        for context in Context::ALL {
            let client = reqwest::Client::builder()
                .user_agent("batzen-wallet")
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(Duration::from_secs(20))
                .redirect(reqwest::redirect::Policy::none())
                .referer(false)
                .build()
                .map_err(failed)?;
            clients.insert(context, client);
        }
        Ok(Self { clients })
    }

    async fn send_once(&self, request: &HttpRequest) -> Result<HttpResponse, TransportError> {
        let failed = |reason: String| TransportError { url: request.url.clone(), reason };
        let client = &self.clients[&request.context];
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
        };
        let mut builder = client
            .request(method, &request.url)
            .timeout(ANSWER_TIMEOUT + Duration::from_millis(request.poll_ms))
            .header("Accept", request.accept)
            .header("Accept-Encoding", "deflate");
        if let Some((user, password)) = &request.basic_auth {
            builder = builder.basic_auth(user, Some(password));
        }
        if let Some(body) = &request.body {
            builder = builder.header("Content-Type", "application/json");
            if body.len() >= COMPRESS_FROM {
                builder = builder.header("Content-Encoding", "deflate").body(deflate(body));
            } else {
                builder = builder.body(body.clone());
            }
        }
        let mut response = builder.send().await.map_err(|error| failed(describe(&error)))?;
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let mut answer = HttpResponse {
            status: response.status().as_u16(),
            etag: header("etag"),
            content_type: header("content-type"),
            retry_after_s: header("retry-after").and_then(|text| text.trim().parse().ok()),
            body: Vec::new(),
        };
        let encoding = header("content-encoding").map(|text| text.to_ascii_lowercase());
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(describe(&error)))? {
            if answer.body.len() as u64 + chunk.len() as u64 > MAX_ANSWER_SIZE {
                return Err(failed(format!("the answer is larger than {MAX_ANSWER_SIZE} bytes")));
            }
            answer.body.extend_from_slice(&chunk);
        }
        match encoding.as_deref() {
            None | Some("identity") => {}
            Some("deflate") => answer.body = inflate(&answer.body).map_err(failed)?,
            Some(other) => return Err(failed(format!("unknown content encoding {other}"))),
        }
        Ok(answer)
    }
}

impl Transport for HttpTransport {
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a> {
        Box::pin(self.send_once(request))
    }
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::read::ZlibEncoder::new(body, flate2::Compression::fast());
    let mut out = Vec::with_capacity(body.len() / 2);
    encoder.read_to_end(&mut out).expect("compressing memory into memory does no I/O");
    out
}

fn inflate(body: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let read = flate2::read::ZlibDecoder::new(body)
        .take(MAX_ANSWER_SIZE + 1)
        .read_to_end(&mut out)
        .map_err(|error| format!("the answer does not inflate: {error}"))?;
    if read as u64 > MAX_ANSWER_SIZE {
        return Err(format!("the answer is larger than {MAX_ANSWER_SIZE} bytes"));
    }
    Ok(out)
}

/// The error with all its causes; the outermost alone often says only "error sending request".
fn describe(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "no answer in time".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else {
        "the connection failed".to_owned()
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_survive_compression() {
        let body = br#"{"a":[1,2,3]}"#.repeat(1000);
        assert_eq!(inflate(&deflate(&body)).expect("inflates"), body);
        assert!(inflate(b"not zlib").is_err());
    }
}
