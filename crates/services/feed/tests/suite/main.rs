//! Exchange and auditor in one process, with stores on disk and a real connection.

#![allow(clippy::unwrap_used, reason = "tests")]

mod follow;
mod rewritten;
mod unsure;
mod world;
