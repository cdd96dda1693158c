//! Orders for the shop's own programs: `/private/orders` (merchant chapters 6.1 to 6.3).

use std::ops::Bound;
use std::sync::Arc;

use batzen_crypto::base32;
use batzen_crypto::hash::sha512;
use batzen_http::{Head, Request, Response};
use batzen_protocol::api::merchant::{
    ClaimedOrder, ContractExchange, ContractTerms, CreateOrderRequest, CreateOrderResponse, ForgetRequest,
    OrderList, OrderStatus, OrderSummary, OutOfStock, PaidOrder, UnpaidOrder,
};
use batzen_protocol::canonical::to_canonical;
use batzen_protocol::{ErrorCode, Money, PaytoUri, Timestamp};
use batzen_store::{Found, List, Store};
use batzen_tables::merchant::{OrderRow, Orders, order_ref, row_value};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::core::Core;
use super::openapi::{INTEGER, LIMIT, TEXT, YES_NO, YES_NO_ALL};
use super::table::{Rows, TEXTS_BYTES_MAX, endpoint};
use super::{
    Answer, Checked, FAILURES, LONG_POLL_MAX, Merchant, Shop, base_url, body, is_yes, poll_deadline,
    products, refunds, refused, status, tracking, yes_or_no,
};
use crate::BODY_BYTES_MAX;
use crate::contract::{self, BadOrder, Frame, is_order_id, random_order_id};
use crate::forget::forget_paths;
use crate::rules::{CreateOrder, DeleteOrder, Forget, Refusal};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("order");
    rows.post("/private/orders", endpoint!(Seller, create_order), "Create an order")
        .takes::<CreateOrderRequest>(BODY_BYTES_MAX)
        .gives::<CreateOrderResponse>()
        .answers::<OutOfStock>(410, "The stock does not suffice.");
    rows.get("/private/orders", endpoint!(Reader, list_orders), "List orders")
        .query("paid", YES_NO_ALL, "Only paid or unpaid ones.")
        .query("refunded", YES_NO_ALL, "Only ones with or without refunds.")
        .query("wired", YES_NO_ALL, "Only ones whose money has arrived or not.")
        .query("delta", LIMIT, "How many: the latest first if negative.")
        .query("start", INTEGER, "The row_id after which the list begins.")
        .query("date_s", INTEGER, "The earliest time, or the latest if delta is negative.")
        .polls()
        .gives::<OrderList>();
    rows.get("/private/orders/:order", endpoint!(Reader, show_order), "The state of an order")
        .query("session_id", TEXT, "Whether it was paid in this session.")
        .query("transfer", YES_NO, "Ask the exchanges for transfers first.")
        .polls()
        .gives::<OrderStatus<ContractTerms>>();
    rows.patch(
        "/private/orders/:order/forget",
        endpoint!(Owner, forget_fields),
        "Forget parts of a contract",
    )
    .takes::<ForgetRequest>(TEXTS_BYTES_MAX)
    .answers_empty(200, "Forgotten.")
    .answers_empty(204, "All were forgotten before.");
    rows.delete(
        "/private/orders/:order",
        endpoint!(Owner, delete_order),
        "Forget an order that was not paid",
    )
    .query("force", YES_NO, "Also if it could still be paid.")
    .gives_nothing();
    rows
}

/// Orders in a list, if the client does not say how many.
const LIST_DELTA: i64 = -20;
/// The maximum number of orders in a list. To get more, a client asks again from the last one.
const LIST_MAX: usize = 1_024;
/// Orders that are read at a time for a list with conditions.
const LIST_PAGE: usize = 1_024;
/// The maximum number of orders that are read for a list.
const LIST_READ_MAX: usize = 64 * LIST_PAGE;
/// Random bytes of a claim token.
const TOKEN_BYTES: usize = 16;

/// The orders that a list shows.
struct Wanted {
    paid: Option<bool>,
    refunded: Option<bool>,
    wired: Option<bool>,
    /// Created at this time or later, in an ascending list; at this time or earlier, in a descending one.
    limit: Option<Timestamp>,
    is_descending: bool,
}

impl Wanted {
    fn has(&self, row: &OrderRow) -> bool {
        let fits = |wanted: Option<bool>, is: bool| wanted.is_none_or(|wanted| wanted == is);
        let in_time = self.limit.is_none_or(|limit| match self.is_descending {
            true => row.created <= limit,
            false => row.created >= limit,
        });
        fits(self.paid, row.paid.is_some())
            && fits(self.refunded, !row.refund_approved.is_zero())
            && fits(self.wired, row.wired)
            && in_time
    }
}

