//! JSON forms: base32 texts for byte values, objects with a member `cipher` for keys, planchets and
//! signatures.
//!
//! The cipher is written as `RSA` or `CS`. When read, case does not matter and the suffix `+age_restricted`
//! is accepted; unknown members are ignored.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::{
    AgePrivateKey, AgePublicKey, AgeSignature, BlindedDenomSignature, BlindedPlanchet, BlindingSecret,
    Cipher, CsBlindSignature, CsNonce, CsPublicKey, CsRPub, CsScalar, CsSignature, CsVerifyingKey, DenomKey,
    DenomPublicKey, DenomSignature, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey,
    EddsaSignature, ExchangeWithdrawValues, HashCode, PlanchetMasterSecret, RefreshMasterSecret,
    RsaPublicKey, ShortHash, TransferSecret, WireSalt, Wtid, base32,
};

/// Parses a base32 text of `N` bytes without copying the text.
fn array<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<[u8; N], D::Error> {
    struct Visitor<const N: usize>;
    impl<const N: usize> de::Visitor<'_> for Visitor<N> {
        type Value = [u8; N];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "base32 text of {N} bytes")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<[u8; N], E> {
            base32::decode_array(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Visitor::<N>)
}

macro_rules! public_base32 {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                base32::with_encoded(self.as_bytes(), |text| serializer.serialize_str(text))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                array(deserializer).map(Self::from_bytes)
            }
        }
    )*};
}

macro_rules! secret_base32 {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.to_base32())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                array(deserializer).map(Self::from_bytes)
            }
        }
    )*};
}

public_base32!(
    HashCode,
    ShortHash,
    EddsaPublicKey,
    EddsaSignature,
    EcdhePublicKey,
    CsPublicKey,
    CsRPub,
    CsScalar,
    CsNonce,
    WireSalt,
    Wtid,
    AgePublicKey,
    AgeSignature
);
secret_base32!(
    EddsaPrivateKey,
    EcdhePrivateKey,
    AgePrivateKey,
    BlindingSecret,
    PlanchetMasterSecret,
    RefreshMasterSecret,
    TransferSecret
);

/// Bytes of any length as base32.
struct Blob(Vec<u8>);

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base32 text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Blob, E> {
                base32::decode(text).map(Blob).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Writes bytes of any length as base32.
struct BlobRef<'a>(&'a [u8]);

impl Serialize for BlobRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base32::encode(self.0))
    }
}

impl Serialize for Cipher {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Cipher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Cipher;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"RSA\" or \"CS\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cipher, E> {
                let is = |name: &str| text.eq_ignore_ascii_case(name);
                if is("RSA") || is("RSA+age_restricted") {
                    Ok(Cipher::Rsa)
                } else if is("CS") || is("CS+age_restricted") {
                    Ok(Cipher::Cs)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(text), &self))
                }
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Defines how an object with a cipher is parsed: all members that any cipher has, each optional, in any
/// order. The conversion takes those of the actual cipher. `null` counts as absent.
macro_rules! tagged {
    ($raw:ident { $($member:ident: $type:ty),* }) => {
        #[derive(serde::Deserialize)]
        struct $raw {
            cipher: Cipher,
            $( $member: Option<$type>, )*
        }
    };
}

fn need<T, E: de::Error>(value: Option<T>, name: &'static str) -> Result<T, E> {
    value.ok_or_else(|| E::missing_field(name))
}

tagged!(RawDenomPublicKey { age_mask: u32, rsa_public_key: Blob, cs_public_key: CsPublicKey });

impl<'de> Deserialize<'de> for DenomPublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawDenomPublicKey::deserialize(deserializer)?;
        let key = match raw.cipher {
            Cipher::Rsa => {
                let Blob(encoded) = need(raw.rsa_public_key, "rsa_public_key")?;
                DenomKey::Rsa(RsaPublicKey::decode(&encoded).map_err(D::Error::custom)?)
            }
            Cipher::Cs => {
                let point = need(raw.cs_public_key, "cs_public_key")?;
                DenomKey::Cs(CsVerifyingKey::new(&point).map_err(D::Error::custom)?)
            }
        };
        Ok(Self { age_mask: raw.age_mask.unwrap_or(0), key })
    }
}

impl Serialize for DenomPublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("DenomPublicKey", 3)?;
        object.serialize_field("cipher", &self.cipher())?;
        object.serialize_field("age_mask", &self.age_mask)?;
        match &self.key {
            DenomKey::Rsa(key) => object.serialize_field("rsa_public_key", &BlobRef(key.encode()))?,
            DenomKey::Cs(key) => object.serialize_field("cs_public_key", key.as_public_key())?,
        }
        object.end()
    }
}

tagged!(RawDenomSignature { rsa_signature: Blob, cs_signature_r: CsRPub, cs_signature_s: CsScalar });

