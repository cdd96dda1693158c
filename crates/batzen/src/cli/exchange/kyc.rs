//! `batzen exchange kyc`: what officers do on a terminal (the page `/kyc-officer` of the exchange does the same), and
//! trying providers out.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use batzen_cli_support::services::{self, Common};
use batzen_crypto::ShortHash;
use batzen_crypto::hash::sha512;
use batzen_exchange::config::ExchangeConfig;
use batzen_http::client::{Client, ClientOptions, Reply};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::kyc_test;
use crate::cli::tokens;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange kyc officer alice --token-file alice.token
  batzen exchange kyc cases --exchange http://localhost:8081/ --token-file alice.token")]
pub(super) struct KycArgs {
    #[command(subcommand)]
    command: KycCommand,
}

#[derive(Subcommand)]
enum KycCommand {
    /// Make a token for an officer, and print the section for the configuration
    Officer(OfficerArgs),
    /// List what customers have entered and officers have not decided
    Cases(CasesArgs),
    /// Show everything about one account
    Show(ShowArgs),
    /// Confirm that a customer is who the form says
    Approve(DecideArgs),
    /// Ask a customer to fill in the form again
    Reject(DecideArgs),
    /// Try a provider out, as a customer
    Test(kyc_test::TestArgs),
}

#[derive(Args)]
struct OfficerArgs {
    /// The officer's name: letters, digits, - and _
    name: String,
    /// File to write the token to; it must not exist
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

#[derive(Args)]
struct Access {
    #[command(flatten)]
    common: Common,
    /// Base URL of the exchange [default: BASE_URL of the configuration]
    #[arg(long, value_name = "URL")]
    exchange: Option<String>,
    /// File with the officer's token
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

#[derive(Args)]
struct CasesArgs {
    #[command(flatten)]
    access: Access,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    access: Access,
    /// The account: hash of its payto URI
    h_payto: ShortHash,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DecideArgs {
    #[command(flatten)]
    access: Access,
    /// The account: hash of its payto URI
    h_payto: ShortHash,
    /// The provider's section, if the account has cases with several
    #[arg(long, value_name = "SECTION")]
    provider: Option<String>,
    /// Why; kept for supervisors
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a `batzen exchange kyc` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: KycArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        KycCommand::Officer(args) => officer(&args),
        KycCommand::Cases(args) => services::block_on(cases(args)),
        KycCommand::Show(args) => services::block_on(show(args)),
        KycCommand::Approve(args) => services::block_on(decide(args, true)),
        KycCommand::Reject(args) => services::block_on(decide(args, false)),
        KycCommand::Test(args) => services::block_on(kyc_test::run(args)),
    }
}

fn officer(args: &OfficerArgs) -> anyhow::Result<ExitCode> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if args.name.is_empty() || !args.name.chars().all(is_name) {
        bail!("{:?} is not a name of letters, digits, - and _", args.name);
    }
    let (token, path) = (tokens::random(), &args.token_file);
    if let Err(error) = tokens::write(path, &token) {
        bail!("{}: {error}", path.display());
    }
    println!("[kyc-officer-{}]\nTOKEN_HASH = {}", args.name, sha512(token.as_bytes()));
    eprintln!(
        "The token is in {}. Give it to the officer; the exchange needs the lines above.",
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// A connection to the exchange as an officer.
struct Desk {
    client: Client,
    base: String,
    token: String,
}

impl Desk {
    fn open(access: &Access) -> anyhow::Result<Self> {
        let token = read_token(&access.token_file)?;
        let base = match &access.exchange {
            Some(url) if url.ends_with('/') => url.clone(),
            Some(url) => format!("{url}/"),
            None => {
                ExchangeConfig::from_ini(&access.common.load()?)
                    .context("name the exchange with --exchange or a configuration")?
                    .base_url
            }
        };
        Ok(Self { client: Client::new(&ClientOptions::default())?, base, token })
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let call = self.client.get(format!("{}kyc-officer/{path}", self.base));
        answer(&call.header("authorization", &format!("Bearer {}", self.token)).send().await?)
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let call = self.client.post(format!("{}kyc-officer/{path}", self.base));
        answer(&call.header("authorization", &format!("Bearer {}", self.token)).json(body).send().await?)
    }
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    match text.trim() {
        "" => bail!("{} is empty: make a token with `batzen exchange kyc officer`", path.display()),
        token => Ok(token.to_owned()),
    }
}

fn answer(reply: &Reply) -> anyhow::Result<Value> {
    match reply.status {
        200 => Ok(reply.json()?),
        401 => bail!("the exchange does not know this token: is its [kyc-officer-…] section configured?"),
        _ => Err(reply.status_error().into()),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn print_case(case: &Value) {
    println!("{}", text(&case["h_payto"]));
    let line = |name: &str, value: &str| {
        if !value.is_empty() {
            println!("  {name:<18} {value}");
        }
    };
    line("account", text(&case["payto_uri"]));
    line("provider", text(&case["provider"]));
    line("state", text(&case["state"]));
    line("held payouts", text(&case["held"]));
    line("approved by", text(&case["approved_by"]));
    if let Some(missing) = case["approvals_missing"].as_u64().filter(|missing| *missing > 0) {
        line("approvals missing", &missing.to_string());
    }
    for (name, value) in case["attributes"].as_object().into_iter().flatten() {
        line(&name.replace('_', " "), value.as_str().unwrap_or(&value.to_string()));
    }
}

async fn cases(args: CasesArgs) -> anyhow::Result<ExitCode> {
    let answer = Desk::open(&args.access)?.get("cases").await?;
    let cases = answer["cases"].as_array().map(Vec::as_slice).unwrap_or_default();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&cases)?);
    } else if cases.is_empty() {
        eprintln!("No case waits.");
    } else {
        cases.iter().for_each(print_case);
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let answer = Desk::open(&args.access)?.get(&format!("accounts/{}", args.h_payto)).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    answer["cases"].as_array().into_iter().flatten().for_each(print_case);
    for decision in answer["decisions"].as_array().into_iter().flatten() {
        let verb = if decision["approved"] == json!(true) { "approved" } else { "rejected" };
        println!("  {} {verb}: {}", text(&decision["officer"]), text(&decision["reason"]));
    }
    Ok(ExitCode::SUCCESS)
}

async fn decide(args: DecideArgs, approved: bool) -> anyhow::Result<ExitCode> {
    let desk = Desk::open(&args.access)?;
    let account = desk.get(&format!("accounts/{}", args.h_payto)).await?;
    let cases = account["cases"].as_array().into_iter().flatten();
    let is_wanted = |case: &&Value| {
        !case["case"].is_null()
            && args
                .provider
                .as_ref()
                .is_none_or(|wanted| text(&case["provider"]).eq_ignore_ascii_case(wanted))
    };
    let waiting: Vec<&Value> = cases.filter(is_wanted).collect();
    let [case] = waiting.as_slice() else {
        match waiting.len() {
            0 => bail!("no case of {} waits for a decision", args.h_payto),
            _ => bail!("several cases wait: name one with --provider"),
        }
    };
    let wish = json!({
        "h_payto": case["h_payto"], "provider": case["provider"], "case": case["case"],
        "approved": approved, "reason": args.reason,
    });
    let answer = desk.post("decisions", &wish).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        println!(
            "{}",
            match text(&answer["outcome"]) {
                "approved" => "Approved: the customer is identified.",
                "rejected" => "Rejected: the customer was asked to try again.",
                _ => "Noted. Payouts would be released, so another officer must approve as well.",
            }
        );
    }
    Ok(ExitCode::SUCCESS)
}
