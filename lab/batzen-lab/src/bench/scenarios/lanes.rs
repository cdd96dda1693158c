//! `batzen-lab bench lanes`: what the core of an exchange can do with one and with several lanes. Payments are
//! prepared and count as verified; each lane loads, decides and commits its share on one embedded store, as
//! under load. There is no HTTP, no cryptography, and no queue between.

use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use batzen_cli_support::numbers;
use batzen_engine::{Batcher, LANES_MAX, Rules as _};
use batzen_exchange::rules::{Command, ExchangeRules};
use batzen_store::VSHARD_COUNT;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::fill;
use super::workers::{InProcessExchange, RunDirectory};
use crate::bench::error::Result;
use crate::bench::load::meter::thread_cpu_time;
use crate::bench::load::progress::Progress;
use crate::bench::load::random::Numbers;
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::bench::results::words::line;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::options::RunOptions;

/// Payments come from this many merchants in turn.
pub(super) const MERCHANTS: u64 = 1_000;

/// A run uses fewer random numbers than two to this power.
const SEED_BITS: u32 = 40;

/// Arguments of `batzen-lab bench lanes`.
#[derive(Args, Clone, Debug)]
pub struct LanesArgs {
    /// Numbers of lanes to compare
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8", value_parser = lanes)]
    pub(crate) lanes: Vec<usize>,
    /// Coins in each run
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) coins: u64,
    /// Coins in a payment
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) coins_per_payment: Vec<u64>,
    /// Payments in a batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=2_048))]
    pub(crate) batch: u64,
    /// Runs of each kind, in turn; the one in the middle counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) rounds: u32,
    /// Directory of the store, on the disk to measure [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<std::path::PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn lanes(text: &str) -> Result<usize, String> {
    let lanes = text.parse().ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
    lanes.ok_or_else(|| format!("a number from 1 to {LANES_MAX}"))
}

/// One kind of run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LanesRow {
    pub(crate) coins_per_payment: u64,
    pub(crate) lanes: usize,
    /// Coins deposited per second.
    pub(crate) coins_per_s: f64,
    /// Divided by the rate of the first number of lanes.
    pub(crate) ratio: f64,
    /// CPU time of the lanes for a coin, in microseconds.
    pub(crate) lane_cpu_us_per_coin: f64,
    /// The part of it in which only one lane can run, in microseconds.
    pub(crate) serial_cpu_us_per_coin: f64,
    /// Batches that became durable with one write.
    pub(crate) batches_per_frame: f64,
    /// The share of its time in which a lane waited: for the disk, for others, for a processor.
    pub(crate) waiting_share: f64,
    /// Batches that ran again because another lane had changed one of their rows.
    pub(crate) conflicts: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LanesResult {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The version of the program.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    pub(crate) commit: String,
    /// Coins in each run.
    pub(crate) coins: u64,
    /// Payments in a batch.
    pub(crate) batch: u64,
    /// Runs of each kind.
    pub(crate) rounds: u32,
    /// One row for each kind of run.
    pub(crate) rows: Vec<LanesRow>,
}

/// Runs the measurement.
///
/// # Errors
/// When the store cannot be used, or a payment is refused.
pub fn run(args: &LanesArgs, context: &Context) -> Result<ExitCode> {
    let result = measure(args, context)?;
    output::print(&if args.json { output::json(&result) } else { table(&result) })?;
    Ok(ExitCode::SUCCESS)
}

/// Measures without printing.
pub(crate) fn measure(args: &LanesArgs, context: &Context) -> Result<LanesResult> {
    let place = super::temporary("batzen-lanes-", args.dir.as_deref())?;
    let options = RunOptions::unpinned(place.path().join("run"));
    let run_dir = RunDirectory::new("lanes", &options)?;
    let exchange = InProcessExchange::start(&run_dir, "http://127.0.0.1:9/".to_owned(), None)?;
    let kinds: Vec<(u64, usize)> = args
        .coins_per_payment
        .iter()
        .flat_map(|&coins| args.lanes.iter().map(move |&n| (coins, n)))
        .collect();
    let mut runs: Vec<Vec<LanesRow>> = vec![Vec::new(); kinds.len()];
    let progress = Progress::new(context.shows_progress);
    let bar = progress.bar("lanes", u64::from(args.rounds) * kinds.len() as u64);
    let mut seed = 0;
    for _ in 0..args.rounds {
        for (&(coins, lanes), runs) in kinds.iter().zip(&mut runs) {
            context.go_on()?;
            seed += 1;
            runs.push(one_run(&exchange, args, (coins, lanes), seed)?);
            bar.set(seed);
        }
    }
    let mut rows: Vec<LanesRow> = runs.into_iter().map(middle).collect();
    for group in rows.chunk_by_mut(|a, b| a.coins_per_payment == b.coins_per_payment) {
        let base = group[0].coins_per_s;
        group.iter_mut().for_each(|row| row.ratio = row.coins_per_s / base);
    }
    Ok(LanesResult {
        machine: Machine::detect(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        coins: args.coins,
        batch: args.batch,
        rounds: args.rounds,
        rows,
    })
}

/// The run in the middle by its rate.
pub(super) fn middle(mut runs: Vec<LanesRow>) -> LanesRow {
    runs.sort_by(|a, b| a.coins_per_s.total_cmp(&b.coins_per_s));
    runs.swap_remove(runs.len() / 2)
}

/// The resources that a lane used.
struct Used {
    cpu: Duration,
    wall: Duration,
}

fn one_run(
    exchange: &InProcessExchange,
    args: &LanesArgs,
    (coins_per_payment, lanes): (u64, usize),
    seed: u64,
) -> Result<LanesRow> {
    let mut random = random(seed);
    let commands = fill::payments(args.coins, coins_per_payment, MERCHANTS, &mut random);
    let batch = usize::try_from(args.batch).unwrap_or(usize::MAX);
    decide(exchange, commands, LanesRun { coins: args.coins, coins_per_payment, lanes, batch })
}

/// Random numbers of a run. Consecutive seeds alone would give nearly the same numbers.
pub(super) fn random(seed: u64) -> Numbers {
    Numbers::new(seed << SEED_BITS)
}

/// The shape of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LanesRun {
    /// Coins in all commands.
    pub(crate) coins: u64,
    /// Coins in a command.
    pub(crate) coins_per_payment: u64,
    pub(crate) lanes: usize,
    /// Commands in a batch.
    pub(crate) batch: usize,
}

