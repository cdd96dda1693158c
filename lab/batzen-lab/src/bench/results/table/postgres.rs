//! The table of runs on PostgreSQL.

use batzen_cli_support::numbers::ratio;

use super::{Results, latency_ms, optional, rate, rows, title};
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
    let same = |run: &Run, is_measure: &dyn Fn(&Run) -> bool| {
        let other = results.runs.iter().find(|other| kind(other) == kind(run) && is_measure(other));
        ratio(run, other)
    };
    let figure = |run: &Run, name: &str| optional(run.result.extra.get(name).copied());
    rows(
        results,
        is_postgres,
        &[
            ("run", &title),
            ("per second", &rate),
            ("of no partitions", &|run| same(run, &|other| is_postgres(other) && is_whole(other))),
            ("of embedded", &|run| same(run, &|other| !is_postgres(other))),
            ("p99 ms", &|run| latency_ms(run, |latency| latency.p99_us)),
            ("exchange CPU µs per op", &|run| optional(run.result.cpu_us_per_op.filter(|us| *us > 0.0))),
            ("database CPU µs per op", &|run| figure(run, "database_cpu_us_per_op")),
            ("statements per op", &|run| figure(run, "statements_per_op")),
            ("WAL bytes per op", &|run| figure(run, "wal_bytes_per_op")),
            ("table bytes per op", &|run| figure(run, "database_bytes_per_op")),
            ("serialization failures", &|run| figure(run, "serialization_failures")),
            ("lost races", &|run| figure(run, "lost_races")),
        ],
    )
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
