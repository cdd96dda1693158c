use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use zeroize::Zeroizing;

use super::safegcd::OddModulus;
use crate::hash::sha512;
use crate::kdf::{Extractor, trim_leading_zeros};
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::{CryptoError, HashCode, lc};

/// Smallest modulus in bits.
pub const MIN_BITS: u32 = 1024;
/// Largest modulus in bits.
pub const MAX_BITS: u32 = 8192;

/// Largest public exponent in bytes. Larger ones only make verification slower.
const MAX_EXPONENT_BYTES: usize = 4;

struct Inner {
    encoded: Vec<u8>,
    n_len: usize,
    e_len: usize,
    arithmetic: lc::Modulus,
    /// For the lanes; computed at first use. The inner `None` means that the lanes do not support its size.
    #[cfg(target_arch = "x86_64")]
    lanes: OnceLock<Option<lanes::rsa::PublicKey>>,
    odd: OddModulus,
    /// The first step of the full-domain hash, whose salt is the encoded key.
    extractor: Extractor,
}

/// An RSA public key, parsed and ready to verify and blind. Cloning is cheap.
#[derive(Clone)]
pub struct RsaPublicKey {
    inner: Arc<Inner>,
    own: bool,
}

impl RsaPublicKey {
    /// Parses the encoding length of n (16 bits) ‖ length of e (16 bits) ‖ n ‖ e.
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] unless the sizes fit exactly, no number has leading zeros, n is odd and
    /// has [`MIN_BITS`] to [`MAX_BITS`] bits, and e is odd, above 1 and below 2^32.
    pub fn decode(encoded: &[u8]) -> Result<Self, CryptoError> {
        let (&[n0, n1, e0, e1], numbers) = encoded.split_first_chunk().ok_or(CryptoError::MalformedKey)?;
        let n_len = usize::from(u16::from_be_bytes([n0, n1]));
        let e_len = usize::from(u16::from_be_bytes([e0, e1]));
        if numbers.len() != n_len + e_len {
            return Err(CryptoError::MalformedKey);
        }
        let (n, e) = numbers.split_at(n_len);
        Self::from_parts(n, e)
    }

    /// Parses a key whose private key belongs to the caller (such as the exchange's keys in all its
    /// processes).
    ///
    /// Such a key is known to be a product of two large primes, so it is never checked for common factors
    /// with a hash, which saves a third of the time of a verification.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    pub fn decode_own(encoded: &[u8]) -> Result<Self, CryptoError> {
        Ok(Self { own: true, ..Self::decode(encoded)? })
    }

    /// The key with modulus `n` and exponent `e`, big endian without leading zeros.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    pub fn from_parts(n: &[u8], e: &[u8]) -> Result<Self, CryptoError> {
        let bits = bit_length(n).ok_or(CryptoError::MalformedKey)?;
        if !(MIN_BITS..=MAX_BITS).contains(&bits) {
            return Err(CryptoError::MalformedKey);
        }
        Self::from_parts_of_any_size(n, e)
    }

    pub(super) fn from_parts_of_any_size(n: &[u8], e: &[u8]) -> Result<Self, CryptoError> {
        let n_bits = bit_length(n).ok_or(CryptoError::MalformedKey)?;
        let e_bits = bit_length(e).ok_or(CryptoError::MalformedKey)?;
        let odd = |number: &[u8]| number.last().is_some_and(|last| last & 1 == 1);
        if n_bits > MAX_BITS || e_bits < 2 || e.len() > MAX_EXPONENT_BYTES || !odd(n) || !odd(e) {
            return Err(CryptoError::MalformedKey);
        }
        let (n_len, e_len) = (n.len(), e.len());
        let mut encoded = Vec::with_capacity(4 + n_len + e_len);
        for len in [n_len, e_len] {
            let len = u16::try_from(len).expect("at most 8192 bits, checked above");
            encoded.extend_from_slice(&len.to_be_bytes());
        }
        encoded.extend_from_slice(n);
        encoded.extend_from_slice(e);
        let inner = Inner {
            arithmetic: lc::Modulus::new(n, e)?,
            #[cfg(target_arch = "x86_64")]
            lanes: OnceLock::new(),
            odd: OddModulus::new(n),
            extractor: Extractor::new(&encoded),
            encoded,
            n_len,
            e_len,
        };
        Ok(Self { inner: Arc::new(inner), own: false })
    }

    /// The encoding that [`Self::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> &[u8] {
        &self.inner.encoded
    }

    /// SHA-512 of the encoding, by which security modules identify keys.
    #[must_use]
    pub fn h_rsa(&self) -> HashCode {
        sha512(&self.inner.encoded)
    }

    /// The modulus n, big endian without leading zeros.
    #[must_use]
    pub fn modulus(&self) -> &[u8] {
        &self.inner.encoded[4..4 + self.inner.n_len]
    }

    /// The public exponent e, big endian without leading zeros.
    #[must_use]
    pub fn exponent(&self) -> &[u8] {
        let start = 4 + self.inner.n_len;
        &self.inner.encoded[start..start + self.inner.e_len]
    }

    /// Size of the modulus in bits.
    #[must_use]
    pub fn bits(&self) -> u32 {
        bit_length(self.modulus()).expect("the modulus has no leading zeros")
    }

    pub(super) fn arithmetic(&self) -> &lc::Modulus {
        &self.inner.arithmetic
    }

    /// The key for the lanes, if they support its size.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn lanes(&self) -> Option<&lanes::rsa::PublicKey> {
        let prepare = || lanes::rsa::PublicKey::new(self);
        self.inner.lanes.get_or_init(prepare).as_ref()
    }

    /// 2^exponent modulo n, in the size of the modulus.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn power_of_two(&self, exponent: usize, out: &mut [u8]) -> Result<(), CryptoError> {
        self.inner.arithmetic.power_of_two(exponent, out)
    }

    pub(super) fn extractor(&self) -> &Extractor {
        &self.inner.extractor
    }

    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.own == other.own
    }

    /// Returns whether `value` has no common factor with the modulus. Takes variable time.
    pub(super) fn is_coprime(&self, value: &[u8]) -> bool {
        self.inner.odd.is_coprime(value)
    }

    /// The inverse of `value` modulo n. Takes variable time.
    pub(super) fn invert(&self, value: &[u8]) -> Option<Vec<u8>> {
        self.inner.odd.invert(value)
    }

    /// `value` in the size of the modulus, if it is below it.
    pub(super) fn reduced(&self, value: &[u8]) -> Result<Vec<u8>, CryptoError> {
        let value = trim_leading_zeros(value);
        let n = self.modulus();
        let zeros = n.len().checked_sub(value.len()).ok_or(CryptoError::OutOfRange)?;
        let mut out = vec![0; n.len()];
        out[zeros..].copy_from_slice(value);
        if out.as_slice() < n { Ok(out) } else { Err(CryptoError::OutOfRange) }
    }
}

