//! The messages, as bytes: a kind (1 byte), the length of the body (4 bytes), the body. All numbers are big-endian.
//!
//! The auditor says hello with the last head that it signed. The exchange welcomes it, or refuses it with a reason.
//! Then come changes or rows in parts, and a mark after each batch, which the auditor acknowledges when it has stored
//! the batch.

use batzen_crypto::{EddsaSignature, HashCode, ShortHash};
use batzen_protocol::Timestamp;
use batzen_store::ROW_BYTES_MAX;

use crate::chain::{Position, SignedHead};

/// The version of the protocol.
pub(crate) const VERSION: u16 = 1;
/// The bytes before a body.
pub(crate) const HEADER_BYTES: usize = 5;
/// The largest body that an auditor sends.
pub(crate) const REQUEST_BYTES_MAX: u32 = 4_096;
/// The largest body that an exchange sends: a row, and what belongs to it.
#[allow(clippy::cast_possible_truncation, reason = "64 MiB")]
pub(crate) const ANSWER_BYTES_MAX: u32 = ROW_BYTES_MAX as u32 + (64 << 10);
/// The most tables that an auditor may ask for.
const TABLES_MAX: usize = 512;
/// The longest reason of a refusal, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;

/// Bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// A request of an auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// The first message.
    Hello(Hello),
    /// A batch is stored.
    Ack(SignedHead),
    /// Nothing new, but the connection lives.
    Alive,
    /// Asks for the digest of all rows.
    Compare,
}

/// The first message of an auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The version of the protocol.
    pub version: u16,
    /// The tables that it copies.
    pub tables: Vec<u16>,
    /// The position of its copy, if it is a state of the exchange.
    pub seen: Option<SignedHead>,
    /// Whether it needs all rows, because it has some that are no state of the exchange.
    pub(crate) wants_snapshot: bool,
}

/// An answer of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is accepted.
    Welcome {
        /// The exchange's store.
        store: [u8; 16],
        /// The number of the first frame that follows; with a snapshot, after its rows.
        next: u64,
        /// Whether the rows of a snapshot come first.
        is_snapshot: bool,
    },
    /// The connection ends.
    Refusal {
        /// Why.
        reason: Reason,
        /// The number of the frame that it is about.
        next: u64,
        /// The head that the exchange computes there.
        head: Option<ShortHash>,
        /// In words.
        text: String,
    },
    /// Changes of a frame, or a part of them.
    Changes {
        /// The frame's number.
        sequence: u64,
        /// Whether they end the frame.
        is_last: bool,
        /// The changes (`change.rs`).
        bytes: Vec<u8>,
    },
    /// Rows of a snapshot.
    Rows(Vec<u8>),
    /// The end of a batch.
    Mark(Mark),
    /// Nothing new.
    Idle {
        /// The number of the exchange's next frame.
        end: u64,
        /// Time that the oldest change has waited that the auditor does not have, in microseconds.
        behind_micros: u64,
    },
    /// The digest of all rows at the position of the last mark.
    Digest {
        rows: u64,
        /// Their hash: of table, key and row in the current layout, without serials.
        digest: HashCode,
        /// The tables' layouts.
        layouts: Vec<u8>,
    },
}

/// The end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The auditor's position when it has applied the batch, signed by the exchange.
    pub(crate) head: SignedHead,
    /// The number of the exchange's next frame.
    pub(crate) end: u64,
    /// Time that the oldest change has waited that the auditor has not acknowledged, in microseconds.
    pub(crate) behind_micros: u64,
}

batzen_protocol::enumeration! {
    /// Why an exchange refuses an auditor.
    pub enum Reason {
        /// Another version of the protocol.
        Version = 1,
        /// Unknown tables.
        Tables = 2,
        /// The auditor already has a connection.
        Busy = 3,
        /// The auditor's copy is of another store.
        OtherStore = 4,
        /// The head is not signed by the auditor.
        Signature = 5,
        /// The exchange's chain differs from the auditor's.
        Rewritten = 6,
        /// The exchange has fewer commits than the auditor has seen.
        Lost = 7,
        /// The exchange's store failed.
        Failed = 8,
    }
}

struct Out(Vec<u8>);

