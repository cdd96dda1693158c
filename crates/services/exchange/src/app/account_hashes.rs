//! A cache of the hashes of merchants' accounts. The salted hash costs a key derivation, and merchants use
//! the same account for many deposits.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_crypto::{HashCode, WireSalt};
use batzen_protocol::payto::PaytoUri;
use batzen_tables::exchange::PaytoHash;
use smallvec::SmallVec;

/// Maximum memory for the remembered accounts, in bytes.
const ACCOUNTS_BYTES_MAX: usize = 16 << 20;
/// Memory of an account besides its URI, in bytes: the salt, the hashes and the map entry.
const ACCOUNT_BYTES: usize = 256;

/// The two hashes of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountHash {
    /// The salted hash, which is signed.
    pub(crate) h_wire: HashCode,
    /// The hash that names the account in rows.
    pub(crate) h_payto: PaytoHash,
}

/// Number of parts of the cache. Each has its own lock, so that several threads rarely wait for one another.
const PARTS: usize = 16;
/// Most keys fit into this buffer, in bytes.
const KEY_BYTES: usize = 256;

/// The salt, then the URI.
type Key = SmallVec<[u8; KEY_BYTES]>;

/// The hashes of accounts that were paid recently.
///
/// Only accounts of deposits with valid signatures are cached, so filling the cache costs coins. Each part has
/// two generations: when the young one holds half of the part's bytes, it replaces the old one.
#[derive(Debug, Default)]
pub struct AccountHashes([Mutex<Generations>; PARTS]);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<[u8]>, AccountHash>,
    young_bytes: usize,
    old: HashMap<Box<[u8]>, AccountHash>,
    old_bytes: usize,
}

impl AccountHashes {
    /// The hashes of an account: remembered, or computed. The flag says whether they were remembered.
    pub(crate) fn of(&self, payto: &PaytoUri, salt: &WireSalt) -> (AccountHash, bool) {
        let key = key(payto, salt);
        let known = {
            let accounts = self.lock(&key);
            accounts.young.get(&key[..]).or_else(|| accounts.old.get(&key[..])).copied()
        };
        match known {
            Some(hash) => (hash, true),
            None => (AccountHash { h_wire: payto.wire_hash(salt), h_payto: payto.hash() }, false),
        }
    }

    /// Remembers the hashes of an account. The caller has verified a signature over them.
    pub(crate) fn remember(&self, payto: &PaytoUri, salt: &WireSalt, hash: AccountHash) {
        let key = key(payto, salt);
        let bytes = key.len() - salt.as_bytes().len() + ACCOUNT_BYTES;
        let mut accounts = self.lock(&key);
        if accounts.young.contains_key(&key[..]) {
            return;
        }
        if accounts.young_bytes + bytes > ACCOUNTS_BYTES_MAX / PARTS / 2 {
            accounts.old = mem::take(&mut accounts.young);
            accounts.old_bytes = mem::take(&mut accounts.young_bytes);
        }
        accounts.young.insert(key.into_boxed_slice(), hash);
        accounts.young_bytes += bytes;
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        let bytes = |part| {
            let accounts = lock(part);
            accounts.young_bytes + accounts.old_bytes
        };
        self.0.iter().map(bytes).sum()
    }

    /// The part of the cache that may have this key.
    fn lock(&self, key: &[u8]) -> MutexGuard<'_, Generations> {
        let sum = key.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        lock(&self.0[usize::from(sum) % PARTS])
    }
}

fn key(payto: &PaytoUri, salt: &WireSalt) -> Key {
    let mut key = Key::from_slice(salt.as_bytes());
    key.extend_from_slice(payto.as_str().as_bytes());
    key
}

fn lock(part: &Mutex<Generations>) -> MutexGuard<'_, Generations> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use batzen_protocol::limits::PAYTO_BYTES_MAX;

    use super::*;

    fn payto(number: usize) -> PaytoUri {
        let start = format!("payto://x-taler-bank/localhost/{number}?receiver-name=");
        PaytoUri::parse(format!("{start}{}", "x".repeat(PAYTO_BYTES_MAX - start.len()))).unwrap()
    }

    #[test]
    fn remembered_hashes_are_the_hashes() {
        let hashes = AccountHashes::default();
        let salts = [1, 2].map(|byte| WireSalt::from_bytes([byte; 16]));
        for salt in &salts {
            let (hash, known) = hashes.of(&payto(1), salt);
            assert_eq!(hash, AccountHash { h_wire: payto(1).wire_hash(salt), h_payto: payto(1).hash() });
            assert!(!known);
            hashes.remember(&payto(1), salt, hash);
            assert_eq!(hashes.of(&payto(1), salt), (hash, true));
        }
        assert_ne!(hashes.of(&payto(1), &salts[0]).0.h_wire, hashes.of(&payto(1), &salts[1]).0.h_wire);
    }

    #[test]
    fn only_remembered_accounts_take_memory_up_to_the_limit() {
        let hashes = AccountHashes::default();
        let salt = WireSalt::from_bytes([1; 16]);
        let (hash, _) = hashes.of(&payto(0), &salt);
        assert_eq!(hashes.bytes(), 0);
        let each = PAYTO_BYTES_MAX + ACCOUNT_BYTES;
        for number in 0..3 * ACCOUNTS_BYTES_MAX / each {
            hashes.remember(&payto(number), &salt, hash);
            hashes.remember(&payto(number), &salt, hash);
            assert!(hashes.bytes() <= ACCOUNTS_BYTES_MAX);
        }
        let kept = hashes.0.iter().map(lock).map(|part| part.young.len() + part.old.len()).sum::<usize>();
        assert_eq!(kept * each, hashes.bytes());
        assert!(hashes.bytes() >= ACCOUNTS_BYTES_MAX / 2 - PARTS * each, "at least half is kept");
    }
}
