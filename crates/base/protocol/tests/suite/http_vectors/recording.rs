//! One recorded exchange of messages, and the bodies in it.

use batzen_protocol::{Amount, parse_body};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A request with its answer.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Recording {
    #[serde(default)]
    pub file: String,
    pub flow: String,
    pub step: u64,
    pub server: String,
    pub request: Request,
    pub response: Response,
}

#[derive(Debug, serde::Deserialize)]
pub(super) struct Request {
    pub method: String,
    pub path: String,
    pub body: Value,
}

#[derive(Debug, serde::Deserialize)]
pub(super) struct Response {
    pub status: u16,
    pub body: Value,
}

impl Recording {
    /// Method and path segments.
    pub(super) fn route(&self) -> (&str, Vec<&str>) {
        let path = self.request.path.split('?').next().unwrap_or_default();
        (&self.request.method, path.split('/').filter(|segment| !segment.is_empty()).collect())
    }

    /// An argument of the query.
    pub(super) fn argument(&self, name: &str) -> Option<&str> {
        let (_, query) = self.request.path.split_once('?')?;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// The error code of the answer, if it has one.
    pub(super) fn code(&self) -> Option<u32> {
        self.response.body.get("code")?.as_u64()?.try_into().ok()
    }

    pub(super) fn ok(&self) -> bool {
        (200..300).contains(&self.response.status)
    }

    /// The request's body.
    pub(super) fn request<T: DeserializeOwned + Serialize>(&self) -> T {
        strict(&self.request.body, self.file.starts_with("errors"))
    }

    /// The answer's body.
    pub(super) fn response<T: DeserializeOwned + Serialize>(&self) -> T {
        strict(&self.response.body, false)
    }
}

/// The bytes of a recorded body.
pub(super) fn bytes(body: &Value) -> Vec<u8> {
    match body {
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    }
}

/// Parses, serialises again and compares. `lenient` accepts spellings that are read but never written
/// (members that the protocol does not have, lower case, zeros at the end of an amount), which occur in
/// recordings of unusual requests.
fn strict<T: DeserializeOwned + Serialize>(body: &Value, lenient: bool) -> T {
    let parsed: T = parse_body(&bytes(body)).unwrap_or_else(|e| panic!("{e} in {body}"));
    let again = serde_json::to_value(&parsed).expect("what was parsed can be serialised");
    assert!(again == *body || lenient && means(body, &again), "round trip: {body} became {again}");
    parsed
}

/// Returns whether `written` means the same as `read`.
fn means(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => {
            written.iter().all(|(name, value)| read.get(name).is_some_and(|read| means(read, value)))
        }
        (Value::Array(read), Value::Array(written)) => {
            read.len() == written.len()
                && read.iter().zip(written).all(|(read, written)| means(read, written))
        }
        (Value::String(read), Value::String(written)) => {
            read.eq_ignore_ascii_case(written)
                || matches!((read.parse::<Amount>(), written.parse()), (Ok(a), Ok(b)) if a == b)
        }
        (read, written) => read == written,
    }
}
