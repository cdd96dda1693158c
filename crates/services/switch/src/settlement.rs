//! Settlement at the ledger: the entries of each step.

use batzen_ledger::{CreateTransferStatus, Transfer, TransferFlags};
use batzen_store::Store;
use batzen_tables::switch::{
    AccountKind, HUB, ModelKey, ModelRow, Models, SettlementAccountKey, SettlementAccountRow,
    SettlementAccounts, SettlementKey, SettlementRow, Settlements,
};

use crate::approvals::{By, settlement_result};
use crate::clearing::{account, code};
use crate::ids::{Role, derive, settlement_part};
use crate::rules::admin::AccountStep;
use crate::rules::settlements::{SettlementState, SettlementStep, check_step, windows_of};
use crate::rules::{AbortSettlement, CreateSettlement, Refusal, StepSettlement};
use crate::service::{ATTEMPTS_MAX, Service};
use crate::treasury::OperatorError;

/// A settlement with its accounts.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Its number.
    pub id: u64,
    /// Its row.
    pub row: SettlementRow,
    /// Its accounts.
    pub accounts: Vec<(SettlementAccountKey, SettlementAccountRow)>,
}

impl Settlement {
    /// Reads a settlement.
    ///
    /// # Errors
    /// When there is none, or the store cannot be read.
    pub fn read(store: &Store, id: u64) -> Result<Self, OperatorError> {
        let row = store.get::<Settlements>(&SettlementKey { id })?.ok_or(Refusal::Unknown("settlement"))?.row;
        let found = store.lookup::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id)?;
        let mut accounts: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
        accounts.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(Self { id, row, accounts })
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> SettlementState {
        SettlementState::from_number(self.row.state).expect("rows are written by the rules")
    }
}

/// The amount that an account owes; negative if it is owed money.
#[must_use]
pub fn net(row: &SettlementAccountRow) -> i128 {
    let signed = |amount: u128| i128::try_from(amount).expect("sums of 10^22 at most fit");
    signed(row.sent) - signed(row.received)
}

impl Service {
    /// Creates a settlement of windows.
    pub(crate) async fn settle(
        &self,
        (model, reason): (&str, &str),
        windows: &[u64],
        by: &By<'_>,
    ) -> Result<u64, OperatorError> {
        let all = self.store().all::<Models>()?;
        let own = all.into_iter().filter(|found| found.row.active && found.row.currency != 0);
        let others: Vec<u32> = own.map(|found| found.row.currency).collect();
        for _ in 0..ATTEMPTS_MAX {
            let id = self.state()?.next_settlement;
            let command = CreateSettlement {
                id,
                model: model.to_owned(),
                reason: reason.to_owned(),
                windows: windows.to_vec(),
                others: others.clone(),
            };
            match self.commit(command, by, &settlement_result(id)).await {
                Err(OperatorError::Refused(Refusal::Overtaken)) => {}
                other => return other,
            }
        }
        Err(Refusal::Overtaken.into())
    }

