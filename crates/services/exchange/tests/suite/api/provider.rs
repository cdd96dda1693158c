//! An OAuth 2.0 provider that identifies everybody who knows the word "pass" (RFC 6749 chapter 4.1).

use std::collections::HashMap;
use std::sync::Mutex;

use batzen_exchange::config::KycProviderConfig;
use batzen_exchange::rules::KycProvider;
use batzen_http::{Admission, Handler, Head, Method, Reach, Request, Response, header};
use serde_json::json;

use crate::oauth::OAuthProvider;

const CLIENT: (&str, &str) = ("taler-exchange", "exchange secret & more");

#[derive(Default)]
struct Books {
    /// Codes that were not used yet, with the redirect URI they were made for.
    codes: HashMap<String, String>,
    /// Access tokens, with the names of their users.
    tokens: HashMap<String, String>,
    count: usize,
}

#[derive(Default)]
struct Endpoints {
    books: Mutex<Books>,
}

impl Handler for Endpoints {
    /// A provider takes forms.
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Everyone, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        let mut books = self.books.lock().unwrap();
        match (request.head.method.as_str(), request.segment(0)) {
            ("GET", "login") => books.login(&request.head),
            ("POST", "token") => books.token(&request),
            ("GET", "info") => books.info(&request.head),
            _ => Response::empty(404),
        }
    }
}

fn refusal(status: u16, error: &str, text: &str) -> Response {
    Response::json(status, &json!({ "error": error, "error_description": text }))
}

impl Books {
    /// The user logs in (here with the query's `word`) and is sent back with a code.
    fn login(&mut self, head: &Head) -> Response {
        let asked = |name: &str| head.query_text(name).unwrap_or_default().to_owned();
        let back = asked("redirect_uri");
        if asked("response_type") != "code" || asked("client_id") != CLIENT.0 || back.is_empty() {
            return Response::empty(400);
        }
        let joint = if back.contains('?') { '&' } else { '?' };
        if asked("word") != "pass" {
            let target = format!("{back}{joint}error=access_denied&error_description=wrong%20%3Cword%3E");
            return Response::empty(302).with_header(header::LOCATION, &target);
        }
        self.count += 1;
        let code = format!("code-{}", self.count);
        self.codes.insert(code.clone(), back.clone());
        Response::empty(302).with_header(header::LOCATION, &format!("{back}{joint}code={code}"))
    }

    fn token(&mut self, request: &Request) -> Response {
        let kind = request.header(header::CONTENT_TYPE).unwrap_or_default();
        assert_eq!(kind, "application/x-www-form-urlencoded");
        let form = std::str::from_utf8(&request.body).unwrap();
        let form = Head::local(Method::GET, &format!("/?{form}"));
        let sent = |name: &str| form.query_text(name).unwrap_or_default();
        if (sent("client_id"), sent("client_secret")) != CLIENT {
            return refusal(401, "invalid_client", "");
        }
        match sent("code") {
            "garbage" => return Response::text(200, "I am a teapot"),
            "broken" => return Response::text(418, "short and stout"),
            "down" => return Response::text(500, "oh no"),
            "evil" => {
                let answer = json!({ "access_token": "a b;c", "token_type": "bearer" });
                return Response::json(200, &answer);
            }
            "nobody" => {
                let answer = json!({ "access_token": "unknown", "token_type": "bearer" });
                return Response::json(200, &answer);
            }
            _ => {}
        }
        // A code is used once, and for the address that it was made for.
        let is_known = self.codes.remove(sent("code")).as_deref() == Some(sent("redirect_uri"));
        if !is_known || sent("grant_type") != "authorization_code" {
            return refusal(400, "invalid_grant", "only 'pass' shall pass");
        }
        self.count += 1;
        let token = format!("token-{}", self.count);
        self.tokens.insert(token.clone(), format!("user-{}", self.count));
        let answer = json!({
            "access_token": token, "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r",
        });
        Response::json(200, &answer)
    }

    fn info(&mut self, head: &Head) -> Response {
        match head.bearer_token().and_then(|token| self.tokens.get(token)) {
            Some(id) => Response::json(
                200,
                &json!({ "status": "success", "data": { "id": id, "full_name": "Anna Müller" } }),
            ),
            None => Response::json(200, &json!({ "status": "failed", "data": {} })),
        }
    }
}

/// Starts the provider. Returns it with the configuration of an exchange that trusts it.
pub(super) async fn start() -> (OAuthProvider, (KycProvider, KycProviderConfig)) {
    let provider = OAuthProvider::start(Endpoints::default()).await;
    let config = provider.config("name", CLIENT.1);
    (provider, config)
}
