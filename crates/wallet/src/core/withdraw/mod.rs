//! Withdrawals: from a bank account to coins.
//!
//! A bank-integrated withdrawal gives the bank a reserve key, and waits until the bank has made the transfer
//! and the exchange has seen it. In a manual withdrawal the user makes the transfer. Then the reserve's
//! balance is split into coins. All their secrets derive from one stored seed. If a denomination disappears
//! meanwhile, its coins are replaced under new numbers, so that a number (and its Clause-Schnorr nonce) never
//! serves two denominations.

mod record;
mod reserve;

use batzen_crypto::{EddsaPrivateKey, HashCode, PlanchetMasterSecret};
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use serde::Deserialize;

use super::age::{AgeLimit, CoinAge};
use super::coin::{Coin, CoinSource, CoinStatus, CsSession};
use super::exchange::{CipherChoice, CoinWish, Denom, Exchange};
use super::http::{Context, HttpRequest, HttpResponse};
use super::kyc::KycWanted;
use super::operation::{Operation, Step, View};
use super::proof::denomination::{self, Use};
use super::row::{Transaction, Wait, describe_fees, units};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{CoreError, planchet};
use crate::core::error::{Result, bad_input};
use batzen_protocol::api::bank::WithdrawalSelection;
use batzen_protocol::api::exchange::{
    BatchWithdrawRequest, BlindSignature, BlindSignatures, CsrWithdrawRequest, WithdrawRequest,
    WithdrawValues,
};

pub use record::*;

/// Coins in one request. The exchange allows 256; a smaller batch limits what one lost answer repeats.
const BATCH_SIZE: usize = 64;
/// Most coins in one withdrawal. The rest stays in the reserve and returns to the sender.
const MAX_COINS: usize = 1000;

/// Records a new withdrawal and draws its secrets. Nothing is sent before the changes are durable.
///
/// # Errors
/// If the exchange is unknown, its terms are not accepted, or the amount fits no coin.
pub fn start(
    state: &WalletState,
    base_url: &str,
    amount: Amount,
    origin: Origin,
    wish: CoinWish,
    now: Timestamp,
    entropy: &mut dyn super::Entropy,
) -> Result<(OpId, Vec<super::Change>)> {
    let exchange = state.exchange(base_url)?;
    exchange.require_terms()?;
    let sum = amount.money_in(exchange.currency)?;
    let preview = preview(exchange, amount, wish, now)?;
    let age = exchange.age_limit(wish, now)?;
    debug_assert!(!preview.denoms.is_empty() && sum >= preview.leftover);
    let mut draft = Draft::new(state);
    let stage = match &origin {
        Origin::Bank(_) => WithdrawStage::Select,
        Origin::Manual { .. } | Origin::Recoup | Origin::Purse => WithdrawStage::AwaitReserve,
    };
    let reserve_priv = EddsaPrivateKey::from_bytes(entropy.array());
    let coins = (wish.cipher, age);
    let id = put(&mut draft, base_url, reserve_priv, sum, origin, stage, coins, now, entropy);
    Ok((id, draft.into_changes()))
}

#[expect(clippy::too_many_arguments, reason = "the parts of one record")]
fn put(
    draft: &mut Draft<'_>,
    base_url: &str,
    reserve_priv: EddsaPrivateKey,
    amount: Money,
    origin: Origin,
    stage: WithdrawStage,
    (cipher, age): (CipherChoice, Option<AgeLimit>),
    now: Timestamp,
    entropy: &mut dyn super::Entropy,
) -> OpId {
    let reserve_pub = reserve_priv.public_key();
    // Exchanges do not find a reserve for a batch if only purses have paid into it. What a recoup pays back into such
    // a reserve does not change that.
    let is_of_purses = origin == Origin::Purse
        || draft.operations().any(|operation| {
            matches!(&operation.kind, OpKind::Withdrawal(record)
                if record.origin == Origin::Purse && record.reserve_pub == reserve_pub)
        });
    let record = Withdrawal {
        reserve_pub,
        reserve_priv,
        seed: PlanchetMasterSecret::from_bytes(entropy.array()),
        amount,
        cipher,
        age,
        batch: !is_of_purses,
        origin,
        stage,
        next_index: 0,
        planchets: Vec::new(),
        leftover: Money::ZERO,
        recouped: Money::ZERO,
        from_purses: Money::ZERO,
        unplanned: Money::ZERO,
        missing: Money::ZERO,
        unproved: Money::ZERO,
        awaited: Money::ZERO,
        kyc: None,
        reason: None,
    };
    draft.begin(now, base_url, record)
}

