//! A switch under load: complete transfers per second between simulated participants (class T+).
//!
//! One financial transaction (FT) is a complete transfer leg: the payer's prepare is accepted and the amount
//! reserved, the payee's fulfilment is accepted and committed, and the payer has received the callback.
//! Duplicate checks, condition verification, limits, expiration and windows are on, every acknowledgement is
//! durable, and a settlement window is closed in the middle of the run.

mod process;
mod target;
mod usage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::participants::hub::{self, Hub, Onboarding};
use crate::participants::{Fsps, FspsConfig, Load, Mix, Report, Schedule};
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::Context;
use super::workers::{Shape, blank};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{self, Placement};
use crate::bench::load::progress::Progress;
use crate::bench::results::result::{
    self, BytesPerOp, KindResult, Latency, LimitedBy, Run, RunResult, Sample,
};
use crate::bench::scenarios::options::{RunOptions, duration, measured_duration};
use crate::bench::scenarios::target::check_run;

pub(crate) use process::SwitchProcess;
use target::TargetSwitch;
use usage::{Usage, Watcher};

/// The currency of the transfers.
const CURRENCY: &str = "USD";
/// The settlement model.
const MODEL: &str = "deferred-net";
/// The largest amount in hundredths.
const CENTS_MAX: u64 = 10_000;
/// The funds and the debt limit of every participant: high enough that no limit is reached, though each is
/// checked.
const FUNDS_CENTS: u64 = 1_000_000_000_000;
/// Time that a transfer may take before it expires.
const EXPIRATION: Duration = Duration::from_secs(30);
/// Time to wait for the last transfers: expiration, grace, and a slow machine.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Run complete transfers on a switch: prepares, fulfilments, callbacks between simulated participants
#[derive(Args, Clone, Debug)]
pub struct SwitchArgs {
    /// The load.
    #[command(flatten)]
    pub(crate) load: SwitchLoad,
    /// The switch, if it runs already.
    #[command(flatten)]
    pub(crate) target: TargetSwitch,
    /// Where to run, and where to put the result
    #[command(flatten)]
    pub run: RunOptions,
}

/// Options of a load on a switch.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct SwitchLoad {
    /// Number of participants; pairs are random
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub(crate) participants: u16,
    /// Transfers under way at a time; in an open loop at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) in_flight: u32,
    /// Begin transfers at this rate, whatever the switch does [default: begin one whenever another has ended]
    #[arg(long, value_name = "PER-SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Length of the measured part: seconds, or with a unit (500ms, 15m)
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = measured_duration)]
    pub(crate) duration: Duration,
    /// Length of the warm-up before it
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration)]
    pub(crate) warmup: Duration,
    /// Measure this many transfers from first to last, without warm-up, instead of a fixed time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) count: Option<u64>,
    /// Connections from all participants to the switch, with one request under way on each
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Threads of the participants
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Bytes of data in the packet of a transfer
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u16).range(0..=20_000))]
    pub(crate) packet_data: u16,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.trim_end_matches("/s").parse().map_err(|_| "expected transfers per second")?;
    if (0.1..=1e7).contains(&rate) { Ok(rate) } else { Err("expected 0.1 to 10000000 a second".to_owned()) }
}

impl SwitchLoad {
    /// The participants of this load.
    #[must_use]
    pub fn participants(&self, switch: std::net::SocketAddr, currency: &str) -> FspsConfig {
        let mut config = FspsConfig::new(usize::from(self.participants), switch, currency);
        config.connections = (self.connections as usize).div_ceil(usize::from(self.participants));
        config.threads = usize::from(self.threads);
        config.packet_data = usize::from(self.packet_data);
        config.seed = Some(self.seed);
        config
    }

    /// The load on them.
    #[must_use]
    pub fn load(&self) -> Load {
        let in_flight = self.in_flight as usize;
        Load {
            schedule: match self.rate {
                None => Schedule::Closed { in_flight },
                Some(per_s) => Schedule::Open { per_s, in_flight_max: in_flight },
            },
            warmup: if self.count.is_some() { Duration::ZERO } else { self.warmup },
            duration: self.count.is_none().then_some(self.duration),
            count: self.count,
            mix: Mix::default(),
            cents_max: CENTS_MAX,
            expiration: EXPIRATION,
        }
    }

