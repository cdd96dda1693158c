//! Disk faults at every single call: no acknowledged commit is lost, no incomplete one is visible, and the
//! store works after the fault. `BATZEN_SOAK_FACTOR` multiplies the number of seeds.

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, ChangeSet, CommitOutcome, Store, StoreError};
use common::{DIR, History, Random, open, read_rows, run, sim_options, soak_factor};

const COMMITS: usize = 60;

/// Opens a store on the disk, runs the workload and closes it; ends at the first error.
fn session(disk: &SimDisk, history: &mut History, seed: u64) -> Result<EmbeddedStore, StoreError> {
    let store = open(disk)?;
    run(&store, &mut Random(seed), history, COMMITS)?;
    Backend::close(&store)?;
    Ok(store)
}

/// Number of disk calls that the workload makes without a fault.
fn calls_of_a_session(seed: u64) -> u64 {
    let disk = SimDisk::new(seed);
    let mut history = History::new();
    let store = session(&disk, &mut history, seed).expect("no fault");
    let stats = Backend::stats(&store);
    assert!(
        stats.compacted_total > 1 && stats.checkpoints_total > 3,
        "the workload reaches compaction: {stats:?}"
    );
    disk.calls()
}

/// The machine crashes after a fault at the `n`-th call; the store must recover every acknowledged commit.
fn crash_after_fault(fault: Fault, seed: u64, n: u64) -> Result<(), String> {
    let disk = SimDisk::new(seed.wrapping_mul(31).wrapping_add(n));
    disk.fail_at(n, fault);
    let mut history = History::new();
    let result = session(&disk, &mut history, seed);
    if let Err(error) = &result
        && matches!(error, StoreError::Corrupt { .. } | StoreError::Stale { .. })
    {
        return Err(format!("{fault:?} at call {n} was reported as {error}"));
    }
    drop(result);
    disk.restart();
    let store = Store::new(open(&disk).map_err(|e| format!("{fault:?} at call {n}: {e}"))?);
    history.check(&store).map_err(|e| format!("{fault:?} at call {n}: {e}"))?;
    // The store works afterwards, and survives a second crash.
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(99, 99), &row("after", Some(1)));
    let outcome =
        store.commit(&changes).map_err(|e| format!("{fault:?} at call {n}, after recovery: {e}"))?;
    assert_eq!(outcome, CommitOutcome::Committed);
    drop(store);
    disk.restart();
    let store = Store::new(open(&disk).map_err(|e| format!("{fault:?} at call {n}, opened again: {e}"))?);
    match store.get::<Items>(&key(99, 99)) {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{fault:?} at call {n}: the commit after recovery is lost: {other:?}")),
    }
}

fn sweep(fault: Fault, first: u64, count: u64) {
    for seed in (0..count * soak_factor()).map(|n| first + 100 * n) {
        for n in 1..=calls_of_a_session(seed) {
            crash_after_fault(fault, seed, n).expect("nothing is lost");
        }
    }
}

#[test]
fn crash_at_every_call_loses_nothing() {
    sweep(Fault::Crash, 0, 4);
}

#[test]
fn error_at_every_call_loses_nothing() {
    sweep(Fault::Error, 10, 3);
}

#[test]
fn full_disk_at_every_call_loses_nothing() {
    sweep(Fault::Full, 20, 3);
}

#[test]
fn short_write_at_every_call_is_completed() {
    for n in 1..=calls_of_a_session(30) {
        let disk = SimDisk::new(n);
        disk.fail_at(n, Fault::ShortWrite);
        let mut history = History::new();
        drop(session(&disk, &mut history, 30).expect("short writes are not errors"));
        assert!(!disk.is_fault_pending());
        disk.restart();
        let at = history.check(&Store::new(open(&disk).expect("it opens"))).expect("nothing is lost");
        assert_eq!(history.states[at], history.states[history.acknowledged]);
    }
}

