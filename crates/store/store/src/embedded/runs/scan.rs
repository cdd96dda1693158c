//! Reading all rows of a table, without the locations of all of them in memory.
//!
//! Entries are in the order of fingerprints, but rows are read in the order of the journal, to benefit from
//! read-ahead. So the entries are read several times, and each pass selects the next few million locations.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Cold, EntrySource, Marks, PairReader, PartKey};
use crate::embedded::index::Location;
use crate::embedded::record::read_record_of;
use crate::embedded::{Core, Identity, Segments, fingerprint};
use crate::{FrozenRows, RawRecord, Result, StoreError, TableDef};

/// Maximum number of equal locations: a row is moved, lost and found again only a few times.
const EQUAL_MAX: usize = 8;

/// A table's latest changes at the time of a snapshot.
struct FrozenTable {
    id: u16,
    latest: Vec<(u64, u64, bool)>,
}

/// A snapshot of the locations of some tables' rows. It shares frozen changes and runs with the store.
pub(crate) struct Frozen {
    dir: PathBuf,
    identity: Identity,
    tables: Vec<FrozenTable>,
    pub(crate) segments: Arc<Segments>,
    cold: Arc<Cold>,
    at_once: usize,
}

/// Collects the smallest numbers of many.
struct Smallest {
    /// Only numbers in this range are wanted; the end shrinks.
    from: u64,
    to: Option<u64>,
    count: usize,
    added: Vec<u64>,
    removed: Vec<u64>,
}

impl Smallest {
    fn put(&mut self, value: u64, added: bool) {
        if value < self.from || self.to.is_some_and(|to| value >= to) {
            return;
        }
        let values = if added { &mut self.added } else { &mut self.removed };
        values.push(value);
        if values.len() >= 2 * self.count {
            let (_, &mut to, _) = values.select_nth_unstable(self.count);
            self.to = Some(to);
            self.added.retain(|&value| value < to);
            self.removed.retain(|&value| value < to);
        }
    }

    /// The numbers that were added and not removed, ascending, and where the next ones start.
    fn finish(mut self) -> (Vec<Location>, Option<u64>) {
        self.added.sort_unstable();
        self.removed.sort_unstable();
        let mut removed = self.removed.into_iter().peekable();
        self.added.retain(|&value| {
            while removed.peek().is_some_and(|&other| other < value) {
                removed.next();
            }
            removed.next_if_eq(&value).is_none()
        });
        (self.added.into_iter().map(Location).collect(), self.to)
    }
}

impl Core {
    pub(crate) fn freeze(&self, tables: &[&'static TableDef]) -> Result<Frozen> {
        let state = self.read();
        let copy = |table: &&'static TableDef| {
            let latest = state.table(table)?.primary.0.iter().collect();
            Ok(FrozenTable { id: table.id, latest })
        };
        let tables = tables.iter().map(copy).collect::<Result<_>>()?;
        Ok(Frozen {
            dir: self.dir.clone(),
            identity: self.identity,
            tables,
            segments: Arc::clone(&state.segments),
            cold: Arc::clone(&state.cold),
            at_once: self.options.scan_rows_at_once.max(2 * EQUAL_MAX),
        })
    }
}

impl Frozen {
    /// Passes the entries of a table to `visit`: fingerprint, location, and whether it was added.
    fn entries(&self, table: &FrozenTable, visit: &mut dyn FnMut(u64, u64, bool)) -> Result<()> {
        for &(fingerprint, value, added) in &table.latest {
            visit(fingerprint, value, added);
        }
        let key = PartKey::primary(table.id);
        for place in self.cold.places(key, Marks::ALL) {
            match place {
                EntrySource::Memory(pairs) => {
                    pairs.iter().for_each(|(fingerprint, value, added)| visit(fingerprint, value, added));
                }
                EntrySource::Disk(run) => {
                    let mut reader = PairReader::new(run, key);
                    while let Some(pair) = reader.next()? {
                        visit(pair.fingerprint, pair.value, pair.added);
                    }
                }
            }
        }
        Ok(())
    }

