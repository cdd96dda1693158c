//! The conformance suite: the behaviour that every backend must have, as one macro.
//!
//! A backend's tests call [`store_conformance!`](crate::store_conformance) with a function that makes a
//! [`Fixture`]: an empty store, and a way to open it again on the same data. Each behaviour then has its own
//! test.

pub mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

use crate::{
    ChangeSet, Column, CommitOutcome, Found, ROW_BYTES_MAX, Read, ReadAnswer, Reads, Record, Store,
    StoreError, Table, TableDef, table,
};

/// An empty store under test.
pub struct Fixture {
    store: Store,
    reopen: Option<Box<dyn FnMut() -> Store>>,
}

impl Fixture {
    /// A store whose data is lost when it is dropped.
    #[must_use]
    pub fn transient(store: Store) -> Self {
        Self { store, reopen: None }
    }

    /// A durable store: `open` creates it, and opens the same data again after the last handle was dropped.
    #[must_use]
    pub fn durable(mut open: impl FnMut() -> Store + 'static) -> Self {
        Self { store: open(), reopen: Some(Box::new(open)) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Drops the store and opens it again without closing it; does nothing to a transient store.
    pub(crate) fn reopen(&mut self) {
        if let Some(reopen) = &mut self.reopen {
            self.store = Store::new(crate::memory::MemoryBackend::new());
            self.store = reopen();
        }
    }
}

crate::record! {
    /// A key of two parts; the first is the group.
    pub key struct ItemKey {
        /// The group.
        pub group: [u8; 4],
        /// The item within the group.
        pub item: u32,
    }
}

crate::record! {
    /// An item.
    pub struct ItemRow {
        /// Looked up by equality; several items may have the same label.
        pub label: String,
        /// A deadline; the item is in the queue while it has one.
        pub due: Option<u64>,
        /// One row can be looked up by several values.
        pub tags: crate::List<u16>,
        /// Arbitrary bytes.
        pub body: Vec<u8>,
    }
}

table! {
    /// A table with every kind of index.
    pub Items(901, "conformance_items"): ItemKey => ItemRow, shard(4);
    /// By label.
    BY_LABEL = 1, "by_label", Hash;
    /// By group.
    BY_GROUP = 2, "by_group", Prefix { key_bytes: 4 };
    /// Items with a deadline, by deadline.
    BY_DUE = 3, "by_due", Ordered;
    /// By each tag.
    BY_TAG = 4, "by_tag", Hash.many();
    /// Items with a deadline, in commit order.
    QUEUE = 7, "queue", Serial;
    |_, row, out| {
        out.add(Self::BY_LABEL, &row.label);
        if let Some(due) = row.due {
            out.add(Self::BY_DUE, &due);
            out.add_with(Self::QUEUE, |_| {});
        }
        for tag in &row.tags.0 {
            out.add(Self::BY_TAG, tag);
        }
    }
}

crate::record! {
    /// The key of a table without columns.
    pub key struct MarkKey {
        /// A name.
        pub name: String,
    }
}

table! {
    /// A table without indexes and without columns.
    pub Marks(902, "conformance_marks"): MarkKey => ();
}

/// The tables of a store under test.
pub const TABLES: &[&TableDef] = &[Items::DEF, Marks::DEF];

/// Makes a key.
#[must_use]
pub fn key(group: u32, item: u32) -> ItemKey {
    ItemKey { group: group.to_be_bytes(), item }
}

/// Makes a row.
#[must_use]
pub fn row(label: &str, due: Option<u64>) -> ItemRow {
    ItemRow { label: label.into(), due, tags: crate::List(Vec::new()), body: label.as_bytes().to_vec() }
}

fn commit(store: &Store, fill: impl FnOnce(&mut ChangeSet)) -> CommitOutcome {
    let mut changes = ChangeSet::new();
    fill(&mut changes);
    store.commit(&changes).expect("the store works")
}

#[track_caller]
fn committed(store: &Store, fill: impl FnOnce(&mut ChangeSet)) {
    assert_eq!(commit(store, fill), CommitOutcome::Committed);
}

#[track_caller]
fn get(store: &Store, key: &ItemKey) -> Option<ItemRow> {
    store.get::<Items>(key).expect("the store works").map(|found| found.row)
}

fn items(found: &[Found<Items>]) -> Vec<u32> {
    found.iter().map(|found| found.key.item).collect()
}

#[track_caller]
fn labelled(store: &Store, label: &str) -> Vec<u32> {
    items(&store.lookup::<Items>(Items::BY_LABEL, &label.to_owned()).expect("the store works"))
}

#[track_caller]
fn grouped(store: &Store, group: u32) -> Vec<u32> {
    items(&store.lookup::<Items>(Items::BY_GROUP, &group.to_be_bytes()).expect("the store works"))
}

#[track_caller]
fn due(store: &Store, to: u64, limit: usize) -> Vec<u32> {
    items(&store.range::<Items, u64>(Items::BY_DUE, ..=to, limit).expect("the store works"))
}

#[track_caller]
fn queue(store: &Store) -> Vec<u32> {
    let found = store.range_bytes::<Items>(Items::QUEUE, Bound::Unbounded, Bound::Unbounded, 1000, false);
    items(&found.expect("the store works"))
}

/// A written row is read back unchanged, before and after reopening.
pub fn inserted_rows_are_read_back(mut fixture: Fixture) {
    assert_eq!(get(fixture.store(), &key(1, 1)), None);
    committed(fixture.store(), |c| {
        c.insert::<Items>(&key(1, 1), &row("a", None));
        c.insert::<Items>(&key(1, 2), &row("b", Some(7)));
        c.insert::<Marks>(&MarkKey { name: "m\0n".into() }, &());
    });
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(get(store, &key(1, 1)), Some(row("a", None)));
        assert_eq!(get(store, &key(1, 2)), Some(row("b", Some(7))));
        assert!(store.get::<Marks>(&MarkKey { name: "m\0n".into() }).expect("works").is_some());
        assert!(store.get::<Marks>(&MarkKey { name: "m".into() }).expect("works").is_none());
        fixture.reopen();
    }
}

/// `get_many` answers in the requested order, including gaps and repetitions.
pub fn many_rows_come_in_the_order_asked(fixture: Fixture) {
    let store = fixture.store();
    committed(store, |c| (0..50).for_each(|n| c.insert::<Items>(&key(n, n), &row("x", Some(n.into())))));
    let keys: Vec<ItemKey> = [49, 3, 77, 3, 0].iter().map(|&n| key(n, n)).collect();
    let rows = store.get_many::<Items>(&keys).expect("works");
    let dues: Vec<Option<u64>> = rows.into_iter().map(|row| row.and_then(|row| row.row.due)).collect();
    assert_eq!(dues, [Some(49), Some(3), None, Some(3), Some(0)]);
    assert!(store.get_many::<Items>(&[]).expect("works").is_empty());
}

/// An update replaces the row and its index entries.
pub fn updates_replace_rows_and_index_entries(mut fixture: Fixture) {
    let (old, new) = (row("old", Some(5)), row("new", Some(9)));
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &old));
    committed(fixture.store(), |c| c.update::<Items>(&key(1, 1), &old, &new));
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(get(store, &key(1, 1)), Some(new.clone()));
        assert_eq!(labelled(store, "old"), [0_u32; 0]);
        assert_eq!(labelled(store, "new"), [1]);
        assert_eq!(due(store, 5, 10), [0_u32; 0]);
        assert_eq!(due(store, 9, 10), [1]);
        assert_eq!(store.count::<Items>().expect("works"), 1);
        fixture.reopen();
    }
}

