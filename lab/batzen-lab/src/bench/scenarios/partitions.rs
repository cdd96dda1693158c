//! `batzen-lab bench partitions`: the same payments on the embedded store and on PostgreSQL with a growing number
//! of partitions, then pgbench on the same kind of server.

use std::path::Path;

use batzen_cli_support::numbers::{self, number, optional};
use clap::Args;

use super::pgbench::{self, PgbenchArgs};
use super::{Context, deposit};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::result::Run;
use crate::bench::results::words::line;
use crate::bench::scenarios::database::{StoreKind, StoreOptions};

/// Arguments of `batzen-lab bench partitions`.
#[derive(Args, Clone, Debug)]
pub struct PartitionsArgs {
    /// Numbers of partitions
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0,1,2,4,8,16,32,64",
        value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) counts: Vec<u32>,
    /// Leave out the embedded store and pgbench
    #[arg(long)]
    pub(crate) postgres_only: bool,
    /// The payments.
    #[command(flatten)]
    pub deposit: deposit::BatchDepositArgs,
}

/// Runs all of them; each run gets its own directory below the common one.
///
/// # Errors
/// When one of them cannot produce a result.
pub fn run(args: &PartitionsArgs, context: &Context) -> Result<Vec<Run>> {
    let options = &args.deposit.deposit.run;
    check(&args.deposit.deposit.load.store)?;
    let base = options.out.clone().unwrap_or_else(|| super::default_directory("partitions"));
    let mut runs = Vec::new();
    if !args.postgres_only {
        runs.push(pay(args, context, &base.join("embedded"), |store| {
            store.store = Some(StoreKind::Embedded);
            store.postgres_set.clear();
        })?);
    }
    for partitions in &args.counts {
        let directory = base.join(format!("partitions-{partitions:02}"));
        runs.push(pay(args, context, &directory, |store| {
            store.store = Some(StoreKind::Postgres);
            store.partitions = *partitions;
        })?);
    }
    if !args.postgres_only {
        for script in [pgbench::Script::SimpleUpdate, pgbench::Script::TpcbLike] {
            let mut run = options.clone();
            run.out = Some(base.join(format!("pgbench-{script:?}").to_lowercase()));
            let load = &args.deposit.deposit.load;
            let (duration, postgres_set) = (load.duration, load.store.postgres_set.clone());
            let database = None;
            let args = PgbenchArgs { script, clients: 32, scale: 10, duration, database, postgres_set, run };
            runs.push(pgbench::run(&args, context)?);
        }
    }
    Ok(runs)
}

/// This scenario chooses its stores itself, so options that choose another one are refused.
fn check(store: &StoreOptions) -> Result<()> {
    let refuse = |what: &str| Err(BenchError::Usage(what.to_owned()));
    if store.partitions > 0 {
        return refuse("bench partitions measures several numbers of partitions: --counts chooses them");
    }
    if store.store.is_some() {
        return refuse("bench partitions measures both stores: leave out --store, or use --postgres-only");
    }
    if store.database.is_some() {
        return refuse("bench partitions starts a server for each run: leave out --database");
    }
    StoreOptions { store: Some(StoreKind::Postgres), ..store.clone() }.check()
}

fn pay(
    args: &PartitionsArgs,
    context: &Context,
    directory: &Path,
    choose: impl FnOnce(&mut StoreOptions),
) -> Result<Run> {
    let mut args = args.deposit.clone();
    args.deposit.run.out = Some(directory.to_owned());
    choose(&mut args.deposit.load.store);
    if args.batch > 1 { deposit::run_batch(&args, context) } else { deposit::run(&args.deposit, context) }
}

/// All runs in a table; ratios are relative to the run without partitions.
#[must_use]
pub fn summary(runs: &[Run]) -> String {
    let is_whole = |run: &&Run| run.result.parameters.get("partitions") == Some(&serde_json::json!(0));
    let whole = runs.iter().filter(|run| run.result.scenario != "pgbench").find(is_whole);
    let widths = [10, 6, 9, 9, 10];
    let mut text = String::new();
    line(&mut text, &" ".repeat(48), &widths, ["a second", "ratio", "CPU µs", "DB µs", "statements"]);
    for run in runs {
        let result = &run.result;
        let figure = |name: &str| result.extra.get(name).copied();
        let ratio = whole.filter(|_| result.scenario != "pgbench");
        let ratio = ratio.map(|whole| result.ops_per_s / whole.result.ops_per_s);
        let figures = [
            number(result.ops_per_s),
            ratio.map_or_else(|| "–".to_owned(), numbers::ratio),
            optional(result.cpu_us_per_op),
            optional(figure("database_cpu_us_per_op")),
            optional(figure("statements_per_op")),
        ];
        line(&mut text, &format!("{:<48}", result.title), &widths, figures);
    }
    text
}
