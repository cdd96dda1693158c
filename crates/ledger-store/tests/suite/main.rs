//! The tests of this crate, as one program: that links much faster than one program per file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod crash;
mod simulation;
mod snapshots;
mod verification;
mod world;
