//! Canonical JSON (RFC 8785, integers only) and the hashes over it: contracts with forgettable members,
//! policies, extension manifests, and the plain hash of attributes.

use std::fmt;

use batzen_crypto::hash::{sha512, sha512_parts};
use batzen_crypto::kdf::kdf_array;
use batzen_crypto::{HashCode, base32};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_json::{Map, Number, Value};

/// Name of the member that maps forgettable siblings to salts.
const FORGETTABLE: &str = "$forgettable";
/// Name of the member that maps forgotten siblings to hashes.
const FORGOTTEN: &str = "$forgotten";
/// Integers on either side of zero stay below this.
const INTEGER_LIMIT: u64 = 1 << 53;

/// Why a JSON document cannot be hashed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// Not JSON, or a member name twice in one object.
    #[error("malformed JSON: {0}")]
    Json(String),
    /// A number that is not an integer between −2⁵³ and 2⁵³.
    #[error("number is not an integer below 2^53")]
    Number,
    /// `$forgettable` or `$forgotten` is not an object, or has a malformed name or value.
    #[error("malformed $forgettable or $forgotten")]
    Forgettable,
    /// A member is both present and forgotten.
    #[error("member is both present and forgotten")]
    Present,
    /// The member to forget does not exist or is not forgettable.
    #[error("member cannot be forgotten")]
    NotForgettable,
}

/// Parses JSON, refusing documents that contain a member twice.
///
/// # Errors
/// [`CanonicalError::Json`].
pub fn parse(text: &[u8]) -> Result<Value, CanonicalError> {
    serde_json::from_slice::<Unique>(text)
        .map(|unique| unique.0)
        .map_err(|e| CanonicalError::Json(e.to_string()))
}

/// A JSON value whose objects name each member once.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(Value::Number(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Number(value.into()))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
                Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::String(value.to_owned()))
            }
            fn visit_string<E>(self, value: String) -> Result<Value, E> {
                Ok(Value::String(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(Unique(item)) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::Array(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut object = Map::new();
                while let Some(name) = map.next_key::<String>()? {
                    let Unique(value) = map.next_value()?;
                    if object.insert(name, value).is_some() {
                        return Err(de::Error::custom("member named twice"));
                    }
                }
                Ok(Value::Object(object))
            }
        }
        deserializer.deserialize_any(Visitor).map(Unique)
    }
}

/// The form of control characters without a short escape.
#[derive(Clone, Copy)]
enum HexCase {
    Lower,
    Upper,
}

