//! `batzen demo`: a whole round of digital cash in one process, with real HTTP between the parts, and a proof
//! that every balance is right.
//!
//! | module | contents |
//! |---|---|
//! | `books` | directories, or a database, whose server is ours if none is named |
//! | `world` | the bank, the exchange, the people, and the state that is saved |
//! | `cycle` | the round, step by step |
//! | `load` | customers who keep paying while the demo serves |
//! | `people` | the steps of the round in which people pay each other |
//! | `shops` | a merchant backend with a bookshop, and the steps in which a visitor buys there |
//! | `tips` | the step in which the sandbox gives a tip |
//! | `merchant` | a key pair with an account: makes contracts, checks receipts, refunds, tracks its money |
//! | `proof` | checks the history by which a double spend is refused |
//! | `audit` | the last steps: an auditor checks everything again |
//! | `report` | prints the steps, for people or for programs |

mod audit;
mod books;
mod cycle;
mod identify;
mod load;
mod merchant;
mod people;
mod proof;
mod report;
mod shops;
mod tips;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use batzen_bank::LedgerAddress;
use batzen_cli_support::services;
use batzen_cli_support::store_args::StoreKind;
use clap::Args;

use batzen_exchange::reads::sheet::BalanceSheet;
use books::Books;
use load::Load;
use report::{DataAtEnd, Report};

/// Play a round of digital cash on this machine, and prove that every balance is right.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen-lab demo                          play, then serve until Ctrl-C
  batzen-lab demo --load 5                 the same, with five payments per second until Ctrl-C
  batzen-lab demo --once --json            for scripts
  batzen-lab demo --store postgres         the books in a PostgreSQL server started for the demo
  batzen-lab demo --data ./demo-data       keep everything; the next run continues the books

Exit code 0 only if every step succeeded and every balance is right.")]
pub struct DemoArgs {
    /// Keep keys, books and wallets in this directory, and continue with existing ones [default: a temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Exit after the round instead of serving until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// TCP port of the bank [default: 8082 if it is free, with --once any free port; with --data that of the
    /// last run]
    #[arg(long, value_name = "PORT")]
    bank_port: Option<u16>,
    /// TCP port of the exchange [default: 8081 if it is free, with --once any free port; with --data that of
    /// the first run]
    #[arg(long, value_name = "PORT")]
    exchange_port: Option<u16>,
    /// TCP port of the merchant backend [default: 9966 if it is free, with --once any free port; with --data
    /// that of the first run]
    #[arg(long, value_name = "PORT")]
    merchant_port: Option<u16>,
    /// TCP port of the bookshop [default: 8083 if it is free, with --once any free port; with --data that of
    /// the first run]
    #[arg(long, value_name = "PORT")]
    shop_port: Option<u16>,
    /// Where the bank's money is held: embedded, tcp://HOST:PORT, unix:///PATH or
    /// tigerbeetle://ADDRESS,ADDRESS
    #[arg(long, value_name = "LEDGER", default_value_t = LedgerAddress::Embedded)]
    ledger: LedgerAddress,
    /// Where the books are kept: embedded (in the directory) or postgres
    #[arg(long, value_name = "STORE", default_value = "embedded", hide_possible_values = true)]
    store: StoreKind,
    /// With --store postgres: an empty database, or the one used with --data before [default: in its own
    /// server]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Key size of RSA denominations in bits
    #[arg(long, value_name = "BITS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1024..=8192))]
    rsa_bits: u32,
    /// Serve with a steady load of this many payments per second, so that the dashboards move
    #[arg(long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..=100))]
    load: Option<u64>,
    /// Also offer and withdraw Clause Schnorr coins; the GNU Taler wallet of December 2022 cannot withdraw
    /// from such an exchange
    #[arg(long)]
    cs: bool,
}

