//! The HTTP interface: one file per family of endpoints, each of which adds its own rows to the table below.
//!
//! A handler is `async fn name(app: &Exchange, request: &Request) -> Response`. It may take `&mut Request` to
//! give up its slot while it waits, and `&Arc<Exchange>` to run part of its work on another thread. Path
//! parameters are read with [`Request::segment`](batzen_http::Head::segment): segment 0 is the family.

use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use batzen_engine::{Continued, SubmitError};
use batzen_http::{Admission, Handler, Head, Method, Request, Response, Routes, Style, header};
use batzen_protocol::api::field_error;
use batzen_protocol::limits::NO_BODY_BYTES_MAX;
use batzen_protocol::{Amount, AmountError, ErrorCode, Money, ParseError, parse_body};
use batzen_store::StoreError;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tracing::Instrument;

use crate::app::Exchange;
use crate::metrics::{RequestClass, RequestKind};

mod accounts;
mod auditors;
mod check;
mod csr;
mod deposit;

mod histories;
mod keys;
mod kyc;
mod liabilities;
mod management;
mod melt;
mod purses;
mod recoup;
mod refreshes;
mod refund;
mod reserves;
mod response;
mod root;
mod signed_keys;
mod signing;
mod terms;
mod text;
mod tracking;
mod wire;
mod withdraw;

pub(crate) use kyc::Pages as KycPages;
pub(crate) use liabilities::LastEpoch;
pub(crate) use terms::{BUILT_IN_PRIVACY, BUILT_IN_TERMS};

/// Bodies up to this size are decoded on the thread that serves the request.
const INLINE_BODY_BYTES_MAX: usize = 32 << 10;
/// How many larger bodies may be decoded at the same time.
const LARGE_BODY_READERS: usize = 2;

/// The answer of a handler, boxed.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// A handler in the form that the table stores.
pub type Endpoint = for<'a> fn(&'a Arc<Exchange>, &'a mut Request) -> Answer<'a>;

/// One row of the table: handler, body limit, and the name under which requests are counted.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    endpoint: Endpoint,
    body_bytes_max: usize,
    class: RequestClass,
    operation: RequestKind,
}

/// The table under construction.
pub struct Table {
    routes: Routes<Entry>,
    /// Method, pattern and body limit of every endpoint, as `docs/limits.md` lists them.
    #[cfg(test)]
    listed: Vec<(Method, String, usize)>,
}

impl Table {
    /// Adds a `GET` endpoint (which answers `HEAD` as well). `pattern` is like `/coins/:coin_pub/link`.
    #[must_use]
    pub fn get(self, pattern: &str, endpoint: Endpoint) -> Self {
        self.route(Method::GET, pattern, NO_BODY_BYTES_MAX, RequestClass::Other, endpoint)
    }

    /// Adds a `POST` endpoint whose body has at most `body_bytes_max` bytes.
    #[must_use]
    pub fn post(self, pattern: &str, body_bytes_max: usize, endpoint: Endpoint) -> Self {
        self.post_as(RequestClass::Other, pattern, body_bytes_max, endpoint)
    }

    /// Adds a `POST` endpoint that is counted under its own name.
    #[must_use]
    pub fn post_as(
        self,
        class: RequestClass,
        pattern: &str,
        body_bytes_max: usize,
        endpoint: Endpoint,
    ) -> Self {
        self.route(Method::POST, pattern, body_bytes_max, class, endpoint)
    }

    /// Adds a `DELETE` endpoint whose body has at most `body_bytes_max` bytes.
    #[must_use]
    pub fn delete(self, pattern: &str, body_bytes_max: usize, endpoint: Endpoint) -> Self {
        self.route(Method::DELETE, pattern, body_bytes_max, RequestClass::Other, endpoint)
    }

    fn route(
        mut self,
        method: Method,
        pattern: &str,
        body_bytes_max: usize,
        class: RequestClass,
        endpoint: Endpoint,
    ) -> Self {
        #[cfg(test)]
        self.listed.push((method.clone(), pattern.to_owned(), body_bytes_max));
        let entry = Entry { endpoint, body_bytes_max, class, operation: RequestKind::of_pattern(pattern) };
        self.routes = self.routes.route(method, pattern, entry);
        self
    }
}

