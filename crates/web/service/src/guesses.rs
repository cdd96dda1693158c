//! A limit on guessing passwords and tokens that locks nobody out.
//!
//! Attempts are counted by account and address together, by account, and by address. Right guesses are not
//! counted. For an address from which the account has logged in before, only attempts from that address at
//! this account count, so guesses from elsewhere do not delay the owner. No limit is a lock: each permits
//! another attempt after its interval.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batzen_http::{ClientKey, Head, Response, header};

use crate::attempts::{Attempts, Rate, make_room};

/// For one account from one address.
const PAIR: Rate = Rate { burst: 10, interval: Duration::from_secs(60) };
/// For one account from all addresses where it has not logged in before.
const ACCOUNT: Rate = Rate { burst: 100, interval: Duration::from_secs(10) };
/// From one address for all accounts that have not logged in there before.
const ADDRESS: Rate = Rate { burst: 100, interval: Duration::from_secs(1) };

/// Attempts at all accounts.
struct Counts {
    pairs: Attempts<(String, ClientKey)>,
    accounts: Attempts<String>,
    addresses: Attempts<ClientKey>,
    /// Addresses from which accounts have logged in, with the latest time.
    known: HashMap<(String, ClientKey), Instant>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            pairs: Attempts::new(PAIR),
            accounts: Attempts::new(ACCOUNT),
            addresses: Attempts::new(ADDRESS),
            known: HashMap::new(),
        }
    }
}

impl Counts {
    /// Counts an attempt as failed in advance, so that concurrent attempts cannot bypass the limit.
    ///
    /// # Errors
    /// The wait, if there were too many attempts.
    fn begin(&mut self, account: &str, address: ClientKey, now: Instant) -> Result<(), Duration> {
        let pair = (account.to_owned(), address);
        let is_known = self.known.contains_key(&pair);
        let mut wait = self.pairs.wait(&pair, now);
        if !is_known {
            wait = wait.max(self.accounts.wait(&pair.0, now)).max(self.addresses.wait(&address, now));
        }
        if !wait.is_zero() {
            return Err(wait);
        }
        self.pairs.count(&pair, now);
        if !is_known {
            self.accounts.count(&pair.0, now);
            self.addresses.count(&address, now);
        }
        Ok(())
    }

    /// Takes back an attempt that was not decided.
    fn undo(&mut self, account: &str, address: ClientKey, now: Instant) {
        let pair = (account.to_owned(), address);
        self.pairs.discount(&pair, now);
        if !self.known.contains_key(&pair) {
            self.accounts.discount(&pair.0, now);
            self.addresses.discount(&address, now);
        }
    }

    /// Records a right guess.
    fn succeeded(&mut self, account: &str, address: ClientKey, now: Instant) {
        self.undo(account, address, now);
        let pair = (account.to_owned(), address);
        if !self.known.contains_key(&pair) {
            make_room(&mut self.known);
        }
        self.known.insert(pair, now);
    }
}

/// The limit on guesses of a service.
#[derive(Default)]
pub struct Guesses(Mutex<Counts>);

impl std::fmt::Debug for Guesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guesses")
    }
}

/// An attempt that is counted as failed until it succeeds or is undone.
#[derive(Debug)]
#[must_use]
pub struct Attempt<'a> {
    guesses: &'a Guesses,
    account: String,
    address: ClientKey,
}

/// There were too many attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    wait: Duration,
}

impl TooMany {
    /// The detail of an answer.
    pub const DETAIL: &'static str = "too many wrong passwords or tokens: try again later";

    /// Adds the time to wait to an answer.
    #[must_use]
    pub fn wait(self, answer: Response) -> Response {
        answer.with_header(header::RETRY_AFTER, &(self.wait.as_secs() + 1).to_string())
    }
}

impl Guesses {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt of a request's client at an account. Not for requests that show nothing to check.
    ///
    /// # Errors
    /// [`TooMany`], and nothing may be checked.
    pub fn begin(&self, head: &Head, account: &str) -> Result<Attempt<'_>, TooMany> {
        let address = ClientKey::of(head.client);
        self.counts().begin(account, address, Instant::now()).map_err(|wait| TooMany { wait })?;
        Ok(Attempt { guesses: self, account: account.to_owned(), address })
    }
}

impl Attempt<'_> {
    /// Records that the guess was right.
    pub fn succeeded(self) {
        self.guesses.counts().succeeded(&self.account, self.address, Instant::now());
    }

    /// Takes it back, because it was not decided.
    pub fn undo(self) {
        self.guesses.counts().undo(&self.account, self.address, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::attempts::ENTRIES_MAX;

    fn at(last: u8) -> ClientKey {
        ClientKey::of(Some(IpAddr::from([192, 0, 2, last])))
    }

    #[test]
    fn attempts_run_out_and_come_back() {
        let (mut guesses, start) = (Counts::default(), Instant::now());
        for _ in 0..PAIR.burst {
            guesses.begin("joe", at(1), start).unwrap();
        }
        let wait = guesses.begin("joe", at(1), start).unwrap_err();
        assert_eq!(wait, PAIR.interval);
        guesses.begin("ann", at(1), start).unwrap();
        guesses.begin("joe", at(2), start).unwrap();
        guesses.begin("joe", at(1), start + wait).unwrap();
        assert!(guesses.begin("joe", at(1), start + wait).is_err());
    }

    #[test]
    fn right_passwords_do_not_count() {
        let (mut guesses, now) = (Counts::default(), Instant::now());
        for _ in 0..10_000 {
            guesses.begin("joe", at(1), now).unwrap();
            guesses.succeeded("joe", at(1), now);
        }
        assert!(guesses.pairs.forgotten.is_empty() && guesses.accounts.forgotten.is_empty());
        assert!(guesses.addresses.forgotten.is_empty());
    }

    #[test]
    fn guesses_from_elsewhere_do_not_delay_the_owner() {
        let (mut guesses, now) = (Counts::default(), Instant::now());
        guesses.begin("joe", at(1), now).unwrap();
        guesses.succeeded("joe", at(1), now);
        // From many addresses, and from the owner's address at many accounts.
        let from_all = (0..=255).filter(|n| *n != 1).flat_map(|n| [n; 20]);
        let tried = from_all.filter(|n| guesses.begin("joe", at(*n), now).is_ok()).count();
        assert_eq!(tried, ACCOUNT.burst as usize, "one account, however many addresses");
        let tried = (0..1_000).filter(|n| guesses.begin(&format!("a{n}"), at(1), now).is_ok()).count();
        assert_eq!(tried, ADDRESS.burst as usize, "one address, however many accounts");
        guesses.begin("joe", at(1), now).unwrap();
        guesses.succeeded("joe", at(1), now);
    }

    #[test]
    fn entries_are_bounded() {
        let (mut guesses, now) = (Counts::default(), Instant::now());
        for n in 0..ENTRIES_MAX as u64 + 10 {
            let ip = IpAddr::from(u128::from(n).rotate_right(64).to_be_bytes());
            guesses.begin(&n.to_string(), ClientKey::of(Some(ip)), now + Duration::from_nanos(n)).unwrap();
        }
        assert_eq!(guesses.pairs.forgotten.len(), ENTRIES_MAX);
        assert_eq!(guesses.addresses.forgotten.len(), ENTRIES_MAX);
    }
}
