//! The frame of a program: options of every command, logging, exit codes and error lines.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::{logging, otlp};

/// The options of every command that concern the log.
#[derive(Args)]
pub struct LogArgs {
    /// Log level: NONE, ERROR, WARNING, MESSAGE, INFO, DEBUG or TRACE
    #[arg(short = 'L', long = "log", global = true, default_value = "WARNING", value_name = "LEVEL")]
    log: logging::Level,
    /// Append the log to this file instead of standard error
    #[arg(short = 'l', long = "logfile", global = true, value_name = "FILE")]
    logfile: Option<PathBuf>,
    /// Form of log lines: text or json
    #[arg(long, global = true, default_value = "text", hide_possible_values = true, value_name = "FORMAT")]
    log_format: logging::Format,
    /// Export spans of requests to an OpenTelemetry collector by OTLP/HTTP with JSON, e.g.
    /// http://localhost:4318/v1/traces [default: none]
    #[arg(long, global = true, value_name = "URL")]
    otlp: Option<String>,
}

/// Runs a program's command under a log, and turns its result into an exit code. Errors are one line on standard error
/// that begins with the program's name. `service` names the process to a collector of traces.
pub fn run(
    name: &str,
    service: String,
    log: LogArgs,
    command: impl FnOnce() -> anyhow::Result<ExitCode>,
) -> ExitCode {
    let exporter = log.otlp.map(|url| otlp::Exporter::start(url, service)).transpose();
    let started = exporter
        .and_then(|exporter| logging::init(log.log, log.log_format, log.logfile.as_deref(), exporter));
    if let Err(error) = started {
        eprintln!("{name}: {error:#}");
        return ExitCode::from(2);
    }
    match command() {
        Ok(code) => code,
        // The reader has closed our output.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", format_error_chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes. A cause already contained in the text is not repeated, since many errors of the
/// services include theirs.
#[must_use]
pub fn format_error_chain(error: &anyhow::Error) -> String {
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

/// The other program of this installation: the file of this name beside the running program, or else the one on the
/// search path.
#[must_use]
pub fn sibling(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Replaces this process by a sibling program with these arguments. Returns only if the program cannot be started.
#[must_use]
pub fn exec(name: &str, arguments: impl IntoIterator<Item = OsString>) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    Command::new(sibling(name)).args(arguments).exec()
}

#[cfg(test)]
mod tests {
    use super::format_error_chain;
    use batzen_store::StoreError;

    #[test]
    fn a_cause_is_printed_once() {
        let cause = || StoreError::InUse("schema bank of money".into());
        #[derive(Debug, thiserror::Error)]
        #[error("the bank's store: {0}")]
        struct Outer(#[source] StoreError);
        let error = anyhow::Error::from(Outer(cause()));
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