/// The canonical text: no white space, members sorted by the bytes of their names, integers only.
///
/// # Errors
/// [`CanonicalError::Number`].
pub fn to_canonical(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write_value(&mut out, value, HexCase::Lower)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, case: HexCase) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => {
            let magnitude = match (number.as_u64(), number.as_i64()) {
                (Some(n), _) => n,
                (None, Some(n)) => n.unsigned_abs(),
                (None, None) => return Err(CanonicalError::Number),
            };
            if magnitude >= INTEGER_LIMIT {
                return Err(CanonicalError::Number);
            }
            out.push_str(&number.to_string());
        }
        Value::String(text) => write_text(out, text, case),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item, case)?;
            }
            out.push(']');
        }
        Value::Object(object) => {
            // The map may keep the insertion order, depending on how the JSON library is built.
            let mut members: Vec<_> = object.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (i, (name, member)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_text(out, name, case);
                out.push(':');
                write_value(out, member, case)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_text(out: &mut String, text: &str, case: HexCase) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|b| b < b' ' || b == b'"' || b == b'\\') {
        out.push_str(&rest[..at]);
        match (rest.as_bytes()[at], case) {
            (b'"', _) => out.push_str("\\\""),
            (b'\\', _) => out.push_str("\\\\"),
            (8, _) => out.push_str("\\b"),
            (b'\t', _) => out.push_str("\\t"),
            (b'\n', _) => out.push_str("\\n"),
            (12, _) => out.push_str("\\f"),
            (b'\r', _) => out.push_str("\\r"),
            (b, HexCase::Lower) => out.push_str(&format!("\\u{b:04x}")),
            (b, HexCase::Upper) => out.push_str(&format!("\\u{b:04X}")),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// `h_contract_terms`: SHA-512 of the canonical contract, with all forgettable members replaced by their
/// hashes, and a zero byte. It does not change when members are forgotten.
///
/// # Errors
/// [`CanonicalError`].
pub fn contract_hash(contract: &Value) -> Result<HashCode, CanonicalError> {
    if has_forgettable(contract) {
        return Ok(hash_of_scrubbed(&to_canonical(&scrub(contract)?)?));
    }
    Ok(hash_of_scrubbed(&to_canonical(contract)?))
}

/// The canonical text of a contract, and its [`contract_hash`].
///
/// # Errors
/// [`CanonicalError`].
pub fn canonical_contract(contract: &Value) -> Result<(String, HashCode), CanonicalError> {
    let text = to_canonical(contract)?;
    let hash = if has_forgettable(contract) { contract_hash(contract)? } else { hash_of_scrubbed(&text) };
    Ok((text, hash))
}

fn hash_of_scrubbed(text: &str) -> HashCode {
    sha512_parts(&[text.as_bytes(), &[0]])
}

/// Returns whether any of its objects has forgettable or forgotten members. If not, it is its own scrubbed
/// copy.
fn has_forgettable(value: &Value) -> bool {
    let is_special = |name: &str| name == FORGETTABLE || name == FORGOTTEN;
    match value {
        Value::Array(items) => items.iter().any(has_forgettable),
        Value::Object(object) => {
            object.iter().any(|(name, value)| is_special(name) || has_forgettable(value))
        }
        _ => false,
    }
}

/// Forgets one member of the contract's outermost object: only its hash remains.
///
/// # Errors
/// [`CanonicalError::NotForgettable`] if there is no such member or it has no salt.
pub fn forget(contract: &mut Value, name: &str) -> Result<(), CanonicalError> {
    let object = contract.as_object_mut().ok_or(CanonicalError::NotForgettable)?;
    let salt = match object.get(FORGETTABLE).and_then(|members| members.get(name)) {
        Some(Value::String(salt)) => salt.clone(),
        Some(_) => return Err(CanonicalError::Forgettable),
        None => return Err(CanonicalError::NotForgettable),
    };
    let member = object.get(name).ok_or(CanonicalError::NotForgettable)?;
    let hash = member_hash(&scrub(member)?, &salt)?;
    if let Some(members) = object.get_mut(FORGETTABLE).and_then(Value::as_object_mut) {
        members.remove(name);
    }
    object.remove(name);
    match object.entry(FORGOTTEN).or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(forgotten) => forgotten.insert(name.to_owned(), Value::String(hash)),
        _ => return Err(CanonicalError::Forgettable),
    };
    Ok(())
}

/// Hash of one member's scrubbed value under its salt, as base32.
fn member_hash(scrubbed: &Value, salt: &str) -> Result<String, CanonicalError> {
    let mut text = to_canonical(scrubbed)?.into_bytes();
    text.push(0);
    let salt = [salt.as_bytes(), &[0]].concat();
    Ok(base32::encode(&kdf_array::<64>(&salt, &text, &[])))
}

/// A copy in which every forgettable member is forgotten.
fn scrub(value: &Value) -> Result<Value, CanonicalError> {
    match value {
        Value::Array(items) => Ok(Value::Array(items.iter().map(scrub).collect::<Result<_, _>>()?)),
        Value::Object(object) => scrub_object(object).map(Value::Object),
        other => Ok(other.clone()),
    }
}

fn special<'a>(
    object: &'a Map<String, Value>,
    name: &str,
) -> Result<Option<&'a Map<String, Value>>, CanonicalError> {
    let members = match object.get(name) {
        None => return Ok(None),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(CanonicalError::Forgettable),
    };
    for (name, value) in members {
        let name_ok = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !name_ok || !value.is_string() {
            return Err(CanonicalError::Forgettable);
        }
    }
    Ok(Some(members))
}

