//! Eight independent operations side by side, one in each 64-bit lane of an AVX-512 register.
//!
//! The multiplications use the IFMA instructions: 52 by 52 bits, low or high half, added to 64 bits. Without
//! them, callers use the library, with the same results.
//!
//! Scalars, digits, exponents, hashes and states that contain secrets are wiped in arrays and buffers. Copies
//! in registers or spilled by the compiler are not wiped, nor are intermediate coordinates of points.

#[cfg(target_arch = "x86_64")]
pub(crate) mod curve;
#[cfg(target_arch = "x86_64")]
pub(crate) mod hkdf;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rsa;
#[cfg(all(test, target_arch = "x86_64"))]
mod testing;

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// The implementation that processes a batch. Both give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// A library, one operation after another.
    Library,
    /// Eight operations at once, or the library if the processor has no lanes.
    Lanes,
}

impl Path {
    /// The faster one on this processor.
    #[must_use]
    pub fn fastest() -> Self {
        if ifma() { Self::Lanes } else { Self::Library }
    }
}

/// The implementation for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The faster one for this number of items.
    Fastest,
    /// This one, if the processor supports it.
    Only(Path),
}

impl Choice {
    /// Returns whether to use lanes for this number of items, given that they are faster than the library
    /// from `fewest` on.
    pub(crate) fn takes_lanes(self, items: usize, fewest: usize) -> bool {
        let wants = match self {
            Self::Fastest => items >= fewest,
            Self::Only(path) => path == Path::Lanes,
        };
        wants && items > 0 && ifma()
    }

    /// Returns whether lanes are used for any number of items.
    pub(crate) fn may_take_lanes(self) -> bool {
        self.takes_lanes(usize::MAX, 0)
    }
}

/// Secret byte strings that are wiped when dropped. Vectors must have their final capacity from the start.
pub(crate) struct Wiped<const N: usize>(pub(crate) Vec<[u8; N]>);

impl<const N: usize> Drop for Wiped<N> {
    fn drop(&mut self) {
        wipe(self.0.as_flattened_mut());
    }
}

/// Overwrites secrets. A single barrier for all of them keeps the compiler from removing the writes: volatile
/// writes, one per byte, would take a tenth of the time of a signature.
pub(crate) fn wipe<T: Copy + Default>(values: &mut [T]) {
    values.fill(T::default());
    zeroize::optimization_barrier(values);
}

/// Number of operations that run side by side.
#[cfg(target_arch = "x86_64")]
pub(crate) const LANES: usize = 8;

/// Returns whether the processor multiplies in eight lanes, and lanes are not disabled.
///
/// The environment variable `BATZEN_NO_IFMA=1` disables lanes for the lifetime of the process, so that both
/// paths can be compared and tested. Any other value has no effect.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ifma() -> bool {
    static IFMA: OnceLock<bool> = OnceLock::new();
    *IFMA.get_or_init(|| {
        let allowed = std::env::var_os("BATZEN_NO_IFMA").is_none_or(|value| value != "1");
        // All of these were introduced with or before IFMA. The standard library also checks that the
        // operating system saves the wide registers.
        allowed
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512ifma")
    })
}

/// Returns whether the processor multiplies in eight lanes; never on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ifma() -> bool {
    false
}
