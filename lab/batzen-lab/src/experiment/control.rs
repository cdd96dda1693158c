//! The controller's side of the load: orders for the generators, and what their wallets and the services did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{milliseconds, number};
use clap::{Args, Subcommand};
use serde_json::json;

use super::agent::{Agent, CommandLine, Request, Sample};
use super::check::remove_verdict;
use super::load::{LoadPlan, Mix, Order};
use super::placement::{Instance, metrics_authority, socket_addr};
use super::ramp::{HostUsage, Ramp, Step, Usage};
use super::scenario::{self, ScenarioArgs};
use super::state::Experiment;
use super::tally::{Second, Sum, times_table};
use super::topology::Role;
use super::{DirArgs, now_ms};
use crate::bench::load::scrape::Page;
use crate::bench::scenarios::options::Rate;

/// The file with the plan of the load.
pub(super) const PLAN: &str = "load.json";
/// The file with the last ramp.
pub(super) const RAMP: &str = "ramp.json";
/// Time after a change of the load that does not count.
const SETTLE: Duration = Duration::from_secs(2);
/// Samples up to this time before a step count as of the step.
const SAMPLES_BEFORE_MS: u64 = 1_500;
/// The pause between two looks at the generators.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Time after which a generator that writes nothing is silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Most attempts to bring all wallets to work before the first step.
const WARM_UPS_MAX: u32 = 6;

