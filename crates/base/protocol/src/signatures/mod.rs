//! Every signed message, with its own type.
//!
//! A message begins with its size and purpose (4 bytes each, big endian), then come the fields in order,
//! packed. A verifier fills in the type from its own data and never takes purpose or size from its peer. Only
//! the age attestation is missing here: it is signed by an age commitment key, and is in `batzen_crypto`.
//!
//! ```
//! use batzen_crypto::EddsaPrivateKey;
//! use batzen_protocol::Timestamp;
//! use batzen_protocol::signatures::{SignedMessage, WalletReserveStatus};
//!
//! let key = EddsaPrivateKey::generate();
//! let request = WalletReserveStatus { request_timestamp: Timestamp::from_secs(1_700_000_000) };
//! let signature = request.sign(&key);
//! assert!(request.verify(&key.public_key(), &signature));
//! assert_eq!(request.message().len(), 16);
//! ```

mod exchange;
mod liabilities;
mod master;
mod others;
mod wallet;

use batzen_crypto::{
    BlindingSecret, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExpandedSigner,
    HashCode, ShortHash, Wtid, eddsa,
};

pub use exchange::*;
pub use liabilities::*;
pub use master::*;
pub use others::*;
pub use wallet::*;

use crate::{Amount, Duration, Timestamp};

/// A message with a purpose that can be signed and verified.
pub trait SignedMessage {
    /// The number that distinguishes messages of different meaning.
    const PURPOSE: u32;
    /// Size of the whole message in bytes, header included.
    const SIZE: usize;
    /// An array of [`SignedMessage::SIZE`] bytes.
    type Message: AsRef<[u8]>;

    /// The bytes to sign.
    fn message(&self) -> Self::Message;

    /// Signs with a private key. Use [`SignedMessage::sign_with`] for many signatures with one key.
    fn sign(&self, key: &EddsaPrivateKey) -> EddsaSignature {
        key.sign(self.message().as_ref())
    }

    /// Signs with a prepared key.
    fn sign_with(&self, signer: &ExpandedSigner) -> EddsaSignature {
        signer.sign(self.message().as_ref())
    }

    /// Returns whether the signature is by `key` over exactly this message.
    #[must_use]
    fn verify(&self, key: &EddsaPublicKey, signature: &EddsaSignature) -> bool {
        eddsa::verify(key, self.message().as_ref(), signature)
    }
}

/// Size of the header of every message: total size and purpose.
pub const HEADER_SIZE: usize = 8;

/// A value that can be a field of signed messages.
pub(crate) trait Field {
    /// Its size there, in bytes.
    const SIZE: usize;
    /// Writes it; `out` has exactly that size.
    fn put(&self, out: &mut [u8]);
}

macro_rules! byte_fields {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const SIZE: usize = <$type>::SIZE;
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(self.as_bytes());
            }
        }
    )*};
}

byte_fields!(HashCode, ShortHash, EddsaPublicKey, EddsaSignature, EcdhePublicKey, BlindingSecret, Wtid);

impl Field for u32 {
    const SIZE: usize = 4;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_be_bytes());
    }
}

impl Field for u64 {
    const SIZE: usize = 8;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_be_bytes());
    }
}

impl Field for Timestamp {
    const SIZE: usize = 8;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_nbo());
    }
}

impl Field for Duration {
    const SIZE: usize = 8;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_nbo());
    }
}

impl Field for Amount {
    const SIZE: usize = Amount::NBO_SIZE;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_nbo());
    }
}

/// A field that is always zero in this version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Zeros<const N: usize>;

impl<const N: usize> Field for Zeros<N> {
    const SIZE: usize = N;
    fn put(&self, out: &mut [u8]) {
        out.fill(0);
    }
}

/// Name of an operation: the first 8 bytes are signed, padded with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationName([u8; 8]);

impl OperationName {
    /// From the full name, e.g. `RECOUP-REFRESH`.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0u8; 8];
        for (out, byte) in bytes.iter_mut().zip(name.bytes()) {
            *out = byte;
        }
        Self(bytes)
    }
}

impl Field for OperationName {
    const SIZE: usize = 8;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
}

/// Defines messages: `PURPOSE Name(SIZE) { field: Type, … }`. The layout follows from the order of the
/// fields, and the size is checked against their sum when it is compiled.
macro_rules! signed_messages {
    ($(
        $(#[doc = $doc:literal])*
        $purpose:literal $name:ident($size:literal) {
            $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty, )*
        }
    )*) => {$(
        $(#[doc = $doc])*
        #[doc = ""]
        #[doc = concat!("Purpose ", $purpose, ", ", $size, " bytes.")]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
        }

        const _: () = assert!(
            $size == $crate::signatures::HEADER_SIZE $( + <$type as $crate::signatures::Field>::SIZE )*
        );

        impl $crate::signatures::SignedMessage for $name {
            const PURPOSE: u32 = $purpose;
            const SIZE: usize = $size;
            type Message = [u8; $size];

            fn message(&self) -> [u8; $size] {
                let mut out = [0u8; $size];
                out[..4].copy_from_slice(&(($size) as u32).to_be_bytes());
                out[4..8].copy_from_slice(&(($purpose) as u32).to_be_bytes());
                // Without fields the rest is empty and not used.
                #[allow(unused_mut, unused_variables)]
                let mut rest = &mut out[$crate::signatures::HEADER_SIZE..];
                $(
                    let (field, after) = rest.split_at_mut(<$type as $crate::signatures::Field>::SIZE);
                    $crate::signatures::Field::put(&self.$field, field);
                    rest = after;
                )*
                debug_assert!(rest.is_empty());
                out
            }
        }
    )*};
}

use signed_messages;
