//! What is decided, and one moment of all nodes.
//!
//! A commit over several nodes becomes visible on each of them only after the coordinator has committed. A
//! commit holds the fence, a lock in the coordinator, from its first statement until every node has its rows;
//! if a node is lost then, its part stays prepared there until Citus recovers it.

use crate::PgError;
use crate::citus::Citus;
use crate::connection::Connection;
use crate::schema::shape::literal;

/// The numbers of the transactions that wait on a node to be recovered. Those that are still being committed
/// are missing, or are known anyway: ask for them first.
pub(crate) fn prepared(connection: &mut Connection) -> Result<Vec<i64>, PgError> {
    let waiting = gids(connection)?;
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = waiting.iter().map(|gid| literal(gid)).collect();
    // The coordinator inserts a row for each part in the transaction itself. No row: the transaction was rolled
    // back, so its rows will never exist.
    let rows = connection.query_text(&format!(
        "SELECT DISTINCT xmin::text FROM pg_dist_transaction WHERE gid IN ({})",
        list.join(", ")
    ))?;
    Ok(rows.iter().filter_map(|row| row.first()?.as_ref()?.parse().ok()).collect())
}

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

impl Citus {
    /// The statement that asks for the snapshot's oldest and next transaction, followed by each commit that is
    /// under way. A commit takes the fence before it gets a number, so only sessions with the fence count: others,
    /// such as the transfer of a shard, may take minutes. First come those that the coordinator has not ended,
    /// and then those that it has perhaps ended, but not yet all nodes: a commit moves from the first to the
    /// second.
    pub fn transactions(&self) -> String {
        let key = self.fence.cast_unsigned();
        let here = "l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        format!(
            "SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text FROM pg_current_snapshot() s \
             UNION ALL SELECT (a.query = '<insufficient privilege>')::text, a.backend_xid::text FROM pg_locks l \
             JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND \
             l.classid = {} AND l.objid = {} AND {here} AND (a.backend_xid IS NOT NULL OR a.query = '<insufficient privilege>') \
             UNION ALL SELECT 'false', l.objid::text FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND \
             l.classid = {} AND {here}",
            key >> 32,
            key & u64::from(u32::MAX),
            self.class.cast_unsigned()
        )
    }

    /// Takes the snapshots of all nodes at a moment at which no commit is under way. Runs in a transaction at
    /// isolation level repeatable read, which keeps them. `fence` is another session, which holds the fence
    /// meanwhile.
    pub fn take_snapshots(
        &self,
        fence: &mut Connection,
        snapshots: &mut Connection,
        writers: &str,
    ) -> Result<(), PgError> {
        fence.script(&format!(
            "BEGIN; SET LOCAL lock_timeout = '20s'; SELECT pg_advisory_xact_lock({})",
            self.fence
        ))?;
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
        fence.script("COMMIT")
    }
}
