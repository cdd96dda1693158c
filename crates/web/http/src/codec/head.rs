//! Parses a message at the start of a buffer: its head, and where it ends.

use std::ops::Range;

use httparse::{EMPTY_HEADER, Header};

type Result<T, E = FramingError> = std::result::Result<T, E>;

/// The maximum number of header fields.
const FIELDS_MAX: usize = 64;

/// Why bytes are not an acceptable message. The connection that they came from can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// The bytes are not HTTP/1.x, or its length is ambiguous.
    #[error("not a well-formed HTTP message")]
    Malformed,
    /// The head has more bytes or more fields than accepted.
    #[error("the head of the message is too large")]
    HeadTooLarge,
    /// The body has more bytes than accepted.
    #[error("the body of the message is too large")]
    BodyTooLarge,
    /// The message has a transfer coding. No program that needs this crate sends one.
    #[error("the message has no Content-Length")]
    NoLength,
}

/// A message's length, and whether its connection ends with it.
#[derive(Clone, Copy, Debug)]
struct Framing {
    head_bytes: usize,
    /// `Content-Length`, if there is one.
    content_length: Option<usize>,
    has_transfer_encoding: bool,
    /// Whether the sender closes the connection after this message.
    closes: bool,
}

/// The length of a head; `None` if it is incomplete.
fn complete(
    input: &[u8],
    parsed: Result<httparse::Status<usize>, httparse::Error>,
    head_bytes_max: usize,
) -> Result<Option<usize>> {
    match parsed {
        Ok(httparse::Status::Complete(bytes)) if bytes <= head_bytes_max => Ok(Some(bytes)),
        Ok(httparse::Status::Partial) if input.len() < head_bytes_max => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(FramingError::HeadTooLarge),
        Err(_) => Err(FramingError::Malformed),
    }
}

impl Framing {
    fn new(head_bytes: usize, version: u8, fields: &[Header<'_>]) -> Result<Self> {
        let mut framing =
            Self { head_bytes, content_length: None, has_transfer_encoding: false, closes: version == 0 };
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                let bytes = parse_length(field.value).ok_or(FramingError::Malformed)?;
                // A second length, even an equal one, is a way to hide the end of a message.
                if framing.content_length.replace(bytes).is_some() {
                    return Err(FramingError::Malformed);
                }
            } else if is("transfer-encoding") {
                framing.has_transfer_encoding = true;
            } else if is("connection") {
                let mut options = field.value.split(|byte| *byte == b',');
                framing.closes |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            }
        }
        Ok(framing)
    }

    /// The length of the body. Without `Content-Length`, there is no body.
    fn body_bytes(&self) -> Result<usize> {
        if self.has_transfer_encoding {
            return Err(FramingError::NoLength);
        }
        Ok(self.content_length.unwrap_or(0))
    }

    /// Where the body is in `input`; `None` if it is incomplete.
    fn body(&self, input: &[u8], bytes: usize, bytes_max: usize) -> Result<Option<Range<usize>>> {
        if bytes > bytes_max {
            return Err(FramingError::BodyTooLarge);
        }
        let end = self.head_bytes + bytes;
        Ok((input.len() >= end).then_some(self.head_bytes..end))
    }
}

/// A length consists of digits only: no sign, no list.
fn parse_length(value: &[u8]) -> Option<usize> {
    let digits = Some(value).filter(|text| text.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Maximum size of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageLimits {
    /// The largest head, in bytes.
    pub head_bytes_max: usize,
    /// The largest body, in bytes.
    pub body_bytes_max: usize,
}

/// A complete request at the start of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// The method.
    pub method: &'b str,
    /// The request target.
    pub target: &'b str,
    /// Where the body is. The next message starts at its end.
    pub body: Range<usize>,
    /// Whether the client closes the connection after it.
    pub closes: bool,
}

/// A complete response at the start of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// Where the body is. The next message starts at its end.
    pub body: Range<usize>,
    /// Whether the length of the body is certain, from `Content-Length` or because the status has no body.
    pub has_length: bool,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// Finds a request at the start of `input`. `None` if it is incomplete.
///
/// # Errors
/// [`FramingError`]
pub fn frame_request<'b>(input: &'b [u8], limits: &MessageLimits) -> Result<Option<Request<'b>>> {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    let Some(head_bytes) = complete(input, parsed.parse(input), limits.head_bytes_max)? else {
        return Ok(None);
    };
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(FramingError::Malformed);
    };
    let framing = Framing::new(head_bytes, version, parsed.headers)?;
    let body = framing.body(input, framing.body_bytes()?, limits.body_bytes_max)?;
    Ok(body.map(|body| Request { method, target, body, closes: framing.closes }))
}

