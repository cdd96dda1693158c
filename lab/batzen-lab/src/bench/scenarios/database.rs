//! PostgreSQL under the exchange: a throw-away server on the same cores, or an existing one. Also measures
//! what it did per operation: statements, commits, journal, processor time.

use std::collections::BTreeMap;
use std::thread::JoinHandle;

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, PgError, Target};
use batzen_testkit::postgres::{CitusCluster, Cluster, ClusterError, ClusterOptions};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{Placement, on_cores};
use crate::bench::load::procfs::CpuTime;
use crate::bench::results::machine::Machine;
use crate::bench::results::result::{BytesPerOp, RunResult};

/// The database of the exchange in a throw-away server.
const DATABASE: &str = "exchange";

/// Settings that are shown with the result, because the figures depend on them.
const SHOWN: [&str; 21] = [
    "server_version",
    "shared_buffers",
    "effective_cache_size",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "wal_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "checkpoint_completion_target",
    "autovacuum",
    "random_page_cost",
    "effective_io_concurrency",
    "max_connections",
    "jit",
    "huge_pages",
    "commit_delay",
    "track_io_timing",
    "shared_preload_libraries",
];

/// The storage of the exchange's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// Batzen's own journal and indexes
    Embedded,
    /// PostgreSQL: a throw-away server on the server's cores
    Postgres,
}

/// Where the exchange keeps its rows.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Store")]
pub struct StoreOptions {
    /// Storage of the exchange's rows [default: embedded; with --database postgres]
    #[arg(long, value_enum)]
    pub(crate) store: Option<StoreKind>,
    /// An empty PostgreSQL database to use instead of a throw-away server's
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// Partitions of each hot table in PostgreSQL; 0: not partitioned
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) partitions: u32,
    /// Workers of a throw-away Citus cluster, instead of one server. The extension must be installed
    #[arg(long, value_name = "N", conflicts_with_all = ["database", "partitions"], value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) citus: Option<u8>,
    /// Lanes of each exchange process on the database [default: as the exchange chooses]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) lanes: Option<u8>,
    /// A setting of the throw-away server, for example shared_buffers=1GB (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) postgres_set: Vec<String>,
}

impl StoreOptions {
    /// Returns whether the storage is PostgreSQL.
    pub(crate) fn is_postgres(&self) -> bool {
        self.store == Some(StoreKind::Postgres) || self.database.is_some() || self.citus.is_some()
    }

    /// Returns whether any option was given.
    pub(crate) fn is_given(&self) -> bool {
        let is_chosen = self.store.is_some() || self.is_postgres() || self.lanes.is_some();
        is_chosen || self.partitions > 0 || !self.postgres_set.is_empty()
    }

    /// Checks that the options are consistent. An option without effect is refused; otherwise the figures
    /// would seem to be those of the option.
    ///
    /// # Errors
    /// The inconsistency, and how to resolve it.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(BenchError::Usage(what.to_owned()));
        if self.store == Some(StoreKind::Embedded) && self.database.is_some() {
            return refuse("--database is a PostgreSQL database: leave out --store embedded, or --database");
        }
        if self.lanes.is_some() && !self.is_postgres() {
            return refuse("--lanes is for a database: see batzen-lab bench lanes for the embedded store");
        }
        if self.store == Some(StoreKind::Embedded) && self.citus.is_some() {
            return refuse("--citus is a cluster of PostgreSQL: leave out --store embedded, or --citus");
        }
        if !self.is_postgres() && self.partitions > 0 {
            return refuse(
                "--partitions: only PostgreSQL has partitions; add --store postgres or --database",
            );
        }
        if !self.is_postgres() && !self.postgres_set.is_empty() {
            return refuse("--postgres-set is for a throw-away PostgreSQL server; add --store postgres");
        }
        if self.database.is_some() && !self.postgres_set.is_empty() {
            return refuse(
                "--postgres-set is for a throw-away server; set it at the server of --database, or leave --database out",
            );
        }
        self.postgres_set.iter().try_for_each(|setting| name_and_value(setting).map(drop))
    }

    /// The part of a run's title that names the storage.
    pub(crate) fn title(&self) -> String {
        match (self.is_postgres(), self.partitions) {
            (false, _) => String::new(),
            (true, 0) if self.citus.is_some() => {
                format!(", Citus with {} workers", self.citus.unwrap_or_default())
            }
            (true, 0) => ", PostgreSQL".to_owned(),
            (true, partitions) => format!(", PostgreSQL in {partitions} partitions"),
        }
    }
}

