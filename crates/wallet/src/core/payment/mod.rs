//! Payments: coins to a merchant, or to the owner's bank account.
//!
//! The wallet debits coins before the request is sent, and credits them again only when the exchange has
//! refused for good. An unanswered request is repeated unchanged; the exchange recognises it by coin,
//! merchant and contract.

mod record;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_protocol::limits::DEPOSIT_COINS_MAX;
use batzen_protocol::signatures::{ExchangeConfirmDeposit, SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Amount, Duration, ErrorCode, Money, PaytoUri, Timestamp};

use super::coin::{Coin, CoinStatus};
use super::exchange::Exchange;
use super::http::{Context, HttpRequest, HttpResponse};
use super::operation::{Operation, Step, View};
use super::proof::coin as coin_proof;
use super::proof::denomination;
use super::proof::known::{Answer, Known};
use super::row::{Transaction, Wait, describe_fees, units};
use super::select::{PaymentPlan, Target, select_all};
use super::spend::{candidates, cheapest, choose, drop_coin, drop_denomination, take_back, unusable};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{Change, CoreError, Entropy};
use crate::core::error::{Result, bad_input};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositConfirmation, BatchDepositRequest, DepositConfirmation, DepositRequest,
};

pub use record::*;

/// Most coins in one payment, in requests of up to [`DEPOSIT_COINS_MAX`].
pub(crate) const MAX_COINS: usize = 1_024;

/// Selects the cheapest coins of one exchange for a payment, without recording anything.
///
/// # Errors
/// [`CoreError::InsufficientFunds`].
pub(crate) fn preview(
    state: &WalletState,
    base_url: &str,
    amount: Amount,
    max_fee: Money,
    now: Timestamp,
) -> Result<PaymentPlan> {
    let exchange = state.exchange(base_url)?;
    let have = candidates(state, exchange, now)?;
    let target = Target {
        amount: amount.money_in(exchange.currency)?,
        max_fee,
        max_coins: MAX_COINS,
        avoids_change: exchange.discretion.assortment,
    };
    choose(state, exchange.currency, &have, target, now)
}

/// Records a payment and debits its coins. Nothing is sent before the changes are durable.
///
/// # Errors
/// If no exchange has enough, or the request is malformed.
pub fn start(
    state: &WalletState,
    request: &PaymentRequest,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    check_payto(&request.merchant_payto)?;
    if request.wire_transfer_deadline.is_never() || request.refund_deadline > request.wire_transfer_deadline {
        let reason = "it must be a date, and not before the refund deadline";
        return Err(bad_input("wire transfer deadline", reason));
    }
    if request.amount.is_zero() {
        return Err(bad_input("amount", "it must be more than zero"));
    }
    let (base_url, plan) = match &request.exchange {
        Some(base_url) => (base_url.clone(), preview(state, base_url, request.amount, request.max_fee, now)?),
        None => cheapest(state, request.amount, |base_url| {
            preview(state, base_url, request.amount, request.max_fee, now)
        })?,
    };
    let payment = Payment {
        merchant_priv: None,
        merchant_pub: request.merchant_pub,
        payto: request.merchant_payto.clone(),
        wire_salt: request.wire_salt,
        h_contract_terms: request.h_contract_terms,
        timestamp: request.timestamp.unwrap_or(now),
        refund_deadline: request.refund_deadline,
        wire_deadline: request.wire_transfer_deadline,
        amount: request.amount.money,
        max_fee: request.max_fee,
        summary: request.summary.clone(),
        coins: Vec::new(),
        refused: Vec::new(),
        batch: true,
        stage: PaymentStage::Send,
        exchange_pub: None,
        exchange_timestamp: None,
        reason: None,
    };
    record(state, &base_url, payment, &plan, now, entropy)
}

