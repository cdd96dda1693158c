//! Fees of a purchase: the contract's rule, and coins selected by it.
//!
//! The merchant bears deposit fees and the payer's share of the wire fees up to `max_fee`. The share is what
//! the wire fees of all exchanges whose coins pay have above `max_wire_fee`, divided by
//! `wire_fee_amortization`. The payer pays what exceeds that.

use std::collections::BTreeSet;

use batzen_protocol::{Money, Timestamp};

use super::super::coin::CoinStatus;
use super::super::exchange::Exchange;
use super::super::select::{Candidate, PaymentPlan, Target};
use super::super::spend::{candidates, choose};
use super::super::state::Draft;
use super::super::{CoreError, WalletState};
use super::{ContractTerms, MAX_COINS, PurchaseCoin};
use crate::core::error::{Result, bad_input};

/// The payer's share of the wire fees, rounded down to the smallest unit.
///
/// # Errors
/// Cannot happen: a quotient is not larger than its dividend.
pub(crate) fn wire_fee_share(wire_fee: Money, max_wire_fee: Money, amortization: u64) -> Result<Money> {
    let excess = wire_fee.units().saturating_sub(max_wire_fee.units());
    Ok(Money::from_units(excess / u128::from(amortization.max(1)))?)
}

/// The target for coins that pay `amount`, of which coins with these contributions and deposit fees are
/// selected already.
///
/// # Errors
/// On overflow.
pub(crate) fn target(
    amount: Money,
    max_fee: Money,
    share: Money,
    (total_kept, fees_kept): (Money, Money),
    max_coins: usize,
) -> Result<Target> {
    let fees = share.checked_add(fees_kept)?;
    let borne = saturating_sub(fees, max_fee);
    let needed = amount.checked_add(borne)?;
    Ok(Target {
        amount: saturating_sub(needed, total_kept),
        max_fee: saturating_sub(max_fee, fees),
        max_coins,
        avoids_change: false,
    })
}

/// `a - b`, and zero if `b` is larger.
pub(super) fn saturating_sub(a: Money, b: Money) -> Money {
    a.checked_sub(b).unwrap_or(Money::ZERO)
}

/// Most exchanges whose coins pay for one purchase.
pub(crate) const MAX_EXCHANGES: usize = 8;

/// The coins for a purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurchasePlan {
    /// Base URLs of the exchanges whose coins pay, at least one.
    pub exchanges: Vec<String>,
    /// The coins.
    pub coins: PaymentPlan,
    /// The payer's share of the wire fees.
    pub(crate) wire_fee_share: Money,
    /// The sum that the payer pays above the price.
    pub fees: Money,
}

/// Selects coins for a contract, without recording anything: those of the fewest exchanges, because each has a
/// wire fee, and among these the cheapest.
///
/// # Errors
/// [`CoreError::InsufficientFunds`] or [`CoreError::AgeNotProven`]; [`CoreError::BadInput`] if the merchant
/// accepts the coins of no exchange that the wallet knows.
pub fn preview(state: &WalletState, terms: &ContractTerms, now: Timestamp) -> Result<PurchasePlan> {
    select(&Draft::new(state), terms, &[], now)
}

/// Selects coins that complete those which stay in a purchase.
pub(super) fn select(
    draft: &Draft<'_>,
    terms: &ContractTerms,
    kept: &[PurchaseCoin],
    now: Timestamp,
) -> Result<PurchasePlan> {
    let accepted: Vec<&Exchange> =
        draft.base().exchanges.values().filter(|exchange| terms.accepts(exchange)).collect();
    let first = accepted.first().ok_or_else(|| not_accepted(terms))?;
    if terms.amount.is_zero() {
        let none = Money::ZERO;
        let coins = PaymentPlan { contributions: Vec::new(), total: none, fees: none, change_cost: none };
        let exchanges = vec![first.base_url.clone()];
        return Ok(PurchasePlan { exchanges, coins, wire_fee_share: none, fees: none });
    }
    let mut choice = Choice::new(draft, terms, kept, now)?;
    let mut unpaid = None;
    for exchange in &accepted {
        match exchange.wire_fee_of(&terms.wire_method, now) {
            Some(fee) => choice.add(exchange, fee.money_in(exchange.currency)?)?,
            None => unpaid = Some(exchange),
        }
    }
    if let Some(exchange) = unpaid
        && (choice.sources.is_empty() || choice.holds(exchange))
    {
        return Err(bad_input(
            "the shop's contract",
            format!("{} does not pay to {:?} accounts now", exchange.base_url, terms.wire_method),
        ));
    }
    choice.cheapest()
}

