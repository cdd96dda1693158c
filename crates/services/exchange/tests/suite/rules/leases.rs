//! Leases: how workers share jobs, even when workers are killed.

use std::sync::Arc;

use batzen_engine::Batcher;
use batzen_store::memory::MemoryBackend;
use proptest::prelude::*;

use batzen_exchange::reads::read;
use batzen_exchange::rules::leases::{RANGES_MAX, Slots, front};
use batzen_exchange::rules::{
    Answer, Command, Credits, DenomTable, ExchangeRules, Lease, Leased, RangeClaim, RangeProgress,
    RangeState, RulesConfig, SlotsClaim, SlotsShare,
};
use batzen_protocol::{Duration, Timestamp};
use batzen_store::Store;
use batzen_tables::exchange::{AccountId, LeaseJob, WorkerLeases};

const ACCOUNT: AccountId = AccountId([7; 8]);
const LEASE: Duration = Duration::from_secs(3);

struct World {
    batcher: Batcher<ExchangeRules>,
    store: Store,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let store = Store::new(MemoryBackend::new());
        let rules = ExchangeRules::new(Arc::new(DenomTable::new()), RulesConfig::new("http://localhost/"));
        let batcher = Batcher::new(Arc::new(rules), store.clone());
        Self { batcher, store, now: Timestamp::from_secs(1_000) }
    }

    fn run(&self, command: Command) -> Answer {
        // Commands carry the workers' time; the lane's own time does not matter.
        let clock = || Timestamp::from_secs(5);
        self.batcher.run(&[command], &clock).unwrap().pop().unwrap().unwrap()
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.saturating_add(Duration::from_secs(seconds));
    }

    fn claim(&self, holder: u64, size: u64) -> RangeState {
        let claim = RangeClaim { account: ACCOUNT, holder, now: self.now, lease: Some(LEASE), size };
        match self.run(Command::Lease(Lease::Range(claim))) {
            Answer::Lease(Leased::Range(Some(range))) => range,
            other => panic!("{other:?}"),
        }
    }

    fn advance(&self, holder: u64, start: u64, latest: u64, seen_until: Option<u64>) -> Option<RangeState> {
        let range = Some(RangeProgress { holder, now: self.now, lease: LEASE, start, latest, seen_until });
        let credits = Credits { account: ACCOUNT, credits: Vec::new(), cursor: 0, range };
        match self.run(Command::Credits(credits)) {
            Answer::Credits(credited) => credited.range,
            other => panic!("{other:?}"),
        }
    }

    fn cursor(&self) -> u64 {
        read::cursor(&self.store, ACCOUNT).unwrap()
    }

    fn slots(&self, holder: u64, lease: Option<Duration>) -> Slots {
        self.share(holder, lease, true).slots
    }

    fn share(&self, holder: u64, lease: Option<Duration>, gives: bool) -> SlotsShare {
        let claim = SlotsClaim { job: LeaseJob::Aggregator, holder, now: self.now, lease, gives };
        match self.run(Command::Lease(Lease::Slots(claim))) {
            Answer::Lease(Leased::Slots(share)) => share,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_cursor_follows_the_ranges_in_their_order() {
    let w = World::new();
    let [a, b, c] = [1, 2, 3].map(|holder| w.claim(holder, 10));
    assert_eq!([(a.start, a.end), (b.start, b.end), (c.start, c.end)], [(0, 10), (10, 20), (20, 30)]);
    assert!(a.is_first && !b.is_first && c.has_others);
    assert_eq!(w.advance(2, 10, 20, Some(20)), None, "it is complete");
    w.advance(3, 20, 24, None);
    assert_eq!(w.cursor(), 0, "the first range is not imported");
    w.advance(1, 0, 7, None);
    assert_eq!(w.cursor(), 7);
    w.advance(1, 0, 10, Some(10));
    assert_eq!(w.cursor(), 24, "past the second range and into the third");
    // The page ends beyond a gap: the next range begins after the gap.
    assert_eq!(w.advance(3, 20, 30, Some(5_000)), None);
    assert_eq!(w.cursor(), 5_000);
    let next = w.claim(1, 10);
    assert_eq!((next.start, next.end, next.is_first), (5_000, 5_010, true));
}

#[test]
fn an_expired_lease_blocks_no_worker_and_stops_no_work() {
    let mut w = World::new();
    let slow = w.claim(1, 10);
    assert_eq!(w.claim(2, 10).start, 10);
    w.pass(4);
    assert_eq!(front(&w.store, ACCOUNT, w.now).unwrap(), (0, false));
    let heir = w.claim(2, 99);
    assert_eq!((heir.start, heir.end, heir.is_ours), (0, 10, true), "sizes may differ");
    let late = w.advance(1, slow.start, 4, None).unwrap();
    assert!(!late.is_ours && late.latest == 4, "imported rows stay imported");
    assert_eq!(w.cursor(), 4);
    assert_eq!(front(&w.store, ACCOUNT, w.now).unwrap(), (4, true), "the new holder's lease has not expired");
    // A worker that leaves does not block others.
    let leave = RangeClaim { account: ACCOUNT, holder: 2, now: w.now, lease: None, size: 1 };
    w.run(Command::Lease(Lease::Range(leave)));
    assert_eq!(w.claim(3, 10).latest, 4);
    // A lease that ends too far in the future counts as expired.
    let mut fast = World { now: w.now.saturating_add(Duration::from_days(30)), ..World::new() };
    fast.claim(1, 10);
    fast.now = w.now;
    assert_eq!(fast.claim(2, 10).start, 0);
}

#[test]
fn the_number_of_open_ranges_is_limited() {
    let w = World::new();
    let mut claims: Vec<_> = (1..=RANGES_MAX as u64).map(|holder| w.claim(holder, 1)).collect();
    let last = claims.pop().unwrap();
    assert_eq!(last.end, RANGES_MAX as u64);
    assert_eq!(w.claim(9_999, 1).start, 0, "the first one gets help");
}

#[test]
fn slots_are_shared_evenly_and_returned() {
    let mut w = World::new();
    assert_eq!(w.slots(1, Some(LEASE)), Slots::ALL);
    assert_eq!(w.slots(2, Some(LEASE)).count(), 0, "the first one has not noticed yet");
    assert_eq!(w.share(1, Some(LEASE), false), SlotsShare { slots: Slots::ALL, has_excess: true });
    assert_eq!(w.slots(1, Some(LEASE)).count(), 32);
    assert_eq!(w.slots(2, Some(LEASE)).count(), 32);
    let third = w.slots(3, Some(LEASE)).count();
    let [first, second] = [1, 2].map(|holder| w.slots(holder, Some(LEASE)));
    let overlap = (0..=255).filter(|byte| first.has(*byte, 0) && second.has(*byte, 0)).count();
    assert_eq!((third, first.count(), second.count(), overlap), (0, 22, 22, 0));
    assert_eq!(w.slots(3, Some(LEASE)).count(), 20);
    assert_eq!(w.slots(2, None), Slots::default());
    assert_eq!(w.slots(1, Some(LEASE)).count(), 32);
    w.pass(2);
    w.slots(3, Some(LEASE));
    // The first worker is killed.
    w.pass(2);
    assert_eq!(w.slots(3, Some(LEASE)), Slots::ALL);
    w.slots(3, None);
    assert!(w.store.all::<WorkerLeases>().unwrap().is_empty());
}

proptest! {
    /// Watchers skip no row, whatever they do and however often they are killed, and import all rows in the
    /// end.
    #[test]
    fn no_row_is_ever_skipped(steps in prop::collection::vec((1u64..5, 0u8..6, 1u64..9), 1..200)) {
        let mut w = World::new();
        let mut imported = std::collections::BTreeSet::new();
        let mut held = std::collections::BTreeMap::<u64, RangeState>::new();
        for (holder, what, rows) in steps {
            match (what, held.get(&holder).copied()) {
                (0, _) => w.pass(rows),
                // Killed.
                (1, Some(_)) => {
                    held.remove(&holder);
                }
                (_, None) => {
                    held.insert(holder, w.claim(holder, rows));
                }
                (_, Some(range)) => {
                    let latest = (range.latest + rows).min(range.end);
                    imported.extend(range.latest + 1..=latest);
                    let seen_until = (latest == range.end).then_some(latest);
                    match w.advance(holder, range.start, latest, seen_until) {
                        Some(range) if range.is_ours => held.insert(holder, range),
                        _ => held.remove(&holder),
                    };
                }
            }
            let cursor = w.cursor();
            prop_assert!((1..=cursor).all(|row| imported.contains(&row)), "{cursor}: {imported:?}");
        }
        w.pass(10);
        let until = imported.last().copied().unwrap_or(0);
        while w.cursor() < until {
            let range = w.claim(9, 5);
            imported.extend(range.latest + 1..=range.end);
            w.advance(9, range.start, range.end, Some(range.end));
            prop_assert!((1..=w.cursor()).all(|row| imported.contains(&row)));
        }
    }
}
