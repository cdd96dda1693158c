//! The short form of `make simulate`, and a test that the checker finds bugs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZero;
use std::sync::Mutex;

use batzen_simulation::{Bug, Ending, Marks, Report, run};

/// The number of seeds of the short run, unless `BATZEN_SIMULATE_SEEDS` is set.
const SEEDS: u64 = 90;
/// The maximum number of seeds that may be needed to find each planted bug.
const SEEDS_FOR_BUGS: u64 = 1_000;

/// The seed at which the search for a bug begins. Those that few seeds find are looked for near the one that found them,
/// which may be another one after a change of the code.
const fn first_seed(bug: Bug) -> u64 {
    match bug {
        Bug::RecoveryWithoutSync => 125,
        _ => 0,
    }
}

/// A bug that no seed of the short search finds, because two wallets must merge one purse at the same moment. The comparison of
/// the rules with a naive model covers it (`crates/services/exchange/tests/suite/rules/compare.rs`).
const NOT_SEARCHED: Bug = Bug::ConfirmsEveryMerge;

fn failure(report: &Report) -> Option<&str> {
    match &report.ending {
        Ending::Failed(what) => Some(what),
        Ending::Clean | Ending::Stopped(_) => None,
    }
}

#[test]
fn seeds_pass_and_reach_rare_states() {
    let seeds = std::env::var("BATZEN_SIMULATE_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds = seeds.unwrap_or(SEEDS);
    let mut marks = Marks::default();
    for seed in 0..seeds {
        let report = run(seed, None, false);
        assert_eq!(failure(&report), None, "see every event: make simulate SEED={seed}");
        marks.add(&report.marks);
    }
    assert_eq!(marks.missing(seeds), Vec::<&str>::new(), "the run does not reach its rare states");
}

#[test]
fn same_seed_gives_the_same_events() {
    for seed in [1, 2, 3, 5, 8, 13] {
        let (one, other) = (run(seed, None, false), run(seed, None, false));
        assert!(one.trace.1 > 300, "something happens");
        assert_eq!((one.trace, one.marks), (other.trace, other.marks), "seed {seed}");
    }
    assert_ne!(run(1, None, false).trace, run(2, None, false).trace);
}

#[test]
fn every_planted_bug_is_found() {
    let searched = Bug::ALL.iter().copied().filter(|bug| *bug != NOT_SEARCHED);
    let bugs = Mutex::new(searched.collect::<Vec<_>>());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(bug) = { bugs.lock().unwrap().pop() } {
                    let first = first_seed(bug);
                    let found = (first..first + SEEDS_FOR_BUGS).find_map(|seed| {
                        let report = run(seed, Some(bug), false);
                        // A seed that fails without the bug, too, has not found it.
                        let is_found =
                            failure(&report).is_some() && failure(&run(seed, None, false)).is_none();
                        is_found.then(|| (seed, failure(&report).unwrap_or_default().to_owned()))
                    });
                    let (seed, what) = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
                    println!("{} is found by seed {seed}: {what}", bug.name());
                }
            });
        }
    });
}
