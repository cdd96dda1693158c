//! A lane with a machine whose state is in memory, and with commands of its own: answers come after the
//! commit, failed batches are undone, the queue is limited, and the lane stops in order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use batzen_engine::{Joined, Lane, LaneOptions, Plan, Rules, SubmitError, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::memory::MemoryBackend;
use batzen_store::{ChangeSet, Store, StoreError};

const UNLUCKY: u64 = 13;

/// The world outside the machine: its log, and the log's faults.
#[derive(Default)]
struct Outside {
    durable: Mutex<Vec<u64>>,
    is_full: AtomicBool,
    /// Commits wait while it is locked.
    gate: Mutex<()>,
    now: AtomicU64,
    /// Outcomes in the order in which the lane passed them on.
    decided: Mutex<VecDeque<u64>>,
}

/// A machine that adds up numbers. When it is due, it adds 1000 by itself.
struct Sum {
    outside: Arc<Outside>,
    log: Mutex<Vec<u64>>,
    due: Mutex<Option<u64>>,
}

impl Sum {
    fn commit(&self) -> Result<(), StoreError> {
        let _gate = self.outside.gate.lock().unwrap();
        if self.outside.is_full.load(Ordering::Relaxed) {
            return Err(StoreError::Full("full".to_owned()));
        }
        *self.outside.durable.lock().unwrap() = self.log.lock().unwrap().clone();
        Ok(())
    }

    fn undo(&self) {
        let durable = self.outside.durable.lock().unwrap().len();
        self.log.lock().unwrap().truncate(durable);
    }

    fn add(&self, number: u64) -> u64 {
        let mut log = self.log.lock().unwrap();
        log.push(number);
        log.iter().sum()
    }

    fn is_due(&self) -> bool {
        self.due.lock().unwrap().is_some_and(|due| due <= self.outside.now.load(Ordering::Relaxed))
    }
}

/// The part of the machine in a batch: durable already, since it has its own log.
struct Added;

impl Joined for Added {
    fn changes(&mut self) -> ChangeSet {
        ChangeSet::default()
    }

    fn committed(self: Box<Self>) {}
}

impl Rules for Sum {
    type Command = u64;
    type Answer = u64;
    type Refusal = u64;

    fn plan(&self, _: &u64, _: &mut Plan) {}

    fn execute(&self, _: &mut WorkingSet, number: &u64, _: Timestamp) -> Result<u64, u64> {
        if *number == UNLUCKY { Err(*number) } else { Ok(self.add(*number)) }
    }

    fn join<'a>(
        &'a self,
        _: &mut WorkingSet,
        verdicts: &mut [Result<u64, u64>],
        _: Timestamp,
    ) -> Result<Option<Box<dyn Joined + 'a>>, StoreError> {
        let failed = verdicts.iter().any(Result::is_err);
        let done = if failed { Err(StoreError::Backend("unlucky".to_owned())) } else { self.commit() };
        done.inspect_err(|_| self.undo())?;
        Ok(Some(Box::new(Added)))
    }

    fn prepare(&self, number: &mut u64) {
        // Zero stands for the next number.
        if *number == 0 {
            *number = self.outside.now.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn decided(&self, number: &u64, _: &u64) {
        self.outside.decided.lock().unwrap().push_back(*number);
    }

    fn due_in(&self) -> Option<Duration> {
        Some(if self.is_due() { Duration::ZERO } else { Duration::from_millis(1) })
    }

    fn run_due(&self) -> Result<(), StoreError> {
        if self.is_due() {
            *self.due.lock().unwrap() = None;
            self.add(1000);
            self.commit()?;
        }
        Ok(())
    }
}

fn start(outside: &Arc<Outside>, due: Option<u64>, options: LaneOptions) -> Lane<Sum> {
    let machine = Sum { outside: Arc::clone(outside), log: Mutex::default(), due: Mutex::new(due) };
    let store = Store::new(MemoryBackend::new());
    Lane::start(Arc::new(machine), store, Arc::new(|| Timestamp::ZERO), options)
}

async fn sum(lane: &Lane<Sum>, number: u64) -> Result<u64, SubmitError> {
    Ok(lane.submit(number).await?.unwrap())
}

#[tokio::test]
async fn answers_come_after_the_commit() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, None, LaneOptions::default());
    for n in 1..=10 {
        let sum = sum(&lane, n).await.unwrap();
        assert_eq!(outside.durable.lock().unwrap().iter().sum::<u64>(), sum);
    }
    assert!(lane.stop());
    assert_eq!(outside.durable.lock().unwrap().len(), 10);
    assert!(matches!(sum(&lane, 1).await, Err(SubmitError::Stopped)));
    assert!(!lane.stop(), "it was stopped before");
}

