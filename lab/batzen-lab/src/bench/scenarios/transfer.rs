//! transfer: prepared transfers per second that the bank executes and the exchange records.

use std::collections::BTreeMap;

use batzen_exchange::workers::transfer;
use clap::Args;
use serde_json::json;

use super::workers::{BankProcess, InProcessExchange, RunDirectory, Shape, measure};
use super::{Context, fill};
use crate::bench::BenchError;
use crate::bench::results::result::Run;
use crate::bench::scenarios::database::{Database, StoreOptions};
use crate::bench::scenarios::options::RunOptions;

/// Have the bank execute prepared transfers
#[derive(Args, Clone, Debug)]
pub struct TransferArgs {
    /// Number of prepared transfers
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub transfers: u64,
    /// Seed of all generated data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the exchange keeps its rows.
    #[command(flatten)]
    pub store: StoreOptions,
    /// Where to run, and where to put the result
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &TransferArgs, context: &Context) -> Result<Run, BenchError> {
    args.store.check()?;
    let run_dir = RunDirectory::new("transfer", &args.run)?;
    let database = Database::start(&args.store, &run_dir.placement)?;
    let data = run_dir.world.join("bank");
    let bank = BankProcess::start(context, &run_dir, &data)?;
    let in_process = InProcessExchange::start(&run_dir, bank.gateway(), database)?;
    fill::transfers(&in_process, args.transfers, args.seed)?;
    in_process.settle()?;
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
    let (run, progress) = measure(
        (context, &run_dir, shape),
        &in_process,
        Some(&bank),
        |app| app.core.metrics.workers.transfers.get(),
        |app| async move { transfer::run_until_idle(&app.core).await },
    )?;
    progress.map_err(|error| BenchError::set_up("transfer", error))?;
    if run.result.ops != args.transfers {
        return Err(BenchError::WrongAnswer(format!(
            "{} of {} transfers were executed",
            run.result.ops, args.transfers
        )));
    }
    Ok(run)
}
