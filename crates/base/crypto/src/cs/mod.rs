//! Clause Blind Schnorr signatures (Fuchsbauer, Plouviez, Seurin 2020) on Edwards25519, as the Taler exchange
//! API defines them.
//!
//! The exchange keeps no state between its two messages: nonces and the choice of the clause are derived from
//! the denomination's private key. It must never sign two different challenges for one nonce, which would
//! reveal the key.

mod blinding;
mod signing;

pub use signing::{CsBlindSignature, CsSignRequest, CsSigningKey, sign_batch};

use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicUsize, Ordering};

use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::scalar::clamp_integer;
use curve25519_dalek::{EdwardsPoint, Scalar};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::eddsa::decompress;
use crate::hash::sha512_parts;
use crate::kdf::{Extractor, Prk, kdf, kdf_array};
use crate::lanes::Choice;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{
    Wiped,
    curve::{self, KeyComb, KeyTables},
    ifma,
};
use crate::random::random_array;
use crate::{
    BlindingSecret, CryptoError, CsNonce, CsPrivateKey, CsPublicKey, CsRPub, CsScalar, HashCode, Path,
    PlanchetMasterSecret, RefreshMasterSecret,
};

/// The group order L, big endian.
const ORDER: [u8; 32] = [
    0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0xde, 0xf9, 0xde, 0xa2, 0xf7, 0x9c, 0xd6, 0x58,
    0x12, 0x63, 0x1a, 0x5c, 0xf5, 0xd3, 0xed,
];

/// The domain separator for challenges.
const CHALLENGE_CONTEXT: &[u8] = b"Curve25519FDH";

/// The purpose of a signature. Equal nonces of different purposes are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CsOperation {
    /// A coin bought from a reserve.
    Withdraw,
    /// A coin from a refresh.
    Melt,
}

impl CsOperation {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Withdraw => b"rw",
            Self::Melt => b"rm",
        }
    }
}

impl PlanchetMasterSecret {
    /// The nonce for the withdrawal of the coin that is derived from this secret.
    #[must_use]
    pub fn cs_nonce(&self) -> CsNonce {
        CsNonce::from_bytes(kdf_array(b"n", self.as_bytes(), &[]))
    }
}

impl RefreshMasterSecret {
    /// The nonce of the fresh coin at position `coin_index` in the list of all fresh coins.
    #[must_use]
    pub fn cs_nonce(&self, coin_index: u32) -> CsNonce {
        CsNonce::from_bytes(kdf_array(&coin_index.to_be_bytes(), b"refresh-n", &[self.as_bytes()]))
    }
}

impl CsPrivateKey {
    /// Generates a key with the operating system's randomness.
    #[must_use]
    pub fn generate() -> Self {
        let wide = Zeroizing::new(random_array());
        Self::from_bytes(Scalar::from_bytes_mod_order_wide(&wide).to_bytes())
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> CsPublicKey {
        CsPublicKey::from_bytes(EdwardsPoint::mul_base(&self.scalar()).compress().to_bytes())
    }

    fn scalar(&self) -> Zeroizing<Scalar> {
        Zeroizing::new(Scalar::from_bytes_mod_order(*self.as_bytes()))
    }
}

/// r0 ‖ r1, clamped.
fn r_secrets(key: &CsPrivateKey, nonce: &CsNonce, operation: CsOperation) -> Zeroizing<[[u8; 32]; 2]> {
    expand_r_secrets(&Extractor::new(operation.label()).extract(key.as_bytes()), nonce)
}

/// As [`r_secrets`], after the first step of the derivation.
fn expand_r_secrets(prk: &Prk, nonce: &CsNonce) -> Zeroizing<[[u8; 32]; 2]> {
    let mut both = Zeroizing::new([0; 64]);
    prk.expand(&mut *both, &[nonce.as_bytes()]);
    clamped_chunks(&*both)
}

/// The first step of a derivation from a key, with its label.
type Derivation<'a> = Option<(&'a CsPrivateKey, &'static [u8], Prk)>;

/// The first step of the derivation from `key` with `label`, cached from the last call with the same
/// arguments, which is the usual case in a batch.
fn key_derivation<'d, 'a>(
    last: &'d mut Derivation<'a>,
    key: &'a CsPrivateKey,
    label: &'static [u8],
) -> &'d Prk {
    if last.as_ref().is_none_or(|(last_key, last_label, _)| *last_label != label || *last_key != key) {
        *last = None;
    }
    let (_, _, prk) = last.get_or_insert_with(|| (key, label, Extractor::new(label).extract(key.as_bytes())));
    prk
}

