//! `batzen switch`: run the interbank switch.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args::StoreArgs;
use batzen_cli_support::switch_ledger::SwitchLedger;
use batzen_config::Config;
use batzen_ledger_service::net::LedgerAddress;
use batzen_service::storage::StoreConfig;
use batzen_service::weak_token;
use batzen_switch::{Operator, Switch, SwitchConfig, SwitchError};
use clap::{Args, Subcommand};

use crate::cli::{known_options, sample};

/// Configuration sections that name an operator.
const OPERATOR_PREFIX: &str = "switch-operator-";

/// Run the interbank switch.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SwitchArgs {
    #[command(subcommand)]
    command: SwitchCommand,
}

#[derive(Subcommand)]
enum SwitchCommand {
    /// Serve the interfaces for participants and operators
    Serve(ServeArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
}

/// Options of `switch serve`; each overrides the configuration file.
#[derive(Args)]
#[command(after_help = "Example:
  batzen switch serve --config switch.conf

  [switch]
  PORT = 8090
  ADMIN_PORT = 8091
  DATA_DIR = /var/lib/batzen/switch
  [switch-operator-alice]
  TOKEN = secret-token:alices-own-token
  [switch-operator-bob]
  TOKEN = secret-token:another-of-bob

Ready when GET /ready at the operators' port answers 200.")]
struct ServeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    /// Port of the participants' interface; 0 picks a free one [default: 8090]
    #[arg(short, long)]
    port: Option<u16>,
    /// Port of the operators' interface; 0 picks a free one [default: 8091]
    #[arg(long)]
    admin_port: Option<u16>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Where the money is held: embedded (in this process, kept with the store), tcp://HOST:PORT,
    /// unix:///PATH or tigerbeetle://ADDRESS,ADDRESS [default: embedded]
    #[arg(long, value_name = "LEDGER")]
    ledger: Option<LedgerAddress>,
}

/// Runs a `batzen switch` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: SwitchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        SwitchCommand::Serve(args) => services::block_on(serve(args)),
        SwitchCommand::SampleConfig(args) => Ok(sample::print(&args, "switch", sample::SWITCH)),
    }
}

fn port(ini: &Config, option: &str, default: u16) -> anyhow::Result<u16> {
    match ini.text("switch", option) {
        Some(text) => text.parse().with_context(|| format!("[switch] {option} = {text}: not a port")),
        None => Ok(default),
    }
}

fn yes(ini: &Config, option: &str, default: bool) -> anyhow::Result<bool> {
    match ini.text("switch", option) {
        None => Ok(default),
        Some(text) if text.eq_ignore_ascii_case("yes") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("no") => Ok(false),
        Some(text) => bail!("[switch] {option} = {text}: expected YES or NO"),
    }
}

/// Returns the time that a proposal waits for a second operator.
fn patience(ini: &Config) -> anyhow::Result<std::time::Duration> {
    const OPTION: &str = "APPROVAL_PATIENCE";
    if ini.text("switch", OPTION).is_none() {
        return Ok(SwitchConfig::default().approval_patience);
    }
    ini.duration("switch", OPTION)?
        .to_std()
        .with_context(|| format!("[switch] {OPTION} is a time such as 7 days"))
}

/// The ledger that holds the switch's money.
///
/// # Errors
/// Text that is not an address.
pub(super) fn ledger_address(ini: &Config) -> anyhow::Result<LedgerAddress> {
    let text = ini.text("switch", "LEDGER");
    text.map_or(Ok(LedgerAddress::Embedded), |text| {
        text.parse().with_context(|| format!("[switch] LEDGER = {text}: not the address of a ledger"))
    })
}

/// Reads a switch's configuration, without the clock. Without a store in it, the books are in memory.
///
/// # Errors
/// The first option that is missing or invalid.
pub(super) fn from_ini(ini: &Config) -> anyhow::Result<SwitchConfig> {
    let mut operators = Vec::new();
    for section in ini.sections() {
        let section = section.to_ascii_lowercase();
        if let Some(name) = section.strip_prefix(OPERATOR_PREFIX) {
            let token = ini.text(&section, "TOKEN");
            let token = token.with_context(|| format!("[{section}] has no TOKEN"))?;
            if let Some(why) = weak_token(token) {
                bail!("[{section}] TOKEN: {why}");
            }
            operators.push(Operator::new(name, token));
        }
    }
    Ok(SwitchConfig {
        store: match StoreConfig::database_of(ini, "switch")? {
            Some(database) => database,
            None => {
                StoreConfig::in_directory(ini.get("switch", "DATA_DIR")?).with_index_memory(ini, "switch")?
            }
        },
        listen_host: Some(ini.text("switch", "BIND_TO").unwrap_or("127.0.0.1").to_owned()),
        port: port(ini, "PORT", 8090)?,
        admin_port: port(ini, "ADMIN_PORT", 8091)?,
        operators,
        hostnames: batzen_service::front(ini, "switch")?.1,
        four_eyes: yes(ini, "FOUR_EYES", true)?,
        approval_patience: patience(ini)?,
        allow_on_us: yes(ini, "ALLOW_ON_US", false)?,
        ..SwitchConfig::default()
    })
}

fn switch_config(args: &ServeArgs, ini: &Config) -> anyhow::Result<SwitchConfig> {
    let timetravel = args.common.timetravel;
    let configured = from_ini(ini)?;
    Ok(SwitchConfig {
        store: args.store.choose(Some(configured.store))?.with_index_memory(ini, "switch")?,
        listen_host: args.bind.clone().or(configured.listen_host),
        port: args.port.unwrap_or(configured.port),
        admin_port: args.admin_port.unwrap_or(configured.admin_port),
        clock: Arc::new(move || timetravel.micros()),
        ..configured
    })
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let mut stop = Box::pin(services::stop_signal()?);
    let ini = args.common.load()?;
    known_options::warn(&ini);
    let mut config = switch_config(&args, &ini)?;
    let address = match args.ledger {
        Some(address) => address,
        None => ledger_address(&ini)?,
    };
    if config.store.is_memory() && address != LedgerAddress::Embedded {
        bail!("books in memory would forget what the ledger at {address} remembers: use --data DIR");
    }
    let place = std::mem::replace(&mut config.store, StoreConfig::Memory);
    config.store = place.part("switch");
    if let Some(dir) = config.store.dir() {
        services::directory(dir)?;
    }
    let place = place.part("ledger");
    let start = async {
        let ledger = SwitchLedger::open(&address, &place).await?;
        let switch = Switch::start(config, ledger.shared()).await;
        anyhow::Ok((ledger, switch))
    };
    let Some(started) = services::start_unless(&mut stop, start).await else {
        return Ok(ExitCode::SUCCESS);
    };
    let (ledger, switch) = started?;
    let switch = match switch {
        Err(SwitchError::Bind(error)) => bail!("cannot listen: {error}"),
        other => other?,
    };
    eprintln!("switch ready: participants {} operators {}", switch.fsp_url(), switch.admin_url());
    stop.await;
    switch.shutdown().await.context("the switch's store")?;
    ledger.stop()?;
    Ok(ExitCode::SUCCESS)
}
