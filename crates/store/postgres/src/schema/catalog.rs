//! The tables of a database, read from its catalogue.

use std::collections::BTreeMap;

use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;

/// An existing column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PresentColumn {
    pub(crate) name: String,
    /// Its type, as `format_type` writes it.
    pub(crate) sql_type: String,
    /// Whether it may be NULL.
    pub(crate) nullable: bool,
}

/// An existing index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PresentIndex {
    /// Its columns in order.
    pub(crate) columns: Vec<String>,
    /// Whether it is the primary key or another unique constraint.
    pub(crate) unique: bool,
    /// Whether it is valid: an interrupted build leaves an invalid index.
    pub(crate) valid: bool,
}

/// An existing table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PresentTable {
    /// Its columns in order.
    pub(crate) columns: Vec<PresentColumn>,
    /// Its indexes by name.
    pub(crate) indexes: BTreeMap<String, PresentIndex>,
    /// The names of its partitions with their bounds, if it is partitioned.
    pub(crate) parts: Option<BTreeMap<String, String>>,
}

impl PresentTable {
    /// The column with this name.
    #[must_use]
    pub(crate) fn column(&self, name: &str) -> Option<&PresentColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// The tables of a schema by name, without partitions.
pub(crate) type Present = BTreeMap<String, PresentTable>;

/// Returns whether there is a schema with this name.
///
/// # Errors
/// The server's error.
pub(crate) fn has_schema(sql: &mut dyn Sql, schema: &str) -> Result<bool, SchemaError> {
    let text = format!("SELECT 1 FROM pg_namespace WHERE nspname = {}", literal(schema));
    Ok(sql.row(&text)?.is_some())
}

/// Reads only the columns, which are compared when a store is opened. This takes one query.
///
/// # Errors
/// The server's error.
pub(crate) fn read_columns(sql: &mut dyn Sql, schema: &str) -> Result<Present, SchemaError> {
    let mut tables = Present::new();
    let rows = sql.rows(&format!(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, c.relkind = 'p'
         FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {}
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
         ORDER BY c.relname, a.attnum",
        literal(schema)
    ))?;
    for row in rows {
        let table = tables.entry(row.text(0).to_owned()).or_default();
        if row.is_true(4) {
            table.parts.get_or_insert_default();
        }
        if let Some(name) = row.optional(1) {
            table.columns.push(PresentColumn {
                name: name.to_owned(),
                sql_type: row.text(2).to_owned(),
                nullable: row.is_true(3),
            });
        }
    }
    Ok(tables)
}

/// Reads the whole catalogue of the schema.
///
/// # Errors
/// The server's error.
pub(crate) fn read(sql: &mut dyn Sql, schema: &str) -> Result<Present, SchemaError> {
    let mut tables = read_columns(sql, schema)?;
    let name = literal(schema);
    let rows = sql.rows(&format!(
        "SELECT c.relname, i.relname, x.indisunique, x.indisvalid, coalesce(k.name, '')
         FROM pg_index x
         JOIN pg_class c ON c.oid = x.indrelid AND NOT c.relispartition AND c.relkind IN ('r', 'p')
         JOIN pg_class i ON i.oid = x.indexrelid
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {name}
         LEFT JOIN LATERAL (
           SELECT a.attname AS name, u.at FROM unnest(x.indkey) WITH ORDINALITY AS u(n, at)
           JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.n) AS k ON true
         ORDER BY 1, 2, k.at"
    ))?;
    for row in rows {
        let indexes = &mut tables.entry(row.text(0).to_owned()).or_default().indexes;
        let index = indexes.entry(row.text(1).to_owned()).or_insert_with(|| PresentIndex {
            columns: Vec::new(),
            unique: row.is_true(2),
            valid: row.is_true(3),
        });
        index.columns.push(row.text(4).to_owned());
    }
    let rows = sql.rows(&format!(
        "SELECT p.relname, c.relname, pg_get_expr(c.relpartbound, c.oid)
         FROM pg_inherits h
         JOIN pg_class c ON c.oid = h.inhrelid AND c.relkind IN ('r', 'p')
         JOIN pg_class p ON p.oid = h.inhparent
         JOIN pg_namespace n ON n.oid = p.relnamespace AND n.nspname = {name}"
    ))?;
    for row in rows {
        let parts = tables.entry(row.text(0).to_owned()).or_default().parts.get_or_insert_default();
        parts.insert(row.text(1).to_owned(), row.text(2).to_owned());
    }
    Ok(tables)
}
