//! The typed interface to a backend.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use batzen_metrics::Page;

use crate::{
    Backend, ChangeSet, Column, CommitFeed, CommitOutcome, FrozenRows, RawRecord, RawRow, Read, ReadAnswer,
    Record, Result, RowVersion, StoreError, StoreStats, Table, TableDef,
};

/// A row as stored.
#[derive(Debug, Clone)]
pub struct Stored<R> {
    /// Its content.
    pub row: R,
    /// Its number in commit order.
    pub serial: u64,
    /// The version of the row.
    pub version: RowVersion,
}

/// Versions are not compared: they differ between backends.
impl<R: PartialEq> PartialEq for Stored<R> {
    fn eq(&self, other: &Self) -> bool {
        self.row == other.row && self.serial == other.serial
    }
}

impl<R: Eq> Eq for Stored<R> {}

/// A row found by other means than its key.
pub struct Found<T: Table> {
    /// Its key.
    pub key: T::Key,
    /// Its content.
    pub row: T::Row,
    /// Its number in commit order.
    pub serial: u64,
    /// The version of the row.
    pub version: RowVersion,
}

impl<T: Table> Clone for Found<T> {
    fn clone(&self) -> Self {
        let (serial, version) = (self.serial, self.version);
        Self { key: self.key.clone(), row: self.row.clone(), serial, version }
    }
}

impl<T: Table> PartialEq for Found<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.row == other.row && self.serial == other.serial
    }
}

impl<T: Table> fmt::Debug for Found<T>
where
    T::Key: fmt::Debug,
    T::Row: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("key", &self.key)
            .field("row", &self.row)
            .field("serial", &self.serial)
            .finish()
    }
}

impl<R: Record> Stored<R> {
    /// Decodes a row that a backend returned.
    ///
    /// # Errors
    /// If its bytes are not a row of the table.
    pub fn decode<T: Table<Row = R>>(raw: RawRow) -> Result<Self> {
        let row = R::decode(&raw.row).map_err(decode_error::<T>)?;
        Ok(Self { row, serial: raw.serial, version: raw.version })
    }
}

impl<T: Table> Found<T> {
    /// Decodes a record that a backend returned.
    ///
    /// # Errors
    /// If its bytes are not a record of the table.
    pub fn decode(raw: RawRecord) -> Result<Self> {
        Ok(Self {
            key: T::Key::decode(&raw.key).map_err(decode_error::<T>)?,
            row: T::Row::decode(&raw.row).map_err(decode_error::<T>)?,
            serial: raw.serial,
            version: raw.version,
        })
    }
}

/// Reads of several tables that go to the store together: see [`Backend::read_many`].
#[derive(Debug, Default)]
pub struct Reads(Vec<Read>);

/// Identifies the answer to a read of one row.
pub struct AskedRow<T>(usize, PhantomData<T>);
/// Identifies the answer to a lookup.
pub struct AskedGroup<T>(usize, PhantomData<T>);

impl Reads {
    /// Adds a read of the row under a key.
    pub fn get<T: Table>(&mut self, key: &T::Key) -> AskedRow<T> {
        let n = self.ask(Read::Rows { table: T::DEF, keys: vec![key.to_bytes()] });
        AskedRow(n, PhantomData)
    }

    /// Adds a lookup of all rows that a hash or prefix index has under a value, in the order of their
    /// serials.
    pub fn lookup<T: Table>(&mut self, index: u8, value: &impl Column) -> AskedGroup<T> {
        let n = self.ask(Read::Groups { table: T::DEF, index, values: vec![value.to_bytes()] });
        AskedGroup(n, PhantomData)
    }

    fn ask(&mut self, read: Read) -> usize {
        self.0.push(read);
        self.0.len() - 1
    }
}

/// The answers to [`Reads`].
#[derive(Debug)]
pub struct Answers(Vec<ReadAnswer>);

impl Answers {
    /// The row under the requested key.
    ///
    /// # Errors
    /// If its bytes are not a row of the table.
    pub fn row<T: Table>(&mut self, asked: AskedRow<T>) -> Result<Option<Stored<T::Row>>> {
        let ReadAnswer::Rows(rows) = &mut self.0[asked.0] else { unreachable!("answers follow the reads") };
        rows.pop().flatten().map(Stored::decode::<T>).transpose()
    }

    /// The rows under the requested value.
    ///
    /// # Errors
    /// If their bytes are not records of the table.
    pub fn group<T: Table>(&mut self, asked: AskedGroup<T>) -> Result<Vec<Found<T>>> {
        let ReadAnswer::Groups(groups) = &mut self.0[asked.0] else {
            unreachable!("answers follow the reads")
        };
        groups.pop().unwrap_or_default().into_iter().map(Found::decode).collect()
    }
}

/// A handle on a store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
}

impl Store {
    /// A store on this backend.
    pub fn new(backend: impl Backend) -> Self {
        Self { backend: Arc::new(backend) }
    }

