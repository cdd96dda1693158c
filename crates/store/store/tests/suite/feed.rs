//! The serial stream: a reader that replays it has the rows of the store, whatever happens in between, and holds keep
//! what a reader needs, but not without limit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use batzen_store::conformance::Items;
use batzen_store::embedded::EmbeddedStore;
use batzen_store::embedded::sim::SimDisk;
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    CommitFeed, CommitOutcome, Feed, FeedCursor, Hold, Record, Store, StoreError, Table, TableDef,
};
use proptest::prelude::*;

use crate::common::{self, DIR, Random, Rows, open, random_changes};

const WANTED: &[&TableDef] = &[Items::DEF];
const READER: &str = "auditor";
const ENOUGH: u64 = 1 << 30;

type Bytes = BTreeMap<Vec<u8>, Vec<u8>>;

fn bytes(rows: &Rows) -> Bytes {
    rows.iter().map(|(key, row)| (key.to_bytes(), row.to_bytes())).collect()
}

fn hold(sequence: u64, bytes_max: u64) -> Hold {
    Hold { name: READER.into(), sequence, note: sequence.to_be_bytes().to_vec(), bytes_max }
}

/// A reader's copy of the rows.
struct Copy {
    cursor: FeedCursor,
    rows: Bytes,
    snapshots: usize,
}

impl Copy {
    fn new() -> Self {
        Self { cursor: FeedCursor::before(1), rows: Bytes::new(), snapshots: 0 }
    }

    /// Reads on. Returns false if it needs a snapshot.
    fn read(&mut self, store: &EmbeddedStore, bytes_max: usize) -> bool {
        let mut last = self.cursor.next();
        let frames = match CommitFeed::read(store, &mut self.cursor, WANTED, bytes_max).expect("it works") {
            Feed::Frames(frames) => frames,
            Feed::Gone => return false,
            Feed::Ahead { end } => panic!("frame {} after the end {end}", self.cursor.next()),
        };
        for frame in frames {
            assert!(frame.sequence >= last && !frame.changes.is_empty());
            last = frame.sequence + 1;
            for change in frame.changes {
                assert_eq!(change.table, Items::DEF);
                match change.current_row().expect("a row") {
                    Some(row) => self.rows.insert(change.key, row),
                    None => Some(self.rows.remove(&change.key).expect("a row that exists is deleted")),
                };
            }
        }
        assert!(last <= self.cursor.next());
        true
    }

    fn snapshot(&mut self, store: &EmbeddedStore) {
        let (sequence, frozen) = CommitFeed::snapshot(store, WANTED).expect("it works");
        self.rows.clear();
        let visit = &mut |record: batzen_store::RawRecord| {
            self.rows.insert(record.key, record.row);
            ControlFlow::Continue(())
        };
        frozen.scan(Items::DEF, visit).expect("it works");
        self.cursor = FeedCursor::before(sequence);
        self.snapshots += 1;
    }
}

#[derive(Debug, Clone)]
enum Step {
    Commit(u64),
    Maintain,
    Checkpoint,
    Reopen,
    PowerCut,
    LoseCheckpoint,
    /// Of about so many bytes.
    Read(usize),
    Hold,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => any::<u64>().prop_map(Step::Commit),
        4 => Just(Step::Maintain),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        1 => Just(Step::PowerCut),
        1 => Just(Step::LoseCheckpoint),
        4 => (1..4_000_usize).prop_map(Step::Read),
        3 => Just(Step::Hold),
    ]
}

/// A store, what it had after each commit, and a reader.
struct World {
    disk: SimDisk,
    store: Option<EmbeddedStore>,
    rows: Rows,
    /// The rows before the frame with this number.
    states: BTreeMap<u64, Bytes>,
    copy: Copy,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = open(&disk).expect("it opens");
        let states = BTreeMap::from([(0, Bytes::new())]);
        Self { disk, store: Some(store), rows: Rows::new(), states, copy: Copy::new() }
    }

    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("it is open")
    }

    fn reopen(&mut self, before: impl FnOnce(&SimDisk)) {
        self.store = None;
        before(&self.disk);
        self.store = Some(open(&self.disk).expect("it opens"));
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Commit(seed) => {
                let changes = random_changes(&mut Random(*seed), &mut self.rows);
                let store = self.store.as_ref().expect("it is open");
                let outcome = batzen_store::Backend::commit(store, &changes).expect("it works");
                assert_eq!(outcome, CommitOutcome::Committed);
                self.states.insert(CommitFeed::end(store), bytes(&self.rows));
            }
            Step::Maintain => self.store().maintain().expect("it works"),
            Step::Checkpoint => self.store().checkpoint().expect("it works"),
            Step::Reopen => self.reopen(|_| ()),
            Step::PowerCut => self.reopen(SimDisk::restart),
            Step::LoseCheckpoint => self.reopen(|disk| {
                let checkpoint = Path::new(DIR).join("checkpoint.idx");
                if disk.files().contains(&checkpoint) {
                    disk.tamper(&checkpoint, Vec::clear);
                }
            }),
            Step::Read(bytes_max) => self.read(*bytes_max),
            Step::Hold => {
                let next = self.copy.cursor.next();
                if CommitFeed::hold(self.store(), hold(next, ENOUGH)).expect("it works") {
                    assert_eq!(CommitFeed::holds(self.store()), [hold(next, ENOUGH)]);
                }
            }
        }
    }

    fn read(&mut self, bytes_max: usize) {
        let store = self.store.as_ref().expect("it is open");
        if !self.copy.read(store, bytes_max) {
            self.copy.snapshot(store);
        }
        let next = self.copy.cursor.next();
        let (_, expected) = self.states.range(..=next).next_back().expect("there is a first state");
        assert_eq!(&self.copy.rows, expected, "before frame {next}");
    }

    fn read_all(&mut self) {
        while self.copy.cursor.next() < CommitFeed::end(self.store()) {
            self.read(1_000);
        }
        assert_eq!(self.copy.rows, bytes(&self.rows));
    }
}

