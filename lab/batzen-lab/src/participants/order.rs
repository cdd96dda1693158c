//! Orders to the participants.

use std::time::Duration;

/// The behaviour of payer and payee in a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Behaviour {
    /// The payee fulfils: COMMITTED.
    #[default]
    Accept,
    /// The payee fulfils, but waits for confirmation before it releases the goods: it answers RESERVED, and a
    /// PATCH must follow.
    Reserve,
    /// The payee answers with an error (5104).
    Reject,
    /// The payee says nothing: the transfer expires.
    Silent,
    /// The payee answers with a wrong fulfilment.
    WrongFulfilment,
    /// The payee answers after the expiration.
    Late,
    /// Both send everything twice.
    Duplicate,
    /// The payer sends another amount under the same id, after the first was accepted.
    ChangedDuplicate,
}

impl Behaviour {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::Accept,
        Self::Reserve,
        Self::Reject,
        Self::Silent,
        Self::WrongFulfilment,
        Self::Late,
        Self::Duplicate,
        Self::ChangedDuplicate,
    ];

    /// Its name on command lines and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Reserve => "reserve",
            Self::Reject => "reject",
            Self::Silent => "silent",
            Self::WrongFulfilment => "wrong-fulfilment",
            Self::Late => "late",
            Self::Duplicate => "duplicate",
            Self::ChangedDuplicate => "changed-duplicate",
        }
    }

    /// Returns whether a switch commits such a transfer, unless it has another reason to refuse it.
    #[must_use]
    pub const fn commits(self) -> bool {
        matches!(self, Self::Accept | Self::Reserve | Self::Duplicate | Self::ChangedDuplicate)
    }
}

/// A text that names no behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {}", Behaviour::ALL.map(Behaviour::name).join(", "))]
pub struct UnknownBehaviour;

impl std::str::FromStr for Behaviour {
    type Err = UnknownBehaviour;

    fn from_str(text: &str) -> Result<Self, UnknownBehaviour> {
        Self::ALL.into_iter().find(|behaviour| behaviour.name() == text).ok_or(UnknownBehaviour)
    }
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Number of the participant that pays.
    pub payer: usize,
    /// Number of the participant that is paid.
    pub payee: usize,
    /// The amount in hundredths of the currency.
    pub cents: u64,
    pub behaviour: Behaviour,
    /// Time that the transfer may take.
    pub expiration: Duration,
}

/// Frequency of each behaviour, by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix([u32; Behaviour::ALL.len()]);

impl Default for Mix {
    /// All transfers succeed.
    fn default() -> Self {
        Self::new(&[(Behaviour::Accept, 1)])
    }
}

impl Mix {
    /// Behaviours with their weights.
    ///
    /// # Panics
    /// When all weights are zero.
    #[must_use]
    pub fn new(weights: &[(Behaviour, u32)]) -> Self {
        let mut all = [0; Behaviour::ALL.len()];
        for (behaviour, weight) in weights {
            all[*behaviour as usize] = *weight;
        }
        assert!(all.iter().any(|weight| *weight > 0), "nobody would do anything");
        Self(all)
    }

    pub(crate) fn choose(&self, number: u64) -> Behaviour {
        let total: u64 = self.0.iter().copied().map(u64::from).sum();
        let mut left = number % total;
        for (behaviour, weight) in Behaviour::ALL.into_iter().zip(self.0) {
            let weight = u64::from(weight);
            if left < weight {
                return behaviour;
            }
            left -= weight;
        }
        Behaviour::Accept
    }
}

/// When transfers begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// A new transfer begins whenever one has ended, with a constant number under way.
    Closed {
        /// Transfers under way at a time.
        in_flight: usize,
    },
    /// Transfers begin at this rate, whatever the switch does; the whole latency counts from the planned
    /// start.
    Open {
        /// Transfers per second.
        per_s: f64,
        /// The most transfers under way at a time; further ones wait.
        in_flight_max: usize,
    },
}

/// A load of transfers between random participants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// When they begin.
    pub schedule: Schedule,
    /// Length of the warm-up.
    pub warmup: Duration,
    /// Length of the measured part; `None`: until `count` transfers have begun.
    pub duration: Option<Duration>,
    /// The most transfers to begin, warm-up included.
    pub count: Option<u64>,
    /// The mix of their behaviours.
    pub mix: Mix,
    /// Amounts are 1 to this many hundredths of the currency.
    pub cents_max: u64,
    /// Time that a transfer may take.
    pub expiration: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviours_occur_by_weight() {
        let mix = Mix::new(&[(Behaviour::Accept, 3), (Behaviour::Silent, 1)]);
        let count = |wanted| (0..400).filter(|number| mix.choose(*number) == wanted).count();
        assert_eq!((count(Behaviour::Accept), count(Behaviour::Silent)), (300, 100));
        for behaviour in Behaviour::ALL {
            assert_eq!(behaviour.name().parse(), Ok(behaviour));
        }
        assert!("".parse::<Behaviour>().is_err());
    }
}
