//! Password hashes: Argon2id, and the iterated derivation of earlier builds.
//!
//! A stored hash has 32 bytes. Argon2id hashes begin with two fixed bytes, the memory in units of 256 KiB and
//! the number of passes; 28 bytes of output follow. Hashes of earlier builds are 32 bytes of an iterated HKDF
//! without this prefix. They still verify, and are replaced at the next log-in. The salt follows from the
//! bank's random salt and the account's name, so that equal passwords have different hashes.

use argon2::{Algorithm, Argon2, Params, Version};
use batzen_crypto::hash::sha512_parts;
use batzen_crypto::{ShortHash, kdf};
use subtle::ConstantTimeEq;

/// The longest password, in bytes.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1_024;

/// Number of iterations in earlier builds.
const OLD_ROUNDS: u32 = 4096;

/// Prefix of stored Argon2id hashes.
const MAGIC: [u8; 2] = [0xA2, 0x1D];
const MEMORY_UNIT_KIB: u32 = 256;
const PREFIX_BYTES: usize = MAGIC.len() + 2;
const OUTPUT_BYTES: usize = 32 - PREFIX_BYTES;

/// Cost of one password hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordCost {
    /// Memory, in units of 256 KiB.
    memory_units: u8,
    /// Passes over the memory.
    passes: u8,
}

impl PasswordCost {
    /// The most passes.
    pub(crate) const PASSES_MAX: u8 = 16;

    /// 19 MiB and 2 passes, as OWASP recommends: about 20 ms of one core.
    pub(crate) const DEFAULT: Self = Self { memory_units: 76, passes: 2 };

    /// The lowest possible cost. For tests: it does not protect passwords.
    pub const LEAST: Self = Self { memory_units: 1, passes: 1 };

    /// This cost; `None` unless the memory is a multiple of 256 KiB up to 63.75 MiB and there are 1 to 16
    /// passes.
    #[must_use]
    pub fn new(memory_kib: u32, passes: u8) -> Option<Self> {
        if !memory_kib.is_multiple_of(MEMORY_UNIT_KIB) {
            return None;
        }
        Self::of_units(u8::try_from(memory_kib / MEMORY_UNIT_KIB).ok()?, passes)
    }

    fn of_units(memory_units: u8, passes: u8) -> Option<Self> {
        (memory_units > 0 && (1..=Self::PASSES_MAX).contains(&passes))
            .then_some(Self { memory_units, passes })
    }

    /// The cost of a stored hash; `None` for a hash of an earlier build.
    fn of_hash(hash: &ShortHash) -> Option<Self> {
        let [first, second, memory_units, passes, ..] = *hash.as_bytes();
        if [first, second] == MAGIC { Self::of_units(memory_units, passes) } else { None }
    }
}

/// Result of a password check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    Wrong,
    /// The password is right, and its hash has the current form.
    Right,
    /// The password is right; replace the stored hash by this one.
    Outdated(ShortHash),
}

/// Hashes an account's password. Takes milliseconds.
pub(crate) fn hash(cost: PasswordCost, bank_salt: &[u8; 16], account: &str, password: &str) -> ShortHash {
    let memory_kib = u32::from(cost.memory_units) * MEMORY_UNIT_KIB;
    let params = Params::new(memory_kib, u32::from(cost.passes), 1, Some(OUTPUT_BYTES));
    let argon2 =
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params.expect("every cost is within the limits"));
    let salt = sha512_parts(&[b"batzen-bank-password-salt", bank_salt, account.as_bytes()]);
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&MAGIC);
    bytes[2..PREFIX_BYTES].copy_from_slice(&[cost.memory_units, cost.passes]);
    argon2
        .hash_password_into(password.as_bytes(), &salt.as_bytes()[..16], &mut bytes[PREFIX_BYTES..])
        .expect("salt and output have permitted lengths");
    ShortHash::from_bytes(bytes)
}

/// Compares a password with the stored hash of the account. Costs at least one hash, even if nothing is
/// stored.
pub(crate) fn verify(
    cost: PasswordCost,
    stored: Option<ShortHash>,
    bank_salt: &[u8; 16],
    account: &str,
    password: &str,
) -> Verified {
    let current = hash(cost, bank_salt, account, password);
    let Some(stored) = stored else { return Verified::Wrong };
    let is_stored = |given: &ShortHash| bool::from(given.as_bytes()[..].ct_eq(&stored.as_bytes()[..]));
    if is_stored(&current) {
        return Verified::Right;
    }
    let other_cost = PasswordCost::of_hash(&stored).filter(|stored| *stored != cost);
    let is_right = other_cost.is_some_and(|cost| is_stored(&hash(cost, bank_salt, account, password)))
        || is_stored(&old_hash(bank_salt, account, password));
    if is_right { Verified::Outdated(current) } else { Verified::Wrong }
}

/// The hash of earlier builds.
fn old_hash(bank_salt: &[u8; 16], account: &str, password: &str) -> ShortHash {
    let mut state =
        kdf::kdf_array::<32>(bank_salt, password.as_bytes(), &[b"batzen-bank-password", account.as_bytes()]);
    for _ in 1..OLD_ROUNDS {
        state = kdf::kdf_array(bank_salt, &state, &[]);
    }
    ShortHash::from_bytes(state)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const COST: PasswordCost = PasswordCost::LEAST;

    #[test]
    fn depends_on_salt_account_password_and_cost() {
        let hashes = [
            hash(COST, &[1; 16], "a", "secret"),
            hash(COST, &[2; 16], "a", "secret"),
            hash(COST, &[1; 16], "b", "secret"),
            hash(COST, &[1; 16], "a", "Secret"),
            hash(PasswordCost::new(512, 1).unwrap(), &[1; 16], "a", "secret"),
        ];
        for (index, one) in hashes.iter().enumerate() {
            assert!(hashes[index + 1..].iter().all(|other| other != one));
        }
        assert_eq!(hashes[0], hash(COST, &[1; 16], "a", "secret"));
    }

    #[test]
    fn stored_hashes_of_all_builds_verify() {
        let salt = [7; 16];
        let verify = |stored, password| verify(COST, stored, &salt, "joe", password);
        let current = hash(COST, &salt, "joe", "secret");
        let dearer = hash(PasswordCost::new(512, 2).unwrap(), &salt, "joe", "secret");
        assert_eq!(verify(Some(current), "secret"), Verified::Right);
        for outdated in [dearer, old_hash(&salt, "joe", "secret")] {
            assert_eq!(verify(Some(outdated), "secret"), Verified::Outdated(current));
            assert_eq!(verify(Some(outdated), "Secret"), Verified::Wrong);
        }
        assert_eq!(verify(Some(current), "Secret"), Verified::Wrong);
        assert_eq!(verify(None, "secret"), Verified::Wrong);
    }

    #[test]
    fn costs_have_limits() {
        assert_eq!(PasswordCost::new(19 << 10, 2), Some(PasswordCost::DEFAULT));
        for (memory_kib, passes) in [(0, 1), (100, 1), (64 << 10, 1), (256, 0), (256, 17)] {
            assert_eq!(PasswordCost::new(memory_kib, passes), None);
        }
    }
}
