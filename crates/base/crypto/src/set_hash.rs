//! A hash of a set, to which elements are added in any order (LtHash, after Bellare and Micciancio): the sum of
//! long hashes of the elements. Two parties that hold the same elements get the same digest without sorting them,
//! and nobody can find another set with it.

use sha2::{Digest, Sha512};

use crate::HashCode;
use crate::hash::sha512_parts;

/// Number of 16-bit numbers in the sum. The best known attack on 1,024 takes more than 2^128 steps.
const LANES: usize = 1_024;
/// Number of them that one SHA-512 fills.
const LANES_PER_BLOCK: usize = 32;

/// The hash of a set. Adding an element twice gives another set.
#[derive(Clone, PartialEq, Eq)]
pub struct SetHash(Box<[u16; LANES]>);

impl Default for SetHash {
    fn default() -> Self {
        Self(Box::new([0; LANES]))
    }
}

impl std::fmt::Debug for SetHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SetHash").field(&self.digest()).finish()
    }
}

impl SetHash {
    /// Adds an element that consists of parts. The parts' lengths belong to it.
    pub fn add(&mut self, parts: &[&[u8]]) {
        let mut hasher = Sha512::new();
        for part in parts {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let element = crate::hash::finish(hasher);
        for (n, lanes) in (0u32..).zip(self.0.chunks_exact_mut(LANES_PER_BLOCK)) {
            let block = sha512_parts(&[element.as_bytes(), &n.to_be_bytes()]);
            for (lane, bytes) in lanes.iter_mut().zip(block.as_bytes().chunks_exact(2)) {
                *lane = lane.wrapping_add(u16::from_be_bytes([bytes[0], bytes[1]]));
            }
        }
    }

    /// The hash, short.
    #[must_use]
    pub fn digest(&self) -> HashCode {
        let mut hasher = Sha512::new();
        for lane in self.0.iter() {
            hasher.update(lane.to_be_bytes());
        }
        crate::hash::finish(hasher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(elements: &[&[&[u8]]]) -> HashCode {
        let mut hash = SetHash::default();
        elements.iter().for_each(|parts| hash.add(parts));
        hash.digest()
    }

    #[test]
    fn the_order_does_not_matter_and_everything_else_does() {
        let [a, b, c]: [&[&[u8]]; 3] = [&[b"a", b"1"], &[b"b"], &[b""]];
        assert_eq!(digest(&[a, b, c]), digest(&[c, a, b]));
        let different: [&[&[&[u8]]]; 8] =
            [&[], &[a], &[b], &[a, b], &[a, b, c], &[a, a], &[&[b"a1"], b], &[&[b"a", b"2"], b]];
        let digests: std::collections::HashSet<HashCode> = different.iter().map(|set| digest(set)).collect();
        assert_eq!(digests.len(), different.len());
    }

    #[test]
    fn the_digest_does_not_change_between_versions() {
        let digest = digest(&[&[b"one", b"1"], &[b"two", b"2"]]);
        assert_eq!(
            digest.to_string(),
            "7E9PX4YTWMG5M86TPEXBJGEMP3XM8G83ANHPYSPF0W8NV6C43GPPBVB89FFRYWJ0C53XKQC7D8FKHYPZRCWX9ETHNHD7G4AAD2P7QZ8"
        );
    }
}
