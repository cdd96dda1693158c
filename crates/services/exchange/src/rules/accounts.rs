//! Reserves as accounts: prolonging them, buying purses, and closing them by order of their owners.

use batzen_crypto::EddsaSignature;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    CloseRequestRow, CloseRequests, CoinKey, Coins, KycOperation, PaytoHash, ReserveAccountRow,
    ReserveAccounts, ReserveKey, ReserveOpenDepositKey, ReserveOpenDepositRow, ReserveOpenDeposits,
    ReserveOpenRow, ReserveOpens, ReservePub, ReserveRequestKey, ReserveRow, Reserves, WireFees,
    WireTargetKey, WireTargets,
};

use super::coins::{known_or_new, less_fee, pay};
use super::denoms::plan_revocation;
use super::reserves::remember_target;
use super::{
    ExchangeRules, LimitedAccount, PurseCoin, Refusal, ReserveShortage, ReserveStatement, add, transfers,
};
use crate::rules::refusal::Result;

/// The unit in which a reserve's life is sold.
const YEAR_SECS: u64 = 365 * 24 * 3_600;

/// Number of purses that the owner of a reserve may ask for.
const PURSES_ALLOWED_MAX: u32 = 1 << 16;

/// Prolongs a reserve, or buys purses for it. Each time of a request counts once.
#[derive(Debug, Clone)]
pub struct ReserveOpen {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time.
    pub request_time: Timestamp,
    /// The wanted expiration.
    pub reserve_expiration: Timestamp,
    /// The wanted number of purses.
    pub purse_limit: u32,
    /// The amount that the reserve itself pays.
    pub payment: Money,
    /// The account fee at the request's time.
    pub account_fee: Money,
    /// Coins that pay the rest: at most 256.
    pub coins: Vec<PurseCoin>,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve is open as long as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveOpened {
    /// When it expires.
    pub expiration: Timestamp,
    /// Its cost.
    pub cost: Money,
}

impl Command<ExchangeRules> for ReserveOpen {
    type Answer = ReserveOpened;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.reserve_pub.as_bytes())
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        let reserve_pub = self.reserve_pub;
        plan.row::<Reserves>(ReserveKey { reserve_pub });
        plan.row::<ReserveAccounts>(ReserveKey { reserve_pub });
        plan.row::<ReserveOpens>(ReserveRequestKey { reserve_pub, request_time: self.request_time });
        for coin in &self.coins {
            let coin_pub = coin.coin.coin_pub;
            plan_revocation(coin.coin.denom, plan);
            plan.row::<Coins>(CoinKey { coin_pub });
            plan.row::<ReserveOpenDeposits>(ReserveOpenDepositKey {
                coin_pub,
                reserve_pub,
                request_time: self.request_time,
            });
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<ReserveOpened> {
        let reserve_pub = self.reserve_pub;
        let key = ReserveRequestKey { reserve_pub, request_time: self.request_time };
        let reserve_key = ReserveKey { reserve_pub };
        let reserve = rows.get::<Reserves>(&reserve_key).ok_or(Refusal::ReserveUnknown)?.clone();
        if let Some(stored) = rows.get::<ReserveOpens>(&key) {
            return Ok(ReserveOpened { expiration: stored.expiration, cost: stored.cost });
        }
        let account = rows.get::<ReserveAccounts>(&reserve_key).cloned();
        let account = account.unwrap_or(ReserveAccountRow { purses_active: 0, purses_allowed: 0 });
        let result =
            prolonged(reserve.expiration, account.purses_allowed, self, rules.config.default_purse_limit)?;
        if result.fees == 0 {
            rows.depend_on::<Reserves>(&reserve_key);
            return Ok(ReserveOpened { expiration: reserve.expiration, cost: Money::ZERO });
        }
        let cost = self.account_fee.checked_mul(result.fees).map_err(|_| Refusal::PurchaseTooLarge)?;
        let mut paid = self.payment;
        for (index, coin) in self.coins.iter().enumerate() {
            let terms = rules.terms(coin.coin.denom, index)?;
            paid = add(paid, less_fee(coin.amount, terms.fee_deposit, index)?)?;
        }
        if paid < cost {
            return Err(Refusal::OpenTooLittle { cost, expiration: reserve.expiration });
        }
        let Ok(balance) = reserve.balance.checked_sub(self.payment) else {
            return Err(Refusal::ReserveInsufficient(Box::new(ReserveShortage {
                reserve_pub,
                balance: reserve.balance,
                requested: self.payment,
                history: ReserveStatement::default(),
            })));
        };
        rules.pay_with_coins(rows, self, now)?;
        let gc = reserve.gc.max(reserve.expiration.saturating_add(rules.config.legal_reserve_expiration));
        let expiration = result.expiration;
        rows.update::<Reserves>(&reserve_key, ReserveRow { balance, expiration, gc, ..reserve });
        let purses_allowed = result.purses_allowed;
        rows.put::<ReserveAccounts>(&reserve_key, ReserveAccountRow { purses_allowed, ..account });
        rows.insert::<ReserveOpens>(
            &key,
            ReserveOpenRow {
                reserve_sig: self.reserve_sig,
                requested_expiration: self.reserve_expiration,
                requested_purses: self.purse_limit,
                payment: self.payment,
                cost,
                expiration,
            },
        );
        Ok(ReserveOpened { expiration, cost })
    }
}

/// Asks for a reserve's money to be paid out. The closer executes it.
#[derive(Debug, Clone)]
pub struct RequestClose {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each counts once.
    pub request_time: Timestamp,
    /// The account that the owner named; none for the account of origin.
    pub requested: Option<PaytoHash>,
    /// The account to pay: the named one, or that of origin.
    pub h_payto: PaytoHash,
    /// Its payto URI.
    pub payto_uri: String,
    /// Its method.
    pub method: String,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve will be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseRequested {
    /// The amount to pay. Zero: less than the fee is there, and nothing will happen.
    pub wired: Money,
}

impl Command<ExchangeRules> for RequestClose {
    type Answer = CloseRequested;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.reserve_pub.as_bytes())
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        rules.plan_kyc(KycOperation::Close, &LimitedAccount::of(&self.payto_uri), plan);
        let reserve_pub = self.reserve_pub;
        plan.row::<Reserves>(ReserveKey { reserve_pub });
        plan.row::<CloseRequests>(ReserveRequestKey { reserve_pub, request_time: self.request_time });
        plan.row::<WireTargets>(WireTargetKey { h_payto: self.h_payto });
        plan.group::<WireFees>(WireFees::BY_METHOD, &self.method);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Self::Answer> {
        let reserve_pub = self.reserve_pub;
        let key = ReserveRequestKey { reserve_pub, request_time: self.request_time };
        let reserve_key = ReserveKey { reserve_pub };
        let reserve = rows.get::<Reserves>(&reserve_key).ok_or(Refusal::ReserveUnknown)?.clone();
        let closing_fee = transfers::wire_fees_at(rows, &self.method, self.request_time)?.closing_fee;
        if let Some(stored) = rows.get::<CloseRequests>(&key) {
            let wired = stored.balance.checked_sub(closing_fee).unwrap_or(Money::ZERO);
            return Ok(CloseRequested { wired });
        }
        let target = self.requested.or(reserve.origin).ok_or(Refusal::CloseTargetUnknown)?;
        // The caller has read the origin and its method before.
        if target != self.h_payto {
            return Err(Refusal::TargetMismatch);
        }
        // The balance of this moment is the most that will be paid.
        rows.depend_on::<Reserves>(&reserve_key);
        let balance = reserve.balance;
        let wired = match balance.checked_sub(closing_fee) {
            Ok(wired) if !wired.is_zero() => wired,
            _ => return Ok(CloseRequested { wired: Money::ZERO }),
        };
        if reserve.origin != Some(target) {
            let account = LimitedAccount::of(&self.payto_uri);
            rules.require_kyc(rows, KycOperation::Close, &account, balance, now)?;
            rules.count_kyc(rows, KycOperation::Close, &account, balance, now);
        }
        remember_target(rows, self.h_payto, &self.payto_uri);
        rows.insert::<CloseRequests>(
            &key,
            CloseRequestRow {
                reserve_sig: self.reserve_sig,
                requested: self.requested,
                h_payto: self.h_payto,
                balance,
                done: false,
            },
        );
        Ok(CloseRequested { wired })
    }
}

/// Whole years from one time to a later one, rounded up.
fn years(from: Timestamp, to: Timestamp) -> u64 {
    to.saturating_since(from).as_secs().unwrap_or(u64::MAX).div_ceil(YEAR_SECS)
}

fn after_years(time: Timestamp, years: u64) -> Timestamp {
    time.saturating_add(Duration::from_secs(years.saturating_mul(YEAR_SECS)))
}

/// The changes of a request, and the number of account fees for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prolonged {
    expiration: Timestamp,
    purses_allowed: u32,
    fees: u64,
}

