//! The work of an archiver, without its thread: find, copy, remove.

use std::collections::HashSet;
use std::ops::ControlFlow;

use batzen_crypto::ShortHash;
use batzen_protocol::Timestamp;
use batzen_store::{Change, ChangeSet, CommitOutcome, Found, Store, StoreError, Table, go_on};
use batzen_tables::exchange::{
    ArchiveCountRow, ArchiveCounts, ArchiveRunKey, ArchiveRunRow, ArchiveRuns, Coins, CounterKey, Counters,
    Denominations, PaytoHash, Purses, Revocations, WireOut, WireTargetKey, WireTargets,
};

use super::files::{Archives, MOVED, contents, differences};
use super::{ArchiveError, Decision, Moved, Report};
use crate::reads::archive::{self as found, Examined, Leaving};
use crate::rules::archive::{ARCHIVE_ROWS_MAX, Retention};
use crate::rules::{Archive, ArchiveUnit, Archived, ExchangeRules, Stays};

/// Number of rows of a table that are examined together.
const PAGE_ROWS: usize = 256;
/// Number of keys that are looked up together when an interrupted run is continued.
const KEYS_AT_ONCE: usize = 1_024;

/// The task of an archiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Count what could leave.
    Count,
    /// Move it.
    Move {
        /// Why, for auditors.
        reason: String,
    },
}

/// The time, and the day that the operator named.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The clock.
    pub now: Timestamp,
    /// Everything must be over at this time.
    pub until: Timestamp,
}

/// The run that is under way.
struct Run {
    number: u32,
    id: ShortHash,
    archive: Store,
    /// Accounts that the archive has.
    targets: HashSet<PaytoHash>,
}

#[derive(Clone, Copy)]
enum Kind {
    Transfers,
    Purses,
    Coins,
}

/// Examines rows of a table for what may leave.
type Examine<T> = fn(&Store, Retention<'_>, &Leaving, Vec<Found<T>>) -> Result<Examined, StoreError>;

/// Moves rows from a store to archives.
pub struct Mover<'a, P> {
    store: &'a Store,
    rules: &'a ExchangeRules,
    times: Times,
    archives: &'a dyn Archives,
    decide: &'a mut dyn FnMut(Archive) -> Decision,
    progress: P,
    report: Report,
    run: Option<Run>,
    leaving: Leaving,
}

fn in_store(source: StoreError) -> ArchiveError {
    ArchiveError::Store { place: "the exchange's store", source }
}

fn in_archive(source: StoreError) -> ArchiveError {
    ArchiveError::Store { place: "the archive", source }
}

impl<'a, P: FnMut(&Report)> Mover<'a, P> {
    /// An archiver. `decide` has the rules decide on a command.
    pub fn new(
        store: &'a Store,
        rules: &'a ExchangeRules,
        times: Times,
        archives: &'a dyn Archives,
        decide: &'a mut dyn FnMut(Archive) -> Decision,
        progress: P,
    ) -> Self {
        let (report, leaving) = (Report::default(), Leaving::default());
        Self { store, rules, times, archives, decide, progress, report, run: None, leaving }
    }

    /// Does everything.
    ///
    /// # Errors
    /// The reason why it stopped before it was done.
    pub fn run(mut self, task: &Task) -> Result<Report, ArchiveError> {
        if let Task::Move { reason } = task
            && !self.store.lookup::<ArchiveRuns>(ArchiveRuns::OPEN, &0u8).map_err(in_store)?.is_empty()
        {
            // It was interrupted.
            self.begin(reason)?;
        }
        // Payments before the coins that made them.
        self.sweep::<WireOut>(task, Kind::Transfers, |store, retention, _, page| {
            found::transfers(store, retention, page)
        })?;
        self.sweep::<Purses>(task, Kind::Purses, |store, retention, _, page| {
            found::purses(store, retention, page)
        })?;
        self.sweep::<Coins>(task, Kind::Coins, found::coins)?;
        if let Some(run) = self.run.take() {
            self.finish(&run)?;
        }
        Ok(self.report)
    }

