//! `taler-exchange-wire-gateway-client`: the options of existing scripts for what `batzen bank gateway` does.

use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_bank::gateway_client::{self, GatewayCommand};
use batzen_cli_support::services::Common;
use batzen_config::Config;
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_exchange::config::{CREDENTIALS_PREFIX, GatewayAuth as ConfiguredAuth, GatewayConfig};
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::Amount;
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use clap::{ArgGroup, Args};

/// The options that say what to do, of which one is given.
const WHAT: [&str; 4] = ["credit_history", "debit_history", "credit_account", "debit_account"];

/// Query an account's wire gateway, with the options of taler-exchange-wire-gateway-client.
#[derive(Args)]
#[command(after_help = "Examples:
  taler-exchange-wire-gateway-client -c taler.conf -s exchange-accountcredentials-1 -i
  taler-exchange-wire-gateway-client -b http://localhost:8082/taler-wire-gateway/exchange/ \\
      -a KUDOS:5 -D 'payto://x-taler-bank/localhost/zoe?receiver-name=zoe'")]
#[command(group(ArgGroup::new("where").required(true).args(["section", "bank"])))]
#[command(group(ArgGroup::new("what").required(true).args(WHAT)))]
pub(super) struct WireGatewayClientArgs {
    #[command(flatten)]
    common: Common,
    /// Section with the credentials of the account, such as exchange-accountcredentials-1
    #[arg(short, long, value_name = "SECTION", conflicts_with_all = ["user", "pass"])]
    section: Option<String>,
    /// Base URL of the account's wire gateway
    #[arg(short, long, value_name = "URL")]
    bank: Option<String>,
    /// With --bank: user name
    #[arg(short, long, value_name = "NAME", requires = "pass")]
    user: Option<String>,
    /// With --user: password. Other users of the machine can see it
    #[arg(short, long, value_name = "PASSWORD", requires = "user")]
    pass: Option<String>,
    /// Show the last ten incoming transfers: row, time in seconds, amount, sender, reserve key
    #[arg(short = 'i', long)]
    credit_history: bool,
    /// Show the last ten outgoing transfers: row, time in seconds, amount, receiver, wire transfer identifier
    #[arg(short = 'o', long)]
    debit_history: bool,
    /// With -i or -o: before this row
    #[arg(short = 'w', long, value_name = "ROW", conflicts_with_all = ["credit_account", "debit_account"])]
    since_when: Option<u64>,
    /// Send money from the account to this payto URI. A repetition sends it again, unless it has the same --request-uid
    #[arg(short = 'C', long, alias = "credit", value_name = "PAYTO", requires = "amount")]
    credit_account: Option<String>,
    /// Move money from this payto URI to the account, at banks that allow anybody to do so
    #[arg(short = 'D', long, alias = "debit", value_name = "PAYTO", requires = "amount")]
    debit_account: Option<String>,
    /// With -C or -D: the amount
    #[arg(short, long, value_name = "AMOUNT")]
    amount: Option<Amount>,
    /// With -C: the wire transfer identifier; with -D: the reserve key [default: with -C from the request uid, with -D random]
    #[arg(short = 'S', long, value_name = "SUBJECT", requires = "amount")]
    subject: Option<String>,
    /// With -C: the request uid that an earlier attempt has printed, so that the money is sent once
    #[arg(long, value_name = "UID", requires = "credit_account")]
    request_uid: Option<HashCode>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The uid of a transfer. A new one is printed before the transfer is sent: its answer may be lost.
pub(super) fn announced(request_uid: Option<HashCode>) -> HashCode {
    request_uid.unwrap_or_else(|| {
        let uid = HashCode::random();
        eprintln!("if this fails, repeat it with --request-uid {uid}: the money is then sent once");
        uid
    })
}

/// The gateway's URL and credentials from a section of the configuration.
fn configured(ini: &Config, section: &str) -> anyhow::Result<(String, GatewayAuth)> {
    let whole = format!("{CREDENTIALS_PREFIX}{section}");
    let section = if ini.has_section(section) { section } else { &whole };
    if !ini.has_section(section) {
        bail!("section [{section}] does not exist (taler-config -S lists all)");
    }
    let gateway = GatewayConfig::from_ini(ini, section)?;
    let gateway = gateway.with_context(|| format!("section [{section}] has no option WIRE_GATEWAY_URL"))?;
    let auth = match gateway.auth {
        ConfiguredAuth::None => GatewayAuth::None,
        ConfiguredAuth::Basic { username, password } => GatewayAuth::Basic { username, password },
    };
    Ok((gateway.url, auth))
}

/// Runs the command.
///
/// # Errors
/// A configuration that cannot be used; a gateway that does not answer, or refuses.
pub(super) async fn run(args: WireGatewayClientArgs) -> anyhow::Result<ExitCode> {
    let (url, auth) = match (&args.section, args.bank) {
        (Some(section), _) => configured(&args.common.load()?, section)?,
        (None, Some(url)) => match (args.user, args.pass) {
            (Some(username), Some(password)) => (url, GatewayAuth::Basic { username, password }),
            _ => (url, GatewayAuth::None),
        },
        (None, None) => unreachable!("one of the two is required"),
    };
    let start = args.since_when;
    let subject = args.subject.as_deref();
    let command = match (args.credit_account, args.debit_account, args.amount) {
        (Some(credit_account), _, Some(amount)) => {
            let wtid = subject.map(str::parse::<Wtid>).transpose();
            let wtid =
                wtid.context("--subject: expected a wire transfer identifier (52 characters of base32)")?;
            GatewayCommand::Transfer {
                credit_account,
                amount,
                wtid,
                request_uid: announced(args.request_uid),
            }
        }
        (_, Some(debit_account), Some(amount)) => {
            let reserve_pub = subject.map(str::parse::<EddsaPublicKey>).transpose();
            let reserve_pub =
                reserve_pub.context("--subject: expected a reserve key (52 characters of base32)")?;
            GatewayCommand::AddIncoming { debit_account, amount, reserve_pub }
        }
        _ if args.credit_history => GatewayCommand::CreditHistory { start },
        _ => GatewayCommand::DebitHistory { start },
    };
    let client = WireGatewayClient::new(Client::new(&ClientOptions::default())?, &url, auth);
    gateway_client::run(&client, command, args.json, &mut std::io::stdout()).await?;
    Ok(ExitCode::SUCCESS)
}
