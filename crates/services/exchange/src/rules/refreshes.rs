//! Refreshes: a coin is melted, and fresh ones are revealed.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{
    Cipher, CoinKey, Coins, FreshCoins, MeltByRc, MeltByRcRow, MeltKey, MeltRow, Melts, NonceKind, RcKey,
    RevealRow, Reveals,
};

use super::coins::{debit, known_or_new};
use super::denoms::{is_revoked, plan_revocation};
use super::reserves::{lock_nonce, plan_nonce};
use super::{DenomProblem, DenomTerms, ExchangeRules, Melt, Melted, Refusal, Reveal, Revealed, add};

pub(super) fn plan_melt(command: &Melt, plan: &mut Plan) {
    let coin_pub = command.coin.coin_pub;
    plan_revocation(command.coin.denom, plan);
    plan.row::<Coins>(CoinKey { coin_pub });
    plan.row::<Melts>(MeltKey { coin_pub, rc: command.rc });
    plan.row::<MeltByRc>(RcKey { rc: command.rc });
    if let Some(rms) = command.rms {
        plan_nonce(NonceKind::Melt, rms, plan);
    }
}

pub(super) fn plan_reveal(command: &Reveal, plan: &mut Plan) {
    let key = MeltKey { coin_pub: command.coin_pub, rc: command.rc };
    plan.row::<Coins>(CoinKey { coin_pub: command.coin_pub });
    plan.row::<Melts>(key.clone());
    plan.row::<Reveals>(key);
    for coin in &command.fresh {
        plan_revocation(coin.denom, plan);
    }
    if let Some(rms) = command.rms {
        plan_nonce(NonceKind::Melt, rms, plan);
    }
}

impl ExchangeRules {
    pub(super) fn melt(
        &self,
        rows: &mut WorkingSet,
        command: &Melt,
        now: Timestamp,
    ) -> Result<Melted, Refusal> {
        assert!(command.noreveal_index < 3, "one of three sets stays secret");
        let coin_pub = command.coin.coin_pub;
        let key = MeltKey { coin_pub, rc: command.rc };
        if let Some(stored) = rows.get::<Melts>(&key) {
            return Ok(Melted { noreveal_index: stored.noreveal_index, repeated: true });
        }
        let terms = self.terms(command.coin.denom, 0)?;
        self.meltable(rows, command, &terms, now)?;
        if command.amount < terms.fee_refresh || command.amount.is_zero() {
            return Err(Refusal::MeltBelowFee);
        }
        let coin = known_or_new(rows, &command.coin, &terms, 0)?;
        debit(rows, &command.coin, coin, command.amount, 0)?;
        let rc_key = RcKey { rc: command.rc };
        let claim = rows.get::<MeltByRc>(&rc_key).map(|claim| claim.coin_pub);
        if claim.is_some_and(|claim| claim != coin_pub) {
            return Err(Refusal::RcTaken);
        }
        if let Some(rms) = command.rms {
            lock_nonce(rows, NonceKind::Melt, rms, command.rc, self.denoms.serial_max(), 0)?;
        }
        match claim {
            // An earlier attempt got no further than its claim.
            Some(_) => rows.depend_on::<MeltByRc>(&rc_key),
            None => rows.insert::<MeltByRc>(&rc_key, MeltByRcRow { coin_pub }),
        }
        rows.insert::<Melts>(
            &key,
            MeltRow {
                amount: command.amount,
                coin_sig: command.coin_sig,
                noreveal_index: command.noreveal_index,
                time: now,
            },
        );
        Ok(Melted { noreveal_index: command.noreveal_index, repeated: false })
    }

    /// M6, M8: after its denomination has expired or is revoked, a coin may be melted only if it is a zombie.
    fn meltable(
        &self,
        rows: &WorkingSet,
        command: &Melt,
        terms: &DenomTerms,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let unusable =
            |problem| Refusal::DenominationUnusable { index: 0, denom: command.coin.denom, problem };
        if now < terms.start {
            return Err(unusable(DenomProblem::Future));
        }
        if now > terms.expire_legal || terms.is_closed {
            return Err(unusable(DenomProblem::Expired));
        }
        let expired = now > terms.expire_deposit;
        if !expired && !is_revoked(rows, command.coin.denom) {
            return Ok(());
        }
        let Some(known) = rows.get::<Coins>(&CoinKey { coin_pub: command.coin.coin_pub }) else {
            return Err(unusable(if expired { DenomProblem::Expired } else { DenomProblem::Revoked }));
        };
        let zombie = known.zombie;
        // The conflict of a coin known under another denomination takes precedence over other refusals.
        known_or_new(rows, &command.coin, terms, 0)?;
        if zombie {
            Ok(())
        } else if expired {
            Err(Refusal::MeltNoZombie)
        } else {
            Err(unusable(DenomProblem::Revoked))
        }
    }

    pub(super) fn reveal(
        &self,
        rows: &mut WorkingSet,
        command: &Reveal,
        now: Timestamp,
    ) -> Result<Revealed, Refusal> {
        assert!(!command.fresh.is_empty(), "a reveal has fresh coins");
        let key = MeltKey { coin_pub: command.coin_pub, rc: command.rc };
        if let Some(stored) = rows.get::<Reveals>(&key) {
            let ev_sigs = stored.fresh.0.iter().map(|coin| coin.ev_sig.clone()).collect();
            return Ok(Revealed { ev_sigs, repeated: true });
        }
        let melted = rows.get::<Melts>(&key).ok_or(Refusal::MeltUnknown)?.amount;
        let old = rows.get::<Coins>(&CoinKey { coin_pub: command.coin_pub }).expect("a melted coin is known");
        let mut cost = self.terms(old.denom, 0)?.fee_refresh;
        let mut needs_rms = false;
        for (index, coin) in command.fresh.iter().enumerate() {
            let terms = self.terms(coin.denom, index)?;
            terms
                .signable(is_revoked(rows, coin.denom), now)
                .map_err(|problem| Refusal::DenominationUnusable { index, denom: coin.denom, problem })?;
            needs_rms |= terms.cipher == Cipher::Cs;
            cost = add(cost, add(terms.value, terms.fee_withdraw)?)?;
        }
        if needs_rms {
            let rms = command.rms.ok_or(Refusal::RmsMissing)?;
            lock_nonce(rows, NonceKind::Melt, rms, command.rc, self.denoms.serial_max(), 0)?;
        }
        if cost > melted {
            return Err(Refusal::RevealCostTooHigh { cost, melted });
        }
        rows.insert::<Reveals>(
            &key,
            RevealRow {
                transfer_pub: command.transfer_pub,
                transfer_privs: command.transfer_privs,
                rms: command.rms.filter(|_| needs_rms).map(|rms| *rms.as_bytes()),
                fresh: FreshCoins(command.fresh.clone()),
                time: now,
            },
        );
        let ev_sigs = command.fresh.iter().map(|coin| coin.ev_sig.clone()).collect();
        Ok(Revealed { ev_sigs, repeated: false })
    }
}
