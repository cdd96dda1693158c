//! Denominations and coins of both ciphers in one set of types, so that callers need not distinguish RSA from
//! Clause Blind Schnorr.

use zeroize::Zeroizing;

use crate::cs::{
    self, CsBlindRequest, CsBlindSignature, CsOperation, CsSignRequest, CsSignature, CsSigningKey, CsUnblind,
    CsVerifyingKey,
};
use crate::hash::{Digest, Sha512, finish, sha512, sha512_parts};
use crate::lanes::Choice;
#[cfg(target_arch = "x86_64")]
use crate::lanes::curve::sha512_each;
use crate::rsa::{self, RsaPrivateKey, RsaPublicKey};
use crate::{
    BlindingSecret, CryptoError, CsNonce, CsPrivateKey, CsRPub, CsScalar, EddsaPublicKey, HashCode, ShortHash,
};

/// The signature scheme of a denomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cipher {
    /// Blind RSA.
    Rsa,
    /// Clause Blind Schnorr.
    Cs,
}

impl Cipher {
    /// The tag in binary data.
    #[must_use]
    pub const fn tag(self) -> u32 {
        match self {
            Self::Rsa => 1,
            Self::Cs => 2,
        }
    }

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rsa => "RSA",
            Self::Cs => "CS",
        }
    }
}

/// A denomination's public key without its age mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DenomKey {
    /// Blind RSA.
    Rsa(RsaPublicKey),
    /// Clause Blind Schnorr.
    Cs(CsVerifyingKey),
}

/// A denomination's public key. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DenomPublicKey {
    /// The age groups of the denomination; 0 without age restriction.
    pub age_mask: u32,
    /// The key.
    pub key: DenomKey,
}

impl DenomPublicKey {
    /// The cipher.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        match self.key {
            DenomKey::Rsa(_) => Cipher::Rsa,
            DenomKey::Cs(_) => Cipher::Cs,
        }
    }

    /// The key as it enters hashes: the encoded RSA key, or the 32 bytes of the Clause Blind Schnorr key.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        match &self.key {
            DenomKey::Rsa(key) => key.encode(),
            DenomKey::Cs(key) => key.as_public_key().as_bytes(),
        }
    }

    /// The hash that identifies the denomination.
    #[must_use]
    pub fn h_denom_pub(&self) -> HashCode {
        sha512_parts(&[&self.age_mask.to_be_bytes(), &self.cipher().tag().to_be_bytes(), self.key_bytes()])
    }

    /// The hash by which security modules identify the key: h_rsa or h_cs.
    #[must_use]
    pub fn h_key(&self) -> HashCode {
        sha512(self.key_bytes())
    }

    /// Returns whether `signature` is a valid signature of the coin with hash `h_coin_pub`.
    #[must_use]
    pub fn verify(&self, h_coin_pub: &HashCode, signature: &DenomSignature) -> bool {
        verify(self, h_coin_pub, signature)
    }
}

/// A denomination's private key. Cloning is cheap.
#[derive(Clone, Debug)]
pub enum DenomPrivateKey {
    /// Blind RSA.
    Rsa(RsaPrivateKey),
    /// Clause Blind Schnorr.
    Cs(CsSigningKey),
}

