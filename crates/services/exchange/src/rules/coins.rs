//! Coins that pay: deposits and refunds.

use std::collections::HashMap;

use batzen_crypto::{EddsaSignature, HashCode, ShortHash, WireSalt};
use batzen_engine::{Command, Count, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinKey, CoinPub, CoinRow, CoinSignature, Coins, DenomSerial, DepositKey, DepositRow, Deposits,
    MerchantPub, PaytoHash, RefundKey, RefundRow, Refunds, WireTargetKey, WireTargets,
};

use super::denoms::{is_revoked, plan_revocation};
use super::reserves::remember_target;
use super::{CoinConflict, CoinHistory, ConflictReason, DenomTerms, ExchangeRules, Refusal, add};
use crate::rules::refusal::Result;

/// A coin in a request. Its denomination's signature was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedCoin {
    /// Its public key.
    pub coin_pub: CoinPub,
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of its age commitment. Pass `None` if it is all zero, which means that there is none.
    pub h_age: Option<ShortHash>,
    /// The denomination's signature on it.
    pub denom_sig: CoinSignature,
}

/// One coin of a deposit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepositCoin {
    /// The coin.
    pub coin: PresentedCoin,
    /// The contribution, including the deposit fee.
    pub contribution: Money,
    /// Its signature on the deposit, verified.
    pub coin_sig: EddsaSignature,
}

/// Pays a contract, for `/deposit` (one coin) and `/batch-deposit`. All or nothing.
#[derive(Debug, Clone)]
pub struct Deposit {
    /// The merchant.
    pub merchant_pub: MerchantPub,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The merchant's account.
    pub payto_uri: String,
    /// Its hash.
    pub h_payto: PaytoHash,
    /// Salt of the hash of that account.
    pub wire_salt: WireSalt,
    /// The wallet's time.
    pub wallet_time: Timestamp,
    /// The refund deadline, at most the wire deadline. Zero: no refunds.
    pub refund_deadline: Timestamp,
    /// The wire deadline; must not be never. A time in the past means as soon as possible.
    pub wire_deadline: Timestamp,
    /// 1 to 256 coins.
    pub coins: Vec<DepositCoin>,
}

/// An accepted deposit: the values that the confirmations cover besides the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deposited {
    /// When the exchange first accepted any of the coins: the timestamp of all confirmations.
    pub exchange_time: Timestamp,
    /// The coins, in the order of the request.
    pub coins: Vec<DepositedCoin>,
}

impl Command<ExchangeRules> for Deposit {
    type Answer = Deposited;
    const METRIC: Option<&'static str> = Some("deposit");

    fn owner(&self) -> Option<&[u8]> {
        // If the request is repeated, it contains the same first coin again.
        self.coins.first().map(|coin| &coin.coin.coin_pub.as_bytes()[..])
    }

    fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
        self.coins.iter().skip(1).for_each(|coin| visit(coin.coin.coin_pub.as_bytes()));
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<WireTargets>(WireTargetKey { h_payto: self.h_payto });
        for coin in &self.coins {
            let key = deposit_key(self, coin);
            plan_revocation(coin.coin.denom, plan);
            plan.row::<Coins>(CoinKey { coin_pub: coin.coin.coin_pub });
            plan.row::<Deposits>(key);
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Deposited> {
        assert!(!self.coins.is_empty(), "a deposit has coins");
        if self.refund_deadline > self.wire_deadline || self.wire_deadline.is_never() {
            return Err(Refusal::DeadlinesImpossible);
        }
        // A request that contradicts itself is not a conflict with the coin's history, because the history
        // could not prove it.
        let mut seen = HashMap::with_capacity(self.coins.len());
        for (index, coin) in self.coins.iter().enumerate() {
            if *seen.entry(coin.coin.coin_pub).or_insert(coin) != coin {
                return Err(Refusal::CoinDuplicate { index });
            }
        }
        // All coins of a batch have one timestamp: that of the first acceptance of any of them. If the clock
        // has stepped back since, the stored time is used and not the earlier of the two, so that a
        // repetition gets the same confirmation.
        let exchange_time = self
            .coins
            .iter()
            .filter_map(|coin| rows.get::<Deposits>(&deposit_key(self, coin)))
            .map(|row| row.exchange_time)
            .min()
            .unwrap_or(now);
        let mut coins = Vec::with_capacity(self.coins.len());
        for (index, coin) in self.coins.iter().enumerate() {
            coins.push(rules.deposit_coin(rows, self, coin, index, exchange_time, now)?);
        }
        remember_target(rows, self.h_payto, &self.payto_uri);
        Ok(Deposited { exchange_time, coins })
    }

    fn count(answer: &Deposited) -> Count {
        let repeated = answer.coins.iter().filter(|coin| coin.repeated).count();
        Count { new: (answer.coins.len() - repeated) as u64, repeated: repeated as u64 }
    }
}

/// One coin of an accepted deposit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepositedCoin {
    /// The wire deadline in force: that of the first acceptance.
    pub wire_deadline: Timestamp,
    /// The contribution less the deposit fee.
    pub amount_without_fee: Money,
    /// Whether it had been deposited before.
    pub repeated: bool,
}

