//! The life of keys: what is published about them ([`KeyState`]), and who keeps that up to date ([`keeper`]). The private
//! keys are `batzen_signer`'s, in this process or elsewhere.

pub mod keeper;

mod listing;
mod signer;
mod state;

pub use batzen_signer::{KeyError, NotSigned, SigningHandle, load_or_create_eddsa};
pub use listing::{KeysAnswer, WireAnswer, WireMissing};
pub use signer::Signer;
pub use state::{Denom, KeyState, NoSigningKey, OnlineKey};
