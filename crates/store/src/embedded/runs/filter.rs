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

    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.prints.len()
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
        assert!(all.may_contain(1));
    }
}
