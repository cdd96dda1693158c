//! The net effect of a change set on each row. Pure functions.

use std::collections::HashMap;

use batzen_store::{Change, ChangeSet, CommitOutcome, RawRow, RowVersion, StoreError, TableDef};

/// The maximum number of rows that one commit inserts: their numbers within it have sixteen bits.
pub(crate) const INSERTS_MAX: usize = 1 << 16;

/// All changes of one row.
#[derive(Debug)]
pub(crate) struct Net<'a> {
    pub table: &'static TableDef,
    pub key: &'a [u8],
    /// The row that must exist before; `None`: no row may exist.
    pub before: Option<&'a [u8]>,
    /// The version that was read, if known.
    pub version: Option<RowVersion>,
    /// The row afterwards.
    pub after: Option<&'a [u8]>,
    /// The place of the change that inserted it, if it is a new row.
    pub inserted: Option<usize>,
}

/// Combines the changes of each row, in the order of tables and keys. `None` if the set contradicts itself,
/// so that it fits no state of the store.
pub(crate) fn net(set: &ChangeSet) -> Option<Vec<Net<'_>>> {
    let changes = set.changes();
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_by_key(|&at| (changes[at].table().id, changes[at].key(), at));
    let mut nets: Vec<Net<'_>> = Vec::with_capacity(order.len());
    for at in order {
        let change = &changes[at];
        let same = |net: &&mut Net<'_>| net.table == change.table() && net.key == change.key();
        let net = match nets.last_mut().filter(same) {
            Some(net) => net,
            None => {
                nets.push(Net {
                    table: change.table(),
                    key: change.key(),
                    before: change.old_row(),
                    version: change.version(),
                    after: change.old_row(),
                    inserted: None,
                });
                nets.last_mut().expect("just pushed")
            }
        };
        if net.after != change.old_row() {
            return None;
        }
        net.inserted = match change {
            Change::Insert { .. } => Some(at),
            Change::Update { .. } => net.inserted,
            Change::Delete { .. } => None,
        };
        net.after = change.new_row();
    }
    Some(nets)
}

/// Finds out why a set does not fit the stored rows; `Ok(None)` if it does fit.
pub(crate) fn judge<'a>(
    set: &'a ChangeSet,
    stored: &HashMap<(u16, &'a [u8]), RawRow>,
) -> Result<Option<CommitOutcome>, StoreError> {
    let mut now: HashMap<(u16, &[u8]), Option<&[u8]>> = HashMap::new();
    let mut conflicts = Vec::new();
    let mut stale = None;
    for change in set.changes() {
        let place = (change.table().id, change.key());
        let row = now.entry(place).or_insert_with(|| stored.get(&place).map(|row| row.row.as_slice()));
        match (change.old_row(), &*row) {
            // Apply the change anyway, because later changes of the set build on it.
            (None, Some(_)) => conflicts.push((change.table(), change.key().to_vec())),
            (Some(old), Some(row)) if *row == old => {}
            (None, None) => {}
            (Some(_), _) => {
                let (table, key) = (change.table().name, change.key().to_vec());
                stale.get_or_insert(StoreError::Stale { table, key });
                continue;
            }
        }
        *row = change.new_row();
    }
    if !conflicts.is_empty() {
        return Ok(Some(CommitOutcome::Conflict(conflicts)));
    }
    stale.map_or(Ok(None), Err)
}
