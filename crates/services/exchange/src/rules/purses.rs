//! Purses: payments between people.
//!
//! A purse is open until exactly one decision is made on it. Every command that deposits or decides changes
//! the purse's row, so that of two at the same time, one sees the other. Whoever submits a command names the
//! rows that only the store knows (the purse's reserve, its coins); if they have changed in between, the
//! command is refused with [`Refusal::PurseChanged`].

use std::collections::HashMap;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinKey, CoinPub, CoinRow, Coins, ContractRow, Contracts, KycHold, PurseDeletionRow, PurseDeletions,
    PurseDepositKey, PurseDepositRow, PurseDeposits, PurseKey, PurseMergeRow, PurseMerges, PurseMode,
    PursePub, PurseRow, PurseState, Purses, ReserveAccountRow, ReserveAccounts, ReserveKey, ReservePub,
    ReserveRow, Reserves,
};

use super::coins::{known_or_new, less_fee, pay};
use super::denoms::plan_revocation;
use super::{ExchangeRules, PresentedCoin, Refusal, add};
use crate::rules::refusal::Result;

/// Maximum number of coins in a purse, so that one commit can refund all of them.
pub(crate) const PURSE_COINS_MAX: u32 = 1_024;

/// The terms of a purse, signed by its own key (verified).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseTerms {
    /// The key that may merge it.
    pub merge_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The minimum age of the payer; 0 for none.
    pub min_age: u32,
    /// The amount that its reserve gets, after deposit fees.
    pub target: Money,
    /// When it expires.
    pub expiration: Timestamp,
    /// The purse's signature.
    pub purse_sig: EddsaSignature,
}

impl PurseTerms {
    /// Returns whether a stored purse has these terms. Its expiration and signature may differ.
    pub(in crate::rules) fn are_those_of(&self, stored: &PurseRow) -> bool {
        stored.min_age == self.min_age
            && stored.target == self.target
            && stored.h_contract_terms == self.h_contract_terms
            && stored.merge_pub == self.merge_pub
    }

    /// The row of a new purse.
    pub(in crate::rules) fn row(&self, mode: PurseMode, purse_fee: Money, now: Timestamp) -> PurseRow {
        PurseRow {
            merge_pub: self.merge_pub,
            h_contract_terms: self.h_contract_terms,
            min_age: self.min_age,
            mode,
            target: self.target,
            purse_fee,
            created: now,
            expiration: self.expiration,
            purse_sig: self.purse_sig,
            coins: 0,
            contributed: Money::ZERO,
            balance: Money::ZERO,
            state: PurseState::Open,
            decided: Timestamp::ZERO,
        }
    }
}

/// An encrypted contract, signed by its purse (verified).
pub type Contract = ContractRow;

/// A coin that pays into a purse, or for a reserve. An attestation of its age, if the purse needs one, was
/// verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseCoin {
    /// The coin.
    pub coin: PresentedCoin,
    /// The contribution, deposit fee included.
    pub amount: Money,
    /// Its signature on the payment, verified.
    pub coin_sig: EddsaSignature,
}

/// Creates a purse and pays into it. The same terms again are the same purse; coins that it contains already
/// have no further effect.
#[derive(Debug, Clone)]
pub struct PurseCreate {
    /// The purse.
    pub purse_pub: PursePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The reserve that it is merged into, if it existed before and was merged.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
    /// The fee that the coins of a new purse must cover.
    pub fee: Money,
    /// The contract for its receiver.
    pub contract: Option<Contract>,
}

/// A purse exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseCreated {
    /// When it expires: as it was created first.
    pub expiration: Timestamp,
    /// The sum of the request's coins, less deposit fees.
    pub deposited: Money,
    /// Whether it was created now.
    pub is_new: bool,
}

