//! Blind RSA signatures with a full-domain hash (Chaum 1983), as the Taler exchange API defines them.
//!
//! Integers are big endian bytes without leading zeros, so they are sometimes a byte shorter than the modulus. What is
//! read may have leading zeros.

mod key;
mod safegcd;

pub use key::{MAX_BITS, MIN_BITS, RsaPrivateKey, RsaPublicKey};

use zeroize::Zeroizing;

use crate::kdf::{Extractor, trim_leading_zeros};
use crate::random::fill_random;
use crate::{BlindingSecret, CryptoError, HashCode};

/// Number of random factors to try when a secret is hidden from the variable-time gcd. A random number has a common
/// factor with an honest modulus never, with the worst modulus of the largest size with a probability of about 0.9.
const BLINDING_ATTEMPTS: usize = 1000;

/// The message hash f for `message`, in the size of the modulus.
fn full_domain_hash(key: &RsaPublicKey, message: &HashCode) -> Vec<u8> {
    let mut out = vec![0; key.modulus().len()];
    key.extractor().extract(message.as_bytes()).expand_mod_into(&mut out, key.modulus(), b"RSA-FDA FTpsW!");
    out
}

/// The blinding factor r, in the size of the modulus.
fn blinding_factor(key: &RsaPublicKey, secret: &BlindingSecret) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; key.modulus().len()]);
    Extractor::new(b"Blinding KDF extractor HMAC key").extract(secret.as_bytes()).expand_mod_into(
        &mut out,
        key.modulus(),
        b"Blinding KDF",
    );
    out
}

/// A random factor t coprime to the modulus, and `secret` · t mod n, which says nothing about `secret`.
fn hide(key: &RsaPublicKey, secret: &[u8]) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CryptoError> {
    let n = key.modulus();
    let mut factor = Zeroizing::new(vec![0; n.len()]);
    for _ in 0..BLINDING_ATTEMPTS {
        fill_random(&mut factor);
        factor[0] &= u8::MAX >> n[0].leading_zeros();
        if factor.as_slice() < n && key.is_coprime(&factor) {
            let mut hidden = vec![0; n.len()];
            key.arithmetic().secret_product(secret, &factor, &mut hidden)?;
            return Ok((factor, hidden));
        }
    }
    Err(CryptoError::MaliciousKey)
}

/// Blinds `message`: f · r^e mod n.
///
/// # Errors
///
/// [`CryptoError::MaliciousKey`] if f or r has a common factor with n. Such a key could mark the coins it signs.
pub fn blind(
    key: &RsaPublicKey,
    message: &HashCode,
    secret: &BlindingSecret,
) -> Result<Vec<u8>, CryptoError> {
    let hash = full_domain_hash(key, message);
    let factor = blinding_factor(key, secret);
    if !key.is_own() {
        // r must stay secret, and the gcd takes variable time, so it sees r times a random unit: same common factors.
        let (_, hidden) = hide(key, &factor)?;
        if !key.is_coprime(&hash) || !key.is_coprime(&hidden) {
            return Err(CryptoError::MaliciousKey);
        }
    }
    let mut out = vec![0; key.modulus().len()];
    key.arithmetic().blind(&hash, &factor, &mut out)?;
    Ok(without_leading_zeros(out))
}

/// Takes the blinding off a blind signature: (blind signature) · r^−1 mod n. The result is not verified.
///
/// # Errors
///
/// [`CryptoError::OutOfRange`] if the blind signature is not below n, [`CryptoError::MaliciousKey`] if r has a common
/// factor with n.
pub fn unblind(
    key: &RsaPublicKey,
    blind_signature: &[u8],
    secret: &BlindingSecret,
) -> Result<Vec<u8>, CryptoError> {
    let blind_signature = key.reduced(blind_signature)?;
    let factor = blinding_factor(key, secret);
    let (t, hidden) = hide(key, &factor)?;
    // 1/(r·t) · t = 1/r.
    let inverse = Zeroizing::new(key.invert(&hidden).ok_or(CryptoError::MaliciousKey)?);
    let mut unblinding = Zeroizing::new(vec![0; key.modulus().len()]);
    key.arithmetic().secret_product(&inverse, &t, &mut unblinding)?;
    let mut out = vec![0; key.modulus().len()];
    key.arithmetic().secret_product(&unblinding, &blind_signature, &mut out)?;
    Ok(without_leading_zeros(out))
}