impl DenomPrivateKey {
    /// A fresh RSA key; `bits` as for [`RsaPrivateKey::generate`].
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] if the size is not allowed.
    pub fn generate_rsa(bits: u32) -> Result<Self, CryptoError> {
        RsaPrivateKey::generate(bits).map(Self::Rsa)
    }

    /// A fresh Clause Blind Schnorr key.
    #[must_use]
    pub fn generate_cs() -> Self {
        Self::Cs(CsSigningKey::generate())
    }

    /// The cipher.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        match self {
            Self::Rsa(_) => Cipher::Rsa,
            Self::Cs(_) => Cipher::Cs,
        }
    }

    /// The public key with an age mask (0 without age restriction).
    #[must_use]
    pub fn public(&self, age_mask: u32) -> DenomPublicKey {
        let key = match self {
            Self::Rsa(key) => DenomKey::Rsa(key.public().clone()),
            Self::Cs(key) => DenomKey::Cs(key.public().clone()),
        };
        DenomPublicKey { age_mask, key }
    }

    /// The key for storage: the cipher tag (4 bytes), then the RSA key as DER or the 32 bytes of the scalar.
    ///
    /// # Errors
    ///
    /// [`CryptoError::Internal`] if out of memory.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let der;
        let key: &[u8] = match self {
            Self::Rsa(key) => {
                der = key.to_der()?;
                &der
            }
            Self::Cs(key) => key.secret().as_bytes(),
        };
        // With the exact capacity, so that growing leaves no copy behind.
        let mut out = Zeroizing::new(Vec::with_capacity(4 + key.len()));
        out.extend_from_slice(&self.cipher().tag().to_be_bytes());
        out.extend_from_slice(key);
        Ok(out)
    }

    /// Parses the output of [`Self::to_bytes`].
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] if the bytes are not such a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CryptoError> {
        let (tag, key) = bytes.split_first_chunk().ok_or(CryptoError::MalformedKey)?;
        match u32::from_be_bytes(*tag) {
            1 => RsaPrivateKey::from_der(key).map(Self::Rsa),
            2 => {
                let key = CsPrivateKey::try_from(key).map_err(|_| CryptoError::MalformedKey)?;
                CsSigningKey::new(key).map(Self::Cs)
            }
            _ => Err(CryptoError::MalformedKey),
        }
    }
}

/// The values from the exchange that blinding needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeWithdrawValues {
    /// RSA needs none.
    Rsa,
    /// The R values for the coin's nonce.
    Cs {
        /// R0.
        r0: CsRPub,
        /// R1.
        r1: CsRPub,
    },
}

impl ExchangeWithdrawValues {
    /// The values of the exchange for a nonce, with the denomination's private key. RSA ignores the nonce.
    #[must_use]
    pub fn derive(key: &DenomPrivateKey, nonce: &CsNonce, operation: CsOperation) -> Self {
        match key {
            DenomPrivateKey::Rsa(_) => Self::Rsa,
            DenomPrivateKey::Cs(key) => {
                let [r0, r1] = cs::r_pubs(key.secret(), nonce, operation);
                Self::Cs { r0, r1 }
            }
        }
    }
}

/// A blinded coin, which the exchange signs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlindedPlanchet {
    /// RSA.
    Rsa {
        /// The blinded message, big endian, exactly as sent (it is hashed unchanged).
        blinded: Vec<u8>,
    },
    /// Clause Blind Schnorr.
    Cs {
        /// The nonce of the exchange's R values.
        nonce: CsNonce,
        /// The blinded challenge for R0.
        c0: CsScalar,
        /// The blinded challenge for R1.
        c1: CsScalar,
    },
}

impl BlindedPlanchet {
    /// The cipher.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        match self {
            Self::Rsa { .. } => Cipher::Rsa,
            Self::Cs { .. } => Cipher::Cs,
        }
    }

    /// Feeds the planchet part: the cipher tag, then the cipher's blinded values.
    pub(crate) fn write_part(&self, hasher: &mut Sha512) {
        hasher.update(self.cipher().tag().to_be_bytes());
        match self {
            Self::Rsa { blinded } => hasher.update(blinded),
            Self::Cs { nonce, c0, c1 } => {
                hasher.update(c0);
                hasher.update(c1);
                hasher.update(nonce);
            }
        }
    }

    /// `h_coin_ev`: the hash under which reserves and coins sign for this planchet.
    #[must_use]
    pub fn hash(&self, h_denom_pub: &HashCode) -> HashCode {
        let mut hasher = Sha512::new();
        hasher.update(h_denom_pub);
        self.write_part(&mut hasher);
        finish(hasher)
    }
}

/// The exchange's signature of a blinded planchet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlindedDenomSignature {
    /// RSA: (blinded message)^d mod n, big endian without leading zeros.
    Rsa(Vec<u8>),
    /// Clause Blind Schnorr.
    Cs(CsBlindSignature),
}

/// The exchange's signature of a coin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DenomSignature {
    /// RSA, big endian without leading zeros.
    Rsa(Vec<u8>),
    /// Clause Blind Schnorr.
    Cs(CsSignature),
}

