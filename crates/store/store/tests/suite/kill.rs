//! `kill -9` in a loop: a child process commits under load and reports each acknowledgement through a pipe.
//! The parent kills it at random moments, opens the store, and checks that it contains every acknowledged
//! commit and no incomplete one.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of cycles (25 by default).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use batzen_store::conformance::{ItemRow, Items, TABLES, key};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, CommitOutcome, List, Store};

const CHILD_DIRECTORY: &str = "BATZEN_STORE_KILL_DIRECTORY";
const WRITERS: u32 = 3;
/// The number of rows that each writer keeps, besides its counter.
const WINDOW: u32 = 40;

fn options() -> Options {
    // Small enough for many segments, compactions and checkpoints per second.
    Options {
        segment_bytes_first: 16 << 10,
        segment_bytes_max: 64 << 10,
        checkpoint_bytes: 256 << 10,
        // Most index entries are in runs.
        index_hot_bytes: 0,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Store {
    Store::new(EmbeddedStore::open(directory, TABLES, options()).expect("the store opens after any kill"))
}

/// The row that a writer's `n`-th commit inserts.
fn item(writer: u32, n: u32) -> ItemRow {
    let body = (0..n % 300).map(|i| u8::try_from((i * 31 + n + writer) % 251).expect("below 251")).collect();
    let due = n.is_multiple_of(3).then_some(u64::from(n));
    ItemRow { label: format!("{writer}"), due, tags: List(vec![]), body }
}

/// The row that counts a writer's commits.
fn counter(n: u32) -> ItemRow {
    ItemRow { label: "counter".into(), due: None, tags: List(vec![]), body: n.to_be_bytes().to_vec() }
}

fn count(store: &Store, writer: u32) -> u32 {
    let stored = store.get::<Items>(&key(writer, 0)).expect("it works");
    stored.map_or(0, |stored| u32::from_be_bytes(stored.row.body.try_into().expect("a counter")))
}

/// Commit `n`: inserts item `n`, counts it, and deletes the item that leaves the window.
fn commit(store: &Store, writer: u32, n: u32) {
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(writer, n), &item(writer, n));
    match n {
        1 => changes.insert::<Items>(&key(writer, 0), &counter(1)),
        _ => changes.update::<Items>(&key(writer, 0), &counter(n - 1), &counter(n)),
    }
    if n > WINDOW {
        changes.delete::<Items>(&key(writer, n - WINDOW), &item(writer, n - WINDOW));
    }
    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
}

/// The main function of the child process; does nothing as an ordinary test.
#[test]
fn child_commits_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let store = open(Path::new(&directory));
    std::thread::scope(|scope| {
        for writer in 1..=WRITERS {
            let store = &store;
            scope.spawn(move || {
                for n in count(store, writer) + 1.. {
                    commit(store, writer, n);
                    // One short write: whole lines, after the commit.
                    let line = format!("\nACK {writer} {n}\n");
                    if std::io::stdout()
                        .lock()
                        .write_all(line.as_bytes())
                        .and_then(|()| std::io::stdout().flush())
                        .is_err()
                    {
                        std::process::exit(1);
                    }
                }
            });
        }
    });
}

/// The problem with the store, if any, given the last acknowledged commit of each writer.
fn check(store: &Store, acknowledged: &[u32]) -> Result<(), String> {
    for writer in 1..=WRITERS {
        let n = count(store, writer);
        let acked = acknowledged[writer as usize - 1];
        if n < acked {
            return Err(format!("writer {writer}: commit {acked} was acknowledged, the store has {n}"));
        }
        if n > acked + 1 && acked > 0 {
            return Err(format!("writer {writer}: commit {n} is there, but only {acked} was acknowledged"));
        }
        if n == 0 {
            continue;
        }
        let found =
            store.lookup::<Items>(Items::BY_GROUP, &writer.to_be_bytes()).map_err(|e| e.to_string())?;
        let mut items: Vec<u32> = found.iter().map(|found| found.key.item).collect();
        items.sort_unstable();
        let first = n.saturating_sub(WINDOW - 1).max(1);
        let expected: Vec<u32> = std::iter::once(0).chain(first..=n).collect();
        if items != expected {
            return Err(format!("writer {writer} at commit {n}: has {items:?}"));
        }
        if let Some(wrong) = found.iter().find(|f| f.key.item > 0 && f.row != item(writer, f.key.item)) {
            return Err(format!("writer {writer}: item {} differs", wrong.key.item));
        }
        let due = store.range::<Items, u64>(Items::BY_DUE, .., usize::MAX).map_err(|e| e.to_string())?;
        let waiting = due.iter().filter(|found| found.key.group == writer.to_be_bytes()).count();
        let expected = (first..=n).filter(|n| n.is_multiple_of(3)).count();
        if waiting != expected {
            return Err(format!("writer {writer}: {waiting} deadlines instead of {expected}"));
        }
    }
    Ok(())
}

/// Starts the child, kills it after this many milliseconds of commits, and returns each writer's last
/// acknowledgement.
fn run_and_kill(directory: &Path, run_ms: u64) -> Vec<u32> {
    let mut child = Command::new(std::env::current_exe().expect("a test has an executable"))
        .args(["kill::child_commits_until_it_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD_DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the child starts");
    let output = child.stdout.take().expect("it is piped");
    let (started, first) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut acknowledged = vec![0; WRITERS as usize];
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            let mut words = line.split_whitespace();
            let (Some("ACK"), Some(writer), Some(n)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let writer: usize = writer.parse().expect("a whole line");
            acknowledged[writer - 1] = n.parse().expect("a whole line");
            // After the first acknowledgement, nobody receives this.
            let _ = started.send(());
        }
        acknowledged
    });
    first.recv_timeout(Duration::from_secs(60)).expect("the child commits");
    std::thread::sleep(Duration::from_millis(run_ms));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    reader.join().expect("no panic")
}

#[test]
fn kill_loses_no_acknowledged_commit() {
    let cycles: u64 = match std::env::var("BATZEN_SOAK_CYCLES") {
        Ok(cycles) => cycles.parse().expect("BATZEN_SOAK_CYCLES is a number"),
        Err(_) => 25,
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut total = vec![0; WRITERS as usize];
    for cycle in 0..cycles {
        let acknowledged = run_and_kill(directory.path(), cycle * 37 % 90);
        for (total, acknowledged) in total.iter_mut().zip(acknowledged) {
            *total = acknowledged.max(*total);
        }
        let store = open(directory.path());
        if let Err(problem) = check(&store, &total) {
            panic!("cycle {cycle}: {problem}");
        }
        // The parent commits nothing, so the counts continue.
        total = (1..=WRITERS).map(|writer| count(&store, writer)).collect();
        drop(store);
        let report = EmbeddedStore::verify(directory.path()).expect("it is a store");
        assert!(report.problems.is_empty(), "cycle {cycle}: {:?}", report.problems);
    }
    assert!(total.iter().all(|&n| u64::from(n) > cycles), "the child worked: {total:?}");
}

/// Checks the checker: it finds a missing acknowledged commit, and an incomplete one.
#[test]
fn checker_finds_planted_losses() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    for writer in 1..=WRITERS {
        (1..=60).for_each(|n| commit(&store, writer, n));
    }
    check(&store, &[60; WRITERS as usize]).expect("the store is complete");
    assert!(check(&store, &[60, 61, 60]).expect_err("one is missing").contains("writer 2"));
    let mut changes = ChangeSet::new();
    changes.delete::<Items>(&key(3, 50), &item(3, 50));
    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    assert!(check(&store, &[60; WRITERS as usize]).expect_err("a row is missing").contains("writer 3"));
}