/// Records the withdrawal of money that a recoup paid into a reserve, unless an open withdrawal from that
/// reserve will still read its balance.
pub(crate) fn start_from_recoup(
    step: &mut Step<'_, '_>,
    reserve_priv: &EddsaPrivateKey,
    amount: Money,
) -> Result<()> {
    let reserve_pub = reserve_priv.public_key();
    let waiting = step.draft.operations().find(|operation| match &operation.kind {
        OpKind::Withdrawal(record) => {
            operation.finished.is_none()
                && record.reserve_pub == reserve_pub
                && record.stage == WithdrawStage::AwaitReserve
        }
        _ => false,
    });
    if let Some(mut operation) = waiting.cloned() {
        if let OpKind::Withdrawal(record) = &mut operation.kind {
            let sum = if record.origin == Origin::Recoup { &mut record.amount } else { &mut record.recouped };
            *sum = sum.checked_add(amount)?;
        }
        step.draft.put_operation(operation);
        return Ok(());
    }
    let exchange = step.operation.exchange.clone();
    put(
        &mut step.draft,
        &exchange,
        reserve_priv.clone(),
        amount,
        Origin::Recoup,
        WithdrawStage::AwaitReserve,
        (CipherChoice::Any, None),
        step.now,
        step.entropy,
    );
    Ok(())
}

/// Records the withdrawal of money that a purse paid into a reserve. All purses of an exchange pay into one
/// reserve, so an open withdrawal from it takes this money along.
pub(crate) fn start_from_purse(
    step: &mut Step<'_, '_>,
    reserve_priv: &EddsaPrivateKey,
    amount: Money,
) -> Result<()> {
    let reserve_pub = reserve_priv.public_key();
    let open = step.draft.operations().find(|operation| {
        operation.finished.is_none()
            && matches!(&operation.kind, OpKind::Withdrawal(record) if record.reserve_pub == reserve_pub)
    });
    if let Some(mut operation) = open.cloned() {
        if let OpKind::Withdrawal(record) = &mut operation.kind {
            record.amount = record.amount.checked_add(amount)?;
            record.from_purses = record.from_purses.checked_add(amount)?;
            if !record.planchets.is_empty() {
                record.unplanned = record.unplanned.checked_add(amount)?;
            }
        }
        step.draft.put_operation(operation);
        return Ok(());
    }
    let base_url = step.operation.exchange.clone();
    let age = step.draft.exchange(&base_url)?.age_limit(CoinWish::default(), step.now)?;
    let id = put(
        &mut step.draft,
        &base_url,
        reserve_priv.clone(),
        amount,
        Origin::Purse,
        WithdrawStage::AwaitReserve,
        (CipherChoice::Any, age),
        step.now,
        step.entropy,
    );
    let mut operation = step.draft.operation(id)?.clone();
    if let OpKind::Withdrawal(record) = &mut operation.kind {
        record.from_purses = amount;
    }
    step.draft.put_operation(operation);
    Ok(())
}

/// The coins that `amount` would yield now.
///
/// # Errors
/// The reason why nothing is offered, [`CoreError::NoAgeLimit`] or [`CoreError::TooSmall`].
pub fn preview(
    exchange: &Exchange,
    amount: Amount,
    wish: impl Into<CoinWish>,
    now: Timestamp,
) -> Result<super::select::IssuePlan> {
    let sum = amount.money_in(exchange.currency)?;
    let wish = wish.into();
    let age_mask = exchange.age_limit(wish, now)?.map_or(0, |age| age.mask);
    let offers = exchange.offers_of(wish.cipher, age_mask, now);
    let mut smallest: Option<Money> = None;
    for offer in &offers {
        let cost = offer.value.checked_add(offer.fee_withdraw)?;
        smallest = Some(smallest.map_or(cost, |other| other.min(cost)));
    }
    let Some(smallest) = smallest else {
        return Err(exchange.why_nothing_is_offered(now));
    };
    let plan = exchange.discretion.split(&offers, sum, MAX_COINS)?;
    if plan.denoms.is_empty() {
        return Err(CoreError::TooSmall {
            amount,
            base_url: exchange.base_url.clone(),
            smallest: exchange.amount(smallest),
        });
    }
    Ok(plan)
}

