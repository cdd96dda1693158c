//! Purses and accounts in the naive exchange. What a purse holds, and how many purses use a quota, is counted
//! whenever it is needed.

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, ShortHash};
use batzen_exchange::rules::{
    CloseRequested, CloseReserve, Closed, Contract, PurseCoin, PurseCreate, PurseCreated, PurseDelete,
    PurseDeleted, PurseDeposit, PurseDeposited, PurseExpire, PurseExpired, PurseMerge, PurseMerged,
    PurseTerms, Refusal, RequestClose, ReserveOpen, ReserveOpened, ReservePurse,
};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    ContractRow, DenomSerial, KycOperation, PurseDepositRow, PurseMergeRow, PurseMode, PurseRow, PurseState,
};

use super::{Model, Refused, Shortage, Step, Units, money, short_reserve, u};

#[derive(Clone)]
pub(super) struct Purse {
    terms: PurseTerms,
    mode: PurseMode,
    fee: Units,
    created: Timestamp,
    coins: BTreeMap<EddsaPublicKey, (u32, Units, EddsaSignature)>,
    merge: Option<PurseMergeRow>,
    decision: Option<(PurseState, Timestamp)>,
    contract: Option<Contract>,
}

impl Purse {
    pub(super) fn is_open(&self) -> bool {
        self.decision.is_none()
    }

    pub(super) fn contributed(&self) -> Units {
        self.coins.values().map(|(_, amount, _)| amount).sum()
    }

    fn has(&self, terms: &PurseTerms) -> bool {
        let of = |terms: &PurseTerms| (terms.min_age, terms.target, terms.h_contract_terms, terms.merge_pub);
        of(&self.terms) == of(terms)
    }

    fn refunded(&self) -> Result<(), Refusal> {
        match self.decision {
            Some((PurseState::Expired, _)) => Err(Refusal::PurseExpired),
            Some((PurseState::Deleted, _)) => Err(Refusal::PurseDeleted),
            _ => Ok(()),
        }
    }

    fn keep(&mut self, contract: Option<&Contract>) -> Result<(), Refusal> {
        let Some(contract) = contract else { return Ok(()) };
        let kept = self.contract.get_or_insert_with(|| contract.clone());
        if (kept.contract_pub, &kept.econtract) == (contract.contract_pub, &contract.econtract) {
            return Ok(());
        }
        Err(Refusal::ContractConflict(Box::new(ContractRow {
            contract_pub: kept.contract_pub,
            econtract: kept.econtract.clone(),
            econtract_sig: kept.econtract_sig,
        })))
    }
}

impl Model {
    fn balance(&self, purse: &Purse) -> Units {
        let fee = |denom: &u32| u(self.denoms[denom].fee_deposit);
        purse.coins.values().map(|(denom, amount, _)| amount - fee(denom)).sum()
    }

    fn row(&self, purse: &Purse) -> PurseRow {
        let (state, decided) = purse.decision.unwrap_or((PurseState::Open, Timestamp::ZERO));
        PurseRow {
            merge_pub: purse.terms.merge_pub,
            h_contract_terms: purse.terms.h_contract_terms,
            min_age: purse.terms.min_age,
            mode: purse.mode,
            target: purse.terms.target,
            purse_fee: money(purse.fee),
            created: purse.created,
            expiration: purse.terms.expiration,
            purse_sig: purse.terms.purse_sig,
            coins: u32::try_from(purse.coins.len()).unwrap(),
            contributed: money(purse.contributed()),
            balance: money(self.balance(purse)),
            state,
            decided,
        }
    }

    pub(super) fn create(&mut self, command: &PurseCreate, now: Timestamp) -> Step<PurseCreated> {
        let stored = self.purses.get(&command.purse_pub).cloned();
        let is_new = stored.is_none();
        let mut purse = match stored {
            Some(purse) if !purse.has(&command.terms) => {
                return Err(Refusal::PurseConflict(Box::new(self.row(&purse))).into());
            }
            Some(purse) => purse,
            None if command.terms.expiration <= now => return Err(Refusal::PurseTooLate.into()),
            None => Purse {
                terms: command.terms.clone(),
                mode: PurseMode::Push,
                fee: 0,
                created: now,
                coins: BTreeMap::new(),
                merge: None,
                decision: None,
                contract: None,
            },
        };
        let (deposited, _) = self.pay_in(&mut purse, command.reserve_pub, &command.coins, now)?;
        if is_new && deposited < u(command.fee) {
            return Err(Refusal::PurseFeeTooLow(command.fee).into());
        }
        purse.keep(command.contract.as_ref())?;
        let expiration = purse.terms.expiration;
        self.purses.insert(command.purse_pub, purse);
        Ok(PurseCreated { expiration, deposited: money(deposited), is_new })
    }

