//! `batzen exchange credits`: credits at the bank that fill no reserve.

use std::process::ExitCode;

use anyhow::bail;
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args;
use batzen_crypto::base32;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::core::Core;
use batzen_exchange::reads::read;
use batzen_exchange::workers::wirewatch::aside;
use batzen_store::Store;
use batzen_tables::exchange::{AccountId, AsideKey, AsideRow};
use clap::Args;
use serde_json::{Value, json};

use super::{close, open, open_to_read};

/// The most credits shown.
const CREDITS_MAX: usize = 10_000;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange credits -c exchange.conf
  batzen exchange credits -c exchange.conf --retry exchange-account-1/17
  batzen exchange credits -c exchange.conf --retry-all
  batzen exchange credits -c exchange.conf --dismiss exchange-account-1/18 --note \"sent back on 4 May\"

An exchange with an embedded store must not be running.")]
pub(super) struct CreditsArgs {
    #[command(flatten)]
    common: Common,
    /// Try again to book this credit
    #[arg(long, value_name = "CREDIT")]
    retry: Vec<String>,
    /// Try again to book all of them
    #[arg(long, conflicts_with = "retry")]
    retry_all: bool,
    /// Settle this credit without booking it, because its money was sent back or belongs to the exchange
    #[arg(long, value_name = "CREDIT", requires = "note", conflicts_with_all = ["retry", "retry_all"])]
    dismiss: Vec<String>,
    /// With --dismiss: a note for the books, such as where the money went
    #[arg(long, value_name = "TEXT", requires = "dismiss")]
    note: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists credits that are set aside, or settles some of them.
///
/// # Errors
/// The store is missing or in use, or a named credit is not set aside.
pub(super) fn run(args: CreditsArgs) -> anyhow::Result<ExitCode> {
    let config = ExchangeConfig::from_ini(&args.common.load()?)?;
    store_args::require_existing(&config.store)?;
    if args.retry_all || !args.retry.is_empty() || !args.dismiss.is_empty() {
        return services::block_on(settle(args, config));
    }
    let store = open_to_read(&config)?;
    let shown = show(&store, &config, args.json);
    store.close()?;
    shown
}

/// The name of a credit: the account's section, and the row at the bank.
fn name(config: &ExchangeConfig, key: &AsideKey) -> String {
    let mut accounts = config.accounts.iter();
    let account = accounts.find(|account| AccountId::of_payto(&account.payto_uri) == key.account);
    let section = account
        .map_or_else(|| base32::encode(&key.account.0), |account| account.section.to_ascii_lowercase());
    match key.bank_row {
        0 if key.h_text != [0; 32] => format!("{section}/{}", &base32::encode(&key.h_text)[..12]),
        row => format!("{section}/{row}"),
    }
}

fn show(store: &Store, config: &ExchangeConfig, is_json: bool) -> anyhow::Result<ExitCode> {
    let mut aside = read::credits_aside(store, CREDITS_MAX + 1)?;
    let has_more = aside.len() > CREDITS_MAX;
    aside.truncate(CREDITS_MAX);
    if is_json {
        let list: Vec<Value> = aside
            .iter()
            .map(|(key, row)| {
                let bank = serde_json::from_str(&row.text).unwrap_or_else(|_| json!(row.text));
                json!({ "credit": name(config, key), "reason": row.reason, "time": row.time, "bank": bank })
            })
            .collect();
        println!("{:#}", json!({ "set_aside": list, "more": has_more }));
        return Ok(ExitCode::SUCCESS);
    }
    for (key, row) in &aside {
        println!("{}  {}\n    {}", name(config, key), row.reason, row.text);
    }
    match aside.len() {
        0 => println!("no credit is set aside"),
        count => println!(
            "{}{count} set aside. The money is at the bank and fills no reserve: mend the cause and retry (--retry, \
             --retry-all), or send it back and dismiss (--dismiss)",
            if has_more { "more than " } else { "" }
        ),
    }
    Ok(ExitCode::SUCCESS)
}

async fn settle(args: CreditsArgs, config: ExchangeConfig) -> anyhow::Result<ExitCode> {
    let core = open(config.clone(), &args.common).await?;
    let settled = settle_at(&core, &config, &args).await;
    close(core).await?;
    let (settled, left) = settled?;
    if args.json {
        let left: Vec<Value> =
            left.iter().map(|(credit, reason)| json!({ "credit": credit, "reason": reason })).collect();
        println!("{:#}", json!({ "settled": settled, "set_aside": left }));
    } else {
        for (credit, reason) in &left {
            println!("{credit}  {reason}");
        }
        println!("{} settled, {} still set aside", settled.len(), left.len());
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the credits that were settled, and those that were not, with the reasons.
async fn settle_at(
    core: &Core,
    config: &ExchangeConfig,
    args: &CreditsArgs,
) -> anyhow::Result<(Vec<String>, Vec<(String, String)>)> {
    let aside = core.read(|store| read::credits_aside(store, usize::MAX)).await?;
    let aside: Vec<(String, AsideKey, AsideRow)> =
        aside.into_iter().map(|(key, row)| (name(config, &key), key, row)).collect();
    let named: Vec<&String> = args.retry.iter().chain(&args.dismiss).collect();
    if let Some(unknown) = named.iter().find(|named| aside.iter().all(|(name, ..)| name != **named)) {
        bail!("no credit that is set aside is called {unknown}: see `batzen exchange credits`");
    }
    let (mut settled, mut left) = (Vec::new(), Vec::new());
    for (name, key, row) in aside {
        if !args.retry_all && !named.contains(&&name) {
            continue;
        }
        let ended = match &args.note {
            Some(note) => {
                aside::settle(core, &key, note).await?.then_some(()).ok_or("it is settled already".to_owned())
            }
            None => aside::retry(core, &key, &row).await?,
        };
        match ended {
            Ok(()) => settled.push(name),
            Err(reason) => left.push((name, reason)),
        }
    }
    Ok((settled, left))
}
