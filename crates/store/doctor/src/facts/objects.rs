//! Tables and indexes with their statistics.

use serde::{Deserialize, Serialize};

use super::look::Look;

/// Number of tables and indexes that are read, largest first.
const MOST_OBJECTS: usize = 10_000;

/// A table, a partition, or a materialised view.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    pub(crate) schema: String,
    /// Its name.
    pub name: String,
    /// Its partitioned table, if it is a partition.
    pub(crate) root: Option<String>,
    /// Bytes without indexes.
    pub(crate) bytes: u64,
    /// Rows by the statistics.
    pub(crate) live: u64,
    /// Dead rows that have not been removed.
    pub(crate) dead: u64,
    /// Rows changed since the planner's statistics were last gathered.
    pub(crate) changed: u64,
    /// Rows by the planner's statistics; negative: never gathered.
    pub(crate) planned: f64,
    /// Reads of the whole table.
    pub(crate) seq_scans: u64,
    pub(crate) seq_rows: u64,
    /// Reads through an index.
    pub(crate) index_scans: u64,
    /// Rows inserted.
    pub(crate) inserted: u64,
    /// Rows updated.
    pub(crate) updated: u64,
    /// Of these, without touching an index.
    pub(crate) hot_updated: u64,
    /// Rows deleted.
    pub(crate) deleted: u64,
    /// Pages of the table found in `shared_buffers`.
    pub(crate) heap_hit: u64,
    /// Pages of the table asked from the operating system.
    pub(crate) heap_read: u64,
    /// Pages of its indexes found in `shared_buffers`.
    pub(crate) index_hit: u64,
    /// Pages of its indexes asked from the operating system.
    pub(crate) index_read: u64,
    /// Seconds since the last vacuum or autovacuum; `None`: never.
    pub(crate) vacuum_age: Option<f64>,
    /// Seconds since the planner's statistics were last gathered; `None`: never.
    pub(crate) analyze_age: Option<f64>,
    /// Whether a vacuum is running on it.
    pub(crate) is_vacuuming: bool,
    /// The age in transactions of its oldest unfrozen row.
    pub(crate) xid_age: u64,
    /// `autovacuum_enabled=false` and other options of its own: `name=value`.
    pub(crate) options: Vec<String>,
}

impl Table {
    /// Its name with the schema, quoted for SQL.
    pub(crate) fn sql(&self) -> String {
        format!("{}.{}", crate::words::identifier(&self.schema), crate::words::identifier(&self.name))
    }

    /// A storage option of the table.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns whether autovacuum is switched off for it.
    pub(crate) fn has_autovacuum_off(&self) -> bool {
        matches!(self.option("autovacuum_enabled"), Some("false" | "off" | "no" | "0"))
    }
}

/// An index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Index {
    pub(crate) schema: String,
    pub(crate) table: String,
    /// Its name.
    pub name: String,
    /// Its partitioned index, if it belongs to a partition.
    pub(crate) root: Option<String>,
    pub(crate) bytes: u64,
    /// Times it was used.
    pub(crate) scans: u64,
    /// Its pages found in `shared_buffers`.
    pub(crate) hit: u64,
    /// Its pages asked from the operating system.
    pub(crate) read: u64,
    /// Whether it forbids duplicates.
    pub(crate) is_unique: bool,
    /// Whether a constraint (primary key, unique, exclusion) or replica identity needs it.
    pub(crate) is_needed: bool,
    /// Whether it is valid: false after a failed `CREATE INDEX CONCURRENTLY`.
    pub(crate) is_valid: bool,
    /// `btree`, `gin`, …
    pub(crate) method: String,
    /// One text for each of its columns: column, operator class, collation, order.
    pub(crate) columns: Vec<String>,
    /// Expressions and condition. They cannot be read while the table is locked, and then equal no other
    /// index's.
    pub(crate) rest: String,
    /// Included columns.
    pub(crate) included: String,
    pub(crate) definition: String,
}

impl Index {
    /// Its name with the schema, quoted for SQL.
    pub(crate) fn sql(&self) -> String {
        format!("{}.{}", crate::words::identifier(&self.schema), crate::words::identifier(&self.name))
    }
}

