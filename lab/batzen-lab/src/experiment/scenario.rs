//! Scenarios of `batzen-lab bench` on the hosts of the load, at the services of an experiment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{milliseconds, number};
use clap::Args;
use serde_json::{Value, json};

use super::agent::CommandLine;
use super::placement::{Instance, metrics_authority};
use super::state::{Experiment, write_own};
use super::topology::Role;
use super::{DirArgs, now_ms};
use crate::bench::results::result::RESULT_FILE;
use crate::bench::scenarios::options::measured_duration;

/// Time beyond the measured part that a scenario may take, most of it to prepare coins.
const PREPARATION: Duration = Duration::from_secs(1800);
/// Length of the measured part by default.
const DURATION: Duration = Duration::from_secs(10);
/// Transfers between participants of the switch.
const TRANSFER: &str = "transfer";
/// Transfers at the switch's ledger.
const LEDGER: &str = "ledger";

#[derive(Args, Clone, Debug)]
pub(super) struct ScenarioArgs {
    /// The scenario: those of `bench` at the exchange; `pay` at the merchant backends; `transfer`, which is `switch bench`, at
    /// the switch; `ledger`, which is `ledger bench`, at its ledger
    #[arg(value_parser = ["withdraw", "deposit", "batch-deposit", "p2p", "refresh", "mixed", "cycle", "pay", TRANSFER, LEDGER])]
    scenario: String,
    /// Connections of each generator
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Operations begun a second by all generators together [default: as fast as answers arrive]
    #[arg(long, value_name = "PER_SECOND", value_parser = super::control::rate)]
    rate: Option<f64>,
    /// Length of the measured part: seconds, or with a unit (500ms, 2m) [default: 10]
    #[arg(long, value_name = "TIME", value_parser = measured_duration)]
    duration: Option<Duration>,
    /// Further options of the scenario, after --
    #[arg(last = true, value_name = "OPTION")]
    further: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) at: DirArgs,
}

/// The figures of a scenario, of all generators together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bench {
    pub(super) ops_per_s: f64,
    /// The largest median of a generator.
    pub(super) p50_us: u64,
    /// The largest 99th percentile of a generator.
    pub(super) p99_us: u64,
}

/// The moment when a scenario began, by the name of its directory: milliseconds since 1970.
fn began_ms(directory: &Path) -> Option<u64> {
    directory.file_name()?.to_str()?.strip_prefix("bench-")?.rsplit_once('-')?.1.parse().ok()
}

impl Bench {
    /// The last scenario of the experiment in a directory.
    pub(super) fn last_in(dir: &Path) -> Option<Self> {
        let below = |dir: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(dir)
                .into_iter()
                .flatten()
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        };
        let mut runs: BTreeMap<u64, Self> = BTreeMap::new();
        let instances = below(&dir.join("hosts")).into_iter().flat_map(|host| below(&host));
        for run in instances.flat_map(|instance| below(&instance)) {
            let Some(began_ms) = began_ms(&run) else { continue };
            let Ok(text) = std::fs::read_to_string(run.join(RESULT_FILE)) else { continue };
            let Ok(result) = serde_json::from_str::<Value>(&text) else { continue };
            let figure = |name: &str| result["latency"][name].as_u64().or(result[name].as_u64()).unwrap_or(0);
            let sum = runs.entry(began_ms).or_default();
            sum.ops_per_s += result["ops_per_s"].as_f64().unwrap_or(0.0);
            sum.p50_us = sum.p50_us.max(figure("p50_us"));
            sum.p99_us = sum.p99_us.max(figure("p99_us"));
        }
        runs.into_values().next_back()
    }
}

/// Runs `batzen-lab load bench`: the scenario on all hosts of the load at the same time.
///
/// # Errors
/// When the service cannot be loaded so, or a host does not answer.
pub(super) fn run(args: &ScenarioArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let generators = experiment.of(Role::Load);
    ensure!(!generators.is_empty(), "the topology has no role load, whose hosts could put load on anything");
    let name = format!("bench-{}-{}", args.scenario, now_ms());
    let all = (0..generators.len()).map(|index| words(args, &experiment, (index, generators.len())));
    let all = all.collect::<anyhow::Result<Vec<Words>>>()?;
    experiment.event("bench", &args.scenario)?;
    let results: Vec<anyhow::Result<Value>> = thread::scope(|scope| {
        let measure = |(generator, words)| {
            let (experiment, name) = (&experiment, &name);
            scope.spawn(move || measure(experiment, generator, words, (name, args)))
        };
        let threads: Vec<_> = generators.iter().zip(&all).map(measure).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread of a generator broke down")))
        });
        joined.collect()
    });
    let results = results.into_iter().collect::<anyhow::Result<Vec<Value>>>()?;
    experiment.event("bench ends", &args.scenario)?;
    show(args, &generators, &results);
    let is_right =
        results.iter().all(|result| result["errors"].as_object().is_some_and(serde_json::Map::is_empty));
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl ScenarioArgs {
    /// The command whose scenario this is.
    fn command(&self) -> Vec<String> {
        let words = match self.scenario.as_str() {
            TRANSFER => ["switch", "bench"],
            LEDGER => ["ledger", "bench"],
            scenario => ["bench", scenario],
        };
        words.map(str::to_owned).into()
    }
}

/// The arguments of a generator, and the secrets that they name as files in the generator's directory.
struct Words {
    words: Vec<String>,
    /// The option of the file, its name and its text.
    secret: Option<(&'static str, &'static str, String)>,
}

