//! Transfers under way, shared by the threads: the payer's thread creates and ends them, the payee's answers
//! them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::participants::order::Behaviour;
use crate::participants::outcome::{Notice, TransferOutcome};
use crate::participants::text::TransferId;

/// Parts of the book with separate locks.
const SHARDS: usize = 64;
/// The error code of a request that changes an earlier one, which stays as it is.
const MODIFIED: u16 = 3106;

/// A transfer under way. Times are nanoseconds from the start of the process's clock; 0 means that the event
/// has not happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) payer: u16,
    pub(crate) payee: u16,
    pub(crate) cents: u64,
    pub(crate) behaviour: Behaviour,
    /// Whether it is part of a load.
    pub(crate) is_load: bool,
    pub(crate) condition: [u8; 32],
    pub(crate) expiration_ms: u64,
    /// The payee's completion time when it fulfilled; repetitions use the same.
    pub(crate) completed_ms: u64,
    pub(crate) planned_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) seen_ns: u64,
    pub(crate) put_ns: u64,
    pub(crate) payer_notice: Option<Notice>,
    pub(crate) payee_notice: Option<Notice>,
    /// Requests still to be repeated, because its behaviour is to send them twice.
    pub(crate) repetitions: u8,
}

impl Flight {
    pub(crate) fn new(payer: u16, payee: u16, cents: u64, behaviour: Behaviour) -> Self {
        Self {
            payer,
            payee,
            cents,
            behaviour,
            is_load: false,
            condition: [0; 32],
            expiration_ms: 0,
            completed_ms: 0,
            planned_ns: 0,
            sent_ns: 0,
            seen_ns: 0,
            put_ns: 0,
            payer_notice: None,
            payee_notice: None,
            repetitions: match behaviour {
                Behaviour::Duplicate => 2,
                Behaviour::ChangedDuplicate => 1,
                _ => 0,
            },
        }
    }

    /// Returns whether the payer has its notice and nobody waits or sends any more. What a transfer that failed
    /// would have repeated is left out, since a failure may come before the request that was to be repeated.
    fn is_over(&self) -> bool {
        let has_repeated = |notice: Notice| !notice.is_committed() || self.repetitions == 0;
        self.payer_notice.is_some_and(has_repeated) && !self.awaits_patch()
    }

    /// Returns whether the payee waits for a notice of the switch's decision.
    pub(crate) fn awaits_patch(&self) -> bool {
        self.behaviour == Behaviour::Reserve && self.seen_ns > 0 && self.payee_notice.is_none()
    }
}

/// The meaning of a final callback.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// The first one: the transfer has ended for this participant.
    First {
        flight: Flight,
        /// Whether the other participant received a different notice.
        contradicts: bool,
    },
    /// It ends nothing: it refuses a different request.
    Aside,
    /// The same notice came before, or the transfer is no longer known.
    Repeated,
    /// A different notice came before.
    Contradicted,
}

/// Ids are already random.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64 ^ (id >> 64) as u64;
    }
}

type Map<V> = HashMap<u128, V, BuildHasherDefault<IdHasher>>;

/// The participant that received a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Payer,
    Payee,
}

/// All transfers under way, and (optionally) the outcomes of all that ended.
pub(crate) struct Book {
    shards: Vec<Mutex<Map<Flight>>>,
    outcomes: Option<Mutex<Map<TransferOutcome>>>,
    ended: Condvar,
    /// Watchers of transfers, who want the notice to the payer.
    watchers: Mutex<Map<oneshot::Sender<Notice>>>,
}