/// Computes the time to which a reserve must be prolonged (p2p chapter 10.2, steps 1 to 3). `quota`: the
/// purses that come with one account fee.
fn prolonged(
    expiration: Timestamp,
    purses_allowed: u32,
    command: &ReserveOpen,
    quota: u32,
) -> Result<Prolonged> {
    let quota = quota.max(1);
    let (wanted, request_time) = (command.reserve_expiration, command.request_time);
    let start = expiration.max(request_time);
    let mut result = Prolonged { expiration: start, purses_allowed, fees: 0 };
    if start < wanted {
        let years = years(start, wanted);
        result = Prolonged {
            expiration: after_years(start, years),
            purses_allowed: quota.max(purses_allowed),
            fees: years,
        };
    }
    if command.purse_limit > PURSES_ALLOWED_MAX {
        return Err(Refusal::PurchaseTooLarge);
    }
    if result.purses_allowed < command.purse_limit {
        let years = years(request_time, wanted);
        let blocks = (command.purse_limit - result.purses_allowed).div_ceil(quota);
        let bought = quota.saturating_mul(blocks);
        result = Prolonged {
            expiration: result.expiration.max(after_years(request_time, years)),
            purses_allowed: result.purses_allowed.saturating_add(bought),
            fees: years + u64::from(blocks),
        };
    }
    Ok(result)
}

