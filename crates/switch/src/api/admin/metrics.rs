//! The page `/metrics`.

use std::sync::Arc;

use batzen_http::Response;
use batzen_metrics::Page;

use super::AdminApi;
use crate::service::Service;

impl AdminApi {
    pub(super) async fn metrics(&self) -> Response {
        let (service, stats) = (Arc::clone(&self.service), Arc::clone(&self.stats));
        let write = move |page: &mut Page| {
            write(&service, page);
            stats.write(page);
        };
        self.metrics_page.answer(write).await
    }
}

fn write(service: &Service, page: &mut Page) {
    service.operations().write(page);
    let lane = service.lane().metrics();
    page.histogram("batzen_switch_batch_commands", "Commands in a batch of the lane", lane.batch_commands());
    page.histogram("batzen_switch_batch_seconds", "Time of a batch of the lane", lane.batch_times());
    page.count("batzen_switch_rejected_total", "Requests that found the queue full", lane.rejections());
    page.count(
        "batzen_switch_failed_batches_total",
        "Batches that were not committed",
        lane.failed_batches(),
    );
    page.gauge("batzen_switch_waiting_requests", "Requests that wait for the lane", lane.waiting());
    page.gauge(
        "batzen_switch_open_intents",
        "Transfers that wait for the ledger",
        service.lane().open_intents().get(),
    );
    let ledger = service.treasury().ledger().counters();
    page.histogram("batzen_switch_ledger_seconds", "Time of a request to the ledger", &ledger.time);
    page.histogram("batzen_switch_ledger_events", "Events in a request to the ledger", &ledger.events);
    page.count("batzen_switch_ledger_repeated_total", "Requests to the ledger repeated", &ledger.repeated);
    page.count("batzen_switch_ledger_broken_total", "Answers that do not fit the books", &ledger.broken);
    page.count("batzen_switch_gross_unsettled_total", "Gross settlements refused", &ledger.unsettled);
    let outbox = service.senders().counters();
    page.count("batzen_switch_callbacks_total", "Callbacks acknowledged", &outbox.delivered);
    page.count("batzen_switch_callbacks_failed_total", "Attempts at callbacks that failed", &outbox.failed);
    page.count("batzen_switch_callbacks_given_up_total", "Callbacks given up", &outbox.given_up);
    page.histogram("batzen_switch_callback_batch", "Callbacks sent at once", &outbox.batch);
    page.histogram("batzen_switch_callback_seconds", "Time from commit to acknowledgement", &outbox.time);
    let treasury = service.treasury().counters();
    page.gauge("batzen_switch_over_limit", "Participants over their limit", treasury.over_limit.get());
    page.gauge("batzen_switch_near_cap", "Positions beyond their alarm threshold", treasury.alarms.get());
    page.count("batzen_switch_alarms_total", "Alarms that went off", &treasury.alarms_raised);
    service.store().write_metrics(page, batzen_tables::switch::ALL);
}