/// Coins of an exchange that can pay.
struct Source<'a> {
    exchange: &'a Exchange,
    wire_fee: Money,
    /// The coins that can prove the age.
    have: Vec<Candidate>,
    /// All coins.
    all: Vec<Candidate>,
    /// The value of the coins after their deposit fees.
    worth: Money,
    /// Coins of it stay in the purchase, so that its wire fee is due in any case.
    is_kept: bool,
}

impl Source<'_> {
    /// The coins of a person of sufficient age, or of any age.
    fn coins(&self, any_age: bool) -> &[Candidate] {
        if any_age { &self.all } else { &self.have }
    }
}

/// The choice of the exchanges whose coins pay.
struct Choice<'a, 'd> {
    draft: &'d Draft<'a>,
    terms: &'d ContractTerms,
    now: Timestamp,
    kept: (Money, Money),
    kept_at: BTreeSet<&'d str>,
    max_coins: usize,
    sources: Vec<Source<'d>>,
}

impl<'a, 'd> Choice<'a, 'd> {
    fn new(
        draft: &'d Draft<'a>,
        terms: &'d ContractTerms,
        kept: &[PurchaseCoin],
        now: Timestamp,
    ) -> Result<Self> {
        let mut kept_at = BTreeSet::new();
        for part in kept {
            kept_at.insert(draft.coin(&part.coin_pub)?.exchange.as_str());
        }
        let total = Money::checked_sum(kept.iter().map(|part| part.amount))?;
        let fees = Money::checked_sum(kept.iter().map(|part| part.fee_deposit))?;
        let max_coins = MAX_COINS.saturating_sub(kept.len());
        Ok(Self { draft, terms, now, kept: (total, fees), kept_at, max_coins, sources: Vec::new() })
    }

    fn holds(&self, exchange: &Exchange) -> bool {
        self.kept_at.contains(exchange.base_url.as_str())
    }

    fn add(&mut self, exchange: &'d Exchange, wire_fee: Money) -> Result<()> {
        let (mut have, mut all) = (Vec::new(), Vec::new());
        let mut worth = Money::ZERO;
        for candidate in candidates(self.draft.base(), exchange, self.now)? {
            let coin = self.draft.coin(&candidate.coin_pub)?;
            if coin.status != CoinStatus::Fresh {
                continue;
            }
            all.push(candidate);
            if coin.can_attest(self.terms.min_age) {
                have.push(candidate);
                worth = worth.checked_add(saturating_sub(candidate.remaining, candidate.fee_deposit))?;
            }
        }
        let is_kept = self.holds(exchange);
        self.sources.push(Source { exchange, wire_fee, have, all, worth, is_kept });
        Ok(())
    }

    /// The cheapest coins of the fewest exchanges.
    fn cheapest(mut self) -> Result<PurchasePlan> {
        // Those with the most money come first; those of which coins stay are in every set.
        self.sources.sort_by_key(|source| std::cmp::Reverse((source.is_kept, source.worth)));
        self.sources.truncate(MAX_EXCHANGES.max(self.kept_at.len()));
        match self.search(false)? {
            Err(CoreError::InsufficientFunds { needed, available }) if self.search(true)?.is_ok() => {
                Err(CoreError::AgeNotProven { min_age: self.terms.min_age, needed, available })
            }
            result => result,
        }
    }

