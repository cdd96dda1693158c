//! Messages of concurrent requests ([decision 6](../../../docs/decisions/0006-concurrent-requests.md)): the
//! protocol that our own programs change to with `Upgrade: batzen-concurrent` on `OPTIONS *`.
//!
//! Messages keep the form of HTTP/1.1, with two restrictions: requests are `POST`s, and bodies have a
//! `Content-Length`. Anything else ends the connection. (The response to a `GET` may be large or late, and
//! would keep the responses after it in memory for as long.)

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::codec::head::{
    EMPTY_FIELD, Field, Framing, FramingError, parse_request_head, parse_response_head,
};

/// The protocol's name in `Upgrade`.
pub const PROTOCOL: &str = "batzen-concurrent";
/// How many requests may be under way on one connection. The server leaves further requests in the socket.
pub const IN_FLIGHT_MAX: usize = 128;
/// The largest head of a message, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// The largest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// The maximum number of bytes for the length of the body and the end of a head.
pub const LENGTH_BYTES_MAX: usize = 64;

/// Header fields of one message.
const FIELDS_MAX: usize = 32;

/// A request with its body.
#[derive(Debug)]
pub struct RequestMessage {
    /// The method: `POST`.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A response with its body.
#[derive(Debug)]
pub struct ResponseMessage {
    /// The status.
    pub status: u16,
    /// The header fields; none if the status is 200.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// What [`take_response`] found.
#[derive(Debug)]
pub enum TakenResponse {
    /// A complete response.
    Complete(ResponseMessage),
    /// A response whose body is too large. Its head is taken, and this many bytes of body follow.
    TooLarge(usize),
}

/// The positions of a header field's name and value.
type FieldRanges = (Range<usize>, Range<usize>);

/// Takes the first request from `input`. `None` if it is incomplete.
///
/// # Errors
/// The bytes are not a request of this protocol: close the connection.
pub fn take_request(input: &mut BytesMut) -> Result<Option<RequestMessage>, FramingError> {
    let mut fields = [EMPTY_FIELD; FIELDS_MAX];
    let Some(head) = parse_request_head(input, &mut fields, HEAD_BYTES_MAX)? else { return Ok(None) };
    if head.method != "POST" || !head.target.starts_with('/') || !head.is_http_11 {
        return Err(FramingError::Malformed);
    }
    let (head_bytes, body_bytes) = (head.framing.head_bytes, body_bytes(&head.framing)?);
    if body_bytes > BODY_BYTES_MAX {
        return Err(FramingError::BodyTooLarge);
    }
    if input.len() - head_bytes < body_bytes {
        return Ok(None);
    }
    let target = range(input, head.target.as_bytes());
    let fields: Vec<FieldRanges> = head.fields.iter().map(|field| ranges(input, field)).collect();
    // A copy: a slice would keep all of the input in memory as long as the request is in progress.
    let mut head = Bytes::copy_from_slice(&input[..head_bytes + body_bytes]);
    input.advance(head.len());
    let body = head.split_off(head_bytes);
    let uri = Uri::from_maybe_shared(head.slice(target)).map_err(|_| FramingError::Malformed)?;
    Ok(Some(RequestMessage { method: Method::POST, uri, headers: headers(&head, fields)?, body }))
}

/// Takes the first response from `input`. `None` if it is incomplete. If the status is 200, only the body is
/// kept.
///
/// # Errors
/// The bytes are not a response of this protocol: close the connection. There are no interim responses (1xx):
/// each request has one response.
pub fn take_response(
    input: &mut BytesMut,
    body_bytes_max: usize,
) -> Result<Option<TakenResponse>, FramingError> {
    let mut fields = [EMPTY_FIELD; FIELDS_MAX];
    let Some(head) = parse_response_head(input, &mut fields, HEAD_BYTES_MAX)? else { return Ok(None) };
    let status = head.status;
    if status < 200 {
        return Err(FramingError::Malformed);
    }
    let (head_bytes, body_bytes) = (head.framing.head_bytes, body_bytes(&head.framing)?);
    if body_bytes > body_bytes_max {
        input.advance(head_bytes);
        return Ok(Some(TakenResponse::TooLarge(body_bytes)));
    }
    if input.len() - head_bytes < body_bytes {
        return Ok(None);
    }
    let kept = if status == StatusCode::OK.as_u16() { &[] } else { head.fields };
    let fields: Vec<FieldRanges> = kept.iter().map(|field| ranges(input, field)).collect();
    let head = input.split_to(head_bytes).freeze();
    let body = input.split_to(body_bytes).freeze();
    Ok(Some(TakenResponse::Complete(ResponseMessage { status, headers: headers(&head, fields)?, body })))
}

/// The length of the body. Only `Content-Length` may decide where a message ends.
fn body_bytes(framing: &Framing) -> Result<usize, FramingError> {
    if framing.has_transfer_encoding || framing.has_connection_fields {
        return Err(FramingError::Malformed);
    }
    framing.body_bytes()
}

/// The position of `part` in `input`.
fn range(input: &[u8], part: &[u8]) -> Range<usize> {
    let begin = part.as_ptr() as usize - input.as_ptr() as usize;
    begin..begin + part.len()
}

fn ranges(input: &[u8], field: &Field<'_>) -> FieldRanges {
    (range(input, field.name.as_bytes()), range(input, field.value))
}

fn headers(head: &Bytes, fields: Vec<FieldRanges>) -> Result<HeaderMap, FramingError> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(&head[name]).map_err(|_| FramingError::Malformed)?;
        let value = HeaderValue::from_maybe_shared(head.slice(value)).map_err(|_| FramingError::Malformed)?;
        map.append(name, value);
    }
    Ok(map)
}