/// Selects the coins for a deposit into the owner's account.
///
/// # Errors
/// [`CoreError::InsufficientFunds`].
pub fn preview_deposit(
    state: &WalletState,
    base_url: &str,
    amount: DepositAmount,
    now: Timestamp,
) -> Result<PaymentPlan> {
    match amount {
        DepositAmount::Exact(amount) => preview(state, base_url, amount, Money::ZERO, now),
        DepositAmount::All => {
            let exchange = state.exchange(base_url)?;
            let plan = select_all(&candidates(state, exchange, now)?, MAX_COINS)?;
            if plan.contributions.is_empty() {
                let none = exchange.amount(Money::ZERO);
                return Err(CoreError::InsufficientFunds {
                    needed: exchange.amount(Money::UNIT),
                    available: none,
                });
            }
            Ok(plan)
        }
    }
}

/// All coins for a deposit of everything at one exchange. A request carries at most [`DEPOSIT_COINS_MAX`] of them.
///
/// # Errors
/// If records contradict each other.
pub fn preview_deposit_all(state: &WalletState, base_url: &str, now: Timestamp) -> Result<PaymentPlan> {
    let exchange = state.exchange(base_url)?;
    Ok(select_all(&candidates(state, exchange, now)?, usize::MAX)?)
}

/// Checks that an exchange can pay into the account of a payto URI.
///
/// # Errors
/// [`CoreError::BadInput`] if the URI is malformed, or the exchange does not use its wire method.
pub fn check_account(exchange: &Exchange, payto: &str) -> Result<()> {
    let bad = |reason: String| bad_input("payto URI", reason);
    let account = PaytoUri::parse(payto).map_err(|error| bad(error.to_string()))?;
    let parsed: Vec<PaytoUri> =
        exchange.accounts.iter().filter_map(|own| PaytoUri::parse(own.as_str()).ok()).collect();
    let mut methods: Vec<&str> = parsed.iter().map(PaytoUri::method).collect();
    if methods.is_empty() || methods.contains(&account.method()) {
        return Ok(());
    }
    methods.sort_unstable();
    methods.dedup();
    Err(bad(format!(
        "{} cannot pay to {} accounts, but to {}",
        exchange.base_url,
        account.method(),
        methods.join(", ")
    )))
}

/// Records a deposit into the owner's bank account and debits its coins.
///
/// # Errors
/// As [`start`].
pub fn start_deposit(
    state: &WalletState,
    base_url: &str,
    amount: DepositAmount,
    payto: &str,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    check_payto(payto)?;
    let plan = preview_deposit(state, base_url, amount, now)?;
    let merchant_priv = EddsaPrivateKey::from_bytes(entropy.array());
    let payment = Payment {
        merchant_pub: merchant_priv.public_key(),
        merchant_priv: Some(merchant_priv),
        payto: payto.to_owned(),
        wire_salt: WireSalt::from_bytes(entropy.array()),
        h_contract_terms: HashCode::from_bytes(entropy.array()),
        timestamp: now,
        refund_deadline: Timestamp::ZERO,
        // As soon as possible: no refund can come.
        wire_deadline: now.saturating_add(Duration::from_secs(1)),
        amount: plan.total.checked_sub(plan.fees)?,
        max_fee: Money::ZERO,
        summary: "deposit into a bank account".to_owned(),
        coins: Vec::new(),
        refused: Vec::new(),
        batch: true,
        stage: PaymentStage::Send,
        exchange_pub: None,
        exchange_timestamp: None,
        reason: None,
    };
    record(state, base_url, payment, &plan, now, entropy)
}

fn check_payto(payto: &str) -> Result<()> {
    PaytoUri::parse(payto).map(|_| ()).map_err(|error| bad_input("payto URI", error.to_string()))
}

fn record(
    state: &WalletState,
    base_url: &str,
    mut payment: Payment,
    plan: &PaymentPlan,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let mut draft = Draft::new(state);
    payment.take(draft.allocate(plan, entropy)?);
    let id = draft.begin(now, base_url, payment);
    Ok((id, draft.into_changes()))
}

