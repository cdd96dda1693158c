//! The tests of this crate in one program, because linking one program is much quicker than linking one per
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod crash;
mod deeds;
mod discretion;
mod false_proofs;
mod flows;
mod lying_proxy;
mod people;
mod purchases;
mod random_lives;
