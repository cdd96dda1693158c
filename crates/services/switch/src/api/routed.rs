//! Messages that precede a transfer: lookups of parties, quotes, requests to pay. The switch checks the
//! format, acknowledges, and passes the message on unchanged; it keeps no record of it.

use batzen_http::{Head, Method, Request, Response};
use batzen_service::endpoint;
use serde_json::Value;

use super::Table;
use super::bodies::{self, Element, PARTY_ID_TYPES};
use super::lookups::{Party, owner};
use super::participant::{Answer, Parties, Refuse, active_parties, lines, uuid};
use crate::MAX_BODY_BYTES;
use crate::errors::ApiError;
use crate::forwarding::{Note, QueueFull, Sender};
use crate::service::Service;

/// The resource whose requests the switch answers itself.
pub(super) const LOOKUPS: &str = "participants";

/// A resource whose messages are passed on.
#[derive(Clone, Copy, Debug)]
struct Resource {
    /// Its name in the path and in the media type.
    name: &'static str,
    /// The special kind of callback address.
    special: &'static str,
    /// The element of a POST that contains its id.
    id: &'static str,
    /// The required elements of a POST; without any, the resource cannot be posted.
    posted: &'static [Element],
    /// The required elements of a PUT.
    put: &'static [Element],
}

const RESOURCES: [Resource; 7] = [
    Resource { name: "parties", special: "PARTIES", id: "", posted: &[], put: bodies::PARTY_RESULT },
    Resource { name: LOOKUPS, special: "PARTICIPANTS", id: "", posted: &[], put: bodies::PARTICIPANT_RESULT },
    Resource {
        name: "quotes",
        special: "QUOTES",
        id: "quoteId",
        posted: bodies::QUOTE,
        put: bodies::QUOTE_RESULT,
    },
    Resource {
        name: "bulkQuotes",
        special: "BULK_QUOTES",
        id: "bulkQuoteId",
        posted: bodies::BULK_QUOTE,
        put: bodies::BULK_QUOTE_RESULT,
    },
    Resource {
        name: "transactionRequests",
        special: "TRANSACTION_REQUESTS",
        id: "transactionRequestId",
        posted: bodies::TRANSACTION_REQUEST,
        put: bodies::TRANSACTION_REQUEST_RESULT,
    },
    Resource {
        name: "authorizations",
        special: "AUTHORIZATIONS",
        id: "",
        posted: &[],
        put: bodies::AUTHORIZATION_RESULT,
    },
    Resource {
        name: "transactions",
        special: "TRANSACTIONS",
        id: "",
        posted: &[],
        put: bodies::TRANSACTION_RESULT,
    },
];

/// Resources of the interface that this switch does not support.
const UNSUPPORTED: [&str; 7] =
    ["fxQuotes", "fxTransfers", "services", "consents", "consentRequests", "thirdpartyRequests", "linking"];

/// The rows of all resources. The switch answers the other requests of [`LOOKUPS`] itself.
pub(super) fn routes(mut table: Table) -> Table {
    for resource in &RESOURCES {
        let (name, is_lookup) = (resource.name, resource.name == LOOKUPS);
        let operation = if is_lookup { "lookup" } else { "route" };
        if !resource.posted.is_empty() {
            table = table.post(&format!("/{name}"), MAX_BODY_BYTES, operation, endpoint!(post));
        }
        let items: &[&str] =
            if resource.is_of_parties() { &[":type/:id", ":type/:id/:sub"] } else { &[":id"] };
        for item in items {
            let path = format!("/{name}/{item}");
            if !is_lookup {
                table = table.get(&path, operation, endpoint!(get));
            }
            table = table.put(&path, MAX_BODY_BYTES, operation, endpoint!(put)).put(
                &format!("{path}/error"),
                MAX_BODY_BYTES,
                operation,
                endpoint!(put),
            );
        }
    }
    table
}

impl Resource {
    /// The resource of a path.
    fn of(name: &str) -> Result<Self, Refuse> {
        if UNSUPPORTED.contains(&name) {
            let text = format!("/{name} is not served by this switch");
            return Err(Refuse::new(501, ApiError::NotImplemented, text));
        }
        let found = RESOURCES.iter().find(|resource| resource.name == name);
        found.copied().ok_or_else(Refuse::unknown_path)
    }

