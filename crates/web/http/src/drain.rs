//! The token that announces the shutdown of the service.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::{Notify, watch};

/// Announces once, to the holders of all clones, that the service is shutting down.
///
/// Handlers that wait (long polls) stop waiting when it fires; workers use it as their stop signal.
#[derive(Clone, Debug)]
pub struct Drain {
    sender: Arc<watch::Sender<bool>>,
    /// Ends the wait of one request before the service shuts down.
    early: Option<Arc<Early>>,
}

/// Ends the wait of a single request.
#[derive(Debug, Default)]
pub(crate) struct Early {
    ended: AtomicBool,
    notify: Notify,
}

impl Early {
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    async fn ended(&self) {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // No notification is missed from now on, so the flag is read afterwards.
        notified.as_mut().enable();
        if !self.has_ended() {
            notified.await;
        }
    }
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
        Self { sender: Arc::new(watch::Sender::new(false)), early: None }
    }

    /// The token for one request, whose wait may end separately.
    pub(crate) fn for_request(&self, early: Arc<Early>) -> Self {
        Self { sender: Arc::clone(&self.sender), early: Some(early) }
    }

    /// Fires. Later calls do nothing.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Returns whether it has fired. The token of a request ([`crate::Request::drain`]) also fires when too
    /// many requests of the server wait and the server ends the wait of this one.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.sender.borrow() || self.early.as_ref().is_some_and(|early| early.has_ended())
    }

    /// Returns when it has fired, or at once if it already has.
    pub async fn draining(&self) {
        let mut receiver = self.sender.subscribe();
        // The sender lives as long as `self`, so this cannot fail. If it did, it would be safest to drain.
        let service = receiver.wait_for(|fired| *fired);
        match &self.early {
            None => drop(service.await),
            Some(early) => tokio::select! {
                biased;
                _ = service => {}
                () = early.ended() => {}
            },
        }
    }

    /// Sleeps for `duration` or until it fires; true if it fired.
    pub async fn sleep(&self, duration: std::time::Duration) -> bool {
        tokio::select! {
            biased;
            () = self.draining() => true,
            () = tokio::time::sleep(duration) => false,
        }
    }
}
