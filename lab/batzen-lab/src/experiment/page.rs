//! The page of a kept experiment: what was offered and served, how long it took, what each process used, and what happened when.
//!
//! It is made from the files of the experiment's directory alone, so it opens after `down`, after a kill, and elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{milliseconds, number, short};
use batzen_http::escape_html;
use batzen_http::plot::{Line, LinePlot};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::agent::{ProcessSample, Sample};
use super::control::{CHECK, kept_ramp};
use super::ramp::Ramp;
use super::state::{EVENTS, Experiment};
use super::tally::{Second, Sum, TIMES_HEAD, Times};
use super::topology::Role;
use crate::bench::results::report::{END, begin, legend};

/// The most lines in a plot of processes.
const LINES_MAX: usize = 8;

/// The lines of a file that are whole and of this form. A kill may leave the last one cut.
fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// All that the page shows.
struct Kept {
    /// The time from which seconds count, in milliseconds since 1970.
    begin_ms: u64,
    events: Vec<Value>,
    /// The seconds of all generators, by their time in seconds from the beginning.
    seconds: BTreeMap<u64, Vec<Second>>,
    /// The samples of each host.
    samples: BTreeMap<String, Vec<Sample>>,
    ramp: Option<Ramp>,
    check: Option<Value>,
}

impl Kept {
    fn read(experiment: &Experiment) -> Self {
        let events: Vec<Value> = lines(&experiment.dir.join(EVENTS));
        let begin_ms = events.iter().filter_map(|event| event["time_ms"].as_u64()).min().unwrap_or(0);
        let host_dir = |host: &str| experiment.dir.join("hosts").join(host);
        let mut seconds: BTreeMap<u64, Vec<Second>> = BTreeMap::new();
        let offset_of = |host: &str| experiment.state.clock_offsets_ms.get(host).copied().unwrap_or(0);
        for instance in experiment.ever_of(Role::Load) {
            let offset_ms = offset_of(&instance.host);
            for mut second in lines::<Second>(&host_dir(&instance.host).join(&instance.name).join("out")) {
                second.time_ms = second.time_ms.saturating_add_signed(-offset_ms);
                seconds.entry(second.time_ms.saturating_sub(begin_ms) / 1000).or_default().push(second);
            }
        }
        let samples = experiment.hosts.keys().map(|host| {
            let mut samples: Vec<Sample> = lines(&host_dir(host).join("samples.jsonl"));
            for sample in &mut samples {
                sample.time_ms = sample.time_ms.saturating_add_signed(-offset_of(host));
            }
            (host.clone(), samples)
        });
        let json = |name: &str| std::fs::read_to_string(experiment.dir.join(name)).ok();
        Self {
            begin_ms,
            seconds,
            samples: samples.collect(),
            ramp: kept_ramp(experiment),
            check: json(CHECK).and_then(|text| serde_json::from_str(&text).ok()),
            events,
        }
    }

    fn at(&self, time_ms: u64) -> f64 {
        time_ms.saturating_sub(self.begin_ms) as f64 / 1000.0
    }

    fn end_s(&self) -> f64 {
        let samples = self.samples.values().flatten().map(|sample| self.at(sample.time_ms));
        let events = self.events.iter().filter_map(|event| Some(self.at(event["time_ms"].as_u64()?)));
        samples.chain(events).fold(0.0, f64::max)
    }

    fn plot(&self, title: &str, lines: Vec<Line>) -> Option<String> {
        let end = self.end_s();
        let x_ticks = batzen_http::plot::ticks(end).into_iter().filter(|tick| *tick <= end * 1.001);
        let x_ticks = x_ticks.map(|tick| (tick, short(tick))).collect();
        LinePlot { title: title.to_owned(), x_label: "seconds since the start".to_owned(), x_ticks, lines }
            .svg(short)
    }

    fn load_plots(&self, out: &mut String) {
        let points = |of: &dyn Fn(&[Second]) -> f64| -> Vec<(f64, f64)> {
            self.seconds.iter().map(|(time, seconds)| (*time as f64, of(seconds))).collect()
        };
        let line = |name: &str, colour, points| Line { name: name.to_owned(), colour, points };
        let ops = |seconds: &[Second], kind: &str| {
            seconds.iter().filter_map(|second| second.kinds.get(kind)).map(|counts| counts.ops).sum::<u64>()
                as f64
        };
        let kinds: BTreeSet<&String> =
            self.seconds.values().flatten().flat_map(|second| second.kinds.keys()).collect();
        let mut names = vec![("offered".to_owned(), 0)];
        let mut lines = vec![line(
            "offered",
            0,
            points(&|all| all.iter().map(|second| second.offered).sum::<u64>() as f64),
        )];
        for (kind, colour) in kinds.iter().zip(1..) {
            names.push(((*kind).clone(), colour));
            lines.push(line(kind, colour, points(&|all| ops(all, kind))));
        }
        self.figure(out, "Operations a second", lines, &names);

        let quantile = |all: &[Second], quantile: f64| {
            Sum::of(all).latency().value_at_quantile(quantile) as f64 / 1000.0
        };
        let latencies = [("p50", 0.5, 0), ("p99", 0.99, 1)];
        let lines =
            latencies.map(|(name, q, colour)| line(name, colour, points(&|all| quantile(all, q)))).to_vec();
        let names = latencies.map(|(name, _, colour)| (name.to_owned(), colour));
        self.figure(out, "Latency of payments, ms", lines, &names);

        let errors =
            |all: &[Second]| all.iter().flat_map(|second| second.errors.values()).sum::<u64>() as f64;
        let backlog = |all: &[Second]| all.iter().map(|second| second.backlog).sum::<usize>() as f64;
        let wallets = |all: &[Second]| all.iter().map(|second| second.wallets).sum::<usize>() as f64;
        let lines = vec![
            line("wallets", 0, points(&wallets)),
            line("errors a second", 1, points(&errors)),
            line("operations waiting for a wallet", 2, points(&backlog)),
        ];
        let names = [("wallets", 0), ("errors a second", 1), ("waiting for a wallet", 2)];
        self.figure(
            out,
            "Wallets, errors, waiting operations",
            lines,
            &names.map(|(name, colour)| (name.to_owned(), colour)),
        );
    }