impl PartialEq for RsaPublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.inner.encoded == other.inner.encoded
    }
}

impl Eq for RsaPublicKey {}

impl std::hash::Hash for RsaPublicKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.inner.encoded.hash(state);
    }
}

impl std::fmt::Debug for RsaPublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RsaPublicKey({} bits, {})", self.bits(), crate::hash::shorten(&self.h_rsa()))
    }
}

/// An RSA private key with its public key. Cloning is cheap; the last clone wipes the key.
#[derive(Clone)]
pub struct RsaPrivateKey {
    rsa: Arc<lc::Rsa>,
    /// For the lanes. `None` if they are not used, or do not support its size.
    #[cfg(target_arch = "x86_64")]
    lanes: Option<Arc<lanes::rsa::PrivateKey>>,
    public: RsaPublicKey,
}

impl RsaPrivateKey {
    /// A fresh key of `bits` bits with exponent 65537. Takes tens of milliseconds to seconds.
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] unless `bits` is a multiple of 128 from [`MIN_BITS`] to [`MAX_BITS`].
    pub fn generate(bits: u32) -> Result<Self, CryptoError> {
        if !(MIN_BITS..=MAX_BITS).contains(&bits) || !bits.is_multiple_of(128) {
            return Err(CryptoError::MalformedKey);
        }
        Self::new(lc::Rsa::generate(bits)?)
    }

    /// The key with these primes and public exponent, big endian: for keys from elsewhere. Not constant time.
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] if the numbers do not form a key that [`RsaPublicKey::decode`] would
    /// accept.
    pub fn from_primes(p: &[u8], q: &[u8], e: &[u8]) -> Result<Self, CryptoError> {
        Self::new(lc::Rsa::from_primes(p, q, e)?)
    }

    /// Parses and checks the form of [`Self::to_der`].
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] if the bytes are not a consistent key of a size that the protocol
    /// allows.
    pub fn from_der(der: &[u8]) -> Result<Self, CryptoError> {
        Self::new(lc::Rsa::from_der(der)?)
    }

    /// The private key in the DER form of RFC 8017, appendix A.1.2; wiped when dropped.
    ///
    /// # Errors
    ///
    /// [`CryptoError::Internal`] if out of memory.
    pub fn to_der(&self) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        self.rsa.to_der()
    }

    fn new(rsa: lc::Rsa) -> Result<Self, CryptoError> {
        let (n, e) = rsa.public_parts()?;
        let public = RsaPublicKey { own: true, ..RsaPublicKey::from_parts(&n, &e)? };
        Ok(Self {
            #[cfg(target_arch = "x86_64")]
            lanes: if lanes::ifma() {
                lanes::rsa::PrivateKey::new(&public, &rsa.crt_parts()?).map(Arc::new)
            } else {
                None
            },
            rsa: Arc::new(rsa),
            public,
        })
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &RsaPublicKey {
        &self.public
    }

    /// The key for the lanes, if they are used and support its size.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn lanes(&self) -> Option<&lanes::rsa::PrivateKey> {
        self.lanes.as_deref()
    }

    /// Damages the key as a hardware fault would: see [`lanes::rsa::PrivateKey::damage`].
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(super) fn damage(&mut self, which: usize) {
        let key = self.lanes.as_mut().and_then(Arc::get_mut).expect("lanes, and no clone of the key");
        key.damage(which);
    }

    pub(super) fn private_power(&self, value: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        self.rsa.private_power(value, out)
    }
}