    fn parameters(&self) -> BTreeMap<String, Value> {
        let mut parameters = BTreeMap::from([
            ("participants".to_owned(), json!(self.participants)),
            ("in_flight".to_owned(), json!(self.in_flight)),
            ("connections".to_owned(), json!(self.connections)),
            ("simulator_threads".to_owned(), json!(self.threads)),
            ("packet_data_bytes".to_owned(), json!(self.packet_data)),
            ("expiration_s".to_owned(), json!(EXPIRATION.as_secs())),
            ("ids".to_owned(), json!("random UUIDs")),
            ("durability".to_owned(), json!("every acknowledgement after a synced commit")),
            ("replicas".to_owned(), json!(1)),
            ("class".to_owned(), json!("T+")),
            ("seed".to_owned(), json!(self.seed)),
        ]);
        match self.count {
            Some(count) => parameters.insert("count".to_owned(), json!(count)),
            None => {
                parameters.insert("warmup_s".to_owned(), json!(self.warmup.as_secs_f64()));
                parameters.insert("duration_s".to_owned(), json!(self.duration.as_secs_f64()))
            }
        };
        if let Some(rate) = self.rate {
            parameters.insert("rate".to_owned(), json!(rate));
        }
        parameters
    }
}

/// Puts the load on a switch that is started for it, or on one that runs already, and checks its books.
///
/// # Errors
/// When it cannot produce a result. Transfers that fail are part of the result.
pub fn run(args: &SwitchArgs, context: &Context) -> Result<Run> {
    let operators = args.target.hub()?;
    let placement = match &operators {
        Some(_) => {
            check_run(&args.run)?;
            Placement::of_client(args.run.client_cores.as_ref())?
        }
        None => Placement::choose(args.run.server_cores.as_ref(), args.run.client_cores.as_ref())?,
    };
    let path = args.run.out.clone().unwrap_or_else(|| super::default_directory("switch"));
    result::claim_directory(&path)?;
    let measured = match (&args.target.target, operators) {
        (Some(server), Some(books)) => measure_running(args, context, &placement, (server.address, &books))?,
        _ => measure_own(args, context, &placement, &path.join("world"))?,
    };
    let Measured { started, report, watched, errors } = measured;
    let mut result = result(args, &placement, context, &report, &watched);
    result.started = started;
    if let Some(server) = &args.target.target {
        target::leave_out_server(&mut result, &server.url);
    }
    if !errors.is_empty() {
        result.remarks.push("transfers failed: the figures do not count".into());
    }
    result.errors = errors;
    Ok(Run {
        path,
        result,
        series: series(&report, &watched),
        latency: result::percentile_points(&report.whole),
    })
}

/// The outcome of a load.
struct Measured {
    started: String,
    report: Report,
    watched: Usage,
    errors: BTreeMap<String, u64>,
}

/// Measures a switch that is started for this, with its files in a directory.
fn measure_own(
    args: &SwitchArgs,
    context: &Context,
    placement: &Placement,
    world: &Path,
) -> Result<Measured> {
    std::fs::create_dir_all(world).map_err(BenchError::io(world))?;
    let progress = Progress::new(context.shows_progress);
    let spinner = progress.waiting("starting the switch");
    let mut switch = SwitchProcess::start(context, world, &placement.server)?;
    let fsps = play(args.load.participants(switch.participants, CURRENCY), placement)?;
    let books = switch.hub();
    books.found(CURRENCY, MODEL).map_err(onboarding_failed)?;
    onboard(&books, &fsps, CURRENCY)?;
    drop(spinner);

    let (before, started) = (balances(&books)?, result::utc_now());
    let watched = watch(&args.load, &fsps, Some((&mut switch, &books)), context, progress)?;
    let report = fsps.end_load(DRAIN_TIME);
    switch.still_runs()?;
    let mut errors = report.failures();
    errors.extend(check(&before, &balances(&books)?, &report));
    drop(fsps);
    switch.terminate()?;
    if !args.run.keep_world {
        // Leftovers do no harm.
        let _ = std::fs::remove_dir_all(world);
    }
    Ok(Measured { started, report, watched, errors })
}

/// Measures a switch that runs already, with participants of its own names.
fn measure_running(
    args: &SwitchArgs,
    context: &Context,
    placement: &Placement,
    (address, books): (SocketAddr, &Hub),
) -> Result<Measured> {
    let progress = Progress::new(context.shows_progress);
    let spinner = progress.waiting("creating participants");
    let known = target::currency(books).map_err(onboarding_failed)?;
    let currency = known.clone().unwrap_or_else(|| CURRENCY.to_owned());
    if known.is_none() {
        books.found(&currency, MODEL).map_err(onboarding_failed)?;
    }
    let mut config = args.load.participants(address, &currency);
    target::name_afresh(&mut config);
    let fsps = play(config, placement)?;
    onboard(books, &fsps, &currency)?;
    drop(spinner);

    let started = result::utc_now();
    let watched = watch(&args.load, &fsps, None, context, progress)?;
    let report = fsps.end_load(DRAIN_TIME);
    let mut errors = report.failures();
    let checked = target::check(books, fsps.names(), &currency, &report);
    errors.extend(checked.map_err(|error| BenchError::set_up("the books of the switch", error))?);
    Ok(Measured { started, report, watched, errors })
}

