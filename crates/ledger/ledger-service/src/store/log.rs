//! The log in the store: which records each row holds, and how to read them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use batzen_ledger::Account;
use batzen_ledger::machine::read::Directory;
use batzen_ledger::machine::{Digest, History, IdStatus, LogRecord};
use batzen_store::{ChangeSet, Store, StoreError, Stored};
use batzen_tables::ledger::{LedgerLog, LedgerLogKey, LedgerLogRow, LedgerRows, LedgerRowsKey};

use crate::store::block::Block;
use crate::store::codec::{self, BLOCK_RECORDS_MAX, Identity};
use crate::store::snapshot::{GROUP_RECORDS, Head, Ids, ROW_WEIGHT_BYTES, rows_of_group};

/// The part of the log that a snapshot replaces for readers.
#[derive(Clone)]
pub(crate) struct Published {
    /// Its number of records. Rows of the log before are in the index of the store.
    pub records: u64,
    /// The number of these rows.
    pub(crate) log_rows: u64,
    /// The timestamp of the last movement.
    pub(crate) last_movement: u64,
    pub ids: Arc<Ids>,
}

/// The snapshot of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotInspection {
    /// The number of records that it has.
    pub records: u64,
    /// Runs of transfer ids.
    pub id_runs: u64,
    /// Entries in these runs: one for each id, and one more if it was resolved later and is not merged yet.
    pub id_entries: u64,
    /// Disk space that they take, without what the store adds.
    pub id_disk_bytes: u64,
    /// Memory that their filters take.
    pub filter_bytes: u64,
}

/// The index of the log, in memory.
struct Contents {
    snapshot: Published,
    /// Rows after the snapshot.
    blocks: Vec<Block>,
    identities: Vec<Identity>,
    records: u64,
    last_movement: u64,
    /// The size of the rows since a snapshot was last requested, in bytes, with [`ROW_WEIGHT_BYTES`] for each.
    weight_bytes: u64,
    /// Up to here the next snapshot goes.
    requested: Option<u64>,
}

/// The durable log. Readers see whole commits.
pub struct Log {
    store: Store,
    contents: RwLock<Contents>,
    /// Wakes those who wait for a request of a snapshot.
    wake: (Mutex<bool>, Condvar),
}

/// Rows of one commit, to be published once they are durable.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) changes: ChangeSet,
    blocks: Vec<Block>,
    identities: Vec<Identity>,
    records: u64,
    last_movement: u64,
    weight_bytes: u64,
}

/// Clock and digest of a row, and its records.
pub(crate) type RowRecords = ((u64, u128), Vec<LogRecord>);

impl Log {
    /// An empty log, whose ids are hashed with this key.
    pub(crate) fn new(store: Store, hash_key: &[u8; 16]) -> Self {
        Self::resume(store, &Head::new(*hash_key), Ids::new(hash_key), Vec::new())
    }

    /// The log as of a snapshot, whose accounts have these identities.
    pub(crate) fn resume(store: Store, head: &Head, ids: Ids, identities: Vec<Identity>) -> Self {
        let (records, last_movement) = (head.records(), head.summary.last_movement);
        let snapshot = Published { records, log_rows: head.log_rows, last_movement, ids: Arc::new(ids) };
        let blocks = Vec::new();
        let (weight_bytes, requested) = (0, head.target);
        let contents =
            Contents { snapshot, blocks, identities, records, last_movement, weight_bytes, requested };
        Self { store, contents: RwLock::new(contents), wake: (Mutex::new(false), Condvar::new()) }
    }

