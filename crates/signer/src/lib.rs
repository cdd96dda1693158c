//! The private keys of an exchange: where they are kept, when they must exist, what is signed with them, and by whom.
//!
//! An exchange reaches its keys through a [`custody::Custody`]: either they are in its own process, or signers hold them,
//! processes that do nothing else and are reached over an encrypted channel on which both sides know each other by their
//! keys. `docs/signer.md` says how to run signers, what they protect from, and what they do not.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`], [`service_config`], [`address`] | what operators configure |
//! | [`schedule`] | when keys must exist: arithmetic |
//! | [`files`], [`modules`] | private keys on disk and in memory, their creation and end |
//! | [`listing`] | what others may know of them |
//! | [`local_signer`] | signing in batches with keys that are here |
//! | [`custody`] | signing with keys wherever they are |
//! | [`frame`], [`items`], [`secrets`] | the protocol: bytes in, bytes out |
//! | [`policy`] | what a signer signs, whoever asks |
//! | [`channel`] | TLS with raw public keys |
//! | [`state`], [`server`], [`keeper`], [`persisted_role`], [`status`] | the signer |
//! | [`client`], [`link`] | those who ask it |
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
