//! The metrics of a generator, for Prometheus: the same figures as in its lines, as counters since its start.

use std::sync::Mutex;
use std::time::Duration;

use batzen_metrics::{Counter, Gauge, Histogram, Page};
use batzen_protocol::Money;
use batzen_service::dashboard::Layout;
use batzen_service::{App, Monitor, Readiness};
use batzen_wallet::WalletError;

use super::lock;

/// The kinds of operations.
const KINDS: [&str; 7] = ["pay", "send", "transfer", "refund", "withdraw", "change", "recoup"];
/// The reasons of failures.
const REASONS: [&str; 5] = ["no-answer", "unavailable", "refused", "pending", "other"];
/// The dashboard of a generator, which has none of its own: Grafana shows it beside the services.
const NO_DASHBOARD: Layout = Layout { sections: &[], work: &[] };

/// The counters of a generator.
pub(super) struct LoadMetrics {
    monitor: Monitor,
    /// Operations that were to begin.
    pub(super) offered: Counter,
    /// Operations given up because too many waited.
    pub(super) missed: Counter,
    /// Wallets at work.
    pub(super) wallets: Gauge,
    /// Operations that wait for a wallet.
    pub(super) waiting: Gauge,
    /// Money that the wallets hold.
    pub(super) money: Mutex<Money>,
    times: [Histogram; KINDS.len()],
    errors: [Counter; REASONS.len()],
}

impl LoadMetrics {
    pub(super) fn new() -> Self {
        Self {
            monitor: Monitor::new("load", &[], &NO_DASHBOARD, None),
            offered: Counter::default(),
            missed: Counter::default(),
            wallets: Gauge::default(),
            waiting: Gauge::default(),
            money: Mutex::new(Money::ZERO),
            times: KINDS.map(|_| Histogram::of_times()),
            errors: REASONS.map(|_| Counter::default()),
        }
    }

    /// Counts an operation.
    pub(super) fn count(&self, kind: &str, took: Duration) {
        let index = KINDS.iter().position(|known| *known == kind);
        self.times[index.expect("every kind has a histogram")].time(took);
    }

    /// Counts a failure.
    pub(super) fn fail(&self, error: &anyhow::Error) {
        let reason = reason(error);
        let index = REASONS.iter().position(|known| *known == reason);
        self.errors[index.expect("every reason has a counter")].inc();
    }
}

/// The reason of a failure, one of a few.
fn reason(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<WalletError>() {
        Some(WalletError::NoAnswer(_)) => "no-answer",
        Some(WalletError::Unavailable { .. }) => "unavailable",
        Some(WalletError::Pending { .. }) => "pending",
        Some(WalletError::Failed { .. } | WalletError::Core(_)) => "refused",
        _ => "other",
    }
}

impl App for LoadMetrics {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    async fn ready(&self) -> Readiness {
        Readiness::new()
    }

    fn write_metrics(&self, page: &mut Page) {
        page.count(
            "batzen_load_offered_total",
            "Operations that were to begin, in an open loop",
            &self.offered,
        );
        page.count("batzen_load_missed_total", "Operations given up because too many waited", &self.missed);
        let times = KINDS.into_iter().zip(&self.times);
        let help = "Time that wallets took for an operation, from when it was to begin";
        page.histograms("batzen_load_operation_seconds", help, "operation", times);
        let errors = REASONS.into_iter().zip(self.errors.iter().map(Counter::get));
        page.counters("batzen_load_errors_total", "Operations of wallets that failed", "reason", errors);
        page.gauge("batzen_load_wallets", "Wallets at work", self.wallets.get());
        page.gauge("batzen_load_waiting", "Operations that wait for a wallet", self.waiting.get());
        page.gauge("batzen_load_money", "Money that wallets can spend", *lock(&self.money));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn operations_and_failures_have_their_labels_from_the_start() {
        let metrics = LoadMetrics::new();
        let silent = WalletError::Unavailable { url: "http://shop/".to_owned(), status: 502 };
        let error = Err::<(), _>(silent).context("order").context("pay").unwrap_err();
        metrics.fail(&error);
        metrics.fail(&anyhow::anyhow!("the order has no order_id"));
        metrics.count("recoup", Duration::from_millis(3));
        metrics.count("transfer", Duration::from_millis(3));
        metrics.offered.add(7);
        *lock(&metrics.money) = Money::new(12, 50_000_000).unwrap();
        let mut page = Page::new();
        metrics.write_metrics(&mut page);
        let text = page.finish();
        for line in [
            "batzen_load_offered_total 7",
            "batzen_load_operation_seconds_count{operation=\"recoup\"} 1",
            "batzen_load_operation_seconds_count{operation=\"transfer\"} 1",
            "batzen_load_operation_seconds_count{operation=\"pay\"} 0",
            "batzen_load_errors_total{reason=\"unavailable\"} 1",
            "batzen_load_errors_total{reason=\"other\"} 1",
            "batzen_load_errors_total{reason=\"refused\"} 0",
            "batzen_load_money 12.5",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is missing in\n{text}");
        }
    }
}
