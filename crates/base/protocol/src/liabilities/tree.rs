//! Merkle sum trees whose lowest nodes are buckets: all leaves with the same first bits.
//!
//! A node commits to a hash, a count and a sum, so the root commits to the total and each bucket to its share. The
//! first bits of a leaf's hash are the place of its bucket, so a bucket and its path prove that a leaf is *not* there,
//! too.

use crate::MoneySum;
use crate::limits;
use batzen_crypto::ShortHash;
use batzen_crypto::hash::{Digest, Sha512, finish, shorten};
use serde::{Deserialize, Serialize};

use crate::liabilities::leaf::Leaf;

/// The most levels above the buckets.
pub const BITS_MAX: u8 = 24;
/// The most leaves on average that an operator may ask for in a bucket.
pub const BUCKET_LEAVES_MAX: u64 = 1 << 16;
/// The most leaves of a bucket that is read: twice as many on average before the tree gets another level, and as many
/// again for chance.
pub(crate) const LEAVES_READ_MAX: usize = 1 << 18;

/// Why a bucket is not what a statement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BucketFault {
    /// Its path is as long as another tree's.
    #[error("the path has {found} levels, the tree {expected}")]
    Levels {
        /// The value in the path.
        found: usize,
        /// The value in the statement.
        expected: u8,
    },
    /// Its leaves do not ascend, or one is there twice.
    #[error("the leaves do not ascend")]
    Order,
    /// A leaf belongs to another bucket.
    #[error("leaf {0} belongs to another bucket")]
    Place(ShortHash),
    /// It does not lead to the root, its count or its sum.
    #[error("it does not lead to the root that the statement names")]
    Root,
    /// Sums do not fit.
    #[error("sums overflow")]
    Overflow,
}

/// A node: what is below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The hash.
    pub hash: ShortHash,
    /// Number of leaves.
    pub count: u64,
    /// Their sum.
    #[serde(with = "crate::liabilities::sum")]
    pub sum: MoneySum,
}

impl Node {
    /// The node of a bucket with these leaves.
    fn of_leaves(leaves: &[Leaf]) -> Result<Self, BucketFault> {
        let sum =
            MoneySum::checked_sum(leaves.iter().map(|leaf| leaf.sum)).map_err(|_| BucketFault::Overflow)?;
        let mut hasher = Sha512::new();
        hasher.update(b"batzen-liabilities-bucket\0");
        hasher.update((leaves.len() as u64).to_be_bytes());
        for leaf in leaves {
            hasher.update(leaf.hash.as_bytes());
            hasher.update(leaf.sum.units().to_be_bytes());
        }
        Ok(Self { hash: shorten(&finish(hasher)), count: leaves.len() as u64, sum })
    }

    /// The node above two others.
    fn above(left: &Self, right: &Self) -> Result<Self, BucketFault> {
        let count = left.count.checked_add(right.count).ok_or(BucketFault::Overflow)?;
        let sum = left.sum.checked_add(right.sum).map_err(|_| BucketFault::Overflow)?;
        let mut hasher = Sha512::new();
        hasher.update(b"batzen-liabilities-node\0");
        for node in [left, right] {
            hasher.update(node.hash.as_bytes());
            hasher.update(node.count.to_be_bytes());
            hasher.update(node.sum.units().to_be_bytes());
        }
        Ok(Self { hash: shorten(&finish(hasher)), count, sum })
    }

    /// The root of a tree without leaves, which needs no files.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn empty() -> Self {
        Self::of_leaves(&[]).expect("nothing adds up")
    }
}

/// The number of a leaf's bucket: its first `bits` bits.
#[must_use]
pub fn place(hash: &ShortHash, bits: u8) -> u32 {
    let first = u32::from_be_bytes(*hash.as_bytes().first_chunk().expect("a hash has more bytes"));
    first.checked_shr(32 - u32::from(bits)).unwrap_or(0)
}

/// Returns the number of bits that a tree of this many leaves uses, so that a bucket has at least
/// `bucket_leaves` on average.
#[must_use]
pub fn bits_for(leaves: u64, bucket_leaves: u64) -> u8 {
    let buckets = leaves / bucket_leaves.max(1);
    u8::try_from(buckets.checked_ilog2().unwrap_or(0)).unwrap_or(BITS_MAX).min(BITS_MAX)
}

/// All leaves with the same first bits, and the nodes beside the way to the root, from below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The leaves, in ascending order of their hashes.
    #[serde(deserialize_with = "limits::array::<_, _, LEAVES_READ_MAX>")]
    pub leaves: Vec<Leaf>,
    /// The nodes beside the way.
    #[serde(deserialize_with = "limits::array::<_, _, { BITS_MAX as usize }>")]
    pub(crate) path: Vec<Node>,
}

