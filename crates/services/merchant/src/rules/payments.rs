//! Payments: the claim of an order before its coins go to their exchanges, the coins that were accepted, and those that
//! are given back since they do not pay the order.
//!
//! A payment claims its order for some time. Another one may go on without it only after that time, when the process of
//! the first may have been killed with coins at their exchanges. So whoever takes over gives these coins back in the same
//! commit, whether they were accepted or not, and the exchange is asked for their refunds until it answers.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_store::List;
use batzen_tables::merchant::{
    CoinReturnRow, CoinReturns, OrderDepositKey, OrderDepositRow, OrderDeposits, OrderKey, OrderRef,
    OrderRefundKey, OrderRefunds, Orders, PaymentClaimRow, PaymentClaims,
};

use super::orders::{PAYMENT_MAX, keys, known_again, order, plan_payment};
use super::refunds::{self, ABORTED};
use super::{Decided, MerchantRules, Refusal};

/// A coin of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedCoin {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// Its contribution, deposit fee included.
    pub amount: Money,
    /// Its exchange.
    pub exchange_url: String,
}

/// Claims an order for a payment, one at a time, so that no two sets of coins pay for the same. Idempotent.
#[derive(Clone, Debug)]
pub struct ClaimPayment {
    /// The order.
    pub order: OrderRef,
    /// All coins of the payment, in the order of their keys.
    pub coins: Vec<ClaimedCoin>,
    /// The payment ends by then, if its process lives.
    pub until: Timestamp,
}

impl Command<MerchantRules> for ClaimPayment {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_payment(self.order, plan);
        plan_claim(self.order, plan);
        plan_returns(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        if order(rows, self.order)?.paid.is_some() {
            return Err(Refusal::Paid);
        }
        let key = OrderKey { order: self.order };
        let ours: Vec<EddsaPublicKey> = self.coins.iter().map(|coin| coin.coin_pub).collect();
        let theirs = rows.get::<PaymentClaims>(&key).filter(|claim| claim.coins.0 != ours).cloned();
        if theirs.as_ref().is_some_and(|claim| now < claim.until) {
            return Err(Refusal::PaymentUnderWay);
        }
        // Another writer may be settling it.
        rows.depend_on::<Orders>(&key);
        let lost = theirs.iter().flat_map(coins).filter(|coin| !ours.contains(&coin.coin_pub));
        give_back_unbooked(rows, self.order, lost, now);
        let claim = PaymentClaimRow {
            coins: List(ours),
            amounts: List(self.coins.iter().map(|coin| coin.amount).collect()),
            exchange_urls: List(self.coins.iter().map(|coin| coin.exchange_url.clone()).collect()),
            until: self.until,
            over: self.until.max(order(rows, self.order)?.pay_deadline.saturating_add(PAYMENT_MAX)),
        };
        rows.put::<PaymentClaims>(&key, claim);
        Ok(())
    }
}

/// Gives up the claim of a payment of which exchanges have refused a coin. Idempotent.
#[derive(Clone, Debug)]
pub struct ReleasePayment {
    /// The order.
    pub order: OrderRef,
    /// All coins of the payment, in order.
    pub coins: Vec<EddsaPublicKey>,
}

impl Command<MerchantRules> for ReleasePayment {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_claim(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let key = OrderKey { order: self.order };
        if rows.get::<PaymentClaims>(&key).is_some_and(|claim| claim.coins.0 == self.coins) {
            rows.delete::<PaymentClaims>(&key);
        }
        Ok(())
    }
}

/// Ends the claim of a payment that was not completed, once its order cannot be paid any more: whatever its coins' exchanges
/// have accepted is given back. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct EndClaim {
    /// The order.
    pub(crate) order: OrderRef,
}

impl Command<MerchantRules> for EndClaim {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_payment(self.order, plan);
        plan_claim(self.order, plan);
        plan_returns(self.order, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let key = OrderKey { order: self.order };
        let Some(claim) = rows.get::<PaymentClaims>(&key).filter(|claim| claim.over <= now).cloned() else {
            return Ok(());
        };
        rows.depend_on::<Orders>(&key);
        if rows.get::<Orders>(&key).is_some() {
            give_back_unbooked(rows, self.order, coins(&claim), now);
        }
        end_claim(rows, &key);
        Ok(())
    }
}

/// Books coins that an exchange has accepted. Coins that do not pay the order, because others have paid or because they
/// were given back before, are given back in the same commit. Idempotent.
#[derive(Clone, Debug)]
pub struct RecordDeposits {
    /// The order.
    pub order: OrderRef,
    /// The contract that the coins signed.
    pub h_contract: HashCode,
    /// The coins.
    pub deposits: Vec<(EddsaPublicKey, OrderDepositRow)>,
}

/// The answer to [`RecordDeposits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepositsRecorded {
    /// Whether other coins have paid the order, so that these were given back.
    pub are_surplus: bool,
}

