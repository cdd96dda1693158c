//! Converts between a record's bytes and database columns, using only the columns' kinds. Lossless in both
//! directions for every value.

use std::borrow::Cow;

use batzen_store::{ColumnDef, ColumnKind, DecodeError, put_bytes, take, take_bytes};

use crate::PgError;
use crate::client::{Array, Columns};

/// The escape character for the byte that PostgreSQL's text cannot hold, and for itself.
const MARK: char = '\u{1}';

/// Splits a record's bytes into those of its columns.
pub(crate) fn split<'a>(
    columns: &[ColumnDef],
    mut bytes: &'a [u8],
    out: &mut Vec<&'a [u8]>,
) -> Result<(), DecodeError> {
    out.clear();
    for def in columns {
        let start = bytes;
        let absent = def.column.nullable && take(&mut bytes, 1, def.name)? == [0];
        if !absent {
            match def.column.kind {
                ColumnKind::Bytes | ColumnKind::Text => skip_bytes(&mut bytes, def.name)?,
                kind => {
                    let size = batzen_store::ColumnType::new(kind).fixed_bytes();
                    take(&mut bytes, size.expect("all other kinds have a fixed size"), def.name)?;
                }
            }
        }
        out.push(&start[..start.len() - bytes.len()]);
    }
    if bytes.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: bytes.len() }) }
}

/// Takes escaped bytes from the front without copying them.
fn skip_bytes(bytes: &mut &[u8], column: &'static str) -> Result<(), DecodeError> {
    let mut at = 0;
    loop {
        let Some(zero) = bytes[at..].iter().position(|byte| *byte == 0) else {
            return Err(DecodeError::Short { column, missing: 2 });
        };
        at += zero + 2;
        match bytes.get(at - 1) {
            Some(0) => {
                *bytes = &bytes[at..];
                return Ok(());
            }
            Some(_) => {}
            None => return Err(DecodeError::Short { column, missing: 1 }),
        }
    }
}

/// Number of database columns that a column of a record occupies.
pub(crate) fn width(def: &ColumnDef) -> usize {
    if def.column.kind == ColumnKind::Amount { 2 } else { 1 }
}

/// Adds a column's value to its arrays, of which there are [`width`].
pub(crate) fn push(def: &ColumnDef, mut bytes: &[u8], arrays: &mut [Array]) -> Result<(), DecodeError> {
    if def.column.nullable && take(&mut bytes, 1, def.name)? == [0] {
        arrays.iter_mut().for_each(Array::push_null);
        return Ok(());
    }
    let array = &mut arrays[0];
    match def.column.kind {
        ColumnKind::U8 => array.push(&[0, bytes[0]]),
        ColumnKind::U16 => array.push(&[0, 0, bytes[0], bytes[1]]),
        ColumnKind::U32 => array.push(&[0, 0, 0, 0, bytes[0], bytes[1], bytes[2], bytes[3]]),
        // Two's complement has the same eight bytes.
        ColumnKind::U64 | ColumnKind::Timestamp => array.push(bytes),
        ColumnKind::I64 => array.push_with(|out| {
            out.extend_from_slice(bytes);
            let sign = out.len() - 8;
            out[sign] ^= 0x80;
        }),
        ColumnKind::U128 | ColumnKind::Fixed(_) | ColumnKind::Bool => array.push(bytes),
        ColumnKind::Bytes => array.push(&unescaped(bytes, def.name)?),
        ColumnKind::Text => {
            let text = unescaped(bytes, def.name)?;
            let text = std::str::from_utf8(&text);
            let text = text.map_err(|error| DecodeError::invalid(def.name, error.to_string()))?;
            array.push(stored_text(text).as_bytes());
        }
        ColumnKind::Amount => {
            array.push(&bytes[..8]);
            arrays[1].push(&bytes[8..]);
        }
    }
    Ok(())
}

