//! `batzen-lab bench report`: one HTML file with all results of some runs. It needs no network, and works in
//! light and dark mode and at any width.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use batzen_cli_support::numbers::{count, gigabytes, milliseconds, number, ratio, short};
use batzen_http::escape_html;
use batzen_http::plot::{COLOURS, Line, LinePlot, ticks};

use crate::bench::BenchError;
use crate::bench::results::output;
use crate::bench::results::result::{BatchBucket, Latency, PercentilePoint, Run, Sample};
use crate::bench::results::svg::{ColumnPlot, Row, RowPlot};
use crate::bench::results::table::Results;
use crate::bench::results::words::{cores, days, each_once, load};
use crate::bench::scenarios::limits::Limits;

/// Arguments of `batzen-lab bench report`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  batzen-lab bench report docs/results/deposit docs/results/withdraw -o report.html\n  batzen-lab bench report before after --title \"Before and after\""
)]
pub struct ReportArgs {
    /// Result directories, shown in this order, or directories that contain some; also that of
    /// `bench limits --out`
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Where to write the report; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Heading of the report
    #[arg(long, value_name = "TEXT", default_value = "Batzen, measured")]
    title: String,
}

/// Runs `batzen-lab bench report`.
///
/// # Errors
/// When a result cannot be read or the report cannot be written.
pub fn run(args: &ReportArgs) -> Result<ExitCode, BenchError> {
    let Results { runs, limits } = Results::read(&args.directories)?;
    let html = html(&args.title, &runs, limits.as_ref());
    if args.output == Path::new("-") {
        output::print(&html)?;
    } else {
        output::replace_file(&args.output, &html)?;
        let incomplete = runs.iter().filter(|run| !run.missing_files().is_empty()).count();
        let note = match incomplete {
            0 => String::new(),
            some => format!("; {some} without files for plots, which the report names"),
        };
        eprintln!("{}: {} runs{note}", args.output.display(), runs.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// A run, with its name and its colour in the whole report.
struct Shown<'a> {
    run: &'a Run,
    name: String,
    /// The colour within its group.
    colour: usize,
}

/// Runs of one scenario.
struct Group<'a> {
    scenario: &'a str,
    runs: Vec<Shown<'a>>,
}

fn groups(runs: &[Run]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs {
        let scenario = run.result.scenario.as_str();
        let index = groups.iter().position(|group| group.scenario == scenario).unwrap_or_else(|| {
            groups.push(Group { scenario, runs: Vec::new() });
            groups.len() - 1
        });
        let colour = groups[index].runs.len();
        groups[index].runs.push(Shown { run, name: name(run, runs), colour });
    }
    groups
}

/// The title, followed by the directory if other runs have the same title.
pub(crate) fn name(run: &Run, among: &[Run]) -> String {
    let title = &run.result.title;
    if among.iter().filter(|other| other.result.title == *title).count() < 2 {
        return title.clone();
    }
    let directory = run
        .path
        .file_name()
        .map_or_else(|| run.path.display().to_string(), |name| name.to_string_lossy().into_owned());
    format!("{title} ({directory})")
}

/// The report, with the machine's ceilings if they were measured.
#[must_use]
pub fn html(title: &str, runs: &[Run], limits: Option<&Limits>) -> String {
    let groups = groups(runs);
    let mut out = String::with_capacity(64 << 10);
    begin(&mut out, title);
    head(&mut out, runs);
    summary(&mut out, &groups);
    out.push_str("<div class=\"plots wide\">\n");
    efficiency(&mut out, &groups);
    cpu(&mut out, &groups);
    out.push_str("</div>\n");
    for group in &groups {
        scenario(&mut out, group);
    }
    if let Some(limits) = limits {
        ceilings(&mut out, limits);
    }
    reading(&mut out);
    out.push_str(END);
    out
}

/// The end of a page.
pub(crate) const END: &str = "</main>\n</body>\n</html>\n";

/// Begins a page that needs no network.
pub(crate) fn begin(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        title = escape_html(title),
        STYLE = include_str!("style.css"),
    );
}

