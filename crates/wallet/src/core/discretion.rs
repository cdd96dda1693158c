//! Discretion: what a wallet does so that its payments are harder to link to its withdrawals.
//!
//! Signatures link nothing, but sums, times and sets of coins can. Each option trades something for privacy;
//! `docs/privacy.md` has the figures. None of them puts money at risk: change that waits is a coin in the
//! wallet's file, with the time of its refresh.

use batzen_protocol::{AmountError, Duration, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::Entropy;
use super::select::{IssuePlan, Offer, split_into_coins};

/// The options, for one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Discretion {
    /// Suggest only common sums for withdrawals.
    pub round_sums: bool,
    /// Get an assortment of coins, as from a till, instead of the fewest, and pay without change if possible.
    pub assortment: bool,
    /// The longest random delay before change is refreshed. Zero: at once.
    pub refresh_delay: Duration,
}

/// The longest delay that can be set. Change must not come near the end of its denomination.
pub(crate) const REFRESH_DELAY_MAX: Duration = Duration::from_days(7);

/// Units of one whole of a currency.
const WHOLE: u128 = 100_000_000;
/// The smallest common sum, in wholes.
const COMMON_MIN: u128 = 50;

impl Discretion {
    /// Splits a sum into coins, in the way that these options ask for.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] if an offer's value and fee overflow together.
    pub(crate) fn split(
        &self,
        offers: &[Offer],
        sum: Money,
        max_coins: usize,
    ) -> Result<IssuePlan, AmountError> {
        if self.assortment {
            assort(offers, sum, max_coins)
        } else {
            split_into_coins(offers, sum, max_coins)
        }
    }

    /// The sum to withdraw if somebody needs `needed`: the next common sum, or the same without this option.
    #[must_use]
    pub fn sum_for(&self, needed: Money) -> Money {
        if self.round_sums { common_sum(needed) } else { needed }
    }

    /// When a coin's change may be refreshed if it became due now.
    pub(crate) fn refresh_time(&self, now: Timestamp, entropy: &mut dyn Entropy) -> Timestamp {
        let seconds = self.refresh_delay.min(REFRESH_DELAY_MAX).as_micros() / 1_000_000;
        let bound = usize::try_from(seconds).unwrap_or(usize::MAX - 1) + 1;
        now.saturating_add(Duration::from_secs(entropy.below(bound) as u64))
    }
}

/// The smallest common sum that is at least `needed`: 50, 100, 200, 500, 1000 and so on. The fewer sums
/// there are, the more people withdraw each of them.
#[must_use]
pub(crate) fn common_sum(needed: Money) -> Money {
    let mut decade = 10;
    loop {
        for digit in [1, 2, 5] {
            let wholes: u128 = digit * decade;
            let Ok(sum) = Money::from_units(wholes * WHOLE) else { return needed };
            if wholes >= COMMON_MIN && sum >= needed {
                return sum;
            }
        }
        decade *= 10;
    }
}

/// Number of coins of each small denomination in an assortment, if the sum suffices.
const EACH: usize = 3;

