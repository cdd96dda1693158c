//! The provider of the recordings: an OAuth 2.0 service (RFC 6749 chapter 4.1) that identifies everybody who
//! brings the code "pass". It was out of order when it first saw another code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use batzen_exchange::config::{ExchangeConfig, KycLogicConfig, KycProviderConfig, OAuth2Config};
use batzen_exchange::rules::{KycProvider, KycRule, KycUserType};
use batzen_http::{
    Admission, Drain, Handler, Head, Listen, Method, Reach, Request, Response, Server, ServerOptions,
};
use batzen_protocol::{Duration, Money};
use batzen_tables::exchange::KycOperation;
use serde_json::json;

/// The name in the recorded URLs.
const SECTION: &str = "kyc-provider-test-oauth2";
const CHECK: &str = "identity";
/// Operations that need an identification, and the amounts from which they need it.
const LIMITS: [(KycOperation, &str); 5] = [
    (KycOperation::Withdraw, "10"),
    (KycOperation::Deposit, "0.01"),
    (KycOperation::Merge, "0.01"),
    (KycOperation::Balance, "8"),
    (KycOperation::Close, "0.01"),
];

pub(super) struct Provider {
    url: String,
    drain: Drain,
}

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

impl Provider {
    pub(super) async fn start() -> Self {
        let listen = Listen::Tcp { host: Some("127.0.0.1".into()), port: 0, share_port: false };
        let server = Server::bind(listen).await.unwrap();
        let url = format!("http://127.0.0.1:{}", server.bound().port().unwrap());
        let drain = Drain::new();
        let endpoints = Arc::new(Endpoints::default());
        tokio::spawn(server.serve(endpoints, ServerOptions::default(), drain.clone()));
        Self { url, drain }
    }

    /// Adds this provider, and the limits from which on it must identify customers.
    pub(super) fn configure(&self, config: &mut ExchangeConfig) {
        let checks = vec![CHECK.to_owned()];
        for (operation, threshold) in LIMITS {
            let threshold: Money = threshold.parse().unwrap();
            let timeframe = Duration::from_days(1);
            let rule = KycRule { operation, checks: checks.clone(), threshold, timeframe };
            config.kyc.rules.rules.push(rule);
        }
        let section = SECTION.to_owned();
        let user_type = KycUserType::Individual;
        config.kyc.rules.providers.push(KycProvider { section: section.clone(), cost: 1, user_type, checks });
        let logic = KycLogicConfig::OAuth2(OAuth2Config {
            login_url: format!("{}/login", self.url),
            auth_url: format!("{}/token", self.url),
            info_url: format!("{}/info", self.url),
            post_url: "http://example.com/".to_owned(),
            client_id: "taler-exchange".to_owned(),
            client_secret: "exchange-secret".to_owned(),
        });
        config.kyc.providers.push(KycProviderConfig { section, validity: Duration::from_days(30), logic });
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.drain.trigger();
    }
}
