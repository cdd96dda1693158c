//! Commits: one pipeline, one implicit transaction, one round trip.
//!
//! The first statement takes the connection's row in `writers`, so that afterwards everybody can tell whether the commit took
//! place. Then table by table, in the order of their numbers and with rows in the order of their shards and keys, so that two commits
//! never wait for each other in a circle: rows that must stay as they were read, updates, deletes, inserts, queue entries.
//! Each statement checks in the server how many rows it met; if one is amiss, nothing of the set remains, and only then the
//! rows are read to say which.
//!
//! A lost connection leaves the question whether the commit took place. A new connection raises the epoch of the writer's row,
//! which waits for the old transaction to end, and makes any late copy of it fail; then the row's batch number is the answer.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use batzen_store::{
    ChangeSet, CommitOutcome, IndexEntries, IndexKind, RawRow, Result, RowVersion, StoreError, TableDef,
};

use crate::changes::{INSERTS_MAX, Net, judge, net};
use crate::codec::{push, split, width};
use crate::connection::{Array, Connection};
use crate::database::{Database, bind_error};
use crate::layout::{IndexForm, SqlType};
use crate::read::key_arrays;
use crate::statements::{Mask, Statements, index_type};
use crate::{PgError, Sharing};

/// The most bytes of one commit.
const COMMIT_BYTES_MAX: u64 = 256 << 20;

/// How often a set that fits what is stored is sent again because others came before it, and have gone again.
const RACES_MAX: u32 = 16;

/// A connection that commits, and its row in `writers`.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: Connection,
    /// When the server's process of the connection began: with its number it names the process.
    started: String,
    id: i64,
    epoch: i64,
    /// The last batch that was sent.
    batch: i64,
}

/// How one attempt ended.
enum Attempt {
    Committed,
    /// A row was not as it had to be.
    Misfit,
    Failed(PgError),
}

/// A version as the statements want it.
type Versions<'a> = HashMap<(u16, &'a [u8]), (i32, i64)>;

