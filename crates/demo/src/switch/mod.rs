//! `batzen switch demo`: a ledger, a switch and four simulated participants in one process, with real HTTP between them, and the
//! proof that every amount is where it belongs.
//!
//! | module | what |
//! |---|---|
//! | [`play`] | the demonstration, step by step |
//! | [`files`] | reports of the settlement |
//! | [`books`] | the balance sheet |
//! | [`steps`] | tells how it goes, to people or to programs |

mod books;
mod files;
mod play;
mod steps;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use batzen_cli_support::services;
use batzen_cli_support::switch_ledger::SwitchLedger;
use batzen_ledger_net::LedgerAddress;
use batzen_switch::{Operator, RunningSwitch, Switch, SwitchConfig};
use batzen_switch_sim::hub::Hub;
use batzen_switch_sim::{Fsps, FspsConfig};
use clap::Args;
use serde_json::json;

use batzen_storage::StoreConfig;
use steps::Steps;

/// The currency of the demonstration.
const CURRENCY: &str = "USD";
/// The participants.
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Clear between four simulated participants on this machine, and prove that every amount is where it belongs
#[derive(Args)]
#[command(after_help = "Examples:
  batzen switch demo                     play, then serve until Ctrl-C
  batzen switch demo --once --json       for scripts
  batzen switch demo --data ./day        keep stores and reports (in a directory without an earlier demonstration)

Exit code 0 only if every step succeeded and the books add up.")]
pub struct DemoArgs {
    /// Keep stores and reports in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Exit after the demonstration instead of serving until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Where the money is: embedded (in this process), tcp://HOST:PORT, unix:///PATH or
    /// tigerbeetle://ADDRESS,ADDRESS (a ledger that holds nothing yet)
    #[arg(long, value_name = "LEDGER", default_value_t = LedgerAddress::Embedded)]
    ledger: LedgerAddress,
}

/// Where everything is.
pub struct Place {
    path: PathBuf,
    /// Removed with everything in it when this is dropped; none: the directory stays.
    _temporary: Option<tempfile::TempDir>,
}

impl Place {
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

    /// Where the reports go.
    pub fn reports(&self) -> PathBuf {
        self.path.join("reports")
    }
}

/// Runs `batzen switch demo`.
///
/// # Errors
/// When ledger, switch or participants cannot start.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let place = Place::new(args.data.as_deref())?;
    services::block_on(demonstrate(args, place))
}

/// A switch in this process with its ledger.
struct Town {
    ledger: SwitchLedger,
    switch: RunningSwitch,
    hub: Hub,
}

impl Town {
    async fn start(place: &Place, address: &LedgerAddress) -> anyhow::Result<Self> {
        let ledger =
            SwitchLedger::open(address, &StoreConfig::Embedded { dir: place.path.join("ledger") }).await?;
        // Of use to nobody else: the switch listens on this machine only.
        let tokens = ["one", "two"].map(|name| {
            let mut random = [0; 16];
            batzen_crypto::fill_random(&mut random);
            format!("secret-token:{name}-{:032x}", u128::from_le_bytes(random))
        });
        let [one, two] = &tokens;
        let config = SwitchConfig {
            store: StoreConfig::Embedded { dir: services::directory(&place.path.join("switch"))? },
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

async fn demonstrate(args: &DemoArgs, place: Place) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    tokio::pin!(stop);
    let town = Town::start(&place, &args.ledger).await?;
    let url = town.switch.fsp_url();
    let mut config = FspsConfig::new(NAMES.len(), town.switch.addr, CURRENCY);
    config.names = NAMES.map(str::to_owned).to_vec();
    config.connections = 4;
    config.grace = std::time::Duration::from_secs(2);
    config.keeps_outcomes = true;
    let fsps = Fsps::start(config).context("the participants cannot listen")?;
    let hub = town.hub.clone();
    let (is_json, mut steps) = (args.json, Steps::new(args.json));
    let playing = tokio::task::spawn_blocking(move || {
        let played = play::play(&mut steps, &hub, &fsps, &place);
        (played, steps, fsps, place)
    });
    let (played, steps, fsps, place) = tokio::select! {
        biased;
        () = &mut stop => {
            eprintln!("batzen: interrupted");
            // A step of the demonstration may still wait for something: nobody needs it any more.
            std::process::exit(130);
        }
        played = playing => played.context("the demonstration has panicked")?,
    };
    let is_good = played.is_ok();
    tell(is_json, &steps, played, &place, &url)?;
    if !args.once {
        stop.await;
    }
    drop(fsps);
    town.shutdown().await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results: all at once for programs, the balance sheet for people.
fn tell(
    is_json: bool,
    steps: &Steps,
    played: anyhow::Result<play::Left>,
    place: &Place,
    url: &str,
) -> anyhow::Result<()> {
    let left = match played {
        Ok(left) => Some(left),
        Err(error) => {
            eprintln!("batzen: {error:#}");
            None
        }
    };
    let mut out = std::io::stdout().lock();
    if is_json {
        let results = json!({
            "steps": steps.json()?,
            "balance": left.as_ref().map(|left| left.sheet.json()),
            "reports": left.as_ref().map(|left| &left.reports),
            "switch": url,
            "data": place.path,
        });
        writeln!(out, "{results:#}")?;
    } else if let Some(left) = left {
        writeln!(out, "\nThe books at {url}:\n\n{}", left.sheet.text())?;
    }
    out.flush()?;
    Ok(())
}