    fn is_of_parties(&self) -> bool {
        matches!(self.name, "parties" | "participants")
    }

    /// The party that the segments after the resource's name stand for, without `error`. None for the resource itself,
    /// and for an item with a UUID.
    fn party(&self, segments: &[&str]) -> Result<Option<Party>, Refuse> {
        match segments {
            [] => Ok(None),
            [kind, id, sub @ ..] if self.is_of_parties() && sub.len() <= 1 => {
                if !PARTY_ID_TYPES.contains(kind) {
                    return Err(Refuse::malformed(format!("{kind} is not a type of identifiers")));
                }
                let sub = sub.first().copied();
                let fits = |text: &str| (1..=128).contains(&text.chars().count());
                if !fits(id) || !sub.is_none_or(fits) {
                    return Err(Refuse::malformed("identifiers have 1 to 128 characters"));
                }
                Ok(Some(Party::new(kind, id, sub)))
            }
            [id] if !self.is_of_parties() => uuid(id, "the id").map(|_| None),
            _ => Err(Refuse::unknown_path()),
        }
    }
}

/// The subject of a request.
pub(super) struct Address {
    resource: Resource,
    /// The party that the path names.
    pub party: Option<Party>,
    /// Whether the request answers with an error.
    is_error: bool,
}

impl Address {
    /// Parses a path.
    pub(super) fn of(head: &Head) -> Result<Self, Refuse> {
        let resource = Resource::of(head.segment(0))?;
        let segments: Vec<&str> = head.segments().skip(1).collect();
        let (segments, is_error) = match segments.as_slice() {
            [rest @ .., "error"] if head.method == Method::PUT && !rest.is_empty() => (rest, true),
            all => (all, false),
        };
        Ok(Self { resource, party: resource.party(segments)?, is_error })
    }
}

impl From<QueueFull> for Refuse {
    fn from(_: QueueFull) -> Self {
        Self::new(503, ApiError::ServerBusy, "too many messages wait for this destination")
    }
}

async fn post(service: &Service, request: &Request) -> Answer {
    let resource = Address::of(request)?.resource;
    let parties = active_parties(service, request, resource.name)?;
    let body = bodies::check(&request.body, resource.posted)?;
    let id = body[resource.id].as_str().unwrap_or_default();
    let path = format!("/{}/{id}", resource.name);
    pass_on(service, request, resource, &parties, &path, payee(&body).as_ref())
}

async fn get(service: &Service, request: &Request) -> Answer {
    let Address { resource, party, .. } = Address::of(request)?;
    let parties = active_parties(service, request, resource.name)?;
    pass_on(service, request, resource, &parties, &request.path, party.as_ref())
}

async fn put(service: &Service, request: &Request) -> Answer {
    let Address { resource, is_error, .. } = Address::of(request)?;
    let parties = active_parties(service, request, resource.name)?;
    bodies::check(&request.body, if is_error { bodies::ERROR } else { resource.put })?;
    answer_on(service, request, resource, &parties)
}

/// Passes a request on to its destination, or to the participant whose customer the party is.
fn pass_on(
    service: &Service,
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
    let forwarder = &service.forwarder;
    let refused = |error, text: &str| {
        forwarder.tell(sender.clone(), error, text);
        Ok(Response::empty(202))
    };
    let to = match (&parties.destination, parties.has_destination, party) {
        (Some(entry), ..) => entry.number,
        (None, true, _) => {
            return refused(ApiError::DestinationFspError, "FSPIOP-Destination is not a participant");
        }
        (None, false, Some(party)) => match owner(service, party, request)? {
            Some(number) => number,
            None => return refused(ApiError::PartyNotFound, ""),
        },
        (None, false, None) => {
            let text = "header FSPIOP-Destination is missing";
            return Err(Refuse::new(400, ApiError::MissingElement, text));
        }
    };
    let directory = service.directory();
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
fn answer_on(service: &Service, request: &Request, resource: Resource, parties: &Parties) -> Answer {
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
    service.forwarder.send(to.number, note)?;
    Ok(Response::empty(200))
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
