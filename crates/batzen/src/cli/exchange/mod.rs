//! `batzen exchange`: run the exchange, its workers, and the offline key tool; inspect its books.

mod archive;
mod credits;
mod database;
mod garbage;
mod kyc;
mod kyc_test;
mod liabilities;
mod transfers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_cli_support::progress;
use batzen_cli_support::services::{self, Common, MetricsArgs};
use batzen_cli_support::store_args;
use batzen_config::Config;
use batzen_engine::{Clock, LANES_MAX};
use batzen_exchange::config::{AccountConfig, ExchangeConfig, ListenConfig};
use batzen_exchange::core::Core;
use batzen_exchange::error::StartError;
use batzen_exchange::offline::{Offline, OfflineConfig, OfflineError};
use batzen_exchange::play_money;
use batzen_exchange::reads::sheet;
use batzen_exchange::reads::totals;
use batzen_exchange::rules::DenomTable;
use batzen_exchange::service::{RunningExchange, StartOptions};
use batzen_exchange::storage::{self, StoreConfig};
use batzen_exchange::workers::link::{self, Worker};
use batzen_exchange::workers::program::{LinkedPages, Program};
use batzen_exchange::workers::{WorkerError, WorkerOptions};
use batzen_http::ServerOptions;
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::{Currency, Duration};
use batzen_service::PagesAddress;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::AccountId;
use clap::{Args, Subcommand};

use crate::cli::{known_options, sample};

/// Does work on an open store until it is done, or a signal tells it to stop. Then closes the store.
async fn work_and_close<T>(
    core: Core,
    stop: impl Future<Output = ()>,
    work: impl AsyncFnOnce(&Core) -> T,
) -> anyhow::Result<T> {
    let ended = {
        let work = work(&core);
        tokio::pin!(work, stop);
        tokio::select! {
            ended = &mut work => ended,
            () = &mut stop => {
                core.drain.trigger();
                work.await
            }
        }
    };
    close(core).await?;
    Ok(ended)
}

fn in_use(dir: &Path) -> String {
    format!("the store {} is in use: stop the exchange first", dir.display())
}

/// Opens the store of an exchange that does not run, unless its rows are in a database.
async fn open(config: ExchangeConfig, common: &Common) -> anyhow::Result<Core> {
    let clock = common.timetravel.clock();
    let opened = tokio::task::spawn_blocking(move || Core::open(config, clock)).await;
    match opened.context("opening the store")? {
        Err(StartError::Store(StoreError::InUse(dir))) => bail!("{}", in_use(&dir)),
        other => Ok(other?),
    }
}

/// The same for reading alone.
fn open_to_read(config: &ExchangeConfig) -> anyhow::Result<Store> {
    match storage::open_to_read(&config.store) {
        Err(StoreError::InUse(dir)) => bail!("{}", in_use(&dir)),
        other => Ok(other?),
    }
}

async fn close(core: Core) -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(move || core.close()).await.context("closing the store")??)
}

/// The pause before retrying something that failed or is not available yet.
const SETUP_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Run the exchange, its workers, and the offline key tool.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ExchangeArgs {
    #[command(subcommand)]
    command: ExchangeCommand,
}

