//! Deposits and withdrawals of liquidity, and grants and revocations of headroom. A movement is recorded
//! before the ledger is asked, and finished after it has answered.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{MovementKey, MovementRow, Movements, SwitchAccounts};

use super::{
    Consequences, Decided, Message, MessageKind, Refusal, SwitchRules, change_state, conflict, plan_state,
    position, take_u64,
};

batzen_protocol::enumeration! {
    /// The kind of a movement.
    pub enum MovementKind {
        /// Liquidity in: HUB_RECONCILIATION to SETTLEMENT.
        FundsIn = 1 => "recordFundsIn",
        /// Liquidity out, in two steps: SETTLEMENT to HUB_RECONCILIATION. The headroom that it covered is revoked
        /// with it.
        FundsOut = 2 => "recordFundsOut",
        /// Headroom is granted.
        Grant = 3 => "grantHeadroom",
        /// Headroom is revoked, as far as it is unused.
        Revoke = 4 => "revokeHeadroom",
    }
}

batzen_protocol::enumeration! {
    /// The state of a movement; those with odd numbers await the ledger.
    pub enum MovementState {
        /// To be made (funds out: to be reserved).
        Intended = 1 => "RECEIVED",
        /// Funds out: reserved.
        Reserved = 2 => "RESERVED",
        /// Funds out: to be posted.
        Committing = 3 => "COMMITTING",
        /// Done.
        Done = 4 => "COMMITTED",
        /// Funds out: to be voided.
        Aborting = 5 => "ABORTING",
        /// Funds out: voided.
        Aborted = 6 => "ABORTED",
        /// Refused by the ledger; nothing was moved.
        Refused = 8 => "REFUSED",
    }
}

impl MovementState {
    const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Intended, Self::Reserved | Self::Done | Self::Refused)
                | (Self::Reserved, Self::Committing | Self::Aborting)
                | (Self::Committing, Self::Done)
                | (Self::Aborting, Self::Aborted)
        )
    }
}

/// A movement of funds that an operator orders.
#[derive(Clone, Debug)]
pub struct Funds {
    /// Its id, also used in the ledger.
    pub id: u128,
    /// The participant.
    pub participant: u32,
    /// The currency.
    pub currency: u32,
    /// In ten-thousandths.
    pub amount: u128,
    /// The reason.
    pub reason: String,
    /// The settlement bank's reference.
    pub reference: String,
    /// The operator who orders it; with four eyes both, separated by a comma.
    pub operator: String,
}

/// Assigns a number to a movement of the switch itself.
#[derive(Clone, Debug)]
pub struct NumberMovement;

impl Command<SwitchRules> for NumberMovement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let number = change_state(rows, |state| take_u64(&mut state.next_movement));
        Ok(Consequences::of_number(number))
    }
}

/// Records a movement to be made. The number of the consequences is its state. Repeating it gives the same answer; a
/// different movement under the same id is refused.
#[derive(Clone, Debug)]
pub struct BeginMovement {
    /// The kind.
    pub kind: MovementKind,
    /// The participant, the amount and the reason.
    pub funds: Funds,
    /// Funds out: the headroom that is revoked with it.
    pub headroom: u128,
}

impl Command<SwitchRules> for BeginMovement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<Movements>(MovementKey { id: self.funds.id });
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Funds { id, participant, currency, amount, reason, reference, operator } = self.funds.clone();
        let key = MovementKey { id };
        if let Some(known) = rows.get::<Movements>(&key) {
            let is_same = known.kind == self.kind as u8
                && (known.participant, known.currency, known.amount) == (participant, currency, amount)
                && known.reference == reference;
            let known = Consequences::of_number(known.state);
            return is_same.then_some(known).ok_or_else(|| conflict("another movement has this transferId"));
        }
        let row = MovementRow {
            kind: self.kind as u8,
            state: MovementState::Intended as u8,
            participant,
            currency,
            amount,
            headroom: self.headroom,
            reason,
            reference,
            operator,
            created: now,
            changed: now,
        };
        rows.insert::<Movements>(&key, row);
        Ok(Consequences::of_number(MovementState::Intended as u8))
    }
}

/// Advances a movement. Repeating it is harmless.
#[derive(Clone, Debug)]
pub struct AdvanceMovement {
    /// The movement.
    pub id: u128,
    /// The state to reach.
    pub to: MovementState,
}

impl Command<SwitchRules> for AdvanceMovement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<Movements>(MovementKey { id: self.id });
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let key = MovementKey { id: self.id };
        let mut row = rows.get::<Movements>(&key).cloned().ok_or(Refusal::Unknown("movement"))?;
        let state = MovementState::from_number(row.state).expect("rows are written by the rules");
        if state != self.to {
            if !state.may_become(self.to) {
                let text = format!("a movement in {} cannot become {}", state.name(), self.to.name());
                return Err(conflict(text));
            }
            (row.state, row.changed) = (self.to as u8, now);
            rows.update::<Movements>(&key, row);
        }
        Ok(Consequences::default())
    }
}

/// Sets whether new prepares of a participant are refused because its headroom exceeds its limit.
#[derive(Clone, Debug)]
pub struct SetOverLimit {
    /// The participant.
    pub participant: u32,
    /// The currency.
    pub currency: u32,
    /// The code of the refusals; 0: not over its limit.
    pub code: u16,
}

impl Command<SwitchRules> for SetOverLimit {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<SwitchAccounts>(position(self.participant, self.currency));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let key = position(self.participant, self.currency);
        let mut row = rows.get::<SwitchAccounts>(&key).cloned().ok_or(Refusal::Unknown("account"))?;
        if row.over_limit != self.code {
            row.over_limit = self.code;
            rows.update::<SwitchAccounts>(&key, row);
        }
        Ok(Consequences::default())
    }
}

/// Notifies a participant about its position or limit.
#[derive(Clone, Debug)]
pub struct NotifyParticipant {
    /// The participant.
    pub participant: u32,
    /// The notice as JSON.
    pub text: String,
}

impl Command<SwitchRules> for NotifyParticipant {
    type Answer = Consequences;

    fn plan(&self, rules: &SwitchRules, plan: &mut Plan) {
        rules.plan_message(self.participant, plan);
    }

    fn execute(&self, rules: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let message = Message::new(self.participant, MessageKind::Notice, 0);
        rules.collect(now, |cx| cx.tell(rows, Message { text: self.text.clone(), ..message }))
    }
}
