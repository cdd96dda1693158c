//! Work that no request waits for: stock whose time is over, web hooks, coins that are given back, reserves that are to be
//! filled.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_http::Drain;
use batzen_service::fill_dashboard;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::{Merchant, deliveries, products, reserves, returns};

/// The maximum number of tasks. Further ones are dropped: all of this work is found again.
const TASKS_MAX: usize = 4_096;
/// Interval at which stock is released whose time is over.
const STOCK_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which exchanges are asked to give back coins.
const RETURNS_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which the store is searched for web hooks without a notice.
const HOOKS_PAUSE: Duration = Duration::from_secs(5);

/// A bounded set of tasks.
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
    pub(crate) fn with_limit(tasks_max: usize) -> Self {
        Self { tasks: Mutex::default(), tasks_max }
    }

    /// Runs something, unless there are too many tasks, or no runtime, as in a simulation. Returns whether it does.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        let has_room = tasks.len() < self.tasks_max && Handle::try_current().is_ok();
        if has_room {
            tasks.spawn(task);
        }
        has_room
    }

    /// Ends all tasks.
    pub(super) async fn end(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}

/// Starts the work that runs as long as the service.
pub(crate) fn start(app: &Arc<Merchant>, drain: &Drain) {
    fill_dashboard(app);
    let (merchant, ending) = (Arc::clone(app), drain.clone());
    app.background.spawn(async move {
        while !ending.sleep(STOCK_PAUSE).await {
            // If this fails, it is tried again.
            while products::release_stock(&merchant.core).await.unwrap_or(false) {}
        }
    });
    let (merchant, ending) = (Arc::clone(app), drain.clone());
    app.background.spawn(async move {
        while !ending.is_draining() {
            if deliveries::send_due(&merchant).await.unwrap_or(false) {
                continue;
            }
            tokio::select! {
                () = merchant.hook_queues.ended() => {}
                () = merchant.core.notices.webhooks.announced() => {}
                () = tokio::time::sleep(HOOKS_PAUSE) => {}
                () = ending.draining() => {}
            }
        }
    });
    let (merchant, ending) = (Arc::clone(app), drain.clone());
    app.background.spawn(async move {
        while !ending.sleep(RETURNS_PAUSE).await {
            // If these fail, they are tried again.
            while returns::end_claims(&merchant).await.unwrap_or(false) {}
            while returns::ask_due(&merchant).await.unwrap_or(false) {}
        }
    });
    let merchant = Arc::clone(app);
    app.background.spawn(async move {
        if reserves::watch_all(&merchant).await.is_err() {
            tracing::warn!("reserves for tips could not be read");
        }
    });
}
