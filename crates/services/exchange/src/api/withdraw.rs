//! `POST /reserves/$RESERVE_PUB/withdraw` and `…/batch-withdraw`: coins from a reserve.

use std::collections::HashSet;
use std::sync::Arc;

use batzen_crypto::{BlindedDenomSignature, BlindedPlanchet, CsOperation, EddsaPublicKey, HashCode};
use batzen_engine::SubmitError;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{BatchWithdrawRequest, WithdrawRequest};
use batzen_protocol::limits::{BATCH_BODY_BYTES_MAX, PLANCHETS_MAX, SMALL_BODY_BYTES_MAX};
use batzen_protocol::signatures::WalletReserveWithdraw;
use batzen_protocol::{Amount, ErrorCode, Money};
use batzen_store::StoreError;
use batzen_tables::exchange::{self as tables, DenomSerial, KycOperation, ReservePub, ReserveRow};

use super::check::{self, Checked, Window};
use super::response::{self, DenomOperation};
use super::{Table, body, endpoint, error, large_body, path_value};
use super::{signing, text};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::keys::KeyState;
use crate::reads::{kyc, read};
use crate::rules::{LimitedAccount, Planchet, Refusal, Withdraw, Withdrawn};

pub(super) fn routes(table: Table) -> Table {
    table.post("/reserves/:reserve_pub/withdraw", SMALL_BODY_BYTES_MAX, "withdraw", endpoint!(single)).post(
        "/reserves/:reserve_pub/batch-withdraw",
        BATCH_BODY_BYTES_MAX,
        "batch-withdraw",
        endpoint!(batch),
    )
}

async fn single(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let body: WithdrawRequest = body(request)?;
    let signatures = withdraw(app, reserve_pub, vec![body], false).await?;
    Ok(text::blind_signature(signatures.first().expect("one signature a planchet")))
}

async fn batch(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let body: BatchWithdrawRequest = large_body(request).await?;
    let malformed = |detail| Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, detail));
    if body.planchets.is_empty() {
        return malformed("planchets");
    }
    if body.planchets.len() > PLANCHETS_MAX {
        return malformed("too many planchets");
    }
    let mut seen = HashSet::with_capacity(body.planchets.len());
    if !body.planchets.iter().all(|planchet| seen.insert((planchet.denom_pub_hash, &planchet.coin_ev))) {
        return malformed("duplicate planchet");
    }
    let signatures = withdraw(app, reserve_pub, body.planchets, true).await?;
    Ok(text::blind_signatures(&signatures))
}