impl Command<ExchangeRules> for PurseCreate {
    type Answer = PurseCreated;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        self.reserve_pub.iter().for_each(|reserve_pub| rules.plan_merge_kyc(reserve_pub, plan));
        plan_purse(self.purse_pub, plan);
        if let Some(reserve_pub) = self.reserve_pub {
            plan_reserve(reserve_pub, plan);
        }
        plan.row::<Contracts>(PurseKey { purse_pub: self.purse_pub });
        plan_coins(self.purse_pub, &self.coins, plan);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<PurseCreated> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let stored = rows.get::<Purses>(&key).cloned();
        let is_new = stored.is_none();
        let purse = match stored {
            Some(stored) if self.terms.are_those_of(&stored) => stored,
            Some(stored) => return Err(Refusal::PurseConflict(Box::new(stored))),
            None => {
                rules.check_lifetime(&self.terms, now)?;
                self.terms.row(PurseMode::Push, Money::ZERO, now)
            }
        };
        let merge = merge_of(rows, &key, self.reserve_pub)?;
        let total = rules.deposit_coins(rows, &key, purse, merge.as_ref(), &self.coins, now)?;
        // Of a purse that exists, the fee of its time was asked for.
        if is_new && total.deposited < self.fee {
            return Err(Refusal::PurseFeeTooLow(self.fee));
        }
        store_contract(rows, &key, self.contract.as_ref())?;
        let purse = rows.get::<Purses>(&key).expect("it was written");
        Ok(PurseCreated { expiration: purse.expiration, deposited: total.deposited, is_new })
    }
}

/// Pays into a purse.
#[derive(Debug, Clone)]
pub struct PurseDeposit {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
}

/// Coins are in a purse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseDeposited {
    /// The purse.
    pub purse: PurseRow,
    /// Its contents, less deposit fees.
    pub total: Money,
    /// The reserve that got its target now.
    pub credited: Option<ReservePub>,
}

impl Command<ExchangeRules> for PurseDeposit {
    type Answer = PurseDeposited;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
        self.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        self.reserve_pub.iter().for_each(|reserve_pub| rules.plan_merge_kyc(reserve_pub, plan));
        plan_purse(self.purse_pub, plan);
        if let Some(reserve_pub) = self.reserve_pub {
            plan_reserve(reserve_pub, plan);
        }
        plan_coins(self.purse_pub, &self.coins, plan);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Self::Answer> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?.clone();
        let merge = merge_of(rows, &key, self.reserve_pub)?;
        let total = rules.deposit_coins(rows, &key, purse, merge.as_ref(), &self.coins, now)?;
        let purse = rows.get::<Purses>(&key).expect("it was found").clone();
        Ok(PurseDeposited { purse, total: total.balance, credited: total.credited })
    }
}

/// Merges a full purse into a reserve.
#[derive(Debug, Clone)]
pub struct PurseMerge {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
}

/// A purse is merged and paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseMerged {
    /// The purse.
    pub purse: PurseRow,
    /// Whether it was merged now.
    pub is_new: bool,
}

impl Command<ExchangeRules> for PurseMerge {
    type Answer = PurseMerged;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        visit(self.reserve_pub.as_bytes());
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        rules.plan_merge_kyc(&self.reserve_pub, plan);
        plan_purse(self.purse_pub, plan);
        plan_reserve(self.reserve_pub, plan);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<PurseMerged> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let mut purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?.clone();
        let stored = rows.get::<PurseMerges>(&key).cloned();
        let is_same = stored.as_ref().is_some_and(|stored| {
            stored.merge_sig == self.merge.merge_sig && stored.reserve_pub == self.merge.reserve_pub
        });
        let is_late = purse.expiration <= now;
        if purse.state == PurseState::Open && !is_late && purse.balance < purse.target {
            return Err(Refusal::PurseNotFull);
        }
        match (&stored, purse.state) {
            (Some(stored), _) if !is_same => {
                return Err(Refusal::PurseMergeConflict(Box::new(stored.clone())));
            }
            (_, PurseState::Paid) => return Ok(PurseMerged { purse, is_new: false }),
            (_, PurseState::Deleted) => return Err(Refusal::PurseDeleted),
            (_, PurseState::Expired) => return Err(Refusal::PurseExpired),
            (_, PurseState::Open) if is_late => return Err(Refusal::PurseExpired),
            (_, PurseState::Open) => {}
        }
        rules.require_merge_kyc(rows, &self.reserve_pub, purse.target, now)?;
        // A purse for nothing may have been merged by its reserve and be full without a deposit.
        if stored.is_none() {
            rows.insert::<PurseMerges>(&key, self.merge.clone());
        }
        rules.pay_reserve(rows, &key, &mut purse, &self.merge, now)?;
        rows.update::<Purses>(&key, purse.clone());
        Ok(PurseMerged { purse, is_new: true })
    }
}

