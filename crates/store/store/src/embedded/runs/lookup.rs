//! Lookups in everything that an index knows: the latest changes, frozen ones, and runs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Cold, EntrySource, Marks, PartKey};
use crate::Result;
use crate::embedded::EngineState;
use crate::embedded::index::{Location, Op, Ops, Secondary};
use crate::embedded::record::{Rows, StoredRecord, read_indexed};

impl EntrySource<'_> {
    fn ops(self, key: PartKey, fingerprint: u64, out: &mut Ops) -> Result<()> {
        match self {
            Self::Memory(pairs) => {
                pairs.ops(fingerprint, out);
                Ok(())
            }
            Self::Disk(run) => run.ops(key, fingerprint, out),
        }
    }

    fn op(self, key: PartKey, fingerprint: u64, value: u64) -> Result<Option<bool>> {
        match self {
            Self::Memory(pairs) => Ok(pairs.op(fingerprint, value)),
            Self::Disk(run) => run.op(key, fingerprint, value),
        }
    }
}

/// Values under a fingerprint: usually one.
pub(crate) type Values = SmallVec<[u64; 2]>;

/// The values that were added one time more than removed, ascending.
fn remaining(mut ops: Ops) -> Values {
    ops.sort_unstable_by_key(|op| op.value);
    let net = |same: &[Op]| same.iter().map(|op| if op.added { 1 } else { -1 }).sum::<i32>();
    let same = ops.chunk_by(|a, b| a.value == b.value);
    same.filter(|same| net(same) > 0).map(|same| same[0].value).collect()
}

impl Cold {
    /// Returns the operations on a fingerprint, apart from the latest changes.
    pub(crate) fn ops(&self, key: PartKey, fingerprint: u64, marks: Marks) -> Result<Ops> {
        let mut ops = Ops::new();
        for place in self.places(key, marks) {
            place.ops(key, fingerprint, &mut ops)?;
        }
        Ok(ops)
    }

    /// All values under a fingerprint, given the latest changes.
    pub(crate) fn values(&self, key: PartKey, fingerprint: u64, latest: Ops) -> Result<Values> {
        let mut ops = self.ops(key, fingerprint, Marks::ALL)?;
        ops.extend(latest);
        Ok(remaining(ops))
    }

    /// Returns whether a pair exists, given what the latest changes say about it.
    pub(crate) fn contains(
        &self,
        key: PartKey,
        (fingerprint, value): (u64, u64),
        latest: Option<bool>,
    ) -> Result<bool> {
        if let Some(added) = latest {
            return Ok(added);
        }
        for place in self.places(key, Marks::ALL) {
            if let Some(added) = place.op(key, fingerprint, value)? {
                return Ok(added);
            }
        }
        Ok(false)
    }

    /// The record that `accept` accepts among those whose keys have this fingerprint, given the latest changes.
    /// At most one may be acceptable. Later places are searched first, since the latest version of a row is
    /// the one that exists: so most searches end early.
    pub(crate) fn find_record(
        &self,
        rows: Rows<'_>,
        table: u16,
        (fingerprint, latest): (u64, Ops),
        marks: Marks,
        accept: &mut dyn FnMut(&StoredRecord) -> bool,
    ) -> Result<Option<(Location, Arc<StoredRecord>)>> {
        let key = PartKey::primary(table);
        let mut removed = Values::new();
        let mut places = self.places(key, marks);
        let mut ops = latest;
        loop {
            for op in ops.iter().filter(|op| op.added && !removed.contains(&op.value)) {
                let location = Location(op.value);
                let record = read_indexed(rows, table, (fingerprint, location))?;
                if accept(&record) {
                    return Ok(Some((location, record)));
                }
            }
            removed.extend(ops.iter().filter(|op| !op.added).map(|op| op.value));
            let Some(place) = places.next() else { return Ok(None) };
            ops.clear();
            place.ops(key, fingerprint, &mut ops)?;
        }
    }
}

impl EngineState {
    /// Returns the operations on a key's fingerprint in the latest changes.
    pub(crate) fn latest(&self, table: u16, fingerprint: u64) -> Ops {
        let mut ops = Ops::new();
        if let Some(index) = self.tables.get(&table) {
            index.primary.0.ops(fingerprint, &mut ops);
        }
        ops
    }

    /// The fingerprints of the keys under a value of a hash index, given what is known about the value apart from
    /// the latest changes.
    pub(crate) fn keys_of(&self, table: u16, slot: usize, value: u64, mut known: Ops) -> Values {
        if let Some(Secondary::Hash(latest)) = self.tables.get(&table).map(|table| &table.secondary[slot]) {
            latest.ops(value, &mut known);
        }
        remaining(known)
    }

    /// Returns the operation on a version of a row in the latest changes.
    pub(crate) fn latest_op(&self, table: u16, fingerprint: u64, location: Location) -> Option<bool> {
        self.tables.get(&table)?.primary.0.op(fingerprint, location.0)
    }

    /// The number of rows of a table.
    pub(crate) fn rows(&self, table: u16) -> u64 {
        let latest = self.tables.get(&table).map_or(0, |index| index.primary.0.net());
        let rows = latest + self.cold.net(PartKey::primary(table));
        u64::try_from(rows).expect("rows are removed only after they were added")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted() {
        let op = |value, added| Op { value, added };
        let ops =
            [op(5, true), op(7, true), op(5, false), op(9, false), op(9, true), op(9, true), op(4, false)];
        assert_eq!(remaining(ops.into_iter().collect()).as_slice(), [7, 9]);
    }
}
