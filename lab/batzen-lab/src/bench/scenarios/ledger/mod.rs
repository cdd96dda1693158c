//! ledger: transfers from many clients to a ledger server. Each is durable before it is answered.

mod client;
pub(super) mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_ledger::{Account, AccountFlags, BATCH_EVENTS_MAX, Ledger};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde_json::json;

use super::Context;
use super::workers::{RunDirectory, Shape, blank};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::on_cores;
use crate::bench::load::procfs::{CpuTime, resident_bytes};
use crate::bench::load::progress::Progress;
use crate::bench::results::result::{BytesPerOp, Latency, LimitedBy, Load, Run, Sample, percentile_points};
use crate::bench::scenarios::options::RunOptions;

use client::{Choice, Client, Tally, ThreadTally};
use server::LedgerServer;

/// The ledger code of all accounts.
const LEDGER: u32 = 700;
/// Interval between samples of the series.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which a run that waits for the ledger checks whether it is interrupted.
const INTERRUPTION_CHECK: Duration = Duration::from_millis(50);
/// A side that was busy for more than this share of its cores limited the run.
const BUSY: f64 = 0.9;

/// The distribution of transfers over accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choosing {
    /// Each equally often
    Uniform,
    /// The n-th most popular is chosen 1/n as often as the most popular
    Zipf,
    /// All between the same two accounts
    Two,
}

/// The transport between clients and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// TCP over the loopback interface
    Tcp,
    /// A local socket
    Unix,
}

/// Measure a ledger
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  batzen-lab ledger bench                                     8,189 transfers per request, 4 clients
  batzen-lab ledger bench --batch 1 --clients 1000            one transfer per request
  batzen-lab ledger bench --pending 100                       pairs: every transfer is reserved, then posted
  batzen-lab ledger bench --accounts-by two                   two hot accounts
  batzen-lab ledger bench --target tcp://10.0.0.7:3001        a ledger that runs already
  batzen-lab ledger bench --target tigerbeetle://3000         another ledger (if support is built in)")]
pub struct LedgerArgs {
    /// Transfers per request
    #[arg(long, value_name = "N", default_value_t = 8189, value_parser = clap::value_parser!(u32).range(1..=8189))]
    pub(crate) batch: u32,
    /// Clients, each with one request under way and its own connection (TigerBeetle: all share one session)
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4000))]
    pub(crate) clients: u32,
    /// Number of transfers, not counting posts
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) transfers: u64,
    /// Number of accounts
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(2..=10_000_000))]
    pub(crate) accounts: u64,
    /// Distribution of transfers over accounts
    #[arg(long, value_name = "HOW", value_enum, default_value = "uniform")]
    pub(crate) accounts_by: Choosing,
    /// Percentage of transfers that are reserved first and posted by the next request
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) pending: u32,
    /// Keep the history of balances of every account
    #[arg(long)]
    pub(crate) history: bool,
    /// How clients reach the server
    #[arg(long, value_name = "HOW", value_enum, default_value = "tcp")]
    pub(crate) transport: Transport,
    /// Load the ledger at this URL, tcp://.., unix://.. or tigerbeetle://.., instead of one that is started for the run
    #[arg(long, value_name = "URL", visible_alias = "target")]
    pub(crate) ledger: Option<String>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where to run, and where to put the result
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs the scenario. Each transfer counts as an operation, and so does each post.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &LedgerArgs, context: &Context) -> Result<Run> {
    let run_dir = RunDirectory::new("ledger", &args.run)?;
    let progress = Progress::new(context.shows_progress);
    let mut server = match &args.ledger {
        Some(_) => None,
        None => Some(LedgerServer::start(context, &run_dir.placement, &run_dir.world, args.transport)?),
    };
    let url = match (&args.ledger, &server) {
        (Some(url), _) => url.clone(),
        (None, Some(server)) => server.url.clone(),
        (None, None) => unreachable!("one of them is there"),
    };
    let base = if server.is_some() { 1 } else { fresh_base() };
    let cores = run_dir.placement.client.clone();
    let measured =
        on_cores(&cores, || measure(args, context, &run_dir, &url, base, server.as_mut(), progress))??;
    if let Some(server) = server {
        server.stop()?;
    }
    result(args, context, &run_dir, measured)
}

