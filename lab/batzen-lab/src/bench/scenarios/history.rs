//! history: what a store costs after many coins: rate, memory, disk, time to start, and time to look up coins.
//!
//! The rows of deposits go straight into a store of the exchange's tables, in the commits of the exchange's
//! lane, and before each commit its keys are looked up, as a lane does.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use batzen_cli_support::numbers;
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError};
use batzen_tables::exchange::{
    ALL, CoinKey, Coins, DepositKey, DepositRow, DepositTarget, Deposits, PaytoHash,
};
use clap::Args;
use serde::Serialize;

use super::Context;
use super::store::{coin_row, deposit_row};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::meter::thread_cpu_time;
use crate::bench::load::procfs::own_threads_ns;
use crate::bench::load::progress::Progress;
use crate::bench::load::random::Numbers;
use crate::bench::results::machine::Machine;
use crate::bench::results::output;

/// Maximum size of a coin and its deposit on disk, with indexes and what maintenance needs for a while.
const COIN_BYTES: u64 = 1_000;
/// The same if deposits are updated when they are aggregated.
const AGGREGATED_COIN_BYTES: u64 = 1_600;
/// When to measure, besides at the end.
const MILESTONES: [u64; 4] = [1_000_000, 10_000_000, 50_000_000, 100_000_000];
/// The share of the coins over which the first and the last rate are measured.
const RATE_PARTS: u64 = 20;
/// Number of commits for which a deposit is open before it is aggregated.
const OPEN_COMMITS: usize = 1_000;
/// Number of random numbers that a coin has to itself.
const NUMBERS_PER_COIN: u64 = 128;

/// Grow a store of coins, and measure it
#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// Coins, each with a deposit
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) coins: u64,
    /// Coins per commit
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) batch: u64,
    /// Insert open deposits and update each when it is aggregated. Otherwise deposits are inserted aggregated
    #[arg(long)]
    pub(crate) aggregate: bool,
    /// Memory for index entries, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1_024)]
    pub(crate) index_memory: u64,
    /// Lookups of each kind at each point
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lookups: u64,
    /// Create the store below this directory [default: the system's directory of temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Seed of all generated data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Times of lookups, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LookupTimes {
    /// The median.
    pub(crate) p50_us: f64,
    /// The 99th percentile.
    pub(crate) p99_us: f64,
}

/// The store after some coins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HistoryPoint {
    /// Number of its coins.
    pub(crate) coins: u64,
    /// Coins per second since the last point, in lookups and commits.
    pub(crate) coins_per_s: f64,
    /// Processor time of these lookups and commits, in microseconds per coin.
    pub(crate) cpu_us_per_coin: f64,
    /// Processor time of the store's maintenance meanwhile, in microseconds per coin.
    pub(crate) maintenance_cpu_us_per_coin: f64,
    /// Resident memory of the process, in bytes.
    pub(crate) rss_bytes: u64,
    /// Memory of the indexes, as the store estimates it, in bytes.
    pub(crate) index_memory_bytes: u64,
    pub(crate) index_file_bytes: u64,
    /// All files, in bytes.
    pub(crate) disk_bytes: u64,
    /// From a process that ended without closing the store to the open store, with an empty page cache.
    pub(crate) recovery_ms: f64,
    /// The same after closing.
    pub(crate) restart_ms: f64,
    /// Lookups of coins that the store does not have.
    pub(crate) unknown: LookupTimes,
    /// Lookups of its coins.
    pub(crate) known: LookupTimes,
    /// The same when the page cache had nothing of the store.
    pub(crate) cold: LookupTimes,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct History {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The version of the program.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    pub(crate) commit: String,
    /// Coins in a commit.
    pub(crate) batch: u64,
    /// Whether deposits were updated when they were aggregated.
    pub(crate) aggregate: bool,
    /// Memory for index entries, in MiB.
    pub(crate) index_memory_mib: u64,
    /// Measurements.
    pub(crate) points: Vec<HistoryPoint>,
    /// Coins per second over the first twentieth.
    pub(crate) first_coins_per_s: f64,
    /// Coins per second over the last twentieth.
    pub(crate) last_coins_per_s: f64,
    /// Processor time of lookups and commits over the first twentieth, in microseconds per coin.
    pub(crate) first_cpu_us_per_coin: f64,
    /// The same over the last twentieth.
    pub(crate) last_cpu_us_per_coin: f64,
    /// Growth of the indexes' memory from the first to the last point, in bytes.
    pub(crate) index_memory_bytes_per_coin: Option<f64>,
}

