//! The ledger's tables: its log, and snapshots of the state that follows from it.
//!
//! A row of the log holds some consecutive records of one commit, encoded by `batzen_ledger_service::store::codec`. Rows
//! of the log are only added. All other tables follow from the log: they let a ledger open without reading
//! all of it, and find old transfers without an index in memory. See docs/decisions/0022-ledger-snapshots.md.
//!
//! | table | primary key | content |
//! |---|---|---|
//! | `ledger_log` | number of the first record | the log |
//! | `ledger_snapshot` | a constant | which records the snapshot has, and sums over them |
//! | `ledger_accounts` | number of the first account, by 64 | accounts with balances |
//! | `ledger_marks` | in order | positions in the histories of accounts |
//! | `ledger_pendings` | in order | which pending transfers came and went |
//! | `ledger_rows` | number of a record, by 1024 | which rows of the log begin there |
//! | `ledger_id_pages` | run, page | hashes of transfer ids with their records, in order |
//! | `ledger_id_filters` | run, section | a filter of the hashes in some pages |

use batzen_store::{Table, TableDef, table};

use crate::SingletonKey;

/// Every table of the ledger, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[
    LedgerLog::DEF,
    LedgerSnapshots::DEF,
    LedgerAccounts::DEF,
    LedgerMarks::DEF,
    LedgerPendings::DEF,
    LedgerRows::DEF,
    LedgerIdPages::DEF,
    LedgerIdFilters::DEF,
];

/// The tables that follow from the log.
pub const DERIVED: &[&TableDef] = ALL.split_at(1).1;

table! {
    /// Identifies a row of [`LedgerLog`].
    pub key struct LedgerLogKey {
        /// The number of its first record: records are numbered from 0 without gaps.
        pub first: u64,
    }

    /// Consecutive records.
    pub struct LedgerLogRow {
        /// The ledger's last timestamp when it wrote the row, in nanoseconds.
        pub clock: u64,
        /// The digest of the log up to the end of this row.
        pub digest: u128,
        /// The encoded records.
        pub records: Vec<u8>,
    }

    /// The log.
    pub LedgerLog(300, "ledger_log"): LedgerLogKey => LedgerLogRow;
}

/// Identifies the one row of [`LedgerSnapshots`].
pub type LedgerSnapshotKey = SingletonKey;

table! {
    /// The description of a snapshot.
    pub struct LedgerSnapshotRow {
        /// The key of the hash function of ids. It protects the index against ids that are chosen to collide.
        pub hash_key: [u8; 16],
        /// The number of records that the snapshot has.
        pub records: u64,
        /// The number of records that the next snapshot will have, if it is being written; otherwise 0.
        pub target: u64,
        /// Rows of the log that hold these records.
        pub log_rows: u64,
        /// Number of accounts.
        pub accounts: u64,
        /// Number of transfers.
        pub transfers: u64,
        /// Number of transfer ids refused for good.
        pub burnt: u64,
        /// Number of unresolved pending transfers.
        pub pendings: u64,
        /// The digest of the records.
        pub digest: u128,
        /// The ledger's last timestamp, in nanoseconds.
        pub clock: u64,
        /// The timestamp of the last movement, in nanoseconds.
        pub last_movement: u64,
        /// The number of rows of [`LedgerMarks`] that belong to it.
        pub mark_rows: u64,
        /// The first row of [`LedgerPendings`] that belongs to it.
        pub pending_rows_from: u64,
        /// The row after its last row of [`LedgerPendings`].
        pub pending_rows_to: u64,
        /// Entries in these rows.
        pub pending_entries: u64,
        /// Rows of [`LedgerPendings`] from here to `pending_rows_from` are to be deleted.
        pub pending_rows_old: u64,
        /// The number of the next run of ids.
        pub next_run: u64,
        /// The runs of ids, oldest first: number, level, entries and sections of each.
        pub runs: Vec<u8>,
        /// Numbers of runs that are unfinished or to be deleted.
        pub old_runs: Vec<u8>,
    }

    /// The current snapshot.
    pub LedgerSnapshots(301, "ledger_snapshot"): LedgerSnapshotKey => LedgerSnapshotRow;
}

table! {
    /// Identifies a row of [`LedgerAccounts`].
    pub key struct LedgerAccountsKey {
        /// The number of its first account divided by their number in a page.
        pub page: u32,
    }

    /// Consecutive accounts.
    pub struct LedgerAccountsRow {
        /// The number of records of the snapshot that wrote the row.
        pub records: u64,
        /// The encoded accounts.
        pub accounts: Vec<u8>,
    }

    /// Accounts with their balances.
    pub LedgerAccounts(302, "ledger_accounts"): LedgerAccountsKey => LedgerAccountsRow;
}

table! {
    /// Identifies a row of [`LedgerMarks`].
    pub key struct LedgerMarksKey {
        /// In order from 0.
        pub row: u64,
    }

    /// Marks in the order of their records.
    pub struct LedgerMarksRow {
        /// The encoded marks: account, timestamp and record of every 64th movement of an account.
        pub marks: Vec<u8>,
    }

    /// Positions in the histories of accounts.
    pub LedgerMarks(303, "ledger_marks"): LedgerMarksKey => LedgerMarksRow;
}

table! {
    /// Identifies a row of [`LedgerPendings`].
    pub key struct LedgerPendingsKey {
        /// In order.
        pub row: u64,
    }

    /// Changes of the unresolved pending transfers.
    pub struct LedgerPendingsRow {
        /// The encoded entries: what was added and what was resolved.
        pub entries: Vec<u8>,
    }

    /// Unresolved pending transfers.
    pub LedgerPendings(304, "ledger_pendings"): LedgerPendingsKey => LedgerPendingsRow;
}

table! {
    /// Identifies a row of [`LedgerRows`].
    pub key struct LedgerRowsKey {
        /// The number of a record divided by their number in a group.
        pub group: u64,
    }

    /// The rows of the log that begin within a group of records.
    pub struct LedgerRowsRow {
        /// First record and last movement's timestamp of each, encoded.
        pub rows: Vec<u8>,
    }

    /// The index of the log.
    pub LedgerRows(305, "ledger_rows"): LedgerRowsKey => LedgerRowsRow;
}

table! {
    /// Identifies a row of [`LedgerIdPages`].
    pub key struct LedgerIdPageKey {
        /// The run.
        pub run: u64,
        /// The page, from 0.
        pub page: u32,
    }

    /// Entries in the order of their hashes.
    pub struct LedgerIdPageRow {
        /// The entries: eight bytes of hash, five of record number and status.
        pub entries: Vec<u8>,
    }

    /// Hashes of transfer ids.
    pub LedgerIdPages(306, "ledger_id_pages"): LedgerIdPageKey => LedgerIdPageRow;
}

table! {
    /// Identifies a row of [`LedgerIdFilters`].
    pub key struct LedgerIdFilterKey {
        /// The run.
        pub run: u64,
        /// The section, from 0.
        pub section: u32,
    }

    /// A section: some pages that follow each other.
    pub struct LedgerIdFilterRow {
        /// Its first page.
        pub first_page: u32,
        /// The first hash of each page.
        pub fences: Vec<u8>,
        /// The parameters of the filter.
        pub descriptor: [u8; 20],
        /// The filter's fingerprints.
        pub fingerprints: Vec<u8>,
    }

    /// Filters of the hashes.
    pub LedgerIdFilters(307, "ledger_id_filters"): LedgerIdFilterKey => LedgerIdFilterRow;
}
