//! Age restriction: groups, commitments, attestations, and the Edx25519 signatures below them.
//!
//! A coin commits to one public key for each age group above the lowest. Its owner has the private keys only
//! up to the group that the coin is restricted to, and proves an age with a signature by the key of that
//! age's group.

use std::fmt;
use std::str::FromStr;

use curve25519_dalek::scalar::clamp_integer;
use curve25519_dalek::{EdwardsPoint, Scalar};
use zeroize::Zeroizing;

use crate::eddsa::{decompress, verify_raw};
use crate::hash::{Digest, Sha512, finish, sha512_parts, sha512_secret, shorten};
use crate::kdf::{kdf, kdf_array};
use crate::random::random_array;
use crate::{AgePrivateKey, AgePublicKey, AgeSignature, CryptoError, ShortHash};

/// Purpose of an attestation.
const WALLET_AGE_ATTESTATION: u32 = 1207;

/// The age that means "not restricted".
pub const UNRESTRICTED: u8 = 32;

/// The age groups of a denomination: bit 0 is set, and bit a for each age a at which a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgeMask(u32);

impl AgeMask {
    /// The mask with these bits.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidAge`] unless bit 0 is set. (No bit at all means that there is no age
    /// restriction.)
    pub fn new(bits: u32) -> Result<Self, CryptoError> {
        if bits & 1 == 1 { Ok(Self(bits)) } else { Err(CryptoError::InvalidAge) }
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Number of groups above the lowest, which is the number of keys in a commitment.
    #[must_use]
    pub fn groups(self) -> usize {
        self.0.count_ones() as usize - 1
    }

    /// The group of `age`: number of bits set at the positions 1 to `age`.
    #[must_use]
    pub fn group(self, age: u8) -> usize {
        let below = if age >= 31 { u32::MAX } else { (2 << age) - 1 };
        (self.0 & below & !1).count_ones() as usize
    }

    /// The lowest age of a group.
    #[must_use]
    pub fn lowest_age(self, group: usize) -> Option<u8> {
        (0..32u8).filter(|age| self.0 >> age & 1 == 1).nth(group)
    }
}

impl FromStr for AgeMask {
    type Err = CryptoError;

    /// Parses the lowest ages of the groups 1, 2, ..., separated by colons: `8:10:12:14:16:18:21`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut mask = 1u32;
        for part in text.split(':') {
            if part.is_empty() || part.len() > 2 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(CryptoError::InvalidAge);
            }
            let age: u32 = part.parse().map_err(|_| CryptoError::InvalidAge)?;
            // Strictly ascending: no bit is set at this age or above.
            if !(1..=31).contains(&age) || mask >> age != 0 {
                return Err(CryptoError::InvalidAge);
            }
            mask |= 1 << age;
        }
        Self::new(mask)
    }
}

impl fmt::Display for AgeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ages = (1..32).filter(|age| self.0 >> age & 1 == 1);
        for (index, age) in ages.enumerate() {
            write!(f, "{}{age}", if index > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

impl AgePrivateKey {
    /// The key derived from a seed.
    #[must_use]
    pub fn from_seed(seed: &[u8]) -> Self {
        let mut key = sha512_secret(&[seed]);
        let a: &mut [u8; 32] = key.first_chunk_mut().expect("64 bytes hold 32");
        *a = clamp_integer(*a);
        Self::from_bytes(*key)
    }

    /// Generates a key with the operating system's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_seed(&*Zeroizing::new(random_array::<32>()))
    }

    fn scalar(&self) -> Zeroizing<Scalar> {
        let a = self.as_bytes().first_chunk().expect("64 bytes hold 32");
        Zeroizing::new(Scalar::from_bytes_mod_order(*a))
    }

    fn nonce_secret(&self) -> &[u8; 32] {
        self.as_bytes().last_chunk().expect("64 bytes hold 32")
    }

    /// The public key: a · G.
    #[must_use]
    pub fn public_key(&self) -> AgePublicKey {
        AgePublicKey::from_bytes(EdwardsPoint::mul_base(&self.scalar()).compress().to_bytes())
    }

    /// Signs `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> AgeSignature {
        let public = self.public_key();
        let nonce = sha512_secret(&[self.nonce_secret(), message]);
        let r = Zeroizing::new(Scalar::from_bytes_mod_order_wide(&nonce));
        let r_pub = EdwardsPoint::mul_base(&r).compress().to_bytes();
        let hash = sha512_parts(&[&r_pub, public.as_bytes(), message]);
        let s = *r + Scalar::from_bytes_mod_order_wide(hash.as_bytes()) * *self.scalar();
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&r_pub);
        signature[32..].copy_from_slice(s.as_bytes());
        AgeSignature::from_bytes(signature)
    }

    /// The private key that belongs to [`AgePublicKey::derive`] with the same salt.
    #[must_use]
    pub fn derive(&self, salt: &[u8; 64]) -> Self {
        let (factor, hash) = derivation(&self.public_key(), salt);
        // 8 · (a/8 · φ mod L) mod L equals a · φ mod L, because eight has an inverse modulo L.
        let a = Zeroizing::new(*self.scalar() * factor);
        let b = sha512_secret(&[self.nonce_secret(), &*hash]);
        let mut key = Zeroizing::new([0; 64]);
        key[..32].copy_from_slice(a.as_bytes());
        key[32..].copy_from_slice(&b[..32]);
        Self::from_bytes(*key)
    }
}