/// Returns money of a deposit to its coin.
#[derive(Debug, Clone)]
pub struct Refund {
    /// The deposit and the merchant's number of the refund.
    pub key: RefundKey,
    /// Amount, including the refund fee.
    pub amount: Money,
    /// The merchant's signature, verified.
    pub merchant_sig: EddsaSignature,
}

/// An accepted refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refunded {
    /// Whether it had been accepted before.
    pub repeated: bool,
}

impl Command<ExchangeRules> for Refund {
    type Answer = Refunded;
    const METRIC: Option<&'static str> = Some("refund");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.key.coin_pub.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Coins>(CoinKey { coin_pub: self.key.coin_pub });
        plan.row::<Deposits>(self.key.deposit());
        plan.row::<Refunds>(self.key.clone());
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Refunded> {
        let coin_key = CoinKey { coin_pub: self.key.coin_pub };
        let coin = rows.get::<Coins>(&coin_key).ok_or(Refusal::CoinUnknown)?.clone();
        let terms = rules.terms(coin.denom, 0)?;
        let deposit_key = self.key.deposit();
        let deposit = rows.get::<Deposits>(&deposit_key).ok_or(Refusal::DepositUnknown)?.clone();
        let presented = PresentedCoin {
            coin_pub: self.key.coin_pub,
            denom: coin.denom,
            h_age: coin.h_age,
            denom_sig: coin.denom_sig.clone(),
        };
        if let Some(stored) = rows.get::<Refunds>(&self.key) {
            return if stored.amount == self.amount {
                Ok(Refunded { repeated: true })
            } else {
                Err(conflict(&presented, &coin, 0, ConflictReason::RefundOtherAmount))
            };
        }
        if deposit.wtid.is_some() {
            return Err(Refusal::DepositPaid);
        }
        if self.amount.is_zero() {
            return Err(Refusal::RefundBelowFee);
        }
        let back = self.amount.checked_sub(terms.fee_refund).map_err(|_| Refusal::RefundBelowFee)?;
        let refunded = deposit.refunded.checked_add(self.amount);
        let Some(refunded) = refunded.ok().filter(|refunded| *refunded <= deposit.amount) else {
            let reason = ConflictReason::RefundAboveDeposit { requested: self.amount };
            return Err(conflict(&presented, &coin, 0, reason));
        };
        let remaining = add(coin.remaining, back)?;
        assert!(remaining <= terms.value, "refunds never fill a coin above its value");
        rows.update::<Coins>(&coin_key, CoinRow { remaining, ..coin });
        // The deposit's own row is written, so that a refund and an aggregation of it can never miss each
        // other.
        rows.update::<Deposits>(&deposit_key, DepositRow { refunded, ..deposit });
        rows.insert::<Refunds>(&self.key, RefundRow { amount: self.amount, merchant_sig: self.merchant_sig });
        Ok(Refunded { repeated: false })
    }

    fn count(answer: &Refunded) -> Count {
        Count::of(1, answer.repeated)
    }
}

fn deposit_key(command: &Deposit, coin: &DepositCoin) -> DepositKey {
    DepositKey {
        coin_pub: coin.coin.coin_pub,
        merchant_pub: command.merchant_pub,
        h_contract_terms: command.h_contract_terms,
    }
}

/// A refusal with the coin's history as proof. The history is filled in after the batch.
pub(super) fn conflict(coin: &PresentedCoin, row: &CoinRow, index: usize, reason: ConflictReason) -> Refusal {
    Refusal::CoinConflict {
        index,
        conflict: Box::new(CoinConflict {
            coin_pub: coin.coin_pub,
            reason,
            history: CoinHistory::unread(coin.coin_pub, row),
        }),
    }
}

