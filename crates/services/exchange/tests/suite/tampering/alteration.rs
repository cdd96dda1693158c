//! Changes of a row, as a dishonest operator makes them.

use std::fmt;

use batzen_store::{ColumnDef, ColumnKind, RawRecord, TableDef, Value, decode_values, encode_values};

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// The row is gone.
    Removed,
    /// The row is there again, under a key with another value in this column.
    Added { column: &'static ColumnDef, value: Value, key: Vec<u8> },
    /// This column has another value.
    Column { column: &'static ColumnDef, value: Value, row: Vec<u8> },
}

/// As in `rules.txt`.
impl fmt::Display for Alteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("removed"),
            Self::Added { column, .. } => write!(f, "+{}", column.name),
            Self::Column { column, .. } => f.write_str(column.name),
        }
    }
}

/// Numbers of which one is unused; the first fit every kind of number.
const UNUSED: [u64; 3] = [200, 255, 60_000];

/// All changes of a row. `is_taken`: whether there is a row under a key.
pub(crate) fn alterations(
    table: &'static TableDef,
    record: &RawRecord,
    is_taken: &dyn Fn(&[u8]) -> bool,
) -> Vec<Alteration> {
    let mut all = vec![Alteration::Removed];
    let values = decode_values(table.key_columns, &record.key).unwrap();
    for (index, column) in table.key_columns.iter().enumerate() {
        let under = |value: &Value| {
            let mut values = values.clone();
            values[index] = value.clone();
            encode_values(table.key_columns, &values).expect("a value of the same kind")
        };
        let mut value = altered(column, &values[index]);
        let mut key = under(&value);
        for number in UNUSED {
            if is_taken(&key) {
                value = Value::U64(number);
                key = under(&value);
            }
        }
        all.push(Alteration::Added { column, value, key });
    }
    let values = decode_values(table.row_columns, &record.row).unwrap();
    for (index, column) in table.row_columns.iter().enumerate() {
        let value = altered(column, &values[index]);
        let mut values = values.clone();
        values[index] = value.clone();
        let row = encode_values(table.row_columns, &values).expect("a value of the same kind");
        all.push(Alteration::Column { column, value, row });
    }
    all
}

/// Another value of the same kind.
pub(crate) fn altered(column: &ColumnDef, value: &Value) -> Value {
    match value {
        Value::Null => match column.column.kind {
            ColumnKind::Fixed(n) => Value::Bytes(vec![7; n]),
            ColumnKind::Bytes => Value::Bytes(vec![7]),
            ColumnKind::Text => Value::Text("changed".to_owned()),
            ColumnKind::Timestamp => Value::Timestamp(1_700_000_000_000_000),
            ColumnKind::Bool => Value::Bool(true),
            ColumnKind::U128 => Value::U128(1),
            ColumnKind::Amount => Value::Amount { units: 1, fraction: 0 },
            ColumnKind::I64 => Value::I64(1),
            _ => Value::U64(1),
        },
        Value::U64(n) => Value::U64(if *n == 0 { 1 } else { n - 1 }),
        Value::I64(n) => Value::I64(n - 1),
        Value::U128(n) => Value::U128(n.checked_sub(1).unwrap_or(1)),
        Value::Bool(flag) => Value::Bool(!flag),
        Value::Bytes(bytes) => {
            let mut bytes = bytes.clone();
            // The last byte but seven: within the payload of every encoding, and not a length. Columns within a
            // column escape zeros, so a byte that is part of an escape, or would become one, is passed over.
            let at = bytes.len().saturating_sub(8);
            let payload = bytes.iter().take(at + 1).rposition(|byte| !matches!(byte, 0 | 1 | 0xff));
            match bytes.get_mut(payload.unwrap_or(at)) {
                Some(byte) => *byte ^= 1,
                None => bytes.push(1),
            }
            Value::Bytes(bytes)
        }
        Value::Text(text) => Value::Text(format!("{text}x")),
        Value::Amount { units, fraction } if *units == 0 && *fraction == 0 => {
            Value::Amount { units: 0, fraction: 1_000_000 }
        }
        Value::Amount { units, fraction } if *units == 0 => {
            Value::Amount { units: 0, fraction: fraction - 1 }
        }
        Value::Amount { units, fraction } => Value::Amount { units: units - 1, fraction: *fraction },
        Value::Timestamp(time) => Value::Timestamp(time.checked_sub(1_000_000).unwrap_or(1_000_000)),
    }
}