/// A delete removes the row and its index entries; the key can be used again.
pub fn deletes_remove_rows_and_index_entries(mut fixture: Fixture) {
    let gone = row("gone", Some(5));
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &gone));
    committed(fixture.store(), |c| c.delete::<Items>(&key(1, 1), &gone));
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(get(store, &key(1, 1)), None);
        assert_eq!(labelled(store, "gone"), [0_u32; 0]);
        assert_eq!(grouped(store, 1), [0_u32; 0]);
        assert_eq!(due(store, 100, 10), [0_u32; 0]);
        assert_eq!(queue(store), [0_u32; 0]);
        assert_eq!(store.count::<Items>().expect("works"), 0);
        fixture.reopen();
    }
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &row("back", None)));
    fixture.reopen();
    assert_eq!(labelled(fixture.store(), "back"), [1]);
}

/// An insert of an existing key is reported, and nothing of its set is written.
pub fn conflicts_leave_nothing_behind(mut fixture: Fixture) {
    let first = row("first", Some(1));
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &first));
    let outcome = commit(fixture.store(), |c| {
        c.insert::<Items>(&key(2, 2), &row("second", Some(2)));
        c.insert::<Items>(&key(1, 1), &row("third", Some(3)));
        c.update::<Items>(&key(2, 2), &row("second", Some(2)), &row("fourth", None));
        c.insert::<Marks>(&MarkKey { name: "m".into() }, &());
    });
    assert_eq!(outcome, CommitOutcome::Conflict(vec![(Items::DEF, key(1, 1).to_bytes())]));
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(get(store, &key(1, 1)), Some(first.clone()));
        assert_eq!(get(store, &key(2, 2)), None);
        assert_eq!(store.count::<Items>().expect("works"), 1);
        assert_eq!(store.count::<Marks>().expect("works"), 0);
        assert_eq!(due(store, 100, 10), [1]);
        assert_eq!(labelled(store, "third"), [0_u32; 0]);
        fixture.reopen();
    }
}

/// A conflicting insert is reported as such even when later changes of the same set build on it.
pub fn conflicts_come_before_their_consequences(fixture: Fixture) {
    let store = fixture.store();
    committed(store, |c| c.insert::<Items>(&key(1, 1), &row("there", None)));
    let outcome = commit(store, |c| {
        c.insert::<Items>(&key(1, 1), &row("new", None));
        c.update::<Items>(&key(1, 1), &row("new", None), &row("newer", None));
    });
    assert!(matches!(outcome, CommitOutcome::Conflict(keys) if keys.len() == 1));
    assert_eq!(get(store, &key(1, 1)), Some(row("there", None)));
}

/// The same key inserted twice in one set is a conflict.
pub fn the_same_key_twice_in_a_set_conflicts(fixture: Fixture) {
    let store = fixture.store();
    let outcome = commit(store, |c| {
        c.insert::<Items>(&key(1, 1), &row("a", None));
        c.insert::<Items>(&key(1, 1), &row("b", None));
    });
    assert!(matches!(outcome, CommitOutcome::Conflict(_)));
    assert_eq!(store.count::<Items>().expect("works"), 0);
}