impl std::fmt::Debug for RsaPrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RsaPrivateKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Number of bits of a big endian number without leading zeros; `None` for zero or a number with leading
/// zeros.
fn bit_length(number: &[u8]) -> Option<u32> {
    let first = number.first().filter(|&&first| first != 0)?;
    Some(u32::try_from(number.len()).ok()? * 8 - first.leading_zeros())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::BlindingSecret;
    use crate::rsa::{blind, full_domain_hash, verify, verify_batch};
    use num_bigint::BigUint;

    /// Blinding and verification refuse a modulus with many small factors, which would allow the exchange to
    /// recognise coins, alone and in batches. They refuse it even though the equation holds: with known
    /// factors, it is easy to make signatures, also of hashes that share a factor with the modulus.
    #[test]
    fn moduli_with_small_factors_are_refused() {
        let (mut n, mut phi) = (BigUint::from(1u8), BigUint::from(1u8));
        let mut candidate = 3u32;
        while n.bits() < 1020 {
            if (2..candidate).all(|d| !candidate.is_multiple_of(d)) {
                n *= candidate;
                phi *= candidate - 1;
            }
            candidate += 2;
        }
        let d = BigUint::from(65537u32).modinv(&phi).unwrap();
        let key = RsaPublicKey::from_parts_of_any_size(&n.to_bytes_be(), &[1, 0, 1]).unwrap();
        let trusting = RsaPublicKey { own: true, ..key.clone() };
        let (mut refused, mut batch) = (0, Vec::new());
        for byte in 0..32 {
            let message = HashCode::from_bytes([byte; 64]);
            let secret = BlindingSecret::from_bytes([byte; 32]);
            let hash = BigUint::from_bytes_be(&full_domain_hash(&key, &message));
            let signature = hash.modpow(&d, &n).to_bytes_be();
            assert!(verify(&trusting, &message, &signature), "the equation holds");
            // About one hash in six has none of the factors by chance.
            let honest = hash.modinv(&n).is_some();
            refused += usize::from(!honest);
            if !honest {
                assert_eq!(blind(&key, &message, &secret), Err(CryptoError::MaliciousKey));
            }
            assert_eq!(verify(&key, &message, &signature), honest);
            batch.push((message, signature, honest));
        }
        assert!(refused > 16);
        let items: Vec<_> = batch.iter().map(|(message, sig, _)| (&key, message, sig.as_slice())).collect();
        let expected: Vec<_> = batch.iter().map(|(.., honest)| *honest).collect();
        assert_eq!(verify_batch(&items), expected);
    }

    #[test]
    fn empty_and_oversized_signatures_are_refused() {
        let key = RsaPrivateKey::generate(1024).unwrap();
        let message = HashCode::from_bytes([7; 64]);
        for signature in [vec![], vec![0; 128], vec![1; 300], vec![0; 4000]] {
            assert!(!verify(key.public(), &message, &signature));
            assert_eq!(verify_batch(&[(key.public(), &message, &signature)]), [false]);
        }
    }

    #[test]
    fn decoding_is_strict() {
        let key = RsaPrivateKey::generate(1024).unwrap();
        let good = key.public().encode().to_vec();
        assert_eq!(RsaPublicKey::decode(&good).unwrap(), *key.public());
        let bad = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            assert_eq!(RsaPublicKey::decode(&bytes).err(), Some(CryptoError::MalformedKey));
        };
        bad(&|bytes| bytes.clear());
        bad(&|bytes| bytes.truncate(3));
        bad(&|bytes| bytes.push(0));
        bad(&|bytes| bytes.truncate(bytes.len() - 1));
        bad(&|bytes| bytes[1] += 1);
        bad(&|bytes| bytes[4] = 0);
        bad(&|bytes| bytes[4 + 127] &= 0xfe);
        bad(&|bytes| *bytes.last_mut().unwrap() = 0);
        let (n, e) = (key.public().modulus(), key.public().exponent());
        assert!(RsaPublicKey::from_parts(&n[1..], e).is_err(), "too short");
        assert!(RsaPublicKey::from_parts(n, &[1]).is_err(), "exponent one");
        assert!(RsaPublicKey::from_parts(n, &[1, 0, 0, 0, 1]).is_err(), "exponent too large");
    }

    #[test]
    fn der_round_trip() {
        let key = RsaPrivateKey::generate(1024).unwrap();
        let der = key.to_der().unwrap();
        let again = RsaPrivateKey::from_der(&der).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(*again.to_der().unwrap(), *der);
        assert!(RsaPrivateKey::from_der(&der[1..]).is_err());
        assert!(RsaPrivateKey::from_der(&[]).is_err());
        assert!(RsaPrivateKey::generate(512).is_err());
        assert!(RsaPrivateKey::generate(1025).is_err());
    }
}
