//! Scenarios of `batzen-lab bench` on the hosts of the load, at the exchange of an experiment.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{milliseconds, number};
use clap::Args;
use serde_json::{Value, json};

use super::agent::CommandLine;
use super::placement::Instance;
use super::state::{Experiment, write_own};
use super::topology::Role;
use super::{DirArgs, now_ms};
use crate::bench::scenarios::options::measured_duration;

/// Time beyond the measured part that a scenario may take, most of it to prepare coins.
const PREPARATION: Duration = Duration::from_secs(1800);

#[derive(Args, Clone, Debug)]
pub(super) struct ScenarioArgs {
    /// The scenario
    #[arg(value_parser = ["withdraw", "deposit", "batch-deposit", "p2p", "refresh", "mixed", "cycle"])]
    scenario: String,
    /// Connections of each generator
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Operations begun a second by all generators together [default: as fast as answers arrive]
    #[arg(long, value_name = "PER_SECOND", value_parser = super::control::rate)]
    rate: Option<f64>,
    /// Length of the measured part: seconds, or with a unit (500ms, 2m)
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = measured_duration)]
    duration: Duration,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) at: DirArgs,
}

/// The moment when a scenario began, by the name of its directory: milliseconds since 1970.
pub(super) fn scenario_began_ms(directory: &str) -> Option<u64> {
    directory.strip_prefix("bench-")?.rsplit_once('-')?.1.parse().ok()
}

/// Runs `batzen-lab load bench`: the scenario on all hosts of the load at the same time.
///
/// # Errors
/// When the exchange cannot be loaded so, or a host does not answer.
pub(super) fn run(args: &ScenarioArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let generators = experiment.of(Role::Load);
    ensure!(!generators.is_empty(), "the topology has no role load, whose hosts could put load on anything");
    let name = format!("bench-{}-{}", args.scenario, now_ms());
    let words = words(args, &experiment, generators.len())?;
    experiment.event("bench", &args.scenario)?;
    let results: Vec<anyhow::Result<Value>> = thread::scope(|scope| {
        let measure = |generator| {
            let (experiment, words, name) = (&experiment, &words, &name);
            scope.spawn(move || measure(experiment, generator, words, name, args.duration))
        };
        let threads: Vec<_> = generators.iter().map(measure).collect();
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

/// The arguments of each of so many generators.
fn words(args: &ScenarioArgs, experiment: &Experiment, count: usize) -> anyhow::Result<Vec<String>> {
    // Past the proxy: prepared requests are not encrypted.
    let exchange =
        experiment.of(Role::Exchange).into_iter().next().context("the topology has no exchange")?;
    let gateway = experiment.gateway_url()?;
    let target = format!("http://{}/", exchange.authority());
    let mut words = vec!["bench".to_owned(), args.scenario.clone()];
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    option("--target", target);
    option("--gateway", gateway);
    option("--rsa", experiment.topology.rsa_bits.to_string());
    option("--clients", args.clients.to_string());
    option("--duration", format!("{}ms", args.duration.as_millis()));
    if let Some(rate) = args.rate {
        option("--rate", (rate / count as f64).to_string());
    }
    words.push("--json".to_owned());
    Ok(words)
}

/// Runs the scenario on the host of a generator. Its result is kept beside the generator's other files.
fn measure(
    experiment: &Experiment,
    generator: &Instance,
    words: &[String],
    name: &str,
    duration: Duration,
) -> anyhow::Result<Value> {
    let access = experiment.hosts.get(&generator.host).context("a placed instance has a host")?;
    let out = access.dir.join(&generator.name).join(name).to_string_lossy().into_owned();
    let command = [&access.lab].into_iter().chain(words).map(String::as_str).chain(["--out", &out]);
    let mut agent = experiment.patient_agent(&generator.host, duration + PREPARATION)?;
    let (_, stdout, stderr) = agent.run_whatever_comes(CommandLine::new(command), "")?;
    let result: Value = serde_json::from_str(&stdout)
        .map_err(|_| anyhow::anyhow!("{} on {}: {}", words[1], generator.host, stderr.trim()))?;
    // Other machines keep the rest until `down`.
    let host_dir = experiment.dir.join("hosts").join(&generator.host);
    write_own(&host_dir.join(&generator.name).join(name).join("result.json"), &stdout)?;
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
