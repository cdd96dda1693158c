//! The work of snapshots, in steps of bounded size.

use std::collections::VecDeque;
use std::sync::Arc;

use batzen_store::{Store, StoreError};
use batzen_tables::ledger::{
    LedgerIdFilterKey, LedgerIdFilters, LedgerIdPageKey, LedgerIdPages, LedgerPendings, LedgerPendingsKey,
};

use super::delta::Unresolved;
use super::head::Head;
use super::merge::{Merge, to_merge};
use super::pages::Mark;
use super::put::{Put, write_some};
use super::runs::{Ids, Run};
use super::taking::Taking;
use super::{Delta, SnapshotOptions};
use crate::store::log::{Log, Published};

/// Rows that one step deletes.
const DELETED_AT_ONCE: u32 = 64;

/// Takes snapshots of a ledger, merges runs, and deletes what is not needed any more.
pub(crate) struct Snapshots {
    pub(super) log: Arc<Log>,
    pub(super) options: SnapshotOptions,
    /// As it is in the store, except that a head of nothing may not be there.
    pub(super) head: Head,
    pub(super) ids: Ids,
    /// The unresolved pending transfers of the snapshot.
    pub(super) unresolved: Unresolved,
    /// The snapshot that the last process was taking.
    left: Option<Left>,
    taking: Option<Taking>,
    /// At most one of each level, lowest first.
    merges: Vec<Merge>,
    /// Runs that were merged and that others may still read.
    retired: Vec<Arc<Run>>,
    /// The run whose rows are being deleted.
    deleting: Option<Deleting>,
}

/// A snapshot that another process has begun.
pub(crate) struct Left {
    pub(crate) delta: Delta,
    pub(crate) marks: Vec<Mark>,
}

/// Rows of a run that are left.
struct Deleting {
    run: u64,
    pages: u32,
    sections: u32,
}

impl Snapshots {
    /// Continues after a head. If its target is set, `left` is the part of the log up to there.
    pub(crate) fn new(
        log: Arc<Log>,
        options: SnapshotOptions,
        head: Head,
        ids: Ids,
        unresolved: Unresolved,
        left: Option<Left>,
    ) -> Self {
        let (merges, retired) = (Vec::new(), Vec::new());
        Self { log, options, head, ids, unresolved, left, taking: None, merges, retired, deleting: None }
    }

