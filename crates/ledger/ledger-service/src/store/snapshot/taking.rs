//! Taking a snapshot, in steps.

use std::collections::VecDeque;

use batzen_store::{Store, StoreError, Table};
use batzen_tables::ledger::{
    LedgerAccounts, LedgerAccountsKey, LedgerAccountsRow, LedgerLog, LedgerMarks, LedgerMarksKey,
    LedgerMarksRow, LedgerPendings, LedgerPendingsKey, LedgerPendingsRow, LedgerRows, LedgerRowsKey,
    LedgerRowsRow,
};

use super::delta::Delta;
use super::head::{Head, PendingRows};
use super::pages::{
    GROUP_RECORDS, Mark, PendingEntry, ROW_MARKS, ROW_PENDINGS, damaged, damaged_page, decode_accounts,
    decode_pendings, encode_accounts, encode_marks, encode_pendings, encode_rows, rows_of_group,
};
use super::put::{Put, write_some};
use super::runs::{IdEntry, Run, RunWriter};
use super::work::Snapshots;

/// Rows of the log that one step reads.
const LOG_ROWS_AT_ONCE: usize = 256;

/// Pages of accounts that one step reads.
const PAGES_AT_ONCE: usize = 64;

/// Rows of pending transfers that one step reads.
const PENDING_ROWS_AT_ONCE: u64 = 16;

/// Rows of ids that one step makes.
const ID_ROWS_AT_ONCE: usize = 64;

/// The next phase.
enum Phase {
    /// Reading the log.
    Log,
    /// Replacing pages of accounts.
    Accounts(VecDeque<u32>),
    Marks,
    Pendings,
    /// Copying what is unresolved from old rows of pending transfers, from this one on.
    CopyPendings(u64),
    LogRows,
    Ids(std::vec::IntoIter<IdEntry>),
    Done,
}

/// A snapshot that is being written.
pub(super) struct Taking {
    target: u64,
    /// The number of its run.
    number: u64,
    delta: Delta,
    phase: Phase,
    /// To be written before the phase goes on.
    rows: VecDeque<Put>,
    marks: Option<Vec<Mark>>,
    mark_rows: u64,
    pendings: PendingRows,
    entries: Vec<PendingEntry>,
    writer: Option<RunWriter>,
    made: Option<Run>,
}

impl Taking {
    pub(super) fn new(target: u64, number: u64, head: &Head) -> Self {
        Self {
            target,
            number,
            delta: Delta::new(&head.summary),
            phase: Phase::Log,
            rows: VecDeque::new(),
            marks: None,
            mark_rows: head.mark_rows,
            pendings: head.pendings,
            entries: Vec::new(),
            writer: None,
            made: None,
        }
    }

    /// Continues one whose part of the log and marks are known already, with a new run.
    pub(super) fn resume(delta: Delta, marks: Vec<Mark>, number: u64, head: &Head) -> Self {
        let phase = Phase::Accounts(delta.pages().into());
        let new = Self::new(delta.to(), number, head);
        Self { delta, phase, marks: Some(marks), ..new }
    }

    pub(super) const fn delta(&self) -> &Delta {
        &self.delta
    }

