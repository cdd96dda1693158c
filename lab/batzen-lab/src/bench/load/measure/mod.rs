//! The steps of a run: set-up, peak probe, load, checks, result.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_cli_support::numbers::count;
use serde_json::{Value, json};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{self, Placement};
use crate::bench::load::coins::{Coin, Mint, PrepPool, Reserves};
use crate::bench::load::generator::{self, Kind, LoadOutcome, Plan, Schedule, Script};
use crate::bench::load::meter::Effort;
use crate::bench::load::moments;
use crate::bench::load::progress::Progress;
use crate::bench::load::random::Seed;
use crate::bench::results::result::{
    self, BytesPerOp, KindResult, Latency, LimitedBy, Load, Run, RunResult, Sample,
};
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{self, Cipher, Share};
use crate::bench::scenarios::database::Database;
use crate::bench::scenarios::options::{self, LoadOptions, Rate, RunOptions};
use crate::bench::scenarios::workers;
use crate::bench::scenarios::world::{CoinKind, World, WorldPlan};

mod recorder;

use recorder::{Recorded, Recorder, series};

/// A scenario's name, and what it counts.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    /// Its name on the command line.
    pub(crate) scenario: &'static str,
    /// A title that tells this run from others.
    pub(crate) title: String,
    /// The unit of operations, in the plural.
    pub(crate) unit: &'static str,
    /// Kinds of requests.
    pub(crate) kinds: Vec<Kind>,
    /// Parameters beyond the options shared by all scenarios.
    pub(crate) parameters: BTreeMap<String, Value>,
    /// The cipher of the coins.
    pub(crate) cipher: Cipher,
    /// The denominations.
    pub(crate) coins: Vec<CoinKind>,
    /// Operations of a job, on average.
    pub(crate) ops_per_job: f64,
    /// Remarks about the unit.
    pub(crate) remarks: Vec<String>,
}

impl Description {
    /// A load that is no scenario of its own, with requests of one kind.
    pub(crate) fn brief(scenario: &'static str, unit: &'static str, kind: Kind, cipher: Cipher) -> Self {
        Self {
            scenario,
            title: String::new(),
            unit,
            kinds: vec![kind],
            parameters: BTreeMap::new(),
            cipher,
            coins: Vec::new(),
            ops_per_job: 1.0,
            remarks: Vec::new(),
        }
    }
}

/// The environment in which a scenario prepares its load.
pub(crate) struct Stage<'a> {
    /// The bank and the exchange.
    pub(crate) world: &'a mut World,
    /// The threads that prepare the load.
    pub(crate) prep_pool: &'a PrepPool,
    /// Shows progress.
    pub(crate) progress: Progress,
    /// Threads of the load generator.
    pub(crate) threads: usize,
    /// Connections, at most, of one thread.
    pub(crate) clients: usize,
}

impl Stage<'_> {
    /// Withdraws coins of the first denomination, with numbers from `first` on, and shows it with this message.
    pub(crate) fn coins(
        &self,
        message: &str,
        reserves: &Reserves,
        seed: &Seed,
        first: u32,
        count: usize,
    ) -> Result<Vec<Coin>> {
        let bar = self.progress.bar(message, count as u64);
        Mint { world: self.world, prep_pool: self.prep_pool, reserves, seed }.coins(first, count, &bar)
    }
}

/// The message while coins are withdrawn.
pub(crate) const WITHDRAWING: &str = "withdrawing coins";

/// The error of a load that needs more numbers than coins can have.
pub(crate) fn too_many() -> BenchError {
    BenchError::Usage("more than 2^32 coins: choose a shorter time or a lower rate".into())
}

/// A merchant backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// One that the run starts.
    Own,
    /// One that runs already, at this address.
    At(SocketAddr),
}

/// A scenario.
pub(crate) trait Workload {
    /// The script that it sends.
    type Script: Script;

    /// The description of this run.
    fn describe(&self) -> Description;

    /// Prepares what all loads need, such as funded reserves.
    fn set_up(&mut self, _stage: &mut Stage<'_>) -> Result<()> {
        Ok(())
    }

    /// Prepares the next `ops` operations, none of them used before, as one script per thread.
    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Self::Script>>;

    /// Checks the answers that were kept, and returns their number.
    fn check(&mut self, _scripts: Vec<Self::Script>, _stage: &mut Stage<'_>) -> Result<u64> {
        Ok(0)
    }

