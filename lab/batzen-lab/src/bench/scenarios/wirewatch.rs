//! wirewatch: credits per second from the bank's history into reserves.

use std::collections::BTreeMap;
use std::path::Path;

use batzen_exchange::workers::wirewatch;
use clap::Args;
use serde_json::json;

use super::workers::{Shape, WorkerOptions, WorkerRun};
use super::{Context, fill};
use crate::bench::BenchError;
use crate::bench::results::result::Run;

/// Import credits from a bank
#[derive(Args, Clone, Debug)]
pub struct WirewatchArgs {
    /// Number of credits at the bank
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) credits: u64,
    /// Options of all workers' scenarios.
    #[command(flatten)]
    pub options: WorkerOptions,
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &WirewatchArgs, context: &Context) -> Result<Run, BenchError> {
    let fill_bank = |data: &Path| fill::bank(data, args.credits, args.options.seed);
    let worker = WorkerRun::start("wirewatch", &args.options, context, Some(&fill_bank))?;
    let shape = Shape {
        scenario: "wirewatch",
        title: format!("wirewatch, {} credits", args.credits),
        unit: "credits",
        parameters: BTreeMap::from([("credits".to_owned(), json!(args.credits))]),
        remarks: vec![
            "the bank's store was filled through its rules; every credit has a reserve of its own".to_owned(),
        ],
    };
    let measured = worker.measure(
        shape,
        (args.credits, "booked"),
        |app| app.core.metrics.workers.credits.get(),
        |app| async move { wirewatch::run_until_idle(&app.core).await },
    );
    measured.map(|(run, _)| run)
}
