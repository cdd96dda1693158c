//! `POST /coins/$COIN_PUB/recoup` and `…/recoup-refresh`: coins of revoked denominations go back to where
//! they came from.

use batzen_crypto::denom::recoup_h_coin_ev;
use batzen_crypto::{Cipher, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, HashCode};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{RecoupRefreshResponse, RecoupRequest, RecoupResponse};
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::{WalletCoinRecoup, WalletCoinRecoupRefresh};
use batzen_tables::exchange::{Reveals, Withdrawals};

use super::check::{self, Checked, Presented, Window};
use super::response::{self, DenomOperation};
use super::signing;
use super::{Table, body, endpoint, error, path_value};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::keys::KeyState;
use crate::rules::{Recoup, RecoupRefresh};

pub(super) fn routes(table: Table) -> Table {
    table.post("/coins/:coin_pub/recoup", SMALL_BODY_BYTES_MAX, "recoup", endpoint!(recoup)).post(
        "/coins/:coin_pub/recoup-refresh",
        SMALL_BODY_BYTES_MAX,
        "recoup-refresh",
        endpoint!(recoup_refresh),
    )
}

/// The differences between recoup and recoup-refresh.
struct Kind {
    operation: DenomOperation,
    not_eligible: ErrorCode,
    signature_invalid: ErrorCode,
}

const RECOUP: Kind = Kind {
    operation: DenomOperation::Recoup,
    not_eligible: ErrorCode::EXCHANGE_RECOUP_NOT_ELIGIBLE,
    signature_invalid: ErrorCode::EXCHANGE_RECOUP_SIGNATURE_INVALID,
};

const RECOUP_REFRESH: Kind = Kind {
    operation: DenomOperation::RecoupRefresh,
    not_eligible: ErrorCode::EXCHANGE_RECOUP_REFRESH_NOT_ELIGIBLE,
    signature_invalid: ErrorCode::EXCHANGE_RECOUP_REFRESH_SIGNATURE_INVALID,
};

async fn recoup(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let keys = app.keys();
    let claim = claim(app, &keys, request, &RECOUP).await?;
    let h_coin_ev = claim.h_coin_ev;
    let found = app.core.read(move |store| store.lookup::<Withdrawals>(Withdrawals::BY_COIN_EV, &h_coin_ev));
    let found = found.await.map_err(response::store)?;
    // Several reserves may have withdrawn an equal planchet. The earliest withdrawal gets the money.
    let Some(withdrawal) = found.into_iter().next() else {
        return Err(error(ErrorCode::EXCHANGE_RECOUP_WITHDRAW_NOT_FOUND, ""));
    };
    let command = Recoup {
        coin: claim.coin.into_rule(),
        coin_blind: claim.coin_blind,
        coin_sig: claim.coin_sig,
        h_coin_ev: claim.h_coin_ev,
        reserve_pub: withdrawal.key.reserve_pub,
    };
    let done = app.decide(&keys, DenomOperation::Recoup, command, false).await?;
    app.core.notices.reserves_credited(&[done.reserve_pub]);
    Ok(Response::json(200, &RecoupResponse { reserve_pub: done.reserve_pub }))
}

async fn recoup_refresh(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let keys = app.keys();
    let claim = claim(app, &keys, request, &RECOUP_REFRESH).await?;
    let h_coin_ev = claim.h_coin_ev;
    let found = app.core.read(move |store| store.lookup::<Reveals>(Reveals::BY_COIN_EV, &h_coin_ev));
    let found = found.await.map_err(response::store)?;
    let Some(reveal) = found.into_iter().next() else {
        return Err(error(ErrorCode::EXCHANGE_RECOUP_REFRESH_MELT_NOT_FOUND, ""));
    };
    let command = RecoupRefresh {
        coin: claim.coin.into_rule(),
        coin_blind: claim.coin_blind,
        coin_sig: claim.coin_sig,
        h_coin_ev: claim.h_coin_ev,
        old_coin_pub: reveal.key.coin_pub,
        rc: reveal.key.rc,
    };
    let done = app.decide(&keys, DenomOperation::RecoupRefresh, command, false).await?;
    Ok(Response::json(200, &RecoupRefreshResponse { old_coin_pub: done.old_coin_pub }))
}

/// A request with valid signatures, and the planchet that the coin came from.
struct Claim {
    coin: Presented,
    coin_blind: [u8; 32],
    coin_sig: EddsaSignature,
    h_coin_ev: HashCode,
}

async fn claim(app: &Exchange, keys: &KeyState, request: &Request, kind: &Kind) -> Checked<Claim> {
    let coin_pub = path_value(request, "coin_pub", ErrorCode::EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB)?;
    let body: RecoupRequest = body(request)?;
    let denom = check::find_denomination(app, keys, &body.denom_pub_hash).await?;
    check::check_window(app, keys, denom, Window::Deposit, kind.operation, app.core.now()).await?;
    if !denom.revoked {
        return Err(response::denomination_unusable(
            app,
            keys,
            &body.denom_pub_hash,
            kind.operation,
            kind.not_eligible,
        )
        .await);
    }
    check::check_cipher(denom, check::signature_cipher(&body.denom_sig))?;
    check::check_cipher(denom, values_cipher(&body.ewv))?;
    if denom.public.cipher() == Cipher::Cs && body.cs_nonce.is_none() {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MISSING, "cs_nonce"));
    }
    let coin = Presented {
        coin_pub,
        denom: denom.serial,
        denom_pub: denom.public.clone(),
        h_age: check::age_hash(body.h_age_commitment),
        denom_sig: body.denom_sig.clone(),
    };
    let is_recoup = kind.operation == DenomOperation::Recoup;
    let verdicts =
        signing::checked(app, vec![coin.check(), signature_check(is_recoup, coin.coin_pub, &body)]).await?;
    if !verdicts[0] {
        return Err(error(ErrorCode::EXCHANGE_DENOMINATION_SIGNATURE_INVALID, ""));
    }
    if !verdicts[1] {
        return Err(error(kind.signature_invalid, ""));
    }
    signing::on_pool(app, move || {
        let h_coin_ev = recoup_h_coin_ev(
            &coin.denom_pub,
            &body.ewv,
            body.cs_nonce.as_ref(),
            &coin.coin_pub,
            &body.coin_blind_key_secret,
            coin.h_age.as_ref(),
        )
        // The client made all of these values up, so the failure is not the exchange's.
        .map_err(|problem| {
            let detail = format!("ewv, cs_nonce or coin_blind_key_secret: {problem}");
            error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &detail)
        })?;
        let coin_blind = *body.coin_blind_key_secret.as_bytes();
        Ok(Claim { coin, coin_blind, coin_sig: body.coin_sig, h_coin_ev })
    })
    .await?
}

fn values_cipher(values: &ExchangeWithdrawValues) -> Cipher {
    match values {
        ExchangeWithdrawValues::Rsa => Cipher::Rsa,
        ExchangeWithdrawValues::Cs { .. } => Cipher::Cs,
    }
}

fn signature_check(is_recoup: bool, coin_pub: EddsaPublicKey, body: &RecoupRequest) -> Check {
    let (h_denom_pub, coin_blind) = (body.denom_pub_hash, body.coin_blind_key_secret.clone());
    if is_recoup {
        Check::eddsa(coin_pub, &WalletCoinRecoup { h_denom_pub, coin_blind }, body.coin_sig)
    } else {
        Check::eddsa(coin_pub, &WalletCoinRecoupRefresh { h_denom_pub, coin_blind }, body.coin_sig)
    }
}
