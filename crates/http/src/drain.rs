//! The token that tells everybody that the service is ending.

use std::sync::Arc;
use tokio::sync::watch;

/// Says once, to everybody who holds a clone, that the service is about to end.
///
/// Handlers that wait (long polling) end their wait when it fires; workers use it as their stop signal.
#[derive(Clone, Debug)]
pub struct Drain {
    sender: Arc<watch::Sender<bool>>,
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// A token that has not fired.
    #[must_use]
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(false)) }
    }

    /// Fires. Later calls do nothing.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it has fired.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.sender.borrow()
    }

    /// Returns when it has fired, at once if it already has.
    pub async fn draining(&self) {
        let mut receiver = self.sender.subscribe();
        // The sender lives at least as long as `self`, so this cannot fail; should it ever, draining is the safe answer.
        let _ = receiver.wait_for(|fired| *fired).await;
    }

    /// Sleeps for `duration`, or until it fires; true if it fired.
    pub async fn sleep(&self, duration: std::time::Duration) -> bool {
        tokio::select! {
            biased;
            () = self.draining() => true,
            () = tokio::time::sleep(duration) => false,
        }
    }
}
