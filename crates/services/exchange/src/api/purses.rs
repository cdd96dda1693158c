//! `/purses/…` and `/contracts/…`: payments between people.

use std::sync::Arc;

use batzen_crypto::{AgeCommitment, AgeMask, AgeSignature, EddsaSignature, HashCode, ShortHash, hash};
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{
    ContractResponse, EncryptedContract, PurseCoin as CoinBody, PurseConfirmation, PurseCreateRequest,
    PurseDepositConfirmation, PurseDepositRequest, PurseMergeConfirmation, PurseMergeRequest, PurseStatus,
};
use batzen_protocol::api::field_error;
use batzen_protocol::limits::{
    ECONTRACT_BYTES_MAX, NO_BODY_BYTES_MAX, PURSE_BODY_BYTES_MAX, PURSE_COINS_MAX, SMALL_BODY_BYTES_MAX,
};
use batzen_protocol::payto::{PaytoUri, h_payto};
use batzen_protocol::signatures::{
    ExchangeConfirmPurseCreation, ExchangeConfirmPurseMerged, ExchangePurseStatus, SignedMessage,
    WalletAccountMerge, WalletPurseCreate, WalletPurseDelete, WalletPurseDeposit, WalletPurseEcontract,
    WalletPurseMerge,
};
use batzen_protocol::{Amount, ErrorCode, Money, ParseError, Timestamp, hash_text};
use batzen_service::poll_deadline;
use batzen_tables::exchange::{
    CoinPub, PurseMergeRow, PurseMode, PursePub, PurseRow, PurseState, ReservePub,
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::check::{self, Checked, Presented, Window};
use super::response::{self, DenomOperation};
use super::signing;
use super::{
    LONG_POLL_MAX, Table, body, endpoint, error, in_currency, large_body, malformed, money, path_value,
};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::keys::KeyState;
use crate::notices::tag;
use crate::reads::read;
use crate::rules::{
    Contract, PurseCoin, PurseCreate, PurseDelete, PurseDeposit, PurseMerge, PurseTerms, Refusal,
    TypedCommand,
};

/// Number of times that a command is submitted again because the purse has changed since it was read.
const RACES_MAX: u32 = 8;
/// The hash of "no age commitment".
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/purses/:purse_pub/create", PURSE_BODY_BYTES_MAX, "purse", endpoint!(create))
        .post("/purses/:purse_pub/deposit", PURSE_BODY_BYTES_MAX, "purse", endpoint!(deposit))
        .post("/purses/:purse_pub/merge", SMALL_BODY_BYTES_MAX, "purse", endpoint!(merge))
        .get("/purses/:purse_pub/:target", "purse", endpoint!(status))
        .delete("/purses/:purse_pub", NO_BODY_BYTES_MAX, "purse", endpoint!(delete))
        .get("/contracts/:contract_pub", "purse", endpoint!(contract))
}

fn purse_pub(request: &Request) -> Checked<PursePub> {
    path_value(request, "purse_pub", ErrorCode::EXCHANGE_GENERIC_PURSE_PUB_MALFORMED)
}

fn purse_unknown() -> Response {
    error(ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN, "")
}

/// The answer about a purse that was deleted, or has expired.
fn gone(code: ErrorCode, expiration: Timestamp) -> Response {
    error(code, &format!("purse expiration: {expiration}"))
}

async fn find(app: &Exchange, purse_pub: PursePub) -> Checked<(PurseRow, Option<PurseMergeRow>)> {
    let found = app.core.read(move |store| read::purse(store, purse_pub)).await.map_err(response::store)?;
    found.ok_or_else(purse_unknown)
}

// --- Parts of requests
// ---------------------------------------------------------------------------------------------------

/// Refuses a new purse that would have expired, before anything else is checked, as clients know it. The rules decide; a
/// purse that exists is confirmed whatever the time.
pub(super) async fn check_expiration(
    app: &Exchange,
    purse_pub: PursePub,
    expiration: Timestamp,
    too_late: ErrorCode,
) -> Checked<()> {
    if expiration > app.core.now() {
        return Ok(());
    }
    let found = app.core.read(move |store| read::purse(store, purse_pub)).await.map_err(response::store)?;
    if found.is_some() { Ok(()) } else { Err(error(too_late, "")) }
}