pub(crate) struct Database {
    cluster: Option<Cluster>,
    /// Kept while the workers are used.
    citus: Option<CitusCluster>,
    url: String,
    options: StoreOptions,
    /// The postmasters' process ids, if they run on this machine. Of a Citus cluster, the coordinator's is first.
    postmasters: Vec<u32>,
    has_statements: bool,
}

/// The counters of a database up to one moment.
#[derive(Clone, Debug, Default)]
struct Counters {
    /// `None` without `pg_stat_statements`.
    statements: Option<f64>,
    commits: f64,
    rollbacks: f64,
    deadlocks: f64,
    blocks_read: f64,
    blocks_hit: f64,
    wal_bytes: f64,
    bytes: f64,
}

/// The resources that a database has used up to one moment.
pub(crate) struct Snapshot {
    cpu_ns: u64,
    /// CPU time of a Citus cluster's coordinator.
    coordinator_cpu_ns: Option<u64>,
    /// The query runs on its own thread, because the load must not wait for it.
    counters: JoinHandle<Result<Counters, String>>,
    serialization_failures: u64,
}

fn failed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> BenchError + '_ {
    move |reason| BenchError::set_up(what, reason)
}

impl Database {
    /// Starts a throw-away server on the server's cores, or connects to the given database. `None`: the store
    /// is embedded.
    pub(crate) fn start(options: &StoreOptions, placement: &Placement) -> Result<Option<Self>> {
        if !options.is_postgres() {
            return Ok(None);
        }
        let wrong = |error: ClusterError| BenchError::set_up("PostgreSQL", error);
        let mut citus = None;
        let (cluster, url) = match (&options.database, options.citus) {
            (Some(url), _) => (None, url.clone()),
            (None, Some(workers)) => {
                let settings = settings(options)?;
                let start = || CitusCluster::start(workers.into(), &settings);
                let cluster = on_cores(&placement.server, start)?.map_err(wrong)?;
                let url = cluster.create_database(DATABASE).map_err(wrong)?;
                citus = Some(cluster);
                (None, url)
            }
            (None, None) => {
                let settings = settings(options)?;
                let cluster = on_cores(&placement.server, || Cluster::start(&settings))?.map_err(wrong)?;
                let url = cluster.create_database(DATABASE).map_err(wrong)?;
                cluster.sql(DATABASE, "CREATE EXTENSION pg_stat_statements").map_err(wrong)?;
                (Some(cluster), url)
            }
        };
        let mut database = Self {
            postmasters: cluster
                .iter()
                .chain(citus.iter().flat_map(CitusCluster::nodes))
                .filter_map(Cluster::pid)
                .collect(),
            cluster,
            citus,
            url,
            options: options.clone(),
            has_statements: false,
        };
        let found = database.sql("SELECT count(*) FROM pg_extension WHERE extname = 'pg_stat_statements'")?;
        database.has_statements = found == "1";
        if database.postmasters.is_empty() {
            let child =
                database.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")?;
            database.postmasters.extend(child.parse().ok().and_then(parent_of_postgres));
        }
        Ok(Some(database))
    }

    /// The URL of the database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The part of a run's title that names the database.
    pub(crate) fn title(&self) -> String {
        self.options.title()
    }

    /// The database section of an exchange's configuration.
    pub(crate) fn configuration(&self) -> String {
        let lanes = self.options.lanes.map_or_else(String::new, |lanes| format!("LANES = {lanes}\n"));
        format!("\n[exchange]\nDB = postgres\n{lanes}\n[exchangedb-postgres]\nCONFIG = {}\n", self.url)
    }

    /// Creates the tables of an exchange.
    pub(crate) fn make_tables(&self) -> Result<()> {
        let partitions = u16::try_from(self.options.partitions).ok();
        let citus = self.sql("SELECT count(*) FROM pg_extension WHERE extname = 'citus'")? == "1";
        let options = DbinitOptions { partitions, citus, ..DbinitOptions::default() };
        let mut connection = connect(&self.url).map_err(failed("cannot reach PostgreSQL"))?;
        let tables = batzen_tables::exchange::ALL;
        let made = dbinit(&mut connection, DATABASE, tables, &options, &HISTORY);
        made.map(drop).map_err(|error| BenchError::set_up("dbinit", error))
    }

