//! Citus: hot tables are distributed by their virtual shard and co-located; the rest are copied to every
//! node.

use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;
use crate::layout::{Layout, quoted};

/// How a table is placed in a Citus cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Distributed by this column; tables distributed by the same column are co-located.
    Distributed(&'static str),
    /// A copy on every node.
    Reference,
}

/// Where each table of a schema belongs. A commit touches the node of its lane's shards and, for its row in
/// `writers`, the node of the writer's id; a lane chooses an id on the same node.
#[must_use]
pub fn placements(layouts: &[Layout]) -> Vec<(String, Placement)> {
    let mut placements = vec![
        ("meta".to_owned(), Placement::Reference),
        ("writers".to_owned(), Placement::Distributed("writer_id")),
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

/// Distributes the tables that are not distributed yet.
pub(crate) fn distribute(
    sql: &mut dyn Sql,
    schema: &str,
    layouts: &[Layout],
) -> Result<Vec<String>, SchemaError> {
    if sql.row("SELECT 1 FROM pg_extension WHERE extname = 'citus'")?.is_none() {
        return Err(SchemaError::Refused(
            "the database has no Citus: install it, and type `CREATE EXTENSION citus` in the database"
                .to_owned(),
        ));
    }
    let rows = sql.rows(&format!(
        "SELECT c.relname FROM pg_dist_partition d JOIN pg_class c ON c.oid = d.logicalrelid
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {}",
        literal(schema)
    ))?;
    let placements = placements(layouts);
    let mut done = Vec::new();
    for (table, placement) in &placements {
        if rows.iter().any(|row| row.text(0) == table) {
            continue;
        }
        let first = placements.iter().find(|(_, other)| other == placement).map(|(first, _)| first.as_str());
        let beside = first.filter(|first| first != table);
        sql.script(&place_table(schema, table, *placement, beside))?;
        done.push(match placement {
            Placement::Distributed(column) => format!("distribute {table} by {column}"),
            Placement::Reference => format!("copy {table} to every node"),
        });
    }
    Ok(done)
}
