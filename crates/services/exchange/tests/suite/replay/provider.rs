//! The provider of the recordings: an OAuth 2.0 service (RFC 6749 chapter 4.1) that identifies everybody who
//! brings the code "pass". It was out of order when it first saw another code.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::rules::KycRule;
use batzen_http::{Admission, Handler, Head, Method, Reach, Request, Response};
use batzen_protocol::Duration;
use batzen_tables::exchange::KycOperation;
use serde_json::json;

use crate::oauth::OAuthProvider;

const CHECK: &str = "identity";
/// Operations that need an identification, and the amounts from which they need it.
const LIMITS: [(KycOperation, &str); 5] = [
    (KycOperation::Withdraw, "10"),
    (KycOperation::Deposit, "0.01"),
    (KycOperation::Merge, "0.01"),
    (KycOperation::Balance, "8"),
    (KycOperation::Close, "0.01"),
];

#[derive(Default)]
struct Endpoints {
    was_out_of_order: AtomicBool,
    users: AtomicUsize,
}

impl Handler for Endpoints {
    /// A provider takes forms.
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Everyone, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        match (request.head.method.as_str(), request.segment(0)) {
            ("POST", "token") => self.token(&request),
            ("GET", "info") => {
                let id = request.head.bearer_token().unwrap_or_default();
                Response::json(200, &json!({ "status": "success", "data": { "id": id } }))
            }
            _ => Response::empty(404),
        }
    }
}

impl Endpoints {
    fn token(&self, request: &Request) -> Response {
        let form = std::str::from_utf8(&request.body).unwrap();
        let form = Head::local(Method::GET, &format!("/?{form}"));
        if form.query_text("code") == Some("pass") {
            let token = format!("user-{}", self.users.fetch_add(1, Ordering::SeqCst));
            return Response::json(200, &json!({ "access_token": token, "token_type": "Bearer" }));
        }
        if self.was_out_of_order.swap(true, Ordering::SeqCst) {
            Response::json(400, &json!({ "error": "invalid_grant", "error_description": "wrong code" }))
        } else {
            Response::text(418, "short and stout")
        }
    }
}

/// Starts the provider, and adds it to a configuration with the limits from which on it must identify customers.
pub(super) async fn start(config: &mut ExchangeConfig) -> OAuthProvider {
    let provider = OAuthProvider::start(Endpoints::default()).await;
    for (operation, threshold) in LIMITS {
        let (threshold, timeframe) = (threshold.parse().unwrap(), Duration::from_days(1));
        let checks = vec![CHECK.to_owned()];
        config.kyc.rules.rules.push(KycRule { operation, checks, threshold, timeframe });
    }
    let (rules, settings) = provider.config(CHECK, "exchange-secret");
    config.kyc.rules.providers.push(rules);
    config.kyc.providers.push(settings);
    provider
}
