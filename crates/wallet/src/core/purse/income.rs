//! The receiver's side: money accepted, and money requested.
//!
//! All purses of an exchange pay into one reserve, whose key is stored before it is used. When the exchange
//! has confirmed that the reserve got the money, a withdrawal turns it into coins.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature};
use batzen_protocol::api::errors::PurseMergeConflict;
use batzen_protocol::api::exchange::{
    PurseConfirmation, PurseMergeConfirmation, PurseMergeRequest, ReserveHistoryItem, ReservePurseRequest,
    ReserveRequest, ReserveStatus,
};
use batzen_protocol::econtract::PeerContract;
use batzen_protocol::signatures::{
    ExchangeConfirmPurseMerged, SignedMessage, WalletAccountMerge, WalletPurseMerge, WalletReserveStatus,
};
use batzen_protocol::{Amount, Duration, ErrorCode, Money, PaytoUri, Timestamp, hash_text};

use super::super::exchange::Exchange;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::kyc::KycWanted;
use super::super::operation::{Operation, Step, View};
use super::super::row::{Transaction, Wait, about, units};
use super::super::state::{OpId, OpKind, WalletOperation, WalletState};
use super::super::{Change, CoreError, Entropy, withdraw};
use super::lookup::PeerPayment;
use super::{
    CREATE_WITH_FEE, Direction, IncomeStage, MERGE_FULL_PURSE, NewPurse, PurseIncome, PurseProof, PurseTerms,
    Seen, WaitFor, check_expired, delete_request, forgotten, is_full, read_status, status_request, upload,
    uri, verify_confirmation,
};
use crate::core::error::{Result, bad_input, false_proof};

/// Says that nobody has paid a request yet.
const WAITING: &str = "waiting for somebody to pay it";
/// A request for a history that is older than this may be refused for its age.
const STALE: Duration = Duration::from_secs(600);

/// Records a request for money. Nothing is sent before the changes are durable.
///
/// # Errors
/// If the terms are malformed, the exchange's terms are not accepted, or it charges a fee for requests.
pub fn start_request(
    state: &WalletState,
    base_url: &str,
    amount: Amount,
    (summary, expiration, min_age): (&str, Timestamp, u32),
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let exchange = state.exchange(base_url)?;
    exchange.require_terms()?;
    let terms = PurseTerms::new(amount, summary, expiration, min_age, now)?;
    amount.money_in(exchange.currency)?;
    if let Some(fee) = exchange.global_fee(now).filter(|fee| !fee.purse_fee.is_zero()) {
        let reason = format!(
            "{base_url} charges {} for each request, which wallets do not pay; choose another",
            fee.purse_fee
        );
        return Err(bad_input("exchange", reason));
    }
    let purse = NewPurse::draw(entropy);
    let contract = PeerContract::Request { contract: terms.contract.clone() };
    let record = PurseIncome {
        direction: Direction::Pull,
        econtract: Some(purse.encrypt(&contract, entropy)?),
        purse_pub: purse.purse_priv.public_key(),
        purse_priv: Some(purse.purse_priv),
        merge_priv: purse.merge_priv,
        contract_priv: purse.contract_priv,
        terms,
        reserve_priv: reserve_of(state, base_url, entropy),
        merge_timestamp: now,
        stage: IncomeStage::Create,
        kyc: None,
        confirmation: None,
        merge: None,
        status: None,
        reason: None,
    };
    Ok(put(state, base_url, record, now, None))
}

/// Records that offered money is accepted. Nothing is sent before the changes are durable.
///
/// # Errors
/// If it cannot be accepted any more, or the exchange's terms are not accepted.
pub fn start_accept(
    state: &WalletState,
    offer: &PeerPayment,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    offer.require_open()?;
    state.exchange(&offer.exchange)?.require_terms()?;
    let record = of_offer(state, offer, IncomeStage::Merge, now, entropy)?;
    Ok(put(state, &offer.exchange, record, now, None))
}

/// Records that the user does not accept offered money.
///
/// # Errors
/// If the offer has no merge key.
pub(crate) fn decline(
    state: &WalletState,
    offer: &PeerPayment,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    let mut record = of_offer(state, offer, IncomeStage::Failed, now, entropy)?;
    record.reason = Some("declined by you; the sender gets the money back when it expires".to_owned());
    Ok(put(state, &offer.exchange, record, now, Some(now)))
}

