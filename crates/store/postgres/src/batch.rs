//! A change set as statements with their parameters, table by table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use batzen_store::{IndexEntries, IndexKind, Result, StoreError, TableDef};

use crate::changes::Net;
use crate::citus::{self, Citus};
use crate::client::{Array, Connection, Statement};
use crate::codec::{push, split, width};
use crate::database::{Database, bind_error};
use crate::layout::{IndexForm, SqlType};
use crate::read::key_arrays;
use crate::schema::citus::EVERYWHERE;
use crate::statements::citus::{Inserts, ROWS};
use crate::statements::{Mask, Statements, index_type};

/// The version and serial of each row that must exist, by table and key.
pub(crate) type Versions<'a> = HashMap<(u16, &'a [u8]), (i32, i64)>;

/// The serial before the first of a commit, in each shard, by its place, and in tables that are on every node.
pub(crate) type Serials = BTreeMap<Option<u16>, i64>;

/// One statement of a batch.
struct Step<'a> {
    statement: StepStatement<'a>,
    /// On Citus, the place of the shard that has its rows; `None` if they are on every node.
    place: Option<u16>,
    /// Number of rows that it must affect. For inserts, the base of the serials.
    first: i64,
    /// Number of rows that it must affect.
    rows: usize,
    arrays: Vec<Array>,
}

enum StepStatement<'a> {
    Fixed(&'a Statement),
    Update(Arc<Statement>),
    /// On Citus: rows as values, by several statements.
    Inserts(&'a Inserts),
}

/// A change set as statements with their parameters. It can be sent several times.
pub(crate) struct Batch<'a> {
    steps: Vec<Step<'a>>,
    /// On Citus, the places of its shards, each with the row of its clock. `None`: what is on every node.
    places: BTreeMap<Option<u16>, u16>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(database: &'a Database, nets: &[Net<'_>], versions: &Versions<'_>) -> Result<Self> {
        // Serials follow the order of the inserts in the set.
        let mut inserted: Vec<usize> = nets.iter().filter_map(|net| net.inserted).collect();
        inserted.sort_unstable();
        let row = |at: usize| inserted.binary_search(&at).expect("contains every insert") as u64;
        Self::numbered(database, nets, versions, &row)
    }

    /// The part of a set in one shard. `order`: where each of its changes is in the whole set.
    pub(crate) fn in_order(
        database: &'a Database,
        nets: &[Net<'_>],
        versions: &Versions<'_>,
        order: &[usize],
    ) -> Result<Self> {
        Self::numbered(database, nets, versions, &|at| order[at] as u64)
    }

    fn numbered(
        database: &'a Database,
        nets: &[Net<'_>],
        versions: &Versions<'_>,
        row: &dyn Fn(usize) -> u64,
    ) -> Result<Self> {
        let ordinal = |net: &Net<'_>| {
            let row = row(net.inserted.expect("only for new rows"));
            if database.is_distributed() { citus::serial_of_row(row) } else { row }
        };
        let mut batch = Self { steps: Vec::new(), places: BTreeMap::new() };
        // The same for the whole batch.
        let nodes = database.citus.as_ref().map(Citus::nodes);
        let place = |table: &'static TableDef, key: &[u8]| match &nodes {
            Some(nodes) if table.is_sharded() => Some(nodes.placement.place(database.vshard(table, key))),
            _ => None,
        };
        for nets in nets.chunk_by(|a, b| a.table == b.table) {
            let statements = database.statements(nets[0].table)?;
            // In the order of the primary key, so that each page and each partition is visited only once. On
            // Citus, all rows of a shard are together, so that each statement goes to one node.
            let mut placed: Vec<(Option<u16>, &Net<'_>)> =
                nets.iter().map(|net| (place(net.table, net.key), net)).collect();
            placed.sort_by_cached_key(|(place, net)| (*place, database.vshard(net.table, net.key), net.key));
            for placed in placed.chunk_by(|a, b| a.0 == b.0) {
                let place = placed[0].0;
                if let Some(nodes) = &nodes {
                    let shard = place.and_then(|place| nodes.placement.shards().get(usize::from(place)));
                    batch.places.insert(place, shard.map_or(EVERYWHERE, |shard| shard.vshard));
                }
                let mut table = TableBatch::new(database, statements, place);
                for (_, net) in placed {
                    let version = versions.get(&(net.table.id, net.key)).copied();
                    table.add(net, version, &ordinal)?;
                }
                table.finish(&mut batch.steps)?;
            }
        }
        Ok(batch)
    }

    /// On Citus, the places of its shards in ascending order, each with the row of its clock.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Option<u16>, u16)> {
        self.places.iter().map(|(place, vshard)| (*place, *vshard))
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Queues all statements.
    pub(crate) fn queue(&self, connection: &mut Connection) {
        for step in &self.steps {
            let statement = match &step.statement {
                StepStatement::Fixed(statement) => statement,
                StepStatement::Update(statement) => statement.as_ref(),
                StepStatement::Inserts(_) => unreachable!("only on Citus"),
            };
            connection.queue(statement, |params| {
                params.int8(step.first);
                step.arrays.iter().for_each(|array| params.array(array));
            });
        }
    }
}

