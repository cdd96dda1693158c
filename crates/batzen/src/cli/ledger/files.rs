//! `batzen ledger inspect`, `verify`, `backup`, `restore`: the files of a ledger that no process has open.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use batzen_cli_support::progress::is_interactive;
use batzen_ledger_service::store::{
    DurableLedger, DurableOptions, Inspection, RecoveryError, VerifyReport, system_clock, verify_directory,
};
use batzen_service::storage::{LEDGER, StoreConfig};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use batzen_cli_support::store_args::require_store;

/// A ledger on disk.
#[derive(Args)]
pub(super) struct Files {
    /// Directory of the ledger
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of copying from one directory into another.
#[derive(Args)]
pub(super) struct CopyArgs {
    /// Directory to copy from
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Directory to copy into; new or empty
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows a spinner on a terminal.
struct Waiting(ProgressBar);

impl Waiting {
    fn new(message: &str) -> Self {
        if !is_interactive() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(message.to_owned());
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn open(dir: &Path) -> anyhow::Result<DurableLedger> {
    let _waiting = Waiting::new("reading the log");
    require_store(dir)?;
    let place = StoreConfig::embedded(dir.to_owned());
    let store = place.open_to_read(&LEDGER).map_err(RecoveryError::from);
    store
        .and_then(|store| DurableLedger::start(store, system_clock, DurableOptions::default()))
        .with_context(|| format!("the ledger in {}", dir.display()))
}

pub(super) fn inspect(args: &Files) -> anyhow::Result<ExitCode> {
    let ledger = open(&args.dir)?;
    let Inspection { state, log_blocks, log_memory_bytes, snapshot, store } = ledger.inspect();
    ledger.stop().context("the ledger's store")?;
    let counts = state.counts;
    if args.json {
        let shown = json!({
            "accounts": counts.accounts,
            "transfers": counts.transfers,
            "pendings": counts.pendings,
            "burnt_ids": counts.burnt,
            "records": counts.records,
            "digest": state.digest.to_string(),
            "last_timestamp": state.clock.to_string(),
            "log_rows": log_blocks,
            "snapshot_records": snapshot.records,
            "id_runs": snapshot.id_runs,
            "id_disk_bytes": snapshot.id_disk_bytes,
            "disk_bytes": store.disk_bytes,
            "segments": store.segments,
            "memory_bytes": {
                "accounts": state.memory.accounts,
                "ids": state.memory.ids,
                "pendings": state.memory.pendings,
                "log": log_memory_bytes,
                "id_filters": snapshot.filter_bytes,
                "store_index": store.index_bytes,
            },
        });
        println!("{shown:#}");
        return Ok(ExitCode::SUCCESS);
    }
    let memory = state.memory.accounts
        + state.memory.ids
        + state.memory.pendings
        + log_memory_bytes
        + snapshot.filter_bytes
        + store.index_bytes;
    for (name, value) in [
        ("accounts", counts.accounts.to_string()),
        ("transfers", counts.transfers.to_string()),
        ("unresolved pending", counts.pendings.to_string()),
        ("burnt ids", counts.burnt.to_string()),
        ("records of the log", format!("{} in {log_blocks} rows", counts.records)),
        ("snapshot", format!("{} of these records", snapshot.records)),
        ("ids on disk", format!("{} bytes in {} runs", snapshot.id_disk_bytes, snapshot.id_runs)),
        ("digest", state.digest.to_string()),
        ("last timestamp", state.clock.to_string()),
        ("on disk", format!("{} bytes in {} segments", store.disk_bytes, store.segments)),
        ("in memory", format!("{memory} bytes")),
    ] {
        println!("{name:<20} {value}");
    }
    Ok(ExitCode::SUCCESS)
}

fn report(what: &str, outcome: Result<VerifyReport, RecoveryError>, as_json: bool) -> ExitCode {
    match outcome {
        Ok(VerifyReport { counts, digest, blocks }) if as_json => {
            let shown = json!({
                "sound": true,
                "accounts": counts.accounts,
                "transfers": counts.transfers,
                "pendings": counts.pendings,
                "burnt_ids": counts.burnt,
                "records": counts.records,
                "log_rows": blocks,
                "digest": digest.to_string(),
            });
            println!("{shown:#}");
            ExitCode::SUCCESS
        }
        Ok(VerifyReport { counts, digest, .. }) => {
            println!(
                "{what}: sound; {} accounts, {} transfers, {} records, digest {digest}",
                counts.accounts, counts.transfers, counts.records
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            if as_json {
                println!("{:#}", json!({ "sound": false, "problem": error.to_string() }));
            }
            eprintln!("batzen: {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(super) fn verify(args: &Files) -> anyhow::Result<ExitCode> {
    require_store(&args.dir)?;
    let waiting = Waiting::new("re-executing the log");
    let outcome = verify_directory(&args.dir);
    drop(waiting);
    Ok(report(&args.dir.display().to_string(), outcome, args.json))
}

/// A backup is a ledger, so restoring is the same operation in the other direction. The source is re-executed
/// before it is copied.
pub(super) fn copy(args: &CopyArgs, verb: &str) -> anyhow::Result<ExitCode> {
    if std::fs::read_dir(&args.to).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{}: is not empty; {verb} goes into a new directory", args.to.display());
    }
    require_store(&args.from)?;
    if verb == "restore" {
        let _waiting = Waiting::new("verifying the backup");
        verify_directory(&args.from).with_context(|| format!("the backup in {}", args.from.display()))?;
    }
    let ledger = open(&args.from)?;
    let waiting = Waiting::new("copying and verifying the copy");
    let outcome = ledger.backup(&args.to);
    drop(waiting);
    ledger.stop().context("the ledger's store")?;
    Ok(report(&args.to.display().to_string(), outcome, args.json))
}
