//! `/kyc-form/$PROVIDER`: the form that users of a manual provider fill in.
//!
//! The page is one static document. Its address contains the account and a secret, so that only who began the
//! process can fill it in.

use batzen_crypto::ShortHash;
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_service::{StaticPage, escape_html};
use batzen_tables::exchange::KycState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::check::Checked;
use super::super::{Table, body, endpoint, error, response};
use super::{decide, unknown};
use crate::app::Exchange;
use crate::config::{KycLogicConfig, KycProviderConfig};
use crate::reads::kyc;
use crate::rules::{KycUserType, SubmitKyc};

/// The longest answer to one question, in bytes.
const ANSWER_BYTES_MAX: usize = 400;

/// A question of the form: the attribute's name, its label, whether it must be answered, and the browser's kind of
/// field.
struct Question {
    name: &'static str,
    label: &'static str,
    required: bool,
    kind: &'static str,
}

const fn question(name: &'static str, label: &'static str, required: bool, kind: &'static str) -> Question {
    Question { name, label, required, kind }
}

const INDIVIDUAL: &[Question] = &[
    question("full_name", "Full name, as in your identity document", true, "text"),
    question("birthdate", "Date of birth", true, "date"),
    question("address", "Street and number, postal code, city", true, "text"),
    question("country", "Country", true, "text"),
    question("nationality", "Nationality", true, "text"),
    question("document_number", "Number of your identity card or passport", true, "text"),
    question("email", "E-mail address", false, "email"),
];

const BUSINESS: &[Question] = &[
    question("company_name", "Name of the company, as registered", true, "text"),
    question("registration_id", "Registration number and register", true, "text"),
    question("address", "Registered address", true, "text"),
    question("country", "Country", true, "text"),
    question("representative", "Full name of a legal representative", true, "text"),
    question("activity", "What the company does", true, "text"),
    question("email", "E-mail address", false, "email"),
];

fn questions(user_type: KycUserType) -> &'static [Question] {
    match user_type {
        KycUserType::Individual => INDIVIDUAL,
        KycUserType::Business => BUSINESS,
    }
}

/// `POST /kyc-form/$PROVIDER`.
#[derive(Debug, Deserialize)]
struct Filled {
    account: ShortHash,
    /// The secret of the page.
    token: String,
    /// The answers, by the attributes' names.
    attributes: Map<String, Value>,
}

/// Where the process stands.
#[derive(Serialize)]
struct State {
    /// `started`, `submitted`, `approved` or `rejected`.
    state: &'static str,
    /// Where the user goes on, if there is such a page.
    next_url: Option<String>,
}

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/kyc-form/:provider", "kyc", endpoint!(page))
        .get("/kyc-form/:provider/state", "kyc", endpoint!(state))
        .post("/kyc-form/:provider", SMALL_BODY_BYTES_MAX, "kyc", endpoint!(submit))
}

/// The manual provider that the path names, and its users.
fn provider<'a>(app: &'a Exchange, request: &Request) -> Checked<(&'a KycProviderConfig, KycUserType)> {
    let section = request.param("provider");
    let found = app.kyc.find(section).map(|(config, _)| config);
    let found = found.filter(|config| matches!(config.logic, KycLogicConfig::Manual { .. }));
    let rules = &app.core.rules.config.kyc;
    let user_type = |config: &&KycProviderConfig| {
        rules.providers.iter().find(|provider| provider.section == config.section).map(|p| p.user_type)
    };
    let found = found.and_then(|config| Some((config, user_type(&config)?)));
    found.ok_or_else(|| error(ErrorCode::EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, section))
}

async fn page(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let (_, user_type) = provider(app, request)?;
    let page = match user_type {
        KycUserType::Individual => &app.pages.individual,
        KycUserType::Business => &app.pages.business,
    };
    Ok(page.get_or_init(|| form(app, user_type)).response())
}

