//! Filters of sorted runs: a few bits for each fingerprint in memory tell that a run does not have it.

use xorf::{BinaryFuse8, BinaryFuse16, DmaSerializable};

/// The bytes that describe how a filter was built.
pub(crate) const DESCRIPTOR_BYTES: usize = BinaryFuse8::DESCRIPTOR_LEN;

/// A binary fuse filter with prints of `W` bytes, 1 or 2. It has every fingerprint that it was built from, and one in
/// 256 (65,536) of all others. It takes about 9.4 (18.8) bits for each fingerprint.
#[derive(Debug, PartialEq, Eq)]
pub struct Filter<const W: usize> {
    descriptor: [u8; DESCRIPTOR_BYTES],
    /// Empty if no filter could be built: then every fingerprint may be there.
    prints: Box<[[u8; W]]>,
}

impl<const W: usize> Filter<W> {
    /// Builds a filter of different fingerprints.
    #[must_use]
    pub fn build(fingerprints: &[u64]) -> Self {
        const { assert!(W == 1 || W == 2, "prints of one or two bytes") };
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        let prints: Option<Vec<u8>> = if W == 1 {
            BinaryFuse8::try_from(fingerprints).ok().map(|built| {
                built.dma_copy_descriptor_to(&mut descriptor);
                built.fingerprints.into_vec()
            })
        } else {
            BinaryFuse16::try_from(fingerprints).ok().map(|built| {
                built.dma_copy_descriptor_to(&mut descriptor);
                built.fingerprints.iter().flat_map(|print| print.to_le_bytes()).collect()
            })
        };
        // None after a thousand seeds: practically never.
        let prints = prints.unwrap_or_default();
        Self { descriptor, prints: prints.as_chunks().0.into() }
    }

    /// A filter that was saved; `None` if the parts do not fit together.
    #[must_use]
    pub fn from_parts(descriptor: [u8; DESCRIPTOR_BYTES], prints: &[u8]) -> Option<Self> {
        let number =
            |at: usize| u64::from(u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes")));
        let (length, mask, all) = (number(8), number(12), number(16));
        let (prints, rest) = prints.as_chunks();
        let is_possible =
            length.is_power_of_two() && mask == length - 1 && all + 2 * length <= prints.len() as u64;
        let fits = rest.is_empty() && (prints.is_empty() || is_possible);
        fits.then(|| Self { descriptor, prints: prints.into() })
    }

    /// The parts to save.
    #[must_use]
    pub fn parts(&self) -> (&[u8; DESCRIPTOR_BYTES], &[u8]) {
        (&self.descriptor, self.prints.as_flattened())
    }

    /// Returns whether the fingerprint may be one of those.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, fingerprint: u64) -> bool {
        self.probe(fingerprint).may_contain()
    }

    /// Where to look for a fingerprint. Only [`Probe::may_contain`] waits for memory, so that many probes can wait at
    /// the same time.
    ///
    /// The places are those of the binary fuse filter (T. M. Graf and D. Lemire, "Binary Fuse Filters", 2022): one in
    /// each of three segments that follow each other.
    #[inline]
    pub(crate) fn probe(&self, fingerprint: u64) -> Probe<'_, W> {
        if self.prints.is_empty() {
            return Probe::ALWAYS;
        }
        let (seed, numbers) = self.descriptor.split_at(8);
        let seed = u64::from_le_bytes(seed.try_into().expect("eight bytes"));
        let number = |at: usize| u32::from_le_bytes(numbers[at..at + 4].try_into().expect("four bytes"));
        let (length, mask, all) = (number(0), number(4), number(8));
        let hash = mix(fingerprint.wrapping_add(seed));
        let first =
            u32::try_from((u128::from(hash) * u128::from(all)) >> 64).expect("below a number of 32 bits");
        let [second, third] = [18, 0].map(|shift| (hash >> shift) as u32 & mask);
        let places = [first, (first + length) ^ second, (first + 2 * length) ^ third];
        let print = *(hash ^ hash >> 32).to_le_bytes().first_chunk().expect("it is longer");
        Probe { prints: places.map(|place| &self.prints[place as usize]), print }
    }

    /// The memory of its prints.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.prints.len() * W
    }
}