/// The factor φ of a derivation, and the 64 bytes f that it is computed from.
fn derivation(public: &AgePublicKey, salt: &[u8; 64]) -> (Scalar, Zeroizing<[u8; 64]>) {
    let mut hash = Zeroizing::new([0; 64]);
    kdf(&mut *hash, salt, public.as_bytes(), &[b"edx25519-derivation"]);
    (Scalar::from_bytes_mod_order_wide(&hash), hash)
}

impl AgePublicKey {
    /// The derived public key φ · (public key), unlinkable to this one without the salt.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidPoint`] if this key is not a valid one.
    pub fn derive(&self, salt: &[u8; 64]) -> Result<Self, CryptoError> {
        let point = decompress(self.as_bytes()).ok_or(CryptoError::InvalidPoint)?;
        let (factor, _) = derivation(self, salt);
        Ok(Self::from_bytes((point * factor).compress().to_bytes()))
    }

    /// Returns whether `signature` is a valid signature of `message`; the rule is that of Ed25519.
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &AgeSignature) -> bool {
        verify_raw(self.as_bytes(), message, signature.as_bytes())
    }
}

fn attestation_message(mask: AgeMask, age: u8) -> [u8; 16] {
    let mut message = [0; 16];
    let fields = [16, WALLET_AGE_ATTESTATION, mask.bits(), u32::from(age)];
    for (slot, field) in message.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *slot = field.to_be_bytes();
    }
    message
}

/// The public part of an age commitment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgeCommitment {
    mask: AgeMask,
    keys: Vec<AgePublicKey>,
}

impl AgeCommitment {
    /// The commitment with these keys, one for each group of the mask above the lowest.
    ///
    /// # Errors
    ///
    /// [`CryptoError::WrongCount`] if the number of keys is wrong.
    pub fn new(mask: AgeMask, keys: Vec<AgePublicKey>) -> Result<Self, CryptoError> {
        if keys.len() == mask.groups() { Ok(Self { mask, keys }) } else { Err(CryptoError::WrongCount) }
    }

    /// The age groups.
    #[must_use]
    pub fn mask(&self) -> AgeMask {
        self.mask
    }

    /// The keys of the groups 1, 2, ...
    #[must_use]
    pub fn keys(&self) -> &[AgePublicKey] {
        &self.keys
    }

    /// `h_age_commitment`.
    #[must_use]
    pub fn hash(&self) -> ShortHash {
        let mut hasher = Sha512::new();
        for key in &self.keys {
            hasher.update(key);
        }
        shorten(&finish(hasher))
    }

    /// The commitment of a fresh coin; at a refresh the salt is the transfer secret.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidPoint`] if a key is invalid.
    pub fn derive(&self, salt: &[u8; 64]) -> Result<Self, CryptoError> {
        let keys = self.keys.iter().map(|key| key.derive(salt)).collect::<Result<_, _>>()?;
        Ok(Self { mask: self.mask, keys })
    }

    /// Returns whether `attestation` proves an age of at least `age`. The lowest group needs no proof, so any
    /// signature is accepted.
    #[must_use]
    pub fn verify(&self, age: u8, attestation: &AgeSignature) -> bool {
        match self.mask.group(age).checked_sub(1) {
            None => true,
            Some(index) => self.keys[index].verify(&attestation_message(self.mask, age), attestation),
        }
    }
}

