use thiserror::Error;

/// Why a cryptographic operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CryptoError {
    /// The bytes are not a point of the curve in its canonical encoding, or the point has small order.
    #[error("invalid curve point")]
    InvalidPoint,
    /// The bytes are not a scalar below the group order.
    #[error("scalar is not reduced")]
    InvalidScalar,
    /// The encoded key does not parse, or its parameters are outside the limits of the protocol.
    #[error("malformed key")]
    MalformedKey,
    /// The RSA modulus shares a factor with a hash or a blinding factor: it was crafted to recognise coins.
    #[error("RSA modulus is malicious")]
    MaliciousKey,
    /// The value is not below the RSA modulus.
    #[error("value is not below the RSA modulus")]
    OutOfRange,
    /// The two objects belong to different ciphers.
    #[error("ciphers do not match")]
    CipherMismatch,
    /// The signature does not verify.
    #[error("invalid signature")]
    InvalidSignature,
    /// The authenticator of an encrypted blob is wrong: different key, different label, or damage.
    #[error("decryption failed")]
    DecryptionFailed,
    /// The number of items is wrong or beyond a limit of the protocol.
    #[error("wrong number of items")]
    WrongCount,
    /// The age group specification does not parse, or the age is outside its range.
    #[error("invalid age restriction")]
    InvalidAge,
    /// The private key that this attestation needs is not in the commitment.
    #[error("age cannot be attested")]
    AgeNotAttestable,
    /// The result of the private RSA operation did not verify, because of a hardware fault or a damaged key.
    /// Nothing was released.
    #[error("RSA computation failed its check")]
    Fault,
    /// The cryptographic library could not allocate memory or failed internally.
    #[error("cryptographic library failed")]
    Internal,
}
