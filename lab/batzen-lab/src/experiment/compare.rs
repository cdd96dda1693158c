//! Two experiments, or repetitions of them, beside each other: what is not the same, and what is better or worse.
//!
//! Figures are judged by the rule of `batzen-lab bench compare`: a difference counts only if repetitions show that it is no
//! chance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{gigabytes, number, ratio, short};
use batzen_http::escape_html;
use batzen_http::plot::{Line, LinePlot, ticks};
use clap::Args;
use serde_json::Value;

use super::pack::{Opened, experiments_in};
use super::page::Kept;
use super::ramp::{Ramp, Step};
use super::state::Experiment;
use super::tally::Sum;
use super::topology::Role;
use crate::bench::results::compare::{
    Comparison, Difference, absent, difference, figure, noise_share, runs, table, values,
};
use crate::bench::results::output;
use crate::bench::results::report::{END, begin, legend, plain};

/// Compare two experiments, or repetitions of them
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "A and B are kept experiments, packed or not, or directories with repetitions of one experiment, each in a \
                  directory of its own. Medians are compared. A figure is better or worse only if each side has at least \
                  three repetitions, and every one of one side is better than every one of the other; otherwise a \
                  difference is unclear. What is not the same comes first: versions, commits, machines, the topology, and \
                  what was done."
)]
pub struct CompareArgs {
    /// The experiment, or its repetitions, to compare with
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The experiment, or its repetitions, to judge
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Treat differences up to this many percent as equal
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    noise: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with tables and the latencies of both, too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// All that is compared of one experiment.
#[derive(Clone, Debug, Default)]
struct Facts {
    name: String,
    /// Properties that should be the same.
    properties: BTreeMap<String, String>,
    /// Results that are no figures.
    outcomes: BTreeMap<&'static str, String>,
    /// Figures: name, value, and whether more is better.
    figures: Vec<(String, f64, bool)>,
    /// The 99th percentile by load: operations done a second, milliseconds.
    curve: Vec<(f64, f64)>,
}

/// Adds every value of a topology under a name that tells where it stands.
fn flatten(name: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    let below = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Object(members) => {
            // The role is in the name.
            for (part, value) in members.iter().filter(|(part, _)| *part != "between" && *part != "role") {
                flatten(&below(part), value, out);
            }
        }
        Value::Array(all) => {
            let words: Vec<String> = all.iter().map(plain).collect();
            out.insert(name.to_owned(), words.join(" "));
        }
        scalar => drop(out.insert(name.to_owned(), plain(scalar))),
    }
}

/// The properties of a topology.
fn topology_properties(topology: &Value) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (member, value) in topology.as_object().into_iter().flatten() {
        let Some(entries) = value.as_array() else {
            flatten(member, value, &mut out);
            continue;
        };
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for entry in entries {
            let name = match (entry["role"].as_str(), entry["between"].as_array()) {
                (Some(role), _) => role.to_owned(),
                (None, Some(ends)) => {
                    let ends: Vec<String> = ends.iter().map(plain).collect();
                    format!("link {}", ends.join(" – "))
                }
                (None, None) => member.clone(),
            };
            let number = seen.entry(name.clone()).or_default();
            *number += 1;
            let name = if *number == 1 { name } else { format!("{name} {number}") };
            flatten(&name, entry, &mut out);
        }
    }
    out
}

/// The events of an experiment, but for its set-up and its load, which differs with what it can do.
fn deeds(events: &[Value]) -> String {
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let is_deed = |event: &&Value| {
        !["up", "start", "ready", "down", "load", ""].contains(&text(event, "event").as_str())
    };
    let deeds: Vec<String> = events
        .iter()
        .filter(is_deed)
        .map(|event| format!("{} {}", text(event, "event"), text(event, "of")))
        .collect();
    deeds.join("; ")
}

fn properties(experiment: &Experiment, kept: &Kept) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = topology_properties(&serde_json::to_value(&experiment.topology)?);
    found.insert("version".to_owned(), experiment.state.version.clone());
    found.insert("commit".to_owned(), experiment.state.commit.clone());
    found.insert("what was done".to_owned(), deeds(&kept.events));
    for (name, machine) in &experiment.state.machines {
        let text = format!(
            "{}, {} cores, {} GB, {}, {}",
            machine.model,
            machine.cores,
            gigabytes(machine.memory_bytes),
            machine.kernel,
            machine.flags.join(" ")
        );
        found.insert(name.clone(), text);
    }
    Ok(found)
}