/// The work done in some time.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    coins: u64,
    wall: Duration,
    cpu: Duration,
}

impl Work {
    fn add(&mut self, other: Self) {
        self.coins += other.coins;
        self.wall += other.wall;
        self.cpu += other.cpu;
    }

    fn coins_per_s(self) -> f64 {
        (self.coins as f64 / self.wall.as_secs_f64()).round()
    }

    fn cpu_us_per_coin(self) -> f64 {
        us(self.cpu) / self.coins as f64
    }
}

/// Runs the scenario.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &HistoryArgs, context: &Context) -> Result<ExitCode> {
    let result = measure(args, context)?;
    output::print(&if args.json { output::json(&result) } else { table(&result) })?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: StoreError) -> BenchError {
    BenchError::set_up("store", error)
}

/// A coin of the history, which follows from its number.
struct Coin {
    key: CoinKey,
    deposit: DepositKey,
    random: Numbers,
}

/// The generated data.
struct Source {
    seed: u64,
    target: DepositTarget,
}

impl Source {
    fn new(seed: u64) -> Self {
        let mut random = Numbers::new(seed);
        let target = DepositTarget {
            h_payto: PaytoHash::from_bytes(random.bytes()),
            merchant_pub: EddsaPublicKey::from_bytes(random.bytes()),
        };
        Self { seed, target }
    }

    fn coin(&self, number: u64) -> Coin {
        let start = (self.seed << 40).wrapping_add(number.wrapping_add(1).wrapping_mul(NUMBERS_PER_COIN));
        let mut random = Numbers::new(start);
        let coin_pub = EddsaPublicKey::from_bytes(random.bytes());
        let h_contract_terms = HashCode::from_bytes(random.bytes());
        let deposit = DepositKey { coin_pub, merchant_pub: self.target.merchant_pub, h_contract_terms };
        Coin { key: CoinKey { coin_pub }, deposit, random }
    }

    /// The transfer into which a commit's deposits are aggregated.
    fn transfer(&self, commit: u64) -> Wtid {
        Wtid::from_bytes(Numbers::new(!commit.wrapping_mul(NUMBERS_PER_COIN) ^ self.seed).bytes())
    }
}

/// A commit that is ready: the keys to look up, and the changes.
struct Prepared {
    coins: Vec<CoinKey>,
    deposits: Vec<DepositKey>,
    changes: ChangeSet,
}

fn prepare(args: &HistoryArgs, source: &Source, numbers: std::ops::Range<u64>) -> Prepared {
    let wtid = (!args.aggregate).then(|| source.transfer(numbers.start));
    let mut prepared = Prepared { coins: Vec::new(), deposits: Vec::new(), changes: ChangeSet::new() };
    for number in numbers {
        let mut coin = source.coin(number);
        prepared.changes.insert::<Coins>(&coin.key, &coin_row(&mut coin.random));
        let row = deposit_row(source.target.h_payto, wtid, &mut coin.random);
        prepared.changes.insert::<Deposits>(&coin.deposit, &row);
        prepared.coins.push(coin.key);
        prepared.deposits.push(coin.deposit);
    }
    prepared
}

