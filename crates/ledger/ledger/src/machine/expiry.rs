//! The pulse: an operation of the ledger itself that releases expired transfers.

use super::Machine;
use super::log::LogRecord;
use crate::BATCH_EVENTS_MAX;

impl Machine {
    /// When the next pending transfer expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.pendings.next_expiry().map(|(at, _)| at)
    }

    /// Returns whether a pulse at this time would release anything.
    #[must_use]
    pub fn is_pulse_due(&self, now: u64) -> bool {
        self.next_expiry().is_some_and(|at| at <= now.max(self.clock))
    }

    /// Releases expired pending transfers in the order of expiry and creation, at most [`BATCH_EVENTS_MAX`],
    /// and returns how many. The operation's timestamp is [`Machine::operation_timestamp`] of that many
    /// events. Each release has its own slot; a transfer that has not expired before the first slot waits for
    /// the next pulse.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn pulse(&mut self, timestamp: u64) -> usize {
        let start = self.begin(timestamp, BATCH_EVENTS_MAX);
        let mut released = 0;
        while released < BATCH_EVENTS_MAX
            && let Some((at, id)) = self.pendings.next_expiry()
            && at <= start
        {
            let pending = self.pendings.get(self.hasher.hash(id), id).expect("what is queued is unresolved");
            let movement = self.expiry_of(pending, start + released as u64);
            self.append(LogRecord::Movement(movement));
            released += 1;
        }
        released
    }
}
