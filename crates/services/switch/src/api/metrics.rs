//! The page `/metrics`.

use batzen_metrics::Page;

use crate::service::Service;
use crate::treasury::PositionFigures;
use crate::values::{currency_text, format_amount, format_signed};

/// The most positions on the page; the rest is omitted. A switch has few participants, but nothing bounds
/// their number.
const POSITIONS_MAX: usize = 64;
/// The longest name of a participant on the page, in characters.
const NAME_MAX: usize = 32;

/// Writes the switch's own part of the page.
pub(super) fn write(service: &Service, page: &mut Page) {
    let lane = service.lane.metrics();
    page.histogram("batzen_switch_batch_commands", "Commands per batch of the lane", lane.batch_commands());
    page.histogram("batzen_switch_batch_seconds", "Duration of a batch of the lane", lane.batch_times());
    page.count(
        "batzen_switch_rejected_total",
        "Requests refused because the queue was full",
        lane.rejections(),
    );
    page.count(
        "batzen_switch_failed_batches_total",
        "Batches that were not committed",
        lane.failed_batches(),
    );
    page.gauge("batzen_switch_waiting_requests", "Requests waiting for the lane", lane.waiting());
    page.gauge(
        "batzen_switch_open_intents",
        "Transfers waiting for the ledger",
        service.clearing().open() as u64,
    );
    let ledger = service.treasury.ledger().counters();
    let answers = service.clearing_counters();
    page.histogram("batzen_switch_ledger_seconds", "Duration of a request to the ledger", &ledger.time);
    page.histogram("batzen_switch_ledger_events", "Events per request to the ledger", &ledger.events);
    page.count("batzen_switch_ledger_repeated_total", "Repeated requests to the ledger", &ledger.repeated);
    page.count(
        "batzen_switch_ledger_broken_total",
        "Answers of the ledger that contradict the books",
        &answers.broken,
    );
    page.count("batzen_switch_gross_unsettled_total", "Gross settlements refused", &answers.unsettled);
    let outbox = service.senders.counters();
    page.count("batzen_switch_callbacks_total", "Callbacks acknowledged", &outbox.delivered);
    page.count(
        "batzen_switch_callbacks_failed_total",
        "Failed attempts to deliver a callback",
        &outbox.failed,
    );
    page.count("batzen_switch_callbacks_given_up_total", "Callbacks given up", &outbox.given_up);
    page.histogram("batzen_switch_callback_batch", "Callbacks sent at the same time", &outbox.batch);
    page.histogram("batzen_switch_callback_seconds", "Time from commit to acknowledgement", &outbox.time);
    let routed = service.forwarder.counters();
    page.count(
        "batzen_switch_forwarded_total",
        "Lookups, quotes and the like that were passed on",
        &routed.forwarded,
    );
    page.count(
        "batzen_switch_forwarding_failed_total",
        "Failed attempts to pass on lookups, quotes and the like",
        &routed.failed,
    );
    page.count(
        "batzen_switch_forwarding_given_up_total",
        "Lookups, quotes and the like that were given up",
        &routed.given_up,
    );
    page.count(
        "batzen_switch_forwarding_rejected_total",
        "Lookups, quotes and the like refused because the queue was full",
        &routed.rejected,
    );
    let waiting = routed.waiting.load(std::sync::atomic::Ordering::Relaxed);
    page.gauge(
        "batzen_switch_forwarding_waiting",
        "Lookups, quotes and the like that are waiting or under way",
        waiting,
    );
    let treasury = service.treasury.counters();
    page.gauge("batzen_switch_over_limit", "Participants over their limit", treasury.over_limit.get());
    page.gauge("batzen_switch_near_cap", "Positions beyond their alarm threshold", treasury.alarms.get());
    page.count("batzen_switch_alarms_total", "Alarms raised", &treasury.alarms_raised);
    write_books(service, page);
    match service.pending_approvals() {
        Ok(pending) => {
            let help = "Proposals waiting for a second operator";
            page.gauge("batzen_switch_pending_approvals", help, pending.count);
            let help = "Age of the oldest proposal waiting for a second operator";
            page.gauge("batzen_switch_oldest_approval_seconds", help, pending.oldest_seconds);
        }
        Err(error) => tracing::warn!(%error, "pending approvals cannot be counted"),
    }
    service.store().write_metrics(page, batzen_tables::switch::ALL);
}

/// Writes the participants, their positions, and what waits for operators.
fn write_books(service: &Service, page: &mut Page) {
    let treasury = service.treasury.counters();
    let directory = service.directory();
    page.gauge("batzen_switch_participants", "Participants", directory.all().len());
    page.gauge(
        "batzen_switch_windows_unsettled",
        "Settlement windows that are closed but not settled",
        treasury.windows_unsettled.get(),
    );
    if let Ok(state) = service.state() {
        page.gauge("batzen_switch_window_open", "Number of the open settlement window", state.open_window);
        page.gauge(
            "batzen_switch_window_open_transfers",
            "Transfers committed in the open settlement window",
            state.open_transfers,
        );
    }
    let mut figures = treasury.positions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    figures.sort_by_key(|figures| (figures.participant, figures.currency));
    figures.truncate(POSITIONS_MAX);
    type Written = fn(&PositionFigures) -> String;
    let families: [(&str, &str, Written); 4] = [
        ("position", "Net debt of a participant", |one| format_signed(one.position)),
        ("position_reserved", "Part of a position that is reserved for transfers in flight", |one| {
            format_amount(one.reserved)
        }),
        ("net_debit_cap", "The highest position that operators allow", |one| {
            format_amount(one.net_debit_cap)
        }),
        ("liquidity", "Liquidity that covers a position", |one| format_signed(one.liquidity)),
    ];
    for (name, help, written) in families {
        let rows = figures.iter().map(|one| {
            let labels = [label(directory.name(one.participant)), label(&currency_text(one.currency))];
            (labels, written(one))
        });
        page.labelled(&format!("batzen_switch_{name}"), help, ["participant", "currency"], rows);
    }
}

/// A text as a label's value.
fn label(text: &str) -> String {
    let harmless = |c: char| if c.is_control() || c == '"' || c == '\\' { '_' } else { c };
    text.chars().take(NAME_MAX).map(harmless).collect()
}