/// Checks the coins of a request, except for their balances, in the order of the protocol's table. `sign` makes the
/// message that a coin signs: from its amount, denomination and hash of the age commitment.
pub(super) async fn check_coins<T: DeserializeOwned, M: SignedMessage>(
    app: &Exchange,
    keys: &KeyState,
    (field, coins): (&str, Vec<CoinBody>),
    min_age: u32,
    sign: impl Fn(Amount, HashCode, ShortHash) -> M,
) -> Checked<Vec<PurseCoin>> {
    let now = app.core.now();
    let mut checks = Vec::with_capacity(2 * coins.len());
    let mut checked = Vec::with_capacity(coins.len());
    let mut attests = Vec::new();
    for (index, coin) in coins.into_iter().enumerate() {
        let amount = in_currency(app, &coin.amount).map_err(|problem| {
            let element = Some((index, "amount".to_owned()));
            malformed(&ParseError { element, ..field_error::<T>(field, problem.to_string()) })
        })?;
        let denom = check::find_denomination(app, keys, &coin.denom_pub_hash).await?;
        if amount > denom.value {
            return Err(error(ErrorCode::EXCHANGE_GENERIC_AMOUNT_EXCEEDS_DENOMINATION_VALUE, ""));
        }
        if let Some(code) = check::denomination_problem(denom, Window::Deposit, now) {
            let operation = DenomOperation::Purse;
            return Err(
                response::denomination_unusable(app, keys, &coin.denom_pub_hash, operation, code).await
            );
        }
        check::check_cipher(denom, check::signature_cipher(&coin.ub_sig))?;
        if amount < denom.fee_deposit {
            return Err(error(ErrorCode::EXCHANGE_DEPOSIT_NEGATIVE_VALUE_AFTER_FEE, ""));
        }
        let commitment = age_commitment(denom.public.age_mask, coin.age_commitment)?;
        let h_age = commitment.as_ref().map(AgeCommitment::hash);
        let message = sign(coin.amount, coin.denom_pub_hash, h_age.unwrap_or(NO_AGE));
        let presented = Presented {
            coin_pub: coin.coin_pub,
            denom: denom.serial,
            denom_pub: denom.public.clone(),
            h_age,
            denom_sig: coin.ub_sig,
        };
        checks.push(presented.check());
        checks.push(Check::eddsa(coin.coin_pub, &message, coin.coin_sig));
        attests.push((commitment, coin.attest));
        checked.push(PurseCoin { coin: presented.into_rule(), amount, coin_sig: coin.coin_sig });
    }
    let verdicts = signing::checked(app, checks).await?;
    if verdicts.iter().step_by(2).any(|valid| !valid) {
        return Err(error(ErrorCode::EXCHANGE_DENOMINATION_SIGNATURE_INVALID, ""));
    }
    if verdicts.iter().skip(1).step_by(2).any(|valid| !valid) {
        let code = ErrorCode::EXCHANGE_PURSE_DEPOSIT_COIN_SIGNATURE_INVALID;
        return Err(error(code, &app.core.config.base_url));
    }
    if min_age > 0 {
        check_ages(app, min_age, attests).await?;
    }
    Ok(checked)
}

/// The age commitment of a coin, if it has one.
fn age_commitment(
    mask: u32,
    keys: Option<Vec<batzen_crypto::AgePublicKey>>,
) -> Checked<Option<AgeCommitment>> {
    let Some(keys) = keys else { return Ok(None) };
    let commitment = AgeMask::new(mask).and_then(|mask| AgeCommitment::new(mask, keys));
    let wrong = |_| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "age_commitment");
    commitment.map(Some).map_err(wrong)
}

