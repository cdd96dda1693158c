//! Shared by the workers' scenarios: an exchange in this process, on the server's cores, and a bank process.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_engine::Batcher;
use batzen_exchange::app::Exchange;
use batzen_exchange::config::{CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig};
use batzen_exchange::rules::ExchangeRules;
use batzen_exchange::service::{RunningExchange, StartOptions, system_clock};
use batzen_exchange::storage::StoreConfig;
use batzen_protocol::{Currency, Money};
use batzen_store::StoreStats;
use clap::Args;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::Context;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{Placement, on_cores};
use crate::bench::load::procfs::{CpuTime, resident_bytes};
use crate::bench::results::machine::Machine;
use crate::bench::results::result::{BytesPerOp, LimitedBy, Run, RunResult, SCHEMA, Sample, utc_now};
use crate::bench::scenarios::database::{self, Database, StoreOptions};
use crate::bench::scenarios::options::RunOptions;
use crate::bench::scenarios::service::{self, Service};
use crate::bench::scenarios::world::{free_port, local};

/// The currency of the scenarios.
const CURRENCY: &str = "EUR";
/// The exchange's account at the bank.
const OUR_PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
/// Time that a bank may take to start.
const READY: Duration = Duration::from_secs(60);
/// Interval between samples of the series.
const TICK: Duration = Duration::from_millis(250);

/// The currency of the scenarios.
pub(crate) fn currency() -> Currency {
    CURRENCY.parse().expect("a currency")
}

/// An amount in that currency.
pub(crate) fn money(text: &str) -> Money {
    text.parse().expect("an amount")
}

/// The payto URI of an account at the bank.
pub(crate) fn payto(account: &str) -> String {
    format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}")
}

/// The directory of a run, and the cores of its processes.
pub(crate) struct RunDirectory {
    /// The result directory.
    pub(crate) directory: PathBuf,
    /// The directory for stores.
    pub(crate) world: PathBuf,
    keep_world: bool,
    /// The cores on which the processes run.
    pub(crate) placement: Placement,
}

impl RunDirectory {
    /// Creates the directory.
    pub(crate) fn new(scenario: &str, options: &RunOptions) -> Result<Self> {
        let placement = Placement::choose(options.server_cores.as_ref(), options.client_cores.as_ref())?;
        let directory = options.out.clone().unwrap_or_else(|| super::default_directory(scenario));
        crate::bench::results::result::claim_directory(&directory)?;
        let world = directory.join("world");
        std::fs::create_dir_all(&world).map_err(BenchError::io(&world))?;
        Ok(Self { directory, world, keep_world: options.keep_world, placement })
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if !self.keep_world {
            // This only frees the space.
            let _ = std::fs::remove_dir_all(&self.world);
        }
    }
}

/// A bank in a separate process. It ends when this is dropped; everything it has acknowledged is durable.
pub(crate) struct BankProcess {
    service: Service,
    port: u16,
}

impl BankProcess {
    /// Starts a bank on the client's cores, with its store in `data`.
    pub(crate) fn start(context: &Context, run_dir: &RunDirectory, data: &Path) -> Result<Self> {
        let port = free_port()?;
        let words = ["bank", "serve", "--currency", CURRENCY, "--bind", "127.0.0.1"];
        let mut command = service::command(&context.program, &run_dir.world, &words);
        command.args(["--port", &port.to_string(), "--data"]).arg(data);
        let mut service = Service::spawn("bank", command, &run_dir.world, &run_dir.placement.client)?;
        let is_ready = || std::net::TcpStream::connect(local(port)).is_ok();
        service.wait_until(is_ready, READY, &context.interrupted, |name, _| {
            format!("the {name} does not answer")
        })?;
        Ok(Self { service, port })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.service.pid()
    }

    /// Base URL of the wire gateway of the exchange's account.
    pub(crate) fn gateway(&self) -> String {
        format!("http://127.0.0.1:{}/taler-wire-gateway/exchange/", self.port)
    }
}

/// An exchange in this process whose threads run on the server's cores. Workers run only on request.
pub(crate) struct InProcessExchange {
    runtime: Runtime,
    exchange: Option<RunningExchange>,
    cores: Vec<usize>,
    /// Dropped after the exchange.
    database: Option<Database>,
}

