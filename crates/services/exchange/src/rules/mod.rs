//! The money rules: withdrawals, deposits, refreshes, refunds, recoups, closing of reserves, transfers.
//!
//! Pure functions over rows: no I/O, no clock, no randomness, no cryptography. A [`Command`] contains
//! everything that was drawn, computed or verified before. The API checks signatures *before* it submits a
//! command; blind signatures are made before and take effect only if the debit does. The rules decide on the
//! rows alone; what an API handler read before (is this a repetition? does the balance suffice?) was only a
//! hint.
//!
//! | file | commands |
//! |---|---|
//! | [`reserves`] | [`Withdraw`], [`ReserveHistory`], [`Credits`], [`CloseReserve`] |
//! | [`coins`] | [`Deposit`], [`Refund`] |
//! | [`refreshes`] | [`Melt`], [`Reveal`] |
//! | [`recoups`] | [`Recoup`], [`RecoupRefresh`] |
//! | [`purses`] | [`PurseCreate`], [`PurseDeposit`], [`PurseMerge`], [`ReservePurse`], [`PurseDelete`], [`PurseExpire`] |
//! | [`accounts`] | [`ReserveOpen`], [`RequestClose`] |
//! | [`kyc`] | [`RequireKyc`], [`StartKyc`], [`FinishKyc`], [`SubmitKyc`], [`DecideKyc`], [`ClearKycAlert`] |
//! | [`transfers`] | [`Aggregate`], [`TransfersDone`], [`TransferFailed`], [`TransferRetry`], [`ExecuteDrain`] |
//! | [`leases`] | [`Lease`]: how workers share jobs |
//! | [`garbage`] | [`Collect`]: removes what is no longer needed |
//! | [`archive`] | [`Archive`]: moves what need not be kept at hand to an archive |
//! | [`management`] | changes signed by offline keys |
//!
//! Reads that need no batch are in [`reads`](crate::reads), together with the balance sheet. A refused
//! command changes nothing; where the protocol demands evidence, it carries the history ([`history`]) that
//! proves the refusal.

pub mod accounts;
pub mod archive;
pub mod coins;
mod command;
pub mod denoms;
pub mod garbage;
pub mod history;
pub mod kyc;
pub mod leases;
pub mod management;
pub mod purses;
pub mod recoups;
pub mod refreshes;
mod refusal;
pub mod reserves;
pub mod transfers;

use std::sync::Arc;

use batzen_engine::{Evidence, Plan, Rules, WorkingSet};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::{ChangeSet, Store, StoreError};

use crate::metrics::flow::MoneyFlow;

pub use batzen_tables::exchange::KycOperation;
pub use command::*;
pub use denoms::{DenomProblem, DenomTable, DenomTerms};
pub use history::{CoinHistory, CoinHistoryItem, ReserveHistoryItem, ReserveStatement};
pub use kyc::{KycProvider, KycRule, KycRules, KycUserType};
pub use refusal::*;

/// A history with more events than this is long, and is proved separately from the short ones. Coins have a
/// handful of events, a busy reserve some hundreds.
pub const HISTORY_EVENTS_LONG: usize = 256;

/// The part of the configuration that the rules depend on.
#[derive(Debug, Clone)]
pub struct RulesConfig {
    /// A reserve is closed after this time without a credit (`IDLE_RESERVE_EXPIRATION_TIME`).
    pub idle_reserve_expiration: Duration,
    /// How long reserves are kept (`LEGAL_RESERVE_EXPIRATION_TIME`).
    pub legal_reserve_expiration: Duration,
    /// The smallest amount that a bank transfers (`CURRENCY_ROUND_UNIT`); zero for no rounding.
    pub round_unit: Money,
    /// How coarsely the aggregator reads the clock (`AGGREGATOR_SHIFT`).
    pub aggregator_shift: Duration,
    /// The exchange's base URL, which is part of each transfer's subject.
    pub exchange_base_url: String,
    /// How many purses come with each account fee (`DEFAULT_PURSE_LIMIT`).
    pub default_purse_limit: u32,
    /// Limits on customers who are not identified, and who identifies them.
    pub kyc: KycRules,
}