/// One row may change several times in a set; only its last state is seen.
pub fn a_set_may_change_a_row_several_times(mut fixture: Fixture) {
    let (a, b, c3) = (row("a", Some(1)), row("b", Some(2)), row("c", Some(3)));
    committed(fixture.store(), |c| {
        c.insert::<Items>(&key(1, 1), &a);
        c.update::<Items>(&key(1, 1), &a, &b);
        c.insert::<Items>(&key(1, 2), &a);
        c.delete::<Items>(&key(1, 2), &a);
        c.insert::<Items>(&key(1, 3), &a);
        c.delete::<Items>(&key(1, 3), &a);
        c.insert::<Items>(&key(1, 3), &c3);
    });
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(get(store, &key(1, 1)), Some(b.clone()));
        assert_eq!(get(store, &key(1, 2)), None);
        assert_eq!(get(store, &key(1, 3)), Some(c3.clone()));
        assert_eq!(labelled(store, "a"), [0_u32; 0]);
        assert_eq!(due(store, 10, 10), [1, 3]);
        fixture.reopen();
    }
    committed(fixture.store(), |c| {
        c.delete::<Items>(&key(1, 1), &b);
        c.insert::<Items>(&key(1, 1), &a);
        c.update::<Items>(&key(1, 3), &c3, &a);
        c.delete::<Items>(&key(1, 3), &a);
    });
    fixture.reopen();
    assert_eq!(labelled(fixture.store(), "a"), [1]);
    assert_eq!(fixture.store().count::<Items>().expect("works"), 1);
}

/// Changes to a row that differs from the set's `old_row` are refused, and nothing of the set is written.
pub fn stale_changes_are_refused(fixture: Fixture) {
    let store = fixture.store();
    let there = row("there", None);
    committed(store, |c| c.insert::<Items>(&key(1, 1), &there));
    let other = row("other", None);
    let refused = |fill: &dyn Fn(&mut ChangeSet)| {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(9, 9), &other);
        fill(&mut changes);
        assert!(matches!(store.commit(&changes), Err(StoreError::Stale { .. })));
        assert_eq!(get(store, &key(1, 1)), Some(there.clone()));
        assert_eq!(get(store, &key(9, 9)), None);
    };
    refused(&|c| c.update::<Items>(&key(1, 1), &other, &there));
    refused(&|c| c.delete::<Items>(&key(1, 1), &other));
    refused(&|c| c.update::<Items>(&key(1, 2), &there, &other));
    refused(&|c| c.delete::<Items>(&key(1, 2), &there));
    refused(&|c| {
        c.delete::<Items>(&key(1, 1), &there);
        c.update::<Items>(&key(1, 1), &there, &other);
    });
}

/// All rows under a key prefix are found, and no others.
pub fn prefixes_group_rows(mut fixture: Fixture) {
    committed(fixture.store(), |c| {
        for item in [5, 1, 3] {
            c.insert::<Items>(&key(1, item), &row("x", None));
            c.insert::<Items>(&key(0x0100_0000, item), &row("x", None));
        }
    });
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 2), &row("x", None)));
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(grouped(store, 1), [5, 1, 3, 2]);
        assert_eq!(grouped(store, 0x0100_0000), [5, 1, 3]);
        assert_eq!(grouped(store, 2), [0_u32; 0]);
        let both = store
            .lookup_many::<Items>(Items::BY_GROUP, &[[0, 0, 0, 2], [0, 0, 0, 1], [0, 0, 0, 1]])
            .expect("works");
        assert_eq!(both.iter().map(Vec::len).collect::<Vec<_>>(), [0, 4, 4]);
        fixture.reopen();
    }
}

/// A row without an entry is in no index, and enters and leaves it by updates.
pub fn indexes_may_be_partial(mut fixture: Fixture) {
    let (idle, waiting) = (row("x", None), row("x", Some(5)));
    committed(fixture.store(), |c| {
        c.insert::<Items>(&key(1, 1), &idle);
        c.insert::<Items>(&key(1, 2), &waiting);
    });
    assert_eq!(due(fixture.store(), 100, 10), [2]);
    committed(fixture.store(), |c| {
        c.update::<Items>(&key(1, 1), &idle, &waiting);
        c.update::<Items>(&key(1, 2), &waiting, &idle);
    });
    for _ in 0..2 {
        assert_eq!(due(fixture.store(), 100, 10), [1]);
        assert_eq!(queue(fixture.store()), [1]);
        fixture.reopen();
    }
}

/// A row may have several entries in one index.
pub fn a_row_may_have_several_entries(mut fixture: Fixture) {
    let mut first = row("x", None);
    first.tags.0 = vec![1, 2, 2, 3];
    let mut second = first.clone();
    second.tags.0 = vec![3, 4];
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &first));
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 2), &second));
    let tagged = |store: &Store| -> Vec<Vec<u32>> {
        let found = store.lookup_many::<Items>(Items::BY_TAG, &[1_u16, 2, 3, 4, 5]).expect("works");
        found.iter().map(|group| items(group)).collect()
    };
    for _ in 0..2 {
        assert_eq!(tagged(fixture.store()), [vec![1], vec![1], vec![1, 2], vec![2], vec![]]);
        fixture.reopen();
    }
    committed(fixture.store(), |c| c.update::<Items>(&key(1, 1), &first, &second));
    for _ in 0..2 {
        assert_eq!(tagged(fixture.store()), [vec![], vec![], vec![1, 2], vec![1, 2], vec![]]);
        fixture.reopen();
    }
}