/// The first id of a run at a ledger that stays: no other run, earlier or at the same time, uses those from there on.
fn fresh_base() -> u128 {
    let mut random = [0; 2];
    batzen_crypto::fill_random(&mut random);
    // Clients count from 2⁴⁰ each, and there are fewer than 2¹² of them.
    let run = u128::from(u16::from_le_bytes(random) >> 4) << 52;
    (u128::from(crate::bench::scenarios::world::now().as_micros()) << 64) | run
}

/// The measurements.
struct Measured {
    tally: Tally,
    seconds: f64,
    series: Vec<Sample>,
    server_cpu: Option<CpuTime>,
    client_cpu: CpuTime,
    disk_bytes: Option<u64>,
    ram_bytes: Option<u64>,
    events_per_batch: Option<f64>,
    checked: u64,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| BenchError::set_up("no runtime", error))
}

/// Does some work unless the run is interrupted, because a ledger that is away may keep it waiting for long.
async fn unless_interrupted<T>(interrupted: &AtomicBool, work: impl Future<Output = Result<T>>) -> Result<T> {
    let interruption = async {
        while !interrupted.load(Ordering::Relaxed) {
            tokio::time::sleep(INTERRUPTION_CHECK).await;
        }
    };
    tokio::select! {
        result = work => result,
        () = interruption => Err(BenchError::Interrupted),
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Ledger>> {
    let connected = batzen_ledger_service::net::connect(url).await;
    connected.map_err(|error| BenchError::set_up("cannot connect", error))
}

/// Creates the accounts, with consecutive ids from `base` on.
async fn create_accounts(
    ledger: &dyn Ledger,
    args: &LedgerArgs,
    base: u128,
    progress: Progress,
) -> Result<()> {
    let bar = progress.bar("creating accounts", args.accounts);
    let flags = if args.history { AccountFlags::HISTORY } else { AccountFlags::NONE };
    let ids: Vec<u128> = (0..u128::from(args.accounts)).map(|index| base + index).collect();
    for ids in ids.chunks(BATCH_EVENTS_MAX) {
        let account = |id: &u128| Account { id: *id, ledger: LEDGER, code: 1, flags, ..Account::default() };
        let results = ledger.create_accounts(ids.iter().map(account).collect()).await;
        let results = results.map_err(|error| BenchError::set_up("cannot create accounts", error))?;
        if let Some(result) = results.iter().find(|result| !result.status.stands()) {
            return Err(BenchError::set_up("an account was refused", result.status));
        }
        bar.set(bar.position() + ids.len() as u64);
    }
    Ok(())
}

fn measure(
    args: &LedgerArgs,
    context: &Context,
    run_dir: &RunDirectory,
    url: &str,
    base: u128,
    mut server: Option<&mut LedgerServer>,
    progress: Progress,
) -> Result<Measured> {
    let set_up = runtime()?;
    let prepare = async {
        let control = connect(url).await?;
        create_accounts(control.as_ref(), args, base, progress).await?;
        Ok(control)
    };
    let control = set_up.block_on(unless_interrupted(&context.interrupted, prepare))?;
    let issued = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let threads = run_dir.placement.client_count().min(args.clients as usize).max(1);
    let begin = Arc::new(std::sync::Barrier::new(threads + 1));
    let choice = Arc::new(Choice::new(args.accounts_by, args.accounts, base));
    let mut handles = Vec::new();
    for thread in 0..threads {
        let clients: Vec<Client> = (0..args.clients as usize)
            .filter(|client| client % threads == thread)
            .map(|client| Client::new(client as u64, args, base, Arc::clone(&choice)))
            .collect();
        let (issued, done, begin) = (Arc::clone(&issued), Arc::clone(&done), Arc::clone(&begin));
        let (url, transfers, interrupted) =
            (url.to_owned(), args.transfers, Arc::clone(&context.interrupted));
        let work = move || {
            let runtime = runtime()?;
            runtime.block_on(client::run_all(clients, &url, &begin, transfers, &issued, &done, &interrupted))
        };
        let handle = std::thread::Builder::new().name(format!("load-{thread}")).spawn(work);
        handles.push(handle.map_err(|error| BenchError::set_up("no thread", error))?);
    }
    begin.wait();
    let me = std::process::id();
    let pid = server.as_ref().map(|server| server.pid());
    let (disk, ram) = (server.as_ref().and_then(|server| server.disk_bytes()), pid.map(resident_bytes));
    let batches = server.as_ref().and_then(|server| server.batches());
    let (server_before, client_before) = (pid.map(CpuTime::of), CpuTime::of(me));
    let started = Instant::now();
    let bar = progress.bar("transfers", args.transfers);
    let mut series = Vec::new();
    let (mut last_time, mut last_done) = (0.0, 0);
    let (mut last_server, mut last_client) = (server_before.clone(), client_before.clone());
    while !handles.iter().all(std::thread::JoinHandle::is_finished) {
        std::thread::sleep(Duration::from_millis(20));
        bar.set(issued.load(Ordering::Relaxed).min(args.transfers));
        if let Some(server) = server.as_deref_mut() {
            server.still_runs()?;
        }
        let time = started.elapsed().as_secs_f64();
        if time - last_time >= TICK.as_secs_f64() {
            let now = done.load(Ordering::Relaxed);
            let (server_now, client_now) = (pid.map(CpuTime::of), CpuTime::of(me));
            let cores = |now: &CpuTime, before: &CpuTime| {
                now.since(before).total_ns() as f64 / 1e9 / (time - last_time)
            };
            series.push(Sample {
                t_s: time,
                ops_per_s: (now - last_done) as f64 / (time - last_time),
                server_cores_busy: server_now
                    .as_ref()
                    .zip(last_server.as_ref())
                    .map(|(now, before)| cores(now, before)),
                client_cores_busy: Some(cores(&client_now, &last_client)),
                ..Sample::default()
            });
            (last_time, last_done, last_server, last_client) = (time, now, server_now, client_now);
        }
    }
    let server_cpu = pid.map(CpuTime::of).zip(server_before).map(|(now, before)| now.since(&before));
    let mut tally = Tally::default();
    let mut longest = 0.0_f64;
    // While the threads ran, their CPU time was part of the process's, so they report it.
    let mut client_ns = 0;
    for handle in handles {
        let outcome = handle.join().map_err(|_| BenchError::SetUp("a client broke down".to_owned()))?;
        let ThreadTally { tally: of_thread, seconds, cpu_ns } = outcome?;
        tally.add(of_thread);
        longest = longest.max(seconds);
        client_ns += cpu_ns;
    }
    drop(bar);
    context.go_on()?;
    let growth = |now: Option<u64>, before: Option<u64>| {
        now.zip(before).map(|(now, before)| now.saturating_sub(before))
    };
    let disk_bytes = growth(server.as_ref().and_then(|server| server.disk_bytes()), disk);
    let ram_bytes = growth(pid.map(resident_bytes), ram);
    let events_per_batch = server.as_ref().and_then(|server| server.batches()).zip(batches).and_then(
        |((batches, events), (batches_before, events_before))| {
            let batches = batches - batches_before;
            (batches > 0.0).then(|| (events - events_before) / batches)
        },
    );
    let check = check(control.as_ref(), args, base, &tally, progress);
    let checked = set_up.block_on(unless_interrupted(&context.interrupted, check))?;
    Ok(Measured {
        tally,
        seconds: longest,
        series,
        server_cpu,
        client_cpu: CpuTime { by_role_ns: [("load", client_ns)].into() },
        disk_bytes,
        ram_bytes,
        events_per_batch,
        checked,
    })
}

/// Reads every account and checks that debits equal credits, and that the sum moved equals the sum confirmed
/// to clients.
async fn check(
    ledger: &dyn Ledger,
    args: &LedgerArgs,
    base: u128,
    tally: &Tally,
    progress: Progress,
) -> Result<u64> {
    let bar = progress.bar("checking accounts", args.accounts);
    let ids: Vec<u128> = (0..u128::from(args.accounts)).map(|index| base + index).collect();
    let (mut debits, mut credits, mut pending) = (0_u128, 0_u128, 0_u128);
    for ids in ids.chunks(BATCH_EVENTS_MAX) {
        let accounts = ledger.lookup_accounts(ids.to_vec()).await;
        let accounts = accounts.map_err(|error| BenchError::WrongAnswer(error.to_string()))?;
        if accounts.len() != ids.len() {
            return Err(BenchError::WrongAnswer("an account is missing".to_owned()));
        }
        for account in &accounts {
            debits += account.debits_posted;
            credits += account.credits_posted;
            pending += account.debits_pending + account.credits_pending;
        }
        bar.set(bar.position() + ids.len() as u64);
    }
    let posted = u128::from(tally.posted_amount);
    if debits == credits && debits == posted && pending == 0 {
        return Ok(args.accounts);
    }
    Err(BenchError::WrongAnswer(format!(
        "the books do not add up: debits {debits}, credits {credits}, pending {pending}, acknowledged {posted}"
    )))
}

fn result(args: &LedgerArgs, context: &Context, run_dir: &RunDirectory, measured: Measured) -> Result<Run> {
    let Measured { tally, seconds, series, server_cpu, client_cpu, .. } = measured;
    let how = match args.accounts_by {
        Choosing::Uniform => "uniform",
        Choosing::Zipf => "zipf",
        Choosing::Two => "two",
    };
    let pairs = if args.pending > 0 { format!(", {} % pending", args.pending) } else { String::new() };
    let shape = Shape {
        scenario: "ledger",
        title: format!(
            "ledger, {} clients, {} a request, {} accounts ({how}){pairs}",
            args.clients, args.batch, args.accounts
        ),
        unit: "transfers",
        parameters: BTreeMap::from([
            ("batch".to_owned(), json!(args.batch)),
            ("clients".to_owned(), json!(args.clients)),
            ("transfers".to_owned(), json!(args.transfers)),
            ("accounts".to_owned(), json!(args.accounts)),
            ("accounts_by".to_owned(), json!(how)),
            ("pending_percent".to_owned(), json!(args.pending)),
            ("history".to_owned(), json!(args.history)),
            ("transport".to_owned(), json!(format!("{:?}", args.transport).to_lowercase())),
            ("ledger".to_owned(), json!(args.ledger.as_deref().unwrap_or("started for this run"))),
        ]),
        remarks: vec!["every transfer was durable before it was answered".to_owned()],
    };
    let mut result = blank(context, &run_dir.placement, shape, tally.ops, seconds);
    let ops = (tally.ops as f64).max(1.0);
    result.requests = tally.requests;
    result.errors = tally.errors;
    result.load = Load::Closed { clients: args.clients as usize };
    result.latency = Some(Latency::of(&tally.latency));
    let client_cores = client_cpu.total_ns() as f64 / 1e9 / seconds;
    result.client_cpu_us_per_op = Some(client_cpu.total_ns() as f64 / 1e3 / ops);
    if let Some(cpu) = &server_cpu {
        result.set_cpu(cpu);
        let server_cores = cpu.total_ns() as f64 / 1e9 / seconds;
        result.limited_by = LimitedBy::of(
            server_cores >= BUSY * run_dir.placement.server_count() as f64,
            client_cores >= BUSY * run_dir.placement.client_count() as f64,
        );
        result.extra.insert("server_cores_busy".to_owned(), server_cores);
    }
    result.extra.insert("client_cores_busy".to_owned(), client_cores);
    if let Some((disk, ram)) = measured.disk_bytes.zip(measured.ram_bytes) {
        result.bytes_per_op = Some(BytesPerOp { disk: disk as f64 / ops, ram: ram as f64 / ops });
    }
    if let Some(events) = measured.events_per_batch {
        result.extra.insert("events_per_batch".to_owned(), events);
    }
    if args.pending > 0 {
        result.extra.insert("pairs_per_s".to_owned(), tally.pairs as f64 / seconds);
    }
    result.extra.insert("accounts_checked".to_owned(), measured.checked as f64);
    let latency = percentile_points(&tally.latency);
    Ok(Run { path: run_dir.directory.clone(), result, series, latency })
}

/// A histogram of microseconds up to a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant bounds")
}
