//! Refreshes: a coin is melted, and fresh ones are revealed.

use batzen_crypto::{CsNonce, EcdhePublicKey, EddsaSignature, HashCode};
use batzen_engine::{Command, Count, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    BlindSignature, Cipher, CoinKey, CoinPub, Coins, FreshCoin, FreshCoins, MeltByRc, MeltByRcRow, MeltKey,
    MeltRow, Melts, NonceKind, RcKey, RevealRow, Reveals,
};

use super::coins::{debit, known_or_new};
use super::denoms::{is_revoked, plan_revocation};
use super::reserves::{lock_nonce, plan_nonce};
use super::{DenomProblem, DenomTerms, ExchangeRules, PresentedCoin, Refusal, add};
use crate::rules::refusal::Result;

/// Melts a coin: takes value from it to pay for fresh coins.
#[derive(Debug, Clone)]
pub struct Melt {
    /// The old coin.
    pub coin: PresentedCoin,
    /// The melted amount, including the melt fee.
    pub amount: Money,
    /// The refresh commitment.
    pub rc: HashCode,
    /// The coin's signature, verified.
    pub coin_sig: EddsaSignature,
    /// 0, 1 or 2, drawn uniformly; used only if the melt is new.
    pub noreveal_index: u8,
    /// The refresh master secret, if any fresh coin is Clause Blind Schnorr.
    pub rms: Option<CsNonce>,
}

/// An accepted melt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Melted {
    /// The index as stored.
    pub noreveal_index: u8,
    /// Whether it had been accepted before.
    pub repeated: bool,
}

impl Command<ExchangeRules> for Melt {
    type Answer = Melted;
    const METRIC: Option<&'static str> = Some("melt");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.coin.coin_pub.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        let coin_pub = self.coin.coin_pub;
        plan_revocation(self.coin.denom, plan);
        plan.row::<Coins>(CoinKey { coin_pub });
        plan.row::<Melts>(MeltKey { coin_pub, rc: self.rc });
        plan.row::<MeltByRc>(RcKey { rc: self.rc });
        if let Some(rms) = self.rms {
            plan_nonce(NonceKind::Melt, rms, plan);
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Melted> {
        assert!(self.noreveal_index < 3, "one of three sets stays secret");
        let coin_pub = self.coin.coin_pub;
        let key = MeltKey { coin_pub, rc: self.rc };
        if let Some(stored) = rows.get::<Melts>(&key) {
            return Ok(Melted { noreveal_index: stored.noreveal_index, repeated: true });
        }
        let terms = rules.terms(self.coin.denom, 0)?;
        rules.meltable(rows, self, &terms, now)?;
        if self.amount < terms.fee_refresh || self.amount.is_zero() {
            return Err(Refusal::MeltBelowFee);
        }
        let coin = known_or_new(rows, &self.coin, &terms, 0)?;
        debit(rows, &self.coin, coin, self.amount, 0)?;
        let rc_key = RcKey { rc: self.rc };
        let claim = rows.get::<MeltByRc>(&rc_key).map(|claim| claim.coin_pub);
        if claim.is_some_and(|claim| claim != coin_pub) {
            return Err(Refusal::RcTaken);
        }
        if let Some(rms) = self.rms {
            lock_nonce(rows, NonceKind::Melt, rms, self.rc, rules.denoms.serial_max(), 0)?;
        }
        match claim {
            // An earlier attempt got no further than its claim.
            Some(_) => rows.depend_on::<MeltByRc>(&rc_key),
            None => rows.insert::<MeltByRc>(&rc_key, MeltByRcRow { coin_pub }),
        }
        rows.insert::<Melts>(
            &key,
            MeltRow {
                amount: self.amount,
                coin_sig: self.coin_sig,
                noreveal_index: self.noreveal_index,
                time: now,
            },
        );
        Ok(Melted { noreveal_index: self.noreveal_index, repeated: false })
    }

    fn count(answer: &Melted) -> Count {
        Count::of(1, answer.repeated)
    }
}

/// Finishes a refresh. The commitment has been recomputed and matches; the link signatures have been
/// verified.
#[derive(Debug, Clone)]
pub struct Reveal {
    /// The old coin: `melt_by_rc` finds it.
    pub coin_pub: CoinPub,
    /// The refresh commitment.
    pub rc: HashCode,
    /// The transfer key of the index that stays secret.
    pub transfer_pub: EcdhePublicKey,
    /// The two revealed transfer private keys in the order of their indexes.
    pub transfer_privs: [u8; 64],
    /// The refresh master secret; required if a fresh coin is Clause Blind Schnorr.
    pub rms: Option<CsNonce>,
    /// 1 to 255 fresh coins with their blind signatures, which are dropped if the command is refused or is a
    /// repetition.
    pub fresh: Vec<FreshCoin>,
}

/// The coins of a refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revealed {
    /// Their signatures as stored, in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
    /// Whether the melt had been revealed before.
    pub repeated: bool,
}

