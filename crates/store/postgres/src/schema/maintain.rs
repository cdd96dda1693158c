//! Periodic maintenance outside the data path: creates days of queues in advance and drops past ones, gathers
//! statistics of partitioned tables (autovacuum handles only partitions), and deletes old writers. Any node
//! may do it; an advisory lock admits one at a time. No step waits long for a lock, because payments that
//! queue behind it would wait, too.

use std::collections::BTreeMap;
use std::time::Duration;

use batzen_store::TableDef;

use super::catalog;
use super::citus::WRITERS;
use super::error::SchemaError;
use super::meta;
use super::meta::lock_key;
use super::prepared;
use super::shape::{Cut, TableShape, literal};
use super::sql::Sql;
use super::wanted::shapes;
use crate::PgError;
use crate::layout::quoted;
use crate::statements::Dialect;

/// A part of a commit that is prepared for so long was left.
const LEFT_PREPARED: Duration = Duration::from_secs(3_600);

/// A day in microseconds.
const DAY_US: i64 = 86_400_000_000;

/// Number of attempts to take a lock.
const ATTEMPTS: u32 = 3;

/// Raised if a partition is no longer empty.
const NOT_EMPTY: &str = "BZ003";

/// Maintenance options.
#[derive(Debug, Clone)]
pub struct MaintainOptions {
    /// For how many days from today each queue has a partition per day. Later entries share one partition.
    pub days_ahead: u16,
    /// Number of days after its day for which a partition is kept, in case clocks differ.
    pub days_kept: u16,
    /// The current time, in microseconds since 1970; `None` for the server's time.
    pub now_us: Option<i64>,
}

impl Default for MaintainOptions {
    fn default() -> Self {
        Self { days_ahead: 31, days_kept: 1, now_us: None }
    }
}

/// The report of maintenance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaintainReport {
    /// Whether another node is doing the maintenance; nothing was done here then.
    pub elsewhere: bool,
    /// Partitions created.
    pub created: Vec<String>,
    /// Partitions dropped.
    pub dropped: Vec<String>,
    /// Partitions whose locks were not available in time; the next run tries again.
    pub postponed: Vec<String>,
    /// Tables analysed.
    pub analyzed: Vec<String>,
    /// Deleted writers, which had not been active for a day.
    pub writers_removed: u64,
}

