//! Runs of an archiver: interrupted, continued, with a wrong archive, dropped.

use batzen_exchange::rules::archive::{ARCHIVE_DEPOSITS_MAX, ARCHIVE_ROWS_MAX, in_order};
use batzen_exchange::rules::{Archive, ArchiveUnit, Archived, Command, Refusal, Stays, TransferPart};
use batzen_exchange::workers::WorkerError;
use batzen_exchange::workers::archive::{ArchiveError, Archives, contents};
use batzen_store::{ChangeSet, CommitOutcome};
use batzen_tables::exchange::{ArchiveRuns, ArchiveTransfers, Deposits, Prepared, Refunds, WireOut};

use crate::rules::archive::{InMemory, archive, decide, expire_all, move_all, paid_world, run_with, to_move};
use crate::rules::world::*;

/// A transfer with more deposits than one command moves. Returns their number.
fn large_transfer(world: &World) -> usize {
    world.fund(1, 1, "60");
    // The rules do not know which coins were withdrawn, only how much.
    world.ok(withdraw(1, &[(1, 1), (2, 1)], true));
    let commands: Vec<Command> = (1..=11)
        .flat_map(|n| (0..200).map(move |contract_n| (n, contract_n)))
        .map(|(n, contract_n)| Command::Deposit(deposit(&[(n, 3, "0.004")], (1, contract_n, 1), (0, 0))))
        .collect();
    for batch in commands.chunks(200) {
        assert!(world.batch(batch).iter().all(Result::is_ok));
    }
    world.advance(10);
    world.aggregate_all();
    world.transfer_all();
    assert_eq!(world.store.count::<WireOut>().unwrap(), 1);
    commands.len()
}

#[test]
fn a_large_transfer_leaves_in_parts_and_its_sums_are_right_in_between() {
    let world = World::new();
    let deposits = large_transfer(&world);
    assert!(deposits > ARCHIVE_ROWS_MAX.max(2 * ARCHIVE_DEPOSITS_MAX));
    expire_all(&world);
    let before = world.totals();
    let archives = InMemory::default();
    // It is interrupted after the first command that removes something.
    let mut moves = 0;
    let interrupted = run_with(&world, &archives, &to_move(), &mut |command| {
        moves += u32::from(matches!(command, Archive::Move { .. }));
        if moves == 2 {
            return Err(ArchiveError::Worker(WorkerError::Stopped));
        }
        decide(&world, command)
    });
    assert!(interrupted.is_err());
    assert_eq!(world.totals(), before);
    let left = world.store.count::<Deposits>().unwrap();
    assert!(0 < left && left < deposits as u64, "{left}");
    assert_eq!(world.store.count::<ArchiveTransfers>().unwrap(), 1);
    let report = move_all(&world, &archives).unwrap();
    assert_eq!((report.run, report.transfers.left, report.coins.left), (Some(1), 1, 11));
    assert_eq!(world.totals(), before);
    assert_eq!(world.store.count::<ArchiveTransfers>().unwrap(), 0);
    assert_eq!(archives.of_run(1).count::<Deposits>().unwrap(), deposits as u64);
}

#[test]
fn a_run_that_is_interrupted_anywhere_is_continued() {
    let reference = paid_world();
    expire_all(&reference);
    let all = InMemory::default();
    let mut commands = 0;
    run_with(&reference, &all, &to_move(), &mut |command| {
        commands += 1;
        decide(&reference, command)
    })
    .unwrap();
    assert_eq!(commands, 4, "begin, two batches, finish");
    let expected = contents(&all.of_run(1)).unwrap();
    for at_command in 1..=commands {
        for is_decided in [false, true] {
            let world = paid_world();
            expire_all(&world);
            let before = world.totals();
            let archives = InMemory::default();
            let mut count = 0;
            let interrupted = run_with(&world, &archives, &to_move(), &mut |command| {
                count += 1;
                if count == at_command {
                    if is_decided {
                        decide(&world, command).unwrap();
                    }
                    return Err(ArchiveError::Worker(WorkerError::Stopped));
                }
                decide(&world, command)
            });
            assert!(interrupted.is_err());
            assert_eq!(world.totals(), before);
            // If it was interrupted after its last command, nothing is left to do.
            let is_over = at_command == commands && is_decided;
            let report = move_all(&world, &archives).unwrap();
            assert_eq!(report.run, (!is_over).then_some(1));
            assert_eq!(world.totals(), before);
            let found = contents(&archives.of_run(1)).unwrap();
            // The identifiers of transfers are random, so the digests differ.
            assert_eq!(found.tables, expected.tables, "{at_command} {is_decided}");
            let run = world.store.all::<ArchiveRuns>().unwrap().pop().unwrap().row;
            assert_eq!(run.digest, Some(found.digest));
        }
    }
}

