//! Runs: index entries on disk, in immutable sorted files.
//!
//! Memory has only what has changed in the indexes since the last checkpoint (`index.rs`). A checkpoint
//! *freezes* these changes, writes them to a new *run* and names all runs. So it costs what has changed, and
//! a store opens without reading all entries. In memory, a run takes a filter of about ten bits an entry: a
//! coin that was never seen before is not in the filters, and nothing is read.
//!
//! An entry that was removed after it was written to a run is in a later run as *removed*. Entries are counted:
//! one exists if it was added one time more than removed, in memory and all runs together. The latest place
//! that knows an entry decides, too, and the two never disagree. Neighbouring runs of similar size are merged
//! ([`merge`]), where what was added and removed cancels. So there are few runs, however many entries.
//!
//! Readers collect what memory knows under the state's lock, and read runs after it. Runs rely on the page
//! cache; there is no cache of blocks. See docs/decisions/0020-index-runs.md.

mod file;
mod flush;
mod known;
mod lookup;
pub(super) mod merge;
mod read;
mod scan;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use file::{Kind, Pair, PartKey, run_name, run_number};
pub(crate) use flush::{RunWork, write_run};
pub(crate) use known::KnownMarks;
pub(crate) use read::{PairReader, PositionReader, Run, RunName};
pub(crate) use write::RunWriter;

use super::index::{FrozenIndex, Pairs, TableIndex};

/// Changes that are to be written to a run.
#[derive(Debug)]
pub(crate) struct FrozenChanges {
    /// For each table, its primary index and then the secondary ones.
    tables: HashMap<u16, Vec<FrozenIndex>>,
    bytes: usize,
}

impl FrozenChanges {
    /// Takes the changes out of all tables.
    pub(crate) fn take(tables: &mut HashMap<u16, TableIndex>) -> Self {
        let tables: HashMap<_, _> = tables.iter_mut().map(|(&id, table)| (id, table.freeze())).collect();
        let bytes = tables.values().flatten().map(FrozenIndex::bytes).sum();
        Self { tables, bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tables.values().flatten().all(|index| index.len() == 0)
    }

    fn index(&self, key: PartKey) -> Option<&FrozenIndex> {
        self.tables.get(&key.table)?.get(usize::from(key.slot))
    }

    fn pairs(&self, key: PartKey) -> Option<&Pairs> {
        self.index(key)?.pairs()
    }
}

/// A run, and its entries in memory if there is room for them.
#[derive(Clone)]
pub(crate) struct RunRef {
    pub(crate) run: Arc<Run>,
    pub(crate) resident: Option<Arc<FrozenChanges>>,
}

/// Everything that the indexes know, except for the latest changes. It is immutable: the state has the
/// current one, and readers keep theirs as long as they need it.
#[derive(Clone, Default)]
pub(crate) struct Cold {
    /// Changes that are being written to runs, oldest first. They are later than all runs.
    pub frozen: Vec<Arc<FrozenChanges>>,
    /// Oldest first.
    pub(crate) runs: Vec<RunRef>,
    /// Increases whenever the runs change.
    pub(crate) generation: u64,
}

/// A place where entries are.
#[derive(Clone, Copy)]
pub(crate) enum EntrySource<'a> {
    Memory(&'a Pairs),
    Disk(&'a Arc<Run>),
}

/// A bit for each of the oldest runs: whether it may have an entry. Later ones have no bit, and may have any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    /// Every run may have an entry.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// The bit of a run; none if there are too many.
    fn bit(run: usize) -> Option<u64> {
        1_u64.checked_shl(u32::try_from(run).unwrap_or(u32::MAX))
    }

    fn has(self, run: usize) -> bool {
        Self::bit(run).is_none_or(|bit| self.0 & bit > 0)
    }
}

impl Cold {
    /// The places that may have entries of an index, latest first.
    pub(crate) fn places(&self, key: PartKey, marks: Marks) -> impl Iterator<Item = EntrySource<'_>> {
        let frozen =
            self.frozen.iter().rev().filter_map(move |frozen| frozen.pairs(key).map(EntrySource::Memory));
        let marked = self.runs.iter().enumerate().rev().filter(move |(n, _)| marks.has(*n));
        let runs = marked.filter_map(move |(_, run)| match &run.resident {
            Some(resident) => resident.pairs(key).map(EntrySource::Memory),
            None => Some(EntrySource::Disk(&run.run)),
        });
        frozen.chain(runs)
    }

    /// Asks the filters of all runs for many fingerprints. Also of those whose entries are in memory: a filter is much
    /// smaller than the entries, so asking it misses the cache less often.
    pub(crate) fn marks(&self, key: PartKey, fingerprints: &[u64]) -> Vec<Marks> {
        let mut marks = vec![0; fingerprints.len()];
        for (n, run) in self.runs.iter().enumerate() {
            if let Some(bit) = Marks::bit(n) {
                run.run.mark(key, fingerprints, bit, &mut marks);
            }
        }
        marks.into_iter().map(Marks).collect()
    }

    /// Returns the number of entries added, less those removed.
    pub(crate) fn net(&self, key: PartKey) -> i64 {
        let frozen = self.frozen.iter().filter_map(|frozen| frozen.pairs(key)).map(Pairs::net);
        frozen.sum::<i64>() + self.runs.iter().map(|run| run.run.net(key)).sum::<i64>()
    }

    /// The memory of entries, which grows with the changes and shrinks when there is too much of it.
    pub(crate) fn resident_bytes(&self) -> usize {
        let resident = self.runs.iter().filter_map(|run| run.resident.as_ref());
        self.frozen.iter().chain(resident).map(|changes| changes.bytes).sum()
    }

    /// The memory of filters and fences.
    pub(crate) fn filter_bytes(&self) -> usize {
        self.runs.iter().map(|run| run.run.memory_bytes()).sum()
    }

    /// The size of the runs' files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.run.name.bytes).sum()
    }

    /// Frees the memory of the oldest resident entries until at most this much is left.
    pub(crate) fn evict(&mut self, bytes_max: usize) {
        let mut bytes = self.resident_bytes();
        for run in &mut self.runs {
            if bytes <= bytes_max {
                break;
            }
            if let Some(resident) = run.resident.take() {
                bytes -= resident.bytes;
            }
        }
    }
}