    pub(super) fn deposit_into_purse(
        &mut self,
        command: &PurseDeposit,
        now: Timestamp,
    ) -> Step<PurseDeposited> {
        let mut purse = self.purses.get(&command.purse_pub).ok_or(Refusal::PurseUnknown)?.clone();
        let (_, credited) = self.pay_in(&mut purse, command.reserve_pub, &command.coins, now)?;
        let row = self.row(&purse);
        self.purses.insert(command.purse_pub, purse);
        Ok(PurseDeposited { total: row.balance, purse: row, credited })
    }

    /// Returns what the coins add up to, and the reserve that got its money.
    fn pay_in(
        &mut self,
        purse: &mut Purse,
        named: Option<EddsaPublicKey>,
        coins: &[PurseCoin],
        now: Timestamp,
    ) -> Step<(Units, Option<EddsaPublicKey>)> {
        if purse.merge.as_ref().is_some_and(|merge| named != Some(merge.reserve_pub)) {
            return Err(Refusal::PurseChanged.into());
        }
        purse.refunded()?;
        let (mut total, mut changed) = (0, false);
        for (index, coin) in coins.iter().enumerate() {
            let (coin_pub, amount) = (coin.coin.coin_pub, u(coin.amount));
            let terms = self.terms(coin.coin.denom.0, index)?;
            if amount < u(terms.fee_deposit) {
                return Err(Refusal::ContributionBelowFee { index }.into());
            }
            total += amount - u(terms.fee_deposit);
            if coins[..index].iter().any(|other| other.coin.coin_pub == coin_pub && other != coin) {
                return Err(Refusal::CoinDuplicate { index }.into());
            }
            self.know(&coin.coin, index)?;
            match purse.coins.get(&coin_pub) {
                Some((_, before, sig)) if (*before, *sig) == (amount, coin.coin_sig) => continue,
                Some((denom, before, coin_sig)) => {
                    let deposit = Box::new(PurseDepositRow {
                        denom: DenomSerial(*denom),
                        amount: money(*before),
                        coin_sig: *coin_sig,
                        refunded: false,
                    });
                    let h_age = self.coins[&coin_pub].h_age;
                    return Err(Refusal::PurseDepositConflict { coin_pub, h_age, deposit }.into());
                }
                None if !purse.is_open() => return Err(Refusal::PurseDecided.into()),
                None if purse.terms.expiration <= now => return Err(Refusal::PurseExpired.into()),
                None => {}
            }
            self.pay_by_coin(coin, index, now)?;
            purse.coins.insert(coin_pub, (coin.coin.denom.0, amount, coin.coin_sig));
            changed = true;
        }
        let reserve_pub = purse.merge.as_ref().map(|merge| merge.reserve_pub);
        if changed && reserve_pub.is_some() && self.balance(purse) >= u(purse.terms.target) {
            self.pay_out(purse, now);
            return Ok((total, reserve_pub));
        }
        Ok((total, None))
    }

    fn pay_by_coin(&mut self, coin: &PurseCoin, index: usize, now: Timestamp) -> Step<()> {
        let (denom, amount) = (coin.coin.denom.0, u(coin.amount));
        let terms = self.terms(denom, index)?;
        self.window(denom, &terms, terms.expire_deposit, now, index)?;
        if amount > u(terms.value) {
            return Err(Refusal::ContributionAboveValue { index }.into());
        }
        if amount == 0 || amount < u(terms.fee_deposit) {
            return Err(Refusal::ContributionBelowFee { index }.into());
        }
        self.spend(coin.coin.coin_pub, amount, index)
    }

    fn pay_out(&mut self, purse: &mut Purse, now: Timestamp) {
        let target = u(purse.terms.target);
        purse.decision = Some((PurseState::Paid, now));
        self.income += purse.contributed() - target;
        let account = self.reserve_account(&purse.merge.as_ref().unwrap().reserve_pub);
        self.count(KycOperation::Merge, account, target, now);
        let until = now.saturating_add(self.config.legal_reserve_expiration);
        self.fill(purse.merge.as_ref().unwrap().reserve_pub, target, until, now);
    }