/// The bank's answer about an operation. Older banks omit some members.
#[derive(Deserialize)]
struct BankStatus {
    #[serde(default)]
    aborted: bool,
    #[serde(default)]
    transfer_done: bool,
    #[serde(default)]
    confirm_transfer_url: Option<String>,
}

/// The next open planchets: first those that lack the exchange's first message, one at a time.
enum Work {
    Csr(usize),
    Issue(Vec<usize>),
    Nothing,
}

fn work(exchange: &Exchange, record: &Withdrawal) -> Result<Work> {
    let mut batch = Vec::new();
    let limit = if record.batch { BATCH_SIZE } else { 1 };
    for (position, planchet) in record.planchets.iter().enumerate() {
        if planchet.state != PlanchetState::Open {
            continue;
        }
        if planchet.cs.is_none() && exchange.denom(&planchet.h_denom_pub)?.is_cs() {
            return Ok(Work::Csr(position));
        }
        if batch.len() < limit {
            batch.push(position);
        }
    }
    Ok(if batch.is_empty() { Work::Nothing } else { Work::Issue(batch) })
}

/// The coin of a planchet's record, before it is signed.
fn made(record: &Withdrawal, item: &PlanchetRecord, denom: &Denom) -> Result<planchet::Planchet> {
    let h_age = item.age.as_ref().map(CoinAge::hash).transpose()?;
    planchet::withdraw_planchet(&record.seed, item.index, denom, item.cs.as_ref(), h_age.as_ref())
}

fn body_for(exchange: &Exchange, record: &Withdrawal, planchet: &PlanchetRecord) -> Result<WithdrawRequest> {
    let denom = exchange.denom(&planchet.h_denom_pub)?;
    let made = made(record, planchet, denom)?;
    planchet::withdraw_request(&record.reserve_priv, exchange.currency, denom, &made)
}

fn operation_url(bank: &BankOperation) -> String {
    format!("{}withdrawal-operation/{}", bank.integration_url, bank.operation_id)
}

