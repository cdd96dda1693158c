//! Records that remain of collected garbage: sums of the rows that it removed, and identifiers that must not
//! be used again.

use batzen_protocol::MoneySum;
use batzen_store::table;

use super::{CollectedTerm, TransferKind, WtidKey};

table! {
    /// Names a term of the balance sheet.
    pub key struct CollectedKey {
        /// The term.
        pub term: CollectedTerm,
    }

    /// The part of removed rows in a term of the balance sheet, so that collecting garbage changes no sum.
    pub struct CollectedRow {
        /// In hundred-millionths.
        pub units: u128,
    }

    /// Sums of removed rows.
    pub CollectedSums(39, "collected_sums"): CollectedKey => CollectedRow, updated();
}

impl CollectedRow {
    /// The sum.
    #[must_use]
    pub const fn sum(&self) -> MoneySum {
        MoneySum::from_units(self.units)
    }
}

table! {
    /// A removed transfer.
    pub struct PastTransferRow {
        /// Its purpose.
        pub kind: TransferKind,
    }

    /// Identifiers of removed transfers that no other row has. A bank may refuse a second transfer with the same
    /// identifier, and auditors pair transfers by it. (Transfers to merchants are in `wire_out`.)
    pub PastTransfers(49, "past_transfers"): WtidKey => PastTransferRow;
}
