//! Products, locks of carts, and the stock that unpaid orders hold (merchant chapter 6.7).

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{
    InstanceKey, Instances, LockRef, OrderKey, OrderRef, OrderRow, Orders, ProductKey, ProductLockKey,
    ProductLockRow, ProductLocks, ProductRow, Products,
};

use super::{MerchantRules, Refusal};
use crate::order_form::INTEGER_LIMIT;

/// Time after its deadline during which an unpaid order holds its stock: a payment may be under way at an
/// exchange.
pub const GRACE: Duration = Duration::from_secs(30);

/// Adds a product. Idempotent.
#[derive(Clone, Debug)]
pub struct CreateProduct {
    /// The product.
    pub key: ProductKey,
    /// Its row; nothing of it is sold, lost or locked.
    pub row: ProductRow,
}

impl Command<MerchantRules> for CreateProduct {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_product(&self.key, plan);
        plan.row::<Instances>(InstanceKey::new(&self.key.instance));
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let CreateProduct { key, row } = self;
        let instance = InstanceKey::new(&key.instance);
        match rows.get::<Instances>(&instance) {
            None => return Err(Refusal::InstanceUnknown),
            Some(found) if found.merchant_priv.is_none() => return Err(Refusal::InstanceDeleted),
            Some(_) => rows.depend_on::<Instances>(&instance),
        }
        if let Some(known) = rows.get::<Products>(key) {
            let is_same = *known
                == ProductRow { sold: known.sold, lost: known.lost, locked: known.locked, ..row.clone() };
            return if is_same { Ok(()) } else { Err(Refusal::ProductExists) };
        }
        rows.insert::<Products>(key, row.clone());
        Ok(())
    }
}

/// Changes a product; what was sold and what is locked stays.
#[derive(Clone, Debug)]
pub struct ChangeProduct {
    /// The product.
    pub key: ProductKey,
    /// Its new row, of which `sold` and `locked` are ignored.
    pub row: ProductRow,
    /// The total loss. `None`: as before.
    pub lost: Option<u64>,
}

impl Command<MerchantRules> for ChangeProduct {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_product(&self.key, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = product(rows, &self.key)?;
        let lost = self.lost.unwrap_or(known.lost);
        let row = ProductRow { sold: known.sold, locked: known.locked, lost, ..self.row.clone() };
        if lost < known.lost {
            return Err(Refusal::LostReduced);
        }
        // More than any number cannot become less.
        let is_less = match (known.total_stock, row.total_stock) {
            (Some(before), Some(now)) => now < before,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_less {
            return Err(Refusal::StockReduced);
        }
        let gone = row.sold.saturating_add(lost);
        if lost > known.lost && row.total_stock.is_some_and(|total| total < gone) {
            return Err(Refusal::LostExceedsStock);
        }
        rows.update::<Products>(&self.key, row);
        Ok(())
    }
}

/// Removes a product of which nothing is locked.
#[derive(Clone, Debug)]
pub struct DeleteProduct {
    /// The product.
    pub key: ProductKey,
}

impl Command<MerchantRules> for DeleteProduct {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_product(&self.key, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        if product(rows, &self.key)?.locked > 0 {
            return Err(Refusal::ProductLocked);
        }
        rows.delete::<Products>(&self.key);
        Ok(())
    }
}

/// Locks units of a product for a cart; replaces what the same lock holds of it. Idempotent.
#[derive(Clone, Debug)]
pub struct LockProduct {
    /// The product.
    pub key: ProductKey,
    /// The lock.
    pub lock: LockRef,
    /// Units; 0 releases the lock.
    pub quantity: u64,
    /// When it ends by itself.
    pub until: Timestamp,
}

impl Command<MerchantRules> for LockProduct {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_product(&self.key, plan);
        plan.row::<ProductLocks>(lock_key(self));
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        product(rows, &self.key)?;
        let key = lock_key(self);
        release_lock(rows, &key);
        if self.quantity > 0 {
            hold(rows, &self.key, self.quantity)?;
            let (instance, quantity, until) = (self.key.instance.clone(), self.quantity, self.until);
            rows.insert::<ProductLocks>(&key, ProductLockRow { instance, quantity, until });
        }
        Ok(())
    }
}

/// Stock that was held when it was read, and may be released.
#[derive(Clone, Debug)]
pub struct Held<K> {
    /// The lock, or the order.
    pub holder: K,
    /// The products that it holds.
    pub products: Vec<ProductKey>,
}

/// Releases the stock of locks and orders whose time is over, and forgets orders that nobody has claimed for long.
/// Idempotent.
#[derive(Clone, Debug, Default)]
pub struct ReleaseStock {
    /// The locks.
    pub locks: Vec<Held<ProductLockKey>>,
    /// The orders.
    pub orders: Vec<Held<OrderRef>>,
}

