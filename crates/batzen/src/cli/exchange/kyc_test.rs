//! `batzen exchange kyc test`: tries a provider out before customers depend on it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use batzen_cli_support::services::{self, Common};
use batzen_exchange::config::{ExchangeConfig, KycLogicConfig, ListenConfig};
use batzen_exchange::kyc::Rehearsal;
use batzen_exchange::rules::KycUserType;
use clap::Args;
use serde_json::{Value, json};

/// The section of a provider begins with this, which may be left out.
const PREFIX: &str = "kyc-provider-";

/// Without a provider, lists what is configured. With one, prints the page where a customer would log in, waits
/// until you have done so, and prints what the provider reports. Nothing is stored.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange kyc test --config /etc/taler/taler.conf
  batzen exchange kyc test login --config /etc/taler/taler.conf

The provider sends the browser back to BASE_URL, so no exchange may be running at its port. Exit code 1 if nobody
was identified.")]
pub(super) struct TestArgs {
    #[command(flatten)]
    common: Common,
    /// The provider, as in [kyc-provider-NAME]
    #[arg(value_name = "NAME")]
    provider: Option<String>,
    /// TCP port to listen on, behind the same proxy as the exchange [default: the exchange's]
    #[arg(short, long)]
    port: Option<u16>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Any failure, as one line.
pub(super) async fn run(args: TestArgs) -> anyhow::Result<ExitCode> {
    let mut config = ExchangeConfig::from_ini(&args.common.load()?)?;
    let Some(name) = &args.provider else { return list(&config, args.json) };
    if let (Some(chosen), ListenConfig::Tcp { port, .. }) = (args.port, &mut config.listen) {
        *port = chosen;
    }
    let mut section = name.to_ascii_lowercase();
    if !section.starts_with(PREFIX) {
        section.insert_str(0, PREFIX);
    }
    let stop = services::stop_signal()?;
    let mut rehearsal = Rehearsal::begin(&config, &section).await?;
    if args.json {
        println!("{}", json!({ "user_url": rehearsal.user_url }));
    } else {
        eprintln!("Log in here as a customer would:");
        println!("{}", rehearsal.user_url);
    }
    std::io::stdout().flush()?;
    let result = tokio::select! {
        result = rehearsal.result() => Some(result),
        () = tokio::time::sleep(Duration::from_secs(args.wait)) => None,
        () = stop => None,
    };
    rehearsal.end().await;
    let identity = match result {
        None => bail!("nobody came back from the provider"),
        Some(Err(problem)) => bail!("nobody was identified: {problem}"),
        Some(Ok(identity)) => identity,
    };
    if args.json {
        println!("{}", json!({ "user_id": identity.user_id, "attributes": identity.attributes }));
    } else {
        eprintln!("Identified. The exchange would store, encrypted:");
        println!("{:<18} {}", "user", identity.user_id);
        for (name, value) in identity.attributes.as_object().into_iter().flatten() {
            println!("{:<18} {}", name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn user_type(user_type: KycUserType) -> &'static str {
    match user_type {
        KycUserType::Individual => "individual",
        KycUserType::Business => "business",
    }
}

/// The providers with what they check.
fn list(config: &ExchangeConfig, as_json: bool) -> anyhow::Result<ExitCode> {
    let kyc = &config.kyc;
    let providers = kyc.providers.iter().zip(&kyc.rules.providers).map(|(provider, checks)| {
        let logic = match provider.logic {
            KycLogicConfig::OAuth2(_) => "oauth2",
            KycLogicConfig::Manual { .. } => "manual",
        };
        json!({ "provider": provider.section, "logic": logic, "user_type": user_type(checks.user_type),
                "checks": checks.checks, "cost": checks.cost })
    });
    let providers: Vec<Value> = providers.collect();
    if as_json {
        providers.iter().for_each(|provider| println!("{provider}"));
        return Ok(ExitCode::SUCCESS);
    }
    if providers.is_empty() {
        eprintln!("No [kyc-provider-…] section is configured: nobody is ever identified.");
    }
    for provider in &providers {
        let text = |name: &str| provider[name].as_str().unwrap_or_default();
        let checks = provider["checks"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let checks: Vec<&str> = checks.collect();
        println!(
            "{:<28} {:<8} {:<11} {}",
            text("provider"),
            text("logic"),
            text("user_type"),
            checks.join(" ")
        );
    }
    Ok(ExitCode::SUCCESS)
}
