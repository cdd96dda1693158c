//! Chooses the commands of the next batch from those that wait.
//!
//! Commands of clients go first and all together. Background commands (of workers) may change thousands of
//! rows each or arrive by the thousand. While clients are served, they form small batches of their own, and
//! after each of these the lane serves only clients for a while ([`Pace`]). When no client has come for a
//! while, background work gets whole batches, one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::pace::Pace;
use crate::queue::{BatchLimits, Submissions, Taken as Arrived, Wait};

/// A command that waits for its batch.
pub(crate) trait Waiting {
    /// Returns whether only a worker waits for its answer.
    fn is_background(&self) -> bool;

    /// Its size, by which batches are limited.
    fn events(&self) -> usize;
}

pub(crate) struct Inbox<J> {
    queue: Submissions<J>,
    /// Commands of clients that wait for the end of a background batch.
    clients: Vec<J>,
    background: VecDeque<J>,
    /// Background commands that may wait here. Further ones wait in the queue, and block everything after
    /// them.
    background_max: usize,
    pace: Pace,
}

/// The contents of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    since: Cost,
    background: usize,
    /// Whether a client's command came recently.
    pub(crate) beside_clients: bool,
}

/// The clocks that measure the cost of a batch.
#[derive(Clone, Copy)]
struct Cost {
    wall: Instant,
    cpu: Duration,
}

impl Cost {
    fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
        let cpu = seconds.ok().zip(nanos.ok()).map_or(Duration::ZERO, |(s, n)| Duration::new(s, n));
        Self { wall: Instant::now(), cpu }
    }

    /// The cost since then, as processor time. On a busy processor, most of the other time is waiting for
    /// other threads, and a smaller batch waits no less. But long waits for the store count too.
    fn elapsed(&self) -> Duration {
        let now = Self::now();
        now.cpu.saturating_sub(self.cpu).max(now.wall.saturating_duration_since(self.wall) / 4)
    }
}

impl<J: Waiting> Inbox<J> {
    pub(crate) fn new(queue: Submissions<J>, background_max: usize) -> Self {
        Self { queue, clients: Vec::new(), background: VecDeque::new(), background_max, pace: Pace::new() }
    }

    /// Puts the next batch into `jobs`. Waits if there is none, at most until `end`; then the batch is empty.
    /// Returns none when the queue is closed and empty.
    pub(crate) fn take(
        &mut self,
        jobs: &mut Vec<J>,
        limits: BatchLimits,
        end: Option<Instant>,
    ) -> Option<Taken> {
        let BatchLimits { commands_max: max, events_max } = limits;
        self.pace.background_waits(Instant::now(), !self.background.is_empty());
        let mut arrived = Vec::new();
        let mut events: usize = self.clients.iter().map(J::events).sum();
        while self.clients.len() < max && events < events_max && self.background.len() < self.background_max {
            let wait = if !self.clients.is_empty() {
                Wait::No
            } else if self.background.is_empty() {
                end.map_or(Wait::Forever, Wait::Until)
            } else {
                let now = Instant::now();
                Wait::Until(now + self.pace.rest(now))
            };
            let room = (max - self.clients.len()).min(self.background_max - self.background.len());
            let room = BatchLimits { commands_max: room, events_max: events_max - events };
            match self.queue.take(&mut arrived, room, wait) {
                Arrived::Batch => {}
                Arrived::Closed if self.clients.is_empty() && self.background.is_empty() => return None,
                Arrived::Closed | Arrived::Nothing => break,
            }
            for job in arrived.drain(..) {
                if job.is_background() {
                    self.background.push_back(job);
                } else {
                    events += job.events();
                    self.clients.push(job);
                }
            }
        }
        let since = Cost::now();
        if !self.clients.is_empty() {
            self.pace.client_came(since.wall);
        }
        self.pace.background_waits(since.wall, !self.background.is_empty());
        let beside_clients = self.pace.serves_clients(since.wall);
        let is_background_due = self.clients.is_empty() || self.pace.rest(since.wall).is_zero();
        let background = match beside_clients {
            false => max,
            true if is_background_due => self.pace.portion(),
            true => 0,
        };
        let background = background.min(max).min(self.background.len());
        jobs.extend(self.background.drain(..background));
        if background == 0 {
            self.pace.clients_taken(since.wall, self.clients.len());
            jobs.append(&mut self.clients);
        }
        Some(Taken { since, background, beside_clients })
    }

