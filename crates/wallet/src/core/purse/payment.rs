//! The payer's side: money sent, and requests paid.
//!
//! Coins are debited before the request is sent. Money that was sent and that nobody accepted comes back: the
//! wallet deletes the purse when the user wants that, or when it has expired. If the exchange says that the
//! purse was decided before, its coins are doubtful: they are refreshed, and the exchange has to prove it if
//! the receiver has the money after all.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::api::exchange::{
    PurseCoin, PurseConfirmation, PurseCreateRequest, PurseDepositConfirmation, PurseDepositRequest,
};
use batzen_protocol::econtract::PeerContract;
use batzen_protocol::limits::PURSE_COINS_MAX;
use batzen_protocol::signatures::{SignedMessage, WalletPurseDeposit};
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp, hash_text};

use super::super::coin::CoinStatus;
use super::super::exchange::Exchange;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::operation::{Operation, Step, View};
use super::super::proof::coin as coin_proof;
use super::super::proof::denomination;
use super::super::proof::known::{Answer, Known};
use super::super::row::{Transaction, Wait, about, units};
use super::super::select::{PaymentPlan, Target};
use super::super::spend::{self, candidates, choose, drop_coin, drop_denomination, take_back, unusable};
use super::super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::super::{Change, CoreError, Entropy, refresh};
use super::lookup::PeerPayment;
use super::{
    Direction, NewPurse, PartState, PayStage, PursePart, PursePayment, PurseTerms, Seen, WaitFor,
    check_expired, delete_request, forgotten, read_status, status_request, upload, uri, verify_confirmation,
};
use crate::core::error::{Result, bad_input, false_proof};

/// Says that nobody has accepted sent money yet.
const WAITING: &str = "waiting for the receiver to accept it";

/// Selects the cheapest coins of one exchange that can prove the minimum age, without recording anything.
///
/// # Errors
/// [`CoreError::InsufficientFunds`] or [`CoreError::AgeNotProven`].
pub fn preview(
    state: &WalletState,
    base_url: &str,
    amount: Amount,
    min_age: u32,
    now: Timestamp,
) -> Result<PaymentPlan> {
    let exchange = state.exchange(base_url)?;
    let all = candidates(state, exchange, now)?;
    let mut have = Vec::with_capacity(all.len());
    for candidate in &all {
        if state.coin(&candidate.coin_pub)?.can_attest(min_age) {
            have.push(*candidate);
        }
    }
    let amount = amount.money_in(exchange.currency)?;
    let avoids_change = exchange.discretion.assortment;
    let target = Target { amount, max_fee: Money::ZERO, max_coins: PURSE_COINS_MAX, avoids_change };
    match choose(state, exchange.currency, &have, target, now) {
        Err(CoreError::InsufficientFunds { needed, available })
            if choose(state, exchange.currency, &all, target, now).is_ok() =>
        {
            Err(CoreError::AgeNotProven { min_age, needed, available })
        }
        result => result,
    }
}

/// The exchange with the currency whose coins pay at the least cost.
///
/// # Errors
/// As [`preview`].
pub fn cheapest(state: &WalletState, amount: Amount, min_age: u32, now: Timestamp) -> Result<String> {
    let preview = |base_url: &str| preview(state, base_url, amount, min_age, now);
    Ok(spend::cheapest(state, amount, preview)?.0)
}

/// Records money to be sent, and debits its coins. Nothing is sent before the changes are durable.
///
/// # Errors
/// If the coins do not suffice or the terms are malformed.
pub fn start_send(
    state: &WalletState,
    base_url: &str,
    amount: Amount,
    (summary, expiration, min_age): (&str, Timestamp, u32),
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let terms = PurseTerms::new(amount, summary, expiration, min_age, now)?;
    let plan = preview(state, base_url, amount, min_age, now)?;
    let purse = NewPurse::draw(entropy);
    let offer =
        PeerContract::Offer { merge_priv: purse.merge_priv.clone(), contract: terms.contract.clone() };
    let record = PursePayment {
        direction: Direction::Push,
        econtract: Some(purse.encrypt(&offer, entropy)?),
        purse_pub: purse.purse_priv.public_key(),
        purse_priv: Some(purse.purse_priv),
        merge_priv: Some(purse.merge_priv),
        contract_priv: purse.contract_priv,
        terms,
        coins: Vec::new(),
        refused: Vec::new(),
        stage: PayStage::Send,
        confirmation: None,
        status: None,
        reason: None,
    };
    put(state, base_url, record, &plan, now, entropy)
}

