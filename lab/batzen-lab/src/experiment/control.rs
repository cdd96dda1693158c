//! The controller's side of the load: orders for the generators, and what their wallets and the services did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{milliseconds, number};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::agent::{Agent, CommandLine, Request, Sample};
use super::load::{LoadPlan, Mix, Order, Target};
use super::placement::Instance;
use super::ramp::{HostUsage, Ramp, Step, Usage};
use super::scenario::{self, ScenarioArgs};
use super::setup::{metrics_authority, socket_addr};
use super::state::Experiment;
use super::tally::{Second, Sum, times_table};
use super::topology::Role;
use super::{DirArgs, now_ms};
use crate::bench::load::scrape::Page;

/// The file with the plan of the load.
const PLAN: &str = "load.json";
/// The file with the last ramp.
const RAMP: &str = "ramp.json";
/// The file with the verdict of the last check.
pub(super) const CHECK: &str = "check.json";
/// Time after a change of the load that does not count.
const SETTLE: Duration = Duration::from_secs(2);
/// Samples up to this time before a step count as of the step.
const SAMPLES_BEFORE_MS: u64 = 1_500;
/// The pause between two looks at the generators.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Most attempts to bring all wallets to work before the first step.
const WARM_UPS_MAX: u32 = 6;
/// Time that the auditor may take to check what was done.
const PATIENCE: Duration = Duration::from_secs(300);

/// Put load on an experiment
#[derive(Args, Clone, Debug)]
pub struct LoadCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Start wallets, which withdraw, pay and take change
    Start(StartArgs),
    /// Stop all wallets
    Stop(DirArgs),
    /// Change the number of wallets
    Scale(ScaleArgs),
    /// Change the rate of operations
    Rate(RateArgs),
    /// Change the mix of operations
    Mix(MixArgs),
    /// Raise the rate until the services no longer keep up, and find out why
    Ramp(RampArgs),
    /// Show operations, latencies and errors, a line each second
    Show(ShowArgs),
    /// Run a scenario of batzen-lab bench on the hosts of the load: prepared requests instead of wallets
    Bench(ScenarioArgs),
}

