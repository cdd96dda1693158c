//! The cost of scale units: kept experiments beside each other, each with what its services take at the knee, what that costs,
//! and what it adds to the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{number, optional, ratio};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::agent::Sample;
use super::pack::{Opened, experiments_in};
use super::page::Kept;
use super::placement::Instance;
use super::ramp::Step;
use super::state::Experiment;
use super::sweep;
use super::topology::{HostKind, Role};
use crate::bench::results::output;

/// The hours of a month.
const MONTH_H: f64 = 730.0;
/// The seconds of a month.
const MONTH_S: f64 = MONTH_H * 3600.0;

/// Print what each step of a sweep costs, and what it adds: hosts, money, operations a second, efficiency
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Each experiment needs a ramp, whose knee counts. Namespaces of one machine share its cores, so the table counts \
                  the cores and the memory that the services used at the knee. With --whole-hosts it counts the hosts as they \
                  are. What is written to disk in a month is paid for `disk_months`.\n\n\
                  A price list is TOML: core_hour = 0.05, memory_gb_month = 4.00, disk_gb_month = 0.10, disk_months = 1"
)]
pub struct CostArgs {
    /// Kept experiments, packed or not, or directories of them such as that of a sweep; each adds to the one before
    #[arg(value_name = "DIR", required = true)]
    kept: Vec<PathBuf>,
    /// Price list [default: the prices of docs/cost.md]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Roles that are not counted
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',', default_value = "bank,load,prometheus", value_parser = role)]
    without: Vec<Role>,
    /// Count all cores and all memory of the hosts, which must be of kind ssh
    #[arg(long)]
    whole_hosts: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

fn role(text: &str) -> Result<Role, String> {
    let found = Role::ALL.into_iter().find(|role| role.name() == text);
    found.ok_or_else(|| format!("expected one of {}", Role::ALL.map(Role::name).join(", ")))
}

/// Prices of what services take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Prices {
    /// An hour of a core.
    core_hour: f64,
    /// A gigabyte of memory for a month.
    memory_gb_month: f64,
    /// A gigabyte of disk for a month.
    disk_gb_month: f64,
    /// The months for which what is written is kept.
    disk_months: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { core_hour: 0.05, memory_gb_month: 4.0, disk_gb_month: 0.1, disk_months: 1.0 }
    }
}

impl Prices {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let prices: Self = toml::from_str(text)?;
        let Self { core_hour, memory_gb_month, disk_gb_month, disk_months } = prices;
        let others = [memory_gb_month, disk_gb_month, disk_months];
        let is_possible = core_hour > 0.0 && others.iter().all(|price| *price >= 0.0);
        ensure!(
            is_possible && others.iter().chain([&core_hour]).all(|price| price.is_finite()),
            "expected prices of 0 or more, and of a core above 0"
        );
        Ok(prices)
    }

    /// The price of a month in which all time is like this.
    fn a_month(&self, used: &Used) -> f64 {
        let written_gb = used.disk_bytes_per_s.unwrap_or(0.0) * MONTH_S / 1e9;
        used.cores * MONTH_H * self.core_hour
            + used.memory_bytes as f64 / 1e9 * self.memory_gb_month
            + written_gb * self.disk_gb_month * self.disk_months
    }
}

/// The needs of the instances of a role at the knee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct RoleUse {
    instances: usize,
    /// Processor seconds a second.
    cores: f64,
    memory_bytes: u64,
}

/// The needs of an experiment at its knee.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Used {
    name: String,
    hosts: usize,
    /// By role, as used.
    roles: BTreeMap<Role, RoleUse>,
    /// Cores that are paid for.
    cores: f64,
    /// Memory that is paid for.
    memory_bytes: u64,
    /// None where a kernel does not count it.
    disk_bytes_per_s: Option<f64>,
    ops_per_s: f64,
    /// The stage that keeps the services from more; none if they followed all steps.
    bottleneck: Option<String>,
}

