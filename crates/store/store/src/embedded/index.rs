//! The part of the indexes that is in memory. Rows are found by fingerprints of their keys and read from the
//! disk. What is not here is in runs (`runs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, OccupiedEntry};
use smallvec::SmallVec;

use super::ordered::{OrderedIndex, Position, PositionLog, PositionOp};
use crate::{IndexKind, TableDef};

/// Where a record is: 24 bits of segment, 24 bits of offset and 16 bits of length, both in units of eight
/// bytes. A length of 0xffff means "at least this long". This suffices to read most records at once; the
/// exact lengths are in the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(pub u64);

impl Location {
    pub(crate) fn new(segment: u32, offset: u64, bytes: usize) -> Self {
        debug_assert!(offset.is_multiple_of(8) && bytes.is_multiple_of(8));
        assert!(segment < 1 << 24 && offset >> 3 < 1 << 24, "a location fits its bits");
        let length = (bytes as u64 >> 3).min(0xffff);
        Self(u64::from(segment) << 40 | (offset >> 3) << 16 | length)
    }
    pub(crate) fn segment(self) -> u32 {
        u32::try_from(self.0 >> 40).expect("24 bits")
    }
    pub(crate) fn offset(self) -> u64 {
        (self.0 >> 16 & 0xff_ffff) << 3
    }
    /// The record's length in bytes, or a lower bound if [`Location::is_long`].
    pub(crate) fn bytes_min(self) -> u64 {
        (self.0 & 0xffff) << 3
    }
    pub(crate) fn is_long(self) -> bool {
        self.0 & 0xffff == 0xffff
    }
}

/// The number of parts of a hash table, so that growing one part delays others only briefly.
const PARTS: usize = 64;

