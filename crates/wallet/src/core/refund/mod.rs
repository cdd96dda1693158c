//! Refunds: the merchant returns money to the coin that paid, less the refund fee. A refresh then turns it
//! into fresh coins.
//!
//! The merchant signs a permission for each coin. Anybody may send it to the exchange, any number of times.
//! The wallet sends it itself, and so gets the exchange's confirmation. For purchases the merchant's backend
//! sends it and shows the wallet the confirmation ([`refunds`]).

mod record;

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{RefundConfirmation, RefundRequest};
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantRefund, SignedMessage};
use batzen_protocol::{ErrorCode, Money, Timestamp};

use super::http::{Context, HttpRequest, HttpResponse};
use super::operation::{Operation, Step, View};
use super::payment::Payment;
use super::proof::known::Known;
use super::purchase::refunds;
use super::row::{Transaction, Wait, about, describe_fees, units};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{Change, CoreError};
use crate::core::error::{Result, bad_input};

pub use record::*;

/// Records permissions for the payment of contract `h_contract_terms`. Skips permissions that are already
/// known; returns `None` if all are.
///
/// # Errors
/// If there is no such payment or coin, a signature is wrong, or the refunds exceed the payment.
pub fn start(
    state: &WalletState,
    h_contract_terms: &HashCode,
    permissions: &[RefundPermission],
    now: Timestamp,
) -> Result<Option<(OpId, Vec<Change>)>> {
    let (payment_op, payment) = find_payment(state, h_contract_terms)?;
    let exchange = state.exchange(&payment_op.exchange)?;
    let mut items: Vec<RefundItem> = Vec::new();
    for permission in permissions {
        let bad = |reason: &str| bad_input("refund permission", reason);
        let paid = payment
            .coins
            .iter()
            .find(|coin| coin.coin_pub == permission.coin_pub)
            .ok_or_else(|| bad("its coin is not part of the payment"))?;
        let message = MerchantRefund {
            h_contract_terms: *h_contract_terms,
            coin_pub: permission.coin_pub,
            rtransaction_id: permission.rtransaction_id,
            refund_amount: permission.amount,
        };
        if !message.verify(&payment.merchant_pub, &permission.merchant_sig) {
            return Err(CoreError::BadSignature { what: "the merchant's refund permission" });
        }
        let amount = permission.amount.money_in(exchange.currency)?;
        let fee_refund = exchange.denom(&state.coin(&permission.coin_pub)?.h_denom_pub)?.fee_refund;
        if amount < fee_refund {
            return Err(bad("it is smaller than the refund fee"));
        }
        let earlier = known_items(state, payment_op.id).chain(&items).filter(|item| {
            item.coin_pub == permission.coin_pub && !matches!(item.progress, RefundState::Failed(_))
        });
        let mut sum = amount;
        let mut repeated = false;
        for item in earlier {
            repeated |= item.rtransaction_id == permission.rtransaction_id;
            sum = sum.checked_add(item.amount)?;
        }
        if repeated {
            continue;
        }
        if sum > paid.amount {
            return Err(bad("the refunds exceed what the coin paid"));
        }
        items.push(RefundItem {
            coin_pub: permission.coin_pub,
            rtransaction_id: permission.rtransaction_id,
            amount,
            fee_refund,
            merchant_sig: Some(permission.merchant_sig),
            confirmation: None,
            progress: RefundState::Open,
        });
    }
    if items.is_empty() {
        return Ok(None);
    }
    let mut draft = Draft::new(state);
    let record = Refund {
        payment: payment_op.id,
        h_contract_terms: *h_contract_terms,
        merchant_pub: payment.merchant_pub,
        approved: None,
        items,
    };
    let id = draft.begin(now, &payment_op.exchange, record);
    Ok(Some((id, draft.into_changes())))
}

fn find_payment<'a>(
    state: &'a WalletState,
    h_contract_terms: &HashCode,
) -> Result<(&'a WalletOperation, &'a Payment)> {
    state
        .operations
        .values()
        .rev()
        .find_map(|operation| match &operation.kind {
            OpKind::Payment(payment) if payment.h_contract_terms == *h_contract_terms => {
                Some((operation, payment.as_ref()))
            }
            _ => None,
        })
        .ok_or_else(|| bad_input("refund permission", "this wallet made no payment for that contract"))
}

fn known_items(state: &WalletState, payment: OpId) -> impl Iterator<Item = &RefundItem> {
    state.operations.values().flat_map(move |operation| match &operation.kind {
        OpKind::Refund(refund) if refund.payment == payment => refund.items.as_slice(),
        _ => &[],
    })
}

fn open_item(record: &Refund) -> Option<usize> {
    record.items.iter().position(|item| item.progress == RefundState::Open)
}

