//! Records that remain of rows that left for an archive: the runs, the numbers that each of them took, and
//! the sums of transfers that have left in part.

use batzen_crypto::{HashCode, ShortHash};
use batzen_protocol::{MoneySum, Timestamp};
use batzen_store::table;

use super::{DenomSerial, WtidKey};

table! {
    /// Identifies a run.
    pub key struct ArchiveRunKey {
        /// Its number: 1 for the first.
        pub run: u32,
    }

    /// A run, which moved rows to a store of its own. The same row is in that store, so that an auditor who has
    /// only one of the two knows what belongs together.
    pub struct ArchiveRunRow {
        /// A random number that only this run's store has.
        pub id: ShortHash,
        /// When it began.
        pub started: Timestamp,
        /// Why, in the operator's words.
        pub reason: String,
        /// Number of rows that it took.
        pub rows: u64,
        /// Their bytes, keys included.
        pub bytes: u64,
        /// When it ended. `None`: it is under way, or was interrupted.
        pub finished: Option<Timestamp>,
        /// The digest of the set of its rows, once it has ended.
        pub digest: Option<HashCode>,
        /// When its store was dropped.
        pub dropped: Option<Timestamp>,
        /// Why it was dropped.
        pub drop_reason: Option<String>,
    }

    /// Runs that moved rows to an archive.
    pub ArchiveRuns(60, "archive_runs"): ArchiveRunKey => ArchiveRunRow, updated();
    /// Runs that have not ended, of which there is at most one (the value is the byte 0).
    OPEN = 1, "open", Hash;
    |_, row, out| {
        if row.is_open() {
            out.add(Self::OPEN, &0u8);
        }
    }
}

impl ArchiveRunRow {
    /// Returns whether it may still take rows.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.finished.is_none()
    }
}

table! {
    /// Names what a run took of one table and one denomination.
    pub key struct ArchiveCountKey {
        /// The run.
        pub run: u32,
        /// The table's number.
        pub table: u16,
        /// The denomination; 0 for rows that belong to none.
        pub denom: DenomSerial,
    }

    /// The rows of one table and one denomination that a run took.
    pub struct ArchiveCountRow {
        /// Number of rows.
        pub rows: u64,
        /// Their bytes, keys included.
        pub bytes: u64,
        /// The sum of their amounts, in hundred-millionths: what coins have spent, and what the other rows name.
        pub units: u128,
    }

    /// Counts of the rows that runs took.
    pub ArchiveCounts(61, "archive_counts"): ArchiveCountKey => ArchiveCountRow, updated();
    /// By run.
    BY_RUN = 1, "by_run", Prefix { key_bytes: 4 };
}

impl ArchiveCountRow {
    /// The sum.
    #[must_use]
    pub const fn sum(&self) -> MoneySum {
        MoneySum::from_units(self.units)
    }
}

table! {
    /// The sums of a transfer's deposits that have left, until the last of them leaves, and the transfer with
    /// it. A transfer may have more deposits than one commit can move.
    pub struct ArchiveTransferRow {
        /// Their contributions less refunds, in hundred-millionths.
        pub contributed_units: u128,
        /// The deposit fees of those that were not completely refunded.
        pub fee_units: u128,
    }

    /// Transfers that have left in part.
    pub ArchiveTransfers(62, "archive_transfers"): WtidKey => ArchiveTransferRow, updated();
}

impl ArchiveTransferRow {
    /// Contributions less refunds.
    #[must_use]
    pub const fn contributed(&self) -> MoneySum {
        MoneySum::from_units(self.contributed_units)
    }

    /// Deposit fees.
    #[must_use]
    pub const fn fees(&self) -> MoneySum {
        MoneySum::from_units(self.fee_units)
    }
}