/// Put load on an experiment
#[derive(Args, Clone, Debug)]
pub struct LoadCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Start wallets, which withdraw, pay and take change, and transfers at a switch
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
    /// Wallets on all generator hosts together; of transfers, the most under way
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wallets: u32,
    /// Operations begun a second, whatever the services do, or a share of the knee of the last ramp (70%) [default: each wallet
    /// acts again after its pause]
    #[arg(long, value_name = "PER_SECOND|SHARE", value_parser = rate_or_share)]
    rate: Option<Rate>,
    /// Average pause of a wallet between two operations, without --rate
    #[arg(long, value_name = "MS", default_value_t = 0)]
    think_ms: u64,
    /// Weights of what is done: pay, refund, send; transfer at a switch [default: pay=1, without an exchange transfer=1]
    #[arg(long, value_name = "WHAT=WEIGHT,…")]
    mix: Option<Mix>,
    /// Seed of all choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct ScaleArgs {
    /// Wallets on all generator hosts together; of transfers, the most under way
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    wallets: u32,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct RateArgs {
    /// Operations begun a second, or a share of the knee of the last ramp (70%); `free`: each wallet acts again after its pause
    #[arg(value_name = "PER_SECOND|SHARE|free", value_parser = rate_or_free)]
    rate: RateChoice,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct MixArgs {
    /// Weights of what is done: pay, refund, send; transfer at a switch
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
    /// Wallets on all generator hosts together; of transfers, the most under way
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wallets: u32,
    /// Weights of what is done: pay, refund, send; transfer at a switch [default: pay=1, without an exchange transfer=1]
    #[arg(long, value_name = "WHAT=WEIGHT,…")]
    mix: Option<Mix>,
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

fn rate_or_share(text: &str) -> Result<Rate, String> {
    let wrong = || "expected a number above 0, such as 50, or a share of the knee, such as 70%".to_owned();
    if text.ends_with('%') {
        return text.parse().map_err(|_| wrong());
    }
    rate(text).map(Rate::PerSecond).map_err(|_| wrong())
}

/// The rate that `load rate` sets.
#[derive(Clone, Copy, Debug)]
enum RateChoice {
    Open(Rate),
    /// Each wallet acts again after its pause.
    Free,
}

fn rate_or_free(text: &str) -> Result<RateChoice, String> {
    if text == "free" { Ok(RateChoice::Free) } else { rate_or_share(text).map(RateChoice::Open) }
}

/// The operations a second of a rate. A share is one of the knee of the last ramp.
fn per_second(rate: Rate, knee_per_s: Option<f64>) -> anyhow::Result<f64> {
    match rate {
        Rate::PerSecond(per_s) => Ok(per_s),
        Rate::OfPeak(share) => {
            let knee_per_s = knee_per_s.context(
                "a share of the knee needs a ramp that found one: run `batzen-lab load ramp`, or name operations a second",
            )?;
            Ok(share * knee_per_s)
        }
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
pub(super) struct Generators {
    all: Vec<Generator>,
}

impl Generators {
    /// Connects to all; what they wrote before is left out.
    pub(super) fn connect(experiment: &Experiment) -> anyhow::Result<Self> {
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
        Ok(Self { all })
    }

    /// Tells all what to do, each its part, and with which services: one that was started again knows neither.
    fn order(&mut self, experiment: &Experiment, plan: &LoadPlan) -> anyhow::Result<()> {
        let count = self.all.len();
        for (index, generator) in self.all.iter_mut().enumerate() {
            let part = LoadPlan {
                wallets: plan.wallets / count + usize::from(index < plan.wallets % count),
                rate_per_s: plan.rate_per_s.map(|rate| rate / count as f64),
                seed: plan.seed.wrapping_mul(1000).wrapping_add(index as u64),
                ..*plan
            };
            let target = experiment.target(&generator.instance)?;
            for order in [Order::Target(target), Order::Plan(part)] {
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
            // A kill or a full disk may have cut a line.
            let lines = text[..whole].lines();
            let seconds: Vec<Second> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
            generator.wallets = seconds.last().map(|second| second.wallets).or(generator.wallets);
            all.push(seconds);
        }
        Ok(all)
    }

    /// Stops the load, and waits until all wallets have ended what they do.
    ///
    /// # Errors
    /// When they do not end.
    pub(super) fn stop(&mut self, experiment: &Experiment, patience: Duration) -> anyhow::Result<()> {
        put_plan(experiment, self, &LoadPlan::default())?;
        let deadline = Instant::now() + patience;
        // Only each generator itself knows whether its wallets are at work.
        while self.all.iter().any(|generator| generator.wallets != Some(0)) {
            ensure!(Instant::now() < deadline, "the wallets do not end their operations");
            std::thread::sleep(LOOK_PAUSE);
            self.seconds()?;
        }
        Ok(())
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
        // A kill or a full disk may have cut a line.
        let all = text[..whole].lines().filter_map(|line| serde_json::from_str::<Sample>(line).ok());
        found.extend(all.filter(|sample| times.contains(&sample.time_ms)));
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
                disk_delay_ms: None,
                disk_busy: before
                    .disk_busy_ms
                    .zip(after.disk_busy_ms)
                    .map(|(before, after)| growth(before, after, begin, end)),
                lane_s: None,
                commit_ms: None,
                rtt_ms: None,
            });
        }
        let states = experiment.agent(host)?.status()?;
        for used in usage.iter_mut().filter(|used| used.host == *host) {
            if let Some(state) = states.iter().find(|state| state.name == used.instance) {
                (used.share, used.disk_delay_ms) = (state.share, state.disk_delay_ms);
            }
        }
    }
    Ok((usage, hosts))
}

/// The pages with the metrics of the exchange's processes and of the switch.
fn pages(experiment: &Experiment) -> BTreeMap<String, Page> {
    let fetch = |instance: Instance| {
        let address = socket_addr(&metrics_authority(&instance)?).ok()?;
        Some((instance.name, Page::fetch(address).ok()?))
    };
    [Role::Exchange, Role::Switch]
        .into_iter()
        .flat_map(|role| experiment.of(role))
        .filter_map(fetch)
        .collect()
}

/// Adds the round trips from the exchange's processes to the database. Of the workers of a Citus cluster the nearest counts,
/// for which every commit waits at least.
fn add_round_trips(experiment: &Experiment, usage: &mut [Usage]) -> anyhow::Result<()> {
    let databases = experiment.databases();
    for used in usage.iter_mut().filter(|used| used.role == Role::Exchange) {
        let access = experiment.hosts.get(&used.host).context("a placed instance has a host")?;
        let mut agent = experiment.agent(&used.host)?;
        let probed = databases.iter().filter_map(|database| {
            let words = [access.lab.as_str(), "agent", "probe", "--to", &database.authority()];
            // A server that is down has no round trip.
            agent.run(CommandLine::new(words)).ok()?.trim().parse::<f64>().ok()
        });
        used.rtt_ms = probed.min_by(f64::total_cmp);
    }
    Ok(())
}

/// Adds what the lanes of exchange and switch did between two looks at their metrics.
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
        let counted =
            |sum: f64, series: &str| grown(series).filter(|count| *count > 0.0).map(|count| sum / count);
        if let (Some(prefetch), Some(execute), Some(commit)) =
            (stage("prefetch"), stage("execute"), stage("commit"))
        {
            // The sum is over all lanes, and one lane's time is a second a second.
            let lanes = after.value("batzen_lanes").filter(|lanes| *lanes >= 1.0).unwrap_or(1.0);
            used.lane_s = Some([prefetch, execute, commit].map(|sum| sum / seconds / lanes));
            let commits = counted(commit, "batzen_lane_stage_seconds_count{stage=\"commit\"}");
            used.commit_ms = commits.map(|commit_s| commit_s * 1000.0);
        } else if let Some(batches) = grown("batzen_switch_batch_seconds_sum") {
            // Nearly all of a batch of the switch is its commit.
            used.lane_s = Some([0.0, 0.0, batches / seconds]);
            used.commit_ms =
                counted(batches, "batzen_switch_batch_seconds_count").map(|commit_s| commit_s * 1000.0);
        }
    }
}