/// The hash of a coin, which the denomination signs. An all-zero commitment counts as none.
#[must_use]
pub fn h_coin_pub(coin_pub: &EddsaPublicKey, h_age_commitment: Option<&ShortHash>) -> HashCode {
    match h_age_commitment {
        Some(commitment) if !commitment.is_zero() => {
            sha512_parts(&[coin_pub.as_bytes(), commitment.as_bytes()])
        }
        _ => sha512(coin_pub.as_bytes()),
    }
}

/// The state that a wallet needs to unblind a coin after the exchange has signed. It can be recomputed from
/// the coin's secrets with [`prepare_planchet`], so it need not be stored.
#[derive(Clone, Debug)]
pub struct UnblindState {
    denom: DenomPublicKey,
    h_coin_pub: HashCode,
    cipher: UnblindCipher,
}

#[derive(Clone, Debug)]
enum UnblindCipher {
    Rsa(BlindingSecret),
    Cs(CsUnblind),
}

impl UnblindState {
    /// The hash of the coin.
    #[must_use]
    pub fn h_coin_pub(&self) -> &HashCode {
        &self.h_coin_pub
    }

    /// Unblinds the signature and verifies it.
    ///
    /// # Errors
    ///
    /// [`CryptoError::CipherMismatch`] if the signature is of another cipher,
    /// [`CryptoError::InvalidSignature`] or [`CryptoError::OutOfRange`] if it is wrong.
    pub fn unblind(&self, blind: &BlindedDenomSignature) -> Result<DenomSignature, CryptoError> {
        let signature = match (&self.denom.key, &self.cipher, blind) {
            (DenomKey::Rsa(key), UnblindCipher::Rsa(secret), BlindedDenomSignature::Rsa(blind)) => {
                DenomSignature::Rsa(rsa::unblind(key, blind, secret)?)
            }
            (DenomKey::Cs(_), UnblindCipher::Cs(state), BlindedDenomSignature::Cs(blind)) => {
                DenomSignature::Cs(state.unblind(blind)?)
            }
            _ => return Err(CryptoError::CipherMismatch),
        };
        if verify(&self.denom, &self.h_coin_pub, &signature) {
            Ok(signature)
        } else {
            Err(CryptoError::InvalidSignature)
        }
    }
}

/// Blinds the coin `coin_pub` for `denom`.
///
/// Wallets call it to withdraw and to refresh; the exchange to find a coin's planchet (recoup) and to check a
/// refresh. `nonce` is needed for Clause Blind Schnorr only.
///
/// # Errors
///
/// [`CryptoError::CipherMismatch`] if `values` are of another cipher than `denom` or the nonce is missing;
/// [`CryptoError::MaliciousKey`] or [`CryptoError::InvalidPoint`] if `denom` or `values` are crafted to mark
/// coins.
pub fn prepare_planchet(
    denom: &DenomPublicKey,
    values: &ExchangeWithdrawValues,
    nonce: Option<&CsNonce>,
    coin_pub: &EddsaPublicKey,
    blinding: &BlindingSecret,
    h_age_commitment: Option<&ShortHash>,
) -> Result<(BlindedPlanchet, UnblindState), CryptoError> {
    let h_coin_pub = h_coin_pub(coin_pub, h_age_commitment);
    let (planchet, cipher) = match (&denom.key, values, nonce) {
        (DenomKey::Rsa(key), ExchangeWithdrawValues::Rsa, _) => {
            let blinded = rsa::blind(key, &h_coin_pub, blinding)?;
            (BlindedPlanchet::Rsa { blinded }, UnblindCipher::Rsa(blinding.clone()))
        }
        (DenomKey::Cs(key), ExchangeWithdrawValues::Cs { r0, r1 }, Some(nonce)) => {
            let ([c0, c1], state) = cs::blind(key, &[*r0, *r1], &h_coin_pub, blinding)?;
            (BlindedPlanchet::Cs { nonce: *nonce, c0, c1 }, UnblindCipher::Cs(state))
        }
        _ => return Err(CryptoError::CipherMismatch),
    };
    Ok((planchet, UnblindState { denom: denom.clone(), h_coin_pub, cipher }))
}