impl InProcessExchange {
    /// Starts it on a database, or on the embedded store. Its only denomination, number 1, is worth 10 and
    /// has a deposit fee of 0.01.
    pub(crate) fn start(run_dir: &RunDirectory, gateway: String, database: Option<Database>) -> Result<Self> {
        let cores = run_dir.placement.server.clone();
        let threads = run_dir.placement.server_count();
        let (runtime, exchange) = on_cores(&cores, || -> Result<_> {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name("http")
                .enable_all()
                .build()
                .map_err(|error| BenchError::set_up("no runtime", error))?;
            let fees = CoinFees { deposit: money("0.01"), ..CoinFees::FREE };
            let gateway = GatewayConfig { url: gateway, auth: GatewayAuth::None };
            let mut config = ExchangeConfig::local(currency(), &run_dir.world, 0)
                .with_coin("coin_ten", money("10"), fees, CipherConfig::Cs)
                .with_account("exchange-account-1", OUR_PAYTO, gateway);
            config.crypto_threads = 1;
            if let Some(database) = &database {
                database.make_tables()?;
                config.store = StoreConfig::postgres(database.url().to_owned());
            }
            let options = StartOptions { workers: false, ..StartOptions::default() };
            let exchange = runtime
                .block_on(async {
                    let exchange = RunningExchange::start(config, options).await?;
                    exchange.ready().await?;
                    Ok(exchange)
                })
                .map_err(|error: batzen_exchange::error::StartError| {
                    BenchError::set_up("the exchange does not start", error)
                })?;
            Ok((runtime, exchange))
        })??;
        Ok(Self { runtime, exchange: Some(exchange), cores, database })
    }

    /// The exchange.
    pub(crate) fn app(&self) -> &Arc<Exchange> {
        self.exchange.as_ref().expect("it ends with this").app()
    }

    /// A batcher in addition to the lane, which is idle while the set-up fills the store.
    pub(crate) fn filler(&self) -> Batcher<ExchangeRules> {
        Batcher::new(Arc::clone(&self.app().core.rules), self.app().core.store.clone())
    }

    /// Runs a worker until it is idle.
    pub(crate) fn run<F>(&self, work: impl FnOnce(Arc<Exchange>) -> F) -> Result<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = self.runtime.spawn(work(Arc::clone(self.app())));
        self.runtime.block_on(task).map_err(|error| BenchError::set_up("the worker broke down", error))
    }

    /// Writes a checkpoint of the indexes, or updates the database's statistics, so that this does not happen
    /// during the measured part.
    pub(crate) fn settle(&self) -> Result<()> {
        self.database.as_ref().map_or(Ok(()), Database::settle)?;
        self.app().core.store.checkpoint().map_err(|error| BenchError::set_up("no checkpoint", error))
    }
}

impl Drop for InProcessExchange {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            let ended = on_cores(&self.cores, || self.runtime.block_on(exchange.shutdown()));
            if let Ok(Err(error)) = ended {
                tracing::warn!(%error, "the exchange did not end in order");
            }
        }
    }
}

/// The facts about a scenario that are known before it runs.
pub(crate) struct Shape {
    /// Its name.
    pub(crate) scenario: &'static str,
    /// A title that tells this run from others.
    pub(crate) title: String,
    /// The unit of operations, in the plural.
    pub(crate) unit: &'static str,
    /// The chosen parameters.
    pub(crate) parameters: BTreeMap<String, Value>,
    /// Remarks on the result.
    pub(crate) remarks: Vec<String>,
}

/// Options of the workers' scenarios.
#[derive(Args, Clone, Debug)]
pub struct WorkerOptions {
    /// Seed of all generated data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the exchange keeps its rows.
    #[command(flatten)]
    pub store: StoreOptions,
    /// Where to run, and where to put the result
    #[command(flatten)]
    pub run: RunOptions,
}

/// The processes of a worker's scenario.
pub(crate) struct WorkerRun<'a> {
    /// The exchange whose worker is measured.
    pub(crate) in_process: InProcessExchange,
    bank: Option<BankProcess>,
    run_dir: RunDirectory,
    context: &'a Context,
}