fn of_offer(
    state: &WalletState,
    offer: &PeerPayment,
    stage: IncomeStage,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<PurseIncome> {
    let merge_priv = offer.merge_priv.clone().ok_or_else(|| bad_input("taler URI", "it offers no money"))?;
    Ok(PurseIncome {
        direction: Direction::Push,
        purse_priv: None,
        purse_pub: offer.purse_pub,
        merge_priv,
        contract_priv: offer.contract_priv.clone(),
        econtract: None,
        terms: offer.terms.clone(),
        reserve_priv: reserve_of(state, &offer.exchange, entropy),
        merge_timestamp: now,
        stage,
        kyc: None,
        confirmation: None,
        merge: None,
        status: None,
        reason: None,
    })
}

/// The key of the reserve that all purses of an exchange pay into: that of an earlier income, or a new one.
fn reserve_of(state: &WalletState, base_url: &str, entropy: &mut dyn Entropy) -> EddsaPrivateKey {
    let known = state.operations.values().rev().find_map(|operation| match &operation.kind {
        OpKind::PurseIncome(record) if operation.exchange == base_url => Some(record.reserve_priv.clone()),
        _ => None,
    });
    known.unwrap_or_else(|| EddsaPrivateKey::from_bytes(entropy.array()))
}

fn put(
    state: &WalletState,
    base_url: &str,
    record: PurseIncome,
    created: Timestamp,
    finished: Option<Timestamp>,
) -> (OpId, Vec<Change>) {
    let operation = WalletOperation::new(state.next_id(), created, base_url, record);
    let operation = WalletOperation { finished, ..operation };
    (operation.id, vec![Change::Operation(Box::new(operation))])
}

fn reserve_payto(exchange: &Exchange, reserve_pub: &EddsaPublicKey) -> Result<PaytoUri> {
    PaytoUri::reserve(exchange.own_url(), reserve_pub)
        .map_err(|error| bad_input("exchange", error.to_string()))
}

/// The signatures of the merge key and of the reserve under a merge.
fn merge_sigs(
    exchange: &Exchange,
    record: &PurseIncome,
    flags: u32,
) -> Result<(EddsaSignature, EddsaSignature)> {
    let payto = reserve_payto(exchange, &record.reserve_priv.public_key())?;
    let merge = WalletPurseMerge {
        merge_timestamp: record.merge_timestamp,
        purse_pub: record.purse_pub,
        h_payto: payto.hash(),
    };
    let account = WalletAccountMerge {
        purse_expiration: record.terms.expiration,
        purse_amount: exchange.amount(record.terms.amount),
        purse_fee: exchange.amount(Money::ZERO),
        h_contract_terms: record.terms.h_contract_terms,
        purse_pub: record.purse_pub,
        merge_timestamp: record.merge_timestamp,
        min_age: record.terms.min_age,
        flags,
    };
    Ok((merge.sign(&record.merge_priv), account.sign(&record.reserve_priv)))
}

impl Operation for PurseIncome {
    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Push => "receive",
            Direction::Pull => "request",
        }
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, poll_ms: u64) -> Result<HttpRequest> {
        let base = &operation.exchange;
        let exchange = state.exchange(base)?;
        let (purse_pub, reserve_pub) = (&self.purse_pub, self.reserve_priv.public_key());
        let purse_priv = || {
            let missing = || CoreError::Inconsistent(format!("request {} has no purse key", operation.id));
            self.purse_priv.as_ref().ok_or_else(missing)
        };
        if let Some(kyc) = &self.kyc {
            return Ok(kyc.request(base, poll_ms));
        }
        match self.stage {
            IncomeStage::Merge => {
                let (merge_sig, reserve_sig) = merge_sigs(exchange, self, MERGE_FULL_PURSE)?;
                let body = PurseMergeRequest {
                    payto_uri: reserve_payto(exchange, &reserve_pub)?.into_string(),
                    merge_sig,
                    reserve_sig,
                    merge_timestamp: self.merge_timestamp,
                };
                Ok(HttpRequest::post(Context::Withdraw, format!("{base}purses/{purse_pub}/merge"), &body))
            }
            IncomeStage::Create => {
                let purse_priv = purse_priv()?;
                let econtract = self.econtract.as_ref().ok_or_else(|| {
                    CoreError::Inconsistent(format!("request {} has no contract", operation.id))
                })?;
                let (merge_sig, reserve_sig) = merge_sigs(exchange, self, CREATE_WITH_FEE)?;
                let merge_pub = self.merge_priv.public_key();
                let body = ReservePurseRequest {
                    purse_value: exchange.amount(self.terms.amount),
                    min_age: self.terms.min_age,
                    purse_fee: Some(exchange.amount(Money::ZERO)),
                    merge_pub,
                    merge_sig,
                    reserve_sig,
                    purse_pub: *purse_pub,
                    purse_sig: self.terms.create_message(exchange, merge_pub).sign(purse_priv),
                    h_contract_terms: self.terms.h_contract_terms,
                    merge_timestamp: self.merge_timestamp,
                    purse_expiration: self.terms.expiration,
                    econtract: Some(upload(purse_priv, &self.contract_priv, econtract)),
                };
                Ok(HttpRequest::post(Context::Withdraw, format!("{base}reserves/{reserve_pub}/purse"), &body))
            }
            IncomeStage::Await => {
                Ok(status_request(Context::Withdraw, base, purse_pub, WaitFor::Deposit, poll_ms))
            }
            IncomeStage::Delete => Ok(delete_request(Context::Withdraw, base, purse_priv()?)),
            IncomeStage::Decided => {
                Ok(status_request(Context::Withdraw, base, purse_pub, WaitFor::Deposit, 0))
            }
            IncomeStage::Check { time } => {
                let message = WalletReserveStatus { request_timestamp: time };
                let reserve_sig = message.sign(&self.reserve_priv);
                let body = ReserveRequest { request_timestamp: time, reserve_sig };
                Ok(HttpRequest::post(
                    Context::Withdraw,
                    format!("{base}reserves/{reserve_pub}/status"),
                    &body,
                ))
            }
            IncomeStage::Done | IncomeStage::Failed => {
                Err(CoreError::Inconsistent(format!("income {} ended without date", operation.id)))
            }
        }
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let mut record = *self;
        if let Some(kyc) = &record.kyc {
            record.kyc = kyc.receive(response)?;
            match &record.kyc {
                Some(kyc) => {
                    let reason = kyc.words("the money waits");
                    step.wait(record, reason);
                }
                None => step.proceed(record),
            }
            return Ok(());
        }
        match record.stage {
            IncomeStage::Merge => after_merge(step, record, response),
            IncomeStage::Create => after_create(step, record, response),
            IncomeStage::Await | IncomeStage::Decided => after_status(step, record, response),
            IncomeStage::Delete => after_delete(step, record, response),
            IncomeStage::Check { time } => after_history(step, record, time, response),
            IncomeStage::Done | IncomeStage::Failed => Ok(()),
        }
    }

    fn held(&self, _: View<'_>) -> Result<Money> {
        Ok(self.expected())
    }

    fn effect(&self, _: View<'_>) -> Result<i128> {
        Ok(units(self.expected()))
    }

    fn describe(&self, View { exchange, operation, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        row.amount = exchange.amount(self.terms.amount);
        row.h_contract_terms = Some(self.terms.h_contract_terms.to_string());
        row.reserve_pub = Some(self.reserve_priv.public_key().to_string());
        let what = match (self.direction, self.stage) {
            (Direction::Push, _) => "Received",
            (Direction::Pull, IncomeStage::Done) => "Request paid to you",
            (Direction::Pull, _) => "Requested",
        };
        row.description = format!("{what}{}: {}", about(&self.terms.summary), row.amount);
        if self.stage == IncomeStage::Await {
            row.uri = Some(uri(self.direction, &operation.exchange, &self.contract_priv));
        }
        row.fail_if(self.stage == IncomeStage::Failed);
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        let reason = match self.stage {
            _ if self.kyc.is_some() => "waits for the identity check",
            IncomeStage::Await => "waits for somebody to pay it",
            _ => "waits for the exchange's confirmation",
        };
        Ok(Wait { reason, until: Some((self.terms.expiration, "it expires")) })
    }
}

