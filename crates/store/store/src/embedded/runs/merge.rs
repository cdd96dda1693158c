//! Merging runs, so that there are few.
//!
//! Four neighbouring runs of a similar size become one. So a store with `n` times the entries of one checkpoint
//! has at most `3 × log₄ n` runs besides those of merges under way, and an entry is written `log₄ n` times. A merge is
//! done in steps, between which other maintenance runs, and smaller merges of later runs.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::flush::RunWork;
use super::{Cold, Kind, Pair, PairReader, PartKey, PositionReader, Run, RunRef, RunWriter};
use crate::Result;
use crate::embedded::ordered::{Position, PositionOp};
use crate::embedded::{Core, lock};

/// Number of runs of a similar size that are merged.
const FANOUT: usize = 4;
/// Runs up to this size are of similar size, in bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Number of entries that a round of maintenance merges: some tens of MiB.
const ROUND_ENTRIES: usize = 4 << 20;
/// Number of entries that are merged between two looks at whether the store is stopping.
const STEP_ENTRIES: usize = 64 << 10;

/// The level of a run: runs of a level differ by less than [`FANOUT`] in size.
fn level(bytes: u64) -> u32 {
    (bytes / SMALL_BYTES).checked_ilog(FANOUT as u64).map_or(0, |level| level + 1)
}

/// Picks the runs to merge, given the sizes of all, oldest first: the latest ones up to the lowest level of
/// which there are enough among them.
fn pick(bytes: &[u64]) -> Option<Range<usize>> {
    let levels: Vec<u32> = bytes.iter().map(|&bytes| level(bytes)).collect();
    let highest = levels.iter().copied().max()?;
    (0..=highest).find_map(|limit| {
        let latest = levels.iter().rev().take_while(|&&level| level <= limit);
        let enough = latest.clone().filter(|&&level| level == limit).count() >= FANOUT;
        enough.then(|| bytes.len() - latest.count()..bytes.len())
    })
}

/// The readers of a part of several runs.
enum Readers {
    Pairs(Vec<PairReader>),
    Positions(Vec<PositionReader>),
}

/// A merge under way.
pub(crate) struct MergeState {
    inputs: Vec<Arc<Run>>,
    /// The parts that are left, in reverse.
    keys: Vec<PartKey>,
    readers: Option<Readers>,
    writer: RunWriter,
}

fn net(added: bool) -> i64 {
    if added { 1 } else { -1 }
}

impl MergeState {
    pub(crate) fn new(inputs: Vec<Arc<Run>>, writer: RunWriter) -> Self {
        let keys: BTreeSet<PartKey> = inputs.iter().flat_map(|run| run.keys().collect::<Vec<_>>()).collect();
        Self { inputs, keys: keys.into_iter().rev().collect(), readers: None, writer }
    }

    /// Merges at least this many entries, if there are. Returns whether all are.
    pub(crate) fn step(&mut self, entries: usize, rest: &mut dyn FnMut()) -> Result<bool> {
        let mut left = entries;
        while left > 0 {
            if let Some(readers) = &mut self.readers {
                let merged = match readers {
                    Readers::Pairs(readers) => merge_pairs(readers, &mut self.writer, left, rest)?,
                    Readers::Positions(readers) => merge_positions(readers, &mut self.writer, left, rest)?,
                };
                if merged == left {
                    return Ok(false);
                }
                left -= merged;
                self.writer.end_part(rest)?;
                self.readers = None;
            }
            let Some(key) = self.keys.pop() else { return Ok(true) };
            let having: Vec<&Arc<Run>> = self.inputs.iter().filter(|run| run.kind(key).is_some()).collect();
            let kind = having.first().and_then(|run| run.kind(key)).expect("a run has the part");
            self.writer.begin(key, kind, having.iter().map(|run| run.entries(key)).sum());
            self.readers = Some(match kind {
                Kind::Pairs => Readers::Pairs(having.iter().map(|run| PairReader::new(run, key)).collect()),
                Kind::Positions => {
                    Readers::Positions(having.iter().map(|run| PositionReader::new(run, key)).collect())
                }
            });
        }
        Ok(false)
    }
}

#[cfg(test)]
impl MergeState {
    /// Completes the new run. `None` if it has no entries.
    pub(crate) fn finish(self) -> Result<Option<Run>> {
        self.writer.finish(&mut || ())
    }
}

/// Merges up to `limit` entries; fewer at the end.
fn merge_pairs(
    readers: &mut [PairReader],
    writer: &mut RunWriter,
    limit: usize,
    rest: &mut dyn FnMut(),
) -> Result<usize> {
    let mut merged = 0;
    while merged < limit {
        let mut least: Option<(u64, u64)> = None;
        for reader in &mut *readers {
            if let Some(pair) = reader.peek()? {
                let entry = (pair.fingerprint, pair.value);
                least = Some(least.map_or(entry, |least| least.min(entry)));
            }
        }
        let Some((fingerprint, value)) = least else { break };
        let mut sum = 0;
        for reader in &mut *readers {
            while let Some(pair) =
                reader.peek()?.filter(|pair| (pair.fingerprint, pair.value) == (fingerprint, value))
            {
                sum += net(pair.added);
                reader.next()?;
                merged += 1;
            }
        }
        for _ in 0..sum.abs() {
            writer.pair(Pair { fingerprint, value, added: sum > 0 }, rest)?;
        }
    }
    Ok(merged.min(limit))
}