/// Decides commands in several lanes.
pub(super) fn decide(
    exchange: &InProcessExchange,
    commands: impl Iterator<Item = Command>,
    run: LanesRun,
) -> Result<LanesRow> {
    let LanesRun { coins, coins_per_payment, lanes, batch } = run;
    let store = &exchange.app().core.store;
    let mut shares: Vec<Vec<Command>> = vec![Vec::new(); lanes];
    for command in commands {
        let key = exchange.app().core.rules.owner(&command).unwrap_or_default();
        let shard = usize::from(store.backend().vshard(key));
        shares[shard * lanes / usize::from(VSHARD_COUNT)].push(command);
    }
    exchange.settle()?;
    let batchers: Vec<Batcher<ExchangeRules>> = (0..lanes).map(|_| exchange.filler()).collect();
    let before = store.stats();
    let start = Barrier::new(lanes + 1);
    let (used, wall) = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .zip(&batchers)
            .map(|(commands, batcher)| scope.spawn(|| lane(&start, batcher, commands, batch)))
            .collect();
        start.wait();
        let begin = Instant::now();
        let used: Result<Vec<Used>> =
            threads.into_iter().map(|thread| thread.join().expect("a lane does not panic")).collect();
        (used, begin.elapsed())
    });
    let used = used?;
    let after = store.stats();
    let coins = coins as f64;
    let cpu: Duration = used.iter().map(|used| used.cpu).sum();
    let lane_wall: Duration = used.iter().map(|used| used.wall).sum();
    let serial_us = (after.serial_cpu_us_total - before.serial_cpu_us_total) as f64;
    Ok(LanesRow {
        coins_per_payment,
        lanes,
        coins_per_s: coins / wall.as_secs_f64(),
        ratio: 1.0,
        lane_cpu_us_per_coin: cpu.as_secs_f64() * 1e6 / coins,
        serial_cpu_us_per_coin: serial_us / coins,
        batches_per_frame: (after.commits_total - before.commits_total) as f64
            / (after.frames_total - before.frames_total).max(1) as f64,
        waiting_share: 1.0 - cpu.as_secs_f64() / lane_wall.as_secs_f64(),
        conflicts: batchers.iter().map(|batcher| batcher.metrics().snapshot().conflicts).sum(),
    })
}

/// Runs one lane's share.
fn lane(
    start: &Barrier,
    batcher: &Batcher<ExchangeRules>,
    commands: &[Command],
    batch: usize,
) -> Result<Used> {
    start.wait();
    let (begin, cpu) = (Instant::now(), thread_cpu_time());
    for batch in commands.chunks(batch) {
        fill::decide(batcher, batch)?;
    }
    Ok(Used { cpu: thread_cpu_time().saturating_sub(cpu), wall: begin.elapsed() })
}

fn table(result: &LanesResult) -> String {
    let mut text = format!(
        "{} coins a run, {} payments a batch, the middle of {} runs; {}, {} cores\n\n",
        numbers::number(result.coins as f64),
        result.batch,
        result.rounds,
        result.machine.model,
        result.machine.cores,
    );
    let widths = [6, 11, 6, 14, 16, 15, 8, 9];
    let head = "lanes,coins/s,ratio,CPU µs a coin,serial µs a coin,batches a write,waiting,conflicts";
    line(&mut text, "  coins", &widths, head.split(','));
    for row in &result.rows {
        let figures = [
            row.lanes.to_string(),
            numbers::number(row.coins_per_s),
            format!("{:.2}", row.ratio),
            format!("{:.2}", row.lane_cpu_us_per_coin),
            format!("{:.2}", row.serial_cpu_us_per_coin),
            format!("{:.2}", row.batches_per_frame),
            format!("{:.0}%", 100.0 * row.waiting_share),
            row.conflicts.to_string(),
        ];
        line(&mut text, &format!("{:>7}", row.coins_per_payment), &widths, figures);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_in_the_middle_counts() {
        let row = |coins_per_s| LanesRow {
            coins_per_payment: 1,
            lanes: 1,
            coins_per_s,
            ratio: 1.0,
            lane_cpu_us_per_coin: 1.0,
            serial_cpu_us_per_coin: 1.0,
            batches_per_frame: 1.0,
            waiting_share: 0.0,
            conflicts: 0,
        };
        assert_eq!(middle(vec![row(3.0), row(1.0), row(2.0)]), row(2.0));
        assert_eq!(middle(vec![row(7.0)]), row(7.0));
    }

    #[test]
    fn numbers_of_lanes_are_checked() {
        assert_eq!(lanes("4"), Ok(4));
        for wrong in ["0", "65", "x"] {
            assert!(lanes(wrong).is_err(), "{wrong}");
        }
    }
}