#[derive(Subcommand)]
enum ExchangeCommand {
    /// Serve the exchange's API, with the workers in the same process
    #[command(alias = "httpd")]
    Serve(ServeArgs),
    /// Sign with the offline master key: keys, accounts, fees
    Offline(OfflineArgs),
    /// Import transfers that the bank received for the exchange
    Wirewatch(WirewatchArgs),
    /// Combine due deposits into transfers to merchants
    Aggregator(AggregatorArgs),
    /// Have the bank execute transfers
    Transfer(TransferArgs),
    /// Pay back the rest of expired reserves
    Closer(WorkerArgs),
    /// Refund purses that expired before they were paid
    Expire(WorkerArgs),
    /// Pay out profit as ordered by the master key
    Drain(WorkerArgs),
    /// Publish what the exchange owes for its coins, epoch by epoch ([exchange-liabilities])
    Liabilities(WorkerArgs),
    /// Create or migrate the tables in PostgreSQL
    Dbinit(database::DbinitArgs),
    /// Run the periodic maintenance of the PostgreSQL tables once
    Maintain(database::MaintainArgs),
    /// Replicate the tables in PostgreSQL to an auditor
    Replication(database::ReplicationArgs),
    /// Draw up the balance sheet of an exchange that is not running. Exit code 1 if it does not balance
    Totals(TotalsArgs),
    /// Move rows whose legal time is over to archives, verify archives, drop them
    Archive(archive::ArchiveArgs),
    /// List or retry the transfers that the bank refused permanently
    Transfers(transfers::TransfersArgs),
    /// List, retry or dismiss the credits at the bank that fill no reserve
    Credits(credits::CreditsArgs),
    /// Decide on customers who must be identified, as an officer; try providers out
    Kyc(kyc::KycArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
}

/// Options of `exchange serve`; each overrides the configuration file.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen exchange serve --config /etc/taler/taler.conf
  batzen exchange serve --standalone --data ./exchange --port 8081 --bank http://localhost:8082/

Ready when GET /ready answers 200. Keys can be downloaded for signing when GET /management/keys answers 200.")]
struct ServeArgs {
    #[command(flatten)]
    common: Common,
    /// Directory of the store and the keys [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// PostgreSQL database for the rows, prepared with dbinit (or here, with --standalone); keys stay in the
    /// directory [default: from the configuration]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Set everything up with a master key on this machine
    #[arg(long)]
    standalone: bool,
    /// TCP port; 0 picks a free one
    #[arg(short, long)]
    port: Option<u16>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Share the port with other services, or take it over from a running one without a failed request (as
    /// `[exchange] REUSE_PORT`)
    #[arg(short = 'r', long)]
    reuse_port: bool,
    /// Close each connection after its first answer
    #[arg(short = 'C', long)]
    connection_close: bool,
    /// Close a connection that has been unused for this many seconds [default: 30]
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Batches in progress at the same time (as `[exchange] LANES`) [default: on a database 1 to 8, by the
    /// round trip to it; otherwise one for each four cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LANES_MAX as u64))]
    lanes: Option<u64>,
    /// Do not run the workers in this process
    #[arg(long)]
    no_workers: bool,
    /// Leave the private keys to the key helpers: taler-exchange-secmod-rsa, -cs and -eddsa (as
    /// `[exchange] KEY_HELPERS`)
    #[arg(long, conflicts_with = "standalone")]
    key_helpers: bool,
    /// Called as taler-exchange-httpd: key helpers hold the private keys and worker programs do the work,
    /// unless the configuration says otherwise
    #[arg(long, hide = true)]
    as_httpd: bool,
    /// With --standalone and without configuration: base URL of the test bank
    #[arg(long, value_name = "URL", requires = "standalone")]
    bank: Option<String>,
    /// With --bank: the exchange's account at the bank
    #[arg(long, value_name = "NAME", requires = "bank", default_value = "exchange")]
    account: String,
    /// With --bank: the currency
    #[arg(long, requires = "bank", default_value = "KUDOS")]
    currency: Currency,
    /// With --bank: key size of RSA denominations in bits
    #[arg(long, requires = "bank", default_value_t = 2048, value_name = "BITS")]
    rsa_bits: u32,
    /// With --bank: also offer Clause Schnorr coins; the GNU Taler wallet of December 2022 cannot withdraw
    /// from such an exchange
    #[arg(long, requires = "bank")]
    cs: bool,
    /// With --bank: also offer coins with age groups, for pocket money
    #[arg(long, requires = "bank")]
    ages: bool,
}

#[derive(Args)]
#[command(after_help = batzen_exchange::offline::HELP)]
struct OfflineArgs {
    #[command(flatten)]
    common: Common,
    /// Subcommands with their arguments, executed in order
    #[arg(trailing_var_arg = true, required = true, value_name = "SUB-COMMAND")]
    steps: Vec<String>,
}

/// With `[exchange] DB = postgres` a worker program works on the database by itself, beside any number of
/// others. With the embedded store the service runs all workers: a worker program asks the service to run an
/// extra one, which ends with the program. If no service is running, `--test` opens the store itself.
#[derive(Args)]
struct WorkerArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Run until there is nothing left to do, then exit
    #[arg(short, long)]
    test: bool,
    /// Directory of the store and the keys [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Args)]
struct WirewatchArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    /// Section of the account to watch, such as exchange-account-1 [default: all enabled accounts]
    #[arg(short, long, value_name = "SECTION")]
    account: Option<String>,
    /// Range of bank row ids that a watcher claims at once [default: 65536]
    #[arg(short = 'S', long = "size", value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,
    /// Planned number of watchers. Leases end within seconds, whatever the number. 0: no leases; several
    /// watchers may import the same rows, which count once
    #[arg(short, long, value_name = "N")]
    workers: Option<u32>,
    /// Exit with code 1 when a request for the bank's history fails, instead of retrying
    #[arg(short, long)]
    exit_on_error: bool,
    /// How long the bank may hold a request until a transfer arrives, such as "30 s", up to an hour [default:
    /// 60 s]
    #[arg(short = 'f', long, value_name = "DURATION", value_parser = duration)]
    longpoll_timeout: Option<Duration>,
    /// With --exit-on-error: treat an account that the bank does not know as one without transfers
    #[arg(short = 'I', long)]
    ignore_not_found: bool,
}

/// Parses a duration of the configuration syntax.
fn duration(text: &str) -> Result<Duration, String> {
    batzen_config::parse_duration(text).ok_or_else(|| "expected a duration such as 30 s".to_owned())
}

#[derive(Args)]
struct TransferArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    /// Transfers that a worker claims at once, up to 65536 [default: 1024]
    #[arg(short = 'S', long = "size", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,
    /// Planned number of workers. Leases end within seconds, whatever the number. 0: no leases; the bank may
    /// be asked twice for a transfer, which it executes once
    #[arg(short, long, value_name = "N")]
    workers: Option<u32>,
}

#[derive(Args)]
struct AggregatorArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    /// Accepted for compatibility and without effect: identification rules always apply
    #[arg(short = 'y', long)]
    kyc_off: bool,
}

