//! Account lookups: which participant a party is a customer of. Participants register their customers;
//! everyone may query them.

use batzen_http::{Request, Response};
use batzen_service::endpoint;
use batzen_tables::switch::{Parties as PartyTable, PartyKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Table;
use super::bodies::{self, Element, Form};
use super::participant::{Answer, Parties, Refuse, active_parties};
use super::routed::{Address, LOOKUPS as RESOURCE};
use crate::MAX_BODY_BYTES;
use crate::errors::ApiError;
use crate::forwarding::Sender;
use crate::outbox::render::error_information;
use crate::rules::parties::PARTIES_MAX;
use crate::rules::{Command, Consequences, RegisterParties, RemoveParty};
use crate::service::Service;
use crate::values::currency_number;

const SPECIAL: &str = "PARTICIPANTS";

const REGISTRATION: &[Element] = &[("fspId", true, Form::Text(32))];
const REGISTRATIONS: &[Element] = &[("requestId", true, Form::Uuid)];

pub(super) fn routes(mut table: Table) -> Table {
    table = table.post("/participants", MAX_BODY_BYTES, "lookup", endpoint!(register_all));
    for party in ["/participants/:type/:id", "/participants/:type/:id/:sub"] {
        table = table
            .get(party, "lookup", endpoint!(look_up))
            .post(party, MAX_BODY_BYTES, "lookup", endpoint!(register))
            .delete(party, MAX_BODY_BYTES, "lookup", endpoint!(remove));
    }
    table
}

/// A party, by the hash of its identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Party([u8; 32]);

impl Party {
    pub(super) fn new(kind: &str, id: &str, sub: Option<&str>) -> Self {
        let mut hash = Sha256::new();
        for part in [kind, id, sub.unwrap_or_default()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    fn key(&self, currency: u32) -> PartyKey {
        PartyKey { party: self.0, currency }
    }
}

/// The currency of a lookup; 0 means any.
fn currency(text: Option<&str>) -> Result<u32, Refuse> {
    let Some(text) = text else { return Ok(0) };
    currency_number(text).ok_or_else(|| Refuse::malformed("the currency is not three capital letters"))
}

/// The party that a path names, and the sender and the destination of the request.
fn addressed(service: &Service, request: &Request) -> Result<(Party, Parties), Refuse> {
    let party = Address::of(request)?.party.ok_or_else(Refuse::unknown_path)?;
    Ok((party, active_parties(service, request, RESOURCE)?))
}

/// The participant whose customer a party is, in the currency named in the request.
pub(super) fn owner(service: &Service, party: &Party, request: &Request) -> Result<Option<u32>, Refuse> {
    let wanted = currency(request.query_text("currency"))?;
    let found = service.store().lookup::<PartyTable>(PartyTable::BY_PARTY, &party.0);
    let found = found.map_err(|error| {
        tracing::error!(%error, "lookups cannot be read");
        Refuse::new(503, ApiError::ServiceUnavailable, "")
    })?;
    let mut fitting: Vec<_> =
        found.into_iter().filter(|one| wanted == 0 || [0, wanted].contains(&one.key.currency)).collect();
    // A registration for the currency takes precedence over one for all currencies.
    fitting.sort_by_key(|one| if wanted == 0 { one.key.currency } else { u32::MAX - one.key.currency });
    Ok(fitting.first().map(|one| one.row.participant))
}

fn callback(parties: &Parties, path: &str) -> Sender {
    Sender { number: parties.source.number, path: path.to_owned(), resource: RESOURCE, special: SPECIAL }
}

/// Answers with a callback.
fn reply(service: &Service, to: &Sender, body: &Value) -> Answer {
    let forwarder = &service.forwarder;
    let note = forwarder.own_note(to, body.to_string().into_bytes());
    forwarder.send(to.number, note)?;
    Ok(Response::empty(202))
}

fn reply_error(service: &Service, to: &Sender, error: ApiError, text: &str) -> Answer {
    let to = Sender { path: format!("{}/error", to.path), ..to.clone() };
    service.forwarder.tell(to, error, text);
    Ok(Response::empty(202))
}

async fn look_up(service: &Service, request: &Request) -> Answer {
    let (party, parties) = addressed(service, request)?;
    let to = callback(&parties, &request.path);
    let directory = service.directory();
    let owner = owner(service, &party, request)?.and_then(|number| directory.by_number(number));
    match owner {
        Some(owner) => reply(service, &to, &json!({ "fspId": owner.name })),
        None => reply_error(service, &to, ApiError::PartyNotFound, ""),
    }
}

async fn decide(service: &Service, command: impl Into<Command>) -> Result<Consequences, Refuse> {
    let verdict = service.lane.submit(command).await?;
    verdict.map_err(|refusal| Refuse::new(500, ApiError::InternalServerError, refusal.to_string()))
}

async fn register(service: &Service, request: &Request) -> Answer {
    let (party, parties) = addressed(service, request)?;
    let body = bodies::check(&request.body, REGISTRATION)?;
    let currency_text = body["currency"].as_str();
    let currency = currency(currency_text)?;
    let to = callback(&parties, &request.path);
    let source = &parties.source;
    if !body["fspId"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(&source.name)) {
        let text = "a participant registers its own customers alone";
        return reply_error(service, &to, ApiError::AddPartyError, text);
    }
    let (all, participant) = (vec![party.key(currency)], source.number);
    let outcome = decide(service, RegisterParties { parties: all, participant }).await?;
    if !outcome.refused.is_empty() {
        return reply_error(service, &to, ApiError::AddPartyError, "another participant has this party");
    }
    let mut answer = json!({ "fspId": source.name });
    if let Some(currency) = currency_text {
        answer["currency"] = json!(currency);
    }
    reply(service, &to, &answer)
}

async fn remove(service: &Service, request: &Request) -> Answer {
    let (party, parties) = addressed(service, request)?;
    let currency = currency(request.query_text("currency"))?;
    let to = callback(&parties, &request.path);
    let (party, participant) = (party.key(currency), parties.source.number);
    let outcome = decide(service, RemoveParty { party, participant }).await?;
    if outcome.refused.is_empty() {
        reply(service, &to, &json!({ "fspId": parties.source.name }))
    } else {
        reply_error(service, &to, ApiError::PartyNotFound, "the party is not registered by this participant")
    }
}

/// Registers many parties at once; each is answered separately.
async fn register_all(service: &Service, request: &Request) -> Answer {
    let parties = active_parties(service, request, RESOURCE)?;
    let body = bodies::check(&request.body, REGISTRATIONS)?;
    let list = body["partyList"].as_array().filter(|list| (1..=PARTIES_MAX).contains(&list.len()));
    let Some(list) = list else {
        let text = "partyList is not a list of 1 to 1,000 parties";
        return Err(Refuse::new(400, ApiError::TooManyElements, text));
    };
    let currency_text = body["currency"].as_str();
    let currency = currency(currency_text)?;
    let source = &parties.source;
    let mut keys = Vec::new();
    // Separates those to submit from those refused at once.
    let mut asked = Vec::new();
    for (place, one) in list.iter().enumerate() {
        let text = |name: &str| one[name].as_str();
        bodies::check_party(one)?;
        if text("fspId").is_some_and(|name| name.eq_ignore_ascii_case(&source.name)) {
            let kind = text("partyIdType").unwrap_or_default();
            let id = text("partyIdentifier").unwrap_or_default();
            keys.push(Party::new(kind, id, text("partySubIdOrType")).key(currency));
            asked.push(place);
        }
    }
    let mut taken = vec![false; list.len()];
    if !keys.is_empty() {
        let command = RegisterParties { parties: keys, participant: source.number };
        let refused = decide(service, command).await?.refused;
        for (number, place) in asked.into_iter().enumerate() {
            taken[place] = !refused.iter().any(|refused| usize::from(*refused) == number);
        }
    }
    let answers = list.iter().zip(taken).map(|(one, is_taken)| {
        if is_taken {
            return json!({ "partyId": one });
        }
        let error = error_information(ApiError::AddPartyError.code(), ApiError::AddPartyError.text());
        json!({ "partyId": one, "errorInformation": error })
    });
    let mut answer = json!({ "partyList": answers.collect::<Vec<Value>>() });
    if let Some(currency) = currency_text {
        answer["currency"] = json!(currency);
    }
    let id = body["requestId"].as_str().unwrap_or_default();
    reply(service, &callback(&parties, &format!("/{RESOURCE}/{id}")), &answer)
}