/// The arguments of one of so many generators.
fn words(
    args: &ScenarioArgs,
    experiment: &Experiment,
    (index, count): (usize, usize),
) -> anyhow::Result<Words> {
    let mut words = Words { words: args.command(), secret: None };
    let mut option = |name: &str, value: String| words.words.extend([name.to_owned(), value]);
    let all_of = |role: Role| {
        let all = experiment.of(role);
        ensure!(!all.is_empty(), "the topology has no {role}");
        Ok(all)
    };
    let clients = args.clients.to_string();
    match args.scenario.as_str() {
        LEDGER => {
            let unused = args.rate.is_some() || args.duration.is_some();
            ensure!(!unused, "ledger does a number of transfers as fast as it can: `-- --transfers N`");
            let of_switch = all_of(Role::Ledger).context("the switch keeps its ledger in its own process")?;
            option("--target", format!("tcp://{}", of_switch[0].authority()));
            option("--clients", clients);
        }
        TRANSFER => {
            let switch = all_of(Role::Switch)?.remove(0);
            let admin = metrics_authority(&switch).context("a switch has a port for operators")?;
            option("--target", format!("http://{}/", switch.authority()));
            option("--admin", format!("http://{admin}/"));
            option("--connections", clients);
            words.secret = Some(("--tokens", "bench-tokens", experiment.state.operator_tokens.join("\n")));
        }
        scenario => {
            // Past the proxy: prepared requests are not encrypted.
            option("--target", format!("http://{}/", all_of(Role::Exchange)?[0].authority()));
            option("--gateway", experiment.gateway_url()?);
            option("--rsa", experiment.topology.rsa_bits.to_string());
            option("--clients", clients);
            if scenario == "pay" {
                let merchants = all_of(Role::Merchant)?;
                option("--merchant", format!("http://{}/", merchants[index % merchants.len()].authority()));
                words.secret = Some(("--token-file", "bench-token", experiment.state.shop_token.clone()));
            }
        }
    }
    let mut option = |name: &str, value: String| words.words.extend([name.to_owned(), value]);
    if args.scenario != LEDGER {
        option("--duration", format!("{}ms", args.duration.unwrap_or(DURATION).as_millis()));
    }
    if let Some(rate) = args.rate {
        option("--rate", (rate / count as f64).to_string());
    }
    words.words.extend(args.further.iter().cloned());
    words.words.push("--json".to_owned());
    Ok(words)
}

/// Runs the scenario on the host of a generator. Its result is kept beside the generator's other files.
fn measure(
    experiment: &Experiment,
    generator: &Instance,
    words: &Words,
    (name, args): (&str, &ScenarioArgs),
) -> anyhow::Result<Value> {
    let access = experiment.hosts.get(&generator.host).context("a placed instance has a host")?;
    let dir = access.dir.join(&generator.name);
    let patience = args.duration.unwrap_or(DURATION) + PREPARATION;
    let mut agent = experiment.patient_agent(&generator.host, patience)?;
    let mut command = vec![access.lab.clone()];
    command.extend(words.words.iter().cloned());
    // Other users of the host see what is on command lines.
    if let Some((option, file, secret)) = &words.secret {
        let path = dir.join(file);
        agent.put(&path, secret)?;
        command.extend([(*option).to_owned(), path.to_string_lossy().into_owned()]);
    }
    command.extend(["--out".to_owned(), dir.join(name).to_string_lossy().into_owned()]);
    let (_, stdout, stderr) = agent.run_whatever_comes(CommandLine::new(command), "")?;
    let result: Value = serde_json::from_str(&stdout)
        .map_err(|_| anyhow::anyhow!("{} on {}: {}", args.scenario, generator.host, stderr.trim()))?;
    // Other machines keep the rest until `down`.
    let host_dir = experiment.dir.join("hosts").join(&generator.host);
    write_own(&host_dir.join(&generator.name).join(name).join(RESULT_FILE), &stdout)?;
    Ok(result)
}

fn show(args: &ScenarioArgs, generators: &[Instance], results: &[Value]) {
    if args.json {
        println!("{}", json!({ "results": results }));
        return;
    }
    println!("{:<14}{:>10}{:>10}{:>10}{:>8}", "generator", "done/s", "p50 ms", "p99 ms", "errors");
    for (generator, result) in generators.iter().zip(results) {
        let figure = |name: &str| result[name].as_f64().unwrap_or(0.0);
        let errors = result["errors"].as_object().map_or(0, serde_json::Map::len);
        println!(
            "{:<14}{:>10}{:>10}{:>10}{errors:>8}",
            generator.name,
            number(figure("ops_per_s")),
            milliseconds(figure("p50_us")),
            milliseconds(figure("p99_us"))
        );
    }
    let all: f64 = results.iter().filter_map(|result| result["ops_per_s"].as_f64()).sum();
    println!("{} {} a second", number(all), results[0]["unit"].as_str().unwrap_or("operations"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_scenario_of_all_generators_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Bench::last_in(dir.path()), None);
        for (run, ops_per_s, p99_us) in [
            ("a/load-1/bench-batch-deposit-1000", 7, 3),
            ("a/load-1/bench-batch-deposit-2000", 100, 3_000),
            ("b/load-2/bench-batch-deposit-2000", 50, 4_000),
            ("b/load-2/conf", 1, 1),
        ] {
            let run = dir.path().join("hosts").join(run);
            std::fs::create_dir_all(&run).unwrap();
            let result = json!({ "ops_per_s": ops_per_s, "latency": { "p50_us": 2_000, "p99_us": p99_us } });
            std::fs::write(run.join(RESULT_FILE), result.to_string()).unwrap();
        }
        let expected = Bench { ops_per_s: 150.0, p50_us: 2_000, p99_us: 4_000 };
        assert_eq!(Bench::last_in(dir.path()), Some(expected));
    }
}
