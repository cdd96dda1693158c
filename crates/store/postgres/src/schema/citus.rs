//! Citus: hot tables are distributed by their virtual shard and co-located; the rest are copied to every
//! node.

use batzen_store::VSHARD_COUNT;

use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;
use crate::layout::{Layout, quoted};

/// The table of the clocks: the number of the last commit in each shard, in the row of the shard's first virtual shard, and
/// of the last commit in tables that are on every node, in the row [`EVERYWHERE`].
pub(crate) const CLOCKS: &str = "shard_clocks";

/// The table of the writers that commit straight at a shard, which is distributed with all others.
pub(crate) const WRITERS: &str = "shard_writers";

/// The row, and the place, of what is on every node.
pub(crate) const EVERYWHERE: u16 = VSHARD_COUNT;

/// A serial is the number of a commit, the row's place among the commit's new rows, and the place of its shard. A commit
/// moves the clocks of its shards and keeps them locked until it ends. So the rows of a shard appear in the order of their
/// serials, whichever way they came.
pub(crate) const ROW_BITS: u32 = 14;
pub(crate) const PLACE_BITS: u32 = 8;
pub(crate) const CLOCK_SHIFT: u32 = ROW_BITS + PLACE_BITS;

/// Placement of a table in a Citus cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Distributed by this column; tables distributed by the same column are co-located.
    Distributed(&'static str),
    /// A copy on every node.
    Reference,
}

/// Where each table of a schema belongs. A commit in one shard touches its node alone: its writer has a row in
/// `shard_writers`. Other commits also touch the node of their row in `writers`.
#[must_use]
pub fn placements(layouts: &[Layout]) -> Vec<(String, Placement)> {
    let mut placements = vec![
        ("meta".to_owned(), Placement::Reference),
        ("writers".to_owned(), Placement::Distributed("writer_id")),
        (WRITERS.to_owned(), Placement::Distributed("vshard")),
        (CLOCKS.to_owned(), Placement::Distributed("vshard")),
    ];
    for layout in layouts {
        let placement =
            if layout.def.is_sharded() { Placement::Distributed("vshard") } else { Placement::Reference };
        placements.push((layout.name.clone(), placement));
        placements.extend(layout.queue_name().map(|name| (name, placement)));
    }
    placements
}

/// The statement that distributes a table, given the first table that was distributed by the same column.
#[must_use]
pub fn place_table(schema: &str, table: &str, placement: Placement, beside: Option<&str>) -> String {
    let name = |table: &str| literal(&format!("{}.{}", quoted(schema), quoted(table)));
    match placement {
        Placement::Reference => format!("SELECT create_reference_table({})", name(table)),
        Placement::Distributed(column) => format!(
            "SELECT create_distributed_table({}, {}, colocate_with => {})",
            name(table),
            literal(column),
            beside.map_or_else(|| "'none'".to_owned(), name)
        ),
    }
}

/// The oldest supported version of the extension, which is the oldest that was tested.
const OLDEST_CITUS: (i64, i64) = (13, 2);

/// Number of shards that each worker gets if nobody says.
const SHARDS_PER_WORKER: i64 = 2;

/// Checks that tables can be distributed, and returns the number of nodes that take shards.
fn check_cluster(sql: &mut dyn Sql) -> Result<i64, SchemaError> {
    let refused = |text: String| Err(SchemaError::Refused(text));
    let Some(row) = sql.row("SELECT extversion FROM pg_extension WHERE extname = 'citus'")? else {
        return refused(
            "the database has no Citus: install it, and type `CREATE EXTENSION citus` in the database".into(),
        );
    };
    let version = row.text(0);
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST_CITUS {
        return refused(format!(
            "Citus {version} is older than the tested version, 13.2: install that on all nodes, and type `ALTER EXTENSION \
             citus UPDATE` in the database on each"
        ));
    }
    let nodes = sql.row(
        "SELECT count(*) FILTER (WHERE shouldhaveshards), count(*) FILTER (WHERE NOT (hasmetadata AND metadatasynced)) \
         FROM pg_dist_node WHERE noderole = 'primary' AND isactive",
    )?;
    let (workers, unsynced) = nodes.map_or((0, 0), |row| (row.number(0), row.number(1)));
    if workers == 0 {
        return refused(
            "the Citus cluster has no workers: add each with `SELECT citus_add_node('host', 5432)`".into(),
        );
    }
    if unsynced > 0 {
        return refused(format!(
            "{unsynced} nodes of the Citus cluster lack its metadata: type `SELECT start_metadata_sync_to_all_nodes()`"
        ));
    }
    let prepared = sql.row("SHOW max_prepared_transactions")?;
    if prepared.is_some_and(|row| row.number(0) == 0) {
        return refused(
            "max_prepared_transactions is 0: set it to max_connections on all nodes, and restart them".into(),
        );
    }
    Ok(workers)
}

/// Distributes the tables that are not distributed yet.
pub(crate) fn distribute(
    sql: &mut dyn Sql,
    schema: &str,
    layouts: &[Layout],
    shards: Option<u16>,
) -> Result<Vec<String>, SchemaError> {
    let workers = check_cluster(sql)?;
    let shards = shards.map_or(workers * SHARDS_PER_WORKER, i64::from);
    let rows = sql.rows(&format!(
        "SELECT c.relname FROM pg_dist_partition d JOIN pg_class c ON c.oid = d.logicalrelid
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {}",
        literal(schema)
    ))?;
    sql.script(&format!(
        "CREATE TABLE IF NOT EXISTS {}.{WRITERS} (vshard smallint, writer_id bigint, epoch bigint NOT NULL, batch bigint NOT NULL,
           node text NOT NULL, seen timestamp with time zone NOT NULL, PRIMARY KEY (vshard, writer_id))",
        quoted(schema)
    ))?;
    sql.script(&format!(
        "CREATE TABLE IF NOT EXISTS {}.{CLOCKS} (vshard smallint PRIMARY KEY, number bigint NOT NULL)",
        quoted(schema)
    ))?;
    let placements = placements(layouts);
    let mut done = Vec::new();
    for (table, placement) in &placements {
        if rows.iter().any(|row| row.text(0) == table) {
            continue;
        }
        let first = placements.iter().find(|(_, other)| other == placement).map(|(first, _)| first.as_str());
        let beside = first.filter(|first| first != table);
        // As statements of one session: the number counts for the tables that come first.
        sql.script(&format!("SET citus.shard_count = {shards}"))?;
        sql.script(&place_table(schema, table, *placement, beside))?;
        done.push(match placement {
            Placement::Distributed(column) => format!("distribute {table} by {column}"),
            Placement::Reference => format!("copy {table} to every node"),
        });
    }
    // Ahead of the serials of rows that are there already. Only if one is missing: each commit holds the row of its clock.
    let clocks = sql.row(&format!("SELECT count(*) FROM {}.{CLOCKS}", quoted(schema)))?;
    if clocks.is_none_or(|row| row.number(0) <= i64::from(EVERYWHERE)) {
        sql.script(&format!(
            "INSERT INTO {}.{CLOCKS} SELECT v, start FROM generate_series(0, {}) v, (SELECT (pg_current_xact_id()::text::bigint >> {}) + 1
               AS start) x ON CONFLICT DO NOTHING",
            quoted(schema),
            EVERYWHERE,
            CLOCK_SHIFT - 16
        ))?;
    }
    Ok(done)
}