    /// The exchange operations in one operation of the scenario: as planned, or as counted in `outcome`.
    fn shares(&self, _outcome: Option<&LoadOutcome>) -> Vec<Share> {
        Vec::new()
    }

    /// The merchant backend to which the load goes; none: it goes to the exchange.
    fn backend(&self) -> Option<Backend> {
        None
    }

    /// Further figures.
    fn extra(&self, _outcome: &LoadOutcome) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}

/// The first peak probe: its longest duration, and how many seconds of load to prepare for it at the rate of
/// the cryptography alone. Its result determines how much the next step prepares.
const FIRST_PROBE: (Duration, f64) = (Duration::from_secs(1), 0.15);
/// The least number of requests per client in the first peak probe.
const FIRST_PROBE_TURNS: f64 = 20.0;
/// The second peak probe, for rates given as a share of the peak: its warm-up and its duration.
const SECOND_PROBE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(2_000));
/// The same with workers: long enough that they reach their steady state.
const SECOND_PROBE_WITH_WORKERS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// Factor by which more is prepared than a peak probe suggests, since servers get faster once warm.
const RESERVE_FACTOR: f64 = 1.5;
/// A measurement needs at least this many operations.
const OPS_MIN: f64 = 200.0;
/// The result carries a remark if other programs use more than this share of the server's cores.
const FOREIGN_SHARE: f64 = 0.05;
/// The result carries a remark if a hypervisor takes more than this share of the run's cores, because that
/// causes late answers.
const STOLEN_SHARE: f64 = 0.01;
/// The result carries a remark if the peak after the run differs this much from the one before: the rate was
/// not the intended share of the machine's peak.
const PEAK_DRIFT: f64 = 0.15;
/// The result carries a remark if the last third of the run was this much faster than the third before it.
const RISE: f64 = 0.05;
/// Thirds with fewer samples than this are not compared.
const RISE_SAMPLES_MIN: usize = 3;

