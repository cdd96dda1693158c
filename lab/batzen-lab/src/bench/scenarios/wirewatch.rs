//! wirewatch: credits per second from the bank's history into reserves.

use std::collections::BTreeMap;

use batzen_exchange::workers::wirewatch;
use clap::Args;
use serde_json::json;

use super::workers::{BankProcess, InProcessExchange, RunDirectory, Shape, measure};
use super::{Context, fill};
use crate::bench::BenchError;
use crate::bench::results::result::Run;
use crate::bench::scenarios::database::{Database, StoreOptions};
use crate::bench::scenarios::options::RunOptions;

/// Import credits from a bank
#[derive(Args, Clone, Debug)]
pub struct WirewatchArgs {
    /// Number of credits at the bank
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub credits: u64,
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
pub fn run(args: &WirewatchArgs, context: &Context) -> Result<Run, BenchError> {
    args.store.check()?;
    let run_dir = RunDirectory::new("wirewatch", &args.run)?;
    let database = Database::start(&args.store, &run_dir.placement)?;
    let data = run_dir.world.join("bank");
    fill::bank(&data, args.credits, args.seed)?;
    let bank = BankProcess::start(context, &run_dir, &data)?;
    let in_process = InProcessExchange::start(&run_dir, bank.gateway(), database)?;
    let shape = Shape {
        scenario: "wirewatch",
        title: format!("wirewatch, {} credits", args.credits),
        unit: "credits",
        parameters: BTreeMap::from([("credits".to_owned(), json!(args.credits))]),
        remarks: vec![
            "the bank's store was filled through its rules; every credit has a reserve of its own".to_owned(),
        ],
    };
    let (run, progress) = measure(
        (context, &run_dir, shape),
        &in_process,
        Some(&bank),
        |app| app.core.metrics.workers.credits.get(),
        |app| async move { wirewatch::run_until_idle(&app.core).await },
    )?;
    progress.map_err(|error| BenchError::set_up("wirewatch", error))?;
    if run.result.ops != args.credits {
        return Err(BenchError::WrongAnswer(format!(
            "{} of {} credits were booked",
            run.result.ops, args.credits
        )));
    }
    Ok(run)
}
