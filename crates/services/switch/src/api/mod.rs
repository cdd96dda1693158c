//! HTTP: the participants' interface and the operators'.

pub mod admin;
mod bodies;
mod bulk;
mod lookups;
mod metrics;
pub mod participant;
mod routed;

use std::sync::Arc;

use batzen_http::Stats;
use batzen_metrics::Page;
use batzen_service::{App, Monitor, Reach, Readiness};

use crate::service::Service;

/// The route table of an interface.
type Table = batzen_service::Table<Service>;

/// Values of the label `operation`: requests of participants.
const OPERATIONS: [&str; 10] = [
    "prepare",
    "fulfil",
    "error",
    "get",
    "bulk-prepare",
    "bulk-fulfil",
    "bulk-error",
    "other",
    "lookup",
    "route",
];

/// Method, pattern and reach of every endpoint of the participants' and of the operators' interface, for documents.
#[must_use]
pub fn endpoints() -> [Vec<(String, Reach)>; 2] {
    [participant::table(), admin::table()].map(|table| table.endpoints())
}

/// The monitor of a switch; `stats` are the counters of the participants' server.
pub(crate) fn monitor(stats: Arc<Stats>) -> Monitor {
    Monitor::new("switch", &OPERATIONS, &admin::dashboard::DASHBOARD, stats)
}

impl App for Service {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Whether the switch can clear: checks store or database, clock, ledger, and an open settlement window.
    async fn ready(&self) -> Readiness {
        let ledger = async {
            let answer = self.treasury.ledger().check().await;
            answer.map_err(|error| format!("the ledger does not answer: {error}"))
        };
        let readiness = self.monitor.check(self.store(), self.now()).await;
        readiness.check_within("ledger", ledger).await.check("window", self.state())
    }

    fn write_metrics(&self, page: &mut Page) {
        metrics::write(self, page);
    }
}
