//! Archiving on a disk that fails: a kill or a power loss at any moment loses nothing, and the next run continues.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use batzen_exchange::reads::totals::totals;
use batzen_exchange::rules::Command;
use batzen_exchange::workers::archive::{ArchiveError, Archives, Mover, Report, Task, contents};
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{self as tables, ArchiveRuns, Coins, Deposits, WireOut};

use crate::rules::archive::{archived, at_once, decide};
use crate::rules::world::*;

const LIVE: &str = "/live";

fn options(disk: &SimDisk) -> Options {
    Options {
        disk: Arc::new(disk.clone()),
        segment_bytes_first: 16 << 10,
        segment_bytes_max: 16 << 10,
        checkpoint_bytes: 24 << 10,
        full_pause: Duration::ZERO,
        background: false,
        on_fatal: Arc::new(|_| {}),
        identity: Some([42; 32]),
        ..Options::default()
    }
}

fn open(disk: &SimDisk, dir: &Path) -> Result<Store, StoreError> {
    EmbeddedStore::open(dir, tables::ALL, options(disk)).map(Store::new)
}

struct OnDisk(SimDisk);

impl Archives for OnDisk {
    fn open(&self, run: u32, _: bool) -> Result<Store, StoreError> {
        open(&self.0, &of_run(run))
    }
}

fn of_run(run: u32) -> PathBuf {
    Path::new("/archive").join(format!("run-{run}"))
}

/// Runs the archiver in a process that starts now.
fn archive(disk: &SimDisk, now_s: u64) -> Result<Report, String> {
    let store = open(disk, Path::new(LIVE)).map_err(|error| error.to_string())?;
    let world = World::over(store.clone(), config(), |rules| rules);
    world.advance(now_s);
    let mut decide = |command| match world.try_run(Command::Archive(command)) {
        Ok(verdict) => archived(verdict),
        Err(error) => Err(ArchiveError::Store { place: "the store", source: error }),
    };
    let archives = OnDisk(disk.clone());
    let task = Task::Move { reason: "a test".to_owned() };
    let report = Mover::new(&store, &world.rules, at_once(&world), &archives, &mut decide, |_| ()).run(&task);
    let report = report.map_err(|error| error.to_string())?;
    store.close().map_err(|error| error.to_string())?;
    Ok(report)
}

/// Coins that paid, on a disk, and the time after which they may leave.
fn prepared() -> (SimDisk, u64) {
    let disk = SimDisk::new(7);
    let store = open(&disk, Path::new(LIVE)).unwrap();
    let world = World::on(store.clone(), &denoms(), config(), |rules| rules);
    world.fund(1, 1, "200");
    for n in 1..=8 {
        world.ok(withdraw(1, &[(n, 1)], false));
        world.ok(Command::Deposit(deposit(&[(n, 1, "5")], (n % 3, n, n % 2), (0, 0))));
    }
    world.ok(melt(1, 1, "3", 1, 0, None));
    world.ok(reveal(1, 1, &[(20, 2)], None, 0));
    world.advance(10);
    world.aggregate_all();
    world.transfer_all();
    store.close().unwrap();
    (disk, 2 * 86_400 + 3_000)
}

