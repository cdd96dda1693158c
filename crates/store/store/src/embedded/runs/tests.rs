//! Runs, frozen changes and latest changes against a naive set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::flush::write_run;
use super::merge::MergeState;
use super::read::RunName;
use super::*;
use crate::StoreError;
use crate::conformance::random::Random;
use crate::embedded::Options;
use crate::embedded::disk::Disk;
use crate::embedded::format::Identity;
use crate::embedded::index::{Location, Op, Ops, Secondary};
use crate::embedded::ordered::{OrderedIndex, Position, PositionOp};
use crate::embedded::sim::SimDisk;

const DIR: &str = "/runs";
const IDENTITY: Identity = Identity { id: [1; 16], key: [2; 16] };
const TABLE: u16 = 7;
const PRIMARY: PartKey = PartKey { table: TABLE, slot: 0 };
const HASH: PartKey = PartKey { table: TABLE, slot: 1 };
const ORDERED: PartKey = PartKey { table: TABLE, slot: 2 };

fn options(disk: &SimDisk) -> Options {
    Options { disk: Arc::new(disk.clone()), ..Options::default() }
}

/// Indexes as the state has them, and what they must contain.
struct World {
    disk: SimDisk,
    work: RunWork,
    tables: HashMap<u16, TableIndex>,
    cold: Cold,
    primary: BTreeSet<(u64, u64)>,
    hashes: BTreeSet<(u64, u64)>,
    ordered: BTreeMap<Position, u64>,
    location_next: u32,
    known: KnownMarks,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut table = TableIndex::new(TABLE, None);
        table.secondary = vec![Secondary::Hash(Pairs::default()), Secondary::Ordered(Arc::default())];
        Self {
            disk: SimDisk::new(seed),
            work: RunWork::default(),
            tables: HashMap::from([(TABLE, table)]),
            cold: Cold::default(),
            primary: BTreeSet::new(),
            hashes: BTreeSet::new(),
            ordered: BTreeMap::new(),
            location_next: 0,
            known: KnownMarks::default(),
        }
    }

    /// Few different fingerprints, so that several keys share one, and the largest ones.
    fn fingerprint(random: &mut Random) -> u64 {
        match random.below(3) {
            0 => random.below(20),
            1 => u64::MAX - random.below(20),
            _ => random.below(20) << 59,
        }
    }

    fn any<T: Copy>(random: &mut Random, set: &BTreeSet<T>) -> Option<T> {
        let n = usize::try_from(random.below(set.len().max(1) as u64)).expect("small");
        set.iter().nth(n).copied()
    }

    fn change(&mut self, random: &mut Random) {
        let table = self.tables.get_mut(&TABLE).expect("the only table");
        let Secondary::Hash(hashes) = &mut table.secondary[0] else { unreachable!() };
        let location = Location::new(self.location_next, 64, 64);
        match random.below(7) {
            0 | 1 => {
                let fingerprint = Self::fingerprint(random);
                self.location_next += 1;
                table.primary.insert(fingerprint, location);
                self.primary.insert((fingerprint, location.0));
            }
            2 => {
                if let Some((fingerprint, old)) = Self::any(random, &self.primary) {
                    self.location_next += 1;
                    table.primary.replace(fingerprint, Location(old), location);
                    self.primary.remove(&(fingerprint, old));
                    self.primary.insert((fingerprint, location.0));
                }
            }
            3 => {
                if let Some((fingerprint, old)) = Self::any(random, &self.primary) {
                    table.primary.remove(fingerprint, Location(old));
                    self.primary.remove(&(fingerprint, old));
                }
            }
            4 | 5 => {
                // Pairs come back after they were removed.
                let pair = (Self::fingerprint(random), random.below(6));
                if self.hashes.remove(&pair) {
                    hashes.remove(pair.0, pair.1);
                } else {
                    hashes.insert(pair.0, pair.1);
                    self.hashes.insert(pair);
                }
            }
            _ => {
                let Secondary::Ordered(ordered) = &mut table.secondary[1] else { unreachable!() };
                let length = if random.below(30) == 0 { 9_000 } else { 1 + random.below(60) };
                let byte = u8::try_from(random.below(5)).expect("small");
                let position = Position::from_elem(byte, usize::try_from(length % 9_001).expect("small"));
                // A position has always the same key.
                let key = u64::from(crc32c::crc32c(&position));
                let added = self.ordered.remove(&position).is_none();
                if added {
                    self.ordered.insert(position.clone(), key);
                }
                ordered.change(position, PositionOp { key, added });
            }
        }
    }

    fn freeze(&mut self) {
        let changes = FrozenChanges::take(&mut self.tables);
        self.cold.frozen.push(Arc::new(changes));
    }

    fn flush(&mut self, resident: bool) {
        if self.cold.frozen.is_empty() {
            return;
        }
        let changes = self.cold.frozen.remove(0);
        let writer =
            self.work.create(&options(&self.disk), Path::new(DIR), &IDENTITY).expect("there is space");
        let run = write_run(&options(&self.disk), writer, &changes, &mut || ()).expect("there is space");
        if let Some(run) = run {
            self.cold.runs.push(RunRef { run: Arc::new(run), resident: resident.then_some(changes) });
            self.cold.generation += 1;
        }
    }

    fn merge(&mut self, random: &mut Random) {
        let count = self.cold.runs.len();
        if count < 2 {
            return;
        }
        let start = usize::try_from(random.below(count as u64 - 1)).expect("small");
        let end = start + 2 + usize::try_from(random.below((count - start - 1) as u64)).expect("small");
        let inputs: Vec<Arc<Run>> =
            self.cold.runs[start..end].iter().map(|run| Arc::clone(&run.run)).collect();
        let writer =
            self.work.create(&options(&self.disk), Path::new(DIR), &IDENTITY).expect("there is space");
        let mut merge = MergeState::new(inputs, writer);
        while !merge
            .step(1 + usize::try_from(random.below(40)).expect("small"), &mut || ())
            .expect("it works")
        {}
        let run = merge.finish().expect("there is space");
        self.cold.runs.splice(start..end, run.map(|run| RunRef { run: Arc::new(run), resident: None }));
        self.cold.generation += 1;
    }

    /// Opens all runs again, as a new process does.
    fn reopen(&mut self) {
        for run in &mut self.cold.runs {
            let name = run.run.name;
            let opened = Run::open(&self.disk, Path::new(DIR), &IDENTITY, name).expect("it is sound");
            *run = RunRef { run: Arc::new(opened), resident: None };
            run.run.verify().expect("it is sound");
        }
    }

    fn check(&self) {
        let table = &self.tables[&TABLE];
        let latest = |pairs: &Pairs, fingerprint| {
            let mut ops = Ops::new();
            pairs.ops(fingerprint, &mut ops);
            ops
        };
        let Secondary::Hash(hashes) = &table.secondary[0] else { unreachable!() };
        let prints = (0..20).flat_map(|n| [n, u64::MAX - n, n << 59]);
        for fingerprint in prints {
            for (key, pairs, expected) in
                [(PRIMARY, &table.primary.0, &self.primary), (HASH, hashes, &self.hashes)]
            {
                let values =
                    self.cold.values(key, fingerprint, latest(pairs, fingerprint)).expect("it is sound");
                let marks = self.cold.marks(key, &[fingerprint])[0];
                for time in ["first", "second"] {
                    assert_eq!(self.known.of(&self.cold, key, &[fingerprint]), [marks], "the {time} time");
                }
                let marked = self.cold.ops(key, fingerprint, marks).expect("it is sound");
                let all = self.cold.ops(key, fingerprint, Marks::ALL).expect("it is sound");
                assert_eq!(marked, all, "filters lose nothing");
                let range = expected.range((fingerprint, 0)..=(fingerprint, u64::MAX));
                let expected: Vec<u64> = range.map(|(_, value)| *value).collect();
                assert_eq!(values.to_vec(), expected, "{key:?} {fingerprint}");
            }
        }
        for n in 0..self.location_next {
            let value = Location::new(n, 64, 64).0;
            for fingerprint in [0, 1, u64::MAX, 1 << 59] {
                let known = table.primary.0.op(fingerprint, value);
                let found = self.cold.contains(PRIMARY, (fingerprint, value), known).expect("it is sound");
                assert_eq!(found, self.primary.contains(&(fingerprint, value)));
            }
        }
        let rows = table.primary.0.net() + self.cold.net(PRIMARY);
        assert_eq!(rows, i64::try_from(self.primary.len()).expect("small"));
        let Secondary::Ordered(ordered) = &table.secondary[1] else { unreachable!() };
        assert!(*ordered.all() == self.ordered);
    }

    /// Checks the positions that a new process reads from the runs.
    fn check_positions(&self) {
        let loaded = OrderedIndex::default();
        for run in self.cold.runs.iter().filter(|run| run.run.kind(ORDERED).is_some()) {
            let mut reader = PositionReader::new(&run.run, ORDERED);
            while let Some((position, op)) = reader.next().expect("it is sound") {
                loaded.load(&position, op);
            }
        }
        assert!(*loaded.all() == self.ordered);
    }
}

