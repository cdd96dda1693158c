//! Selects the denominations to withdraw and the coins to pay with. Pure arithmetic.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{AmountError, Money};

type Result<T> = std::result::Result<T, AmountError>;

/// A denomination that the exchange issues now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub h_denom_pub: HashCode,
    /// Value of a coin.
    pub(crate) value: Money,
    /// Withdraw fee of a coin.
    pub(crate) fee_withdraw: Money,
}

/// The coins to withdraw for a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuePlan {
    /// Denominations, one entry a coin, largest first.
    pub denoms: Vec<HashCode>,
    /// Sum of the coins' values.
    pub value: Money,
    /// Sum of the withdraw fees.
    pub fees: Money,
    /// The remainder that no coin fits. `value + fees + leftover` equals the sum.
    pub leftover: Money,
}

/// Splits `sum` into coins, largest first, no more than `max_coins` of them.
///
/// # Errors
/// [`AmountError::Overflow`] if an offer's value and fee overflow together.
pub(crate) fn split_into_coins(offers: &[Offer], sum: Money, max_coins: usize) -> Result<IssuePlan> {
    let mut sorted: Vec<&Offer> = offers.iter().filter(|offer| !offer.value.is_zero()).collect();
    // Of equal values the cheaper comes first. The last sort key makes the result independent of the list's
    // order.
    sorted.sort_by(|a, b| {
        b.value
            .cmp(&a.value)
            .then(a.fee_withdraw.cmp(&b.fee_withdraw))
            .then(a.h_denom_pub.cmp(&b.h_denom_pub))
    });
    let mut plan = IssuePlan { denoms: Vec::new(), value: Money::ZERO, fees: Money::ZERO, leftover: sum };
    for offer in sorted {
        let cost = offer.value.checked_add(offer.fee_withdraw)?;
        while plan.denoms.len() < max_coins && plan.leftover >= cost {
            plan.leftover = plan.leftover.checked_sub(cost)?;
            plan.value = plan.value.checked_add(offer.value)?;
            plan.fees = plan.fees.checked_add(offer.fee_withdraw)?;
            plan.denoms.push(offer.h_denom_pub);
        }
    }
    assert_eq!(
        plan.value.units() + plan.fees.units() + plan.leftover.units(),
        sum.units(),
        "splitting into coins keeps the sum"
    );
    Ok(plan)
}

/// A coin that can pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub coin_pub: EddsaPublicKey,
    pub remaining: Money,
    /// Deposit fee of its denomination.
    pub fee_deposit: Money,
}

/// One coin's contribution to a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    pub(crate) coin_pub: EddsaPublicKey,
    /// The contribution, deposit fee included.
    pub(crate) amount: Money,
    /// The deposit fee in it.
    pub(crate) fee_deposit: Money,
    /// The change: it stays on the coin and should be refreshed.
    pub(crate) change: Money,
}

/// Coins and contributions that make up a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentPlan {
    /// The coins.
    pub contributions: Vec<Contribution>,
    /// Sum of the contributions.
    pub total: Money,
    /// Sum of the deposit fees. The receiver gets `total - fees`.
    pub fees: Money,
    /// Estimated cost of refreshing the change, including change that is too small for any coin.
    pub change_cost: Money,
}

/// The target of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Amount for the receiver.
    pub(crate) amount: Money,
    /// Deposit fees up to this sum are deducted from `amount` instead of being paid on top.
    pub(crate) max_fee: Money,
    /// Most coins.
    pub(crate) max_coins: usize,
    /// Of equally cheap payments, prefer one without change, even with more coins.
    pub(crate) avoids_change: bool,
}

/// Takes coins in the given order until they meet the target.
fn cover(order: &[Candidate], target: Target) -> Result<Option<Vec<Contribution>>> {
    let (mut needed, mut allowance) = (target.amount, target.max_fee);
    let mut chosen = Vec::new();
    for coin in order {
        if needed.is_zero() {
            break;
        }
        let allowed = coin.fee_deposit.min(allowance);
        let on_top = coin.fee_deposit.checked_sub(allowed)?;
        // A coin whose fee consumes its whole value does not help.
        if coin.remaining <= on_top || coin.remaining < coin.fee_deposit {
            continue;
        }
        if chosen.len() == target.max_coins {
            return Ok(None);
        }
        // The exchange accepts no contribution below the deposit fee.
        let wanted = needed.checked_add(on_top)?.max(coin.fee_deposit);
        let amount = wanted.min(coin.remaining);
        allowance = allowance.checked_sub(allowed)?;
        needed = needed.checked_add(on_top)?.checked_sub(amount).unwrap_or(Money::ZERO);
        chosen.push(Contribution {
            coin_pub: coin.coin_pub,
            amount,
            fee_deposit: coin.fee_deposit,
            change: coin.remaining.checked_sub(amount)?,
        });
    }
    Ok(needed.is_zero().then_some(chosen))
}

