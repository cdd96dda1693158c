//! The form of a table in the database, and the statements that create it. Pure functions.

use std::fmt::Write as _;

use crate::layout::quoted;

/// A text in quotes.
#[must_use]
pub fn literal(text: &str) -> String {
    let escaped = text.replace('\'', "''");
    if escaped.contains('\\') {
        format!("E'{}'", escaped.replace('\\', "\\\\"))
    } else {
        format!("'{escaped}'")
    }
}

/// Several identifiers in quotes, separated by commas.
pub(crate) fn quoted_list<S: AsRef<str>>(names: &[S]) -> String {
    names.iter().map(|name| quoted(name.as_ref())).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnShape {
    pub(crate) name: String,
    /// Its type, as `format_type` writes it.
    pub(crate) sql_type: &'static str,
    /// Whether it may be NULL.
    pub(crate) nullable: bool,
    /// Whether the database assigns numbers to it.
    pub(crate) generated: bool,
}

impl ColumnShape {
    /// Its type as declared. Text is compared byte by byte: the collation of a language may change with the
    /// system's library, and an index in the old order would no longer find its rows.
    #[must_use]
    pub(crate) fn declared(&self) -> String {
        let collation = if self.sql_type == "text" { " COLLATE \"C\"" } else { "" };
        format!("{}{collation}", self.sql_type)
    }
}

/// A secondary index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexShape {
    /// Its name, unique in the schema.
    pub(crate) name: String,
    /// The access method.
    pub(crate) method: &'static str,
    /// Its columns in order.
    pub(crate) columns: Vec<String>,
    /// The column that must be present for a row to be in the index.
    pub(crate) present: Option<String>,
    /// The column that a backend fills with the index's entries, if it has one.
    pub(crate) entries: Option<String>,
}

/// Partitioning of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Not at all.
    Whole,
    /// Into equal ranges of `vshard`: hot tables.
    Shards(Vec<Partition>),
    /// Into days of `due`: queues by deadline.
    Days,
}

/// The way in which the rows of a table are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Written once.
    Lasting,
    /// Changed in place.
    Changing,
    /// Deleted soon after they are written.
    Passing,
    /// Few rows, changed by every commit.
    Busy,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShape {
    /// Its name within the schema.
    pub name: String,
    /// Its columns in order.
    pub(crate) columns: Vec<ColumnShape>,
    /// The columns of the primary key; empty if there is none.
    pub(crate) key: Vec<String>,
    /// The secondary indexes.
    pub(crate) indexes: Vec<IndexShape>,
    /// Its partitioning.
    pub(crate) cut: Cut,
    /// The way in which its rows are written.
    pub(crate) life: Life,
}

/// A partition of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) name: String,
    /// Its bounds, in SQL.
    pub(crate) bounds: String,
}

impl TableShape {
    /// Storage parameters of the table, or of each of its partitions. Vacuum starts after a number of rows
    /// and not after a share of them: a tenth of a large table is too much at once.
    #[must_use]
    pub(crate) fn storage(&self) -> String {
        let fill = match self.life {
            Life::Lasting => "",
            Life::Changing => "fillfactor=80, ",
            Life::Passing => "fillfactor=90, ",
            Life::Busy => "fillfactor=10, ",
        };
        let vacuum = match self.life {
            // There are only inserts: vacuum freezes the rows and makes index-only reads possible.
            Life::Lasting => {
                "autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02"
            }
            Life::Changing => {
                "autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, \
                 autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1"
            }
            Life::Busy => "autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000",
            Life::Passing => {
                "autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, \
                 autovacuum_analyze_scale_factor=0.05, autovacuum_vacuum_cost_delay=0"
            }
        };
        format!("{fill}{vacuum}")
    }

    /// The statements that create the table with its partitions and indexes, in order. Days are created by
    /// maintenance.
    #[must_use]
    pub fn create(&self, schema: &str) -> Vec<String> {
        let (place, schema) = (format!("{}.{}", quoted(schema), quoted(&self.name)), quoted(schema));
        let mut body = String::new();
        for column in &self.columns {
            let _ = write!(
                body,
                "{}  {} {}{}{}",
                if body.is_empty() { "" } else { ",\n" },
                quoted(&column.name),
                column.declared(),
                if column.nullable { "" } else { " NOT NULL" },
                if column.generated { " GENERATED ALWAYS AS IDENTITY" } else { "" }
            );
        }
        if !self.key.is_empty() {
            let name = quoted(&format!("{}_pkey", self.name));
            let _ = write!(body, ",\n  CONSTRAINT {name} PRIMARY KEY ({})", quoted_list(&self.key));
        }
        let storage = self.storage();
        let parts = match &self.cut {
            Cut::Shards(parts) => Some(("vshard", parts.clone())),
            Cut::Days => {
                let rest = Partition { name: format!("{}_default", self.name), bounds: "DEFAULT".into() };
                Some(("due", vec![rest]))
            }
            Cut::Whole => None,
        };
        let mut statements = Vec::new();
        if let Some((by, parts)) = parts {
            statements.push(format!("CREATE TABLE {place} (\n{body}\n) PARTITION BY RANGE ({by})"));
            for part in parts {
                statements.push(format!(
                    "CREATE TABLE {schema}.{} PARTITION OF {place} {} WITH ({storage})",
                    quoted(&part.name),
                    part.bounds
                ));
            }
        } else {
            statements.push(format!("CREATE TABLE {place} (\n{body}\n) WITH ({storage})"));
        }
        statements.extend(self.indexes.iter().map(|index| self.create_index(&schema, index)));
        statements
    }

    /// The statement that creates an index on every partition. `schema` is quoted.
    pub(crate) fn create_index(&self, schema: &str, index: &IndexShape) -> String {
        let condition = index
            .present
            .as_ref()
            .map(|column| format!(" WHERE {} IS NOT NULL", quoted(column)))
            .unwrap_or_default();
        format!(
            "CREATE INDEX {} ON {schema}.{} USING {} ({}){condition}",
            quoted(&index.name),
            quoted(&self.name),
            index.method,
            quoted_list(&index.columns)
        )
    }

    /// The column with this name.
    #[must_use]
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnShape> {
        self.columns.iter().find(|column| column.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_are_quoted() {
        assert_eq!(quoted("end"), "\"end\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
    }
}
