//! Age of the copy. What bank and merchants have seen later is not judged, and what the exchange should have done later
//! is not missing: an auditor who was away gets the changes of hours in many batches, and each is stored when it comes.

use batzen_protocol::{Duration, Timestamp};
use batzen_store::{ChangeSet, Store, StoreError};
use batzen_tables::auditor::results::{CopyTimeKey, CopyTimeRow, CopyTimes};

const ONLY: CopyTimeKey = CopyTimeKey { id: 0 };
/// While nothing changes, the time is stored so often.
const STORE_INTERVAL: Duration = Duration::from_secs(60);

/// The last moment of which it is known that the copy has everything that the exchange had then.
pub(super) struct Reach {
    complete: Timestamp,
    stored: Option<CopyTimeRow>,
    /// The exchange had everything before this position at this moment; the copy does not yet.
    ahead: Option<(u64, Timestamp)>,
}

/// When a copy was complete for the last time.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn complete(store: &Store) -> Result<Timestamp, StoreError> {
    Ok(Reach::of(store)?.complete)
}

impl Reach {
    pub(super) fn of(store: &Store) -> Result<Self, StoreError> {
        let stored = store.get::<CopyTimes>(&ONLY)?.map(|found| found.row);
        let complete = stored.as_ref().map_or(Timestamp::ZERO, |row| row.complete);
        Ok(Self { complete, stored, ahead: None })
    }

    pub(super) const fn complete(&self) -> Timestamp {
        self.complete
    }

    /// The copy has everything that the exchange had at this moment.
    pub(super) fn has_all(&mut self, at: Timestamp) {
        self.complete = self.complete.max(at);
    }

    /// The copy has everything before `next`. At this moment, the exchange had everything before `end`.
    pub(crate) fn took(&mut self, next: u64, end: u64, at: Timestamp) {
        if let Some((_, then)) = self.ahead.take_if(|(end, _)| *end <= next) {
            self.has_all(then);
        }
        if end <= next {
            self.has_all(at);
        } else {
            self.ahead.get_or_insert((end, at));
        }
    }

    /// Returns whether the time should be stored although nothing else is.
    pub(super) fn is_due(&self) -> bool {
        let stored = self.stored.as_ref().map_or(Timestamp::ZERO, |row| row.complete);
        self.complete.saturating_since(stored) >= STORE_INTERVAL
    }

    /// Adds the time to a commit. If that fails, this must be read again.
    pub(super) fn write(&mut self, set: &mut ChangeSet) {
        let row = CopyTimeRow { complete: self.complete };
        match &self.stored {
            Some(old) if *old == row => return,
            Some(old) => set.update::<CopyTimes>(&ONLY, old, &row),
            None => set.insert::<CopyTimes>(&ONLY, &row),
        }
        self.stored = Some(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn a_copy_that_catches_up_is_complete_only_when_it_has_what_there_was() {
        let mut reach = Reach { complete: at(10), stored: None, ahead: None };
        // The auditor was away for hours, and gets the first of many batches.
        reach.took(20, 90, at(10_000));
        reach.took(50, 95, at(10_001));
        assert_eq!(reach.complete(), at(10));
        reach.took(91, 97, at(10_002));
        assert_eq!(reach.complete(), at(10_000));
        // An exchange that goes on is always ahead.
        reach.took(96, 99, at(10_003));
        reach.took(98, 101, at(10_004));
        assert_eq!(reach.complete(), at(10_002));
        reach.took(101, 101, at(10_005));
        assert_eq!(reach.complete(), at(10_005));
        reach.has_all(at(10_004));
        assert_eq!(reach.complete(), at(10_005), "time does not go back");
        let mut set = ChangeSet::new();
        assert!(reach.is_due());
        reach.write(&mut set);
        reach.write(&mut set);
        assert_eq!((set.len(), reach.is_due()), (1, false));
    }
}
