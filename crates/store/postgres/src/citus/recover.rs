//! Commits over several shards that nobody ends, because their process was killed or lost a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::citus::across::direct;
use crate::citus::direct::WRITERS;
use crate::database::Database;
use crate::layout::quoted;
use crate::schema::shape::literal;
use crate::schema::{SchemaError, Sql, lock_key};
use crate::{Connection, PgError};

/// How long a part of a commit is prepared before another process ends it. This takes the writer's row from
/// a process that is only slow, which has to register another.
const AFTER: Duration = Duration::from_secs(2);

/// How often it is looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// How many times less often by way of the coordinator, which opens a connection to each node.
const ROUNDS_BY_COORDINATOR: u32 = 30;

/// The start of the names of what stores of this schema prepare.
fn names_of(schema: &str) -> String {
    format!("batzen:{schema}:")
}

/// The name of the prepared parts of a commit, in quotes: it leads to the row of its writer in the commit's home.
pub(crate) fn name(schema: &str, vshard: u16, writer: i64, batch: i64) -> String {
    literal(&format!("{}{vshard}:{writer}:{batch}", names_of(schema)))
}

/// What stores of this schema have prepared on a node for at least so long.
fn prepared_here(schema: &str, age: Duration) -> String {
    format!(
        "FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, {}) \
         AND prepared <= now() - interval '{} ms'",
        literal(&names_of(schema)),
        age.as_millis()
    )
}

/// What stores of this schema have prepared for at least so long, on the nodes that answer, each name once; and what a node
/// says that does not.
fn prepared_anywhere(
    sql: &mut dyn Sql,
    schema: &str,
    age: Duration,
) -> Result<(Vec<String>, Option<SchemaError>), SchemaError> {
    let list = format!("SELECT coalesce(string_agg(gid, ' '), '') {}", prepared_here(schema, age));
    let text = format!(
        "SELECT success::text, result FROM run_command_on_all_nodes({}, give_warning_for_connection_errors => true)",
        literal(&list)
    );
    let (mut found, mut missing) = (Vec::new(), None);
    for row in sql.rows(&text)? {
        if row.text(0) == "true" {
            found.extend(row.text(1).split_whitespace().map(str::to_owned));
        } else {
            let error = format!("a node of the Citus cluster does not answer: {}", row.text(1));
            missing = Some(SchemaError::Refused(error));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok((found, missing))
}

/// Whether stores of this schema have left anything prepared for so long, on any node.
///
/// # Errors
/// When a node does not answer.
pub(crate) fn has_prepared(sql: &mut dyn Sql, schema: &str, age: Duration) -> Result<bool, SchemaError> {
    let (found, missing) = prepared_anywhere(sql, schema, age)?;
    missing.map_or(Ok(!found.is_empty()), Err)
}

/// Whether a part of a commit through the coordinator has been prepared for so long on any node: it lost the node, and Citus
/// will recover it. Fails while a node does not answer.
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

/// Ends what has been prepared for so long, as its home has decided. Returns how many commits that were.
///
/// # Errors
/// When a node does not answer, after all others are done; or when a writer's row is missing.
pub(crate) fn recover(sql: &mut dyn Sql, schema: &str, age: Duration) -> Result<usize, SchemaError> {
    let (found, missing) = prepared_anywhere(sql, schema, age)?;
    found.iter().try_for_each(|name| end(sql, schema, name))?;
    missing.map_or(Ok(found.len()), Err)
}

/// Ends what is prepared under this name, as its home has decided.
fn end(sql: &mut dyn Sql, schema: &str, name: &str) -> Result<(), SchemaError> {
    let mut numbers = name.rsplit(':').map(str::parse::<i64>);
    let (Some(Ok(batch)), Some(Ok(writer)), Some(Ok(vshard))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(SchemaError::Refused(format!("the prepared transaction {name} is not one of ours")));
    };
    // This waits for the end of the transaction that decides, and makes any late copy of it fail.
    let row = sql.row(&format!(
        "UPDATE {}.{WRITERS} SET epoch = epoch + 1 WHERE vshard = {vshard} AND writer_id = {writer} RETURNING batch",
        quoted(schema)
    ))?;
    let decided = row.ok_or_else(|| {
        SchemaError::Refused(format!(
            "the writer of the prepared transaction {name} is unknown: compare the rows of its nodes, and end it by hand"
        ))
    })?;
    // The writer begins nothing else before this commit has ended.
    let end = if decided.number(0) == batch { "COMMIT" } else { "ROLLBACK" };
    // On nodes without a part of it, this says that there is none.
    let text = format!("{end} PREPARED {}", literal(name));
    sql.rows(&format!(
        "SELECT success::text, result FROM run_command_on_all_nodes({}, give_warning_for_connection_errors => true)",
        literal(&text)
    ))?;
    tracing::info!("{end} of a commit over several shards that nobody ended");
    Ok(())
}

/// Ends everything that was prepared before by a process that was killed, on the nodes that answer. Waits for what is
/// too young for that.
///
/// # Errors
/// As [`recover`], apart from nodes that do not answer.
pub(crate) fn recover_all(sql: &mut dyn Sql, schema: &str) -> Result<(), SchemaError> {
    let (found, _) = prepared_anywhere(sql, schema, Duration::ZERO)?;
    if found.is_empty() {
        return Ok(());
    }
    std::thread::sleep(AFTER);
    let (old, _) = prepared_anywhere(sql, schema, AFTER)?;
    old.iter().try_for_each(|name| end(sql, schema, name))
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
    pub fn start(database: &Arc<Database>) -> std::io::Result<Self> {
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
        // It is waiting, or a query of milliseconds is under way, unless a node is away: then do not wait for it.
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
                // Log only once while a node is away.
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
        let group = direct(way).group;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_writer() {
        let name = name("a:b", 1023, i64::MAX, 7);
        assert_eq!(name, format!("'batzen:a:b:1023:{}:7'", i64::MAX));
        // PostgreSQL's limit; a schema has at most 63 bytes.
        assert!(name.len() + 60 < 200);
    }
}