impl Book {
    pub(crate) fn new(keeps_outcomes: bool) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            outcomes: keeps_outcomes.then(Mutex::default),
            ended: Condvar::new(),
            watchers: Mutex::default(),
        }
    }

    /// The payer's notice of a transfer that is about to begin, once it comes.
    pub(crate) fn watch(&self, id: TransferId) -> oneshot::Receiver<Notice> {
        let (sender, receiver) = oneshot::channel();
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).insert(id.0, sender);
        receiver
    }

    fn shard(&self, id: TransferId) -> MutexGuard<'_, Map<Flight>> {
        let index = (id.0 >> 100) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a transfer.
    pub(crate) fn begin(&self, id: TransferId, flight: Flight) {
        if let Some(outcomes) = &self.outcomes {
            let outcome = TransferOutcome {
                payer: usize::from(flight.payer),
                payee: usize::from(flight.payee),
                cents: flight.cents,
                behaviour: flight.behaviour,
                payer_notice: None,
                payee_notice: None,
                ended_ms: None,
                payer_callbacks: 0,
                modified: 0,
                is_contradictory: false,
            };
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(id.0, outcome);
        }
        self.shard(id).insert(id.0, flight);
    }

    /// A transfer after `change`, which may have been all that it waited for; `None` if it is not under way.
    pub(crate) fn change(&self, id: TransferId, change: impl FnOnce(&mut Flight)) -> Option<Flight> {
        let mut shard = self.shard(id);
        let flight = shard.get_mut(&id.0)?;
        change(flight);
        let flight = *flight;
        if flight.is_over() {
            shard.remove(&id.0);
        }
        Some(flight)
    }

    /// Records a participant's notice of how a transfer ended; `now_ms` is for the record.
    pub(crate) fn receive_notice(&self, id: TransferId, side: Side, notice: Notice, now_ms: u64) -> News {
        self.note(id, side, notice, now_ms);
        if notice == Notice::Error(MODIFIED) {
            return News::Aside;
        }
        let mut shard = self.shard(id);
        let Some(flight) = shard.get_mut(&id.0) else { return News::Repeated };
        let (own, other) = match side {
            Side::Payer => (&mut flight.payer_notice, flight.payee_notice),
            Side::Payee => (&mut flight.payee_notice, flight.payer_notice),
        };
        if let Some(earlier) = *own {
            let is_same = earlier.is_committed() == notice.is_committed();
            return if is_same { News::Repeated } else { News::Contradicted };
        }
        *own = Some(notice);
        if side == Side::Payer
            && let Some(watcher) = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.0)
        {
            // It may have given up.
            let _ = watcher.send(notice);
        }
        let ended = *flight;
        if flight.is_over() {
            shard.remove(&id.0);
        }
        let contradicts = other.is_some_and(|other| other.is_committed() != notice.is_committed());
        News::First { flight: ended, contradicts }
    }

    /// The side of a participant in a transfer that has ended; `None` if outcomes are not kept.
    pub(crate) fn side(&self, id: TransferId, participant: u16) -> Option<Side> {
        let outcomes = self.outcomes.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = outcomes.get(&id.0)?;
        Some(if outcome.payee == usize::from(participant) { Side::Payee } else { Side::Payer })
    }

    fn note(&self, id: TransferId, side: Side, notice: Notice, now_ms: u64) {
        let Some(outcomes) = &self.outcomes else { return };
        let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(outcome) = outcomes.get_mut(&id.0) else { return };
        if notice == Notice::Error(MODIFIED) {
            outcome.modified += 1;
            self.ended.notify_all();
            return;
        }
        let own = match side {
            Side::Payer => {
                outcome.payer_callbacks += 1;
                outcome.ended_ms.get_or_insert(now_ms);
                &mut outcome.payer_notice
            }
            Side::Payee => &mut outcome.payee_notice,
        };
        let first = *own.get_or_insert(notice);
        let both = (outcome.payer_notice, outcome.payee_notice);
        outcome.is_contradictory |= first.is_committed() != notice.is_committed()
            || matches!(both, (Some(payer), Some(payee)) if payer.is_committed() != payee.is_committed());
        self.ended.notify_all();
    }

    /// Transfers under way.
    pub(crate) fn under_way(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// The number of transfers whose payer has no notice yet.
    pub(crate) fn untold(&self) -> u64 {
        let count = |shard: &Mutex<Map<Flight>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().filter(|flight| flight.payer_notice.is_none()).count() as u64
        };
        self.shards.iter().map(count).sum()
    }

    /// The outcome of a transfer once `is_enough` holds, or what is known when the time is up. `None` if
    /// outcomes are not kept.
    pub(crate) fn outcome(
        &self,
        id: TransferId,
        patience: Duration,
        is_enough: impl Fn(&TransferOutcome) -> bool,
    ) -> Option<TransferOutcome> {
        let deadline = Instant::now() + patience;
        let mut outcomes = self.outcomes.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let outcome = *outcomes.get(&id.0)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if is_enough(&outcome) || left.is_zero() {
                return Some(outcome);
            }
            outcomes = self.ended.wait_timeout(outcomes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The outcomes of all transfers, as far as known. Empty if outcomes are not kept.
    pub(crate) fn outcomes(&self) -> Vec<(TransferId, TransferOutcome)> {
        let Some(outcomes) = &self.outcomes else { return Vec::new() };
        let outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.iter().map(|(id, outcome)| (TransferId(*id), *outcome)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_kept_until_its_repetitions_are_sent() {
        let book = Book::new(false);
        let id = TransferId(9);
        let send_again = |flight: &mut Flight| flight.repetitions -= 1;
        book.begin(id, Flight::new(0, 1, 5, Behaviour::Duplicate));
        assert!(matches!(book.receive_notice(id, Side::Payer, Notice::Committed, 9), News::First { .. }));
        assert!(book.change(id, send_again).is_some(), "the payer's");
        assert_eq!((book.under_way(), book.untold()), (1, 0));
        assert!(book.change(id, send_again).is_some(), "the payee's");
        assert_eq!(book.under_way(), 0);
        book.begin(id, Flight::new(0, 1, 5, Behaviour::ChangedDuplicate));
        assert!(matches!(book.receive_notice(id, Side::Payer, Notice::Error(3303), 9), News::First { .. }));
        assert_eq!(book.under_way(), 0, "the prepare may have failed before there was anything to change");
    }

    #[test]
    fn each_participant_is_notified_once() {
        let book = Book::new(true);
        let (id, mut flight) = (TransferId(7), Flight::new(0, 1, 5, Behaviour::Reserve));
        flight.seen_ns = 1;
        book.begin(id, flight);
        assert!(matches!(book.receive_notice(id, Side::Payer, Notice::Error(3106), 9), News::Aside));
        assert!(matches!(book.receive_notice(id, Side::Payer, Notice::Committed, 9), News::First { .. }));
        assert!(matches!(book.receive_notice(id, Side::Payer, Notice::Committed, 9), News::Repeated));
        assert_eq!((book.under_way(), book.untold()), (1, 0), "the payee waits for its PATCH");
        assert!(matches!(
            book.receive_notice(id, Side::Payee, Notice::Aborted, 9),
            News::First { contradicts: true, .. }
        ));
        assert_eq!(book.under_way(), 0);
        let outcome = book.outcome(id, Duration::ZERO, |_| true).unwrap();
        assert!(outcome.is_contradictory);
        assert_eq!((outcome.payer_callbacks, outcome.modified), (2, 1));
        assert_eq!(outcome.ended_ms, Some(9));
        assert!(matches!(
            book.receive_notice(TransferId(8), Side::Payer, Notice::Committed, 9),
            News::Repeated
        ));
    }
}
