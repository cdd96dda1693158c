//! PostgreSQL's protocol, as far as cutting it at a message boundary takes: where messages end, and which of a client's
//! messages begin and commit a transaction. (PostgreSQL manual, "Message Formats".)

use std::collections::HashMap;

/// A message whose first bytes are not these has a type byte first.
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// What a message of a client does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Meaning {
    /// It asks whether the connection can be encrypted.
    Encryption,
    /// The first of a transaction.
    Begin,
    /// It commits the transaction, but the server waits for more before it does something.
    Commit,
    /// The server does what came so far.
    Sync,
    /// A whole transaction in one message, or its end.
    CommitNow,
    /// Anything else.
    Other,
}

/// The length of the first message in `bytes`, type byte included; none while it is not complete.
pub(crate) fn length(bytes: &[u8], has_type: bool) -> Option<usize> {
    let start = usize::from(has_type);
    let field = bytes.get(start..start + 4)?;
    let length = u32::from_be_bytes(field.try_into().expect("four bytes"));
    let whole = start + usize::try_from(length).expect("fits on every platform of PostgreSQL").max(4);
    (bytes.len() >= whole).then_some(whole)
}

/// Reads what one client sends, message by message.
#[derive(Default)]
pub(crate) struct Reader {
    is_started: bool,
    statements: HashMap<Vec<u8>, Vec<u8>>,
}

impl Reader {
    /// Whether the next message has a type byte: all but those that begin a connection.
    pub(crate) fn has_type(&self) -> bool {
        self.is_started
    }

    /// What a whole message does.
    pub(crate) fn read(&mut self, message: &[u8]) -> Meaning {
        if !self.is_started {
            let code = message.get(4..8).map(|code| u32::from_be_bytes(code.try_into().expect("four bytes")));
            if code == Some(SSL_REQUEST) || code == Some(GSS_REQUEST) {
                return Meaning::Encryption;
            }
            self.is_started = true;
            return Meaning::Other;
        }
        let body = message.get(5..).unwrap_or_default();
        match message[0] {
            b'Q' => {
                let (begins, commits) = ends_of(text(body).0);
                match (begins, commits) {
                    (_, true) => Meaning::CommitNow,
                    (true, false) => Meaning::Begin,
                    _ => Meaning::Other,
                }
            }
            b'P' => {
                let (name, rest) = text(body);
                self.statements.insert(name.to_vec(), text(rest).0.to_vec());
                Meaning::Other
            }
            b'B' => {
                let (_, rest) = text(body);
                let statement = self.statements.get(text(rest).0).map(|sql| ends_of(sql));
                match statement {
                    Some((true, _)) => Meaning::Begin,
                    Some((_, true)) => Meaning::Commit,
                    _ => Meaning::Other,
                }
            }
            b'S' => Meaning::Sync,
            _ => Meaning::Other,
        }
    }
}

/// The text before the first zero byte, and what follows it.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// Whether the first statement begins a transaction, and whether the last one commits it.
fn ends_of(sql: &[u8]) -> (bool, bool) {
    let sql = String::from_utf8_lossy(sql).to_ascii_uppercase();
    let mut statements = sql.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    let is_word = |statement: &str, words: &[&str]| {
        words.iter().any(|word| statement.split_whitespace().next() == Some(word))
    };
    let Some(first) = statements.next() else { return (false, false) };
    let last = statements.next_back().unwrap_or(first);
    (is_word(first, &["BEGIN", "START"]), is_word(last, &["COMMIT", "END"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = vec![kind];
        message.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        message.extend(body);
        message
    }

    fn started() -> Reader {
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[0, 0, 0, 8, 0, 3, 0, 0]), Meaning::Other);
        reader
    }

    #[test]
    fn a_message_ends_where_its_length_says() {
        let whole = message(b'Q', b"SELECT 1\0");
        assert_eq!(length(&whole, true), Some(whole.len()));
        assert_eq!(length(&whole[..whole.len() - 1], true), None);
        assert_eq!(length(&whole[..3], true), None);
        assert_eq!(length(&[0, 0, 0, 8, 4, 210, 22, 47, 9], false), Some(8));
    }

    #[test]
    fn transactions_are_seen_in_prepared_statements_and_in_plain_ones() {
        let mut reader = started();
        assert_eq!(reader.read(&message(b'P', b"s1\0begin\0\0\0")), Meaning::Other, "prepared is not run");
        assert_eq!(reader.read(&message(b'P', b"s2\0COMMIT\0\0\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'B', b"\0s1\0")), Meaning::Begin);
        assert_eq!(reader.read(&message(b'B', b"portal\0s2\0")), Meaning::Commit);
        assert_eq!(reader.read(&message(b'S', b"")), Meaning::Sync);
        assert_eq!(reader.read(&message(b'Q', b"BEGIN; INSERT INTO t VALUES (1)\0")), Meaning::Begin);
        assert_eq!(reader.read(&message(b'Q', b"commit;\0")), Meaning::CommitNow);
        assert_eq!(reader.read(&message(b'Q', b"SELECT 'COMMIT'\0")), Meaning::Other);
    }

    #[test]
    fn a_wish_for_encryption_is_no_start() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[0, 0, 0, 8, 4, 210, 22, 47]), Meaning::Encryption);
        assert!(!reader.has_type());
    }
}
