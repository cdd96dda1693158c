//! Reads of the store outside of a batch: rows for answers and workers, and the balance sheet.

pub(crate) mod archive;
pub mod garbage;
pub mod kyc;
pub mod read;
pub mod sheet;
pub mod totals;