async fn withdraw(
    app: &Exchange,
    reserve_pub: EddsaPublicKey,
    requests: Vec<WithdrawRequest>,
    batch: bool,
) -> Checked<Vec<BlindedDenomSignature>> {
    let keys = app.keys();
    let h_coin_evs: Vec<HashCode> =
        requests.iter().map(|request| request.coin_ev.hash(&request.denom_pub_hash)).collect();
    if let Some(stored) = repetition(app, &keys, reserve_pub, &requests, &h_coin_evs).await? {
        let counters = &app.core.metrics.idempotent;
        if batch {
            counters.batch_withdraw.inc();
        } else {
            counters.withdraw.inc();
        }
        app.core.metrics.decisions.count_repeated_withdrawal(stored.len());
        return Ok(stored);
    }
    let now = app.core.now();
    let mut messages = Vec::with_capacity(requests.len());
    let mut serials = Vec::with_capacity(requests.len());
    let mut requested = Money::ZERO;
    let overflow = |_| error(ErrorCode::EXCHANGE_WITHDRAW_AMOUNT_FEE_OVERFLOW, "");
    for (request, h_coin_envelope) in requests.iter().zip(&h_coin_evs) {
        let denom = check::find_usable_denomination(
            app,
            &keys,
            &request.denom_pub_hash,
            Window::Withdraw,
            DenomOperation::Withdraw,
            now,
        )
        .await?;
        check::check_cipher(denom, request.coin_ev.cipher())?;
        let amount = denom.value.checked_add(denom.fee_withdraw).map_err(overflow)?;
        requested = requested.checked_add(amount).map_err(overflow)?;
        messages.push(message(amount.of(app.core.config.currency), request, h_coin_envelope));
        serials.push(denom.serial);
    }
    verify_signatures(app, reserve_pub, &messages, &requests).await?;
    // A hint only: it saves the blind signature of a withdrawal that the reserve cannot pay. The rules decide
    // on the row.
    let Some((reserve, origin)) = find(app, reserve_pub).await.map_err(response::store)? else {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_RESERVE_UNKNOWN, ""));
    };
    let mut command = Withdraw {
        reserve_pub,
        planchets: requests
            .iter()
            .zip(&h_coin_evs)
            .zip(&serials)
            .map(|((request, h_coin_ev), denom)| Planchet {
                denom: *denom,
                h_coin_ev: *h_coin_ev,
                reserve_sig: request.reserve_sig,
                ev_sig: None,
                nonce: match &request.coin_ev {
                    BlindedPlanchet::Rsa { .. } => None,
                    BlindedPlanchet::Cs { nonce, .. } => Some(*nonce),
                },
            })
            .collect(),
        batch,
        origin,
    };
    if let Some(origin) = origin
        && reserve.balance >= requested
    {
        require_kyc(app, origin, requested).await?;
    }
    if reserve.balance < requested {
        // Usually this is a refusal, with the reserve's history as proof. If money has arrived since, only
        // the signatures are missing.
        match submit(app, command.clone()).await {
            Ok(Err(Refusal::SignatureMissing)) => {}
            verdict => return signatures_or_response(app, &keys, verdict, batch).await,
        }
    }
    let signatures = blind_sign(app, &keys, &serials, &requests).await?;
    for (planchet, signature) in command.planchets.iter_mut().zip(signatures) {
        planchet.ev_sig = Some(signature);
    }
    signatures_or_response(app, &keys, submit(app, command).await, batch).await
}

/// Submits a withdrawal, and again if the reserve's first bank transfer came after it was read.
async fn submit(app: &Exchange, mut command: Withdraw) -> Result<Result<Withdrawn, Refusal>, SubmitError> {
    let verdict = app.core.submit(command.clone()).await?;
    if !matches!(verdict, Err(Refusal::OriginOther)) {
        return Ok(verdict);
    }
    let reserve_pub = command.reserve_pub;
    let found = find(app, reserve_pub).await.map_err(|error| SubmitError::Store(Arc::new(error)))?;
    command.origin = found.and_then(|(_, origin)| origin);
    app.core.submit(command).await
}

/// A reserve and, if withdrawals are limited, the account that filled it.
async fn find(
    app: &Exchange,
    reserve_pub: ReservePub,
) -> Result<Option<(ReserveRow, Option<LimitedAccount>)>, StoreError> {
    let is_limited = app.core.rules.config.kyc.limits(KycOperation::Withdraw);
    let read = app.core.read(move |store| {
        let Some(reserve) = read::reserve(store, reserve_pub)? else { return Ok(None) };
        let payto_uri = match reserve.origin.filter(|_| is_limited) {
            Some(origin) => read::payto(store, origin)?,
            None => None,
        };
        Ok(Some((reserve, payto_uri.as_deref().map(LimitedAccount::of))))
    });
    read.await
}

/// A hint only, like the balance: it saves the blind signatures of a withdrawal whose owner must be identified first.
async fn require_kyc(app: &Exchange, origin: LimitedAccount, requested: Money) -> Checked<()> {
    let (rules, now) = (Arc::clone(&app.core.rules), app.core.now());
    let missing = app.core.read(move |store| {
        kyc::missing(store, &rules.config.kyc, KycOperation::Withdraw, &origin, requested, now)
    });
    match missing.await.map_err(response::store)? {
        Some(checks) => Err(response::kyc_required(app, origin.h_payto(), checks).await),
        None => Ok(()),
    }
}