impl Used {
    fn of(name: &str, experiment: &Experiment, args: &CostArgs) -> anyhow::Result<Self> {
        let kept = Kept::read(experiment);
        let ramp =
            kept.ramp.as_ref().with_context(|| format!("{name}: no ramp was run, so it has no knee"))?;
        let knee = ramp.knee().with_context(|| {
            format!("{name}: the services did not keep up with the first step, so it has no knee")
        })?;
        let counted: Vec<&Instance> = experiment
            .state
            .instances
            .iter()
            .filter(|instance| !args.without.contains(&instance.role))
            .filter(|instance| knee.usage.iter().any(|used| instance.processes().contains(&used.instance)))
            .collect();
        let hosts: BTreeSet<&str> = counted.iter().map(|instance| instance.host.as_str()).collect();
        // Hosts of one machine have the same disk and the same cores.
        let machines: BTreeMap<String, &str> =
            hosts.iter().map(|host| (experiment.machine(host), *host)).collect();
        let roles = by_role(&counted, knee, &kept.samples);
        let sum = |value: fn(&RoleUse) -> f64| roles.values().map(value).sum::<f64>();
        let (cores, memory_bytes) = if args.whole_hosts {
            whole(experiment, knee, &hosts)?
        } else {
            (sum(|used| used.cores), roles.values().map(|used| used.memory_bytes).sum())
        };
        let written = machines.values().map(|host| written_per_s(knee, kept.samples.get(*host)?));
        Ok(Self {
            name: name.to_owned(),
            hosts: hosts.len(),
            disk_bytes_per_s: written.sum(),
            roles,
            cores,
            memory_bytes,
            ops_per_s: knee.ops_per_s,
            bottleneck: ramp.bottleneck.as_ref().map(|found| found.stage.clone()),
        })
    }
}

/// The samples that were taken during a step; all, if its times are not known.
fn during<'a>(step: &Step, samples: &'a [Sample]) -> impl Iterator<Item = &'a Sample> + use<'a> {
    let times = step.began_ms.unwrap_or(0)..=step.ended_ms.unwrap_or(u64::MAX);
    samples.iter().filter(move |sample| times.contains(&sample.time_ms))
}

/// The use of instances during a step, by role: processor time on average, memory at most.
fn by_role(
    instances: &[&Instance],
    step: &Step,
    samples: &BTreeMap<String, Vec<Sample>>,
) -> BTreeMap<Role, RoleUse> {
    let mut roles: BTreeMap<Role, RoleUse> = BTreeMap::new();
    for instance in instances {
        let of_role = roles.entry(instance.role).or_default();
        of_role.instances += 1;
        for process in instance.processes() {
            let used = step.usage.iter().filter(|used| used.instance == process);
            of_role.cores += used.map(|used| used.cores).sum::<f64>();
            let there = samples.get(&instance.host).map(Vec::as_slice).unwrap_or_default();
            let memory = during(step, there).filter_map(|sample| sample.processes.get(&process));
            of_role.memory_bytes += memory.map(|sample| sample.rss_bytes).max().unwrap_or(0);
        }
    }
    roles
}

/// Bytes written a second to the disk of a host during a step.
fn written_per_s(step: &Step, samples: &[Sample]) -> Option<f64> {
    let (first, last) = (during(step, samples).next()?, during(step, samples).last()?);
    let elapsed_ms = last.time_ms.checked_sub(first.time_ms).filter(|ms| *ms > 0)?;
    let bytes = last.host.disk_written_bytes?.checked_sub(first.host.disk_written_bytes?)?;
    Some(bytes as f64 * 1000.0 / elapsed_ms as f64)
}

/// All cores and all memory of some hosts.
fn whole(experiment: &Experiment, knee: &Step, hosts: &BTreeSet<&str>) -> anyhow::Result<(f64, u64)> {
    let (mut cores, mut memory_bytes) = (0.0, 0);
    for host in hosts {
        let kind = experiment.topology.hosts.get(*host).map(|found| found.kind);
        ensure!(
            kind == Some(HostKind::Ssh),
            "--whole-hosts: {host} is no machine of its own, and shares the cores of this one"
        );
        let found = knee.hosts.iter().find(|found| found.host == *host);
        cores += found.with_context(|| format!("{host}: its cores were not counted"))?.cores as f64;
        let machine = experiment.state.machines.get(&experiment.machine(host));
        memory_bytes += machine.with_context(|| format!("{host}: its memory is not known"))?.memory_bytes;
    }
    Ok((cores, memory_bytes))
}