/// Ordered ranges respect both bounds, the limit and the direction; equal values are ordered by key.
pub fn ranges_are_ordered_and_bounded(mut fixture: Fixture) {
    let dues = [(1, 30), (2, 10), (3, 20), (4, 20), (5, u64::MAX), (6, 0), (7, 256)];
    committed(fixture.store(), |c| {
        for (item, due) in dues {
            c.insert::<Items>(&key(9 - item, item), &row("x", Some(due)));
        }
    });
    for _ in 0..2 {
        let store = fixture.store();
        let up = |range: (Bound<u64>, Bound<u64>), limit| {
            items(&store.range::<Items, u64>(Items::BY_DUE, range, limit).expect("works"))
        };
        let down = |range: (Bound<u64>, Bound<u64>), limit| {
            let [from, to] = [range.0, range.1].map(|bound| bound.map(|due| due.to_bytes()));
            items(&store.range_bytes::<Items>(Items::BY_DUE, from, to, limit, true).expect("works"))
        };
        use Bound::{Excluded, Included, Unbounded};
        assert_eq!(up((Unbounded, Unbounded), 100), [6, 2, 4, 3, 1, 7, 5]);
        assert_eq!(down((Unbounded, Unbounded), 100), [5, 7, 1, 3, 4, 2, 6]);
        assert_eq!(up((Unbounded, Unbounded), 3), [6, 2, 4]);
        assert_eq!(down((Unbounded, Unbounded), 2), [5, 7]);
        assert_eq!(up((Included(10), Included(20)), 100), [2, 4, 3]);
        assert_eq!(up((Excluded(10), Excluded(30)), 100), [4, 3]);
        assert_eq!(up((Excluded(20), Unbounded), 100), [1, 7, 5]);
        assert_eq!(down((Unbounded, Included(20)), 100), [3, 4, 2, 6]);
        assert_eq!(up((Included(20), Included(20)), 100), [4, 3]);
        assert_eq!(up((Included(21), Included(20)), 100), [0_u32; 0]);
        assert_eq!(up((Excluded(20), Excluded(20)), 100), [0_u32; 0]);
        assert_eq!(up((Excluded(u64::MAX), Unbounded), 100), [0_u32; 0]);
        assert_eq!(up((Unbounded, Included(u64::MAX)), 0), [0_u32; 0]);
        fixture.reopen();
    }
}

/// A version stands for the row that was read: the change is made while that row is stored, and is stale
/// afterwards.
pub fn versions_name_what_was_read(mut fixture: Fixture) {
    let (one, two) = (key(1, 1), key(1, 2));
    committed(fixture.store(), |c| {
        c.insert::<Items>(&one, &row("a", Some(5)));
        c.insert::<Items>(&two, &row("a", None));
    });
    for turn in 0..3_u64 {
        let store = fixture.store();
        let read = |key: &ItemKey| store.get::<Items>(key).expect("works").expect("it is there");
        let (first, other) = (read(&one), read(&two));
        assert_eq!(read(&one).version, first.version, "the same row has the same version");
        let next = row("b", Some(6 + turn));
        committed(store, |c| {
            c.update_read::<Items>(&one, (&first.row, Some(first.version)), &next);
            c.update_read::<Items>(&two, (&other.row, Some(other.version)), &row("c", Some(turn)));
        });
        let is_stale = |outcome| matches!(outcome, Err(StoreError::Stale { .. }));
        let mut late = ChangeSet::new();
        late.update_read::<Items>(&one, (&first.row, Some(first.version)), &row("lost", None));
        assert!(is_stale(store.commit(&late)), "that version is no longer stored");
        let mut late = ChangeSet::new();
        late.delete_read::<Items>(&one, (&first.row, Some(first.version)));
        assert!(is_stale(store.commit(&late)));
        // Without a valid version, rows are compared.
        let second = read(&one);
        assert_eq!((&second.row, second.serial), (&next, first.serial));
        committed(store, |c| {
            c.update_read::<Items>(&one, (&second.row, Some(first.version)), &row("d", Some(9)));
            // A second change in the same set builds on the first.
            c.update::<Items>(&one, &row("d", Some(9)), &row("e", Some(turn)));
        });
        let third = read(&one);
        committed(store, |c| {
            c.delete_read::<Items>(&one, (&third.row, Some(third.version)));
            c.insert::<Items>(&one, &third.row);
        });
        assert_eq!(items(&store.range::<Items, u64>(Items::BY_DUE, .., 9).expect("works")), [1, 2]);
        assert_eq!(items(&store.lookup::<Items>(Items::BY_GROUP, &1_u32).expect("works")).len(), 2);
        let last = read(&one).version;
        fixture.reopen();
        // After reopening, old versions are ignored.
        let store = fixture.store();
        committed(store, |c| c.update_read::<Items>(&one, (&third.row, Some(last)), &row("f", Some(turn))));
    }
}

