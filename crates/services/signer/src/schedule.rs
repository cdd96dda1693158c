//! When keys must exist: the arithmetic of the security modules, without keys, files or clocks.

use batzen_protocol::{Duration, Timestamp};

/// The maximum number of keys that one run may create in one section. A configuration that needs more is a
/// mistake.
pub(crate) const KEYS_PER_SECTION_MAX: u64 = 10_000;

/// Schedule of the keys of one section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Time that one key is used, from its start (the anchor).
    pub(crate) duration: Duration,
    /// Time that two consecutive keys are valid at the same time. Shorter than `duration`.
    pub(crate) overlap: Duration,
    /// Time ahead of now for which keys must exist.
    pub(crate) lookahead: Duration,
}

/// Why a schedule is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScheduleError {
    /// Consecutive keys would not advance in time.
    #[error("the overlap must be shorter than the time for which one key is used")]
    OverlapTooLong,
    /// The durations are not whole seconds.
    #[error("durations of keys are whole seconds and at least one second apart")]
    NotWholeSeconds,
    /// The lookahead would need more than [`KEYS_PER_SECTION_MAX`] keys.
    #[error("the lookahead asks for more than {KEYS_PER_SECTION_MAX} keys of one section")]
    TooManyKeys,
}

const MICROS: u64 = 1_000_000;
/// Time for which a key that is due may still be in the making.
const GRACE: Duration = Duration::from_secs(60);

impl Schedule {
    /// Checks that the schedule moves forward and needs a bounded number of keys.
    pub(crate) fn validate(&self) -> Result<(), ScheduleError> {
        let (duration, overlap) = (self.duration, self.overlap);
        if overlap >= duration {
            return Err(ScheduleError::OverlapTooLong);
        }
        let step = if duration.is_forever() { u64::MAX } else { duration.as_micros() - overlap.as_micros() };
        if step < MICROS
            || (!duration.is_forever() && !duration.as_micros().is_multiple_of(MICROS))
            || !overlap.as_micros().is_multiple_of(MICROS)
        {
            return Err(ScheduleError::NotWholeSeconds);
        }
        if !duration.is_forever()
            && (self.lookahead.is_forever() || self.lookahead.as_micros() / step > KEYS_PER_SECTION_MAX)
        {
            return Err(ScheduleError::TooManyKeys);
        }
        Ok(())
    }

    /// The last moment of use of a key that starts at `anchor`.
    pub(crate) fn expire(&self, anchor: Timestamp) -> Timestamp {
        anchor.saturating_add(self.duration)
    }

    /// Returns whether the keys up to `last` do not cover the lookahead: `last + D − L − O < now`.
    fn is_short(&self, last: Timestamp, now: Timestamp) -> bool {
        let covered = self.expire(last);
        if covered.is_never() {
            return false;
        }
        u128::from(covered.as_micros())
            < u128::from(now.as_micros())
                + u128::from(self.lookahead.as_micros())
                + u128::from(self.overlap.as_micros())
    }

    /// The anchors of the keys that must be created now, given the newest existing anchor. They are whole
    /// seconds, ascending, and `duration − overlap` apart, unless the current time has overtaken the keys.
    pub(crate) fn missing(&self, last: Option<Timestamp>, now: Timestamp) -> Vec<Timestamp> {
        debug_assert!(self.validate().is_ok(), "schedules are validated when the configuration is read");
        let now_whole = Timestamp::from_micros(now.as_micros() / MICROS * MICROS);
        let mut anchors = Vec::new();
        let mut last = last;
        while last.is_none_or(|last| self.is_short(last, now)) {
            let next =
                last.map_or(now_whole, |last| now_whole.max(self.expire(last).saturating_sub(self.overlap)));
            anchors.push(next);
            last = Some(next);
            assert!(anchors.len() as u64 <= KEYS_PER_SECTION_MAX + 2, "validated schedules end");
        }
        anchors
    }

    /// Returns whether the keys up to `last` are all that must exist now. Keys are created in the order of time, and one that has
    /// become due a moment ago is in the making.
    pub(crate) fn is_complete(&self, last: Option<Timestamp>, now: Timestamp) -> bool {
        let grace = Duration::from_micros(GRACE.as_micros().min(self.duration.as_micros() / 4));
        last.is_some_and(|last| !self.is_short(last, now.saturating_sub(grace)))
    }

