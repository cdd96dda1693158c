//! The tests of this crate, as one program: linking one is much quicker than linking one a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod citus;
mod common;
mod conformance;
mod crash;
mod dbinit;
mod faults;
mod maintain;
mod model;
mod queue;
mod replication;
mod tls;
mod values;
mod version;
mod views;