/// Creates a purse that is merged into a reserve in advance.
#[derive(Debug, Clone)]
pub struct ReservePurse {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The most that the reserve pays for a new purse; none if the purse uses the reserve's quota.
    pub offered: Option<Money>,
    /// The fee for a new purse.
    pub fee: Money,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
    /// The contract for its payer.
    pub contract: Option<Contract>,
}

impl Command<ExchangeRules> for ReservePurse {
    type Answer = PurseCreated;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        visit(self.reserve_pub.as_bytes());
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        rules.plan_merge_kyc(&self.reserve_pub, plan);
        plan_purse(self.purse_pub, plan);
        plan_reserve(self.reserve_pub, plan);
        plan.row::<Contracts>(PurseKey { purse_pub: self.purse_pub });
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<PurseCreated> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let reserve_key = ReserveKey { reserve_pub: self.reserve_pub };
        if let Some(stored) = rows.get::<Purses>(&key).cloned() {
            let is_same = self.terms.are_those_of(&stored);
            let Some(merge) = rows.get::<PurseMerges>(&key).filter(|_| is_same) else {
                return Err(Refusal::PurseConflict(Box::new(stored)));
            };
            if merge.merge_sig != self.merge.merge_sig || merge.reserve_pub != self.reserve_pub {
                return Err(Refusal::PurseMergeConflict(Box::new(merge.clone())));
            }
            refuse_refunded(&stored)?;
            rows.depend_on::<Purses>(&key);
            store_contract(rows, &key, self.contract.as_ref())?;
            let (expiration, deposited) = (stored.expiration, Money::ZERO);
            return Ok(PurseCreated { expiration, deposited, is_new: false });
        }
        rules.check_lifetime(&self.terms, now)?;
        if self.offered.is_some_and(|offered| offered < self.fee) {
            return Err(Refusal::PurseFeeTooLow(self.fee));
        }
        let (amount, until) = (self.terms.target, self.terms.expiration);
        rules.require_merge_kyc(rows, &self.reserve_pub, amount, now)?;
        let hold = KycHold { purse_pub: self.purse_pub, amount, until };
        rules.hold_merge_kyc(rows, &self.reserve_pub, hold, now)?;
        let (mode, fee) = match self.offered {
            None => (PurseMode::Quota, Money::ZERO),
            Some(_) => (PurseMode::Fee, self.fee),
        };
        let reserve = rows.get::<Reserves>(&reserve_key).cloned();
        match (mode, reserve) {
            (PurseMode::Fee, None) if fee.is_zero() => {
                let row = ReserveRow {
                    balance: Money::ZERO,
                    expiration: now.saturating_add(rules.config.idle_reserve_expiration),
                    gc: now.saturating_add(rules.config.legal_reserve_expiration),
                    origin: None,
                };
                rows.insert::<Reserves>(&reserve_key, row);
            }
            (_, None) => return Err(Refusal::ReserveUnknown),
            (PurseMode::Fee, Some(reserve)) => {
                let balance = reserve.balance.checked_sub(fee).map_err(|_| Refusal::PurseUnaffordable)?;
                if !fee.is_zero() {
                    rows.update::<Reserves>(&reserve_key, ReserveRow { balance, ..reserve });
                }
            }
            (_, Some(_)) => {
                let account = rows.get::<ReserveAccounts>(&reserve_key).cloned();
                let account = account.filter(|account| account.purses_active < account.purses_allowed);
                let account = account.ok_or(Refusal::PurseUnaffordable)?;
                let purses_active = account.purses_active + 1;
                rows.update::<ReserveAccounts>(&reserve_key, ReserveAccountRow { purses_active, ..account });
            }
        }
        rows.insert::<Purses>(&key, self.terms.row(mode, fee, now));
        rows.insert::<PurseMerges>(&key, self.merge.clone());
        store_contract(rows, &key, self.contract.as_ref())?;
        let (expiration, deposited) = (self.terms.expiration, Money::ZERO);
        Ok(PurseCreated { expiration, deposited, is_new: true })
    }
}

/// Deletes an open purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseDelete {
    /// The purse.
    pub purse_pub: PursePub,
    /// The purse's signature, verified.
    pub purse_sig: EddsaSignature,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// A purse is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseDeleted;

