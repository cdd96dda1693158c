//! Frames: a header of 24 bytes and a body of fixed-size records. `docs/ledger-protocol.md` specifies them.
//!
//! Pure: bytes in, bytes out.

use std::borrow::Cow;

use batzen_ledger::record::RECORD_BYTES;
use batzen_ledger::{BATCH_EVENTS_MAX, LedgerError};

/// Size of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// The largest body, in bytes: a full batch of records. With its header it stays below 1 MiB.
pub const BODY_BYTES_MAX: usize = BATCH_EVENTS_MAX * RECORD_BYTES;

/// The version of the protocol that this crate speaks.
pub(crate) const VERSION: u16 = 1;

/// First bytes of a hello, so that a client of another protocol is recognised.
pub(crate) const MAGIC: [u8; 8] = *b"BTZLEDGR";

/// Size of a hello's body, in bytes.
pub(crate) const HELLO_BYTES: usize = 24;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// The first frame of a connection, both ways.
    Hello = 1,
    /// Checks that the server answers.
    Ping = 2,
    /// Accounts in, results out.
    CreateAccounts = 16,
    /// Transfers in, results out.
    CreateTransfers = 17,
    /// Ids in, accounts out.
    LookupAccounts = 18,
    /// Ids in, transfers out.
    LookupTransfers = 19,
    /// A filter in, transfers out.
    GetAccountTransfers = 20,
    /// A filter in, balances out.
    GetAccountBalances = 21,
    /// A filter in, accounts out.
    QueryAccounts = 22,
    /// A filter in, transfers out.
    QueryTransfers = 23,
    /// A filter in, change events out.
    GetChangeEvents = 24,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Hello,
        Self::Ping,
        Self::CreateAccounts,
        Self::CreateTransfers,
        Self::LookupAccounts,
        Self::LookupTransfers,
        Self::GetAccountTransfers,
        Self::GetAccountBalances,
        Self::QueryAccounts,
        Self::QueryTransfers,
        Self::GetChangeEvents,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Ping => "ping",
            Self::CreateAccounts => "create_accounts",
            Self::CreateTransfers => "create_transfers",
            Self::LookupAccounts => "lookup_accounts",
            Self::LookupTransfers => "lookup_transfers",
            Self::GetAccountTransfers => "get_account_transfers",
            Self::GetAccountBalances => "get_account_balances",
            Self::QueryAccounts => "query_accounts",
            Self::QueryTransfers => "query_transfers",
            Self::GetChangeEvents => "get_change_events",
        }
    }
}

/// Status of a request. The body of an answer that is not [`Status::Done`] is a text in UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done. Requests carry this status too.
    Done = 0,
    /// The body is larger than allowed: nothing was done.
    TooMuchData = 1,
    /// Too much is waiting: nothing was done, try later.
    Busy = 2,
    /// No common version. The connection ends.
    Version = 3,
    /// Malformed bytes, or a wrong checksum. The connection ends.
    Malformed = 4,
    /// The ledger does not support this.
    Refused = 5,
    /// Unknown whether it was done: repeat under the same ids.
    Unknown = 6,
    /// The search reached its limit. The text is the timestamp it reached, in decimal digits.
    Unfinished = 7,
}

impl Status {
    /// The status with this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::TooMuchData,
            2 => Self::Busy,
            3 => Self::Version,
            4 => Self::Malformed,
            5 => Self::Refused,
            6 => Self::Unknown,
            7 => Self::Unfinished,
            _ => return None,
        })
    }

    /// The status and text for this error.
    #[must_use]
    pub fn of(error: &LedgerError) -> (Self, Cow<'_, str>) {
        match error {
            LedgerError::TooMuchData => (Self::TooMuchData, Cow::Borrowed("")),
            LedgerError::Busy(text) => (Self::Busy, Cow::Borrowed(text)),
            LedgerError::Unknown(text) => (Self::Unknown, Cow::Borrowed(text)),
            LedgerError::Refused(text) => (Self::Refused, Cow::Borrowed(text)),
            LedgerError::Unfinished { until } => (Self::Unfinished, Cow::Owned(until.to_string())),
        }
    }

    /// The error for an answer with this status and text.
    #[must_use]
    pub fn error(self, text: String) -> LedgerError {
        match self {
            Self::TooMuchData => LedgerError::TooMuchData,
            Self::Busy => LedgerError::Busy(text),
            Self::Unknown | Self::Done => LedgerError::Unknown(text),
            Self::Version | Self::Malformed | Self::Refused => LedgerError::Refused(text),
            Self::Unfinished => match text.parse() {
                Ok(until) => LedgerError::Unfinished { until },
                Err(_) => LedgerError::Refused(format!("a search that ended at {text:?}, which is no time")),
            },
        }
    }
}