/// Writes the head of a `POST` without its last field, the length of the body. [`put_request`] completes it.
pub fn put_request_head<'h>(
    output: &mut BytesMut,
    target: &str,
    host: &str,
    fields: impl IntoIterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) {
    for part in ["POST ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
        output.extend_from_slice(part.as_bytes());
    }
    fields.into_iter().for_each(|(name, value)| put_field(output, name, value));
}

/// Writes a request from a head of [`put_request_head`] and a body.
pub fn put_request(output: &mut BytesMut, head: &[u8], body: &[u8]) {
    output.reserve(head.len() + body.len() + LENGTH_BYTES_MAX);
    output.extend_from_slice(head);
    put_length(output, body.len());
    output.extend_from_slice(body);
}

/// Writes the request that asks a server to change to this protocol.
pub fn put_upgrade_request(output: &mut BytesMut, host: &str, authorization: Option<&HeaderValue>) {
    let parts =
        ["OPTIONS * HTTP/1.1\r\nhost: ", host, "\r\nconnection: upgrade\r\nupgrade: ", PROTOCOL, "\r\n"];
    for part in parts {
        output.extend_from_slice(part.as_bytes());
    }
    if let Some(authorization) = authorization {
        put_field(output, &http::header::AUTHORIZATION, authorization);
    }
    output.extend_from_slice(b"\r\n");
}

/// Writes a response. Fields that only browsers and proxies need are left out.
pub fn put_response<'h>(
    output: &mut BytesMut,
    status: u16,
    fields: impl IntoIterator<Item = (&'h HeaderName, &'h HeaderValue)>,
    body: &[u8],
) {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    output.reserve(128 + body.len());
    if status == StatusCode::OK {
        output.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let reason = status.canonical_reason().unwrap_or("");
        output.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes());
    }
    fields.into_iter().for_each(|(name, value)| put_field(output, name, value));
    put_length(output, body.len());
    output.extend_from_slice(body);
}

fn put_field(output: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        output.extend_from_slice(part);
    }
}