/// The positions of a range are those of its rows, and visiting ends when the visitor breaks.
pub fn positions_need_no_rows(mut fixture: Fixture) {
    committed(fixture.store(), |c| {
        (0..9).for_each(|n| c.insert::<Items>(&key(9 - n, n), &row("x", Some(u64::from(n / 3)))));
    });
    for _ in 0..2 {
        let look = |index, from: Bound<&[u8]>, to: Bound<&[u8]>, limit: usize| {
            let mut seen = Vec::new();
            let visit = |position: &[u8]| {
                seen.push(position.to_vec());
                if seen.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            fixture.store().positions::<Items>(index, from, to, visit).expect("works");
            seen
        };
        use Bound::{Excluded, Included, Unbounded};
        let all = look(Items::BY_DUE, Unbounded, Unbounded, 100);
        let position =
            |n: u32| [u64::from(n / 3).to_be_bytes().as_slice(), &key(9 - n, n).to_bytes()].concat();
        // Equal values are in the order of keys.
        assert_eq!(all, [2, 1, 0, 5, 4, 3, 8, 7, 6].map(position));
        assert_eq!(look(Items::BY_DUE, Unbounded, Unbounded, 4), all[..4]);
        assert_eq!(look(Items::BY_DUE, Excluded(&all[3]), Included(&all[6]), 100), all[4..7]);
        assert_eq!(look(Items::BY_DUE, Included(&2_u64.to_be_bytes()), Unbounded, 100), all[6..]);
        assert!(look(Items::BY_DUE, Included(&all[5]), Excluded(&all[5]), 100).is_empty());
        // A serial index: the value (empty here), then the serial.
        let queue = look(Items::QUEUE, Unbounded, Unbounded, 100);
        assert!(queue.len() == 9 && queue.iter().all(|position| position.len() == 8) && queue.is_sorted());
        fixture.reopen();
    }
}

/// A range can continue after a row that was seen before.
pub fn ranges_can_be_paged(fixture: Fixture) {
    let store = fixture.store();
    committed(store, |c| {
        (0..25).for_each(|n| c.insert::<Items>(&key(1, n), &row("x", Some(u64::from(n / 10)))));
    });
    let mut seen = Vec::new();
    let mut from = Bound::Unbounded;
    loop {
        let page =
            store.range_positions::<Items>(Items::BY_DUE, from, Bound::Unbounded, 4, false).expect("works");
        let Some(last) = page.last() else { break };
        let mut position = last.row.due.expect("it is in the index").to_be_bytes().to_vec();
        last.key.encode(&mut position);
        from = Bound::Excluded(position);
        seen.extend(items(&page));
    }
    assert_eq!(seen, (0..25).collect::<Vec<u32>>());
}

/// A serial index is a queue in commit order, and updated rows keep their place.
pub fn serial_indexes_queue_in_commit_order(mut fixture: Fixture) {
    committed(fixture.store(), |c| {
        [9, 4, 7].into_iter().for_each(|n| c.insert::<Items>(&key(n, n), &row("x", Some(n.into()))));
    });
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &row("x", Some(1))));
    committed(fixture.store(), |c| {
        c.update::<Items>(&key(4, 4), &row("x", Some(4)), &row("y", Some(99)));
        c.update::<Items>(&key(9, 9), &row("x", Some(9)), &row("x", None));
    });
    for _ in 0..2 {
        assert_eq!(queue(fixture.store()), [4, 7, 1]);
        fixture.reopen();
    }
}

/// Thousands of rows under one value are all found, in commit order, and leave one by one.
pub fn a_value_may_have_many_rows(mut fixture: Fixture) {
    const COUNT: u32 = 3000;
    committed(fixture.store(), |c| {
        (0..COUNT).for_each(|n| c.insert::<Items>(&key(7, COUNT - n), &row("same", None)));
    });
    let expected: Vec<u32> = (0..COUNT).map(|n| COUNT - n).collect();
    for _ in 0..2 {
        assert_eq!(labelled(fixture.store(), "same"), expected);
        assert_eq!(grouped(fixture.store(), 7), expected);
        fixture.reopen();
    }
    committed(fixture.store(), |c| {
        (3..=COUNT).for_each(|n| c.delete::<Items>(&key(7, n), &row("same", None)));
    });
    for _ in 0..2 {
        assert_eq!(labelled(fixture.store(), "same"), [2, 1]);
        fixture.reopen();
    }
}