/// Writes of a killed process are visible to the next one, durable or not. The next process makes them
/// durable before it answers, so its answers survive a power loss, wherever the first process was killed, and
/// even if a second one was killed while it opened the store.
fn answered_after_kill(fault: Fault, seed: u64, n: u64) -> Result<(), String> {
    let disk = SimDisk::new(seed.wrapping_mul(77).wrapping_add(n));
    disk.fail_at(n, fault);
    let mut history = History::new();
    drop(session(&disk, &mut history, seed));
    for step in [1 + n % 7, 1 + n % 3] {
        disk.kill();
        disk.fail_at(step, fault);
        drop(open(&disk));
    }
    disk.kill();
    let context = |e: &dyn std::fmt::Display| format!("{fault:?} at call {n} of seed {seed}: {e}");
    let store = Store::new(open(&disk).map_err(|e| context(&e))?);
    let answered = history.check(&store).map_err(|e| context(&e))?;
    let mut expected = history.states[answered].clone();
    // New commits use the segment that the killed process has prepared.
    for item in 0..u32::try_from(n % 12).expect("small") {
        let row = row(&"x".repeat(300), None);
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(99, item), &row);
        let outcome = store.commit(&changes).map_err(|e| context(&e))?;
        assert_eq!(outcome, CommitOutcome::Committed);
        expected.insert(key(99, item), row);
    }
    drop(store);
    disk.restart();
    let store = Store::new(open(&disk).map_err(|e| context(&e))?);
    if read_rows(&store).map_err(|e| context(&e))? == expected {
        Ok(())
    } else {
        Err(context(&"the power loss destroyed what was answered after the kill"))
    }
}

fn sweep_kills(fault: Fault, first: u64) {
    for seed in (0..3 * soak_factor()).map(|n| first + 100 * n) {
        for n in 1..=calls_of_a_session(seed) {
            answered_after_kill(fault, seed, n).expect("answered rows survive");
        }
    }
}

#[test]
fn answers_after_a_kill_survive_a_power_loss() {
    sweep_kills(Fault::Crash, 80);
}

/// Damage to the last commit that looks like an interrupted write is noticed only because of the mark. So a
/// mark that opening has read must survive a power loss, wherever the process that wrote it was killed.
#[test]
fn mark_read_at_opening_survives_a_power_loss() {
    let mark = Path::new(DIR).join("tail.mark");
    for seed in 0..20 {
        for n in 1..=8 {
            let disk = SimDisk::new(seed * 100 + n);
            let store = Store::new(open(&disk).expect("it opens"));
            let mut changes = ChangeSet::new();
            changes.insert::<Items>(&key(1, 1), &row("first", None));
            assert_eq!(store.commit(&changes).expect("the disk works"), CommitOutcome::Committed);
            drop(store);
            let store = Store::new(open(&disk).expect("it opens"));
            let mut changes = ChangeSet::new();
            changes.insert::<Items>(&key(1, 2), &row("second", None));
            assert_eq!(store.commit(&changes).expect("the disk works"), CommitOutcome::Committed);
            disk.fail_at(n, Fault::Crash);
            // Marks the end.
            let _ = store.close();
            disk.kill();
            let next = open(&disk).expect("it opens");
            let seen = disk.content(&mark);
            disk.restart();
            assert!(disk.content(&mark) == seen, "killed at call {n} of closing, seed {seed}");
            drop(next);
        }
    }
}