#[test]
fn a_crash_anywhere_loses_nothing() {
    let (disk, now_s) = prepared();
    let before = {
        let store = open(&disk, Path::new(LIVE)).unwrap();
        let world = World::over(store.clone(), config(), |rules| rules);
        let sums = totals(&store, &world.denoms).unwrap();
        store.close().unwrap();
        sums
    };
    let reference = disk.copy();
    let expected = archive(&reference, now_s).unwrap();
    assert!(expected.transfers.left > 1 && expected.coins.left == 8, "{expected:?}");
    let digest = contents(&open(&reference, &of_run(1)).unwrap()).unwrap();
    let calls = reference.calls() - disk.calls();
    assert!(calls > 50, "{calls}");
    let mut interrupted = 0;
    for n in 1..=calls {
        let disk = disk.copy();
        disk.fail_at(n, Fault::Crash);
        interrupted += u32::from(archive(&disk, now_s).is_err());
        if n % 2 == 0 {
            disk.kill();
        } else {
            disk.restart();
        }
        archive(&disk, now_s).unwrap_or_else(|error| panic!("after a crash at call {n}: {error}"));
        let store = open(&disk, Path::new(LIVE)).unwrap();
        let world = World::over(store.clone(), config(), |rules| rules);
        assert_eq!(totals(&store, &world.denoms).unwrap(), before, "call {n}");
        let left = [store.count::<Coins>(), store.count::<Deposits>(), store.count::<WireOut>()];
        assert_eq!(left.map(Result::unwrap), [0; 3], "call {n}");
        let found = contents(&open(&disk, &of_run(1)).unwrap()).unwrap();
        assert_eq!(found, digest, "call {n}");
        let runs = store.all::<ArchiveRuns>().unwrap();
        assert_eq!((runs.len(), runs[0].row.digest), (1, Some(digest.digest)), "call {n}");
    }
    assert!(u64::from(interrupted) > calls / 2, "{interrupted} of {calls}");
}

/// Coins with a deposit each, and the time after which they may leave.
fn many(store: &Store) -> World {
    let world = World::on(store.clone(), &denoms(), config(), |rules| rules);
    world.fund(1, 1, "2000");
    let planchets: Vec<(u8, u32)> = (1..=100).map(|n| (n, 1)).collect();
    world.ok(withdraw(1, &planchets, true));
    for n in 1..=100 {
        let payments: Vec<Command> = (0..10)
            .map(|contract_n| Command::Deposit(deposit(&[(n, 1, "0.5")], (n % 3, contract_n, n % 2), (0, 0))))
            .collect();
        assert!(world.batch(&payments).iter().all(Result::is_ok));
    }
    world.advance(10);
    world.aggregate_all();
    world.transfer_all();
    world.advance(2 * 86_400 + 3_000);
    world
}

/// Returns the sizes of the store before and after its coins have left, or could have, and when as much has come in
/// since.
fn space(leaves: bool) -> [batzen_store::StoreStats; 3] {
    let disk = SimDisk::new(1);
    let embedded = Arc::new(EmbeddedStore::open(Path::new(LIVE), tables::ALL, options(&disk)).unwrap());
    let store = Store::shared(Arc::clone(&embedded) as Arc<dyn batzen_store::Backend>);
    let world = many(&store);
    let rest = || {
        embedded.checkpoint().unwrap();
        for _ in 0..200 {
            embedded.maintain().unwrap();
        }
        store.stats()
    };
    let before = rest();
    if leaves {
        let mut decide = |command| decide(&world, command);
        let task = Task::Move { reason: "a test".to_owned() };
        let archives = OnDisk(disk.clone());
        let report = Mover::new(&store, &world.rules, at_once(&world), &archives, &mut decide, |_| ())
            .run(&task)
            .unwrap();
        assert_eq!((report.coins.left, report.rows().0), (100, 1_112));
        world.totals();
    }
    let after = rest();
    // Entries of removed rows cancel out when index files are merged.
    for round in 0..6 {
        for page in 0..4 {
            let first = 1_000 * (round + 1) + 250 * page;
            let rows: Vec<_> = (first..first + 250).map(|row| (2, row, "0.01", 2, at(0))).collect();
            world.ok(credits(&rows, first + 249));
        }
        rest();
    }
    [before, after, store.stats()]
}

#[test]
fn the_space_is_free_again() {
    let [before, after, later] = space(true);
    assert!(after.live_bytes * 4 < before.live_bytes, "{before:?} {after:?}");
    // Records of deletions stay until all segments before them are gone.
    assert!(after.disk_bytes * 3 < before.disk_bytes * 2, "{before:?} {after:?}");
    let [_, stayed, control] = space(false);
    assert_eq!(stayed.live_bytes, before.live_bytes);
    assert!(later.disk_bytes < control.disk_bytes, "{later:?} {control:?}");
    assert!(later.index_file_bytes < control.index_file_bytes, "{later:?} {control:?}");
}
