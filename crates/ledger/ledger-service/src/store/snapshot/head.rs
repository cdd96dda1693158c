//! The head: which rows make up the current snapshot.

use batzen_ledger::machine::{Counts, Digest, Summary};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError, Table};
use batzen_tables::ledger::{LedgerSnapshotKey, LedgerSnapshotRow, LedgerSnapshots};

use super::pages::damaged;
use crate::store::codec::{CodecError, Input, put_u64};

/// A run of ids that belongs to the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunHead {
    pub number: u64,
    /// Number of merges that its entries have been through.
    pub(crate) level: u8,
    pub(crate) entries: u64,
    pub(crate) sections: u32,
}

/// See [`LedgerSnapshotRow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub hash_key: [u8; 16],
    /// The state; its count of records is that of the snapshot.
    pub summary: Summary,
    /// The records of the next snapshot, while it is written.
    pub target: Option<u64>,
    pub log_rows: u64,
    pub(crate) mark_rows: u64,
    pub pendings: PendingRows,
    pub(crate) next_run: u64,
    pub runs: Vec<RunHead>,
    pub old_runs: Vec<u64>,
}

/// Rows of pending transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingRows {
    /// To be deleted up to `from`.
    pub(crate) old: u64,
    pub from: u64,
    pub(crate) to: u64,
    pub(crate) entries: u64,
}

impl Head {
    /// Of a snapshot of nothing.
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        Self {
            hash_key,
            summary: Summary::default(),
            target: None,
            log_rows: 0,
            mark_rows: 0,
            pendings: PendingRows::default(),
            next_run: 0,
            runs: Vec::new(),
            old_runs: Vec::new(),
        }
    }

    pub(crate) const fn records(&self) -> u64 {
        self.summary.counts.records
    }

    /// The head in a store, if there is one.
    pub(crate) fn read(store: &Store) -> Result<Option<Self>, StoreError> {
        let row = store.get::<LedgerSnapshots>(&LedgerSnapshotKey::ONLY)?;
        row.map(|stored| Self::of(&stored.row).map_err(|error| damaged(LedgerSnapshots::DEF.name, 0, &error)))
            .transpose()
    }

    /// Replaces `self` in the store by `next`. Can be repeated if the outcome is unknown.
    pub(crate) fn replace(&self, store: &Store, next: &Self) -> Result<(), StoreError> {
        let stored = Self::read(store)?;
        if stored.as_ref() == Some(next) {
            return Ok(());
        }
        let mut changes = ChangeSet::new();
        match stored {
            None => changes.insert::<LedgerSnapshots>(&LedgerSnapshotKey::ONLY, &next.row()),
            Some(stored) if stored == *self => {
                changes.update::<LedgerSnapshots>(&LedgerSnapshotKey::ONLY, &stored.row(), &next.row());
            }
            Some(_) => return Err(StoreError::Backend("another process takes snapshots".to_owned())),
        }
        match store.commit(&changes)? {
            CommitOutcome::Committed => Ok(()),
            CommitOutcome::Conflict(_) => {
                Err(StoreError::Backend("another process takes snapshots".to_owned()))
            }
        }
    }

    pub(crate) fn of(row: &LedgerSnapshotRow) -> Result<Self, CodecError> {
        let mut runs = Vec::new();
        let mut input = Input::new(&row.runs);
        while !input.is_at_end() {
            let (number, level, entries, sections) =
                (input.u64()?, input.byte()?, input.u64()?, input.u32()?);
            runs.push(RunHead { number, level, entries, sections });
        }
        let mut old_runs = Vec::new();
        let mut input = Input::new(&row.old_runs);
        while !input.is_at_end() {
            old_runs.push(input.u64()?);
        }
        Ok(Self {
            hash_key: row.hash_key,
            summary: Summary {
                counts: Counts {
                    accounts: row.accounts,
                    transfers: row.transfers,
                    burnt: row.burnt,
                    pendings: row.pendings,
                    records: row.records,
                },
                digest: Digest::from_u128(row.digest),
                clock: row.clock,
                last_movement: row.last_movement,
            },
            target: Some(row.target).filter(|target| *target > 0),
            log_rows: row.log_rows,
            mark_rows: row.mark_rows,
            pendings: PendingRows {
                old: row.pending_rows_old,
                from: row.pending_rows_from,
                to: row.pending_rows_to,
                entries: row.pending_entries,
            },
            next_run: row.next_run,
            runs,
            old_runs,
        })
    }

    fn row(&self) -> LedgerSnapshotRow {
        let mut runs = Vec::new();
        for run in &self.runs {
            put_u64(run.number, &mut runs);
            runs.push(run.level);
            put_u64(run.entries, &mut runs);
            put_u64(run.sections.into(), &mut runs);
        }
        let mut old_runs = Vec::new();
        for run in &self.old_runs {
            put_u64(*run, &mut old_runs);
        }
        let Summary { counts, digest, clock, last_movement } = self.summary;
        LedgerSnapshotRow {
            hash_key: self.hash_key,
            records: counts.records,
            target: self.target.unwrap_or(0),
            log_rows: self.log_rows,
            accounts: counts.accounts,
            transfers: counts.transfers,
            burnt: counts.burnt,
            pendings: counts.pendings,
            digest: digest.to_u128(),
            clock,
            last_movement,
            mark_rows: self.mark_rows,
            pending_rows_from: self.pendings.from,
            pending_rows_to: self.pendings.to,
            pending_entries: self.pendings.entries,
            pending_rows_old: self.pendings.old,
            next_run: self.next_run,
            runs,
            old_runs,
        }
    }
}
