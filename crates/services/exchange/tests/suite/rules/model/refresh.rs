//! The model's refreshes, recoups and aggregations.

use batzen_exchange::rules::{
    Aggregate, Aggregated, DenomProblem, Melt, Melted, PresentedCoin, Recoup, RecoupRefresh, RecoupRefreshed,
    Recouped, Refusal, Reveal, Revealed, Trigger,
};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{Cipher, DepositKey, KycOperation};

use super::{Model, Payment, Refresh, Sent, Step, money, u, unusable};

impl Model {
    pub(super) fn melt(&mut self, command: &Melt, now: Timestamp) -> Step<Melted> {
        let coin_pub = command.coin.coin_pub;
        if let Some(melt) = self.melts.get(&(coin_pub, command.rc)) {
            return Ok(Melted { noreveal_index: melt.index, repeated: true });
        }
        let denom = command.coin.denom.0;
        let terms = self.terms(denom, 0)?;
        if now < terms.start {
            return Err(unusable(0, denom, DenomProblem::Future));
        }
        if now > terms.expire_legal {
            return Err(unusable(0, denom, DenomProblem::Expired));
        }
        let expired = now > terms.expire_deposit;
        if expired || self.revoked.contains(&denom) {
            if !self.coins.contains_key(&coin_pub) {
                let problem = if expired { DenomProblem::Expired } else { DenomProblem::Revoked };
                return Err(unusable(0, denom, problem));
            }
            self.know(&command.coin, 0)?;
            if !self.coins[&coin_pub].zombie {
                return Err(if expired {
                    Refusal::MeltNoZombie.into()
                } else {
                    unusable(0, denom, DenomProblem::Revoked)
                });
            }
        }
        if u(command.amount) == 0 || command.amount < terms.fee_refresh {
            return Err(Refusal::MeltBelowFee.into());
        }
        self.know(&command.coin, 0)?;
        self.spend(coin_pub, u(command.amount), 0)?;
        if self.rcs.contains_key(&command.rc) {
            return Err(Refusal::RcTaken.into());
        }
        if let Some(rms) = command.rms {
            self.lock(true, rms, command.rc, 0)?;
        }
        self.rcs.insert(command.rc, coin_pub);
        self.melts.insert(
            (coin_pub, command.rc),
            Refresh { amount: u(command.amount), index: command.noreveal_index, fresh: None },
        );
        self.income += u(terms.fee_refresh);
        Ok(Melted { noreveal_index: command.noreveal_index, repeated: false })
    }

    pub(super) fn reveal(&mut self, command: &Reveal, now: Timestamp) -> Step<Revealed> {
        let key = (command.coin_pub, command.rc);
        let melt = self.melts.get(&key).ok_or(Refusal::MeltUnknown)?.clone();
        if let Some(fresh) = melt.fresh {
            let ev_sigs = fresh.iter().map(|coin| coin.ev_sig.clone()).collect();
            return Ok(Revealed { ev_sigs, repeated: true });
        }
        let melt_fee = u(self.denoms[&self.coins[&command.coin_pub].denom].fee_refresh);
        let (mut values, mut fees, mut cs) = (0, 0, false);
        for (index, coin) in command.fresh.iter().enumerate() {
            let terms = self.terms(coin.denom.0, index)?;
            self.window(coin.denom.0, &terms, terms.expire_withdraw, now, index)?;
            values += u(terms.value);
            fees += u(terms.fee_withdraw);
            cs |= terms.cipher == Cipher::Cs;
        }
        if cs {
            let rms = command.rms.ok_or(Refusal::RmsMissing)?;
            self.lock(true, rms, command.rc, 0)?;
        }
        let cost = melt_fee + values + fees;
        if cost > melt.amount {
            return Err(Refusal::RevealCostTooHigh { cost: money(cost), melted: money(melt.amount) }.into());
        }
        self.income += melt.amount - melt_fee - values;
        self.melts.get_mut(&key).unwrap().fresh = Some(command.fresh.clone());
        let ev_sigs = command.fresh.iter().map(|coin| coin.ev_sig.clone()).collect();
        Ok(Revealed { ev_sigs, repeated: false })
    }

    fn recoupable(&mut self, coin: &PresentedCoin, now: Timestamp) -> Step<()> {
        let terms = self.terms(coin.denom.0, 0)?;
        Self::in_time(coin.denom.0, &terms, terms.expire_deposit, now, 0)?;
        if !self.revoked.contains(&coin.denom.0) {
            return Err(unusable(0, coin.denom.0, DenomProblem::NotRevoked));
        }
        self.know(coin, 0)
    }

    pub(super) fn recoup(&mut self, command: &Recoup, now: Timestamp) -> Step<Recouped> {
        self.recoupable(&command.coin, now)?;
        let coin_pub = command.coin.coin_pub;
        let withdrawal = self.withdrawals.get(&(command.reserve_pub, command.h_coin_ev));
        if withdrawal.is_none_or(|(denom, _)| *denom != command.coin.denom.0) {
            return Err(Refusal::PlanchetUnknown.into());
        }
        let coin = &self.coins[&coin_pub];
        let amount = self.remaining(coin);
        if let (0, Some((reserve_pub, amount, time))) = (amount, coin.recoups.last()) {
            return Ok(Recouped { reserve_pub: *reserve_pub, amount: *amount, time: *time, repeated: true });
        }
        self.spend(coin_pub, amount.max(1), 0)?;
        let done = (command.reserve_pub, money(amount), now);
        self.coins.get_mut(&coin_pub).unwrap().recoups.push(done);
        let idle = now.saturating_add(self.config.idle_reserve_expiration);
        self.fill(command.reserve_pub, amount, idle, now);
        Ok(Recouped { reserve_pub: done.0, amount: done.1, time: done.2, repeated: false })
    }

