//! A sweep: the same experiment with one parameter after another, and by its value the knee, or what a scenario of
//! `batzen-lab bench` did a second.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail, ensure};
use batzen_cli_support::numbers::{number, short};
use batzen_http::escape_html;
use batzen_http::plot::{Line, LinePlot, ticks};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ramp::{Bottleneck, Ramp};
use super::scenario::Bench;
use super::topology::{Role, Step, Topology};
use crate::bench::results::machine::Machine;
use crate::bench::results::report::{END, begin};
use crate::bench::results::result::utc_now;

/// The file with the values and what came of them.
const SWEEP: &str = "sweep.json";

/// Repeat an experiment with other values of one parameter, and plot the knee, or the rate of a scenario
#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    /// The topology with its steps, one of which is a ramp or `load bench`
    #[arg(value_name = "FILE")]
    topology: PathBuf,
    /// The parameter and its values: rtt_ms, jitter_ms, loss or bandwidth_mbit of all links, ROLE.count, ROLE.cpu_share,
    /// ROLE.disk_delay_ms, or ROLE.SECTION.OPTION of its configuration
    #[arg(long = "over", value_name = "NAME=VALUE,…", value_parser = parameter)]
    parameter: Parameter,
    /// Directory for the experiments, one in each of its directories
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    dir: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A parameter of a topology, and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    name: String,
    values: Vec<String>,
}

fn parameter(text: &str) -> Result<Parameter, String> {
    let (name, values) = text.split_once('=').ok_or("expected NAME=VALUE,VALUE, such as rtt_ms=0,2,10,50")?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err("a value is empty".to_owned());
    }
    Ok(Parameter { name: name.trim().to_owned(), values })
}

/// The result of one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    value: String,
    /// Whether the books balance, the auditor finds nothing, and every step succeeded.
    ok: bool,
    knee_ops_per_s: Option<f64>,
    /// The rate of the last scenario, of all generators together, if no ramp found a knee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bench_ops_per_s: Option<f64>,
    bottleneck: Option<Bottleneck>,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

impl Point {
    /// The knee, or the rate of the scenario, in operations a second.
    fn rate(&self) -> Option<f64> {
        self.knee_ops_per_s.or(self.bench_ops_per_s)
    }
}

/// The topology with another value of a parameter.
fn with(topology: &Topology, name: &str, value: &str) -> anyhow::Result<Topology> {
    let mut changed = topology.clone();
    let figure = || value.parse::<f64>().with_context(|| format!("{name}={value}: expected a number"));
    if let "rtt_ms" | "jitter_ms" | "loss" | "bandwidth_mbit" = name {
        ensure!(!changed.links.is_empty(), "{name}: the topology has no links");
        let figure = figure()?;
        for link in &mut changed.links {
            *match name {
                "rtt_ms" => &mut link.rtt_ms,
                "jitter_ms" => &mut link.jitter_ms,
                "loss" => &mut link.loss,
                _ => &mut link.bandwidth_mbit,
            } = figure;
        }
    } else {
        let Some((role, what)) = name.split_once('.') else {
            bail!(
                "{name}: expected rtt_ms, jitter_ms, loss, bandwidth_mbit, ROLE.count, ROLE.cpu_share, ROLE.disk_delay_ms or ROLE.SECTION.OPTION"
            );
        };
        let role = Role::ALL.into_iter().find(|found| found.name() == role);
        let role = role.with_context(|| format!("{name}: there is no such role"))?;
        let mut of_role = changed.roles.iter_mut().filter(|spec| spec.role == role).peekable();
        ensure!(of_role.peek().is_some(), "{name}: the topology has no {role}");
        for spec in of_role {
            match (what, what.split_once('.')) {
                ("count", _) => spec.count = Some(value.parse().with_context(|| format!("{name}={value}"))?),
                ("cpu_share", _) => spec.cpu_share = Some(figure()?),
                ("disk_delay_ms", _) => spec.disk_delay_ms = Some(figure()?),
                (_, Some((section, option))) => {
                    spec.settings
                        .entry(section.to_owned())
                        .or_default()
                        .insert(option.to_owned(), value.to_owned());
                }
                _ => {
                    bail!("{name}: expected count, cpu_share, disk_delay_ms or SECTION.OPTION after the role")
                }
            }
        }
    }
    let text = toml::to_string(&changed)?;
    Topology::parse(&text).with_context(|| format!("{name}={value}"))
}

