//! A fault at every call to the disk, and damage to every part of the files. `BATZEN_SOAK_FACTOR` multiplies
//! the number of seeds.

use crate::store::world;

use std::path::Path;

use batzen_ledger_service::store::{RecoveryError, verify, verify_directory};
use batzen_store::Store;
use batzen_store::embedded::EmbeddedStore;
use batzen_store::embedded::sim::Fault;
use batzen_tables::ledger::ALL;
use world::{DIRECTORY, Faults, Planted, Random, World, options, soak_factor};

const TURNS: u64 = 25;

fn sweep(first: u64, faults: impl Fn(u64) -> Faults) {
    for seed in first..first + soak_factor() {
        let (world, _) = World::new(seed, Planted::None, Faults::None).run(TURNS).unwrap();
        assert!(world.stats.calls > 40, "the load has {} calls", world.stats.calls);
        for call in 1..=world.stats.calls {
            let run = World::new(seed, Planted::None, faults(call)).run(TURNS);
            if let Err(error) = run {
                panic!("seed {seed}, {:?}: {error}", faults(call));
            }
        }
    }
}

#[test]
fn a_power_cut_at_every_call_loses_nothing() {
    sweep(100, |call| Faults::At(call, Fault::Crash));
}

/// A process killed during a sync leaves data that only the page cache has. The next process answers repeated
/// requests from it, so it must survive.
#[test]
fn a_power_cut_after_a_kill_at_every_call_revokes_no_answer() {
    sweep(150, |call| Faults::KilledAt(call, Fault::Crash));
}

#[test]
fn a_power_cut_after_a_failed_sync_revokes_no_answer() {
    sweep(160, |call| Faults::KilledAt(call, Fault::Error));
}

#[test]
fn an_error_at_every_call_loses_nothing() {
    sweep(200, |call| Faults::At(call, Fault::Error));
}

#[test]
fn a_full_disk_at_every_call_undoes_the_batch() {
    sweep(300, |call| Faults::At(call, Fault::Full));
}

/// The runs end soon after their fault, and find each planted bug nevertheless.
#[test]
fn single_faults_reveal_planted_bugs() {
    let (world, _) = World::new(300, Planted::None, Faults::None).run(TURNS).unwrap();
    // Few calls of a commit need space.
    for (planted, fault, step) in [
        (Planted::LyingDisk, Fault::Crash, 31),
        (Planted::AnswersBeforeCommit, Fault::Error, 31),
        (Planted::ForgetsToUndo, Fault::Full, 7),
    ] {
        let calls: Vec<u64> = (1..=world.stats.calls).step_by(step).collect();
        let fails = |call: &&u64| World::new(300, planted, Faults::At(**call, fault)).fails(TURNS);
        let (found, runs) = (calls.iter().filter(fails).count(), calls.len());
        println!("{planted:?} was found in {found} of {runs} runs");
        assert!(found > 2, "{planted:?} was found in {found} of {runs} runs");
    }
}

/// Any bit of any file flips, or a file is cut anywhere: the ledger opens with the same state, or refuses to
/// open.
#[test]
fn damage_is_refused_or_harmless() {
    let (world, report) = World::new(400, Planted::None, Faults::None).run(TURNS).unwrap();
    let disk = world.disk.copy();
    drop(world);
    let mut random = Random(5);
    let (mut refused, mut harmless) = (0, 0);
    for _ in 0..400 * soak_factor() {
        let disk = disk.copy();
        disk.restart();
        let files = disk.files();
        let file = &files[usize::try_from(random.below(files.len() as u64)).unwrap()];
        let is_cut = random.one_in(10);
        disk.tamper(file, |bytes| {
            if bytes.is_empty() {
                return;
            }
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            if is_cut { bytes.truncate(at) } else { bytes[at] ^= 1 << random.below(8) }
        });
        match EmbeddedStore::open(Path::new(DIRECTORY), ALL, options(&disk)).map(Store::new) {
            Err(_) => refused += 1,
            Ok(store) => match verify(&store) {
                Err(_) => refused += 1,
                Ok(found) => {
                    assert_eq!(found.digest, report.digest, "{} opens with another state", file.display());
                    harmless += 1;
                }
            },
        }
    }
    assert!(refused > 20 && harmless > 20, "{refused} refused, {harmless} harmless");
}

/// `verify` on the files finds damage that opening refuses: a flipped bit in the last commit, and a truncated
/// file.
#[test]
fn verification_of_the_files_finds_damage_to_the_last_commit() {
    let (world, report) = World::new(401, Planted::None, Faults::None).run(TURNS).unwrap();
    let disk = world.disk.copy();
    drop(world);
    let mut last = None;
    EmbeddedStore::inspect(DIRECTORY, &disk, &mut |frame| last = Some(frame)).unwrap();
    let last = last.unwrap();
    let segment = format!("journal-{:08}.seg", last.segment);
    let verdict = |damage: &dyn Fn(&mut Vec<u8>)| {
        let directory = tempfile::tempdir().unwrap();
        // These files alone show that the last commit was acknowledged.
        let guards = ["checkpoint.idx", "tail.mark"];
        for path in disk.files() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let mut content = disk.content(&path);
            if name == segment {
                damage(&mut content);
            }
            if !guards.contains(&name) {
                std::fs::write(directory.path().join(name), content).unwrap();
            }
        }
        verify_directory(directory.path())
    };
    assert_eq!(verdict(&|_| ()).unwrap().digest, report.digest);
    for part in [1, 30, 60, last.bytes / 2, last.bytes - 20, last.bytes - 1] {
        let at = usize::try_from(last.offset + part).unwrap();
        let found = verdict(&|content| content[at] ^= 2);
        assert!(matches!(found, Err(RecoveryError::Journal(_))), "byte {part} of the last commit: {found:?}");
    }
    let found = verdict(&|content| content.truncate(content.len() - 100));
    assert!(
        matches!(found, Err(RecoveryError::Journal(_))),
        "a journal that is 100 bytes shorter: {found:?}"
    );
}