    fn figure(&self, out: &mut String, caption: &str, lines: Vec<Line>, names: &[(String, usize)]) {
        if let Some(svg) = self.plot(caption, lines) {
            let _ = writeln!(out, "<figure><figcaption>{}</figcaption>{svg}", escape_html(caption));
            legend(out, names);
            out.push_str("</figure>\n");
        }
    }

    /// A plot with a line for each of the processes that reach the highest values.
    fn process_plot(
        &self,
        out: &mut String,
        caption: &str,
        value: &dyn Fn(&ProcessSample, &ProcessSample, f64) -> f64,
    ) {
        let mut found: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for samples in self.samples.values() {
            let names: BTreeSet<&String> =
                samples.iter().flat_map(|sample| sample.processes.keys()).collect();
            for name in names {
                let points = samples.windows(2).filter_map(|pair| {
                    let (before, after) = (pair[0].processes.get(name)?, pair[1].processes.get(name)?);
                    let elapsed_ms = pair[1].time_ms.saturating_sub(pair[0].time_ms).max(1);
                    Some((self.at(pair[1].time_ms), value(before, after, elapsed_ms as f64)))
                });
                found.push((name.clone(), points.collect()));
            }
        }
        let highest = |points: &[(f64, f64)]| points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        found.sort_by(|one, two| highest(&two.1).total_cmp(&highest(&one.1)));
        found.truncate(LINES_MAX);
        let names: Vec<(String, usize)> = found.iter().map(|(name, _)| name.clone()).zip(0..).collect();
        let lines = found
            .into_iter()
            .zip(0..)
            .map(|((name, points), colour)| Line { name, colour, points })
            .collect();
        self.figure(out, caption, lines, &names);
    }

    fn event_table(&self, out: &mut String) {
        out.push_str("<h2>What happened</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>s</th><th>event</th><th>of</th></tr></thead>\n<tbody>\n");
        for event in &self.events {
            let text = |name: &str| escape_html(event[name].as_str().unwrap_or_default());
            let time =
                event["time_ms"].as_u64().map_or_else(String::new, |time| format!("{:.1}", self.at(time)));
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{time}</th><td>{}</td><td>{}</td></tr>",
                text("event"),
                text("of")
            );
        }
        out.push_str("</tbody></table></div>\n");
    }

    /// The times of the whole load by kind, amount and number of coins.
    fn times_section(&self, out: &mut String) {
        let times = Sum::of(self.seconds.values().flatten()).times();
        if times.is_empty() {
            return;
        }
        let head: String = TIMES_HEAD.iter().map(|name| format!("<th>{name}</th>")).collect();
        let _ = writeln!(
            out,
            "<h2>Times by amount and number of coins</h2>\n<div class=\"scroll\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>"
        );
        for [kind, others @ ..] in times.iter().map(Times::cells) {
            let others: String = others.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            let _ = writeln!(out, "<tr><th scope=\"row\">{kind}</th>{others}</tr>");
        }
        out.push_str("</tbody></table></div>\n");
    }

    fn ramp_section(&self, out: &mut String) {
        let Some(ramp) = &self.ramp else { return };
        out.push_str("<h2>Ramp</h2>\n");
        if let Some(found) = &ramp.bottleneck {
            let knee = ramp.knee_ops_per_s.map_or_else(|| "none".to_owned(), number);
            let _ = writeln!(
                out,
                "<p class=\"note\">Knee: {knee} operations a second. Bottleneck: <b>{}</b>: {}.</p>",
                escape_html(&found.stage),
                escape_html(&found.why)
            );
        }
        let head = ["offered/s", "done/s", "coins/s", "p50 ms", "p99 ms", "errors"];
        let cells: String = head.iter().map(|name| format!("<th>{name}</th>")).collect();
        let _ = writeln!(out, "<div class=\"scroll\"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>");
        for step in &ramp.steps {
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                number(step.offered_per_s),
                number(step.ops_per_s),
                number(step.coins_per_s),
                milliseconds(step.p50_us as f64),
                milliseconds(step.p99_us as f64),
                step.errors
            );
        }
        out.push_str("</tbody></table></div>\n");
        let points = |of: &dyn Fn(&super::ramp::Step) -> f64| -> Vec<(f64, f64)> {
            ramp.steps.iter().map(|step| (step.ops_per_s, of(step) / 1000.0)).collect()
        };
        let lines = vec![
            Line { name: "p50".into(), colour: 0, points: points(&|step| step.p50_us as f64) },
            Line { name: "p99".into(), colour: 1, points: points(&|step| step.p99_us as f64) },
        ];
        let most = ramp.steps.iter().map(|step| step.ops_per_s).fold(0.0, f64::max);
        let x_ticks = batzen_http::plot::ticks(most)
            .into_iter()
            .filter(|tick| *tick <= most * 1.001)
            .map(|tick| (tick, short(tick)));
        let plot = LinePlot {
            title: "Latency by load, ms".into(),
            x_label: "operations done a second".into(),
            x_ticks: x_ticks.collect(),
            lines,
        };
        if let Some(svg) = plot.svg(short) {
            let _ = writeln!(out, "<figure><figcaption>Latency by load, ms</figcaption>{svg}");
            legend(out, &[("p50".into(), 0), ("p99".into(), 1)]);
            out.push_str("</figure>\n");
        }
    }
}

