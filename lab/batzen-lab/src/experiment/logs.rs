//! The logs of all hosts in the order of time, or the lines of one request by its correlation id.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use batzen_protocol::calendar::Date;
use clap::Args;
use serde_json::json;

use super::DirArgs;
use super::agent::Agent;
use super::hosts::HostAccess;
use super::pack::Opened;
use super::placement::Instance;
use super::state::Experiment;
use super::topology::HostKind;

/// Show the logs of all hosts in the order of time
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// Correlation id of a request, such as `load show` prints with errors [default: all lines]
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Lines of this instance, or process of a worker, only
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Lines from this time on, counted from the start as on the page
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    since_s: f64,
    /// Print as JSON, an object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: DirArgs,
}

/// A line of a log.
struct LogLine {
    /// Its time by this machine's clock, in milliseconds since 1970.
    time_ms: u64,
    host: String,
    process: String,
    text: String,
}

/// The time at the begin of a line, as our services, PostgreSQL and nginx write it in UTC: milliseconds since 1970.
fn time_ms(line: &str) -> Option<u64> {
    let number = |from: usize, to: usize| line.get(from..to)?.parse::<u32>().ok();
    let is_at = |at: usize, of: &str| line.get(at..=at).is_some_and(|found| of.contains(found));
    if !(is_at(4, "-/") && is_at(7, "-/") && is_at(10, "T ") && is_at(13, ":") && is_at(16, ":")) {
        return None;
    }
    let [year, month, day] = [number(0, 4)?, number(5, 7)?, number(8, 10)?].map(i64::from);
    let days = u64::try_from(Date::new(year, month, day)?.days()).ok()?;
    let seconds = u64::from(number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?);
    let fraction = line.get(19..23).and_then(|text| text.strip_prefix('.')?.parse::<u64>().ok());
    Some((days * 86_400 + seconds) * 1000 + fraction.unwrap_or(0))
}

/// Whether a line names an id as a whole word.
fn names(line: &str, id: &str) -> bool {
    let mut words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    !id.is_empty() && words.any(|word| word == id)
}

/// The logs of a host: the process and the file below the host's directory.
fn files(instances: &[Instance], host: &str) -> Vec<(String, PathBuf)> {
    let mut found = vec![("agent".to_owned(), PathBuf::from("agent.log"))];
    for instance in instances.iter().filter(|instance| instance.host == host) {
        for process in instance.processes() {
            let dir = Path::new(&instance.name);
            let dir = if process == instance.name { dir.to_owned() } else { dir.join(&process) };
            found.push((process, dir.join("log")));
        }
    }
    found
}

/// The text of a log: by the agent where only it can read, else from the experiment's directory.
fn read(
    experiment: &Experiment,
    access: &HostAccess,
    agent: Option<&mut Agent>,
    file: &Path,
) -> Option<String> {
    match agent {
        Some(agent) => agent.text(&access.dir.join(file)).ok(),
        None => {
            let bytes = std::fs::read(experiment.dir.join("hosts").join(&access.name).join(file)).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

impl LogsArgs {
    /// The lines that are asked for, in the order of time.
    fn lines(&self, experiment: &Experiment, from_ms: u64) -> anyhow::Result<Vec<LogLine>> {
        let mut found = Vec::new();
        let asked = self.instance.as_ref().map(|name| experiment.processes(name)).transpose()?;
        for (host, access) in &experiment.hosts {
            let is_there = experiment.state.is_up && access.kind == HostKind::Ssh;
            let mut agent = if is_there { Some(experiment.agent(host)?) } else { None };
            let offset_ms = experiment.state.clock_offsets_ms.get(host).copied().unwrap_or(0);
            for (process, file) in files(&experiment.state.instances, host) {
                if asked.as_ref().is_some_and(|(_, names)| !names.contains(&process)) {
                    continue;
                }
                // Not every process has written something.
                let text = read(experiment, access, agent.as_mut(), &file).unwrap_or_default();
                let mut time = from_ms;
                for line in text.lines() {
                    // What has no time of its own belongs to the line before.
                    time = time_ms(line).map_or(time, |time| time.saturating_add_signed(-offset_ms));
                    if time >= from_ms && self.id.as_ref().is_none_or(|id| names(line, id)) {
                        let (host, process) = (host.clone(), process.clone());
                        found.push(LogLine { time_ms: time, host, process, text: line.to_owned() });
                    }
                }
            }
        }
        found.sort_by_key(|line| line.time_ms);
        Ok(found)
    }
}

/// Runs `batzen-lab logs`.
///
/// # Errors
/// When the directory holds no experiment, or another machine cannot be reached.
pub fn run(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let opened = Opened::read(&args.at.dir)?;
    let experiment = &opened.experiment;
    let begin_ms = super::page::begin_ms(experiment);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of a run")]
    let from_ms = begin_ms + (args.since_s.max(0.0) * 1000.0) as u64;
    let lines = args.lines(experiment, from_ms)?;
    let mut out = std::io::stdout().lock();
    for LogLine { time_ms, host, process, text } in &lines {
        if args.json {
            writeln!(
                out,
                "{}",
                json!({ "time_ms": time_ms, "host": host, "instance": process, "line": text })
            )?;
        } else {
            let seconds = time_ms.saturating_sub(begin_ms) as f64 / 1000.0;
            writeln!(out, "{seconds:>9.3}  {process:<20} {text}")?;
        }
    }
    if lines.is_empty() && args.id.is_some() {
        eprintln!("no line has this id; requests are logged with `log = \"INFO\"` in the topology");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_programs_are_read() {
        assert_eq!(time_ms("1970-01-01T00:00:00.000000Z  INFO x"), Some(0));
        assert_eq!(time_ms("2026-11-29T18:59:13.123456Z  INFO x"), Some(1_795_978_753_123));
        assert_eq!(time_ms("2026-11-29 18:59:13.123 UTC [7] LOG: x"), Some(1_795_978_753_123));
        assert_eq!(time_ms("2026/11/29 18:59:13 [error] 7#7: x"), Some(1_795_978_753_000));
        assert_eq!(time_ms("2024-02-29T00:00:00Z"), Some(1_709_164_800_000));
        for none in ["", "at line 7", "ééééééééééééééééééééé", "1969-12-31T23:59:59Z"] {
            assert_eq!(time_ms(none), None, "{none}");
        }
    }

    #[test]
    fn an_id_is_a_whole_word() {
        let line = "2026-11-29T18:59:13Z  INFO request{id=a1B2-c}: request method=POST id=\"a1B2-c\"";
        assert!(names(line, "a1B2-c"));
        assert!(!names(line, "a1B2") && !names(line, "1B2-c") && !names(line, ""));
    }
}
