//! Ed25519 (RFC 8032) with the one verification rule that all parties of the protocol share.
//!
//! A signature (R, S) of message M under public key A is valid if and only if
//!
//! * S is below the group order L,
//! * A is the canonical encoding of a point, and neither A nor R has small order,
//! * the encoding of S·G − SHA-512(R ‖ A ‖ M)·A equals the 32 bytes of R (no cofactor).
//!
//! All parties must agree on which signatures are valid; otherwise a coin could be valid for one and invalid
//! for another.

use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::scalar::clamp_integer;
use curve25519_dalek::{EdwardsPoint, Scalar};
use zeroize::Zeroizing;

use crate::hash::{Digest, Sha512, sha512_secret};
use crate::lanes::Choice;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Wiped, curve, ifma};
use crate::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, Path, lc};

impl EddsaPrivateKey {
    /// The public key that belongs to this seed.
    #[must_use]
    pub fn public_key(&self) -> EddsaPublicKey {
        let (public, _) = lc::ed25519_keypair(self.as_bytes());
        EddsaPublicKey::from_bytes(public)
    }

    /// Signs `message`. For many signatures with one key, [`ExpandedSigner`] takes half the time.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> EddsaSignature {
        ExpandedSigner::new(self).sign(message)
    }
}

/// A signing key with its public key, for services that sign often with the same key.
#[derive(Clone)]
pub struct ExpandedSigner {
    keypair: Zeroizing<[u8; 64]>,
    public: EddsaPublicKey,
    /// The secret scalar, modulo the group order.
    scalar: Zeroizing<Scalar>,
    /// The secret from which nonces are derived.
    prefix: Zeroizing<[u8; 32]>,
}

impl ExpandedSigner {
    /// Prepares `key`.
    #[must_use]
    pub fn new(key: &EddsaPrivateKey) -> Self {
        let (public, keypair) = lc::ed25519_keypair(key.as_bytes());
        let hash = sha512_secret(&[key.as_bytes()]);
        let (scalar, prefix) = halves(&hash);
        // The public key is a multiple of the base point, whose order is L, so the remainder gives the same
        // signatures.
        let scalar = Zeroizing::new(Scalar::from_bytes_mod_order(*Zeroizing::new(clamp_integer(*scalar))));
        Self { keypair, public: EddsaPublicKey::from_bytes(public), scalar, prefix: Zeroizing::new(*prefix) }
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> EddsaPublicKey {
        self.public
    }

    /// The seed.
    #[must_use]
    pub fn private_key(&self) -> EddsaPrivateKey {
        EddsaPrivateKey::from_bytes(*self.keypair.first_chunk().expect("64 bytes hold 32"))
    }

    /// Signs `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> EddsaSignature {
        EddsaSignature::from_bytes(lc::ed25519_sign(message, &self.keypair))
    }
}

impl std::fmt::Debug for ExpandedSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpandedSigner").field("public", &self.public).finish_non_exhaustive()
    }
}

/// The y-coordinates of the eight points of small order, little endian.
const SMALL_ORDER_Y: [[u8; 32]; 5] = {
    let mut one = [0; 32];
    one[0] = 1;
    // −1 = p − 1 with p = 2^255 − 19.
    let mut minus_one = [0xff; 32];
    minus_one[0] = 0xec;
    minus_one[31] = 0x7f;
    [
        // Orders 1, 2 and 4.
        one,
        minus_one,
        [0; 32],
        // Order 8, one the negative of the other.
        [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
            0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
        ],
        [
            0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
            0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
        ],
    ]
};

/// Returns whether a canonical encoding is that of a point of small order.
fn has_small_order(encoding: &[u8; 32]) -> bool {
    let mut y = *encoding;
    y[31] &= 0x7f;
    SMALL_ORDER_Y.contains(&y)
}

/// Returns whether the y-coordinate of an encoding is below p = 2^255 − 19.
fn is_canonical(encoding: &[u8; 32]) -> bool {
    encoding[31] & 0x7f != 0x7f || encoding[1..31].iter().any(|&byte| byte != 0xff) || encoding[0] < 0xed
}

/// The point of a public key, if it is acceptable: canonical, on the curve, not of small order.
///
/// The only other non-canonical encodings, x = 0 with the sign bit set, are of small order.
pub(crate) fn decompress(encoding: &[u8; 32]) -> Option<EdwardsPoint> {
    if !may_be_point(encoding) {
        return None;
    }
    CompressedEdwardsY(*encoding).decompress()
}

/// Returns whether an encoding is canonical and not of small order; it may still not be a point.
pub(crate) fn may_be_point(encoding: &[u8; 32]) -> bool {
    !has_small_order(encoding) && is_canonical(encoding)
}

/// Returns whether `key` can verify anything: canonical, on the curve, and not of small order.
#[must_use]
pub fn is_valid_public_key(key: &EddsaPublicKey) -> bool {
    decompress(key.as_bytes()).is_some()
}

