//! The signer's HTTP interface: `/health`, `/ready`, `/metrics` and its dashboard. All of them show only
//! counts.

use std::sync::Arc;

use batzen_http::{Stats, Style};
use batzen_metrics::Page;
use batzen_service::{Api, App, Monitor, Reach, Readiness, Table, fill_dashboard};

use crate::dashboard::DASHBOARD;
use crate::state::Signer;

/// In seconds. A follower whose copy of the primary's keys is older is not ready.
const SYNC_LAG_MAX_S: u64 = 300;
/// The operation under which requests are counted.
const PAGE: &str = "page";
const OPERATIONS: [&str; 1] = [PAGE];

/// A signer, with the counters of its pages.
pub struct Pages {
    signer: Arc<Signer>,
    monitor: Monitor,
}

/// The pages of this signer, on an HTTP server with these counters. Must be called within a tokio runtime.
#[must_use]
pub fn api(signer: Arc<Signer>, http: Arc<Stats>) -> Api<Pages> {
    let pages = Arc::new(Pages { signer, monitor: Monitor::new("signer", &OPERATIONS, &DASHBOARD, http) });
    fill_dashboard(&pages);
    Api::new(pages, table())
}

fn table() -> Table<Pages> {
    Table::new(Style::ByPath, &OPERATIONS).monitored(PAGE).with_dashboard(PAGE)
}

/// Method, pattern and reach of every endpoint, for documents.
#[must_use]
pub fn endpoints() -> Vec<(String, Reach)> {
    table().endpoints()
}

impl App for Pages {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Checks whether the signer can sign. This depends on the clock, its keys, and, for a follower, the
    /// primary's keys.
    async fn ready(&self) -> Readiness {
        let (report, now) = (self.signer.status(), self.signer.clock.now());
        let keys = report
            .complete
            .then_some(())
            .ok_or("a configured section has no key yet; the log names failures");
        let late = report.synced_us.map(|synced| now.as_micros().saturating_sub(synced) / 1_000_000);
        let sync = match late {
            Some(late_s) if late_s > SYNC_LAG_MAX_S => {
                Err(format!("the primary's keys are {late_s} s old: see `batzen signer status`"))
            }
            _ => Ok(()),
        };
        Readiness::new()
            .check("clock", self.monitor.checks().clock(now.as_micros()))
            .check("keys", keys)
            .check("sync", sync)
    }

    fn write_metrics(&self, page: &mut Page) {
        self.signer.write_metrics(page);
    }
}

impl Signer {
    /// The content of the page `/metrics`.
    fn write_metrics(&self, page: &mut Page) {
        self.metrics.write(page);
        let (report, now) = (self.status(), self.clock.now());
        let is_primary = report.role == crate::service_config::Role::Primary.name();
        page.gauge("batzen_signer_primary", "Whether this signer creates keys", u8::from(is_primary));
        page.gauge("batzen_signer_epoch", "Number of the promotion that set its role", report.epoch);
        let keys = [
            ("rsa", report.rsa_keys as u64),
            ("cs", report.cs_keys as u64),
            ("eddsa", report.signing_keys as u64),
        ];
        page.gauges("batzen_signer_keys", "Private keys", "kind", keys);
        if let Some(synced) = report.synced_us {
            let lag = now.as_micros().saturating_sub(synced) / 1_000_000;
            page.gauge(
                "batzen_signer_sync_lag_seconds",
                "Time since a follower last had the primary's keys",
                lag,
            );
        }
        self.pool.write(page);
    }
}
