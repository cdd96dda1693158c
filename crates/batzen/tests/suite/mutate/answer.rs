//! Parses answers as an HTTP/1.1 client does, and checks what must be true of each.

use batzen_protocol::ErrorCode;
use serde_json::Value;

/// The format in which a service reports errors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errors {
    /// `{"code": 22, ..}`.
    Code,
    /// The same, or a page if a person uses the endpoint in a browser.
    CodeOrPage,
    /// `{"error": "malformed", ..}`; errors of the HTTP frame have a code instead.
    Name,
    /// `{"errorInformation": {"errorCode": "3101", ..}}`.
    Fspiop,
}

/// Error codes for coins to recoup whose blinding cannot be reproduced with the secret in the request.
const BLINDING_FAILED: [u32; 2] = [1553, 1578];

/// Statuses of pages for people whom an identity provider or a shop turns away, or who have mistyped an address.
const PAGES: [u16; 6] = [400, 402, 403, 404, 405, 410];

/// An answer at the beginning of the received bytes.
pub(super) struct Answer {
    pub status: u16,
    /// Its length in bytes.
    pub length: usize,
    /// Whether the server closes the connection after it.
    pub closes: bool,
    pub head: String,
    /// Empty if there is none.
    pub body: Vec<u8>,
    is_json: bool,
    /// Whether the body is missing or compressed, and so not checked.
    is_bare: bool,
}

impl Answer {
    /// A header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Parses an answer. `None` if it is incomplete; `is_ended` says that no more bytes follow.
///
/// # Errors
/// The fault of the answer.
pub(super) fn parse(input: &[u8], is_head: bool, is_ended: bool) -> Result<Option<Answer>, String> {
    let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&input[..end]).map_err(|_| "a head that is not UTF-8".to_owned())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let status = status.strip_prefix("HTTP/1.1 ").or_else(|| status.strip_prefix("HTTP/1.0 "));
    let status: u16 = status
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .ok_or_else(|| format!("no status line: {head}"))?;
    let (mut length, mut is_chunked, mut closes, mut is_json, mut is_encoded) =
        (None, false, false, false, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| format!("no header: {line}"))?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_ascii_lowercase());
        match name.as_str() {
            "content-length" => length = Some(value.parse().map_err(|_| format!("a bad length: {line}"))?),
            "transfer-encoding" => is_chunked = value == "chunked",
            "connection" => closes = value == "close",
            "content-type" => is_json = value.starts_with("application/json") || value.contains("+json"),
            "content-encoding" => is_encoded = value != "identity",
            _ => {}
        }
    }
    let (start, head) = (end + 4, head.to_owned());
    let mut answer = Answer { status, length: start, closes, is_json, is_bare: true, head, body: Vec::new() };
    if status == 101 {
        // Another protocol follows.
        return Ok(Some(Answer { length: input.len(), closes: true, ..answer }));
    }
    if is_head || matches!(status, 100..=199 | 204 | 304) {
        return Ok(Some(answer));
    }
    let rest = &input[start..];
    let mut joined = Vec::new();
    let (body, taken) = match (is_chunked, length) {
        (true, _) => match chunks(rest, &mut joined)? {
            Some(taken) => (&joined[..], taken),
            None => return Ok(None),
        },
        (false, Some(length)) => match rest.get(..length) {
            Some(body) => (body, length),
            None => return Ok(None),
        },
        (false, None) if is_ended => {
            answer.closes = true;
            (rest, rest.len())
        }
        (false, None) => return Ok(None),
    };
    answer.length += taken;
    answer.body = body.to_vec();
    answer.is_bare = is_encoded;
    Ok(Some(answer))
}

/// Parses an answer, and checks it.
///
/// # Errors
/// The fault of the answer.
pub(super) fn read(
    input: &[u8],
    is_head: bool,
    is_ended: bool,
    errors: Errors,
) -> Result<Option<Answer>, String> {
    let answer = parse(input, is_head, is_ended)?;
    if let Some(answer) = answer.as_ref().filter(|answer| !answer.is_bare) {
        check(answer.status, answer.is_json, &answer.body, errors)?;
    }
    Ok(answer)
}

