//! HTTP as data: what the core wants to be sent, and what came back. Sending is the driver's business.

use batzen_protocol::ErrorCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CoreError;

/// GET or POST, the two methods the protocol uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Changes something; every POST of this protocol may be repeated without harm.
    Post,
}

impl Method {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

/// Which of the wallet's faces a request shows. Requests of different contexts must not share a connection: whoever
/// sees both ends of one could link a withdrawal to a payment, which the blind signatures just made impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// Public information of an exchange.
    Info,
    /// The bank that sends money.
    Bank,
    /// Reserves and withdrawals.
    Withdraw,
    /// Payments, refunds and tracking of payments.
    Deposit,
    /// Melt, reveal and recoup.
    Refresh,
}

impl Context {
    /// All contexts.
    pub const ALL: [Self; 5] = [Self::Info, Self::Bank, Self::Withdraw, Self::Deposit, Self::Refresh];
}

/// A request that the driver shall send.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// GET or POST.
    pub method: Method,
    /// The complete URL.
    pub url: String,
    /// JSON text for a POST.
    pub body: Option<Vec<u8>>,
    /// The only media type that is wanted.
    pub accept: &'static str,
    /// Bank credentials (user, password).
    pub basic_auth: Option<(String, String)>,
    /// Which connections it may use.
    pub context: Context,
    /// How long the server may hold back its answer, in milliseconds; the driver waits that much longer.
    pub poll_ms: u64,
}

impl std::fmt::Debug for HttpRequest {
    /// Without body and credentials: they hold secrets (coin signatures, refresh secrets, passwords).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method.as_str(), self.url, self.context)
    }
}

impl HttpRequest {
    /// A GET.
    #[must_use]
    pub fn get(context: Context, url: String) -> Self {
        Self {
            method: Method::Get,
            url,
            body: None,
            accept: "application/json",
            basic_auth: None,
            context,
            poll_ms: 0,
        }
    }

    /// A POST of `body` as JSON.
    ///
    /// # Panics
    /// If `body` has no JSON form; the bodies of the protocol all have one.
    #[must_use]
    pub fn post(context: Context, url: String, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("protocol bodies have texts as keys and finite numbers");
        Self { method: Method::Post, body: Some(body), ..Self::get(context, url) }
    }

    /// The same request, of which the server may hold back the answer for `ms` milliseconds.
    #[must_use]
    pub fn polling(mut self, ms: u64) -> Self {
        self.poll_ms = ms;
        self
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// The `ETag` header as it is written.
    pub etag: Option<String>,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
    /// Seconds to wait according to `Retry-After`.
    pub retry_after_s: Option<u64>,
    /// The body, inflated.
    pub body: Vec<u8>,
}

/// The members of every error body.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
struct ErrorBody {
    code: u32,
    #[serde(default)]
    hint: Option<String>,
    #[serde(default)]
    detail: Option<String>,
}

impl HttpResponse {
    /// The body as `T`.
    ///
    /// # Errors
    /// [`CoreError::BadAnswer`] if it does not parse; `what` says which answer.
    pub fn json<T: DeserializeOwned>(&self, what: &'static str) -> Result<T, CoreError> {
        serde_json::from_slice(&self.body).map_err(|error| CoreError::BadAnswer {
            what,
            status: self.status,
            reason: error.to_string(),
        })
    }

    /// The protocol error code in the body, [`ErrorCode::NONE`] if there is none.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        serde_json::from_slice::<ErrorBody>(&self.body)
            .map_or(ErrorCode::NONE, |body| ErrorCode::from_u32(body.code))
    }

    /// This answer as an error: status, code and texts.
    #[must_use]
    pub fn refusal(&self, what: &'static str) -> CoreError {
        let body: Option<ErrorBody> = serde_json::from_slice(&self.body).ok();
        let (code, text) = match body {
            Some(body) => (body.code, body.detail.or(body.hint).unwrap_or_default()),
            None => (0, String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned()),
        };
        CoreError::Refused { what, status: self.status, code, text }
    }

    /// Whether the same request may succeed later without anybody changing it: overload and faults of the server.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..)
    }
}
