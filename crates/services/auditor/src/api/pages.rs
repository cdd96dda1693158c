//! Small pages: greeting, version, exchanges.

use batzen_http::{Request, Response, header};
use batzen_protocol::api::auditor::{AUDITOR_PROTOCOL_VERSION, AuditedExchanges, AuditorVersion};
use batzen_service::{Answer, endpoint};

use super::{READ_FAILURES, Service, Table};
use crate::books;

/// One of Batzen's licences. It is not under the AGPL, but whoever looks for the terms of the source looks here.
const LICENCE: &str = "https://www.apache.org/licenses/LICENSE-2.0";

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/", "other", endpoint!(greeting))
        .get("/robots.txt", "other", endpoint!(robots))
        .get("/agpl", "other", endpoint!(licence))
        .get("/version", "other", endpoint!(version))
        .get("/exchanges", "other", endpoint!(exchanges))
        .get("/liabilities/:epoch", "other", endpoint!(liabilities))
}

async fn greeting(_: &Service, _: &Request) -> Response {
    Response::bytes(200, "text/plain", "Hello, I'm a Batzen auditor. This HTTP server is not for humans.\n")
}

async fn robots(_: &Service, _: &Request) -> Response {
    Response::bytes(200, "text/plain", "User-agent: *\nDisallow: /\n")
}

async fn licence(_: &Service, _: &Request) -> Response {
    Response::empty(302).with_header(header::LOCATION, LICENCE)
}

/// The answer to unknown paths and methods.
pub(super) fn unknown() -> Response {
    Response::bytes(
        404,
        "text/html",
        "<!DOCTYPE html>\n<html><title>404: not found</title><body>There is no such page.</body></html>\n",
    )
}

async fn version(auditor: &Service, _: &Request) -> Response {
    let answer = AuditorVersion {
        version: AUDITOR_PROTOCOL_VERSION.to_owned(),
        currency: auditor.config.currency.to_string(),
        auditor_public_key: auditor.auditor_pub,
    };
    Response::json(200, &answer)
}

async fn exchanges(auditor: &Service, _: &Request) -> Answer {
    let exchanges = auditor.read(books::exchanges).await.map_err(|error| READ_FAILURES.store(&error))?;
    Ok(Response::json(200, &AuditedExchanges { exchanges }))
}

/// The confirmation of an epoch of the exchange's liabilities, if there is one.
async fn liabilities(auditor: &Service, request: &Request) -> Response {
    let Ok(epoch) = request.param("epoch").parse() else { return unknown() };
    let path = crate::liabilities::confirmation(&auditor.config.data_dir, epoch);
    let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
    match read.expect("reading a file does not panic") {
        Ok(bytes) => Response::json_text(200, bytes),
        Err(_) => unknown(),
    }
}
