//! Ranges of bank rows, by which several watchers of one account share its history.
//!
//! A watcher claims a range (start exclusive, end inclusive), imports it and claims the next one. A claim ends with the watcher
//! that holds it, however it ends, and may be taken over when its lease has ended; who has overrun his lease goes on, and what
//! two have imported counts once. What is stored of all this is one cursor an account: it follows the ranges in their order, so
//! that it never passes a row that was not imported, and a restart begins there.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use batzen_tables::exchange::AccountId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Ranges known at once. Beyond it, watchers help with the first one instead of going further ahead of it.
const SHARDS_MAX: usize = 4_096;

/// The ranges of all accounts.
#[derive(Debug, Default)]
pub(super) struct AccountShards(Mutex<HashMap<AccountId, Arc<Shards>>>);

impl AccountShards {
    /// The ranges of an account. `cursor` counts only if nobody has watched it since the start.
    pub fn of(&self, account: AccountId, cursor: u64) -> Arc<Shards> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(accounts.entry(account).or_insert_with(|| Arc::new(Shards::new(cursor))))
    }
}

/// The ranges of an account.
#[derive(Debug)]
pub(super) struct Shards {
    ranges: Mutex<Ranges>,
    /// Somebody let go of a range, or completed one.
    freed: Notify,
}

#[derive(Debug)]
struct Ranges {
    /// Adjoining ranges. The first one is not complete.
    shards: VecDeque<Shard>,
    /// Where the next one begins.
    end: u64,
    /// The cursor as stored.
    stored: u64,
    claims: u64,
}

#[derive(Debug)]
struct Shard {
    start: u64,
    end: u64,
    /// The last row that was imported, durably.
    latest: u64,
    is_complete: bool,
    /// The number of the claim, and when its lease ends.
    held: Option<(u64, Instant)>,
}

impl Shard {
    fn is_claimable(&self) -> bool {
        !self.is_complete && self.held.is_none_or(|(_, until)| until <= Instant::now())
    }
}

/// A range that is claimed, until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    shards: Arc<Shards>,
    claim: u64,
    until: Instant,
    start: u64,
    /// The last row that belongs to it.
    pub end: u64,
    /// The last row that was imported.
    pub latest: u64,
    /// When it was claimed.
    pub since: Instant,
}

impl Ranges {
    /// Up to where everything is imported, once `latest` of the range that begins at `start` is (and it is complete, if so).
    fn safe(&self, own: Option<(u64, u64, bool)>) -> u64 {
        for shard in &self.shards {
            let (latest, is_complete) = match own {
                Some((start, latest, is_complete)) if start == shard.start => {
                    (shard.latest.max(latest), shard.is_complete || is_complete)
                }
                _ => (shard.latest, shard.is_complete),
            };
            if !is_complete {
                return latest;
            }
        }
        self.end
    }

    fn find(&mut self, start: u64) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|shard| shard.start == start)
    }
}

