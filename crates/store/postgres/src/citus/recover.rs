//! A thread that ends commits over several shards which nobody ends, because their process was killed or lost a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::database::Database;
use crate::schema::prepared::{AFTER, prepared_here, recover};
use crate::schema::shape::literal;
use crate::schema::{SchemaError, Sql, lock_key};
use crate::{Connection, PgError};

/// Interval at which it is looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// Factor by which rounds by way of the coordinator are rarer: it opens a connection to each node.
const ROUNDS_BY_COORDINATOR: u32 = 30;

/// Returns whether a part of a commit through the coordinator has been prepared for so long on any node: it lost the
/// node, and Citus will recover it. Fails while a node does not answer.
pub(crate) fn is_partial(connection: &mut Connection, age: Duration) -> Result<bool, PgError> {
    let list = format!(
        "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'citus\\_%' \
         AND prepared <= now() - interval '{} ms'",
        age.as_millis()
    );
    let text = format!(
        "SELECT success::text, result FROM run_command_on_all_nodes({}, give_warning_for_connection_errors => true)",
        literal(&list)
    );
    let mut is_partial = false;
    for row in connection.query_text(&text)? {
        match row.as_slice() {
            [Some(success), Some(count)] if success == "true" => is_partial |= count != "0",
            _ => return Err(PgError::io("ask a node", std::io::ErrorKind::NotConnected.into())),
        }
    }
    Ok(is_partial)
}

/// A thread that recovers. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Recovery {
    /// Starts the thread, with its own connection to each node.
    pub(crate) fn start(database: &Arc<Database>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let database = Arc::clone(database);
        let thread = std::thread::Builder::new()
            .name("recovery".to_owned())
            .spawn(move || run(&database, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.stop = None;
        // It is waiting, or a query of milliseconds is under way, unless a node is unreachable: then do not wait for it.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

fn run(database: &Database, stopped: &Receiver<()>) {
    let mut connections = BTreeMap::new();
    let mut has_failed = false;
    let mut rounds = 0;
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        rounds += 1;
        match once(database, &mut connections, rounds) {
            Ok(()) => has_failed = false,
            Err(error) => {
                // Log only once while a node is unreachable.
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "commits over several shards are not recovered; trying again");
                }
            }
        }
    }
}

/// Looks at each node, and recovers if there is something. What is the same for several nodes is done once, even if some
/// are away.
fn once(
    database: &Database,
    connections: &mut BTreeMap<i32, Connection>,
    rounds: u32,
) -> Result<(), SchemaError> {
    let Some(citus) = &database.citus else { return Ok(()) };
    let nodes = citus.nodes();
    let schema = &database.options.schema;
    let text = format!("SELECT count(*) {}", prepared_here(schema, AFTER));
    // Whoever does not reach the nodes asks the coordinator, which connects to each of them.
    let mut is_needed =
        nodes.ways.iter().all(Option::is_none) && rounds.is_multiple_of(ROUNDS_BY_COORDINATOR);
    let mut failed = Ok(());
    let mut seen = BTreeSet::new();
    for way in nodes.ways.iter().flatten() {
        let group = way.direct().group;
        if !seen.insert(group) {
            continue;
        }
        let mut look = || {
            let connection = match connections.remove(&group) {
                Some(connection) => connection,
                None => way.connect()?,
            };
            let connection = connections.entry(group).or_insert(connection);
            Sql::row(connection, &text)
        };
        match look() {
            Ok(row) => is_needed |= row.is_some_and(|row| row.number(0) > 0),
            Err(error) => {
                connections.remove(&group);
                failed = Err(error);
            }
        }
    }
    if is_needed {
        let mut sql = Connection::open(&database.target)?;
        // One process at a time, until the session ends.
        let key = lock_key(&format!("{schema} recovery"));
        sql.script("SET lock_timeout = '10s'")?;
        let is_ours = Sql::row(&mut sql, &format!("SELECT pg_try_advisory_lock({key})"))?;
        if is_ours.is_some_and(|row| row.is_true(0)) {
            recover(&mut sql, schema, AFTER)?;
        }
    }
    failed
}
