//! Parts of commits over several shards that were prepared, and their end.

use std::time::Duration;

use super::citus::WRITERS;
use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;
use crate::layout::quoted;

/// Time that a part of a commit is prepared before another process ends it. This takes the writer's row from
/// a process that is only slow, which has to register another.
pub(crate) const AFTER: Duration = Duration::from_secs(2);

/// The start of the names of what stores of this schema prepare.
fn names_of(schema: &str) -> String {
    format!("batzen:{schema}:")
}

/// The name of the prepared parts of a commit, in quotes: it leads to the row of its writer in the commit's home.
pub(crate) fn name(schema: &str, vshard: u16, writer: i64, batch: i64) -> String {
    literal(&format!("{}{vshard}:{writer}:{batch}", names_of(schema)))
}

/// The transactions that stores of this schema have prepared on a node for at least so long.
pub(crate) fn prepared_here(schema: &str, age: Duration) -> String {
    format!(
        "FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, {}) \
         AND prepared <= now() - interval '{} ms'",
        literal(&names_of(schema)),
        age.as_millis()
    )
}

/// Lists the parts that stores of this schema have prepared for at least so long, on the nodes that answer, each name
/// once; and the error of a node that does not answer.
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

/// Returns whether stores of this schema have left anything prepared for so long, on any node.
///
/// # Errors
/// When a node does not answer.
pub(crate) fn has_prepared(sql: &mut dyn Sql, schema: &str, age: Duration) -> Result<bool, SchemaError> {
    let (found, missing) = prepared_anywhere(sql, schema, age)?;
    missing.map_or(Ok(!found.is_empty()), Err)
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
