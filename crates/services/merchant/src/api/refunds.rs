//! Refunds: the shop approves them, the wallet picks them up, and gives up payments (merchant chapters 2.5, 2.7 and
//! 6.4). The exchange gives the coins their value back when the wallet asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::ClientError;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{RefundConfirmation, RefundRequest};
use batzen_protocol::api::merchant::{
    AbortCoin, AbortRequest, AbortResponse, ApproveRefundRequest, ApproveRefundResponse, ContractTerms,
    PickUpRefundRequest, PickUpRefundResponse, RefundDetail, RefundEntry, RefundResult,
};
use batzen_protocol::limits::PAY_COINS_MAX;
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantRefund, SignedMessage};
use batzen_protocol::{AmountError, ErrorCode, Money};
use batzen_store::Store;
use batzen_tables::merchant::{
    OrderDepositKey, OrderDepositRow, OrderDeposits, OrderKey, OrderRef, OrderRefundKey, OrderRefundRow,
    OrderRefunds, OrderRow, PaymentClaims,
};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use super::core::Core;
use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::webhooks::Event;
use super::{Answer, Checked, Merchant, Shop, base_url, body, malformed, refused, webhooks};
use crate::BODY_BYTES_MAX;
use crate::exchanges::{ExchangeError, is_base_url};
use crate::rules::{ABORTED, Abort, ApproveRefund, Coins, RecordRefund, Refusal};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("refund");
    rows.post("/private/orders/:order/refund", endpoint!(Seller, approve_refund), "Approve a refund")
        .takes::<ApproveRefundRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<ApproveRefundResponse>();
    rows.post("/orders/:order/refund", endpoint!(Anyone, pick_up_refund), "A wallet picks up refunds")
        .takes::<PickUpRefundRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<PickUpRefundResponse>();
    rows.post("/orders/:order/abort", endpoint!(Anyone, abort_payment), "A wallet gives up a payment")
        .takes::<AbortRequest>(BODY_BYTES_MAX)
        .gives::<AbortResponse>();
    rows
}

/// Refunds of an order that are under way at the same time.
const REFUNDS_AT_ONCE: usize = 16;
/// The longest reason of a refund, in bytes.
const REASON_BYTES_MAX: usize = 2_048;
/// The longest answer of an exchange that the wallet gets to see, in bytes: it may be one of a thousand.
const SHOWN_BYTES_MAX: usize = 16 << 10;
/// The status shown for an exchange that did not answer.
const NO_ANSWER: u16 = 502;

type Refund = (OrderRefundKey, OrderRefundRow);

/// The money of an order.
pub(super) struct OrderMoney {
    pub(crate) deposits: Vec<(OrderDepositKey, OrderDepositRow)>,
    pub(crate) refunds: Vec<Refund>,
    /// The sum that the shop has approved.
    pub(crate) approved: Money,
    /// The part of it that the wallet has got.
    pub(crate) taken: Money,
    /// The sum refunded of the coins, aborted payments included.
    pub(crate) refunded: Money,
}

impl OrderMoney {
    /// The refunds that the shop has approved, without payments that were given up.
    pub(super) fn approvals(&self) -> impl Iterator<Item = &Refund> {
        self.refunds.iter().filter(|(key, _)| key.rtransaction_id != ABORTED)
    }

    /// The sum that the coins paid, less their deposit fees.
    pub(super) fn deposited(&self) -> Checked<Money> {
        let sums = self.deposits.iter().map(|(_, row)| row.amount.checked_sub(row.deposit_fee));
        let sums: Vec<Money> = sums.map(|sum| sum.unwrap_or(Money::ZERO)).collect();
        Money::checked_sum(sums).map_err(overflow)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.taken < self.approved
    }
}

/// A refund that an exchange is to make.
pub(super) struct Wanted {
    pub(super) key: OrderRefundKey,
    pub(super) exchange_url: String,
    pub(super) amount: Money,
}

fn overflow(_: AmountError) -> Response {
    Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW, "")
}

fn failed(code: ErrorCode) -> RefundResult {
    RefundResult::Failure {
        exchange_status: NO_ANSWER,
        exchange_code: Some(code.to_u32()),
        exchange_reply: None,
    }
}

