//! Metrics `batzen_feed_*` of both sides.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use batzen_metrics::{Counter, Page};

/// An exchange's knowledge of one auditor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AuditorState {
    /// Whether it is connected.
    pub(crate) is_connected: bool,
    /// The number of the first frame that it has not acknowledged.
    pub(crate) next: u64,
    /// The number of the exchange's next frame.
    pub(crate) end: u64,
    /// Time that the oldest frame has waited that it has not acknowledged.
    pub(crate) behind: Duration,
    /// Whether its chain differs from the exchange's.
    pub(crate) is_contradicted: bool,
}

/// Counts of an exchange.
#[derive(Debug, Default)]
pub struct ServerMetrics {
    auditors: Mutex<BTreeMap<String, AuditorState>>,
    /// Shipped changes.
    pub(crate) changes: Counter,
    /// Shipped bytes.
    pub bytes: Counter,
    /// Snapshots begun.
    pub(crate) snapshots: Counter,
    /// Connections refused, for whatever reason.
    pub(crate) refused: Counter,
}

impl ServerMetrics {
    /// Changes what is known of an auditor.
    pub(crate) fn update(&self, name: &str, change: impl FnOnce(&mut AuditorState)) {
        let mut auditors = self.auditors.lock().unwrap_or_else(PoisonError::into_inner);
        change(auditors.entry(name.to_owned()).or_default());
    }

    /// Writes the metrics.
    pub fn write(&self, page: &mut Page) {
        let auditors = self.auditors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut gauge = |name: &str, help: &str, value: fn(&AuditorState) -> f64| {
            let values = auditors.iter().map(|(auditor, state)| (auditor.as_str(), value(state)));
            page.gauges(name, help, "auditor", values);
        };
        gauge("batzen_feed_connected", "Whether an auditor is connected", |state| {
            f64::from(u8::from(state.is_connected))
        });
        #[allow(clippy::cast_precision_loss, reason = "a level to be shown")]
        gauge("batzen_feed_lag_commits", "Writes of commits that an auditor does not have", |state| {
            state.end.saturating_sub(state.next) as f64
        });
        gauge(
            "batzen_feed_lag_seconds",
            "How long the oldest commit has waited that an auditor does not have",
            |state| state.behind.as_secs_f64(),
        );
        gauge(
            "batzen_feed_contradicted",
            "Whether an auditor has seen other commits than there are",
            |state| f64::from(u8::from(state.is_contradicted)),
        );
        page.count("batzen_feed_changes_total", "Row changes shipped to auditors", &self.changes);
        page.count("batzen_feed_bytes_total", "Bytes shipped to auditors", &self.bytes);
        page.count("batzen_feed_snapshots_total", "Snapshots shipped to auditors", &self.snapshots);
        page.count("batzen_feed_refused_total", "Connections refused", &self.refused);
    }
}

/// The progress of an auditor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the exchange is connected.
    pub is_connected: bool,
    /// The number of the exchange's first frame that the copy does not have.
    pub next: u64,
    /// The number of the exchange's next frame, as far as is known.
    pub end: u64,
    /// Time that the oldest frame has waited that the copy does not have.
    pub behind: Duration,
    /// Number of batches that were applied since the start.
    pub batches: u64,
    /// Number of changes of rows that they had.
    pub changes: u64,
    /// Number of snapshots that were taken, ever.
    pub snapshots: u32,
}

impl Progress {
    /// Number of frames that the copy is behind.
    #[must_use]
    pub fn lag_commits(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    /// Writes the metrics.
    pub fn write(&self, page: &mut Page) {
        page.gauge("batzen_feed_connected", "Whether the exchange is connected", u8::from(self.is_connected));
        page.gauge("batzen_feed_next", "The number of the next frame of the exchange's journal", self.next);
        page.gauge(
            "batzen_feed_lag_commits",
            "Writes of commits that the copy does not have",
            self.lag_commits(),
        );
        page.gauge(
            "batzen_feed_lag_seconds",
            "How long the oldest commit has waited that the copy does not have",
            self.behind.as_secs_f64(),
        );
        page.counter("batzen_feed_batches_total", "Batches of changes applied", self.batches);
        page.counter("batzen_feed_changes_total", "Row changes applied", self.changes);
        page.counter("batzen_feed_snapshots_total", "Snapshots taken", self.snapshots.into());
    }
}
