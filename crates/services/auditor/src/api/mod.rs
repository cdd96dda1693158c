//! The HTTP interface: routes, and code that all endpoints share.

mod audit;
mod confirmations;
mod pages;

use std::sync::Arc;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Collector, CollectorOptions, CpuPool, Lane};
use batzen_http::{Drain, Head, Response, Stats, Style};
use batzen_metrics::{Counter, Page};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Api, App, Failures, Monitor, Reach, Readiness};
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

/// The auditor's route table.
type Table = batzen_service::Table<Service>;

/// Answers to failures of the auditor itself.
const FAILURES: Failures = Failures::GENERIC;
/// Answers to failed reads.
const READ_FAILURES: Failures = Failures { failed: ErrorCode::GENERIC_DB_FETCH_FAILED, ..FAILURES };

/// Values of the label `operation`.
const OPERATIONS: [&str; 2] = ["confirmation", "other"];

const DASHBOARD: Layout = Layout { sections: COMMON, work: &[] };

fn table() -> Table {
    let table = Table::new(Style::ByPath, &OPERATIONS)
        .with_unrouted(unrouted)
        .monitored("other")
        .with_dashboard("other");
    audit::routes(table.reaching(Reach::Everyone, |table| confirmations::routes(pages::routes(table))))
}

/// Method, pattern and reach of every endpoint, for documents.
#[must_use]
pub fn endpoints() -> Vec<(String, Reach)> {
    table().endpoints()
}

/// The interface of an auditor.
pub(crate) fn api(service: Arc<Service>) -> Api<Service> {
    Api::new(service, table())
}

/// Clients of this protocol expect a page for unknown paths and methods, not the errors of other services.
fn unrouted(_: &Service, _: &Head, response: Response) -> Response {
    match response.status {
        404 | 405 => pages::unknown(),
        _ => response,
    }
}

/// State that all endpoints share.
pub(crate) struct Service {
    config: AuditorConfig,
    auditor_pub: EddsaPublicKey,
    lane: Lane<AuditorRules>,
    store: Store,
    pool: CpuPool,
    /// Checks of signatures. The answer is whether the signature is valid.
    checks: Collector<Check, bool>,
    /// The statements of master keys about signing keys.
    statements: Statements,
    revocations: Revocations,
    drain: Drain,
    monitor: Monitor,
    /// The thread that follows the exchange, if there is one.
    running: Option<Running>,
    /// Confirmations that were stored.
    stored: Counter,
    /// Confirmations that had been stored before.
    repeated: Counter,
}

impl App for Service {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    async fn ready(&self) -> Readiness {
        self.monitor.check(&self.store, self.now()).await
    }

    fn write_metrics(&self, page: &mut Page) {
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
    }
}

impl Service {
    pub(crate) fn new(
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
        let monitor =
            Monitor::new("auditor", &OPERATIONS, &DASHBOARD, http_stats).in_currency(config.currency);
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
            monitor,
            running: None,
            stored: Counter::default(),
            repeated: Counter::default(),
        }
    }

    /// The same, following an exchange.
    pub(crate) fn following(self, running: Option<Running>) -> Self {
        Self { running, ..self }
    }

    /// The store, for reading.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Triggered when the service ends.
    pub(crate) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Accepts no more commands. Commands under way end; after that the lane can be closed.
    pub(crate) fn into_lane(self) -> Lane<AuditorRules> {
        self.lane
    }

    fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    async fn execute(&self, command: impl Into<Command>) -> Result<Result<rules::Answer, Refusal>, Response> {
        self.lane.submit(command.into()).await.map_err(|error| FAILURES.submit(&error))
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        batzen_service::read(&self.store, read).await
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