fn part_of(fingerprint: u64) -> usize {
    // The hash table uses the low bits for the bucket and the high bits for the tag, so take bits in the
    // middle.
    (fingerprint >> 36) as usize % PARTS
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexEntry {
    fingerprint: u64,
    value: u64,
}

/// The values under one fingerprint, if there are several.
#[derive(Debug)]
enum Group {
    /// Sorted, as long as copying them is cheap.
    Few(Vec<u64>),
    Many(BTreeSet<u64>),
}

const FEW_LIMIT: usize = 256;

impl Group {
    fn insert(&mut self, value: u64) -> bool {
        match self {
            Self::Few(values) => match values.binary_search(&value) {
                Ok(_) => false,
                Err(at) if values.len() < FEW_LIMIT => {
                    values.insert(at, value);
                    true
                }
                Err(_) => {
                    let mut many: BTreeSet<u64> = values.iter().copied().collect();
                    many.insert(value);
                    *self = Self::Many(many);
                    true
                }
            },
            Self::Many(values) => values.insert(value),
        }
    }

    fn remove(&mut self, value: u64) -> bool {
        match self {
            Self::Few(values) => values.binary_search(&value).map(|at| values.remove(at)).is_ok(),
            Self::Many(values) => values.remove(&value),
        }
    }

    fn contains(&self, value: u64) -> bool {
        match self {
            Self::Few(values) => values.binary_search(&value).is_ok(),
            Self::Many(values) => values.contains(&value),
        }
    }

    fn iter(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        match self {
            Self::Few(values) => Box::new(values.iter().copied()),
            Self::Many(values) => Box::new(values.iter().copied()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(values) => values.is_empty(),
            Self::Many(values) => values.is_empty(),
        }
    }
}

#[derive(Debug, Default)]
struct PairPart {
    /// Fingerprints with one value, which is the usual case.
    single: HashTable<IndexEntry>,
    groups: Groups,
    /// Values in all groups.
    grouped: usize,
}

/// Fingerprints with several values.
#[derive(Debug, Default)]
struct Groups(HashTable<(u64, Group)>);

impl Groups {
    fn get(&self, fingerprint: u64) -> Option<&Group> {
        self.0.find(fingerprint, |(other, _)| *other == fingerprint).map(|(_, group)| group)
    }

    fn get_mut(&mut self, fingerprint: u64) -> Option<&mut Group> {
        self.0.find_mut(fingerprint, |(other, _)| *other == fingerprint).map(|(_, group)| group)
    }

    /// Adds a group that does not exist.
    fn add(&mut self, fingerprint: u64, group: Group) {
        self.0.insert_unique(fingerprint, (fingerprint, group), |(fingerprint, _)| *fingerprint);
    }

    fn remove(&mut self, fingerprint: u64) {
        let _ = self.0.find_entry(fingerprint, |(other, _)| *other == fingerprint).map(OccupiedEntry::remove);
    }
}

/// A set of pairs: fingerprint → values.
#[derive(Debug, Default)]
pub(crate) struct PairSet {
    /// Empty until there is a pair.
    parts: Vec<PairPart>,
    len: usize,
}

impl PairSet {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a pair; false if it exists.
    pub(super) fn insert(&mut self, fingerprint: u64, value: u64) -> bool {
        if self.parts.is_empty() {
            self.parts = (0..PARTS).map(|_| PairPart::default()).collect();
        }
        let part = &mut self.parts[part_of(fingerprint)];
        let is_new = if let Some(group) = part.groups.get_mut(fingerprint) {
            let is_new = group.insert(value);
            part.grouped += usize::from(is_new);
            is_new
        } else {
            let is_same = |slot: &IndexEntry| slot.fingerprint == fingerprint;
            match part.single.entry(fingerprint, is_same, |slot| slot.fingerprint) {
                Entry::Vacant(entry) => {
                    entry.insert(IndexEntry { fingerprint, value });
                    true
                }
                Entry::Occupied(entry) if entry.get().value == value => false,
                Entry::Occupied(entry) => {
                    let other = entry.remove().0.value;
                    part.groups.add(fingerprint, Group::Few(vec![value.min(other), value.max(other)]));
                    part.grouped += 2;
                    true
                }
            }
        };
        self.len += usize::from(is_new);
        is_new
    }

    /// Removes a pair; false if it does not exist.
    pub(super) fn remove(&mut self, fingerprint: u64, value: u64) -> bool {
        let Some(part) = self.parts.get_mut(part_of(fingerprint)) else { return false };
        let existed = if let Some(group) = part.groups.get_mut(fingerprint) {
            let existed = group.remove(value);
            part.grouped -= usize::from(existed);
            if group.is_empty() {
                part.groups.remove(fingerprint);
            }
            existed
        } else {
            let wanted = IndexEntry { fingerprint, value };
            part.single.find_entry(fingerprint, |slot| *slot == wanted).map(OccupiedEntry::remove).is_ok()
        };
        self.len -= usize::from(existed);
        existed
    }

    pub(super) fn contains(&self, fingerprint: u64, value: u64) -> bool {
        let Some(part) = self.parts.get(part_of(fingerprint)) else { return false };
        match part.groups.get(fingerprint) {
            Some(group) => group.contains(value),
            None => {
                let wanted = IndexEntry { fingerprint, value };
                part.single.find(fingerprint, |slot| *slot == wanted).is_some()
            }
        }
    }

    /// Calls `visit` with the values under a fingerprint.
    pub(super) fn each(&self, fingerprint: u64, visit: &mut dyn FnMut(u64)) {
        let Some(part) = self.parts.get(part_of(fingerprint)) else { return };
        match part.groups.get(fingerprint) {
            Some(group) => group.iter().for_each(visit),
            None => {
                let slot = part.single.find(fingerprint, |slot| slot.fingerprint == fingerprint);
                slot.into_iter().for_each(|slot| visit(slot.value));
            }
        }
    }

    /// All pairs, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.parts.iter().flat_map(|part| {
            let singles = part.single.iter().map(|slot| (slot.fingerprint, slot.value));
            let groups = part.groups.0.iter();
            singles.chain(groups.flat_map(|(print, group)| group.iter().map(|value| (*print, value))))
        })
    }

    /// An estimate: a value in a group takes 8 bytes, plus half as much empty space. Each scrape of the
    /// metrics calls this, so it must not visit each group.
    pub(super) fn bytes(&self) -> usize {
        let part = |part: &PairPart| {
            part.single.allocation_size() + part.groups.0.allocation_size() + part.grouped * 12
        };
        self.parts.iter().map(part).sum()
    }
}

