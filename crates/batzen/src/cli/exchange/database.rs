//! `batzen exchange dbinit`, `maintain` and `replication`: the exchange's tables in PostgreSQL.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_cli_support::services::Common;
use batzen_config::Config;
use batzen_exchange::config::ExchangeConfig;
use batzen_postgres::schema::dbinit::{self, DbinitOptions};
use batzen_postgres::schema::maintain::{self, MaintainOptions, MaintainReport};
use batzen_postgres::schema::{HISTORY, Sql, replication};
use batzen_postgres::{Connection, Target};
use batzen_service::storage::StoreConfig;
use batzen_tables::exchange;
use clap::Args;
use serde_json::{Value, json};

use super::garbage;

/// The schema of the exchange's tables.
const SCHEMA: &str = "exchange";

/// The database to work on.
#[derive(Args)]
pub(super) struct Database {
    #[command(flatten)]
    common: Common,
    /// The database, such as postgres:///exchange [default: from the configuration]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `exchange dbinit`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange dbinit -c /etc/taler/taler.conf
  batzen exchange dbinit --database postgres:///exchange --partitions 16
  batzen exchange dbinit --gc -c /etc/taler/taler.conf

It can be run again at any time: it adds missing tables, and otherwise changes nothing.
Stop all services before a change. Garbage may be collected while they run.")]
pub(super) struct DbinitArgs {
    #[command(flatten)]
    database: Database,
    /// Drop everything first. All rows are lost
    #[arg(short, long)]
    reset: bool,
    /// With --reset: do not ask on a terminal
    #[arg(short, long, requires = "reset")]
    yes: bool,
    /// Number of partitions of each hot table, 0 to 64; fixed once the tables exist [default: 0]
    #[arg(short = 'P', long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    partitions: Option<u16>,
    /// Distribute the tables over the nodes of a Citus cluster, 13.2 or newer
    #[arg(long)]
    citus: bool,
    /// With --citus: number of shards of each distributed table; fixed once it is distributed [default: two for
    /// each worker]
    #[arg(long, value_name = "N", requires = "citus", value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: Option<u16>,
    /// Prepare the tables to receive another database's rows by replication: see `exchange replication`
    #[arg(long, conflicts_with = "citus")]
    replica: bool,
    /// Then remove the rows that are no longer needed: empty reserves that have been kept long enough, executed
    /// transfers, old locks. Also for an embedded store
    #[arg(short, long)]
    gc: bool,
}

/// Options of `exchange maintain`.
#[derive(Args)]
#[command(after_help = "The exchange itself does the same every ten minutes.")]
pub(super) struct MaintainArgs {
    #[command(flatten)]
    database: Database,
    /// Number of days, from today, for which queues get their own partition
    #[arg(long, value_name = "DAYS", default_value_t = 31)]
    days: u16,
}

/// Options of `exchange replication`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange replication --setup --reader auditor -c /etc/taler/taler.conf
  batzen exchange replication --status --json -c /etc/taler/taler.conf")]
#[group(id = "what", required = true, multiple = false, args = ["setup", "status"])]
pub(super) struct ReplicationArgs {
    #[command(flatten)]
    database: Database,
    /// Publish the tables that an auditor needs, and print the commands for the auditor's server
    #[arg(long)]
    setup: bool,
    /// Show how far behind each subscriber is
    #[arg(long)]
    status: bool,
    /// With --setup: a database role that may read the tables and views
    #[arg(long, value_name = "ROLE", requires = "setup")]
    reader: Option<String>,
}

impl Database {
    /// The database and the configuration; `None` if the exchange keeps its rows elsewhere.
    fn url(&self) -> anyhow::Result<(Option<String>, Config)> {
        let ini = match self.common.load() {
            // The address alone is sufficient.
            Err(_) if self.database.is_some() && self.common.config.is_none() => Config::default(),
            other => other?,
        };
        if self.database.is_some() {
            return Ok((self.database.clone(), ini));
        }
        let url = match StoreConfig::database_of(&ini, SCHEMA)? {
            Some(StoreConfig::Postgres { url, .. }) => Some(url),
            _ => None,
        };
        Ok((url, ini))
    }

