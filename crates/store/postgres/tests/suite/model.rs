//! Random histories against a model, and edge cases of change sets.

use crate::common;
use batzen_store::conformance::random as model;

use batzen_store::conformance::{Items, MarkKey, Marks, TABLES, key, row};
use batzen_store::memory::MemoryBackend;
use batzen_store::{ChangeSet, CommitOutcome, Record, Store, StoreError, Table};
use common::{database, open};
use model::{Random, Rows, random_changes, random_row, read_rows, soak_factor};

/// Commits, conflicts, stale changes and reopening in any order; the store refuses what the memory backend
/// refuses.
#[test]
fn random_histories_match_the_model() {
    for (seed, partitions) in (0..2 * soak_factor()).zip([0, 64].into_iter().cycle()) {
        let options = database(TABLES, partitions);
        let mut store = open(&options);
        let memory = Store::new(MemoryBackend::new());
        let (mut rows, mut random) = (Rows::new(), Random(seed));
        for _ in 0..120 {
            match random.below(8) {
                0 => {
                    // The set does not fit, for one or several reasons: both stores report the same.
                    let mut changes = ChangeSet::new();
                    for _ in 0..1 + random.below(5) {
                        let slot = u32::try_from(random.below(24)).unwrap();
                        let slot = key(slot % 3, slot);
                        match random.below(3) {
                            0 => changes.insert::<Items>(&slot, &random_row(&mut random)),
                            1 => {
                                let (old, new) = (random_row(&mut random), random_row(&mut random));
                                changes.update::<Items>(&slot, rows.get(&slot).unwrap_or(&old), &new);
                            }
                            _ => changes.delete::<Items>(&slot, &random_row(&mut random)),
                        }
                    }
                    match (memory.commit(&changes), store.commit(&changes)) {
                        (Ok(CommitOutcome::Committed), Ok(CommitOutcome::Committed)) => {
                            rows = read_rows(&memory).unwrap();
                        }
                        (Ok(here), Ok(there)) => assert_eq!(here, there),
                        (
                            Err(StoreError::Stale { key: here, .. }),
                            Err(StoreError::Stale { key: there, .. }),
                        ) => {
                            assert_eq!(here, there);
                        }
                        (here, there) => panic!("{here:?} in memory, {there:?} in PostgreSQL"),
                    }
                }
                1 => {
                    drop(store);
                    store = open(&options);
                }
                _ => {
                    let changes = random_changes(&mut random, &mut rows);
                    for store in [&memory, &store] {
                        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
                    }
                }
            }
        }
        assert_eq!(read_rows(&store).unwrap(), rows);
        let order = |store: &Store| {
            store.all::<Items>().unwrap().into_iter().map(|found| found.key).collect::<Vec<_>>()
        };
        assert_eq!(order(&store), order(&memory), "serials have the same order");
    }
}

#[test]
fn ten_thousand_changes_are_one_commit() {
    const COUNT: u32 = 10_000;
    let store = open(&database(TABLES, 4));
    let mut changes = ChangeSet::new();
    (0..COUNT).for_each(|n| changes.insert::<Items>(&key(n, n), &row("a", Some(n.into()))));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let mut changes = ChangeSet::new();
    for n in 0..COUNT {
        let (a, b) = (row("a", Some(n.into())), row("b", None));
        match n % 4 {
            0 => changes.delete::<Items>(&key(n, n), &a),
            1 => changes.update::<Items>(&key(n, n), &a, &b),
            // Inserted and deleted within the set.
            2 => {
                changes.update::<Items>(&key(n, n), &a, &b);
                changes.delete::<Items>(&key(n, n), &b);
                changes.insert::<Items>(&key(n, n), &a);
            }
            _ => {
                changes.insert::<Items>(&key(COUNT + n, n), &b);
                changes.update::<Items>(&key(COUNT + n, n), &b, &a);
                changes.delete::<Items>(&key(COUNT + n, n), &a);
            }
        }
    }
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.count::<Items>().unwrap(), u64::from(COUNT) * 3 / 4);
    let labelled = |label: &str| store.lookup::<Items>(Items::BY_LABEL, &label.to_owned()).unwrap().len();
    assert_eq!((labelled("a"), labelled("b")), (5_000, 2_500));
}

#[test]
fn conflicts_name_exactly_the_existing_rows() {
    let store = open(&database(TABLES, 4));
    let mut changes = ChangeSet::new();
    (0..50).step_by(7).for_each(|n| changes.insert::<Items>(&key(n, n), &row("first", None)));
    changes.insert::<Marks>(&MarkKey { name: "m".into() }, &());
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let mut changes = ChangeSet::new();
    (0..50).rev().for_each(|n| changes.insert::<Items>(&key(n, n), &row("second", None)));
    changes.insert::<Marks>(&MarkKey { name: "m".into() }, &());
    changes.insert::<Marks>(&MarkKey { name: "n".into() }, &());
    let mut expected: Vec<_> = (0..50).step_by(7).rev().map(|n| (Items::DEF, key(n, n).to_bytes())).collect();
    expected.push((Marks::DEF, MarkKey { name: "m".into() }.to_bytes()));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Conflict(expected));
    assert_eq!(store.count::<Items>().unwrap(), 8);
    assert_eq!(store.count::<Marks>().unwrap(), 1);
}

#[test]
fn too_large_set_is_refused_as_a_whole() {
    let store = open(&database(TABLES, 0));
    let mut changes = ChangeSet::new();
    (0..=65_536).for_each(|n: u32| changes.insert::<Marks>(&MarkKey { name: n.to_string() }, &()));
    assert!(matches!(store.commit(&changes), Err(StoreError::TooLarge { .. })));
    assert_eq!(store.count::<Marks>().unwrap(), 0);
}

/// A row that a commit depends on, but does not change.
#[test]
fn dependencies_are_compared_and_not_written() {
    let store = open(&database(TABLES, 4));
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row("guard", Some(1)));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let read = store.get::<Items>(&key(1, 1)).unwrap().unwrap();
    let depend = |n: u32| {
        let mut changes = ChangeSet::new();
        changes.keep_read::<Items>(&key(1, 1), (&read.row, Some(read.version)));
        changes.insert::<Items>(&key(2, n), &row("x", None));
        store.commit(&changes)
    };
    assert_eq!(depend(1).unwrap(), CommitOutcome::Committed);
    let again = store.get::<Items>(&key(1, 1)).unwrap().unwrap();
    assert_eq!(again.version, read.version);
    let mut changes = ChangeSet::new();
    changes.update_read::<Items>(&key(1, 1), (&read.row, Some(read.version)), &row("changed", None));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert!(matches!(depend(2), Err(StoreError::Stale { .. })));
    assert_eq!(store.count::<Items>().unwrap(), 2);
}
