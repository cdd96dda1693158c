//! The statements of one table on Citus, where they differ from those of plain PostgreSQL.
//!
//! Each names the virtual shards of its rows as a list, from which Citus chooses shards: it does not look into
//! a join with arrays. Rows are inserted as values, in a few fixed numbers: `INSERT … SELECT` would gather the
//! rows in the coordinator and copy them. No statement counts its rows: the client does, before it commits.

use batzen_store::IndexKind;

use super::{equal, unnest};
use crate::client::Statement;
use crate::layout::{IndexForm, IndexLayout, Layout, SqlType, quoted};

/// Number of rows that one statement may insert, the largest first.
pub(crate) const ROWS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];

/// The inserts of a table, for each number of [`ROWS`].
pub(crate) type Inserts = [Statement; ROWS.len()];

/// The condition that names the shards, which are in the array `$first`.
fn within(layout: &Layout, first: usize) -> String {
    // Tables without shards are on every node.
    if layout.def.is_sharded() {
        format!(" AND t.vshard = ANY (${first}::smallint[])")
    } else {
        String::new()
    }
}

/// Looks up rows by `named`, the key or its first columns; `with_shard`: the first of them is the shard.
pub(crate) fn by_key(
    layout: &Layout,
    columns: &str,
    types: &[SqlType],
    named: &[String],
    with_shard: bool,
) -> String {
    let t = layout.table();
    format!(
        "SELECT u.ord, {columns} FROM {} WITH ORDINALITY AS u({}, ord) JOIN {t} t ON {}{}",
        unnest(1, types),
        named.join(", "),
        equal("t", "u", named),
        if with_shard { within(layout, 1) } else { String::new() },
    )
}

/// Locks rows against changes.
pub(crate) fn keep(layout: &Layout, source: &str, same: &str) -> String {
    let t = layout.table();
    format!("SELECT 1 FROM {source} JOIN {t} t ON {same}{} FOR SHARE OF t", within(layout, 1))
}

pub(crate) fn delete(layout: &Layout, source: &str, same: &str) -> String {
    format!("DELETE FROM {} t USING {source} WHERE {same}{}", layout.table(), within(layout, 1))
}

pub(crate) fn update(layout: &Layout, set: &[String], source: &str, same: &str) -> String {
    let t = layout.table();
    format!("UPDATE {t} t SET {} FROM {source} WHERE {same}{}", set.join(", "), within(layout, 1))
}

/// Deletes entries of a queue; the third array has their shards.
pub(crate) fn queue_delete(layout: &Layout, queue: &str, first: &str) -> String {
    format!(
        "DELETE FROM {queue} t USING {} AS u(due, place, vshard) WHERE t.due = u.due AND t.{first} = u.place AND \
         t.vshard = u.vshard{}",
        unnest(1, &[SqlType::Int8, SqlType::Bytea, SqlType::Int2]),
        within(layout, 3),
    )
}

/// Makes the values of a row from the names of its parameters, by number.
type Values<'a> = dyn Fn(&dyn Fn(usize) -> String) -> Vec<String> + 'a;

/// Inserts rows of these types. `value` makes the value of each target from the names of a row's parameters.
pub(crate) fn inserts(table: &str, targets: &[String], types: &[SqlType], value: &Values<'_>) -> Inserts {
    ROWS.map(|rows| {
        let row = |row: usize| {
            let parameter = |at: usize| format!("${}::{}", 2 + row * types.len() + at, types[at].name());
            format!("({})", value(&parameter).join(", "))
        };
        let rows: Vec<String> = (0..rows).map(row).collect();
        // A row that exists must not end the transaction with whatever code the node's error arrives with.
        Statement::new(format!(
            "INSERT INTO {table} ({}) VALUES {} ON CONFLICT DO NOTHING",
            targets.join(", "),
            rows.join(", ")
        ))
    })
}

/// The value of an index column. A cast from text to an array is not immutable, so Citus refuses it in `SET`.
pub(crate) fn index_value(index: &IndexLayout, value: &str, serial: &str) -> String {
    match (index.form, index.def.kind) {
        (IndexForm::HashMany, _) => format!("string_to_array(btrim({value}, '{{}}'), ',')::bigint[]"),
        (_, IndexKind::Serial) => format!("{value} || int8send({serial})"),
        _ => value.to_owned(),
    }
}

/// Reads a queue in order: its entries first, and then their rows.
pub(crate) fn queue_range(
    layout: &Layout,
    queue: &str,
    column: &str,
    all: &str,
    tail: &str,
    order: &str,
) -> String {
    let mut key = vec!["vshard".to_owned()];
    key.extend(layout.key.iter().map(|column| quoted(&column.name)));
    let t = layout.table();
    format!(
        "WITH q AS MATERIALIZED (SELECT q.{column} AS place, {} FROM {queue} q {tail}) SELECT q.place, {all} FROM q JOIN {t} t \
         ON {} ORDER BY q.place{order}",
        key.iter().map(|name| format!("q.{name}")).collect::<Vec<_>>().join(", "),
        equal("t", "q", &key),
    )
}
