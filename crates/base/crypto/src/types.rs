use crate::bytes::{public_bytes, secret_bytes};
use crate::random::random_array;

public_bytes! {
    /// A full SHA-512 output (64 bytes).
    HashCode(64);
    /// The first half of a SHA-512 output (32 bytes): `h_payto`, `h_age_commitment`.
    ShortHash(32);
    /// An Ed25519 public key (32 bytes): reserves, coins, merchants, purses, signing keys.
    EddsaPublicKey(32);
    /// An Ed25519 signature (64 bytes), R then S.
    EddsaSignature(64);
    /// An X25519 public key (32 bytes): transfer and contract keys.
    EcdhePublicKey(32);
    /// A Clause Blind Schnorr denomination key (32 bytes), a point of Edwards25519.
    CsPublicKey(32);
    /// One of the two R values of a Clause Blind Schnorr signature (32 bytes), a point of Edwards25519.
    CsRPub(32);
    /// A public scalar of a Clause Blind Schnorr signature (32 bytes, little endian): a blinded challenge c
    /// or an s.
    CsScalar(32);
    /// The nonce under which the exchange derives its R values (32 bytes).
    CsNonce(32);
    /// The salt in the hash of a merchant's account (16 bytes).
    WireSalt(16);
    /// A wire transfer identifier (32 bytes).
    Wtid(32);
    /// One public key of an age commitment (32 bytes), Edx25519.
    AgePublicKey(32);
    /// A signature with an age commitment key (64 bytes), Edx25519.
    AgeSignature(64);
}

secret_bytes! {
    /// An Ed25519 private key: the 32-byte seed of RFC 8032.
    EddsaPrivateKey(32);
    /// An X25519 private key (32 bytes), clamped on use.
    EcdhePrivateKey(32);
    /// A Clause Blind Schnorr denomination private key: a scalar (32 bytes, little endian).
    CsPrivateKey(32);
    /// An Edx25519 private key (64 bytes): the scalar `a`, then the nonce secret `b`.
    AgePrivateKey(64);
    /// The blinding secret of a coin (32 bytes): the RSA blinding secret or the Clause Blind Schnorr blinding
    /// seed.
    BlindingSecret(32);
    /// The secret from which one coin is derived (32 bytes).
    PlanchetMasterSecret(32);
    /// The secret of one refresh from which nonces (and with some clients, transfer keys) are derived (32
    /// bytes).
    RefreshMasterSecret(32);
    /// The result of a key exchange (64 bytes).
    TransferSecret(64);
}

macro_rules! generate {
    ($($name:ident),*) => {$(
        impl $name {
            /// A fresh secret from the operating system's randomness.
            #[must_use]
            pub fn generate() -> Self {
                Self::from_bytes(random_array())
            }
        }
    )*};
}

generate!(EddsaPrivateKey, EcdhePrivateKey, BlindingSecret, PlanchetMasterSecret, RefreshMasterSecret);

macro_rules! random {
    ($($name:ident),*) => {$(
        impl $name {
            /// A fresh value from the operating system's randomness.
            #[must_use]
            pub fn random() -> Self {
                Self::from_bytes(random_array())
            }
        }
    )*};
}

random!(WireSalt, Wtid, HashCode, ShortHash);
