//! The entry of the fuzz target: bytes from a peer are framed. A panic is a finding.

use super::{FramingError, MessageLimits, frame_request, frame_response};

/// Small limits, so that short inputs reach them.
const LIMITS: MessageLimits = MessageLimits { head_bytes_max: 300, body_bytes_max: 40 };

/// Frames these bytes as requests and as responses, one message after the other.
///
/// # Panics
/// If a message does not lie within the bytes, or is found in another place when only its own bytes have arrived.
pub fn frame(data: &[u8]) {
    frame_all(data, |input| Ok(frame_request(input, &LIMITS)?.map(|request| request.body)));
    frame_all(data, |input| Ok(frame_response(input, &LIMITS)?.map(|response| response.body)));
}

fn frame_all(
    mut input: &[u8],
    frame_one: impl Fn(&[u8]) -> Result<Option<std::ops::Range<usize>>, FramingError>,
) {
    while let Ok(Some(body)) = frame_one(input) {
        assert!(body.start <= body.end && body.end <= input.len() && body.len() <= LIMITS.body_bytes_max);
        assert_eq!(frame_one(&input[..body.end]), Ok(Some(body.clone())), "later bytes change nothing");
        assert_eq!(frame_one(&input[..body.end - 1]), Ok(None), "an incomplete message is not taken");
        input = &input[body.end..];
    }
}
