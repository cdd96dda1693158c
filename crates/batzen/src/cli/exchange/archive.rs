//! `batzen exchange archive`: moves what need not be kept at hand to stores of its own, and drops those in time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_cli_support::numbers;
use batzen_cli_support::progress::{self, Counter};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::core::Core;
use batzen_exchange::rules::Refusal;
use batzen_exchange::rules::archive::ARCHIVE_REASON_BYTES_MAX;
use batzen_exchange::workers::WorkerError;
use batzen_exchange::workers::archive::{self, ArchiveDir, ArchiveError, Contents, Report, Task};
use batzen_protocol::{Currency, Timestamp};
use batzen_store::Store;
use batzen_tables::exchange::{self as tables, ArchiveRunRow, ArchiveRuns};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{close, open, open_to_read, work_and_close};
use crate::cli::known_options;

/// Move rows whose legal time is over to archives, verify archives, drop them
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  batzen exchange archive run -c exchange.conf --before 2036-01-01 --reason yearly --dry-run
  batzen exchange archive list -c exchange.conf"
)]
pub(super) struct ArchiveArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
}

#[derive(Subcommand)]
enum ArchiveCommand {
    /// Move coins of denominations past their legal time, with their payments, refreshes and recoups, and the
    /// transfers that they paid, to a store of their own
    #[command(after_help = "Examples:
  batzen exchange archive run -c exchange.conf --before 2036-01-01 --reason 'minutes of 2036-01-12' --dry-run
  batzen exchange archive run -c exchange.conf --before 2036-01-01 --reason 'minutes of 2036-01-12'

An exchange with an embedded store must not be running. On PostgreSQL it may.
An interrupted run loses nothing: run it again, and it continues.")]
    Run(RunArgs),
    /// List the runs, with what each of them took
    #[command(after_help = "Examples:
  batzen exchange archive list -c exchange.conf --json")]
    List(ListArgs),
    /// Compare an archive with the records of what it took. Exit code 1 if it is not complete
    #[command(after_help = "Examples:
  batzen exchange archive verify /var/lib/batzen/exchange/archive/run-000001
  batzen exchange archive verify --run 1 -c exchange.conf

With a directory, only the archive's own records are used, so that an auditor needs nothing else.")]
    Verify(VerifyArgs),
    /// Remove archives for good after the time for which they must be kept ([exchangedb] ARCHIVE_RETENTION_TIME).
    /// What they took stays on record, and no sum changes
    #[command(after_help = "Examples:
  batzen exchange archive drop -c exchange.conf --before 2047-01-01 --reason 'see minutes of 2047-02-03'")]
    Drop(DropArgs),
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    common: Common,
    /// Move only what was over on this day, such as 2036-01-01, so that a wrong clock alone moves nothing
    #[arg(long, value_name = "DATE", value_parser = day)]
    before: Timestamp,
    /// Why, for auditors
    #[arg(long, value_parser = reason)]
    reason: String,
    /// Only show what would leave
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    common: Common,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    common: Common,
    /// Directory of the archive
    #[arg(value_name = "DIR", required_unless_present = "run")]
    dir: Option<PathBuf>,
    /// The run whose archive is verified against the exchange's store
    #[arg(long, value_name = "N", conflicts_with = "dir")]
    run: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DropArgs {
    #[command(flatten)]
    common: Common,
    /// Drop archives of runs that ended before this day, such as 2047-01-01
    #[arg(long, value_name = "DATE", value_parser = day)]
    before: Timestamp,
    /// Why, for auditors
    #[arg(long, value_parser = reason)]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a reason is needed".to_owned()),
        text if text.len() > ARCHIVE_REASON_BYTES_MAX => {
            Err(format!("at most {ARCHIVE_REASON_BYTES_MAX} bytes"))
        }
        text => Ok(text.to_owned()),
    }
}

