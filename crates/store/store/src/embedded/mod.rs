//! The embedded backend: an append-only journal on disk, and compact indexes.
//!
//! A commit is one checksummed frame, one write and one `fdatasync`; the segments of the journal are filled
//! with zeros in advance, so that the sync has no metadata to flush. Rows stay in the journal and are read
//! from there (mostly from the page cache). Memory holds the latest changes of the indexes; older entries are
//! in immutable files (`runs`), of which memory has filters of some ten bits an entry.
//!
//! * A torn tail (an interrupted write with nothing genuine after it, and not before the end of a checkpoint
//!   or tail mark) was never acknowledged and is dropped. Any other damage, even in the last frame, prevents
//!   opening with [`StoreError::Corrupt`]: a frame's seal distinguishes the two (`tail.rs`).
//! * A failed write or sync of a commit ends the process ([`Options::on_fatal`]): the content of the disk is
//!   unknown until the store is opened again. If the disk is full, the commit is only refused.
//! * Compaction copies live records from segments that are mostly dead; a checkpoint of the indexes makes
//!   opening fast, and is written before a compacted segment is removed. The journal can be replayed at any
//!   time.

mod checkpoint;
mod claims;
mod commit;
mod cut;
mod disk;
mod feed;
mod format;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz_entry;
mod group;
mod head;
mod index;
mod input;
mod lookup;
mod maintain;
mod migrate;
mod ordered;
mod pack;
mod packed;
mod record;
mod recover;
mod runs;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
mod tail;
mod verify;
mod view;
mod writer;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

pub(crate) use cut::CutTail;
pub use disk::{Disk, DiskFile, RealDisk};
pub use format::FrameKind;
pub use verify::{FrameInfo, RecordInfo, Report};

use batzen_metrics::{Histogram, Page};

use crate::memory::is_empty_range;
use crate::{
    Backend, ChangeSet, CommitFeed, CommitOutcome, FrozenRows, IndexEntries, IndexKind, RawRecord, RawRow,
    Read, ReadAnswer, Result, StoreError, StoreStats, TableDef,
};
use claims::Claims;
use format::Identity;
use group::Group;
use index::{Secondary, SecondaryEntry, TableIndex};
use lookup::RangeRead;
use maintain::{Maintainer, Maintenance};
use ordered::Position;
use record::{RecordCache, Rows};
use runs::{Cold, KnownMarks};
use shared::Dictionary;
use view::ViewDisk;
use writer::Writer;

/// Number of bytes that [`Backend::check_writable`] writes: a block of the file system.
const PROBE_BYTES: usize = 4096;

/// Called when the store cannot continue; see [`Options::on_fatal`].
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Options of a store. The defaults are for production.
#[derive(Clone)]
pub struct Options {
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// The size of the first journal segment in bytes; each one after it is twice as large.
    pub segment_bytes_first: u64,
    /// The size at which segments stop growing, in bytes (at most 128 MiB).
    pub segment_bytes_max: u64,
    /// A segment is compacted once this percentage of it is dead.
    pub compaction_dead_percent: u64,
    /// The maximum number of bytes that one step of compaction copies. Commits wait meanwhile.
    pub compaction_step_bytes: usize,
    /// Number of bytes of rows that are migrated to a new layout at once. Only while the store is being opened.
    pub migration_batch_bytes: usize,
    /// A checkpoint is written after this many bytes of journal.
    pub checkpoint_bytes: u64,
    /// The memory for index entries, in bytes. Older entries are on disk only, and memory has filters for them.
    /// The positions of ordered indexes are in memory in any case.
    pub index_hot_bytes: u64,
    /// Number of locations of rows that a reader of a whole table holds at once.
    pub scan_rows_at_once: usize,
    /// Time that commits that need a new segment are refused without another attempt after the disk was found
    /// to be full.
    pub full_pause: Duration,
    /// Whether a background thread does maintenance. Otherwise [`EmbeddedStore::maintain`] does it.
    pub background: bool,
    /// Called with the reason if a commit's write or sync fails. The default logs it and aborts the process.
    /// If it returns (in tests), the store refuses all further commits.
    pub on_fatal: FatalHook,
    /// The store id and hash key of a new store, for reproducible tests. Otherwise they are random, as
    /// production requires.
    pub identity: Option<[u8; 32]>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            disk: Arc::new(RealDisk),
            segment_bytes_first: 4 << 20,
            segment_bytes_max: 64 << 20,
            compaction_dead_percent: 50,
            compaction_step_bytes: 256 << 10,
            migration_batch_bytes: 1 << 20,
            checkpoint_bytes: 256 << 20,
            index_hot_bytes: 1 << 30,
            scan_rows_at_once: 2 << 20,
            full_pause: Duration::from_millis(500),
            background: true,
            on_fatal: Arc::new(abort),
            identity: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("segment_bytes_max", &self.segment_bytes_max).finish_non_exhaustive()
    }
}