#[derive(Args)]
struct TotalsArgs {
    #[command(flatten)]
    common: Common,
    /// Directory of the store [default: from the configuration]
    #[arg(value_name = "STORE")]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a `batzen exchange` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: ExchangeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ExchangeCommand::Serve(args) => services::block_on(serve(args)),
        ExchangeCommand::Offline(args) => services::block_on(offline(args)),
        ExchangeCommand::Wirewatch(args) => {
            let options = WorkerOptions {
                shard_size: args.size,
                workers: args.workers,
                account: None,
                long_poll_ms: args.longpoll_timeout.map(|timeout| timeout.as_micros() / 1_000),
                exits_on_error: args.exit_on_error,
                ignores_not_found: args.ignore_not_found,
            };
            services::block_on(work(Worker::Wirewatch, args.worker, options, args.account.as_deref()))
        }
        ExchangeCommand::Aggregator(args) => {
            if args.kyc_off {
                tracing::warn!("--kyc-off has no effect: identification rules always apply");
            }
            run_plain_worker(Worker::Aggregator, args.worker)
        }
        ExchangeCommand::Transfer(TransferArgs { worker, size, workers }) => {
            let options = WorkerOptions { shard_size: size, workers, ..WorkerOptions::default() };
            services::block_on(work(Worker::Transfer, worker, options, None))
        }
        ExchangeCommand::Closer(args) => run_plain_worker(Worker::Closer, args),
        ExchangeCommand::Expire(args) => run_plain_worker(Worker::Expire, args),
        ExchangeCommand::Drain(args) => run_plain_worker(Worker::Drain, args),
        ExchangeCommand::Liabilities(args) => services::block_on(liabilities::run(args)),
        ExchangeCommand::Kyc(args) => kyc::run(args),
        ExchangeCommand::Dbinit(args) => services::block_on(database::dbinit(args)),
        ExchangeCommand::Maintain(args) => database::maintain(&args),
        ExchangeCommand::Replication(args) => database::replication(&args),
        ExchangeCommand::Totals(args) => show_totals(&args),
        ExchangeCommand::Archive(args) => archive::run(args),
        ExchangeCommand::Transfers(args) => transfers::run(args),
        ExchangeCommand::Credits(args) => credits::run(args),
        ExchangeCommand::SampleConfig(args) => Ok(sample::print(&args, "exchange", sample::EXCHANGE)),
    }
}