impl Shards {
    fn new(cursor: u64) -> Self {
        let ranges = Ranges { shards: VecDeque::new(), end: cursor, stored: cursor, claims: 0 };
        Self { ranges: Mutex::new(ranges), freed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the first range that is free, or whose lease has ended; a new one of so many rows behind the others if there is
    /// none.
    pub fn claim(self: &Arc<Self>, size: u64, lease: Duration) -> Held {
        let mut ranges = self.lock();
        let until = Instant::now() + lease;
        ranges.claims += 1;
        let claim = ranges.claims;
        let found = ranges.shards.iter().position(Shard::is_claimable);
        let index = found.unwrap_or_else(|| {
            if ranges.shards.len() >= SHARDS_MAX {
                return 0;
            }
            let start = ranges.end;
            ranges.end = start.saturating_add(size.max(1));
            let end = ranges.end;
            ranges.shards.push_back(Shard { start, end, latest: start, is_complete: false, held: None });
            ranges.shards.len() - 1
        });
        let shard = &mut ranges.shards[index];
        shard.held = Some((claim, until));
        let Shard { start, end, latest, .. } = *shard;
        Held { shards: Arc::clone(self), claim, until, start, end, latest, since: Instant::now() }
    }

    /// Ends when the first range is free, or its lease has ended (or was so a moment ago).
    pub async fn first_is_free(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the look, so that nothing falls between the two.
            freed.as_mut().enable();
            let until = match self.lock().shards.front() {
                Some(first) if !first.is_claimable() => first.held.map(|(_, until)| until),
                _ => None,
            };
            let Some(until) = until else { return };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The last row up to which everything is imported.
    pub fn imported_until(&self) -> u64 {
        self.lock().safe(None)
    }

    /// Takes note of a cursor that was stored.
    pub fn stored(&self, cursor: u64) {
        let mut ranges = self.lock();
        ranges.stored = ranges.stored.max(cursor);
    }

    /// A cursor that could be stored and is not.
    pub fn unstored(&self) -> Option<u64> {
        let ranges = self.lock();
        Some(ranges.safe(None)).filter(|safe| *safe > ranges.stored)
    }
}

impl Held {
    /// Whether others may have taken it over.
    pub fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }

    /// Whether everything before it is imported.
    pub fn is_first(&self) -> bool {
        self.shards.lock().shards.front().is_some_and(|first| first.start == self.start)
    }

    /// The cursor that may be stored in the same commit as the last of the rows up to `latest`.
    pub fn cursor(&self, latest: u64, is_complete: bool) -> u64 {
        self.shards.lock().safe(Some((self.start, latest, is_complete)))
    }

    /// Takes note that all rows up to `latest` are imported; and, if `seen_until` says so, that there is none between the end
    /// of the range and that row, which completes it.
    pub fn imported(&mut self, latest: u64, seen_until: Option<u64>) {
        self.latest = self.latest.max(latest);
        let mut ranges = self.shards.lock();
        let end = ranges.end;
        // Ids may have large gaps, which the next claim need not walk through.
        let further = seen_until.filter(|until| self.end == end && *until > end);
        let Some(shard) = ranges.find(self.start) else { return };
        shard.latest = shard.latest.max(latest);
        shard.is_complete |= seen_until.is_some();
        if let Some(until) = further {
            (shard.end, ranges.end) = (until, until);
        }
        while ranges.shards.front().is_some_and(|first| first.is_complete) {
            ranges.shards.pop_front();
        }
        drop(ranges);
        if seen_until.is_some() {
            self.shards.freed.notify_waiters();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(shard) = self.shards.lock().find(self.start)
            && shard.held.is_some_and(|(claim, _)| claim == self.claim)
        {
            shard.held = None;
        }
        self.shards.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3_600);

    fn shards() -> Arc<Shards> {
        AccountShards::default().of(AccountId::of_payto("payto://x-taler-bank/localhost/x"), 100)
    }

    #[test]
    fn the_cursor_follows_the_ranges_in_their_order() {
        let shards = shards();
        let (mut a, mut b, mut c) =
            (shards.claim(10, LEASE), shards.claim(10, LEASE), shards.claim(10, LEASE));
        assert_eq!(
            [(a.start, a.end), (b.start, b.end), (c.start, c.end)],
            [(100, 110), (110, 120), (120, 130)]
        );
        assert!(a.is_first() && !b.is_first());
        assert_eq!(b.cursor(120, true), 100, "the first range is not imported");
        b.imported(120, Some(120));
        assert_eq!(c.cursor(124, false), 100);
        c.imported(124, None);
        assert_eq!(a.cursor(107, false), 107);
        a.imported(107, None);
        assert_eq!(shards.unstored(), Some(107));
        shards.stored(107);
        assert_eq!((shards.unstored(), a.cursor(110, true)), (None, 124), "over the second, into the third");
        a.imported(110, Some(110));
        assert_eq!(shards.unstored(), Some(124));
        assert!(c.is_first());
        // Beyond a gap: the next range begins behind it.
        assert_eq!(c.cursor(130, true), 130);
        c.imported(130, Some(5_000));
        let next = shards.claim(10, LEASE);
        assert_eq!((next.start, next.end, shards.unstored()), (5_000, 5_010, Some(5_000)));
    }

    #[tokio::test]
    async fn who_dies_leaves_the_rest_of_the_range_to_the_next() {
        let shards = shards();
        let mut first = shards.claim(10, LEASE);
        first.imported(104, None);
        let second = shards.claim(10, LEASE);
        let waiter = {
            let shards = Arc::clone(&shards);
            tokio::spawn(async move { shards.first_is_free().await })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(first);
        waiter.await.unwrap();
        let heir = shards.claim(99, LEASE);
        assert_eq!((heir.start, heir.latest, heir.end), (100, 104, 110), "sizes may differ");
        drop(second);
        let heir = shards.claim(99, LEASE);
        assert_eq!((heir.start, heir.end), (110, 120));
    }

    #[test]
    fn a_lease_that_has_ended_holds_nobody_up_and_ends_no_work() {
        let shards = shards();
        let mut slow = shards.claim(10, Duration::ZERO);
        let mut quick = shards.claim(10, LEASE);
        assert!(slow.is_over() && !quick.is_over());
        assert_eq!((slow.start, quick.start), (100, 100));
        quick.imported(110, Some(110));
        assert_eq!(slow.cursor(105, false), 110, "what is imported stays so");
        slow.imported(105, None);
        assert!(!slow.is_first());
        drop(quick);
        drop(slow);
        assert_eq!(shards.claim(10, LEASE).start, 110);
    }

    #[test]
    fn nobody_runs_ahead_without_limit() {
        let shards = shards();
        let held: Vec<_> = (0..SHARDS_MAX).map(|_| shards.claim(1, LEASE)).collect();
        assert_eq!(held.last().map(|held| held.end), Some(100 + SHARDS_MAX as u64));
        assert_eq!(shards.claim(1, LEASE).start, 100, "the first one gets help");
    }
}