/// Checks that age-restricted coins prove the minimum age. A coin without commitment is unrestricted.
async fn check_ages(
    app: &Exchange,
    min_age: u32,
    attests: Vec<(Option<AgeCommitment>, Option<AgeSignature>)>,
) -> Checked<()> {
    let mut to_verify = Vec::new();
    for pair in attests {
        match pair {
            (Some(commitment), Some(attest)) => to_verify.push((commitment, attest)),
            (None, None) => {}
            _ => {
                let code = ErrorCode::EXCHANGE_PURSE_DEPOSIT_COIN_CONFLICTING_ATTEST_VS_AGE_COMMITMENT;
                return Err(error(code, ""));
            }
        }
    }
    if to_verify.is_empty() {
        return Ok(());
    }
    // No age group begins above 31, so an older person proves that group.
    let age = u8::try_from(min_age).unwrap_or(u8::MAX);
    let verify = move || to_verify.iter().all(|(commitment, attest)| commitment.verify(age, attest));
    if signing::on_pool(app, verify).await? {
        return Ok(());
    }
    Err(error(ErrorCode::EXCHANGE_PURSE_DEPOSIT_COIN_AGE_ATTESTATION_FAILURE, ""))
}

/// Checks an encrypted contract's size and its signature by the purse.
pub(super) async fn check_contract(
    app: &Exchange,
    purse_pub: PursePub,
    contract: Option<EncryptedContract>,
) -> Checked<Option<Contract>> {
    let Some(contract) = contract else { return Ok(None) };
    let econtract = contract.econtract.0;
    if econtract.len() > ECONTRACT_BYTES_MAX {
        let detail = format!("econtract: over the limit of {ECONTRACT_BYTES_MAX} bytes");
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &detail));
    }
    let message =
        WalletPurseEcontract { h_econtract: hash::sha512(&econtract), contract_pub: contract.contract_pub };
    if !signing::is_signed(app, purse_pub, &message, contract.econtract_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_PURSE_ECONTRACT_SIGNATURE_INVALID, ""));
    }
    let EncryptedContract { contract_pub, econtract_sig, .. } = contract;
    Ok(Some(Contract { contract_pub, econtract, econtract_sig }))
}

/// Checks the purse's signature on its terms.
pub(super) async fn check_terms(
    app: &Exchange,
    purse_pub: PursePub,
    amount: Amount,
    terms: &PurseTerms,
) -> Checked<()> {
    let message = WalletPurseCreate {
        purse_expiration: terms.expiration,
        purse_amount: amount,
        h_contract_terms: terms.h_contract_terms,
        merge_pub: terms.merge_pub,
        min_age: terms.min_age,
    };
    if signing::is_signed(app, purse_pub, &message, terms.purse_sig).await? {
        return Ok(());
    }
    Err(error(ErrorCode::EXCHANGE_PURSE_CREATE_SIGNATURE_INVALID, ""))
}

/// The purse fee of this moment.
pub(super) fn current_purse_fee(app: &Exchange, keys: &KeyState) -> Checked<Money> {
    let fees = keys.global_fee(app.core.now());
    fees.map(|(_, fees)| fees.purse_fee)
        .ok_or_else(|| error(ErrorCode::EXCHANGE_GENERIC_GLOBAL_FEES_MISSING, ""))
}

/// Refuses "never" as the time of a merge: as a purse's status, it says that the purse is not merged.
pub(super) fn check_merge_time(merge_timestamp: Timestamp) -> Checked<()> {
    if merge_timestamp.is_never() {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "merge_timestamp"));
    }
    Ok(())
}

fn check_count(coins: &[CoinBody]) -> Checked<()> {
    if coins.is_empty() || coins.len() > PURSE_COINS_MAX {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "deposits"));
    }
    Ok(())
}

/// The confirmation that a purse exists and what was deposited into it.
pub(super) async fn confirm(
    app: &Exchange,
    purse_pub: PursePub,
    (target, expiration, h_contract_terms): (Money, Timestamp, HashCode),
    total: Money,
) -> Checked<PurseConfirmation> {
    let currency = app.core.config.currency;
    let exchange_timestamp = app.core.now();
    let message = ExchangeConfirmPurseCreation {
        exchange_time: exchange_timestamp,
        purse_expiration: expiration,
        amount_without_fee: target.of(currency),
        total_deposited: total.of(currency),
        purse_pub,
        h_contract_terms,
    };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, message).await?;
    Ok(PurseConfirmation {
        total_deposited: total.of(currency),
        exchange_timestamp,
        exchange_sig,
        exchange_pub,
    })
}