/// Reads the configuration of the service, from a file or from the command line alone.
fn exchange_config(args: &ServeArgs) -> anyhow::Result<ExchangeConfig> {
    let mut ini = Config::default();
    let mut config = if let (Some(bank), None) = (&args.bank, &args.common.config) {
        let Some(data) = &args.data else {
            bail!("where shall store and keys be kept? Name a directory with --data DIR")
        };
        let data = services::directory(data)?;
        let bank_url = if bank.ends_with('/') { bank.clone() } else { format!("{bank}/") };
        let (payto, gateway) = play_money::account(&bank_url, "localhost", &args.account);
        let port = args.port.unwrap_or(8081);
        let mut config =
            play_money::exchange_config(args.currency, &data, port, args.rsa_bits, args.cs, args.ages)
                .with_account("exchange-account-1", &payto, gateway);
        if let Some(bind) = &args.bind {
            config.base_url = format!("http://{}:{port}/", batzen_http::client_host(Some(bind)));
        }
        config
    } else {
        ini = args.common.load()?;
        if args.standalone {
            ini.set("exchange-standalone", "ENABLED", "YES")?;
        }
        if args.key_helpers || (args.as_httpd && chooses_no_custody(&ini)?) {
            ini.set("exchange", "KEY_HELPERS", "YES")?;
        }
        if let Some(data) = &args.data {
            set_data(&mut ini, data)?;
        }
        known_options::warn(&ini);
        ExchangeConfig::from_ini(&ini)?
    };
    if let Some(url) = &args.database {
        config.store = StoreConfig::postgres(url.clone()).with_citus_direct(&ini, "exchange")?;
    }
    if let Some(lanes) = args.lanes {
        config.lanes = usize::try_from(lanes).expect("it is at most LANES_MAX");
    }
    config.metrics = args.metrics.metrics.clone().or(config.metrics);
    config.share_port |= args.reuse_port;
    if let Some(seconds) = args.timeout {
        config.connection_timeout = Duration::from_secs(seconds.into());
    }
    config.listen.choose(args.bind.clone(), args.port);
    Ok(config)
}

/// Returns whether the configuration leaves open where the private keys are.
fn chooses_no_custody(ini: &Config) -> anyhow::Result<bool> {
    let is_set = |option| ini.raw("exchange", option).is_some();
    let is_standalone = ini.get_or("exchange-standalone", "ENABLED", false)?;
    Ok(!is_set("KEY_HELPERS") && !is_set("SIGNERS") && !is_standalone)
}

/// Places all data below one directory.
fn set_data(ini: &mut Config, dir: &Path) -> anyhow::Result<()> {
    let dir = services::directory(dir)?;
    let text = |path: &Path| path.to_str().map(str::to_owned).context("the directory's name is not text");
    ini.set("PATHS", "TALER_DATA_HOME", &text(&dir)?)?;
    ini.set("PATHS", "TALER_RUNTIME_DIR", &text(&dir.join("run"))?)?;
    Ok(())
}

