//! What the fuzz target runs: both sides of a connection with many requests at once, with somebody hostile at the other end. A
//! panic is a finding.

pub use crate::concurrent::fuzz::concurrent;
