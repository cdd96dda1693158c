//! Filters: a few bits for each fingerprint in memory tell that a run does not have it.

use xorf::{BinaryFuse8, BinaryFuse8Ref, DmaSerializable, Filter as _, FilterRef};

/// The bytes that describe how a filter was built.
pub(super) const DESCRIPTOR_BYTES: usize = BinaryFuse8::DESCRIPTOR_LEN;

/// A binary fuse filter: about 9.4 bits for each fingerprint. It has every fingerprint that it was built
/// from, and one in 256 of all others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    descriptor: [u8; DESCRIPTOR_BYTES],
    /// Empty if no filter could be built: then every fingerprint may be there.
    prints: Box<[u8]>,
}

impl Filter {
    /// Builds a filter of different fingerprints.
    pub fn build(fingerprints: &[u64]) -> Self {
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        match BinaryFuse8::try_from(fingerprints) {
            Ok(built) => {
                built.dma_copy_descriptor_to(&mut descriptor);
                Self { descriptor, prints: built.fingerprints }
            }
            // After a thousand seeds: practically never.
            Err(_) => Self { descriptor, prints: Box::default() },
        }
    }

    /// A filter that was saved; `None` if the parts do not fit together.
    pub fn from_parts(descriptor: [u8; DESCRIPTOR_BYTES], prints: &[u8]) -> Option<Self> {
        let number =
            |at: usize| u64::from(u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes")));
        let (length, mask, all) = (number(8), number(12), number(16));
        let is_possible =
            length.is_power_of_two() && mask == length - 1 && all + 2 * length <= prints.len() as u64;
        (prints.is_empty() || is_possible).then(|| Self { descriptor, prints: prints.into() })
    }

    pub fn parts(&self) -> (&[u8; DESCRIPTOR_BYTES], &[u8]) {
        (&self.descriptor, &self.prints)
    }

    /// Whether the fingerprint may be one of those.
    pub fn may_contain(&self, fingerprint: u64) -> bool {
        self.prints.is_empty()
            || BinaryFuse8Ref::from_dma(&self.descriptor, &self.prints).contains(&fingerprint)
    }

    /// Where to look for a fingerprint. It says the same as [`Filter::may_contain`], but only
    /// [`Probe::may_contain`] waits for memory, so that many probes can wait at the same time.
    ///
    /// The places are those of the binary fuse filter (T. M. Graf and D. Lemire, "Binary Fuse Filters", 2022): one in
    /// each of three segments that follow each other.
    pub fn probe(&self, fingerprint: u64) -> Probe<'_> {
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
        let print = (hash ^ hash >> 32) as u8;
        Probe { bytes: places.map(|place| &self.prints[place as usize]), print }
    }

    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.prints.len()
    }
}

/// The last step of MurmurHash3 of 64 bits.
fn mix(mut bits: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ bits >> 33).wrapping_mul(factor);
    }
    bits ^ bits >> 33
}

/// The bytes of a filter that tell whether it has a fingerprint. They may not be in the processor's cache yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    bytes: [&'a u8; 3],
    print: u8,
}

impl Probe<'_> {
    /// It may be there.
    pub const ALWAYS: Self = Self { bytes: [&0; 3], print: 0 };
    /// It is not there.
    pub const NEVER: Self = Self { bytes: [&0; 3], print: 1 };

    pub fn may_contain(self) -> bool {
        let [first, second, third] = self.bytes;
        first ^ second ^ third == self.print
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u64) -> Vec<u64> {
        (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ n).collect()
    }

    #[test]
    fn filters_have_all_keys_and_few_others() {
        for count in [1, 2, 3, 4, 5, 10, 100, 253, 1_000, 129_536] {
            let keys = keys(count);
            let filter = Filter::build(&keys);
            assert!(!filter.parts().1.is_empty(), "{count} keys");
            assert!(keys.iter().all(|&key| filter.may_contain(key)), "{count} keys");
            let agrees = |key| filter.probe(key).may_contain() == filter.may_contain(key);
            assert!(keys.iter().copied().chain(0..20_000).all(agrees), "{count} keys");
            let others =
                (0..20_000_u64).filter(|n| filter.may_contain(n.wrapping_mul(0x1234_5678_9abc_def1))).count();
            assert!(others < 200, "{others} of 20,000 others are in a filter of {count} keys");
            if count > 100_000 {
                assert!(filter.bytes() as u64 * 8 < count * 10, "{} bytes for {count} keys", filter.bytes());
            }
        }
    }

    #[test]
    fn filters_are_read_back_or_refused() {
        let filter = Filter::build(&keys(1000));
        let (descriptor, prints) = filter.parts();
        assert_eq!(Filter::from_parts(*descriptor, prints).as_ref(), Some(&filter));
        assert_eq!(Filter::from_parts(*descriptor, &prints[..prints.len() - 1]), None);
        let mut other = *descriptor;
        other[12] ^= 1;
        assert_eq!(Filter::from_parts(other, prints), None);
        let all = Filter::from_parts(*descriptor, &[]).expect("no filter");
        assert!(all.may_contain(1) && all.probe(1).may_contain());
    }
}
