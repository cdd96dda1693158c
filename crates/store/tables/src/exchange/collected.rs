//! Records that remain of collected garbage: sums of the rows that it removed, and identifiers that must not
//! be used again.

use batzen_protocol::MoneySum;
use batzen_store::{record, table};

use super::{CollectedTerm, TransferKind, WtidKey};

record! {
    /// Names a term of the balance sheet.
    pub key struct CollectedKey {
        /// The term.
        pub term: CollectedTerm,
    }
}
record! {
    /// The part of removed rows in a term of the balance sheet, so that collecting garbage changes no sum.
    pub struct CollectedRow {
        /// In hundred-millionths.
        pub units: u128,
    }
}
impl CollectedRow {
    /// The sum.
    #[must_use]
    pub const fn sum(&self) -> MoneySum {
        MoneySum::from_units(self.units)
    }
}
table! {
    /// Sums of removed rows.
    pub CollectedSums(39, "collected_sums"): CollectedKey => CollectedRow, updated();
}

record! {
    /// A removed transfer.
    pub struct PastTransferRow {
        /// Its purpose.
        pub kind: TransferKind,
    }
}
table! {
    /// Identifiers of removed transfers that no other row has. A bank may refuse a second transfer with the same
    /// identifier, and auditors pair transfers by it. (Transfers to merchants are in `wire_out`.)
    pub PastTransfers(49, "past_transfers"): WtidKey => PastTransferRow;
}
