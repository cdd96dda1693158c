//! `batzen bank`: run a bank, inspect its books, query a wire gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_bank::gateway_client::{self, GatewayCommand};
use batzen_bank::{Bank, BankConfig, BankError, IbanBank, LedgerAddress};
use batzen_cli_support::services::{self, Common, MetricsArgs};
use batzen_cli_support::store_args::{self, StoreArgs};
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_http::client::{Client, ClientOptions};
use batzen_ledger::Ledger;
use batzen_protocol::{Amount, Currency};
use batzen_service::storage::StoreConfig;
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use clap::{Args, Subcommand};
use serde_json::json;

use super::wire_gateway_client::{self, WireGatewayClientArgs};
use super::{known_options, sample};

/// Run the bank.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct BankArgs {
    #[command(subcommand)]
    command: BankCommand,
}

#[derive(Subcommand)]
enum BankCommand {
    /// Serve the bank's APIs: wire gateway, bank integration, access
    Serve(ServeArgs),
    /// Sum up the books of a bank that is not running, and check that debits equal credits
    Totals(TotalsArgs),
    /// Query an account's wire gateway
    Gateway(GatewayArgs),
    /// The same with other options
    #[command(hide = true)]
    WireGatewayClient(WireGatewayClientArgs),
    /// Print the IBAN of an account number, by which the account can be registered
    Iban(IbanArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
}

/// Options of `bank serve`; each overrides the configuration file.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen bank serve --currency KUDOS --data ./bank --port 8082
  batzen bank serve --currency KUDOS --store postgres --database postgres:///bank
  batzen bank serve --config /etc/taler/taler.conf

Ready when GET /ready answers 200.")]
struct ServeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    /// TCP port; 0 picks a free one [default: 8082]
    #[arg(short, long)]
    port: Option<u16>,
    /// Address to listen on [default: every address, or 127.0.0.1 without configuration]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Host name in payto and withdraw URIs [default: localhost; in withdraw URIs the address to listen on,
    /// if localhost does not lead there]
    #[arg(short = 'H', long, value_name = "NAME")]
    hostname: Option<String>,
    /// Country and bank code, such as DE50010517: accounts whose names are IBANs of this bank have iban
    /// payto URIs [default: no IBANs]
    #[arg(long, value_name = "CODE")]
    iban_bank: Option<IbanBank>,
    /// Currency of all accounts [default: from the configuration, else KUDOS]
    #[arg(long)]
    currency: Option<Currency>,
    /// Amount that a newly registered account receives
    #[arg(short, long, value_name = "AMOUNT")]
    signup_bonus: Option<String>,
    /// Close each connection after its first answer
    #[arg(short = 'C', long)]
    connection_close: bool,
    /// Accepted for existing scripts; there are as many threads as processors
    #[arg(short, long, value_name = "N")]
    num_threads: Option<u32>,
    /// Base URL of the exchange that the bank suggests to wallets
    #[arg(long, value_name = "URL")]
    exchange: Option<String>,
    /// Where the money is held: embedded (in this process, kept with the store), tcp://HOST:PORT,
    /// unix:///PATH or tigerbeetle://ADDRESS,ADDRESS [default: embedded]
    #[arg(long, value_name = "LEDGER")]
    ledger: Option<LedgerAddress>,
    /// How far any account may be overdrawn [default: without limit]
    #[arg(long, value_name = "AMOUNT")]
    debt_limit: Option<String>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  batzen bank iban DE50010517 0648489890")]
struct IbanArgs {
    /// Country and bank code, as for bank serve --iban-bank
    #[arg(value_name = "CODE")]
    bank: IbanBank,
    /// The account's number at the bank
    number: String,
}

#[derive(Args)]
struct TotalsArgs {
    #[command(flatten)]
    common: Common,
    /// Directory of the bank's store [default: from the configuration]
    #[arg(value_name = "STORE")]
    data: Option<PathBuf>,
    /// PostgreSQL database of the bank, instead of a directory
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    database: Option<String>,
    /// Where the bank's money is held [default: from the configuration, or embedded with STORE or --database]
    #[arg(long, value_name = "LEDGER")]
    ledger: Option<LedgerAddress>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(arg_required_else_help = true)]
struct GatewayArgs {
    /// Base URL of the account's wire gateway, e.g. http://localhost:8082/taler-wire-gateway/exchange/
    #[arg(long, value_name = "URL")]
    url: String,
    /// User name, if the gateway requires one
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File with the password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: GatewayVerb,
}

#[derive(Subcommand)]
enum GatewayVerb {
    /// Show the last incoming transfers: row, time in seconds, amount, sender, reserve key
    Incoming {
        /// Before this row
        #[arg(long, value_name = "ROW")]
        start: Option<u64>,
    },
    /// Show the last outgoing transfers: row, time in seconds, amount, receiver, wire transfer identifier
    Outgoing {
        /// Before this row
        #[arg(long, value_name = "ROW")]
        start: Option<u64>,
    },
    /// Send money from the account. A repetition sends it again, unless it has the same --request-uid
    Transfer {
        /// Amount
        amount: Amount,
        /// payto URI of the receiver
        credit_account: String,
        /// Wire transfer identifier [default: it follows from the request uid]
        #[arg(long)]
        wtid: Option<Wtid>,
        /// Request uid that an earlier attempt has printed, so that the money is sent once [default: random]
        #[arg(long, value_name = "UID")]
        request_uid: Option<HashCode>,
    },
    /// Move money to the account, at banks that allow anybody to do so
    AddIncoming {
        /// Amount
        amount: Amount,
        /// payto URI of the sender
        debit_account: String,
        /// Reserve key [default: random]
        #[arg(long)]
        reserve_pub: Option<EddsaPublicKey>,
    },
}

/// Runs a `batzen bank` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: BankArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        BankCommand::Serve(args) => services::block_on(serve(args)),
        BankCommand::Totals(args) => services::block_on(totals(args)),
        BankCommand::Gateway(args) => services::block_on(gateway(args)),
        BankCommand::WireGatewayClient(args) => services::block_on(wire_gateway_client::run(args)),
        BankCommand::Iban(IbanArgs { bank, number }) => {
            let iban = bank
                .iban(&number)
                .context("an account number has letters and digits, at most 30 with the code")?;
            println!("{iban}");
            Ok(ExitCode::SUCCESS)
        }
        BankCommand::SampleConfig(args) => Ok(sample::print(&args, "bank", sample::BANK)),
    }
}

