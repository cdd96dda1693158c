//! Snapshots: the state as of a record, so that a ledger opens without all records before it; and forgetting
//! the ids that a snapshot has, which are then looked up with [`History::find_ids`].
//!
//! [`History::find_ids`]: super::History::find_ids

use super::accounts::HeldAccount;
use super::ids::{IdHasher, IdIndex, IdStatus};
use super::pendings::Pending;
use super::{Counts, Digest, Machine};

/// A state in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Numbers of objects.
    pub counts: Counts,
    /// The digest of all records.
    pub digest: Digest,
    /// The last timestamp given to anything.
    pub clock: u64,
    /// The timestamp of the last movement.
    pub last_movement: u64,
}

impl Machine {
    /// A machine with this summary, which has forgotten all ids. Its accounts, marks and pending transfers are
    /// loaded next; then [`Machine::check`] must pass.
    #[must_use]
    pub fn resume(hash_key: &[u8; 16], summary: &Summary) -> Self {
        let Summary { counts, digest, clock, last_movement } = *summary;
        let ids = IdIndex::new(counts.transfers + counts.burnt);
        Self { ids, counts, digest, clock, last_movement, ..Self::new(hash_key) }
    }

    /// Loads the next account.
    pub fn load_account(&mut self, held: &HeldAccount) {
        self.accounts.load(held, &self.hasher);
    }

    /// Loads the next mark of an account: timestamp, and record number plus one.
    pub fn load_mark(&mut self, account: u32, timestamp: u64, record: u64) {
        self.accounts.load_mark(account, timestamp, record);
    }

    /// Loads an unresolved pending transfer. Returns whether its accounts exist and it was not loaded before.
    pub fn load_pending(&mut self, pending: Pending) -> bool {
        let is_known = |number| usize::try_from(number).is_ok_and(|number| number < self.accounts.count());
        let is_new = self.pendings.get(self.hasher.hash(pending.id), pending.id).is_none();
        let fits = is_known(pending.debit) && is_known(pending.credit) && is_new;
        if fits {
            self.pendings.insert(pending, &self.hasher);
        }
        fits
    }

    /// Loads an id that has not been forgotten.
    pub fn load_id(&mut self, hash: u64, number: u64, status: IdStatus) {
        self.ids.load(hash, number, status);
    }

    /// Freezes the index of ids: those known now are forgotten by the next [`Machine::forget_ids`].
    ///
    /// # Panics
    /// When there are records that are not settled, or ids are frozen already.
    pub fn freeze_ids(&mut self) {
        assert!(self.undo.is_empty() && self.fresh.is_empty(), "only what is settled can be frozen");
        self.ids.rotate();
    }

    /// Forgets the frozen ids. From now on the history must find them.
    pub fn forget_ids(&mut self) {
        self.ids.forget();
    }

    /// The state in numbers.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        Summary {
            counts: self.counts,
            digest: self.digest,
            clock: self.clock,
            last_movement: self.last_movement,
        }
    }

    /// The hash function of ids.
    #[must_use]
    pub const fn hasher(&self) -> IdHasher {
        self.hasher
    }

    /// The account with this number, if it exists.
    #[must_use]
    pub fn held_account(&self, number: u32) -> Option<HeldAccount> {
        let is_known = usize::try_from(number).is_ok_and(|number| number < self.accounts.count());
        is_known.then(|| {
            let state = self.accounts.get(number);
            HeldAccount { account: state.account, last: state.last, movements: state.movements }
        })
    }

    /// The marks of an account: timestamp, and record number plus one.
    #[must_use]
    pub fn marks(&self, account: u32) -> &[(u64, u64)] {
        self.accounts.marks(account)
    }

    /// The unresolved pending transfer with this id.
    #[must_use]
    pub fn unresolved(&self, id: u128) -> Option<&Pending> {
        self.pendings.get(self.hasher.hash(id), id)
    }

    /// Number and status of each record that may have used an id with this hash and is not forgotten.
    pub fn find_ids(&self, hash: u64) -> impl Iterator<Item = (u64, IdStatus)> + '_ {
        self.ids.find(hash)
    }
}