/// A misdirected write during opening may overwrite the last frame, so that the journal seems to end before
/// it. This is noticed even if the process is killed immediately afterwards.
#[test]
fn misdirected_write_during_opening_hides_no_commit() {
    let mut noticed = 0;
    // Rows of all lengths for which the last frame ends within a sector or crosses its boundary.
    for (n, bytes) in (1..=20).flat_map(|n| (0..480).step_by(8).map(move |bytes| (n, bytes))) {
        let disk = SimDisk::new(n);
        let commit = |number, text: &str| {
            let store = Store::new(open(&disk).expect("it opens"));
            let mut changes = ChangeSet::new();
            changes.insert::<Items>(&key(1, number), &row(text, None));
            assert_eq!(store.commit(&changes).expect("the disk works"), CommitOutcome::Committed);
        };
        commit(1, &"marked when the store is opened again ".repeat(15));
        commit(2, &"x".repeat(bytes));
        disk.fail_at(n, Fault::Astray);
        let _ = open(&disk);
        disk.kill();
        match open(&disk).map(Store::new) {
            Ok(store) => {
                for number in [1, 2] {
                    let found = store.get::<Items>(&key(1, number)).expect("it can be read");
                    assert!(
                        found.is_some(),
                        "commit {number} of {bytes} bytes is lost, write misdirected at call {n}"
                    );
                }
            }
            Err(StoreError::Corrupt { .. }) => noticed += 1,
            Err(error) => panic!("write misdirected at call {n} of opening, {bytes} bytes: {error}"),
        }
    }
    assert!(noticed > 0, "no write overwrote a commit");
}

/// Zeros in the place of a frame, with data after them, look like an interrupted write unless the data is
/// that frame.
#[test]
fn misdirected_commit_is_not_an_interrupted_one() {
    for bytes in (0..400).step_by(8) {
        let disk = SimDisk::new(1);
        let store = Store::new(open(&disk).expect("it opens"));
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(1, 1), &row(&"x".repeat(bytes), None));
        disk.fail_at(1, Fault::Astray);
        store.commit(&changes).expect_err("the disk fails");
        drop(store);
        disk.kill();
        let error = open(&disk).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("written to another place"), "{bytes} bytes: {error}");
    }
}

/// A failed sync is worse than an unfinished one: the pages count as clean, and another sync does not save
/// them.
#[test]
fn answers_after_a_failed_sync_survive_a_power_loss() {
    sweep_kills(Fault::Error, 90);
}

/// Damage to the journal of a store that has crashed.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Nothing,
    /// A flipped bit in the last whole frame.
    FlipInLast,
    /// A flipped bit anywhere.
    Flip,
    /// A write of one sector to the place of another, possibly in another segment.
    Stray,
    /// The same, and the sector is missing where it belongs.
    Misdirected,
}

