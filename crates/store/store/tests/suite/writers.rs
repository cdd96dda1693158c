//! Several threads commit to one embedded store: no update is lost, readers see one state, commits share
//! frames, and failures and crashes in between lose nothing.

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use batzen_store::conformance::{ItemRow, Items, TABLES, key, row};
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{Disk, DiskFile, EmbeddedStore, FrameKind, Options, RealDisk};
use batzen_store::{
    Backend, ChangeSet, CommitOutcome, Found, Read, ReadAnswer, Record, Store, StoreError, Table,
};

use crate::common::{DIR, Random, index_hot_bytes, open, sim_options, soak_factor};

/// Small enough for many segments, compactions and checkpoints.
fn options() -> Options {
    Options {
        segment_bytes_first: 16 << 10,
        segment_bytes_max: 64 << 10,
        checkpoint_bytes: 128 << 10,
        index_hot_bytes: index_hot_bytes(),
        ..Options::default()
    }
}

fn number(found: &Found<Items>) -> u64 {
    found.row.label.parse().expect("a number")
}

/// Moves an amount between two rows, if nobody else changes them meanwhile.
fn transfer(store: &Store, from: u32, to: u32, amount: u64) -> bool {
    let keys = [key(1, from), key(1, to)];
    let rows = store.get_many::<Items>(&keys).expect("it works");
    let [Some(a), Some(b)] = &rows[..] else { panic!("the rows are there") };
    let balance = |label: &str| label.parse::<u64>().expect("a number");
    let (have, other) = (balance(&a.row.label), balance(&b.row.label));
    let Some(rest) = have.checked_sub(amount) else { return true };
    let mut changes = ChangeSet::new();
    // Deadlines change with the balance, so that the ordered and the serial index move, too.
    let new = |balance: u64| row(&balance.to_string(), balance.is_multiple_of(3).then_some(balance));
    changes.update_read::<Items>(&keys[0], (&a.row, Some(a.version)), &new(rest));
    changes.update_read::<Items>(&keys[1], (&b.row, Some(b.version)), &new(other + amount));
    match store.commit(&changes) {
        Ok(CommitOutcome::Committed) => true,
        Ok(CommitOutcome::Conflict(_)) | Err(StoreError::Stale { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

const ACCOUNTS: u32 = 12;
const BALANCE: u64 = 1_000;

fn open_accounts(store: &Store) {
    let mut changes = ChangeSet::new();
    (0..ACCOUNTS).for_each(|n| changes.insert::<Items>(&key(1, n), &row(&BALANCE.to_string(), None)));
    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
}

/// Threads move amounts between the same few rows while the store compacts and writes checkpoints, and while
/// readers add up all rows: the sum is always the same.
#[test]
fn sums_hold_at_every_moment() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(EmbeddedStore::open(directory.path(), TABLES, options()).expect("it opens"));
    open_accounts(&store);
    let (lost, done) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let (store, lost) = (&store, &lost);
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..600 * soak_factor() {
                        let from = u32::try_from(random.below(u64::from(ACCOUNTS))).expect("small");
                        let to =
                            (from + 1 + u32::try_from(random.below(u64::from(ACCOUNTS) - 1)).expect("small"))
                                % ACCOUNTS;
                        let amount = random.below(50);
                        while !transfer(store, from, to, amount) {
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(|n| key(1, n).to_bytes()).collect();
                // The same rows by two ways in one read: they are of one state.
                let (first, rest) = keys.split_at(5);
                let rows = |keys: &[Vec<u8>]| Read::Rows { table: Items::DEF, keys: keys.to_vec() };
                let values = vec![1_u32.to_be_bytes().to_vec()];
                let group = Read::Groups { table: Items::DEF, index: Items::BY_GROUP, values };
                let reads = [rows(first), group, rows(rest)];
                while !done.load(Ordering::Relaxed) {
                    let answers = store.read_many(&reads).expect("it works");
                    let (mut by_key, mut by_group) = (0, 0);
                    for answer in answers {
                        match answer {
                            ReadAnswer::Rows(rows) => {
                                for raw in rows {
                                    let raw = raw.expect("the row is there");
                                    let row = ItemRow::decode(&raw.row).expect("a row");
                                    by_key += row.label.parse::<u64>().expect("a number");
                                }
                            }
                            ReadAnswer::Groups(groups) => {
                                let found = groups.into_iter().flatten().map(Found::decode);
                                by_group += found.map(|found| number(&found.expect("a row"))).sum::<u64>();
                            }
                            ReadAnswer::Range(_) => unreachable!("no range was read"),
                        }
                    }
                    let expected = u64::from(ACCOUNTS) * BALANCE;
                    assert_eq!((by_key, by_group), (expected, expected));
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().expect("no writer fails"));
        done.store(true, Ordering::Relaxed);
    });
    assert!(lost.load(Ordering::Relaxed) > 0, "threads met at the same rows");
    store.close().expect("it closes");
    drop(store);
    let store = Store::new(EmbeddedStore::open(directory.path(), TABLES, options()).expect("it opens again"));
    let sum: u64 = store.all::<Items>().expect("it works").iter().map(number).sum();
    assert_eq!(sum, u64::from(ACCOUNTS) * BALANCE);
    drop(store);
    let report = EmbeddedStore::verify(directory.path()).expect("a store");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A reader that continues a serial index after the last serial that it has seen misses no row.
#[test]
fn serials_appear_in_their_order() {
    const WRITERS: u32 = 4;
    const ROWS: u32 = 300;
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(EmbeddedStore::open(directory.path(), TABLES, options()).expect("it opens"));
    let seen = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                for n in 0..ROWS {
                    let mut changes = ChangeSet::new();
                    // The second row of a set has the next serial.
                    changes.insert::<Items>(&key(writer, 2 * n), &row("first", Some(0)));
                    changes.insert::<Items>(&key(writer, 2 * n + 1), &row("second", Some(0)));
                    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                }
            });
        }
        let mut seen = Vec::new();
        let mut from = Bound::Unbounded;
        while seen.len() < (2 * ROWS * WRITERS) as usize {
            let next = store.range_positions::<Items>(Items::QUEUE, from.clone(), Bound::Unbounded, 7, false);
            for found in next.expect("it works") {
                seen.push((found.serial, found.key));
                from = Bound::Excluded(found.serial.to_be_bytes().to_vec());
            }
        }
        seen
    });
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for writer in 0..WRITERS {
        let of_writer: Vec<u32> = seen
            .iter()
            .filter(|(_, key)| key.group == writer.to_be_bytes())
            .map(|(_, key)| key.item)
            .collect();
        assert_eq!(of_writer, (0..2 * ROWS).collect::<Vec<_>>(), "a writer's rows are in its order");
    }
    let stored: Vec<u64> = store.all::<Items>().expect("it works").iter().map(|found| found.serial).collect();
    assert_eq!(stored, seen.iter().map(|(serial, _)| *serial).collect::<Vec<_>>());
}