/// The reserve has the money: ends the income, and begins to withdraw it.
fn credited(step: &mut Step<'_, '_>, mut record: PurseIncome) -> Result<()> {
    withdraw::start_from_purse(step, &record.reserve_priv, record.terms.amount)?;
    record.stage = IncomeStage::Done;
    record.reason = None;
    step.finish(record);
    Ok(())
}

fn fail(step: &mut Step<'_, '_>, mut record: PurseIncome, reason: impl Into<String>) {
    record.stage = IncomeStage::Failed;
    record.reason = Some(reason.into());
    step.finish(record);
}

fn after_merge(step: &mut Step<'_, '_>, mut record: PurseIncome, response: &HttpResponse) -> Result<()> {
    const WHAT: &str = "accepting money";
    match (response.status, response.code()) {
        (200, _) => {
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let answer: PurseMergeConfirmation = response.json(WHAT)?;
            exchange.require_signing_key(&answer.exchange_pub, step.now)?;
            let message = ExchangeConfirmPurseMerged {
                exchange_time: answer.exchange_timestamp,
                purse_expiration: record.terms.expiration,
                amount_without_fee: exchange.amount(record.terms.amount),
                purse_pub: record.purse_pub,
                reserve_pub: record.reserve_priv.public_key(),
                h_contract_terms: record.terms.h_contract_terms,
                h_provider_url: hash_text(exchange.own_url()),
            };
            if !message.verify(&answer.exchange_pub, &answer.exchange_sig) {
                return Err(CoreError::BadSignature { what: "the exchange's confirmation of a merge" });
            }
            record.merge = Some(PurseProof {
                total: record.terms.amount,
                exchange_timestamp: answer.exchange_timestamp,
                exchange_pub: answer.exchange_pub,
                exchange_sig: answer.exchange_sig,
            });
            credited(step, record)
        }
        (451, _) => {
            record.kyc = Some(KycWanted::read(response, WHAT)?);
            step.proceed(record);
            Ok(())
        }
        (409, _) => match other_merge(step, &record, response)? {
            // A copy of this wallet was quicker.
            reserve_pub if reserve_pub == record.reserve_priv.public_key() => credited(step, record),
            _ => {
                fail(step, record, "somebody else has accepted it");
                Ok(())
            }
        },
        // The exchange does not sign these refusals. An earlier attempt may have been successful, and then the
        // reserve's history shows it.
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_EXPIRED) => {
            check(step, record, "it expired before it was accepted");
            Ok(())
        }
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_DELETED)
        | (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) => {
            check(step, record, "the sender has taken it back");
            Ok(())
        }
        (402, ErrorCode::EXCHANGE_PURSE_NOT_FULL) => {
            check(step, record, "the sender has not paid the whole amount");
            Ok(())
        }
        (400..=499, code) if code != ErrorCode::NONE => {
            check(step, record, response.refusal(WHAT).to_string());
            Ok(())
        }
        _ => Err(response.refusal(WHAT)),
    }
}

