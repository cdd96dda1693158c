//! Changes that one operator proposes and another approves.
//!
//! A proposal is open until another operator approves or rejects it, the proposer withdraws it, or it
//! expires. A change of rows alone takes effect in the same commit as its approval. A change that needs the
//! ledger is approved first, then carried out, then finished; if it is interrupted, it is carried out again,
//! which is harmless.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    ApprovalKey, ApprovalRow, Approvals, OpenApprovalKey, OpenApprovalRow, OpenApprovals,
};

use super::{Command, Refusal, change_state, plan_state, state_row, take_u64};

/// The most unfinished proposals.
pub const OPEN_MAX: usize = 1000;
/// The result of an approved change that has taken effect.
pub const DONE: &str = "done";

/// The state of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ApprovalState {
    /// Awaits a second operator.
    Open = 0,
    /// Approved; done once it has a result.
    Approved = 1,
    /// Rejected by another operator.
    Rejected = 2,
    /// Approved, but the change could not be made.
    Failed = 3,
    /// Withdrawn by the proposer.
    Withdrawn = 4,
    /// Nobody decided in time.
    Expired = 5,
}

impl ApprovalState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Open, Self::Approved, Self::Rejected, Self::Failed, Self::Withdrawn, Self::Expired];

    /// The state with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }

    /// The state of a stored approval.
    ///
    /// # Panics
    /// When the row contains none; only the rules write rows.
    #[must_use]
    pub fn of(row: &ApprovalRow) -> Self {
        Self::from_number(row.state).expect("rows are written by the rules")
    }

    /// Its name at the interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Approved => "APPROVED",
            Self::Rejected => "REJECTED",
            Self::Failed => "FAILED",
            Self::Withdrawn => "WITHDRAWN",
            Self::Expired => "EXPIRED",
        }
    }
}

/// Returns whether an approved change has yet to be carried out.
#[must_use]
pub fn is_unfinished(row: &ApprovalRow) -> bool {
    row.state == ApprovalState::Approved as u8 && row.result.is_empty()
}

/// An operator's decision.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The approval.
    pub id: u64,
    /// The subject of its change.
    pub subject: [u8; 32],
    /// The operator who decides.
    pub operator: String,
    /// The new state.
    pub to: ApprovalState,
    /// The result or the reason; empty for an approved change that is not yet carried out.
    pub result: String,
}

/// Commands about approvals.
#[derive(Clone, Debug)]
pub enum ApprovalCommand {
    /// Proposes a change. While it is open, the same change by the same operator is the same proposal.
    Propose {
        /// The next approval's number.
        id: u64,
        /// The subject of the change.
        subject: [u8; 32],
        /// A hash of the change.
        hash: [u8; 32],
        /// The change as JSON.
        change: String,
        /// The operator who proposes it.
        operator: String,
        /// Time that it stays open, in microseconds.
        patience_micros: u64,
    },
    /// A decision, and the change that takes effect with it.
    Decide {
        /// The decision.
        decision: Decision,
        /// A change of rows, without the ledger.
        effect: Option<Box<Command>>,
    },
    /// Ends an expired proposal.
    Expire {
        /// The proposal.
        id: u64,
        /// The subject of its change.
        subject: [u8; 32],
    },
}

pub(super) fn plan(command: &ApprovalCommand, plan: &mut Plan) {
    let (id, subject) = match command {
        ApprovalCommand::Propose { id, subject, .. } => {
            plan_state(plan);
            plan.group::<OpenApprovals>(OpenApprovals::ALL, &0_u8);
            (*id, *subject)
        }
        ApprovalCommand::Decide { decision, .. } => (decision.id, decision.subject),
        ApprovalCommand::Expire { id, subject } => (*id, *subject),
    };
    plan.row::<Approvals>(ApprovalKey { id });
    plan.row::<OpenApprovals>(OpenApprovalKey { subject });
}

fn conflict(text: impl Into<String>) -> Refusal {
    Refusal::Conflict(text.into())
}

