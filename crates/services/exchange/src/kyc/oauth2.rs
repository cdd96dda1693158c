//! Identification by an OAuth 2.0 provider: the authorisation code flow (RFC 6749 chapter 4.1, semantics chapter
//! 9.4).

use batzen_http::Head;
use batzen_http::client::{Client, Reply, url_encoded};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::{Identity, KycLogic, Login, NotIdentified, Process};
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

/// The user's name at the provider, and the attributes, in an answer of the information endpoint: either `{status:
/// "success", data: {id, …}}`, or the claims of OpenID Connect (Core 1.0 chapter 5.3), whose name is `sub`.
fn identity_in(answer: Map<String, Value>) -> Option<(String, Map<String, Value>)> {
    let (name, attributes) = match answer.get("status") {
        None => ("sub", answer),
        Some(status) if status == "success" => match answer.get("data")? {
            Value::Object(data) => ("id", data.clone()),
            _ => return None,
        },
        Some(_) => return None,
    };
    let id = attributes.get(name)?.as_str().filter(|id| id.len() <= USER_ID_BYTES_MAX)?.to_owned();
    Some((id, attributes))
}

impl OAuth2 {
    pub(super) fn new(config: OAuth2Config, client: Client) -> Self {
        Self { config, client }
    }

    /// Where the provider sends the user back to.
    fn redirect_uri(login: Login<'_>) -> String {
        let Login { base_url, section, state } = login;
        format!("{base_url}kyc-proof/{section}?state={state}")
    }

    async fn token(&self, login: Login<'_>, code: &str) -> Result<Zeroizing<String>, NotIdentified> {
        let call = self.client.post(self.config.auth_url.as_str()).form(&[
            ("client_id", &self.config.client_id),
            ("redirect_uri", &Self::redirect_uri(login)),
            ("client_secret", &self.config.client_secret),
            ("code", code),
            ("grant_type", "authorization_code"),
        ]);
        let reply = call.send().await;
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
        let (user_id, attributes) =
            identity_in(reply.json().map_err(|_| malformed())?).ok_or_else(malformed)?;
        let (attributes, next_url) = (Value::Object(attributes), self.config.post_url.clone());
        Ok(Identity { user_id, attributes, next_url })
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
        let Process { base_url, section, h_payto, token } = process;
        format!("{base_url}kyc-login/{section}?account={h_payto}&token={token}")
    }

    fn login_url(&self, login: Login<'_>) -> Option<String> {
        let OAuth2Config { login_url, client_id, .. } = &self.config;
        let (client_id, redirect_uri) = (url_encoded(client_id), url_encoded(&Self::redirect_uri(login)));
        let joint = if login_url.contains('?') { '&' } else { '?' };
        Some(format!(
            "{login_url}{joint}response_type=code&client_id={client_id}&redirect_uri={redirect_uri}"
        ))
    }

    fn prove<'a>(
        &'a self,
        login: Login<'a>,
        head: &'a Head,
    ) -> BoxFuture<'a, Result<Identity, NotIdentified>> {
        Box::pin(async move {
            if let Some(error) = head.query_text("error") {
                let text = head.query_text("error_description").unwrap_or_default().to_owned();
                return Err(NotIdentified::Refused { title: error.to_owned(), text });
            }
            let code = head.query_text("code").ok_or(NotIdentified::Missing("code"))?;
            let token = self.token(login, code).await?;
            self.identify(&token).await
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_of_answers_name_the_user() {
        let id = |answer: Value| {
            let Value::Object(answer) = answer else { unreachable!("an object") };
            identity_in(answer).map(|(id, attributes)| (id, attributes.len()))
        };
        let found = |id: &str, attributes| Some((id.to_owned(), attributes));
        assert_eq!(id(json!({ "status": "success", "data": { "id": "7", "name": "A" } })), found("7", 2));
        assert_eq!(id(json!({ "sub": "abc", "name": "A", "email": "a@b" })), found("abc", 3));
        for bad in [
            json!({}),
            json!({ "sub": 7 }),
            json!({ "sub": "x".repeat(257) }),
            json!({ "status": "failed", "data": { "id": "7" } }),
            json!({ "status": "success", "data": ["7"] }),
            json!({ "status": "success", "data": { "sub": "7" } }),
        ] {
            assert_eq!(id(bad.clone()), None, "{bad}");
        }
    }
}
