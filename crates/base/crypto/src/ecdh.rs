//! Key exchange on Curve25519. The result is always SHA-512 of the shared u-coordinate.

use crate::eddsa::decompress;
#[cfg(target_arch = "x86_64")]
use crate::eddsa::may_be_point;
use crate::hash::sha512_secret;
use crate::lanes::Choice;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Wiped, curve};
use crate::{
    CryptoError, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, Path, TransferSecret, lc,
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

/// The fewest exchanges for which lanes are faster.
const FEWEST: usize = 2;

/// The public keys of many private keys, in the order of the arguments. Computes eight at once if the
/// processor can, in time that does not depend on the secrets.
#[must_use]
pub fn public_keys(keys: &[&EcdhePrivateKey]) -> Vec<EcdhePublicKey> {
    public_keys_by(Choice::Fastest, keys)
}

/// [`public_keys`] by the chosen implementation, however many there are.
#[must_use]
pub fn public_keys_with(path: Path, keys: &[&EcdhePrivateKey]) -> Vec<EcdhePublicKey> {
    public_keys_by(Choice::Only(path), keys)
}

pub(crate) fn public_keys_by(choice: Choice, keys: &[&EcdhePrivateKey]) -> Vec<EcdhePublicKey> {
    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(keys.len(), FEWEST) {
        let scalars: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        return curve::x25519_public_each(&scalars).into_iter().map(EcdhePublicKey::from_bytes).collect();
    }
    let _ = (choice, FEWEST);
    keys.iter().map(|key| key.public_key()).collect()
}

/// Many key exchanges of two ECDHE keys, equal to those of [`ecdh`], in the order of the arguments. Computes
/// eight at once if the processor can, in time that does not depend on the secrets.
#[must_use]
pub fn ecdh_batch(items: &[(&EcdhePrivateKey, &EcdhePublicKey)]) -> Vec<TransferSecret> {
    ecdh_by(Choice::Fastest, items)
}

/// [`ecdh_batch`] by the chosen implementation, however many there are.
#[must_use]
pub fn ecdh_batch_with(path: Path, items: &[(&EcdhePrivateKey, &EcdhePublicKey)]) -> Vec<TransferSecret> {
    ecdh_by(Choice::Only(path), items)
}

fn ecdh_by(choice: Choice, items: &[(&EcdhePrivateKey, &EcdhePublicKey)]) -> Vec<TransferSecret> {
    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(items.len(), FEWEST) {
        let scalars: Vec<_> = items.iter().map(|(private, _)| private.as_bytes()).collect();
        let us: Vec<_> = items.iter().map(|(_, public)| public.as_bytes()).collect();
        return hashed(&curve::x25519_each(&scalars, &us)).collect();
    }
    let _ = choice;
    items.iter().map(|(private, public)| ecdh(private, public)).collect()
}

/// Many key exchanges of ECDHE private keys with EdDSA public keys; the results are exactly those of
/// [`ecdh_eddsa_pub`], in the order of the arguments. Computes eight at once if the processor can, in time
/// that does not depend on the secrets.
#[must_use]
pub fn ecdh_eddsa_pubs(
    items: &[(&EcdhePrivateKey, &EddsaPublicKey)],
) -> Vec<Result<TransferSecret, CryptoError>> {
    ecdh_eddsa_pubs_by(Choice::Fastest, items)
}

/// [`ecdh_eddsa_pubs`] by the chosen implementation, however many there are.
#[must_use]
pub fn ecdh_eddsa_pubs_with(
    path: Path,
    items: &[(&EcdhePrivateKey, &EddsaPublicKey)],
) -> Vec<Result<TransferSecret, CryptoError>> {
    ecdh_eddsa_pubs_by(Choice::Only(path), items)
}

pub(crate) fn ecdh_eddsa_pubs_by(
    choice: Choice,
    items: &[(&EcdhePrivateKey, &EddsaPublicKey)],
) -> Vec<Result<TransferSecret, CryptoError>> {
    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(items.len(), FEWEST) {
        let mut results: Vec<_> = items.iter().map(|_| Err(CryptoError::InvalidPoint)).collect();
        // Items that are refused without computation take no lane.
        let indices: Vec<_> =
            (0..items.len()).filter(|&index| may_be_point(items[index].1.as_bytes())).collect();
        let scalars: Vec<_> = indices.iter().map(|&index| items[index].0.as_bytes()).collect();
        let points: Vec<_> = indices.iter().map(|&index| items[index].1.as_bytes()).collect();
        let (shared, exist) = curve::x25519_with_points(&scalars, &points);
        for ((index, secret), exists) in indices.into_iter().zip(hashed(&shared)).zip(exist) {
            if exists {
                results[index] = Ok(secret);
            }
        }
        return results;
    }
    let _ = choice;
    items.iter().map(|(private, public)| ecdh_eddsa_pub(private, public)).collect()
}

/// The secrets computed from shared u-coordinates.
#[cfg(target_arch = "x86_64")]
fn hashed(shared: &Wiped<32>) -> impl Iterator<Item = TransferSecret> {
    let messages: Vec<_> = shared.0.iter().map(|u| [&u[..], &[], &[]]).collect();
    let hashes = Wiped(curve::sha512_each(&messages, true));
    (0..hashes.0.len()).map(move |index| TransferSecret::from_bytes(hashes.0[index]))
}
