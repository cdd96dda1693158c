//! Where virtual shards are: the shard of Citus that holds each, and the node that holds that shard.

use std::collections::BTreeMap;

use batzen_store::VSHARD_COUNT;

use crate::PgError;
use crate::client::Connection;
use crate::schema::shape::literal;

/// A shard of Citus: a range of hashes of `vshard`, in all co-located tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Its id in the table that was read. Co-located tables have other ids.
    pub(crate) id: i64,
    /// The group of the node that holds it.
    pub(crate) group: i32,
    /// The node's host, as the coordinator reaches it.
    pub(crate) host: String,
    /// The node's port.
    pub(crate) port: u16,
    /// A virtual shard that it holds.
    pub(crate) vshard: u16,
    /// The names of its tables on the node, by the names of the distributed ones; with those tables that are on
    /// every node.
    pub(crate) tables: BTreeMap<String, String>,
}

/// The shard of every virtual shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    shards: Vec<Shard>,
    /// The place in `shards` of each virtual shard.
    of: Vec<u16>,
    /// The groups of the nodes that have shards, in ascending order.
    groups: Vec<i32>,
}

impl Placement {
    /// Reads it in two queries. `table` is a table of the schema that is distributed by `vshard`, in quotes.
    ///
    /// # Errors
    /// The server's error.
    pub(crate) fn read(connection: &mut Connection, schema: &str, table: &str) -> Result<Self, PgError> {
        let table = literal(table);
        let rows = connection.query_text(&format!(
            "SELECT s.id, p.groupid, n.nodename, n.nodeport, v.vshard FROM generate_series(0, {}) AS v(vshard)
             CROSS JOIN LATERAL (SELECT get_shard_id_for_distribution_column({table}::regclass, v.vshard::smallint) AS id) s
             JOIN pg_dist_placement p ON p.shardid = s.id JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
             ORDER BY v.vshard",
            VSHARD_COUNT - 1
        ))?;
        let shard = |row: &Vec<Option<String>>| {
            let text = |at: usize| row.get(at)?.as_deref();
            Some(Shard {
                id: text(0)?.parse().ok()?,
                group: text(1)?.parse().ok()?,
                host: text(2)?.to_owned(),
                port: text(3)?.parse().ok()?,
                vshard: text(4)?.parse().ok()?,
                tables: BTreeMap::new(),
            })
        };
        let found: Option<Vec<Shard>> = rows.iter().map(shard).collect();
        let found = found.filter(|found| found.len() == usize::from(VSHARD_COUNT));
        let mut placement =
            Self::of(found.ok_or_else(|| PgError::protocol("a virtual shard without a place"))?);
        // Co-located shards have the same range of hashes; tables on every node have none.
        let rows = connection.query_text(&format!(
            "SELECT c.relname, s.shardid, o.shardid FROM pg_dist_shard s JOIN pg_dist_partition d USING (logicalrelid)
             JOIN pg_class c ON c.oid = s.logicalrelid JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {}
             LEFT JOIN pg_dist_shard o ON o.logicalrelid = {table}::regclass AND o.shardminvalue = s.shardminvalue
             WHERE s.shardminvalue IS NULL
             OR d.colocationid = (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = {table}::regclass)",
            literal(schema)
        ))?;
        for row in &rows {
            let [Some(table), Some(id), beside] = row.as_slice() else {
                return Err(PgError::protocol("a shard without a name"));
            };
            let name = format!("{table}_{id}");
            for shard in &mut placement.shards {
                // PostgreSQL would cut a longer name.
                let is_here = beside.as_ref().is_none_or(|beside| *beside == shard.id.to_string());
                if is_here && name.len() < 64 {
                    shard.tables.insert(table.clone(), name.clone());
                }
            }
        }
        Ok(placement)
    }

    /// From the shard of each virtual shard.
    fn of(found: Vec<Shard>) -> Self {
        let mut places = BTreeMap::new();
        let mut placement = Self::default();
        for shard in found {
            let next = u16::try_from(placement.shards.len()).expect("at most one for each virtual shard");
            let place = *places.entry(shard.id).or_insert(next);
            if place == next {
                placement.shards.push(shard);
            }
            placement.of.push(place);
        }
        placement.groups = placement.shards.iter().map(|shard| shard.group).collect();
        placement.groups.sort_unstable();
        placement.groups.dedup();
        placement
    }

    /// The shards, in no particular order.
    #[must_use]
    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The groups of the nodes that have shards, in ascending order.
    #[must_use]
    pub(crate) fn groups(&self) -> &[i32] {
        &self.groups
    }

    /// The place in [`Placement::shards`] of the shard that holds a virtual shard. If nothing is known, all are
    /// in one.
    #[must_use]
    pub(crate) fn place(&self, vshard: u16) -> u16 {
        self.of.get(usize::from(vshard)).copied().unwrap_or(0)
    }

    /// The shard that holds a virtual shard.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn shard(&self, vshard: u16) -> Option<&Shard> {
        self.shards.get(usize::from(self.place(vshard)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_virtual_shard_has_the_shard_that_was_read() {
        let shard = |id: i64| Shard {
            id,
            group: i32::try_from(id % 2).unwrap_or(0),
            host: "h".into(),
            port: 1,
            vshard: 0,
            tables: BTreeMap::new(),
        };
        let found: Vec<Shard> = (0..i64::from(VSHARD_COUNT)).map(|n| shard(100 + n * 7 % 4)).collect();
        let placement = Placement::of(found.clone());
        assert_eq!(placement.shards().len(), 4);
        assert_eq!(placement.groups(), [0, 1]);
        for (vshard, shard) in (0..VSHARD_COUNT).zip(&found) {
            assert_eq!(placement.shard(vshard), Some(shard));
        }
        assert_eq!(Placement::default().place(1023), 0);
    }
}
