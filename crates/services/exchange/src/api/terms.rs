//! `/terms` and `/privacy`: legal documents by content negotiation.

use batzen_http::{Request, Response, header, http_date};
use batzen_protocol::Duration;

use super::{Table, endpoint};
use crate::app::Exchange;
use crate::app::documents::Documents;

pub(super) fn routes(table: Table) -> Table {
    table.get("/terms", "other", endpoint!(terms)).get("/privacy", "other", endpoint!(privacy))
}

async fn terms(app: &Exchange, request: &Request) -> Response {
    serve(app, &app.terms, request)
}

async fn privacy(app: &Exchange, request: &Request) -> Response {
    serve(app, &app.privacy, request)
}

fn serve(app: &Exchange, documents: &Documents, request: &Request) -> Response {
    let expires = http_date(app.core.now().saturating_add(Duration::from_days(1)));
    let etag = documents.etag();
    if request.has_version(etag) {
        return Response::empty(304).with_header(header::EXPIRES, &expires).with_header(header::ETAG, etag);
    }
    let (document, languages) =
        documents.select(request.header(header::ACCEPT), request.header(header::ACCEPT_LANGUAGE));
    Response::bytes(200, document.mime, document.body.clone())
        .with_header(header::ETAG, etag)
        .with_header(header::EXPIRES, &expires)
        // Without a comma, as clients have always received it.
        .with_header(header::CACHE_CONTROL, "public max-age=864000")
        .with_header(header::VARY, "Accept-Language,Accept,Accept-Encoding")
        .with_header(header::HeaderName::from_static("acceptable-languages"), &languages)
}