impl Command<ExchangeRules> for Reveal {
    type Answer = Revealed;
    const METRIC: Option<&'static str> = Some("reveal");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.coin_pub.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        let key = MeltKey { coin_pub: self.coin_pub, rc: self.rc };
        plan.row::<Coins>(CoinKey { coin_pub: self.coin_pub });
        plan.row::<Melts>(key.clone());
        plan.row::<Reveals>(key);
        for coin in &self.fresh {
            plan_revocation(coin.denom, plan);
        }
        if let Some(rms) = self.rms {
            plan_nonce(NonceKind::Melt, rms, plan);
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Revealed> {
        assert!(!self.fresh.is_empty(), "a reveal has fresh coins");
        let key = MeltKey { coin_pub: self.coin_pub, rc: self.rc };
        if let Some(stored) = rows.get::<Reveals>(&key) {
            let ev_sigs = stored.fresh.0.iter().map(|coin| coin.ev_sig.clone()).collect();
            return Ok(Revealed { ev_sigs, repeated: true });
        }
        let melted = rows.get::<Melts>(&key).ok_or(Refusal::MeltUnknown)?.amount;
        let old = rows.get::<Coins>(&CoinKey { coin_pub: self.coin_pub }).expect("a melted coin is known");
        let mut cost = rules.terms(old.denom, 0)?.fee_refresh;
        let mut needs_rms = false;
        for (index, coin) in self.fresh.iter().enumerate() {
            let terms = rules.terms(coin.denom, index)?;
            terms
                .signable(is_revoked(rows, coin.denom), now)
                .map_err(|problem| Refusal::DenominationUnusable { index, denom: coin.denom, problem })?;
            needs_rms |= terms.cipher == Cipher::Cs;
            cost = add(cost, add(terms.value, terms.fee_withdraw)?)?;
        }
        if needs_rms {
            let rms = self.rms.ok_or(Refusal::RmsMissing)?;
            lock_nonce(rows, NonceKind::Melt, rms, self.rc, rules.denoms.serial_max(), 0)?;
        }
        if cost > melted {
            return Err(Refusal::RevealCostTooHigh { cost, melted });
        }
        rows.insert::<Reveals>(
            &key,
            RevealRow {
                transfer_pub: self.transfer_pub,
                transfer_privs: self.transfer_privs,
                rms: self.rms.filter(|_| needs_rms).map(|rms| *rms.as_bytes()),
                fresh: FreshCoins(self.fresh.clone()),
                time: now,
            },
        );
        let ev_sigs = self.fresh.iter().map(|coin| coin.ev_sig.clone()).collect();
        Ok(Revealed { ev_sigs, repeated: false })
    }

    fn count(answer: &Revealed) -> Count {
        Count::of(answer.ev_sigs.len(), answer.repeated)
    }
}

impl ExchangeRules {
    /// M6, M8: after its denomination has expired or is revoked, a coin may be melted only if it is a zombie.
    fn meltable(&self, rows: &WorkingSet, command: &Melt, terms: &DenomTerms, now: Timestamp) -> Result<()> {
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
}
