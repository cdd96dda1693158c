//! Liquidity and headroom. All changes are made one at a time, so that what was read is still true when it is
//! acted upon. Only clearing runs concurrently, and it never changes grants or deposits.
//!
//! A position's limit is the lower of its cap and its liquidity cover. The ledger enforces it: the hub grants
//! each position headroom equal to its limit. When the limit falls, the hub revokes headroom as far as it is
//! unused. If some cannot be revoked, the participant is marked as over its limit, and headroom is revoked as
//! it is freed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use batzen_engine::SubmitError;
use batzen_http::Drain;
use batzen_ledger::{CreateTransferStatus, RetryingLedger, Transfer, TransferFlags};
use batzen_metrics::{Counter, Gauge};
use batzen_store::{Store, StoreError};
use batzen_tables::switch::{
    AccountKind, HUB, MovementKey, Movements, SwitchAccountKey, SwitchAccounts, Windows,
};
use tokio::sync::{Mutex, Notify};

use crate::clearing::{Balances, account, code};
use crate::errors::ApiError;
use crate::ids::{Role, derive};
use crate::pipeline::Lane;
pub use crate::rules::movements::Funds;
use crate::rules::movements::{MovementKind, MovementState};
use crate::rules::windows::WindowState;
use crate::rules::{
    AdvanceMovement, BeginMovement, Command, Consequences, NotifyParticipant, NumberMovement, Refusal,
    SetOverLimit,
};
use crate::values::{currency_text, format_signed};

/// Interval at which participants over their limit are checked.
const RETRY: Duration = Duration::from_millis(100);
/// Number of checks of positions that are made between two counts of windows and approvals.
const LOOKS_A_COUNT: u32 = 5;
/// Interval at which all positions are compared with their alarm thresholds.
const LOOK: Duration = Duration::from_secs(1);

/// Why an operator's request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OperatorError {
    /// A rule refused it.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The switch is busy, shutting down, or cannot write.
    #[error("{}", submit_error_text(.0))]
    Lane(#[from] SubmitError),
    /// The store cannot be read.
    #[error("{0}")]
    Store(Arc<StoreError>),
    /// Not allowed by liquidity or headroom.
    #[error("{0}")]
    Insufficient(String),
    /// The request is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The ledger gave an unexpected answer.
    #[error("the ledger answers {0}")]
    Ledger(CreateTransferStatus),
}

/// The operator's message for a command that was not decided.
fn submit_error_text(error: &SubmitError) -> String {
    match error {
        SubmitError::Overloaded => "the switch is busy".to_owned(),
        SubmitError::Stopped => "the switch is shutting down".to_owned(),
        SubmitError::Store(_) => error.to_string(),
    }
}

impl OperatorError {
    /// Returns whether a retry may succeed a little later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Lane(_) | Self::Store(_) | Self::Refused(Refusal::Overtaken))
    }
}

impl From<StoreError> for OperatorError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// A participant's money in one currency at the last check, in ten-thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionFigures {
    /// The participant.
    pub participant: u32,
    /// The currency.
    pub currency: u32,
    /// Its net debt.
    pub position: i128,
    /// The amount reserved for transfers in flight; part of the position.
    pub reserved: u128,
    /// Its net debit cap.
    pub net_debit_cap: u128,
    /// Its liquidity cover.
    pub liquidity: i128,
}

/// Counters of limits, and figures of the last check.
#[derive(Debug, Default)]
pub struct TreasuryCounters {
    /// Positions with a cap, by participant and currency.
    pub positions: std::sync::Mutex<Vec<PositionFigures>>,
    /// Windows that are closed but not settled.
    pub windows_unsettled: Gauge,
    /// Participants over their limit.
    pub over_limit: Gauge,
    /// Positions beyond their alarm threshold.
    pub alarms: Gauge,
    /// Alarms that went off.
    pub alarms_raised: Counter,
}

/// Keeper of liquidity and headroom.
pub struct Treasury {
    ledger: RetryingLedger,
    lane: Lane,
    store: Store,
    /// Serialises changes.
    turn: Mutex<()>,
    /// Participants and currencies whose headroom is to be checked.
    due: std::sync::Mutex<BTreeSet<(u32, u32)>>,
    wake: Notify,
    counters: TreasuryCounters,
}