    /// Does some work. Returns whether there may be more. After an error the same work is tried again.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn step(&mut self) -> Result<bool, StoreError> {
        if self.left.is_some() {
            // Rows of its run may be there already, so it gets another.
            let mut next = self.head.clone();
            let run = reserve_run(&mut next);
            self.replace_head(next)?;
            let Left { delta, marks } = self.left.take().expect("just seen");
            self.taking = Some(Taking::resume(delta, marks, run, &self.head));
            return Ok(true);
        }
        if self.taking.is_none()
            && let Some(target) = self.log.requested()
            && target > self.head.records()
        {
            self.begin(target)?;
            return Ok(true);
        }
        if let Some(mut taking) = self.taking.take() {
            let done = taking.step(self);
            if !matches!(done, Ok(true)) {
                self.taking = Some(taking);
                return done.map(|_| true);
            }
            return self.finish(taking).map(|()| true);
        }
        if self.merge()? {
            return Ok(true);
        }
        self.delete_old()
    }

    /// The store with the tables.
    pub(super) fn store(&self) -> &Store {
        self.log.store()
    }

    fn replace_head(&mut self, next: Head) -> Result<(), StoreError> {
        self.head.replace(self.log.store(), &next)?;
        self.head = next;
        Ok(())
    }

    fn begin(&mut self, target: u64) -> Result<(), StoreError> {
        let mut next = self.head.clone();
        next.target = Some(target);
        let run = reserve_run(&mut next);
        self.replace_head(next)?;
        self.taking = Some(Taking::new(target, run, &self.head));
        Ok(())
    }

    /// Makes a snapshot current, all of whose rows are durable.
    fn finish(&mut self, mut taking: Taking) -> Result<(), StoreError> {
        let (next, run) = taking.end(&self.head);
        if let Err(error) = self.head.replace(self.log.store(), &next) {
            taking.give_back(run);
            self.taking = Some(taking);
            return Err(error);
        }
        self.head = next;
        let delta = taking.delta();
        for id in &delta.resolved {
            self.unresolved.remove(id);
        }
        self.unresolved.extend(delta.added().map(|pending| (pending.id, pending.record)));
        self.ids.runs.extend(run.map(Arc::new));
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        self.log.publish_snapshot(Published {
            records: self.head.records(),
            log_rows: self.head.log_rows,
            last_movement: self.head.summary.last_movement,
            ids: Arc::new(self.ids.clone()),
        });
    }

    /// Merges some more. Returns whether there was something to merge.
    fn merge(&mut self) -> Result<bool, StoreError> {
        let levels = self.ids.runs.iter().map(|run| run.head.level).max().map_or(0, |level| level + 1);
        for level in 0..levels {
            if self.merges.iter().all(|merge| merge.level != level) {
                let Some(runs) = to_merge(&self.ids.runs, level) else { continue };
                let runs = runs.to_vec();
                let mut next = self.head.clone();
                let number = reserve_run(&mut next);
                self.replace_head(next)?;
                self.merges.push(Merge::new(&runs, number, self.options));
                self.merges.sort_by_key(|merge| merge.level);
                return Ok(true);
            }
        }
        // Small merges first, so that runs do not accumulate while a large one takes long.
        let Some(merge) = self.merges.first_mut() else { return Ok(false) };
        if merge.step(self.log.store())? {
            self.end_merge()?;
        }
        Ok(true)
    }

    fn end_merge(&mut self) -> Result<(), StoreError> {
        let (inputs, made) = (self.merges[0].inputs(), self.merges[0].made());
        let is_input = |number: u64| inputs.contains(&number);
        let at =
            self.ids.runs.iter().position(|run| is_input(run.head.number)).expect("runs stay until merged");
        let mut next = self.head.clone();
        next.runs[at] = made.head;
        next.runs.retain(|run| !is_input(run.number));
        next.old_runs.retain(|number| *number != made.head.number);
        next.old_runs.extend_from_slice(&inputs);
        self.replace_head(next)?;
        self.merges.remove(0);
        self.retired.extend(self.ids.runs[at..at + inputs.len()].iter().cloned());
        self.ids.runs.splice(at..at + inputs.len(), [made]);
        self.publish();
        Ok(())
    }

    /// Deletes some rows that are not needed any more. Returns whether there may be more.
    fn delete_old(&mut self) -> Result<bool, StoreError> {
        // Its merge or snapshot is writing it, or a reader still has it.
        let (retired, merges) = (&self.retired, &self.merges);
        let is_free = |number: &u64| {
            merges.iter().all(|merge| merge.number != *number)
                && retired.iter().all(|run| run.head.number != *number || Arc::strong_count(run) == 1)
        };
        if let Some(number) = self.head.old_runs.iter().copied().find(is_free) {
            if !self.delete_rows_of(number)? {
                let mut next = self.head.clone();
                next.old_runs.retain(|old| *old != number);
                self.replace_head(next)?;
                self.retired.retain(|run| run.head.number != number);
            }
            return Ok(true);
        }
        let pendings = self.head.pendings;
        if pendings.old < pendings.from {
            let end = pendings.from.min(pendings.old + u64::from(DELETED_AT_ONCE));
            let delete = |row| Put::delete::<LedgerPendings>(&LedgerPendingsKey { row });
            let mut rows = (pendings.old..end).map(delete).collect();
            write_some(self.log.store(), &mut rows, usize::MAX)?;
            let mut next = self.head.clone();
            next.pendings.old = end;
            self.replace_head(next)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Deletes some rows of a run, the last ones first. Returns whether there were any.
    fn delete_rows_of(&mut self, run: u64) -> Result<bool, StoreError> {
        let store = self.log.store().clone();
        if self.deleting.as_ref().is_none_or(|deleting| deleting.run != run) {
            let pages =
                count(|page| Ok(store.get::<LedgerIdPages>(&LedgerIdPageKey { run, page })?.is_some()))?;
            let sections = count(|section| {
                Ok(store.get::<LedgerIdFilters>(&LedgerIdFilterKey { run, section })?.is_some())
            })?;
            self.deleting = Some(Deleting { run, pages, sections });
        }
        let Some(Deleting { pages, sections, .. }) = &mut self.deleting else { unreachable!("just set") };
        let from = |end: u32| end.saturating_sub(DELETED_AT_ONCE)..end;
        let mut rows: VecDeque<Put> = VecDeque::new();
        for page in from(*pages) {
            rows.push_back(Put::delete::<LedgerIdPages>(&LedgerIdPageKey { run, page }));
        }
        for section in from(*sections) {
            rows.push_back(Put::delete::<LedgerIdFilters>(&LedgerIdFilterKey { run, section }));
        }
        if rows.is_empty() {
            self.deleting = None;
            return Ok(false);
        }
        write_some(&store, &mut rows, usize::MAX)?;
        (*pages, *sections) = (from(*pages).start, from(*sections).start);
        Ok(true)
    }
}

/// Number of rows that there are, which are numbered from 0 without gaps.
fn count(exists: impl Fn(u32) -> Result<bool, StoreError>) -> Result<u32, StoreError> {
    let mut beyond = 1;
    while exists(beyond - 1)? {
        beyond *= 2;
    }
    // Row `from - 1` exists, and row `beyond - 1` does not.
    let mut from = beyond / 2;
    while from + 1 < beyond {
        let middle = from.midpoint(beyond);
        if exists(middle - 1)? { from = middle } else { beyond = middle }
    }
    Ok(from)
}

/// Takes the number of a new run. Until it is finished it is listed among those to be deleted.
fn reserve_run(head: &mut Head) -> u64 {
    let number = head.next_run;
    head.next_run += 1;
    head.old_runs.push(number);
    number
}