impl Database {
    pub fn commit(&self, set: &ChangeSet) -> Result<CommitOutcome> {
        if self.is_closed() {
            return Err(StoreError::Stopped("the store was closed".into()));
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(self.is_lost());
        }
        if set.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        let bytes: usize = (set.changes().iter())
            .map(|change| change.key().len() + change.new_row().map_or(0, <[u8]>::len))
            .sum();
        let too_large = |limit: u64| StoreError::TooLarge { bytes: bytes as u64, limit };
        if bytes as u64 > COMMIT_BYTES_MAX {
            return Err(too_large(COMMIT_BYTES_MAX));
        }
        let Some(nets) = net(set) else {
            let fits = self.judge(set)?;
            return Ok(fits.expect("no state fits a set that contradicts itself"));
        };
        let inserts = nets.iter().filter(|net| net.inserted.is_some()).count();
        if inserts > INSERTS_MAX {
            return Err(too_large((bytes / inserts * INSERTS_MAX) as u64));
        }
        let mut versions = HashMap::new();
        for round in 0..RACES_MAX {
            // A hint that was of no use the first time is of no use again.
            match self.versions(&nets, round == 0, &mut versions)? {
                true => {}
                false => match self.judge(set)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                },
            }
            if self.try_commit(&nets, &versions)? {
                self.counters.commits.inc();
                self.counters.changes.add(set.len() as u64);
                return Ok(CommitOutcome::Committed);
            }
            self.counters.races.inc();
            if let Some(outcome) = self.judge(set)? {
                return Ok(outcome);
            }
        }
        let table = nets[0].table.name;
        Err(StoreError::Backend(format!(
            "a change of {table} or of a table after it meets other rows than can be read: an index or a queue is damaged"
        )))
    }

    /// Reads the rows that the set names, and says why it does not fit; none if it does.
    fn judge(&self, set: &ChangeSet) -> Result<Option<CommitOutcome>> {
        let mut keys: Vec<(&'static TableDef, &[u8])> =
            set.changes().iter().map(|change| (change.table(), change.key())).collect();
        keys.sort_unstable_by_key(|(table, key)| (table.id, *key));
        keys.dedup();
        judge(set, &self.rows_by_key(&keys)?)
    }

    /// Finds the version of each row that must be there: from the change, else by reading the row. False: one is not as it
    /// must be, or one that must not be there is.
    fn versions<'a>(&self, nets: &[Net<'a>], trust: bool, versions: &mut Versions<'a>) -> Result<bool> {
        let known = |version: Option<RowVersion>| {
            let version = version.filter(|version| trust && version.birth() == self.tag)?;
            Some((i32::try_from(version.place()).ok()?, version.serial().cast_signed()))
        };
        versions.clear();
        let mut unknown = Vec::new();
        for net in nets {
            match (net.before, known(net.version)) {
                (Some(_), Some(version)) => {
                    versions.insert((net.table.id, net.key), version);
                }
                // A row that comes and goes within the set leaves nothing that the database could check.
                (None, _) if net.after.is_some() => {}
                _ => unknown.push(net),
            }
        }
        if unknown.is_empty() {
            return Ok(true);
        }
        let keys: Vec<(&'static TableDef, &[u8])> = unknown.iter().map(|net| (net.table, net.key)).collect();
        let found: HashMap<(u16, &[u8]), RawRow> = self.rows_by_key(&keys)?;
        for net in unknown {
            let row = found.get(&(net.table.id, net.key));
            if row.map(|row| row.row.as_slice()) != net.before {
                return Ok(false);
            }
            if let Some(row) = row {
                let version = i32::try_from(row.version.place()).expect("it was an integer");
                versions.insert((net.table.id, net.key), (version, row.serial.cast_signed()));
            }
        }
        Ok(true)
    }

    /// Commits, whatever happens to connections meanwhile. False: a row was not as it had to be.
    fn try_commit(&self, nets: &[Net<'_>], versions: &Versions<'_>) -> Result<bool> {
        let batch = Batch::new(self, nets, versions)?;
        if batch.steps.is_empty() {
            return Ok(true);
        }
        let mut patience = self.patience();
        loop {
            let mut place = self.writers.take();
            let mut writer = match place.item.take().filter(|writer| !self.is_worn(&writer.connection)) {
                Some(writer) => writer,
                None => match self.register() {
                    Ok(Some(writer)) => writer,
                    Ok(None) => return Err(self.is_lost()),
                    Err(error) => {
                        drop(place);
                        patience.wait(error)?;
                        continue;
                    }
                },
            };
            match self.attempt(&mut writer, &batch) {
                Attempt::Committed => {
                    place.item = Some(writer);
                    return Ok(true);
                }
                Attempt::Misfit => {
                    place.item = Some(writer);
                    return Ok(false);
                }
                Attempt::Failed(error) if error.code() == Some("BZ002") => {
                    if self.options.sharing == Sharing::Exclusive {
                        return Err(self.is_lost());
                    }
                    // The row has been removed as one that nobody uses, or another process was sent here: a new one.
                    tracing::warn!(writer = writer.id, "the writer's row was taken away");
                }
                Attempt::Failed(error) if error.ends_connection() || writer.connection.was_unsynced() => {
                    self.counters.reconnects.inc();
                    tracing::warn!(%error, "connection lost in a commit");
                    let took_place = self.resolve(&mut writer)? == writer.batch;
                    place.item = Some(writer);
                    if took_place {
                        self.counters.ambiguous_committed.inc();
                        return Ok(true);
                    }
                    self.counters.ambiguous_repeated.inc();
                }
                Attempt::Failed(error) => {
                    if !writer.connection.is_broken() && !error.is_away() {
                        place.item = Some(writer);
                    }
                    drop(place);
                    patience.wait(error)?;
                }
            }
        }
    }

    /// Sends the batch once.
    fn attempt(&self, writer: &mut Writer, batch: &Batch<'_>) -> Attempt {
        writer.batch += 1;
        let (id, epoch, number) = (writer.id, writer.epoch, writer.batch);
        let connection = &mut writer.connection;
        let statements = connection.statements;
        connection.queue(&self.texts.writer, |params| {
            params.int8(number);
            params.int8(id);
            params.int8(epoch);
        });
        batch.queue(connection);
        let start = Instant::now();
        let result = connection.run(&mut |_, _| Ok(()));
        self.counters.commit_times.time(start.elapsed());
        self.count(connection, statements);
        match result {
            Ok(()) if connection.was_unsynced() => {
                Attempt::Failed(PgError::protocol("the server gave up waiting for its standby"))
            }
            Ok(()) => Attempt::Committed,
            Err(error) => match error.code() {
                // 23505: a row is there that must not be.
                Some("BZ001" | "23505") => Attempt::Misfit,
                _ => Attempt::Failed(error),
            },
        }
    }

    /// A new connection with a row of its own in `writers`; none if another process has taken the store over.
    fn register(&self) -> std::result::Result<Option<Writer>, PgError> {
        let mut connection = self.connect()?;
        // No statement_timeout: it would end the wait for a synchronous standby after the commit, which then is reported as
        // done although the standby has not got it.
        connection.script("SET lock_timeout = '10s'")?;
        let started = started(&mut connection)?;
        let id = self.register_row(&mut connection)?;
        Ok(id.map(|id| Writer { connection, started, id, epoch: 0, batch: 0 }))
    }

    /// Makes a new connection for a writer whose old one was lost in a commit, and tells which batch was its last.
    fn resolve(&self, writer: &mut Writer) -> Result<i64> {
        // The old process may wait for the rest of the pipeline for hours, with its rows locked, if this side's end of the
        // connection is gone and nobody has told it.
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {} AND backend_start = '{}'",
            writer.connection.process_id(),
            writer.started
        );
        let text = format!("{} WHERE writer_id = {} RETURNING epoch, batch", self.texts.fence, writer.id);
        let mut patience = self.patience();
        loop {
            let attempt = self.connect().and_then(|mut connection| {
                connection.script("SET lock_timeout = '10s'")?;
                connection.script(&end)?;
                let started = started(&mut connection)?;
                let rows = connection.query_text(&text)?;
                if connection.was_unsynced() {
                    return Err(PgError::io("wait for the standby", std::io::ErrorKind::TimedOut.into()));
                }
                Ok((connection, started, rows))
            });
            match attempt {
                Ok((connection, started, rows)) => {
                    let Some(row) = rows.first() else {
                        self.counters.ambiguous_unknown.inc();
                        return Err(StoreError::Unavailable(
                            "the database does not know the writer whose connection was lost".into(),
                        ));
                    };
                    let number = |at: usize| row.get(at)?.as_ref()?.parse().ok();
                    let (Some(epoch), Some(batch)) = (number(0), number(1)) else {
                        return Err(StoreError::Backend("a writer's row without numbers".into()));
                    };
                    if self.options.sharing == Sharing::Exclusive && epoch != writer.epoch + 1 {
                        return Err(self.is_lost());
                    }
                    writer.connection = connection;
                    writer.started = started;
                    writer.epoch = epoch;
                    return Ok(batch);
                }
                Err(error) => {
                    if let Err(error) = patience.wait(error) {
                        self.counters.ambiguous_unknown.inc();
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// When the server's process of a connection began.
fn started(connection: &mut Connection) -> std::result::Result<String, PgError> {
    let text = "SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let mut rows = connection.query_text(text)?;
    let started = rows.pop().and_then(|mut row| row.pop().flatten());
    started.ok_or_else(|| PgError::protocol("a process without a beginning"))
}

/// One statement of a batch.
struct Step<'a> {
    statement: StepStatement<'a>,
    /// How many rows it must meet; or nothing to count, and the base of serials instead.
    first: i64,
    arrays: Vec<Array>,
}

enum StepStatement<'a> {
    Fixed(&'a crate::connection::Statement),
    Update(std::sync::Arc<crate::connection::Statement>),
}

/// A change set as statements with their parameters: it can be sent several times.
struct Batch<'a> {
    steps: Vec<Step<'a>>,
}

impl<'a> Batch<'a> {
    fn new(database: &'a Database, nets: &[Net<'_>], versions: &Versions<'_>) -> Result<Self> {
        // Serials follow the order of the inserts in the set.
        let mut inserted: Vec<usize> = nets.iter().filter_map(|net| net.inserted).collect();
        inserted.sort_unstable();
        let ordinal = |net: &Net<'_>| {
            let at = net.inserted.expect("asked of new rows alone");
            inserted.binary_search(&at).expect("all inserts are in it") as u64
        };
        let mut batch = Self { steps: Vec::new() };
        for nets in nets.chunk_by(|a, b| a.table == b.table) {
            let statements = database.statements(nets[0].table)?;
            let mut table = TableBatch::new(database, statements);
            // As the primary key has them: each page and each partition is visited once.
            let mut nets: Vec<&Net<'_>> = nets.iter().collect();
            nets.sort_by_cached_key(|net| (database.vshard(net.table, net.key), net.key));
            for net in nets {
                let version = versions.get(&(net.table.id, net.key)).copied();
                table.add(net, version, &ordinal)?;
            }
            table.finish(&mut batch.steps)?;
        }
        Ok(batch)
    }

    fn queue(&self, connection: &mut Connection) {
        for step in &self.steps {
            let statement = match &step.statement {
                StepStatement::Fixed(statement) => statement,
                StepStatement::Update(statement) => statement.as_ref(),
            };
            connection.queue(statement, |params| {
                params.int8(step.first);
                step.arrays.iter().for_each(|array| params.array(array));
            });
        }
    }
}

/// A row that must be there, by key and version.
type Named<'n> = (&'n [u8], (i32, i64));

