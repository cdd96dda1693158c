//! Verifying a snapshot against the state that the log leads to.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::ControlFlow;

use batzen_ledger::machine::{HeldAccount, IdStatus, LogRecord, Machine, Pending};
use batzen_store::{FrozenRows, Record, Table};
use batzen_tables::ledger::{
    LedgerAccounts, LedgerIdFilterRow, LedgerIdFilters, LedgerIdPages, LedgerLog, LedgerMarks,
    LedgerPendings, LedgerRows, LedgerSnapshots,
};

use super::head::Head;
use super::load::accounts_of;
use super::pages::{
    Mark, PAGE_ACCOUNTS, PendingEntry, damaged, decode_accounts, decode_marks, decode_pendings, rows_of_group,
};
use super::runs::{IdEntry, Run, decode_page};
use crate::store::block::Block;
use crate::store::log::Log;
use crate::store::walk::RecoveryError;

/// Compares a frozen snapshot, while its log is replayed.
pub(crate) struct Check<'a> {
    frozen: &'a dyn FrozenRows,
    head: Option<Head>,
    is_compared: bool,
    is_target_compared: bool,
    /// Over all uses of ids in the log, to compare all bits of their hashes.
    ids: u128,
}

fn wrong<T>(what: impl Display) -> Result<T, RecoveryError> {
    Err(RecoveryError::Snapshot(what.to_string()))
}

fn require(condition: bool, what: impl FnOnce() -> String) -> Result<(), RecoveryError> {
    if condition { Ok(()) } else { wrong(what()) }
}

/// A number for the use of an id. Sums over equal sets are equal.
fn mixed(hash: u64, number: u64) -> u128 {
    let (hash, number) = (u128::from(hash), u128::from(number));
    (hash << 64 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).rotate_left(61) ^ hash
}

