//! The backend's counters.

use batzen_metrics::{Counter, Histogram, Page};

pub(crate) struct Counters {
    pub commits: Counter,
    pub changes: Counter,
    pub statements: Counter,
    pub round_trips: Counter,
    /// Transactions run again after 40001, 40P01 or a lock timeout.
    pub retries: Counter,
    /// Commits that conflicted with an earlier commit of another node.
    pub races: Counter,
    pub(crate) reconnects: Counter,
    /// Connections lost during a commit that had taken effect.
    pub(crate) ambiguous_committed: Counter,
    /// Connections lost during a commit that had not taken effect and was sent again.
    pub(crate) ambiguous_repeated: Counter,
    /// Connections lost during a commit whose outcome was still unknown at the deadline.
    pub(crate) ambiguous_unknown: Counter,
    pub(crate) commit_times: Histogram,
    pub(crate) read_times: Histogram,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            commits: Counter::default(),
            changes: Counter::default(),
            statements: Counter::default(),
            round_trips: Counter::default(),
            retries: Counter::default(),
            races: Counter::default(),
            reconnects: Counter::default(),
            ambiguous_committed: Counter::default(),
            ambiguous_repeated: Counter::default(),
            ambiguous_unknown: Counter::default(),
            commit_times: Histogram::of_times(),
            read_times: Histogram::of_times(),
        }
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let count = |page: &mut Page, name: &'static str, help: &'static str, counter: &Counter| {
            page.counter(name, help, counter.get());
        };
        count(page, "batzen_postgres_statements_total", "Statements sent to PostgreSQL", &self.statements);
        count(page, "batzen_postgres_round_trips_total", "Pipelines of statements sent", &self.round_trips);
        count(
            page,
            "batzen_postgres_retries_total",
            "Transactions run again after a serialization failure, a deadlock or a lock timeout",
            &self.retries,
        );
        count(page, "batzen_postgres_races_total", "Commits that another node's came before", &self.races);
        count(
            page,
            "batzen_postgres_reconnects_total",
            "Connections opened after one was lost",
            &self.reconnects,
        );
        let outcomes = [
            ("committed", self.ambiguous_committed.get()),
            ("repeated", self.ambiguous_repeated.get()),
            ("unknown", self.ambiguous_unknown.get()),
        ];
        page.counters(
            "batzen_postgres_ambiguous_commits_total",
            "Commits in which the connection was lost, by outcome",
            "outcome",
            outcomes,
        );
        page.histogram("batzen_postgres_commit_seconds", "Time of a commit's round trip", &self.commit_times);
        page.histogram("batzen_postgres_read_seconds", "Time of a read's round trip", &self.read_times);
    }
}
