//! Purses: payments between people.
//!
//! A purse is open until exactly one decision is made on it. Every command that deposits or decides changes
//! the purse's row, so that of two at the same time, one sees the other. Whoever submits a command names the
//! rows that only the store knows (the purse's reserve, its coins); if they have changed in between, the
//! command is refused with [`Refusal::PurseChanged`].

use std::collections::HashMap;

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinKey, CoinPub, CoinRow, Coins, ContractRow, Contracts, KycOperation, PurseDeletionRow, PurseDeletions,
    PurseDepositKey, PurseDepositRow, PurseDeposits, PurseKey, PurseMergeRow, PurseMerges, PurseMode,
    PursePub, PurseRow, PurseState, Purses, ReserveAccountRow, ReserveAccounts, ReserveKey, ReservePub,
    ReserveRow, Reserves,
};

use super::coins::{known_or_new, less_fee, pay};
use super::denoms::plan_revocation;
use super::{
    Contract, ExchangeRules, PurseCoin, PurseCreate, PurseCreated, PurseDelete, PurseDeleted, PurseDeposit,
    PurseDeposited, PurseExpire, PurseExpired, PurseMerge, PurseMerged, Refusal, ReservePurse, add,
};

/// How many coins a purse may contain, so that one commit can refund all of them.
pub const PURSE_COINS_MAX: u32 = 1_024;

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

fn plan_create(command: &PurseCreate, plan: &mut Plan) {
    plan_purse(command.purse_pub, plan);
    if let Some(reserve_pub) = command.reserve_pub {
        plan_reserve(reserve_pub, plan);
    }
    plan.row::<Contracts>(PurseKey { purse_pub: command.purse_pub });
    plan_coins(command.purse_pub, &command.coins, plan);
}

fn plan_deposit(command: &PurseDeposit, plan: &mut Plan) {
    plan_purse(command.purse_pub, plan);
    if let Some(reserve_pub) = command.reserve_pub {
        plan_reserve(reserve_pub, plan);
    }
    plan_coins(command.purse_pub, &command.coins, plan);
}

fn plan_merge(command: &PurseMerge, plan: &mut Plan) {
    plan_purse(command.purse_pub, plan);
    plan_reserve(command.reserve_pub, plan);
}

