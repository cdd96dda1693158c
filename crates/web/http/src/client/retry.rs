//! Pauses between retries.

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
    /// The pause after failed attempt number `attempt` (from 1): half of it is fixed and half is `random`, so
    /// that clients that failed together do not come back together.
    #[must_use]
    pub fn pause(&self, attempt: u32, random: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        let ceiling = doubled.min(self.max_pause);
        ceiling.div_f64(2.0) + ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
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
            let ceiling =
                Duration::from_millis(100 * 2_u64.saturating_pow(attempt.min(20) - 1)).min(max_pause);
            assert_eq!([0, u32::MAX].map(|random| backoff.pause(attempt, random)), [ceiling / 2, ceiling]);
        }
    }
}
