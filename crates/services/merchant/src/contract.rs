//! From a shop's order to the terms of a contract (merchant chapter 4).

use crate::{order_form, urls};
use batzen_crypto::{HashCode, base32, fill_random};
use batzen_protocol::api::merchant::{ContractAuditor, ContractExchange, ContractTerms};
use batzen_protocol::canonical::canonical_contract;
use batzen_protocol::time::{year_of, year_start};
use batzen_protocol::{Amount, Currency, Duration, ErrorCode, Money, PaytoUri, Timestamp};
use batzen_tables::merchant::InstanceRow;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The longest id of an order, in bytes.
const ORDER_ID_BYTES_MAX: usize = 128;
/// The largest terms, in bytes.
pub(crate) const TERMS_BYTES_MAX: usize = 64 << 10;
/// Random bytes of the salt of a forgettable member.
const SALT_BYTES: usize = 32;
const FORGETTABLE: &str = "$forgettable";
const SECONDS_A_DAY: u64 = 86_400;

/// Why an order is refused: a code, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadOrder(pub ErrorCode, pub String);

fn bad(what: impl Into<String>) -> BadOrder {
    BadOrder(ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR, what.into())
}

/// The terms that the backend adds to an order.
pub(crate) struct Frame<'a> {
    /// The shop.
    pub(crate) instance: &'a InstanceRow,
    pub(crate) base_url: &'a str,
    /// The account to pay to.
    pub(crate) payto: &'a PaytoUri,
    pub(crate) h_wire: HashCode,
    /// The exchanges that are accepted.
    pub(crate) exchanges: Vec<ContractExchange>,
    /// The auditors whose exchanges are accepted.
    pub(crate) auditors: Vec<ContractAuditor>,
    /// The currency of all orders.
    pub(crate) currency: Currency,
    /// The time.
    pub(crate) now: Timestamp,
}

/// A contract's terms without nonce.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// As canonical JSON.
    pub text: String,
    /// The members that programs act on.
    pub typed: ContractTerms,
}

/// Returns whether an order can have this id: it is part of URLs.
#[must_use]
pub(crate) fn is_order_id(id: &str) -> bool {
    urls::is_id(id, ORDER_ID_BYTES_MAX)
}

/// A new id: year, day of the year, and 64 random bits.
#[must_use]
pub(crate) fn random_order_id(now: Timestamp, random: [u8; 8]) -> String {
    let year = year_of(now).unwrap_or(1970);
    let seconds = now.saturating_since(year_start(year)).as_micros() / 1_000_000;
    format!("{year}.{:03}-{}", seconds / SECONDS_A_DAY + 1, base32::encode(&random))
}

fn set(terms: &mut Map<String, Value>, name: &str, value: &impl Serialize) {
    terms.insert(name.to_owned(), serde_json::to_value(value).expect("it has a JSON form"));
}

fn read<'a, T: Deserialize<'a>>(terms: &'a Map<String, Value>, name: &str) -> Result<Option<T>, BadOrder> {
    match terms.get(name) {
        None => Ok(None),
        Some(value) => T::deserialize(value).map(Some).map_err(|error| bad(format!("{name}: {error}"))),
    }
}

/// An order with further products, and the age that they require.
///
/// # Errors
/// [`BadOrder`] if the order's own products are not a list, or its age is not a number.
pub(crate) fn with_products(
    mut order: Map<String, Value>,
    products: Vec<Value>,
    minimum_age: u8,
) -> Result<Map<String, Value>, BadOrder> {
    let own = read::<u8>(&order, "minimum_age")?.unwrap_or(0);
    if own.max(minimum_age) > 0 {
        set(&mut order, "minimum_age", &own.max(minimum_age));
    }
    if !products.is_empty() {
        match order.entry("products").or_insert_with(|| json!([])) {
            Value::Array(all) => all.extend(products),
            _ => return Err(bad("products must be a list")),
        }
    }
    Ok(order)
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    if delay.is_forever() { Timestamp::NEVER } else { now.saturating_add(delay) }
}