/// The last step of MurmurHash3 of 64 bits.
fn mix(mut bits: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ bits >> 33).wrapping_mul(factor);
    }
    bits ^ bits >> 33
}

/// The prints of a filter that tell whether it has a fingerprint. They may not be in the processor's cache yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe<'a, const W: usize> {
    prints: [&'a [u8; W]; 3],
    print: [u8; W],
}

impl<const W: usize> Probe<'_, W> {
    /// It may be there.
    pub(crate) const ALWAYS: Self = Self { prints: [&[0; W]; 3], print: [0; W] };
    /// It is not there.
    pub(crate) const NEVER: Self = Self { prints: [&[0; W]; 3], print: [1; W] };

    #[inline]
    pub(crate) fn may_contain(self) -> bool {
        let [first, second, third] = self.prints;
        std::array::from_fn(|at| first[at] ^ second[at] ^ third[at]) == self.print
    }
}

#[cfg(test)]
mod tests {
    use xorf::Filter as _;

    use super::*;

    fn keys(count: u64) -> Vec<u64> {
        (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ n).collect()
    }

    fn other_keys() -> impl Iterator<Item = u64> {
        (0..200_000_u64).map(|n| n.wrapping_mul(0x1234_5678_9abc_def1))
    }

    /// Checks a filter of this many keys; `library` tells what the library's filter says.
    fn check<const W: usize>(count: u64, library: impl Fn(&u64) -> bool, others_max: usize, tenth_bits: u64) {
        let keys = keys(count);
        let filter = Filter::<W>::build(&keys);
        assert!(!filter.parts().1.is_empty(), "{count} keys");
        assert!(keys.iter().all(|&key| filter.may_contain(key)), "{count} keys");
        let agrees = |key| filter.may_contain(key) == library(&key);
        assert!(keys.iter().copied().chain(0..20_000).all(agrees), "{count} keys");
        let others = other_keys().filter(|&key| filter.may_contain(key)).count();
        assert!(others < others_max, "{others} of 200,000 others are in a filter of {count} keys");
        if count > 100_000 {
            assert!(
                filter.bytes() as u64 * 80 < count.saturating_mul(tenth_bits),
                "{} bytes for {count} keys",
                filter.bytes()
            );
        }
    }

    #[test]
    fn filters_have_all_keys_and_few_others() {
        for count in [1, 2, 3, 4, 5, 10, 100, 253, 1_000, 129_024, 129_536] {
            let narrow = BinaryFuse8::try_from(keys(count)).unwrap();
            check::<1>(count, |key| narrow.contains(key), 2_000, 100);
            let wide = BinaryFuse16::try_from(keys(count)).unwrap();
            check::<2>(count, |key| wide.contains(key), 30, if count == 129_024 { 189 } else { u64::MAX });
        }
    }

    fn check_parts<const W: usize>() {
        let filter = Filter::<W>::build(&keys(1000));
        let (descriptor, prints) = filter.parts();
        assert_eq!(Filter::from_parts(*descriptor, prints).as_ref(), Some(&filter));
        for missing in [1, W] {
            assert_eq!(Filter::<W>::from_parts(*descriptor, &prints[..prints.len() - missing]), None);
        }
        let mut other = *descriptor;
        other[12] ^= 1;
        assert_eq!(Filter::<W>::from_parts(other, prints), None);
        assert!(Filter::<W>::from_parts(*descriptor, &[]).expect("no filter").may_contain(1));
    }

    #[test]
    fn filters_are_read_back_or_refused() {
        check_parts::<1>();
        check_parts::<2>();
    }
}