    /// The store that has the log.
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Contents> {
        self.contents.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of durable records.
    pub fn records(&self) -> u64 {
        self.read().records
    }

    /// The number of rows that hold them.
    pub(crate) fn blocks(&self) -> u64 {
        let contents = self.read();
        contents.snapshot.log_rows + contents.blocks.len() as u64
    }

    /// The rows in memory that begin within these records, in order, at most so many.
    pub(crate) fn rows_within(&self, from: u64, to: u64, count_max: usize) -> Vec<Block> {
        let contents = self.read();
        let at = contents.blocks.partition_point(|block| block.first < from);
        let blocks = contents.blocks[at..].iter().take_while(|block| block.first < to);
        blocks.take(count_max).copied().collect()
    }

    /// Memory that the index of the log takes.
    pub fn memory_bytes(&self) -> u64 {
        let contents = self.read();
        let blocks = contents.blocks.capacity() * size_of::<Block>();
        (blocks + contents.identities.capacity() * size_of::<Identity>()) as u64
    }

    /// The current snapshot.
    pub(crate) fn snapshot(&self) -> Published {
        self.read().snapshot.clone()
    }

    /// The snapshot in numbers.
    pub fn inspect_snapshot(&self) -> SnapshotInspection {
        let Published { records, ids, .. } = self.snapshot();
        SnapshotInspection {
            records,
            id_runs: ids.runs.len() as u64,
            id_entries: ids.entries(),
            id_disk_bytes: ids.disk_bytes(),
            filter_bytes: ids.memory_bytes(),
        }
    }

    /// The number of records that the snapshot has.
    pub(crate) fn snapshot_records(&self) -> u64 {
        self.read().snapshot.records
    }

    /// Makes a snapshot visible to readers.
    pub(crate) fn publish_snapshot(&self, snapshot: Published) {
        let mut contents = self.write();
        let before = contents.blocks.partition_point(|block| block.first < snapshot.records);
        contents.blocks.drain(..before);
        let kept = contents.blocks.len();
        contents.blocks.shrink_to(2 * kept);
        if contents.requested.is_some_and(|requested| requested <= snapshot.records) {
            contents.requested = None;
        }
        contents.snapshot = snapshot;
    }

    /// Up to which record a snapshot is requested.
    pub(crate) fn requested(&self) -> Option<u64> {
        self.read().requested
    }

    /// The size of the log since a snapshot was last requested, in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.read().weight_bytes
    }

    /// Requests a snapshot up to the end of a commit.
    pub(crate) fn request_snapshot(&self, records: u64) {
        let mut contents = self.write();
        contents.requested = Some(records);
        contents.weight_bytes = 0;
        drop(contents);
        self.wake();
    }

    /// Sets the size of the log since a snapshot was last requested.
    pub(crate) fn set_weight(&self, bytes: u64) {
        self.write().weight_bytes = bytes;
    }

    /// Wakes [`Log::wait`].
    pub(crate) fn wake(&self) {
        *self.wake.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.1.notify_all();
    }

