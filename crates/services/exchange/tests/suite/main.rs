//! All tests of this crate in one program, because linking one program is much quicker than one for each
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod keys;
mod oauth;
mod replay;
mod rules;
mod running;
mod tampering;
mod workers;
