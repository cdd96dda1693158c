//! A cache of the hashes of merchants' accounts. The salted hash costs a key derivation, and merchants use
//! the same account for many deposits.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};

use batzen_crypto::{HashCode, WireSalt};
use batzen_protocol::payto::PaytoUri;
use batzen_tables::exchange::PaytoHash;

/// How much memory the remembered accounts may take, in bytes.
const ACCOUNTS_BYTES_MAX: usize = 16 << 20;
/// What an account takes besides its URI, in bytes: the salt, the hashes and the map entry.
const ACCOUNT_BYTES: usize = 256;

/// The two hashes of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountHash {
    /// The salted hash, which is signed.
    pub h_wire: HashCode,
    /// The hash that names the account in rows.
    pub h_payto: PaytoHash,
}

type Key = (WireSalt, String);

/// The hashes of accounts that were paid recently.
///
/// Only accounts of deposits with valid signatures are cached, so filling the cache costs coins. The cache
/// has two generations: when the young one holds half of the bytes, it replaces the old one.
#[derive(Debug, Default)]
pub struct AccountHashes(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, AccountHash>,
    young_bytes: usize,
    old: HashMap<Key, AccountHash>,
    old_bytes: usize,
}

impl AccountHashes {
    /// The hashes of an account: remembered, or computed.
    pub fn of(&self, payto: &PaytoUri, salt: &WireSalt) -> AccountHash {
        let key = (*salt, payto.as_str().to_owned());
        let known = {
            let accounts = self.lock();
            accounts.young.get(&key).or_else(|| accounts.old.get(&key)).copied()
        };
        known.unwrap_or_else(|| AccountHash { h_wire: payto.wire_hash(salt), h_payto: payto.hash() })
    }

    /// Remembers the hashes of an account. The caller has verified a signature over them.
    pub fn remember(&self, payto: &PaytoUri, salt: &WireSalt, hash: AccountHash) {
        let key = (*salt, payto.as_str().to_owned());
        let bytes = key.1.len() + ACCOUNT_BYTES;
        let mut accounts = self.lock();
        if accounts.young.contains_key(&key) {
            return;
        }
        if accounts.young_bytes + bytes > ACCOUNTS_BYTES_MAX / 2 {
            accounts.old = mem::take(&mut accounts.young);
            accounts.old_bytes = mem::take(&mut accounts.young_bytes);
        }
        accounts.young.insert(key, hash);
        accounts.young_bytes += bytes;
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        let accounts = self.lock();
        accounts.young_bytes + accounts.old_bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            let hash = hashes.of(&payto(1), salt);
            assert_eq!(hash, AccountHash { h_wire: payto(1).wire_hash(salt), h_payto: payto(1).hash() });
            hashes.remember(&payto(1), salt, hash);
            assert_eq!(hashes.of(&payto(1), salt), hash);
        }
        assert_ne!(hashes.of(&payto(1), &salts[0]).h_wire, hashes.of(&payto(1), &salts[1]).h_wire);
    }

    #[test]
    fn only_remembered_accounts_take_memory_up_to_the_limit() {
        let hashes = AccountHashes::default();
        let salt = WireSalt::from_bytes([1; 16]);
        let hash = hashes.of(&payto(0), &salt);
        assert_eq!(hashes.bytes(), 0);
        let each = PAYTO_BYTES_MAX + ACCOUNT_BYTES;
        for number in 0..3 * ACCOUNTS_BYTES_MAX / each {
            hashes.remember(&payto(number), &salt, hash);
            hashes.remember(&payto(number), &salt, hash);
            assert!(hashes.bytes() <= ACCOUNTS_BYTES_MAX);
            let accounts = hashes.lock();
            assert_eq!((accounts.young.len() + accounts.old.len()) * each, hashes_bytes(&accounts));
        }
        assert!(hashes.bytes() >= ACCOUNTS_BYTES_MAX / 2 - each, "at least half is kept");
    }

    fn hashes_bytes(accounts: &Generations) -> usize {
        accounts.young_bytes + accounts.old_bytes
    }
}