#[derive(Args, Clone, Debug)]
struct StartArgs {
    /// Wallets on all generator hosts together
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wallets: u32,
    /// Operations begun a second, whatever the services do [default: each wallet acts again after its pause]
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Average pause of a wallet between two operations, without --rate
    #[arg(long, value_name = "MS", default_value_t = 0)]
    think_ms: u64,
    /// Weights of what wallets do: pay, refund, send
    #[arg(long, value_name = "WHAT=WEIGHT,…", default_value = "pay=1")]
    mix: Mix,
    /// Seed of all choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct ScaleArgs {
    /// Wallets on all generator hosts together
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    wallets: u32,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct RateArgs {
    /// Operations begun a second; `free`: each wallet acts again after its pause
    #[arg(value_name = "PER_SECOND")]
    rate: String,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct MixArgs {
    /// Weights of what wallets do: pay, refund, send
    #[arg(value_name = "WHAT=WEIGHT,…")]
    mix: Mix,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct RampArgs {
    /// Operations a second in the first step
    #[arg(long, value_name = "PER_SECOND", default_value = "5", value_parser = rate)]
    from: f64,
    /// Each step's rate as a multiple of the one before
    #[arg(long, value_name = "NUMBER", default_value = "1.5", value_parser = factor)]
    factor: f64,
    /// Most steps
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
    /// Length of a step
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    step_s: u64,
    /// Largest 99th percentile of the latency at which the services count as following
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    p99_max_ms: u64,
    /// Wallets on all generator hosts together
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wallets: u32,
    /// Weights of what wallets do: pay, refund, send
    #[arg(long, value_name = "WHAT=WEIGHT,…", default_value = "pay=1")]
    mix: Mix,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct ShowArgs {
    /// Seconds to watch
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Print the times by kind of operation, amount and number of coins at the end, instead of each second
    #[arg(long)]
    table: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: DirArgs,
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(rate),
        _ => Err("expected a number above 0, such as 50".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 1.0 && factor <= 10.0 => Ok(factor),
        _ => Err("expected a number above 1, such as 1.5".to_owned()),
    }
}

/// A generator, and how far its lines were read.
struct Generator {
    instance: Instance,
    agent: Agent,
    out: PathBuf,
    offset: u64,
    /// Wallets at work in the last line.
    wallets: Option<usize>,
}

/// The generators of an experiment.
struct Generators {
    all: Vec<Generator>,
    target: Target,
}

impl Generators {
    /// Connects to all; what they wrote before is left out.
    fn connect(experiment: &Experiment) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for instance in experiment.of(Role::Load) {
            let mut agent = experiment.agent(&instance.host)?;
            let access = experiment.hosts.get(&instance.host).context("a placed instance has a host")?;
            let out = access.dir.join(&instance.name).join("out");
            let mut offset = 0;
            while let Ok((_, next)) = agent.get(&out, offset) {
                if next == offset {
                    break;
                }
                offset = next;
            }
            all.push(Generator { instance, agent, out, offset, wallets: None });
        }
        ensure!(!all.is_empty(), "the topology has no role load, whose wallets could put load on anything");
        Ok(Self { all, target: experiment.target()? })
    }

    /// Tells all what to do, each its part, and with which services: one that was started again knows neither.
    fn order(&mut self, plan: &LoadPlan) -> anyhow::Result<()> {
        let count = self.all.len();
        for (index, generator) in self.all.iter_mut().enumerate() {
            let part = LoadPlan {
                wallets: plan.wallets / count + usize::from(index < plan.wallets % count),
                rate_per_s: plan.rate_per_s.map(|rate| rate / count as f64),
                seed: plan.seed.wrapping_mul(1000).wrapping_add(index as u64),
                ..*plan
            };
            for order in [Order::Target(self.target.clone()), Order::Plan(part)] {
                let line = serde_json::to_string(&order)?;
                generator.agent.ask(&Request::Input { name: generator.instance.name.clone(), line })?;
            }
        }
        Ok(())
    }

    /// The lines since the last call, by generator.
    fn lines(&mut self) -> anyhow::Result<Vec<Vec<Second>>> {
        let mut all = Vec::with_capacity(self.all.len());
        for generator in &mut self.all {
            let (text, _) = generator.agent.get(&generator.out, generator.offset)?;
            // The last line may not be whole yet.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            generator.offset += whole as u64;
            let seconds =
                text[..whole].lines().map(|line| serde_json::from_str(line).context("a line of a generator"));
            let seconds = seconds.collect::<anyhow::Result<Vec<Second>>>()?;
            generator.wallets = seconds.last().map(|second| second.wallets).or(generator.wallets);
            all.push(seconds);
        }
        Ok(all)
    }

    /// The same of all together.
    fn seconds(&mut self) -> anyhow::Result<Vec<Second>> {
        Ok(self.lines()?.into_iter().flatten().collect())
    }
}

/// The samples of a host between two times of this machine's clock.
fn samples(experiment: &Experiment, host: &str, from_ms: u64, to_ms: u64) -> anyhow::Result<Vec<Sample>> {
    let mut agent = experiment.agent(host)?;
    let there = |time_ms: u64| time_ms.saturating_add_signed(agent.clock_offset_ms);
    // The load is the same for a while before the step counts, and a short step may fall between two samples.
    let times = there(from_ms.saturating_sub(SAMPLES_BEFORE_MS))..=there(to_ms);
    let path = experiment.hosts.get(host).context("every host is known")?.dir.join("samples.jsonl");
    let (mut found, mut offset) = (Vec::new(), 0);
    loop {
        let (text, _) = agent.get(&path, offset)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole == 0 {
            break;
        }
        offset += whole as u64;
        for line in text[..whole].lines() {
            let sample: Sample = serde_json::from_str(line).context("a sample")?;
            if times.contains(&sample.time_ms) {
                found.push(sample);
            }
        }
    }
    ensure!(found.len() > 1, "{host}: its agent took no samples during the step");
    Ok(found)
}

/// The growth of a counter a second.
fn growth(first: u64, last: u64, first_ms: u64, last_ms: u64) -> f64 {
    let elapsed_ms = last_ms.saturating_sub(first_ms).max(1);
    last.saturating_sub(first) as f64 / elapsed_ms as f64
}

fn usage(experiment: &Experiment, from_ms: u64, to_ms: u64) -> anyhow::Result<(Vec<Usage>, Vec<HostUsage>)> {
    let (mut usage, mut hosts) = (Vec::new(), Vec::new());
    for host in experiment.hosts.keys() {
        let samples = samples(experiment, host, from_ms, to_ms)?;
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { continue };
        let (begin, end) = (first.time_ms, last.time_ms);
        let ticks = last.host.all_ticks.saturating_sub(first.host.all_ticks).max(1) as f64;
        let waited = |sample: &Sample| sample.host.disk_wait_us;
        hosts.push(HostUsage {
            host: host.clone(),
            machine: experiment.machine(host),
            cores: last.host.cores,
            busy: last.host.busy_ticks.saturating_sub(first.host.busy_ticks) as f64 / ticks,
            disk_wait: waited(first)
                .zip(waited(last))
                .map(|(first, last)| growth(first / 1000, last / 1000, begin, end)),
        });
        for (name, after) in &last.processes {
            let Some(before) = first.processes.get(name) else { continue };
            let mut instances = experiment.state.instances.iter();
            let Some(instance) = instances.find(|instance| instance.processes().contains(name)) else {
                continue;
            };
            usage.push(Usage {
                instance: name.clone(),
                role: instance.role,
                host: host.clone(),
                cores: growth(before.cpu_ms, after.cpu_ms, begin, end),
                busiest_thread: growth(before.busiest_thread_ms, after.busiest_thread_ms, begin, end),
                share: 1.0,
                lane_s: None,
                commit_ms: None,
                rtt_ms: None,
            });
        }
        let states = experiment.agent(host)?.status()?;
        for used in usage.iter_mut().filter(|used| used.host == *host) {
            if let Some(state) = states.iter().find(|state| state.name == used.instance) {
                used.share = state.share;
            }
        }
    }
    Ok((usage, hosts))
}

/// The pages with the metrics of the exchange's processes.
fn pages(experiment: &Experiment) -> BTreeMap<String, Page> {
    let fetch = |instance: &Instance| {
        let address = socket_addr(&metrics_authority(instance)?).ok()?;
        Some((instance.name.clone(), Page::fetch(address).ok()?))
    };
    experiment.of(Role::Exchange).iter().filter_map(fetch).collect()
}

/// Adds the round trips from the exchange's processes to the database.
fn add_round_trips(experiment: &Experiment, usage: &mut [Usage]) -> anyhow::Result<()> {
    let Some(database) = experiment.of(Role::Postgres).pop() else { return Ok(()) };
    for used in usage.iter_mut().filter(|used| used.role == Role::Exchange) {
        let access = experiment.hosts.get(&used.host).context("a placed instance has a host")?;
        let words = [access.lab.as_str(), "agent", "probe", "--to", &database.authority()];
        // A primary that is down has no round trip.
        let said = experiment.agent(&used.host)?.run(CommandLine::new(words));
        used.rtt_ms = said.ok().and_then(|text| text.trim().parse().ok());
    }
    Ok(())
}

/// Adds what the exchange's lanes did between two looks at their metrics.
fn add_lanes(
    usage: &mut [Usage],
    before: &BTreeMap<String, Page>,
    after: &BTreeMap<String, Page>,
    seconds: f64,
) {
    for used in usage {
        let (Some(before), Some(after)) = (before.get(&used.instance), after.get(&used.instance)) else {
            continue;
        };
        let grown = |series: &str| Some(after.value(series)? - before.value(series).unwrap_or(0.0));
        let stage = |name: &str| grown(&format!("batzen_lane_stage_seconds_sum{{stage=\"{name}\"}}"));
        if let (Some(prefetch), Some(execute), Some(commit)) =
            (stage("prefetch"), stage("execute"), stage("commit"))
        {
            // The sum is over all lanes, and one lane's time is a second a second.
            let lanes = after.value("batzen_lanes").filter(|lanes| *lanes >= 1.0).unwrap_or(1.0);
            used.lane_s = Some([prefetch, execute, commit].map(|sum| sum / seconds / lanes));
            let commits =
                grown("batzen_lane_stage_seconds_count{stage=\"commit\"}").filter(|count| *count > 0.0);
            used.commit_ms = commits.map(|count| commit / count * 1000.0);
        }
    }
}

/// Removes the verdict of the last check.
fn remove_verdict(experiment: &Experiment) -> anyhow::Result<()> {
    match std::fs::remove_file(experiment.dir.join(CHECK)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context(CHECK),
        _ => Ok(()),
    }
}

/// Divides the load among the present generators, and tells them about the present services.
///
/// # Errors
/// When one does not answer.
pub(super) fn divide_again(experiment: &Experiment) -> anyhow::Result<()> {
    let Ok(plan) = saved_plan(experiment) else { return Ok(()) };
    Generators::connect(experiment)?.order(&plan)
}

fn saved_plan(experiment: &Experiment) -> anyhow::Result<LoadPlan> {
    let text = std::fs::read_to_string(experiment.dir.join(PLAN))
        .context("no load runs: `batzen-lab load start`")?;
    Ok(serde_json::from_str(&text)?)
}

fn put_plan(experiment: &Experiment, generators: &mut Generators, plan: &LoadPlan) -> anyhow::Result<()> {
    if plan.wallets > 0 {
        // What was certified before is not about what comes now.
        remove_verdict(experiment)?;
    }
    generators.order(plan)?;
    std::fs::write(experiment.dir.join(PLAN), serde_json::to_string(plan)?)?;
    let rate = plan.rate_per_s.map_or_else(|| "free".to_owned(), number);
    experiment.event("load", &format!("{} wallets, rate {rate}", plan.wallets))
}

impl Action {
    /// The experiment.
    fn at(&self) -> &DirArgs {
        match self {
            Self::Start(args) => &args.at,
            Self::Stop(at) => at,
            Self::Scale(args) => &args.at,
            Self::Rate(args) => &args.at,
            Self::Mix(args) => &args.at,
            Self::Ramp(args) => &args.at,
            Self::Show(args) => &args.at,
            Self::Bench(args) => &args.at,
        }
    }

    /// The plan after a change of it.
    fn changed(&self, plan: LoadPlan) -> anyhow::Result<LoadPlan> {
        Ok(match self {
            Self::Start(args) => LoadPlan {
                wallets: args.wallets as usize,
                rate_per_s: args.rate,
                think_ms: args.think_ms,
                mix: args.mix,
                seed: args.seed,
            },
            Self::Stop(_) => LoadPlan::default(),
            Self::Scale(args) => LoadPlan { wallets: args.wallets as usize, ..plan },
            Self::Rate(args) => {
                let rate_per_s = match args.rate.as_str() {
                    "free" => None,
                    text => Some(rate(text).map_err(anyhow::Error::msg)?),
                };
                LoadPlan { rate_per_s, ..plan }
            }
            Self::Mix(args) => LoadPlan { mix: args.mix, ..plan },
            Self::Ramp(_) | Self::Show(_) | Self::Bench(_) => plan,
        })
    }
}

/// Runs `batzen-lab load`.
///
/// # Errors
/// When no generator runs, or one does not answer.
pub(super) fn run(command: &LoadCommand) -> anyhow::Result<ExitCode> {
    match &command.action {
        Action::Ramp(args) => return ramp(args),
        Action::Show(args) => return show(args),
        Action::Bench(args) => return scenario::run(args),
        _ => {}
    }
    let experiment = Experiment::open(&command.action.at().dir)?;
    let mut generators = Generators::connect(&experiment)?;
    let plan = match &command.action {
        Action::Start(_) | Action::Stop(_) => LoadPlan::default(),
        _ => saved_plan(&experiment)?,
    };
    put_plan(&experiment, &mut generators, &command.action.changed(plan)?)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let mut generators = Generators::connect(&experiment)?;
    let count = generators.all.len();
    if !args.json && !args.table {
        println!(
            "{:>8}{:>10}{:>8}{:>10}{:>10}{:>8}{:>9}",
            "wallets", "offered", "done", "p50 ms", "p99 ms", "errors", "waiting"
        );
    }
    let (mut shown, mut waiting, mut watched): (u64, Vec<Second>, Vec<Second>) = (0, Vec::new(), Vec::new());
    while shown < args.seconds {
        std::thread::sleep(LOOK_PAUSE);
        waiting.extend(generators.seconds()?);
        // Each generator writes one line a second.
        if waiting.len() < count {
            continue;
        }
        let seconds = std::mem::take(&mut waiting);
        shown += (seconds.len() / count) as u64;
        if args.table {
            watched.extend(seconds);
            continue;
        }
        let sum = Sum::of(&seconds);
        let latency = sum.latency();
        let wallets: usize = seconds.iter().rev().take(count).map(|second| second.wallets).sum();
        let backlog: usize = seconds.iter().rev().take(count).map(|second| second.backlog).sum();
        let errors: u64 = sum.errors.values().sum();
        if args.json {
            println!(
                "{}",
                json!({
                    "time_ms": now_ms(), "wallets": wallets, "offered": sum.offered, "ops": sum.ops, "coins": sum.coins,
                    "p50_us": latency.value_at_quantile(0.5), "p99_us": latency.value_at_quantile(0.99),
                    "errors": sum.errors, "backlog": backlog,
                    "kinds": sum.by_kind,
                })
            );
        } else {
            println!(
                "{wallets:>8}{:>10}{:>8}{:>10}{:>10}{errors:>8}{backlog:>9}",
                sum.offered,
                sum.ops,
                milliseconds(latency.value_at_quantile(0.5) as f64),
                milliseconds(latency.value_at_quantile(0.99) as f64)
            );
            for (reason, count) in &sum.errors {
                println!("          {count} × {reason}");
            }
        }
        std::io::stdout().flush()?;
    }
    let times = Sum::of(&watched).times();
    match (args.table, args.json) {
        (false, _) => {}
        (true, true) => println!("{}", json!({ "times": times })),
        (true, false) => print!("{}", times_table(&times)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures one step.
fn step(
    experiment: &Experiment,
    generators: &mut Generators,
    plan: &LoadPlan,
    length: Duration,
) -> anyhow::Result<Step> {
    put_plan(experiment, generators, plan)?;
    std::thread::sleep(SETTLE);
    generators.seconds()?;
    let (from_ms, begun, before) = (now_ms(), Instant::now(), pages(experiment));
    let mut lines: Vec<Vec<Second>> = vec![Vec::new(); generators.all.len()];
    while begun.elapsed() < length {
        std::thread::sleep(LOOK_PAUSE.min(length.saturating_sub(begun.elapsed())));
        for (all, new) in lines.iter_mut().zip(generators.lines()?) {
            all.extend(new);
        }
    }
    let (to_ms, elapsed, after) = (now_ms(), begun.elapsed().as_secs_f64(), pages(experiment));
    let silent =
        lines.iter().position(Vec::is_empty).map(|index| generators.all[index].instance.name.clone());
    ensure!(silent.is_none(), "{} is silent: `batzen-lab status` shows why", silent.unwrap_or_default());
    // Each generator writes one line a second, so the lines tell the time that they cover.
    let covered_s = lines.iter().map(Vec::len).sum::<usize>() as f64 / lines.len() as f64;
    let seconds: Vec<Second> = lines.into_iter().flatten().collect();
    let (mut used, hosts) = usage(experiment, from_ms, to_ms)?;
    add_lanes(&mut used, &before, &after, elapsed);
    add_round_trips(experiment, &mut used)?;
    let sum = Sum::of(&seconds);
    let latency = sum.latency();
    Ok(Step {
        offered_per_s: plan.rate_per_s.unwrap_or(0.0),
        ops_per_s: sum.ops as f64 / covered_s,
        coins_per_s: sum.coins as f64 / covered_s,
        p50_us: latency.value_at_quantile(0.5),
        p99_us: latency.value_at_quantile(0.99),
        errors: sum.errors.values().sum(),
        ops: sum.ops,
        usage: used,
        hosts,
    })
}

fn ramp(args: &RampArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let mut generators = Generators::connect(&experiment)?;
    let p99_max_us = args.p99_max_ms.saturating_mul(1000);
    let mut plan = LoadPlan {
        wallets: args.wallets as usize,
        rate_per_s: Some(args.from),
        think_ms: 0,
        mix: args.mix,
        seed: 1,
    };
    let length = Duration::from_secs(args.step_s);
    // New wallets fetch keys and withdraw first, which is not what the first step is to measure.
    for _ in 0..WARM_UPS_MAX {
        if step(&experiment, &mut generators, &plan, length)?.keeps_up(p99_max_us) {
            break;
        }
    }
    let mut steps: Vec<Step> = Vec::new();
    for index in 0..args.steps {
        plan.rate_per_s = Some(args.from * args.factor.powi(i32::try_from(index).unwrap_or(i32::MAX)));
        let mut measured = step(&experiment, &mut generators, &plan, length)?;
        if !measured.keeps_up(p99_max_us) {
            // A hiccup of the machine is no knee.
            measured = step(&experiment, &mut generators, &plan, length)?;
        }
        eprintln!(
            "  {} offered, {} done a second, p99 {} ms, {} errors",
            number(measured.offered_per_s),
            number(measured.ops_per_s),
            milliseconds(measured.p99_us as f64),
            measured.errors
        );
        let is_behind = !measured.keeps_up(p99_max_us);
        steps.push(measured);
        let found = Ramp::of(steps.clone(), p99_max_us);
        std::fs::write(experiment.dir.join(RAMP), serde_json::to_string_pretty(&found)?)?;
        // One step behind the knee shows what limits; more only make the queues longer.
        if is_behind {
            break;
        }
    }
    put_plan(&experiment, &mut generators, &LoadPlan::default())?;
    let found = Ramp::of(steps, p99_max_us);
    if args.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        print!("{}", found.table());
    }
    Ok(ExitCode::SUCCESS)
}

/// The last ramp, if there was one.
pub(super) fn kept_ramp(experiment: &Experiment) -> Option<Ramp> {
    let text = std::fs::read_to_string(experiment.dir.join(RAMP)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Ends the load, waits until all is settled, and asks whether the books are right.
pub(super) fn check(experiment: &mut Experiment) -> anyhow::Result<Value> {
    remove_verdict(experiment)?;
    if !experiment.of(Role::Load).is_empty() {
        let mut generators = Generators::connect(experiment)?;
        put_plan(experiment, &mut generators, &LoadPlan::default())?;
        let deadline = Instant::now() + PATIENCE;
        // Only each generator itself knows whether its wallets are at work.
        while generators.all.iter().any(|generator| generator.wallets != Some(0)) {
            ensure!(Instant::now() < deadline, "the wallets do not end their operations");
            std::thread::sleep(LOOK_PAUSE);
            generators.seconds()?;
        }
    }
    let mut verdict = json!({ "time_ms": now_ms(), "conserved": null, "findings": null });
    if let Some(auditor) = experiment.of(Role::Auditor).pop() {
        let report = audit(experiment, &auditor)?;
        let findings = report["findings"].as_array().context("the auditor's report has no findings")?;
        verdict["findings"] = json!(findings.len());
        std::fs::write(experiment.dir.join("audit.json"), serde_json::to_string_pretty(&report)?)?;
    }
    let exchange =
        experiment.of(Role::Exchange).into_iter().next().context("the topology has no exchange")?;
    match books(experiment, &exchange) {
        Ok((is_conserved, facts)) => {
            verdict["conserved"] = json!(is_conserved);
            verdict["books"] = facts;
        }
        // Not known is not right.
        Err(error) => verdict["reason"] = json!(format!("{error:#}")),
    }
    std::fs::write(experiment.dir.join(CHECK), serde_json::to_string_pretty(&verdict)?)?;
    Ok(verdict)
}

/// The report of an auditor that has seen everything and compares with the bank now.
fn audit(experiment: &Experiment, auditor: &Instance) -> anyhow::Result<Value> {
    let address = socket_addr(&auditor.authority())?;
    let deadline = Instant::now() + PATIENCE;
    let mut quiet = 0;
    // Twice, because commits may be on their way.
    while quiet < 2 {
        let lag = Page::fetch(address)?.value("batzen_feed_lag_commits");
        quiet = if lag == Some(0.0) { quiet + 1 } else { 0 };
        ensure!(Instant::now() < deadline, "the auditor does not catch up: {lag:?} commits behind");
        std::thread::sleep(LOOK_PAUSE);
    }
    let access = experiment.hosts.get(&auditor.host).context("a placed instance has a host")?;
    let conf = access.dir.join(&auditor.name).join("conf").to_string_lossy().into_owned();
    let words = [access.batzen.as_str(), "auditor", "run", "-c", &conf, "--json"];
    // Findings make it fail, and are what is asked for.
    let (_, stdout, stderr) =
        experiment.agent(&auditor.host)?.run_whatever_comes(CommandLine::new(words), "")?;
    let report: Value =
        serde_json::from_str(&stdout).with_context(|| format!("auditor run: {}", stderr.trim()))?;
    ensure!(
        report["without_bank"].is_null(),
        "the auditor could not compare with the bank: {}",
        report["without_bank"]
    );
    let unchecked = report["accounts_not_checked"].as_array().is_some_and(|accounts| !accounts.is_empty());
    ensure!(!unchecked, "the auditor did not check {}", report["accounts_not_checked"]);
    let stream = &report["stream"];
    let is_connected = stream.is_null() || stream["connected"] == true && stream["failure"].is_null();
    ensure!(is_connected, "the auditor does not follow the exchange: {}", stream["text"]);
    Ok(report)
}

/// Whether the exchange's books balance, and the figures that say so.
fn books(experiment: &Experiment, exchange: &Instance) -> anyhow::Result<(bool, Value)> {
    const DIFFERENCE: &str = "batzen_money_conservation_difference";
    if experiment.of(Role::Postgres).is_empty() {
        // An embedded store is open in its service, whose metrics are exact after every commit.
        let page = Page::fetch(socket_addr(&exchange.authority())?)?;
        let difference = page.value(DIFFERENCE).context("the exchange is still adding up its rows")?;
        return Ok((difference == 0.0, json!({ DIFFERENCE: difference })));
    }
    let access = experiment.hosts.get(&exchange.host).context("a placed instance has a host")?;
    let conf = access.dir.join(&exchange.name).join("conf").to_string_lossy().into_owned();
    let words = [access.batzen.as_str(), "exchange", "totals", "-c", &conf, "--json"];
    let text = experiment.agent(&exchange.host)?.run(CommandLine::new(words))?;
    // The command fails unless the books balance.
    Ok((true, serde_json::from_str(&text).context("exchange totals")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_per_second_in_thousandths() {
        // 500 ms of processor time in two seconds are a quarter of a core.
        let close = (growth(100, 600, 10_000, 12_000) - 0.25).abs() < 1e-9;
        assert!(close);
    }
}