/// Records a request to be paid, and debits its coins. Nothing is sent before the changes are durable.
///
/// # Errors
/// As [`start_send`].
pub fn start_pay(
    state: &WalletState,
    asked: &PeerPayment,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    asked.require_open()?;
    let amount = state.exchange(&asked.exchange)?.amount(asked.terms.amount);
    let plan = preview(state, &asked.exchange, amount, asked.terms.min_age, now)?;
    put(state, &asked.exchange, of_request(asked, PayStage::Send), &plan, now, entropy)
}

fn of_request(asked: &PeerPayment, stage: PayStage) -> PursePayment {
    PursePayment {
        direction: Direction::Pull,
        purse_priv: None,
        purse_pub: asked.purse_pub,
        merge_priv: None,
        contract_priv: asked.contract_priv.clone(),
        econtract: None,
        terms: asked.terms.clone(),
        coins: Vec::new(),
        refused: Vec::new(),
        stage,
        confirmation: None,
        status: None,
        reason: None,
    }
}

/// Records that the user does not pay a request.
///
/// # Errors
/// Cannot happen in this wallet's records.
pub(crate) fn decline(
    state: &WalletState,
    asked: &PeerPayment,
    now: Timestamp,
) -> Result<(OpId, Vec<Change>)> {
    let mut record = of_request(asked, PayStage::Failed);
    record.reason = Some("declined by you".to_owned());
    let mut operation = WalletOperation::new(state.next_id(), now, &asked.exchange, record);
    operation.end(now);
    Ok((operation.id, vec![Change::Operation(Box::new(operation))]))
}

fn put(
    state: &WalletState,
    base_url: &str,
    mut record: PursePayment,
    plan: &PaymentPlan,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let mut draft = Draft::new(state);
    record.take(draft.allocate(plan, entropy)?);
    let id = draft.begin(now, base_url, record);
    Ok((id, draft.into_changes()))
}

/// The coins as a request presents them.
fn deposits(state: &WalletState, exchange: &Exchange, record: &PursePayment) -> Result<Vec<PurseCoin>> {
    let h_exchange_base_url = hash_text(exchange.own_url());
    let mut deposits = Vec::with_capacity(record.coins.len());
    for part in record.coins.iter().filter(|part| part.state == PartState::Spent) {
        let coin = state.coin(&part.coin_pub)?;
        let message = WalletPurseDeposit {
            coin_amount: exchange.amount(part.amount),
            h_denom_pub: coin.h_denom_pub,
            h_age_commitment: coin.signed_h_age()?,
            purse_pub: record.purse_pub,
            h_exchange_base_url,
        };
        let attest = match &coin.age {
            Some(age) if record.terms.min_age > 0 => Some(age.attest(record.terms.min_age)?),
            _ => None,
        };
        deposits.push(PurseCoin {
            amount: message.coin_amount,
            denom_pub_hash: coin.h_denom_pub,
            ub_sig: coin.denom_sig.clone(),
            coin_pub: coin.coin_pub,
            coin_sig: message.sign(&coin.coin_priv),
            age_commitment: coin.age.as_ref().map(|age| age.keys.clone()),
            attest,
        });
    }
    Ok(deposits)
}

fn missing(id: OpId, what: &str) -> CoreError {
    CoreError::Inconsistent(format!("payment {id} has no {what}"))
}

