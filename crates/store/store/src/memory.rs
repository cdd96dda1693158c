//! A backend that keeps everything in memory: for tests and models. Nothing is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::{
    Backend, ChangeSet, CommitOutcome, FrozenRows, IndexEntries, IndexKind, RawRecord, RawRow, Read,
    ReadAnswer, Result, RowVersion, StoreError, StoreStats, TableDef,
};

type Position = Vec<u8>;

#[derive(Debug, Clone, Default)]
struct TableState {
    rows: BTreeMap<Vec<u8>, RawRow>,
    /// For each ordered or serial index: position → key.
    ordered: BTreeMap<u8, BTreeMap<Position, Vec<u8>>>,
    /// For each hash or prefix index: value → keys.
    hashed: BTreeMap<u8, BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>>,
}

#[derive(Debug, Clone, Default)]
struct MemoryState {
    tables: BTreeMap<u16, TableState>,
    serial_next: u64,
    commits_total: u64,
    changes_total: u64,
}

/// Tables in memory.
#[derive(Debug, Default)]
pub struct MemoryBackend {
    state: RwLock<MemoryState>,
}

impl MemoryBackend {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> RwLockReadGuard<'_, MemoryState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, table: &TableDef, read: impl Fn(&TableState) -> T) -> T {
        self.state().read(table, read)
    }
}

impl MemoryState {
    fn read<T>(&self, table: &TableDef, read: impl Fn(&TableState) -> T) -> T {
        self.tables.get(&table.id).map_or_else(|| read(&TableState::default()), &read)
    }
}

impl TableState {
    /// Replaces the row under a key (either may be absent) and moves its index entries.
    fn set(&mut self, table: &'static TableDef, key: &[u8], new: Option<RawRow>) -> Result<()> {
        let old = match &new {
            Some(row) => self.rows.insert(key.to_vec(), row.clone()),
            None => self.rows.remove(key),
        };
        if let Some(old) = old {
            self.index(table, key, &old, false)?;
        }
        if let Some(new) = new {
            self.index(table, key, &new, true)?;
        }
        Ok(())
    }

    fn index(&mut self, table: &'static TableDef, key: &[u8], row: &RawRow, add: bool) -> Result<()> {
        let mut entries = IndexEntries::new();
        (table.index_entries_raw)(key, &row.row, &mut entries)
            .map_err(|source| StoreError::Decode { table: table.name, source })?;
        for def in table.indexes {
            if let IndexKind::Prefix { key_bytes } = def.kind {
                entries.add_with(def.id, |out| out.extend_from_slice(&key[..key_bytes]));
            }
        }
        for (id, value) in entries.iter() {
            match table.index_def(id).kind {
                IndexKind::Hash | IndexKind::Prefix { .. } => {
                    let values = self.hashed.entry(id).or_default();
                    let group = values.entry(value.to_vec()).or_default();
                    if add {
                        group.insert(key.to_vec());
                    } else {
                        group.remove(key);
                        if group.is_empty() {
                            values.remove(value);
                        }
                    }
                }
                IndexKind::Ordered | IndexKind::Serial => {
                    let position = position(table.index_def(id).kind, value, key, row.serial);
                    let positions = self.ordered.entry(id).or_default();
                    if add {
                        positions.insert(position, key.to_vec());
                    } else {
                        positions.remove(&position);
                    }
                }
            }
        }
        Ok(())
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Vec<Option<RawRow>> {
        keys.iter().map(|key| self.rows.get(key).cloned()).collect()
    }

    fn lookup_many(&self, table: &TableDef, index: u8, values: &[Vec<u8>]) -> Vec<Vec<RawRecord>> {
        let kind = table.index_def(index).kind;
        assert!(
            matches!(kind, IndexKind::Hash | IndexKind::Prefix { .. }),
            "index {index} of {} is for ranges",
            table.name
        );
        let find = |value: &Vec<u8>| {
            let keys = self.hashed.get(&index).and_then(|groups| groups.get(value));
            let mut group: Vec<RawRecord> = keys.into_iter().flatten().map(|key| self.record(key)).collect();
            group.sort_by_key(|record| record.serial);
            group
        };
        values.iter().map(find).collect()
    }

    fn range(
        &self,
        table: &TableDef,
        index: u8,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
        descending: bool,
    ) -> Vec<RawRecord> {
        table.assert_ordered(index);
        if is_empty_range(from, to) {
            return Vec::new();
        }
        let Some(positions) = self.ordered.get(&index) else { return Vec::new() };
        let range = positions.range::<[u8], _>((from, to)).map(|(_, key)| self.record(key));
        if descending { range.rev().take(limit).collect() } else { range.take(limit).collect() }
    }

    fn record(&self, key: &[u8]) -> RawRecord {
        let row = &self.rows[key];
        RawRecord {
            key: key.to_vec(),
            row: row.row.clone(),
            serial: row.serial,
            version: RowVersion::default(),
        }
    }
}

/// The position of an entry in an ordered or serial index.
pub(crate) fn position(kind: IndexKind, value: &[u8], key: &[u8], serial: u64) -> Vec<u8> {
    let mut position = Vec::with_capacity(value.len() + key.len().max(8));
    position.extend_from_slice(value);
    match kind {
        IndexKind::Serial => position.extend_from_slice(&serial.to_be_bytes()),
        _ => position.extend_from_slice(key),
    }
    position
}

/// Returns whether a range can hold anything; a `BTreeMap` panics on bounds in the wrong order.
pub(crate) fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
    }
}