    /// Waits until it is woken, or for so long.
    pub(crate) fn wait(&self, time: Duration) {
        let woken = self.wake.0.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.wake.1.wait_timeout_while(woken, time, |woken| !*woken);
        *woken.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Encodes records that follow the durable ones.
    pub(crate) fn encode(&self, records: &[LogRecord], clock: u64, digest: Digest) -> Batch {
        let contents = self.read();
        let mut batch =
            Batch { records: contents.records, last_movement: contents.last_movement, ..Batch::default() };
        drop(contents);
        for run in records.chunk_by(|a, b| codec::is_account(a) == codec::is_account(b)) {
            for block in run.chunks(BLOCK_RECORDS_MAX) {
                batch.add(block, clock, digest);
            }
        }
        batch
    }

    /// Makes a batch, which is now durable, visible to readers.
    pub(crate) fn publish(&self, mut batch: Batch) {
        let mut contents = self.write();
        contents.blocks.append(&mut batch.blocks);
        contents.identities.append(&mut batch.identities);
        contents.records = batch.records;
        contents.last_movement = batch.last_movement;
        contents.weight_bytes += batch.weight_bytes;
    }

    /// Adds a row to the index while the log is opened, and decodes it.
    pub(crate) fn note(&self, first: u64, row: &LedgerLogRow) -> Result<Vec<LogRecord>, StoreError> {
        let mut contents = self.write();
        if first != contents.records {
            return Err(gap(contents.records, first));
        }
        let mut records = Vec::with_capacity(BLOCK_RECORDS_MAX);
        codec::decode(first, &row.records, &contents.identities, |record| records.push(record))
            .map_err(|error| damaged(first, &error))?;
        for record in &records {
            match record {
                LogRecord::Account(account) => contents.identities.push(Identity::of(account)),
                LogRecord::Movement(movement) => contents.last_movement = movement.timestamp,
                LogRecord::Burnt { .. } => {}
            }
        }
        let last_movement = contents.last_movement;
        contents.blocks.push(Block { first, last_movement });
        contents.records += records.len() as u64;
        contents.weight_bytes += row.records.len() as u64 + ROW_WEIGHT_BYTES;
        Ok(records)
    }

    fn decode(&self, first: u64, row: Option<LedgerLogRow>) -> Result<RowRecords, StoreError> {
        let row =
            row.ok_or_else(|| StoreError::Backend(format!("the log lacks the row of record {first}")))?;
        let mut records = Vec::with_capacity(BLOCK_RECORDS_MAX);
        let contents = self.read();
        codec::decode(first, &row.records, &contents.identities, |record| records.push(record))
            .map_err(|error| damaged(first, &error))?;
        Ok(((row.clock, row.digest), records))
    }

    fn block(&self, first: u64) -> Result<Vec<LogRecord>, StoreError> {
        let row = self.store.get::<LedgerLog>(&LedgerLogKey { first })?;
        self.decode(first, row.map(|stored| stored.row)).map(|(_, records)| records)
    }

    /// Reads rows of the log.
    pub(crate) fn read_rows(&self, rows: &[Block]) -> Result<Vec<RowRecords>, StoreError> {
        let keys: Vec<LedgerLogKey> = rows.iter().map(|row| LedgerLogKey { first: row.first }).collect();
        let stored = self.store.get_many::<LedgerLog>(&keys)?;
        let decode = |(row, key): (Option<Stored<LedgerLogRow>>, &LedgerLogKey)| {
            self.decode(key.first, row.map(|stored| stored.row))
        };
        stored.into_iter().zip(&keys).map(decode).collect()
    }

    /// The rows before the snapshot that begin in a group of records.
    fn group(&self, group: u64) -> Result<Vec<Block>, StoreError> {
        match self.store.get::<LedgerRows>(&LedgerRowsKey { group })? {
            // In the last group there may begin none.
            None => Ok(Vec::new()),
            Some(row) => {
                rows_of_group(group, &row.row.rows).map_err(|error| damaged(group * GROUP_RECORDS, &error))
            }
        }
    }
}

/// A row that comes too early.
pub(crate) fn gap(missing: u64, next: u64) -> StoreError {
    StoreError::Backend(format!("the log lacks record {missing}: the next is {next}"))
}

fn damaged(first: u64, error: &codec::CodecError) -> StoreError {
    StoreError::Backend(format!("the log's row of record {first} is damaged: {error}"))
}

impl Batch {
    fn add(&mut self, records: &[LogRecord], clock: u64, digest: Digest) {
        let first = self.records;
        for record in records {
            match record {
                LogRecord::Account(account) => self.identities.push(Identity::of(account)),
                LogRecord::Movement(movement) => self.last_movement = movement.timestamp,
                LogRecord::Burnt { .. } => {}
            }
        }
        self.records += records.len() as u64;
        self.blocks.push(Block { first, last_movement: self.last_movement });
        let mut coded = Vec::with_capacity(records.len() * 96);
        codec::encode(first, records, &mut coded);
        self.weight_bytes += coded.len() as u64 + ROW_WEIGHT_BYTES;
        let row = LedgerLogRow { clock, digest: digest.to_u128(), records: coded };
        self.changes.insert::<LedgerLog>(&LedgerLogKey { first }, &row);
    }
}

impl Directory for Log {
    fn account(&self, number: u32) -> Account {
        self.read().identities[usize::try_from(number).expect("32 bits fit")].account()
    }
}

/// Decoded blocks that a reader keeps: records close to each other in the log are often read together.
const KEPT_BLOCKS: usize = 16;

/// Decoded blocks, by the numbers of their first records.
type Kept = VecDeque<(u64, Vec<LogRecord>)>;

/// Groups of the log's index that a reader keeps.
const KEPT_GROUPS: usize = 4;

/// Reads records, and keeps the blocks that it has read last.
pub struct LogReader<'a> {
    log: &'a Log,
    /// The number of records that this reader sees.
    records: u64,
    /// The ids that the snapshot has.
    ids: Arc<Ids>,
    kept: RefCell<Kept>,
    groups: RefCell<VecDeque<(u64, Vec<Block>)>>,
}

impl<'a> LogReader<'a> {
    /// Reads the log as it is now.
    #[must_use]
    pub fn new(log: &'a Log) -> Self {
        let contents = log.read();
        let (records, ids) = (contents.records, Arc::clone(&contents.snapshot.ids));
        drop(contents);
        Self { log, records, ids, kept: RefCell::default(), groups: RefCell::default() }
    }

