//! The event stream: pages of NDJSON or of server-sent events, with a cursor.
//!
//! The server keeps no state about its readers. Each answer ends. To continue, a reader asks again with the
//! last timestamp that it has processed. Readers of server-sent events do so automatically (`Last-Event-ID`).

use std::time::Duration;

use batzen_http::{Request, Response};
use batzen_ledger::{BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter};
use batzen_service::Answer;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::{ErrorJson, LedgerApi, error, malformed, refused};
use crate::net::json::{EventJson, JsonError, Wide};

/// Interval at which the server polls the ledger while a reader waits.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Default wait of readers of server-sent events.
const WAIT_OF_STREAMS: Duration = Duration::from_secs(15);
/// Default number of events in an answer.
const LIMIT: u32 = 1_000;

/// Selects a part of the stream.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "describes a query string; it is read by name")]
struct EventParams {
    /// The last timestamp that the reader has processed. Default: `Last-Event-ID`, or the beginning.
    after: Option<String>,
    /// Inclusive; left out: open.
    timestamp_max: Option<String>,
    /// At most 8,189; left out: 1,000.
    limit: Option<u32>,
    /// Milliseconds to wait for the first event, at most 60,000; left out: 0, with server-sent events 15,000.
    timeout_ms: Option<u64>,
}

#[utoipa::path(
    get, path = "/v1/events",
    params(EventParams, ("Last-Event-ID" = Option<String>, Header, description = "As `after`")),
    responses(
        (status = 200, description = "Events in order; with `Accept: text/event-stream` as server-sent events", body = crate::net::json::EventJson, content_type = "application/x-ndjson"),
        (status = 400, description = "Ill-formed", body = ErrorJson),
    )
)]
/// Changes of balances, in order.
pub(super) async fn events(api: &LedgerApi, request: &mut Request) -> Answer {
    let is_stream = request.header("accept").is_some_and(|accept| accept.contains("text/event-stream"));
    let narrow = |name: &str, value: Wide| {
        u64::try_from(value.0).map_err(|_| malformed(&format!("{name} must be below 2^64")))
    };
    let after = match (request.query_opt::<Wide>("after")?, request.header("last-event-id")) {
        (Some(after), _) => narrow("after", after)?,
        (None, Some(text)) => {
            narrow("Last-Event-ID", text.parse().map_err(|error: JsonError| malformed(&error.to_string()))?)?
        }
        (None, None) => 0,
    };
    let timestamp_max =
        narrow("timestamp_max", request.query_opt::<Wide>("timestamp_max")?.unwrap_or_default())?;
    let limit = request.query_opt::<u32>("limit")?.unwrap_or(LIMIT);
    if limit == 0 || limit as usize > BATCH_EVENTS_MAX {
        return Err(malformed(&format!("limit must be from 1 to {BATCH_EVENTS_MAX}")));
    }
    let wait = request.query_opt("timeout_ms")?.map(Duration::from_millis);
    let wait = wait.unwrap_or(if is_stream { WAIT_OF_STREAMS } else { Duration::ZERO }).min(WAIT_MAX);
    let filter = ChangeFilter { timestamp_min: after.saturating_add(1), timestamp_max, limit };
    let deadline = Instant::now() + wait;
    let mut waiting = None;
    let events = loop {
        let events = api.ledger.get_change_events(filter).await.map_err(|error| refused(&error))?;
        if !events.is_empty() || Instant::now() >= deadline || request.drain.is_draining() {
            break events;
        }
        if waiting.is_none() {
            let busy = || error(503, "busy", "too many readers wait for events");
            waiting = Some(api.waiters.try_acquire().map_err(|_| busy())?);
            request.leave_slot();
        }
        request.drain.sleep(POLL.min(deadline.saturating_duration_since(Instant::now()))).await;
    };
    Ok(if is_stream { as_stream(&events) } else { as_lines(&events) })
}

fn as_lines(events: &[ChangeEvent]) -> Response {
    let mut body = Vec::new();
    for event in events {
        serde_json::to_writer(&mut body, &EventJson::from(event)).expect("strings and numbers only");
        body.push(b'\n');
    }
    Response::bytes(200, "application/x-ndjson", body)
}

/// `retry`: readers reconnect at once, because the server does the waiting.
fn as_stream(events: &[ChangeEvent]) -> Response {
    use std::io::Write;
    let mut body = b"retry: 10\n: the stream continues at Last-Event-ID\n\n".to_vec();
    for event in events {
        write!(body, "id: {}\nevent: {}\ndata: ", event.timestamp, event.kind.name())
            .expect("a vector grows");
        serde_json::to_writer(&mut body, &EventJson::from(event)).expect("strings and numbers only");
        body.extend_from_slice(b"\n\n");
    }
    Response::bytes(200, "text/event-stream", body)
        .with_header(batzen_http::header::CACHE_CONTROL, "no-store")
}