/// The sums that an order got and gave back.
pub(super) async fn money_of(core: &Core, order: OrderRef) -> Checked<OrderMoney> {
    let read = move |store: &Store| {
        let deposits = store.lookup::<OrderDeposits>(OrderDeposits::BY_ORDER, &order)?;
        Ok((deposits, store.lookup::<OrderRefunds>(OrderRefunds::BY_ORDER, &order)?))
    };
    let (deposits, refunds) = core.read(read).await?;
    let deposits: Vec<_> = deposits.into_iter().map(|found| (found.key, found.row)).collect();
    let mut refunds: Vec<Refund> = refunds.into_iter().map(|found| (found.key, found.row)).collect();
    refunds.sort_by_key(|(key, row)| (row.time, key.coin_pub, key.rtransaction_id));
    let all = (deposits.iter().map(|(key, row)| (key, row)), refunds.iter().map(|(key, row)| (key, row)));
    let Coins { refunded, approved, .. } = Coins::new(all.0, all.1).map_err(overflow)?;
    let mut money = OrderMoney { deposits, refunds, approved, taken: Money::ZERO, refunded };
    let taken = money.approvals().filter(|(_, row)| row.exchange_sig.is_some());
    money.taken = Money::checked_sum(taken.map(|(_, row)| row.amount)).map_err(overflow)?;
    Ok(money)
}

/// The steps of an order's refunds: what was approved at the same time is one.
pub(super) fn refund_details(core: &Core, money: &OrderMoney) -> Checked<Vec<RefundDetail>> {
    let mut details: Vec<RefundDetail> = Vec::new();
    for (_, row) in money.approvals() {
        let pending = row.exchange_sig.is_none();
        match details.last_mut().filter(|last| last.timestamp == row.time && last.reason == row.reason) {
            Some(last) => {
                let sum = last.amount.money.checked_add(row.amount).map_err(overflow)?;
                last.amount = core.amount(sum);
                last.pending |= pending;
            }
            None => details.push(RefundDetail {
                reason: row.reason.clone(),
                timestamp: row.time,
                pending,
                amount: core.amount(row.amount),
            }),
        }
    }
    Ok(details)
}

/// The terms of a contract that was claimed.
pub(super) fn contract_terms(row: &OrderRow) -> Checked<ContractTerms> {
    let broken = |_| Response::error(ErrorCode::MERCHANT_GENERIC_DB_CONTRACT_CONTENT_INVALID, &row.order_id);
    serde_json::from_str(&row.terms).map_err(broken)
}

async fn approve_refund(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let ApproveRefundRequest { refund, reason } = body(request)?;
    if reason.len() > REASON_BYTES_MAX {
        return Err(malformed("reason"));
    }
    let total = app.core.money(&refund, "refund")?;
    shop.key()?;
    let (order, row) = app.core.order(shop, order_id).await?;
    let unpaid = || Response::error(ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_ORDER_UNPAID, order_id);
    let h_contract = row.h_contract.ok_or_else(unpaid)?;
    let terms = contract_terms(&row)?;
    let (since, until) = (terms.timestamp, terms.refund_deadline);
    let event = Event::Refund { total: refund, reason: &reason };
    let hooks = webhooks::hooks(&app.core, shop, &row, &event).await?;
    match app.core.execute(ApproveRefund { order, total, reason, since, until, hooks }).await? {
        Ok(()) => {}
        Err(Refusal::Unpaid) => return Err(unpaid()),
        Err(refusal) => return Err(refused(&refusal, order_id)),
    }
    app.core.notices.webhooks.announce_here(&[]);
    app.core.notices.order_changed(&order);
    let taler_refund_uri = urls::refund_uri(&base_url(&request.head, shop)?, order_id);
    Ok(Response::json(200, &ApproveRefundResponse { taler_refund_uri, h_contract }))
}

