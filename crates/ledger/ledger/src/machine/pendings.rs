//! Unresolved pending transfers, and when they expire.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use super::ids::IdHasher;
use crate::{NS_PER_S, Transfer, TransferFlags};

/// A pending transfer that is not posted, voided or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// See [`Transfer`].
    pub id: u128,
    /// See [`Transfer`].
    pub amount: u128,
    /// See [`Transfer`].
    pub user_data_128: u128,
    /// See [`Transfer`].
    pub user_data_64: u64,
    /// See [`Transfer`].
    pub timestamp: u64,
    /// The number of its record.
    pub record: u64,
    /// The number of its debit account.
    pub debit: u32,
    /// The number of its credit account.
    pub credit: u32,
    /// See [`Transfer`].
    pub user_data_32: u32,
    /// See [`Transfer`].
    pub timeout: u32,
    /// See [`Transfer`].
    pub code: u16,
    /// See [`Transfer`].
    pub flags: TransferFlags,
}

impl Pending {
    /// The reservation that a transfer makes, whose record has this number.
    #[must_use]
    pub const fn new(transfer: &Transfer, debit: u32, credit: u32, record: u64) -> Self {
        Self {
            id: transfer.id,
            amount: transfer.amount,
            user_data_128: transfer.user_data_128,
            user_data_64: transfer.user_data_64,
            timestamp: transfer.timestamp,
            record,
            debit,
            credit,
            user_data_32: transfer.user_data_32,
            timeout: transfer.timeout,
            code: transfer.code,
            flags: transfer.flags,
        }
    }

    /// When it expires, if it does.
    #[must_use]
    pub(crate) fn expires_at(&self) -> Option<u64> {
        (self.timeout != 0).then(|| self.timestamp + u64::from(self.timeout) * NS_PER_S)
    }
}

/// All unresolved pending transfers.
pub(super) struct Pendings {
    by_id: HashTable<Pending>,
    /// Queue: expiry and creation timestamp to id.
    queue: BTreeMap<(u64, u64), u128>,
}

impl Pendings {
    pub(super) const fn new() -> Self {
        Self { by_id: HashTable::new(), queue: BTreeMap::new() }
    }

    #[inline]
    pub(super) fn get(&self, hash: u64, id: u128) -> Option<&Pending> {
        self.by_id.find(hash, |pending| pending.id == id)
    }

    pub(super) fn insert(&mut self, pending: Pending, ids: &IdHasher) {
        if let Some(at) = pending.expires_at() {
            let before = self.queue.insert((at, pending.timestamp), pending.id);
            assert!(before.is_none(), "timestamps are unique");
        }
        let hash = ids.hash(pending.id);
        self.by_id.insert_unique(hash, pending, |pending| ids.hash(pending.id));
    }

    pub(super) fn remove(&mut self, id: u128, ids: &IdHasher) -> Pending {
        let entry = self.by_id.find_entry(ids.hash(id), |pending| pending.id == id);
        let (pending, _) = entry.expect("what is resolved was unresolved").remove();
        if let Some(at) = pending.expires_at() {
            self.queue.remove(&(at, pending.timestamp)).expect("what can expire is in the queue");
        }
        pending
    }

    /// When the next one expires, and its id.
    pub(super) fn next_expiry(&self) -> Option<(u64, u128)> {
        self.queue.first_key_value().map(|((at, _), id)| (*at, *id))
    }

    pub(super) fn count(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Pending> {
        self.by_id.iter()
    }

    /// Number of transfers that can expire.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Allocated memory, approximately.
    pub(super) fn bytes(&self) -> u64 {
        (self.by_id.allocation_size() + self.queue.len() * 48) as u64
    }
}