    pub(super) fn merge(&mut self, command: &PurseMerge, now: Timestamp) -> Step<PurseMerged> {
        let mut purse = self.purses.get(&command.purse_pub).ok_or(Refusal::PurseUnknown)?.clone();
        let late = purse.terms.expiration <= now;
        let full = self.balance(&purse) >= u(purse.terms.target);
        if purse.is_open() && !late && !full {
            return Err(Refusal::PurseNotFull.into());
        }
        if let Some(merge) = &purse.merge {
            let of = |merge: &PurseMergeRow| (merge.merge_sig, merge.reserve_pub);
            if of(merge) != of(&command.merge) {
                return Err(Refusal::PurseMergeConflict(Box::new(merge.clone())).into());
            }
        }
        purse.refunded()?;
        if !purse.is_open() {
            return Ok(PurseMerged { purse: self.row(&purse), is_new: false });
        }
        if late {
            return Err(Refusal::PurseExpired.into());
        }
        self.limit_merge(&command.reserve_pub, u(purse.terms.target), now)?;
        purse.merge.get_or_insert_with(|| command.merge.clone());
        self.pay_out(&mut purse, now);
        let row = self.row(&purse);
        self.purses.insert(command.purse_pub, purse);
        Ok(PurseMerged { purse: row, is_new: true })
    }

    /// The sum of the purses that a reserve has asked for, and that may still be paid.
    pub(super) fn asked_for(&self, account: &ShortHash, now: Timestamp) -> Units {
        let is_open = |purse: &&Purse| {
            let merge = purse.merge.as_ref();
            let is_its = merge.is_some_and(|merge| self.reserve_account(&merge.reserve_pub) == *account);
            is_its && purse.is_open() && purse.terms.expiration > now
        };
        self.purses.values().filter(is_open).map(|purse| u(purse.terms.target)).sum()
    }

    /// A purse that is merged when it is full counts when that happens, and one that was asked for as long as it is
    /// open.
    fn limit_merge(&self, reserve_pub: &EddsaPublicKey, target: Units, now: Timestamp) -> Step<()> {
        let account = self.reserve_account(reserve_pub);
        match self.missing(KycOperation::Merge, account, target, now) {
            Some(checks) => Err(Refusal::KycRequired { h_payto: account, checks }.into()),
            None => Ok(()),
        }
    }

    pub(super) fn ask(&mut self, command: &ReservePurse, now: Timestamp) -> Step<PurseCreated> {
        if let Some(mut purse) = self.purses.get(&command.purse_pub).cloned() {
            let (Some(merge), true) = (&purse.merge, purse.has(&command.terms)) else {
                return Err(Refusal::PurseConflict(Box::new(self.row(&purse))).into());
            };
            if (merge.merge_sig, merge.reserve_pub) != (command.merge.merge_sig, command.reserve_pub) {
                return Err(Refusal::PurseMergeConflict(Box::new(merge.clone())).into());
            }
            purse.refunded()?;
            purse.keep(command.contract.as_ref())?;
            let expiration = purse.terms.expiration;
            self.purses.insert(command.purse_pub, purse);
            return Ok(PurseCreated { expiration, deposited: Money::ZERO, is_new: false });
        }
        if command.terms.expiration <= now {
            return Err(Refusal::PurseTooLate.into());
        }
        if command.offered.is_some_and(|offered| offered < command.fee) {
            return Err(Refusal::PurseFeeTooLow(command.fee).into());
        }
        self.limit_merge(&command.reserve_pub, u(command.terms.target), now)?;
        let fee = command.offered.map_or(0, |_| u(command.fee));
        let known = self.reserves.contains_key(&command.reserve_pub);
        match command.offered {
            Some(_) if !known && fee == 0 => {
                let idle = now.saturating_add(self.config.idle_reserve_expiration);
                self.fill(command.reserve_pub, 0, idle, now);
            }
            _ if !known => return Err(Refusal::ReserveUnknown.into()),
            Some(_) => {
                let reserve = self.reserves.get_mut(&command.reserve_pub).unwrap();
                if reserve.balance() < fee {
                    return Err(Refusal::PurseUnaffordable.into());
                }
                reserve.log.push(-fee);
                self.income += fee;
            }
            None => {
                let uses_quota = |purse: &&Purse| {
                    let of = purse.merge.as_ref().map(|merge| merge.reserve_pub);
                    purse.is_open() && purse.mode == PurseMode::Quota && of == Some(command.reserve_pub)
                };
                let active = self.purses.values().filter(uses_quota).count();
                let allowed = self.quotas.get(&command.reserve_pub).copied().unwrap_or(0);
                if active >= allowed as usize {
                    return Err(Refusal::PurseUnaffordable.into());
                }
            }
        }
        let purse = Purse {
            terms: command.terms.clone(),
            mode: if command.offered.is_some() { PurseMode::Fee } else { PurseMode::Quota },
            fee,
            created: now,
            coins: BTreeMap::new(),
            merge: Some(command.merge.clone()),
            decision: None,
            contract: command.contract.clone(),
        };
        self.purses.insert(command.purse_pub, purse);
        Ok(PurseCreated { expiration: command.terms.expiration, deposited: Money::ZERO, is_new: true })
    }