/// Runs `batzen-lab sweep`.
///
/// # Errors
/// When a value makes no sense, before anything is started; or when an experiment cannot be set up or ended.
pub fn run(args: &SweepArgs, commit: &str, interrupted: &AtomicBool) -> anyhow::Result<ExitCode> {
    let (_, topology) = super::read(&args.topology)?;
    let Parameter { name, values } = &args.parameter;
    let measures = topology.steps.iter().any(|step| match step {
        Step::Run { run } => {
            run.first().is_some_and(|word| word == "load")
                && run.get(1).is_some_and(|word| word == "ramp" || word == "bench")
        }
        Step::Wait { .. } => false,
    });
    ensure!(
        measures,
        "{}: none of its steps is a ramp, which finds the knee, or a scenario (`load bench`)",
        args.topology.display()
    );
    let changed: Vec<Topology> =
        values.iter().map(|value| with(&topology, name, value)).collect::<anyhow::Result<_>>()?;
    let dir = batzen_cli_support::services::directory(&args.dir)?;
    let mut points = Vec::new();
    let started = utc_now();
    for (value, topology) in values.iter().zip(changed) {
        if interrupted.load(Relaxed) {
            break;
        }
        eprintln!("{name} = {value}");
        let text = toml::to_string(&topology)?;
        let (verdict, ramp) = super::carry_out(&text, topology, &dir.join(value), commit, interrupted)?;
        points.push(point(value, verdict["ok"] == true, ramp, Bench::last_in(&dir.join(value))));
        // As it happens, so that an interruption keeps what was measured.
        std::fs::write(
            dir.join(SWEEP),
            serde_json::to_string_pretty(&json!({
                "version": env!("CARGO_PKG_VERSION"), "commit": commit, "started": started,
                "machine": Machine::detect(), "parameter": name, "points": points,
            }))?,
        )?;
        std::fs::write(dir.join("report.html"), html(name, &points))?;
    }
    let is_ok = points.len() == values.len() && points.iter().all(|point| point.ok);
    if args.json {
        println!("{}", json!({ "ok": is_ok, "parameter": name, "points": points }));
    } else {
        print!("{}", table(name, &points));
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn point(value: &str, ok: bool, ramp: Option<Ramp>, bench: Option<Bench>) -> Point {
    let ramp = ramp.unwrap_or(Ramp { steps: Vec::new(), knee_ops_per_s: None, bottleneck: None });
    // The latency without queues is that of the first step.
    let first = ramp.steps.first();
    let bench = bench.filter(|_| ramp.steps.is_empty());
    Point {
        value: value.to_owned(),
        ok,
        knee_ops_per_s: ramp.knee_ops_per_s,
        bench_ops_per_s: bench.map(|bench| bench.ops_per_s),
        p50_us: first.map(|step| step.p50_us).or(bench.map(|bench| bench.p50_us)),
        p99_us: first.map(|step| step.p99_us).or(bench.map(|bench| bench.p99_us)),
        bottleneck: ramp.bottleneck,
    }
}

fn table(name: &str, points: &[Point]) -> String {
    let mut text = format!("{name:>16}{:>12}{:>10}{:>10}  bottleneck\n", "rate/s", "p50 ms", "p99 ms");
    for point in points {
        let ms = |us: Option<u64>| us.map_or_else(|| "–".to_owned(), |us| number(us as f64 / 1000.0));
        let rate = point.rate().map_or_else(|| "–".to_owned(), number);
        let stage = point.bottleneck.as_ref().map_or("none reached", |found| found.stage.as_str());
        let failed = if point.ok { "" } else { " (failed)" };
        let _ = writeln!(
            text,
            "{:>16}{rate:>12}{:>10}{:>10}  {stage}{failed}",
            point.value,
            ms(point.p50_us),
            ms(point.p99_us)
        );
    }
    text
}

/// The parameter and the values of the sweep in a directory, if there is one.
pub(super) fn values_in(dir: &Path) -> Option<(String, Vec<String>)> {
    #[derive(Deserialize)]
    struct Kept {
        parameter: String,
        points: Vec<Point>,
    }
    let text = std::fs::read_to_string(dir.join(SWEEP)).ok()?;
    let kept: Kept = serde_json::from_str(&text).ok()?;
    Some((kept.parameter, kept.points.into_iter().map(|point| point.value).collect()))
}

fn html(name: &str, points: &[Point]) -> String {
    let mut out = String::new();
    begin(&mut out, &format!("Sweep over {name}"));
    let rates: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((point.value.parse().ok()?, point.rate()?))).collect();
    let most = rates.iter().map(|(value, _)| *value).fold(0.0, f64::max);
    let plot = LinePlot {
        title: format!("Operations a second by {name}"),
        x_label: name.to_owned(),
        x_ticks: ticks(most)
            .into_iter()
            .filter(|tick| *tick <= most)
            .map(|tick| (tick, short(tick)))
            .collect(),
        lines: vec![Line { name: "operations a second".to_owned(), colour: 0, points: rates }],
    };
    if let Some(svg) = plot.svg(short) {
        let _ = writeln!(
            out,
            "<figure><figcaption>Operations a second: the knee, or the rate of the scenario</figcaption>{svg}</figure>"
        );
    }
    let _ = writeln!(out, "<pre class=\"scroll\" tabindex=\"0\">{}</pre>", escape_html(&table(name, points)));
    out.push_str("<ul>\n");
    for point in points {
        let value = escape_html(&point.value);
        let why = point
            .bottleneck
            .as_ref()
            .map_or_else(String::new, |found| format!(": {}", escape_html(&found.why)));
        let _ = writeln!(out, "<li><a href=\"{value}/report.html\">{value}</a>{why}</li>");
    }
    out.push_str("</ul>\n");
    out.push_str(END);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        name = 'x'
        [hosts.a]
        kind = 'namespace'
        [hosts.b]
        kind = 'namespace'
        site = 'far'
        [[role]]
        role = 'bank'
        hosts = ['a']
        [[role]]
        role = 'exchange'
        hosts = ['a']
        [[link]]
        between = ['main', 'far']
    ";

    #[test]
    fn one_parameter_changes_and_all_else_stays() {
        let topology = Topology::parse(TEXT).unwrap();
        let far = with(&topology, "rtt_ms", "25").unwrap();
        assert!((far.links[0].rtt_ms - 25.0).abs() < 1e-9);
        let lanes = with(&topology, "exchange.exchange.LANES", "4").unwrap();
        assert_eq!(lanes.roles[1].settings["exchange"]["LANES"], "4");
        assert_eq!(Topology { roles: topology.roles.clone(), ..lanes }, topology);
        let slow = with(&topology, "exchange.cpu_share", "0.5").unwrap();
        assert_eq!(slow.roles[1].cpu_share, Some(0.5));
        let slow = with(&topology, "exchange.disk_delay_ms", "20").unwrap();
        assert_eq!(slow.roles[1].disk_delay_ms, Some(20.0));
        for (name, value, expected) in [
            ("rtt_ms", "far", "expected a number"),
            ("loss", "2", "below 1"),
            ("oven.count", "2", "no such role"),
            ("merchant.count", "2", "has no merchant"),
            ("exchange.count", "2", "share a database"),
            ("colour", "red", "expected rtt_ms"),
        ] {
            let error = format!("{:#}", with(&topology, name, value).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn values_are_a_list() {
        let found = parameter("rtt_ms=0, 2,10").unwrap();
        assert_eq!(
            (found.name.as_str(), found.values),
            ("rtt_ms", vec!["0".into(), "2".into(), "10".into()])
        );
        assert!(parameter("rtt_ms").is_err() && parameter("rtt_ms=1,").is_err());
    }

    #[test]
    fn the_page_has_a_plot_and_a_row_for_each_value() {
        let points: Vec<Point> = [("0", 100.0), ("20", 40.0)]
            .map(|(value, knee)| Point {
                value: value.into(),
                ok: true,
                knee_ops_per_s: Some(knee),
                bench_ops_per_s: None,
                bottleneck: Some(Bottleneck { stage: "network".into(), why: "20 ms < 30 ms".into() }),
                p50_us: Some(1_000),
                p99_us: None,
            })
            .into();
        let page = html("rtt_ms", &points);
        assert!(
            page.contains("<svg")
                && page.contains("href=\"20/report.html\"")
                && page.contains("20 ms &lt; 30 ms")
        );
        assert!(table("rtt_ms", &points).contains("–  network"), "{}", table("rtt_ms", &points));
    }
}
