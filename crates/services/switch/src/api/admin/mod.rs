//! The operators' interface. It is synchronous, and each request carries an operator's bearer token.

mod approvals;
mod bodies;
mod books;
mod changes;
pub mod dashboard;
mod funds;
mod reports;
mod settlements;

use std::sync::Arc;

use batzen_engine::SubmitError;
use batzen_http::{Request, Response, Style, header};
use batzen_service::{Api, Denied, TooMany, require_holder};
use serde::de::DeserializeOwned;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Table;
use crate::MAX_BODY_BYTES;
use crate::errors::ApiError;
use crate::rules::Refusal;
use crate::service::Service;
use crate::treasury::OperatorError;

/// The name of the hub in paths.
pub const HUB_NAME: &str = "Hub";

/// The operation of every row. Requests of operators are not counted.
const ADMIN: &str = "admin";

/// Either variant is sent to the client.
type Answer = Result<Response, Response>;

/// The operators' interface.
pub(crate) fn api(service: Arc<Service>) -> Api<Service> {
    Api::new(service, table())
}

pub(crate) fn table() -> Table {
    let mut table = Table::new(Style::ByPath, &[])
        .with_get_limit(MAX_BODY_BYTES)
        .with_unrouted(|_, _, response| of_the_interface(response))
        .reading_unrouted(ADMIN)
        .monitored(ADMIN)
        .with_dashboard(ADMIN);
    for family in [
        books::routes,
        changes::routes,
        funds::routes,
        approvals::routes,
        settlements::routes,
        reports::routes,
    ] {
        table = family(table);
    }
    table
}

/// A request by a known operator.
struct OperatorRequest<'a> {
    service: &'a Arc<Service>,
    request: &'a Request,
    operator: &'a str,
}

impl<'a> OperatorRequest<'a> {
    /// Requires an operator's bearer token: 401, code 3000; 429 after too many wrong ones.
    fn admit(service: &'a Arc<Service>, request: &'a Request) -> Result<Self, Response> {
        let known = service.config.operators.iter();
        let hashes = known.map(|operator| (operator.name.as_str(), operator.token_hash));
        let guesses = service.monitor.guesses();
        let found = require_holder(guesses, "", request, |token| Sha256::digest(token).into(), hashes);
        let denied = |denied| match denied {
            Denied::Wrong => fault(401, ApiError::ClientError, "an operator's bearer token is required")
                .with_header(header::WWW_AUTHENTICATE, "Bearer"),
            Denied::TooMany(wait) => wait.wait(fault(429, ApiError::ClientError, TooMany::DETAIL)),
        };
        Ok(Self { service, request, operator: found.map_err(denied)? })
    }

    fn param(&self, name: &str) -> &str {
        self.request.param(name)
    }

    fn json<T: DeserializeOwned>(&self) -> Result<T, Response> {
        serde_json::from_slice(&self.request.body)
            .map_err(|error| fault(400, ApiError::MalformedSyntax, &error.to_string()))
    }
}

/// Makes a table entry of a handler, which is a method of [`OperatorRequest`].
macro_rules! operator {
    ($handler:ident) => {
        |service, request| {
            Box::pin(async move {
                match $crate::api::admin::OperatorRequest::admit(service, request) {
                    Ok(admitted) => admitted.$handler().await.unwrap_or_else(|refused| refused),
                    Err(refused) => refused,
                }
            })
        }
    };
}
use operator;

/// An error answer in the form of the participants' interface.
fn fault(status: u16, error: ApiError, text: &str) -> Response {
    let text = if text.is_empty() { error.text() } else { text };
    let body =
        json!({ "errorInformation": { "errorCode": error.code().to_string(), "errorDescription": text } });
    Response::json(status, &body)
}

fn failed(error: &OperatorError) -> Response {
    let text = error.to_string();
    match error {
        OperatorError::Refused(Refusal::Unknown(_)) => fault(404, ApiError::IdNotFound, &text),
        OperatorError::Refused(Refusal::Conflict(_) | Refusal::NotDone(_)) => {
            fault(409, ApiError::ValidationError, &text)
        }
        OperatorError::Refused(Refusal::Forbidden(_)) => fault(403, ApiError::ClientError, &text),
        OperatorError::Refused(Refusal::Overtaken) | OperatorError::Lane(SubmitError::Overloaded) => {
            fault(503, ApiError::ServerBusy, &text).with_header(header::RETRY_AFTER, "1")
        }
        OperatorError::Lane(_) => fault(503, ApiError::ServiceUnavailable, &text),
        OperatorError::Insufficient(_) => fault(409, ApiError::PayerFspInsufficientLiquidity, &text),
        OperatorError::Malformed(_) => fault(400, ApiError::MalformedSyntax, &text),
        OperatorError::Store(_) | OperatorError::Ledger(_) => {
            tracing::error!(%error, "an operator's request failed");
            fault(500, ApiError::InternalServerError, &text)
        }
    }
}

/// Converts an error of the HTTP frame to the format of this interface.
pub(crate) fn of_the_interface(mut frame: Response) -> Response {
    let error = match frame.status {
        ..400 => return frame,
        404 => ApiError::UnknownUri,
        413 | 414 | 431 => ApiError::TooLarge,
        405 | 408 => ApiError::ClientError,
        503 => ApiError::ServerBusy,
        500.. => ApiError::InternalServerError,
        _ => ApiError::MalformedSyntax,
    };
    let text = match frame.status {
        404 => "there is no such path".to_owned(),
        405 => format!("the method is not allowed here: {}", frame.header(&header::ALLOW).unwrap_or("none")),
        _ => frame.json_value()["detail"].as_str().unwrap_or_default().to_owned(),
    };
    frame.body = fault(frame.status, error, &text).body;
    frame
}
