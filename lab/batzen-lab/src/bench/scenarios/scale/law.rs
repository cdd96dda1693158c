//! The universal scalability law (Gunther): a pure function of measured rates.
//!
//! With `n` cores a server reaches `λn ÷ (1 + σ(n − 1) + κn(n − 1))`: `λ` is the rate of one core, `σ` the share of
//! the work that waits for others (contention), `κ` what keeping cores coherent costs. The core time of a coin,
//! `n ÷ rate`, is then linear in the three unknowns, so a fit by least squares has an exact solution.

use serde::{Deserialize, Serialize};

/// A rate that was measured, or computed from processor time, on a number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Cores of the server.
    pub(crate) cores: f64,
    /// Coins per second.
    pub(crate) coins_per_s: f64,
}

/// The law with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Law {
    /// Coins per second on one core: λ.
    pub(crate) one_core_coins_per_s: f64,
    /// Contention: σ.
    pub(crate) sigma: f64,
    /// Coherence: κ.
    pub(crate) kappa: f64,
}

/// Constants by which the core time of a coin grows: `base + contention (n − 1) + coherence n (n − 1)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CoreTime {
    base: f64,
    contention: f64,
    coherence: f64,
}

/// The models to try: whether contention and coherence are free.
const CANDIDATES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// Number of constants that some points determine.
pub(crate) fn identified(points: &[Point]) -> usize {
    let mut cores: Vec<f64> = points.iter().map(|point| point.cores).collect();
    cores.sort_by(f64::total_cmp);
    cores.dedup();
    cores.len().min(3)
}

impl Law {
    /// The law that fits best, with no negative constants: least squares of the relative deviations. One number of
    /// cores determines λ only, two also σ; what is not determined is zero. `None` without points, or with one that
    /// is not positive.
    pub(crate) fn fit(points: &[Point]) -> Option<Self> {
        if points.is_empty() || points.iter().any(|point| point.cores < 1.0 || point.coins_per_s <= 0.0) {
            return None;
        }
        let known = identified(points);
        // The best solution with constraints is the best without them among those that have some constants zero.
        CANDIDATES
            .into_iter()
            .filter(|[contention, coherence]| 1 + usize::from(*contention) + usize::from(*coherence) <= known)
            // With two numbers of cores, contention explains the difference.
            .filter(|[contention, coherence]| known > 2 || *contention || !*coherence)
            .filter_map(|free| {
                let time = solve(points, free)?;
                let is_possible = time.base > 0.0 && time.contention >= 0.0 && time.coherence >= 0.0;
                is_possible.then(|| (time.deviation(points), time))
            })
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
            .map(|(_, time)| time.law())
    }

    /// Coins per second on this many cores.
    pub(crate) fn coins_per_s(&self, cores: f64) -> f64 {
        cores / self.core_s(cores)
    }

    /// Seconds of cores that a coin takes with this many cores.
    pub(crate) fn core_s(&self, cores: f64) -> f64 {
        let others = cores - 1.0;
        (1.0 + self.sigma * others + self.kappa * cores * others) / self.one_core_coins_per_s
    }

    /// The same law if every core waited while one is in a section of this length in each coin.
    pub(crate) fn with_serial(&self, serial_s: f64) -> Self {
        Self { sigma: self.sigma + serial_s * self.one_core_coins_per_s, ..*self }
    }

    /// The same law with at least this contention.
    pub(crate) fn with_sigma_of_at_least(&self, sigma: f64) -> Self {
        Self { sigma: self.sigma.max(sigma), ..*self }
    }

    /// The mean relative deviation of points from the law (root mean square).
    pub(crate) fn error(&self, points: &[Point]) -> f64 {
        let squares =
            points.iter().map(|point| (self.coins_per_s(point.cores) / point.coins_per_s - 1.0).powi(2));
        (squares.sum::<f64>() / points.len().max(1) as f64).sqrt()
    }
}

