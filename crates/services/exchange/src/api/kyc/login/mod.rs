//! `/kyc-login/$PROVIDER` and `/kyc-proof/$PROVIDER`: the way of a user's browser to an identity provider and back.
//!
//! The wallet opens the first address, which has the secret of the process. The exchange gives the browser a secret of
//! its own in a cookie, and the provider a state that follows from both secrets. So a state is of use only to the
//! browser that began, only for its account, and no longer once the account is identified: nobody can identify
//! another's account, and nobody learns from this endpoint who is identified.
//!
//! The page of the first address names the account. Somebody who was led there by another's link sees that it is not theirs;
//! nothing leads on to the provider but the page's button, because a page of another site has neither state nor cookie.

use batzen_crypto::hash::sha512_parts;
use batzen_crypto::{ShortHash, base32};
use batzen_http::{Head, Request, Response, header};
use batzen_protocol::ErrorCode;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_service::{escape_html, form_page, html_page};
use batzen_tables::exchange::{KycProcessRow, PaytoHash};

use super::super::check::Checked;
use super::super::{FAILURES, Table, endpoint, error, response};
use super::{decide, unknown};
use crate::app::Exchange;
use crate::config::KycProviderConfig;
use crate::kyc::{Identity, KycLogic, Login, NotIdentified};
use crate::reads::kyc;
use crate::rules::FinishKyc;

/// Random bytes of a browser's secret.
const SECRET_BYTES: usize = 20;
/// Time that a browser keeps its secret.
const SECRET_LIFE_S: u32 = 3_600;
/// Number of the state's characters in the name of its cookie, so that one browser may identify several accounts.
const NAME_CHARS: usize = 16;

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/kyc-login/:provider", "kyc", endpoint!(page))
        .post("/kyc-login/:provider", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(login))
        .get("/kyc-proof/:provider", "kyc", endpoint!(proof))
}

fn provider<'a>(app: &'a Exchange, section: &str) -> Checked<(&'a KycProviderConfig, &'a dyn KycLogic)> {
    let unknown = || error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, section);
    app.kyc.find(section).ok_or_else(unknown)
}

async fn find_process(app: &Exchange, h_payto: PaytoHash, provider: &str) -> Checked<KycProcessRow> {
    let provider = provider.to_owned();
    let row = app.core.read(move |store| kyc::process(store, h_payto, &provider));
    row.await.map_err(response::store)?.ok_or_else(unknown)
}

/// The state that a provider sends back.
fn state_of(h_payto: PaytoHash, section: &str, token: &str, secret: &str) -> ShortHash {
    let parts =
        [b"kyc-login".as_slice(), h_payto.as_bytes(), section.as_bytes(), &[0], token.as_bytes(), &[0]];
    let digest = sha512_parts(&[parts.as_slice(), &[secret.as_bytes()]].concat());
    ShortHash::from_bytes(*digest.as_bytes().first_chunk().expect("64 bytes hold 32"))
}

fn cookie_name(state: ShortHash) -> String {
    format!("kyc-{}", &state.to_string()[..NAME_CHARS])
}

/// The account and the secret in the cookie that the browser got with this state.
fn visitor(head: &Head, state: ShortHash) -> Option<(PaytoHash, &str)> {
    let name = cookie_name(state);
    let fields = head.headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
    let mut pairs = fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (account, secret) = pairs.find(|(key, _)| *key == name)?.1.split_once('.')?;
    Some((account.parse().ok()?, secret))
}

/// Where the provider's page is, with this state.
fn login_url(
    app: &Exchange,
    (provider, logic): (&KycProviderConfig, &dyn KycLogic),
    state: ShortHash,
) -> Checked<String> {
    let visit = Login { base_url: &app.core.config.base_url, section: &provider.section, state };
    let unknown = || error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, &provider.section);
    logic.login_url(visit).ok_or_else(unknown)
}

