//! `batzen bench`: measure this machine, this program, and compare.

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Measure: throughput, latency, efficiency.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Measure what one core of this machine can do: cryptography by library and in lanes, HTTP, store, disk
    Limits(batzen_bench::limits::LimitsArgs),
    /// Make one HTML file with plots and tables of some results
    Report(batzen_bench::report::ReportArgs),
    /// Print results as Markdown, or renew the tables of a document
    Table(batzen_bench::table::TableArgs),
    /// Put two results beside each other: ratios, better, worse
    Compare(batzen_bench::compare::CompareArgs),
    /// Measure the mandatory cryptography of operations alone (scenarios do this by themselves)
    #[command(hide = true)]
    Ceiling(batzen_bench::ceiling::CeilingArgs),
}

/// Runs a `batzen bench` command. Exit code 3: the measurement was made, but requests failed.
///
/// # Errors
/// Whatever keeps it from measuring, as one line.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Limits(args) => Ok(batzen_bench::limits::run(&args)?),
        BenchCommand::Report(args) => Ok(batzen_bench::report::run(&args)?),
        BenchCommand::Table(args) => Ok(batzen_bench::table::run(&args)?),
        BenchCommand::Compare(args) => Ok(batzen_bench::compare::run(&args)?),
        BenchCommand::Ceiling(args) => Ok(batzen_bench::ceiling::run(&args)?),
    }
}