    fn sql(&self, text: &str) -> Result<String> {
        ask(&self.url, text).map_err(failed("cannot ask PostgreSQL"))
    }

    /// Updates the planner's statistics, as the server's own upkeep does after a while.
    pub(crate) fn settle(&self) -> Result<()> {
        self.sql("VACUUM (ANALYZE)")?;
        self.sql("CHECKPOINT").map(drop)
    }

    /// The chosen settings, for the result.
    pub(crate) fn parameters(&self) -> Result<BTreeMap<String, Value>> {
        let names: Vec<String> = SHOWN.iter().map(|name| format!("'{name}'")).collect();
        let query = format!(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name IN ({}) ORDER BY name",
            names.join(",")
        );
        let text = self.sql(&query)?;
        let settings: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('|')).collect();
        Ok(BTreeMap::from([
            ("store".to_owned(), json!("postgres")),
            ("partitions".to_owned(), json!(self.options.partitions)),
            ("postgres".to_owned(), json!(settings)),
        ]))
    }

    /// Returns the resources that it has used up to now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let url = self.url.clone();
        let statements = if self.has_statements {
            "(SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements s JOIN pg_database b ON b.oid = s.dbid
              WHERE b.datname = current_database())"
        } else {
            "'none'"
        };
        let query = format!(
            "SELECT {statements}, xact_commit, xact_rollback, deadlocks, blks_read, blks_hit,
             pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), pg_database_size(current_database())
             FROM pg_stat_database WHERE datname = current_database()"
        );
        let ask = move || Counters::read(&ask(&url, &query).map_err(|error| error.to_string())?);
        Snapshot {
            cpu_ns: self.cpu_ns(),
            coordinator_cpu_ns: self.citus.as_ref().and(self.postmasters.first()).map(|pid| cpu_of(*pid)),
            counters: std::thread::spawn(ask),
            serialization_failures: self.serialization_failures(),
        }
    }

    /// CPU time of all its processes. Processes that have ended are included through the kernel's sum over
    /// children.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.postmasters.iter().map(|postmaster| cpu_of(*postmaster)).sum()
    }

    /// Transactions that the server refused because of concurrent ones, according to its log.
    fn serialization_failures(&self) -> u64 {
        let Some(cluster) = &self.cluster else { return 0 };
        let log = cluster.log();
        log.lines().filter(|line| line.contains("<40001>") || line.contains("<40P01>")).count() as u64
    }
}

/// CPU time of a server's processes.
fn cpu_of(postmaster: u32) -> u64 {
    let children = processes().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == postmaster));
    let ended = stat(postmaster).map_or(0, |stat| stat.ended_children_ns);
    children.chain([postmaster]).map(|pid| CpuTime::of(pid).total_ns()).sum::<u64>() + ended
}

impl Counters {
    fn read(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let number = |index: usize| -> Result<f64, String> {
            fields.get(index).and_then(|text| text.parse().ok()).ok_or_else(|| format!("unexpected {line:?}"))
        };
        Ok(Self {
            statements: if fields.first() == Some(&"none") { None } else { Some(number(0)?) },
            commits: number(1)?,
            rollbacks: number(2)?,
            deadlocks: number(3)?,
            blocks_read: number(4)?,
            blocks_hit: number(5)?,
            wal_bytes: number(6)?,
            bytes: number(7)?,
        })
    }
}

/// The resources that a database used between two moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    /// CPU time of all its processes.
    pub(crate) cpu_ns: u64,
    figures: Vec<(&'static str, f64, bool)>,
    wal_bytes: f64,
}

