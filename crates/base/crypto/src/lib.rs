//! Cryptography of the Taler exchange protocol, byte for byte: hashes and key derivation, Ed25519, X25519,
//! blind RSA and Clause Blind Schnorr signatures, planchets, refresh and age restriction.
//!
//! This crate does no I/O, reads no clock, and takes randomness only from the operating system, in functions
//! named `generate` or documented to do so. Everything else is a pure function of its arguments.
//!
//! Secrets are kept in types that are wiped when dropped, compare in constant time and never print
//! themselves.

pub mod age;
pub mod base32;
pub mod blob;
mod bytes;
pub mod cs;
pub mod denom;
pub mod ecdh;
pub mod eddsa;
mod error;
pub mod fuzz_entry;
pub mod hash;
pub mod kdf;
mod lanes;
mod lc;
#[cfg(feature = "openapi")]
mod openapi;
mod planchet;
mod random;
pub mod refresh;
pub mod rsa;
#[cfg(feature = "serde")]
mod serde_impls;
mod set_hash;
mod types;

pub use age::{AgeCommitment, AgeCommitmentProof, AgeMask};
pub use cs::{CsBlindSignature, CsOperation, CsSignature, CsSigningKey, CsVerifyingKey};
pub use denom::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, DenomKey, DenomPrivateKey, DenomPublicKey,
    DenomSignature, ExchangeWithdrawValues, UnblindState,
};
pub use eddsa::ExpandedSigner;
pub use error::CryptoError;
pub use lanes::Path;
pub use planchet::CoinSecrets;
pub use random::fill_random;
pub use rsa::{RsaPrivateKey, RsaPublicKey};
pub use set_hash::SetHash;
pub use types::*;