fn config() -> ProptestConfig {
    let cases = 150 * u32::try_from(common::soak_factor()).expect("a small factor");
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_reader_has_the_rows_of_its_position(steps in prop::collection::vec(step(), 1..150), seed in any::<u64>()) {
        let mut world = World::new(seed);
        steps.iter().for_each(|step| world.run(step));
        world.read_all();
        world.reopen(|_| ());
        let store = Store::new(world.store.take().expect("it is open"));
        prop_assert_eq!(common::read_rows(&store).expect("consistent"), world.rows);
    }

    /// A reader that holds its position never needs a snapshot.
    #[test]
    fn what_is_held_stays(steps in prop::collection::vec(step(), 1..150), seed in any::<u64>()) {
        let mut world = World::new(seed);
        world.run(&Step::Hold);
        steps.iter().for_each(|step| world.run(step));
        world.read_all();
        prop_assert_eq!(world.copy.snapshots, 0);
        let start = CommitFeed::holds(world.store())[0].sequence;
        let mut again = FeedCursor::before(start);
        let read = CommitFeed::read(world.store(), &mut again, WANTED, usize::MAX).expect("it works");
        prop_assert!(matches!(read, Feed::Frames(_)), "what is held can be read again");
        world.store = None;
        let report = EmbeddedStore::inspect(Path::new(DIR), &world.disk, &mut |_| ()).expect("it is a store");
        // A lost checkpoint is one of the steps.
        let mut problems = report.problems;
        problems.retain(|problem| !problem.contains("checkpoint.idx"));
        prop_assert_eq!(problems, Vec::<String>::new());
    }
}

/// Commits until compaction has removed segments, or kept them.
fn churn(world: &mut World, commits: u64) {
    for n in 0..commits {
        world.run(&Step::Commit(n));
        if n % 8 == 0 {
            world.run(&Step::Maintain);
        }
    }
}

fn segments(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|file| file.extension().is_some_and(|extension| extension == "seg")).count()
}

#[test]
fn without_a_hold_a_slow_reader_is_told_to_start_again() {
    let mut world = World::new(1);
    churn(&mut world, 400);
    assert!(!world.copy.read(world.store.as_ref().expect("open"), 1_000), "the first segments are gone");
    assert!(
        !CommitFeed::hold(world.store(), hold(1, ENOUGH)).expect("it works"),
        "they cannot be held any more"
    );
    assert_eq!(CommitFeed::holds(world.store()), []);
    world.read_all();
    assert_eq!(world.copy.snapshots, 1);
}

#[test]
fn a_hold_takes_no_more_than_its_limit_and_ends() {
    for is_released in [false, true] {
        let mut world = World::new(2);
        assert!(CommitFeed::hold(world.store(), hold(1, 512 << 10)).expect("it works"));
        churn(&mut world, 200);
        let many = segments(&world.disk);
        assert_eq!(CommitFeed::holds(world.store()).len(), 1);
        if is_released {
            CommitFeed::release(world.store(), READER).expect("it works");
        } else {
            churn(&mut world, 2_000);
            assert_eq!(CommitFeed::holds(world.store()), [], "too much was held");
        }
        world.run(&Step::Checkpoint);
        world.run(&Step::Maintain);
        assert!(segments(&world.disk) < many, "{} of {many} segments are left", segments(&world.disk));
        world.read_all();
        assert_eq!(world.copy.snapshots, 1);
    }
}