impl Used {
    /// The difference between two snapshots.
    pub(crate) fn between(first: Snapshot, last: Snapshot) -> Result<Self> {
        let read = |snapshot: JoinHandle<Result<Counters, String>>| {
            let counters = snapshot.join().unwrap_or_else(|_| Err("the question broke down".to_owned()));
            counters.map_err(failed("cannot ask PostgreSQL"))
        };
        let (from, to) = (read(first.counters)?, read(last.counters)?);
        let cpu_ns = last.cpu_ns.saturating_sub(first.cpu_ns);
        let wal_bytes = to.wal_bytes - from.wal_bytes;
        let blocks = (to.blocks_read - from.blocks_read, to.blocks_hit - from.blocks_hit);
        let mut figures = vec![
            ("database_cpu_us", cpu_ns as f64 / 1e3, true),
            ("database_commits", to.commits - from.commits, true),
            ("wal_bytes", wal_bytes, true),
            ("database_bytes", to.bytes - from.bytes, true),
            ("database_rollbacks", to.rollbacks - from.rollbacks, false),
            ("database_deadlocks", to.deadlocks - from.deadlocks, false),
            ("cache_hit_share", blocks.1 / (blocks.0 + blocks.1).max(1.0), false),
            (
                "serialization_failures",
                last.serialization_failures.saturating_sub(first.serialization_failures) as f64,
                false,
            ),
        ];
        if let (Some(from), Some(to)) = (from.statements, to.statements) {
            figures.push(("statements", to - from, true));
        }
        if let (Some(from), Some(to)) = (first.coordinator_cpu_ns, last.coordinator_cpu_ns) {
            // The other figures would be the coordinator's alone.
            figures.retain(|(name, ..)| *name == "database_cpu_us");
            let coordinator = to.saturating_sub(from) as f64;
            figures.push(("coordinator_cpu_share", coordinator / (cpu_ns as f64).max(1.0), false));
            return Ok(Self { cpu_ns, figures, wal_bytes: 0.0 });
        }
        Ok(Self { cpu_ns, figures, wal_bytes })
    }

    /// Adds the figures to a result whose operations are known.
    pub(crate) fn show(&self, result: &mut RunResult) {
        let ops = (result.ops as f64).max(1.0);
        for (name, value, is_per_op) in &self.figures {
            let (name, value) = if *is_per_op {
                (format!("{name}_per_op"), value / ops)
            } else {
                ((*name).to_owned(), *value)
            };
            result.extra.insert(name, value);
        }
        let ram = result.bytes_per_op.map_or(0.0, |bytes| bytes.ram);
        result.bytes_per_op = Some(BytesPerOp { disk: self.wal_bytes / ops, ram });
    }
}

/// The settings of a throw-away server: those that `batzen doctor` would recommend for this machine, with
/// full durability and statement statistics.
fn settings(options: &StoreOptions) -> Result<ClusterOptions> {
    let memory_mb = Machine::detect().memory_bytes >> 20;
    // The nodes of a Citus cluster share it.
    let servers = options.citus.map_or(1, |workers| u64::from(workers) + 1);
    let buffers_mb = (memory_mb / 4 / servers).clamp(64, 8 << 10);
    let cache_mb = (memory_mb * 3 / 4).max(256);
    let mut cluster = ClusterOptions { is_small: false, ..ClusterOptions::default() }
        .set("shared_buffers", &format!("{buffers_mb}MB"))
        .set("effective_cache_size", &format!("{cache_mb}MB"))
        .set("max_wal_size", "16GB")
        .set("min_wal_size", "1GB")
        .set("wal_buffers", "64MB")
        .set("checkpoint_timeout", "15min")
        .set("random_page_cost", "1.1")
        .set("max_connections", "200")
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("log_line_prefix", "%m [%p] <%e> ");
    for setting in &options.postgres_set {
        let (name, value) = name_and_value(setting)?;
        cluster = cluster.set(name, value);
    }
    Ok(cluster)
}

fn name_and_value(setting: &str) -> Result<(&str, &str)> {
    let (name, value) = setting
        .split_once('=')
        .ok_or_else(|| BenchError::Usage(format!("--postgres-set {setting}: expected NAME=VALUE")))?;
    Ok((name.trim(), value.trim()))
}

fn connect(url: &str) -> Result<Connection, PgError> {
    Connection::open(&Target::parse(url)?.application("batzen-bench"))
}

/// The rows of an answer, one per line, with `|` between columns.
fn ask(url: &str, text: &str) -> Result<String, PgError> {
    let rows = connect(url)?.query_text(text)?;
    let line = |row: Vec<Option<String>>| {
        row.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join("|")
    };
    Ok(rows.into_iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

struct Stat {
    name: String,
    parent: u32,
    ended_children_ns: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text[close + 1..].split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        name: text[open + 1..close].to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        ended_children_ns: (ticks(13)? + ticks(14)?) * 10_000_000,
    })
}

