//! Reads. What memory knows about all rows of a read is collected under one lock, so that it belongs to one
//! state between two commits. Runs and rows are read after that, without a lock: they never change.

use std::ops::Bound;
use std::sync::Arc;

use super::index::{Location, Ops, Secondary};
use super::ordered::{OrderedIndex, Position};
use super::record::{StoredRecord, read_indexed};
use super::runs::{Cold, Marks, PartKey};
use super::{Core, EngineState, View, fingerprint, format};
use crate::memory::is_empty_range;
use crate::{IndexEntries, IndexKind, RawRecord, RawRow, Read, ReadAnswer, Result, StoreError, TableDef};

/// The fingerprint of a key, and what the latest changes know about it.
type Candidate = (u64, Ops);

/// A read whose fingerprints are computed, so that the lock is held only to look at the indexes.
enum Prepared<'a> {
    Rows { table: &'static TableDef, keys: &'a [Vec<u8>], fingerprints: Vec<u64> },
    Groups { table: &'static TableDef, index: u8, values: &'a [Vec<u8>], fingerprints: Vec<u64> },
    Range(RangeRead<'a>),
}

/// As [`crate::Backend::range`].
pub(crate) struct RangeRead<'a> {
    pub table: &'static TableDef,
    pub index: u8,
    pub from: Bound<&'a [u8]>,
    pub to: Bound<&'a [u8]>,
    pub limit: usize,
    pub descending: bool,
}

/// The rows of a read, as far as memory locates them.
enum Located {
    /// For each key.
    Rows(Vec<Ops>),
    /// For each value, the keys.
    Groups(Vec<Vec<Candidate>>),
    /// For each entry of the range, its position and key.
    Range(Vec<(Position, Candidate)>),
}

impl Core {
    /// The rows under these keys.
    pub(crate) fn rows(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        match self.read_one(self.prepare_rows(table, keys))? {
            ReadAnswer::Rows(rows) => Ok(rows),
            _ => unreachable!("answers follow the reads"),
        }
    }

    /// The rows under each value of a hash or prefix index.
    pub(crate) fn groups(
        &self,
        table: &'static TableDef,
        index: u8,
        values: &[Vec<u8>],
    ) -> Result<Vec<Vec<RawRecord>>> {
        match self.read_one(self.prepare_groups(table, index, values))? {
            ReadAnswer::Groups(groups) => Ok(groups),
            _ => unreachable!("answers follow the reads"),
        }
    }

    /// The rows of a range.
    pub(crate) fn range(&self, range: RangeRead<'_>) -> Result<Vec<RawRecord>> {
        range.table.assert_ordered(range.index);
        match self.read_one(Prepared::Range(range))? {
            ReadAnswer::Range(rows) => Ok(rows),
            _ => unreachable!("answers follow the reads"),
        }
    }

    /// Several reads of one state.
    pub(crate) fn read_all(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        self.read_prepared(&reads.iter().map(|read| self.prepare_read(read)).collect::<Vec<_>>())
    }

