//! `POST /coins/$COIN_PUB/refund`: a merchant returns money of a deposit to the coin.

use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{RefundConfirmation, RefundRequest};
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantRefund};
use batzen_tables::exchange::RefundKey;

use super::check::Checked;
use super::response::DenomOperation;
use super::signing;
use super::{Table, body, endpoint, error, money, path_value};
use crate::app::Exchange;
use crate::rules::Refund;

pub(super) fn routes(table: Table) -> Table {
    table.post("/coins/:coin_pub/refund", SMALL_BODY_BYTES_MAX, "refund", endpoint!(refund))
}

async fn refund(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let coin_pub = path_value(request, "coin_pub", ErrorCode::EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB)?;
    let body: RefundRequest = body(request)?;
    let amount = money::<RefundRequest>(app, &body.refund_amount, "refund_amount")?;
    let message = MerchantRefund {
        h_contract_terms: body.h_contract_terms,
        coin_pub,
        rtransaction_id: body.rtransaction_id,
        refund_amount: body.refund_amount,
    };
    let (merchant_pub, merchant_sig) = (body.merchant_pub, body.merchant_sig);
    if !signing::is_signed(app, merchant_pub, &message, merchant_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_REFUND_MERCHANT_SIGNATURE_INVALID, ""));
    }
    let key = RefundKey {
        coin_pub,
        merchant_pub,
        h_contract_terms: body.h_contract_terms,
        rtransaction_id: body.rtransaction_id,
    };
    let command = Refund { key, amount, merchant_sig };
    app.decide(&app.keys(), DenomOperation::Refund, command, false).await?;
    let confirmation = ExchangeConfirmRefund {
        h_contract_terms: body.h_contract_terms,
        coin_pub,
        merchant_pub,
        rtransaction_id: body.rtransaction_id,
        refund_amount: body.refund_amount,
    };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, confirmation).await?;
    Ok(Response::json(200, &RefundConfirmation { exchange_sig, exchange_pub }))
}
