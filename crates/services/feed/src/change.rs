//! A change as bytes, on the wire and in the hash chain. All numbers are big-endian:
//!
//! ```text
//! table 2, layout 1, whether there is a row 1, serial 8, length of the key 4, length of the row 4, key, row
//! ```

use batzen_store::{FeedChange, TableDef};

const HEADER_BYTES: usize = 2 + 1 + 1 + 8 + 4 + 4;

/// Why bytes are not changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// They end early, or have an unknown form.
    #[error("malformed changes")]
    Malformed,
    /// This side does not have the table.
    #[error("a change of table {0}, which this program does not know: install the newer version")]
    UnknownTable(u16),
    /// This side does not have the layout.
    #[error("a row of {0} in a layout that this program does not know: install the newer version")]
    UnknownLayout(&'static str),
}

/// The most bytes that a change takes.
#[must_use]
pub(crate) fn bytes_of(change: &FeedChange) -> usize {
    HEADER_BYTES + change.key.len() + change.row.as_ref().map_or(0, Vec::len)
}

/// Appends a change.
pub(crate) fn put(change: &FeedChange, out: &mut Vec<u8>) {
    let length = |len: usize| u32::try_from(len).expect("rows have a limit").to_be_bytes();
    let row = change.row.as_deref();
    out.extend_from_slice(&change.table.id.to_be_bytes());
    out.push(change.layout);
    out.push(row.is_some().into());
    out.extend_from_slice(&change.serial.to_be_bytes());
    out.extend_from_slice(&length(change.key.len()));
    out.extend_from_slice(&length(row.map_or(0, <[u8]>::len)));
    out.extend_from_slice(&change.key);
    out.extend_from_slice(row.unwrap_or_default());
}

fn array<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], ChangeError> {
    let (taken, rest) = input.split_first_chunk().ok_or(ChangeError::Malformed)?;
    *input = rest;
    Ok(*taken)
}

fn take(input: &mut &[u8], bytes: u32) -> Result<Vec<u8>, ChangeError> {
    let bytes = usize::try_from(bytes).map_err(|_| ChangeError::Malformed)?;
    let (taken, rest) = input.split_at_checked(bytes).ok_or(ChangeError::Malformed)?;
    *input = rest;
    Ok(taken.to_vec())
}

/// Takes all changes of these tables.
///
/// # Errors
/// If the bytes are anything else.
pub(crate) fn take_all(
    mut input: &[u8],
    tables: &[&'static TableDef],
) -> Result<Vec<FeedChange>, ChangeError> {
    let mut changes = Vec::new();
    while !input.is_empty() {
        let id = u16::from_be_bytes(array(&mut input)?);
        let [layout, has_row] = array(&mut input)?;
        let serial = u64::from_be_bytes(array(&mut input)?);
        let (key_bytes, row_bytes) =
            (u32::from_be_bytes(array(&mut input)?), u32::from_be_bytes(array(&mut input)?));
        let key = take(&mut input, key_bytes)?;
        let row = take(&mut input, row_bytes)?;
        let table = *tables.iter().find(|table| table.id == id).ok_or(ChangeError::UnknownTable(id))?;
        if layout > table.layout() {
            return Err(ChangeError::UnknownLayout(table.name));
        }
        let row = match has_row {
            1 => Some(row),
            0 if row.is_empty() && layout == 0 => None,
            _ => return Err(ChangeError::Malformed),
        };
        changes.push(FeedChange { table, layout, key, row, serial });
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use batzen_store::Table;
    use batzen_tables::exchange::{AUDITED, Coins, Deposits};
    use proptest::prelude::*;

    use super::*;

    fn any_change() -> impl Strategy<Value = FeedChange> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        (any::<bool>(), bytes(), prop::option::of(bytes()), any::<u64>()).prop_map(
            |(is_coin, key, row, serial)| {
                let table = if is_coin { Coins::DEF } else { Deposits::DEF };
                FeedChange { table, layout: 0, key, row, serial }
            },
        )
    }

    proptest! {
        #[test]
        fn changes_are_read_back(changes in prop::collection::vec(any_change(), 0..8), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            changes.iter().for_each(|change| put(change, &mut bytes));
            prop_assert_eq!(bytes.len(), changes.iter().map(bytes_of).sum::<usize>());
            prop_assert_eq!(take_all(&bytes, AUDITED), Ok(changes.clone()));
            // What is cut off is missing or noticed.
            let cut = &bytes[..cut.index(bytes.len() + 1)];
            match take_all(cut, AUDITED) {
                Ok(some) => prop_assert_eq!(&changes[..some.len()], &some[..]),
                Err(error) => prop_assert_eq!(error, ChangeError::Malformed),
            }
        }

        #[test]
        fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = take_all(&bytes, AUDITED);
        }
    }

    #[test]
    fn what_is_unknown_is_named() {
        let mut bytes = Vec::new();
        put(
            &FeedChange { table: Coins::DEF, layout: 0, key: vec![1], row: Some(vec![2]), serial: 3 },
            &mut bytes,
        );
        assert_eq!(take_all(&bytes, &[Deposits::DEF]), Err(ChangeError::UnknownTable(Coins::DEF.id)));
        bytes[2] = 60;
        assert_eq!(take_all(&bytes, AUDITED), Err(ChangeError::UnknownLayout("coins")));
        bytes[2] = 0;
        bytes[3] = 2;
        assert_eq!(take_all(&bytes, AUDITED), Err(ChangeError::Malformed));
    }
}