    /// Opens a session.
    fn connect(&self, application: &str) -> anyhow::Result<Connection> {
        match self.url()?.0 {
            Some(url) => connect(&url, application),
            None => bail!("[exchange] DB is not postgres: name a database with --database URL"),
        }
    }
}

fn connect(url: &str, application: &str) -> anyhow::Result<Connection> {
    let target = Target::parse(url)?.application(application).read_write().patient();
    Connection::open_session(&target).with_context(|| format!("the database {}", target.database()))
}

/// Creates, migrates or resets the exchange's tables, then collects garbage.
pub(super) async fn dbinit(args: DbinitArgs) -> anyhow::Result<ExitCode> {
    let (url, ini) = args.database.url()?;
    // The exchange's configuration, if garbage is to be collected: wrong options must not show up half-way.
    let config = args.gc.then(|| garbage_config(&ini, url.as_deref())).transpose()?;
    let (is_json, clock) = (args.database.json, args.database.common.timetravel.clock());
    let prepared = tokio::task::spawn_blocking(move || prepare(&args, url.as_deref(), &ini)).await?;
    let Some(mut facts) = prepared? else { return Ok(ExitCode::FAILURE) };
    if let Some(config) = config {
        let report = garbage::collect(config, clock).await?;
        facts["collected"] = garbage::json(&report);
        if !is_json {
            print!("{}", garbage::text(&report));
        }
    }
    if is_json {
        println!("{facts:#}");
    }
    Ok(ExitCode::SUCCESS)
}

fn garbage_config(ini: &Config, url: Option<&str>) -> anyhow::Result<ExchangeConfig> {
    let mut config = ExchangeConfig::from_ini(ini).context("--gc needs the exchange's configuration")?;
    if let Some(url) = url {
        config.store = StoreConfig::postgres(url.to_owned()).with_citus_direct(ini, SCHEMA)?;
    }
    Ok(config)
}

/// Creates, migrates or resets the tables. Returns what was done; none if the user does not want it.
fn prepare(args: &DbinitArgs, url: Option<&str>, ini: &Config) -> anyhow::Result<Option<Value>> {
    let Some(url) = url else {
        if args.reset || args.citus || args.replica {
            bail!("[exchange] DB is not postgres: to reset an embedded store, remove its directory");
        }
        if !args.gc {
            eprintln!("the exchange keeps its rows in a directory: nothing is to be prepared");
        }
        return Ok(Some(json!({ "actions": [] })));
    };
    let mut sql = connect(url, dbinit::APPLICATION)?;
    if args.reset && !args.yes && !confirmed(&mut sql)? {
        eprintln!("nothing was changed");
        return Ok(None);
    }
    let options = DbinitOptions {
        partitions: args.partitions,
        reset: args.reset,
        citus: args.citus,
        shards: args.shards,
        currency: ini.get("taler", "CURRENCY")?,
        replica: args.replica,
    };
    let report = dbinit::dbinit(&mut sql, SCHEMA, exchange::ALL, &options, &HISTORY)?;
    if !args.database.json {
        for action in &report.actions {
            eprintln!("{action}");
        }
        if report.actions.is_empty() {
            eprintln!("the schema {SCHEMA} needs no changes");
        }
    }
    Ok(Some(json!({
        "schema": SCHEMA,
        "from_version": report.from_version,
        "version": report.version,
        "partitions": report.partitions,
        "actions": report.actions,
    })))
}

/// Asks on a terminal before rows are dropped; scripts confirm with the option.
fn confirmed(sql: &mut Connection) -> anyhow::Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(true);
    }
    let row = sql.row("SELECT current_database()")?.context("the server gives no answer")?;
    eprint!("This drops the exchange's tables in the database {}, with all rows. Type yes: ", row.text(0));
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// Runs the periodic maintenance once.
pub(super) fn maintain(args: &MaintainArgs) -> anyhow::Result<ExitCode> {
    let mut sql = args.database.connect("batzen-maintain")?;
    batzen_postgres::schema::check(&mut sql, SCHEMA, exchange::ALL)?;
    let options = MaintainOptions { days_ahead: args.days, ..MaintainOptions::default() };
    let report = maintain::maintain(&mut sql, SCHEMA, exchange::ALL, &options)?;
    if args.database.json {
        let facts = json!({
            "elsewhere": report.elsewhere,
            "created": report.created,
            "dropped": report.dropped,
            "postponed": report.postponed,
            "analyzed": report.analyzed,
            "writers_removed": report.writers_removed,
        });
        println!("{facts:#}");
        return Ok(ExitCode::SUCCESS);
    }
    if report.elsewhere {
        eprintln!("another process is at it");
    } else if report == MaintainReport::default() {
        eprintln!("nothing was to be done");
    }
    for (what, names) in [
        ("created", &report.created),
        ("dropped", &report.dropped),
        ("not now, its lock was taken:", &report.postponed),
        ("gathered statistics of", &report.analyzed),
    ] {
        for name in names {
            println!("{what} {name}");
        }
    }
    if report.writers_removed > 0 {
        println!("forgot {} writers", report.writers_removed);
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets up the replication to auditors, or reports on it.
pub(super) fn replication(args: &ReplicationArgs) -> anyhow::Result<ExitCode> {
    let mut sql = args.database.connect("batzen-replication")?;
    batzen_postgres::schema::check(&mut sql, SCHEMA, exchange::ALL)?;
    if args.setup {
        let report = replication::setup(&mut sql, SCHEMA, exchange::AUDITED, args.reader.as_deref())?;
        if args.database.json {
            let facts = json!({
                "publication": report.publication,
                "tables": report.tables,
                "actions": report.actions,
                "commands": report.commands,
            });
            println!("{facts:#}");
            return Ok(ExitCode::SUCCESS);
        }
        for action in &report.actions {
            eprintln!("{action}");
        }
        eprintln!(
            "{} tables are published as {}. On the auditor's server:",
            report.tables.len(),
            report.publication
        );
        for command in &report.commands {
            println!("{command}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let slots = replication::lag(&mut sql)?;
    if args.database.json {
        let slots: Vec<_> = slots
            .iter()
            .map(|slot| {
                json!({
                    "slot": slot.slot,
                    "connected": slot.active,
                    "lag_bytes": slot.bytes,
                    "lag_seconds": slot.millis.map(|millis| std::time::Duration::from_millis(millis).as_secs_f64()),
                })
            })
            .collect();
        println!("{:#}", json!({ "slots": slots }));
        return Ok(ExitCode::SUCCESS);
    }
    if slots.is_empty() {
        println!("there is no subscriber");
    }
    for slot in slots {
        let state = match slot.millis {
            Some(millis) => {
                format!("{:.1} seconds behind", std::time::Duration::from_millis(millis).as_secs_f64())
            }
            None => "not connected: the server keeps its log".to_owned(),
        };
        println!("{}: {} bytes, {state}", slot.slot, slot.bytes);
    }
    Ok(ExitCode::SUCCESS)
}