/// Divides the load among the present generators, and tells them about the present services.
///
/// # Errors
/// When one does not answer.
pub(super) fn divide_again(experiment: &Experiment) -> anyhow::Result<()> {
    let Ok(plan) = saved_plan(experiment) else { return Ok(()) };
    Generators::connect(experiment)?.order(experiment, &plan)
}

/// The operations of a load that names none.
fn usual_mix(experiment: &Experiment) -> Mix {
    if experiment.of(Role::Exchange).is_empty() { Mix::TRANSFERS } else { Mix::default() }
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
    generators.order(experiment, plan)?;
    experiment.keep(PLAN, &serde_json::to_string(plan)?)?;
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

    /// The plan after a change of it, where the last ramp found this knee.
    fn changed(&self, plan: LoadPlan, knee_per_s: Option<f64>) -> anyhow::Result<LoadPlan> {
        Ok(match self {
            Self::Start(args) => LoadPlan {
                wallets: args.wallets as usize,
                rate_per_s: args.rate.map(|rate| per_second(rate, knee_per_s)).transpose()?,
                think_ms: args.think_ms,
                mix: args.mix.unwrap_or(plan.mix),
                seed: args.seed,
            },
            Self::Stop(_) => LoadPlan::default(),
            Self::Scale(args) => LoadPlan { wallets: args.wallets as usize, ..plan },
            Self::Rate(args) => {
                let rate_per_s = match args.rate {
                    RateChoice::Free => None,
                    RateChoice::Open(rate) => Some(per_second(rate, knee_per_s)?),
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
        Action::Start(_) | Action::Stop(_) => LoadPlan { mix: usual_mix(&experiment), ..LoadPlan::default() },
        _ => saved_plan(&experiment)?,
    };
    let knee_per_s = kept_ramp(&experiment).and_then(|ramp| ramp.knee_ops_per_s);
    put_plan(&experiment, &mut generators, &command.action.changed(plan, knee_per_s)?)?;
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
    let mut spoke = Instant::now();
    while shown < args.seconds {
        std::thread::sleep(LOOK_PAUSE);
        waiting.extend(generators.seconds()?);
        // Each generator writes one line a second.
        if waiting.len() < count {
            ensure!(
                spoke.elapsed() < SILENCE_MAX,
                "a generator is silent: `batzen-lab status --dir {}` shows why",
                args.at.dir.display()
            );
            continue;
        }
        spoke = Instant::now();
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
                    "errors": sum.errors, "examples": sum.examples, "backlog": backlog,
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
                let id = sum.examples.get(reason).map_or_else(String::new, |id| format!(" (logs {id})"));
                println!("          {count} × {reason}{id}");
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
        began_ms: Some(from_ms),
        ended_ms: Some(to_ms),
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
        mix: args.mix.unwrap_or_else(|| usual_mix(&experiment)),
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
        experiment.keep(RAMP, &serde_json::to_string_pretty(&found)?)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers_or_shares_of_the_knee() {
        let of = |text: &str, knee| {
            per_second(rate_or_share(text).unwrap(), knee).map_err(|error| error.to_string())
        };
        assert_eq!(of("50", None), Ok(50.0));
        assert_eq!(of("70%", Some(200.0)), Ok(140.0));
        assert!(of("70%", None).unwrap_err().contains("load ramp"));
        for wrong in ["0", "-3", "0%", "x", "%", "1e9"] {
            assert!(rate_or_share(wrong).unwrap_err().contains("70%"), "{wrong}");
        }
        assert!(matches!(rate_or_free("free"), Ok(RateChoice::Free)));
    }

    #[test]
    fn growth_is_per_second_in_thousandths() {
        // 500 ms of processor time in two seconds are a quarter of a core.
        let close = (growth(100, 600, 10_000, 12_000) - 0.25).abs() < 1e-9;
        assert!(close);
    }
}
