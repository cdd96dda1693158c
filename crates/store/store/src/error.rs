//! Errors of a store.

use std::path::PathBuf;

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Stored bytes that do not form the record that their table declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a column.
    #[error("the record ends {missing} bytes early in a {column} column")]
    Short {
        /// The column that was read.
        column: &'static str,
        /// The minimum number of bytes that are missing.
        missing: usize,
    },
    /// Bytes are left after the last column.
    #[error("{left} bytes follow the last column")]
    Trailing {
        /// Number of bytes that are left.
        left: usize,
    },
    /// A column holds a value outside its domain.
    #[error("not a {column}: {what}")]
    Invalid {
        /// The column that was read.
        column: &'static str,
        /// The problem.
        what: String,
    },
}

impl DecodeError {
    /// A value outside its column's domain.
    pub fn invalid(column: &'static str, what: impl Into<String>) -> Self {
        Self::Invalid { column, what: what.into() }
    }
}

/// Why a store refused or failed. After any error except [`StoreError::Unavailable`], nothing of the current
/// change set is visible.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full: the change set was refused, nothing of it was written, and commits succeed again
    /// once there is space.
    #[error("the disk is full: {0}")]
    Full(String),
    /// Stored data is damaged. Restore it from a backup; the store serves nothing that it cannot verify.
    #[error("corrupt data in {file} at byte {offset}: {what}")]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// The offset of the damage, in bytes.
        offset: u64,
        /// The problem.
        what: String,
    },
    /// An update or delete names a row that does not exist, or has changed since the caller read it.
    #[error("table {table}: the row changed since it was read")]
    Stale {
        /// The table's name.
        table: &'static str,
        /// The encoded key.
        key: Vec<u8>,
    },
    /// Another process has the store open.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The change set is larger than the store accepts in one commit.
    #[error("the change set has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A write or sync failed earlier: the content of the disk is unknown until the store is opened again.
    #[error("the store stopped after an earlier failure: {0}")]
    Stopped(String),
    /// The store's files have another version, or do not belong together.
    #[error("{file}: {what}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The mismatch.
        what: String,
    },
    /// An operation of the operating system failed.
    #[error("{action} {file}: {source}")]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A stored row does not decode as its table's record.
    #[error("table {table}: {source}")]
    Decode {
        /// The table's name.
        table: &'static str,
        /// The part that does not decode.
        source: DecodeError,
    },
    /// The store's server cannot be reached at the moment. Until it can, it is unknown whether the commit has
    /// taken effect.
    #[error("database unreachable: {0}")]
    Unavailable(String),
    /// Another error of a backend outside this crate.
    #[error("{0}")]
    Backend(String),
}

impl StoreError {
    /// An equivalent error, for everyone whose commit failed together.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Full(reason) => Self::Full(reason.clone()),
            Self::Stale { table, key } => Self::Stale { table, key: key.clone() },
            Self::TooLarge { bytes, limit } => Self::TooLarge { bytes: *bytes, limit: *limit },
            Self::Stopped(reason) => Self::Stopped(reason.clone()),
            Self::Unavailable(reason) => Self::Unavailable(reason.clone()),
            other => Self::Backend(other.to_string()),
        }
    }
}