#[test]
fn a_full_disk_ends_holds() {
    let mut world = World::new(3);
    assert!(CommitFeed::hold(world.store(), hold(1, ENOUGH)).expect("it works"));
    churn(&mut world, 200);
    world.disk.set_capacity(Some(world.disk.used()));
    let mut random = Random(5);
    for _ in 0..400 {
        let mut rows = world.rows.clone();
        let changes = random_changes(&mut random, &mut rows);
        match batzen_store::Backend::commit(world.store(), &changes) {
            Ok(outcome) => {
                assert_eq!(outcome, CommitOutcome::Committed);
                world.rows = rows;
            }
            // Refused, and possible again after maintenance.
            Err(StoreError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if let Err(error) = world.store().maintain() {
            assert!(matches!(error, StoreError::Full(_)), "{error}");
        }
        if CommitFeed::holds(world.store()).is_empty() {
            break;
        }
    }
    assert_eq!(CommitFeed::holds(world.store()), []);
    world.disk.set_capacity(None);
    world.reopen(|_| ());
    let (store, rows) = (Store::new(world.store.take().expect("it is open")), world.rows);
    assert_eq!(common::read_rows(&store).expect("consistent"), rows);
}

#[test]
fn a_position_beyond_the_end_is_noticed() {
    let mut world = World::new(4);
    churn(&mut world, 10);
    let end = CommitFeed::end(world.store());
    let read = |next| {
        let mut cursor = FeedCursor::before(next);
        CommitFeed::read(world.store(), &mut cursor, WANTED, 1_000).expect("it works")
    };
    assert_eq!(read(end), Feed::Frames(Vec::new()));
    assert_eq!(read(end + 1), Feed::Ahead { end });
    assert!(!CommitFeed::hold(world.store(), hold(end + 1, ENOUGH)).expect("it works"));
}

#[test]
fn a_damaged_file_of_holds_does_not_stop_the_store() {
    let mut world = World::new(5);
    assert!(CommitFeed::hold(world.store(), hold(1, ENOUGH)).expect("it works"));
    churn(&mut world, 200);
    world.reopen(|disk| disk.tamper(&Path::new(DIR).join("holds"), |bytes| bytes[20] ^= 1));
    assert_eq!(CommitFeed::holds(world.store()), []);
    world.read_all();
}

#[test]
fn readers_continue_while_commits_and_compaction_go_on() {
    let disk = SimDisk::new(6);
    let store = open(&disk).expect("it opens");
    assert!(CommitFeed::hold(&store, hold(1, ENOUGH)).expect("it works"));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut random, mut rows) = (Random(7), Rows::new());
            for n in 0..600 {
                let changes = random_changes(&mut random, &mut rows);
                let outcome = batzen_store::Backend::commit(&store, &changes).expect("it works");
                assert_eq!(outcome, CommitOutcome::Committed);
                if n % 5 == 0 {
                    store.maintain().expect("it works");
                }
            }
            rows
        });
        let mut copy = Copy::new();
        loop {
            let is_last = writer.is_finished();
            assert!(copy.read(&store, 500), "it is held");
            let held = CommitFeed::hold(&store, hold(copy.cursor.next(), ENOUGH));
            assert!(held.expect("it works"));
            if is_last && copy.cursor.next() == CommitFeed::end(&store) {
                break;
            }
        }
        assert_eq!(copy.rows, bytes(&writer.join().expect("no panic")));
        let mut snapshot = Copy::new();
        snapshot.snapshot(&store);
        assert_eq!(snapshot.rows, copy.rows);
    });
}

#[test]
fn other_backends_say_that_they_cannot() {
    let Err(error) = Store::new(MemoryBackend::new()).feed().map(|_| ()) else { panic!("it cannot") };
    assert!(error.to_string().contains("only an embedded store"), "{error}");
}

crate::repeat_without_index_memory!(a_reader_has_the_rows_of_its_position, what_is_held_stays);

/// A frame that is too large for the rest of a segment and for the prepared one leaves an empty segment between. Nobody
/// needs that, so it is removed while a reader stands before it.
#[test]
fn a_reader_goes_on_beyond_an_empty_segment_that_is_gone() {
    let mut worlds_with_a_gap = 0;
    for _ in 0..50 {
        let mut world = World::new(0);
        for step in [
            Step::Hold,
            Step::Maintain,
            Step::Commit(9_939_535_228_832_509_773),
            Step::Commit(5_125_472_039_486_218_908),
            Step::Read(1),
            Step::Maintain,
            Step::Hold,
            Step::Checkpoint,
        ] {
            world.run(&step);
        }
        let is_there =
            |n: u32| world.disk.files().contains(&Path::new(DIR).join(format!("journal-{n:08}.seg")));
        worlds_with_a_gap += usize::from(is_there(1) && !is_there(2) && is_there(3));
        world.read_all();
        assert_eq!(world.copy.snapshots, 0);
    }
    assert!(worlds_with_a_gap > 0, "the commits do not leave an empty segment any more");
}
