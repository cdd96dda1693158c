//! The log in the store: which records each row holds, and how to read them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use batzen_ledger::Account;
use batzen_ledger::machine::read::Directory;
use batzen_ledger::machine::{Digest, History, LogRecord};
use batzen_store::{ChangeSet, Store, StoreError};
use batzen_tables::ledger::{LedgerLog, LedgerLogKey, LedgerLogRow};

use crate::codec::{self, BLOCK_RECORDS_MAX, Identity};

/// A row of the log.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The number of its first record.
    first: u64,
    /// The timestamp of the last movement in this row or an earlier one.
    last_movement: u64,
}

/// The index of the log, in memory.
#[derive(Default)]
struct Contents {
    blocks: Vec<Block>,
    identities: Vec<Identity>,
    records: u64,
    last_movement: u64,
}

/// The durable log. Readers see whole commits.
pub struct Log {
    store: Store,
    contents: RwLock<Contents>,
}

/// Rows of one commit, to be published once they are durable.
#[derive(Default)]
pub(crate) struct Batch {
    pub changes: ChangeSet,
    blocks: Vec<Block>,
    identities: Vec<Identity>,
    records: u64,
    last_movement: u64,
}

impl Log {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, contents: RwLock::default() }
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
    pub fn blocks(&self) -> u64 {
        self.read().blocks.len() as u64
    }

    /// The keys of all rows.
    pub(crate) fn firsts(&self) -> Vec<u64> {
        self.read().blocks.iter().map(|block| block.first).collect()
    }

    /// Memory that the index of the log takes.
    pub fn memory_bytes(&self) -> u64 {
        let contents = self.read();
        let blocks = contents.blocks.capacity() * size_of::<Block>();
        (blocks + contents.identities.capacity() * size_of::<Identity>()) as u64
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
    }

    /// Adds a row to the index while the log is opened, and decodes it.
    pub(crate) fn note(&self, first: u64, row: &LedgerLogRow) -> Result<Vec<LogRecord>, StoreError> {
        let mut contents = self.write();
        if first != contents.records {
            let missing = contents.records;
            return Err(StoreError::Backend(format!("the log lacks record {missing}: the next is {first}")));
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
        Ok(records)
    }

    fn block(&self, first: u64) -> Result<Vec<LogRecord>, StoreError> {
        let row = self.store.get::<LedgerLog>(&LedgerLogKey { first })?;
        let row =
            row.ok_or_else(|| StoreError::Backend(format!("the log lacks the row of record {first}")))?;
        let mut records = Vec::with_capacity(BLOCK_RECORDS_MAX);
        let contents = self.read();
        codec::decode(first, &row.row.records, &contents.identities, |record| records.push(record))
            .map_err(|error| damaged(first, &error))?;
        Ok(records)
    }
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

/// Reads records, and keeps the blocks that it has read last.
pub struct LogReader<'a> {
    log: &'a Log,
    /// The number of records that this reader sees.
    records: u64,
    kept: RefCell<Kept>,
}

impl<'a> LogReader<'a> {
    /// Reads the log as it is now.
    #[must_use]
    pub fn new(log: &'a Log) -> Self {
        Self { log, records: log.records(), kept: RefCell::default() }
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
            let contents = self.log.read();
            let at = contents.blocks.partition_point(|block| block.first <= number);
            let Some(block) = at.checked_sub(1).map(|at| contents.blocks[at]) else {
                return Err(StoreError::Backend(format!("the log has no record {number}")));
            };
            drop(contents);
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
        let contents = self.log.read();
        let at = contents.blocks.partition_point(|block| block.last_movement < timestamp);
        let Some(block) = contents.blocks.get(at).copied() else { return Ok(self.records) };
        drop(contents);
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
}
