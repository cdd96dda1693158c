//! The interface of a storage backend, which sees only bytes.

use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use batzen_metrics::{Histogram, Page};

use crate::{CommitFeed, Record, Result, StoreError, Table, TableDef};

/// Identifies one version of a row. A change of the row passes it back, so that the backend can check without
/// another read that the row is unchanged. It is only valid for the backend that issued it, until the store
/// is reopened; otherwise rows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowVersion {
    pub(crate) place: u64,
    pub(crate) serial: u64,
    pub(crate) birth: u32,
}

impl RowVersion {
    /// A version, for backends outside this crate: three numbers whose meaning is up to the backend.
    #[must_use]
    pub const fn new(place: u64, serial: u64, birth: u32) -> Self {
        Self { place, serial, birth }
    }

    /// The first number.
    #[must_use]
    pub const fn place(self) -> u64 {
        self.place
    }

    /// The second number.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.serial
    }

    /// The third number.
    #[must_use]
    pub const fn birth(self) -> u32 {
        self.birth
    }
}

/// A stored row.
#[derive(Debug, Clone)]
pub struct RawRow {
    /// Its bytes.
    pub row: Vec<u8>,
    /// Its number in commit order, assigned at insert and kept on update.
    pub serial: u64,
    /// The version of the row.
    pub version: RowVersion,
}

/// Versions are not compared: they differ between backends.
impl PartialEq for RawRow {
    fn eq(&self, other: &Self) -> bool {
        (&self.row, self.serial) == (&other.row, other.serial)
    }
}

impl Eq for RawRow {}

/// A stored row with its key.
#[derive(Debug, Clone)]
pub struct RawRecord {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The row's bytes.
    pub row: Vec<u8>,
    /// Its number in commit order.
    pub serial: u64,
    /// The version of the row.
    pub version: RowVersion,
}

/// Versions are not compared: they differ between backends.
impl PartialEq for RawRecord {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.row, self.serial) == (&other.key, &other.row, other.serial)
    }
}

impl Eq for RawRecord {}

/// One change of one row.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// A row that must not exist yet.
    Insert {
        /// Where.
        table: &'static TableDef,
        /// Its key.
        key: Vec<u8>,
        /// Its content.
        row: Vec<u8>,
    },
    /// New content for a row that must equal `old_row`.
    Update {
        /// Where.
        table: &'static TableDef,
        /// Its key.
        key: Vec<u8>,
        /// The row as it was read.
        old_row: Vec<u8>,
        /// The version that was read, if known.
        version: Option<RowVersion>,
        /// Its new content.
        row: Vec<u8>,
    },
    /// Removes a row that must equal `old_row`.
    Delete {
        /// Where.
        table: &'static TableDef,
        /// Its key.
        key: Vec<u8>,
        /// The row as it was read.
        old_row: Vec<u8>,
        /// The version that was read, if known.
        version: Option<RowVersion>,
    },
}

impl Change {
    /// The table that changes.
    #[must_use]
    pub fn table(&self) -> &'static TableDef {
        match self {
            Self::Insert { table, .. } | Self::Update { table, .. } | Self::Delete { table, .. } => table,
        }
    }

    /// The key of the row that changes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Insert { key, .. } | Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The row before the change: `None` for an insert.
    #[must_use]
    pub fn old_row(&self) -> Option<&[u8]> {
        match self {
            Self::Insert { .. } => None,
            Self::Update { old_row, .. } | Self::Delete { old_row, .. } => Some(old_row),
        }
    }

    /// The version of the row that was read, if known.
    #[must_use]
    pub fn version(&self) -> Option<RowVersion> {
        match self {
            Self::Insert { .. } => None,
            Self::Update { version, .. } | Self::Delete { version, .. } => *version,
        }
    }

    /// The row after the change: `None` for a delete.
    #[must_use]
    pub fn new_row(&self) -> Option<&[u8]> {
        match self {
            Self::Insert { row, .. } | Self::Update { row, .. } => Some(row),
            Self::Delete { .. } => None,
        }
    }
}

/// Rows may hold secrets, so only table and sizes are printed.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self {
            Self::Insert { .. } => "insert into",
            Self::Update { .. } => "update in",
            Self::Delete { .. } => "delete from",
        };
        let bytes = self.new_row().map_or(0, <[u8]>::len);
        write!(f, "{verb} {} ({}-byte key, {bytes}-byte row)", self.table().name, self.key().len())
    }
}

