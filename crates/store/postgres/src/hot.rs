//! The statements of the hot paths and their parameters: for the doctor, which examines how the server
//! executes them, and for tests that each touches only its shard's partition.

use crate::layout::{IndexForm, Layout, SqlType, quoted};
use crate::statements::{Statements, index_type};
use batzen_store::IndexKind;

/// The settings of a session of the store. Plans depend on them.
pub const SESSION: &str = crate::statements::SESSION;

/// Number of partitions of a table that a statement may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// One per row, since the statement names each row's shard.
    OneShard,
    /// All of them, because the value that is looked up does not determine its shard.
    AllShards,
}

/// A parameter, taken from an existing row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its value, as an SQL expression of the sampled row `t`.
    pub expression: String,
    /// Its type.
    pub sql_type: String,
    /// Whether it is sent as an array with one element.
    pub is_array: bool,
}

/// A statement and the source of its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotStatement {
    /// The table, not quoted and without the schema.
    pub table: String,
    /// `get`, `insert`, `update`, `delete`, `keep`, `lookup INDEX`, `range INDEX`, `queue insert`,
    /// `queue delete`.
    pub what: String,
    /// Its text.
    pub sql: String,
    /// Its parameters in order.
    pub parameters: Vec<Parameter>,
    /// The partitions that it may touch.
    pub reach: Reach,
    /// Where to find a row with real parameters: the text after `FROM`, with alias `t`.
    pub sample: String,
    /// Whether the sampled row must be deleted first (by the table's `delete`), because the statement inserts
    /// it again.
    pub needs_absence: bool,
}

fn array(expression: impl Into<String>, sql: SqlType) -> Parameter {
    Parameter { expression: expression.into(), sql_type: sql.name().to_owned(), is_array: true }
}

fn scalar(expression: impl Into<String>, sql_type: &str) -> Parameter {
    Parameter { expression: expression.into(), sql_type: sql_type.to_owned(), is_array: false }
}