/// A disk whose syncs of journals wait for a gate, and may fail.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: u32,
    fails: bool,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().expect("no panics"));
        self.changed.notify_all();
    }

    fn wait_for(&self, is_met: impl Fn(&GateState) -> bool) {
        let state = self.state.lock().expect("no panics");
        drop(self.changed.wait_while(state, |state| !is_met(state)).expect("no panics"));
    }

    fn pass(&self) -> std::io::Result<()> {
        let mut state = self.state.lock().expect("no panics");
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.closed).expect("no panics");
        state.waiting -= 1;
        if state.fails { Err(std::io::Error::other("the gate is broken")) } else { Ok(()) }
    }
}

struct GatedDisk(Arc<Gate>);
struct GatedFile(Arc<dyn DiskFile>, Arc<Gate>);

impl DiskFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        self.0.write_at(buf, offset)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.1.pass()?;
        self.0.sync()
    }
    fn set_len(&self, bytes: u64) -> std::io::Result<()> {
        self.0.set_len(bytes)
    }
    fn size(&self) -> std::io::Result<u64> {
        self.0.size()
    }
}

impl Disk for GatedDisk {
    fn create_dir(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.create_dir(path)
    }
    fn lock(&self, path: &Path) -> std::io::Result<Option<Box<dyn std::any::Any + Send + Sync>>> {
        RealDisk.lock(path)
    }
    fn open(&self, path: &Path, writable: bool) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GatedFile(RealDisk.open(path, writable)?, Arc::clone(&self.0))))
    }
    fn create(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GatedFile(RealDisk.create(path)?, Arc::clone(&self.0))))
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        RealDisk.free_bytes(dir)
    }
}

