//! Creating, migrating and resetting a schema. Everything can be repeated, even after an interruption: the
//! existing schema is compared with the wanted one, and the version is written last.

use std::time::{Duration, Instant};

use batzen_store::TableDef;

use super::catalog::{self, Present};
use super::citus::WRITERS;
use super::error::SchemaError;
use super::maintain::{self, MaintainOptions, MaintainReport};
use super::meta::{self, Meta};
use super::plan::{self, Action, History, Plan};
use super::prepared::{self, recover};
use super::shape::{TableShape, literal};
use super::sql::Sql;
use super::{views, wanted};
use crate::layout::{Layout, PARTITIONS_MAX, quoted};
use crate::statements::Dialect;

/// The application name of sessions that change schemas.
pub const APPLICATION: &str = "batzen-dbinit";

/// The oldest supported server, in the form of `server_version_num`: publications with column lists and
/// `NULLS NOT DISTINCT` keys were added after 14.
const OLDEST_SERVER: i64 = 150_000;

/// Time to wait for another dbinit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options for a schema.
#[derive(Debug, Clone, Default)]
pub struct DbinitOptions {
    /// The number of partitions of hot tables; 0 if they are not partitioned. `None`: unchanged, and 0 for a
    /// new schema.
    pub partitions: Option<u16>,
    /// Drop everything first. All rows are lost.
    pub reset: bool,
    /// Distribute the tables with Citus.
    pub citus: bool,
    /// The number of shards of distributed tables; `None`: two for each worker.
    pub shards: Option<u16>,
    /// The currency of amounts in the views.
    pub currency: Option<String>,
    /// The schema will receive the rows of another one by replication, so it gets no identity of its own.
    pub replica: bool,
}

/// The report of `dbinit`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DbinitReport {
    /// The changes in order, in words. Empty if nothing had to be changed.
    pub actions: Vec<String>,
    /// The previous version of the schema; `None` if there was no schema.
    pub from_version: Option<i32>,
    /// The current version of the schema.
    pub version: i32,
    /// Number of partitions of hot tables.
    pub partitions: u16,
}

/// Creates or migrates the schema of a service.
///
/// # Errors
/// The reason for the failure, and the command that helps. Nothing is lost except with
/// [`DbinitOptions::reset`], and earlier changes remain.
pub fn dbinit(
    sql: &mut dyn Sql,
    schema: &str,
    tables: &[&'static TableDef],
    options: &DbinitOptions,
    history: &History<'_>,
) -> Result<DbinitReport, SchemaError> {
    if options.partitions.is_some_and(|partitions| partitions > PARTITIONS_MAX) {
        return Err(SchemaError::Refused(format!("more than {PARTITIONS_MAX} partitions are of no use")));
    }
    let version = "SELECT current_setting('server_version_num'), current_setting('server_version')";
    if let Some(row) = sql.row(version)?.filter(|row| row.number(0) < OLDEST_SERVER) {
        return Err(SchemaError::OldServer { found: row.text(1).to_owned() });
    }
    sql.script("SET lock_timeout = '10s'; SET client_min_messages = warning")?;
    let mut work = Work { sql, schema, options, history, report: DbinitReport::default(), locked: false };
    let outcome = work.run(tables);
    let unlocked = work.unlock();
    outcome?;
    unlocked?;
    Ok(work.report)
}

struct Work<'a> {
    sql: &'a mut dyn Sql,
    schema: &'a str,
    options: &'a DbinitOptions,
    history: &'a History<'a>,
    report: DbinitReport,
    locked: bool,
}

