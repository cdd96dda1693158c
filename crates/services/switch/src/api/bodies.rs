//! The format of bodies that the switch passes on: it checks that the elements required by the specification
//! are present and well-formed. All other content is the receiver's concern.

use serde_json::Value;

use super::participant::Refuse;
use crate::errors::ApiError;
use crate::values::{currency_number, is_base64url, is_hash_text, parse_amount, parse_time, parse_uuid};

/// The most items in one bulk quote.
const ITEMS_MAX: usize = 1000;

/// Types of party identifiers.
pub(super) const PARTY_ID_TYPES: [&str; 8] =
    ["MSISDN", "EMAIL", "PERSONAL_ID", "BUSINESS", "DEVICE", "ACCOUNT_ID", "IBAN", "ALIAS"];

/// The required form of an element.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Uuid,
    /// 1 to this many characters.
    Text(usize),
    OneOf(&'static [&'static str]),
    Money,
    Time,
    Packet,
    Hash,
    /// A party with `partyIdInfo`.
    Party,
    /// A type, an identifier and optional elements.
    PartyIdInfo,
    /// Scenario, initiator and its type.
    TransactionType,
    ErrorInformation,
    /// 1 to [`ITEMS_MAX`] objects with these elements.
    Items(&'static [Element]),
}

/// An element: its name, whether it is required, and its form.
pub(super) type Element = (&'static str, bool, Form);

const AMOUNT_TYPES: Form = Form::OneOf(&["SEND", "RECEIVE"]);

pub(super) const QUOTE: &[Element] = &[
    ("quoteId", true, Form::Uuid),
    ("transactionId", true, Form::Uuid),
    ("transactionRequestId", false, Form::Uuid),
    ("payee", true, Form::Party),
    ("payer", true, Form::Party),
    ("amountType", true, AMOUNT_TYPES),
    ("amount", true, Form::Money),
    ("fees", false, Form::Money),
    ("transactionType", true, Form::TransactionType),
    ("note", false, Form::Text(128)),
    ("expiration", false, Form::Time),
];
pub(super) const QUOTE_RESULT: &[Element] = &[
    ("transferAmount", true, Form::Money),
    ("payeeReceiveAmount", false, Form::Money),
    ("payeeFspFee", false, Form::Money),
    ("payeeFspCommission", false, Form::Money),
    ("expiration", true, Form::Time),
    ("ilpPacket", true, Form::Packet),
    ("condition", true, Form::Hash),
];
pub(super) const BULK_QUOTE: &[Element] = &[
    ("bulkQuoteId", true, Form::Uuid),
    ("payer", true, Form::Party),
    ("expiration", false, Form::Time),
    (
        "individualQuotes",
        true,
        Form::Items(&[
            ("quoteId", true, Form::Uuid),
            ("transactionId", true, Form::Uuid),
            ("payee", true, Form::Party),
            ("amountType", true, AMOUNT_TYPES),
            ("amount", true, Form::Money),
            ("transactionType", true, Form::TransactionType),
        ]),
    ),
];
pub(super) const BULK_QUOTE_RESULT: &[Element] = &[
    ("expiration", true, Form::Time),
    (
        "individualQuoteResults",
        false,
        Form::Items(&[
            ("quoteId", true, Form::Uuid),
            ("transferAmount", false, Form::Money),
            ("ilpPacket", false, Form::Packet),
            ("condition", false, Form::Hash),
            ("errorInformation", false, Form::ErrorInformation),
        ]),
    ),
];
pub(super) const TRANSACTION_REQUEST: &[Element] = &[
    ("transactionRequestId", true, Form::Uuid),
    ("payee", true, Form::Party),
    ("payer", true, Form::PartyIdInfo),
    ("amount", true, Form::Money),
    ("transactionType", true, Form::TransactionType),
    ("expiration", false, Form::Time),
];
pub(super) const TRANSACTION_REQUEST_RESULT: &[Element] = &[
    ("transactionId", false, Form::Uuid),
    ("transactionRequestState", true, Form::OneOf(&["RECEIVED", "PENDING", "ACCEPTED", "REJECTED"])),
];
pub(super) const AUTHORIZATION_RESULT: &[Element] =
    &[("responseType", true, Form::OneOf(&["ENTERED", "REJECTED", "RESEND"]))];
pub(super) const TRANSACTION_RESULT: &[Element] = &[
    ("completedTimestamp", false, Form::Time),
    ("transactionState", true, Form::OneOf(&["RECEIVED", "PENDING", "COMPLETED", "REJECTED"])),
];
pub(super) const PARTY_RESULT: &[Element] = &[("party", true, Form::Party)];
pub(super) const PARTICIPANT_RESULT: &[Element] = &[("fspId", true, Form::Text(32))];
pub(super) const ERROR: &[Element] = &[("errorInformation", true, Form::ErrorInformation)];

/// Parses a body and checks its elements.
pub(super) fn check(body: &[u8], elements: &[Element]) -> Result<Value, Refuse> {
    let value: Value = serde_json::from_slice(body).map_err(|error| Refuse::malformed(error.to_string()))?;
    check_all(&value, elements, "the body")?;
    Ok(value)
}

/// Checks a party in a list: type, identifier and optional elements.
pub(super) fn check_party(value: &Value) -> Result<(), Refuse> {
    check_one(value, Form::PartyIdInfo, "partyList")
}

fn check_all(value: &Value, elements: &[Element], whole: &str) -> Result<(), Refuse> {
    let fields = value.as_object().ok_or_else(|| Refuse::malformed(format!("{whole} is not an object")))?;
    for (name, is_required, form) in elements {
        match fields.get(*name) {
            Some(field) => check_one(field, *form, name)?,
            None if *is_required => {
                return Err(Refuse::new(400, ApiError::MissingElement, format!("{name} is missing")));
            }
            None => {}
        }
    }
    match fields.get("extensionList") {
        Some(list) => check_extensions(list),
        None => Ok(()),
    }
}

fn text_of(value: &Value, max: usize) -> Option<&str> {
    value.as_str().filter(|text| (1..=max).contains(&text.chars().count()))
}

fn check_one(value: &Value, form: Form, name: &str) -> Result<(), Refuse> {
    let text = value.as_str().unwrap_or_default();
    let is_right = match form {
        Form::Uuid => parse_uuid(text).is_some(),
        Form::Text(max) => text_of(value, max).is_some(),
        Form::OneOf(all) => all.contains(&text),
        Form::Time => parse_time(text).is_some(),
        Form::Packet => !text.is_empty() && text.len() <= 32_768 && is_base64url(text),
        Form::Hash => is_hash_text(text),
        Form::Money => {
            let part = |part: &str| value[part].as_str().unwrap_or_default();
            currency_number(part("currency")).is_some() && parse_amount(part("amount")).is_some()
        }
        Form::Party => return check_all(value, &[("partyIdInfo", true, Form::PartyIdInfo)], name),
        Form::PartyIdInfo => {
            let elements = [
                ("partyIdType", true, Form::OneOf(&PARTY_ID_TYPES)),
                ("partyIdentifier", true, Form::Text(128)),
                ("partySubIdOrType", false, Form::Text(128)),
                ("fspId", false, Form::Text(32)),
            ];
            return check_all(value, &elements, name);
        }
        Form::TransactionType => {
            let elements = [
                ("scenario", true, Form::Text(32)),
                ("initiator", true, Form::OneOf(&["PAYER", "PAYEE"])),
                ("initiatorType", true, Form::OneOf(&["CONSUMER", "AGENT", "BUSINESS", "DEVICE"])),
            ];
            return check_all(value, &elements, name);
        }
        Form::ErrorInformation => {
            let code = value["errorCode"].as_str().unwrap_or_default();
            let is_code = code.len() == 4 && code.bytes().all(|byte| byte.is_ascii_digit());
            return if is_code {
                check_all(value, &[("errorDescription", true, Form::Text(128))], name)
            } else {
                Err(Refuse::malformed("errorCode is not four digits"))
            };
        }
        Form::Items(elements) => {
            let items = value.as_array().filter(|items| (1..=ITEMS_MAX).contains(&items.len()));
            let Some(items) = items else {
                let text = format!("{name} is not a list of 1 to 1,000 items");
                return Err(Refuse::new(400, ApiError::TooManyElements, text));
            };
            return items.iter().try_for_each(|item| check_all(item, elements, name));
        }
    };
    if is_right { Ok(()) } else { Err(Refuse::malformed(format!("{name} is ill-formed"))) }
}

fn check_extensions(list: &Value) -> Result<(), Refuse> {
    let pairs = list["extension"].as_array().filter(|pairs| (1..=16).contains(&pairs.len()));
    let Some(pairs) = pairs else {
        return Err(Refuse::new(400, ApiError::TooManyElements, "an extension list has 1 to 16 pairs"));
    };
    let is_right =
        |pair: &Value| text_of(&pair["key"], 32).is_some() && text_of(&pair["value"], 128).is_some();
    if pairs.iter().all(is_right) {
        Ok(())
    } else {
        Err(Refuse::malformed("keys have 1 to 32 characters, values 1 to 128"))
    }
}