/// Whole coins that fit, largest first, then the smallest coin that covers the rest.
fn best_fit(sorted: &[Candidate], target: Target) -> Vec<Candidate> {
    let mut left = target.amount;
    let mut order = Vec::new();
    let mut others = Vec::new();
    for coin in sorted {
        let net = coin.remaining.checked_sub(coin.fee_deposit).unwrap_or(Money::ZERO);
        if !net.is_zero() && net <= left {
            left = left.checked_sub(net).unwrap_or(Money::ZERO);
            order.push(*coin);
        } else {
            others.push(*coin);
        }
    }
    others.reverse();
    order.extend(others);
    order
}

/// Selects coins for `target` at the least cost: the deposit fees that the receiver does not bear, plus the
/// estimated cost of refreshing the change. `change_cost` returns that cost for a coin and an amount.
///
/// Tries several orders (largest first, smallest first, lowest fee first, best fit, each single coin that
/// suffices) and keeps the cheapest result; among equals the one with the fewest coins. At most one coin is
/// spent partly. `None` if the coins do not suffice.
///
/// # Errors
/// [`AmountError::Overflow`] if sums overflow.
pub(crate) fn select_coins(
    candidates: &[Candidate],
    target: Target,
    change_cost: &dyn Fn(&EddsaPublicKey, Money) -> Money,
) -> Result<Option<PaymentPlan>> {
    let mut descending = candidates.to_vec();
    descending.sort_by(|a, b| b.remaining.cmp(&a.remaining).then(a.fee_deposit.cmp(&b.fee_deposit)));
    let mut ascending = descending.clone();
    ascending.reverse();
    // Orders by fee per value without division: f1/r1 < f2/r2 is f1*r2 < f2*r1.
    let mut cheapest = descending.clone();
    cheapest.sort_by(|a, b| {
        ratio_key(a.fee_deposit, b.remaining)
            .cmp(&ratio_key(b.fee_deposit, a.remaining))
            .then(b.remaining.cmp(&a.remaining))
    });
    let mut orders = vec![best_fit(&descending, target), cheapest, ascending.clone(), descending];
    // Each distinct coin that suffices alone, smallest first: a smaller coin leaves less change.
    let mut last = None;
    for coin in &ascending {
        let kind = (coin.remaining, coin.fee_deposit);
        if coin.remaining >= target.amount && last != Some(kind) {
            last = Some(kind);
            orders.push(vec![*coin]);
        }
    }
    let mut best: Option<PaymentPlan> = None;
    for order in orders {
        let Some(contributions) = cover(&order, target)? else { continue };
        let contributions = prune(candidates, contributions, target)?;
        let plan = price(contributions, change_cost)?;
        if best.as_ref().is_none_or(|best| plan_key(&plan, target) < plan_key(best, target)) {
            best = Some(plan);
        }
    }
    Ok(best)
}

/// `fee * other` in full width: both factors are below 2^80, so the product needs up to 160 bits.
fn ratio_key(fee: Money, other: Money) -> (u128, u128) {
    let (a, b) = (fee.units(), other.units());
    let (a_high, a_low) = (a >> 64, a & u128::from(u64::MAX));
    let (b_high, b_low) = (b >> 64, b & u128::from(u64::MAX));
    let low = a_low * b_low;
    let middle = a_high * b_low + a_low * b_high + (low >> 64);
    (a_high * b_high + (middle >> 64), (middle << 64) | (low & u128::from(u64::MAX)))
}

fn plan_key(plan: &PaymentPlan, target: Target) -> (u128, bool, usize) {
    let borne = plan.fees.units().saturating_sub(target.max_fee.units());
    let has_change = plan.contributions.iter().any(|part| !part.change.is_zero());
    let is_avoidable = target.avoids_change && has_change;
    (borne + plan.change_cost.units(), is_avoidable, plan.contributions.len())
}