/// The content of escaped bytes. If there is no zero byte, which is the usual case, they are borrowed.
fn unescaped<'a>(bytes: &'a [u8], column: &'static str) -> Result<Cow<'a, [u8]>, DecodeError> {
    let content = &bytes[..bytes.len() - 2];
    if !content.contains(&0) {
        return Ok(Cow::Borrowed(content));
    }
    take_bytes(&mut &bytes[..], column).map(Cow::Owned)
}

fn stored_text(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', MARK]) {
        return Cow::Borrowed(text);
    }
    let mut stored = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\0' => stored.extend([MARK, '0']),
            MARK => stored.extend([MARK, '1']),
            other => stored.push(other),
        }
    }
    Cow::Owned(stored)
}

fn original_text(stored: &str) -> Option<Cow<'_, str>> {
    if !stored.contains(MARK) {
        return Some(Cow::Borrowed(stored));
    }
    let mut text = String::with_capacity(stored.len());
    let mut chars = stored.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            MARK => match chars.next()? {
                '0' => '\0',
                '1' => MARK,
                _ => return None,
            },
            other => other,
        });
    }
    Some(Cow::Owned(text))
}

/// Appends the bytes of a record to `out`, reading its columns from a row.
pub(crate) fn pull(defs: &[ColumnDef], row: &mut Columns<'_>, out: &mut Vec<u8>) -> Result<(), PgError> {
    for def in defs {
        let bad = || PgError::protocol(format!("a value that column {} cannot have", def.name));
        let Some(value) = row.next_or_null()? else {
            if !def.column.nullable
                || (def.column.kind == ColumnKind::Amount && row.next_or_null()?.is_some())
            {
                return Err(bad());
            }
            out.push(0);
            continue;
        };
        if def.column.nullable {
            out.push(1);
        }
        match def.column.kind {
            ColumnKind::U8 => match value {
                [0, byte] => out.push(*byte),
                _ => return Err(bad()),
            },
            ColumnKind::U16 => match value {
                [0, 0, rest @ ..] if rest.len() == 2 => out.extend_from_slice(rest),
                _ => return Err(bad()),
            },
            ColumnKind::U32 => match value {
                [0, 0, 0, 0, rest @ ..] if rest.len() == 4 => out.extend_from_slice(rest),
                _ => return Err(bad()),
            },
            ColumnKind::U64 | ColumnKind::Timestamp if value.len() == 8 => out.extend_from_slice(value),
            ColumnKind::I64 if value.len() == 8 => {
                out.push(value[0] ^ 0x80);
                out.extend_from_slice(&value[1..]);
            }
            ColumnKind::U128 if value.len() == 16 => out.extend_from_slice(value),
            ColumnKind::Fixed(size) if value.len() == size => out.extend_from_slice(value),
            ColumnKind::Bool if matches!(value, [0 | 1]) => out.extend_from_slice(value),
            ColumnKind::Bytes => put_bytes(value, out),
            ColumnKind::Text => {
                let stored = std::str::from_utf8(value).map_err(|_| bad())?;
                put_bytes(original_text(stored).ok_or_else(bad)?.as_bytes(), out);
            }
            ColumnKind::Amount if value.len() == 8 => {
                let fraction = row.array::<4>()?;
                if u32::from_be_bytes(fraction) >= 100_000_000 {
                    return Err(bad());
                }
                out.extend_from_slice(value);
                out.extend_from_slice(&fraction);
            }
            _ => return Err(bad()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_the_database_cannot_hold_is_escaped() {
        for text in ["", "plain", "\0", "\u{1}", "\u{1}0", "a\0b\u{1}c\u{1}\u{1}1\0\0", "ü\0€"] {
            let stored = stored_text(text);
            assert!(!stored.contains('\0'));
            assert_eq!(original_text(&stored).as_deref(), Some(text));
        }
        assert_eq!(original_text("\u{1}"), None);
        assert_eq!(original_text("\u{1}2"), None);
    }
}