#[tokio::test]
async fn a_failed_batch_is_undone_and_the_lane_works_on() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, None, LaneOptions::default());
    assert_eq!(sum(&lane, 5).await.unwrap(), 5);
    outside.is_full.store(true, Ordering::Relaxed);
    assert!(matches!(sum(&lane, 6).await, Err(SubmitError::Store(_))));
    outside.is_full.store(false, Ordering::Relaxed);
    assert!(matches!(sum(&lane, UNLUCKY).await, Err(SubmitError::Store(_))));
    assert_eq!(sum(&lane, 7).await.unwrap(), 12);
    assert_eq!(lane.metrics().failed_batches().get(), 2);
}

#[tokio::test]
async fn waiting_requests_share_a_batch_and_the_queue_is_limited() {
    let outside = Arc::new(Outside::default());
    let options = LaneOptions { queue_commands_max: 4, batch_events_max: 3, ..LaneOptions::default() };
    let lane = start(&outside, None, options);
    let gate = outside.gate.lock().unwrap();
    // One batch of at most three is at the gate, and four wait. The inbox may already have taken three of the
    // next.
    let mut answers = Vec::new();
    let mut refused = 0;
    for _ in 0..20 {
        let mut answer = Box::pin(lane.submit(1));
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(refusal) => {
                assert!(matches!(refusal, Err(SubmitError::Overloaded)));
                refused += 1;
            }
            Poll::Pending => answers.push(answer),
        }
    }
    assert!(refused >= 20 - 4 - 3, "{refused} refused");
    assert_eq!(lane.metrics().rejections().get(), refused);
    drop(gate);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(sum(&lane, 1).await.unwrap(), 20 - refused + 1);
    assert_eq!(lane.metrics().waiting(), 0);
}

#[tokio::test]
async fn the_machine_does_its_own_work_when_it_is_due() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, Some(50), LaneOptions::default());
    outside.now.store(49, Ordering::Relaxed);
    assert_eq!(sum(&lane, 1).await.unwrap(), 1);
    outside.now.store(50, Ordering::Relaxed);
    while outside.durable.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sum(&lane, 1).await.unwrap(), 1002);
}

#[tokio::test]
async fn internal_commands_are_repeated_until_they_are_durable() {
    let outside = Arc::new(Outside { is_full: AtomicBool::new(true), ..Outside::default() });
    let lane = start(&outside, None, LaneOptions { queue_commands_max: 1, ..LaneOptions::default() });
    let first = lane.submit_internal(1);
    // Nobody waits for this one.
    drop(lane.submit_internal(2));
    while lane.metrics().failed_batches().get() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(matches!(sum(&lane, 3).await, Err(SubmitError::Store(_))), "clients are not kept waiting");
    outside.is_full.store(false, Ordering::Relaxed);
    first.await.unwrap().unwrap();
    assert_eq!(sum(&lane, 4).await.unwrap(), 7);
    assert_eq!(*outside.decided.lock().unwrap(), [1, 2, 4], "in their order, and only what is durable");
    assert!(lane.stop());
    assert!(matches!(lane.submit_internal(5).await, Err(SubmitError::Stopped)));
}

#[tokio::test]
async fn internal_commands_end_with_the_lane() {
    let outside = Arc::new(Outside { is_full: AtomicBool::new(true), ..Outside::default() });
    let lane = start(&outside, None, LaneOptions::default());
    let answer = lane.submit_internal(1);
    while lane.metrics().failed_batches().get() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(lane.stop(), "it does not wait for the store");
    assert!(matches!(answer.await, Err(SubmitError::Stopped)));
}

#[tokio::test]
async fn commands_are_completed_in_the_order_of_their_execution() {
    let outside = Arc::new(Outside { now: AtomicU64::new(100), ..Outside::default() });
    let lane = start(&outside, None, LaneOptions::default());
    let numbered: Vec<_> = (0..50).map(|_| lane.submit_internal(0)).collect();
    for answer in numbered {
        answer.await.unwrap().unwrap();
    }
    assert!(outside.decided.lock().unwrap().iter().copied().eq(100..150));
}