fn plan_reserve_purse(command: &ReservePurse, plan: &mut Plan) {
    plan_purse(command.purse_pub, plan);
    plan_reserve(command.reserve_pub, plan);
    plan.row::<Contracts>(PurseKey { purse_pub: command.purse_pub });
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

pub(super) fn plan_delete(command: &PurseDelete, plan: &mut Plan) {
    plan_refund(command.purse_pub, command.reserve_pub, &command.coins, plan);
    plan.row::<Contracts>(PurseKey { purse_pub: command.purse_pub });
    plan.row::<PurseDeletions>(PurseKey { purse_pub: command.purse_pub });
}

pub(super) fn plan_expire(command: &PurseExpire, plan: &mut Plan) {
    plan_refund(command.purse_pub, command.reserve_pub, &command.coins, plan);
}

/// The merge of a purse. The submitter must have named its reserve.
fn merge_of(
    rows: &WorkingSet,
    key: &PurseKey,
    named: Option<ReservePub>,
) -> Result<Option<PurseMergeRow>, Refusal> {
    let merge = rows.get::<PurseMerges>(key).cloned();
    match &merge {
        Some(merge) if named != Some(merge.reserve_pub) => Err(Refusal::PurseChanged),
        _ => Ok(merge),
    }
}

/// Stores a purse's contract. A purse has one.
fn store_contract(rows: &mut WorkingSet, key: &PurseKey, contract: Option<&Contract>) -> Result<(), Refusal> {
    let Some(contract) = contract else { return Ok(()) };
    match rows.get::<Contracts>(key) {
        Some(stored)
            if stored.contract_pub == contract.contract_pub && stored.econtract == contract.econtract =>
        {
            Ok(())
        }
        Some(stored) => Err(Refusal::ContractConflict(Box::new(stored.clone()))),
        None => {
            rows.insert::<Contracts>(
                key,
                ContractRow {
                    contract_pub: contract.contract_pub,
                    econtract: contract.econtract.clone(),
                    econtract_sig: contract.econtract_sig,
                },
            );
            Ok(())
        }
    }
}

/// Refuses a purse that has refunded its coins: nothing about its deposits may be confirmed any more.
fn refuse_refunded(purse: &PurseRow) -> Result<(), Refusal> {
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

/// Plans of commands that may merge a purse, which KYC rules may limit.
impl ExchangeRules {
    pub(super) fn plan_purse_create(&self, command: &PurseCreate, plan: &mut Plan) {
        command.reserve_pub.iter().for_each(|reserve_pub| self.plan_merge_kyc(reserve_pub, plan));
        plan_create(command, plan);
    }

    pub(super) fn plan_purse_deposit(&self, command: &PurseDeposit, plan: &mut Plan) {
        command.reserve_pub.iter().for_each(|reserve_pub| self.plan_merge_kyc(reserve_pub, plan));
        plan_deposit(command, plan);
    }

    pub(super) fn plan_purse_merge(&self, command: &PurseMerge, plan: &mut Plan) {
        self.plan_merge_kyc(&command.reserve_pub, plan);
        plan_merge(command, plan);
    }

    pub(super) fn plan_reserve_purse(&self, command: &ReservePurse, plan: &mut Plan) {
        self.plan_merge_kyc(&command.reserve_pub, plan);
        plan_reserve_purse(command, plan);
    }

    /// Refuses to merge this amount into a reserve whose owner must be identified first.
    fn require_merge_kyc(
        &self,
        rows: &WorkingSet,
        reserve_pub: &ReservePub,
        amount: Money,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if !self.config.kyc.limits(KycOperation::Merge) {
            return Ok(());
        }
        let account = self.reserve_account(reserve_pub);
        self.require_kyc(rows, KycOperation::Merge, account, amount, now)
    }
}

impl ExchangeRules {
    pub(super) fn purse_create(
        &self,
        rows: &mut WorkingSet,
        command: &PurseCreate,
        now: Timestamp,
    ) -> Result<PurseCreated, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let stored = rows.get::<Purses>(&key).cloned();
        let is_new = stored.is_none();
        let purse = match stored {
            Some(stored) if command.terms.are_those_of(&stored) => stored,
            Some(stored) => return Err(Refusal::PurseConflict(Box::new(stored))),
            None => {
                if command.terms.expiration <= now {
                    return Err(Refusal::PurseExpired);
                }
                command.terms.row(PurseMode::Push, Money::ZERO, now)
            }
        };
        let merge = merge_of(rows, &key, command.reserve_pub)?;
        let total = self.deposit_coins(rows, &key, purse, merge.as_ref(), &command.coins, now)?;
        store_contract(rows, &key, command.contract.as_ref())?;
        let purse = rows.get::<Purses>(&key).expect("it was written");
        Ok(PurseCreated { expiration: purse.expiration, deposited: total.deposited, is_new })
    }

    pub(super) fn purse_deposit(
        &self,
        rows: &mut WorkingSet,
        command: &PurseDeposit,
        now: Timestamp,
    ) -> Result<PurseDeposited, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?.clone();
        let merge = merge_of(rows, &key, command.reserve_pub)?;
        let total = self.deposit_coins(rows, &key, purse, merge.as_ref(), &command.coins, now)?;
        let purse = rows.get::<Purses>(&key).expect("it was found").clone();
        Ok(PurseDeposited { purse, total: total.balance, credited: total.credited })
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
    ) -> Result<Total, Refusal> {
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
            self.pay_reserve(rows, &mut purse, merge, now)?;
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
        purse: &mut PurseRow,
        merge: &PurseMergeRow,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        assert!(purse.state == PurseState::Open, "a purse is decided once");
        assert!(purse.balance >= purse.target, "only a full purse pays");
        release_slot(rows, purse, Some(merge));
        (purse.state, purse.decided) = (PurseState::Paid, now);
        if self.config.kyc.limits(KycOperation::Merge) {
            let account = self.reserve_account(&merge.reserve_pub);
            self.count_kyc(rows, KycOperation::Merge, account, purse.target, now);
        }
        let until = now.saturating_add(self.config.legal_reserve_expiration);
        self.credit_reserve(rows, merge.reserve_pub, purse.target, until, None, now)
    }

    pub(super) fn purse_merge(
        &self,
        rows: &mut WorkingSet,
        command: &PurseMerge,
        now: Timestamp,
    ) -> Result<PurseMerged, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let mut purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?.clone();
        let stored = rows.get::<PurseMerges>(&key).cloned();
        let is_same = stored.as_ref().is_some_and(|stored| {
            stored.merge_sig == command.merge.merge_sig && stored.reserve_pub == command.merge.reserve_pub
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
        self.require_merge_kyc(rows, &command.reserve_pub, purse.target, now)?;
        // A purse for nothing may have been merged by its reserve and be full without a deposit.
        if stored.is_none() {
            rows.insert::<PurseMerges>(&key, command.merge.clone());
        }
        self.pay_reserve(rows, &mut purse, &command.merge, now)?;
        rows.update::<Purses>(&key, purse.clone());
        Ok(PurseMerged { purse, is_new: true })
    }

    pub(super) fn reserve_purse(
        &self,
        rows: &mut WorkingSet,
        command: &ReservePurse,
        now: Timestamp,
    ) -> Result<PurseCreated, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let reserve_key = ReserveKey { reserve_pub: command.reserve_pub };
        if let Some(stored) = rows.get::<Purses>(&key).cloned() {
            let is_same = command.terms.are_those_of(&stored);
            let Some(merge) = rows.get::<PurseMerges>(&key).filter(|_| is_same) else {
                return Err(Refusal::PurseConflict(Box::new(stored)));
            };
            if merge.merge_sig != command.merge.merge_sig || merge.reserve_pub != command.reserve_pub {
                return Err(Refusal::PurseMergeConflict(Box::new(merge.clone())));
            }
            refuse_refunded(&stored)?;
            rows.depend_on::<Purses>(&key);
            store_contract(rows, &key, command.contract.as_ref())?;
            let (expiration, deposited) = (stored.expiration, Money::ZERO);
            return Ok(PurseCreated { expiration, deposited, is_new: false });
        }
        if command.terms.expiration <= now {
            return Err(Refusal::PurseExpired);
        }
        self.require_merge_kyc(rows, &command.reserve_pub, command.terms.target, now)?;
        let (mode, fee) = match command.fee {
            None => (PurseMode::Quota, Money::ZERO),
            Some(fee) => (PurseMode::Fee, fee),
        };
        let reserve = rows.get::<Reserves>(&reserve_key).cloned();
        match (mode, reserve) {
            (PurseMode::Fee, None) if fee.is_zero() => {
                let row = ReserveRow {
                    balance: Money::ZERO,
                    expiration: now.saturating_add(self.config.idle_reserve_expiration),
                    gc: now.saturating_add(self.config.legal_reserve_expiration),
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
        rows.insert::<Purses>(&key, command.terms.row(mode, fee, now));
        rows.insert::<PurseMerges>(&key, command.merge.clone());
        store_contract(rows, &key, command.contract.as_ref())?;
        let (expiration, deposited) = (command.terms.expiration, Money::ZERO);
        Ok(PurseCreated { expiration, deposited, is_new: true })
    }

    pub(super) fn purse_delete(
        &self,
        rows: &mut WorkingSet,
        command: &PurseDelete,
        now: Timestamp,
    ) -> Result<PurseDeleted, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let purse = rows.get::<Purses>(&key).ok_or(Refusal::PurseUnknown)?;
        if purse.state != PurseState::Open {
            return Err(Refusal::PurseDecided);
        }
        self.refund_purse(rows, &key, command.reserve_pub, &command.coins, PurseState::Deleted, now)?;
        if rows.get::<Contracts>(&key).is_some() {
            rows.delete::<Contracts>(&key);
        }
        rows.insert::<PurseDeletions>(&key, PurseDeletionRow { purse_sig: command.purse_sig });
        Ok(PurseDeleted)
    }

    pub(super) fn purse_expire(
        &self,
        rows: &mut WorkingSet,
        command: &PurseExpire,
        now: Timestamp,
    ) -> Result<PurseExpired, Refusal> {
        let key = PurseKey { purse_pub: command.purse_pub };
        let is_due = rows
            .get::<Purses>(&key)
            .is_some_and(|purse| purse.state == PurseState::Open && purse.expiration <= now);
        if !is_due {
            return Ok(PurseExpired::NotDue);
        }
        self.refund_purse(rows, &key, command.reserve_pub, &command.coins, PurseState::Expired, now)?;
        Ok(PurseExpired::Expired)
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
    ) -> Result<(), Refusal> {
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
    /// What the request's coins add up to, deposit fees taken off.
    deposited: Money,
    /// The reserve, if it got the target now.
    credited: Option<ReservePub>,
}
