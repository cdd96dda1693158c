//! HTTP/1.1 in buffers: where a message begins and ends. Both sides here are ours and the switch's: lengths are always told.

/// The largest head that is accepted.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The largest body that is accepted.
const BODY_BYTES_MAX: usize = 5 << 20;

/// A whole message at the beginning of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framed<'a> {
    /// Request line or status line.
    pub first: &'a [u8],
    /// The body.
    pub body: &'a [u8],
    /// Where the next message begins.
    pub end: usize,
    /// Whether the connection is closed after it.
    pub closes: bool,
}

/// Looks for a whole message; none: more is to come.
///
/// # Errors
/// What cannot be a message, as a text for the log of failures.
pub(crate) fn frame(received: &[u8]) -> Result<Option<Framed<'_>>, &'static str> {
    let mut line_start = 0;
    let mut first: Option<&[u8]> = None;
    let (mut length, mut closes) = (0, false);
    loop {
        let Some(line_length) = received[line_start..].iter().position(|byte| *byte == b'\n') else {
            return if received.len() > HEAD_BYTES_MAX { Err("the head is too long") } else { Ok(None) };
        };
        let line = received[line_start..line_start + line_length].trim_ascii_end();
        line_start += line_length + 1;
        let Some(first) = first else {
            first = Some(line);
            continue;
        };
        if line.is_empty() {
            if length > BODY_BYTES_MAX {
                return Err("the body is too long");
            }
            let end = line_start + length;
            return Ok(received.get(line_start..end).map(|body| Framed { first, body, end, closes }));
        }
        // Two names matter; their first letters tell them from nearly all others.
        match line[0] | 0x20 {
            b'c' => {
                let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                if name.eq_ignore_ascii_case(b"content-length") {
                    length = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok())
                        .ok_or("the length is no number")?;
                } else if name.eq_ignore_ascii_case(b"connection") {
                    closes = value.eq_ignore_ascii_case(b"close");
                }
            }
            b't' if line.len() > 18 && line[..18].eq_ignore_ascii_case(b"transfer-encoding:") => {
                return Err("the length is not told");
            }
            _ => {}
        }
    }
}

/// The status of an answer.
pub(crate) fn status(first: &[u8]) -> Option<u16> {
    let digits = first.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Method and path of a request.
pub(crate) fn target(first: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut words = first.split(|byte| *byte == b' ');
    Some((words.next()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_one_after_the_other() {
        let text = b"PUT /transfers/1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 202 Accepted\r\ncontent-length:0\r\nConnection: close\r\n\r\n";
        let first = frame(text).unwrap().unwrap();
        assert_eq!(
            (target(first.first), first.body),
            (Some((&b"PUT"[..], &b"/transfers/1"[..])), &b"{}"[..])
        );
        assert!(!first.closes);
        let second = frame(&text[first.end..]).unwrap().unwrap();
        assert_eq!((status(second.first), second.closes), (Some(202), true));
        assert_eq!(first.end + second.end, text.len());
        for cut in 0..first.end {
            assert_eq!(frame(&text[..cut]), Ok(None), "{cut} bytes");
        }
        assert!(frame(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(frame(b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n").is_err());
        assert!(frame(&vec![b'x'; HEAD_BYTES_MAX + 1]).is_err());
    }
}
