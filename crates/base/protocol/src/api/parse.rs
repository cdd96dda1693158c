//! Parsing of request bodies, with errors that include a position.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_path_to_error::Segment;

use crate::limits::OVER_LIMIT;
use crate::{ErrorBody, ErrorCode};

/// Why a body could not be parsed, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ParseError {
    /// The path, such as `coins[3].ub_sig.cipher`. Empty if the body is not JSON.
    pub path: String,
    /// The member of the body; `None` if the body is not JSON.
    pub field: Option<String>,
    /// Position of that member in the list of members.
    pub index: usize,
    /// Within an array: the element, and its member.
    pub element: Option<(usize, String)>,
    /// The fault.
    pub message: String,
}

/// Members of the error answer to a body that lacks a member or has a malformed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// Name of the member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// Its position in the list of members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u64>,
    /// Position of the element, in an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dimension: Option<u64>,
}

impl ParseError {
    /// The body of the answer (status 400, code 22): `field` and `line` for a member of the body, `detail`
    /// and `dimension` within an array, nothing else if the body was not JSON. An exceeded limit is in
    /// `detail`.
    pub fn to_error_body(&self) -> ErrorBody<FieldError> {
        let number = |n: usize| u64::try_from(n).ok();
        let (detail, extra) = match (&self.field, &self.element) {
            (None, _) => (None, FieldError { field: None, line: None, dimension: None }),
            (Some(field), None) => {
                // Report an exceeded limit: it is not part of the protocol, so clients cannot know it.
                let detail = self.message.starts_with(OVER_LIMIT).then(|| self.message.clone());
                (detail, FieldError { field: Some(field.clone()), line: number(self.index), dimension: None })
            }
            (Some(_), Some((index, name))) => {
                (Some(name.clone()), FieldError { field: None, line: None, dimension: number(*index) })
            }
        };
        ErrorBody { detail, ..ErrorBody::with(ErrorCode::GENERIC_JSON_INVALID, extra) }
    }

    fn not_json(message: String) -> Self {
        Self { path: String::new(), field: None, index: 0, element: None, message }
    }
}

/// Parses a body.
///
/// # Errors
/// [`ParseError`]. A valid body is parsed once, without an intermediate form; only an invalid one is parsed
/// again to find the error.
pub fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ParseError> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        // serde would also accept an array of the members, which the protocol does not allow.
        Some(b'{') => serde_json::from_slice(body).map_err(|_| explain::<T>(body)),
        Some(b'[') if fields::<T>().is_none() => serde_json::from_slice(body).map_err(|_| explain::<T>(body)),
        Some(b'[') => match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => {
                let first = fields::<T>().and_then(|fields| fields.first()).copied().unwrap_or_default();
                Err(field_error::<T>(first, "expected an object"))
            }
            Err(error) => Err(ParseError::not_json(error.to_string())),
        },
        _ => Err(ParseError::not_json("neither object nor array".to_owned())),
    }
}

/// The error for a member that was parsed but is not acceptable, e.g. an amount in another currency.
pub fn field_error<T: DeserializeOwned>(field: &str, message: impl Into<String>) -> ParseError {
    let index = fields::<T>().and_then(|fields| fields.iter().position(|name| *name == field)).unwrap_or(0);
    ParseError {
        path: field.to_owned(),
        field: Some(field.to_owned()),
        index,
        element: None,
        message: message.into(),
    }
}

fn explain<T: DeserializeOwned>(body: &[u8]) -> ParseError {
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(body) {
        return ParseError::not_json(error.to_string());
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
        // Impossible: the first attempt failed on the same input.
        return ParseError::not_json("unreadable".to_owned());
    };
    let message = error.inner().to_string();
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let (mut top, mut element, mut inner) = (None, None, None);
    for segment in error.path() {
        match segment {
            Segment::Map { key } if top.is_none() => top = Some(key.clone()),
            Segment::Map { key } => inner = Some(key.clone()),
            Segment::Seq { index } if element.is_none() => element = Some(*index),
            _ => {}
        }
    }
    let mut path = error.path().to_string();
    if let Some(name) = missing {
        path = if path == "." { name.to_owned() } else { format!("{path}.{name}") };
        match top {
            None => top = Some(name.to_owned()),
            Some(_) => inner = Some(name.to_owned()),
        }
    }
    let field = top.unwrap_or_default();
    let element = element.map(|index| (index, inner.unwrap_or_else(|| field.clone())));
    ParseError { path, element, ..field_error::<T>(&field, message) }
}

/// Names of the members of a structure in order; `None` for other types.
fn fields<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    match T::deserialize(Probe) {
        Err(Answer(fields)) => fields,
        Ok(_) => None,
    }
}

/// A deserializer without input, which captures the names of a structure's members.
struct Probe;

#[derive(Debug)]
struct Answer(Option<&'static [&'static str]>);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("probe")
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<M: fmt::Display>(_: M) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = Answer;

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer::custom("not a structure"))
    }

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(Some(fields)))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::exchange::{BatchWithdrawRequest, CsrMeltRequest, RefundRequest, WithdrawRequest};

    fn error<T: DeserializeOwned + fmt::Debug>(body: &str) -> ParseError {
        parse_body::<T>(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn not_json() {
        for body in ["", "x", "\"x\"", "5", "{\"a\":", "{\"reserve_sig\":5,", "[1,"] {
            let error = error::<WithdrawRequest>(body);
            assert_eq!(error.field, None, "{body}");
            let answer = serde_json::to_value(error.to_error_body()).unwrap();
            assert_eq!(answer.as_object().unwrap().len(), 2, "{answer}");
        }
    }

    #[test]
    fn missing_and_malformed_members() {
        let first = error::<WithdrawRequest>("{}");
        assert_eq!((first.field.as_deref(), first.index), (Some("reserve_sig"), 0));
        assert_eq!(error::<WithdrawRequest>("[]").field.as_deref(), Some("reserve_sig"));
        let zeros = "0".repeat(103);
        let body =
            format!(r#"{{"reserve_sig":"{zeros}","denom_pub_hash":"{zeros}","coin_ev":{{"cipher":"XX"}}}}"#);
        let cipher = error::<WithdrawRequest>(&body);
        assert_eq!((cipher.field.as_deref(), cipher.index), (Some("coin_ev"), 2));
        let body = serde_json::to_value(cipher.to_error_body()).unwrap();
        assert_eq!(
            (body["field"].as_str(), body["line"].as_u64(), body["code"].as_u64()),
            (Some("coin_ev"), Some(2), Some(22))
        );
        let currency = field_error::<RefundRequest>("merchant_pub", "x");
        assert_eq!(currency.index, 2);
    }

    #[test]
    fn elements_of_arrays() {
        let zeros = "0".repeat(52);
        let missing = error::<CsrMeltRequest>(&format!(r#"{{"rms":"{zeros}","nks":[{{"coin_offset":0}}]}}"#));
        assert_eq!(missing.element, Some((0, "denom_pub_hash".to_owned())));
        assert_eq!(missing.path, "nks[0].denom_pub_hash");
        let scalar = error::<BatchWithdrawRequest>(r#"{"planchets":5}"#);
        assert_eq!((scalar.field.as_deref(), scalar.element.clone()), (Some("planchets"), None));
    }
}