impl CoreTime {
    fn at(&self, cores: f64) -> f64 {
        self.base + self.contention * (cores - 1.0) + self.coherence * cores * (cores - 1.0)
    }

    fn deviation(&self, points: &[Point]) -> f64 {
        points
            .iter()
            .map(|point| (self.at(point.cores) * point.coins_per_s / point.cores - 1.0).powi(2))
            .sum()
    }

    fn law(&self) -> Law {
        Law {
            one_core_coins_per_s: 1.0 / self.base,
            sigma: self.contention / self.base,
            kappa: self.coherence / self.base,
        }
    }
}

/// Least squares of relative deviations; constants that are not free are zero.
fn solve(points: &[Point], [contention, coherence]: [bool; 2]) -> Option<CoreTime> {
    let free: Vec<usize> =
        [Some(0), contention.then_some(1), coherence.then_some(2)].into_iter().flatten().collect();
    // The normal equations.
    let mut matrix = vec![vec![0.0; free.len() + 1]; free.len()];
    for point in points {
        let (n, weight) = (point.cores, point.coins_per_s / point.cores);
        let terms = [1.0, n - 1.0, n * (n - 1.0)].map(|term| term * weight);
        for (row, &i) in matrix.iter_mut().zip(&free) {
            for (place, &j) in row.iter_mut().zip(&free) {
                *place += terms[i] * terms[j];
            }
            row[free.len()] += terms[i];
        }
    }
    let mut constants = [0.0; 3];
    for (&index, value) in free.iter().zip(eliminate(matrix)?) {
        constants[index] = value;
    }
    let [base, contention, coherence] = constants;
    Some(CoreTime { base, contention, coherence })
}