    pub(super) fn delete(&mut self, command: &PurseDelete, now: Timestamp) -> Step<PurseDeleted> {
        let purse = self.purses.get(&command.purse_pub).ok_or(Refusal::PurseUnknown)?;
        if !purse.is_open() {
            return Err(Refusal::PurseDecided.into());
        }
        let named = (command.reserve_pub, &command.coins[..]);
        self.refund_purse(command.purse_pub, named, PurseState::Deleted, now)?;
        self.purses.get_mut(&command.purse_pub).unwrap().contract = None;
        Ok(PurseDeleted)
    }

    pub(super) fn expire(&mut self, command: &PurseExpire, now: Timestamp) -> Step<PurseExpired> {
        match self.purses.get(&command.purse_pub) {
            Some(purse) if purse.is_open() && purse.terms.expiration <= now => {}
            _ => return Ok(PurseExpired::NotDue),
        }
        let named = (command.reserve_pub, &command.coins[..]);
        self.refund_purse(command.purse_pub, named, PurseState::Expired, now)?;
        Ok(PurseExpired::Expired)
    }

    fn refund_purse(
        &mut self,
        purse_pub: EddsaPublicKey,
        (named, coins): (Option<EddsaPublicKey>, &[EddsaPublicKey]),
        state: PurseState,
        now: Timestamp,
    ) -> Step<()> {
        let purse = self.purses.get_mut(&purse_pub).unwrap();
        let mut coins = coins.to_vec();
        coins.sort_unstable();
        let is_told = purse.merge.as_ref().is_none_or(|merge| named == Some(merge.reserve_pub));
        if !is_told || !coins.iter().eq(purse.coins.keys()) {
            return Err(Refusal::PurseChanged.into());
        }
        purse.decision = Some((state, now));
        for (coin_pub, (_, amount, _)) in &purse.coins {
            self.coins.get_mut(coin_pub).unwrap().log.push(*amount);
        }
        Ok(())
    }

