//! Sessions of customers logged in on the page: tokens in memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batzen_crypto::base32;
use batzen_crypto::hash::sha512_parts;

/// The most sessions. When exceeded, the session idle for longest is removed.
const SESSIONS_MAX: usize = 65_536;

/// A session ends after this idle time, and in any case at the maximum age.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const AGE_MAX: Duration = Duration::from_secs(12 * 3600);

/// A logged-in customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub account: String,
    /// The secret that the page sends with every request that changes something; other sites do not know it.
    pub csrf: String,
}

struct Entry {
    session: Session,
    created: Instant,
    used: Instant,
}

/// All sessions. They end with the process.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Keyed by the hash of the token, so that reading this memory is not enough to log in.
    entries: Mutex<HashMap<[u8; 64], Entry>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hashed(token: &str) -> [u8; 64] {
    *sha512_parts(&[b"batzen-bank-session", token.as_bytes()]).as_bytes()
}

impl Sessions {
    /// Logs a customer in: returns the token for the cookie, and the session.
    pub(crate) fn create(&self, account: &str, now: Instant) -> (String, Session) {
        let mut random = [[0; 32]; 2];
        random.iter_mut().for_each(|bytes| batzen_crypto::fill_random(bytes));
        let [token, csrf] = random.map(|bytes| base32::encode(&bytes));
        let session = Session { account: account.to_owned(), csrf };
        let mut entries = lock(&self.entries);
        if entries.len() >= SESSIONS_MAX {
            entries.retain(|_, entry| is_alive(entry, now));
        }
        if entries.len() >= SESSIONS_MAX {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            entries.remove(&oldest.expect("there are many"));
        }
        let entry = Entry { session: session.clone(), created: now, used: now };
        entries.insert(hashed(&token), entry);
        (token, session)
    }

    /// The session of a token that is still valid.
    pub(crate) fn find(&self, token: &str, now: Instant) -> Option<Session> {
        let mut entries = lock(&self.entries);
        let key = hashed(token);
        let entry = entries.get_mut(&key)?;
        if !is_alive(entry, now) {
            entries.remove(&key);
            return None;
        }
        entry.used = now;
        Some(entry.session.clone())
    }

    /// Logs out.
    pub(crate) fn remove(&self, token: &str) {
        lock(&self.entries).remove(&hashed(token));
    }
}

fn is_alive(entry: &Entry, now: Instant) -> bool {
    now - entry.used < IDLE_MAX && now - entry.created < AGE_MAX
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let (token, session) = sessions.create("joe", start);
        let (other, _) = sessions.create("joe", start);
        assert_eq!(sessions.find(&token, start), Some(session.clone()));
        assert_eq!(sessions.find("", start), None);
        // Used every twenty minutes, it lasts for half a day.
        let step = Duration::from_secs(20 * 60);
        let used = (1..100).take_while(|n| sessions.find(&token, start + step * *n).is_some()).count();
        assert_eq!(used, 35);
        assert_eq!(sessions.find(&other, start + IDLE_MAX), None);
        let (token, _) = sessions.create("joe", start);
        sessions.remove(&token);
        assert_eq!(sessions.find(&token, start), None);
    }
}