/// The changes of one table, by statement.
struct TableBatch<'a, 'n> {
    database: &'a Database,
    statements: &'a Statements,
    keeps: Vec<Named<'n>>,
    updates: Vec<(Named<'n>, &'n [u8])>,
    mask: Mask,
    deletes: Vec<Named<'n>>,
    inserts: Vec<(&'n [u8], &'n [u8], u64)>,
    queue_deletes: Vec<Array>,
    queue_inserts: Vec<(&'n [u8], QueueEntry, Number)>,
}

/// A row's serial: that of a row which is there, or its place among the set's new rows.
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
    fn new(database: &'a Database, statements: &'a Statements) -> Self {
        Self {
            database,
            statements,
            keeps: Vec::new(),
            updates: Vec::new(),
            mask: vec![false; statements.layout.def.row_columns.len()],
            deletes: Vec::new(),
            inserts: Vec::new(),
            queue_deletes: vec![Array::new(SqlType::Int8.oid()), Array::new(SqlType::Bytea.oid())],
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
        let named = (net.key, version.expect("rows that must be there have a version"));
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

    /// The entry of an index of which a row has one at most.
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

    /// Keys, versions and serials of rows that must be there.
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
                statement: StepStatement::Fixed(&statements.keep),
                first: count(self.keeps.len()),
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
                statement: StepStatement::Update(statement),
                first: count(rows.len()),
                arrays,
            });
        }
        if !self.deletes.is_empty() {
            let arrays = self.named(&self.deletes)?;
            let first = count(self.deletes.len());
            steps.push(Step { statement: StepStatement::Fixed(&statements.delete), first, arrays });
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
            let first = self.database.serial_base;
            steps.push(Step { statement: StepStatement::Fixed(&statements.insert), first, arrays });
        }
        if self.queue_deletes[0].len() > 0 {
            let statement = statements.queue_delete.as_ref().expect("it has a queue");
            let first = count(self.queue_deletes[0].len());
            let arrays = std::mem::take(&mut self.queue_deletes);
            steps.push(Step { statement: StepStatement::Fixed(statement), first, arrays });
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
            let first = self.database.serial_base;
            steps.push(Step { statement: StepStatement::Fixed(statement), first, arrays });
        }
        Ok(())
    }
}