/// Makes the terms of an order.
///
/// # Errors
/// [`BadOrder`].
pub(crate) fn terms(
    order: Map<String, Value>,
    refund_delay: Option<Duration>,
    order_id: &str,
    frame: &Frame<'_>,
) -> Result<Terms, BadOrder> {
    let Frame { instance, currency, now, .. } = frame;
    order_form::check(&order).map_err(bad)?;
    let mut terms = order;
    let mut money = |name: &str, default: Option<Money>| -> Result<Money, BadOrder> {
        let amount: Amount = match (read(&terms, name)?, default) {
            (Some(amount), _) => amount,
            (None, Some(default)) => default.of(*currency),
            (None, None) => return Err(bad(format!("{name} is missing"))),
        };
        let other = |_| BadOrder(ErrorCode::GENERIC_CURRENCY_MISMATCH, name.to_owned());
        let money = amount.money_in(*currency).map_err(other)?;
        // In the one spelling of the currency.
        set(&mut terms, name, &money.of(*currency));
        Ok(money)
    };
    money("amount", None)?;
    money("max_fee", Some(instance.default_max_deposit_fee))?;
    money("max_wire_fee", Some(instance.default_max_wire_fee))?;
    match read::<&str>(&terms, "summary")? {
        Some(summary) if !summary.is_empty() => {}
        _ => return Err(bad("summary is missing")),
    }
    let whole_now = Timestamp::from_secs(now.as_micros() / 1_000_000);
    let timestamp = read(&terms, "timestamp")?.unwrap_or(whole_now);
    let wire_delay =
        instance.default_wire_transfer_delay.max(refund_delay.unwrap_or(Duration::from_micros(0)));
    let wire_deadline = read(&terms, "wire_transfer_deadline")?.unwrap_or(after(whole_now, wire_delay));
    let refund_deadline = match (read(&terms, "refund_deadline")?, refund_delay) {
        (Some(deadline), _) => deadline,
        (None, Some(delay)) => after(whole_now, delay),
        (None, None) => timestamp.min(wire_deadline),
    };
    if wire_deadline.is_never() {
        let code = ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_WIRE_DEADLINE_IS_NEVER;
        return Err(BadOrder(code, "wire_transfer_deadline".to_owned()));
    }
    if refund_deadline > wire_deadline {
        let code = ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_REFUND_AFTER_WIRE_DEADLINE;
        return Err(BadOrder(code, "refund_deadline".to_owned()));
    }
    if read::<Timestamp>(&terms, "delivery_date")?.is_some_and(|date| date < whole_now) {
        let code = ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_DELIVERY_DATE_IN_PAST;
        return Err(BadOrder(code, "delivery_date".to_owned()));
    }
    let pay_deadline = read(&terms, "pay_deadline")?.unwrap_or(after(whole_now, instance.default_pay_delay));
    if pay_deadline <= *now {
        return Err(bad("pay_deadline: in the past, so no wallet could pay"));
    }
    if timestamp.is_never() {
        return Err(bad("timestamp: not a date, such as {\"t_s\": 1767225600}"));
    }
    let amortization = read::<i64>(&terms, "wire_fee_amortization")?
        .unwrap_or(instance.default_wire_fee_amortization.into());
    if !(1..=i64::from(u32::MAX)).contains(&amortization) {
        return Err(bad("wire_fee_amortization must be at least 1"));
    }
    for (name, time) in [
        ("timestamp", timestamp),
        ("wire_transfer_deadline", wire_deadline),
        ("refund_deadline", refund_deadline),
        ("pay_deadline", pay_deadline),
    ] {
        set(&mut terms, name, &time);
    }
    set(&mut terms, "wire_fee_amortization", &amortization);
    if let Some(url) = read::<&str>(&terms, "fulfillment_url")? {
        let url = url.replace("${ORDER_ID}", order_id);
        set(&mut terms, "fulfillment_url", &url);
    }
    terms.entry("products").or_insert_with(|| json!([]));
    // What only the backend knows cannot be chosen by the order.
    set(&mut terms, "order_id", &order_id);
    set(&mut terms, "merchant_pub", &instance.merchant_pub);
    set(&mut terms, "merchant_base_url", &frame.base_url);
    set(&mut terms, "merchant", &shop(instance));
    set(&mut terms, "h_wire", &frame.h_wire);
    set(&mut terms, "wire_method", &frame.payto.method());
    set(&mut terms, "exchanges", &frame.exchanges);
    set(&mut terms, "auditors", &frame.auditors);
    terms.remove("nonce");
    let mut terms = Value::Object(terms);
    salt(&mut terms);
    // It must have a hash, before any customer sees it.
    let (text, _) = canonical_contract(&terms).map_err(|error| bad(error.to_string()))?;
    if text.len() > TERMS_BYTES_MAX {
        return Err(bad(format!("the contract is larger than {TERMS_BYTES_MAX} bytes")));
    }
    let typed = serde_json::from_value(terms).map_err(|error| bad(error.to_string()))?;
    Ok(Terms { text, typed })
}

