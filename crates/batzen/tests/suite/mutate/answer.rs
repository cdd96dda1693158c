//! Parses answers as an HTTP/1.1 client does, and checks what must be true of each.

use serde_json::Value;

/// The format in which a service reports errors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errors {
    /// `{"code": 22, ..}`.
    Code,
    /// `{"error": "malformed", ..}`; errors of the HTTP frame have a code instead.
    Name,
    /// `{"errorInformation": {"errorCode": "3101", ..}}`.
    Fspiop,
}

/// Error codes for coins to recoup whose blinding cannot be reproduced with the secret in the request.
const BLINDING_FAILED: [u64; 2] = [1553, 1578];

/// An answer at the beginning of the received bytes.
pub(super) struct Answer {
    pub status: u16,
    /// Its length in bytes.
    pub length: usize,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// Parses an answer. `None` if it is incomplete; `is_ended` says that no more bytes follow.
///
/// # Errors
/// The fault of the answer.
pub(super) fn read(
    input: &[u8],
    is_head: bool,
    is_ended: bool,
    errors: Errors,
) -> Result<Option<Answer>, String> {
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
    let start = end + 4;
    if status == 101 {
        // Another protocol follows.
        return Ok(Some(Answer { status, length: input.len(), closes: true }));
    }
    if is_head || matches!(status, 100..=199 | 204 | 304) {
        return Ok(Some(Answer { status, length: start, closes }));
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
            closes = true;
            (rest, rest.len())
        }
        (false, None) => return Ok(None),
    };
    if !is_encoded {
        check(status, is_json, body, errors)?;
    }
    Ok(Some(Answer { status, length: start + taken, closes }))
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
        if status == 500 && value["code"].as_u64().is_some_and(|code| BLINDING_FAILED.contains(&code)) {
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
    let value: Value = serde_json::from_slice(body)
        .map_err(|_| format!("an error with status {status} that is not JSON: {:?}", shown()))?;
    let has_code = value["code"].is_u64();
    let is_told = match errors {
        Errors::Code => has_code,
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
    assert_eq!(read(&answer(200, "{}")[..70]), Ok(false));
    for wrong in [
        answer(200, "{"),
        answer(404, ""),
        answer(404, "{\"hint\":\"no code\"}"),
        answer(500, "{\"code\":1}"),
        answer(502, "{\"code\":1553}"),
        answer(504, "{\"code\":1}"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n".to_owned(),
        "garbage\r\n\r\n".to_owned(),
    ] {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
}
