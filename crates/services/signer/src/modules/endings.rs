//! When ended keys were first seen to be out of use: a clock that jumps ahead must not destroy the keys that are in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// When this process first saw each key past its end, by the monotonic clock.
pub(super) struct Endings<K>(HashMap<K, Instant>);

impl<K> Default for Endings<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Endings<K> {
    /// Notes whether a key has ended, and returns whether it has been seen so for as long as `delay`.
    pub(super) fn is_past(&mut self, key: K, has_ended: bool, delay: Duration, now: Instant) -> bool {
        if !has_ended {
            // It is in use, again if the clock was set back.
            self.0.remove(&key);
            return false;
        }
        now.saturating_duration_since(*self.0.entry(key).or_insert(now)) >= delay
    }

    /// Keeps only the keys for which `holds` is true.
    pub(super) fn retain(&mut self, holds: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| holds(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_in_use_again_begins_anew() {
        let (mut endings, begin) = (Endings::default(), Instant::now());
        let (delay, after) = (Duration::from_secs(3_600), |seconds| begin + Duration::from_secs(seconds));
        assert!(!endings.is_past("a", true, delay, begin));
        assert!(!endings.is_past("a", true, delay, after(3_599)));
        assert!(endings.is_past("a", true, delay, after(3_600)));
        assert!(!endings.is_past("a", false, delay, after(3_601)));
        assert!(!endings.is_past("a", true, delay, after(3_602)), "the wait starts over");
        assert!(endings.is_past("b", true, Duration::ZERO, begin), "no delay is none");
        endings.retain(|key| *key != "a");
        assert_eq!(endings.0.len(), 1);
    }
}