/// The coins of the next request: as many unconfirmed ones as fit, or one of them.
fn asked(payment: &Payment) -> Vec<usize> {
    let open = payment.coins.iter().enumerate().filter(|(_, coin)| coin.exchange_sig.is_none());
    open.map(|(position, _)| position).take(if payment.batch { DEPOSIT_COINS_MAX } else { 1 }).collect()
}

/// The coin's deposit signature over its contribution.
pub(crate) fn sign_deposit(
    exchange: &Exchange,
    payment: &Payment,
    part: &PaymentCoin,
    coin: &Coin,
) -> Result<EddsaSignature> {
    let message = WalletCoinDeposit {
        h_contract_terms: payment.h_contract_terms,
        h_age_commitment: coin.signed_h_age()?,
        h_policy: HashCode::ZERO,
        h_wire: payment.h_wire(),
        h_denom_pub: coin.h_denom_pub,
        wallet_timestamp: payment.timestamp,
        refund_deadline: payment.refund_deadline,
        amount_with_fee: exchange.amount(part.amount),
        deposit_fee: exchange.amount(part.fee_deposit),
        merchant_pub: payment.merchant_pub,
    };
    Ok(message.sign(&coin.coin_priv))
}

impl Operation for Payment {
    fn name(&self) -> &'static str {
        "payment"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        let exchange = state.exchange(&operation.exchange)?;
        let mut coins = Vec::new();
        for position in asked(self) {
            let part = &self.coins[position];
            let coin = state.coin(&part.coin_pub)?;
            coins.push(BatchDepositCoin {
                coin_pub: coin.coin_pub,
                contribution: exchange.amount(part.amount),
                denom_pub_hash: coin.h_denom_pub,
                ub_sig: coin.denom_sig.clone(),
                h_age_commitment: coin.h_age()?,
                coin_sig: sign_deposit(exchange, self, part, coin)?,
            });
        }
        let refund_deadline = (self.refund_deadline != Timestamp::ZERO).then_some(self.refund_deadline);
        match (coins.pop(), coins.is_empty()) {
            (Some(coin), true) => {
                let body = DepositRequest {
                    merchant_payto_uri: self.payto.clone(),
                    wire_salt: self.wire_salt,
                    contribution: coin.contribution,
                    denom_pub_hash: coin.denom_pub_hash,
                    ub_sig: coin.ub_sig,
                    merchant_pub: self.merchant_pub,
                    h_contract_terms: self.h_contract_terms,
                    h_age_commitment: coin.h_age_commitment,
                    coin_sig: coin.coin_sig,
                    timestamp: self.timestamp,
                    refund_deadline,
                    wire_transfer_deadline: self.wire_deadline,
                    policy: None,
                };
                let url = format!("{}coins/{}/deposit", operation.exchange, coin.coin_pub);
                Ok(HttpRequest::post(Context::Deposit, url, &body))
            }
            (Some(last), false) => {
                coins.push(last);
                let body = BatchDepositRequest {
                    merchant_payto_uri: self.payto.clone(),
                    wire_salt: self.wire_salt,
                    merchant_pub: self.merchant_pub,
                    h_contract_terms: self.h_contract_terms,
                    timestamp: self.timestamp,
                    refund_deadline,
                    wire_transfer_deadline: self.wire_deadline,
                    policy: None,
                    coins,
                };
                Ok(HttpRequest::post(Context::Deposit, format!("{}batch-deposit", operation.exchange), &body))
            }
            (None, _) => {
                Err(CoreError::Inconsistent(format!("payment {} has no coins left to send", operation.id)))
            }
        }
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let mut payment = *self;
        let asked = asked(&payment);
        match (response.status, response.code()) {
            (200, _) => confirmed(step, payment, &asked, response),
            (404, ErrorCode::GENERIC_ENDPOINT_UNKNOWN) if payment.batch && asked.len() > 1 => {
                payment.batch = false;
                step.proceed(payment);
                Ok(())
            }
            _ if coin_proof::is_conflict(response) => {
                let parts = asked.iter().map(|position| &payment.coins[*position]);
                let parts = parts.map(|part| (part.coin_pub, part.amount));
                let contract = (payment.merchant_pub, payment.h_contract_terms);
                let about = |amount| coin_proof::Asked::Deposit { contract, amount };
                let (coin_pub, proof) = coin_proof::verify_one_of(step, parts, about, response)?;
                replace(step, payment, &asked, drop_coin(coin_pub, proof))
            }
            _ if denomination::is_claim(response) => {
                let coins = asked.iter().map(|position| &payment.coins[*position].coin_pub);
                let (h_denom_pub, status) = unusable(step, coins, "DEPOSIT", response)?;
                replace(step, payment, &asked, drop_denomination(h_denom_pub, status))
            }
            // The exchange claims, without proof, that it booked nothing of this request. The coins are
            // refreshed, even after a deposit into the owner's account: if the exchange booked them after all,
            // the refresh reveals it.
            (400..=499, code) if code != ErrorCode::NONE => {
                let refusal = response.refusal("paying").to_string();
                record_refused(&mut payment, &asked);
                fail(step, payment, refusal, CoinStatus::Used)
            }
            _ => Err(response.refusal("paying")),
        }
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        self.coins.iter().any(|coin| coin.coin_pub == *coin_pub)
    }

    fn is_outgoing(&self) -> bool {
        true
    }

    fn held(&self, _: View<'_>) -> Result<Money> {
        Ok(self.totals()?.0)
    }

    fn effect(&self, View { operation, .. }: View<'_>) -> Result<i128> {
        Ok(if operation.is_disputed() { 0 } else { -units(self.totals()?.0) })
    }

    fn coin_changes(&self, _: &WalletState, change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        for PaymentCoin { coin_pub, amount, .. } in &self.coins {
            change(coin_pub, -units(*amount));
        }
        Ok(())
    }

    fn describe(&self, View { exchange, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        let (total, fees) = self.totals()?;
        if self.is_own_account() {
            row.kind = "deposit";
        }
        row.amount = exchange.amount(self.amount);
        row.fees = exchange.amount(fees);
        row.coins = self.coins.len();
        row.payto = Some(self.payto.clone());
        row.h_contract_terms = Some(self.h_contract_terms.to_string());
        row.description = format!(
            "{}: {} plus {}",
            self.summary,
            exchange.amount(total.checked_sub(fees)?),
            describe_fees(&[("deposit", exchange.amount(fees))])
        );
        if let Some(fee) = exchange.wire_fee(&self.payto, self.wire_deadline).filter(|fee| !fee.is_zero()) {
            row.description.push_str(&format!("; the exchange keeps a wire fee of {fee} from the transfer"));
        }
        row.fail_if(self.stage == PaymentStage::Failed);
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, View { state, exchange, .. }: View<'_>) -> Result<Wait> {
        let mut expiry = None;
        for part in &self.coins {
            let until = state.spendable_until(exchange, &part.coin_pub)?;
            expiry = Some(expiry.map_or(until, |earliest: Timestamp| earliest.min(until)));
        }
        let until = expiry.map(|until| (until, "coins expire"));
        Ok(Wait { reason: "waits for the exchange's confirmation", until })
    }

    fn add_known(&self, _: &Draft<'_>, id: OpId, coin_pub: &EddsaPublicKey, known: &mut Known) -> Result<()> {
        let contract = (self.merchant_pub, self.h_contract_terms);
        for part in self.coins.iter().filter(|part| part.coin_pub == *coin_pub) {
            let confirmed = part.exchange_sig.is_some();
            let state = if confirmed { Answer::Confirmed } else { Answer::None };
            known.deposits.push((contract, part.amount, state));
        }
        for part in self.refused.iter().filter(|part| part.coin_pub == *coin_pub) {
            known.deposits.push((contract, part.amount, Answer::Refused(id)));
        }
        Ok(())
    }
}

