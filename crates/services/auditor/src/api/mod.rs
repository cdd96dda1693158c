//! The HTTP interface: routes, and code that all endpoints share.

mod audit;
mod confirmations;
mod pages;

use std::sync::Arc;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Collector, CollectorOptions, CpuPool, Lane, SubmitError};
use batzen_http::{
    Admission, Checks, Drain, Handler, Head, Method, MetricsPage, Operations, Readiness, Request, Response,
    Routes, Stats, Style, header, health,
};
use batzen_metrics::{Counter, Page};
use batzen_protocol::limits::{NO_BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_store::{Store, StoreError};

use self::confirmations::{Check, Statements};
use crate::books;
use crate::config::AuditorConfig;
use crate::confirmation::CONFIRMATIONS_MAX;
use crate::link::{Answering, Ask, Told};
use crate::revocations::Revocations;
use crate::rules::{self, AuditorRules, Command, Refusal};
use crate::serving::Running;

/// Single jobs of the CPU pool that may wait.
const POOL_JOBS_MAX: usize = 64;

/// A response, successful or not. Both are sent.
type Answer = Result<Response, Response>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Home,
    Robots,
    Licence,
    Version,
    Exchanges,
    Confirm,
    Liabilities,
    Metrics,
    Dashboard,
    Health,
    Ready,
    Audit,
    AuditJson,
    AuditCsv,
}

/// Values of the label `operation`.
const OPERATIONS: [&str; 2] = ["confirmation", "other"];

impl Endpoint {
    /// The endpoint's index in [`OPERATIONS`].
    const fn operation(self) -> usize {
        match self {
            Self::Confirm => 0,
            _ => 1,
        }
    }

    const fn body_bytes_max(self) -> usize {
        match self {
            Self::Confirm => SMALL_BODY_BYTES_MAX,
            _ => NO_BODY_BYTES_MAX,
        }
    }
}

/// Method, pattern and endpoint of every route.
const TABLE: [(Method, &str, Endpoint); 15] = [
    (Method::GET, "/", Endpoint::Home),
    (Method::GET, "/robots.txt", Endpoint::Robots),
    (Method::GET, "/agpl", Endpoint::Licence),
    (Method::GET, "/version", Endpoint::Version),
    (Method::GET, "/exchanges", Endpoint::Exchanges),
    (Method::PUT, "/deposit-confirmation", Endpoint::Confirm),
    (Method::GET, "/liabilities/:epoch", Endpoint::Liabilities),
    (Method::GET, "/metrics", Endpoint::Metrics),
    (Method::GET, "/dashboard", Endpoint::Dashboard),
    (Method::GET, "/dashboard/:part", Endpoint::Dashboard),
    (Method::GET, "/health", Endpoint::Health),
    (Method::GET, "/ready", Endpoint::Ready),
    (Method::GET, "/audit", Endpoint::Audit),
    (Method::GET, "/audit.json", Endpoint::AuditJson),
    (Method::GET, "/audit.csv", Endpoint::AuditCsv),
];

/// State that all endpoints share.
pub(crate) struct Service {
    config: AuditorConfig,
    auditor_pub: EddsaPublicKey,
    lane: Lane<AuditorRules>,
    store: Store,
    pool: CpuPool,
    /// Checks of signatures. The answer is whether the signature is valid.
    checks: Collector<Check, bool>,
    /// What master keys have said about signing keys.
    statements: Statements,
    revocations: Revocations,
    drain: Drain,
    http_stats: Arc<Stats>,
    metrics_page: MetricsPage,
    readiness: Checks,
    operations_run: Operations,
    /// The thread that follows the exchange, if there is one.
    running: Option<Running>,
    /// Confirmations that were stored.
    stored: Counter,
    /// Confirmations that had been stored before.
    repeated: Counter,
}

/// The handler of the server.
pub(crate) struct Api {
    routes: Routes<Endpoint>,
    service: Arc<Service>,
}

impl Api {
    pub fn new(service: Arc<Service>) -> Self {
        let empty = Routes::new(Style::ByPath);
        let routes = TABLE
            .into_iter()
            .fold(empty, |routes, (method, path, endpoint)| routes.route(method, path, endpoint));
        Self { routes, service }
    }