    /// When [`Schedule::missing`] will next return a key if `last` is the newest anchor.
    pub(crate) fn next_due(&self, last: Timestamp) -> Timestamp {
        let covered = self.expire(last);
        if covered.is_never() {
            return Timestamp::NEVER;
        }
        covered
            .saturating_sub(self.lookahead)
            .saturating_sub(self.overlap)
            .saturating_add(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(duration: u64, overlap: u64, lookahead: u64) -> Schedule {
        Schedule {
            duration: Duration::from_secs(duration),
            overlap: Duration::from_secs(overlap),
            lookahead: Duration::from_secs(lookahead),
        }
    }

    #[test]
    fn first_run_covers_the_lookahead() {
        let now = Timestamp::from_micros(1_000_000_500_000);
        let anchors = schedule(100, 10, 200).missing(None, now);
        let secs: Vec<u64> = anchors.iter().map(|anchor| anchor.as_secs().unwrap()).collect();
        assert_eq!(secs, [1_000_000, 1_000_090, 1_000_180]);
        assert!(schedule(100, 10, 200).missing(Some(anchors[2]), now).is_empty());
    }

    #[test]
    fn a_long_pause_starts_at_the_present() {
        let now = Timestamp::from_secs(5_000);
        let anchors = schedule(100, 10, 0).missing(Some(Timestamp::from_secs(1_000)), now);
        assert_eq!(anchors, [Timestamp::from_secs(5_000)]);
    }

    #[test]
    fn keys_are_complete_when_the_last_of_them_is_there() {
        let schedule = schedule(1_000, 100, 2_500);
        let at = Timestamp::from_secs;
        let all = schedule.missing(None, at(10_000));
        assert_eq!(all.len(), 3);
        assert!(!schedule.is_complete(None, at(10_000)));
        let complete = all.iter().map(|last| schedule.is_complete(Some(*last), at(10_000)));
        assert_eq!(complete.collect::<Vec<_>>(), [false, false, true]);
        // A key that has just become due is in the making; after a jump of the clock all are missing.
        let due = schedule.next_due(all[2]).as_secs().unwrap();
        assert!(schedule.is_complete(Some(all[2]), at(due + 1)));
        assert!(!schedule.is_complete(Some(all[2]), at(due + 61)));
        assert!(!schedule.is_complete(Some(all[2]), at(20_000)));
        let later = schedule.missing(Some(all[2]), at(20_000));
        assert!(schedule.is_complete(later.last().copied(), at(20_000)));
        // Keys of a longer duration, which was in force before, leave no gap that anybody would fill.
        assert!(schedule.is_complete(Some(at(14_000)), at(10_000)));
    }

    #[test]
    fn impossible_schedules_are_refused() {
        assert_eq!(schedule(10, 10, 0).validate(), Err(ScheduleError::OverlapTooLong));
        assert_eq!(schedule(10, 9, 1_000_000).validate(), Err(ScheduleError::TooManyKeys));
        let millis = Schedule { overlap: Duration::from_micros(1), ..schedule(10, 0, 0) };
        assert_eq!(millis.validate(), Err(ScheduleError::NotWholeSeconds));
        let forever = Schedule { lookahead: Duration::FOREVER, ..schedule(10, 1, 0) };
        assert_eq!(forever.validate(), Err(ScheduleError::TooManyKeys));
    }

    proptest! {
        /// Goal: if it runs at arbitrary moments, never further apart than the lookahead, there is always a
        /// valid key, and neighbours overlap by exactly the overlap.
        #[test]
        fn no_gap_over_time(
            duration in 2u64..1_000, overlap_part in 0u64..100, lookahead in 0u64..3_000,
            pauses in prop::collection::vec(0u64..100, 1..60),
        ) {
            let overlap = duration * overlap_part / 101;
            let schedule = schedule(duration, overlap, lookahead);
            prop_assume!(schedule.validate().is_ok());
            let mut now = 1_000_000u64;
            let mut anchors: Vec<Timestamp> = schedule.missing(None, Timestamp::from_secs(now));
            for pause in pauses {
                let end = now + lookahead * pause / 100;
                while now < end {
                    let at = Timestamp::from_secs(now);
                    prop_assert!(anchors.iter().any(|a| *a <= at && at <= schedule.expire(*a)));
                    now += 1 + (end - now) / 3;
                }
                let due = schedule.next_due(*anchors.last().unwrap());
                let more = schedule.missing(anchors.last().copied(), Timestamp::from_secs(now));
                prop_assert_eq!(!more.is_empty(), due <= Timestamp::from_secs(now));
                anchors.extend(more);
            }
            for pair in anchors.windows(2) {
                prop_assert_eq!(pair[1], schedule.expire(pair[0]).saturating_sub(schedule.overlap));
            }
        }
    }
}