/// The latest operation on a value under a fingerprint: it was added, or it was removed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    pub value: u64,
    pub(crate) added: bool,
}

/// Usually there is one, or one that was replaced by another.
pub(crate) type Ops = SmallVec<[Op; 3]>;

/// The pairs of an index that were added and removed since the index was last written to a run (`runs`).
///
/// Pairs are counted: a pair exists if it was added one time more than removed, here and in all runs
/// together. So a pair that was added before can be removed here without being looked for. A caller removes
/// only what exists, and adds only what does not.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    added: PairSet,
    removed: PairSet,
}

impl Pairs {
    pub(crate) fn insert(&mut self, fingerprint: u64, value: u64) {
        if !self.removed.remove(fingerprint, value) {
            self.added.insert(fingerprint, value);
        }
    }

    pub(crate) fn remove(&mut self, fingerprint: u64, value: u64) {
        if !self.added.remove(fingerprint, value) {
            self.removed.insert(fingerprint, value);
        }
    }

    /// Collects the operations on a fingerprint.
    pub(crate) fn ops(&self, fingerprint: u64, out: &mut Ops) {
        self.removed.each(fingerprint, &mut |value| out.push(Op { value, added: false }));
        self.added.each(fingerprint, &mut |value| out.push(Op { value, added: true }));
    }

    /// Returns the operation on a pair, if there is one.
    pub(crate) fn op(&self, fingerprint: u64, value: u64) -> Option<bool> {
        if self.added.contains(fingerprint, value) {
            return Some(true);
        }
        self.removed.contains(fingerprint, value).then_some(false)
    }

    /// All pairs and whether they were added, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        let removed = self.removed.iter().map(|(fingerprint, value)| (fingerprint, value, false));
        self.added.iter().map(|(fingerprint, value)| (fingerprint, value, true)).chain(removed)
    }

    pub(crate) fn len(&self) -> usize {
        self.added.len() + self.removed.len()
    }

    /// Returns the number of pairs added, less those removed.
    pub(crate) fn net(&self) -> i64 {
        count(self.added.len()) - count(self.removed.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.added.bytes() + self.removed.bytes()
    }
}

fn count(len: usize) -> i64 {
    i64::try_from(len).expect("memory holds fewer")
}

/// Fingerprint of the key → locations. Two keys may share a fingerprint, so readers verify the key.
#[derive(Debug, Default)]
pub(crate) struct PrimaryIndex(pub Pairs);

impl PrimaryIndex {
    pub(crate) fn insert(&mut self, fingerprint: u64, location: Location) {
        self.0.insert(fingerprint, location.0);
    }

    /// Removes an entry that exists.
    pub(crate) fn remove(&mut self, fingerprint: u64, location: Location) {
        assert!(self.0.op(fingerprint, location.0) != Some(false), "no entry is removed twice");
        self.0.remove(fingerprint, location.0);
    }

    /// Moves an entry that exists.
    pub(crate) fn replace(&mut self, fingerprint: u64, old: Location, new: Location) {
        self.remove(fingerprint, old);
        self.insert(fingerprint, new);
    }
}

#[derive(Debug)]
pub(crate) enum Secondary {
    /// Fingerprint of the value → fingerprints of the keys. These are fingerprints and not locations, because
    /// they stay the same when a row is changed or moved.
    Hash(Pairs),
    Ordered(Arc<OrderedIndex>),
}

