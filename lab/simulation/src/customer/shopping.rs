//! Purchases at the shop: an order, its contract, its payment, and its refund.

use batzen_protocol::Timestamp;
use batzen_wallet::core::http::HttpResponse;
use batzen_wallet::core::purchase::order::PayUri;
use batzen_wallet::core::purchase::{Order, PurchaseStage, SignedContract, pay, refunds};
use batzen_wallet::core::state::{OpKind, WalletOperation};
use batzen_wallet::core::{self, Change, Next, OpId};

use super::{Customer, Purpose};
use crate::host::Step;
use crate::message::{Context, ProcessId};
use crate::shop::{order_request, refund_request};

/// A purchase that has not begun yet.
pub(super) enum Shopping {
    /// The shop is asked to make the order of this number.
    Ordered(String),
    /// The shop is asked for the contract.
    Claimed(Box<Order>),
}

impl Customer {
    /// Orders something at the shop's page.
    pub(super) fn buy(&mut self, context: &mut Context) {
        if self.shopping.is_some() {
            return;
        }
        self.bought += 1;
        let order_id = format!("{}-{}", self.index, self.bought);
        let request = order_request(&order_id, context.random.between(5, 300));
        self.shopping = Some(Shopping::Ordered(order_id));
        self.ask(context, ProcessId::Shop, request, Purpose::Shopping);
    }

    /// May return something that it has bought: the shop's owner approves a refund of a part of it.
    pub(super) fn bring_back(&mut self, context: &mut Context) {
        let now = self.now(context);
        let bought: Vec<(OpId, String)> = self
            .state
            .operations
            .values()
            .filter_map(|operation| match &operation.kind {
                OpKind::Purchase(record)
                    if record.stage == PurchaseStage::Done && now < record.terms().refund_deadline =>
                {
                    Some((operation.id, record.terms().order_id.clone()))
                }
                _ => None,
            })
            .collect();
        // Nothing is drawn for customers without purchases, whose runs stay as they are.
        if bought.is_empty() || !context.random.chance(500) {
            return;
        }
        let (id, order_id) = context.random.pick(&bought).clone();
        let request = refund_request(&order_id, context.random.between(1, 60));
        self.ask(context, ProcessId::Shop, request, Purpose::Approval(id));
    }

    /// The owner answers. The wallet takes what was approved, also if only the answer to an earlier request was lost.
    pub(super) fn approved(&mut self, context: &mut Context, id: OpId, response: &HttpResponse) -> Step {
        if response.status != 200 {
            context.marks.meet("shop.refund_refused");
            return Ok(());
        }
        context.marks.meet("shop.refund_approved");
        let now = self.now(context);
        let begun = refunds::start(&self.state, id, now);
        if self.begin(context, begun)?.is_some() {
            self.go_on(context)?;
        }
        Ok(())
    }

    /// Asks for the refunds of everything bought. The owner may have approved one in an answer that was lost, and the shop may
    /// have had the exchange pay it because an earlier question arrived late; the wallet learns of it when it asks.
    pub(crate) fn ask_for_refunds(&mut self, context: &mut Context) -> Step {
        let is_bought = |operation: &WalletOperation| matches!(&operation.kind, OpKind::Purchase(record) if record.stage == PurchaseStage::Done);
        let bought: Vec<OpId> = self
            .state
            .operations
            .values()
            .filter(|operation| is_bought(operation))
            .map(|operation| operation.id)
            .collect();
        for id in bought {
            let begun = refunds::start(&self.state, id, self.now(context));
            self.begin(context, begun)?;
        }
        self.go_on(context)
    }

    /// Pays an order with other coins at the same time, with a copy of the wallet.
    fn pay_twice(&mut self, context: &mut Context, id: OpId, contract: &SignedContract, now: Timestamp) {
        let mut copy = self.state.clone();
        copy.operations.remove(&id);
        let Ok((again, changes)) = pay::start(&copy, contract, "", now, &mut self.entropy) else { return };
        for change in changes {
            copy.apply(change);
        }
        if let Ok(Next::Request(request)) = core::next(&copy, again, 0) {
            self.ask(context, ProcessId::Shop, *request, Purpose::Theft);
        }
    }

    /// The shop answers: the order is claimed, then paid. What it does not answer is forgotten; nobody pays it.
    pub(super) fn shop_on(&mut self, context: &mut Context, response: &HttpResponse) -> Step {
        let now = self.now(context);
        let Some(shopping) = self.shopping.take().filter(|_| response.status == 200) else { return Ok(()) };
        match shopping {
            Shopping::Ordered(order_id) => {
                let uri = PayUri::parse(&format!("taler+http://pay/shop.test/{order_id}/"));
                let uri = uri.map_err(|error| self.wrong(&error))?;
                let (order, changes) = uri.open(&self.state, now, &mut self.entropy);
                if self.store(context, changes) {
                    let request = order.claim_request();
                    self.shopping = Some(Shopping::Claimed(Box::new(order)));
                    self.ask(context, ProcessId::Shop, request, Purpose::Shopping);
                }
                Ok(())
            }
            Shopping::Claimed(order) => {
                let order = order.read_claim(response).map_err(|error| self.wrong(&error))?;
                let Some(contract) = order.contract.clone() else { return Ok(()) };
                if !self.store(context, vec![Change::Order(Box::new(order))]) {
                    return Ok(());
                }
                let begun = pay::start(&self.state, &contract, "", now, &mut self.entropy);
                let Some(id) = self.begin(context, begun)? else { return Ok(()) };
                if self.is_thief {
                    self.pay_twice(context, id, &contract, now);
                }
                self.go_on(context)
            }
        }
    }
}
