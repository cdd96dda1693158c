//! `batzen auditor exchange`: the exchanges that are audited.

use std::process::ExitCode;

use anyhow::bail;
use batzen_auditor::books::Books;
use batzen_auditor::is_base_url;
use batzen_cli_support::services::Common;
use batzen_crypto::EddsaPublicKey;
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(super) struct ExchangeArgs {
    #[command(subcommand)]
    command: ExchangeCommand,
}

#[derive(Subcommand)]
enum ExchangeCommand {
    /// Audit an exchange. Exit code 1 if it is audited already
    #[command(after_help = "Examples:
  batzen auditor exchange add 98NJW3CQHZQGQXTY3K85K531XKPAPAVV4Q5V8PYYRR00NJGZWNVG https://exchange.example/")]
    Add(AddArgs),
    /// No longer audit an exchange. What merchants have shown of it stays. Exit code 1 if it is not audited
    #[command(after_help = "Examples:
  batzen auditor exchange remove 98NJW3CQHZQGQXTY3K85K531XKPAPAVV4Q5V8PYYRR00NJGZWNVG -c auditor.conf")]
    Remove(RemoveArgs),
    /// List the exchanges that are audited
    #[command(after_help = "Examples:
  batzen auditor exchange list -c auditor.conf --json")]
    List(ListArgs),
    /// Add or remove an exchange, with the options of taler-auditor-exchange
    #[command(hide = true)]
    #[command(after_help = "Examples:
  taler-auditor-exchange -m 98NJW3CQHZQGQXTY3K85K531XKPAPAVV4Q5V8PYYRR00NJGZWNVG -u https://exchange.example/
  taler-auditor-exchange -m 98NJW3CQHZQGQXTY3K85K531XKPAPAVV4Q5V8PYYRR00NJGZWNVG -r")]
    Change(ChangeArgs),
}

#[derive(Args)]
struct AddArgs {
    /// The exchange's master public key
    master_pub: EddsaPublicKey,
    /// The exchange's base URL, with a slash at its end
    #[arg(value_parser = url)]
    url: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct RemoveArgs {
    /// The exchange's master public key
    master_pub: EddsaPublicKey,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    common: Common,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ChangeArgs {
    #[command(flatten)]
    common: Common,
    /// The exchange's master public key
    #[arg(short = 'm', long, value_name = "KEY")]
    exchange_key: EddsaPublicKey,
    /// The exchange's base URL, with a slash at its end
    #[arg(short = 'u', long, value_name = "URL", value_parser = url)]
    exchange_url: Option<String>,
    /// Remove the exchange
    #[arg(short, long)]
    remove: bool,
}

fn url(text: &str) -> Result<String, String> {
    if is_base_url(text) {
        return Ok(text.to_owned());
    }
    Err("expected a URL that starts with http:// or https:// and ends with /".to_owned())
}

pub(super) fn run(args: ExchangeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ExchangeCommand::Add(args) => {
            change(&args.common, |books| Ok(books.add_exchange(args.master_pub, &args.url)?))
        }
        ExchangeCommand::Remove(args) => {
            change(&args.common, |books| Ok(books.remove_exchange(args.master_pub)?))
        }
        ExchangeCommand::List(args) => list(&args),
        ExchangeCommand::Change(args) => match (args.remove, args.exchange_url) {
            (true, _) => change(&args.common, |books| Ok(books.remove_exchange(args.exchange_key)?)),
            (false, Some(url)) => {
                change(&args.common, |books| Ok(books.add_exchange(args.exchange_key, &url)?))
            }
            (false, None) => bail!("which exchange? Name its base URL with -u URL, or remove it with -r"),
        },
    }
}

fn change(common: &Common, change: impl FnOnce(&Books) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let books = Books::open(&super::config(common)?)?;
    change(&books)?;
    books.close()?;
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let books = Books::open(&super::config(&args.common)?)?;
    let exchanges = books.exchanges()?;
    books.close()?;
    if args.json {
        println!("{:#}", json!({ "exchanges": exchanges }));
    } else {
        for exchange in exchanges {
            println!("{} {}", exchange.master_pub, exchange.exchange_url);
        }
    }
    Ok(ExitCode::SUCCESS)
}