/// The longest time for which a start waits for banks with play money.
const BANK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let config = exchange_config(&args)?;
    if args.standalone {
        let store = config.store.clone();
        let prepare = move || store.prepare(&batzen_service::storage::EXCHANGE);
        tokio::task::spawn_blocking(prepare).await?.context("the exchange's tables")?;
    }
    let place = config.listen.to_string();
    let options = StartOptions {
        clock: args.common.timetravel.clock(),
        workers: false,
        progress: progress::of_keys(progress::is_interactive()),
        // A socket passed by the service manager takes precedence over the configuration.
        listen: batzen_http::inherited_fd(|name| std::env::var(name).ok(), std::process::id())?
            .map(batzen_http::Listen::Inherited),
        http: ServerOptions { close_each: args.connection_close, ..ServerOptions::default() },
    };
    let is_play_money = config.standalone.is_some();
    let runs_workers = !args.no_workers && (!args.as_httpd || is_play_money);
    tokio::pin!(stop);
    if runs_workers && is_play_money {
        // Before wallets are served, because the bank refuses withdrawals to an account that is not open. A bank that does
        // not answer yet is asked again once the exchange is ready.
        let client = Client::new(&ClientOptions::default())?;
        tokio::select! {
            biased;
            () = &mut stop => return Ok(ExitCode::SUCCESS),
            () = play_money::open_accounts(&client, &config) => {}
            () = tokio::time::sleep(BANK_PATIENCE) => {}
        }
    }
    let exchange = match RunningExchange::start(config, options).await {
        Err(StartError::Listen(error)) => bail!("cannot listen on {place}: {error}"),
        Err(StartError::Store(StoreError::InUse(dir))) => {
            bail!("the store {} is in use: another exchange runs on it", dir.display())
        }
        other => other?,
    };
    if exchange.app().core.config.store.is_database() {
        // Worker programs open the database by themselves.
    } else if let Err(error) = link::serve(exchange.app()) {
        tracing::warn!(%error, "worker programs cannot reach this service");
    }
    let ready = async {
        // The reason may go away: the disk may get free space, a key helper may start.
        exchange.wait_until_ready(|error| eprintln!("batzen: not ready: {error:#}")).await?;
        if runs_workers {
            let client = Client::new(&ClientOptions::default())?;
            play_money::open_accounts(&client, &exchange.app().core.config).await;
            exchange.start_workers();
        }
        services::show_metrics_url(exchange.metrics_url());
        eprintln!("exchange ready: {}", exchange.base_url());
        for url in exchange.feed_urls() {
            eprintln!("auditors connect to {url}");
        }
        if let Err(missing) = exchange.app().check_keys() {
            eprintln!("batzen: ready, but {missing}");
        }
        anyhow::Ok(())
    };
    let all_served = async {
        exchange.app().all_served().await;
        eprintln!("batzen: [exchange] MAX_REQUESTS reached: shutting down");
    };
    tokio::select! {
        biased;
        () = &mut stop => {}
        () = all_served => {}
        // It stays pending until one of the others ends.
        outcome = async { ready.await?; std::future::pending::<anyhow::Result<()>>().await } => outcome?,
    }
    exchange.shutdown().await.context("the exchange's store")?;
    Ok(ExitCode::SUCCESS)
}

impl WorkerArgs {
    /// The address of a worker program's own pages. A run until idle is short, and another one may have the address.
    fn metrics_address(&self, ini: &Config, worker: &str) -> anyhow::Result<Option<PagesAddress>> {
        match &self.metrics.metrics {
            Some(address) => Ok(Some(address.clone())),
            None if self.test => Ok(None),
            None => {
                let option = format!("{}_METRICS", worker.to_ascii_uppercase());
                Ok(PagesAddress::of(ini, "exchange", &option)?)
            }
        }
    }
}

/// Finds a watched account by its section name, with or without the common prefix.
fn watched(config: &ExchangeConfig, section: &str) -> anyhow::Result<AccountId> {
    let names = |account: &&AccountConfig| {
        let own = account.section.as_str();
        let short = own.get("exchange-account-".len()..).unwrap_or(own);
        account.enable_credit && (own.eq_ignore_ascii_case(section) || short.eq_ignore_ascii_case(section))
    };
    let account = config.accounts.iter().find(names);
    let account =
        account.with_context(|| format!("there is no account [{section}] with ENABLE_CREDIT = YES"))?;
    Ok(AccountId::of_payto(&account.payto_uri))
}

