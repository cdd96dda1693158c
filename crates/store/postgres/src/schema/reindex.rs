//! Recomputes the index entries of existing rows. No service may change them meanwhile.

use std::hash::Hasher;

use batzen_store::{ColumnDef, ColumnKind, DecodeError, IndexEntries, IndexKind, put_bytes};
use siphasher::sip::SipHasher24;

use super::error::SchemaError;
use super::shape::quoted_list;
use super::sql::{Row, Sql};
use crate::layout::{IndexForm, Layout, SqlColumn, quoted};

/// Number of rows that are handled at a time.
const CHUNK: usize = 1000;

/// Recomputes the index entries of every row in one transaction. Returns the number of rows.
pub(crate) fn reindex(sql: &mut dyn Sql, layout: &Layout, sip_key: &[u8; 16]) -> Result<u64, SchemaError> {
    sql.script("BEGIN; SET LOCAL bytea_output = hex")?;
    match rows(sql, layout, sip_key) {
        Ok(rows) => {
            sql.script("COMMIT")?;
            Ok(rows)
        }
        Err(error) => {
            sql.script("ROLLBACK")?;
            Err(error)
        }
    }
}

fn rows(sql: &mut dyn Sql, layout: &Layout, sip_key: &[u8; 16]) -> Result<u64, SchemaError> {
    let table = layout.table();
    if let Some(queue) = layout.queue_table() {
        sql.script(&format!("DELETE FROM {queue}"))?;
    }
    let columns: Vec<String> = layout.key.iter().chain(&layout.row).map(SqlColumn::quoted).collect();
    sql.script(&format!(
        "DECLARE all_rows NO SCROLL CURSOR FOR SELECT ctid, tableoid, vshard, {}, {} FROM {table}",
        quoted(layout.serial),
        columns.join(", ")
    ))?;
    let mut count = 0;
    loop {
        let rows = sql.rows(&format!("FETCH {CHUNK} FROM all_rows"))?;
        if rows.is_empty() {
            sql.script("CLOSE all_rows")?;
            return Ok(count);
        }
        count += rows.len() as u64;
        let (mut updates, mut queued) = (Vec::new(), Vec::new());
        for row in &rows {
            let entries = entries(layout, row).map_err(|error| {
                SchemaError::Refused(format!(
                    "table {} holds a row that cannot be read: {error}",
                    layout.name
                ))
            })?;
            updates.extend(entries.update(layout, row, sip_key));
            queued.extend(entries.queued(layout, row));
        }
        let own: Vec<&str> = own_columns(layout).collect();
        if !updates.is_empty() {
            let set =
                own.iter().map(|name| format!("{0} = v.{0}", quoted(name))).collect::<Vec<_>>().join(", ");
            sql.script(&format!(
                "UPDATE {table} t SET {set} FROM (VALUES {}) AS v(tid, part, {}) WHERE t.ctid = v.tid AND t.tableoid = v.part",
                updates.join(", "),
                quoted_list(&own)
            ))?;
        }
        if let (Some(queue), false) = (layout.queue_table(), queued.is_empty()) {
            let entries: Vec<&str> =
                layout.queue_indexes().filter_map(|index| index.column.as_deref()).collect();
            let key: Vec<&str> = layout.key.iter().map(|column| column.name.as_str()).collect();
            sql.script(&format!(
                "INSERT INTO {queue} (due, {}, vshard, {}, {}) VALUES {}",
                quoted_list(&entries),
                quoted_list(&key),
                quoted(layout.serial),
                queued.join(", ")
            ))?;
        }
    }
}

/// The columns of indexes that are in the table itself.
fn own_columns(layout: &Layout) -> impl Iterator<Item = &str> {
    let own = |form| matches!(form, IndexForm::Hash | IndexForm::HashMany | IndexForm::Position);
    layout.indexes.iter().filter(move |index| own(index.form)).filter_map(|index| index.column.as_deref())
}

/// The entries of a row, and the parts that positions consist of.
struct Entries {
    values: IndexEntries,
    key: Vec<u8>,
    serial: i64,
}

/// The columns in front of key and row: the row's location, its shard, its serial.
const HEAD: usize = 4;

fn entries(layout: &Layout, row: &Row) -> Result<Entries, DecodeError> {
    let mut at = HEAD;
    let (mut key, mut bytes) = (Vec::new(), Vec::new());
    for column in layout.def.key_columns {
        encode(column, row, &mut at, &mut key)?;
    }
    for column in layout.def.row_columns {
        encode(column, row, &mut at, &mut bytes)?;
    }
    let mut values = IndexEntries::new();
    (layout.def.index_entries_raw)(&key, &bytes, &mut values)?;
    Ok(Entries { values, key, serial: row.number(3) })
}

