//! `GET /keys`: the key set, prepared in advance.

use std::time::Duration;

use batzen_http::{Request, Response, header};
use batzen_protocol::{ErrorCode, Timestamp};

use super::{Table, endpoint, error, error_status};
use crate::app::Exchange;
use crate::keys::KeysAnswer;

/// Time that a request waits for keys.
const WAIT: Duration = Duration::from_secs(60);

pub(super) fn routes(table: Table) -> Table {
    table.get("/keys", "keys", endpoint!(get))
}

async fn get(app: &Exchange, request: &mut Request) -> Response {
    let since = match request.query_text("last_issue_date").map(str::parse::<u64>) {
        None => None,
        Some(Ok(secs)) => Some(Timestamp::from_secs(secs)),
        Some(Err(_)) => return error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "last_issue_date"),
    };
    let mut changes = app.keys.subscribe();
    if let Some(answer) = answer(app, request, since) {
        return answer;
    }
    request.leave_slot();
    let mut evicted = app.key_queue.join();
    let deadline = tokio::time::Instant::now() + WAIT;
    loop {
        tokio::select! {
            biased;
            () = request.drain.draining() => break,
            _ = &mut evicted => break,
            changed = changes.changed() => {
                if changed.is_err() {
                    break;
                }
                if let Some(answer) = answer(app, request, since) {
                    return answer;
                }
            }
            () = tokio::time::sleep_until(deadline) => break,
        }
    }
    error_status(ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING, 503, "")
}

fn answer(app: &Exchange, request: &Request, since: Option<Timestamp>) -> Option<Response> {
    let keys = app.keys();
    let answer = keys.keys_answer(since)?;
    Some(respond(&answer, request))
}

fn respond(answer: &KeysAnswer, request: &Request) -> Response {
    let known = request.has_version(&answer.etag);
    let response = if known {
        Response::empty(304).with_header(header::CONTENT_TYPE, "application/json")
    } else {
        Response::bytes(200, "application/json", answer.body.clone()).with_deflated(answer.deflated.clone())
    };
    let response = response
        .with_header(header::LAST_MODIFIED, &answer.last_modified)
        .with_header(header::VARY, "Accept-Encoding")
        .with_header(header::CACHE_CONTROL, "public,max-age=3600")
        .with_header(header::ETAG, &answer.etag);
    match &answer.expires {
        Some(expires) => response.with_header(header::EXPIRES, expires),
        None => response,
    }
}
