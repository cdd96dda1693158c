//! Blind RSA signatures with a full-domain hash (Chaum 1983), as the Taler exchange API defines them.
//!
//! Integers are big endian bytes without leading zeros, so they are sometimes a byte shorter than the
//! modulus. Input may have leading zeros.

mod batch;
mod blinding;
mod key;
mod safegcd;

pub use key::{MAX_BITS, MIN_BITS, RsaPrivateKey, RsaPublicKey};

use zeroize::Zeroizing;

use crate::kdf::{Extractor, trim_leading_zeros};
use crate::lanes::Choice;
use crate::random::fill_random;
use crate::{BlindingSecret, CryptoError, HashCode, Path};

/// Number of random factors to try when hiding a secret from the variable-time gcd. A random number never has
/// a common factor with an honest modulus; with the worst modulus of the largest size, the probability is
/// about 0.9.
const BLINDING_ATTEMPTS: usize = 1000;

/// The message hash f for `message`, in the size of the modulus.
fn full_domain_hash(key: &RsaPublicKey, message: &HashCode) -> Vec<u8> {
    let mut out = vec![0; key.modulus().len()];
    key.extractor().extract(message.as_bytes()).expand_mod_into(&mut out, key.modulus(), b"RSA-FDA FTpsW!");
    out
}

/// Salt of the derivation of blinding factors.
pub(crate) const BLINDING_SALT: &[u8] = b"Blinding KDF extractor HMAC key";
/// The domain separator of that derivation.
pub(crate) const BLINDING_CONTEXT: &[u8] = b"Blinding KDF";

/// The blinding factor r, in the size of the modulus.
fn blinding_factor(key: &RsaPublicKey, secret: &BlindingSecret) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; key.modulus().len()]);
    let prk = Extractor::new(BLINDING_SALT).extract(secret.as_bytes());
    prk.expand_mod_into(&mut out, key.modulus(), BLINDING_CONTEXT);
    out
}

/// A random number below the modulus, in its size.
fn random_below(key: &RsaPublicKey) -> Zeroizing<Vec<u8>> {
    let n = key.modulus();
    let mut out = Zeroizing::new(vec![0; n.len()]);
    loop {
        fill_random(&mut out);
        out[0] &= u8::MAX >> n[0].leading_zeros();
        if out.as_slice() < n {
            return out;
        }
    }
}

/// A random factor t coprime to the modulus, and `secret` · t mod n, which reveals nothing about `secret`.
fn hide(key: &RsaPublicKey, secret: &[u8]) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CryptoError> {
    for _ in 0..BLINDING_ATTEMPTS {
        let factor = random_below(key);
        // A random number never has a common factor with the product of two large primes.
        if key.is_own() || key.is_coprime(&factor) {
            let mut hidden = vec![0; factor.len()];
            key.arithmetic().secret_product(secret, &factor, &mut hidden)?;
            return Ok((factor, hidden));
        }
    }
    Err(CryptoError::MaliciousKey)
}

/// A random factor r for blinding a private operation: r^e and 1/r modulo n, big endian.
#[cfg(target_arch = "x86_64")]
pub(crate) fn random_blinding(key: &RsaPublicKey) -> Result<[Zeroizing<Vec<u8>>; 2], CryptoError> {
    let factor = random_below(key);
    let mut power = Zeroizing::new(vec![0; factor.len()]);
    key.arithmetic().blind(&[1], &factor, &mut power)?;
    Ok([power, invert_hidden(key, &factor)?])
}

/// 1 / `secret` modulo n, without exposing `secret` to the variable-time algorithm.
fn invert_hidden(key: &RsaPublicKey, secret: &[u8]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
    let (t, hidden) = hide(key, secret)?;
    // 1/(secret·t) · t = 1/secret.
    let inverse = Zeroizing::new(key.invert(&hidden).ok_or(CryptoError::MaliciousKey)?);
    let mut out = Zeroizing::new(vec![0; key.modulus().len()]);
    key.arithmetic().secret_product(&inverse, &t, &mut out)?;
    Ok(out)
}

/// Blinds `message`: f · r^e mod n.
///
/// # Errors
///
/// [`CryptoError::MaliciousKey`] if f or r has a common factor with n. Such a key could mark the coins it
/// signs.
pub fn blind(
    key: &RsaPublicKey,
    message: &HashCode,
    secret: &BlindingSecret,
) -> Result<Vec<u8>, CryptoError> {
    let hash = full_domain_hash(key, message);
    let factor = blinding_factor(key, secret);
    if !key.is_own() {
        // r must stay secret, but the gcd takes variable time, so it gets r times a random unit, which has
        // the same common factors.
        let (_, hidden) = hide(key, &factor)?;
        if !key.is_coprime(&hash) || !key.is_coprime(&hidden) {
            return Err(CryptoError::MaliciousKey);
        }
    }
    let mut out = vec![0; key.modulus().len()];
    key.arithmetic().blind(&hash, &factor, &mut out)?;
    Ok(without_leading_zeros(out))
}

