//! Messages that precede a transfer: lookups of parties, quotes, requests to pay. The switch checks the
//! format, acknowledges, and passes the message on unchanged; it keeps no record of it.

use batzen_http::{Method, Request, Response};
use serde_json::Value;

use super::bodies::{self, Element, PARTY_ID_TYPES};
use super::lookups::Party;
use super::participant::{Answer, ParticipantApi, Parties, Refuse, check_headers, lines, uuid};
use crate::errors::ApiError;
use crate::forwarding::{Note, QueueFull, Sender};

/// A resource whose messages are passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// Its name in the path and in the media type.
    pub name: &'static str,
    /// The special kind of callback address.
    pub special: &'static str,
    /// The element of a POST that contains its id.
    id: &'static str,
    /// The required elements of a POST; `None`: the resource cannot be posted.
    posted: Option<&'static [Element]>,
    /// The required elements of a PUT.
    put: &'static [Element],
}

const RESOURCES: [Resource; 7] = [
    Resource { name: "parties", special: "PARTIES", id: "", posted: None, put: bodies::PARTY_RESULT },
    Resource {
        name: "participants",
        special: "PARTICIPANTS",
        id: "",
        posted: None,
        put: bodies::PARTICIPANT_RESULT,
    },
    Resource {
        name: "quotes",
        special: "QUOTES",
        id: "quoteId",
        posted: Some(bodies::QUOTE),
        put: bodies::QUOTE_RESULT,
    },
    Resource {
        name: "bulkQuotes",
        special: "BULK_QUOTES",
        id: "bulkQuoteId",
        posted: Some(bodies::BULK_QUOTE),
        put: bodies::BULK_QUOTE_RESULT,
    },
    Resource {
        name: "transactionRequests",
        special: "TRANSACTION_REQUESTS",
        id: "transactionRequestId",
        posted: Some(bodies::TRANSACTION_REQUEST),
        put: bodies::TRANSACTION_REQUEST_RESULT,
    },
    Resource {
        name: "authorizations",
        special: "AUTHORIZATIONS",
        id: "",
        posted: None,
        put: bodies::AUTHORIZATION_RESULT,
    },
    Resource {
        name: "transactions",
        special: "TRANSACTIONS",
        id: "",
        posted: None,
        put: bodies::TRANSACTION_RESULT,
    },
];

/// Resources of the interface that this switch does not support.
const UNSUPPORTED: [&str; 7] =
    ["fxQuotes", "fxTransfers", "services", "consents", "consentRequests", "thirdpartyRequests", "linking"];

/// The part of a path after its resource.
enum PathTail {
    /// The resource itself.
    Whole,
    /// An item, by its UUID.
    One,
    /// A party.
    Party(Party),
}

impl Resource {
    /// The resource of a path.
    pub(super) fn of(name: &str) -> Result<Self, Refuse> {
        if UNSUPPORTED.contains(&name) {
            let text = format!("/{name} is not served by this switch");
            return Err(Refuse::new(501, ApiError::NotImplemented, text));
        }
        let found = RESOURCES.iter().find(|resource| resource.name == name);
        found.copied().ok_or_else(|| Refuse::new(404, ApiError::UnknownUri, ""))
    }

    fn is_of_parties(&self) -> bool {
        matches!(self.name, "parties" | "participants")
    }

    /// Parses the segments after the resource name, without `error`.
    fn place(&self, segments: &[&str]) -> Result<PathTail, Refuse> {
        let unknown = || Refuse::new(404, ApiError::UnknownUri, "");
        match segments {
            [] => Ok(PathTail::Whole),
            [kind, id, sub @ ..] if self.is_of_parties() && sub.len() <= 1 => {
                if !PARTY_ID_TYPES.contains(kind) {
                    return Err(Refuse::malformed(format!("{kind} is not a type of identifiers")));
                }
                let sub = sub.first().copied();
                let fits = |text: &str| (1..=128).contains(&text.chars().count());
                if !fits(id) || !sub.is_none_or(fits) {
                    return Err(Refuse::malformed("identifiers have 1 to 128 characters"));
                }
                Ok(PathTail::Party(Party::new(kind, id, sub)))
            }
            [id] if !self.is_of_parties() => uuid(id, "the id").map(|_| PathTail::One),
            _ => Err(unknown()),
        }
    }
}

impl From<QueueFull> for Refuse {
    fn from(_: QueueFull) -> Self {
        Self::new(503, ApiError::ServerBusy, "too many messages wait for this destination")
    }
}

