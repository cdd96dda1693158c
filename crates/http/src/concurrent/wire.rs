//! Requests and answers in bytes.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use crate::Response;
use crate::codes::FrameError;

/// Header fields of one message.
const FIELDS_MAX: usize = 32;
/// The largest head of a message, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// The largest body of a request, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// A whole request.
#[derive(Debug)]
pub(crate) struct WholeRequest {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct WholeAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What came as an answer.
#[derive(Debug)]
pub(super) enum Taken {
    Whole(WholeAnswer),
    /// One that is larger than wanted: its head is taken, so many bytes of body follow.
    TooLarge(usize),
}

/// Where name and value of a header field are.
type Field = (Range<usize>, Range<usize>);

/// Takes the first request off `input`. None: it is not whole yet.
///
/// # Errors
/// It is no request of this protocol: the connection is to be closed.
pub(super) fn take_request(input: &mut BytesMut) -> Result<Option<WholeRequest>, FrameError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    let Some(head_bytes) = head_bytes(input, parsed.parse(input))? else { return Ok(None) };
    let method = match parsed.method {
        Some("POST") => Method::POST,
        _ => return Err(FrameError::Malformed),
    };
    let target = parsed.path.filter(|target| target.starts_with('/')).ok_or(FrameError::Malformed)?;
    if parsed.version != Some(1) {
        return Err(FrameError::Malformed);
    }
    let body_bytes = body_bytes(parsed.headers)?;
    if body_bytes > BODY_BYTES_MAX {
        return Err(FrameError::UploadExceedsLimit);
    }
    if input.len() - head_bytes < body_bytes {
        return Ok(None);
    }
    let target = range(input, target.as_bytes());
    let fields: Vec<Field> = parsed.headers.iter().map(|field| places(input, field)).collect();
    // A copy: a slice would keep all of the input in memory for as long as the request is worked on.
    let mut head = Bytes::copy_from_slice(&input[..head_bytes + body_bytes]);
    input.advance(head.len());
    let body = head.split_off(head_bytes);
    let uri = Uri::from_maybe_shared(head.slice(target)).map_err(|_| FrameError::Malformed)?;
    Ok(Some(WholeRequest { method, uri, headers: headers(&head, fields)?, body }))
}

/// Takes the first answer off `input`. None: it is not whole yet. Of a good answer (200) only the body is kept.
///
/// # Errors
/// It is no answer of this protocol: the connection is to be closed. Interim answers (1xx) are none: a request has one answer.
pub(super) fn take_answer(input: &mut BytesMut, body_bytes_max: usize) -> Result<Option<Taken>, FrameError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let Some(head_bytes) = head_bytes(input, parsed.parse(input))? else { return Ok(None) };
    let status = parsed.code.filter(|code| *code >= 200).ok_or(FrameError::Malformed)?;
    let body_bytes = body_bytes(parsed.headers)?;
    if body_bytes > body_bytes_max {
        input.advance(head_bytes);
        return Ok(Some(Taken::TooLarge(body_bytes)));
    }
    if input.len() - head_bytes < body_bytes {
        return Ok(None);
    }
    let is_good = status == StatusCode::OK.as_u16();
    let kept = if is_good { &[] } else { &*parsed.headers };
    let fields: Vec<Field> = kept.iter().map(|field| places(input, field)).collect();
    let head = input.split_to(head_bytes).freeze();
    let body = input.split_to(body_bytes).freeze();
    Ok(Some(Taken::Whole(WholeAnswer { status, headers: headers(&head, fields)?, body })))
}

/// The length of a head; none if it is not whole.
fn head_bytes(
    input: &[u8],
    parsed: Result<httparse::Status<usize>, httparse::Error>,
) -> Result<Option<usize>, FrameError> {
    match parsed {
        Ok(httparse::Status::Complete(bytes)) if bytes <= HEAD_BYTES_MAX => Ok(Some(bytes)),
        Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(FrameError::HeaderTooLarge),
        Err(_) => Err(FrameError::Malformed),
    }
}

