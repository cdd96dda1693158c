//! The index of used transfer ids, in 12 to 20 bytes each.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// Status of a used id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdStatus {
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
}

/// Hashes ids under a key. Clients choose ids, so they could flood an unkeyed hash. Neither key nor hash
/// influences any result.
#[derive(Clone, Copy)]
pub(super) struct IdHasher(SipHasher13);

impl IdHasher {
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    #[inline]
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
pub(super) const RECORDS_MAX: u64 = 1 << (40 - STATUS_BITS);

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

/// Index from the hash of a transfer id to the numbers of the records that may have used the id.
pub(super) struct IdIndex {
    shards: Vec<HashTable<Entry>>,
    count: u64,
}

impl IdIndex {
    pub fn new() -> Self {
        Self { shards: (0..1 << SHARD_BITS).map(|_| HashTable::new()).collect(), count: 0 }
    }

    #[inline]
    fn shard(hash: u64) -> usize {
        usize::try_from(hash >> (64 - SHARD_BITS)).expect("a few bits")
    }

    /// Records that may have used an id with this hash.
    #[inline]
    pub fn find(&self, hash: u64) -> impl Iterator<Item = (u64, IdStatus)> + '_ {
        let shard = &self.shards[Self::shard(hash)];
        let found = shard.iter_hash(spread(tag(hash))).filter(move |entry| entry.tag() == tag(hash));
        found.map(|entry| (entry.number(), entry.status()))
    }

    pub fn insert(&mut self, hash: u64, number: u64, status: IdStatus) {
        let shard = &mut self.shards[Self::shard(hash)];
        shard.insert_unique(spread(tag(hash)), Entry::new(hash, number, status), |entry| spread(entry.tag()));
        self.count += 1;
    }

    /// Sets the status of an entry, and returns the previous one.
    pub fn set_status(&mut self, hash: u64, number: u64, status: IdStatus) -> IdStatus {
        let is_it = |entry: &Entry| entry.tag() == tag(hash) && entry.number() == number;
        let entry = self.shards[Self::shard(hash)].find_mut(spread(tag(hash)), is_it);
        let entry = entry.expect("a pending transfer has an entry");
        let before = entry.status();
        *entry = Entry::new(hash, number, status);
        before
    }

    pub fn remove(&mut self, hash: u64, number: u64) {
        let is_it = |entry: &Entry| entry.tag() == tag(hash) && entry.number() == number;
        let found = self.shards[Self::shard(hash)].find_entry(spread(tag(hash)), is_it);
        found.expect("what is undone was done").remove();
        self.count -= 1;
    }

    /// Reserves room for this many entries.
    pub fn reserve(&mut self, entries: u64) {
        let each = usize::try_from(entries >> SHARD_BITS).expect("an index fits into memory");
        for shard in &mut self.shards {
            shard.reserve(each, |entry| spread(entry.tag()));
        }
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Allocated memory.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.allocation_size() as u64).sum()
    }
}
