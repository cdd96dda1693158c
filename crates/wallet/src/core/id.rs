//! Numbers of records.

/// Number of an operation, counted from 1.
pub type OpId = u64;

/// Number of an evidence record, counted from 1.
pub(crate) type EvidenceId = u64;