/// Returns whether a 32-byte string is a number below the group order L, little endian.
fn is_below_order(scalar: &[u8; 32]) -> bool {
    Option::<Scalar>::from(Scalar::from_canonical_bytes(*scalar)).is_some()
}

/// R and S of a signature, or the two halves of other 64 bytes.
fn halves(signature: &[u8; 64]) -> (&[u8; 32], &[u8; 32]) {
    let (r, s) = signature.split_at(32);
    (r.try_into().expect("half of 64 bytes"), s.try_into().expect("half of 64 bytes"))
}

/// S·G − SHA-512(R ‖ A ‖ M)·A, or `None` if the signature is already known to be invalid.
fn expected_r(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> Option<EdwardsPoint> {
    let (r, s) = halves(signature);
    let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(*s))?;
    // R is finally compared with a canonical encoding, so a non-canonical one needs no check here.
    if has_small_order(r) {
        return None;
    }
    let a = decompress(public)?;
    let mut hasher = Sha512::new();
    hasher.update(r);
    hasher.update(public);
    hasher.update(message);
    let k = Scalar::from_bytes_mod_order_wide(&hasher.finalize().into());
    Some(EdwardsPoint::vartime_double_scalar_mul_basepoint(&k, &-a, &s))
}

/// Verifies with 32-byte key and 64-byte signature; shared with Edx25519.
pub(crate) fn verify_raw(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    expected_r(public, message, signature).is_some_and(|r| r.compress().as_bytes() == &signature[..32])
}

/// Returns whether `signature` is a valid signature of `message` under `public`.
#[must_use]
pub fn verify(public: &EddsaPublicKey, message: &[u8], signature: &EddsaSignature) -> bool {
    verify_raw(public.as_bytes(), message, signature.as_bytes())
}

/// Verifies many signatures; the verdicts are in the order of the arguments and equal those of [`verify`].
///
/// Batch checks of one random linear combination of all equations sometimes accept signatures that are wrong
/// by points of small order, depending on the randomness. So every equation is computed separately, eight at
/// once if the processor can. They only share the field inversion for encoding points.
#[must_use]
pub fn verify_batch(items: &[(&EddsaPublicKey, &[u8], &EddsaSignature)]) -> Vec<bool> {
    // For fewer than this in a group of eight lanes, the library is faster.
    const MIN_LANES: usize = 2;
    let rest = items.len() % 8;
    let (bulk, few) = items.split_at(items.len() - if rest < MIN_LANES { rest } else { 0 });
    let mut verdicts = verify_batch_with(Path::fastest(), bulk);
    verdicts.extend(verify_by_library(few));
    verdicts
}

/// [`verify_batch`] by the chosen implementation, however many there are.
#[must_use]
pub fn verify_batch_with(path: Path, items: &[(&EddsaPublicKey, &[u8], &EddsaSignature)]) -> Vec<bool> {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Lanes && ifma() {
        return verify_in_lanes(items);
    }
    let _ = path;
    verify_by_library(items)
}

fn verify_by_library(items: &[(&EddsaPublicKey, &[u8], &EddsaSignature)]) -> Vec<bool> {
    // More than this gains nothing, and the points of one chunk stay in the first-level cache.
    const CHUNK: usize = 32;
    let mut verdicts = vec![false; items.len()];
    let mut points = Vec::with_capacity(CHUNK.min(items.len()));
    let mut indices = Vec::with_capacity(CHUNK.min(items.len()));
    for (chunk_index, chunk) in items.chunks(CHUNK).enumerate() {
        points.clear();
        indices.clear();
        for (index, (public, message, signature)) in chunk.iter().enumerate() {
            if let Some(point) = expected_r(public.as_bytes(), message, signature.as_bytes()) {
                points.push(point);
                indices.push(chunk_index * CHUNK + index);
            }
        }
        for (encoding, &index) in EdwardsPoint::compress_batch_alloc(&points).iter().zip(&indices) {
            verdicts[index] = encoding.as_bytes() == &items[index].2.as_bytes()[..32];
        }
    }
    verdicts
}

#[cfg(target_arch = "x86_64")]
fn verify_in_lanes(items: &[(&EddsaPublicKey, &[u8], &EddsaSignature)]) -> Vec<bool> {
    let mut verdicts = vec![false; items.len()];
    // Items that are refused without computation take no lane.
    let mut indices = Vec::with_capacity(items.len());
    let mut messages = Vec::with_capacity(items.len());
    for (index, (public, message, signature)) in items.iter().enumerate() {
        let (r, s) = halves(signature.as_bytes());
        let key = public.as_bytes();
        if is_below_order(s) && !has_small_order(r) && may_be_point(key) {
            indices.push(index);
            messages.push([&r[..], &key[..], message]);
        }
    }
    let hashes = curve::sha512_each(&messages, false);
    let ks: Vec<_> = hashes.iter().map(|hash| Scalar::from_bytes_mod_order_wide(hash).to_bytes()).collect();
    let equations: Vec<_> = indices
        .iter()
        .zip(&ks)
        .map(|(&index, k)| {
            let (r, s) = halves(items[index].2.as_bytes());
            curve::Equation { a: items[index].0.as_bytes(), r, s, k }
        })
        .collect();
    let mut found = vec![false; equations.len()];
    curve::check_equations(&equations, &mut found);
    for (index, verdict) in indices.into_iter().zip(found) {
        verdicts[index] = verdict;
    }
    verdicts
}