impl Out {
    fn new(kind: u8) -> Self {
        Self(vec![kind, 0, 0, 0, 0])
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_be_bytes())
    }

    fn head(&mut self, head: &SignedHead) -> &mut Self {
        let SignedHead { position: Position { store, next, head }, time, signature } = head;
        self.put(store).number(*next).put(head.as_bytes()).number(time.as_micros()).put(signature.as_bytes())
    }

    fn finish(&mut self) -> Vec<u8> {
        let bytes = u32::try_from(self.0.len() - HEADER_BYTES).expect("messages have limits");
        self.0[1..HEADER_BYTES].copy_from_slice(&bytes.to_be_bytes());
        std::mem::take(&mut self.0)
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Microseconds; a time is whole seconds, and is not rounded here, so that each message has one form.
    fn time(&mut self) -> Result<Timestamp, Malformed> {
        let micros = self.number()?;
        let time = Timestamp::from_micros(micros);
        if time.as_micros() == micros { Ok(time) } else { Err(Malformed) }
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn head(&mut self) -> Result<SignedHead, Malformed> {
        let (store, next, head) = (self.array()?, self.number()?, ShortHash::from_bytes(self.array()?));
        let time = self.time()?;
        let signature = EddsaSignature::from_bytes(self.array()?);
        Ok(SignedHead { position: Position { store, next, head }, time, signature })
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// The kind and the length of the body that follows a header.
///
/// # Errors
/// If the body is longer than `bytes_max`.
pub(crate) fn header(bytes: [u8; HEADER_BYTES], bytes_max: u32) -> Result<(u8, usize), Malformed> {
    let [kind, length @ ..] = bytes;
    let length = u32::from_be_bytes(length);
    if length > bytes_max { Err(Malformed) } else { Ok((kind, length as usize)) }
}

impl Request {
    /// The whole message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello(Hello { version, tables, seen, wants_snapshot }) => {
                let mut out = Out::new(1);
                out.put(&version.to_be_bytes()).put(&[(*wants_snapshot).into(), seen.is_some().into()]);
                seen.iter().for_each(|seen| {
                    out.head(seen);
                });
                tables.iter().for_each(|table| {
                    out.put(&table.to_be_bytes());
                });
                out.finish()
            }
            Self::Ack(head) => Out::new(2).head(head).finish(),
            Self::Alive => Out::new(3).finish(),
            Self::Compare => Out::new(4).finish(),
        }
    }

    /// The message with this kind and body.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn from_bytes(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut input = In(body);
        let request = match kind {
            1 => {
                let version = u16::from_be_bytes(input.array()?);
                let (wants_snapshot, has_seen) = (input.flag()?, input.flag()?);
                let seen = if has_seen { Some(input.head()?) } else { None };
                let mut tables = Vec::new();
                while !input.0.is_empty() && tables.len() < TABLES_MAX {
                    tables.push(u16::from_be_bytes(input.array()?));
                }
                Self::Hello(Hello { version, tables, seen, wants_snapshot })
            }
            2 => Self::Ack(input.head()?),
            3 => Self::Alive,
            4 => Self::Compare,
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(request)
    }
}

