//! The route table of a service. A row has an endpoint's pattern, the limit of its body, its name in the metrics, and
//! its handler.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use batzen_engine::Continued;
use batzen_http::{Admission, Handler, Head, Method, Reach, Request, Response, Routes, Style};
use batzen_protocol::limits::NO_BODY_BYTES_MAX;
use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::App;
use crate::operations::Running;

/// A handler's result: an answer, or a refusal, which is an answer too.
pub type Answer = Result<Response, Response>;
/// A value, or the answer to a request that is refused.
pub type Checked<T> = Result<T, Response>;

/// A handler in the form that a table stores, as [`endpoint!`](crate::endpoint) makes it.
pub type Endpoint<A> = for<'a> fn(&'a Arc<A>, &'a mut Request) -> BoxFuture<'a, Response>;

/// Makes a table entry of a handler, which is `async fn name(app: &App, request: &Request) -> Response`. It may take
/// `&Arc<App>` to run part of its work elsewhere, and `&mut Request` to leave its slot while it waits, and return an
/// [`Answer`](crate::Answer).
#[macro_export]
macro_rules! endpoint {
    ($handler:path) => {
        |app, request| {
            Box::pin(async move { $crate::IntoResponse::into_response($handler(app, request).await) })
        }
    };
}

/// The return types of handlers.
pub trait IntoResponse {
    /// The answer to send.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl<R: Into<Response>> IntoResponse for Result<Response, R> {
    fn into_response(self) -> Response {
        self.unwrap_or_else(Into::into)
    }
}

/// An endpoint.
pub struct Row<A> {
    endpoint: Endpoint<A>,
    body_bytes_max: usize,
    reach: Reach,
    /// Index of the name under which requests are counted.
    operation: Option<usize>,
}

impl<A> Clone for Row<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Row<A> {}

impl<A> fmt::Debug for Row<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl<A> Row<A> {
    /// Index of the name under which requests are counted, if they are.
    #[must_use]
    pub fn operation(&self) -> Option<usize> {
        self.operation
    }

    /// The pages in browsers that may use it.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Runs the handler.
    pub fn call<'a>(&self, app: &'a Arc<A>, request: &'a mut Request) -> BoxFuture<'a, Response> {
        (self.endpoint)(app, request)
    }
}

/// Rewrites the answer to a request that has no endpoint.
pub(crate) type Unrouted<A> = fn(&A, &Head, Response) -> Response;

/// The endpoints of a service.
#[derive(Debug)]
pub struct Table<A> {
    routes: Routes<Row<A>>,
    operations: &'static [&'static str],
    get_bytes_max: usize,
    reach: Reach,
    listed: Vec<(Method, String, usize, Reach)>,
    unrouted: Unrouted<A>,
    /// Index of the name under which requests without an endpoint are counted.
    unrouted_operation: Option<usize>,
    reads_unrouted: bool,
}

