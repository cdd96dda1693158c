//! `batzen store`: inspect an embedded store that no process has open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use batzen_store::embedded::{EmbeddedStore, RealDisk};
use clap::{Args, Subcommand};
use serde_json::json;

use batzen_cli_support::store_args::require_store;

/// Inspect, verify or repair an embedded store that no process has open.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Read every byte, and check that the store can be opened and contains all durable data. Changes
    /// nothing. Exit code 1 if a check fails
    Verify(Target),
    /// Show the contents of the journal: segments, frames, and records with their bytes by table
    Inspect {
        #[command(flatten)]
        target: Target,
        /// Show every frame
        #[arg(long)]
        frames: bool,
    },
    /// Cut off the damaged end of a journal that does not open. Acknowledged commits may be lost: restore a
    /// backup if there is one, and audit afterwards. The removed bytes and the reason stay in DIR, as
    /// cut-N.bin and cut-N.txt
    Cut(Cut),
}

#[derive(Args)]
struct Cut {
    /// Directory of the store
    dir: PathBuf,
    /// Reason for the cut, kept for auditors
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
}

#[derive(Args)]
struct Target {
    /// Directory of the store
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a `batzen store` command.
///
/// # Errors
/// When there is no readable store.
pub(super) fn run(args: StoreArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        StoreCommand::Verify(target) => verify(&target),
        StoreCommand::Inspect { target, frames } => inspect(&target, frames),
        StoreCommand::Cut(args) => cut(&args),
    }
}

fn at(dir: &Path) -> String {
    format!("store {}", dir.display())
}