impl Operation for Withdrawal {
    fn name(&self) -> &'static str {
        "withdrawal"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, poll_ms: u64) -> Result<HttpRequest> {
        let bank = || match &self.origin {
            Origin::Bank(bank) => Ok(bank),
            _ => Err(CoreError::Inconsistent(format!("operation {} has no bank", operation.id))),
        };
        let base = &operation.exchange;
        let reserve = self.reserve_pub;
        Ok(match self.stage {
            WithdrawStage::Select => {
                let bank = bank()?;
                let body = WithdrawalSelection {
                    reserve_pub: reserve,
                    selected_exchange: bank.exchange_payto.clone(),
                };
                HttpRequest::post(Context::Bank, operation_url(bank), &body)
            }
            WithdrawStage::Confirm => {
                let bank = bank()?;
                let Some(login) = &bank.confirm else {
                    return Err(CoreError::Inconsistent(format!(
                        "operation {} cannot confirm",
                        operation.id
                    )));
                };
                let url = format!(
                    "{}accounts/{}/withdrawals/{}/confirm",
                    login.access_url, login.user, bank.operation_id
                );
                let mut request = HttpRequest::post(Context::Bank, url, &serde_json::json!({}));
                request.basic_auth = Some((login.user.clone(), login.password.clone()));
                request
            }
            WithdrawStage::AwaitTransfer => {
                HttpRequest::long_poll(Context::Bank, operation_url(bank()?), "long_poll_ms", poll_ms)
            }
            WithdrawStage::AwaitReserve => {
                let url = format!("{base}reserves/{reserve}");
                HttpRequest::long_poll(Context::Withdraw, url, "timeout_ms", poll_ms)
            }
            WithdrawStage::Withdraw => {
                if let Some(kyc) = &self.kyc {
                    return Ok(kyc.request(base, poll_ms));
                }
                let exchange = state.exchange(base)?;
                match work(exchange, self)? {
                    Work::Csr(position) => {
                        let planchet = &self.planchets[position];
                        let nonce = planchet::withdraw_nonce(&self.seed, planchet.index);
                        let body = CsrWithdrawRequest { nonce, denom_pub_hash: planchet.h_denom_pub };
                        HttpRequest::post(Context::Withdraw, format!("{base}csr-withdraw"), &body)
                    }
                    Work::Issue(positions) => {
                        let mut planchets = Vec::with_capacity(positions.len());
                        for position in positions {
                            planchets.push(body_for(exchange, self, &self.planchets[position])?);
                        }
                        match (planchets.pop(), planchets.is_empty()) {
                            (Some(single), true) => HttpRequest::post(
                                Context::Withdraw,
                                format!("{base}reserves/{reserve}/withdraw"),
                                &single,
                            ),
                            (last, _) => {
                                planchets.extend(last);
                                let body = BatchWithdrawRequest { planchets };
                                HttpRequest::post(
                                    Context::Withdraw,
                                    format!("{base}reserves/{reserve}/batch-withdraw"),
                                    &body,
                                )
                            }
                        }
                    }
                    // The stage changes in the same step in which the last coin arrives.
                    Work::Nothing => {
                        return Err(CoreError::Inconsistent(format!(
                            "operation {} has nothing to withdraw",
                            operation.id
                        )));
                    }
                }
            }
            WithdrawStage::Done | WithdrawStage::Aborted => {
                return Err(CoreError::Inconsistent(format!(
                    "operation {} ended without date",
                    operation.id
                )));
            }
        })
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let mut record = *self;
        match record.stage {
            WithdrawStage::Select => after_select(step, record, response),
            WithdrawStage::Confirm => {
                match (response.status, response.code()) {
                    // Older banks refuse a second confirmation with "reserve key already used".
                    (200..=204, _) | (409, ErrorCode::BANK_DUPLICATE_RESERVE_PUB_SUBJECT) => {}
                    (409, ErrorCode::BANK_CONFIRM_ABORT_CONFLICT) => {
                        return abort(step, record, "the withdrawal was cancelled at the bank");
                    }
                    // The account does not hold the amount, so nobody else can confirm this operation either.
                    (409, ErrorCode::BANK_UNALLOWED_DEBIT) => {
                        return abort(step, record, "the bank account does not hold enough money");
                    }
                    _ => return Err(response.refusal("confirming the withdrawal at the bank")),
                }
                if let Origin::Bank(bank) = &mut record.origin {
                    bank.confirm = None;
                }
                record.stage = WithdrawStage::AwaitTransfer;
                step.proceed(record);
                Ok(())
            }
            WithdrawStage::AwaitTransfer => after_bank_status(step, record, response),
            WithdrawStage::AwaitReserve => reserve::after_balance(step, record, response),
            WithdrawStage::Withdraw if record.kyc.is_some() => after_kyc(step, record, response),
            WithdrawStage::Withdraw => after_withdraw(step, record, response),
            WithdrawStage::Done | WithdrawStage::Aborted => Ok(()),
        }
    }

    fn held(&self, View { exchange, .. }: View<'_>) -> Result<Money> {
        let (open, _) = self.totals(exchange, &[PlanchetState::Open])?;
        let expected = self.amount.checked_add(self.recouped)?;
        Ok(if self.planchets.is_empty() { expected } else { open.checked_add(self.unplanned)? })
    }

    fn effect(&self, View { exchange, operation, .. }: View<'_>) -> Result<i128> {
        let is_open = operation.finished.is_none();
        // The income counts what came through purses, so the withdrawal only counts what it costs.
        if is_open && self.planchets.is_empty() {
            return Ok(units(self.amount.checked_add(self.recouped)?) - units(self.from_purses));
        }
        let states = [PlanchetState::Done, PlanchetState::Open];
        let states = if is_open { &states[..] } else { &states[..1] };
        let later = if is_open { self.unplanned } else { Money::ZERO };
        Ok(units(self.totals(exchange, states)?.0.checked_add(later)?) - units(self.from_purses))
    }

    fn describe(&self, View { exchange, operation, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        let (value, fees) = self.totals(exchange, &[PlanchetState::Open, PlanchetState::Done])?;
        row.amount = exchange.amount(self.amount);
        row.fees = exchange.amount(fees);
        row.coins = self.planchets.iter().filter(|planchet| planchet.state == PlanchetState::Done).count();
        row.reserve_pub = Some(self.reserve_pub.to_string());
        let from = match &self.origin {
            Origin::Bank(_) => "from your bank account",
            Origin::Manual { payto } => {
                row.payto = Some(payto.clone());
                "by bank transfer"
            }
            Origin::Recoup => "of money paid back for revoked coins",
            Origin::Purse => "of received money",
        };
        row.description = format!("Withdrawal {from}");
        if row.coins > 0 || !self.planchets.is_empty() {
            row.description.push_str(&format!(
                ": {} into coins, {}",
                exchange.amount(value),
                describe_fees(&[("withdrawal", exchange.amount(fees))])
            ));
        }
        if !self.leftover.is_zero() {
            let then = match self.origin {
                Origin::Purse => "stay in the reserve until more money comes",
                _ => "return to the sender when the reserve closes",
            };
            let leftover = exchange.amount(self.leftover);
            row.description.push_str(&format!("; {leftover} fit into no coin and {then}"));
        }
        let is_done = operation.finished.is_some();
        row.fail_if(self.stage == WithdrawStage::Aborted || (is_done && row.coins == 0));
        if !self.unproved.is_zero() {
            row.message = Some(format!(
                "the exchange confirmed that revoked coins were paid back, but {} of it are not in the reserve; it gives no proof",
                exchange.amount(self.unproved)
            ));
        }
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, View { exchange, operation, .. }: View<'_>) -> Result<Wait> {
        let reason = match self.stage {
            _ if self.kyc.is_some() => "waits for the identity check",
            WithdrawStage::Select => "has to give the bank its reserve key",
            WithdrawStage::Confirm => "has to be confirmed at the bank",
            WithdrawStage::AwaitTransfer | WithdrawStage::AwaitReserve => "waits for the bank transfer",
            _ => "fetches coins from the exchange",
        };
        let expiry = operation.created.saturating_add(exchange.reserve_closing_delay);
        Ok(Wait { reason, until: Some((expiry, "reserve expires")) })
    }
}

