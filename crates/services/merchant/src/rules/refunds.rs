//! Refunds of paid orders (merchant chapter 6.4), and of payments that were given up (chapter 2.5).

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{AmountError, Money, Timestamp};
use batzen_tables::merchant::{
    OrderDepositKey, OrderDepositRow, OrderDeposits, OrderKey, OrderRef, OrderRefundKey, OrderRefundRow,
    OrderRefunds, OrderRow, Orders,
};

use super::extras::Hook;
use super::orders::{self, order as order_row};
use super::{Insufficient, MerchantRules, Refusal, extras};

/// The number of the refund of an aborted payment. What the shop approves has higher numbers.
pub const ABORTED: u64 = 0;

/// The maximum number of refunds of an order.
const REFUNDS_MAX: usize = 4_096;

/// Approves refunds of a paid order up to a total. Idempotent.
#[derive(Clone, Debug)]
pub struct ApproveRefund {
    /// The order.
    pub order: OrderRef,
    /// The total refunded afterwards.
    pub total: Money,
    /// Why.
    pub reason: String,
    /// The time of the contract.
    pub since: Timestamp,
    /// The refund deadline of the contract. Not after `since`: it allows no refunds.
    pub until: Timestamp,
    /// The web hooks sent when more is approved than before.
    pub hooks: Vec<Hook>,
}

impl Command<MerchantRules> for ApproveRefund {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        orders::plan_payment(self.order, plan);
        extras::plan_hooks(&self.hooks, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let ApproveRefund { order, total, reason, since, until, hooks } = self;
        let known = order_row(rows, *order)?;
        if known.paid.is_none() {
            return Err(Refusal::Unpaid);
        }
        if *total > known.amount {
            return Err(Refusal::RefundInconsistent);
        }
        let parts = Coins::of(rows, *order)?.split(*order, *total).ok_or(Refusal::RefundInconsistent)?;
        // A repetition of what was approved in time is fine; more is not.
        if parts.is_empty() {
            return Ok(());
        }
        if until <= since || *until <= now {
            return Err(Refusal::RefundNotAllowed);
        }
        if count(rows, *order) + parts.len() > REFUNDS_MAX {
            return Err(Refusal::TooManyRefunds);
        }
        let row = OrderRow { refund_approved: *total, ..known.clone() };
        for (key, amount) in parts {
            add(rows, &key, amount, reason, now);
        }
        rows.update::<Orders>(&OrderKey { order: *order }, row);
        extras::trigger(rows, hooks);
        Ok(())
    }
}

/// Gives back coins of an order that is not paid. Idempotent.
#[derive(Clone, Debug)]
pub struct Abort {
    /// The order.
    pub order: OrderRef,
    /// The coins, and the contributions that the wallet says. Of a known deposit, its own amount counts.
    pub coins: Vec<(EddsaPublicKey, Money)>,
}

impl Command<MerchantRules> for Abort {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        orders::plan_payment(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let Abort { order, coins } = self;
        let known = order_row(rows, *order)?.clone();
        if known.paid.is_some() {
            return Err(Refusal::Paid);
        }
        if count(rows, *order) + coins.len() > REFUNDS_MAX {
            return Err(Refusal::TooManyRefunds);
        }
        for coin in coins {
            give_up(rows, *order, *coin, "aborted", now);
        }
        // Whether the order is paid depends on its refunds: whoever settles it at the same time decides again.
        rows.update::<Orders>(&OrderKey { order: *order }, known);
        Ok(())
    }
}

/// Gives up a coin, so that it does not pay the order.
pub(super) fn give_up(
    rows: &mut WorkingSet,
    order: OrderRef,
    (coin_pub, amount): (EddsaPublicKey, Money),
    reason: &str,
    now: Timestamp,
) {
    let key = OrderRefundKey { order, coin_pub, rtransaction_id: ABORTED };
    if rows.get::<OrderRefunds>(&key).is_none() {
        let deposits = rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
        let deposited = deposits.into_iter().find(|(deposit, _)| deposit.coin_pub == coin_pub);
        let amount = deposited.map_or(amount, |(_, row)| row.amount);
        add(rows, &key, amount, reason, now);
    }
}

/// Books that an exchange has refunded a coin. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct RecordRefund {
    pub(crate) key: OrderRefundKey,
    /// The key of the exchange's confirmation.
    pub(crate) exchange_pub: EddsaPublicKey,
    /// The confirmation.
    pub(crate) exchange_sig: EddsaSignature,
}

