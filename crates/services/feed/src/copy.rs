//! The digest of all rows, with which both sides compare what they have.

use std::ops::ControlFlow;

use batzen_crypto::{HashCode, SetHash};
use batzen_store::{FrozenRows, StoreError, TableDef};

/// All rows of some tables, as a number and a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowsDigest {
    /// Their number.
    pub(crate) rows: u64,
    /// The hash of the set of table, key and row, in the current layout. Serials differ between stores.
    pub digest: HashCode,
}

/// Reads all rows of these tables.
pub(crate) fn digest(
    frozen: &dyn FrozenRows,
    tables: &[&'static TableDef],
) -> Result<RowsDigest, StoreError> {
    let (mut rows, mut hash) = (0, SetHash::default());
    for table in tables {
        frozen.scan(table, &mut |record| {
            hash.add(&[&table.id.to_be_bytes(), &record.key, &record.row]);
            rows += 1;
            ControlFlow::Continue(())
        })?;
    }
    Ok(RowsDigest { rows, digest: hash.digest() })
}

/// The numbers of tables.
pub(crate) fn ids(tables: &[&'static TableDef]) -> Vec<u16> {
    tables.iter().map(|table| table.id).collect()
}

pub(crate) fn layouts(tables: &[&'static TableDef]) -> Vec<u8> {
    tables.iter().map(|table| table.layout()).collect()
}
