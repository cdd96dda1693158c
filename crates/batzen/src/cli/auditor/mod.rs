//! `batzen auditor`: check an exchange's books, run the auditor's service, name the audited exchanges, and approve denominations offline.

mod dbinit;
mod exchange;
mod init;
mod liabilities;
mod offline;
mod report;
mod run;
mod serve;
mod sync;

use std::process::ExitCode;

use batzen_auditor::AuditorConfig;
use batzen_cli_support::services::{self, Common};
use clap::{Args, Subcommand};

use super::sample;

/// Check an exchange's books, run the auditor's service, name the audited exchanges, approve denominations offline.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct AuditorArgs {
    #[command(subcommand)]
    command: AuditorCommand,
}

#[derive(Subcommand)]
enum AuditorCommand {
    /// Create the auditor's key, its directories and its tables
    Init(init::InitArgs),
    /// Check an exchange's books: every row, signature and sum, and the bank's history
    Run(run::RunArgs),
    /// Make one of the protocol's six checks, and print its report object
    Check(run::CheckArgs),
    /// Follow an exchange into a store of the auditor, and check each change. Exit code 1 if it has changed or lost
    /// what it shipped
    Sync(sync::SyncArgs),
    /// Show what was found about the exchange that is followed: open, suppressed and resolved
    Report(report::ReportArgs),
    /// Suppress a finding, with a reason
    Suppress(report::NoteArgs),
    /// Reopen a suppressed finding
    Reopen(report::NoteArgs),
    /// Check what an exchange has published about its debts against its rows, and confirm it
    Liabilities(liabilities::LiabilitiesArgs),
    /// Follow the exchange, show the results as a page, and receive deposit confirmations from merchants
    #[command(alias = "httpd")]
    Serve(serve::ServeArgs),
    /// Name the exchanges that are audited
    Exchange(exchange::ExchangeArgs),
    /// Approve an exchange's denominations with the auditor's key
    Offline(offline::OfflineArgs),
    /// Create, migrate, empty or drop the tables
    Dbinit(dbinit::DbinitArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
}

/// Runs a `batzen auditor` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: AuditorArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        AuditorCommand::Init(args) => init::run(&args),
        AuditorCommand::Run(args) => run::run(&args),
        AuditorCommand::Check(args) => run::run_check(&args),
        AuditorCommand::Liabilities(args) => liabilities::run(&args),
        AuditorCommand::Sync(args) => sync::run(args),
        AuditorCommand::Report(args) => report::run(&args),
        AuditorCommand::Suppress(args) => report::note(&args, true),
        AuditorCommand::Reopen(args) => report::note(&args, false),
        AuditorCommand::Serve(args) => services::block_on(serve::run(args)),
        AuditorCommand::Exchange(args) => exchange::run(args),
        AuditorCommand::Offline(args) => services::block_on(offline::run(args)),
        AuditorCommand::Dbinit(args) => dbinit::run(&args),
        AuditorCommand::SampleConfig(args) => Ok(sample::print(&args, "auditor", sample::AUDITOR)),
    }
}

/// The auditor's configuration, with the clock of the command line.
fn config(common: &Common) -> anyhow::Result<AuditorConfig> {
    let ini = common.load()?;
    super::known_options::warn(&ini);
    let mut config = AuditorConfig::from_config(&ini)?;
    config.clock = common.timetravel.clock();
    Ok(config)
}
