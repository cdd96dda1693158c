//! Transfers of exchanges, and what they pay for (merchant chapters 6.8 to 6.12).

use std::collections::BTreeSet;

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::merchant::{
    AccountKycKey, AccountKycRow, AccountKycs, InstanceKey, Instances, OrderDeposits, OrderKey, OrderRef,
    OrderRefunds, OrderRow, OrderWireKey, OrderWireRow, OrderWires, Orders, TransferKey, TransferRow,
    Transfers,
};

use super::{Decided, MerchantRules, Refusal, orders};

/// Books a transfer that the shop has reported, or that an exchange has named. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct NoteTransfer {
    pub(crate) key: TransferKey,
    /// Its row, if it is new. Its `credit_amount` says whether the shop has reported it.
    pub(crate) row: TransferRow,
}

impl Command<MerchantRules> for NoteTransfer {
    type Answer = Box<TransferRow>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<Transfers>(self.key.clone());
        plan.row::<Instances>(InstanceKey::new(&self.row.instance));
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Decided<Self::Answer> {
        let NoteTransfer { key, row } = self;
        let instance = InstanceKey::new(&row.instance);
        if rows.get::<Instances>(&instance).is_none() {
            return Err(Refusal::InstanceUnknown);
        }
        rows.depend_on::<Instances>(&instance);
        let Some(known) = rows.get::<Transfers>(key).cloned() else {
            rows.insert::<Transfers>(key, row.clone());
            return Ok(Box::new(row.clone()));
        };
        let Some(credit) = row.credit_amount else { return Ok(Box::new(known)) };
        let contradicts = known.credit_amount.is_some_and(|before| before != credit);
        if contradicts || known.payto_uri != row.payto_uri {
            return Err(Refusal::OtherTransfer);
        }
        let row = TransferRow { credit_amount: Some(credit), ..known.clone() };
        if row != known {
            rows.update::<Transfers>(key, row.clone());
        }
        Ok(Box::new(row))
    }
}

/// Books that an exchange's statement about a transfer does not add up, or that there is none. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct RefuseTransfer {
    pub(crate) key: TransferKey,
    /// The error code of what is wrong.
    pub(crate) problem: u32,
}

impl Command<MerchantRules> for RefuseTransfer {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<Transfers>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = rows.get::<Transfers>(&self.key).ok_or(Refusal::TransferUnknown)?.clone();
        // What was verified once stays so.
        if !known.verified {
            rows.update::<Transfers>(&self.key, TransferRow { problem: self.problem, ..known });
        }
        Ok(())
    }
}

/// An exchange's statement about a transfer that adds up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The sum that it paid.
    pub total: Money,
    /// The wire fee that it took.
    pub wire_fee: Money,
    /// When it made the transfer.
    pub execution_time: Timestamp,
    /// The key of the statement.
    pub exchange_pub: EddsaPublicKey,
    pub exchange_sig: EddsaSignature,
}

/// Books the transfer that pays for coins. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct RecordWires {
    /// The coins.
    pub(crate) wires: Vec<(OrderWireKey, OrderWireRow)>,
    /// The statement that confirms them, if it was checked. It is booked with the first of its coins, so that the transfer
    /// stays from then on.
    pub(crate) checked: Option<CheckedTransfer>,
}

/// A transfer whose statement adds up.
#[derive(Clone, Debug)]
pub(crate) struct CheckedTransfer {
    pub(crate) key: TransferKey,
    /// The amount that the shop had reported when the statement was checked.
    pub(crate) credit_amount: Option<Money>,
    pub(crate) statement: Statement,
    /// Whether these coins are the last of it: then it is verified.
    pub(crate) is_last: bool,
}