impl Batch<'_> {
    /// Queues all statements for Citus, and adds how many rows each must affect.
    pub(crate) fn queue_on_citus(
        &self,
        connection: &mut Connection,
        serials: &Serials,
        wanted: &mut Vec<u64>,
    ) {
        for step in &self.steps {
            let statement = match &step.statement {
                StepStatement::Fixed(statement) => statement,
                StepStatement::Update(statement) => statement.as_ref(),
                StepStatement::Inserts(inserts) => {
                    let base = serials[&step.place];
                    let mut columns: Vec<_> = step.arrays.iter().map(Array::elements).collect();
                    let mut left = step.rows;
                    for (statement, rows) in inserts.iter().zip(ROWS) {
                        while left >= rows {
                            left -= rows;
                            wanted.push(rows as u64);
                            connection.queue(statement, |params| {
                                params.int8(base);
                                for _ in 0..rows {
                                    for column in &mut columns {
                                        params.element(column.next().expect("a value for each row"));
                                    }
                                }
                            });
                        }
                    }
                    continue;
                }
            };
            wanted.push(step.rows as u64);
            connection.queue(statement, |params| step.arrays.iter().for_each(|array| params.array(array)));
        }
    }
}

/// A row that must exist, by key and version.
type Named<'n> = (&'n [u8], (i32, i64));

/// The changes of one table, by statement.
struct TableBatch<'a, 'n> {
    database: &'a Database,
    statements: &'a Statements,
    place: Option<u16>,
    keeps: Vec<Named<'n>>,
    updates: Vec<(Named<'n>, &'n [u8])>,
    mask: Mask,
    deletes: Vec<Named<'n>>,
    inserts: Vec<(&'n [u8], &'n [u8], u64)>,
    queue_deletes: Vec<Array>,
    queue_inserts: Vec<(&'n [u8], QueueEntry, Number)>,
}

/// A row's serial: an existing row's own, or the row's place among the new rows of the set.
#[derive(Debug, Clone, Copy)]
enum Number {
    Known(i64),
    New(u64),
}

/// A row's place in a queue: when it is due, and its value in each of the queue's indexes.
#[derive(Debug, PartialEq, Eq)]
struct QueueEntry {
    due: i64,
    values: Vec<Vec<u8>>,
}

impl<'a, 'n> TableBatch<'a, 'n> {
    fn new(database: &'a Database, statements: &'a Statements, place: Option<u16>) -> Self {
        Self {
            database,
            statements,
            place,
            keeps: Vec::new(),
            updates: Vec::new(),
            mask: vec![false; statements.layout.def.row_columns.len()],
            deletes: Vec::new(),
            inserts: Vec::new(),
            queue_deletes: [SqlType::Int8, SqlType::Bytea, SqlType::Int2]
                .map(|sql| Array::new(sql.oid()))
                .into(),
            queue_inserts: Vec::new(),
        }
    }

    fn def(&self) -> &'static TableDef {
        self.statements.layout.def
    }