/// The signatures to answer with, if the withdrawal took effect.
async fn signatures_or_response(
    app: &Exchange,
    keys: &Arc<KeyState>,
    verdict: Result<Result<Withdrawn, Refusal>, SubmitError>,
    batch: bool,
) -> Checked<Vec<BlindedDenomSignature>> {
    let withdrawn =
        response::outcome_or_response(app, keys, DenomOperation::Withdraw, verdict, batch).await?;
    count(app, batch, withdrawn.repeated, withdrawn.ev_sigs.len());
    Ok(withdrawn.ev_sigs)
}

fn count(app: &Exchange, batch: bool, repeated: bool, coins: usize) {
    let metrics = &app.core.metrics;
    match (batch, repeated) {
        (false, false) => metrics.success.withdraw.inc(),
        (true, false) => {
            metrics.success.batch_withdraw.inc();
            metrics.batch_withdraw_coins.add(coins as u64);
        }
        (false, true) => metrics.idempotent.withdraw.inc(),
        (true, true) => metrics.idempotent.batch_withdraw.inc(),
    }
}

fn message(
    amount_with_fee: Amount,
    request: &WithdrawRequest,
    h_coin_envelope: &HashCode,
) -> WalletReserveWithdraw {
    WalletReserveWithdraw {
        amount_with_fee,
        h_denom_pub: request.denom_pub_hash,
        h_coin_envelope: *h_coin_envelope,
    }
}

/// The stored signatures if all planchets were withdrawn before, even if their denominations have expired or
/// were revoked since.
async fn repetition(
    app: &Exchange,
    keys: &KeyState,
    reserve_pub: EddsaPublicKey,
    requests: &[WithdrawRequest],
    h_coin_evs: &[HashCode],
) -> Checked<Option<Vec<BlindedDenomSignature>>> {
    let wanted = h_coin_evs.to_vec();
    let rows = app.core.read(move |store| read::withdrawals(store, reserve_pub, &wanted));
    let rows = rows.await.map_err(response::store)?;
    let Some(rows) = rows.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
    let mut messages = Vec::with_capacity(rows.len());
    for ((row, request), h_coin_ev) in rows.iter().zip(requests).zip(h_coin_evs) {
        // A denomination of a withdrawal is forgotten only after the withdrawal.
        let Some(denom) = keys.find_denomination_by_serial(row.denom) else { return Ok(None) };
        let amount = denom
            .value
            .checked_add(denom.fee_withdraw)
            .map_err(|_| error(ErrorCode::EXCHANGE_WITHDRAW_AMOUNT_FEE_OVERFLOW, ""))?;
        messages.push(message(amount.of(app.core.config.currency), request, h_coin_ev));
    }
    verify_signatures(app, reserve_pub, &messages, requests).await?;
    Ok(Some(rows.into_iter().map(|row| row.ev_sig).collect()))
}

async fn verify_signatures(
    app: &Exchange,
    reserve_pub: EddsaPublicKey,
    messages: &[WalletReserveWithdraw],
    requests: &[WithdrawRequest],
) -> Checked<()> {
    let checks = messages
        .iter()
        .zip(requests)
        .map(|(message, request)| Check::eddsa(reserve_pub, message, request.reserve_sig))
        .collect();
    if signing::checked(app, checks).await?.contains(&false) {
        return Err(error(ErrorCode::EXCHANGE_WITHDRAW_RESERVE_SIGNATURE_INVALID, ""));
    }
    Ok(())
}

async fn blind_sign(
    app: &Exchange,
    keys: &KeyState,
    serials: &[DenomSerial],
    requests: &[WithdrawRequest],
) -> Checked<Vec<tables::BlindSignature>> {
    let items = serials
        .iter()
        .zip(requests)
        .map(|(serial, request)| (*serial, request.coin_ev.clone(), CsOperation::Withdraw))
        .collect();
    signing::blind_sign(app, keys, items).await
}
