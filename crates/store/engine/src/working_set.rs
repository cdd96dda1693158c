//! The rows of one batch: as the commands requested them, and as the rules have changed them.

use std::any::Any;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::ops::Bound;

use batzen_store::{
    ChangeSet, Column, Found, IndexEntries, IndexKind, RawRecord, Read, ReadAnswer, Record, RowVersion,
    Store, StoreError, Stored, Table,
};
use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};

/// The rows and groups that the commands of a batch may touch.
#[derive(Default)]
pub struct Plan {
    tables: BTreeMap<u16, Box<dyn ErasedPlan>>,
}

struct TablePlan<T: Table> {
    keys: HashSet<T::Key>,
    groups: HashSet<(u8, Vec<u8>)>,
    /// (index, from) → (to, limit).
    ranges: BTreeMap<(u8, Vec<u8>), (Vec<u8>, usize)>,
}

trait ErasedPlan {
    fn ask(self: Box<Self>, reads: &mut Vec<Read>) -> Box<dyn ErasedAsked>;
    fn as_any(&mut self) -> &mut dyn Any;
}

impl Plan {
    /// Requests the row with this key, whether it exists or not.
    pub fn row<T: Table>(&mut self, key: T::Key) {
        self.table::<T>().keys.insert(key);
    }

    /// Requests all rows that have `value` in the hash or prefix index `index`.
    pub fn group<T: Table>(&mut self, index: u8, value: &impl Column) {
        self.table::<T>().groups.insert((index, value.to_bytes()));
    }

    /// Requests the first `limit` rows of the ordered or serial index `index` whose values are at least
    /// `from` and below `to`. Ranges of one index that start at the same value are merged, with the larger of
    /// their ends and limits.
    pub fn range<T: Table>(&mut self, index: u8, from: Vec<u8>, to: Vec<u8>, limit: usize) {
        let range = self.table::<T>().ranges.entry((index, from)).or_default();
        *range = (std::mem::take(&mut range.0).max(to), range.1.max(limit));
    }

    fn table<T: Table>(&mut self) -> &mut TablePlan<T> {
        let empty =
            || TablePlan::<T> { keys: HashSet::new(), groups: HashSet::new(), ranges: BTreeMap::new() };
        self.tables
            .entry(T::DEF.id)
            .or_insert_with(|| Box::new(empty()))
            .as_any()
            .downcast_mut()
            .expect("table numbers are unique")
    }
}