impl Work<'_> {
    fn run(&mut self, tables: &[&'static TableDef]) -> Result<(), SchemaError> {
        if self.options.reset {
            self.lock()?;
            self.reset()?;
        }
        let mut before = self.state()?;
        if before.meta.as_ref().is_some_and(|meta| meta.citus) {
            // What a killed service has prepared would block what follows.
            prepared::recover_all(self.sql, self.schema)?;
        }
        if before.meta.is_none() {
            self.encoding()?;
        }
        let mut plan = self.plan(tables, &before)?;
        let becomes_citus = self.options.citus && before.meta.as_ref().is_some_and(|meta| !meta.citus);
        if self.options.citus && self.partitions(before.meta.as_ref()) > 0 {
            return Err(SchemaError::Refused(
                "Citus divides the tables into shards already: leave the partitions at 0 (-P 0)".to_owned(),
            ));
        }
        // A service that is connected now would go on with statements for one server.
        if !plan.is_empty() || before.meta.is_none() || becomes_citus {
            self.lock()?;
            // Another dbinit may have done it while this one waited.
            before = self.state()?;
            plan = self.plan(tables, &before)?;
        }
        self.report.from_version = before.version;
        self.report.version = self.history.version;
        self.report.partitions = self.partitions(before.meta.as_ref());
        if !before.has_schema {
            self.act(
                &format!("create schema {}", self.schema),
                &[format!("CREATE SCHEMA {}", quoted(self.schema))],
            )?;
        }
        let grants = views::read_grants(self.sql, self.schema)?;
        for Action { what, statements } in plan.steps.actions {
            self.act(&what, &statements)?;
        }
        // The steps may have freed names.
        let layouts = self.layouts(tables, before.meta.as_ref())?;
        let shapes = wanted::shapes(&layouts);
        let present = catalog::read(self.sql, self.schema)?;
        let additions =
            plan::additions(self.schema, &shapes, &present).map_err(|lines| self.differs(lines))?;
        for Action { what, statements } in additions.actions {
            self.act(&what, &statements)?;
        }
        self.functions()?;
        self.days(&shapes, &present)?;
        if self.options.citus || before.meta.as_ref().is_some_and(|meta| meta.citus) {
            let done = super::citus::distribute(self.sql, self.schema, &layouts, self.options.shards)?;
            self.report.actions.extend(done);
        }
        self.identity(before.meta.as_ref(), &shapes)?;
        if self.options.citus && before.meta.as_ref().is_some_and(|meta| !meta.citus) {
            self.act(
                "note that the tables are distributed",
                &[format!("UPDATE {}.meta SET citus = true", quoted(self.schema))],
            )?;
        }
        let mut reindex = additions.reindex;
        reindex.extend(plan.steps.reindex.into_iter().filter(|_| before.version.is_some()));
        self.reindex(&layouts, &reindex)?;
        for Action { what, statements } in additions.indexes {
            self.act(&what, &statements)?;
        }
        let currency = self.options.currency.clone().or(before.meta.and_then(|meta| meta.currency));
        let done = views::refresh(self.sql, self.schema, &layouts, currency.as_deref(), &grants)?;
        self.report.actions.extend(done);
        self.finish()
    }

    /// The existing schema.
    fn state(&mut self) -> Result<SetupState, SchemaError> {
        let has_schema = catalog::has_schema(self.sql, self.schema)?;
        let present = catalog::read(self.sql, self.schema)?;
        let mut state = SetupState { has_schema, present, version: None, meta: None };
        if let Some(there) = state.present.get("meta") {
            // Version 0: an earlier creation was interrupted.
            let version = meta::schema_version(self.sql, self.schema, there)?;
            state.version = version.filter(|version| *version > 0);
            let (schema, known) = (self.schema.to_owned(), self.history.version);
            if let Some(found) = state.version.filter(|found| *found > known) {
                return Err(SchemaError::Newer { schema, found, known });
            }
            // An older database may lack columns of this table.
            let [wanted, _] = meta::own_tables();
            let complete = wanted.columns.iter().all(|column| there.column(&column.name).is_some());
            if complete {
                state.meta = meta::read_meta(self.sql, self.schema)?;
            }
        }
        if state.version.is_none() {
            self.refuse_others(&state.present)?;
        }
        // Without the key of their shards, the rows cannot be found; a new key would only hide that.
        if state.version.is_none() && state.meta.is_none() && !self.options.replica {
            for table in state.present.keys().filter(|name| !["meta", "writers"].contains(&name.as_str())) {
                let filled = format!("SELECT 1 FROM {}.{} LIMIT 1", quoted(self.schema), quoted(table));
                if self.sql.row(&filled)?.is_some() {
                    return Err(SchemaError::Refused(format!(
                        "the schema {} has rows in {table}, but no identity: a reset was interrupted, or it is a copy that \
                         lacks the table meta. `dbinit -r` drops what is left",
                        self.schema
                    )));
                }
            }
        }
        Ok(state)
    }

    /// Checks that all tables of the schema are Batzen's, perhaps from an interrupted creation. Other tables
    /// are neither extended nor dropped.
    fn refuse_others(&self, present: &Present) -> Result<(), SchemaError> {
        let marks = |name: &str| match name {
            "meta" => "schema_version",
            "writers" => "writer_id",
            _ => "vshard",
        };
        let others = present.iter().filter(|(name, table)| table.column(marks(name)).is_none());
        let others: Vec<&str> = others.map(|(name, _)| name.as_str()).take(5).collect();
        if others.is_empty() {
            return Ok(());
        }
        Err(SchemaError::Refused(format!(
            "the schema {} holds tables of something else ({}): name another database",
            self.schema,
            others.join(", ")
        )))
    }

    /// The encoding must be able to represent text in any language.
    fn encoding(&mut self) -> Result<(), SchemaError> {
        let row = self.sql.row("SHOW server_encoding")?;
        match row.map(|row| row.text(0).to_owned()).filter(|encoding| encoding != "UTF8") {
            None => Ok(()),
            Some(encoding) => Err(SchemaError::Refused(format!(
                "the database's encoding is {encoding}: create one with `createdb --encoding UTF8 --template template0`"
            ))),
        }
    }

    fn partitions(&self, meta: Option<&Meta>) -> u16 {
        meta.map_or(self.options.partitions.unwrap_or(0), |meta| meta.partitions)
    }

    fn layouts(&self, tables: &[&'static TableDef], meta: Option<&Meta>) -> Result<Vec<Layout>, SchemaError> {
        super::layouts(tables, self.schema, self.partitions(meta))
    }

    fn differs(&self, differences: Vec<String>) -> SchemaError {
        let hint = "This program cannot migrate it: use the one that created it".to_owned();
        SchemaError::Differs { schema: self.schema.to_owned(), differences, hint }
    }

    fn plan(&self, tables: &[&'static TableDef], state: &SetupState) -> Result<Planned, SchemaError> {
        if let (Some(meta), Some(asked)) = (&state.meta, self.options.partitions)
            && meta.partitions != asked
        {
            return Err(SchemaError::Refused(format!(
                "the schema {} has {} partitions, as it was made with: -r -P {asked} makes it again, without its rows",
                self.schema, meta.partitions
            )));
        }
        if let (Some(currency), Some(asked)) =
            (state.meta.as_ref().and_then(|meta| meta.currency.as_ref()), &self.options.currency)
            && currency != asked
        {
            return Err(SchemaError::Refused(format!(
                "the amounts in the schema {} are {currency}, not {asked}",
                self.schema
            )));
        }
        let steps = match state.version {
            Some(version) => plan::steps(self.schema, version, self.history, &state.present),
            None => Plan::default(),
        };
        let old_version = state.version.is_some_and(|version| version < self.history.version);
        // If there are steps, the differences after them cannot be predicted. Without steps, the comparison
        // is exact.
        let additions = if steps.actions.is_empty() {
            let shapes = wanted::shapes(&self.layouts(tables, state.meta.as_ref())?);
            let additions =
                plan::additions(self.schema, &shapes, &state.present).map_err(|lines| self.differs(lines))?;
            !additions.actions.is_empty() || !additions.indexes.is_empty()
        } else {
            true
        };
        Ok(Planned { steps, changes: old_version || additions })
    }

    /// Takes the schema's lock exclusively, and deletes all writers: a service that has lost its lock without
    /// noticing cannot write until it has checked that the schema is still the one that it opened.
    fn lock(&mut self) -> Result<(), SchemaError> {
        if self.locked {
            // It was dropped by the reset of the same run.
            return Ok(());
        }
        let key = meta::lock_key(self.schema);
        let until = Instant::now() + PATIENCE;
        while !self.locked {
            let text = format!("SELECT pg_try_advisory_lock({key})");
            self.locked = self.sql.row(&text)?.is_some_and(|row| row.is_true(0));
            if self.locked {
                for table in ["writers", WRITERS] {
                    let writers = format!("{}.{table}", quoted(self.schema));
                    let there = format!("SELECT to_regclass({}) IS NOT NULL", literal(&writers));
                    if self.sql.row(&there)?.is_some_and(|row| row.is_true(0)) {
                        if table == WRITERS {
                            // What a killed service has prepared needs the rows of its writers.
                            recover(self.sql, self.schema, Duration::ZERO)?;
                        }
                        self.sql.script(&format!("DELETE FROM {writers}"))?;
                    }
                }
                break;
            }
            let sessions = sessions(self.sql, self.schema)?;
            let others = sessions.iter().any(|session| session.application != APPLICATION);
            if others || Instant::now() > until {
                let sessions = sessions.iter().map(ToString::to_string).collect();
                return Err(SchemaError::InUse { schema: self.schema.to_owned(), sessions });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn unlock(&mut self) -> Result<(), SchemaError> {
        if self.locked {
            self.sql.rows(&format!("SELECT pg_advisory_unlock({})", meta::lock_key(self.schema)))?;
        }
        Ok(())
    }

    /// Creates the first days of new queues.
    fn days(&mut self, shapes: &[TableShape], before: &Present) -> Result<(), SchemaError> {
        let made: Vec<TableShape> =
            shapes.iter().filter(|shape| !before.contains_key(&shape.name)).cloned().collect();
        let mut report = MaintainReport::default();
        maintain::days(
            self.sql,
            self.schema,
            (&made, Dialect::Plain),
            &MaintainOptions::default(),
            &mut report,
        )?;
        if !report.created.is_empty() {
            self.report.actions.push(format!("make {} days of queues", report.created.len()));
        }
        Ok(())
    }

    /// Runs statements as one transaction.
    fn act(&mut self, what: &str, statements: &[String]) -> Result<(), SchemaError> {
        self.sql.script(&statements.join(";\n"))?;
        self.report.actions.push(what.to_owned());
        Ok(())
    }

    /// Drops everything, table by table: all at once would need more locks than a server has by default.
    /// `meta` is dropped first, so that an interrupted reset leaves no store behind.
    fn reset(&mut self) -> Result<(), SchemaError> {
        if !catalog::has_schema(self.sql, self.schema)? {
            return Ok(());
        }
        let present = catalog::read_columns(self.sql, self.schema)?;
        self.refuse_others(&present)?;
        let place = |table: &str| format!("{}.{}", quoted(self.schema), quoted(table));
        let views = quoted(&views::view_schema(self.schema));
        let mut statements = vec![format!("DROP SCHEMA IF EXISTS {views} CASCADE")];
        let (meta, rest): (Vec<&String>, Vec<&String>) = present.keys().partition(|name| *name == "meta");
        statements
            .extend(meta.into_iter().chain(rest).map(|table| format!("DROP TABLE {} CASCADE", place(table))));
        statements.push(format!("DROP SCHEMA {} CASCADE", quoted(self.schema)));
        for statement in statements {
            self.sql.script(&statement)?;
        }
        self.report.actions.push(format!("drop schema {}", self.schema));
        Ok(())
    }

    /// Writes the functions if they differ.
    fn functions(&mut self) -> Result<(), SchemaError> {
        let text = include_str!("functions.sql").replace("{schema}", &quoted(self.schema));
        let mark = super::fingerprint(&text);
        let probe = format!(
            "SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc p
             JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = {} AND p.proname = 'bz_serial'",
            literal(self.schema)
        );
        if self.sql.row(&probe)?.is_some_and(|row| row.text(0) == mark) {
            return Ok(());
        }
        let comment =
            format!("COMMENT ON FUNCTION {}.bz_serial() IS {}", quoted(self.schema), literal(&mark));
        self.act("write functions", &[text.trim_end().trim_end_matches(';').to_owned(), comment])
    }

    /// Gives the schema its identity. If its rows came from another cluster, makes sure that serials keep
    /// growing, since transaction ids of this cluster may be lower.
    fn identity(&mut self, meta: Option<&Meta>, shapes: &[TableShape]) -> Result<(), SchemaError> {
        let here = meta::cluster_id(self.sql)?;
        let place = format!("{}.meta", quoted(self.schema));
        let Some(meta) = meta else {
            if self.options.replica {
                return Ok(());
            }
            let (mut store_id, mut sip_key) = ([0; 16], [0; 16]);
            for bytes in [&mut store_id, &mut sip_key] {
                getrandom::fill(bytes)
                    .map_err(|e| SchemaError::Refused(format!("no random numbers: {e}")))?;
            }
            let currency = self.options.currency.as_deref().map_or_else(|| "NULL".to_owned(), literal);
            // Version 0 until everything is done, so that no service opens it.
            self.sql.script(&format!(
                "INSERT INTO {place} (singleton, store_id, sip_key, partitions, schema_version, program, serial_base, cluster_id,
                   currency, citus, created)
                 VALUES (true, '\\x{:032x}', '\\x{:032x}', {}, 0, '', 0, {here}, {currency}, {}, now())
                 ON CONFLICT DO NOTHING",
                u128::from_be_bytes(store_id),
                u128::from_be_bytes(sip_key),
                self.report.partitions,
                self.options.citus
            ))?;
            self.report.actions.push("give it an identity".to_owned());
            return Ok(());
        };
        if meta.cluster_id == here || self.options.replica {
            return Ok(());
        }
        self.lock()?;
        let mut highest = 0i64;
        for table in shapes {
            let Some(serial) =
                ["record_serial", "serial"].into_iter().find(|name| table.column(name).is_some())
            else {
                continue;
            };
            let text = format!(
                "SELECT max({}) FROM {}.{}",
                quoted(serial),
                quoted(self.schema),
                quoted(&table.name)
            );
            highest = highest.max(self.sql.row(&text)?.map_or(0, |row| row.number(0)));
        }
        let text = format!("SELECT serial_base + (pg_current_xact_id()::text::bigint << 16) FROM {place}");
        let next = self.sql.row(&text)?.map_or(0, |row| row.number(0));
        let base = if next > highest { meta.serial_base } else { ((highest >> 16) + 1) << 16 };
        // The writers of the other cluster no longer exist.
        let writers = format!("DELETE FROM {}.writers", quoted(self.schema));
        let update = format!("UPDATE {place} SET serial_base = {base}, cluster_id = {here}");
        self.act(
            &format!("move to this cluster: serials grow from {}", highest.max(next)),
            &[writers, update],
        )
    }

    /// Recomputes the index entries of tables.
    fn reindex(&mut self, layouts: &[Layout], tables: &[String]) -> Result<(), SchemaError> {
        if tables.is_empty() {
            return Ok(());
        }
        let Some(meta) = meta::read_meta(self.sql, self.schema)? else { return Ok(()) };
        for layout in layouts.iter().filter(|layout| {
            tables.contains(&layout.name) || layout.queue_name().is_some_and(|name| tables.contains(&name))
        }) {
            let rows = super::reindex::reindex(self.sql, layout, &meta.sip_key)?;
            if rows > 0 {
                self.report.actions.push(format!("index {rows} rows of {}", layout.name));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SchemaError> {
        let currency = self.options.currency.as_deref().map_or_else(|| "NULL".to_owned(), literal);
        let (version, program) = (self.history.version, literal(env!("CARGO_PKG_VERSION")));
        self.sql.script(&format!(
            "UPDATE {}.meta SET schema_version = {version}, program = {program}, currency = coalesce(currency, {currency})
             WHERE schema_version <> {version} OR program <> {program} OR currency IS NULL AND {currency} IS NOT NULL",
            quoted(self.schema)
        ))?;
        Ok(())
    }
}

/// The state of a database before dbinit.
struct SetupState {
    has_schema: bool,
    present: Present,
    version: Option<i32>,
    meta: Option<Meta>,
}

/// Maintenance options.
struct Planned {
    steps: Plan,
    changes: bool,
}

impl Planned {
    fn is_empty(&self) -> bool {
        self.steps.actions.is_empty() && self.steps.reindex.is_empty() && !self.changes
    }
}

/// A session on a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    /// The server process.
    pub pid: i64,
    /// Its application name.
    pub application: String,
    /// Its database user.
    pub user: String,
    /// Its client address.
    pub address: String,
}

impl std::fmt::Display for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, application, user, address } = self;
        write!(f, "{application} of {user} from {address} (server process {pid})")
    }
}

/// The sessions that hold the schema's lock, or whose application name says that they use it.
///
/// # Errors
/// The server's error.
pub(crate) fn sessions(sql: &mut dyn Sql, schema: &str) -> Result<Vec<Session>, SchemaError> {
    let key = meta::lock_key(schema).cast_unsigned();
    let (high, low) = (key >> 32, key & u64::from(u32::MAX));
    let rows = sql.rows(&format!(
        "SELECT DISTINCT a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, '?'),
           coalesce(host(a.client_addr), 'this machine')
         FROM pg_stat_activity a
         LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
           AND l.classid = {high} AND l.objid = {low}
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND (l.pid IS NOT NULL OR a.application_name = {})
         ORDER BY 1",
        literal(&format!("batzen-{schema}"))
    ))?;
    let session = |row: &super::Row| Session {
        pid: row.number(0),
        application: row.text(1).to_owned(),
        user: row.text(2).to_owned(),
        address: row.text(3).to_owned(),
    };
    Ok(rows.iter().map(session).collect())
}
