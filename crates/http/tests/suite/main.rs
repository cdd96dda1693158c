//! The tests of this crate, as one program: linking one is much quicker than linking one per file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod concurrent;
mod fuzz_smoke;
mod handover;
mod limits;
mod listen;
mod nginx;
mod protocol;
mod shares;