/// The beginning of a day in UTC.
fn day(text: &str) -> Result<Timestamp, String> {
    let year = text.split('-').next().and_then(|year| year.parse().ok());
    let start = year.filter(|year| (1970..9_999).contains(year)).map(batzen_protocol::time::year_start);
    let day_of = |n: u64| Some(start?.saturating_add(batzen_protocol::Duration::from_days(n)));
    let found = (0..366).filter_map(day_of).find(|day| day.to_string().split('T').next() == Some(text));
    found.ok_or_else(|| "expected a day such as 2047-01-01".to_owned())
}

/// Runs a `batzen exchange archive` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: ArchiveArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ArchiveCommand::Run(args) => services::block_on(move_rows(args)),
        ArchiveCommand::List(args) => list(&args),
        ArchiveCommand::Verify(args) => verify(&args),
        ArchiveCommand::Drop(args) => services::block_on(drop_archives(args)),
    }
}

fn configuration(common: &Common) -> anyhow::Result<ExchangeConfig> {
    let ini = common.load()?;
    known_options::warn(&ini);
    let config = ExchangeConfig::from_ini(&ini)?;
    store_args::require_existing(&config.store)?;
    Ok(config)
}

async fn move_rows(args: RunArgs) -> anyhow::Result<ExitCode> {
    let config = configuration(&args.common)?;
    let (currency, archives) = (config.currency, ArchiveDir::new(&config.archive_dir));
    let dir = config.archive_dir.clone();
    if !args.dry_run {
        services::directory(&dir)?;
    }
    let stop = services::stop_signal()?;
    let core = open(config, &args.common).await?;
    let task = if args.dry_run { Task::Count } else { Task::Move { reason: args.reason } };
    let counter = Arc::new(Counter::new(progress::is_interactive(), "transfers, purses and coins examined:"));
    let shown = Arc::clone(&counter);
    let set = move |report: &Report| shown.set(report.seen());
    let to = archives.clone();
    let ended =
        work_and_close(core, stop, async |core| archive::run(core, to, task, args.before, set).await).await?;
    drop(counter);
    let report = match ended {
        Err(ArchiveError::Worker(WorkerError::Stopped)) => {
            bail!("interrupted: run it again to move the rest")
        }
        Err(ArchiveError::Refused(refusal)) if *refusal == Refusal::ArchiveRunOther => {
            bail!("another process is moving rows to an archive")
        }
        other => other?,
    };
    let place = report.run.map(|run| archives.of_run(run));
    if args.json {
        let mut facts = report_json(&report, currency);
        facts["dry_run"] = args.dry_run.into();
        facts["directory"] = place.map(|dir| dir.display().to_string()).into();
        println!("{facts:#}");
    } else {
        print!("{}", report_text(&report, currency));
        match place {
            _ if args.dry_run => println!("nothing was moved: this was a dry run"),
            Some(dir) => println!("the archive is {}", dir.display()),
            None => println!("there was nothing to move"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table_name(number: u16) -> &'static str {
    tables::ALL.iter().find(|table| table.id == number).map_or("", |table| table.name)
}

fn report_json(report: &Report, currency: Currency) -> Value {
    let kinds = report.named().map(|(name, moved)| {
        let stay: serde_json::Map<_, _> =
            moved.stay.iter().map(|(why, count)| (why.name().to_owned(), (*count).into())).collect();
        (name.to_owned(), json!({ "seen": moved.seen, "left": moved.left, "stay": stay }))
    });
    let counts: Vec<_> = report
        .counts
        .iter()
        .map(|((table, denom), count)| {
            json!({
                "table": table_name(*table),
                "denomination": (denom.0 > 0).then_some(denom.0),
                "rows": count.rows,
                "bytes": count.bytes,
                "amount": format!("{currency}:{}", count.sum()),
            })
        })
        .collect();
    let (rows, bytes) = report.rows();
    let mut facts = Value::Object(kinds.into_iter().collect());
    facts["run"] = report.run.into();
    facts["rows"] = rows.into();
    facts["bytes"] = bytes.into();
    facts["tables"] = counts.into();
    facts
}

fn report_text(report: &Report, currency: Currency) -> String {
    let mut text = format!("{:<24} {:>14} {:>14} {:>14}\n", "", "examined", "leave", "stay");
    for (name, moved) in report.named() {
        let stay: u64 = moved.stay.values().sum();
        let cells = [moved.seen, moved.left, stay].map(numbers::count);
        text += &format!("{name:<24} {:>14} {:>14} {:>14}\n", cells[0], cells[1], cells[2]);
        for (why, count) in &moved.stay {
            text += &format!("  {:<52} {:>14}\n", why.reason(), numbers::count(*count));
        }
    }
    if !report.counts.is_empty() {
        text += &format!("\n{:<24} {:>14} {:>14} {:>14}  amount\n", "table", "denomination", "rows", "bytes");
    }
    for ((table, denom), count) in &report.counts {
        let denom = if denom.0 == 0 { String::new() } else { denom.0.to_string() };
        text += &format!(
            "{:<24} {denom:>14} {:>14} {:>14}  {currency}:{}\n",
            table_name(*table),
            numbers::count(count.rows),
            numbers::count(count.bytes),
            count.sum()
        );
    }
    let (rows, bytes) = report.rows();
    text + &format!("{:<24} {:>29} {:>14}\n", "in all", numbers::count(rows), numbers::count(bytes))
}

fn run_json(run: u32, row: &ArchiveRunRow) -> Value {
    json!({
        "run": run,
        "started": row.started.to_string(),
        "finished": row.finished.map(|time| time.to_string()),
        "reason": row.reason,
        "rows": row.rows,
        "bytes": row.bytes,
        "digest": row.digest.map(|digest| digest.to_string()),
        "dropped": row.dropped.map(|time| time.to_string()),
        "drop_reason": row.drop_reason,
    })
}

fn run_text(run: u32, row: &ArchiveRunRow) -> String {
    let state = match (row.finished, row.dropped) {
        (_, Some(dropped)) => {
            format!("dropped {dropped}: {}", row.drop_reason.as_deref().unwrap_or_default())
        }
        (Some(finished), None) => format!("ended {finished}"),
        (None, None) => "interrupted, or under way".to_owned(),
    };
    let rows = numbers::count(row.rows);
    format!("run {run}  began {}  {state}  {rows} rows  {}\n", row.started, row.reason)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let config = configuration(&args.common)?;
    let store = open_to_read(&config)?;
    let runs = store.all::<ArchiveRuns>();
    store.close()?;
    let mut runs = runs?;
    runs.sort_by_key(|found| found.key.run);
    if args.json {
        let list: Vec<_> = runs.iter().map(|found| run_json(found.key.run, &found.row)).collect();
        println!("{:#}", json!({ "runs": list }));
        return Ok(ExitCode::SUCCESS);
    }
    if runs.is_empty() {
        println!("there is no archive");
    }
    for found in runs {
        print!("{}", run_text(found.key.run, &found.row));
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let (run, row, contents, different) = match (&args.dir, args.run) {
        (Some(dir), _) => {
            store_args::require_store(dir)?;
            archive::examine(dir, None)?
        }
        (None, run) => {
            let config = configuration(&args.common)?;
            let dir = ArchiveDir::new(&config.archive_dir).of_run(run.unwrap_or_default());
            store_args::require_store(&dir)?;
            let store = open_to_read(&config)?;
            let examined = archive::examine(&dir, Some(&store));
            store.close()?;
            examined?
        }
    };
    let is_complete = different.is_empty() && !row.is_open();
    if args.json {
        let mut facts = run_json(run, &row);
        facts["complete"] = is_complete.into();
        facts["found"] = found_json(&contents);
        facts["differences"] = different.into();
        println!("{facts:#}");
    } else {
        print!("{}", run_text(run, &row));
        for (table, rows, bytes) in contents.tables.iter().filter(|(_, rows, _)| *rows > 0) {
            println!(
                "{:<24} {:>14} rows {:>14} bytes",
                table.name,
                numbers::count(*rows),
                numbers::count(*bytes)
            );
        }
        println!("digest {}", contents.digest);
        for difference in &different {
            println!("the archive {difference}");
        }
        println!(
            "{}",
            match (is_complete, row.is_open()) {
                (true, _) => "the archive has all that the run took",
                (_, true) => "the run has not ended: run it again",
                _ => "the archive differs from what the run wrote: restore it from a backup",
            }
        );
    }
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn found_json(contents: &Contents) -> Value {
    let tables: serde_json::Map<_, _> = contents
        .tables
        .iter()
        .map(|(table, rows, bytes)| (table.name.to_owned(), json!({ "rows": rows, "bytes": bytes })))
        .collect();
    json!({ "digest": contents.digest.to_string(), "tables": tables })
}

async fn drop_archives(args: DropArgs) -> anyhow::Result<ExitCode> {
    let config = configuration(&args.common)?;
    let (retention, archives) = (config.archive_retention, ArchiveDir::new(&config.archive_dir));
    let core = open(config, &args.common).await?;
    let ended = drop_before(&core, &archives, &args, core.now().saturating_sub(retention)).await;
    close(core).await?;
    let dropped = ended?;
    if args.json {
        let list: Vec<_> = dropped.iter().map(|(run, row)| run_json(*run, row)).collect();
        println!("{:#}", json!({ "dropped": list }));
        return Ok(ExitCode::SUCCESS);
    }
    if dropped.is_empty() {
        println!("there is no archive of a run that ended before {}", args.before);
    }
    for (run, row) in dropped {
        print!("{}", run_text(run, &row));
    }
    Ok(ExitCode::SUCCESS)
}

async fn drop_before(
    core: &Core,
    archives: &ArchiveDir,
    args: &DropArgs,
    kept_since: Timestamp,
) -> anyhow::Result<Vec<(u32, ArchiveRunRow)>> {
    if args.before > kept_since {
        bail!(
            "archives since {kept_since} must be kept ([exchangedb] ARCHIVE_RETENTION_TIME): name an earlier day"
        );
    }
    let runs = core.read(Store::all::<ArchiveRuns>).await?;
    let mut dropped = Vec::new();
    for found in runs {
        let (run, row) = (found.key.run, found.row);
        if row.finished.is_none_or(|finished| finished >= args.before) {
            continue;
        }
        // The record comes first: an archive that is recorded as dropped and still there is removed next time.
        let is_new = row.dropped.is_none();
        let row = archive::drop_run(core, run, args.before, args.reason.clone()).await?;
        let dir = archives.of_run(run);
        let removed = archives.clone();
        tokio::task::spawn_blocking(move || removed.remove(run))
            .await
            .context("removing the archive")?
            .with_context(|| format!("cannot remove {}", dir.display()))?;
        if is_new {
            dropped.push((run, row));
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read() {
        for (text, expected) in [
            ("1970-01-01", "1970-01-01T00:00:00Z"),
            ("2024-02-29", "2024-02-29T00:00:00Z"),
            ("2047-12-31", "2047-12-31T00:00:00Z"),
        ] {
            assert_eq!(day(text).unwrap().to_string(), expected);
        }
        for text in
            ["", "2047", "2047-1-1", "2047-02-29", "2047-13-01", "1969-12-31", "tomorrow", "2047-01-01T"]
        {
            assert!(day(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_reason_is_needed() {
        assert_eq!(reason(" the law ").unwrap(), "the law");
        assert!(reason("  ").is_err());
        assert!(reason(&"a".repeat(ARCHIVE_REASON_BYTES_MAX + 1)).is_err());
    }
}
