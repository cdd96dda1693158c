//! transfer: prepared transfers per second that the bank executes and the exchange records.

use std::collections::BTreeMap;

use batzen_exchange::workers::transfer;
use clap::Args;
use serde_json::json;

use super::workers::{Shape, WorkerOptions, WorkerRun};
use super::{Context, fill};
use crate::bench::BenchError;
use crate::bench::results::result::Run;

/// Have the bank execute prepared transfers
#[derive(Args, Clone, Debug)]
pub struct TransferArgs {
    /// Number of prepared transfers
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) transfers: u64,
    /// Options of all workers' scenarios.
    #[command(flatten)]
    pub options: WorkerOptions,
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &TransferArgs, context: &Context) -> Result<Run, BenchError> {
    let worker = WorkerRun::start("transfer", &args.options, context, Some(&|_| Ok(())))?;
    fill::transfers(&worker.in_process, args.transfers, args.options.seed)?;
    worker.in_process.settle()?;
    let shape = Shape {
        scenario: "transfer",
        title: format!("transfer, {} transfers", args.transfers),
        unit: "transfers",
        parameters: BTreeMap::from([("transfers".to_owned(), json!(args.transfers))]),
        remarks: vec![
            "the transfers were prepared from generated deposits, through the rules; each has its own receiver"
                .to_owned(),
        ],
    };
    let measured = worker.measure(
        shape,
        (args.transfers, "executed"),
        |app| app.core.metrics.workers.transfers.get(),
        |app| async move { transfer::run_until_idle(&app.core).await },
    );
    measured.map(|(run, _)| run)
}
