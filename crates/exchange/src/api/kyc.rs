//! `POST /kyc-wallet` and `GET /kyc-check/…`: no identification is required without rules.

use batzen_crypto::ShortHash;
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::KycWalletRequest;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::{SignedMessage, WalletAccountSetup};

use super::check::Checked;
use super::signing;
use super::{Table, body, endpoint, error, money};
use crate::app::Exchange;

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/kyc-wallet", SMALL_BODY_BYTES_MAX, endpoint!(wallet))
        .get("/kyc-check/:requirement_row/:h_payto/:usertype", endpoint!(requirement))
}

async fn wallet(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let body: KycWalletRequest = body(request)?;
    money::<KycWalletRequest>(app, &body.balance, "balance")?;
    app.core.metrics.verifications.eddsa.inc();
    let message = WalletAccountSetup { threshold: body.balance };
    if !signing::on_pool(app, move || message.verify(&body.reserve_pub, &body.reserve_sig)).await? {
        return Err(error(ErrorCode::EXCHANGE_KYC_WALLET_SIGNATURE_INVALID, ""));
    }
    Ok(Response::empty(204))
}

async fn requirement(_app: &Exchange, request: &mut Request) -> Checked<Response> {
    let malformed = |name| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, name);
    request.segment(1).parse::<u64>().map_err(|_| malformed("requirement_row"))?;
    request.segment(2).parse::<ShortHash>().map_err(|_| malformed("h_payto"))?;
    let usertype = request.segment(3);
    if !["individual", "business"].iter().any(|known| usertype.eq_ignore_ascii_case(known)) {
        return Err(malformed("usertype"));
    }
    request.query_opt::<u64>("timeout_ms")?;
    Ok(Response::empty(204))
}
