//! The words of `batzen ledger client` and `repl`: an operation, then `field=value` words; a comma ends an
//! event.

use std::fmt;

use batzen_ledger::{Account, AccountFilter, BATCH_EVENTS_MAX, ChangeFilter, QueryFilter, Transfer};
use batzen_ledger_service::net::json::{
    AccountFilterJson, AccountJson, JsonError, QueryFilterJson, TransferJson, Wide,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// A request to a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    CreateAccounts(Vec<Account>),
    CreateTransfers(Vec<Transfer>),
    LookupAccounts(Vec<u128>),
    LookupTransfers(Vec<u128>),
    AccountTransfers(AccountFilter),
    AccountBalances(AccountFilter),
    QueryAccounts(QueryFilter),
    QueryTransfers(QueryFilter),
    Events(ChangeFilter),
}

/// The operations and their arguments.
pub(super) const OPERATIONS: [(&str, &str); 9] = [
    ("create-accounts", "id=1 ledger=700 code=10 [flags=history|linked] [user_data_128=..] [, id=2 ..]"),
    (
        "create-transfers",
        "id=1 debit_account_id=1 credit_account_id=2 amount=10 ledger=700 code=1 [flags=pending] [, ..]",
    ),
    ("lookup-accounts", "ID [ID ..]"),
    ("lookup-transfers", "ID [ID ..]"),
    ("get-account-transfers", "account_id=1 [limit=10] [reversed=true] [timestamp_min=..]"),
    ("get-account-balances", "account_id=1 [limit=10] [reversed=true]"),
    ("query-accounts", "[ledger=700] [code=10] [user_data_64=..] [limit=10]"),
    ("query-transfers", "[ledger=700] [code=1] [user_data_64=..] [limit=10]"),
    ("get-change-events", "[after=TIMESTAMP] [limit=100]"),
];

/// A mistake in the words, as a sentence that says what would be correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake(pub String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

fn mistake<T>(text: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake(text.into()))
}

/// Parses an operation and its words.
pub(super) fn parse(operation: &str, words: &[String]) -> Result<Request, Mistake> {
    let name = operation.replace('_', "-");
    let Some((name, takes)) = OPERATIONS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        let hint = known.iter().find(|known| known.contains(&name) || name.contains(**known)).map_or_else(
            || format!("there are {}", known.join(", ")),
            |known| format!("did you mean {known}?"),
        );
        return mistake(format!("there is no operation {operation}: {hint}"));
    };
    let explain = |error: Mistake| Mistake(format!("{error}\nusage: {name} {takes}"));
    request(name, words).map_err(explain)
}

fn request(name: &str, words: &[String]) -> Result<Request, Mistake> {
    let events = groups(words)?;
    let one = || match events.as_slice() {
        [] => Ok(Map::new()),
        [one] => Ok(one.clone()),
        _ => mistake("one filter at a time"),
    };
    Ok(match name {
        "create-accounts" => Request::CreateAccounts(accounts(events.into_iter().map(Value::Object))?),
        "create-transfers" => Request::CreateTransfers(transfers(events.into_iter().map(Value::Object))?),
        "lookup-accounts" => Request::LookupAccounts(ids(words)?),
        "lookup-transfers" => Request::LookupTransfers(ids(words)?),
        "get-account-transfers" => Request::AccountTransfers(account_filter(one()?)?),
        "get-account-balances" => Request::AccountBalances(account_filter(one()?)?),
        "query-accounts" => Request::QueryAccounts(query_filter(one()?)?),
        "query-transfers" => Request::QueryTransfers(query_filter(one()?)?),
        _ => Request::Events(change_filter(one()?)?),
    })
}

