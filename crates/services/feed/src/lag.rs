//! Time that the oldest commit has waited that an auditor does not have.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of moments that are remembered.
const MOMENTS_MAX: usize = 512;

/// When the journal had reached which number.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    /// Ascending: when a number was seen first, and the number.
    moments: VecDeque<(Instant, u64)>,
}

impl Lag {
    /// The journal's next frame has this number.
    pub(crate) fn saw(&mut self, end: u64, now: Instant) {
        if self.moments.back().is_some_and(|(_, last)| *last >= end) {
            return;
        }
        if self.moments.len() >= MOMENTS_MAX {
            // Every other one, but never the oldest: so a wait is not shown shorter than it is.
            let mut n = 0;
            self.moments.retain(|_| {
                n += 1;
                n % 2 == 1
            });
        }
        self.moments.push_back((now, end));
    }

    /// The auditor has everything before this number. Returns how long the oldest of the rest has waited.
    pub(crate) fn behind(&mut self, next: u64, now: Instant) -> Duration {
        while self.moments.front().is_some_and(|(_, end)| *end <= next) {
            self.moments.pop_front();
        }
        self.moments.front().map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_missing_commit_counts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut lag = Lag::default();
        assert_eq!(lag.behind(1, at(0)), Duration::ZERO);
        lag.saw(5, at(1));
        lag.saw(5, at(2));
        lag.saw(9, at(3));
        assert_eq!(lag.behind(4, at(10)), Duration::from_secs(9));
        assert_eq!(lag.behind(5, at(10)), Duration::from_secs(7));
        assert_eq!(lag.behind(8, at(11)), Duration::from_secs(8));
        assert_eq!(lag.behind(9, at(11)), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded_and_waits_are_not_understated() {
        let start = Instant::now();
        let mut lag = Lag::default();
        for n in 0..10_000 {
            lag.saw(n + 1, start + Duration::from_secs(n));
        }
        assert!(lag.moments.len() <= MOMENTS_MAX);
        let now = start + Duration::from_secs(10_000);
        assert_eq!(lag.behind(0, now), Duration::from_secs(10_000));
    }
}
