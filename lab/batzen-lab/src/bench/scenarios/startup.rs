//! `batzen-lab bench startup`: how long it takes until a whole set-up of separate programs serves its first wallet: tables,
//! bank, key helpers, workers, service, and the offline signatures.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_cli_support::numbers;
use clap::Args;
use serde::Serialize;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::Placement;
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::CipherArgs;
use crate::bench::scenarios::database::{Database, StoreOptions};
use crate::bench::scenarios::options;
use crate::bench::scenarios::service::{self, Service};
use crate::bench::scenarios::world::{self, CoinKind, PAYTO, WorldPlan, free_port};

/// Time that a program may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The kinds of key helpers.
const HELPERS: [&str; 3] = ["rsa", "cs", "eddsa"];

/// Arguments of `batzen-lab bench startup`.
#[derive(Args, Clone, Debug)]
pub struct StartupArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Number of denominations; each gets one key
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    denominations: u32,
    /// Where the exchange keeps its rows.
    #[command(flatten)]
    store: StoreOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A step of the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StartupStep {
    pub(crate) step: String,
    /// Its time, in milliseconds.
    pub(crate) ms: f64,
}

/// The time of a start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Startup {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The version of the program.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    pub(crate) commit: String,
    /// Denominations and their cipher.
    pub(crate) denominations: String,
    /// Where the rows are: `embedded` or `PostgreSQL`.
    pub(crate) store: &'static str,
    /// The steps, in order.
    pub(crate) steps: Vec<StartupStep>,
    /// The sum of the steps until the first wallet can withdraw, in milliseconds.
    pub(crate) ready_ms: f64,
    /// From SIGTERM to the end of the service, in milliseconds.
    pub(crate) end_ms: f64,
}

/// Runs the scenario.
///
/// # Errors
/// When a program fails.
pub fn run(args: &StartupArgs, context: &Context) -> Result<ExitCode> {
    args.store.check()?;
    options::check_cipher(args.cipher.cipher())?;
    let result = measure(args, context)?;
    output::print(&if args.json { output::json(&result) } else { table(&result) })?;
    Ok(ExitCode::SUCCESS)
}

/// Measures steps one after the other.
struct Watch {
    last: Instant,
    steps: Vec<StartupStep>,
}

impl Watch {
    fn step(&mut self, step: &str) {
        let now = Instant::now();
        self.steps.push(StartupStep { step: step.to_owned(), ms: ms(now - self.last) });
        self.last = now;
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

fn measure(args: &StartupArgs, context: &Context) -> Result<Startup> {
    let cipher = args.cipher.cipher();
    let place = super::temporary("batzen-startup-", None)?;
    let placement = Placement { server: Vec::new(), client: Vec::new(), all: Vec::new(), remark: None };
    let database = Database::start(&args.store, &placement)?.map(Arc::new);
    let plan = WorldPlan {
        program: context.program.clone(),
        dir: place.path().to_owned(),
        placement,
        coins: (1..=u64::from(args.denominations)).map(|value| CoinKind { value, cipher }).collect(),
        with_workers: true,
        with_auditor: false,
        database,
        nodes: 1,
        more_sections: String::new(),
        is_kept: false,
        interrupted: Arc::clone(&context.interrupted),
    };
    let (bank_port, port) = (free_port()?, free_port()?);
    let (bank_address, address) =
        (SocketAddr::from((Ipv4Addr::LOCALHOST, bank_port)), SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let file = plan.dir.join("taler.conf");
    let conf = file.to_string_lossy().into_owned();
    let shared = world::sections(&plan, &plan.dir.join("run"), bank_port, port, port);
    let write = |more: &str| std::fs::write(&file, format!("{shared}{more}")).map_err(BenchError::io(&file));
    let go = |what: &str, words: &[&str]| service::run(&plan, what, words);
    // The master key is made once, long before.
    write("")?;
    let made = go("offline setup", &["exchange", "offline", "-c", &conf, "setup"])?;
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let master = words.find(|word| word.len() == 52).ok_or_else(|| {
        BenchError::SetUp(format!("offline setup printed no master key, but {:?}", text.trim()))
    })?;
    write(&format!("\n[exchange]\nMASTER_PUBLIC_KEY = {master}\n"))?;

    let begin = Instant::now();
    let mut watch = Watch { last: begin, steps: Vec::new() };
    go("dbinit", &["exchange", "dbinit", "-c", &conf])?;
    watch.step("dbinit");
    let start = |name: &str, words: &[&str]| Service::start(&plan, name, words, &[]);
    let mut bank = start("bank", &["bank", "serve", "-c", &conf])?;
    bank.wait_until_ready(bank_address, "/taler-bank-integration/config", PATIENCE, &plan.interrupted)?;
    watch.step("bank");
    let mut others = Vec::with_capacity(HELPERS.len() + 1);
    for kind in HELPERS {
        others.push(start(&format!("secmod-{kind}"), &["signer", "helper", kind, "-c", &conf])?);
    }
    let mut exchange = start("exchange", &["exchange", "serve", "--as-httpd", "-c", &conf])?;
    others.push(start("wirewatch", &["exchange", "wirewatch", "-c", &conf])?);
    exchange.wait_until_ready(address, "/management/keys", PATIENCE, &plan.interrupted)?;
    watch.step("key helpers with their keys, wirewatch, service");
    let zero = "KUDOS:0";
    let calls: [&[&str]; 8] = [
        &["download", "sign", "upload"],
        &["enable-account", PAYTO, "upload"],
        &["wire-fee", "now", "x-taler-bank", zero, zero, "upload"],
        &["wire-fee", "2030", "x-taler-bank", zero, zero, "upload"],
        &["wire-fee", "2031", "x-taler-bank", zero, zero, "upload"],
        &["global-fee", "now", zero, zero, zero, "1 h", "1 year", "5", "upload"],
        &["global-fee", "2030", zero, zero, zero, "1 h", "1 year", "5", "upload"],
        &["global-fee", "2031", zero, zero, zero, "1 h", "1 year", "5", "upload"],
    ];
    for call in calls {
        go("the offline tool", &[&["exchange", "offline", "-c", &conf][..], call].concat())?;
    }
    watch.step("eight calls of the offline tool");
    for page in ["/keys", "/wire"] {
        exchange.wait_until_ready(address, page, PATIENCE, &plan.interrupted)?;
    }
    watch.step("keys and accounts published");
    let ready_ms = ms(begin.elapsed());
    let ending = Instant::now();
    exchange.terminate()?;
    let end_ms = ms(ending.elapsed());
    for service in others.iter_mut().chain([&mut bank]) {
        service.terminate()?;
    }
    Ok(Startup {
        machine: Machine::detect(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        denominations: format!("{} × {cipher}", args.denominations),
        store: if args.store.is_postgres() { "PostgreSQL" } else { "embedded" },
        steps: watch.steps,
        ready_ms,
        end_ms,
    })
}

fn table(startup: &Startup) -> String {
    let mut text = format!("{}, {}\n\n", startup.denominations, startup.store);
    let total = StartupStep { step: "ready for wallets".to_owned(), ms: startup.ready_ms };
    let end = StartupStep { step: "the service ends after SIGTERM".to_owned(), ms: startup.end_ms };
    for StartupStep { step, ms } in startup.steps.iter().chain([&total, &end]) {
        let _ = writeln!(text, "{step:<50} {:>8} ms", numbers::number(*ms));
    }
    text
}
