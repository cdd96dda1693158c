//! Ordered indexes: positions in their order, for queues by deadline. All of them are in memory, because rows enter
//! most of them only for a while.
//!
//! A commit only appends to a list of changes, which is quick. The tree that readers search is brought up to date
//! later: by the lane that wrote a group of commits, when many changes have gathered and the next group is
//! already under way; or by a reader or a checkpoint, which first sorts in whatever is missing. So no commit waits for
//! the tree.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use smallvec::SmallVec;

use super::lock;

/// The position of an entry in an ordered index: value, then key or serial. Most are short and stored in the
/// tree's nodes, so that a search need not follow a pointer for each comparison.
pub(crate) type Position = SmallVec<[u8; 40]>;

/// A position that was added or removed, with the fingerprint of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PositionOp {
    pub key: u64,
    pub(crate) added: bool,
}

/// A change of an ordered index.
type PositionChange = (Position, PositionOp);

/// Number of changes that a chunk of a log has.
const CHUNK: usize = 1024;

/// The positions that were added and removed since the index was last written to a run, in their order in
/// time. They are sorted only when they are written to a run.
///
/// The log is in chunks, all of which but the last are full. A commit appends while others wait, so a long log must not
/// move to make room.
#[derive(Debug, Default)]
pub(crate) struct PositionLog {
    chunks: Vec<Vec<PositionChange>>,
}

impl PositionLog {
    fn push(&mut self, change: PositionChange) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(change),
            _ => {
                // Most indexes change rarely: the first chunk starts small.
                let mut chunk = Vec::with_capacity(if self.chunks.is_empty() { 4 } else { CHUNK });
                chunk.push(change);
                self.chunks.push(chunk);
            }
        }
    }

    /// The changes from this one on in its chunk.
    fn chunk_from(&self, start: usize) -> &[PositionChange] {
        self.chunks.get(start / CHUNK).map_or(&[], |chunk| &chunk[start % CHUNK..])
    }

    /// Returns the remaining changes, in the order of positions. One that was added and removed cancels.
    pub(crate) fn net(&self) -> BTreeMap<&Position, PositionOp> {
        let mut net = BTreeMap::new();
        for (position, op) in self.chunks.iter().flatten() {
            if net.insert(position, *op).is_some_and(|earlier: PositionOp| earlier.added != op.added) {
                net.remove(position);
            }
        }
        net
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// An estimate. Long positions are allocated separately.
    pub(crate) fn bytes(&self) -> usize {
        let first = self.chunks.first().and_then(|chunk| chunk.first());
        let outside = first.filter(|(position, _)| position.spilled());
        let outside = outside.map_or(0, |(position, _)| position.len() + 16) * self.len();
        let capacity: usize = self.chunks.iter().map(Vec::capacity).sum();
        capacity * size_of::<PositionChange>() + outside
    }
}

/// With this many changes that are not in the tree, somebody should sort them in. Among so many, several go to the same
/// nodes of the tree, so they miss the processor's caches less often. To sort them in takes some milliseconds.
const UNSETTLED_MANY: usize = 16 * CHUNK;

/// Position → fingerprint of the key.
type Tree = BTreeMap<Position, u64>;

/// An ordered index. Of its locks, the tree's is taken first.
#[derive(Debug, Default)]
pub(crate) struct OrderedIndex {
    tree: Mutex<Tree>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    changes: PositionLog,
    /// Number of the changes that are in the tree.
    settled: usize,
}

impl OrderedIndex {
    /// Adds or removes a position. Returns whether many changes wait to be sorted in.
    pub(crate) fn change(&self, position: Position, op: PositionOp) -> bool {
        let mut log = lock(&self.log);
        log.changes.push((position, op));
        log.changes.len() - log.settled >= UNSETTLED_MANY
    }