/// Parses an operation whose events are given as JSON: an array, an object with `accounts`, `transfers` or
/// `ids`, or one JSON value per line.
pub(super) fn parse_json(operation: &str, text: &str) -> Result<Request, Mistake> {
    let name = operation.replace('_', "-");
    let values: Vec<Value> = serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| Mistake(format!("malformed JSON: {error}")))?;
    let member =
        |value: &Value| ["accounts", "transfers", "ids"].iter().find_map(|name| value.get(name).cloned());
    let values = match values.as_slice() {
        [Value::Array(values)] => values.clone(),
        [value] => match member(value) {
            Some(Value::Array(values)) => values,
            _ => values,
        },
        _ => values,
    };
    match name.as_str() {
        "create-accounts" => Ok(Request::CreateAccounts(accounts(values.into_iter())?)),
        "create-transfers" => Ok(Request::CreateTransfers(transfers(values.into_iter())?)),
        "lookup-accounts" | "lookup-transfers" => {
            let ids: Vec<u128> =
                values.into_iter().map(|id| read::<Wide>(id).map(|id| id.0)).collect::<Result<_, _>>()?;
            Ok(if name == "lookup-accounts" {
                Request::LookupAccounts(ids)
            } else {
                Request::LookupTransfers(ids)
            })
        }
        _ => mistake(format!("{operation} takes its filter from the command line")),
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, Mistake> {
    serde_json::from_value(value).map_err(|error| Mistake(error.to_string()))
}

/// Members that are JSON numbers; all others are strings.
const NUMBERS: [&str; 5] = ["user_data_32", "timeout", "ledger", "code", "limit"];
const CHOICES: [&str; 3] = ["debits", "credits", "reversed"];

/// Splits the words into events: a comma, alone or at the end of a word, ends one.
fn groups(words: &[String]) -> Result<Vec<Map<String, Value>>, Mistake> {
    let mut events = vec![Map::new()];
    for word in words.iter().flat_map(|word| word.split_whitespace()) {
        let (text, ends) = word.strip_suffix(',').map_or((word, false), |text| (text, true));
        if !text.is_empty() {
            let event = events.last_mut().expect("there is always one");
            // Ids of lookups are words without a name.
            let (name, value) = text.split_once('=').unwrap_or(("", text));
            if event.insert(name.to_owned(), value_of(name, value)?).is_some() && !name.is_empty() {
                return mistake(format!("{name} occurs twice; a comma ends an event"));
            }
        }
        if ends {
            events.push(Map::new());
        }
    }
    events.retain(|event| !event.is_empty());
    Ok(events)
}

fn value_of(name: &str, value: &str) -> Result<Value, Mistake> {
    if NUMBERS.contains(&name) {
        return match value.parse::<u64>() {
            Ok(number) => Ok(json!(number)),
            Err(_) => mistake(format!("{name} must be a number, not {value:?}")),
        };
    }
    if CHOICES.contains(&name) {
        return match value {
            "true" | "yes" | "1" => Ok(json!(true)),
            "false" | "no" | "0" => Ok(json!(false)),
            _ => mistake(format!("{name} must be true or false, not {value:?}")),
        };
    }
    if name == "flags" {
        let names: Vec<&str> = value.split(['|', '+']).filter(|name| !name.is_empty()).collect();
        return Ok(json!(names));
    }
    Ok(json!(value))
}

fn limited<T>(events: Vec<T>) -> Result<Vec<T>, Mistake> {
    match events.len() {
        0 => mistake("there is no event"),
        count if count > BATCH_EVENTS_MAX => {
            mistake(format!("{count} events are more than the {BATCH_EVENTS_MAX} of a request"))
        }
        _ => Ok(events),
    }
}

/// A record of the ledger, given as JSON.
fn record<J: DeserializeOwned, R>(value: Value) -> Result<R, Mistake>
where
    R: for<'a> TryFrom<&'a J, Error = JsonError>,
{
    let json: J = read(value)?;
    R::try_from(&json).map_err(|error| Mistake(error.to_string()))
}

fn accounts(values: impl Iterator<Item = Value>) -> Result<Vec<Account>, Mistake> {
    limited(values.map(record::<AccountJson, _>).collect::<Result<_, _>>()?)
}

fn transfers(values: impl Iterator<Item = Value>) -> Result<Vec<Transfer>, Mistake> {
    limited(values.map(record::<TransferJson, _>).collect::<Result<_, _>>()?)
}

fn ids(words: &[String]) -> Result<Vec<u128>, Mistake> {
    let texts = words.iter().flat_map(|word| word.split([',', ' '])).filter(|text| !text.is_empty());
    let id = |text: &str| match text.trim_start_matches("id=").parse::<Wide>() {
        Ok(id) => Ok(id.0),
        Err(error) => Err(Mistake(error.to_string())),
    };
    limited(texts.map(id).collect::<Result<_, _>>()?)
}

fn account_filter(event: Map<String, Value>) -> Result<AccountFilter, Mistake> {
    record::<AccountFilterJson, _>(Value::Object(event))
}

fn query_filter(event: Map<String, Value>) -> Result<QueryFilter, Mistake> {
    record::<QueryFilterJson, _>(Value::Object(event))
}

fn change_filter(event: Map<String, Value>) -> Result<ChangeFilter, Mistake> {
    let mut filter = ChangeFilter { limit: 100, ..ChangeFilter::default() };
    for (name, value) in event {
        let number = read::<Wide>(value)?.0;
        let number = u64::try_from(number).map_err(|_| Mistake(format!("{name} must be below 2^64")))?;
        match name.as_str() {
            "after" => filter.timestamp_min = number.saturating_add(1),
            "timestamp_min" => filter.timestamp_min = number,
            "timestamp_max" => filter.timestamp_max = number,
            "limit" => filter.limit = u32::try_from(number).unwrap_or(u32::MAX),
            _ => {
                return mistake(format!(
                    "unknown field {name:?}: there are after, timestamp_min, timestamp_max, limit"
                ));
            }
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use batzen_ledger::{AccountFlags, TransferFlags};

    use super::*;

    fn line(text: &str) -> Result<Request, Mistake> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let operation = words.next().unwrap();
        parse(&operation, &words.collect::<Vec<_>>())
    }

    #[test]
    fn events_are_words_and_end_with_commas() {
        let account = |id, flags| Account { id, ledger: 700, code: 10, flags, ..Account::default() };
        assert_eq!(
            line("create_accounts id=1 ledger=700 code=10 flags=linked|history, id=0x2 ledger=700 code=10")
                .unwrap(),
            Request::CreateAccounts(vec![
                account(1, AccountFlags::LINKED | AccountFlags::HISTORY),
                account(2, AccountFlags::NONE)
            ])
        );
        let transfer = Transfer {
            id: 1,
            debit_account_id: 1,
            credit_account_id: 2,
            amount: u128::MAX,
            ledger: 700,
            code: 1,
            flags: TransferFlags::PENDING,
            timeout: 5,
            ..Transfer::default()
        };
        assert_eq!(
            line(
                "create-transfers id=1 debit_account_id=1 credit_account_id=2 amount=max ledger=700 code=1 flags=pending timeout=5"
            ),
            Ok(Request::CreateTransfers(vec![transfer]))
        );
        assert_eq!(line("lookup-accounts 1 2, 0xff"), Ok(Request::LookupAccounts(vec![1, 2, 255])));
        assert_eq!(
            line("get-change-events after=7 limit=3"),
            Ok(Request::Events(ChangeFilter { timestamp_min: 8, timestamp_max: 0, limit: 3 }))
        );
        let filter = AccountFilter { limit: 3, reversed: true, ..AccountFilter::all(9) };
        assert_eq!(
            line("get-account-transfers account_id=9 limit=3 reversed=yes"),
            Ok(Request::AccountTransfers(filter))
        );
    }

    #[test]
    fn errors_name_what_is_expected() {
        for (text, hint) in [
            ("create-account id=1", "create-accounts"),
            ("fly", "lookup-transfers"),
            ("create-accounts idd=1", "unknown field `idd`"),
            ("create-accounts id=one", "not an integer"),
            ("create-accounts id=1 id=2", "twice"),
            ("create-accounts id=1 flags=linke", "must_not_exceed"),
            ("create-accounts", "no event"),
            ("create-transfers code=x", "must be a number"),
            ("get-account-transfers", "account_id"),
            ("query-accounts reversed=maybe", "true or false"),
        ] {
            let mistake = line(text).unwrap_err().to_string();
            assert!(mistake.contains(hint), "{text}: {mistake}");
        }
    }

    #[test]
    fn json_comes_in_three_forms() {
        let expected = line("create-accounts id=1 ledger=1 code=1, id=2 ledger=1 code=1").unwrap();
        for text in [
            r#"[{"id":1,"ledger":1,"code":1},{"id":"2","ledger":1,"code":1}]"#,
            r#"{"accounts":[{"id":1,"ledger":1,"code":1},{"id":"2","ledger":1,"code":1}]}"#,
            "{\"id\":1,\"ledger\":1,\"code\":1}\n{\"id\":\"2\",\"ledger\":1,\"code\":1}\n",
        ] {
            assert_eq!(parse_json("create-accounts", text).unwrap(), expected, "{text}");
        }
        assert_eq!(parse_json("lookup-accounts", "[1,\"2\"]"), Ok(Request::LookupAccounts(vec![1, 2])));
        assert!(parse_json("create-accounts", "{").is_err());
        assert!(parse_json("query-accounts", "{}").is_err());
    }
}
