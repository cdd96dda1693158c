//! Projection of a law to machines with more cores, and the stage that bounds it. Pure functions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::law::Law;

/// Machines with more cores are not considered.
pub(crate) const CORES_MAX: u32 = 1_024;

/// Growth of the threads of a stage with the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Growth {
    /// A thread on each core.
    Cores,
    /// As many threads as the exchange has lanes.
    Lanes,
    /// One thread, or one thread at a time.
    Alone,
}

/// A stage of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stage {
    /// Its name: `http`, `cpu`, `lane`, `store` or `other`, the role of its threads; or `commit`, the part of `lane`
    /// in which one thread runs at a time.
    pub(crate) name: String,
    /// Processor time of a coin, in microseconds.
    pub(crate) cpu_us_per_coin: f64,
    /// The growth of its threads.
    pub(crate) growth: Growth,
}

/// The stage that is a part of another.
pub(crate) const COMMIT: &str = "commit";

/// A bound of the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// The stage that saturates.
    pub(crate) stage: String,
    /// Coins per second.
    pub(crate) coins_per_s: f64,
}

/// The rate expected of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Projection {
    pub(crate) cores: u32,
    /// Coins per second: the law of all rounds with the larger of both estimates of σ, bounded by the stages.
    pub(crate) coins_per_s: f64,
    /// The lowest of the rounds' laws with the sum of both estimates: every core waits while one is in the serial part,
    /// and that comes on top of what was measured.
    pub(crate) low_coins_per_s: f64,
    /// The highest of the rounds' laws with the measured σ alone: no core waits until a stage is saturated.
    pub(crate) high_coins_per_s: f64,
    /// The bottleneck: a stage that is saturated, or `cores`.
    pub(crate) limit: String,
    /// Cores that each stage keeps busy at the rate.
    pub(crate) cores_by_stage: BTreeMap<String, f64>,
}

/// A fitted model of a server.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The law of all rounds.
    pub(crate) law: Law,
    /// The law of each round.
    pub(crate) rounds: Vec<Law>,
    pub(crate) stages: Vec<Stage>,
    /// Number of lanes that an exchange has on a number of cores.
    pub(crate) lanes_on: fn(usize) -> usize,
}

impl Model {
    /// The rate at which a stage saturates; `None` if it grows with the cores.
    pub(crate) fn ceiling(&self, stage: &Stage, cores: u32) -> Option<Ceiling> {
        let threads = match stage.growth {
            Growth::Cores => return None,
            Growth::Lanes => (self.lanes_on)(cores as usize) as f64,
            Growth::Alone => 1.0,
        };
        let coins_per_s = threads * 1e6 / stage.cpu_us_per_coin;
        (stage.cpu_us_per_coin > 0.0).then(|| Ceiling { stage: stage.name.clone(), coins_per_s })
    }

    /// The stage that saturates first on a number of cores, if any can.
    pub(crate) fn lowest_ceiling(&self, cores: u32) -> Option<Ceiling> {
        let ceilings = self.stages.iter().filter_map(|stage| self.ceiling(stage, cores));
        ceilings.min_by(|one, other| one.coins_per_s.total_cmp(&other.coins_per_s))
    }

    fn serial_s(&self) -> f64 {
        let commit = self.stages.iter().find(|stage| stage.name == COMMIT);
        commit.map_or(0.0, |stage| stage.cpu_us_per_coin / 1e6)
    }

    /// The serial part as a share of the processor time of a coin: an estimate of σ.
    pub(crate) fn serial_share(&self) -> f64 {
        self.serial_s() * self.law.one_core_coins_per_s
    }

    /// Returns the rate expected of a machine.
    pub(crate) fn project(&self, cores: u32) -> Projection {
        let n = f64::from(cores);
        let ceiling = self.lowest_ceiling(cores);
        let bound = ceiling.as_ref().map_or(f64::INFINITY, |ceiling| ceiling.coins_per_s);
        let expected = self.law.with_sigma_of_at_least(self.serial_share()).coins_per_s(n);
        let rounds = || self.rounds.iter().chain([&self.law]);
        let low =
            rounds().map(|law| law.with_serial(self.serial_s()).coins_per_s(n)).fold(f64::INFINITY, f64::min);
        let high = rounds().map(|law| law.coins_per_s(n)).fold(0.0, f64::max);
        let coins_per_s = expected.min(bound);
        Projection {
            cores,
            coins_per_s,
            low_coins_per_s: low.min(bound),
            high_coins_per_s: high.min(bound),
            limit: ceiling
                .filter(|ceiling| ceiling.coins_per_s <= expected)
                .map_or_else(|| "cores".to_owned(), |ceiling| ceiling.stage),
            // Cores that wait are not busy.
            cores_by_stage: self.cores_by_stage(coins_per_s * self.law.core_s(n)),
        }
    }

