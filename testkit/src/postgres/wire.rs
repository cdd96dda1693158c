//! The parts of PostgreSQL's protocol that are needed to cut at message boundaries: where messages end, and
//! which of a client's messages begin and commit a transaction. (PostgreSQL manual, "Message Formats".)

use std::collections::HashMap;

/// All messages but those with these first bytes begin with a type byte.
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// The effect of a client's message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Meaning {
    /// Asks for encryption.
    Encryption,
    /// Begins a transaction: BEGIN, or a statement that writes without it.
    Begin,
    /// Commits a transaction.
    End,
    /// A whole transaction in one message.
    Whole,
    /// Anything else.
    Other,
}

/// The length of the first message in `bytes`, type byte included; `None` while it is incomplete.
pub(crate) fn length(bytes: &[u8], has_type: bool) -> Option<usize> {
    let start = usize::from(has_type);
    let field = bytes.get(start..start + 4)?;
    let length = u32::from_be_bytes(field.try_into().expect("four bytes"));
    let whole = start + usize::try_from(length).expect("fits on every platform of PostgreSQL").max(4);
    (bytes.len() >= whole).then_some(whole)
}

/// Parses one client's messages.
#[derive(Default)]
pub(crate) struct Reader {
    is_started: bool,
    statements: HashMap<Vec<u8>, Vec<u8>>,
    state: Transaction,
}

/// The state of the transaction after the messages so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Transaction {
    #[default]
    None,
    /// Statements without BEGIN, which the next Sync commits.
    Implicit,
    /// With BEGIN.
    Explicit,
    /// With BEGIN and COMMIT, which the next Sync has executed.
    Committing,
}

/// The role of a statement in a transaction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Begin,
    Commit,
    Rollback,
    /// A whole transaction from BEGIN to COMMIT.
    Both,
    Write,
    Read,
}

impl Reader {
    /// Returns whether the next message has a type byte: all but those that begin a connection.
    pub(crate) fn has_type(&self) -> bool {
        self.is_started
    }

    /// The effect of a complete message.
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
                let (state, meaning) = match (self.state, kind_of(text(body).0)) {
                    (Transaction::None, Kind::Begin) => (Transaction::Explicit, Meaning::Begin),
                    (Transaction::None, Kind::Write | Kind::Both) => (Transaction::None, Meaning::Whole),
                    (Transaction::Explicit, Kind::Commit) => (Transaction::None, Meaning::End),
                    (_, Kind::Rollback) => (Transaction::None, Meaning::Other),
                    (state, _) => (state, Meaning::Other),
                };
                self.state = state;
                meaning
            }
            b'P' => {
                let (name, rest) = text(body);
                self.statements.insert(name.to_vec(), text(rest).0.to_vec());
                Meaning::Other
            }
            b'B' => {
                let (_, rest) = text(body);
                let kind = self.statements.get(text(rest).0).map_or(Kind::Read, |sql| kind_of(sql));
                let (state, meaning) = match (self.state, kind) {
                    (Transaction::None, Kind::Begin) => (Transaction::Explicit, Meaning::Begin),
                    (Transaction::None, Kind::Write) => (Transaction::Implicit, Meaning::Begin),
                    (Transaction::Explicit, Kind::Commit) => (Transaction::Committing, Meaning::Other),
                    (Transaction::Explicit, Kind::Rollback) => (Transaction::None, Meaning::Other),
                    (state, _) => (state, Meaning::Other),
                };
                self.state = state;
                meaning
            }
            b'S' if matches!(self.state, Transaction::Implicit | Transaction::Committing) => {
                self.state = Transaction::None;
                Meaning::End
            }
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

/// The role of some statements in a transaction, judged by their keywords. That is enough for the statements
/// of one program and its tests.
fn kind_of(sql: &[u8]) -> Kind {
    let sql = String::from_utf8_lossy(sql).to_ascii_uppercase();
    let mut statements = sql.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    let word = |statement: &str| statement.split_whitespace().next().unwrap_or_default().to_owned();
    let first = statements.next().map(word).unwrap_or_default();
    let last = statements.next_back().map_or_else(|| first.clone(), word);
    let begins = ["BEGIN", "START"].contains(&first.as_str());
    let commits = ["COMMIT", "END"].contains(&last.as_str());
    let writes = ["INSERT INTO ", "DELETE FROM ", "UPDATE ", "MERGE INTO "];
    match (begins, commits) {
        (true, true) => Kind::Both,
        (true, false) => Kind::Begin,
        (false, true) => Kind::Commit,
        _ if first == "ROLLBACK" => Kind::Rollback,
        _ if writes.iter().any(|words| sql.replace("FOR UPDATE ", "").contains(words)) => Kind::Write,
        _ => Kind::Read,
    }
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
    fn transactions_are_recognised_in_prepared_and_plain_statements() {
        let mut reader = started();
        assert_eq!(reader.read(&message(b'P', b"s1\0begin\0\0\0")), Meaning::Other, "prepared is not run");
        assert_eq!(reader.read(&message(b'P', b"s2\0COMMIT\0\0\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'B', b"\0s1\0")), Meaning::Begin);
        assert_eq!(reader.read(&message(b'B', b"portal\0s2\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'S', b"")), Meaning::End);
        assert_eq!(reader.read(&message(b'S', b"")), Meaning::Other);
        assert_eq!(reader.read(&message(b'Q', b"BEGIN; INSERT INTO t VALUES (1)\0")), Meaning::Begin);
        assert_eq!(reader.read(&message(b'Q', b"commit;\0")), Meaning::End);
        assert_eq!(reader.read(&message(b'Q', b"SELECT 'COMMIT'\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'Q', b"BEGIN; DELETE FROM t; COMMIT\0")), Meaning::Whole);
    }

    #[test]
    fn writing_without_begin_is_a_transaction_that_ends_with_the_next_sync() {
        let mut reader = started();
        reader.read(&message(b'P', b"w\0WITH hit AS (UPDATE t SET n = 1) SELECT count(*)\0\0\0"));
        reader.read(&message(b'P', b"r\0SELECT n FROM t FOR UPDATE \0\0\0"));
        assert_eq!(reader.read(&message(b'B', b"\0r\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'S', b"")), Meaning::Other);
        assert_eq!(reader.read(&message(b'B', b"\0w\0")), Meaning::Begin);
        assert_eq!(reader.read(&message(b'B', b"\0w\0")), Meaning::Other);
        assert_eq!(reader.read(&message(b'S', b"")), Meaning::End);
        assert_eq!(reader.read(&message(b'Q', b"INSERT INTO t VALUES (1)\0")), Meaning::Whole);
    }

    #[test]
    fn encryption_request_is_no_startup_message() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[0, 0, 0, 8, 4, 210, 22, 47]), Meaning::Encryption);
        assert!(!reader.has_type());
    }
}
