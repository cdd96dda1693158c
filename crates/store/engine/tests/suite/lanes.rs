//! Several lanes over one store that others commit to as well, and that may be unavailable: lost races are
//! repeated, large batches are halved before they starve, errors are answered, and a repetition finds out
//! whether a commit took effect.

#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use batzen_engine::{Batcher, Clock, LaneOptions, Lanes, Plan, Rules, SubmitError, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitOutcome, Result, Store, StoreError, Table, record, table};

record! {
    /// The key of an account.
    pub key struct AccountKey {
        /// Its number.
        pub id: u32,
    }
}
record! {
    pub struct AccountRow {
        /// Number of touches.
        pub touches: u64,
        /// The number of the last command.
        pub last: u64,
    }
}
table! {
    Accounts(1, "accounts"): AccountKey => AccountRow;
}

/// Touches an account. Repeating a number changes nothing.
#[derive(Clone, Debug)]
struct Touch {
    owner: [u8; 4],
    number: u64,
    /// Another account that it concerns.
    other: Option<[u8; 4]>,
}

fn touch(id: u32, number: u64) -> Touch {
    Touch { owner: id.to_be_bytes(), number, other: None }
}

#[derive(Default)]
struct Toy {
    /// The threads that decided commands of each account.
    threads: Mutex<BTreeMap<u32, BTreeSet<String>>>,
    /// Accounts above this number are unknown until learned.
    known: AtomicU32,
}

#[derive(Debug, PartialEq, Eq)]
struct Unknown(u32);

impl Rules for Toy {
    type Command = Touch;
    type Answer = u64;
    type Refusal = Unknown;

    fn plan(&self, command: &Touch, plan: &mut Plan) {
        plan.row::<Accounts>(AccountKey { id: u32::from_be_bytes(command.owner) });
    }

    fn execute(
        &self,
        rows: &mut WorkingSet,
        command: &Touch,
        _: Timestamp,
    ) -> std::result::Result<u64, Unknown> {
        let id = u32::from_be_bytes(command.owner);
        let thread: ThreadId = std::thread::current().id();
        self.threads.lock().unwrap().entry(id).or_default().insert(format!("{thread:?}"));
        if id > self.known.load(Ordering::SeqCst) {
            return Err(Unknown(id));
        }
        let key = AccountKey { id };
        let old = rows.get::<Accounts>(&key).map_or((0, 0), |row| (row.touches, row.last));
        if old.1 == command.number {
            return Ok(old.0);
        }
        rows.put::<Accounts>(&key, AccountRow { touches: old.0 + 1, last: command.number });
        Ok(old.0 + 1)
    }

    fn owner<'a>(&self, command: &'a Touch) -> Option<&'a [u8]> {
        Some(&command.owner)
    }

    fn other_owners<'a>(&self, command: &'a Touch, visit: &mut dyn FnMut(&'a [u8])) {
        command.other.iter().for_each(|other| visit(other));
    }

    fn learn(&self, refusal: &Unknown, _: &Store) -> Result<bool> {
        // All accounts up to 1,000 are learned.
        self.known.fetch_max(refusal.0.min(1_000), Ordering::SeqCst);
        Ok(refusal.0 <= 1_000)
    }
}

fn toy() -> Arc<Toy> {
    Arc::new(Toy { known: AtomicU32::new(1_000), ..Toy::default() })
}

fn clock() -> Timestamp {
    Timestamp::from_secs(1)
}

/// Decides how a commit ends. None: the store below decides.
type OnCommit = dyn Fn(&MemoryBackend, &ChangeSet) -> Option<Result<CommitOutcome>> + Send + Sync;

/// A database whose commits end as a test decides.
struct Willful {
    inner: MemoryBackend,
    on_commit: Box<OnCommit>,
    /// Number of parts that it has.
    parts: Option<usize>,
}

