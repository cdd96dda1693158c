//! The life of an order: created, claimed, paid with coins, paid in sessions (merchant chapter 3).

use batzen_crypto::HashCode;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{
    InstanceKey, Instances, OrderDepositKey, OrderDeposits, OrderKey, OrderRef, OrderRefundKey, OrderRefunds,
    OrderRow, OrderSessionKey, OrderSessionRow, OrderSessions, OrderWireKey, OrderWires, Orders,
    PaidSessionKey, PaidSessionRow, PaidSessions, ProductKey, ProductLockKey, ProductLocks, Products,
    purchase_ref, session_ref,
};

use super::extras::Hook;
use super::sufficiency::{self, Due, Payment};
use super::{Decided, MerchantRules, Refusal, extras, payments, refunds, stock};

/// The longest that a payment can take: 1,024 coins, of which an exchange takes 16 at a time, each within ten seconds.
pub(super) const PAYMENT_MAX: Duration = Duration::from_secs(900);

/// Creates an order. Idempotent.
#[derive(Clone, Debug)]
pub struct CreateOrder {
    /// The order.
    pub order: OrderRef,
    /// Its row, if it is new.
    pub row: OrderRow,
    /// Locks that the order replaces.
    pub locks: Vec<ProductLockKey>,
}

impl Command<MerchantRules> for CreateOrder {
    type Answer = Box<OrderRow>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_order(self.order, plan);
        let row = &self.row;
        plan.row::<Instances>(InstanceKey::new(&row.instance));
        plan_products(&row.instance, &row.products.0, plan);
        for lock in &self.locks {
            plan.row::<ProductLocks>(lock.clone());
            plan.row::<Products>(ProductKey::new(&row.instance, &lock.product_id));
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Decided<Self::Answer> {
        let CreateOrder { order, row, locks } = self;
        let key = OrderKey { order: *order };
        if let Some(known) = rows.get::<Orders>(&key) {
            let is_same = known.h_request == row.h_request;
            return if is_same { Ok(Box::new(known.clone())) } else { Err(Refusal::OrderExists) };
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
        Ok(Box::new(row))
    }
}

/// Gives an order to a wallet. Idempotent.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The order.
    pub order: OrderRef,
    /// The terms that the caller has read, without nonce. The claim is refused if they have changed.
    pub offered: String,
    /// The wallet's key.
    pub nonce: String,
    /// The terms with the nonce.
    pub terms: String,
    /// Their hash.
    pub h_contract: HashCode,
}

impl Command<MerchantRules> for Claim {
    type Answer = Box<OrderRow>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_order(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Decided<Self::Answer> {
        let known = order(rows, self.order)?;
        match &known.nonce {
            Some(nonce) if *nonce == self.nonce => return Ok(Box::new(known.clone())),
            Some(_) => return Err(Refusal::AlreadyClaimed),
            None if known.terms != self.offered => return Err(Refusal::OrderChanged),
            None => {}
        }
        let row = OrderRow {
            nonce: Some(self.nonce.clone()),
            terms: self.terms.clone(),
            h_contract: Some(self.h_contract),
            ..known.clone()
        };
        rows.update::<Orders>(&OrderKey { order: self.order }, row.clone());
        Ok(Box::new(row))
    }
}

/// A session in which an order is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The session, as its browser names it.
    pub id: String,
}

/// Declares an order paid if its coins suffice. Idempotent.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The order.
    pub order: OrderRef,
    /// The instance and what the customer gets, as read before: they never change.
    pub instance: String,
    /// See `instance`.
    pub fulfillment_url: Option<String>,
    /// The session that pays.
    pub session: Option<Session>,
    /// Products from the inventory. See `instance`.
    pub products: Vec<String>,
    /// The web hooks sent when the order becomes paid.
    pub hooks: Vec<Hook>,
}

