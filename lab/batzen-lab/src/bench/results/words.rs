//! Words for parts of results.

use std::fmt::Write as _;

use batzen_cli_support::numbers::number;

use crate::bench::results::result::{Load, Run};

/// A short description of how load was offered.
pub(crate) fn load(load: &Load) -> String {
    match load {
        Load::Closed { clients } => format!("closed, {clients} clients"),
        Load::Open { target_ops_per_s, .. } => format!("open, {}/s", number(*target_ops_per_s)),
    }
}

/// A number of coins.
pub(crate) fn coins(count: u64) -> String {
    if count == 1 { "one coin".to_owned() } else { format!("{count} coins") }
}

pub(crate) fn cores(cores: &[usize]) -> String {
    if cores.is_empty() {
        return "not pinned".into();
    }
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The lines in their order, each once.
pub(crate) fn each_once(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines = Vec::new();
    for line in all {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The first and the last day of the runs.
pub(crate) fn days(runs: &[Run]) -> Option<(&str, &str)> {
    let days = runs.iter().filter_map(|run| run.result.started.get(..10));
    Some((days.clone().min()?, days.max()?))
}

/// Writes a line of a table: a name, and figures that end where their columns end.
pub(crate) fn line(
    text: &mut String,
    name: &str,
    widths: &[usize],
    figures: impl IntoIterator<Item = impl AsRef<str>>,
) {
    let mut line = name.to_owned();
    for (figure, width) in figures.into_iter().zip(widths.iter().copied()) {
        let _ = write!(line, " {:>width$}", figure.as_ref());
    }
    let _ = writeln!(text, "{}", line.trim_end());
}
