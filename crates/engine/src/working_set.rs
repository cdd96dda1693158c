//! The rows of one batch: what the commands asked for, and what the rules made of it.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};

use batzen_store::{ChangeSet, Column, IndexEntries, IndexKind, Record, Store, StoreError, Table};

/// The rows and groups that the commands of a batch may touch.
#[derive(Default)]
pub struct Plan {
    tables: BTreeMap<u16, Box<dyn ErasedPlan>>,
}

struct TablePlan<T: Table> {
    keys: HashSet<T::Key>,
    groups: HashSet<(u8, Vec<u8>)>,
}

trait ErasedPlan {
    fn load(self: Box<Self>, store: &Store) -> Result<Box<dyn ErasedRows>, StoreError>;
    fn as_any(&mut self) -> &mut dyn Any;
}

impl Plan {
    /// Asks for the row with this key, whether it exists or not.
    pub fn row<T: Table>(&mut self, key: T::Key) {
        self.table::<T>().keys.insert(key);
    }

    /// Asks for all rows that have `value` in the hash or prefix index `index`.
    pub fn group<T: Table>(&mut self, index: u8, value: &impl Column) {
        self.table::<T>().groups.insert((index, value.to_bytes()));
    }

    fn table<T: Table>(&mut self) -> &mut TablePlan<T> {
        self.tables
            .entry(T::DEF.id)
            .or_insert_with(|| Box::new(TablePlan::<T> { keys: HashSet::new(), groups: HashSet::new() }))
            .as_any()
            .downcast_mut()
            .expect("table numbers are unique")
    }
}