/// A scan visits every live row once, and stops when the visitor breaks.
pub fn scans_show_every_row_once(mut fixture: Fixture) {
    committed(fixture.store(), |c| (0..100).for_each(|n| c.insert::<Items>(&key(n, n), &row("x", None))));
    committed(fixture.store(), |c| {
        (0..50).for_each(|n| c.delete::<Items>(&key(n, n), &row("x", None)));
        (50..60).for_each(|n| c.update::<Items>(&key(n, n), &row("x", None), &row("y", None)));
    });
    for _ in 0..2 {
        let store = fixture.store();
        let all = store.all::<Items>().expect("works");
        assert_eq!(items(&all), (50..100).collect::<Vec<u32>>());
        assert_eq!(all.iter().filter(|found| found.row.label == "y").count(), 10);
        let mut seen = 0;
        store
            .scan::<Items>(|_| {
                seen += 1;
                if seen == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .expect("works");
        assert_eq!(seen, 7);
        assert_eq!(store.count::<Items>().expect("works"), 50);
        fixture.reopen();
    }
}

/// A snapshot does not show later changes.
pub fn frozen_rows_stay_as_they_were(fixture: Fixture) {
    let store = fixture.store();
    committed(store, |c| (0..9).for_each(|n| c.insert::<Items>(&key(n, n), &row("x", None))));
    let frozen = store.freeze(&[Items::DEF]).expect("works");
    committed(store, |c| {
        c.delete::<Items>(&key(0, 0), &row("x", None));
        c.update::<Items>(&key(1, 1), &row("x", None), &row("y", None));
        c.insert::<Items>(&key(10, 10), &row("x", None));
    });
    let mut seen = 0;
    let mut visit = |record: crate::RawRecord| {
        assert_eq!(ItemRow::decode(&record.row).expect("decodes").label, "x");
        seen += 1;
        if seen == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    frozen.scan(Items::DEF, &mut visit).expect("works");
    assert_eq!(seen, 9);
    assert!(frozen.scan(Marks::DEF, &mut |_| ControlFlow::Continue(())).is_err(), "it was not frozen");
}

/// Serials grow in commit order over all tables, are kept on update, and are never reused.
pub fn serials_follow_the_commits(mut fixture: Fixture) {
    let serial =
        |store: &Store, n: u32| store.get::<Items>(&key(n, n)).expect("works").expect("there").serial;
    committed(fixture.store(), |c| (1..4).for_each(|n| c.insert::<Items>(&key(n, n), &row("x", None))));
    let (first, second, third) =
        (serial(fixture.store(), 1), serial(fixture.store(), 2), serial(fixture.store(), 3));
    assert!(0 < first && first < second && second < third);
    committed(fixture.store(), |c| c.insert::<Marks>(&MarkKey { name: "m".into() }, &()));
    let mark = fixture.store().all::<Marks>().expect("works")[0].serial;
    assert!(mark > third);
    committed(fixture.store(), |c| {
        c.update::<Items>(&key(1, 1), &row("x", None), &row("y", None));
        c.delete::<Items>(&key(3, 3), &row("x", None));
    });
    assert_eq!(serial(fixture.store(), 1), first);
    fixture.reopen();
    assert_eq!(serial(fixture.store(), 1), first);
    let refused = commit(fixture.store(), |c| c.insert::<Items>(&key(1, 1), &row("x", None)));
    assert!(matches!(refused, CommitOutcome::Conflict(_)));
    committed(fixture.store(), |c| c.insert::<Items>(&key(3, 3), &row("again", None)));
    let again = serial(fixture.store(), 3);
    assert!(again > mark);
    committed(fixture.store(), |c| c.delete::<Items>(&key(3, 3), &row("again", None)));
    fixture.reopen();
    committed(fixture.store(), |c| c.insert::<Items>(&key(3, 3), &row("again", None)));
    assert!(serial(fixture.store(), 3) > again);
}

/// Empty rows and rows of megabytes are stored.
pub fn rows_may_be_empty_or_large(mut fixture: Fixture) {
    let sizes = [0, 1, 7, 8, 9, 4095, 70_000, 524_200, 600_000, 3_000_000];
    let body =
        |n: usize| -> Vec<u8> { (0..n).map(|i| u8::try_from(i * 7 % 251).expect("below 251")).collect() };
    for (n, size) in (0..).zip(sizes) {
        let large =
            ItemRow { label: String::new(), due: Some(n), tags: crate::List(vec![]), body: body(size) };
        committed(fixture.store(), |c| c.insert::<Items>(&key(1, u32::try_from(n).expect("few")), &large));
    }
    for _ in 0..2 {
        let all = fixture.store().all::<Items>().expect("works");
        assert_eq!(all.len(), sizes.len());
        for (found, size) in all.iter().zip(sizes) {
            assert!(found.row.body == body(size), "the row of {size} bytes differs");
        }
        fixture.reopen();
    }
    assert_eq!(grouped(fixture.store(), 1).len(), sizes.len());
}

/// A row whose encoding, together with its key, has this many bytes.
fn row_of_size(key: &ItemKey, bytes: usize, seed: u64) -> ItemRow {
    let mut row = ItemRow { label: "long".into(), due: Some(1), tags: crate::List(vec![]), body: Vec::new() };
    row.body = vec![0; bytes.next_multiple_of(8)];
    let mut word = seed;
    for eight in row.body.chunks_exact_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // No byte is zero, because zeros would be escaped.
        eight.copy_from_slice(&(word | 0x0101_0101_0101_0101).to_le_bytes());
    }
    let encoded_bytes = |row: &ItemRow| key.to_bytes().len() + row.to_bytes().len();
    row.body.truncate(row.body.len() - (encoded_bytes(&row) - bytes));
    assert_eq!(encoded_bytes(&row), bytes, "the length's own encoding stays");
    row
}

/// Rows up to [`ROW_BYTES_MAX`] are kept, changed and found; larger ones are refused and leave nothing
/// behind.
pub fn rows_have_a_limit(mut fixture: Fixture) {
    let limit = usize::try_from(ROW_BYTES_MAX).expect("it fits into memory");
    // Around the limit of an index entry of the embedded backend (512 KiB), and as large as rows may be.
    let sizes = [(512 << 10) - 100, (512 << 10) - 32, 512 << 10, (1 << 20) + 1, 15_000_000, limit];
    let key = |n: usize| key(1, u32::try_from(n).expect("few"));
    let rows: Vec<ItemRow> = (0..).zip(sizes).map(|(n, size)| row_of_size(&key(n), size, 1)).collect();
    for (n, row) in rows.iter().enumerate() {
        committed(fixture.store(), |c| c.insert::<Items>(&key(n), row));
    }
    let too_large = row_of_size(&key(sizes.len()), limit + 1, 1);
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(sizes.len() + 1), &row("small", None));
    changes.insert::<Items>(&key(sizes.len()), &too_large);
    let refused = fixture.store().commit(&changes);
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    // Swap sizes: long rows become short and short ones long.
    for (n, old) in rows.iter().enumerate().take(3) {
        let new = row_of_size(&key(n), sizes[(n + 3) % sizes.len()], 2);
        committed(fixture.store(), |c| c.update::<Items>(&key(n), old, &new));
        committed(fixture.store(), |c| c.update::<Items>(&key(n), &new, old));
    }
    for _ in 0..2 {
        let all = fixture.store().all::<Items>().expect("works");
        assert_eq!(all.len(), sizes.len());
        for (n, row) in rows.iter().enumerate() {
            let found = all.iter().find(|found| found.key == key(n)).expect("it was inserted");
            assert!(found.row == *row, "the row of {} bytes differs", sizes[n]);
        }
        fixture.reopen();
    }
    for (n, row) in rows.iter().enumerate() {
        committed(fixture.store(), |c| c.delete::<Items>(&key(n), row));
    }
    assert_eq!(fixture.store().count::<Items>().expect("works"), 0);
}

/// An empty set commits, as does one without net changes.
pub fn empty_sets_commit(fixture: Fixture) {
    let store = fixture.store();
    assert_eq!(store.commit(&ChangeSet::new()).expect("works"), CommitOutcome::Committed);
    assert_eq!(store.backend().commit(&ChangeSet::new()).expect("works"), CommitOutcome::Committed);
    let same = row("same", Some(1));
    committed(store, |c| c.insert::<Items>(&key(1, 1), &same));
    committed(store, |c| c.update::<Items>(&key(1, 1), &same, &same));
    assert_eq!(due(store, 1, 10), [1]);
}

/// Tables with equal key bytes do not mix.
pub fn tables_are_apart(mut fixture: Fixture) {
    // "\0\0\0\1\0\0\0" as text ends with two zeros, so the bytes of both keys start alike.
    committed(fixture.store(), |c| {
        c.insert::<Items>(&key(1, 1), &row("x", None));
        c.insert::<Marks>(&MarkKey { name: "x".into() }, &());
        c.insert::<Marks>(&MarkKey { name: String::new() }, &());
    });
    for _ in 0..2 {
        assert_eq!(fixture.store().count::<Items>().expect("works"), 1);
        assert_eq!(fixture.store().count::<Marks>().expect("works"), 2);
        fixture.reopen();
    }
}

/// Many small commits survive many reopenings.
pub fn histories_survive_reopening(mut fixture: Fixture) {
    let mut model: BTreeMap<u32, ItemRow> = BTreeMap::new();
    for round in 0..5_u32 {
        for n in 0..40_u32 {
            let (slot, fresh) =
                (n * 7 % 31, row(&format!("{round}/{n}"), (n % 3 == 0).then_some(u64::from(n))));
            match model.remove(&slot) {
                None => {
                    committed(fixture.store(), |c| c.insert::<Items>(&key(slot % 4, slot), &fresh));
                    model.insert(slot, fresh);
                }
                Some(old) if n % 5 == 0 => {
                    committed(fixture.store(), |c| c.delete::<Items>(&key(slot % 4, slot), &old));
                }
                Some(old) => {
                    committed(fixture.store(), |c| c.update::<Items>(&key(slot % 4, slot), &old, &fresh));
                    model.insert(slot, fresh);
                }
            }
        }
        fixture.reopen();
        let all = fixture.store().all::<Items>().expect("works");
        let stored: BTreeMap<u32, ItemRow> =
            all.into_iter().map(|found| (found.key.item, found.row)).collect();
        assert_eq!(stored, model);
        let waiting: BTreeSet<u32> = due(fixture.store(), u64::MAX, 1000).into_iter().collect();
        let expected: BTreeSet<u32> =
            model.iter().filter(|(_, row)| row.due.is_some()).map(|(n, _)| *n).collect();
        assert_eq!(waiting, expected);
    }
}

/// Several threads commit and read at once; every read sees whole commits.
pub fn threads_see_whole_commits(fixture: Fixture) {
    const ROUNDS: u32 = 60;
    let store = fixture.store();
    let write = |group: u32| {
        for n in 0..ROUNDS {
            committed(store, |c| {
                c.insert::<Items>(&key(group, 2 * n), &row("pair", Some(u64::from(n))));
                c.insert::<Items>(&key(group, 2 * n + 1), &row("pair", Some(u64::from(n))));
            });
        }
    };
    std::thread::scope(|scope| {
        let writers = [scope.spawn(|| write(1)), scope.spawn(|| write(2))];
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(grouped(store, 1).len() % 2, 0);
            assert_eq!(labelled(store, "pair").len() % 2, 0);
            assert_eq!(due(store, u64::MAX, 10_000).len() % 2, 0);
        }
    });
    assert_eq!(store.count::<Items>().expect("works"), u64::from(ROUNDS) * 4);
    assert_eq!(store.stats().rows, u64::from(ROUNDS) * 4);
}

