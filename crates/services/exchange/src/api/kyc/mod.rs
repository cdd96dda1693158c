//! Identification of customers: `/kyc-wallet`, `/kyc-check`, `/kyc-webhook`; the way to a provider and back ([`login`]),
//! the form that users fill in ([`form`]), the officers' page ([`officer`]), and `/reserves-attest` ([`attest`]).

mod attest;
mod form;
mod login;
mod officer;

use std::sync::Arc;

use batzen_crypto::{ShortHash, base32};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{KycDone, KycRedirect, KycWalletRequest};
use batzen_protocol::canonical::plain_hash;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{ExchangeAccountSetupSuccess, SignedMessage, WalletAccountSetup};
use batzen_service::{Reach, poll_deadline};
use batzen_tables::exchange::{KycOperation, PaytoHash};
use serde_json::{Map, Value};

use super::check::Checked;
use super::response;
use super::signing;
use super::{FAILURES, LONG_POLL_MAX, Table, body, endpoint, error, money};
use crate::app::Exchange;
use crate::kyc::Process;
use crate::notices::account_tag;
use crate::reads::kyc::{self, Requirement};
use crate::rules::{KycUserType, LimitedAccount, Refusal, StartKyc, TypedCommand};

/// Random bytes of the secret of a user's page.
const TOKEN_BYTES: usize = 20;

/// The style of all pages: that of the welcome page, and what forms need.
const STYLE: &str = concat!(include_str!("../root/page.css"), include_str!("pages.css"));

pub(super) fn routes(table: Table) -> Table {
    let table = table
        .post("/kyc-wallet", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(wallet))
        .get("/kyc-check/:requirement_row/:h_payto/:usertype", "kyc", endpoint!(check))
        .reaching(Reach::Page, |table| {
            let table = table.get("/kyc-webhook/:provider", "kyc", endpoint!(webhook)).post(
                "/kyc-webhook/:provider",
                SMALL_BODY_BYTES_MAX,
                "kyc",
                endpoint!(webhook),
            );
            officer::routes(form::routes(login::routes(table)))
        });
    attest::routes(table)
}

/// Submits a command that the rules can refuse only if nothing began, or a decision is due.
async fn decide<C: TypedCommand>(app: &Exchange, command: C) -> Checked<C::Answer> {
    let verdict = app.core.submit(command).await.map_err(|failure| FAILURES.submit(&failure))?;
    verdict.map_err(|refusal| match refusal {
        Refusal::KycWaits => error(ErrorCode::EXCHANGE_KYC_FORM_ALREADY_UPLOADED, &refusal.to_string()),
        _ => error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""),
    })
}

/// The answer to somebody who has no valid address of a page.
fn unknown() -> Response {
    error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, "ask your wallet for a new address")
}

async fn wallet(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let body: KycWalletRequest = body(request)?;
    let balance = money::<KycWalletRequest>(app, &body.balance, "balance")?;
    app.core.metrics.verifications.eddsa.inc();
    let message = WalletAccountSetup { threshold: body.balance };
    if !signing::on_pool(app, move || message.verify(&body.reserve_pub, &body.reserve_sig)).await? {
        return Err(error(ErrorCode::EXCHANGE_KYC_WALLET_SIGNATURE_INVALID, ""));
    }
    let payto = PaytoUri::reserve(&app.core.config.base_url, &body.reserve_pub)
        .map_err(|_| error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "BASE_URL"))?;
    let (rules, now) = (Arc::clone(&app.core.rules), app.core.now());
    let account = LimitedAccount::of(payto.as_str());
    let missing = app.core.read(move |store| {
        kyc::missing(store, &rules.config.kyc, KycOperation::Balance, &account, balance, now)
    });
    match missing.await.map_err(response::store)? {
        None => Ok(Response::empty(204)),
        Some(checks) => Err(response::kyc_required(app, account.h_payto(), checks).await),
    }
}

/// The unsatisfied rest of a requirement.
struct Open {
    checks: Vec<String>,
    /// The missing ones; empty if it is satisfied.
    missing: Vec<String>,
}