/// Makes a table entry of a handler function.
macro_rules! endpoint {
    ($handler:path) => {
        |app, request| {
            Box::pin(async move { $crate::api::IntoResponse::into_response($handler(app, request).await) })
        }
    };
}
pub(crate) use endpoint;

/// The return types of handlers: an answer, or a `Result` whose error is an answer too.
pub(crate) trait IntoResponse {
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for Result<Response, Response> {
    fn into_response(self) -> Response {
        self.unwrap_or_else(|refused| refused)
    }
}

/// All endpoints.
fn table(with_dashboard: bool, with_liabilities: bool) -> Table {
    let mut table = Table {
        routes: Routes::new(Style::ByFirstSegment),
        #[cfg(test)]
        listed: Vec::new(),
    };
    for family in [
        root::routes,
        terms::routes,
        keys::routes,
        wire::routes,
        management::routes,
        auditors::routes,
        reserves::routes,
        withdraw::routes,
        csr::routes,
        deposit::routes,
        refund::routes,
        melt::routes,
        refreshes::routes,
        recoup::routes,
        purses::routes,
        accounts::routes,
        tracking::routes,
        kyc::routes,
    ] {
        table = family(table);
    }
    if with_dashboard {
        table = root::dashboard_route(table);
    }
    if with_liabilities {
        table = liabilities::routes(table);
    }
    table
}

/// The service's HTTP handler. Clones share everything.
#[derive(Clone)]
pub struct Api {
    app: Arc<Exchange>,
    routes: Arc<Routes<Entry>>,
}

impl Api {
    /// The interface of this exchange.
    pub fn new(app: Arc<Exchange>) -> Self {
        let config = &app.core.config;
        let routes = Arc::new(table(config.dashboard, config.liabilities.is_some()).routes);
        Self { app, routes }
    }

    /// Answers one request.
    pub async fn answer(&self, mut request: Request) -> Response {
        let entry = match self.routes.endpoint(&request.head) {
            Ok(entry) => *entry,
            Err(response) => {
                self.app.core.metrics.received(RequestClass::Other);
                return response;
            }
        };
        self.app.core.metrics.received(entry.class);
        let running = self.app.core.metrics.operations.begin(entry.operation as usize);
        let seen = self.app.keys_version();
        let mut response = (entry.endpoint)(&self.app, &mut request).await;
        // Do not refuse a request as unknown, not eligible or conflicting because of a stale key state:
        // another process may have changed the key set. (The key state may have been refreshed in the
        // meantime. Requests that waited long for their answer do not wait again.)
        if matches!(response.status, 404 | 410 | 412 | 500)
            && request.has_slot()
            && self.app.has_newer_key_set(seen).await.unwrap_or(false)
        {
            response = (entry.endpoint)(&self.app, &mut request).await;
        }
        running.end(response.status);
        self.app.served();
        response
    }
}

impl Handler for Api {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send {
        let api = self.clone();
        Continued::new(async move { api.answer(request).await }.in_current_span())
    }

    /// Only for requests of merchants and operators, and for public documents. If a client sent the same id with
    /// a withdrawal and a payment, or with a melt and a payment, a log with both would link them.
    fn logs_given_correlation_id(&self, head: &Head) -> bool {
        match head.segment(0) {
            "coins" => matches!(head.segment(2), "deposit" | "refund"),
            "batch-deposit" | "deposits" | "transfers" | "management" | "keys" | "config" | "wire"
            | "terms" | "privacy" => true,
            _ => false,
        }
    }

    /// Refuses unknown endpoints and bodies above the endpoint's limit before the body is read.
    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        match self.routes.endpoint(head) {
            Ok(entry) => Ok(Admission::limited(entry.body_bytes_max)),
            Err(response) => {
                self.app.core.metrics.received(RequestClass::Other);
                Err(response)
            }
        }
    }
}

/// An error answer with the code's own status.
pub fn error(code: ErrorCode, detail: &str) -> Response {
    Response::error(code, detail)
}

/// An error answer with a status other than the code's own.
pub fn error_status(code: ErrorCode, status: u16, detail: &str) -> Response {
    Response::error_status(code, status, detail)
}

/// Reads a request's body.
///
/// # Errors
/// The answer to give: 400, code 22, with what is wrong and where.
pub fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
    parse_body(&request.body).map_err(|error| malformed(&error))
}