/// The directory of all data: a permanent one, or one that is removed at the end.
enum DataDir {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl DataDir {
    fn new(data: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match data {
            Some(dir) => Self::Kept(services::directory(dir)?),
            None => Self::Temporary(
                tempfile::Builder::new().prefix("batzen-demo-").tempdir().context("temporary directory")?,
            ),
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(dir) => dir.path(),
        }
    }
}

/// Runs `batzen demo`.
///
/// # Errors
/// When bank or exchange cannot start.
pub fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let data_dir = DataDir::new(args.data.as_deref())?;
    let books = Books::open(args.store, args.database.clone(), args.data.as_ref().map(|_| data_dir.path()))?;
    let ended = services::block_on(play(&args, data_dir.path(), &books));
    drop(books);
    if let DataDir::Temporary(dir) = data_dir {
        if ended.as_ref().is_ok_and(|ended| ended.keeps_data) {
            let _ = dir.keep();
        } else if let Err(error) = dir.close() {
            tracing::warn!(%error, "the temporary directory stays");
        }
    }
    ended.map(|ended| ended.code)
}

/// The end of a demo.
struct Ended {
    code: ExitCode,
    /// Whether others have money at this exchange, which would be lost with its directory.
    keeps_data: bool,
}

impl Ended {
    const fn with(code: ExitCode) -> Self {
        Self { code, keeps_data: false }
    }
}

/// Time that money may be in transit before the final balance sheet is drawn up.
const SETTLING: Duration = Duration::from_secs(10);

async fn play(args: &DemoArgs, dir: &Path, books: &Books) -> anyhow::Result<Ended> {
    let stop = services::stop_signal()?;
    tokio::pin!(stop);
    let mut report = Report::new(args.json);
    let options = world::Options {
        bank_port: args.bank_port,
        exchange_port: args.exchange_port,
        merchant_port: args.merchant_port,
        shop_port: args.shop_port,
        rsa_bits: args.rsa_bits,
        cs: args.cs,
        keeps_serving: !args.once,
        ledger: args.ledger.clone(),
    };
    let started = tokio::select! {
        biased;
        () = &mut stop => return Ok(Ended::with(interrupted())),
        world = cycle::start(&mut report, dir, books, &options) => world,
    };
    let mut world = started?;
    let outcome = tokio::select! {
        biased;
        () = &mut stop => None,
        sheet = cycle::play(&mut report, &world) => Some(sheet),
    };
    let Some(sheet) = outcome else {
        world.shutdown().await?;
        return Ok(Ended::with(interrupted()));
    };
    let mut is_good = report.is_good() && sheet.as_ref().is_ok_and(BalanceSheet::conserved);
    if let Err(error) = &sheet {
        report.print_error(&format!("there is no balance sheet: {error:#}"));
    }
    if is_good {
        world.finish()?;
    }
    report.results(sheet.as_ref().ok(), &world)?;
    let mut keeps_data = false;
    if !args.once {
        world.start_workers();
        report.print_next_steps(&world)?;
        let load = args.load.map(|per_second| Load::start(&world, per_second));
        stop.await;
        let payments = match load {
            Some(load) => load.stop().await,
            None => 0,
        };
        let last = world.final_sheet(SETTLING).await;
        is_good &= last.as_ref().is_ok_and(BalanceSheet::conserved);
        let issued = |sheet: &BalanceSheet| sheet.totals.issued;
        // The load's wallets are in memory and end with it.
        let others_have_coins =
            args.load.is_none() && last.as_ref().ok().map(issued) != sheet.as_ref().ok().map(issued);
        let is_needed = others_have_coins || !world.other_wallets().is_empty();
        let data = match &args.data {
            Some(_) => DataAtEnd::Kept,
            None if !is_needed => DataAtEnd::Removed,
            None if books.is_own_database() => DataAtEnd::RemovedWithDatabase,
            None => DataAtEnd::KeptForWallets,
        };
        keeps_data = data == DataAtEnd::KeptForWallets;
        report.last_results(last.as_ref(), &world, payments, data)?;
    }
    world.shutdown().await?;
    Ok(Ended { code: if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }, keeps_data })
}

/// The exit code that shells expect after Ctrl-C.
fn interrupted() -> ExitCode {
    eprintln!("batzen: interrupted");
    ExitCode::from(130)
}
