//! Pays a claimed order, until the merchant has signed a receipt.
//!
//! Coins are debited before the request is sent. The merchant deposits them one by one and remembers each, so
//! an unanswered request is repeated unchanged. If a coin turns out to be spent, another one replaces it and
//! the others stay as they are, because the merchant may have deposited them already. When a purchase fails,
//! its coins are refreshed; if the merchant has deposited one after all, the exchange proves that then.

use std::collections::BTreeSet;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::api::merchant::{PayCoin, PayRequest};
use batzen_protocol::signatures::{MerchantPaymentOk, SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Money, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::operation::{Operation, Step, View};
use super::super::proof::coin as coin_proof;
use super::super::proof::known::Known;
use super::super::row::{Transaction, Wait, about, units};
use super::super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::super::{Change, CoreError, Entropy};
use super::failure::{fail, give_all_back};
use super::order::purchase_of;
use super::{
    COIN_MS, COINS_MS_MAX, Purchase, PurchaseCoin, PurchaseReceipt, PurchaseStage, SignedContract, fees,
};
use super::{abort, refunds};
use crate::core::error::{Result, bad_input, false_proof};

/// Merchant: the exchange says that a coin has not enough value left.
const INSUFFICIENT_FUNDS: u32 = 2150;
/// Merchant: the order was paid with other coins.
const ALREADY_PAID: u32 = 2160;

const WHAT: &str = "paying the shop";

/// Records the purchase of a claimed order and debits its coins. An order that is paid, or being paid, is not
/// paid again.
///
/// # Errors
/// If the offer has expired, or as [`fees::preview`].
pub fn start(
    state: &WalletState,
    contract: &SignedContract,
    session_id: &str,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let terms = &contract.terms;
    let key = (terms.merchant_base_url.clone(), terms.order_id.clone());
    if let Some(id) = purchase_of(state, &key) {
        return Ok((id, Vec::new()));
    }
    if terms.is_expired(now) {
        return Err(bad_input("the shop's contract", "the offer has expired; order again"));
    }
    let plan = fees::preview(state, terms, now)?;
    let mut record = Purchase {
        contract: contract.clone(),
        session_id: session_id.to_owned(),
        wire_fee_share: plan.wire_fee_share,
        coins: Vec::new(),
        stage: PurchaseStage::Pay,
        receipt: None,
        reason: None,
    };
    let exchange = plan.exchanges.first().cloned();
    let exchange =
        exchange.ok_or_else(|| CoreError::Inconsistent("a purchase has no exchange".to_owned()))?;
    let mut draft = Draft::new(state);
    record.take(draft.allocate(&plan.coins, entropy)?);
    let id = draft.begin(now, &exchange, record);
    let mut changes = draft.into_changes();
    // The purchase has the contract now.
    if let Some(order) = state.orders.get(&key) {
        changes.push(Change::Order(Box::new(super::Order { contract: None, ..order.clone() })));
    }
    Ok((id, changes))
}

fn permission(state: &WalletState, record: &Purchase, part: &PurchaseCoin) -> Result<PayCoin> {
    let terms = record.terms();
    let coin = state.coin(&part.coin_pub)?;
    let exchange = state.exchange(&coin.exchange)?;
    let message = WalletCoinDeposit {
        h_contract_terms: terms.h_contract_terms,
        h_age_commitment: coin.signed_h_age()?,
        h_policy: HashCode::ZERO,
        h_wire: terms.h_wire,
        h_denom_pub: coin.h_denom_pub,
        wallet_timestamp: terms.timestamp,
        refund_deadline: terms.refund_deadline,
        amount_with_fee: exchange.amount(part.amount),
        deposit_fee: exchange.amount(part.fee_deposit),
        merchant_pub: terms.merchant_pub,
    };
    let (mut minimum_age_sig, mut age_commitment, mut h_age_commitment) = (None, None, None);
    match &coin.age {
        Some(age) if terms.min_age > 0 => {
            minimum_age_sig = Some(age.attest(terms.min_age)?);
            age_commitment = Some(age.keys.clone());
        }
        Some(age) => h_age_commitment = Some(age.hash()?),
        None => {}
    }
    Ok(PayCoin {
        coin_pub: coin.coin_pub,
        coin_sig: message.sign(&coin.coin_priv),
        ub_sig: coin.denom_sig.clone(),
        h_denom: coin.h_denom_pub,
        contribution: message.amount_with_fee,
        exchange_url: exchange.own_url().to_owned(),
        minimum_age_sig,
        age_commitment,
        h_age_commitment,
    })
}

impl Operation for Purchase {
    fn name(&self) -> &'static str {
        "payment"
    }

    fn next(&self, state: &WalletState, _operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        if self.stage == PurchaseStage::Abort {
            return abort::next(state, self);
        }
        let coins = self.spent().map(|part| permission(state, self, part)).collect::<Result<_>>()?;
        let body = PayRequest { coins, session_id: Some(self.session_id.clone()) };
        let terms = self.terms();
        let url = format!("{}orders/{}/pay", terms.merchant_base_url, terms.order_id);
        let wait_ms = COINS_MS_MAX.min(COIN_MS * body.coins.len() as u64);
        Ok(HttpRequest::post(Context::Merchant, url, &body).polling(wait_ms))
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let record = *self;
        // The user may have given it up while the request was under way. A receipt counts in any case.
        let is_pay = step.request.url.ends_with("/pay");
        if record.stage == PurchaseStage::Abort && !is_pay {
            return abort::receive(step, record, response);
        }
        if !is_pay || (record.stage == PurchaseStage::Abort && response.status != 200) {
            step.proceed(record);
            return Ok(());
        }
        match (response.status, response.code().to_u32()) {
            (200, _) => confirmed(step, record, response),
            (409, INSUFFICIENT_FUNDS) => replace(step, record, response),
            (409, ALREADY_PAID) => {
                let reason = "the order was paid with other coins, perhaps by a copy of this wallet";
                fail(step, record, reason.to_owned())
            }
            // Final, if it is the backend that says so, and not something in front of it.
            (400 | 410, code) if code != 0 => abort::begin(step, record, response.refusal(WHAT).to_string()),
            _ => Err(response.refusal(WHAT)),
        }
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        self.unsettled().any(|part| part.coin_pub == *coin_pub)
    }

    fn is_outgoing(&self) -> bool {
        true
    }

    fn spans_exchanges(&self) -> bool {
        true
    }

    fn held(&self, View { state, exchange, .. }: View<'_>) -> Result<Money> {
        let parts = self.unsettled().filter(|part| state.is_coin_of(&part.coin_pub, exchange));
        Ok(Money::checked_sum(parts.map(|part| part.amount))?)
    }

    fn effect(&self, View { operation, .. }: View<'_>) -> Result<i128> {
        if operation.is_disputed() {
            // What the merchant has given back has a row of its own.
            let refunded = self.spent().filter(|part| part.is_refunded).map(|part| part.amount);
            return Ok(-units(Money::checked_sum(refunded)?));
        }
        Ok(-units(self.totals()?.0))
    }

    fn coin_changes(&self, _: &WalletState, change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        for part in &self.coins {
            let taken = if part.is_back { Money::ZERO } else { part.amount };
            change(&part.coin_pub, -units(taken));
        }
        Ok(())
    }

    fn describe(&self, View { state, exchange, operation }: View<'_>, row: &mut Transaction) -> Result<()> {
        let terms = self.terms();
        let fees = exchange.amount(fees_of(self)?);
        row.amount = terms.amount;
        row.fees = fees;
        row.coins = self.spent().count();
        row.merchant = Some(terms.merchant_name.clone());
        row.h_contract_terms = Some(terms.h_contract_terms.to_string());
        row.description = format!("{}{}: {}", terms.merchant_name, about(&terms.summary), terms.amount);
        if !fees.is_zero() {
            row.description.push_str(&format!(" plus {fees} of fees"));
        }
        let refunded = refunds::of_purchase(state, operation.id).map(|(_, refund)| Ok(refund.totals()?.0));
        let refunded = Money::checked_sum(refunded.collect::<Result<Vec<_>>>()?)?;
        if !refunded.is_zero() {
            let refunded = exchange.amount(refunded);
            row.refunded = Some(refunded);
            row.description.push_str(&format!("; {refunded} refunded"));
        }
        row.fail_if(self.stage == PurchaseStage::Failed);
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        if self.stage == PurchaseStage::Abort {
            return Ok(Wait { reason: "waits for the shop to give the money back", until: None });
        }
        let until = Some((self.terms().pay_deadline, "offer expires"));
        Ok(Wait { reason: "waits for the shop's receipt", until })
    }

    fn add_known(&self, _: &Draft<'_>, id: OpId, coin_pub: &EddsaPublicKey, known: &mut Known) -> Result<()> {
        let contract = (self.terms().merchant_pub, self.terms().h_contract_terms);
        for part in self.coins.iter().filter(|part| part.coin_pub == *coin_pub && part.is_back) {
            known.purchases.push((contract, part.amount, id));
        }
        Ok(())
    }
}