impl ExchangeRules {
    fn pay_with_coins(&self, rows: &mut WorkingSet, command: &ReserveOpen, now: Timestamp) -> Result<()> {
        for (index, coin) in command.coins.iter().enumerate() {
            let terms = self.terms(coin.coin.denom, index)?;
            let key = ReserveOpenDepositKey {
                coin_pub: coin.coin.coin_pub,
                reserve_pub: command.reserve_pub,
                request_time: command.request_time,
            };
            if rows.get::<ReserveOpenDeposits>(&key).is_some() {
                return Err(Refusal::CoinDuplicate { index });
            }
            let row = known_or_new(rows, &coin.coin, &terms, index)?;
            pay(rows, &coin.coin, row, (&terms, coin.amount), index, now)?;
            rows.insert::<ReserveOpenDeposits>(
                &key,
                ReserveOpenDepositRow {
                    amount: coin.amount,
                    reserve_sig: command.reserve_sig,
                    coin_sig: coin.coin_sig,
                },
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use batzen_crypto::{EddsaPublicKey, EddsaSignature};

    use super::*;

    fn request(expiration_days: u64, purse_limit: u32) -> ReserveOpen {
        ReserveOpen {
            reserve_pub: EddsaPublicKey::from_bytes([1; 32]),
            request_time: Timestamp::from_secs(0),
            reserve_expiration: day(expiration_days),
            purse_limit,
            payment: Money::ZERO,
            account_fee: Money::UNIT,
            coins: Vec::new(),
            reserve_sig: EddsaSignature::from_bytes([0; 64]),
        }
    }

    fn day(days: u64) -> Timestamp {
        Timestamp::from_secs(days * 24 * 3_600)
    }

    #[test]
    fn time_is_sold_in_whole_years_and_purses_in_blocks() {
        // Current expiration in days, purses; wanted expiration in days, purses; result in days, purses, fees.
        for (now_days, allowed, wanted_days, limit, expected) in [
            (10, 0, 10, 0, (10, 0, 0)),
            (10, 0, 11, 0, (375, 5, 1)),
            (10, 0, 375, 5, (375, 5, 1)),
            (10, 0, 376, 5, (740, 5, 2)),
            // Five purses come with the time, five more cost another fee.
            (10, 0, 11, 6, (375, 10, 2)),
            // Purses alone, for a reserve that lives long enough.
            (400, 5, 100, 6, (400, 10, 2)),
            // More purses than a year brings stay.
            (10, 20, 11, 0, (375, 20, 1)),
        ] {
            let result = prolonged(day(now_days), allowed, &request(wanted_days, limit), 5).unwrap();
            let (days, purses_allowed, fees) = expected;
            assert_eq!(
                result,
                Prolonged { expiration: day(days), purses_allowed, fees },
                "{now_days} {allowed} {wanted_days} {limit}"
            );
        }
    }
}