impl Bucket {
    /// Checks that this is bucket `place` of the tree with this root.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self, place: u32, bits: u8, root: &Node) -> Result<(), BucketFault> {
        if self.path.len() != usize::from(bits) {
            return Err(BucketFault::Levels { found: self.path.len(), expected: bits });
        }
        if !self.leaves.is_sorted_by(|one, next| one.hash < next.hash) {
            return Err(BucketFault::Order);
        }
        if let Some(leaf) = self.leaves.iter().find(|leaf| self::place(&leaf.hash, bits) != place) {
            return Err(BucketFault::Place(leaf.hash));
        }
        let mut node = Node::of_leaves(&self.leaves)?;
        for (level, beside) in self.path.iter().enumerate() {
            let is_right = place >> level & 1 == 1;
            node = if is_right { Node::above(beside, &node)? } else { Node::above(&node, beside)? };
        }
        if node == *root { Ok(()) } else { Err(BucketFault::Root) }
    }

    /// The leaf with this hash.
    #[must_use]
    pub fn find(&self, hash: &ShortHash) -> Option<&Leaf> {
        self.leaves.binary_search_by_key(hash, |leaf| leaf.hash).ok().map(|found| &self.leaves[found])
    }
}

/// A whole tree.
#[derive(Debug, Clone)]
pub struct Tree {
    leaves: Vec<Leaf>,
    bits: u8,
    /// The first leaf of each bucket, and the end.
    starts: Vec<usize>,
    /// The nodes of each level, the buckets first.
    levels: Vec<Vec<Node>>,
}

