//! Recoups: coins of a revoked denomination return their value.

use batzen_crypto::{EddsaSignature, HashCode};
use batzen_engine::{Command, Count, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinKey, CoinPub, CoinRow, Coins, MeltKey, RecoupCreditKey, RecoupCreditRow, RecoupCredits, RecoupKey,
    RecoupRefreshCreditKey, RecoupRefreshCreditRow, RecoupRefreshCredits, RecoupRefreshRow, RecoupRefreshes,
    RecoupRow, Recoups, ReserveKey, ReservePub, Reserves, Reveals, WithdrawalKey, Withdrawals,
};

use super::coins::{conflict, debit, known_or_new};
use super::denoms::{is_revoked, plan_revocation};
use super::{ConflictReason, DenomTerms, ExchangeRules, PresentedCoin, Refusal, add};
use crate::rules::refusal::Result;

/// Takes back a withdrawn coin of a revoked denomination.
#[derive(Debug, Clone)]
pub struct Recoup {
    /// The coin.
    pub coin: PresentedCoin,
    /// Its blinding secret.
    pub coin_blind: [u8; 32],
    /// Its signature, verified.
    pub coin_sig: EddsaSignature,
    /// Hash of the planchet, recomputed from the coin and the blinding secret.
    pub h_coin_ev: HashCode,
    /// The reserve that withdrew it: `withdrawal_of` finds it.
    pub reserve_pub: ReservePub,
}

/// A coin went back to its reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recouped {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The amount that went back; for a repetition, the amount of the last time.
    pub amount: Money,
    /// When.
    pub time: Timestamp,
    /// Whether the coin had been recouped before, so that nothing was left.
    pub repeated: bool,
}

impl Command<ExchangeRules> for Recoup {
    type Answer = Recouped;
    const METRIC: Option<&'static str> = Some("recoup");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.coin.coin_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        visit(self.reserve_pub.as_bytes());
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        let (coin_pub, reserve_pub) = (self.coin.coin_pub, self.reserve_pub);
        plan_revocation(self.coin.denom, plan);
        plan.row::<Coins>(CoinKey { coin_pub });
        plan.row::<Reserves>(ReserveKey { reserve_pub });
        plan.row::<Withdrawals>(WithdrawalKey { reserve_pub, h_coin_ev: self.h_coin_ev });
        plan.group::<Recoups>(Recoups::BY_COIN, &coin_pub);
        plan.group::<RecoupCredits>(RecoupCredits::BY_RESERVE, &reserve_pub);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Recouped> {
        let (_, coin) = rules.recoupable(rows, &self.coin, now)?;
        let (coin_pub, reserve_pub) = (self.coin.coin_pub, self.reserve_pub);
        let withdrawn = rows
            .get::<Withdrawals>(&WithdrawalKey { reserve_pub, h_coin_ev: self.h_coin_ev })
            .is_some_and(|row| row.denom == self.coin.denom);
        if !withdrawn {
            return Err(Refusal::PlanchetUnknown);
        }
        let n = rows.group::<Recoups>(Recoups::BY_COIN, &coin_pub).len();
        let n = u32::try_from(n).expect("a coin is recouped fewer than 2^32 times");
        let amount = coin.remaining;
        if amount.is_zero() {
            // Y3: everything was recouped before, or everything was spent.
            let last = n.checked_sub(1).and_then(|n| rows.get::<Recoups>(&RecoupKey { coin_pub, n }));
            return match last {
                Some(row) => Ok(Recouped {
                    reserve_pub: row.reserve_pub,
                    amount: row.amount,
                    time: row.time,
                    repeated: true,
                }),
                None => Err(nothing_left(&self.coin, &coin)),
            };
        }
        debit(rows, &self.coin, coin, amount, 0)?;
        let idle_until = now.saturating_add(rules.config.idle_reserve_expiration);
        rules.credit_reserve(rows, reserve_pub, amount, idle_until, None, now)?;
        rows.insert::<Recoups>(
            &RecoupKey { coin_pub, n },
            RecoupRow {
                reserve_pub,
                h_coin_ev: self.h_coin_ev,
                amount,
                coin_blind: self.coin_blind,
                coin_sig: self.coin_sig,
                time: now,
            },
        );
        rows.insert::<RecoupCredits>(
            &RecoupCreditKey { reserve_pub, coin_pub, n },
            RecoupCreditRow { amount, time: now },
        );
        Ok(Recouped { reserve_pub, amount, time: now, repeated: false })
    }

    fn count(answer: &Recouped) -> Count {
        Count::of(1, answer.repeated)
    }
}

/// Takes back a coin of a revoked denomination that was obtained by refresh.
#[derive(Debug, Clone)]
pub struct RecoupRefresh {
    /// The fresh coin.
    pub coin: PresentedCoin,
    /// Its blinding secret.
    pub coin_blind: [u8; 32],
    /// Its signature, verified.
    pub coin_sig: EddsaSignature,
    /// Hash of the planchet, recomputed from the coin and the blinding secret.
    pub h_coin_ev: HashCode,
    /// The coin that it was changed from: `reveal_of` finds both this coin and the commitment.
    pub old_coin_pub: CoinPub,
    /// The commitment of that melt.
    pub rc: HashCode,
}