#[test]
fn runs_agree_with_a_naive_set() {
    for seed in 0..60 * crate::conformance::random::soak_factor() {
        let mut random = Random(seed);
        let mut world = World::new(seed);
        for _ in 0..40 {
            for _ in 0..random.below(60) {
                world.change(&mut random);
            }
            match random.below(8) {
                0..=2 => world.freeze(),
                3 | 4 => {
                    let resident = random.below(2) == 0;
                    world.flush(resident);
                }
                5 => world.merge(&mut random),
                6 => world.reopen(),
                _ => world.cold.evict(usize::try_from(random.below(100_000)).expect("small")),
            }
            world.check();
        }
        world.freeze();
        while !world.cold.frozen.is_empty() {
            world.flush(false);
        }
        world.check_positions();
        // All runs in one: nothing is removed in it, and it has nothing else.
        while world.cold.runs.len() > 1 {
            world.merge(&mut random);
        }
        world.reopen();
        world.check();
        world.check_positions();
        let entries: u64 =
            world.cold.runs.iter().flat_map(|run| run.run.keys().map(|key| run.run.entries(key))).sum();
        assert_eq!(entries, (world.primary.len() + world.hashes.len() + world.ordered.len()) as u64);
    }
}

/// A run of several blocks and sections.
fn large_run(disk: &SimDisk, pairs: &[Pair]) -> Run {
    let mut writer = RunWriter::new(disk, Path::new(DIR), &IDENTITY, 3).expect("there is space");
    writer.begin(PRIMARY, Kind::Pairs, pairs.len() as u64);
    pairs.iter().for_each(|&pair| writer.pair(pair, &mut || ()).expect("there is space"));
    writer.end_part(&mut || ()).expect("there is space");
    writer.finish(&mut || ()).expect("there is space").expect("it has entries")
}