/// Where and when.
fn head(out: &mut String, runs: &[Run]) {
    let places = each_once(runs.iter().map(|Run { result, .. }| {
        let machine = &result.machine;
        format!(
            "{}, {} cores ({}), {} GB, {}. Batzen {}, commit {}.",
            machine.model,
            machine.cores,
            if machine.flags.is_empty() { "no extensions".to_owned() } else { machine.flags.join(" ") },
            gigabytes(machine.memory_bytes),
            machine.kernel,
            result.version,
            result.commit,
        )
    }));
    let days = match days(runs) {
        None => String::new(),
        Some((first, last)) if first == last => format!(", {first}"),
        Some((first, last)) => format!(", {first} to {last}"),
    };
    let plural = if runs.len() == 1 { "run" } else { "runs" };
    let _ = writeln!(out, "<p class=\"sub\">{} {plural}{}.", runs.len(), escape_html(&days));
    for place in &places {
        let _ = writeln!(out, "<br>{}", escape_html(place));
    }
    out.push_str("</p>\n");
    if places.len() > 1 {
        out.push_str(
            "<p class=\"note\">These runs are of different machines or builds: compare ratios, not absolute figures.</p>\n",
        );
    }
}

pub(crate) fn legend(out: &mut String, entries: &[(String, usize)]) {
    out.push_str("<ul class=\"legend\">");
    for (name, colour) in entries {
        let _ = write!(out, "<li><i class=\"c{}\"></i>{}</li>", colour % COLOURS, escape_html(name));
    }
    out.push_str("</ul>\n");
}

