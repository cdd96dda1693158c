//! The state that both interfaces share: lane, store, ledger, participants, and the operators' changes.

use std::sync::Arc;

use batzen_ledger::{Account, AccountFlags, CreateAccountStatus, Outbox};
use batzen_service::Monitor;
use batzen_store::Store;
use batzen_tables::switch::{
    AccountKind, EndpointKey, HUB, ModelKey, ModelRow, SwitchAccountKey, SwitchStateKey, SwitchStateRow,
    SwitchStates,
};

use crate::approvals::By;
use crate::clearing::{Balances, Clearing, ClearingCounters};
use crate::config::SwitchConfig;
use crate::directory::{Directory, Snapshot};
use crate::forwarding::Forwarder;
use crate::outbox::Senders;
use crate::pipeline::Lane;
use crate::rules::approvals::DONE;
use crate::rules::participants::account_kinds;
use crate::rules::{
    ActivateAccount, ActivateParticipant, Change, Command, OpenAccounts, Refusal, SetEndpoint, SetLimit,
    SetModel,
};
use crate::treasury::{OperatorError, Treasury};

/// Number of retries of a change that other changes overtake.
pub(crate) const ATTEMPTS_MAX: usize = 10;

/// The state behind both interfaces.
pub struct Service {
    pub(crate) lane: Lane,
    directory: Arc<Directory>,
    pub(crate) senders: Senders,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) treasury: Arc<Treasury>,
    clearing: (Outbox<Clearing>, Arc<ClearingCounters>),
    pub(crate) config: SwitchConfig,
    pub(crate) monitor: Monitor,
    /// Serialises approvals.
    pub(crate) approving: tokio::sync::Mutex<()>,
}

impl Service {
    pub(crate) fn new(
        lane: Lane,
        directory: Arc<Directory>,
        (senders, forwarder): (Senders, Arc<Forwarder>),
        treasury: Arc<Treasury>,
        clearing: (Outbox<Clearing>, Arc<ClearingCounters>),
        config: SwitchConfig,
        monitor: Monitor,
    ) -> Self {
        Self {
            lane,
            directory,
            senders,
            forwarder,
            treasury,
            clearing,
            config,
            monitor,
            approving: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        self.lane.store()
    }

    pub(crate) fn clearing(&self) -> &Outbox<Clearing> {
        &self.clearing.0
    }

    pub(crate) fn clearing_counters(&self) -> &ClearingCounters {
        &self.clearing.1
    }

    pub(crate) fn directory(&self) -> Arc<Snapshot> {
        self.directory.now()
    }

    pub(crate) fn state(&self) -> Result<SwitchStateRow, OperatorError> {
        let stored = self.store().get::<SwitchStates>(&SwitchStateKey::ONLY)?;
        Ok(stored.expect("the switch was opened").row)
    }

    /// Changes participants, accounts, limits, addresses or models, and carries out the consequences.
    pub(crate) async fn change_books(&self, change: &Change, by: &By<'_>) -> Result<u64, OperatorError> {
        let mut attempts = 0;
        let number = loop {
            attempts += 1;
            match self.try_change(change, by).await {
                Err(OperatorError::Refused(Refusal::Overtaken)) if attempts < ATTEMPTS_MAX => {
                    self.directory.refresh(self.store())?;
                }
                other => break other?,
            }
        };
        self.directory.refresh(self.store())?;
        self.senders.serve();
        if let Change::Limit { name, currency, .. } = change {
            let participant = self.number_of(name)?;
            if let Err(error) = self.treasury.adjust(participant, *currency).await {
                tracing::error!(participant, %error, "headroom is adjusted later");
                self.treasury.look_at(participant, *currency);
            }
        }
        Ok(number)
    }

    async fn try_change(&self, change: &Change, by: &By<'_>) -> Result<u64, OperatorError> {
        let command = self.command_of(change)?;
        if let Command::OpenAccounts(OpenAccounts { currency, number, .. }) = command {
            // Ledger accounts first: empty ones do no harm, and rows must never refer to accounts that do not
            // exist.
            let accounts = account_kinds(number).iter().map(|kind| ledger_account(number, currency, *kind));
            for result in self.treasury.ledger().create_accounts(accounts.collect()).await {
                let status = result.status;
                if !matches!(status, CreateAccountStatus::Created | CreateAccountStatus::Exists) {
                    return Err(Refusal::Conflict(format!("the ledger answers {status}")).into());
                }
            }
        }
        self.commit(command, by, DONE).await
    }

    fn number_of(&self, name: &str) -> Result<u32, Refusal> {
        let directory = self.directory.now();
        directory.by_name(name).map(|entry| entry.number).ok_or(Refusal::Unknown("participant"))
    }

    /// The command that makes a change of the books.
    fn command_of(&self, change: &Change) -> Result<Command, OperatorError> {
        Ok(match change.clone() {
            Change::Accounts { name, currency } => {
                let number = match &name {
                    None => HUB,
                    Some(name) => {
                        self.number_of(name).or_else(|_| self.state().map(|state| state.next_participant))?
                    }
                };
                OpenAccounts { name, number, currency }.into()
            }
            Change::Activate { name, active } => ActivateParticipant { name, active }.into(),
            Change::ActivateAccount { name, currency, kind, active } => {
                let participant = name.map_or(Ok(HUB), |name| self.number_of(&name))?;
                ActivateAccount { key: SwitchAccountKey { participant, currency, kind }, active }.into()
            }
            Change::Limit { name, currency, ndc, alarm_percentage, initial } => {
                let number = self.number_of(&name)?;
                SetLimit { name, number, currency, ndc, alarm_percentage, initial }.into()
            }
            Change::Endpoint { name, endpoint, url } => {
                let participant = self.number_of(&name)?;
                SetEndpoint { name, key: EndpointKey { participant, endpoint }, url }.into()
            }
            Change::Model { name, currency, gross, require_liquidity_check, auto_position_reset, active } => {
                let row = ModelRow { currency, gross, require_liquidity_check, auto_position_reset, active };
                SetModel { key: ModelKey { name }, row }.into()
            }
            _ => {
                let text = "funds, windows and settlements have commands of their own";
                return Err(Refusal::Conflict(text.to_owned()).into());
            }
        })
    }

    /// Deposits liquidity.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn deposit(&self, funds: &crate::treasury::Funds) -> Result<(), OperatorError> {
        self.treasury.funds_in(funds).await
    }

    /// A participant's balances.
    pub async fn balances(&self, participant: u32, currency: u32) -> Balances {
        Balances::read(self.treasury.ledger(), participant, currency).await
    }

    pub(crate) fn close(&self) {
        self.lane.close();
    }
}

/// An account in the ledger. Positions and liquidity can never be overdrawn.
fn ledger_account(participant: u32, currency: u32, kind: AccountKind) -> Account {
    let flags = match kind {
        AccountKind::Position | AccountKind::Settlement => AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS,
        _ => AccountFlags::NONE,
    };
    Account {
        id: SwitchAccountKey::new(participant, currency, kind).ledger_id(),
        user_data_32: participant,
        ledger: currency,
        code: u16::from(kind as u8),
        flags,
        ..Account::default()
    }
}