/// Combined reads of several tables and kinds are answered in order, as if they were made one by one.
pub fn reads_may_go_together(fixture: Fixture) {
    let store = fixture.store();
    committed(store, |c| {
        (0..6).for_each(|n| c.insert::<Items>(&key(1, n), &row("x", Some(n.into()))));
        c.insert::<Marks>(&MarkKey { name: "m".into() }, &());
    });
    let (item, mark) = (|n| key(1, n).to_bytes(), MarkKey { name: "m".into() }.to_bytes());
    let range = |descending| Read::Range {
        table: Items::DEF,
        index: Items::BY_DUE,
        from: Bound::Included(1u64.to_bytes()),
        to: Bound::Excluded(5u64.to_bytes()),
        limit: 2,
        descending,
    };
    let reads = vec![
        Read::Rows { table: Items::DEF, keys: vec![item(3), item(9), item(0)] },
        range(false),
        Read::Groups {
            table: Items::DEF,
            index: Items::BY_GROUP,
            values: vec![9u32.to_be_bytes().to_vec(), 1u32.to_be_bytes().to_vec()],
        },
        Read::Rows { table: Marks::DEF, keys: vec![mark.clone()] },
        range(true),
        Read::Groups { table: Items::DEF, index: Items::BY_LABEL, values: vec!["x".to_owned().to_bytes()] },
    ];
    let backend = store.backend();
    let single =
        reads.iter().map(|read| backend.read_many(std::slice::from_ref(read)).expect("works").remove(0));
    let single: Vec<ReadAnswer> = single.collect();
    let together = store.read_many(&reads).expect("works");
    assert_eq!(together, single);
    let ReadAnswer::Rows(rows) = &together[0] else { panic!("{together:?}") };
    assert_eq!(rows.as_slice(), backend.get_many(Items::DEF, &[item(3), item(9), item(0)]).expect("works"));
    assert!(rows[0].is_some() && rows[1].is_none());
    let keys = |answer: &ReadAnswer| match answer {
        ReadAnswer::Range(rows) => rows.iter().map(|record| record.key.clone()).collect::<Vec<_>>(),
        ReadAnswer::Groups(groups) => groups.iter().flatten().map(|record| record.key.clone()).collect(),
        ReadAnswer::Rows(_) => panic!("{answer:?}"),
    };
    assert_eq!(keys(&together[1]), [item(1), item(2)]);
    assert_eq!(keys(&together[4]), [item(4), item(3)]);
    assert_eq!(keys(&together[2]), (0..6).map(item).collect::<Vec<_>>());
    assert_eq!(keys(&together[5]).len(), 6);
    assert_eq!(store.read_many(&[]).expect("works"), []);

    let mut reads = Reads::default();
    let row = reads.get::<Items>(&key(1, 2));
    let group = reads.lookup::<Items>(Items::BY_GROUP, &1u32.to_be_bytes());
    let mut answers = store.read(reads).expect("works");
    assert_eq!(answers.group(group).expect("decodes").len(), 6);
    assert_eq!(answers.row(row).expect("decodes").map(|found| found.row.due), Some(Some(2)));
}

