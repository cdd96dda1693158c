//! Cryptography of the Taler exchange protocol, byte for byte: hashes and key derivation, Ed25519, X25519,
//! blind RSA and Clause Blind Schnorr signatures, planchets, refresh and age restriction.
//!
//! This crate does no I/O, reads no clock, and takes randomness only from the operating system, in functions
//! named `generate` or documented to do so. Everything else is a pure function of its arguments.
//!
//! Secrets live in types that are wiped when dropped, compare in constant time and never print themselves.

pub mod base32;
mod bytes;
pub mod ecdh;
pub mod eddsa;
mod error;
pub mod hash;
pub mod kdf;
mod lc;
mod random;
mod types;

pub use eddsa::ExpandedSigner;
pub use error::CryptoError;
pub use random::fill_random;
pub use types::*;