pub(crate) use blinding::blind as blind_by;
pub use blinding::{blind_batch, blind_batch_with};

/// Unblinds a blind signature: (blind signature) · r^−1 mod n. The result is not verified.
///
/// # Errors
///
/// [`CryptoError::OutOfRange`] if the blind signature is not below n, [`CryptoError::MaliciousKey`] if r has
/// a common factor with n.
pub fn unblind(
    key: &RsaPublicKey,
    blind_signature: &[u8],
    secret: &BlindingSecret,
) -> Result<Vec<u8>, CryptoError> {
    let blind_signature = key.reduced(blind_signature)?;
    let factor = blinding_factor(key, secret);
    let unblinding = invert_hidden(key, &factor)?;
    let mut out = vec![0; key.modulus().len()];
    key.arithmetic().secret_product(&unblinding, &blind_signature, &mut out)?;
    Ok(without_leading_zeros(out))
}

/// Signs blinded messages, each with its key: (blinded message)^d mod n, in the order of the arguments.
///
/// Constant time, blinded, and checked against faults before anything is released. Per item, the result is
/// [`CryptoError::OutOfRange`] if the blinded message is not below n, is longer than n by more than one
/// leading zero, or is one of 0, 1 and n − 1, which blinding never produces and whose signatures are well
/// known; [`CryptoError::Fault`] if the computation failed its check.
#[must_use]
pub fn sign_batch(items: &[(&RsaPrivateKey, &[u8])]) -> Vec<Result<Vec<u8>, CryptoError>> {
    batch::sign(Choice::Fastest, items)
}

/// As [`sign_batch`], with a given implementation: for measurements and tests. [`Path::Lanes`] uses the lanes
/// for any number of items, even if the library would be faster; key sizes that the lanes do not support
/// always use the library.
#[must_use]
pub fn sign_batch_with(path: Path, items: &[(&RsaPrivateKey, &[u8])]) -> Vec<Result<Vec<u8>, CryptoError>> {
    batch::sign(Choice::Only(path), items)
}

/// The blinded message in the size of the modulus, if it may be signed.
fn checked_message(key: &RsaPublicKey, blinded: &[u8]) -> Result<Vec<u8>, CryptoError> {
    let n = key.modulus();
    // Some encoders put a zero in front of a number whose first bit is set.
    if blinded.len() > n.len() + 1 {
        return Err(CryptoError::OutOfRange);
    }
    let value = key.reduced(blinded)?;
    let (last, front) = value.split_last().expect("a modulus has bytes");
    let (n_last, n_front) = n.split_last().expect("a modulus has bytes");
    // n is odd, so n − 1 differs from it only in the last bit.
    let tiny = *last <= 1 && front.iter().all(|&byte| byte == 0);
    if tiny || (front == n_front && *last == *n_last - 1) {
        return Err(CryptoError::OutOfRange);
    }
    Ok(value)
}

/// The signature without leading zeros, unless it is too long. A signature of n or above verifies like its
/// remainder, but none may be longer than twice the modulus.
fn checked_signature<'a>(key: &RsaPublicKey, signature: &'a [u8]) -> Option<&'a [u8]> {
    let signature = trim_leading_zeros(signature);
    (!signature.is_empty() && signature.len() <= 2 * key.modulus().len()).then_some(signature)
}

/// Returns whether the equation s^e = f mod n holds, computed with the library.
fn equation_holds(key: &RsaPublicKey, hash: &[u8], signature: &[u8]) -> bool {
    let mut power = vec![0; hash.len()];
    key.arithmetic().public_power(signature, &mut power).is_ok() && power == hash
}

/// Returns whether `signature` is a valid signature of `message`, and the key is not malicious.
#[must_use]
pub fn verify(key: &RsaPublicKey, message: &HashCode, signature: &[u8]) -> bool {
    checked_signature(key, signature).is_some_and(|signature| {
        let hash = full_domain_hash(key, message);
        equation_holds(key, &hash, signature) && (key.is_own() || key.is_coprime(&hash))
    })
}

/// Verifies many signatures; the verdicts are in the order of the arguments and equal those of [`verify`].
///
/// Computes eight at once if the processor can. Neighbours with the same key share one gcd, of the product of
/// their hashes; each is checked alone only if that finds a common factor.
#[must_use]
pub fn verify_batch(items: &[(&RsaPublicKey, &HashCode, &[u8])]) -> Vec<bool> {
    batch::verify(Choice::Fastest, items)
}

/// As [`verify_batch`], by a given implementation: for measurements and tests, with the same reservations as
/// [`sign_batch_with`].
#[must_use]
pub fn verify_batch_with(path: Path, items: &[(&RsaPublicKey, &HashCode, &[u8])]) -> Vec<bool> {
    batch::verify(Choice::Only(path), items)
}

fn without_leading_zeros(mut bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    bytes.drain(..zeros);
    bytes
}