impl Command<ExchangeRules> for PurseDelete {
    type Answer = PurseDeleted;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().for_each(|coin_pub| visit(coin_pub.as_bytes()));
        self.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        self.reserve_pub.iter().for_each(|reserve_pub| rules.plan_merge_kyc(reserve_pub, plan));
        plan_refund(self.purse_pub, self.reserve_pub, &self.coins, plan);
        plan.row::<Contracts>(PurseKey { purse_pub: self.purse_pub });
        plan.row::<PurseDeletions>(PurseKey { purse_pub: self.purse_pub });
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<PurseDeleted> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?;
        if purse.state != PurseState::Open {
            return Err(Refusal::PurseDecided);
        }
        rules.refund_purse(rows, &key, self.reserve_pub, &self.coins, PurseState::Deleted, now)?;
        if let Some(reserve_pub) = &self.reserve_pub {
            rules.settle_merge_kyc(rows, reserve_pub, self.purse_pub, None, now);
        }
        if rows.get::<Contracts>(&key).is_some() {
            rows.delete::<Contracts>(&key);
        }
        rows.insert::<PurseDeletions>(&key, PurseDeletionRow { purse_sig: self.purse_sig });
        Ok(PurseDeleted)
    }
}

/// Gives back what is in an expired purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseExpire {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// The answer to [`PurseExpire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurseExpired {
    /// It is unknown, decided or not expired. Nothing changed.
    NotDue,
    /// The coins have their money back.
    Expired,
}

impl Command<ExchangeRules> for PurseExpire {
    type Answer = PurseExpired;
    const IS_BACKGROUND: bool = true;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.purse_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().for_each(|coin_pub| visit(coin_pub.as_bytes()));
        self.reserve_pub.iter().for_each(|reserve_pub| visit(reserve_pub.as_bytes()));
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_refund(self.purse_pub, self.reserve_pub, &self.coins, plan);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<PurseExpired> {
        let key = PurseKey { purse_pub: self.purse_pub };
        let is_due = rows
            .get::<Purses>(&key)
            .is_some_and(|purse| purse.state == PurseState::Open && purse.expiration <= now);
        if !is_due {
            return Ok(PurseExpired::NotDue);
        }
        rules.refund_purse(rows, &key, self.reserve_pub, &self.coins, PurseState::Expired, now)?;
        Ok(PurseExpired::Expired)
    }
}

fn plan_purse(purse_pub: PursePub, plan: &mut Plan) {
    plan.row::<Purses>(PurseKey { purse_pub });
    plan.row::<PurseMerges>(PurseKey { purse_pub });
}

fn plan_reserve(reserve_pub: ReservePub, plan: &mut Plan) {
    plan.row::<Reserves>(ReserveKey { reserve_pub });
    plan.row::<ReserveAccounts>(ReserveKey { reserve_pub });
}

fn plan_coins(purse_pub: PursePub, coins: &[PurseCoin], plan: &mut Plan) {
    for coin in coins {
        let coin_pub = coin.coin.coin_pub;
        plan_revocation(coin.coin.denom, plan);
        plan.row::<Coins>(CoinKey { coin_pub });
        plan.row::<PurseDeposits>(PurseDepositKey { purse_pub, coin_pub });
    }
}

fn plan_refund(purse_pub: PursePub, reserve_pub: Option<ReservePub>, coins: &[CoinPub], plan: &mut Plan) {
    plan_purse(purse_pub, plan);
    if let Some(reserve_pub) = reserve_pub {
        plan.row::<ReserveAccounts>(ReserveKey { reserve_pub });
    }
    for coin_pub in coins {
        plan.row::<Coins>(CoinKey { coin_pub: *coin_pub });
        plan.row::<PurseDeposits>(PurseDepositKey { purse_pub, coin_pub: *coin_pub });
    }
}

/// The merge of a purse. The submitter must have named its reserve.
fn merge_of(rows: &WorkingSet, key: &PurseKey, named: Option<ReservePub>) -> Result<Option<PurseMergeRow>> {
    let merge = rows.get::<PurseMerges>(key).cloned();
    match &merge {
        Some(merge) if named != Some(merge.reserve_pub) => Err(Refusal::PurseChanged),
        _ => Ok(merge),
    }
}

