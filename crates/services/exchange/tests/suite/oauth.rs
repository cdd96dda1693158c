//! OAuth 2.0 providers that identify customers (RFC 6749 chapter 4.1).

use std::sync::Arc;

use batzen_exchange::config::{KycLogicConfig, KycProviderConfig, OAuth2Config};
use batzen_exchange::rules::{KycProvider, KycUserType};
use batzen_http::{Drain, Handler, Listen, Server, ServerOptions};
use batzen_protocol::Duration;

/// A running provider.
pub(crate) struct OAuthProvider {
    pub url: String,
    drain: Drain,
}

impl OAuthProvider {
    pub(crate) async fn start(endpoints: impl Handler) -> Self {
        let server = Server::bind(Listen::tcp(Some("127.0.0.1".to_owned()), 0)).await.unwrap();
        let url = format!("http://127.0.0.1:{}", server.port());
        let drain = Drain::new();
        tokio::spawn(server.serve(Arc::new(endpoints), ServerOptions::default(), drain.clone()));
        Self { url, drain }
    }

    /// The configuration of an exchange that is its client with this secret.
    pub(crate) fn config(&self, check: &str, secret: &str) -> (KycProvider, KycProviderConfig) {
        let section = "kyc-provider-test-oauth2".to_owned();
        let provider = KycProvider {
            section: section.clone(),
            cost: 1,
            user_type: KycUserType::Individual,
            checks: vec![check.to_owned()],
        };
        let logic = KycLogicConfig::OAuth2(OAuth2Config {
            login_url: format!("{}/login", self.url),
            auth_url: format!("{}/token", self.url),
            info_url: format!("{}/info", self.url),
            post_url: "http://example.com/".to_owned(),
            client_id: "taler-exchange".to_owned(),
            client_secret: secret.to_owned(),
        });
        (provider, KycProviderConfig { section, validity: Duration::from_days(30), logic })
    }
}

impl Drop for OAuthProvider {
    fn drop(&mut self) {
        self.drain.trigger();
    }
}
