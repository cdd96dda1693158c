//! The auditor's service over HTTP, its rows for programs, and its offline tool.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod books;
mod common;
mod confirmations;
mod database;
mod live;
mod offline;
mod outside;
mod recorded;