/// A power loss at the `n`-th call, in a commit or in maintenance, followed by damage. The store opens with
/// every acknowledged commit, or refuses to open: damage is neither mistaken for the interrupted commit nor
/// hidden by it. Returns whether it refused.
fn damaged_after_crash(damage: Damage, seed: u64, n: u64) -> Result<bool, String> {
    let mut random = Random(seed ^ n << 32);
    let disk = SimDisk::new(random.bits());
    disk.fail_at(n, Fault::Crash);
    let mut history = History::new();
    drop(session(&disk, &mut history, seed));
    disk.restart();
    let context = |e: &dyn std::fmt::Display| format!("{damage:?} after call {n} of seed {seed}: {e}");
    let mut frames = Vec::new();
    let Ok(report) = EmbeddedStore::inspect(DIR, &disk, &mut |frame| frames.push(frame)) else {
        return Ok(false);
    };
    if !report.problems.is_empty() {
        return Err(context(&report.problems.join("; ")));
    }
    let Some(last) = frames.last() else { return Ok(false) };
    let segment = |number: u32| Path::new(DIR).join(format!("journal-{number:08}.seg"));
    let place = |random: &mut Random, from: u64, bytes: u64| {
        usize::try_from(from + random.below(bytes)).expect("small")
    };
    let any = |random: &mut Random| {
        let file = &report.segments[place(random, 0, report.segments.len() as u64)].file;
        (file.clone(), place(random, 0, disk.content(file).len() as u64))
    };
    let flip = |file: &Path, at: usize, bit: u64| disk.tamper(file, |data| data[at] ^= 1 << bit);
    match damage {
        Damage::Nothing => {}
        Damage::FlipInLast => {
            flip(&segment(last.segment), place(&mut random, last.offset, last.bytes), random.below(8));
        }
        Damage::Flip => {
            let (file, at) = any(&mut random);
            flip(&file, at, random.below(8));
        }
        Damage::Stray | Damage::Misdirected => {
            let taken = &frames[place(&mut random, 0, frames.len() as u64)];
            let from = place(&mut random, taken.offset, taken.bytes) / 512 * 512;
            let source = segment(taken.segment);
            // Files may end within a sector.
            let content: Vec<u8> =
                disk.content(&source)[from..].iter().copied().chain([0; 512]).take(512).collect();
            let (file, at) = any(&mut random);
            let to = at / 512 * 512;
            // Commits that lost whole sectors before the end of the journal was marked, and that have no
            // header after them, are indistinguishable from unwritten ones.
            let has_proof = frames.iter().any(|frame| {
                let start = usize::try_from(frame.offset).expect("small");
                let is_later = (frame.segment, start) >= (taken.segment, from + 512);
                is_later && (segment(frame.segment) != file || start + 48 <= to || start >= to + 512)
            });
            if matches!(damage, Damage::Misdirected) && has_proof {
                disk.tamper(&source, |data| data[from..].iter_mut().take(512).for_each(|byte| *byte = 0));
            }
            disk.tamper(&file, |data| {
                data[to..].iter_mut().zip(content).for_each(|(old, new)| *old = new);
            });
        }
    }
    let is_sound =
        EmbeddedStore::inspect(DIR, &disk, &mut |_| {}).is_ok_and(|report| report.problems.is_empty());
    let checked = match open(&disk) {
        Ok(store) => history.check(&Store::new(store)),
        Err(error @ StoreError::Corrupt { .. }) if is_sound => {
            return Err(context(&format!("verification calls it sound, but: {error}")));
        }
        Err(error) => Err(error.to_string()),
    };
    match checked {
        Ok(_) => Ok(false),
        // At opening, or after a checkpoint, when the row is read.
        Err(error) if error.contains("corrupt data") && !matches!(damage, Damage::Nothing) => Ok(true),
        Err(error) => Err(context(&error)),
    }
}

#[test]
fn damage_after_a_crash_is_not_an_interrupted_commit() {
    for (damage, first, refused_min) in [
        (Damage::Nothing, 110, 0),
        (Damage::FlipInLast, 111, 150),
        (Damage::Flip, 112, 50),
        (Damage::Stray, 113, 50),
        (Damage::Misdirected, 114, 50),
    ] {
        let mut refused = 0;
        for seed in (0..2 * soak_factor()).map(|n| first + 100 * n) {
            for n in 1..=calls_of_a_session(seed) {
                let is_refused = damaged_after_crash(damage, seed, n).expect("every loss is reported");
                refused += u32::from(is_refused);
            }
        }
        assert!(refused >= refused_min, "{damage:?}: {refused} refused");
    }
}

/// A commit is one write and one sync, anywhere in a segment that was created in advance.
#[test]
fn commit_is_one_write_and_one_sync() {
    let disk = SimDisk::new(61);
    let bytes = 1 << 20;
    let options = Options { segment_bytes_first: bytes, segment_bytes_max: bytes, ..sim_options(&disk) };
    let store = EmbeddedStore::open(DIR, TABLES, options).expect("it opens");
    for item in 0..200 {
        let before = disk.calls();
        let mut changes = ChangeSet::new();
        changes
            .insert::<Items>(&key(1, item), &row(&"x".repeat(usize::try_from(item).expect("small")), None));
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        assert_eq!(disk.calls(), before + 2);
    }
}

