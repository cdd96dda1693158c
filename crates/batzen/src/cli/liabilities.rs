//! `batzen liabilities`: judges evidence against an exchange.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_crypto::EddsaPublicKey;
use batzen_protocol::liabilities::Evidence;
use clap::{Args, Subcommand};
use serde_json::json;

/// The exit code if evidence proves nothing.
const EXIT_NO_PROOF: u8 = 3;
/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Check proofs that an exchange hides what it owes
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  batzen liabilities check-evidence evidence.json"
)]
pub(crate) struct LiabilitiesArgs {
    #[command(subcommand)]
    command: LiabilitiesCommand,
}

#[derive(Subcommand)]
enum LiabilitiesCommand {
    /// Check a proof of fraud, without any network. Exit code 0: it is one; 3: it proves nothing
    #[command(after_help = "Examples:
  batzen liabilities check-evidence evidence.json
  batzen liabilities check-evidence evidence.json --master-key KEY --json

It needs the exchange's master key, which everybody can look up. Without --master-key, the key is the one that the file
names: compare it with the exchange's.")]
    CheckEvidence(CheckArgs),
}

#[derive(Args)]
struct CheckArgs {
    /// The evidence
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The exchange's master public key
    #[arg(short = 'm', long, value_name = "KEY")]
    master_key: Option<EddsaPublicKey>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a `batzen liabilities` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: &LiabilitiesArgs) -> anyhow::Result<ExitCode> {
    let LiabilitiesCommand::CheckEvidence(args) = &args.command;
    let name = args.file.display();
    let length = std::fs::metadata(&args.file).with_context(|| format!("cannot read {name}"))?.len();
    if length > FILE_BYTES_MAX {
        bail!("{name} is longer than {FILE_BYTES_MAX} bytes");
    }
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let evidence: Evidence = batzen_protocol::liabilities::parse(&bytes)
        .map_err(|error| anyhow::anyhow!("{name} is not evidence: {error}"))?;
    if let Some(key) = args.master_key.filter(|key| *key != evidence.master_pub) {
        bail!("the evidence is against the exchange with master key {}, not {key}", evidence.master_pub);
    }
    let judged = evidence.judge();
    let (proves, says) = match &judged {
        Ok(judgement) => (true, judgement.to_string()),
        Err(reason) => (false, reason.to_string()),
    };
    if args.json {
        println!("{:#}", json!({ "proves": proves, "reason": says, "master_pub": evidence.master_pub }));
    } else if proves {
        println!("Proved: {says}.\nThe exchange's master key is {}.", evidence.master_pub);
    } else {
        println!("This proves nothing: {says}.");
    }
    Ok(if proves { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NO_PROOF) })
}
