//! Loading a snapshot when a ledger opens.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use batzen_ledger::machine::{HeldAccount, Machine, Pending};
use batzen_store::{Change, ChangeSet, CommitOutcome, RawRecord, Store, StoreError, Table, TableDef};
use batzen_tables::ledger::{
    DERIVED, LedgerAccounts, LedgerAccountsKey, LedgerLog, LedgerMarks, LedgerMarksKey, LedgerPendings,
    LedgerSnapshots,
};

use super::SnapshotOptions;
use super::delta::{Delta, Unresolved};
use super::head::Head;
use super::pages::{Mark, PAGE_ACCOUNTS, PendingEntry, damaged, damaged_page, decode_accounts, decode_marks};
use super::runs::{Ids, Run};
use super::taking::pending_rows;
use super::work::{Left, Snapshots};
use crate::store::codec::Identity;
use crate::store::log::Log;
use crate::store::walk::{RecoveryError, walk};

/// Rows that are read at once.
const ROWS_AT_ONCE: usize = 64;

/// A ledger as of its snapshot, or as of the one that was being taken.
pub(crate) struct Loaded {
    pub machine: Machine,
    pub log: Arc<Log>,
    pub(crate) snapshots: Snapshots,
    /// The records whose ids the machine has frozen.
    pub(crate) frozen: Option<u64>,
}