impl<T: Table> ErasedPlan for TablePlan<T> {
    fn load(self: Box<Self>, store: &Store) -> Result<Box<dyn ErasedRows>, StoreError> {
        let mut rows = TableRows::<T> { slots: HashMap::new(), groups: HashMap::new(), undo: Vec::new() };
        let keys: Vec<T::Key> = self.keys.into_iter().collect();
        let found = store.get_many::<T>(&keys)?;
        assert_eq!(found.len(), keys.len(), "a store answers every key");
        for (key, found) in keys.into_iter().zip(found) {
            let row = found.map(|found| found.row);
            rows.slots.insert(key, Slot { stored: row.clone(), current: row });
        }
        let mut by_index: BTreeMap<u8, Vec<Vec<u8>>> = BTreeMap::new();
        for (index, value) in self.groups {
            by_index.entry(index).or_default().push(value);
        }
        for (index, values) in by_index {
            let groups = store.lookup_many_bytes::<T>(index, &values)?;
            for (value, members) in values.into_iter().zip(groups) {
                let mut keys = Vec::with_capacity(members.len());
                for found in members {
                    keys.push(found.key.clone());
                    let row = Some(found.row);
                    rows.slots.entry(found.key).or_insert_with(|| Slot { stored: row.clone(), current: row });
                }
                rows.groups.insert((index, value), keys);
            }
        }
        Ok(Box::new(rows))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// One row: as the store has it, and as the commands so far have left it.
struct Slot<R> {
    stored: Option<R>,
    current: Option<R>,
}

struct TableRows<T: Table> {
    slots: HashMap<T::Key, Slot<T::Row>>,
    /// (index, value) → members, in the order of their insertion.
    groups: HashMap<(u8, Vec<u8>), Vec<T::Key>>,
    /// The current command's changes, latest last: key and the row before.
    undo: Vec<(T::Key, Option<T::Row>)>,
}

trait ErasedRows {
    fn rollback_last(&mut self);
    fn change(&self, key: &dyn Any, changes: &mut ChangeSet);
    fn forget_undo(&mut self);
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Table> TableRows<T> {
    /// Whether the key lies in a planned prefix group. All rows of the group are loaded, so a key without a row is known
    /// to be free: running numbers need not be planned one by one.
    fn covers(&self, key: &T::Key) -> bool {
        let bytes = key.to_bytes();
        T::DEF.indexes.iter().any(|index| match index.kind {
            IndexKind::Prefix { key_bytes } => {
                self.groups.contains_key(&(index.id, bytes[..key_bytes].to_vec()))
            }
            _ => false,
        })
    }

    fn set(&mut self, key: &T::Key, row: Option<T::Row>) {
        if !self.slots.contains_key(key) {
            if !self.covers(key) {
                unplanned::<T>();
            }
            self.slots.insert(key.clone(), Slot { stored: None, current: None });
        }
        let slot = self.slots.get_mut(key).expect("just looked at");
        let before = std::mem::replace(&mut slot.current, row);
        let (was_there, is_there) = (before.is_some(), slot.current.is_some());
        if !was_there && is_there && !self.groups.is_empty() {
            let row = slot.current.as_ref().expect("just set");
            for group in groups_of::<T>(key, row) {
                if let Some(members) = self.groups.get_mut(&group)
                    && !members.contains(key)
                {
                    members.push(key.clone());
                }
            }
        }
        self.undo.push((key.clone(), before));
    }
}

impl<T: Table> ErasedRows for TableRows<T> {
    fn rollback_last(&mut self) {
        let (key, before) = self.undo.pop().expect("one undo entry a change");
        // Group membership may keep the key: a member without a current row is not shown.
        self.slots.get_mut(&key).expect("changed rows have a slot").current = before;
    }

    fn change(&self, key: &dyn Any, changes: &mut ChangeSet) {
        let key: &T::Key = key.downcast_ref().expect("keys belong to their table");
        let slot = &self.slots[key];
        match (&slot.stored, &slot.current) {
            (None, Some(row)) => changes.insert::<T>(key, row),
            (Some(stored), Some(row)) if stored != row => changes.update::<T>(key, stored, row),
            (Some(stored), None) => changes.delete::<T>(key, stored),
            _ => {}
        }
    }

    fn forget_undo(&mut self) {
        self.undo.clear();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The groups that a row belongs to: its entries in hash indexes, and the prefixes of its key.
fn groups_of<T: Table>(key: &T::Key, row: &T::Row) -> Vec<(u8, Vec<u8>)> {
    let mut entries = IndexEntries::new();
    T::index_entries(key, row, &mut entries);
    let is_hash = |index: u8| T::DEF.index_def(index).kind == IndexKind::Hash;
    let mut groups: Vec<(u8, Vec<u8>)> = entries
        .iter()
        .filter(|(index, _)| is_hash(*index))
        .map(|(index, value)| (index, value.to_vec()))
        .collect();
    let key_bytes = key.to_bytes();
    groups.extend(T::DEF.indexes.iter().filter_map(|index| match index.kind {
        IndexKind::Prefix { key_bytes: length } => Some((index.id, key_bytes[..length].to_vec())),
        _ => None,
    }));
    groups
}

fn unplanned<T: Table>() -> ! {
    panic!("a rule touched a row of {} that its plan did not name", T::DEF.name)
}

/// The rows of one batch in memory. Rules read and change them; every row must have been planned.
#[derive(Default)]
pub struct WorkingSet {
    tables: BTreeMap<u16, Box<dyn ErasedRows>>,
    /// Every change in order: table and key. The commit follows it, so that serial numbers follow the commands.
    log: Vec<(u16, Box<dyn Any + Send>)>,
    /// Length of `log` when the current command began.
    mark: usize,
}

impl WorkingSet {
    /// Loads everything that a plan names, in one bulk read a table and one lookup a group.
    pub fn load(plan: Plan, store: &Store) -> Result<Self, StoreError> {
        let mut tables = BTreeMap::new();
        for (id, table) in plan.tables {
            tables.insert(id, table.load(store)?);
        }
        Ok(Self { tables, log: Vec::new(), mark: 0 })
    }

    /// The row with this key, with the changes of the batch so far.
    ///
    /// # Panics
    /// When the row was not planned: a rule that reads what it did not load would decide on nothing.
    pub fn get<T: Table>(&self, key: &T::Key) -> Option<&T::Row> {
        let table = self.table::<T>();
        match table.slots.get(key) {
            Some(slot) => slot.current.as_ref(),
            None if table.covers(key) => None,
            None => unplanned::<T>(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it exists already or was not planned.
    pub fn insert<T: Table>(&mut self, key: &T::Key, row: T::Row) {
        assert!(self.get::<T>(key).is_none(), "insert into {} of a row that exists", T::DEF.name);
        self.set::<T>(key, Some(row));
    }

    /// Replaces a row that exists.
    ///
    /// # Panics
    /// When it does not exist or was not planned.
    pub fn update<T: Table>(&mut self, key: &T::Key, row: T::Row) {
        assert!(self.get::<T>(key).is_some(), "update in {} of a row that does not exist", T::DEF.name);
        self.set::<T>(key, Some(row));
    }

    /// Adds or replaces a row.
    pub fn put<T: Table>(&mut self, key: &T::Key, row: T::Row) {
        self.set::<T>(key, Some(row));
    }

    /// Removes a row that exists.
    ///
    /// # Panics
    /// When it does not exist or was not planned.
    pub fn delete<T: Table>(&mut self, key: &T::Key) {
        assert!(self.get::<T>(key).is_some(), "delete in {} of a row that does not exist", T::DEF.name);
        self.set::<T>(key, None);
    }

    /// The planned group's members with the changes of the batch so far, stored ones first.
    ///
    /// # Panics
    /// When the group was not planned.
    pub fn group<T: Table>(&self, index: u8, value: &impl Column) -> Vec<(&T::Key, &T::Row)> {
        let table = self.table::<T>();
        let Some(members) = table.groups.get(&(index, value.to_bytes())) else { unplanned::<T>() };
        members.iter().filter_map(|key| Some((key, table.slots[key].current.as_ref()?))).collect()
    }

    fn set<T: Table>(&mut self, key: &T::Key, row: Option<T::Row>) {
        let Some(rows) = self.tables.get_mut(&T::DEF.id) else { unplanned::<T>() };
        let rows: &mut TableRows<T> = rows.as_any_mut().downcast_mut().expect("table numbers are unique");
        rows.set(key, row);
        self.log.push((T::DEF.id, Box::new(key.clone())));
    }

    fn table<T: Table>(&self) -> &TableRows<T> {
        let Some(rows) = self.tables.get(&T::DEF.id) else { unplanned::<T>() };
        rows.as_any().downcast_ref().expect("table numbers are unique")
    }

    /// Begins a command: what it changes from here on can be rolled back.
    pub fn begin(&mut self) {
        for (id, _) in &self.log[self.mark..] {
            self.tables.get_mut(id).expect("changed tables are loaded").forget_undo();
        }
        self.mark = self.log.len();
    }

    /// Takes back every change since [`WorkingSet::begin`].
    pub fn rollback(&mut self) {
        while self.log.len() > self.mark {
            let (id, _) = self.log.pop().expect("longer than the mark");
            self.tables.get_mut(&id).expect("changed tables are loaded").rollback_last();
        }
    }

    /// What the batch changed, each row once, in the order of the first change.
    pub fn changes(&self) -> ChangeSet {
        let mut changes = ChangeSet::default();
        let mut seen: BTreeMap<u16, HashSet<Vec<u8>>> = BTreeMap::new();
        for (id, key) in &self.log {
            let rows = &self.tables[id];
            let mut one = ChangeSet::default();
            rows.change(key.as_ref(), &mut one);
            if let Some(change) = one.changes().first()
                && seen.entry(*id).or_default().insert(change.key().to_vec())
            {
                changes.append(one);
            }
        }
        changes
    }
}
