//! From the log to the state: opening a ledger, and verifying one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use batzen_ledger::machine::{Counts, Digest, LogRecord, Machine};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{
    Change, ChangeSet, CommitOutcome, FrozenRows, RawRecord, Record, Store, StoreError, Table,
};
use batzen_tables::ledger::{ALL, DERIVED, LedgerLog, LedgerLogKey, LedgerLogRow};

use crate::store::log::{Log, LogReader, gap};
use crate::store::snapshot::{
    self, Check, Head, Ids, Loaded, ROW_WEIGHT_BYTES, SnapshotOptions, Snapshots, Unresolved,
};
use crate::store::walk::{RecoveryError, walk};

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Numbers of accounts, transfers and records.
    pub counts: Counts,
    /// The digest of its log.
    pub digest: Digest,
    /// Rows of the log.
    pub blocks: u64,
}

/// Visits all rows of the log in order.
fn each_row(
    frozen: &dyn FrozenRows,
    mut visit: impl FnMut(u64, &LedgerLogRow) -> Result<u64, RecoveryError>,
) -> Result<(), RecoveryError> {
    // Rows mostly come in the order in which they were written; a row that comes early waits.
    let mut early: BTreeMap<u64, LedgerLogRow> = BTreeMap::new();
    let mut next = 0;
    let mut failed = Ok(());
    let decode_error = |source| StoreError::Decode { table: LedgerLog::DEF.name, source };
    let mut see = |key: &[u8], row: &[u8]| -> Result<(), RecoveryError> {
        let first = LedgerLogKey::decode(key).map_err(decode_error)?.first;
        early.insert(first, LedgerLogRow::decode(row).map_err(decode_error)?);
        while let Some(row) = early.remove(&next) {
            next = visit(next, &row)?;
        }
        Ok(())
    };
    frozen.scan(LedgerLog::DEF, &mut |record| {
        failed = see(&record.key, &record.row);
        if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failed?;
    match early.first_key_value() {
        None => Ok(()),
        Some((first, _)) => Err(gap(next, *first).into()),
    }
}

/// Compares the digest at the end of each commit, whose rows all have the same digest.
#[derive(Default)]
struct Digests {
    stored: Option<u128>,
}

impl Digests {
    /// Notes the digest of the next row. Returns whether it begins a commit.
    fn before(&mut self, machine: &Machine, digest: u128) -> Result<bool, RecoveryError> {
        let is_next = self.stored.is_none_or(|stored| stored != digest);
        if is_next {
            self.end(machine)?;
        }
        self.stored = Some(digest);
        Ok(is_next)
    }

    fn end(&self, machine: &Machine) -> Result<(), RecoveryError> {
        match self.stored {
            Some(digest) if digest != machine.digest().to_u128() => {
                Err(RecoveryError::Digest(machine.counts().records))
            }
            _ => Ok(()),
        }
    }
}

fn new_key() -> [u8; 16] {
    let mut key = [0; 16];
    getrandom::fill(&mut key).expect("the operating system has random numbers");
    key
}

/// Number of decoded rows that may wait for the machine.
const ROWS_AHEAD: usize = 64;

/// An open ledger.
pub(crate) struct Opened {
    pub machine: Machine,
    pub log: Arc<Log>,
    pub snapshots: Snapshots,
    /// The records whose ids the machine has frozen.
    pub frozen: Option<u64>,
}

/// Opens a ledger: from its snapshot and the log after it, or from its whole log.
pub(crate) fn open(store: &Store, options: SnapshotOptions) -> Result<Opened, RecoveryError> {
    match snapshot::load(store, options) {
        Ok(Some(loaded)) => {
            let Loaded { machine, log, snapshots, frozen } = loaded;
            let opened = Opened { machine, log, snapshots, frozen };
            let read = |log: &Log, send: &mut Sink<'_>| {
                walk(store, log, &mut |row, records| send(row, records).map(|()| ControlFlow::Continue(())))
            };
            return restore(opened, read, options);
        }
        Ok(None) => {}
        Err(RecoveryError::Snapshot(what)) => rebuild(store, &what)?,
        Err(RecoveryError::Store(StoreError::Decode { table, source })) if table != LedgerLog::DEF.name => {
            rebuild(store, &format!("{table}: {source}"))?;
        }
        Err(error) => return Err(error),
    }
    let key = options.hash_key.unwrap_or_else(new_key);
    let log = Arc::new(Log::new(store.clone(), &key));
    let (head, ids) = (Head::new(key), Ids::new(&key));
    let snapshots = Snapshots::new(Arc::clone(&log), options, head, ids, Unresolved::new(), None);
    let opened = Opened { machine: Machine::new(&key), log, snapshots, frozen: None };
    let frozen = store.freeze(&[LedgerLog::DEF])?;
    let read = move |log: &Log, send: &mut Sink<'_>| {
        each_row(&*frozen, |first, row| {
            let records = log.note(first, row)?;
            send(row, records)?;
            Ok(log.records())
        })
    };
    restore(opened, read, options)
}

/// Deletes a damaged snapshot: the log has everything.
fn rebuild(store: &Store, what: &str) -> Result<(), RecoveryError> {
    tracing::error!(what, "the ledger's snapshot is damaged; it is rebuilt from the log");
    Ok(snapshot::clear(store)?)
}