impl<T: Table> ErasedPlan for TablePlan<T> {
    fn ask(self: Box<Self>, reads: &mut Vec<Read>) -> Box<dyn ErasedAsked> {
        let table = T::DEF;
        let keys: Vec<T::Key> = self.keys.into_iter().collect();
        if !keys.is_empty() {
            reads.push(Read::Rows { table, keys: keys.iter().map(Record::to_bytes).collect() });
        }
        let mut groups: BTreeMap<u8, Vec<Vec<u8>>> = BTreeMap::new();
        for (index, value) in self.groups {
            groups.entry(index).or_default().push(value);
        }
        for (index, values) in &groups {
            reads.push(Read::Groups { table, index: *index, values: values.clone() });
        }
        for ((index, from), (to, limit)) in &self.ranges {
            let (from, to) = (Bound::Included(from.clone()), Bound::Excluded(to.clone()));
            reads.push(Read::Range { table, index: *index, from, to, limit: *limit, descending: false });
        }
        Box::new(TableAsked::<T> { keys, groups, ranges: self.ranges })
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The reads that a plan requests from the store, in their order.
struct TableAsked<T: Table> {
    keys: Vec<T::Key>,
    groups: BTreeMap<u8, Vec<Vec<u8>>>,
    ranges: BTreeMap<(u8, Vec<u8>), (Vec<u8>, usize)>,
}

trait ErasedAsked {
    fn fill(self: Box<Self>, answers: &mut dyn Iterator<Item = ReadAnswer>) -> Loaded;
}

type Loaded = Result<Box<dyn ErasedRows>, StoreError>;

impl<T: Table> ErasedAsked for TableAsked<T> {
    fn fill(self: Box<Self>, answers: &mut dyn Iterator<Item = ReadAnswer>) -> Loaded {
        let mut answer = || answers.next().expect("a store answers every read");
        let mut rows = TableRows::<T>::with_capacity(self.keys.len());
        if !self.keys.is_empty() {
            let ReadAnswer::Rows(found) = answer() else { unreachable!("answers follow the reads") };
            assert_eq!(found.len(), self.keys.len(), "a store answers every key");
            for (key, raw) in self.keys.into_iter().zip(found) {
                let found = raw.map(Stored::decode::<T>).transpose()?;
                let (row, version) = found.map(|found| (found.row, found.version)).unzip();
                rows.load(key, row, version);
            }
        }
        for (index, values) in self.groups {
            let ReadAnswer::Groups(groups) = answer() else { unreachable!("answers follow the reads") };
            assert_eq!(groups.len(), values.len(), "a store answers every value");
            for (value, members) in values.into_iter().zip(groups) {
                let members = rows.load_all(members)?;
                rows.groups.insert((index, value), members);
            }
        }
        for ((index, from), (to, limit)) in self.ranges {
            let ReadAnswer::Range(members) = answer() else { unreachable!("answers follow the reads") };
            assert!(members.len() <= limit, "a store keeps to the limit");
            let members = rows.load_all(members)?;
            rows.ranges.insert((index, from), Range { to, limit, members });
        }
        Ok(Box::new(rows))
    }
}

/// The number of a row within its table's part of the working set.
type RowNumber = usize;

/// One row, as the store has it and as the commands so far have changed it.
struct WorkingRow<T: Table> {
    key: T::Key,
    /// The row as it was read, if the batch has changed it since. Outer none: unchanged. Inner none: there
    /// was no row.
    stored: Option<Option<T::Row>>,
    current: Option<T::Row>,
    /// The version of the stored row that was read.
    version: Option<RowVersion>,
    /// Whether the batch depends on the row even if it does not change it.
    kept: bool,
}

/// A planned part of an ordered index.
struct Range {
    to: Vec<u8>,
    limit: usize,
    /// The rows in it: the stored ones in the order of the index, then those that the batch has added.
    members: Vec<RowNumber>,
}

struct TableRows<T: Table> {
    slots: Vec<WorkingRow<T>>,
    /// The slots by their keys. The hasher has a random key, since clients choose many of the keys.
    numbers: HashTable<RowNumber>,
    hasher: DefaultHashBuilder,
    /// (index, value) → members, in the order of their insertion.
    groups: HashMap<(u8, Vec<u8>), Vec<RowNumber>>,
    /// (index, from) → the range that starts there.
    ranges: BTreeMap<(u8, Vec<u8>), Range>,
    /// The rows that the current command has changed, as they were before; the latest is last.
    undo: Vec<(RowNumber, Option<T::Row>)>,
}

trait ErasedRows {
    fn rollback_last(&mut self);
    fn change(&self, slot: RowNumber, changes: &mut ChangeSet);
    fn forget_undo(&mut self);
    fn len(&self) -> usize;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Table> TableRows<T> {
    fn with_capacity(rows: usize) -> Self {
        Self {
            slots: Vec::with_capacity(rows),
            numbers: HashTable::with_capacity(rows),
            hasher: DefaultHashBuilder::default(),
            groups: HashMap::new(),
            ranges: BTreeMap::new(),
            undo: Vec::new(),
        }
    }

    fn find(&self, key: &T::Key) -> Option<RowNumber> {
        self.numbers.find(self.hasher.hash_one(key), |number| self.slots[*number].key == *key).copied()
    }

    /// The slot of a key. Creates one with the stored row if there was none.
    fn load(&mut self, key: T::Key, row: Option<T::Row>, version: Option<RowVersion>) -> RowNumber {
        if let Some(number) = self.find(&key) {
            return number;
        }
        let number = self.slots.len();
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.numbers
            .insert_unique(hasher.hash_one(&key), number, |number| hasher.hash_one(&slots[*number].key));
        self.slots.push(WorkingRow { key, stored: None, current: row, version, kept: false });
        number
    }

    fn load_all(&mut self, records: Vec<RawRecord>) -> Result<Vec<RowNumber>, StoreError> {
        let load = |raw| {
            let Found::<T> { key, row, version, .. } = Found::decode(raw)?;
            Ok(self.load(key, Some(row), Some(version)))
        };
        records.into_iter().map(load).collect()
    }

    /// Returns whether the key is in a planned prefix group. All rows of the group are loaded, so a key
    /// without a row is known to be free, and running numbers need not be planned one by one.
    fn covers(&self, key: &T::Key) -> bool {
        if self.groups.is_empty() {
            return false;
        }
        let bytes = key.to_bytes();
        T::DEF.indexes.iter().any(|index| match index.kind {
            IndexKind::Prefix { key_bytes } => {
                self.groups.contains_key(&(index.id, bytes[..key_bytes].to_vec()))
            }
            _ => false,
        })
    }

    fn set(&mut self, key: &T::Key, row: Option<T::Row>) -> RowNumber {
        let number = match self.find(key) {
            Some(number) => number,
            None if self.covers(key) => self.load(key.clone(), None, None),
            None => unplanned::<T>(),
        };
        let slot = &mut self.slots[number];
        let before = std::mem::replace(&mut slot.current, row);
        if slot.stored.is_none() {
            slot.stored = Some(before.clone());
        }
        let (was_there, is_there) = (before.is_some(), slot.current.is_some());
        if !was_there && is_there {
            self.join_groups(number);
            self.join_ranges(number);
        }
        self.undo.push((number, before));
        number
    }

    /// Adds a new row of the batch to the planned groups that it belongs to.
    fn join_groups(&mut self, number: RowNumber) {
        let WorkingRow { key, current: Some(row), .. } = &self.slots[number] else { return };
        if self.groups.is_empty() {
            return;
        }
        for group in groups_of::<T>(key, row) {
            if let Some(members) = self.groups.get_mut(&group)
                && !members.contains(&number)
            {
                members.push(number);
            }
        }
    }

    /// Adds a new row of the batch to the planned ranges that it belongs to, unless they are full without it.
    fn join_ranges(&mut self, number: RowNumber) {
        let WorkingRow { key, current: Some(row), .. } = &self.slots[number] else { return };
        if self.ranges.is_empty() {
            return;
        }
        let mut entries = IndexEntries::new();
        T::index_entries(key, row, &mut entries);
        for ((index, from), range) in &mut self.ranges {
            let holds = |(id, value): (u8, &[u8])| {
                id == *index && *from.as_slice() <= *value && *value < range.to[..]
            };
            if range.members.len() < range.limit
                && entries.iter().any(holds)
                && !range.members.contains(&number)
            {
                range.members.push(number);
            }
        }
    }

    fn keep(&mut self, key: &T::Key) -> RowNumber {
        let Some(number) = self.find(key) else { unplanned::<T>() };
        let slot = &mut self.slots[number];
        assert!(slot.current.is_some(), "a batch depends on rows of {} that exist", T::DEF.name);
        slot.kept = true;
        self.undo.push((number, slot.current.clone()));
        number
    }

    fn rows<'a>(&'a self, members: &'a [RowNumber]) -> impl Iterator<Item = (&'a T::Key, &'a T::Row)> {
        members.iter().filter_map(|number| {
            let slot = &self.slots[*number];
            Some((&slot.key, slot.current.as_ref()?))
        })
    }
}

impl<T: Table> ErasedRows for TableRows<T> {
    fn rollback_last(&mut self) {
        let (number, before) = self.undo.pop().expect("one undo entry a change");
        if before.is_none() {
            // It joined last. (A member that stays is not shown without a row, but it may come back as
            // another one.)
            let groups = self.groups.values_mut();
            let ranges = self.ranges.values_mut().map(|range| &mut range.members);
            for members in groups.chain(ranges).filter(|members| members.last() == Some(&number)) {
                members.pop();
            }
        }
        self.slots[number].current = before;
    }

    fn change(&self, number: RowNumber, changes: &mut ChangeSet) {
        let slot = &self.slots[number];
        let Some(stored) = &slot.stored else {
            if let (Some(row), true) = (&slot.current, slot.kept) {
                changes.keep_read::<T>(&slot.key, (row, slot.version));
            }
            return;
        };
        match (stored, &slot.current) {
            (None, Some(row)) => changes.insert::<T>(&slot.key, row),
            (Some(stored), Some(row)) if stored != row => {
                changes.update_read::<T>(&slot.key, (stored, slot.version), row);
            }
            (Some(stored), None) => changes.delete_read::<T>(&slot.key, (stored, slot.version)),
            // It was changed and changed back. Decisions in between depend on it anyway.
            (Some(stored), Some(_)) => changes.keep_read::<T>(&slot.key, (stored, slot.version)),
            (None, None) => {}
        }
    }

    fn forget_undo(&mut self) {
        self.undo.clear();
    }

    fn len(&self) -> usize {
        self.slots.len()
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
    /// Every change in order: table and row. The commit has the same order, so that serial numbers follow the
    /// commands.
    log: Vec<(u16, RowNumber)>,
    /// Length of `log` when the current command began.
    mark: usize,
}

impl WorkingSet {
    /// Loads everything that a plan names, of all tables at once.
    pub fn load(plan: Plan, store: &Store) -> Result<Self, StoreError> {
        let mut reads = Vec::new();
        let asked: Vec<_> = plan.tables.into_iter().map(|(id, table)| (id, table.ask(&mut reads))).collect();
        let mut answers = if reads.is_empty() { Vec::new() } else { store.read_many(&reads)? }.into_iter();
        let mut tables = BTreeMap::new();
        for (id, table) in asked {
            tables.insert(id, table.fill(&mut answers)?);
        }
        Ok(Self { tables, log: Vec::new(), mark: 0 })
    }

    /// The row with this key, with the changes of the batch so far.
    ///
    /// # Panics
    /// When the row was not planned: a rule must not decide on a row that was not loaded.
    pub fn get<T: Table>(&self, key: &T::Key) -> Option<&T::Row> {
        let table = self.table::<T>();
        match table.find(key) {
            Some(number) => table.slots[number].current.as_ref(),
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

    /// Makes the batch depend on a row that a command uses for its decision but may not change: the batch is
    /// not committed if another writer has changed the row since it was read.
    ///
    /// # Panics
    /// When it does not exist or was not planned.
    pub fn depend_on<T: Table>(&mut self, key: &T::Key) {
        let Some(rows) = self.tables.get_mut(&T::DEF.id) else { unplanned::<T>() };
        let rows: &mut TableRows<T> = rows.as_any_mut().downcast_mut().expect("table numbers are unique");
        self.log.push((T::DEF.id, rows.keep(key)));
    }

    /// The planned group's members with the changes of the batch so far, stored ones first.
    ///
    /// # Panics
    /// When the group was not planned.
    pub fn group<T: Table>(&self, index: u8, value: &impl Column) -> Vec<(&T::Key, &T::Row)> {
        let table = self.table::<T>();
        let Some(members) = table.groups.get(&(index, value.to_bytes())) else { unplanned::<T>() };
        table.rows(members).collect()
    }

    /// The planned range that starts at `from`, as it was loaded, with the changes of the batch so far: rows
    /// deleted since are left out, and rows added by the batch are at the end.
    ///
    /// # Panics
    /// When the range was not planned.
    pub fn range<T: Table>(&self, index: u8, from: &[u8]) -> Vec<(&T::Key, &T::Row)> {
        let table = self.table::<T>();
        let Some(range) = table.ranges.get(&(index, from.to_vec())) else { unplanned::<T>() };
        table.rows(&range.members).collect()
    }

    fn set<T: Table>(&mut self, key: &T::Key, row: Option<T::Row>) {
        let Some(rows) = self.tables.get_mut(&T::DEF.id) else { unplanned::<T>() };
        let rows: &mut TableRows<T> = rows.as_any_mut().downcast_mut().expect("table numbers are unique");
        self.log.push((T::DEF.id, rows.set(key, row)));
    }

    fn table<T: Table>(&self) -> &TableRows<T> {
        let Some(rows) = self.tables.get(&T::DEF.id) else { unplanned::<T>() };
        rows.as_any().downcast_ref().expect("table numbers are unique")
    }

    /// Starts a command. Its changes can be rolled back.
    pub fn begin(&mut self) {
        for table in self.tables.values_mut() {
            table.forget_undo();
        }
        self.mark = self.log.len();
    }

    /// Undoes every change since [`WorkingSet::begin`].
    pub fn rollback(&mut self) {
        while self.log.len() > self.mark {
            let (id, _) = self.log.pop().expect("longer than the mark");
            self.tables.get_mut(&id).expect("changed tables are loaded").rollback_last();
        }
    }

    /// Returns the rows that the batch changed or depends on: each row once, in the order of the first
    /// change.
    pub fn changes(&self) -> ChangeSet {
        let mut changes = ChangeSet::with_capacity(self.log.len());
        let mut seen: BTreeMap<u16, Vec<bool>> = BTreeMap::new();
        for (id, number) in &self.log {
            let rows = &self.tables[id];
            let seen = seen.entry(*id).or_insert_with(|| vec![false; rows.len()]);
            if !std::mem::replace(&mut seen[*number], true) {
                rows.change(*number, &mut changes);
            }
        }
        changes
    }
}
