//! The ledger's table: its log.
//!
//! A ledger's state follows from its log, so only the log is stored. A row holds some consecutive records of
//! one commit, encoded by `batzen_ledger_store::codec`. Rows are only added.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `ledger_log` | number of the first record | – (readers keep the numbers and times of all rows in memory) |

use batzen_store::{Table, TableDef, record};

/// Every table of the ledger, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[LedgerLog::DEF];

record! {
    /// Identifies a row of [`LedgerLog`].
    pub key struct LedgerLogKey {
        /// The number of its first record: records are numbered from 0 without gaps.
        pub first: u64,
    }
}

record! {
    /// Consecutive records.
    pub struct LedgerLogRow {
        /// The ledger's last timestamp when it wrote the row, in nanoseconds.
        pub clock: u64,
        /// The digest of the log up to the end of this row.
        pub digest: u128,
        /// The encoded records.
        pub records: Vec<u8>,
    }
}

/// The log.
pub struct LedgerLog;

impl Table for LedgerLog {
    const DEF: &'static TableDef = &TableDef::of::<Self>(300, "ledger_log");
    type Key = LedgerLogKey;
    type Row = LedgerLogRow;
}
