//! Refunds: the merchant returns money to the coin that paid, less the refund fee. A refresh then turns it
//! into fresh coins.
//!
//! The merchant signs a permission for each coin. Anybody may send it to the exchange, any number of times.
//! The wallet sends it itself, and so gets the exchange's confirmation. For purchases the merchant's backend
//! sends it and shows the wallet the confirmation ([`refunds`]).

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantRefund, SignedMessage};
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::encoding::text;
use super::http::{Context, HttpRequest, HttpResponse};
use super::machine::Step;
use super::payment::Payment;
use super::purchase::refunds;
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{Change, CoreError};
use batzen_protocol::api::exchange::{RefundConfirmation, RefundRequest};

/// A merchant's permission to refund a part of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundPermission {
    /// The coin that paid.
    pub coin_pub: EddsaPublicKey,
    /// The merchant's number of this refund of this coin.
    pub rtransaction_id: u64,
    /// The amount, refund fee included.
    pub amount: Amount,
    /// The `MERCHANT_REFUND` signature.
    pub merchant_sig: EddsaSignature,
}

/// Stage of one permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub enum RefundState {
    /// To be sent to the exchange.
    Open,
    /// The coin was credited.
    Done,
    /// Refused.
    Failed(String),
}

/// One permission with its stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundItem {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The merchant's number.
    pub rtransaction_id: u64,
    /// The amount, fee included.
    #[serde(with = "text")]
    pub amount: Money,
    /// The fee in it.
    #[serde(with = "text")]
    pub fee_refund: Money,
    /// The merchant's signature, if the wallet sends the permission itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merchant_sig: Option<EddsaSignature>,
    /// The exchange's signing key, and its confirmation, if the merchant has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<(EddsaPublicKey, EddsaSignature)>,
    /// Its stage.
    pub progress: RefundState,
}

/// A refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The payment or purchase.
    pub payment: OpId,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// When the merchant approved it, if the wallet picks it up at the merchant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Timestamp>,
    /// The permissions, or the merchant's entries.
    pub items: Vec<RefundItem>,
}

impl Refund {
    /// The amount refunded, and the fees taken from it.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub fn totals(&self) -> Result<(Money, Money), CoreError> {
        let done = || self.items.iter().filter(|item| item.progress == RefundState::Done);
        let amount = Money::checked_sum(done().map(|item| item.amount))?;
        let fees = Money::checked_sum(done().map(|item| item.fee_refund))?;
        Ok((amount.checked_sub(fees)?, fees))
    }
}

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
) -> Result<Option<(OpId, Vec<Change>)>, CoreError> {
    let (payment_op, payment) = find_payment(state, h_contract_terms)?;
    let exchange = state.exchange(&payment_op.exchange)?;
    let mut items: Vec<RefundItem> = Vec::new();
    for permission in permissions {
        let bad = |reason: &str| CoreError::BadInput { what: "refund permission", reason: reason.to_owned() };
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
    let id = draft.next_id();
    draft.put_operation(WalletOperation {
        id,
        created: now,
        finished: None,
        exchange: payment_op.exchange.clone(),
        last_error: None,
        dispute: None,
        kind: OpKind::Refund(Box::new(Refund {
            payment: payment_op.id,
            h_contract_terms: *h_contract_terms,
            merchant_pub: payment.merchant_pub,
            approved: None,
            items,
        })),
    });
    Ok(Some((id, draft.into_changes())))
}

fn find_payment<'a>(
    state: &'a WalletState,
    h_contract_terms: &HashCode,
) -> Result<(&'a WalletOperation, &'a Payment), CoreError> {
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
        .ok_or_else(|| CoreError::BadInput {
            what: "refund permission",
            reason: "this wallet made no payment for that contract".to_owned(),
        })
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

pub(crate) fn next(
    state: &WalletState,
    operation: &WalletOperation,
    record: &Refund,
) -> Result<HttpRequest, CoreError> {
    if record.approved.is_some() {
        return refunds::take_request(state, record.payment);
    }
    let position = open_item(record)
        .ok_or_else(|| CoreError::Inconsistent(format!("refund {} ended without date", operation.id)))?;
    let item = &record.items[position];
    let merchant_sig = item.merchant_sig.ok_or_else(|| {
        CoreError::Inconsistent(format!("refund {} has no permission to send", operation.id))
    })?;
    let body = RefundRequest {
        refund_amount: state.exchange(&operation.exchange)?.amount(item.amount),
        h_contract_terms: record.h_contract_terms,
        merchant_pub: record.merchant_pub,
        rtransaction_id: item.rtransaction_id,
        merchant_sig,
    };
    Ok(HttpRequest::post(
        Context::Deposit,
        format!("{}coins/{}/refund", operation.exchange, item.coin_pub),
        &body,
    ))
}

pub(crate) fn receive(
    step: &mut Step<'_, '_>,
    mut record: Refund,
    response: &HttpResponse,
) -> Result<(), CoreError> {
    if record.approved.is_some() {
        return refunds::receive_again(step, record, response);
    }
    let Some(position) = open_item(&record) else {
        step.finish(OpKind::Refund(Box::new(record)));
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
        step.proceed(OpKind::Refund(Box::new(record)));
    } else {
        step.finish(OpKind::Refund(Box::new(record)));
    }
    Ok(())
}
