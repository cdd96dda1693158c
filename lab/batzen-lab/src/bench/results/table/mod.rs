//! `batzen-lab bench table`: results as Markdown, printed or inserted between marks in a document, so that no
//! figure in it is typed by hand.
//!
//! A mark is a comment on its own line, `<!-- bench: NAME -->`; the text from there to `<!-- bench: end -->`
//! is replaced.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use batzen_cli_support::numbers::{count, gigabytes, milliseconds, number, optional, ratio};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::output;
use crate::bench::results::result::{self, LIMITS_FILE, Latency, Run};
use crate::bench::results::words::{cores, days, each_once, load};
use crate::bench::scenarios::limits::Limits;

mod hostile;
mod postgres;

use hostile::{hostile, is_hostile};
use postgres::{is_postgres, postgres};

/// Arguments of `batzen-lab bench table`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  batzen-lab bench table docs/results/limits docs/results/deposit\n  batzen-lab bench table before after --into notes.md"
)]
pub struct TableArgs {
    /// Result directories, shown in this order, or directories that contain some; also those of `bench limits
    /// --out`
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Renew the tables between `<!-- bench: NAME -->` and `<!-- bench: end -->` in this document
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

/// The results in some directories.
pub(crate) struct Results {
    pub(crate) runs: Vec<Run>,
    pub(crate) limits: Option<Limits>,
}

impl Results {
    pub(crate) fn read(directories: &[PathBuf]) -> Result<Self> {
        let (mut runs, mut limits) = (Vec::new(), None);
        for directory in directories {
            for directory in result::results_of(directory)? {
                if directory.join(LIMITS_FILE).is_file() {
                    limits = Some(Limits::read(&directory)?);
                } else {
                    runs.push(Run::read(&directory)?);
                }
            }
        }
        Ok(Self { runs, limits })
    }
}

/// A table of results.
pub(super) struct Table {
    name: &'static str,
    pub(super) text: fn(&Results) -> String,
    /// Returns whether it shows figures of a run.
    pub(super) shows: fn(&Run) -> bool,
    /// It shows the limits of one core.
    pub(super) shows_limits: bool,
}

const fn of_runs(name: &'static str, text: fn(&Results) -> String, shows: fn(&Run) -> bool) -> Table {
    Table { name, text, shows, shows_limits: false }
}

const fn of_limits(name: &'static str, text: fn(&Results) -> String) -> Table {
    Table { name, text, shows: |_| false, shows_limits: true }
}

/// All tables, in the order in which they are printed.
const TABLES: [Table; 11] = [
    of_runs("machine", machine, |_| true),
    of_limits("limits", limits),
    of_limits("ceilings", ceilings),
    of_runs("requests", requests, is_request),
    of_runs("workers", workers, is_worker),
    of_runs("postgres", postgres, is_postgres),
    of_runs("switch", switch, is_switch),
    of_runs("hostile", hostile, is_hostile),
    of_runs("stages", stages, has_stages),
    of_runs("reference", reference, is_rsa_cycle),
    of_runs("commands", commands, |_| true),
];

/// The table of a name.
pub(super) fn find(name: &str) -> Result<&'static Table, String> {
    const ALL: &[Table] = &TABLES;
    ALL.iter().find(|table| table.name == name).ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|table| table.name).collect();
        format!("no table {name:?}, only {}", known.join(", "))
    })
}