/// Takes a row and its records.
type Sink<'a> = dyn FnMut(&LedgerLogRow, Vec<LogRecord>) -> Result<(), RecoveryError> + 'a;

/// Reads the rest of the log: one thread reads and decodes, another restores the machine.
fn restore(
    mut opened: Opened,
    read: impl FnOnce(&Log, &mut Sink<'_>) -> Result<(), RecoveryError> + Send,
    options: SnapshotOptions,
) -> Result<Opened, RecoveryError> {
    let mut digests = Digests::default();
    let mut weight = 0;
    std::thread::scope(|scope| {
        let (send, rows) = std::sync::mpsc::sync_channel(ROWS_AHEAD);
        let log = Arc::clone(&opened.log);
        let reader = scope.spawn(move || {
            read(&log, &mut |row, records| {
                let sent = send.send((row.clock, row.digest, row.records.len() as u64, records));
                // This error is never shown: the receiver stops only with an error of its own.
                Ok(sent.map_err(|_| StoreError::Backend("the log is not opened any further".to_owned()))?)
            })
        });
        for (clock, digest, bytes, records) in rows {
            if digests.before(&opened.machine, digest)? && weight >= options.log_bytes(0) {
                // Only in a ledger whose snapshot is old or missing. It is taken here and now, so that not the
                // ids of the whole log are in memory.
                opened.take_snapshot();
                weight = 0;
            }
            weight += bytes + ROW_WEIGHT_BYTES;
            opened.machine.restore_all(&records)?;
            opened.machine.advance_clock(clock);
        }
        reader.join().expect("reading the log breaks no assertion")
    })?;
    digests.end(&opened.machine)?;
    opened.log.set_weight(weight);
    Ok(opened)
}

impl Opened {
    /// Takes a snapshot of the state so far. If the store fails, it is taken later.
    fn take_snapshot(&mut self) {
        if self.frozen.is_none() {
            let records = self.machine.counts().records;
            self.machine.freeze_ids();
            self.log.request_snapshot(records);
            self.frozen = Some(records);
        }
        loop {
            match self.snapshots.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "the ledger's snapshot waits");
                    return;
                }
            }
        }
        if self.frozen.is_some_and(|frozen| frozen <= self.log.snapshot().records) {
            self.machine.forget_ids();
            self.frozen = None;
        }
    }
}

/// Reads the whole log, decides every record again with all rules on a fresh machine, and compares records,
/// balances, digests and all invariants; and compares the snapshot with the state as of its record. The ledger
/// may be running; it is verified as it is durable at the start. The ids of all transfers are in memory
/// meanwhile.
///
/// # Errors
/// The first problem found.
pub fn verify(store: &Store) -> Result<VerifyReport, RecoveryError> {
    // The snapshot first: the log has everything that it has. On their own, because both are read at once.
    let snapshot = store.freeze(DERIVED)?;
    let frozen = store.freeze(&[LedgerLog::DEF])?;
    let mut check = Check::of(&*snapshot)?;
    let key = check.hash_key().unwrap_or_else(new_key);
    let mut machine = Machine::new(&key);
    let log = Log::new(store.clone(), &key);
    let mut digests = Digests::default();
    each_row(&*frozen, |first, row| {
        digests.before(&machine, row.digest)?;
        check.at(&machine, &log)?;
        let records = log.note(first, row)?;
        let history = LogReader::new(&log);
        for record in &records {
            machine.replay(&history, record)??;
            check.saw(&machine, record);
        }
        Ok(log.records())
    })?;
    digests.end(&machine)?;
    check.at(&machine, &log)?;
    check.end()?;
    machine.check()?;
    let counts = machine.counts();
    assert_eq!(counts.records, log.records(), "every record was replayed");
    Ok(VerifyReport { counts, digest: machine.digest(), blocks: log.blocks() })
}

/// [`verify`] on the files of a ledger that is not running. Checks every checksum of the journal too.
///
/// # Errors
/// The first problem found.
pub fn verify_directory(directory: &Path) -> Result<VerifyReport, RecoveryError> {
    let report = EmbeddedStore::verify(directory)?;
    if !report.problems.is_empty() {
        return Err(RecoveryError::Journal(report.problems));
    }
    let store = Store::new(EmbeddedStore::open_to_read(directory, ALL, Options::default())?);
    let report = verify(&store)?;
    store.close()?;
    Ok(report)
}

/// Copies the current log into a new store, while the ledger runs. The copy has no snapshot until it is opened.
pub(crate) fn copy(log: &Log, target: &Store) -> Result<(), StoreError> {
    const ROWS_PER_COMMIT: usize = 1024;
    let mut changes = ChangeSet::with_capacity(ROWS_PER_COMMIT);
    let commit = |changes: &mut ChangeSet| match target.commit(&std::mem::take(changes))? {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(_) => {
            Err(StoreError::Backend("the directory for the backup already holds a ledger".to_owned()))
        }
    };
    let mut failed = Ok(());
    log.store().freeze(&[LedgerLog::DEF])?.scan(LedgerLog::DEF, &mut |RawRecord { key, row, .. }| {
        changes.push(Change::Insert { table: LedgerLog::DEF, key, row });
        if changes.len() >= ROWS_PER_COMMIT {
            failed = commit(&mut changes);
        }
        if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failed?;
    commit(&mut changes)
}
