//! Which lines are left out, or expected to be answered otherwise, and why.

use serde_json::json;

use crate::replay::recording::{Line, Response};

/// Why a line does not count as the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The line is a message to the bank.
    Bank,
    /// The protocol decides that the recorded answer is wrong; ours was compared with the right one.
    Decided,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bank => "a message to the bank",
            Self::Decided => "compared with the answer that the protocol decides instead of the recorded one",
        })
    }
}

/// Whether a line is left out.
pub fn left_out(line: &Line) -> Option<Reason> {
    (line.server == "bank").then_some(Reason::Bank)
}

/// The right answer, if the recorded one is wrong.
pub fn decided(base_url: &str, line: &Line) -> Option<Response> {
    let Response { status, body, .. } = &line.response;
    let mut right = line.response.clone();
    match (line.request.method.as_str(), line.request.segments().as_slice(), *status) {
        // Payments between people, differences, 5: the conflict of a merge has a code, and so the members that
        // this code has elsewhere.
        ("POST", ["purses", _, "merge"], 409) if body.get("code").is_none() => {
            right.body["code"] = json!(1676);
            right.body["hint"] = json!("");
            right.body["partner_url"] = json!(base_url);
        }
        _ => return None,
    }
    Some(right)
}