    /// Examines a table, and moves what may leave.
    fn sweep<T: Table>(&mut self, task: &Task, kind: Kind, examine: Examine<T>) -> Result<(), ArchiveError> {
        let store = self.store;
        let (mut page, mut batch) = (Vec::new(), Vec::new());
        let mut outcome = Ok(());
        store
            .scan::<T>(|row| {
                page.push(row);
                if page.len() < PAGE_ROWS {
                    return ControlFlow::Continue(());
                }
                let page = std::mem::take(&mut page);
                go_on(self.page((task, kind), examine, page, &mut batch), &mut outcome)
            })
            .map_err(in_store)?;
        outcome?;
        self.page((task, kind), examine, page, &mut batch)?;
        self.flush(task, kind, batch)
    }

    fn page<T: Table>(
        &mut self,
        (task, kind): (&Task, Kind),
        examine: Examine<T>,
        page: Vec<Found<T>>,
        batch: &mut Vec<ArchiveUnit>,
    ) -> Result<(), ArchiveError> {
        let retention = Retention { denoms: &self.rules.denoms, now: self.times.now.min(self.times.until) };
        let seen = page.len() as u64;
        let examined = examine(self.store, retention, &self.leaving, page).map_err(in_store)?;
        let moved = self.moved(kind);
        moved.seen += seen;
        for (why, count) in examined.stay {
            *moved.stay.entry(why).or_default() += count;
        }
        let mut rows: usize = batch.iter().map(ArchiveUnit::count).sum();
        for unit in examined.units {
            if rows + unit.count() > ARCHIVE_ROWS_MAX && !batch.is_empty() {
                self.flush(task, kind, std::mem::take(batch))?;
                rows = 0;
            }
            rows += unit.count();
            batch.push(unit);
        }
        (self.progress)(&self.report);
        Ok(())
    }

    fn moved(&mut self, kind: Kind) -> &mut Moved {
        match kind {
            Kind::Transfers => &mut self.report.transfers,
            Kind::Purses => &mut self.report.purses,
            Kind::Coins => &mut self.report.coins,
        }
    }

    /// Counts or moves a batch.
    fn flush(&mut self, task: &Task, kind: Kind, units: Vec<ArchiveUnit>) -> Result<(), ArchiveError> {
        if units.is_empty() {
            return Ok(());
        }
        let verdicts = match task {
            Task::Count => vec![None; units.len()],
            Task::Move { reason } => {
                if self.run.is_none() {
                    self.begin(reason)?;
                }
                self.move_units(&units)?
            }
        };
        for (unit, stays) in units.iter().zip(verdicts) {
            if let Some(why) = stays {
                *self.moved(kind).stay.entry(why).or_default() += 1;
                continue;
            }
            for row in unit.rows() {
                let units = self.rules.amount_of(unit, &row);
                let count = self.report.counts.entry((row.table.id, row.denom)).or_insert(ArchiveCountRow {
                    rows: 0,
                    bytes: 0,
                    units: 0,
                });
                count.rows += 1;
                count.bytes += row.bytes();
                count.units = count.units.saturating_add(units);
            }
            // A transfer counts when its last part leaves.
            let is_whole = match unit {
                ArchiveUnit::Transfer(part) => {
                    if matches!(task, Task::Count) {
                        self.leaving.transfers.insert(part.wtid);
                    }
                    part.wire_out.is_some()
                }
                ArchiveUnit::Purse(coins) => {
                    if matches!(task, Task::Count) {
                        self.leaving.purses.insert(coins.purse_pub);
                    }
                    true
                }
                ArchiveUnit::Coin(_) => true,
            };
            self.moved(kind).left += u64::from(is_whole);
        }
        (self.progress)(&self.report);
        Ok(())
    }