    /// A store on a shared backend.
    #[must_use]
    pub fn shared(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The row under a key.
    ///
    /// # Errors
    /// If the disk fails or its data is damaged. The same holds for all reads below.
    pub fn get<T: Table>(&self, key: &T::Key) -> Result<Option<Stored<T::Row>>> {
        Ok(self.get_many::<T>(std::slice::from_ref(key))?.pop().flatten())
    }

    /// The rows under these keys, in the order of the keys.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_many<T: Table>(&self, keys: &[T::Key]) -> Result<Vec<Option<Stored<T::Row>>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Vec<u8>> = keys.iter().map(Record::to_bytes).collect();
        let rows = self.backend.get_many(T::DEF, &keys)?;
        assert_eq!(rows.len(), keys.len(), "a backend answers for every key");
        rows.into_iter().map(|row| row.map(Stored::decode::<T>).transpose()).collect()
    }

    /// Several reads at once, in one snapshot if the backend has snapshots.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn read(&self, reads: Reads) -> Result<Answers> {
        self.read_many(&reads.0).map(Answers)
    }

    /// All rows that a hash or prefix index has under a value, in the order of their serials.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn lookup<T: Table>(&self, index: u8, value: &impl Column) -> Result<Vec<Found<T>>> {
        let mut found = self.lookup_many_bytes::<T>(index, &[value.to_bytes()])?;
        Ok(found.pop().unwrap_or_default())
    }

    /// Like [`Store::lookup`] for several values, in their order.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn lookup_many<T: Table>(&self, index: u8, values: &[impl Column]) -> Result<Vec<Vec<Found<T>>>> {
        let values: Vec<Vec<u8>> = values.iter().map(Column::to_bytes).collect();
        self.lookup_many_bytes::<T>(index, &values)
    }

    /// The same for encoded values (several columns).
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn lookup_many_bytes<T: Table>(&self, index: u8, values: &[Vec<u8>]) -> Result<Vec<Vec<Found<T>>>> {
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let groups = self.backend.lookup_many(T::DEF, index, values)?;
        assert_eq!(groups.len(), values.len(), "a backend answers for every value");
        groups.into_iter().map(|group| group.into_iter().map(Found::decode).collect()).collect()
    }

    /// At most `limit` rows of an ordered index, ascending, whose values lie in `values`:
    /// `range(i, ..=now, 100)`.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn range<T: Table, C: Column>(
        &self,
        index: u8,
        values: impl RangeBounds<C>,
        limit: usize,
    ) -> Result<Vec<Found<T>>> {
        let encode = |bound: Bound<&C>| bound.map(Column::to_bytes);
        self.range_bytes::<T>(index, encode(values.start_bound()), encode(values.end_bound()), limit, false)
    }

    /// Like [`Store::range`], in either direction, for encoded values or prefixes of them: an included bound includes all values that start
    /// with it, an excluded one excludes them all.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn range_bytes<T: Table>(
        &self,
        index: u8,
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
        limit: usize,
        descending: bool,
    ) -> Result<Vec<Found<T>>> {
        let from = match from {
            Bound::Excluded(value) => match prefix_successor(&value) {
                Some(next) => Bound::Included(next),
                None => return Ok(Vec::new()),
            },
            other => other,
        };
        let to = match to {
            Bound::Included(value) => prefix_successor(&value).map_or(Bound::Unbounded, Bound::Excluded),
            other => other,
        };
        self.range_positions::<T>(index, from, to, limit, descending)
    }

    /// The same between positions, to continue after a row that was read before: its position is the value's
    /// bytes followed by the key's (or, in a serial index, by the serial's).
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn range_positions<T: Table>(
        &self,
        index: u8,
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
        limit: usize,
        descending: bool,
    ) -> Result<Vec<Found<T>>> {
        let records = self.backend.range(
            T::DEF,
            index,
            from.as_ref().map(Vec::as_slice),
            to.as_ref().map(Vec::as_slice),
            limit,
            descending,
        )?;
        assert!(records.len() <= limit, "a backend respects the limit");
        records.into_iter().map(Found::decode).collect()
    }

    /// Passes the positions (value, then key or serial) of an ordered or serial index's entries to `visit`,
    /// ascending, until it breaks. Reads nothing from the disk, so queues can be searched fast if their
    /// values are sufficient. Commits wait meanwhile, so `visit` must be quick and must not use the store.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn positions<T: Table>(
        &self,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.backend.positions(T::DEF, index, from, to, &mut visit)
    }

    /// Passes every row of one snapshot to `visit`, in any order, until it breaks.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn scan<T: Table>(&self, mut visit: impl FnMut(Found<T>) -> ControlFlow<()>) -> Result<()> {
        let mut failed = Ok(());
        self.backend.scan(T::DEF, &mut |record| match Found::<T>::decode(record) {
            Ok(found) => visit(found),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        })?;
        failed
    }

    /// Every row, in the order of serials. For small tables and tests.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn all<T: Table>(&self) -> Result<Vec<Found<T>>> {
        let mut rows = Vec::new();
        self.scan::<T>(|found| {
            rows.push(found);
            ControlFlow::Continue(())
        })?;
        rows.sort_by_key(|found| found.serial);
        Ok(rows)
    }

    /// Takes a snapshot of these tables, to be read later.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn freeze(&self, tables: &[&'static TableDef]) -> Result<Box<dyn FrozenRows>> {
        self.backend.freeze(tables)
    }

    /// Answers several reads in order, in one round trip if the backend is networked.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        let answers = self.backend.read_many(reads)?;
        assert_eq!(answers.len(), reads.len(), "a backend answers every read");
        Ok(answers)
    }

    /// Number of rows that the table has.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn count<T: Table>(&self) -> Result<u64> {
        self.backend.count(T::DEF)
    }

    /// Applies a change set: durable if it returns [`CommitOutcome::Committed`], without any effect
    /// otherwise.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there is no space, [`StoreError::Stale`] when a row differs from the one
    /// that the set says was read, [`StoreError::TooLarge`] for a row of more than
    /// [`ROW_BYTES_MAX`](crate::ROW_BYTES_MAX) or more rows than the backend accepts at once.
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        if changes.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        changes.check_row_sizes()?;
        self.backend.commit(changes)
    }

    /// Checks with a cheap write or request whether commits can succeed now, for readiness checks. Blocks.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub fn check_writable(&self) -> Result<()> {
        self.backend.check_writable()
    }

    /// The committed changes in their order.
    ///
    /// # Errors
    /// If the backend cannot tell them: only an embedded store can.
    pub fn feed(&self) -> Result<&dyn CommitFeed> {
        let missing =
            "only an embedded store can tell its changes in their order; PostgreSQL has logical replication";
        self.backend.feed().ok_or_else(|| StoreError::Backend(missing.into()))
    }

    /// Counts since the store was opened.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.backend.stats()
    }

    /// Writes `batzen_store_*`, including the number of rows in each of these tables.
    pub fn write_metrics(&self, page: &mut Page, tables: &[&'static TableDef]) {
        let stats = self.stats();
        page.gauge("batzen_store_rows", "Live rows", stats.rows);
        // Tables that the store was not opened with are left out.
        let rows =
            tables.iter().filter_map(|table| Some((table.name, self.backend.count_estimate(table).ok()?)));
        page.gauges("batzen_store_table_rows", "Live rows by table", "table", rows);
        page.counter("batzen_store_commits_total", "Commits", stats.commits_total);
        if stats.frames_total > 0 {
            page.counter(
                "batzen_store_frames_total",
                "Writes of commits, each of one or of several",
                stats.frames_total,
            );
            page.seconds(
                "batzen_store_serial_cpu_seconds_total",
                "CPU time of the part of commits that runs one at a time",
                Duration::from_micros(stats.serial_cpu_us_total),
            );
        }
        page.counter("batzen_store_changes_total", "Row changes committed", stats.changes_total);
        if let Some(times) = self.backend.sync_times() {
            page.histogram("batzen_store_sync_seconds", "Time a commit waited for the disk", times);
        }
        page.counter(
            "batzen_store_written_bytes_total",
            "Bytes appended by commits",
            stats.written_bytes_total,
        );
        page.gauge("batzen_store_disk_bytes", "Bytes on disk", stats.disk_bytes);
        page.gauge("batzen_store_live_bytes", "Bytes on disk of live rows", stats.live_bytes);
        if let Some(free) = stats.disk_free_bytes {
            page.gauge("batzen_store_disk_free_bytes", "Free bytes of the file system", free);
        }
        page.gauge("batzen_store_segments", "Files that hold data", stats.segments);
        page.gauge("batzen_store_index_bytes", "Memory taken by indexes", stats.index_bytes);
        page.counter("batzen_store_compacted_total", "Segments removed by compaction", stats.compacted_total);
        page.counter("batzen_store_checkpoints_total", "Index checkpoints written", stats.checkpoints_total);
        self.backend.write_metrics(page);
    }

    /// Makes the next opening fast.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn checkpoint(&self) -> Result<()> {
        self.backend.checkpoint()
    }

    /// Ends background work and writes a last checkpoint.
    ///
    /// # Errors
    /// When the disk fails; all commits are durable regardless.
    pub fn close(&self) -> Result<()> {
        self.backend.close()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// Returns whether a scan goes on after a row. The first error ends it, and is the outcome.
pub fn go_on<E>(
    result: std::result::Result<(), E>,
    outcome: &mut std::result::Result<(), E>,
) -> ControlFlow<()> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *outcome = Err(error);
            ControlFlow::Break(())
        }
    }
}

/// The smallest byte string that is greater than all strings with this prefix; `None` if there is none.
#[must_use]
pub fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            return Some(next);
        }
    }
    None
}

fn decode_error<T: Table>(source: crate::DecodeError) -> StoreError {
    StoreError::Decode { table: T::DEF.name, source }
}
