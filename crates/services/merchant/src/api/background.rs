//! Work that nobody waits for: stock whose time is over, web hooks, reserves that are to be filled.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_http::Drain;
use tokio::task::JoinSet;

use super::Service;

/// The maximum number of tasks. Further ones are dropped: all of this work is found again.
const TASKS_MAX: usize = 4_096;
/// How often stock is released whose time is over.
const STOCK_PAUSE: Duration = Duration::from_secs(5);
/// How often web hooks are looked for that nobody has announced.
const HOOKS_PAUSE: Duration = Duration::from_secs(5);

/// The tasks.
pub(super) struct Background {
    tasks: Mutex<JoinSet<()>>,
    tasks_max: usize,
}

impl Default for Background {
    fn default() -> Self {
        Self::with_limit(TASKS_MAX)
    }
}

impl Background {
    /// Runs at most so many tasks.
    pub fn with_limit(tasks_max: usize) -> Self {
        Self { tasks: Mutex::default(), tasks_max }
    }

    /// Runs something, unless there are too many tasks. Returns whether it does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        let has_room = tasks.len() < self.tasks_max;
        if has_room {
            tasks.spawn(task);
        }
        has_room
    }

    /// Ends all tasks.
    pub async fn end(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}

impl Service {
    /// Starts what runs as long as the service.
    pub(crate) fn start_background(self: &Arc<Self>, drain: &Drain) {
        let sampled = Arc::downgrade(self);
        self.metrics_page.sample(move |page| {
            let service = sampled.upgrade();
            service.is_some_and(|service| {
                service.write_metrics(page);
                true
            })
        });
        let (service, drain_) = (Arc::clone(self), drain.clone());
        self.background.spawn(async move {
            while !drain_.sleep(STOCK_PAUSE).await {
                // If this fails, it is tried again.
                while service.release_stock().await.unwrap_or(false) {}
            }
        });
        let (service, drain_) = (Arc::clone(self), drain.clone());
        self.background.spawn(async move {
            while !drain_.is_draining() {
                let next = service.send_webhooks().await.unwrap_or_default();
                let is_more = next.is_some_and(|next| next <= service.now());
                if is_more {
                    continue;
                }
                tokio::select! {
                    () = service.notices.webhooks.notified() => {}
                    () = tokio::time::sleep(HOOKS_PAUSE) => {}
                    () = drain_.draining() => {}
                }
            }
        });
        let service = Arc::clone(self);
        self.background.spawn(async move {
            if service.watch_reserves().await.is_err() {
                tracing::warn!("reserves for tips could not be read");
            }
        });
    }
}
