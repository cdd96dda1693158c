//! Proposals and approvals of operators, and the execution of approved ones.
//!
//! With four eyes, one operator proposes a change and another approves it ([`crate::rules::approvals`]).
//! Approvals are handled one at a time. A change of the books is committed together with its approval. A
//! change that needs the ledger is carried out once its approval is durable; if it is interrupted, it is
//! resumed by the next start at the latest.

use std::sync::Arc;
use std::time::Duration;

use batzen_http::Drain;
use batzen_protocol::Timestamp;
use batzen_store::StoreError;
use batzen_tables::switch::{ApprovalKey, ApprovalRow, Approvals, OpenApprovalKey, OpenApprovals};
use sha2::{Digest, Sha256};

use crate::rules::admin::FundsOrder;
use crate::rules::approvals::{DONE, Decision, check, is_unfinished};
use crate::rules::{ApprovalState, Change, CloseWindow, Command, Decide, ExpireProposal, Propose, Refusal};
use crate::service::{ATTEMPTS_MAX, Service};
use crate::treasury::{Funds, OperatorError};

type Result<T, E = OperatorError> = std::result::Result<T, E>;

/// Interval at which unfinished approvals are checked.
const LOOK: Duration = Duration::from_secs(5);
/// The prefix of the result of an approved settlement; its number follows.
const SETTLEMENT: &str = "settlement ";

/// The result of an approved settlement.
pub(crate) fn settlement_result(id: u64) -> String {
    format!("{SETTLEMENT}{id}")
}

/// The author of a change.
pub(crate) struct By<'a> {
    /// The operator, or both operators.
    operators: String,
    /// The approval that authorises the change; `None`: one operator is enough.
    decision: Option<&'a Decision>,
}

/// The proposals that await a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Their number.
    pub count: u64,
    /// The age of the oldest, in seconds.
    pub oldest_seconds: u64,
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn subject(change: &Change) -> [u8; 32] {
    hash(&change.subject())
}

/// The change of an approval.
///
/// # Panics
/// When the row contains none; only the rules write rows.
#[must_use]
pub fn change_of(row: &ApprovalRow) -> Change {
    serde_json::from_str(&row.change).expect("changes are written by the rules")
}

/// The number of the settlement that an approval created.
#[must_use]
pub fn settlement_of(row: &ApprovalRow) -> Option<u64> {
    row.result.strip_prefix(SETTLEMENT)?.parse().ok()
}