    /// Does some more. Returns whether all rows are durable.
    pub(super) fn step(&mut self, of: &Snapshots) -> Result<bool, StoreError> {
        let store = of.store();
        if !self.rows.is_empty() {
            write_some(store, &mut self.rows, of.options.commit_bytes)?;
            return Ok(false);
        }
        match &mut self.phase {
            Phase::Log => self.read_log(of)?,
            Phase::Accounts(pages) => {
                let count = pages.len().min(PAGES_AT_ONCE);
                let keys: Vec<u32> = pages.range(..count).copied().collect();
                self.rows = changed_pages(store, &mut self.delta, &keys)?;
                pages.drain(..count);
                if pages.is_empty() {
                    self.phase = Phase::Marks;
                }
            }
            Phase::Marks => {
                let marks = self.marks.take().unwrap_or_else(|| self.delta.take_marks());
                for marks in marks.chunks(ROW_MARKS) {
                    let key = LedgerMarksKey { row: self.mark_rows };
                    let row = LedgerMarksRow { marks: encode_marks(marks) };
                    self.rows.push_back(Put::row::<LedgerMarks>(&key, &row));
                    self.mark_rows += 1;
                }
                self.phase = Phase::Pendings;
            }
            Phase::Pendings => self.begin_pendings(of),
            Phase::CopyPendings(row) => {
                let row = *row;
                self.copy_pendings(of, row)?;
            }
            Phase::LogRows => {
                self.rows = changed_groups(store, &self.delta)?;
                let mut ids = std::mem::take(&mut self.delta.ids);
                ids.sort_unstable();
                self.writer = (!ids.is_empty()).then(|| RunWriter::new(self.number, of.options));
                self.phase = Phase::Ids(ids.into_iter());
            }
            Phase::Ids(ids) => match &mut self.writer {
                None => self.phase = Phase::Done,
                Some(writer) => {
                    while self.rows.len() < ID_ROWS_AT_ONCE {
                        let Some(entry) = ids.next() else {
                            self.made = Some(writer.finish(0, &mut self.rows));
                            self.phase = Phase::Done;
                            break;
                        };
                        writer.push(entry, &mut self.rows);
                    }
                }
            },
            Phase::Done => return Ok(true),
        }
        Ok(false)
    }

    fn read_log(&mut self, of: &Snapshots) -> Result<(), StoreError> {
        let rows = of.log.rows_within(self.delta.to(), self.target, LOG_ROWS_AT_ONCE);
        for (row, records) in of.log.read_rows(&rows)? {
            let at = self.delta.to();
            self.delta
                .add_row(row, &records, &of.ids.hasher, &of.unresolved)
                .map_err(|what| damaged(LedgerLog::DEF.name, at, &what))?;
        }
        if self.delta.to() >= self.target {
            self.delta.finish().map_err(|what| damaged(LedgerLog::DEF.name, self.target, &what))?;
            self.phase = Phase::Accounts(self.delta.pages().into());
        }
        Ok(())
    }

    fn begin_pendings(&mut self, of: &Snapshots) {
        let mut resolved: Vec<u128> = self.delta.resolved.iter().copied().collect();
        let mut added: Vec<_> = self.delta.added().copied().collect();
        resolved.sort_unstable();
        added.sort_unstable_by_key(|pending| pending.record);
        let added = added.into_iter().map(PendingEntry::Added);
        let all = self.pendings.entries + (resolved.len() + added.len()) as u64;
        let live = self.delta.summary.counts.pendings;
        if all > 2 * live + of.options.pending_slack {
            // Most entries are of what was resolved: only the others are kept, in new rows.
            let first = self.pendings.from;
            (self.pendings.from, self.pendings.entries) = (self.pendings.to, 0);
            self.entries = added.collect();
            self.phase = Phase::CopyPendings(first);
        } else {
            self.entries = resolved.into_iter().map(PendingEntry::Resolved).chain(added).collect();
            self.put_pendings(true);
            self.phase = Phase::LogRows;
        }
    }

    /// Copies what is still unresolved from some old rows.
    fn copy_pendings(&mut self, of: &Snapshots, from: u64) -> Result<(), StoreError> {
        let end = self.pendings.from.min(from + PENDING_ROWS_AT_ONCE);
        let mut kept = Vec::new();
        for row in pending_rows(of.store(), from, end)? {
            for entry in row {
                if let PendingEntry::Added(pending) = entry
                    && of.unresolved.get(&pending.id) == Some(&pending.record)
                    && !self.delta.resolved.contains(&pending.id)
                {
                    kept.push(entry);
                }
            }
        }
        self.entries.append(&mut kept);
        let is_last = end == self.pendings.from;
        self.put_pendings(is_last);
        self.phase = if is_last { Phase::LogRows } else { Phase::CopyPendings(end) };
        Ok(())
    }

