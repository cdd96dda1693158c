//! The tests of this crate, as one program: linking one is much quicker than linking one a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod approvals;
mod approvals_model;
mod bulks;
mod clearing;
mod common;
mod faults;
mod operators;
mod routing;
