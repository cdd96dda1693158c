//! `POST /refreshes/$RCH/reveal` and `GET /coins/$COIN_PUB/link`: the second half of changing a coin, and its
//! public record.

use std::sync::Arc;

use batzen_crypto::refresh::KAPPA;
use batzen_crypto::{
    AgeCommitment, AgeMask, BlindedDenomSignature, BlindedPlanchet, Cipher, CsNonce, CsOperation,
    EddsaPublicKey, ExchangeWithdrawValues, HashCode, RefreshMasterSecret,
};
use batzen_http::{Request, Response};
use batzen_protocol::api::errors::CommitmentViolation;
use batzen_protocol::api::exchange::{LinkCoin, LinkEntry, RevealRequest};
use batzen_protocol::limits::{BATCH_BODY_BYTES_MAX, FRESH_COINS_MAX};
use batzen_protocol::signatures::{WalletCoinLink, Zeros};
use batzen_protocol::{Amount, ErrorCode};
use batzen_tables::exchange::{CoinRow, FreshCoin, MeltKey, MeltRow, Reveals};

use super::check::{self, Checked, Window};
use super::response::{self, DenomOperation};
use super::{Table, endpoint, error, large_body, path_value};
use super::{signing, text};
use crate::app::Exchange;
use crate::crypto::{Check, Opening};
use crate::keys::{Denom, KeyState};
use crate::reads::read;
use crate::rules::Reveal;

pub(super) fn routes(table: Table) -> Table {
    table.post("/refreshes/:rch/:operation", BATCH_BODY_BYTES_MAX, "reveal", endpoint!(reveal)).get(
        "/coins/:coin_pub/link",
        "link",
        endpoint!(link),
    )
}

async fn reveal(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let rc: HashCode = request
        .param("rch")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_INVALID_RCH, ""))?;
    if request.param("operation") != "reveal" {
        return Err(error(
            ErrorCode::EXCHANGE_REFRESHES_REVEAL_OPERATION_INVALID,
            request.param("operation"),
        ));
    }
    let body: RevealRequest = large_body(request).await?;
    let ev_sigs = reveal_coins(app, rc, body).await?;
    Ok(text::blind_signatures(&ev_sigs))
}

/// Checks the sizes of the request's arrays, before any look-up.
fn check_sizes(body: &RevealRequest) -> Checked<()> {
    if body.transfer_privs.len() != KAPPA - 1 {
        return Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_CNC_TRANSFER_ARRAY_SIZE_INVALID, ""));
    }
    if body.new_denoms_h.is_empty() || body.new_denoms_h.len() > FRESH_COINS_MAX {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_NEW_DENOMS_ARRAY_SIZE_EXCESSIVE, ""));
    }
    let mismatch =
        |detail| Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_NEW_DENOMS_ARRAY_SIZE_MISMATCH, detail));
    if body.coin_evs.len() != body.new_denoms_h.len() {
        return mismatch("new_denoms/coin_evs");
    }
    if body.link_sigs.len() != body.new_denoms_h.len() {
        return mismatch("new_denoms/link_sigs");
    }
    Ok(())
}

