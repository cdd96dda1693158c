//! The HTTP interface of a ledger: JSON, the event stream, metrics, the OpenAPI document.
//! `docs/ledger-api.md` describes it.

mod endpoints;
mod events;
mod openapi;

use std::sync::Arc;
use std::time::SystemTime;

use batzen_http::{
    Admission, Checks, Handler, Head, Method, MetricsPage, Operations, Readiness, Request, Response, Routes,
    Stats, Style, header, health,
};
use batzen_ledger::{Ledger, LedgerError};
use batzen_metrics::Page;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

pub use openapi::document;

/// Largest body, in bytes: a full batch of transfers with every member.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Most concurrent waiting readers of the event stream.
const WAITERS_MAX: usize = 256;

/// A response, successful or not. Both are sent.
type Answer = Result<Response, Response>;

/// Writes the metrics of the ledger and of the binary server.
pub type WriteMetrics = Arc<dyn Fn(&mut Page) + Send + Sync>;

/// Checks that the ledger's store can be written. It may block.
pub type StoreCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Home,
    Metrics,
    Health,
    Ready,
    Dashboard,
    OpenApi,
    CreateAccounts,
    CreateTransfers,
    LookupAccounts,
    LookupTransfers,
    Account,
    Transfer,
    AccountTransfers,
    AccountBalances,
    QueryAccounts,
    QueryTransfers,
    Events,
}

/// Values of the label `operation`.
const OPERATIONS: [&str; 6] = ["create_accounts", "create_transfers", "lookup", "query", "events", "other"];

impl Endpoint {
    /// The endpoint's index in [`OPERATIONS`].
    const fn operation(self) -> usize {
        match self {
            Self::CreateAccounts => 0,
            Self::CreateTransfers => 1,
            Self::LookupAccounts | Self::LookupTransfers | Self::Account | Self::Transfer => 2,
            Self::AccountTransfers | Self::AccountBalances | Self::QueryAccounts | Self::QueryTransfers => 3,
            Self::Events => 4,
            Self::Home | Self::Metrics | Self::Health | Self::Ready | Self::Dashboard | Self::OpenApi => 5,
        }
    }
}

fn routes() -> Routes<Endpoint> {
    use Endpoint as E;
    let (get, post) = (Method::GET, Method::POST);
    Routes::new(Style::ByPath)
        .route(get.clone(), "/", E::Home)
        .route(get.clone(), "/metrics", E::Metrics)
        .route(get.clone(), "/health", E::Health)
        .route(get.clone(), "/ready", E::Ready)
        .route(get.clone(), "/dashboard", E::Dashboard)
        .route(get.clone(), "/dashboard/:part", E::Dashboard)
        .route(get.clone(), "/v1/openapi.json", E::OpenApi)
        .route(post.clone(), "/v1/accounts", E::CreateAccounts)
        .route(post.clone(), "/v1/transfers", E::CreateTransfers)
        .route(post.clone(), "/v1/accounts/lookup", E::LookupAccounts)
        .route(post.clone(), "/v1/transfers/lookup", E::LookupTransfers)
        .route(post.clone(), "/v1/accounts/query", E::QueryAccounts)
        .route(post, "/v1/transfers/query", E::QueryTransfers)
        .route(get.clone(), "/v1/accounts/:id", E::Account)
        .route(get.clone(), "/v1/transfers/:id", E::Transfer)
        .route(get.clone(), "/v1/accounts/:id/transfers", E::AccountTransfers)
        .route(get.clone(), "/v1/accounts/:id/balances", E::AccountBalances)
        .route(get, "/v1/events", E::Events)
}

/// The handler of a ledger's HTTP server.
pub struct Api {
    routes: Routes<Endpoint>,
    ledger: Arc<dyn Ledger>,
    operations: Arc<Operations>,
    http_stats: Arc<Stats>,
    write_metrics: WriteMetrics,
    metrics_page: MetricsPage,
    checks: Checks,
    store_check: Option<StoreCheck>,
    waiters: Semaphore,
}

