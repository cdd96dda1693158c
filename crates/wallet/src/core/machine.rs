//! The wallet's state machine: which request an operation sends next, and what an answer changes.
//!
//! [`next`] is a function of the stored state alone. After a crash it returns exactly the same request, byte
//! for byte, and every request of the protocol can be repeated. [`receive`] turns an answer into changes.
//! Nothing else advances an operation.

use batzen_protocol::Timestamp;

use super::entropy::Entropy;
use super::evidence::{self, Disputed};
use super::http::{HttpRequest, HttpResponse};
use super::operation::Step;
use super::state::{Change, Draft, OpId, WalletOperation, WalletState};
use super::{recoup, refresh};
use crate::core::error::Result;

/// The next step of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// No request: the operation is finished.
    Done,
    /// Send this request and pass the answer to [`receive`].
    Request(Box<HttpRequest>),
}

/// The result of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerOutcome {
    /// Changes to be made durable before anything else is sent.
    pub changes: Vec<Change>,
    /// The operation waits for somebody else (the bank, a person). The text says for whom. Ask again later.
    pub waiting: Option<String>,
    /// The answer was false. The changes only keep it as evidence.
    pub disputed: Option<Disputed>,
}

/// The next step of `id`. With `poll_ms` above zero, servers may delay their answers that long where the
/// operation waits for an event.
///
/// # Errors
/// [`CoreError::Inconsistent`] and related errors if records contradict each other. A peer cannot cause
/// these.
pub fn next(state: &WalletState, id: OpId, poll_ms: u64) -> Result<Next> {
    let operation = state.operation(id)?;
    if operation.finished.is_some() {
        return Ok(Next::Done);
    }
    let request = operation.kind.operation().next(state, operation, poll_ms)?;
    Ok(Next::Request(Box::new(request)))
}

/// Processes the answer to the request that [`next`] returned.
///
/// Do not pass answers that say "later" ([`HttpResponse::is_transient`]): the same request is sent again.
///
/// An answer that is false ([`CoreError::is_false_statement`]) is kept as evidence, and the operation rests.
///
/// # Errors
/// If the peer refuses, or its answer is malformed. The operation stays where it is and is tried again. After
/// [`CoreError::UnknownSigningKey`], update the exchange and try again; if the key is still unknown, pass the
/// answer to `evidence::dispute`.
pub fn receive(
    state: &WalletState,
    id: OpId,
    request: &HttpRequest,
    response: &HttpResponse,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<AnswerOutcome> {
    match take_in(state, id, request, response, now, entropy) {
        Err(error) if error.is_false_statement() => {
            let (disputed, changes) = evidence::dispute(state, id, request, response, &error, now)?;
            Ok(AnswerOutcome { changes, waiting: None, disputed: Some(disputed) })
        }
        result => result,
    }
}

fn take_in(
    state: &WalletState,
    id: OpId,
    request: &HttpRequest,
    response: &HttpResponse,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<AnswerOutcome> {
    let operation = state.operation(id)?;
    if operation.finished.is_some() {
        return Ok(AnswerOutcome { changes: Vec::new(), waiting: None, disputed: None });
    }
    let mut step = Step {
        draft: Draft::new(state),
        operation: operation.clone(),
        request,
        now,
        entropy,
        waiting: None,
        accept_refused: operation.dispute.is_some_and(|dispute| dispute.accept_refused),
    };
    step.operation.last_error = None;
    let dispute = step.operation.dispute.take();
    operation.kind.clone().into_operation().receive(&mut step, response)?;
    let Step { mut draft, mut operation, waiting, .. } = step;
    operation.last_error.clone_from(&waiting);
    draft.put_operation(operation);
    if let Some(dispute) = dispute {
        evidence::settle(&mut draft, dispute.evidence, id, now)?;
    }
    // A refresh follows at once. It must not depend on a later run of the planner.
    follow_ups(&mut draft, now, entropy)?;
    Ok(AnswerOutcome { changes: draft.into_changes(), waiting, disputed: None })
}

/// Begins the operations that are due: refreshes of used coins with remaining value and of coins that expire
/// soon, and recoups of coins whose denomination was revoked.
///
/// # Errors
/// If records contradict each other.
pub fn plan(state: &WalletState, now: Timestamp, entropy: &mut dyn Entropy) -> Result<Vec<Change>> {
    let mut draft = Draft::new(state);
    follow_ups(&mut draft, now, entropy)?;
    Ok(draft.into_changes())
}

fn follow_ups(draft: &mut Draft<'_>, now: Timestamp, entropy: &mut dyn Entropy) -> Result<()> {
    recoup::plan(draft, now)?;
    refresh::plan(draft, now, entropy)
}

/// The changes that record why an operation makes no progress. Empty if the reason is recorded already.
///
/// # Errors
/// [`CoreError::UnknownOperation`].
pub fn record_error(state: &WalletState, id: OpId, text: &str) -> Result<Vec<Change>> {
    let operation = state.operation(id)?;
    if operation.finished.is_some() || operation.last_error.as_deref() == Some(text) {
        return Ok(Vec::new());
    }
    let operation = WalletOperation { last_error: Some(text.to_owned()), ..operation.clone() };
    Ok(vec![Change::Operation(Box::new(operation))])
}
