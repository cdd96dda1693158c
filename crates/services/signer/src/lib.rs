//! The private keys of an exchange: storage, schedule, signing, and the signer process.
//!
//! An exchange reaches its keys through a [`custody::Custody`]. Either the keys are in its own process, or
//! other processes hold them, which do nothing else: signers, reached over an encrypted channel on which both
//! sides authenticate with their keys, or key helpers, one for each kind of key, reached over local sockets.
//! `docs/signer.md` explains how to run them, what they protect against, and what they do not.
//!
//! | module | contents |
//! |---|---|
//! | [`config`], [`service_config`], [`address`] | configuration |
//! | `schedule` | when keys must exist: arithmetic |
//! | [`files`], `modules` | private keys on disk and in memory, their creation and erasure |
//! | [`listing`] | public information about the keys |
//! | `local_signer` | signing in batches with keys in this process |
//! | `custody` | signing with keys, wherever they are |
//! | [`frame`], [`items`], [`secrets`] | the protocol: bytes in, bytes out |
//! | `policy` | what a signer signs, for any client |
//! | [`channel`] | TLS with raw public keys |
//! | [`state`], [`server`], [`keeper`], `persisted_role`, [`status`] | the signer or key helper process |
//! | [`client`], [`link`] | its clients |
//! | [`keyholders`] | the signers or key helpers of an exchange |
//! | [`metrics`], [`page`] | counters of both, the signer's pages `/metrics` and `/dashboard` |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
pub mod channel;
pub mod client;
pub mod config;
mod custody;
pub mod dashboard;
pub mod files;
pub mod frame;
pub mod fuzz_entry;
pub mod items;
pub mod keeper;
pub mod keyholders;
pub mod link;
pub mod listing;
mod local_signer;
pub mod metrics;
mod modules;
pub mod page;
mod persisted_role;
mod policy;
mod schedule;
pub mod secrets;
pub mod server;
pub mod service_config;
pub mod state;
pub mod status;

mod server_limits;

pub use custody::{BlindOrder, Custody, DenomHandle, NotSigned, SigningHandle, ValuesOrder};
pub use modules::{KeyError, SecurityModules, SigningKey, load_or_create_eddsa};