fn bank_config(args: &ServeArgs) -> anyhow::Result<BankConfig> {
    let ini = args.common.load()?;
    known_options::warn(&ini);
    let mut config = if ini.text("taler", "CURRENCY").is_some() {
        BankConfig::from_config(&ini)?
    } else {
        BankConfig::new(args.currency.unwrap_or_else(|| "KUDOS".parse().expect("a currency")))
    };
    if let Some(currency) = args.currency
        && currency != config.currency
    {
        bail!("the configuration is for {}, not {currency}", config.currency);
    }
    if let Some(bonus) = &args.signup_bonus {
        config.signup_bonus = services::money(bonus, config.currency)?;
    }
    if let Some(limit) = &args.debt_limit {
        config.debt_limit = Some(services::money(limit, config.currency)?);
    }
    if let Some(ledger) = &args.ledger {
        config.ledger = ledger.clone();
    }
    config.http_port = args.port.unwrap_or(config.http_port);
    config.metrics = args.metrics.metrics.clone().or(config.metrics);
    config.listen_host = args.bind.clone().or(config.listen_host);
    config.hostname = args.hostname.clone().unwrap_or(config.hostname);
    config.iban_bank = args.iban_bank.clone().or(config.iban_bank);
    config.suggested_exchange = args.exchange.clone().or(config.suggested_exchange);
    config.clock = args.common.timetravel.clock();
    config.close_each_connection |= args.connection_close;
    if args.num_threads.is_some() {
        tracing::info!("-n has no effect: there are as many threads as processors");
    }
    config.store = args.store.choose(Some(config.store))?.with_index_memory(&ini, "bank")?;
    Ok(config)
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let mut stop = Box::pin(services::stop_signal()?);
    let config = bank_config(&args)?;
    let port = config.http_port;
    let Some(started) = services::start_unless(&mut stop, Bank::start(config)).await else {
        return Ok(ExitCode::SUCCESS);
    };
    let bank = match started {
        Err(BankError::Bind(error)) => bail!("cannot listen on port {port}: {error}"),
        other => other?,
    };
    services::show_metrics_url(bank.metrics_url());
    eprintln!("bank ready: {}", bank.base_url);
    stop.await;
    bank.shutdown().await.context("the bank's store")?;
    Ok(ExitCode::SUCCESS)
}

