//! Small pages: greeting, robots, seed, metrics.

use std::sync::Arc;

use batzen_http::{Request, Response};

use super::{Table, endpoint};
use crate::app::Exchange;

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/", endpoint!(greeting))
        .get("/robots.txt", endpoint!(robots))
        .get("/seed", endpoint!(seed))
        .get("/metrics", endpoint!(metrics))
}

/// The page for people, where the configuration wants it.
pub(super) fn dashboard_route(table: Table) -> Table {
    table.get("/dashboard", endpoint!(dashboard))
}

async fn dashboard(_: &Exchange, _: &Request) -> Response {
    batzen_http::dashboard()
}

async fn greeting(_: &Exchange, _: &Request) -> Response {
    Response::bytes(200, "text/plain", "Hello, I'm a Batzen exchange. This HTTP server is not for humans.\n")
}

async fn robots(_: &Exchange, _: &Request) -> Response {
    Response::bytes(200, "text/plain", "User-agent: *\nDisallow: /\n")
}

/// Randomness for wallets that do not trust their own alone. Fresh in every answer, so nothing may cache it.
async fn seed(_: &Exchange, _: &Request) -> Response {
    let mut seed = vec![0; 32];
    batzen_crypto::fill_random(&mut seed);
    Response::bytes(200, "", seed)
}

async fn metrics(app: &Arc<Exchange>, _: &Request) -> Response {
    let parts = Arc::clone(app);
    app.metrics_page.answer(move |page| parts.write_metrics(page)).await
}
