//! The table of attacks: an older program beside this one.

use batzen_cli_support::numbers::{count, number, optional};

use super::{Results, markdown};
use crate::bench::results::result::Run;
use crate::bench::scenarios::hostile;

pub(super) fn is_hostile(run: &Run) -> bool {
    run.result.scenario == "hostile"
}

/// Attacks by service. "Before" are the runs that attacked another program (`--program`).
pub(super) fn hostile(results: &Results) -> String {
    let runs = |is_before: bool| -> Vec<&Run> {
        let is_one = |run: &&Run| {
            is_hostile(run)
                && run.result.parameters.get("program").is_some_and(|program| *program == is_before)
        };
        results.runs.iter().filter(is_one).collect()
    };
    let (before, after) = (runs(true), runs(false));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (service, attack) in hostile::rows() {
        let kind = hostile::kind(service, attack);
        let find = |runs: &[&Run]| {
            runs.iter()
                .copied()
                .find(|run| run.result.kinds.contains_key(&kind))
                .map(|run| figures(run, service, attack))
        };
        let (before, after) = (find(&before), find(&after));
        if before.is_none() && after.is_none() {
            continue;
        }
        let none = || ["–"; COLUMNS.len()].map(str::to_owned);
        let pairs = before.unwrap_or_else(none).into_iter().zip(after.unwrap_or_else(none));
        rows.push(std::iter::once(kind).chain(pairs.flat_map(|(before, after)| [before, after])).collect());
    }
    let head: Vec<String> =
        COLUMNS.iter().flat_map(|name| [format!("{name}, before"), "after".to_owned()]).collect();
    let head: Vec<&str> = std::iter::once("attack").chain(head.iter().map(String::as_str)).collect();
    markdown(&head, &rows)
}

const COLUMNS: [&str; 4] = ["share of the rate", "p99 ms", "memory MB", "connections held"];

/// The figures of an attack, or of the honest load alone.
fn figures(run: &Run, service: &str, attack: Option<&str>) -> [String; COLUMNS.len()] {
    let result = &run.result;
    let label = attack.map_or_else(|| format!("{service}_alone"), str::to_owned);
    let figure = |name: &str| result.extra.get(&format!("{label}_{name}")).copied();
    let share = match (attack, figure("share")) {
        (None, _) => "1.00".to_owned(),
        (Some(_), Some(share)) if figure("ended").is_some() => format!("**{share:.2}**, it ended"),
        (Some(_), Some(share)) if share < hostile::SHARE_GOAL => format!("**{share:.2}**"),
        (Some(_), share) => share.map_or_else(|| "–".to_owned(), |share| format!("{share:.2}")),
    };
    let memory = figure("memory_peak_mb").map(|mb| {
        let text = number(mb);
        if mb * 1e6 > hostile::MEMORY_GOAL as f64 { format!("**{text}**") } else { text }
    });
    let p99 = result.kinds.get(&hostile::kind(service, attack)).filter(|kind| kind.ops > 0);
    let held = figure("connections_held").map(|held| count(held as u64));
    let none = || "–".to_owned();
    [
        share,
        optional(p99.map(|kind| kind.latency.p99_us as f64 / 1e3)),
        memory.unwrap_or_else(none),
        held.unwrap_or_else(none),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::results::result::KindResult;
    use crate::bench::results::result::tests::sample_run;

    #[test]
    fn an_older_program_stands_beside_this_one() {
        let run = |is_before: bool, share: f64, mb: f64| {
            let mut run = sample_run(Path::new("run"));
            run.result.scenario = "hostile".into();
            run.result.parameters.insert("program".into(), is_before.into());
            let figures = KindResult { ops: 5, ops_per_s: 1.0, ..KindResult::default() };
            run.result.kinds.insert(hostile::kind("ledger", Some("large-frames")), figures);
            run.result.extra.insert("large-frames_share".into(), share);
            run.result.extra.insert("large-frames_memory_peak_mb".into(), mb);
            run.result.extra.insert("large-frames_connections_held".into(), 2_000.0);
            run
        };
        let runs = vec![run(false, 1.0, 60.0), run(true, 0.25, 1_960.0)];
        let text = hostile(&Results { runs, limits: None });
        let line = "| ledger: large-frames | **0.25** | 1.00 | 0 | 0 | **1,960** | 60.0 | 2,000 | 2,000 |\n";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(hostile(&Results { runs: Vec::new(), limits: None }), "No results yet.\n");
    }
}
