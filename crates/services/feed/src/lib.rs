//! The serial stream: an exchange with an embedded store ships its committed changes to an auditor.
//!
//! The exchange reads them from its journal ([`server`]) and sends them over a connection on which both sides
//! authenticate with their keys. The auditor applies them to a store of its own ([`client`]). A hash chain over the
//! commits ([`chain`]) is signed by both. So the auditor notices an exchange that has changed or lost what it shipped
//! before, and can prove what it was shipped. `docs/internals/feed.md` has the format and the limits.
//!
//! | module | contents |
//! |---|---|
//! | `change`, [`message`] | the protocol: bytes in, bytes out |
//! | [`chain`] | the hash chain and what is signed: pure functions |
//! | [`config`] | configuration of both sides |
//! | [`server`] | the exchange's side |
//! | [`client`] | the auditor's side |
//! | `lag`, [`metrics`] | how far the auditor is behind |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod chain;
mod change;
pub mod client;
pub mod config;
mod copy;
pub mod fuzz_entry;
mod io;
mod lag;
pub mod message;
pub mod metrics;
mod note;
pub mod server;

use std::sync::Arc;

use batzen_protocol::Timestamp;

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
