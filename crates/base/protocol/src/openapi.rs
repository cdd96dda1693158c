//! OpenAPI schemas of values whose JSON form is not that of their members.

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::{Amount, Duration, Timestamp};

/// The schema of an object with one number, or a word in its place.
fn number_or(member: &str, word: &str, description: &str) -> Value {
    let number = json!({ "oneOf": [{ "type": "integer" }, { "type": "string", "enum": [word] }] });
    json!({ "type": "object", "description": description, "required": [member], "properties": { member: number } })
}

macro_rules! schemas {
    ($($name:ident: $schema:expr;)*) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                serde_json::from_value($schema).expect("it is a schema")
            }
        }

        impl ToSchema for $name {}
    )*};
}

schemas! {
    Amount: json!({
        "type": "string",
        "pattern": r"^[A-Za-z]{1,11}:[0-9]+(\.[0-9]{1,8})?$",
        "examples": ["KUDOS:12.5"],
        "description": "A currency and a decimal number with at most 8 digits after the point.",
    });
    Timestamp: number_or("t_s", "never", "Seconds since 1970.");
    Duration: number_or("d_us", "forever", "Microseconds.");
}
