//! Writing rows such that every write can be repeated: after an error whose outcome is unknown, and by the next
//! process.

use std::collections::VecDeque;

use batzen_store::{Change, ChangeSet, CommitOutcome, Record, Store, StoreError, Table, TableDef};

/// A row to write.
#[derive(Clone, Debug)]
pub(super) struct Put {
    table: &'static TableDef,
    key: Vec<u8>,
    /// None: the row is deleted.
    row: Option<Vec<u8>>,
}

impl Put {
    pub(super) fn row<T: Table>(key: &T::Key, row: &T::Row) -> Self {
        Self { table: T::DEF, key: key.to_bytes(), row: Some(row.to_bytes()) }
    }

    pub(super) fn delete<T: Table>(key: &T::Key) -> Self {
        Self { table: T::DEF, key: key.to_bytes(), row: None }
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.row.as_ref().map_or(0, Vec::len)
    }
}

/// Writes the first rows of a queue in one commit of about so many bytes, and removes them from it.
pub(super) fn write_some(
    store: &Store,
    queue: &mut VecDeque<Put>,
    commit_bytes: usize,
) -> Result<(), StoreError> {
    let mut bytes = 0;
    let within = |put: &&Put| {
        bytes += put.bytes();
        bytes <= commit_bytes
    };
    let count = queue.iter().take_while(within).count().max(1).min(queue.len());
    write(store, queue.range(..count))?;
    queue.drain(..count);
    Ok(())
}

/// Writes rows in one commit. Those that are there already are not written again.
fn write<'a>(store: &Store, puts: impl Iterator<Item = &'a Put> + Clone) -> Result<(), StoreError> {
    let mut changes = ChangeSet::new();
    let all: Vec<&Put> = puts.collect();
    for puts in all.chunk_by(|a, b| a.table.id == b.table.id) {
        let keys: Vec<Vec<u8>> = puts.iter().map(|put| put.key.clone()).collect();
        let stored = store.backend().get_many(puts[0].table, &keys)?;
        for (put, stored) in puts.iter().zip(stored) {
            let Put { table, key, row } = (*put).clone();
            match (stored, row) {
                (None, None) => {}
                (None, Some(row)) => changes.push(Change::Insert { table, key, row }),
                (Some(old), Some(row)) if old.row == row => {}
                (Some(old), Some(row)) => {
                    let version = Some(old.version);
                    changes.push(Change::Update { table, key, old_row: old.row, version, row });
                }
                (Some(old), None) => {
                    changes.push(Change::Delete { table, key, old_row: old.row, version: Some(old.version) });
                }
            }
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    match store.commit(&changes)? {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(_) => Err(StoreError::Backend("another process takes snapshots".to_owned())),
    }
}