/// The rows that a command on a purse must name: the purse's reserve, and its coins.
type Parts = (Option<ReservePub>, Vec<CoinPub>);

async fn read_parts(app: &Exchange, purse_pub: PursePub) -> Checked<Parts> {
    app.core.read(move |store| read::purse_parts(store, purse_pub)).await.map_err(response::store)
}

/// Submits a command on a purse that has these parts. If they have changed, reads them and submits it again.
async fn decide_purse<C: TypedCommand>(
    app: &Exchange,
    keys: &Arc<KeyState>,
    operation: DenomOperation,
    purse_pub: PursePub,
    mut parts: Parts,
    command: impl Fn(Option<ReservePub>, Vec<CoinPub>) -> C,
) -> Checked<C::Answer> {
    let mut races = 0;
    loop {
        let (reserve_pub, coins) = parts;
        let verdict = app.core.submit(command(reserve_pub, coins)).await;
        if !matches!(verdict, Ok(Err(Refusal::PurseChanged))) || races == RACES_MAX {
            return response::outcome_or_response(app, keys, operation, verdict, false).await;
        }
        races += 1;
        parts = read_parts(app, purse_pub).await?;
    }
}

// --- Endpoints
// ----------------------------------------------------------------------------------------------------------

async fn create(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let purse_pub = purse_pub(request)?;
    let body: PurseCreateRequest = large_body(request).await?;
    let target = money::<PurseCreateRequest>(app, &body.amount, "amount")?;
    let too_late = ErrorCode::EXCHANGE_PURSE_CREATE_EXPIRATION_BEFORE_NOW;
    check_expiration(app, purse_pub, body.purse_expiration, too_late).await?;
    if body.purse_expiration.is_never() {
        return Err(error(ErrorCode::EXCHANGE_PURSE_CREATE_EXPIRATION_IS_NEVER, ""));
    }
    check_count(&body.deposits)?;
    let keys = app.keys();
    let purse_fee = current_purse_fee(app, &keys)?;
    let checked = check_deposits::<PurseCreateRequest>(app, &keys, purse_pub, body.min_age, body.deposits);
    let coins = checked.await?;
    let terms = PurseTerms {
        merge_pub: body.merge_pub,
        h_contract_terms: body.h_contract_terms,
        min_age: body.min_age,
        target,
        expiration: body.purse_expiration,
        purse_sig: body.purse_sig,
    };
    check_terms(app, purse_pub, body.amount, &terms).await?;
    let contract = check_contract(app, purse_pub, body.econtract).await?;
    let h_contract_terms = terms.h_contract_terms;
    let command = |reserve_pub, _| PurseCreate {
        purse_pub,
        terms: terms.clone(),
        reserve_pub,
        coins: coins.clone(),
        fee: purse_fee,
        contract: contract.clone(),
    };
    // A new purse has neither reserve nor coins.
    let parts = (None, Vec::new());
    let created = decide_purse(app, &keys, DenomOperation::Purse, purse_pub, parts, command).await?;
    // Nobody can wait for a purse that did not exist.
    if !created.is_new {
        app.core.notices.purse_changed(&purse_pub);
    }
    let terms = (target, created.expiration, h_contract_terms);
    Ok(Response::json(200, &confirm(app, purse_pub, terms, created.deposited).await?))
}

async fn check_deposits<T: DeserializeOwned>(
    app: &Exchange,
    keys: &KeyState,
    purse_pub: PursePub,
    min_age: u32,
    deposits: Vec<CoinBody>,
) -> Checked<Vec<PurseCoin>> {
    let h_exchange_base_url = hash_text(&app.core.config.base_url);
    let sign = |coin_amount, h_denom_pub, h_age_commitment| WalletPurseDeposit {
        coin_amount,
        h_denom_pub,
        h_age_commitment,
        purse_pub,
        h_exchange_base_url,
    };
    check_coins::<T, _>(app, keys, ("deposits", deposits), min_age, sign).await
}