/// Loads the snapshot of a store, if there is one.
///
/// # Errors
/// When the store cannot be read. [`RecoveryError::Snapshot`] when the snapshot is damaged.
pub(crate) fn load(store: &Store, options: SnapshotOptions) -> Result<Option<Loaded>, RecoveryError> {
    let Some(head) = Head::read(store)? else {
        // Rows without a head would be in the way of new ones.
        let page = LedgerAccountsKey { page: 0 };
        return match store.get::<LedgerAccounts>(&page)? {
            None => Ok(None),
            Some(_) => Err(damaged(LedgerSnapshots::DEF.name, 0, &"it is missing").into()),
        };
    };
    let mut ids = Ids::new(&head.hash_key);
    for run in &head.runs {
        ids.runs.push(Arc::new(Run::load(store, *run)?));
    }
    let mut pendings = BTreeMap::new();
    let mut unresolved = Unresolved::new();
    read_pendings(store, &head, &mut pendings)?;
    unresolved.extend(pendings.values().map(|pending| (pending.id, pending.record)));
    let mut accounts = Pages::read(store, &head)?;
    let log = Log::resume(store.clone(), &head, ids.clone(), accounts.identities(&head));

    let mut left = None;
    if let Some(target) = head.target {
        let mut delta = Delta::new(&head.summary);
        let mut failed = None;
        walk(store, &log, &mut |row, records| {
            let added = delta.add_row((row.clock, row.digest), &records, &ids.hasher, &unresolved);
            failed = added.err();
            let is_end = failed.is_some() || delta.to() >= target;
            Ok(if is_end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let ended = failed.map_or_else(|| delta.finish(), Err);
        ended.map_err(|what| damaged(LedgerLog::DEF.name, delta.to(), &what))?;
        if delta.to() != target {
            return Err(damaged(LedgerLog::DEF.name, target, &"it ends before").into());
        }
        for page in delta.pages() {
            accounts.apply(store, &mut delta, page)?;
        }
        let marks = delta.take_marks();
        left = Some(Left { delta, marks });
    }
    let summary = left.as_ref().map_or(head.summary, |left| left.delta.summary);

    let mut machine = Machine::resume(&head.hash_key, &summary);
    for held in accounts.pages.iter().flat_map(|(_, accounts)| accounts) {
        machine.load_account(held);
    }
    drop(accounts);
    read_marks(store, &head, |mark| machine.load_mark(mark.account, mark.timestamp, mark.record))?;
    if let Some(Left { delta, marks }) = &left {
        for mark in marks {
            machine.load_mark(mark.account, mark.timestamp, mark.record);
        }
        for id in &delta.resolved {
            pendings.remove(id);
        }
        pendings.extend(delta.added().map(|pending| (pending.id, *pending)));
        for entry in &delta.ids {
            machine.load_id(entry.hash, entry.number(), entry.status());
        }
        machine.freeze_ids();
    }
    for pending in pendings.into_values() {
        if !machine.load_pending(pending) {
            return Err(damaged(LedgerPendings::DEF.name, pending.record, &"it does not fit").into());
        }
    }
    machine.check().map_err(|error| RecoveryError::Snapshot(error.to_string()))?;

    let (log, frozen) = (Arc::new(log), head.target);
    let snapshots = Snapshots::new(Arc::clone(&log), options, head, ids, unresolved, left);
    Ok(Some(Loaded { machine, log, snapshots, frozen }))
}

/// Pages of accounts, each with the number of records that it is as of.
struct Pages {
    pages: Vec<(u64, Vec<HeldAccount>)>,
}

impl Pages {
    fn read(store: &Store, head: &Head) -> Result<Self, StoreError> {
        let count = head.summary.counts.accounts.div_ceil(PAGE_ACCOUNTS.into());
        let count =
            u32::try_from(count).map_err(|_| damaged(LedgerSnapshots::DEF.name, 0, &"too many accounts"))?;
        let mut pages = Vec::new();
        let keys: Vec<LedgerAccountsKey> = (0..count).map(|page| LedgerAccountsKey { page }).collect();
        for keys in keys.chunks(ROWS_AT_ONCE) {
            for (key, row) in keys.iter().zip(store.get_many::<LedgerAccounts>(keys)?) {
                let row = row.ok_or_else(|| damaged_page(key.page, &"it is missing"))?.row;
                let accounts =
                    decode_accounts(&row.accounts).map_err(|error| damaged_page(key.page, &error))?;
                let is_whole = accounts_of(key.page, head) == accounts.len();
                let is_of_target = Some(row.records) == head.target;
                if !(is_of_target || row.records <= head.records() && is_whole) {
                    return Err(damaged_page(key.page, &"it is of another snapshot"));
                }
                pages.push((row.records, accounts));
            }
        }
        Ok(Self { pages })
    }

    /// The identities of the accounts that the snapshot has.
    fn identities(&self, head: &Head) -> Vec<Identity> {
        let accounts = self.pages.iter().flat_map(|(_, accounts)| accounts);
        let count = usize::try_from(head.summary.counts.accounts).expect("they are in memory");
        accounts.take(count).map(|held| Identity::of(&held.account)).collect()
    }

    /// Applies what the log changes in the next page.
    fn apply(&mut self, store: &Store, delta: &mut Delta, page: u32) -> Result<(), StoreError> {
        let at = usize::try_from(page).expect("32 bits fit");
        if at == self.pages.len() {
            // A page that the snapshot being taken begins.
            let row = store.get::<LedgerAccounts>(&LedgerAccountsKey { page })?.map(|stored| stored.row);
            self.pages.push(match row {
                None => (0, Vec::new()),
                Some(row) => {
                    (row.records, decode_accounts(&row.accounts).map_err(|error| damaged_page(page, &error))?)
                }
            });
        }
        let (records, accounts) = self.pages.get_mut(at).ok_or_else(|| damaged_page(page, &"a gap"))?;
        delta.apply(page, *records, accounts).map(drop).map_err(|what| damaged_page(page, &what))
    }
}

/// Returns the number of accounts of a page in a snapshot.
pub(super) fn accounts_of(page: u32, head: &Head) -> usize {
    let first = u64::from(page) * u64::from(PAGE_ACCOUNTS);
    let left = head.summary.counts.accounts.saturating_sub(first).min(PAGE_ACCOUNTS.into());
    usize::try_from(left).expect("pages are small")
}

fn read_marks(store: &Store, head: &Head, mut visit: impl FnMut(Mark)) -> Result<(), RecoveryError> {
    let keys: Vec<LedgerMarksKey> = (0..head.mark_rows).map(|row| LedgerMarksKey { row }).collect();
    let accounts = head.summary.counts.accounts;
    for keys in keys.chunks(ROWS_AT_ONCE) {
        for (key, row) in keys.iter().zip(store.get_many::<LedgerMarks>(keys)?) {
            let row = row.ok_or_else(|| damaged(LedgerMarks::DEF.name, key.row, &"they are missing"))?;
            let mut is_known = true;
            decode_marks(&row.row.marks, |mark| {
                is_known &= u64::from(mark.account) < accounts;
                visit(mark);
            })
            .map_err(|error| damaged(LedgerMarks::DEF.name, key.row, &error))?;
            if !is_known {
                return Err(
                    damaged(LedgerMarks::DEF.name, key.row, &"of an account that does not exist").into()
                );
            }
        }
    }
    Ok(())
}

/// The unresolved pending transfers of a snapshot.
pub(super) fn read_pendings(
    store: &Store,
    head: &Head,
    pendings: &mut BTreeMap<u128, Pending>,
) -> Result<(), StoreError> {
    let mut from = head.pendings.from;
    while from < head.pendings.to {
        let to = head.pendings.to.min(from + ROWS_AT_ONCE as u64);
        for entry in pending_rows(store, from, to)?.into_iter().flatten() {
            match entry {
                PendingEntry::Added(pending) => pendings.insert(pending.id, pending),
                PendingEntry::Resolved(id) => pendings.remove(&id),
            };
        }
        from = to;
    }
    Ok(())
}

/// Deletes a snapshot with everything that belongs to it, the head last.
///
/// # Errors
/// When the store fails.
pub(crate) fn clear(store: &Store) -> Result<(), StoreError> {
    const ROWS_AT_ONCE: usize = 256;
    let head: &'static TableDef = LedgerSnapshots::DEF;
    let tables = DERIVED.iter().copied().filter(|table| table.id != head.id).chain([head]);
    for table in tables {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        store.freeze(&[table])?.scan(table, &mut |record: RawRecord| {
            keys.push(record.key);
            ControlFlow::Continue(())
        })?;
        for keys in keys.chunks(ROWS_AT_ONCE) {
            let mut changes = ChangeSet::new();
            for (key, row) in keys.iter().zip(store.backend().get_many(table, keys)?) {
                let Some(row) = row else { continue };
                let (key, old_row, version) = (key.clone(), row.row, Some(row.version));
                changes.push(Change::Delete { table, key, old_row, version });
            }
            if store.commit(&changes)? != CommitOutcome::Committed {
                return Err(StoreError::Backend("another process takes snapshots".to_owned()));
            }
        }
    }
    Ok(())
}
