//! `batzen-lab plan`: what a wanted load needs: cores, machines, memory, disk, network.
//!
//! `formula` computes a plan from `Costs`, as a pure function. `costs` takes them from the results
//! that are kept with the program (`docs/results`) or from others, and can adjust them to this machine.

pub(crate) mod costs;
pub(crate) mod formula;
mod measure;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bench::BenchError;
use crate::bench::results::output;
use costs::Costs;
use formula::{Demand, Plan};

/// Where the exchange keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreChoice {
    /// In a directory of each machine.
    Embedded,
    /// In a PostgreSQL database.
    Postgres,
    /// In a database that Citus distributes over several servers.
    Citus,
}

/// Arguments of `batzen-lab plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// Payments per second in the peak hour
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) payments_per_second: f64,
    /// Coins in a payment
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive)]
    pub(crate) coins: f64,
    /// Coins in a withdrawal
    #[arg(long, value_name = "N", default_value = "10", value_parser = positive)]
    pub(crate) coins_per_withdrawal: f64,
    /// Percentage of payments whose payer takes change (three fresh coins)
    #[arg(long, value_name = "PERCENT", default_value = "30", value_parser = percent)]
    pub(crate) change: f64,
    /// Deposits that one transfer to a merchant pays
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive)]
    pub(crate) deposits_per_transfer: f64,
    /// Mean load as a percentage of the peak
    #[arg(long, value_name = "PERCENT", default_value = "25", value_parser = percent)]
    pub(crate) mean: f64,
    /// Years for which rows are kept
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive)]
    pub(crate) years: f64,
    /// How busy the cores are at the peak, in percent
    #[arg(long, value_name = "PERCENT", default_value = "70", value_parser = percent)]
    pub(crate) utilisation: f64,
    /// Copies of everything, the first included
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) copies: u32,
    /// Cores of a machine
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) cores_per_machine: u32,
    /// Cores of a worker of the Citus cluster, with --store citus [default: as --cores-per-machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) worker_cores: Option<u32>,
    /// Where the exchange keeps its rows
    #[arg(long, value_enum, default_value = "embedded")]
    pub(crate) store: StoreChoice,
    /// Measure this machine for some seconds, and adjust the processor times to it
    #[arg(long)]
    pub(crate) measure: bool,
    /// Take the costs from the results below this directory, where it has them (withdraw, batch-withdraw, deposit, …,
    /// each as `batzen-lab bench NAME --out DIR/NAME` writes it, and lanes/lanes.json), instead of the kept results
    #[arg(long, value_name = "DIR", conflicts_with = "measure")]
    pub(crate) results: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let number =
        text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "a number above 0, at most a billion".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix('%').unwrap_or(text);
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 100.0);
    number.ok_or_else(|| "a percentage above 0, at most 100".to_owned())
}

impl PlanArgs {
    fn demand(&self) -> Demand {
        Demand {
            payments_per_s: self.payments_per_second,
            coins_per_payment: self.coins,
            coins_per_withdrawal: self.coins_per_withdrawal,
            change_share: self.change / 100.0,
            deposits_per_transfer: self.deposits_per_transfer,
            mean_share: self.mean / 100.0,
            years: self.years,
            utilisation: self.utilisation / 100.0,
            copies: self.copies,
            cores_per_machine: self.cores_per_machine,
            worker_cores: self.worker_cores.unwrap_or(self.cores_per_machine),
            store: self.store,
        }
    }
}

/// Makes a plan and prints it.
///
/// # Errors
/// When options contradict each other, this machine cannot be measured, or results cannot be read.
pub fn run(args: &PlanArgs) -> Result<ExitCode, BenchError> {
    let plan = compute(args)?;
    output::print(&if args.json { output::json(&plan) } else { text::table(&plan) })?;
    Ok(ExitCode::SUCCESS)
}

/// The plan of the arguments.
pub(crate) fn compute(args: &PlanArgs) -> Result<Plan, BenchError> {
    if args.worker_cores.is_some() && args.store != StoreChoice::Citus {
        return Err(BenchError::Usage("--worker-cores is for a Citus cluster; add --store citus".to_owned()));
    }
    let mut costs = match &args.results {
        Some(directory) => Costs::of_results(args.store, directory)?,
        None => Costs::kept(args.store),
    };
    if args.measure {
        costs.adjust(&measure::measure()?);
    }
    Ok(Plan::of(&args.demand(), &costs))
}