/// The difference of an experiment to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Increment {
    hosts: i64,
    price_a_month: f64,
    ops_per_s: f64,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    #[serde(flatten)]
    used: Used,
    price_a_month: f64,
    /// The price of a million operations.
    price_of_a_million: f64,
    /// None in the first row.
    increment: Option<Increment>,
    /// Operations for a unit of money, relative to the first row.
    efficiency: f64,
}

fn rows(all: &[Used], prices: &Prices) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for used in all {
        let price_a_month = prices.a_month(used);
        let price_of_a_million = price_a_month / (used.ops_per_s * MONTH_S) * 1e6;
        let hosts = |of: &Used| i64::try_from(of.hosts).unwrap_or(i64::MAX);
        let increment = rows.last().map(|before| Increment {
            hosts: hosts(used) - hosts(&before.used),
            price_a_month: price_a_month - before.price_a_month,
            ops_per_s: used.ops_per_s - before.used.ops_per_s,
        });
        let first = rows.first().map_or(price_of_a_million, |first| first.price_of_a_million);
        rows.push(Row {
            used: used.clone(),
            price_a_month,
            price_of_a_million,
            increment,
            efficiency: first / price_of_a_million,
        });
    }
    rows
}

/// A number with its sign.
fn signed(value: f64) -> String {
    format!("{}{}", if value < 0.0 { "" } else { "+" }, number(value))
}

/// The heads of the columns.
const HEAD: [&str; 14] = [
    "experiment",
    "roles and the cores they used",
    "hosts",
    "cores",
    "memory GB",
    "disk MB/s",
    "price a month",
    "operations/s",
    "price of a million",
    "hosts more",
    "price more",
    "operations/s more",
    "efficiency",
    "bottleneck",
];

impl Row {
    fn cells(&self) -> [String; 14] {
        let used = &self.used;
        let roles: Vec<String> = used
            .roles
            .iter()
            .map(|(role, of_role)| format!("{} {role} {}", of_role.instances, number(of_role.cores)))
            .collect();
        let more =
            |value: &dyn Fn(&Increment) -> String| self.increment.as_ref().map(value).unwrap_or_default();
        [
            used.name.replace('|', "\\|"),
            roles.join(", "),
            used.hosts.to_string(),
            number(used.cores),
            number(used.memory_bytes as f64 / 1e9),
            optional(used.disk_bytes_per_s.map(|bytes| bytes / 1e6)),
            number(self.price_a_month),
            number(used.ops_per_s),
            number(self.price_of_a_million),
            more(&|increment| format!("{:+}", increment.hosts)),
            more(&|increment| signed(increment.price_a_month)),
            more(&|increment| signed(increment.ops_per_s)),
            ratio(self.efficiency),
            used.bottleneck.clone().unwrap_or_else(|| "none reached".to_owned()),
        ]
    }
}

/// The table in Markdown, with what must be known to read it.
fn markdown(rows: &[Row], prices: &Prices, args: &CostArgs) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned));
    let _ = writeln!(text, "|---|---|{}---|", "---:|".repeat(HEAD.len() - 3));
    rows.iter().for_each(|row| text.push_str(&line(&row.cells())));
    let without: Vec<&str> = args.without.iter().map(|role| role.name()).collect();
    let without = if without.is_empty() { "none".to_owned() } else { without.join(", ") };
    let counted = if args.whole_hosts {
        "Cores and memory are all that the hosts have."
    } else {
        "Cores and memory are those that the services used at the knee, not those of hosts: hosts of one machine share its cores."
    };
    let Prices { core_hour, memory_gb_month, disk_gb_month, disk_months } = prices;
    let _ = writeln!(
        text,
        "\n{counted} Disk is what their machines wrote, whoever wrote it. Not counted: {without}. Prices: {core_hour} for an hour of a core, \
         {memory_gb_month} for a gigabyte of memory and {disk_gb_month} for one of disk a month; a month is one at the knee, and what it writes \
         to disk stays for {disk_months} of them. Efficiency is operations for money, relative to the first row."
    );
    let named = |is_so: &dyn Fn(&Used) -> bool| {
        let names: Vec<&str> = rows
            .iter()
            .map(|row| &row.used)
            .filter(|used| is_so(used))
            .map(|used| used.name.as_str())
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(names) = named(&|used| used.disk_bytes_per_s.is_none()) {
        let _ = writeln!(text, "\nWhat is written to disk is not known, and free here: {names}.");
    }
    if let Some(names) = named(&|used| used.bottleneck.is_none()) {
        let _ = writeln!(text, "\nThe services followed all steps of the ramp, and could do more: {names}.");
    }
    let is_other = |used: &Used| matches!(used.bottleneck.as_deref(), Some("generator" | "machine"));
    if let Some(names) = named(&is_other) {
        let _ = writeln!(
            text,
            "\nThe generator or all cores of the machine were the limit, and not the services alone: {names}."
        );
    }
    text
}