/// Splits derived bytes into clamped integers.
fn clamped_chunks<const N: usize>(bytes: &[u8]) -> Zeroizing<[[u8; 32]; N]> {
    let mut out = Zeroizing::new([[0; 32]; N]);
    let (chunks, rest) = bytes.as_chunks::<32>();
    assert!(chunks.len() == N && rest.is_empty(), "derived bytes have the size of the result");
    for (integer, chunk) in out.iter_mut().zip(chunks) {
        *integer = clamp_integer(*chunk);
    }
    out
}

/// The two R values of the exchange for a nonce.
#[must_use]
pub fn r_pubs(key: &CsPrivateKey, nonce: &CsNonce, operation: CsOperation) -> [CsRPub; 2] {
    // Multiples of the base point, whose order is L: the integer and its remainder give the same point.
    let points = r_secrets(key, nonce, operation).map(EdwardsPoint::mul_base_clamped);
    EdwardsPoint::compress_batch(&points).map(|encoding| CsRPub::from_bytes(encoding.to_bytes()))
}

/// A request for R values.
#[derive(Clone, Copy, Debug)]
pub struct CsRequest<'a> {
    /// The key of the denomination.
    pub key: &'a CsPrivateKey,
    /// The nonce of the wallet.
    pub nonce: &'a CsNonce,
    /// The purpose of the signature.
    pub operation: CsOperation,
}

