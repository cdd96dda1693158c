//! The state of an order for its customer: `GET orders/$ORDER_ID` (merchant chapter 2.6).

use batzen_crypto::HashCode;
use batzen_http::{Head, HeaderName, Request, Response, header};
use batzen_protocol::api::merchant::{OrderDue, OrderPaid, OrderReorder};
use batzen_protocol::{Amount, ErrorCode};
use batzen_store::Store;
use batzen_tables::merchant::{
    OrderKey, OrderRef, OrderRow, OrderSessionKey, OrderSessions, Orders, PaidSessionKey, PaidSessions,
    purchase_ref, session_ref,
};
use serde_json::Value;
use tokio::time::Instant;

use super::orders::{terms_of, token_of};
use super::refunds::OrderMoney;
use super::wallets::is_token;
use super::{Answer, Service, Shop, page, poll_deadline};
use crate::urls;

/// Tells wallets in browsers what to open.
pub(super) const TALER: HeaderName = HeaderName::from_static("taler");

/// Whether a browser asks.
pub(super) fn wants_page(head: &Head) -> bool {
    head.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html"))
}

fn redirect(url: &str) -> Response {
    Response::empty(302).with_header(header::LOCATION, url)
}

impl Service {
    pub(super) async fn order_status(&self, mut request: Request, shop: &Shop, order_id: &str) -> Answer {
        let is_page = wants_page(&request.head);
        let session = request.query_text("session_id").map(str::to_owned);
        let found = self.find_order(shop, order_id).await?;
        let Some((order, row)) = found else {
            return Err(match is_page {
                true => page::message(404, "There is no such order."),
                false => Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, order_id),
            });
        };
        if !may_see(&request, &row)? {
            let terms: Value = terms_of(&row)?;
            return match terms["public_reorder_url"].as_str() {
                Some(url) if is_page => Ok(redirect(url)),
                Some(url) => Ok(Response::json(202, &OrderReorder { public_reorder_url: url.to_owned() })),
                None => Err(Response::error(ErrorCode::MERCHANT_GET_ORDERS_ID_INVALID_TOKEN, order_id)),
            };
        }
        let deadline = poll_deadline(request.query_opt("timeout_ms")?).filter(|_| !is_page);
        if !self.is_paid(order, &row, session.as_deref()).await?
            && let Some(already) = self.already_paid(&shop.id, &row, session.as_deref()).await?
        {
            return self.due(&request.head, shop, &row, session.as_deref(), Some(already), is_page);
        }
        let row = self.wait_for_payment(&mut request, shop, order, row, deadline).await?;
        if !self.is_paid(order, &row, session.as_deref()).await? {
            return self.due(&request.head, shop, &row, session.as_deref(), None, is_page);
        }
        let money = self.wait_for_refund(&mut request, order, deadline).await?;
        if is_page {
            let summary = terms_of::<Value>(&row)?["summary"].as_str().unwrap_or_default().to_owned();
            if money.is_pending() {
                let uri = urls::refund_uri(&Self::base_url(&request.head, shop)?, order_id);
                let amount = self.amount(money.approved).to_string();
                return Ok(page::refund(&summary, &amount, &uri).with_header(TALER, &uri));
            }
            return Ok(page::paid(&summary, row.fulfillment_url.as_deref()));
        }
        let paid = OrderPaid {
            refunded: !money.approved.is_zero(),
            refund_pending: money.is_pending(),
            refund_amount: self.amount(money.approved),
            refund_taken: self.amount(money.taken),
            fulfillment_url: row.fulfillment_url,
        };
        Ok(Response::json(200, &paid))
    }

    /// Waits for what the request asks for: that more than an amount was approved, or that the wallet has got all
    /// that was approved. Returns the money at that moment, or at the deadline.
    async fn wait_for_refund(
        &self,
        request: &mut Request,
        order: OrderRef,
        deadline: Option<Instant>,
    ) -> Result<OrderMoney, Response> {
        let beyond = request.query_opt::<Amount>("refund")?;
        let other = |_| Response::error(ErrorCode::GENERIC_CURRENCY_MISMATCH, "refund");
        let beyond = beyond.map(|amount| amount.money_in(self.config.currency).map_err(other)).transpose()?;
        let is_obtained_wanted =
            request.query_text("await_refund_obtained").is_some_and(|text| text.eq_ignore_ascii_case("yes"));
        // Nothing approved is not obtained: the wallet of an order with `auto_refund` would ask without a pause.
        let is_over = |money: &OrderMoney| {
            beyond.is_none_or(|beyond| beyond < money.approved)
                && (!is_obtained_wanted || (!money.approved.is_zero() && !money.is_pending()))
        };
        let mut waiter = deadline.and_then(|_| self.notices.poll_order(&order).ok());
        loop {
            let money = self.money_of(order).await?;
            let (false, Some(waiter), Some(deadline)) = (is_over(&money), waiter.as_mut(), deadline) else {
                return Ok(money);
            };
            request.leave_slot();
            if !self.notices.wait(waiter, deadline, &request.drain).await {
                return self.money_of(order).await;
            }
        }
    }

    /// The answer about an order that is not paid, or not in this session.
    fn due(
        &self,
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
        let base_url = Self::base_url(head, shop)?;
        let token = token_of(row);
        let taler_pay_uri =
            urls::pay_uri(&base_url, &row.order_id, session.unwrap_or_default(), token.as_deref());
        if is_page {
            let summary = terms_of::<Value>(row)?["summary"].as_str().unwrap_or_default().to_owned();
            let amount = self.amount(row.amount).to_string();
            return Ok(page::due(&summary, &amount, &taler_pay_uri).with_header(TALER, &taler_pay_uri));
        }
        let fulfillment_url = row.fulfillment_url.clone();
        Ok(Response::json(402, &OrderDue { taler_pay_uri, fulfillment_url, already_paid_order_id }))
    }

    /// Whether an order is paid, and in this session if one is named.
    pub(super) async fn is_paid(
        &self,
        order: OrderRef,
        row: &OrderRow,
        session: Option<&str>,
    ) -> Result<bool, Response> {
        let Some(session) = session.filter(|session| !session.is_empty()) else {
            return Ok(row.paid.is_some());
        };
        if row.paid.is_none() {
            return Ok(false);
        }
        let key = OrderSessionKey { order, session: session_ref(session) };
        Ok(self.read(move |store| store.get::<OrderSessions>(&key)).await?.is_some())
    }

    /// Another order by which this session bought the same.
    pub(super) async fn already_paid(
        &self,
        instance: &str,
        row: &OrderRow,
        session: Option<&str>,
    ) -> Result<Option<String>, Response> {
        let (Some(session), Some(url)) = (session, &row.fulfillment_url) else { return Ok(None) };
        let key = PaidSessionKey { purchase: purchase_ref(instance, session, url) };
        let found = self.read(move |store| store.get::<PaidSessions>(&key)).await?;
        Ok(found.map(|found| found.row.order_id).filter(|other| *other != row.order_id))
    }

    /// Waits until an order is paid, or paid in another session, or the deadline. Returns its row at that moment.
    pub(super) async fn wait_for_payment(
        &self,
        request: &mut Request,
        shop: &Shop,
        order: OrderRef,
        row: OrderRow,
        deadline: Option<Instant>,
    ) -> Result<OrderRow, Response> {
        let session = request.query_text("session_id").map(str::to_owned);
        let Some(deadline) = deadline else { return Ok(row) };
        let Ok(mut waiter) = self.notices.poll_order(&order) else { return Ok(row) };
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, &row.order_id);
        loop {
            // Read again, now that a payment wakes the poll.
            let read = move |store: &Store| store.get::<Orders>(&OrderKey { order });
            let now = self.read(read).await?.ok_or_else(unknown)?.row;
            if self.is_paid(order, &now, session.as_deref()).await?
                || self.already_paid(&shop.id, &now, session.as_deref()).await?.is_some()
            {
                return Ok(now);
            }
            request.leave_slot();
            if !self.notices.wait(&mut waiter, deadline, &request.drain).await {
                return Ok(now);
            }
        }
    }
}

/// Whether the request proves that it comes from the customer: by the claim token or the contract's hash. Wrong
/// proofs are refused.
fn may_see(request: &Request, row: &OrderRow) -> Result<bool, Response> {
    let h_contract = match request.query_text("h_contract") {
        None => None,
        Some(text) => Some(
            text.parse::<HashCode>()
                .map_err(|_| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "h_contract"))?,
        ),
    };
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