    /// Takes the accounts' steps. Returns those that failed, and why.
    ///
    /// # Errors
    /// [`OperatorError`], when the switch is busy, shutting down or cannot write.
    pub async fn step_accounts<'a>(
        &self,
        settlement: u64,
        steps: &'a [AccountStep],
    ) -> Result<Vec<(&'a AccountStep, OperatorError)>, OperatorError> {
        let mut untaken = Vec::new();
        for step in steps {
            match self.step_account(settlement, step).await {
                Ok(()) => {}
                Err(error) if error.is_passing() => return Err(error),
                Err(error) => untaken.push((step, error)),
            }
        }
        Ok(untaken)
    }

    async fn step_account(&self, settlement: u64, step: &AccountStep) -> Result<(), OperatorError> {
        let to = SettlementState::from_name(&step.state).filter(|state| state.is_of_accounts());
        let to = to.ok_or_else(|| {
            OperatorError::Malformed(format!("{} is not a state of an account", step.state))
        })?;
        let AccountStep { participant, currency, ref reason, ref reference, .. } = *step;
        let key = SettlementAccountKey { settlement, participant, currency };
        let (reason, reference) = (reason.clone(), reference.clone());
        self.settlement_step(&SettlementStep { key, to, reason, reference }).await
    }

    fn model(&self, settlement: &Settlement) -> Result<ModelRow, OperatorError> {
        let key = ModelKey { name: settlement.row.model.clone() };
        Ok(self.store().get::<Models>(&key)?.ok_or(Refusal::Unknown("settlement model"))?.row)
    }

    /// Takes a step: first in the ledger, then in the books. Repeating it is harmless.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn settlement_step(&self, step: &SettlementStep) -> Result<(), OperatorError> {
        let treasury = &self.treasury;
        let turn = treasury.turn().await;
        let settlement = Settlement::read(self.store(), step.key.settlement)?;
        let found = settlement.accounts.iter().find(|(key, _)| *key == step.key);
        let (_, row) = found.ok_or(Refusal::Unknown("settlement account"))?;
        let state = SettlementState::from_number(row.state).expect("rows are written by the rules");
        check_step(settlement.state(), state, step.to)?;
        let model = self.model(&settlement)?;
        let net = net(row);
        let mut beyond_headroom = false;
        if model.auto_position_reset && state != step.to && net != 0 {
            match step.to {
                SettlementState::Reserved if net > 0 => {
                    self.reserve_sender(&step.key, net.unsigned_abs()).await?;
                }
                SettlementState::Reserved => {
                    beyond_headroom = self.charge_recipient(&step.key, net.unsigned_abs()).await?;
                }
                SettlementState::Committed if net > 0 => {
                    self.post_sender(&step.key, net.unsigned_abs()).await?;
                }
                _ => {}
            }
        }
        let windows = windows_of(&settlement.row);
        let command = StepSettlement { step: step.clone(), windows, beyond_headroom };
        self.lane.submit(command).await??;
        if beyond_headroom {
            let SettlementAccountKey { participant, currency, settlement } = step.key;
            let check = model.require_liquidity_check;
            tracing::warn!(settlement, participant, check, "settlement goes beyond a recipient's headroom");
            treasury.fit(&turn, participant, currency).await?;
        }
        Ok(())
    }

    async fn ask(&self, events: Vec<Transfer>) -> Result<(), CreateTransferStatus> {
        let results = self.treasury.ledger().create_transfers(events).await;
        match results[0].status {
            CreateTransferStatus::Created | CreateTransferStatus::Exists => Ok(()),
            other => Err(other),
        }
    }

    async fn reserve_sender(&self, key: &SettlementAccountKey, amount: u128) -> Result<(), OperatorError> {
        let event = Transfer { flags: TransferFlags::PENDING, ..entry(key, Role::NetSender, true, amount) };
        self.ask(vec![event]).await.map_err(OperatorError::Ledger)
    }

    async fn post_sender(&self, key: &SettlementAccountKey, amount: u128) -> Result<(), OperatorError> {
        let event = resolve(key, Role::Post, amount, TransferFlags::POST_PENDING_TRANSFER);
        self.ask(vec![event]).await.map_err(OperatorError::Ledger)
    }

    /// Deducts a recipient's claim from its headroom. True: the headroom was already spent, and was granted
    /// for this purpose.
    async fn charge_recipient(
        &self,
        key: &SettlementAccountKey,
        amount: u128,
    ) -> Result<bool, OperatorError> {
        match self.ask(vec![entry(key, Role::NetRecipient, false, amount)]).await {
            Ok(()) => return Ok(false),
            Err(CreateTransferStatus::ExceedsCredits | CreateTransferStatus::IdAlreadyFailed) => {}
            Err(status) => return Err(OperatorError::Ledger(status)),
        }
        let grant = Transfer {
            debit_account_id: account(key.participant, key.currency, AccountKind::Grant),
            credit_account_id: account(key.participant, key.currency, AccountKind::Position),
            code: code::HEADROOM,
            flags: TransferFlags::LINKED,
            ..entry(key, Role::NetBeyondGrant, false, amount)
        };
        let charge = entry(key, Role::NetBeyondEntry, false, amount);
        self.ask(vec![grant, charge]).await.map_err(OperatorError::Ledger)?;
        Ok(true)
    }

    /// Abandons a settlement: everything reserved is reversed, and its windows may be settled again.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn abort_settlement(&self, id: u64, reason: &str) -> Result<(), OperatorError> {
        let _turn = self.treasury.turn().await;
        let settlement = Settlement::read(self.store(), id)?;
        // The ledger may be a step ahead of the books, if the switch was killed between the two.
        let parts = settlement.accounts.iter().map(|(key, _)| derive(Role::Post, sender_id(key)));
        let parts: Vec<u128> = parts.collect();
        if settlement.state() == SettlementState::Reserved && self.treasury.ledger().exists_any(&parts).await
        {
            return Err(Refusal::Conflict(
                "the ledger has committed an account: repeat its step to PS_TRANSFERS_COMMITTED".to_owned(),
            )
            .into());
        }
        let command = |reversed| AbortSettlement {
            id,
            windows: windows_of(&settlement.row),
            reason: reason.to_owned(),
            reversed,
        };
        self.lane.submit(command(false)).await??;
        for (key, row) in &settlement.accounts {
            let amount = net(row).unsigned_abs();
            if net(row) > 0 {
                let event = resolve(key, Role::Void, 0, TransferFlags::VOID_PENDING_TRANSFER);
                match self.ask(vec![event]).await {
                    // Never reserved: nothing to void.
                    Ok(())
                    | Err(
                        CreateTransferStatus::PendingTransferNotFound | CreateTransferStatus::IdAlreadyFailed,
                    ) => {}
                    Err(status) => return Err(OperatorError::Ledger(status)),
                }
            } else if net(row) < 0 && self.was_charged(key).await {
                // The same in reverse.
                let event = entry(key, Role::NetReverse, true, amount);
                self.ask(vec![event]).await.map_err(OperatorError::Ledger)?;
            }
        }
        self.lane.submit(command(true)).await??;
        for (key, _) in &settlement.accounts {
            self.treasury.look_at(key.participant, key.currency);
        }
        Ok(())
    }

    async fn was_charged(&self, key: &SettlementAccountKey) -> bool {
        let part = settlement_part(key.settlement, key.participant, key.currency);
        let ids = [Role::NetRecipient, Role::NetBeyondEntry].map(|role| derive(role, part));
        self.treasury.ledger().exists_any(&ids).await
    }
}

/// An entry between the hub's settlement account and a position, in either direction.
fn entry(key: &SettlementAccountKey, role: Role, towards: bool, amount: u128) -> Transfer {
    let part = settlement_part(key.settlement, key.participant, key.currency);
    let hub = account(HUB, key.currency, AccountKind::HubMultilateralSettlement);
    let position = account(key.participant, key.currency, AccountKind::Position);
    let (debit_account_id, credit_account_id) = if towards { (hub, position) } else { (position, hub) };
    Transfer {
        id: derive(role, part),
        debit_account_id,
        credit_account_id,
        amount,
        user_data_64: key.settlement,
        user_data_32: key.participant,
        ledger: key.currency,
        code: code::SETTLEMENT,
        ..Transfer::default()
    }
}

fn resolve(key: &SettlementAccountKey, role: Role, amount: u128, flags: TransferFlags) -> Transfer {
    let pending_id = sender_id(key);
    Transfer { id: derive(role, pending_id), pending_id, amount, flags, ..Transfer::default() }
}

/// The id of a sender's reservation.
fn sender_id(key: &SettlementAccountKey) -> u128 {
    derive(Role::NetSender, settlement_part(key.settlement, key.participant, key.currency))
}
