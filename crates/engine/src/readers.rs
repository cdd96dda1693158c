//! Threads that read what may be long, apart from those that serve requests: fair between owners, long ones apart.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::docket::Docket;
pub use crate::docket::Length;
use crate::pool::PoolBusy;
use crate::slot::{Responder, lock};

/// Reads that may wait. What reads for a client waits in its place among the client's requests, so that this is rarely met.
const WAITING_MAX: usize = 1_024;

/// A read. Says how long it was; none if nobody waited for it any more.
type Job = Box<dyn FnOnce() -> Option<Length> + Send>;

/// Threads for short reads, and one for long ones. Whose last read was long waits for that one, with few others of the same owner.
/// Owners take turns.
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
    docket: Arc<Docket<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Starts so many threads for short reads.
    ///
    /// # Panics
    /// When the system starts no thread.
    #[must_use]
    pub fn start(short_count: usize) -> Self {
        let docket = Arc::new(Docket::new(WAITING_MAX));
        let lengths = std::iter::repeat_n(Length::Short, short_count.max(1)).chain([Length::Long]);
        let spawn = |length| {
            let docket = Arc::clone(&docket);
            let name = if length == Length::Long { "reader-long" } else { "reader" };
            let run = move || run(&docket, length);
            std::thread::Builder::new().name(name.into()).spawn(run).expect("the system starts a thread")
        };
        let threads = lengths.map(spawn).collect();
        Self { docket, threads: Mutex::new(threads) }
    }

    /// Reads for an owner, and waits for the result. The read says how long it was.
    ///
    /// # Errors
    /// When too much waits, or too much of this owner, whose reads are long.
    ///
    /// # Panics
    /// When the read panicked: a broken assertion must not pass for an answer.
    pub async fn read<T: Send + 'static>(
        &self,
        owner: &[u8],
        read: impl FnOnce() -> (T, Length) + Send + 'static,
    ) -> Result<T, PoolBusy> {
        let (responder, ticket) = Responder::new();
        let job = move || {
            if responder.is_abandoned() {
                return None;
            }
            // Of a read that panics the responder is dropped: whoever waits learns that there is no result.
            let (value, length) = catch_unwind(AssertUnwindSafe(read)).ok()?;
            responder.send(value);
            Some(length)
        };
        self.docket.add(Some(owner.into()), Box::new(job)).map_err(|_| PoolBusy)?;
        let results = poll_fn(|context| ticket.poll_results(context)).await;
        Ok(results.expect("reading does not panic").pop().expect("one result a read"))
    }

    /// Ends when all that waits is read. Blocks.
    pub fn close(&self) {
        self.docket.close();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads histories had panicked");
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(docket: &Docket<Job>, length: Length) {
    while let Some((owner, job)) = docket.next(length) {
        if let Some(length) = job() {
            docket.learn(&owner, length);
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
                for _ in 0..crate::docket::LONG_WAITING_MAX {
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
    fn what_nobody_waits_for_is_not_read() {
        let readers = Readers::start(1);
        block_on(async {
            let (release, held) = channel::<()>();
            let mut first = Box::pin(readers.read(b"a", move || (held.recv().unwrap(), Length::Short)));
            assert!(poll_once(&mut first).is_none());
            let mut second = Box::pin(readers.read::<()>(b"b", || unreachable!("nobody waits")));
            assert!(poll_once(&mut second).is_none());
            drop(second);
            release.send(()).unwrap();
            first.await.unwrap();
        });
        readers.close();
        assert_eq!(block_on(readers.read(b"a", || ((), Length::Short))), Err(PoolBusy), "it is closed");
    }
}