/// Runs the maintenance once.
///
/// # Errors
/// The server's error.
pub fn maintain(
    sql: &mut dyn Sql,
    schema: &str,
    tables: &[&'static TableDef],
    options: &MaintainOptions,
) -> Result<MaintainReport, SchemaError> {
    let key = lock_key(&format!("{schema} maintenance"));
    let locked = sql.row(&format!("SELECT pg_try_advisory_lock({key})"))?.is_some_and(|row| row.is_true(0));
    if !locked {
        return Ok(MaintainReport { elsewhere: true, ..MaintainReport::default() });
    }
    let outcome = run(sql, schema, tables, options);
    let unlocked = sql.rows(&format!("SELECT pg_advisory_unlock({key})"));
    let report = outcome?;
    unlocked?;
    Ok(report)
}

fn run(
    sql: &mut dyn Sql,
    schema: &str,
    tables: &[&'static TableDef],
    options: &MaintainOptions,
) -> Result<MaintainReport, SchemaError> {
    let shapes = shapes(&super::layouts(tables, schema, 0)?);
    let mut report = MaintainReport::default();
    let is_citus = meta::read_meta(sql, schema)?.is_some_and(|meta| meta.citus);
    let dialect = if is_citus { Dialect::Citus } else { Dialect::Plain };
    days(sql, schema, (&shapes, dialect), options, &mut report)?;
    statistics(sql, schema, &mut report)?;
    let text = format!(
        "WITH gone AS (DELETE FROM {}.writers WHERE seen < now() - interval '1 day' RETURNING 1) SELECT count(*) FROM gone",
        quoted(schema)
    );
    report.writers_removed = sql.row(&text)?.map_or(0, |row| row.number(0).unsigned_abs());
    let place = format!("{}.{WRITERS}", quoted(schema));
    let there = sql.row(&format!("SELECT to_regclass({}) IS NOT NULL", literal(&place)))?;
    if there.is_some_and(|row| row.is_true(0)) {
        let old = "seen < now() - interval '1 day'";
        // A prepared part of a commit needs the row of its writer, which is as old. Younger ones are under way.
        if is_citus && prepared::has_prepared(sql, schema, LEFT_PREPARED)? {
            return Ok(report);
        }
        let count = sql.row(&format!("SELECT count(*) FROM {place} WHERE {old}"))?;
        report.writers_removed += count.map_or(0, |row| row.number(0).unsigned_abs());
        sql.script(&format!("DELETE FROM {place} WHERE {old}"))?;
    }
    Ok(report)
}

/// Creates and drops days of queues.
pub(crate) fn days(
    sql: &mut dyn Sql,
    schema: &str,
    (shapes, dialect): (&[TableShape], Dialect),
    options: &MaintainOptions,
    report: &mut MaintainReport,
) -> Result<(), SchemaError> {
    let now = match options.now_us {
        Some(now) => now,
        None => {
            sql.row("SELECT (extract(epoch FROM now()) * 1000000)::bigint")?.map_or(0, |row| row.number(0))
        }
    };
    let today = now.div_euclid(DAY_US);
    let present = catalog::read(sql, schema)?;
    for shape in shapes.iter().filter(|shape| shape.cut == Cut::Days) {
        let Some(parts) = present.get(&shape.name).and_then(|table| table.parts.as_ref()) else { continue };
        let there: BTreeMap<i64, &str> =
            parts.iter().filter_map(|(name, bounds)| Some((day_of_bounds(bounds)?, name.as_str()))).collect();
        for day in today..=today + i64::from(options.days_ahead) {
            if there.contains_key(&day) {
                continue;
            }
            let part = day_name(&shape.name, day);
            let outcome = patiently(sql, dialect, &create_day(schema, shape, &part, day, dialect))?;
            let is_done = outcome == Patient::Done;
            if is_done { &mut report.created } else { &mut report.postponed }.push(part);
            if outcome == Patient::TooMuch {
                // The default partition is too large to be scanned while payments wait.
                break;
            }
        }
        for (_, part) in there.range(..today - i64::from(options.days_kept)) {
            let place = format!("{}.{}", quoted(schema), quoted(part));
            let filled = sql.row(&format!("SELECT 1 FROM {place} LIMIT 1"))?;
            if filled.is_some() {
                continue;
            }
            let is_done = patiently(sql, dialect, &drop_day(schema, shape, part))? == Patient::Done;
            if is_done { &mut report.dropped } else { &mut report.postponed }.push((*part).to_owned());
        }
    }
    Ok(())
}

/// The statements that create a day. They lock only the default partition, and move its entries of that day.
fn create_day(schema: &str, shape: &TableShape, part: &str, day: i64, dialect: Dialect) -> Vec<String> {
    let (from, to) = (day * DAY_US, (day + 1) * DAY_US);
    let place = |name: &str| format!("{}.{}", quoted(schema), quoted(name));
    let (parent, part, rest) = (place(&shape.name), place(part), place(&format!("{}_default", shape.name)));
    let columns: Vec<&str> = shape.columns.iter().map(|column| column.name.as_str()).collect();
    let columns = super::shape::quoted_list(&columns);
    let create = format!("CREATE TABLE {part} (LIKE {parent} INCLUDING DEFAULTS) WITH ({})", shape.storage());
    let lock = format!("LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE");
    if dialect == Dialect::Citus {
        let day = format!("due >= {from} AND due < {to}");
        return vec![
            create,
            format!(
                "SELECT create_distributed_table({}, 'vshard', colocate_with => {})",
                literal(&part),
                literal(&parent)
            ),
            lock,
            format!("INSERT INTO {part} ({columns}) SELECT {columns} FROM {rest} WHERE {day}"),
            format!("DELETE FROM {rest} WHERE {day}"),
            format!("ALTER TABLE {parent} ATTACH PARTITION {part} FOR VALUES FROM ({from}) TO ({to})"),
        ];
    }
    vec![
        create,
        lock,
        format!(
            "WITH moved AS (DELETE FROM {rest} WHERE due >= {from} AND due < {to} RETURNING {columns})
             INSERT INTO {part} ({columns}) SELECT {columns} FROM moved"
        ),
        format!("ALTER TABLE {parent} ATTACH PARTITION {part} FOR VALUES FROM ({from}) TO ({to})"),
    ]
}

/// The statements that lock a day and drop it if it is empty.
fn drop_day(schema: &str, shape: &TableShape, part: &str) -> Vec<String> {
    let place = |name: &str| format!("{}.{}", quoted(schema), quoted(name));
    let (parent, part) = (place(&shape.name), place(part));
    let message = literal(&format!("{part} is not empty"));
    vec![
        // Lock only the parent: if each partition were locked in turn, payments would wait for each, and all
        // inserts go through the parent anyway.
        format!("LOCK TABLE ONLY {parent} IN ACCESS EXCLUSIVE MODE"),
        format!(
            "DO $batzen$ BEGIN IF EXISTS (SELECT 1 FROM {part}) THEN
               RAISE EXCEPTION USING ERRCODE = '{NOT_EMPTY}', MESSAGE = {message}; END IF; END $batzen$"
        ),
        format!("DROP TABLE {part}"),
    ]
}

/// The outcome of a transaction that takes strong locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patient {
    Done,
    /// A lock was not available, or rows were added to a partition meanwhile: try again later.
    Later,
    /// It would have taken too long.
    TooMuch,
}

/// Runs a transaction that takes strong locks, but gives up soon, because others queue behind it.
fn patiently(sql: &mut dyn Sql, dialect: Dialect, statements: &[String]) -> Result<Patient, SchemaError> {
    if dialect == Dialect::Citus {
        return patiently_one_by_one(sql, statements);
    }
    let text = format!(
        "BEGIN; SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '2s';\n{};\nCOMMIT",
        statements.join(";\n")
    );
    for _ in 0..ATTEMPTS {
        let Err(error) = sql.script(&text) else { return Ok(Patient::Done) };
        if let Some(outcome) = gave_up(sql, error)? {
            return Ok(outcome);
        }
    }
    Ok(Patient::Later)
}

/// The outcome of a transaction that has failed; `None` if it may be tried again.
fn gave_up(sql: &mut dyn Sql, error: SchemaError) -> Result<Option<Patient>, SchemaError> {
    let code = match &error {
        SchemaError::Server(error @ PgError::Server(_)) => error.code().unwrap_or_default().to_owned(),
        _ => return Err(error),
    };
    sql.script("ROLLBACK")?;
    match code.as_str() {
        // A lock timeout or a deadlock. 23514: a commit straight at a shard of Citus, for which the table's lock does not
        // exist, has added a row to the default partition meanwhile.
        "55P03" | "40P01" | "23514" => Ok(None),
        NOT_EMPTY => Ok(Some(Patient::Later)),
        "57014" => Ok(Some(Patient::TooMuch)),
        _ => Err(error),
    }
}

/// As [`patiently`]: Citus does not take several statements in one message. A day has a table on each shard, so
/// it takes longer.
fn patiently_one_by_one(sql: &mut dyn Sql, statements: &[String]) -> Result<Patient, SchemaError> {
    let first = [
        "BEGIN",
        "SET LOCAL citus.propagate_set_commands = local",
        "SET LOCAL lock_timeout = '50ms'",
        "SET LOCAL statement_timeout = '10s'",
    ];
    for _ in 0..ATTEMPTS {
        let mut all = first.iter().copied().chain(statements.iter().map(String::as_str)).chain(["COMMIT"]);
        let done = all.try_for_each(|statement| sql.script(statement));
        let Err(error) = done else { return Ok(Patient::Done) };
        if let Some(outcome) = gave_up(sql, error)? {
            return Ok(outcome);
        }
    }
    Ok(Patient::Later)
}

/// Gathers statistics of partitioned tables whose sizes have changed by a fifth, and of all once a day.
fn statistics(sql: &mut dyn Sql, schema: &str, report: &mut MaintainReport) -> Result<(), SchemaError> {
    let rows = sql.rows(&format!(
        "SELECT c.relname FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {}
         LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
         CROSS JOIN LATERAL (
           SELECT coalesce(sum(pg_stat_get_live_tuples(i.inhrelid)), 0) AS live FROM pg_inherits i WHERE i.inhparent = c.oid
         ) AS parts
         WHERE c.relkind = 'p' AND live > 0 AND (
           coalesce(s.last_analyze < now() - interval '1 day', true)
           OR abs(live - greatest(c.reltuples, 0)) > 1000 + 0.2 * greatest(c.reltuples, 0))
         ORDER BY 1",
        literal(schema)
    ))?;
    for row in rows {
        let place = format!("{}.{}", quoted(schema), quoted(row.text(0)));
        sql.script(&format!("ANALYZE {place}"))?;
        report.analyzed.push(row.text(0).to_owned());
    }
    Ok(())
}

/// The day of a partition; `None` for the default partition.
fn day_of_bounds(bounds: &str) -> Option<i64> {
    let from = bounds.split_once("FROM (")?.1.split_once(')')?.0;
    let from: i64 = from.trim_matches('\'').parse().ok()?;
    Some(from.div_euclid(DAY_US))
}

/// The name of a day's partition: `deposits_open_d20260131`.
fn day_name(table: &str, day: i64) -> String {
    let (year, month, day) = civil(day);
    format!("{table}_d{year:04}{month:02}{day:02}")
}

/// The date of a day counted from 1970-01-01, by counting eras of 400 years that start with March, so that
/// the extra day of leap years is the last.
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let january = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(january <= 2), january, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        for (day, name) in [
            (0, "t_d19700101"),
            (59, "t_d19700301"),
            (789, "t_d19720229"),
            (11_016, "t_d20000229"),
            (20_778, "t_d20261121"),
        ] {
            assert_eq!(day_name("t", day), name);
        }
    }

    #[test]
    fn bounds_name_their_day() {
        let bounds = format!("FOR VALUES FROM ('{}') TO ('{}')", 5 * DAY_US, 6 * DAY_US);
        assert_eq!(day_of_bounds(&bounds), Some(5));
        assert_eq!(day_of_bounds("DEFAULT"), None);
    }
}