/// An age commitment with the private keys that its owner has: those of the groups 1 to m.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgeCommitmentProof {
    commitment: AgeCommitment,
    private: Vec<AgePrivateKey>,
}

impl AgeCommitmentProof {
    /// A commitment restricted to `age` ([`UNRESTRICTED`] keeps all private keys) whose key number i (0, 1,
    /// ...) comes from `make_key`.
    #[must_use]
    pub fn with_keys(mask: AgeMask, age: u8, mut make_key: impl FnMut(u32) -> AgePrivateKey) -> Self {
        let owned = mask.group(age);
        let mut private = Vec::with_capacity(mask.groups());
        for (_, index) in (0..mask.groups()).zip(0..) {
            private.push(make_key(index));
        }
        let keys = private.iter().map(AgePrivateKey::public_key).collect();
        private.truncate(owned);
        Self { commitment: AgeCommitment { mask, keys }, private }
    }

    /// A commitment with keys from the operating system's randomness.
    #[must_use]
    pub fn generate(mask: AgeMask, age: u8) -> Self {
        Self::with_keys(mask, age, |_| AgePrivateKey::generate())
    }

    /// The commitment that wallets derive from a seed.
    #[must_use]
    pub fn from_wallet_seed(mask: AgeMask, age: u8, seed: &[u8]) -> Self {
        Self::with_keys(mask, age, |index| {
            let key_seed = kdf_array::<32>(&index.to_be_bytes(), seed, &[b"age-restriction-commit"]);
            AgePrivateKey::from_seed(&*Zeroizing::new(key_seed))
        })
    }

    /// The commitment that exchange-side tools derive from a seed: its first four bytes are a little endian
    /// counter.
    #[must_use]
    pub fn from_counter_seed(mask: AgeMask, age: u8, seed: &[u8; 64]) -> Self {
        let start = u32::from_le_bytes(*seed.first_chunk().expect("64 bytes hold 4"));
        Self::with_keys(mask, age, |index| {
            let mut key_seed = Zeroizing::new(*seed);
            key_seed[..4].copy_from_slice(&start.wrapping_add(index).to_le_bytes());
            AgePrivateKey::from_seed(&*key_seed)
        })
    }

    /// Reassembles stored parts.
    ///
    /// # Errors
    ///
    /// [`CryptoError::WrongCount`] if there are more private than public keys; [`CryptoError::MalformedKey`]
    /// if one does not belong to its public key.
    pub fn new(commitment: AgeCommitment, private: Vec<AgePrivateKey>) -> Result<Self, CryptoError> {
        if private.len() > commitment.keys.len() {
            return Err(CryptoError::WrongCount);
        }
        if private.iter().zip(&commitment.keys).any(|(private, public)| private.public_key() != *public) {
            return Err(CryptoError::MalformedKey);
        }
        Ok(Self { commitment, private })
    }

    /// The public part.
    #[must_use]
    pub fn commitment(&self) -> &AgeCommitment {
        &self.commitment
    }

    /// The private keys of the groups 1 to m.
    #[must_use]
    pub fn private_keys(&self) -> &[AgePrivateKey] {
        &self.private
    }

    /// The commitment of a fresh coin with the same restriction; at a refresh the salt is the transfer
    /// secret.
    ///
    /// # Errors
    ///
    /// [`CryptoError::InvalidPoint`] if a public key is not a valid one.
    pub fn derive(&self, salt: &[u8; 64]) -> Result<Self, CryptoError> {
        Ok(Self {
            commitment: self.commitment.derive(salt)?,
            private: self.private.iter().map(|key| key.derive(salt)).collect(),
        })
    }

    /// Proves an age of at least `age`; all zeros if that is in the lowest group.
    ///
    /// # Errors
    ///
    /// [`CryptoError::AgeNotAttestable`] if the coin is restricted to a lower group.
    pub fn attest(&self, age: u8) -> Result<AgeSignature, CryptoError> {
        let Some(index) = self.commitment.mask.group(age).checked_sub(1) else {
            return Ok(AgeSignature::ZERO);
        };
        let key = self.private.get(index).ok_or(CryptoError::AgeNotAttestable)?;
        Ok(key.sign(&attestation_message(self.commitment.mask, age)))
    }
}
