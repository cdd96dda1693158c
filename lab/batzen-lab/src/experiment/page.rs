//! The page of a kept experiment: what was offered and served, how long it took, what each process used, and what happened when.
//!
//! It is made from the files of the experiment's directory alone, so it opens after `down`, after a kill, and elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use batzen_cli_support::numbers::{milliseconds, number, short};
use batzen_http::escape_html;
use batzen_http::plot::{Line, LinePlot};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::agent::{HostSample, ProcessSample, Sample};
use super::check::CHECK;
use super::control::kept_ramp;
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

fn begin_of(events: &[Value]) -> u64 {
    events.iter().filter_map(|event| event["time_ms"].as_u64()).min().unwrap_or(0)
}

/// The time from which seconds count, in milliseconds since 1970.
pub(super) fn begin_ms(experiment: &Experiment) -> u64 {
    begin_of(&lines(&experiment.dir.join(EVENTS)))
}

/// All that the page shows.
pub(super) struct Kept {
    /// The time from which seconds count, in milliseconds since 1970.
    begin_ms: u64,
    pub(super) events: Vec<Value>,
    /// The seconds of all generators, by their time in seconds from the beginning.
    pub(super) seconds: BTreeMap<u64, Vec<Second>>,
    /// The samples of each host.
    pub(super) samples: BTreeMap<String, Vec<Sample>>,
    pub(super) ramp: Option<Ramp>,
    pub(super) check: Option<Value>,
    /// The requests that the proxy answered.
    proxied: Vec<Proxied>,
    /// The machine whose cores each host has.
    machines: BTreeMap<String, String>,
}

impl Kept {
    pub(super) fn read(experiment: &Experiment) -> Self {
        let events: Vec<Value> = lines(&experiment.dir.join(EVENTS));
        let begin_ms = begin_of(&events);
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
        let proxied = experiment.ever_of(Role::Proxy).into_iter().flat_map(|instance| {
            let path = host_dir(&instance.host).join(&instance.name).join("out");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let offset_ms = offset_of(&instance.host);
            let all = text.lines().filter_map(Proxied::parse);
            let at_home = all
                .map(|found| Proxied { time_ms: found.time_ms.saturating_add_signed(-offset_ms), ..found });
            at_home.collect::<Vec<_>>()
        });
        let json = |name: &str| std::fs::read_to_string(experiment.dir.join(name)).ok();
        Self {
            begin_ms,
            seconds,
            samples: samples.collect(),
            proxied: proxied.collect(),
            machines: experiment.hosts.keys().map(|host| (host.clone(), experiment.machine(host))).collect(),
            ramp: kept_ramp(experiment),
            check: json(CHECK).and_then(|text| serde_json::from_str(&text).ok()),
            events,
        }
    }