impl Answer {
    /// The whole message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Welcome { store, next, is_snapshot } => {
                Out::new(65).put(store).number(*next).put(&[(*is_snapshot).into()]).finish()
            }
            Self::Refusal { reason, next, head, text } => {
                let mut out = Out::new(66);
                out.put(&[*reason as u8]).number(*next).put(&[head.is_some().into()]);
                head.iter().for_each(|head| {
                    out.put(head.as_bytes());
                });
                let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
                out.put(&text.as_bytes()[..end.unwrap_or(0)]).finish()
            }
            Self::Changes { sequence, is_last, bytes } => {
                Out::new(67).number(*sequence).put(&[(*is_last).into()]).put(bytes).finish()
            }
            Self::Rows(bytes) => Out::new(68).put(bytes).finish(),
            Self::Mark(Mark { head, end, behind_micros }) => {
                Out::new(69).head(head).number(*end).number(*behind_micros).finish()
            }
            Self::Idle { end, behind_micros } => Out::new(70).number(*end).number(*behind_micros).finish(),
            Self::Digest { rows, digest, layouts } => {
                Out::new(71).number(*rows).put(digest.as_bytes()).put(layouts).finish()
            }
        }
    }

    /// The message with this kind and body.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn from_bytes(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut input = In(body);
        let answer = match kind {
            65 => Self::Welcome { store: input.array()?, next: input.number()?, is_snapshot: input.flag()? },
            66 => {
                let [code] = input.array()?;
                let reason = Reason::from_number(code).ok_or(Malformed)?;
                let next = input.number()?;
                let has_head = input.flag()?;
                let head = if has_head { Some(ShortHash::from_bytes(input.array()?)) } else { None };
                let text = String::from_utf8(input.rest()).map_err(|_| Malformed)?;
                Self::Refusal { reason, next, head, text }
            }
            67 => Self::Changes { sequence: input.number()?, is_last: input.flag()?, bytes: input.rest() },
            68 => Self::Rows(input.rest()),
            69 => {
                Self::Mark(Mark { head: input.head()?, end: input.number()?, behind_micros: input.number()? })
            }
            70 => Self::Idle { end: input.number()?, behind_micros: input.number()? },
            71 => Self::Digest {
                rows: input.number()?,
                digest: HashCode::from_bytes(input.array()?),
                layouts: input.rest(),
            },
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signed() -> SignedHead {
        let position = Position { store: [1; 16], next: 2, head: ShortHash::from_bytes([3; 32]) };
        SignedHead { position, time: Timestamp::from_secs(4), signature: EddsaSignature::from_bytes([5; 64]) }
    }

    fn requests() -> Vec<Request> {
        let hello =
            |seen| Request::Hello(Hello { version: 1, tables: vec![1, 500], seen, wants_snapshot: true });
        vec![hello(None), hello(Some(signed())), Request::Ack(signed()), Request::Alive, Request::Compare]
    }

    fn answers() -> Vec<Answer> {
        let refusal = |reason, head| Answer::Refusal { reason, next: 9, head, text: "no".into() };
        let mut answers: Vec<Answer> = Reason::ALL.iter().map(|reason| refusal(*reason, None)).collect();
        answers.extend([
            refusal(Reason::Rewritten, Some(ShortHash::from_bytes([7; 32]))),
            Answer::Welcome { store: [1; 16], next: 8, is_snapshot: true },
            Answer::Changes { sequence: 6, is_last: false, bytes: vec![1, 2] },
            Answer::Rows(vec![3]),
            Answer::Mark(Mark { head: signed(), end: 10, behind_micros: 11 }),
            Answer::Idle { end: 12, behind_micros: 13 },
            Answer::Digest { rows: 2, digest: HashCode::from_bytes([9; 64]), layouts: vec![0, 1] },
        ]);
        answers
    }

    #[test]
    fn messages_are_read_back() {
        let split = |bytes: &[u8]| {
            let (head, body) = bytes.split_first_chunk().unwrap();
            let (kind, length) = header(*head, 1 << 20).unwrap();
            assert_eq!(length, body.len());
            (kind, body.to_vec())
        };
        for request in requests() {
            let (kind, body) = split(&request.to_bytes());
            assert_eq!(Request::from_bytes(kind, &body), Ok(request));
            let longer = [&body[..], &[0]].concat();
            assert_ne!(Request::from_bytes(kind, &longer).ok().map(|r| r.to_bytes()), Some(body));
        }
        for answer in answers() {
            let (kind, body) = split(&answer.to_bytes());
            assert_eq!(Answer::from_bytes(kind, &body), Ok(answer));
        }
    }

    #[test]
    fn times_are_whole_seconds() {
        let bytes = Request::Ack(signed()).to_bytes();
        let mut body = bytes[HEADER_BYTES..].to_vec();
        assert_eq!(Request::from_bytes(2, &body), Ok(Request::Ack(signed())));
        // After store, number and head.
        body[56..64].copy_from_slice(&4_000_001_u64.to_be_bytes());
        assert_eq!(Request::from_bytes(2, &body), Err(Malformed));
    }

    #[test]
    fn bodies_have_limits() {
        let head = [1, 0, 0, 16, 0];
        assert_eq!(header(head, REQUEST_BYTES_MAX), Ok((1, 4_096)));
        assert_eq!(header([1, 0, 0, 16, 1], REQUEST_BYTES_MAX), Err(Malformed));
        let hello = Hello { version: 1, tables: vec![7; 600], seen: None, wants_snapshot: false };
        let bytes = Request::Hello(hello).to_bytes();
        assert_eq!(Request::from_bytes(1, &bytes[HEADER_BYTES..]), Err(Malformed), "too many tables");
        let text = "é".repeat(TEXT_BYTES_MAX);
        let refusal = Answer::Refusal { reason: Reason::Failed, next: 0, head: None, text };
        assert!(refusal.to_bytes().len() <= HEADER_BYTES + 10 + TEXT_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..300)) {
            let length = u32::try_from(body.len()).unwrap().to_be_bytes();
            crate::fuzz_entry::messages(&[&[kind][..], &length, &body].concat());
            crate::fuzz_entry::messages(&body);
            if let Ok(request) = Request::from_bytes(kind, &body) {
                prop_assert_eq!(&request.to_bytes()[HEADER_BYTES..], &body[..]);
            }
            if let Ok(answer) = Answer::from_bytes(kind, &body) {
                prop_assert_eq!(&answer.to_bytes()[HEADER_BYTES..], &body[..]);
            }
        }
    }
}