/// The length of the body that a head announces. Nothing else may change where a message ends.
fn body_bytes(fields: &[httparse::Header<'_>]) -> Result<usize, FrameError> {
    let mut length = None;
    for field in fields {
        let is = |name: &HeaderName| field.name.eq_ignore_ascii_case(name.as_str());
        if is(&header::CONTENT_LENGTH) {
            let digits = Some(field.value).filter(|text| text.iter().all(u8::is_ascii_digit));
            let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let bytes = text.and_then(|text| text.parse::<usize>().ok()).ok_or(FrameError::Malformed)?;
            if length.replace(bytes).is_some() {
                return Err(FrameError::Malformed);
            }
        } else if [header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE, header::EXPECT]
            .iter()
            .any(is)
        {
            return Err(FrameError::Malformed);
        }
    }
    Ok(length.unwrap_or(0))
}

/// Where a part of `input` is.
fn range(input: &[u8], part: &[u8]) -> Range<usize> {
    let begin = part.as_ptr() as usize - input.as_ptr() as usize;
    begin..begin + part.len()
}

fn places(input: &[u8], field: &httparse::Header<'_>) -> Field {
    (range(input, field.name.as_bytes()), range(input, field.value))
}

fn headers(head: &Bytes, fields: Vec<Field>) -> Result<HeaderMap, FrameError> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(&head[name]).map_err(|_| FrameError::Malformed)?;
        let value = HeaderValue::from_maybe_shared(head.slice(value)).map_err(|_| FrameError::Malformed)?;
        map.append(name, value);
    }
    Ok(map)
}

/// Writes an answer. What only browsers and proxies need of one is left out.
pub(super) fn put_answer(output: &mut BytesMut, response: &Response) {
    let Response { status, headers, body, .. } = response;
    let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    output.reserve(128 + body.len());
    if status == StatusCode::OK {
        output.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let reason = status.canonical_reason().unwrap_or("");
        output.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes());
    }
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            output.extend_from_slice(part);
        }
    }
    put_length(output, body.len());
    output.extend_from_slice(body);
}

/// Ends a head with the length of the body.
pub(super) fn put_length(output: &mut BytesMut, bytes: usize) {
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
    use super::*;

    fn requests(text: &str) -> Result<Vec<WholeRequest>, FrameError> {
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
    fn requests_follow_each_other_however_they_are_cut() {
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
    fn a_request_keeps_no_more_in_memory_than_itself() {
        let mut input = BytesMut::with_capacity(1 << 16);
        input.extend_from_slice(TWO.as_bytes());
        let before = input.as_ptr();
        let first = take_request(&mut input).unwrap().unwrap();
        let second = take_request(&mut input).unwrap().unwrap();
        assert!(input.is_empty() && input.try_reclaim(1 << 16), "the buffer is nobody else's");
        input.extend_from_slice(TWO.as_bytes());
        assert_eq!((input.as_ptr(), first.body.len() + second.body.len()), (before, 3));
    }

    #[test]
    fn whatever_may_hide_the_end_of_a_request_is_refused() {
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
            assert!(matches!(code, FrameError::Malformed), "{field}: {code:?}");
        }
        let too_long = BODY_BYTES_MAX + 1;
        assert!(matches!(with(&format!("content-length: {too_long}")), FrameError::UploadExceedsLimit));
        assert!(matches!(with(&format!("a: {}", "x".repeat(HEAD_BYTES_MAX))), FrameError::HeaderTooLarge));
        assert!(matches!(with(&"a: b\r\n".repeat(40)), FrameError::HeaderTooLarge));
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
    fn answers_are_read_as_they_are_written() {
        let mut bytes = BytesMut::new();
        let answers = [
            Response::bytes(200, "application/json", "{}"),
            Response::empty(204),
            Response::text(503, "later").with_header(header::RETRY_AFTER, "7"),
            Response::text(200, "x".repeat(1234)),
        ];
        answers.iter().for_each(|answer| put_answer(&mut bytes, answer));
        for answer in answers {
            let Some(Taken::Whole(read)) = take_answer(&mut bytes, 2_000).unwrap() else {
                panic!("not whole")
            };
            assert_eq!((read.status, &read.body), (answer.status, &answer.body));
            let retry_after = answer.header(&header::RETRY_AFTER).map(str::as_bytes);
            assert_eq!(read.headers.get(header::RETRY_AFTER).map(HeaderValue::as_bytes), retry_after);
        }
        assert!(bytes.is_empty() && take_answer(&mut bytes, 2_000).unwrap().is_none());
        put_answer(&mut bytes, &Response::text(200, "123"));
        assert!(matches!(take_answer(&mut bytes, 2), Ok(Some(Taken::TooLarge(3)))));
        assert_eq!(bytes, "123", "the body is left");
        for nonsense in ["HTTP/1.1 20", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1234", ""] {
            assert!(take_answer(&mut BytesMut::from(nonsense.as_bytes()), 9).unwrap().is_none());
        }
        for nonsense in [
            "nonsense",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 001 \r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 102 Processing\r\n\r\n",
        ] {
            assert!(take_answer(&mut BytesMut::from(nonsense.as_bytes()), 9).is_err(), "{nonsense}");
        }
    }
}