const FOLLOWERS: u32 = 5;

fn insert(store: &EmbeddedStore, item: u32) -> Result<CommitOutcome, StoreError> {
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(7, item), &row("grouped", Some(u64::from(item))));
    store.commit(&changes)
}

/// Starts one commit, and further ones while its sync waits. `end` decides how the sync ends. Returns the
/// outcomes; the first is that of the commit that waited alone.
fn while_one_syncs(
    directory: &Path,
    end: impl FnOnce(&Gate, &EmbeddedStore),
) -> Vec<Result<CommitOutcome, StoreError>> {
    let gate = Arc::<Gate>::default();
    let disk = Arc::new(GatedDisk(Arc::clone(&gate)));
    let options = Options { disk, background: false, on_fatal: Arc::new(|_| {}), ..Options::default() };
    let store = EmbeddedStore::open(directory, TABLES, options).expect("it opens");
    gate.set(|state| state.closed = true);
    std::thread::scope(|scope| {
        let mut commits = vec![scope.spawn(|| insert(&store, 0))];
        gate.wait_for(|state| state.waiting == 1);
        for item in 1..=FOLLOWERS {
            let store = &store;
            commits.push(scope.spawn(move || insert(store, item)));
        }
        while store.commits_waiting() < FOLLOWERS as usize {
            std::thread::yield_now();
        }
        end(&gate, &store);
        commits.into_iter().map(|commit| commit.join().expect("no commit panics")).collect()
    })
}

/// The numbers of records of the frames of commits.
fn frames(directory: &Path) -> Vec<u32> {
    let mut records = Vec::new();
    EmbeddedStore::inspect(directory, &RealDisk, &mut |frame| {
        if frame.kind == FrameKind::Commit {
            records.push(u32::try_from(frame.records.len()).expect("few"));
        }
    })
    .expect("a store");
    records
}

#[test]
fn commits_that_wait_share_a_frame() {
    let directory = tempfile::tempdir().expect("a directory");
    let outcomes = while_one_syncs(directory.path(), |gate, store| {
        for item in 0..=FOLLOWERS {
            let found = store.get_many(Items::DEF, &[key(7, item).to_bytes()]);
            assert_eq!(found.expect("it works"), [None], "nothing is visible before it is durable");
        }
        gate.set(|state| state.closed = false);
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(CommitOutcome::Committed))), "{outcomes:?}");
    assert_eq!(frames(directory.path()), [1, FOLLOWERS]);
    let store = Store::new(EmbeddedStore::open(directory.path(), TABLES, options()).expect("it opens"));
    assert_eq!(store.count::<Items>().expect("it works"), u64::from(FOLLOWERS) + 1);
    let mut serials: Vec<u64> =
        store.all::<Items>().expect("it works").iter().map(|found| found.serial).collect();
    serials.dedup();
    assert_eq!(serials.len(), FOLLOWERS as usize + 1, "each row has its own serial");
}

/// After a failed sync nothing is acknowledged: neither the commit that waited for it nor those after it.
#[test]
fn failed_sync_fails_all_that_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let outcomes = while_one_syncs(directory.path(), |gate, _| {
        gate.set(|state| (state.fails, state.closed) = (true, false));
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(StoreError::Stopped(_)))), "{outcomes:?}");
}

