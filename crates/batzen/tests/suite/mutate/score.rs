//! The progress of a run.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

/// The answers of one endpoint: by hundreds of the status, and those with 503.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub sent: u64,
    pub done: u64,
    pub refused: u64,
    pub busy: u64,
}

pub(super) struct Score {
    pub begun: Instant,
    pub sent: u64,
    /// By listener and endpoint.
    pub tallies: BTreeMap<(usize, usize), Tally>,
    pub statuses: BTreeMap<u16, u64>,
    /// Resident memory of the process in bytes, after a number of requests.
    pub memory: Vec<(u64, u64)>,
}

impl Score {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            sent: 0,
            tallies: BTreeMap::new(),
            statuses: BTreeMap::new(),
            memory: Vec::new(),
        }
    }

    pub(super) fn sent(&mut self, listener: usize, route: usize) {
        self.sent += 1;
        self.tallies.entry((listener, route)).or_default().sent += 1;
    }

    /// Counts a request that the service never read.
    pub(super) fn unread(&mut self, listener: usize, route: usize) {
        self.sent -= 1;
        self.tallies.entry((listener, route)).or_default().sent -= 1;
    }

    pub(super) fn answered(&mut self, listener: usize, route: usize, status: u16) {
        let tally = self.tallies.entry((listener, route)).or_default();
        match status {
            ..400 => tally.done += 1,
            503 => tally.busy += 1,
            _ => tally.refused += 1,
        }
        *self.statuses.entry(status).or_default() += 1;
    }

    /// Answers below 400, that is requests that may have left something behind.
    pub(super) fn done(&self) -> u64 {
        self.tallies.values().map(|tally| tally.done).sum()
    }

    /// A line of JSON for scripts.
    pub(super) fn json(&self, service: &str, seed: u64) -> Value {
        let statuses: BTreeMap<String, u64> =
            self.statuses.iter().map(|(status, count)| (status.to_string(), *count)).collect();
        let seconds = self.begun.elapsed().as_secs_f64();
        json!({
            "service": service,
            "seed": seed,
            "requests": self.sent,
            "seconds": (seconds * 10.0).round() / 10.0,
            "requests_per_second": (self.sent as f64 / seconds).round(),
            "answers": statuses,
            "memory": self.memory.iter().map(|(after, bytes)| json!([after, bytes >> 20])).collect::<Vec<_>>(),
        })
    }
}