/// Writes a table, up to the end of its line: heads as HTML, and rows of a name and figures.
fn table<R: IntoIterator<Item = Option<String>>>(
    out: &mut String,
    class: &str,
    heads: impl IntoIterator<Item = impl AsRef<str>>,
    rows: impl IntoIterator<Item = (String, R)>,
) {
    let _ = write!(out, "<div class=\"scroll\" tabindex=\"0\"><table{class}>\n<thead><tr>");
    for head in heads {
        let _ = write!(out, "<th>{}</th>", head.as_ref());
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (name, cells) in rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape_html(&name));
        for text in cells {
            let text = text.map_or_else(|| "–".to_owned(), |text| escape_html(&text));
            let _ = write!(out, "<td>{text}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>");
}

fn summary(out: &mut String, groups: &[Group<'_>]) {
    let rows = groups.iter().flat_map(|group| &group.runs).map(|shown| {
        let result = &shown.run.result;
        let percentile =
            |pick: fn(Latency) -> u64| result.latency.map(|latency| milliseconds(pick(latency) as f64));
        let cells = [
            Some(load(&result.load)),
            Some(format!("{} {}", number(result.ops_per_s), result.unit)),
            result.efficiency.map(ratio),
            percentile(|latency| latency.p50_us),
            percentile(|latency| latency.p90_us),
            percentile(|latency| latency.p99_us),
            percentile(|latency| latency.p999_us),
            percentile(|latency| latency.max_us),
            result.cpu_us_per_op.map(number),
            result.bytes_per_op.map(|bytes| number(bytes.disk)),
            result.bytes_per_op.map(|bytes| number(bytes.ram)),
            Some(format!("{:?}", result.limited_by).to_lowercase()),
            Some(count(result.error_count())),
        ];
        (shown.name.clone(), cells)
    });
    let heads = "run,load,per second,efficiency,p50 ms,p90 ms,p99 ms,p99.9 ms,max ms,CPU µs<br>per op,\
                 disk bytes<br>per op,RAM bytes<br>per op,limited<br>by,errors";
    table(out, "", heads.split(','), rows);
    out.push('\n');
}

fn figure(out: &mut String, caption: &str, svg: Option<String>) {
    if let Some(svg) = svg {
        let _ = writeln!(out, "<figure><figcaption>{}</figcaption>{svg}</figure>", escape_html(caption));
    }
}

fn efficiency(out: &mut String, groups: &[Group<'_>]) {
    let rows = groups.iter().flat_map(|group| &group.runs).filter_map(|shown| {
        let result = &shown.run.result;
        let (efficiency, ceiling) = (result.efficiency?, result.ceiling_ops_per_s?);
        Some(Row {
            label: shown.name.clone(),
            value: format!("{} of {}/s", ratio(efficiency), number(ceiling)),
            parts: vec![("efficiency".to_owned(), 0, efficiency)],
            mark: None,
        })
    });
    let title = "Efficiency: throughput ÷ that of the mandatory cryptography alone";
    let plot = RowPlot { unit: String::new(), rows: rows.collect(), max: Some(1.0) };
    figure(out, title, plot.html());
}

fn cpu(out: &mut String, groups: &[Group<'_>]) {
    let all = || groups.iter().flat_map(|group| &group.runs);
    let stages: BTreeSet<&String> =
        all().flat_map(|shown| shown.run.result.cpu_us_per_op_by_stage.keys()).collect();
    let rows: Vec<Row> = all()
        .filter_map(|shown| {
            let result = &shown.run.result;
            let total = result.cpu_us_per_op?;
            let mut parts: Vec<(String, usize, f64)> = stages
                .iter()
                .enumerate()
                .filter_map(|(colour, stage)| {
                    result.cpu_us_per_op_by_stage.get(*stage).map(|us| ((*stage).clone(), colour, *us))
                })
                .collect();
            if parts.is_empty() {
                parts.push(("all".to_owned(), 0, total));
            }
            Some(Row {
                label: shown.name.clone(),
                value: format!("{} µs", number(total)),
                parts,
                mark: result.mandatory_us(),
            })
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let title = "Server CPU time per operation, by stage";
    let plot = RowPlot { unit: "µs".to_owned(), rows, max: None };
    let Some(svg) = plot.html() else { return };
    let _ = write!(out, "<figure><figcaption>{title}; the mark: mandatory cryptography alone</figcaption>");
    let entries: Vec<_> =
        stages.iter().enumerate().map(|(colour, stage)| ((*stage).clone(), colour)).collect();
    legend(out, &entries);
    let _ = writeln!(out, "{svg}</figure>");
}

fn scenario(out: &mut String, group: &Group<'_>) {
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape_html(group.scenario));
    legend(out, &group.runs.iter().map(|shown| (shown.name.clone(), shown.colour)).collect::<Vec<_>>());
    for shown in &group.runs {
        let mut note = |text: &str| {
            let (name, text) = (escape_html(&shown.name), escape_html(text));
            let _ = writeln!(out, "<p class=\"note\">{name}: {text}</p>");
        };
        for remark in &shown.run.result.remarks {
            note(remark);
        }
        let missing = shown.run.missing_files();
        if !missing.is_empty() {
            note(&format!("not in its directory, so some plots lack this run: {}", missing.join(", ")));
        }
        for (reason, failed) in &shown.run.result.errors {
            note(&format!("{} requests failed: {reason}", count(*failed)));
        }
    }
    out.push_str("<div class=\"plots\">\n");
    let unit = &group.runs[0].run.result.unit;
    let unit = if group.runs.iter().all(|shown| shown.run.result.unit == *unit) {
        unit.as_str()
    } else {
        "operations"
    };
    figure(out, &format!("Throughput: {unit} per second"), over_time(group, unit, |s| Some(s.ops_per_s)));
    figure(out, "Latency by percentile, ms", latency(group));
    figure(out, "Latency over time: 99th percentile, ms", over_time(group, "p99", |s| Some(s.p99_us? / 1e3)));
    figure(out, "Batch size: commands per commit", over_time(group, "batch size", |s| s.batch_size));
    figure(out, "Server: cores busy", over_time(group, "cores busy", |s| s.server_cores_busy));
    figure(out, "Load generator: cores busy", over_time(group, "cores busy", |s| s.client_cores_busy));
    figure(out, "Commands waiting", over_time(group, "waiting", |s| s.queue_depth));
    let taken = |s: &Sample| Some(s.server_stolen_share? * 100.0);
    if group.runs.iter().flat_map(|shown| &shown.run.series).filter_map(taken).any(|percent| percent > 0.0) {
        figure(out, "Server: time that the hypervisor gave to others, %", over_time(group, "%", taken));
    }
    batch_histograms(out, group);
    out.push_str("</div>\n");
    kinds(out, group);
    parameters(out, group);
    out.push_str("</section>\n");
}

/// Ticks at round numbers of seconds.
fn time_ticks(longest_s: f64) -> Vec<(f64, String)> {
    ticks(longest_s)
        .into_iter()
        .filter(|tick| *tick <= longest_s * 1.001)
        .map(|tick| (tick, short(tick)))
        .collect()
}

/// A line of each run that has points.
fn lines(group: &Group<'_>, points: impl Fn(&Run) -> Vec<(f64, f64)>) -> Vec<Line> {
    let line = |shown: &Shown<'_>| Line {
        name: shown.name.clone(),
        colour: shown.colour,
        points: points(shown.run),
    };
    group.runs.iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn over_time(group: &Group<'_>, what: &str, value: impl Fn(&Sample) -> Option<f64>) -> Option<String> {
    let point = |sample: &Sample| Some((sample.t_s, value(sample)?));
    let lines = lines(group, |run| run.series.iter().filter_map(point).collect());
    let longest_s = lines.iter().flat_map(|line| &line.points).map(|(t, _)| *t).fold(0.0, f64::max);
    LinePlot {
        title: format!("{}: {what} over time", group.scenario),
        x_label: "seconds".into(),
        x_ticks: time_ticks(longest_s),
        lines,
    }
    .svg(short)
}

/// The position of a percentile on the axis: 0 for 0 %, 1 for 90 %, 2 for 99 %, and so on.
fn nines(point: &PercentilePoint) -> f64 {
    // The slowest request has no position on this axis; it is drawn at that of the one before it.
    let largest = (point.count.max(1) as f64).log10();
    if point.quantile >= 1.0 { largest } else { (-(1.0 - point.quantile).log10()).min(largest) }
}

fn latency(group: &Group<'_>) -> Option<String> {
    let point = |point: &PercentilePoint| (nines(point), point.value_us / 1e3);
    let lines = lines(group, |run| run.latency.iter().map(point).collect());
    let most = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
    let names = ["0%", "90%", "99%", "99.9%", "99.99%", "99.999%", "99.9999%"];
    let x_ticks = names
        .iter()
        .enumerate()
        .map(|(nines, name)| (nines as f64, (*name).to_owned()))
        .filter(|(nines, _)| *nines <= most)
        .collect();
    LinePlot {
        title: format!("{}: latency by percentile", group.scenario),
        x_label: "percentile".into(),
        x_ticks,
        lines,
    }
    .svg(short)
}

/// Shares of the batches between boundaries that all runs use.
fn shares(buckets: &[BatchBucket], boundaries: &[Option<u64>]) -> Vec<f64> {
    let total: u64 = buckets.iter().map(|bucket| bucket.batches).sum();
    boundaries
        .iter()
        .map(|boundary| {
            let here: u64 =
                buckets.iter().filter(|bucket| bucket.up_to == *boundary).map(|bucket| bucket.batches).sum();
            if total == 0 { 0.0 } else { here as f64 / total as f64 }
        })
        .collect()
}

fn batch_histograms(out: &mut String, group: &Group<'_>) {
    let kinds: BTreeSet<&String> =
        group.runs.iter().flat_map(|shown| shown.run.result.batch_sizes.keys()).collect();
    for kind in kinds {
        let sizes: Vec<_> = group
            .runs
            .iter()
            .filter_map(|shown| shown.run.result.batch_sizes.get(kind).map(|sizes| (shown, sizes)))
            .filter(|(_, sizes)| sizes.batches > 0)
            .collect();
        let mut boundaries: Vec<Option<u64>> = sizes
            .iter()
            .flat_map(|(_, sizes)| &sizes.buckets)
            .filter(|bucket| bucket.batches > 0)
            .map(|bucket| bucket.up_to)
            .collect();
        // `None` stands for everything above.
        boundaries.sort_unstable_by_key(|boundary| boundary.unwrap_or(u64::MAX));
        boundaries.dedup();
        let groups = boundaries.iter().map(|boundary| {
            boundary.map_or_else(|| "more".to_owned(), |up_to| format!("≤{}", short(up_to as f64)))
        });
        let series = sizes
            .iter()
            .map(|(shown, sizes)| (shown.name.clone(), shown.colour, shares(&sizes.buckets, &boundaries)));
        let means: Vec<String> = sizes.iter().map(|(_, sizes)| number(sizes.mean)).collect();
        let plot = ColumnPlot {
            title: format!("{}: batch sizes, {kind}", group.scenario),
            x_label: "items in a batch".into(),
            groups: groups.collect(),
            series: series.collect(),
        };
        figure(out, &format!("Batches by size: {kind} (mean {})", means.join(", ")), plot.svg());
    }
}

fn kinds(out: &mut String, group: &Group<'_>) {
    if group.runs.iter().all(|shown| shown.run.result.kinds.is_empty()) {
        return;
    }
    let rows = group.runs.iter().flat_map(|shown| {
        shown.run.result.kinds.iter().map(move |(kind, figures)| {
            let latency = figures.latency;
            let cells = [
                kind.clone(),
                count(figures.ops),
                number(figures.ops_per_s),
                milliseconds(latency.p50_us as f64),
                milliseconds(latency.p99_us as f64),
                milliseconds(latency.max_us as f64),
            ];
            (shown.name.clone(), cells.map(Some))
        })
    });
    table(out, "", ["run", "kind", "operations", "per second", "p50 ms", "p99 ms", "max ms"], rows);
    out.push('\n');
}

/// A parameter's value as text.
pub(crate) fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn parameters(out: &mut String, group: &Group<'_>) {
    let results = || group.runs.iter().map(|shown| &shown.run.result);
    let mut rows: Vec<(String, Vec<Option<String>>)> = vec![
        ("started".into(), results().map(|result| Some(result.started.clone())).collect()),
        ("duration, s".into(), results().map(|result| Some(number(result.duration_s))).collect()),
        ("operations".into(), results().map(|result| Some(count(result.ops))).collect()),
        ("requests".into(), results().map(|result| Some(count(result.requests))).collect()),
        ("server's cores".into(), results().map(|result| Some(cores(&result.server_cores))).collect()),
        (
            "load generator's cores".into(),
            results().map(|result| Some(cores(&result.client_cores))).collect(),
        ),
        (
            "load generator's CPU µs per op".into(),
            results().map(|result| result.client_cpu_us_per_op.map(number)).collect(),
        ),
    ];
    let names: BTreeSet<&String> = results().flat_map(|result| result.parameters.keys()).collect();
    for name in names {
        rows.push((name.clone(), results().map(|result| result.parameters.get(name).map(plain)).collect()));
    }
    let names: BTreeSet<&String> = results().flat_map(|result| result.extra.keys()).collect();
    for name in names {
        let values = results().map(|result| result.extra.get(name).copied().map(number));
        rows.push((name.clone(), values.collect()));
    }
    let parts: BTreeSet<&String> =
        results().flat_map(|result| &result.ceiling_parts).map(|part| &part.name).collect();
    for name in parts {
        let values = results().map(|result| {
            let part = result.ceiling_parts.iter().find(|part| part.name == *name)?;
            Some(format!("{} × {} µs", number(part.per_op), number(part.us)))
        });
        rows.push((format!("ceiling: {name}"), values.collect()));
    }
    rows.push(("command".into(), results().map(|result| Some(result.command.clone())).collect()));
    out.push_str("<details open><summary>Parameters</summary>\n");
    let names = group.runs.iter().map(|shown| escape_html(&shown.name));
    table(out, " class=\"parameters\"", std::iter::once(String::new()).chain(names), rows);
    out.push_str("</details>\n");
}

/// Writes the limits of one core.
fn ceilings(out: &mut String, limits: &Limits) {
    let _ = writeln!(
        out,
        "<section>\n<h2>What one core can do</h2>\n<p>Cryptography, hashes and text in operations per second of CPU time, by \
         a library one after the other and in eight lanes, measured in the same run on core {}, Batzen {}, commit {}; then what \
         follows for an operation of the exchange.</p>\n<div class=\"plots wide\">",
        limits.core,
        escape_html(&limits.version),
        escape_html(&limits.commit)
    );
    let rows = limits.limits.iter().map(|limit| {
        let lanes = limit.lanes.as_ref().map(|speed| speed.per_s);
        (limit.name.clone(), [Some(number(limit.library.per_s)), lanes.map(number), limit.ratio.map(number)])
    });
    table(out, "", ["step", "library", "lanes", "ratio"], rows);
    out.push('\n');
    let rows = limits.derived.iter().map(|derived| {
        let figures = [
            Some(number(derived.cryptography_library_per_s)),
            derived.cryptography_lanes_per_s.map(number),
            Some(number(derived.whole_per_s)),
        ];
        (derived.operation.clone(), figures)
    });
    table(out, "", ["cryptography alone", "library", "lanes", "with HTTP, JSON, journal"], rows);
    out.push_str("\n</div>\n</section>\n");
}

fn reading(out: &mut String) {
    out.push_str(
        "<section>\n<h2>How to read this</h2>\n<p>Efficiency is the throughput divided by that of the signatures, \
         verifications and key derivations which nobody who speaks the protocol can leave out, measured in the same run on \
         the server’s cores with nothing else. Latency is that of whole requests as the client sees them; in an open loop it \
         counts from the moment at which the request was due, so that a server that stalls cannot hide it. CPU time is that \
         of all threads of the server divided by the operations. Disk bytes are those written to the journal, RAM bytes the \
         growth of the process. The same machine, the same parameters: then figures can be compared.</p>\n</section>\n",
    );
}

#[cfg(test)]
mod tests;
