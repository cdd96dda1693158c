//! Lines that are left out, or expected to be answered otherwise, and the reasons.

use serde_json::{Value, json};

use crate::replay::recording::{Line, Response};
use crate::replay::side::Side;

/// Why a line is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// The line is a message to the bank.
    Bank,
    /// The answer shows the effect of something that the recording leaves out.
    Hidden,
    /// The recorded exchange had made its denomination keys before its signing keys; ours makes them at once.
    KeyTimes,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bank => "a message to the bank",
            Self::Hidden => "it shows the effect of something that the recording leaves out",
            Self::KeyTimes => "the recorded keys were made at two times",
        })
    }
}

/// Answers after requests that the recordings leave out, and after the work of a worker whose clock was ahead.
const HIDDEN: [(&str, u64); 4] = [
    ("exchange-api-rsa", 143),
    ("exchange-api-rsa", 161),
    ("exchange-api-rsa", 164),
    ("exchange-api-rsa", 167),
];
/// Deposits of more than the coin's value, after its deposit was refunded completely.
const OVERPAID: [(&str, u64); 2] = [("exchange-api-rsa", 98), ("exchange-api-cs", 118)];
/// Refunds of those deposits.
const OVERPAID_REFUNDS: [(&str, u64); 2] = [("exchange-api-rsa", 100), ("exchange-api-cs", 120)];

/// Returns the reason for which a line is left out, if it is.
pub(super) fn left_out(scenario: &str, recorded: &Side, line: &Line) -> Option<Reason> {
    let place = (scenario, line.step);
    if line.server == "bank" {
        Some(Reason::Bank)
    } else if HIDDEN.contains(&place) {
        Some(Reason::Hidden)
    } else if line.is_ok() && ["/keys", "/management/keys"].contains(&line.request.path.as_str()) {
        let denominations = recorded.denominations.values().map(|info| info.terms.stamp_start).min();
        let signing_keys = recorded.signing_keys.values().map(|key| key.start).min();
        (line.request.method == "GET" && denominations != signing_keys).then_some(Reason::KeyTimes)
    } else {
        None
    }
}

/// An answer that is right instead of the recorded one.
pub(super) enum Right {
    Answer(Response),
    /// An error with this status and code.
    Refusal(u16, u32),
}

/// The right answer, if the protocol decides that the recorded one is wrong, or allows another that ours
/// prefers.
pub(super) fn decided(scenario: &str, lines: &[Line], line: &Line) -> Option<Right> {
    let place = (scenario, line.step);
    // Rules of the exchange, F3: a complete refund does not return the deposit fee a second time.
    if OVERPAID.contains(&place) {
        return Some(Right::Refusal(409, 1012));
    }
    if OVERPAID_REFUNDS.contains(&place) {
        return Some(Right::Refusal(404, 1502));
    }
    let Response { status, body, .. } = &line.response;
    let mut right = line.response.clone();
    let code = body.get("code").and_then(Value::as_u64);
    match (line.request.method.as_str(), line.request.segments().as_slice(), *status) {
        // Payments between people, differences, 5: the conflict of a merge has a code.
        ("POST", ["purses", _, "merge"], 409) if code.is_none() => {
            right.body["code"] = json!(1676);
            right.body["hint"] = json!("");
        }
        // Exchange API, 4.1: parts of the keys have groups too.
        ("GET", ["keys"], 200) if body["denominations"] == json!([]) => {
            right.body["denominations"] = groups_of_part(lines, line)?;
        }
        // Exchange API, 1.10: only programs under the AGPL need this page.
        ("GET", ["agpl"], 302) => return Some(Right::Refusal(404, 21)),
        // Exchange API, 5.2: clocks may differ by at most 15 minutes.
        ("POST", ["reserves", _, "status"], 403)
            if line.request.body["request_timestamp"]["t_s"] == "never" =>
        {
            return Some(Right::Refusal(400, 1020));
        }
        // Exchange API, open points: payto URIs may have percent signs. What is wrong then is the signature.
        ("POST", ["coins", _, "deposit"], 400)
            if code == Some(26) && line.request.body["merchant_payto_uri"].as_str()?.contains('%') =>
        {
            return Some(Right::Refusal(403, 1205));
        }
        _ => return None,
    }
    Some(Right::Answer(right))
}

/// The groups of the keys from some time on, made of the recorded groups of all keys.
fn groups_of_part(lines: &[Line], line: &Line) -> Option<Value> {
    let since: u64 = line.request.argument("last_issue_date")?.parse().ok()?;
    let all = lines.iter().find_map(|line| {
        let groups = line.response.body.get("denominations")?.as_array()?;
        (line.request.path == "/keys" && !groups.is_empty()).then_some(groups)
    })?;
    let mut part = all.clone();
    for group in &mut part {
        let members = group["denoms"].as_array_mut()?;
        members.retain(|member| member["stamp_start"]["t_s"].as_u64() >= Some(since));
    }
    part.retain(|group| group["denoms"] != json!([]));
    Some(Value::Array(part))
}
