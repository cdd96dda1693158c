//! The life of an order: created, claimed, paid with coins, paid in sessions (merchant chapter 3).

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{
    InstanceKey, Instances, OrderDepositKey, OrderDeposits, OrderKey, OrderRef, OrderRefundKey, OrderRefunds,
    OrderRow, OrderSessionKey, OrderSessionRow, OrderSessions, OrderWireKey, OrderWires, Orders,
    PaidSessionKey, PaidSessionRow, PaidSessions, ProductKey, ProductLocks, Products, purchase_ref,
    session_ref,
};

use super::sufficiency::{self, Due, Payment};
use super::{
    Claim, CreateOrder, DeleteOrder, Forget, Outcome, PurgeOrders, RecordDeposits, Refusal, Replay, Session,
    Settle,
};
use super::{extras, refunds, stock};

/// The longest that a payment can take: 1,024 coins, of which an exchange takes 16 at a time, each within ten seconds.
const PAYMENT_MAX: Duration = Duration::from_secs(900);

pub(super) fn plan(order: OrderRef, plan: &mut Plan) {
    plan.row::<Orders>(OrderKey { order });
}

pub(super) fn plan_creation(command: &CreateOrder, plan: &mut Plan) {
    self::plan(command.order, plan);
    let row = &command.row;
    plan.row::<Instances>(InstanceKey::new(&row.instance));
    plan_products(&row.instance, &row.products.0, plan);
    for lock in &command.locks {
        plan.row::<ProductLocks>(lock.clone());
        plan.row::<Products>(ProductKey::new(&row.instance, &lock.product_id));
    }
}

pub(super) fn plan_products(instance: &str, products: &[String], plan: &mut Plan) {
    for product_id in products {
        plan.row::<Products>(ProductKey::new(instance, product_id));
    }
}

pub(super) fn plan_deletion(command: &DeleteOrder, plan: &mut Plan) {
    plan_payment(command.order, plan);
    plan_products(&command.instance, &command.products, plan);
    plan.group::<OrderSessions>(OrderSessions::BY_ORDER, &command.order);
}

pub(super) fn plan_payment(order: OrderRef, plan: &mut Plan) {
    self::plan(order, plan);
    plan.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
    plan.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &order);
}

pub(super) fn plan_deposits(command: &RecordDeposits, plan: &mut Plan) {
    plan_payment(command.order, plan);
    for (coin_pub, _) in &command.deposits {
        plan.row::<OrderDeposits>(OrderDepositKey { order: command.order, coin_pub: *coin_pub });
    }
}

pub(super) fn plan_session(
    order: OrderRef,
    instance: &str,
    session: &Session,
    fulfillment_url: Option<&str>,
    plan: &mut Plan,
) {
    plan.row::<OrderSessions>(OrderSessionKey { order, session: session_ref(&session.id) });
    if let Some(url) = fulfillment_url {
        plan.row::<PaidSessions>(PaidSessionKey { purchase: purchase_ref(instance, &session.id, url) });
    }
}

pub(super) fn plan_purge(command: &PurgeOrders, plan: &mut Plan) {
    plan.row::<Instances>(InstanceKey::new(&command.id));
    for order in &command.orders {
        plan_payment(*order, plan);
        plan.group::<OrderSessions>(OrderSessions::BY_ORDER, order);
        plan.group::<PaidSessions>(PaidSessions::BY_ORDER, order);
        plan.group::<OrderWires>(OrderWires::BY_ORDER, order);
    }
}

pub(super) fn order(rows: &WorkingSet, order: OrderRef) -> Result<&OrderRow, Refusal> {
    rows.get::<Orders>(&OrderKey { order }).ok_or(Refusal::OrderUnknown)
}

pub(super) fn create(rows: &mut WorkingSet, command: &CreateOrder) -> Result<Outcome, Refusal> {
    let CreateOrder { order, row, locks } = command;
    let key = OrderKey { order: *order };
    if let Some(known) = rows.get::<Orders>(&key) {
        let is_same = known.h_request == row.h_request;
        return if is_same {
            Ok(Outcome::Ordered(Box::new(known.clone())))
        } else {
            Err(Refusal::OrderExists)
        };
    }
    let instance = InstanceKey::new(&row.instance);
    match rows.get::<Instances>(&instance) {
        None => return Err(Refusal::InstanceUnknown),
        Some(found) if found.merchant_priv.is_none() => return Err(Refusal::InstanceDeleted),
        // Another writer may be deleting it.
        Some(_) => rows.depend_on::<Instances>(&instance),
    }
    for lock in locks {
        // Only what is locked for this shop: its products are planned.
        if rows.get::<ProductLocks>(lock).is_some_and(|held| held.instance == row.instance) {
            stock::release_lock(rows, lock);
        }
    }
    stock::hold_for(rows, row)?;
    let row = OrderRow { holds_stock: !row.products.0.is_empty(), ..row.clone() };
    rows.insert::<Orders>(&key, row.clone());
    Ok(Outcome::Ordered(Box::new(row)))
}