/// Prepares the store of a bank in a directory.
type FillBank<'a> = &'a dyn Fn(&Path) -> Result<()>;

impl<'a> WorkerRun<'a> {
    /// Starts an exchange, and before it a bank whose store `fill_bank` prepares, unless the worker needs none.
    pub(crate) fn start(
        scenario: &str,
        options: &WorkerOptions,
        context: &'a Context,
        fill_bank: Option<FillBank<'_>>,
    ) -> Result<Self> {
        options.store.check()?;
        let run_dir = RunDirectory::new(scenario, &options.run)?;
        let database = Database::start(&options.store, &run_dir.placement)?;
        let start_bank = |fill_bank: FillBank<'_>| {
            let data = run_dir.world.join("bank");
            fill_bank(&data)?;
            BankProcess::start(context, &run_dir, &data)
        };
        let bank = fill_bank.map(start_bank).transpose()?;
        let gateway = bank.as_ref().map_or_else(|| "http://127.0.0.1:9/".to_owned(), BankProcess::gateway);
        let in_process = InProcessExchange::start(&run_dir, gateway, database)?;
        Ok(Self { in_process, bank, run_dir, context })
    }

    /// Measures the worker. `count` returns the number of operations done; `work` does all `expected` of them.
    ///
    /// # Errors
    /// When the worker fails, or another number of operations was `done` (the word for it).
    pub(crate) fn measure<F, T, E>(
        &self,
        shape: Shape,
        (expected, done): (u64, &str),
        count: fn(&Exchange) -> u64,
        work: impl FnOnce(Arc<Exchange>) -> F,
    ) -> Result<(Run, T)>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let Self { in_process, run_dir, context, .. } = self;
        let (bank, scenario, unit) = (self.bank.as_ref(), shape.scenario, shape.unit);
        let app = Arc::clone(in_process.app());
        let own = std::process::id();
        let (stats, lane) = (app.core.store.stats(), app.core.lane.metrics().snapshot());
        let counted = in_process.database.as_ref().map(Database::snapshot);
        let (cpu, resident) = (CpuTime::of(own), resident_bytes(own));
        let bank_cpu = bank.map(|bank| CpuTime::of(bank.pid()));
        let (started, ops_before) = (utc_now(), count(&app));
        let stop = Arc::new(AtomicBool::new(false));
        let sampler = {
            let (app, stop) = (Arc::clone(&app), Arc::clone(&stop));
            let bank = bank.map(BankProcess::pid);
            let cores = run_dir.placement.client.clone();
            // The sampling must not take time from the code it observes.
            std::thread::spawn(move || on_cores(&cores, || sample(&app, &stop, bank, count)))
        };
        let begin = Instant::now();
        let output = in_process.run(work);
        let seconds = begin.elapsed().as_secs_f64();
        let after = CpuTime::of(own).since(&cpu);
        let used = match (counted, in_process.database.as_ref().map(Database::snapshot)) {
            (Some(first), Some(last)) => Some(database::Used::between(first, last)?),
            _ => None,
        };
        stop.store(true, Ordering::Relaxed);
        let series = sampler.join().map_err(|_| BenchError::SetUp("the sampler broke down".to_owned()))??;
        let output = output?.map_err(|error| BenchError::set_up(scenario, error))?;
        let ops = count(&app) - ops_before;
        if ops != expected {
            return Err(BenchError::WrongAnswer(format!("{ops} of {expected} {unit} were {done}")));
        }
        let per_op = |amount: f64| if ops == 0 { 0.0 } else { amount / ops as f64 };
        let client_ns =
            bank.zip(bank_cpu).map(|(bank, before)| CpuTime::of(bank.pid()).since(&before).total_ns());
        let grown = app.core.store.stats();
        let lane_after = app.core.lane.metrics().snapshot();
        let growth = |value: fn(&StoreStats) -> u64| value(&grown).saturating_sub(value(&stats)) as f64;
        let database_ns = used.as_ref().map_or(0, |used| used.cpu_ns);
        let server_busy = (after.total_ns() + database_ns) as f64 / 1e9 / seconds;
        let client_busy = client_ns.map(|ns| ns as f64 / 1e9 / seconds);
        let server_full = server_busy > 0.9 * run_dir.placement.server_count() as f64;
        let client_full =
            client_busy.is_some_and(|busy| busy > 0.9 * run_dir.placement.client_count() as f64);
        let batches = lane_after.batches - lane.batches;
        let mut extra = BTreeMap::from([
            ("server_cores_busy".to_owned(), server_busy),
            ("ops_per_server_cpu_s".to_owned(), ops as f64 / (after.total_ns().max(1) as f64 / 1e9)),
            ("index_bytes_per_op".to_owned(), per_op(grown.index_bytes as f64 - stats.index_bytes as f64)),
            ("disk_growth_bytes_per_op".to_owned(), per_op(growth(|stats| stats.disk_bytes))),
            ("row_changes_per_op".to_owned(), per_op(growth(|stats| stats.changes_total))),
            ("ops_per_commit".to_owned(), ops as f64 / batches.max(1) as f64),
            ("sync_us_per_op".to_owned(), per_op(growth(|stats| stats.sync_us_total))),
        ]);
        extra.extend(client_busy.map(|busy| ("client_cores_busy".to_owned(), busy)));
        let mut result = blank(context, &run_dir.placement, shape, ops, seconds);
        result.started = started;
        result.limited_by = LimitedBy::of(server_full, client_full);
        result.bytes_per_op = Some(BytesPerOp {
            disk: per_op(growth(|stats| stats.written_bytes_total)),
            ram: per_op(resident_bytes(own) as f64 - resident as f64),
        });
        result.set_cpu(&after);
        result.client_cpu_us_per_op = client_ns.map(|ns| per_op(ns as f64 / 1e3));
        result.extra = extra;
        if let (Some(database), Some(used)) = (&in_process.database, used) {
            used.show(&mut result);
            result.title.push_str(&database.title());
            result.parameters.extend(database.parameters()?);
        }
        Ok((Run { path: run_dir.directory.clone(), result, series, latency: Vec::new() }, output))
    }
}

