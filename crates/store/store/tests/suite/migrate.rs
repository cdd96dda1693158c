//! Rows of older layouts: they are migrated when a newer program opens the store, wherever that is interrupted.

use std::path::Path;

use batzen_store::embedded::EmbeddedStore;
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::{
    Backend, ChangeSet, CommitOutcome, Found, IndexDef, IndexEntries, IndexKind, Layout, Store, StoreError,
    Table, TableDef, record, table,
};

use crate::common::{DIR, Random, sim_options};

record! {
    /// Names an order.
    pub key struct OrderKey {
        /// Its number.
        pub id: u32,
    }
}
record! {
    /// The first layout.
    pub struct OrderRow0 {
        pub customer: String,
        /// When to deliver, in minutes.
        pub due_minutes: u32,
    }
}
record! {
    /// The second layout: seconds, and it may be delivered.
    pub struct OrderRow1 {
        pub customer: String,
        /// When to deliver, in seconds; none when delivered.
        pub due_s: Option<u64>,
    }
}
record! {
    /// The third layout has the region, which follows from the key.
    pub struct OrderRow2 {
        /// Where to deliver.
        pub region: u8,
        pub customer: String,
        /// When to deliver, in seconds; none when delivered.
        pub due_s: Option<u64>,
    }
}

impl From<OrderRow0> for OrderRow1 {
    fn from(row: OrderRow0) -> Self {
        let due_s = (row.due_minutes > 0).then_some(u64::from(row.due_minutes) * 60);
        Self { customer: row.customer, due_s }
    }
}

const BY_CUSTOMER: u8 = 1;
const BY_DUE: u8 = 2;
const QUEUE: u8 = 3;
const INDEXES: &[IndexDef] = &[
    IndexDef::new(BY_CUSTOMER, "by_customer", IndexKind::Hash),
    IndexDef::new(BY_DUE, "by_due", IndexKind::Ordered),
    IndexDef::new(QUEUE, "queue", IndexKind::Serial),
];

fn region_of(id: u32) -> u8 {
    (id % 7).try_into().expect("small")
}

macro_rules! orders {
    ($table:ident, $row:ident, $layouts:expr, $due:expr) => {
        struct $table;
        impl Table for $table {
            const DEF: &'static TableDef =
                &TableDef::of::<Self>(9, "orders").indexed(INDEXES).layouts($layouts);
            type Key = OrderKey;
            type Row = $row;
            fn index_entries(_: &OrderKey, row: &$row, out: &mut IndexEntries) {
                out.add(BY_CUSTOMER, &row.customer);
                let due: fn(&$row) -> Option<u64> = $due;
                if let Some(due) = due(row) {
                    out.add(BY_DUE, &due);
                    out.add_with(QUEUE, |_| {});
                }
            }
        }
    };
}

const FIRST: Layout = Layout::of::<OrderRow0, OrderRow1>();
const SECOND: Layout = Layout {
    columns: <OrderRow1 as batzen_store::Record>::COLUMNS,
    upgrade: |key, row| {
        use batzen_store::Record;
        let (key, row) = (OrderKey::decode(key)?, OrderRow1::decode(row)?);
        let row = OrderRow2 { region: region_of(key.id), customer: row.customer, due_s: row.due_s };
        Ok(row.to_bytes())
    },
};
orders!(Orders0, OrderRow0, &[], |row| Some(row.due_minutes.into()));
orders!(Orders1, OrderRow1, &[FIRST], |row| row.due_s);
orders!(Orders2, OrderRow2, &[FIRST, SECOND], |row| row.due_s);

record! {
    /// Names something that does not change.
    pub key struct OtherKey {
        /// Its number.
        pub id: u32,
    }
}
table! {
    Others(10, "others"): OtherKey => OrderRow0;
}

fn open<T: Table>(disk: &SimDisk) -> Result<Store, StoreError> {
    EmbeddedStore::open(Path::new(DIR), &[T::DEF, Others::DEF], sim_options(disk)).map(Store::new)
}

