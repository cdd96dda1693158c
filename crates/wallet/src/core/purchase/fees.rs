//! Who bears the fees of a purchase: the contract's rule, and coins selected by it.
//!
//! The merchant bears deposit fees and the payer's share of the wire fee up to `max_fee`. The share is the
//! wire fee above `max_wire_fee`, divided by `wire_fee_amortization`. The payer pays what exceeds that.

use batzen_protocol::{Money, Timestamp};

use super::super::exchange::Exchange;
use super::super::payment::{candidates, choose};
use super::super::select::{PaymentPlan, Target};
use super::super::{CoreError, WalletState};
use super::contract::ContractTerms;
use super::{MAX_COINS, bad};

/// The payer's share of a wire fee, rounded down to the smallest unit.
///
/// # Errors
/// Cannot happen: a quotient is not larger than its dividend.
pub fn wire_fee_share(wire_fee: Money, max_wire_fee: Money, amortization: u64) -> Result<Money, CoreError> {
    let excess = wire_fee.units().saturating_sub(max_wire_fee.units());
    Ok(Money::from_units(excess / u128::from(amortization.max(1)))?)
}

/// The target for coins that pay `amount`, of which coins with these contributions and deposit fees are
/// selected already.
///
/// # Errors
/// On overflow.
pub fn target(
    amount: Money,
    max_fee: Money,
    share: Money,
    (total_kept, fees_kept): (Money, Money),
    max_coins: usize,
) -> Result<Target, CoreError> {
    let fees = share.checked_add(fees_kept)?;
    let borne = saturating_sub(fees, max_fee);
    let needed = amount.checked_add(borne)?;
    Ok(Target {
        amount: saturating_sub(needed, total_kept),
        max_fee: saturating_sub(max_fee, fees),
        max_coins,
    })
}

/// `a - b`, and zero if `b` is larger.
pub(super) fn saturating_sub(a: Money, b: Money) -> Money {
    a.checked_sub(b).unwrap_or(Money::ZERO)
}

/// The coins for a purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurchasePlan {
    /// Base URL of the exchange whose coins pay.
    pub exchange: String,
    /// The coins.
    pub coins: PaymentPlan,
    /// The payer's share of the wire fee.
    pub wire_fee_share: Money,
    /// What the payer pays above the price.
    pub fees: Money,
}

/// Selects the cheapest coins of one exchange for a contract, without recording anything.
///
/// # Errors
/// [`CoreError::InsufficientFunds`] or [`CoreError::AgeNotProven`]; [`CoreError::BadInput`] if the merchant
/// accepts the coins of no exchange that the wallet knows.
pub fn preview(
    state: &WalletState,
    terms: &ContractTerms,
    now: Timestamp,
) -> Result<PurchasePlan, CoreError> {
    let mut best: Option<(u128, PurchasePlan)> = None;
    let mut failure = None;
    for exchange in state.exchanges.values().filter(|exchange| terms.accepts(exchange)) {
        match of_exchange(state, exchange, terms, now) {
            Ok(plan) => {
                let cost = plan.coins.total.units() + plan.coins.change_cost.units();
                if best.as_ref().is_none_or(|(other, _)| cost < *other) {
                    best = Some((cost, plan));
                }
            }
            Err(error) => failure = Some(error),
        }
    }
    match (best, failure) {
        (Some((_, plan)), _) => Ok(plan),
        (None, Some(error)) => Err(error),
        (None, None) => Err(not_accepted(terms)),
    }
}

fn not_accepted(terms: &ContractTerms) -> CoreError {
    const MAX_LISTED: usize = 3;
    let urls: Vec<String> =
        terms.exchanges.iter().take(MAX_LISTED).map(|exchange| super::printable(&exchange.url)).collect();
    let whose = if urls.is_empty() { "no exchange".to_owned() } else { urls.join(", ") };
    let currency = terms.amount.currency;
    bad(
        "the shop's contract",
        format!("the shop accepts {currency} of {whose}; this wallet has none of these coins"),
    )
}

fn of_exchange(
    state: &WalletState,
    exchange: &Exchange,
    terms: &ContractTerms,
    now: Timestamp,
) -> Result<PurchasePlan, CoreError> {
    let amount = terms.amount.money_in(exchange.currency)?;
    if amount.is_zero() {
        let none = Money::ZERO;
        let coins = PaymentPlan { contributions: Vec::new(), total: none, fees: none, change_cost: none };
        return Ok(PurchasePlan {
            exchange: exchange.base_url.clone(),
            coins,
            wire_fee_share: none,
            fees: none,
        });
    }
    let wire_fee = exchange.wire_fee_of(&terms.wire_method, now).ok_or_else(|| {
        bad(
            "the shop's contract",
            format!("{} does not pay to {:?} accounts now", exchange.base_url, terms.wire_method),
        )
    })?;
    let share = wire_fee_share(
        wire_fee.money_in(exchange.currency)?,
        terms.max_wire_fee.money,
        terms.wire_fee_amortization,
    )?;
    let target = target(amount, terms.max_fee.money, share, (Money::ZERO, Money::ZERO), MAX_COINS)?;
    let all = candidates(state, exchange, now)?;
    let mut have = Vec::with_capacity(all.len());
    for candidate in &all {
        if state.coin(&candidate.coin_pub)?.can_attest(terms.min_age) {
            have.push(*candidate);
        }
    }
    let coins = match choose(state, exchange, &have, target, now) {
        Err(CoreError::InsufficientFunds { needed, available })
            if choose(state, exchange, &all, target, now).is_ok() =>
        {
            return Err(CoreError::AgeNotProven { min_age: terms.min_age, needed, available });
        }
        result => result?,
    };
    let fees = saturating_sub(coins.total, amount);
    Ok(PurchasePlan { exchange: exchange.base_url.clone(), coins, wire_fee_share: share, fees })
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPublicKey;
    use proptest::prelude::*;

    use super::super::super::select::{Candidate, select_coins};
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
        /// What the wallet pays suffices for the merchant, and one unit less on any coin would not.
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
