//! The signer's HTTP interface: `/metrics` and the page that draws it, nothing else. Both show only counts.

use std::sync::Arc;

use batzen_http::{ErrorCode, Handler, Method, MetricsPage, Request, Response};
use batzen_metrics::Page;

use crate::state::Signer;

/// Serves `/metrics` and `/dashboard` of a signer.
pub struct Api {
    signer: Arc<Signer>,
    metrics_page: MetricsPage,
}

impl Api {
    /// The pages of this signer. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(signer: Arc<Signer>) -> Self {
        let metrics_page = MetricsPage::new("signer");
        let of_signer = Arc::downgrade(&signer);
        metrics_page.sample(move |page| {
            let signer = of_signer.upgrade();
            signer.is_some_and(|signer| {
                signer.write_metrics(page);
                true
            })
        });
        Self { signer, metrics_page }
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
            _ if request.method == Method::GET
                && request.segment(0) == "dashboard"
                && request.segments.len() <= 2 =>
            {
                self.metrics_page.dashboard(&request.head)
            }
            _ => Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, ""),
        }
    }
}
