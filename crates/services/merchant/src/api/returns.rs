//! Coins that exchanges give back without being asked by the wallet: they were accepted, or may have been, for an order that
//! they do not pay.

use std::ops::Bound;

use batzen_crypto::HashCode;
use batzen_protocol::Timestamp;
use batzen_protocol::api::merchant::RefundResult;
use batzen_store::{Found, Store};
use batzen_tables::merchant::{
    CoinReturns, InstanceKey, Instances, OrderKey, OrderRefundKey, OrderRefunds, Orders, PaymentClaims,
};
use futures_util::future::join_all;

use super::deliveries::{FAILURES_MAX, pause};
use super::refunds::{Wanted, ask_exchange};
use super::{Checked, Merchant, Shop};
use crate::exchanges::is_transient;
use crate::rules::{ABORTED, EndClaim, FinishCoinReturn};

/// Coins whose exchanges are asked at the same time.
const RETURNS_AT_ONCE: usize = 32;
/// The status of an exchange that has no such deposit (yet).
const NO_DEPOSIT: u16 = 404;

/// Ends claims of orders that cannot be paid any more, whose payments were not completed. Returns whether there may be
/// more.
pub(crate) async fn end_claims(app: &Merchant) -> Checked<bool> {
    let now = app.core.now();
    let read = move |store: &Store| {
        store.range::<PaymentClaims, Timestamp>(PaymentClaims::BY_OVER, ..=now, RETURNS_AT_ONCE)
    };
    let found = app.core.read(read).await?;
    let is_full = found.len() == RETURNS_AT_ONCE;
    for result in
        join_all(found.iter().map(|claim| app.core.execute(EndClaim { order: claim.key.order }))).await
    {
        _ = result?;
    }
    Ok(is_full)
}

/// Asks for the refunds that are due. Returns whether there may be more.
pub(crate) async fn ask_due(app: &Merchant) -> Checked<bool> {
    let read = |store: &Store| {
        let (from, to) = (Bound::Unbounded, Bound::Unbounded);
        store.range_bytes::<CoinReturns>(CoinReturns::BY_NEXT, from, to, RETURNS_AT_ONCE, false)
    };
    let mut found = app.core.read(read).await?;
    let now = app.core.now();
    found.retain(|found| found.row.next <= now);
    let is_full = found.len() == RETURNS_AT_ONCE;
    let asks = found.into_iter().map(|found| async move {
        let again = ask(app, &found, now).await?;
        app.core.execute(FinishCoinReturn { key: found.key, again }).await.map(drop)
    });
    for result in join_all(asks).await {
        result?;
    }
    Ok(is_full)
}

/// Asks for the refund of a coin. Returns when to ask again; `None`: not at all.
async fn ask(app: &Merchant, found: &Found<CoinReturns>, now: Timestamp) -> Checked<Option<Timestamp>> {
    let Some((shop, h_contract, wanted)) = wanted(app, found).await? else { return Ok(None) };
    let Ok(key) = shop.key() else { return Ok(None) };
    let RefundResult::Failure { exchange_status, .. } =
        ask_exchange(app, &shop, &key, h_contract, &wanted).await
    else {
        return Ok(None);
    };
    let failures = found.row.failures + 1;
    let may_change = is_transient(exchange_status) || exchange_status == NO_DEPOSIT;
    if may_change && failures < FAILURES_MAX {
        return Ok(Some(now.saturating_add(pause(failures))));
    }
    if exchange_status != NO_DEPOSIT {
        let (exchange, status) = (&wanted.exchange_url, exchange_status);
        tracing::warn!(%exchange, status, "a coin that did not pay its order is not refunded: refund the customer by other means");
    }
    Ok(None)
}

/// The shop of a coin's order, the contract, and the refund. `None` if they are gone or the refund was made.
async fn wanted(app: &Merchant, found: &Found<CoinReturns>) -> Checked<Option<(Shop, HashCode, Wanted)>> {
    let (order, coin_pub) = (found.key.order, found.key.coin_pub);
    let key = OrderRefundKey { order, coin_pub, rtransaction_id: ABORTED };
    let refund_key = key.clone();
    let read = move |store: &Store| {
        let Some(order) = store.get::<Orders>(&OrderKey { order })? else { return Ok(None) };
        let shop = store.get::<Instances>(&InstanceKey::new(&order.row.instance))?;
        let refund = store.get::<OrderRefunds>(&refund_key)?;
        Ok(shop.zip(refund).map(|(shop, refund)| (order.row, shop.row, refund.row)))
    };
    let Some((order, shop, refund)) = app.core.read(read).await? else { return Ok(None) };
    let Some(h_contract) = order.h_contract.filter(|_| refund.exchange_sig.is_none()) else {
        return Ok(None);
    };
    let exchange_url = found.row.exchange_url.clone();
    let wanted = Wanted { key, exchange_url, amount: refund.amount };
    Ok(Some((Shop::new(&order.instance, shop), h_contract, wanted)))
}