impl<'de> Deserialize<'de> for DenomSignature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawDenomSignature::deserialize(deserializer)?;
        match raw.cipher {
            Cipher::Rsa => Ok(Self::Rsa(need(raw.rsa_signature, "rsa_signature")?.0)),
            Cipher::Cs => Ok(Self::Cs(CsSignature {
                r: need(raw.cs_signature_r, "cs_signature_r")?,
                s: need(raw.cs_signature_s, "cs_signature_s")?,
            })),
        }
    }
}

impl Serialize for DenomSignature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("DenomSignature", 3)?;
        match self {
            Self::Rsa(signature) => {
                object.serialize_field("cipher", &Cipher::Rsa)?;
                object.serialize_field("rsa_signature", &BlobRef(signature))?;
            }
            Self::Cs(signature) => {
                object.serialize_field("cipher", &Cipher::Cs)?;
                object.serialize_field("cs_signature_r", &signature.r)?;
                object.serialize_field("cs_signature_s", &signature.s)?;
            }
        }
        object.end()
    }
}

tagged!(RawBlindedDenomSignature { blinded_rsa_signature: Blob, b: u8, s: CsScalar });

impl<'de> Deserialize<'de> for BlindedDenomSignature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawBlindedDenomSignature::deserialize(deserializer)?;
        match raw.cipher {
            Cipher::Rsa => Ok(Self::Rsa(need(raw.blinded_rsa_signature, "blinded_rsa_signature")?.0)),
            Cipher::Cs => {
                let b = need(raw.b, "b")?;
                if b > 1 {
                    return Err(D::Error::invalid_value(de::Unexpected::Unsigned(b.into()), &"0 or 1"));
                }
                Ok(Self::Cs(CsBlindSignature { b, s: need(raw.s, "s")? }))
            }
        }
    }
}

impl Serialize for BlindedDenomSignature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("BlindedDenomSignature", 3)?;
        match self {
            Self::Rsa(signature) => {
                object.serialize_field("cipher", &Cipher::Rsa)?;
                object.serialize_field("blinded_rsa_signature", &BlobRef(signature))?;
            }
            Self::Cs(signature) => {
                object.serialize_field("cipher", &Cipher::Cs)?;
                object.serialize_field("b", &signature.b)?;
                object.serialize_field("s", &signature.s)?;
            }
        }
        object.end()
    }
}

tagged!(RawBlindedPlanchet {
    rsa_blinded_planchet: Blob,
    cs_nonce: CsNonce,
    cs_blinded_c0: CsScalar,
    cs_blinded_c1: CsScalar
});

impl<'de> Deserialize<'de> for BlindedPlanchet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawBlindedPlanchet::deserialize(deserializer)?;
        match raw.cipher {
            Cipher::Rsa => {
                Ok(Self::Rsa { blinded: need(raw.rsa_blinded_planchet, "rsa_blinded_planchet")?.0 })
            }
            Cipher::Cs => Ok(Self::Cs {
                nonce: need(raw.cs_nonce, "cs_nonce")?,
                c0: need(raw.cs_blinded_c0, "cs_blinded_c0")?,
                c1: need(raw.cs_blinded_c1, "cs_blinded_c1")?,
            }),
        }
    }
}

impl Serialize for BlindedPlanchet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("BlindedPlanchet", 4)?;
        object.serialize_field("cipher", &self.cipher())?;
        match self {
            Self::Rsa { blinded } => object.serialize_field("rsa_blinded_planchet", &BlobRef(blinded))?,
            Self::Cs { nonce, c0, c1 } => {
                object.serialize_field("cs_nonce", nonce)?;
                object.serialize_field("cs_blinded_c0", c0)?;
                object.serialize_field("cs_blinded_c1", c1)?;
            }
        }
        object.end()
    }
}

tagged!(RawExchangeWithdrawValues { r_pub_0: CsRPub, r_pub_1: CsRPub });

impl<'de> Deserialize<'de> for ExchangeWithdrawValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawExchangeWithdrawValues::deserialize(deserializer)?;
        match raw.cipher {
            Cipher::Rsa => Ok(Self::Rsa),
            Cipher::Cs => {
                Ok(Self::Cs { r0: need(raw.r_pub_0, "r_pub_0")?, r1: need(raw.r_pub_1, "r_pub_1")? })
            }
        }
    }
}

impl Serialize for ExchangeWithdrawValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("ExchangeWithdrawValues", 3)?;
        match self {
            Self::Rsa => object.serialize_field("cipher", &Cipher::Rsa)?,
            Self::Cs { r0, r1 } => {
                object.serialize_field("cipher", &Cipher::Cs)?;
                object.serialize_field("r_pub_0", r0)?;
                object.serialize_field("r_pub_1", r1)?;
            }
        }
        object.end()
    }
}
