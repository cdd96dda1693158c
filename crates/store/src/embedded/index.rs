//! The indexes in memory: rows are found by fingerprints of their keys and read from the disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use smallvec::SmallVec;

use crate::{IndexKind, TableDef};

/// Where a record is: 24 bits of segment, 24 bits of offset and 16 bits of length, both in units of eight
/// bytes. A length of 0xffff means "at least this long". This suffices to read most records at once; the
/// exact lengths are in the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(pub u64);

impl Location {
    pub fn new(segment: u32, offset: u64, bytes: usize) -> Self {
        debug_assert!(offset.is_multiple_of(8) && bytes.is_multiple_of(8));
        assert!(segment < 1 << 24 && offset >> 3 < 1 << 24, "a location fits its bits");
        let length = (bytes as u64 >> 3).min(0xffff);
        Self(u64::from(segment) << 40 | (offset >> 3) << 16 | length)
    }
    pub fn segment(self) -> u32 {
        u32::try_from(self.0 >> 40).expect("24 bits")
    }
    pub fn offset(self) -> u64 {
        (self.0 >> 16 & 0xff_ffff) << 3
    }
    /// The record's length in bytes, or a lower bound if [`Location::is_long`].
    pub fn bytes_min(self) -> u64 {
        (self.0 & 0xffff) << 3
    }
    pub fn is_long(self) -> bool {
        self.0 & 0xffff == 0xffff
    }
}

/// The number of parts of a hash table, so that growing one part delays others only briefly, and a checkpoint
/// can copy one part at a time.
pub(crate) const PARTS: usize = 64;

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

/// Fingerprint of the key → locations. Two keys may share a fingerprint, so readers verify the key.
#[derive(Debug)]
pub(crate) struct PrimaryIndex {
    parts: Vec<HashTable<IndexEntry>>,
    len: usize,
}

impl Default for PrimaryIndex {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect(), len: 0 }
    }
}

impl PrimaryIndex {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn find(&self, fingerprint: u64) -> impl Iterator<Item = Location> {
        let slots = self.parts[part_of(fingerprint)].iter_hash(fingerprint);
        slots.filter(move |slot| slot.fingerprint == fingerprint).map(|slot| Location(slot.value))
    }

    pub fn insert(&mut self, fingerprint: u64, location: Location) {
        let slot = IndexEntry { fingerprint, value: location.0 };
        self.parts[part_of(fingerprint)].insert_unique(fingerprint, slot, |slot| slot.fingerprint);
        self.len += 1;
    }

    /// Moves an entry; false if it does not exist.
    pub fn replace(&mut self, fingerprint: u64, old: Location, new: Location) -> bool {
        let wanted = IndexEntry { fingerprint, value: old.0 };
        let slot = self.parts[part_of(fingerprint)].find_mut(fingerprint, |slot| *slot == wanted);
        slot.map(|slot| slot.value = new.0).is_some()
    }

    /// Removes an entry; false if it does not exist.
    pub fn remove(&mut self, fingerprint: u64, location: Location) -> bool {
        let wanted = IndexEntry { fingerprint, value: location.0 };
        let Ok(entry) = self.parts[part_of(fingerprint)].find_entry(fingerprint, |slot| *slot == wanted)
        else {
            return false;
        };
        entry.remove();
        self.len -= 1;
        true
    }

    pub fn contains(&self, fingerprint: u64, location: Location) -> bool {
        self.find(fingerprint).any(|found| found == location)
    }

    pub fn part(&self, part: usize) -> impl Iterator<Item = (u64, Location)> {
        self.parts[part].iter().map(|slot| (slot.fingerprint, Location(slot.value)))
    }

    /// Fingerprints with locations, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, Location)> {
        self.parts.iter().flatten().map(|slot| (slot.fingerprint, Location(slot.value)))
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(HashTable::allocation_size).sum()
    }
}