fn abort(reason: &str) {
    tracing::error!(reason, "the store cannot continue: ending the process; the next start recovers");
    // The log may be disabled, but the reason must be visible.
    eprintln!("batzen-store: {reason}: ending the process; the next start recovers");
    std::process::abort();
}

/// A file of the journal.
pub(crate) struct Segment {
    pub number: u32,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
    /// The limit for the frames.
    pub(crate) capacity: AtomicU64,
    /// The current end of the frames.
    pub(crate) used: AtomicU64,
    /// Bytes of live records.
    pub(crate) live: AtomicU64,
    /// Bytes of tombstones.
    pub(crate) tombstones: AtomicU64,
    /// Compaction has found damage here and skips the segment.
    pub(crate) damaged: AtomicBool,
}

impl Segment {
    pub(crate) fn corrupt(&self, offset: u64, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt { file: self.path.clone(), offset, what: what.into() }
    }
}

pub(crate) type Segments = BTreeMap<u32, Arc<Segment>>;

/// The state that readers see. It changes only after a commit is durable.
pub(crate) struct EngineState {
    /// The latest changes of the indexes.
    pub tables: HashMap<u16, TableIndex>,
    pub(crate) segments: Arc<Segments>,
    /// The indexes before the latest changes.
    pub(crate) cold: Arc<Cold>,
}

pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub changes: AtomicU64,
    /// Frames that hold commits, each of one or of several.
    pub frames: AtomicU64,
    /// CPU time of what only one commit does at a time.
    pub(crate) serial_cpu_ns: AtomicU64,
    pub sync_times: Histogram,
    pub written: AtomicU64,
    pub compacted: AtomicU64,
    pub checkpoints: AtomicU64,
    /// Bytes of journal since the last checkpoint.
    pub(crate) since_checkpoint: AtomicU64,
    /// The number of the next frame; all before it are durable.
    pub(crate) sequence_end: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            commits: AtomicU64::default(),
            changes: AtomicU64::default(),
            frames: AtomicU64::default(),
            serial_cpu_ns: AtomicU64::default(),
            sync_times: Histogram::of_times(),
            written: AtomicU64::default(),
            compacted: AtomicU64::default(),
            checkpoints: AtomicU64::default(),
            since_checkpoint: AtomicU64::default(),
            sequence_end: AtomicU64::default(),
        }
    }
}

/// Locks are taken in the order of the fields: maintenance, marks, writer, next, keeping, state, then those of an ordered
/// index within the state, tree before log. The locks of claims, group, dictionary, records and known marks are held
/// only for moments, and no other lock is taken meanwhile.
pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub identity: Identity,
    pub(crate) schema: u64,
    pub(crate) maintenance: Mutex<Maintenance>,
    pub(crate) marks: Mutex<tail::TailMarks>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) next: Mutex<maintain::NextSegment>,
    pub(crate) keeping: Mutex<feed::Keeping>,
    pub(crate) state: RwLock<EngineState>,
    pub(crate) counters: Counters,
    pub(crate) wake: maintain::Wake,
    pub(crate) claims: Claims,
    pub(crate) group: Group,
    pub(crate) dictionary: Dictionary,
    pub records: RecordCache,
    pub(crate) known_marks: KnownMarks,
    /// Why the store has stopped, if it has.
    pub(crate) stopped: OnceLock<String>,
    _lock: Box<dyn Any + Send + Sync>,
}

/// A poisoned lock means that a thread panicked on a broken invariant. The guarded state changes only in
/// steps that do not panic, so other threads may continue.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error for an index that the journal contradicts.
fn corrupt_index(what: String) -> StoreError {
    StoreError::Corrupt { file: PathBuf::from(format::CHECKPOINT_NAME), offset: 0, what }
}