async fn deposit(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let purse_pub = purse_pub(request)?;
    let body: PurseDepositRequest = large_body(request).await?;
    check_count(&body.deposits)?;
    let (purse, merge) = find_current(app, purse_pub).await?;
    let keys = app.keys();
    let checked = check_deposits::<PurseDepositRequest>(app, &keys, purse_pub, purse.min_age, body.deposits);
    let coins = checked.await?;
    let command = |reserve_pub, _| PurseDeposit { purse_pub, reserve_pub, coins: coins.clone() };
    let parts = (merge.map(|merge| merge.reserve_pub), Vec::new());
    let deposited = decide_purse(app, &keys, DenomOperation::Purse, purse_pub, parts, command).await?;
    app.core.notices.purse_changed(&purse_pub);
    if let Some(reserve_pub) = deposited.credited {
        app.core.notices.reserves_credited(&[reserve_pub]);
    }
    let PurseRow { target, expiration, h_contract_terms, .. } = deposited.purse;
    let terms = (target, expiration, h_contract_terms);
    let confirmation = confirm(app, purse_pub, terms, deposited.total).await?;
    Ok(Response::json(
        200,
        &PurseDepositConfirmation {
            total_deposited: confirmation.total_deposited,
            purse_value_after_fees: target.of(app.core.config.currency),
            exchange_timestamp: confirmation.exchange_timestamp,
            purse_expiration: expiration,
            h_contract_terms,
            exchange_sig: confirmation.exchange_sig,
            exchange_pub: confirmation.exchange_pub,
        },
    ))
}

async fn merge(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let purse_pub = purse_pub(request)?;
    let body: PurseMergeRequest = body(request)?;
    let (purse, _) = find(app, purse_pub).await?;
    check_merge_time(body.merge_timestamp)?;
    let payto = PaytoUri::parse(body.payto_uri.as_str()).and_then(|uri| uri.to_reserve());
    let (provider_url, reserve_pub) =
        payto.map_err(|_| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "payto_uri"))?;
    let currency = app.core.config.currency;
    let h_payto = h_payto(&body.payto_uri);
    let message = WalletPurseMerge { merge_timestamp: body.merge_timestamp, purse_pub, h_payto };
    if !signing::is_signed(app, purse.merge_pub, &message, body.merge_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_PURSE_MERGE_INVALID_MERGE_SIGNATURE, ""));
    }
    let message = WalletAccountMerge {
        purse_expiration: purse.expiration,
        purse_amount: purse.target.of(currency),
        purse_fee: Money::ZERO.of(currency),
        h_contract_terms: purse.h_contract_terms,
        purse_pub,
        merge_timestamp: body.merge_timestamp,
        min_age: purse.min_age,
        flags: u32::from(PurseMode::Push as u8),
    };
    if !signing::is_signed(app, reserve_pub, &message, body.reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_PURSE_MERGE_INVALID_RESERVE_SIGNATURE, ""));
    }
    if provider_url != app.core.config.base_url {
        return Err(error(ErrorCode::EXCHANGE_MERGE_PURSE_PARTNER_UNKNOWN, &provider_url));
    }
    let command = PurseMerge {
        purse_pub,
        reserve_pub,
        merge: PurseMergeRow {
            reserve_pub,
            h_payto,
            merge_sig: body.merge_sig,
            reserve_sig: body.reserve_sig,
            merge_time: body.merge_timestamp,
        },
    };
    let keys = app.keys();
    let merged = app.decide(&keys, DenomOperation::PurseMerge, command, false).await?;
    if merged.is_new {
        app.core.notices.purse_changed(&purse_pub);
        app.core.notices.reserves_credited(&[reserve_pub]);
    }
    let exchange_timestamp = app.core.now();
    let merge_amount = merged.purse.target.of(currency);
    let message = ExchangeConfirmPurseMerged {
        exchange_time: exchange_timestamp,
        purse_expiration: merged.purse.expiration,
        amount_without_fee: merge_amount,
        purse_pub,
        reserve_pub,
        h_contract_terms: merged.purse.h_contract_terms,
        h_provider_url: hash_text(&provider_url),
    };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, message).await?;
    Ok(Response::json(
        200,
        &PurseMergeConfirmation { merge_amount, exchange_timestamp, exchange_sig, exchange_pub },
    ))
}

/// The event that a request for a purse's status waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitTarget {
    Merge,
    Deposit,
}