fn form(app: &Exchange, user_type: KycUserType) -> StaticPage {
    let field = |question: &Question| {
        let Question { name, label, required, kind } = question;
        let (star, required) = if *required { ("", " required") } else { (" (optional)", "") };
        format!(
            "<label for=\"{name}\">{label}{star}</label>\n\
             <input id=\"{name}\" name=\"{name}\" type=\"{kind}\" maxlength=\"{ANSWER_BYTES_MAX}\"{required}>\n"
        )
    };
    let fields: String = questions(user_type).iter().map(field).collect();
    let html = include_str!("form/page.html")
        .replace("{CURRENCY}", &escape_html(&app.core.config.currency.to_string()))
        .replace("{FIELDS}", &fields);
    StaticPage::new(&html, super::STYLE, include_str!("form/page.js"))
}

fn answer(config: &KycProviderConfig, state: KycState) -> Response {
    let KycLogicConfig::Manual { post_url } = &config.logic else {
        unreachable!("the path names a manual one")
    };
    Response::json(200, &State { state: state.name(), next_url: post_url.clone() })
}

async fn state(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let (config, _) = provider(app, request)?;
    let h_payto = request.query_required::<ShortHash>("account")?;
    let token = request.query_required::<String>("token")?;
    let section = config.section.clone();
    let row = app.core.read(move |store| kyc::process(store, h_payto, &section));
    let row = row.await.map_err(response::store)?.filter(|row| row.token == token);
    Ok(answer(config, row.ok_or_else(unknown)?.state))
}

async fn submit(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let (config, user_type) = provider(app, request)?;
    let Filled { account, token, attributes } = body(request)?;
    let attributes = check(user_type, &attributes)
        .map_err(|problem| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &problem))?;
    let attributes = app.kyc.seal(&app.core.random(), &Value::Object(attributes)).map_err(|problem| {
        error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &format!("attributes: {problem}"))
    })?;
    let command = SubmitKyc { h_payto: account, provider: config.section.clone(), token, attributes };
    decide(app, command).await.map_err(|answer| if answer.status == 404 { unknown() } else { answer })?;
    app.core.metrics.kyc.submitted.inc();
    Ok(answer(config, KycState::Submitted))
}

/// The answers to the form's questions, without surrounding blanks and without empty ones.
fn check(user_type: KycUserType, given: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let questions = questions(user_type);
    if let Some(name) = given.keys().find(|name| !questions.iter().any(|question| question.name == *name)) {
        return Err(format!("attributes: {name} is not asked for"));
    }
    let mut checked = Map::new();
    for Question { name, required, .. } in questions {
        let text = match given.get(*name) {
            None => "",
            Some(Value::String(text)) => text.trim(),
            Some(_) => return Err(format!("attributes: {name} must be a text")),
        };
        if text.len() > ANSWER_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(format!(
                "attributes: {name} is longer than {ANSWER_BYTES_MAX} bytes, or has line breaks"
            ));
        }
        match (text.is_empty(), required) {
            (true, true) => return Err(format!("attributes: {name} is missing")),
            (true, false) => {}
            (false, _) => {
                checked.insert((*name).to_owned(), Value::from(text));
            }
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(given: &Value) -> Result<Map<String, Value>, String> {
        check(KycUserType::Business, given.as_object().unwrap())
    }

    #[test]
    fn answers_are_complete_short_and_asked_for() {
        let mut all = json!({
            "company_name": " Backwerk AG ", "registration_id": "CH-1", "address": "Bern", "country": "CH",
            "representative": "R", "activity": "bread", "email": " ",
        });
        let good = checked(&all).unwrap();
        assert_eq!(good["company_name"], "Backwerk AG");
        assert!(!good.contains_key("email"));
        for (name, value, expected) in [
            ("country", json!(""), "missing"),
            ("country", json!(7), "must be a text"),
            ("country", json!("x".repeat(401)), "longer"),
            ("country", json!("a\nb"), "line breaks"),
            ("birthdate", json!("2000-01-01"), "not asked for"),
        ] {
            let before = all[name].take();
            all[name] = value;
            assert!(checked(&all).unwrap_err().contains(expected), "{name}");
            all[name] = before;
        }
    }
}