impl Operation for PursePayment {
    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Push => "send",
            Direction::Pull => "pay-request",
        }
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, poll_ms: u64) -> Result<HttpRequest> {
        let base = &operation.exchange;
        let exchange = state.exchange(base)?;
        let purse_pub = &self.purse_pub;
        let purse_priv = || self.purse_priv.as_ref().ok_or_else(|| missing(operation.id, "purse key"));
        match self.stage {
            PayStage::Send if self.direction == Direction::Push => {
                let purse_priv = purse_priv()?;
                let merge_priv =
                    self.merge_priv.as_ref().ok_or_else(|| missing(operation.id, "merge key"))?;
                let econtract = self.econtract.as_ref().ok_or_else(|| missing(operation.id, "contract"))?;
                let merge_pub = merge_priv.public_key();
                let body = PurseCreateRequest {
                    amount: exchange.amount(self.terms.amount),
                    min_age: self.terms.min_age,
                    merge_pub,
                    purse_sig: self.terms.create_message(exchange, merge_pub).sign(purse_priv),
                    h_contract_terms: self.terms.h_contract_terms,
                    purse_expiration: self.terms.expiration,
                    deposits: deposits(state, exchange, self)?,
                    econtract: Some(upload(purse_priv, &self.contract_priv, econtract)),
                };
                Ok(HttpRequest::post(Context::Deposit, format!("{base}purses/{purse_pub}/create"), &body))
            }
            PayStage::Send => {
                let body = PurseDepositRequest { deposits: deposits(state, exchange, self)? };
                Ok(HttpRequest::post(Context::Deposit, format!("{base}purses/{purse_pub}/deposit"), &body))
            }
            PayStage::Open => Ok(status_request(Context::Deposit, base, purse_pub, WaitFor::Merge, poll_ms)),
            PayStage::Delete => Ok(delete_request(Context::Deposit, base, purse_priv()?)),
            PayStage::Decided => Ok(status_request(Context::Deposit, base, purse_pub, WaitFor::Merge, 0)),
            PayStage::Done | PayStage::Returned | PayStage::Failed => {
                Err(CoreError::Inconsistent(format!("payment {} ended without date", operation.id)))
            }
        }
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let record = *self;
        match record.stage {
            PayStage::Send => after_deposit(step, record, response),
            PayStage::Open => after_status(step, record, response),
            PayStage::Delete => after_delete(step, record, response),
            PayStage::Decided => after_decision(step, record, response),
            PayStage::Done | PayStage::Returned | PayStage::Failed => Ok(()),
        }
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        // What is left on a coin of an open purse is change. It does not wait for the receiver.
        self.stage != PayStage::Open && self.coins.iter().any(|part| part.coin_pub == *coin_pub)
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
        for PursePart { coin_pub, amount, state, .. } in &self.coins {
            let taken = if *state == PartState::Spent { *amount } else { Money::ZERO };
            change(coin_pub, -units(taken));
        }
        Ok(())
    }

    fn describe(&self, View { exchange, operation, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        let (_, fees) = self.totals()?;
        row.amount = exchange.amount(self.terms.amount);
        row.fees = exchange.amount(fees);
        row.coins = self.coins.len();
        row.h_contract_terms = Some(self.terms.h_contract_terms.to_string());
        let what = match self.direction {
            Direction::Push => "Sent",
            Direction::Pull => "Request paid",
        };
        row.description = format!("{what}{}: {}", about(&self.terms.summary), row.amount);
        if !fees.is_zero() {
            row.description.push_str(&format!(" plus {} deposit fee", row.fees));
        }
        if self.stage == PayStage::Open {
            row.uri = Some(uri(self.direction, &operation.exchange, &self.contract_priv));
        }
        row.fail_if(matches!(self.stage, PayStage::Failed | PayStage::Returned));
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        let reason = match self.stage {
            PayStage::Open => "waits for the receiver to accept it",
            PayStage::Delete | PayStage::Decided => "waits for the exchange to give the money back",
            _ => "waits for the exchange's confirmation",
        };
        Ok(Wait { reason, until: Some((self.terms.expiration, "it expires")) })
    }

    fn add_known(&self, _: &Draft<'_>, id: OpId, coin_pub: &EddsaPublicKey, known: &mut Known) -> Result<()> {
        let listed = known.purses.entry(self.purse_pub).or_default();
        for part in self.coins.iter().filter(|part| part.coin_pub == *coin_pub) {
            let answer = match (part.state, self.stage) {
                (PartState::Returned, _) => Answer::Refused(id),
                (PartState::Spent, PayStage::Open | PayStage::Done) => Answer::Confirmed,
                (PartState::Spent | PartState::Doubtful, _) => Answer::None,
            };
            listed.push((id, part.amount, answer));
        }
        for part in self.refused.iter().filter(|part| part.coin_pub == *coin_pub) {
            listed.push((id, part.amount, Answer::Refused(id)));
        }
        Ok(())
    }
}

fn end(step: &mut Step<'_, '_>, mut record: PursePayment, stage: PayStage) {
    record.stage = stage;
    step.finish(record);
}

fn proceed(step: &mut Step<'_, '_>, mut record: PursePayment, stage: PayStage) {
    record.stage = stage;
    step.proceed(record);
}

