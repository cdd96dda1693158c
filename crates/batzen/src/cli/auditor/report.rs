//! `batzen auditor report`, `suppress` and `reopen`: what was found about a followed exchange, and what people decided.

use std::process::ExitCode;

use anyhow::bail;
use batzen_auditor::checks::{self, CheckConfig, Report, Timeline};
use batzen_auditor::live::{self, Live};
use batzen_auditor::{AuditorConfig, Forms, Wanted};
use batzen_cli_support::services::Common;
use batzen_cli_support::store_args::require_existing;
use batzen_config::Config;
use batzen_crypto::ShortHash;
use batzen_protocol::Timestamp;
use batzen_service::storage::{AUDITOR_COPY, StoreConfig};
use batzen_store::Store;
use clap::Args;

use super::run::{OutputArgs, own_copy, show};

/// Options of `auditor report`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor report -c auditor.conf
  batzen auditor report -c auditor.conf --html audit.html --csv audit.csv

Exit code 3: a finding is open.")]
pub(super) struct ReportArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    output: OutputArgs,
}

/// Options of `auditor suppress` and `auditor reopen`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor suppress -c auditor.conf 9N3X1C0V5S2E1Q0P8M7K6J5H4G3F2D1C0B9A8Z7Y6X5W4V3T2S1R --reason 'the bank has confirmed it'
  batzen auditor reopen -c auditor.conf 9N3X1C0V5S2E1Q0P8M7K6J5H4G3F2D1C0B9A8Z7Y6X5W4V3T2S1R --reason 'it was the wrong transfer'

A suppressed finding stays in reports, with the reason. Found again with other figures, it is open again.")]
pub(super) struct NoteArgs {
    #[command(flatten)]
    common: Common,
    /// The finding's number, as `batzen auditor report` shows it
    finding: ShortHash,
    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Name of the person who decides, kept with the reason [default: the user's]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// The report of a copy that no other process has open.
fn read(store: &Store, config: &CheckConfig, now: Timestamp) -> anyhow::Result<Report> {
    checks::require_rows(store)?;
    let Some(mut live) = Live::open(store, &config.subject, 1)? else {
        bail!("the copy has changed since it was last checked: run `batzen auditor run`");
    };
    let started = Timestamp::from_system_time(std::time::SystemTime::now());
    let outcome = live.report(now)?;
    let ended = Timestamp::from_system_time(std::time::SystemTime::now());
    let context = checks::context(config, (started, ended), true);
    let timeline = Some(Timeline::read(store, now)?);
    Ok(Report { outcome, context, exchange_url: config.subject.base_url.clone(), timeline })
}

/// Runs `auditor report`.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let ini = args.common.load()?;
    let config = CheckConfig::from_ini(&ini, None)?;
    let socket = AuditorConfig::from_config(&ini)?.socket();
    let forms = match batzen_auditor::ask_report(&socket, Wanted::Last)? {
        Some(forms) => forms,
        None => {
            let store = own_copy_of(&ini)?.open_to_read(&AUDITOR_COPY)?;
            let report = read(&store, &config, args.common.timetravel.now());
            store.close()?;
            Forms::from(&report?)
        }
    };
    show(&args.output, &forms, &checks::text_of(&forms.json))
}

/// The place of the copy, which exists.
fn own_copy_of(ini: &Config) -> anyhow::Result<StoreConfig> {
    let place = own_copy(ini)?;
    require_existing(&place)?;
    Ok(place)
}

/// Runs `auditor suppress` and `auditor reopen`.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn note(args: &NoteArgs, suppresses: bool) -> anyhow::Result<ExitCode> {
    let ini = args.common.load()?;
    let socket = AuditorConfig::from_config(&ini)?.socket();
    let variable = |name| std::env::var(name).ok();
    let by = args.by.clone().or_else(|| variable("SUDO_USER")).or_else(|| variable("USER"));
    let by = by.filter(|name| !name.trim().is_empty());
    let reason = args.reason.trim();
    let reason = match by {
        // An empty reason is refused below.
        Some(name) if !reason.is_empty() => format!("{reason} ({})", name.trim()),
        _ => reason.to_owned(),
    };
    if !batzen_auditor::ask_note(&socket, args.finding, suppresses, &reason)? {
        let store = own_copy_of(&ini)?.open(&AUDITOR_COPY, 1)?;
        let now = args.common.timetravel.now();
        let noted = live::note(&store, args.finding, suppresses, &reason, now);
        store.close()?;
        noted?;
    }
    println!("{}", if suppresses { "suppressed" } else { "reopened" });
    Ok(ExitCode::SUCCESS)
}
