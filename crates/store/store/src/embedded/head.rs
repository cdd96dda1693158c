//! A position of the journal, with the segments as they are there.

/// Where replay continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub segment: u32,
    pub offset: u64,
    pub sequence: u64,
    pub serial_next: u64,
}

/// The state of a segment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub number: u32,
    pub used: u64,
    pub tombstones: u64,
    pub live: u64,
}

/// A position of the journal, and the segments there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub position: Position,
    pub segments: Vec<SegmentHead>,
}