/// Names the account that is about to be identified.
async fn page(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let (provider, logic) = provider(app, request.param("provider"))?;
    let h_payto = request.query_required::<ShortHash>("account")?;
    let token = request.query_required::<String>("token")?;
    let begun = find_process(app, h_payto, &provider.section).await?;
    if begun.token != token {
        return Err(unknown());
    }
    let secret = base32::encode(&app.core.random::<SECRET_BYTES>());
    let state = state_of(h_payto, &provider.section, &token, &secret);
    let url = login_url(app, (provider, logic), state)?;
    let payto_uri =
        app.core.read(move |store| kyc::payto_uri(store, h_payto)).await.map_err(response::store)?;
    let account = payto_uri.unwrap_or_else(|| format!("{h_payto} (the hash of its address)"));
    let base_url = &app.core.config.base_url;
    let html = include_str!("page.html")
        .replace("{CURRENCY}", &escape_html(&app.core.config.currency.to_string()))
        .replace("{BASE}", &escape_html(base_url))
        .replace("{ACTION}", &escape_html(&format!("?account={h_payto}&token={token}&state={state}")))
        .replace("{PROVIDER}", &escape_html(origin_of(&url)))
        .replace("{ACCOUNT}", &escape_html(&account));
    let (scheme, rest) = base_url.split_once("://").unwrap_or_default();
    let path = rest.find('/').map_or("/", |at| &rest[at..]);
    let secure = if scheme == "https" { "; Secure" } else { "" };
    // Lax: the provider's page sends the browser back. No other site's page can use the button.
    let cookie = format!(
        "{}={h_payto}.{secret}; Path={path}; Max-Age={SECRET_LIFE_S}; HttpOnly; SameSite=Lax{secure}",
        cookie_name(state)
    );
    Ok(form_page(&html, super::STYLE).with_header(header::SET_COOKIE, &cookie))
}

/// Leads the browser that saw the page to the provider.
async fn login(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let found = provider(app, request.param("provider"))?;
    let state = request.query_required::<ShortHash>("state")?;
    let (h_payto, secret) = visitor(&request.head, state).ok_or_else(unknown)?;
    let begun = find_process(app, h_payto, &found.0.section).await?;
    if state != state_of(h_payto, &found.0.section, &begun.token, secret) {
        return Err(unknown());
    }
    let url = login_url(app, found, state)?;
    // Not a redirect: browsers would hold the provider's own redirects to the form's policy.
    let link = format!("<p><a href=\"{}\">{}</a></p>", escape_html(&url), escape_html(origin_of(&url)));
    let page = html_page(200, "Going on to the provider", super::STYLE, &link);
    Ok(page.with_header(header::REFRESH, &format!("0; url={url}")))
}

/// Scheme, host and port of a URL.
fn origin_of(url: &str) -> &str {
    url.match_indices('/').nth(2).map_or(url, |(at, _)| &url[..at])
}

async fn proof(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let section = request.param("provider").to_owned();
    let state = request.query_required::<ShortHash>("state")?;
    let (provider, logic) = provider(app, &section)?;
    let (h_payto, secret) = visitor(&request.head, state).ok_or_else(unknown)?;
    let begun = find_process(app, h_payto, &provider.section).await?;
    if state != state_of(h_payto, &provider.section, &begun.token, secret) {
        return Err(unknown());
    }
    if begun.expiration > app.core.now() {
        return Ok(Response::empty(204));
    }
    let _share = app.kyc.proofs.take(request.client).ok_or_else(|| FAILURES.busy())?;
    // The provider may take seconds, which must not keep other requests from being served.
    request.leave_slot();
    let login = Login { base_url: &app.core.config.base_url, section: &provider.section, state };
    let proven = tokio::select! {
        proven = logic.prove(login, &request.head) => proven,
        // The service ends, or too many requests wait. The provider's code may be used up, so the user logs in again.
        () = request.drain.draining() => return Err(FAILURES.busy()),
    };
    match proven {
        Ok(identity) => identified(app, h_payto, provider, begun.token, identity).await,
        Err(problem) => Err(not_identified(app, provider, &request.head, problem)),
    }
}

async fn identified(
    app: &Exchange,
    h_payto: PaytoHash,
    provider: &KycProviderConfig,
    token: String,
    identity: Identity,
) -> Checked<Response> {
    let attributes = app.kyc.seal(&app.core.random(), &identity.attributes).map_err(|problem| {
        error(ErrorCode::EXCHANGE_KYC_PROOF_BACKEND_INVALID_RESPONSE, &format!("attributes: {problem}"))
    })?;
    let command = FinishKyc {
        h_payto,
        provider: provider.section.clone(),
        token,
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