    fn add(
        &mut self,
        net: &Net<'n>,
        version: Option<(i32, i64)>,
        ordinal: &dyn Fn(&Net<'_>) -> u64,
    ) -> Result<()> {
        let Some(before) = net.before else {
            if let Some(after) = net.after {
                self.insert(net.key, after, ordinal(net))?;
            }
            return Ok(());
        };
        let named = (net.key, version.expect("rows that must exist have a version"));
        match net.after {
            Some(after) if net.inserted.is_some() => {
                self.delete(named, before)?;
                self.insert(net.key, after, ordinal(net))
            }
            Some(after) if after == before => {
                self.keeps.push(named);
                Ok(())
            }
            Some(after) => self.update(named, before, after),
            None => self.delete(named, before),
        }
    }

    fn update(&mut self, named: Named<'n>, before: &'n [u8], after: &'n [u8]) -> Result<()> {
        let def = self.def();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        split(def.row_columns, before, &mut old).map_err(|error| bind_error(def, error))?;
        split(def.row_columns, after, &mut new).map_err(|error| bind_error(def, error))?;
        for ((chosen, old), new) in self.mask.iter_mut().zip(old).zip(new) {
            *chosen |= old != new;
        }
        let (key, (_, serial)) = named;
        let (was, is) = (self.queue_entry(key, before)?, self.queue_entry(key, after)?);
        if was != is {
            if let Some(was) = was {
                self.leave_queue(key, was, serial);
            }
            if let Some(is) = is {
                self.queue_inserts.push((key, is, Number::Known(serial)));
            }
        }
        self.updates.push((named, after));
        Ok(())
    }

    fn delete(&mut self, named: Named<'n>, before: &'n [u8]) -> Result<()> {
        let (key, (_, serial)) = named;
        if let Some(was) = self.queue_entry(key, before)? {
            self.leave_queue(key, was, serial);
        }
        self.deletes.push(named);
        Ok(())
    }

    fn insert(&mut self, key: &'n [u8], row: &'n [u8], ordinal: u64) -> Result<()> {
        if let Some(entry) = self.queue_entry(key, row)? {
            self.queue_inserts.push((key, entry, Number::New(ordinal)));
        }
        self.inserts.push((key, row, ordinal));
        Ok(())
    }

    fn leave_queue(&mut self, key: &[u8], entry: QueueEntry, serial: i64) {
        let first = self.statements.layout.queue_indexes().next().expect("it has a queue").def.kind;
        let mut place = entry.values.into_iter().next().expect("a value for each index");
        match first {
            IndexKind::Serial => place.extend_from_slice(&serial.to_be_bytes()),
            _ => place.extend_from_slice(key),
        }
        self.queue_deletes[0].push(&entry.due.to_be_bytes());
        self.queue_deletes[1].push(&place);
        let vshard = self.database.vshard(self.def(), key);
        self.queue_deletes[2].push(&vshard.to_be_bytes());
    }

    fn entries(&self, key: &[u8], row: &[u8]) -> Result<IndexEntries> {
        let mut entries = IndexEntries::new();
        let def = self.def();
        (def.index_entries_raw)(key, row, &mut entries).map_err(|error| bind_error(def, error))?;
        Ok(entries)
    }

    fn queue_entry(&self, key: &[u8], row: &[u8]) -> Result<Option<QueueEntry>> {
        let def = self.def();
        if def.queue.is_empty() {
            return Ok(None);
        }
        let entries = self.entries(key, row)?;
        let mut values = Vec::new();
        for index in self.statements.layout.queue_indexes() {
            values.push(self.only(&entries, index.def.id)?.map(<[u8]>::to_vec));
        }
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        let Some(values) = values.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(StoreError::Backend(format!(
                "a row of {} is in a part of its queue's indexes",
                def.name
            )));
        };
        let due = values[0].first_chunk().map_or(u64::MAX, |time| u64::from_be_bytes(*time));
        Ok(Some(QueueEntry { due: i64::try_from(due).unwrap_or(i64::MAX), values }))
    }