const ROWS: u32 = 60;

/// A store of the first program, with rows that were changed and deleted.
fn old_store(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let store = open::<Orders0>(&disk).expect("it works");
    let mut random = Random(seed);
    for id in 0..ROWS {
        let row = OrderRow0 {
            customer: format!("customer {}", random.below(5)),
            due_minutes: random.below(4).try_into().expect("small"),
        };
        let mut changes = ChangeSet::new();
        changes.insert::<Orders0>(&OrderKey { id }, &row);
        changes.insert::<Others>(&OtherKey { id }, &row);
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        let old = store.get::<Orders0>(&OrderKey { id: id / 2 }).expect("it works");
        let mut changes = ChangeSet::new();
        match old {
            Some(old) if id % 5 == 0 => changes.delete::<Orders0>(&OrderKey { id: id / 2 }, &old.row),
            Some(old) => {
                let row = OrderRow0 { due_minutes: old.row.due_minutes + 1, ..old.row.clone() };
                changes.update::<Orders0>(&OrderKey { id: id / 2 }, &old.row, &row);
            }
            None => {}
        }
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    }
    if seed.is_multiple_of(2) {
        store.close().expect("it works");
    }
    drop(store);
    disk
}

fn rows<T: Table>(store: &Store) -> Vec<Found<T>> {
    store.all::<T>().expect("it works")
}

/// Returns the rows expected after the migration.
fn expected(disk: &SimDisk) -> Vec<Found<Orders2>> {
    let store = open::<Orders0>(&disk.copy()).expect("it works");
    let upgraded = |found: Found<Orders0>| {
        let row = OrderRow1::from(found.row);
        let row = OrderRow2 { region: region_of(found.key.id), customer: row.customer, due_s: row.due_s };
        Found { key: found.key, row, serial: found.serial, version: found.version }
    };
    rows::<Orders0>(&store).into_iter().map(upgraded).collect()
}

