//! The participants' interface: transfers. A request is acknowledged once it is durably queued; its outcome
//! follows as a callback.

use std::sync::Arc;

use batzen_engine::SubmitError;
use batzen_http::{Head, HeaderMap, Method, Request, Response, Style, header};
use batzen_service::{Api, endpoint};
use serde::Deserialize;

use super::routed::Address;
use super::{OPERATIONS, Table, bulk, lookups, routed};
use crate::MAX_BODY_BYTES;
use crate::canonical;
use crate::directory::{Entry, Snapshot};
use crate::errors::ApiError;
use crate::messages::{self, ErrorBody, ErrorInformation, TransferState};
use crate::rules::transfers::{Party, Received};
use crate::rules::{Command, ErrorMessage, Fulfil, Get, Prepare};
use crate::service::Service;
use crate::values::{
    currency_number, is_base64url, is_hash_text, parse_amount, parse_hash, parse_time, parse_uuid,
};

/// The longest ILP packet, in characters.
pub(super) const PACKET_CHARACTERS_MAX: usize = 32_768;
/// Header fields passed on with a message.
const PASSED_ON: [&str; 11] = [
    "accept",
    "content-type",
    "date",
    messages::SOURCE,
    messages::DESTINATION,
    messages::SIGNATURE,
    messages::ENCRYPTION,
    "fspiop-uri",
    "fspiop-http-method",
    "traceparent",
    "tracestate",
];

/// A refusal sent at once.
#[derive(Debug)]
pub(super) struct Refuse {
    status: u16,
    error: ApiError,
    text: String,
}

impl Refuse {
    pub(super) fn new(status: u16, error: ApiError, text: impl Into<String>) -> Self {
        Self { status, error, text: text.into() }
    }

    pub(super) fn malformed(text: impl Into<String>) -> Self {
        Self::new(400, ApiError::MalformedSyntax, text)
    }

    pub(super) fn unknown_path() -> Self {
        Self::new(404, ApiError::UnknownUri, "")
    }
}

impl From<Refuse> for Response {
    fn from(refuse: Refuse) -> Self {
        let text = if refuse.text.is_empty() { refuse.error.text() } else { &refuse.text };
        let error_information = ErrorInformation {
            error_code: format!("{:04}", refuse.error.code()).into(),
            error_description: text.chars().take(128).collect::<String>().into(),
            extension_list: (refuse.error == ApiError::UnacceptableVersion).then(supported_versions),
        };
        let response = Self::json(refuse.status, &ErrorBody { error_information });
        if refuse.status == 503 { response.with_header(header::RETRY_AFTER, "1") } else { response }
    }
}

/// The supported versions: major and minor.
fn supported_versions() -> messages::ExtensionList<'static> {
    let version = |minor: &'static str| messages::Extension { key: "1".into(), value: minor.into() };
    messages::ExtensionList { extension: ["0", "1"].map(version).into() }
}

impl From<SubmitError> for Refuse {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Overloaded => Self::new(503, ApiError::ServerBusy, ""),
            SubmitError::Stopped | SubmitError::Store(_) => Self::new(503, ApiError::ServiceUnavailable, ""),
        }
    }
}

/// Parses a body as a message.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refuse> {
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        // Only the error's text names the cause.
        let kind = if text.starts_with("missing field") {
            ApiError::MissingElement
        } else if text.starts_with("unknown field") {
            ApiError::TooManyElements
        } else {
            ApiError::MalformedSyntax
        };
        Refuse::new(400, kind, text)
    })
}

/// The sender and the destination of a request.
pub(super) struct Parties {
    pub source: Arc<Entry>,
    pub destination: Option<Arc<Entry>>,
    /// Whether the header is present, even if it names no known participant.
    pub has_destination: bool,
}