fn after_deposit(step: &mut Step<'_, '_>, mut record: PursePayment, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200, _) => confirmed(step, record, response),
        _ if coin_proof::is_conflict(response) => {
            let parts = record.coins.iter().map(|part| (part.coin_pub, part.amount));
            let purse_pub = record.purse_pub;
            let about = |amount| coin_proof::Asked::Purse { purse_pub, amount };
            let (coin_pub, proof) = coin_proof::verify_one_of(step, parts, about, response)?;
            replace(step, record, drop_coin(coin_pub, proof))
        }
        _ if denomination::is_claim(response) => {
            let coins = record.coins.iter().map(|part| &part.coin_pub);
            let (h_denom_pub, status) = unusable(step, coins, "PURSE CREATE", response)?;
            replace(step, record, drop_denomination(h_denom_pub, status))
        }
        // An earlier attempt may have been paid in, and then the receiver has the money. Some exchanges refuse a request
        // that they have carried out as one for a purse that expires too early.
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_EXPIRED)
        | (400, ErrorCode::EXCHANGE_PURSE_CREATE_EXPIRATION_BEFORE_NOW) => {
            if !check_expired(&record.terms, step.now)? {
                return Err(response.refusal("paying"));
            }
            give_back(step, &mut record, PartState::Doubtful)?;
            record.reason = Some("it expired".to_owned());
            end(step, record, PayStage::Failed);
            Ok(())
        }
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_DELETED) => {
            give_back(step, &mut record, PartState::Returned)?;
            record.reason = Some("it was taken back".to_owned());
            end(step, record, PayStage::Failed);
            Ok(())
        }
        // The exchange claims, without proof, that it booked nothing of this request. If it did after all, it
        // has to list that when it refuses the coins, and so reveals it.
        (400..=499, code) if code != ErrorCode::NONE => {
            let reason = match code {
                ErrorCode::EXCHANGE_PURSE_DEPOSIT_DECIDED_ALREADY => "somebody else has paid it".to_owned(),
                _ => response.refusal("paying").to_string(),
            };
            record_refused(&mut record);
            give_back(step, &mut record, PartState::Returned)?;
            record.reason = Some(reason);
            end(step, record, PayStage::Failed);
            Ok(())
        }
        _ => Err(response.refusal("paying")),
    }
}

fn confirmed(step: &mut Step<'_, '_>, mut record: PursePayment, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    let answer = match record.direction {
        Direction::Push => response.json::<PurseConfirmation>("sending money")?,
        Direction::Pull => {
            let answer: PurseDepositConfirmation = response.json("paying a request")?;
            PurseConfirmation {
                total_deposited: answer.total_deposited,
                exchange_timestamp: answer.exchange_timestamp,
                exchange_sig: answer.exchange_sig,
                exchange_pub: answer.exchange_pub,
            }
        }
    };
    let proof = verify_confirmation(exchange, &record.terms, record.purse_pub, &answer, step.now)?;
    let (total, fees) = record.totals()?;
    if proof.total < total.checked_sub(fees)? {
        let reason = "it confirms less than was paid in";
        return Err(false_proof("the exchange's confirmation of a purse", reason));
    }
    record.confirmation = Some(proof);
    match record.direction {
        Direction::Push => {
            record.stage = PayStage::Open;
            step.wait(record, WAITING);
        }
        // The purse was merged when it was created, so now that it is full, the receiver has the money.
        Direction::Pull => end(step, record, PayStage::Done),
    }
    Ok(())
}

fn after_status(step: &mut Step<'_, '_>, mut record: PursePayment, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    match read_status(exchange, response, step.now)? {
        Seen::Current(status) => {
            record.status = Some(status);
            if status.is_merged() {
                end(step, record, PayStage::Done);
            } else {
                step.wait(record, WAITING);
            }
        }
        Seen::Expired if !check_expired(&record.terms, step.now)? => {
            step.wait(record, WAITING);
        }
        Seen::Expired => {
            record.reason = Some("nobody accepted it before it expired; the money is back".to_owned());
            proceed(step, record, PayStage::Delete);
        }
        Seen::Deleted => {
            record.reason = Some("it was taken back, perhaps by a copy of this wallet".to_owned());
            give_back(step, &mut record, PartState::Returned)?;
            end(step, record, PayStage::Returned);
        }
        Seen::Unknown => return Err(forgotten()),
    }
    Ok(())
}

fn after_delete(step: &mut Step<'_, '_>, mut record: PursePayment, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200..=204, _) => {}
        (409, ErrorCode::EXCHANGE_PURSE_DELETE_ALREADY_DECIDED) => {
            proceed(step, record, PayStage::Decided);
            return Ok(());
        }
        // The request that creates it never arrived.
        (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) if record.confirmation.is_none() => {}
        (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) => return Err(forgotten()),
        _ => return Err(response.refusal("taking money back")),
    }
    give_back(step, &mut record, PartState::Returned)?;
    end(step, record, PayStage::Returned);
    Ok(())
}