/// Changes that become durable together or not at all, applied in order. One row may change several times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeSet {
    changes: Vec<Change>,
}

/// The largest row that every backend accepts, in bytes: encoded, together with its key.
pub const ROW_BYTES_MAX: u64 = 64 << 20;

/// Refuses a row that is larger than [`ROW_BYTES_MAX`].
pub(crate) fn check_row_size(key: &[u8], row: Option<&[u8]>) -> Result<()> {
    let bytes = (key.len() + row.map_or(0, <[u8]>::len)) as u64;
    if bytes > ROW_BYTES_MAX {
        return Err(StoreError::TooLarge { bytes, limit: ROW_BYTES_MAX });
    }
    Ok(())
}

impl ChangeSet {
    /// No changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No changes, with capacity for `count`.
    #[must_use]
    pub fn with_capacity(changes: usize) -> Self {
        Self { changes: Vec::with_capacity(changes) }
    }

    /// Adds a row that must not exist.
    pub fn insert<T: Table>(&mut self, key: &T::Key, row: &T::Row) {
        self.push(Change::Insert { table: T::DEF, key: key.to_bytes(), row: row.to_bytes() });
    }

    /// Replaces `old`, which is the row as it was read, with `row`.
    pub fn update<T: Table>(&mut self, key: &T::Key, old: &T::Row, row: &T::Row) {
        self.update_read::<T>(key, (old, None), row);
    }

    /// The same, with the version that was read.
    pub fn update_read<T: Table>(
        &mut self,
        key: &T::Key,
        (old, version): (&T::Row, Option<RowVersion>),
        row: &T::Row,
    ) {
        let (key, old_row, row) = (key.to_bytes(), old.to_bytes(), row.to_bytes());
        self.push(Change::Update { table: T::DEF, key, old_row, version, row });
    }

    /// Removes `old`, which is the row as it was read.
    pub fn delete<T: Table>(&mut self, key: &T::Key, old: &T::Row) {
        self.delete_read::<T>(key, (old, None));
    }

    /// The same, with the version that was read.
    pub fn delete_read<T: Table>(&mut self, key: &T::Key, (old, version): (&T::Row, Option<RowVersion>)) {
        let (key, old_row) = (key.to_bytes(), old.to_bytes());
        self.push(Change::Delete { table: T::DEF, key, old_row, version });
    }

    /// Depends on a row without changing it: the set is stale if the row differs from `old`, and no other set
    /// that changes the row can commit at the same time. It is equivalent to an update of the row to itself
    /// that writes nothing.
    pub fn keep_read<T: Table>(&mut self, key: &T::Key, (old, version): (&T::Row, Option<RowVersion>)) {
        let (key, old_row) = (key.to_bytes(), old.to_bytes());
        self.push(Change::Update { table: T::DEF, key, row: old_row.clone(), old_row, version });
    }

