//! Threads for reads that may be long, separate from the threads that serve requests. Fair between owners;
//! long reads wait separately.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::fair_queue::FairQueue;
pub use crate::fair_queue::Length;
use crate::pool::PoolBusy;
use crate::slot::{Responder, lock};

/// Number of reads that may wait. The limits on a client's requests apply first, so this one is rarely reached.
const WAITING_MAX: usize = 1_024;

/// A read. Returns how long it was, or none if its request was given up.
type Job = Box<dyn FnOnce() -> Option<Length> + Send>;

/// Threads for short reads, and one thread for long ones. An owner whose last read was long waits for that
/// thread, and only a few of its reads may wait. Owners take turns.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use batzen_engine::{Length, Readers};
/// let readers = Readers::start(1);
/// let sum = readers.read(b"owner", || ((1..=1000).sum::<u32>(), Length::Long)).await;
/// assert_eq!(sum, Ok(500_500));
/// readers.close();
/// # });
/// ```
pub struct Readers {
    queue: Arc<FairQueue<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    is_inline: bool,
}

impl Readers {
    /// Starts `short_count` threads for short reads, and one for long ones.
    ///
    /// # Panics
    /// When the system starts no thread.
    #[must_use]
    pub fn start(short_count: usize) -> Self {
        let queue = Arc::new(FairQueue::new(WAITING_MAX));
        let lengths = std::iter::repeat_n(Length::Short, short_count.max(1)).chain([Length::Long]);
        let spawn = |length| {
            let queue = Arc::clone(&queue);
            let name = if length == Length::Long { "reader-long" } else { "reader" };
            let run = move || run(&queue, length);
            std::thread::Builder::new().name(name.into()).spawn(run).expect("the system starts a thread")
        };
        let threads = lengths.map(spawn).collect();
        Self { queue, threads: Mutex::new(threads), is_inline: false }
    }

    /// Readers without threads: every read runs at once, on its caller's thread. For simulators.
    #[must_use]
    pub fn inline() -> Self {
        Self { queue: Arc::new(FairQueue::new(WAITING_MAX)), threads: Mutex::default(), is_inline: true }
    }

    /// Reads for an owner and waits for the result. The read returns how long it was.
    ///
    /// # Errors
    /// When too many reads wait, or too many long ones of this owner.
    ///
    /// # Panics
    /// When the read panicked, because a failed assertion must not pass for an answer.
    pub async fn read<T: Send + 'static>(
        &self,
        owner: &[u8],
        read: impl FnOnce() -> (T, Length) + Send + 'static,
    ) -> Result<T, PoolBusy> {
        if self.is_inline {
            return Ok(read().0);
        }
        let (responder, ticket) = Responder::new();
        let job = move || {
            if responder.is_abandoned() {
                return None;
            }
            // A read that panics drops the responder, and the waiting task learns that there is no result.
            let (value, length) = catch_unwind(AssertUnwindSafe(read)).ok()?;
            responder.send(value);
            Some(length)
        };
        self.queue.add(Some(owner.into()), Box::new(job)).map_err(|_| PoolBusy)?;
        let results = poll_fn(|context| ticket.poll_results(context)).await;
        Ok(results.expect("reading does not panic").pop().expect("one result a read"))
    }

    /// Stops the threads after all waiting reads. Blocks.
    pub fn close(&self) {
        self.queue.close();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads histories has panicked");
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(queue: &FairQueue<Job>, length: Length) {
    while let Some((owner, job)) = queue.next(length) {
        if let Some(length) = job() {
            queue.learn(&owner, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_long_read_delays_no_short_one() {
        let readers = Readers::start(1);
        block_on(async {
            readers.read(b"long", || ((), Length::Long)).await.unwrap();
            let (release, held) = channel::<()>();
            let long = readers.read(b"long", move || (held.recv().unwrap(), Length::Long));
            let short = async {
                for n in 0..100 {
                    assert_eq!(readers.read(b"short", move || (n, Length::Short)).await, Ok(n));
                }
                release.send(()).unwrap();
            };
            tokio::join!(async { long.await.unwrap() }, short);
        });
    }

    #[test]
    fn few_long_reads_of_one_owner_wait() {
        let readers = Arc::new(Readers::start(1));
        block_on(async {
            readers.read(b"long", || ((), Length::Long)).await.unwrap();
            let (started, is_started) = channel();
            let (release, held) = channel::<()>();
            let held = Mutex::new(held);
            let first = readers.read(b"long", move || {
                started.send(()).unwrap();
                (lock(&held).recv().unwrap(), Length::Long)
            });
            let others = async {
                is_started.recv().unwrap();
                let mut waiting = Vec::new();
                for _ in 0..crate::fair_queue::LONG_WAITING_MAX {
                    let mut next = Box::pin(readers.read(b"long", || ((), Length::Long)));
                    assert!(poll_once(&mut next).is_none());
                    waiting.push(next);
                }
                assert_eq!(readers.read(b"long", || ((), Length::Long)).await, Err(PoolBusy));
                assert_eq!(readers.read(b"other", || ((), Length::Short)).await, Ok(()));
                release.send(()).unwrap();
                for next in waiting {
                    assert_eq!(next.await, Ok(()));
                }
            };
            tokio::join!(async { first.await.unwrap() }, others);
        });
    }

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_read_that_panics_fails_alone() {
        let readers = Arc::new(Readers::start(1));
        let failing = Arc::clone(&readers);
        let failed =
            std::thread::spawn(move || block_on(failing.read::<()>(b"owner", || panic!("broken")))).join();
        assert!(failed.is_err());
        assert_eq!(block_on(readers.read(b"owner", || (1, Length::Short))), Ok(1));
    }

    #[test]
    fn an_abandoned_read_is_not_executed() {
        let readers = Readers::start(1);
        block_on(async {
            let (release, held) = channel::<()>();
            let mut first = Box::pin(readers.read(b"a", move || (held.recv().unwrap(), Length::Short)));
            assert!(poll_once(&mut first).is_none());
            let mut second = Box::pin(readers.read::<()>(b"b", || unreachable!("it was given up")));
            assert!(poll_once(&mut second).is_none());
            drop(second);
            release.send(()).unwrap();
            first.await.unwrap();
        });
        readers.close();
        assert_eq!(block_on(readers.read(b"a", || ((), Length::Short))), Err(PoolBusy), "it is closed");
    }
}
