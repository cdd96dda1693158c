//! Writing the changes of the indexes to runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::merge::MergeState;
use super::{Cold, FrozenChanges, Kind, Pair, PartKey, Run, RunRef, RunWriter};
use crate::Result;
use crate::embedded::format::Identity;
use crate::embedded::head::{Head, Position, SegmentHead};
use crate::embedded::index::{FrozenIndex, TableIndex};
use crate::embedded::ordered::OrderedIndex;
use crate::embedded::{Core, Options, Segment, lock};

/// The runs that maintenance works on.
#[derive(Default)]
pub(crate) struct RunWork {
    /// The number of the next run.
    pub(crate) next: u32,
    /// Merges under way. Each but the first has later runs than the one before, and is done first.
    pub(crate) merges: Vec<MergeState>,
    /// Runs that were merged into others. Their files are removed once no checkpoint names them.
    pub(crate) obsolete: Vec<Arc<Run>>,
}

impl RunWork {
    /// Starts to write a run.
    pub(crate) fn create(
        &mut self,
        options: &Options,
        dir: &std::path::Path,
        identity: &Identity,
    ) -> Result<RunWriter> {
        let number = self.next;
        self.next += 1;
        RunWriter::new(&*options.disk, dir, identity, number)
    }
}

/// Writes changes to a run. Removes the file if that fails, or if there was nothing to write.
pub(crate) fn write_run(
    options: &Options,
    mut writer: RunWriter,
    changes: &FrozenChanges,
    rest: &mut dyn FnMut(),
) -> Result<Option<Run>> {
    let path = writer.path().to_owned();
    let put = || {
        let mut tables: Vec<_> = changes.tables.iter().collect();
        tables.sort_unstable_by_key(|(id, _)| **id);
        for (&table, indexes) in tables {
            for (slot, index) in (0..).zip(indexes).filter(|(_, index)| index.len() > 0) {
                put_index(&mut writer, PartKey { table, slot }, index, rest)?;
            }
        }
        writer.finish(rest)
    };
    let written = put();
    if !matches!(written, Ok(Some(_))) {
        // Only to free the space.
        let _ = options.disk.remove(&path);
    }
    written
}

fn put_index(
    writer: &mut RunWriter,
    key: PartKey,
    index: &FrozenIndex,
    rest: &mut dyn FnMut(),
) -> Result<()> {
    match index {
        FrozenIndex::Pairs(pairs) => {
            let pair = |(fingerprint, value, added)| Pair { fingerprint, value, added };
            let mut sorted: Vec<Pair> = pairs.iter().map(pair).collect();
            sorted.sort_unstable();
            rest();
            writer.begin(key, Kind::Pairs, sorted.len() as u64);
            sorted.into_iter().try_for_each(|pair| writer.pair(pair, rest))?;
        }
        FrozenIndex::Positions(positions) => {
            let sorted = positions.net();
            rest();
            if sorted.is_empty() {
                return Ok(());
            }
            writer.begin(key, Kind::Positions, sorted.len() as u64);
            sorted.into_iter().try_for_each(|(position, op)| writer.position(position, op, rest))?;
        }
    }
    writer.end_part(rest)
}

impl Core {
    /// Replaces what readers see besides the latest changes.
    pub(crate) fn change_cold(&self, change: impl FnOnce(&mut Cold)) {
        let mut state = self.write();
        let mut cold = Cold::clone(&state.cold);
        change(&mut cold);
        cold.generation += 1;
        let old = std::mem::replace(&mut state.cold, Arc::new(cold));
        drop(state);
        // Freeing entries takes a while.
        drop(old);
    }

    /// Freezes all changes up to the current end of the journal, and returns it.
    ///
    /// While the writer's lock is held, every frame of the journal has been published: so the frozen changes
    /// together with the runs are the state at that position, exactly.
    pub(crate) fn freeze_changes(&self) -> Head {
        let ordered: Vec<Arc<OrderedIndex>> =
            self.read().tables.values().flat_map(TableIndex::ordered).map(Arc::clone).collect();
        // Now, because commits wait while the locks are held.
        ordered.iter().for_each(|index| index.settle_all());
        let writer = lock(&self.writer);
        let position = Position {
            segment: writer.active.number,
            offset: writer.offset,
            sequence: writer.sequence,
            serial_next: writer.serial_next,
        };
        let mut state = self.write();
        let numbers = |segment: &Arc<Segment>| SegmentHead {
            number: segment.number,
            used: segment.used.load(Ordering::Relaxed),
            tombstones: segment.tombstones.load(Ordering::Relaxed),
            live: segment.live.load(Ordering::Relaxed),
        };
        let segments = state.segments.values().map(numbers).collect();
        let changes = FrozenChanges::take(&mut state.tables);
        if !changes.is_empty() {
            let mut cold = Cold::clone(&state.cold);
            cold.frozen.push(Arc::new(changes));
            state.cold = Arc::new(cold);
        }
        Head { position, segments }
    }

    /// Writes frozen changes to runs. After an error they stay frozen.
    pub(crate) fn flush_frozen(&self, work: &mut RunWork) -> Result<()> {
        loop {
            let Some(frozen) = self.read().cold.frozen.first().cloned() else { return Ok(()) };
            let writer = work.create(&self.options, &self.dir, &self.identity)?;
            let run = write_run(&self.options, writer, &frozen, &mut || self.rest_between_pieces())?;
            self.change_cold(|cold| {
                cold.frozen.remove(0);
                if let Some(run) = run {
                    cold.runs.push(RunRef { run: Arc::new(run), resident: Some(frozen) });
                }
            });
            self.evict();
        }
    }

    /// The memory of entries.
    pub(crate) fn hot_bytes(&self) -> usize {
        let state = self.read();
        let latest: usize = state.tables.values().map(TableIndex::changed_bytes).sum();
        latest + state.cold.resident_bytes()
    }

    /// Frees resident entries until all entries in memory fit into the budget.
    pub(crate) fn evict(&self) {
        let budget = usize::try_from(self.options.index_hot_bytes).unwrap_or(usize::MAX);
        let hot = self.hot_bytes();
        if hot > budget {
            let resident = self.read().cold.resident_bytes();
            let latest = hot.saturating_sub(resident);
            self.change_cold(|cold| cold.evict(budget.saturating_sub(latest)));
        }
    }

    /// Returns whether the latest changes alone need more memory than all entries may.
    pub(crate) fn is_over_budget(&self) -> bool {
        let state = self.read();
        let latest: usize = state.tables.values().map(TableIndex::changed_bytes).sum();
        latest as u64 > self.options.index_hot_bytes
    }
}
