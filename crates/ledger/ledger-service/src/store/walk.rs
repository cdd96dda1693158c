//! Reads the log from where its index ends.

use std::ops::ControlFlow;

use batzen_ledger::machine::{Divergence, LogRecord};
use batzen_store::{Store, StoreError};
use batzen_tables::ledger::{LedgerLog, LedgerLogKey, LedgerLogRow};

use crate::store::codec::BLOCK_RECORDS_MAX;
use crate::store::log::{Log, gap};

/// Why a ledger does not open or does not pass verification.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The store cannot be read, or lacks a part of the log.
    #[error("the log cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The log contradicts itself or the rules.
    #[error("the log is inconsistent: {0}")]
    Divergence(#[from] Divergence),
    /// The snapshot contradicts itself or the log.
    #[error("the snapshot is wrong: {0}")]
    Snapshot(String),
    /// The digest differs from the stored one.
    #[error("the digest of the log up to record {0} differs from the stored one")]
    Digest(u64),
    /// The journal under the log is damaged.
    #[error("the journal is damaged: {}", .0.join("; "))]
    Journal(Vec<String>),
}

/// Rows of the log that are asked for at once.
const ROWS_ASKED: u64 = 64;

/// After the last row so many numbers of records are tried, to notice that rows in the middle are missing.
const GAP_RECORDS_MAX: u64 = 8192;

/// Takes a row with its records. Returns whether to go on.
type Visit<'a> = dyn FnMut(&LedgerLogRow, Vec<LogRecord>) -> Result<ControlFlow<()>, RecoveryError> + 'a;

/// Reads the rows that follow those in the log's index, adds them, and visits them with their records, until
/// told to break.
pub(crate) fn walk(store: &Store, log: &Log, visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
    // The key of a row follows from the length of the one before. Most rows are as long as that, so several
    // keys can be guessed.
    let mut length = BLOCK_RECORDS_MAX as u64;
    loop {
        let start = log.records();
        let keys: Vec<LedgerLogKey> =
            (0..ROWS_ASKED).map(|n| LedgerLogKey { first: start + n * length }).collect();
        for (n, (key, row)) in keys.iter().zip(store.get_many::<LedgerLog>(&keys)?).enumerate() {
            if key.first != log.records() {
                break;
            }
            let Some(row) = row else {
                if n == 0 {
                    return check_end(store, start);
                }
                break;
            };
            let records = log.note(key.first, &row.row)?;
            length = (records.len() as u64).max(1);
            if visit(&row.row, records)?.is_break() {
                return Ok(());
            }
        }
    }
}

/// Checks that no row follows the last one.
fn check_end(store: &Store, end: u64) -> Result<(), RecoveryError> {
    let keys: Vec<LedgerLogKey> = (1..GAP_RECORDS_MAX).map(|n| LedgerLogKey { first: end + n }).collect();
    for keys in keys.chunks(1024) {
        let rows = store.get_many::<LedgerLog>(keys)?;
        if let Some((key, _)) = keys.iter().zip(rows).find(|(_, row)| row.is_some()) {
            return Err(gap(end, key.first).into());
        }
    }
    Ok(())
}