/// Splits `sum` into an assortment: some coins of each denomination, smallest first, as long as they take no
/// more than half of what is left, then the rest largest first.
///
/// # Errors
/// [`AmountError::Overflow`] if an offer's value and fee overflow together.
pub(crate) fn assort(offers: &[Offer], sum: Money, max_coins: usize) -> Result<IssuePlan, AmountError> {
    let mut sorted: Vec<&Offer> = offers.iter().filter(|offer| !offer.value.is_zero()).collect();
    sorted.sort_by(|a, b| a.value.cmp(&b.value).then(a.h_denom_pub.cmp(&b.h_denom_pub)));
    let (mut denoms, mut value, mut fees, mut left) = (Vec::new(), Money::ZERO, Money::ZERO, sum);
    for offer in sorted {
        let cost = offer.value.checked_add(offer.fee_withdraw)?;
        for _ in 0..EACH {
            if denoms.len() * 2 >= max_coins || cost.checked_mul(2)? > left {
                break;
            }
            left = left.checked_sub(cost)?;
            value = value.checked_add(offer.value)?;
            fees = fees.checked_add(offer.fee_withdraw)?;
            denoms.push(offer.h_denom_pub);
        }
    }
    let rest = split_into_coins(offers, left, max_coins - denoms.len())?;
    denoms.extend(&rest.denoms);
    // Largest first, as always.
    let value_of = |h| offers.iter().find(|offer| offer.h_denom_pub == h).map(|offer| offer.value);
    denoms.sort_by_key(|h| std::cmp::Reverse((value_of(*h), *h)));
    let plan = IssuePlan {
        denoms,
        value: value.checked_add(rest.value)?,
        fees: fees.checked_add(rest.fees)?,
        leftover: rest.leftover,
    };
    assert_eq!(
        plan.value.units() + plan.fees.units() + plan.leftover.units(),
        sum.units(),
        "an assortment keeps the sum"
    );
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use batzen_crypto::HashCode;
    use proptest::prelude::*;

    use super::super::SeededEntropy;
    use super::*;

    fn wholes(n: u128) -> Money {
        Money::from_units(n * WHOLE).expect("small")
    }

    fn offers(list: &[(u128, u128)]) -> Vec<Offer> {
        let offer = |(n, (value, fee)): (usize, &(u128, u128))| {
            let mut bytes = [0; 64];
            bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
            Offer {
                h_denom_pub: HashCode::from_bytes(bytes),
                value: Money::from_units(*value).expect("small"),
                fee_withdraw: Money::from_units(*fee).expect("small"),
            }
        };
        list.iter().enumerate().map(offer).collect()
    }

    #[test]
    fn common_sums_are_few() {
        for (needed, sum) in [(0, 50), (1, 50), (50, 50), (51, 100), (99, 100), (101, 200), (501, 1_000)] {
            assert_eq!(common_sum(wholes(needed)), wholes(sum), "{needed}");
        }
        let most = Money::from_units((1 << 52) * WHOLE).expect("the largest amount");
        assert!(common_sum(most) >= most, "a sum without a common one above it stays");
        let off = Discretion::default();
        assert_eq!(off.sum_for(wholes(37)), wholes(37));
    }

    #[test]
    fn delays_are_bounded() {
        let mut entropy = SeededEntropy::new(3);
        let now = Timestamp::from_secs(1_000);
        let hour = Discretion { refresh_delay: Duration::from_secs(3_600), ..Discretion::default() };
        let mut late = 0;
        for _ in 0..200 {
            let at = hour.refresh_time(now, &mut entropy);
            assert!(at >= now && at <= now.saturating_add(Duration::from_secs(3_600)));
            late += u32::from(at > now.saturating_add(Duration::from_secs(1_800)));
        }
        assert!((60..140).contains(&late), "{late}");
        assert_eq!(Discretion::default().refresh_time(now, &mut entropy), now);
        let year = Discretion { refresh_delay: Duration::from_days(365), ..Discretion::default() };
        assert!(year.refresh_time(now, &mut entropy) <= now.saturating_add(REFRESH_DELAY_MAX));
    }

    proptest! {
        #[test]
        fn an_assortment_loses_nothing(
            list in prop::collection::vec((1u128..1000, 0u128..20), 0..8),
            sum in 0u128..100_000,
            max_coins in 0usize..300,
        ) {
            let offers = offers(&list);
            let sum = Money::from_units(sum).expect("small");
            let plan = assort(&offers, sum, max_coins).expect("no overflow");
            prop_assert!(plan.denoms.len() <= max_coins);
            let (mut value, mut fees) = (0, 0);
            for denom in &plan.denoms {
                let offer = offers.iter().find(|offer| offer.h_denom_pub == *denom).expect("offered");
                value += offer.value.units();
                fees += offer.fee_withdraw.units();
            }
            prop_assert_eq!((value, fees), (plan.value.units(), plan.fees.units()));
            prop_assert_eq!(value + fees + plan.leftover.units(), sum.units());
            // A sum that yields a coin otherwise yields one here too.
            let plain = split_into_coins(&offers, sum, max_coins).expect("no overflow");
            prop_assert_eq!(plain.denoms.is_empty(), plan.denoms.is_empty());
        }
    }
}