/// Runs a worker in this process, on a database that other processes may use as well.
async fn work_on_database(
    worker: Worker,
    config: ExchangeConfig,
    (is_test, clock): (bool, Arc<dyn Clock>),
    options: WorkerOptions,
    metrics: Option<PagesAddress>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let name = worker.name();
    let opened = tokio::task::spawn_blocking(move || Core::open(config, clock)).await;
    let program = Program::start(opened.context("opening the store")??, metrics.as_ref()).await?;
    services::show_metrics_url(program.metrics_url());
    let core = program.core();
    let drain = core.drain.clone();
    let (stopped, ended) = {
        let work = async {
            if is_test {
                worker.run_until_idle(core, options).await.map(Some)
            } else {
                eprintln!("{name}: working on the database");
                worker.serve(core, options).await.map(|()| None)
            }
        };
        tokio::pin!(work, stop);
        tokio::select! {
            ended = &mut work => (false, ended),
            // It gives its leases back, so that other workers can continue at once.
            () = &mut stop => {
                drain.trigger();
                (true, work.await)
            }
        }
    };
    program.end().await.context("closing the store")?;
    match ended {
        Ok(Some(progress)) => tracing::info!(?progress, "{name} is idle"),
        Ok(None) => {}
        Err(WorkerError::Stopped) if stopped => {}
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a worker without options of its own.
fn run_plain_worker(worker: Worker, args: WorkerArgs) -> anyhow::Result<ExitCode> {
    services::block_on(work(worker, args, WorkerOptions::default(), None))
}

/// Runs a worker: on the shared database, in the service if it is running, or else in this process.
async fn work(
    worker: Worker,
    args: WorkerArgs,
    mut options: WorkerOptions,
    account: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let mut ini = args.common.load()?;
    if let Some(data) = &args.data {
        set_data(&mut ini, data)?;
    }
    let config = ExchangeConfig::from_ini(&ini)?;
    options.account = account.map(|section| watched(&config, section)).transpose()?;
    let metrics = args.metrics_address(&ini, worker.name())?;
    if config.store.is_database() {
        let clock = args.common.timetravel.clock();
        return work_on_database(worker, config, (args.test, clock), options, metrics, stop).await;
    }
    let socket = link::socket(&config.runtime_dir);
    let name = worker.name();
    tokio::pin!(stop);
    if !args.test {
        let pages = LinkedPages::start(&socket, metrics.as_ref()).await?;
        services::show_metrics_url(pages.url());
        eprintln!("{name}: working in the exchange's service, beside its own workers, as long as both last");
        loop {
            let serve = async {
                // Services and workers may start in any order.
                while !link::serve_in_service(&socket, worker, options).await? {
                    tokio::time::sleep(SETUP_PAUSE).await;
                }
                anyhow::Ok(())
            };
            tokio::select! {
                () = &mut stop => break,
                // A supervisor restarts it.
                ended = serve => ended?,
            }
            // The service has ended, but may come back.
            tokio::select! {
                () = &mut stop => break,
                () = tokio::time::sleep(SETUP_PAUSE) => {}
            }
        }
        pages.end().await;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(progress) = link::run_in_service(&socket, worker, options).await? {
        tracing::info!(?progress, "{name} is idle, in the running service");
        return Ok(ExitCode::SUCCESS);
    }
    let clock = args.common.timetravel.clock();
    let config = ExchangeConfig { metrics, ..config };
    let exchange = start_beside(config, clock, &format!("runs the {name}")).await?;
    services::show_metrics_url(exchange.metrics_url());
    let progress = tokio::select! {
        () = &mut stop => None,
        progress = worker.run_until_idle(&exchange.app().core, options) => Some(progress),
    };
    exchange.shutdown().await.context("the exchange's store")?;
    match progress {
        Some(progress) => {
            let progress = progress?;
            tracing::info!(?progress, "{name} is idle");
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::from(130)),
    }
}

async fn offline(args: OfflineArgs) -> anyhow::Result<ExitCode> {
    let config = OfflineConfig::from_ini(&args.common.load()?)?;
    let mut say = |text: &str| eprintln!("{text}");
    let mut input = || std::io::read_to_string(std::io::stdin());
    let mut tool =
        Offline { config, say: &mut say, input: &mut input, now: services::TimeShift::default().now() };
    match tool.run(&args.steps).await {
        Ok(outcome) => {
            for report in &outcome.reports {
                print!("{report}");
            }
            if let Some(json) = outcome.to_json() {
                print!("{json}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(OfflineError::Usage(reason)) => {
            eprintln!("batzen: {reason}");
            Ok(ExitCode::from(2))
        }
        Err(error @ OfflineError::KeysInTheMaking) => {
            eprintln!("batzen: {error}");
            Ok(ExitCode::from(3))
        }
        Err(error) => Err(error.into()),
    }
}

/// An exchange's store: the given directory, or the store below it, or else the configured one.
fn store_config(store: Option<&Path>, common: &Common) -> anyhow::Result<StoreConfig> {
    match store {
        Some(dir) => {
            let below = dir.join("exchange").join("store");
            Ok(StoreConfig::embedded(if below.is_dir() { below } else { dir.to_owned() }))
        }
        None => Ok(ExchangeConfig::from_ini(&common.load()?)?.store),
    }
}

fn show_totals(args: &TotalsArgs) -> anyhow::Result<ExitCode> {
    let config = store_config(args.store.as_deref(), &args.common)?;
    store_args::require_existing(&config)?;
    let store = match storage::open_to_read(&config) {
        Err(StoreError::InUse(dir)) => {
            bail!("the store {} is in use: stop the exchange first, or work on a copy", dir.display())
        }
        other => other?,
    };
    let denoms = DenomTable::load(&store)?;
    let totals = totals::totals(&store, &denoms)?;
    store.close()?;
    if args.json {
        println!("{:#}", sheet::totals_json(&totals));
    } else {
        print!("{}", sheet::totals_text(&totals));
    }
    let is_right = totals.conserved() && totals.is_solvent();
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts an exchange without workers in this process, which must be the only one that has the store open. `does`: what
/// another service does by itself.
async fn start_beside(
    config: ExchangeConfig,
    clock: Arc<dyn Clock>,
    does: &str,
) -> anyhow::Result<RunningExchange> {
    let socket = link::socket(&config.runtime_dir);
    // Nobody needs to reach this service, so any port will do.
    let config =
        ExchangeConfig { listen: ListenConfig::Tcp { host: Some("127.0.0.1".into()), port: 0 }, ..config };
    let start = StartOptions { clock, workers: false, ..StartOptions::default() };
    match RunningExchange::start(config, start).await {
        Err(StartError::Store(StoreError::InUse(dir))) => bail!(
            "the store {} is in use by a service that does not listen at {}; it {does} by itself",
            dir.display(),
            socket.display()
        ),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn an_exchange_with_play_money_announces_the_address_at_which_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let base_url = |more: &[&str]| {
            let words =
                ["serve", "--standalone", "--bank", "http://localhost:8082/", "--port", "81", "--data"];
            let data = [dir.path().to_str().unwrap()];
            let line = Line::try_parse_from(words.iter().chain(&data).chain(more)).unwrap();
            exchange_config(&line.serve).unwrap().base_url
        };
        assert_eq!(base_url(&[]), "http://localhost:81/");
        assert_eq!(base_url(&["--bind", "0.0.0.0"]), "http://localhost:81/");
        assert_eq!(base_url(&["--bind", "10.1.2.3"]), "http://10.1.2.3:81/");
        assert_eq!(base_url(&["--bind", "fd00::7"]), "http://[fd00::7]:81/");
    }
}
