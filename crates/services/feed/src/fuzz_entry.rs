//! Entry point of the fuzz target: the parsers of network input. A panic is a bug.

use batzen_tables::exchange::AUDITED;

use crate::change;
use crate::message::{ANSWER_BYTES_MAX, Answer, HEADER_BYTES, Request, header};
use crate::note::Note;

/// Reads bytes as every kind of message, as changes and as a note. What is read is written as the same bytes.
pub fn messages(data: &[u8]) {
    let mut rest = data;
    while let Some((head, body)) = rest.split_first_chunk::<HEADER_BYTES>()
        && let Ok((kind, length)) = header(*head, ANSWER_BYTES_MAX)
        && let Some((body, after)) = body.split_at_checked(length)
    {
        if let Ok(request) = Request::from_bytes(kind, body) {
            assert_eq!(&request.to_bytes()[HEADER_BYTES..], body);
        }
        if let Ok(answer) = Answer::from_bytes(kind, body) {
            // A reason that is too long is cut.
            let bytes = answer.to_bytes();
            assert!(body.starts_with(&bytes[HEADER_BYTES..]));
        }
        rest = after;
    }
    if let Ok(changes) = change::take_all(data, AUDITED) {
        let mut bytes = Vec::new();
        changes.iter().for_each(|change| change::put(change, &mut bytes));
        assert_eq!(bytes, data);
        for change in changes {
            let _ = change.current_row();
        }
    }
    if let Some(note) = Note::from_bytes(data) {
        assert_eq!(Note::from_bytes(&note.to_bytes()), Some(note));
    }
}
