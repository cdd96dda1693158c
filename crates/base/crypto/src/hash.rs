//! SHA-512, the only hash of the protocol ("hash" means SHA-512 everywhere).

pub use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::{HashCode, ShortHash};

/// SHA-512 of `data`.
#[must_use]
pub fn sha512(data: &[u8]) -> HashCode {
    HashCode::from_bytes(Sha512::digest(data).into())
}

/// SHA-512 of the concatenation of `parts`.
#[must_use]
pub fn sha512_parts(parts: &[&[u8]]) -> HashCode {
    let mut hasher = Sha512::new();
    for part in parts {
        hasher.update(part);
    }
    finish(hasher)
}

/// SHA-512 of the concatenation of secret `parts`; the result is wiped when dropped.
pub(crate) fn sha512_secret(parts: &[&[u8]]) -> Zeroizing<[u8; 64]> {
    let mut hasher = Sha512::new();
    for part in parts {
        hasher.update(part);
    }
    let mut out = Zeroizing::new([0; 64]);
    hasher.finalize_into((&mut *out).into());
    out
}

/// The first half of a hash.
#[must_use]
pub fn shorten(hash: &HashCode) -> ShortHash {
    ShortHash::from_bytes(*hash.as_bytes().first_chunk().expect("64 bytes hold 32"))
}

/// The hash of everything that was fed to `hasher`.
#[must_use]
pub fn finish(hasher: Sha512) -> HashCode {
    HashCode::from_bytes(hasher.finalize().into())
}