fn confirmed(
    step: &mut Step<'_, '_>,
    mut payment: Payment,
    asked: &[usize],
    response: &HttpResponse,
) -> Result<()> {
    let (timestamp, exchange_pub, signatures) = if asked.len() == 1 {
        let answer: DepositConfirmation = response.json("paying")?;
        (answer.exchange_timestamp, answer.exchange_pub, vec![answer.exchange_sig])
    } else {
        let answer: BatchDepositConfirmation = response.json("paying")?;
        let signatures = answer.exchange_sigs.iter().map(|item| item.exchange_sig).collect();
        (answer.exchange_timestamp, answer.exchange_pub, signatures)
    };
    if signatures.len() != asked.len() {
        let reason = format!("{} confirmations for {} coins", signatures.len(), asked.len());
        return Err(response.malformed("paying", reason));
    }
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    exchange.require_signing_key(&exchange_pub, step.now)?;
    let h_wire = payment.h_wire();
    for (&position, exchange_sig) in asked.iter().zip(signatures) {
        let part = &mut payment.coins[position];
        let message = ExchangeConfirmDeposit {
            h_contract_terms: payment.h_contract_terms,
            h_wire,
            h_policy: HashCode::ZERO,
            exchange_timestamp: timestamp,
            wire_deadline: payment.wire_deadline,
            refund_deadline: payment.refund_deadline,
            amount_without_fee: exchange.amount(part.amount.checked_sub(part.fee_deposit)?),
            coin_pub: part.coin_pub,
            merchant_pub: payment.merchant_pub,
        };
        if !message.verify(&exchange_pub, &exchange_sig) {
            return Err(CoreError::BadSignature { what: "the exchange's confirmation of the payment" });
        }
        part.exchange_sig = Some(exchange_sig);
    }
    payment.exchange_pub = Some(exchange_pub);
    payment.exchange_timestamp.get_or_insert(timestamp);
    if payment.coins.iter().all(|coin| coin.exchange_sig.is_some()) {
        payment.stage = PaymentStage::Done;
        step.finish(payment);
    } else {
        step.proceed(payment);
    }
    Ok(())
}