/// Continues with the reserve's history. If it does not show the money, the income fails for this reason.
fn check(step: &mut Step<'_, '_>, mut record: PurseIncome, reason: impl Into<String>) {
    record.reason = Some(reason.into());
    record.stage = IncomeStage::Check { time: step.now };
    step.proceed(record);
}

/// Verifies the proof that the purse was merged into another reserve. Returns that reserve.
fn other_merge(step: &Step<'_, '_>, record: &PurseIncome, response: &HttpResponse) -> Result<EddsaPublicKey> {
    let proof = "the exchange's proof that somebody else has accepted a payment";
    let not_proven = |reason: &str| false_proof(proof, reason);
    let merged: PurseMergeConflict = serde_json::from_slice(&response.body)
        .map_err(|error| not_proven(&format!("it cannot be read: {error}")))?;
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    let provider = merged.partner_url.as_deref().unwrap_or_else(|| exchange.own_url());
    let payto =
        PaytoUri::reserve(provider, &merged.reserve_pub).map_err(|error| not_proven(&error.to_string()))?;
    let message = WalletPurseMerge {
        merge_timestamp: merged.merge_timestamp,
        purse_pub: record.purse_pub,
        h_payto: payto.hash(),
    };
    if message.verify(&record.merge_priv.public_key(), &merged.merge_sig) {
        Ok(merged.reserve_pub)
    } else {
        Err(not_proven("the merge key did not sign it"))
    }
}

fn after_create(step: &mut Step<'_, '_>, mut record: PurseIncome, response: &HttpResponse) -> Result<()> {
    const WHAT: &str = "requesting money";
    match (response.status, response.code()) {
        (200, _) => {
            let answer: PurseConfirmation = response.json(WHAT)?;
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let proof = verify_confirmation(exchange, &record.terms, record.purse_pub, &answer, step.now)?;
            record.confirmation = Some(proof);
            record.stage = IncomeStage::Await;
            step.wait(record, WAITING);
            Ok(())
        }
        (451, _) => {
            record.kyc = Some(KycWanted::read(response, WHAT)?);
            step.proceed(record);
            Ok(())
        }
        (400, ErrorCode::EXCHANGE_RESERVES_PURSE_FEE_TOO_LOW) => {
            fail(step, record, "the exchange charges a fee for requests, which wallets do not pay");
            Ok(())
        }
        (400..=499, code) if code != ErrorCode::NONE => {
            fail(step, record, response.refusal(WHAT).to_string());
            Ok(())
        }
        _ => Err(response.refusal(WHAT)),
    }
}

