//! What waits for a lane, and what of it makes the next batch.
//!
//! Commands of clients go first and all together. Background commands (of workers) may change thousands of rows each or come
//! by the thousand, so while clients are served a batch takes in few of them, but always one: as many as let the
//! batch take [`BATCH_TIME`], found by trying, since nobody knows beforehand what a command costs. When no client came for
//! a while, background work gets whole batches.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long a batch with background commands should take while clients are served.
const BATCH_TIME: Duration = Duration::from_millis(2);
/// How long after a client's command the next one is expected.
const QUIET_AFTER: Duration = Duration::from_millis(50);

pub(crate) struct Inbox<J> {
    queue: Receiver<J>,
    background: VecDeque<J>,
    /// Background commands that wait here; more wait in the queue, with everything behind them.
    background_max: usize,
    /// Background commands that a batch takes in while clients are served.
    portion: usize,
    client_came: Option<Instant>,
}

/// What a batch is made of.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    since: Instant,
    background: usize,
    /// Whether a client's command came lately.
    pub(crate) beside_clients: bool,
}

impl<J> Inbox<J> {
    pub(crate) fn new(queue: Receiver<J>, background_max: usize) -> Self {
        Self { queue, background: VecDeque::new(), background_max, portion: 1, client_came: None }
    }

    /// Puts the next batch of at most `max` jobs into `jobs`; waits if there is nothing. None when nothing will come any more.
    pub(crate) fn take(
        &mut self,
        jobs: &mut Vec<J>,
        max: usize,
        is_background: impl Fn(&J) -> bool,
    ) -> Option<Taken> {
        let mut wakes_up = false;
        while jobs.len() < max && self.background.len() < self.background_max {
            let job = match self.queue.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Empty) if jobs.is_empty() && self.background.is_empty() => {
                    let job = self.queue.recv().ok()?;
                    wakes_up = true;
                    job
                }
                Err(TryRecvError::Disconnected) if jobs.is_empty() && self.background.is_empty() => {
                    return None;
                }
                Err(_) => break,
            };
            if is_background(&job) {
                self.background.push_back(job);
            } else {
                jobs.push(job);
            }
            if std::mem::take(&mut wakes_up) {
                // Who woke this thread may be about to bring more, on this very processor: let it, so that it all makes one
                // batch and one commit. If nobody else wants the processor, this returns at once.
                std::thread::yield_now();
            }
        }
        let since = Instant::now();
        if !jobs.is_empty() {
            self.client_came = Some(since);
        }
        let beside_clients = self.client_came.is_some_and(|came| since - came < QUIET_AFTER);
        let room = (max - jobs.len()).max(1);
        let portion = if beside_clients { self.portion.min(room) } else { room };
        let background = self.background.len().min(portion);
        jobs.extend(self.background.drain(..background));
        Some(Taken { since, background, beside_clients })
    }

    /// A batch is done: the next portion follows from the time that it took.
    pub(crate) fn done(&mut self, batch: &Taken) {
        if !batch.beside_clients || batch.background == 0 {
            return;
        }
        let took = batch.since.elapsed();
        if took > 2 * BATCH_TIME {
            self.portion = (self.portion / 2).max(1);
        } else if took < BATCH_TIME && batch.background == self.portion {
            self.portion += 1 + self.portion / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// Odd numbers are background work.
    fn take(inbox: &mut Inbox<u32>, max: usize) -> Option<(Vec<u32>, Taken)> {
        let mut jobs = Vec::new();
        let taken = inbox.take(&mut jobs, max, |job| job % 2 == 1)?;
        Some((jobs, taken))
    }

    /// Time does not pass for it.
    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn clients_go_first_and_background_work_comes_in_portions() {
        let (sender, queue) = sync_channel(100);
        let mut inbox = Inbox::new(queue, 100);
        for job in [1, 2, 3, 4, 5, 7] {
            sender.send(job).unwrap();
        }
        let (jobs, taken) = take(&mut inbox, 10).unwrap();
        assert_eq!(jobs, [2, 4, 1]);
        assert!(taken.beside_clients && taken.background == 1);
        // It took no time: the next portion is larger, and a batch that took long makes it smaller again.
        inbox.done(&Taken { since: later(), ..taken });
        assert_eq!(inbox.portion, 2);
        inbox.client_came = Some(later());
        let (jobs, taken) = take(&mut inbox, 10).unwrap();
        assert_eq!(jobs, [3, 5]);
        let long_ago = Instant::now().checked_sub(3 * BATCH_TIME).unwrap();
        inbox.done(&Taken { since: long_ago, ..taken });
        assert_eq!(inbox.portion, 1);
        inbox.done(&Taken { since: long_ago, ..taken });
        assert_eq!(inbox.portion, 1);
        // A full batch of clients still takes one along.
        for job in [6, 8, 10] {
            sender.send(job).unwrap();
        }
        assert_eq!(take(&mut inbox, 2).unwrap().0, [6, 8, 7]);
        drop(sender);
        assert_eq!(take(&mut inbox, 2).unwrap().0, [10]);
        assert!(take(&mut inbox, 2).is_none());
    }

    #[test]
    fn background_work_alone_gets_whole_batches() {
        let (sender, queue) = sync_channel(100);
        let mut inbox = Inbox::new(queue, 4);
        for job in [1, 3, 5, 7, 9] {
            sender.send(job).unwrap();
        }
        // Only four leave the queue at a time.
        assert_eq!(take(&mut inbox, 3).unwrap().0, [1, 3, 5]);
        assert_eq!(inbox.background, [7]);
        drop(sender);
        assert_eq!(take(&mut inbox, 3).unwrap().0, [7, 9]);
        assert!(take(&mut inbox, 3).is_none());
    }
}
