//! `GET /transfers/$WTID` and `GET /deposits/…`: which transfer pays a deposit, and what a transfer pays.

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, Wtid};
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{DepositPending, DepositTransfer, TransferDeposit, TransferResponse};
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::{
    ExchangeConfirmWire, ExchangeConfirmWireDeposit, MerchantTrackTransaction, MerchantTrackTransactionWallet,
};
use batzen_protocol::{AmountError, Currency, ErrorCode, Money, Timestamp};
use batzen_tables::exchange::DepositKey;

use super::check::Checked;
use super::{Table, endpoint, error, histories, response, signing};
use crate::app::Exchange;
use crate::reads::read::{self, Transfer};

pub(super) fn routes(table: Table) -> Table {
    table.get("/transfers/:wtid", "tracking", endpoint!(transfer)).get(
        "/deposits/:h_wire/:merchant_pub/:h_contract_terms/:coin_pub",
        "tracking",
        endpoint!(deposit),
    )
}

async fn transfer(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let wtid: Wtid = request
        .param("wtid")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_TRANSFERS_GET_WTID_MALFORMED, ""))?;
    let (denoms, currency) = (Arc::clone(&app.core.rules.denoms), app.core.config.currency);
    let found = histories::read(app, wtid.as_bytes(), move |store| {
        let found = read::transfer(store, &denoms, wtid)?;
        let events = found.as_ref().map_or(0, |transfer| transfer.deposits.len());
        Ok((found.map(|transfer| confirmation(currency, &transfer)), events))
    });
    let Some(found) = found.await? else {
        return Err(error(ErrorCode::EXCHANGE_TRANSFERS_GET_WTID_NOT_FOUND, ""));
    };
    let (confirmation, execution_time, deposits) =
        found.map_err(|_| error(ErrorCode::EXCHANGE_TRANSFERS_GET_WIRE_FEE_INCONSISTENT, ""))?;
    let ExchangeConfirmWireDeposit { total, wire_fee, merchant_pub, h_payto, .. } = confirmation;
    let (exchange_pub, exchange_sig) = signing::sign_one(app, confirmation).await?;
    histories::run_if_long(app, wtid.as_bytes(), deposits.len(), move || {
        let response = TransferResponse {
            total,
            wire_fee,
            merchant_pub,
            h_payto,
            execution_time,
            deposits,
            exchange_sig,
            exchange_pub,
        };
        Response::json(200, &response)
    })
    .await
}

/// Builds the exchange's confirmation of a transfer, of its time, and of the deposits in it.
///
/// # Errors
/// When the deposits do not pay the fee.
fn confirmation(
    currency: Currency,
    transfer: &Transfer,
) -> Result<(ExchangeConfirmWireDeposit, Timestamp, Vec<TransferDeposit>), AmountError> {
    let row = &transfer.wire_out;
    let mut total = Money::ZERO;
    let mut deposits = Vec::with_capacity(transfer.deposits.len());
    for deposit in &transfer.deposits {
        total = total.checked_add(deposit.amount)?.checked_sub(deposit.deposit_fee)?;
        deposits.push(TransferDeposit {
            h_contract_terms: deposit.key.h_contract_terms,
            coin_pub: deposit.key.coin_pub,
            deposit_value: deposit.amount.of(currency),
            deposit_fee: deposit.deposit_fee.of(currency),
        });
    }
    let execution_time = row.time;
    let confirmation = ExchangeConfirmWireDeposit {
        total: total.checked_sub(row.wire_fee)?.of(currency),
        wire_fee: row.wire_fee.of(currency),
        merchant_pub: row.merchant_pub,
        h_payto: row.h_payto,
        h_details: wire_details_hash(execution_time, &deposits),
    };
    Ok((confirmation, execution_time, deposits))
}

async fn deposit(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let h_wire_asked: HashCode = request
        .param("h_wire")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_DEPOSITS_GET_INVALID_H_WIRE, ""))?;
    let merchant_pub: EddsaPublicKey = request
        .param("merchant_pub")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_DEPOSITS_GET_INVALID_MERCHANT_PUB, ""))?;
    let h_contract_terms: HashCode = request
        .param("h_contract_terms")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_DEPOSITS_GET_INVALID_H_CONTRACT_TERMS, ""))?;
    let coin_pub: EddsaPublicKey = request
        .param("coin_pub")
        .parse()
        .map_err(|_| error(ErrorCode::EXCHANGE_DEPOSITS_GET_INVALID_COIN_PUB, ""))?;
    let merchant_sig: EddsaSignature = request.query_required("merchant_sig")?;
    // Wallets of protocol 12 sign the merchant's key as well; both forms mean the same.
    let plain = MerchantTrackTransaction { h_contract_terms, h_wire: h_wire_asked, coin_pub };
    let wallet =
        MerchantTrackTransactionWallet { h_contract_terms, h_wire: h_wire_asked, merchant_pub, coin_pub };
    if !signing::is_signed(app, merchant_pub, &plain, merchant_sig).await?
        && !signing::is_signed(app, merchant_pub, &wallet, merchant_sig).await?
    {
        return Err(error(ErrorCode::EXCHANGE_DEPOSITS_GET_MERCHANT_SIGNATURE_INVALID, ""));
    }
    let key = DepositKey { coin_pub, merchant_pub, h_contract_terms };
    let denoms = Arc::clone(&app.core.rules.denoms);
    let found = app.core.read(move |store| read::deposit_status(store, &denoms, &key)).await;
    let found = found.map_err(response::store)?;
    let status = found
        .filter(|status| h_wire(&status.payto_uri, &status.deposit.wire_salt) == h_wire_asked)
        .ok_or_else(|| error(ErrorCode::EXCHANGE_DEPOSITS_GET_NOT_FOUND, ""))?;
    let (Some(transfer), Some(wtid)) = (&status.transfer, status.deposit.wtid) else {
        let pending = DepositPending {
            execution_time: status.deposit.wire_deadline,
            kyc_ok: status.kyc_row.is_none(),
            requirement_row: status.kyc_row,
        };
        return Ok(Response::json(202, &pending));
    };
    let execution_time = transfer.time;
    let coin_contribution = status
        .deposit
        .amount
        .checked_sub(status.deposit_fee)
        .expect("a deposit covers its fee")
        .of(app.core.config.currency);
    let confirmation = ExchangeConfirmWire {
        h_wire: h_wire_asked,
        h_contract_terms,
        wtid,
        coin_pub,
        execution_time,
        coin_contribution,
    };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, confirmation).await?;
    let body = DepositTransfer { wtid, execution_time, coin_contribution, exchange_sig, exchange_pub };
    Ok(Response::json(200, &body))
}
