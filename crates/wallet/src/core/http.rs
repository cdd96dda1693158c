//! HTTP as data: the requests that the core wants to send, and their answers. The driver sends them.

use batzen_crypto::EddsaSignature;
use batzen_protocol::ErrorCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CoreError;

batzen_protocol::enumeration! {
    /// The methods that the protocol uses.
    pub enum Method {
        /// Reads data.
        Get => "GET",
        /// Changes data. Every POST of this protocol can be repeated without harm.
        Post => "POST",
        /// Deletes a purse. A repetition is refused, and the purse's state then tells why.
        Delete => "DELETE",
    }
}

/// The purpose of a request. Requests of different contexts must not share a connection; otherwise an
/// observer of the connection could link a withdrawal to a payment, which blind signatures are meant to
/// prevent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// Public information of an exchange.
    Info,
    /// Bank that the money comes from.
    Bank,
    /// Reserves and withdrawals, and purses that pay into a reserve.
    Withdraw,
    /// Payments, refunds and tracking of payments, and what is paid into purses.
    Deposit,
    /// Melt, reveal and recoup.
    Refresh,
    /// Orders of shops.
    Merchant,
}

impl Context {
    pub(crate) const ALL: [Self; 6] =
        [Self::Info, Self::Bank, Self::Withdraw, Self::Deposit, Self::Refresh, Self::Merchant];
}

/// A request for the driver to send.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// GET, POST or DELETE.
    pub method: Method,
    /// The complete URL.
    pub url: String,
    /// JSON text of a POST.
    pub body: Option<Vec<u8>>,
    /// The only accepted media type.
    pub accept: &'static str,
    /// Bank credentials (user, password).
    pub basic_auth: Option<(String, String)>,
    /// The signature of a purse's key, in the header `Taler-Purse-Signature`.
    pub purse_sig: Option<EddsaSignature>,
    /// The id for the logs of all that work on it. Wallets of people send none: it would link their requests.
    pub correlation_id: Option<String>,
    /// Decides which connections may carry it.
    pub context: Context,
    /// Time that the server may delay its answer (long poll), in milliseconds. The driver waits that much
    /// longer.
    pub poll_ms: u64,
}

impl std::fmt::Debug for HttpRequest {
    /// Omits body and credentials: they contain secrets (coin signatures, refresh secrets, passwords).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method.name(), self.url, self.context)
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
            purse_sig: None,
            correlation_id: None,
            context,
            poll_ms: 0,
        }
    }

    /// A POST of `body` as JSON.
    ///
    /// # Panics
    /// If `body` cannot be serialized. All bodies of the protocol can.
    #[must_use]
    pub fn post(context: Context, url: String, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("protocol bodies have texts as keys and finite numbers");
        Self { method: Method::Post, body: Some(body), ..Self::get(context, url) }
    }

    /// A DELETE of a purse, signed by its key.
    #[must_use]
    pub(crate) fn delete(context: Context, url: String, purse_sig: EddsaSignature) -> Self {
        Self { method: Method::Delete, purse_sig: Some(purse_sig), ..Self::get(context, url) }
    }

    /// A GET whose answer the server may delay by `poll_ms`, which goes into the query under `name`.
    pub(crate) fn long_poll(context: Context, url: String, name: &str, poll_ms: u64) -> Self {
        if poll_ms == 0 {
            return Self::get(context, url);
        }
        Self::get(context, format!("{url}?{name}={poll_ms}")).polling(poll_ms)
    }

    /// The same request with a long poll of `ms` milliseconds.
    #[must_use]
    pub(crate) fn polling(mut self, ms: u64) -> Self {
        self.poll_ms = ms;
        self
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// The `ETag` header, verbatim.
    pub etag: Option<String>,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
    /// Seconds of the `Retry-After` header.
    pub retry_after_s: Option<u64>,
    /// The decompressed body.
    pub body: Vec<u8>,
}

/// The members that every error body has.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
struct ErrorBody {
    code: u32,
    #[serde(default)]
    hint: Option<String>,
    #[serde(default)]
    detail: Option<String>,
}

impl HttpResponse {
    /// Parses the body as `T`.
    ///
    /// # Errors
    /// [`CoreError::BadAnswer`] if it does not parse; `what` names the answer.
    pub(crate) fn json<T: DeserializeOwned>(&self, what: &'static str) -> Result<T, CoreError> {
        serde_json::from_slice(&self.body).map_err(|error| self.malformed(what, error.to_string()))
    }

    /// This answer as an error: its content is impossible.
    pub(crate) fn malformed(&self, what: &'static str, reason: impl Into<String>) -> CoreError {
        CoreError::BadAnswer { what, status: self.status, reason: reason.into() }
    }

    /// The protocol error code in the body, [`ErrorCode::NONE`] if there is none.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        serde_json::from_slice::<ErrorBody>(&self.body)
            .map_or(ErrorCode::NONE, |body| ErrorCode::from_u32(body.code))
    }

    /// This answer as an error: status, code and texts.
    pub(crate) fn refusal(&self, what: &'static str) -> CoreError {
        let body: Option<ErrorBody> = serde_json::from_slice(&self.body).ok();
        let (code, text) = match body {
            Some(body) => (body.code, body.detail.or(body.hint).unwrap_or_default()),
            None => (0, String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned()),
        };
        CoreError::Refused { what, status: self.status, code, text }
    }

    /// Returns whether the same request may succeed later without any change: overload and server faults.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..)
    }
}