pub(super) fn forget(rows: &mut WorkingSet, command: &Forget) -> Result<Outcome, Refusal> {
    let known = order(rows, command.order)?;
    if known.terms != command.known {
        return if known.terms == command.terms { Ok(Outcome::Done) } else { Err(Refusal::OrderChanged) };
    }
    let row = OrderRow { terms: command.terms.clone(), ..known.clone() };
    rows.update::<Orders>(&OrderKey { order: command.order }, row);
    Ok(Outcome::Done)
}

pub(super) fn delete(
    rows: &mut WorkingSet,
    command: &DeleteOrder,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let known = order(rows, command.order)?.clone();
    if known.paid.is_some() {
        return Err(Refusal::PaidStays);
    }
    let is_unclaimed = known.nonce.is_none();
    // A payment that began in time may still be at an exchange: without the order, nobody could book its coins.
    let end = if is_unclaimed { known.pay_deadline } else { known.pay_deadline.saturating_add(PAYMENT_MAX) };
    let is_offered = end > now;
    // Coins that an exchange has accepted are the shop's money, until they are refunded.
    let holds_coins = !rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &command.order).is_empty();
    if holds_coins || (is_offered && !(command.force && is_unclaimed)) {
        return Err(Refusal::AwaitingPayment);
    }
    stock::release_from(rows, &known);
    let refunds: Vec<OrderRefundKey> =
        keys(rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &command.order));
    refunds.iter().for_each(|key| rows.delete::<OrderRefunds>(key));
    rows.delete::<Orders>(&OrderKey { order: command.order });
    Ok(Outcome::Done)
}

pub(super) fn claim(rows: &mut WorkingSet, command: &Claim) -> Result<Outcome, Refusal> {
    let known = order(rows, command.order)?;
    match &known.nonce {
        Some(nonce) if *nonce == command.nonce => return Ok(Outcome::Claimed(Box::new(known.clone()))),
        Some(_) => return Err(Refusal::AlreadyClaimed),
        None if known.terms != command.offered => return Err(Refusal::OrderChanged),
        None => {}
    }
    let row = OrderRow {
        nonce: Some(command.nonce.clone()),
        terms: command.terms.clone(),
        h_contract: Some(command.h_contract),
        ..known.clone()
    };
    rows.update::<Orders>(&OrderKey { order: command.order }, row.clone());
    Ok(Outcome::Claimed(Box::new(row)))
}

pub(super) fn record(rows: &mut WorkingSet, command: &RecordDeposits) -> Result<Outcome, Refusal> {
    let known = order(rows, command.order)?;
    if known.h_contract != Some(command.h_contract) {
        return Err(Refusal::OtherContract);
    }
    let have: Vec<_> = rows
        .group::<OrderDeposits>(OrderDeposits::BY_ORDER, &command.order)
        .into_iter()
        .map(|(key, _)| key.coin_pub)
        .collect();
    for (n, (coin_pub, row)) in command.deposits.iter().enumerate() {
        let is_known =
            have.contains(coin_pub) || command.deposits[..n].iter().any(|(earlier, _)| earlier == coin_pub);
        if !is_known {
            let key = OrderDepositKey { order: command.order, coin_pub: *coin_pub };
            rows.insert::<OrderDeposits>(&key, row.clone());
        }
    }
    // Whether the order is paid depends on its coins: whoever settles it at the same time decides again.
    let row = known_again(rows, command.order);
    rows.update::<Orders>(&OrderKey { order: command.order }, row);
    Ok(Outcome::Done)
}

fn known_again(rows: &WorkingSet, order: OrderRef) -> OrderRow {
    rows.get::<Orders>(&OrderKey { order }).expect("it was just read").clone()
}