impl Service {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros((self.config.clock)())
    }

    /// Makes a change and carries out its consequences without an approval, for set-up within a process.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn apply(&self, change: &Change) -> Result<u64> {
        self.apply_by(change, "").await
    }

    /// The same in the name of an operator. Returns the number of the participant, window or settlement.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn apply_by(&self, change: &Change, operator: &str) -> Result<u64> {
        self.carry_out(change, &By { operators: operator.to_owned(), decision: None }).await
    }

    /// Submits a command together with the approval that authorises it. Returns its number.
    pub(crate) async fn commit(&self, command: impl Into<Command>, by: &By<'_>, result: &str) -> Result<u64> {
        let effect = command.into();
        let command = match by.decision {
            None => effect,
            Some(decision) => {
                let decision = Decision { result: result.to_owned(), ..decision.clone() };
                Decide { decision, effect: Some(Box::new(effect)) }.into()
            }
        };
        match self.lane.submit(command).await? {
            Ok(outcome) => Ok(outcome.number),
            Err(Refusal::NotDone(refusal)) => Err((*refusal).into()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn carry_out(&self, change: &Change, by: &By<'_>) -> Result<u64> {
        match change {
            Change::FundsIn(order) => {
                self.treasury.funds_in(&self.funds(order, by)?).await?;
                Ok(0)
            }
            Change::FundsOut(order) => {
                self.treasury.funds_out(&self.funds(order, by)?).await?;
                Ok(0)
            }
            Change::EndFundsOut { id, commit, .. } => {
                self.treasury.finish_funds_out(*id, *commit).await?;
                Ok(0)
            }
            Change::CloseWindow { id, reason } => {
                self.commit(CloseWindow { id: *id, reason: reason.clone() }, by, DONE).await?;
                Ok(*id)
            }
            Change::Settle { model, reason, windows } => self.settle((model, reason), windows, by).await,
            Change::StepSettlement { settlement, steps } => {
                let untaken = self.step_accounts(*settlement, steps).await?;
                if untaken.is_empty() {
                    return Ok(*settlement);
                }
                let why: Vec<String> =
                    untaken.iter().map(|(step, error)| format!("{}: {error}", step.name)).collect();
                let count = format!("{} of {} accounts did not move", untaken.len(), steps.len());
                Err(Refusal::Conflict(format!("{count}: {}", why.join("; "))).into())
            }
            Change::AbortSettlement { settlement, reason } => {
                self.abort_settlement(*settlement, reason).await?;
                Ok(*settlement)
            }
            _ => self.change_books(change, by).await,
        }
    }

    fn funds(&self, order: &FundsOrder, by: &By<'_>) -> Result<Funds> {
        let directory = self.directory();
        let participant = directory.by_name(&order.name).ok_or(Refusal::Unknown("participant"))?.number;
        Ok(Funds {
            id: order.id,
            participant,
            currency: order.currency,
            amount: order.amount,
            reason: order.reason.clone(),
            reference: order.reference.clone(),
            operator: by.operators.clone(),
        })
    }

    /// Records a change that another operator must approve. While the proposal is open, the same change by
    /// the same operator is the same proposal. Returns the approval's number.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn propose(&self, change: &Change, operator: &str) -> Result<u64> {
        let text = serde_json::to_string(change).expect("changes are JSON");
        let subject = subject(change);
        let patience_micros = u64::try_from(self.config.approval_patience.as_micros()).unwrap_or(u64::MAX);
        for _ in 0..ATTEMPTS_MAX {
            let command = Propose {
                id: self.state()?.next_approval,
                subject,
                hash: hash(&text),
                change: text.clone(),
                operator: operator.to_owned(),
                patience_micros,
            };
            match self.lane.submit(command).await? {
                Ok(outcome) => return Ok(outcome.number),
                Err(Refusal::Overtaken) => {
                    if let Some(open) = self.store().get::<OpenApprovals>(&OpenApprovalKey { subject })? {
                        self.expire(open.row.approval, subject).await?;
                    }
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Refusal::Overtaken.into())
    }

    async fn expire(&self, id: u64, subject: [u8; 32]) -> Result<()> {
        self.lane.submit(ExpireProposal { id, subject }).await??;
        Ok(())
    }

    /// An approval.
    ///
    /// # Errors
    /// When there is none, or the store cannot be read.
    pub fn approval(&self, id: u64) -> Result<ApprovalRow> {
        let stored = self.store().get::<Approvals>(&ApprovalKey { id })?;
        Ok(stored.ok_or(Refusal::Unknown("approval"))?.row)
    }

    /// When an approval expires, if it is open.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn expiration_of(&self, id: u64, row: &ApprovalRow) -> Result<Option<Timestamp>, StoreError> {
        let key = OpenApprovalKey { subject: subject(&change_of(row)) };
        let open = self.store().get::<OpenApprovals>(&key)?;
        Ok(open.filter(|open| open.row.approval == id).map(|open| open.row.expires))
    }

    /// Decides on an approval, and carries out the change if approved. Returns the resulting approval:
    /// approved, failed, rejected or withdrawn. Repeating a decision gives the same answer.
    ///
    /// # Errors
    /// [`OperatorError`]: nothing was decided, or the change will be carried out later.
    pub async fn decide(
        &self,
        id: u64,
        operator: &str,
        to: ApprovalState,
        reason: &str,
    ) -> Result<ApprovalRow> {
        let _turn = self.approving.lock().await;
        let row = self.approval(id)?;
        let state = ApprovalState::of(&row);
        let is_same = state == to || (to, state) == (ApprovalState::Approved, ApprovalState::Failed);
        if is_same && row.decided_by == operator && !is_unfinished(&row) {
            return Ok(row);
        }
        let change = change_of(&row);
        let decision = Decision {
            id,
            subject: subject(&change),
            operator: operator.to_owned(),
            to,
            result: reason.to_owned(),
        };
        check(&row, self.expiration_of(id, &row)?, &decision, self.now())?;
        if to == ApprovalState::Approved {
            return self.approve(&change, &row, Decision { result: String::new(), ..decision }).await;
        }
        self.record(decision).await?;
        tracing::info!(operator, approval = id, ?to, reason, "proposal ended");
        self.approval(id)
    }

    async fn record(&self, decision: Decision) -> Result<()> {
        self.lane.submit(Decide { decision, effect: None }).await??;
        Ok(())
    }

    /// Approves a change and carries it out. The caller must hold the lock on approvals.
    async fn approve(&self, change: &Change, row: &ApprovalRow, decision: Decision) -> Result<ApprovalRow> {
        let id = decision.id;
        if !change.is_of_books() && !is_unfinished(row) {
            self.record(decision.clone()).await?;
        }
        let operators = format!("{}, {}", row.proposed_by, decision.operator);
        let carried_out = self.carry_out(change, &By { operators, decision: Some(&decision) }).await;
        let (proposer, approver) = (&row.proposed_by, &decision.operator);
        match carried_out {
            Ok(_) if change.is_of_books() => {}
            Ok(_) => self.record(Decision { result: DONE.to_owned(), ..decision.clone() }).await?,
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => {
                tracing::warn!(approval = id, proposer, approver, %error, "an approved change failed");
                let result = error.to_string();
                self.record(Decision { to: ApprovalState::Failed, result, ..decision.clone() }).await?;
                return self.approval(id);
            }
        }
        tracing::info!(approval = id, proposer, approver, ?change, "an approved change was made");
        self.approval(id)
    }

    /// Ends expired proposals, and carries out approved changes that were interrupted.
    ///
    /// # Errors
    /// [`OperatorError`]: the rest will be done later.
    pub async fn resume_approvals(&self) -> Result<()> {
        for found in self.store().lookup::<OpenApprovals>(OpenApprovals::ALL, &0_u8)? {
            let _turn = self.approving.lock().await;
            let (id, subject) = (found.row.approval, found.key.subject);
            let row = self.approval(id)?;
            if is_unfinished(&row) {
                let operator = row.decided_by.clone();
                let to = ApprovalState::Approved;
                let decision = Decision { id, subject, operator, to, result: String::new() };
                self.approve(&change_of(&row), &row, decision).await?;
            } else if found.row.expires <= self.now() {
                self.expire(id, subject).await?;
            }
        }
        Ok(())
    }

    /// Repeats this until the drain fires.
    pub(crate) async fn watch_approvals(self: Arc<Self>, drain: Drain) {
        loop {
            if let Err(error) = self.resume_approvals().await {
                tracing::warn!(%error, "unfinished approvals are looked at again");
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = drain.draining() => return,
            }
        }
    }

    /// The proposals that await a decision.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn pending_approvals(&self) -> Result<Pending, StoreError> {
        let now = self.now();
        let open = self.store().lookup::<OpenApprovals>(OpenApprovals::ALL, &0_u8)?;
        let waiting = open.iter().filter(|found| found.row.expires > now);
        let ages = waiting.map(|found| now.as_micros().saturating_sub(found.row.proposed.as_micros()));
        let mut pending = Pending::default();
        for age in ages {
            pending.count += 1;
            pending.oldest_seconds = pending.oldest_seconds.max(age / 1_000_000);
        }
        Ok(pending)
    }
}
