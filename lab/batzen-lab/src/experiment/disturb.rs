//! Failures and changes while an experiment runs: processes that end or are slow, lost databases and keys, bad links.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::ensure;
use clap::{Args, Subcommand};

use super::agent::Request;
use super::network::{self, NetworkOrder};
use super::setup::{Revoked, SetUp};
use super::state::Experiment;
use super::topology::Link;
use super::{DirArgs, hosts};

/// Inject a failure
#[derive(Args, Clone, Debug)]
pub struct DisturbArgs {
    #[command(subcommand)]
    command: DisturbCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum DisturbCommand {
    /// Kill an instance with SIGKILL; its agent starts it again after a second
    Kill(InstanceArgs),
    /// Stop an instance, until it is started
    Stop(InstanceArgs),
    /// Start an instance that was stopped
    Start(InstanceArgs),
    /// Limit an instance to a share of the time
    Slow(SlowArgs),
    /// Let each sync of an instance's files take longer
    SlowDisk(SlowDiskArgs),
    /// Make the standby the primary
    Promote(DirArgs),
    /// Revoke denominations, as if their keys had leaked: wallets get the money of their coins back
    Revoke(RevokeArgs),
    /// Cut a site off from all others
    Cut(SiteArgs),
    /// Connect a site again
    Heal(SiteArgs),
    /// Change the link between two sites
    Link(LinkArgs),
}

#[derive(Args, Clone, Debug)]
struct SiteArgs {
    /// The site
    site: String,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct LinkArgs {
    /// One site
    one: String,
    /// The other site
    two: String,
    /// Round trip
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    rtt_ms: f64,
    /// Largest random addition to each way
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter_ms: f64,
    /// Share of packets that get lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loss: f64,
    /// Megabits per second; 0: no limit
    #[arg(long, value_name = "MBIT", default_value_t = 0.0)]
    bandwidth_mbit: f64,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct InstanceArgs {
    /// Name of the instance
    instance: String,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct RevokeArgs {
    /// Hash of the denomination [default: one with the largest coins]
    #[arg(value_name = "DENOMINATION", conflicts_with = "share")]
    denomination: Option<batzen_crypto::HashCode>,
    /// Share of the denominations on offer, those with the largest coins first
    #[arg(long, value_name = "SHARE", value_parser = share)]
    share: Option<f64>,
    #[command(flatten)]
    at: DirArgs,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and at most 1, such as 0.5".to_owned()),
    }
}

#[derive(Args, Clone, Debug)]
struct SlowArgs {
    /// Name of the instance
    instance: String,
    /// Share of the time, above 0 and at most 1, which is the whole
    share: f64,
    #[command(flatten)]
    at: DirArgs,
}

#[derive(Args, Clone, Debug)]
struct SlowDiskArgs {
    /// Name of the instance, whose role has disk_delay_ms in the topology
    instance: String,
    /// Time that each sync takes longer; 0 ends it
    #[arg(long, value_name = "MS")]
    delay_ms: f64,
    #[command(flatten)]
    at: DirArgs,
}

/// Runs `batzen-lab disturb`.
///
/// # Errors
/// When there is no such instance, or its agent does not answer.
pub fn disturb(args: &DisturbArgs, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let (at, name) = match &args.command {
        DisturbCommand::Kill(args) | DisturbCommand::Stop(args) | DisturbCommand::Start(args) => {
            (&args.at, args.instance.as_str())
        }
        DisturbCommand::Slow(args) => (&args.at, args.instance.as_str()),
        DisturbCommand::SlowDisk(args) => (&args.at, args.instance.as_str()),
        DisturbCommand::Promote(at) => {
            let mut experiment = Experiment::open(&at.dir)?;
            let agents = experiment.agents()?;
            SetUp::new(&mut experiment, agents, interrupted).promote()?;
            return Ok(ExitCode::SUCCESS);
        }
        DisturbCommand::Revoke(args) => {
            let mut experiment = Experiment::open(&args.at.dir)?;
            let agents = experiment.agents()?;
            // A share of nothing is rounded up to one.
            let share = Revoked::Share(args.share.unwrap_or(0.0));
            let what = args.denomination.map_or(share, Revoked::One);
            let count = SetUp::new(&mut experiment, agents, interrupted).revoke(what)?;
            eprintln!("{count} revoked, and replaced");
            return Ok(ExitCode::SUCCESS);
        }
        DisturbCommand::Cut(args) => return change_links(&args.at, NetworkOrder::Cut(args.site.clone())),
        DisturbCommand::Heal(args) => return change_links(&args.at, NetworkOrder::Heal(args.site.clone())),
        DisturbCommand::Link(args) => {
            let link = Link {
                between: [args.one.clone(), args.two.clone()],
                rtt_ms: args.rtt_ms,
                jitter_ms: args.jitter_ms,
                loss: args.loss,
                bandwidth_mbit: args.bandwidth_mbit,
            };
            return change_links(&args.at, NetworkOrder::Link(link));
        }
    };
    let experiment = Experiment::open(&at.dir)?;
    let (host, processes) = experiment.processes(name)?;
    let is_database =
        |name: &str| experiment.instance(name).is_ok_and(|instance| instance.role.is_postgres());
    let mut agent = experiment.agent(&host)?;
    let mut what = "start";
    for name in processes {
        let request;
        (what, request) = match &args.command {
            DisturbCommand::Kill(_) => ("kill", Request::Signal { name, signal: 9 }),
            DisturbCommand::Slow(args) => ("slow", Request::Pace { name, share: args.share }),
            DisturbCommand::SlowDisk(args) => ("slow-disk", Request::Delay { name, delay_ms: args.delay_ms }),
            DisturbCommand::Stop(_) => {
                // PostgreSQL waits for its clients on SIGTERM, and ends at once on SIGINT.
                let is_database = is_database(&name);
                ("stop", Request::Stop { name, signal: if is_database { 2 } else { 15 } })
            }
            _ => ("start", Request::Again { name }),
        };
        agent.ask(&request)?;
    }
    experiment.event(what, name)?;
    Ok(ExitCode::SUCCESS)
}

/// Changes the links between sites, which must be in the topology.
fn change_links(at: &DirArgs, order: NetworkOrder) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&at.dir)?;
    let between = experiment.topology.links.iter().map(|link| &link.between);
    let (what, whom, is_known) = match &order {
        NetworkOrder::Cut(site) => ("cut", site.clone(), between.flatten().any(|end| end == site)),
        NetworkOrder::Heal(site) => ("heal", site.clone(), between.flatten().any(|end| end == site)),
        NetworkOrder::Link(link) => {
            let [one, two] = &link.between;
            let is_same = |ends: &[String; 2]| ends.contains(one) && ends.contains(two) && one != two;
            let properties = format!("{one} – {two}: {} ms, loss {}", link.rtt_ms, link.loss);
            ("link", properties, {
                let mut between = between;
                between.any(is_same)
            })
        }
    };
    ensure!(
        is_known,
        "{whom}: the topology has no such link; only links that it has, perhaps without delay, can be changed and cut"
    );
    if let NetworkOrder::Link(link) = &order {
        link.check()?;
    }
    let line = serde_json::to_string(&order)?;
    // First what counts after a restart of the emulation.
    experiment.append(network::ORDERS, &serde_json::to_value(&order)?)?;
    experiment.agent(hosts::NETWORK)?.ask(&Request::Input { name: hosts::NETWORK.to_owned(), line })?;
    experiment.event(what, &whom)?;
    Ok(ExitCode::SUCCESS)
}
