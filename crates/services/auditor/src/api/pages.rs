//! Small pages: greeting, version, exchanges.

use batzen_http::{Response, header};
use batzen_protocol::api::auditor::{AUDITOR_PROTOCOL_VERSION, AuditedExchanges, AuditorVersion};

use super::{Answer, Service, read_failed};
use crate::books;

/// One of Batzen's licences. It is not under the AGPL, but whoever looks for the terms of the source looks here.
const LICENCE: &str = "https://www.apache.org/licenses/LICENSE-2.0";

pub(super) fn greeting() -> Response {
    Response::bytes(200, "text/plain", "Hello, I'm a Batzen auditor. This HTTP server is not for humans.\n")
}

pub(super) fn robots() -> Response {
    Response::bytes(200, "text/plain", "User-agent: *\nDisallow: /\n")
}

pub(super) fn licence() -> Response {
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

impl Service {
    pub(super) fn version(&self) -> Response {
        let answer = AuditorVersion {
            version: AUDITOR_PROTOCOL_VERSION.to_owned(),
            currency: self.config.currency.to_string(),
            auditor_public_key: self.auditor_pub,
        };
        Response::json(200, &answer)
    }

    pub(super) async fn exchanges(&self) -> Answer {
        let exchanges = self.read(books::exchanges).await.map_err(|error| read_failed(&error))?;
        Ok(Response::json(200, &AuditedExchanges { exchanges }))
    }
}