async fn reveal_coins(
    app: &Exchange,
    rc: HashCode,
    body: RevealRequest,
) -> Checked<Vec<BlindedDenomSignature>> {
    check_sizes(&body)?;
    let (old_coin_pub, coin, melt) = melted(app, rc).await?;
    let h_coin_evs: Vec<HashCode> = body
        .coin_evs
        .iter()
        .zip(&body.new_denoms_h)
        .map(|(planchet, h_denom)| planchet.hash(h_denom))
        .collect();
    // Answer a repetition from what is stored, before the checks: fresh denominations may have expired since.
    let key = MeltKey { coin_pub: old_coin_pub, rc };
    let stored = app.core.read(move |store| store.get::<Reveals>(&key)).await.map_err(response::store)?;
    if let Some(stored) = stored
        && stored.row.fresh.0.iter().map(|fresh| fresh.h_coin_ev).eq(h_coin_evs.iter().copied())
    {
        return Ok(stored.row.fresh.0.into_iter().map(|fresh| fresh.ev_sig).collect());
    }
    let keys = app.keys();
    let now = app.core.now();
    let Some(old_denom) = keys.find_denomination_by_serial(coin.denom) else {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN, "of the melted coin"));
    };
    let mut denoms: Vec<&Denom> = Vec::with_capacity(body.new_denoms_h.len());
    for h_denom_pub in &body.new_denoms_h {
        denoms.push(check::find_denomination(app, &keys, h_denom_pub).await?);
    }
    let needs_rms = denoms.iter().any(|denom| denom.public.cipher() == Cipher::Cs);
    if needs_rms && body.rms.is_none() {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MISSING, "rms"));
    }
    for denom in &denoms {
        check::check_window(app, &keys, denom, Window::Withdraw, DenomOperation::Reveal, now).await?;
        if denom.revoked {
            return Err(error(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_REVOKED, ""));
        }
    }
    check_nonces(&denoms, &body)?;
    let old_age = old_age_commitment(&coin, old_denom, body.old_age_commitment.as_deref())?;
    let opening = Arc::new(Opening {
        old_coin_pub,
        amount_with_fee: Amount::new(app.core.config.currency, melt.amount),
        noreveal_index: usize::from(melt.noreveal_index),
        denoms: denoms.iter().map(|denom| denom.public.clone()).collect(),
        values: withdraw_values(app, &keys, &denoms, body.rms.as_ref()).await?,
        old_age,
        body,
    });
    if signing::checked(app, link_checks(&opening, &h_coin_evs)).await?.contains(&false) {
        return Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_LINK_SIGNATURE_INVALID, ""));
    }
    app.core.metrics.keyexchanges_ecdh.add(KAPPA as u64 - 1);
    check_commitment(app, rc, &opening).await?;
    let Opening { values, body, .. } = &*opening;
    let Some(cost) = cost(old_denom, &denoms) else {
        return Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_COST_CALCULATION_OVERFLOW, ""));
    };
    if cost > melt.amount {
        return Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_AMOUNT_INSUFFICIENT, ""));
    }
    let items = denoms
        .iter()
        .zip(&body.coin_evs)
        .map(|(denom, planchet)| (denom.serial, planchet.clone(), CsOperation::Melt))
        .collect();
    let signatures = signing::blind_sign(app, &keys, items).await?;
    let fresh = denoms
        .iter()
        .zip(&h_coin_evs)
        .zip(&body.link_sigs)
        .zip(signatures)
        .zip(values)
        .map(|((((denom, h_coin_ev), link_sig), ev_sig), values)| FreshCoin {
            denom: denom.serial,
            h_coin_ev: *h_coin_ev,
            link_sig: *link_sig,
            ev_sig,
            r_pubs: match values {
                ExchangeWithdrawValues::Rsa => None,
                ExchangeWithdrawValues::Cs { r0, r1 } => Some((*r0, *r1)),
            },
        })
        .collect();
    let mut transfer_privs = [0; 64];
    for (out, key) in transfer_privs.chunks_exact_mut(32).zip(&body.transfer_privs) {
        out.copy_from_slice(key.as_bytes());
    }
    let command = Reveal {
        coin_pub: old_coin_pub,
        rc,
        transfer_pub: body.transfer_pub,
        transfer_privs,
        rms: body.rms.as_ref().filter(|_| needs_rms).map(|rms| CsNonce::from_bytes(*rms.as_bytes())),
        fresh,
    };
    let revealed = app.decide(&keys, DenomOperation::Reveal, command, false).await?;
    if !revealed.repeated {
        app.core.metrics.success.refresh_reveal.inc();
    }
    Ok(revealed.ev_sigs.into_iter().collect())
}

/// Checks that the planchets to be signed use the nonces derived from the refresh master secret.
///
/// The commitment binds the planchets of the candidate that stays secret only to what the client made up.
/// With a nonce of its own choice, a client could get two signatures under one nonce by two melts, and from
/// them the private key. Nonces that follow from the refresh master secret are used for one commitment only,
/// because the rules lock that secret.
fn check_nonces(denoms: &[&Denom], body: &RevealRequest) -> Checked<()> {
    let items = denoms.iter().zip(&body.coin_evs).zip(0..);
    for ((denom, planchet), index) in items {
        if let (Cipher::Cs, BlindedPlanchet::Cs { nonce, .. }, Some(rms)) =
            (denom.public.cipher(), planchet, &body.rms)
            && *nonce != rms.cs_nonce(index)
        {
            let detail = "coin_evs: a nonce does not follow from rms";
            return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, detail));
        }
    }
    Ok(())
}

/// The melt under a commitment. Its rows never change once written, so they can be read outside a batch.
async fn melted(app: &Exchange, rc: HashCode) -> Checked<(EddsaPublicKey, CoinRow, MeltRow)> {
    let found = app.core.read(move |store| read::melt_by_rc(store, rc)).await.map_err(response::store)?;
    let unknown = || error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_SESSION_UNKNOWN, "");
    let read::FoundMelt { coin_pub, coin, melt } = found.ok_or_else(unknown)?;
    Ok((coin_pub, coin, melt))
}

/// The old coin's age commitment. The request must contain it exactly if the coin has one, and its hash must
/// equal the one that was melted.
fn old_age_commitment(
    coin: &CoinRow,
    old_denom: &Denom,
    keys: Option<&[batzen_crypto::AgePublicKey]>,
) -> Checked<Option<AgeCommitment>> {
    let invalid =
        |detail| Err(error(ErrorCode::EXCHANGE_REFRESHES_REVEAL_AGE_RESTRICTION_COMMITMENT_INVALID, detail));
    match (coin.h_age, keys) {
        (None, None) => Ok(None),
        (None, Some(_)) => invalid("the melted coin has no age commitment"),
        (Some(_), None) => invalid("the melted coin has an age commitment"),
        (Some(h_age), Some(keys)) => {
            let Ok(mask) = AgeMask::new(old_denom.public.age_mask) else {
                return invalid("the denomination has no age groups");
            };
            match AgeCommitment::new(mask, keys.to_vec()) {
                Ok(commitment) if commitment.hash() == h_age => Ok(Some(commitment)),
                Ok(_) => invalid("not the commitment of the melted coin"),
                Err(_) => invalid("wrong number of keys"),
            }
        }
    }
}