/// A commit that names a row which another commit is about to change waits for that one, and then fails.
#[test]
fn second_change_of_a_row_waits_for_the_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Arc::<Gate>::default();
    let disk = Arc::new(GatedDisk(Arc::clone(&gate)));
    let options = Options { disk, background: false, ..Options::default() };
    let store = EmbeddedStore::open(directory.path(), TABLES, options).expect("it opens");
    assert_eq!(insert(&store, 0).expect("it works"), CommitOutcome::Committed);
    let update = |label: &str| {
        let mut changes = ChangeSet::new();
        changes.update::<Items>(&key(7, 0), &row("grouped", Some(0)), &row(label, None));
        store.commit(&changes)
    };
    let depend = || {
        let mut changes = ChangeSet::new();
        changes.keep_read::<Items>(&key(7, 0), (&row("grouped", Some(0)), None));
        store.commit(&changes)
    };
    gate.set(|state| state.closed = true);
    let ended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| update("first"));
        gate.wait_for(|state| state.waiting == 1);
        let others = [
            scope.spawn(|| {
                let outcome = update("second");
                ended.fetch_add(1, Ordering::SeqCst);
                outcome
            }),
            scope.spawn(|| {
                let outcome = depend();
                ended.fetch_add(1, Ordering::SeqCst);
                outcome
            }),
        ];
        while store.claims_waiting() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(ended.load(Ordering::SeqCst), 0, "the others wait");
        gate.set(|state| state.closed = false);
        assert!(matches!(first.join().expect("no panic"), Ok(CommitOutcome::Committed)));
        for other in others {
            let outcome = other.join().expect("no panic");
            assert!(matches!(outcome, Err(StoreError::Stale { .. })), "{outcome:?}");
        }
    });
}

/// Three threads commit until the disk crashes at a random call. Afterwards each thread's rows are a prefix
/// of what it committed, with everything that was acknowledged.
#[test]
fn crashes_among_several_writers_lose_nothing() {
    const WRITERS: u32 = 3;
    for seed in 0..60 * soak_factor() {
        let disk = SimDisk::new(seed);
        let store = open(&disk).expect("it opens");
        disk.fail_at(1 + (seed * 7) % 180, if seed.is_multiple_of(3) { Fault::Error } else { Fault::Crash });
        let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let start = Barrier::new(WRITERS as usize);
        std::thread::scope(|scope| {
            for (writer, acknowledged) in (0..WRITERS).zip(&acknowledged) {
                let (store, start) = (&store, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 1..60_u32 {
                        let mut changes = ChangeSet::new();
                        changes.insert::<Items>(&key(writer, n), &row("a", Some(u64::from(n))));
                        changes.insert::<Items>(&key(writer, 1_000 + n), &row("b", None));
                        if n > 10 {
                            changes.delete::<Items>(&key(writer, 1_000 + n - 10), &row("b", None));
                        }
                        if store.commit(&changes).is_err() {
                            break;
                        }
                        acknowledged.store(u64::from(n), Ordering::SeqCst);
                        if writer == 0 && n % 9 == 0 && store.maintain().is_err() {
                            break;
                        }
                    }
                });
            }
        });
        drop(store);
        disk.restart();
        let store = Store::new(
            EmbeddedStore::open(Path::new(DIR), TABLES, sim_options(&disk))
                .expect("it opens after any crash"),
        );
        for (writer, acknowledged) in (0..WRITERS).zip(&acknowledged) {
            let group = store.lookup::<Items>(Items::BY_GROUP, &writer.to_be_bytes()).expect("it works");
            let last =
                group.iter().map(|found| found.key.item).filter(|item| *item < 1_000).max().unwrap_or(0);
            let acknowledged = acknowledged.load(Ordering::SeqCst);
            assert!(
                u64::from(last) >= acknowledged,
                "seed {seed}, writer {writer}: {last} of {acknowledged}"
            );
            assert!(
                u64::from(last) <= acknowledged + 1,
                "seed {seed}, writer {writer}: one commit at a time"
            );
            let mut items: Vec<u32> = group.iter().map(|found| found.key.item).collect();
            items.sort_unstable();
            let kept = last.saturating_sub(10) + 1..=last;
            let expected: Vec<u32> = (1..=last).chain(kept.map(|n| 1_000 + n)).collect();
            assert_eq!(items, expected, "seed {seed}, writer {writer}: whole commits only");
        }
    }
}

crate::repeat_without_index_memory!(
    sums_hold_at_every_moment,
    serials_appear_in_their_order,
    second_change_of_a_row_waits_for_the_first,
    crashes_among_several_writers_lose_nothing,
);
