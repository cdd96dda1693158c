//! Filters: a few bits for each hash in memory tell that a section does not have it.

use xorf::{BinaryFuse16, Descriptor, Filter as _};

/// The bytes that describe how a filter was built.
pub(super) const DESCRIPTOR_BYTES: usize = 20;

/// A binary fuse filter: about 18.8 bits for each hash. It has every hash that it was built from, and one in
/// 65,536 of all others.
#[derive(Debug)]
pub(super) struct Filter(
    /// None if no filter could be built: then every hash may be there.
    Option<BinaryFuse16>,
);

impl Filter {
    /// Builds a filter of different hashes.
    pub fn build(hashes: &[u64]) -> Self {
        // It fails after a thousand seeds: practically never.
        Self(BinaryFuse16::try_from(hashes).ok())
    }

    /// A filter that was saved; `None` if the parts do not fit together.
    pub fn from_parts(descriptor: &[u8; DESCRIPTOR_BYTES], fingerprints: &[u8]) -> Option<Self> {
        if fingerprints.is_empty() {
            return Some(Self(None));
        }
        let number = |at: usize| u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes"));
        let (seed, tail) = descriptor.split_first_chunk::<8>().expect("it is longer");
        debug_assert_eq!(tail.len(), 12);
        let descriptor = Descriptor {
            seed: u64::from_le_bytes(*seed),
            segment_length: number(8),
            segment_length_mask: number(12),
            segment_count_length: number(16),
        };
        let (prints, rest) = fingerprints.as_chunks::<2>();
        let all = u64::from(descriptor.segment_count_length) + 2 * u64::from(descriptor.segment_length);
        let is_possible = descriptor.segment_length.is_power_of_two()
            && descriptor.segment_length_mask == descriptor.segment_length - 1
            && all <= prints.len() as u64
            && rest.is_empty();
        let fingerprints = prints.iter().map(|print| u16::from_le_bytes(*print)).collect();
        is_possible.then_some(Self(Some(BinaryFuse16 { descriptor, fingerprints })))
    }

    pub fn parts(&self) -> ([u8; DESCRIPTOR_BYTES], Vec<u8>) {
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        let Some(filter) = &self.0 else { return (descriptor, Vec::new()) };
        let Descriptor { seed, segment_length, segment_length_mask, segment_count_length } =
            filter.descriptor;
        descriptor[..8].copy_from_slice(&seed.to_le_bytes());
        for (at, number) in [segment_length, segment_length_mask, segment_count_length].iter().enumerate() {
            descriptor[8 + at * 4..12 + at * 4].copy_from_slice(&number.to_le_bytes());
        }
        (descriptor, filter.fingerprints.iter().flat_map(|print| print.to_le_bytes()).collect())
    }

    /// Whether the hash may be one of those.
    pub fn may_contain(&self, hash: u64) -> bool {
        self.0.as_ref().is_none_or(|filter| filter.contains(&hash))
    }

    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |filter| filter.fingerprints.len() as u64 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(count: u64) -> Vec<u64> {
        (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ n).collect()
    }

    #[test]
    fn filters_have_all_hashes_and_few_others() {
        for count in [1, 2, 3, 5, 10, 100, 1_000, 129_024] {
            let hashes = hashes(count);
            let filter = Filter::build(&hashes);
            assert!(filter.0.is_some(), "{count} hashes");
            assert!(hashes.iter().all(|&hash| filter.may_contain(hash)), "{count} hashes");
            let others = (0..200_000_u64)
                .filter(|n| filter.may_contain(n.wrapping_mul(0x1234_5678_9abc_def1)))
                .count();
            assert!(others < 30, "{others} of 200,000 others are in a filter of {count} hashes");
            if count > 100_000 {
                assert!(filter.bytes() * 80 < count * 189, "{} bytes for {count} hashes", filter.bytes());
            }
        }
    }

    #[test]
    fn filters_are_read_back_or_refused() {
        let hashes = hashes(1000);
        let (descriptor, prints) = Filter::build(&hashes).parts();
        let again = Filter::from_parts(&descriptor, &prints).unwrap();
        assert!(hashes.iter().all(|&hash| again.may_contain(hash)));
        assert_eq!(again.parts(), (descriptor, prints.clone()));
        assert!(Filter::from_parts(&descriptor, &prints[..prints.len() - 2]).is_none());
        assert!(Filter::from_parts(&descriptor, &prints[..prints.len() - 1]).is_none());
        let mut other = descriptor;
        other[12] ^= 1;
        assert!(Filter::from_parts(&other, &prints).is_none());
        assert!(Filter::from_parts(&descriptor, &[]).unwrap().may_contain(1));
    }
}
