//! Commits over several shards that nobody ends, because their process was killed or lost a node.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::citus::direct::WRITERS;
use crate::layout::quoted;
use crate::schema::shape::literal;
use crate::schema::{SchemaError, Sql, lock_key};
use crate::{Connection, Target};

/// How long a part of a commit is prepared before another process ends it. This takes the writer's row from
/// a process that is only slow, which has to register another.
const AFTER: Duration = Duration::from_secs(2);

/// How often it is looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// The start of the names of what stores of this schema prepare.
fn names_of(schema: &str) -> String {
    format!("batzen:{schema}:")
}

/// The name of the prepared parts of a commit, in quotes: it leads to the row of its writer in the commit's home.
pub(crate) fn name(schema: &str, vshard: u16, writer: i64, batch: i64) -> String {
    literal(&format!("{}{vshard}:{writer}:{batch}", names_of(schema)))
}

/// What stores of this schema have prepared on any node for at least so long; each name once.
///
/// # Errors
/// When a node does not answer.
pub(crate) fn prepared(sql: &mut dyn Sql, schema: &str, age: Duration) -> Result<Vec<String>, SchemaError> {
    let list = format!(
        "SELECT coalesce(string_agg(gid, ' '), '') FROM pg_prepared_xacts WHERE database = current_database() \
         AND starts_with(gid, {}) AND prepared <= now() - interval '{} ms'",
        literal(&names_of(schema)),
        age.as_millis()
    );
    let text = format!(
        "SELECT success::text, result FROM run_command_on_all_nodes({}, give_warning_for_connection_errors => true)",
        literal(&list)
    );
    let mut found = Vec::new();
    for row in sql.rows(&text)? {
        if row.text(0) != "true" {
            return Err(SchemaError::Refused(format!(
                "a node of the Citus cluster does not answer: {}",
                row.text(1)
            )));
        }
        found.extend(row.text(1).split_whitespace().map(str::to_owned));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Ends what has been prepared for so long, as its home has decided. Returns how many commits that were.
///
/// # Errors
/// When a node does not answer, or a writer's row is missing.
pub(crate) fn recover(sql: &mut dyn Sql, schema: &str, age: Duration) -> Result<usize, SchemaError> {
    let found = prepared(sql, schema, age)?;
    for name in &found {
        let wrong = || SchemaError::Refused(format!("the prepared transaction {name} is not one of ours"));
        let mut numbers = name.rsplit(':').map(str::parse::<i64>);
        let (Some(Ok(batch)), Some(Ok(writer)), Some(Ok(vshard))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err(wrong());
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
    }
    Ok(found.len())
}

/// A thread that recovers. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Recovery {
    /// Starts the thread, with its own connection to the coordinator. Of all processes with this schema, one at a
    /// time recovers.
    pub fn start(target: &Target, schema: &str) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let (target, schema) = (target.clone().application("batzen-recovery"), schema.to_owned());
        let run = move || run(&target, &schema, &stopped);
        let thread = std::thread::Builder::new().name("recovery".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.stop = None;
        // It is waiting, or a query of milliseconds is under way, unless the server is away: then do not wait for it.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

fn run(target: &Target, schema: &str, stopped: &Receiver<()>) {
    let key = lock_key(&format!("{schema} recovery"));
    let mut connection: Option<Connection> = None;
    let mut has_failed = false;
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        match once(&mut connection, target, schema, key) {
            Ok(()) => has_failed = false,
            Err(error) => {
                // Log only once while a node is away.
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "commits over several shards of {schema} are not recovered; trying again");
                }
                connection = None;
            }
        }
    }
}

fn once(
    connection: &mut Option<Connection>,
    target: &Target,
    schema: &str,
    key: i64,
) -> Result<(), SchemaError> {
    let sql = match connection {
        Some(sql) => sql,
        None => {
            let sql = connection.insert(Connection::open(target)?);
            sql.script("SET lock_timeout = '10s'")?;
            sql
        }
    };
    // Taken again by the session that has it, this lock only counts up to be released as often.
    let is_ours = sql.row(&format!(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) OR \
         pg_try_advisory_lock({key})"
    ))?;
    if is_ours.is_some_and(|row| row.is_true(0)) {
        recover(sql, schema, AFTER)?;
    }
    Ok(())
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
