//! Forgetting members of contracts (merchant chapters 4.4 and 6.5).

use batzen_protocol::ErrorCode;
use batzen_protocol::api::merchant::ContractTerms;
use batzen_protocol::canonical::{forget, to_canonical};
use serde::Deserialize as _;
use serde_json::Value;

const FORGOTTEN: &str = "$forgotten";
/// The maximum number of steps in a path.
const STEPS_MAX: usize = 32;

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Index(usize),
    All,
}

/// A path such as `$.products[*].image`. Its last step is a member.
fn parse(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for part in path.strip_prefix("$.")?.split('.') {
        let (name, mut rest) = part.find('[').map_or((part, ""), |at| part.split_at(at));
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return None;
        }
        steps.push(Step::Member(name.to_owned()));
        while !rest.is_empty() {
            let (index, after) = rest.strip_prefix('[')?.split_once(']')?;
            let is_number = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
            steps.push(match index {
                "*" => Step::All,
                _ if is_number => Step::Index(index.parse().ok()?),
                _ => return None,
            });
            rest = after;
        }
    }
    let is_member = matches!(steps.last(), Some(Step::Member(_)));
    (is_member && steps.len() <= STEPS_MAX).then_some(steps)
}

/// The result for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    /// Members that were forgotten now.
    now: usize,
    /// Members that had been forgotten before.
    before: usize,
}

/// Forgets what a path leads to. `None`: something there is not marked as forgettable.
fn follow(value: &mut Value, steps: &[Step]) -> Option<Done> {
    match steps {
        [] => None,
        [Step::Member(name)] => {
            if value.get(name).is_none() {
                value.get(FORGOTTEN)?.get(name)?;
                return Some(Done { now: 0, before: 1 });
            }
            forget(value, name).ok()?;
            Some(Done { now: 1, before: 0 })
        }
        [Step::Member(name), rest @ ..] => {
            // What is above may have been forgotten with all that it had.
            if value.get(name).is_none() && value.get(FORGOTTEN).is_some_and(|all| all.get(name).is_some()) {
                return Some(Done { now: 0, before: 1 });
            }
            follow(value.get_mut(name)?, rest)
        }
        [Step::Index(index), rest @ ..] => follow(value.get_mut(index)?, rest),
        [Step::All, rest @ ..] => {
            let mut done = Done::default();
            for item in value.as_array_mut()? {
                let part = follow(item, rest)?;
                done = Done { now: done.now + part.now, before: done.before + part.before };
            }
            Some(done)
        }
    }
}

/// Forgets members of a contract: the new terms, or none if all had been forgotten before.
///
/// # Errors
/// The code of the response, and the path.
pub(crate) fn forget_paths(terms: &str, paths: &[String]) -> Result<Option<String>, (ErrorCode, String)> {
    let invalid = || (ErrorCode::MERCHANT_GENERIC_DB_CONTRACT_CONTENT_INVALID, String::new());
    let mut terms: Value = serde_json::from_str(terms).map_err(|_| invalid())?;
    let mut is_changed = false;
    for path in paths {
        let syntax = ErrorCode::MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_SYNTAX_INCORRECT;
        let steps = parse(path).ok_or_else(|| (syntax, path.clone()))?;
        let refused =
            || (ErrorCode::MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_NOT_FORGETTABLE, path.clone());
        is_changed |= follow(&mut terms, &steps).ok_or_else(refused)?.now > 0;
        // The backend needs these members itself, whatever the shop has marked.
        ContractTerms::deserialize(&terms).map_err(|_| refused())?;
    }
    if !is_changed {
        return Ok(None);
    }
    to_canonical(&terms).map(Some).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use batzen_protocol::canonical::contract_hash;
    use serde_json::json;

    use super::*;

    fn contract() -> Value {
        json!({
            "order_id": "1", "summary": "x", "amount": "KUDOS:1", "max_fee": "KUDOS:0",
            "timestamp": { "t_s": 1 }, "refund_deadline": { "t_s": 1 }, "pay_deadline": { "t_s": 1 },
            "wire_transfer_deadline": { "t_s": 1 }, "exchanges": [],
            "merchant_pub": "2KF0WS3C35NE9A0FGYXR68H29HB5J7EMKR3TTSG19NBDZP7GZMQ0",
            "merchant_base_url": "http://x/", "wire_method": "x", "h_wire": "0".repeat(103),
            "delivery_location": { "street": "A", "town": "B", "$forgettable": { "street": "salt" } },
            "products": [
                { "image": "i", "$forgettable": { "image": "s" } },
                { "image": "j", "$forgettable": { "image": "t" } },
            ],
            "$forgettable": { "delivery_location": "u", "summary": "v" },
        })
    }

    fn forgotten(paths: &[&str]) -> Result<Option<Value>, ErrorCode> {
        let contract = contract();
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let after = forget_paths(&contract.to_string(), &paths).map_err(|(code, _)| code)?;
        let after: Option<Value> = after.map(|text| serde_json::from_str(&text).unwrap());
        if let Some(after) = &after {
            assert_eq!(contract_hash(after).unwrap(), contract_hash(&contract).unwrap());
            let again = forget_paths(&after.to_string(), &paths).unwrap();
            assert_eq!(again, None, "a repetition changes nothing");
        }
        Ok(after)
    }

    #[test]
    fn members_are_forgotten_and_the_hash_stays() {
        let one = forgotten(&["$.products[1].image"]).unwrap().unwrap();
        assert_eq!(
            (one["products"][0]["image"].as_str(), one["products"][1].get("image")),
            (Some("i"), None)
        );
        let all = forgotten(&["$.products[*].image", "$.delivery_location.street"]).unwrap().unwrap();
        assert!(
            all["products"][0].get("image").is_none() && all["delivery_location"].get("street").is_none()
        );
        assert_eq!(all["delivery_location"]["town"], "B");
        let above = forgotten(&["$.delivery_location", "$.delivery_location.street"]).unwrap().unwrap();
        assert!(above.get("delivery_location").is_none());
    }

    #[test]
    fn what_is_not_marked_stays() {
        let syntax = ErrorCode::MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_SYNTAX_INCORRECT;
        for wrong in
            ["", "$", "$.", "x", "$.a..b", "$.a[", "$.a[x]", "$.a[-1]", "$.a[0]", "$.a[]", "$.a]b", "$.a b"]
        {
            assert_eq!(forgotten(&[wrong]), Err(syntax), "{wrong}");
        }
        let refused = ErrorCode::MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_NOT_FORGETTABLE;
        for wrong in [
            "$.amount",
            "$.nothing",
            "$.delivery_location.town",
            "$.products[2].image",
            "$.amount.x",
            "$.summary[*].x",
            // It is marked, but the backend needs it.
            "$.summary",
        ] {
            assert_eq!(forgotten(&[wrong]), Err(refused), "{wrong}");
        }
    }
}
