//! `GET /reserves/$RESERVE_PUB`, and `POST …/status` and `…/history`: what a reserve holds, and why.

use std::sync::Arc;

use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{ReserveBalance, ReserveRequest, ReserveStatus};
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::{WalletReserveHistory, WalletReserveStatus};
use batzen_protocol::{Duration, ErrorCode, Money, Timestamp};
use batzen_service::poll_deadline;

use super::LONG_POLL_MAX;
use super::check::Checked;
use super::histories::{self, reserve_items};
use super::response::{self, DenomOperation};
use super::signing;
use super::{FAILURES, Table, body, endpoint, error, path_value};
use crate::app::Exchange;
use crate::history::balance_of;
use crate::notices::tag;
use crate::reads::read;
use crate::rules::{ReserveHistory, ReserveHistoryItem};

/// Maximum difference between a request's time and ours.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);
/// Time that the free status goes back.
const RECENT: Duration = Duration::from_days(5 * 7);

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/reserves/:reserve_pub", "reserve", endpoint!(balance))
        .post("/reserves/:reserve_pub/status", SMALL_BODY_BYTES_MAX, "reserve", endpoint!(status))
        .post("/reserves/:reserve_pub/history", SMALL_BODY_BYTES_MAX, "reserve", endpoint!(history))
}

async fn balance(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let deadline = poll_deadline(request.query_opt("timeout_ms")?, LONG_POLL_MAX);
    let find = || async move {
        app.core.read(move |store| read::reserve(store, reserve_pub)).await.map_err(response::store)
    };
    // Registered before the look-up, so that no credit is missed in between.
    let poll = deadline.and_then(|_| app.core.notices.reserves.poll(tag(&reserve_pub)));
    let mut found = find().await?;
    if let (Some(poll), Some(deadline)) = (poll, deadline) {
        found = poll.until(request, deadline, found, Option::is_some, find).await?;
    }
    answer_balance(app, found)
}

fn answer_balance(app: &Exchange, reserve: Option<batzen_tables::exchange::ReserveRow>) -> Checked<Response> {
    match reserve {
        Some(row) => {
            Ok(Response::json(200, &ReserveBalance { balance: row.balance.of(app.core.config.currency) }))
        }
        None => Err(error(ErrorCode::EXCHANGE_RESERVES_STATUS_UNKNOWN, "")),
    }
}

/// Checks that a request's time is near ours.
///
/// # Errors
/// 400 if it is not.
pub(crate) fn check_clock(app: &Exchange, request_time: Timestamp) -> Checked<()> {
    let now = app.core.now();
    let skew = now.saturating_since(request_time).max(request_time.saturating_since(now));
    if skew > CLOCK_SKEW_MAX { Err(error(ErrorCode::EXCHANGE_GENERIC_CLOCK_SKEW, "")) } else { Ok(()) }
}

async fn status(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let body: ReserveRequest = body(request)?;
    check_clock(app, body.request_timestamp)?;
    let message = WalletReserveStatus { request_timestamp: body.request_timestamp };
    if !signing::is_signed(app, reserve_pub, &message, body.reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_STATUS_BAD_SIGNATURE, ""));
    }
    let since = app.core.now().saturating_sub(RECENT);
    statement(app, reserve_pub, Some(since)).await
}

async fn history(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let body: ReserveRequest = body(request)?;
    check_clock(app, body.request_timestamp)?;
    let keys = app.keys();
    let Some((_, fees)) = keys.global_fee(body.request_timestamp) else {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "no global fees for that time"));
    };
    let fee = fees.history_fee;
    let message = WalletReserveHistory {
        request_timestamp: body.request_timestamp,
        history_fee: fee.of(app.core.config.currency),
    };
    if !signing::is_signed(app, reserve_pub, &message, body.reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_HISTORY_BAD_SIGNATURE, ""));
    }
    let command = ReserveHistory {
        reserve_pub,
        request_time: body.request_timestamp,
        fee,
        reserve_sig: body.reserve_sig,
    };
    app.decide(&keys, DenomOperation::History, command, false).await?;
    statement(app, reserve_pub, None).await
}

/// Number of times that a statement is read again because something changed in between.
const READS_MAX: u32 = 16;

/// Balance and history. A whole history adds up to the balance; both are read again when something changed in
/// between.
async fn statement(
    app: &Exchange,
    reserve_pub: batzen_tables::exchange::ReservePub,
    since: Option<Timestamp>,
) -> Checked<Response> {
    let (keys, denoms) = (app.keys(), Arc::clone(&app.core.rules.denoms));
    let reading = histories::read(app, reserve_pub.as_bytes(), move |store| {
        for _ in 0..READS_MAX {
            let Some(statement) = read::reserve_statement(store, &denoms, reserve_pub, since)? else {
                let unknown = error(ErrorCode::EXCHANGE_RESERVES_STATUS_UNKNOWN, "");
                return Ok((Err(unknown), 0));
            };
            let effects = statement.items.iter().map(ReserveHistoryItem::effect);
            if since.is_some() || balance_of(Money::ZERO, effects) == Some(statement.balance) {
                let events = statement.events;
                return Ok((Ok(statement), events));
            }
        }
        Ok((Err(FAILURES.busy()), 0))
    });
    let statement = reading.await??;
    let (currency, known) = (app.core.config.currency, Arc::clone(&keys));
    let events = statement.items.len();
    histories::with_history(app, &keys, reserve_pub.as_bytes(), events, move |proofs| {
        let history = reserve_items(currency, &known, reserve_pub, &statement.items, proofs)?;
        Ok(Response::json(200, &ReserveStatus { balance: statement.balance.of(currency), history }))
    })
    .await
}