/// The parent of one of PostgreSQL's processes, if it runs on this machine.
fn parent_of_postgres(pid: u32) -> Option<u32> {
    let stat = stat(pid).filter(|stat| stat.name.starts_with("postgres"))?;
    Some(stat.parent)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::results::result::tests::sample_run;

    #[test]
    fn counters_are_read_with_and_without_statements() {
        let counters = Counters::read("12|3|0|1|5|95|1000|2000\n").unwrap();
        assert_eq!((counters.statements, counters.deadlocks, counters.bytes), (Some(12.0), 1.0, 2_000.0));
        assert_eq!(Counters::read("none|3|0|0|5|95|1000|2000").unwrap().statements, None);
        assert!(Counters::read("").is_err() && Counters::read("1|2|3").is_err());
    }

    #[test]
    fn options_without_effect_are_refused() {
        let none = StoreOptions::default();
        let url = Some("postgres://localhost/x".to_owned());
        let (embedded, postgres) = (Some(StoreKind::Embedded), Some(StoreKind::Postgres));
        let settings = vec!["shared_buffers=1GB".to_owned()];
        for fitting in [
            none.clone(),
            StoreOptions { store: embedded, ..none.clone() },
            StoreOptions { database: url.clone(), partitions: 8, ..none.clone() },
            StoreOptions { store: postgres, partitions: 8, postgres_set: settings.clone(), ..none.clone() },
        ] {
            assert!(fitting.check().is_ok(), "{fitting:?}");
        }
        for (options, hint) in [
            (StoreOptions { lanes: Some(3), ..none.clone() }, "batzen-lab bench lanes"),
            (StoreOptions { partitions: 8, ..none.clone() }, "--store postgres"),
            (StoreOptions { postgres_set: settings.clone(), ..none.clone() }, "--store postgres"),
            (StoreOptions { store: embedded, partitions: 8, ..none.clone() }, "--store postgres"),
            (StoreOptions { store: embedded, database: url.clone(), ..none.clone() }, "--store embedded"),
            (StoreOptions { database: url, postgres_set: settings, ..none.clone() }, "at the server"),
            (StoreOptions { store: postgres, postgres_set: vec!["x".into()], ..none }, "NAME=VALUE"),
        ] {
            match options.check() {
                Err(BenchError::Usage(reason)) => assert!(reason.contains(hint), "{options:?}: {reason}"),
                other => panic!("{options:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_throw_away_server_counts_what_it_does() {
        let options = StoreOptions {
            store: Some(StoreKind::Postgres),
            partitions: 4,
            postgres_set: vec!["shared_buffers=32MB".into()],
            ..StoreOptions::default()
        };
        let placement = Placement::choose(None, None).unwrap();
        let database = Database::start(&options, &placement).unwrap().unwrap();
        assert_eq!(database.title(), ", PostgreSQL in 4 partitions");
        let shown = database.parameters().unwrap();
        let settings = shown["postgres"].as_object().unwrap();
        assert_eq!(settings["shared_buffers"], "32MB");
        for durable in ["fsync", "synchronous_commit", "full_page_writes"] {
            assert_eq!(settings[durable], "on");
        }
        let before = database.snapshot();
        database.sql("CREATE TABLE a AS SELECT generate_series(1, 50000) AS b").unwrap();
        let used = Used::between(before, database.snapshot()).unwrap();
        let mut run = sample_run(Path::new("somewhere"));
        run.result.ops = 10;
        used.show(&mut run.result);
        let figure = |name: &str| run.result.extra[name];
        assert!(figure("statements_per_op") > 0.0 && figure("database_cpu_us_per_op") > 0.0);
        assert!(figure("wal_bytes_per_op") > 5_000.0 && figure("database_bytes_per_op") > 50_000.0);
        assert!(figure("serialization_failures") == 0.0);
        assert!(matches!(
            Database::start(&StoreOptions { postgres_set: vec!["x".into()], ..options }, &placement),
            Err(BenchError::Usage(_))
        ));
    }
}
