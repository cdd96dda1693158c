//! The money rules: withdrawals, deposits, refreshes, refunds, recoups, closing of reserves, transfers.
//!
//! Pure functions over rows: no I/O, no clock, no randomness, no cryptography. A [`Command`] contains
//! everything that was drawn, computed or verified before. The API checks signatures *before* it submits a
//! command; blind signatures are made before and take effect only if the debit does. The rules decide on the
//! rows alone; what an API handler read before (is this a repetition? does the balance suffice?) was only a
//! hint.
//!
//! Each file has a family of commands: what a command carries, its answer, the rows that it may touch and its rule.
//!
//! | file | commands |
//! |---|---|
//! | `reserves` | [`Withdraw`], [`ReserveHistory`], [`Credits`], [`CloseReserve`] |
//! | `aside` | [`SetAside`], [`SettleAside`]: credits that fill no reserve |
//! | `coins` | [`Deposit`], [`Refund`] |
//! | `refreshes` | [`Melt`], [`Reveal`] |
//! | `recoups` | [`Recoup`], [`RecoupRefresh`] |
//! | `purses` | [`PurseCreate`], [`PurseDeposit`], [`PurseMerge`], [`ReservePurse`], [`PurseDelete`], [`PurseExpire`] |
//! | `accounts` | [`ReserveOpen`], [`RequestClose`] |
//! | [`kyc`] | [`RequireKyc`], [`StartKyc`], [`FinishKyc`], [`SubmitKyc`], [`DecideKyc`], [`ClearKycAlert`] |
//! | `transfers` | [`Aggregate`], [`TransfersDone`], [`TransferFailed`], [`TransferRetry`], [`ExecuteDrain`] |
//! | [`leases`] | [`Lease`]: how workers share jobs |
//! | [`garbage`] | [`Collect`]: removes what is no longer needed |
//! | [`archive`] | [`Archive`]: moves what need not be kept at hand to an archive |
//! | `management` | changes signed by offline keys |
//!
//! Reads that need no batch are in [`reads`](crate::reads), together with the balance sheet. A refused
//! command changes nothing; where the protocol demands evidence, it carries the history ([`crate::history`]) that
//! proves the refusal.

pub(crate) mod accounts;
pub mod archive;
mod aside;
pub(crate) mod coins;
pub(crate) mod denoms;
mod evidence;
pub mod garbage;
pub mod kyc;
pub mod leases;
pub(crate) mod management;
pub(crate) mod purses;
pub(crate) mod recoups;
pub(crate) mod refreshes;
mod refusal;
pub(crate) mod reserves;
pub(crate) mod transfers;

use std::sync::Arc;

use batzen_engine::{Evidence, Rules};
use batzen_protocol::{Duration, Money};
use batzen_store::{ChangeSet, Store, StoreError};

use crate::metrics::flow::MoneyFlow;

pub(crate) use crate::history::{CoinHistory, ReserveStatement};
pub use crate::history::{CoinHistoryItem, ReserveHistoryItem};
pub use accounts::*;
pub(crate) use archive::CoinFile;
pub use archive::{Archive, ArchiveUnit, Archived, PurseCoins, Rows, Stays, TransferPart};
pub use aside::*;
pub use batzen_tables::exchange::KycOperation;
pub use coins::*;
pub use denoms::{DenomProblem, DenomTable, DenomTerms};
pub use garbage::{Collect, Collected};
pub(crate) use garbage::{NonceCandidate, PurseCandidate, ReserveCandidate};
pub use kyc::*;
pub use leases::{Lease, Leased, RangeClaim, RangeProgress, RangeState, SlotsClaim, SlotsShare};
pub use management::Management;
pub use purses::*;
pub use recoups::*;
pub use refreshes::*;
pub use refusal::*;
pub use reserves::*;
pub use transfers::*;