impl Command<MerchantRules> for RecordDeposits {
    type Answer = DepositsRecorded;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_payment(self.order, plan);
        plan_returns(self.order, plan);
        for (coin_pub, _) in &self.deposits {
            plan.row::<OrderDeposits>(coin_key(self.order, *coin_pub));
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Decided<Self::Answer> {
        let known = order(rows, self.order)?;
        if known.h_contract != Some(self.h_contract) {
            return Err(Refusal::OtherContract);
        }
        let is_paid = known.paid.is_some();
        let mut are_new = false;
        for (coin_pub, row) in &self.deposits {
            let key = coin_key(self.order, *coin_pub);
            if rows.get::<OrderDeposits>(&key).is_some() {
                continue;
            }
            rows.insert::<OrderDeposits>(&key, row.clone());
            are_new = true;
            let refund = OrderRefundKey { order: self.order, coin_pub: *coin_pub, rtransaction_id: ABORTED };
            if is_paid || rows.get::<OrderRefunds>(&refund).is_some() {
                let (amount, exchange_url) = (row.amount, row.exchange_url.clone());
                let coin = ClaimedCoin { coin_pub: *coin_pub, amount, exchange_url };
                give_back(rows, self.order, &coin, "the order was paid with other coins", now);
            }
        }
        // Whether the order is paid depends on its coins: whoever settles it at the same time decides again.
        let row = known_again(rows, self.order);
        rows.update::<Orders>(&OrderKey { order: self.order }, row);
        Ok(DepositsRecorded { are_surplus: is_paid && are_new })
    }
}

/// Books that an exchange was asked to refund a coin. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct FinishCoinReturn {
    /// The order and the coin.
    pub(crate) key: OrderDepositKey,
    /// When the exchange is asked again. `None`: it has answered, or is not asked any more.
    pub(crate) again: Option<Timestamp>,
}

impl Command<MerchantRules> for FinishCoinReturn {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<CoinReturns>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let Some(known) = rows.get::<CoinReturns>(&self.key).cloned() else { return Ok(()) };
        match self.again {
            None => rows.delete::<CoinReturns>(&self.key),
            Some(next) => {
                let row = CoinReturnRow { next, failures: known.failures.saturating_add(1), ..known };
                rows.update::<CoinReturns>(&self.key, row);
            }
        }
        Ok(())
    }
}

fn coin_key(order: OrderRef, coin_pub: EddsaPublicKey) -> OrderDepositKey {
    OrderDepositKey { order, coin_pub }
}

/// The coins of a claim.
fn coins(claim: &PaymentClaimRow) -> impl Iterator<Item = ClaimedCoin> {
    let PaymentClaimRow { coins, amounts, exchange_urls, .. } = claim;
    let rest = amounts.0.iter().zip(&exchange_urls.0);
    coins.0.iter().zip(rest).map(|(coin_pub, (amount, exchange_url))| ClaimedCoin {
        coin_pub: *coin_pub,
        amount: *amount,
        exchange_url: exchange_url.clone(),
    })
}

/// Keeps a coin from paying the order, and has its exchange asked for its refund.
fn give_back(rows: &mut WorkingSet, order: OrderRef, coin: &ClaimedCoin, reason: &str, now: Timestamp) {
    refunds::give_up(rows, order, (coin.coin_pub, coin.amount), reason, now);
    let exchange_url = coin.exchange_url.clone();
    // What was asked for before the exchange had the coin is asked for again.
    rows.put::<CoinReturns>(
        &coin_key(order, coin.coin_pub),
        CoinReturnRow { exchange_url, next: now, failures: 0 },
    );
}

/// Gives back coins of a payment that may be at their exchanges, and were not booked.
fn give_back_unbooked(
    rows: &mut WorkingSet,
    order: OrderRef,
    coins: impl Iterator<Item = ClaimedCoin>,
    now: Timestamp,
) {
    for coin in coins {
        // A coin that was booked counts.
        if rows.get::<OrderDeposits>(&coin_key(order, coin.coin_pub)).is_none() {
            give_back(rows, order, &coin, "the payment was not completed in time", now);
            // Whoever settles it at the same time decides again.
            let row = known_again(rows, order);
            rows.update::<Orders>(&OrderKey { order }, row);
        }
    }
}

pub(super) fn plan_claim(order: OrderRef, plan: &mut Plan) {
    plan.row::<PaymentClaims>(OrderKey { order });
}

pub(super) fn plan_returns(order: OrderRef, plan: &mut Plan) {
    plan.group::<CoinReturns>(CoinReturns::BY_ORDER, &order);
}

/// Ends the claim of a payment that has paid.
pub(super) fn end_claim(rows: &mut WorkingSet, key: &OrderKey) {
    if rows.get::<PaymentClaims>(key).is_some() {
        rows.delete::<PaymentClaims>(key);
    }
}

/// Returns whether exchanges may have coins of an order, or are still to give some back.
pub(super) fn owes_coins(rows: &WorkingSet, order: OrderRef) -> bool {
    rows.get::<PaymentClaims>(&OrderKey { order }).is_some()
        || !rows.group::<CoinReturns>(CoinReturns::BY_ORDER, &order).is_empty()
}

/// Forgets the claim of an order, and coins that are to be given back.
pub(super) fn forget(rows: &mut WorkingSet, key: &OrderKey) {
    end_claim(rows, key);
    let returns: Vec<OrderDepositKey> = keys(rows.group::<CoinReturns>(CoinReturns::BY_ORDER, &key.order));
    returns.iter().for_each(|key| rows.delete::<CoinReturns>(key));
}
