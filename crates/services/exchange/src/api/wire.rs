//! `GET /wire`: bank accounts and wire fees, prepared in advance.

use batzen_http::{Request, Response, header};

use super::{Table, endpoint, error};
use crate::app::Exchange;

pub(super) fn routes(table: Table) -> Table {
    table.get("/wire", "other", endpoint!(get))
}

async fn get(app: &Exchange, request: &Request) -> Response {
    let keys = app.keys();
    let answer = match keys.wire_answer() {
        Ok(answer) => answer,
        Err(missing) => return error(missing.code(), missing.detail()),
    };
    if request.has_version(&answer.etag) {
        return Response::empty(304)
            .with_header(header::EXPIRES, &answer.expires)
            .with_header(header::ETAG, &answer.etag);
    }
    Response::bytes(200, "application/json", answer.body.clone())
        .with_deflated(answer.deflated.clone())
        .with_header(header::EXPIRES, &answer.expires)
        .with_header(header::VARY, "Accept-Encoding")
        .with_header(header::CACHE_CONTROL, "public,max-age=86400")
        .with_header(header::ETAG, &answer.etag)
}
