//! Small pages: welcome, robots, seed, metrics.

use std::sync::Arc;

use batzen_http::{Readiness, Request, Response, StaticPage, escape_html, header};

use super::{Table, endpoint};
use crate::app::Exchange;
use crate::config::ExchangeConfig;

/// What to do when `/wire` cannot be answered.
const WIRE_HINT: &str = "publish accounts and fees with `batzen exchange offline` (enable-account, wire-fee)";

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/", endpoint!(greeting))
        .get("/robots.txt", endpoint!(robots))
        .get("/seed", endpoint!(seed))
        .get("/metrics", endpoint!(metrics))
        .get("/health", endpoint!(health))
        .get("/ready", endpoint!(ready))
}

/// Adds the page for people if the configuration enables it.
pub(super) fn dashboard_route(table: Table) -> Table {
    table.get("/dashboard", endpoint!(dashboard)).get("/dashboard/:part", endpoint!(dashboard))
}

async fn dashboard(app: &Exchange, request: &Request) -> Response {
    app.metrics_page.dashboard(&request.head)
}

/// Browsers get a page; programs get the sentence that the protocol prescribes.
async fn greeting(app: &Exchange, request: &Request) -> Response {
    if request.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
        let page = app.welcome.get_or_init(|| welcome(&app.core.config));
        return page.response().with_header(header::VARY, "accept");
    }
    Response::bytes(200, "text/plain", "Hello, I'm a Batzen exchange. This HTTP server is not for humans.\n")
}

fn welcome(config: &ExchangeConfig) -> StaticPage {
    let dashboard = match config.dashboard {
        true => "<li><a href=\"dashboard\">Dashboard</a> <span>(how the service is doing)</span></li>\n",
        false => "",
    };
    let html = include_str!("root/page.html")
        .replace("{CURRENCY}", &escape_html(&config.currency.to_string()))
        .replace("{BASE}", &escape_html(&config.base_url))
        .replace("{DASHBOARD}", dashboard);
    StaticPage::new(&html, include_str!("root/page.css"), "")
}

async fn robots(_: &Exchange, _: &Request) -> Response {
    Response::bytes(200, "text/plain", "User-agent: *\nDisallow: /\n")
}

/// Randomness for wallets that do not rely on their own alone. Every answer differs, so nothing may cache it.
async fn seed(_: &Exchange, _: &Request) -> Response {
    let mut seed = vec![0; 32];
    batzen_crypto::fill_random(&mut seed);
    Response::bytes(200, "", seed)
}

async fn health(_: &Exchange, _: &Request) -> Response {
    batzen_http::health()
}

/// Whether the exchange can serve wallets. This depends on the store or database, the clock, the keys, the
/// published accounts, and on the signers if they hold the keys.
async fn ready(app: &Exchange, _: &Request) -> Response {
    let (core, keys) = (&app.core, app.keys());
    let store = core.store.clone();
    let name = if core.config.store.is_database() { "database" } else { "store" };
    let mut readiness = Readiness::new()
        .check_within(name, app.checks.blocking(move || store.check_writable()))
        .await
        .check("clock", app.checks.clock(core.now().as_micros()))
        .check("keys", app.usable_keys(&keys))
        .check("wire", keys.wire_answer().map_err(|missing| format!("{missing}: {WIRE_HINT}")));
    if app.custody.modules().is_none() {
        let signer = app.custody.module_keys().ok_or("no signer answers: see `batzen signer status`");
        readiness = readiness.check("signer", signer);
    }
    readiness.into_response()
}

async fn metrics(app: &Arc<Exchange>, _: &Request) -> Response {
    let parts = Arc::clone(app);
    app.metrics_page.answer(move |page| parts.write_metrics(page)).await
}
