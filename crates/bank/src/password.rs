//! Password hashes.
//!
//! The stored hash is an iterated key derivation (HKDF with HMAC-SHA-512 and HMAC-SHA-256) salted with the bank's random salt
//! and the account's name. It slows guessing down, but uses no memory to speak of: passwords of a test bank are not meant
//! to protect more than a test.

use batzen_crypto::{ShortHash, kdf};

/// How often the derivation is repeated: some milliseconds.
const ROUNDS: u32 = 4096;

/// The hash of an account's password.
pub(crate) fn hash(bank_salt: &[u8; 16], account: &str, password: &str) -> ShortHash {
    let mut state =
        kdf::kdf_array::<32>(bank_salt, password.as_bytes(), &[b"batzen-bank-password", account.as_bytes()]);
    for _ in 1..ROUNDS {
        state = kdf::kdf_array(bank_salt, &state, &[]);
    }
    ShortHash::from_bytes(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_salt_account_and_password() {
        let hashes = [
            hash(&[1; 16], "a", "secret"),
            hash(&[2; 16], "a", "secret"),
            hash(&[1; 16], "b", "secret"),
            hash(&[1; 16], "a", "Secret"),
        ];
        for (index, one) in hashes.iter().enumerate() {
            assert!(hashes[index + 1..].iter().all(|other| other != one));
        }
        assert_eq!(hashes[0], hash(&[1; 16], "a", "secret"));
    }
}
