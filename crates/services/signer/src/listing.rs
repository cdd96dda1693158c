//! Public information about private keys: public keys, their periods of use, and the modules' signatures,
//! which the holder of the master key checks before signing.

use std::sync::Arc;

use batzen_crypto::denom::{Cipher, DenomKey, DenomPublicKey};
use batzen_crypto::hash::sha512;
use batzen_crypto::{
    CsPublicKey, EddsaPublicKey, EddsaSignature, HashCode, cs::CsVerifyingKey, rsa::RsaPublicKey,
};
use batzen_protocol::{Duration, Timestamp};

/// The public keys of the three security modules; [`EddsaPublicKey::ZERO`] for one that runs elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleKeys {
    /// Announces RSA denomination keys.
    pub rsa: EddsaPublicKey,
    /// Announces Clause Blind Schnorr denomination keys.
    pub cs: EddsaPublicKey,
    /// Announces online signing keys.
    pub eddsa: EddsaPublicKey,
}

/// The public side of a denomination key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenomInfo {
    /// The coin section.
    pub section: String,
    /// Start of its use.
    pub anchor: Timestamp,
    /// Announced period of use.
    pub duration: Duration,
    /// SHA-512 of the bare public key: its identifier between module and exchange.
    pub h_bare: HashCode,
    pub(crate) public: DenomKey,
    /// The module's signature over the announcement.
    pub announcement: EddsaSignature,
}

impl DenomInfo {
    /// The cipher.
    pub fn cipher(&self) -> Cipher {
        match self.public {
            DenomKey::Rsa(_) => Cipher::Rsa,
            DenomKey::Cs(_) => Cipher::Cs,
        }
    }

    /// The public key with an age mask.
    pub fn public(&self, age_mask: u32) -> DenomPublicKey {
        DenomPublicKey { age_mask, key: self.public.clone() }
    }
}

/// The public side of an online signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningInfo {
    /// The key.
    pub exchange_pub: EddsaPublicKey,
    /// Start of its use.
    pub anchor: Timestamp,
    /// Period of use.
    pub duration: Duration,
    /// The module's signature over the announcement.
    pub announcement: EddsaSignature,
}

/// All keys at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub(crate) modules: ModuleKeys,
    /// Denomination keys, section by section, oldest first.
    pub denoms: Vec<Arc<DenomInfo>>,
    /// Online signing keys, oldest first.
    pub signing: Vec<Arc<SigningInfo>>,
}

/// The version that stands for an unknown listing.
pub(crate) const NO_VERSION: u64 = 0;

/// A listing that does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed list of keys")]
pub struct MalformedListing;

/// The version of a listing, computed from its content: equal listings have equal versions at every signer.
pub(crate) fn version(encoded: &[u8]) -> u64 {
    let hash = sha512(encoded);
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("64 bytes hold eight")).max(NO_VERSION + 1)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedListing> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(MalformedListing)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedListing> {
        Ok(self.take(N)?.try_into().expect("as many as asked for"))
    }

    fn short_bytes(&mut self) -> Result<&'a [u8], MalformedListing> {
        let length = u16::from_le_bytes(self.array()?);
        self.take(usize::from(length))
    }

    fn count(&mut self) -> Result<usize, MalformedListing> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| MalformedListing)
    }
}

fn push_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("names and keys are below 64 KiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn push_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).expect("keys are few").to_le_bytes());
}

impl Listing {
    /// The listing as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 512 * self.denoms.len() + 128 * self.signing.len());
        for key in [&self.modules.rsa, &self.modules.cs, &self.modules.eddsa] {
            out.extend_from_slice(key.as_bytes());
        }
        push_count(&mut out, self.denoms.len());
        for denom in &self.denoms {
            push_short(&mut out, denom.section.as_bytes());
            out.extend_from_slice(&denom.anchor.to_nbo());
            out.extend_from_slice(&denom.duration.to_nbo());
            out.push(u8::try_from(denom.cipher().tag()).expect("a cipher's tag is small"));
            push_short(&mut out, denom.public(0).key_bytes());
            out.extend_from_slice(denom.announcement.as_bytes());
        }
        push_count(&mut out, self.signing.len());
        for key in &self.signing {
            out.extend_from_slice(key.exchange_pub.as_bytes());
            out.extend_from_slice(&key.anchor.to_nbo());
            out.extend_from_slice(&key.duration.to_nbo());
            out.extend_from_slice(key.announcement.as_bytes());
        }
        out
    }

    /// Reads what [`Listing::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedListing> {
        let mut reader = Reader(bytes);
        let modules = ModuleKeys {
            rsa: EddsaPublicKey::from_bytes(reader.array()?),
            cs: EddsaPublicKey::from_bytes(reader.array()?),
            eddsa: EddsaPublicKey::from_bytes(reader.array()?),
        };
        let mut denoms = Vec::new();
        for _ in 0..reader.count()? {
            let section = std::str::from_utf8(reader.short_bytes()?).map_err(|_| MalformedListing)?;
            let anchor = Timestamp::from_nbo(reader.array()?);
            let duration = Duration::from_nbo(reader.array()?);
            let [tag] = reader.array()?;
            let key = reader.short_bytes()?;
            let public = match tag {
                1 => DenomKey::Rsa(RsaPublicKey::decode(key).map_err(|_| MalformedListing)?),
                2 => {
                    let key = CsPublicKey::try_from(key).map_err(|_| MalformedListing)?;
                    DenomKey::Cs(CsVerifyingKey::new(&key).map_err(|_| MalformedListing)?)
                }
                _ => return Err(MalformedListing),
            };
            denoms.push(Arc::new(DenomInfo {
                section: section.to_owned(),
                anchor,
                duration,
                h_bare: sha512(key),
                public,
                announcement: EddsaSignature::from_bytes(reader.array()?),
            }));
        }
        let mut signing = Vec::new();
        for _ in 0..reader.count()? {
            signing.push(Arc::new(SigningInfo {
                exchange_pub: EddsaPublicKey::from_bytes(reader.array()?),
                anchor: Timestamp::from_nbo(reader.array()?),
                duration: Duration::from_nbo(reader.array()?),
                announcement: EddsaSignature::from_bytes(reader.array()?),
            }));
        }
        if reader.0.is_empty() { Ok(Self { modules, denoms, signing }) } else { Err(MalformedListing) }
    }
}
