//! The programs and worlds that tests and the laboratory run beside Batzen, or Batzen itself as real processes.
//!
//! | module | contents |
//! |---|---|
//! | [`process`] | the real programs: run to completion, or as services that can be killed |
//! | [`setup`] | configuration of a bank and an exchange, and requests to them |
//! | [`ports`] | free ports, each given once |
//! | [`browser`] | a headless Chromium |
//! | [`damage`] | stores with flipped bits |
//! | `world` | a bank, an exchange and a shop in the test's process, with a clock that the test sets and a network that lies |
//! | [`postgres`] | temporary PostgreSQL clusters, and proxies that cut connections |

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

pub mod browser;
pub mod damage;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod setup;
#[cfg(feature = "world")]
pub mod world;