/// The same for positions.
fn merge_positions(
    readers: &mut [PositionReader],
    writer: &mut RunWriter,
    limit: usize,
    rest: &mut dyn FnMut(),
) -> Result<usize> {
    let mut merged = 0;
    while merged < limit {
        let mut least: Option<Position> = None;
        for reader in &mut *readers {
            if let Some((position, _)) = reader.peek()?
                && least.as_ref().is_none_or(|least| least.cmp(position) == Ordering::Greater)
            {
                least = Some(position.clone());
            }
        }
        let Some(position) = least else { break };
        let (mut sum, mut key) = (0, 0);
        for reader in &mut *readers {
            while let Some((_, op)) = reader.peek()?.filter(|(other, _)| *other == position) {
                sum += net(op.added);
                key = op.key;
                reader.next()?;
                merged += 1;
            }
        }
        for _ in 0..sum.abs() {
            writer.position(&position, PositionOp { key, added: sum > 0 }, rest)?;
        }
    }
    Ok(merged.min(limit))
}

impl Core {
    /// Merges runs, a bounded number of entries, later runs first. Requests another round if something is left.
    pub(crate) fn merge_round(&self) -> Result<()> {
        self.merge_some(ROUND_ENTRIES, STEP_ENTRIES)
    }

    /// Merges this many entries, so many at a time.
    fn merge_some(&self, entries: usize, step_entries: usize) -> Result<()> {
        let mut maintenance = lock(&self.maintenance);
        let work = &mut maintenance.runs;
        let mut left = entries;
        while left > 0 && !self.wake.is_stopping() {
            if let Some(merge) = self.start_merge(work)? {
                work.merges.push(merge);
            }
            let Some(mut merge) = work.merges.pop() else { return Ok(()) };
            let path = merge.writer.path().to_owned();
            let step = step_entries.min(left);
            left -= step;
            let result = match merge.step(step, &mut || self.rest_between_pieces()) {
                Ok(false) => {
                    work.merges.push(merge);
                    continue;
                }
                Ok(true) => self.finish_merge(work, merge),
                Err(error) => Err(error),
            };
            if result.is_err() {
                // Only to free the space: all of it is in the merged runs.
                let _ = self.options.disk.remove(&path);
                return result;
            }
        }
        if left == 0 {
            self.wake.notify();
        }
        Ok(())
    }

    /// Starts a merge of runs that are later than those of all merges under way. So the runs that are written during
    /// a large merge are merged meanwhile.
    fn start_merge(&self, work: &mut RunWork) -> Result<Option<MergeState>> {
        let cold = Arc::clone(&self.read().cold);
        let merging = work.merges.last().map(|merge| merge.inputs.last().expect("a merge has runs"));
        let later =
            cold.runs.iter().rev().take_while(|run| !merging.is_some_and(|last| Arc::ptr_eq(&run.run, last)));
        let free = &cold.runs[cold.runs.len() - later.count()..];
        let bytes: Vec<u64> = free.iter().map(|run| run.run.name.bytes).collect();
        let Some(range) = pick(&bytes) else { return Ok(None) };
        let inputs = free[range].iter().map(|run| Arc::clone(&run.run)).collect();
        let writer = work.create(&self.options, &self.dir, &self.identity)?;
        Ok(Some(MergeState::new(inputs, writer)))
    }

    fn finish_merge(&self, work: &mut RunWork, merge: MergeState) -> Result<()> {
        let MergeState { inputs, writer, .. } = merge;
        let path = writer.path().to_owned();
        let run = writer.finish(&mut || self.rest_between_pieces())?.map(Arc::new);
        if run.is_none() {
            // Everything was removed again.
            let _ = self.options.disk.remove(&path);
        }
        self.change_cold(|cold| replace(cold, &inputs, run));
        work.obsolete.extend(inputs);
        Ok(())
    }
}

