//! Pauses between retries.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses that grow with each failure.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The pause after the first failure. It doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
}

impl Backoff {
    /// The pause after failed attempt number `attempt` (from 1): half of it is fixed and half is random, so
    /// that clients that failed together do not come back together.
    #[must_use]
    pub fn pause(&self, attempt: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        let ceiling = doubled.min(self.max_pause);
        // Each hasher state has a fresh seed. That is random enough to spread the clients.
        let random = RandomState::new().hash_one(attempt) as f64 / u64::MAX as f64;
        ceiling.div_f64(2.0) + ceiling.mul_f64(random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_bounds() {
        let (first_pause, max_pause) = (Duration::from_millis(100), Duration::from_secs(10));
        let backoff = Backoff { first_pause, max_pause };
        for attempt in 1..200 {
            let pause = backoff.pause(attempt);
            let ceiling =
                Duration::from_millis(100 * 2_u64.saturating_pow(attempt.min(20) - 1)).min(max_pause);
            assert!(pause >= ceiling / 2 && pause <= ceiling, "{attempt}: {pause:?}");
        }
    }
}