impl Command<MerchantRules> for Settle {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_payment(self.order, plan);
        payments::plan_claim(self.order, plan);
        plan_products(&self.instance, &self.products, plan);
        extras::plan_hooks(&self.hooks, plan);
        if let Some(session) = &self.session {
            plan_session(self.order, &self.instance, session, self.fulfillment_url.as_deref(), plan);
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let known = order(rows, self.order)?;
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
                .group::<OrderDeposits>(OrderDeposits::BY_ORDER, &self.order)
                .into_iter()
                .map(|(_, row)| Payment {
                    exchange_url: row.exchange_url.clone(),
                    amount: row.amount,
                    deposit_fee: row.deposit_fee,
                    wire_fee: row.wire_fee,
                })
                .collect();
            let refunded = refunds::refunded(rows, self.order)?;
            sufficiency::check(&due, &payments, refunded)?;
            let known = known.clone();
            stock::sell(rows, &known);
            extras::trigger(rows, &self.hooks);
            let row = OrderRow { paid: Some(now), holds_stock: false, ..known };
            let key = OrderKey { order: self.order };
            rows.update::<Orders>(&key, row);
            payments::end_claim(rows, &key);
        }
        if let Some(session) = &self.session {
            bind(rows, self.order, &self.instance, session, now);
        }
        Ok(())
    }
}

/// Binds a paid order to another session. Idempotent.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The order.
    pub order: OrderRef,
    /// See [`Settle::instance`].
    pub instance: String,
    /// See [`Settle::instance`].
    pub fulfillment_url: Option<String>,
    /// The session.
    pub session: Session,
}

impl Command<MerchantRules> for Replay {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_order(self.order, plan);
        plan_session(self.order, &self.instance, &self.session, self.fulfillment_url.as_deref(), plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        if order(rows, self.order)?.paid.is_none() {
            return Err(Refusal::Unpaid);
        }
        // Another writer may be purging it.
        rows.depend_on::<Orders>(&OrderKey { order: self.order });
        bind(rows, self.order, &self.instance, &self.session, now);
        Ok(())
    }
}

/// Replaces members of a contract by their hashes. The contract's hash stays. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct Forget {
    pub(crate) order: OrderRef,
    /// The terms that the caller has read. Refused if they have changed.
    pub(crate) known: String,
    /// The terms without the forgotten members.
    pub(crate) terms: String,
}

impl Command<MerchantRules> for Forget {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_order(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = order(rows, self.order)?;
        if known.terms != self.known {
            return if known.terms == self.terms { Ok(()) } else { Err(Refusal::OrderChanged) };
        }
        let row = OrderRow { terms: self.terms.clone(), ..known.clone() };
        rows.update::<Orders>(&OrderKey { order: self.order }, row);
        Ok(())
    }
}

/// Removes an order that nobody can pay any more.
#[derive(Clone, Debug)]
pub struct DeleteOrder {
    /// The order.
    pub order: OrderRef,
    /// The instance and its products in the order, as read before: they never change.
    pub instance: String,
    /// See `instance`.
    pub products: Vec<String>,
    /// Whether an offer that no wallet has claimed ends now.
    pub force: bool,
}

impl Command<MerchantRules> for DeleteOrder {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_payment(self.order, plan);
        payments::plan_claim(self.order, plan);
        payments::plan_returns(self.order, plan);
        plan_products(&self.instance, &self.products, plan);
        plan.group::<OrderSessions>(OrderSessions::BY_ORDER, &self.order);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let known = order(rows, self.order)?.clone();
        if known.paid.is_some() {
            return Err(Refusal::PaidStays);
        }
        let is_unclaimed = known.nonce.is_none();
        // A payment that began in time may still be at an exchange: without the order, nobody could book its coins.
        let end =
            if is_unclaimed { known.pay_deadline } else { known.pay_deadline.saturating_add(PAYMENT_MAX) };
        let is_offered = end > now;
        // Coins that an exchange has accepted are the shop's money, until they are refunded.
        let holds_coins = !rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &self.order).is_empty()
            || payments::owes_coins(rows, self.order);
        if holds_coins || (is_offered && !(self.force && is_unclaimed)) {
            return Err(Refusal::AwaitingPayment);
        }
        stock::release_from(rows, &known);
        let refunds: Vec<OrderRefundKey> =
            keys(rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &self.order));
        refunds.iter().for_each(|key| rows.delete::<OrderRefunds>(key));
        delete_order(rows, &OrderKey { order: self.order });
        Ok(())
    }
}