/// One table's indexes in memory: what has changed since the last run was written, and all of the ordered
/// ones.
#[derive(Debug)]
pub(crate) struct TableIndex {
    pub id: u16,
    /// `None` for a table unknown to this program; its rows are kept.
    pub(crate) def: Option<&'static TableDef>,
    pub(crate) primary: PrimaryIndex,
    /// In the order of the definition.
    pub(crate) secondary: Vec<Secondary>,
}

/// Changes of an index, which no longer change themselves.
#[derive(Debug)]
pub(crate) enum FrozenIndex {
    Pairs(Pairs),
    Positions(PositionLog),
}

impl FrozenIndex {
    pub(crate) fn pairs(&self) -> Option<&Pairs> {
        match self {
            Self::Pairs(pairs) => Some(pairs),
            Self::Positions(_) => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs.len(),
            Self::Positions(positions) => positions.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs.bytes(),
            Self::Positions(positions) => positions.bytes(),
        }
    }
}

impl TableIndex {
    pub(crate) fn new(id: u16, def: Option<&'static TableDef>) -> Self {
        let kinds = def.map_or(&[][..], |def| def.indexes).iter();
        let secondary = kinds.map(|index| match index.kind {
            IndexKind::Hash | IndexKind::Prefix { .. } => Secondary::Hash(Pairs::default()),
            IndexKind::Ordered | IndexKind::Serial => Secondary::Ordered(Arc::default()),
        });
        Self { id, def, primary: PrimaryIndex::default(), secondary: secondary.collect() }
    }

    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Arc<OrderedIndex>> {
        self.secondary.iter().filter_map(|index| match index {
            Secondary::Ordered(index) => Some(index),
            Secondary::Hash(_) => None,
        })
    }

    /// Takes the changes out: of the primary index, then of the secondary ones.
    pub(crate) fn freeze(&mut self) -> Vec<FrozenIndex> {
        let primary = FrozenIndex::Pairs(std::mem::take(&mut self.primary.0));
        let secondary = self.secondary.iter_mut().map(|index| match index {
            Secondary::Hash(pairs) => FrozenIndex::Pairs(std::mem::take(pairs)),
            Secondary::Ordered(index) => FrozenIndex::Positions(index.freeze()),
        });
        std::iter::once(primary).chain(secondary).collect()
    }

    /// Applies an entry. Returns its index if that has many changes which are not sorted yet.
    pub(crate) fn apply(&mut self, op: SecondaryOp) -> Option<&Arc<OrderedIndex>> {
        match (&mut self.secondary[usize::from(op.slot)], op.entry) {
            (Secondary::Hash(index), SecondaryEntry::Value(value)) if op.add => index.insert(value, op.key),
            (Secondary::Hash(index), SecondaryEntry::Value(value)) => index.remove(value, op.key),
            (Secondary::Ordered(index), SecondaryEntry::Position(position)) => {
                let change = PositionOp { key: op.key, added: op.add };
                return index.change(position, change).then_some(&*index);
            }
            _ => unreachable!("entries are made for the index they go to"),
        }
        None
    }

    /// The memory of what has changed since the last run.
    pub(crate) fn changed_bytes(&self) -> usize {
        let secondary = self.secondary.iter().map(|index| match index {
            Secondary::Hash(index) => index.bytes(),
            Secondary::Ordered(index) => index.changed_bytes(),
        });
        self.primary.0.bytes() + secondary.sum::<usize>()
    }

    pub(crate) fn bytes(&self) -> usize {
        let secondary = self.secondary.iter().map(|index| match index {
            Secondary::Hash(index) => index.bytes(),
            Secondary::Ordered(index) => index.bytes(),
        });
        self.primary.0.bytes() + secondary.sum::<usize>()
    }
}

