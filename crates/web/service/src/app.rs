//! A service as the kit sees it, and the pages that every service has.

use std::future::Future;
use std::sync::Arc;

use batzen_http::{Head, Reach, Request, Response, Stats};
use batzen_metrics::Page;
use batzen_protocol::Timestamp;
use batzen_store::Store;

use crate::dashboard::Layout;
use crate::endpoint;
use crate::guesses::Guesses;
use crate::metrics_page::MetricsPage;
use crate::operations::Operations;
use crate::readiness::{Checks, Readiness, health};
use crate::table::{Row, Table};

/// The state behind the endpoints of a service.
pub trait App: Sized + Send + Sync + 'static {
    /// The counters, pages and checks of the service.
    fn monitor(&self) -> &Monitor;

    /// Checks whether the service can do its work now, for `/ready`.
    fn ready(&self) -> impl Future<Output = Readiness> + Send;

    /// Writes the service's own part of `/metrics`. The kit writes the operations before it, and the counters of the
    /// HTTP server after it.
    fn write_metrics(&self, page: &mut Page);

    /// Runs the handler of an endpoint.
    fn run(self: &Arc<Self>, row: Row<Self>, request: &mut Request) -> impl Future<Output = Response> + Send {
        async move { row.call(self, request).await }
    }

    /// See [`Handler::logs_given_correlation_id`](batzen_http::Handler::logs_given_correlation_id).
    fn logs_given_correlation_id(&self, _head: &Head) -> bool {
        true
    }
}

/// Counters of a service's operations, its metrics page and dashboard, and the state of its checks.
#[derive(Debug)]
pub struct Monitor {
    page: MetricsPage,
    checks: Checks,
    operations: Operations,
    http: Option<Arc<Stats>>,
    guesses: Guesses,
}

impl Monitor {
    /// The monitor of a service with this name, these operations and this dashboard. `http` are the counters of its
    /// server, if it has one.
    #[must_use]
    pub fn new(
        service: &'static str,
        operations: &'static [&'static str],
        dashboard: &'static Layout,
        http: impl Into<Option<Arc<Stats>>>,
    ) -> Self {
        Self {
            page: MetricsPage::new(service, dashboard),
            checks: Checks::default(),
            operations: Operations::new(operations),
            http: http.into(),
            guesses: Guesses::default(),
        }
    }

    /// Sets the currency of the service's amounts.
    #[must_use]
    pub fn in_currency(self, currency: impl ToString) -> Self {
        Self { page: self.page.in_currency(currency.to_string()), ..self }
    }

    /// Counters of the service's operations.
    #[must_use]
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    /// The limit on guesses of the service's passwords and tokens.
    #[must_use]
    pub fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// The state behind the service's checks.
    #[must_use]
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Returns whether the dashboard is filled.
    pub(crate) fn is_filled(&self) -> bool {
        self.page.is_sampled()
    }

    /// The checks that every service with a store has: that it can be written, and the clock.
    pub async fn check(&self, store: &Store, now: Timestamp) -> Readiness {
        let name = if store.backend().is_remote() { "database" } else { "store" };
        let store = store.clone();
        Readiness::new()
            .check_within(name, self.checks.blocking(move || store.check_writable()))
            .await
            .check("clock", self.checks.clock(now.as_micros()))
    }

    /// Ends the sampling for the dashboard, and waits until no page is being written that holds the service.
    pub async fn idle(&self) {
        self.page.idle().await;
    }
}

/// Fills the dashboard of a service until it ends. Must be called within a tokio runtime.
pub fn fill_dashboard<A: App>(app: &Arc<A>) {
    let sampled = Arc::downgrade(app);
    app.monitor().page.sample(move |page| {
        let app = sampled.upgrade();
        app.is_some_and(|app| {
            write(app.as_ref(), page);
            true
        })
    });
}

fn write<A: App>(app: &A, page: &mut Page) {
    app.monitor().operations.write(page);
    app.write_metrics(page);
    app.monitor().http.iter().for_each(|http| http.write(page));
}

impl<A: App> Table<A> {
    /// Adds `/health`, `/ready` and `/metrics`, counted under `operation`.
    #[must_use]
    pub fn monitored(self, operation: &str) -> Self {
        let checks = |table: Self| {
            table.get("/health", operation, endpoint!(alive)).get("/ready", operation, endpoint!(ready))
        };
        self.get("/metrics", operation, endpoint!(metrics)).reaching(Reach::Page, checks)
    }

    /// Adds the dashboard, counted under `operation`.
    #[must_use]
    pub fn with_dashboard(self, operation: &str) -> Self {
        self.get("/dashboard", operation, endpoint!(dashboard)).get(
            "/dashboard/:part",
            operation,
            endpoint!(dashboard),
        )
    }
}

async fn alive<A>(_: &Arc<A>, _: &Request) -> Response {
    health()
}

async fn ready<A: App>(app: &Arc<A>, _: &Request) -> Response {
    app.ready().await.into_response()
}

async fn metrics<A: App>(app: &Arc<A>, _: &Request) -> Response {
    let written = Arc::clone(app);
    app.monitor().page.answer(move |page| write(written.as_ref(), page)).await
}

async fn dashboard<A: App>(app: &Arc<A>, request: &Request) -> Response {
    app.monitor().page.dashboard(&request.head)
}
