//! Deposits and withdrawals of liquidity, and grants and revocations of headroom. A movement is recorded
//! before the ledger is asked, and finished after it has answered.

use batzen_engine::{Plan, WorkingSet};
use batzen_tables::switch::{
    AccountKind, MovementKey, MovementRow, Movements, SwitchAccountKey, SwitchAccounts,
};

use super::{Context, Message, MessageKind, Refusal, change_state, plan_message, plan_state, take_u64};

/// The kind of a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MovementKind {
    /// Liquidity in: HUB_RECONCILIATION to SETTLEMENT.
    FundsIn = 1,
    /// Liquidity out, in two steps: SETTLEMENT to HUB_RECONCILIATION. The headroom that it covered is revoked
    /// with it.
    FundsOut = 2,
    /// Headroom is granted.
    Grant = 3,
    /// Headroom is revoked, as far as it is unused.
    Revoke = 4,
}

impl MovementKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::FundsIn,
            2 => Self::FundsOut,
            3 => Self::Grant,
            4 => Self::Revoke,
            _ => return None,
        })
    }

    /// Its name at the interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FundsIn => "recordFundsIn",
            Self::FundsOut => "recordFundsOut",
            Self::Grant => "grantHeadroom",
            Self::Revoke => "revokeHeadroom",
        }
    }
}

/// The state of a movement; those with odd numbers await the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MovementState {
    /// To be made (funds out: to be reserved).
    Intended = 1,
    /// Funds out: reserved.
    Reserved = 2,
    /// Funds out: to be posted.
    Committing = 3,
    /// Done.
    Done = 4,
    /// Funds out: to be voided.
    Aborting = 5,
    /// Funds out: voided.
    Aborted = 6,
    /// Refused by the ledger; nothing was moved.
    Refused = 8,
}

impl MovementState {
    /// The state with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Intended,
            2 => Self::Reserved,
            3 => Self::Committing,
            4 => Self::Done,
            5 => Self::Aborting,
            6 => Self::Aborted,
            8 => Self::Refused,
            _ => return None,
        })
    }

    /// Its name at the interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Intended => "RECEIVED",
            Self::Reserved => "RESERVED",
            Self::Committing => "COMMITTING",
            Self::Done => "COMMITTED",
            Self::Aborting => "ABORTING",
            Self::Aborted => "ABORTED",
            Self::Refused => "REFUSED",
        }
    }

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

/// Commands about movements.
#[derive(Clone, Debug)]
pub enum MovementCommand {
    /// Assigns a number to a movement of the switch itself.
    Number,
    /// Records a movement to be made. Repeating it gives the same answer; a different movement under the same
    /// id is refused.
    Begin {
        /// Its id, also used in the ledger.
        id: u128,
        /// The kind.
        kind: MovementKind,
        /// The participant.
        participant: u32,
        /// The currency.
        currency: u32,
        /// The amount in ten-thousandths.
        amount: u128,
        /// Funds out: the headroom that is revoked with it.
        headroom: u128,
        /// The reason.
        reason: String,
        /// The settlement bank's reference.
        reference: String,
        /// The operator who orders it.
        operator: String,
    },
    /// Advances a movement. Repeating it is harmless.
    Advance {
        /// The movement.
        id: u128,
        /// The state to reach.
        to: MovementState,
    },
    /// Sets whether new prepares of a participant are refused because its headroom exceeds its limit.
    OverLimit {
        /// The participant.
        participant: u32,
        /// The currency.
        currency: u32,
        /// The code of the refusals; 0: not over its limit.
        code: u16,
    },
    /// Notifies a participant about its position or limit.
    Notify {
        /// The participant.
        participant: u32,
        /// The notice as JSON.
        text: String,
    },
}

pub(super) fn plan(command: &MovementCommand, number: u64, plan: &mut Plan) {
    match command {
        MovementCommand::Number => plan_state(plan),
        MovementCommand::Begin { id, .. } | MovementCommand::Advance { id, .. } => {
            plan.row::<Movements>(MovementKey { id: *id });
        }
        MovementCommand::OverLimit { participant, currency, .. } => {
            plan.row::<SwitchAccounts>(SwitchAccountKey::new(*participant, *currency, AccountKind::Position));
        }
        MovementCommand::Notify { participant, .. } => plan_message(plan, *participant, number),
    }
}

pub(super) fn execute(
    rows: &mut WorkingSet,
    command: &MovementCommand,
    cx: &mut Context,
) -> Result<(), Refusal> {
    match command {
        MovementCommand::Number => {
            cx.outcome.number = change_state(rows, |state| take_u64(&mut state.next_movement));
        }
        MovementCommand::Begin {
            id,
            kind,
            participant,
            currency,
            amount,
            headroom,
            reason,
            reference,
            operator,
        } => {
            let key = MovementKey { id: *id };
            if let Some(known) = rows.get::<Movements>(&key) {
                let same = known.kind == *kind as u8
                    && (known.participant, known.currency, known.amount)
                        == (*participant, *currency, *amount)
                    && known.reference == *reference;
                cx.outcome.number = known.state.into();
                return if same {
                    Ok(())
                } else {
                    Err(Refusal::Conflict("another movement has this transferId".to_owned()))
                };
            }
            let row = MovementRow {
                kind: *kind as u8,
                state: MovementState::Intended as u8,
                participant: *participant,
                currency: *currency,
                amount: *amount,
                headroom: *headroom,
                reason: reason.clone(),
                reference: reference.clone(),
                operator: operator.clone(),
                created: cx.now,
                changed: cx.now,
            };
            rows.insert::<Movements>(&key, row);
            cx.outcome.number = MovementState::Intended as u64;
        }
        MovementCommand::Advance { id, to } => {
            let key = MovementKey { id: *id };
            let mut row = rows.get::<Movements>(&key).cloned().ok_or(Refusal::Unknown("movement"))?;
            let state = MovementState::from_number(row.state).expect("rows are written by the rules");
            if state != *to {
                if !state.may_become(*to) {
                    let text = format!("a movement in {} cannot become {}", state.name(), to.name());
                    return Err(Refusal::Conflict(text));
                }
                (row.state, row.changed) = (*to as u8, cx.now);
                rows.update::<Movements>(&key, row);
            }
        }
        MovementCommand::OverLimit { participant, currency, code } => {
            let key = SwitchAccountKey::new(*participant, *currency, AccountKind::Position);
            let mut row = rows.get::<SwitchAccounts>(&key).cloned().ok_or(Refusal::Unknown("account"))?;
            if row.over_limit != *code {
                row.over_limit = *code;
                rows.update::<SwitchAccounts>(&key, row);
            }
        }
        MovementCommand::Notify { participant, text } => {
            let mut message = Message::new(*participant, MessageKind::Notice, 0);
            message.text.clone_from(text);
            cx.tell(rows, message);
        }
    }
    Ok(())
}
