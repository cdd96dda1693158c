//! Account lookups: which participant a party is a customer of. Participants register their customers;
//! everyone may query them.

use batzen_http::{Request, Response};
use batzen_tables::switch::{Parties as PartyTable, PartyKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::bodies::{self, Element, Form};
use super::participant::{Answer, ParticipantApi, Parties, Refuse};
use crate::errors::ApiError;
use crate::forwarding::Sender;
use crate::outbox::render::error_information;
use crate::rules::parties::{PARTIES_MAX, PartyCommand};
use crate::rules::{Command, Consequences};
use crate::values::currency_number;

const RESOURCE: &str = "participants";
const SPECIAL: &str = "PARTICIPANTS";

const REGISTRATION: &[Element] = &[("fspId", true, Form::Text(32))];
const REGISTRATIONS: &[Element] = &[("requestId", true, Form::Uuid)];

/// A party, by the hash of its identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Party([u8; 32]);

impl Party {
    pub fn new(kind: &str, id: &str, sub: Option<&str>) -> Self {
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

impl ParticipantApi {
    /// The participant whose customer a party is, in the currency named in the request.
    pub(super) fn owner(&self, party: &Party, request: &Request) -> Result<Option<u32>, Refuse> {
        let wanted = currency(request.query_text("currency"))?;
        let found = self.service.store().lookup::<PartyTable>(PartyTable::BY_PARTY, &party.0);
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

    fn callback(&self, parties: &Parties, path: &str) -> Sender {
        Sender { number: parties.source.number, path: path.to_owned(), resource: RESOURCE, special: SPECIAL }
    }

    /// Answers with a callback.
    fn reply(&self, to: &Sender, body: &Value) -> Answer {
        let forwarder = self.service.forwarder();
        let note = forwarder.own_note(to, body.to_string().into_bytes());
        forwarder.send(to.number, note)?;
        Ok(Response::empty(202))
    }

    fn reply_error(&self, to: &Sender, error: ApiError, text: &str) -> Answer {
        let to = Sender { path: format!("{}/error", to.path), ..to.clone() };
        self.service.forwarder().tell(to, error, text);
        Ok(Response::empty(202))
    }

    pub(super) fn look_up(&self, request: &Request, parties: &Parties, party: &Party) -> Answer {
        let to = self.callback(parties, &request.path);
        let directory = self.service.directory();
        let owner = self.owner(party, request)?.and_then(|number| directory.by_number(number));
        match owner {
            Some(owner) => self.reply(&to, &json!({ "fspId": owner.name })),
            None => self.reply_error(&to, ApiError::PartyNotFound, ""),
        }
    }

    async fn decide(&self, command: PartyCommand) -> Result<Consequences, Refuse> {
        let verdict = self.service.lane().submit(Command::Party(Box::new(command))).await?;
        verdict.map_err(|refusal| Refuse::new(500, ApiError::InternalServerError, refusal.to_string()))
    }

    pub(super) async fn register(&self, request: &Request, parties: &Parties, party: &Party) -> Answer {
        let body = bodies::check(&request.body, REGISTRATION)?;
        let currency_text = body["currency"].as_str();
        let currency = currency(currency_text)?;
        let to = self.callback(parties, &request.path);
        let source = &parties.source;
        if !body["fspId"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(&source.name)) {
            let text = "a participant registers its own customers alone";
            return self.reply_error(&to, ApiError::AddPartyError, text);
        }
        let (all, participant) = (vec![party.key(currency)], source.number);
        let outcome = self.decide(PartyCommand::Register { parties: all, participant }).await?;
        if !outcome.refused.is_empty() {
            return self.reply_error(&to, ApiError::AddPartyError, "another participant has this party");
        }
        let mut answer = json!({ "fspId": source.name });
        if let Some(currency) = currency_text {
            answer["currency"] = json!(currency);
        }
        self.reply(&to, &answer)
    }

    pub(super) async fn remove(&self, request: &Request, parties: &Parties, party: &Party) -> Answer {
        let currency = currency(request.query_text("currency"))?;
        let to = self.callback(parties, &request.path);
        let (party, participant) = (party.key(currency), parties.source.number);
        let outcome = self.decide(PartyCommand::Remove { party, participant }).await?;
        if outcome.refused.is_empty() {
            self.reply(&to, &json!({ "fspId": parties.source.name }))
        } else {
            self.reply_error(&to, ApiError::PartyNotFound, "the party is not registered by this participant")
        }
    }

    /// Registers many parties at once; each is answered separately.
    pub(super) async fn register_all(&self, request: &Request, parties: &Parties) -> Answer {
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
            let command = PartyCommand::Register { parties: keys, participant: source.number };
            let refused = self.decide(command).await?.refused;
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
        self.reply(&self.callback(parties, &format!("/{RESOURCE}/{id}")), &answer)
    }
}