    /// Tries the sets of exchanges, smallest first. The inner error is that of the largest set.
    fn search(&self, any_age: bool) -> Result<Result<PurchasePlan>> {
        let kept = self.sources.iter().filter(|source| source.is_kept).count();
        let others = self.sources.len() - kept;
        let mut failure = not_accepted(self.terms);
        for size in usize::from(kept == 0)..=others {
            let mut best: Option<(u128, PurchasePlan)> = None;
            for set in (0u32..1 << others).filter(|set| set.count_ones() as usize == size) {
                let is_in = |place: usize| place < kept || set & (1 << (place - kept)) != 0;
                let chosen = self.sources.iter().enumerate().filter(|(place, _)| is_in(*place));
                let chosen: Vec<&Source<'d>> = chosen.map(|(_, source)| source).collect();
                let coins = chosen.iter().flat_map(|source| source.coins(any_age));
                let held = Money::checked_sum(coins.map(|coin| coin.remaining))?;
                if size < others && held.checked_add(self.kept.0)? < self.terms.amount.money {
                    continue;
                }
                match self.of_set(&chosen, any_age) {
                    Ok(plan) => {
                        let cost = plan.coins.total.units() + plan.coins.change_cost.units();
                        if best.as_ref().is_none_or(|(other, _)| cost < *other) {
                            best = Some((cost, plan));
                        }
                    }
                    Err(error @ (CoreError::InsufficientFunds { .. } | CoreError::TooManyCoins { .. })) => {
                        failure = error;
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some((_, plan)) = best {
                return Ok(Ok(plan));
            }
        }
        Ok(Err(failure))
    }

    fn of_set(&self, chosen: &[&Source<'d>], any_age: bool) -> Result<PurchasePlan> {
        let terms = self.terms;
        let wire_fees = Money::checked_sum(chosen.iter().map(|source| source.wire_fee))?;
        let share = wire_fee_share(wire_fees, terms.max_wire_fee.money, terms.wire_fee_amortization)?;
        let amount = terms.amount.money;
        let avoids_change = chosen.iter().any(|source| source.exchange.discretion.assortment);
        let target = target(amount, terms.max_fee.money, share, self.kept, self.max_coins)?;
        let target = Target { avoids_change, ..target };
        let have: Vec<Candidate> =
            chosen.iter().flat_map(|source| source.coins(any_age).iter().copied()).collect();
        let coins = choose(self.draft.base(), terms.amount.currency, &have, target, self.now)?;
        let fees = saturating_sub(coins.total.checked_add(self.kept.0)?, amount);
        let exchanges = chosen.iter().map(|source| source.exchange.base_url.clone()).collect();
        Ok(PurchasePlan { exchanges, coins, wire_fee_share: share, fees })
    }
}

fn not_accepted(terms: &ContractTerms) -> CoreError {
    const MAX_LISTED: usize = 3;
    let urls: Vec<String> =
        terms.exchanges.iter().take(MAX_LISTED).map(|exchange| super::printable(&exchange.url)).collect();
    let whose = if urls.is_empty() { "no exchange".to_owned() } else { urls.join(", ") };
    let currency = terms.amount.currency;
    bad_input(
        "the shop's contract",
        format!("the shop accepts {currency} of {whose}; this wallet has none of these coins"),
    )
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPublicKey;
    use proptest::prelude::*;

    use super::super::super::select::select_coins;
    use super::*;

    fn money(units: u128) -> Money {
        Money::from_units(units).expect("small")
    }

    /// The rule as merchants apply it, in plain integers.
    fn needed(amount: i128, max_fee: i128, wire: (i128, i128, i128), deposit_fees: i128) -> i128 {
        let (wire_fee, max_wire_fee, amortization) = wire;
        let excess = (wire_fee - max_wire_fee).max(0);
        let fees = deposit_fees + excess / amortization.max(1);
        amount + (fees - max_fee).max(0)
    }

    fn coins(list: &[(u128, u128)]) -> Vec<Candidate> {
        let candidate = |(n, &(remaining, fee)): (usize, &(u128, u128))| {
            let mut bytes = [0u8; 32];
            bytes[0] = n as u8;
            let coin_pub = EddsaPublicKey::from_bytes(bytes);
            Candidate { coin_pub, remaining: money(remaining), fee_deposit: money(fee) }
        };
        list.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn the_share_of_the_wire_fee_is_rounded_down() {
        let share = |fee, max, amortization| wire_fee_share(money(fee), money(max), amortization).unwrap();
        assert_eq!(share(10, 0, 1), money(10));
        assert_eq!(share(10, 3, 2), money(3));
        assert_eq!(share(10, 10, 1), Money::ZERO);
        assert_eq!(share(10, 99, 0), Money::ZERO);
        assert_eq!(share(10, 0, 0), money(10), "an amortization of zero counts as one");
        assert_eq!(share(10, 0, 11), Money::ZERO);
    }

    proptest! {
        /// Selections pay enough for the merchant, and one unit less on any coin would not do.
        #[test]
        fn selections_pay_exactly_what_the_merchant_needs(
            list in prop::collection::vec((1u128..400, 0u128..12), 1..8),
            amount in 1u128..600,
            max_fee in 0u128..40,
            wire_fee in 0u128..60,
            max_wire_fee in 0u128..60,
            amortization in 0u64..5,
        ) {
            let share = wire_fee_share(money(wire_fee), money(max_wire_fee), amortization).unwrap();
            let none = (Money::ZERO, Money::ZERO);
            let target = target(money(amount), money(max_fee), share, none, MAX_COINS).unwrap();
            let have = coins(&list);
            let wire = (wire_fee as i128, max_wire_fee as i128, i128::from(amortization));
            let needs = |fees: i128| needed(amount as i128, max_fee as i128, wire, fees);
            let plan = select_coins(&have, target, &|_, _| Money::ZERO).unwrap();
            let Some(plan) = plan else {
                // No set of coins suffices either.
                for set in 0u32..1 << list.len() {
                    let chosen = list.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0);
                    let chosen: Vec<_> = chosen.map(|(_, coin)| *coin).filter(|(value, fee)| value >= fee).collect();
                    let paid: u128 = chosen.iter().map(|(value, _)| value).sum();
                    let fees: u128 = chosen.iter().map(|(_, fee)| fee).sum();
                    prop_assert!((paid as i128) < needs(fees as i128), "{chosen:?}");
                }
                return Ok(());
            };
            let (paid, fees) = (plan.total.units() as i128, plan.fees.units() as i128);
            prop_assert!(paid >= needs(fees), "paid {paid}, needed {}", needs(fees));
            // More only where a coin has to contribute its fee.
            let forced = plan.contributions.iter().any(|part| part.amount == part.fee_deposit);
            prop_assert!(forced || paid == needs(fees), "paid {paid}, needed {}", needs(fees));
        }

        /// Replacing some of the coins of a purchase follows the same rule.
        #[test]
        fn replaced_coins_complete_the_others(
            kept in prop::collection::vec((12u128..100, 0u128..12), 0..4),
            list in prop::collection::vec((1u128..400, 0u128..12), 1..6),
            amount in 1u128..400,
            max_fee in 0u128..40,
            share in 0u128..40,
        ) {
            let total: u128 = kept.iter().map(|(value, _)| value).sum();
            let fees: u128 = kept.iter().map(|(_, fee)| fee).sum();
            let target =
                target(money(amount), money(max_fee), money(share), (money(total), money(fees)), 64).unwrap();
            if let Some(plan) = select_coins(&coins(&list), target, &|_, _| Money::ZERO).unwrap() {
                let paid = (total + plan.total.units()) as i128;
                let fees = (fees + plan.fees.units()) as i128;
                let wire = (share as i128, 0, 1);
                prop_assert!(paid >= needed(amount as i128, max_fee as i128, wire, fees));
            }
        }
    }
}
