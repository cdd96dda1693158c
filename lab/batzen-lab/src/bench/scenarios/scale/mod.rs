//! `batzen-lab bench scale`: what more cores would do. Coins are withdrawn and deposited at an exchange on one, two, … cores;
//! the universal scalability law is fitted to the rates and projected to larger machines, and the stages' serial parts
//! bound it.
//!
//! `law` and `projection` are pure functions of the measurements that this module makes. `text` prints, `plot`
//! draws.

pub(crate) mod law;
mod plot;
pub(crate) mod projection;
pub(crate) mod result;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use batzen_exchange::config::ExchangeConfig;
use clap::Args;

use super::lanes::{self, LanesRow, LanesRun};
use super::workers::{InProcessExchange, RunDirectory};
use super::{fill, wallets, world};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{Cores, allowed};
use crate::bench::load::progress::Progress;
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::bench::results::result::{LimitedBy, RunResult};
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::CipherArgs;
use crate::bench::scenarios::database::StoreOptions;
use crate::bench::scenarios::options::{LoadOptions, RunOptions, duration, measured_duration};
use crate::bench::scenarios::target::TargetOptions;
use law::{Law, Point, identified};
use projection::{COMMIT, Growth, Model, Projection, Stage};
use result::{Basis, Goal, ScaleKind, ScaleResult, ScaleRun};

/// Machines that are projected.
const PROJECTED_CORES: [u32; 4] = [8, 16, 32, 64];
/// Our goals, by coins in a request: coins per second on at most [`GOAL_CORES`] cores.
const GOALS: [(u32, f64); 2] = [(10, 100_000.0), (1, 60_000.0)];
const GOAL_CORES: u32 = 12;
/// No stage shall saturate below this many coins per second.
const GOAL_CEILING: f64 = 250_000.0;
/// Rates are those of the clock only if other programs used less than this share of the server's cores, and a hypervisor
/// less than the other.
const FOREIGN_SHARE_MAX: f64 = 0.05;
const STOLEN_SHARE_MAX: f64 = 0.01;
/// Coins in a batch of the runs without HTTP. As many gather while a busy store waits for its disk.
const BATCH_COINS: u64 = 512;
/// Reserves of these runs.
const RESERVES: u64 = 1_000;
/// More lanes are not compared.
const LANES_COMPARED_MAX: usize = 8;

/// Arguments of `batzen-lab bench scale`.
#[derive(Args, Clone, Debug)]
pub struct ScaleArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Numbers of cores of the server [default: 1, 2, 4, … and all]. The load generator has the others, and shares all of
    /// them if none is left
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_024))]
    cores: Vec<u32>,
    /// Coins in a request
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10", value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,
    /// Connections for each core of the server
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Runs of each kind, in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Length of the measured part of a run: seconds, or with a unit (500ms, 2m)
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = measured_duration)]
    duration: Duration,
    /// Length of the warm-up before it
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration)]
    warmup: Duration,
    /// Prepare this many coins for a run instead of estimating how many are needed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    coins: Option<u64>,
    /// Coins in each run that measures the lanes alone
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    lane_coins: u64,
    /// Directory of the stores, on the disk to measure [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also write a page with a plot of each projection
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
///
/// # Errors
/// When a service cannot be measured, or requests fail.
pub fn run(args: &ScaleArgs, context: &Context) -> Result<ExitCode> {
    let result = measure(args, context)?;
    if let Some(path) = &args.plot {
        output::replace_file(path, &plot::page(&result))?;
    }
    output::print(&if args.json { output::json(&result) } else { text::table(&result) })?;
    Ok(ExitCode::SUCCESS)
}

/// 1, 2, 4, … and all cores.
fn default_cores(all: u32) -> Vec<u32> {
    let mut cores: Vec<u32> = (0..).map(|power| 1 << power).take_while(|cores| *cores < all).collect();
    cores.push(all.max(1));
    cores
}