impl Treasury {
    /// Creates a treasury.
    pub fn new(ledger: RetryingLedger, lane: Lane, store: Store) -> Self {
        Self {
            ledger,
            lane,
            store,
            turn: Mutex::default(),
            due: std::sync::Mutex::default(),
            wake: Notify::new(),
            counters: TreasuryCounters::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &TreasuryCounters {
        &self.counters
    }

    /// Prevents other changes of liquidity and headroom, for settlements.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &RetryingLedger {
        &self.ledger
    }

    async fn submit(&self, command: impl Into<Command>) -> Result<Consequences, OperatorError> {
        Ok(self.lane.submit(command).await??)
    }

    async fn advance(&self, id: u128, to: MovementState) -> Result<(), OperatorError> {
        self.submit(AdvanceMovement { id, to }).await.map(|_| ())
    }

    async fn begin(
        &self,
        kind: MovementKind,
        funds: &Funds,
        headroom: u128,
    ) -> Result<MovementState, OperatorError> {
        let state = self.submit(BeginMovement { kind, funds: funds.clone(), headroom }).await?.number;
        let state = u8::try_from(state).ok().and_then(MovementState::from_number);
        Ok(state.expect("the rules give a movement's state"))
    }

    /// Deposits liquidity. Repeating it is harmless.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn funds_in(&self, funds: &Funds) -> Result<(), OperatorError> {
        let turn = self.turn.lock().await;
        if self.begin(MovementKind::FundsIn, funds, 0).await? == MovementState::Intended {
            self.carry_out(funds.id).await?;
        }
        self.fit(&turn, funds.participant, funds.currency).await
    }

