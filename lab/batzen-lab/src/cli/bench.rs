//! `batzen-lab bench`: measure this machine and the `batzen` beside this program, and compare results.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use batzen_cli_support::{progress, services};
use batzen_lab::bench::results::result::{BUILD_PROFILE, Run, UNKNOWN};
use batzen_lab::bench::results::summary::summary;
use batzen_lab::bench::results::{compare, figures, report, table};
use batzen_lab::bench::scenarios::options::RunOptions;
use batzen_lab::bench::scenarios::{
    Context, aggregator, audit, ceiling, deposit, history, hostile, lanes, limits, p2p, partitions, pay,
    pgbench, scale, startup, store, transfer, wallets, wirewatch, withdraw,
};
use batzen_lab::bench::{BenchError, plan};
use clap::{Args, Subcommand};

/// The exit code of a measurement in which requests failed.
pub(super) const EXIT_ERRORS: u8 = 3;

/// Measure: throughput, latency, efficiency.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Measure what one core of this machine can do: cryptography by library and in lanes, HTTP, store, disk
    Limits(limits::LimitsArgs),
    /// Withdraw coins from funded reserves
    Withdraw(withdraw::WithdrawArgs),
    /// Pay merchants, one coin per request
    Deposit(deposit::DepositArgs),
    /// Pay merchants, several coins per request
    BatchDeposit(deposit::BatchDepositArgs),
    /// Pay people: create purses with coins, and merge them into reserves
    P2p(p2p::P2pArgs),
    /// Pay shops through a merchant backend: orders, claims, payments, refunds
    Pay(pay::PayArgs),
    /// Change coins into fresh ones: melt and reveal
    Refresh(wallets::RefreshArgs),
    /// Withdraw, pay and take change: the published experiment of GNU Taler
    Mixed(wallets::MixedArgs),
    /// Withdraw coins and deposit them, as in the benchmark of GNU Taler's exchange
    Cycle(wallets::CycleArgs),
    /// Import credits from a bank
    Wirewatch(wirewatch::WirewatchArgs),
    /// Turn due deposits into transfers to merchants
    Aggregator(aggregator::AggregatorArgs),
    /// Have a bank execute prepared transfers
    Transfer(transfer::TransferArgs),
    /// Pay merchants on PostgreSQL with a growing number of partitions, beside the embedded store and pgbench
    Partitions(partitions::PartitionsArgs),
    /// Attack every service beside an honest load: slow uploads, unread answers, long polls, floods
    Hostile(hostile::HostileArgs),
    /// Run PostgreSQL's own benchmark on a server like that of --store postgres
    Pgbench(pgbench::PgbenchArgs),
    /// Start a whole set-up of separate programs, from the tables to the first wallet
    Startup(startup::StartupArgs),
    /// Read and write rows of deposits, without rules, lane or HTTP
    Store(store::StoreArgs),
    /// Pay merchants with one and with several lanes, without HTTP and cryptography: what the core can do
    Lanes(lanes::LanesArgs),
    /// Withdraw and deposit coins on one, two, … cores, and project what larger machines would do
    Scale(scale::ScaleArgs),
    /// Grow a store to millions of coins: rate, memory, disk, time to start and to look up coins
    History(history::HistoryArgs),
    /// Audit withdrawals and deposits: rows and signatures per second and core, and the cost of an increment
    Audit(audit::AuditArgs),
    /// Make one HTML file with plots and tables of some results
    Report(report::ReportArgs),
    /// Print results as Markdown, or renew the tables of a document
    Table(table::TableArgs),
    /// Renew the figures of the project's documents from kept results, or check that none is typed by hand
    Figures(figures::FiguresArgs),
    /// Compare two results: ratios, better, worse
    Compare(compare::CompareArgs),
    /// Measure the cryptography that operations require, alone (scenarios do this by themselves)
    #[command(hide = true)]
    Ceiling(ceiling::CeilingArgs),
}

