//! `POST /csr-withdraw` and `/csr-melt`: the exchange's first message for Clause Blind Schnorr coins.
//!
//! The values follow from private key, nonce and context; nothing is written.

use batzen_crypto::{Cipher, CsNonce, CsOperation, ExchangeWithdrawValues, HashCode};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{CsrMeltRequest, CsrMeltResponse, CsrWithdrawRequest, WithdrawValues};
use batzen_protocol::limits::{FRESH_COINS_MAX, LIST_BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX};

use super::check::{self, Checked, Window};
use super::response::{self, DenomOperation};
use super::signing;
use super::{Table, body, endpoint, error, large_body};
use crate::app::Exchange;

pub(super) fn routes(table: Table) -> Table {
    table.post("/csr-withdraw", SMALL_BODY_BYTES_MAX, "csr", endpoint!(withdraw)).post(
        "/csr-melt",
        LIST_BODY_BYTES_MAX,
        "csr",
        endpoint!(melt),
    )
}

async fn withdraw(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let body: CsrWithdrawRequest = body(request)?;
    let nonces = vec![(body.denom_pub_hash, body.nonce)];
    let mut values = values(app, nonces, DenomOperation::CsrWithdraw, CsOperation::Withdraw).await?;
    let ewv = values.pop().expect("one answer a nonce");
    Ok(Response::json(200, &WithdrawValues { ewv }))
}

async fn melt(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let body: CsrMeltRequest = large_body(request).await?;
    if body.nks.is_empty() || body.nks.len() > FRESH_COINS_MAX {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_NEW_DENOMS_ARRAY_SIZE_EXCESSIVE, ""));
    }
    let nonces =
        body.nks.iter().map(|coin| (coin.denom_pub_hash, body.rms.cs_nonce(coin.coin_offset))).collect();
    let values = values(app, nonces, DenomOperation::CsrMelt, CsOperation::Melt).await?;
    let ewvs = values.into_iter().map(|ewv| WithdrawValues { ewv }).collect();
    Ok(Response::json(200, &CsrMeltResponse { ewvs }))
}

async fn values(
    app: &Exchange,
    nonces: Vec<(HashCode, CsNonce)>,
    operation: DenomOperation,
    context: CsOperation,
) -> Checked<Vec<ExchangeWithdrawValues>> {
    let keys = app.keys();
    let now = app.core.now();
    let mut items = Vec::with_capacity(nonces.len());
    for (h_denom_pub, nonce) in nonces {
        let denom =
            check::find_usable_denomination(app, &keys, &h_denom_pub, Window::Withdraw, operation, now)
                .await?;
        if denom.public.cipher() != Cipher::Cs {
            return Err(response::wrong_cipher(app, &keys, &h_denom_pub).await);
        }
        items.push((denom.serial, nonce));
    }
    signing::withdraw_values(app, &keys, items, context).await
}
