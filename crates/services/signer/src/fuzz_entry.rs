//! Entry points of the fuzz target: the parsers of network input. A panic is a bug.

use crate::frame::{HEADER_BYTES, Header, Hello, Kind, Side, open_blob, pad_blob};
use crate::items::{Item, parse_answer, push_answer};
use crate::listing::Listing;
use crate::secrets;

/// Reads a stream of frames in both directions, to its end or its first error, and reads each body as every
/// type of body.
pub fn frames(data: &[u8]) {
    for side in [Side::Request, Side::Answer] {
        let mut rest = data;
        while let Some((head, body)) = rest.split_first_chunk::<HEADER_BYTES>()
            && let Ok(header) = Header::from_bytes(head, side)
        {
            assert_eq!(header.to_bytes(), *head, "what is read is written as the same bytes");
            let Some((body, after)) = body.split_at_checked(header.body) else { break };
            match side {
                Side::Request => items(header.kind, header.modulus, body),
                Side::Answer => answers(header.kind, header.modulus, body),
            }
            rest = after;
        }
    }
    for kind in Kind::ALL {
        items(kind, 128, data);
        answers(kind, 128, data);
    }
    let _ = Hello::from_bytes(data);
    if let Ok(content) = open_blob(data) {
        assert_eq!(open_blob(&pad_blob(content)), Ok(content));
    }
    if let Ok(listing) = Listing::decode(data) {
        assert_eq!(Listing::decode(&listing.encode()), Ok(listing));
    }
    let _ = secrets::read_request(data);
    let _ = secrets::read_answer(data);
}

fn items(kind: Kind, modulus: usize, body: &[u8]) {
    for bytes in body.chunks_exact(kind.request_item(modulus)) {
        if let Ok(item) = Item::parse(kind, bytes) {
            let mut again = Vec::new();
            item.push(&mut again);
            assert_eq!(again, bytes);
        }
    }
}

fn answers(kind: Kind, modulus: usize, body: &[u8]) {
    let Some(size) = kind.answer_item(modulus) else { return };
    for bytes in body.chunks_exact(size) {
        if let Ok(result) = parse_answer(kind, bytes) {
            let mut again = Vec::new();
            push_answer(kind, modulus, &result, &mut again);
            assert_eq!(parse_answer(kind, &again), Ok(result));
        }
    }
}