async fn open_requirement(app: &Exchange, h_payto: PaytoHash, row: u64) -> Checked<Option<Open>> {
    let (rules, now) = (Arc::clone(&app.core.rules), app.core.now());
    let read = app.core.read(move |store| {
        let checks = match kyc::requirement(store, h_payto, row)? {
            Requirement::Unknown => return Ok(Ok(None)),
            Requirement::Foreign => return Ok(Err(())),
            Requirement::Of(checks) => checks,
        };
        let processes = kyc::processes(store, h_payto)?;
        let missing = rules.config.kyc.unsatisfied(checks.split(' '), &kyc::pairs(&processes), now);
        let missing = missing.into_iter().map(str::to_owned).collect();
        Ok(Ok(Some(Open { checks: checks.split(' ').map(str::to_owned).collect(), missing })))
    });
    let found = read.await.map_err(response::store)?;
    found.map_err(|()| error(ErrorCode::EXCHANGE_KYC_CHECK_AUTHORIZATION_FAILED, ""))
}

fn malformed(name: &str) -> Response {
    error(ErrorCode::GENERIC_PARAMETER_MALFORMED, name)
}

async fn check(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let row = request.param("requirement_row").parse::<u64>().map_err(|_| malformed("requirement_row"))?;
    let h_payto = request.param("h_payto").parse::<ShortHash>().map_err(|_| malformed("h_payto"))?;
    let user_type = match request.param("usertype") {
        text if text.eq_ignore_ascii_case("individual") => KycUserType::Individual,
        text if text.eq_ignore_ascii_case("business") => KycUserType::Business,
        _ => return Err(malformed("usertype")),
    };
    let deadline = poll_deadline(request.query_opt("timeout_ms")?, LONG_POLL_MAX);
    // Registered before the look-up, so that no change is missed in between.
    let poll = deadline.and_then(|_| app.core.notices.kyc.poll(account_tag(h_payto)));
    let missing = || async move {
        let open = open_requirement(app, h_payto, row).await?;
        Ok::<_, Response>(open.filter(|open| !open.missing.is_empty()))
    };
    let Some(open) = missing().await? else { return Ok(Response::empty(204)) };
    let kyc_url = begin(app, h_payto, &open.missing, user_type).await?;
    if let (Some(poll), Some(deadline)) = (poll, deadline) {
        let checks = open.checks.clone();
        if poll.until(request, deadline, Some(open), Option::is_none, missing).await?.is_none() {
            return done(app, h_payto, checks).await;
        }
    }
    Ok(Response::json(202, &KycRedirect { kyc_url }))
}

/// Begins a process with the provider that suits best, and where the user goes.
async fn begin(
    app: &Exchange,
    h_payto: PaytoHash,
    missing: &[String],
    user_type: KycUserType,
) -> Checked<String> {
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    let chosen = app.core.rules.config.kyc.choose(&missing, user_type);
    let found = chosen.and_then(|provider| app.kyc.find(&provider.section));
    let Some((provider, logic)) = found else {
        let detail = format!("no provider for: {}", missing.join(" "));
        return Err(error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_GONE, &detail));
    };
    let token = base32::encode(&app.core.random::<TOKEN_BYTES>());
    let command = StartKyc { h_payto, provider: provider.section.clone(), token };
    let token = decide(app, command).await?.token;
    let base_url = &app.core.config.base_url;
    Ok(logic.user_url(Process { base_url, section: &provider.section, h_payto, token: &token }))
}

/// The confirmation that everything required was provided while the client waited.
async fn done(app: &Exchange, h_payto: PaytoHash, checks: Vec<String>) -> Checked<Response> {
    let details: Map<String, Value> =
        checks.into_iter().map(|check| (check, Value::Object(Map::new()))).collect();
    let kyc_details = Value::Object(details);
    let h_kyc = plain_hash(&kyc_details).expect("names of checks are JSON");
    let now = app.core.now();
    let message = ExchangeAccountSetupSuccess { h_payto, h_kyc, timestamp: now };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, message).await?;
    Ok(Response::json(200, &KycDone { now, kyc_details, exchange_sig, exchange_pub }))
}

/// None of the providers reports results by itself.
async fn webhook(_: &Exchange, request: &mut Request) -> Checked<Response> {
    Err(error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, request.param("provider")))
}
