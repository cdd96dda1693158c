//! `batzen auditor run` and `check`: check an exchange's books.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::Context;
use batzen_auditor::audit::report::protocol;
use batzen_auditor::audit::{Check, Progress};
use batzen_auditor::checks::{self, CheckConfig, Outside, Report, Request};
use batzen_auditor::live::Since;
use batzen_auditor::{AuditorConfig, Forms, Wanted, live};
use batzen_cli_support::progress::{self, Counter};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args::require_existing;
use batzen_config::Config;
use batzen_crypto::EddsaPublicKey;
use batzen_service::storage::StoreConfig;
use clap::{Args, ValueEnum};
use serde_json::Value;

/// The exit code if something was found.
const EXIT_FINDINGS: u8 = 3;
/// The exit code if sums do not fit.
const EXIT_OVERFLOW: u8 = 42;

/// The source of the exchange's rows, and the exchange's key.
#[derive(Args)]
pub(super) struct RowsArgs {
    /// Directory of the exchange's store, which no other process has open, or of a copy of it [default: the copy that
    /// `auditor sync` keeps if there is an [auditor-feed], otherwise from the configuration]
    #[arg(long, value_name = "DIR", conflicts_with = "database")]
    data: Option<PathBuf>,
    /// PostgreSQL database with the exchange's tables, or a copy of it
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// The exchange's master public key [default: from the configuration]
    #[arg(short = 'm', long, value_name = "KEY")]
    pub(super) exchange_key: Option<EddsaPublicKey>,
}

/// The source to check, and the tools for it.
#[derive(Args)]
struct SourceArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rows: RowsArgs,
    /// An account that the bank does not know (404) has no history yet
    #[arg(short = 'I', long)]
    ignore_not_found: bool,
    /// Threads that verify signatures [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

impl RowsArgs {
    /// The rows in this directory or database, in the copy that `auditor sync` keeps, or where the exchange has them. Says
    /// whether it is that copy.
    pub(super) fn choose(&self, ini: &Config, exchange: &StoreConfig) -> anyhow::Result<(StoreConfig, bool)> {
        Ok(match (&self.data, &self.database) {
            (Some(dir), _) => (StoreConfig::embedded(dir.clone()), false),
            (None, Some(url)) => (StoreConfig::postgres(url.clone()), false),
            (None, None) if ini.has_section("auditor-feed") => (own_copy(ini)?, true),
            (None, None) => (exchange.clone(), false),
        })
    }
}

/// Options of `auditor run`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor run --config auditor.conf
  batzen auditor run --config auditor.conf --data /copies/exchange --no-bank --html audit.html

Exit code 3: something was found.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Check all rows of the own copy again, not only what has changed since the last time
    #[arg(long)]
    whole: bool,
    /// Do not compare with the bank's history, which goes on after a copy was made
    #[arg(long)]
    no_bank: bool,
    /// Do not look for the deposits that merchants have shown
    #[arg(long)]
    no_confirmations: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The protocol's six checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Outgoing transfers are the sums of their deposits
    Aggregation,
    /// Coins are genuine and no denomination redeemed more than it issued
    Coins,
    /// Deposits that merchants proved are on the books
    Deposits,
    /// Purses add up and are decided in time
    Purses,
    /// Balances of reserves follow from their credits and debits
    Reserves,
    /// The bank's records agree with the exchange's
    Wire,
}

/// Options of `auditor check`.
#[derive(Args)]
#[command(after_help = "Example:
  batzen auditor check reserves --config auditor.conf --internal

Prints one JSON object. Findings do not change the exit code.")]
pub(super) struct CheckArgs {
    /// The check
    #[arg(value_name = "CHECK")]
    name: Name,
    #[command(flatten)]
    source: SourceArgs,
    /// Check balances that the exchange stores, too
    #[arg(short, long)]
    internal: bool,
}

fn outside(
    source: &SourceArgs,
    config: &CheckConfig,
    (with_bank, with_confirmations): (bool, bool),
    since: &Since,
) -> anyhow::Result<Outside> {
    let mut outside = Outside::default();
    if with_bank {
        let reading = async {
            checks::read_bank(config, since, source.ignore_not_found)
                .await
                .context("without the bank: --no-bank")
        };
        outside.bank = services::block_on(reading)?;
        outside.asked.bank = true;
    }
    if with_confirmations {
        let own = AuditorConfig::from_config(&source.common.load()?)?;
        if own.service_store().dir().is_none_or(|dir| dir.exists()) {
            let read = checks::read_confirmations(&own, config.subject.master_pub, since.confirmation);
            outside.confirmations = read.context("without the merchants: --no-confirmations")?;
        }
        outside.asked.merchants = true;
    }
    Ok(outside)
}

/// The place of the copy that `auditor sync` keeps.
pub(super) fn own_copy(ini: &Config) -> anyhow::Result<StoreConfig> {
    Ok(live::copy_store(ini)?)
}

