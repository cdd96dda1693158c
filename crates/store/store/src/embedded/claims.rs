//! Claims: which rows a commit in progress may change.
//!
//! A commit claims the rows that it names before it compares them with what it has read, and keeps the claims
//! until its changes are visible. So commits of several lanes check, encode and wait for the disk at the same
//! time, and still no row changes between a commit's check and its frame. Compaction claims the rows that it
//! moves.
//!
//! Waiters for a claim hold none, so nobody waits for ever.

use std::sync::{Condvar, Mutex, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::lock;

/// A row: the fingerprint of its key and its table. Rows that share a fingerprint are claimed together, which
/// only makes one commit wait for another.
pub(crate) type ClaimedRow = (u64, u16);

#[derive(Default)]
struct Held {
    rows: HashTable<ClaimedRow>,
    /// Threads that wait for rows.
    waiting: usize,
}

/// The rows that commits in progress have claimed.
#[derive(Default)]
pub(crate) struct Claims {
    held: Mutex<Held>,
    released: Condvar,
}

/// Claims of one commit; ends them when it is dropped.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    rows: Vec<ClaimedRow>,
}

impl Claims {
    /// Claims rows, each named once. Waits until no other commit claims any of them.
    pub(crate) fn claim(&self, rows: Vec<ClaimedRow>) -> Claim<'_> {
        let mut held = lock(&self.held);
        while !held.take(&rows) {
            held.waiting += 1;
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
            held.waiting -= 1;
        }
        drop(held);
        Claim { claims: self, rows }
    }

    /// Number of threads that wait.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.held).waiting
    }
}

impl Held {
    /// Takes all of the rows, or none if one is taken.
    fn take(&mut self, rows: &[ClaimedRow]) -> bool {
        for (taken, &row) in rows.iter().enumerate() {
            match self.rows.entry(row.0, |held| *held == row, |held| held.0) {
                Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                Entry::Occupied(_) => {
                    rows[..taken].iter().for_each(|row| self.remove(*row));
                    return false;
                }
            }
        }
        true
    }

    fn remove(&mut self, row: ClaimedRow) {
        let entry = self.rows.find_entry(row.0, |held| *held == row);
        entry.expect("only the holder ends a claim").remove();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.claims.held);
        for row in &self.rows {
            held.remove(*row);
        }
        if held.waiting > 0 {
            self.claims.released.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn rows_are_taken_together_or_not_at_all() {
        let mut held = Held::default();
        assert!(held.take(&[(1, 1), (2, 1)]));
        assert!(!held.take(&[(3, 1), (2, 1), (4, 1)]));
        assert_eq!(held.rows.len(), 2, "a refused claim leaves nothing");
        assert!(held.take(&[(3, 1), (2, 2), (4, 1)]), "rows of other tables are others");
    }

    /// Threads add to numbers that only their claims protect.
    #[test]
    fn one_thread_at_a_time_has_a_row() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 500;
        let claims = Claims::default();
        let numbers: [AtomicU64; 5] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (claims, numbers) = (&claims, &numbers);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // In different orders, so that they would deadlock if they waited with claims.
                        let (a, b) = ((thread + round) % 5, (thread + 3 * round + 2) % 5);
                        let rows = if a == b { vec![(a, 0)] } else { vec![(a, 0), (b, 0)] };
                        let claim = claims.claim(rows);
                        for (number, _) in &claim.rows {
                            let number = &numbers[usize::try_from(*number).expect("small")];
                            let seen = number.load(Ordering::Relaxed);
                            std::thread::yield_now();
                            number.store(seen + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sum: u64 = numbers.iter().map(|number| number.load(Ordering::Relaxed)).sum();
        let pairs = (0..THREADS).flat_map(|thread| (0..ROUNDS).map(move |round| (thread, round)));
        let expected =
            pairs.map(|(thread, round)| 1 + u64::from((thread + round) % 5 != (thread + 3 * round + 2) % 5));
        assert_eq!(sum, expected.sum::<u64>());
        assert!(lock(&claims.held).rows.is_empty());
    }
}