/// Runs a scenario.
///
/// # Errors
/// The failure that leaves the run without a result. Requests that fail are part of the result.
pub(crate) fn measure<W: Workload>(
    workload: &mut W,
    load: &LoadOptions,
    run: &RunOptions,
    context: &Context,
) -> Result<Run> {
    let described = workload.describe();
    // Before anything is created, so that a usage error leaves nothing behind.
    load.store.check()?;
    options::check_cipher(described.cipher)?;
    load.target.check(load, run)?;
    if workload.backend() == Some(Backend::Own) {
        load.target.refuse("shops are at a merchant backend: --merchant and --token-file say which")?;
    }
    let target = load.target.get();
    let placement = match target {
        Some(_) => Placement::of_client(run.client_cores.as_ref())?,
        None => Placement::choose(run.server_cores.as_ref(), run.client_cores.as_ref())?,
    };
    let progress = Progress::new(context.shows_progress);
    let path =
        run.out.clone().unwrap_or_else(|| crate::bench::scenarios::default_directory(described.scenario));
    result::claim_directory(&path)?;

    let spinner = progress.waiting("measuring the cryptography alone");
    let planned =
        ceiling::measure(described.cipher, &workload.shares(None), &placement.server, Effort::QUICK)?;
    drop(spinner);
    let prep_pool = PrepPool::new(&placement.all)?;
    let database = Database::start(&load.store, &placement)?.map(Arc::new);
    let world_plan = WorldPlan {
        program: context.program.clone(),
        dir: path.join("world"),
        placement: placement.clone(),
        coins: described.coins.clone(),
        with_workers: load.with_workers,
        with_auditor: load.with_auditor,
        database: database.clone(),
        nodes: load.nodes,
        more_sections: String::new(),
        is_kept: run.keep_world,
        interrupted: context.interrupted.clone(),
    };
    let mut world = match target {
        Some(target) => World::around(world_plan, target)?,
        None => World::start(world_plan, &progress)?,
    };
    match workload.backend() {
        None => {}
        Some(Backend::Own) => world.open_merchant(&progress)?,
        Some(Backend::At(address)) => world.use_merchant(address),
    }
    let threads = placement.client_count().min(load.measured_clients() as usize);
    let clients = (load.measured_clients() as usize).div_ceil(threads);
    let mut stage = Stage { world: &mut world, prep_pool: &prep_pool, progress, threads, clients };
    workload.set_up(&mut stage)?;

    // How many operations to prepare.
    let shape = Shape { described: &described, load, placement: &placement };
    let mut prepared = PrepSpeed::default();
    let peak = match (load.supply, load.rate) {
        (Some(_), None | Some(Rate::PerSecond(_))) | (None, Some(Rate::PerSecond(_))) => None,
        (_, rate) => {
            Some(probe(workload, &shape, rate.is_some(), planned.ops_per_s, &mut stage, &mut prepared)?)
        }
    };
    let target_rate = match load.rate {
        None => None,
        Some(Rate::PerSecond(rate)) => Some(rate),
        Some(Rate::OfPeak(share)) => peak.map(|peak| peak * share),
    };
    let seconds = (load.warmup + load.duration).as_secs_f64();
    let needed = match (load.supply, target_rate, peak) {
        (Some(supply), ..) => supply as f64,
        // Waiting clients hold jobs, too.
        (None, Some(target), _) => {
            target * seconds + f64::from(load.measured_clients()) * described.ops_per_job
        }
        (None, None, peak) => peak.unwrap_or(planned.ops_per_s) * RESERVE_FACTOR * seconds,
    };
    let needed = whole(needed.max(OPS_MIN));
    eprintln!(
        "{}",
        announcement(described.unit, needed, prepared.seconds_for(needed), (load.warmup, load.duration))
    );
    let scripts = workload.prepare(needed, &mut stage)?;
    database.as_deref().map_or(Ok(()), Database::settle)?;

    let schedule = target_rate
        .map_or(Schedule::Closed, |rate| Schedule::Open { jobs_per_s: rate / described.ops_per_job });
    let plan = shape.plan(stage.world, schedule, load.warmup, load.duration);
    let started = result::utc_now();
    let bar = progress.timed(&described.title, load.warmup + load.duration);
    let mut recorder = Recorder::new(stage.world, &placement, bar);
    let interrupted = context.interrupted.clone();
    // What was prepared is no part of the load.
    stage.world.auditor_catches_up()?;
    let auditor_before = stage.world.auditor_state()?;
    let ran = affinity::on_cores(&placement.client, || {
        generator::run(&plan, scripts, &mut recorder, &interrupted)
    })?;
    let auditor_after = stage.world.auditor_state()?;
    // If the server has ended, that explains every other error.
    stage.world.still_runs()?;
    let (outcome, scripts) = ran?;
    let recorded = recorder.finish()?;

    let caught_up = stage.world.auditor_catches_up()?;
    let checked = workload.check(scripts, &mut stage)?;
    let peak_after = match (load.rate, peak) {
        (Some(Rate::OfPeak(_)), Some(before)) => {
            match second_probe(workload, &shape, before, &mut stage, &mut prepared) {
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                // The run itself was measured, so its result is kept and the error added.
                probed => Some(probed),
            }
        }
        _ => None,
    };
    let spinner = progress.waiting("measuring the cryptography alone");
    let shares = workload.shares(Some(&outcome));
    let ceiling = ceiling::measure(described.cipher, &shares, &placement.server, Effort::QUICK)?;
    drop(spinner);
    let balanced = world.finish(&progress)?;

    let mut result = shape.result(&outcome, &recorded, context);
    result.started = started;
    if let Some(database) = &database {
        recorded.database.show(&mut result);
        result.title.push_str(&database.title());
        result.parameters.extend(database.parameters()?);
        result.parameters.insert("nodes".into(), json!(load.nodes));
    }
    match target {
        Some(target) => leave_out_server(&mut result, &target.exchange.url),
        None => result.set_ceiling(ceiling.ops_per_s, ceiling.parts),
    }
    result.load = match target_rate {
        None => Load::Closed { clients: load.measured_clients() as usize },
        Some(target_ops_per_s) => Load::Open { clients: load.measured_clients() as usize, target_ops_per_s },
    };
    result.extra.insert("answers_checked".into(), checked as f64);
    if checked == 0 {
        result.remarks.push("no answer was checked: the load ended before any that is kept".into());
    }
    if let (Some(before), Some(after), Some((findings, seconds))) = (auditor_before, auditor_after, caught_up)
    {
        let ops = outcome.ops_in_all.max(1) as f64;
        result.parameters.insert("with_auditor".into(), json!(true));
        result
            .extra
            .insert("auditor_cpu_us_per_op".into(), (after.cpu_ns - before.cpu_ns) as f64 / 1e3 / ops);
        result.extra.insert("auditor_changes_per_op".into(), (after.changes - before.changes) / ops);
        result.extra.insert("auditor_lag_commits".into(), after.lag_commits);
        result.extra.insert("auditor_catch_up_s".into(), seconds);
        result.extra.extend(
            recorded.after.largest("batzen_feed_lag_seconds").map(|lag| ("auditor_lag_s".into(), lag)),
        );
        if findings > 0 {
            *result.errors.entry("the auditor has findings".into()).or_default() += findings;
        }
    }
    result.extra.extend(peak.map(|peak| ("probed_peak_ops_per_s".into(), peak)));
    match (target_rate, peak, peak_after) {
        (Some(target), Some(before), Some(Ok(after))) => {
            result.extra.insert("probed_peak_after_ops_per_s".into(), after);
            result.remarks.extend(drift(target, before, after));
        }
        (.., Some(Err(error))) => {
            *result.errors.entry(format!("no peak was found after the run: {error}")).or_default() += 1;
        }
        _ => {}
    }
    result.extra.extend(workload.extra(&outcome));
    if let (Some(us), Some(cores)) = (result.cpu_us_per_op, Some(placement.server_count() as f64)) {
        // On a machine with other work, CPU time is more reliable than wall time.
        let cpu_ceiling_us = cores * 1e6 / ceiling.ops_per_s;
        result.extra.insert("efficiency_by_cpu_time".into(), cpu_ceiling_us / us);
    }
    if balanced == Some(false) {
        *result.errors.entry("the books of the exchange do not add up".into()).or_default() += 1;
    }
    let series = series(&outcome, &recorded);
    if target_rate.is_none() {
        result.remarks.extend(rise(&series));
    }
    let run =
        Run { path: path.clone(), result, series, latency: result::percentile_points(&outcome.all.latency) };
    let moments = moments::to_csv(&outcome.moments);
    for (name, text) in [
        (result::METRICS_BEFORE_FILE, &recorded.before.text),
        (result::METRICS_AFTER_FILE, &recorded.after.text),
        (result::MOMENTS_FILE, &moments),
    ] {
        if text.is_empty() {
            continue;
        }
        let file = path.join(name);
        std::fs::write(&file, text).map_err(BenchError::io(&file))?;
    }
    Ok(run)
}