impl Entries {
    /// The assignments that update a row; none if the table has no entries of its own.
    fn update(&self, layout: &Layout, row: &Row, sip_key: &[u8; 16]) -> Option<String> {
        let hash = |value: &[u8]| {
            let mut hasher = SipHasher24::new_with_key(sip_key);
            hasher.write(value);
            hasher.finish().cast_signed().to_string()
        };
        let mut literals = Vec::new();
        for index in &layout.indexes {
            let mut values = self.values.iter().filter(|(id, _)| *id == index.def.id).map(|(_, value)| value);
            literals.push(match index.form {
                IndexForm::Hash => {
                    let value = values.next().map_or_else(|| "NULL".to_owned(), hash);
                    format!("{value}::bigint")
                }
                IndexForm::HashMany => {
                    let list = values.map(hash).collect::<Vec<_>>().join(",");
                    if list.is_empty() {
                        "NULL::bigint[]".to_owned()
                    } else {
                        format!("'{{{list}}}'::bigint[]")
                    }
                }
                IndexForm::Position => self.position(index.def.kind, values.next()),
                IndexForm::PrimaryKey { .. } | IndexForm::KeyPrefix { .. } | IndexForm::Queue => continue,
            });
        }
        let place = format!("'{}'::tid, {}::oid", row.text(0), row.text(1));
        (!literals.is_empty()).then(|| format!("({place}, {})", literals.join(", ")))
    }

    /// The row's entry in the queue; none if the row is not in it.
    fn queued(&self, layout: &Layout, row: &Row) -> Option<String> {
        let mut literals = Vec::new();
        let mut due = None;
        for index in layout.queue_indexes() {
            let value = self.values.iter().find(|(id, _)| *id == index.def.id).map(|(_, value)| value);
            if let (None, Some(time)) = (due, value.and_then(|value| value.first_chunk())) {
                due = Some(i64::try_from(u64::from_be_bytes(*time)).unwrap_or(i64::MAX));
            }
            literals.push(self.position(index.def.kind, value));
        }
        let due = due?;
        literals.push(row.text(2).to_owned());
        for (at, column) in layout.key.iter().enumerate() {
            let text = super::shape::literal(row.text(HEAD + at));
            literals.push(format!("{text}::{}", column.sql.name()));
        }
        literals.push(self.serial.to_string());
        Some(format!("({due}, {})", literals.join(", ")))
    }

    /// The position of an entry: its value and what follows it.
    fn position(&self, kind: IndexKind, value: Option<&[u8]>) -> String {
        let Some(value) = value else { return "NULL::bytea".to_owned() };
        let serial = self.serial.to_be_bytes();
        let rest = if kind == IndexKind::Serial { serial.as_slice() } else { self.key.as_slice() };
        let digits = value.iter().chain(rest).map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("'\\x{digits}'::bytea")
    }
}

/// Appends the bytes of a column in the record's encoding, from the text that the database writes.
fn encode(column: &ColumnDef, row: &Row, at: &mut usize, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let bad = || DecodeError::invalid(column.name, "a value that it cannot have");
    let mut next = || {
        *at += 1;
        row.optional(*at - 1)
    };
    let text = next();
    let fraction = (column.column.kind == ColumnKind::Amount).then(&mut next).flatten();
    let Some(text) = text else {
        if !column.column.nullable {
            return Err(bad());
        }
        out.push(0);
        return Ok(());
    };
    if column.column.nullable {
        out.push(1);
    }
    let number = || text.parse::<i64>().map_err(|_| bad());
    let bytes = || unhex(text).ok_or_else(bad);
    match column.column.kind {
        ColumnKind::U8 => out.push(u8::try_from(number()?).map_err(|_| bad())?),
        ColumnKind::U16 => out.extend(u16::try_from(number()?).map_err(|_| bad())?.to_be_bytes()),
        ColumnKind::U32 => out.extend(u32::try_from(number()?).map_err(|_| bad())?.to_be_bytes()),
        ColumnKind::U64 | ColumnKind::Timestamp => out.extend(number()?.to_be_bytes()),
        ColumnKind::I64 => out.extend((number()?.cast_unsigned() ^ (1 << 63)).to_be_bytes()),
        ColumnKind::U128 | ColumnKind::Fixed(_) => out.extend(bytes()?),
        ColumnKind::Bool => out.push(u8::from(text == "t")),
        ColumnKind::Bytes => put_bytes(&bytes()?, out),
        ColumnKind::Text => {
            put_bytes(text.replace("\u{1}0", "\0").replace("\u{1}1", "\u{1}").as_bytes(), out);
        }
        ColumnKind::Amount => {
            out.extend(number()?.to_be_bytes());
            let fraction: u32 = fraction.and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            out.extend(fraction.to_be_bytes());
        }
    }
    Ok(())
}

/// Parses bytes in PostgreSQL's hexadecimal form.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?;
    (0..digits.len() / 2).map(|at| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}
