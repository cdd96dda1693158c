//! Randomness as a parameter, so that every step of the wallet can be replayed in a test.

/// A source of random bytes.
pub trait Entropy: Send {
    /// Fills `out`.
    fn fill(&mut self, out: &mut [u8]);

    /// A random number below `bound`, without bias.
    ///
    /// # Panics
    /// If `bound` is zero.
    fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a random number needs a positive bound");
        let bound = bound as u64;
        // Rejection sampling: numbers at or above the largest multiple of the bound would favour small
        // remainders.
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let mut bytes = [0u8; 8];
            self.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number < limit {
                return (number % bound) as usize;
            }
        }
    }
}

impl dyn Entropy + '_ {
    /// `N` random bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0u8; N];
        self.fill(&mut out);
        out
    }

    /// Puts `items` into random order, so that the order in which coins are sent does not reveal how they
    /// were withdrawn.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The random generator of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&mut self, out: &mut [u8]) {
        batzen_crypto::fill_random(out);
    }
}

/// Reproducible bytes from a seed: for tests and simulations, never for money.
#[derive(Clone, Debug)]
pub struct SeededEntropy {
    seed: [u8; 32],
    counter: u64,
}

impl SeededEntropy {
    /// The stream for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        Self { seed: bytes, counter: 0 }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(64) {
            self.counter += 1;
            let block = batzen_crypto::hash::sha512_parts(&[&self.seed, &self.counter.to_be_bytes()]);
            chunk.copy_from_slice(&block.as_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut entropy = SeededEntropy::new(7);
        let mut items: Vec<u32> = (0..100).collect();
        (&mut entropy as &mut dyn Entropy).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn small_bounds_are_respected() {
        let mut entropy = SeededEntropy::new(1);
        let mut seen = [0u32; 3];
        for _ in 0..300 {
            seen[entropy.below(3)] += 1;
        }
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }
}