    /// All positions, with all changes.
    pub(crate) fn all(&self) -> MutexGuard<'_, Tree> {
        let mut tree = lock(&self.tree);
        while self.settle_present(&mut tree) {}
        tree
    }

    /// Sorts all changes in. Called where no lock is held for which commits wait.
    pub(crate) fn settle_all(&self) {
        drop(self.all());
    }

    /// Sorts the present changes into the tree, unless somebody else is at it: not those that commits add meanwhile,
    /// which do not wait. So whoever adds much also sorts much, and the list stays short.
    pub(crate) fn settle(&self) {
        if let Ok(mut tree) = self.tree.try_lock() {
            self.settle_present(&mut tree);
        }
    }

    /// Number of changes that are not in the tree.
    #[cfg(test)]
    fn unsettled(&self) -> usize {
        let log = lock(&self.log);
        log.changes.len() - log.settled
    }

    /// Sorts the present changes in. Returns whether there were any.
    fn settle_present(&self, tree: &mut Tree) -> bool {
        let present = lock(&self.log).changes.len();
        let mut some = Vec::new();
        loop {
            // A chunk at a time, so that no commit waits long to add more.
            let mut log = lock(&self.log);
            let Log { changes, settled } = &mut *log;
            if *settled >= present {
                break;
            }
            let chunk = changes.chunk_from(*settled);
            // Much quicker than to clone the positions.
            some.extend(chunk.iter().map(|(position, op)| (Position::from_slice(position), *op)));
            *settled += chunk.len();
        }
        let found_some = !some.is_empty();
        // Neighbours find the nodes of the tree in the cache. Changes of one position stay in their order.
        some.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (position, op) in some {
            apply(tree, position, op);
        }
        found_some
    }

    /// Applies an entry of a run, when a store is opened.
    pub(crate) fn load(&self, position: &[u8], op: PositionOp) {
        apply(&mut lock(&self.tree), position.into(), op);
    }

    /// Takes the changes out.
    pub(crate) fn freeze(&self) -> PositionLog {
        let _tree = self.all();
        std::mem::take(&mut *lock(&self.log)).changes
    }

    /// The memory of the changes, an estimate.
    pub(crate) fn changed_bytes(&self) -> usize {
        lock(&self.log).changes.bytes()
    }

    /// An estimate: nodes are two thirds full, and long positions are allocated separately.
    pub(crate) fn bytes(&self) -> usize {
        let tree = lock(&self.tree);
        let outside = tree.keys().next().filter(|first| first.spilled()).map_or(0, |first| first.len() + 16);
        let inline = (size_of::<Position>() + size_of::<u64>()) * 3 / 2;
        (inline + outside) * tree.len() + self.changed_bytes()
    }
}

fn apply(tree: &mut Tree, position: Position, op: PositionOp) {
    if op.added {
        tree.insert(position, op.key);
    } else {
        tree.remove(&position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(n: u16) -> Position {
        Position::from_slice(&n.to_be_bytes())
    }

    fn change(index: &OrderedIndex, n: u16, added: bool) -> bool {
        index.change(position(n), PositionOp { key: n.into(), added })
    }

    #[test]
    fn changes_cancel_each_other() {
        let index = OrderedIndex::default();
        index.load(&position(1), PositionOp { key: 1, added: true });
        change(&index, 1, false);
        assert_eq!(lock(&index.log).changes.net()[&position(1)], PositionOp { key: 1, added: false });
        change(&index, 1, true);
        change(&index, 2, true);
        change(&index, 2, false);
        assert!(lock(&index.log).changes.net().is_empty());
        change(&index, 2, true);
        assert_eq!(lock(&index.log).changes.net()[&position(2)], PositionOp { key: 2, added: true });
        change(&index, 2, false);
        assert_eq!(index.all().len(), 1);
        assert!(index.freeze().net().is_empty());
        assert_eq!((index.freeze().len(), index.all().len()), (0, 1));
    }

    /// However much a group of commits adds, one call sorts it in.
    #[test]
    fn sorting_keeps_up_with_large_groups() {
        let index = OrderedIndex::default();
        for group in 0..4 {
            let mut is_crowded = false;
            for n in 0..20_000 {
                is_crowded |= change(&index, n, group % 2 == 0);
            }
            assert!(is_crowded);
            index.settle();
            assert_eq!(index.unsettled(), 0);
            assert_eq!(lock(&index.tree).len(), if group % 2 == 0 { 20_000 } else { 0 });
        }
    }

    /// Readers see all changes, sorted in or not, and somebody is asked to sort when there are many.
    #[test]
    fn reads_are_complete_whoever_sorts() {
        let index = OrderedIndex::default();
        const FREEZE_AT: usize = 3 * UNSETTLED_MANY;
        let mut expected = Tree::new();
        let mut random = 1_u32;
        let mut asked = 0;
        for step in 0..20 * UNSETTLED_MANY {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let n = u16::try_from(random >> 20).expect("twelve bits");
            let added = expected.remove(&position(n)).is_none();
            if added {
                expected.insert(position(n), n.into());
            }
            if change(&index, n, added) {
                asked += 1;
                index.settle();
            }
            match step % (7 * UNSETTLED_MANY) {
                0 => assert!(*index.all() == expected),
                FREEZE_AT => {
                    index.freeze();
                }
                _ => {}
            }
        }
        assert!((15..=25).contains(&asked), "{asked}");
        assert!(*index.all() == expected);
    }
}