/// Finds a response at the start of `input`, after any interim responses (1xx). `None` if it is incomplete.
///
/// # Errors
/// [`FramingError`]
pub fn frame_response(input: &[u8], limits: &MessageLimits) -> Result<Option<Response>> {
    let mut start = 0;
    loop {
        let rest = &input[start..];
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut fields);
        let Some(head_bytes) = complete(rest, parsed.parse(rest), limits.head_bytes_max)? else {
            return Ok(None);
        };
        let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
            return Err(FramingError::Malformed);
        };
        let framing = Framing::new(head_bytes, version, parsed.headers)?;
        if (100..200).contains(&status) {
            start += framing.head_bytes;
            continue;
        }
        let is_bodiless = matches!(status, 204 | 304);
        let announced = framing.body_bytes()?;
        let body = framing.body(rest, if is_bodiless { 0 } else { announced }, limits.body_bytes_max)?;
        let has_length = is_bodiless || framing.content_length.is_some();
        return Ok(body.map(|body| Response {
            status,
            body: start + body.start..start + body.end,
            has_length,
            closes: framing.closes,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MessageLimits = MessageLimits { head_bytes_max: 200, body_bytes_max: 100 };

    #[test]
    fn requests_end_where_their_length_says() {
        let text = b"PUT /transfers/1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\nConnection: a, Close\r\n\r\n";
        let first = frame_request(text, &LIMITS).unwrap().unwrap();
        assert_eq!((first.method, first.target, first.closes), ("PUT", "/transfers/1", false));
        assert_eq!(&text[first.body.clone()], b"{}");
        for cut in 0..first.body.end {
            assert_eq!(frame_request(&text[..cut], &LIMITS), Ok(None), "{cut} bytes");
        }
        let rest = &text[first.body.end..];
        let second = frame_request(rest, &LIMITS).unwrap().unwrap();
        assert_eq!((second.method, second.body, second.closes), ("GET", rest.len()..rest.len(), true));
    }

    #[test]
    fn responses_end_where_their_length_says() {
        let two = b"HTTP/1.1 202 Accepted\r\ncontent-length:2\r\n\r\n{}HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n";
        let first = frame_response(two, &LIMITS).unwrap().unwrap();
        assert_eq!((first.status, &two[first.body.clone()]), (202, &b"{}"[..]));
        assert!(first.has_length && !first.closes);
        for cut in 0..first.body.end {
            assert_eq!(frame_response(&two[..cut], &LIMITS), Ok(None), "{cut} bytes");
        }
        let rest = &two[first.body.end..];
        let second = frame_response(rest, &LIMITS).unwrap().unwrap();
        assert_eq!((second.status, second.body.end), (200, rest.len()));
        assert!(!second.has_length && second.closes);
        let after_interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let found = frame_response(after_interim, &LIMITS).unwrap().unwrap();
        assert_eq!((found.status, found.has_length), (204, true));
        assert_eq!(found.body, after_interim.len()..after_interim.len());
        let unmodified = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n";
        assert!(frame_response(unmodified, &LIMITS).unwrap().unwrap().body.is_empty(), "it has no body");
        assert!(
            frame_response(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", &LIMITS).unwrap().unwrap().closes
        );
    }

    #[test]
    fn messages_without_a_certain_end_are_refused() {
        let response =
            |fields: &str| frame_response(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").as_bytes(), &LIMITS);
        assert_eq!(response("transfer-encoding: chunked"), Err(FramingError::NoLength));
        assert_eq!(response("content-length: 101"), Err(FramingError::BodyTooLarge));
        for length in ["-1", "+1", "1, 1", "", "1x", "99999999999999999999999", "1\r\nContent-Length: 1"] {
            assert_eq!(
                response(&format!("content-length: {length}")),
                Err(FramingError::Malformed),
                "{length}"
            );
        }
        assert_eq!(response(&"a: b\r\n".repeat(FIELDS_MAX + 1)), Err(FramingError::HeadTooLarge));
        assert_eq!(frame_response(b"nonsense\r\n\r\n", &LIMITS), Err(FramingError::Malformed));
        assert_eq!(frame_request(&[b'x'; 201], &LIMITS), Err(FramingError::HeadTooLarge));
        let chunked = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(frame_request(chunked, &LIMITS), Err(FramingError::NoLength));
    }
}
