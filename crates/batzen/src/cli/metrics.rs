//! `batzen metrics`: adds up the metrics of the processes of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use batzen_cli_support::{numbers, services};
use batzen_http::client::{Client, ClientOptions};
use clap::Args;
use serde_json::{Value, json};

/// Add up the metrics of the processes of a service.
///
/// Counters and histograms are added; gauges are shown for each process, because many of them describe what all
/// processes share. Each process needs an address of its own: --metrics of its command, or METRICS in its configuration.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen metrics 127.0.0.1:9181 127.0.0.1:9182 127.0.0.1:9183
  batzen metrics --match worker 127.0.0.1:9181 127.0.0.1:9182
  batzen metrics --json http://10.0.0.1:9181 http://10.0.0.2:9181

Exit codes: 0 all processes answer; 1 some do not: the rest is added up.")]
pub(crate) struct MetricsArgs {
    /// Addresses of the processes: ADDRESS:PORT, or a URL
    #[arg(required = true, value_name = "URL")]
    processes: Vec<String>,
    /// Only metrics whose names or labels contain this text
    #[arg(long = "match", value_name = "TEXT")]
    text: Option<String>,
    /// Print JSON, with the buckets of histograms and with what is zero everywhere
    #[arg(long)]
    json: bool,
}

/// Runs `batzen metrics`.
///
/// # Errors
/// No process answers.
pub(super) fn run(args: MetricsArgs) -> anyhow::Result<ExitCode> {
    services::block_on(show(args))
}

async fn show(args: MetricsArgs) -> anyhow::Result<ExitCode> {
    for (number, process) in args.processes.iter().enumerate() {
        let is_twice = args.processes[..number].contains(process);
        ensure!(!is_twice, "{process} is named twice, and its counters would be added twice");
    }
    let client = Client::new(&ClientOptions::default())?;
    let mut pages = Vec::with_capacity(args.processes.len());
    for process in &args.processes {
        pages.push(page(&client, process).await);
    }
    let mut sums = Sums::new(pages.len());
    for (number, page) in pages.iter().enumerate() {
        match page {
            Ok(text) => sums.add(number, text),
            Err(error) => eprintln!("batzen: {}: {error:#}", args.processes[number]),
        }
    }
    if pages.iter().all(Result::is_err) {
        bail!("no process answers");
    }
    if let Some(text) = &args.text {
        sums.series.retain(|name, _| name.contains(text.as_str()));
    }
    if args.json {
        let processes = args.processes.iter().zip(&pages);
        let processes: Vec<Value> =
            processes.map(|(process, page)| json!({ "process": process, "answers": page.is_ok() })).collect();
        println!("{:#}", json!({ "processes": processes, "metrics": sums.json() }));
    } else {
        let names = args.processes.iter().zip(&pages).enumerate().map(|(number, (process, page))| {
            format!("[{}] {process}{}\n", number + 1, if page.is_ok() { "" } else { "  does not answer" })
        });
        print!("{}{}", names.collect::<String>(), sums.table());
    }
    Ok(if pages.iter().all(Result::is_ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The URL of a process's metrics.
fn url(process: &str) -> String {
    let scheme = if process.contains("://") { "" } else { "http://" };
    let base = process.trim_end_matches('/');
    let base = base.strip_suffix("/metrics").unwrap_or(base);
    format!("{scheme}{base}/metrics")
}

async fn page(client: &Client, process: &str) -> anyhow::Result<String> {
    let reply = client.get(url(process)).send().await?;
    if reply.status != 200 {
        bail!("it answers {}", reply.status);
    }
    String::from_utf8(reply.body.to_vec()).context("its answer is not text")
}

/// The series of all processes, by name with labels.
struct Sums {
    processes: usize,
    /// The families that are counters or histograms, whose values can be added.
    added: BTreeSet<String>,
    /// The value of each process; none if it does not have the series.
    series: BTreeMap<String, Vec<Option<f64>>>,
}

impl Sums {
    fn new(processes: usize) -> Self {
        Self { processes, added: BTreeSet::new(), series: BTreeMap::new() }
    }

    /// Adds the page of a process, in Prometheus' text format. Lines of another form are left out.
    fn add(&mut self, process: usize, page: &str) {
        for line in page.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                if let Some((name, "counter" | "histogram")) = family.split_once(' ') {
                    self.added.insert(name.to_owned());
                }
                continue;
            }
            // The values of labels may contain blanks.
            let split = line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1));
            let Some((name, value)) = split.and_then(|at| line.split_at_checked(at)) else { continue };
            if let (false, Ok(value)) = (name.starts_with('#'), value.trim().parse()) {
                let values = self.series.entry(name.to_owned()).or_insert_with(|| vec![None; self.processes]);
                values[process] = Some(value);
            }
        }
    }

    /// Returns whether a series is a counter or part of a histogram.
    fn is_added(&self, series: &str) -> bool {
        let name = series.split('{').next().unwrap_or(series);
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        self.added.contains(name) || of_histogram.is_some_and(|name| self.added.contains(name))
    }

    fn json(&self) -> Vec<Value> {
        let series = self.series.iter().map(|(name, values)| match self.is_added(name) {
            true => json!({ "name": name, "sum": sum(values) }),
            false => json!({ "name": name, "values": values }),
        });
        series.collect()
    }

    /// The series that are not zero everywhere, without the buckets of histograms.
    fn table(&self) -> String {
        let is_shown = |name: &str, values: &[Option<f64>]| {
            !name.contains("_bucket{") && values.iter().flatten().any(|value| *value != 0.0)
        };
        let shown = || self.series.iter().filter(|(name, values)| is_shown(name, values));
        let width = shown().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut table = String::new();
        let mut part = |title: &str, columns: &[String], rows: Vec<(&str, Vec<String>)>| {
            if !rows.is_empty() {
                table.push('\n');
                row(&mut table, width, title, columns);
                rows.iter().for_each(|(name, cells)| row(&mut table, width, name, cells));
            }
        };
        let added = shown().filter(|(name, _)| self.is_added(name));
        let added = added.map(|(name, values)| (name.as_str(), vec![numbers::number(sum(values))])).collect();
        part("counters", &["sum".to_owned()], added);
        let gauges = shown().filter(|(name, _)| !self.is_added(name));
        let gauges = gauges.map(|(name, values)| {
            (name.as_str(), values.iter().map(|value| numbers::optional(*value)).collect())
        });
        let columns: Vec<String> = (1..=self.processes).map(|number| format!("[{number}]")).collect();
        part("gauges", &columns, gauges.collect());
        table
    }
}

