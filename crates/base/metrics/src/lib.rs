//! Counters, gauges and histograms, and the page that shows them in Prometheus' text format.
//!
//! Every component counts with these types and writes its part of the page ([`Page`]), so that equal names
//! mean the same on every service. Updates are single relaxed atomic additions, cheap enough for hot paths;
//! readings are not taken at one instant.
//!
//! Names: `batzen_<room>_<what>_<unit>`, base units (seconds, bytes), `_total` for counters, labels from
//! small fixed sets. No name, label or value identifies a coin, a reserve, a customer or a merchant.
//!
//! The text is written here rather than by a client library: the reference implementation's names, which
//! existing dashboards use, are counters without `_total`, and libraries that write OpenMetrics cannot
//! express that.

mod page;
mod process;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use page::{CONTENT_TYPE, Page};
pub use process::{open_files_max, write_process};

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// The count since the start of the process.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The unit of a histogram's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Nanoseconds, written as seconds.
    Time,
    /// A number of items.
    Count,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Upper bounds for times, in nanoseconds: 1, 2, 5 per decade from 10 µs to 10 s.
const TIME_BOUNDS: &[u64] = &[
    10 * US,
    20 * US,
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    S,
    2 * S,
    5 * S,
    10 * S,
];

/// Upper bounds for counts: the powers of two up to 4,096.
const COUNT_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The distribution of values over fixed buckets, and their sum.
#[derive(Debug)]
pub struct Histogram {
    unit: Unit,
    bounds: &'static [u64],
    /// One more than the bounds: the last counts everything above them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    /// Of durations.
    fn default() -> Self {
        Self::of_times()
    }
}

impl Histogram {
    fn new(unit: Unit, bounds: &'static [u64]) -> Self {
        debug_assert!(bounds.is_sorted_by(|a, b| a < b), "bounds ascend");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { unit, bounds, counts, sum: AtomicU64::new(0) }
    }

    /// A histogram of durations between 10 µs and 10 s.
    #[must_use]
    pub fn of_times() -> Self {
        Self::new(Unit::Time, TIME_BOUNDS)
    }

    /// A histogram of counts, such as batch sizes.
    #[must_use]
    pub fn of_counts() -> Self {
        Self::new(Unit::Count, COUNT_BOUNDS)
    }

    fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Records a duration.
    ///
    /// # Panics
    /// If it is not a histogram of times.
    pub fn time(&self, spent: Duration) {
        assert_eq!(self.unit, Unit::Time, "a histogram of times");
        self.record(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records a count.
    ///
    /// # Panics
    /// If it is not a histogram of counts.
    pub fn count(&self, count: u64) {
        assert_eq!(self.unit, Unit::Count, "a histogram of counts");
        self.record(count);
    }

    /// The values recorded so far, and their sum (nanoseconds for times).
    pub fn reading(&self) -> (u64, u64) {
        (self.counts.iter().map(|count| count.load(Relaxed)).sum(), self.sum.load(Relaxed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_their_buckets() {
        let sizes = Histogram::of_counts();
        for size in [1, 1, 2, 3, 4, 5, 4096, 4097, 1 << 40] {
            sizes.count(size);
        }
        let counts: Vec<u64> = sizes.counts.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!(counts, [2, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(sizes.reading(), (9, 1 + 1 + 2 + 3 + 4 + 5 + 4096 + 4097 + (1 << 40)));
        let times = Histogram::of_times();
        times.time(Duration::ZERO);
        times.time(Duration::from_micros(10));
        times.time(Duration::from_nanos(10_001));
        times.time(Duration::from_secs(11));
        let counts: Vec<u64> = times.counts.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[TIME_BOUNDS.len()]), (2, 1, 1));
    }

    #[test]
    fn counters_and_gauges() {
        let (counter, gauge) = (Counter::default(), Gauge::default());
        counter.inc();
        counter.add(4);
        gauge.set(7);
        gauge.set(3);
        assert_eq!((counter.get(), gauge.get()), (5, 3));
    }
}
