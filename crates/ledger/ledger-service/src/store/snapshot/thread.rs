//! The thread that takes snapshots beside the lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::work::Snapshots;
use crate::store::log::Log;

/// Time that the thread waits if there is nothing to do. A request wakes it.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Pause after an error of the store.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs [`Snapshots::step`] until it is stopped.
pub(crate) struct SnapshotThread {
    log: Arc<Log>,
    is_stopped: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SnapshotThread {
    /// Starts it.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub(crate) fn start(mut snapshots: Snapshots, log: Arc<Log>) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stopped, wait_at) = (Arc::clone(&is_stopped), Arc::clone(&log));
        let run = move || {
            let mut had_failed = false;
            while !stopped.load(Ordering::Acquire) {
                match snapshots.step() {
                    Ok(true) => had_failed = false,
                    Ok(false) => wait_at.wait(IDLE_MAX),
                    Err(error) => {
                        if !std::mem::replace(&mut had_failed, true) {
                            tracing::warn!(%error, "the ledger's snapshot waits: its ids stay in memory");
                        }
                        wait_at.wait(RETRY_INTERVAL);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ledger-snapshot".into())
            .spawn(run)
            .expect("the operating system starts the thread of snapshots");
        Self { log, is_stopped, thread: Mutex::new(Some(thread)) }
    }

    /// Ends it after the current step. A snapshot that was begun is finished after the next start.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.log.wake();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let ended = thread.join().is_ok();
            assert!(
                ended || std::thread::panicking(),
                "the thread of snapshots ended with a broken assertion"
            );
        }
    }
}

impl Drop for SnapshotThread {
    fn drop(&mut self) {
        self.stop();
    }
}
