//! The back office's requests that are not those of every program: its files, and QR codes.

use batzen_http::{Head, Request, Response, header};
use batzen_protocol::ErrorCode;

use super::tokens::Scope;
use super::{Answer, Service, body};
use crate::urls::DEFAULT;
use crate::webui::{self, PAGE, QrRequest};

const HOME: &str = "A Batzen merchant backend.\n\n\
                    Back office:     /webui/, /instances/$ID/webui/\n\
                    Interface:       /openapi.json\n\
                    Shops:           /management/instances\n\
                    Orders:          /private/orders, /instances/$ID/private/orders\n\
                    For wallets:     /orders/$ORDER_ID, /instances/$ID/orders/$ORDER_ID\n\
                    Metrics:         /metrics\n\
                    Dashboard:       /dashboard\n";

/// What is at `/`: a page with a link for browsers, a text for others.
pub(super) fn home(head: &Head) -> Response {
    match head.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
        true => webui::home(),
        false => Response::text(200, HOME),
    }
}

fn unknown_path(head: &Head) -> Response {
    Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, &head.path)
}

pub(super) fn web_ui_file(head: &Head, name: &str) -> Answer {
    webui::file(name).ok_or_else(|| unknown_path(head))
}

impl Service {
    pub(super) async fn web_ui(&self, head: &Head, instance: &str) -> Answer {
        // The first page of a new backend says that there is no shop yet.
        if instance != DEFAULT {
            self.shop(instance).await?;
        }
        match head.path.ends_with('/') {
            true => web_ui_file(head, PAGE),
            false => Ok(webui::with_slash()),
        }
    }

    /// The QR code of a link. Only for the shop, because it costs time.
    pub(super) async fn qr_code(&self, request: &Request, instance: &str) -> Answer {
        self.may(Scope::ReadOnly, &request.head, instance).await?;
        let code = body::<QrRequest>(request)?.code();
        let code = code.ok_or_else(|| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "uri"))?;
        Ok(Response::json(200, &code).with_header(header::CACHE_CONTROL, "no-store"))
    }
}