/// Records the requested contributions as refused.
fn record_refused(payment: &mut Payment, asked: &[usize]) {
    for part in asked.iter().map(|position| &payment.coins[*position]) {
        if !payment.refused.contains(part) {
            payment.refused.push(part.clone());
        }
    }
}

/// Takes back the unconfirmed coins, excludes those for which `drop_coin` holds, and selects coins again for
/// the amount still unpaid.
fn replace(
    step: &mut Step<'_, '_>,
    mut payment: Payment,
    asked: &[usize],
    drop_coin: impl FnMut(&mut Step<'_, '_>, EddsaPublicKey) -> Result<bool>,
) -> Result<()> {
    record_refused(&mut payment, asked);
    let (kept, open): (Vec<_>, Vec<_>) =
        std::mem::take(&mut payment.coins).into_iter().partition(|coin| coin.exchange_sig.is_some());
    payment.coins = kept;
    let parts = open.iter().map(|part| (part.coin_pub, part.amount, part.fee_deposit));
    let (have, _) = take_back(step, parts, 0, drop_coin)?;
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    let (total, fees) = payment.totals()?;
    let paid = total.checked_sub(fees)?.checked_add(fees.min(payment.max_fee))?;
    let target = Target {
        amount: payment.amount.checked_sub(paid).unwrap_or(Money::ZERO),
        max_fee: payment.max_fee.checked_sub(fees).unwrap_or(Money::ZERO),
        max_coins: MAX_COINS - payment.coins.len(),
        avoids_change: exchange.discretion.assortment,
    };
    match choose(step.draft.base(), exchange.currency, &have, target, step.now) {
        Ok(plan) => {
            payment.take(step.draft.allocate(&plan, step.entropy)?);
            step.proceed(payment);
            Ok(())
        }
        Err(error @ (CoreError::InsufficientFunds { .. } | CoreError::TooManyCoins { .. })) => {
            // A merchant may have seen the coins, so they are refreshed. Of a deposit into the owner's
            // account only the exchange saw them, in a request that it has proved not to have booked. Paying
            // to the same account again reveals nothing new.
            let status = if payment.is_own_account() { CoinStatus::Fresh } else { CoinStatus::Used };
            fail(step, payment, error.to_string(), status)
        }
        Err(error) => Err(error),
    }
}

