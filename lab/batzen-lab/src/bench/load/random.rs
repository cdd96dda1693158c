//! Choices and secrets derived from a number, so that a run can be repeated.

use batzen_crypto::kdf::kdf_array;

/// The source of all random choices of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed([u8; 32]);

impl Seed {
    /// The seed of a run.
    pub(crate) fn new(number: u64) -> Self {
        Self(kdf_array(b"batzen-bench", &number.to_be_bytes(), &[b"seed"]))
    }

    /// The seed of a part of the run.
    pub(crate) fn part(&self, name: &str) -> Self {
        Self(self.bytes(name, 0))
    }

    /// 32 or 64 bytes, number `index` of those with this name.
    pub(crate) fn bytes<const N: usize>(&self, name: &str, index: u64) -> [u8; N] {
        kdf_array(&index.to_be_bytes(), &self.0, &[name.as_bytes()])
    }

    /// The seed itself, for derivations of the protocol.
    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A stream of numbers derived from the seed.
    pub(crate) fn numbers(&self, name: &str) -> Numbers {
        Numbers(u64::from_be_bytes(self.bytes(name, 0)))
    }
}

/// A stream of numbers for choices: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators").
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// Numbers for rows that must differ but need not be secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next bytes.
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.draw().to_le_bytes()[..part.len()]);
        }
        bytes
    }

    /// The next number.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`. `limit` must be far below 2⁶⁴, which keeps the bias negligible.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }

    /// The place of one of so many things.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or(0)
    }

    /// A number from 0 up to, but not including, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The distribution of payments over merchants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Merchants {
    /// Each equally often
    Uniform,
    /// Everybody pays the same one
    One,
    /// The n-th most popular gets 1/n of the share of the most popular
    Zipf,
}

impl Merchants {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::One => "one",
            Self::Zipf => "zipf",
        }
    }

    /// The part of a run's title that names it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Uniform => "",
            Self::One => ", one merchant",
            Self::Zipf => ", merchants by Zipf's law",
        }
    }
}

/// The share of the draws that fall on each rank or an earlier one, from the weights of the ranks.
pub(crate) fn cumulative(ranks: usize, weight: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cumulative: Vec<f64> = (1..=ranks)
        .map(|rank| {
            sum += weight(rank);
            sum
        })
        .collect();
    cumulative.iter_mut().for_each(|share| *share /= sum);
    cumulative
}

/// Draws merchants.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// Share of the draws that fall on this merchant or an earlier one.
    cumulative: Vec<f64>,
    numbers: Numbers,
}

impl Chooser {
    /// Chooses among `count` merchants.
    pub(crate) fn new(merchants: Merchants, count: usize, numbers: Numbers) -> Self {
        let weight = |rank: usize| match merchants {
            Merchants::Uniform => 1.0,
            Merchants::One => f64::from(u8::from(rank == 1)),
            Merchants::Zipf => 1.0 / rank as f64,
        };
        Self { cumulative: cumulative(count.max(1), weight), numbers }
    }

    /// The next one.
    pub(crate) fn draw(&mut self) -> usize {
        let number = self.numbers.unit();
        self.cumulative.partition_point(|share| *share <= number).min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(merchants: Merchants, count: usize) -> Vec<u32> {
        let mut chooser = Chooser::new(merchants, count, Seed::new(7).numbers("merchants"));
        let mut seen = vec![0; count];
        for _ in 0..100_000 {
            seen[chooser.draw()] += 1;
        }
        seen
    }

    #[test]
    fn zipf_draws_the_nth_one_nth_as_often() {
        let seen = draws(Merchants::Zipf, 1_000);
        // The sum of 1/n for n up to 1,000 is 7.485.
        for (rank, tolerance) in [(1_usize, 0.03), (2, 0.05), (10, 0.12), (100, 0.35)] {
            let expected = 100_000.0 / 7.485_470_86 / rank as f64;
            let error = (f64::from(seen[rank - 1]) - expected).abs() / expected;
            assert!(error < tolerance, "{rank}: {} instead of {expected}", seen[rank - 1]);
        }
        let tail: u32 = seen[500..].iter().sum();
        assert!((8_000..10_500).contains(&tail), "{tail}");
    }

    #[test]
    fn uniform_draws_are_even_and_one_draws_one() {
        let seen = draws(Merchants::Uniform, 10);
        assert!(seen.iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
        assert_eq!(draws(Merchants::One, 10)[0], 100_000);
    }

    #[test]
    fn the_same_seed_gives_the_same_choices() {
        let stream = |seed: u64| {
            let mut numbers = Seed::new(seed).numbers("x");
            [numbers.draw(), numbers.below(100), numbers.draw()]
        };
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
        assert_ne!(Seed::new(1).part("a"), Seed::new(1).part("b"));
    }
}