/// Returns a contract's description of the shop.
fn shop(instance: &InstanceRow) -> Value {
    let mut shop = Map::from_iter([("name".to_owned(), json!(instance.name))]);
    for (name, text) in [("address", &instance.address), ("jurisdiction", &instance.jurisdiction)] {
        if let Ok(place @ Value::Object(_)) = serde_json::from_str(text) {
            shop.insert(name.to_owned(), place);
        }
    }
    for (name, text) in [("email", &instance.email), ("website", &instance.website), ("logo", &instance.logo)]
    {
        if let Some(text) = text {
            shop.insert(name.to_owned(), json!(text));
        }
    }
    Value::Object(shop)
}

/// Replaces `true` by random salts in all objects that name forgettable members.
fn salt(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::Object(salts)) = members.get_mut(FORGETTABLE) {
                for salt in salts.values_mut().filter(|salt| **salt == Value::Bool(true)) {
                    let mut random = [0; SALT_BYTES];
                    fill_random(&mut random);
                    *salt = Value::String(base32::encode(&random));
                }
            }
            members.iter_mut().filter(|(name, _)| !name.starts_with('$')).for_each(|(_, value)| salt(value));
        }
        Value::Array(items) => items.iter_mut().for_each(salt),
        _ => {}
    }
}

/// The terms with the nonce of the wallet that claims them, and their hash.
///
/// # Errors
/// If the terms, as stored, are not JSON that has a hash.
pub(crate) fn claimed(terms: &str, nonce: &str) -> Result<(String, HashCode), String> {
    let mut terms: Value = serde_json::from_str(terms).map_err(|error| error.to_string())?;
    let members = terms.as_object_mut().ok_or("the terms are not an object")?;
    members.insert("nonce".to_owned(), Value::String(nonce.to_owned()));
    canonical_contract(&terms).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPublicKey;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_500_000);

    fn instance() -> InstanceRow {
        InstanceRow {
            merchant_pub: EddsaPublicKey::from_bytes([1; 32]),
            merchant_priv: Some([2; 32]),
            token_hash: None,
            name: "Shop".to_owned(),
            address: "{\"country\":\"CH\"}".to_owned(),
            jurisdiction: "{}".to_owned(),
            email: None,
            website: Some("https://shop.example/".to_owned()),
            logo: None,
            default_max_wire_fee: "0.1".parse().unwrap(),
            default_max_deposit_fee: "0.2".parse().unwrap(),
            default_wire_fee_amortization: 3,
            default_wire_transfer_delay: Duration::from_days(1),
            default_pay_delay: Duration::from_secs(3_600),
        }
    }

    fn make(order: Value, refund_delay: Option<Duration>) -> Result<Terms, BadOrder> {
        let Value::Object(order) = order else { unreachable!("an object") };
        let payto = PaytoUri::parse("payto://x-taler-bank/localhost/shop").unwrap();
        let frame = Frame {
            instance: &instance(),
            base_url: "http://shop.example/",
            payto: &payto,
            h_wire: HashCode::from_bytes([3; 64]),
            exchanges: Vec::new(),
            auditors: Vec::new(),
            currency: "KUDOS".parse().unwrap(),
            now: NOW,
        };
        terms(order, refund_delay, "42", &frame)
    }

    #[test]
    fn an_order_becomes_a_contract() {
        let order = json!({
            "amount": "KUDOS:5", "summary": "a book", "fulfillment_url": "https://shop.example/${ORDER_ID}",
            "extra": { "isbn": "1", "note": "x", "$forgettable": { "note": true, "isbn": "salt" } },
            "merchant_pub": "mine", "nonce": "mine",
        });
        let made = make(order, None).unwrap();
        let at = |seconds: u64| Timestamp::from_secs(1_700_000_000 + seconds);
        assert_eq!(made.typed.timestamp, at(0));
        assert_eq!((made.typed.refund_deadline, made.typed.pay_deadline), (at(0), at(3_600)));
        assert_eq!(made.typed.wire_transfer_deadline, at(86_400));
        assert_eq!(made.typed.fulfillment_url.as_deref(), Some("https://shop.example/42"));
        assert_eq!((made.typed.wire_fee_amortization, made.typed.nonce.as_deref()), (Some(3), None));
        assert_eq!(made.typed.merchant_pub, instance().merchant_pub);
        let json: Value = serde_json::from_str(&made.text).unwrap();
        assert_eq!(json["merchant"]["address"]["country"], "CH");
        assert_eq!((&json["auditors"], &json["products"]), (&json!([]), &json!([])));
        let salts = &json["extra"]["$forgettable"];
        assert_eq!((salts["isbn"].as_str(), salts["note"].as_str().unwrap().len()), (Some("salt"), 52));
        // With the nonce, it has another hash.
        let (text, hash) = claimed(&made.text, "N").unwrap();
        assert_ne!(claimed(&made.text, "M").unwrap().1, hash);
        assert!(text.contains("\"nonce\":\"N\""));
        // A refund later than usual transfers delays them.
        let week = Duration::from_days(7);
        let late = make(json!({ "amount": "KUDOS:0", "summary": "x" }), Some(week)).unwrap().typed;
        assert_eq!(late.refund_deadline, late.wire_transfer_deadline);
        let spelled =
            make(json!({ "amount": "kudos:1", "max_fee": "Kudos:0.5", "summary": "x" }), None).unwrap();
        assert!(
            spelled.text.contains("\"amount\":\"KUDOS:1\"") && !spelled.text.contains("udos"),
            "{}",
            spelled.text
        );
        let at_once = json!({ "amount": "KUDOS:1", "summary": "x", "wire_transfer_deadline": at(0) });
        assert_eq!(make(at_once, None).unwrap().typed.refund_deadline, at(0));
    }

    #[test]
    fn bad_orders_are_refused() {
        use ErrorCode as E;
        let never = json!({ "t_s": "never" });
        for (order, code) in [
            (json!({ "summary": "x" }), E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR),
            (json!({ "amount": "KUDOS:1" }), E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR),
            (
                json!({ "amount": "KUDOS:x", "summary": "x" }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
            (json!({ "amount": "EUR:1", "summary": "x" }), E::GENERIC_CURRENCY_MISMATCH),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "wire_transfer_deadline": never }),
                E::MERCHANT_PRIVATE_POST_ORDERS_WIRE_DEADLINE_IS_NEVER,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "refund_deadline": never }),
                E::MERCHANT_PRIVATE_POST_ORDERS_REFUND_AFTER_WIRE_DEADLINE,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "delivery_date": { "t_s": 1 } }),
                E::MERCHANT_PRIVATE_POST_ORDERS_DELIVERY_DATE_IN_PAST,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "wire_fee_amortization": 0 }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "weight": 0.5 }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "pay_deadline": { "t_s": 1 } }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x", "products": {} }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
            (
                json!({ "amount": "KUDOS:1", "summary": "x".repeat(TERMS_BYTES_MAX) }),
                E::MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR,
            ),
        ] {
            assert_eq!(make(order.clone(), None).unwrap_err().0, code, "{order}");
        }
    }

    #[test]
    fn ids_of_orders() {
        let id = random_order_id(NOW, [7; 8]);
        assert!(id.starts_with("2023.318-") && is_order_id(&id), "{id}");
        for wrong in ["", "a/b", "a b", "ä", &"x".repeat(129)] {
            assert!(!is_order_id(wrong), "{wrong}");
        }
    }
}
