//! The state of an order for its customer: `GET orders/$ORDER_ID` (merchant chapter 2.6).

use std::sync::Arc;

use batzen_crypto::HashCode;
use batzen_http::{Head, HeaderName, Request, Response, header};
use batzen_protocol::api::merchant::{OrderDue, OrderPaid, OrderReorder};
use batzen_protocol::{Amount, ErrorCode};
use batzen_tables::merchant::{
    OrderKey, OrderRef, OrderRow, OrderSessionKey, OrderSessions, Orders, PaidSessionKey, PaidSessions,
    purchase_ref, session_ref,
};
use serde_json::Value;
use tokio::time::Instant;

use super::core::Core;
use super::openapi::{TEXT, YES_NO};
use super::orders::{terms_of, token_of};
use super::refunds::OrderMoney;
use super::table::{Rows, endpoint};
use super::wallets::is_token;
use super::{Answer, Checked, LONG_POLL_MAX, Merchant, Shop, base_url, is_yes, page, poll_deadline, refunds};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("status");
    rows.get(
        "/orders/:order",
        endpoint!(Anyone, order_status),
        "The state of an order for its customer: JSON, or a page for browsers",
    )
    .query("token", TEXT, "The claim token.")
    .query("h_contract", TEXT, "The contract's hash.")
    .query("session_id", TEXT, "The browser's session.")
    .polls()
    .query("refund", TEXT, "Wait until more than this amount was approved.")
    .query("await_refund_obtained", YES_NO, "Wait until the wallet has got all that was approved.")
    .answers::<OrderPaid>(200, "It is paid.")
    .answers::<OrderReorder>(202, "Somebody else's; says where to buy the same.")
    .answers_empty(302, "To what was bought, or to where it can be bought.")
    .answers::<OrderDue>(402, "It is not paid.");
    rows
}

/// Tells wallets in browsers what to open.
pub(super) const TALER: HeaderName = HeaderName::from_static("taler");

/// Returns whether a browser asks.
pub(super) fn wants_page(head: &Head) -> bool {
    head.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html"))
}

fn redirect(url: &str) -> Response {
    Response::empty(302).with_header(header::LOCATION, url)
}

async fn order_status(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let is_page = wants_page(&request.head);
    let session = request.query_text("session_id").map(str::to_owned);
    let found = app.core.find_order(shop, order_id).await?;
    let Some((order, row)) = found else {
        return Err(match is_page {
            true => page::message(404, "There is no such order."),
            false => Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, order_id),
        });
    };
    if !may_see(request, &row)? {
        let terms: Value = terms_of(&row)?;
        return match terms["public_reorder_url"].as_str() {
            Some(url) if is_page => Ok(redirect(url)),
            Some(url) => Ok(Response::json(202, &OrderReorder { public_reorder_url: url.to_owned() })),
            None => Err(Response::error(ErrorCode::MERCHANT_GET_ORDERS_ID_INVALID_TOKEN, order_id)),
        };
    }
    let deadline = poll_deadline(request.query_opt("timeout_ms")?, LONG_POLL_MAX).filter(|_| !is_page);
    if !is_paid(&app.core, order, &row, session.as_deref()).await?
        && let Some(already) = already_paid(&app.core, &shop.id, &row, session.as_deref()).await?
    {
        return due(&app.core, &request.head, shop, &row, session.as_deref(), Some(already), is_page);
    }
    let row = wait_for_payment(&app.core, request, shop, order, row, deadline).await?;
    if !is_paid(&app.core, order, &row, session.as_deref()).await? {
        return due(&app.core, &request.head, shop, &row, session.as_deref(), None, is_page);
    }
    let money = wait_for_refund(&app.core, request, order, deadline).await?;
    if is_page {
        let summary = terms_of::<Value>(&row)?["summary"].as_str().unwrap_or_default().to_owned();
        if money.is_pending() {
            let uri = urls::refund_uri(&base_url(&request.head, shop)?, order_id);
            let amount = app.core.amount(money.approved).to_string();
            return Ok(page::refund(&summary, &amount, &uri).with_header(TALER, &uri));
        }
        return Ok(page::paid(&summary, row.fulfillment_url.as_deref()));
    }
    let paid = OrderPaid {
        refunded: !money.approved.is_zero(),
        refund_pending: money.is_pending(),
        refund_amount: app.core.amount(money.approved),
        refund_taken: app.core.amount(money.taken),
        fulfillment_url: row.fulfillment_url,
    };
    Ok(Response::json(200, &paid))
}