/// A shard key has one virtual shard, below [`VSHARD_COUNT`](crate::VSHARD_COUNT), and different keys are
/// spread evenly.
pub fn shard_keys_are_spread(fixture: Fixture) {
    let backend = fixture.store().backend();
    let shards: Vec<u16> = (0..200u32).map(|n| backend.vshard(&n.to_be_bytes())).collect();
    assert!(shards.iter().all(|shard| *shard < crate::VSHARD_COUNT));
    assert!((0..200u32).all(|n| backend.vshard(&n.to_be_bytes()) == shards[n as usize]));
    let different: BTreeSet<u16> = shards.into_iter().collect();
    assert!(different.len() > 100, "{different:?}");
}

/// Checkpoints and closing change no rows, and a closed durable store refuses commits.
pub fn closing_keeps_everything(mut fixture: Fixture) {
    committed(fixture.store(), |c| {
        (0..20).for_each(|n| c.insert::<Items>(&key(1, n), &row("x", Some(n.into()))));
    });
    fixture.store().checkpoint().expect("works");
    committed(fixture.store(), |c| c.delete::<Items>(&key(1, 0), &row("x", Some(0))));
    fixture.store().close().expect("works");
    fixture.store().close().expect("closing twice is fine");
    assert_eq!(grouped(fixture.store(), 1).len(), 19);
    fixture.reopen();
    assert_eq!(grouped(fixture.store(), 1), (1..20).collect::<Vec<u32>>());
    assert_eq!(due(fixture.store(), 3, 10), [1, 2, 3]);
    committed(fixture.store(), |c| c.insert::<Items>(&key(1, 99), &row("x", None)));
}

/// Generates a test for each behaviour in this module for a backend.
///
/// `store_conformance!(memory, || Fixture::transient(Store::new(MemoryBackend::new())));`
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $factory:expr) => {
        $crate::store_conformance! { @each $name, $factory,
            inserted_rows_are_read_back
            many_rows_come_in_the_order_asked
            updates_replace_rows_and_index_entries
            deletes_remove_rows_and_index_entries
            conflicts_leave_nothing_behind
            conflicts_come_before_their_consequences
            the_same_key_twice_in_a_set_conflicts
            a_set_may_change_a_row_several_times
            stale_changes_are_refused
            prefixes_group_rows
            indexes_may_be_partial
            a_row_may_have_several_entries
            ranges_are_ordered_and_bounded
            ranges_can_be_paged
            positions_need_no_rows
            versions_name_what_was_read
            serial_indexes_queue_in_commit_order
            a_value_may_have_many_rows
            scans_show_every_row_once
            frozen_rows_stay_as_they_were
            serials_follow_the_commits
            rows_may_be_empty_or_large
            rows_have_a_limit
            empty_sets_commit
            tables_are_apart
            histories_survive_reopening
            threads_see_whole_commits
            reads_may_go_together
            shard_keys_are_spread
            closing_keeps_everything
        }
    };
    (@each $name:ident, $factory:expr, $($behaviour:ident)*) => {
        /// The conformance suite.
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $behaviour() {
                    $crate::conformance::$behaviour(($factory)());
                }
            )*
        }
    };
}
