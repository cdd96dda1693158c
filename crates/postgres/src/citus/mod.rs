//! A schema that is distributed over the nodes of a Citus cluster, reached through its coordinator.
//!
//! | module | contents |
//! |---|---|
//! | [`placement`] | which shard holds a virtual shard, and which node holds that shard |
//! | `texts` | pure: the statements of a table |
//! | `commit` | a batch as one transaction |
//! | `moment` | what is decided; one moment of all nodes |
//!
//! Citus runs a pipeline without `BEGIN` statement by statement: if one fails, those before it stay in effect.
//! So a commit is an explicit transaction here, and its rows are counted before `COMMIT` is sent.

mod commit;
pub(crate) mod moment;
pub mod placement;
pub(crate) mod texts;

use std::sync::{Arc, PoisonError, RwLock};

use crate::connection::{Connection, Statement};
use crate::layout::quoted;
use crate::schema::lock_key;
use crate::{PgError, ServerError};
use placement::Placement;

pub(crate) use commit::Ended;

/// Which server the statements are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Plain,
    Citus,
}

/// The settings of every session. Plans are made for each execution, because Citus needs the values to choose
/// shards.
pub(crate) const SESSION: &str = "SET jit = off; SET plan_cache_mode = auto; SET citus.propagate_set_commands = local; \
    SET max_parallel_workers_per_gather = 0; SET synchronous_commit = on; SET bytea_output = hex; \
    SET client_min_messages = warning; SET idle_in_transaction_session_timeout = '60s'; \
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '30s'; \
    SET default_transaction_isolation = 'read committed'";

/// What a store on Citus needs besides the statements of its tables.
#[derive(Debug)]
pub(crate) struct Citus {
    placement: RwLock<Arc<Placement>>,
    /// A table that is distributed by `vshard`, in quotes; `None` if there is none.
    example: Option<String>,
    begin: Statement,
    hold: Statement,
    settings: Statement,
    mark: Statement,
    writer: Statement,
    commit: Statement,
    /// Held by every commit, shared, until its rows are visible on all nodes.
    fence: i64,
    /// The first key of the locks of commits; the second is the number of the transaction.
    class: i32,
}

fn transactions_class(schema: &str) -> i32 {
    let [.., a, b, c, d] = lock_key(&format!("{schema} transactions")).to_be_bytes();
    i32::from_be_bytes([a, b, c, d])
}

impl Citus {
    pub fn new(schema: &str, example: Option<String>) -> Self {
        let name = quoted(schema);
        let class = transactions_class(schema);
        Self {
            class,
            placement: RwLock::default(),
            example,
            begin: Statement::new("BEGIN".into()),
            hold: Statement::new("SELECT pg_advisory_xact_lock_shared($1::bigint)".into()),
            // `SET LOCAL` reaches the workers.
            settings: Statement::new("SET LOCAL lock_timeout = '10s'".into()),
            mark: Statement::new(format!(
                "SELECT x, pg_advisory_xact_lock_shared({class}, (low - CASE WHEN \
                 low >= 2147483648 THEN 4294967296 ELSE 0 END)::integer) FROM (SELECT x, x & 4294967295 AS low FROM \
                 (SELECT pg_current_xact_id()::text::bigint AS x) a) b"
            )),
            writer: Statement::new(format!(
                "UPDATE {name}.writers SET batch = $1::bigint, seen = now() WHERE writer_id = $2::bigint AND epoch = $3::bigint"
            )),
            commit: Statement::new("COMMIT".into()),
            fence: lock_key(&format!("{schema} commits")),
        }
    }

    /// The latest known placement.
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the placement again: a shard may have been moved or split. An outdated one costs only speed, since
    /// statements name virtual shards.
    pub fn refresh(&self, connection: &mut Connection) -> Result<(), PgError> {
        let Some(example) = &self.example else { return Ok(()) };
        let read = Arc::new(Placement::read(connection, example)?);
        *self.placement.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }
}

/// Whether an error of the coordinator says that it lost a node, or that a node is down. Most of these have the
/// code of internal errors.
pub(crate) fn is_node_away(error: &ServerError) -> bool {
    const SAID: [&str; 4] = [
        "failure on connection marked as essential",
        "connection to the remote node",
        "could not establish any connections to the node",
        "failed to execute task",
    ];
    error.code == "XX000" && SAID.iter().any(|said| error.message.contains(said))
}
