//! What the offline keys sign: denominations, signing keys, accounts, fees, auditors.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;

/// A change of the key set.
#[derive(Debug, Clone)]
pub enum Command {}

/// What it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {}

/// Why it was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {}

/// Names the rows that a change may touch.
pub fn plan(command: &Command, _plan: &mut Plan) {
    match *command {}
}

/// Applies a change.
///
/// # Errors
/// Why it was refused.
pub fn execute(_rows: &mut WorkingSet, command: &Command, _now: Timestamp) -> Result<Outcome, Refusal> {
    match *command {}
}