/// A coin to be blinded; see [`prepare_planchet`].
#[derive(Clone, Copy, Debug)]
pub struct PlanchetRequest<'a> {
    /// The denomination.
    pub denom: &'a DenomPublicKey,
    /// The exchange's values for it.
    pub values: &'a ExchangeWithdrawValues,
    /// The nonce of the values (Clause Blind Schnorr).
    pub nonce: Option<&'a CsNonce>,
    /// The coin.
    pub coin_pub: &'a EddsaPublicKey,
    /// Its blinding secret.
    pub blinding: &'a BlindingSecret,
    /// The hash of its age commitment.
    pub h_age_commitment: Option<&'a ShortHash>,
}

/// Blinds many coins; the results are in the order of the arguments and equal those of [`prepare_planchet`].
///
/// Computes eight at once if the processor can, in time that does not depend on the secrets.
#[must_use]
pub fn prepare_planchets(
    items: &[PlanchetRequest<'_>],
) -> Vec<Result<(BlindedPlanchet, UnblindState), CryptoError>> {
    prepare_planchets_by(Choice::Fastest, items)
}

pub(crate) fn prepare_planchets_by(
    choice: Choice,
    items: &[PlanchetRequest<'_>],
) -> Vec<Result<(BlindedPlanchet, UnblindState), CryptoError>> {
    let h_coin_pubs = h_coin_pubs(choice, items);
    let mut results: Vec<_> = items.iter().map(|_| Err(CryptoError::CipherMismatch)).collect();
    let (mut rsa_indices, mut rsa_items) = (Vec::new(), Vec::new());
    let (mut cs_indices, mut cs_items) = (Vec::new(), Vec::new());
    for (index, (item, h_coin_pub)) in items.iter().zip(&h_coin_pubs).enumerate() {
        match (&item.denom.key, item.values, item.nonce) {
            (DenomKey::Rsa(key), ExchangeWithdrawValues::Rsa, _) => {
                rsa_indices.push(index);
                rsa_items.push((key, h_coin_pub, item.blinding));
            }
            (DenomKey::Cs(key), ExchangeWithdrawValues::Cs { r0, r1 }, Some(nonce)) => {
                cs_indices.push((index, nonce));
                cs_items.push(CsBlindRequest {
                    key,
                    r_pubs: [r0, r1],
                    message: h_coin_pub,
                    seed: item.blinding,
                });
            }
            _ => {}
        }
    }
    let state = |index: usize, cipher| UnblindState {
        denom: items[index].denom.clone(),
        h_coin_pub: h_coin_pubs[index],
        cipher,
    };
    for (index, result) in rsa_indices.into_iter().zip(rsa::blind_by(choice, &rsa_items)) {
        let unblind = UnblindCipher::Rsa(items[index].blinding.clone());
        results[index] = result.map(|blinded| (BlindedPlanchet::Rsa { blinded }, state(index, unblind)));
    }
    for ((index, nonce), result) in cs_indices.into_iter().zip(cs::blind_by(choice, &cs_items)) {
        results[index] = result.map(|([c0, c1], unblind)| {
            (BlindedPlanchet::Cs { nonce: *nonce, c0, c1 }, state(index, UnblindCipher::Cs(unblind)))
        });
    }
    results
}

/// [`h_coin_pub`] of each coin.
fn h_coin_pubs(choice: Choice, items: &[PlanchetRequest<'_>]) -> Vec<HashCode> {
    /// The fewest hashes that are faster in the lanes.
    const FEWEST: usize = 3;

    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(items.len(), FEWEST) {
        let messages: Vec<_> = items
            .iter()
            .map(|item| {
                let age = item.h_age_commitment.filter(|commitment| !commitment.is_zero());
                [&item.coin_pub.as_bytes()[..], age.map_or(&[], |commitment| commitment.as_bytes()), &[]]
            })
            .collect();
        return sha512_each(&messages, false).into_iter().map(HashCode::from_bytes).collect();
    }
    let _ = (choice, FEWEST);
    items.iter().map(|item| h_coin_pub(item.coin_pub, item.h_age_commitment)).collect()
}

/// `h_coin_ev` of the planchet that a coin was made from, computed with the blinding secret that its owner
/// reveals in a recoup.
///
/// # Errors
///
/// As [`prepare_planchet`].
pub fn recoup_h_coin_ev(
    denom: &DenomPublicKey,
    values: &ExchangeWithdrawValues,
    nonce: Option<&CsNonce>,
    coin_pub: &EddsaPublicKey,
    blinding: &BlindingSecret,
    h_age_commitment: Option<&ShortHash>,
) -> Result<HashCode, CryptoError> {
    let (planchet, _) = prepare_planchet(denom, values, nonce, coin_pub, blinding, h_age_commitment)?;
    Ok(planchet.hash(&denom.h_denom_pub()))
}

/// Signs blinded planchets, each with its key; the results are in the order of the arguments.
///
/// With Clause Blind Schnorr, the caller must ensure that no other challenges were ever signed for this
/// nonce, key and purpose. Errors per item are those of [`rsa::sign_batch`] and [`cs::sign_batch`], and
/// [`CryptoError::CipherMismatch`] if the planchet is of another cipher than the key.
#[must_use]
pub fn blind_sign_batch(
    items: &[(&DenomPrivateKey, &BlindedPlanchet, CsOperation)],
) -> Vec<Result<BlindedDenomSignature, CryptoError>> {
    let mut results = vec![Err(CryptoError::CipherMismatch); items.len()];
    let (mut rsa_indices, mut rsa_items) = (Vec::new(), Vec::new());
    let (mut cs_indices, mut cs_items) = (Vec::new(), Vec::new());
    for (index, (key, planchet, operation)) in items.iter().enumerate() {
        match (key, planchet) {
            (DenomPrivateKey::Rsa(key), BlindedPlanchet::Rsa { blinded }) => {
                rsa_indices.push(index);
                rsa_items.push((key, blinded.as_slice()));
            }
            (DenomPrivateKey::Cs(key), BlindedPlanchet::Cs { nonce, c0, c1 }) => {
                cs_indices.push(index);
                cs_items.push(CsSignRequest { key, nonce, operation: *operation, challenges: [c0, c1] });
            }
            _ => {}
        }
    }
    for (index, result) in rsa_indices.into_iter().zip(rsa::sign_batch(&rsa_items)) {
        results[index] = result.map(BlindedDenomSignature::Rsa);
    }
    for (index, signature) in cs_indices.into_iter().zip(cs::sign_batch(&cs_items)) {
        results[index] = signature.map(BlindedDenomSignature::Cs);
    }
    results
}

/// Returns whether `signature` is a valid signature by `denom` of the coin with hash `h_coin_pub`.
#[must_use]
pub fn verify(denom: &DenomPublicKey, h_coin_pub: &HashCode, signature: &DenomSignature) -> bool {
    match (&denom.key, signature) {
        (DenomKey::Rsa(key), DenomSignature::Rsa(signature)) => rsa::verify(key, h_coin_pub, signature),
        (DenomKey::Cs(key), DenomSignature::Cs(signature)) => cs::verify(key, h_coin_pub, signature),
        _ => false,
    }
}

/// Verifies many coins; the verdicts are in the order of the arguments and equal those of [`verify`].
#[must_use]
pub fn verify_batch(items: &[(&DenomPublicKey, &HashCode, &DenomSignature)]) -> Vec<bool> {
    let mut verdicts = vec![false; items.len()];
    let (mut rsa_indices, mut rsa_items) = (Vec::new(), Vec::new());
    let (mut cs_indices, mut cs_items) = (Vec::new(), Vec::new());
    for (index, (denom, h_coin_pub, signature)) in items.iter().enumerate() {
        match (&denom.key, signature) {
            (DenomKey::Rsa(key), DenomSignature::Rsa(signature)) => {
                rsa_indices.push(index);
                rsa_items.push((key, *h_coin_pub, signature.as_slice()));
            }
            (DenomKey::Cs(key), DenomSignature::Cs(signature)) => {
                cs_indices.push(index);
                cs_items.push((key, *h_coin_pub, signature));
            }
            _ => {}
        }
    }
    for (index, verdict) in rsa_indices.into_iter().zip(rsa::verify_batch(&rsa_items)) {
        verdicts[index] = verdict;
    }
    for (index, verdict) in cs_indices.into_iter().zip(cs::verify_batch(&cs_items)) {
        verdicts[index] = verdict;
    }
    verdicts
}
