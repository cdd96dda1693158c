//! Attempts by their key, such as guesses of a password or orders of a customer: some at once, then one per interval.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Most entries of each kind.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// A limit on how often something may be done.
#[derive(Clone, Copy)]
pub struct Rate {
    /// This many at once.
    pub burst: u32,
    /// One more after each of these intervals.
    pub interval: Duration,
}

/// Attempts by their key. An entry holds the time when the last of its attempts is forgotten.
pub struct Attempts<K> {
    rate: Rate,
    pub(crate) forgotten: HashMap<K, Instant>,
}

impl<K: Clone + Eq + Hash> Attempts<K> {
    /// None yet.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, forgotten: HashMap::new() }
    }

    /// The wait before the next attempt.
    #[must_use]
    pub fn wait(&self, key: &K, now: Instant) -> Duration {
        let counted =
            self.forgotten.get(key).map_or(Duration::ZERO, |time| time.saturating_duration_since(now));
        counted.saturating_sub(self.rate.interval * (self.rate.burst - 1))
    }

    /// Counts an attempt, whether or not it was allowed.
    pub fn count(&mut self, key: &K, now: Instant) {
        if let Some(time) = self.forgotten.get_mut(key) {
            *time = now.max(*time) + self.rate.interval;
            return;
        }
        if self.forgotten.len() >= ENTRIES_MAX {
            self.forgotten.retain(|_, time| *time > now);
        }
        make_room(&mut self.forgotten);
        self.forgotten.insert(key.clone(), now + self.rate.interval);
    }

    /// Counts an attempt if it is allowed now. Returns whether it is.
    pub fn take(&mut self, key: &K, now: Instant) -> bool {
        let is_allowed = self.wait(key, now).is_zero();
        if is_allowed {
            self.count(key, now);
        }
        is_allowed
    }

    /// Takes back an attempt.
    pub(crate) fn discount(&mut self, key: &K, now: Instant) {
        let Some(time) = self.forgotten.get_mut(key) else { return };
        match time.checked_sub(self.rate.interval).filter(|time| *time > now) {
            Some(earlier) => *time = earlier,
            None => drop(self.forgotten.remove(key)),
        }
    }
}

/// Removes the entry with the earliest time from a full map.
pub(crate) fn make_room<K: Clone + Eq + Hash>(entries: &mut HashMap<K, Instant>) {
    if entries.len() >= ENTRIES_MAX {
        let earliest = entries.iter().min_by_key(|(_, time)| **time).map(|(key, _)| key.clone());
        entries.remove(&earliest.expect("there are many"));
    }
}