/// Ends a refused payment. Its debits return to the coins, which get this status.
fn fail(step: &mut Step<'_, '_>, mut payment: Payment, reason: String, status: CoinStatus) -> Result<()> {
    for part in payment.coins.iter().filter(|coin| coin.exchange_sig.is_none()) {
        step.draft.credit_coin(&part.coin_pub, part.amount)?;
        let coin = step.draft.coin_mut(&part.coin_pub)?;
        if coin.status == CoinStatus::Used {
            coin.status = status;
        }
    }
    payment.coins.retain(|coin| coin.exchange_sig.is_some());
    payment.stage = PaymentStage::Failed;
    payment.reason = Some(reason);
    step.finish(payment);
    Ok(())
}

/// The changes that give up a payment about which the exchange gave a false answer. Its coins are refreshed,
/// which reveals what the exchange booked anyway.
///
/// # Errors
/// [`CoreError::BadInput`] if it is not a payment, or not disputed.
pub(crate) fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<Change>> {
    let bad = |reason: &str| bad_input("operation", reason);
    let mut operation = state.operation(id)?.clone();
    let OpKind::Payment(payment) = &mut operation.kind else {
        return Err(bad("only withdrawals and disputed payments can be cancelled"));
    };
    if operation.finished.is_some() || operation.dispute.is_none() {
        return Err(bad("a payment can be cancelled only while it is disputed"));
    }
    let mut draft = Draft::new(state);
    let asked = asked(payment);
    record_refused(payment, &asked);
    for part in payment.coins.iter().filter(|coin| coin.exchange_sig.is_none()) {
        draft.credit_coin(&part.coin_pub, part.amount)?;
    }
    payment.coins.retain(|coin| coin.exchange_sig.is_some());
    payment.stage = PaymentStage::Failed;
    payment.reason = Some("cancelled by you while it was disputed".to_owned());
    operation.end(now);
    draft.put_operation(operation);
    Ok(draft.into_changes())
}

/// The receipt of a finished payment.
///
/// # Errors
/// [`CoreError::BadInput`] if `id` is not a payment or is not confirmed.
pub fn receipt(state: &WalletState, id: OpId) -> Result<PaymentReceipt> {
    let operation = state.operation(id)?;
    let OpKind::Payment(payment) = &operation.kind else {
        return Err(bad_input("operation", format!("{id} is not a payment")));
    };
    let not_done =
        || bad_input("payment", payment.reason.clone().unwrap_or_else(|| "not confirmed yet".to_owned()));
    if payment.stage != PaymentStage::Done {
        return Err(not_done());
    }
    let exchange = state.exchange(&operation.exchange)?;
    let (total, fees) = payment.totals()?;
    let mut coins = Vec::with_capacity(payment.coins.len());
    for part in &payment.coins {
        coins.push(ReceiptCoin {
            coin_pub: part.coin_pub,
            h_denom_pub: state.coin(&part.coin_pub)?.h_denom_pub,
            contribution: exchange.amount(part.amount),
            deposit_fee: exchange.amount(part.fee_deposit),
            exchange_sig: part.exchange_sig.ok_or_else(not_done)?,
        });
    }
    Ok(PaymentReceipt {
        operation: id,
        exchange: operation.exchange.clone(),
        total: exchange.amount(total),
        fees: exchange.amount(fees),
        coins,
        exchange_pub: payment.exchange_pub.ok_or_else(not_done)?,
        exchange_timestamp: payment.exchange_timestamp.ok_or_else(not_done)?,
        h_wire: payment.h_wire(),
    })
}
