//! The table of runs on PostgreSQL.

use super::{Results, markdown, optional};
use batzen_cli_support::numbers::{number, ratio};

use crate::bench::results::result::Run;

/// Returns whether the run used PostgreSQL: the exchange kept its rows there, or it was pgbench.
pub(super) fn is_postgres(run: &Run) -> bool {
    run.result.parameters.get("store").is_some_and(|store| store == "postgres")
}

/// Runs on PostgreSQL beside runs of the same kind on the embedded store. Two runs are of the same kind if
/// all parameters but those of the store are equal. Only runs of the same day are compared; otherwise the
/// ratios would show changes of the machine.
pub(super) fn postgres(results: &Results) -> String {
    const OF_STORE: [&str; 4] = ["store", "partitions", "postgres", "nodes"];
    let kind = |run: &Run| {
        let mut parameters = run.result.parameters.clone();
        parameters.retain(|name, _| !OF_STORE.contains(&name.as_str()));
        (run.result.scenario.clone(), parameters)
    };
    let ratio = |run: &Run, other: Option<&Run>| {
        let other = other.filter(|other| !std::ptr::eq(*other, run));
        other.map_or_else(|| "–".into(), |other| ratio(run.result.ops_per_s / other.result.ops_per_s))
    };
    let is_whole = |run: &Run| run.result.parameters.get("partitions").is_some_and(|count| count == 0);
    let rows: Vec<Vec<String>> = results
        .runs
        .iter()
        .filter(|run| is_postgres(run))
        .map(|run| {
            let result = &run.result;
            let same = || results.runs.iter().filter(|other| kind(other) == kind(run));
            let figure = |name: &str| result.extra.get(name).copied();
            vec![
                result.title.clone(),
                format!("{} {}", number(result.ops_per_s), result.unit),
                ratio(run, same().find(|other| is_postgres(other) && is_whole(other))),
                ratio(run, same().find(|other| !is_postgres(other))),
                optional(result.latency.map(|latency| latency.p99_us as f64 / 1e3)),
                optional(result.cpu_us_per_op.filter(|us| *us > 0.0)),
                optional(figure("database_cpu_us_per_op")),
                optional(figure("statements_per_op")),
                optional(figure("wal_bytes_per_op")),
                optional(figure("database_bytes_per_op")),
                optional(figure("serialization_failures")),
                optional(figure("lost_races")),
            ]
        })
        .collect();
    let head = [
        "run",
        "per second",
        "of no partitions",
        "of embedded",
        "p99 ms",
        "exchange CPU µs per op",
        "database CPU µs per op",
        "statements per op",
        "WAL bytes per op",
        "table bytes per op",
        "serialization failures",
        "lost races",
    ];
    markdown(&head, &rows)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::results::result::tests::sample_run;

    #[test]
    fn runs_on_postgresql_stand_beside_their_own_kind() {
        let embedded = sample_run(Path::new("embedded"));
        let on_postgres = |partitions: u32, ops_per_s: f64| {
            let mut run = sample_run(Path::new("postgres"));
            run.result.title = format!("in {partitions}");
            run.result.ops_per_s = ops_per_s;
            run.result.parameters.insert("store".into(), "postgres".into());
            run.result.parameters.insert("partitions".into(), partitions.into());
            run.result.extra.insert("statements_per_op".into(), 0.04);
            run
        };
        let mut other = on_postgres(0, 1.0);
        other.result.parameters.insert("clients".into(), 7.into());
        let runs = vec![embedded, other, on_postgres(0, 6_000.0), on_postgres(64, 5_700.0)];
        let table = postgres(&Results { runs, limits: None });
        assert!(table.contains("| in 0 | 6,000 coins | – | 0.67 |"), "{table}");
        assert!(table.contains("| in 64 | 5,700 coins | 0.95 | 0.63 |"), "{table}");
        assert!(table.contains("| in 0 | 1.00 coins | – | – |"), "another load is no measure: {table}");
        assert_eq!(table.lines().count(), 5, "{table}");
    }
}
