//! `batzen ledger`: run a ledger, query one, maintain its files.

mod client;
mod files;
mod grammar;
mod serve;

pub(super) use serve::ServeConfig;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::sample;

/// Run a ledger, query one, maintain its files.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    command: LedgerCommand,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// Serve a ledger: binary protocol over TCP and local sockets, HTTP, event stream
    Serve(serve::ServeArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
    /// Send one request to a ledger: create accounts and transfers, look up, query, read events
    Client(client::ClientArgs),
    /// Send requests to a ledger, line by line
    Repl(client::ReplArgs),
    /// Show the contents of a ledger that no process has open
    Inspect(files::Files),
    /// Re-execute the whole log of a ledger that no process has open, and check every invariant. Exit code 1
    /// if a check fails
    Verify(files::Files),
    /// Copy a ledger that no process has open into a new directory, and verify the copy
    Backup(files::CopyArgs),
    /// Verify a backup, and copy it into a new directory
    Restore(files::CopyArgs),
}

/// Runs a `batzen ledger` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: LedgerArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        LedgerCommand::Serve(args) => serve::run(&args),
        LedgerCommand::SampleConfig(args) => Ok(sample::print(&args, "ledger", sample::LEDGER)),
        LedgerCommand::Client(args) => client::run(args),
        LedgerCommand::Repl(args) => client::repl(&args),
        LedgerCommand::Inspect(args) => files::inspect(&args),
        LedgerCommand::Verify(args) => files::verify(&args),
        LedgerCommand::Backup(args) => files::copy(&args, "backup"),
        LedgerCommand::Restore(args) => files::copy(&args, "restore"),
    }
}