    /// Copies units to the archive, and then has them removed from the store.
    fn move_units(&mut self, units: &[ArchiveUnit]) -> Result<Vec<Option<Stays>>, ArchiveError> {
        let run = self.run.as_mut().expect("a run has begun");
        copy_targets(self.store, run, units)?;
        let mut changes = ChangeSet::new();
        for row in units.iter().flat_map(ArchiveUnit::rows) {
            changes.push(row.into_insert());
        }
        match run.archive.commit(&changes).map_err(in_archive)? {
            CommitOutcome::Committed => {}
            CommitOutcome::Conflict(rows) => {
                let table = rows.first().map_or("a table", |(table, _)| table.name);
                let what = format!("has a row of {table} already that the store has, too");
                return Err(ArchiveError::Differs { run: run.number, what });
            }
        }
        let command =
            Archive::Move { run: run.number, id: run.id, until: self.times.until, units: units.to_vec() };
        let Archived::Moved(verdicts) = (self.decide)(command)? else {
            unreachable!("an answer belongs to its command")
        };
        assert_eq!(verdicts.len(), units.len(), "a verdict for each unit");
        // What stays does not belong to the archive.
        let mut changes = ChangeSet::new();
        for (unit, _) in units.iter().zip(&verdicts).filter(|(_, stays)| stays.is_some()) {
            unit.rows().into_iter().for_each(|row| changes.push(row.into_delete()));
        }
        commit(&run.archive, &changes)?;
        Ok(verdicts)
    }

    /// Begins a run, or continues the one that was interrupted.
    fn begin(&mut self, reason: &str) -> Result<(), ArchiveError> {
        let open = self.store.lookup::<ArchiveRuns>(ArchiveRuns::OPEN, &0u8).map_err(in_store)?;
        let number = match open.first() {
            Some(found) => found.key.run,
            None => {
                let key = CounterKey { name: Counters::ARCHIVE_RUN.to_owned() };
                let last =
                    self.store.get::<Counters>(&key).map_err(in_store)?.map_or(0, |found| found.row.value);
                u32::try_from(last + 1).expect("fewer than 2^32 runs")
            }
        };
        let id = ShortHash::random();
        let command = Archive::Begin { run: number, id, reason: reason.to_owned() };
        let Archived::Begun { run: number, row } = (self.decide)(command)? else {
            unreachable!("an answer belongs to its command")
        };
        let is_new = row.id == id;
        let archive = self.archives.open(number, is_new).map_err(in_archive)?;
        let differs = |what: String| ArchiveError::Differs { run: number, what };
        if is_new {
            let mut changes = ChangeSet::new();
            // A run that took nothing may have been interrupted after this.
            for old in archive.all::<ArchiveRuns>().map_err(in_archive)? {
                changes.delete::<ArchiveRuns>(&old.key, &old.row);
            }
            commit(&archive, &changes)?;
            let mut changes = ChangeSet::new();
            changes.insert::<ArchiveRuns>(&ArchiveRunKey { run: number }, &row);
            commit(&archive, &changes)?;
        } else if archive
            .get::<ArchiveRuns>(&ArchiveRunKey { run: number })
            .map_err(in_archive)?
            .is_none_or(|stored| stored.row.id != row.id)
        {
            return Err(differs("is not the one that the run began with".to_owned()));
        }
        remove_drafts(&archive, self.store)?;
        let found = contents(&archive).map_err(in_archive)?;
        if let Some(what) =
            differences(&found, self.store, number, &row).map_err(in_store)?.into_iter().next()
        {
            return Err(differs(what));
        }
        self.report.run = Some(number);
        self.run = Some(Run { number, id: row.id, archive, targets: HashSet::new() });
        Ok(())
    }