    /// The entry in an index that has at most one per row.
    fn only<'e>(&self, entries: &'e IndexEntries, index: u8) -> Result<Option<&'e [u8]>> {
        let mut found = entries.iter().filter(|(id, _)| *id == index).map(|(_, value)| value);
        let first = found.next();
        if found.any(|value| Some(value) != first) {
            let what = format!(
                "a row of {} has several entries in index {index}: declare it many()",
                self.def().name
            );
            return Err(StoreError::Backend(what));
        }
        Ok(first)
    }

    /// Adds a row's values for the index columns of the table.
    fn push_indexes(&self, key: &[u8], row: &[u8], arrays: &mut [Array]) -> Result<()> {
        if arrays.is_empty() {
            return Ok(());
        }
        let entries = self.entries(key, row)?;
        for (index, array) in self.statements.own_indexes().zip(arrays) {
            let id = index.def.id;
            if index.form == IndexForm::HashMany {
                let of_index = entries.iter().filter(|(entry, _)| *entry == id);
                let mut hashes: Vec<i64> = of_index.map(|(_, value)| self.database.hash(value)).collect();
                hashes.sort_unstable();
                hashes.dedup();
                if hashes.is_empty() {
                    array.push_null();
                } else {
                    let texts: Vec<String> = hashes.iter().map(ToString::to_string).collect();
                    array.push(format!("{{{}}}", texts.join(",")).as_bytes());
                }
                continue;
            }
            match self.only(&entries, id)? {
                None => array.push_null(),
                Some(value) if index.form == IndexForm::Hash => {
                    array.push(&self.database.hash(value).to_be_bytes());
                }
                Some(value) => array.push_with(|out| {
                    out.extend_from_slice(value);
                    if index.def.kind == IndexKind::Ordered {
                        out.extend_from_slice(key);
                    }
                }),
            }
        }
        Ok(())
    }

    fn keys(&self, keys: impl Iterator<Item = &'n [u8]>) -> Result<Vec<Array>> {
        let keys: Vec<&[u8]> = keys.collect();
        let columns = self.statements.layout.key.len();
        key_arrays(self.database, self.statements, &keys, columns, true)
    }

    /// Keys, versions and serials of rows that must exist.
    fn named(&self, rows: &[Named<'n>]) -> Result<Vec<Array>> {
        let mut arrays = self.keys(rows.iter().map(|(key, _)| *key))?;
        let (mut versions, mut serials) = (Array::new(SqlType::Int4.oid()), Array::new(SqlType::Int8.oid()));
        for (_, (version, serial)) in rows {
            versions.push(&version.to_be_bytes());
            serials.push(&serial.to_be_bytes());
        }
        arrays.extend([versions, serials]);
        Ok(arrays)
    }

    fn finish(mut self, steps: &mut Vec<Step<'a>>) -> Result<()> {
        let statements = self.statements;
        let layout = &statements.layout;
        let def = self.def();
        let count = |rows: usize| i64::try_from(rows).expect("few");
        if !self.keeps.is_empty() {
            let arrays = self.named(&self.keeps)?;
            steps.push(Step {
                place: self.place,
                statement: StepStatement::Fixed(&statements.keep),
                first: count(self.keeps.len()),
                rows: self.keeps.len(),
                arrays,
            });
        }
        if !self.updates.is_empty() {
            let statement = statements.update(&mut self.mask);
            let rows: Vec<Named<'n>> = self.updates.iter().map(|(named, _)| *named).collect();
            let mut arrays = self.named(&rows)?;
            let fixed = arrays.len();
            let mut at = 0;
            let mut columns = Vec::new();
            for (def, chosen) in def.row_columns.iter().zip(&self.mask) {
                if *chosen {
                    columns.extend(&layout.row[at..at + width(def)]);
                }
                at += width(def);
            }
            arrays.extend(columns.iter().map(|column| Array::new(column.sql.oid())));
            let indexes_at = arrays.len();
            arrays.extend(statements.own_indexes().map(|index| Array::new(index_type(index).oid())));
            let mut parts = Vec::new();
            for ((key, _), row) in &self.updates {
                split(def.row_columns, row, &mut parts).map_err(|error| bind_error(def, error))?;
                let mut at = fixed;
                for ((column, part), chosen) in def.row_columns.iter().zip(&parts).zip(&self.mask) {
                    if *chosen {
                        let width = width(column);
                        push(column, part, &mut arrays[at..at + width])
                            .map_err(|error| bind_error(def, error))?;
                        at += width;
                    }
                }
                self.push_indexes(key, row, &mut arrays[indexes_at..])?;
            }
            steps.push(Step {
                place: self.place,
                statement: StepStatement::Update(statement),
                first: count(rows.len()),
                rows: rows.len(),
                arrays,
            });
        }
        if !self.deletes.is_empty() {
            let arrays = self.named(&self.deletes)?;
            let rows = self.deletes.len();
            let statement = StepStatement::Fixed(&statements.delete);
            steps.push(Step { place: self.place, statement, first: count(rows), rows, arrays });
        }
        if !self.inserts.is_empty() {
            let mut arrays = self.keys(self.inserts.iter().map(|(key, ..)| *key))?;
            let fixed = arrays.len();
            arrays.extend(layout.row.iter().map(|column| Array::new(column.sql.oid())));
            arrays.push(Array::new(SqlType::Int8.oid()));
            let indexes_at = arrays.len();
            arrays.extend(statements.own_indexes().map(|index| Array::new(index_type(index).oid())));
            let mut parts = Vec::new();
            for (key, row, ordinal) in &self.inserts {
                split(def.row_columns, row, &mut parts).map_err(|error| bind_error(def, error))?;
                let mut at = fixed;
                for (column, part) in def.row_columns.iter().zip(&parts) {
                    let width = width(column);
                    push(column, part, &mut arrays[at..at + width])
                        .map_err(|error| bind_error(def, error))?;
                    at += width;
                }
                arrays[at].push(&ordinal.to_be_bytes());
                self.push_indexes(key, row, &mut arrays[indexes_at..])?;
            }
            let statement = match &statements.citus_inserts {
                Some(inserts) => StepStatement::Inserts(inserts),
                None => StepStatement::Fixed(&statements.insert),
            };
            let rows = self.inserts.len();
            steps.push(Step { place: self.place, statement, first: self.database.serial_base, rows, arrays });
        }
        if self.queue_deletes[0].len() > 0 {
            let statement = statements.queue_delete.as_ref().expect("it has a queue");
            let rows = self.queue_deletes[0].len();
            let arrays = std::mem::take(&mut self.queue_deletes);
            steps.push(Step {
                place: self.place,
                statement: StepStatement::Fixed(statement),
                first: count(rows),
                rows,
                arrays,
            });
        }
        if !self.queue_inserts.is_empty() {
            let statement = statements.queue_insert.as_ref().expect("it has a queue");
            let mut arrays = vec![Array::new(SqlType::Int8.oid())];
            arrays.extend(layout.queue_indexes().map(|_| Array::new(SqlType::Bytea.oid())));
            let (mut ordinals, mut serials) =
                (Array::new(SqlType::Int8.oid()), Array::new(SqlType::Int8.oid()));
            for (key, entry, number) in &self.queue_inserts {
                arrays[0].push(&entry.due.to_be_bytes());
                for ((index, value), array) in layout.queue_indexes().zip(&entry.values).zip(&mut arrays[1..])
                {
                    array.push_with(|out| {
                        out.extend_from_slice(value);
                        if index.def.kind == IndexKind::Ordered {
                            out.extend_from_slice(key);
                        }
                    });
                }
                match number {
                    Number::Known(serial) => {
                        ordinals.push(&[0; 8]);
                        serials.push(&serial.to_be_bytes());
                    }
                    Number::New(ordinal) => {
                        ordinals.push(&ordinal.to_be_bytes());
                        serials.push_null();
                    }
                }
            }
            arrays.extend(self.keys(self.queue_inserts.iter().map(|(key, ..)| *key))?);
            arrays.extend([ordinals, serials]);
            let statement = match &statements.citus_queue_inserts {
                Some(inserts) => StepStatement::Inserts(inserts),
                None => StepStatement::Fixed(statement),
            };
            let rows = self.queue_inserts.len();
            steps.push(Step { place: self.place, statement, first: self.database.serial_base, rows, arrays });
        }
        Ok(())
    }
}
