//! The signer's HTTP face: `/metrics`, the page that draws it, and nothing else. Neither says more than counts.

use std::sync::Arc;

use batzen_http::{ErrorCode, Handler, Method, Request, Response, dashboard};
use batzen_metrics::{CONTENT_TYPE, Page};

use crate::state::Signer;

/// Serves `/metrics` and `/dashboard` of a signer.
pub struct MetricsPage(pub Arc<Signer>);

impl Signer {
    /// The page `/metrics`.
    pub fn metrics_page(&self) -> String {
        let mut page = Page::new();
        let labels = [("service", "signer"), ("version", env!("CARGO_PKG_VERSION"))];
        page.info("batzen_build_info", "What runs here", &labels);
        self.metrics.write(&mut page);
        let (report, now) = (self.status(), self.clock.now());
        let is_primary = report.role == crate::service_config::Role::Primary.name();
        page.gauge("batzen_signer_primary", "Whether this signer creates keys", u8::from(is_primary));
        page.gauge("batzen_signer_epoch", "Number of the promotion that its role goes back to", report.epoch);
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
                "Since a follower last was known to have the primary's keys",
                lag,
            );
        }
        self.pool.write(&mut page);
        batzen_metrics::write_process(&mut page);
        page.finish()
    }
}

impl Handler for MetricsPage {
    async fn handle(&self, request: Request) -> Response {
        match request.path.as_str() {
            "/metrics" if request.method == Method::GET => {
                Response::bytes(200, CONTENT_TYPE, self.0.metrics_page())
            }
            "/dashboard" if request.method == Method::GET => dashboard(),
            _ => Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, ""),
        }
    }
}