/// Visits all rows of a table.
fn scan<T: Table>(
    frozen: &dyn FrozenRows,
    mut visit: impl FnMut(T::Key, T::Row) -> Result<(), RecoveryError>,
) -> Result<(), RecoveryError> {
    let mut failed = Ok(());
    frozen.scan(T::DEF, &mut |record| {
        let decoded = T::Key::decode(&record.key).and_then(|key| Ok((key, T::Row::decode(&record.row)?)));
        failed = match decoded {
            Ok((key, row)) => visit(key, row),
            Err(error) => wrong(format!("{}: {error}", T::DEF.name)),
        };
        if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failed
}

impl<'a> Check<'a> {
    pub(crate) fn of(frozen: &'a dyn FrozenRows) -> Result<Self, RecoveryError> {
        let mut head = None;
        scan::<LedgerSnapshots>(frozen, |_, row| {
            head = Some(Head::of(&row).map_err(|error| damaged(LedgerSnapshots::DEF.name, 0, &error))?);
            Ok(())
        })?;
        Ok(Self { frozen, head, is_compared: false, is_target_compared: false, ids: 0 })
    }

    /// The key that ids are hashed with.
    pub(crate) fn hash_key(&self) -> Option<[u8; 16]> {
        self.head.as_ref().map(|head| head.hash_key)
    }

    /// Notes a record that the machine has just replayed.
    pub(crate) fn saw(&mut self, machine: &Machine, record: &LogRecord) {
        let number = machine.counts().records - 1;
        if let Some(id) = record.transfer_id()
            && self.head.as_ref().is_some_and(|head| number < head.records())
        {
            self.ids = self.ids.wrapping_add(mixed(machine.hasher().hash(id), number));
        }
    }

    /// Compares what is of the machine's current record.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn at(&mut self, machine: &Machine, log: &Log) -> Result<(), RecoveryError> {
        let Some(head) = &self.head else { return Ok(()) };
        let records = machine.counts().records;
        if records == head.records() && !self.is_compared {
            let (ours, theirs) = (machine.summary(), head.summary);
            let is_equal = (ours.counts, ours.digest, ours.last_movement)
                == (theirs.counts, theirs.digest, theirs.last_movement);
            require(is_equal, || format!("its sums are {theirs:?}, not {ours:?}"))?;
            require(log.blocks() == head.log_rows, || "its number of rows differs".to_owned())?;
            self.accounts(machine, head)?;
            self.marks(machine, head)?;
            self.pendings(machine, head)?;
            self.log_rows(log, head)?;
            self.ids(machine, head)?;
            self.is_compared = true;
        }
        if head.target == Some(records) && !self.is_target_compared {
            scan::<LedgerAccounts>(self.frozen, |key, row| {
                if row.records == records { compare(machine, key.page, &row.accounts) } else { Ok(()) }
            })?;
            self.is_target_compared = true;
        }
        Ok(())
    }

    /// Checks that everything was compared.
    ///
    /// # Errors
    /// If the log ends too early.
    pub(crate) fn end(&self) -> Result<(), RecoveryError> {
        let Some(head) = &self.head else { return Ok(()) };
        let is_done = self.is_compared && (self.is_target_compared || head.target.is_none());
        require(is_done, || {
            format!("it has {} records, and the log has no commit that ends there", head.records())
        })
    }

    fn accounts(&self, machine: &Machine, head: &Head) -> Result<(), RecoveryError> {
        let mut pages = 0;
        scan::<LedgerAccounts>(self.frozen, |key, row| {
            let count = accounts_of(key.page, head);
            pages += u64::from(count > 0);
            if Some(row.records) == head.target {
                return Ok(());
            }
            require(row.records <= head.records(), || format!("page {} is of another snapshot", key.page))?;
            let accounts = decode_accounts(&row.accounts).map_or(0, |accounts| accounts.len());
            require(count == accounts, || format!("page {} has {accounts} accounts", key.page))?;
            compare(machine, key.page, &row.accounts)
        })?;
        let expected = head.summary.counts.accounts.div_ceil(PAGE_ACCOUNTS.into());
        require(pages == expected, || format!("it has {pages} pages of accounts, not {expected}"))
    }

    fn marks(&self, machine: &Machine, head: &Head) -> Result<(), RecoveryError> {
        let mut rows = BTreeMap::new();
        scan::<LedgerMarks>(self.frozen, |key, row| {
            if key.row < head.mark_rows {
                let mut marks = Vec::new();
                decode_marks(&row.marks, |mark| marks.push(mark))
                    .map_err(|error| damaged(LedgerMarks::DEF.name, key.row, &error))?;
                rows.insert(key.row, marks);
            }
            Ok(())
        })?;
        let mut found: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        for Mark { account, timestamp, record } in rows.into_values().flatten() {
            found.entry(account).or_default().push((timestamp, record));
        }
        for number in 0..u32::try_from(machine.counts().accounts).expect("accounts have 32 bits") {
            let found = found.get(&number).map_or(&[][..], Vec::as_slice);
            require(found == machine.marks(number), || format!("the marks of account {number} differ"))?;
        }
        Ok(())
    }

    fn pendings(&self, machine: &Machine, head: &Head) -> Result<(), RecoveryError> {
        let mut rows = BTreeMap::new();
        scan::<LedgerPendings>(self.frozen, |key, row| {
            if (head.pendings.from..head.pendings.to).contains(&key.row) {
                let mut entries = Vec::new();
                decode_pendings(&row.entries, |entry| entries.push(entry))
                    .map_err(|error| damaged(LedgerPendings::DEF.name, key.row, &error))?;
                rows.insert(key.row, entries);
            }
            Ok(())
        })?;
        let mut pendings: BTreeMap<u128, Pending> = BTreeMap::new();
        for entry in rows.into_values().flatten() {
            match entry {
                PendingEntry::Added(pending) => pendings.insert(pending.id, pending),
                PendingEntry::Resolved(id) => pendings.remove(&id),
            };
        }
        let is_equal = pendings.len() as u64 == machine.counts().pendings
            && pendings.iter().all(|(id, pending)| machine.unresolved(*id) == Some(pending));
        require(is_equal, || "its unresolved pending transfers differ".to_owned())
    }

    fn log_rows(&self, log: &Log, head: &Head) -> Result<(), RecoveryError> {
        let mut found: Vec<Block> = Vec::new();
        scan::<LedgerRows>(self.frozen, |key, row| {
            let rows = rows_of_group(key.group, &row.rows)
                .map_err(|error| damaged(LedgerRows::DEF.name, key.group, &error))?;
            found.extend(rows.into_iter().filter(|row| row.first < head.records()));
            Ok(())
        })?;
        found.sort_unstable_by_key(|row| row.first);
        let expected = log.rows_within(0, head.records(), usize::MAX);
        require(found == expected, || format!("its index of {} differs", LedgerLog::DEF.name))
    }

    fn ids(&self, machine: &Machine, head: &Head) -> Result<(), RecoveryError> {
        let mut filters: BTreeMap<(u64, u32), LedgerIdFilterRow> = BTreeMap::new();
        scan::<LedgerIdFilters>(self.frozen, |key, row| {
            if head.runs.iter().any(|run| run.number == key.run) {
                filters.insert((key.run, key.section), row);
            }
            Ok(())
        })?;
        let mut runs = BTreeMap::new();
        for run in &head.runs {
            let sections = (0..run.sections).map(|section| filters.remove(&(run.number, section)));
            runs.insert(run.number, Run::of(*run, sections)?);
        }
        drop(filters);
        let mut found = Found::new(head.records());
        scan::<LedgerIdPages>(self.frozen, |key, row| {
            let Some(run) = runs.get(&key.run) else { return Ok(()) };
            let what = || format!("page {} of run {} of its ids is wrong", key.page, key.run);
            let entries = decode_page(&row);
            require(entries.is_some(), what)?;
            for entry in entries.into_iter().flatten() {
                require(run.has(entry.hash, key.page), what)?;
                *found.of_run.entry(key.run).or_default() += 1;
                found.see(machine, &entry)?;
            }
            Ok(())
        })?;
        for run in &head.runs {
            let entries = found.of_run.get(&run.number).copied().unwrap_or(0);
            require(entries == run.entries, || format!("run {} has {entries} entries", run.number))?;
        }
        let counts = machine.counts();
        let is_equal = found.count == counts.transfers + counts.burnt && found.sum == self.ids;
        require(is_equal, || "its ids differ".to_owned())
    }
}

/// Compares a page of accounts.
fn compare(machine: &Machine, page: u32, bytes: &[u8]) -> Result<(), RecoveryError> {
    let accounts =
        decode_accounts(bytes).map_err(|error| damaged(LedgerAccounts::DEF.name, page.into(), &error))?;
    let first = page * PAGE_ACCOUNTS;
    let is_equal = |(number, held): (u32, &HeldAccount)| machine.held_account(number) == Some(*held);
    require((first..).zip(&accounts).all(is_equal), || format!("page {page} of its accounts differs"))
}

/// Entries that were found.
struct Found {
    /// By record: whether its entry with the latest status was found.
    seen: Vec<u64>,
    count: u64,
    sum: u128,
    of_run: HashMap<u64, u64>,
}

impl Found {
    fn new(records: u64) -> Self {
        let words = usize::try_from(records.div_ceil(64)).expect("the log fits");
        Self { seen: vec![0; words], count: 0, sum: 0, of_run: HashMap::new() }
    }

    fn see(&mut self, machine: &Machine, entry: &IdEntry) -> Result<(), RecoveryError> {
        let number = entry.number();
        let known = machine.find_ids(entry.hash).find(|(known, _)| *known == number);
        let Some((_, status)) = known else { return wrong(format!("its id of record {number} is wrong")) };
        if entry.status() != status {
            // It was written before the transfer was resolved; a later run has another entry.
            let is_old = entry.status() == IdStatus::Pending;
            return require(is_old, || format!("its status of record {number} is wrong"));
        }
        let word = &mut self.seen[usize::try_from(number / 64).expect("the log fits")];
        let bit = 1 << (number % 64);
        require(*word & bit == 0, || format!("it has record {number} twice"))?;
        *word |= bit;
        self.count += 1;
        self.sum = self.sum.wrapping_add(mixed(entry.hash, number));
        Ok(())
    }
}