/// Why bytes are not a frame. After any of these errors the stream cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The header's checksum is wrong: another protocol, or damage.
    #[error("the header's checksum is wrong")]
    HeaderChecksum,
    /// The body's checksum is wrong.
    #[error("the body's checksum is wrong")]
    BodyChecksum,
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// CRC-32C of the body.
    pub body_checksum: u32,
    /// Size of the body, in bytes.
    pub size: u32,
    /// Chosen by the client, unique among its requests in flight; the answer repeats it.
    pub number: u64,
    /// Number of a [`Kind`]; not every number is one.
    pub kind: u16,
    /// Number of a [`Status`].
    pub status: u16,
}

impl Header {
    /// The header for this body.
    ///
    /// # Panics
    /// If the body exceeds [`BODY_BYTES_MAX`]. Callers split what they send before.
    #[must_use]
    pub fn new(kind: Kind, status: Status, number: u64, body: &[u8]) -> Self {
        assert!(body.len() <= BODY_BYTES_MAX, "a body of {} bytes", body.len());
        Self {
            body_checksum: crc32c::crc32c(body),
            size: u32::try_from(body.len()).expect("bounded above"),
            number,
            kind: kind as u16,
            status: status as u16,
        }
    }

    /// The header as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[4..8].copy_from_slice(&self.body_checksum.to_le_bytes());
        out[8..12].copy_from_slice(&self.size.to_le_bytes());
        out[12..14].copy_from_slice(&self.kind.to_le_bytes());
        out[14..16].copy_from_slice(&self.status.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        let checksum = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The inverse of [`Header::to_bytes`].
    ///
    /// # Errors
    /// [`FrameError::HeaderChecksum`].
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if u32_at(0) != crc32c::crc32c(&bytes[4..]) {
            return Err(FrameError::HeaderChecksum);
        }
        Ok(Self {
            body_checksum: u32_at(4),
            size: u32_at(8),
            kind: u16_at(12),
            status: u16_at(14),
            number: u64::from_le_bytes(bytes[16..].try_into().expect("eight bytes")),
        })
    }
}

/// The beginning of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not yet a whole frame. This many bytes are needed in total.
    NeedsBytes(usize),
    /// A body above the limit. Its bytes follow the header and must be skipped.
    TooLarge(Header),
    /// A whole frame; it takes [`HEADER_BYTES`] and the body.
    Frame(Header, &'a [u8]),
}

/// Examines the beginning of received bytes.
///
/// # Errors
/// [`FrameError`]: the stream cannot be read further.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(Parsed::NeedsBytes(HEADER_BYTES));
    };
    let header = Header::from_bytes(header)?;
    let size = header.size as usize;
    if size > BODY_BYTES_MAX {
        return Ok(Parsed::TooLarge(header));
    }
    let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + size) else {
        return Ok(Parsed::NeedsBytes(HEADER_BYTES + size));
    };
    if crc32c::crc32c(body) != header.body_checksum {
        return Err(FrameError::BodyChecksum);
    }
    Ok(Parsed::Frame(header, body))
}

/// Appends a whole frame.
pub fn push(out: &mut Vec<u8>, kind: Kind, status: Status, number: u64, body: &[u8]) {
    out.extend_from_slice(&Header::new(kind, status, number, body).to_bytes());
    out.extend_from_slice(body);
}

/// Appends an answer with an error. A long text is truncated.
pub(crate) fn push_error(out: &mut Vec<u8>, kind: Kind, status: Status, number: u64, text: &str) {
    const TEXT_BYTES_MAX: usize = 512;
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    push(out, kind, status, number, &text.as_bytes()[..end]);
}

/// The first frame of a connection. A client offers a range of versions; a server answers with the chosen one
/// and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest version offered; in a server's hello the chosen one.
    pub version_min: u16,
    /// Highest version offered; in a server's hello the chosen one.
    pub version_max: u16,
    /// Most requests of one connection that the server works on at once; 0 from a client.
    pub in_flight_max: u32,
    /// The largest body, in bytes.
    pub body_bytes_max: u32,
}

impl Hello {
    /// A client's hello.
    #[must_use]
    pub fn of_client() -> Self {
        Self {
            version_min: VERSION,
            version_max: VERSION,
            in_flight_max: 0,
            body_bytes_max: u32::try_from(BODY_BYTES_MAX).expect("about a million"),
        }
    }

    /// The hello as a body.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version_min.to_le_bytes());
        out[10..12].copy_from_slice(&self.version_max.to_le_bytes());
        out[12..16].copy_from_slice(&self.in_flight_max.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_bytes_max.to_le_bytes());
        out
    }

    /// The inverse of [`Hello::to_bytes`]. A longer body belongs to a later version; its additional bytes are
    /// ignored.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HELLO_BYTES>()?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (bytes[..8] == MAGIC).then(|| Self {
            version_min: u16_at(8),
            version_max: u16_at(10),
            in_flight_max: u32_at(12),
            body_bytes_max: u32_at(16),
        })
    }

    /// Returns whether the other side can speak `VERSION`.
    #[must_use]
    pub const fn speaks_our_version(&self) -> bool {
        self.version_min <= VERSION && VERSION <= self.version_max
    }
}
