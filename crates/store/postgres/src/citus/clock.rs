//! The logical clock of a process: no commit gets a lower number than what the process has seen before it.
//!
//! Each shard has a clock of its own. A commit sets it to what the process has seen and one more, if that is ahead. So
//! serials of different shards, too, are in the order of cause and effect (L. Lamport, "Time, Clocks, and the Ordering of
//! Events in a Distributed System", 1978).

use std::sync::atomic::{AtomicI64, Ordering};

use crate::schema::citus::CLOCK_SHIFT;

/// The highest number that this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicI64);

impl Clock {
    /// The lowest number that the next commit may get.
    pub(crate) fn next(&self) -> i64 {
        self.0.load(Ordering::Acquire) + 1
    }

    pub(crate) fn saw(&self, number: i64) {
        if number > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Takes note of the serial of a row in a shard, less the store's own number.
    pub(crate) fn saw_serial(&self, serial: i64) {
        self.saw(serial >> CLOCK_SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::citus::{INSERTS_MAX, serial_of_place, serial_of_row};

    #[test]
    fn numbers_grow_with_what_was_seen() {
        let clock = Clock::default();
        assert_eq!(clock.next(), 1);
        clock.saw(7);
        clock.saw(5);
        assert_eq!(clock.next(), 8);
        clock.saw_serial((20 << CLOCK_SHIFT) + serial_of_place(None));
        assert_eq!(clock.next(), 21);
    }

    #[test]
    fn serials_are_in_the_order_of_commits_and_then_of_rows() {
        let last = serial_of_row(INSERTS_MAX as u64 - 1).cast_signed() + serial_of_place(None);
        assert_eq!(last + 1, 1 << CLOCK_SHIFT);
        assert!(serial_of_row(1).cast_signed() > serial_of_place(None));
    }
}