impl Tree {
    /// The tree of these leaves, which it sorts.
    ///
    /// # Errors
    /// If two leaves have the same hash, or the sums overflow.
    pub fn new(mut leaves: Vec<Leaf>, bits: u8) -> Result<Self, BucketFault> {
        let bits = bits.min(BITS_MAX);
        leaves.sort_unstable();
        if !leaves.is_sorted_by(|one, next| one.hash < next.hash) {
            return Err(BucketFault::Order);
        }
        let buckets = 1u32 << bits;
        let starts: Vec<usize> = (0..buckets)
            .map(|bucket| leaves.partition_point(|leaf| place(&leaf.hash, bits) < bucket))
            .chain([leaves.len()])
            .collect();
        let lowest = starts.windows(2).map(|bounds| Node::of_leaves(&leaves[bounds[0]..bounds[1]]));
        let mut levels = vec![lowest.collect::<Result<Vec<_>, _>>()?];
        for level in 0..usize::from(bits) {
            let above = levels[level].chunks(2).map(|pair| Node::above(&pair[0], &pair[1]));
            levels.push(above.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Self { leaves, bits, starts, levels })
    }

    /// The root.
    ///
    /// # Panics
    /// Never: a tree has a root.
    #[must_use]
    pub fn root(&self) -> Node {
        self.levels.last().expect("a tree has a level")[0]
    }

    /// Returns the number of bits of a leaf's hash that number its bucket.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The leaves, in ascending order of their hashes.
    #[must_use]
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// The number of buckets.
    #[must_use]
    pub fn buckets(&self) -> u32 {
        1 << self.bits
    }

    /// A bucket with its path.
    ///
    /// # Panics
    /// If there is no such bucket.
    #[must_use]
    pub fn bucket(&self, place: u32) -> Bucket {
        let at = place as usize;
        let leaves = self.leaves[self.starts[at]..self.starts[at + 1]].to_vec();
        let beside = |(level, nodes): (usize, &Vec<Node>)| nodes[(at >> level) ^ 1];
        let path = self.levels[..usize::from(self.bits)].iter().enumerate().map(beside).collect();
        Bucket { leaves, path }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leaf(first: u32, rest: u8, units: u128) -> Leaf {
        let mut bytes = [rest; 32];
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        Leaf { hash: ShortHash::from_bytes(bytes), sum: MoneySum::from_units(units) }
    }

    /// The root by the definition: a bucket if no bits are left, otherwise the node above both halves.
    fn naive(leaves: &[Leaf], level: u8, bits: u8) -> Node {
        if level == bits {
            let mut sorted = leaves.to_vec();
            sorted.sort();
            return Node::of_leaves(&sorted).unwrap();
        }
        let is_right =
            |leaf: &&Leaf| leaf.hash.as_bytes()[usize::from(level / 8)] >> (7 - level % 8) & 1 == 1;
        let right: Vec<Leaf> = leaves.iter().filter(is_right).copied().collect();
        let left: Vec<Leaf> = leaves.iter().filter(|leaf| !is_right(leaf)).copied().collect();
        Node::above(&naive(&left, level + 1, bits), &naive(&right, level + 1, bits)).unwrap()
    }

    fn leaves() -> impl Strategy<Value = Vec<Leaf>> {
        proptest::collection::btree_map(any::<u32>(), (any::<u8>(), any::<u64>()), 0..200).prop_map(|map| {
            map.into_iter().map(|(first, (rest, units))| leaf(first, rest, units.into())).collect()
        })
    }

    proptest! {
        #[test]
        fn a_tree_is_what_the_definition_says(leaves in leaves(), bits in 0u8..9) {
            let tree = Tree::new(leaves.clone(), bits).unwrap();
            prop_assert_eq!(tree.root(), naive(&leaves, 0, bits));
            prop_assert_eq!(tree.root().count, leaves.len() as u64);
            prop_assert_eq!(tree.root().sum, MoneySum::checked_sum(leaves.iter().map(|leaf| leaf.sum)).unwrap());
            for leaf in &leaves {
                let at = place(&leaf.hash, bits);
                let bucket = tree.bucket(at);
                prop_assert_eq!(bucket.check(at, bits, &tree.root()), Ok(()));
                prop_assert_eq!(bucket.find(&leaf.hash), Some(leaf));
            }
        }

        #[test]
        fn every_change_of_a_bucket_is_noticed(leaves in leaves(), bits in 0u8..6, which in any::<u32>(), how in 0u8..7) {
            let tree = Tree::new(leaves, bits).unwrap();
            let at = which % tree.buckets();
            let mut bucket = tree.bucket(at);
            let (mut place, mut bits) = (at, bits);
            match how {
                0 if !bucket.leaves.is_empty() => { bucket.leaves.remove(which as usize % bucket.leaves.len()); }
                1 if !bucket.leaves.is_empty() => {
                    let n = which as usize % bucket.leaves.len();
                    bucket.leaves[n].sum = bucket.leaves[n].sum.checked_add(MoneySum::from_units(1)).unwrap();
                }
                2 if !bucket.leaves.is_empty() => { let twice = bucket.leaves[0]; bucket.leaves.insert(0, twice); }
                3 if !bucket.path.is_empty() => { bucket.path[0].count += 1; }
                4 if !bucket.path.is_empty() => { bucket.path.pop(); }
                5 if bits > 0 => { place ^= 1; }
                6 => { bits += 1; }
                _ => return Ok(()),
            }
            // Two empty buckets beside each other are the same bucket.
            if how == 5 && tree.bucket(at).leaves.is_empty() && tree.bucket(place).leaves.is_empty() {
                return Ok(());
            }
            prop_assert!(bucket.check(place, bits, &tree.root()).is_err());
        }
    }

    #[test]
    fn the_bits_leave_enough_leaves_in_a_bucket() {
        for (leaves, bucket, bits) in
            [(0, 1_024, 0), (2_047, 1_024, 0), (2_048, 1_024, 1), (4_095, 1_024, 1), (1 << 20, 1_024, 10)]
        {
            assert_eq!(bits_for(leaves, bucket), bits, "{leaves}");
            assert!(bits == 0 || leaves >> bits >= bucket);
        }
        assert_eq!(bits_for(u64::MAX, 1), BITS_MAX);
    }

    #[test]
    fn equal_leaves_are_refused_whatever_they_count() {
        let twice = vec![leaf(1, 1, 5), leaf(1, 1, 6)];
        assert_eq!(Tree::new(twice, 0).unwrap_err(), BucketFault::Order);
        let huge = vec![leaf(1, 1, u128::MAX), leaf(2, 1, 1)];
        assert_eq!(Tree::new(huge, 1).unwrap_err(), BucketFault::Overflow);
    }

    #[test]
    fn place_is_the_first_bits() {
        let hash = leaf(0b1011_0000 << 24, 0, 0).hash;
        let places: Vec<u32> = (0..5).map(|bits| place(&hash, bits)).collect();
        assert_eq!(places, [0, 1, 0b10, 0b101, 0b1011]);
    }

    /// Roots that were computed from the description in docs/liabilities.md with another program.
    #[test]
    fn roots_stay_the_same() {
        let leaves: Vec<Leaf> = (0..8).map(|n| leaf(n << 29, 7, u128::from(n) * 150_000_000)).collect();
        let known = [
            (0, "8WH77055SAWRQ13MECWYK786121B8JEMNVD6RVNS3MDX5MVKPZ90"),
            (1, "QY6T70J1A725R3549WPEM18FDWW5N7MKJNFBF351GKEYK4VAA8VG"),
            (3, "WSHE62MDKT0AR00S2SBXM5PS44HVHRK80ACKB9CPKYFWHSBJC3B0"),
        ];
        for (bits, expected) in known {
            let root = Tree::new(leaves.clone(), bits).unwrap().root();
            assert_eq!((root.count, root.sum.to_string().as_str()), (8, "42"));
            assert_eq!(root.hash.to_string(), expected, "{bits}");
        }
        assert_eq!(Node::empty().hash.to_string(), "PD6VKJ13RVAK3KTD3QNZA86A5M32TR1RHX1TCGTP3MX41R5ZZG8G");
    }
}