    /// Makes rows of the entries, of full ones only if more will come.
    fn put_pendings(&mut self, is_last: bool) {
        let full = self.entries.len() - self.entries.len() % ROW_PENDINGS;
        let end = if is_last { self.entries.len() } else { full };
        let entries: Vec<PendingEntry> = self.entries.drain(..end).collect();
        for entries in entries.chunks(ROW_PENDINGS) {
            let key = LedgerPendingsKey { row: self.pendings.to };
            let row = LedgerPendingsRow { entries: encode_pendings(entries) };
            self.rows.push_back(Put::row::<LedgerPendings>(&key, &row));
            self.pendings.to += 1;
            self.pendings.entries += entries.len() as u64;
        }
    }

    /// The head that makes the snapshot current, and its run.
    pub(super) fn end(&mut self, head: &Head) -> (Head, Option<Run>) {
        let run = self.made.take();
        let mut next = head.clone();
        next.summary = self.delta.summary;
        next.target = None;
        next.log_rows += self.delta.rows.len() as u64;
        next.mark_rows = self.mark_rows;
        next.pendings = PendingRows { old: head.pendings.old, ..self.pendings };
        next.old_runs.retain(|number| *number != self.number);
        next.runs.extend(run.as_ref().map(|run| run.head));
        (next, run)
    }

    /// Takes the run back, because the head could not be written.
    pub(super) fn give_back(&mut self, run: Option<Run>) {
        self.made = run;
    }
}

/// The pages of accounts that a part of the log changes, except for those that have the change.
fn changed_pages(store: &Store, delta: &mut Delta, pages: &[u32]) -> Result<VecDeque<Put>, StoreError> {
    let keys: Vec<LedgerAccountsKey> = pages.iter().map(|page| LedgerAccountsKey { page: *page }).collect();
    let mut rows = VecDeque::with_capacity(keys.len());
    for (key, row) in keys.iter().zip(store.get_many::<LedgerAccounts>(&keys)?) {
        let (records, mut accounts) = match row {
            None => (0, Vec::new()),
            Some(row) => {
                let accounts = decode_accounts(&row.row.accounts);
                (row.row.records, accounts.map_err(|error| damaged_page(key.page, &error))?)
            }
        };
        let is_changed = delta.apply(key.page, records, &mut accounts);
        if is_changed.map_err(|what| damaged_page(key.page, &what))? {
            let row = LedgerAccountsRow { records: delta.to(), accounts: encode_accounts(&accounts) };
            rows.push_back(Put::row::<LedgerAccounts>(key, &row));
        }
    }
    Ok(rows)
}

/// The groups of the log's index that get new rows.
fn changed_groups(store: &Store, delta: &Delta) -> Result<VecDeque<Put>, StoreError> {
    let mut groups = VecDeque::new();
    for new in delta.rows.chunk_by(|a, b| a.first / GROUP_RECORDS == b.first / GROUP_RECORDS) {
        let group = new[0].first / GROUP_RECORDS;
        let key = LedgerRowsKey { group };
        let mut rows = Vec::new();
        // The first group may have rows of the snapshot before.
        if delta.from() > group * GROUP_RECORDS
            && let Some(stored) = store.get::<LedgerRows>(&key)?
        {
            rows = rows_of_group(group, &stored.row.rows)
                .map_err(|error| damaged(LedgerRows::DEF.name, group * GROUP_RECORDS, &error))?;
            rows.retain(|row| row.first < delta.from());
        }
        rows.extend_from_slice(new);
        groups.push_back(Put::row::<LedgerRows>(&key, &LedgerRowsRow { rows: encode_rows(group, &rows) }));
    }
    Ok(groups)
}

/// The entries of rows of pending transfers.
pub(super) fn pending_rows(store: &Store, from: u64, to: u64) -> Result<Vec<Vec<PendingEntry>>, StoreError> {
    let keys: Vec<LedgerPendingsKey> = (from..to).map(|row| LedgerPendingsKey { row }).collect();
    let rows = store.get_many::<LedgerPendings>(&keys)?;
    let rows = rows.into_iter().zip(from..).map(|(row, number)| {
        let row = row.ok_or_else(|| damaged(LedgerPendings::DEF.name, number, &"a row is missing"))?;
        let mut entries = Vec::new();
        decode_pendings(&row.row.entries, |entry| entries.push(entry))
            .map_err(|error| damaged(LedgerPendings::DEF.name, number, &error))?;
        Ok(entries)
    });
    rows.collect()
}
