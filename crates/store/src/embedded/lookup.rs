//! Reads. The places of all rows of a read are found under one lock, so that they belong to one state between
//! two commits. The rows themselves are read after that, without a lock: records never change.

use std::ops::Bound;
use std::sync::Arc;

use super::index::{Location, Position, Secondary};
use super::{Core, EngineState, Segments, StoredRecord, fingerprint, format, read_indexed};
use crate::memory::is_empty_range;
use crate::{IndexEntries, IndexKind, RawRecord, RawRow, Read, ReadAnswer, Result, StoreError, TableDef};

/// A place where a row may be: the fingerprint of its key, and the location.
type Candidate = (u64, Location);

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

/// Where the rows of a read may be.
enum Located {
    /// The number of the key, and the place.
    Rows(Vec<(usize, Location)>),
    /// For each value.
    Groups(Vec<Vec<Candidate>>),
    /// For each entry of the range, its position.
    Range(Vec<(Position, Vec<Candidate>)>),
}

impl Core {
    /// The rows under these keys.
    pub fn rows(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        match self.read_one(self.prepare_rows(table, keys))? {
            ReadAnswer::Rows(rows) => Ok(rows),
            _ => unreachable!("answers follow the reads"),
        }
    }

    /// The rows under each value of a hash or prefix index.
    pub fn groups(
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
    pub fn range(&self, range: RangeRead<'_>) -> Result<Vec<RawRecord>> {
        range.table.assert_ordered(range.index);
        match self.read_one(Prepared::Range(range))? {
            ReadAnswer::Range(rows) => Ok(rows),
            _ => unreachable!("answers follow the reads"),
        }
    }

    /// Several reads of one state.
    pub fn read_all(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        let prepare = |read| match read {
            &Read::Rows { table, ref keys } => self.prepare_rows(table, keys),
            &Read::Groups { table, index, ref values } => self.prepare_groups(table, index, values),
            &Read::Range { table, index, ref from, ref to, limit, descending } => {
                table.assert_ordered(index);
                let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                Prepared::Range(RangeRead { table, index, from, to, limit, descending })
            }
        };
        self.read_prepared(&reads.iter().map(prepare).collect::<Vec<_>>())
    }

    fn read_one(&self, read: Prepared<'_>) -> Result<ReadAnswer> {
        Ok(self.read_prepared(&[read])?.pop().expect("one answer a read"))
    }

    fn read_prepared(&self, reads: &[Prepared<'_>]) -> Result<Vec<ReadAnswer>> {
        let (located, segments) = {
            let state = self.read();
            let located: Vec<Located> = reads.iter().map(|read| state.locate(read)).collect::<Result<_>>()?;
            (located, Arc::clone(&state.segments))
        };
        reads.iter().zip(located).map(|(read, located)| self.fetch(&segments, read, located)).collect()
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
    fn fetch(&self, segments: &Segments, read: &Prepared<'_>, located: Located) -> Result<ReadAnswer> {
        match (read, located) {
            (Prepared::Rows { table, keys, fingerprints }, Located::Rows(candidates)) => {
                let mut rows = vec![None; keys.len()];
                for (n, location) in candidates {
                    let candidate = (fingerprints[n], location);
                    let record = read_indexed(&self.identity, segments, table.id, candidate)?;
                    if record.key() == keys[n] {
                        rows[n] = Some(record.into_row(location));
                    }
                }
                Ok(ReadAnswer::Rows(rows))
            }
            (Prepared::Groups { table, index, values, .. }, Located::Groups(groups)) => {
                let fetch = |(value, candidates): (&Vec<u8>, _)| {
                    self.fetch_group(segments, (table, *index), value, candidates)
                };
                values.iter().zip(groups).map(fetch).collect::<Result<_>>().map(ReadAnswer::Groups)
            }
            (Prepared::Range(range), Located::Range(hits)) => {
                let fetch = |hit: (Position, Vec<Candidate>)| self.fetch_hit(segments, range, &hit.0, &hit.1);
                hits.into_iter().map(fetch).collect::<Result<_>>().map(ReadAnswer::Range)
            }
            _ => unreachable!("places follow the reads"),
        }
    }

    fn fetch_group(
        &self,
        segments: &Segments,
        (table, index): (&'static TableDef, u8),
        value: &[u8],
        mut candidates: Vec<Candidate>,
    ) -> Result<Vec<RawRecord>> {
        let (_, kind) = Self::slot(table, index);
        let mut entries = IndexEntries::new();
        candidates.sort_unstable_by_key(|(_, location)| *location);
        candidates.dedup();
        let mut group = Vec::with_capacity(candidates.len());
        for (location, record) in self.records(segments, table, &candidates)? {
            // Fingerprints may collide, so check the record.
            let holds = match kind {
                IndexKind::Prefix { key_bytes } => {
                    value.len() == key_bytes && record.key().starts_with(value)
                }
                _ => {
                    entries.clear();
                    (table.index_entries_raw)(record.key(), record.row(), &mut entries)
                        .map_err(|source| StoreError::Decode { table: table.name, source })?;
                    entries.contains(index, value)
                }
            };
            if holds {
                group.push(record.into_record(location));
            }
        }
        group.sort_by_key(|record| record.serial);
        Ok(group)
    }

    fn fetch_hit(
        &self,
        segments: &Segments,
        range: &RangeRead<'_>,
        wanted: &Position,
        candidates: &[Candidate],
    ) -> Result<RawRecord> {
        let (table, index) = (range.table, range.index);
        let (_, kind) = Self::slot(table, index);
        let mut hit = None;
        for (location, record) in self.records(segments, table, candidates)? {
            // Keys may share a fingerprint; the end of the position distinguishes them.
            let is_wanted = match kind {
                IndexKind::Serial => wanted.ends_with(&record.serial.to_be_bytes()),
                _ => wanted.ends_with(record.key()),
            };
            if is_wanted {
                hit = Some(record.into_record(location));
            }
        }
        hit.ok_or_else(|| {
            let what = format!(
                "index {} of {} has an entry without a row; remove this file to rebuild the indexes",
                table.index_def(index).name,
                table.name
            );
            StoreError::Corrupt { file: self.dir.join(format::CHECKPOINT_NAME), offset: 0, what }
        })
    }

    fn records(
        &self,
        segments: &Segments,
        table: &TableDef,
        candidates: &[Candidate],
    ) -> Result<Vec<(Location, StoredRecord)>> {
        let read = |candidate: &Candidate| {
            Ok((candidate.1, read_indexed(&self.identity, segments, table.id, *candidate)?))
        };
        candidates.iter().map(read).collect()
    }
}

impl EngineState {
    fn locate(&self, read: &Prepared<'_>) -> Result<Located> {
        match read {
            Prepared::Rows { table, fingerprints, .. } => {
                let primary = &self.table(table)?.primary;
                let mut found = Vec::with_capacity(fingerprints.len());
                for (n, &fingerprint) in fingerprints.iter().enumerate() {
                    found.extend(primary.find(fingerprint).map(|location| (n, location)));
                }
                Ok(Located::Rows(found))
            }
            Prepared::Groups { table, index, fingerprints, .. } => {
                let indexes = self.table(table)?;
                let (slot, _) = Core::slot(table, *index);
                let Secondary::Hash(hash) = &indexes.secondary[slot] else {
                    unreachable!("slots follow the definition")
                };
                let candidates =
                    |&value| hash.find(value).into_iter().flat_map(|key| indexes.candidates(key)).collect();
                Ok(Located::Groups(fingerprints.iter().map(candidates).collect()))
            }
            Prepared::Range(range) => {
                let indexes = self.table(range.table)?;
                let (slot, _) = Core::slot(range.table, range.index);
                let Secondary::Ordered(ordered) = &indexes.secondary[slot] else {
                    unreachable!("slots follow the definition")
                };
                if is_empty_range(range.from, range.to) {
                    return Ok(Located::Range(Vec::new()));
                }
                let entries = ordered.range::<[u8], _>((range.from, range.to));
                let hit = |(position, &key): (&Position, &u64)| {
                    (position.clone(), indexes.candidates(key).collect())
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
