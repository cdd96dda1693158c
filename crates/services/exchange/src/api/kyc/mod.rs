//! Identification of customers: `/kyc-wallet`, `/kyc-check`, `/kyc-proof`, `/kyc-webhook`; the form that users fill in
//! ([`form`]), the officers' page ([`officer`]), and `/reserves-attest` ([`attest`]).

mod attest;
mod form;
mod officer;

use std::sync::Arc;

use batzen_crypto::{ShortHash, base32};
use batzen_http::{Head, Request, Response, header};
use batzen_protocol::api::exchange::{KycDone, KycRedirect, KycWalletRequest};
use batzen_protocol::canonical::plain_hash;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{ExchangeAccountSetupSuccess, SignedMessage, WalletAccountSetup};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_service::{Reach, escape_html, poll_deadline};
use batzen_tables::exchange::{KycOperation, PaytoHash};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::check::Checked;
use super::response;
use super::signing;
use super::{FAILURES, LONG_POLL_MAX, Table, body, endpoint, error, money};
use crate::app::Exchange;
use crate::config::KycProviderConfig;
use crate::kyc::{Identity, NotIdentified, Process};
use crate::notices::account_tag;
use crate::reads::kyc::{self, Requirement};
use crate::rules::{FinishKyc, KycUserType, StartKyc, TypedCommand};

/// Number of browsers' requests that may wait for providers at the same time. Each holds a connection to one.
const PROOFS_MAX: usize = 64;
/// Random bytes of the secret of a user's page.
const TOKEN_BYTES: usize = 20;

/// The style of all pages: that of the welcome page, and what forms need.
const STYLE: &str = concat!(include_str!("../root/page.css"), include_str!("pages.css"));

pub(super) fn routes(table: Table) -> Table {
    let table = table
        .post("/kyc-wallet", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(wallet))
        .get("/kyc-check/:requirement_row/:h_payto/:usertype", "kyc", endpoint!(check))
        .reaching(Reach::Page, |table| {
            let table = table
                .get("/kyc-proof/:provider", "kyc", endpoint!(proof))
                .get("/kyc-webhook/:provider", "kyc", endpoint!(webhook))
                .post("/kyc-webhook/:provider", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(webhook));
            officer::routes(form::routes(table))
        });
    attest::routes(table)
}

/// Submits a command that the rules can refuse only if nothing began.
async fn decide<C: TypedCommand>(app: &Exchange, command: C) -> Checked<C::Answer> {
    let verdict = app.core.submit(command).await.map_err(|failure| FAILURES.submit(&failure))?;
    verdict.map_err(|_| error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""))
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
    let (rules, h_payto, now) = (Arc::clone(&app.core.rules), payto.hash(), app.core.now());
    let missing = app.core.read(move |store| {
        kyc::missing(store, &rules.config.kyc, KycOperation::Balance, h_payto, balance, now)
    });
    match missing.await.map_err(response::store)? {
        None => Ok(Response::empty(204)),
        Some(checks) => Err(response::kyc_required(app, h_payto, checks).await),
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

/// A process that has begun.
struct Begun {
    token: String,
    expiration: Timestamp,
}

async fn find_process(app: &Exchange, h_payto: PaytoHash, provider: &str) -> Checked<Begun> {
    let provider = provider.to_owned();
    let row = app.core.read(move |store| kyc::process(store, h_payto, &provider));
    let row = row.await.map_err(response::store)?;
    let row = row.ok_or_else(|| error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""))?;
    Ok(Begun { token: row.token, expiration: row.expiration })
}

async fn proof(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let section = request.param("provider").to_owned();
    let h_payto = request.query_required::<ShortHash>("state")?;
    let unknown = || error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, &section);
    let (provider, logic) = app.kyc.find(&section).ok_or_else(unknown)?;
    let begun = find_process(app, h_payto, &provider.section).await?;
    if begun.expiration > app.core.now() {
        return Ok(Response::empty(204));
    }
    static PROOFS: Semaphore = Semaphore::const_new(PROOFS_MAX);
    let _turn = PROOFS.try_acquire().map_err(|_| FAILURES.busy())?;
    // The provider may take seconds, which must not keep other requests from being served.
    request.leave_slot();
    let base_url = &app.core.config.base_url;
    let process = Process { base_url, section: &provider.section, h_payto, token: &begun.token };
    let proven = tokio::select! {
        proven = logic.prove(process, &request.head) => proven,
        // The service ends, or too many requests wait. The provider's code may be used up, so the user logs in again.
        () = request.drain.draining() => return Err(FAILURES.busy()),
    };
    match proven {
        Ok(identity) => identified(app, h_payto, provider, identity).await,
        Err(problem) => Err(not_identified(app, provider, &request.head, problem)),
    }
}

async fn identified(
    app: &Exchange,
    h_payto: PaytoHash,
    provider: &KycProviderConfig,
    identity: Identity,
) -> Checked<Response> {
    let attributes = app.kyc.seal(&app.core.random(), &identity.attributes).map_err(|problem| {
        error(ErrorCode::EXCHANGE_KYC_PROOF_BACKEND_INVALID_RESPONSE, &format!("attributes: {problem}"))
    })?;
    let command = FinishKyc {
        h_payto,
        provider: provider.section.clone(),
        provider_user_id: identity.user_id,
        attributes,
        validity: provider.validity,
    };
    decide(app, command).await?;
    app.core.metrics.kyc.identified.inc();
    app.core.notices.identified(h_payto);
    Ok(Response::empty(303).with_header(header::LOCATION, &identity.next_url))
}

fn not_identified(
    app: &Exchange,
    provider: &KycProviderConfig,
    head: &Head,
    problem: NotIdentified,
) -> Response {
    app.core.metrics.kyc.failed.inc();
    let warn = |reason: &str| tracing::warn!(provider = %provider.section, reason, "nobody was identified");
    match problem {
        NotIdentified::Missing(name) => error(ErrorCode::GENERIC_PARAMETER_MISSING, name),
        NotIdentified::Refused { title, text } => refusal(head, &title, &text),
        NotIdentified::Malformed(what) => {
            warn(&what);
            let detail = format!("Unexpected response from KYC gateway: {what}");
            error(ErrorCode::EXCHANGE_KYC_PROOF_BACKEND_INVALID_RESPONSE, &detail)
        }
        NotIdentified::Failed(reason) => {
            warn(&reason);
            error(ErrorCode::EXCHANGE_KYC_PROOF_BACKEND_ERROR, "try again later")
        }
        NotIdentified::OtherWay => error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, "fill in the form"),
    }
}

/// The user's browser shows this, so it is a page, unless the client asks for JSON.
fn refusal(head: &Head, title: &str, text: &str) -> Response {
    if head.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("application/json")) {
        let detail = if text.is_empty() { title.to_owned() } else { format!("{title}: {text}") };
        return error(ErrorCode::EXCHANGE_KYC_PROOF_BACKEND_AUTHORIZATION_FAILED, &detail);
    }
    let (title, text) = (escape_html(title), escape_html(text));
    let page =
        format!("<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p></body></html>");
    Response::bytes(403, "text/html; charset=utf-8", page)
        .with_header(header::CONTENT_SECURITY_POLICY, "default-src 'none'")
        .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// None of the providers reports results by itself.
async fn webhook(_: &Exchange, request: &mut Request) -> Checked<Response> {
    Err(error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, request.param("provider")))
}
