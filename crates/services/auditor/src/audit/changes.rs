//! Changes of rows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use batzen_store::TableDef;

/// A row at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its bytes.
    pub row: Vec<u8>,
    /// Its number in commit order.
    pub serial: u64,
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// Its table.
    pub table: &'static TableDef,
    /// Its key.
    pub key: Vec<u8>,
    /// The row before, if it was there.
    pub old: Option<Version>,
    /// The row after, if it is there.
    pub new: Option<Version>,
}

/// Names a row.
pub(crate) type Name = (u16, Vec<u8>);

/// Changed rows by table and key, as they are after the changes; `None`: removed.
pub(crate) type Fresh<'a> = HashMap<(u16, &'a [u8]), Option<&'a Version>>;

/// One change for each row that several changes, in their order, are about. Rows that end as they were have none.
#[must_use]
pub(crate) fn net(changes: Vec<RowChange>) -> Vec<RowChange> {
    let mut places: HashMap<Name, usize> = HashMap::with_capacity(changes.len());
    let mut net: Vec<RowChange> = Vec::with_capacity(changes.len());
    for change in changes {
        match places.entry((change.table.id, change.key.clone())) {
            Entry::Occupied(place) => net[*place.get()].new = change.new,
            Entry::Vacant(place) => {
                place.insert(net.len());
                net.push(change);
            }
        }
    }
    let row = |version: &Option<Version>| version.as_ref().map(|version| version.row.clone());
    net.retain(|change| row(&change.old) != row(&change.new));
    net
}
