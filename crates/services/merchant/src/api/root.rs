//! The endpoints that belong to no family: the start page, this interface's description, the back office, `config`.

use std::sync::Arc;

use batzen_http::{Request, Response, header};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::merchant::{MERCHANT_PROTOCOL_VERSION, MerchantConfig};
use batzen_service::Reach;

use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint, instance, parameter};
use super::{Answer, Checked, Merchant, Shop, body, malformed};
use crate::urls::DEFAULT;
use crate::webui::{self, PAGE, QrCode, QrRequest};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("other");
    rows.get("/", endpoint!(home), "Says what is where").reaching(Reach::Page).answers_text(
        200,
        "text/plain",
        "A text, or a page for browsers.",
    );
    rows.get("/openapi.json", endpoint!(openapi), "This document").reaching(Reach::Everyone).answers_text(
        200,
        "application/json",
        "OpenAPI 3.",
    );
    for (path, name, kind, summary) in [
        ("/metrics", "metrics", "text/plain", "Metrics for Prometheus"),
        ("/dashboard", "dashboard", "text/html", "Metrics of the last minutes, as a page with plots"),
        ("/dashboard/:part", "dashboard_part", "*/*", "A file of that page, or its data"),
        ("/health", "health", "text/plain", "Whether the process answers"),
    ] {
        rows.described(path, name, summary).answers_text(200, kind, "The page.");
    }
    rows.described("/ready", "ready", "Whether requests can be served")
        .answers_text(200, "text/plain", "They can.")
        .answers_text(503, "text/plain", "They cannot; says why.");
    rows.get("/webui", endpoint!(back_office), "The back office, a web page")
        .reaching(Reach::Page)
        .of_shops()
        .answers_text(200, "text/html", "The page.")
        .answers_empty(301, "To the same with a slash at the end.");
    rows.get("/webui/:file", endpoint!(back_office_file), "A file of the page")
        .reaching(Reach::Page)
        .of_shops()
        .answers_empty(200, "The file.");
    rows.post("/webui/qr", endpoint!(Reader, qr_code), "The QR code of a link for wallets")
        .takes::<QrRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<QrCode>();
    rows.get("/config", endpoint!(config), "Version and currency")
        .reaching(Reach::Everyone)
        .of_shops()
        .gives::<MerchantConfig>();
    rows
}

const HOME: &str = "A Batzen merchant backend.\n\n\
                    Back office:     /webui/, /instances/$ID/webui/\n\
                    Interface:       /openapi.json\n\
                    Shops:           /management/instances\n\
                    Orders:          /private/orders, /instances/$ID/private/orders\n\
                    For wallets:     /orders/$ORDER_ID, /instances/$ID/orders/$ORDER_ID\n\
                    Metrics:         /metrics\n\
                    Dashboard:       /dashboard\n";

/// A page with a link for browsers, a text for others.
async fn home(_: &Merchant, request: &Request) -> Response {
    match request.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
        true => webui::home(),
        false => Response::text(200, HOME),
    }
}

async fn openapi(_: &Merchant, _: &Request) -> Response {
    super::openapi::response()
}

fn file(request: &Request, name: &str) -> Answer {
    let unknown = || Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, &request.path);
    webui::file(name).ok_or_else(unknown)
}

async fn back_office(app: &Merchant, request: &Request) -> Answer {
    require_named_shop(app, request).await?;
    match request.path.ends_with('/') {
        true => file(request, PAGE),
        false => Ok(webui::with_slash()),
    }
}

async fn back_office_file(_: &Merchant, request: &Request) -> Answer {
    file(request, parameter(request))
}

/// Only for the shop, because it costs time.
async fn qr_code(_: &Arc<Merchant>, request: &mut Request, _: &Shop, _: &str) -> Answer {
    let code = body::<QrRequest>(request)?.code().ok_or_else(|| malformed("uri"))?;
    Ok(Response::json(200, &code).with_header(header::CACHE_CONTROL, "no-store"))
}

async fn config(app: &Merchant, request: &Request) -> Answer {
    require_named_shop(app, request).await?;
    let config = MerchantConfig {
        version: MERCHANT_PROTOCOL_VERSION.to_owned(),
        name: "taler-merchant".to_owned(),
        currency: app.core.config.currency.to_string(),
    };
    Ok(Response::json(200, &config))
}

/// Requires the instance that the path names. The default one need not exist yet.
async fn require_named_shop(app: &Merchant, request: &Request) -> Checked<()> {
    let id = instance(request);
    if id != DEFAULT {
        app.gate.require_shop(&app.core, id).await?;
    }
    Ok(())
}
