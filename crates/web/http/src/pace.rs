//! A minimum rate, measured over a sliding window.

use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// About the largest number of marks in a window.
const MARKS: u32 = 16;

/// Checks that each window of time brings as many bytes as the minimum rate requires. A fast start does not
/// make up for a later stall.
#[derive(Debug)]
pub(crate) struct Pace {
    window: Duration,
    /// Number of bytes that each window requires.
    window_bytes: u64,
    total_bytes: u64,
    /// Times and the bytes received until then, in order. Marks that can no longer start a window that is too
    /// slow are removed.
    marks: VecDeque<(Instant, u64)>,
}

impl Pace {
    pub(crate) fn new(now: Instant, window: Duration, min_rate_bytes_per_s: u64) -> Self {
        let needed = window.as_millis().saturating_mul(u128::from(min_rate_bytes_per_s)) / 1000;
        Self {
            window,
            window_bytes: u64::try_from(needed).unwrap_or(u64::MAX).max(1),
            total_bytes: 0,
            marks: VecDeque::from([(now, 0)]),
        }
    }

    /// Records received bytes.
    pub(crate) fn add(&mut self, now: Instant, bytes: usize) {
        self.total_bytes = self.total_bytes.saturating_add(bytes as u64);
        match self.marks.back_mut() {
            Some((time, total)) if now.saturating_duration_since(*time) < self.window / MARKS => {
                *total = self.total_bytes;
            }
            _ => self.marks.push_back((now, self.total_bytes)),
        }
        while self.marks.len() > 1
            && self.marks.front().is_some_and(|(_, total)| self.total_bytes - total >= self.window_bytes)
        {
            self.marks.pop_front();
        }
    }

    /// When the stream will be too slow unless more bytes arrive; `None` for never.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.marks.front().and_then(|(time, _)| time.checked_add(self.window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn a_fast_start_does_not_make_up_for_a_stall() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut pace = Pace::new(begin, WINDOW, 100);
        assert_eq!(pace.deadline(), Some(at(10_000)));
        for second in 1..=5_u64 {
            pace.add(at(second * 1000), 1_000_000);
        }
        // The stop starts after five seconds and may last for one window.
        assert_eq!(pace.deadline(), Some(at(15_000)));
    }

    #[test]
    fn a_steady_stream_must_keep_the_minimum_rate() {
        for (bytes, lasts) in [(60, true), (40, false)] {
            let begin = Instant::now();
            let mut pace = Pace::new(begin, WINDOW, 100);
            let mut now = begin;
            let ended = (0..1000).any(|_| {
                now += Duration::from_millis(500);
                let late = pace.deadline().is_some_and(|deadline| deadline <= now);
                pace.add(now, bytes);
                assert!(pace.marks.len() <= 2 * MARKS as usize);
                late
            });
            assert_eq!(!ended, lasts, "{bytes} bytes every half second");
        }
    }

    #[test]
    fn a_steady_drip_is_too_slow() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin, WINDOW, 100);
        for ms in 1..10_000_u64 {
            if ms % 100 == 0 {
                pace.add(begin + Duration::from_millis(ms), 1);
            }
        }
        assert!(pace.deadline().unwrap() <= begin + WINDOW + WINDOW / MARKS);
    }
}