    fn prepare_read<'a>(&self, read: &'a Read) -> Prepared<'a> {
        match read {
            Read::Rows { table, keys } => self.prepare_rows(table, keys),
            Read::Groups { table, index, values } => self.prepare_groups(table, *index, values),
            Read::Range { table, index, from, to, limit, descending } => {
                table.assert_ordered(*index);
                let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                let (index, limit, descending) = (*index, *limit, *descending);
                Prepared::Range(RangeRead { table, index, from, to, limit, descending })
            }
        }
    }

    /// Sorts in what an ordered index lacks, before the state is locked, so that commits do not wait for it.
    fn settle_for(&self, read: &Prepared<'_>) -> Result<()> {
        let Prepared::Range(range) = read else { return Ok(()) };
        let index = Arc::clone(self.read().ordered(range.table, range.index)?);
        index.settle_all();
        Ok(())
    }

    fn read_one(&self, read: Prepared<'_>) -> Result<ReadAnswer> {
        Ok(self.read_prepared(&[read])?.pop().expect("one answer a read"))
    }

    fn read_prepared(&self, reads: &[Prepared<'_>]) -> Result<Vec<ReadAnswer>> {
        let (located, view) = loop {
            // What runs know about the values of hash indexes never changes. So it is read before the lock is
            // taken for the rest; again if maintenance has replaced runs meanwhile.
            let view = self.read().view();
            let known = reads.iter().map(|read| known_values(&view.cold, read));
            let known: Vec<Vec<Ops>> = known.collect::<Result<_>>()?;
            reads.iter().try_for_each(|read| self.settle_for(read))?;
            let state = self.read();
            if Arc::ptr_eq(&view.cold, &state.cold) {
                let located = reads.iter().zip(known).map(|(read, known)| state.locate(read, known));
                break (located.collect::<Result<Vec<_>>>()?, state.view());
            }
        };
        reads.iter().zip(located).map(|(read, located)| self.fetch(&view, read, located)).collect()
    }

    fn prepare_rows<'a>(&self, table: &'static TableDef, keys: &'a [Vec<u8>]) -> Prepared<'a> {
        Prepared::Rows { table, keys, fingerprints: self.fingerprints(keys) }
    }

    fn prepare_groups<'a>(&self, table: &'static TableDef, index: u8, values: &'a [Vec<u8>]) -> Prepared<'a> {
        let (_, kind) = Self::slot(table, index);
        assert!(
            matches!(kind, IndexKind::Hash | IndexKind::Prefix { .. }),
            "index {index} of {} is for ranges",
            table.name
        );
        Prepared::Groups { table, index, values, fingerprints: self.fingerprints(values) }
    }

    fn fingerprints(&self, values: &[Vec<u8>]) -> Vec<u64> {
        values.iter().map(|value| fingerprint(&self.identity, value)).collect()
    }

    /// Reads the rows from the disk.
    fn fetch(&self, view: &View, read: &Prepared<'_>, located: Located) -> Result<ReadAnswer> {
        match (read, located) {
            (Prepared::Rows { table, keys, fingerprints }, Located::Rows(latest)) => {
                let marks = self.known_marks.of(&view.cold, PartKey::primary(table.id), fingerprints);
                let candidates = fingerprints.iter().copied().zip(latest).zip(marks);
                let fetch = |(key, (candidate, marks)): (&Vec<u8>, (Candidate, Marks))| {
                    let mut is_wanted = |record: &StoredRecord| record.key() == key;
                    let found = self.find(view, table, candidate, marks, &mut is_wanted)?;
                    found.map(|(location, record)| record.to_row(table, location)).transpose()
                };
                let rows = keys.iter().zip(candidates).map(fetch);
                rows.collect::<Result<_>>().map(ReadAnswer::Rows)
            }
            (Prepared::Groups { table, index, values, .. }, Located::Groups(groups)) => {
                let fetch = |(value, candidates): (&Vec<u8>, _)| {
                    self.fetch_group(view, (table, *index), value, candidates)
                };
                values.iter().zip(groups).map(fetch).collect::<Result<_>>().map(ReadAnswer::Groups)
            }
            (Prepared::Range(range), Located::Range(hits)) => {
                let fetch = |(wanted, candidate)| self.fetch_hit(view, range, &wanted, candidate);
                hits.into_iter().map(fetch).collect::<Result<_>>().map(ReadAnswer::Range)
            }
            _ => unreachable!("places follow the reads"),
        }
    }

    fn find(
        &self,
        view: &View,
        table: &TableDef,
        candidate: Candidate,
        marks: Marks,
        is_wanted: &mut dyn FnMut(&StoredRecord) -> bool,
    ) -> Result<Option<(Location, Arc<StoredRecord>)>> {
        view.cold.find_record(self.stored_rows(&view.segments), table.id, candidate, marks, is_wanted)
    }

    fn fetch_group(
        &self,
        view: &View,
        (table, index): (&'static TableDef, u8),
        value: &[u8],
        candidates: Vec<Candidate>,
    ) -> Result<Vec<RawRecord>> {
        let (_, kind) = Self::slot(table, index);
        let mut entries = IndexEntries::new();
        let part = PartKey::primary(table.id);
        let mut places = Vec::with_capacity(candidates.len());
        for (key, latest) in candidates {
            let locations = view.cold.values(part, key, latest)?;
            places.extend(locations.into_iter().map(|location| (Location(location), key)));
        }
        // In disk order, to benefit from read-ahead.
        places.sort_unstable();
        places.dedup();
        let mut group = Vec::with_capacity(places.len());
        for (location, key) in places {
            let record = read_indexed(self.stored_rows(&view.segments), table.id, (key, location))?;
            // Fingerprints may collide, so check the record.
            let holds = match kind {
                IndexKind::Prefix { key_bytes } => {
                    value.len() == key_bytes && record.key().starts_with(value)
                }
                _ => {
                    entries.clear();
                    (table.index_entries_raw)(record.key(), &record.row(table)?, &mut entries)
                        .map_err(|source| StoreError::Decode { table: table.name, source })?;
                    entries.contains(index, value)
                }
            };
            if holds {
                group.push(record.to_record(table, location)?);
            }
        }
        group.sort_by_key(|record| record.serial);
        Ok(group)
    }

    fn fetch_hit(
        &self,
        view: &View,
        range: &RangeRead<'_>,
        wanted: &Position,
        candidate: Candidate,
    ) -> Result<RawRecord> {
        let (table, index) = (range.table, range.index);
        let (_, kind) = Self::slot(table, index);
        // Keys may share a fingerprint; the end of the position distinguishes them.
        let mut is_wanted = |record: &StoredRecord| match kind {
            IndexKind::Serial => wanted.ends_with(&record.serial.to_be_bytes()),
            _ => wanted.ends_with(record.key()),
        };
        let found = self.find(view, table, candidate, Marks::ALL, &mut is_wanted)?;
        let hit = found.map(|(location, record)| record.to_record(table, location)).transpose()?;
        hit.ok_or_else(|| {
            let what = format!(
                "index {} of {} has an entry without a row; remove this file to rebuild the indexes",
                table.index_def(index).name,
                table.name
            );
            StoreError::Corrupt { file: self.dir.join(format::CHECKPOINT_NAME), offset: 0, what }
        })
    }
}

/// Returns the operations that runs have on the values of a read of a hash index.
fn known_values(cold: &Cold, read: &Prepared<'_>) -> Result<Vec<Ops>> {
    let Prepared::Groups { table, index, fingerprints, .. } = read else { return Ok(Vec::new()) };
    let part = PartKey::secondary(table.id, Core::slot(table, *index).0);
    let marks = cold.marks(part, fingerprints).into_iter();
    fingerprints.iter().zip(marks).map(|(&value, marks)| cold.ops(part, value, marks)).collect()
}

impl EngineState {
    fn ordered(&self, table: &'static TableDef, index: u8) -> Result<&Arc<OrderedIndex>> {
        let (slot, _) = Core::slot(table, index);
        match &self.table(table)?.secondary[slot] {
            Secondary::Ordered(ordered) => Ok(ordered),
            Secondary::Hash(_) => unreachable!("slots follow the definition"),
        }
    }

    /// Collects what the latest changes know, given what is known about values of hash indexes apart from them.
    fn locate(&self, read: &Prepared<'_>, known: Vec<Ops>) -> Result<Located> {
        match read {
            Prepared::Rows { table, fingerprints, .. } => {
                let id = self.table(table)?.id;
                let latest = fingerprints.iter().map(|&fingerprint| self.latest(id, fingerprint));
                Ok(Located::Rows(latest.collect()))
            }
            Prepared::Groups { table, index, fingerprints, .. } => {
                let id = self.table(table)?.id;
                let (slot, _) = Core::slot(table, *index);
                let candidates = |(&value, known)| {
                    let keys = self.keys_of(id, slot, value, known).into_iter();
                    keys.map(|key| (key, self.latest(id, key))).collect()
                };
                Ok(Located::Groups(fingerprints.iter().zip(known).map(candidates).collect()))
            }
            Prepared::Range(range) => {
                let id = self.table(range.table)?.id;
                let ordered = self.ordered(range.table, range.index)?;
                if is_empty_range(range.from, range.to) {
                    return Ok(Located::Range(Vec::new()));
                }
                let all = ordered.all();
                let entries = all.range::<[u8], _>((range.from, range.to));
                let hit = |(position, &key): (&Position, &u64)| {
                    (Position::from_slice(position), (key, self.latest(id, key)))
                };
                Ok(Located::Range(if range.descending {
                    entries.rev().take(range.limit).map(hit).collect()
                } else {
                    entries.take(range.limit).map(hit).collect()
                }))
            }
        }
    }
}