/// If the disk is full for one call, at most one commit is refused; the store continues to work in the same
/// process, and the refused commit has no effect.
#[test]
fn store_works_after_a_full_disk() {
    let mut refused = 0;
    for n in 1..=calls_of_a_session(40) {
        let disk = SimDisk::new(n);
        let store = open(&disk).expect("no fault yet");
        let start = disk.calls();
        disk.fail_at(n, Fault::Full);
        let mut history = History::new();
        let mut random = Random(40);
        match run(&store, &mut random, &mut history, COMMITS) {
            Ok(()) => {}
            Err(StoreError::Full(_)) => {
                refused += 1;
                // The refused commit (maintenance refuses nothing) leaves no trace.
                history.states.truncate(history.acknowledged + 1);
                let at = history
                    .check(&Store::new(open_again(store, &disk)))
                    .expect("only acknowledged commits remain");
                assert_eq!(history.states[at], history.states[history.acknowledged]);
                continue;
            }
            // A failed sync ends the process, whatever the reason.
            Err(StoreError::Stopped(_)) => continue,
            Err(error) => panic!("call {n} after {start}: {error}"),
        }
    }
    assert!(refused > 0);
}

/// Continues in the same process for a while, then reopens the store.
fn open_again(store: EmbeddedStore, disk: &SimDisk) -> EmbeddedStore {
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(98, 98), &row("on", None));
    assert_eq!(store.commit(&changes).expect("there is space again"), CommitOutcome::Committed);
    let mut changes = ChangeSet::new();
    changes.delete::<Items>(&key(98, 98), &row("on", None));
    assert_eq!(store.commit(&changes).expect("there is space again"), CommitOutcome::Committed);
    drop(store);
    open(disk).expect("it opens")
}