/// Leaves out what only the machine of a server knows of it.
fn leave_out_server(result: &mut RunResult, url: &str) {
    (result.bytes_per_op, result.cpu_us_per_op) = (None, None);
    result.cpu_us_per_op_by_stage.clear();
    let of_server = ["server_cores_busy", "foreign_share_of_server_cores", "stolen_share_of_server_cores"];
    result.extra.retain(|name, _| !of_server.contains(&name.as_str()));
    result.parameters.remove("with_workers");
    result.parameters.insert("target".into(), json!(url));
    result.remarks.push("the exchange was not started for this run: nothing is known of its machine".into());
}

/// Rounds a positive number up.
fn whole(number: f64) -> u64 {
    number.ceil() as u64
}

/// Runs a short load to find the server's peak, in operations per second. Rates need the more precise second
/// probe.
fn probe<W: Workload>(
    workload: &mut W,
    shape: &Shape<'_>,
    for_rate: bool,
    ceiling_ops_per_s: f64,
    stage: &mut Stage<'_>,
    prepared: &mut PrepSpeed,
) -> Result<f64> {
    // Where the server is far below the ceiling, preparing for the ceiling would take many times longer than
    // the probe itself.
    let (time, ceiling_s) = FIRST_PROBE;
    let turns = f64::from(shape.load.closed_clients()) * shape.described.ops_per_job * FIRST_PROBE_TURNS;
    let ops = turns.max(ceiling_ops_per_s * ceiling_s);
    let first = probe_peak(workload, shape, (Duration::ZERO, time), ops, stage, prepared)?;
    if !for_rate {
        return Ok(first);
    }
    second_probe(workload, shape, first, stage, prepared)
}

/// Probes a peak of about `expected` operations per second, precisely enough for a rate.
fn second_probe<W: Workload>(
    workload: &mut W,
    shape: &Shape<'_>,
    expected: f64,
    stage: &mut Stage<'_>,
    prepared: &mut PrepSpeed,
) -> Result<f64> {
    let (warmup, duration) = if shape.load.with_workers { SECOND_PROBE_WITH_WORKERS } else { SECOND_PROBE };
    let needed = expected * RESERVE_FACTOR * (warmup + duration).as_secs_f64();
    probe_peak(workload, shape, (warmup, duration), needed, stage, prepared)
}