impl RulesConfig {
    /// The protocol's defaults: four weeks, seven years, a round unit of 0.01, one second, one purse.
    #[must_use]
    pub fn new(exchange_base_url: impl Into<String>) -> Self {
        Self {
            idle_reserve_expiration: Duration::from_days(28),
            legal_reserve_expiration: Duration::from_days(7 * 365),
            round_unit: Money::new(0, 1_000_000).expect("0.01 is an amount"),
            aggregator_shift: Duration::from_secs(1),
            exchange_base_url: exchange_base_url.into(),
            default_purse_limit: 1,
            kyc: KycRules::default(),
        }
    }
}

/// The rules of an exchange, for [`batzen_engine::Lane`] and [`batzen_engine::Batcher`].
#[derive(Debug, Clone)]
pub struct ExchangeRules {
    /// The terms of all denominations.
    pub denoms: Arc<DenomTable>,
    /// The configuration.
    pub config: RulesConfig,
    /// The running sums of money. No rule reads them.
    pub flow: Arc<MoneyFlow>,
}

impl ExchangeRules {
    /// Rules with these denominations and this configuration.
    #[must_use]
    pub fn new(denoms: Arc<DenomTable>, config: RulesConfig) -> Self {
        Self { denoms, config, flow: Arc::default() }
    }
}