    /// Ends the run: the archive gets what explains its rows, and the digest.
    fn finish(&mut self, run: &Run) -> Result<(), ArchiveError> {
        let key = ArchiveRunKey { run: run.number };
        let row = self.store.get::<ArchiveRuns>(&key).map_err(in_store)?;
        let row = row.expect("a run is never removed").row;
        let found = contents(&run.archive).map_err(in_archive)?;
        let different = differences(&found, self.store, run.number, &row).map_err(in_store)?;
        if let Some(what) = different.into_iter().next() {
            return Err(ArchiveError::Differs { run: run.number, what });
        }
        copy_table::<Denominations>(self.store, &run.archive)?;
        copy_table::<Revocations>(self.store, &run.archive)?;
        let mut changes = ChangeSet::new();
        for count in
            self.store.lookup::<ArchiveCounts>(ArchiveCounts::BY_RUN, &run.number).map_err(in_store)?
        {
            put::<ArchiveCounts>(&run.archive, &count.key, &count.row, &mut changes)?;
        }
        let finished = ArchiveRunRow { finished: Some(self.times.now), digest: Some(found.digest), ..row };
        put::<ArchiveRuns>(&run.archive, &key, &finished, &mut changes)?;
        commit(&run.archive, &changes)?;
        let command =
            Archive::Finish { run: run.number, id: run.id, digest: found.digest, time: self.times.now };
        (self.decide)(command)?;
        run.archive.close().map_err(in_archive)
    }
}

fn commit(archive: &Store, changes: &ChangeSet) -> Result<(), ArchiveError> {
    match archive.commit(changes).map_err(in_archive)? {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(_) => unreachable!("nobody else has the archive open"),
    }
}

/// Adds or replaces a row.
fn put<T: Table>(
    archive: &Store,
    key: &T::Key,
    row: &T::Row,
    changes: &mut ChangeSet,
) -> Result<(), ArchiveError> {
    match archive.get::<T>(key).map_err(in_archive)? {
        Some(old) => changes.update::<T>(key, &old.row, row),
        None => changes.insert::<T>(key, row),
    }
    Ok(())
}

/// Copies a small table.
fn copy_table<T: Table>(store: &Store, archive: &Store) -> Result<(), ArchiveError> {
    let mut changes = ChangeSet::new();
    for found in store.all::<T>().map_err(in_store)? {
        put::<T>(archive, &found.key, &found.row, &mut changes)?;
    }
    commit(archive, &changes)
}

/// Copies the accounts that units pay to.
fn copy_targets(store: &Store, run: &mut Run, units: &[ArchiveUnit]) -> Result<(), ArchiveError> {
    let mut keys = Vec::new();
    for unit in units {
        if let ArchiveUnit::Transfer(part) = unit {
            for (_, deposit) in &part.deposits {
                if run.targets.insert(deposit.h_payto) {
                    keys.push(WireTargetKey { h_payto: deposit.h_payto });
                }
            }
        }
    }
    let mut changes = ChangeSet::new();
    for (key, target) in keys.iter().zip(store.get_many::<WireTargets>(&keys).map_err(in_store)?) {
        if let Some(target) = target {
            put::<WireTargets>(&run.archive, key, &target.row, &mut changes)?;
        }
    }
    commit(&run.archive, &changes)
}

/// Removes copies whose originals are still in the store: the run was interrupted in between.
fn remove_drafts(archive: &Store, store: &Store) -> Result<(), ArchiveError> {
    let mut changes = ChangeSet::new();
    for table in MOVED {
        let mut page = Vec::new();
        let mut compare = |page: Vec<batzen_store::RawRecord>| -> Result<(), StoreError> {
            let keys: Vec<Vec<u8>> = page.iter().map(|record| record.key.clone()).collect();
            let originals = store.backend().get_many(table, &keys)?;
            for (record, original) in page.into_iter().zip(originals) {
                if original.is_some() {
                    let (key, old_row, version) = (record.key, record.row, Some(record.version));
                    changes.push(Change::Delete { table, key, old_row, version });
                }
            }
            Ok(())
        };
        let mut outcome = Ok(());
        archive
            .backend()
            .scan(table, &mut |record| {
                page.push(record);
                if page.len() < KEYS_AT_ONCE {
                    return ControlFlow::Continue(());
                }
                go_on(compare(std::mem::take(&mut page)), &mut outcome)
            })
            .map_err(in_archive)?;
        outcome.map_err(in_store)?;
        if !page.is_empty() {
            compare(page).map_err(in_store)?;
        }
    }
    commit(archive, &changes)
}