/// The fingerprint under which a key or an index value is found.
pub(crate) fn fingerprint(identity: &Identity, bytes: &[u8]) -> u64 {
    identity.hash(&[bytes])
}

/// The position of an entry, as [`crate::memory::position`].
fn entry_position(kind: IndexKind, value: &[u8], key: &[u8], serial: u64) -> Position {
    let mut position = Position::from_slice(value);
    match kind {
        IndexKind::Serial => position.extend_from_slice(&serial.to_be_bytes()),
        _ => position.extend_from_slice(key),
    }
    position
}

/// Computes the secondary entries of a record: the slot in the table's definition, and the entry. Entries
/// derived from the key alone may be left out.
pub(crate) fn secondary_entries(
    identity: &Identity,
    def: &TableDef,
    (key, row, serial): (&[u8], &[u8], u64),
    with_prefixes: bool,
    scratch: &mut IndexEntries,
    out: &mut Vec<(u8, SecondaryEntry)>,
) -> Result<()> {
    scratch.clear();
    if def.has_entries() {
        (def.index_entries_raw)(key, row, scratch)
            .map_err(|source| StoreError::Decode { table: def.name, source })?;
    }
    for (slot, index) in (0_u8..).zip(def.indexes) {
        match index.kind {
            IndexKind::Prefix { .. } if !with_prefixes => {}
            IndexKind::Prefix { key_bytes } => {
                out.push((slot, SecondaryEntry::Value(fingerprint(identity, &key[..key_bytes]))));
            }
            kind => {
                for (_, value) in scratch.iter().filter(|(id, _)| *id == index.id) {
                    let entry = match kind {
                        IndexKind::Hash => SecondaryEntry::Value(fingerprint(identity, value)),
                        _ => SecondaryEntry::Position(entry_position(kind, value, key, serial)),
                    };
                    let entry = (slot, entry);
                    if !out.contains(&entry) {
                        out.push(entry);
                    }
                }
            }
        }
    }
    Ok(())
}

impl Core {
    pub(crate) fn check_running(&self) -> Result<()> {
        self.stopped.get().map_or(Ok(()), |reason| Err(StoreError::Stopped(reason.clone())))
    }

    /// Refuses further writes. Returns false if they are already refused.
    pub(crate) fn stop(&self, reason: &str) -> bool {
        self.stopped.set(reason.to_owned()).is_ok()
    }

    /// Where rows of these segments are read.
    pub(crate) fn stored_rows<'a>(&'a self, segments: &'a Segments) -> Rows<'a> {
        Rows { identity: &self.identity, segments, cache: Some(&self.records) }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, EngineState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, EngineState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of an index in its table's definition, and its kind.
    fn slot(table: &TableDef, index: u8) -> (usize, IndexKind) {
        let kind = table.index_def(index).kind;
        let slot = table.indexes.iter().position(|def| def.id == index).expect("index_def found it");
        (slot, kind)
    }
}

/// The state that a reader needs once it has released the state's lock: all of it is immutable.
pub(crate) struct View {
    pub(crate) segments: Arc<Segments>,
    pub(crate) cold: Arc<Cold>,
}

impl EngineState {
    pub(crate) fn view(&self) -> View {
        View { segments: Arc::clone(&self.segments), cold: Arc::clone(&self.cold) }
    }

    /// The memory of the indexes.
    fn index_bytes(&self) -> usize {
        let latest: usize = self.tables.values().map(TableIndex::bytes).sum();
        latest + self.cold.resident_bytes() + self.cold.filter_bytes()
    }

