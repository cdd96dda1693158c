//! Records as JSON, for the HTTP interface and the command line.
//!
//! Integers of 64 and 128 bits are strings, because many JSON parsers round above 2^53. Numbers, `0x…`, and
//! `max` for 2^128-1 are accepted as well. Flags and statuses are names.

use std::fmt;
use std::str::FromStr;

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, AccountFlags, BATCH_EVENTS_MAX, ChangeEvent, CreateAccountStatus,
    CreateResult, CreateTransferStatus, QueryFilter, Transfer, TransferFlags,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

/// An integer that may exceed 53 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, example = "1000")]
pub struct Wide(pub u128);

impl FromStr for Wide {
    type Err = JsonError;

    fn from_str(text: &str) -> Result<Self, JsonError> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None if text == "max" => Some(u128::MAX),
            None => text.parse().ok(),
        };
        number.map(Self).ok_or_else(|| JsonError(format!("{text:?} is not an integer from 0 to 2^128-1")))
    }
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Wide {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Wide {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Wide;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer, as a string if it is above 2^53")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Wide, E> {
                Ok(Wide(number.into()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Wide, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Why a JSON value is not a valid record: an integer out of range, or an unknown flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

fn narrow(name: &str, value: Wide) -> Result<u64, JsonError> {
    u64::try_from(value.0).map_err(|_| JsonError(format!("{name} must be below 2^64")))
}

fn flag_names(names: impl Iterator<Item = &'static str>) -> Vec<String> {
    names.map(str::to_lowercase).collect()
}

fn known_flags(
    names: &[String],
    all: u16,
    name_of: impl Fn(u16) -> Option<String>,
) -> Result<u16, JsonError> {
    let known: Vec<(u16, String)> = (0..16)
        .map(|bit| 1 << bit)
        .filter(|flag| all & flag != 0)
        .filter_map(|flag| Some((flag, name_of(flag)?)))
        .collect();
    names.iter().try_fold(0, |flags, name| match known.iter().find(|(_, known)| known == name) {
        Some((flag, _)) => Ok(flags | flag),
        None => {
            let known: Vec<&str> = known.iter().map(|(_, name)| name.as_str()).collect();
            Err(JsonError(format!("unknown flag {name:?}; the flags are {}", known.join(", "))))
        }
    })
}

/// The account flags with these names.
///
/// # Errors
/// The first unknown name.
pub(crate) fn account_flags(names: &[String]) -> Result<AccountFlags, JsonError> {
    let name_of = |flag| AccountFlags(flag).names().next().map(str::to_lowercase);
    known_flags(names, AccountFlags::ALL.0, name_of).map(AccountFlags)
}

/// The transfer flags with these names.
///
/// # Errors
/// The first unknown name.
pub(crate) fn transfer_flags(names: &[String]) -> Result<TransferFlags, JsonError> {
    let name_of = |flag| TransferFlags(flag).names().next().map(str::to_lowercase);
    known_flags(names, TransferFlags::ALL.0, name_of).map(TransferFlags)
}

/// An account. Omitted members of a request are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = Account)]
pub struct AccountJson {
    /// Chosen by the client; neither 0 nor 2^128-1.
    pub id: Wide,
    /// Sum of unresolved pending debits.
    pub debits_pending: Wide,
    /// Sum of posted debits.
    pub debits_posted: Wide,
    /// Sum of unresolved pending credits.
    pub credits_pending: Wide,
    /// Sum of posted credits.
    pub credits_posted: Wide,
    /// Free for the client.
    pub user_data_128: Wide,
    /// Free for the client.
    pub user_data_64: Wide,
    /// Free for the client.
    pub user_data_32: u32,
    /// The currency or asset; not 0.
    pub ledger: u32,
    /// Class in the chart of accounts; not 0.
    pub code: u16,
    /// Names of flags.
    pub flags: Vec<String>,
    /// Nanoseconds since the epoch, given by the ledger.
    pub timestamp: Wide,
}

/// Converts between a record and its JSON. Given are the members of 128 bits, the narrower ones in which the records
/// differ, and the members that only the record has, with their values.
macro_rules! converted {
    (
        $record:ident, $json:ident, $flags:ident,
        [$($wide:ident),*], [$($own:ident),*], [$($only:ident: $value:expr),*]
    ) => {
        impl From<&$record> for $json {
            fn from(record: &$record) -> Self {
                Self {
                    $($wide: Wide(record.$wide),)*
                    $($own: record.$own,)*
                    user_data_64: Wide(record.user_data_64.into()),
                    user_data_32: record.user_data_32,
                    ledger: record.ledger,
                    code: record.code,
                    flags: flag_names(record.flags.names()),
                    timestamp: Wide(record.timestamp.into()),
                }
            }
        }

        impl TryFrom<&$json> for $record {
            type Error = JsonError;

            fn try_from(json: &$json) -> Result<Self, JsonError> {
                Ok(Self {
                    $($wide: json.$wide.0,)*
                    $($own: json.$own,)*
                    $($only: $value,)*
                    user_data_64: narrow("user_data_64", json.user_data_64)?,
                    user_data_32: json.user_data_32,
                    ledger: json.ledger,
                    code: json.code,
                    flags: $flags(&json.flags)?,
                    timestamp: narrow("timestamp", json.timestamp)?,
                })
            }
        }
    };
}

converted!(
    Account,
    AccountJson,
    account_flags,
    [id, debits_pending, debits_posted, credits_pending, credits_posted, user_data_128],
    [],
    [reserved: 0]
);
converted!(
    Transfer,
    TransferJson,
    transfer_flags,
    [id, debit_account_id, credit_account_id, amount, pending_id, user_data_128],
    [timeout],
    []
);

/// A transfer. Omitted members of a request are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = Transfer)]
pub struct TransferJson {
    /// Chosen by the client, the idempotency key; neither 0 nor 2^128-1.
    pub id: Wide,
    /// The paying account.
    pub debit_account_id: Wide,
    /// The receiving account.
    pub credit_account_id: Wide,
    /// In the smallest unit of the ledger.
    pub amount: Wide,
    /// Post and void only: the pending transfer.
    pub pending_id: Wide,
    /// Free for the client.
    pub user_data_128: Wide,
    /// Free for the client.
    pub user_data_64: Wide,
    /// Free for the client.
    pub user_data_32: u32,
    /// Pending only: seconds until it expires; 0 is never.
    pub timeout: u32,
    /// The ledger of both accounts.
    pub ledger: u32,
    /// Kind of the transfer; not 0.
    pub code: u16,
    /// Names of flags.
    pub flags: Vec<String>,
    /// Nanoseconds since the epoch, given by the ledger.
    pub timestamp: Wide,
}

/// Result of one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Result)]
pub struct ResultJson {
    /// Name of the status. `created` and `exists` mean success.
    pub status: String,
    /// Created: the new object's timestamp. Exists: the old object's. Otherwise the time of validation.
    pub timestamp: Wide,
}

macro_rules! result_json {
    ($status:ident) => {
        impl From<&CreateResult<$status>> for ResultJson {
            fn from(result: &CreateResult<$status>) -> Self {
                Self { status: result.status.name().to_owned(), timestamp: Wide(result.timestamp.into()) }
            }
        }
    };
}

result_json!(CreateAccountStatus);
result_json!(CreateTransferStatus);

/// Balances after one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Balance)]
pub struct BalanceJson {
    /// The transfer's timestamp.
    pub timestamp: Wide,
    /// After the transfer.
    pub debits_pending: Wide,
    /// After the transfer.
    pub debits_posted: Wide,
    /// After the transfer.
    pub credits_pending: Wide,
    /// After the transfer.
    pub credits_posted: Wide,
}

impl From<&AccountBalance> for BalanceJson {
    fn from(balance: &AccountBalance) -> Self {
        Self {
            timestamp: Wide(balance.timestamp.into()),
            debits_pending: Wide(balance.debits_pending),
            debits_posted: Wide(balance.debits_posted),
            credits_pending: Wide(balance.credits_pending),
            credits_posted: Wide(balance.credits_posted),
        }
    }
}

/// One change of balances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Event)]
pub struct EventJson {
    /// Unique, strictly increasing: the cursor.
    pub timestamp: Wide,
    /// `single_phase`, `two_phase_pending`, `two_phase_posted`, `two_phase_voided` or `two_phase_expired`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The transfer; for an expiry the pending transfer that was released.
    pub transfer: TransferJson,
    /// The debit account after the event.
    pub(crate) debit_account: AccountJson,
    /// The credit account after the event.
    pub(crate) credit_account: AccountJson,
}

impl From<&ChangeEvent> for EventJson {
    fn from(event: &ChangeEvent) -> Self {
        Self {
            timestamp: Wide(event.timestamp.into()),
            kind: event.kind.name().to_owned(),
            transfer: (&event.transfer).into(),
            debit_account: (&event.debit_account).into(),
            credit_account: (&event.credit_account).into(),
        }
    }
}

fn most() -> u32 {
    u32::try_from(BATCH_EVENTS_MAX).expect("a small constant")
}

const fn yes() -> bool {
    true
}

/// Selects accounts or transfers. 0 or omitted: any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = QueryFilter)]
pub struct QueryFilterJson {
    /// 0: any.
    #[serde(default)]
    pub user_data_128: Wide,
    /// 0: any.
    #[serde(default)]
    pub user_data_64: Wide,
    /// 0: any.
    #[serde(default)]
    pub user_data_32: u32,
    /// 0: any.
    #[serde(default)]
    pub ledger: u32,
    /// 0: any.
    #[serde(default)]
    pub code: u16,
    /// Inclusive; 0: open.
    #[serde(default)]
    pub timestamp_min: Wide,
    /// Inclusive; 0: open.
    #[serde(default)]
    pub timestamp_max: Wide,
    /// At most 8,189, which is the default.
    #[serde(default = "most")]
    pub limit: u32,
    /// Latest first.
    #[serde(default)]
    pub reversed: bool,
}

impl TryFrom<&QueryFilterJson> for QueryFilter {
    type Error = JsonError;

    fn try_from(json: &QueryFilterJson) -> Result<Self, JsonError> {
        Ok(Self {
            user_data_128: json.user_data_128.0,
            user_data_64: narrow("user_data_64", json.user_data_64)?,
            user_data_32: json.user_data_32,
            ledger: json.ledger,
            code: json.code,
            timestamp_min: narrow("timestamp_min", json.timestamp_min)?,
            timestamp_max: narrow("timestamp_max", json.timestamp_max)?,
            limit: json.limit,
            reversed: json.reversed,
        })
    }
}

/// Selects transfers of an account. 0 or omitted: any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AccountFilter)]
pub struct AccountFilterJson {
    /// The account.
    pub account_id: Wide,
    /// 0: any.
    #[serde(default)]
    pub user_data_128: Wide,
    /// 0: any.
    #[serde(default)]
    pub user_data_64: Wide,
    /// 0: any.
    #[serde(default)]
    pub user_data_32: u32,
    /// 0: any.
    #[serde(default)]
    pub code: u16,
    /// Inclusive; 0: open.
    #[serde(default)]
    pub timestamp_min: Wide,
    /// Inclusive; 0: open.
    #[serde(default)]
    pub timestamp_max: Wide,
    /// At most 8,189, which is the default.
    #[serde(default = "most")]
    pub limit: u32,
    /// Whether to include transfers that debit the account.
    #[serde(default = "yes")]
    pub debits: bool,
    /// Whether to include transfers that credit the account.
    #[serde(default = "yes")]
    pub credits: bool,
    /// Latest first.
    #[serde(default)]
    pub reversed: bool,
}

impl TryFrom<&AccountFilterJson> for AccountFilter {
    type Error = JsonError;

    fn try_from(json: &AccountFilterJson) -> Result<Self, JsonError> {
        Ok(Self {
            account_id: json.account_id.0,
            user_data_128: json.user_data_128.0,
            user_data_64: narrow("user_data_64", json.user_data_64)?,
            user_data_32: json.user_data_32,
            code: json.code,
            timestamp_min: narrow("timestamp_min", json.timestamp_min)?,
            timestamp_max: narrow("timestamp_max", json.timestamp_max)?,
            limit: json.limit,
            debits: json.debits,
            credits: json.credits,
            reversed: json.reversed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_integers_are_strings_and_other_forms_parse() {
        assert_eq!(serde_json::to_string(&Wide(u128::MAX)).unwrap(), format!("\"{}\"", u128::MAX));
        for (text, value) in [("7", 7), ("\"7\"", 7), ("\"0xff\"", 255), ("\"max\"", u128::MAX)] {
            assert_eq!(serde_json::from_str::<Wide>(text).unwrap(), Wide(value), "{text}");
        }
        for text in ["-1", "1.5", "\"\"", "\"1e3\"", "null", "\"0x\"", "1e30"] {
            assert!(serde_json::from_str::<Wide>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn records_round_trip() {
        let bytes: [u8; 128] = std::array::from_fn(|at| u8::try_from(at * 7 % 251).unwrap());
        let mut account = Account { flags: AccountFlags::ALL, reserved: 0, ..Account::from_bytes(&bytes) };
        account.reserved = 0;
        let transfer = Transfer { flags: TransferFlags::ALL, ..Transfer::from_bytes(&bytes) };
        let text = serde_json::to_string(&AccountJson::from(&account)).unwrap();
        assert_eq!(Account::try_from(&serde_json::from_str::<AccountJson>(&text).unwrap()), Ok(account));
        let text = serde_json::to_string(&TransferJson::from(&transfer)).unwrap();
        assert_eq!(Transfer::try_from(&serde_json::from_str::<TransferJson>(&text).unwrap()), Ok(transfer));
    }

    #[test]
    fn bad_values_get_a_clear_error() {
        let error = transfer_flags(&["pendign".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("pendign") && error.contains("post_pending_transfer"), "{error}");
        let json = TransferJson { user_data_64: Wide(1 << 64), ..TransferJson::default() };
        assert!(Transfer::try_from(&json).unwrap_err().to_string().contains("user_data_64"));
        assert!(
            serde_json::from_str::<AccountJson>(r#"{"idd": 1}"#).unwrap_err().to_string().contains("idd")
        );
    }
}
