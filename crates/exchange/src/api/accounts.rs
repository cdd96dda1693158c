//! Hashes of merchants' accounts, kept because merchants are paid to the same account again and again: the salted one
//! costs a key derivation.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use batzen_crypto::{HashCode, WireSalt};
use batzen_protocol::payto::PaytoUri;
use batzen_tables::exchange::PaytoHash;

/// Accounts that are remembered. Clients choose them, so there is a limit; then all are forgotten.
const ACCOUNTS_MAX: usize = 4_096;

/// The two hashes of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountHash {
    /// The salted hash, which is signed.
    pub h_wire: HashCode,
    /// The hash that names the account in rows.
    pub h_payto: PaytoHash,
}

/// The hashes of the accounts that were paid to lately.
#[derive(Debug, Default)]
pub struct AccountHashes(Mutex<HashMap<(WireSalt, String), AccountHash>>);

impl AccountHashes {
    /// The hashes of an account.
    pub fn of(&self, payto: &PaytoUri, salt: &WireSalt) -> AccountHash {
        let key = (*salt, payto.as_str().to_owned());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return *known;
        }
        let hash = AccountHash { h_wire: payto.wire_hash(salt), h_payto: payto.hash() };
        let mut accounts = lock();
        if accounts.len() >= ACCOUNTS_MAX {
            accounts.clear();
        }
        accounts.insert(key, hash);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_hashes_are_the_hashes() {
        let hashes = AccountHashes::default();
        for round in 0..2 {
            for number in 0..ACCOUNTS_MAX as u32 + 10 {
                let uri = format!("payto://x-taler-bank/localhost/{number}?receiver-name=x");
                let payto = PaytoUri::parse(&uri).unwrap();
                let mut salt = [0; 16];
                salt[..4].copy_from_slice(&(number % 7).to_be_bytes());
                let salt = WireSalt::from_bytes(salt);
                let hash = hashes.of(&payto, &salt);
                if number % 100 == 0 {
                    assert_eq!(hash, AccountHash { h_wire: payto.wire_hash(&salt), h_payto: payto.hash() });
                    assert_eq!(hash, hashes.of(&payto, &salt), "round {round}");
                }
                assert!(hashes.0.lock().unwrap().len() <= ACCOUNTS_MAX);
            }
        }
        let payto = PaytoUri::parse("payto://x-taler-bank/localhost/1?receiver-name=x").unwrap();
        let [one, two] = [1, 2].map(|byte| hashes.of(&payto, &WireSalt::from_bytes([byte; 16])).h_wire);
        assert_ne!(one, two, "the salt counts");
    }
}