/// The text of a member of a contract.
fn text(terms: &Value, name: &str) -> String {
    terms[name].as_str().unwrap_or_default().to_owned()
}

/// The terms of a stored contract: as a [`Value`] to look into, or as a [`RawValue`] to pass on.
pub(super) fn terms_of<'a, T: Deserialize<'a>>(row: &'a OrderRow) -> Checked<T> {
    let broken = |_| Response::error(ErrorCode::MERCHANT_GENERIC_DB_CONTRACT_CONTENT_INVALID, &row.order_id);
    serde_json::from_str(&row.terms).map_err(broken)
}

pub(super) fn token_of(row: &OrderRow) -> Option<String> {
    row.claim_token.map(|token| base32::encode(&token))
}

async fn create_order(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let created = make_order(app, &request.head, body(request)?, shop).await?;
    Ok(Response::json(200, &created))
}

pub(super) async fn make_order(
    app: &Merchant,
    head: &Head,
    mut wish: CreateOrderRequest,
    shop: &Shop,
) -> Checked<CreateOrderResponse> {
    shop.key()?;
    let refuse = |BadOrder(code, detail)| Response::error(code, &detail);
    let now = app.core.now();
    let order_id = match wish.order.get("order_id") {
        None => random_order_id(now, app.core.random()),
        Some(Value::String(id)) if is_order_id(id) => id.clone(),
        Some(_) => {
            let code = ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR;
            return Err(Response::error(code, "order_id: letters, digits and - . _ ~ : @ +"));
        }
    };
    let (h_wire, payto) = account_for(&app.core, shop, wish.payment_target.as_deref()).await?;
    let exchanges = app.exchanges.trusted();
    let frame = Frame {
        instance: &shop.row,
        base_url: &base_url(head, shop)?,
        payto: &payto,
        h_wire,
        exchanges: exchanges
            .map(|trusted| ContractExchange { url: trusted.url.clone(), master_pub: trusted.master_pub })
            .collect(),
        auditors: app.core.config.auditors.clone(),
        currency: app.core.config.currency,
        now,
    };
    let wanted = wish.inventory_products.as_deref().unwrap_or_default();
    let locks = wish.lock_uuids.as_deref().unwrap_or_default();
    let taken = products::taken(&app.core, shop, wanted, locks).await?;
    // A repetition is the same wish, whatever was added to it.
    let order = std::mem::take(&mut wish.order);
    let mut asked = json!(wish);
    asked["order"] = Value::Object(order);
    let h_request = to_canonical(&asked).map(|text| sha512(text.as_bytes())).map_err(|error| {
        refuse(BadOrder(ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR, error.to_string()))
    })?;
    let Value::Object(order) = asked["order"].take() else { unreachable!("it is an object") };
    let order = contract::with_products(order, taken.products, taken.minimum_age).map_err(refuse)?;
    let terms = contract::terms(order, wish.refund_delay, &order_id, &frame).map_err(refuse)?;
    let claim_token = wish.create_token.unwrap_or(true).then(|| app.core.random::<TOKEN_BYTES>());
    let typed = terms.typed;
    let money = |amount: batzen_protocol::Amount| amount.money_in(app.core.config.currency);
    let row = OrderRow {
        instance: shop.id.clone(),
        order_id: order_id.clone(),
        row_id: app.core.next_row_id(),
        created: Timestamp::from_secs(now.as_micros() / 1_000_000),
        claim_token,
        h_request,
        terms: terms.text,
        amount: money(typed.amount).expect("checked with the terms"),
        max_fee: money(typed.max_fee).expect("checked with the terms"),
        max_wire_fee: typed.max_wire_fee.and_then(|fee| money(fee).ok()).unwrap_or(Money::ZERO),
        wire_fee_amortization: typed
            .wire_fee_amortization
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(1),
        fulfillment_url: typed.fulfillment_url,
        pay_deadline: typed.pay_deadline,
        nonce: None,
        h_contract: None,
        paid: None,
        refund_approved: Money::ZERO,
        wired: false,
        products: List(taken.quantities.keys().cloned().collect()),
        quantities: List(taken.quantities.into_values().collect()),
        holds_stock: false,
    };
    let create = CreateOrder { order: order_ref(&shop.id, &order_id), row, locks: taken.locks };
    let again = (!create.row.products.0.is_empty()).then(|| create.clone());
    let mut verdict = app.core.execute(create).await?;
    if let (Err(Refusal::OutOfStock { .. }), Some(create)) = (&verdict, again) {
        products::release_stock(&app.core).await?;
        verdict = app.core.execute(create).await?;
    }
    match verdict {
        Ok(row) => {
            app.core.notices.lists.announce(std::slice::from_ref(&shop.id));
            Ok(CreateOrderResponse { order_id, token: token_of(&row) })
        }
        Err(refusal) => Err(products::out_of_stock(&app.core, shop, refusal, &order_id).await),
    }
}

