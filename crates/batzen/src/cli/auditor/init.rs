//! `batzen auditor init`: everything that an auditor needs before its first start.

use std::process::ExitCode;

use anyhow::Context;
use batzen_auditor::KeyError;
use batzen_cli_support::services::{self, Common};
use clap::Args;

use super::run::followed_copy;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor init --config auditor.conf

Prints the auditor's public key, which the exchange's operator enables with `batzen exchange offline enable-auditor`.
It can be run again at any time, and then changes nothing.")]
pub(super) struct InitArgs {
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let config = super::config(&args.common)?;
    services::directory(&config.data_dir)?;
    let auditor_pub = match config.auditor_pub() {
        Err(KeyError::Missing(_)) => config.create_key()?.public_key(),
        known => known?,
    };
    config.store.prepare(&batzen_service::storage::AUDITOR).context("the auditor's tables")?;
    if let Some(copy) = followed_copy(&args.common.load()?)? {
        copy.prepare(&batzen_service::storage::AUDITOR_COPY).context("the tables of the copy")?;
    }
    println!("{auditor_pub}");
    Ok(ExitCode::SUCCESS)
}