/// Reads the tables of the connected database.
///
/// The size of an exclusively locked table is taken from the planner's statistics, so that the doctor does
/// not wait for locks.
pub(crate) fn tables(look: &Look) -> Vec<Table> {
    let query = format!(
        "SELECT s.schemaname::text AS schema, s.relname::text AS name,
            CASE WHEN c.relispartition THEN (SELECT r.relname FROM pg_class r WHERE r.oid = pg_partition_root(c.oid)) END::text AS root,
            CASE WHEN l.relation IS NULL THEN pg_relation_size(c.oid)
                ELSE c.relpages::bigint * current_setting('block_size')::bigint END AS bytes,
            s.n_live_tup AS live, s.n_dead_tup AS dead, s.n_mod_since_analyze AS changed, c.reltuples::float8 AS planned,
            coalesce(s.seq_scan, 0) AS seq_scans, coalesce(s.seq_tup_read, 0) AS seq_rows,
            coalesce(s.idx_scan, 0) AS index_scans,
            s.n_tup_ins AS inserted, s.n_tup_upd AS updated, s.n_tup_hot_upd AS hot_updated, s.n_tup_del AS deleted,
            coalesce(i.heap_blks_hit, 0) AS heap_hit, coalesce(i.heap_blks_read, 0) AS heap_read,
            coalesce(i.idx_blks_hit, 0) AS index_hit, coalesce(i.idx_blks_read, 0) AS index_read,
            extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8 AS vacuum_age,
            extract(epoch FROM clock_timestamp() - greatest(s.last_analyze, s.last_autoanalyze))::float8 AS analyze_age,
            EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.relid = c.oid AND v.datname = current_database()) AS is_vacuuming,
            CASE WHEN c.relfrozenxid = '0' THEN 0 ELSE age(c.relfrozenxid) END::bigint AS xid_age,
            to_json(coalesce(c.reloptions, '{{}}')) AS options
        FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
            LEFT JOIN pg_statio_user_tables i ON i.relid = s.relid
            LEFT JOIN (SELECT DISTINCT relation FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) l ON l.relation = c.oid
        WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't' ORDER BY c.relpages DESC, c.oid LIMIT {MOST_OBJECTS}"
    );
    let mut tables: Vec<Table> = look.probe("the tables", &query);
    if tables.len() == MOST_OBJECTS {
        look.gap("all tables", format!("only the {MOST_OBJECTS} largest were looked at"), None);
    }
    tables.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    tables
}

/// Reads the indexes of the connected database.
pub(crate) fn indexes(look: &Look) -> Vec<Index> {
    let query = format!(
        "SELECT s.schemaname::text AS schema, s.relname::text AS table, s.indexrelname::text AS name,
            CASE WHEN c.relispartition THEN (SELECT r.relname FROM pg_class r WHERE r.oid = pg_partition_root(c.oid)) END::text AS root,
            CASE WHEN l.relation IS NULL THEN pg_relation_size(c.oid)
                ELSE c.relpages::bigint * current_setting('block_size')::bigint END AS bytes,
            coalesce(s.idx_scan, 0) AS scans, coalesce(o.idx_blks_hit, 0) AS hit, coalesce(o.idx_blks_read, 0) AS read,
            x.indisunique AS is_unique, x.indisvalid AS is_valid,
            x.indisprimary OR x.indisexclusion OR x.indisreplident OR x.indisclustered
                OR EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = x.indexrelid) AS is_needed,
            m.amname::text AS method,
            (SELECT coalesce(json_agg(concat_ws('/', x.indkey[n], x.indclass[n], x.indcollation[n], x.indoption[n]) ORDER BY n), '[]'::json)
                FROM generate_series(0, x.indnkeyatts - 1) AS n) AS columns,
            CASE WHEN l.relation IS NULL
                THEN concat_ws(' ', pg_get_expr(x.indexprs, x.indrelid), 'WHERE ' || pg_get_expr(x.indpred, x.indrelid))
                ELSE 'locked ' || c.oid END AS rest,
            (SELECT coalesce(string_agg(x.indkey[n]::text, ' ' ORDER BY n), '')
                FROM generate_series(x.indnkeyatts, x.indnatts - 1) AS n) AS included,
            CASE WHEN l.relation IS NULL THEN pg_get_indexdef(x.indexrelid) ELSE '' END AS definition
        FROM pg_stat_user_indexes s JOIN pg_index x ON x.indexrelid = s.indexrelid
            JOIN pg_class c ON c.oid = s.indexrelid JOIN pg_am m ON m.oid = c.relam
            LEFT JOIN pg_statio_user_indexes o ON o.indexrelid = s.indexrelid
            LEFT JOIN (SELECT DISTINCT relation FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) l
                ON l.relation IN (c.oid, x.indrelid)
        WHERE c.relpersistence <> 't' ORDER BY c.relpages DESC, c.oid LIMIT {MOST_OBJECTS}"
    );
    look.probe("the indexes", &query)
}
