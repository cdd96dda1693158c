//! Compares an answer of ours with the recorded one: members, types and, where they are determined, values.

use batzen_protocol::Amount;
use serde_json::{Map, Value};

use crate::replay::cast::Cast;

/// Texts for people, and links to a provider of identities.
const FREE_TEXTS: [&str; 4] = ["hint", "detail", "kyc_url", "$base64"];
/// Numbers that an exchange chooses.
const FREE_NUMBERS: [&str; 3] = ["requirement_row", "noreveal_index", "b"];
/// Values from the requests of the recordings, which do not depend on keys.
const UNCHANGED: [&str; 8] = [
    "h_contract_terms",
    "h_wire",
    "wire_salt",
    "econtract",
    "contract_pub",
    "master_pub",
    "master_public_key",
    "auditor_pub",
];
/// Lists without a determined order: listings of keys, and histories (exchange API, histories).
const UNORDERED: [&str; 8] = [
    "denoms",
    "denominations",
    "signkeys",
    "future_denoms",
    "future_signkeys",
    "denomination_keys",
    "accounts",
    "history",
];
/// Members that an error may or may not have.
const INFORMAL: [&str; 1] = ["detail"];

/// Numbers in base 32, which have no zeros at the front.
const BASE32_NUMBERS: [&str; 3] = ["rsa_signature", "blinded_rsa_signature", "rsa_blinded_planchet"];
/// Base 32 of at least this many characters is a key, hash or signature.
const BASE32_CHARS_MIN: usize = 26;

fn is_base32(text: &str) -> bool {
    text.len() >= BASE32_CHARS_MIN
        && text.bytes().all(|byte| b"0123456789ABCDEFGHJKMNPQRSTVWXYZ".contains(&byte))
}

/// Why the answers differ.
pub fn difference(cast: &Cast, recorded: &Value, ours: &Value) -> Option<String> {
    value(cast, "", recorded, ours).err()
}

fn value(cast: &Cast, name: &str, recorded: &Value, ours: &Value) -> Result<(), String> {
    let differs = || Err(format!("{name}: {} instead of {}", short(ours), short(recorded)));
    match (recorded, ours) {
        (Value::Object(recorded), Value::Object(ours)) => members(cast, name, recorded, ours),
        (Value::Array(recorded), Value::Array(ours)) if recorded.len() != ours.len() => {
            Err(format!("{name}: {} items instead of {}", ours.len(), recorded.len()))
        }
        (Value::Array(recorded), Value::Array(ours)) => {
            let (mut recorded, mut ours) = (recorded.clone(), ours.clone());
            if UNORDERED.contains(&name) {
                recorded.sort_by_cached_key(outline);
                ours.sort_by_cached_key(outline);
            }
            recorded.iter().zip(&ours).try_for_each(|(recorded, ours)| value(cast, name, recorded, ours))
        }
        (Value::String(recorded), Value::String(ours)) if text(cast, name, recorded, ours) => Ok(()),
        (Value::Number(_), Value::Number(_)) if FREE_NUMBERS.contains(&name) => Ok(()),
        (recorded, ours) if recorded == ours => Ok(()),
        _ => differs(),
    }
}

fn members(
    cast: &Cast,
    name: &str,
    recorded: &Map<String, Value>,
    ours: &Map<String, Value>,
) -> Result<(), String> {
    let missing =
        recorded.keys().find(|name| !ours.contains_key(*name) && !INFORMAL.contains(&name.as_str()));
    if let Some(missing) = missing {
        return Err(format!("{name}: no member {missing}"));
    }
    let added = ours.keys().find(|name| !recorded.contains_key(*name) && !INFORMAL.contains(&name.as_str()));
    if let Some(added) = added {
        return Err(format!("{name}: one more member {added}"));
    }
    for (name, recorded) in recorded {
        if let Some(ours) = ours.get(name) {
            value(cast, name, recorded, ours)?;
        }
    }
    Ok(())
}

fn text(cast: &Cast, name: &str, recorded: &str, ours: &str) -> bool {
    if FREE_TEXTS.contains(&name) {
        return true;
    }
    if recorded.parse::<Amount>().is_ok() || UNCHANGED.contains(&name) {
        return recorded == ours;
    }
    let expected = cast.text(recorded);
    if expected == recorded && is_base32(recorded) {
        return is_base32(ours) && (ours.len() == recorded.len() || BASE32_NUMBERS.contains(&name));
    }
    // The body as a whole is a page for people.
    name.is_empty() || expected == ours
}

/// A value without keys, hashes and signatures, to sort by.
fn outline(value: &Value) -> String {
    fn without_keys(value: &Value) -> Value {
        match value {
            Value::String(text) if is_base32(text) => Value::from(text.len()),
            Value::Array(items) => items.iter().map(without_keys).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), without_keys(value))).collect()
            }
            other => other.clone(),
        }
    }
    without_keys(value).to_string()
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(200).collect()
}