fn verify(target: &Target) -> anyhow::Result<ExitCode> {
    require_store(&target.dir)?;
    let report = EmbeddedStore::verify(&target.dir).with_context(|| at(&target.dir))?;
    let is_sound = report.problems.is_empty();
    let frames: u64 = report.segments.iter().map(|segment| segment.frames).sum();
    let records: u64 = report.segments.iter().map(|segment| segment.records).sum();
    let bytes: u64 = report.segments.iter().map(|segment| segment.used_bytes).sum();
    if target.json {
        let torn = report.torn_tail.as_ref().map(|(file, offset)| json!({ "file": file, "offset": offset }));
        println!(
            "{:#}",
            json!({
                "sound": is_sound,
                "segments": report.segments.len(),
                "frames": frames,
                "records": records,
                "bytes": bytes,
                "checkpoint_bytes": report.checkpoint_bytes,
                "index_bytes": report.index_bytes,
                "torn_tail": torn,
                "problems": report.problems,
            })
        );
    } else {
        println!("{} segments, {frames} frames, {records} records, {bytes} bytes", report.segments.len());
        if let Some((file, offset)) = &report.torn_tail {
            println!(
                "{}: a commit was interrupted at byte {offset}; nothing of it was answered, the next start drops it",
                file.display()
            );
        }
        for problem in &report.problems {
            println!("{problem}");
        }
        println!(
            "{}",
            if is_sound { "the store is sound" } else { "the store is damaged: restore it from a backup" }
        );
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cut(args: &Cut) -> anyhow::Result<ExitCode> {
    require_store(&args.dir)?;
    let report = EmbeddedStore::verify(&args.dir).with_context(|| at(&args.dir))?;
    if report.problems.is_empty() {
        anyhow::bail!("{}: the store is sound; there is nothing to cut", at(&args.dir));
    }
    let done = EmbeddedStore::cut_tail(&args.dir, &RealDisk, &args.reason).with_context(|| at(&args.dir))?;
    println!(
        "{}: cut at byte {}, from frame {} on; what was there is in {}",
        done.segment.display(),
        done.offset,
        done.sequence,
        done.kept.display()
    );
    let report = EmbeddedStore::verify(&args.dir).with_context(|| at(&args.dir))?;
    for problem in &report.problems {
        println!("{problem}");
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The name of a table by its number, if one of this program's services defines it.
fn table_name(number: u16) -> String {
    let known = [
        batzen_tables::exchange::ALL,
        batzen_tables::bank::ALL,
        batzen_tables::merchant::ALL,
        batzen_tables::auditor::ALL,
        batzen_tables::auditor::copy::OWN,
    ];
    known
        .into_iter()
        .flatten()
        .find(|table| table.id == number)
        .map_or_else(|| format!("table {number}"), |table| table.name.to_owned())
}

/// A table's share of the journal.
#[derive(Default)]
struct Share {
    written: u64,
    deleted: u64,
    bytes: u64,
}

fn inspect(target: &Target, show_frames: bool) -> anyhow::Result<ExitCode> {
    require_store(&target.dir)?;
    let mut tables: BTreeMap<u16, Share> = BTreeMap::new();
    let mut lines = Vec::new();
    let report = EmbeddedStore::inspect(&target.dir, &RealDisk, &mut |frame| {
        for record in &frame.records {
            let share = tables.entry(record.table).or_default();
            *(if record.is_deletion { &mut share.deleted } else { &mut share.written }) += 1;
            share.bytes += record.bytes;
        }
        if show_frames {
            lines.push(frame);
        }
    })
    .with_context(|| at(&target.dir))?;
    let in_all: u64 = report.segments.iter().map(|segment| segment.used_bytes).sum();
    // Headers of segments and frames, and padding of frames.
    let frame_bytes = in_all.saturating_sub(tables.values().map(|share| share.bytes).sum());
    if target.json {
        let segments: Vec<_> = report
            .segments
            .iter()
            .map(|segment| {
                json!({
                    "number": segment.number,
                    "file": segment.file,
                    "bytes": segment.used_bytes,
                    "frames": segment.frames,
                    "records": segment.records,
                    "sequences": segment.sequences,
                })
            })
            .collect();
        let tables: serde_json::Map<_, _> = tables
            .iter()
            .map(|(number, share)| {
                let Share { written, deleted, bytes } = share;
                (table_name(*number), json!({ "written": written, "deleted": deleted, "bytes": bytes }))
            })
            .collect();
        let frames: Vec<_> = lines
            .iter()
            .map(|frame| {
                let records: Vec<_> = frame
                    .records
                    .iter()
                    .map(|record| json!({ "table": table_name(record.table), "serial": record.serial, "deleted": record.is_deletion, "bytes": record.bytes }))
                    .collect();
                json!({
                    "segment": frame.segment,
                    "offset": frame.offset,
                    "bytes": frame.bytes,
                    "sequence": frame.sequence,
                    "kind": format!("{:?}", frame.kind),
                    "records": records,
                })
            })
            .collect();
        let mut out = json!({
            "segments": segments,
            "tables": tables,
            "frame_bytes": frame_bytes,
            "problems": report.problems,
        });
        if show_frames {
            out["frames"] = frames.into();
        }
        println!("{out:#}");
        return Ok(ExitCode::SUCCESS);
    }
    for segment in &report.segments {
        println!(
            "segment {:>4}  {:>12} bytes  {:>8} frames  {:>9} records  {}",
            segment.number,
            segment.used_bytes,
            segment.frames,
            segment.records,
            segment.file.display()
        );
    }
    for (number, Share { written, deleted, bytes }) in &tables {
        println!("{:<28} {written:>9} written {deleted:>9} deleted {bytes:>12} bytes", table_name(*number));
    }
    println!("{:<28} {frame_bytes:>42} bytes", "frames around them");
    for frame in &lines {
        println!(
            "frame {:>8}  segment {} at {:>10}  {:>8} bytes  {:?}  {} records",
            frame.sequence,
            frame.segment,
            frame.offset,
            frame.bytes,
            frame.kind,
            frame.records.len()
        );
    }
    for problem in &report.problems {
        println!("{problem}");
    }
    Ok(ExitCode::SUCCESS)
}