impl CheckedTransfer {
    fn book(&self, rows: &mut WorkingSet) -> Result<(), Refusal> {
        let Self { key, credit_amount, statement, is_last } = self;
        let known = rows.get::<Transfers>(key).ok_or(Refusal::TransferUnknown)?.clone();
        // The shop may have forgotten it, and reported it with another amount.
        if known.credit_amount != *credit_amount {
            return Err(Refusal::TransferUnknown);
        }
        // What was verified once stays so.
        let row = match known.verified {
            true => known,
            false => TransferRow {
                total: Some(statement.total),
                wire_fee: Some(statement.wire_fee),
                execution_time: Some(statement.execution_time),
                exchange_pub: Some(statement.exchange_pub),
                exchange_sig: Some(statement.exchange_sig),
                verified: *is_last,
                problem: 0,
                ..known
            },
        };
        rows.update::<Transfers>(key, row);
        Ok(())
    }
}

impl Command<MerchantRules> for RecordWires {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        for (key, _) in &self.wires {
            plan_order(key.order, plan);
            plan.row::<OrderWires>(key.clone());
        }
        if let Some(checked) = &self.checked {
            plan.row::<Transfers>(checked.key.clone());
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        if let Some(checked) = &self.checked {
            checked.book(rows)?;
        }
        for (key, row) in &self.wires {
            match rows.get::<OrderWires>(key) {
                None => rows.insert::<OrderWires>(key, row.clone()),
                // What the shop has confirmed stays so.
                Some(known) if known.confirmed || known == row => {}
                Some(_) => rows.update::<OrderWires>(key, row.clone()),
            }
        }
        let orders: BTreeSet<OrderRef> = self.wires.iter().map(|(key, _)| key.order).collect();
        for order in orders {
            let key = OrderKey { order };
            let Some(row) = rows.get::<Orders>(&key).cloned() else { continue };
            let wired = row.wired || (row.paid.is_some() && is_wired(rows, order));
            // In any case: whoever books another transfer of the order at the same time decides again.
            rows.update::<Orders>(&key, OrderRow { wired, ..row });
        }
        Ok(())
    }
}

/// Forgets a transfer whose statement was not checked: others have confirmed coins.
#[derive(Clone, Debug)]
pub(crate) struct DeleteTransfer {
    pub(crate) key: TransferKey,
}

impl Command<MerchantRules> for DeleteTransfer {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<Transfers>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = rows.get::<Transfers>(&self.key).ok_or(Refusal::TransferUnknown)?;
        if known.verified || known.exchange_sig.is_some() {
            return Err(Refusal::TransferVerified);
        }
        rows.delete::<Transfers>(&self.key);
        Ok(())
    }
}

/// Books whether an exchange asks who owns an account.
#[derive(Clone, Debug)]
pub(crate) struct RecordKyc {
    /// The account at the exchange.
    pub(crate) key: AccountKycKey,
    /// The exchange's answer.
    pub(crate) row: AccountKycRow,
}

impl Command<MerchantRules> for RecordKyc {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<AccountKycs>(self.key.clone());
        plan.row::<Instances>(InstanceKey::new(&self.key.instance));
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let instance = InstanceKey::new(&self.key.instance);
        if rows.get::<Instances>(&instance).is_none() {
            return Err(Refusal::InstanceUnknown);
        }
        rows.depend_on::<Instances>(&instance);
        rows.put::<AccountKycs>(&self.key, self.row.clone());
        Ok(())
    }
}

fn plan_order(order: OrderRef, plan: &mut Plan) {
    orders::plan_payment(order, plan);
    plan.group::<OrderWires>(OrderWires::BY_ORDER, &order);
}

/// Returns whether the shop has confirmed transfers for all coins of an order that were not refunded in full.
fn is_wired(rows: &WorkingSet, order: OrderRef) -> bool {
    let wires = rows.group::<OrderWires>(OrderWires::BY_ORDER, &order);
    let refunds = rows.group::<OrderRefunds>(OrderRefunds::BY_ORDER, &order);
    let deposits = rows.group::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
    deposits.into_iter().all(|(deposit, row)| {
        let of_coin = refunds.iter().filter(|(refund, _)| refund.coin_pub == deposit.coin_pub);
        let refunded = Money::checked_sum(of_coin.map(|(_, refund)| refund.amount)).unwrap_or(Money::MAX);
        refunded >= row.amount
            || wires.iter().any(|(wire, row)| wire.coin_pub == deposit.coin_pub && row.confirmed)
    })
}
