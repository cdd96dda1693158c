//! The form of a typed table in PostgreSQL: derives names, columns and indexes from a [`TableDef`].
//! Statements, DDL and views follow from them. Pure functions.
//!
//! | of the record | in the database |
//! |---|---|
//! | its shard | `vshard smallint`: [`batzen_store::vshard`] of the shard key under the store's key |
//! | key and row | a column of the same name for each (`row_NAME` if the key has that name), see `SqlType`; an amount is two, `NAME_val` and `NAME_frac` |
//! | its serial | `serial bigint` (`record_serial` in a table that has a column of that name) |
//! | its version | `version integer`: grows with every update, so that changes name the version they read |
//! | hash index | `ix_NAME bigint`, a keyed hash of the value (`bigint[]` if a row may have several) |
//! | ordered or serial index | `ix_NAME bytea`, the entry's whole position: PostgreSQL compares `bytea` byte by byte, as positions are ordered, whatever types the value has |
//! | queue ([`TableDef::queue`]) | a table `NAME_open` of its own, partitioned by time |

use std::collections::BTreeMap;
use std::ops::Range;

use batzen_store::{ColumnDef, ColumnKind, IndexDef, IndexKind, StoreError, TableDef, VSHARD_COUNT};

/// The maximum number of partitions that a table is divided into.
pub(crate) const PARTITIONS_MAX: u16 = 64;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SqlType {
    /// `boolean`.
    Bool,
    /// `smallint`: bytes (0 to 255) and virtual shards.
    Int2,
    /// `integer`: numbers of two bytes, fractions of amounts.
    Int4,
    /// `bigint`: numbers of four bytes, and signed ones, unchanged; unsigned ones of eight bytes in two's
    /// complement, so that those above 2^63 look negative ("never" is -1).
    Int8,
    /// `bytea`: bytes of fixed or any length, and numbers of sixteen bytes, big-endian.
    Bytea,
    /// `text`, with U+0001 escaped as U+0001 `1` and U+0000, which PostgreSQL cannot store, as U+0001 `0`.
    Text,
}

impl SqlType {
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Int2 => "smallint",
            Self::Int4 => "integer",
            Self::Int8 => "bigint",
            Self::Bytea => "bytea",
            Self::Text => "text",
        }
    }

    /// The type's object identifier, which is the same in every PostgreSQL.
    #[must_use]
    pub(crate) const fn oid(self) -> u32 {
        match self {
            Self::Bool => 16,
            Self::Bytea => 17,
            Self::Int8 => 20,
            Self::Int2 => 21,
            Self::Int4 => 23,
            Self::Text => 25,
        }
    }
}

/// A column of a table in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlColumn {
    /// Its name, not quoted.
    pub(crate) name: String,
    pub(crate) sql: SqlType,
    /// Whether it may be NULL.
    pub(crate) nullable: bool,
}

impl SqlColumn {
    /// The column's name as it is written in statements.
    #[must_use]
    pub fn quoted(&self) -> String {
        quoted(&self.name)
    }
}

/// The access path to an index's rows in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexForm {
    /// By the primary key, which starts with `vshard` and this many key columns.
    PrimaryKey {
        /// Number of columns of [`Layout::key`].
        columns: usize,
    },
    /// By its own index on this many leading key columns: the prefix is shorter than the shard key.
    KeyPrefix {
        /// Number of columns of [`Layout::key`].
        columns: usize,
    },
    /// By `ix_NAME bigint`.
    Hash,
    /// By `ix_NAME bigint[]`, under GIN.
    HashMany,
    /// By `ix_NAME bytea`.
    Position,
    /// By `ix_NAME bytea` in the queue's table.
    Queue,
}

/// A secondary index.
#[derive(Debug, Clone)]
pub(crate) struct IndexLayout {
    /// The index as declared.
    pub(crate) def: &'static IndexDef,
    /// The access path to its rows.
    pub(crate) form: IndexForm,
    /// The column `ix_NAME`, if it has one.
    pub(crate) column: Option<String>,
}

