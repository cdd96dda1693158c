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

use super::{
    Command, Consequences, Decided, Refusal, SwitchRules, change_state, conflict, plan_state, state_row,
    take_u64,
};

/// The most unfinished proposals.
pub const OPEN_MAX: usize = 1000;
/// The result of an approved change that has taken effect.
pub const DONE: &str = "done";

batzen_protocol::enumeration! {
    /// The state of an approval.
    pub enum ApprovalState {
        /// Awaits a second operator.
        Open = 0 => "OPEN",
        /// Approved; done once it has a result.
        Approved = 1 => "APPROVED",
        /// Rejected by another operator.
        Rejected = 2 => "REJECTED",
        /// Approved, but the change could not be made.
        Failed = 3 => "FAILED",
        /// Withdrawn by the proposer.
        Withdrawn = 4 => "WITHDRAWN",
        /// Nobody decided in time.
        Expired = 5 => "EXPIRED",
    }
}

impl ApprovalState {
    /// The state of a stored approval.
    ///
    /// # Panics
    /// When the row contains none; only the rules write rows.
    #[must_use]
    pub fn of(row: &ApprovalRow) -> Self {
        Self::from_number(row.state).expect("rows are written by the rules")
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

fn plan_approval(id: u64, subject: [u8; 32], plan: &mut Plan) {
    plan.row::<Approvals>(ApprovalKey { id });
    plan.row::<OpenApprovals>(OpenApprovalKey { subject });
}

/// Proposes a change. While it is open, the same change by the same operator is the same proposal. The number of the
/// consequences is the approval's.
#[derive(Clone, Debug)]
pub struct Propose {
    /// The next approval's number.
    pub id: u64,
    /// The subject of the change.
    pub subject: [u8; 32],
    /// A hash of the change.
    pub hash: [u8; 32],
    /// The change as JSON.
    pub change: String,
    /// The operator who proposes it.
    pub operator: String,
    /// Time that it stays open, in microseconds.
    pub patience_micros: u64,
}

impl batzen_engine::Command<SwitchRules> for Propose {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan.group::<OpenApprovals>(OpenApprovals::ALL, &0_u8);
        plan_approval(self.id, self.subject, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let key = OpenApprovalKey { subject: self.subject };
        if let Some(open) = rows.get::<OpenApprovals>(&key) {
            if open.change == self.hash && open.proposed_by == self.operator && open.expires > now {
                return Ok(Consequences::of_number(open.approval));
            }
            if open.expires > now {
                let text = format!("approval {} about the same is open: decide on it first", open.approval);
                return Err(conflict(text));
            }
            // It must be ended first.
            return Err(Refusal::Overtaken);
        }
        if state_row(rows).next_approval != self.id {
            return Err(Refusal::Overtaken);
        }
        if rows.group::<OpenApprovals>(OpenApprovals::ALL, &0_u8).len() >= OPEN_MAX {
            return Err(conflict(format!("{OPEN_MAX} proposals are open: decide on some of them first")));
        }
        change_state(rows, |state| take_u64(&mut state.next_approval));
        let row = ApprovalRow {
            change: self.change.clone(),
            proposed_by: self.operator.clone(),
            proposed: now,
            state: ApprovalState::Open as u8,
            decided_by: String::new(),
            decided: Timestamp::ZERO,
            result: String::new(),
        };
        rows.insert::<Approvals>(&ApprovalKey { id: self.id }, row);
        let open = OpenApprovalRow {
            approval: self.id,
            proposed_by: self.operator.clone(),
            change: self.hash,
            proposed: now,
            expires: Timestamp::from_micros(now.as_micros().saturating_add(self.patience_micros)),
        };
        rows.insert::<OpenApprovals>(&key, open);
        Ok(Consequences::of_number(self.id))
    }
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

/// Records a decision, together with the change that takes effect with it.
#[derive(Clone, Debug)]
pub struct Decide {
    /// The decision.
    pub decision: Decision,
    /// A change of rows, without the ledger. Its consequences are those of the command.
    pub effect: Option<Box<Command>>,
}

impl batzen_engine::Command<SwitchRules> for Decide {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        plan_approval(self.decision.id, self.decision.subject, plan);
        if let Some(effect) = &self.effect {
            effect.plan(rules, plan);
        }
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let decision = &self.decision;
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
        match &self.effect {
            Some(effect) => {
                effect.execute(rules, rows, now).map_err(|refusal| Refusal::NotDone(Box::new(refusal)))
            }
            None => Ok(Consequences::default()),
        }
    }
}

/// Ends an expired proposal; one that has been decided stays as it is.
#[derive(Clone, Debug)]
pub struct ExpireProposal {
    /// The proposal.
    pub id: u64,
    /// The subject of its change.
    pub subject: [u8; 32],
}

impl batzen_engine::Command<SwitchRules> for ExpireProposal {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_approval(self.id, self.subject, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let (key, open_key) = (ApprovalKey { id: self.id }, OpenApprovalKey { subject: self.subject });
        let open = rows.get::<OpenApprovals>(&open_key);
        let is_due = open.is_some_and(|open| open.approval == self.id && open.expires <= now);
        if let Some(mut row) = rows.get::<Approvals>(&key).cloned().filter(|_| is_due)
            && ApprovalState::of(&row) == ApprovalState::Open
        {
            (row.state, row.decided) = (ApprovalState::Expired as u8, now);
            "nobody decided in time".clone_into(&mut row.result);
            rows.update::<Approvals>(&key, row);
            rows.delete::<OpenApprovals>(&open_key);
        }
        Ok(Consequences::default())
    }
}
