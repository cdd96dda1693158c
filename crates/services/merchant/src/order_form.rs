//! The form of an order's members: what wallets can read, and people cannot misread. The amounts and times of
//! [`contract`](crate::contract) are not its subject.

use batzen_protocol::{Amount, Duration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::urls::is_web_url;

/// Integers of contracts stay below this, since programs read them as floating-point numbers.
pub(crate) const INTEGER_LIMIT: u64 = 1 << 53;
/// The deepest nesting of a contract. Wallets refuse more.
const DEPTH_MAX: usize = 30;
/// The first time that has no date with four digits for its year. Who means a later one has written milliseconds.
const YEAR_10000: Timestamp = Timestamp::from_secs(253_402_300_800);
/// The member that is for the shop alone. No wallet shows it.
const EXTRA: &str = "extra";

/// Returns whether people see a text as it is written: without characters that control a terminal, or that show the text after
/// them in another direction. Joiners and marks of direction, which scripts and emoji need, are allowed.
#[must_use]
pub(crate) fn is_plain(text: &str) -> bool {
    let is_odd = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !text.contains(is_odd)
}

/// Checks the form of an order.
///
/// # Errors
/// The member that is wrong, and what it should be.
pub(crate) fn check(order: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in order {
        check_names(name, value, 0)?;
        if name != EXTRA {
            check_texts(name, value)?;
        }
    }
    for name in ["fulfillment_url", "public_reorder_url"] {
        if optional::<String>(order, name, "")?.is_some_and(|url| !is_target(&url)) {
            return Err(format!("{name}: not a URL such as https://shop.example/books/1"));
        }
    }
    for name in ["timestamp", "pay_deadline", "refund_deadline", "wire_transfer_deadline", "delivery_date"] {
        let example = "such as {\"t_s\": 1767225600}";
        let time: Option<Timestamp> = optional(order, name, example)?;
        if time.is_some_and(|time| !time.is_never() && time >= YEAR_10000) {
            return Err(format!("{name}: after the year 9999; it is in seconds, {example}"));
        }
    }
    let example = "such as {\"d_us\": 86400000000}, which is a day";
    if optional(order, "auto_refund", example)?.is_some_and(|time: Duration| time.as_micros() == 0) {
        return Err(format!("auto_refund: not a time, {example}"));
    }
    for name in ["summary_i18n", "fulfillment_message_i18n"] {
        check_translations(order, name, name)?;
    }
    match order.get("products") {
        None => Ok(()),
        Some(Value::Array(products)) => products
            .iter()
            .enumerate()
            .try_for_each(|(n, product)| check_product(&format!("products[{n}]"), product)),
        Some(_) => Err("products: not a list such as [{\"description\": \"a book\"}]".to_owned()),
    }
}

/// Reads a member. Wallets take `null` for nothing.
fn optional<'a, T: Deserialize<'a>>(
    members: &'a Map<String, Value>,
    name: &str,
    example: &str,
) -> Result<Option<T>, String> {
    let comma = if example.is_empty() { "" } else { ", " };
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            T::deserialize(value).map(Some).map_err(|error| format!("{name}: {error}{comma}{example}"))
        }
    }
}

/// Returns whether a wallet may open a URL after the payment: a page, or itself.
fn is_target(url: &str) -> bool {
    let own = url.strip_prefix("taler://").or_else(|| url.strip_prefix("taler+http://"));
    is_web_url(url) || own.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic()))
}

/// Checks the names of all members, and how deep they are nested.
fn check_names(name: &str, value: &Value, depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("{name}: nested more than {DEPTH_MAX} times"));
    }
    // Salts and hashes of members that can be forgotten.
    if let "$forgettable" | "$forgotten" = name {
        return Ok(());
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(format!("{name}: names of members have letters, digits and _ only, such as de_CH"));
    }
    match value {
        Value::Object(members) => {
            members.iter().try_for_each(|(name, value)| check_names(name, value, depth + 1))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_names(name, item, depth + 1)),
        _ => Ok(()),
    }
}

fn check_texts(name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) if !is_plain(text) => Err(format!(
            "{name}: it has characters that control a terminal or the direction of writing, such as U+202E"
        )),
        Value::Object(members) => {
            members.iter().try_for_each(|(inner, value)| check_texts(&format!("{name}.{inner}"), value))
        }
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(n, item)| check_texts(&format!("{name}[{n}]"), item))
        }
        _ => Ok(()),
    }
}

