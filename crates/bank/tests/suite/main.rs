//! The tests of this crate, as one program: linking one is much quicker than linking one a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod common;
mod concurrent;
mod crash;
mod faults;
mod gateway;
mod passwords;
mod rules;
mod web;