#[test]
fn only_what_equals_the_copy_is_removed() {
    let world = paid_world();
    expire_all(&world);
    let begun = decide(&world, Archive::Begin { run: 1, id: h_payto(200), reason: "a test".to_owned() });
    let Ok(Archived::Begun { run: 1, .. }) = begun else { panic!() };
    let deposits = world.store.all::<Deposits>().unwrap();
    let rows = deposits.iter().map(|found| (found.key.clone(), found.row.clone()));
    let refunds = world.store.all::<Refunds>().unwrap();
    let whole = TransferPart {
        wtid: deposits[0].row.wtid.unwrap(),
        wire_out: world.store.all::<WireOut>().unwrap().pop().map(|found| found.row),
        prepared: world.store.all::<Prepared>().unwrap().pop().map(|found| found.row),
        deposits: in_order(rows.collect()),
        refunds: refunds.into_iter().map(|found| (found.key, found.row)).collect(),
    };
    let mut others = vec![whole.clone(); 5];
    others[0].deposits[0].1.amount = m("6");
    others[1].refunds.clear();
    others[2].prepared = None;
    // A part that claims to be the last.
    others[3].deposits.pop();
    others[3].refunds.retain(|(key, _)| key.deposit() == whole.deposits[0].0);
    others[4].wtid = wtid(9);
    let id = h_payto(200);
    for other in others {
        let units = vec![ArchiveUnit::Transfer(Box::new(other))];
        let verdict = decide(&world, Archive::Move { run: 1, id, until: at(9_000_000), units }).unwrap();
        assert_eq!(verdict, Archived::Moved(vec![Some(Stays::Changed)]));
    }
    let units = vec![ArchiveUnit::Transfer(Box::new(whole))];
    // Another archiver, or none.
    for (run, id) in [(1, h_payto(201)), (2, id)] {
        let refused = decide(&world, Archive::Move { run, id, until: at(9_000_000), units: units.clone() });
        assert!(matches!(refused, Err(ArchiveError::Refused(why)) if *why == Refusal::ArchiveRunOther));
    }
    assert_eq!(
        decide(&world, Archive::Move { run: 1, id, until: at(9_000_000), units }).unwrap(),
        Archived::Moved(vec![None])
    );
    world.totals();
}

#[test]
fn a_foreign_or_changed_archive_is_not_continued() {
    let world = paid_world();
    expire_all(&world);
    let archives = InMemory::default();
    let mut moves = 0;
    let _ = run_with(&world, &archives, &to_move(), &mut |command| {
        moves += u32::from(matches!(command, Archive::Move { .. }));
        if moves == 2 {
            return Err(ArchiveError::Worker(WorkerError::Stopped));
        }
        decide(&world, command)
    });
    let fails = |archives: &InMemory| move_all(&world, archives).unwrap_err().to_string();
    let lost = InMemory::default();
    assert!(fails(&lost).contains("not there"), "{}", fails(&lost));
    let foreign = InMemory::default();
    foreign.open(1, true).unwrap();
    assert!(fails(&foreign).contains("not the one"), "{}", fails(&foreign));
    // A row is missing from the real one.
    let store = archives.of_run(1);
    let found = store.all::<Refunds>().unwrap().pop().unwrap();
    let mut changes = ChangeSet::new();
    changes.delete::<Refunds>(&found.key, &found.row);
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert!(fails(&archives).contains("rows of refunds"), "{}", fails(&archives));
    insert::<Refunds>(&store, &found.key, &found.row);
    move_all(&world, &archives).unwrap();
}

#[test]
fn an_archive_is_dropped_when_it_may_be() {
    let world = paid_world();
    expire_all(&world);
    archive(&world, &InMemory::default());
    let drop = |before| decide(&world, Archive::Drop { run: 1, reason: "ten years".to_owned(), before });
    let too_young = drop(world.now());
    assert!(matches!(too_young, Err(ArchiveError::Refused(why)) if *why == Refusal::ArchiveTooYoung));
    let ended = world.now();
    world.advance(1);
    let Ok(Archived::Dropped(row)) = drop(world.now()) else { panic!() };
    assert_eq!((row.dropped, row.drop_reason.as_deref()), (Some(world.now()), Some("ten years")));
    world.advance(1);
    let Ok(Archived::Dropped(again)) = drop(world.now()) else { panic!() };
    assert_eq!(again, row, "it was dropped before");
    assert_eq!(row.finished, Some(ended));
    world.totals();
}
