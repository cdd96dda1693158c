//! Answers to requests that an exchange keeps from being served.

use batzen_http::Response;
use batzen_http::client::ClientError;
use batzen_protocol::ErrorCode;
use serde_json::{Map, Value, json};

use crate::exchanges::ExchangeError;

/// An answer of an exchange that keeps a payment from being complete.
pub(super) fn exchange_problem(
    code: ErrorCode,
    status: Option<u16>,
    reply: Option<(u16, Value)>,
) -> Response {
    let mut extra = Map::new();
    if let Some((http_status, reply)) = reply {
        extra.insert("exchange_http_status".to_owned(), json!(http_status));
        if let Some(code) = reply.get("code") {
            extra.insert("exchange_code".to_owned(), code.clone());
        }
        extra.insert("exchange_reply".to_owned(), reply);
    }
    Response::error_with(code, status, "", extra)
}

/// The answer about an exchange that was named by this URL.
pub(super) fn unknown_exchange(error: &ExchangeError, url: &str) -> Response {
    let detail = error.to_string();
    match error {
        ExchangeError::NotAccepted => {
            Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_AUDITOR_FAILURE, url)
        }
        ExchangeError::Timeout(_) => Response::error(ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT, &detail),
        ExchangeError::Unreachable(_) => {
            Response::error(ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE, &detail)
        }
        ExchangeError::Status { .. } | ExchangeError::Malformed(_) => {
            Response::error(ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE, &detail)
        }
    }
}

/// The exchange did not answer: whether it has accepted the coins is found out by asking again.
pub(super) fn unanswered(error: &ClientError) -> Response {
    let code = match error {
        ClientError::Timeout { .. } => ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT,
        _ => ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE,
    };
    exchange_problem(code, None, None)
}

/// The exchange's answer cannot be read, or is not signed.
pub(super) fn malformed_reply() -> Response {
    exchange_problem(ErrorCode::MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED, None, None)
}