/// Signs blinded messages, each with its key: (blinded message)^d mod n, in the order of the arguments.
///
/// Constant time, blinded, and checked against faults before anything is released. Per item, the result is
/// [`CryptoError::OutOfRange`] if the blinded message is not below n or is one of 0, 1 and n − 1, which no blinding
/// gives and whose signatures everybody knows; [`CryptoError::Fault`] if the computation failed its check.
#[must_use]
pub fn sign_batch(items: &[(&RsaPrivateKey, &[u8])]) -> Vec<Result<Vec<u8>, CryptoError>> {
    items.iter().map(|(key, blinded)| sign_one(key, blinded)).collect()
}

fn sign_one(key: &RsaPrivateKey, blinded: &[u8]) -> Result<Vec<u8>, CryptoError> {
    let public = key.public();
    let n = public.modulus();
    let value = public.reduced(blinded)?;
    let (last, front) = value.split_last().expect("a modulus has bytes");
    let (n_last, n_front) = n.split_last().expect("a modulus has bytes");
    // n is odd, so n − 1 differs from it in the last bit alone.
    let tiny = *last <= 1 && front.iter().all(|&byte| byte == 0);
    if tiny || (front == n_front && *last == *n_last - 1) {
        return Err(CryptoError::OutOfRange);
    }
    let mut out = vec![0; n.len()];
    key.private_power(&value, &mut out)?;
    Ok(without_leading_zeros(out))
}

/// Whether the equation s^e = f mod n holds; f is left in `hash`.
fn equation_holds(key: &RsaPublicKey, message: &HashCode, signature: &[u8], hash: &mut Vec<u8>) -> bool {
    let signature = trim_leading_zeros(signature);
    // A signature from n on verifies like its remainder. Nobody makes one that is longer than twice the modulus.
    if signature.is_empty() || signature.len() > 2 * key.modulus().len() {
        return false;
    }
    *hash = full_domain_hash(key, message);
    let mut power = vec![0; hash.len()];
    key.arithmetic().public_power(signature, &mut power).is_ok() && power == *hash
}

/// Whether `signature` is a valid signature of `message`, and the key not a malicious one.
#[must_use]
pub fn verify(key: &RsaPublicKey, message: &HashCode, signature: &[u8]) -> bool {
    let mut hash = Vec::new();
    equation_holds(key, message, signature, &mut hash) && (key.is_own() || key.is_coprime(&hash))
}

/// Verifies many signatures; the verdicts stand in the order of the arguments and are exactly those of [`verify`].
///
/// What is shared are the gcds: neighbours with the same key have one for all, of the product of their hashes. Only if
/// that finds a common factor each is looked at alone.
#[must_use]
pub fn verify_batch(items: &[(&RsaPublicKey, &HashCode, &[u8])]) -> Vec<bool> {
    let mut verdicts = vec![false; items.len()];
    let mut hashes: Vec<(usize, Vec<u8>)> = Vec::new();
    for (index, (key, message, signature)) in items.iter().enumerate() {
        let mut hash = Vec::new();
        verdicts[index] = equation_holds(key, message, signature, &mut hash);
        if verdicts[index] && !key.is_own() {
            hashes.push((index, hash));
        }
        let is_last_of_key = items.get(index + 1).is_none_or(|(next, ..)| !key.is_same_object(next));
        if is_last_of_key && !hashes.is_empty() {
            let mut product = vec![0; key.modulus().len()];
            let values = hashes.iter().map(|(_, hash)| hash.as_slice());
            let done = key.arithmetic().product_for_gcd(values, &mut product);
            if done.is_err() || !key.is_coprime(&product) {
                for (index, hash) in &hashes {
                    verdicts[*index] = key.is_coprime(hash);
                }
            }
            hashes.clear();
        }
    }
    verdicts
}

fn without_leading_zeros(mut bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    bytes.drain(..zeros);
    bytes
}
