//! A schema that is distributed over the nodes of a Citus cluster. What concerns one shard goes straight to its node,
//! everything else through the coordinator.
//!
//! | module | contents |
//! |---|---|
//! | [`placement`] | which shard holds a virtual shard, and which node holds that shard |
//! | `clock` | what a process has seen of the shards' clocks |
//! | `commit` | a batch as one transaction, through the coordinator |
//! | `direct` | straight to the node of a shard |
//! | `across` | a batch in two phases, straight at the nodes of several shards |
//! | `recover` | ends what was prepared, after its process was killed |
//! | `route` | which way each commit and read takes |
//! | `moment` | one moment of all nodes |
//!
//! Citus runs a pipeline without `BEGIN` statement by statement: if one fails, those before it stay in effect.
//! So a commit is an explicit transaction here, and its rows are counted before `COMMIT` is sent.

pub(crate) mod across;
pub(crate) mod clock;
mod commit;
pub(crate) mod direct;
pub(crate) mod moment;
pub(crate) mod placement;
pub(crate) mod recover;
mod route;

use std::sync::{Arc, PoisonError, RwLock};

use crate::PgError;
use crate::client::{Connection, Statement};
use crate::layout::quoted;
use crate::schema::citus::{CLOCKS, PLACE_BITS, ROW_BITS};
use crate::schema::lock_key;
use crate::schema::shape::literal;
use placement::{Placement, Shard};

pub(crate) use commit::Ended;

/// The place of what is on every node.
const PLACE_EVERYWHERE: u16 = (1 << PLACE_BITS) - 1;

/// Maximum number of rows that a commit may insert, so that their places fit.
pub(crate) const INSERTS_MAX: usize = 1 << ROW_BITS;

/// Number of shards that can have a place.
const SHARDS_MAX: usize = PLACE_EVERYWHERE as usize;

/// Returns the part of a shard's serials that comes beside number and row.
pub(crate) fn serial_of_place(place: Option<u16>) -> i64 {
    i64::from(place.unwrap_or(PLACE_EVERYWHERE))
}

/// Returns the part of a serial that a row's place among the new rows of its commit makes up.
pub(crate) fn serial_of_row(row: u64) -> u64 {
    row << PLACE_BITS
}

/// The lock that every commit holds, shared, on the node that gave it its number.
fn fence_key(schema: &str) -> i64 {
    lock_key(&format!("{schema} commits"))
}

/// The settings of every session. Plans are made for each execution, because Citus needs the values to choose
/// shards.
pub(crate) const SESSION: &str = "SET jit = off; SET plan_cache_mode = auto; SET citus.propagate_set_commands = local; \
    SET max_parallel_workers_per_gather = 0; SET synchronous_commit = on; SET bytea_output = hex; \
    SET client_min_messages = warning; SET idle_in_transaction_session_timeout = '60s'; \
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '30s'; \
    SET default_transaction_isolation = 'read committed'";

/// The state that a store on Citus needs besides the statements of its tables.
#[derive(Debug)]
pub(crate) struct Citus<W> {
    nodes: RwLock<Arc<Nodes<W>>>,
    schema: String,
    begin: Statement,
    hold: Statement,
    settings: Statement,
    clock: Statement,
    /// Counts the shards.
    shards: Statement,
    writer: Statement,
    commit: Statement,
    /// Held by every commit, shared, until its rows are visible on all nodes.
    fence: i64,
}

/// Where the shards are, and the way to each of them that does not go through the coordinator.
#[derive(Debug)]
pub(crate) struct Nodes<W> {
    pub(crate) placement: Placement,
    /// In the order of the shards. `None`: there is no such way.
    pub(crate) ways: Vec<Option<Arc<W>>>,
}

impl<W> Nodes<W> {
    /// The way to the shard in this place.
    pub(crate) fn way(&self, place: u16) -> Option<&Arc<W>> {
        self.ways.get(usize::from(place))?.as_ref()
    }
}

impl<W> Citus<W> {
    pub(crate) fn new(schema: &str) -> Self {
        let name = quoted(schema);
        Self {
            nodes: RwLock::new(Arc::new(Nodes { placement: Placement::default(), ways: Vec::new() })),
            schema: schema.to_owned(),
            begin: Statement::new("BEGIN".into()),
            hold: Statement::new("SELECT pg_advisory_xact_lock_shared($1::bigint)".into()),
            // `SET LOCAL` reaches the workers.
            settings: Statement::new("SET LOCAL lock_timeout = '10s'".into()),
            writer: Statement::new(format!(
                "UPDATE {name}.writers SET batch = $1::bigint, seen = now() WHERE writer_id = $2::bigint AND epoch = $3::bigint"
            )),
            clock: Statement::new(format!(
                "UPDATE {name}.{CLOCKS} SET number = greatest(number + 1, $2::bigint) WHERE vshard = $1::smallint RETURNING number"
            )),
            shards: Statement::new(format!(
                "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = {}::regclass",
                literal(&format!("{name}.{CLOCKS}"))
            )),
            commit: Statement::new("COMMIT".into()),
            fence: fence_key(schema),
        }
    }

    /// Returns the known nodes.
    pub(crate) fn nodes(&self) -> Arc<Nodes<W>> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the placement again: a shard may have been moved or split. Each commit makes sure that it fits.
    /// `way` makes the way to a shard; one for which `is_good` holds is kept.
    pub(crate) fn refresh(
        &self,
        connection: &mut Connection,
        way: &dyn Fn(u16, &Shard) -> Option<Arc<W>>,
        is_good: &dyn Fn(&W) -> bool,
    ) -> Result<(), PgError> {
        let clocks = format!("{}.{CLOCKS}", quoted(&self.schema));
        let placement = Placement::read(connection, &self.schema, &clocks)?;
        if placement.shards().len() > SHARDS_MAX {
            return Err(PgError::Config(format!("more than {SHARDS_MAX} shards")));
        }
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let known = |place: u16, shard: &Shard| {
            let way = nodes.ways.get(usize::from(place))?.as_ref()?;
            if nodes.placement.shards().get(usize::from(place)) != Some(shard) {
                return None;
            }
            is_good(way).then(|| Arc::clone(way))
        };
        let shards = (0..).zip(placement.shards());
        let ways = shards.map(|(place, shard)| known(place, shard).or_else(|| way(place, shard))).collect();
        *nodes = Arc::new(Nodes { placement, ways });
        Ok(())
    }
}