/// Fills the disk repeatedly: commits are refused with the right error, reads still work, and commits work
/// again once there is space.
#[test]
fn full_disk_refuses_commits_until_there_is_space() {
    let disk = SimDisk::new(50);
    let mut store = open(&disk).expect("it opens");
    let mut acknowledged = 0_u32;
    for round in 1..=5_u64 {
        disk.set_capacity(Some(round * 40_000));
        loop {
            let mut changes = ChangeSet::new();
            changes.insert::<Items>(&key(1, acknowledged), &row(&"x".repeat(200), Some(1)));
            match store.commit(&changes) {
                Ok(outcome) => assert_eq!(outcome, CommitOutcome::Committed),
                Err(StoreError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
            acknowledged += 1;
        }
        // Refused, and refused again.
        assert!(matches!(store.maintain(), Err(StoreError::Full(_))));
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&key(2, 1), &row("large", None));
        for _ in 0..20 {
            changes.insert::<Items>(
                &key(2, u32::try_from(changes.len()).expect("few") + 1),
                &row(&"x".repeat(300), None),
            );
        }
        assert!(matches!(store.commit(&changes), Err(StoreError::Full(_))));
        assert_eq!(Backend::count(&store, TABLES[0]).expect("reads still work"), u64::from(acknowledged));
        if round % 2 == 0 {
            drop(store);
            disk.restart();
            store = open(&disk).expect("it opens on a full disk");
        }
    }
    let store = Store::new(store);
    let found = store.lookup::<Items>(Items::BY_GROUP, &1_u32.to_be_bytes()).expect("it works");
    assert_eq!(
        found.iter().map(|found| found.key.item).collect::<Vec<_>>(),
        (0..acknowledged).collect::<Vec<_>>()
    );
}

/// Deleting everything on a full disk frees space.
#[test]
fn compaction_frees_space() {
    let disk = SimDisk::new(51);
    let store = open(&disk).expect("it opens");
    let rows: Vec<u32> = (0..400).collect();
    for chunk in rows.chunks(10) {
        let mut changes = ChangeSet::new();
        chunk.iter().for_each(|&n| changes.insert::<Items>(&key(1, n), &row(&"x".repeat(100), Some(1))));
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    }
    let before = disk.used();
    for chunk in rows.chunks(10) {
        let mut changes = ChangeSet::new();
        chunk.iter().for_each(|&n| changes.delete::<Items>(&key(1, n), &row(&"x".repeat(100), Some(1))));
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        store.maintain().expect("it works");
    }
    store.maintain().expect("it works");
    assert!(disk.used() * 4 < before, "{} bytes before, {} after", before, disk.used());
    drop(store);
    // Even from the journal alone, without the checkpoint: deleted rows do not reappear.
    let other = disk.copy();
    other.tamper(&std::path::Path::new(DIR).join("checkpoint.idx"), Vec::clear);
    for disk in [disk, other] {
        assert_eq!(Backend::count(&open(&disk).expect("it opens"), TABLES[0]).expect("it works"), 0);
    }
}

/// Compaction on a nearly full disk frees space as soon as it can, and loses nothing before that.
#[test]
fn compaction_works_on_a_nearly_full_disk() {
    let mut shrunk = 0;
    for pages in 0..24_u64 {
        let disk = SimDisk::new(pages);
        let store = open(&disk).expect("it opens");
        let mut history = History::new();
        let mut random = Random(70);
        for _ in 0..120 {
            let mut rows = history.states.last().expect("never empty").clone();
            let changes = common::random_changes(&mut random, &mut rows);
            assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
            history.states.push(rows);
            if history.states.len() == 60 {
                store.checkpoint().expect("it works");
            }
        }
        let before = disk.used();
        disk.set_capacity(Some(before + pages * 4096));
        for _ in 0..6 {
            match store.maintain() {
                Ok(()) | Err(StoreError::Full(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        shrunk += u32::from(disk.used() < before);
        let rows = history.states.last().expect("never empty");
        drop(store);
        disk.restart();
        assert_eq!(&read_rows(&Store::new(open(&disk).expect("it opens"))).expect("consistent"), rows);
    }
    assert!(shrunk >= 20, "space was freed in {shrunk} of 24 runs");
}

/// If a commit's write or sync fails, the hook that ends the process is called, and nothing is written
/// afterwards.
#[test]
fn failed_sync_ends_the_process() {
    let disk = SimDisk::new(60);
    let fatal = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&fatal);
    let on_fatal = Arc::new(move |_: &str| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let options = Options { on_fatal, segment_bytes_first: 1 << 20, ..sim_options(&disk) };
    let store = EmbeddedStore::open(DIR, TABLES, options).expect("it opens");
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row("x", None));
    // The write, then the sync.
    disk.fail_at(2, Fault::Error);
    assert!(matches!(store.commit(&changes), Err(StoreError::Stopped(_))));
    assert_eq!(fatal.load(Ordering::Relaxed), 1);
    let calls = disk.calls();
    assert!(matches!(store.commit(&changes), Err(StoreError::Stopped(_))));
    assert_eq!(disk.calls(), calls, "nothing is tried after a failed sync");
    assert_eq!(Backend::count(&store, TABLES[0]).expect("reads still work"), 0);
}

/// Checks the checker: on a disk that lies about syncs, it finds lost commits.
#[test]
fn checker_finds_a_planted_bug() {
    let mut found = 0;
    for seed in 0..10 {
        let disk = SimDisk::new(seed);
        let store = open(&disk).expect("it opens");
        let mut history = History::new();
        let mut random = Random(seed);
        run(&store, &mut random, &mut history, 10).expect("no fault");
        disk.lie_about_syncs();
        run(&store, &mut random, &mut history, 10).expect("a lying sync reports no error");
        drop(store);
        disk.restart();
        found += usize::from(open(&disk).map_or(true, |store| history.check(&Store::new(store)).is_err()));
    }
    assert!(found >= 8, "found in {found} of 10 runs");
}

crate::repeat_without_index_memory!(
    crash_at_every_call_loses_nothing,
    error_at_every_call_loses_nothing,
    full_disk_at_every_call_loses_nothing,
    answers_after_a_kill_survive_a_power_loss,
    store_works_after_a_full_disk,
    full_disk_refuses_commits_until_there_is_space,
    compaction_frees_space,
    compaction_works_on_a_nearly_full_disk,
);
