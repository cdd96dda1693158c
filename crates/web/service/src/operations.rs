//! Requests by operation and outcome, and their durations.

use std::time::Instant;

use batzen_metrics::{Counter, Histogram, Page};

/// The outcomes of requests, for the label `outcome`. `done`: 2xx and 3xx. `conflict`: 409, which comes with
/// proof. `refused`: any other 4xx. `overload`: 503, to be tried again. `failed`: any other 5xx. `cancelled`:
/// the client disconnected before the answer.
pub(crate) const OUTCOMES: [&str; 6] = ["done", "conflict", "refused", "overload", "failed", "cancelled"];

/// The index in [`OUTCOMES`] for an answer with this status.
fn outcome(status: u16) -> usize {
    match status {
        0..=399 => 0,
        409 => 1,
        400..=499 => 2,
        503 => 3,
        _ => 4,
    }
}

const CANCELLED: usize = OUTCOMES.len() - 1;

/// Counters of the operations of one service, which have names from a small fixed list.
#[derive(Debug)]
pub struct Operations {
    names: &'static [&'static str],
    ended: Box<[[Counter; OUTCOMES.len()]]>,
    times: Box<[Histogram]>,
}

impl Operations {
    /// Counters for these operations.
    #[must_use]
    pub(crate) fn new(names: &'static [&'static str]) -> Self {
        let ended = names.iter().map(|_| Default::default()).collect();
        let times = names.iter().map(|_| Histogram::of_times()).collect();
        Self { names, ended, times }
    }

    /// Starts an operation, given by its index in the list. It counts as cancelled if the result is dropped.
    ///
    /// # Panics
    /// If the list has no such index.
    pub(crate) fn begin(&self, operation: usize) -> Running<'_> {
        assert!(operation < self.names.len(), "an operation of the list");
        Running { operations: self, operation, begun: Instant::now(), outcome: CANCELLED }
    }

    /// Returns the number of requests for this operation that ended with `outcome`, one of [`OUTCOMES`].
    #[must_use]
    pub fn ended(&self, operation: usize, outcome: &str) -> u64 {
        let column = OUTCOMES.iter().position(|name| *name == outcome);
        column.map_or(0, |column| self.ended[operation][column].get())
    }

    /// Writes `batzen_operations_total` and `batzen_operation_seconds`.
    pub(crate) fn write(&self, page: &mut Page) {
        let counts = self.ended.iter().map(|row| row.each_ref().map(Counter::get));
        page.matrix(
            "batzen_operations_total",
            "Requests by operation and outcome",
            ["operation", "outcome"],
            OUTCOMES,
            self.names.iter().copied().zip(counts),
        );
        page.histograms(
            "batzen_operation_seconds",
            "Time from a complete request to its answer; long polls include the wait",
            "operation",
            self.names.iter().copied().zip(&self.times),
        );
    }
}

/// An operation in progress.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    operations: &'a Operations,
    operation: usize,
    begun: Instant,
    outcome: usize,
}

impl Running<'_> {
    /// Ends it with the HTTP status of the answer.
    pub(crate) fn end(mut self, status: u16) {
        self.outcome = outcome(status);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.operations.ended[self.operation][self.outcome].inc();
        // The time until the client gave up says nothing about the service.
        if self.outcome != CANCELLED {
            self.operations.times[self.operation].time(self.begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_is_counted_once() {
        let operations = Operations::new(&["read", "write"]);
        for status in [200, 204, 304, 404, 409, 451, 500, 503] {
            operations.begin(1).end(status);
        }
        drop(operations.begin(0));
        let ended = |operation| OUTCOMES.map(|outcome| operations.ended(operation, outcome));
        assert_eq!(ended(1), [3, 1, 2, 1, 1, 0]);
        assert_eq!(ended(0), [0, 0, 0, 0, 0, 1]);
        assert_eq!((operations.times[0].reading().0, operations.times[1].reading().0), (0, 8));
        let mut page = Page::new();
        operations.write(&mut page);
        let text = page.finish();
        assert!(text.contains("\nbatzen_operations_total{operation=\"write\",outcome=\"conflict\"} 1\n"));
        assert!(text.contains("\nbatzen_operation_seconds_count{operation=\"write\"} 8\n"));
    }
}
