//! `/kyc-officer`: where officers decide on what users of a manual provider have entered.
//!
//! The page is one static document; its data comes as JSON with the officer's token (`Authorization: Bearer`). The
//! command line uses the same requests. A decision that releases held payouts needs two officers.

use batzen_crypto::hash::sha512;
use batzen_crypto::{HashCode, ShortHash};
use batzen_http::{Request, Response, header};
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::{Amount, ErrorCode, Timestamp};
use batzen_service::{App, Denied, Reach, StaticPage, TooMany, escape_html, require_holder};
use batzen_tables::exchange::KycState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::check::Checked;
use super::super::{FAILURES, Table, body, endpoint, error, error_status, response};
use crate::app::Exchange;
use crate::reads::kyc::{self, Case};
use crate::rules::{DecideKyc, KycDecided, Refusal};

/// Number of cases that one answer lists.
const CASES_MAX: usize = 100;
/// The longest reason of a decision, in bytes.
const REASON_BYTES_MAX: usize = 1_000;

pub(super) fn routes(table: Table) -> Table {
    table.get("/kyc-officer", "kyc", endpoint!(page)).reaching(Reach::Own, |table| {
        table
            .get("/kyc-officer/cases", "kyc", endpoint!(cases))
            .get("/kyc-officer/accounts/:h_payto", "kyc", endpoint!(account))
            .post("/kyc-officer/decisions", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(decision))
    })
}

/// An identification, as officers see it.
#[derive(Debug, Serialize)]
struct CaseView {
    /// The account.
    h_payto: ShortHash,
    /// Its payto URI, if it has ever been paid or has paid.
    payto_uri: Option<String>,
    /// The provider's section.
    provider: String,
    /// `started`, `submitted`, `approved` or `rejected`.
    state: &'static str,
    /// When it began.
    started: Timestamp,
    /// When the identification expires.
    expiration: Timestamp,
    /// Names the submitted attributes in a decision; absent if none wait.
    case: Option<HashCode>,
    /// The submitted attributes, or those on file.
    attributes: Value,
    /// The officer who has approved so far; absent if nobody has.
    approved_by: Option<String>,
    /// The sum of payouts that approval releases.
    held: Amount,
    /// Number of officers who must still approve.
    approvals_missing: u32,
}

#[derive(Debug, Serialize)]
struct Cases {
    officer: String,
    cases: Vec<CaseView>,
}

#[derive(Debug, Serialize)]
struct DecisionView {
    time: Timestamp,
    officer: String,
    provider: String,
    approved: bool,
    reason: String,
    held: Amount,
}

#[derive(Debug, Serialize)]
struct AccountView {
    cases: Vec<CaseView>,
    decisions: Vec<DecisionView>,
}

/// `POST /kyc-officer/decisions`.
#[derive(Debug, Deserialize)]
struct DecisionRequest {
    h_payto: ShortHash,
    provider: String,
    /// The attributes that the officer saw.
    case: HashCode,
    approved: bool,
    reason: String,
}

#[derive(Debug, Serialize)]
struct DecisionAnswer {
    /// `approved`, `rejected` or `needs_another_officer`.
    outcome: &'static str,
}

/// A refusal by this interface, which is not part of the wallets' protocol and therefore has one code.
fn refused(status: u16, reason: &str) -> Response {
    error_status(ErrorCode::EXCHANGE_KYC_CHECK_AUTHORIZATION_FAILED, status, reason)
}

/// The officer who sends the request, by the token.
fn officer(app: &Exchange, request: &Request) -> Checked<String> {
    let denied = |denied| match denied {
        Denied::Wrong => refused(401, "an officer's bearer token is required")
            .with_header(header::WWW_AUTHENTICATE, "Bearer"),
        Denied::TooMany(wait) => wait.wait(refused(429, TooMany::DETAIL)),
    };
    let officers = app.core.config.kyc.officers.iter();
    let hashes = officers.map(|officer| (&officer.name, *officer.token_hash.as_bytes()));
    let hash = |token: &str| *sha512(token.as_bytes()).as_bytes();
    require_holder(app.monitor().guesses(), "", request, hash, hashes).cloned().map_err(denied)
}

/// Answers with personal data are for the officer alone.
pub(super) fn private(response: Response) -> Response {
    response.with_header(header::CACHE_CONTROL, "no-store")
}

fn case_of(submitted: &[u8]) -> HashCode {
    sha512(submitted)
}