/// Asks the exchanges for what the wallet has not got, and passes their answers on.
async fn pick_up_refund(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let PickUpRefundRequest { h_contract } = body(request)?;
    let (order, row) = app.core.order(shop, order_id).await?;
    if row.h_contract != Some(h_contract) {
        let code = ErrorCode::MERCHANT_GENERIC_CONTRACT_HASH_DOES_NOT_MATCH_ORDER;
        return Err(Response::error(code, order_id));
    }
    let key = shop.key()?;
    let money = money_of(&app.core, order).await?;
    request.leave_slot();
    let approvals: Vec<Refund> = money.approvals().cloned().collect();
    let (key, all) = (&key, &money);
    let approvals = approvals.into_iter().map(|approval| refund(app, shop, key, h_contract, approval, all));
    // All at once would open too many connections, and the wallet shows them in the order of approval.
    let refunds: Vec<RefundEntry> = stream::iter(approvals).buffered(REFUNDS_AT_ONCE).collect().await;
    app.core.notices.order_changed(&order);
    Ok(Response::json(
        200,
        &PickUpRefundResponse {
            refund_amount: app.core.amount(money.approved),
            refunds,
            merchant_pub: shop.row.merchant_pub,
            h_contract,
        },
    ))
}

async fn refund(
    app: &Merchant,
    shop: &Shop,
    key: &EddsaPrivateKey,
    h_contract: HashCode,
    (refund, row): Refund,
    money: &OrderMoney,
) -> RefundEntry {
    let deposit = money.deposits.iter().find(|(deposit, _)| deposit.coin_pub == refund.coin_pub);
    let result = match (confirmed(&row), deposit) {
        (Some(confirmed), _) => confirmed,
        (None, Some((_, deposit))) => {
            let exchange_url = deposit.exchange_url.clone();
            let wanted = Wanted { key: refund.clone(), exchange_url, amount: row.amount };
            ask_exchange(app, shop, key, h_contract, &wanted).await
        }
        (None, None) => failed(ErrorCode::GENERIC_DB_INVARIANT_FAILURE),
    };
    RefundEntry {
        result,
        rtransaction_id: refund.rtransaction_id,
        coin_pub: refund.coin_pub,
        refund_amount: app.core.amount(row.amount),
        execution_time: row.time,
    }
}

async fn abort_payment(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let AbortRequest { h_contract, coins } = body(request)?;
    let unknown = || Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_ABORT_CONTRACT_NOT_FOUND, order_id);
    let (order, row) = app.core.find_order(shop, order_id).await?.ok_or_else(unknown)?;
    let known = row.h_contract.ok_or_else(unknown)?;
    if known != h_contract {
        let code = ErrorCode::MERCHANT_POST_ORDERS_ID_ABORT_CONTRACT_HASH_MISMATCH;
        return Err(Response::error(code, order_id));
    }
    if coins.is_empty() {
        let code = ErrorCode::MERCHANT_POST_ORDERS_ID_ABORT_COINS_ARRAY_EMPTY;
        return Err(Response::error(code, order_id));
    }
    let distinct: BTreeSet<EddsaPublicKey> = coins.iter().map(|coin| coin.coin_pub).collect();
    if coins.len() > PAY_COINS_MAX || distinct.len() != coins.len() {
        return Err(malformed("coins"));
    }
    let are_few = app.exchanges.are_few(coins.iter().map(|coin| &*coin.exchange_url));
    if !are_few || !coins.iter().all(|coin| is_base_url(&coin.exchange_url)) {
        return Err(malformed("exchange_url"));
    }
    let amount = |coin: &AbortCoin| app.core.money(&coin.contribution, "contribution");
    let given: Checked<Vec<_>> = coins.iter().map(|coin| Ok((coin.coin_pub, amount(coin)?))).collect();
    let key = shop.key()?;
    let claimed = claimed_urls(&app.core, order).await?;
    // Whatever the exchanges say: from here on, these coins do not pay the order.
    app.core.decide(Abort { order, coins: given? }, order_id).await?;
    let money = Arc::new(money_of(&app.core, order).await?);
    request.leave_slot();
    let refunds = coins.into_iter().map(|coin| {
        let (money, key, claimed) = (Arc::clone(&money), &key, &claimed);
        async move {
            let refunded =
                |(refund, _): &&Refund| refund.coin_pub == coin.coin_pub && refund.rtransaction_id == ABORTED;
            let Some((refund, row)) = money.refunds.iter().find(refunded) else {
                return failed(ErrorCode::GENERIC_DB_INVARIANT_FAILURE);
            };
            if let Some(confirmed) = confirmed(row) {
                return confirmed;
            }
            let deposit = money.deposits.iter().find(|(deposit, _)| deposit.coin_pub == coin.coin_pub);
            let known = deposit.map(|(_, deposit)| &deposit.exchange_url);
            let known = known.or_else(|| claimed.get(&coin.coin_pub)).cloned();
            let exchange_url = known.unwrap_or(coin.exchange_url);
            let wanted = Wanted { key: refund.clone(), exchange_url, amount: row.amount };
            ask_exchange(app, shop, key, h_contract, &wanted).await
        }
    });
    let refunds: Vec<RefundResult> = stream::iter(refunds).buffered(REFUNDS_AT_ONCE).collect().await;
    Ok(Response::json(200, &AbortResponse { refunds }))
}