/// Runs `batzen-lab bench table`.
///
/// # Errors
/// When a result or the document cannot be read, and when the document names an unknown table.
pub fn run(args: &TableArgs) -> Result<ExitCode> {
    let results = Results::read(&args.directories)?;
    if let Some(path) = &args.into {
        let document = std::fs::read_to_string(path).map_err(BenchError::io(path))?;
        let renewed = if document.contains(MARK) {
            renew(&document, |name| find(name).map(|table| (table.text)(&results)))
        } else {
            Err(NO_TABLE.to_owned())
        };
        let renewed = renewed.map_err(|error| BenchError::Usage(format!("{}: {error}", path.display())))?;
        output::replace_file(path, &renewed)?;
    } else {
        let mut text = String::new();
        for table in TABLES {
            let _ = writeln!(text, "### {}\n\n{}", table.name, (table.text)(&results));
        }
        output::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The beginning of a mark.
const MARK: &str = "<!-- bench: ";
const NO_TABLE: &str =
    "there is no table to renew: put <!-- bench: NAME --> and <!-- bench: end --> on lines of their own";

/// The document with new tables, each from its name.
pub(super) fn renew(
    document: &str,
    table: impl Fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut out = String::with_capacity(document.len() * 2);
    let mut inside: Option<(usize, &str)> = None;
    for (index, line) in document.lines().enumerate() {
        let mark = line.trim().strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->"));
        match (mark, inside) {
            (Some("end"), Some(_)) => inside = None,
            (Some("end"), None) => return Err(format!("line {}: an end without a beginning", index + 1)),
            (Some(name), None) => {
                let text = table(name).map_err(|error| format!("line {}: {error}", index + 1))?;
                inside = Some((index + 1, name));
                let _ = write!(out, "{line}\n\n{text}\n");
                continue;
            }
            (Some(name), Some(_)) => {
                return Err(format!("line {}: {name:?} begins before the last table has ended", index + 1));
            }
            (None, Some(_)) => continue,
            (None, None) => {}
        }
        out.push_str(line);
        out.push('\n');
    }
    match inside {
        Some((line, name)) => Err(format!("line {line}: table {name:?} has no end")),
        None => Ok(out),
    }
}

/// The text of a table without results.
const NO_RESULTS: &str = "No results yet.\n";

/// A Markdown table; the first column is text, the others are figures.
fn markdown<R: AsRef<[String]>>(head: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let row = |row: R| line(row.as_ref().iter().map(|value| cell(value)).collect());
    let body: String = rows.into_iter().map(row).collect();
    if body.is_empty() {
        return NO_RESULTS.into();
    }
    let rule = (0..head.len()).map(|index| if index == 0 { "---" } else { "---:" }.to_owned());
    line(head.iter().map(|name| cell(name)).collect()) + &line(rule.collect()) + &body
}

/// The head of a column, and its cells.
type Column<'a> = (&'a str, &'a dyn Fn(&Run) -> String);

/// A table of some of the runs, each in a row.
fn rows(results: &Results, shows: fn(&Run) -> bool, columns: &[Column<'_>]) -> String {
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let row = |run: &Run| -> Vec<String> { columns.iter().map(|(_, cell)| cell(run)).collect() };
    markdown(&head, results.runs.iter().filter(|run| shows(run)).map(row))
}

fn title(run: &Run) -> String {
    run.result.title.clone()
}

fn run_load(run: &Run) -> String {
    load(&run.result.load)
}

fn rate(run: &Run) -> String {
    format!("{} {}", number(run.result.ops_per_s), run.result.unit)
}

fn cpu_us(run: &Run) -> String {
    optional(run.result.cpu_us_per_op)
}

fn disk_bytes(run: &Run) -> String {
    optional(run.result.bytes_per_op.map(|bytes| bytes.disk))
}

fn latency_ms(run: &Run, pick: fn(Latency) -> u64) -> String {
    optional(run.result.latency.map(|latency| pick(latency) as f64 / 1e3))
}

fn server_cores(run: &Run) -> f64 {
    run.result.server_cores.len().max(1) as f64
}

fn machine(results: &Results) -> String {
    let machines = results.runs.iter().map(|run| &run.result.machine);
    let machines = machines.chain(results.limits.iter().map(|limits| &limits.machine)).map(|machine| {
        format!(
            "* {}, {} cores, {} GB, {}; extensions: {}.",
            machine.model,
            machine.cores,
            gigabytes(machine.memory_bytes),
            machine.kernel,
            machine.flags.join(" ")
        )
    });
    let builds = results.runs.iter().map(|Run { result, .. }| {
        format!(
            "* Batzen {}, commit {}; server on core {}, load generator on core {}.",
            result.version,
            result.commit,
            cores(&result.server_cores),
            cores(&result.client_cores)
        )
    });
    let mut lines = each_once(machines.chain(builds));
    // Older results lack this figure.
    if let Some(limits) = results.limits.as_ref().filter(|limits| limits.commit != "unknown") {
        lines.push(format!(
            "* The limits of a core: Batzen {}, commit {}, on core {}.",
            limits.version, limits.commit, limits.core
        ));
    }
    if let Some((first, last)) = days(&results.runs) {
        lines.push(if first == last {
            format!("* Measured on {first}.")
        } else {
            format!("* Measured {first} to {last}.")
        });
    }
    if lines.is_empty() {
        return NO_RESULTS.into();
    }
    lines.join("\n") + "\n"
}

fn limits(results: &Results) -> String {
    let Some(limits) = &results.limits else { return NO_RESULTS.into() };
    let none = || "–".to_owned();
    let steps = limits.limits.iter().map(|limit| {
        [
            limit.name.clone(),
            number(limit.library.per_s),
            optional(limit.lanes.as_ref().map(|speed| speed.per_s)),
            optional(limit.ratio),
        ]
    });
    let http = &limits.http;
    let name = format!("HTTP request, {} + {} bytes", http.request_bytes, http.response_bytes);
    let steps = steps.chain([[name, number(http.per_s), none(), none()]]);
    let store = limits.store.iter().map(|store| {
        [
            format!("store: commit {} rows", count(store.rows_per_commit as u64)),
            number(store.rows_per_s),
            number(store.cpu_us_per_row),
            milliseconds(store.commit_p50_us),
            milliseconds(store.commit_p99_us),
        ]
    });
    let sync = limits.sync.iter().map(|sync| {
        [
            format!("write {} kB and sync", sync.bytes / 1024),
            none(),
            none(),
            milliseconds(sync.p50_us),
            milliseconds(sync.p99_us),
        ]
    });
    let disk = ["disk", "rows a second", "CPU µs a row", "p50 ms", "p99 ms"];
    let steps = markdown(&["a second on one core", "library", "eight lanes", "ratio"], steps);
    format!("{steps}\n{}", markdown(&disk, store.chain(sync)))
}

fn ceilings(results: &Results) -> String {
    let rows = results.limits.iter().flat_map(|limits| &limits.derived).map(|derived| {
        [
            derived.operation.clone(),
            number(derived.cryptography_library_per_s),
            optional(derived.cryptography_lanes_per_s),
            number(derived.whole_per_s),
        ]
    });
    let head =
        ["a second on one core", "cryptography by library", "in eight lanes", "with HTTP, JSON and journal"];
    markdown(&head, rows)
}

/// Scenarios without requests.
const WORKERS: [&str; 4] = ["wirewatch", "aggregator", "transfer", "store"];

fn is_worker(run: &Run) -> bool {
    WORKERS.contains(&run.result.scenario.as_str()) && !is_postgres(run)
}

fn is_request(run: &Run) -> bool {
    !is_worker(run) && !is_switch(run) && !is_postgres(run) && !is_hostile(run)
}

fn requests(results: &Results) -> String {
    rows(
        results,
        is_request,
        &[
            ("run", &title),
            ("load", &run_load),
            ("per second", &rate),
            ("efficiency", &|run| run.result.efficiency.map_or_else(|| "–".into(), ratio)),
            ("p50 ms", &|run| latency_ms(run, |latency| latency.p50_us)),
            ("p99 ms", &|run| latency_ms(run, |latency| latency.p99_us)),
            ("CPU µs per op", &cpu_us),
            ("disk bytes per op", &disk_bytes),
            ("RAM bytes per op", &|run| optional(run.result.bytes_per_op.map(|bytes| bytes.ram))),
            ("limited by", &|run| format!("{:?}", run.result.limited_by).to_lowercase()),
        ],
    )
}

fn workers(results: &Results) -> String {
    let per_cpu_s = |run: &Run| run.result.cpu_us_per_op.filter(|us| *us > 0.0).map(|us| 1e6 / us);
    rows(
        results,
        is_worker,
        &[
            ("worker", &title),
            ("per second", &rate),
            ("CPU µs per op", &cpu_us),
            ("per second of CPU", &|run| optional(per_cpu_s(run))),
            ("disk bytes per op", &disk_bytes),
        ],
    )
}

fn is_switch(run: &Run) -> bool {
    run.result.scenario == "switch"
}

/// Complete transfers: rates, the legs' latencies, and what a transfer costs.
fn switch(results: &Results) -> String {
    let leg = |run: &Run, name: &str| {
        let result = &run.result;
        let Some(latency) = result.kinds.get(name).map(|kind| kind.latency) else {
            return "–".into();
        };
        let p95 = result.extra.get(&format!("{name}_p95_us")).copied().unwrap_or(0.0);
        let quantiles_us = [latency.p50_us as f64, p95, latency.p99_us as f64, latency.max_us as f64];
        quantiles_us.map(milliseconds).join(" / ")
    };
    rows(
        results,
        is_switch,
        &[
            ("run", &title),
            ("load", &run_load),
            ("FT a second", &|run| number(run.result.ops_per_s)),
            ("prepare p50 / p95 / p99 / max ms", &|run| leg(run, "prepare")),
            ("fulfil", &|run| leg(run, "fulfil")),
            ("whole", &|run| leg(run, "whole")),
            ("switch CPU µs per FT", &cpu_us),
            ("simulators CPU µs per FT", &|run| optional(run.result.client_cpu_us_per_op)),
            ("bytes per FT", &disk_bytes),
            ("failures", &|run| run.result.error_count().to_string()),
        ],
    )
}

fn has_stages(run: &Run) -> bool {
    !run.result.cpu_us_per_op_by_stage.is_empty()
}

fn stages(results: &Results) -> String {
    let names: BTreeSet<&str> = results
        .runs
        .iter()
        .flat_map(|run| run.result.cpu_us_per_op_by_stage.keys().map(String::as_str))
        .collect();
    let rows = results.runs.iter().filter(|run| has_stages(run)).map(|run| {
        let mandatory = run.result.mandatory_us();
        let stage = |name: &&str| optional(run.result.cpu_us_per_op_by_stage.get(*name).copied());
        let mut row = vec![title(run)];
        row.extend(names.iter().map(stage));
        row.extend([cpu_us(run), optional(mandatory)]);
        row
    });
    let mut head = vec!["CPU µs per op"];
    head.extend(&names);
    head.extend(["all", "mandatory cryptography alone"]);
    markdown(&head, rows)
}

/// Figures of other systems.
const FIELD: &str = include_str!("../../../../../../docs/results/field/field.json");

/// Coins that the reference implementation withdraws and deposits per second and core, according to its own benchmark, which
/// handles one coin at a time.
fn reference_coins_per_s() -> f64 {
    let field: serde_json::Value = serde_json::from_str(FIELD).expect("a test makes this table");
    field["gnu_taler_one_core"]["coins_per_s"].as_f64().expect("a test makes this table")
}

fn is_rsa_cycle(run: &Run) -> bool {
    let cipher = run.result.parameters.get("cipher").and_then(serde_json::Value::as_str);
    run.result.scenario == "cycle" && cipher == Some("RSA-2048")
}

/// Coins withdrawn and deposited per second and core, with one or several coins per request.
fn reference(results: &Results) -> String {
    let reference = reference_coins_per_s();
    let coins = |run: &Run| run.result.ops_per_s / server_cores(run);
    rows(
        results,
        is_rsa_cycle,
        &[
            ("run", &title),
            ("coins a second and core", &|run| number(coins(run))),
            ("CPU µs a coin", &cpu_us),
            ("reference implementation", &|_| number(reference)),
            ("ratio", &|run| number(coins(run) / reference)),
        ],
    )
}

fn commands(results: &Results) -> String {
    let limits = results.limits.iter().map(|_| "batzen-lab bench limits".to_owned());
    // Older results are of a time when one program had all commands.
    let today = |run: &Run| match run.result.command.strip_prefix("batzen ") {
        Some(words) => format!("batzen-lab {words}"),
        None => run.result.command.clone(),
    };
    // One command may produce several results.
    let lines = each_once(limits.chain(results.runs.iter().map(today)));
    lines.iter().fold("```sh\n".to_owned(), |text, line| text + line + "\n") + "```\n"
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::results::result::tests::sample_run;

    fn results() -> Results {
        let mut withdraw = sample_run(Path::new("withdraw"));
        withdraw.result.parameters.insert("cipher".into(), "RSA-2048".into());
        withdraw.result.load = crate::bench::results::result::Load::Closed { clients: 64 };
        let mut deposit = withdraw.clone();
        deposit.result.scenario = "deposit".into();
        deposit.result.title = "deposit | RSA-2048".into();
        let mut cycle = withdraw.clone();
        cycle.result.scenario = "cycle".into();
        cycle.result.title = "cycle RSA-2048".into();
        cycle.result.ops_per_s = 6_000.0;
        let mut worker = sample_run(Path::new("aggregator"));
        worker.result.scenario = "aggregator".into();
        worker.result.title = "aggregator, 1,000 merchants".into();
        worker.result.cpu_us_per_op = Some(2.5);
        Results { runs: vec![withdraw, deposit, worker, cycle], limits: None }
    }

    #[test]
    fn tables_hold_the_figures_of_the_runs() {
        let results = results();
        let requests = requests(&results);
        assert!(
            requests.contains(
                "| withdraw RSA-2048 | closed, 64 clients | 9,000 coins | 0.75 | 5.00 | 9.90 | 108 | 512 | 96.5 | server |\n"
            ),
            "{requests}"
        );
        assert!(
            requests.contains("| deposit \\| RSA-2048 |") && !requests.contains("aggregator"),
            "{requests}"
        );
        let workers = workers(&results);
        assert!(
            workers.contains("| aggregator, 1,000 merchants | 9,000 coins | 2.50 | 400,000 | 512 |\n"),
            "{workers}"
        );
        let stages = stages(&results);
        assert!(stages.starts_with("| CPU µs per op | cpu | http | all | mandatory"), "{stages}");
        assert!(stages.contains("| withdraw RSA-2048 | 92.0 | 16.0 | 108 | 83.3 |\n"), "{stages}");
        let reference = reference(&results);
        assert!(reference.contains("| cycle RSA-2048 | 6,000 | 108 | 172 | 34.9 |\n"), "{reference}");
        assert!(!reference.contains("| withdraw"), "{reference}");
        assert!(machine(&results).contains("* Zen 5, 2 cores"), "{}", machine(&results));
        assert_eq!(limits(&results), "No results yet.\n");
    }

    #[test]
    fn builds_and_commands_are_listed_once_in_order() {
        let run = |commit: &str, command: &str| {
            let mut run = sample_run(Path::new("run"));
            (run.result.commit, run.result.command) = (commit.into(), command.into());
            run
        };
        let runs = vec![run("b", "two"), run("a", "batzen one"), run("b", "two"), run("a", "three")];
        let results = Results { runs, limits: None };
        let machine = machine(&results);
        assert_eq!(machine.matches("commit a;").count(), 1, "{machine}");
        assert_eq!(machine.matches("commit b;").count(), 1, "{machine}");
        assert!(machine.find("commit b;") < machine.find("commit a;"), "{machine}");
        assert_eq!(commands(&results), "```sh\ntwo\nbatzen-lab one\nthree\n```\n");
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let document = "# Title\n\n<!-- bench: commands -->\nold\n<!-- bench: end -->\nafter\n";
        let results = results();
        let renew =
            |document: &str| super::renew(document, |name| find(name).map(|table| (table.text)(&results)));
        let renewed = renew(document).unwrap();
        assert!(
            renewed.starts_with(
                "# Title\n\n<!-- bench: commands -->\n\n```sh\nbatzen-lab bench withdraw --rsa 2048\n"
            ),
            "{renewed}"
        );
        assert!(
            renewed.ends_with("```\n\n<!-- bench: end -->\nafter\n") && !renewed.contains("old"),
            "{renewed}"
        );
        assert_eq!(renew(&renewed).unwrap(), renewed, "renewing twice changes nothing");
        for (document, expected) in [
            ("<!-- bench: nothing -->\n", "line 1: no table \"nothing\", only machine, limits"),
            ("<!-- bench: end -->\n", "line 1: an end without a beginning"),
            ("a\n<!-- bench: limits -->\n", "line 2: table \"limits\" has no end"),
            ("<!-- bench: limits -->\n<!-- bench: machine -->\n", "line 2: \"machine\" begins before"),
        ] {
            let error = renew(document).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_command_reads_directories_and_writes_the_document() {
        let directory = tempfile::tempdir().unwrap();
        let run_directory = directory.path().join("run");
        sample_run(&run_directory).write().unwrap();
        let document = directory.path().join("performance.md");
        std::fs::write(&document, "<!-- bench: requests -->\n<!-- bench: end -->\n").unwrap();
        let directories = vec![run_directory];
        let into = || run(&TableArgs { directories: directories.clone(), into: Some(document.clone()) });
        into().unwrap();
        assert!(std::fs::read_to_string(&document).unwrap().contains("| withdraw RSA-2048 |"));
        std::fs::write(&document, "# Title\n").unwrap();
        assert!(into().unwrap_err().to_string().contains("there is no table to renew"));
        let absent = TableArgs { directories: vec![directory.path().join("absent")], into: None };
        assert!(run(&absent).is_err());
    }
}