impl Command<MerchantRules> for ReleaseStock {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        for held in &self.locks {
            plan.row::<ProductLocks>(held.holder.clone());
            held.products.iter().for_each(|key| plan_product(key, plan));
        }
        for held in &self.orders {
            plan.row::<Orders>(OrderKey { order: held.holder });
            held.products.iter().for_each(|key| plan_product(key, plan));
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        for held in &self.locks {
            if rows.get::<ProductLocks>(&held.holder).is_some_and(|row| row.until <= now) {
                release_lock(rows, &held.holder);
            }
        }
        for held in &self.orders {
            let key = OrderKey { order: held.holder };
            let Some(row) = rows.get::<Orders>(&key).cloned() else { continue };
            let is_garbage =
                row.nonce.is_none() && row.pay_deadline.saturating_add(Orders::UNCLAIMED_KEPT) <= now;
            if !row.holds_stock && is_garbage {
                rows.delete::<Orders>(&key);
            } else if row.holds_stock && row.pay_deadline.saturating_add(GRACE) <= now {
                release_from(rows, &row);
                rows.update::<Orders>(&key, OrderRow { holds_stock: false, ..row });
            }
        }
        Ok(())
    }
}

/// Units of a product that can be sold or locked.
#[must_use]
pub(crate) fn available(row: &ProductRow) -> u64 {
    let Some(total) = row.total_stock else { return u64::MAX };
    total.saturating_sub(row.sold).saturating_sub(row.lost).saturating_sub(row.locked)
}

pub(super) fn plan_product(key: &ProductKey, plan: &mut Plan) {
    plan.row::<Products>(key.clone());
}

fn lock_key(command: &LockProduct) -> ProductLockKey {
    ProductLockKey { lock: command.lock, product_id: command.key.product_id.clone() }
}

fn product(rows: &WorkingSet, key: &ProductKey) -> Result<ProductRow, Refusal> {
    rows.get::<Products>(key).cloned().ok_or_else(|| Refusal::ProductUnknown(key.product_id.clone()))
}

/// Takes units out of the stock, for a lock or an order.
fn hold(rows: &mut WorkingSet, key: &ProductKey, quantity: u64) -> Result<(), Refusal> {
    let known = product(rows, key)?;
    let available = available(&known);
    if quantity > available {
        let product_id = key.product_id.clone();
        return Err(Refusal::OutOfStock { product_id, requested: quantity, available });
    }
    let locked = known.locked.checked_add(quantity);
    // What is locked may be sold.
    let is_countable = |locked: &u64| locked.checked_add(known.sold).is_some_and(|gone| gone < INTEGER_LIMIT);
    let locked = locked.filter(is_countable).ok_or(Refusal::TooMuchStock)?;
    rows.update::<Products>(key, ProductRow { locked, ..known });
    Ok(())
}

/// Puts units back. The product may be gone, with its shop.
fn release(rows: &mut WorkingSet, key: &ProductKey, quantity: u64) {
    if let Some(known) = rows.get::<Products>(key).cloned() {
        let locked = known.locked.checked_sub(quantity).expect("a product counts what holds it");
        rows.update::<Products>(key, ProductRow { locked, ..known });
    }
}

pub(super) fn release_lock(rows: &mut WorkingSet, key: &ProductLockKey) {
    if let Some(ProductLockRow { instance, quantity, .. }) = rows.get::<ProductLocks>(key).cloned() {
        release(rows, &ProductKey::new(&instance, &key.product_id), quantity);
        rows.delete::<ProductLocks>(key);
    }
}

/// Holds the stock of a new order.
pub(super) fn hold_for(rows: &mut WorkingSet, row: &OrderRow) -> Result<(), Refusal> {
    for (product_id, quantity) in row.stock() {
        hold(rows, &ProductKey::new(&row.instance, product_id), quantity)?;
    }
    Ok(())
}

/// Puts back the stock that an order holds.
pub(super) fn release_from(rows: &mut WorkingSet, row: &OrderRow) {
    if row.holds_stock {
        for (product_id, quantity) in row.stock() {
            release(rows, &ProductKey::new(&row.instance, product_id), quantity);
        }
    }
}

/// Counts the stock of an order as sold. If it was released before, because the payment was late, there may be
/// fewer units than were sold: the shop has promised them.
pub(super) fn sell(rows: &mut WorkingSet, row: &OrderRow) {
    release_from(rows, row);
    for (product_id, quantity) in row.stock() {
        let key = ProductKey::new(&row.instance, product_id);
        if let Some(known) = rows.get::<Products>(&key).cloned() {
            let sold = known.sold.saturating_add(quantity);
            rows.update::<Products>(&key, ProductRow { sold, ..known });
        }
    }
}
