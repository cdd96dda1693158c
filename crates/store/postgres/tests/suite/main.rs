//! All tests of this crate in one program, because linking one program is much quicker than one for each
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod citus;
mod common;
mod conformance;
mod crash;
mod dbinit;
mod faults;
mod maintain;
mod model;
mod on_citus;
mod pooler;
mod queue;
mod replication;
mod tls;
mod values;
mod version;
mod views;
