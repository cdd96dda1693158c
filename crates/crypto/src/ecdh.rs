//! Key exchange on Curve25519. The result is always SHA-512 of the shared u-coordinate.

use crate::eddsa::decompress;
use crate::hash::sha512_secret;
use crate::{
    CryptoError, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, TransferSecret, lc,
};

impl EcdhePrivateKey {
    /// The public key: X25519 of this key and the base point.
    #[must_use]
    pub fn public_key(&self) -> EcdhePublicKey {
        EcdhePublicKey::from_bytes(lc::x25519_public(self.as_bytes()))
    }
}

fn exchange(scalar: &[u8; 32], u: &[u8; 32]) -> TransferSecret {
    TransferSecret::from_bytes(*sha512_secret(&[&*lc::x25519(scalar, u)]))
}

/// Key exchange of two ECDHE keys.
#[must_use]
pub fn ecdh(private: &EcdhePrivateKey, public: &EcdhePublicKey) -> TransferSecret {
    exchange(private.as_bytes(), public.as_bytes())
}

/// Key exchange of an ECDHE private key with an EdDSA public key.
///
/// # Errors
///
/// [`CryptoError::InvalidPoint`] if `public` cannot be a valid EdDSA public key.
pub fn ecdh_eddsa_pub(
    private: &EcdhePrivateKey,
    public: &EddsaPublicKey,
) -> Result<TransferSecret, CryptoError> {
    let point = decompress(public.as_bytes()).ok_or(CryptoError::InvalidPoint)?;
    Ok(exchange(private.as_bytes(), point.to_montgomery().as_bytes()))
}

/// Key exchange of an EdDSA private key with an ECDHE public key: the other side of [`ecdh_eddsa_pub`].
#[must_use]
pub fn ecdh_eddsa_priv(private: &EddsaPrivateKey, public: &EcdhePublicKey) -> TransferSecret {
    let expanded = sha512_secret(&[private.as_bytes()]);
    exchange(expanded.first_chunk().expect("64 bytes hold 32"), public.as_bytes())
}