fn check_translations(members: &Map<String, Value>, name: &str, path: &str) -> Result<(), String> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(texts)) if texts.values().all(Value::is_string) => Ok(()),
        Some(_) => Err(format!("{path}: not texts by language, such as {{\"de\": \"ein Buch\"}}")),
    }
}

fn check_product(path: &str, product: &Value) -> Result<(), String> {
    let Value::Object(product) = product else {
        return Err(format!("{path}: not an object such as {{\"description\": \"a book\"}}"));
    };
    let at = |problem: String| format!("{path}.{problem}");
    for name in ["product_id", "description", "unit", "image"] {
        optional::<String>(product, name, "").map_err(at)?;
    }
    optional::<Amount>(product, "price", "such as \"KUDOS:1.5\"").map_err(at)?;
    if optional::<u64>(product, "quantity", "such as 2")
        .map_err(at)?
        .is_some_and(|units| units >= INTEGER_LIMIT)
    {
        return Err(at(format!("quantity: not below {INTEGER_LIMIT}, such as 2")));
    }
    check_translations(product, "description_i18n", &format!("{path}.description_i18n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn orders_that_no_wallet_can_pay_are_refused() {
        for (name, value) in [
            ("auto_refund", json!("1 day")),
            ("auto_refund", json!({ "d_ms": 1 })),
            ("auto_refund", json!({ "d_us": 0 })),
            ("products", json!({})),
            ("products", json!(["a book"])),
            ("products", json!([{ "description": 1 }])),
            ("products", json!([{ "description": "a book", "quantity": 1_u64 << 53 }])),
            ("products", json!([{ "description": "a book", "quantity": -1 }])),
            ("products", json!([{ "description": "a book", "quantity": u64::MAX }])),
            ("products", json!([{ "description": "a book", "price": "a lot" }])),
            ("products", json!([{ "description": "a book", "description_i18n": ["ein Buch"] }])),
            ("summary_i18n", json!([])),
            ("summary_i18n", json!({ "de": 1 })),
            ("summary_i18n", json!({ "de-CH": "ein Buch" })),
            ("fulfillment_url", json!("not a url")),
            ("fulfillment_url", json!("javascript:alert(1)")),
            ("fulfillment_url", json!("javascript://shop.example/%0aalert(1)")),
            ("fulfillment_url", json!("data:text/html,x")),
            ("fulfillment_url", json!("https://")),
            ("fulfillment_url", json!("https:///x")),
            ("fulfillment_url", json!(1)),
            ("public_reorder_url", json!("javascript:x")),
            ("pay_deadline", json!({ "t_s": 1_800_000_000_000_u64 })),
            ("pay_deadline", json!(1_800_000_000)),
            ("delivery_date", json!("tomorrow")),
            ("summary", json!("pay\u{202e}evil\u{202c}")),
            ("summary", json!("\u{1b}[31mred")),
            ("fulfillment_message", json!("\u{2066}x")),
            ("products", json!([{ "description": "\u{9b}31m" }])),
            ("a b", json!(1)),
        ] {
            let Value::Object(order) = json!({ name: value }) else { unreachable!("an object") };
            let problem = check(&order).unwrap_err();
            assert!(problem.starts_with(name) || problem.starts_with("de-CH"), "{name} {value}: {problem}");
        }
        let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
        assert!(check(&Map::from_iter([("extra".to_owned(), deep)])).is_err());
    }

    #[test]
    fn other_orders_are_not() {
        let order = json!({
            "summary": "a book\nfor 👩\u{200d}👧 \u{200f}ספר", "summary_i18n": { "de": "ein Buch", "fr_CH": "un livre" },
            "fulfillment_url": "https://shop.example/${ORDER_ID}?a=b#c", "auto_refund": { "d_us": "forever" },
            "pay_deadline": { "t_s": "never" }, "refund_deadline": { "t_s": 1_800_000_000 }, "delivery_date": null,
            "products": [{ "description": "a book", "quantity": 2, "price": "KUDOS:1", "note": { "x": [1] } }],
            "extra": { "terminal": "\u{1b}[31m", "isbn": "1", "$forgettable": { "isbn": true } },
        });
        let Value::Object(order) = order else { unreachable!("an object") };
        check(&order).unwrap();
        for url in ["http://localhost:1234/", "taler://fulfillment-success/thanks", "taler+http://x/y"] {
            assert!(is_target(url), "{url}");
        }
    }
}