    pub(super) fn open(&mut self, command: &ReserveOpen, now: Timestamp) -> Step<ReserveOpened> {
        let reserve = self.reserves.get(&command.reserve_pub).ok_or(Refusal::ReserveUnknown)?;
        let key = (command.reserve_pub, command.request_time);
        if let Some(opened) = self.opens.get(&key) {
            return Ok(*opened);
        }
        let year = Duration::from_days(365);
        let (before, wanted) = (reserve.expiration, command.reserve_expiration);
        let balance = reserve.balance();
        let quota = self.config.default_purse_limit;
        let mut allowed = self.quotas.get(&command.reserve_pub).copied().unwrap_or(0);
        let mut expiration = before.max(command.request_time);
        let mut fees = 0;
        while expiration < wanted {
            expiration = expiration.saturating_add(year);
            fees += 1;
        }
        if fees > 0 {
            allowed = allowed.max(quota);
        }
        if allowed < command.purse_limit {
            (fees, allowed) = (0, allowed);
            let mut end = command.request_time;
            while end < wanted {
                end = end.saturating_add(year);
                fees += 1;
            }
            expiration = expiration.max(end);
            while allowed < command.purse_limit {
                allowed += quota;
                fees += 1;
            }
        }
        if fees == 0 {
            return Ok(ReserveOpened { expiration: before, cost: Money::ZERO });
        }
        let cost = u(command.account_fee) * fees;
        let mut paid = u(command.payment);
        for (index, coin) in command.coins.iter().enumerate() {
            let fee = u(self.terms(coin.coin.denom.0, index)?.fee_deposit);
            if u(coin.amount) < fee {
                return Err(Refusal::ContributionBelowFee { index }.into());
            }
            paid += u(coin.amount) - fee;
        }
        if paid < cost {
            return Err(Refusal::OpenTooLittle { cost: money(cost), expiration: before }.into());
        }
        let payment = u(command.payment);
        if balance < payment {
            let shortage = Shortage::Reserve(command.reserve_pub, payment);
            return Err(Refused(short_reserve(&command.reserve_pub, command.payment), Some(shortage)));
        }
        for (index, coin) in command.coins.iter().enumerate() {
            if command.coins[..index].iter().any(|other| other.coin.coin_pub == coin.coin.coin_pub) {
                return Err(Refusal::CoinDuplicate { index }.into());
            }
            self.know(&coin.coin, index)?;
            self.pay_by_coin(coin, index, now)?;
            self.income += u(coin.amount);
        }
        self.income += payment;
        let reserve = self.reserves.get_mut(&command.reserve_pub).unwrap();
        reserve.log.push(-payment);
        reserve.expiration = expiration;
        reserve.gc = reserve.gc.max(before.saturating_add(self.config.legal_reserve_expiration));
        self.quotas.insert(command.reserve_pub, allowed);
        let opened = ReserveOpened { expiration, cost: money(cost) };
        self.opens.insert(key, opened);
        Ok(opened)
    }

    pub(super) fn request_close(&mut self, command: &RequestClose, now: Timestamp) -> Step<CloseRequested> {
        let reserve = self.reserves.get(&command.reserve_pub).ok_or(Refusal::ReserveUnknown)?;
        let (balance, origin) = (reserve.balance(), reserve.origin);
        if command.method != self.method {
            return Err(Refusal::WireFeeMissing.into());
        }
        let (_, fee) = self.fee_at(command.request_time)?;
        let key = (command.reserve_pub, command.request_time);
        if let Some((before, ..)) = self.close_requests.get(&key) {
            return Ok(CloseRequested { wired: money((before - fee).max(0)) });
        }
        let target = command.requested.or(origin).ok_or(Refusal::CloseTargetUnknown)?;
        if target != command.h_payto {
            return Err(Refusal::TargetMismatch.into());
        }
        if balance > fee {
            if origin != Some(target) {
                self.limit(KycOperation::Close, target, balance, now)?;
            }
            self.targets.entry(command.h_payto).or_insert_with(|| command.payto_uri.clone());
            self.close_requests.insert(key, (balance, command.h_payto, false));
        }
        Ok(CloseRequested { wired: money((balance - fee).max(0)) })
    }

    /// Returns what the closing of a reserve is about: the most that is paid, and the time whose fee applies.
    pub(super) fn closing(
        &mut self,
        command: &CloseReserve,
        now: Timestamp,
    ) -> Step<Result<(Units, Timestamp), Closed>> {
        let Some(reserve) = self.reserves.get(&command.reserve_pub) else {
            return Ok(Err(Closed::NotDue));
        };
        let (balance, origin, expiration) = (reserve.balance(), reserve.origin, reserve.expiration);
        let is_target = |h_payto: ShortHash| {
            if h_payto == command.h_payto { Ok(()) } else { Err(Refusal::TargetMismatch) }
        };
        let Some(request_time) = command.request_time else {
            let Some(origin) = origin else { return Ok(Err(Closed::NotDue)) };
            if balance == 0 || now < expiration {
                return Ok(Err(Closed::NotDue));
            }
            is_target(origin)?;
            return Ok(Ok((balance, expiration)));
        };
        match self.close_requests.get_mut(&(command.reserve_pub, request_time)) {
            Some((most, h_payto, done)) if !*done => {
                is_target(*h_payto)?;
                *done = true;
                Ok(if balance == 0 { Err(Closed::Empty) } else { Ok((balance.min(*most), request_time)) })
            }
            _ => Ok(Err(Closed::NotDue)),
        }
    }
}