/// The same, if the auditor follows an exchange.
pub(super) fn followed_copy(ini: &Config) -> anyhow::Result<Option<StoreConfig>> {
    ini.has_section("auditor-feed").then(|| own_copy(ini)).transpose()
}

/// Does something while a terminal shows how many rows are checked, as `rows` says.
fn counting<T>(
    is_shown: bool,
    interval: Duration,
    rows: impl Fn() -> Option<u64> + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    if !is_shown || !progress::is_interactive() {
        return work();
    }
    let (done, watch) = std::sync::mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let counter = Counter::new(true, "rows checked");
        while watch.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if let Some(rows) = rows() {
                counter.set(rows);
            }
        }
    });
    let result = work();
    drop(done);
    // It only shows progress.
    let _ = watcher.join();
    result
}

/// Checks with a progress bar. `None` if sums do not fit.
fn check(
    source: &SourceArgs,
    config: &CheckConfig,
    asked: (bool, bool),
    (internal, whole, quiet): (bool, bool, bool),
) -> anyhow::Result<Option<Report>> {
    let ini = source.common.load()?;
    let (store, is_own_copy) = source.rows.choose(&ini, &config.store)?;
    require_existing(&store)?;
    let now = source.common.timetravel.now();
    let request = Request { store, is_own_copy, whole, internal, threads: source.threads, now };
    let progress = Arc::new(Progress::default());
    let shown = Arc::clone(&progress);
    let rows = move || Some(shown.rows.load(Ordering::Relaxed));
    let ask = |since: &Since| outside(source, config, asked, since);
    let work = || catch_unwind(AssertUnwindSafe(|| checks::check(config, &request, ask, &progress)));
    match counting(!quiet, Duration::from_millis(200), rows, work) {
        Ok(result) => result.map(Some),
        Err(panic) if is_overflow(&*panic) => Ok(None),
        Err(panic) => resume_unwind(panic),
    }
}

/// Returns whether sums did not fit, which is impossible in a sane store (auditor chapter 1.4).
fn is_overflow(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| text.contains("with overflow"))
}

/// Where a report goes besides the terminal.
#[derive(Args)]
pub(super) struct OutputArgs {
    /// Write a page that can be printed
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write findings and notices as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Writes and prints a report; `text` is for a terminal. The exit code says whether something is wrong.
pub(super) fn show(output: &OutputArgs, forms: &Forms, text: &str) -> anyhow::Result<ExitCode> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &output.html {
        write(path, &forms.html)?;
    }
    if let Some(path) = &output.csv {
        write(path, &forms.csv)?;
    }
    if output.json {
        println!("{:#}", forms.json);
    } else {
        print!("{text}");
    }
    let is_right = forms.json["ok"] == Value::Bool(true);
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
}

/// Runs `auditor run`.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let ini = args.source.common.load()?;
    let config = CheckConfig::from_ini(&ini, args.source.rows.exchange_key)?;
    let (_, is_own_copy) = args.source.rows.choose(&ini, &config.store)?;
    if is_own_copy {
        let socket = AuditorConfig::from_config(&ini)?.socket();
        let wanted = if args.whole { Wanted::Whole } else { Wanted::Compared };
        let place = socket.clone();
        // It only shows progress.
        let rows = move || batzen_auditor::ask_checking(&place).ok().flatten();
        let is_shown = args.whole && !args.output.json;
        let asking = || batzen_auditor::ask_report(&socket, wanted);
        if let Some(forms) = counting(is_shown, Duration::from_secs(1), rows, asking)? {
            return show(&args.output, &forms, &forms.text);
        }
    }
    let asked = (!args.no_bank, !args.no_confirmations);
    let flags = (true, args.whole, args.output.json);
    let Some(report) = check(&args.source, &config, asked, flags)? else {
        return Ok(ExitCode::from(EXIT_OVERFLOW));
    };
    let forms = Forms::from(&report);
    show(&args.output, &forms, &forms.text)
}

/// Runs `auditor check`.
pub(super) fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let ini = args.source.common.load()?;
    let config = CheckConfig::from_ini(&ini, args.source.rows.exchange_key)?;
    let check_name = match args.name {
        Name::Aggregation => Check::Aggregation,
        Name::Coins => Check::Coins,
        Name::Deposits => Check::Deposits,
        Name::Purses => Check::Purses,
        Name::Reserves => Check::Reserves,
        Name::Wire => Check::Wire,
    };
    let asked = (args.name == Name::Wire, args.name == Name::Deposits);
    let Some(report) = check(&args.source, &config, asked, (args.internal, false, true))? else {
        return Ok(ExitCode::from(EXIT_OVERFLOW));
    };
    let object =
        protocol(check_name, &report.outcome, &report.context).context("the protocol has this check")?;
    println!("{object:#}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_do_not_fit_are_told_from_other_failures() {
        let largest = std::hint::black_box(i128::MAX);
        let overflow = catch_unwind(|| largest + 1).unwrap_err();
        assert!(is_overflow(&*overflow));
        let other = catch_unwind(|| assert_eq!(largest, 1)).unwrap_err();
        assert!(!is_overflow(&*other));
    }
}
