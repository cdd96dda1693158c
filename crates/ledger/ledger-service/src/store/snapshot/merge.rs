//! Merging runs: four neighbours of one level become one of the next level, in steps. So each entry is written
//! once for each level, and the number of runs grows with the logarithm of the number of snapshots.

use std::collections::VecDeque;
use std::sync::Arc;

use batzen_store::{Store, StoreError};

use super::SnapshotOptions;
use super::put::{Put, write_some};
use super::runs::{IdEntry, Run, RunWriter};

/// Number of runs of one level that are merged.
pub(super) const MERGE_RUNS: usize = 4;

/// Pages that a merge reads at once from each run.
const PAGES_AT_ONCE: u32 = 8;

/// Rows that wait to be written before a merge reads on.
const ROWS_WAITING_MAX: usize = 64;

/// The oldest neighbours of one level of which there are enough.
pub(super) fn to_merge(runs: &[Arc<Run>], level: u8) -> Option<&[Arc<Run>]> {
    let of_level = runs.chunk_by(|a, b| a.head.level == b.head.level);
    of_level.filter(|runs| runs[0].head.level == level).find_map(|runs| runs.get(..MERGE_RUNS))
}

/// Reads a run in order.
struct Reader {
    run: Arc<Run>,
    next_page: u32,
    entries: VecDeque<IdEntry>,
}

impl Reader {
    /// Reads on if nothing is left.
    fn fill(&mut self, store: &Store) -> Result<(), StoreError> {
        if self.entries.is_empty() && self.next_page < self.run.pages() {
            let end = self.run.pages().min(self.next_page + PAGES_AT_ONCE);
            let pages: Vec<u32> = (self.next_page..end).collect();
            self.entries = self.run.read(store, &pages)?.into_iter().flatten().collect();
            self.next_page = end;
        }
        Ok(())
    }

    fn needs_more(&self) -> bool {
        self.entries.is_empty() && self.next_page < self.run.pages()
    }
}

/// A merge under way.
pub(super) struct Merge {
    pub(crate) level: u8,
    /// The number of the new run.
    pub number: u64,
    /// Oldest first.
    readers: Vec<Reader>,
    writer: RunWriter,
    commit_bytes: usize,
    rows: VecDeque<Put>,
    /// The new run, when all its rows are made.
    made: Option<Arc<Run>>,
}

impl Merge {
    pub(super) fn new(runs: &[Arc<Run>], number: u64, options: SnapshotOptions) -> Self {
        let reader = |run: &Arc<Run>| Reader { run: Arc::clone(run), next_page: 0, entries: VecDeque::new() };
        Self {
            level: runs[0].head.level,
            number,
            readers: runs.iter().map(reader).collect(),
            writer: RunWriter::new(number, options),
            commit_bytes: options.commit_bytes,
            rows: VecDeque::new(),
            made: None,
        }
    }

    /// The numbers of the runs that are merged.
    pub(super) fn inputs(&self) -> Vec<u64> {
        self.readers.iter().map(|reader| reader.run.head.number).collect()
    }

    /// Merges and writes some more. Returns whether all rows are durable.
    pub(super) fn step(&mut self, store: &Store) -> Result<bool, StoreError> {
        if !self.rows.is_empty() {
            write_some(store, &mut self.rows, self.commit_bytes)?;
        } else if self.made.is_none() {
            self.merge(store)?;
        }
        Ok(self.made.is_some() && self.rows.is_empty())
    }

    fn merge(&mut self, store: &Store) -> Result<(), StoreError> {
        while self.rows.len() < ROWS_WAITING_MAX {
            for reader in &mut self.readers {
                reader.fill(store)?;
            }
            while !self.readers.iter().any(Reader::needs_more) {
                let Some(entry) = self.pop() else {
                    self.made = Some(Arc::new(self.writer.finish(self.level + 1, &mut self.rows)));
                    return Ok(());
                };
                self.writer.push(entry, &mut self.rows);
            }
        }
        Ok(())
    }

    /// The next entry of all runs. Of several for one record, the latest run has the latest status.
    fn pop(&mut self) -> Option<IdEntry> {
        let order = |reader: &Reader| reader.entries.front().map(IdEntry::order);
        let next = self.readers.iter().filter_map(order).min()?;
        let mut latest = None;
        for reader in &mut self.readers {
            if reader.entries.front().is_some_and(|entry| entry.order() == next) {
                latest = reader.entries.pop_front();
            }
        }
        latest
    }

    /// The new run. All its rows are durable.
    pub(super) fn made(&self) -> Arc<Run> {
        Arc::clone(self.made.as_ref().expect("all rows are durable"))
    }
}