fn commit(store: &Store, changes: &ChangeSet) -> Result<()> {
    match store.commit(changes).map_err(failed)? {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(rows) => Err(BenchError::SetUp(format!("{} rows exist", rows.len()))),
    }
}

/// Looks up the keys of a commit and commits it.
fn deposit(store: &Store, prepared: &Prepared) -> Result<()> {
    let known = store.get_many::<Coins>(&prepared.coins).map_err(failed)?.into_iter().flatten().count()
        + store.get_many::<Deposits>(&prepared.deposits).map_err(failed)?.into_iter().flatten().count();
    if known > 0 {
        return Err(BenchError::SetUp(format!("{known} rows exist")));
    }
    commit(store, &prepared.changes)
}

/// Marks the deposits of a commit as aggregated.
fn aggregate(store: &Store, deposits: &[DepositKey], wtid: Wtid) -> Result<()> {
    let mut changes = ChangeSet::new();
    for (key, stored) in deposits.iter().zip(store.get_many::<Deposits>(deposits).map_err(failed)?) {
        let stored = stored.ok_or_else(|| BenchError::SetUp("a deposit is lost".to_owned()))?;
        let row = DepositRow { wtid: Some(wtid), ..stored.row.clone() };
        changes.update_read::<Deposits>(key, (&stored.row, Some(stored.version)), &row);
    }
    commit(store, &changes)
}

fn open(args: &HistoryArgs, dir: &Path) -> Result<Store> {
    let options = Options { index_hot_bytes: args.index_memory << 20, ..Options::default() };
    EmbeddedStore::open(dir, ALL, options).map(Store::new).map_err(failed)
}

