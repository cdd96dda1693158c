//! HTTP/1.1 as a load generator needs it: requests are bytes prepared in advance, and answers are parsed no
//! further than necessary.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use batzen_http::codec::{FramingError, MessageLimits, frame_response};
use serde::Serialize;

pub(crate) use batzen_http::codec::Response as Framed;

/// The largest accepted answer.
const LIMITS: MessageLimits = MessageLimits { head_bytes_max: 64 << 10, body_bytes_max: 64 << 20 };

/// The bytes of a POST with a JSON body.
pub(crate) fn post(path: &str, body: &impl Serialize) -> Vec<u8> {
    with_body("POST", path, body)
}

/// The bytes of a PUT with a JSON body.
pub(crate) fn put(path: &str, body: &impl Serialize) -> Vec<u8> {
    with_body("PUT", path, body)
}

fn with_body(method: &str, path: &str, body: &impl Serialize) -> Vec<u8> {
    let body = serde_json::to_vec(body).expect("a request of the protocol has a JSON form");
    // Host and length of every request are close to these.
    let mut out = Vec::with_capacity(path.len() + body.len() + 96);
    // Writing to memory cannot fail.
    let _ = write!(
        out,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(&body);
    out
}

/// A request with one more header. Its bytes must be those of a request.
pub(crate) fn with_header(mut request: Vec<u8>, name: &str, value: &str) -> Vec<u8> {
    let end_of_line = request.windows(2).position(|pair| pair == b"\r\n").map_or(0, |at| at + 2);
    request.splice(end_of_line..end_of_line, format!("{name}: {value}\r\n").into_bytes());
    request
}

/// The bytes of a GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// Finds a complete answer at the beginning of `received`. `None`: it is incomplete.
///
/// # Errors
/// When the bytes are not HTTP, or an answer has no definite length. Our servers never send that.
pub(crate) fn frame(received: &[u8]) -> Result<Option<Framed>, FramingError> {
    let Some(framed) = frame_response(received, &LIMITS)? else { return Ok(None) };
    if framed.has_length { Ok(Some(framed)) } else { Err(FramingError::NoLength) }
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// Everything before the body.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first header field of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Sends one request on its own connection, for the set-up.
///
/// # Errors
/// When the server cannot be reached, does not answer within half a minute, or does not answer in HTTP.
pub(crate) fn call(server: SocketAddr, request: &[u8]) -> io::Result<Answer> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(request)?;
    let mut received = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&part[..count]);
        if let Some(framed) = frame(&received).map_err(io::Error::other)? {
            let head = String::from_utf8_lossy(&received[..framed.body.start]).into_owned();
            return Ok(Answer { status: framed.status, head, body: received[framed.body].to_vec() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_framed() {
        let text =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 4";
        for cut in 0..text.len() {
            let framed = frame(&text[..cut]).unwrap();
            let end = text.len() - 10;
            assert_eq!(framed.is_some(), cut >= end, "{cut}");
            if let Some(framed) = framed {
                assert_eq!(&text[framed.body.clone()], b"hello");
                assert_eq!((framed.status, framed.body.end, framed.closes), (200, end, false));
            }
        }
        let closing = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert!(frame(closing).unwrap().unwrap().closes);
        assert_eq!(frame(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().status, 204);
        assert!(frame(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(frame(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(frame(&vec![b'x'; LIMITS.head_bytes_max + 1]).is_err());
    }

    #[test]
    fn requests_have_a_content_length() {
        let text = String::from_utf8(post("/a", &[1, 2])).unwrap();
        assert!(text.starts_with("POST /a HTTP/1.1\r\n") && text.ends_with("Content-Length: 5\r\n\r\n[1,2]"));
        let text = String::from_utf8(with_header(get("/a"), "Authorization", "Bearer x")).unwrap();
        assert_eq!(text, "GET /a HTTP/1.1\r\nAuthorization: Bearer x\r\nHost: localhost\r\n\r\n");
    }
}
