//! `batzen auditor serve`: follow the exchange, show what was found, and receive deposit confirmations from merchants.

use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_auditor::live::FollowConfig;
use batzen_auditor::{AuditorError, RunningAuditor};
use batzen_cli_support::services::{self, Common, MetricsArgs};
use batzen_store::StoreError;
use clap::Args;

/// Options of `auditor serve`; each overrides the configuration file.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor serve --config auditor.conf
  batzen auditor serve --config auditor.conf --port 8083 --bind 127.0.0.1

With [auditor-feed] it follows the exchange as `auditor sync` does, checks every change, and shows the results at /audit
(FOLLOW = NO: it does not). Ready when GET /ready answers 200.")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    common: Common,
    /// TCP port; 0 picks a free one [default: 8083]
    #[arg(short, long)]
    port: Option<u16>,
    /// Address to listen on [default: every address]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

pub(super) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let mut config = super::config(&args.common)?;
    config.place.choose(args.bind, args.port);
    config.metrics = args.metrics.metrics.or(config.metrics);
    config.follow = FollowConfig::from_ini(&args.common.load()?)?;
    if let Some(dir) = config.follow.as_ref().and_then(|follow| follow.store.dir()) {
        services::directory(dir)?;
    }
    services::directory(&config.data_dir)?;
    let place = config.place.to_string();
    let auditor = match RunningAuditor::start(config).await {
        Err(AuditorError::Bind(error)) => bail!("cannot listen on {place}: {error}"),
        Err(AuditorError::Store(StoreError::InUse(dir))) => {
            bail!("the store {} is in use: another auditor runs on it", dir.display())
        }
        other => other?,
    };
    services::show_metrics_url(auditor.metrics_url());
    eprintln!("auditor ready: {}", auditor.bound());
    stop.await;
    auditor.shutdown().await.context("the auditor's store")?;
    Ok(ExitCode::SUCCESS)
}