/// Forgets orders of an instance that is being purged.
#[derive(Clone, Debug)]
pub struct PurgeOrders {
    /// The instance.
    pub id: String,
    /// The orders.
    pub orders: Vec<OrderRef>,
}

impl Command<MerchantRules> for PurgeOrders {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<Instances>(InstanceKey::new(&self.id));
        for order in &self.orders {
            plan_payment(*order, plan);
            payments::plan_claim(*order, plan);
            payments::plan_returns(*order, plan);
            plan.group::<OrderSessions>(OrderSessions::BY_ORDER, order);
            plan.group::<PaidSessions>(PaidSessions::BY_ORDER, order);
            plan.group::<OrderWires>(OrderWires::BY_ORDER, order);
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let instance = rows.get::<Instances>(&InstanceKey::new(&self.id)).ok_or(Refusal::InstanceUnknown)?;
        // A shop that still sells could get new orders for ever.
        if instance.merchant_priv.is_some() {
            return Err(Refusal::OrdersLeft);
        }
        for order in &self.orders {
            let key = OrderKey { order: *order };
            if rows.get::<Orders>(&key).is_none_or(|row| row.instance != self.id) {
                continue;
            }
            let deposits: Vec<OrderDepositKey> =
                keys(rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, order));
            let sessions: Vec<OrderSessionKey> =
                keys(rows.group::<OrderSessions>(OrderSessions::BY_ORDER, order));
            let purchases: Vec<PaidSessionKey> =
                keys(rows.group::<PaidSessions>(PaidSessions::BY_ORDER, order));
            purchases.iter().for_each(|key| rows.delete::<PaidSessions>(key));
            let refunds: Vec<OrderRefundKey> =
                keys(rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, order));
            refunds.iter().for_each(|key| rows.delete::<OrderRefunds>(key));
            let wires: Vec<OrderWireKey> = keys(rows.group::<OrderWires>(OrderWires::BY_ORDER, order));
            wires.iter().for_each(|key| rows.delete::<OrderWires>(key));
            deposits.iter().for_each(|key| rows.delete::<OrderDeposits>(key));
            sessions.iter().for_each(|key| rows.delete::<OrderSessions>(key));
            delete_order(rows, &key);
        }
        Ok(())
    }
}

/// Deletes an order, with what its payments have left.
fn delete_order(rows: &mut WorkingSet, key: &OrderKey) {
    payments::forget(rows, key);
    rows.delete::<Orders>(key);
}

pub(super) fn plan_order(order: OrderRef, plan: &mut Plan) {
    plan.row::<Orders>(OrderKey { order });
}

pub(super) fn plan_products(instance: &str, products: &[String], plan: &mut Plan) {
    for product_id in products {
        plan.row::<Products>(ProductKey::new(instance, product_id));
    }
}

pub(super) fn plan_payment(order: OrderRef, plan: &mut Plan) {
    plan_order(order, plan);
    plan.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
    plan.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &order);
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

pub(super) fn order(rows: &WorkingSet, order: OrderRef) -> Result<&OrderRow, Refusal> {
    rows.get::<Orders>(&OrderKey { order }).ok_or(Refusal::OrderUnknown)
}

pub(super) fn known_again(rows: &WorkingSet, order: OrderRef) -> OrderRow {
    rows.get::<Orders>(&OrderKey { order }).expect("it was just read").clone()
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

pub(super) fn keys<K: Clone, R>(group: Vec<(&K, &R)>) -> Vec<K> {
    group.into_iter().map(|(key, _)| key.clone()).collect()
}
