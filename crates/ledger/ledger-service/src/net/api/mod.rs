//! The HTTP interface of a ledger: JSON, the event stream, metrics, the OpenAPI document.
//! `docs/ledger-api.md` describes it.

mod endpoints;
mod events;
mod openapi;

use std::sync::Arc;
use std::time::SystemTime;

use batzen_http::{Head, Request, Response, Stats, Style, header};
use batzen_ledger::{Ledger, LedgerError};
use batzen_metrics::Page;
use batzen_service::{Api, App, Denied, Monitor, Reach, Readiness, Row, TooMany, endpoint, require_holder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

pub use openapi::document;

use super::dashboard::DASHBOARD;

/// Largest body, in bytes: a full batch of transfers with every member.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;

/// Most concurrent waiting readers of the event stream.
const WAITERS_MAX: usize = 256;

/// Writes the metrics of the ledger and of the binary server.
pub type WriteMetrics = Arc<dyn Fn(&mut Page) + Send + Sync>;

/// Checks that the ledger's store can be written. It may block.
pub type StoreCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The path of the description.
const DESCRIPTION: &str = "/v1/openapi.json";

/// A ledger's route table.
type Table = batzen_service::Table<LedgerApi>;

/// Values of the label `operation`.
const OPERATIONS: [&str; 6] = ["create_accounts", "create_transfers", "lookup", "query", "events", "other"];

/// The state behind a ledger's HTTP interface.
pub struct LedgerApi {
    ledger: Arc<dyn Ledger>,
    write_metrics: WriteMetrics,
    monitor: Monitor,
    store_check: Option<StoreCheck>,
    waiters: Semaphore,
    /// The hash of the clients' token.
    token_hash: Option<[u8; 32]>,
}

impl LedgerApi {
    /// Serves this ledger. `write_metrics` adds to the page `/metrics`. Clients show the token if there is one; otherwise
    /// everybody who reaches the server may move money.
    #[must_use]
    pub fn new(
        ledger: Arc<dyn Ledger>,
        http_stats: Arc<Stats>,
        write_metrics: WriteMetrics,
        token: Option<&str>,
    ) -> Self {
        Self {
            ledger,
            write_metrics,
            monitor: Monitor::new("ledger", &OPERATIONS, &DASHBOARD, http_stats),
            store_check: None,
            waiters: Semaphore::new(WAITERS_MAX),
            token_hash: token.map(|token| Sha256::digest(token).into()),
        }
    }

    /// Adds a check of the ledger's store to `/ready`. The check may block.
    #[must_use]
    pub fn with_store_check(mut self, check: StoreCheck) -> Self {
        self.store_check = Some(check);
        self
    }

    /// The handler of the HTTP server.
    #[must_use]
    pub fn handler(self: Arc<Self>) -> Api<Self> {
        Api::new(self, table())
    }

    /// Requires the clients' token.
    fn authorize(&self, head: &Head) -> Result<(), Response> {
        let Some(expected) = self.token_hash else { return head.require_own_name() };
        let hash = |token: &str| Sha256::digest(token).into();
        require_holder(self.monitor.guesses(), "", head, hash, [((), expected)]).map_err(
            |denied| match denied {
                Denied::Wrong => {
                    error(401, "unauthorized", "the ledger's token is required: Authorization: Bearer TOKEN")
                        .with_header(header::WWW_AUTHENTICATE, "Bearer")
                }
                Denied::TooMany(wait) => wait.wait(error(429, "unauthorized", TooMany::DETAIL)),
            },
        )
    }
}

fn table() -> Table {
    let table = Table::new(Style::ByPath, &OPERATIONS)
        .with_get_limit(BODY_BYTES_MAX)
        .monitored("other")
        .with_dashboard("other")
        .reaching(Reach::Page, |table| {
            table.get("/", "other", endpoint!(home)).get(DESCRIPTION, "other", endpoint!(description))
        })
        .get("/v1/events", "events", endpoint!(events::events));
    endpoints::routes(table)
}

/// Method, pattern and reach of every endpoint, for documents.
#[must_use]
pub fn endpoints() -> Vec<(String, Reach)> {
    table().endpoints()
}

impl App for LedgerApi {
    /// Everything below `/v1` but its description needs the token.
    async fn run(self: &Arc<Self>, row: Row<Self>, request: &mut Request) -> Response {
        if request.segment(0) == "v1"
            && row.reach() == Reach::Own
            && let Err(refused) = self.authorize(request)
        {
            return refused;
        }
        row.call(self, request).await
    }

    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Checks whether the ledger can take transfers: its store if it has one, the clock, and the machine
    /// itself.
    async fn ready(&self) -> Readiness {
        let (mut readiness, checks) = (Readiness::new(), self.monitor.checks());
        if let Some(check) = &self.store_check {
            let check = Arc::clone(check);
            readiness = readiness.check_within("store", checks.blocking(move || check())).await;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        readiness
            .check("clock", checks.clock(now_us))
            .check_within("ledger", self.ledger.lookup_accounts(vec![1]))
            .await
    }

    fn write_metrics(&self, page: &mut Page) {
        (self.write_metrics)(page);
    }
}

async fn description(_: &LedgerApi, _: &Request) -> Response {
    Response::bytes(200, "application/json", document())
}

async fn home(_: &LedgerApi, _: &Request) -> Response {
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
pub(crate) struct ErrorJson {
    /// `malformed`, `unauthorized`, `not_found`, `too_much_data`, `unfinished`, `busy`, `unknown` or
    /// `refused`.
    pub error: String,
    /// A description for people.
    pub(crate) detail: String,
    /// With `unfinished`: the timestamp that the search has reached. Ask for the period up to it, then for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<String>,
}

fn error(status: u16, name: &str, detail: &str) -> Response {
    Response::json(status, &ErrorJson { error: name.to_owned(), detail: detail.to_owned(), until: None })
}

fn malformed(detail: &str) -> Response {
    error(400, "malformed", detail)
}

/// The response to a ledger's error. After `unknown` the client repeats the request under the same ids.
fn refused(refusal: &LedgerError) -> Response {
    let detail = refusal.to_string();
    match refusal {
        LedgerError::TooMuchData => error(413, "too_much_data", &detail),
        LedgerError::Unfinished { until } => Response::json(
            422,
            &ErrorJson { error: "unfinished".to_owned(), detail, until: Some(until.to_string()) },
        ),
        LedgerError::Busy(_) => error(503, "busy", &detail).with_header(header::RETRY_AFTER, "1"),
        LedgerError::Unknown(_) => error(504, "unknown", &detail),
        LedgerError::Refused(_) => error(501, "refused", &detail),
    }
}
