//! Records without their Rust types, for native schemas and inspection tools.

use crate::{Column, ColumnDef, ColumnKind, DecodeError, put_bytes, take, take_array, take_bytes};

/// A column's value, typed only by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Absent.
    Null,
    /// An unsigned number of eight to 64 bits.
    U64(u64),
    /// A signed number.
    I64(i64),
    /// A large unsigned number.
    U128(u128),
    /// True or false.
    Bool(bool),
    /// Bytes of fixed or any length.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// An amount.
    Amount {
        /// Whole units.
        units: u64,
        /// Hundred-millionths, below 10^8.
        fraction: u32,
    },
    /// Microseconds since 1970; `u64::MAX` is "never".
    Timestamp(u64),
}

/// Splits a record's bytes into values.
///
/// # Errors
/// If the bytes are not a valid record.
pub fn decode_values(columns: &[ColumnDef], mut bytes: &[u8]) -> Result<Vec<Value>, DecodeError> {
    let input = &mut bytes;
    let mut values = Vec::with_capacity(columns.len());
    for def in columns {
        if def.column.nullable && !bool::decode(input)? {
            values.push(Value::Null);
            continue;
        }
        values.push(match def.column.kind {
            ColumnKind::U8 => Value::U64(u8::decode(input)?.into()),
            ColumnKind::U16 => Value::U64(u16::decode(input)?.into()),
            ColumnKind::U32 => Value::U64(u32::decode(input)?.into()),
            ColumnKind::U64 => Value::U64(u64::decode(input)?),
            ColumnKind::I64 => Value::I64(i64::decode(input)?),
            ColumnKind::U128 => Value::U128(u128::decode(input)?),
            ColumnKind::Bool => Value::Bool(bool::decode(input)?),
            ColumnKind::Fixed(n) => Value::Bytes(take(input, n, def.name)?.to_vec()),
            ColumnKind::Bytes => Value::Bytes(take_bytes(input, def.name)?),
            ColumnKind::Text => Value::Text(String::decode(input)?),
            ColumnKind::Amount => {
                let units = u64::decode(input)?;
                let fraction = u32::from_be_bytes(take_array(input, def.name)?);
                if fraction >= 100_000_000 {
                    return Err(DecodeError::invalid(def.name, format!("fraction {fraction}")));
                }
                Value::Amount { units, fraction }
            }
            ColumnKind::Timestamp => Value::Timestamp(u64::decode(input)?),
        });
    }
    if input.is_empty() { Ok(values) } else { Err(DecodeError::Trailing { left: input.len() }) }
}

/// The inverse of [`decode_values`].
///
/// # Errors
/// When a value does not fit its column, or their numbers differ.
pub fn encode_values(columns: &[ColumnDef], values: &[Value]) -> Result<Vec<u8>, DecodeError> {
    if columns.len() != values.len() {
        return Err(DecodeError::invalid(
            "record",
            format!("{} values for {} columns", values.len(), columns.len()),
        ));
    }
    let mut out = Vec::new();
    for (def, value) in columns.iter().zip(values) {
        if def.column.nullable {
            (*value != Value::Null).encode(&mut out);
            if *value == Value::Null {
                continue;
            }
        }
        encode_value(def, value, &mut out)?;
    }
    Ok(out)
}

fn encode_value(def: &ColumnDef, value: &Value, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let range = |_| DecodeError::invalid(def.name, "out of range");
    match (def.column.kind, value) {
        (ColumnKind::U8, Value::U64(v)) => u8::try_from(*v).map_err(range)?.encode(out),
        (ColumnKind::U16, Value::U64(v)) => u16::try_from(*v).map_err(range)?.encode(out),
        (ColumnKind::U32, Value::U64(v)) => u32::try_from(*v).map_err(range)?.encode(out),
        (ColumnKind::U64, Value::U64(v)) | (ColumnKind::Timestamp, Value::Timestamp(v)) => v.encode(out),
        (ColumnKind::I64, Value::I64(v)) => v.encode(out),
        (ColumnKind::U128, Value::U128(v)) => v.encode(out),
        (ColumnKind::Bool, Value::Bool(v)) => v.encode(out),
        (ColumnKind::Fixed(n), Value::Bytes(v)) if v.len() == n => out.extend_from_slice(v),
        (ColumnKind::Bytes, Value::Bytes(v)) => put_bytes(v, out),
        (ColumnKind::Text, Value::Text(v)) => put_bytes(v.as_bytes(), out),
        (ColumnKind::Amount, Value::Amount { units, fraction }) if *fraction < 100_000_000 => {
            units.encode(out);
            fraction.encode(out);
        }
        (kind, value) => {
            return Err(DecodeError::invalid(def.name, format!("{value:?} in a {kind:?} column")));
        }
    }
    Ok(())
}