    pub(super) fn recoup_refresh(
        &mut self,
        command: &RecoupRefresh,
        now: Timestamp,
    ) -> Step<RecoupRefreshed> {
        self.recoupable(&command.coin, now)?;
        let coin_pub = command.coin.coin_pub;
        let melt = self.melts.get(&(command.old_coin_pub, command.rc));
        let fresh = melt.and_then(|melt| melt.fresh.as_ref());
        let revealed = fresh.is_some_and(|fresh| {
            fresh.iter().any(|coin| coin.h_coin_ev == command.h_coin_ev && coin.denom == command.coin.denom)
        });
        if !revealed {
            return Err(Refusal::PlanchetUnknown.into());
        }
        let coin = &self.coins[&coin_pub];
        let amount = self.remaining(coin);
        if let (0, Some((old, amount, time))) = (amount, coin.recoup_refreshes.last()) {
            return Ok(RecoupRefreshed { old_coin_pub: *old, amount: *amount, time: *time, repeated: true });
        }
        self.spend(coin_pub, amount.max(1), 0)?;
        let old = &self.coins[&command.old_coin_pub];
        if self.remaining(old) + amount > u(self.denoms[&old.denom].value) {
            return Err(Refusal::RecoupAboveValue.into());
        }
        let old = self.coins.get_mut(&command.old_coin_pub).unwrap();
        old.log.push(amount);
        old.zombie = true;
        let done = (command.old_coin_pub, money(amount), now);
        self.coins.get_mut(&coin_pub).unwrap().recoup_refreshes.push(done);
        Ok(RecoupRefreshed { old_coin_pub: done.0, amount: done.1, time: done.2, repeated: false })
    }

    pub(super) fn aggregate(&mut self, command: &Aggregate, now: Timestamp) -> Step<Aggregated> {
        let (h_payto, merchant_pub) = (command.target.h_payto, command.target.merchant_pub);
        let key = (h_payto, merchant_pub);
        let transient = self.transients.get(&key).copied();
        let fits = |(name, deposit): &(&DepositKey, &Payment)| {
            deposit.wtid.is_none()
                && deposit.h_payto == h_payto
                && name.merchant_pub == merchant_pub
                && deposit.refund_deadline <= command.until.min(now)
        };
        let names: Vec<DepositKey> =
            self.deposits.iter().filter(fits).map(|(name, _)| name.clone()).collect();
        assert!(names.len() <= command.deposits_max, "the model does not order deposits");
        let due = names.iter().any(|name| {
            let deposit = &self.deposits[name];
            deposit.wire_deadline.max(deposit.exchange_time) <= now
        });
        let wanted = match command.trigger {
            Trigger::Due => due,
            Trigger::Continued => !names.is_empty() || transient.is_some(),
        };
        if !wanted {
            return Ok(Aggregated::Nothing);
        }
        match transient {
            Some((_, wtid)) if wtid != command.wtid => return Err(Refusal::TransientOther.into()),
            None if self.has_seen_transfer(command.wtid) => return Err(Refusal::WtidTaken.into()),
            _ => {}
        }
        self.target(h_payto, &command.method)?;
        let (wire_fee, _) = self.fee_at(now)?;
        let mut total = transient.map_or(0, |(total, _)| total);
        let mut given = total;
        for name in &names {
            let deposit = self.deposits.get_mut(name).unwrap();
            deposit.wtid = Some(command.wtid);
            let net = deposit.amount - deposit.refunded();
            given += net;
            total += net;
            if deposit.refunded() < deposit.amount {
                total -= u(self.denoms[&self.coins[&name.coin_pub].denom].fee_deposit);
            }
        }
        let total = total.max(0);
        self.income += given - total;
        let amount = self.round(total - wire_fee);
        let taken = names.len();
        if amount > 0
            && let Some(checks) = self.missing(KycOperation::Deposit, h_payto, total, now)
        {
            if !self.is_required(h_payto, &checks) {
                return Err(Refusal::KycRequired { h_payto, checks }.into());
            }
            self.customers.held.insert(key);
            self.transients.insert(key, (total, command.wtid));
            return Ok(Aggregated::Transient { taken, total: money(total), more: false });
        }
        self.customers.held.remove(&key);
        if amount == 0 {
            self.transients.insert(key, (total, command.wtid));
            return Ok(Aggregated::Transient { taken, total: money(total), more: false });
        }
        self.transients.remove(&key);
        if self.transfers.contains_key(&command.wtid) {
            return Err(Refusal::WtidTaken.into());
        }
        self.count(KycOperation::Deposit, h_payto, amount, now);
        self.transfers.insert(command.wtid, (amount, Sent::Open));
        self.income += total - amount;
        Ok(Aggregated::Prepared { taken, amount: money(amount) })
    }
}