/// The R values for many nonces, equal to those of [`r_pubs`], in the order of the arguments.
///
/// Computes eight at once if the processor can, in time that does not depend on the secrets.
#[must_use]
pub fn r_pubs_batch(items: &[CsRequest<'_>]) -> Vec<[CsRPub; 2]> {
    r_pubs_batch_with(Path::fastest(), items)
}

/// [`r_pubs_batch`] by the chosen implementation, however many there are.
#[must_use]
pub fn r_pubs_batch_with(path: Path, items: &[CsRequest<'_>]) -> Vec<[CsRPub; 2]> {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Lanes && ifma() {
        let mut scalars = Wiped(Vec::with_capacity(2 * items.len()));
        let mut derivation = None;
        for item in items {
            let prk = key_derivation(&mut derivation, item.key, item.operation.label());
            for integer in expand_r_secrets(prk, item.nonce).iter() {
                scalars.0.push(Scalar::from_bytes_mod_order(*integer).to_bytes());
            }
        }
        let encodings = curve::base_multiples(&scalars.0);
        return encodings.as_chunks::<2>().0.iter().map(|pair| pair.map(CsRPub::from_bytes)).collect();
    }
    let _ = path;
    items.iter().map(|item| r_pubs(item.key, item.nonce, item.operation)).collect()
}

struct Inner {
    bytes: CsPublicKey,
    point: EdwardsPoint,
    negated: EdwardsPoint,
    /// The first step of the challenge hash, whose salt is the key.
    extractor: Extractor,
    /// Multiples of the negated point for verification in lanes, computed once the key is used often.
    #[cfg(target_arch = "x86_64")]
    tables: OnceLock<KeyTables>,
    /// Signatures verified in batches without tables so far.
    #[cfg(target_arch = "x86_64")]
    uses: AtomicUsize,
    /// Multiples of the point for blinding in lanes, computed once the key is used often.
    #[cfg(target_arch = "x86_64")]
    comb: OnceLock<KeyComb>,
    /// Messages blinded in batches without a comb so far.
    #[cfg(target_arch = "x86_64")]
    blindings: AtomicUsize,
}

/// Number of signatures after which tables are computed for a key. They cost as much as verifying some twenty
/// signatures, and 66 kB.
#[cfg(target_arch = "x86_64")]
const USES_BEFORE_TABLES: usize = 64;

/// A denomination's public key, decoded and checked, ready to verify and blind. Cloning is cheap.
#[derive(Clone)]
pub struct CsVerifyingKey(Arc<Inner>);

impl CsVerifyingKey {
    /// Decodes a public key.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidPoint`] unless it is the canonical encoding of a point in the group of order L.
    /// With another point the exchange could hand out R values that it recognises when the coin is spent.
    pub fn new(key: &CsPublicKey) -> Result<Self, CryptoError> {
        let point = decompress(key.as_bytes()).filter(EdwardsPoint::is_torsion_free);
        let point = point.ok_or(CryptoError::InvalidPoint)?;
        let extractor = Extractor::new(key.as_bytes());
        Ok(Self(Arc::new(Inner {
            bytes: *key,
            point,
            negated: -point,
            extractor,
            #[cfg(target_arch = "x86_64")]
            tables: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            uses: AtomicUsize::new(0),
            #[cfg(target_arch = "x86_64")]
            comb: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            blindings: AtomicUsize::new(0),
        })))
    }

    /// The tables for verification in lanes.
    #[cfg(target_arch = "x86_64")]
    fn tables(&self) -> &KeyTables {
        self.0.tables.get_or_init(|| KeyTables::new(&self.0.negated))
    }

    /// Returns whether the tables exist, or are worth computing for one more signature.
    #[cfg(target_arch = "x86_64")]
    fn is_used_often(&self) -> bool {
        self.0.tables.get().is_some() || self.0.uses.fetch_add(1, Ordering::Relaxed) >= USES_BEFORE_TABLES
    }

    /// The multiples for blinding in lanes.
    #[cfg(target_arch = "x86_64")]
    fn comb(&self) -> &KeyComb {
        self.0.comb.get_or_init(|| KeyComb::new(&self.0.point))
    }

    /// Returns whether the comb exists, or is worth computing for one more message.
    #[cfg(target_arch = "x86_64")]
    fn blinds_often(&self) -> bool {
        self.0.comb.get().is_some() || self.0.blindings.fetch_add(1, Ordering::Relaxed) >= USES_BEFORE_TABLES
    }

    /// The encoded key.
    #[must_use]
    pub fn as_public_key(&self) -> &CsPublicKey {
        &self.0.bytes
    }

    /// The challenge c' for a message.
    fn challenge(&self, r: &[u8; 32], message: &HashCode) -> Scalar {
        let hash = sha512_parts(&[r, message.as_bytes()]);
        let mut integer = [0; 32];
        let prk = self.0.extractor.extract(hash.as_bytes());
        prk.expand_mod_into(&mut integer, &ORDER, CHALLENGE_CONTEXT);
        integer.reverse();
        Option::from(Scalar::from_canonical_bytes(integer)).expect("derived below the group order")
    }
}

impl PartialEq for CsVerifyingKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.bytes == other.0.bytes
    }
}

impl Eq for CsVerifyingKey {}

impl std::hash::Hash for CsVerifyingKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.bytes.hash(state);
    }
}

impl std::fmt::Debug for CsVerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CsVerifyingKey({})", self.0.bytes)
    }
}

/// The blinding factors of one coin. They are clamped integers and are not reduced, so that multiplying a
/// point by them removes any component of small order.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct Factors {
    alpha: [[u8; 32]; 2],
    beta: [[u8; 32]; 2],
}

impl Factors {
    fn derive(seed: &BlindingSecret) -> Self {
        let mut bytes = Zeroizing::new([0; 128]);
        kdf(&mut *bytes, b"alphabeta", seed.as_bytes(), &[]);
        Self::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8; 128]) -> Self {
        let [alpha_0, beta_0, alpha_1, beta_1] = *clamped_chunks::<4>(bytes);
        Self { alpha: [alpha_0, alpha_1], beta: [beta_0, beta_1] }
    }
}

