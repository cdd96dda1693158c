//! Complete runs of a ledger under a seed: the same seed gives the same run. Planted bugs are found, which
//! proves that the checks work. `BATZEN_SOAK_FACTOR` multiplies the number of seeds.

use crate::store::world;

use world::{Faults, Planted, World, soak_factor};

#[test]
fn a_ledger_loses_nothing_and_answers_correctly_under_all_faults() {
    let (mut recoveries, mut kept, mut undone, mut released) = (0, 0, 0, 0);
    let (mut snapshots, mut continued, mut merges) = (0, 0, 0);
    for seed in 0..60 * soak_factor() {
        let run = World::new(seed, Planted::None, Faults::Random).run(60);
        let (world, _) = run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        recoveries += world.stats.recoveries;
        kept += world.stats.kept_unanswered;
        undone += world.stats.undone;
        released += world.stats.released;
        snapshots += world.stats.snapshots;
        continued += world.stats.continued;
        merges += world.stats.merges;
    }
    assert!(
        snapshots > 300 && continued > 30 && merges > 20,
        "the runs reach what they are for: {snapshots} snapshots, {continued} of them continued, {merges} merges"
    );
    assert!(
        recoveries > 100 && kept > 5 && undone > 10 && released > 100,
        "the runs reach what they are for: {recoveries} recoveries, {kept} commits kept unanswered, {undone} undone, \
         {released} released"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| World::new(seed, Planted::None, Faults::Random).run(40).unwrap();
    let ((first, _), (second, _)) = (run(7), run(7));
    assert_eq!((first.digest(), first.now()), (second.digest(), second.now()));
    assert_eq!(first.stats.calls, second.stats.calls);
    let content = |world: &World| world.disk.files().iter().map(|file| world.disk.content(file)).collect();
    let (first_files, second_files): (Vec<_>, Vec<_>) = (content(&first), content(&second));
    assert!(first_files == second_files, "the files are the same, byte for byte");
    assert_ne!(first.digest(), run(8).0.digest());
}

/// Each planted bug shows within a few seeds.
#[test]
fn planted_bugs_are_found() {
    for planted in [Planted::LyingDisk, Planted::AnswersBeforeCommit, Planted::ForgetsToUndo] {
        let found = (0..20).filter(|seed| World::new(*seed, planted, Faults::Random).fails(60)).count();
        assert!(found >= 3, "{planted:?} was found in {found} of 20 runs");
    }
}