fn pairs(count: u64) -> Vec<Pair> {
    // A group of one fingerprint over many blocks.
    let value = |n: u64| Pair {
        fingerprint: if (5_000..9_000).contains(&n) { 5_000 << 40 } else { n << 40 },
        value: n,
        added: !n.is_multiple_of(7),
    };
    (0..count).map(value).collect()
}

#[test]
fn large_runs_find_every_entry() {
    const COUNT: u64 = 300_000;
    let disk = SimDisk::new(1);
    let pairs = pairs(COUNT);
    let run = large_run(&disk, &pairs);
    let name = run.name;
    let run = Arc::new(Run::open(&disk, Path::new(DIR), &IDENTITY, name).expect("it is sound"));
    run.verify().expect("it is sound");
    let ops = |fingerprint| {
        let mut ops = Ops::new();
        run.ops(PRIMARY, fingerprint, &mut ops).expect("it is sound");
        ops
    };
    for pair in pairs.iter().step_by(97).filter(|pair| pair.fingerprint != 5_000 << 40) {
        assert_eq!(ops(pair.fingerprint).to_vec(), [Op { value: pair.value, added: pair.added }]);
        assert!(ops(pair.fingerprint + 1).is_empty());
        assert_eq!(run.op(PRIMARY, pair.fingerprint, pair.value).expect("it is sound"), Some(pair.added));
    }
    assert_eq!(ops(5_000 << 40).len(), 4_000);
    assert_eq!(run.entries(PRIMARY), COUNT);
    assert!(run.memory_bytes() as u64 * 8 < COUNT * 10, "{} bytes", run.memory_bytes());
}