    /// The row of the log that has this record.
    fn row_of(&self, number: u64) -> Result<Block, StoreError> {
        let lacks = || StoreError::Backend(format!("the log has no record {number}"));
        let before = {
            let contents = self.log.read();
            let at = contents.blocks.partition_point(|block| block.first <= number);
            at.checked_sub(1).map(|at| contents.blocks[at])
        };
        if let Some(block) = before {
            return Ok(block);
        }
        // It is in the snapshot. The row may begin in the group before.
        let group = number / GROUP_RECORDS;
        for group in [Some(group), group.checked_sub(1)].into_iter().flatten() {
            let found = self.in_group(group, |rows| {
                let at = rows.partition_point(|row| row.first <= number);
                at.checked_sub(1).map(|at| rows[at])
            })?;
            if let Some(block) = found {
                return Ok(block);
            }
        }
        Err(lacks())
    }

    /// Looks at the rows that begin in a group.
    fn in_group<T>(&self, group: u64, look: impl FnOnce(&[Block]) -> T) -> Result<T, StoreError> {
        let mut groups = self.groups.borrow_mut();
        if let Some(at) = groups.iter().position(|(number, _)| *number == group) {
            groups.swap(0, at);
        } else {
            let rows = self.log.group(group)?;
            groups.truncate(KEPT_GROUPS - 1);
            groups.push_front((group, rows));
        }
        Ok(look(&groups[0].1))
    }

    /// The first row whose last movement is not before a time, among those of the snapshot, which has one.
    fn seek_in_snapshot(&self, timestamp: u64, snapshot: &Published) -> Result<Block, StoreError> {
        let (mut from, mut to) = (0, (snapshot.records - 1) / GROUP_RECORDS);
        while from < to {
            let middle = from.midpoint(to);
            let last = self.in_group(middle, |rows| rows.last().copied())?;
            // A group has many more records than a row, so in every group a row begins.
            if last.is_some_and(|last| last.last_movement >= timestamp) {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        let found = self.in_group(from, |rows| {
            rows.get(rows.partition_point(|row| row.last_movement < timestamp)).copied()
        })?;
        found.ok_or_else(|| StoreError::Backend(format!("the index of the log lacks time {timestamp}")))
    }
}

impl History for LogReader<'_> {
    type Error = StoreError;

    fn record(&self, number: u64) -> Result<LogRecord, StoreError> {
        let mut kept = self.kept.borrow_mut();
        let holds = |first: u64, records: &[LogRecord]| {
            number.checked_sub(first).is_some_and(|at| at < records.len() as u64)
        };
        if let Some(at) = kept.iter().position(|(first, records)| holds(*first, records)) {
            kept.swap(0, at);
        } else {
            let block = self.row_of(number)?;
            let records = self.log.block(block.first)?;
            if !holds(block.first, &records) {
                return Err(StoreError::Backend(format!("the log has no record {number}")));
            }
            kept.truncate(KEPT_BLOCKS - 1);
            kept.push_front((block.first, records));
        }
        let (first, records) = &kept[0];
        Ok(records[usize::try_from(number - first).expect("blocks are small")])
    }

    fn len(&self) -> u64 {
        self.records
    }

    fn seek(&self, timestamp: u64) -> Result<u64, StoreError> {
        let (snapshot, in_memory) = {
            let contents = self.log.read();
            let at = contents.blocks.partition_point(|block| block.last_movement < timestamp);
            (contents.snapshot.clone(), contents.blocks.get(at).copied())
        };
        let block = if snapshot.last_movement > 0 && timestamp <= snapshot.last_movement {
            self.seek_in_snapshot(timestamp, &snapshot)?
        } else if let Some(block) = in_memory {
            block
        } else {
            return Ok(self.records);
        };
        // In this block, unless the block is newer than this reader.
        let mut number = block.first;
        while number < self.records {
            match self.record(number)? {
                LogRecord::Movement(movement) if movement.timestamp >= timestamp => break,
                _ => number += 1,
            }
        }
        Ok(number.min(self.records))
    }

    fn find_ids(
        &self,
        hashes: &[u64],
        visit: &mut dyn FnMut(usize, u64, IdStatus),
    ) -> Result<(), StoreError> {
        self.ids.find(&self.log.store, hashes, visit)
    }
}