    /// One of the store's tables.
    pub(crate) fn table(&self, table: &TableDef) -> Result<&TableIndex> {
        let index = self.tables.get(&table.id).filter(|index| index.def.is_some());
        index.ok_or_else(|| StoreError::Backend(format!("the store was opened without table {}", table.name)))
    }
}

/// An embedded store.
pub struct EmbeddedStore {
    core: Arc<Core>,
    maintainer: Mutex<Option<Maintainer>>,
}

impl EmbeddedStore {
    /// Opens the store in a directory, or creates it. `tables` must contain all its tables: their definitions
    /// are needed to rebuild the indexes.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process has it open, [`StoreError::Corrupt`] when its data is
    /// damaged, [`StoreError::Format`] when a newer program wrote it.
    pub fn open(path: impl AsRef<Path>, tables: &[&'static TableDef], options: Options) -> Result<Self> {
        let background = options.background;
        let core = Arc::new(recover::open(path.as_ref(), tables, options)?);
        core.migrate(tables)?;
        let maintainer = background.then(|| Maintainer::start(&core));
        Ok(Self { core, maintainer: Mutex::new(maintainer) })
    }

    /// Opens the store in a directory for reading: nothing in the directory changes, so that it may be read-only.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`]; also when there is no store.
    pub fn open_to_read(
        path: impl AsRef<Path>,
        tables: &[&'static TableDef],
        options: Options,
    ) -> Result<Self> {
        let path = path.as_ref();
        if !Self::exists(path) {
            return Err(disk::io_error("read", path, std::io::ErrorKind::NotFound.into()));
        }
        Self::open(
            path,
            tables,
            Options { disk: Arc::new(ViewDisk::default()), background: false, ..options },
        )
    }

    /// Does the background thread's work: prepares the next segment, compacts, merges runs of the indexes, writes
    /// a checkpoint.
    ///
    /// # Errors
    /// If the disk fails or is full. Nothing is lost, and a later call continues.
    pub fn maintain(&self) -> Result<()> {
        self.core.maintain()
    }

    /// Writes a checkpoint, then removes segments that compaction has emptied.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn checkpoint(&self) -> Result<()> {
        self.core.checkpoint()
    }

    /// Number of commits that wait for the frame that is being written, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn commits_waiting(&self) -> usize {
        self.core.group.waiting()
    }

    /// Number of commits that wait for rows that others are changing, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn claims_waiting(&self) -> usize {
        self.core.claims.waiting()
    }

    /// Returns whether a directory holds a store: a manifest, or segments of a journal. If not, opening it
    /// creates a store.
    #[must_use]
    pub fn exists(path: impl AsRef<Path>) -> bool {
        let is_of_store =
            |name: &String| name == format::MANIFEST_NAME || format::segment_number(name).is_some();
        RealDisk.list(path.as_ref()).is_ok_and(|names| names.iter().any(is_of_store))
    }

    /// Reads every byte of the store in a directory, and reports its content and all damage. Changes nothing.
    /// Run it on a store that no process has open, or on a copy.
    ///
    /// # Errors
    /// When there is no store, or its manifest is unreadable.
    pub fn verify(path: impl AsRef<Path>) -> Result<Report> {
        verify::verify(&RealDisk, path.as_ref(), &mut |_| {})
    }

    /// Cuts off the damaged end of a journal that does not open, for an operator who has no backup and
    /// accepts that acknowledged commits may be lost. Keeps the removed bytes and the reason beside the
    /// journal; the next opening rebuilds the indexes. A sound store is not changed, except that its
    /// checkpoint is removed.
    ///
    /// # Errors
    /// If another process has the store open, or if commits follow the damage.
    pub fn cut_tail(path: impl AsRef<Path>, disk: &dyn Disk, reason: &str) -> Result<CutTail> {
        cut::cut_tail(disk, path.as_ref(), reason)
    }

    /// Like [`EmbeddedStore::verify`], and passes every frame to `visit`.
    ///
    /// # Errors
    /// As [`EmbeddedStore::verify`].
    pub fn inspect(
        path: impl AsRef<Path>,
        disk: &dyn Disk,
        visit: &mut dyn FnMut(FrameInfo),
    ) -> Result<Report> {
        verify::verify(disk, path.as_ref(), visit)
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").field("dir", &self.core.dir).finish_non_exhaustive()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        if let Some(maintainer) = lock(&self.maintainer).take() {
            maintainer.stop();
        }
    }
}

impl Backend for EmbeddedStore {
    fn get_many(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        self.core.rows(table, keys)
    }

    fn lookup_many(
        &self,
        table: &'static TableDef,
        index: u8,
        values: &[Vec<u8>],
    ) -> Result<Vec<Vec<RawRecord>>> {
        self.core.groups(table, index, values)
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
        self.core.range(RangeRead { table, index, from, to, limit, descending })
    }

    fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        self.core.read_all(reads)
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
        let (slot, _) = Core::slot(table, index);
        let state = self.core.read();
        let Secondary::Ordered(ordered) = &state.table(table)?.secondary[slot] else {
            unreachable!("slots follow the definition")
        };
        for (position, _) in ordered.all().range::<[u8], _>((from, to)) {
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
        self.core.freeze(&[table])?.scan(table, visit)
    }

    fn freeze(&self, tables: &[&'static TableDef]) -> Result<Box<dyn FrozenRows>> {
        Ok(Box::new(self.core.freeze(tables)?))
    }

    fn count(&self, table: &'static TableDef) -> Result<u64> {
        let state = self.core.read();
        Ok(state.rows(state.table(table)?.id))
    }

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.core.commit(changes)
    }

    fn vshard(&self, shard_key: &[u8]) -> u16 {
        crate::vshard(&self.core.identity.key, shard_key)
    }

    /// Writes a small file next to the journal and removes it.
    fn check_writable(&self) -> Result<()> {
        self.core.check_running()?;
        let (disk, dir) = (&self.core.options.disk, &self.core.dir);
        let path = dir.join(format::PROBE_NAME);
        let file = disk.create(&path).map_err(|source| disk::io_error("create", &path, source))?;
        let written = file.write_at(&[0; PROBE_BYTES], 0);
        disk.remove(&path).map_err(|source| disk::io_error("remove", &path, source))?;
        match written {
            Ok(PROBE_BYTES) => Ok(()),
            Ok(_) => Err(StoreError::Full(dir.display().to_string())),
            Err(source) => Err(disk::io_error("write", &path, source)),
        }
    }

    fn stats(&self) -> StoreStats {
        let state = self.core.read();
        let counters = &self.core.counters;
        let sum = |value: fn(&Segment) -> &AtomicU64| -> u64 {
            state.segments.values().map(|segment| value(segment).load(Ordering::Relaxed)).sum()
        };
        StoreStats {
            rows: state.tables.keys().map(|&id| state.rows(id)).sum(),
            commits_total: counters.commits.load(Ordering::Relaxed),
            changes_total: counters.changes.load(Ordering::Relaxed),
            frames_total: counters.frames.load(Ordering::Relaxed),
            serial_cpu_us_total: counters.serial_cpu_ns.load(Ordering::Relaxed) / 1_000,
            sync_us_total: counters.sync_times.reading().1 / 1_000,
            written_bytes_total: counters.written.load(Ordering::Relaxed),
            disk_bytes: sum(|segment| &segment.used),
            live_bytes: sum(|segment| &segment.live),
            segments: state.segments.len() as u64,
            index_bytes: state.index_bytes() as u64,
            index_files: state.cold.runs.len() as u64,
            index_file_bytes: state.cold.file_bytes(),
            compacted_total: counters.compacted.load(Ordering::Relaxed),
            checkpoints_total: counters.checkpoints.load(Ordering::Relaxed),
            disk_free_bytes: self.core.options.disk.free_bytes(&self.core.dir),
        }
    }

    fn feed(&self) -> Option<&dyn CommitFeed> {
        Some(self)
    }

    fn sync_times(&self) -> Option<&Histogram> {
        Some(&self.core.counters.sync_times)
    }

    fn write_metrics(&self, page: &mut Page) {
        let cold = Arc::clone(&self.core.read().cold);
        page.gauge("batzen_store_index_files", "Files that hold index entries", cold.runs.len() as u64);
        page.gauge(
            "batzen_store_index_file_bytes",
            "Bytes on disk that hold index entries",
            cold.file_bytes(),
        );
        let (bytes, holds) = self.core.held();
        page.gauge("batzen_store_holds", "Readers of changes for which the journal is kept", holds);
        page.gauge("batzen_store_held_bytes", "Bytes on disk that only such readers need", bytes);
    }

    fn checkpoint(&self) -> Result<()> {
        self.core.checkpoint()
    }

    fn close(&self) -> Result<()> {
        if let Some(maintainer) = lock(&self.maintainer).take() {
            maintainer.stop();
        }
        // Under the lock, so that no commit is under way.
        let is_first = {
            let _writer = lock(&self.core.writer);
            self.core.stop("it was closed")
        };
        if is_first && self.core.options.disk.keeps() {
            self.core.mark_tail();
            self.core.checkpoint()?;
        }
        Ok(())
    }
}
