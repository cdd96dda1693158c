//! The table `meta`, one row that describes the schema; and the check when a store is opened.

use super::catalog;
use super::error::SchemaError;
use super::plan::{History, column_differences};
use super::shape::{ColumnShape, Cut, Life, TableShape};
use super::sql::Sql;
use crate::layout::quoted;

/// The properties of a whole schema.
#[derive(Clone, PartialEq, Eq)]
pub struct Meta {
    /// Identifies the store.
    pub store_id: [u8; 16],
    /// The key of the virtual shards and of hash indexes.
    pub sip_key: [u8; 16],
    /// The number of partitions of hot tables; 0 if they are not partitioned.
    pub partitions: u16,
    /// The version of the schema.
    pub(crate) schema_version: i32,
    /// The version of the program that last migrated it.
    pub(crate) program: String,
    /// The number that is added to serials: see `bz_serial`.
    pub(crate) serial_base: i64,
    /// The cluster that the serials' transaction ids come from.
    pub(crate) cluster_id: i64,
    /// The currency of all amounts, if they have one.
    pub(crate) currency: Option<String>,
    /// Whether tables are distributed by Citus.
    pub citus: bool,
}

/// Not shown, because somebody who knows the key can direct load at one partition.
impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meta")
            .field("partitions", &self.partitions)
            .field("schema_version", &self.schema_version)
            .field("program", &self.program)
            .field("serial_base", &self.serial_base)
            .field("citus", &self.citus)
            .finish_non_exhaustive()
    }
}

fn column(name: &str, sql_type: &'static str) -> ColumnShape {
    ColumnShape { name: name.to_owned(), sql_type, nullable: false, generated: false }
}

/// The bits of a writer's epoch that count takeovers after a lost connection. The other bits are random and
/// constant: they distinguish the writer from a writer of an earlier schema.
pub const EPOCH_COUNT: i64 = (1 << 20) - 1;

/// The tables that every schema has besides its service's: `meta`, and `writers`, with one row per committing
/// connection.
#[must_use]
pub fn own_tables() -> [TableShape; 2] {
    let table = |name: &str, key: &[&str], columns: Vec<ColumnShape>| TableShape {
        name: name.to_owned(),
        key: key.iter().map(|&name| name.to_owned()).collect(),
        columns,
        indexes: Vec::new(),
        cut: Cut::Whole,
        life: Life::Busy,
    };
    let meta = vec![
        column("singleton", "boolean"),
        column("store_id", "bytea"),
        column("sip_key", "bytea"),
        column("partitions", "smallint"),
        column("schema_version", "integer"),
        column("program", "text"),
        column("serial_base", "bigint"),
        column("cluster_id", "bigint"),
        ColumnShape { nullable: true, ..column("currency", "text") },
        column("citus", "boolean"),
        column("created", "timestamp with time zone"),
    ];
    let writers = vec![
        ColumnShape { generated: true, ..column("writer_id", "bigint") },
        column("epoch", "bigint"),
        column("batch", "bigint"),
        column("node", "text"),
        column("seen", "timestamp with time zone"),
    ];
    [table("meta", &["singleton"], meta), table("writers", &["writer_id"], writers)]
}

/// Reads the row; `None` while the schema is incomplete.
///
/// # Errors
/// The server's error.
pub fn read_meta(sql: &mut dyn Sql, schema: &str) -> Result<Option<Meta>, SchemaError> {
    let text = format!(
        "SELECT encode(store_id, 'hex'), encode(sip_key, 'hex'), partitions, schema_version, program, serial_base,
           cluster_id, currency, citus FROM {}.meta",
        quoted(schema)
    );
    let Some(row) = sql.row(&text)? else { return Ok(None) };
    let sixteen = |at: usize| {
        sixteen_bytes(row.text(at)).ok_or_else(|| {
            SchemaError::Refused(format!("the table {schema}.meta is damaged: an id of another size"))
        })
    };
    Ok(Some(Meta {
        store_id: sixteen(0)?,
        sip_key: sixteen(1)?,
        partitions: u16::try_from(row.number(2)).unwrap_or(0),
        schema_version: i32::try_from(row.number(3)).unwrap_or(0),
        program: row.text(4).to_owned(),
        serial_base: row.number(5),
        cluster_id: row.number(6),
        currency: row.optional(7).map(str::to_owned),
        citus: row.is_true(8),
    }))
}

/// Parses hexadecimal digits.
fn sixteen_bytes(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| number.to_be_bytes())
}

/// The cluster's identifier. A dump that is restored elsewhere finds another one.
pub(crate) fn cluster_id(sql: &mut dyn Sql) -> Result<i64, SchemaError> {
    Ok(sql.row("SELECT system_identifier FROM pg_control_system()")?.map_or(0, |row| row.number(0)))
}

/// The key of a schema's advisory lock. Services hold it while they run: shared, or exclusively if they keep
/// state in memory. dbinit holds it exclusively.
#[must_use]
pub fn lock_key(schema: &str) -> i64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher24::new_with_key(b"batzen's schemas");
    hasher.write(schema.as_bytes());
    hasher.finish().cast_signed()
}

/// Checks that the schema fits the program, and reads `meta`.
///
/// # Errors
/// The reason why it does not fit, and the command that helps.
pub(crate) fn check(
    sql: &mut dyn Sql,
    schema: &str,
    wanted: &[TableShape],
    history: &History<'_>,
) -> Result<Meta, SchemaError> {
    let missing = || SchemaError::Missing { schema: schema.to_owned() };
    let present = catalog::read_columns(sql, schema)?;
    let Some(there) = present.get("meta") else { return Err(missing()) };
    if let Some(found) = schema_version(sql, schema, there)? {
        compare_versions(schema, found, history)?;
    }
    let mut differences = Vec::new();
    let mut unknown = false;
    for table in own_tables().iter().chain(wanted) {
        match present.get(&table.name) {
            None => differences.push(format!("table {} is missing", table.name)),
            Some(there) => {
                for difference in column_differences(table, there) {
                    unknown |= !difference.can_be_added;
                    differences.push(difference.what);
                }
            }
        }
    }
    if !differences.is_empty() {
        let hint = if unknown {
            "Use the program that made it".to_owned()
        } else {
            format!("Stop all services and type `batzen {schema} dbinit`")
        };
        return Err(SchemaError::Differs { schema: schema.to_owned(), differences, hint });
    }
    let meta = read_meta(sql, schema)?.ok_or_else(missing)?;
    if meta.cluster_id != cluster_id(sql)? {
        return Err(SchemaError::Moved { schema: schema.to_owned() });
    }
    Ok(meta)
}

/// The version of the schema, even if it is from another program version; `None` while the schema is
/// incomplete.
pub(crate) fn schema_version(
    sql: &mut dyn Sql,
    schema: &str,
    meta: &catalog::PresentTable,
) -> Result<Option<i32>, SchemaError> {
    if meta.column("schema_version").is_none() {
        return Err(SchemaError::Refused(format!("the table {schema}.meta is not Batzen's")));
    }
    let text = format!("SELECT schema_version FROM {}.meta", quoted(schema));
    Ok(sql.row(&text)?.map(|row| i32::try_from(row.number(0)).unwrap_or(i32::MAX)))
}

fn compare_versions(schema: &str, found: i32, history: &History<'_>) -> Result<(), SchemaError> {
    let (schema, known) = (schema.to_owned(), history.version);
    match found.cmp(&known) {
        std::cmp::Ordering::Greater => Err(SchemaError::Newer { schema, found, known }),
        std::cmp::Ordering::Less => Err(SchemaError::Older { schema, found, known }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}