/// The public keys of many private keys, in the order of the arguments.
///
/// Computes eight at once if the processor can, in time that does not depend on the secrets.
#[must_use]
pub fn public_keys(keys: &[&EddsaPrivateKey]) -> Vec<EddsaPublicKey> {
    public_keys_by(Choice::Fastest, keys)
}

/// [`public_keys`] by the chosen implementation, however many there are.
#[must_use]
pub fn public_keys_with(path: Path, keys: &[&EddsaPrivateKey]) -> Vec<EddsaPublicKey> {
    public_keys_by(Choice::Only(path), keys)
}

pub(crate) fn public_keys_by(choice: Choice, keys: &[&EddsaPrivateKey]) -> Vec<EddsaPublicKey> {
    /// The fewest keys for which lanes are faster.
    const FEWEST: usize = 2;

    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(keys.len(), FEWEST) {
        let seeds: Vec<_> = keys.iter().map(|key| [&key.as_bytes()[..], &[], &[]]).collect();
        let hashes = Wiped(curve::sha512_each(&seeds, true));
        let mut scalars = Wiped(Vec::with_capacity(keys.len()));
        scalars.0.extend(hashes.0.iter().map(|hash| {
            let integer = Zeroizing::new(clamp_integer(*halves(hash).0));
            // A multiple of the base point, whose order is L, so the remainder gives the same point.
            Zeroizing::new(Scalar::from_bytes_mod_order(*integer)).to_bytes()
        }));
        return curve::base_multiples(&scalars.0).into_iter().map(EddsaPublicKey::from_bytes).collect();
    }
    let _ = (choice, FEWEST);
    keys.iter().map(|key| key.public_key()).collect()
}

/// Signs many messages; the signatures equal those of [`ExpandedSigner::sign`], in the order of the
/// arguments.
///
/// Computes eight at once if the processor can, in time that does not depend on the secrets.
#[must_use]
pub fn sign_batch(items: &[(&ExpandedSigner, &[u8])]) -> Vec<EddsaSignature> {
    // For fewer than this in a group of eight lanes, the library is faster.
    const MIN_LANES: usize = 2;
    let rest = items.len() % 8;
    let (bulk, few) = items.split_at(items.len() - if rest < MIN_LANES { rest } else { 0 });
    let mut signatures = sign_batch_with(Path::fastest(), bulk);
    signatures.extend(few.iter().map(|(signer, message)| signer.sign(message)));
    signatures
}

/// [`sign_batch`] by the chosen implementation, however many there are.
#[must_use]
pub fn sign_batch_with(path: Path, items: &[(&ExpandedSigner, &[u8])]) -> Vec<EddsaSignature> {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Lanes && ifma() {
        return sign_in_lanes(items);
    }
    let _ = path;
    items.iter().map(|(signer, message)| signer.sign(message)).collect()
}

#[cfg(target_arch = "x86_64")]
fn sign_in_lanes(items: &[(&ExpandedSigner, &[u8])]) -> Vec<EddsaSignature> {
    let messages: Vec<_> = items.iter().map(|(signer, message)| [&signer.prefix[..], message, &[]]).collect();
    let hashes = Wiped(curve::sha512_each(&messages, true));
    let mut nonces = Wiped(Vec::with_capacity(items.len()));
    nonces.0.extend(hashes.0.iter().map(|hash| Scalar::from_bytes_mod_order_wide(hash).to_bytes()));
    let rs = curve::base_multiples(&nonces.0);
    let challenges: Vec<_> = items
        .iter()
        .zip(&rs)
        .map(|((signer, message), r)| [&r[..], &signer.public.as_bytes()[..], message])
        .collect();
    let hashes = curve::sha512_each(&challenges, false);
    let mut signatures = Vec::with_capacity(items.len());
    for ((((signer, _), nonce), r), hash) in items.iter().zip(&nonces.0).zip(&rs).zip(&hashes) {
        let nonce = Zeroizing::new(Scalar::from_bytes_mod_order(*nonce));
        let s = *nonce + Scalar::from_bytes_mod_order_wide(hash) * *signer.scalar;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(r);
        signature[32..].copy_from_slice(s.as_bytes());
        signatures.push(EddsaSignature::from_bytes(signature));
    }
    signatures
}
