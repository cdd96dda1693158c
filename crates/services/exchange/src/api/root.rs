//! Small pages: welcome, robots, seed.

use batzen_http::{Request, Response, header};
use batzen_service::{Readiness, StaticPage, escape_html};

use super::{Table, endpoint};
use crate::app::Exchange;
use crate::config::ExchangeConfig;

/// The remedy when `/wire` cannot be answered.
const WIRE_HINT: &str = "publish accounts and fees with `batzen exchange offline` (enable-account, wire-fee)";

pub(super) fn routes(table: Table) -> Table {
    table.get("/", "other", endpoint!(greeting)).get("/robots.txt", "other", endpoint!(robots)).get(
        "/seed",
        "other",
        endpoint!(seed),
    )
}

/// Browsers get a page; programs get the sentence that the protocol prescribes.
async fn greeting(app: &Exchange, request: &Request) -> Response {
    if request.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
        let page = app.pages.welcome.get_or_init(|| welcome(&app.core.config));
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
async fn seed(app: &Exchange, _: &Request) -> Response {
    Response::bytes(200, "", app.core.random::<32>().to_vec())
}

/// Checks whether the exchange can serve wallets. This depends on the store or database, the clock, the
/// keys, the published accounts, and on the signers if they hold the keys.
pub(super) async fn ready(app: &Exchange) -> Readiness {
    let (core, keys) = (&app.core, app.keys());
    let readiness = app
        .monitor
        .check(&core.store, core.now())
        .await
        .check("keys", app.usable_keys(&keys))
        .check("wire", keys.wire_answer().map_err(|missing| format!("{missing}: {WIRE_HINT}")));
    if app.custody.modules().is_some() {
        return readiness;
    }
    readiness
        .check("signer", app.custody.module_keys().ok_or("no signer answers: see `batzen signer status`"))
}
