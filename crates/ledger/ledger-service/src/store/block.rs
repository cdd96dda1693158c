//! A row of the log, as its index has it.

/// A row of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The number of its first record.
    pub(crate) first: u64,
    /// The timestamp of the last movement in this row or an earlier one.
    pub(crate) last_movement: u64,
}