    /// Takes back internal jobs of a failed batch. They are first in the next one.
    pub(crate) fn put_back_internal(&self, jobs: impl IntoIterator<Item = J>) {
        self.queue.put_back_internal(jobs);
    }

    /// Records that a batch is done.
    pub(crate) fn done(&mut self, batch: &Taken) {
        if batch.beside_clients && batch.background > 0 {
            self.pace.done(Instant::now(), batch.background, batch.since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::queue::{QueueLimits, SubmissionQueue};

    /// Odd numbers are background work.
    impl Waiting for u32 {
        fn is_background(&self) -> bool {
            self % 2 == 1
        }

        fn events(&self) -> usize {
            1
        }
    }

    fn queue() -> (SubmissionQueue<u32>, Submissions<u32>) {
        SubmissionQueue::new(QueueLimits::commands(100), Arc::default())
    }

    fn push(queue: &SubmissionQueue<u32>, job: u32) {
        queue.push(job, 1).unwrap();
    }

    fn take(inbox: &mut Inbox<u32>, max: usize) -> Option<(Vec<u32>, Taken)> {
        let mut jobs = Vec::new();
        let taken = inbox.take(&mut jobs, BatchLimits::commands(max), None)?;
        Some((jobs, taken))
    }

    #[test]
    fn background_work_goes_in_portions_with_rests_between_clients() {
        let (sender, queue) = queue();
        let mut inbox = Inbox::new(queue, 100);
        for job in [1, 2, 3, 4, 5, 7] {
            push(&sender, job);
        }
        let (jobs, taken) = take(&mut inbox, 10).unwrap();
        assert_eq!(jobs, [1], "it has its own batch");
        assert!(taken.beside_clients && taken.background == 1);
        // It took so long that background work rests: only clients are served, and all that wait.
        let later = Instant::now() + Duration::from_secs(3_600);
        inbox.pace.done(later, 1, Duration::from_millis(1));
        assert_eq!(take(&mut inbox, 10).unwrap().0, [2, 4]);
        push(&sender, 6);
        assert_eq!(take(&mut inbox, 10).unwrap().0, [6]);
        // After the rest, a portion (now of two) goes before the waiting clients.
        let earlier = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        inbox.pace.done(earlier, 1, Duration::ZERO);
        push(&sender, 8);
        assert_eq!(take(&mut inbox, 10).unwrap().0, [3, 5]);
        assert_eq!(take(&mut inbox, 10).unwrap().0, [7]);
        assert_eq!(take(&mut inbox, 10).unwrap().0, [8]);
        drop(sender);
        assert!(take(&mut inbox, 10).is_none());
    }

    #[test]
    fn a_large_batch_of_clients_long_after_the_last_one_keeps_background_work_waiting() {
        let rests_after = |clients: u32| {
            let (sender, queue) = queue();
            let mut inbox = Inbox::new(queue, 100);
            let start = Instant::now();
            inbox.pace.clients_taken(start.checked_sub(Duration::from_secs(1)).unwrap(), 1);
            (1..=clients).for_each(|job| push(&sender, 2 * job));
            assert_eq!(take(&mut inbox, 100).unwrap().0.len(), clients as usize);
            !inbox.pace.rest(start).is_zero()
        };
        assert!(rests_after(50));
        assert!(!rests_after(5));
    }

    #[test]
    fn background_work_alone_gets_whole_batches() {
        let (sender, queue) = queue();
        let mut inbox = Inbox::new(queue, 4);
        for job in [1, 3, 5, 7, 9] {
            push(&sender, job);
        }
        // Only four leave the queue at a time.
        assert_eq!(take(&mut inbox, 3).unwrap().0, [1, 3, 5]);
        assert_eq!(inbox.background, [7]);
        drop(sender);
        assert_eq!(take(&mut inbox, 3).unwrap().0, [7, 9]);
        assert!(take(&mut inbox, 3).is_none());
    }
}
