//! The index of used transfer ids since the last snapshot, in 12 to 20 bytes each.
//!
//! It has two generations. Entries are added to the *young* one. [`IdIndex::rotate`] freezes it while a
//! snapshot moves its entries to a disk, and [`IdIndex::forget`] drops it afterwards. The status of an id that
//! is not young is overridden by a young entry.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// Status of a used id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdStatus {
    /// A transfer that is not pending.
    Plain,
    /// A pending transfer, unresolved.
    Pending,
    /// A pending transfer that was posted.
    Posted,
    /// A pending transfer that was voided.
    Voided,
    /// A pending transfer that expired.
    Expired,
    /// Refused for good.
    Burnt,
}

impl IdStatus {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Pending, Self::Posted, Self::Voided, Self::Expired, Self::Burnt];

    /// The status with this number, the inverse of `as u8`; `None` if there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Hashes ids under a key. Clients choose ids, so they could flood an unkeyed hash. Neither key nor hash
/// influences any result.
#[derive(Clone, Copy)]
pub struct IdHasher(SipHasher13);

impl IdHasher {
    /// A hasher with this key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    /// The hash of an id.
    #[inline]
    #[must_use]
    pub fn hash(&self, id: u128) -> u64 {
        let mut hasher = self.0;
        hasher.write(&id.to_le_bytes());
        hasher.finish()
    }
}

/// Many small tables, so that growing one is quick.
const SHARD_BITS: u32 = 8;
/// Three bits of an entry are its status, the rest of 40 its record's number.
const STATUS_BITS: u32 = 3;
/// Most records of a log.
pub const RECORDS_MAX: u64 = 1 << (40 - STATUS_BITS);

/// 32 bits of the hash, then 40 of record number and status. With the shard that is 40 bits of hash: among
/// 100 million entries, one look-up in ten thousand reads a record unnecessarily.
#[derive(Clone, Copy, Debug)]
struct Entry([u8; 9]);

impl Entry {
    fn new(hash: u64, number: u64, status: IdStatus) -> Self {
        assert!(number < RECORDS_MAX, "the log is full");
        let place = (number << STATUS_BITS | status as u64).to_le_bytes();
        let mut bytes = [0; 9];
        bytes[..4].copy_from_slice(&tag(hash).to_le_bytes());
        bytes[4..].copy_from_slice(&place[..5]);
        Self(bytes)
    }

    fn tag(self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    fn place(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..5].copy_from_slice(&self.0[4..]);
        u64::from_le_bytes(bytes)
    }

    fn number(self) -> u64 {
        self.place() >> STATUS_BITS
    }

    fn status(self) -> IdStatus {
        IdStatus::ALL[usize::try_from(self.place() & 7).expect("three bits")]
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the upper half is the shard's and unused")]
const fn tag(hash: u64) -> u32 {
    hash as u32
}

/// Spreads 32 bits over the 64 that the table needs.
const fn spread(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Entries by hash.
struct Generation {
    shards: Vec<HashTable<Entry>>,
}

impl Generation {
    fn new() -> Self {
        Self { shards: (0..1 << SHARD_BITS).map(|_| HashTable::new()).collect() }
    }

    #[inline]
    fn shard(hash: u64) -> usize {
        usize::try_from(hash >> (64 - SHARD_BITS)).expect("a few bits")
    }

    #[inline]
    fn find(&self, hash: u64) -> impl Iterator<Item = (u64, IdStatus)> + '_ {
        let shard = &self.shards[Self::shard(hash)];
        let found = shard.iter_hash(spread(tag(hash))).filter(move |entry| entry.tag() == tag(hash));
        found.map(|entry| (entry.number(), entry.status()))
    }

    fn insert(&mut self, hash: u64, number: u64, status: IdStatus) {
        let shard = &mut self.shards[Self::shard(hash)];
        shard.insert_unique(spread(tag(hash)), Entry::new(hash, number, status), |entry| spread(entry.tag()));
    }

    fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.allocation_size() as u64).sum()
    }
}

/// Index from the hash of a transfer id to the numbers of the records that may have used the id.
pub(super) struct IdIndex {
    young: Generation,
    /// The generation that a snapshot is moving to the disk.
    frozen: Option<Generation>,
    /// Used ids, also those that were forgotten.
    count: u64,
}

impl IdIndex {
    /// An index that has forgotten this many ids.
    pub(super) fn new(count: u64) -> Self {
        Self { young: Generation::new(), frozen: None, count }
    }

    /// Records that may have used an id with this hash. The first that names a record has its status.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = (u64, IdStatus)> + '_ {
        let frozen = self.frozen.as_ref().into_iter().flat_map(move |frozen| frozen.find(hash));
        self.young.find(hash).chain(frozen)
    }

    pub(super) fn insert(&mut self, hash: u64, number: u64, status: IdStatus) {
        self.young.insert(hash, number, status);
        self.count += 1;
    }

    /// Adds an entry that is counted already: from a snapshot.
    pub(super) fn load(&mut self, hash: u64, number: u64, status: IdStatus) {
        self.young.insert(hash, number, status);
    }

    /// Sets the status of an entry, and returns the previous one; `None` if the entry was forgotten.
    pub(super) fn set_status(&mut self, hash: u64, number: u64, status: IdStatus) -> Option<IdStatus> {
        let is_it = |entry: &Entry| entry.tag() == tag(hash) && entry.number() == number;
        let shard = &mut self.young.shards[Generation::shard(hash)];
        if let Some(entry) = shard.find_mut(spread(tag(hash)), is_it) {
            let before = entry.status();
            *entry = Entry::new(hash, number, status);
            return Some(before);
        }
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.find(hash).find(|(at, _)| *at == number));
        self.young.insert(hash, number, status);
        frozen.map(|(_, before)| before)
    }

    /// Freezes the young entries.
    pub(crate) fn rotate(&mut self) {
        assert!(self.frozen.is_none(), "what is frozen is forgotten first");
        self.frozen = Some(std::mem::replace(&mut self.young, Generation::new()));
    }

    /// Drops the frozen entries.
    pub(super) fn forget(&mut self) {
        self.frozen = None;
    }

    /// Removes an entry that was just added.
    pub(super) fn remove(&mut self, hash: u64, number: u64) {
        let is_it = |entry: &Entry| entry.tag() == tag(hash) && entry.number() == number;
        let found = self.young.shards[Generation::shard(hash)].find_entry(spread(tag(hash)), is_it);
        found.expect("what is undone was done").remove();
        self.count -= 1;
    }

    /// Reserves room for this many entries.
    pub(super) fn reserve(&mut self, entries: u64) {
        let each = usize::try_from(entries >> SHARD_BITS).expect("an index fits into memory");
        for shard in &mut self.young.shards {
            shard.reserve(each, |entry| spread(entry.tag()));
        }
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Allocated memory.
    pub(super) fn bytes(&self) -> u64 {
        self.young.bytes() + self.frozen.as_ref().map_or(0, Generation::bytes)
    }
}
