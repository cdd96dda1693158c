//! The signer's HTTP interface: `/health`, `/ready`, `/metrics` and its dashboard. All of them show only
//! counts.

use std::sync::Arc;

use batzen_http::{ErrorCode, Handler, Method, Request, Response};
use batzen_metrics::Page;
use batzen_service::{Checks, MetricsPage, Readiness, health};

use crate::dashboard::DASHBOARD;
use crate::state::Signer;

/// In seconds. A follower whose copy of the primary's keys is older is not ready.
const SYNC_LAG_MAX_S: u64 = 300;

/// Serves `/health`, `/ready`, `/metrics` and `/dashboard` of a signer.
pub struct Api {
    signer: Arc<Signer>,
    metrics_page: MetricsPage,
    checks: Checks,
}

impl Api {
    /// The pages of this signer. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(signer: Arc<Signer>) -> Self {
        let metrics_page = MetricsPage::new("signer", &DASHBOARD);
        let of_signer = Arc::downgrade(&signer);
        metrics_page.sample(move |page| {
            let signer = of_signer.upgrade();
            signer.is_some_and(|signer| {
                signer.write_metrics(page);
                true
            })
        });
        Self { signer, metrics_page, checks: Checks::default() }
    }
}

impl Api {
    /// Checks whether the signer can sign. This depends on the clock, its keys, and, for a follower, the
    /// primary's keys.
    fn ready(&self) -> Response {
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
            .check("clock", self.checks.clock(now.as_micros()))
            .check("keys", keys)
            .check("sync", sync)
            .into_response()
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

impl Handler for Api {
    async fn handle(&self, request: Request) -> Response {
        match request.path.as_str() {
            "/metrics" if request.method == Method::GET => {
                let signer = Arc::clone(&self.signer);
                self.metrics_page.answer(move |page| signer.write_metrics(page)).await
            }
            "/health" if request.method == Method::GET => health(),
            "/ready" if request.method == Method::GET => self.ready(),
            _ if request.method == Method::GET
                && request.segment(0) == "dashboard"
                && request.segment_count() <= 2 =>
            {
                self.metrics_page.dashboard(&request.head)
            }
            _ => Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, ""),
        }
    }
}
