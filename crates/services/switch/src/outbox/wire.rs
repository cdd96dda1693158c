//! Requests to one server, many at once over one connection: written together, answered in order.

use std::time::Duration;

use batzen_http::codec::{MessageLimits, Response, frame_response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest answer accepted. Its body is not used.
const LIMITS: MessageLimits = MessageLimits { head_bytes_max: 16 << 10, body_bytes_max: 64 << 10 };

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    /// Bytes that were read but not yet used.
    buffer: Vec<u8>,
}

/// The server's answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub status: u16,
    /// Whether the server closes the connection after it.
    closes: bool,
}

impl Link {
    pub(crate) async fn connect(authority: &str, patience: Duration) -> Result<Self, String> {
        match tokio::time::timeout(patience, TcpStream::connect(authority)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                Ok(Self { stream, buffer: Vec::with_capacity(4096) })
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no connection in time".to_owned()),
        }
    }

    /// Sends requests and reads their answers. If there are fewer answers than requests, the connection has
    /// ended (the error says how), and the outcome of the other requests is unknown.
    pub(crate) async fn exchange(
        &mut self,
        requests: &[u8],
        count: usize,
        patience: Duration,
    ) -> (Vec<Reply>, Option<String>) {
        let mut replies = Vec::with_capacity(count);
        let Self { stream, buffer } = self;
        let (mut reader, mut writer) = stream.split();
        let writing = async {
            writer.write_all(requests).await.map_err(|error| error.to_string())?;
            // Only the reader ends the exchange.
            std::future::pending::<Result<(), String>>().await
        };
        let reading = async {
            while replies.len() < count {
                // The time limit applies to each answer, so that a server that makes progress is waited for.
                match tokio::time::timeout(patience, read(&mut reader, buffer)).await {
                    Ok(Ok(reply)) => {
                        replies.push(reply);
                        if reply.closes {
                            return Err("the server closed the connection".to_owned());
                        }
                    }
                    Ok(Err(reason)) => return Err(reason),
                    Err(_) => return Err("no answer in time".to_owned()),
                }
            }
            Ok(())
        };
        let end = tokio::select! {
            end = reading => end,
            end = writing => end,
        };
        (replies, end.err())
    }
}

/// Reads one answer from the connection.
async fn read(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<Reply, String> {
    loop {
        if let Some((reply, used)) = parse(buffer)? {
            buffer.drain(..used);
            return Ok(reply);
        }
        if buffer.len() > LIMITS.head_bytes_max + LIMITS.body_bytes_max {
            return Err("the answer is too large".to_owned());
        }
        match stream.read_buf(buffer).await {
            Ok(0) => return Err("the server closed the connection".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// An answer at the beginning of `bytes` and its length. `None`: it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let framed = frame_response(bytes, &LIMITS).map_err(|error| error.to_string())?;
    Ok(framed.map(|Response { status, body, closes, .. }| (Reply { status, closes }, body.end)))
}

/// Splits a URL into the authority with port, and its base path. Plain HTTP only.
pub(crate) fn split_url(url: &str) -> Option<(String, String)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && !b"?#@\"<>\\".contains(&b));
    if authority.is_empty() || !plain(authority) || !plain(path) {
        return None;
    }
    let path = if path.is_empty() { String::new() } else { format!("/{}", path.trim_end_matches('/')) };
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
    });
    Some((if has_port { authority.to_owned() } else { format!("{authority}:80") }, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        let cases = [
            ("http://127.0.0.1:8080", Some(("127.0.0.1:8080", ""))),
            ("http://fsp.example/in/", Some(("fsp.example:80", "/in"))),
            ("http://[::1]:9/a/b", Some(("[::1]:9", "/a/b"))),
            ("https://fsp.example/", None),
            ("http://", None),
            ("http://a b/", None),
            ("http://user@host/", None),
        ];
        for (url, want) in cases {
            let got = split_url(url);
            assert_eq!(got.as_ref().map(|(a, p)| (a.as_str(), p.as_str())), want, "{url}");
        }
    }

    #[test]
    fn answers_are_cut_off_one_by_one() {
        let two = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n";
        let (first, used) = parse(two).unwrap().unwrap();
        assert_eq!((first.status, first.closes), (202, false));
        let (second, rest) = parse(&two[used..]).unwrap().unwrap();
        assert_eq!((second.status, second.closes, used + rest), (200, true, two.len()));
        assert_eq!(parse(&two[..used - 1]).unwrap(), None);
        assert_eq!(parse(b"HTTP/1.1 200").unwrap(), None);
        assert!(parse(b"nonsense\r\n\r\n").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n").is_err());
        let after_interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(parse(after_interim).unwrap().unwrap().0.status, 204);
    }
}