    fn endpoint(&self, head: &Head) -> Result<Endpoint, Response> {
        // Clients of this protocol expect a page for unknown paths and methods, not the errors of other services.
        self.routes.endpoint(head).copied().map_err(|response| match response.status {
            404 | 405 => pages::unknown(),
            _ => response,
        })
    }
}

impl Handler for Api {
    async fn handle(&self, request: Request) -> Response {
        let endpoint = match self.endpoint(&request.head) {
            Ok(endpoint) => endpoint,
            Err(response) => return response,
        };
        let running = self.service.operations_run.begin(endpoint.operation());
        let response = self.service.answer(endpoint, request).await.unwrap_or_else(|refused| refused);
        running.end(response.status);
        response
    }

    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        self.endpoint(head).map(|endpoint| Admission::limited(endpoint.body_bytes_max()))
    }
}

impl Service {
    pub fn new(
        config: AuditorConfig,
        auditor_pub: EddsaPublicKey,
        lane: Lane<AuditorRules>,
        revocations: Revocations,
        http_stats: Arc<Stats>,
        drain: Drain,
    ) -> Self {
        let store = lane.store().clone();
        let pool = CpuPool::new(0, POOL_JOBS_MAX);
        let checks = pool.collector("confirmation", CollectorOptions::default(), confirmations::check);
        let metrics_page = MetricsPage::new("auditor").in_currency(config.currency.to_string());
        Self {
            config,
            auditor_pub,
            lane,
            store,
            pool,
            checks,
            statements: Statements::default(),
            revocations,
            drain,
            http_stats,
            metrics_page,
            readiness: Checks::default(),
            operations_run: Operations::new(&OPERATIONS),
            running: None,
            stored: Counter::default(),
            repeated: Counter::default(),
        }
    }

    /// The same, following an exchange.
    pub fn following(self, running: Option<Running>) -> Self {
        Self { running, ..self }
    }

    async fn answer(self: &Arc<Self>, endpoint: Endpoint, request: Request) -> Answer {
        match endpoint {
            Endpoint::Home => Ok(pages::greeting()),
            Endpoint::Robots => Ok(pages::robots()),
            Endpoint::Licence => Ok(pages::licence()),
            Endpoint::Version => Ok(self.version()),
            Endpoint::Exchanges => self.exchanges().await,
            Endpoint::Confirm => self.confirm(&request).await,
            Endpoint::Liabilities => Ok(self.liabilities(request.segment(1)).await),
            Endpoint::Metrics => {
                let parts = Arc::clone(self);
                Ok(self.metrics_page.answer(move |page| parts.write_metrics(page)).await)
            }
            Endpoint::Dashboard => Ok(self.metrics_page.dashboard(&request.head)),
            Endpoint::Health => Ok(health()),
            Endpoint::Ready => Ok(self.ready().await),
            Endpoint::Audit => self.audit_page(),
            Endpoint::AuditJson => self.audit_json(),
            Endpoint::AuditCsv => self.audit_csv(),
        }
    }

    /// The confirmation of an epoch of the exchange's liabilities, if there is one.
    async fn liabilities(&self, epoch: &str) -> Response {
        let Ok(epoch) = epoch.parse() else { return pages::unknown() };
        let path = crate::liabilities::confirmation(&self.config.data_dir, epoch);
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        match read.expect("reading a file does not panic") {
            Ok(bytes) => Response::json_text(200, bytes),
            Err(_) => pages::unknown(),
        }
    }

    /// The store, for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Triggered when the service ends.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Starts to fill the dashboard.
    pub fn start_sampling(self: &Arc<Self>) {
        let sampled = Arc::downgrade(self);
        self.metrics_page.sample(move |page| {
            let service = sampled.upgrade();
            service.is_some_and(|service| {
                service.write_metrics(page);
                true
            })
        });
    }

    pub async fn end_sampling(&self) {
        self.metrics_page.idle().await;
    }

    /// Accepts no more commands. Commands under way end; after that the lane can be closed.
    pub fn into_lane(self) -> Lane<AuditorRules> {
        self.lane
    }

    fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    async fn ready(&self) -> Response {
        let store = self.store.clone();
        let name = if self.config.store.is_database() { "database" } else { "store" };
        Readiness::new()
            .check_within(name, self.readiness.blocking(move || store.check_writable()))
            .await
            .check("clock", self.readiness.clock(self.now().as_micros()))
            .into_response()
    }

    fn write_metrics(&self, page: &mut Page) {
        self.operations_run.write(page);
        page.count(
            "batzen_auditor_confirmations_total",
            "Deposit confirmations that were stored",
            &self.stored,
        );
        page.count(
            "batzen_auditor_repeated_confirmations_total",
            "Deposit confirmations that had been stored before",
            &self.repeated,
        );
        if let Some(running) = &self.running {
            running.write(page);
        }
        self.lane.metrics().write(page);
        self.pool.write(page);
        self.store.write_metrics(page, batzen_tables::auditor::ALL);
        self.http_stats.write(page);
    }

    /// Executes a command.
    async fn execute(&self, command: impl Into<Command>) -> Result<Result<rules::Answer, Refusal>, Response> {
        match self.lane.submit(command.into()).await {
            Ok(verdict) => Ok(verdict),
            Err(SubmitError::Store(error)) => Err(store_failed(&error)),
            Err(SubmitError::Overloaded) => Err(try_later("busy")),
            Err(SubmitError::Stopped) => Err(try_later("ending")),
        }
    }

    /// Reads the store. Reads of a database block, so they run on threads that may.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.store.backend().is_remote() {
            return read(&self.store);
        }
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || read(&store)).await.expect("reading does not panic")
    }
}

impl Answering for Service {
    fn drain(&self) -> &Drain {
        &self.drain
    }

    async fn tell(&self, ask: Ask) -> Result<Told, String> {
        let ask = match ask {
            Ask::Report { wanted } => return self.report(wanted).await,
            Ask::Checking => return self.checking(),
            Ask::Liabilities { source, master_pub, now } => {
                return self.liabilities_of(source, master_pub, now).await;
            }
            Ask::Note { id, suppresses, reason } => return self.note(id, suppresses, reason).await,
            ask => ask,
        };
        if let Some(command) = books::command(&ask, self.now()).map_err(|error| error.to_string())? {
            return match self.lane.submit(command).await {
                Ok(Ok(outcome)) => Ok(Told::Done(outcome)),
                Ok(Err(refusal)) => Err(refusal.to_string()),
                Err(error) => Err(error.to_string()),
            };
        }
        let told = match ask {
            Ask::Confirmations { master_pub, after, limit } => {
                let limit = limit.min(CONFIRMATIONS_MAX);
                let read = move |store: &Store| books::confirmations(store, &master_pub, after, limit);
                self.read(read).await.map(Told::Confirmations)
            }
            _ => self.read(books::exchanges).await.map(Told::Exchanges),
        };
        told.map_err(|error| error.to_string())
    }

    fn why_busy(&self) -> String {
        match self.running.as_ref().and_then(Running::checking_all) {
            None => "the auditor is busy: try again".to_owned(),
            Some(rows) => {
                format!("all rows of the copy are being checked ({rows} so far): try again later")
            }
        }
    }
}

/// The response if the outcome of a request is not known yet: repeating the request finds it out.
fn try_later(detail: &str) -> Response {
    Response::error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, detail)
        .with_header(header::RETRY_AFTER, "1")
}

/// The response to a failed store.
fn store_failed(error: &StoreError) -> Response {
    tracing::error!(%error, "the store failed");
    match error {
        StoreError::Unavailable(_) => try_later("the database is not available"),
        StoreError::Full(_) => Response::error(ErrorCode::GENERIC_DB_STORE_FAILED, "no space left"),
        StoreError::Corrupt { .. } => Response::error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, ""),
        _ => Response::error(ErrorCode::GENERIC_DB_COMMIT_FAILED, ""),
    }
}

/// The response to a failed read.
fn read_failed(error: &StoreError) -> Response {
    match error {
        StoreError::Unavailable(_) | StoreError::Corrupt { .. } => store_failed(error),
        _ => {
            tracing::error!(%error, "the store failed");
            Response::error(ErrorCode::GENERIC_DB_FETCH_FAILED, "")
        }
    }
}