impl Rules for ExchangeRules {
    type Command = Command;
    type Outcome = Outcome;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        match command {
            Command::Withdraw(command) => self.plan_withdraw(command, plan),
            Command::ReserveHistory(command) => reserves::plan_history(command, plan),
            Command::Credits(command) => reserves::plan_credits(command, plan),
            Command::CloseReserve(command) => reserves::plan_close(command, plan),
            Command::Deposit(command) => coins::plan_deposit(command, plan),
            Command::Refund(command) => coins::plan_refund(command, plan),
            Command::Melt(command) => refreshes::plan_melt(command, plan),
            Command::Reveal(command) => refreshes::plan_reveal(command, plan),
            Command::Recoup(command) => recoups::plan_recoup(command, plan),
            Command::RecoupRefresh(command) => recoups::plan_recoup_refresh(command, plan),
            Command::PurseCreate(command) => self.plan_purse_create(command, plan),
            Command::PurseDeposit(command) => self.plan_purse_deposit(command, plan),
            Command::PurseMerge(command) => self.plan_purse_merge(command, plan),
            Command::ReservePurse(command) => self.plan_reserve_purse(command, plan),
            Command::PurseDelete(command) => purses::plan_delete(command, plan),
            Command::PurseExpire(command) => purses::plan_expire(command, plan),
            Command::ReserveOpen(command) => accounts::plan_open(command, plan),
            Command::RequestClose(command) => self.plan_request_close(command, plan),
            Command::RequireKyc(command) => kyc::plan_require(command, plan),
            Command::StartKyc(command) => kyc::plan_start(command, plan),
            Command::FinishKyc(command) => kyc::plan_finish(command, plan),
            Command::SubmitKyc(command) => kyc::plan_submit(command, plan),
            Command::DecideKyc(command) => kyc::plan_decide(command, plan),
            Command::ClearKycAlert(command) => kyc::plan_clear_alert(command, plan),
            Command::Aggregate(command) => self.plan_aggregate(command, plan),
            Command::TransfersDone(TransfersDone { wtids }) => {
                wtids.iter().for_each(|wtid| transfers::plan_transfer(*wtid, plan));
            }
            Command::TransferFailed(TransferFailed { wtid, .. })
            | Command::TransferRetry(TransferRetry { wtid }) => transfers::plan_transfer(*wtid, plan),
            Command::ExecuteDrain(command) => transfers::plan_drain(command, plan),
            Command::Management(command) => management::plan(command, plan),
            Command::Lease(command) => leases::plan_lease(command, plan),
            Command::Collect(command) => garbage::plan(command, plan),
            Command::Archive(command) => archive::plan(command, plan),
        }
    }

    fn is_background(&self, command: &Command) -> bool {
        matches!(
            command,
            Command::Credits(_)
                | Command::CloseReserve(_)
                | Command::PurseExpire(_)
                | Command::ClearKycAlert(_)
                | Command::Aggregate(_)
                | Command::TransfersDone(_)
                | Command::TransferFailed(_)
                | Command::Lease(_)
                | Command::Collect(_)
                | Command::Archive(_)
        )
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Outcome, Refusal> {
        match command {
            Command::Withdraw(command) => self.withdraw(rows, command, now).map(Outcome::Withdraw),
            Command::ReserveHistory(command) => {
                self.reserve_history(rows, command).map(Outcome::ReserveHistory)
            }
            Command::Credits(command) => self.credits(rows, command, now).map(Outcome::Credits),
            Command::CloseReserve(command) => {
                self.close_reserve(rows, command, now).map(Outcome::CloseReserve)
            }
            Command::Deposit(command) => self.deposit(rows, command, now).map(Outcome::Deposit),
            Command::Refund(command) => self.refund(rows, command).map(Outcome::Refund),
            Command::Melt(command) => self.melt(rows, command, now).map(Outcome::Melt),
            Command::Reveal(command) => self.reveal(rows, command, now).map(Outcome::Reveal),
            Command::Recoup(command) => self.recoup(rows, command, now).map(Outcome::Recoup),
            Command::RecoupRefresh(command) => {
                self.recoup_refresh(rows, command, now).map(Outcome::RecoupRefresh)
            }
            Command::PurseCreate(command) => self.purse_create(rows, command, now).map(Outcome::PurseCreate),
            Command::PurseDeposit(command) => {
                self.purse_deposit(rows, command, now).map(Outcome::PurseDeposit)
            }
            Command::PurseMerge(command) => self.purse_merge(rows, command, now).map(Outcome::PurseMerge),
            Command::ReservePurse(command) => {
                self.reserve_purse(rows, command, now).map(Outcome::PurseCreate)
            }
            Command::PurseDelete(command) => self.purse_delete(rows, command, now).map(Outcome::PurseDelete),
            Command::PurseExpire(command) => self.purse_expire(rows, command, now).map(Outcome::PurseExpire),
            Command::ReserveOpen(command) => self.reserve_open(rows, command, now).map(Outcome::ReserveOpen),
            Command::RequestClose(command) => {
                self.request_close(rows, command, now).map(Outcome::RequestClose)
            }
            Command::RequireKyc(command) => Ok(Outcome::RequireKyc(kyc::require(rows, command, now))),
            Command::StartKyc(command) => Ok(Outcome::StartKyc(kyc::start(rows, command, now))),
            Command::FinishKyc(command) => kyc::finish(rows, command, now).map(Outcome::FinishKyc),
            Command::SubmitKyc(command) => kyc::submit(rows, command).map(Outcome::SubmitKyc),
            Command::DecideKyc(command) => kyc::decide(rows, command, now).map(Outcome::DecideKyc),
            Command::ClearKycAlert(command) => Ok(Outcome::ClearKycAlert(kyc::clear_alert(rows, command))),
            Command::Aggregate(command) => self.aggregate(rows, command, now).map(Outcome::Aggregate),
            Command::TransfersDone(command) => transfers::done(rows, command, now).map(Outcome::Transfer),
            Command::TransferFailed(command) => transfers::failed(rows, command).map(Outcome::Transfer),
            Command::TransferRetry(command) => transfers::retry(rows, command).map(Outcome::Transfer),
            Command::ExecuteDrain(command) => self.execute_drain(rows, command, now).map(Outcome::Drain),
            Command::Management(command) => {
                management::execute(rows, command, now).map(Outcome::Management).map_err(Refusal::Management)
            }
            Command::Lease(command) => Ok(Outcome::Lease(leases::execute(rows, command))),
            Command::Collect(command) => self.collect(rows, command, now).map(Outcome::Collect),
            Command::Archive(command) => self.archive(rows, command, now).map(Outcome::Archive),
        }
    }

    fn shard_key<'a>(&self, command: &'a Command) -> Option<&'a [u8]> {
        let owner = match command {
            Command::Withdraw(command) => &command.reserve_pub,
            Command::ReserveHistory(command) => &command.reserve_pub,
            Command::CloseReserve(command) => &command.reserve_pub,
            // If the request is repeated, it contains the same first coin again.
            Command::Deposit(command) => &command.coins.first()?.coin.coin_pub,
            Command::Refund(command) => &command.key.coin_pub,
            Command::Melt(command) => &command.coin.coin_pub,
            Command::Reveal(command) => &command.coin_pub,
            Command::Recoup(command) => &command.coin.coin_pub,
            Command::RecoupRefresh(command) => &command.coin.coin_pub,
            Command::PurseCreate(command) => &command.purse_pub,
            Command::PurseDeposit(command) => &command.purse_pub,
            Command::PurseMerge(command) => &command.purse_pub,
            Command::ReservePurse(command) => &command.purse_pub,
            Command::PurseDelete(command) => &command.purse_pub,
            Command::PurseExpire(command) => &command.purse_pub,
            Command::ReserveOpen(command) => &command.reserve_pub,
            Command::RequestClose(command) => &command.reserve_pub,
            Command::Aggregate(command) => return Some(command.target.h_payto.as_bytes()),
            Command::RequireKyc(command) => return Some(command.h_payto.as_bytes()),
            Command::StartKyc(command) => return Some(command.h_payto.as_bytes()),
            Command::FinishKyc(command) => return Some(command.h_payto.as_bytes()),
            Command::SubmitKyc(command) => return Some(command.h_payto.as_bytes()),
            Command::DecideKyc(command) => return Some(command.h_payto.as_bytes()),
            Command::ClearKycAlert(command) => return Some(command.h_payto.as_bytes()),
            _ => return None,
        };
        Some(owner.as_bytes())
    }

    fn other_shard_keys<'a>(&self, command: &'a Command, visit: &mut dyn FnMut(&'a [u8])) {
        match command {
            Command::Deposit(command) => {
                command.coins.iter().skip(1).for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
            }
            Command::Recoup(command) => visit(command.reserve_pub.as_bytes()),
            Command::RecoupRefresh(command) => visit(command.old_coin_pub.as_bytes()),
            Command::PurseCreate(command) => {
                command.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
            }
            Command::PurseDeposit(command) => {
                command.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
                command.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
            }
            Command::PurseMerge(command) => visit(command.reserve_pub.as_bytes()),
            Command::ReservePurse(command) => visit(command.reserve_pub.as_bytes()),
            Command::PurseDelete(command) => {
                command.coins.iter().for_each(|coin_pub| visit(coin_pub.as_bytes()));
                command.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
            }
            Command::PurseExpire(command) => {
                command.coins.iter().for_each(|coin_pub| visit(coin_pub.as_bytes()));
                command.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
            }
            Command::ReserveOpen(command) => {
                command.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
            }
            _ => {}
        }
    }

    fn learn(&self, refusal: &Refusal, store: &Store) -> Result<bool, StoreError> {
        match refusal {
            Refusal::DenominationUnknown { denom, .. } => Ok(self.denoms.find(store, *denom)?.is_some()),
            _ => Ok(false),
        }
    }

    fn committed(&self, changes: &ChangeSet) {
        self.flow.committed(&self.denoms, changes);
        self.denoms.committed(changes);
    }

    fn needs_evidence(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::ReserveInsufficient(_) | Refusal::CoinConflict { .. })
    }

    fn is_evidence_long(&self, refusal: &Refusal) -> bool {
        let events = match refusal {
            Refusal::ReserveInsufficient(shortage) => shortage.history.items.len(),
            Refusal::CoinConflict { conflict, .. } => conflict.history.items.len(),
            _ => 0,
        };
        events > HISTORY_EVENTS_LONG
    }

    fn evidence(
        &self,
        _command: &Command,
        refusal: &mut Refusal,
        store: &Store,
    ) -> Result<Evidence, StoreError> {
        history::complete(&self.denoms, refusal, store)
    }
}

/// A sum of money, refused if it is above the largest amount.
fn add(a: Money, b: Money) -> Result<Money, Refusal> {
    a.checked_add(b).map_err(|_| Refusal::Overflow)
}