/// Puts a merged run in the place of its inputs.
fn replace(cold: &mut Cold, inputs: &[Arc<Run>], run: Option<Arc<Run>>) {
    let start = cold.runs.iter().position(|run| Arc::ptr_eq(&run.run, &inputs[0]));
    let start = start.expect("only a merge removes runs");
    let range = start..start + inputs.len();
    let is_same =
        cold.runs[range.clone()].iter().zip(inputs).all(|(run, input)| Arc::ptr_eq(&run.run, input));
    assert!(is_same, "merged runs are neighbours");
    cold.runs.splice(range, run.map(|run| RunRef { run, resident: None }));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::conformance::{Items, TABLES, key, row};
    use crate::embedded::sim::SimDisk;
    use crate::embedded::{EmbeddedStore, Options};
    use crate::{Backend as _, ChangeSet, CommitOutcome, Record as _, Table as _};

    const MIB: u64 = 1 << 20;

    /// Runs that are written during a merge are merged before it ends, and every row is found at any time.
    #[test]
    fn later_runs_are_merged_during_a_merge() {
        let options = Options { disk: Arc::new(SimDisk::new(1)), background: false, ..Options::default() };
        let store = EmbeddedStore::open(Path::new("/store"), TABLES, options).expect("it opens");
        let runs = || store.core.read().cold.runs.len();
        let under_way = || lock(&store.core.maintenance).runs.merges.len();
        let mut rows = 0;
        let mut write_runs = || {
            for _ in 0..FANOUT {
                let mut changes = ChangeSet::new();
                for _ in 0..100 {
                    rows += 1;
                    changes.insert::<Items>(&key(1, rows), &row("some", None));
                }
                assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                store.checkpoint().expect("it works");
            }
            rows
        };
        let check = |rows: u32| {
            let keys: Vec<Vec<u8>> = (0..=rows).map(|n| key(1, n).to_bytes()).collect();
            let found = store.get_many(Items::DEF, &keys).expect("it works");
            assert!(found[0].is_none() && found[1..].iter().all(Option::is_some));
        };
        write_runs();
        store.core.merge_some(50, 10).expect("it works");
        assert_eq!((runs(), under_way()), (FANOUT, 1));
        let all = write_runs();
        store.core.merge_some(50, 10).expect("it works");
        assert_eq!((runs(), under_way()), (2 * FANOUT, 2));
        let mut seen = Vec::new();
        while under_way() > 0 {
            check(all);
            store.core.merge_some(100, 10).expect("it works");
            if seen.last() != Some(&(runs(), under_way())) {
                seen.push((runs(), under_way()));
            }
        }
        check(all);
        assert_eq!(seen, [(2 * FANOUT, 2), (FANOUT + 1, 1), (2, 0)]);
    }

    /// A power loss or a full disk in the middle of merges loses nothing, and leaves no files.
    #[test]
    fn merges_may_be_interrupted() {
        let disk = SimDisk::new(1);
        let options = || Options { disk: Arc::new(disk.clone()), background: false, ..Options::default() };
        let open = || EmbeddedStore::open(Path::new("/store"), TABLES, options()).expect("it opens");
        let mut rows = 0;
        let mut store = open();
        for is_full in [true, false] {
            for _ in 0..2 {
                for _ in 0..FANOUT {
                    let mut changes = ChangeSet::new();
                    for _ in 0..100 {
                        rows += 1;
                        changes.insert::<Items>(&key(1, rows), &row("some", None));
                    }
                    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                    store.checkpoint().expect("it works");
                }
                store.core.merge_some(50, 10).expect("it works");
            }
            assert_eq!(lock(&store.core.maintenance).runs.merges.len(), 2);
            if is_full {
                disk.set_capacity(Some(disk.used()));
                assert!(store.core.merge_some(1 << 20, 100).is_err());
                disk.set_capacity(None);
                store.core.merge_some(1 << 20, 100).expect("there is space");
            } else {
                drop(store);
                disk.restart();
                store = open();
            }
            let keys: Vec<Vec<u8>> = (0..=rows).map(|n| key(1, n).to_bytes()).collect();
            let found = store.get_many(Items::DEF, &keys).expect("it works");
            assert!(found[0].is_none() && found[1..].iter().all(Option::is_some));
        }
        store.core.merge_some(1 << 20, 100).expect("there is space");
        store.checkpoint().expect("there is space");
        let files = disk.files();
        let runs = files.iter().filter(|path| path.extension().is_some_and(|end| end == "run")).count();
        assert_eq!(runs, store.core.read().cold.runs.len(), "{files:?}");
    }

    #[test]
    fn neighbours_of_similar_size_are_merged() {
        assert_eq!(pick(&[]), None);
        assert_eq!(pick(&[1, 1, 1]), None);
        assert_eq!(pick(&[1, 1, 1, 1]), Some(0..4));
        assert_eq!(pick(&[8 * MIB, 1, 1, 1, 1]), Some(1..5));
        assert_eq!(pick(&[2 * MIB, 2 * MIB, 2 * MIB, 1]), None);
        assert_eq!(pick(&[2 * MIB, 2 * MIB, 1, 2 * MIB, 2 * MIB, 1]), Some(0..6), "small ones come along");
        assert_eq!(pick(&[100 * MIB, 2 * MIB, 2 * MIB, 3 * MIB]), None);
        assert_eq!(pick(&[100 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB]), Some(1..5));
    }

    /// However many runs are written, few are left, and an entry is merged a few times.
    #[test]
    fn runs_stay_few() {
        let (mut runs, mut written, mut most) = (Vec::new(), 0, 0);
        const COUNT: u64 = 1000;
        for _ in 0..COUNT {
            runs.push(20 * MIB);
            while let Some(range) = pick(&runs) {
                let merged: u64 = runs[range.clone()].iter().sum();
                written += merged;
                runs.splice(range, [merged]);
            }
            most = most.max(runs.len());
        }
        assert!(most <= 3 * 6, "{most} runs");
        assert!(written <= 6 * COUNT * 20 * MIB, "{} times", written / (COUNT * 20 * MIB));
    }
}