/// Ends a head with the length of the body.
fn put_length(output: &mut BytesMut, bytes: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = bytes;
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for part in [b"content-length: ".as_slice(), &digits[at..], b"\r\n\r\n"] {
        output.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    fn requests(text: &str) -> Result<Vec<RequestMessage>, FramingError> {
        let mut input = BytesMut::from(text.as_bytes());
        let mut taken = Vec::new();
        while let Some(request) = take_request(&mut input)? {
            taken.push(request);
        }
        Ok(taken)
    }

    const TWO: &str =
        "POST /a/b?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcPOST / HTTP/1.1\r\n\r\n";

    #[test]
    fn pipelined_requests_are_taken_however_they_are_split() {
        for cut in 0..=TWO.len() {
            let mut input = BytesMut::new();
            let mut taken = Vec::new();
            for part in [&TWO[..cut], &TWO[cut..]] {
                input.extend_from_slice(part.as_bytes());
                while let Some(request) = take_request(&mut input).unwrap() {
                    taken.push(request);
                }
            }
            assert!(input.is_empty());
            let [first, second] = &taken[..] else { panic!("cut at {cut}: {taken:?}") };
            assert_eq!((first.uri.to_string().as_str(), &first.body[..]), ("/a/b?c=d", &b"abc"[..]));
            assert_eq!((&first.method, first.headers["host"].as_bytes()), (&Method::POST, &b"x"[..]));
            assert_eq!((&second.method, second.uri.path(), second.body.len()), (&Method::POST, "/", 0));
        }
    }

    #[test]
    fn a_taken_request_does_not_keep_the_input_buffer_in_memory() {
        let mut input = BytesMut::with_capacity(1 << 16);
        input.extend_from_slice(TWO.as_bytes());
        let before = input.as_ptr();
        let first = take_request(&mut input).unwrap().unwrap();
        let second = take_request(&mut input).unwrap().unwrap();
        assert!(input.is_empty() && input.try_reclaim(1 << 16), "nothing else refers to the buffer");
        input.extend_from_slice(TWO.as_bytes());
        assert_eq!((input.as_ptr(), first.body.len() + second.body.len()), (before, 3));
    }

    #[test]
    fn fields_that_could_hide_the_end_of_a_request_are_refused() {
        let with = |field: &str| requests(&format!("POST / HTTP/1.1\r\n{field}\r\n\r\nabc")).unwrap_err();
        for field in [
            "transfer-encoding: chunked",
            "content-length: 3\r\ncontent-length: 3",
            "content-length: +3",
            "content-length: -1",
            "content-length: 3, 3",
            "content-length: ",
            "content-length: 99999999999999999999999",
            "connection: close",
            "expect: 100-continue",
            "upgrade: h2c",
            "a : b",
            " folded",
        ] {
            let code = with(field);
            assert!(matches!(code, FramingError::Malformed), "{field}: {code:?}");
        }
        let too_long = BODY_BYTES_MAX + 1;
        assert!(matches!(with(&format!("content-length: {too_long}")), FramingError::BodyTooLarge));
        assert!(matches!(with(&format!("a: {}", "x".repeat(HEAD_BYTES_MAX))), FramingError::HeadTooLarge));
        assert!(matches!(with(&"a: b\r\n".repeat(40)), FramingError::HeadTooLarge));
        for line in [
            "GET / HTTP/1.1",
            "PUT / HTTP/1.1",
            "POST http://x/ HTTP/1.1",
            "POST / HTTP/1.0",
            "OPTIONS * HTTP/1.1",
            "?",
        ] {
            assert!(requests(&format!("{line}\r\n\r\n")).is_err(), "{line}");
        }
        let endless = "x".repeat(HEAD_BYTES_MAX);
        assert!(requests(&format!("POST /{endless}")).is_err());
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        let json = HeaderValue::from_static("application/json");
        let (mut head, mut bytes) = (BytesMut::new(), BytesMut::new());
        put_request_head(&mut head, "/a?b=c", "bank.example", [(&header::CONTENT_TYPE, &json)]);
        for body in ["{}", ""] {
            put_request(&mut bytes, &head, body.as_bytes());
        }
        for body in ["{}", ""] {
            let read = take_request(&mut bytes).unwrap().unwrap();
            assert_eq!((read.uri.to_string().as_str(), &read.body[..]), ("/a?b=c", body.as_bytes()));
            assert_eq!(
                (&read.headers[header::HOST], &read.headers[header::CONTENT_TYPE]),
                (&HeaderValue::from_static("bank.example"), &json)
            );
        }
        assert!(bytes.is_empty());
    }

    #[test]
    fn responses_are_read_as_they_are_written() {
        let json = HeaderValue::from_static("application/json");
        let retry_after = HeaderValue::from_static("7");
        let large = "x".repeat(1234);
        let responses = [
            (200, vec![(&header::CONTENT_TYPE, &json)], "{}"),
            (204, vec![], ""),
            (503, vec![(&header::CONTENT_TYPE, &json), (&header::RETRY_AFTER, &retry_after)], "later"),
            (200, vec![], large.as_str()),
        ];
        let mut bytes = BytesMut::new();
        for (status, fields, body) in &responses {
            put_response(&mut bytes, *status, fields.clone(), body.as_bytes());
        }
        for (status, fields, body) in responses {
            let Some(TakenResponse::Complete(read)) = take_response(&mut bytes, 2_000).unwrap() else {
                panic!("incomplete")
            };
            assert_eq!((read.status, &read.body[..]), (status, body.as_bytes()));
            let is_retry_after = |field: &&(&HeaderName, &HeaderValue)| field.0 == header::RETRY_AFTER;
            let expected = fields.iter().find(is_retry_after).map(|field| field.1);
            assert_eq!(read.headers.get(header::RETRY_AFTER), expected);
        }
        assert!(bytes.is_empty() && take_response(&mut bytes, 2_000).unwrap().is_none());
        put_response(&mut bytes, 200, [], b"123");
        assert!(matches!(take_response(&mut bytes, 2), Ok(Some(TakenResponse::TooLarge(3)))));
        assert_eq!(bytes, "123", "the body is left");
        for nonsense in ["HTTP/1.1 20", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1234", ""] {
            assert!(take_response(&mut BytesMut::from(nonsense.as_bytes()), 9).unwrap().is_none());
        }
        for nonsense in [
            "nonsense",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 001 \r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 102 Processing\r\n\r\n",
        ] {
            assert!(take_response(&mut BytesMut::from(nonsense.as_bytes()), 9).is_err(), "{nonsense}");
        }
    }
}
