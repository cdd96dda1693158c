//! `batzen-lab bench pgbench`: PostgreSQL's own benchmark on a server like that of the other scenarios, to
//! measure the server itself.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use batzen_testkit::postgres::Installation;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Context;
use super::workers::{RunDirectory, Shape, blank};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::on_cores;
use crate::bench::results::result::{LimitedBy, Load, Run};
use crate::bench::scenarios::database::{Database, StoreKind, StoreOptions, Used};
use crate::bench::scenarios::options::{self, RunOptions};

/// The transaction of pgbench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Script {
    /// Three updates, a read and an insert
    TpcbLike,
    /// An update, a read and an insert, without the rows that all clients update
    SimpleUpdate,
    /// One read by key
    SelectOnly,
}

impl Script {
    const fn name(self) -> &'static str {
        match self {
            Self::TpcbLike => "tpcb-like",
            Self::SimpleUpdate => "simple-update",
            Self::SelectOnly => "select-only",
        }
    }
}

/// Arguments of `batzen-lab bench pgbench`.
#[derive(Args, Clone, Debug)]
pub struct PgbenchArgs {
    /// The built-in script
    #[arg(long, value_enum, default_value_t = Script::SimpleUpdate)]
    pub(crate) script: Script,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=150))]
    pub(crate) clients: u32,
    /// pgbench's scale factor: 100,000 rows per unit
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) scale: u32,
    /// Length of the measured part
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = options::measured_duration)]
    pub(crate) duration: Duration,
    /// An empty PostgreSQL database to use instead of a throw-away server's
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// A setting of the throw-away server (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) postgres_set: Vec<String>,
    /// Where to run, and where to put the result.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &PgbenchArgs, context: &Context) -> Result<Run> {
    let store = StoreOptions {
        store: Some(StoreKind::Postgres),
        database: args.database.clone(),
        postgres_set: args.postgres_set.clone(),
        ..StoreOptions::default()
    };
    store.check()?;
    let run_dir = RunDirectory::new("pgbench", &args.run)?;
    let database = Database::start(&store, &run_dir.placement)?.expect("PostgreSQL was chosen");
    let failed = |reason: String| BenchError::set_up("pgbench", reason);
    let program = Installation::find().map_err(|error| failed(error.to_string()))?.bin.join("pgbench");
    let pgbench = |arguments: &[&str]| -> Result<String> {
        let output = on_cores(&run_dir.placement.client, || {
            Command::new(&program).args(arguments).arg(database.url()).stdin(Stdio::null()).output()
        })?;
        let output = output.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    pgbench(&["-i", "-q", "-s", &args.scale.to_string()])?;
    database.settle()?;
    let (clients, seconds) = (args.clients.to_string(), args.duration.as_secs().max(1).to_string());
    let threads = run_dir.placement.client_count().min(args.clients as usize).to_string();
    let mut load = vec!["-n", "-M", "prepared", "-c", &clients, "-j", &threads, "-T", &seconds];
    load.extend(["-b", args.script.name()]);
    let before = database.snapshot();
    let said = pgbench(&load)?;
    let used = Used::between(before, database.snapshot())?;
    let number = |name: &str| -> Result<f64> {
        let rest = said.lines().find_map(|line| line.strip_prefix(name));
        let word = rest.and_then(|rest| rest.trim_start_matches([' ', '=', ':']).split([' ', '/']).next());
        word.and_then(|word| word.parse().ok()).ok_or_else(|| failed(format!("no {name:?} in: {said}")))
    };
    let per_second = number("tps")?;
    let transactions = number("number of transactions actually processed")?;
    let average_us = number("latency average")? * 1e3;
    let shape = Shape {
        scenario: "pgbench",
        title: format!("pgbench {}", args.script.name()),
        unit: "transactions",
        parameters: BTreeMap::from([
            ("clients".to_owned(), json!(args.clients)),
            ("scale".to_owned(), json!(args.scale)),
        ]),
        remarks: Vec::new(),
    };
    let mut result =
        blank(context, &run_dir.placement, shape, transactions as u64, transactions / per_second);
    result.load = Load::Closed { clients: args.clients as usize };
    result.parameters.extend(database.parameters()?);
    result.extra.insert("latency_average_us".to_owned(), average_us);
    used.show(&mut result);
    let busy = used.cpu_ns as f64 / 1e9 / result.duration_s;
    result.extra.insert("server_cores_busy".to_owned(), busy);
    let is_full = busy > 0.9 * run_dir.placement.server_count() as f64;
    result.limited_by = LimitedBy::of(is_full, false);
    Ok(Run { path: run_dir.directory.clone(), result, series: Vec::new(), latency: Vec::new() })
}