/// The rows under one value of a hash index, if there are several.
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
struct HashPart {
    /// Values with one row, which is the usual case.
    single: HashTable<IndexEntry>,
    /// Values with several.
    groups: HashMap<u64, Group>,
    /// Rows in all groups.
    grouped: usize,
}

/// Fingerprint of the value → fingerprints of the keys. These are fingerprints and not locations, because
/// they stay the same when a row is changed or moved.
#[derive(Debug)]
pub(crate) struct HashIndex {
    parts: Vec<HashPart>,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashPart::default()).collect() }
    }
}

impl HashIndex {
    /// Adds an entry, unless it exists.
    pub fn insert(&mut self, value: u64, key: u64) {
        let part = &mut self.parts[part_of(value)];
        if let Some(group) = part.groups.get_mut(&value) {
            part.grouped += usize::from(group.insert(key));
            return;
        }
        match part.single.entry(value, |slot| slot.fingerprint == value, |slot| slot.fingerprint) {
            Entry::Vacant(entry) => {
                entry.insert(IndexEntry { fingerprint: value, value: key });
            }
            Entry::Occupied(entry) if entry.get().value == key => {}
            Entry::Occupied(entry) => {
                let other = entry.remove().0.value;
                part.groups.insert(value, Group::Few(vec![key.min(other), key.max(other)]));
                part.grouped += 2;
            }
        }
    }

    /// Removes an entry, if it exists.
    pub fn remove(&mut self, value: u64, key: u64) {
        let part = &mut self.parts[part_of(value)];
        if let Some(group) = part.groups.get_mut(&value) {
            part.grouped -= usize::from(group.remove(key));
            if group.is_empty() {
                part.groups.remove(&value);
            }
            return;
        }
        let wanted = IndexEntry { fingerprint: value, value: key };
        if let Ok(entry) = part.single.find_entry(value, |slot| *slot == wanted) {
            entry.remove();
        }
    }

    pub fn find(&self, value: u64) -> Vec<u64> {
        let part = &self.parts[part_of(value)];
        if let Some(group) = part.groups.get(&value) {
            return group.iter().collect();
        }
        part.single.find(value, |slot| slot.fingerprint == value).map(|slot| slot.value).into_iter().collect()
    }

    pub fn part(&self, part: usize) -> impl Iterator<Item = (u64, u64)> {
        let part = &self.parts[part];
        let singles = part.single.iter().map(|slot| (slot.fingerprint, slot.value));
        singles.chain(part.groups.iter().flat_map(|(value, group)| group.iter().map(|key| (*value, key))))
    }

    /// An estimate: a row in a group takes 8 bytes, plus half as much empty space. Each scrape of the metrics
    /// calls this, so it must not visit each group.
    fn bytes(&self) -> usize {
        let part =
            |part: &HashPart| part.single.allocation_size() + part.groups.capacity() * 48 + part.grouped * 12;
        self.parts.iter().map(part).sum()
    }
}

/// The position of an entry in an ordered index: value, then key or serial. Most are short and stored in the
/// tree's nodes, so that a search need not follow a pointer for each comparison.
pub(crate) type Position = SmallVec<[u8; 40]>;

/// Position → fingerprint of the key.
pub(crate) type OrderedIndex = BTreeMap<Position, u64>;

/// A secondary index.
#[derive(Debug)]
pub(crate) enum Secondary {
    Hash(HashIndex),
    Ordered(OrderedIndex),
}

/// One table's indexes.
#[derive(Debug)]
pub(crate) struct TableIndex {
    /// `None` for a table unknown to this program; its rows are kept.
    pub def: Option<&'static TableDef>,
    pub primary: PrimaryIndex,
    /// In the order of the definition.
    pub secondary: Vec<Secondary>,
}

impl TableIndex {
    pub fn new(def: Option<&'static TableDef>) -> Self {
        let kinds = def.map_or(&[][..], |def| def.indexes).iter();
        let secondary = kinds.map(|index| match index.kind {
            IndexKind::Hash | IndexKind::Prefix { .. } => Secondary::Hash(HashIndex::default()),
            IndexKind::Ordered | IndexKind::Serial => Secondary::Ordered(OrderedIndex::new()),
        });
        Self { def, primary: PrimaryIndex::default(), secondary: secondary.collect() }
    }

