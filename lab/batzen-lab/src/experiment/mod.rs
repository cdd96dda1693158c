//! Experiments: a whole payment system set up on many hosts from one description, loaded, watched, broken, and kept.
//!
//! | module | contents |
//! |---|---|
//! | [`topology`] | the description: hosts, roles, links |
//! | [`placement`] | which instance runs where |
//! | [`agent`] | the process on each host that runs the others |
//! | `hosts` | how hosts are made, reached and removed |
//! | `container` | hosts that are containers |
//! | `provision` | packages on hosts that ssh reaches |
//! | `setup` | files, keys and commands of each role |
//! | `state` | the directory of an experiment |
//! | `load` | wallets that put load on everything |
//! | `logs` | the logs of all hosts, by time and by correlation id |
//! | `tally` | the operations of these wallets: counts, latencies, times by amount and number of coins |
//! | `metrics` | the same for Prometheus |
//! | `scenario` | scenarios of `batzen-lab bench` on the hosts of the load |
//! | `network` | delay, loss and cuts between sites |
//! | `control` | the controller's side of the load |
//! | `disturb` | failures and changes while it runs |
//! | `check` | whether money is lost |
//! | [`ramp`] | the knee of the load curve, and what limits it |
//! | `page` | the page of a kept experiment |
//! | `summary` | the last load of a kept experiment in figures, and a line for each of its minutes |
//! | `pack` | a kept experiment as one file to send |
//! | `compare` | two experiments, or repetitions of them, beside each other |
//! | `cost` | what the steps of a sweep cost, and what each adds |
//! | `sweep` | the same experiment with other values of one parameter |

pub mod agent;
mod check;
mod compare;
mod container;
mod control;
mod cost;
mod disturb;
mod hosts;
mod load;
mod logs;
mod metrics;
mod network;
mod pack;
mod page;
pub mod placement;
mod provision;
pub mod ramp;
mod scenario;
#[cfg(test)]
mod schema;
mod setup;
mod state;
mod summary;
mod sweep;
mod tally;
pub mod topology;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

pub(crate) use agent::now_ms;
pub use compare::{CompareArgs, run as compare};
pub use control::LoadCommand;
pub use cost::{CostArgs, run as cost};
pub use disturb::{DisturbArgs, disturb};
pub use logs::{LogsArgs, run as logs};
pub use pack::{PackArgs, run as pack};
pub use provision::{ProvisionArgs, run as provision};
pub use sweep::{SweepArgs, run as sweep};

use crate::bench::results::result::SUMMARY_FILE;
use agent::{Agent, Reply, Request};
use pack::Opened;
use placement::Instance;
use setup::SetUp;
use state::Experiment;
use summary::Summary;
use topology::{HostKind, Role, Step, Topology};

/// The directory of an experiment
#[derive(Args, Clone, Debug)]
pub struct DirArgs {
    /// Directory of the experiment
    #[arg(long, value_name = "DIR", default_value = "experiment")]
    dir: PathBuf,
}

/// Set up a payment system on the hosts of a topology
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// The topology, a TOML file; lab/topologies has examples
    #[arg(value_name = "FILE")]
    topology: PathBuf,
    #[command(flatten)]
    at: DirArgs,
    /// Print the plan only
    #[arg(long)]
    plan: bool,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

/// Run a whole experiment: set up, run the steps of the file, check, end, and write the page
#[derive(Args, Clone, Debug)]
pub struct ExperimentArgs {
    /// The topology with its steps, a TOML file; lab/topologies has examples
    #[arg(value_name = "FILE")]
    topology: PathBuf,
    #[command(flatten)]
    at: DirArgs,
}

/// Show what runs where
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    at: DirArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// End everything, and keep the result
#[derive(Args, Clone, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    at: DirArgs,
}

/// Add or remove instances of a role while everything runs
#[derive(Args, Clone, Debug)]
pub struct ScaleArgs {
    /// exchange, worker, merchant or load
    role: String,
    /// Instances from now on
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    count: u16,
    #[command(flatten)]
    at: DirArgs,
}