async fn totals(args: TotalsArgs) -> anyhow::Result<ExitCode> {
    let named = match (args.data, args.database) {
        (_, Some(url)) => Some(StoreConfig::postgres(url)),
        (data, None) => data.map(StoreConfig::embedded),
    };
    let (place, ledger) = match named {
        Some(place) => (place, args.ledger.unwrap_or(LedgerAddress::Embedded)),
        None => {
            let ini = args.common.load()?;
            if ini.text("taler", "CURRENCY").is_none() {
                bail!(
                    "which bank? Name its STORE, its --database URL, or a configuration with --config FILE"
                );
            }
            let configured = BankConfig::from_config(&ini)?;
            (configured.store, args.ledger.unwrap_or(configured.ledger))
        }
    };
    store_args::require_existing(&place)?;
    let (store, ledger): (_, Arc<dyn Ledger>) = match &ledger {
        LedgerAddress::Embedded => {
            let (store, ledger) = batzen_bank::embedded_books(&place)?;
            (store, ledger)
        }
        address => {
            let store = place.open_to_read(&batzen_service::storage::BANK)?;
            (store, batzen_ledger_service::net::connect(&address.to_string()).await?)
        }
    };
    let totals = batzen_bank::books::check(&store, ledger.as_ref()).await?;
    if args.json {
        let accounts: Vec<_> = totals
            .accounts
            .iter()
            .map(|account| {
                let (negative, size) = account.balance();
                json!({ "name": account.name, "negative": negative, "balance": size.to_string() })
            })
            .collect();
        println!("{:#}", json!({ "accounts": accounts, "balanced": totals.credits == totals.debits }));
    } else {
        for account in &totals.accounts {
            let (negative, size) = account.balance();
            let size = format!("{}{size}", if negative { "-" } else { "" });
            println!("{:<32} {size:>24}", account.name);
        }
        println!("the books add up");
    }
    store.close()?;
    Ok(ExitCode::SUCCESS)
}

async fn gateway(args: GatewayArgs) -> anyhow::Result<ExitCode> {
    let auth = match (args.user, &args.password_file) {
        (Some(username), Some(file)) => {
            let password = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            GatewayAuth::Basic { username, password: password.trim_end_matches('\n').to_owned() }
        }
        _ => GatewayAuth::None,
    };
    let client = WireGatewayClient::new(Client::new(&ClientOptions::default())?, &args.url, auth);
    let command = match args.command {
        GatewayVerb::Incoming { start } => GatewayCommand::CreditHistory { start },
        GatewayVerb::Outgoing { start } => GatewayCommand::DebitHistory { start },
        GatewayVerb::Transfer { amount, credit_account, wtid, request_uid } => {
            let request_uid = wire_gateway_client::announced(request_uid);
            GatewayCommand::Transfer { credit_account, amount, wtid, request_uid }
        }
        GatewayVerb::AddIncoming { amount, debit_account, reserve_pub } => {
            GatewayCommand::AddIncoming { debit_account, amount, reserve_pub }
        }
    };
    gateway_client::run(&client, command, args.json, &mut std::io::stdout()).await?;
    Ok(ExitCode::SUCCESS)
}