batzen_engine::commands! {
    /// A change of money state, or of the key set. All amounts are in the exchange's currency. All signatures of a
    /// request have been verified.
    #[derive(Debug, Clone)]
    ExchangeRules:
    Withdraw,
    ReserveHistory,
    Credits,
    SetAside,
    SettleAside,
    CloseReserve,
    Deposit,
    Refund,
    Melt,
    Reveal,
    Recoup,
    RecoupRefresh,
    PurseCreate,
    PurseDeposit,
    PurseMerge,
    ReservePurse,
    PurseDelete,
    PurseExpire,
    ReserveOpen,
    RequestClose,
    RequireKyc,
    StartKyc,
    FinishKyc,
    SubmitKyc,
    DecideKyc,
    ClearKycAlert,
    Aggregate,
    TransfersDone,
    TransferFailed,
    TransferRetry,
    ExecuteDrain,
    Management,
    Lease,
    Collect,
    Archive,
}

/// A history with more events than this is long, and is proved separately from the short ones. Coins have a
/// handful of events, a busy reserve some hundreds.
pub(crate) const HISTORY_EVENTS_LONG: usize = 256;

/// The longest time for which a purse may stay open, unless the operator says otherwise. A purse may be free, and its
/// contract is kept until it expires.
pub(crate) const PURSE_LIFETIME_MAX: Duration = Duration::from_days(366);

/// The part of the configuration that the rules depend on.
#[derive(Debug, Clone)]
pub struct RulesConfig {
    /// A reserve is closed after this time without a credit (`IDLE_RESERVE_EXPIRATION_TIME`).
    pub idle_reserve_expiration: Duration,
    /// Time that reserves are kept (`LEGAL_RESERVE_EXPIRATION_TIME`).
    pub legal_reserve_expiration: Duration,
    /// The smallest amount that a bank transfers (`CURRENCY_ROUND_UNIT`); zero for no rounding.
    pub round_unit: Money,
    /// Granularity of the aggregator's clock (`AGGREGATOR_SHIFT`).
    pub aggregator_shift: Duration,
    /// The exchange's base URL, which is part of each transfer's subject.
    pub exchange_base_url: String,
    /// Number of purses that come with each account fee (`DEFAULT_PURSE_LIMIT`).
    pub default_purse_limit: u32,
    /// The longest time for which a new purse may stay open (`PURSE_LIFETIME_MAX`).
    pub purse_lifetime_max: Duration,
    /// Limits on customers who are not identified, and who identifies them.
    pub kyc: KycRules,
}

impl RulesConfig {
    /// The protocol's defaults: four weeks, seven years, a round unit of 0.01, one second, one purse; and a year for
    /// purses.
    #[must_use]
    pub fn new(exchange_base_url: impl Into<String>) -> Self {
        Self {
            idle_reserve_expiration: Duration::from_days(28),
            legal_reserve_expiration: Duration::from_days(7 * 365),
            round_unit: Money::new(0, 1_000_000).expect("0.01 is an amount"),
            aggregator_shift: Duration::from_secs(1),
            exchange_base_url: exchange_base_url.into(),
            default_purse_limit: 1,
            purse_lifetime_max: PURSE_LIFETIME_MAX,
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
    type Refusal = Refusal;
    batzen_engine::dispatch_to_commands!(Command);

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
        refusal.history_events().is_some()
    }

    fn is_evidence_long(&self, refusal: &Refusal) -> bool {
        refusal.history_events().is_some_and(|events| events > HISTORY_EVENTS_LONG)
    }

    fn evidence(
        &self,
        _command: &Command,
        refusal: &mut Refusal,
        store: &Store,
    ) -> Result<Evidence, StoreError> {
        evidence::complete(&self.denoms, refusal, store)
    }
}

/// A sum of money, refused if it is above the largest amount.
fn add(a: Money, b: Money) -> Result<Money, Refusal> {
    a.checked_add(b).map_err(|_| Refusal::Overflow)
}