/// Start an instance again with another version's program
#[derive(Args, Clone, Debug)]
pub struct UpgradeArgs {
    /// Name of the instance
    instance: String,
    /// Directory of the other `batzen` on its host
    #[arg(value_name = "DIR")]
    bin_dir: PathBuf,
    #[command(flatten)]
    at: DirArgs,
}

/// Run a command on a host, or a shell
#[derive(Args, Clone, Debug)]
pub struct SshArgs {
    /// The host
    host: String,
    /// The command and its arguments [default: a shell]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    at: DirArgs,
}

/// Check that no money is lost: end the load, and ask the auditor, the books and the switch
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    at: DirArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Show a kept experiment as a page
#[derive(Args, Clone, Debug)]
pub struct OpenArgs {
    /// Directory of the experiment, or the file that `pack` made of it
    #[arg(value_name = "DIR|FILE", default_value = "experiment")]
    kept: PathBuf,
    /// Write the page to this file instead of DIR/report.html, or of FILE with .html in place of its ending
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Serve what Prometheus recorded, until Ctrl-C
    #[arg(long)]
    prometheus: bool,
}

/// The agent of a host, which the controller starts
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum AgentCommand {
    /// Run the processes of a host
    Serve(agent::ServeArgs),
    /// Connect standard input and output with an agent
    Connect(agent::ConnectArgs),
    /// Kill what an agent that is gone has left behind
    Clean(agent::ConnectArgs),
    /// Print the round trip to a service in milliseconds
    Probe(agent::ProbeArgs),
    /// Emulate the links between sites
    Network(network::NetworkArgs),
    /// Generate load with wallets, as ordered on standard input
    Load(load::GeneratorArgs),
}

/// Runs `batzen-lab agent`.
///
/// # Errors
/// As the command of the agent.
pub fn agent(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        AgentCommand::Serve(args) => agent::serve(args),
        AgentCommand::Connect(args) => agent::connect(args),
        AgentCommand::Clean(args) => agent::clean(args),
        AgentCommand::Probe(args) => agent::probe(args),
        AgentCommand::Network(args) => network::run(args),
        AgentCommand::Load(args) => load::run(args),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(path: &Path) -> anyhow::Result<(String, Topology)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let topology = Topology::parse(&text).with_context(|| path.display().to_string())?;
    Ok((text, topology))
}

