//! `batzen merchant`: run the backend with which shops get paid.

use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args::StoreArgs;
use batzen_merchant::{ListenConfig, MerchantConfig, MerchantError, RunningMerchant};
use clap::{Args, Subcommand};

use super::{known_options, sample};

/// Run the merchant backend, with which shops get paid.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct MerchantArgs {
    #[command(subcommand)]
    command: MerchantCommand,
}

#[derive(Subcommand)]
enum MerchantCommand {
    /// Serve shops and wallets: instances, orders, payments
    #[command(alias = "httpd")]
    Serve(ServeArgs),
    /// Create or migrate the tables in PostgreSQL
    Dbinit(DbinitArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
}

/// Options of `merchant serve`; each overrides the configuration file.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen merchant serve --config /etc/taler/taler.conf
  batzen merchant serve --config merchant.conf --data ./merchant --port 9966

Ready when GET /ready answers 200, whether or not an exchange can be reached.")]
struct ServeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    /// TCP port; 0 picks a free one [default: 9966]
    #[arg(short, long)]
    port: Option<u16>,
    /// Address to listen on [default: every address]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Ignored, as in existing scripts
    #[arg(hide = true)]
    stray: Option<String>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  batzen merchant dbinit --config /etc/taler/taler.conf

It can be run again at any time. An embedded store needs no preparation.")]
struct DbinitArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs a `batzen merchant` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: MerchantArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        MerchantCommand::Serve(args) => services::block_on(serve(args)),
        MerchantCommand::Dbinit(args) => {
            let config = MerchantConfig::from_config(&args.common.load()?)?;
            config.store.prepare(&batzen_service::storage::MERCHANT).context("the merchant's tables")?;
            Ok(ExitCode::SUCCESS)
        }
        MerchantCommand::SampleConfig(args) => {
            sample::print(&args, "merchant", sample::MERCHANT);
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let ini = args.common.load()?;
    known_options::warn(&ini);
    let mut config = MerchantConfig::from_config(&ini)?;
    if let ListenConfig::Tcp { host, port } = &mut config.place {
        *port = args.port.unwrap_or(*port);
        *host = args.bind.or_else(|| host.take());
    }
    config.clock = args.common.timetravel.clock();
    config.store = args.store.choose(Some(config.store))?.with_index_memory(&ini, "merchant")?;
    if config.exchanges.is_empty() {
        tracing::warn!("no [merchant-exchange-…] section is configured, so nobody can pay");
    }
    let place = match &config.place {
        ListenConfig::Tcp { port, .. } => format!("port {port}"),
        ListenConfig::Unix { path } => path.display().to_string(),
    };
    let merchant = match RunningMerchant::start(config).await {
        Err(MerchantError::Bind(error)) => bail!("cannot listen on {place}: {error}"),
        other => other?,
    };
    eprintln!("merchant ready: {}", merchant.bound());
    stop.await;
    merchant.shutdown().await.context("the merchant's store")?;
    Ok(ExitCode::SUCCESS)
}