/// Stores a purse's contract. A purse has one.
fn store_contract(rows: &mut WorkingSet, key: &PurseKey, contract: Option<&Contract>) -> Result<()> {
    let Some(contract) = contract else { return Ok(()) };
    match rows.get::<Contracts>(key) {
        Some(stored)
            if stored.contract_pub == contract.contract_pub && stored.econtract == contract.econtract =>
        {
            Ok(())
        }
        Some(stored) => Err(Refusal::ContractConflict(Box::new(stored.clone()))),
        None => {
            rows.insert::<Contracts>(key, contract.clone());
            Ok(())
        }
    }
}

/// Refuses a purse that has refunded its coins: nothing about its deposits may be confirmed any more.
fn refuse_refunded(purse: &PurseRow) -> Result<()> {
    match purse.state {
        PurseState::Open | PurseState::Paid => Ok(()),
        PurseState::Expired => Err(Refusal::PurseExpired),
        PurseState::Deleted => Err(Refusal::PurseDeleted),
    }
}

/// Frees the slot of a decided purse, if it used one.
fn release_slot(rows: &mut WorkingSet, purse: &PurseRow, merge: Option<&PurseMergeRow>) {
    if purse.mode != PurseMode::Quota {
        return;
    }
    let merge = merge.expect("a purse from a quota was merged when it was created");
    let key = ReserveKey { reserve_pub: merge.reserve_pub };
    let account = rows.get::<ReserveAccounts>(&key).expect("a reserve with a quota has a row").clone();
    let active = account.purses_active.checked_sub(1).expect("the purse was counted");
    rows.update::<ReserveAccounts>(&key, ReserveAccountRow { purses_active: active, ..account });
}

impl ExchangeRules {
    /// Refuses a new purse that has expired, or would stay open for too long.
    fn check_lifetime(&self, terms: &PurseTerms, now: Timestamp) -> Result<()> {
        let longest = self.config.purse_lifetime_max;
        if terms.expiration <= now {
            return Err(Refusal::PurseTooLate);
        }
        if terms.expiration > now.saturating_add(longest) {
            return Err(Refusal::PurseLifeTooLong(longest));
        }
        Ok(())
    }

    /// Deposits coins into a purse, and decides it if it is merged and now full. Coins that it contains already
    /// have no effect. Writes the purse's row if it is new or anything changed.
    fn deposit_coins(
        &self,
        rows: &mut WorkingSet,
        key: &PurseKey,
        mut purse: PurseRow,
        merge: Option<&PurseMergeRow>,
        coins: &[PurseCoin],
        now: Timestamp,
    ) -> Result<Total> {
        refuse_refunded(&purse)?;
        let mut seen = HashMap::with_capacity(coins.len());
        let mut fresh = Vec::with_capacity(coins.len());
        // What the coins of the request add up to, including those that the purse contains already.
        let mut deposited = Money::ZERO;
        for (index, coin) in coins.iter().enumerate() {
            let terms = self.terms(coin.coin.denom, index)?;
            let net = less_fee(coin.amount, terms.fee_deposit, index)?;
            deposited = add(deposited, net)?;
            if *seen.entry(coin.coin.coin_pub).or_insert(coin) != coin {
                return Err(Refusal::CoinDuplicate { index });
            }
            let deposit_key = PurseDepositKey { purse_pub: key.purse_pub, coin_pub: coin.coin.coin_pub };
            let row = known_or_new(rows, &coin.coin, &terms, index)?;
            match rows.get::<PurseDeposits>(&deposit_key) {
                // Compare the amount too: a weak key's signature may be valid for two messages.
                Some(stored) if stored.coin_sig == coin.coin_sig && stored.amount == coin.amount => {}
                Some(stored) => {
                    let stored = stored.clone();
                    let (coin_pub, h_age) = (coin.coin.coin_pub, row.h_age);
                    return Err(Refusal::PurseDepositConflict { coin_pub, h_age, deposit: Box::new(stored) });
                }
                None if purse.state != PurseState::Open => return Err(Refusal::PurseDecided),
                None if purse.expiration <= now => return Err(Refusal::PurseExpired),
                None => {
                    pay(rows, &coin.coin, row, (&terms, coin.amount), index, now)?;
                    rows.insert::<PurseDeposits>(
                        &deposit_key,
                        PurseDepositRow {
                            denom: coin.coin.denom,
                            amount: coin.amount,
                            coin_sig: coin.coin_sig,
                            refunded: false,
                        },
                    );
                    fresh.push((coin.amount, net));
                }
            }
        }
        for (amount, net) in &fresh {
            purse.coins += 1;
            purse.contributed = add(purse.contributed, *amount)?;
            purse.balance = add(purse.balance, *net)?;
        }
        if purse.coins > PURSE_COINS_MAX {
            return Err(Refusal::PurseCoinsTooMany);
        }
        let mut credited = None;
        if purse.state == PurseState::Open
            && !fresh.is_empty()
            && let Some(merge) = merge
            && purse.balance >= purse.target
        {
            self.pay_reserve(rows, key, &mut purse, merge, now)?;
            credited = Some(merge.reserve_pub);
        }
        let balance = purse.balance;
        if fresh.is_empty() && rows.get::<Purses>(key).is_some() {
            // What is confirmed again must still be true.
            rows.depend_on::<Purses>(key);
        } else {
            rows.put::<Purses>(key, purse);
        }
        Ok(Total { balance, deposited, credited })
    }