/// The exchange has refused to delete the purse, because it was paid, expired or deleted before.
fn after_decision(step: &mut Step<'_, '_>, mut record: PursePayment, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    match read_status(exchange, response, step.now)? {
        Seen::Current(status) if status.is_merged() => {
            record.status = Some(status);
            record.reason = None;
            end(step, record, PayStage::Done);
        }
        Seen::Current(_) => {
            let reason = "it says that nothing was decided about the purse";
            return Err(false_proof("the exchange's refusal to delete a purse", reason));
        }
        Seen::Deleted => {
            give_back(step, &mut record, PartState::Returned)?;
            end(step, record, PayStage::Returned);
        }
        // The exchange does not say of an expired purse whether it was paid out before.
        Seen::Expired => {
            give_back(step, &mut record, PartState::Doubtful)?;
            record.reason =
                Some("it expired; unless somebody accepted it before, the money is back".to_owned());
            end(step, record, PayStage::Returned);
        }
        Seen::Unknown => return Err(forgotten()),
    }
    Ok(())
}

/// Credits the coins again.
///
/// The exchange has seen them together in a purse, so paying with them apart would link the payments. They are
/// refreshed like change. Only a coin that is worth no more than its refresh pays again as it is.
fn give_back(step: &mut Step<'_, '_>, record: &mut PursePayment, state: PartState) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    for part in record.coins.iter_mut().filter(|part| part.state == PartState::Spent) {
        step.draft.credit_coin(&part.coin_pub, part.amount)?;
        part.state = state;
        let coin = step.draft.coin(&part.coin_pub)?;
        let is_whole = part.amount == exchange.denom(&coin.h_denom_pub)?.value;
        let is_too_small =
            refresh::cost_of_change(&exchange, coin, coin.remaining, step.now) == coin.remaining;
        if coin.status == CoinStatus::Used && is_whole && is_too_small {
            step.draft.coin_mut(&part.coin_pub)?.status = CoinStatus::Fresh;
        }
    }
    Ok(())
}

/// Records the requested contributions as refused.
fn record_refused(record: &mut PursePayment) {
    for part in record.coins.iter().filter(|part| part.state == PartState::Spent) {
        if !record.refused.contains(part) {
            record.refused.push(part.clone());
        }
    }
}

/// Takes back the coins of a refused request, excludes those for which `drop_coin` holds, and selects coins
/// again. The exchange books all coins of a request or none.
fn replace(
    step: &mut Step<'_, '_>,
    mut record: PursePayment,
    drop_coin: impl FnMut(&mut Step<'_, '_>, EddsaPublicKey) -> Result<bool>,
) -> Result<()> {
    record_refused(&mut record);
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let parts = std::mem::take(&mut record.coins).into_iter();
    let parts = parts.map(|part| (part.coin_pub, part.amount, part.fee_deposit));
    let (have, back) = take_back(step, parts, record.terms.min_age, drop_coin)?;
    let target = Target {
        amount: record.terms.amount,
        max_fee: Money::ZERO,
        max_coins: PURSE_COINS_MAX,
        avoids_change: exchange.discretion.assortment,
    };
    match choose(step.draft.base(), exchange.currency, &have, target, step.now) {
        Ok(plan) => {
            record.take(step.draft.allocate(&plan, step.entropy)?);
            step.proceed(record);
        }
        Err(error @ (CoreError::InsufficientFunds { .. } | CoreError::TooManyCoins { .. })) => {
            record.reason = Some(error.to_string());
            end(step, record, PayStage::Failed);
        }
        Err(error) => return Err(error),
    }
    // Coins that were taken back and not selected again can pay for something else.
    for candidate in &have[..back] {
        let coin = step.draft.coin_mut(&candidate.coin_pub)?;
        let value = exchange.denom(&coin.h_denom_pub)?.value;
        if coin.status == CoinStatus::Used && coin.remaining == value {
            coin.status = CoinStatus::Fresh;
        }
    }
    Ok(())
}

/// The changes that take sent money back, if nobody has accepted it yet.
///
/// # Errors
/// [`CoreError::BadInput`] if it was accepted, or is a request that was paid.
pub fn cancel(state: &WalletState, id: OpId) -> Result<Vec<Change>> {
    let mut operation = state.operation(id)?.clone();
    let OpKind::PursePayment(record) = &mut operation.kind else {
        return Err(bad_input("operation", "it is no payment between people"));
    };
    if operation.finished.is_some() {
        return Err(bad_input("operation", "it is finished"));
    }
    if record.direction == Direction::Pull {
        return Err(bad_input("operation", "a request that was paid cannot be cancelled; ask the receiver"));
    }
    if matches!(record.stage, PayStage::Send | PayStage::Open) {
        record.stage = PayStage::Delete;
        record.reason = Some("cancelled by you; the money is back".to_owned());
    }
    operation.go_on();
    Ok(vec![Change::Operation(Box::new(operation))])
}
