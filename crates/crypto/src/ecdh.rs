//! Key exchange on Curve25519. The result is always SHA-512 of the shared u-coordinate.

use curve25519_dalek::MontgomeryPoint;
use zeroize::Zeroizing;

use crate::eddsa::decompress;
use crate::hash::sha512;
use crate::{CryptoError, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, TransferSecret};

impl EcdhePrivateKey {
    /// The public key: X25519 of this key and the base point.
    #[must_use]
    pub fn public_key(&self) -> EcdhePublicKey {
        EcdhePublicKey::from_bytes(MontgomeryPoint::mul_base_clamped(*self.as_bytes()).to_bytes())
    }
}

fn exchange(scalar: &[u8; 32], u: MontgomeryPoint) -> TransferSecret {
    let shared = Zeroizing::new(u.mul_clamped(*scalar).to_bytes());
    TransferSecret::from_bytes(*sha512(&*shared).as_bytes())
}

/// Key exchange of two ECDHE keys.
#[must_use]
pub fn ecdh(private: &EcdhePrivateKey, public: &EcdhePublicKey) -> TransferSecret {
    exchange(private.as_bytes(), MontgomeryPoint(*public.as_bytes()))
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
    Ok(exchange(private.as_bytes(), point.to_montgomery()))
}

/// Key exchange of an EdDSA private key with an ECDHE public key: the other side of [`ecdh_eddsa_pub`].
#[must_use]
pub fn ecdh_eddsa_priv(private: &EddsaPrivateKey, public: &EcdhePublicKey) -> TransferSecret {
    let expanded = Zeroizing::new(*sha512(private.as_bytes()).as_bytes());
    let scalar = expanded.first_chunk().expect("64 bytes hold 32");
    exchange(scalar, MontgomeryPoint(*public.as_bytes()))
}