    /// Decides a full purse: its reserve gets the target. The caller writes the purse's row.
    fn pay_reserve(
        &self,
        rows: &mut WorkingSet,
        key: &PurseKey,
        purse: &mut PurseRow,
        merge: &PurseMergeRow,
        now: Timestamp,
    ) -> Result<()> {
        assert!(purse.state == PurseState::Open, "a purse is decided once");
        assert!(purse.balance >= purse.target, "only a full purse pays");
        release_slot(rows, purse, Some(merge));
        (purse.state, purse.decided) = (PurseState::Paid, now);
        self.settle_merge_kyc(rows, &merge.reserve_pub, key.purse_pub, Some(purse.target), now);
        let until = now.saturating_add(self.config.legal_reserve_expiration);
        self.credit_reserve(rows, merge.reserve_pub, purse.target, until, None, now)
    }

    /// Decides an open purse against its reserve: each coin is refunded what it contributed, fee included.
    fn refund_purse(
        &self,
        rows: &mut WorkingSet,
        key: &PurseKey,
        reserve_pub: Option<ReservePub>,
        coins: &[CoinPub],
        state: PurseState,
        now: Timestamp,
    ) -> Result<()> {
        let purse = rows.get::<Purses>(key).expect("the caller found it").clone();
        assert!(purse.state == PurseState::Open, "a purse is decided once");
        let merge = merge_of(rows, key, reserve_pub)?;
        let mut given = Money::ZERO;
        for coin_pub in coins {
            let deposit_key = PurseDepositKey { purse_pub: key.purse_pub, coin_pub: *coin_pub };
            let deposit = rows.get::<PurseDeposits>(&deposit_key).ok_or(Refusal::PurseChanged)?.clone();
            // Named twice.
            if deposit.refunded {
                return Err(Refusal::PurseChanged);
            }
            let coin_key = CoinKey { coin_pub: *coin_pub };
            let coin = rows.get::<Coins>(&coin_key).expect("a deposited coin is known").clone();
            let terms = self.terms(deposit.denom, 0)?;
            let remaining = add(coin.remaining, deposit.amount)?;
            assert!(remaining <= terms.value, "a purse never fills a coin above its value");
            given = add(given, deposit.amount)?;
            rows.update::<Coins>(&coin_key, CoinRow { remaining, ..coin });
            rows.update::<PurseDeposits>(&deposit_key, PurseDepositRow { refunded: true, ..deposit });
        }
        if u32::try_from(coins.len()) != Ok(purse.coins) {
            return Err(Refusal::PurseChanged);
        }
        assert!(given == purse.contributed, "a purse refunds what was paid into it");
        release_slot(rows, &purse, merge.as_ref());
        rows.update::<Purses>(key, PurseRow { state, decided: now, ..purse });
        Ok(())
    }
}

/// The result of depositing coins.
struct Total {
    /// The purse's balance.
    balance: Money,
    /// The sum of the request's coins, less their deposit fees.
    deposited: Money,
    /// The reserve, if it got the target now.
    credited: Option<ReservePub>,
}
