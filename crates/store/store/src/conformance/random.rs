//! Random change sets for tests of a backend, and a check that all ways of reading agree.

use std::collections::BTreeMap;

use super::{ItemKey, ItemRow, Items, key};
use crate::{ChangeSet, List, Store};

/// All rows of the table of items.
pub type Rows = BTreeMap<ItemKey, ItemRow>;

/// SplitMix64: reproducible choices.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }
}

/// The factor by which soak tests exceed normal ones: `BATZEN_SOAK_FACTOR`, or 1.
#[must_use]
pub fn soak_factor() -> u64 {
    std::env::var("BATZEN_SOAK_FACTOR")
        .map_or(1, |factor| factor.parse().expect("BATZEN_SOAK_FACTOR is a number"))
}

/// A row of random values; one in twenty is long.
pub fn random_row(random: &mut Random) -> ItemRow {
    let size = if random.below(20) == 0 { 900 } else { random.below(60) };
    ItemRow {
        label: format!("label {}", random.below(5)),
        due: (random.below(3) == 0).then(|| random.below(50)),
        tags: List((0..random.below(3)).map(|_| u16::try_from(random.below(4)).expect("small")).collect()),
        body: (0..size).map(|_| u8::try_from(random.below(256)).expect("a byte")).collect(),
    }
}

/// A random change set that fits `rows`, and is applied to them.
pub fn random_changes(random: &mut Random, rows: &mut Rows) -> ChangeSet {
    let mut changes = ChangeSet::new();
    for _ in 0..1 + random.below(6) {
        let slot = u32::try_from(random.below(24)).expect("small");
        let slot = key(slot % 3, slot);
        match rows.remove(&slot) {
            None => {
                let row = random_row(random);
                changes.insert::<Items>(&slot, &row);
                rows.insert(slot, row);
            }
            Some(old) if random.below(3) == 0 => changes.delete::<Items>(&slot, &old),
            Some(old) => {
                let row = random_row(random);
                changes.update::<Items>(&slot, &old, &row);
                rows.insert(slot, row);
            }
        }
    }
    changes
}

/// Reads all items in every possible way; returns an error if the ways disagree.
pub fn read_rows(store: &Store) -> std::result::Result<Rows, String> {
    let fail = |e: crate::StoreError| e.to_string();
    let all = store.all::<Items>().map_err(fail)?;
    let rows: Rows = all.iter().map(|found| (found.key.clone(), found.row.clone())).collect();
    if rows.len() != all.len() || store.count::<Items>().map_err(fail)? != rows.len() as u64 {
        return Err("rows appear twice, or the count is wrong".into());
    }
    let keys: Vec<ItemKey> = rows.keys().cloned().collect();
    for (key, got) in keys.iter().zip(store.get_many::<Items>(&keys).map_err(fail)?) {
        if got.as_ref().map(|stored| &stored.row) != rows.get(key) {
            return Err(format!("{key:?} differs by key and by scan"));
        }
    }
    let select = |keep: &dyn Fn(&ItemKey, &ItemRow) -> bool| -> Vec<ItemKey> {
        rows.iter().filter(|(key, row)| keep(key, row)).map(|(key, _)| key.clone()).collect()
    };
    let check = |what: &str, found: Vec<crate::Found<Items>>, expected: Vec<ItemKey>, by_serial: bool| {
        if by_serial && !found.is_sorted_by_key(|found| found.serial) {
            return Err(format!("{what}: not in commit order"));
        }
        let mut keys: Vec<ItemKey> = found.iter().map(|found| found.key.clone()).collect();
        keys.sort();
        if keys == expected { Ok(()) } else { Err(format!("{what}: {keys:?} instead of {expected:?}")) }
    };
    for n in 0..5_u32 {
        let label = format!("label {n}");
        let found = store.lookup::<Items>(Items::BY_LABEL, &label).map_err(fail)?;
        check("labels", found, select(&|_, row| row.label == label), true)?;
        let group = n.to_be_bytes();
        let found = store.lookup::<Items>(Items::BY_GROUP, &group).map_err(fail)?;
        check("groups", found, select(&|key, _| key.group == group), true)?;
        let tag = u16::try_from(n).expect("small");
        let found = store.lookup::<Items>(Items::BY_TAG, &tag).map_err(fail)?;
        check("tags", found, select(&|_, row| row.tags.0.contains(&tag)), true)?;
    }
    let found = store.range::<Items, u64>(Items::BY_DUE, .., usize::MAX).map_err(fail)?;
    if !found.is_sorted_by_key(|found| (found.row.due, found.key.clone())) {
        return Err("deadlines: not in order".into());
    }
    check("deadlines", found, select(&|_, row| row.due.is_some()), false)?;
    let (all, end) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let found = store.range_bytes::<Items>(Items::QUEUE, all, end, usize::MAX, false).map_err(fail)?;
    check("queue", found, select(&|_, row| row.due.is_some()), true)?;
    Ok(rows)
}