impl Backend for Willful {
    batzen_store::delegate_reads!(self, self.inner);

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        (self.on_commit)(&self.inner, changes).unwrap_or_else(|| self.inner.commit(changes))
    }
    /// By the last byte of the key.
    fn lane(&self, shard_key: &[u8], lanes: usize) -> usize {
        usize::from(*shard_key.last().unwrap()) % lanes
    }
    fn lanes_wanted(&self) -> Option<usize> {
        self.parts
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

fn scripted(
    on_commit: impl Fn(&MemoryBackend, &ChangeSet) -> Option<Result<CommitOutcome>> + Send + Sync + 'static,
) -> Store {
    Store::new(Willful { inner: MemoryBackend::new(), on_commit: Box::new(on_commit), parts: None })
}

fn stale() -> Option<Result<CommitOutcome>> {
    Some(Err(StoreError::Stale { table: "accounts", key: vec![7] }))
}

fn lanes(rules: &Arc<Toy>, store: &Store, count: usize) -> Lanes<Toy> {
    let clock: Arc<dyn Clock> = Arc::new(clock);
    Lanes::start(Arc::clone(rules), store, &clock, LaneOptions::default(), count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_owner_has_one_lane_and_all_lanes_work() {
    work_of_three_lanes(Store::new(MemoryBackend::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_share_an_embedded_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), &[Accounts::DEF], Options::default()).unwrap();
    work_of_three_lanes(Store::new(store)).await;
}

async fn work_of_three_lanes(store: Store) {
    let rules = toy();
    let lanes = lanes(&rules, &store, 3);
    let tasks: Vec<_> = (0..600_u64)
        .map(|n| {
            let lanes = lanes.clone();
            tokio::spawn(async move { lanes.submit(touch(u32::try_from(n % 40).unwrap(), n + 1)).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap().unwrap();
    }
    let counters = lanes.metrics().snapshot();
    assert_eq!((counters.commands, counters.queued, counters.conflicts, lanes.count()), (600, 0, 0, 3));
    lanes.close();
    let threads = rules.threads.lock().unwrap();
    assert!(threads.values().all(|threads| threads.len() == 1), "{threads:?}");
    assert_eq!(threads.values().flatten().collect::<BTreeSet<_>>().len(), 3);
    assert!(store.all::<Accounts>().unwrap().iter().all(|found| found.row.touches == 15));
}

/// Commands that concern several parts of a database go through the last lane, so that no batch of another
/// lane does.
#[tokio::test]
async fn the_last_lane_has_what_concerns_several_parts() {
    for parts in [Some(2), None] {
        let commits = Box::new(|_: &MemoryBackend, _: &ChangeSet| None);
        let store = Store::new(Willful { inner: MemoryBackend::new(), on_commit: commits, parts });
        let rules = toy();
        let lanes = lanes(&rules, &store, 3);
        // With two parts: both, the same twice, and one alone. Each account has one command, so one lane.
        let commands = [(10, Some(1)), (20, Some(2)), (30, None), (11, None), (21, Some(4)), (31, Some(3))];
        for (id, other) in commands {
            let other = other.map(u32::to_be_bytes);
            lanes.submit(Touch { other, ..touch(id, 1) }).await.unwrap().unwrap();
        }
        lanes.close();
        let threads = rules.threads.lock().unwrap();
        let lane_of = |id: u32| threads[&id].clone();
        assert_eq!(lane_of(10) == lane_of(21), parts.is_some(), "{threads:?}");
        assert_eq!(lane_of(20) == lane_of(30) && lane_of(11) == lane_of(31), parts.is_some(), "{threads:?}");
        assert_ne!(lane_of(10), lane_of(11), "{threads:?}");
        let lanes: BTreeSet<_> = threads.values().flatten().collect();
        assert_eq!(lanes.len(), 3);
    }
}

#[test]
fn a_batch_that_keeps_losing_is_halved_until_it_wins() {
    let store = scripted(|_, changes| (changes.len() > 3).then(stale).flatten());
    let batcher = Batcher::new(toy(), store.clone());
    let commands: Vec<Touch> = (0..20).map(|id| touch(id, 1)).collect();
    let verdicts = batcher.run(&commands, &clock).unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Ok(1)));
    assert_eq!(store.count::<Accounts>().unwrap(), 20);
    // A batch of 20, 2 of 10 and 4 of 5 each lost three times.
    assert_eq!(batcher.metrics().snapshot().conflicts, 3 * (1 + 2 + 4));
}

#[tokio::test]
async fn a_command_that_always_loses_gets_an_error_and_others_are_not_affected() {
    let store = scripted(|_, changes| {
        let is_hot = changes.changes().iter().any(|change| change.key() == 13_u32.to_be_bytes());
        is_hot.then(stale).flatten()
    });
    let rules = toy();
    let lanes = lanes(&rules, &store, 2);
    let tasks: Vec<_> = (0..30_u32)
        .map(|id| {
            let lanes = lanes.clone();
            tokio::spawn(async move { lanes.submit(touch(id, 1)).await })
        })
        .collect();
    for (id, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(verdict) => assert_eq!((verdict, id != 13), (Ok(1), true)),
            Err(SubmitError::Store(error)) => {
                assert!(matches!(*error, StoreError::Stale { .. }) && id == 13, "{error}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(store.count::<Accounts>().unwrap(), 29);
    assert!(lanes.metrics().snapshot().conflicts >= 100);
    lanes.close();
}

#[tokio::test]
async fn a_repetition_finds_out_an_outcome_that_was_unknown() {
    let away = Arc::new(AtomicU32::new(2));
    let left = Arc::clone(&away);
    let store = scripted(move |inner, changes| {
        let away = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).ok()?;
        if away == 1 {
            // The commit took effect, but the answer was lost.
            assert_eq!(inner.commit(changes).unwrap(), CommitOutcome::Committed);
        }
        Some(Err(StoreError::Unavailable("test".into())))
    });
    let rules = toy();
    let lanes = lanes(&rules, &store, 1);
    for _ in 0..2 {
        let error = lanes.submit(touch(1, 5)).await.unwrap_err();
        assert!(matches!(error, SubmitError::Store(error) if matches!(*error, StoreError::Unavailable(_))));
    }
    assert_eq!(
        lanes.submit(touch(1, 5)).await.unwrap(),
        Ok(1),
        "it took effect once, however often it was submitted"
    );
    lanes.close();
}

#[test]
fn rules_learn_what_is_missing_before_they_refuse() {
    let rules = Arc::new(Toy::default());
    let batcher = Batcher::new(Arc::clone(&rules), Store::new(MemoryBackend::new()));
    let verdicts = batcher.run(&[touch(0, 1), touch(7, 1), touch(2_000, 1)], &clock).unwrap();
    assert_eq!(verdicts, [Ok(1), Ok(1), Err(Unknown(2_000))]);
    assert_eq!(batcher.metrics().snapshot().conflicts, 0);
}
