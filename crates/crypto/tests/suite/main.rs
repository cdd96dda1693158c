//! The tests of this crate, as one program: linking one is much quicker than linking one a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clause_schnorr;
mod coins;
mod curve25519;
mod fuzz_smoke;
mod lanes;
mod secrets;
mod vectors;