/// The seconds that preparing one operation took last time, if any was prepared.
#[derive(Clone, Copy, Debug, Default)]
struct PrepSpeed(Option<f64>);

impl PrepSpeed {
    fn seconds_for(self, ops: u64) -> Option<f64> {
        self.0.map(|seconds| seconds * ops as f64)
    }
}

/// Announces the next run, and its time: preparing often takes longer than the measurement.
fn announcement(unit: &str, ops: u64, prep_seconds: Option<f64>, run: (Duration, Duration)) -> String {
    let time = prep_seconds.map_or_else(String::new, |seconds| format!(" (about {seconds:.0} s)"));
    let (warmup, duration) = (run.0.as_secs_f64(), run.1.as_secs_f64());
    format!(
        "preparing {} {unit}{time}, then {warmup:.0} s of warm-up and {duration:.0} s of measurement",
        count(ops)
    )
}

/// A remark for a closed loop whose throughput still rose at the end: the last third of the run was faster
/// than the third before it.
fn rise(series: &[Sample]) -> Option<String> {
    let third = series.len() / 3;
    if third < RISE_SAMPLES_MIN {
        return None;
    }
    let mean = |samples: &[Sample]| {
        samples.iter().map(|sample| sample.ops_per_s).sum::<f64>() / samples.len() as f64
    };
    let (before, last) = (mean(&series[third..series.len() - third]), mean(&series[series.len() - third..]));
    (before > 0.0 && last / before - 1.0 > RISE).then(|| {
        format!(
            "throughput still rose at the end, by {:.0} %: a longer warm-up or --duration shows the steady state",
            100.0 * (last / before - 1.0)
        )
    })
}

/// A remark for when the peak after the run differs from the one before.
fn drift(target: f64, before: f64, after: f64) -> Option<String> {
    ((after / before - 1.0).abs() > PEAK_DRIFT).then(|| {
        let (of_before, of_after) = (100.0 * target / before, 100.0 * target / after);
        format!(
            "the peak was {before:.0} a second before the run and {after:.0} after it: the rate was {of_before:.0} % of the one \
             and {of_after:.0} % of the other"
        )
    })
}

/// Measures the peak for a while, or until the prepared operations are used up.
fn probe_peak<W: Workload>(
    workload: &mut W,
    shape: &Shape<'_>,
    (warmup, duration): (Duration, Duration),
    ops: f64,
    stage: &mut Stage<'_>,
    prepared: &mut PrepSpeed,
) -> Result<f64> {
    let (ops, began) = (whole(ops.max(OPS_MIN)), Instant::now());
    let scripts = workload.prepare(ops, stage)?;
    *prepared = PrepSpeed(Some(began.elapsed().as_secs_f64() / ops as f64));
    let spinner = stage.progress.waiting("probing the peak");
    let plan = shape.plan(stage.world, Schedule::Closed, warmup, duration);
    let interrupted = stage.world.interrupted().clone();
    let ran = affinity::on_cores(&shape.placement.client, || {
        generator::run(&plan, scripts, &mut (), &interrupted)
    })?;
    stage.world.still_runs()?;
    let (outcome, _) = ran?;
    drop(spinner);
    if let Some((reason, count)) = outcome.errors.iter().next() {
        return Err(BenchError::SetUp(format!("{count} requests of the peak probe failed: {reason}")));
    }
    let seconds = outcome.measured.as_secs_f64();
    if outcome.all.ops == 0 || seconds <= 0.0 {
        // Either there were so few operations that all ended before the measured part, or they were so slow
        // that none ended in it.
        return Ok(outcome.ops_in_all as f64 / (warmup.as_secs_f64() + seconds).max(1e-3));
    }
    Ok(outcome.all.ops as f64 / seconds)
}

/// The facts about a run that are known before the load starts.
struct Shape<'a> {
    described: &'a Description,
    load: &'a LoadOptions,
    placement: &'a Placement,
}