    /// The locations of rows whose keys have this fingerprint, with the fingerprint.
    pub fn candidates(&self, key: u64) -> impl Iterator<Item = (u64, Location)> {
        self.primary.find(key).map(move |location| (key, location))
    }

    pub fn apply(&mut self, op: SecondaryOp) {
        match (&mut self.secondary[usize::from(op.slot)], op.entry) {
            (Secondary::Hash(index), SecondaryEntry::Value(value)) if op.add => index.insert(value, op.key),
            (Secondary::Hash(index), SecondaryEntry::Value(value)) => index.remove(value, op.key),
            (Secondary::Ordered(index), SecondaryEntry::Position(position)) if op.add => {
                index.insert(position, op.key);
            }
            (Secondary::Ordered(index), SecondaryEntry::Position(position)) => {
                index.remove(&position);
            }
            _ => unreachable!("entries are made for the index they go to"),
        }
    }

    pub fn bytes(&self) -> usize {
        let secondary = self.secondary.iter().map(|index| match index {
            Secondary::Hash(index) => index.bytes(),
            // Nodes are two thirds full. Long positions are allocated separately.
            Secondary::Ordered(index) => index.keys().next().map_or(0, |position| {
                let inline = (size_of::<Position>() + size_of::<u64>()) * 3 / 2;
                let outside = if position.spilled() { position.len() + 16 } else { 0 };
                (inline + outside) * index.len()
            }),
        });
        self.primary.bytes() + secondary.sum::<usize>()
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
    pub slot: u8,
    pub add: bool,
    pub entry: SecondaryEntry,
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

    #[test]
    fn keys_with_one_fingerprint_are_kept_apart() {
        let mut index = PrimaryIndex::default();
        let places: Vec<Location> = (1..=5).map(|n| Location::new(n, 64, 64)).collect();
        places.iter().for_each(|&place| index.insert(7, place));
        index.insert(8, places[0]);
        let found = |index: &PrimaryIndex| {
            let mut found: Vec<Location> = index.find(7).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&index), places);
        assert!(index.remove(7, places[2]) && !index.remove(7, places[2]));
        let moved = Location::new(9, 64, 64);
        assert!(index.replace(7, places[4], moved) && !index.replace(7, places[4], moved));
        assert_eq!(found(&index), [places[0], places[1], places[3], moved]);
        assert!(index.contains(8, places[0]) && !index.contains(8, moved));
        assert_eq!(index.len(), 5);
        let parts: usize = (0..PARTS).map(|part| index.part(part).count()).sum();
        assert_eq!(parts, 5);
    }

    #[test]
    fn groups_grow_and_shrink() {
        let mut index = HashIndex::default();
        let count = 2 * FEW_LIMIT as u64;
        for key in (0..count).rev() {
            index.insert(1, key);
            index.insert(1, key);
        }
        index.insert(2, 5);
        assert_eq!(index.find(1), (0..count).collect::<Vec<_>>());
        assert_eq!(index.find(2), [5]);
        let grouped = |index: &HashIndex| index.parts.iter().map(|part| part.grouped).sum::<usize>();
        assert_eq!(grouped(&index), 2 * FEW_LIMIT);
        index.remove(2, 6);
        for key in 1..count {
            index.remove(1, key);
            index.remove(1, key);
        }
        assert_eq!(index.find(1), [0]);
        index.remove(1, 0);
        index.remove(2, 5);
        assert!(index.find(1).is_empty() && index.find(2).is_empty());
        assert_eq!(grouped(&index), 0);
        assert_eq!((0..PARTS).map(|part| index.part(part).count()).sum::<usize>(), 0);
        index.insert(1, 9);
        assert_eq!(index.find(1), [9]);
    }
}
