//! Attacks that compare a payment with each earlier withdrawal by one kind of trace. A comparison gives a
//! class; how much more often a class occurs with the true withdrawal than with any other is learned from
//! towns whose truth the operator knows, for example because it simulates them.

use std::collections::HashMap;

use batzen_crypto::EddsaPublicKey;

use super::facts::{Facts, Payment, Reserve};

/// An attack on one kind of trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// Sums that are equal, or equal in their odd cents.
    Amounts,
    /// The time between withdrawal and payment, and what happened between them.
    Timing,
    /// The denominations that are spent together.
    Denominations,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Amounts, Self::Timing, Self::Denominations];
}

/// The most classes of a feature.
const CLASSES: usize = 512;

/// The context of a payment: everything that it is compared with besides the withdrawal.
pub struct Surroundings<'a> {
    facts: &'a Facts,
    /// Sums of payments within a day of each payment.
    near: Vec<Vec<u64>>,
    /// The first payment after each reserve's first coin.
    first: Vec<usize>,
}

/// Two payments within this time may be made from one withdrawal.
const NEAR: u64 = 24 * 3600 * 1_000_000;

impl<'a> Surroundings<'a> {
    /// The surroundings of all payments.
    #[must_use]
    pub fn new(facts: &'a Facts) -> Self {
        let first = facts
            .reserves
            .iter()
            .map(|reserve| facts.payments.partition_point(|payment| payment.serial < reserve.serial));
        Self { facts, near: vec![Vec::new(); facts.payments.len()], first: first.collect() }
    }

    /// Sums of other payments within a day before or after this one.
    fn near(&mut self, payment: usize) -> &[u64] {
        if self.near[payment].is_empty() {
            let at = self.facts.payments[payment].time;
            let all = &self.facts.payments;
            let from = all.partition_point(|other| other.time + NEAR < at);
            let to = all.partition_point(|other| other.time < at + NEAR);
            let mut sums: Vec<u64> =
                (from..to).filter(|index| *index != payment).map(|index| all[index].cents).collect();
            sums.sort_unstable();
            self.near[payment] = sums;
        }
        &self.near[payment]
    }
}

/// The class of a number of microseconds.
fn age_class(age: u64) -> usize {
    const STEPS: [u64; 12] =
        [10, 60, 300, 1_800, 7_200, 28_800, 86_400, 172_800, 345_600, 604_800, 1_209_600, 2_592_000];
    STEPS.iter().take_while(|step| age >= **step * 1_000_000).count()
}

fn amounts(payment: &Payment, reserve: &Reserve, near: &[u64]) -> usize {
    let is_round = reserve.cents.is_multiple_of(1_000);
    let relation = if payment.cents == reserve.cents {
        0
    } else if reserve.cents > payment.cents && near.binary_search(&(reserve.cents - payment.cents)).is_ok() {
        1
    } else if payment.cents % 100 == reserve.cents % 100 {
        2
    } else if reserve.cents > payment.cents {
        3
    } else {
        4
    };
    relation * 2 + usize::from(is_round)
}

fn timing(payment: &Payment, reserve: &Reserve, index: usize, payments_before: usize) -> usize {
    let later = payment.reserves - 1 - index;
    let rank = match later {
        0 => 0,
        1..3 => 1,
        3..10 => 2,
        _ => 3,
    };
    let between = match payments_before {
        0 => 0,
        1..4 => 1,
        _ => 2,
    };
    age_class(payment.time - reserve.time) * 12 + rank * 3 + between
}

fn denominations(payment: &Payment, coin: usize, reserve: &Reserve) -> usize {
    let mut counts = [0_u32; super::facts::DENOMS_MAX];
    for coin in &payment.coins {
        counts[coin.denom] += 1;
    }
    let total: u32 = counts.iter().sum();
    let shared: u32 = counts.iter().zip(&reserve.coins).map(|(a, b)| a.min(b)).sum();
    let withdrawn: u32 = reserve.coins.iter().sum();
    // All coins of the withdrawal are spent here, all coins of the payment may come from it, some, or none.
    let relation = match shared {
        shared if shared == withdrawn => 3,
        shared if shared == total => 2,
        0 => 0,
        _ => 1,
    };
    let denom = payment.coins[coin].denom;
    (denom * 2 + usize::from(reserve.coins[denom] > 0)) * 8 + relation * 2 + usize::from(total > 1)
}

impl Feature {
    /// The classes of a payment's coin and all earlier reserves.
    pub fn classes(self, around: &mut Surroundings<'_>, payment: usize, coin: usize, out: &mut Vec<usize>) {
        out.clear();
        let facts = around.facts;
        let paid = &facts.payments[payment];
        let known = &facts.reserves[..paid.reserves];
        match self {
            Self::Amounts => {
                let near = around.near(payment);
                out.extend(known.iter().map(|reserve| amounts(paid, reserve, near)));
            }
            Self::Timing => out.extend(
                known
                    .iter()
                    .enumerate()
                    .map(|(index, reserve)| timing(paid, reserve, index, payment - around.first[index])),
            ),
            Self::Denominations => {
                out.extend(known.iter().map(|reserve| denominations(paid, coin, reserve)));
            }
        }
    }
}

/// The weights of a feature's classes: the logarithm of how much more likely each is with the true reserve.
#[derive(Clone, Debug)]
pub struct Weights(Vec<f64>);

impl Weights {
    /// The weight of a class.
    #[must_use]
    pub fn of(&self, class: usize) -> f64 {
        self.0[class]
    }
}

/// Counts classes for [`Weights`].
pub struct Learner {
    with_truth: Vec<f64>,
    with_any: Vec<f64>,
}

impl Default for Learner {
    fn default() -> Self {
        // A small number for each class, so that a class that never occurred means little.
        Self { with_truth: vec![0.02; CLASSES], with_any: vec![0.02; CLASSES] }
    }
}

impl Learner {
    /// Learns from a town. `reserve_of` returns the true reserve's index.
    pub fn learn(&mut self, feature: Feature, facts: &Facts, reserve_of: &HashMap<EddsaPublicKey, usize>) {
        let mut around = Surroundings::new(facts);
        let mut classes = Vec::new();
        for (payment, paid) in facts.payments.iter().enumerate() {
            for (coin, part) in paid.coins.iter().enumerate() {
                let Some(truth) = reserve_of.get(&part.coin_pub).filter(|index| **index < paid.reserves)
                else {
                    continue;
                };
                feature.classes(&mut around, payment, coin, &mut classes);
                let weight = 1.0 / paid.coins.len() as f64;
                self.with_truth[classes[*truth]] += weight;
                for class in &classes {
                    self.with_any[*class] += weight / classes.len() as f64;
                }
            }
        }
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> Weights {
        let (truths, any) = (self.with_truth.iter().sum::<f64>(), self.with_any.iter().sum::<f64>());
        let ratios =
            self.with_truth.iter().zip(&self.with_any).map(|(truth, other)| (truth / truths) / (other / any));
        Weights(ratios.map(f64::ln).collect())
    }
}