/// The newest active account of a wire method, or of any: 404, code 2500.
async fn account_for(
    core: &Core,
    shop: &Shop,
    method: Option<&str>,
) -> Checked<(batzen_crypto::HashCode, PaytoUri)> {
    let accounts = core.accounts(&shop.id).await?;
    let mut usable = accounts.into_iter().filter(|(_, row)| row.active).filter_map(|(key, row)| {
        let payto = PaytoUri::parse(row.payto_uri).ok()?;
        method.is_none_or(|method| payto.method().eq_ignore_ascii_case(method)).then_some((key.h_wire, payto))
    });
    let none = ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_NO_WIRE_METHOD;
    usable.next().ok_or_else(|| Response::error(none, method.unwrap_or_default()))
}

async fn list_orders(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let delta = request.query_opt::<i64>("delta")?.unwrap_or(LIST_DELTA);
    let start = request.query_opt::<u64>("start")?;
    let time = match request.query_opt::<u64>("date_s")? {
        Some(seconds) => Some(Timestamp::from_secs(seconds)),
        None => request.query_opt::<u64>("date_ms")?.map(|ms| Timestamp::from_secs(ms / 1_000)),
    };
    let is_descending = delta < 0;
    let wanted = Wanted {
        paid: yes_or_no(request, "paid")?,
        refunded: yes_or_no(request, "refunded")?,
        wired: yes_or_no(request, "wired")?,
        limit: time,
        is_descending,
    };
    let limit = usize::try_from(delta.unsigned_abs()).unwrap_or(LIST_MAX).min(LIST_MAX);
    let timeout_ms = request.query_opt("timeout_ms")?;
    let deadline = poll_deadline(timeout_ms, LONG_POLL_MAX).filter(|_| !is_descending);
    // Registered before the first read, so that no order is missed in between.
    let poll = deadline.and_then(|_| app.core.notices.lists.poll(shop.id.clone()));
    let wanted = Arc::new(wanted);
    let read = || {
        let (instance, wanted) = (shop.id.clone(), Arc::clone(&wanted));
        app.core.read(move |store| page(store, &instance, start, limit, &wanted))
    };
    let mut rows = read().await?;
    if let (Some(poll), Some(deadline)) = (poll, deadline) {
        rows = poll.until(request, deadline, rows, |rows| !rows.is_empty(), read).await?;
    }
    let summary = |found: Found<Orders>| -> Checked<OrderSummary> {
        let terms: Value = terms_of(&found.row)?;
        let deadline = Timestamp::deserialize(&terms["refund_deadline"]).ok();
        let refundable = found.row.paid.is_some()
            && deadline.is_some_and(|deadline| app.core.now() < deadline)
            && found.row.refund_approved < found.row.amount;
        Ok(OrderSummary {
            summary: text(&terms, "summary"),
            order_id: found.row.order_id,
            row_id: found.row.row_id,
            timestamp: found.row.created,
            amount: app.core.amount(found.row.amount),
            refundable,
            paid: found.row.paid.is_some(),
        })
    };
    let orders = rows.into_iter().map(summary).collect::<Result<_, _>>()?;
    Ok(Response::json(200, &OrderList { orders }))
}