    fn table(&self, table: &TableDef) -> Result<&FrozenTable> {
        let frozen = self.tables.iter().find(|frozen| frozen.id == table.id);
        frozen.ok_or_else(|| StoreError::Backend(format!("table {} was not frozen", table.name)))
    }

    /// The next locations of a table's rows from `from` on, ascending, and where those after them start. Also
    /// passes all entries to `visit`.
    fn locations_from(
        &self,
        table: &FrozenTable,
        from: u64,
        visit: &mut dyn FnMut(u64, bool),
    ) -> Result<(Vec<Location>, Option<u64>)> {
        let (added, removed) = (Vec::new(), Vec::new());
        let mut smallest = Smallest { from, to: None, count: self.at_once, added, removed };
        self.entries(table, &mut |fingerprint, value, added| {
            smallest.put(value, added);
            visit(fingerprint, added);
        })?;
        Ok(smallest.finish())
    }

    /// Passes the locations of all rows of a table to `visit`, in the order of the journal, until it breaks.
    /// Returns the sum of their keys' fingerprints.
    pub(crate) fn locations(
        &self,
        table: &TableDef,
        visit: &mut dyn FnMut(Location) -> Result<ControlFlow<()>>,
    ) -> Result<u64> {
        let table = self.table(table)?;
        let mut fingerprints = 0_u64;
        let mut sum = |fingerprint: u64, added: bool| {
            fingerprints = match added {
                true => fingerprints.wrapping_add(fingerprint),
                false => fingerprints.wrapping_sub(fingerprint),
            };
        };
        let mut next = Some(0);
        while let Some(from) = next {
            let (locations, after) = if from == 0 {
                self.locations_from(table, from, &mut sum)?
            } else {
                self.locations_from(table, from, &mut |_, _| ())?
            };
            for location in locations {
                if visit(location)?.is_break() {
                    return Ok(fingerprints);
                }
            }
            next = after;
        }
        Ok(fingerprints)
    }
}

impl FrozenRows for Frozen {
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut found = 0_u64;
        let mut is_stopped = false;
        let expected = self.locations(table, &mut |location| {
            let record = read_record_of(&self.segments, table, location)?;
            found = found.wrapping_add(fingerprint(&self.identity, record.key()));
            let flow = visit(record.to_record(table, location)?);
            is_stopped = flow.is_break();
            Ok(flow)
        })?;
        // A record that differs from the index is noticed by the sum of fingerprints.
        if !is_stopped && found != expected {
            let what = format!(
                "the journal has other rows of table {} than the index names: something was written to the wrong place; \
                 restore a backup",
                table.name
            );
            return Err(StoreError::Corrupt { file: self.dir.clone(), offset: 0, what });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_find_every_number_once() {
        let added: Vec<u64> = (0..1000).map(|n| n * 7919 % 1009 + 1).collect();
        let removed: Vec<u64> = added.iter().copied().filter(|n| n % 3 == 0).collect();
        let mut expected: Vec<u64> = added.iter().copied().filter(|n| n % 3 > 0).collect();
        expected.sort_unstable();
        for count in [16, 17, 100, 2000] {
            let (mut found, mut next, mut passes) = (Vec::new(), Some(0), 0);
            while let Some(from) = next {
                let mut smallest = Smallest { from, to: None, count, added: vec![], removed: vec![] };
                removed.iter().for_each(|&value| smallest.put(value, false));
                added.iter().for_each(|&value| smallest.put(value, true));
                let (locations, after) = smallest.finish();
                found.extend(locations.iter().map(|location| location.0));
                next = after;
                passes += 1;
            }
            assert_eq!(found, expected, "{count} at once");
            assert!(passes <= 1000 / count * 2 + 1, "{passes} passes of {count}");
        }
    }
}