/// Solves linear equations, whose right sides are in the last column; `None` if they have no single solution.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    const SINGULAR: f64 = 1e-12;
    let size = rows.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let scale = rows[column][column];
        let largest = rows.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        if scale.abs() <= SINGULAR * largest {
            return None;
        }
        rows[column].iter_mut().for_each(|value| *value /= scale);
        let pivot_row = rows[column].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            if index != column {
                let factor = row[column];
                row.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
    }
    Some(rows.iter().map(|row| row[size]).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn law(one_core_coins_per_s: f64, sigma: f64, kappa: f64) -> Law {
        Law { one_core_coins_per_s, sigma, kappa }
    }

    fn points(law: Law, cores: &[f64]) -> Vec<Point> {
        cores.iter().map(|&cores| Point { cores, coins_per_s: law.coins_per_s(cores) }).collect()
    }

    #[test]
    fn rates_follow_by_hand() {
        let law = law(1_000.0, 0.1, 0.01);
        assert_eq!(law.coins_per_s(1.0), 1_000.0);
        // 4,000 ÷ (1 + 0.1 × 3 + 0.01 × 4 × 3).
        assert!((law.coins_per_s(4.0) - 4_000.0 / 1.42).abs() < 1e-9);
        let serial = Law { kappa: 0.0, ..law }.with_serial(100e-6);
        assert!((serial.sigma - 0.2).abs() < 1e-12, "100 µs are a tenth of a coin's millisecond");
        assert!((serial.coins_per_s(1e9) - 5_000.0).abs() < 0.01, "contention bounds the rate by λ ÷ σ");
    }

    #[test]
    fn what_points_do_not_determine_is_zero() {
        let measured = points(law(1_000.0, 0.1, 0.01), &[1.0, 1.0]);
        assert_eq!(identified(&measured), 1);
        assert_eq!(Law::fit(&measured), Some(law(1_000.0, 0.0, 0.0)));
        let measured = points(law(1_000.0, 0.1, 0.01), &[1.0, 2.0, 2.0]);
        let fit = Law::fit(&measured).unwrap();
        assert_eq!((identified(&measured), fit.kappa), (2, 0.0));
        // Two cores: σ + 2κ.
        assert!((fit.sigma - 0.12).abs() < 1e-9, "{fit:?}");
    }

    #[test]
    fn constants_are_not_negative() {
        // Twice the cores, more than twice the rate.
        let lucky = [Point { cores: 1.0, coins_per_s: 100.0 }, Point { cores: 2.0, coins_per_s: 210.0 }];
        let fit = Law::fit(&lucky).unwrap();
        assert_eq!((fit.sigma, fit.kappa), (0.0, 0.0));
        assert!(fit.one_core_coins_per_s > 100.0 && fit.one_core_coins_per_s < 105.0, "{fit:?}");
        assert!((0.02..0.03).contains(&fit.error(&lucky)), "{}", fit.error(&lucky));
        for wrong in [Point { cores: 1.0, coins_per_s: 0.0 }, Point { cores: 0.0, coins_per_s: 1.0 }] {
            assert_eq!(Law::fit(&[wrong]), None);
        }
        assert_eq!(Law::fit(&[]), None);
    }

    proptest! {
        #[test]
        fn fit_finds_the_law_behind_exact_points(
            rate in 10.0..1e6_f64,
            sigma in 0.0..0.5_f64,
            kappa in 0.0..0.05_f64,
        ) {
            let truth = law(rate, sigma, kappa);
            let fit = Law::fit(&points(truth, &[1.0, 2.0, 4.0, 8.0, 16.0])).unwrap();
            prop_assert!((fit.one_core_coins_per_s / rate - 1.0).abs() < 1e-6, "{fit:?}");
            prop_assert!((fit.sigma - sigma).abs() < 1e-6 && (fit.kappa - kappa).abs() < 1e-7, "{fit:?}");
        }

        #[test]
        fn fit_of_disturbed_points_is_never_worse_than_a_neighbour(
            rates in proptest::collection::vec((1_u8..=8, 50.0..400.0_f64), 1..12),
            step in 0.001..0.2_f64,
        ) {
            let points: Vec<Point> = rates
                .iter()
                .map(|&(cores, rate)| Point { cores: cores.into(), coins_per_s: rate * f64::from(cores) })
                .collect();
            // Points that fall so steeply that one core would be infinitely fast follow no law.
            prop_assume!(CANDIDATES.into_iter().all(|free| solve(&points, free).is_none_or(|time| time.base > 0.0)));
            let fit = Law::fit(&points).unwrap();
            prop_assert!(fit.one_core_coins_per_s > 0.0 && fit.sigma >= 0.0 && fit.kappa >= 0.0, "{fit:?}");
            let time = CoreTime {
                base: 1.0 / fit.one_core_coins_per_s,
                contention: fit.sigma / fit.one_core_coins_per_s,
                coherence: fit.kappa / fit.one_core_coins_per_s,
            };
            let known = identified(&points);
            let grow = |amount: f64| amount * step * time.base;
            for [base, contention, coherence] in [
                [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0],
            ] {
                let other = CoreTime {
                    base: time.base + grow(base),
                    contention: time.contention + grow(contention),
                    coherence: time.coherence + grow(coherence),
                };
                let is_allowed = other.contention >= 0.0
                    && other.coherence >= 0.0
                    && (known > 1 || contention == 0.0)
                    && (known > 2 || coherence == 0.0);
                if is_allowed {
                    prop_assert!(time.deviation(&points) <= other.deviation(&points) + 1e-9, "{time:?} {other:?}");
                }
            }
        }

        #[test]
        fn more_contention_never_helps(cores in 1.0..128.0_f64, sigma in 0.0..0.5_f64, serial in 0.0..1e-3_f64) {
            let law = law(1_000.0, sigma, 0.0);
            prop_assert!(law.with_serial(serial).coins_per_s(cores) <= law.coins_per_s(cores) + 1e-9);
            prop_assert!(law.coins_per_s(cores) <= 1_000.0 * cores + 1e-6);
        }
    }
}