fn abort(step: &mut Step<'_, '_>, mut record: Withdrawal, reason: &str) -> Result<()> {
    record.stage = WithdrawStage::Aborted;
    record.reason = Some(reason.to_owned());
    if let Origin::Bank(bank) = &mut record.origin {
        bank.confirm = None;
    }
    step.finish(record);
    Ok(())
}

fn after_select(step: &mut Step<'_, '_>, mut record: Withdrawal, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200, _) => {
            let status: BankStatus = response.json("selecting the reserve at the bank")?;
            let Origin::Bank(bank) = &mut record.origin else {
                return Err(CoreError::Inconsistent("a withdrawal without bank was selected".to_owned()));
            };
            if status.confirm_transfer_url.is_some() {
                bank.confirm_url = status.confirm_transfer_url;
            }
            record.stage = if status.transfer_done {
                bank.confirm = None;
                WithdrawStage::AwaitReserve
            } else if bank.confirm.is_some() {
                WithdrawStage::Confirm
            } else {
                WithdrawStage::AwaitTransfer
            };
            step.proceed(record);
            Ok(())
        }
        // Our key is unique, so "already used" means that the requested transfer was made (older banks).
        (409, ErrorCode::BANK_DUPLICATE_RESERVE_PUB_SUBJECT) => {
            record.stage = WithdrawStage::AwaitReserve;
            step.proceed(record);
            Ok(())
        }
        (409, ErrorCode::BANK_WITHDRAWAL_OPERATION_RESERVE_SELECTION_CONFLICT) => {
            abort(step, record, "another wallet took this withdrawal")
        }
        (404, ErrorCode::BANK_TRANSACTION_NOT_FOUND) => {
            abort(step, record, "the bank does not know this withdrawal")
        }
        _ => Err(response.refusal("selecting the reserve at the bank")),
    }
}