pub(super) fn settle(rows: &mut WorkingSet, command: &Settle, now: Timestamp) -> Result<Outcome, Refusal> {
    let known = order(rows, command.order)?;
    if known.h_contract.is_none() {
        return Err(Refusal::Unpaid);
    }
    if known.paid.is_none() {
        let due = Due {
            amount: known.amount,
            max_fee: known.max_fee,
            max_wire_fee: known.max_wire_fee,
            wire_fee_amortization: known.wire_fee_amortization,
        };
        let payments: Vec<Payment> = rows
            .group::<OrderDeposits>(OrderDeposits::BY_ORDER, &command.order)
            .into_iter()
            .map(|(_, row)| Payment {
                exchange_url: row.exchange_url.clone(),
                amount: row.amount,
                deposit_fee: row.deposit_fee,
                wire_fee: row.wire_fee,
            })
            .collect();
        let refunded = refunds::refunded(rows, command.order)?;
        sufficiency::check(&due, &payments, refunded)?;
        let known = known.clone();
        stock::sell(rows, &known);
        extras::trigger(rows, &command.hooks);
        let row = OrderRow { paid: Some(now), holds_stock: false, ..known };
        rows.update::<Orders>(&OrderKey { order: command.order }, row);
    }
    if let Some(session) = &command.session {
        bind(rows, command.order, &command.instance, session, now);
    }
    Ok(Outcome::Done)
}

pub(super) fn replay(rows: &mut WorkingSet, command: &Replay, now: Timestamp) -> Result<Outcome, Refusal> {
    if order(rows, command.order)?.paid.is_none() {
        return Err(Refusal::Unpaid);
    }
    // Another writer may be purging it.
    rows.depend_on::<Orders>(&OrderKey { order: command.order });
    bind(rows, command.order, &command.instance, &command.session, now);
    Ok(Outcome::Done)
}

/// Records that an order is paid in a session.
fn bind(rows: &mut WorkingSet, order: OrderRef, instance: &str, session: &Session, now: Timestamp) {
    let row = known_again(rows, order);
    let key = OrderSessionKey { order, session: session_ref(&session.id) };
    if rows.get::<OrderSessions>(&key).is_none() {
        rows.insert::<OrderSessions>(&key, OrderSessionRow { time: now });
    }
    if let Some(url) = &row.fulfillment_url {
        let key = PaidSessionKey { purchase: purchase_ref(instance, &session.id, url) };
        rows.put::<PaidSessions>(&key, PaidSessionRow { order, order_id: row.order_id.clone(), time: now });
    }
}

pub(super) fn purge(rows: &mut WorkingSet, command: &PurgeOrders) -> Result<Outcome, Refusal> {
    let instance = rows.get::<Instances>(&InstanceKey::new(&command.id)).ok_or(Refusal::InstanceUnknown)?;
    // A shop that still sells could get new orders for ever.
    if instance.merchant_priv.is_some() {
        return Err(Refusal::OrdersLeft);
    }
    for order in &command.orders {
        let key = OrderKey { order: *order };
        if rows.get::<Orders>(&key).is_none_or(|row| row.instance != command.id) {
            continue;
        }
        let deposits: Vec<OrderDepositKey> =
            keys(rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, order));
        let sessions: Vec<OrderSessionKey> =
            keys(rows.group::<OrderSessions>(OrderSessions::BY_ORDER, order));
        let purchases: Vec<PaidSessionKey> = keys(rows.group::<PaidSessions>(PaidSessions::BY_ORDER, order));
        purchases.iter().for_each(|key| rows.delete::<PaidSessions>(key));
        let refunds: Vec<OrderRefundKey> = keys(rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, order));
        refunds.iter().for_each(|key| rows.delete::<OrderRefunds>(key));
        let wires: Vec<OrderWireKey> = keys(rows.group::<OrderWires>(OrderWires::BY_ORDER, order));
        wires.iter().for_each(|key| rows.delete::<OrderWires>(key));
        deposits.iter().for_each(|key| rows.delete::<OrderDeposits>(key));
        sessions.iter().for_each(|key| rows.delete::<OrderSessions>(key));
        rows.delete::<Orders>(&key);
    }
    Ok(Outcome::Done)
}

fn keys<K: Clone, R>(group: Vec<(&K, &R)>) -> Vec<K> {
    group.into_iter().map(|(key, _)| key.clone()).collect()
}