/// An entry of a secondary index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecondaryEntry {
    /// The value's fingerprint.
    Value(u64),
    /// Value, then key or serial.
    Position(Position),
}

/// An entry to add or to remove.
#[derive(Debug)]
pub(crate) struct SecondaryOp {
    pub(crate) slot: u8,
    pub add: bool,
    pub(crate) entry: SecondaryEntry,
    /// The key's fingerprint.
    pub key: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_keep_their_parts() {
        let location = Location::new(0xff_fffe, (1 << 27) - 8, 4096);
        assert_eq!(
            (location.segment(), location.offset(), location.bytes_min()),
            (0xff_fffe, (1 << 27) - 8, 4096)
        );
        assert!(!location.is_long());
        let long = Location::new(1, 64, 1 << 20);
        assert!(long.is_long());
        assert_eq!(long.bytes_min(), 0xffff * 8);
        assert!(Location::new(1, 64, 8) < Location::new(2, 64, 8));
    }

    fn values(set: &PairSet, fingerprint: u64) -> Vec<u64> {
        let mut found = Vec::new();
        set.each(fingerprint, &mut |value| found.push(value));
        found.sort_unstable();
        found
    }

    #[test]
    fn keys_with_one_fingerprint_are_kept_apart() {
        let mut index = PairSet::default();
        assert!(!index.remove(7, 1) && !index.contains(7, 1) && values(&index, 7).is_empty());
        assert!((1..=5).all(|value| index.insert(7, value)) && index.insert(8, 1));
        assert_eq!(values(&index, 7), [1, 2, 3, 4, 5]);
        assert!(index.remove(7, 3) && !index.remove(7, 3));
        assert_eq!(values(&index, 7), [1, 2, 4, 5]);
        assert!(index.contains(8, 1) && !index.contains(8, 2) && index.contains(7, 2));
        assert_eq!((index.len(), index.iter().count()), (5, 5));
    }

    #[test]
    fn groups_grow_and_shrink() {
        let mut index = PairSet::default();
        let count = 2 * FEW_LIMIT as u64;
        for key in (0..count).rev() {
            assert!(index.insert(1, key) && !index.insert(1, key));
        }
        index.insert(2, 5);
        assert_eq!(values(&index, 1), (0..count).collect::<Vec<_>>());
        assert_eq!(values(&index, 2), [5]);
        let grouped = |index: &PairSet| index.parts.iter().map(|part| part.grouped).sum::<usize>();
        assert_eq!(grouped(&index), 2 * FEW_LIMIT);
        assert!(!index.remove(2, 6));
        for key in 1..count {
            assert!(index.remove(1, key) && !index.remove(1, key));
        }
        assert_eq!(values(&index, 1), [0]);
        assert!(index.remove(1, 0) && index.remove(2, 5));
        assert!(values(&index, 1).is_empty() && values(&index, 2).is_empty());
        assert_eq!((grouped(&index), index.len(), index.iter().count()), (0, 0, 0));
        index.insert(1, 9);
        assert_eq!(values(&index, 1), [9]);
    }

    #[test]
    fn changes_cancel_each_other() {
        let mut pairs = Pairs::default();
        pairs.insert(1, 10);
        pairs.remove(1, 10);
        assert_eq!((pairs.len(), pairs.op(1, 10)), (0, None));
        // A pair of an earlier run is removed, and comes back.
        pairs.remove(1, 11);
        assert_eq!((pairs.net(), pairs.op(1, 11)), (-1, Some(false)));
        pairs.insert(1, 11);
        assert_eq!((pairs.len(), pairs.op(1, 11)), (0, None));
    }

    #[test]
    #[should_panic(expected = "removed twice")]
    fn no_entry_is_removed_twice() {
        let mut index = PrimaryIndex::default();
        index.remove(1, Location::new(1, 64, 8));
        index.remove(1, Location::new(1, 64, 8));
    }
}
