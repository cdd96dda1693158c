//! `batzen merchant`: run the backend with which shops get paid.

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use batzen_cli_support::services::{self, Common, MetricsArgs};
use batzen_cli_support::store_args::{self, StoreArgs};
use batzen_merchant::{MerchantConfig, MerchantError, RunningMerchant, signkeys};
use batzen_store::StoreError;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

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
    /// Show the signing keys of exchanges that the backend remembers, or forget those of one
    Signkeys(SignkeysArgs),
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
    #[command(flatten)]
    metrics: MetricsArgs,
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

#[derive(Args)]
#[command(after_help = "Examples:
  batzen merchant signkeys --config merchant.conf
  batzen merchant signkeys --config merchant.conf --forget 2Z0RQ2S7XGSW70GJ3ZAJG1FWDZXW5QMA3RHF8DCXMC6Z0TS9PB4G

A key that an exchange has left out of its list is withdrawn, and its signatures are no longer accepted. If that was a
mistake, forget the keys of the exchange: its next list then counts as the first. Stop the backend before, unless its
store is a database.")]
struct SignkeysArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    /// Forget the keys of the exchange with this master public key
    #[arg(long, value_name = "MASTER_PUB")]
    forget: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
        MerchantCommand::Signkeys(args) => signkeys(args),
        MerchantCommand::SampleConfig(args) => Ok(sample::print(&args, "merchant", sample::MERCHANT)),
    }
}

fn signkeys(args: SignkeysArgs) -> anyhow::Result<ExitCode> {
    let mut config = MerchantConfig::from_config(&args.common.load()?)?;
    config.clock = args.common.timetravel.clock();
    config.store = args.store.choose(Some(config.store))?;
    store_args::require_existing(&config.store)?;
    let in_use = |error| match error {
        MerchantError::Store(StoreError::InUse(dir)) => {
            anyhow!("the store {} is in use: stop the backend first", dir.display())
        }
        other => other.into(),
    };
    if let Some(master_pub) = args.forget {
        let master_pub = master_pub.parse().map_err(|_| {
            anyhow!("--forget takes an exchange's master public key: 52 letters and digits, as in MASTER_KEY")
        })?;
        let forgotten = signkeys::forget(&config, master_pub).map_err(in_use)?;
        match args.json {
            true => println!("{:#}", json!({ "forgotten": forgotten })),
            false => println!("{forgotten} signing keys forgotten"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let keys = signkeys::remembered(&config).map_err(in_use)?;
    if args.json {
        let list: Vec<Value> = keys
            .iter()
            .map(|(key, row)| {
                json!({
                    "master_pub": key.master_pub, "exchange_pub": key.exchange_pub, "first_seen": row.first_seen,
                    "stamp_expire": row.stamp_expire, "stamp_end": row.stamp_end, "withdrawn": row.withdrawn,
                })
            })
            .collect();
        println!("{:#}", json!({ "signkeys": list }));
        return Ok(ExitCode::SUCCESS);
    }
    for (key, row) in &keys {
        let state = match row.withdrawn {
            Some(time) => format!("withdrawn {time}"),
            None => format!("signs until {}", row.stamp_expire),
        };
        println!("{}  {}  first seen {}, {state}", key.master_pub, key.exchange_pub, row.first_seen);
    }
    if keys.is_empty() {
        println!("no signing key of an exchange is known");
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let ini = args.common.load()?;
    known_options::warn(&ini);
    let mut config = MerchantConfig::from_config(&ini)?;
    config.place.choose(args.bind, args.port);
    config.metrics = args.metrics.metrics.or(config.metrics);
    config.clock = args.common.timetravel.clock();
    config.store = args.store.choose(Some(config.store))?.with_index_memory(&ini, "merchant")?;
    if config.exchanges.is_empty() {
        tracing::warn!("no [merchant-exchange-…] section is configured, so nobody can pay");
    }
    let place = config.place.to_string();
    let merchant = match RunningMerchant::start(config).await {
        Err(MerchantError::Bind(error)) => bail!("cannot listen on {place}: {error}"),
        other => other?,
    };
    services::show_metrics_url(merchant.metrics_url());
    eprintln!("merchant ready: {}", merchant.bound());
    stop.await;
    merchant.shutdown().await.context("the merchant's store")?;
    Ok(ExitCode::SUCCESS)
}