/// Opening or reading notices any changed byte of a run, and also if the run is cut, or has the content of
/// another one.
#[test]
fn damaged_runs_are_noticed() {
    let disk = SimDisk::new(1);
    let mut world = World::new(1);
    world.disk = disk.clone();
    let mut random = Random(1);
    (0..900).for_each(|_| world.change(&mut random));
    world.freeze();
    world.flush(false);
    (0..900).for_each(|_| world.change(&mut random));
    world.freeze();
    world.flush(false);
    let [first, second] = [0, 1].map(|n: usize| Arc::clone(&world.cold.runs[n].run));
    assert!(first.kind(PRIMARY).is_some() && first.kind(HASH).is_some() && first.kind(ORDERED).is_some());
    let judge = |name: RunName| match Run::open(&disk, Path::new(DIR), &IDENTITY, name) {
        Ok(run) => Arc::new(run).verify().map_err(|error| {
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        }),
        Err(_) => Err(()),
    };
    assert_eq!(judge(first.name), Ok(()));
    let length = disk.content(first.path()).len();
    for at in 0..length {
        disk.tamper(first.path(), |data| data[at] ^= 1 << (at % 8));
        assert_eq!(judge(first.name), Err(()), "byte {at} of {length}");
        disk.tamper(first.path(), |data| data[at] ^= 1 << (at % 8));
    }
    let whole = disk.content(first.path());
    for at in (0..length).step_by(13) {
        disk.tamper(first.path(), |data| data.truncate(at));
        assert_eq!(judge(first.name), Err(()), "cut at {at} of {length}");
        disk.tamper(first.path(), |data| data.clone_from(&whole));
        // Sectors that were not written.
        disk.tamper(first.path(), |data| {
            data[at / 512 * 512..].iter_mut().take(512).for_each(|byte| *byte = 0);
        });
        let is_changed = disk.content(first.path()) != whole;
        assert_eq!(judge(first.name).is_err(), is_changed, "zeros at {at} of {length}");
        disk.tamper(first.path(), |data| data.clone_from(&whole));
    }
    let other = disk.content(second.path());
    disk.tamper(first.path(), |data| data.clone_from(&other));
    assert_eq!(judge(first.name), Err(()));
    disk.tamper(first.path(), |data| data.clone_from(&whole));
    assert_eq!(judge(first.name), Ok(()));
    disk.remove(first.path()).expect("it is there");
    assert_eq!(judge(first.name), Err(()));
}

/// A block that the disk wrote to the place of another, or of another run, is damage.
#[test]
fn misplaced_blocks_are_noticed() {
    let disk = SimDisk::new(1);
    let run = Arc::new(large_run(&disk, &pairs(5_000)));
    let block = disk.content(run.path())[4096..8192].to_vec();
    disk.tamper(run.path(), |data| data[8192..12288].copy_from_slice(&block));
    let error = run.verify().expect_err("a block twice");
    assert!(matches!(error, StoreError::Corrupt { offset: 8192, .. }), "{error}");
    // A lookup notices it, too: its entries are missing otherwise.
    let lost = &pairs(5_000)[600];
    let error = run.op(PRIMARY, lost.fingerprint, lost.value).expect_err("its block is lost");
    assert!(error.to_string().contains("remove checkpoint.idx"), "{error}");
}
