//! The life of keys: when they must exist ([`schedule`]), where they are kept ([`files`], [`modules`]), what is published
//! about them ([`KeyState`]), and who keeps all that up to date ([`keeper`]).

pub mod files;
pub mod keeper;
pub mod modules;
pub mod schedule;

mod listing;
mod signer;
mod state;

pub use listing::{KeysAnswer, WireAnswer, WireMissing};
pub use modules::{HeldKey, KeyError, SecurityModules, SigningKey, load_or_create_eddsa};
pub use signer::{BlindOrder, NotSigned, Signer, ValuesOrder, blind_sign_batch, derive_values};
pub use state::{Denom, KeyState, NoSigningKey, OnlineKey};
