//! Replication to an auditor: a publication of exactly the tables that auditors need, and the lag of each
//! subscriber.

use std::sync::Mutex;

use batzen_metrics::Page;
use batzen_store::TableDef;

use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;
use super::views::view_schema;
use crate::layout::quoted;

/// The maximum number of slots shown as metrics.
const SLOTS_MAX: usize = 16;

/// The name of the publication of a service's schema; subscriptions and their slots should have the same
/// name.
#[must_use]
pub fn publication(schema: &str) -> String {
    format!("{schema}_audit")
}

/// The report of a setup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupReport {
    /// The changes, in words. Empty if nothing had to be changed.
    pub actions: Vec<String>,
    /// The publication.
    pub publication: String,
    /// Its tables.
    pub tables: Vec<String>,
    /// The commands for the auditor's server, in order.
    pub commands: Vec<String>,
}

/// Publishes these tables, and lets a role read them and their views.
///
/// # Errors
/// If the server's log contains too little for logical replication (with the command that helps), or the
/// server's error.
pub fn setup(
    sql: &mut dyn Sql,
    schema: &str,
    tables: &[&'static TableDef],
    reader: Option<&str>,
) -> Result<SetupReport, SchemaError> {
    let level = sql.row("SHOW wal_level")?.map(|row| row.text(0).to_owned()).unwrap_or_default();
    if level != "logical" {
        return Err(SchemaError::Refused(format!(
            "wal_level is {level}: type `ALTER SYSTEM SET wal_level = logical` and start PostgreSQL again"
        )));
    }
    let name = publication(schema);
    let mut wanted: Vec<String> =
        super::layouts(tables, schema, 0)?.into_iter().map(|layout| layout.name).collect();
    // It is needed to find rows in the copy, because it contains the key of the virtual shards.
    wanted.push("meta".to_owned());
    wanted.sort_unstable();
    let mut report =
        SetupReport { publication: name.clone(), tables: wanted.clone(), ..SetupReport::default() };
    let found =
        sql.row(&format!("SELECT pubviaroot FROM pg_publication WHERE pubname = {}", literal(&name)))?;
    let present: Vec<String> = sql
        .rows(&format!(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = {} AND schemaname = {} ORDER BY tablename COLLATE \"C\"",
            literal(&name),
            literal(schema)
        ))?
        .iter()
        .map(|row| row.text(0).to_owned())
        .collect();
    let place = |table: &String| format!("{}.{}", quoted(schema), quoted(table));
    let list = wanted.iter().map(place).collect::<Vec<_>>().join(", ");
    match found {
        None => {
            sql.script(&format!(
                "CREATE PUBLICATION {} FOR TABLE {list} WITH (publish_via_partition_root = true)",
                quoted(&name)
            ))?;
            report.actions.push(format!("create publication {name}"));
        }
        Some(row) if present != wanted || !row.is_true(0) => {
            let name = quoted(&name);
            sql.script(&format!(
                "ALTER PUBLICATION {name} SET TABLE {list}; ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
            ))?;
            report.actions.push("change the publication's tables".to_owned());
        }
        Some(_) => {}
    }
    if let Some(reader) = reader {
        grant(sql, schema, &wanted, reader, &mut report)?;
    }
    report.commands = commands(sql, schema, reader.unwrap_or("auditor"))?;
    Ok(report)
}

/// Lets a role read the published tables and the views.
fn grant(
    sql: &mut dyn Sql,
    schema: &str,
    tables: &[String],
    reader: &str,
    report: &mut SetupReport,
) -> Result<(), SchemaError> {
    let role = sql.row(&format!(
        "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = {}",
        literal(reader)
    ))?;
    if !role.is_some_and(|row| row.is_true(0)) {
        return Err(SchemaError::Refused(format!(
            "there is no role {reader} that may replicate: type `CREATE ROLE {} LOGIN REPLICATION PASSWORD '…'`",
            quoted(reader)
        )));
    }
    let lacking = sql.rows(&format!(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE (n.nspname = {} AND c.relname = ANY (string_to_array({}, ',')) OR n.nspname = {} AND c.relkind = 'v')
           AND NOT has_table_privilege({}, c.oid, 'SELECT')",
        literal(schema),
        literal(&tables.join(",")),
        literal(&view_schema(schema)),
        literal(reader)
    ))?;
    if lacking.is_empty() {
        return Ok(());
    }
    let (schema, views, reader) = (quoted(schema), quoted(&view_schema(schema)), quoted(reader));
    let list =
        tables.iter().map(|table| format!("{schema}.{}", quoted(table))).collect::<Vec<_>>().join(", ");
    sql.script(&format!(
        "GRANT USAGE ON SCHEMA {schema}, {views} TO {reader}; GRANT SELECT ON {list} TO {reader};
         GRANT SELECT ON ALL TABLES IN SCHEMA {views} TO {reader}"
    ))?;
    report.actions.push(format!("let {reader} read the tables and views"));
    Ok(())
}

/// The commands for the auditor's server.
fn commands(sql: &mut dyn Sql, schema: &str, reader: &str) -> Result<Vec<String>, SchemaError> {
    let row = sql
        .row("SELECT coalesce(host(inet_server_addr()), ''), current_setting('port'), current_database()")?;
    let Some(row) = row else { return Ok(Vec::new()) };
    // Over a Unix socket, it is unknown by which name others reach the server.
    let host = if row.text(0).is_empty() { "HOST" } else { row.text(0) };
    let connection =
        format!("host={host} port={} dbname={} user={reader} password=…", row.text(1), row.text(2));
    let name = quoted(&publication(schema));
    Ok(vec![
        format!("batzen {schema} dbinit --replica"),
        format!("CREATE SUBSCRIPTION {name} CONNECTION {} PUBLICATION {name};", literal(&connection)),
    ])
}

/// The lag of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLag {
    /// The replication slot.
    pub slot: String,
    /// Whether the subscriber is connected.
    pub active: bool,
    /// Part of the log it that has not confirmed, in bytes. The server keeps this part.
    pub bytes: u64,
    /// Age of the last confirmed data, in milliseconds; 0 if the subscriber has everything. None if it is not
    /// connected.
    pub millis: Option<u64>,
}