/// The statuses of the answers on a connection that has ended.
pub(super) fn statuses(mut input: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Ok(Some(answer)) = parse(input, false, true) {
        input = &input[answer.length..];
        if answer.status != 100 {
            statuses.push(answer.status);
        }
    }
    statuses
}

/// Joins the chunks of a body. `None` if it is incomplete.
fn chunks(mut rest: &[u8], joined: &mut Vec<u8>) -> Result<Option<usize>, String> {
    let all = rest.len();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let size = size.ok_or("a chunk without a size")?;
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { return Ok(None) };
        joined.extend_from_slice(chunk);
        match rest.get(end + 2 + size..end + 4 + size) {
            None => return Ok(None),
            Some(b"\r\n") => rest = &rest[end + 4 + size..],
            Some(_) => return Err("a chunk without an end".to_owned()),
        }
        if size == 0 {
            return Ok(Some(all - rest.len()));
        }
    }
}

fn check(status: u16, is_json: bool, body: &[u8], errors: Errors) -> Result<(), String> {
    let shown = || String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
    if status >= 500 && status != 503 {
        // The protocol uses this status although the fault is the client's.
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let code = value["code"].as_u64().and_then(|code| u32::try_from(code).ok()).unwrap_or_default();
        if status == 500 && BLINDING_FAILED.contains(&code) {
            return Ok(());
        }
        // A service that the request names, such as the exchange of a coin, has failed.
        if matches!(status, 502 | 504) && ErrorCode::from_u32(code).http_status() == status {
            return Ok(());
        }
        return Err(format!("status {status}: {}", shown()));
    }
    if status < 400 {
        if is_json && serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
            return Err(format!("an answer with status {status} that is not JSON: {}", shown()));
        }
        return Ok(());
    }
    if matches!(errors, Errors::CodeOrPage) && body.starts_with(b"<") && PAGES.contains(&status) {
        return Ok(());
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|_| format!("an error with status {status} that is not JSON: {:?}", shown()))?;
    // `/ready` says what is not ready.
    let has_code = value["code"].is_u64() || (status == 503 && value["checks"].is_array());
    let is_told = match errors {
        Errors::Code | Errors::CodeOrPage => has_code,
        Errors::Name => has_code || value["error"].is_string(),
        Errors::Fspiop => has_code || value["errorInformation"]["errorCode"].is_string(),
    };
    if is_json && is_told {
        Ok(())
    } else {
        Err(format!("an error with status {status} without a code: {}", shown()))
    }
}

/// Invalid answers are found, and valid ones are accepted.
#[test]
fn wrong_answers_are_found() {
    let answer = |status: u16, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let read = |text: &str| read(text.as_bytes(), false, false, Errors::Code).map(|answer| answer.is_some());
    assert_eq!(read(&answer(200, "{}")), Ok(true));
    assert_eq!(read(&answer(404, "{\"code\":21}")), Ok(true));
    assert_eq!(read(&answer(503, "{\"code\":1}")), Ok(true));
    assert_eq!(read(&answer(500, "{\"code\":1553}")), Ok(true));
    assert_eq!(read(&answer(502, "{\"code\":2403}")), Ok(true));
    assert_eq!(read(&answer(200, "{}")[..70]), Ok(false));
    for wrong in [
        answer(200, "{"),
        answer(404, ""),
        answer(404, "{\"hint\":\"no code\"}"),
        answer(500, "{\"code\":1}"),
        answer(502, "{\"code\":1553}"),
        answer(500, "{\"code\":2403}"),
        answer(504, "{\"code\":1}"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n".to_owned(),
        "garbage\r\n\r\n".to_owned(),
    ] {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
}
