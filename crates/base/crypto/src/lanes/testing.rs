//! Helpers for tests of the lanes.

/// Runs a test that needs the instructions, if this processor has them.
pub(super) fn on_lanes(test: unsafe fn()) {
    if crate::lanes::ifma() {
        // SAFETY: the processor has the instructions.
        #[allow(unsafe_code)]
        unsafe {
            test();
        }
    }
}

/// Reproducible random numbers.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }
}
