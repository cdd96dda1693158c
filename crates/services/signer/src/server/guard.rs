//! Slows down clients whose handshakes fail. After some failures, a client may try only once per second.
//! The log gets at most one line per second.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use batzen_http::ClientKey;

use crate::state::lock;

/// Number of consecutive failures that a client may have before it is slowed down.
const FREE_FAILURES: u32 = 10;
/// Interval at which a slow client may try. One failure is forgotten per interval.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of clients remembered. If there are more, the one with the fewest failures is forgotten: how many
/// handshakes are under way is limited anyway.
const CLIENTS_MAX: usize = 4096;

/// The owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// An address from which a handshake has succeeded, such as the exchange's: neighbours in its network do not slow it down.
    Known(Option<IpAddr>),
    /// All others.
    Client(ClientKey),
}

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
    failed: HashMap<Owner, Record>,
    /// Addresses from which a handshake has succeeded; `None` is the local socket.
    known: HashSet<Option<IpAddr>>,
    said: Option<Instant>,
    unlogged: u64,
}

impl GuardState {
    fn owner(&self, from: Option<IpAddr>) -> Owner {
        let from = from.map(|address| address.to_canonical());
        if self.known.contains(&from) { Owner::Known(from) } else { Owner::Client(ClientKey::of(from)) }
    }

    /// Makes room for another record.
    fn make_room(&mut self, now: Instant) {
        if self.failed.len() < CLIENTS_MAX {
            return;
        }
        self.failed.retain(|_, record| record.present(now) > 0);
        if self.failed.len() >= CLIENTS_MAX {
            let fewest = self.failed.iter().min_by_key(|(_, record)| record.present(now));
            let fewest = fewest.map(|(owner, _)| *owner);
            fewest.map(|owner| self.failed.remove(&owner));
        }
    }
}

/// Recent failures, by client. A client without an address uses the local socket.
#[derive(Default)]
pub(super) struct Guard(Mutex<GuardState>);

impl Guard {
    /// Returns whether a client may try now.
    pub(crate) fn may_try(&self, from: Option<IpAddr>) -> bool {
        self.may_try_at(from, Instant::now())
    }

    fn may_try_at(&self, from: Option<IpAddr>, now: Instant) -> bool {
        let state = lock(&self.0);
        let record = state.failed.get(&state.owner(from));
        record.is_none_or(|record| record.present(now) < FREE_FAILURES)
    }

    /// Records a success.
    pub(super) fn succeeded(&self, from: Option<IpAddr>) {
        let mut state = lock(&self.0);
        if state.known.len() < CLIENTS_MAX {
            state.known.insert(from.map(|address| address.to_canonical()));
        }
    }

    /// Records a failure. If it should be logged, returns the number of unlogged failures before it.
    pub(super) fn failed(&self, from: Option<IpAddr>) -> Option<u64> {
        self.failed_at(from, Instant::now())
    }

    fn failed_at(&self, from: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let owner = state.owner(from);
        if !state.failed.contains_key(&owner) {
            state.make_room(now);
        }
        let record = state.failed.entry(owner).or_insert(Record { failures: 0, since: now });
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

    fn client(address: [u8; 4]) -> Option<IpAddr> {
        Some(address.into())
    }

    #[test]
    fn repeated_failures_slow_a_client_down_for_a_while() {
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
        assert!(guard.may_try_at(good, begin) && guard.may_try_at(None, begin));
        assert!(guard.may_try_at(bad, begin + PAUSE), "one try per second");
        assert_eq!(guard.failed_at(bad, begin + PAUSE), Some(u64::from(FREE_FAILURES) - 1));
        assert!(!guard.may_try_at(bad, begin + PAUSE));
        assert!(guard.may_try_at(bad, begin + 30 * PAUSE));
    }

    #[test]
    fn neighbours_do_not_slow_down_an_address_that_has_succeeded() {
        let guard = Guard::default();
        let now = Instant::now();
        let [exchange, other, stranger] =
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|ip| ip.parse().ok());
        guard.succeeded(exchange);
        for _ in 0..FREE_FAILURES {
            guard.failed_at(stranger, now);
        }
        assert!(!guard.may_try_at(stranger, now) && !guard.may_try_at(other, now), "they are one client");
        assert!(guard.may_try_at(exchange, now));
        for _ in 0..FREE_FAILURES {
            guard.failed_at(exchange, now);
        }
        assert!(!guard.may_try_at(exchange, now), "its own failures do");
    }

    #[test]
    fn remembered_clients_are_bounded() {
        let guard = Guard::default();
        let now = Instant::now();
        let busy = client([255; 4]);
        for _ in 0..FREE_FAILURES {
            guard.failed_at(busy, now);
        }
        for n in 0..CLIENTS_MAX as u32 + 100 {
            guard.failed_at(client(n.to_be_bytes()), now);
        }
        assert_eq!(lock(&guard.0).failed.len(), CLIENTS_MAX);
        assert!(!guard.may_try_at(busy, now), "the one with most failures is remembered");
        assert!(guard.may_try_at(client([254; 4]), now), "nobody is slowed down for others");
    }
}