impl Command<MerchantRules> for RecordRefund {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<OrderRefunds>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let row = rows.get::<OrderRefunds>(&self.key).ok_or(Refusal::OrderUnknown)?;
        if row.exchange_sig.is_none() {
            let row = OrderRefundRow {
                exchange_pub: Some(self.exchange_pub),
                exchange_sig: Some(self.exchange_sig),
                ..row.clone()
            };
            rows.update::<OrderRefunds>(&self.key, row);
        }
        Ok(())
    }
}

/// The coins of an order: paid, and given back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coins {
    /// The coins, in the order of their deposits.
    left: Vec<Left>,
    /// The sum refunded of the deposited coins, aborted payments included.
    pub(crate) refunded: Money,
    /// The sum that the shop has approved.
    pub(crate) approved: Money,
}

/// A coin, what is left of its contribution, and the number of its next refund.
#[derive(Clone, Debug)]
struct Left {
    coin_pub: EddsaPublicKey,
    amount: Money,
    next: u64,
}

impl Coins {
    /// From all deposits and all refunds of an order.
    ///
    /// # Errors
    /// When a sum is too large.
    pub(crate) fn new<'a>(
        deposits: impl IntoIterator<Item = (&'a OrderDepositKey, &'a OrderDepositRow)>,
        refunds: impl IntoIterator<Item = (&'a OrderRefundKey, &'a OrderRefundRow)>,
    ) -> Result<Self, AmountError> {
        let mut given_back: BTreeMap<EddsaPublicKey, (Money, u64)> = BTreeMap::new();
        let mut coins = Self::default();
        for (key, row) in refunds {
            let (sum, next) = given_back.entry(key.coin_pub).or_insert((Money::ZERO, ABORTED + 1));
            *sum = sum.checked_add(row.amount)?;
            *next = (*next).max(key.rtransaction_id + 1);
            if key.rtransaction_id != ABORTED {
                coins.approved = coins.approved.checked_add(row.amount)?;
            }
        }
        let mut deposits: Vec<_> = deposits.into_iter().collect();
        deposits.sort_by_key(|(key, row)| (row.exchange_time, key.coin_pub));
        for (key, row) in deposits {
            let (sum, next) = given_back.get(&key.coin_pub).copied().unwrap_or((Money::ZERO, ABORTED + 1));
            // A wallet may have given up a coin for more than it was then worth.
            let sum = sum.min(row.amount);
            coins.refunded = coins.refunded.checked_add(sum)?;
            let amount = row.amount.checked_sub(sum)?;
            coins.left.push(Left { coin_pub: key.coin_pub, amount, next });
        }
        Ok(coins)
    }

    fn of(rows: &WorkingSet, order: OrderRef) -> Result<Self, Refusal> {
        let deposits = rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
        let refunds = rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &order);
        Self::new(deposits, refunds).map_err(|_| Refusal::Insufficient(Insufficient::Overflow))
    }

    /// Distributes what is to be refunded beyond what was approved. `None` if not enough is left.
    fn split(&self, order: OrderRef, total: Money) -> Option<Vec<(OrderRefundKey, Money)>> {
        let mut more = total.checked_sub(self.approved).unwrap_or(Money::ZERO);
        let mut parts = Vec::new();
        for coin in &self.left {
            let amount = coin.amount.min(more);
            if !amount.is_zero() {
                let key = OrderRefundKey { order, coin_pub: coin.coin_pub, rtransaction_id: coin.next };
                parts.push((key, amount));
                more = more.checked_sub(amount).expect("it is at most that");
            }
        }
        more.is_zero().then_some(parts)
    }
}

/// The sum given back of the coins of an order.
pub(super) fn refunded(rows: &WorkingSet, order: OrderRef) -> Result<Money, Refusal> {
    Ok(Coins::of(rows, order)?.refunded)
}

fn add(rows: &mut WorkingSet, key: &OrderRefundKey, amount: Money, reason: &str, time: Timestamp) {
    let reason = reason.to_owned();
    let row = OrderRefundRow { amount, reason, time, exchange_pub: None, exchange_sig: None };
    rows.insert::<OrderRefunds>(key, row);
}

/// Number of refunds that an order has.
fn count(rows: &WorkingSet, order: OrderRef) -> usize {
    rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &order).len()
}