    pub(super) fn at(&self, time_ms: u64) -> f64 {
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
        self.figure(out, "Latency of payments and transfers, ms", lines, &names);

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

    /// The median round trips of the whole run.
    fn round_trips(&self) -> RoundTrips {
        let mut all: BTreeMap<&String, BTreeMap<&String, Vec<f64>>> = BTreeMap::new();
        for (host, samples) in &self.samples {
            let of_host = all.entry(host).or_default();
            for (peer, ms) in samples.iter().flat_map(|sample| &sample.round_trips_ms) {
                of_host.entry(peer).or_default().push(*ms);
            }
        }
        all.retain(|host, of_host| !of_host.is_empty() || *host != super::hosts::NETWORK);
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let medians = |of_host: BTreeMap<&String, Vec<f64>>| {
            of_host.into_iter().map(|(peer, values)| (peer.clone(), median(values))).collect()
        };
        all.into_iter().map(|(host, of_host)| (host.clone(), medians(of_host))).collect()
    }

    fn round_trip_section(&self, out: &mut String) {
        let trips = self.round_trips();
        if trips.values().all(BTreeMap::is_empty) {
            return;
        }
        out.push_str(
            "<h2>Round trips between hosts, ms</h2>\n<p>Medians of TCP connections, row to column.</p>\n",
        );
        let heads: String = trips.keys().map(|host| format!("<th>{}</th>", escape_html(host))).collect();
        let _ = writeln!(
            out,
            "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>from</th>{heads}</tr></thead>\n<tbody>"
        );
        for (host, cells) in round_trip_rows(&trips) {
            let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            let _ = writeln!(out, "<tr><th scope=\"row\">{}</th>{cells}</tr>", escape_html(&host));
        }
        out.push_str("</tbody></table></div>\n");
    }

    /// Plots of what hosts used. Those of one machine share its cores, memory and disk.
    fn host_plots(&self, out: &mut String) {
        let mut one_of_machine: BTreeMap<&String, &String> = BTreeMap::new();
        for (host, machine) in &self.machines {
            one_of_machine.entry(machine).or_insert(host);
        }
        let machines: Vec<(&String, &String)> = one_of_machine.into_iter().collect();
        let hosts: Vec<(&String, &String)> = self.samples.keys().map(|host| (host, host)).collect();
        let share = |before: &HostSample, after: &HostSample, _: f64| {
            let all = after.all_ticks.saturating_sub(before.all_ticks).max(1) as f64;
            Some(after.busy_ticks.saturating_sub(before.busy_ticks) as f64 / all * 100.0)
        };
        let rate = |before: Option<u64>, after: Option<u64>, elapsed_ms: f64| {
            Some(after?.saturating_sub(before?) as f64 / elapsed_ms / 1000.0)
        };
        self.host_plot(out, "Cores at work, %", &machines, &share);
        self.host_plot(out, "Memory for new work, MB", &machines, &|_, after, _| {
            Some(after.memory_available_bytes? as f64 / 1e6)
        });
        self.host_plot(out, "Written to disk, MB/s", &machines, &|before, after, ms| {
            rate(before.disk_written_bytes, after.disk_written_bytes, ms)
        });
        self.host_plot(out, "Sent by hosts, MB/s", &hosts, &|before, after, ms| {
            rate(before.sent_bytes, after.sent_bytes, ms)
        });
    }

    fn host_plot(
        &self,
        out: &mut String,
        caption: &str,
        of: &[(&String, &String)],
        value: &dyn Fn(&HostSample, &HostSample, f64) -> Option<f64>,
    ) {
        let found = of.iter().filter_map(|(name, host)| {
            let samples = self.samples.get(*host)?;
            let points = samples.windows(2).filter_map(|pair| {
                let elapsed_ms = pair[1].time_ms.saturating_sub(pair[0].time_ms).max(1) as f64;
                Some((self.at(pair[1].time_ms), value(&pair[0].host, &pair[1].host, elapsed_ms)?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            (!points.is_empty()).then(|| ((*name).clone(), points))
        });
        self.highest(out, caption, found.collect());
    }

    /// The time that requests spent at the proxy, and of it at the exchange.
    fn proxy_plot(&self, out: &mut String) {
        if self.proxied.is_empty() {
            return;
        }
        let mut by_second: BTreeMap<u64, Vec<&Proxied>> = BTreeMap::new();
        for request in &self.proxied {
            by_second.entry(request.time_ms.saturating_sub(self.begin_ms) / 1000).or_default().push(request);
        }
        let p99 = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get((values.len() * 99 / 100).min(values.len().saturating_sub(1))).copied()
        };
        let points = |of: &dyn Fn(&Proxied) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |(time, requests): (&u64, &Vec<&Proxied>)| {
                Some((
                    *time as f64,
                    p99(requests.iter().filter_map(|request| of(request)).collect())? * 1000.0,
                ))
            };
            by_second.iter().filter_map(point).collect()
        };
        let failures = self.proxied.iter().filter(|request| request.status >= 500).count();
        let caption =
            format!("Requests at the proxy, 99th percentile, ms ({failures} answered with 500 or more)");
        let names = [("all".to_owned(), 0), ("at the exchange".to_owned(), 1)];
        let lines = vec![
            Line { name: "all".to_owned(), colour: 0, points: points(&|request| Some(request.took_s)) },
            Line {
                name: "at the exchange".to_owned(),
                colour: 1,
                points: points(&|request| request.upstream_s),
            },
        ];
        self.figure(out, &caption, lines, &names);
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
        self.highest(out, caption, found);
    }

    /// A plot of the lines that reach the highest values.
    fn highest(&self, out: &mut String, caption: &str, mut found: Vec<(String, Vec<(f64, f64)>)>) {
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
        out.push_str("<h2>What happened</h2>\n<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th>s</th><th>event</th><th>of</th></tr></thead>\n<tbody>\n");
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
            "<h2>Times by amount and number of coins</h2>\n<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>"
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
        let _ = writeln!(
            out,
            "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>"
        );
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

/// Round trips in milliseconds from each host to each other.
pub(super) type RoundTrips = BTreeMap<String, BTreeMap<String, f64>>;

/// The rows of a matrix of round trips: the host, and a cell for each host.
fn round_trip_rows(trips: &RoundTrips) -> Vec<(String, Vec<String>)> {
    let cell = |from: &str, to: &str| match trips.get(from).and_then(|to_others| to_others.get(to)) {
        _ if from == to => String::new(),
        Some(ms) => number(*ms),
        None => "–".to_owned(),
    };
    let hosts = || trips.keys();
    hosts().map(|from| (from.clone(), hosts().map(|to| cell(from, to)).collect())).collect()
}

/// The matrix as text; nothing if there is no round trip.
pub(super) fn round_trip_table(trips: &RoundTrips) -> String {
    let mut text = String::new();
    if trips.values().all(BTreeMap::is_empty) {
        return text;
    }
    let heads: String = trips.keys().map(|host| format!("{host:>10}")).collect();
    let _ = writeln!(text, "\n{:<14}{heads}", "ms from/to");
    for (host, cells) in round_trip_rows(trips) {
        let cells: String = cells.iter().map(|cell| format!("{cell:>10}")).collect();
        let _ = writeln!(text, "{}", format!("{host:<14}{cells}").trim_end());
    }
    text
}

/// A request that the proxy has answered, a line of its log.
struct Proxied {
    time_ms: u64,
    status: u16,
    took_s: f64,
    /// The time of the exchange's process; none if none was asked.
    upstream_s: Option<f64>,
}

impl Proxied {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let seconds: f64 = words.next()?.parse().ok()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of this century")]
        let time_ms = (seconds * 1000.0) as u64;
        let (status, took_s) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        // Of a request that was repeated elsewhere, all times are there, with commas.
        let times: Vec<f64> = words.filter_map(|word| word.trim_end_matches(',').parse().ok()).collect();
        Some(Self { time_ms, status, took_s, upstream_s: (!times.is_empty()).then(|| times.iter().sum()) })
    }
}

/// The payments of all wallets, and the transfers.
pub(super) fn operations(experiment: &Experiment) -> u64 {
    Sum::of(Kept::read(experiment).seconds.values().flatten()).ops
}

/// The page.
///
/// # Errors
/// When nothing was kept.
pub(super) fn html(experiment: &Experiment, kept: &Kept) -> anyhow::Result<String> {
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
    kept.host_plots(&mut out);
    kept.proxy_plot(&mut out);
    out.push_str("</div>\n");
    kept.times_section(&mut out);
    kept.round_trip_section(&mut out);
    kept.event_table(&mut out);
    let _ = writeln!(
        out,
        "<h2>What ran where</h2>\n<pre class=\"scroll\" tabindex=\"0\">{}</pre>",
        escape_html(&super::placement::table(&experiment.topology, &experiment.state.instances))
    );
    out.push_str(END);
    Ok(out)
}

/// Serves what Prometheus recorded, without recording more, until it is stopped.
///
/// # Errors
/// When nothing was recorded, or Prometheus is not installed.
pub(super) fn serve_prometheus(
    experiment: &Experiment,
    interrupted: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    let recorded = experiment.of(Role::Prometheus).pop().context("the topology has no role prometheus")?;
    let data = experiment.dir.join("hosts").join(&recorded.host).join(&recorded.name).join("data");
    ensure!(data.is_dir(), "{} is missing: Prometheus recorded on another machine", data.display());
    let conf = experiment.dir.join("prometheus-empty.yml");
    std::fs::write(&conf, "{}\n")?;
    let port = batzen_testkit::ports::reserve()?;
    eprintln!("http://127.0.0.1:{port}/ shows the recorded metrics; Ctrl-C ends it");
    // It ends with this process, which may have to remove what it unpacked.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "prometheus"])
        .arg(format!("--config.file={}", conf.display()))
        .arg(format!("--storage.tsdb.path={}", data.display()))
        .arg("--storage.tsdb.retention.time=100y")
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .spawn()
        .context("cannot start setpriv (apt-get install util-linux)")?;
    let status = loop {
        if interrupted.load(Relaxed) {
            // Nothing is written that would be lost.
            child.kill()?;
            child.wait()?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    bail!("prometheus ended ({status}): is it installed (apt-get install prometheus)?")
}