async fn show_order(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let session = request.query_text("session_id").map(str::to_owned);
    let deadline = poll_deadline(request.query_opt("timeout_ms")?, LONG_POLL_MAX);
    let (order, mut row) = app.core.order(shop, order_id).await?;
    row = status::wait_for_payment(&app.core, request, shop, order, row, deadline).await?;
    let is_paid = status::is_paid(&app.core, order, &row, session.as_deref()).await?;
    let base_url = base_url(&request.head, shop)?;
    let token = token_of(&row);
    let h_contract = row.h_contract.map(|hash| hash.to_string());
    let order_status_url = urls::status_url(
        &base_url,
        order_id,
        &[
            ("token", token.as_deref()),
            ("session_id", session.as_deref()),
            ("h_contract", h_contract.as_deref()),
        ],
    );
    let contract_terms: &RawValue = terms_of(&row)?;
    let status = if is_paid {
        let money = refunds::money_of(&app.core, order).await?;
        let asks_exchanges = is_yes(request, "transfer");
        let wire_reports = match asks_exchanges {
            true => tracking::track_order(app, request, shop, order, &row, &money).await?,
            false => Vec::new(),
        };
        let last = wire_reports.last();
        OrderStatus::Paid(Box::new(PaidOrder {
            refunded: !money.approved.is_zero(),
            refund_pending: money.is_pending(),
            wired: row.wired,
            deposit_total: app.core.amount(money.deposited()?),
            exchange_ec: last.map_or(0, |report| report.exchange_ec),
            exchange_hc: last.map_or(0, |report| report.exchange_hc),
            refund_amount: app.core.amount(money.approved),
            contract_terms,
            wire_details: tracking::wire_details(&app.core, order).await?,
            wire_reports,
            refund_details: refunds::refund_details(&app.core, &money)?,
            order_status_url,
        }))
    } else if row.nonce.is_some() {
        OrderStatus::Claimed(Box::new(ClaimedOrder { contract_terms, order_status_url }))
    } else {
        let session_id = session.as_deref().unwrap_or_default();
        let paid = status::already_paid(&app.core, &shop.id, &row, session.as_deref()).await?;
        OrderStatus::Unpaid(Box::new(UnpaidOrder {
            taler_pay_uri: urls::pay_uri(&base_url, order_id, session_id, token.as_deref()),
            order_status_url,
            creation_time: row.created,
            summary: text(&terms_of(&row)?, "summary"),
            total_amount: app.core.amount(row.amount),
            already_paid_fulfillment_url: paid.as_ref().and(row.fulfillment_url.clone()),
            already_paid_order_id: paid,
        }))
    };
    Ok(Response::json(200, &status))
}

/// Forgets members of a contract.
async fn forget_fields(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let ForgetRequest { fields } = body(request)?;
    let (order, row) = app.core.order(shop, order_id).await?;
    let terms = forget_paths(&row.terms, &fields).map_err(|(code, path)| Response::error(code, &path))?;
    let Some(terms) = terms else { return Ok(Response::empty(204)) };
    let verdict = app.core.execute(Forget { order, known: row.terms, terms }).await?;
    verdict.map_err(|refusal| match refusal {
        // A wallet has claimed the order meanwhile.
        Refusal::OrderChanged => FAILURES.try_later("the order has changed"),
        refusal => refused(&refusal, order_id),
    })?;
    Ok(Response::empty(200))
}

async fn delete_order(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let (order, row) = app.core.order(shop, order_id).await?;
    let force = is_yes(request, "force");
    let delete = DeleteOrder { order, instance: shop.id.clone(), products: row.products.0, force };
    app.core.decide(delete, order_id).await?;
    app.core.notices.order_changed(&order);
    Ok(Response::empty(204))
}

/// A part of an instance's orders.
fn page(
    store: &Store,
    instance: &String,
    start: Option<u64>,
    limit: usize,
    wanted: &Wanted,
) -> Result<Vec<Found<Orders>>, batzen_store::StoreError> {
    let bound = |row_id: u64| Bound::Excluded(row_value(instance, Some(row_id)));
    let (first, last) = (Bound::Included(row_value(instance, Some(0))), bound(u64::MAX));
    let mut from = start;
    let (mut rows, mut read) = (Vec::new(), 0);
    while rows.len() < limit && read < LIST_READ_MAX {
        let (low, high) = match (from, wanted.is_descending) {
            (None, _) => (first.clone(), last.clone()),
            (Some(row_id), false) => (bound(row_id), last.clone()),
            (Some(row_id), true) => (first.clone(), bound(row_id)),
        };
        let part: Vec<Found<Orders>> =
            store.range_bytes(Orders::BY_ROW, low, high, LIST_PAGE, wanted.is_descending)?;
        read += part.len();
        let is_last = part.len() < LIST_PAGE;
        from = part.last().map(|found| found.row.row_id);
        rows.extend(part.into_iter().filter(|found| wanted.has(&found.row)));
        if is_last {
            break;
        }
    }
    rows.truncate(limit);
    Ok(rows)
}