fn after_status(step: &mut Step<'_, '_>, mut record: PurseIncome, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    let is_decided = record.stage == IncomeStage::Decided;
    match read_status(exchange, response, step.now)? {
        Seen::Current(status) => {
            record.status = Some(status);
            if is_full(&record.terms, status.balance) {
                return credited(step, record);
            }
            if is_decided {
                let reason = "it says that nothing was decided about the purse";
                return Err(false_proof("the exchange's refusal to delete a purse", reason));
            }
            step.wait(record, WAITING);
        }
        Seen::Expired if !check_expired(&record.terms, step.now)? => {
            step.wait(record, WAITING);
        }
        Seen::Expired => check(step, record, "nobody paid it before it expired"),
        Seen::Deleted if is_decided => {
            let reason = record.reason.take().unwrap_or_default();
            fail(step, record, reason);
        }
        // This wallet did not ask for it, so it asks now: if it was not deleted, it is then.
        Seen::Deleted => {
            record.reason = Some("it was withdrawn, perhaps by a copy of this wallet".to_owned());
            record.stage = IncomeStage::Delete;
            step.proceed(record);
        }
        Seen::Unknown => return Err(forgotten()),
    }
    Ok(())
}

fn after_delete(step: &mut Step<'_, '_>, mut record: PurseIncome, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200..=204, _) => {}
        (409, ErrorCode::EXCHANGE_PURSE_DELETE_ALREADY_DECIDED) => {
            record.stage = IncomeStage::Decided;
            step.proceed(record);
            return Ok(());
        }
        (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) if record.confirmation.is_none() => {}
        (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) => return Err(forgotten()),
        _ => return Err(response.refusal("withdrawing a request")),
    }
    let reason = record.reason.take().unwrap_or_default();
    fail(step, record, reason);
    Ok(())
}

/// The purse has expired. If it was paid before, the reserve's history lists it as paid.
fn after_history(
    step: &mut Step<'_, '_>,
    mut record: PurseIncome,
    time: Timestamp,
    response: &HttpResponse,
) -> Result<()> {
    const WHAT: &str = "asking for a reserve's history";
    match (response.status, response.code()) {
        (200, _) => {
            let answer: ReserveStatus = response.json(WHAT)?;
            let is_paid = answer.history.iter().any(|item| {
                matches!(item, ReserveHistoryItem::Merge(merge)
                    if merge.purse_pub == record.purse_pub && merge.merged)
            });
            if is_paid {
                return credited(step, record);
            }
            let reason = record.reason.take().unwrap_or_default();
            fail(step, record, reason);
        }
        (404, _) => {
            let reason = record.reason.take().unwrap_or_default();
            fail(step, record, reason);
        }
        // The wallet has not run since then: the request is older than the exchange allows.
        (400, ErrorCode::EXCHANGE_GENERIC_CLOCK_SKEW) if step.now >= time.saturating_add(STALE) => {
            record.stage = IncomeStage::Check { time: step.now };
            step.proceed(record);
        }
        _ => return Err(response.refusal(WHAT)),
    }
    Ok(())
}

/// The changes that withdraw a request which nobody has paid yet.
///
/// # Errors
/// [`CoreError::BadInput`] if it is finished, or was sent by somebody else.
pub fn cancel(state: &WalletState, id: OpId) -> Result<Vec<Change>> {
    let mut operation = state.operation(id)?.clone();
    let OpKind::PurseIncome(record) = &mut operation.kind else {
        return Err(bad_input("operation", "it is no payment between people"));
    };
    if operation.finished.is_some() {
        return Err(bad_input("operation", "it is finished"));
    }
    if record.direction == Direction::Push {
        return Err(bad_input("operation", "money that was accepted cannot be sent back; send it instead"));
    }
    if matches!(record.stage, IncomeStage::Create | IncomeStage::Await) {
        record.stage = IncomeStage::Delete;
        record.kyc = None;
        record.reason = Some("cancelled by you".to_owned());
    }
    operation.go_on();
    Ok(vec![Change::Operation(Box::new(operation))])
}
