//! `kill -9` on the switch (with its ledger) under load, repeatedly, and a proof that no transfer is
//! lost, doubled or reported differently to payer and payee.
//!
//! The switch is a real process of the real program. This process plays its participants: they send
//! transfers, answer them in several ways, repeat unanswered requests, and record the notices they receive.
//! Then it is proven that
//!
//! 1. every transfer has ended, and its payer has a final notice;
//! 2. no participant received contradictory notices, and payer and payee received the same;
//! 3. the switch has committed exactly the transfers whose payers were notified of a commit, and nothing is
//!    pending;
//! 4. the ledger's debits and credits are equal, and every position equals what its participant has sent less
//!    what it has received;
//! 5. all of this still holds after one more restart;
//! 6. the proof can fail: a transfer that never existed, and one that ended differently, are found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 4; `make soak` does 50).

use crate::common;
use crate::crash::{hub, run};

use std::time::{Duration, Instant};

use batzen_lab::participants::{Fsps, Notice, Schedule, TransferOutcome};
use common::PATIENCE;
use hub::{Switch, books, load, participants, problems};

#[test]
fn a_killed_switch_gives_all_participants_the_same_answer() {
    let dir = tempfile::tempdir().unwrap();
    let repeats = prove(Switch::new(dir.path()), |switch, _, _| {
        switch.kill_9();
        switch.start();
    });
    assert!(repeats > 0, "no kill met a request");
}

/// Plays the participants while `kill` kills something and starts it again, and proves that all is well. Returns how
/// many requests were repeated.
pub(crate) fn prove(mut switch: Switch, mut kill: impl FnMut(&mut Switch, &Fsps, u64)) -> u64 {
    let (cycles, mut dice) = (run::number("BATZEN_SOAK_CYCLES").unwrap_or(4), run::dice());
    switch.start();
    let fsps = participants(&switch);
    fsps.load(load(Schedule::Closed { in_flight: 64 }));
    for cycle in 1..=cycles {
        let pause = Duration::from_millis(100 + dice.below(900));
        switch.watch(pause);
        println!("cycle {cycle}: killed after {pause:?}, {} committed so far", fsps.committed());
        kill(&mut switch, &fsps, cycle);
    }
    // The switch's last run commits transfers, too.
    let (before, deadline) = (fsps.committed(), Instant::now() + PATIENCE);
    while fsps.committed() < before + 20 {
        switch.watch(Duration::from_millis(20));
        assert!(Instant::now() < deadline, "the switch commits nothing any more");
    }
    let report = fsps.end_load(PATIENCE);
    assert_eq!((report.unresolved, fsps.under_way()), (0, 0), "transfers have not ended: {report:?}");

    let outcomes: Vec<TransferOutcome> = fsps.outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes.len() as u64, report.begun);
    let at_end = books(&switch.hub, fsps.names());
    let found = problems(&at_end, &outcomes);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), found.first());

    // The proof finds planted errors.
    let committed =
        outcomes.iter().position(|outcome| outcome.payer_notice == Some(Notice::Committed)).unwrap();
    let mut planted = outcomes.clone();
    planted.push(outcomes[committed]);
    assert!(!problems(&at_end, &planted).is_empty(), "an invented transfer is not found");
    planted.pop();
    planted[committed].payer_notice = Some(Notice::Error(3303));
    assert!(!problems(&at_end, &planted).is_empty(), "a transfer that ended differently is not found");

    switch.terminate();
    switch.start();
    assert_eq!(books(&switch.hub, fsps.names()), at_end, "a restart changed the books");
    let lost: u64 = report
        .ends
        .iter()
        .filter(|((_, notice), _)| *notice == Notice::Error(3303))
        .map(|(_, count)| count)
        .sum();
    println!(
        "{cycles} kills; {} transfers, {} committed, {lost} expired; {} requests repeated",
        report.begun, report.committed_in_all, report.repeats
    );
    report.repeats
}