/// The exchanges of the coins with which somebody is paying an order.
async fn claimed_urls(core: &Core, order: OrderRef) -> Checked<BTreeMap<EddsaPublicKey, String>> {
    let claim = core.read(move |store| store.get::<PaymentClaims>(&OrderKey { order })).await?;
    let coins = claim.map(|claim| claim.row.coins.0.into_iter().zip(claim.row.exchange_urls.0));
    Ok(coins.into_iter().flatten().collect())
}

/// Lets an exchange give a coin its value back, and records its confirmation.
pub(super) async fn ask_exchange(
    app: &Merchant,
    shop: &Shop,
    key: &EddsaPrivateKey,
    h_contract_terms: HashCode,
    wanted: &Wanted,
) -> RefundResult {
    let OrderRefundKey { coin_pub, rtransaction_id, .. } = wanted.key;
    let refund_amount = app.core.amount(wanted.amount);
    let merchant_pub = shop.row.merchant_pub;
    let exchange = match app.exchanges.get(&wanted.exchange_url, |_| true).await {
        Ok(exchange) => exchange,
        Err(ExchangeError::NotAccepted) => {
            return failed(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_AUDITOR_FAILURE);
        }
        Err(_) => return failed(ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE),
    };
    let message = MerchantRefund { h_contract_terms, coin_pub, rtransaction_id, refund_amount };
    let ask = RefundRequest {
        refund_amount,
        h_contract_terms,
        merchant_pub,
        rtransaction_id,
        merchant_sig: message.sign(key),
    };
    let reply = match exchange.post(&format!("coins/{coin_pub}/refund")).json(&ask).send().await {
        Ok(reply) => reply,
        Err(ClientError::Timeout { .. }) => return failed(ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT),
        Err(_) => return failed(ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE),
    };
    if reply.status != 200 {
        let body = reply.json::<Value>().ok();
        let code = body.as_ref().and_then(|body| body["code"].as_u64());
        return RefundResult::Failure {
            exchange_status: reply.status,
            exchange_code: code.and_then(|code| u32::try_from(code).ok()),
            exchange_reply: body.filter(|_| reply.body.len() <= SHOWN_BYTES_MAX),
        };
    }
    let malformed = failed(ErrorCode::MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED);
    let Ok(RefundConfirmation { exchange_sig, exchange_pub }) = reply.json() else { return malformed };
    let confirmation =
        ExchangeConfirmRefund { h_contract_terms, coin_pub, merchant_pub, rtransaction_id, refund_amount };
    let is_right = exchange.signs_with(&exchange_pub, app.core.now())
        && confirmation.verify(&exchange_pub, &exchange_sig);
    if !is_right {
        return malformed;
    }
    // If this fails, the exchange repeats its confirmation when the wallet asks again.
    let record = RecordRefund { key: wanted.key.clone(), exchange_pub, exchange_sig };
    match app.core.execute(record).await {
        Ok(Ok(())) => RefundResult::Success { exchange_status: 200, exchange_sig, exchange_pub },
        Ok(Err(_)) | Err(_) => failed(ErrorCode::GENERIC_DB_STORE_FAILED),
    }
}

/// The refund that an exchange has confirmed before.
fn confirmed(row: &OrderRefundRow) -> Option<RefundResult> {
    let (exchange_pub, exchange_sig) = (row.exchange_pub?, row.exchange_sig?);
    Some(RefundResult::Success { exchange_status: 200, exchange_sig, exchange_pub })
}