/// Runs a `batzen-lab bench` command. Exit code 3: the measurement was made, but requests failed.
///
/// # Errors
/// Any failure of the measurement, as one line.
pub(super) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Limits(args) => limits::run(&args, commit()).or_else(not_measured),
        BenchCommand::Withdraw(args) => show(&args.run, withdraw::run(&args, &context()?)),
        BenchCommand::Deposit(args) => show(&args.run, deposit::run(&args, &context()?)),
        BenchCommand::BatchDeposit(args) => show(&args.deposit.run, deposit::run_batch(&args, &context()?)),
        BenchCommand::P2p(args) => show(&args.run, p2p::run(&args, &context()?)),
        BenchCommand::Pay(args) => show(&args.run, pay::run(&args, &context()?)),
        BenchCommand::Refresh(args) => show(&args.run, wallets::run_refresh(&args, &context()?)),
        BenchCommand::Mixed(args) => show(&args.run, wallets::run_mixed(&args, &context()?)),
        BenchCommand::Cycle(args) => show(&args.run, wallets::run_cycle(&args, &context()?)),
        BenchCommand::Wirewatch(args) => show(&args.options.run, wirewatch::run(&args, &context()?)),
        BenchCommand::Aggregator(args) => show(&args.options.run, aggregator::run(&args, &context()?)),
        BenchCommand::Transfer(args) => show(&args.options.run, transfer::run(&args, &context()?)),
        BenchCommand::Partitions(args) => show_partitions(&args, partitions::run(&args, &context()?)),
        BenchCommand::Hostile(args) => show(&args.deposit.run, hostile::run(&args, &context()?)),
        BenchCommand::Pgbench(args) => show(&args.run, pgbench::run(&args, &context()?)),
        BenchCommand::Startup(args) => startup::run(&args, &context()?).or_else(not_measured),
        BenchCommand::Store(args) => show(&args.run, store::run(&args, &context()?)),
        BenchCommand::Lanes(args) => lanes::run(&args, &context()?).or_else(not_measured),
        BenchCommand::Scale(args) => scale::run(&args, &context()?).or_else(not_measured),
        BenchCommand::History(args) => history::run(&args, &context()?).or_else(not_measured),
        BenchCommand::Audit(args) => audit::run(&args, &context()?).or_else(not_measured),
        BenchCommand::Report(args) => report::run(&args).or_else(not_measured),
        BenchCommand::Table(args) => table::run(&args).or_else(not_measured),
        BenchCommand::Figures(args) => figures::run(&args).or_else(not_measured),
        BenchCommand::Compare(args) => compare::run(&args).or_else(not_measured),
        BenchCommand::Ceiling(args) => ceiling::run(&args).or_else(not_measured),
    }
}

/// Runs `batzen-lab plan`.
pub(super) fn plan(args: &plan::PlanArgs) -> anyhow::Result<ExitCode> {
    plan::run(args).or_else(not_measured)
}

/// The product under test, and this program. From here on a signal ends the measurement cleanly, including its
/// services.
///
/// # Errors
/// When signals cannot be watched.
pub(super) fn context() -> anyhow::Result<Context> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let watched = services::block_on(async {
            let stop = services::stop_signal()?;
            // The receiver may have stopped waiting.
            let _ = sender.send(());
            stop.await;
            Ok(())
        });
        if let Err(error) = watched {
            tracing::error!("{error:#}");
        }
        flag.store(true, Ordering::Relaxed);
    })?;
    receiver.recv().context("cannot watch signals")?;
    Ok(Context {
        program: batzen_cli_support::program::sibling("batzen"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit().to_owned(),
        command: command_line(),
        interrupted,
        shows_progress: progress::is_interactive(),
    })
}

/// The commit that this program was built from, as set by `make build`.
fn commit() -> &'static str {
    option_env!("BATZEN_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or(UNKNOWN)
}

/// Adds the profile that this program was built with, as set by `make build`.
fn record_profile(run: &mut Run) {
    let unset = if cfg!(debug_assertions) { "dev" } else { UNKNOWN };
    let profile = option_env!("BATZEN_PROFILE").filter(|profile| !profile.is_empty()).unwrap_or(unset);
    run.result.parameters.insert(BUILD_PROFILE.to_owned(), profile.into());
}

/// The command line, quoted for a shell.
fn command_line() -> String {
    let quoted = |word: String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=%,:+".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("batzen-lab".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Writes and shows the result of a measurement.
///
/// # Errors
/// The reason why there is no result, or why it could not be written.
pub(super) fn show(options: &RunOptions, outcome: Result<Run, BenchError>) -> anyhow::Result<ExitCode> {
    let mut run = match outcome {
        Err(error) => return not_measured(error),
        Ok(run) => run,
    };
    record_profile(&mut run);
    run.write()?;
    if options.json {
        print!("{}", run.result.to_json());
    } else {
        print!("{}", summary(&run));
    }
    Ok(if run.result.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERRORS) })
}

/// Writes and shows the results of several measurements.
fn show_partitions(
    args: &partitions::PartitionsArgs,
    outcome: Result<Vec<Run>, BenchError>,
) -> anyhow::Result<ExitCode> {
    let mut runs = match outcome {
        Err(error) => return not_measured(error),
        Ok(runs) => runs,
    };
    runs.iter_mut().for_each(record_profile);
    runs.iter().try_for_each(Run::write)?;
    if args.deposit.deposit.run.json {
        let results: Vec<_> = runs.iter().map(|run| &run.result).collect();
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        print!("{}", partitions::summary(&runs));
    }
    let has_errors = runs.iter().any(|run| !run.result.errors.is_empty());
    Ok(if has_errors { ExitCode::from(EXIT_ERRORS) } else { ExitCode::SUCCESS })
}

/// The exit code when there is no result, unless an error must be reported.
fn not_measured(error: BenchError) -> anyhow::Result<ExitCode> {
    match error {
        BenchError::Interrupted => Ok(ExitCode::from(130)),
        BenchError::Usage(reason) => {
            eprintln!("batzen-lab: {reason}");
            Ok(ExitCode::from(2))
        }
        error => Err(error.into()),
    }
}