impl Operation for Refund {
    fn name(&self) -> &'static str {
        "refund"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        if self.approved.is_some() {
            return refunds::take_request(state, self.payment);
        }
        let position = open_item(self)
            .ok_or_else(|| CoreError::Inconsistent(format!("refund {} ended without date", operation.id)))?;
        let item = &self.items[position];
        let merchant_sig = item.merchant_sig.ok_or_else(|| {
            CoreError::Inconsistent(format!("refund {} has no permission to send", operation.id))
        })?;
        let body = RefundRequest {
            refund_amount: state.exchange(&operation.exchange)?.amount(item.amount),
            h_contract_terms: self.h_contract_terms,
            merchant_pub: self.merchant_pub,
            rtransaction_id: item.rtransaction_id,
            merchant_sig,
        };
        Ok(HttpRequest::post(
            Context::Deposit,
            format!("{}coins/{}/refund", operation.exchange, item.coin_pub),
            &body,
        ))
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let mut record = *self;
        if record.approved.is_some() {
            return refunds::receive_again(step, record, response);
        }
        let Some(position) = open_item(&record) else {
            step.finish(record);
            return Ok(());
        };
        let item = &mut record.items[position];
        match (response.status, response.code()) {
            (200, _) => {
                let answer: RefundConfirmation = response.json("taking back money")?;
                let exchange = step.draft.exchange(&step.operation.exchange)?;
                exchange.require_signing_key(&answer.exchange_pub, step.now)?;
                let message = ExchangeConfirmRefund {
                    h_contract_terms: record.h_contract_terms,
                    coin_pub: item.coin_pub,
                    merchant_pub: record.merchant_pub,
                    rtransaction_id: item.rtransaction_id,
                    refund_amount: exchange.amount(item.amount),
                };
                if !message.verify(&answer.exchange_pub, &answer.exchange_sig) {
                    return Err(CoreError::BadSignature { what: "the exchange's confirmation of a refund" });
                }
                step.draft.credit_coin(&item.coin_pub, item.amount.checked_sub(item.fee_refund)?)?;
                item.progress = RefundState::Done;
            }
            (410, ErrorCode::EXCHANGE_REFUND_MERCHANT_ALREADY_PAID) => {
                item.progress = RefundState::Failed(
                    "too late: the merchant has been paid; ask the merchant for the money".to_owned(),
                );
            }
            (400..=499, code) if code != ErrorCode::NONE => {
                item.progress = RefundState::Failed(response.refusal("taking back money").to_string());
            }
            _ => return Err(response.refusal("taking back money")),
        }
        if open_item(&record).is_some() {
            step.proceed(record);
        } else {
            step.finish(record);
        }
        Ok(())
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        self.items.iter().any(|item| item.coin_pub == *coin_pub)
    }

    fn spans_exchanges(&self) -> bool {
        true
    }

    fn held(&self, View { state, exchange, .. }: View<'_>) -> Result<Money> {
        let mut sum = Money::ZERO;
        for item in self.items.iter().filter(|item| item.progress == RefundState::Open) {
            if state.is_coin_of(&item.coin_pub, exchange) {
                sum = sum.checked_add(item.amount.checked_sub(item.fee_refund)?)?;
            }
        }
        Ok(sum)
    }

    fn effect(&self, _: View<'_>) -> Result<i128> {
        let kept = self.items.iter().filter(|item| !matches!(item.progress, RefundState::Failed(_)));
        let mut sum = 0;
        for item in kept {
            sum += units(item.amount.checked_sub(item.fee_refund)?);
        }
        Ok(sum)
    }

    fn coin_changes(&self, _: &WalletState, change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        for item in self.items.iter().filter(|item| item.progress == RefundState::Done) {
            change(&item.coin_pub, units(item.amount.checked_sub(item.fee_refund)?));
        }
        Ok(())
    }

    fn describe(&self, View { state, exchange, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        let (_, fees) = self.totals()?;
        row.amount = exchange.amount(Money::checked_sum(self.items.iter().map(|item| item.amount))?);
        row.fees = exchange.amount(fees);
        row.coins = self.items.len();
        row.h_contract_terms = Some(self.h_contract_terms.to_string());
        let fees = describe_fees(&[("refund", exchange.amount(fees))]);
        row.description = match &state.operation(self.payment)?.kind {
            OpKind::Purchase(purchase) => {
                let terms = purchase.terms();
                row.merchant = Some(terms.merchant_name.clone());
                let about = about(&terms.summary);
                format!("Refund of {}{about}: {}, {fees}", terms.merchant_name, row.amount)
            }
            _ => format!("Refund: {fees}"),
        };
        let failures = self.items.iter().filter_map(|item| match &item.progress {
            RefundState::Failed(reason) => Some(reason.as_str()),
            _ => None,
        });
        let failures: Vec<&str> = failures.collect();
        if !failures.is_empty() {
            row.fail_if(failures.len() == self.items.len());
            row.message = Some(failures.join("; "));
        }
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        Ok(Wait { reason: "waits for the exchange's confirmation", until: None })
    }

    fn add_known(&self, _: &Draft<'_>, _: OpId, coin_pub: &EddsaPublicKey, known: &mut Known) -> Result<()> {
        let contract = (self.merchant_pub, self.h_contract_terms);
        for item in &self.items {
            if item.coin_pub == *coin_pub && item.progress == RefundState::Done {
                known.refunds.insert((contract, item.rtransaction_id));
            }
        }
        Ok(())
    }
}
