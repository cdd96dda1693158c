//! A position of the journal, with the segments as they are there.

/// Where replay continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub segment: u32,
    pub offset: u64,
    pub sequence: u64,
    pub(crate) serial_next: u64,
}

/// The state of a segment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub number: u32,
    pub(crate) used: u64,
    pub(crate) tombstones: u64,
    pub(crate) live: u64,
}

/// A position of the journal, and the segments there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) position: Position,
    pub(crate) segments: Vec<SegmentHead>,
}