/// The experiments at a path, with names: those of a sweep in the order of its values.
fn named_experiments(path: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if let Some((name, values)) = sweep::values_in(path) {
        return Ok(values.iter().map(|value| (format!("{name}={value}"), path.join(value))).collect());
    }
    let name = |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(experiments_in(path)?.into_iter().map(|path| (name(&path), path)).collect())
}

/// Runs `batzen-lab cost`.
///
/// # Errors
/// When a directory holds no experiment, one has no knee, or the price list is wrong.
pub fn run(args: &CostArgs) -> anyhow::Result<ExitCode> {
    let prices = match &args.prices {
        None => Prices::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            Prices::parse(&text).with_context(|| path.display().to_string())?
        }
    };
    let mut all = Vec::new();
    for path in &args.kept {
        for (name, path) in named_experiments(path)? {
            all.push(Used::of(&name, &Opened::read(&path)?.experiment, args)?);
        }
    }
    let rows = rows(&all, &prices);
    output::print(&if args.json {
        output::json(&serde_json::json!({ "prices": prices, "whole_hosts": args.whole_hosts, "rows": rows }))
    } else {
        markdown(&rows, &prices, args)
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::agent::{HostSample, ProcessSample};
    use crate::experiment::ramp::Usage;

    fn used(name: &str, fronts: usize, cores: f64, ops_per_s: f64) -> Used {
        let front = RoleUse { instances: fronts, cores, memory_bytes: 500_000_000 };
        Used {
            name: name.to_owned(),
            hosts: fronts + 1,
            roles: BTreeMap::from([(Role::Exchange, front)]),
            cores,
            memory_bytes: 500_000_000,
            disk_bytes_per_s: Some(1e6),
            ops_per_s,
            bottleneck: Some("exchange-1".to_owned()),
        }
    }

    fn args() -> CostArgs {
        let without = vec![Role::Bank, Role::Load];
        CostArgs { kept: Vec::new(), prices: None, without, whole_hosts: false, json: false }
    }

    #[test]
    fn a_month_costs_cores_memory_and_what_it_writes() {
        let prices = Prices { core_hour: 0.1, memory_gb_month: 4.0, disk_gb_month: 0.5, disk_months: 2.0 };
        // 2 cores for 730 hours, half a gigabyte, and 2,628 GB for two months.
        let price = prices.a_month(&used("x", 1, 2.0, 100.0));
        assert!((price - (146.0 + 2.0 + 2_628.0)).abs() < 1e-6, "{price}");
        let unknown = Used { disk_bytes_per_s: None, ..used("x", 1, 2.0, 100.0) };
        assert!((prices.a_month(&unknown) - 148.0).abs() < 1e-6);
    }

    #[test]
    fn each_row_adds_to_the_one_before_and_is_as_good_as_its_money() {
        let prices = Prices { core_hour: 1.0, memory_gb_month: 0.0, disk_gb_month: 0.0, disk_months: 1.0 };
        let all = [used("1", 1, 1.0, 100.0), used("2", 2, 2.0, 180.0), used("3", 2, 1.5, 180.0)];
        let rows = rows(&all, &prices);
        assert_eq!(rows[0].increment, None);
        assert!((rows[0].price_of_a_million - 730.0 / (100.0 * 730.0 * 3600.0) * 1e6).abs() < 1e-9);
        let second = rows[1].increment.unwrap();
        assert_eq!(second.hosts, 1);
        assert!((second.price_a_month - 730.0).abs() < 1e-6 && (second.ops_per_s - 80.0).abs() < 1e-9);
        let close = |row: &Row, expected: f64| (row.efficiency - expected).abs() < 1e-9;
        assert!(close(&rows[0], 1.0) && close(&rows[1], 0.9) && close(&rows[2], 1.2), "{rows:?}");
        let text = markdown(&rows, &prices, &args());
        assert!(text.contains("| 2 | 2 exchange 2.00 | 3 |"), "{text}");
        assert!(text.contains("| +1 | +730 | +80.0 | 0.90 | exchange-1 |"), "{text}");
        assert!(text.contains("| +0 | −365 | +0 | 1.20 | exchange-1 |"), "{text}");
        assert!(text.contains("Not counted: bank, load.") && text.contains("share its cores"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let unknown = Used { disk_bytes_per_s: None, bottleneck: None, ..used("free", 1, 1.0, 10.0) };
        let limited = Used { bottleneck: Some("machine".to_owned()), ..used("full", 1, 1.0, 10.0) };
        let prices = Prices::default();
        let text = markdown(&rows(&[unknown, limited], &prices), &prices, &args());
        assert!(text.contains("free here: free.") && text.contains("could do more: free."), "{text}");
        assert!(text.contains("not the services alone: full."), "{text}");
    }

    #[test]
    fn rows_of_a_sweep_are_in_the_order_of_its_values() {
        let dir = tempfile::tempdir().unwrap();
        assert!(named_experiments(dir.path()).is_err(), "it holds no experiment");
        let point = |value: &str| serde_json::json!({ "value": value, "ok": true });
        let swept = serde_json::json!({ "parameter": "exchange.count", "points": [point("2"), point("10")] });
        std::fs::write(dir.path().join("sweep.json"), swept.to_string()).unwrap();
        let found = named_experiments(dir.path()).unwrap();
        let expected = ["2", "10"].map(|value| (format!("exchange.count={value}"), dir.path().join(value)));
        assert_eq!(found, expected);
    }

    #[test]
    fn prices_are_a_list_with_defaults() {
        assert_eq!(Prices::parse("").unwrap(), Prices::default());
        let prices = Prices::parse("core_hour = 0.03\ndisk_months = 120").unwrap();
        assert_eq!(prices, Prices { core_hour: 0.03, disk_months: 120.0, ..Prices::default() });
        for wrong in
            ["core_hour = 0", "disk_gb_month = -1", "memory_gb_month = inf", "gold = 1", "core_hour = nan"]
        {
            assert!(Prices::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_and_disk_are_those_of_the_knee() {
        let sample = |time_ms: u64, rss_bytes: u64, written: u64| Sample {
            time_ms,
            host: HostSample { disk_written_bytes: Some(written), ..HostSample::default() },
            processes: BTreeMap::from([(
                "exchange".to_owned(),
                ProcessSample { rss_bytes, ..ProcessSample::default() },
            )]),
            ..Sample::default()
        };
        let samples = vec![
            sample(1_000, 900, 0),
            sample(2_000, 100, 1_000),
            sample(3_000, 300, 4_000),
            sample(4_000, 200, 7_000),
            sample(5_000, 800, 99_000),
        ];
        let step = Step { began_ms: Some(2_000), ended_ms: Some(4_000), ..Step::default() };
        assert_eq!(written_per_s(&step, &samples), Some(3_000.0));
        assert_eq!(written_per_s(&step, &samples[1..2]), None, "one sample shows no growth");
        let usage = |cores| Usage {
            instance: "exchange".to_owned(),
            role: Role::Exchange,
            host: "core".to_owned(),
            cores,
            busiest_thread: cores,
            share: 1.0,
            disk_delay_ms: None,
            disk_busy: None,
            lane_s: None,
            commit_ms: None,
            rtt_ms: None,
        };
        let step = Step { usage: vec![usage(0.75)], ..step };
        let spec = crate::experiment::topology::RoleSpec {
            role: Role::Exchange,
            hosts: vec!["core".to_owned()],
            count: None,
            workers: None,
            bin_dir: None,
            settings: BTreeMap::new(),
            cpu_share: None,
            disk_delay_ms: None,
        };
        let instance =
            Instance::new(&spec, "exchange".to_owned(), 0, ("core", "127.0.0.1".to_owned(), vec![1]));
        let roles = by_role(&[&instance], &step, &BTreeMap::from([("core".to_owned(), samples)]));
        let expected = RoleUse { instances: 1, cores: 0.75, memory_bytes: 300 };
        assert_eq!(roles, BTreeMap::from([(Role::Exchange, expected)]));
    }
}