fn sum(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().sum()
}

fn row(table: &mut String, width: usize, name: &str, cells: &[String]) {
    let _ = write!(table, "{name:<width$}");
    for cell in cells {
        let _ = write!(table, " {cell:>14}");
    }
    table.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums() -> Sums {
        let mut sums = Sums::new(3);
        let page = |done: u64, lag: &str| {
            format!(
                "# HELP x_total What is done\n# TYPE x_total counter\nx_total{{kind=\"a b\"}} {done}\n\
                 x_total{{kind=\"c\"}} 0\n# TYPE lag_seconds gauge\nlag_seconds {lag}\n\
                 # TYPE t_seconds histogram\nt_seconds_bucket{{le=\"+Inf\"}} 2\nt_seconds_sum 0.5\nt_seconds_count 2\n"
            )
        };
        sums.add(0, &page(1_000, "7"));
        sums.add(2, &page(234, "0.5"));
        sums
    }

    #[test]
    fn counters_are_added_and_gauges_are_not() {
        let json = Value::from(sums().json());
        let find =
            |name: &str| json.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
        assert_eq!(find("x_total{kind=\"a b\"}")["sum"], 1_234.0);
        assert_eq!(find("t_seconds_sum")["sum"], 1.0);
        assert_eq!(find("t_seconds_bucket{le=\"+Inf\"}")["sum"], 4.0);
        assert_eq!(find("lag_seconds")["values"], json!([7.0, null, 0.5]));
    }

    #[test]
    fn the_table_has_what_is_not_zero() {
        let table = sums().table();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["x_total{kind=\"a", "b\"}", "1,234"]), "{table}");
        assert!(lines.contains(&vec!["gauges", "[1]", "[2]", "[3]"]), "{table}");
        assert!(lines.contains(&vec!["lag_seconds", "7.00", "–", "0.50"]), "{table}");
        assert!(!table.contains("kind=\"c\"") && !table.contains("bucket"), "{table}");
    }

    #[test]
    fn addresses_and_urls_name_a_process() {
        for process in ["[::1]:9181", "http://[::1]:9181/", "http://[::1]:9181/metrics"] {
            assert_eq!(url(process), "http://[::1]:9181/metrics");
        }
        assert_eq!(url("https://metrics.example/exchange/"), "https://metrics.example/exchange/metrics");
    }
}