    /// Refuses a set with a row that is larger than [`ROW_BYTES_MAX`].
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub(crate) fn check_row_sizes(&self) -> Result<()> {
        self.changes.iter().try_for_each(|change| check_row_size(change.key(), change.new_row()))
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Adds all changes of another set after these.
    pub fn append(&mut self, mut other: Self) {
        self.changes.append(&mut other.changes);
    }

    /// The changes in order.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Number of changes that there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The end of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a conflict means that nothing was written"]
pub enum CommitOutcome {
    /// Every change is durable.
    Committed,
    /// These inserts met existing rows. Nothing was written.
    Conflict(Vec<(&'static TableDef, Vec<u8>)>),
}

/// Counts for metrics and tools. Totals start when the store is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Live rows in all tables.
    pub rows: u64,
    /// Commits since opening.
    pub commits_total: u64,
    /// Row changes committed since opening.
    pub changes_total: u64,
    /// Writes of commits since opening. Commits that wait at the same time share one. 0 if the backend does not
    /// count them.
    pub frames_total: u64,
    /// CPU time of the part of commits that runs one at a time, since opening, in microseconds.
    pub serial_cpu_us_total: u64,
    /// Time spent waiting for the disk in commits since opening, in microseconds.
    pub sync_us_total: u64,
    /// Bytes appended by commits since opening.
    pub written_bytes_total: u64,
    /// Bytes on disk that hold data, including dead records.
    pub disk_bytes: u64,
    /// The part of `disk_bytes` that holds live rows.
    pub live_bytes: u64,
    /// Files that hold data.
    pub segments: u64,
    /// The memory used by indexes, estimated, in bytes.
    pub index_bytes: u64,
    /// Files that hold index entries.
    pub index_files: u64,
    /// The size of these files, in bytes.
    pub index_file_bytes: u64,
    /// Segments removed by compaction since opening.
    pub compacted_total: u64,
    /// Index checkpoints written since opening.
    pub checkpoints_total: u64,
    /// Free bytes of the store's file system; `None` if there is none, or it does not report them.
    pub disk_free_bytes: Option<u64>,
}

/// One of several reads that a backend answers together; see [`Backend::read_many`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Like [`Backend::get_many`].
    Rows {
        /// The table.
        table: &'static TableDef,
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Like [`Backend::lookup_many`].
    Groups {
        /// The table.
        table: &'static TableDef,
        /// The index.
        index: u8,
        /// The values.
        values: Vec<Vec<u8>>,
    },
    /// Like [`Backend::range`].
    Range {
        /// The table.
        table: &'static TableDef,
        /// The index.
        index: u8,
        /// The first position.
        from: Bound<Vec<u8>>,
        /// The last position.
        to: Bound<Vec<u8>>,
        /// The maximum number of rows.
        limit: usize,
        /// Whether the order is descending.
        descending: bool,
    },
}

/// The answer to the [`Read`] of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadAnswer {
    /// For each key, its row if there is one.
    Rows(Vec<Option<RawRow>>),
    /// The rows under each value.
    Groups(Vec<Vec<RawRecord>>),
    /// The rows of the range.
    Range(Vec<RawRecord>),
}

/// A notice to subscribers; see [`Backend::subscribe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A topic that was passed to [`Backend::notify`].
    Topic(&'a str),
    /// Topics may have been missed, because the connection was lost for a while.
    Missed,
}

/// Called with every notice, on a thread of the backend. It must be quick and must not use the backend.
pub type Subscriber = Box<dyn Fn(Notice<'_>) + Send + Sync>;

/// A snapshot of several tables; see [`Backend::freeze`].
pub trait FrozenRows: Send {
    /// Passes every row of a table to `visit`, in any order, until it breaks.
    ///
    /// # Errors
    /// When the disk fails or its data is damaged, or the table was not frozen.
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()>;
}

/// A storage backend. All methods may be called from several threads at once, but not from async threads,
/// since they block.
///
/// Each read sees one state between commits. Rows may change after a read: callers that depend on them put
/// them into their change set (`old_row`), which is then stale.
pub trait Backend: Send + Sync + 'static {
    /// The rows under these keys, in the order of the keys.
    ///
    /// # Errors
    /// If the disk fails or its data is damaged. The same holds for all reads below.
    fn get_many(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>>;

    /// For each value, all rows that a [`Hash`](crate::IndexKind::Hash) or
    /// [`Prefix`](crate::IndexKind::Prefix) index has under it, in the order of their serials.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn lookup_many(
        &self,
        table: &'static TableDef,
        index: u8,
        values: &[Vec<u8>],
    ) -> Result<Vec<Vec<RawRecord>>>;

    /// At most `limit` rows of an [`Ordered`](crate::IndexKind::Ordered) or
    /// [`Serial`](crate::IndexKind::Serial) index in its order. An entry's position is its value followed by
    /// the key (or, for `Serial`, by the serial as eight bytes big-endian); the bounds are compared with
    /// positions, so a bare value comes before all its entries.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn range(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        descending: bool,
    ) -> Result<Vec<RawRecord>>;

    /// Answers several reads in order. If others (processes or lanes) commit meanwhile, all reads still see
    /// one state between two commits, since rules rely on relations between rows of several tables. A
    /// networked backend sends all of them at once.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        let answer = |read: &Read| match read {
            Read::Rows { table, keys } => self.get_many(table, keys).map(ReadAnswer::Rows),
            Read::Groups { table, index, values } => {
                self.lookup_many(table, *index, values).map(ReadAnswer::Groups)
            }
            Read::Range { table, index, from, to, limit, descending } => {
                let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                self.range(table, *index, from, to, *limit, *descending).map(ReadAnswer::Range)
            }
        };
        reads.iter().map(answer).collect()
    }

    /// Passes the positions of the entries between the bounds to `visit`, ascending, until it breaks. Like
    /// [`Backend::range`], but without reading rows. Commits wait meanwhile, so `visit` must be quick and
    /// must not use the backend.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn positions(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Passes every row of one snapshot to `visit`, in any order, until it breaks.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Takes a snapshot of these tables, to be read later. Only the locations of rows are copied, and later
    /// changes are not visible. Segments that compaction empties keep their space until the snapshot is
    /// dropped.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn freeze(&self, tables: &[&'static TableDef]) -> Result<Box<dyn FrozenRows>>;

    /// Number of rows that the table has.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn count(&self, table: &'static TableDef) -> Result<u64>;

    /// An estimate of the number of rows, at no cost, for metrics.
    ///
    /// # Errors
    /// As [`Backend::get_many`].
    fn count_estimate(&self, table: &'static TableDef) -> Result<u64> {
        self.count(table)
    }

    /// Notifies subscribers in other processes on the same store. A notice is a hint: it may be lost,
    /// repeated or late, and is not part of a commit. Does nothing if the store belongs to one process.
    fn notify(&self, _topics: &[String]) {}

    /// Subscribes to the topics that other processes (and perhaps this one) pass to [`Backend::notify`],
    /// until the backend is dropped.
    fn subscribe(&self, _subscriber: Subscriber) {}

    /// Checks with a cheap write or request whether commits can succeed now, for readiness checks.
    ///
    /// # Errors
    /// The reason why they cannot.
    fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the backend's own metrics.
    fn write_metrics(&self, _page: &mut Page) {}

    /// Applies a change set: durable if it returns [`CommitOutcome::Committed`], without any effect
    /// otherwise.
    ///
    /// # Errors
    /// [`StoreError::Full`](crate::StoreError::Full) when there is no space,
    /// [`StoreError::Stale`](crate::StoreError::Stale) when an `old_row` differs from the stored row,
    /// [`StoreError::Unavailable`](crate::StoreError::Unavailable) if the server stays unreachable.
    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome>;

    /// The virtual shard of a shard key ([`vshard`](crate::vshard) under the store's random key): commands of
    /// one shard go through one lane.
    fn vshard(&self, shard_key: &[u8]) -> u16 {
        crate::vshard(&[0; 16], shard_key)
    }

    /// The lane of so many that has the commands of this shard key. Each has an equal range of virtual shards, unless the
    /// backend has them in parts of its own, so that a lane goes to as few parts as possible.
    fn lane(&self, shard_key: &[u8], lanes: usize) -> usize {
        usize::from(self.vshard(shard_key)) * lanes / usize::from(crate::VSHARD_COUNT)
    }

    /// Returns the number of lanes that suit the backend; `None` if that depends on the cores of this machine
    /// alone.
    fn lanes_wanted(&self) -> Option<usize> {
        None
    }

    /// The shortest of a few round trips to the server that has the data; `None` if it is in this process, or does not
    /// answer.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the data is in another process that others use as well. Then each read is a round
    /// trip, others change rows, and caches in this process must be kept up to date.
    fn is_remote(&self) -> bool {
        false
    }

    /// The committed changes in their order, if the backend can tell them.
    fn feed(&self) -> Option<&dyn CommitFeed> {
        None
    }

    /// Counts since the store was opened.
    fn stats(&self) -> StoreStats;

    /// Time that commits waited for the disk; `None` if the backend has no disk.
    fn sync_times(&self) -> Option<&Histogram> {
        None
    }

    /// Makes the next opening fast. It is not needed for correctness.
    ///
    /// # Errors
    /// When the disk fails.
    fn checkpoint(&self) -> Result<()>;

    /// Ends background work and writes a last checkpoint. Later commits are refused.
    ///
    /// # Errors
    /// When the disk fails; all commits are durable regardless.
    fn close(&self) -> Result<()>;
}
