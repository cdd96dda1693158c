//! Requests for `/keys` that arrived before the first keys existed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// Number of requests that may wait for the first keys. One more ends the wait of the oldest.
const WAITING_MAX: usize = 32;
/// The requests that wait for keys, oldest first.
#[derive(Debug, Default)]
pub(crate) struct KeyQueue(Mutex<VecDeque<oneshot::Sender<()>>>);

impl KeyQueue {
    /// Joins the queue. The receiver fires when a newer request takes the place.
    pub(crate) fn join(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|waiting| !waiting.is_closed());
        if queue.len() >= WAITING_MAX
            && let Some(oldest) = queue.pop_front()
        {
            // The request may have just ended.
            let _ = oldest.send(());
        }
        queue.push_back(sender);
        receiver
    }
}