    /// Divides busy cores among the stages, in proportion to their processor time.
    fn cores_by_stage(&self, busy: f64) -> BTreeMap<String, f64> {
        let whole = || self.stages.iter().filter(|stage| stage.name != COMMIT);
        let sum: f64 = whole().map(|stage| stage.cpu_us_per_coin).sum();
        if sum <= 0.0 {
            return BTreeMap::new();
        }
        whole().map(|stage| (stage.name.clone(), busy * stage.cpu_us_per_coin / sum)).collect()
    }

    /// The smallest machine whose projection reaches a rate, by one of the projection's figures.
    pub(crate) fn cores_for(&self, coins_per_s: f64, figure: fn(&Projection) -> f64) -> Option<u32> {
        (1..=CORES_MAX).find(|&cores| figure(&self.project(cores)) >= coins_per_s)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stage(name: &str, cpu_us_per_coin: f64, growth: Growth) -> Stage {
        Stage { name: name.to_owned(), cpu_us_per_coin, growth }
    }

    /// 100 µs a coin, of which 4 are serial.
    fn model(sigma: f64) -> Model {
        let law = Law { one_core_coins_per_s: 10_000.0, sigma, kappa: 0.0 };
        Model {
            law,
            rounds: vec![Law { sigma: sigma + 0.01, ..law }, Law { sigma, ..law }],
            stages: vec![
                stage("http", 20.0, Growth::Cores),
                stage("cpu", 67.0, Growth::Cores),
                stage("lane", 12.0, Growth::Lanes),
                stage(COMMIT, 4.0, Growth::Alone),
                stage("store", 1.0, Growth::Alone),
            ],
            lanes_on: |cores| (cores / 4).max(1),
        }
    }

    #[test]
    fn projection_adds_up_by_hand() {
        let at = model(0.0).project(8);
        assert_eq!((at.cores, at.limit.as_str()), (8, "cores"));
        assert!((at.high_coins_per_s - 80_000.0).abs() < 1e-6, "{at:?}");
        // 4 of 100 µs are serial.
        let expected = 80_000.0 / (1.0 + 0.04 * 7.0);
        assert!((at.coins_per_s - expected).abs() < 1e-6, "{at:?}");
        // σ of the worse round comes on top.
        assert!((at.low_coins_per_s - 80_000.0 / (1.0 + 0.05 * 7.0)).abs() < 1e-6, "{at:?}");
        let busy = expected * 100e-6;
        assert!((at.cores_by_stage["cpu"] - busy * 0.67).abs() < 1e-9, "{at:?}");
        assert!(!at.cores_by_stage.contains_key(COMMIT), "the lanes contain it");
        assert!((at.cores_by_stage.values().sum::<f64>() - busy).abs() < 1e-9);
        // A measured σ above the serial share counts.
        let contended = model(0.1).project(8);
        assert!((contended.coins_per_s - 80_000.0 / 1.7).abs() < 1e-6, "{contended:?}");
    }

    #[test]
    fn serial_stage_bounds_large_machines() {
        let model = model(0.0);
        // The law itself comes near the bound of the serial part, but never reaches it.
        let at = model.project(64);
        assert_eq!((at.limit.as_str(), at.high_coins_per_s), ("cores", 250_000.0));
        assert!((180_000.0..250_000.0).contains(&at.coins_per_s), "{at:?}");
        assert_eq!(model.lowest_ceiling(64).map(|ceiling| ceiling.stage).as_deref(), Some(COMMIT));
        // One lane on few cores.
        let few = Model { lanes_on: |_| 1, ..model.clone() };
        let at = few.project(64);
        assert_eq!((at.limit.as_str(), at.coins_per_s), ("lane", 1e6 / 12.0));
        assert!((at.cores_by_stage.values().sum::<f64>() - 100.0 / 12.0).abs() < 1e-9, "the others are idle");
        assert_eq!(model.cores_for(100_000.0, |at| at.high_coins_per_s), Some(10));
        // 10,000 n ÷ (1 + 0.04 (n − 1)) = 100,000.
        assert_eq!(model.cores_for(99_999.0, |at| at.coins_per_s), Some(16));
        assert_eq!(model.cores_for(250_001.0, |at| at.high_coins_per_s), None);
        assert!(model.cores_for(100_000.0, |at| at.low_coins_per_s) > Some(16));
    }

    proptest! {
        #[test]
        fn intervals_contain_the_projection(cores in 1_u32..=128, sigma in 0.0..0.2_f64) {
            let model = model(sigma);
            let at = model.project(cores);
            prop_assert!(at.low_coins_per_s <= at.coins_per_s && at.coins_per_s <= at.high_coins_per_s, "{at:?}");
            let bound = model.lowest_ceiling(cores).map_or(f64::INFINITY, |ceiling| ceiling.coins_per_s);
            prop_assert!(at.high_coins_per_s <= bound);
            prop_assert!(at.cores_by_stage.values().sum::<f64>() <= f64::from(cores) + 1e-9);
            // Without coherence costs, more cores never harm.
            prop_assert!(model.project(cores + 1).coins_per_s >= at.coins_per_s - 1e-9);
        }
    }
}
