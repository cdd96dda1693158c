//! `batzen auditor liabilities`: checks what an exchange has published about its debts, and confirms it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use batzen_auditor::AuditorConfig;
use batzen_auditor::checks::CheckConfig;
use batzen_auditor::liabilities::{self, LiabilitiesOutcome, Request, Source};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args::require_existing;
use clap::Args;

use super::run::RowsArgs;

/// The exit code if something was found.
const EXIT_FINDINGS: u8 = 3;
/// The most findings that are printed.
const SHOWN_MAX: usize = 50;

/// Options of `auditor liabilities`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor liabilities --config auditor.conf
  batzen auditor liabilities --config auditor.conf --from /mirrors/exchange --data /copies/exchange

Epochs that are right are confirmed with the auditor's key, unless --no-confirm is given; `batzen auditor serve` answers
with the confirmations. Exit code 3: something was found, and nothing is confirmed.")]
pub(super) struct LiabilitiesArgs {
    #[command(flatten)]
    common: Common,
    /// Where the published files are: a URL such as https://exchange.example/liabilities, or a directory [default: the
    /// exchange's URL in the configuration]
    #[arg(long, value_name = "URL|DIR")]
    from: Option<String>,
    #[command(flatten)]
    rows: RowsArgs,
    /// Do not sign confirmations
    #[arg(long)]
    no_confirm: bool,
    /// Write a proof of fraud that others can check, if there is one
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `auditor liabilities`.
pub(super) fn run(args: &LiabilitiesArgs) -> anyhow::Result<ExitCode> {
    let ini = args.common.load()?;
    let subject = CheckConfig::from_ini(&ini, args.rows.exchange_key)?;
    let own = AuditorConfig::from_config(&ini)?;
    let (store, is_own_copy) = args.rows.choose(&ini, &subject.store)?;
    let source = match &args.from {
        None => Source::Url(format!("{}liabilities", subject.subject.base_url)),
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => Source::Url(url.clone()),
        // The service may read it, which runs elsewhere.
        Some(dir) => Source::Directory(std::path::absolute(dir)?),
    };
    let key =
        if args.no_confirm { None } else { Some(own.private_key().context("without a key: --no-confirm")?) };
    let request = Request {
        source,
        store,
        is_own_copy,
        master_pub: subject.subject.master_pub,
        data_dir: own.data_dir.clone(),
        now: args.common.timetravel.now(),
    };
    let examined = if is_own_copy { batzen_auditor::ask_liabilities(&own.socket(), &request)? } else { None };
    let outcome = match examined {
        Some(examined) => examined.confirm(&request, key.as_ref())?,
        None => {
            require_existing(&request.store)?;
            services::block_on(async { Ok(liabilities::check(&request, key.as_ref()).await?) })?
        }
    };
    if let (Some(path), Some(evidence)) = (&args.evidence, outcome.evidence.first()) {
        let bytes = serde_json::to_vec_pretty(evidence)?;
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{:#}", serde_json::to_value(&outcome)?);
    } else {
        print!("{}", text(&outcome));
    }
    Ok(if outcome.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
}

fn text(outcome: &LiabilitiesOutcome) -> String {
    let mut text = format!("{} epochs, {} leaves", outcome.epochs, outcome.leaves);
    if let (Some(end), Some(outstanding)) = (outcome.end, &outcome.outstanding) {
        text.push_str(&format!("; {outstanding} owed for coins as of {end}"));
    }
    text.push('\n');
    if !outcome.too_new.is_empty() {
        let count = outcome.too_new.len();
        text.push_str(&format!(
            "{count} epochs are newer than the copy of the rows: follow the exchange, then check again\n"
        ));
    }
    for found in outcome.findings.iter().take(SHOWN_MAX) {
        let epoch = found.epoch.map_or_else(String::new, |epoch| format!("epoch {epoch}: "));
        text.push_str(&format!("FOUND {epoch}{}\n", found.text));
    }
    if outcome.findings.len() > SHOWN_MAX {
        text.push_str(&format!("and {} more\n", outcome.findings.len() - SHOWN_MAX));
    }
    if outcome.findings.is_empty() {
        text.push_str(&format!("nothing found; {} epochs confirmed\n", outcome.confirmed.len()));
    } else {
        text.push_str("nothing is confirmed\n");
    }
    text
}
