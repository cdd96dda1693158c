//! Scores of guesses: how often they are right, compared with guessing, and how many candidates are left.

use super::facts::Facts;

/// The score of an attack on one town.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// The weight of all guesses: the number of payments.
    pub payments: f64,
    /// Frequency with which the most likely reserve is the true one.
    pub success: f64,
    /// Frequency with which a random earlier reserve is the true one.
    pub guessing: f64,
    /// The mean entropy of the operator's belief about the reserve, in bits.
    pub entropy: f64,
    /// Frequency with which the most likely bank account is the true one.
    pub account_success: f64,
    /// Frequency with which the account with the most reserves is the true one.
    pub account_guessing: f64,
    /// The mean entropy of the operator's belief about the account, in bits.
    pub account_entropy: f64,
}

fn advantage(success: f64, guessing: f64) -> f64 {
    if guessing < 1.0 { (success - guessing) / (1.0 - guessing) } else { 0.0 }
}

impl Score {
    /// Advantage over guessing: 0 is none, 1 means that every guess is right.
    #[must_use]
    pub fn advantage(&self) -> f64 {
        advantage(self.success, self.guessing)
    }

    /// The same for bank accounts.
    #[must_use]
    pub fn account_advantage(&self) -> f64 {
        advantage(self.account_success, self.account_guessing)
    }

    /// Number of equally likely reserves that would leave the operator as uncertain.
    #[must_use]
    pub fn anonymity_set(&self) -> f64 {
        self.entropy.exp2()
    }

    /// Number of equally likely accounts that would leave the operator as uncertain.
    #[must_use]
    pub fn account_anonymity_set(&self) -> f64 {
        self.account_entropy.exp2()
    }
}

/// Exponents of the sharpness of beliefs. An attack that treats dependent traces as independent is too sure
/// of itself, so its probabilities are raised to one of these powers, which is learned.
pub const SHARPNESS: [f64; 6] = [0.15, 0.3, 0.45, 0.6, 0.8, 1.0];

/// Adds up the guesses of an attack.
pub struct Scorer<'a> {
    facts: &'a Facts,
    sharpness: f64,
    /// For each of [`SHARPNESS`], the sum of the surprises, in bits, or nothing if it is not being learned.
    surprises: Option<[f64; SHARPNESS.len()]>,
    scratch: Vec<f64>,
    sums: Score,
    by_account: Vec<f64>,
    /// Number of reserves that each account has had so far.
    counts: Vec<f64>,
}

/// Returns the probability that a choice of the largest value is right, with ties broken at random, and the
/// entropy.
fn judge(probabilities: &[f64], truth: usize) -> (f64, f64) {
    let most = probabilities.iter().copied().fold(0.0, f64::max);
    // Values that differ only by rounding are equal.
    let is_most = |probability: f64| probability >= most * (1.0 - 1e-9);
    let ties = probabilities.iter().filter(|probability| is_most(**probability)).count();
    let success = if is_most(probabilities[truth]) { 1.0 / ties as f64 } else { 0.0 };
    let entropy = probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.log2()).sum();
    (success, entropy)
}

impl<'a> Scorer<'a> {
    /// No guesses yet.
    #[must_use]
    pub fn new(facts: &'a Facts, sharpness: f64) -> Self {
        let empty = vec![0.0; facts.accounts];
        Self {
            facts,
            sharpness,
            surprises: None,
            scratch: Vec::new(),
            sums: Score::default(),
            by_account: empty.clone(),
            counts: empty,
        }
    }

    /// Learns the sharpness.
    #[must_use]
    pub fn learning(facts: &'a Facts) -> Self {
        Self { surprises: Some([0.0; SHARPNESS.len()]), ..Self::new(facts, 1.0) }
    }

    /// The sharpness with the least surprise.
    #[must_use]
    pub fn sharpness(&self) -> f64 {
        let pairs = self.surprises.iter().flatten().zip(SHARPNESS);
        pairs.min_by(|(a, _), (b, _)| a.total_cmp(b)).map_or(1.0, |(_, sharpness)| sharpness)
    }

    /// Adds the guess for a coin: the probabilities of all reserves known at the time. `truth` is the true
    /// reserve's index.
    pub fn add(&mut self, payment: usize, probabilities: &[f64], truth: usize) {
        let weight = 1.0 / self.facts.payments[payment].coins.len() as f64;
        if let Some(surprises) = &mut self.surprises {
            for (sum, sharpness) in surprises.iter_mut().zip(SHARPNESS) {
                let total: f64 = probabilities.iter().map(|probability| probability.powf(sharpness)).sum();
                let own = probabilities[truth].max(1e-300).powf(sharpness);
                *sum -= weight * (own / total).log2();
            }
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend(probabilities.iter().map(|probability| probability.powf(self.sharpness)));
        let total: f64 = scratch.iter().sum();
        scratch.iter_mut().for_each(|probability| *probability /= total);
        let probabilities = scratch.as_slice();
        let (success, entropy) = judge(probabilities, truth);
        self.by_account.fill(0.0);
        self.counts.fill(0.0);
        for (reserve, probability) in self.facts.reserves.iter().zip(probabilities) {
            self.by_account[reserve.account] += probability;
            self.counts[reserve.account] += 1.0;
        }
        let account = self.facts.reserves[truth].account;
        let (account_success, account_entropy) = judge(&self.by_account, account);
        let (account_guessing, _) = judge(&self.counts, account);
        let sums = &mut self.sums;
        sums.payments += weight;
        sums.success += weight * success;
        sums.guessing += weight / probabilities.len() as f64;
        sums.entropy += weight * entropy;
        sums.account_success += weight * account_success;
        sums.account_guessing += weight * account_guessing;
        sums.account_entropy += weight * account_entropy;
        self.scratch = scratch;
    }

    /// The averages.
    #[must_use]
    pub fn score(&self) -> Score {
        let (sums, n) = (self.sums, self.sums.payments.max(f64::MIN_POSITIVE));
        Score {
            payments: sums.payments,
            success: sums.success / n,
            guessing: sums.guessing / n,
            entropy: sums.entropy / n,
            account_success: sums.account_success / n,
            account_guessing: sums.account_guessing / n,
            account_entropy: sums.account_entropy / n,
        }
    }
}

/// A mean over towns with half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval. Zero for a single town.
    pub margin: f64,
}

impl Mean {
    /// The mean of these values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        // Quantiles of Student's t distribution for 1, 2, … degrees of freedom.
        const T: [f64; 15] =
            [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13];
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        if values.len() < 2 {
            return Self { mean, margin: 0.0 };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let t = T.get(values.len() - 2).copied().unwrap_or(2.0);
        Self { mean, margin: t * (variance / n).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_count_by_chance() {
        let (success, entropy) = judge(&[0.25; 4], 2);
        assert!((success - 0.25).abs() < 1e-12 && (entropy - 2.0).abs() < 1e-12);
        assert_eq!(judge(&[0.0, 1.0], 1), (1.0, 0.0));
        assert_eq!(judge(&[0.0, 1.0], 0).0, 0.0);
    }

    #[test]
    fn an_interval_is_wider_for_fewer_towns() {
        let few = Mean::of(&[0.1, 0.2]);
        let more = Mean::of(&[0.1, 0.2, 0.1, 0.2, 0.1, 0.2]);
        assert!((few.mean - 0.15).abs() < 1e-12 && few.margin > more.margin);
        assert_eq!(Mean::of(&[0.3]).margin, 0.0);
    }
}