/// Starts the participants on the cores of the load.
fn play(config: FspsConfig, placement: &Placement) -> Result<Fsps> {
    let started = affinity::on_cores(&placement.client, || Fsps::start(config))?;
    started.map_err(|error| BenchError::set_up("the participants", error))
}

fn onboarding_failed(error: hub::HubError) -> BenchError {
    BenchError::set_up("onboarding", error)
}

/// Creates the participants at the switch: accounts, callbacks, limits, funds.
fn onboard(books: &Hub, fsps: &Fsps, currency: &str) -> Result<()> {
    for (index, name) in fsps.names().iter().enumerate() {
        let onboarding = Onboarding {
            name,
            currency,
            callback_url: &fsps.callback_url(index),
            cap_cents: FUNDS_CENTS,
            funds_cents: FUNDS_CENTS,
        };
        books.onboard(&onboarding).map_err(onboarding_failed)?;
    }
    Ok(())
}

/// The switch's own balances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Balances {
    debits: i128,
    credits: i128,
    pending: i128,
    committed: u64,
    unfinished: u64,
}

fn balances(books: &Hub) -> Result<Balances> {
    let answer = books.get("/balances").map_err(|error| BenchError::set_up("/balances", error))?;
    let unexpected = || BenchError::WrongAnswer(format!("/balances: {answer}"));
    let mut balances = Balances::default();
    for currency in answer["currencies"].as_array().ok_or_else(unexpected)? {
        let number = |name: &str| hub::ten_thousandths(&currency[name]).ok_or_else(unexpected);
        balances.debits += number("ledgerDebits")?;
        balances.credits += number("ledgerCredits")?;
        balances.pending += number("pending")?;
    }
    for (state, count) in answer["transfers"].as_object().ok_or_else(unexpected)? {
        let count = count.as_u64().ok_or_else(unexpected)?;
        match state.as_str() {
            "COMMITTED" | "SETTLED" => balances.committed += count,
            state if state.starts_with("RE") => balances.unfinished += count,
            _ => {}
        }
    }
    Ok(balances)
}

/// Checks that the books agree with the notices to the payers.
fn check(before: &Balances, after: &Balances, report: &Report) -> BTreeMap<String, u64> {
    let mut problems = BTreeMap::new();
    let mut problem = |what: &str, count: u128| {
        if count > 0 {
            problems.insert(what.to_owned(), u64::try_from(count).unwrap_or(u64::MAX));
        }
    };
    problem("ledger: debits and credits differ", after.debits.abs_diff(after.credits));
    problem("ledger: pending amounts are left", after.pending.unsigned_abs());
    problem("transfers that are not finished", u128::from(after.unfinished));
    let committed = after.committed.saturating_sub(before.committed);
    problem(
        "committed transfers and callbacks differ",
        u128::from(committed.abs_diff(report.committed_in_all)),
    );
    problems
}

/// Observes the load, and closes a window of the run's own switch in the middle.
fn watch(
    load: &SwitchLoad,
    fsps: &Fsps,
    mut own: Option<(&mut SwitchProcess, &Hub)>,
    context: &Context,
    progress: Progress,
) -> Result<Usage> {
    let planned = load.load();
    let bar = match load.count {
        Some(count) => progress.bar("transfers", count),
        None => progress.timed("transfers", planned.warmup + load.duration),
    };
    let mut watcher = Watcher::new(own.as_ref().map(|(switch, _)| &**switch));
    let start = Instant::now();
    fsps.load(planned);
    let (mut closed, committed_before) = (false, fsps.committed());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let (elapsed, done) = (start.elapsed(), fsps.committed() - committed_before);
        own.as_mut().map_or(Ok(()), |(switch, _)| switch.still_runs())?;
        context.go_on()?;
        let (is_begun, is_half, is_over) = match load.count {
            Some(count) => (true, done * 2 >= count, done >= count || fsps.is_idle(count)),
            None => (
                elapsed >= planned.warmup,
                elapsed >= planned.warmup + load.duration / 2,
                elapsed >= planned.warmup + load.duration,
            ),
        };
        if is_begun {
            watcher.sample(is_over);
        }
        if is_half
            && !closed
            && let Some((_, books)) = &own
        {
            closed = true;
            books
                .close_window("middle of the measurement")
                .map_err(|error| BenchError::set_up("closing a window", error))?;
        }
        if is_over {
            return watcher.finish();
        }
        bar.set(load.count.map_or_else(|| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), |_| done));
    }
}