/// The payments of all wallets.
pub(super) fn operations(experiment: &Experiment) -> u64 {
    Sum::of(Kept::read(experiment).seconds.values().flatten()).ops
}

/// The page.
///
/// # Errors
/// When nothing was kept.
pub(super) fn html(experiment: &Experiment) -> anyhow::Result<String> {
    let kept = Kept::read(experiment);
    ensure!(!kept.events.is_empty(), "{} holds no events: nothing was kept", experiment.dir.display());
    let mut out = String::with_capacity(64 << 10);
    begin(&mut out, &format!("Experiment {}", experiment.topology.name));
    let _ = writeln!(
        out,
        "<p class=\"sub\">Batzen {}, commit {}. {} instances on {} hosts, {} s.</p>",
        escape_html(&experiment.state.version),
        escape_html(&experiment.state.commit),
        experiment.state.instances.len(),
        experiment.hosts.len(),
        kept.end_s().round()
    );
    let word = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "not checked".to_owned(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(other) => other.to_string(),
    };
    let verdict = |name: &str| word(kept.check.as_ref().map(|check| &check[name]));
    let when = kept.check.as_ref().and_then(|check| check["time_ms"].as_u64());
    let when =
        when.map_or_else(String::new, |time| format!(" ({} s after the start)", kept.at(time).round()));
    let _ = writeln!(
        out,
        "<p class=\"note\">Money conserved: {}. Findings of the auditor: {}{when}.</p>",
        verdict("conserved"),
        verdict("findings")
    );
    kept.ramp_section(&mut out);
    out.push_str("<h2>Load and processes</h2>\n<div class=\"plots wide\">\n");
    kept.load_plots(&mut out);
    kept.process_plot(&mut out, "Processor time, cores", &|before, after, elapsed_ms| {
        after.cpu_ms.saturating_sub(before.cpu_ms) as f64 / elapsed_ms
    });
    kept.process_plot(&mut out, "Memory, MB", &|_, after, _| after.rss_bytes as f64 / 1e6);
    out.push_str("</div>\n");
    kept.times_section(&mut out);
    kept.event_table(&mut out);
    let _ = writeln!(
        out,
        "<h2>What ran where</h2>\n<pre class=\"scroll\">{}</pre>",
        escape_html(&super::placement::table(&experiment.topology, &experiment.state.instances))
    );
    out.push_str(END);
    Ok(out)
}

/// Serves what Prometheus recorded, without recording more, until it is stopped.
///
/// # Errors
/// When nothing was recorded, or Prometheus is not installed.
pub(super) fn serve_prometheus(experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let recorded = experiment.of(Role::Prometheus).pop().context("the topology has no role prometheus")?;
    let data = experiment.dir.join("hosts").join(&recorded.host).join(&recorded.name).join("data");
    ensure!(data.is_dir(), "{} is missing: Prometheus recorded on another machine", data.display());
    let conf = experiment.dir.join("prometheus-empty.yml");
    std::fs::write(&conf, "{}\n")?;
    let port = batzen_testkit::ports::reserve()?;
    eprintln!("http://127.0.0.1:{port}/ shows the recorded metrics; Ctrl-C ends it");
    // This process becomes Prometheus, so that a signal ends it.
    let error = Command::new("prometheus")
        .arg(format!("--config.file={}", conf.display()))
        .arg(format!("--storage.tsdb.path={}", data.display()))
        .arg("--storage.tsdb.retention.time=100y")
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .exec();
    Err(error).context("prometheus is not installed (apt-get install prometheus)")
}