/// The state that a wallet needs to unblind a signature.
#[derive(Clone, ZeroizeOnDrop)]
pub struct CsUnblind {
    alpha: [[u8; 32]; 2],
    #[zeroize(skip)]
    blinded_r: [CsRPub; 2],
}

impl CsUnblind {
    /// R'_0 and R'_1.
    #[must_use]
    pub fn blinded_r(&self) -> &[CsRPub; 2] {
        &self.blinded_r
    }

    /// Unblinds the signature. The result is not verified.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidSignature`] if b is neither 0 nor 1, or s not below L.
    pub fn unblind(&self, blind: &CsBlindSignature) -> Result<CsSignature, CryptoError> {
        let b = usize::from(blind.b);
        let (Some(alpha), Some(r)) = (self.alpha.get(b), self.blinded_r.get(b)) else {
            return Err(CryptoError::InvalidSignature);
        };
        let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(*blind.s.as_bytes()));
        let s = s.ok_or(CryptoError::InvalidSignature)?;
        let alpha = Zeroizing::new(Scalar::from_bytes_mod_order(*alpha));
        Ok(CsSignature { r: *r, s: CsScalar::from_bytes((s + *alpha).to_bytes()) })
    }
}

impl std::fmt::Debug for CsUnblind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CsUnblind(redacted)")
    }
}

/// An unblinded signature: (R', s).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CsSignature {
    /// R' of the chosen clause.
    pub r: CsRPub,
    /// s, little endian, below L.
    pub s: CsScalar,
}

/// Blinds `message` for the R values of the exchange: the two challenges to send, and the state to unblind
/// the signature.
///
/// # Errors
///
/// [`CryptoError::InvalidPoint`] if an R value is not the canonical encoding of a point, or has small order.
pub fn blind(
    key: &CsVerifyingKey,
    r_pubs: &[CsRPub; 2],
    message: &HashCode,
    seed: &BlindingSecret,
) -> Result<([CsScalar; 2], CsUnblind), CryptoError> {
    let factors = Factors::derive(seed);
    let mut points = [EdwardsPoint::default(); 2];
    for (i, point) in points.iter_mut().enumerate() {
        let r = decompress(r_pubs[i].as_bytes()).ok_or(CryptoError::InvalidPoint)?;
        // The integers are already clamped, so clamping them again changes nothing.
        let shift =
            EdwardsPoint::mul_base_clamped(factors.alpha[i]) + key.0.point.mul_clamped(factors.beta[i]);
        *point = r + shift;
    }
    let blinded_r = EdwardsPoint::compress_batch(&points).map(|encoding| encoding.to_bytes());
    let mut challenges = [CsScalar::ZERO; 2];
    for (i, challenge) in challenges.iter_mut().enumerate() {
        let beta = Zeroizing::new(Scalar::from_bytes_mod_order(factors.beta[i]));
        let c = key.challenge(&blinded_r[i], message) + *beta;
        *challenge = CsScalar::from_bytes(c.to_bytes());
    }
    let blinded_r = blinded_r.map(CsRPub::from_bytes);
    Ok((challenges, CsUnblind { alpha: factors.alpha, blinded_r }))
}

/// One message to blind; see [`blind`].
#[derive(Clone, Copy, Debug)]
pub struct CsBlindRequest<'a> {
    /// The key of the denomination.
    pub key: &'a CsVerifyingKey,
    /// The R values of the exchange.
    pub r_pubs: [&'a CsRPub; 2],
    /// The message.
    pub message: &'a HashCode,
    /// Its blinding secret.
    pub seed: &'a BlindingSecret,
}

/// The challenges to send, and the state to unblind the signature.
pub type CsBlinded = ([CsScalar; 2], CsUnblind);

