//! The laboratory: [`bench`] measures Batzen, [`demo`] shows it at work, [`experiment`] sets a whole system up on many hosts,
//! [`participants`] simulates the banks at a switch, and [`shop`] is an example of a shop that gets paid.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod bench;
pub mod demo;
pub mod experiment;
pub mod participants;
pub mod shop;