impl Api {
    /// Serves this ledger. `write_metrics` adds to the page `/metrics`.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>, http_stats: Arc<Stats>, write_metrics: WriteMetrics) -> Self {
        Self {
            routes: routes(),
            ledger,
            operations: Arc::new(Operations::new(&OPERATIONS)),
            http_stats,
            write_metrics,
            metrics_page: MetricsPage::new("ledger"),
            checks: Checks::default(),
            store_check: None,
            waiters: Semaphore::new(WAITERS_MAX),
        }
    }

    async fn dispatch(&self, mut request: Request) -> Answer {
        let head = request.head.clone();
        let matched = self.routes.resolve(&head)?;
        let param = |index: usize| matched.params.get(index).copied().unwrap_or_default();
        let running = self.operations.begin(matched.endpoint.operation());
        let ledger = self.ledger.as_ref();
        let answer = match *matched.endpoint {
            Endpoint::Home => Ok(home()),
            Endpoint::Metrics => Ok(self.metrics().await),
            Endpoint::Dashboard => Ok(self.metrics_page.dashboard(&request.head)),
            Endpoint::Health => Ok(health()),
            Endpoint::Ready => Ok(self.ready().await),
            Endpoint::OpenApi => Ok(Response::bytes(200, "application/json", document())),
            Endpoint::CreateAccounts => endpoints::create_accounts(ledger, &request).await,
            Endpoint::CreateTransfers => endpoints::create_transfers(ledger, &request).await,
            Endpoint::LookupAccounts => endpoints::lookup_accounts(ledger, &request).await,
            Endpoint::LookupTransfers => endpoints::lookup_transfers(ledger, &request).await,
            Endpoint::Account => endpoints::account(ledger, param(0)).await,
            Endpoint::Transfer => endpoints::transfer(ledger, param(0)).await,
            Endpoint::AccountTransfers => endpoints::account_transfers(ledger, &head, param(0)).await,
            Endpoint::AccountBalances => endpoints::account_balances(ledger, &head, param(0)).await,
            Endpoint::QueryAccounts => endpoints::query_accounts(ledger, &request).await,
            Endpoint::QueryTransfers => endpoints::query_transfers(ledger, &request).await,
            Endpoint::Events => events::events(ledger, &self.waiters, &mut request).await,
        };
        let (Ok(response) | Err(response)) = &answer;
        running.end(response.status);
        answer
    }

    /// Adds a check of the ledger's store to `/ready`. The check may block.
    #[must_use]
    pub fn with_store_check(mut self, check: StoreCheck) -> Self {
        self.store_check = Some(check);
        self
    }

    /// Whether the ledger can take transfers: its store if it has one, the clock, and the machine itself.
    async fn ready(&self) -> Response {
        let mut readiness = Readiness::new();
        if let Some(check) = &self.store_check {
            let check = Arc::clone(check);
            readiness = readiness.check_within("store", self.checks.blocking(move || check())).await;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        readiness
            .check("clock", self.checks.clock(now_us))
            .check_within("ledger", self.ledger.lookup_accounts(vec![1]))
            .await
            .into_response()
    }

    async fn metrics(&self) -> Response {
        self.metrics_page.answer(self.writer()).await
    }

    /// The function that writes the page `/metrics`.
    fn writer(&self) -> impl Fn(&mut Page) + Send + Sync + use<> {
        let (operations, http_stats) = (Arc::clone(&self.operations), Arc::clone(&self.http_stats));
        let write_metrics = Arc::clone(&self.write_metrics);
        move |page: &mut Page| {
            operations.write(page);
            write_metrics(page);
            http_stats.write(page);
        }
    }

    /// Fills the dashboard from now on, until this is dropped. Must be called within a tokio runtime.
    pub fn fill_dashboard(&self) {
        let write = self.writer();
        self.metrics_page.sample(move |page| {
            write(page);
            true
        });
    }
}

impl Handler for Api {
    async fn handle(&self, request: Request) -> Response {
        self.dispatch(request).await.unwrap_or_else(|error| error)
    }

    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        self.routes.resolve(head).map(|_| Admission::limited(BODY_BYTES_MAX))
    }
}

fn home() -> Response {
    Response::text(
        200,
        "A Batzen ledger.\n\n\
         Accounts and transfers:  /v1/accounts, /v1/transfers\n\
         Event stream:            /v1/events\n\
         Description:             /v1/openapi.json\n\
         Metrics:                 /metrics, /dashboard\n",
    )
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorJson {
    /// `malformed`, `not_found`, `too_much_data`, `busy`, `unknown` or `refused`.
    pub error: String,
    /// A description for people.
    pub detail: String,
}

fn error(status: u16, name: &str, detail: &str) -> Response {
    Response::json(status, &ErrorJson { error: name.to_owned(), detail: detail.to_owned() })
}

fn malformed(detail: &str) -> Response {
    error(400, "malformed", detail)
}

/// The response to a ledger's error. After `unknown` the client repeats the request under the same ids.
fn refused(refusal: &LedgerError) -> Response {
    let detail = refusal.to_string();
    match refusal {
        LedgerError::TooMuchData => error(413, "too_much_data", &detail),
        LedgerError::Busy(_) => error(503, "busy", &detail).with_header(header::RETRY_AFTER, "1"),
        LedgerError::Unknown(_) => error(504, "unknown", &detail),
        LedgerError::Refused(_) => error(501, "refused", &detail),
    }
}