/// The coin's row, or a new row at its first use (C1, C2). The caller writes it if it changes the coin.
pub(super) fn known_or_new(
    rows: &WorkingSet,
    coin: &PresentedCoin,
    terms: &DenomTerms,
    index: usize,
) -> Result<CoinRow> {
    let Some(row) = rows.get::<Coins>(&CoinKey { coin_pub: coin.coin_pub }) else {
        return Ok(CoinRow {
            denom: coin.denom,
            h_age: coin.h_age,
            denom_sig: coin.denom_sig.clone(),
            remaining: terms.value,
            zombie: false,
        });
    };
    if row.denom != coin.denom {
        return Err(conflict(coin, row, index, ConflictReason::OtherDenomination));
    }
    if row.h_age != coin.h_age {
        return Err(conflict(coin, row, index, ConflictReason::OtherAgeCommitment));
    }
    assert!(row.remaining <= terms.value, "a coin holds at most its value");
    Ok(row.clone())
}

/// Takes what a coin pays, to a merchant, into a purse or for a reserve, after checking that it may pay that
/// much now, and writes its row.
pub(super) fn pay(
    rows: &mut WorkingSet,
    coin: &PresentedCoin,
    row: CoinRow,
    (terms, amount): (&DenomTerms, Money),
    index: usize,
    now: Timestamp,
) -> Result<()> {
    terms.spendable(is_revoked(rows, coin.denom), now).map_err(|problem| Refusal::DenominationUnusable {
        index,
        denom: coin.denom,
        problem,
    })?;
    if amount > terms.value {
        return Err(Refusal::ContributionAboveValue { index });
    }
    // A payment of zero without a fee would lengthen the coin's history at no cost.
    if amount.is_zero() || amount < terms.fee_deposit {
        return Err(Refusal::ContributionBelowFee { index });
    }
    debit(rows, coin, row, amount, index)
}

/// Takes value from a coin and writes its row.
pub(super) fn debit(
    rows: &mut WorkingSet,
    coin: &PresentedCoin,
    row: CoinRow,
    amount: Money,
    index: usize,
) -> Result<()> {
    let Ok(remaining) = row.remaining.checked_sub(amount) else {
        return Err(conflict(coin, &row, index, ConflictReason::Insufficient { requested: amount }));
    };
    rows.put::<Coins>(&CoinKey { coin_pub: coin.coin_pub }, CoinRow { remaining, ..row });
    Ok(())
}

impl ExchangeRules {
    fn deposit_coin(
        &self,
        rows: &mut WorkingSet,
        command: &Deposit,
        coin: &DepositCoin,
        index: usize,
        exchange_time: Timestamp,
        now: Timestamp,
    ) -> Result<DepositedCoin> {
        let terms = self.terms(coin.coin.denom, index)?;
        let row = known_or_new(rows, &coin.coin, &terms, index)?;
        let key = deposit_key(command, coin);
        if let Some(stored) = rows.get::<Deposits>(&key) {
            // Compare everything that the confirmation covers, and not only the coin's signature: a weak
            // key's signature may be valid for two messages.
            let same = stored.coin_sig == coin.coin_sig
                && stored.amount == coin.contribution
                && stored.h_payto == command.h_payto
                && stored.wire_salt == command.wire_salt
                && stored.wallet_time == command.wallet_time
                && stored.refund_deadline == command.refund_deadline;
            if !same {
                return Err(conflict(&coin.coin, &row, index, ConflictReason::OtherDeposit));
            }
            return Ok(DepositedCoin {
                wire_deadline: stored.wire_deadline,
                amount_without_fee: less_fee(coin.contribution, terms.fee_deposit, index)?,
                repeated: true,
            });
        }
        pay(rows, &coin.coin, row, (&terms, coin.contribution), index, now)?;
        let amount_without_fee = less_fee(coin.contribution, terms.fee_deposit, index)?;
        rows.insert::<Deposits>(
            &key,
            DepositRow {
                denom: coin.coin.denom,
                amount: coin.contribution,
                wallet_time: command.wallet_time,
                exchange_time,
                refund_deadline: command.refund_deadline,
                wire_deadline: command.wire_deadline,
                wire_salt: command.wire_salt,
                h_payto: command.h_payto,
                coin_sig: coin.coin_sig,
                refunded: Money::ZERO,
                wtid: None,
            },
        );
        Ok(DepositedCoin { wire_deadline: command.wire_deadline, amount_without_fee, repeated: false })
    }
}

/// A contribution less the deposit fee.
pub(super) fn less_fee(contribution: Money, fee: Money, index: usize) -> Result<Money> {
    contribution.checked_sub(fee).map_err(|_| Refusal::ContributionBelowFee { index })
}