/// Reads a body that may have many elements. A large one takes milliseconds to decode, so it is decoded off
/// the threads that serve requests, and only a few at a time.
///
/// # Errors
/// As [`body`].
pub async fn large_body<T: DeserializeOwned + Send + 'static>(request: &Request) -> Result<T, Response> {
    static READERS: Semaphore = Semaphore::const_new(LARGE_BODY_READERS);
    if request.body.len() <= INLINE_BODY_BYTES_MAX {
        return body(request);
    }
    let _turn = READERS.acquire().await.expect("never closed");
    let bytes = request.body.clone();
    let read = tokio::task::spawn_blocking(move || parse_body(&bytes)).await;
    read.expect("reading a body does not panic").map_err(|error| malformed(&error))
}

/// The answer to a body that cannot be read.
pub fn malformed(error: &ParseError) -> Response {
    Response::json(400, &error.to_error_body())
}

/// The amount of a member of body `T`, which must be in the exchange's currency.
///
/// # Errors
/// The answer to give: 400, code 22, naming the member.
pub fn money<T: DeserializeOwned>(app: &Exchange, amount: &Amount, field: &str) -> Result<Money, Response> {
    in_currency(app, amount).map_err(|error| malformed(&field_error::<T>(field, error.to_string())))
}

/// The quantity of an amount in the exchange's currency, spelt exactly as configured. The bytes of the name
/// are signed, but only the quantity is stored, so a history could not repeat another spelling.
///
/// # Errors
/// Another currency, or another spelling of ours.
pub fn in_currency(app: &Exchange, amount: &Amount) -> Result<Money, AmountError> {
    if amount.currency.padded() == app.core.config.currency.padded() {
        Ok(amount.money)
    } else {
        Err(AmountError::CurrencyMismatch)
    }
}

/// A value in base32 at a place in the path.
///
/// # Errors
/// The answer to give: 400 with `code`.
pub fn path_value<T: FromStr>(request: &Request, index: usize, code: ErrorCode) -> Result<T, Response> {
    let text = request.segment(index);
    text.parse().map_err(|_| error(code, text))
}

/// The answer when no decision was made on a command.
pub fn submit_error(failure: &SubmitError) -> Response {
    match failure {
        SubmitError::Overloaded => overloaded(),
        SubmitError::Stopped => error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, "ending")
            .with_header(header::RETRY_AFTER, "1"),
        SubmitError::Store(failure) => store_error(failure),
    }
}

/// The answer when the store failed.
pub fn store_error(failure: &StoreError) -> Response {
    tracing::error!(error = %failure, "store failed");
    match failure {
        // A retry may succeed, and will find out whether this attempt took effect.
        StoreError::Unavailable(_) | StoreError::Stale { .. } => {
            error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, "unavailable")
                .with_header(header::RETRY_AFTER, "1")
        }
        StoreError::Full(_) => error(ErrorCode::GENERIC_DB_STORE_FAILED, "no space left"),
        StoreError::Corrupt { .. } => error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, ""),
        _ => error(ErrorCode::GENERIC_DB_COMMIT_FAILED, ""),
    }
}

/// The answer when the queue is full.
pub fn overloaded() -> Response {
    error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, "busy").with_header(header::RETRY_AFTER, "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the exchange's table in the documentation: endpoint and limit in KiB.
    fn documented() -> Vec<(String, usize)> {
        let page = include_str!("../../../../../docs/limits.md");
        let (_, section) = page.split_once("## Exchange").expect("a section of the exchange");
        let section = section.split("\n## ").next().unwrap_or(section);
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| {
            let (endpoint, rest) = row.split_once("` | ").expect("the endpoint ends");
            let (limit, _) = rest.split_once(" KiB |").expect("the limit comes next");
            (endpoint.to_owned(), limit.parse::<usize>().unwrap())
        })
        .collect()
    }

    #[test]
    fn the_documentation_lists_every_endpoint_with_its_limit() {
        let listed = table(true, true).listed;
        let mut expected: Vec<_> = listed
            .into_iter()
            .map(|(method, pattern, bytes)| {
                assert!(bytes.is_multiple_of(1 << 10), "{pattern}");
                (format!("{method} {pattern}"), bytes >> 10)
            })
            .collect();
        let mut documented = documented();
        expected.sort();
        documented.sort();
        assert_eq!(documented, expected);
    }
}