/// The statements of a table. Those of tables that have neither shards nor a queue are not hot.
#[must_use]
pub fn statements(layout: &Layout) -> Vec<HotStatement> {
    if !layout.def.is_sharded() && layout.queue_table().is_none() {
        return Vec::new();
    }
    let statements = Statements::new(layout.clone());
    let place = format!("{} t", layout.table());
    let key = || {
        let mut list = vec![array("t.vshard", SqlType::Int2)];
        list.extend(layout.key.iter().map(|column| array(format!("t.{}", column.quoted()), column.sql)));
        list
    };
    // With one row, the first and the last shard are the same.
    let within = |mut parameters: Vec<Parameter>| {
        let bounds = if layout.partitions > 1 { 2 } else { 0 };
        parameters.extend((0..bounds).map(|_| scalar("t.vshard", "smallint")));
        parameters
    };
    let row = || layout.row.iter().map(|column| array(format!("t.{}", column.quoted()), column.sql));
    let indexes = || {
        statements.own_indexes().map(|index| {
            let column = format!("t.{}", quoted(index.column.as_deref().unwrap_or_default()));
            let is_serial = index.def.kind == IndexKind::Serial;
            array(if is_serial { without_serial(&column) } else { column }, index_type(index))
        })
    };
    let one = || scalar("1", "bigint");
    let serial = || array(format!("t.{}", quoted(layout.serial)), SqlType::Int8);
    let same = || [vec![one()], key(), vec![array("t.version", SqlType::Int4), serial()]].concat();
    let hot = |what: &str, sql: &str, parameters: Vec<Parameter>| HotStatement {
        table: layout.name.clone(),
        what: what.to_owned(),
        sql: sql.to_owned(),
        parameters,
        reach: Reach::OneShard,
        sample: place.clone(),
        needs_absence: false,
    };
    let mut insert = vec![scalar("0", "bigint")];
    insert.extend(key());
    insert.extend(row());
    insert.push(array("1", SqlType::Int8));
    insert.extend(indexes());
    let mut update = same();
    update.extend(row());
    update.extend(indexes());
    let all_columns = &mut vec![true; layout.def.row_columns.len()];
    let mut list = vec![
        hot("get", &statements.get.sql, within(key())),
        hot("keep", &statements.keep.sql, same()),
        hot("update", &statements.update(all_columns).sql, update),
        hot("delete", &statements.delete.sql, same()),
        HotStatement { needs_absence: true, ..hot("insert", &statements.insert.sql, insert) },
    ];
    for index in &layout.indexes {
        let name = index.def.name;
        let column =
            index.column.as_deref().map(|column| format!("t.{}", quoted(column))).unwrap_or_default();
        let with_value = format!("{place} WHERE {column} IS NOT NULL");
        let wide = |what: String, sql: &str, parameters, sample| HotStatement {
            reach: Reach::AllShards,
            sample,
            ..hot(&what, sql, parameters)
        };
        let lookup = || statements.lookup(index.def.id).sql.as_str();
        let range = || statements.range(index.def.id, false, false).sql.as_str();
        let from = || vec![scalar(column.clone(), "bytea"), scalar("100", "bigint")];
        list.push(match index.form {
            IndexForm::PrimaryKey { columns } => {
                let prefix = key().into_iter().take(columns + 1).collect();
                hot(&format!("lookup {name}"), lookup(), within(prefix))
            }
            IndexForm::KeyPrefix { columns } => {
                let prefix = key().into_iter().skip(1).take(columns).collect();
                wide(format!("lookup {name}"), lookup(), prefix, place.clone())
            }
            IndexForm::Hash => {
                wide(format!("lookup {name}"), lookup(), vec![array(&column, SqlType::Int8)], with_value)
            }
            IndexForm::HashMany => {
                wide(format!("lookup {name}"), lookup(), vec![scalar(&column, "bigint[]")], with_value)
            }
            IndexForm::Position => wide(format!("range {name}"), range(), from(), with_value),
            IndexForm::Queue => {
                let queue = layout.queue_table().unwrap_or_default();
                wide(
                    format!("range {name}"),
                    range(),
                    from(),
                    format!("{queue} t WHERE {column} IS NOT NULL"),
                )
            }
        });
    }
    if let (Some(queue), Some(put), Some(take)) =
        (layout.queue_table(), &statements.queue_insert, &statements.queue_delete)
    {
        let columns: Vec<(String, bool)> = layout
            .queue_indexes()
            .map(|index| {
                let column = format!("t.{}", quoted(index.column.as_deref().unwrap_or_default()));
                (column, index.def.kind == IndexKind::Serial)
            })
            .collect();
        let mut parameters = vec![scalar("0", "bigint"), array("t.due", SqlType::Int8)];
        parameters.extend(columns.iter().map(|(column, is_serial)| {
            array(if *is_serial { without_serial(column) } else { column.clone() }, SqlType::Bytea)
        }));
        parameters.extend(key());
        parameters.extend([array("1", SqlType::Int8), array("t.serial", SqlType::Int8)]);
        let sample = || format!("{queue} t");
        list.push(HotStatement { sample: sample(), ..hot("queue insert", &put.sql, parameters) });
        if let Some((first, _)) = columns.first() {
            let mut parameters = vec![one(), array("t.due", SqlType::Int8), array(first, SqlType::Bytea)];
            parameters.push(array("t.vshard", SqlType::Int2));
            list.push(HotStatement { sample: sample(), ..hot("queue delete", &take.sql, parameters) });
        }
    }
    list
}

/// The value of a position that ends with the record's serial, which the statement adds itself.
fn without_serial(column: &str) -> String {
    format!("substr({column}, 1, octet_length({column}) - 8)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_has_its_parameter() {
        let mut seen = 0;
        for def in batzen_tables::exchange::ALL {
            let layout = Layout::new(def, "exchange", 4).unwrap();
            for statement in statements(&layout) {
                let placeholders = |number: usize| {
                    statement.sql.contains(&format!("${number}::"))
                        || statement.sql.contains(&format!("(${number})"))
                        || statement.sql.contains(&format!(", ${number},"))
                };
                let count = statement.parameters.len();
                assert!((1..=count).all(placeholders), "{}", statement.sql);
                assert!(
                    !placeholders(count + 1),
                    "{} {}: {}",
                    statement.table,
                    statement.what,
                    statement.sql
                );
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }
}
