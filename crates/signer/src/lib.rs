//! The private keys of an exchange: storage, schedule, signing, and the signer process.
//!
//! An exchange reaches its keys through a [`custody::Custody`]. Either the keys are in its own process, or
//! signers hold them: processes that do nothing else, reached over an encrypted channel on which both sides
//! authenticate with their keys. `docs/signer.md` explains how to run signers, what they protect against, and
//! what they do not.
//!
//! | module | contents |
//! |---|---|
//! | [`config`], [`service_config`], [`address`] | configuration |
//! | [`schedule`] | when keys must exist: arithmetic |
//! | [`files`], [`modules`] | private keys on disk and in memory, their creation and erasure |
//! | [`listing`] | public information about the keys |
//! | [`local_signer`] | signing in batches with keys in this process |
//! | [`custody`] | signing with keys, wherever they are |
//! | [`frame`], [`items`], [`secrets`] | the protocol: bytes in, bytes out |
//! | [`policy`] | what a signer signs, for any client |
//! | [`channel`] | TLS with raw public keys |
//! | [`state`], [`server`], [`keeper`], [`persisted_role`], [`status`] | the signer process |
//! | [`client`], [`link`] | its clients |
//! | [`metrics`], [`page`] | counters of both, the signer's pages `/metrics` and `/dashboard` |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
pub mod channel;
pub mod client;
pub mod config;
pub mod custody;
pub mod files;
pub mod frame;
pub mod fuzz_entry;
pub mod items;
pub mod keeper;
pub mod link;
pub mod listing;
pub mod local_signer;
pub mod metrics;
pub mod modules;
pub mod page;
pub mod persisted_role;
pub mod policy;
pub mod schedule;
pub mod secrets;
pub mod server;
pub mod service_config;
pub mod state;
pub mod status;

mod server_limits;

pub use custody::{BlindOrder, Custody, DenomHandle, NotSigned, SigningHandle, ValuesOrder};
pub use modules::{HeldKey, KeyError, SecurityModules, SigningKey, load_or_create_eddsa};
