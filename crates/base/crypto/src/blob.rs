//! Authenticated encryption of blobs: nonce (24 bytes) ‖ XSalsa20-Poly1305 under a key derived from the
//! nonce, the key material and a label.

use crypto_secretbox::aead::{AeadInPlace, KeyInit};
use crypto_secretbox::{Key, Nonce, Tag, XSalsa20Poly1305};
use zeroize::Zeroizing;

use crate::CryptoError;
use crate::kdf::kdf;
use crate::random::random_array;

/// Size of the nonce in bytes.
pub const NONCE_SIZE: usize = 24;
/// Size of the authenticator in bytes.
pub(crate) const TAG_SIZE: usize = 16;

fn cipher(nonce: &[u8; NONCE_SIZE], key_material: &[u8], label: &[u8]) -> XSalsa20Poly1305 {
    let mut key = Zeroizing::new([0; 32]);
    kdf(&mut *key, nonce, key_material, &[label]);
    XSalsa20Poly1305::new(Key::from_slice(&*key))
}

/// Encrypts `plain` under a fresh nonce from the operating system's randomness.
#[must_use]
pub fn seal(key_material: &[u8], label: &[u8], plain: &[u8]) -> Vec<u8> {
    seal_with_nonce(&random_array(), key_material, label, plain)
}

/// Encrypts `plain` under the given nonce. Never use a nonce twice.
#[must_use]
pub fn seal_with_nonce(nonce: &[u8; NONCE_SIZE], key_material: &[u8], label: &[u8], plain: &[u8]) -> Vec<u8> {
    let start = NONCE_SIZE + TAG_SIZE;
    let mut blob = Vec::with_capacity(start + plain.len());
    blob.extend_from_slice(nonce);
    blob.extend_from_slice(&[0; TAG_SIZE]);
    blob.extend_from_slice(plain);
    let tag = cipher(nonce, key_material, label)
        .encrypt_in_place_detached(Nonce::from_slice(nonce), b"", &mut blob[start..])
        .expect("every text in memory is short enough for the cipher");
    blob[NONCE_SIZE..start].copy_from_slice(&tag);
    blob
}

/// Decrypts a blob. The plain text is wiped when dropped.
///
/// # Errors
///
/// [`CryptoError::DecryptionFailed`] if the blob is too short or not authentic under this key material and
/// label.
pub fn open(key_material: &[u8], label: &[u8], blob: &[u8]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
    let (nonce, rest) = blob.split_first_chunk::<NONCE_SIZE>().ok_or(CryptoError::DecryptionFailed)?;
    let (tag, encrypted) = rest.split_first_chunk::<TAG_SIZE>().ok_or(CryptoError::DecryptionFailed)?;
    let mut plain = Zeroizing::new(encrypted.to_vec());
    cipher(nonce, key_material, label)
        .decrypt_in_place_detached(Nonce::from_slice(nonce), b"", &mut plain, Tag::from_slice(tag))
        .map_err(|_| CryptoError::DecryptionFailed)?;
    Ok(plain)
}