/// Blinds many messages; the results are in the order of the arguments and equal those of [`blind`].
///
/// If the processor can, it computes eight multiplications at once for keys that have been used often enough
/// to have tables, in time that does not depend on the secrets.
#[must_use]
pub fn blind_batch(items: &[CsBlindRequest<'_>]) -> Vec<Result<CsBlinded, CryptoError>> {
    blind_by(Choice::Fastest, items)
}

/// [`blind_batch`] by the chosen implementation, however few there are.
#[must_use]
pub fn blind_batch_with(path: Path, items: &[CsBlindRequest<'_>]) -> Vec<Result<CsBlinded, CryptoError>> {
    blind_by(Choice::Only(path), items)
}

pub(crate) use blinding::blind as blind_by;

/// s·G − c'·X, or nothing if the signature is invalid already.
fn expected_r(key: &CsVerifyingKey, message: &HashCode, signature: &CsSignature) -> Option<EdwardsPoint> {
    let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(*signature.s.as_bytes()))?;
    let c = key.challenge(signature.r.as_bytes(), message);
    Some(EdwardsPoint::vartime_double_scalar_mul_basepoint(&c, &key.0.negated, &s))
}

/// Returns whether `signature` is a valid signature of `message`: s is below L, and s·G − c'·X has the
/// encoding R'.
#[must_use]
pub fn verify(key: &CsVerifyingKey, message: &HashCode, signature: &CsSignature) -> bool {
    expected_r(key, message, signature)
        .is_some_and(|r| r.compress() == CompressedEdwardsY(*signature.r.as_bytes()))
}

/// Verifies many signatures; the verdicts are in the order of the arguments and equal those of [`verify`].
///
/// If the processor can, it verifies eight at once for keys that have been used often enough to have tables.
#[must_use]
pub fn verify_batch(items: &[(&CsVerifyingKey, &HashCode, &CsSignature)]) -> Vec<bool> {
    #[cfg(target_arch = "x86_64")]
    if ifma() {
        // With tables even a single one is faster than the library.
        let bulk: Vec<_> = (0..items.len()).filter(|&i| items[i].0.is_used_often()).collect();
        let chosen: Vec<_> = bulk.iter().map(|&i| items[i]).collect();
        let mut by_lanes = bulk.into_iter().zip(verify_in_lanes(&chosen)).peekable();
        return items
            .iter()
            .enumerate()
            .map(|(i, (key, message, signature))| match by_lanes.next_if(|(index, _)| *index == i) {
                Some((_, verdict)) => verdict,
                None => verify(key, message, signature),
            })
            .collect();
    }
    verify_batch_with(Path::Library, items)
}

/// [`verify_batch`] by the chosen implementation, however few there are.
#[must_use]
pub fn verify_batch_with(path: Path, items: &[(&CsVerifyingKey, &HashCode, &CsSignature)]) -> Vec<bool> {
    #[cfg(target_arch = "x86_64")]
    if path == Path::Lanes && ifma() {
        return verify_in_lanes(items);
    }
    let _ = path;
    items.iter().map(|(key, message, signature)| verify(key, message, signature)).collect()
}

#[cfg(target_arch = "x86_64")]
fn verify_in_lanes(items: &[(&CsVerifyingKey, &HashCode, &CsSignature)]) -> Vec<bool> {
    let mut verdicts = vec![false; items.len()];
    let is_below_order = |s: &[u8; 32]| Option::<Scalar>::from(Scalar::from_canonical_bytes(*s)).is_some();
    // Items that are refused without computation take no lane.
    let indices: Vec<_> = (0..items.len()).filter(|&i| is_below_order(items[i].2.s.as_bytes())).collect();
    let challenge = |&i: &usize| {
        let (key, message, signature): (&CsVerifyingKey, _, &CsSignature) = items[i];
        key.challenge(signature.r.as_bytes(), message).to_bytes()
    };
    let challenges: Vec<_> = indices.iter().map(challenge).collect();
    let equations: Vec<_> = indices
        .iter()
        .zip(&challenges)
        .map(|(&i, c)| {
            let (key, _, signature) = items[i];
            curve::TableEquation { a: key.tables(), r: signature.r.as_bytes(), s: signature.s.as_bytes(), c }
        })
        .collect();
    let mut found = vec![false; equations.len()];
    curve::check_table_equations(&equations, &mut found);
    for (index, verdict) in indices.into_iter().zip(found) {
        verdicts[index] = verdict;
    }
    verdicts
}