/// A result filled with everything that is already known.
pub(crate) fn blank(
    context: &Context,
    placement: &Placement,
    shape: Shape,
    ops: u64,
    seconds: f64,
) -> RunResult {
    let mut remarks = shape.remarks;
    remarks.extend(placement.remark.clone());
    if cfg!(debug_assertions) {
        remarks.push("a debug build: the figures say nothing about speed".to_owned());
    }
    RunResult {
        schema: SCHEMA,
        scenario: shape.scenario.to_owned(),
        title: shape.title,
        command: context.command.clone(),
        parameters: shape.parameters,
        machine: Machine::detect(),
        server_cores: placement.server.clone(),
        client_cores: placement.client.clone(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        started: utc_now(),
        duration_s: seconds,
        unit: shape.unit.to_owned(),
        ops,
        ops_per_s: if seconds > 0.0 { ops as f64 / seconds } else { 0.0 },
        requests: ops,
        remarks,
        ..RunResult::default()
    }
}

/// Takes samples until it is stopped.
fn sample(app: &Exchange, stop: &AtomicBool, bank: Option<u32>, count: fn(&Exchange) -> u64) -> Vec<Sample> {
    let begin = Instant::now();
    let busy = |pid| CpuTime::of(pid).total_ns() as f64 / 1e9;
    let look =
        || (begin.elapsed().as_secs_f64(), count(app) as f64, busy(std::process::id()), bank.map(busy));
    let mut series = Vec::new();
    let mut last = look();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let now = look();
        let time = now.0 - last.0;
        series.push(Sample {
            t_s: now.0,
            ops_per_s: (now.1 - last.1) / time,
            server_cores_busy: Some((now.2 - last.2) / time),
            client_cores_busy: now.3.zip(last.3).map(|(now, last)| (now - last) / time),
            queue_depth: Some(app.core.lane.metrics().snapshot().queued as f64),
            ..Sample::default()
        });
        last = now;
    }
    series
}

/// The clock of the set-up.
pub(crate) fn clock() -> batzen_protocol::Timestamp {
    system_clock()
}