/// R values of the fresh coins, as `/csr-melt` gave them.
async fn withdraw_values(
    app: &Exchange,
    keys: &KeyState,
    denoms: &[&Denom],
    rms: Option<&RefreshMasterSecret>,
) -> Checked<Vec<ExchangeWithdrawValues>> {
    let Some(rms) = rms else { return Ok(vec![ExchangeWithdrawValues::Rsa; denoms.len()]) };
    let items = denoms.iter().zip(0..).map(|(denom, index)| (denom.serial, rms.cs_nonce(index))).collect();
    signing::withdraw_values(app, keys, items, CsOperation::Melt).await
}

/// The sum of the melt fee, the values and the withdraw fees; `None` above the largest amount.
fn cost(old_denom: &Denom, denoms: &[&Denom]) -> Option<batzen_protocol::Money> {
    denoms.iter().try_fold(old_denom.fee_refresh, |sum, denom| {
        sum.checked_add(denom.value).and_then(|sum| sum.checked_add(denom.fee_withdraw)).ok()
    })
}

/// Checks of whether the old coin signed each fresh one.
fn link_checks(opening: &Opening, h_coin_evs: &[HashCode]) -> Vec<Check> {
    let body = &opening.body;
    let planchets = h_coin_evs.iter().zip(&body.new_denoms_h).zip(&body.link_sigs);
    let checks = planchets.map(|((h_coin_ev, h_denom_pub), link_sig)| {
        let message = WalletCoinLink {
            h_denom_pub: *h_denom_pub,
            transfer_pub: body.transfer_pub,
            h_age_commitment: Zeros,
            h_coin_envelope: *h_coin_ev,
        };
        Check::eddsa(opening.old_coin_pub, &message, *link_sig)
    });
    checks.collect()
}

/// Cut and choose: recomputes the commitment from what was revealed, and compares it.
async fn check_commitment(app: &Exchange, rc: HashCode, opening: &Arc<Opening>) -> Checked<()> {
    let mut pairs = opening.denoms.iter().zip(&opening.body.coin_evs);
    if pairs.any(|(denom, planchet)| denom.cipher() != planchet.cipher()) {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_CIPHER_MISMATCH, ""));
    }
    let expected = signing::commitment(app, Arc::clone(opening)).await?;
    if expected == Some(rc) {
        return Ok(());
    }
    // Derivations fail only for values that no honest wallet sends; such a request cannot have made this
    // commitment.
    let rc_expected = expected.unwrap_or(HashCode::from_bytes([0; 64]));
    let code = ErrorCode::EXCHANGE_REFRESHES_REVEAL_COMMITMENT_VIOLATION;
    Err(response::error_extra(code, &CommitmentViolation { rc_expected }))
}

async fn link(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let coin_pub: EddsaPublicKey =
        path_value(request, "coin_pub", ErrorCode::EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB)?;
    let reveals = app.core.read(move |store| store.lookup::<Reveals>(Reveals::BY_COIN, &coin_pub));
    let reveals = reveals.await.map_err(response::store)?;
    if reveals.is_empty() {
        return Err(error(ErrorCode::EXCHANGE_LINK_COIN_UNKNOWN, ""));
    }
    let keys = app.keys();
    let mut entries = Vec::with_capacity(reveals.len());
    for reveal in reveals {
        let rms = reveal.row.rms.map(RefreshMasterSecret::from_bytes);
        let mut new_coins = Vec::with_capacity(reveal.row.fresh.0.len());
        for (fresh, coin_idx) in reveal.row.fresh.0.into_iter().zip(0_u32..) {
            let Some(denom) = keys.find_denomination_by_serial(fresh.denom) else {
                return Err(error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, "denomination of a fresh coin"));
            };
            let (ewv, cs_nonce) = match fresh.r_pubs {
                None => (ExchangeWithdrawValues::Rsa, None),
                Some((r0, r1)) => {
                    (ExchangeWithdrawValues::Cs { r0, r1 }, rms.as_ref().map(|rms| rms.cs_nonce(coin_idx)))
                }
            };
            new_coins.push(LinkCoin {
                denom_pub: denom.public.clone(),
                ev_sig: fresh.ev_sig,
                coin_idx,
                ewv,
                link_sig: fresh.link_sig,
                cs_nonce,
            });
        }
        entries.push(LinkEntry { transfer_pub: reveal.row.transfer_pub, new_coins });
    }
    Ok(Response::json(200, &entries))
}
