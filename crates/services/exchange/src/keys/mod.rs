//! The life cycle of keys: the published snapshot ([`KeyState`]) and the task that updates it (`keeper`).
//! `batzen_signer` holds the private keys, in this process or elsewhere.

pub(crate) mod keeper;

pub(crate) mod calendar;

mod listing;
mod signer;
mod state;

pub use batzen_signer::{KeyError, NotSigned, load_or_create_eddsa};
pub(crate) use keeper::KeyRoundError;
pub(crate) use listing::{KeysAnswer, WireAnswer, WireMissing};
pub use signer::Signer;
pub use state::{Denom, KeyState};
pub(crate) use state::{NoSigningKey, OnlineKey};