/// A coin went back to the coin that it was changed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoupRefreshed {
    /// The old coin.
    pub old_coin_pub: CoinPub,
    /// The amount that went back; for a repetition, the amount of the last time.
    pub amount: Money,
    /// When.
    pub time: Timestamp,
    /// Whether the coin had been recouped before, so that nothing was left.
    pub repeated: bool,
}

impl Command<ExchangeRules> for RecoupRefresh {
    type Answer = RecoupRefreshed;
    const METRIC: Option<&'static str> = Some("recoup-refresh");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.coin.coin_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        visit(self.old_coin_pub.as_bytes());
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        let coin_pub = self.coin.coin_pub;
        plan_revocation(self.coin.denom, plan);
        plan.row::<Coins>(CoinKey { coin_pub });
        plan.row::<Coins>(CoinKey { coin_pub: self.old_coin_pub });
        plan.row::<Reveals>(MeltKey { coin_pub: self.old_coin_pub, rc: self.rc });
        plan.group::<RecoupRefreshes>(RecoupRefreshes::BY_COIN, &coin_pub);
        plan.group::<RecoupRefreshCredits>(RecoupRefreshCredits::BY_OLD_COIN, &self.old_coin_pub);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Self::Answer> {
        let (_, coin) = rules.recoupable(rows, &self.coin, now)?;
        let (coin_pub, old_coin_pub) = (self.coin.coin_pub, self.old_coin_pub);
        let revealed =
            rows.get::<Reveals>(&MeltKey { coin_pub: old_coin_pub, rc: self.rc }).is_some_and(|row| {
                row.fresh
                    .0
                    .iter()
                    .any(|fresh| fresh.h_coin_ev == self.h_coin_ev && fresh.denom == self.coin.denom)
            });
        if !revealed {
            return Err(Refusal::PlanchetUnknown);
        }
        let n = rows.group::<RecoupRefreshes>(RecoupRefreshes::BY_COIN, &coin_pub).len();
        let n = u32::try_from(n).expect("a coin is recouped fewer than 2^32 times");
        let amount = coin.remaining;
        if amount.is_zero() {
            let last = n.checked_sub(1).and_then(|n| rows.get::<RecoupRefreshes>(&RecoupKey { coin_pub, n }));
            return match last {
                Some(row) => Ok(RecoupRefreshed {
                    old_coin_pub: row.old_coin_pub,
                    amount: row.amount,
                    time: row.time,
                    repeated: true,
                }),
                None => Err(nothing_left(&self.coin, &coin)),
            };
        }
        debit(rows, &self.coin, coin, amount, 0)?;
        let old_key = CoinKey { coin_pub: old_coin_pub };
        let old = rows.get::<Coins>(&old_key).expect("a melted coin is known").clone();
        let value = rules.terms(old.denom, 0)?.value;
        let remaining = add(old.remaining, amount)?;
        if remaining > value {
            return Err(Refusal::RecoupAboveValue);
        }
        rows.update::<Coins>(&old_key, CoinRow { remaining, zombie: true, ..old });
        rows.insert::<RecoupRefreshes>(
            &RecoupKey { coin_pub, n },
            RecoupRefreshRow {
                old_coin_pub,
                rc: self.rc,
                h_coin_ev: self.h_coin_ev,
                amount,
                coin_blind: self.coin_blind,
                coin_sig: self.coin_sig,
                time: now,
            },
        );
        rows.insert::<RecoupRefreshCredits>(
            &RecoupRefreshCreditKey { old_coin_pub, coin_pub, n },
            RecoupRefreshCreditRow { amount, time: now },
        );
        Ok(RecoupRefreshed { old_coin_pub, amount, time: now, repeated: false })
    }

    fn count(answer: &RecoupRefreshed) -> Count {
        Count::of(1, answer.repeated)
    }
}

impl ExchangeRules {
    /// Checks the terms and the row of a coin for recoup.
    fn recoupable(
        &self,
        rows: &WorkingSet,
        coin: &PresentedCoin,
        now: Timestamp,
    ) -> Result<(DenomTerms, CoinRow)> {
        let terms = self.terms(coin.denom, 0)?;
        terms
            .recoupable(is_revoked(rows, coin.denom), now)
            .map_err(|problem| Refusal::DenominationUnusable { index: 0, denom: coin.denom, problem })?;
        let row = known_or_new(rows, coin, &terms, 0)?;
        Ok((terms, row))
    }
}

fn nothing_left(coin: &PresentedCoin, row: &CoinRow) -> Refusal {
    conflict(coin, row, 0, ConflictReason::Insufficient { requested: Money::UNIT })
}
