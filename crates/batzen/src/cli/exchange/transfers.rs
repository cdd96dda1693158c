//! `batzen exchange transfers`: transfers that the bank refused permanently.

use std::collections::HashSet;
use std::process::ExitCode;

use anyhow::bail;
use batzen_cli_support::services::{self, Common};
use batzen_crypto::Wtid;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::core::Core;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{Command, TransferRetry};
use batzen_protocol::Currency;
use batzen_store::Store;
use batzen_tables::exchange::PreparedRow;
use clap::Args;
use serde_json::json;

use super::{close, open, open_to_read};

use batzen_cli_support::store_args;

/// The most transfers shown.
const TRANSFERS_MAX: usize = 10_000;
/// The most characters of a payto URI shown.
const PAYTO_CHARS_MAX: usize = 200;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange transfers -c exchange.conf
  batzen exchange transfers -c exchange.conf --retry WTID
  batzen exchange transfers -c exchange.conf --retry-all

An exchange with an embedded store must not be running.")]
pub(super) struct TransfersArgs {
    #[command(flatten)]
    common: Common,
    /// Retry this transfer; fix the cause of the refusal first
    #[arg(long, value_name = "WTID")]
    retry: Vec<Wtid>,
    /// Retry all of them
    #[arg(long)]
    retry_all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the refused transfers, or asks the bank again to execute some of them.
///
/// # Errors
/// The store is missing or in use, or a transfer to retry was not refused.
pub(super) fn run(args: TransfersArgs) -> anyhow::Result<ExitCode> {
    let config = ExchangeConfig::from_ini(&args.common.load()?)?;
    store_args::require_existing(&config.store)?;
    if args.retry_all || !args.retry.is_empty() {
        return services::block_on(retry(args, config));
    }
    let store = open_to_read(&config)?;
    let shown = show(&store, config.currency, args.json);
    store.close()?;
    shown
}

fn show(store: &Store, currency: Currency, is_json: bool) -> anyhow::Result<ExitCode> {
    let mut failed = read::failed_transfers(store, TRANSFERS_MAX + 1)?;
    let has_more = failed.len() > TRANSFERS_MAX;
    failed.truncate(TRANSFERS_MAX);
    let mut rows = Vec::with_capacity(failed.len());
    for (wtid, PreparedRow { amount, h_payto, time, failed, .. }) in failed {
        let payto: String =
            read::payto(store, h_payto)?.unwrap_or_default().chars().take(PAYTO_CHARS_MAX).collect();
        rows.push((wtid, amount.of(currency), time, payto, failed.unwrap_or_default()));
    }
    if is_json {
        let list: Vec<_> = rows
            .iter()
            .map(|(wtid, amount, time, account, reason)| {
                json!({ "wtid": wtid, "amount": amount, "time": time, "account": account, "reason": reason })
            })
            .collect();
        println!("{:#}", json!({ "refused": list, "more": has_more }));
        return Ok(ExitCode::SUCCESS);
    }
    for (wtid, amount, _, account, reason) in &rows {
        println!("{wtid}  {amount}  {account}\n    {reason}");
    }
    match rows.len() {
        0 => println!("the bank has refused no transfer"),
        count => {
            let count = match (has_more, count) {
                (true, count) => format!("more than {count} transfers"),
                (false, 1) => "1 transfer".to_owned(),
                (false, count) => format!("{count} transfers"),
            };
            println!(
                "{count} refused for good. The money is still owed: mend the cause, then retry (--retry, --retry-all)"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn retry(args: TransfersArgs, config: ExchangeConfig) -> anyhow::Result<ExitCode> {
    let core = open(config, &args.common).await?;
    let retried = retry_at(&core, &args).await;
    close(core).await?;
    match (retried?, args.json) {
        (count, true) => println!("{:#}", json!({ "retried": count })),
        (1, false) => println!("the bank will be asked again for 1 transfer, when the exchange runs"),
        (count, false) => {
            println!("the bank will be asked again for {count} transfers, when the exchange runs");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns how many were retried.
async fn retry_at(core: &Core, args: &TransfersArgs) -> anyhow::Result<usize> {
    let failed = core.read(|store| read::failed_transfers(store, usize::MAX)).await?;
    let failed: HashSet<Wtid> = failed.into_iter().map(|(wtid, _)| wtid).collect();
    let named: HashSet<Wtid> = args.retry.iter().copied().collect();
    if let Some(unknown) = named.difference(&failed).next() {
        bail!("no refused transfer is called {unknown}: see `batzen exchange transfers`");
    }
    let wtids = if args.retry_all { failed } else { named };
    for wtid in &wtids {
        core.submit(Command::TransferRetry(TransferRetry { wtid: *wtid })).await??;
    }
    Ok(wtids.len())
}