/// Waits for what the request asks for: that more than an amount was approved, or that the wallet has got all
/// that was approved. Returns the money at that moment, or at the deadline.
async fn wait_for_refund(
    core: &Core,
    request: &mut Request,
    order: OrderRef,
    deadline: Option<Instant>,
) -> Checked<OrderMoney> {
    let beyond = request.query_opt::<Amount>("refund")?;
    let beyond = beyond.map(|amount| core.money(&amount, "refund")).transpose()?;
    let is_obtained_wanted = is_yes(request, "await_refund_obtained");
    // Nothing approved is not obtained: the wallet of an order with `auto_refund` would ask without a pause.
    let is_over = |money: &OrderMoney| {
        beyond.is_none_or(|beyond| beyond < money.approved)
            && (!is_obtained_wanted || (!money.approved.is_zero() && !money.is_pending()))
    };
    let poll = deadline.and_then(|_| core.notices.poll_order(&order));
    let read = || refunds::money_of(core, order);
    let money = read().await?;
    match (poll, deadline) {
        (Some(poll), Some(deadline)) => poll.until(request, deadline, money, is_over, read).await,
        _ => Ok(money),
    }
}

/// The answer about an order that is not paid, or not in this session.
fn due(
    core: &Core,
    head: &Head,
    shop: &Shop,
    row: &OrderRow,
    session: Option<&str>,
    already_paid_order_id: Option<String>,
    is_page: bool,
) -> Answer {
    if let (true, Some(_), Some(url)) = (is_page, &already_paid_order_id, &row.fulfillment_url) {
        return Ok(redirect(url));
    }
    let base_url = base_url(head, shop)?;
    let token = token_of(row);
    let taler_pay_uri =
        urls::pay_uri(&base_url, &row.order_id, session.unwrap_or_default(), token.as_deref());
    if is_page {
        let summary = terms_of::<Value>(row)?["summary"].as_str().unwrap_or_default().to_owned();
        let amount = core.amount(row.amount).to_string();
        return Ok(page::due(&summary, &amount, &taler_pay_uri).with_header(TALER, &taler_pay_uri));
    }
    let fulfillment_url = row.fulfillment_url.clone();
    Ok(Response::json(402, &OrderDue { taler_pay_uri, fulfillment_url, already_paid_order_id }))
}

/// Returns whether an order is paid, and in this session if one is named.
pub(super) async fn is_paid(
    core: &Core,
    order: OrderRef,
    row: &OrderRow,
    session: Option<&str>,
) -> Checked<bool> {
    let Some(session) = session.filter(|session| !session.is_empty()) else {
        return Ok(row.paid.is_some());
    };
    if row.paid.is_none() {
        return Ok(false);
    }
    let key = OrderSessionKey { order, session: session_ref(session) };
    Ok(core.read(move |store| store.get::<OrderSessions>(&key)).await?.is_some())
}

/// Another order by which this session bought the same.
pub(super) async fn already_paid(
    core: &Core,
    instance: &str,
    row: &OrderRow,
    session: Option<&str>,
) -> Checked<Option<String>> {
    let (Some(session), Some(url)) = (session, &row.fulfillment_url) else { return Ok(None) };
    let key = PaidSessionKey { purchase: purchase_ref(instance, session, url) };
    let found = core.read(move |store| store.get::<PaidSessions>(&key)).await?;
    Ok(found.map(|found| found.row.order_id).filter(|other| *other != row.order_id))
}

/// Waits until an order is paid, or paid in another session, or the deadline. Returns its row at that moment.
pub(super) async fn wait_for_payment(
    core: &Core,
    request: &mut Request,
    shop: &Shop,
    order: OrderRef,
    row: OrderRow,
    deadline: Option<Instant>,
) -> Checked<OrderRow> {
    let session = request.query_text("session_id").map(str::to_owned);
    let Some(deadline) = deadline else { return Ok(row) };
    let Some(poll) = core.notices.poll_order(&order) else { return Ok(row) };
    let (session, order_id) = (session.as_deref(), row.order_id);
    let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, &order_id);
    let read = || async {
        let found = core.read(move |store| store.get::<Orders>(&OrderKey { order })).await?;
        let row = found.ok_or_else(unknown)?.row;
        let is_over = is_paid(core, order, &row, session).await?
            || already_paid(core, &shop.id, &row, session).await?.is_some();
        Ok::<_, Response>((row, is_over))
    };
    // Read again, now that a payment wakes the poll.
    let found = read().await?;
    let (row, _) = poll.until(request, deadline, found, |(_, is_over)| *is_over, read).await?;
    Ok(row)
}

/// Returns whether the request proves that it comes from the customer: by the claim token or the contract's
/// hash. Wrong proofs are refused.
fn may_see(request: &Request, row: &OrderRow) -> Checked<bool> {
    let h_contract = request.query_opt::<HashCode>("h_contract")?;
    if h_contract.is_some() && h_contract != row.h_contract {
        let code = ErrorCode::MERCHANT_GET_ORDERS_ID_INVALID_CONTRACT_HASH;
        return Err(Response::error(code, &row.order_id));
    }
    if let Some(token) = request.query_text("token") {
        if row.claim_token.is_none_or(|expected| !is_token(token, &expected)) {
            return Err(Response::error(ErrorCode::MERCHANT_GET_ORDERS_ID_INVALID_TOKEN, &row.order_id));
        }
        return Ok(true);
    }
    Ok(h_contract.is_some() || row.claim_token.is_none())
}