/// Copies of some tables' rows.
struct Copied(Vec<(u16, Vec<RawRecord>)>);

impl FrozenRows for Copied {
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        let found = self.0.iter().find(|(id, _)| *id == table.id);
        let (_, rows) =
            found.ok_or_else(|| StoreError::Backend(format!("table {} was not frozen", table.name)))?;
        for record in rows {
            if visit(record.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Backend for MemoryBackend {
    fn get_many(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        Ok(self.read(table, |state| state.get_many(keys)))
    }

    fn lookup_many(
        &self,
        table: &'static TableDef,
        index: u8,
        values: &[Vec<u8>],
    ) -> Result<Vec<Vec<RawRecord>>> {
        Ok(self.read(table, |state| state.lookup_many(table, index, values)))
    }

    fn range(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        descending: bool,
    ) -> Result<Vec<RawRecord>> {
        Ok(self.read(table, |state| state.range(table, index, (from, to), limit, descending)))
    }

    fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        let state = self.state();
        let answer = |read: &Read| match read {
            Read::Rows { table, keys } => ReadAnswer::Rows(state.read(table, |state| state.get_many(keys))),
            Read::Groups { table, index, values } => {
                ReadAnswer::Groups(state.read(table, |state| state.lookup_many(table, *index, values)))
            }
            Read::Range { table, index, from, to, limit, descending } => {
                let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                ReadAnswer::Range(
                    state.read(table, |state| state.range(table, *index, bounds, *limit, *descending)),
                )
            }
        };
        Ok(reads.iter().map(answer).collect())
    }

    fn positions(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        table.assert_ordered(index);
        if is_empty_range(from, to) {
            return Ok(());
        }
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let positions = state.tables.get(&table.id).and_then(|table| table.ordered.get(&index));
        for (position, _) in positions.into_iter().flat_map(|all| all.range::<[u8], _>((from, to))) {
            if visit(position).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        self.freeze(&[table])?.scan(table, visit)
    }

    fn freeze(&self, tables: &[&'static TableDef]) -> Result<Box<dyn FrozenRows>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let copy = |table: &&'static TableDef| {
            let rows = state.tables.get(&table.id);
            let rows = rows.map(|rows| rows.rows.keys().map(|key| rows.record(key)).collect());
            (table.id, rows.unwrap_or_default())
        };
        Ok(Box::new(Copied(tables.iter().map(copy).collect())))
    }

    fn count(&self, table: &'static TableDef) -> Result<u64> {
        Ok(self.read(table, |state| state.rows.len() as u64))
    }

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // First compute the new state of each row separately, so that a refusal has no effect.
        let mut overlay: BTreeMap<(u16, &[u8]), Option<RawRow>> = BTreeMap::new();
        let mut order = Vec::new();
        let mut conflicts = Vec::new();
        let mut stale = None;
        let mut serial_next = state.serial_next;
        for change in changes.changes() {
            let (table, key) = (change.table(), change.key());
            let stored = || state.tables.get(&table.id).and_then(|t| t.rows.get(key)).cloned();
            let current = overlay.entry((table.id, key)).or_insert_with(|| {
                order.push((table, key));
                stored()
            });
            let serial = match (change.old_row(), &*current) {
                // Apply it anyway, because later changes of this set build on it.
                (None, Some(row)) => {
                    conflicts.push((table, key.to_vec()));
                    row.serial
                }
                (None, None) => {
                    serial_next += 1;
                    serial_next
                }
                (Some(old), Some(row)) if row.row == old => row.serial,
                (Some(_), _) => {
                    stale.get_or_insert_with(|| StoreError::Stale { table: table.name, key: key.to_vec() });
                    continue;
                }
            };
            *current = change.new_row().map(|row| RawRow {
                row: row.to_vec(),
                serial,
                version: RowVersion::default(),
            });
        }
        if !conflicts.is_empty() {
            return Ok(CommitOutcome::Conflict(conflicts));
        }
        if let Some(stale) = stale {
            return Err(stale);
        }
        order.retain(|(table, key)| {
            let stored = state.tables.get(&table.id).and_then(|t| t.rows.get(*key));
            overlay[&(table.id, *key)].as_ref() != stored
        });
        if order.is_empty() {
            // Nothing has changed in the end, so no serial is used.
            return Ok(CommitOutcome::Committed);
        }
        for (table, key) in order {
            let row = overlay.remove(&(table.id, key)).flatten();
            state.tables.entry(table.id).or_default().set(table, key, row)?;
        }
        state.serial_next = serial_next;
        state.commits_total += 1;
        state.changes_total += changes.len() as u64;
        Ok(CommitOutcome::Committed)
    }

    fn stats(&self) -> StoreStats {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        StoreStats {
            rows: state.tables.values().map(|table| table.rows.len() as u64).sum(),
            commits_total: state.commits_total,
            changes_total: state.changes_total,
            ..StoreStats::default()
        }
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