impl Shape<'_> {
    fn plan(&self, world: &World, schedule: Schedule, warmup: Duration, duration: Duration) -> Plan {
        Plan {
            servers: world.loaded_addresses(),
            clients: match schedule {
                Schedule::Closed => self.load.closed_clients(),
                Schedule::Open { .. } => self.load.measured_clients(),
            } as usize,
            schedule,
            warmup,
            duration: Some(duration),
            kinds: self.described.kinds.clone(),
            cores: self.placement.client.clone(),
        }
    }

    fn parameters(&self) -> BTreeMap<String, Value> {
        let load = self.load;
        let mut parameters = BTreeMap::from([
            ("cipher".to_owned(), json!(self.described.cipher.to_string())),
            ("clients".to_owned(), json!(load.measured_clients())),
            ("duration_s".to_owned(), json!(load.duration.as_secs_f64())),
            ("warmup_s".to_owned(), json!(load.warmup.as_secs_f64())),
            ("with_workers".to_owned(), json!(load.with_workers)),
            ("seed".to_owned(), json!(load.seed)),
        ]);
        if let Some(rate) = load.rate {
            parameters.insert("rate".to_owned(), json!(rate.to_string()));
        }
        parameters.extend(self.described.parameters.clone());
        parameters
    }

    fn result(&self, outcome: &LoadOutcome, recorded: &Recorded, context: &Context) -> RunResult {
        let (ops, seconds) = (outcome.all.ops, outcome.measured.as_secs_f64());
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let per_op = |amount: f64| if ops > 0 { amount / ops as f64 } else { 0.0 };
        let server = recorded.server_after.since(&recorded.server_before);
        let client_ns: u64 = recorded.client_ns;
        let growth = |series: &str| recorded.after.growth(&recorded.before, series);
        let disk = growth("batzen_store_written_bytes_total").unwrap_or(0.0);
        let shape = workers::Shape {
            scenario: self.described.scenario,
            title: self.described.title.clone(),
            unit: self.described.unit,
            parameters: self.parameters(),
            remarks: self.described.remarks.clone(),
        };
        let mut result = RunResult {
            requests: outcome.all.requests,
            errors: outcome.errors.clone(),
            limited_by: recorded.limited_by(),
            latency: Some(Latency::of(&outcome.all.latency)),
            bytes_per_op: Some(BytesPerOp { disk: per_op(disk), ram: per_op(recorded.resident_growth) }),
            client_cpu_us_per_op: Some(per_op(client_ns as f64 / 1e3)),
            batch_sizes: recorded.batch_sizes(),
            ..workers::blank(context, self.placement, shape, ops, seconds)
        };
        result.set_cpu(&server);
        let kinds = self.described.kinds.iter().zip(&outcome.kinds).filter(|(_, counts)| counts.requests > 0);
        if kinds.clone().count() > 1 {
            for (kind, counts) in kinds {
                let latency = Latency::of(&counts.latency);
                let figures = KindResult { ops: counts.ops, ops_per_s: per_second(counts.ops), latency };
                result.kinds.insert(kind.name.to_owned(), figures);
            }
        }
        let extra = &mut result.extra;
        extra.insert("requests_per_s".into(), per_second(outcome.all.requests));
        extra.insert("server_cores_busy".into(), recorded.server_busy(seconds));
        extra.insert("client_cores_busy".into(), client_ns as f64 / 1e9 / seconds.max(1e-9));
        for (name, series) in [
            ("index_bytes_per_op", "batzen_store_index_bytes"),
            ("disk_growth_bytes_per_op", "batzen_store_disk_bytes"),
            ("live_bytes_per_op", "batzen_store_live_bytes"),
        ] {
            extra.extend(growth(series).map(|growth| (name.to_owned(), per_op(growth))));
        }
        if let Some(merchant) = &recorded.merchant {
            let all_us = per_op(server.total_ns() as f64 / 1e3);
            let merchant_us = per_op(merchant.total_ns() as f64 / 1e3);
            extra.insert("merchant_cpu_us_per_op".into(), merchant_us);
            extra.insert("exchange_cpu_us_per_op".into(), all_us - merchant_us);
            extra.insert("ops_per_core_s".into(), if all_us > 0.0 { 1e6 / all_us } else { 0.0 });
            for (role, ns) in &merchant.by_role_ns {
                extra.insert(format!("merchant_{role}_cpu_us_per_op"), per_op(*ns as f64 / 1e3));
            }
        }
        extra.extend(recorded.after.database_figures(&recorded.before, ops));
        if let Some(growth) = growth("batzen_store_commits_total") {
            extra.insert("commits_per_s".into(), growth / seconds.max(1e-9));
        }
        if let Some(frames) = growth("batzen_store_frames_total").filter(|frames| *frames > 0.0) {
            extra.insert("ops_per_frame".into(), ops as f64 / frames);
        }
        if let Some(seconds) = growth("batzen_store_serial_cpu_seconds_total") {
            extra.insert("serial_cpu_us_per_op".into(), per_op(seconds * 1e6));
        }
        if self.load.rate.is_some() {
            extra.insert("generator_late_p99_us".into(), outcome.late_p99_us as f64);
            extra.insert("generator_late_max_us".into(), outcome.late_max_us as f64);
            extra.insert("generator_missed_jobs".into(), outcome.missed as f64);
            extra.insert("clients_used".into(), outcome.clients_used as f64);
        }
        self.remark(outcome, recorded, seconds, &mut result);
        result
    }

    fn remark(&self, outcome: &LoadOutcome, recorded: &Recorded, seconds: f64, result: &mut RunResult) {
        let remarks = &mut result.remarks;
        if outcome.is_exhausted {
            remarks.push(format!("what was prepared lasted for {seconds:.1} s only"));
        }
        if result.limited_by == LimitedBy::Client {
            remarks.push("the load generator was the limit: the server can do more".into());
        }
        for (whose, stolen) in
            [("the server's", recorded.server_stolen), ("the load generator's", recorded.client_stolen)]
        {
            if stolen > STOLEN_SHARE {
                let percent = stolen * 100.0;
                remarks.push(format!(
                    "the hypervisor gave {percent:.1} % of {whose} cores to others: the figures are too low, answers late"
                ));
            }
        }
        let foreign = recorded.foreign_share(self.placement, seconds);
        if foreign > FOREIGN_SHARE {
            let percent = foreign * 100.0;
            remarks
                .push(format!("others used {percent:.0} % of the server's cores: the figures are too low"));
        }
        if outcome.missed > 0 {
            remarks.push(format!(
                "the load generator itself was held up, for {:.0} ms at the longest: {} requests whose time had passed then were left \
                 out",
                outcome.late_max_us as f64 / 1e3,
                outcome.missed
            ));
        }
        if outcome.waited_for_client > 0 {
            remarks.push(format!(
                "{} requests began late because every connection waited for an answer: --clients gives more",
                outcome.waited_for_client
            ));
        }
        if !outcome.errors.is_empty() {
            remarks.push("requests failed: the figures do not count".into());
        }
        result.extra.insert("foreign_share_of_server_cores".into(), foreign.max(0.0));
        result.extra.insert("stolen_share_of_server_cores".into(), recorded.server_stolen);
        result.extra.insert("stolen_share_of_client_cores".into(), recorded.client_stolen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_throughput_is_reported() {
        let series = |rates: &[f64]| -> Vec<Sample> {
            rates.iter().map(|ops_per_s| Sample { ops_per_s: *ops_per_s, ..Sample::default() }).collect()
        };
        let steady = series(&[50.0, 90.0, 100.0, 101.0, 99.0, 100.0, 102.0, 103.0, 100.0]);
        assert_eq!(rise(&steady), None, "a warm-up before the middle does not count");
        let rising = series(&[50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 120.0, 130.0]);
        assert!(rise(&rising).unwrap().contains("by 33 %"));
        assert_eq!(rise(&rising[..8]), None, "too short to tell");
    }

    #[test]
    fn a_run_says_how_long_it_takes() {
        let run = (Duration::from_secs(2), Duration::from_secs(5));
        assert_eq!(
            announcement("coins", 120_000, Some(34.2), run),
            "preparing 120,000 coins (about 34 s), then 2 s of warm-up and 5 s of measurement"
        );
        assert!(announcement("coins", 10, None, run).starts_with("preparing 10 coins, then"));
    }

    #[test]
    fn a_drifting_peak_is_reported() {
        assert_eq!(drift(7_000.0, 10_000.0, 11_400.0), None);
        assert_eq!(drift(7_000.0, 10_000.0, 8_600.0), None);
        let told = drift(7_000.0, 10_000.0, 8_000.0).expect("a fifth is much");
        assert!(told.contains("10000 a second before the run and 8000 after it"), "{told}");
        assert!(told.contains("70 % of the one and 88 % of the other"), "{told}");
        assert!(drift(7_000.0, 10_000.0, 14_000.0).is_some());
    }
}
