//! `batzen-lab switch demo`: a ledger, a switch and four simulated participants in one process, with real HTTP
//! between them, and a proof that no money is lost.
//!
//! | module | contents |
//! |---|---|
//! | `play` | the demonstration, step by step |
//! | `files` | reports of the settlement |
//! | `books` | the balance sheet |
//! | `steps` | prints the steps, for people or for programs |

mod books;
mod files;
mod play;
mod steps;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::participants::hub::Hub;
use crate::participants::{Fsps, FspsConfig};
use anyhow::Context as _;
use batzen_cli_support::services;
use batzen_cli_support::switch_ledger::SwitchLedger;
use batzen_ledger_service::net::LedgerAddress;
use batzen_switch::{Operator, RunningSwitch, Switch, SwitchConfig};
use clap::Args;
use serde_json::json;

use batzen_service::storage::StoreConfig;
use steps::Steps;

/// The currency of the demo.
const CURRENCY: &str = "USD";
/// The participants.
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Clear transfers between four simulated participants on this machine, and prove that no money is lost
#[derive(Args)]
#[command(after_help = "Examples:
  batzen-lab switch demo                     play, then serve until Ctrl-C
  batzen-lab switch demo --once --json       for scripts
  batzen-lab switch demo --data ./day        keep stores and reports (in a directory without an earlier demo)

Exit code 0 only if every step succeeded and the books balance.")]
pub struct DemoArgs {
    /// Keep stores and reports in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Exit after the demo instead of serving until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Where the money is held: embedded (in this process), tcp://HOST:PORT, unix:///PATH or
    /// tigerbeetle://ADDRESS,ADDRESS (a ledger that is still empty)
    #[arg(long, value_name = "LEDGER", default_value_t = LedgerAddress::Embedded)]
    ledger: LedgerAddress,
}

/// The directory of all data.
pub(crate) struct DataDir {
    path: PathBuf,
    /// Removed with its contents when this is dropped; `None`: the directory stays.
    _temporary: Option<tempfile::TempDir>,
}

impl DataDir {
    fn new(data: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(dir) = data {
            let path = services::directory(dir)?;
            let is_used = path.join("switch").exists();
            anyhow::ensure!(!is_used, "{} holds a demonstration already", path.display());
            return Ok(Self { path, _temporary: None });
        }
        let dir = tempfile::Builder::new().prefix("batzen-switch-demo-").tempdir()?;
        Ok(Self { path: dir.path().to_owned(), _temporary: Some(dir) })
    }

    /// The directory of the reports.
    pub(crate) fn reports(&self) -> PathBuf {
        self.path.join("reports")
    }
}

/// Runs `batzen-lab switch demo`.
///
/// # Errors
/// When ledger, switch or participants cannot start.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let data_dir = DataDir::new(args.data.as_deref())?;
    services::block_on(demonstrate(args, data_dir))
}

/// A switch in this process with its ledger.
struct Deployment {
    ledger: SwitchLedger,
    switch: RunningSwitch,
    hub: Hub,
}

impl Deployment {
    async fn start(data_dir: &DataDir, address: &LedgerAddress) -> anyhow::Result<Self> {
        let ledger =
            SwitchLedger::open(address, &StoreConfig::embedded(data_dir.path.join("ledger"))).await?;
        // Random tokens suffice, since the switch listens only on this machine.
        let tokens = ["one", "two"].map(|name| {
            let mut random = [0; 16];
            batzen_crypto::fill_random(&mut random);
            format!("secret-token:{name}-{:032x}", u128::from_le_bytes(random))
        });
        let [one, two] = &tokens;
        let config = SwitchConfig {
            store: StoreConfig::embedded(services::directory(&data_dir.path.join("switch"))?),
            operators: vec![Operator::new("one", one), Operator::new("two", two)],
            ..SwitchConfig::default()
        };
        let switch = Switch::start(config, ledger.shared()).await?;
        let hub = Hub::new(switch.admin_addr, tokens);
        Ok(Self { ledger, switch, hub })
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        self.switch.shutdown().await.context("the switch's store")?;
        self.ledger.stop()
    }
}

async fn demonstrate(args: &DemoArgs, data_dir: DataDir) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    tokio::pin!(stop);
    let deployment = Deployment::start(&data_dir, &args.ledger).await?;
    let url = deployment.switch.fsp_url();
    let mut config = FspsConfig::new(NAMES.len(), deployment.switch.addr, CURRENCY);
    config.names = NAMES.map(str::to_owned).to_vec();
    config.connections = 4;
    config.grace = std::time::Duration::from_secs(2);
    config.keeps_outcomes = true;
    let fsps = Fsps::start(config).context("the participants cannot listen")?;
    let hub = deployment.hub.clone();
    let (is_json, mut steps) = (args.json, Steps::new(args.json));
    let playing = tokio::task::spawn_blocking(move || {
        let played = play::play(&mut steps, &hub, &fsps, &data_dir);
        (played, steps, fsps, data_dir)
    });
    let (played, steps, fsps, data_dir) = tokio::select! {
        biased;
        () = &mut stop => {
            eprintln!("batzen: interrupted");
            // A step of the demo may still be waiting for something that is no longer needed.
            std::process::exit(130);
        }
        played = playing => played.context("the demonstration has panicked")?,
    };
    let is_good = played.is_ok();
    print_results(is_json, &steps, played, &data_dir, &url)?;
    if !args.once {
        if !is_json {
            let admin = deployment.switch.admin_url();
            println!(
                "The switch {url} keeps serving until Ctrl-C. Open its dashboard in a browser:\n\n  {admin}dashboard\n"
            );
        }
        stop.await;
    }
    drop(fsps);
    deployment.shutdown().await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the results: all of them for programs, the balance sheet for people.
fn print_results(
    is_json: bool,
    steps: &Steps,
    played: anyhow::Result<play::Results>,
    data_dir: &DataDir,
    url: &str,
) -> anyhow::Result<()> {
    let results = match played {
        Ok(results) => Some(results),
        Err(error) => {
            eprintln!("batzen: {error:#}");
            None
        }
    };
    let mut out = std::io::stdout().lock();
    if is_json {
        let output = json!({
            "steps": steps.json()?,
            "balance": results.as_ref().map(|results| results.sheet.json()),
            "reports": results.as_ref().map(|results| &results.reports),
            "switch": url,
            "data": data_dir.path,
        });
        writeln!(out, "{output:#}")?;
    } else if let Some(results) = results {
        writeln!(out, "\nThe books at {url}:\n\n{}", results.sheet.text())?;
    }
    out.flush()?;
    Ok(())
}
