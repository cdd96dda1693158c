//! The tests of this crate in one program, because linking one program is much quicker than linking one per
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod memory;
mod model;
mod outbox;
mod search;
