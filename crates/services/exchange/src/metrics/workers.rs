//! Counters of the workers.

use batzen_metrics::{Counter, Gauge};

/// Counters of all workers of one process, `batzen_worker_*` in `/metrics`.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    /// Credits booked.
    pub credits: Counter,
    /// Imported pages of the bank's history.
    pub(crate) credit_pages: Counter,
    /// Rows of the bank's history that were set aside: unreadable, or in another currency.
    pub credits_set_aside: Counter,
    /// Rows set aside that wait for an operator, including those of earlier runs; counted up to 1,000.
    pub credits_aside: Gauge,
    /// Failed or unusable answers to history requests.
    pub history_failures: Counter,
    /// Age of the newest credit of the last page when it was booked, in seconds.
    pub(crate) credit_lag_s: Gauge,
    /// Deposits aggregated.
    pub deposits: Counter,
    /// Transfers to merchants prepared.
    pub(crate) aggregates: Counter,
    /// Units of aggregation below the smallest payable amount.
    pub(crate) transients: Counter,
    /// Targets that could not be paid.
    pub targets_set_aside: Gauge,
    /// Time that the most urgent deposit had been due when the aggregator's last round began, in seconds.
    pub(crate) aggregation_lag_s: Gauge,
    /// Transfers that the bank accepted.
    pub transfers: Counter,
    /// Transfers that the bank refused for good. An operator must act.
    pub transfers_failed: Counter,
    /// Transfers refused for good that wait for an operator, including those of earlier runs; counted up to
    /// 1,000.
    pub transfers_refused: Gauge,
    /// Failed attempts at a transfer that will be repeated.
    pub transfer_failures: Counter,
    /// Transfers requested from the bank and not answered yet.
    pub(crate) transfers_in_flight: Gauge,
    /// Transfers from accounts that are not configured.
    pub transfers_set_aside: Gauge,
    /// The age of the oldest open transfer at the last pass, in seconds.
    pub(crate) transfer_lag_s: Gauge,
    /// Reserves closed.
    pub(crate) closings: Counter,
    /// Expired reserves that could not be closed.
    pub reserves_set_aside: Gauge,
    /// Expired purses refunded.
    pub(crate) purses_expired: Counter,
    /// Expired purses that could not be refunded.
    pub(crate) purses_set_aside: Gauge,
    /// Orders to pay out profit executed.
    pub(crate) drains: Counter,
    /// Workers that ended abnormally and were started again.
    pub restarts: Counter,
}

impl WorkerMetrics {
    /// For the metrics page: name, help text, whether it only grows, value.
    pub(crate) fn rows(&self) -> Vec<(&'static str, &'static str, bool, u64)> {
        let counter = |name, help, counter: &Counter| (name, help, true, counter.get());
        let gauge = |name, help, gauge: &Gauge| (name, help, false, gauge.get());
        vec![
            counter("batzen_worker_wirewatch_credits_total", "Credits booked", &self.credits),
            counter("batzen_worker_wirewatch_pages_total", "Pages of credits imported", &self.credit_pages),
            counter(
                "batzen_worker_wirewatch_set_aside_total",
                "Rows of the bank that could not be booked",
                &self.credits_set_aside,
            ),
            gauge(
                "batzen_worker_wirewatch_set_aside",
                "Rows of the bank that fill no reserve and wait for an operator",
                &self.credits_aside,
            ),
            counter(
                "batzen_worker_wirewatch_failures_total",
                "Failed requests for the bank's history",
                &self.history_failures,
            ),
            gauge(
                "batzen_worker_wirewatch_lag_seconds",
                "Age of the last credit when it was booked",
                &self.credit_lag_s,
            ),
            counter("batzen_worker_aggregator_deposits_total", "Deposits aggregated", &self.deposits),
            counter(
                "batzen_worker_aggregator_transfers_total",
                "Transfers to merchants prepared",
                &self.aggregates,
            ),
            counter(
                "batzen_worker_aggregator_transients_total",
                "Units that were too small to be paid",
                &self.transients,
            ),
            gauge(
                "batzen_worker_aggregator_set_aside",
                "Targets that cannot be paid now",
                &self.targets_set_aside,
            ),
            gauge(
                "batzen_worker_aggregator_lag_seconds",
                "How long the most urgent deposit was due at the last look",
                &self.aggregation_lag_s,
            ),
            counter("batzen_worker_transfer_done_total", "Transfers accepted by the bank", &self.transfers),
            counter(
                "batzen_worker_transfer_failed_total",
                "Transfers refused by the bank for good",
                &self.transfers_failed,
            ),
            gauge(
                "batzen_worker_transfer_refused",
                "Transfers refused for good that wait for an operator",
                &self.transfers_refused,
            ),
            counter(
                "batzen_worker_transfer_retries_total",
                "Attempts at transfers that have to be repeated",
                &self.transfer_failures,
            ),
            gauge("batzen_worker_transfer_in_flight", "Transfers being asked for", &self.transfers_in_flight),
            gauge(
                "batzen_worker_transfer_set_aside",
                "Transfers of accounts that are not configured",
                &self.transfers_set_aside,
            ),
            gauge(
                "batzen_worker_transfer_lag_seconds",
                "Age of the oldest open transfer at the last look",
                &self.transfer_lag_s,
            ),
            counter("batzen_worker_closer_reserves_total", "Reserves closed", &self.closings),
            gauge(
                "batzen_worker_closer_set_aside",
                "Expired reserves that cannot be closed now",
                &self.reserves_set_aside,
            ),
            counter("batzen_worker_expire_purses_total", "Expired purses refunded", &self.purses_expired),
            gauge(
                "batzen_worker_expire_set_aside",
                "Expired purses that cannot be refunded now",
                &self.purses_set_aside,
            ),
            counter("batzen_worker_drain_orders_total", "Orders to pay out profit executed", &self.drains),
            counter("batzen_worker_restarts_total", "Workers started again after a failure", &self.restarts),
        ]
    }
}
