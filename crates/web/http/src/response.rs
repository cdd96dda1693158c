//! The response that a handler returns.

use crate::codes::FrameError;
use batzen_protocol::{ErrorBody, ErrorCode};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value};

/// Most JSON bodies fit into this buffer, in bytes.
const JSON_BYTES: usize = 512;

/// A response. The server adds compression, the CORS headers and the headers of the connection.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Header fields, in order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, not compressed.
    pub body: Bytes,
    /// The body compressed in advance (zlib), for large documents that are sent many times.
    pub(crate) deflated: Option<Bytes>,
    /// Whether to close the connection after this response.
    pub(crate) close: bool,
}

impl Response {
    /// A response with a body and its content type; if that is empty, there is no content type header.
    #[must_use]
    pub fn bytes(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let response = Self { status, headers: Vec::new(), body: body.into(), deflated: None, close: false };
        if content_type.is_empty() {
            response
        } else {
            response.with_header(header::CONTENT_TYPE, content_type)
        }
    }

    /// A JSON response. A value that has no JSON form (none of our types) becomes a 500.
    #[must_use]
    pub fn json(status: u16, value: &impl Serialize) -> Self {
        let mut body = Vec::with_capacity(JSON_BYTES);
        match serde_json::to_writer(&mut body, value) {
            Ok(()) => Self::json_text(status, body),
            Err(error) => Self::frame_error(FrameError::InternalInvariant, error.to_string().as_str()),
        }
    }

    /// A response with a JSON text.
    #[must_use]
    pub fn json_text(status: u16, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
            body: body.into(),
            deflated: None,
            close: false,
        }
    }

    /// A response without a body, such as 204 or 304.
    #[must_use]
    pub const fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), deflated: None, close: false }
    }

    /// A plain text response.
    #[must_use]
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::bytes(status, "text/plain; charset=utf-8", text.into())
    }

    /// The response for an error code, with the code's own status: `{hint, code, detail?}`. An empty detail
    /// is left out.
    #[must_use]
    pub fn error(code: ErrorCode, detail: &str) -> Self {
        Self::error_with(code, None, detail, Map::new())
    }

    /// The response for an error code with a status other than the registry's.
    #[must_use]
    pub fn error_status(code: ErrorCode, status: u16, detail: &str) -> Self {
        Self::error_with(code, Some(status), detail, Map::new())
    }

    /// The response for an error code with further members (evidence or conflict proofs, as a struct or a
    /// map), and optionally another status.
    #[must_use]
    pub fn error_with(code: ErrorCode, status: Option<u16>, detail: &str, extra: impl Serialize) -> Self {
        let mut body = ErrorBody::with(code, extra);
        if !detail.is_empty() {
            body.detail = Some(detail.to_owned());
        }
        Self::json(status.unwrap_or_else(|| code.http_status()), &body)
    }

    pub(crate) fn frame_error(error: FrameError, detail: &str) -> Self {
        Self::error_with(error.code(), Some(error.status()), detail, Map::new())
    }

    /// Adds a header field. An invalid value is logged and left out.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(value) => self.headers.push((name, value)),
            Err(_) => tracing::error!(header = %name, "invalid header value left out"),
        }
        self
    }

    /// Supplies the compressed body, computed once for many responses.
    #[must_use]
    pub fn with_deflated(mut self, deflated: Bytes) -> Self {
        self.deflated = Some(deflated);
        self
    }

    /// The text of a header field.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.to_str().ok())
    }

    /// The body as a JSON value, `Null` if it is not JSON; for tests and logs.
    #[must_use]
    pub fn json_value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}
