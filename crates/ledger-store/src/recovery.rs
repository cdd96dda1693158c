//! From the log to the state: opening a ledger, and verifying one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use batzen_ledger::machine::{Counts, Digest, Divergence, Machine};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Record, Store, StoreError, Table};
use batzen_tables::ledger::{ALL, LedgerLog, LedgerLogKey, LedgerLogRow};

use crate::log::{Log, LogReader};

/// Why a ledger does not open or does not pass verification.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The store cannot be read, or lacks a part of the log.
    #[error("the log cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The log contradicts itself or the rules.
    #[error("the log is inconsistent: {0}")]
    Divergence(#[from] Divergence),
    /// The digest differs from the stored one.
    #[error("the digest of the log up to record {0} differs from the stored one")]
    Digest(u64),
    /// The journal under the log is damaged.
    #[error("the journal is damaged: {}", .0.join("; "))]
    Journal(Vec<String>),
}

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
    store: &Store,
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
    store.freeze(&[LedgerLog::DEF])?.scan(LedgerLog::DEF, &mut |record| {
        failed = see(&record.key, &record.row);
        if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failed?;
    match early.first_key_value() {
        None => Ok(()),
        Some((first, _)) => {
            let what = format!("the log lacks record {next}: the next is {first}");
            Err(StoreError::Backend(what).into())
        }
    }
}

/// Compares the digest at the end of each commit, whose rows all have the same digest.
#[derive(Default)]
struct Digests {
    stored: Option<u128>,
}

impl Digests {
    fn before(&mut self, machine: &Machine, digest: u128) -> Result<(), RecoveryError> {
        if self.stored.is_some_and(|stored| stored != digest) {
            self.end(machine)?;
        }
        self.stored = Some(digest);
        Ok(())
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

fn new_machine() -> Machine {
    let mut key = [0; 16];
    getrandom::fill(&mut key).expect("the operating system has random numbers");
    Machine::new(&key)
}

/// About the size of a record on disk. An estimate of their number lets the index be allocated at once.
const RECORD_BYTES_GUESS: u64 = 64;

/// How many decoded rows may wait for the machine.
const ROWS_AHEAD: usize = 64;

/// Opens a log: one thread reads and decodes, another restores the machine.
pub(crate) fn open(store: Store) -> Result<(Machine, Log), RecoveryError> {
    let mut machine = new_machine();
    machine.reserve(store.stats().live_bytes / RECORD_BYTES_GUESS);
    let log = Log::new(store.clone());
    let mut digests = Digests::default();
    std::thread::scope(|scope| {
        let (send, rows) = std::sync::mpsc::sync_channel(ROWS_AHEAD);
        let log = &log;
        let reader = scope.spawn(move || {
            each_row(&store, |first, row| {
                let records = log.note(first, row)?;
                let sent = send.send((row.clock, row.digest, records));
                // This error is never shown: the receiver stops only with an error of its own.
                sent.map_err(|_| StoreError::Backend("the log is not opened any further".to_owned()))?;
                Ok(log.records())
            })
        });
        for (clock, digest, records) in rows {
            digests.before(&machine, digest)?;
            machine.restore_all(&records)?;
            machine.advance_clock(clock);
        }
        reader.join().expect("reading the log breaks no assertion")
    })?;
    digests.end(&machine)?;
    Ok((machine, log))
}

/// Reads the whole log, decides every record again with all rules on a fresh machine, and compares records,
/// balances, digests and all invariants. The ledger may be running; the log is verified as it is durable at
/// the start.
///
/// # Errors
/// The first problem found.
pub fn verify(store: &Store) -> Result<VerifyReport, RecoveryError> {
    let mut machine = new_machine();
    let log = Log::new(store.clone());
    let mut digests = Digests::default();
    each_row(store, |first, row| {
        digests.before(&machine, row.digest)?;
        let records = log.note(first, row)?;
        let history = LogReader::new(&log);
        for record in &records {
            machine.replay(&history, record)??;
        }
        Ok(log.records())
    })?;
    digests.end(&machine)?;
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
    let store =
        Store::new(EmbeddedStore::open(directory, ALL, Options { background: false, ..Options::default() })?);
    let report = verify(&store)?;
    store.close()?;
    Ok(report)
}

/// Copies the current log into a new store, while the ledger runs. Rows are only ever added, so the current
/// ones are a consistent snapshot.
pub(crate) fn copy(log: &Log, target: &Store) -> Result<u64, StoreError> {
    const ROWS_PER_COMMIT: usize = 1024;
    let rows = log.firsts();
    for keys in rows.chunks(ROWS_PER_COMMIT) {
        let keys: Vec<LedgerLogKey> = keys.iter().map(|first| LedgerLogKey { first: *first }).collect();
        let mut changes = batzen_store::ChangeSet::with_capacity(keys.len());
        for (key, row) in keys.iter().zip(log.store().get_many::<LedgerLog>(&keys)?) {
            let lacks = || StoreError::Backend(format!("the log lacks the row of record {}", key.first));
            changes.insert::<LedgerLog>(key, &row.ok_or_else(lacks)?.row);
        }
        if target.commit(&changes)? != batzen_store::CommitOutcome::Committed {
            return Err(StoreError::Backend(
                "the directory for the backup already holds a ledger".to_owned(),
            ));
        }
    }
    Ok(rows.len() as u64)
}