/// Reads the lag of this database's subscribers.
///
/// # Errors
/// The server's error.
pub fn lag(sql: &mut dyn Sql) -> Result<Vec<SlotLag>, SchemaError> {
    let rows = sql.rows(
        "SELECT s.slot_name, s.active, greatest(pg_wal_lsn_diff(here.lsn, coalesce(s.confirmed_flush_lsn, s.restart_lsn)), 0)::bigint,
           CASE WHEN s.active THEN coalesce((extract(epoch FROM coalesce(r.replay_lag, r.flush_lag)) * 1000)::bigint, 0) END
         FROM pg_replication_slots s
         LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
         CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn) AS here
         WHERE s.slot_type = 'logical' AND s.database = current_database() AND NOT s.temporary
           AND s.slot_name NOT LIKE 'pg\\_%\\_sync\\_%'
         ORDER BY s.slot_name",
    )?;
    let lag = |row: &super::Row| SlotLag {
        slot: row.text(0).to_owned(),
        active: row.is_true(1),
        bytes: row.number(2).unsigned_abs(),
        millis: row.optional(3).and_then(|text| text.parse().ok()),
    };
    Ok(rows.iter().map(lag).collect())
}

/// The latest lag, for the metrics page.
#[derive(Debug, Default)]
pub struct LagMetrics(Mutex<Vec<SlotLag>>);

impl LagMetrics {
    /// Replaces the previous reading.
    pub fn set(&self, mut slots: Vec<SlotLag>) {
        slots.truncate(SLOTS_MAX);
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = slots;
    }

    /// Writes the families, if there is a subscriber.
    pub fn write(&self, page: &mut Page) {
        let slots = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if slots.is_empty() {
            return;
        }
        page.gauges(
            "batzen_postgres_replication_lag_bytes",
            "What a subscriber has not confirmed of the database's log, in bytes. The server keeps it.",
            "slot",
            slots.iter().map(|slot| (slot.slot.as_str(), slot.bytes)),
        );
        page.gauges(
            "batzen_postgres_replication_lag_seconds",
            "How long ago what a connected subscriber confirmed last was written, in seconds, rounded up.",
            "slot",
            slots.iter().filter_map(|slot| Some((slot.slot.as_str(), slot.millis?.div_ceil(1000)))),
        );
        page.gauges(
            "batzen_postgres_replication_connected",
            "Whether the subscriber is connected.",
            "slot",
            slots.iter().map(|slot| (slot.slot.as_str(), u64::from(slot.active))),
        );
    }
}
