//! One moment of all nodes.
//!
//! A commit over several nodes becomes visible on each of them at another time. Every commit holds the fence until then: a
//! lock on the coordinator if it goes through it, otherwise on each of its nodes, where a part that is prepared
//! keeps it. If the coordinator loses a node, the part stays prepared there until Citus recovers it.

use batzen_store::VSHARD_COUNT;

use crate::citus::Citus;
use crate::client::Connection;
use crate::layout::quoted;
use crate::schema::citus::CLOCKS;
use crate::schema::shape::literal;
use crate::{PgError, Target};

/// The names of the transactions that are prepared on the nodes.
fn gids(connection: &mut Connection) -> Result<Vec<String>, PgError> {
    let rows = connection.query_text(
        "SELECT success::text, result FROM run_command_on_workers($$SELECT coalesce(string_agg(gid, ' '), '') FROM \
         pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'citus\\_%'$$)",
    )?;
    let mut gids = Vec::new();
    for row in rows {
        let [Some(success), Some(result)] = row.as_slice() else {
            return Err(PgError::protocol("prepared transactions: unexpected answer"));
        };
        if success != "true" {
            return Err(PgError::io("ask a node", std::io::Error::other(result.clone())));
        }
        gids.extend(result.split_whitespace().map(str::to_owned));
    }
    Ok(gids)
}

impl<W> Citus<W> {
    /// Takes the snapshots of all nodes at a moment at which no commit is under way. Runs in a transaction at
    /// isolation level repeatable read, which keeps them. `fence` is another session, which holds the fence
    /// meanwhile.
    pub(crate) fn take_snapshots(
        &self,
        coordinator: &Target,
        fence: &mut Connection,
        snapshots: &mut Connection,
        writers: &str,
    ) -> Result<(), PgError> {
        let close =
            format!("BEGIN; SET LOCAL lock_timeout = '20s'; SELECT pg_advisory_xact_lock({})", self.fence);
        fence.script(&close)?;
        // Those that commit straight on a node hold the fence there. Whoever has the coordinator's is alone. The order is that in
        // which commits over several shards take them, so that nobody waits in a circle.
        let mut closed = Vec::new();
        if self.nodes().ways.iter().any(Option::is_some) {
            let nodes = fence.query_text(
                "SELECT nodename, nodeport FROM pg_dist_node WHERE groupid > 0 AND isactive ORDER BY groupid",
            )?;
            for node in &nodes {
                let [Some(host), Some(port)] = node.as_slice() else {
                    return Err(PgError::protocol("a node without an address"));
                };
                let port = port.parse().map_err(|_| PgError::protocol("a node without a port"))?;
                let mut connection = Connection::open(&coordinator.at(host, port))?;
                connection.script(&close)?;
                closed.push(connection);
            }
        } else {
            // This service need not reach the nodes: the coordinator takes the lock there, while it reads a clock.
            let clocks = format!("{}.{CLOCKS}", quoted(&self.schema));
            let nodes = fence.query_text(&format!(
                "SELECT min(v) FROM generate_series(0, {}) v JOIN pg_dist_placement p
                 ON p.shardid = get_shard_id_for_distribution_column({}, v::smallint) GROUP BY p.groupid ORDER BY p.groupid",
                VSHARD_COUNT - 1,
                literal(&clocks)
            ))?;
            for node in &nodes {
                let vshard = node.first().and_then(Option::as_ref);
                let vshard = vshard.ok_or_else(|| PgError::protocol("a node without a shard"))?;
                let lock = format!("pg_advisory_xact_lock({})", self.fence);
                fence.script(&format!("SELECT count({lock}::text) FROM {clocks} WHERE vshard = {vshard}"))?;
            }
        }
        if !gids(fence)?.is_empty() {
            fence.script("SELECT recover_prepared_transactions()")?;
            if !gids(fence)?.is_empty() {
                return Err(PgError::io("wait for a commit", std::io::ErrorKind::TimedOut.into()));
            }
        }
        // With one connection to each node, the statements that follow use the same ones. This one reads a shard
        // of every node.
        snapshots.script(&format!(
            "SET citus.max_adaptive_executor_pool_size = 1; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
             SELECT count(*) FROM {writers}"
        ))?;
        closed.iter_mut().try_for_each(|connection| connection.script("COMMIT"))?;
        fence.script("COMMIT")
    }
}
