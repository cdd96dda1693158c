//! Compares an answer of ours with the recorded one: members, types and, where they are determined, values.

use batzen_protocol::Amount;
use serde_json::{Map, Value, json};

use crate::replay::cast::Cast;

/// Texts for people, and links to a provider of identities.
const FREE_TEXTS: [&str; 4] = ["hint", "detail", "kyc_url", "$base64"];
/// Numbers that an exchange chooses.
const FREE_NUMBERS: [&str; 3] = ["requirement_row", "noreveal_index", "b"];
/// Values from the requests of the recordings, which do not depend on keys.
const UNCHANGED: [&str; 7] = [
    "h_contract_terms",
    "h_wire",
    "wire_salt",
    "econtract",
    "contract_pub",
    "master_pub",
    "master_public_key",
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
/// A member that means the same if it is zero and if it is missing.
const OPTIONAL_HASH: &str = "h_age_commitment";
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

fn is_zero(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.bytes().all(|byte| byte == b'0'))
}

/// Why the answers differ.
pub(super) fn difference(cast: &Cast, recorded: &Value, ours: &Value) -> Option<String> {
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
                recorded.sort_by_cached_key(|item| outline(&cast.value(item), cast));
                ours.sort_by_cached_key(|item| outline(item, cast));
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
    let is_reserve = recorded.contains_key("balance");
    let may_be_missing =
        |name: &str, value: &Value| INFORMAL.contains(&name) || name == OPTIONAL_HASH && is_zero(value);
    let missing =
        recorded.iter().find(|(name, value)| !ours.contains_key(*name) && !may_be_missing(name, value));
    if let Some((missing, _)) = missing {
        return Err(format!("{name}: no member {missing}"));
    }
    let added = ours.keys().find(|name| !recorded.contains_key(*name) && !INFORMAL.contains(&name.as_str()));
    if let Some(added) = added {
        return Err(format!("{name}: one more member {added}"));
    }
    if let (Some(recorded), Some(ours)) = (recorded.get("history"), ours.get("history")) {
        same_types(recorded, ours, is_reserve)?;
    }
    for (name, recorded) in recorded {
        if let Some(ours) = ours.get(name) {
            value(cast, name, recorded, ours)?;
        }
    }
    Ok(())
}

/// Compares the types of the items of two histories: items of one type are adjacent, and the types in the
/// history of a reserve are in a determined order (exchange API, 1.9).
fn same_types(recorded: &Value, ours: &Value, is_reserve: bool) -> Result<(), String> {
    let types = |history: &Value| {
        let items = history.as_array().into_iter().flatten();
        let mut types: Vec<String> = items.map(|item| item["type"].to_string()).collect();
        types.dedup();
        if !is_reserve {
            types.sort();
        }
        types
    };
    let (recorded, ours) = (types(recorded), types(ours));
    if recorded == ours { Ok(()) } else { Err(format!("history: types {ours:?} instead of {recorded:?}")) }
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

/// A value to sort by, without keys, hashes and signatures that differ between the sides.
fn outline(value: &Value, cast: &Cast) -> String {
    fn comparable(name: &str, value: &Value, cast: &Cast) -> Value {
        match value {
            // The hash of a group of one key is that of the key, so it would count on one side only.
            Value::String(_) if name == "hash" => Value::Null,
            Value::String(text) if is_base32(text) && !cast.is_ours(text) && !UNCHANGED.contains(&name) => {
                Value::Null
            }
            Value::Array(items) => items.iter().map(|item| comparable(name, item, cast)).collect(),
            Value::Object(members) => {
                // In the order of names, whatever the order in the text was.
                let member = |(name, value): (&String, &Value)| json!([name, comparable(name, value, cast)]);
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| *name);
                members.into_iter().map(member).collect()
            }
            other => other.clone(),
        }
    }
    comparable("", value, cast).to_string()
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_determined_change_is_a_difference() {
        let mut cast = Cast::default();
        let (key, ours) = ("A".repeat(52), "B".repeat(52));
        cast.add(&key, &ours);
        let recorded = json!({
            "code": 1012, "hint": "text", "detail": "text", "amount": "EUR:1", "coin_pub": key,
            "exchange_sig": "C".repeat(103), "time": { "t_s": 1 }, "requirement_row": 1,
            "history": [{ "type": "MELT", "amount": "EUR:2" }, { "type": "DEPOSIT", "amount": "EUR:1" }],
        });
        let right = json!({
            "code": 1012, "hint": "other", "amount": "EUR:1", "coin_pub": ours,
            "exchange_sig": "D".repeat(103), "time": { "t_s": 1 }, "requirement_row": 7,
            "history": [{ "type": "DEPOSIT", "amount": "EUR:1" }, { "type": "MELT", "amount": "EUR:2" }],
        });
        assert_eq!(difference(&cast, &recorded, &right), None);
        for (place, value) in [
            ("/code", json!(1013)),
            ("/hint", json!(1)),
            ("/amount", json!("EUR:1.01")),
            ("/coin_pub", json!("E".repeat(52))),
            ("/exchange_sig", json!("D".repeat(102))),
            ("/time", json!("never")),
            ("/time/t_s", json!(2)),
            ("/requirement_row", json!("7")),
            ("/history", json!([])),
            ("/history/0/type", json!("REFUND")),
            ("/history/1/amount", json!("EUR:1")),
        ] {
            let mut wrong = right.clone();
            *wrong.pointer_mut(place).unwrap() = value;
            assert!(difference(&cast, &recorded, &wrong).is_some(), "{place}");
        }
        for name in ["code", "hint", "amount", "coin_pub", "exchange_sig", "time", "history"] {
            let mut wrong = right.clone();
            wrong.as_object_mut().unwrap().remove(name);
            assert!(difference(&cast, &recorded, &wrong).is_some(), "without {name}");
        }
        let mut wrong = right.clone();
        wrong["more"] = json!(1);
        assert!(difference(&cast, &recorded, &wrong).is_some(), "one more member");
        // The history of a reserve is in the order of types.
        let (mut recorded, mut ours) = (recorded, right);
        recorded["balance"] = json!("EUR:0");
        ours["balance"] = json!("EUR:0");
        assert!(difference(&cast, &recorded, &ours).is_some(), "order of a reserve's history");
    }
}
