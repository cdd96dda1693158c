//! Derives the tables of a database from layouts. Pure functions.

use super::meta::own_tables;
use super::shape::{ColumnShape, Cut, IndexShape, Life, Partition, TableShape};
use crate::layout::{IndexForm, IndexLayout, Layout, SqlColumn};

/// The tables for some layouts: one for each layout, and one for each queue.
#[must_use]
pub fn tables(layouts: &[Layout]) -> Vec<TableShape> {
    layouts.iter().flat_map(|layout| std::iter::once(table(layout)).chain(queue(layout))).collect()
}

fn shape(column: &SqlColumn, layout: &Layout) -> ColumnShape {
    let is_array = layout
        .indexes
        .iter()
        .any(|index| index.form == IndexForm::HashMany && index.column.as_deref() == Some(&column.name));
    ColumnShape {
        name: column.name.clone(),
        sql_type: if is_array { "bigint[]" } else { column.sql.name() },
        nullable: column.nullable,
        generated: false,
    }
}

/// The primary key starts with the shard, so that the rows of an owner are stored together.
fn primary_key(layout: &Layout) -> impl Iterator<Item = String> {
    std::iter::once("vshard".to_owned()).chain(layout.key.iter().map(|column| column.name.clone()))
}

fn table(layout: &Layout) -> TableShape {
    let cut = if layout.partitions == 0 {
        Cut::Whole
    } else {
        let part = |number| {
            let (from, to) = layout.partition_bounds(number);
            Partition {
                name: layout.partition_name(number),
                bounds: format!("FOR VALUES FROM ({from}) TO ({to})"),
            }
        };
        Cut::Shards((0..layout.partitions).map(part).collect())
    };
    TableShape {
        name: layout.name.clone(),
        columns: layout.columns().iter().map(|column| shape(column, layout)).collect(),
        key: primary_key(layout).collect(),
        indexes: layout.indexes.iter().filter_map(|index| index_shape(layout, index)).collect(),
        cut,
        life: if layout.def.updated { Life::Changing } else { Life::Lasting },
    }
}

fn index_shape(layout: &Layout, index: &IndexLayout) -> Option<IndexShape> {
    let name = format!("{}_{}", layout.name, index.def.name);
    let entries = index.column.clone();
    let (method, columns) = match index.form {
        IndexForm::PrimaryKey { .. } | IndexForm::Queue => return None,
        IndexForm::KeyPrefix { columns } => {
            ("btree", layout.key[..columns].iter().map(|column| column.name.clone()).collect())
        }
        IndexForm::Hash | IndexForm::Position => ("btree", entries.iter().cloned().collect()),
        IndexForm::HashMany => ("gin", entries.iter().cloned().collect()),
    };
    Some(IndexShape { name, method, columns, present: entries.clone(), entries })
}

fn queue(layout: &Layout) -> Option<TableShape> {
    let name = layout.queue_name()?;
    let column = |name: &str, sql_type, nullable| ColumnShape {
        name: name.to_owned(),
        sql_type,
        nullable,
        generated: false,
    };
    let mut columns = vec![column("due", "bigint", false)];
    let mut indexes = Vec::new();
    for index in layout.queue_indexes() {
        let Some(entries) = &index.column else { continue };
        columns.push(column(entries, "bytea", true));
        indexes.push(IndexShape {
            name: format!("{name}_{}", index.def.name),
            method: "btree",
            columns: vec![entries.clone()],
            present: Some(entries.clone()),
            entries: Some(entries.clone()),
        });
    }
    columns.push(column("vshard", "smallint", false));
    columns.extend(layout.key.iter().map(|column| shape(column, layout)));
    columns.push(column(layout.serial, "bigint", false));
    // Entries are found by key; each belongs to one row of the table.
    Some(TableShape { name, columns, key: Vec::new(), indexes, cut: Cut::Days, life: Life::Passing })
}

/// All tables of a schema: its own and the service's.
pub(crate) fn shapes(layouts: &[Layout]) -> Vec<TableShape> {
    own_tables().into_iter().chain(tables(layouts)).collect()
}
