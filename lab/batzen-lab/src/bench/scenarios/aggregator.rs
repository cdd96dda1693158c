//! aggregator: how many deposits per second become prepared transfers.

use std::collections::BTreeMap;

use batzen_exchange::workers::aggregator;
use clap::Args;
use serde_json::json;

use super::workers::{Shape, WorkerOptions, WorkerRun};
use super::{Context, fill};
use crate::bench::BenchError;
use crate::bench::results::result::Run;

/// Turn due deposits into transfers to merchants
#[derive(Args, Clone, Debug)]
pub struct AggregatorArgs {
    /// Number of due deposits
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) deposits: u64,
    /// Number of merchants, who receive the deposits in turn
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) merchants: u64,
    /// Options of all workers' scenarios.
    #[command(flatten)]
    pub options: WorkerOptions,
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &AggregatorArgs, context: &Context) -> Result<Run, BenchError> {
    let worker = WorkerRun::start("aggregator", &args.options, context, None)?;
    let in_process = &worker.in_process;
    let stats = || in_process.app().core.store.stats();
    let before = stats();
    fill::deposits(in_process, args.deposits, args.merchants, args.options.seed)?;
    let filled = stats();
    in_process.settle()?;
    let per_deposit = |grown: u64| grown as f64 / args.deposits as f64;
    let shape = Shape {
        scenario: "aggregator",
        title: format!("aggregator, {} deposits of {} merchants", args.deposits, args.merchants),
        unit: "deposits",
        parameters: BTreeMap::from([
            ("deposits".to_owned(), json!(args.deposits)),
            ("merchants".to_owned(), json!(args.merchants)),
        ]),
        remarks: vec![
            "the deposits, of RSA-2048 coins, were generated and went through the rules".to_owned(),
        ],
    };
    let (mut run, progress) = worker.measure(
        shape,
        (args.deposits, "aggregated"),
        |app| app.core.metrics.workers.deposits.get(),
        |app| async move { aggregator::run_until_idle(&app.core).await },
    )?;
    let extra = &mut run.result.extra;
    extra.insert("transfers".to_owned(), progress.done as f64);
    extra.insert(
        "open_deposit_bytes_disk".to_owned(),
        per_deposit(filled.written_bytes_total - before.written_bytes_total),
    );
    extra.insert("open_deposit_bytes_index".to_owned(), per_deposit(filled.index_bytes - before.index_bytes));
    Ok(run)
}
