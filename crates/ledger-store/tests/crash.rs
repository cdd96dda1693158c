//! A fault at every single call of the disk, and damage to every part of the files. `BATZEN_SOAK_FACTOR` multiplies the number of
//! seeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails: that is what unwrap does")]

mod world;

use std::path::Path;

use batzen_ledger_store::{DurableMachine, verify};
use batzen_store::Store;
use batzen_store::embedded::EmbeddedStore;
use batzen_store::embedded::sim::{Fault, SimDisk};
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

/// A process killed within a sync leaves what only the page cache has. The next one answers repeated requests from it: that
/// must survive.
#[test]
fn a_power_cut_after_a_kill_at_every_call_takes_no_answer_back() {
    sweep(150, |call| Faults::KilledAt(call, Fault::Crash));
}

#[test]
fn a_power_cut_after_a_failed_sync_takes_no_answer_back() {
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

/// Whatever bit flips in whatever file: the ledger opens with the same state, or refuses. Only damage to the last commit may
/// look like a commit that was never finished, and only a file that lost its end like commits that never were.
#[test]
fn damage_is_refused_or_harmless() {
    let (world, report) = World::new(400, Planted::None, Faults::None).run(TURNS).unwrap();
    let disk = world.disk.copy();
    drop(world);
    let digests = digests(&disk);
    assert_eq!(*digests.last().unwrap(), report.digest);
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
                    let tail =
                        if is_cut { &digests[..] } else { &digests[digests.len().saturating_sub(2)..] };
                    assert!(tail.contains(&found.digest), "{} opens with another state", file.display());
                    harmless += 1;
                }
            },
        }
    }
    assert!(refused > 20 && harmless > 20, "{refused} refused, {harmless} harmless");
}

/// The digests after each commit.
fn digests(disk: &SimDisk) -> Vec<batzen_ledger::machine::Digest> {
    use batzen_ledger::machine::{History, Machine};
    let disk = disk.copy();
    disk.restart();
    let store = Store::new(EmbeddedStore::open(Path::new(DIRECTORY), ALL, options(&disk)).unwrap());
    let mut ends: Vec<(u64, u128)> = Vec::new();
    store
        .scan::<batzen_tables::ledger::LedgerLog>(|found| {
            ends.push((found.key.first, found.row.digest));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    ends.sort_unstable();
    let durable = DurableMachine::open(store).unwrap();
    let reader = batzen_ledger_store::log::LogReader::new(durable.log());
    let mut machine = Machine::new(&[0; 16]);
    let mut digests = vec![machine.digest()];
    for number in 0..reader.len() {
        machine.restore(&reader.record(number).unwrap()).unwrap();
        if ends.iter().any(|(_, digest)| *digest == machine.digest().to_u128()) {
            digests.push(machine.digest());
        }
    }
    digests
}