impl Parties {
    /// The number of the destination; 0 if there is none.
    pub(super) fn destination_number(&self) -> u32 {
        self.destination.as_ref().map_or(0, |entry| entry.number)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Checks a media type and its version: `application/vnd.interoperability.RESOURCE+json;version=1.0` or 1.1.
/// In Accept, a major version alone or no version is allowed, too.
fn check_media(value: &str, resource: &str, is_accept: bool) -> Result<(), Refuse> {
    let mut parts = value.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let known = media
        .strip_prefix("application/vnd.interoperability.")
        .and_then(|rest| rest.strip_suffix("+json"))
        .is_some_and(|name| name.eq_ignore_ascii_case(resource));
    if !known {
        let (status, error) =
            if is_accept { (406, ApiError::UnacceptableVersion) } else { (400, ApiError::MalformedSyntax) };
        return Err(Refuse::new(status, error, format!("{media} is not the media type of {resource}")));
    }
    let version = parts.find_map(|part| part.strip_prefix("version=")).map(|v| v.trim_matches('"'));
    match version {
        Some("1.0" | "1.1") => Ok(()),
        Some("1") | None if is_accept => Ok(()),
        _ => Err(Refuse::new(406, ApiError::UnacceptableVersion, "versions 1.0 and 1.1 are spoken here")),
    }
}

/// The checks of headers that all requests share.
pub(super) fn check_headers(head: &Head, resource: &str, directory: &Snapshot) -> Result<Parties, Refuse> {
    let headers = &head.headers;
    let missing =
        |name: &str| Refuse::new(400, ApiError::MissingElement, format!("header {name} is missing"));
    let content_type = text(headers, "content-type").ok_or_else(|| missing("Content-Type"))?;
    check_media(content_type, resource, false)?;
    if matches!(head.method, Method::POST | Method::GET) {
        let accept = text(headers, "accept").ok_or_else(|| missing("Accept"))?;
        accept
            .split(',')
            .map(|one| check_media(one.trim(), resource, true))
            .find(Result::is_ok)
            .unwrap_or_else(|| {
                Err(Refuse::new(406, ApiError::UnacceptableVersion, "versions 1.0 and 1.1 are spoken here"))
            })?;
    }
    if !headers.contains_key("date") {
        return Err(missing("Date"));
    }
    let source = text(headers, messages::SOURCE).ok_or_else(|| missing("FSPIOP-Source"))?;
    let source = directory
        .by_name(source)
        .ok_or_else(|| Refuse::new(403, ApiError::ClientError, "FSPIOP-Source is not a participant"))?;
    let destination_name = text(headers, messages::DESTINATION);
    let destination = destination_name.and_then(|name| directory.by_name(name));
    Ok(Parties {
        source: Arc::clone(source),
        destination: destination.cloned(),
        has_destination: destination_name.is_some(),
    })
}

/// The same for a request whose sender must be switched on.
pub(super) fn active_parties(service: &Service, head: &Head, resource: &str) -> Result<Parties, Refuse> {
    let parties = check_headers(head, resource, &service.directory())?;
    if parties.source.active {
        Ok(parties)
    } else {
        Err(Refuse::new(403, ApiError::ClientError, "FSPIOP-Source is switched off"))
    }
}

/// The header lines to pass on. Accept belongs to requests, not to the callbacks that answer them.
pub(super) fn lines(request: &Request) -> String {
    let is_callback = request.method == Method::PUT;
    let mut lines = String::with_capacity(320);
    for name in PASSED_ON.into_iter().filter(|name| !is_callback || *name != "accept") {
        if let Some(value) = text(&request.headers, name) {
            for part in [name, ": ", value, "\r\n"] {
                lines.push_str(part);
            }
        }
    }
    lines
}

/// A message as it is recorded.
pub(super) fn received(request: &Request) -> Result<Received, Refuse> {
    let hash = canonical::hash(&request.body).ok_or_else(|| Refuse::malformed("the body is not JSON"))?;
    Ok(Received { headers: lines(request), body: request.body.to_vec(), hash })
}

pub(super) fn uuid(text: &str, what: &str) -> Result<u128, Refuse> {
    parse_uuid(text).ok_or_else(|| Refuse::malformed(format!("{what} is not a UUID in lower case")))
}

/// Amount and currency.
pub(super) fn money(money: &messages::Money<'_>) -> Result<(u32, u128), Refuse> {
    let currency = currency_number(&money.currency)
        .ok_or_else(|| Refuse::malformed("the currency is not three capital letters"))?;
    let amount = parse_amount(&money.amount).ok_or_else(|| Refuse::malformed("the amount is ill-formed"))?;
    Ok((currency, amount))
}

pub(super) fn check_packet(packet: &str) -> Result<(), Refuse> {
    if packet.is_empty() || packet.len() > PACKET_CHARACTERS_MAX || !is_base64url(packet) {
        return Err(Refuse::malformed("the ILP packet is not base64url of at most 32,768 characters"));
    }
    Ok(())
}

pub(super) fn check_condition(condition: &str) -> Result<(), Refuse> {
    if is_hash_text(condition) {
        Ok(())
    } else {
        Err(Refuse::malformed("the condition is not 43 characters of base64url"))
    }
}

pub(super) fn check_extensions(list: Option<&messages::ExtensionList<'_>>) -> Result<(), Refuse> {
    let Some(messages::ExtensionList { extension }) = list else { return Ok(()) };
    let fits = |text: &str, max: usize| !text.is_empty() && text.chars().count() <= max;
    if !(1..=16).contains(&extension.len()) {
        return Err(Refuse::new(400, ApiError::TooManyElements, "an extension list has 1 to 16 pairs"));
    }
    if extension.iter().all(|pair| fits(&pair.key, 32) && fits(&pair.value, 128)) {
        Ok(())
    } else {
        Err(Refuse::malformed("keys have 1 to 32 characters, values 1 to 128"))
    }
}

pub(super) fn time(text: &str, what: &str) -> Result<u64, Refuse> {
    parse_time(text)
        .ok_or_else(|| Refuse::malformed(format!("{what} is not a time with milliseconds and zone")))
}

pub(super) fn party(directory: &Snapshot, name: &str) -> Result<Party, Refuse> {
    if name.is_empty() || name.len() > 32 {
        return Err(Refuse::malformed("names of participants have 1 to 32 characters"));
    }
    let number = directory.by_name(name).map_or(0, |entry| entry.number);
    Ok(Party { name: name.to_owned(), number })
}

pub(super) type Answer = Result<Response, Refuse>;

/// The participants' interface.
pub(crate) fn api(service: Arc<Service>) -> Api<Service> {
    Api::new(service, table())
}

pub(crate) fn table() -> Table {
    let mut table = Table::new(Style::ByPath, &OPERATIONS)
        .with_get_limit(MAX_BODY_BYTES)
        .with_unrouted(unrouted)
        .reading_unrouted("other");
    for family in [transfers, bulk::routes, lookups::routes, routed::routes] {
        table = family(table);
    }
    table
}

fn transfers(table: Table) -> Table {
    table
        .post("/transfers", MAX_BODY_BYTES, "prepare", endpoint!(prepare))
        .put("/transfers/:id", MAX_BODY_BYTES, "fulfil", endpoint!(fulfil))
        .put("/transfers/:id/error", MAX_BODY_BYTES, "error", endpoint!(error))
        .get("/transfers/:id", "get", endpoint!(get))
}

/// The answer to a request that has no endpoint: its path is unknown or malformed, or its method is not allowed.
fn unrouted(_: &Service, head: &Head, _: Response) -> Response {
    let refuse = match check_path(head) {
        Ok(()) => Refuse::new(405, ApiError::ClientError, "the method is not allowed here"),
        Err(refuse) => refuse,
    };
    refuse.into()
}

fn check_path(head: &Head) -> Result<(), Refuse> {
    if !matches!(head.segment(0), "transfers" | "bulkTransfers") {
        return Address::of(head).map(|_| ());
    }
    match (head.segment_count(), head.segment(2)) {
        (1 | 2, _) | (3, "error") => Ok(()),
        _ => Err(Refuse::unknown_path()),
    }
}

/// Submits a command, which is answered with `status`.
pub(super) async fn run(service: &Service, status: u16, command: impl Into<Command>) -> Answer {
    match service.lane.submit(command).await? {
        Ok(_) => Ok(Response::empty(status)),
        Err(refusal) => Err(Refuse::new(500, ApiError::InternalServerError, refusal.to_string())),
    }
}

async fn prepare(service: &Service, request: &Request) -> Answer {
    let directory = service.directory();
    let parties = check_headers(request, "transfers", &directory)?;
    let body: messages::Prepare<'_> = parse(&request.body)?;
    let id = uuid(&body.transfer_id, "transferId")?;
    let (currency, amount) = money(&body.amount)?;
    check_packet(&body.ilp_packet)?;
    check_condition(&body.condition)?;
    check_extensions(body.extension_list.as_ref())?;
    let prepare = Prepare {
        id,
        source: parties.source.number,
        payer: party(&directory, &body.payer_fsp)?,
        payee: party(&directory, &body.payee_fsp)?,
        currency,
        amount,
        condition: parse_hash(&body.condition),
        expiration: time(&body.expiration, "expiration")?,
        message: received(request)?,
        bulk: None,
    };
    run(service, 202, prepare).await
}

async fn fulfil(service: &Service, request: &Request) -> Answer {
    let parties = check_headers(request, "transfers", &service.directory())?;
    let id = uuid(request.param("id"), "the transfer's id")?;
    let body: messages::Fulfil<'_> = parse(&request.body)?;
    let reserved = match body.transfer_state {
        TransferState::Committed => false,
        TransferState::Reserved => true,
        _ => return Err(Refuse::malformed("transferState is COMMITTED or RESERVED here")),
    };
    let fulfilment = body
        .fulfilment
        .as_deref()
        .ok_or_else(|| Refuse::new(400, ApiError::MissingElement, "the fulfilment is missing"))?;
    if !is_hash_text(fulfilment) {
        return Err(Refuse::malformed("the fulfilment is not 43 characters of base64url"));
    }
    if let Some(completed) = &body.completed_timestamp {
        time(completed, "completedTimestamp")?;
    }
    check_extensions(body.extension_list.as_ref())?;
    let fulfil = Fulfil {
        id,
        source: parties.source.number,
        destination: parties.destination_number(),
        fulfilment: parse_hash(fulfilment),
        reserved,
        message: received(request)?,
    };
    run(service, 200, fulfil).await
}

async fn error(service: &Service, request: &Request) -> Answer {
    let parties = check_headers(request, "transfers", &service.directory())?;
    let error = error_message(request, uuid(request.param("id"), "the transfer's id")?, &parties)?;
    run(service, 200, error).await
}

async fn get(service: &Service, request: &Request) -> Answer {
    let id = uuid(request.param("id"), "the transfer's id")?;
    let source = check_headers(request, "transfers", &service.directory())?.source.number;
    run(service, 202, Get { id, source }).await
}

/// `PUT .../error` of a transfer or bulk transfer.
pub(super) fn error_message(request: &Request, id: u128, parties: &Parties) -> Result<ErrorMessage, Refuse> {
    let ErrorBody { error_information: error } = parse(&request.body)?;
    let (code, text) = error_information(error)?;
    let (source, destination) = (parties.source.number, parties.destination_number());
    Ok(ErrorMessage { id, source, destination, code, text, message: received(request)? })
}

/// Code and description of an error.
pub(super) fn error_information(error_information: ErrorInformation<'_>) -> Result<(u16, String), Refuse> {
    let code = error_information.error_code;
    let digits = code.len() == 4 && code.bytes().all(|b| b.is_ascii_digit());
    let number: Option<u16> = if digits { code.parse().ok() } else { None };
    let number =
        number.filter(|n| *n >= 1000).ok_or_else(|| Refuse::malformed("errorCode is not four digits"))?;
    let text = error_information.error_description;
    if text.is_empty() || text.chars().count() > 128 {
        return Err(Refuse::malformed("errorDescription has 1 to 128 characters"));
    }
    check_extensions(error_information.extension_list.as_ref())?;
    Ok((number, text.into_owned()))
}