fn outcomes(kept: &Kept) -> BTreeMap<&'static str, String> {
    let checked = |name: &str| match kept.check.as_ref().map(|check| &check[name]) {
        None | Some(Value::Null) => "not checked".to_owned(),
        Some(Value::Bool(is_so)) => if *is_so { "yes" } else { "no" }.to_owned(),
        Some(other) => other.to_string(),
    };
    let mut found =
        BTreeMap::from([("money conserved", checked("conserved")), ("findings", checked("findings"))]);
    if let Some(ramp) = &kept.ramp {
        let stage = ramp.bottleneck.as_ref().map_or("none reached", |found| found.stage.as_str());
        found.insert("bottleneck", stage.to_owned());
    }
    found
}

/// The figures of a step of a ramp.
fn step_figures(step: &Step) -> Vec<(String, f64, bool)> {
    let at = number(step.offered_per_s);
    vec![
        (format!("ops_per_s at {at}/s"), step.ops_per_s, true),
        (format!("p50_us at {at}/s"), step.p50_us as f64, false),
        (format!("p99_us at {at}/s"), step.p99_us as f64, false),
    ]
}

/// The processor time of each role for an operation, in microseconds, while wallets were at work.
fn cpu_us_by_role(experiment: &Experiment, kept: &Kept, ops: u64) -> BTreeMap<Role, f64> {
    let at_work = kept.seconds.iter().filter(|(_, all)| all.iter().any(|second| second.wallets > 0));
    let times: Vec<f64> = at_work.map(|(time, _)| *time as f64).collect();
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return BTreeMap::new() };
    let roles = experiment.roles_of_processes();
    let mut found: BTreeMap<Role, f64> = BTreeMap::new();
    for pair in kept.samples.values().flat_map(|samples| samples.windows(2)) {
        if !(*first..=last + 1.0).contains(&kept.at(pair[1].time_ms)) {
            continue;
        }
        for (name, after) in &pair[1].processes {
            if let (Some(before), Some(role)) = (pair[0].processes.get(name), roles.get(name)) {
                let cpu_us = after.cpu_ms.saturating_sub(before.cpu_ms) as f64 * 1000.0;
                *found.entry(*role).or_default() += cpu_us / ops as f64;
            }
        }
    }
    found
}

fn figures(experiment: &Experiment, kept: &Kept) -> Vec<(String, f64, bool)> {
    let mut all = Vec::new();
    let no_steps = Vec::new();
    if let Some(knee) = kept.ramp.as_ref().and_then(|ramp| ramp.knee_ops_per_s) {
        all.push(("knee_ops_per_s".to_owned(), knee, true));
    }
    let steps = kept.ramp.as_ref().map_or(&no_steps, |ramp| &ramp.steps);
    all.extend(steps.iter().flat_map(step_figures));
    let sum = Sum::of(kept.seconds.values().flatten());
    let (ops, errors, latencies) = (sum.ops, sum.errors.values().sum::<u64>(), sum.latency());
    if steps.is_empty() && ops > 0 {
        all.push(("p50_us".to_owned(), latencies.value_at_quantile(0.5) as f64, false));
        all.push(("p99_us".to_owned(), latencies.value_at_quantile(0.99) as f64, false));
    }
    all.push(("errors_per_op".to_owned(), errors as f64 / ops.max(1) as f64, false));
    for (role, cpu_us) in cpu_us_by_role(experiment, kept, ops.max(1)) {
        all.push((format!("cpu_us_per_op: {role}"), cpu_us, false));
    }
    all
}

impl Facts {
    fn of(experiment: &Experiment) -> anyhow::Result<Self> {
        let kept = Kept::read(experiment);
        ensure!(!kept.events.is_empty(), "{} holds no events: nothing was kept", experiment.dir.display());
        let curve = |ramp: &Ramp| {
            ramp.steps.iter().map(|step| (step.ops_per_s, step.p99_us as f64 / 1000.0)).collect()
        };
        Ok(Self {
            name: experiment.topology.name.clone(),
            properties: properties(experiment, &kept)?,
            outcomes: outcomes(&kept),
            figures: figures(experiment, &kept),
            curve: kept.ramp.as_ref().map(curve).unwrap_or_default(),
        })
    }
}

/// The experiment of a directory, or those of its directories.
fn read(path: &Path) -> anyhow::Result<Vec<Facts>> {
    experiments_in(path)?.iter().map(|path| Facts::of(&Opened::read(path)?.experiment)).collect()
}

/// The values of a property in the experiments of both sides.
fn sides(
    (a, b): (&[Facts], &[Facts]),
    pick: &dyn Fn(&Facts) -> Option<String>,
) -> (BTreeSet<Option<String>>, BTreeSet<Option<String>>) {
    (a.iter().map(pick).collect(), b.iter().map(pick).collect())
}

