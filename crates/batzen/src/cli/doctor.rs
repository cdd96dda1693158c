//! `batzen doctor`: examine a live PostgreSQL server, and print problems and the commands that fix them.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use batzen_doctor::facts::LookError;
use batzen_doctor::findings::Limits;
use batzen_doctor::report::Style;
use batzen_doctor::watch::{View, WatchError};
use batzen_doctor::{Options, report, tuning};
use clap::{Args, Subcommand};

/// The exit code when the doctor could not examine the server.
const COULD_NOT_LOOK: u8 = 3;

/// Diagnose a live PostgreSQL server, and print the commands that fix it.
///
/// Works on any PostgreSQL from version 13 on, and knows Batzen's own databases. Changes nothing: it reads in
/// read-only transactions with a time limit; statements that write are executed in transactions that are
/// rolled back.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    after_help = "Exit codes: 0 nothing found, or notices only; 1 warnings; 2 something critical; 3 the server could not be examined.\n\nExamples:\n  batzen doctor --database postgres:///exchange\n  batzen doctor --database postgres://db1/exchange --memory 64GB --cores 16\n  batzen doctor watch --database postgres:///exchange"
)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    command: Option<DoctorCommand>,
    #[command(flatten)]
    target: Target,
    /// Print everything as JSON: severity, findings, tuning, facts
    #[arg(long)]
    json: bool,
    /// Write a tuned postgresql.conf fragment to this file (`-`: print only the fragment)
    #[arg(long, value_name = "FILE")]
    fragment: Option<PathBuf>,
    /// Seconds between the two samples that rates are computed from
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    sample: Duration,
}

#[derive(Subcommand)]
enum DoctorCommand {
    /// Show a live view: transactions, cache, waits, locks, write-ahead log, lag and findings
    Watch(WatchArgs),
}

#[derive(Args)]
struct WatchArgs {
    #[command(flatten)]
    target: Target,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Stop after this many samples
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Target {
    /// The database, such as postgres:///exchange or postgres://user@host:5432/exchange
    #[arg(long, value_name = "URL", required = true)]
    database: Option<String>,
    /// Memory that the server may use, such as 64GB [default: this machine's, if the server runs on it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Cores that the server may use [default: as for --memory]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Measure disk syncs in this directory [default: the server's data directory, if permitted]
    #[arg(long, value_name = "DIR")]
    fsync_dir: Option<PathBuf>,
    /// Seconds after which a transaction counts as long, and an idle one as forgotten
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    long: Duration,
    /// Time limit for one examination of the server, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    timeout: Duration,
}

impl Target {
    fn options(self) -> Options {
        let long = self.long.as_secs_f64();
        let usual = Limits::default();
        Options {
            memory: self.memory,
            cores: self.cores,
            fsync_dir: self.fsync_dir,
            timeout: self.timeout,
            // A stricter limit for transactions also applies to lock waits.
            limits: Limits { long, lock_wait: usual.lock_wait.min(long) },
            ..Options::new(self.database.unwrap_or_default())
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds, such as 2 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// A size in the notation of `postgresql.conf`: `512MB`, `64GB`, or bytes.
fn size(text: &str) -> Result<u64, String> {
    let hint = || "a size such as 512MB or 64GB".to_owned();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| hint())?;
    let factor: u64 = match text[digits..].trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return Err(hint()),
    };
    number.checked_mul(factor).filter(|bytes| *bytes >= 64 << 20).ok_or_else(|| "at least 64MB".to_owned())
}

/// Runs `batzen doctor`.
///
/// # Errors
/// When the output cannot be written.
pub(super) fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(DoctorCommand::Watch(args)) => watch(args),
        None => examine(args),
    }
}

fn style() -> Style {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Style { colours: is_wanted && is_terminal() }
}

fn is_terminal() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn could_not(error: &LookError) -> ExitCode {
    eprintln!("batzen: {error}");
    ExitCode::from(COULD_NOT_LOOK)
}

fn examine(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut options = args.target.options();
    options.sample = args.sample;
    let examination = match batzen_doctor::examine(&options) {
        Ok(examination) => examination,
        Err(error) => return Ok(could_not(&error)),
    };
    let fragment = tuning::fragment(&examination.facts, &examination.tuning);
    let mut out = std::io::stdout().lock();
    match args.fragment.as_deref() {
        Some(file) if file.as_os_str() == "-" => {
            out.write_all(fragment.as_bytes())?;
            return Ok(ExitCode::from(examination.severity.exit_code()));
        }
        Some(file) => {
            std::fs::write(file, &fragment).with_context(|| format!("fragment {}", file.display()))?;
            eprintln!("{} settings are in {}", examination.tuning.len(), file.display());
        }
        None => {}
    }
    if args.json {
        writeln!(out, "{:#}", report::json(&examination))?;
    } else {
        out.write_all(report::text(&examination, style()).as_bytes())?;
    }
    Ok(ExitCode::from(examination.severity.exit_code()))
}

fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let view = View {
        interval: args.interval,
        count: args.count,
        json: args.json,
        is_terminal: is_terminal(),
        style: style(),
    };
    match batzen_doctor::watch::watch(&args.target.options(), view) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(WatchError::Look(error)) => Ok(could_not(&error)),
        Err(WatchError::Output(error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_are_read_as_people_write_them() {
        assert_eq!(size("64GB"), Ok(64 << 30));
        assert_eq!(size("512 MB"), Ok(512 << 20));
        assert!(
            size("64").is_err() && size("GB").is_err() && size("1XB").is_err() && size("99999999TB").is_err()
        );
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("soon").is_err() && seconds("nan").is_err());
    }
}