impl<A> Table<A> {
    /// An empty table. `operations` are the names under which requests are counted, the same as those of the
    /// [`Monitor`](crate::Monitor); with none, requests are not counted.
    #[must_use]
    pub fn new(style: Style, operations: &'static [&'static str]) -> Self {
        Self {
            routes: Routes::new(style),
            operations,
            get_bytes_max: NO_BODY_BYTES_MAX,
            reach: Reach::default(),
            listed: Vec::new(),
            unrouted: |_, _, response| response,
            unrouted_operation: None,
            reads_unrouted: false,
        }
    }

    /// Sets the answer to requests that have no endpoint.
    #[must_use]
    pub fn with_unrouted(self, unrouted: Unrouted<A>) -> Self {
        Self { unrouted, ..self }
    }

    /// Reads the bodies of requests that have no endpoint, and counts these requests under `operation`. Otherwise they
    /// are refused before the body, and not counted.
    #[must_use]
    pub fn reading_unrouted(self, operation: &str) -> Self {
        Self { unrouted_operation: self.operation("unrouted", operation), reads_unrouted: true, ..self }
    }

    /// Sets the limit for the bodies of the `GET` endpoints that follow, in bytes.
    #[must_use]
    pub fn with_get_limit(self, get_bytes_max: usize) -> Self {
        Self { get_bytes_max, ..self }
    }

    /// Adds rows with this reach. Other rows are for programs and the service's own pages ([`Reach::Own`]).
    #[must_use]
    pub fn reaching(self, reach: Reach, rows: impl FnOnce(Self) -> Self) -> Self {
        let before = self.reach;
        Self { reach: before, ..rows(Self { reach, ..self }) }
    }

    /// Adds a `GET` endpoint, which answers `HEAD` as well. A pattern is like `/coins/:coin_pub/link`;
    /// [`Request::param`] reads its parameters.
    #[must_use]
    pub fn get(self, pattern: &str, operation: &str, endpoint: Endpoint<A>) -> Self {
        let limit = self.get_bytes_max;
        self.route(Method::GET, pattern, limit, operation, endpoint)
    }

    /// Adds a `POST` endpoint whose body has at most `body_bytes_max` bytes, compressed and decompressed.
    #[must_use]
    pub fn post(self, pattern: &str, body_bytes_max: usize, operation: &str, endpoint: Endpoint<A>) -> Self {
        self.route(Method::POST, pattern, body_bytes_max, operation, endpoint)
    }

    /// Adds a `PUT` endpoint.
    #[must_use]
    pub fn put(self, pattern: &str, body_bytes_max: usize, operation: &str, endpoint: Endpoint<A>) -> Self {
        self.route(Method::PUT, pattern, body_bytes_max, operation, endpoint)
    }

    /// Adds a `PATCH` endpoint.
    #[must_use]
    pub fn patch(self, pattern: &str, body_bytes_max: usize, operation: &str, endpoint: Endpoint<A>) -> Self {
        self.route(Method::PATCH, pattern, body_bytes_max, operation, endpoint)
    }

    /// Adds a `DELETE` endpoint.
    #[must_use]
    pub fn delete(
        self,
        pattern: &str,
        body_bytes_max: usize,
        operation: &str,
        endpoint: Endpoint<A>,
    ) -> Self {
        self.route(Method::DELETE, pattern, body_bytes_max, operation, endpoint)
    }

    fn route(
        mut self,
        method: Method,
        pattern: &str,
        body_bytes_max: usize,
        operation: &str,
        endpoint: Endpoint<A>,
    ) -> Self {
        let operation = self.operation(pattern, operation);
        self.listed.push((method.clone(), pattern.to_owned(), body_bytes_max, self.reach));
        let row = Row { endpoint, body_bytes_max, reach: self.reach, operation };
        self.routes = self.routes.route(method, pattern, row);
        self
    }

    /// Index of an operation's name; none if requests are not counted.
    fn operation(&self, pattern: &str, operation: &str) -> Option<usize> {
        let place = self.operations.iter().position(|name| *name == operation);
        assert!(
            place.is_some() || self.operations.is_empty(),
            "{pattern}: no operation is called {operation}"
        );
        place
    }

    /// Method, pattern, body limit and reach of every endpoint, for documents.
    #[must_use]
    pub fn listed(&self) -> &[(Method, String, usize, Reach)] {
        &self.listed
    }

    /// Method and pattern of every endpoint, such as `GET /coins/:coin_pub/link`, and its reach.
    #[must_use]
    pub fn endpoints(&self) -> Vec<(String, Reach)> {
        self.listed
            .iter()
            .map(|(method, pattern, _, reach)| (format!("{method} {pattern}"), *reach))
            .collect()
    }
}

/// The HTTP handler of a service. Clones share everything.
#[derive(Debug)]
pub struct Api<A> {
    app: Arc<A>,
    table: Arc<Table<A>>,
}

impl<A> Clone for Api<A> {
    fn clone(&self) -> Self {
        Self { app: Arc::clone(&self.app), table: Arc::clone(&self.table) }
    }
}

impl<A: App> Api<A> {
    /// The handler of a service with these endpoints.
    #[must_use]
    pub fn new(app: Arc<A>, table: Table<A>) -> Self {
        Self { app, table: Arc::new(table) }
    }

    /// Answers a request, and counts it under its operation.
    pub async fn answer(&self, mut request: Request) -> Response {
        let row = match self.table.routes.dispatch(&mut request) {
            Ok(row) => *row,
            Err(response) => return self.unrouted(&request.head, response),
        };
        let running = self.begin(row.operation);
        let response = self.app.run(row, &mut request).await;
        if let Some(running) = running {
            running.end(response.status);
        }
        response
    }

    fn unrouted(&self, head: &Head, response: Response) -> Response {
        let running = self.begin(self.table.unrouted_operation);
        let response = (self.table.unrouted)(&self.app, head, response);
        if let Some(running) = running {
            running.end(response.status);
        }
        response
    }

    fn begin(&self, operation: Option<usize>) -> Option<Running<'_>> {
        operation.map(|operation| self.app.monitor().operations().begin(operation))
    }
}

impl<A: App> Handler for Api<A> {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send {
        let api = self.clone();
        Continued::new(async move { api.answer(request).await }.in_current_span())
    }

    /// Refuses bodies above the endpoint's limit before they are read, and unknown endpoints unless the table reads them.
    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        if head.method == Method::OPTIONS
            && let Some(reach) = self.table.routes.asked_for(head).map(|row| row.reach).min()
        {
            return Ok(Admission { reach, ..Admission::default() });
        }
        match self.table.routes.endpoint(head) {
            Ok(row) => Ok(Admission::limited(row.body_bytes_max, row.reach)),
            Err(_) if self.table.reads_unrouted => {
                Ok(Admission { reach: Reach::Page, ..Admission::default() })
            }
            Err(response) => Err(self.unrouted(head, response)),
        }
    }

    fn serves_everyone(&self) -> bool {
        self.table.listed.iter().any(|(.., reach)| *reach == Reach::Everyone)
    }

    fn logs_given_correlation_id(&self, head: &Head) -> bool {
        self.app.logs_given_correlation_id(head)
    }
}
