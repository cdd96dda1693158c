//! The life of a worker whose queue is ordered by time and shared by slots: round after round, with pauses
//! until the next item is due.

use std::time::Duration;

use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use futures_util::future::BoxFuture;

use super::leases::{self, Share};
use super::{Progress, WorkerError, idle_interval, pause, read};
use crate::core::Core;

/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// A worker that processes its queue in rounds.
pub(super) trait Rounds<'a> {
    /// The exchange.
    fn app(&self) -> &'a Core;
    /// Its share of the queue.
    fn share(&mut self) -> &mut Share<'a>;
    /// The longest pause without work.
    fn idle_sleep(&self) -> batzen_protocol::Duration;
    /// One pass over all due items. Also returns how many of them belong to other workers.
    fn round(&mut self) -> BoxFuture<'_, Result<(Progress, usize), WorkerError>>;
    /// Returns the function that finds the next time at which an item is due, later than now.
    fn next_due(&self) -> fn(&Store, Timestamp) -> Result<Option<Timestamp>, StoreError>;
}

/// Processes everything that is due, also what other workers leave.
pub(super) async fn until_idle<'a>(
    worker: &mut (dyn Rounds<'a> + Send + 'a),
) -> Result<Progress, WorkerError> {
    let mut progress = Progress::default();
    loop {
        let (round, others) = worker.round().await?;
        progress = Progress { done: progress.done + round.done, ..round };
        if others == 0 {
            worker.share().leave().await;
            return Ok(progress);
        }
        worker.share().wait_for_others(others).await?;
    }
}

/// Processes what becomes due until the service ends.
pub(super) async fn until_stopped<'a>(worker: &mut (dyn Rounds<'a> + Send + 'a)) -> Result<(), WorkerError> {
    let ended = rounds(worker).await;
    worker.share().leave().await;
    ended
}

async fn rounds<'a>(worker: &mut (dyn Rounds<'a> + Send + 'a)) -> Result<(), WorkerError> {
    let app = worker.app();
    loop {
        let (_, others) = worker.round().await?;
        let now = app.now();
        let next_due = worker.next_due();
        let next = read(app, move |store| next_due(store, now)).await?;
        let until = next.and_then(|next| next.saturating_since(now).to_std());
        let mut idle = idle_interval(worker.idle_sleep());
        if others > 0 {
            idle = idle.min(leases::lease(app));
        }
        pause(app, until.map_or(idle, |until| until.clamp(PAUSE_MIN, idle.max(PAUSE_MIN)))).await?;
    }
}
