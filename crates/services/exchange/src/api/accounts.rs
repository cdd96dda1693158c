//! `POST /reserves/$RESERVE_PUB/purse`, `…/open` and `…/close`: reserves as accounts.

use batzen_crypto::ShortHash;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{
    ReserveCloseRequest, ReserveCloseResponse, ReserveOpenRequest, ReserveOpenResponse, ReservePurseRequest,
};
use batzen_protocol::limits::{PURSE_BODY_BYTES_MAX, PURSE_COINS_MAX, SMALL_BODY_BYTES_MAX};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{
    WalletAccountMerge, WalletPurseMerge, WalletReserveClose, WalletReserveOpen, WalletReserveOpenDeposit,
};
use batzen_protocol::{Duration, ErrorCode, Money};
use batzen_tables::exchange::{PurseMergeRow, PurseMode, ReservePub};

use super::check::Checked;
use super::purses::{
    check_coins, check_contract, check_expiration, check_merge_time, check_terms, confirm, current_purse_fee,
};
use super::reserves::check_clock;
use super::response::{self, DenomOperation};
use super::signing;
use super::{Table, body, endpoint, error, large_body, money, path_value};
use crate::app::Exchange;
use crate::reads::read;
use crate::rules::transfers::payto_method;
use crate::rules::{PurseTerms, Refusal, RequestClose, ReserveOpen, ReserveOpened, ReservePurse};

/// The signed hash of "the account of origin".
const ORIGIN: ShortHash = ShortHash::from_bytes([0; 32]);
/// Maximum time ahead for which a reserve may be prolonged.
const PROLONGATION_MAX: Duration = Duration::from_days(100 * 365);

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/reserves/:reserve_pub/purse", SMALL_BODY_BYTES_MAX, "purse", endpoint!(purse))
        .post("/reserves/:reserve_pub/open", PURSE_BODY_BYTES_MAX, "reserve", endpoint!(open))
        .post("/reserves/:reserve_pub/close", SMALL_BODY_BYTES_MAX, "reserve", endpoint!(close))
}

fn reserve_pub(request: &Request) -> Checked<ReservePub> {
    path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)
}

async fn purse(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = reserve_pub(request)?;
    let body: ReservePurseRequest = body(request)?;
    check_merge_time(body.merge_timestamp)?;
    let currency = app.core.config.currency;
    let target = money::<ReservePurseRequest>(app, &body.purse_value, "purse_value")?;
    let offered = body.purse_fee.as_ref();
    let offered = offered.map(|fee| money::<ReservePurseRequest>(app, fee, "purse_fee")).transpose()?;
    let purse_pub = body.purse_pub;
    let payto = PaytoUri::reserve(&app.core.config.base_url, &reserve_pub)
        .map_err(|_| error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "BASE_URL"))?;
    let message =
        WalletPurseMerge { merge_timestamp: body.merge_timestamp, purse_pub, h_payto: payto.hash() };
    if !signing::is_signed(app, body.merge_pub, &message, body.merge_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_PURSE_MERGE_SIGNATURE_INVALID, payto.as_str()));
    }
    let too_late = ErrorCode::EXCHANGE_RESERVES_PURSE_EXPIRATION_BEFORE_NOW;
    check_expiration(app, purse_pub, body.purse_expiration, too_late).await?;
    if body.purse_expiration.is_never() {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_PURSE_EXPIRATION_IS_NEVER, ""));
    }
    let keys = app.keys();
    let purse_fee = current_purse_fee(app, &keys)?;
    let terms = PurseTerms {
        merge_pub: body.merge_pub,
        h_contract_terms: body.h_contract_terms,
        min_age: body.min_age,
        target,
        expiration: body.purse_expiration,
        purse_sig: body.purse_sig,
    };
    check_terms(app, purse_pub, body.purse_value, &terms).await?;
    let mode = if offered.is_some() { PurseMode::Fee } else { PurseMode::Quota };
    let message = WalletAccountMerge {
        purse_expiration: terms.expiration,
        purse_amount: body.purse_value,
        purse_fee: offered.unwrap_or(Money::ZERO).of(currency),
        h_contract_terms: terms.h_contract_terms,
        purse_pub,
        merge_timestamp: body.merge_timestamp,
        min_age: terms.min_age,
        flags: u32::from(mode as u8),
    };
    if !signing::is_signed(app, reserve_pub, &message, body.reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_RESERVE_MERGE_SIGNATURE_INVALID, ""));
    }
    let contract = check_contract(app, purse_pub, body.econtract).await?;
    let h_contract_terms = terms.h_contract_terms;
    let command = ReservePurse {
        purse_pub,
        reserve_pub,
        terms,
        offered,
        fee: purse_fee,
        merge: PurseMergeRow {
            reserve_pub,
            h_payto: payto.hash(),
            merge_sig: body.merge_sig,
            reserve_sig: body.reserve_sig,
            merge_time: body.merge_timestamp,
        },
        contract,
    };
    let created = app.decide(&keys, DenomOperation::ReservePurse, command, false).await?;
    if created.is_new {
        app.core.notices.reserves_credited(&[reserve_pub]);
    }
    let terms = (target, created.expiration, h_contract_terms);
    Ok(Response::json(200, &confirm(app, purse_pub, terms, created.deposited).await?))
}

