//! The lane of a machine: answers come after the commit, failed batches are undone, the queue is limited, and
//! the lane stops in order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_engine::{LaneMachine, MachineLane, MachineLaneOptions, SubmitError};

/// The world outside the machine: its log, and the log's faults.
#[derive(Default)]
struct Outside {
    durable: Mutex<Vec<u64>>,
    is_full: AtomicBool,
    /// Commits wait while it is locked.
    gate: Mutex<()>,
    now: AtomicU64,
}

/// Adds up numbers. Every hundred ticks, it adds 1000 by itself.
struct Sum {
    outside: Arc<Outside>,
    log: Vec<u64>,
    fresh: usize,
    due: Option<u64>,
}

impl LaneMachine for Sum {
    type Request = u64;
    type Answer = u64;
    type Error = &'static str;

    fn events(_: &u64) -> usize {
        1
    }

    fn due_at(&self) -> Option<u64> {
        self.due
    }

    fn run_due(&mut self, _: u64) -> Result<(), &'static str> {
        self.due = None;
        self.log.push(1000);
        self.fresh += 1;
        Ok(())
    }

    fn execute(&mut self, request: u64, _: u64) -> Result<u64, &'static str> {
        if request == 13 {
            return Err("unlucky");
        }
        self.log.push(request);
        self.fresh += 1;
        Ok(self.log.iter().sum())
    }

    fn commit(&mut self) -> Result<(), &'static str> {
        let _gate = self.outside.gate.lock().unwrap();
        if self.outside.is_full.load(Ordering::Relaxed) {
            return Err("full");
        }
        *self.outside.durable.lock().unwrap() = self.log.clone();
        self.fresh = 0;
        Ok(())
    }

    fn undo(&mut self) {
        self.log.truncate(self.log.len() - self.fresh);
        self.fresh = 0;
    }
}

fn start(outside: &Arc<Outside>, due: Option<u64>, options: MachineLaneOptions) -> MachineLane<Sum> {
    let machine = Sum { outside: Arc::clone(outside), log: Vec::new(), fresh: 0, due };
    let clock = Arc::clone(outside);
    MachineLane::start(machine, move || clock.now.load(Ordering::Relaxed), options)
}

#[tokio::test]
async fn answers_come_after_the_commit() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, None, MachineLaneOptions::default());
    for n in 1..=10 {
        let sum = lane.submit(n).await.unwrap();
        assert_eq!(outside.durable.lock().unwrap().iter().sum::<u64>(), sum);
    }
    assert_eq!(lane.stop().unwrap().log.len(), 10);
    assert_eq!(lane.submit(1).await, Err(SubmitError::Stopped));
}

#[tokio::test]
async fn a_failed_batch_is_undone_and_the_lane_works_on() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, None, MachineLaneOptions::default());
    assert_eq!(lane.submit(5).await, Ok(5));
    outside.is_full.store(true, Ordering::Relaxed);
    assert_eq!(lane.submit(6).await, Err(SubmitError::Store("full")));
    outside.is_full.store(false, Ordering::Relaxed);
    assert_eq!(lane.submit(13).await, Err(SubmitError::Store("unlucky")));
    assert_eq!(lane.submit(7).await, Ok(12));
    assert_eq!(lane.metrics().failed_batches().get(), 2);
}

#[tokio::test]
async fn waiting_requests_share_a_batch_and_the_queue_is_limited() {
    let outside = Arc::new(Outside::default());
    let options = MachineLaneOptions { queue_requests_max: 4, queue_events_max: 100, batch_events_max: 3 };
    let lane = start(&outside, None, options);
    let gate = outside.gate.lock().unwrap();
    let mut answers = Vec::new();
    let mut refused = 0;
    // One batch of at most three is at the gate, and four wait.
    for n in 0..20 {
        match lane.enqueue(n) {
            Ok(answer) => answers.push(answer),
            Err(refusal) => {
                assert_eq!(refusal, SubmitError::Overloaded);
                refused += 1;
            }
        }
    }
    assert!(refused >= 20 - 4 - 3, "{refused} refused");
    assert_eq!(lane.metrics().rejections().get(), refused);
    drop(gate);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(lane.metrics().waiting(), 0);
    assert_eq!(lane.submit(1).await.map(|_| ()), Ok(()));
}

#[tokio::test]
async fn the_machine_does_its_own_work_when_it_is_due() {
    let outside = Arc::new(Outside::default());
    let lane = start(&outside, Some(50_000_000), MachineLaneOptions::default());
    outside.now.store(49_000_000, Ordering::Relaxed);
    assert_eq!(lane.submit(1).await, Ok(1));
    outside.now.store(50_000_000, Ordering::Relaxed);
    while outside.durable.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(lane.submit(1).await, Ok(1002));
}