fn compare(a: &[Facts], b: &[Facts], noise: f64) -> Comparison {
    let all = || a.iter().chain(b);
    let names: BTreeSet<&String> = all().flat_map(|facts| facts.properties.keys()).collect();
    let differences = names.into_iter().filter_map(|name| {
        let must_be_known = ["version", "commit"].contains(&name.as_str());
        difference(name, sides((a, b), &|facts| facts.properties.get(name).cloned()), must_be_known)
    });
    let named: BTreeSet<&str> = all().flat_map(|facts| facts.outcomes.keys().copied()).collect();
    let outcomes = named
        .into_iter()
        .map(|name| values(name, sides((a, b), &|facts| facts.outcomes.get(name).cloned())))
        .collect();
    let value = |facts: &Facts, name: &str| {
        facts.figures.iter().find(|(other, ..)| other == name).map(|(_, value, _)| *value)
    };
    let figures = a[0].figures.iter().filter_map(|(name, _, more_is_better)| {
        let of = |side: &[Facts]| side.iter().map(|facts| value(facts, name)).collect::<Vec<_>>();
        figure(name, (of(a), of(b)), *more_is_better, noise)
    });
    Comparison {
        differences: differences.collect(),
        a: a[0].name.clone(),
        b: b[0].name.clone(),
        a_runs: a.len(),
        b_runs: b.len(),
        outcomes,
        figures: figures.collect(),
    }
}

/// Runs `batzen-lab compare`.
///
/// # Errors
/// When a directory holds no experiment.
pub fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let noise = noise_share(args.noise)?;
    let (a, b) = (read(&args.before)?, read(&args.after)?);
    let comparison = compare(&a, &b, noise);
    if let Some(path) = &args.out {
        std::fs::write(path, html(&comparison, &a, &b)).with_context(|| path.display().to_string())?;
    }
    output::print(&if args.json { output::json(&comparison) } else { table(&comparison) })?;
    Ok(ExitCode::SUCCESS)
}

fn head(out: &mut String, title: &str, names: &[&str]) {
    let cells: String = names.iter().map(|name| format!("<th>{name}</th>")).collect();
    let _ = writeln!(
        out,
        "<h2>{title}</h2>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"parameters\">\n\
         <thead><tr>{cells}</tr></thead>\n<tbody>"
    );
}

const TABLE_END: &str = "</tbody></table></div>\n";

fn difference_table(out: &mut String, title: &str, differences: &[Difference]) {
    if differences.is_empty() {
        return;
    }
    head(out, title, &["", "A", "B"]);
    for found in differences {
        let cell = |value: &Option<String>| escape_html(&value.clone().unwrap_or_else(absent));
        let (name, a, b) = (escape_html(&found.name), cell(&found.a), cell(&found.b));
        let _ = writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{a}</td><td>{b}</td></tr>");
    }
    out.push_str(TABLE_END);
}