fn after_bank_status(step: &mut Step<'_, '_>, mut record: Withdrawal, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200, _) => {
            let status: BankStatus = response.json("asking the bank about the withdrawal")?;
            if status.aborted {
                return abort(step, record, "the withdrawal was cancelled at the bank");
            }
            if status.transfer_done {
                record.stage = WithdrawStage::AwaitReserve;
                step.proceed(record);
                return Ok(());
            }
            let Origin::Bank(bank) = &mut record.origin else {
                return Err(CoreError::Inconsistent("a withdrawal without bank waits for one".to_owned()));
            };
            if status.confirm_transfer_url.is_some() {
                bank.confirm_url = status.confirm_transfer_url;
            }
            let reason = match &bank.confirm_url {
                Some(url) => format!("confirm the withdrawal at your bank: {url}"),
                None => "confirm the withdrawal at your bank".to_owned(),
            };
            step.wait(record, reason);
            Ok(())
        }
        // The bank has the key and the money may be on its way, so the withdrawal is not given up.
        _ => Err(response.refusal("asking the bank about the withdrawal")),
    }
}

fn after_kyc(step: &mut Step<'_, '_>, mut record: Withdrawal, response: &HttpResponse) -> Result<()> {
    record.kyc = match &record.kyc {
        Some(kyc) => kyc.receive(response)?,
        None => None,
    };
    match &record.kyc {
        Some(kyc) => {
            let reason = kyc.words("your money stays in the reserve");
            step.wait(record, reason);
        }
        None => step.proceed(record),
    }
    Ok(())
}

fn after_withdraw(step: &mut Step<'_, '_>, mut record: Withdrawal, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let work = work(&exchange, &record)?;
    let asked: Vec<usize> = match &work {
        Work::Csr(position) => vec![*position],
        Work::Issue(positions) => positions.clone(),
        Work::Nothing => Vec::new(),
    };
    match (response.status, response.code()) {
        (200, _) => match work {
            Work::Csr(position) => {
                let answer: WithdrawValues = response.json("preparing a coin")?;
                let planchet = &mut record.planchets[position];
                let nonce = planchet::withdraw_nonce(&record.seed, planchet.index);
                planchet.cs = Some(CsSession::new(nonce, &answer.ewv)?);
                step.proceed(record);
                Ok(())
            }
            _ => take_coins(step, record, &exchange, &asked, response),
        },
        (451, _) => {
            record.kyc = Some(KycWanted::read(response, "withdrawing coins")?);
            step.proceed(record);
            Ok(())
        }
        // The endpoint is missing, or some coins of the batch were issued before and the exchange cannot say
        // which.
        (404, ErrorCode::GENERIC_ENDPOINT_UNKNOWN | ErrorCode::EXCHANGE_GENERIC_OPERATION_UNKNOWN)
        | (409, ErrorCode::EXCHANGE_WITHDRAW_BATCH_IDEMPOTENT_PLANCHET)
            if record.batch && asked.len() > 1 =>
        {
            record.batch = false;
            step.proceed(record);
            Ok(())
        }
        // Another process withdrew from the reserve, or the plan used an older balance: plan again.
        (409, ErrorCode::EXCHANGE_WITHDRAW_INSUFFICIENT_FUNDS) => {
            reserve::after_shortage(step, record, &asked, response)
        }
        _ if denomination::is_claim(response) => {
            let hashes: Vec<HashCode> =
                asked.iter().map(|position| record.planchets[*position].h_denom_pub).collect();
            let operations = ["WITHDRAW", "csr-withdraw"];
            let (h_denom_pub, _) =
                denomination::verify(&exchange, &hashes, &operations, Use::Issue, response, step.now)?;
            step.draft.stop_offering(&step.operation.exchange, &h_denom_pub)?;
            for planchet in &mut record.planchets {
                if planchet.state == PlanchetState::Open && planchet.h_denom_pub == h_denom_pub {
                    planchet.state = PlanchetState::Dropped;
                }
            }
            if record.planchets.iter().any(|planchet| planchet.state == PlanchetState::Open) {
                step.proceed(record);
            } else {
                plan_again(step, record);
            }
            Ok(())
        }
        _ => Err(response.refusal("withdrawing coins")),
    }
}