impl ParticipantApi {
    pub(super) async fn routed(&self, request: &Request, resource: Resource) -> Answer {
        let method = &request.method;
        let segments: Vec<&str> = request.segments().skip(1).collect();
        let (segments, is_error) = match segments.as_slice() {
            [rest @ .., "error"] if *method == Method::PUT && !rest.is_empty() => (rest, true),
            all => (all, false),
        };
        let place = resource.place(segments)?;
        let not_allowed = || Refuse::new(405, ApiError::ClientError, "the method is not allowed here");
        let is_lookup = resource.name == "participants";
        let directory = self.service.directory();
        let parties = || check_headers(&request.headers, resource.name, method, &directory);
        let active = || {
            let parties = parties()?;
            if parties.source.active { Ok(parties) } else { Err(inactive()) }
        };
        match (method.as_str(), place) {
            ("POST", PathTail::Whole) if is_lookup => self.register_all(request, &active()?).await,
            ("POST", PathTail::Party(party)) if is_lookup => self.register(request, &active()?, &party).await,
            ("DELETE", PathTail::Party(party)) if is_lookup => self.remove(request, &active()?, &party).await,
            ("GET", PathTail::Party(party)) if is_lookup => self.look_up(request, &active()?, &party),
            ("POST", PathTail::Whole) => {
                let elements = resource.posted.ok_or_else(not_allowed)?;
                let parties = active()?;
                let body = bodies::check(&request.body, elements)?;
                let id = body[resource.id].as_str().unwrap_or_default();
                let path = format!("/{}/{id}", resource.name);
                self.pass_on(request, resource, &parties, &path, payee(&body).as_ref())
            }
            ("GET", PathTail::Party(party)) => {
                self.pass_on(request, resource, &active()?, &request.path, Some(&party))
            }
            ("GET", PathTail::One) => self.pass_on(request, resource, &active()?, &request.path, None),
            ("PUT", PathTail::One | PathTail::Party(_)) => {
                let parties = active()?;
                bodies::check(&request.body, if is_error { bodies::ERROR } else { resource.put })?;
                self.answer_on(request, resource, &parties)
            }
            _ => Err(not_allowed()),
        }
    }

    /// Passes a request on to its destination, or to the participant whose customer the party is.
    fn pass_on(
        &self,
        request: &Request,
        resource: Resource,
        parties: &Parties,
        path: &str,
        party: Option<&Party>,
    ) -> Answer {
        let sender = Sender {
            number: parties.source.number,
            path: format!("{path}/error"),
            resource: resource.name,
            special: resource.special,
        };
        let forwarder = self.service.forwarder();
        let refused = |error, text: &str| {
            forwarder.tell(sender.clone(), error, text);
            Ok(Response::empty(202))
        };
        let to = match (&parties.destination, parties.has_destination, party) {
            (Some(entry), ..) => entry.number,
            (None, true, _) => {
                return refused(ApiError::DestinationFspError, "FSPIOP-Destination is not a participant");
            }
            (None, false, Some(party)) => match self.owner(party, request)? {
                Some(number) => number,
                None => return refused(ApiError::PartyNotFound, ""),
            },
            (None, false, None) => {
                let text = "header FSPIOP-Destination is missing";
                return Err(Refuse::new(400, ApiError::MissingElement, text));
            }
        };
        let directory = self.service.directory();
        let Some(entry) = directory.by_number(to).filter(|entry| entry.active) else {
            let text = format!("{} is switched off", directory.name(to));
            return refused(ApiError::DestinationFspError, &text);
        };
        let mut headers = lines(request);
        if !parties.has_destination {
            headers.push_str(&format!("fspiop-destination: {}\r\n", entry.name));
        }
        let note = Note {
            method: if request.method == Method::POST { "POST" } else { "GET" },
            target: target(request),
            headers,
            body: request.body.clone(),
            special: resource.special,
            sender: Some(sender.clone()),
        };
        forwarder.send(to, note)?;
        Ok(Response::empty(202))
    }

    /// Passes an answer on to the participant that sent the request.
    fn answer_on(&self, request: &Request, resource: Resource, parties: &Parties) -> Answer {
        let Some(to) = &parties.destination else {
            let text = "FSPIOP-Destination is not a participant";
            return Err(Refuse::new(400, ApiError::DestinationFspError, text));
        };
        let note = Note {
            method: "PUT",
            target: target(request),
            headers: lines(request),
            body: request.body.clone(),
            special: resource.special,
            sender: None,
        };
        self.service.forwarder().send(to.number, note)?;
        Ok(Response::empty(200))
    }
}

fn inactive() -> Refuse {
    Refuse::new(403, ApiError::ClientError, "FSPIOP-Source is switched off")
}

/// Path and query as received.
fn target(request: &Request) -> String {
    match &request.raw_query {
        Some(query) => format!("{}?{query}", request.path),
        None => request.path.clone(),
    }
}

/// The payee of a quote, or the payer of a request to pay: the party whose participant gets the request.
fn payee(body: &Value) -> Option<Party> {
    let info = match body.get("transactionRequestId").filter(|_| body.get("quoteId").is_none()) {
        Some(_) => &body["payer"],
        None => &body["payee"]["partyIdInfo"],
    };
    let text = |name: &str| info[name].as_str();
    Some(Party::new(text("partyIdType")?, text("partyIdentifier")?, text("partySubIdOrType")))
}