fn html(comparison: &Comparison, a: &[Facts], b: &[Facts]) -> String {
    let mut out = String::new();
    begin(&mut out, &format!("{} and {}", comparison.a, comparison.b));
    let _ = writeln!(
        out,
        "<p class=\"sub\">A: {} ({}). B: {} ({}).</p>",
        escape_html(&comparison.a),
        runs(comparison.a_runs),
        escape_html(&comparison.b),
        runs(comparison.b_runs)
    );
    difference_table(&mut out, "Not the same, or not known to be", &comparison.differences);
    difference_table(&mut out, "Outcome", &comparison.outcomes);
    head(&mut out, "Figures", &["", "A", "B", "B ÷ A", ""]);
    for figure in &comparison.figures {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape_html(&figure.name),
            number(figure.a),
            number(figure.b),
            figure.ratio.map_or_else(absent, ratio),
            figure.verdict.word()
        );
    }
    out.push_str(TABLE_END);
    let of_side = |side: &[Facts], name: &str, colour| {
        let curves = side.iter().map(|facts| facts.curve.clone());
        curves.map(|points| Line { name: name.to_owned(), colour, points }).collect::<Vec<_>>()
    };
    let lines = [of_side(a, "A", 0), of_side(b, "B", 1)].concat();
    let most = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
    let x_ticks = ticks(most).into_iter().filter(|tick| *tick <= most).map(|tick| (tick, short(tick)));
    let title = "99th percentile of the latency by load, ms";
    let plot = LinePlot {
        title: title.to_owned(),
        x_label: "operations done a second".to_owned(),
        x_ticks: x_ticks.collect(),
        lines,
    };
    if let Some(svg) = plot.svg(short) {
        let _ = writeln!(out, "<h2>Load</h2>\n<figure><figcaption>{title}</figcaption>{svg}");
        legend(&mut out, &[("A".to_owned(), 0), ("B".to_owned(), 1)]);
        out.push_str("</figure>\n");
    }
    out.push_str(END);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::results::compare::Verdict;

    fn facts(knee: f64, stage: &str) -> Facts {
        Facts {
            name: "town".to_owned(),
            properties: BTreeMap::from([
                ("version".to_owned(), "1.0".to_owned()),
                ("commit".to_owned(), "1a2b3c4".to_owned()),
                ("exchange.count".to_owned(), "2".to_owned()),
            ]),
            outcomes: BTreeMap::from([("bottleneck", stage.to_owned())]),
            figures: vec![
                ("knee_ops_per_s".to_owned(), knee, true),
                ("p99_us at 10.0/s".to_owned(), 1e6 / knee, false),
            ],
            curve: vec![(10.0, 3.0), (knee, 9.0)],
        }
    }

    #[test]
    fn only_repetitions_that_do_not_overlap_are_better_or_worse() {
        let of = |knees: &[f64]| knees.iter().map(|knee| facts(*knee, "machine")).collect::<Vec<_>>();
        let judge = |a: &[f64], b: &[f64]| {
            let found = compare(&of(a), &of(b), 0.03).figures;
            found.iter().map(|figure| figure.verdict).collect::<Vec<_>>()
        };
        assert_eq!(
            judge(&[50.0, 52.0, 54.0], &[70.0, 72.0, 74.0]),
            [Verdict::Better, Verdict::Better],
            "more payments, and sooner"
        );
        assert_eq!(judge(&[50.0, 60.0, 71.0], &[70.0, 72.0, 74.0]), [Verdict::Unclear; 2]);
        assert_eq!(judge(&[50.0], &[90.0]), [Verdict::Unclear; 2], "once is chance");
        assert_eq!(judge(&[50.0], &[50.5]), [Verdict::Same; 2]);
    }

    #[test]
    fn what_differs_comes_first_and_outcomes_are_always_shown() {
        let a = facts(50.0, "machine");
        let mut b = facts(70.0, "exchange-1");
        b.properties.insert("exchange.count".to_owned(), "3".to_owned());
        b.properties.insert("link main – far.rtt_ms".to_owned(), "20".to_owned());
        let comparison = compare(std::slice::from_ref(&a), &[b.clone()], 0.03);
        let names: Vec<&str> = comparison.differences.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["exchange.count", "link main – far.rtt_ms"]);
        let text = table(&comparison);
        assert!(text.contains("  exchange.count           2  →  3\n"), "{text}");
        assert!(text.contains("  link main – far.rtt_ms   –  →  20\n"), "{text}");
        assert!(text.contains("  bottleneck               machine  →  exchange-1\n"), "{text}");
        assert!(text.contains("50.0         70.0     1.40  unclear\n"), "{text}");
        let page = html(&comparison, &[a], &[b]);
        assert!(page.contains("<svg") && page.contains("exchange-1") && page.contains("unclear"), "{page}");
    }

    #[test]
    fn members_of_a_topology_have_names() {
        let topology = json!({
            "name": "x",
            "hosts": { "core": { "kind": "local" } },
            "role": [
                { "role": "exchange", "hosts": ["core", "edge"], "settings": { "exchange": { "LANES": "2" } } },
                { "role": "exchange", "hosts": ["edge"], "count": 3 },
            ],
            "link": [{ "between": ["main", "far"], "rtt_ms": 20.0 }],
            "step": [{ "run": ["load", "ramp"] }, { "wait_s": 2.0 }],
        });
        let found = topology_properties(&topology);
        let expected = [
            ("exchange 2.count", "3"),
            ("exchange 2.hosts", "edge"),
            ("exchange.hosts", "core edge"),
            ("exchange.settings.exchange.LANES", "2"),
            ("hosts.core.kind", "local"),
            ("link main – far.rtt_ms", "20.0"),
            ("name", "x"),
            ("step 2.wait_s", "2.0"),
            ("step.run", "load ramp"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn only_what_was_done_to_it_is_a_deed() {
        let event = |what: &str, of: &str| json!({ "time_ms": 1, "event": what, "of": of });
        let events = [event("up", "x"), event("load", "20"), event("kill", "bank"), event("cut", "far")];
        assert_eq!(deeds(&events), "kill bank; cut far");
    }
}
