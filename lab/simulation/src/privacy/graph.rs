//! The refresh graph: the operator keeps an account of what each customer probably has.
//!
//! A deposit names its coin, and so does a melt. So the operator knows which payment each change comes from,
//! and which denominations it gave. Only from fresh coins to their next use nothing leads. The attack follows
//! the expected number of coins of each denomination that stem from each reserve: a withdrawal adds to it, a
//! payment takes from those who could have made it, and change returns to them in the same proportions.

use std::collections::HashMap;

use batzen_crypto::EddsaPublicKey;

use super::facts::{DENOMS_MAX, Facts, Occurrence};

/// The number of coins that a reserve is assumed to have left without any sign of it.
const FLOOR: f64 = 1e-4;

/// The weight of each kind of knowledge. Learned, see [`super::game`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trust {
    /// The wallet would have paid with a smaller coin.
    pub selection: f64,
    /// The weights of [`super::features::Feature::ALL`], in their order.
    pub features: [f64; 3],
}

impl Trust {
    /// The refresh graph alone.
    pub const GRAPH: Self = Self { selection: 0.0, features: [0.0; 3] };
}

/// The probabilities of all reserves, for one coin.
pub type Guess = Vec<f64>;

/// Follows a town. `hints` gives, for a payment and a coin, the logarithmic weights of reserves by other
/// attacks, once for a payment. `visit` gets the guess for each paid coin.
pub fn follow(
    facts: &Facts,
    trust: &Trust,
    hints: &mut dyn FnMut(usize, usize, &mut Vec<f64>),
    visit: &mut dyn FnMut(usize, usize, &[f64]),
) {
    let mut mass: Vec<[f64; DENOMS_MAX]> = Vec::new();
    let mut in_account: Vec<[f64; DENOMS_MAX]> = vec![[0.0; DENOMS_MAX]; facts.accounts];
    let mut left: HashMap<EddsaPublicKey, Guess> = HashMap::new();
    let mut hint = Vec::new();
    for (_, occurrence) in &facts.occurrences {
        match occurrence {
            Occurrence::Withdrawn(index) => {
                debug_assert_eq!(*index, mass.len());
                let coins = facts.reserves[*index].coins.map(f64::from);
                add(&mut in_account[facts.reserves[*index].account], &coins, 1.0);
                mass.push(coins);
            }
            Occurrence::Paid(index) => {
                let payment = &facts.payments[*index];
                let known = payment.reserves.min(mass.len());
                let share = 1.0 / payment.coins.len() as f64;
                // For each coin, the weight of each reserve, and their logarithmic product for each account.
                let mut likely = vec![0.0_f64; facts.accounts];
                if trust.selection > 0.0 && payment.coins.len() == 1 && payment.coins[0].has_change {
                    let paid = payment.coins[0].denom;
                    for (account, log) in likely.iter_mut().enumerate() {
                        let smaller = (0..paid).filter(|denom| facts.values[*denom] >= payment.cents);
                        *log -= trust.selection
                            * smaller.map(|denom| in_account[account][denom].min(3.0)).sum::<f64>();
                    }
                }
                let mut weights: Vec<Guess> = Vec::with_capacity(payment.coins.len());
                for (coin, part) in payment.coins.iter().enumerate() {
                    hint.clear();
                    hints(*index, coin, &mut hint);
                    let mut weight = vec![0.0; known];
                    let mut sums = vec![0.0_f64; facts.accounts];
                    for reserve in 0..known {
                        let hint = hint.get(reserve).copied().unwrap_or_default();
                        weight[reserve] = (mass[reserve][part.denom] + FLOOR) * (hint * share).exp();
                        sums[facts.reserves[reserve].account] += weight[reserve];
                    }
                    for (log, sum) in likely.iter_mut().zip(&sums) {
                        *log += if *sum > 0.0 { sum.ln() } else { f64::NEG_INFINITY };
                    }
                    for (reserve, weight) in weight.iter_mut().enumerate() {
                        *weight /= sums[facts.reserves[reserve].account].max(f64::MIN_POSITIVE);
                    }
                    weights.push(weight);
                }
                normalise(&mut likely);
                for ((coin, part), mut guess) in payment.coins.iter().enumerate().zip(weights) {
                    for (reserve, probability) in guess.iter_mut().enumerate() {
                        *probability *= likely[facts.reserves[reserve].account];
                    }
                    visit(*index, coin, &guess);
                    spend(facts, &mut mass, &mut in_account, &guess, part.denom);
                    if part.has_change {
                        left.insert(part.coin_pub, guess);
                    }
                }
            }
            Occurrence::Melted(old, coins) => {
                let Some(guess) = left.remove(old) else { continue };
                let coins = coins.map(f64::from);
                for (reserve, probability) in guess.iter().enumerate() {
                    if *probability > 1e-9 {
                        add(&mut mass[reserve], &coins, *probability);
                        add(&mut in_account[facts.reserves[reserve].account], &coins, *probability);
                    }
                }
            }
        }
    }
}

fn add(to: &mut [f64; DENOMS_MAX], coins: &[f64; DENOMS_MAX], times: f64) {
    for (sum, more) in to.iter_mut().zip(coins) {
        *sum += more * times;
    }
}

fn spend(
    facts: &Facts,
    mass: &mut [[f64; DENOMS_MAX]],
    in_account: &mut [[f64; DENOMS_MAX]],
    guess: &[f64],
    denom: usize,
) {
    for (reserve, probability) in guess.iter().enumerate() {
        let taken = probability.min(mass[reserve][denom]);
        mass[reserve][denom] -= taken;
        let account = &mut in_account[facts.reserves[reserve].account][denom];
        *account = (*account - taken).max(0.0);
    }
}

/// Turns logarithms into probabilities.
pub fn normalise(logs: &mut [f64]) {
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for log in logs.iter_mut() {
        *log = if most.is_finite() { (*log - most).exp() } else { 1.0 };
        sum += *log;
    }
    for log in logs.iter_mut() {
        *log /= sum;
    }
}