    /// Reserves liquidity for withdrawal. The rest must cover the position.
    ///
    /// # Errors
    /// [`OperatorError::Insufficient`] if it does not.
    pub async fn funds_out(&self, funds: &Funds) -> Result<(), OperatorError> {
        let turn = self.turn.lock().await;
        let Funds { participant, currency, amount, .. } = *funds;
        let balances = Balances::read(&self.ledger, participant, currency).await;
        let left = balances.cover().saturating_sub_unsigned(amount);
        // Headroom above the remaining liquidity is revoked in the same chain, so that both succeed or
        // neither.
        let headroom = u128::try_from(balances.granted() - left.max(0)).unwrap_or(0);
        let state = self.begin(MovementKind::FundsOut, funds, headroom).await?;
        if state == MovementState::Intended {
            self.carry_out(funds.id).await?;
        }
        self.fit(&turn, participant, currency).await?;
        let row = self.store.get::<Movements>(&MovementKey { id: funds.id })?;
        match row.and_then(|stored| MovementState::from_number(stored.row.state)) {
            Some(MovementState::Refused) => Err(OperatorError::Insufficient(
                "less liquidity would be left than the position needs".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Posts or voids reserved liquidity.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn finish_funds_out(&self, id: u128, commit: bool) -> Result<(), OperatorError> {
        let turn = self.turn.lock().await;
        let row = self.store.get::<Movements>(&MovementKey { id })?;
        let row = row.ok_or(Refusal::Unknown("movement"))?.row;
        if row.kind != MovementKind::FundsOut as u8 {
            return Err(Refusal::Conflict("only funds out are committed or aborted".to_owned()).into());
        }
        let (going, done) = if commit {
            (MovementState::Committing, MovementState::Done)
        } else {
            (MovementState::Aborting, MovementState::Aborted)
        };
        if row.state != done as u8 {
            self.advance(id, going).await?;
            self.carry_out(id).await?;
        }
        self.fit(&turn, row.participant, row.currency).await
    }

    /// Sends the events of a movement that awaits the ledger, and records the answer.
    async fn carry_out(&self, id: u128) -> Result<(), OperatorError> {
        let row = self.store.get::<Movements>(&MovementKey { id })?;
        let row = row.ok_or(Refusal::Unknown("movement"))?.row;
        let state = MovementState::from_number(row.state).expect("rows are written by the rules");
        let kind = MovementKind::from_number(row.kind).expect("rows are written by the rules");
        let own = |kind| account(row.participant, row.currency, kind);
        let hub = account(HUB, row.currency, AccountKind::HubReconciliation);
        let transfer = |id, debit_account_id, credit_account_id, amount, code, flags| Transfer {
            id,
            debit_account_id,
            credit_account_id,
            amount,
            ledger: row.currency,
            code,
            flags,
            ..Transfer::default()
        };
        let resolve = |role, flag, amount| Transfer {
            id: derive(role, id),
            pending_id: id,
            amount,
            flags: flag,
            ..Transfer::default()
        };
        let (position, settlement, grant) =
            (own(AccountKind::Position), own(AccountKind::Settlement), own(AccountKind::Grant));
        let none = TransferFlags::NONE;
        let (events, done) = match (kind, state) {
            (MovementKind::FundsIn, _) => {
                (vec![transfer(id, hub, settlement, row.amount, code::FUNDS, none)], MovementState::Done)
            }
            (MovementKind::Grant, _) => {
                (vec![transfer(id, grant, position, row.amount, code::HEADROOM, none)], MovementState::Done)
            }
            (MovementKind::Revoke, _) => {
                let flags = TransferFlags::BALANCING_DEBIT;
                (vec![transfer(id, position, grant, row.amount, code::HEADROOM, flags)], MovementState::Done)
            }
            (MovementKind::FundsOut, MovementState::Committing) => {
                let flag = TransferFlags::POST_PENDING_TRANSFER;
                (vec![resolve(Role::Post, flag, row.amount)], MovementState::Done)
            }
            (MovementKind::FundsOut, MovementState::Aborting) => {
                let flag = TransferFlags::VOID_PENDING_TRANSFER;
                (vec![resolve(Role::Void, flag, 0)], MovementState::Aborted)
            }
            (MovementKind::FundsOut, _) => {
                let mut events = Vec::new();
                if row.headroom > 0 {
                    let linked = TransferFlags::LINKED;
                    let headroom = derive(Role::FundsHeadroom, id);
                    events.push(transfer(headroom, position, grant, row.headroom, code::HEADROOM, linked));
                }
                events.push(transfer(id, settlement, hub, row.amount, code::FUNDS, TransferFlags::PENDING));
                (events, MovementState::Reserved)
            }
        };
        let results = self.ledger.create_transfers(events).await;
        let statuses: Vec<_> = results.iter().map(|result| result.status).collect();
        let is_done = |status: &CreateTransferStatus| {
            matches!(status, CreateTransferStatus::Created | CreateTransferStatus::Exists)
        };
        // A chain that was carried out before reports so through its first member.
        if statuses.first().is_some_and(is_done) {
            return self.advance(id, done).await;
        }
        if kind == MovementKind::FundsOut && state == MovementState::Intended {
            tracing::info!(?statuses, "funds out refused by the ledger");
            return self.advance(id, MovementState::Refused).await;
        }
        Err(OperatorError::Ledger(statuses[0]))
    }

    /// Finishes work left over from the last run.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn recover(&self) -> Result<(), OperatorError> {
        let _turn = self.turn.lock().await;
        let (from, to) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let left = self.store.range_bytes::<Movements>(Movements::INTENDED, from, to, usize::MAX, false)?;
        for found in left {
            self.carry_out(found.key.id).await?;
        }
        Ok(())
    }

    /// Grants or revokes headroom, so that a participant has as much as its limit.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn adjust(&self, participant: u32, currency: u32) -> Result<(), OperatorError> {
        let turn = self.turn.lock().await;
        self.fit(&turn, participant, currency).await
    }

    /// The same, for callers that already hold the lock.
    pub(crate) async fn fit(
        &self,
        _turn: &tokio::sync::MutexGuard<'_, ()>,
        participant: u32,
        currency: u32,
    ) -> Result<(), OperatorError> {
        let key = SwitchAccountKey::new(participant, currency, AccountKind::Position);
        let Some(stored) = self.store.get::<SwitchAccounts>(&key)? else { return Ok(()) };
        let Some(ndc) = stored.row.ndc else { return Ok(()) };
        let ndc = i128::try_from(ndc).unwrap_or(i128::MAX);
        let balances = Balances::read(&self.ledger, participant, currency).await;
        let limit = ndc.min(balances.cover()).max(0);
        let difference = limit - balances.granted();
        let mut excess = 0;
        if difference != 0 {
            let number = self.submit(NumberMovement).await?.number;
            let kind = if difference > 0 { MovementKind::Grant } else { MovementKind::Revoke };
            let funds = Funds {
                id: derive(Role::Movement, number.into()),
                participant,
                currency,
                amount: difference.unsigned_abs(),
                reason: "limit".to_owned(),
                reference: String::new(),
                operator: String::new(),
            };
            self.begin(kind, &funds, 0).await?;
            self.carry_out(funds.id).await?;
            if kind == MovementKind::Revoke {
                let after = Balances::read(&self.ledger, participant, currency).await;
                excess = after.granted() - limit;
            }
        }
        let code = match excess {
            ..=0 => 0,
            _ if balances.cover() <= ndc => ApiError::PayerFspInsufficientLiquidity.code(),
            _ => ApiError::PayerLimitError.code(),
        };
        if stored.row.over_limit != code {
            tracing::warn!(participant, code, "a participant is over its limit, or no longer");
            self.submit(SetOverLimit { participant, currency, code }).await?;
        }
        if code != 0 {
            self.look_at(participant, currency);
        }
        Ok(())
    }

    /// Schedules a check of a participant's headroom.
    pub fn look_at(&self, participant: u32, currency: u32) {
        let mut due = self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        due.insert((participant, currency));
        drop(due);
        self.wake.notify_one();
    }

    /// Revokes headroom of participants over their limit as it is freed, and watches alarm thresholds, until
    /// the drain fires.
    pub async fn run(self: Arc<Self>, drain: Drain) {
        let mut alarmed = BTreeSet::new();
        let mut looked = tokio::time::Instant::now();
        let mut looks = 0_u32;
        loop {
            tokio::select! {
                () = self.wake.notified() => tokio::time::sleep(RETRY).await,
                () = tokio::time::sleep_until(looked + LOOK) => {}
                () = drain.draining() => return,
            }
            let due =
                std::mem::take(&mut *self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            self.counters.over_limit.set(due.len() as u64);
            for (participant, currency) in due {
                if let Err(error) = self.adjust(participant, currency).await {
                    tracing::error!(participant, %error, "headroom could not be adjusted");
                    self.look_at(participant, currency);
                }
            }
            if looked.elapsed() >= LOOK {
                looked = tokio::time::Instant::now();
                if let Err(error) = self.watch(&mut alarmed).await {
                    tracing::error!(%error, "positions could not be watched");
                }
                if looks.is_multiple_of(LOOKS_A_COUNT)
                    && let Err(error) = self.count_open()
                {
                    tracing::error!(%error, "windows could not be counted");
                }
                looks = looks.wrapping_add(1);
            }
        }
    }

    /// Counts the windows that are closed but not settled.
    fn count_open(&self) -> Result<(), StoreError> {
        let is_unsettled = |state| {
            use WindowState::{Aborted, Closed, PendingSettlement, Processing};
            [Aborted, Closed, PendingSettlement, Processing].iter().any(|other| *other as u8 == state)
        };
        let windows = self.store.all::<Windows>()?;
        let unsettled = windows.iter().filter(|found| is_unsettled(found.row.state)).count();
        self.counters.windows_unsettled.set(unsettled as u64);
        Ok(())
    }

    /// Raises an alarm for each position that comes near its cap, once until it has fallen below again.
    async fn watch(&self, alarmed: &mut BTreeSet<(u32, u32)>) -> Result<(), OperatorError> {
        let accounts: Vec<_> = self
            .store
            .all::<SwitchAccounts>()?
            .into_iter()
            .filter(|found| found.key.kind == AccountKind::Position as u8 && found.row.ndc.is_some())
            .collect();
        let whose: Vec<_> =
            accounts.iter().map(|found| (found.key.participant, found.key.currency)).collect();
        let balances = Balances::read_all(&self.ledger, &whose).await;
        let figures = accounts.iter().zip(&balances).map(|(found, balances)| PositionFigures {
            participant: found.key.participant,
            currency: found.key.currency,
            position: balances.position(),
            reserved: balances.reserved(),
            net_debit_cap: found.row.ndc.unwrap_or(0),
            liquidity: balances.cover(),
        });
        *self.counters.positions.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            figures.collect();
        for (found, balances) in accounts.iter().zip(balances) {
            let whose = (found.key.participant, found.key.currency);
            let ndc = i128::try_from(found.row.ndc.unwrap_or(0)).unwrap_or(i128::MAX);
            let cap = ndc.min(balances.cover());
            let percentage = i128::from(found.row.alarm_percentage);
            let position = balances.position();
            let near = position > 0 && position.saturating_mul(100) >= cap.saturating_mul(percentage);
            if !near {
                alarmed.remove(&whose);
                continue;
            }
            if !alarmed.insert(whose) {
                continue;
            }
            self.counters.alarms_raised.inc();
            let currency = currency_text(whose.1);
            let (position, cap) = (format_signed(position), format_signed(cap));
            tracing::warn!(participant = whose.0, currency, position, cap, "a position is near its cap");
            let text = serde_json::json!({
                "type": "NDC_ALARM", "currency": currency, "position": position, "cap": cap,
                "alarmPercentage": found.row.alarm_percentage,
            });
            let text = text.to_string();
            self.submit(NotifyParticipant { participant: whose.0, text }).await?;
        }
        self.counters.alarms.set(alarmed.len() as u64);
        Ok(())
    }
}