async fn open(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = reserve_pub(request)?;
    let body: ReserveOpenRequest = large_body(request).await?;
    let payment = money::<ReserveOpenRequest>(app, &body.reserve_payment, "reserve_payment")?;
    check_clock(app, body.request_timestamp)?;
    if body.payments.len() > PURSE_COINS_MAX {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "payments"));
    }
    if body.reserve_expiration > app.core.now().saturating_add(PROLONGATION_MAX) {
        let detail = "reserve_expiration: more than 100 years ahead";
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, detail));
    }
    let keys = app.keys();
    let reserve_sig = body.reserve_sig;
    let coins = if body.payments.is_empty() {
        Vec::new()
    } else {
        let sign = |coin_contribution, _, _| WalletReserveOpenDeposit { reserve_sig, coin_contribution };
        let payments = ("payments", body.payments);
        check_coins::<ReserveOpenRequest, _>(app, &keys, payments, 0, sign).await?
    };
    let Some((_, fees)) = keys.global_fee(body.request_timestamp) else {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "no global fees for that time"));
    };
    let message = WalletReserveOpen {
        reserve_payment: body.reserve_payment,
        request_timestamp: body.request_timestamp,
        reserve_expiration: body.reserve_expiration,
        purse_limit: body.purse_limit,
    };
    if !signing::is_signed(app, reserve_pub, &message, reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_OPEN_BAD_SIGNATURE, ""));
    }
    let command = ReserveOpen {
        reserve_pub,
        request_time: body.request_timestamp,
        reserve_expiration: body.reserve_expiration,
        purse_limit: body.purse_limit,
        payment,
        account_fee: fees.account_fee,
        coins,
        reserve_sig,
    };
    let answer = |status, opened: ReserveOpened| {
        // The protocol reports an expiration in the past as the present.
        let reserve_expiration = opened.expiration.max(app.core.now());
        let open_cost = opened.cost.of(app.core.config.currency);
        Response::json(status, &ReserveOpenResponse { reserve_expiration, open_cost })
    };
    match app.core.submit(command).await {
        Ok(Err(Refusal::OpenTooLittle { cost, expiration })) => {
            Ok(answer(402, ReserveOpened { expiration, cost }))
        }
        verdict => {
            let operation = DenomOperation::ReserveOpen;
            let opened = response::outcome_or_response(app, &keys, operation, verdict, false).await?;
            let status = if opened.expiration >= body.reserve_expiration { 200 } else { 402 };
            Ok(answer(status, opened))
        }
    }
}

async fn close(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = reserve_pub(request)?;
    let body: ReserveCloseRequest = body(request)?;
    check_clock(app, body.request_timestamp)?;
    let requested =
        body.payto_uri.map(PaytoUri::parse).transpose().map_err(|problem| {
            error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &format!("payto_uri: {problem}"))
        })?;
    let target_h_payto = requested.as_ref().map_or(ORIGIN, PaytoUri::hash);
    let message = WalletReserveClose { request_timestamp: body.request_timestamp, target_h_payto };
    if !signing::is_signed(app, reserve_pub, &message, body.reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_CLOSE_BAD_SIGNATURE, ""));
    }
    let origin = app.core.read(move |store| {
        let Some(reserve) = read::reserve(store, reserve_pub)? else { return Ok(None) };
        let origin = match reserve.origin {
            Some(origin) => read::payto(store, origin)?,
            None => None,
        };
        Ok(Some(origin))
    });
    let Some(origin) = origin.await.map_err(response::store)? else {
        return Err(error(ErrorCode::EXCHANGE_GENERIC_RESERVE_UNKNOWN, ""));
    };
    let Some(payto_uri) = requested.as_ref().map(|uri| uri.as_str().to_owned()).or(origin) else {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_CLOSE_NO_TARGET_ACCOUNT, ""));
    };
    let Some(method) = payto_method(&payto_uri).map(str::to_owned) else {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "payto_uri"));
    };
    let keys = app.keys();
    let command = RequestClose {
        reserve_pub,
        request_time: body.request_timestamp,
        requested: requested.as_ref().map(PaytoUri::hash),
        h_payto: batzen_protocol::payto::h_payto(&payto_uri),
        payto_uri,
        method: method.clone(),
        reserve_sig: body.reserve_sig,
    };
    match app.core.submit(command).await {
        Ok(Err(Refusal::WireFeeMissing)) => Err(error(ErrorCode::EXCHANGE_WIRE_FEES_NOT_CONFIGURED, &method)),
        verdict => {
            let operation = DenomOperation::ReserveClose;
            let requested = response::outcome_or_response(app, &keys, operation, verdict, false).await?;
            let wire_amount = requested.wired.of(app.core.config.currency);
            Ok(Response::json(200, &ReserveCloseResponse { wire_amount }))
        }
    }
}
