//! Identification by an OAuth 2.0 provider: the authorisation code flow (RFC 6749 chapter 4.1, semantics chapter
//! 9.4).

use batzen_http::Head;
use batzen_http_client::{Client, Reply};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::{Identity, KycLogic, NotIdentified, Process, url_encoded};
use crate::config::OAuth2Config;

/// The longest name of a user that is stored, in bytes.
const USER_ID_BYTES_MAX: usize = 256;

pub(super) struct OAuth2 {
    config: OAuth2Config,
    client: Client,
}

/// The answer of the token endpoint (RFC 6749 chapter 5.1). Lifetime and refresh token are not used: the token is
/// used once, at once.
#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: String,
}

/// A refusal (RFC 6749 chapter 5.2).
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

/// The answer of the information endpoint.
#[derive(Deserialize)]
struct Info {
    status: String,
    data: Map<String, Value>,
}

impl OAuth2 {
    pub(super) fn new(config: OAuth2Config, client: Client) -> Self {
        Self { config, client }
    }

    /// Where the provider sends the user back to.
    fn redirect_uri(process: Process<'_>) -> String {
        let Process { base_url, section, h_payto, .. } = process;
        format!("{base_url}kyc-proof/{section}?state={h_payto}")
    }

    async fn token(&self, process: Process<'_>, code: &str) -> Result<Zeroizing<String>, NotIdentified> {
        let form = [
            ("client_id", self.config.client_id.as_str()),
            ("redirect_uri", &Self::redirect_uri(process)),
            ("client_secret", &self.config.client_secret),
            ("code", code),
            ("grant_type", "authorization_code"),
        ]
        .map(|(name, value)| format!("{name}={}", url_encoded(value)))
        .join("&");
        let call = self.client.post(self.config.auth_url.as_str());
        let reply = call.body("application/x-www-form-urlencoded", form.into_bytes()).send().await;
        let reply = reply.map_err(|error| NotIdentified::Failed(error.to_string()))?;
        check(&reply, "proof error")?;
        let answer: TokenAnswer =
            reply.json().map_err(|_| NotIdentified::Malformed("token endpoint".to_owned()))?;
        if !answer.token_type.eq_ignore_ascii_case("bearer") {
            return Err(NotIdentified::Malformed("token_type".to_owned()));
        }
        let token = Zeroizing::new(answer.access_token);
        // It becomes a header field.
        if token.is_empty() || token.chars().any(|c| c.is_control() || c == ' ' || c == ';' || !c.is_ascii())
        {
            return Err(NotIdentified::Malformed("access_token".to_owned()));
        }
        Ok(token)
    }

    async fn identify(&self, token: &str) -> Result<Identity, NotIdentified> {
        let bearer = Zeroizing::new(format!("Bearer {token}"));
        let call = self.client.get(self.config.info_url.as_str()).header("authorization", &bearer);
        let reply = call.send().await.map_err(|error| NotIdentified::Failed(error.to_string()))?;
        check(&reply, "info error")?;
        let malformed = || NotIdentified::Malformed("info endpoint".to_owned());
        let info: Info = reply.json().map_err(|_| malformed())?;
        let id = info.data.get("id").and_then(Value::as_str).filter(|id| id.len() <= USER_ID_BYTES_MAX);
        match (info.status.as_str(), id.map(str::to_owned)) {
            ("success", Some(user_id)) => Ok(Identity {
                user_id,
                attributes: Value::Object(info.data),
                next_url: self.config.post_url.clone(),
            }),
            _ => Err(malformed()),
        }
    }
}

/// A reply other than 200 is a refusal if it says so, or else malformed.
fn check(reply: &Reply, what: &str) -> Result<(), NotIdentified> {
    if reply.status == 200 {
        return Ok(());
    }
    match reply.json::<Refusal>() {
        Ok(refusal) => Err(NotIdentified::Refused { title: refusal.error, text: refusal.error_description }),
        Err(_) if reply.status >= 500 => Err(NotIdentified::Failed(format!("HTTP {}", reply.status))),
        Err(_) => Err(NotIdentified::Malformed(what.to_owned())),
    }
}

impl KycLogic for OAuth2 {
    fn user_url(&self, process: Process<'_>) -> String {
        let OAuth2Config { login_url, client_id, .. } = &self.config;
        let (client_id, redirect_uri) = (url_encoded(client_id), url_encoded(&Self::redirect_uri(process)));
        let joint = if login_url.contains('?') { '&' } else { '?' };
        format!("{login_url}{joint}response_type=code&client_id={client_id}&redirect_uri={redirect_uri}")
    }

    fn prove<'a>(
        &'a self,
        process: Process<'a>,
        head: &'a Head,
    ) -> BoxFuture<'a, Result<Identity, NotIdentified>> {
        Box::pin(async move {
            if let Some(error) = head.query_text("error") {
                let text = head.query_text("error_description").unwrap_or_default().to_owned();
                return Err(NotIdentified::Refused { title: error.to_owned(), text });
            }
            let code = head.query_text("code").ok_or(NotIdentified::Missing("code"))?;
            let token = self.token(process, code).await?;
            self.identify(&token).await
        })
    }
}