/// Runs `batzen-lab up`.
///
/// # Errors
/// When the topology is wrong, or a role does not start. Then everything is removed again but the logs.
pub fn up(args: &UpArgs, commit: &str, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let (text, topology) = read(&args.topology)?;
    if args.plan {
        let mut port = 40_000;
        let mut planned = placement::place(&topology, 64, || {
            port += 1;
            anyhow::Ok(port)
        })?;
        let (nowhere, own) = (Path::new(""), state::own_bin_dir()?);
        let hosts = hosts::accesses(&topology, nowhere, ("", nowhere), &own);
        hosts::note_versions(&mut planned, &hosts)?;
        print_plan(args.json, &topology, &planned)?;
        return Ok(ExitCode::SUCCESS);
    }
    start(&text, topology, &args.at.dir, (commit, interrupted), args.json)?;
    eprintln!(
        "up: `batzen-lab load start --dir {0}` puts load on it, `batzen-lab down --dir {0}` ends it",
        args.at.dir.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Sets everything up in a directory, or nothing.
fn start(
    text: &str,
    topology: Topology,
    dir: &Path,
    (commit, interrupted): (&str, &AtomicBool),
    as_json: bool,
) -> anyhow::Result<Experiment> {
    let is_new = !dir.exists();
    let created = Experiment::create(dir, text, topology, commit);
    let mut experiment = match created {
        Ok(experiment) => experiment,
        Err(error) => {
            // What was claimed before it failed.
            if is_new && let Ok(mut begun) = Experiment::open(dir) {
                take_down(&mut begun)?;
            }
            return Err(error);
        }
    };
    print_plan(as_json, &experiment.topology, &experiment.state.instances)?;
    if let Err(error) = set_up(&mut experiment, interrupted) {
        eprintln!("taking everything down again; logs stay in {}", experiment.dir.display());
        if let Err(error) = take_down(&mut experiment) {
            eprintln!("{error:#}");
        }
        return Err(error);
    }
    Ok(experiment)
}

fn print_plan(as_json: bool, topology: &Topology, instances: &[Instance]) -> anyhow::Result<()> {
    if as_json {
        println!("{}", serde_json::to_string(&json!({ "name": topology.name, "instances": instances }))?);
    } else {
        print!("{}", placement::table(topology, instances));
    }
    Ok(())
}

fn set_up(experiment: &mut Experiment, interrupted: &AtomicBool) -> anyhow::Result<()> {
    experiment.event("up", &experiment.topology.name)?;
    let network = experiment.state.network;
    hosts::make_namespaces(&experiment.topology, network)?;
    let mut agents: BTreeMap<String, Agent> = BTreeMap::new();
    for (name, access) in &experiment.hosts.clone() {
        ensure!(!interrupted.load(Relaxed), "interrupted");
        let agent = hosts::launch(access, network)?;
        experiment.state.clock_offsets_ms.insert(name.clone(), agent.clock_offset_ms);
        let machine = experiment.machine(name);
        experiment.state.machines.insert(machine, agent.machine.clone());
        agents.insert(name.clone(), agent);
    }
    connect_hosts(experiment, &mut agents)?;
    experiment.save()?;
    SetUp::new(experiment, agents, interrupted).start_all()?;
    experiment.event("ready", &experiment.topology.name)
}

/// Lets every host show its metrics, and measure its way to the others.
fn connect_hosts(experiment: &mut Experiment, agents: &mut BTreeMap<String, Agent>) -> anyhow::Result<()> {
    for host in experiment.topology.hosts.keys() {
        let address = placement::address(&experiment.topology, experiment.state.network, host);
        let agent = agents.get_mut(host).context("every host has an agent")?;
        let Reply::Listening { port } = agent.ask(&Request::Listen { address: address.clone() })? else {
            bail!("{host}: its agent does not listen")
        };
        experiment.state.pages.insert(host.clone(), format!("{address}:{port}"));
    }
    for host in experiment.topology.hosts.keys() {
        let mut peers = experiment.state.pages.clone();
        peers.remove(host);
        agents.get_mut(host).context("every host has an agent")?.ask(&Request::Follow { peers })?;
    }
    Ok(())
}

/// Ends everything of an experiment, and fetches what other machines have kept.
fn take_down(experiment: &mut Experiment) -> anyhow::Result<()> {
    let (begun_ms, mut failures) = (now_ms(), Vec::new());
    for access in experiment.hosts.values() {
        if let Err(error) = end_host(experiment, access) {
            failures.push(format!("{}: {error:#}", access.name));
        }
    }
    let (topology, network) = (&experiment.topology, experiment.state.network);
    let removed = [container::remove_all(topology, network), hosts::remove_namespaces(network)];
    for error in removed.into_iter().filter_map(Result::err) {
        failures.push(format!("{error:#}"));
    }
    if let Err(error) = std::fs::remove_dir_all(&experiment.state.runtime_dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        failures.push(format!("{}: {error}", experiment.state.runtime_dir.display()));
    }
    // Nothing runs any more that would take the room away.
    experiment.release_spare();
    experiment.event_at(begun_ms, "down", &experiment.topology.name)?;
    ensure!(failures.is_empty(), "not everything could be ended: {}", failures.join("; "));
    experiment.state.is_up = false;
    // Another experiment may have this number from now on.
    experiment.state.network = 0;
    experiment.save()
}

/// Ends what runs on a host. What another machine has kept is fetched first, and removed there.
fn end_host(experiment: &Experiment, access: &hosts::HostAccess) -> anyhow::Result<()> {
    if access.kind != HostKind::Ssh {
        return hosts::end(access);
    }
    if !hosts::has_dir(access)? {
        return Ok(());
    }
    // An agent that was killed is replaced, since only an agent reads the files there.
    let agent = experiment.agent(&access.name).or_else(|_| hosts::launch(access, experiment.state.network));
    let fetched = agent.and_then(|agent| fetch(experiment, access, agent));
    hosts::end(access)?;
    // What could not be fetched stays there.
    fetched?;
    hosts::remove_dir(access)
}

/// Fetches samples and outputs of a host of another machine.
fn fetch(experiment: &Experiment, access: &hosts::HostAccess, mut agent: Agent) -> anyhow::Result<()> {
    let there = experiment.state.instances.iter().filter(|instance| instance.host == access.name);
    let mut files = vec![PathBuf::from("samples.jsonl"), PathBuf::from("agent.log")];
    for instance in there {
        let dir = PathBuf::from(&instance.name);
        files.extend(["out", "log", "conf"].map(|name| dir.join(name)));
    }
    for file in files {
        let path = experiment.dir.join("hosts").join(&access.name).join(&file);
        match agent.text(&access.dir.join(&file)) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => state::write_own(&path, &text)?,
            // Not every role has every file.
            Err(error) if format!("{error:#}").contains("os error 2") => {}
            Err(error) => return Err(error.context(file.display().to_string())),
        }
    }
    Ok(())
}

/// Runs `batzen-lab down`.
///
/// # Errors
/// When something could not be ended; what could is.
pub fn down(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let mut experiment = Experiment::open(&args.at.dir)?;
    if !experiment.state.is_up {
        eprintln!("it is down already");
        return Ok(ExitCode::SUCCESS);
    }
    take_down(&mut experiment)?;
    eprintln!("down; `batzen-lab open {}` shows what was kept", args.at.dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs `batzen-lab experiment`. The last line of its output is JSON with the verdict.
///
/// # Errors
/// When it cannot be set up or ended. Steps that fail are in the verdict.
pub fn experiment(args: &ExperimentArgs, commit: &str, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let (text, topology) = read(&args.topology)?;
    let (verdict, _) = carry_out(&text, topology, &args.at.dir, commit, interrupted)?;
    println!("{verdict}");
    Ok(if verdict["ok"] == true { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sets up, takes the steps, checks, ends, and writes the page. Returns the verdict and the last ramp.
fn carry_out(
    text: &str,
    topology: Topology,
    dir: &Path,
    commit: &str,
    interrupted: &AtomicBool,
) -> anyhow::Result<(Value, Option<ramp::Ramp>)> {
    let mut experiment = start(text, topology, dir, (commit, interrupted), false)?;
    let mut failed = Vec::new();
    let steps = experiment.topology.steps.clone();
    for step in steps.iter().take_while(|_| !interrupted.load(Relaxed)) {
        if let Err(error) = take_step(&experiment, step, interrupted) {
            eprintln!("{error:#}");
            failed.push(format!("{error:#}"));
        }
    }
    // The steps may have added instances.
    experiment = Experiment::open(dir)?;
    let checked = check::check(&experiment);
    if let Err(error) = take_down(&mut experiment) {
        failed.push(format!("{error:#}"));
    }
    let checked = checked.unwrap_or_else(|error| {
        failed.push(format!("check: {error:#}"));
        json!({})
    });
    let path = experiment.dir.join("report.html");
    if let Err(error) = keep_page(&experiment, &path) {
        failed.push(format!("{}: {error:#}", path.display()));
    }
    if interrupted.load(Relaxed) {
        failed.push("interrupted".to_owned());
    }
    let ramp = control::kept_ramp(&experiment);
    let operations = page::operations(&experiment);
    let has_done = operations > 0 || scenario::Bench::last_in(dir).is_some_and(|bench| bench.ops_per_s > 0.0);
    if !has_done && !experiment.of(Role::Load).is_empty() {
        failed.push("the load has done nothing".to_owned());
    }
    let is_right =
        checked["conserved"] == true && checked["findings"].as_u64().is_none_or(|count| count == 0);
    let verdict = json!({
        "ok": failed.is_empty() && is_right,
        "operations": operations,
        "knee_ops_per_s": ramp.as_ref().and_then(|ramp| ramp.knee_ops_per_s),
        "bottleneck": ramp.as_ref().and_then(|ramp| ramp.bottleneck.clone()),
        "conserved": checked["conserved"],
        "findings": checked["findings"],
        "failed": failed,
        "report": path,
    });
    Ok((verdict, ramp))
}

/// Writes the page, and beside it the summary of the last load.
fn keep_page(experiment: &Experiment, path: &Path) -> anyhow::Result<()> {
    let kept = page::Kept::read(experiment);
    std::fs::write(path, page::html(experiment, &kept)?)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    if let Some(summary) = Summary::of(experiment, &kept) {
        std::fs::write(beside.join(SUMMARY_FILE), serde_json::to_string_pretty(&summary)? + "\n")?;
    }
    if let Some(lines) = summary::by_minute(experiment, &kept) {
        std::fs::write(beside.join(summary::BY_MINUTE), lines)?;
    }
    Ok(())
}

/// Takes a step as a user would: with this program.
fn take_step(experiment: &Experiment, step: &Step, interrupted: &AtomicBool) -> anyhow::Result<()> {
    match step {
        Step::Wait { wait_s } => {
            let end = Instant::now() + Duration::from_secs_f64(*wait_s);
            while Instant::now() < end && !interrupted.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        }
        Step::Run { run } => {
            eprintln!("> {}", run.join(" "));
            let others = run.iter().position(|word| word == "--").unwrap_or(run.len());
            let split = if run[0] == "ssh" { 1 } else { others };
            let mut command = Command::new(std::env::current_exe()?);
            command.args(&run[..split]).arg("--dir").arg(&experiment.dir).args(&run[split..]);
            // Standard output is for the verdict alone.
            let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status()?;
            ensure!(status.success(), "{}: {status}", run.join(" "));
            Ok(())
        }
    }
}

/// Runs `batzen-lab status`.
///
/// # Errors
/// When the directory holds no experiment.
pub fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let mut rows = Vec::new();
    let mut is_well = true;
    let mut round_trips_ms: page::RoundTrips = BTreeMap::new();
    for host in experiment.hosts.keys() {
        let asked = experiment.agent(host).and_then(|mut agent| {
            let states = agent.status()?;
            round_trips_ms.insert(host.clone(), std::mem::take(&mut agent.round_trips_ms));
            Ok((states, agent.trouble.take()))
        });
        let (states, trouble) = asked.unwrap_or_else(|error| (Vec::new(), Some(format!("{error:#}"))));
        if let Some(error) = trouble {
            is_well = false;
            rows.push(json!({ "host": host, "instance": "agent", "error": error }));
        }
        for state in states {
            is_well &= state.pid.is_some() == state.is_wanted;
            let mut instances = experiment.state.instances.iter();
            let instance = instances.find(|instance| instance.processes().contains(&state.name));
            rows.push(json!({
                "host": host, "instance": state.name, "pid": state.pid,
                "version": instance.and_then(|instance| instance.version.as_ref()), "wanted": state.is_wanted,
                "restarts": state.restarts, "ended": state.ended, "share": state.share,
                "disk_delay_ms": state.disk_delay_ms,
            }));
        }
    }
    if args.json {
        let up = experiment.state.is_up;
        println!(
            "{}",
            json!({ "up": up, "well": is_well, "processes": rows, "round_trips_ms": round_trips_ms })
        );
    } else {
        println!("{:<14}{:<26}{:>9}  {:<10}state", "host", "process", "pid", "version");
        for row in &rows {
            println!("{}", status_line(row));
        }
        print!("{}", page::round_trip_table(&round_trips_ms));
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn status_line(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let pid = row["pid"].as_u64().map_or_else(|| "–".to_owned(), |pid| pid.to_string());
    let mut state = match (row["error"].as_str(), row["pid"].is_u64(), row["wanted"].as_bool()) {
        (Some(error), _, _) => error.to_owned(),
        (None, true, _) => "runs".to_owned(),
        (None, false, Some(false)) => "stopped".to_owned(),
        (None, false, _) => format!("ended: {}", text("ended")),
    };
    if let Some(restarts) = row["restarts"].as_u64().filter(|restarts| *restarts > 0) {
        state.push_str(&format!(", started again {restarts} times ({})", text("ended")));
    }
    if let Some(share) = row["share"].as_f64().filter(|share| *share < 1.0) {
        state.push_str(&format!(", {} % of the time", share * 100.0));
    }
    if let Some(delay_ms) = row["disk_delay_ms"].as_f64().filter(|delay_ms| *delay_ms > 0.0) {
        state.push_str(&format!(", syncs take {delay_ms} ms longer"));
    }
    let version = row["version"].as_str().unwrap_or("–");
    format!("{:<14}{:<26}{pid:>9}  {version:<10}{state}", text("host"), text("instance"))
}

/// Runs `batzen-lab scale`.
///
/// # Errors
/// When the role cannot have several instances, or one does not start.
pub fn scale(args: &ScaleArgs, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let mut experiment = Experiment::open(&args.at.dir)?;
    let role = [Role::Exchange, Role::Worker, Role::Merchant, Role::Load]
        .into_iter()
        .find(|role| role.name() == args.role)
        .with_context(|| format!("{}: expected exchange, worker, merchant or load", args.role))?;
    let present = experiment.of(role);
    ensure!(!present.is_empty(), "the topology has no {role}");
    ensure!(
        role != Role::Exchange || !experiment.of(Role::Proxy).is_empty(),
        "several processes of an exchange need a database, a signer and a proxy in the topology"
    );
    let agents = experiment.agents()?;
    let before = experiment.state.instances.clone();
    let mut added = Vec::new();
    for index in u16::try_from(present.len())?..args.count {
        let instance = one_more(&experiment, role, index)?;
        // One that was removed comes back with its name.
        experiment.state.instances.retain(|known| known.name != instance.name);
        experiment.state.instances.push(instance.clone());
        added.push(instance);
    }
    let removed: Vec<Instance> = present.into_iter().skip(usize::from(args.count)).collect();
    for instance in &mut experiment.state.instances {
        instance.is_removed |= removed.iter().any(|removed| removed.name == instance.name);
    }
    if let Err(error) = follow_scale(&mut experiment, agents, (&added, &removed), interrupted) {
        // It is not known to the others, and ends with the agent at the latest.
        experiment.state.instances = before;
        experiment.save()?;
        return Err(error);
    }
    experiment.save()?;
    control::divide_again(&experiment)?;
    experiment.event("scale", &format!("{role} {}", args.count))?;
    Ok(ExitCode::SUCCESS)
}

/// The place of one more instance of a role: those of the topology take turns.
fn one_more(experiment: &Experiment, role: Role, index: u16) -> anyhow::Result<Instance> {
    let specs = experiment.topology.roles.iter().filter(|spec| spec.role == role);
    let places: Vec<_> = specs.flat_map(|spec| spec.hosts.iter().map(move |host| (spec, host))).collect();
    let (spec, host) = places[usize::from(index) % places.len()];
    let address = placement::address(&experiment.topology, experiment.state.network, host);
    let is_local = experiment.hosts.get(host).is_some_and(|access| access.kind == HostKind::Local);
    let there = experiment.state.instances.iter().filter(|instance| instance.host == *host);
    let mut used: Vec<u16> = there.flat_map(|instance| instance.ports.clone()).collect();
    let mut ports = Vec::new();
    for base in experiment.topology.ports(spec) {
        let port = if is_local {
            batzen_testkit::ports::reserve()?
        } else {
            (*base..).step_by(100).find(|port| !used.contains(port)).unwrap_or(*base)
        };
        used.push(port);
        ports.push(port);
    }
    Ok(Instance::new(spec, format!("{role}-{}", index + 1), index, (host, address, ports)))
}

/// Starts what was added, tells the others, and ends what was removed.
fn follow_scale(
    experiment: &mut Experiment,
    agents: BTreeMap<String, Agent>,
    (added, removed): (&[Instance], &[Instance]),
    interrupted: &AtomicBool,
) -> anyhow::Result<()> {
    let mut set_up = SetUp::new(experiment, agents, interrupted);
    let is_exchange = added.iter().chain(removed).any(|instance| instance.role == Role::Exchange);
    if is_exchange && !added.is_empty() {
        set_up.update_signers()?;
    }
    for instance in added {
        set_up.start(instance)?;
        set_up.wait_open(instance)?;
    }
    if is_exchange {
        set_up.update_proxy()?;
    }
    removed.iter().try_for_each(|instance| set_up.remove(instance))?;
    set_up.update_prometheus()
}

/// Runs `batzen-lab upgrade`.
///
/// # Errors
/// When there is no such instance or program, or it does not come back.
pub fn upgrade(args: &UpgradeArgs, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let dir = &args.bin_dir;
    ensure!(dir.is_absolute(), "{}: expected a directory that begins with /", dir.display());
    let mut experiment = Experiment::open(&args.at.dir)?;
    let role = experiment.instance(&args.instance)?.role;
    ensure!(role.is_of_batzen(), "a {role} does not run batzen");
    let mut found = experiment.state.instances.iter_mut();
    let known = found.find(|known| known.name == args.instance).context("it was found before")?;
    (known.bin_dir, known.version) = (Some(dir.clone()), None);
    let (instance, agents) = (known.clone(), experiment.agents()?);
    SetUp::new(&mut experiment, agents, interrupted).restart(&instance)?;
    experiment.event("upgrade", &format!("{}: {}", args.instance, dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `batzen-lab ssh`.
///
/// # Errors
/// When there is no such host, or the command cannot be started.
pub fn shell(args: &SshArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let access = experiment.hosts.get(&args.host).with_context(|| {
        let names: Vec<&str> = experiment.hosts.keys().map(String::as_str).collect();
        format!("there is no host {}; there are {}", args.host, names.join(", "))
    })?;
    let mut command = match &access.reach {
        agent::Reach::Ssh { destination, config, .. } => agent::ssh(destination, config.as_deref()),
        agent::Reach::Socket(_) if access.kind == HostKind::Container => {
            let has_terminal = std::io::IsTerminal::is_terminal(&std::io::stdin());
            container::exec(access, experiment.state.network, has_terminal)
        }
        agent::Reach::Socket(_) if access.kind == HostKind::Namespace => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &hosts::namespace(experiment.state.network, &access.name)]);
            command
        }
        agent::Reach::Socket(_) => Command::new("env"),
    };
    match (&access.reach, args.command.is_empty()) {
        (agent::Reach::Ssh { .. }, true) => {}
        // A shell there takes the words apart again.
        (agent::Reach::Ssh { .. }, false) => {
            let words: Vec<String> =
                args.command.iter().map(|word| agent::quoted(&word.to_string_lossy())).collect();
            command.arg(words.join(" "));
        }
        (agent::Reach::Socket(_), is_shell) => {
            command.current_dir(&access.dir).args(&args.command);
            if is_shell {
                command.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
            }
        }
    }
    Err(command.exec().into())
}

/// Runs `batzen-lab check`.
///
/// # Errors
/// When a service does not answer.
pub fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.at.dir)?;
    let verdict = check::check(&experiment)?;
    let is_right =
        verdict["conserved"] == true && verdict["findings"].as_u64().is_none_or(|count| count == 0);
    if args.json {
        println!("{verdict}");
    } else {
        println!("{verdict:#}");
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `batzen-lab open`.
///
/// # Errors
/// When it holds no experiment.
pub fn open(args: &OpenArgs, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let opened = Opened::read(&args.kept)?;
    let path = args.out.clone().unwrap_or_else(|| opened.page(&args.kept));
    if args.kept.is_dir() && args.out.is_none() {
        keep_page(&opened.experiment, &path).with_context(|| path.display().to_string())?;
    } else {
        let html = page::html(&opened.experiment, &page::Kept::read(&opened.experiment))?;
        std::fs::write(&path, html).with_context(|| path.display().to_string())?;
    }
    println!("{}", path.display());
    if args.prometheus {
        return page::serve_prometheus(&opened.experiment, interrupted);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `batzen-lab load`.
///
/// # Errors
/// When no generator runs, or one does not answer.
pub fn load(command: &LoadCommand) -> anyhow::Result<ExitCode> {
    control::run(command)
}
