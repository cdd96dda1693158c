//! HTTP/1.1 as a load generator needs it: requests as bytes that are made ahead, answers read as far as needed.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Serialize;

/// The largest answer that is accepted.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The largest head of an answer that is accepted.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The bytes of a POST with a JSON body.
///
/// # Panics
/// When `body` has no JSON form; those of the protocol have.
pub fn post(path: &str, body: &impl Serialize) -> Vec<u8> {
    let body = serde_json::to_vec(body).expect("a request of the protocol has a JSON form");
    // Host and length of every request are close to these.
    let mut out = Vec::with_capacity(path.len() + body.len() + 96);
    // Writing to memory cannot fail.
    let _ = write!(
        out,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(&body);
    out
}

/// The bytes of a GET.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// Where an answer begins and ends in what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// The HTTP status.
    pub status: u16,
    /// Where the body begins.
    pub body_start: usize,
    /// Where it ends, which is where the next answer begins.
    pub end: usize,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// Looks for a complete answer at the beginning of `received`; none: more is to come.
///
/// # Errors
/// What a server of ours never sends: no HTTP, or an answer whose length is not told.
pub fn frame(received: &[u8]) -> Result<Option<Framed>, &'static str> {
    let Some(head_end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if received.len() > HEAD_BYTES_MAX {
            Err("the head of the answer is too long")
        } else {
            Ok(None)
        };
    };
    let head = &received[..head_end];
    let mut lines = head.split(|byte| *byte == b'\n');
    let status_line = lines.next().unwrap_or_default();
    if !status_line.starts_with(b"HTTP/1.1 ") {
        return Err("the answer is not HTTP/1.1");
    }
    let status = std::str::from_utf8(status_line.get(9..12).unwrap_or_default())
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or("the answer has no status")?;
    let (mut length, mut closes) = (None, false);
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        } else if name.eq_ignore_ascii_case(b"connection") {
            closes = value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = match length {
        Some(length) => length,
        None if status == 204 || status == 304 => 0,
        None => return Err("the answer does not tell its length"),
    };
    if length > ANSWER_BYTES_MAX {
        return Err("the answer is too long");
    }
    let body_start = head_end + 4;
    let end = body_start + length;
    Ok((received.len() >= end).then_some(Framed { status, body_start, end, closes }))
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// One request on a connection of its own, for the set-up.
///
/// # Errors
/// When the server cannot be reached, does not answer within half a minute, or not in HTTP.
pub fn call(server: SocketAddr, request: &[u8]) -> io::Result<Answer> {
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
            let body = received[framed.body_start..framed.end].to_vec();
            return Ok(Answer { status: framed.status, body });
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
                assert_eq!(&text[framed.body_start..framed.end], b"hello");
                assert_eq!((framed.status, framed.end, framed.closes), (200, end, false));
            }
        }
        let closing = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert!(frame(closing).unwrap().unwrap().closes);
        assert_eq!(frame(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().status, 204);
        assert!(frame(b"HTTP/1.0 200 OK\r\n\r\n").is_err());
        assert!(frame(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(frame(&vec![b'x'; HEAD_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn requests_tell_their_length() {
        let text = String::from_utf8(post("/a", &[1, 2])).unwrap();
        assert!(text.starts_with("POST /a HTTP/1.1\r\n") && text.ends_with("Content-Length: 5\r\n\r\n[1,2]"));
    }
}