fn result(
    args: &SwitchArgs,
    placement: &Placement,
    context: &Context,
    report: &Report,
    usage: &Usage,
) -> RunResult {
    let (ops, seconds) = (report.committed, report.measured.as_secs_f64());
    let per_op = |amount: f64| if ops > 0 { amount / ops as f64 } else { 0.0 };
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let clients = args.load.in_flight as usize;
    let kind = |histogram: &Histogram<u64>| KindResult {
        ops: histogram.len(),
        ops_per_s: per_second(histogram.len()),
        latency: Latency::of(histogram),
    };
    let legs = [("prepare", &report.prepare), ("fulfil", &report.fulfil), ("whole", &report.whole)];
    let server = usage.server_cpu();
    let shape = Shape {
        scenario: "switch",
        title: format!("switch, {} participants", args.load.participants),
        unit: "FT",
        parameters: args.load.parameters(),
        remarks: Vec::new(),
    };
    let mut result = RunResult {
        load: match args.load.rate {
            None => result::Load::Closed { clients },
            Some(target_ops_per_s) => result::Load::Open { clients, target_ops_per_s },
        },
        // Prepare, forwarded prepare, fulfilment, callback.
        requests: ops * 4,
        limited_by: usage.limited_by(placement, args.target.target.is_none()),
        latency: Some(Latency::of(&report.whole)),
        bytes_per_op: Some(BytesPerOp {
            disk: per_op(usage.stored_bytes()),
            ram: per_op(usage.resident_growth()),
        }),
        client_cpu_us_per_op: Some(per_op(usage.simulators_ns() as f64 / 1e3)),
        kinds: legs.map(|(name, histogram)| (name.to_owned(), kind(histogram))).into(),
        ..blank(context, placement, shape, ops, seconds)
    };
    result.set_cpu(&server);
    let extra = &mut result.extra;
    for (name, histogram) in legs {
        extra.insert(format!("{name}_p95_us"), histogram.value_at_quantile(0.95) as f64);
    }
    extra.insert("ftps".into(), per_second(ops));
    extra.insert("cpu_us_per_ft_switch".into(), per_op(server.total_ns() as f64 / 1e3));
    extra.insert("cpu_us_per_ft_simulators".into(), per_op(usage.simulators_ns() as f64 / 1e3));
    extra.insert("bytes_per_ft".into(), per_op(usage.stored_bytes()));
    if let Some(bytes) = usage.device_bytes() {
        extra.insert("device_bytes_per_ft".into(), per_op(bytes));
    }
    extra.insert("failures".into(), report.failures().values().sum::<u64>() as f64);
    extra.insert("begun".into(), report.begun as f64);
    extra.insert("repeated_requests".into(), report.repeats as f64);
    extra.insert("windows_closed".into(), f64::from(u8::from(args.target.target.is_none())));
    if report.late_p99_us > 0 {
        extra.insert("generator_late_p99_us".into(), report.late_p99_us as f64);
    }
    if result.limited_by == LimitedBy::Client {
        result.remarks.push("the simulators were the limit: the switch can do more".into());
    }
    result
}

fn series(report: &Report, usage: &Usage) -> Vec<Sample> {
    let whole_seconds = usize::try_from(report.measured.as_secs()).unwrap_or(usize::MAX);
    let seconds = report.seconds.iter().take(whole_seconds).enumerate();
    seconds
        .map(|(index, second)| {
            let at = |quantile: f64| {
                (!second.whole.is_empty()).then(|| second.whole.value_at_quantile(quantile) as f64)
            };
            Sample {
                t_s: (index + 1) as f64,
                ops_per_s: second.committed as f64,
                p50_us: at(0.5),
                p99_us: at(0.99),
                ..usage.seconds().get(index).copied().unwrap_or_default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_do_not_add_up_are_errors() {
        let before = Balances { committed: 5, ..Balances::default() };
        let after = Balances { debits: 7, credits: 7, committed: 5, ..Balances::default() };
        let mut report = Fsps::start(FspsConfig::new(2, ([127, 0, 0, 1], 1).into(), "USD"))
            .map(|fsps| fsps.end_load(Duration::ZERO))
            .unwrap();
        assert!(check(&before, &after, &report).is_empty());
        report.committed_in_all = 3;
        assert_eq!(check(&before, &after, &report).values().sum::<u64>(), 3);
        let after = Balances { credits: 6, pending: 2, unfinished: 1, ..after };
        assert_eq!(check(&before, &after, &report).len(), 4);
    }

    #[test]
    fn rates_are_per_second() {
        assert_eq!(rate("5000"), Ok(5_000.0));
        assert_eq!(rate("0.5/s"), Ok(0.5));
        assert!(rate("fast").is_err() && rate("0").is_err());
    }
}