fn scrub_object(object: &Map<String, Value>) -> Result<Map<String, Value>, CanonicalError> {
    let forgettable = special(object, FORGETTABLE)?;
    let known = special(object, FORGOTTEN)?;
    let mut forgotten = known.cloned().unwrap_or_default();
    for hash in forgotten.values() {
        let hash = hash.as_str().map(base32::decode_array::<64>);
        if !matches!(hash, Some(Ok(_))) {
            return Err(CanonicalError::Forgettable);
        }
    }
    let mut out = Map::new();
    for (name, value) in object {
        if name == FORGETTABLE || name == FORGOTTEN {
            continue;
        }
        if known.is_some_and(|known| known.contains_key(name)) {
            return Err(CanonicalError::Present);
        }
        let scrubbed = scrub(value)?;
        match forgettable.and_then(|members| members.get(name)).and_then(Value::as_str) {
            Some(salt) => {
                forgotten.insert(name.clone(), Value::String(member_hash(&scrubbed, salt)?));
            }
            None => {
                out.insert(name.clone(), scrubbed);
            }
        }
    }
    if known.is_some() || !forgotten.is_empty() {
        out.insert(FORGOTTEN.to_owned(), Value::Object(forgotten));
    }
    Ok(out)
}

/// The plain hash of KYC details and attributes: SHA-512 of the sorted, compact text without zero byte. It
/// differs from the canonical text in how rare control characters are escaped.
///
/// # Errors
/// [`CanonicalError::Number`].
pub fn plain_hash(value: &Value) -> Result<HashCode, CanonicalError> {
    Ok(sha512(to_plain(value)?.as_bytes()))
}

/// The sorted, compact text under [`plain_hash`].
///
/// # Errors
/// [`CanonicalError::Number`].
pub(crate) fn to_plain(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write_value(&mut out, value, HexCase::Upper)?;
    Ok(out)
}

fn salted_hash(salt: &[u8], value: &Value) -> Result<HashCode, CanonicalError> {
    let mut text = to_canonical(value)?.into_bytes();
    text.push(0);
    Ok(HashCode::from_bytes(kdf_array(salt, &text, &[])))
}

/// `h_policy` of a deposit's policy. Without a policy the hash is all zero.
///
/// # Errors
/// [`CanonicalError::Number`].
pub fn policy_hash(policy: &Value) -> Result<HashCode, CanonicalError> {
    salted_hash(b"taler-extensions-policy\0", policy)
}

/// `h_manifests` of the `extensions` object of the key listing.
///
/// # Errors
/// [`CanonicalError::Number`].
pub fn manifests_hash(extensions: &Value) -> Result<HashCode, CanonicalError> {
    salted_hash(b"taler-extensions-manifests\0", extensions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refuses_duplicates_and_fractions() {
        assert!(matches!(parse(br#"{"a":1,"a":2}"#), Err(CanonicalError::Json(_))));
        assert!(matches!(parse(br#"[{"a":{"b":1,"b":1}}]"#), Err(CanonicalError::Json(_))));
        for text in ["1.0", "1e2", "9007199254740992", "-9007199254740992", "0.5"] {
            assert_eq!(to_canonical(&parse(text.as_bytes()).unwrap()), Err(CanonicalError::Number), "{text}");
        }
        assert_eq!(to_canonical(&json!(-9007199254740991i64)).unwrap(), "-9007199254740991");
    }

    #[test]
    fn control_characters_differ_between_the_two_texts() {
        let value = json!("\u{1f}\u{7f}");
        assert_eq!(to_canonical(&value).unwrap(), "\"\\u001f\u{7f}\"");
        assert_eq!(plain_hash(&value).unwrap(), sha512("\"\\u001F\u{7f}\"".as_bytes()));
    }

    #[test]
    fn forgetting_keeps_the_hash() {
        let mut contract =
            json!({"a": 1, "b": {"c": 2, "$forgettable": {"c": "T"}}, "$forgettable": {"a": "S", "b": "U"}});
        let hash = contract_hash(&contract).unwrap();
        forget(&mut contract, "b").unwrap();
        assert_eq!(contract_hash(&contract).unwrap(), hash);
        forget(&mut contract, "a").unwrap();
        assert_eq!(contract_hash(&contract).unwrap(), hash);
        assert_eq!(forget(&mut contract, "a"), Err(CanonicalError::NotForgettable));
        contract["a"] = json!(1);
        assert_eq!(contract_hash(&contract), Err(CanonicalError::Present));
    }

    #[test]
    fn special_members_are_checked() {
        for contract in [
            json!({"a": 1, "$forgettable": {"a": true}}),
            json!({"a": 1, "$forgettable": 1}),
            json!({"a": 1, "$forgettable": {"a.b": "S"}}),
            json!({"$forgotten": {"a": "short"}}),
        ] {
            assert_eq!(contract_hash(&contract), Err(CanonicalError::Forgettable), "{contract}");
        }
    }
}