/// A table's layout in the database.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The table as declared.
    pub(crate) def: &'static TableDef,
    /// The database schema, not quoted.
    pub schema: String,
    /// The table's name in it, not quoted.
    pub name: String,
    /// The name of the queue's table; see [`Layout::queue_name`].
    queue: Option<String>,
    /// The columns of the key, in the order of its encoding.
    pub key: Vec<SqlColumn>,
    /// The columns of the row.
    pub row: Vec<SqlColumn>,
    /// The name of the column for the serial.
    pub serial: &'static str,
    /// The secondary indexes, in the order of their declaration.
    pub(crate) indexes: Vec<IndexLayout>,
    /// The number of partitions by `vshard`; 0 if the table is not divided.
    pub partitions: u16,
}

impl Layout {
    /// The layout of a table in `schema`, whose sharded tables have `partitions` partitions.
    ///
    /// # Errors
    /// If the table's definition cannot be expressed in the database, which is a programming error.
    pub fn new(def: &'static TableDef, schema: &str, partitions: u16) -> Result<Self, StoreError> {
        let fail = |what: String| StoreError::Backend(format!("table {}: {what}", def.name));
        if partitions > PARTITIONS_MAX {
            return Err(fail(format!("{partitions} partitions, more than {PARTITIONS_MAX}")));
        }
        let own_prefix = format!("{schema}_");
        let name = def.name.strip_prefix(&own_prefix).unwrap_or(def.name).to_owned();
        let key: Vec<SqlColumn> =
            def.key_columns.iter().flat_map(|column| sql_columns(column, column.name)).collect();
        let row: Vec<SqlColumn> =
            def.row_columns.iter().flat_map(|column| sql_columns(column, &row_name(def, column))).collect();
        if let Some(column) = key.iter().find(|column| column.nullable) {
            return Err(fail(format!("key column {} may be absent", column.name)));
        }
        let taken = key.iter().chain(&row).any(|column| column.name == "serial");
        let serial = if taken { "record_serial" } else { "serial" };
        let indexes = def
            .indexes
            .iter()
            .map(|index| {
                let form = match index.kind {
                    IndexKind::Prefix { key_bytes } => {
                        let columns = columns_within(def, key_bytes)
                            .ok_or_else(|| fail(format!("index {} ends within a column", index.name)))?;
                        if key_bytes >= def.shard_bytes {
                            IndexForm::PrimaryKey { columns }
                        } else {
                            IndexForm::KeyPrefix { columns }
                        }
                    }
                    IndexKind::Hash if index.many => IndexForm::HashMany,
                    IndexKind::Hash => IndexForm::Hash,
                    IndexKind::Ordered | IndexKind::Serial if def.queue.contains(&index.id) => {
                        IndexForm::Queue
                    }
                    IndexKind::Ordered | IndexKind::Serial => IndexForm::Position,
                };
                let has_column = !matches!(form, IndexForm::PrimaryKey { .. } | IndexForm::KeyPrefix { .. });
                let column = has_column.then(|| format!("ix_{}", index.name));
                Ok(IndexLayout { def: index, form, column })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        let partitions = if def.is_sharded() { partitions } else { 0 };
        let queue = (!def.queue.is_empty()).then(|| format!("{name}_open"));
        let layout =
            Self { def, schema: schema.to_owned(), name, queue, key, row, serial, indexes, partitions };
        let mut names: Vec<String> = layout.columns().into_iter().map(|column| column.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(fail(format!("two columns {}", pair[0])));
        }
        Ok(layout)
    }

    /// The table's name in statements: `"exchange"."coins"`.
    #[must_use]
    pub fn table(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// All columns of the table: shard, key, row, serial, version, and those of the indexes that it contains.
    #[must_use]
    pub(crate) fn columns(&self) -> Vec<SqlColumn> {
        let column = |name: &str, sql, nullable| SqlColumn { name: name.to_owned(), sql, nullable };
        let mut columns = vec![column("vshard", SqlType::Int2, false)];
        columns.extend(self.key.iter().cloned());
        columns.extend(self.row.iter().cloned());
        columns.push(column(self.serial, SqlType::Int8, false));
        columns.push(column("version", SqlType::Int4, false));
        columns.extend(self.indexes.iter().filter_map(|index| {
            let sql = match index.form {
                // This is an array: in DDL, it is `bigint[]`.
                IndexForm::Hash | IndexForm::HashMany => SqlType::Int8,
                IndexForm::Position => SqlType::Bytea,
                IndexForm::PrimaryKey { .. } | IndexForm::KeyPrefix { .. } | IndexForm::Queue => return None,
            };
            Some(column(index.column.as_deref()?, sql, true))
        }));
        columns
    }

    /// The name of the queue's table, not quoted, if the table has a queue. Its columns are: `due bigint`
    /// (the time with which the first index's value starts, at most 2^63 - 1, which is also used if there is
    /// none), `ix_NAME bytea` for each of its indexes (NULL if the row is not in it), `vshard`, the key,
    /// `serial`. It is partitioned by `due`.
    #[must_use]
    pub fn queue_name(&self) -> Option<String> {
        self.queue.clone()
    }

    /// The layout of a shard of the table, whose tables have these names; `None` if one has no name.
    pub(crate) fn at_shard(&self, names: &BTreeMap<String, String>) -> Option<Self> {
        let queue = match &self.queue {
            Some(queue) => Some(names.get(queue)?.clone()),
            None => None,
        };
        Some(Self { name: names.get(&self.name)?.clone(), queue, ..self.clone() })
    }

    /// The queue's table in statements.
    #[must_use]
    pub(crate) fn queue_table(&self) -> Option<String> {
        self.queue_name().map(|name| format!("{}.{}", quoted(&self.schema), quoted(&name)))
    }

    /// The queue's indexes, in the order of [`TableDef::queue`].
    pub(crate) fn queue_indexes(&self) -> impl Iterator<Item = &IndexLayout> {
        self.def.queue.iter().map(|id| self.index_layout(*id))
    }

    /// An index by its number.
    ///
    /// # Panics
    /// If the table does not declare it, which is a programming error.
    #[must_use]
    pub(crate) fn index_layout(&self, id: u8) -> &IndexLayout {
        let found = self.indexes.iter().find(|index| index.def.id == id);
        found.unwrap_or_else(|| panic!("table {} has no index {id}", self.def.name))
    }

    /// The name of a partition, not quoted: `coins_p07`.
    #[must_use]
    pub fn partition_name(&self, number: u16) -> String {
        format!("{}_p{number:02}", self.name)
    }

    /// Splits rows, in the order of these shards, into pieces, one per statement, at the lowest cost to the
    /// server. Each statement has a cost, and so has each row for each partition within the bounds of its
    /// statement; both were measured, see docs/internals/lab/2026-11-21-postgresql.md. Pieces are not empty
    /// and end with a partition.
    #[must_use]
    pub(crate) fn pieces(&self, vshards: &[u16]) -> Vec<Range<usize>> {
        /// One more statement costs as much as visiting this many partitions that do not contain the row.
        const STATEMENT_VISITS: usize = 300;
        let partitions = usize::from(self.partitions.max(1));
        let wanted = (vshards.len() * partitions / STATEMENT_VISITS).isqrt().clamp(1, partitions);
        let piece = |vshard: u16| usize::from(vshard) * wanted / usize::from(VSHARD_COUNT);
        let mut at = 0;
        let pieces = vshards.chunk_by(|a, b| piece(*a) == piece(*b));
        pieces.map(|same| (at..at + same.len(), at += same.len()).0).collect()
    }

    /// The bounds of a partition's virtual shards: the first is included, the second excluded.
    #[must_use]
    pub(crate) fn partition_bounds(&self, number: u16) -> (u16, u16) {
        let bound = |n: u16| {
            let scaled = u32::from(n) * u32::from(VSHARD_COUNT) / u32::from(self.partitions.max(1));
            u16::try_from(scaled).expect("at most the number of shards")
        };
        (bound(number), bound(number + 1))
    }
}

/// A name as it is written in statements.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The name of a row's column in the database: its own, or `row_NAME` if the key has a column of that name.
#[must_use]
pub fn row_name(def: &TableDef, column: &ColumnDef) -> String {
    let is_taken = def.key_columns.iter().any(|key| key.name == column.name);
    if is_taken { format!("row_{}", column.name) } else { column.name.to_owned() }
}

/// The database columns of a record's column, which has this name in the database.
fn sql_columns(def: &ColumnDef, name: &str) -> Vec<SqlColumn> {
    let nullable = def.column.nullable;
    let column = |name: String, sql| SqlColumn { name, sql, nullable };
    let one = |sql| vec![column(name.to_owned(), sql)];
    match def.column.kind {
        ColumnKind::U8 => one(SqlType::Int2),
        ColumnKind::U16 => one(SqlType::Int4),
        ColumnKind::U32 | ColumnKind::U64 | ColumnKind::I64 | ColumnKind::Timestamp => one(SqlType::Int8),
        ColumnKind::U128 | ColumnKind::Fixed(_) | ColumnKind::Bytes => one(SqlType::Bytea),
        ColumnKind::Bool => one(SqlType::Bool),
        ColumnKind::Text => one(SqlType::Text),
        ColumnKind::Amount => {
            vec![column(format!("{name}_val"), SqlType::Int8), column(format!("{name}_frac"), SqlType::Int4)]
        }
    }
}

/// Number of database columns that the first `bytes` of the key fill; none if they end within a column.
fn columns_within(def: &TableDef, bytes: usize) -> Option<usize> {
    let (mut left, mut columns) = (bytes, 0);
    for column in def.key_columns {
        if left == 0 {
            break;
        }
        left = left.checked_sub(column.column.fixed_bytes()?)?;
        columns += sql_columns(column, column.name).len();
    }
    (left == 0).then_some(columns)
}

#[cfg(test)]
mod tests {
    use batzen_store::Table;
    use batzen_store::conformance::{Items, Marks};
    use batzen_tables::exchange::{Deposits, Refunds};

    use super::*;

    fn layout(def: &'static TableDef, partitions: u16) -> Layout {
        Layout::new(def, "exchange", partitions).expect("the table has a layout")
    }

    #[test]
    fn columns_follow_the_record() {
        let deposits = layout(Deposits::DEF, 4);
        let columns: Vec<String> = deposits.columns().into_iter().map(|column| column.name).collect();
        assert_eq!(columns[..4], ["vshard", "coin_pub", "merchant_pub", "h_contract_terms"]);
        assert!(columns.iter().any(|name| name == "amount_val"));
        assert_eq!(columns[columns.len() - 3..], ["serial", "version", "ix_by_wtid"]);
        assert_eq!(deposits.queue_name().as_deref(), Some("deposits_open"));
        assert_eq!(deposits.table(), r#""exchange"."deposits""#);
    }

    #[test]
    fn prefixes_use_the_primary_key_where_it_begins_with_them() {
        let refunds = layout(Refunds::DEF, 0);
        assert_eq!(refunds.indexes[0].form, IndexForm::PrimaryKey { columns: 1 });
        assert_eq!(refunds.indexes[1].form, IndexForm::PrimaryKey { columns: 3 });
        let items = layout(Items::DEF, 0);
        assert_eq!(items.index_layout(Items::BY_TAG).form, IndexForm::HashMany);
        assert_eq!(items.index_layout(Items::QUEUE).form, IndexForm::Position);
    }

    #[test]
    fn partitions_cover_every_shard_once() {
        for partitions in [1, 2, 3, 4, 8, 16, 32, 64] {
            let items = layout(Items::DEF, partitions);
            let mut next = 0;
            for number in 0..partitions {
                let (from, to) = items.partition_bounds(number);
                assert!(from == next && to > from);
                next = to;
            }
            assert_eq!(next, VSHARD_COUNT);
        }
        assert_eq!(layout(Marks::DEF, 64).partitions, 0, "only sharded tables are divided");
        assert!(Layout::new(Items::DEF, "exchange", 65).is_err());
    }

    #[test]
    fn pieces_hold_every_row_once_in_order_and_few_rows_stay_together() {
        let shards = |count: u16| -> Vec<u16> {
            (0..u32::from(count)).map(|n| (n * 1023 / u32::from(count)).try_into().unwrap()).collect()
        };
        for partitions in [0, 1, 7, 64] {
            let items = layout(Items::DEF, partitions);
            for count in [0, 1, 7, 500, 1000] {
                let shards = shards(count);
                let pieces = items.pieces(&shards);
                let mut next = 0;
                for piece in &pieces {
                    assert!(piece.start == next && piece.end > next, "{pieces:?}");
                    next = piece.end;
                }
                assert_eq!(next, shards.len());
                assert!(pieces.len() <= usize::from(partitions.max(1)));
            }
        }
        let items = layout(Items::DEF, 64);
        assert_eq!(items.pieces(&shards(7)).len(), 1);
        assert_eq!(items.pieces(&shards(500)).len(), 10);
        assert_eq!(layout(Items::DEF, 0).pieces(&shards(500)).len(), 1);
    }
}
