//! `batzen`: the single binary. It parses arguments, sets up logging, and runs the command (`cli`).
//!
//! Standard output carries data only; everything else goes to standard error.

mod allocator;
mod cli;
mod logging;
mod names;
mod otlp;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

/// Digital cash at central-bank scale: bank, exchange and wallet in one binary.
#[derive(Parser)]
#[command(
    name = "batzen",
    version,
    propagate_version = true,
    disable_version_flag = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Examples:\n  batzen demo            a whole round of digital cash on this machine\n  batzen demo --once     the same, and exit"
)]
struct Cli {
    /// Log level: NONE, ERROR, WARNING, MESSAGE, INFO, DEBUG or TRACE
    #[arg(short = 'L', long = "log", global = true, default_value = "WARNING", value_name = "LEVEL")]
    log: logging::Level,
    /// Append the log to this file instead of standard error
    #[arg(short = 'l', long = "logfile", global = true, value_name = "FILE")]
    logfile: Option<std::path::PathBuf>,
    /// Form of log lines: text or json
    #[arg(long, global = true, default_value = "text", hide_possible_values = true, value_name = "FORMAT")]
    log_format: logging::Format,
    /// Export spans of requests to an OpenTelemetry collector by OTLP/HTTP with JSON, e.g.
    /// http://localhost:4318/v1/traces [default: none]
    #[arg(long, global = true, value_name = "URL")]
    otlp: Option<String>,
    /// Print the version
    #[arg(short = 'v', long, global = true, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// The same; not available below commands, because `config` has an option of this name.
    #[arg(short = 'V', id = "version_too", hide = true, action = clap::ArgAction::Version)]
    version_too: Option<bool>,
    #[command(subcommand)]
    command: cli::Command,
}

/// The tree of all commands, with their help.
fn command() -> clap::Command {
    cli::examples::add(Cli::command())
}

/// The exit code of a program that existing set-ups call but that does nothing here. Their units do not restart a
/// program that ends with it.
const NOT_HERE: u8 = 9;

fn main() -> ExitCode {
    allocator::set_up();
    let arguments = match names::native_arguments(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!("batzen: {reason}");
            return ExitCode::from(NOT_HERE);
        }
    };
    let matches = command().get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let service = format!("batzen-{}", matches.subcommand_name().unwrap_or_default());
    let exporter = cli.otlp.map(|url| otlp::Exporter::start(url, service)).transpose();
    let started = exporter
        .and_then(|exporter| logging::init(cli.log, cli.log_format, cli.logfile.as_deref(), exporter));
    if let Err(error) = started {
        eprintln!("batzen: {error:#}");
        return ExitCode::from(2);
    }
    match cli::run(cli.command) {
        Ok(code) => code,
        // The reader has closed our output.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batzen: {}", format_error_chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes. A cause already contained in the text is not repeated, since many errors of the
/// services include theirs.
fn format_error_chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::format_error_chain;
    use batzen_store::StoreError;

    #[test]
    fn the_command_tree_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn a_cause_is_printed_once() {
        let cause = || StoreError::InUse("schema bank of money".into());
        let error = anyhow::Error::from(batzen_bank::BankError::Store(cause()));
        assert_eq!(
            format_error_chain(&error),
            "the bank's store: schema bank of money is in use by another process"
        );
        let error = anyhow::Error::from(cause()).context("cannot start");
        assert_eq!(
            format_error_chain(&error),
            "cannot start: schema bank of money is in use by another process"
        );
    }
}
