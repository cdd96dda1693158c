//! Slows down clients whose handshakes fail. After some failures, an address may try only once per second.
//! The log gets at most one line per second.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use batzen_http::ClientKey;

use crate::state::lock;

/// Number of consecutive failures that an address may have before it is slowed down.
const FREE_FAILURES: u32 = 10;
/// Interval at which a slow address may try. One failure is forgotten per interval.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of addresses remembered. If there are more, all are slowed down together.
const ADDRESSES_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Record {
    failures: u32,
    since: Instant,
}

impl Record {
    /// Failures that are not forgotten yet.
    fn present(&self, now: Instant) -> u32 {
        let forgotten = now.saturating_duration_since(self.since).as_secs() / PAUSE.as_secs();
        self.failures.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

#[derive(Default)]
struct GuardState {
    failed: HashMap<ClientKey, Record>,
    /// The record that all clients share who found no room.
    others: Option<Record>,
    /// Clients that have succeeded, such as the exchange: others' failures do not slow them down.
    known: HashSet<ClientKey>,
    said: Option<Instant>,
    unlogged: u64,
}

/// Recent failures, by client.
#[derive(Default)]
pub(super) struct Guard(Mutex<GuardState>);

impl Guard {
    /// Returns whether a client may try now.
    pub(crate) fn may_try(&self, from: ClientKey) -> bool {
        self.may_try_at(from, Instant::now())
    }

    fn may_try_at(&self, from: ClientKey, now: Instant) -> bool {
        let state = lock(&self.0);
        let others =
            state.others.as_ref().filter(|_| from != ClientKey::Local && !state.known.contains(&from));
        let record = state.failed.get(&from).or(others);
        record.is_none_or(|record| record.present(now) < FREE_FAILURES)
    }

    /// Records a success.
    pub(super) fn succeeded(&self, from: ClientKey) {
        let mut state = lock(&self.0);
        if state.known.len() < ADDRESSES_MAX {
            state.known.insert(from);
        }
    }

    /// Records a failure. If it should be logged, returns the number of unlogged failures before it.
    pub(super) fn failed(&self, from: ClientKey) -> Option<u64> {
        self.failed_at(from, Instant::now())
    }

    fn failed_at(&self, from: ClientKey, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.failed.len() >= ADDRESSES_MAX {
            state.failed.retain(|_, record| record.present(now) > 0);
            state.others = state.others.filter(|record| record.present(now) > 0);
        }
        let none = Record { failures: 0, since: now };
        let has_room = state.failed.len() < ADDRESSES_MAX || state.failed.contains_key(&from);
        let record = match has_room {
            true => state.failed.entry(from).or_insert(none),
            false => state.others.get_or_insert(none),
        };
        *record = Record { failures: record.present(now) + 1, since: now };
        if state.said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE) {
            state.unlogged += 1;
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: [u8; 4]) -> ClientKey {
        ClientKey::of(Some(address.into()))
    }

    #[test]
    fn repeated_failures_slow_an_address_down_for_a_while() {
        let guard = Guard::default();
        let (bad, good) = (client([10, 0, 0, 1]), client([10, 0, 0, 2]));
        let begin = Instant::now();
        let mut logged = 0;
        for _ in 0..FREE_FAILURES {
            assert!(guard.may_try_at(bad, begin));
            logged += usize::from(guard.failed_at(bad, begin).is_some());
        }
        assert_eq!(logged, 1, "one line per second");
        assert!(!guard.may_try_at(bad, begin));
        assert!(guard.may_try_at(good, begin) && guard.may_try_at(ClientKey::Local, begin));
        assert!(guard.may_try_at(bad, begin + PAUSE), "one try per second");
        assert_eq!(guard.failed_at(bad, begin + PAUSE), Some(u64::from(FREE_FAILURES) - 1));
        assert!(!guard.may_try_at(bad, begin + PAUSE));
        assert!(guard.may_try_at(bad, begin + 30 * PAUSE));
    }

    #[test]
    fn remembered_addresses_are_bounded() {
        let guard = Guard::default();
        let now = Instant::now();
        for n in 0..ADDRESSES_MAX as u32 + 100 {
            guard.failed_at(client(n.to_be_bytes()), now);
        }
        assert_eq!(lock(&guard.0).failed.len(), ADDRESSES_MAX);
        // All others are slowed down together, but not those that are remembered.
        assert!(!guard.may_try_at(client([255; 4]), now) && guard.may_try_at(client([0; 4]), now));
        assert!(guard.may_try_at(ClientKey::Local, now));
        guard.succeeded(client([255; 4]));
        assert!(guard.may_try_at(client([255; 4]), now), "it has succeeded before");
        assert!(!guard.may_try_at(client([254; 4]), now));
        assert!(guard.may_try_at(client([254; 4]), now + 100 * PAUSE));
    }
}