async fn status(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let purse_pub = purse_pub(request)?;
    let target = match request.param("target") {
        "merge" => WaitTarget::Merge,
        "deposit" => WaitTarget::Deposit,
        other => return Err(error(ErrorCode::EXCHANGE_PURSES_INVALID_WAIT_TARGET, other)),
    };
    let deadline = poll_deadline(request.query_opt("timeout_ms")?, LONG_POLL_MAX);
    // Registered before the look-up, so that no change is missed in between.
    let poll = deadline.and_then(|_| app.core.notices.purses.poll(tag(&purse_pub)));
    let mut found = find_current(app, purse_pub).await?;
    if let (Some(poll), Some(deadline)) = (poll, deadline) {
        let is_reached = |(purse, merge): &(PurseRow, Option<PurseMergeRow>)| match target {
            WaitTarget::Merge => merge.is_some(),
            WaitTarget::Deposit => purse.balance >= purse.target,
        };
        let life = found.0.expiration.saturating_since(app.core.now()).to_std().unwrap_or(LONG_POLL_MAX);
        let deadline = deadline.min(Instant::now() + life);
        found = poll.until(request, deadline, found, is_reached, || find_current(app, purse_pub)).await?;
    }
    let (purse, merge) = found;
    let merge_timestamp = merge.map_or(Timestamp::NEVER, |merge| merge.merge_time);
    let is_full = purse.balance >= purse.target;
    let deposit_timestamp = if is_full { app.core.now().min(purse.expiration) } else { Timestamp::ZERO };
    let balance = purse.balance.of(app.core.config.currency);
    let message = ExchangePurseStatus { merge_timestamp, deposit_timestamp, balance };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, message).await?;
    Ok(Response::json(
        200,
        &PurseStatus {
            balance,
            exchange_sig,
            exchange_pub,
            merge_timestamp: Some(merge_timestamp),
            deposit_timestamp: is_full.then_some(deposit_timestamp),
        },
    ))
}

/// A purse that is neither deleted nor expired.
async fn find_current(app: &Exchange, purse_pub: PursePub) -> Checked<(PurseRow, Option<PurseMergeRow>)> {
    let (purse, merge) = find(app, purse_pub).await?;
    if purse.state == PurseState::Deleted {
        return Err(gone(ErrorCode::EXCHANGE_GENERIC_PURSE_DELETED, purse.expiration));
    }
    if purse.expiration <= app.core.now() {
        return Err(gone(ErrorCode::EXCHANGE_GENERIC_PURSE_EXPIRED, purse.expiration));
    }
    Ok((purse, merge))
}

async fn delete(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let purse_pub = purse_pub(request)?;
    let header = "Taler-Purse-Signature";
    let text = request.header("taler-purse-signature");
    let text = text.ok_or_else(|| error(ErrorCode::GENERIC_PARAMETER_MISSING, header))?;
    let malformed = |_| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, header);
    let purse_sig = text.parse::<EddsaSignature>().map_err(malformed)?;
    if !signing::is_signed(app, purse_pub, &WalletPurseDelete {}, purse_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_PURSE_DELETE_SIGNATURE_INVALID, ""));
    }
    let keys = app.keys();
    let command = |reserve_pub, coins| PurseDelete { purse_pub, purse_sig, reserve_pub, coins };
    let parts = read_parts(app, purse_pub).await?;
    decide_purse(app, &keys, DenomOperation::PurseDelete, purse_pub, parts, command).await?;
    app.core.notices.purse_changed(&purse_pub);
    Ok(Response::empty(204))
}

async fn contract(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let contract_pub =
        path_value(request, "contract_pub", ErrorCode::EXCHANGE_CONTRACTS_INVALID_CONTRACT_PUB)?;
    let found = app.core.read(move |store| read::contract(store, contract_pub)).await;
    let found = found.map_err(response::store)?;
    let (purse_pub, row) = found.ok_or_else(|| error(ErrorCode::EXCHANGE_CONTRACTS_UNKNOWN, ""))?;
    Ok(Response::json(
        200,
        &ContractResponse { purse_pub, econtract_sig: row.econtract_sig, econtract: row.econtract.into() },
    ))
}