/// Compares the rows and all ways to find them.
fn check(store: &Store, expected: &[Found<Orders2>]) {
    assert_eq!(rows::<Orders2>(store), expected);
    for n in 0..5 {
        let customer = format!("customer {n}");
        let found = store.lookup::<Orders2>(BY_CUSTOMER, &customer).expect("it works");
        let wanted: Vec<_> =
            expected.iter().filter(|found| found.row.customer == customer).cloned().collect();
        assert_eq!(found, wanted);
    }
    let mut due: Vec<_> = expected.iter().filter(|found| found.row.due_s.is_some()).cloned().collect();
    let everything = || (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let (from, to) = everything();
    assert_eq!(store.range_bytes::<Orders2>(QUEUE, from, to, 1_000, false).expect("it works"), due);
    due.sort_by_key(|found| (found.row.due_s, found.key.id));
    let (from, to) = everything();
    assert_eq!(store.range_bytes::<Orders2>(BY_DUE, from, to, 1_000, false).expect("it works"), due);
    assert_eq!(store.count::<Others>().expect("it works"), u64::from(ROWS));
}

/// Changes rows, compacts, and opens the store again.
fn use_it(disk: &SimDisk, expected: &[Found<Orders2>]) {
    let embedded = EmbeddedStore::open(Path::new(DIR), &[Orders2::DEF, Others::DEF], sim_options(disk))
        .expect("it works");
    for found in expected {
        let old = Backend::get_many(&embedded, Orders2::DEF, &[batzen_store::Record::to_bytes(&found.key)]);
        assert!(old.expect("it works")[0].is_some());
    }
    let mut changes = ChangeSet::new();
    for found in expected.iter().step_by(3) {
        let row = OrderRow2 { due_s: Some(7), ..found.row.clone() };
        changes.update::<Orders2>(&found.key, &found.row, &row);
    }
    assert_eq!(Backend::commit(&embedded, &changes).expect("it works"), CommitOutcome::Committed);
    for _ in 0..4 {
        embedded.maintain().expect("it works");
    }
    Backend::close(&embedded).expect("it works");
    drop(embedded);
    let report = EmbeddedStore::inspect(Path::new(DIR), disk, &mut |_| {}).expect("it works");
    assert_eq!(report.problems, Vec::<String>::new());
    let mut changed = expected.to_vec();
    changed.iter_mut().step_by(3).for_each(|found| found.row.due_s = Some(7));
    check(&open::<Orders2>(disk).expect("it works"), &changed);
}

#[test]
fn rows_of_every_older_layout_are_migrated() {
    for seed in 0..4 {
        // Over both steps at once, and one after the other.
        let disk = old_store(seed);
        let expected = expected(&disk);
        let both = disk.copy();
        check(&open::<Orders2>(&both).expect("it works"), &expected);
        use_it(&both, &expected);

        let store = open::<Orders1>(&disk).expect("it works");
        let due: Vec<_> = rows::<Orders1>(&store).into_iter().map(|found| found.row.due_s).collect();
        assert_eq!(due, expected.iter().map(|found| found.row.due_s).collect::<Vec<_>>());
        store.close().expect("it works");
        drop(store);
        check(&open::<Orders2>(&disk).expect("it works"), &expected);
        use_it(&disk, &expected);
    }
}

#[test]
fn an_older_program_refuses_migrated_rows() {
    let disk = old_store(1);
    drop(open::<Orders1>(&disk).expect("it works"));
    let error = open::<Orders0>(&disk).map(|_| ()).expect_err("it is refused");
    assert!(matches!(error, StoreError::Format { .. }), "{error}");
    let message = "table orders has rows of layout 1, and this program knows layouts up to 0: a newer program has migrated \
                   them; start that one";
    assert!(error.to_string().ends_with(message), "{error}");
    // Nothing was changed.
    open::<Orders1>(&disk).expect("it works");
}

#[test]
fn a_new_store_has_nothing_to_migrate() {
    let disk = SimDisk::new(1);
    let store = open::<Orders2>(&disk).expect("it works");
    let row = OrderRow2 { region: 1, customer: "A".into(), due_s: None };
    let mut changes = ChangeSet::new();
    changes.insert::<Orders2>(&OrderKey { id: 1 }, &row);
    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    drop(store);
    let written = disk.written();
    let store = open::<Orders2>(&disk).expect("it works");
    assert_eq!(store.get::<Orders2>(&OrderKey { id: 1 }).expect("it works").expect("it works").row, row);
    drop(store);
    let again = disk.written() - written;
    drop(open::<Orders2>(&disk).expect("it works"));
    assert!(disk.written() - written <= 2 * again, "opening writes no rows");
}

/// The migration is interrupted at every call to the disk, several times in a row, by a crash, an error or a full disk.
#[test]
fn interrupted_migrations_continue() {
    for (seed, fault) in [(1, Fault::Crash), (2, Fault::Crash), (3, Fault::Error), (4, Fault::Full)] {
        let disk = old_store(seed);
        let expected = expected(&disk);
        let calls = {
            let disk = disk.copy();
            let before = disk.calls();
            drop(open::<Orders2>(&disk).expect("it works"));
            disk.calls() - before
        };
        assert!(calls > 30, "several batches: {calls} calls");
        let mut failed = 0;
        for n in 1..=calls {
            let disk = disk.copy();
            for again in [n, 1 + n / 2, 1 + n / 3] {
                disk.fail_at(again, fault);
                failed += u32::from(open::<Orders2>(&disk).is_err());
                if n.is_multiple_of(2) { disk.kill() } else { disk.restart() }
            }
            check(&open::<Orders2>(&disk).expect("it works"), &expected);
            if n.is_multiple_of(8) {
                disk.kill();
                use_it(&disk, &expected);
            }
        }
        assert!(failed > 20, "{fault:?}: {failed} openings failed");
    }
}

crate::repeat_without_index_memory!(
    rows_of_every_older_layout_are_migrated,
    an_older_program_refuses_migrated_rows,
    a_new_store_has_nothing_to_migrate,
    interrupted_migrations_continue,
);