fn view(app: &Exchange, case: Case) -> CaseView {
    let Case { key, row, payto_uri, held } = case;
    let is_submitted = row.state == KycState::Submitted;
    let sealed = if is_submitted { &row.submitted } else { &row.attributes };
    let attributes = match sealed.is_empty() {
        true => Value::Object(serde_json::Map::new()),
        // Whoever replaced the key must know.
        false => {
            app.kyc.open(sealed).unwrap_or_else(|problem| Value::from(format!("not readable: {problem}")))
        }
    };
    let approved_by = Some(row.approved_by).filter(|officer| !officer.is_empty());
    let approvals_missing = match (is_submitted, held.is_zero() || approved_by.is_some()) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => 2,
    };
    CaseView {
        h_payto: key.h_payto,
        payto_uri,
        provider: key.provider,
        state: row.state.name(),
        started: row.started,
        expiration: row.expiration,
        case: is_submitted.then(|| case_of(&row.submitted)),
        attributes,
        approved_by,
        held: held.of(app.core.config.currency),
        approvals_missing,
    }
}

async fn page(app: &Exchange, _: &mut Request) -> Checked<Response> {
    if app.core.config.kyc.officers.is_empty() {
        let detail = "this exchange has no [kyc-officer-…] section";
        return Err(error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, detail));
    }
    let page = app.pages.officer.get_or_init(|| {
        let html =
            include_str!("officer/page.html").replace("{BASE}", &escape_html(&app.core.config.base_url));
        StaticPage::new(&html, super::STYLE, include_str!("officer/page.js"))
    });
    Ok(page.response())
}

async fn cases(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let officer = officer(app, request)?;
    let found =
        app.core.read(move |store| kyc::submitted(store, CASES_MAX)).await.map_err(response::store)?;
    let cases = found.into_iter().map(|case| view(app, case)).collect();
    Ok(private(Response::json(200, &Cases { officer, cases })))
}

async fn account(app: &Exchange, request: &mut Request) -> Checked<Response> {
    officer(app, request)?;
    let malformed = |_| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "h_payto");
    let h_payto = request.param("h_payto").parse::<ShortHash>().map_err(malformed)?;
    let found = app.core.read(move |store| kyc::account(store, h_payto)).await.map_err(response::store)?;
    let currency = app.core.config.currency;
    let decisions = found.decisions.into_iter().map(|found| DecisionView {
        time: found.key.time,
        officer: found.key.officer,
        provider: found.key.provider,
        approved: found.row.approved,
        reason: found.row.reason,
        held: found.row.held.of(currency),
    });
    let decisions = decisions.collect();
    let cases = found.cases.into_iter().map(|case| view(app, case)).collect();
    Ok(private(Response::json(200, &AccountView { cases, decisions })))
}

async fn decision(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let officer = officer(app, request)?;
    let wish: DecisionRequest = body(request)?;
    let malformed = |detail| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, detail);
    let reason = wish.reason.trim().to_owned();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(malformed("reason: say why, in at most 1,000 bytes"));
    }
    let unknown = || error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, &wish.provider);
    let (provider, _) = app.kyc.find(&wish.provider).ok_or_else(unknown)?;
    let (h_payto, section) = (wish.h_payto, provider.section.clone());
    let row = app.core.read(move |store| kyc::process(store, h_payto, &section));
    let row = row.await.map_err(response::store)?;
    let row = row.ok_or_else(|| error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""))?;
    let changed = || refused(409, "the case has changed or is decided: load the cases again");
    if case_of(&row.submitted) != wish.case {
        return Err(changed());
    }
    let command = DecideKyc {
        h_payto,
        provider: provider.section.clone(),
        submitted: row.submitted,
        officer: officer.clone(),
        approved: wish.approved,
        reason,
        time: app.core.now(),
        validity: provider.validity,
    };
    let decided = match app.core.submit(command).await.map_err(|failure| FAILURES.submit(&failure))? {
        Ok(decided) => decided,
        Err(Refusal::KycSameOfficer) => {
            return Err(refused(403, &Refusal::KycSameOfficer.to_string()));
        }
        Err(_) => return Err(changed()),
    };
    let outcome = match decided {
        KycDecided::Approved { .. } => "approved",
        KycDecided::NeedsAnother { .. } => "needs_another_officer",
        KycDecided::Rejected => "rejected",
    };
    tracing::info!(%officer, %h_payto, provider = %provider.section, outcome, "an officer decided");
    if matches!(decided, KycDecided::Approved { .. }) {
        app.core.metrics.kyc.identified.inc();
        app.core.notices.identified(h_payto);
    }
    Ok(private(Response::json(200, &DecisionAnswer { outcome })))
}