/// Drops coins that the payment does not need.
fn prune(candidates: &[Candidate], chosen: Vec<Contribution>, target: Target) -> Result<Vec<Contribution>> {
    let mut best = chosen;
    let mut order: Vec<Candidate> = best
        .iter()
        .filter_map(|part| candidates.iter().find(|candidate| candidate.coin_pub == part.coin_pub))
        .copied()
        .collect();
    let mut index = 0;
    while index < order.len() && order.len() > 1 {
        let mut without = order.clone();
        without.remove(index);
        match cover(&without, target)? {
            Some(contributions) => {
                order = without;
                best = contributions;
            }
            None => index += 1,
        }
    }
    Ok(best)
}

fn price(
    contributions: Vec<Contribution>,
    change_cost: &dyn Fn(&EddsaPublicKey, Money) -> Money,
) -> Result<PaymentPlan> {
    let total = Money::checked_sum(contributions.iter().map(|part| part.amount))?;
    let fees = Money::checked_sum(contributions.iter().map(|part| part.fee_deposit))?;
    let change_cost = Money::checked_sum(
        contributions
            .iter()
            .filter(|part| !part.change.is_zero())
            .map(|part| change_cost(&part.coin_pub, part.change)),
    )?;
    Ok(PaymentPlan { contributions, total, fees, change_cost })
}

