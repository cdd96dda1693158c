//! Recoups: coins of a revoked denomination return their value.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinKey, CoinRow, Coins, MeltKey, RecoupCreditKey, RecoupCreditRow, RecoupCredits, RecoupKey,
    RecoupRefreshCreditKey, RecoupRefreshCreditRow, RecoupRefreshCredits, RecoupRefreshRow, RecoupRefreshes,
    RecoupRow, Recoups, ReserveKey, Reserves, Reveals, WithdrawalKey, Withdrawals,
};

use super::coins::{conflict, debit, known_or_new};
use super::denoms::{is_revoked, plan_revocation};
use super::{
    ConflictReason, DenomTerms, ExchangeRules, PresentedCoin, Recoup, RecoupRefresh, RecoupRefreshed,
    Recouped, Refusal, add,
};

pub(super) fn plan_recoup(command: &Recoup, plan: &mut Plan) {
    let (coin_pub, reserve_pub) = (command.coin.coin_pub, command.reserve_pub);
    plan_revocation(command.coin.denom, plan);
    plan.row::<Coins>(CoinKey { coin_pub });
    plan.row::<Reserves>(ReserveKey { reserve_pub });
    plan.row::<Withdrawals>(WithdrawalKey { reserve_pub, h_coin_ev: command.h_coin_ev });
    plan.group::<Recoups>(Recoups::BY_COIN, &coin_pub);
    plan.group::<RecoupCredits>(RecoupCredits::BY_RESERVE, &reserve_pub);
}

pub(super) fn plan_recoup_refresh(command: &RecoupRefresh, plan: &mut Plan) {
    let coin_pub = command.coin.coin_pub;
    plan_revocation(command.coin.denom, plan);
    plan.row::<Coins>(CoinKey { coin_pub });
    plan.row::<Coins>(CoinKey { coin_pub: command.old_coin_pub });
    plan.row::<Reveals>(MeltKey { coin_pub: command.old_coin_pub, rc: command.rc });
    plan.group::<RecoupRefreshes>(RecoupRefreshes::BY_COIN, &coin_pub);
    plan.group::<RecoupRefreshCredits>(RecoupRefreshCredits::BY_OLD_COIN, &command.old_coin_pub);
}

impl ExchangeRules {
    /// Checks the terms and the row of a coin for recoup.
    fn recoupable(
        &self,
        rows: &WorkingSet,
        coin: &PresentedCoin,
        now: Timestamp,
    ) -> Result<(DenomTerms, CoinRow), Refusal> {
        let terms = self.terms(coin.denom, 0)?;
        terms
            .recoupable(is_revoked(rows, coin.denom), now)
            .map_err(|problem| Refusal::DenominationUnusable { index: 0, denom: coin.denom, problem })?;
        let row = known_or_new(rows, coin, &terms, 0)?;
        Ok((terms, row))
    }

    pub(super) fn recoup(
        &self,
        rows: &mut WorkingSet,
        command: &Recoup,
        now: Timestamp,
    ) -> Result<Recouped, Refusal> {
        let (_, coin) = self.recoupable(rows, &command.coin, now)?;
        let (coin_pub, reserve_pub) = (command.coin.coin_pub, command.reserve_pub);
        let withdrawn = rows
            .get::<Withdrawals>(&WithdrawalKey { reserve_pub, h_coin_ev: command.h_coin_ev })
            .is_some_and(|row| row.denom == command.coin.denom);
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
                None => Err(nothing_left(&command.coin, &coin)),
            };
        }
        debit(rows, &command.coin, coin, amount, 0)?;
        let idle_until = now.saturating_add(self.config.idle_reserve_expiration);
        self.credit_reserve(rows, reserve_pub, amount, idle_until, None, now)?;
        rows.insert::<Recoups>(
            &RecoupKey { coin_pub, n },
            RecoupRow {
                reserve_pub,
                h_coin_ev: command.h_coin_ev,
                amount,
                coin_blind: command.coin_blind,
                coin_sig: command.coin_sig,
                time: now,
            },
        );
        rows.insert::<RecoupCredits>(
            &RecoupCreditKey { reserve_pub, coin_pub, n },
            RecoupCreditRow { amount, time: now },
        );
        Ok(Recouped { reserve_pub, amount, time: now, repeated: false })
    }

    pub(super) fn recoup_refresh(
        &self,
        rows: &mut WorkingSet,
        command: &RecoupRefresh,
        now: Timestamp,
    ) -> Result<RecoupRefreshed, Refusal> {
        let (_, coin) = self.recoupable(rows, &command.coin, now)?;
        let (coin_pub, old_coin_pub) = (command.coin.coin_pub, command.old_coin_pub);
        let revealed =
            rows.get::<Reveals>(&MeltKey { coin_pub: old_coin_pub, rc: command.rc }).is_some_and(|row| {
                row.fresh
                    .0
                    .iter()
                    .any(|fresh| fresh.h_coin_ev == command.h_coin_ev && fresh.denom == command.coin.denom)
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
                None => Err(nothing_left(&command.coin, &coin)),
            };
        }
        debit(rows, &command.coin, coin, amount, 0)?;
        let old_key = CoinKey { coin_pub: old_coin_pub };
        let old = rows.get::<Coins>(&old_key).expect("a melted coin is known").clone();
        let value = self.terms(old.denom, 0)?.value;
        let remaining = add(old.remaining, amount)?;
        if remaining > value {
            return Err(Refusal::RecoupAboveValue);
        }
        rows.update::<Coins>(&old_key, CoinRow { remaining, zombie: true, ..old });
        rows.insert::<RecoupRefreshes>(
            &RecoupKey { coin_pub, n },
            RecoupRefreshRow {
                old_coin_pub,
                rc: command.rc,
                h_coin_ev: command.h_coin_ev,
                amount,
                coin_blind: command.coin_blind,
                coin_sig: command.coin_sig,
                time: now,
            },
        );
        rows.insert::<RecoupRefreshCredits>(
            &RecoupRefreshCreditKey { old_coin_pub, coin_pub, n },
            RecoupRefreshCreditRow { amount, time: now },
        );
        Ok(RecoupRefreshed { old_coin_pub, amount, time: now, repeated: false })
    }
}

fn nothing_left(coin: &PresentedCoin, row: &CoinRow) -> Refusal {
    conflict(coin, row, 0, ConflictReason::Insufficient { requested: Money::UNIT })
}
