//! The CPU pool: signature checks and blind signing leave the async threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::oneshot;

/// A bounded pool of threads for cryptography.
#[derive(Clone)]
pub struct CpuPool {
    pool: Arc<rayon::ThreadPool>,
    pending: Arc<AtomicUsize>,
    pending_max: usize,
}

/// The pool has as many jobs waiting as it may: answer 503 and let the client come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all processors are busy: try again later")]
pub struct PoolBusy;

impl CpuPool {
    /// A pool of `threads` threads (0: one a core) that lets at most `pending_max` jobs wait.
    ///
    /// # Panics
    /// When the operating system refuses to start threads.
    pub fn new(threads: usize, pending_max: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("cpu-{index}"))
            .build()
            .expect("the operating system starts the threads of the CPU pool");
        Self { pool: Arc::new(pool), pending: Arc::default(), pending_max }
    }

    /// Runs `job` on the pool and waits for its result without blocking the caller's thread.
    ///
    /// # Panics
    /// When the job itself panicked: a broken assertion must not pass for an answer.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolBusy> {
        if self.pending.fetch_add(1, Relaxed) >= self.pending_max {
            self.pending.fetch_sub(1, Relaxed);
            return Err(PoolBusy);
        }
        let (sender, receiver) = oneshot::channel();
        let pending = Arc::clone(&self.pending);
        self.pool.spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            pending.fetch_sub(1, Relaxed);
            // The client may be gone; then nobody wants the result.
            let _ = sender.send(result);
        });
        match receiver.await.expect("the pool answers every job") {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Jobs that wait or run.
    pub fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }
}