/// Selects everything that the coins can pay: each whole coin whose value exceeds its fee.
///
/// # Errors
/// [`AmountError::Overflow`] if sums overflow.
pub(crate) fn select_all(candidates: &[Candidate], max_coins: usize) -> Result<PaymentPlan> {
    let mut sorted: Vec<&Candidate> =
        candidates.iter().filter(|coin| coin.remaining > coin.fee_deposit).collect();
    sorted.sort_by_key(|coin| std::cmp::Reverse(coin.remaining));
    let contributions = sorted
        .into_iter()
        .take(max_coins)
        .map(|coin| Contribution {
            coin_pub: coin.coin_pub,
            amount: coin.remaining,
            fee_deposit: coin.fee_deposit,
            change: Money::ZERO,
        })
        .collect();
    price(contributions, &|_, _| Money::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn money(units: u128) -> Money {
        Money::from_units(units).expect("small")
    }

    fn key(n: u64) -> EddsaPublicKey {
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        EddsaPublicKey::from_bytes(bytes)
    }

    fn hash(n: u64) -> HashCode {
        let mut bytes = [0u8; 64];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        HashCode::from_bytes(bytes)
    }

    fn coins(list: &[(u128, u128)]) -> Vec<Candidate> {
        list.iter()
            .enumerate()
            .map(|(n, &(remaining, fee))| Candidate {
                coin_pub: key(n as u64),
                remaining: money(remaining),
                fee_deposit: money(fee),
            })
            .collect()
    }

    fn select(list: &[(u128, u128)], amount: u128, max_fee: u128) -> Option<PaymentPlan> {
        let target =
            Target { amount: money(amount), max_fee: money(max_fee), max_coins: 256, avoids_change: false };
        select_coins(&coins(list), target, &|_, change| money(change.units().min(1))).expect("no overflow")
    }

    #[test]
    fn splits_largest_first() {
        let offers: Vec<Offer> = [(1, 8, 1), (2, 2, 0), (3, 1, 0)]
            .map(|(n, value, fee)| Offer {
                h_denom_pub: hash(n),
                value: money(value),
                fee_withdraw: money(fee),
            })
            .to_vec();
        let plan = split_into_coins(&offers, money(23), 100).expect("no overflow");
        assert_eq!(plan.denoms, [hash(1), hash(1), hash(2), hash(2), hash(3)]);
        assert_eq!((plan.value, plan.fees, plan.leftover), (money(21), money(2), money(0)));
        let plan = split_into_coins(&offers, money(23), 2).expect("no overflow");
        assert_eq!((plan.denoms.len(), plan.leftover), (2, money(5)));
    }

    #[test]
    fn pays_exactly_with_whole_coins_if_it_can() {
        let plan = select(&[(8, 0), (4, 0), (2, 0), (1, 0)], 11, 0).expect("enough");
        assert_eq!((plan.contributions.len(), plan.total, plan.change_cost), (3, money(11), money(0)));
    }

    #[test]
    fn one_coin_with_change_beats_many_fees() {
        let plan = select(&[(10, 1), (1, 1), (2, 1), (2, 1), (3, 1), (3, 1), (3, 1)], 4, 0).expect("enough");
        assert_eq!(plan.contributions.len(), 1);
        assert_eq!((plan.total, plan.fees), (money(5), money(1)));
    }

    #[test]
    fn the_receiver_may_bear_fees() {
        let plan = select(&[(10, 2)], 10, 2).expect("enough");
        assert_eq!((plan.total, plan.fees), (money(10), money(2)));
        assert!(select(&[(10, 2)], 10, 1).is_none());
        // A contribution below the deposit fee is not allowed, even if the receiver would bear the fee.
        let plan = select(&[(10, 2)], 1, 2).expect("enough");
        assert_eq!(plan.total, money(2));
    }

    #[test]
    fn coins_worth_less_than_their_fee_are_left_alone() {
        assert!(select(&[(1, 1), (1, 1), (1, 2)], 1, 0).is_none());
        assert_eq!(select_all(&coins(&[(1, 1), (5, 1), (1, 2)]), 10).expect("no overflow").total, money(5));
    }

    proptest! {
        #[test]
        fn splitting_loses_nothing(
            offers in prop::collection::vec((1u128..1000, 0u128..20), 0..8),
            sum in 0u128..100_000,
            max_coins in 0usize..300,
        ) {
            let offers: Vec<Offer> = offers.iter().enumerate().map(|(n, &(value, fee))| Offer {
                h_denom_pub: hash(n as u64), value: money(value), fee_withdraw: money(fee),
            }).collect();
            let plan = split_into_coins(&offers, money(sum), max_coins).expect("no overflow");
            let (mut value, mut fees) = (0, 0);
            for denom in &plan.denoms {
                let offer = offers.iter().find(|offer| offer.h_denom_pub == *denom).expect("offered");
                value += offer.value.units();
                fees += offer.fee_withdraw.units();
            }
            prop_assert_eq!((value, fees), (plan.value.units(), plan.fees.units()));
            prop_assert_eq!(value + fees + plan.leftover.units(), sum);
            prop_assert!(plan.denoms.len() <= max_coins);
            if plan.denoms.len() < max_coins {
                prop_assert!(offers.iter().all(|o| (o.value.units() + o.fee_withdraw.units()) > plan.leftover.units()));
            }
        }

        #[test]
        fn payments_are_exact_and_never_overdraw(
            list in prop::collection::vec((0u128..500, 0u128..20), 0..20),
            amount in 1u128..1500,
            max_fee in 0u128..40,
        ) {
            let have = coins(&list);
            match select(&list, amount, max_fee) {
                Some(plan) => {
                    let mut seen = std::collections::HashSet::new();
                    let mut partial = 0;
                    for part in &plan.contributions {
                        let coin = have.iter().find(|coin| coin.coin_pub == part.coin_pub).expect("ours");
                        prop_assert!(seen.insert(part.coin_pub), "no coin twice");
                        prop_assert!(part.amount <= coin.remaining);
                        prop_assert!(part.amount >= coin.fee_deposit, "F2");
                        prop_assert_eq!(part.amount.units() + part.change.units(), coin.remaining.units());
                        partial += usize::from(!part.change.is_zero());
                    }
                    prop_assert!(partial <= 1);
                    let total: u128 = plan.contributions.iter().map(|part| part.amount.units()).sum();
                    let fees: u128 = plan.contributions.iter().map(|part| part.fee_deposit.units()).sum();
                    prop_assert_eq!(total, plan.total.units());
                    prop_assert_eq!(fees, plan.fees.units());
                    let due = amount + fees.saturating_sub(max_fee);
                    prop_assert!(total >= due);
                    if max_fee == 0 {
                        prop_assert_eq!(total, due, "exact when the payer bears all fees");
                    }
                }
                None => {
                    // With all coins at their best the target stays out of reach.
                    let net: u128 = list.iter().map(|&(remaining, fee)| remaining.saturating_sub(fee)).sum();
                    prop_assert!(net < amount || max_fee > 0);
                    prop_assert!(net < amount);
                }
            }
        }
    }
}