fn confirmed(step: &mut Step<'_, '_>, mut record: Purchase, response: &HttpResponse) -> Result<()> {
    #[derive(Deserialize)]
    struct Confirmation {
        sig: EddsaSignature,
    }
    let receipt = response.json::<Confirmation>(WHAT)?.sig;
    let message = MerchantPaymentOk { h_contract_terms: record.terms().h_contract_terms };
    if !message.verify(&record.terms().merchant_pub, &receipt) {
        return Err(CoreError::BadSignature { what: "the shop's receipt" });
    }
    record.receipt = Some(receipt);
    record.stage = PurchaseStage::Done;
    refunds::start_automatic(step, record.terms())?;
    step.finish(record);
    Ok(())
}

/// Drops the coin that the exchange has proved to be spent, and selects others for what is missing.
fn replace(step: &mut Step<'_, '_>, mut record: Purchase, response: &HttpResponse) -> Result<()> {
    let unproved = |reason: &str| false_proof("the shop's statement that a coin is spent", reason);
    let body: Value = response.json(WHAT)?;
    let reply = body.get("exchange_reply").ok_or_else(|| unproved("the exchange's proof is missing"))?;
    let reply = HttpResponse {
        status: 409,
        body: serde_json::to_vec(reply).map_err(|error| unproved(&error.to_string()))?,
        ..HttpResponse::default()
    };
    let coin_pub =
        coin_proof::named(&reply).ok_or_else(|| unproved("it does not say which coin it is about"))?;
    let position = record.coins.iter().position(|part| part.coin_pub == coin_pub && !part.is_back);
    let position = position.ok_or_else(|| unproved("it is about a coin that is not in the request"))?;
    let terms = record.terms();
    let about = coin_proof::Asked::Deposit {
        contract: (terms.merchant_pub, terms.h_contract_terms),
        amount: record.coins[position].amount,
    };
    let proof = coin_proof::verify(&step.draft, &coin_pub, about, step.accept_refused, &reply, step.now)?;
    let dropped = record.coins.remove(position);
    step.draft.credit_coin(&coin_pub, dropped.amount)?;
    coin_proof::accept(step, &coin_pub, &proof)?;

    let kept: Vec<PurchaseCoin> = record.spent().copied().collect();
    match fees::select(&step.draft, record.terms(), &kept, step.now) {
        Ok(plan) => {
            record.wire_fee_share = plan.wire_fee_share;
            record.take(step.draft.allocate(&plan.coins, step.entropy)?);
            step.proceed(record);
            Ok(())
        }
        Err(
            error @ (CoreError::InsufficientFunds { .. }
            | CoreError::TooManyCoins { .. }
            | CoreError::AgeNotProven { .. }),
        ) => abort::begin(step, record, error.to_string()),
        Err(error) => Err(error),
    }
}