fn plan_again(step: &mut Step<'_, '_>, mut record: Withdrawal) {
    if record.planchets.iter().any(|planchet| planchet.state == PlanchetState::Open) {
        step.proceed(record);
        return;
    }
    record.stage = WithdrawStage::AwaitReserve;
    step.proceed(record);
}

fn take_coins(
    step: &mut Step<'_, '_>,
    mut record: Withdrawal,
    exchange: &Exchange,
    asked: &[usize],
    response: &HttpResponse,
) -> Result<()> {
    let signatures = if asked.len() == 1 {
        let answer: BlindSignature = response.json("withdrawing a coin")?;
        vec![answer.ev_sig]
    } else {
        let answer: BlindSignatures = response.json("withdrawing coins")?;
        answer.ev_sigs.into_iter().map(|item| item.ev_sig).collect()
    };
    if signatures.len() != asked.len() {
        let reason = format!("{} signatures for {} coins", signatures.len(), asked.len());
        return Err(response.malformed("withdrawing coins", reason));
    }
    for (&position, signature) in asked.iter().zip(&signatures) {
        let planchet = &record.planchets[position];
        let denom: &Denom = exchange.denom(&planchet.h_denom_pub)?;
        let made = made(&record, planchet, denom)?;
        let denom_sig = made.unblind(signature)?;
        step.draft.put_coin(Coin {
            coin_pub: made.coin_pub,
            coin_priv: made.coin_priv.clone(),
            blinding: made.blinding.clone(),
            cs: planchet.cs,
            age: planchet.age.clone(),
            exchange: exchange.base_url.clone(),
            h_denom_pub: planchet.h_denom_pub,
            denom_sig,
            source: CoinSource::Withdrawal { operation: step.operation.id, reserve_pub: record.reserve_pub },
            status: CoinStatus::Fresh,
            remaining: denom.value,
            created: step.now,
            refresh_at: None,
            receipt: None,
        });
        record.planchets[position].state = PlanchetState::Done;
    }
    let dropped = record.planchets.iter().any(|planchet| planchet.state == PlanchetState::Dropped);
    let open = record.planchets.iter().any(|planchet| planchet.state == PlanchetState::Open);
    if dropped && !open {
        // Some planned coins were not issued: read the reserve's balance again.
        record.stage = WithdrawStage::AwaitReserve;
        step.proceed(record);
    } else {
        reserve::settle(step, record);
    }
    Ok(())
}

/// The changes that give up a withdrawal before any money came, or the part of it that has not arrived yet.
///
/// # Errors
/// [`CoreError::BadInput`] if it is not a withdrawal, or past that stage.
pub fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<super::Change>> {
    let bad = |reason: &str| bad_input("operation", reason);
    let mut operation = state.operation(id)?.clone();
    let OpKind::Withdrawal(record) = &mut operation.kind else {
        return Err(bad("only withdrawals can be cancelled"));
    };
    let early = match (&record.origin, record.stage) {
        (Origin::Bank(_), WithdrawStage::Select | WithdrawStage::AwaitTransfer) => true,
        (Origin::Manual { .. }, WithdrawStage::AwaitReserve) => {
            record.planchets.is_empty() || !record.awaited.is_zero()
        }
        _ => false,
    };
    if operation.finished.is_some() || !early {
        return Err(bad("it is finished, or the money is on its way already"));
    }
    let got_coins = record.planchets.iter().any(|planchet| planchet.state == PlanchetState::Done);
    record.stage = if got_coins { WithdrawStage::Done } else { WithdrawStage::Aborted };
    record.reason =
        Some("cancelled by you; if money was sent, it returns when the reserve closes".to_owned());
    operation.end(now);
    Ok(vec![super::Change::Operation(Box::new(operation))])
}