/// Records a proposal. Returns its number.
pub(super) fn propose(
    rows: &mut WorkingSet,
    command: &ApprovalCommand,
    now: Timestamp,
) -> Result<u64, Refusal> {
    let ApprovalCommand::Propose { id, subject, hash, change, operator, patience_micros } = command else {
        unreachable!("asked with proposals alone")
    };
    let key = OpenApprovalKey { subject: *subject };
    if let Some(open) = rows.get::<OpenApprovals>(&key) {
        if open.change == *hash && open.proposed_by == *operator && open.expires > now {
            return Ok(open.approval);
        }
        if open.expires > now {
            let text = format!("approval {} about the same is open: decide on it first", open.approval);
            return Err(conflict(text));
        }
        // It must be ended first.
        return Err(Refusal::Overtaken);
    }
    if state_row(rows).next_approval != *id {
        return Err(Refusal::Overtaken);
    }
    if rows.group::<OpenApprovals>(OpenApprovals::ALL, &0_u8).len() >= OPEN_MAX {
        return Err(conflict(format!("{OPEN_MAX} proposals are open: decide on some of them first")));
    }
    change_state(rows, |state| take_u64(&mut state.next_approval));
    let row = ApprovalRow {
        change: change.clone(),
        proposed_by: operator.clone(),
        proposed: now,
        state: ApprovalState::Open as u8,
        decided_by: String::new(),
        decided: Timestamp::ZERO,
        result: String::new(),
    };
    rows.insert::<Approvals>(&ApprovalKey { id: *id }, row);
    let open = OpenApprovalRow {
        approval: *id,
        proposed_by: operator.clone(),
        change: *hash,
        proposed: now,
        expires: Timestamp::from_micros(now.as_micros().saturating_add(*patience_micros)),
    };
    rows.insert::<OpenApprovals>(&key, open);
    Ok(*id)
}

/// Checks whether a decision is allowed. This is checked before anything is carried out, and again when the
/// decision is recorded.
///
/// # Errors
/// [`Refusal`].
pub fn check(
    row: &ApprovalRow,
    expires: Option<Timestamp>,
    decision: &Decision,
    now: Timestamp,
) -> Result<(), Refusal> {
    let is_proposer = row.proposed_by == decision.operator;
    match decision.to {
        ApprovalState::Withdrawn if !is_proposer => {
            return Err(Refusal::Forbidden("only the operator who proposed a change can withdraw it"));
        }
        ApprovalState::Withdrawn => {}
        _ if is_proposer => {
            let text =
                "the operator who proposed a change cannot decide on it: another one does, or withdraw it";
            return Err(Refusal::Forbidden(text));
        }
        _ => {}
    }
    match ApprovalState::of(row) {
        ApprovalState::Open if expires.is_some_and(|expires| expires <= now) => {
            Err(conflict("the proposal has expired: propose the change again"))
        }
        ApprovalState::Open => Ok(()),
        ApprovalState::Approved
            if is_unfinished(row)
                && row.decided_by == decision.operator
                && matches!(decision.to, ApprovalState::Approved | ApprovalState::Failed) =>
        {
            Ok(())
        }
        ApprovalState::Expired => Err(conflict("the proposal has expired: propose the change again")),
        state => Err(conflict(format!("the change is {} by {}", state.name(), row.decided_by))),
    }
}

/// Records a decision.
pub(super) fn decide(rows: &mut WorkingSet, decision: &Decision, now: Timestamp) -> Result<(), Refusal> {
    let key = ApprovalKey { id: decision.id };
    let open_key = OpenApprovalKey { subject: decision.subject };
    let mut row = rows.get::<Approvals>(&key).cloned().ok_or(Refusal::Unknown("approval"))?;
    let open = rows.get::<OpenApprovals>(&open_key).filter(|open| open.approval == decision.id);
    let (is_listed, expires) = (open.is_some(), open.map(|open| open.expires));
    check(&row, expires, decision, now)?;
    assert!(
        (row.proposed_by == decision.operator) == (decision.to == ApprovalState::Withdrawn),
        "a change is approved by another operator than the one who proposed it"
    );
    (row.state, row.decided_by, row.decided) = (decision.to as u8, decision.operator.clone(), now);
    row.result.clone_from(&decision.result);
    let is_finished = !is_unfinished(&row);
    rows.update::<Approvals>(&key, row);
    if is_finished && is_listed {
        rows.delete::<OpenApprovals>(&open_key);
    }
    Ok(())
}

/// Ends an expired proposal; one that has been decided stays as it is.
pub(super) fn expire(rows: &mut WorkingSet, id: u64, subject: [u8; 32], now: Timestamp) {
    let (key, open_key) = (ApprovalKey { id }, OpenApprovalKey { subject });
    let is_due =
        rows.get::<OpenApprovals>(&open_key).is_some_and(|open| open.approval == id && open.expires <= now);
    let Some(mut row) = rows.get::<Approvals>(&key).cloned().filter(|_| is_due) else { return };
    if ApprovalState::of(&row) == ApprovalState::Open {
        (row.state, row.decided) = (ApprovalState::Expired as u8, now);
        "nobody decided in time".clone_into(&mut row.result);
        rows.update::<Approvals>(&key, row);
        rows.delete::<OpenApprovals>(&open_key);
    }
}