fn measure(args: &HistoryArgs, context: &Context) -> Result<History> {
    let place = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    check_space(args, &place)?;
    let dir = tempfile::Builder::new().prefix("batzen-history-").tempdir_in(&place);
    let dir = dir.map_err(BenchError::io(&place))?;
    let dir = dir.path();
    let source = Source::new(args.seed);
    let mut store = open(args, dir)?;
    let mut open_deposits: VecDeque<(Vec<DepositKey>, Wtid)> = VecDeque::new();
    let part = args.coins.div_ceil(RATE_PARTS).max(args.batch);
    let (mut points, mut parts): (Vec<HistoryPoint>, Vec<Work>) = (Vec::new(), Vec::new());
    let (mut since_point, mut since_part) = (Work::default(), Work::default());
    let bar = Progress::new(context.shows_progress).bar("committing coins", args.coins);
    let mut done = 0;
    while done < args.coins {
        context.go_on()?;
        let milestone = MILESTONES.iter().copied().find(|&milestone| milestone > done);
        let end = (done + args.batch).min(args.coins).min(milestone.unwrap_or(u64::MAX));
        let prepared = prepare(args, &source, done..end);
        let (begin, begin_cpu) = (Instant::now(), thread_cpu_time());
        deposit(&store, &prepared)?;
        if args.aggregate {
            open_deposits.push_back((prepared.deposits, source.transfer(done)));
            if open_deposits.len() > OPEN_COMMITS
                && let Some((deposits, wtid)) = open_deposits.pop_front()
            {
                aggregate(&store, &deposits, wtid)?;
            }
        }
        let work = Work {
            coins: end - done,
            wall: begin.elapsed(),
            cpu: thread_cpu_time().saturating_sub(begin_cpu),
        };
        since_point.add(work);
        since_part.add(work);
        done = end;
        bar.set(done);
        if since_part.coins >= part || done == args.coins {
            // A short rest at the end belongs to the part before it.
            if since_part.coins >= part / 2 || parts.is_empty() {
                parts.push(since_part);
            }
            since_part = Work::default();
        }
        if done == args.coins || MILESTONES.contains(&done) {
            bar.say(format!("measuring {} coins", numbers::short(done as f64)));
            let point;
            (store, point) = measure_point(args, dir, store, &source, (done, since_point))?;
            points.push(point);
            since_point = Work::default();
            bar.say("committing coins".to_owned());
        }
    }
    store.close().map_err(failed)?;
    drop(bar);
    let (first, last) = (parts.first().copied(), parts.last().copied());
    let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
    let growth = |first: &HistoryPoint, last: &HistoryPoint| {
        let coins = last.coins - first.coins;
        (coins > 0).then(|| (last.index_memory_bytes as f64 - first.index_memory_bytes as f64) / coins as f64)
    };
    let index_memory_bytes_per_coin =
        points.first().zip(points.last()).and_then(|(first, last)| growth(first, last));
    Ok(History {
        machine: Machine::detect(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        batch: args.batch,
        aggregate: args.aggregate,
        index_memory_mib: args.index_memory,
        points,
        first_coins_per_s: first.coins_per_s(),
        last_coins_per_s: last.coins_per_s(),
        first_cpu_us_per_coin: first.cpu_us_per_coin(),
        last_cpu_us_per_coin: last.cpu_us_per_coin(),
        index_memory_bytes_per_coin,
    })
}

fn check_space(args: &HistoryArgs, place: &Path) -> Result<()> {
    let stat = rustix::fs::statvfs(place).map_err(|error| BenchError::io(place)(error.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = args.coins * if args.aggregate { AGGREGATED_COIN_BYTES } else { COIN_BYTES };
    if free < needed {
        let (needed, free) = (numbers::gigabytes(needed), numbers::gigabytes(free));
        return Err(BenchError::Usage(format!(
            "{} has {free} GiB free, and {} coins need about {needed} GiB: see --dir and --coins",
            place.display(),
            numbers::count(args.coins)
        )));
    }
    Ok(())
}

/// Measures the store, and opens it again.
fn measure_point(
    args: &HistoryArgs,
    dir: &Path,
    store: Store,
    source: &Source,
    (coins, work): (u64, Work),
) -> Result<(Store, HistoryPoint)> {
    let rss_bytes = rss_bytes();
    // The thread ends with the store, so this is what it did since the last point.
    let maintenance_ns: u64 = own_threads_ns("store-maintain").values().sum();
    let mut random = Numbers::new(args.seed ^ coins);
    let mut lookups = |store: &Store, are_known: bool| {
        let number = |_| if are_known { random.draw() % coins } else { coins + random.draw() % coins };
        let numbers: Vec<u64> = (0..args.lookups).map(number).collect();
        lookup(store, source, &numbers, are_known)
    };
    let unknown = lookups(&store, false)?;
    let known = lookups(&store, true)?;
    // As if the process were killed.
    drop(store);
    forget_pages(dir)?;
    let begin = Instant::now();
    let store = open(args, dir)?;
    let recovery_ms = ms(begin.elapsed());
    store.close().map_err(failed)?;
    drop(store);
    forget_pages(dir)?;
    let begin = Instant::now();
    let store = open(args, dir)?;
    let restart_ms = ms(begin.elapsed());
    forget_pages(dir)?;
    let cold = lookups(&store, true)?;
    let stats = store.stats();
    let point = HistoryPoint {
        coins,
        coins_per_s: work.coins_per_s(),
        cpu_us_per_coin: work.cpu_us_per_coin(),
        maintenance_cpu_us_per_coin: us(Duration::from_nanos(maintenance_ns)) / work.coins as f64,
        rss_bytes,
        index_memory_bytes: stats.index_bytes,
        index_file_bytes: stats.index_file_bytes,
        disk_bytes: disk_bytes(dir)?,
        recovery_ms,
        restart_ms,
        unknown,
        known,
        cold,
    };
    Ok((store, point))
}

fn lookup(store: &Store, source: &Source, numbers: &[u64], are_known: bool) -> Result<LookupTimes> {
    let mut times = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let key = source.coin(number).key;
        let begin = Instant::now();
        let found = store.get::<Coins>(&key).map_err(failed)?;
        times.push(begin.elapsed());
        if found.is_some() != are_known {
            return Err(BenchError::SetUp(format!("coin {number} is found: {}", found.is_some())));
        }
    }
    times.sort_unstable();
    let quantile = |percent: usize| {
        let at = (times.len() * percent / 100).min(times.len() - 1);
        (times[at].as_secs_f64() * 1e7).round() / 10.0
    };
    Ok(LookupTimes { p50_us: quantile(50), p99_us: quantile(99) })
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(BenchError::io(dir))?;
    entries.map(|entry| Ok(entry.map_err(BenchError::io(dir))?.path())).collect()
}

fn disk_bytes(dir: &Path) -> Result<u64> {
    let size = |path: &PathBuf| Ok(std::fs::metadata(path).map_err(BenchError::io(path))?.len());
    files(dir)?.iter().map(size).sum()
}

/// Empties the page cache of a store's files.
fn forget_pages(dir: &Path) -> Result<()> {
    for path in files(dir)? {
        let file = File::open(&path).map_err(BenchError::io(&path))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| BenchError::io(&path)(error.into()))?;
    }
    Ok(())
}

/// The resident memory of this process, in bytes; 0 if the kernel does not say.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}

fn table(history: &History) -> String {
    let mut text = format!(
        "{} coins a commit, {} MiB for index entries\n\n{:<36}",
        numbers::count(history.batch),
        numbers::count(history.index_memory_mib),
        "coins"
    );
    let points = &history.points;
    for point in points {
        let _ = write!(text, " {:>12}", numbers::count(point.coins));
    }
    let mut line = |what: &str, value: &dyn Fn(&HistoryPoint) -> f64| {
        let _ = write!(text, "\n{what:<36}");
        for point in points {
            let _ = write!(text, " {:>12}", numbers::number(value(point)));
        }
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    line("coins per second since the last", &|point| point.coins_per_s);
    line("processor time per coin (µs)", &|point| point.cpu_us_per_coin);
    line("the same of maintenance (µs)", &|point| point.maintenance_cpu_us_per_coin);
    line("memory of the process (MiB)", &|point| mib(point.rss_bytes));
    line("memory of the indexes (MiB)", &|point| mib(point.index_memory_bytes));
    line("index files (bytes a coin)", &|point| point.index_file_bytes as f64 / point.coins as f64);
    line("all files (bytes a coin)", &|point| point.disk_bytes as f64 / point.coins as f64);
    line("start after a kill (ms)", &|point| point.recovery_ms);
    line("start after closing (ms)", &|point| point.restart_ms);
    line("look up an unknown coin, p50 (µs)", &|point| point.unknown.p50_us);
    line("look up an unknown coin, p99 (µs)", &|point| point.unknown.p99_us);
    line("look up a coin, p50 (µs)", &|point| point.known.p50_us);
    line("look up a coin, p99 (µs)", &|point| point.known.p99_us);
    line("the same from the disk, p50 (µs)", &|point| point.cold.p50_us);
    line("the same from the disk, p99 (µs)", &|point| point.cold.p99_us);
    let (first, last) = (history.first_coins_per_s, history.last_coins_per_s);
    let _ = write!(
        text,
        "\n\ncoins per second: {} in the first twentieth, {} in the last ({} times)\n",
        numbers::number(first),
        numbers::number(last),
        numbers::ratio(last / first)
    );
    let (first, last) = (history.first_cpu_us_per_coin, history.last_cpu_us_per_coin);
    let _ = writeln!(
        text,
        "processor time per coin (µs): {} in the first twentieth, {} in the last",
        numbers::number(first),
        numbers::number(last)
    );
    if let Some(bytes) = history.index_memory_bytes_per_coin {
        let _ = writeln!(text, "memory of the indexes: {} bytes more for each coin", numbers::number(bytes));
    }
    text
}