/// The changes that give up an open purchase. Its coins are refreshed. What the merchant has deposited by then
/// is the merchant's, as the exchange proves.
///
/// # Errors
/// [`CoreError::BadInput`] if it is no purchase, or finished.
pub(crate) fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<Change>> {
    let mut operation = state.operation(id)?.clone();
    let OpKind::Purchase(record) = &mut operation.kind else {
        return Err(bad_input("operation", "it is no purchase"));
    };
    if operation.finished.is_some() {
        return Err(bad_input("operation", "it is finished"));
    }
    let mut draft = Draft::new(state);
    give_all_back(&mut draft, record)?;
    record.stage = PurchaseStage::Failed;
    record.reason = Some("cancelled by you".to_owned());
    operation.end(now);
    draft.put_operation(operation);
    Ok(draft.into_changes())
}

/// Returns the sum that the payer pays above the price.
pub(crate) fn fees_of(record: &Purchase) -> Result<Money> {
    Ok(fees::saturating_sub(record.totals()?.0, record.terms().amount.money))
}

/// Base URLs of the exchanges whose coins pay.
fn exchanges_of(state: &WalletState, record: &Purchase) -> Result<Vec<String>> {
    let mut urls = BTreeSet::new();
    for part in record.spent() {
        urls.insert(state.coin(&part.coin_pub)?.exchange.clone());
    }
    Ok(urls.into_iter().collect())
}

/// The receipt of a paid purchase.
///
/// # Errors
/// [`CoreError::BadInput`] if the operation is no purchase, or is not paid.
pub(crate) fn receipt(state: &WalletState, id: OpId) -> Result<PurchaseReceipt> {
    let operation = state.operation(id)?;
    let OpKind::Purchase(record) = &operation.kind else {
        return Err(bad_input("operation", format!("{id} is no purchase")));
    };
    if record.receipt.is_none() {
        let reason = record.reason.clone().unwrap_or_else(|| "not confirmed yet".to_owned());
        return Err(bad_input("purchase", reason));
    }
    let exchange = state.exchange(&operation.exchange)?;
    Ok(PurchaseReceipt {
        operation: id,
        exchanges: exchanges_of(state, record)?,
        total: exchange.amount(record.totals()?.0),
        fees: exchange.amount(fees_of(record)?),
        fulfillment_url: record.terms().fulfillment_url.clone(),
        proof: record.proof(),
    })
}