fn measure(args: &ScaleArgs, context: &Context) -> Result<ScaleResult> {
    let all = allowed();
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let mut cores = if args.cores.is_empty() { default_cores(count) } else { args.cores.clone() };
    cores.sort_unstable();
    cores.dedup();
    if let Some(many) = cores.iter().find(|cores| **cores > count) {
        return Err(BenchError::Usage(format!("--cores {many}: this process may use {count} only")));
    }
    let place = super::temporary("batzen-scale-", args.dir.as_deref())?;
    let mut kinds: Vec<(u32, Vec<ScaleRun>)> = args.batch.iter().map(|batch| (*batch, Vec::new())).collect();
    let total = args.rounds as usize * kinds.len() * cores.len();
    let mut done = 0;
    for round in 1..=args.rounds {
        for (batch, runs) in &mut kinds {
            for &cores in &cores {
                done += 1;
                if context.shows_progress {
                    eprintln!("run {done} of {total}: {}", shape(*batch, cores));
                }
                let dir = place.path().join(format!("run-{done}"));
                runs.push(one_run(args, (round, *batch, cores), &all, &dir, context)?);
                // A store of each run would fill the disk.
                let _ = std::fs::remove_dir_all(&dir);
            }
        }
    }
    let lanes = lanes_alone(args, &place.path().join("lanes"), all.len(), context)?;
    let kinds: Vec<ScaleKind> = kinds
        .into_iter()
        .zip(lanes)
        .map(|((batch, runs), lanes)| kind(batch, runs, lanes))
        .collect::<Result<_, _>>()?;
    let remarks = remarks(&kinds);
    Ok(ScaleResult {
        machine: Machine::detect(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        cipher: args.cipher.cipher().to_string(),
        rounds: args.rounds,
        clients_per_core: args.clients,
        kinds,
        remarks,
    })
}

fn shape(batch: u32, cores: u32) -> String {
    format!("{cores} {}, {}", if cores == 1 { "core" } else { "cores" }, text::coins(batch))
}

/// Measures an exchange on `cores` of the cores; the load generator has the rest, or shares all.
fn one_run(
    args: &ScaleArgs,
    (round, batch, cores): (u32, u32, u32),
    all: &[usize],
    dir: &Path,
    context: &Context,
) -> Result<ScaleRun> {
    let (server, rest) = all.split_at(cores as usize);
    let is_shared = rest.is_empty();
    let load = LoadOptions {
        clients: Some(args.clients.saturating_mul(cores).min(CLIENTS_MAX)),
        rate: None,
        duration: args.duration,
        warmup: args.warmup,
        with_workers: false,
        with_auditor: false,
        supply: args.coins,
        seed: 1,
        nodes: 1,
        store: StoreOptions::default(),
        target: TargetOptions::default(),
    };
    let options = RunOptions {
        server_cores: Some(Cores(server.to_vec())),
        client_cores: Some(Cores(if is_shared { all } else { rest }.to_vec())),
        out: Some(dir.to_owned()),
        keep_world: false,
        json: true,
    };
    let result = wallets::cycle(args.cipher.cipher(), batch as usize, &load, &options, context)?.result;
    if let Some((reason, count)) = result.errors.iter().next() {
        return Err(BenchError::WrongAnswer(format!("{}: {count} times: {reason}", shape(batch, cores))));
    }
    Ok(ScaleRun { round, ..scale_run(&result, cores, is_shared) })
}

/// Connections of a load generator, at most.
const CLIENTS_MAX: u32 = 10_000;

fn scale_run(result: &RunResult, cores: u32, is_shared: bool) -> ScaleRun {
    let extra = |name: &str| result.extra.get(name).copied().unwrap_or(0.0);
    ScaleRun {
        round: 1,
        cores,
        is_shared,
        coins_per_s: result.ops_per_s,
        limited_by: result.limited_by,
        cpu_us_per_coin: result.cpu_us_per_op.unwrap_or(0.0),
        cpu_us_per_coin_by_stage: result.cpu_us_per_op_by_stage.clone(),
        serial_cpu_us_per_coin: extra("serial_cpu_us_per_op"),
        coins_per_frame: extra("ops_per_frame"),
        foreign_share: extra("foreign_share_of_server_cores"),
        stolen_share: extra("stolen_share_of_server_cores"),
    }
}

/// Withdrawals and deposits in one and in several lanes, without HTTP, cryptography and queues: for each number of coins
/// in a request, a row for each number of lanes.
fn lanes_alone(args: &ScaleArgs, dir: &Path, cores: usize, context: &Context) -> Result<Vec<Vec<LanesRow>>> {
    let run_dir = RunDirectory::new("scale", &RunOptions::unpinned(dir.to_owned()))?;
    let exchange = InProcessExchange::start(&run_dir, "http://127.0.0.1:9/".to_owned(), None)?;
    let reserves = fill::reserves(&exchange, RESERVES, &mut lanes::random(0))?;
    let lanes: Vec<usize> = (0..)
        .map(|power| 1 << power)
        .take_while(|lanes| *lanes <= cores.clamp(1, LANES_COMPARED_MAX))
        .collect();
    let mut runs: Vec<Vec<Vec<LanesRow>>> = vec![vec![Vec::new(); lanes.len()]; args.batch.len()];
    let steps = u64::from(args.rounds) * (args.batch.len() * lanes.len()) as u64;
    let bar = Progress::new(context.shows_progress).bar("lanes alone", steps);
    let mut seed = 0;
    for _ in 0..args.rounds {
        for (&batch, runs) in args.batch.iter().zip(&mut runs) {
            for (&lanes, runs) in lanes.iter().zip(runs) {
                context.go_on()?;
                seed += 2;
                let coins_per_payment = u64::from(batch);
                let (mut for_coins, mut for_payments) = (lanes::random(seed), lanes::random(seed + 1));
                let coins = args.lane_coins;
                let withdrawals = fill::withdrawals(coins, coins_per_payment, &reserves, &mut for_coins);
                let payments = fill::payments(coins, coins_per_payment, lanes::MERCHANTS, &mut for_payments);
                let commands =
                    withdrawals.zip(payments).flat_map(|(withdrawal, payment)| [withdrawal, payment]);
                let batch = usize::try_from((BATCH_COINS / coins_per_payment).max(1)).unwrap_or(usize::MAX);
                runs.push(lanes::decide(
                    &exchange,
                    commands,
                    LanesRun { coins, coins_per_payment, lanes, batch },
                )?);
                bar.step();
            }
        }
    }
    let rows = runs.into_iter().map(|runs| {
        let mut rows: Vec<LanesRow> = runs.into_iter().map(lanes::middle).collect();
        let base = rows[0].coins_per_s;
        rows.iter_mut().for_each(|row| row.ratio = row.coins_per_s / base);
        rows
    });
    Ok(rows.collect())
}

/// Fits and projects.
fn kind(batch: u32, runs: Vec<ScaleRun>, lanes: Vec<LanesRow>) -> Result<ScaleKind> {
    let basis = if runs.iter().all(is_undisturbed) { Basis::Clock } else { Basis::Cpu };
    let points: Vec<Point> = runs.iter().map(|run| point(run, basis)).collect();
    let unfit = || BenchError::SetUp("a run completed no coins, so nothing can be projected".to_owned());
    let law = Law::fit(&points).ok_or_else(unfit)?;
    let rounds = runs.iter().map(|run| run.round).max().unwrap_or(1);
    let round_laws = (1..=rounds)
        .filter_map(|round| {
            let of_round = runs.iter().zip(&points).filter(|(run, _)| run.round == round);
            Law::fit(&of_round.map(|(_, point)| *point).collect::<Vec<_>>())
        })
        .collect();
    let stages = stages(&runs, &lanes);
    let model = Model { law, rounds: round_laws, stages, lanes_on };
    let largest = PROJECTED_CORES[PROJECTED_CORES.len() - 1];
    Ok(ScaleKind {
        coins_per_request: batch,
        basis,
        identified: identified(&points),
        law,
        law_error: law.error(&points),
        serial_share: model.serial_share(),
        ceilings: model.stages.iter().filter_map(|stage| model.ceiling(stage, largest)).collect(),
        projections: PROJECTED_CORES.into_iter().map(|cores| model.project(cores)).collect(),
        goals: goals(batch, &model, largest),
        round_laws: model.rounds,
        stages: model.stages,
        runs,
        lanes,
    })
}

/// Returns whether the clock tells what the server can do on its cores.
fn is_undisturbed(run: &ScaleRun) -> bool {
    !run.is_shared
        && run.limited_by == LimitedBy::Server
        && run.foreign_share <= FOREIGN_SHARE_MAX
        && run.stolen_share <= STOLEN_SHARE_MAX
}

fn point(run: &ScaleRun, basis: Basis) -> Point {
    let cores = f64::from(run.cores);
    let coins_per_s = match basis {
        Basis::Clock => run.coins_per_s,
        Basis::Cpu if run.cpu_us_per_coin > 0.0 => cores * 1e6 / run.cpu_us_per_coin,
        Basis::Cpu => 0.0,
    };
    Point { cores, coins_per_s }
}

/// Returns the number of lanes that an exchange has by default.
fn lanes_on(cores: usize) -> usize {
    ExchangeConfig::local(world::currency(), Path::new(""), 0).lanes_on(cores)
}

/// The stages on the largest number of cores, each the median of the rounds; and the serial part of commits, in batches
/// that are as large as under high load.
fn stages(runs: &[ScaleRun], lanes: &[LanesRow]) -> Vec<Stage> {
    let most = runs.iter().map(|run| run.cores).max().unwrap_or(1);
    let largest: Vec<&ScaleRun> = runs.iter().filter(|run| run.cores == most).collect();
    let of = |name: &str| {
        let by_stage = |run: &&ScaleRun| run.cpu_us_per_coin_by_stage.get(name).copied().unwrap_or(0.0);
        median(largest.iter().map(by_stage).collect())
    };
    let serial = lanes.last().map_or(0.0, |row| row.serial_cpu_us_per_coin);
    [
        ("http", of("http"), Growth::Cores),
        ("cpu", of("cpu"), Growth::Cores),
        ("lane", of("lane"), Growth::Lanes),
        (COMMIT, serial, Growth::Alone),
        ("store", of("store"), Growth::Alone),
        ("other", of("other"), Growth::Cores),
    ]
    .map(|(name, cpu_us_per_coin, growth)| Stage { name: name.to_owned(), cpu_us_per_coin, growth })
    .to_vec()
}

/// The value in the middle; of an even number, the lower of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

fn goals(batch: u32, model: &Model, largest: u32) -> Vec<Goal> {
    let rates = GOALS.into_iter().filter(|(coins, _)| *coins == batch).map(|(_, coins_per_s)| {
        let projection = model.project(GOAL_CORES);
        let figures: [fn(&Projection) -> f64; 3] =
            [|at| at.coins_per_s, |at| at.low_coins_per_s, |at| at.high_coins_per_s];
        Goal {
            coins_per_s,
            is_reached: projection.coins_per_s >= coins_per_s,
            projection: Some(projection),
            ceiling: None,
            cores_needed: figures.map(|figure| model.cores_for(coins_per_s, figure)),
        }
    });
    let ceiling = model.lowest_ceiling(largest);
    let stages = Goal {
        coins_per_s: GOAL_CEILING,
        projection: None,
        is_reached: ceiling.as_ref().is_none_or(|ceiling| ceiling.coins_per_s >= GOAL_CEILING),
        ceiling,
        cores_needed: [None; 3],
    };
    rates.chain([stages]).collect()
}

fn remarks(kinds: &[ScaleKind]) -> Vec<String> {
    let mut remarks = Vec::new();
    if cfg!(debug_assertions) {
        remarks.push("a debug build: the figures say nothing about speed".to_owned());
    }
    if kinds.iter().any(|kind| kind.basis == Basis::Cpu) {
        remarks.push(
            "rates of the fit are cores ÷ processor time of a coin, because server and load generator shared cores, others \
             used them, or the server was not the limit: waiting shows only in the serial part"
                .to_owned(),
        );
    }
    match kinds.iter().map(|kind| kind.identified).min() {
        Some(1) => remarks.push("one number of cores determines neither σ nor κ: both are zero".to_owned()),
        Some(2) => remarks.push("two numbers of cores do not determine κ: it is zero".to_owned()),
        _ => {}
    }
    remarks.push(
        "σ has two estimates: from the measured ratio, and the serial part as a share of a coin. The projection takes the larger, \
         low their sum with the worst round, high the ratio of the best round alone: no core waits until a stage is saturated"
            .to_owned(),
    );
    remarks.push(
        "more connections make larger batches, which cost less a coin and hide contention; memory, caches and network of \
         larger machines were not measured"
            .to_owned(),
    );
    remarks
}

#[cfg(test)]
mod tests;
